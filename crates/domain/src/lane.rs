//! Lanes: what the owner of a lane's jobs decides. An instance has lanes for the jobs that it accepts, and each session
//! is a lane of its own.
//!
//! [`LaneState`] is the whole decision: commands, committed batches and what was read go in, [`Effect`]s come out. It
//! knows no clock, runtime, database or bus. A lane that is a session's has a [`SessionState`] as well, which gives jobs
//! their places and their order.
//!
//! The shell round a state must keep four rules:
//! - it carries effects out in their order;
//! - it answers each [`Effect::Commit`], [`Effect::FindSlots`], [`Effect::Read`], [`Effect::CloseSession`],
//!   [`Effect::Transfer`] and [`Effect::Promote`] once, by the method that the effect names;
//! - after [`Effect::Flush`] it calls [`LaneState::flush`] when no command waits at hand;
//! - it calls [`LaneState::flush`] at the latest when [`LaneState::wake_at`] has come.

mod fifo;
mod jobs;
pub mod limits;
mod messages;
mod older_attempts;
mod recent_keys;
mod round;
mod session;
pub(crate) mod spread;
mod state;
#[cfg(test)]
pub(crate) mod testing;
mod waiting_bytes;

pub use messages::{
    Accepted, Affinity, AttemptEvent, AttemptsAt, BatchId, Callers, Coming, Command, CommitFailure,
    Completed, CompletionRequest, DispatchOrder, Effect, Enqueue, JobNotice, KeyedAnswer, NodeFound, PageId,
    PendingSubmission, PlacementRequest, Read, Refused, ReservedSlot, SessionSnapshot, SlotSearch,
    SlotsFound, Snapshot, Submission, Submitter, WithdrawOrder, WrittenBatch,
};
pub use session::SessionState;
pub use state::{LaneSettings, LaneState, Unread};
pub use waiting_bytes::WaitingBytes;
