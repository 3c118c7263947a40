//! The commands about plans, their tasks, and tenants.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use wire::Json;
use wire::limits::{CHECKPOINT_VERSION_MAX, MAX_ATTEMPTS_MAX, TASK_RUNS_MAX, TOKEN_MAX};
use wire::plans::{
    CheckpointVersion, ExpectedTask, PlanStatus, RetryFrom, RetryPoint, StageOutcome, StageRequest,
    TaskRetryRequest,
};

use super::length::length;
use super::{Paged, Remote, Shown, checked, words};

// In the types of command-line options.
const ATTEMPTS_MAX: i64 = MAX_ATTEMPTS_MAX as i64;
const RUNS_MAX: i64 = TASK_RUNS_MAX as i64;
const VERSION_MAX: i64 = CHECKPOINT_VERSION_MAX as i64;

/// `fencepost plan …`
#[derive(Debug, Subcommand)]
pub enum Plan {
    /// Create a plan from a file and print its id
    Create {
        /// The plan as JSON, as POST /v1/plans takes it; `-` reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Start the plan in the same step, whatever the file says
        #[arg(long)]
        start: bool,
        /// Idempotency key: the same request under the same key is the same plan
        #[arg(long, alias = "idempotency-key", value_name = "KEY", value_parser = checked::key)]
        key: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Start a plan: lock all its tenants and run its first tasks
    Start(Change),
    /// Pause a plan: stages that run end, no other stage begins
    Pause(Change),
    /// Resume a plan that was paused, or whose owner has changed; its paused tasks go on, also those that wait for a person
    Resume {
        #[command(flatten)]
        change: Change,
        /// Leave paused tasks paused; `plan resume-task` resumes each
        #[arg(long)]
        keep_paused: bool,
    },
    /// Cancel a plan: stages that run are cancelled, no other stage begins
    Cancel {
        #[command(flatten)]
        change: Change,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// List plans, newest first
    List {
        /// Only plans with this status
        #[arg(long, ignore_case = true, value_parser = words(PlanStatus::ALL, PlanStatus::as_str))]
        status: Option<PlanStatus>,
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show a plan and its tasks; with -w until it is SUCCEEDED, ATTENTION or CANCELLED, and no task runs
    Show {
        /// The plan's id
        plan: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Wait for a plan; exit with 1 if it is CANCELLED, or if it is ATTENTION and no task runs
    Wait {
        /// The plan's id
        plan: String,
        /// Stop waiting after this time, such as 90s or 5m, and exit with 1; the plan continues, and --json prints it as it is
        /// [default: no limit]
        #[arg(long, value_name = "LENGTH", value_parser = length)]
        at_most: Option<Duration>,
        #[command(flatten)]
        remote: Remote,
    },
    /// List what happened to a plan and its tasks, oldest first; with -w from the beginning of the plan on
    Events {
        /// The plan's id
        plan: String,
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show a task with its stages and its checkpoint
    Task {
        /// The task's id
        task: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Print the stages of a task with their payloads, as JSON for --stages of a retry; with --json also its run and its
    /// checkpoint version
    Stages {
        /// The task's id
        task: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// List the checkpoints of a task in all its runs, newest first
    Checkpoints {
        /// The task's id
        task: String,
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        shown: Shown,
    },
    /// Pause a task: its stage that runs ends, no other stage begins
    PauseTask(TaskChange),
    /// Resume a task that was paused
    ResumeTask(TaskChange),
    /// Cancel a task: its stage that runs is cancelled; tasks that its failure has held back start
    CancelTask {
        #[command(flatten)]
        change: TaskChange,
        /// Only if this is still the task's newest run
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=RUNS_MAX))]
        expect_run: Option<u32>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Say whether an UNKNOWN stage was done (scope admin)
    Resolve {
        /// The task's id
        task: String,
        /// The stage: its name, or its number from 1
        stage: String,
        /// Whether the stage was done
        #[arg(value_parser = words(StageOutcome::ALL, StageOutcome::as_str))]
        outcome: StageOutcome,
        /// With `done`: the context for the next stage, a JSON object [default: the context that this stage got]
        #[arg(long, value_name = "JSON", value_parser = json_object)]
        context: Option<Json>,
        /// The stage's job that was looked at: refused if the stage has another one by now
        #[arg(long)]
        job: Option<String>,
        /// How this is known, for the history
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Run a task again that is FAILED, INTERRUPTED, PAUSED or CANCELLED, or one that a plan over its time did not start
    Retry {
        /// The task's id
        task: String,
        #[command(flatten)]
        options: RetryOptions,
        #[command(flatten)]
        remote: Remote,
    },
}

/// `fencepost tenant …`
#[derive(Debug, Subcommand)]
pub enum Tenant {
    /// Show a tenant: its newest task, its checkpoint and its lock
    Show {
        /// The tenant
        tenant: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// List the tasks of a tenant, newest first
    History {
        /// The tenant
        tenant: String,
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        shown: Shown,
    },
    /// Run the newest task of a tenant again
    Retry {
        /// The tenant
        tenant: String,
        #[command(flatten)]
        options: RetryOptions,
        #[command(flatten)]
        remote: Remote,
    },
    /// Break the lock of a tenant (scope admin)
    Unlock {
        /// The tenant
        tenant: String,
        /// The fencing token of the lock, as `tenant show` prints it; a lock with another one stays
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=TOKEN_MAX))]
        lock_token: u64,
        /// Why, for the history
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
}

/// A plan to be changed.
#[derive(Args, Debug)]
pub struct Change {
    /// The plan's id
    pub plan: String,
    /// Why, for the history
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    #[command(flatten)]
    pub remote: Remote,
}

/// A task to be changed.
#[derive(Args, Debug)]
pub struct TaskChange {
    /// The task's id
    pub task: String,
    /// Why, for the history
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    #[command(flatten)]
    pub remote: Remote,
}

/// How a task is to be run again.
#[derive(Args, Debug)]
pub struct RetryOptions {
    /// Where the new run continues: after the last completed stage, at the first stage, or after the stages that the
    /// checkpoint with this version covers
    #[arg(long, value_name = "checkpoint|start|VERSION", default_value = "checkpoint", value_parser = retry_from)]
    from: RetryFrom,
    /// Only if this is still the task's newest run, with --expect-checkpoint [default: the ones that it has
    /// now; with --key, any]
    #[arg(long, value_name = "N", requires = "expect_checkpoint", value_parser = clap::value_parser!(u32).range(1..=RUNS_MAX))]
    expect_run: Option<u32>,
    /// Only if this is still the version of the task's newest checkpoint, 0 for none; with --expect-run
    #[arg(long, value_name = "N", requires = "expect_run", value_parser = clap::value_parser!(u32).range(0..=VERSION_MAX))]
    expect_checkpoint: Option<u32>,
    /// A JSON merge patch for the context with which the new run continues
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    context_patch: Option<Json>,
    /// A corrected definition: a file with the list of all stages as JSON; `-` reads standard input. The stages that the
    /// new run skips must be the same as before; the others may be changed, left out or added
    #[arg(long, value_name = "FILE")]
    pub stages: Option<PathBuf>,
    /// Another configuration of the tenant
    #[arg(long, value_name = "JSON", value_parser = json)]
    config: Option<Json>,
    /// How many attempts of each stage may fail [default: what each stage names]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=ATTEMPTS_MAX))]
    max_attempts: Option<u32>,
    /// Why, for the history
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Idempotency key: the same request under the same key opens one run
    #[arg(long, value_name = "KEY", value_parser = checked::key)]
    pub key: Option<String>,
    /// Show what the retry would come to, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

impl RetryOptions {
    /// The request, with the stages that were read from [`Self::stages`].
    pub fn request(self, stages: Option<Vec<StageRequest>>) -> TaskRetryRequest {
        let Self {
            from,
            expect_run,
            expect_checkpoint,
            context_patch,
            config,
            max_attempts,
            reason,
            dry_run,
            ..
        } = self;
        let expect = expect_run
            .zip(expect_checkpoint)
            .map(|(run, checkpoint_version)| ExpectedTask { run, checkpoint_version });
        let dry_run = dry_run.then_some(true);
        TaskRetryRequest { from, expect, context_patch, stages, config, max_attempts, reason, dry_run }
    }
}

fn retry_from(text: &str) -> Result<RetryFrom, String> {
    if let Some(point) = RetryPoint::ALL.iter().copied().find(|point| point.as_str() == text) {
        return Ok(RetryFrom::Point(point));
    }
    text.parse()
        .ok()
        .filter(|version| (1..=CHECKPOINT_VERSION_MAX).contains(&u64::from(*version)))
        .map(|checkpoint_version| RetryFrom::Version(CheckpointVersion { checkpoint_version }))
        .ok_or_else(|| format!("checkpoint, start, or a version from 1 to {CHECKPOINT_VERSION_MAX}"))
}

fn json(text: &str) -> Result<Json, String> {
    Json::parse(text).map_err(|error| error.to_string())
}

fn json_object(text: &str) -> Result<Json, String> {
    let json = json(text)?;
    if json.as_str().starts_with('{') { Ok(json) } else { Err("a JSON object".to_owned()) }
}

#[cfg(test)]
mod tests;
