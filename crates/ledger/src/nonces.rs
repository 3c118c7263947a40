//! Nonces: the fenced write, what an owner loads, and what anybody may read.

pub use domain::database_clock::HeldNonce;
pub use domain::nonce::{Batch, GrantAnswer, KeptKey, KeyScope, NewKey, Verdict};
use domain::nonce::{Hole, Loaded, Policy, Row, Status};
use domain::{AuditEntry, InstanceId, Nonce, SignerId, Timestamp, Token, TxHash};

use crate::Result;
use crate::train::Link;

/// A nonce's row and the database's time of reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read<T> {
    /// What was read.
    pub value: T,
    /// When it was read, by the database's clock.
    pub at: Timestamp,
}

/// One nonce for the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonceRecord {
    /// Nonce, state, last hold, transaction.
    pub row: Row,
    /// Under which token it was written last.
    pub token: Token,
    /// The owner that wrote it last.
    pub owner: InstanceId,
    /// When it was granted first.
    pub created_at: Timestamp,
    /// When it was written last.
    pub updated_at: Timestamp,
}

/// What a look for overdue holds found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverdueSigners {
    /// Signers with holds that ran out, or will within the time that was asked for, and no live owner but who asked.
    pub overdue: Vec<SignerId>,
    /// Behind this signer the next look goes on; `None` after the last signer that holds nonces.
    pub next: Option<SignerId>,
}

/// One signer for the audit: the ledger's truth at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerRecord {
    /// The signer.
    pub signer: SignerId,
    /// The owner of its lease, if that is live.
    pub owner: Option<InstanceId>,
    /// Its newest token; `None` if its lease was never acquired.
    pub token: Option<Token>,
    /// How long the lease still runs, in milliseconds; 0 without a live one.
    pub lease_expires_in_ms: u64,
    /// The lowest nonce never granted.
    pub next_nonce: u64,
    /// How many are HELD.
    pub held: u64,
    /// How many are RELEASED.
    pub released: u64,
    /// How many are CONSUMED.
    pub consumed: u64,
    /// How many are QUARANTINED.
    pub quarantined: u64,
    /// Age of the oldest hold that is HELD, in milliseconds.
    pub oldest_hold_ms: Option<u64>,
    /// Whether it grants nothing until its next nonce is confirmed.
    pub is_recovering: bool,
    /// Its policy.
    pub policy: Policy,
}

/// What became of the confirmation of a signer's next nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// The signer grants again. Where the same nonce was confirmed before, nothing was changed.
    Done,
    /// As many nonces as one call adds were added, and so many are missing still; or as many were taken back, and so many lie
    /// still from the confirmed one on, some of which may stay. The signer waits as before; the same confirmation goes on.
    Partly(u64),
    /// There is no such signer, and no recovery has unknown ones wait.
    Unknown,
    /// The signer grants already, and another nonce was confirmed last, or none; nothing was changed.
    NotRecovering,
    /// The nonce is CONSUMED, as its hold or an operator said: the next one lies above it, or the chain waits for its
    /// transaction. Nothing was changed.
    Used,
    /// So many nonces would have to be added; at most [`CONFIRMED_NONCES_MAX`] are. Nothing was changed.
    TooFar(u64),
    /// So many nonces below the signer's first one would have to become holes; at most [`CONFIRMED_HOLES_MAX`] do. Nothing was
    /// changed.
    TooLow(u64),
}

/// The most nonces that a confirmation adds, all its calls together: more than any backup lacks. A mistyped nonce must not fill
/// the disk.
pub const CONFIRMED_NONCES_MAX: u64 = 100_000_000;

/// The most nonces that one call of a confirmation adds, or takes back: a fraction of the time that a call may take, also on a
/// slow machine.
pub const CONFIRMED_AT_ONCE_MAX: u64 = 50_000;

/// The most nonces below a signer's first one that a confirmation adds, all in its last call. Every look at the signer and at the
/// metrics counts the holes, so that a mistyped nonce must not make millions of them.
pub const CONFIRMED_HOLES_MAX: u64 = CONFIRMED_AT_ONCE_MAX;

/// Which nonces to list.
#[derive(Clone, Debug)]
pub struct NonceFilter {
    /// Of this signer.
    pub signer: SignerId,
    /// In this state only.
    pub status: Option<Status>,
    /// After this one.
    pub after: Option<Nonce>,
    /// The most nonces to list.
    pub limit: u32,
}

/// The nonces of all signers.
#[async_trait::async_trait]
pub trait Nonces: Send + Sync {
    /// What a new owner must know. Call after the acquire was answered, never together with it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn load(&self, signer: &SignerId, holes_max: usize) -> Result<Loaded>;

    /// Whether the signer grants nothing until its next nonce is confirmed, as in [`Loaded::is_recovering`]. Reads no nonce.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn is_recovering(&self, signer: &SignerId) -> Result<bool>;

    /// The lowest holes in order, `max` at most, and whether these are all.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn holes(&self, signer: &SignerId, max: usize) -> Result<(Vec<Hole>, bool)>;

    /// Holds of the signer that ran out, or will within `ahead_ms`, and are still HELD: `max` at most, longest overdue
    /// first, and only those whose `held_until` is `from` or later. Behind them the next that will.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn overdue(
        &self,
        signer: &SignerId,
        ahead_ms: u64,
        from: Option<Timestamp>,
        max: usize,
    ) -> Result<Vec<HeldNonce>>;

    /// The named nonces as they stand; one never granted is missing from the answer.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn rows(&self, signer: &SignerId, nonces: &[Nonce]) -> Result<Read<Vec<Row>>>;

    /// The fenced write: one transaction that locks the lease at exactly the batch's token, then
    /// writes, comparing every row with what the batch says it was.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] it may have been, or may yet be, committed.
    async fn commit(&self, batch: Batch) -> Result<Verdict> {
        self.commit_linked(batch, Link::default()).await
    }

    /// The same for a batch that others may follow, or that follows one which was sent before: it is committed after that
    /// one, and only if that one is. Otherwise its verdict is [`Verdict::Undone`].
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] it may have been, or may yet be, committed.
    async fn commit_linked(&self, batch: Batch, link: Link) -> Result<Verdict>;

    /// The answers kept under idempotency keys; one never kept is missing from them.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn kept_keys(&self, scopes: &[KeyScope]) -> Result<Vec<(KeyScope, KeptKey)>>;

    /// Whether there is this signer, as [`Nonces::signer`] says. Reads no nonce.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn is_known(&self, signer: &SignerId) -> Result<bool>;

    /// One signer for the audit; `None` before its first grant or policy.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn signer(&self, signer: &SignerId) -> Result<Option<SignerRecord>>;

    /// Signers whose names begin with `prefix`, in the order of their names.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn signers(&self, prefix: &str, after: Option<&SignerId>, limit: u32) -> Result<Vec<SignerRecord>>;

    /// Nonces of one signer in their order.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn nonces(&self, filter: &NonceFilter) -> Result<Vec<NonceRecord>>;

    /// Looks at the next `limit` signers that hold nonces, in the order of their names.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn overdue_signers(
        &self,
        me: &InstanceId,
        ahead_ms: u64,
        after: Option<&SignerId>,
        limit: u32,
    ) -> Result<OverdueSigners>;

    /// How many nonces there are in each state that still needs care (all but CONSUMED), all signers
    /// together.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn open_counts(&self) -> Result<Vec<(Status, u64)>>;

    /// Confirms the next nonce of a signer that is recovering: those below it are CONSUMED, also those that the ledger has
    /// lost; open ones from it on are QUARANTINED under a new hold, which nobody was granted. Where it lies below the signer's
    /// first nonce, those in between become holes, and it is the first one. A signer that a recovered ledger does not know is
    /// made. Ends the signer's lease, so that its owner begins anew.
    ///
    /// Of lost nonces the lowest [`CONFIRMED_AT_ONCE_MAX`] are added. While more are missing, nothing else is done
    /// ([`Confirmation::Partly`]). Until the last one is added, a smaller nonce may be confirmed: of those that were added from
    /// it on, the highest [`CONFIRMED_AT_ONCE_MAX`] are taken back, and nothing else is done while there are more.
    ///
    /// A nonce that is CONSUMED, but not by a confirmation, is refused ([`Confirmation::Used`]): a node that lags behind its
    /// chain names such a one, and the signer would grant nonces that the ledger has lost and the chain has.
    ///
    /// # Errors
    /// [`crate::Error`]. After [`crate::Error::Unknown`] it may be confirmed or not.
    async fn confirm_signer(&self, signer: &SignerId, next: Nonce, by: &AuditEntry) -> Result<Confirmation>;

    /// Deletes idempotency keys older than `age_ms`, and takes theirs from bulk operations that are as old and over; `limit` of
    /// each kind at most. Answers how many. A key that an earlier call passed over, since it was locked, is left to a later one;
    /// so is what is old where the first call of a process takes too long.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn purge_keys(&self, age_ms: u64, limit: u32) -> Result<u64>;
}

impl NonceRecord {
    /// The transaction that used it, if it was named.
    #[must_use]
    pub const fn tx_hash(&self) -> Option<&TxHash> {
        self.row.tx_hash.as_ref()
    }
}
