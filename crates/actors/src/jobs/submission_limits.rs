//! How many submissions may be on their way into the ledger at once, and how many bytes of payloads.

use std::sync::Arc;

use domain::lane::Submission;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits::{SUBMISSION_BYTES_MAX, SUBMISSIONS_MAX};
use super::own_lanes::WaitingSubmission;

/// The limits of one instance.
pub(super) struct SubmissionLimits {
    jobs: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// The share of one submission in the limits; given back when it is dropped.
pub(super) struct SubmissionShare {
    _job: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
    _waiting: Option<WaitingSubmission>,
}

impl Default for SubmissionLimits {
    fn default() -> Self {
        Self {
            jobs: Arc::new(Semaphore::new(SUBMISSIONS_MAX)),
            bytes: Arc::new(Semaphore::new(SUBMISSION_BYTES_MAX)),
        }
    }
}

impl SubmissionLimits {
    /// The share of a submission; `None` where the limits are reached.
    pub(super) fn take(
        &self,
        submission: &Submission,
        waiting: Option<WaitingSubmission>,
    ) -> Option<SubmissionShare> {
        let bytes = u32::try_from(submission.spec.text_bytes()).ok()?;
        let job = Arc::clone(&self.jobs).try_acquire_owned().ok()?;
        let bytes = Arc::clone(&self.bytes).try_acquire_many_owned(bytes).ok()?;
        Some(SubmissionShare { _job: job, _bytes: bytes, _waiting: waiting })
    }
}
