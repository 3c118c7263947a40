//! `fencepost submit --file`: submits the jobs of a file in batches, and shows how far it is.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use client::wire::jobs::BatchResult;
use client::{Client, Doubt};
use domain::limits::IDEMPOTENCY_KEY_CHARS_MAX;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::attempts::Attempts;
use super::lines::{Batch, Batches};
use crate::cli::jobs::JobOptions;
use crate::commands::absence::Absence;
use crate::commands::{once, shown};
use crate::exit::{Exit, Failure};

/// How often the bar moves while nothing is answered.
const TICK: Duration = Duration::from_millis(200);
/// How many characters a key may have that batches get their keys from: a point and ten digits follow it.
const KEY_CHARS_MAX: usize = IDEMPOTENCY_KEY_CHARS_MAX - 11;
/// How many refused jobs are named on stderr; the count names all.
const REFUSED_SHOWN: u64 = 20;

/// What became of the job of a line, for programs.
#[derive(Serialize)]
struct Outcome<'a> {
    line: u64,
    #[serde(flatten)]
    result: &'a BatchResult,
}

/// Submits all jobs of the file, or of standard input for `-`. Before the first job of a file is sent, all its lines are
/// read, so that a mistake in one submits nothing; standard input is sent as it is read.
///
/// # Errors
/// Wrong usage for a line that is no job, and for a key too long to be numbered; the refusal of a whole batch;
/// [`Exit::Refused`] if single jobs were refused.
pub async fn run(
    client: &Client,
    file: &Path,
    options: &JobOptions,
    key: Option<String>,
    json: bool,
) -> Result<(), Failure> {
    let is_key_known = key.is_some();
    let key = once::key(key, super::COMMAND);
    if key.chars().count() > KEY_CHARS_MAX {
        let why = format!(
            "--key must have at most {KEY_CHARS_MAX} characters with --file: each batch gets it with a number of its own"
        );
        return Err(Failure::new(Exit::Usage, why));
    }
    let (overload, bar) = (Absence::default(), ProgressBar::hidden());
    let work = Submission { client, options, key, is_key_known, overload, json, bar };
    if file == Path::new("-") {
        return work.run("standard input", io::stdin().lock(), None).await;
    }
    let name = file.display().to_string();
    let open = || File::open(file).map_err(|error| Failure::new(Exit::Usage, format!("{name}: {error}")));
    let opened = open()?;
    let meta = opened.metadata().map_err(|error| Failure::new(Exit::Usage, format!("{name}: {error}")))?;
    // A pipe can be read once only.
    if !meta.is_file() {
        return work.run(&name, BufReader::new(opened), None).await;
    }
    let mut check = Batches::new(BufReader::new(opened), options);
    let wrong = |wrong| Failure::new(Exit::Usage, format!("{name}: {wrong}\n  No job was submitted."));
    while !check.next().map_err(wrong)?.lines.is_empty() {}
    work.run(&name, BufReader::new(open()?), Some(meta.len())).await
}

/// Many jobs on their way.
struct Submission<'a> {
    client: &'a Client,
    options: &'a JobOptions,
    /// The beginning of each batch's idempotency key.
    key: String,
    /// Whether the caller knows that key: it gave the key, or was told of it.
    is_key_known: bool,
    /// Since when jobs are refused for now, and none more is accepted.
    overload: Absence,
    json: bool,
    bar: ProgressBar,
}

impl Submission<'_> {
    async fn run(mut self, name: &str, from: impl BufRead, bytes: Option<u64>) -> Result<(), Failure> {
        self.bar = bar(bytes);
        let mut batches = Batches::new(from, self.options);
        let (mut accepted, mut refused) = (0, 0);
        for number in 1_u64.. {
            let batch = batches.next().map_err(|wrong| {
                self.bar.finish_and_clear();
                let message = format!(
                    "{name}: {wrong}\n  {accepted} jobs before it are accepted. {}",
                    self.how_to_go_on()
                );
                Failure::new(Exit::Usage, message)
            })?;
            if batch.lines.is_empty() {
                break;
            }
            let read = batch.read;
            for (line, result) in self.send(batch, number, accepted).await? {
                match &result {
                    BatchResult::Accepted { .. } => accepted += 1,
                    BatchResult::Refused { .. } => refused += 1,
                }
                if !self.tell(line, &result, refused) {
                    let message = format!(
                        "nobody reads what is accepted, so no further jobs are submitted; {accepted} are. {}",
                        self.how_to_go_on()
                    );
                    return Err(Failure::new(Exit::Refused, message));
                }
            }
            self.bar.set_message(format!("{accepted} jobs accepted"));
            if bytes.is_some() {
                self.bar.set_position(read);
            }
        }
        self.bar.finish_and_clear();
        if refused > 0 {
            let message =
                format!("{accepted} jobs are accepted, {refused} are refused. {}", self.how_to_go_on());
            return Err(Failure::new(Exit::Refused, message));
        }
        if !self.json {
            shown::note(&format!("{accepted} jobs are accepted\n"));
        }
        Ok(())
    }

    fn how_to_go_on(&self) -> String {
        format!("To continue without submitting a job twice, run the same command with --key {}", self.key)
    }

    /// Submits one batch, through absences of the daemon, and again as long as it refuses jobs for now. It keeps a key for each
    /// job of the batch, so that a repetition submits only those that it refused. A key that was made here is named before the
    /// first batch that has it is sent.
    async fn send(
        &mut self,
        batch: Batch,
        number: u64,
        accepted: u64,
    ) -> Result<Vec<(u64, BatchResult)>, Failure> {
        let key = (!batch.is_named()).then(|| format!("{}.{number}", self.key));
        if key.is_some() && !self.is_key_known {
            self.is_key_known = true;
            // A process that is killed says nothing more.
            let note =
                format!("if this is interrupted, the same command with --key {} continues it\n", self.key);
            self.bar.suspend(|| shown::note(&note));
        }
        let (numbers, jobs): (Vec<_>, Vec<_>) =
            batch.lines.into_iter().map(|line| (line.number, line.job)).unzip();
        let (mut attempts, mut absence, mut doubt) =
            (Attempts::default(), Absence::default(), Doubt::default());
        loop {
            match self.client.jobs().submit_batch(jobs.clone(), key.as_deref()).await {
                Ok(answers) => {
                    absence.is_over();
                    if !attempts.answered(answers, &mut self.overload).await {
                        return Ok(numbers.into_iter().zip(attempts.into_results()).collect());
                    }
                }
                Err(error) => {
                    doubt.note(&error, || self.client.url());
                    if let Err(last) = absence.outlast(error).await {
                        self.bar.finish_and_clear();
                        self.tell_of_rest(&numbers, &attempts, accepted);
                        return Err(shown::failure(self.json, doubt.over(last)));
                    }
                }
            }
        }
    }

    /// Prints what is known of a batch that is broken off, behind so many accepted jobs.
    fn tell_of_rest(&self, numbers: &[u64], attempts: &Attempts, accepted: u64) {
        let mut accepted = accepted;
        let mut what = "the batch";
        for (place, result) in attempts.accepted() {
            // Also where nobody reads it: the command has failed.
            self.tell(numbers[place], result, 0);
            (accepted, what) = (accepted + 1, "the rest of the batch");
        }
        let first = numbers.first().copied().unwrap_or_default();
        shown::note(&format!(
            "{accepted} jobs are accepted; {what} from line {first} on is not known to be. {}\n",
            self.how_to_go_on()
        ));
    }

    /// Prints what became of a line; `false` if nobody reads it.
    fn tell(&self, line: u64, result: &BatchResult, refused: u64) -> bool {
        self.bar.suspend(|| match result {
            result if self.json => shown::print(&(shown::json(&Outcome { line, result }) + "\n")),
            BatchResult::Accepted { id, .. } => shown::print(&format!("{id}\n")),
            BatchResult::Refused { code, detail, .. } => {
                if refused <= REFUSED_SHOWN {
                    let why = shown::one_line(&format!("{code}: {detail}"));
                    shown::note(&format!("line {line}: {why}\n"));
                }
                true
            }
        })
    }
}

/// A bar on stderr; nothing where that is no terminal.
fn bar(bytes: Option<u64>) -> ProgressBar {
    let style = |template| ProgressStyle::with_template(template).expect("the template is sound");
    let bar = match bytes {
        Some(bytes) => {
            ProgressBar::new(bytes).with_style(style("{wide_bar} {bytes}/{total_bytes}, {msg}, {eta} left"))
        }
        None => ProgressBar::new_spinner().with_style(style("{spinner} {msg}, {elapsed}")),
    };
    bar.enable_steady_tick(TICK);
    bar
}
