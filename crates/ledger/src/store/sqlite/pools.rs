//! The connections to the SQLite file, and whether it and its log still have their names. SQLite opens a file by its name, and
//! goes on in one that was moved away, removed or replaced. Once one of the two was seen to have lost its name, the ledger is
//! away for good, but for the looks at its identity: what would be written there is lost, and a new connection would be to
//! another file. It is opened again when the process is started again.

use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::sqlite::{
    SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Sqlite, SqliteConnection, SqlitePool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

use super::file_error;
use crate::sql::sql_file;
use crate::store::failure::read_failed;
use crate::store::{Way, lent};
use crate::{Error, Options, Result};

/// Connections for reads of instances' leases: one that takes long keeps no other waiting.
const VITAL_READERS: u32 = 2;
/// SQLite's log begins anew once all of it is in the file and nobody reads it any more. One that has grown longer by then, as
/// while the file is copied, is cut to so many bytes.
pub(super) const LOG_BYTES_MAX: u64 = 64 << 20;
/// Steps of a statement between two looks whether its time has passed.
const STEPS_BETWEEN_LOOKS: i32 = 1_000;

/// The connections to the file. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pools {
    /// One connection: SQLite has one writer at a time, and waiting for it in order is better than being told BUSY.
    pub(super) writer: SqlitePool,
    /// The turn of writes: the one that has it writes or waits for the writer, and all others wait for their turns. Renewals
    /// need no turn, so that one such write at most is ahead of a renewal.
    pub(super) write_turns: Arc<Semaphore>,
    /// The turn of acquires, which therefore come before most writes.
    acquire_turns: Arc<Semaphore>,
    /// For lists and other reads that may take long.
    readers: SqlitePool,
    /// For [`Way::KeyReads`].
    by_keys: SqlitePool,
    /// For [`Way::VitalReads`]: they never queue behind requests.
    vital: SqlitePool,
    /// One connection that can write too, opened at the start and never again. It is lent once the file has lost its name: it is
    /// surely of this file, also where the writer was closed meanwhile.
    spare: SqlitePool,
    file: Arc<OpenFile>,
}

/// A connection that is lent for a call.
pub(in crate::store) struct Lent {
    connection: PoolConnection<Sqlite>,
    is_spare: bool,
    /// Ends with the loan of the connection.
    _turn: Option<OwnedSemaphorePermit>,
}

/// The file that was opened at the start.
struct OpenFile {
    path: PathBuf,
    id: FileId,
    /// SQLite's log, which is beside the file as long as a connection is open: what was committed last is there alone.
    log_path: PathBuf,
    /// Noted by the first look that finds it.
    log_id: OnceLock<FileId>,
    /// It or its log was seen to have lost its name.
    has_lost_name: AtomicBool,
    /// How many connections were opened.
    connections_opened: Arc<AtomicU64>,
}

/// Which file it is: the device and the number there.
type FileId = (u64, u64);

impl Pools {
    /// Opens the file, and creates it if need be.
    ///
    /// # Errors
    /// [`Error::Unavailable`] also where another process has it locked for [`Options::connect_timeout_ms`], or its disk is full.
    pub(super) async fn open(path: PathBuf, options: &Options) -> Result<Self> {
        let call_timeout = Duration::from_millis(options.call_timeout_ms);
        let connections_opened = Arc::<AtomicU64>::default();
        let pool = |connections_max| {
            let opened = Arc::clone(&connections_opened);
            SqlitePoolOptions::new()
                .max_connections(connections_max)
                .acquire_timeout(call_timeout)
                // A call that waits for a connection says so itself.
                .acquire_slow_threshold(call_timeout * 2)
                .test_before_acquire(false)
                // What each one has in memory is bounded, and so is their number. A new one might be to another file.
                .max_lifetime(None::<Duration>)
                .idle_timeout(None::<Duration>)
                .after_connect(move |_, _| {
                    opened.fetch_add(1, Ordering::AcqRel);
                    Box::pin(async { Ok(()) })
                })
        };
        let connect = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .auto_vacuum(SqliteAutoVacuum::None)
            .pragma("journal_size_limit", LOG_BYTES_MAX.to_string())
            .busy_timeout(call_timeout)
            .disable_statement_logging();
        // Another process may have it locked for a while, for all others or for those that write; and the first connection reads
        // the log that a process has left which was killed, however long that takes. The pools wait no longer than a call may
        // take.
        let patience = Duration::from_millis(options.connect_timeout_ms);
        let first = connect.clone().busy_timeout(patience);
        let mut first = SqliteConnection::connect_with(&first).await.map_err(read_failed)?;
        wait_for_writers(&mut first).await.map_err(read_failed)?;
        let writer = pool(1)
            .after_release(|connection, _| Box::pin(is_out_of_transactions(connection)))
            .connect_with(connect.clone())
            .await
            .map_err(read_failed)?;
        first.close().await.map_err(read_failed)?;
        let id = file_id(&path).map_err(|source| file_error(&path, source))?;
        // A later connection is to find the file, and makes none.
        let connect = connect.create_if_missing(false);
        writer.set_connect_options(connect.clone());
        let spare = pool(1).connect_with(connect.clone()).await.map_err(read_failed)?;
        let connect = connect.read_only(true);
        let by_keys = (options.connections_max / 2).max(1);
        let [readers, by_keys, vital] = [(options.connections_max - by_keys).max(1), by_keys, VITAL_READERS]
            .map(|connections_max| pool(connections_max).connect_lazy_with(connect.clone()));
        // Beside the file itself, also where a link leads to it.
        let mut log_path = path.canonicalize().map_err(|source| file_error(&path, source))?.into_os_string();
        log_path.push("-wal");
        let (log_path, log_id) = (PathBuf::from(log_path), OnceLock::new());
        let has_lost_name = AtomicBool::new(false);
        let file = OpenFile { path, id, log_path, log_id, has_lost_name, connections_opened };
        let turns = || Arc::new(Semaphore::new(1));
        let (write_turns, acquire_turns) = (turns(), turns());
        let file = Arc::new(file);
        let pools = Self { writer, write_turns, acquire_turns, readers, by_keys, vital, spare, file };
        // The spare connection is to be of the same file as the writer.
        if pools.is_in_place().await { Ok(pools) } else { Err(away()) }
    }

    /// Lends a connection, and waits for a turn and the connection no longer than a call may take.
    ///
    /// # Errors
    /// [`Error::Unavailable`], also for all but looks once the file has lost its name.
    pub(in crate::store) async fn lend(&self, way: Way) -> Result<Lent> {
        if self.has_lost_name() {
            return match way {
                Way::VitalReads | Way::Looks => {
                    let connection = self.spare.acquire().await.map_err(read_failed)?;
                    Ok(Lent { connection, is_spare: true, _turn: None })
                }
                Way::Reads | Way::KeyReads | Way::Writes | Way::Acquires | Way::VitalWrites => Err(away()),
            };
        }
        let (pool, turns) = match way {
            Way::Reads => (&self.readers, None),
            Way::KeyReads => (&self.by_keys, None),
            Way::VitalReads => (&self.vital, None),
            Way::Writes => (&self.writer, Some(&self.write_turns)),
            Way::Acquires => (&self.writer, Some(&self.acquire_turns)),
            Way::VitalWrites | Way::Looks => (&self.writer, None),
        };
        let deadline = tokio::time::Instant::now() + pool.options().get_acquire_timeout();
        let turn = match turns {
            Some(turns) => Some(self.turn(turns, deadline).await?),
            None => None,
        };
        Ok(Lent { connection: self.connection(pool, deadline).await?, is_spare: false, _turn: turn })
    }

    /// Waits until all that asked for such a turn before have had theirs.
    async fn turn(
        &self,
        turns: &Arc<Semaphore>,
        deadline: tokio::time::Instant,
    ) -> Result<OwnedSemaphorePermit> {
        let turn = timeout_at(deadline, Arc::clone(turns).acquire_owned())
            .await
            .map_err(|_| read_failed(sqlx::Error::PoolTimedOut))?
            .map_err(|_| read_failed(sqlx::Error::PoolClosed))?;
        // The file may have lost its name meanwhile.
        if self.has_lost_name() { Err(away()) } else { Ok(turn) }
    }

    async fn connection(
        &self,
        pool: &SqlitePool,
        deadline: tokio::time::Instant,
    ) -> Result<PoolConnection<Sqlite>> {
        if let Some(connection) = pool.try_acquire() {
            return Ok(connection);
        }
        let opened = self.connections_opened();
        if pool.size() < pool.options().get_max_connections() && !self.is_in_place().await {
            return Err(away());
        }
        let connection = timeout_at(deadline, pool.acquire())
            .await
            .map_err(|_| read_failed(sqlx::Error::PoolTimedOut))?
            .map_err(read_failed)?;
        if self.connections_opened() != opened && !self.is_in_place().await {
            // It may be to another file. If it were closed, SQLite would write the log of this one into that one.
            std::mem::forget(connection.detach());
            return Err(away());
        }
        Ok(connection)
    }

    pub(in crate::store) fn in_use(&self) -> u32 {
        [&self.writer, &self.readers, &self.by_keys, &self.vital].into_iter().map(lent).sum()
    }

    /// Looks whether the file that was opened and its log have their names, and have had them at each look before.
    pub(in crate::store) async fn is_in_place(&self) -> bool {
        if self.has_lost_name() {
            return false;
        }
        let file = Arc::clone(&self.file);
        // It fails where the runtime ends.
        let is_in_place = tokio::task::spawn_blocking(move || file.has_names()).await.unwrap_or(true);
        if !is_in_place {
            self.file.has_lost_name.store(true, Ordering::Release);
        }
        is_in_place
    }

    /// Whether a look has found that the file or its log lost its name.
    pub(in crate::store) fn has_lost_name(&self) -> bool {
        self.file.has_lost_name.load(Ordering::Acquire)
    }

    fn connections_opened(&self) -> u64 {
        self.file.connections_opened.load(Ordering::Acquire)
    }

    pub(in crate::store) async fn close(&self) {
        for readers in [&self.readers, &self.by_keys, &self.vital] {
            readers.close().await;
        }
        self.writer.close().await;
        // SQLite leaves the log of a file that has lost its name, and would take it for the log of the one that has it next.
        if !self.is_in_place().await
            && let Err(error) = self.empty_log().await
        {
            let path = self.file.path.display();
            tracing::warn!(%error, %path, "the log of a file that has lost its name is left");
        }
        self.spare.close().await;
    }

    async fn empty_log(&self) -> Result<()> {
        let mut spare = self.spare.acquire().await.map_err(read_failed)?;
        let empty = sqlx::query(sql_file!("sqlite-only", "log_empty"));
        empty.execute(&mut *spare).await.map_err(read_failed)?;
        Ok(())
    }
}

impl OpenFile {
    /// Whether it and its log have their names. One that cannot be looked at has.
    fn has_names(&self) -> bool {
        let is_it = |found: io::Result<FileId>, known: &FileId| match found {
            Ok(found) => found == *known,
            Err(error) => error.kind() != ErrorKind::NotFound,
        };
        if !is_it(file_id(&self.path), &self.id) {
            return false;
        }
        let log = file_id(&self.log_path);
        match self.log_id.get() {
            Some(known) => is_it(log, known),
            None => log.map_or(true, |found| *self.log_id.get_or_init(|| found) == found),
        }
    }
}

impl Lent {
    /// Has SQLite end what is read here once the deadline has passed, until another one is set. Each read sets its own, and none
    /// removes it: that would take as long as a short read.
    pub(in crate::store) async fn end_reads_at(&mut self, deadline: Instant) -> sqlx::Result<()> {
        // It would end writes of the spare connection, too.
        if !self.is_spare {
            let mut handle = self.connection.lock_handle().await?;
            handle.set_progress_handler(STEPS_BETWEEN_LOOKS, move || Instant::now() < deadline);
        }
        Ok(())
    }
}

impl Deref for Lent {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

fn file_id(path: &Path) -> io::Result<FileId> {
    let found = std::fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// The failure of a call where the file, or its log, has lost its name. As while any ledger is away, nothing is written, and
/// results wait.
fn away() -> Error {
    Error::unavailable(io::Error::new(
        ErrorKind::NotFound,
        "the ledger's file or its log was moved or replaced",
    ))
}

/// Waits until no other connection has the turn to write. A file that can only be read has none.
async fn wait_for_writers(connection: &mut SqliteConnection) -> sqlx::Result<()> {
    connection.begin_with("BEGIN IMMEDIATE").await?.rollback().await
}

/// Whether a connection may be lent again. After a failed write SQLite may have rolled back by itself, and the driver's
/// own ROLLBACK then fails: the driver goes on counting a transaction that is over, and begins no other. Such a
/// connection is closed, and the pool opens a new one.
async fn is_out_of_transactions(connection: &mut SqliteConnection) -> sqlx::Result<bool> {
    if !connection.is_in_transaction() {
        return Ok(true);
    }
    // A ROLLBACK may be on its way to the connection's thread; it is done once that answers.
    connection.ping().await?;
    Ok(!connection.is_in_transaction())
}
