//! The messages of lanes: what a lane's owner receives, and its answers to those who wait for it.
//!
//! What lives here: commands, events of attempts, submissions, results, slots, and the handle through which they reach
//! a lane. What must never: anything that acts on them. This module uses no other part of `jobs` but the types that its
//! messages carry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix::prelude::SendError;
use actix::{Message, Recipient};
use domain::JobId;
use domain::lane;
use tokio::sync::oneshot;

use super::delivery::Dispatch;
use super::{Accepted, Places, Refusal};

pub(super) use domain::lane::{AttemptEvent, ReservedSlot};

/// How the callers of lanes wait: each on a channel, whose loss tells them that the owner died.
pub(super) enum Waiting {}

impl lane::Callers for Waiting {
    type Submit = SubmitReply;
    type Cancel = oneshot::Sender<Result<(), Refusal>>;
    type Complete = oneshot::Sender<CompletionOutcome>;
    type Close = oneshot::Sender<Result<(), Refusal>>;
}

/// What reaches a lane's owner.
pub(super) type LaneCommand = lane::Command<Waiting>;

/// A submission that waits for its commit, and the caller that waits for the answer.
pub(super) type PendingSubmission = lane::PendingSubmission<Waiting>;

/// The output of an attempt, which its lane is to commit, and the caller that waits for the commit.
pub(super) type CompletionRequest = lane::CompletionRequest<Waiting>;

/// The caller of a submission.
pub(super) struct SubmitReply {
    pub(super) reply: oneshot::Sender<Result<Accepted, Refusal>>,
    /// Its share of the limits on submissions under way; dropped with the answer.
    pub(super) _places: Places,
}

impl SubmitReply {
    /// Answers. The caller may be gone.
    pub(super) fn send(self, answer: Result<Accepted, Refusal>) {
        let _ = self.reply.send(answer);
    }
}

/// What became of a completion that a lane committed.
pub(super) struct CompletionOutcome {
    /// `false` where the row was not at this attempt any more.
    pub(super) is_written: bool,
    /// The attempt that gets the slot: dispatched, with no slot of its own.
    pub(super) next: Option<Box<Dispatch>>,
}

/// Results that a lane has written, and the attempts that follow them on their slots.
#[derive(Default)]
pub(super) struct Ends {
    pub(super) over: Vec<(JobId, bool, oneshot::Sender<CompletionOutcome>)>,
    pub(super) next: Vec<(JobId, Dispatch)>,
}

/// A command on its way to an owner's mailbox.
pub(super) struct Deliver(pub(super) LaneCommand);

impl Message for Deliver {
    type Result = ();
}

/// The way to a lane's owner. Cheap to clone.
#[derive(Clone)]
pub(super) struct LaneHandle {
    recipient: Recipient<Deliver>,
    /// Messages that were sent. An owner that has handled as many has nothing on its way.
    sent: Arc<AtomicU64>,
}

impl LaneHandle {
    /// A way to the owner behind `recipient`, with the count that all ways to it share.
    pub(super) const fn new(recipient: Recipient<Deliver>, sent: Arc<AtomicU64>) -> Self {
        Self { recipient, sent }
    }

    /// Sends a command past the mailbox's bound: for what must not be lost, of which there is never more than there are
    /// slots and callers that wait. An owner that has ended drops it; what it was about is found in the ledger.
    pub(super) fn send(&self, command: LaneCommand) {
        self.sent.fetch_add(1, Ordering::AcqRel);
        self.recipient.do_send(Deliver(command));
    }

    /// Sends a command if the mailbox has room; else answers it again.
    pub(super) fn try_send(&self, command: LaneCommand) -> Result<(), Box<LaneCommand>> {
        self.sent.fetch_add(1, Ordering::AcqRel);
        match self.recipient.try_send(Deliver(command)) {
            Ok(()) | Err(SendError::Closed(_)) => Ok(()),
            Err(SendError::Full(Deliver(command))) => {
                self.sent.fetch_sub(1, Ordering::AcqRel);
                Err(Box::new(command))
            }
        }
    }

    /// How many messages were sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Whether both lead to the same owner.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.sent, &other.sent)
    }
}
