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

use std::path::PathBuf;

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

#[cfg(test)]
mod tests;
