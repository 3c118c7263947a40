//! Several instances on one PostgreSQL of their own, each on a fixed port, to be hurt and healed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::sync::Mutex;

use crate::http::Client;
use crate::instance::{Instance, Setup};
use crate::process::Signal;
use crate::servers::{Database, Postgres};

/// The instances and their database.
#[derive(Debug)]
pub struct Fleet {
    // In this order: instances end before the database does.
    instances: Vec<Mutex<Instance>>,
    urls: Vec<String>,
    server: Option<Arc<Postgres>>,
    database: Database,
}

impl Fleet {
    /// Starts `count` instances at once, in the mode named, on a PostgreSQL that nobody else uses, so that
    /// it may be stopped. `shape` adds to how each is started.
    ///
    /// # Errors
    /// A server or an instance does not start.
    pub async fn start(mode: &str, count: usize, shape: impl Fn(Setup) -> Setup) -> Result<Self> {
        let server = tokio::task::spawn_blocking(Postgres::start).await??;
        let server = Arc::new(server);
        let database = server.database()?;
        let mut fleet = Self::on(database, mode, count, shape).await?;
        fleet.server = Some(server);
        Ok(fleet)
    }

    /// Starts `count` instances at once on a database whose server is left alone.
    ///
    /// # Errors
    /// An instance does not start.
    pub async fn on(
        database: Database,
        mode: &str,
        count: usize,
        shape: impl Fn(Setup) -> Setup,
    ) -> Result<Self> {
        let mut starting = Vec::new();
        for _ in 0..count {
            let setup = shape(Setup::in_mode(mode)?.database(database.url()));
            starting.push(tokio::spawn(setup.start()));
        }
        let (mut instances, mut urls) = (Vec::new(), Vec::new());
        for instance in starting {
            let instance = instance.await??;
            urls.push(instance.url().to_owned());
            instances.push(Mutex::new(instance));
        }
        Ok(Self { instances, urls, server: None, database })
    }

    /// `http://ADDR` of each instance; they keep them.
    #[must_use]
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// The database.
    #[must_use]
    pub const fn database(&self) -> &Database {
        &self.database
    }

    /// One instance, locked against other faults meanwhile.
    pub async fn instance(&self, index: usize) -> tokio::sync::MutexGuard<'_, Instance> {
        self.instances[index].lock().await
    }

    /// Kills an instance, waits, and starts it again.
    ///
    /// # Errors
    /// It does not start again.
    pub async fn kill_and_restart(&self, index: usize, down: Duration) -> Result<()> {
        let mut instance = self.instance(index).await;
        instance.end_by(Signal::Kill, Duration::from_secs(10)).await?;
        tokio::time::sleep(down).await;
        instance.start().await
    }

    /// Freezes an instance for a while.
    ///
    /// # Errors
    /// It cannot be signalled.
    pub async fn pause(&self, index: usize, length: Duration) -> Result<()> {
        let instance = self.instance(index).await;
        instance.process().signal(Signal::Stop)?;
        tokio::time::sleep(length).await;
        instance.process().signal(Signal::Continue)
    }

    /// Stops the database as a crash would, waits, and starts it again.
    ///
    /// # Errors
    /// It is not ours, or does not start again.
    pub async fn restart_database(&self, down: Duration) -> Result<()> {
        let server = Arc::clone(self.server.as_ref().context("this database is not ours to stop")?);
        tokio::task::spawn_blocking(move || {
            server.stop_immediate()?;
            std::thread::sleep(down);
            server.boot()
        })
        .await?
    }

    /// Waits until every instance says that it is ready to serve.
    ///
    /// # Errors
    /// One does not within `limit`; its log is in the message.
    pub async fn all_ready(&self, client: &Client, limit: Duration) -> Result<()> {
        let give_up = Instant::now() + limit;
        for (index, url) in self.urls.iter().enumerate() {
            while let Err(error) = client.get(&format!("{url}/readyz")).await {
                if Instant::now() > give_up {
                    bail!(
                        "instance {index} is not ready after {limit:?}: {error:#}\n{}",
                        self.instance(index).await.log()
                    );
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// Lines of the instances' logs that tell of a defect.
    pub async fn defects_logged(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for instance in &self.instances {
            let log = instance.lock().await.whole_log();
            lines.extend(log.lines().filter(|line| line.contains("panicked")).map(str::to_owned));
        }
        lines
    }
}
