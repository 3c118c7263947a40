//! The command line of workers and of submitting jobs.

use clap::Args;
use wire::jobs::Route;
use wire::limits::{NODE_CAPACITY_MAX, PRIORITY_MAX, PRIORITY_MIN};

use super::Remote;

/// `fencepost node`
#[derive(Args, Debug)]
#[command(after_help = "\
The command runs once for each job, in a process group of its own:
  standard input    the payload, as JSON
  standard output   the result: JSON if it is JSON, else a JSON string of the text without its last newline,
                    null if nothing was printed, {\"base64\": \"…\"} if it is not UTF-8; 1 MiB at most
  standard error    its last 4 KiB are the reason when it fails
  exit status       0: done; 65: failed, and trying again would not help; any other, or a signal: failed
  environment       FENCEPOST_JOB, FENCEPOST_ATTEMPT, FENCEPOST_SESSION (if there is one)
When a job is called off or runs out of time its whole process group gets SIGTERM, and SIGKILL two seconds later.
What the command leaves running is killed when it ends.")]
pub struct Node {
    /// Base URL of a daemon; give it again for further ones, which are tried in turn
    #[arg(long, value_name = "URL", env = "FENCEPOST_URL", value_delimiter = ',', required = true)]
    pub url: Vec<String>,
    /// Bearer token (better given in the environment, where no process list shows it)
    #[arg(long, value_name = "TOKEN", env = "FENCEPOST_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Its name; of two nodes with one name the later one stays [default: the machine's name and a random part]
    #[arg(long, value_name = "ID")]
    pub node_id: Option<String>,
    /// Jobs at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=NODE_CAPACITY_MAX as i64))]
    pub capacity: u32,
    /// Something that a job may require
    #[arg(long = "label", value_name = "LABEL")]
    pub labels: Vec<String>,
    /// A service that runs here; jobs require it by its name
    #[arg(long = "service", value_name = "NAME")]
    pub services: Vec<String>,
    /// A language that it hears (label asr:LANG)
    #[arg(long, value_name = "LANG")]
    pub asr: Vec<String>,
    /// A language that it speaks (label tts:LANG)
    #[arg(long, value_name = "LANG")]
    pub tts: Vec<String>,
    /// A pool to belong to; without any, all whose requirements it meets
    #[arg(long = "pool", value_name = "POOL")]
    pub pools: Vec<String>,
    /// The command to run for each job; takes all that follows
    #[arg(long, value_name = "CMD", num_args = 1.., required = true, allow_hyphen_values = true)]
    pub exec: Vec<String>,
}

/// `fencepost submit`
#[derive(Args, Debug)]
pub struct Submit {
    /// The payload: JSON, or a text that becomes a JSON string; `-` reads it from standard input [default: null]
    #[arg(value_name = "PAYLOAD")]
    pub payload: Option<String>,
    /// The session it belongs to
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// On whose behalf
    #[arg(long, value_name = "TENANT")]
    pub tenant: Option<String>,
    /// Only nodes of this pool
    #[arg(long, value_name = "POOL")]
    pub pool: Option<String>,
    /// Only nodes with this label; give it again for further ones
    #[arg(long = "require", value_name = "LABEL")]
    pub requires: Vec<String>,
    /// From which language to which, such as zh:en
    #[arg(long, value_name = "SRC:TGT", value_parser = route)]
    pub route: Option<Route>,
    /// Who goes first among the jobs that wait; higher is sooner
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(i64).range(PRIORITY_MIN..=PRIORITY_MAX))]
    pub priority: Option<i64>,
    /// Idempotency key: the same request under it is the same job
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Wait for the end and print the result; exits 1 if the job does not succeed
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub remote: Remote,
}

fn route(text: &str) -> Result<Route, String> {
    match text.split_once(':') {
        Some((source, target)) if !source.is_empty() && !target.is_empty() => {
            Ok(Route { source: source.to_owned(), target: target.to_owned() })
        }
        _ => Err("two languages, such as zh:en".to_owned()),
    }
}
