//! The commands about bulk operations.

use clap::{Args, Subcommand};
use wire::bulk::{BulkAction, BulkFilter, BulkRequest};
use wire::jobs::JobState;
use wire::limits::BULK_RATE_MAX;

use super::Filter;
use crate::cli::{Paged, Remote, Shown, checked, words};

// In the type of a command-line option.
const RATE_MAX: i64 = BULK_RATE_MAX as i64;

/// `fencepost job bulk …`
#[derive(Debug, Subcommand)]
pub enum Bulk {
    /// Retry finished jobs that no other job has retried; name --dead or an --outcome
    Retry(Begun),
    /// Cancel unfinished jobs
    Cancel(Begun),
    /// Delete finished jobs, with their payloads and results
    Delete(Begun),
    /// Dismiss dead jobs: they are dead no more
    Dismiss(Begun),
    /// List bulk operations, newest first
    List {
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show a bulk operation; with -w until it is over
    Show {
        /// The operation's id
        id: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Stop a bulk operation; what was done stays done
    Stop {
        /// The operation's id
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
}

/// A bulk operation to begin.
#[derive(Args, Debug)]
pub struct Begun {
    /// Only jobs in this state
    #[arg(long, ignore_case = true, value_parser = words(JobState::ALL, JobState::as_str))]
    state: Option<JobState>,
    #[command(flatten)]
    filter: Filter,
    /// Only jobs that finished (for cancel: were submitted) before this time, such as 2026-11-24T08:00:00Z [default: now]
    // The last one counts, so that a command can be repeated with another one behind it.
    #[arg(long, value_name = "TIME", overrides_with = "before", value_parser = checked::time)]
    before: Option<String>,
    /// Jobs per second at most [default: 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=RATE_MAX))]
    rate: Option<u32>,
    /// Count the jobs, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the operation's id and do not wait for its end
    #[arg(long, conflicts_with = "dry_run")]
    pub no_wait: bool,
    /// Do not ask before jobs are cancelled or deleted, nor, on a terminal, before those that have succeeded or were
    /// cancelled are retried
    #[arg(short, long)]
    pub yes: bool,
    /// Idempotency key: the same request under the same key is the same operation
    #[arg(long, value_name = "KEY", value_parser = checked::key)]
    pub key: Option<String>,
    #[command(flatten)]
    pub remote: Remote,
}

impl Begun {
    /// The request.
    pub fn request(&self, action: BulkAction) -> BulkRequest {
        let Filter { dead, outcome, session, tenant, pool, kind } = self.filter.clone();
        BulkRequest {
            action,
            filter: BulkFilter {
                state: self.state,
                outcome,
                session,
                tenant,
                pool,
                kind,
                dead: dead.then_some(true),
            },
            before: self.before.clone(),
            rate: self.rate,
            dry_run: self.dry_run.then_some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use wire::Json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        begun: Begun,
    }

    #[test]
    fn every_option_is_a_field_of_the_request() {
        let line = "x --state finished --dead --outcome failed --session s --tenant t --pool p --kind k \
                    --before 2026-11-24T08:00:00Z --rate 7";
        let begun = Line::parse_from(line.split(' ')).begun;
        let fields = r#"{"action":"delete","filter":{"state":"FINISHED","outcome":"failed","session":"s","tenant":"t","pool":"p","kind":"k","dead":true},"before":"2026-11-24T08:00:00Z","rate":7}"#;
        assert_eq!(Json::of(&begun.request(BulkAction::Delete)).unwrap().as_str(), fields);
        let times = ["2026-11-24T08:00:00Z", "2026-11-24T09:00:00Z"];
        let repeated = Line::parse_from(["x", "--before", times[0], "--before", times[1]]).begun;
        assert_eq!(repeated.before.as_deref(), Some(times[1]));
        let dry = Line::parse_from(["x", "--dry-run"]).begun.request(BulkAction::Dismiss);
        let fields = r#"{"action":"dismiss","filter":{},"dry_run":true}"#;
        assert_eq!(Json::of(&dry).unwrap().as_str(), fields);
    }
}
