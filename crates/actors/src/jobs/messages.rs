//! The messages of lanes: what a lane's owner receives, and its answers to those who wait for it.
//!
//! What lives here: commands, events of attempts, submissions, results, and slots. What must never: anything that acts on
//! them. This module uses no other part of `jobs` but the types that its messages carry.

use domain::LaneId;
use domain::lane;
use tokio::sync::oneshot;

use super::delivery::Dispatch;
use super::submission_limits::SubmissionShare;
use super::{Accepted, Refusal};
use crate::mailbox::Handle;
use crate::replies::ReplyTo;

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
    pub(super) reply: ReplyTo<Result<Accepted, Refusal>>,
    /// Its share of the limits on submissions under way; dropped with the answer.
    pub(super) _share: SubmissionShare,
}

impl SubmitReply {
    /// Answers. The caller may be gone.
    pub(super) fn send(self, answer: Result<Accepted, Refusal>) {
        self.reply.send(answer);
    }
}

/// What became of a completion that a lane committed.
pub(super) struct CompletionOutcome {
    /// `false` where the row was not at this attempt any more.
    pub(super) is_written: bool,
    /// The attempt that gets the slot: dispatched, with no slot of its own.
    pub(super) next: Option<Box<Dispatch>>,
}

/// The answer to a completion, and the caller that waits for it.
pub(super) struct CompletionAnswer {
    pub(super) reply: oneshot::Sender<CompletionOutcome>,
    pub(super) outcome: CompletionOutcome,
}

/// The way to a lane's owner.
pub(super) type LaneHandle = Handle<LaneCommand>;

/// The lanes that are served here.
pub(super) type Directory = crate::directory::Directory<LaneId, LaneCommand>;
