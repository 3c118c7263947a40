//! The commands about jobs, and the one that runs a worker node.

pub mod bulk;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Subcommand};
use wire::Json;
use wire::jobs::{Backoff, JobRequest, JobState, Outcome, Route};
use wire::limits::{
    BACKOFF_FACTOR_MAX, BACKOFF_MS_MAX, DELAY_MS_MAX, JOB_TIMEOUT_MS_MAX, JOB_TIMEOUT_MS_MIN,
    MAX_ATTEMPTS_MAX, NODE_CAPACITY_MAX, PRIORITY_MAX, PRIORITY_MIN,
};

use bulk::Bulk;

use super::length::{length, milliseconds};
use super::{Bearer, DEFAULT_URL, Paged, Remote, Shown, Tls, checked, named, words};

// In the type of a command-line option.
const ATTEMPTS_MAX: i64 = MAX_ATTEMPTS_MAX as i64;

/// `fencepost node`
#[derive(Args, Debug)]
#[command(after_help = "\
The node runs the command once for each job, in a process group of its own:
  standard input    the payload, as JSON
  standard output   the result: JSON if it is JSON, else a JSON string of the text without its last newline,
                    null if the command printed nothing, {\"base64\": \"…\"} if it is not UTF-8; 1 MiB at most
  standard error    its last 4 KiB are the reason when it fails
  exit status       0: succeeded; 65: failed, do not retry; any other, or a signal: failed, retry
  environment       FENCEPOST_JOB, FENCEPOST_ATTEMPT, FENCEPOST_SESSION (if there is one),
                    FENCEPOST_KIND (if the job has one), FENCEPOST_METADATA (a JSON object, if there is any),
                    FENCEPOST_TRACEPARENT and TRACEPARENT (if the job has a trace),
                    FENCEPOST_RETRY_OF (the job that this one repeats by hand, if it does)
When a job is cancelled or times out, the command's process group, and what its processes started outside of it, get
SIGTERM, and SIGKILL after --kill-after. When the command ends by itself, the node kills what it left running in its group.")]
pub struct Node {
    /// Base URL of every daemon (repeat --url, or put commas between); the node tries them in turn
    #[arg(long, value_name = "URL", num_args = 1.., env = "FENCEPOST_URL", value_delimiter = ',', default_value = DEFAULT_URL)]
    pub url: Vec<String>,
    #[command(flatten)]
    pub bearer: Bearer,
    #[command(flatten)]
    pub tls: Tls,
    /// The node's id; if two nodes use the same id, the later one stays [default: the machine's name and a random part]
    #[arg(long, value_name = "ID")]
    pub node_id: Option<String>,
    /// Number of jobs at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=NODE_CAPACITY_MAX as i64))]
    pub capacity: u32,
    /// A label that jobs may require; repeat it for more
    #[arg(long = "label", value_name = "LABEL")]
    pub labels: Vec<String>,
    /// A service of this node; jobs require it by its name
    #[arg(long = "service", value_name = "NAME")]
    pub services: Vec<String>,
    /// A language that the node recognises (label asr:LANG)
    #[arg(long, value_name = "LANG")]
    pub asr: Vec<String>,
    /// A language that the node speaks (label tts:LANG)
    #[arg(long, value_name = "LANG")]
    pub tts: Vec<String>,
    /// A configured pool to join; without configured pools every node is in `default`
    /// [default: every pool whose requirements the node meets]
    #[arg(long = "pool", value_name = "POOL")]
    pub pools: Vec<String>,
    /// A variable of the node's environment that the command gets, and that must be set; repeat it for more [always, where they
    /// are set: PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_ALL, TZ, TMPDIR]
    #[arg(long, value_name = "NAME")]
    pub env: Vec<String>,
    /// How long running jobs may take to end after SIGTERM or SIGINT, such as 2h. Those that still run then are stopped: each
    /// has failed, which counts, and runs again. What stops the node must give it 20 s more
    #[arg(long, value_name = "LENGTH", default_value = "30s", value_parser = length)]
    pub drain_at_most: Duration,
    /// How long a command that is stopped has from SIGTERM until SIGKILL, such as 20s. With more than the default, what stops the
    /// node must give it the difference, too
    #[arg(long, value_name = "LENGTH", default_value = "2s", value_parser = length)]
    pub kill_after: Duration,
    /// When so many attempts in a row have failed, take no more, as after SIGTERM, and exit with status 75. Attempts that the
    /// command ends with status 65 do not count [default: never]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub drain_after_failures: Option<u32>,
    /// Log only what goes wrong: no line for the beginning and the end of each attempt
    #[arg(short, long)]
    pub quiet: bool,
    /// The command for each job, with its arguments; must be the last option
    #[arg(long, value_name = "CMD", num_args = 1.., required = true, allow_hyphen_values = true)]
    pub exec: Vec<String>,
}

/// `fencepost submit`
#[derive(Args, Debug)]
#[command(after_help = "\
With --file, each line of the file is a job as POST /v1/jobs takes it: {\"payload\": …, \"tenant\": …}. The options give what a
line leaves out. The command prints the ids in the order of the lines. If it is interrupted, the same --key continues it:
jobs that were accepted are not submitted again, for the 24 h (nonce.key_retention_ms) in which the daemon knows their keys.")]
pub struct Submit {
    /// The payload: JSON, or a text that becomes a JSON string; `-` reads standard input [default: null]
    #[arg(value_name = "PAYLOAD", conflicts_with = "file")]
    pub payload: Option<String>,
    /// Submit each line of this file as a job, in batches; `-` reads standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "wait")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub job: JobOptions,
    /// Idempotency key: for 24 h the same request under the same key is the same job, also when that has ended
    #[arg(long, value_name = "KEY", value_parser = checked::key)]
    pub key: Option<String>,
    /// Wait for the job and print its result; exit with 1 if it does not succeed
    #[arg(long)]
    pub wait: bool,
    /// With --wait: stop waiting after this time, such as 90s or 5m, and exit with 1; the job continues, and --json prints it as
    /// it is [default: no limit]
    #[arg(long, value_name = "LENGTH", requires = "wait", value_parser = length)]
    pub at_most: Option<Duration>,
    #[command(flatten)]
    pub remote: Remote,
}

/// The fields of the job beside its payload.
#[derive(Args, Debug)]
pub struct JobOptions {
    /// The session of the job
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
    /// Your name for the job in its session; the same name is the same job
    #[arg(long = "ref", value_name = "NAME", requires = "session", conflicts_with = "file")]
    client_ref: Option<String>,
    /// The tenant of the job
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    #[command(flatten)]
    needs: Needs,
    /// Priority among waiting jobs; higher goes first [default: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(i64).range(PRIORITY_MIN..=PRIORITY_MAX))]
    priority: Option<i64>,
    /// What the job does, such as send_email; lists filter by it, metrics count by it
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// A string of the job's metadata, as KEY=VALUE; repeat it for more. The last value of a key counts
    #[arg(long, value_name = "KEY=VALUE", value_parser = entry)]
    metadata: Vec<(String, String)>,
    /// Do not run the job before this delay is over, in milliseconds or such as 90s
    #[arg(long, value_name = "MS", conflicts_with = "run_at", value_parser = milliseconds(0..=DELAY_MS_MAX))]
    delay_ms: Option<u64>,
    /// Do not run the job before this time, such as 2026-11-24T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = checked::time)]
    run_at: Option<String>,
    /// How long one attempt may run, in milliseconds or such as 90s [default: 600000]
    #[arg(long, value_name = "MS", value_parser = milliseconds(JOB_TIMEOUT_MS_MIN..=JOB_TIMEOUT_MS_MAX))]
    timeout_ms: Option<u64>,
    /// How many attempts may fail [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=ATTEMPTS_MAX))]
    max_attempts: Option<u32>,
    /// The delay after the first failed attempt, in milliseconds or such as 5s
    #[arg(long, value_name = "MS", value_parser = milliseconds(0..=BACKOFF_MS_MAX))]
    backoff_initial_ms: Option<u64>,
    /// The factor by which each delay is longer than the one before
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    backoff_factor: Option<f64>,
    /// The longest delay between two attempts, in milliseconds or such as 5m
    #[arg(long, value_name = "MS", value_parser = milliseconds(0..=BACKOFF_MS_MAX))]
    backoff_max_ms: Option<u64>,
}

/// What a job requires of its node.
#[derive(Args, Clone, Debug)]
pub struct Needs {
    /// Only nodes of this pool
    #[arg(long, value_name = "POOL")]
    pub pool: Option<String>,
    /// Only nodes with this label; repeat it for more labels
    #[arg(long = "require", value_name = "LABEL", value_parser = checked::label)]
    pub requires: Vec<String>,
    /// Source and target language, such as zh:en
    #[arg(long, value_name = "SRC:TGT", value_parser = route)]
    pub route: Option<Route>,
}

impl JobOptions {
    /// The job to submit.
    pub fn request(self, payload: Json) -> JobRequest {
        let mut job = JobRequest::new(payload);
        self.complete(&mut job);
        job
    }

    /// Gives a job what it does not say itself.
    pub fn complete(&self, job: &mut JobRequest) {
        let Self { needs: Needs { pool, requires, route }, .. } = self;
        fn fill<T: Clone>(place: &mut Option<T>, given: &Option<T>) {
            if place.is_none() {
                place.clone_from(given);
            }
        }
        fill(&mut job.session, &self.session);
        fill(&mut job.client_ref, &self.client_ref);
        fill(&mut job.tenant, &self.tenant);
        fill(&mut job.pool, pool);
        fill(&mut job.route, route);
        if job.requires.is_empty() {
            job.requires.clone_from(requires);
        }
        fill(&mut job.priority, &self.priority);
        fill(&mut job.kind, &self.kind);
        // A job that says when it runs says it whole.
        if job.delay_ms.is_none() && job.run_at.is_none() {
            (job.delay_ms, job.run_at) = (self.delay_ms, self.run_at.clone());
        }
        fill(&mut job.timeout_ms, &self.timeout_ms);
        fill(&mut job.max_attempts, &self.max_attempts);
        let (initial_ms, factor, max_ms) =
            (self.backoff_initial_ms, self.backoff_factor, self.backoff_max_ms);
        if initial_ms.is_some() || factor.is_some() || max_ms.is_some() {
            fill(&mut job.backoff, &Some(Backoff { initial_ms, factor, max_ms }));
        }
        if job.metadata.is_empty() {
            job.metadata = self.metadata.iter().cloned().collect();
        }
    }
}

/// `fencepost job …`
#[derive(Debug, Subcommand)]
pub enum Job {
    /// List jobs, newest first
    List {
        /// Only jobs in this state; how finished ones ended is --outcome
        #[arg(long, ignore_case = true, value_parser = state())]
        state: Option<JobState>,
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show a job: its state, why it waits, its attempts, its result; with -w until it is FINISHED
    Show {
        /// The job's id, as `submit` prints it
        job: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Wait for a job and print its result; exit with 1 if it does not succeed
    Wait {
        /// The job's id, as `submit` prints it
        job: String,
        /// Stop waiting after this time, such as 90s or 5m, and exit with 1; the job continues, and --json prints it as it is
        /// [default: no limit]
        #[arg(long, value_name = "LENGTH", value_parser = length)]
        at_most: Option<Duration>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Cancel jobs; a job that has ended stays as it is
    Cancel {
        /// The jobs' ids
        #[arg(required = true, value_name = "JOB")]
        jobs: Vec<String>,
        /// Show what would become of the jobs, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Retry finished jobs: those named, or at most 1,000 that match a filter with --dead or --outcome and were not retried
    #[command(group = ArgGroup::new("which").required(true).multiple(true)
        .args(["jobs", "dead", "outcome"]))]
    Retry {
        /// The jobs' ids
        #[arg(value_name = "JOB", conflicts_with_all = ["dead", "outcome", "session", "tenant", "pool", "kind"])]
        jobs: Vec<String>,
        #[command(flatten)]
        filter: Filter,
        /// Show what would become of the named jobs, or the jobs that the filter selects, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Idempotency key: the same request under the same key retries the jobs once
        #[arg(long, value_name = "KEY", value_parser = checked::key)]
        key: Option<String>,
        /// Do not ask, on a terminal, before jobs that have succeeded or were cancelled are retried by a filter
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Dismiss dead jobs, which failed or timed out and need no retry: they are dead no more
    Dismiss {
        /// The jobs' ids
        #[arg(required = true, value_name = "JOB")]
        jobs: Vec<String>,
        /// Show what would become of the jobs, and change nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Delete finished jobs, with their payloads and results
    Delete {
        /// The jobs' ids
        #[arg(required = true, value_name = "JOB")]
        jobs: Vec<String>,
        /// Show what would become of the jobs, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Do not ask before the jobs are deleted
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Retry, cancel, delete or dismiss all jobs that match a filter; the daemon does it in the background
    #[command(subcommand)]
    Bulk(Bulk),
    /// Follow a job until it is FINISHED: each change of its state, and its progress
    Events {
        /// The job's id, as `submit` prints it
        job: String,
        #[command(flatten)]
        remote: Remote,
    },
}

/// Which jobs.
#[derive(Args, Clone, Debug)]
pub struct Filter {
    /// Only dead jobs: they failed or timed out, and nobody has retried or dismissed them
    #[arg(long)]
    pub dead: bool,
    /// Only jobs with this outcome
    #[arg(long, ignore_case = true, value_parser = words(Outcome::ALL, Outcome::as_str))]
    pub outcome: Option<Outcome>,
    /// Only jobs of this session
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// Only jobs of this tenant
    #[arg(long, value_name = "TENANT")]
    pub tenant: Option<String>,
    /// Only jobs that asked for this pool
    #[arg(long, value_name = "POOL")]
    pub pool: Option<String>,
    /// Only jobs of this kind
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
}

/// A state. The error for the name of an outcome names the option for outcomes.
fn state() -> impl TypedValueParser<Value = JobState> {
    let states = JobState::ALL.iter().map(|state| PossibleValue::new(state.as_str()));
    let outcomes = Outcome::ALL.iter().map(|outcome| PossibleValue::new(outcome.as_str()).hide(true));
    PossibleValuesParser::new(states.chain(outcomes)).try_map(|text| {
        let state = named(JobState::ALL, JobState::as_str, &text);
        state.ok_or_else(|| format!("it is how a job ended; `--outcome {text}` lists those"))
    })
}

fn factor(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|factor| (1.0..=BACKOFF_FACTOR_MAX as f64).contains(factor))
        .ok_or_else(|| format!("a number from 1 to {BACKOFF_FACTOR_MAX}"))
}

fn entry(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a key and a value, such as order=7")?;
    Ok((key.to_owned(), value.to_owned()))
}

pub fn route(text: &str) -> Result<Route, String> {
    match text.split_once(':') {
        Some((source, target)) if !source.is_empty() && !target.is_empty() && !target.contains(':') => {
            Ok(Route { source: source.to_owned(), target: target.to_owned() })
        }
        _ => Err("two languages, such as zh:en".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        job: JobOptions,
        #[arg(long)]
        file: Option<String>,
    }

    #[derive(Parser)]
    struct NodeLine {
        #[command(flatten)]
        node: Node,
    }

    #[test]
    fn a_node_takes_several_urls_at_once_one_by_one_or_with_commas() {
        for urls in ["--url a b", "--url a --url b", "--url a,b"] {
            for line in [format!("x {urls} --exec cat -"), format!("x {urls} --capacity 2 --exec cat -")] {
                let node = NodeLine::parse_from(line.split(' ')).node;
                assert_eq!((node.url.join(" "), node.exec.join(" ")), ("a b".to_owned(), "cat -".to_owned()));
            }
        }
        for wrong in ["x --url --exec cat", "x --url a b"] {
            assert!(NodeLine::try_parse_from(wrong.split(' ')).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_node_drains_as_long_as_the_library_does_unless_it_is_given_another_time() {
        let drains = |line: &str| NodeLine::parse_from(line.split(' ')).node.drain_at_most;
        assert_eq!(drains("x --exec cat"), client::node::Times::default().drain_max);
        assert_eq!(drains("x --drain-at-most 2h --exec cat"), Duration::from_secs(7_200));
        let kills = |line: &str| NodeLine::parse_from(line.split(' ')).node.kill_after;
        let lengths = [kills("x --exec cat"), kills("x --kill-after 500ms --exec cat")];
        assert_eq!(lengths, [2_000, 500].map(Duration::from_millis));
    }

    #[test]
    fn every_option_is_a_field_of_the_job() {
        let line = "x --session s --tenant t --pool p --require gpu --require cpu --route zh:en --priority -3 \
                    --kind k --ref r --metadata k=a=b --metadata l= --metadata l=c --delay-ms 5 --timeout-ms 7 \
                    --max-attempts 9 --backoff-initial-ms 1 --backoff-factor 1.5 --backoff-max-ms 2";
        let job = Line::parse_from(line.split_ascii_whitespace()).job.request(Json::null());
        let fields = r#"{"payload":null,"kind":"k","metadata":{"k":"a=b","l":"c"},"session":"s","ref":"r","tenant":"t","pool":"p","route":{"source":"zh","target":"en"},"requires":["gpu","cpu"],"priority":-3,"delay_ms":5,"timeout_ms":7,"max_attempts":9,"backoff":{"initial_ms":1,"factor":1.5,"max_ms":2}}"#;
        assert_eq!(Json::of(&job).unwrap().as_str(), fields);
        let none = Line::parse_from(["x"]).job.request(Json::null());
        assert_eq!(none, JobRequest::new(Json::null()));
        for wrong in [
            "--metadata order",
            "--ref r",
            "--delay-ms 1 --run-at 2026-11-24T08:00:00Z",
            "--backoff-factor 0.5",
            "--timeout-ms 0",
        ] {
            let words = format!("x {wrong}");
            assert!(Line::try_parse_from(words.split(' ')).is_err(), "{wrong}");
        }
        let time = "2026-11-24T08:00:00Z";
        let at = Line::parse_from(["x", "--run-at", time, "--file", "f"]).job.request(Json::null());
        assert_eq!(at.run_at.as_deref(), Some(time));
    }

    #[test]
    fn options_give_what_a_job_leaves_out_and_nothing_else() {
        let options =
            Line::parse_from("x --tenant t --require gpu --delay-ms 5 --metadata k=v".split(' ')).job;
        let mut job: JobRequest =
            Json::parse(r#"{"payload":1,"tenant":"own","run_at":"t"}"#).unwrap().read().unwrap();
        options.complete(&mut job);
        let fields = r#"{"payload":1,"metadata":{"k":"v"},"tenant":"own","requires":["gpu"],"run_at":"t"}"#;
        assert_eq!(Json::of(&job).unwrap().as_str(), fields);
    }
}
