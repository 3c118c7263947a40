//! One run of the command: its input, its output as a result, and how it is stopped.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::node::{Failure, Job, Why};
use client::wire::Json;
use client::wire::limits::PAYLOAD_BYTES_MAX;
use rustix::process::{Resource, Rlimit, Signal, getrlimit};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::group::Group;

/// How many bytes of a command's standard error are kept, counted from the end.
const STDERR_BYTES_MAX: usize = 4 << 10;
/// For so long it is tried to start a command. A node that failed each attempt at once, since its program is away or the system
/// has no process left, would take all jobs that wait and use their attempts up.
const START_MAX: Duration = Duration::from_secs(10);
/// The delay between two such tries.
const START_PAUSE: Duration = Duration::from_secs(1);
/// For so long a command's output is read after its end, where something keeps it open.
pub const OUTPUT_AFTER: Duration = Duration::from_secs(2);
/// The exit status with which a command reports that the payload is wrong and that another attempt would fail
/// too (EX_DATAERR).
const EXIT_LASTING: i32 = 65;

/// What every command gets of the node's environment: where programs and files are, and how texts and times are written.
const KEPT_VARIABLES: [&str; 9] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR"];

/// A command with its arguments.
#[derive(Debug)]
pub struct Command {
    words: Vec<String>,
    /// What it gets of the node's environment.
    environment: Vec<(OsString, OsString)>,
    /// How many files it may have open: as many as the node could before it raised its own limit.
    descriptors: Rlimit,
    /// After SIGTERM it has this long until SIGKILL.
    kill_after: Duration,
}

/// What a command has printed so far.
#[derive(Default)]
struct Printed {
    output: Vec<u8>,
    errors: Vec<u8>,
}

impl Command {
    /// A command of at least one word. Of the node's own environment, which holds its token and whatever else it was started
    /// with, the command gets [`KEPT_VARIABLES`] and those that are named here; and the limit of open files that holds now. Where
    /// it is stopped, it has `kill_after` from SIGTERM until SIGKILL.
    pub fn new(words: Vec<String>, names: &[String], kill_after: Duration) -> Self {
        let kept = KEPT_VARIABLES.iter().copied().chain(names.iter().map(String::as_str));
        let environment = kept.filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
        let descriptors = getrlimit(Resource::Nofile);
        Self { words, environment: environment.collect(), descriptors, kill_after }
    }

    /// What is run.
    pub fn program(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// Runs it for one job.
    ///
    /// # Errors
    /// [`Failure`]: it could not be started, was stopped, printed too much, or failed by its exit status.
    pub async fn run(&self, job: Job) -> Result<Json, Failure> {
        let mut group = self.started(&job).await?;
        let child = group.child();
        let stdin = child.stdin.take().expect("it is a pipe");
        let stdout = child.stdout.take().expect("it is a pipe");
        let stderr = child.stderr.take().expect("it is a pipe");
        let overflow = Notify::new();
        let mut printed = Printed::default();
        let Printed { output, errors } = &mut printed;
        let talk = async {
            let feed = async {
                let mut stdin = stdin;
                // A command need not read what it is given.
                let _ = stdin.write_all(given(&job).as_bytes()).await;
            };
            let (head, tail) = (head(stdout, output, &overflow), tail(stderr, errors));
            let ((), head, tail) = tokio::join!(feed, head, tail);
            head.and(tail)
        };
        let seen = see_through(&mut group, &job, talk, &overflow, self.kill_after).await;
        let (status, ended_for) =
            seen.map_err(|error| Failure::passing(format!("cannot wait for {:?}: {error}", self.program())))?;
        judge(status, &printed, ended_for)
    }

    /// Starts it, within [`START_MAX`], unless the attempt is stopped before. Of a job with less time it is tried for half of
    /// that: the attempt is to say why it failed, before its time is over.
    async fn started(&self, job: &Job) -> Result<Group, Failure> {
        let (begun, most) = (Instant::now(), START_MAX.min(job.timeout / 2));
        loop {
            let why = match Group::spawn(&mut self.prepared(job), self.descriptors) {
                Ok(group) => return Ok(group),
                Err(error) => format!("{:?} cannot be started: {error}", self.program()),
            };
            if begun.elapsed() >= most {
                return Err(Failure::passing(why));
            }
            tokio::select! {
                why = job.stop.requested() => return Err(Failure::passing(why.to_string())),
                () = sleep(START_PAUSE.min(most)) => {}
            }
        }
    }

    fn prepared(&self, job: &Job) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(self.program());
        command
            .args(&self.words[1..])
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("FENCEPOST_JOB", &job.id)
            .env("FENCEPOST_ATTEMPT", job.attempt.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(session) = &job.session {
            command.env("FENCEPOST_SESSION", session);
        }
        if let Some(kind) = &job.kind {
            command.env("FENCEPOST_KIND", kind);
        }
        if !job.metadata.is_empty() {
            command.env("FENCEPOST_METADATA", json(&job.metadata));
        }
        if let Some(parent) = &job.traceparent {
            // The second is what tracing tools read.
            command.env("FENCEPOST_TRACEPARENT", parent).env("TRACEPARENT", parent);
        }
        if let Some(repeated) = &job.retry_of {
            command.env("FENCEPOST_RETRY_OF", repeated);
        }
        command
    }
}

/// What the command reads: the payload, or of a plan's stage an object with the payload and the stage.
fn given(job: &Job) -> Cow<'_, str> {
    match &job.stage {
        None => job.payload.as_str().into(),
        Some(stage) => format!(r#"{{"payload":{},"stage":{}}}"#, job.payload.as_str(), stage.as_str()).into(),
    }
}

/// Strings by their keys, as a JSON object.
fn json(strings: &BTreeMap<String, String>) -> String {
    serde_json::to_string(strings).expect("texts always serialise")
}

/// Why the node ended a process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndedFor {
    /// The attempt was told to stop.
    Stop(Why),
    /// It printed too much.
    Overflow,
}

/// Waits for the end of the group and of its output, and ends the group if the attempt is stopped or the command prints too
/// much. A process that left the group and outlives it may keep the output open: what the command has printed by then is all.
async fn see_through(
    group: &mut Group,
    job: &Job,
    talk: impl Future<Output = io::Result<()>>,
    overflow: &Notify,
    kill_after: Duration,
) -> io::Result<(ExitStatus, Option<EndedFor>)> {
    let mut talk = pin!(talk);
    let mut kill_at = pin!(sleep(Duration::ZERO));
    let (mut is_said, mut ended_for, mut kill) = (false, None, false);
    let status = loop {
        tokio::select! {
            status = group.ended() => break status?,
            heard = &mut talk, if !is_said => {
                heard?;
                is_said = true;
            }
            () = overflow.notified(), if ended_for.is_none() => {
                ended_for = Some(EndedFor::Overflow);
                group.signal(Signal::KILL).await;
            }
            why = job.stop.requested(), if ended_for.is_none() => {
                ended_for = Some(EndedFor::Stop(why));
                group.signal(Signal::TERM).await;
                kill_at.as_mut().reset(Instant::now() + kill_after);
                kill = true;
            }
            () = &mut kill_at, if kill => {
                group.signal(Signal::KILL).await;
                kill = false;
            }
        }
    };
    if !is_said && let Ok(heard) = timeout(OUTPUT_AFTER, talk).await {
        heard?;
    }
    // It may have printed too much at its very end.
    if ended_for.is_none() && timeout(Duration::ZERO, overflow.notified()).await.is_ok() {
        ended_for = Some(EndedFor::Overflow);
    }
    Ok((status, ended_for))
}

/// Reads all of it, up to the largest output. Says when there was more.
async fn head(pipe: impl AsyncRead + Unpin, bytes: &mut Vec<u8>, overflow: &Notify) -> io::Result<()> {
    // The last newline does not count.
    let most = PAYLOAD_BYTES_MAX + 1;
    let mut pipe = pipe.take(most as u64 + 1);
    while pipe.read_buf(bytes).await? > 0 {}
    if bytes.len() > most {
        overflow.notify_one();
    }
    Ok(())
}

/// Keeps the last of it.
async fn tail(mut pipe: impl AsyncRead + Unpin, bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.reserve(2 * STDERR_BYTES_MAX);
    while pipe.read_buf(bytes).await? > 0 {
        if bytes.len() > STDERR_BYTES_MAX {
            bytes.drain(..bytes.len() - STDERR_BYTES_MAX);
        }
    }
    Ok(())
}

fn judge(status: ExitStatus, printed: &Printed, ended_for: Option<EndedFor>) -> Result<Json, Failure> {
    match ended_for {
        Some(EndedFor::Stop(why)) => return Err(Failure::passing(why.to_string())),
        Some(EndedFor::Overflow) => {
            return Err(Failure::lasting(format!("the command printed more than {PAYLOAD_BYTES_MAX} bytes")));
        }
        None => {}
    }
    if status.success() {
        return Ok(result(&printed.output));
    }
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    };
    let errors = String::from_utf8_lossy(&printed.errors);
    let message = match errors.trim() {
        "" => how,
        errors => format!("{how}: {errors}"),
    };
    Err(Failure { message, retryable: status.code() != Some(EXIT_LASTING) })
}

/// What a command printed, as a result.
fn result(output: &[u8]) -> Json {
    let Ok(text) = std::str::from_utf8(output) else {
        let coded = serde_json::json!({ "base64": STANDARD.encode(output) });
        return Json::of(&coded).expect("a text has a JSON form");
    };
    if text.is_empty() {
        return Json::null();
    }
    let line = text.strip_suffix('\n').unwrap_or(text);
    Json::parse(text).unwrap_or_else(|_| Json::of(line).expect("a text has a JSON form"))
}

#[cfg(test)]
mod tests;
