//! How many submissions may be on their way into the ledger at once, and how many bytes of payloads: all together, and of each
//! token.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use domain::lane::{Submission, Submitter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits::{
    SUBMISSION_BYTES_MAX, SUBMISSION_BYTES_OF_TOKEN_MAX, SUBMISSIONS_MAX, SUBMISSIONS_OF_TOKEN_MAX,
};
use super::own_lanes::WaitingSubmission;

/// The limits of one instance.
pub(super) struct SubmissionLimits(Room);

/// What one token's submissions may take of the limits of an instance, and have taken; and the number by which lanes tell its
/// submissions from others'.
#[derive(Debug)]
pub struct TokenSubmissions {
    room: Room,
    submitter: Submitter,
}

/// How many tokens have a number.
static SUBMITTERS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Room {
    jobs: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// What a submission has taken of a room.
struct Taken {
    _job: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

/// The share of one submission in the limits; given back when it is dropped.
pub(super) struct SubmissionShare {
    _in_all: Taken,
    _of_token: Option<Taken>,
    _waiting: Option<WaitingSubmission>,
}

impl Default for SubmissionLimits {
    fn default() -> Self {
        Self(Room::new(SUBMISSIONS_MAX, SUBMISSION_BYTES_MAX))
    }
}

impl Default for TokenSubmissions {
    fn default() -> Self {
        Self {
            room: Room::new(SUBMISSIONS_OF_TOKEN_MAX, SUBMISSION_BYTES_OF_TOKEN_MAX),
            submitter: Submitter(SUBMITTERS.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

impl TokenSubmissions {
    /// By which its submissions are known in the lanes.
    pub(super) const fn submitter(&self) -> Submitter {
        self.submitter
    }
}

impl Room {
    fn new(jobs: usize, bytes: usize) -> Self {
        Self { jobs: Arc::new(Semaphore::new(jobs)), bytes: Arc::new(Semaphore::new(bytes)) }
    }

    fn take(&self, bytes: u32) -> Option<Taken> {
        let job = Arc::clone(&self.jobs).try_acquire_owned().ok()?;
        let bytes = Arc::clone(&self.bytes).try_acquire_many_owned(bytes).ok()?;
        Some(Taken { _job: job, _bytes: bytes })
    }
}

impl SubmissionLimits {
    /// The share of a submission; `None` where the limits are reached, of all or of its token. Without a token only those of all
    /// hold.
    pub(super) fn take(
        &self,
        submission: &Submission,
        of_token: Option<&TokenSubmissions>,
        waiting: Option<WaitingSubmission>,
    ) -> Option<SubmissionShare> {
        let bytes = u32::try_from(submission.spec.text_bytes()).ok()?;
        let of_token = match of_token {
            Some(token) => Some(token.room.take(bytes)?),
            None => None,
        };
        Some(SubmissionShare { _in_all: self.0.take(bytes)?, _of_token: of_token, _waiting: waiting })
    }
}

#[cfg(test)]
mod tests {
    use domain::job::{Due, Spec};

    use super::*;

    fn submission(bytes: usize) -> Submission {
        let spec = Spec::new("1".repeat(bytes));
        Submission { spec, client_ref: None, due: Due::Now, key: None, retry: None }
    }

    #[test]
    fn submissions_of_one_token_leave_room_for_those_of_others() {
        let limits = SubmissionLimits::default();
        let [one, other] = [(); 2].map(|()| TokenSubmissions::default());
        let all = |submission: &Submission, of_token| -> Vec<_> {
            std::iter::from_fn(|| limits.take(submission, of_token, None)).collect()
        };
        let (small, large) = (submission(1), submission(1 << 20));
        for (submission, max) in
            [(&small, SUBMISSIONS_OF_TOKEN_MAX), (&large, SUBMISSION_BYTES_OF_TOKEN_MAX >> 20)]
        {
            let taken = all(submission, Some(&one));
            assert_eq!(taken.len(), max);
            assert!(limits.take(submission, Some(&other), None).is_some());
        }
        assert_ne!(one.submitter(), other.submitter(), "and they take turns");
        assert_eq!(all(&small, None).len(), SUBMISSIONS_MAX, "without tokens a caller may have everything");
    }
}
