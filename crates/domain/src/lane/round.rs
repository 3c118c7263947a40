//! One round of a lane: what it writes, and what follows once that is committed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::messages::{BatchId, Callers, Effect, PendingSubmission};
use crate::job::{
    Assignment, Attempt, Change, Class, CurrentAttempt, Due, JobKey, JobWrite, LiveJob, Outcome, Revoked,
};
use crate::{JobId, KeyScope, NodeId, Timestamp, Token};

/// One write of a round, and what follows from it.
pub(super) struct Item<C: Callers> {
    pub(super) write: JobWrite,
    pub(super) then: AfterCommit<C>,
}

/// What follows from a write once it is committed.
pub(super) enum AfterCommit<C: Callers> {
    Submitted {
        reply: C::Submit,
        due: Due,
        job: Arc<LiveJob>,
        placed: Option<Assignment>,
        /// The job whose slot it gets, if it gets one and has none of its own.
        instead_of: Option<JobId>,
    },
    Dispatched {
        job: Arc<LiveJob>,
        current: CurrentAttempt,
        placed: Assignment,
        /// The job whose slot it gets, if it has none of its own.
        instead_of: Option<JobId>,
    },
    Completed {
        class: Class,
        node: NodeId,
        attempt: Attempt,
        may_pass: bool,
        reply: C::Complete,
    },
    Revoked {
        job: Arc<LiveJob>,
        current: CurrentAttempt,
        placed: Assignment,
        due_in_ms: u64,
        why: Revoked,
    },
    Ended {
        class: Class,
        outcome: Outcome,
        placed: Option<Assignment>,
        attempt: Attempt,
        replies: Vec<C::Cancel>,
    },
}

impl<C: Callers> Item<C> {
    /// The job of the same round whose end it is written with: it gets that one's slot, or comes behind it in a strict session.
    fn follows(&self) -> Option<JobId> {
        match &self.write.change {
            Change::Dispatch { behind: Some(over), .. } => Some(*over),
            _ => self.then.instead_of(),
        }
    }
}

impl<C: Callers> AfterCommit<C> {
    /// The job of the same round whose slot it gets, if it gets one so.
    const fn instead_of(&self) -> Option<JobId> {
        match self {
            Self::Submitted { instead_of, .. } | Self::Dispatched { instead_of, .. } => *instead_of,
            Self::Completed { .. } | Self::Revoked { .. } | Self::Ended { .. } => None,
        }
    }

    /// Gives back the slot that was reserved for its attempt under this token; `None` where none was: it is to get another job's
    /// slot, or begins no attempt.
    pub(super) fn release(&self, token: Token) -> Option<Effect<C>> {
        let (job, attempt, placed) = match self {
            Self::Submitted { job, placed: Some(placed), instead_of: None, .. } => {
                (job.id, CurrentAttempt::FIRST.attempt, placed)
            }
            Self::Dispatched { job, current, placed, instead_of: None } => (job.id, current.attempt, placed),
            _ => return None,
        };
        Some(Effect::ReleaseSlot { node: placed.node.clone(), job, attempt, token })
    }
}

/// What one round writes: each job once.
pub(super) struct PendingBatch<C: Callers> {
    pub(super) items: Vec<Item<C>>,
    /// What gets the slots that others of these leave, or comes behind them.
    successors: HashMap<JobId, Item<C>>,
}

impl<C: Callers> Default for PendingBatch<C> {
    fn default() -> Self {
        Self { items: Vec::new(), successors: HashMap::new() }
    }
}

impl<C: Callers> PendingBatch<C> {
    pub(super) fn add(&mut self, change: Change, key: Option<JobKey>, then: AfterCommit<C>) {
        let item = Item { write: JobWrite { change, key }, then };
        match item.follows() {
            // Two may not get one slot; the scheduler offers each once. A strict session has one job under way.
            Some(over) => drop(self.successors.insert(over, item)),
            None => self.items.push(item),
        }
    }

    /// All of it, each successor behind its job.
    pub(super) fn in_order(mut self) -> VecDeque<Item<C>> {
        let mut items = VecDeque::with_capacity(self.items.len() + self.successors.len());
        for item in self.items {
            let successor = self.successors.remove(&item.write.change.job());
            items.push_back(item);
            items.extend(successor);
        }
        items
    }
}

/// Takes the first batch out of the items of a round: as many as fit into `rows_max` rows.
pub(super) fn next_batch<C: Callers>(items: &mut VecDeque<Item<C>>, rows_max: usize) -> Vec<Item<C>> {
    let (mut rows, mut count) = (1, 0);
    while let Some(item) = items.get(count) {
        // What follows another is written with it.
        let next = items.get(count + 1).filter(|next| next.follows().is_some());
        rows += item.write.rows() + next.map_or(0, |next| next.write.rows());
        if rows > rows_max && count > 0 {
            break;
        }
        count += 1 + usize::from(next.is_some());
    }
    items.drain(..count).collect()
}

/// A batch whose commit is under way, or that is committed and not followed yet.
pub(super) struct CommittedBatch<C: Callers> {
    pub(super) id: BatchId,
    pub(super) writes: Arc<[JobWrite]>,
    pub(super) thens: Vec<AfterCommit<C>>,
}

impl<C: Callers> CommittedBatch<C> {
    /// Whether there are new jobs in it that wait for a slot.
    pub(super) fn leaves_some_waiting(&self) -> bool {
        let waits = |then: &AfterCommit<C>| matches!(then, AfterCommit::Submitted { placed: None, .. });
        self.thens.iter().any(waits)
    }

    /// The jobs that it writes, those that it retries among them.
    pub(super) fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.writes.iter().flat_map(|write| write.change.written_jobs())
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &KeyScope> {
        self.writes.iter().filter_map(|write| Some(&write.key.as_ref()?.scope))
    }
}

/// A job of a strict session that may begin with the commit that ends the one before it.
pub(super) struct NextInLine {
    pub(super) job: Arc<LiveJob>,
    pub(super) behind: JobId,
}

/// Submissions with their places, and the rest of the round that waits for their slots.
pub(super) struct Placing<C: Callers> {
    pub(super) round: PendingBatch<C>,
    pub(super) accepted: Vec<(Option<u64>, PendingSubmission<C>)>,
    /// The next one of a strict session, if the job before it ends in the round.
    pub(super) next: Option<NextInLine>,
    /// The lease was lost or given back meanwhile: nothing of it may be written.
    pub(super) is_void: bool,
    pub(super) token: Token,
}

/// A delayed job, as the ledger has it.
pub(super) fn delayed_until(job: &LiveJob, at: Timestamp) -> Arc<LiveJob> {
    Arc::new(LiveJob { due_at: Some(at), ..job.clone() })
}
