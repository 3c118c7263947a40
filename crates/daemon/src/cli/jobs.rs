//! The commands of worker nodes and of job submission.

use clap::Args;
use wire::Json;
use wire::jobs::{JobRequest, Route};
use wire::limits::{NODE_CAPACITY_MAX, PRIORITY_MAX, PRIORITY_MIN};

use super::{DEFAULT_URL, Remote, Tls};

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
                    FENCEPOST_TRACEPARENT and TRACEPARENT (if the job has a trace)
When a job is cancelled or times out, its process group gets SIGTERM, and SIGKILL two seconds later.
When the command ends, the node kills what it left running.")]
pub struct Node {
    /// Base URL of a daemon; repeat it for more daemons, which the node tries in turn
    #[arg(long, value_name = "URL", env = "FENCEPOST_URL", value_delimiter = ',', default_value = DEFAULT_URL)]
    pub url: Vec<String>,
    /// Bearer token (prefer the environment: process lists show options)
    #[arg(long, value_name = "TOKEN", env = "FENCEPOST_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
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
    /// A pool to join [default: every pool whose requirements the node meets]
    #[arg(long = "pool", value_name = "POOL")]
    pub pools: Vec<String>,
    /// A variable of the node's environment that the command gets; repeat it for more [always: PATH, HOME, USER, LOGNAME,
    /// SHELL, LANG, LC_ALL, TZ, TMPDIR]
    #[arg(long, value_name = "NAME")]
    pub env: Vec<String>,
    /// The command for each job, with its arguments; must be the last option
    #[arg(long, value_name = "CMD", num_args = 1.., required = true, allow_hyphen_values = true)]
    pub exec: Vec<String>,
}

/// `fencepost submit`
#[derive(Args, Debug)]
pub struct Submit {
    /// The payload: JSON, or a text that becomes a JSON string; `-` reads standard input [default: null]
    #[arg(value_name = "PAYLOAD")]
    pub payload: Option<String>,
    #[command(flatten)]
    pub job: JobOptions,
    /// Idempotency key: the same request under the same key is the same job
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Wait for the job and print its result; exit with 1 if it does not succeed
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub remote: Remote,
}

/// The fields of the job beside its payload.
#[derive(Args, Debug)]
pub struct JobOptions {
    /// The session of the job
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
    /// The tenant of the job
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Only nodes of this pool
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Only nodes with this label; repeat it for more labels
    #[arg(long = "require", value_name = "LABEL")]
    requires: Vec<String>,
    /// Source and target language, such as zh:en
    #[arg(long, value_name = "SRC:TGT", value_parser = route)]
    route: Option<Route>,
    /// Priority among waiting jobs; higher goes first
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(i64).range(PRIORITY_MIN..=PRIORITY_MAX))]
    priority: Option<i64>,
    /// What the job does, such as send_email; lists filter by it, metrics count by it
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// A string of the job's metadata, as KEY=VALUE; repeat it for more. The last value of a key counts
    #[arg(long, value_name = "KEY=VALUE", value_parser = entry)]
    metadata: Vec<(String, String)>,
}

impl JobOptions {
    /// The job to submit.
    pub fn request(self, payload: Json) -> JobRequest {
        let Self { session, tenant, pool, requires, route, priority, kind, metadata } = self;
        let metadata = metadata.into_iter().collect();
        JobRequest {
            kind,
            metadata,
            session,
            tenant,
            pool,
            requires,
            route,
            priority,
            ..JobRequest::new(payload)
        }
    }
}

fn entry(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a key and a value, such as order=7")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn route(text: &str) -> Result<Route, String> {
    match text.split_once(':') {
        Some((source, target)) if !source.is_empty() && !target.is_empty() => {
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
    }

    #[test]
    fn every_option_is_a_field_of_the_job() {
        let line = "x --session s --tenant t --pool p --require gpu --require cpu --route zh:en --priority -3 \
                    --kind k --metadata k=a=b --metadata l= --metadata l=c";
        let job = Line::parse_from(line.split_ascii_whitespace()).job.request(Json::null());
        let fields = r#"{"payload":null,"kind":"k","metadata":{"k":"a=b","l":"c"},"session":"s","tenant":"t","pool":"p","route":{"source":"zh","target":"en"},"requires":["gpu","cpu"],"priority":-3}"#;
        assert_eq!(Json::of(&job).unwrap().as_str(), fields);
        let none = Line::parse_from(["x"]).job.request(Json::null());
        assert_eq!(none, JobRequest::new(Json::null()));
        assert!(Line::try_parse_from(["x", "--metadata", "order"]).is_err());
    }
}
