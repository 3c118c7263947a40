//! Jobs whose next attempt begins only once those before it are over: the stages of plans, which must not run on two nodes at
//! once.

use std::collections::HashMap;
use std::time::Instant;

use crate::JobId;
use crate::job::Attempt;

/// What is known of the earlier attempts of such jobs.
#[derive(Debug, Default)]
pub(super) struct OlderAttempts(HashMap<JobId, Older>);

#[derive(Debug)]
struct Older {
    newest: Attempt,
    /// Since when its end is waited for.
    since: Instant,
    are_over: bool,
}

impl OlderAttempts {
    /// Since when the end of the attempts up to this one is waited for; `None` once they are over.
    pub(super) fn awaited_since(&mut self, job: JobId, newest: Attempt, now: Instant) -> Option<Instant> {
        let begun = || Older { newest, since: now, are_over: false };
        let older = self.0.entry(job).or_insert_with(begun);
        if older.newest != newest {
            *older = begun();
        }
        (!older.are_over).then_some(older.since)
    }

    /// The attempts up to this one are over. Answers whether that was waited for.
    pub(super) fn are_over(&mut self, job: JobId, newest: Attempt) -> bool {
        let older = self.0.get_mut(&job).filter(|older| older.newest == newest);
        older.is_some_and(|older| !std::mem::replace(&mut older.are_over, true))
    }

    /// The job has begun again, or has ended.
    pub(super) fn forget(&mut self, job: JobId) {
        self.0.remove(&job);
    }
}
