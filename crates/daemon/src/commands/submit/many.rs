//! `fencepost submit --file`: submits the jobs of a file in batches, and shows how far it is.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use client::wire::jobs::BatchResult;
use client::wire::{Code, Problem};
use client::{Client, Doubt, Error};
use domain::limits::IDEMPOTENCY_KEY_CHARS_MAX;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::attempts::Attempts;
use super::lines::{Batch, Batches};
use crate::cli::jobs::JobOptions;
use crate::commands::absence::Absence;
use crate::commands::{once, progress_bar, shown};
use crate::exit::{Exit, Failure};

/// How often the bar moves while nothing is answered.
const TICK: Duration = Duration::from_millis(200);
/// How many characters a key may have that batches get their keys from: a point and ten digits follow it.
const KEY_CHARS_MAX: usize = IDEMPOTENCY_KEY_CHARS_MAX - 11;
/// How long the daemon knows the key of a job that it has accepted: by its default, and by which setting.
const WITHIN: &str = "within 24 h (nonce.key_retention_ms)";
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
    let work = Submission {
        client,
        options,
        key,
        is_key_known,
        overload: Absence::default(),
        counts: Counts::default(),
        has_doubt: false,
        named: 0,
        is_read: true,
        json,
        bar: ProgressBar::hidden(),
    };
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

/// What became of the jobs so far.
#[derive(Debug, Default)]
struct Counts {
    accepted: u64,
    refused: u64,
    /// Those of the refused jobs that may be accepted later, under the same key.
    refused_for_now: u64,
}

impl Counts {
    fn add(&mut self, result: &BatchResult) {
        match result {
            BatchResult::Accepted { .. } => self.accepted += 1,
            BatchResult::Refused { .. } => {
                self.refused += 1;
                self.refused_for_now += u64::from(result.known_code().is_some_and(Code::is_retryable));
            }
        }
    }

    /// Whether a job is refused, and will be as long as its line is as it is.
    const fn has_lasting_refusal(&self) -> bool {
        self.refused > self.refused_for_now
    }
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
    counts: Counts,
    /// Whether a job may be accepted although it was refused. Under the same key that shows.
    has_doubt: bool,
    /// How many refused jobs were named on stderr.
    named: u64,
    /// Whether all that was printed could be printed.
    is_read: bool,
    json: bool,
    bar: ProgressBar,
}

impl Submission<'_> {
    async fn run(mut self, name: &str, from: impl BufRead, bytes: Option<u64>) -> Result<(), Failure> {
        self.bar = bar(bytes);
        let mut batches = Batches::new(from, self.options);
        for number in 1_u64.. {
            let batch = batches.next().map_err(|wrong| {
                self.bar.finish_and_clear();
                let message = format!(
                    "{name}: {wrong}\n  {} jobs before it are accepted. {}",
                    self.counts.accepted,
                    self.how_to_go_on()
                );
                Failure::new(Exit::Usage, message)
            })?;
            if batch.lines.is_empty() {
                break;
            }
            let read = batch.read;
            let outcomes = self.send(batch, number).await?;
            // What is accepted is so, whether it can be printed or not.
            outcomes.iter().for_each(|(_, result)| self.counts.add(result));
            outcomes.iter().for_each(|(line, result)| self.tell(*line, result));
            if !self.is_read && batches.has_more() {
                return Err(self.unread());
            }
            self.bar.set_message(accepted(self.counts.accepted));
            if bytes.is_some() {
                self.bar.set_position(read);
            }
        }
        self.bar.finish_and_clear();
        self.over()
    }

    /// How the command ends before its last line, since what is accepted cannot be printed.
    fn unread(&self) -> Failure {
        self.bar.finish_and_clear();
        let rest = format!(
            "so no further jobs are submitted; {} are accepted. {}",
            self.counts.accepted,
            self.how_to_go_on()
        );
        match shown::all_written() {
            Ok(()) => Failure::new(Exit::Refused, format!("nobody reads what is accepted, {rest}")),
            Err(Failure { exit, message }) => Failure { exit, message: format!("{message}, {rest}") },
        }
    }

    /// How the command ends behind its last line.
    fn over(&self) -> Result<(), Failure> {
        let Counts { accepted, refused, refused_for_now } = self.counts;
        let mut became = format!("{accepted} jobs are accepted");
        if refused > 0 {
            became += &format!(", {refused} are refused");
        }
        // The same command prints the ids again.
        if let Err(Failure { exit, message }) = shown::all_written() {
            return Err(Failure { exit, message: format!("{message}; {became}. {}", self.how_to_go_on()) });
        }
        if refused > 0 {
            let is_done = refused_for_now == 0 && !self.has_doubt;
            let next = if is_done { corrected("the refused lines") } else { self.how_to_go_on() };
            return Err(Failure::new(Exit::Refused, format!("{became}. {next}")));
        }
        if !self.json {
            shown::note(&format!("{became}\n"));
        }
        Ok(())
    }

    /// How to submit what is not accepted yet. The daemon refuses a batch with a corrected line under the batch's key.
    fn how_to_go_on(&self) -> String {
        let again = format!(
            "To continue without submitting a job twice, {WITHIN} run the same command with --key {}",
            self.key
        );
        if self.counts.has_lasting_refusal() {
            format!("{again}, with the refused lines as they are. {}", corrected("these"))
        } else {
            again
        }
    }

    /// Submits one batch, through absences of the daemon, and again as long as it refuses jobs for now. It keeps a key for each
    /// job of the batch, so that a repetition submits only those that it refused. A key that was made here is named before the
    /// first batch that has it is sent.
    async fn send(&mut self, batch: Batch, number: u64) -> Result<Vec<(u64, BatchResult)>, Failure> {
        let key = (!batch.is_named()).then(|| format!("{}.{number}", self.key));
        if key.is_some() && !self.is_key_known {
            self.is_key_known = true;
            // A process that is killed says nothing more.
            let note = format!(
                "if this is interrupted, {WITHIN} the same command with --key {} continues it\n",
                self.key
            );
            self.bar.suspend(|| shown::note(&note));
        }
        let (numbers, jobs): (Vec<_>, Vec<_>) =
            batch.lines.into_iter().map(|line| (line.number, line.job)).unzip();
        let (mut attempts, mut absence, mut doubt) =
            (Attempts::default(), Absence::default(), Doubt::default());
        loop {
            match self.client.jobs().submit_batch(jobs.clone(), key.as_deref()).await {
                Ok(answers) => {
                    absence.end();
                    if !attempts.answered(answers, &mut self.overload).await {
                        self.has_doubt |= attempts.has_doubt();
                        return Ok(numbers.into_iter().zip(attempts.into_results()).collect());
                    }
                }
                Err(error) => {
                    doubt.note(&error, || self.client.url());
                    if let Err(last) = absence.outlast(error).await {
                        self.bar.finish_and_clear();
                        let error = doubt.over(last);
                        self.tell_of_rest(&numbers, &attempts, &error);
                        return Err(shown::failure(self.json, error));
                    }
                }
            }
        }
    }

    /// Prints what is known of a batch that is broken off by this.
    fn tell_of_rest(&mut self, numbers: &[u64], attempts: &Attempts, error: &Error) {
        let mut what = "the batch";
        for (place, result) in attempts.accepted() {
            self.counts.add(result);
            // Also where nobody reads it: the command has failed.
            self.tell(numbers[place], result);
            what = "the rest of the batch";
        }
        let first = numbers.first().copied().unwrap_or_default();
        let is_known = !error.may_be_done() && !attempts.has_doubt();
        let is = if is_known { "is not" } else { "is not known to be" };
        // The same command is refused again.
        let is_changed = error.problem().and_then(Problem::known_code) == Some(Code::KeyReused);
        let next = if is_changed {
            format!(
                "The file or the options have changed since --key {} was used; as they were, the same command continues",
                self.key
            )
        } else {
            self.how_to_go_on()
        };
        let accepted = self.counts.accepted;
        shown::note(&format!("{accepted} jobs are accepted; {what} from line {first} on {is}. {next}\n"));
    }

    /// Prints what became of a line. Behind one that cannot be printed, no other one is.
    fn tell(&mut self, line: u64, result: &BatchResult) {
        let text = match result {
            result if self.json => shown::json(&Outcome { line, result }),
            BatchResult::Accepted { id, .. } => id.clone(),
            BatchResult::Refused { code, detail, .. } => {
                self.named += 1;
                if self.named <= REFUSED_SHOWN {
                    let why = shown::one_line(&format!("{code}: {detail}"));
                    self.bar.suspend(|| shown::note(&format!("line {line}: {why}\n")));
                }
                return;
            }
        };
        self.is_read = self.is_read && self.bar.suspend(|| shown::print(&(text + "\n")));
    }
}

/// What to do with lines that are refused as they are.
fn corrected(which: &str) -> String {
    format!("Put {which}, corrected, into a file of their own, and submit that file under a new key")
}

/// A bar on stderr; nothing where that is no terminal.
fn bar(bytes: Option<u64>) -> ProgressBar {
    let bar = match bytes {
        Some(bytes) => progress_bar::new(bytes, "{bytes}/{total_bytes}", accepted(0)),
        None => {
            let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}");
            let style = style.expect("the template is sound");
            ProgressBar::new_spinner().with_style(style).with_message(accepted(0))
        }
    };
    bar.enable_steady_tick(TICK);
    bar
}

fn accepted(jobs: u64) -> String {
    format!("{jobs} jobs accepted")
}
