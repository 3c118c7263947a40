//! Private servers for tests and load: PostgreSQL, Redis, alone and as a Cluster, and a development chain, each on a free
//! port of 127.0.0.1 with its files in a temporary directory, gone when dropped.
//!
//! Nothing here touches a server that was running before.

mod anvil;
mod keyspace;
mod pgbouncer;
mod postgres;
mod redis;
mod redis_cluster;

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use parking_lot::Mutex;

use crate::process::{Process, tail};
pub use anvil::Anvil;
pub use keyspace::{Keyspace, URL_VARIABLE as REDIS_URL_VARIABLE};
pub use pgbouncer::{PgBouncer, PoolMode};
pub use postgres::{
    Database, Postgres, Statements, TEMPLATE_VARIABLE as POSTGRES_TEMPLATE_VARIABLE,
    URL_VARIABLE as POSTGRES_URL_VARIABLE,
};
pub use redis::Redis;
pub use redis_cluster::{
    DOOR_VARIABLE as REDIS_CLUSTER_DOOR_VARIABLE, Door as RedisClusterDoor, HalfMove, RedisCluster,
};

/// The first file called `program` in the directories of `PATH`.
fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Waits until a server takes connections.
fn until_it_listens(name: &str, process: &Process, address: SocketAddr, log: &Path) -> Result<()> {
    let give_up = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_err() {
        if process.exited().is_some() || Instant::now() > give_up {
            bail!("{name} does not start:\n{}", tail(log, 2_000));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The server that all tests of this process share: the one that runs, or a new one. It ends with the last of them.
fn shared<T>(slot: &Mutex<Weak<T>>, start: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
    let mut slot = slot.lock();
    if let Some(running) = slot.upgrade() {
        return Ok(running);
    }
    let started = Arc::new(start()?);
    *slot = Arc::downgrade(&started);
    Ok(started)
}

#[cfg(test)]
mod tests;
