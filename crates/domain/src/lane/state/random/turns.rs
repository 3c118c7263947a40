//! In which order the submissions of each caller are taken in.

use std::collections::HashMap;

use crate::JobId;
use crate::lane::messages::{PendingSubmission, SlotSearch, Submitter};
use crate::lane::testing::Numbered;
use crate::session::Ordering;

pub(super) const SUBMITTERS: [Option<Submitter>; 3] = [None, Some(Submitter(1)), Some(Submitter(2))];

/// Of the submissions without a key that are not cancelled before they are taken in: they wait for no other write.
pub(super) struct Turns {
    /// Of a session, or `None`.
    ordering: Option<Ordering>,
    /// Who has submitted a job that was not taken in yet. In a session all are one.
    submitters: HashMap<JobId, Option<Submitter>>,
    /// The last job of each that was taken in.
    last: HashMap<Option<Submitter>, JobId>,
}

impl Turns {
    pub(super) fn new(ordering: Option<Ordering>) -> Self {
        Self { ordering, submitters: HashMap::new(), last: HashMap::new() }
    }

    pub(super) fn submitted(&mut self, pending: &mut PendingSubmission<Numbered>, by: Option<Submitter>) {
        pending.submitter = by;
        // The places of a strict session are checked elsewhere.
        if pending.submission.key.is_none() && self.ordering != Some(Ordering::Strict) {
            self.submitters.insert(pending.id, by.filter(|_| self.ordering.is_none()));
        }
    }

    /// While the end of a job is written, which the ledger does not have, its submission waits and others come before it.
    pub(super) fn cancelled(&mut self, job: JobId) {
        self.submitters.remove(&job);
    }

    /// A round looks for slots for the jobs that it takes in, and for others.
    pub(super) fn taken(&mut self, search: &SlotSearch) {
        for request in &search.requests {
            if let Some(by) = self.submitters.remove(&request.job) {
                let before = self.last.insert(by, request.job);
                assert!(before.is_none_or(|before| before < request.job), "a caller's jobs change places");
            }
        }
    }

    /// What a round has taken in may be taken in again.
    pub(super) fn begin_anew(&mut self) {
        self.last.clear();
    }
}
