//! Recovery of a ledger that went back in time: everything that may have been given since its state is skipped.

use domain::AuditEntry;

use crate::store::Store;
use crate::{Migrate, Options, Result};

/// By how much each fencing token is raised: more takeovers than a resource has while a backup is the newest one.
pub const RECOVERED_TOKENS: i64 = 1_000_000;
/// The least number of numbers of each sequence, and of ids of each segment (but 100 steps of it), to be skipped,
pub const RECOVERED_NUMBERS_MIN: i64 = 1_000_000;
/// and the largest.
pub const RECOVERED_NUMBERS_MAX: i64 = 1_000_000_000_000;
/// How far past the clock the marks of snowflake workers are lifted, in milliseconds: further than any id is ahead of it.
pub const RECOVERED_MARK_MS: i64 = 5_000;

/// What a recovery has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Leases that ended, each with a raised token.
    pub leases: u64,
    /// Signers that grant nothing until their next nonce is confirmed.
    pub signers: u64,
    /// Segments that were raised.
    pub segments: u64,
    /// Sequences that were raised.
    pub sequences: u64,
    /// Snowflake workers whose marks were lifted.
    pub workers: u64,
}

/// Recovers the ledger, in one transaction, and skips so many numbers and ids, within the limits above: more than were given
/// since the ledger's state. With `is_trial` nothing is kept, and the answer says what would change. On SQLite no daemon may
/// have the file.
///
/// # Errors
/// As [`crate::open`].
pub async fn recover(options: &Options, numbers: i64, is_trial: bool, by: &AuditEntry) -> Result<Recovery> {
    let numbers = numbers.clamp(RECOVERED_NUMBERS_MIN, RECOVERED_NUMBERS_MAX);
    let store = Store::open(options, &[tokio::runtime::Handle::current()], Migrate::Auto).await?;
    let recovery = store.recover(numbers, is_trial, by).await;
    crate::Ledger::close(&store).await;
    recovery
}
