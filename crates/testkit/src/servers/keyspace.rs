//! Names of a test's own on the Redis servers that the tests of a run, or of a process, share.

use std::sync::{Arc, Weak};

use anyhow::Result;
use parking_lot::Mutex;

use super::redis::Redis;
use super::redis_cluster::{self, RedisCluster};
use super::shared;

/// Where tests look for a server that somebody else started for the whole run.
pub const URL_VARIABLE: &str = "FENCEPOST_TEST_REDIS_URL";

/// Names of a test's own on a Redis that others use too.
#[derive(Debug)]
pub struct Keyspace {
    url: String,
    prefix: String,
    /// Keeps servers of this process's own alive; `None` where somebody else runs them.
    _servers: Option<Servers>,
}

#[derive(Debug)]
#[expect(dead_code, reason = "held for what their ends do")]
enum Servers {
    Single(Arc<Redis>),
    Cluster(Arc<RedisCluster>),
}

impl Keyspace {
    /// On the server that serves the whole test run (named by `FENCEPOST_TEST_REDIS_URL`), or else on one that
    /// all tests of this process share and that ends with the last of them.
    ///
    /// # Errors
    /// No server can be started. A missing Redis is an error, never a skip.
    pub fn fresh() -> Result<Self> {
        static SHARED: Mutex<Weak<Redis>> = Mutex::new(Weak::new());
        if let Ok(url) = std::env::var(URL_VARIABLE) {
            return Ok(Self::on(url, None));
        }
        let server = shared(&SHARED, Redis::start)?;
        Ok(Self::on(server.url(), Some(Servers::Single(server))))
    }

    /// The same on a Redis Cluster, which is started for the first test that asks.
    ///
    /// # Errors
    /// As [`Self::fresh`].
    pub fn on_cluster() -> Result<Self> {
        static SHARED: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());
        if let Some(url) = redis_cluster::url_of_the_run()? {
            return Ok(Self::on(url, None));
        }
        let cluster = shared(&SHARED, RedisCluster::start)?;
        Ok(Self::on(cluster.url(), Some(Servers::Cluster(cluster))))
    }

    fn on(url: String, servers: Option<Servers>) -> Self {
        Self { url, prefix: format!("t{:016x}:", rand::random::<u64>()), _servers: servers }
    }

    /// The URL of the servers.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What stands before every name.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}
