//! The ledger in a SQLite file: how it is opened and copied, and the lock that keeps other processes out.

mod committer;
mod lock;
mod partial_file;
mod place;
mod pools;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tokio::runtime;

use super::committer::Watches;
use super::failure::write_failed;
use super::{Store, Way};
use crate::folders::{folder_of, keep_folder_of};
use crate::migrations::{self, Migrate, MigrateFailure};
use crate::train::Trains;
use crate::{Error, Options, Result, sql};
use committer::Committer;
pub(super) use lock::FileLock;
use partial_file::PartialFile;
pub(crate) use pools::Pools;

/// Takes the file for this process alone, and creates it if need be.
pub(super) async fn reach(
    options: &Options,
    job_committers: &[runtime::Handle],
    migrate: Migrate,
) -> Result<Store> {
    let path = path(&options.url)?;
    let is_there = is_there(&path)?;
    match migrate {
        _ if options.expected_id.is_some() && !is_there => {
            return Err(no_ledger(&path, migrations::CORRECT_ONE));
        }
        Migrate::Check if !is_there => {
            return Err(no_ledger(&path, "run `fencepost migrate`, or start with --migrate auto"));
        }
        Migrate::Existing | Migrate::CheckExisting if !is_there => {
            return Err(no_ledger(&path, migrations::NAME_ANOTHER));
        }
        _ => {}
    }
    keep_folder_of(&path).map_err(|source| file_error(folder_of(&path), source))?;
    let lock = FileLock::take(&path)?;
    // A file that is reached by a link is locked by its own name, too.
    let lock_of_target = match path.is_symlink() {
        true => Some(FileLock::take(&target(&path).map_err(|source| file_error(&path, source))?)?),
        false => None,
    };
    lock::refuse_other_names(&path)?;
    place::refuse_denied(&path, true)?;
    let pools = Pools::open(path, options).await?;
    settle(&pools, options, migrate).await?;
    let watches = Watches::default();
    let committer = || Committer { pools: pools.clone(), watches: watches.clone() };
    let here = &[runtime::Handle::current()];
    // Committers for the one writer: each kind of work has its own, and all take turns with the writes that are by themselves.
    // Acquires and renewals board before these.
    Ok(Store {
        nonce_trains: Trains::start(here, committer),
        job_trains: Trains::start(&job_committers[..1], committer),
        sequence_trains: Trains::start(here, committer),
        plan_trains: Trains::start(&job_committers[..1], committer),
        result_reads: Default::default(),
        drops_rest: Default::default(),
        key_purge: Default::default(),
        durability_log: Default::default(),
        watches: watches.clone(),
        remembered: Default::default(),
        call_timeout: Duration::from_millis(options.call_timeout_ms),
        pools: super::Pools::Sqlite(pools.clone()),
        _locks: [Some(lock), lock_of_target],
    })
}

/// The file that a link names; made if there is none.
fn target(link: &Path) -> std::io::Result<PathBuf> {
    if !link.exists() {
        std::fs::OpenOptions::new().append(true).create(true).open(link)?;
    }
    link.canonicalize()
}

/// Ends what earlier processes left leased: the lock proves that they are dead.
pub(super) async fn end_leases(pools: &Pools) -> Result<()> {
    let mut connection = pools.lend(Way::Writes).await?;
    let end_all = sqlx::query(sql::sql_file!("sqlite-only", "lease_end_all"));
    end_all.execute(&mut *connection).await.map_err(write_failed)?;
    Ok(())
}

async fn settle(pools: &Pools, options: &Options, migrate: Migrate) -> Result<()> {
    let mut connection = pools.lend(Way::Writes).await?;
    let expected_id = options.expected_id.as_deref();
    let settled = migrations::SQLITE.settle_sqlite(&mut connection, expected_id, migrate).await;
    settled.map_err(|failure| match failure {
        MigrateFailure::Driver(source) => Error::unavailable(source),
        MigrateFailure::Final(error) => error,
    })
}

/// Copies the file into a new one, from one snapshot. The daemon's lock does not matter to a reader. The new file has its name
/// once it is on the disk.
pub(crate) async fn copy(options: &Options, copy: &Path) -> Result<()> {
    let path = path(&options.url)?;
    if !is_there(&path)? {
        return Err(no_ledger(&path, migrations::NAME_ANOTHER));
    }
    lock::refuse_other_names(&path)?;
    place::refuse_denied(&path, false)?;
    let partial = PartialFile::create(copy).map_err(|source| file_error(copy, source))?;
    // SQLite takes a relative path that begins with `file:` for a URI, and writes another file.
    let whole = std::path::absolute(partial.path()).map_err(|source| file_error(copy, source))?;
    let text = whole.to_str().ok_or_else(|| file_error(copy, ErrorKind::InvalidFilename.into()))?;
    let connect = SqliteConnectOptions::new()
        .filename(&path)
        .read_only(true)
        .create_if_missing(false)
        .disable_statement_logging();
    let copied = async {
        let mut source = SqliteConnection::connect_with(&connect).await?;
        sqlx::query(sql::sql_file!("sqlite-only", "backup")).bind(text).execute(&mut source).await?;
        source.close().await
    };
    copied.await.map_err(Error::refused)?;
    partial.finish().map_err(|source| file_error(copy, source))
}

/// Migrates without serving. Takes the file's lock as serving does: a running daemon has its tables.
pub(crate) async fn migrate_only(options: &Options, migrate: Migrate) -> Result<()> {
    let ledger = reach(options, &[runtime::Handle::current()], migrate).await?;
    crate::Ledger::close(&ledger).await;
    Ok(())
}

/// Whether the connection that writes keeps what it commits: `synchronous` is 2 for FULL, 3 for EXTRA.
pub(super) fn durability_warnings((synchronous,): (i64,)) -> Vec<String> {
    if synchronous < 2 {
        return vec![format!("synchronous is {synchronous}, should be 2 (FULL)")];
    }
    Vec::new()
}

fn path(url: &str) -> Result<PathBuf> {
    let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")).unwrap_or_default();
    if path.is_empty() || path.contains(['?', '#']) || path.contains(":memory:") {
        return Err(Error::Address(format!(
            "the database URL {url} names no file; sqlite:./fencepost-data/ledger.db would be right"
        )));
    }
    // SQLite takes such a path for a URI, and opens another file than the one that is locked here.
    if path.starts_with("file:") {
        return Err(Error::Address(format!(
            "the database URL {url} names the file by a URI; name it by its path, as in sqlite:./fencepost-data/ledger.db"
        )));
    }
    if Path::new(path).is_dir() {
        return Err(Error::Address(format!("the database URL {url} names a folder; name a file in it")));
    }
    Ok(PathBuf::from(path))
}

/// What may become of the ledger for the place that it is in; `None` where nothing is known against it.
pub(crate) fn place_warning(url: &str) -> Option<String> {
    place::warning(&path(url).ok()?)
}

/// Where the file is, by its own name: the same before it is made and after.
pub(crate) fn address(url: &str) -> Result<String> {
    let path = path(url)?;
    let whole = without_links(&path).or_else(|_| std::path::absolute(&path));
    Ok(format!("sqlite {}", whole.map_err(|source| file_error(&path, source))?.display()))
}

/// The path without links. What is not there yet is made in its folder, or where the link to it leads.
fn without_links(path: &Path) -> std::io::Result<PathBuf> {
    let missing = match path.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => error,
        done => return done,
    };
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Err(missing) };
    match path.read_link() {
        Ok(target) => without_links(&folder.join(target)),
        Err(_) if folder.as_os_str().is_empty() => Ok(Path::new(".").canonicalize()?.join(name)),
        Err(_) => Ok(without_links(folder)?.join(name)),
    }
}

/// Whether there is a file. One in a folder that this process may not search is not taken for a missing one.
fn is_there(path: &Path) -> Result<bool> {
    path.try_exists().map_err(|source| file_error(path, source))
}

fn no_ledger(path: &Path, advice: &str) -> Error {
    Error::Migration(format!("there is no ledger at {}; {advice}", path.display()))
}

fn file_error(path: &Path, source: std::io::Error) -> Error {
    Error::File { path: path.display().to_string(), source: source.into() }
}

#[cfg(test)]
mod tests;
