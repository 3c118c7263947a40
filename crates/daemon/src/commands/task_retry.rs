//! The retry of a task as `plan retry` and `tenant retry` ask for it, under a key.

use client::Error;
use client::wire::Object;
use client::wire::plans::{ExpectedTask, Task, TaskRetryRequest};

use super::{json_file, once};
use crate::cli::plans::RetryOptions;
use crate::exit::Failure;

/// A retry.
pub struct TaskRetry {
    /// The request, with the stages of its file.
    pub request: TaskRetryRequest,
    /// Its idempotency key.
    pub key: String,
    /// The options with which the same command is the same retry.
    with: String,
    /// Whether it changes nothing.
    pub is_dry_run: bool,
    is_key_given: bool,
}

impl TaskRetry {
    /// The retry that the options ask for.
    ///
    /// # Errors
    /// Wrong usage for a file that has no list of stages.
    pub fn of(mut options: RetryOptions) -> Result<Self, Failure> {
        let stages: Option<Vec<Object<_>>> = options.stages.as_deref().map(json_file::read).transpose()?;
        let stages = stages.map(|stages| stages.into_iter().map(|Object(stage)| stage).collect());
        let given = options.key.take();
        let (is_key_given, is_dry_run) = (given.is_some(), options.dry_run);
        let key = once::key(given, "retry");
        let with = once::option(&key);
        Ok(Self { request: options.request(stages), key, with, is_dry_run, is_key_given })
    }

    /// Whether it is to be refused if the task has changed after this command began: without a key of the caller, which says
    /// more, and without the run that the caller has seen.
    pub const fn expects_present(&self) -> bool {
        !self.is_key_given && self.request.expect.is_none()
    }

    /// The daemon is to refuse it if the task has changed since `seen`.
    pub fn expect(&mut self, seen: &Task) {
        let (run, checkpoint_version) = (seen.run, seen.checkpoint_version);
        self.with += &format!(" --expect-run {run} --expect-checkpoint {checkpoint_version}");
        self.request.expect = Some(ExpectedTask { run, checkpoint_version });
    }

    /// The same error. Where the task may be retried, a note on stderr says so, and how to have it once.
    pub fn explained(&self, error: Error) -> Error {
        if self.is_dry_run { error } else { once::explained(error, "The task may be retried", &self.with) }
    }
}
