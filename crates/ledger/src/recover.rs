//! Recovery of a ledger that went back in time: everything that may have been given since its state is skipped.
//!
//! What the ledger knows is raised by margins. What it does not know has no row to raise: a recovery therefore leaves a floor,
//! above which the tokens of new leases begin, has signers without a row wait, and lifts the mark of every worker number.

use std::time::Duration;

use domain::AuditEntry;

use crate::store::{Store, postgres};
use crate::{Error, Kind, Ledger, Migrate, Options, Result};

/// By how much each fencing token is raised at least: more takeovers than a resource has while a backup is the newest one. The
/// database's time in milliseconds is the least token then, so that a second recovery of the same backup raises them further.
pub const RECOVERED_TOKENS: i64 = 1_000_000;
/// The least number of numbers of each sequence, of ids of each segment, of places in each open session, and of events of each
/// plan, to be skipped,
pub const RECOVERED_NUMBERS_MIN: i64 = 1_000_000;
/// and the largest.
pub const RECOVERED_NUMBERS_MAX: i64 = 1_000_000_000_000;
/// So many ranges of each segment are skipped beside: what instances may have in memory, and go on to give while they are cut
/// off. An instance has two ranges, and a third that it has asked for, so this is for 33 instances.
pub const RECOVERED_RANGES: i64 = 100;
/// How far the marks of snowflake workers are lifted past what instances may be ahead of the clock, in milliseconds: the clock of
/// the database may have been another one.
pub const RECOVERED_MARK_MS: i64 = 5_000;

/// How far a recovery goes past what the ledger knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margins {
    /// So many ids of each segment, numbers of each sequence, places in each session, and numbers of events of each plan, at
    /// most were given since the ledger's state; within [`RECOVERED_NUMBERS_MIN`] and [`RECOVERED_NUMBERS_MAX`].
    pub numbers: i64,
    /// How far ahead of the clock an instance may make snowflakes at most, in milliseconds.
    pub lead_ms: i64,
}

impl Margins {
    fn within_limits(self) -> Self {
        Self { numbers: self.numbers.clamp(RECOVERED_NUMBERS_MIN, RECOVERED_NUMBERS_MAX), ..self }
    }
}

/// What a recovery has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Leases that ended, each with a raised token.
    pub leases: u64,
    /// Open sessions in which the next place was raised.
    pub sessions: u64,
    /// Plans of which the number of the next event was raised.
    pub plans: u64,
    /// Signers that grant nothing until their next nonce is confirmed. So do all that the ledger does not know.
    pub signers: u64,
    /// Segments that were raised as far as they were to be.
    pub segments: u64,
    /// Sequences that were raised as far as they were to be.
    pub sequences: u64,
    /// The tags of the other segments: the highest number is too near, and they give nothing any more.
    pub ended_segments: Vec<String>,
    /// The names of the other sequences, likewise.
    pub ended_sequences: Vec<String>,
    /// Snowflake workers whose marks were lifted: all that there can be.
    pub workers: u64,
    /// How far the marks of all snowflake workers are past the clock at least, in milliseconds: after a recovery by this one or
    /// an earlier one, whichever is longer; of a trial, as they are. 0 or less where they hold nobody back.
    pub ahead_ms: i64,
}

/// How long a recovery may take: it writes every lease and every signer, and an event of every plan.
const RECOVERY_MAX: Duration = Duration::from_secs(3_600);

/// Recovers the ledger, in one transaction. On SQLite no daemon may have the file.
///
/// # Errors
/// As [`crate::open_on`]; and a database that has no ledger is refused.
pub async fn recover(
    options: &Options,
    migrate: Migrate,
    margins: Margins,
    by: &AuditEntry,
) -> Result<Recovery> {
    let store = reach(options, migrate).await?;
    let recovery = store.recover(margins.within_limits(), by).await;
    store.close().await;
    recovery.map_err(|error| explained(error, options))
}

/// What a recovery by these margins would change. Changes nothing, and refuses tables that are older than this binary.
///
/// # Errors
/// As [`crate::open_on`].
pub async fn try_recovery(options: &Options, margins: Margins) -> Result<Recovery> {
    let store = reach(options, Migrate::Check).await?;
    let recovery = store.try_recovery(margins.within_limits()).await;
    store.close().await;
    recovery
}

/// From now on signers that the ledger does not know are new, and grant from their first nonce. Before, every signer must be
/// confirmed that may have been granted a nonce between the ledger's state and its recovery.
///
/// # Errors
/// As [`crate::open_on`].
pub async fn let_new_signers_grant(options: &Options, migrate: Migrate, by: &AuditEntry) -> Result<()> {
    let store = reach(options, migrate).await?;
    let done = store.let_new_signers_grant(by).await;
    store.close().await;
    done.map_err(|error| explained(error, options))
}

/// The same failure, with what a person can do about it on the server.
fn explained(error: Error, options: &Options) -> Error {
    match Kind::of(&options.url) {
        Ok(Kind::Postgres) => postgres::explained(error, &options.url),
        _ => error,
    }
}

async fn reach(options: &Options, migrate: Migrate) -> Result<Store> {
    // Made here, it would look recovered, and the one that is meant would not be.
    let migrate = match migrate {
        Migrate::Auto | Migrate::Existing => Migrate::Existing,
        Migrate::Check | Migrate::CheckExisting => Migrate::CheckExisting,
    };
    let store = Store::reach(options, &[tokio::runtime::Handle::current()], migrate).await?;
    Ok(store.with_call_timeout(RECOVERY_MAX))
}
