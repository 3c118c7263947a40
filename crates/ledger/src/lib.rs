//! The durable truth of Fencepost, in SQL.
//!
//! What lives here: leases, the fenced write, nonces, jobs, sessions, plans, idempotency keys, what ids are made of, instances
//! and settings, behind one trait per concern. `store` implements all of them once, for PostgreSQL and SQLite; one
//! conformance suite tests both. Every statement is a file under `sql/`: in `both/` where both databases understand the
//! same text, else in `postgres/` and `sqlite/` under the same name, or in a folder for the one database that needs it. Text
//! that several statements share is a file in `parts/`, and stands in them as its name in braces, without the name of the
//! database where that has words of its own: `{now}` is the database's time.
//! What must never: a decision about a nonce or a job (that is `domain`'s), or a time that is not the database's own.
//! No other crate names `sqlx`.
//!
//! Every call runs in a task of its own: a caller that is dropped half-way leaves no connection in the middle of a
//! transaction.

mod audit;
mod backup;
mod batch_limits;
mod bulk;
mod changes;
mod detached;
mod error;
mod folders;
mod identity;
mod ids;
mod instances;
mod jobs;
mod keys;
mod leases;
mod migrations;
mod nonces;
mod outage;
mod pause;
mod plans;
mod records;
mod recover;
mod sessions;
mod settings;
mod sql;
mod store;
mod tls_files;
mod train;
mod transfers;
mod unwritable;

use std::sync::Arc;

pub use audit::{AuditFilter, AuditRecord, Audits};
pub use backup::backup;
pub use batch_limits::BATCH_ROWS_MAX;
pub use bulk::{
    BULKS_OPEN_MAX, BULKS_OPEN_OF_ONE_MAX, BulkAction, BulkCount, BulkFound, BulkMade, BulkRecord, BulkScan,
    BulkStatus, BulkStep, Bulks, NewBulk, OpenBulk,
};
pub use detached::keeping;
pub use error::{Error, Result};
pub use folders::make_folder_of;
pub use identity::{Identity, Reason, Server, Witness};
pub use ids::{
    Ids, Marked, Put, RangeTaken, SegmentChange, SegmentRecord, SequenceChange, SequenceGrant,
    SequenceRecord, WorkerClaim, WorkerHolder, WorkerRecord,
};
pub use instances::{Instance, Instances, NewInstance, Peer};
pub use jobs::{
    Finished, FinishedBy, FinishedCounts, HeldAttempt, JobBatch, JobFilter, JobKey, JobRecord, JobVerdict,
    JobWrite, Jobs, JobsVerdict, KeptJobKey, KeptSelection, Lane, LiveJob, NAMES_COUNTED_MAX, OrphanedLane,
    PAGE_BYTES_MAX, PARTITION_DAYS_AHEAD, PromotedJob, RevokedAttempt, UnderWay, UnfinishedCount,
    UnfinishedCounts, Unwritten, WaitingGroup,
};
pub use leases::{Acquisition, Lease, LeaseFilter, Leases, Renewal, Renewed};
pub use migrations::Migrate;
pub use nonces::{
    Batch, CONFIRMED_AT_ONCE_MAX, CONFIRMED_HOLES_MAX, CONFIRMED_NONCES_MAX, Confirmation, GrantAnswer,
    HeldNonce, KeptKey, KeyScope, NewKey, NonceFilter, NonceRecord, Nonces, OverdueSigners, Read,
    SignerRecord, Verdict,
};
pub use outage::LastTold;
pub use pause::jittered;
pub use plans::{
    Author, CheckpointRecord, FoundTask, KeptPlan, KeptRetry, LockBreak, Locker, NewPlan, PlanAccess,
    PlanBatch, PlanCount, PlanCreated, PlanFilter, PlanRecord, PlanVerdict, Plans, RetryKey, TaskRecord,
    TimedEvent,
};
pub use recover::{
    Margins, RECOVERED_MARK_MS, RECOVERED_NUMBERS_MAX, RECOVERED_NUMBERS_MIN, RECOVERED_RANGES,
    RECOVERED_TOKENS, Recovery, let_new_signers_grant, recover, try_recovery,
};
pub use sessions::{
    LAST_NODE_PLACES, Opened, Opener, SessionAccess, SessionCounts, SessionFilter, SessionRecord,
    SessionResult, SessionResults, Sessions,
};
pub use settings::Settings;
pub use tls_files::{TlsFile, TlsFiles};
use tokio::runtime;
pub use train::{Fate, LeaseClock, Link};
pub use transfers::{NODES_NOTE_BYTES_MAX, TRANSFER_JOBS_MAX, Transfers};
pub use unwritable::Unwritable;

/// How the ledger is reached, and what it is allowed to take.
#[derive(Clone, Debug)]
pub struct Options {
    /// `sqlite:path`, `sqlite://path` or `postgres://…`.
    pub url: String,
    /// Connections to the server that requests borrow, or readers of the SQLite file; half of them read a few rows by their keys.
    /// Renewals, and reads of instances' leases, have more.
    pub connections_max: u32,
    /// How long to go on trying to reach it at the start, in milliseconds. A migration, also another process's, takes as long as
    /// it takes.
    pub connect_timeout_ms: u64,
    /// How long one call may take, in milliseconds.
    pub call_timeout_ms: u64,
    /// The id of the only ledger that may be opened ([`Identity::cluster`]); `None` for any. With it, nothing is made or changed
    /// in a database that has another ledger or none: that is refused as [`Error::Migration`].
    pub expected_id: Option<String>,
}

/// Which database it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file in the same process.
    Sqlite,
    /// A server.
    Postgres,
}

impl Kind {
    /// Which database a URL means.
    ///
    /// # Errors
    /// [`Error::Address`] for any other scheme.
    pub fn of(url: &str) -> Result<Self> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("sqlite") => Ok(Self::Sqlite),
            Some("postgres" | "postgresql") => Ok(Self::Postgres),
            _ => Err(Error::Address(
                "the database URL must be sqlite:PATH or postgres://USER@HOST/DATABASE".to_owned(),
            )),
        }
    }

    /// Whether it is a server, which may be on another machine.
    #[must_use]
    pub const fn is_server(self) -> bool {
        matches!(self, Self::Postgres)
    }

    /// The name in logs and in the ready line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }
}

/// Whether nobody on the way can read or change what is said to the database: it is on this machine, or TLS verifies
/// that it is the server that the URL names.
///
/// # Errors
/// [`Error::Address`] for a URL that cannot be used.
pub fn is_private(url: &str) -> Result<bool> {
    match Kind::of(url)? {
        Kind::Sqlite => Ok(true),
        Kind::Postgres => store::postgres::is_private(url),
    }
}

/// The parameters of a ledger's URL that PostgreSQL's own client library has, and that have no effect.
///
/// # Errors
/// As for [`Kind::of`].
pub fn unused_parameters(url: &str) -> Result<Vec<String>> {
    Ok(match Kind::of(url)? {
        Kind::Postgres => store::postgres::unused_parameters(url),
        Kind::Sqlite => Vec::new(),
    })
}

/// The files of TLS that connections by this URL read in any case. What the URL leaves open, the environment of PostgreSQL's own
/// clients decides (`PGSSLROOTCERT`, `PGSSLCERT`, `PGSSLKEY`), as for the connections.
///
/// # Errors
/// [`Error::Address`] for a URL that cannot be used. Whether the files can be used is not looked at.
pub fn tls_files(url: &str) -> Result<TlsFiles> {
    match Kind::of(url)? {
        Kind::Sqlite => Ok(TlsFiles::default()),
        Kind::Postgres => store::postgres::tls_files(url),
    }
}

/// Where the database is that a URL means, without the password: two databases have two addresses, wherever this process runs.
///
/// # Errors
/// [`Error::Address`] for a URL that cannot be used; [`Error::File`] where the folder that a path is relative to is not known.
pub fn address(url: &str) -> Result<String> {
    match Kind::of(url)? {
        Kind::Sqlite => store::sqlite::address(url),
        Kind::Postgres => store::postgres::address(url),
    }
}

/// What may become of an embedded ledger for the file system that it is on, or would be made on, with what to do; `None` where
/// nothing is known against it, for a server, and for a URL that cannot be used.
#[must_use]
pub fn place_warning(url: &str) -> Option<String> {
    match Kind::of(url).ok()? {
        Kind::Sqlite => store::sqlite::place_warning(url),
        Kind::Postgres => None,
    }
}

/// What [`Ledger::check`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Settings under which commits may be lost with the machine (I5), each with what it should be. A warning that concerns only
    /// the commits of others says so.
    pub durability_warnings: Vec<String>,
    /// Why it takes no writes at the moment; `None` where writes are not known to fail.
    pub unwritable: Option<Unwritable>,
}

/// The whole ledger.
#[async_trait::async_trait]
pub trait Ledger:
    Leases + Nonces + Jobs + Sessions + Plans + Ids + Instances + Transfers + Settings + Audits + Bulks
{
    /// Which database it is.
    fn kind(&self) -> Kind;

    /// Asks whether it answers, whether it is set to keep what is committed, and, once a write has failed for a reason of
    /// [`Unwritable`] other than a corrupt file, whether it takes writes again. Logs each warning that the check before did not
    /// find.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    async fn check(&self) -> Result<Health>;

    /// Why it takes no writes, by a call of the last 10 s that failed, [`Self::check`] included; `None` where none did for a
    /// reason of [`Unwritable`]. Asks nobody.
    fn unwritable(&self) -> Option<Unwritable>;

    /// Looks whether the ledger is the one that was known, and as far; and raises its position if so. From then on
    /// nothing is granted by one that is behind it. A SQLite file that, or whose log, is seen to have lost its name counts as
    /// gone back until it is opened again: all but looks then gets [`Error::Unavailable`]. On PostgreSQL all but looks then
    /// reaches the server alone that this look has accepted, or the one that was known.
    ///
    /// # Errors
    /// [`Error`]; repeating is harmless.
    async fn witness(&self, known: Option<&Identity>) -> Result<Witness>;

    /// Connections in use now, for the metric.
    fn connections_in_use(&self) -> u32;

    /// Ends all connections; calls under way are finished first.
    async fn close(&self);
}

/// A ledger to share.
pub type Handle = Arc<dyn Ledger>;

/// Reaches the ledger, brings its tables up to date, and hands it out.
///
/// On SQLite this takes the file for this process alone, creates it if need be, and ends the leases that earlier
/// processes left, except tenants' locks.
///
/// # Errors
/// [`Error::Unavailable`] when it could not be reached within `connect_timeout_ms`;
/// [`Error::InUse`], [`Error::Migration`], [`Error::Address`], [`Error::File`] and [`Error::Refused`]
/// when trying again would not help.
pub async fn open(options: &Options) -> Result<Handle> {
    let here = runtime::Handle::current();
    open_on(options, &[here.clone(), here], Migrate::Auto).await
}

/// As [`open`], with a committer of jobs on each of these runtimes, which must outlive the ledger: a batch of jobs is
/// committed on the one that its lane [belongs to](domain::LaneId::shard). The SQLite file has one writer, and uses the
/// first alone. Everything else runs where this is called. With [`Migrate::Check`] nothing is created, and older tables are
/// refused.
///
/// # Errors
/// As [`open`].
///
/// # Panics
/// If `job_committers` is empty.
pub async fn open_on(
    options: &Options,
    job_committers: &[runtime::Handle],
    migrate: Migrate,
) -> Result<Handle> {
    Ok(Arc::new(store::Store::open(options, job_committers, migrate).await?))
}

/// Brings the tables up to date and leaves again. With [`Migrate::Check`] nothing is changed, and older tables are refused.
///
/// # Errors
/// As [`open`].
pub async fn migrate(options: &Options, migrate: Migrate) -> Result<()> {
    match Kind::of(&options.url)? {
        Kind::Sqlite => store::sqlite::migrate_only(options, migrate).await,
        Kind::Postgres => store::postgres::migrate_only(options, migrate).await,
    }
}
