//! What can be asked of a signer's owner, and what it answers.

use std::sync::Arc;

use std::time::Instant;

use crate::AuditEntry;
use crate::id::{HoldId, IdempotencyKey, InstanceId, Nonce, SignerId};
use crate::lease::Token;
use crate::nonce::{
    GrantAnswer, KeyScope, Policy, PolicyPatch, Resolution, SettleRefusal, Settlement, Status,
};
use crate::time::Timestamp;

/// A request for nonces.
#[derive(Clone, Debug)]
pub struct GrantRequest {
    /// How many, 1 to [`crate::limits::GRANT_NONCES_MAX`].
    pub count: usize,
    /// How long each is held, in milliseconds; the policy's length without it.
    pub hold_ms: Option<u64>,
    /// The caller's name for this request.
    pub key: Option<RequestKey>,
}

/// An idempotency key and what was asked under it.
#[derive(Clone, Debug)]
pub struct RequestKey {
    /// The caller's name; empty where callers have none.
    pub principal: Arc<str>,
    /// The key.
    pub key: IdempotencyKey,
    /// SHA-256 of what was asked.
    pub body_hash: [u8; 32],
}

impl RequestKey {
    /// Where the key is the caller's own: keys count per route, signer and caller.
    #[must_use]
    pub fn scope(&self, signer: &SignerId) -> KeyScope {
        self.of(&self.principal, signer)
    }

    /// Where the key is kept, and looked for in this order: as the caller's own, and where callers share keys, as that of
    /// all. As the caller's own in any case, so that it still answers its caller when keys are shared no more.
    pub(super) fn scopes(&self, signer: &SignerId, is_shared: bool) -> Vec<KeyScope> {
        // What all share is where callers have no names.
        let shared = (is_shared && !self.principal.is_empty()).then(|| self.of("", signer));
        std::iter::once(self.scope(signer)).chain(shared).collect()
    }

    fn of(&self, principal: &str, signer: &SignerId) -> KeyScope {
        let space = if principal.is_empty() { "" } else { " " };
        KeyScope { scope: format!("grant signer:{signer}{space}{principal}"), key: self.key.clone() }
    }
}

/// Nonces granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants {
    /// The token they were granted under.
    pub token: Token,
    /// The owner that granted them.
    pub owner: InstanceId,
    /// The nonces, in the order granted.
    pub grants: Vec<Grant>,
}

/// One nonce granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The nonce.
    pub nonce: Nonce,
    /// The hold to settle it with.
    pub hold: HoldId,
    /// When the hold runs out, by the database's clock.
    pub held_until: Timestamp,
    /// What was left of it when this answer was built, in milliseconds.
    pub held_for_ms: u64,
}

/// An operator's decision on one nonce.
#[derive(Clone, Debug)]
pub struct ResolveRequest {
    /// Which nonce.
    pub nonce: Nonce,
    /// The decision counts only while this is the nonce's last hold. Without it, it is about the hold that the nonce has when
    /// it is decided first.
    pub hold: Option<HoldId>,
    /// The decision.
    pub resolution: Resolution,
}

/// What a signer's owner is asked.
#[derive(Clone, Debug)]
pub enum Command {
    /// Grant nonces, lowest hole first.
    Grant(GrantRequest),
    /// Settle holds.
    Settle(Vec<Settlement>),
    /// Decide on a quarantined nonce.
    Resolve(ResolveRequest),
    /// Change the policy.
    SetPolicy(PolicyPatch),
    /// Expire the holds that are overdue.
    Sweep,
}

impl Command {
    /// How many nonces it may touch.
    #[must_use]
    pub(super) fn nonces(&self) -> usize {
        match self {
            Self::Grant(request) => request.count,
            Self::Settle(settlements) => settlements.len(),
            Self::Resolve(_) => 1,
            Self::SetPolicy(_) | Self::Sweep => 0,
        }
    }
}

/// One answer for each settlement, in their order.
pub type Settlements = Vec<Result<Status, SettleRefusal>>;

/// What a command that was not refused comes to. Each is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To a grant.
    Granted(Grants),
    /// To settlements.
    Settled(Settlements),
    /// To an operator's decision: the state that the nonce is in.
    Resolved(Status),
    /// To a change of the policy: the policy in force.
    PolicySet(Policy),
    /// To a sweep.
    Swept,
}

/// The caller that waits for an answer.
pub trait Caller {
    /// Whether the caller waits no more.
    fn has_left(&self) -> bool;
}

/// What comes with every command. `R` says where the answer goes.
#[derive(Debug)]
pub struct Ticket<R> {
    /// The caller that waits for the answer.
    pub caller: R,
    /// When it was asked.
    pub arrived: Instant,
    /// When a caller that waits for another instance's lease is refused.
    pub patience: Instant,
    /// When a caller that waits for the ledger is refused.
    pub deadline: Instant,
    /// What is noted of it, if an operator asks.
    pub audit: Option<Box<AuditEntry>>,
}

/// A command that waits, is being decided, or is being committed.
pub(super) struct QueuedCommand<R> {
    /// In the order of their arrival.
    pub(super) number: u64,
    pub(super) command: Command,
    pub(super) ticket: Ticket<R>,
    /// A grant's last try, of which nobody knows whether it was committed.
    pub(super) lost: Option<GrantAnswer>,
    /// Whether a try may have been committed without anybody having looked since.
    pub(super) is_unsure: bool,
    /// Whether it was tried before.
    pub(super) is_retry: bool,
}
