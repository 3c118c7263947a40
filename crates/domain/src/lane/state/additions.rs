//! Jobs that the plan's owner adds to its lane, by commits of its own: what its messages tell the lane, and what the lane
//! finds in the ledger before they come.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use super::LaneState;
use super::after::Moment;
use crate::job::LiveJob;
use crate::lane::messages::{Callers, Command, Effect};
use crate::{JobId, Token};

/// What is to be kept in mind of jobs that were added.
#[derive(Default)]
pub(super) struct Additions {
    /// Jobs whose first attempts nobody has sent, and of which the ledger may say otherwise by now. They are read.
    unsent: HashMap<JobId, LiveJob>,
    /// Jobs that have ended here before the lane was told of them.
    ended: HashSet<JobId>,
}

impl Additions {
    /// Jobs that are to be read, after everything was read again too.
    pub(super) fn unsent(&self) -> impl Iterator<Item = JobId> {
        self.unsent.keys().copied()
    }
}

impl<C: Callers> LaneState<C> {
    /// Takes in jobs that the plan's owner has added under this token.
    pub(super) fn take_in_added(
        &mut self,
        token: Token,
        jobs: Vec<LiveJob>,
        now: Instant,
        effects: &mut Vec<Effect<C>>,
    ) {
        for job in jobs {
            let id = job.id;
            if self.busy.contains(&id) {
                self.deferred.push(Command::Added(token, vec![job]));
            } else if token == self.token && !self.is_known(id) && !self.additions.ended.remove(&id) {
                self.follow_added(job, now, effects);
            } else {
                // The ledger may say otherwise by now.
                if job.placed.is_some() {
                    self.additions.unsent.insert(id, job);
                }
                self.busy.insert(id);
                self.lookups.push_back(id);
            }
        }
    }

    fn follow_added(&mut self, job: LiveJob, now: Instant, effects: &mut Vec<Effect<C>>) {
        match job.placed.clone() {
            Some(placed) => {
                let moment = Moment { at: job.created_at, now };
                let current = job.newest;
                let order = self.dispatched(Arc::new(job), current, placed, moment, effects);
                effects.push(Effect::Dispatch(order));
            }
            None => self.learn(Arc::new(job), now, effects),
        }
    }

    /// A job that is not known here was cancelled.
    pub(super) fn ended_unknown(&mut self, job: JobId) {
        if self.lane.plan_id().is_some() {
            self.additions.ended.insert(job);
        }
    }

    /// Sends the first attempt of a job that was read, if it is still to be sent; says whether it was.
    pub(super) fn send_unsent(&mut self, job: &LiveJob, now: Instant, effects: &mut Vec<Effect<C>>) -> bool {
        let Some(added) = self.additions.unsent.remove(&job.id) else { return false };
        let is_unsent = job.newest == added.newest && job.placed == added.placed && !Self::is_held(job);
        if is_unsent {
            self.follow_added(job.clone(), now, effects);
        }
        is_unsent
    }

    /// A job is over: its first attempt is not sent any more.
    pub(super) fn release_unsent(&mut self, job: JobId, effects: &mut Vec<Effect<C>>) {
        if let Some(added) = self.additions.unsent.remove(&job)
            && let Some(placed) = added.placed
        {
            let (node, attempt, token) = (placed.node, added.newest.attempt, self.token);
            effects.push(Effect::ReleaseSlot { node, job, attempt, token });
        }
    }
}
