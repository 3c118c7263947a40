//! What goes into the state of a signer's owner, and what it wants done.

use std::time::{Duration, Instant};

use super::command::Answer;
use super::facts::Round;
use super::refusal::Refusal;
use crate::id::{InstanceId, Nonce};
use crate::lease::Token;
use crate::mode::Mode;
use crate::nonce::{Batch, KeyScope};
use crate::time::Timestamp;

/// Names one batch on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchId(pub(super) u64);

/// How long the owners of an incarnation go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// For as long as there is work, and a while after.
    Serving,
    /// They give their leases back as soon as they have no work.
    Stopping,
    /// The incarnation has ended: they decide nothing any more.
    Over,
}

/// What its surroundings are like when the state is called.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The time by this process's own clock.
    pub now: Instant,
    /// Until when the lease surely lasts by that clock; `None` when there is none, or it was lost.
    pub lease_until: Option<Instant>,
    /// Whether this instance can show that it lives. One that cannot writes for nobody.
    pub is_alive: bool,
    /// The mode in which the signer is to be served.
    pub mode: Mode,
    /// How long the owners go on.
    pub phase: Phase,
    /// Whether there is room to keep a lease without work.
    pub may_idle: bool,
}

/// Why the ledger did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerFailure {
    /// The ledger does not answer, or the outcome is not known. The same request may succeed later.
    Away,
    /// It refused what it should have taken.
    Defect,
}

/// The ledger's answer to an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The lease is this instance's, under this token.
    Lease(Token),
    /// Another instance has it.
    Held {
        /// The owner.
        owner: InstanceId,
        /// How long it still runs, in milliseconds.
        expires_in_ms: u64,
    },
    /// It has run out under another instance, which may live and renew it: it is not to be taken yet.
    Lapsed,
}

/// What happened, for metrics and log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The signer exists.
    Known,
    /// A command was taken up after waiting so long.
    Waited(Duration),
    /// So many nonces were granted.
    Granted(usize),
    /// So many holds ran out while the database's clock jumped, and their nonces are quarantined.
    Doubtful(usize),
    /// Nonces are quarantined from a commit on.
    Quarantined {
        /// How many.
        nonces: usize,
        /// The lowest of them.
        lowest: Nonce,
    },
    /// A batch of this kind was fenced.
    FenceRejected {
        /// The kind.
        op: &'static str,
        /// The token offered.
        token: Token,
    },
    /// A row was not as its owner knew it.
    Diverged {
        /// The kind of the batch that met it.
        op: &'static str,
    },
}

/// What metrics call the batches of signers.
pub const BATCH_OPERATIONS: [&str; 5] = ["grant", "settle", "resolve", "policy", "expire"];

/// What is to be done. Each ledger call's answer comes back to the state; none is waited for.
#[derive(Debug)]
pub enum Effect<R> {
    /// Call [`super::SignerState::proceed`] when all commands that have arrived are applied: what waits together is
    /// decided together.
    Proceed,
    /// Acquire the lease, also when this instance has it: that raises the token. Then
    /// [`super::SignerState::acquired`]. In worker-queue mode the lease is renewed from then on.
    Acquire {
        /// The mode of this turn.
        mode: Mode,
    },
    /// Load the signer with its lowest holes, [`crate::limits::HOLES_IN_MEMORY_MAX`] at most. Then
    /// [`super::SignerState::loaded`].
    Load,
    /// Read what a round must know. Then [`super::SignerState::facts_read`].
    ReadFacts {
        /// Whose facts.
        round: Round,
        /// Idempotency keys, with their answers' rows.
        keys: Vec<KeyScope>,
        /// Rows, sorted and each once.
        nonces: Vec<Nonce>,
        /// Whether to read the lowest holes too, [`crate::limits::HOLES_IN_MEMORY_MAX`] at most.
        reads_holes: bool,
    },
    /// Read the holds that ran out. Then [`super::SignerState::overdue_read`].
    ReadOverdue {
        /// For which round.
        round: Round,
        /// Only those that run out then, by the database's clock, or later.
        from: Option<Timestamp>,
        /// The largest number to read.
        max: usize,
    },
    /// Commit. Then [`super::SignerState::committed`].
    Commit {
        /// Which batch.
        id: BatchId,
        /// What a metric calls it: one of [`BATCH_OPERATIONS`].
        op: &'static str,
        /// What to write.
        batch: Batch,
        /// Only if this one, which is on its way, is committed: the batch was decided on what that one grants.
        after: Option<BatchId>,
    },
    /// Answer a caller.
    Reply(R, Result<Answer, Refusal>),
    /// Give the lease back. Then [`super::SignerState::released`], if that `is_awaited`.
    Release {
        /// Not when the ledger did not answer lately: the exact token makes a release harmless however late it comes.
        is_awaited: bool,
    },
    /// End a lease that this instance has without anybody here knowing its token, if there is one; renew the one known
    /// so far no more. Then [`super::SignerState::reclaimed`].
    Reclaim,
    /// Call [`super::SignerState::wake`] then. An earlier wake-up does no harm, and the next call says again what it
    /// waits for.
    WakeAt(Instant),
    /// Count and log it.
    Note(Note),
    /// Nothing waits, nothing is due and the lease is given back: the actor may stop, unless a command is on its way.
    Stop,
}

/// In the order in which they are to be done.
pub type Effects<R> = Vec<Effect<R>>;
