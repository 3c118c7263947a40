//! A private PgBouncer before one database.
//!
//! PgBouncer refuses to run as root. When the harness is root it runs as the user of PostgreSQL's servers.

use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::postgres::{Database, Tools};
use super::{on_path, until_it_listens};
use crate::ports;
use crate::process::{Launch, Process};

/// For how long a client has a process of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// For its whole session.
    Session,
    /// For a transaction.
    Transaction,
    /// For a statement.
    Statement,
}

impl PoolMode {
    const fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
            Self::Statement => "statement",
        }
    }
}

/// A private pooler, killed and removed on drop.
#[derive(Debug)]
pub struct PgBouncer {
    // Before `_dir`: the process ends before its files go.
    _process: Process,
    _dir: TempDir,
    url: String,
}

impl PgBouncer {
    /// Starts one before a database and waits until it takes connections.
    ///
    /// # Errors
    /// PgBouncer is not installed or does not start; its log is in the message.
    pub fn start(database: &Database, mode: PoolMode) -> Result<Self> {
        Self::start_with(database, mode, "")
    }

    /// The same with these lines of its configuration too.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_with(database: &Database, mode: PoolMode, more: &str) -> Result<Self> {
        let (server, name) = database.url().rsplit_once('/').context("a PostgreSQL URL names a database")?;
        let (user, address) = server
            .strip_prefix("postgres://")
            .and_then(|server| server.split_once('@'))
            .context("a PostgreSQL URL names a user and a server")?;
        let (host, server_port) = address.rsplit_once(':').context("a server has a port")?;
        let user = user.split(':').next().unwrap_or_default();
        let port = ports::free()?;
        let mode = mode.name();
        let settings = format!(
            "[databases]\n* = host={host} port={server_port} user={user}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = {mode}\nmax_client_conn = 500\ndefault_pool_size = 100\n{more}\n"
        );
        let dir = TempDir::with_prefix("fencepost-pgbouncer-")?;
        let run_as = Tools::other_user()?;
        let file = dir.path().join("pgbouncer.ini");
        std::fs::write(&file, settings)?;
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700))?;
        if let Some((user, group)) = run_as {
            for path in [dir.path(), &file] {
                chown(path, Some(user), Some(group))?;
            }
        }
        let mut pooler = Command::new(program()?);
        pooler.arg(&file).current_dir(dir.path());
        let log = dir.path().join("server.log");
        let (process, _) = Process::spawn(&Launch { run_as, ..Launch::logging(&pooler, &log) })?;
        until_it_listens("PgBouncer", &process, (Ipv4Addr::LOCALHOST, port).into(), &log)?;
        Ok(Self { _process: process, _dir: dir, url: format!("postgres://{user}@127.0.0.1:{port}/{name}") })
    }

    /// The URL of the database by way of this pooler.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Debian keeps it out of an ordinary user's PATH.
fn program() -> Result<PathBuf> {
    let sbin = Path::new("/usr/sbin/pgbouncer");
    on_path("pgbouncer")
        .or_else(|| sbin.is_file().then(|| sbin.to_owned()))
        .context("pgbouncer is not installed (tests/install does it)")
}
