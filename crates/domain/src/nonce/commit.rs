//! What an owner of nonces has a ledger commit, and what the ledger says became of it.

use super::{Change, Policy};
use crate::AuditEntry;
use crate::id::{HoldId, InstanceId, Nonce, SignerId};
pub use crate::key::KeyScope;
use crate::lease::{Resource, Token};
use crate::time::Timestamp;

/// Everything that one commit writes for one signer: all of it or nothing.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Whose nonces.
    pub signer: SignerId,
    /// Who writes.
    pub owner: InstanceId,
    /// The fencing token. The commit locks the signer's lease at exactly this token.
    pub token: Token,
    /// The idempotency keys to keep with it; the rest is written only if all of them are new.
    pub keys: Vec<NewKey>,
    /// The policy to set.
    pub policy: Option<Policy>,
    /// The nonces to write, each at most once.
    pub changes: Vec<Change>,
    /// What operators change by it.
    pub audit: Vec<AuditEntry>,
}

impl Batch {
    /// The resource whose lease guards this batch.
    #[must_use]
    pub fn resource(&self) -> Resource {
        Resource::signer(&self.signer)
    }
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is durable.
    Committed {
        /// The transaction's time: `held_until` of its grants is this plus their length.
        at: Timestamp,
    },
    /// The lease is another's by now, or released. Nothing was written, nor will anything be.
    Fenced,
    /// The lease row was locked; nothing was written, the same may be sent again.
    Again,
    /// An idempotency key is taken; nothing was written. Read its answer.
    KeyTaken,
    /// A row was not as the batch said it was; nothing was written. Reload.
    Diverged,
    /// The batch that this one followed was not surely committed; nothing was written. Reload.
    Undone,
}

/// An idempotency key to be kept with the answer it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    /// Where it counts.
    pub scope: KeyScope,
    /// SHA-256 of what was asked.
    pub body_hash: [u8; 32],
    /// The answer to give again.
    pub answer: GrantAnswer,
}

/// A key that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptKey {
    /// SHA-256 of what was asked.
    pub body_hash: [u8; 32],
    /// The answer to give again, if its holds are still live.
    pub answer: GrantAnswer,
}

/// The lasting part of a grant's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantAnswer {
    /// The token it was granted under.
    pub token: Token,
    /// The owner then.
    pub owner: InstanceId,
    /// The nonces and their holds, in the order granted.
    pub grants: Vec<(Nonce, HoldId)>,
}
