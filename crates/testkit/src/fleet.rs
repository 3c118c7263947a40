//! Several instances on one PostgreSQL of their own, each on a fixed port, to be hurt and healed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::Mutex;

use crate::http::Client;
use crate::instance::{Instance, Setup};
use crate::process::Signal;
use crate::proxy::Proxy;
use crate::servers::{Database, Postgres, Redis};

/// How long an instance may take to stop: its 30 s, and some.
const STOP_LIMIT: Duration = Duration::from_secs(45);

/// What a fleet is made of.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// `basic` or `worker-queue`.
    pub mode: String,
    /// How many instances.
    pub instances: usize,
    /// With a private Redis.
    pub redis: bool,
    /// Each instance reaches PostgreSQL and Redis through proxies of its own, so that it can be cut off.
    pub cuts: bool,
    /// Two more instances that the Redis does not join with the others: one without Redis, and one on another.
    pub islands: bool,
    /// PostgreSQL counts its statements.
    pub counting: bool,
    /// Variables that each instance is started with.
    pub env: Vec<(String, String)>,
    /// The binary that the instances run; `None` for the one that lies in the build directory.
    pub binary: Option<PathBuf>,
}

impl Blueprint {
    /// So many instances in a mode, on PostgreSQL alone, with nothing between.
    #[must_use]
    pub fn new(mode: &str, instances: usize) -> Self {
        Self {
            mode: mode.to_owned(),
            instances,
            redis: false,
            cuts: false,
            islands: false,
            counting: false,
            env: Vec::new(),
            binary: None,
        }
    }

    /// The same, with a variable for each instance.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }
}

/// The ways of one instance.
#[derive(Debug)]
struct Ways {
    ledger: Proxy,
    bus: Option<Proxy>,
}

/// The instances and their servers.
#[derive(Debug)]
pub struct Fleet {
    // In this order: instances end before the servers do.
    instances: Vec<Mutex<Instance>>,
    urls: Vec<String>,
    ways: Vec<Ways>,
    redis: Option<Arc<Redis>>,
    /// That of an island.
    other_redis: Option<Arc<Redis>>,
    server: Option<Arc<Postgres>>,
    database: Database,
    blueprint: Blueprint,
}

/// A server that one instance can be cut off from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// PostgreSQL.
    Ledger,
    /// Redis.
    Bus,
}

impl Fleet {
    /// Starts what the blueprint says, on a PostgreSQL that nobody else uses, so that it may be stopped.
    ///
    /// # Errors
    /// A server or an instance does not start.
    pub async fn build(blueprint: Blueprint) -> Result<Self> {
        let start = if blueprint.counting { Postgres::start_counting } else { Postgres::start };
        let server = Arc::new(tokio::task::spawn_blocking(start).await??);
        let database = server.database()?;
        let redis = match blueprint.redis {
            true => Some(Arc::new(tokio::task::spawn_blocking(Redis::start).await??)),
            false => None,
        };
        let mut fleet = Self { redis, server: Some(server), ..Self::empty(database, blueprint) };
        fleet.launch(fleet.blueprint.instances, |setup| setup).await?;
        if fleet.blueprint.islands {
            let other = Arc::new(tokio::task::spawn_blocking(Redis::start).await??);
            for redis in [None, Some(Arc::clone(&other))] {
                let setup = fleet.setup(redis.as_deref()).await?;
                fleet.add(setup.start().await?);
            }
            fleet.other_redis = Some(other);
        }
        Ok(fleet)
    }

    /// Starts `count` instances at once, in the mode named, on a PostgreSQL that nobody else uses, so that
    /// it may be stopped. `shape` adds to how each is started.
    ///
    /// # Errors
    /// A server or an instance does not start.
    pub async fn start(mode: &str, count: usize, shape: impl Fn(Setup) -> Setup) -> Result<Self> {
        let server = Arc::new(tokio::task::spawn_blocking(Postgres::start).await??);
        let mut fleet = Self::on(server.database()?, mode, count, shape).await?;
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
        let mut fleet = Self::empty(database, Blueprint::new(mode, count));
        fleet.launch(count, shape).await?;
        Ok(fleet)
    }

    /// Without instances and without servers of its own.
    fn empty(database: Database, blueprint: Blueprint) -> Self {
        Self {
            instances: Vec::new(),
            urls: Vec::new(),
            ways: Vec::new(),
            redis: None,
            other_redis: None,
            server: None,
            database,
            blueprint,
        }
    }

    async fn launch(&mut self, count: usize, shape: impl Fn(Setup) -> Setup) -> Result<()> {
        let mut starting = Vec::new();
        let redis = self.redis.clone();
        for _ in 0..count {
            let setup = self.setup(redis.as_deref()).await?;
            starting.push(tokio::spawn(shape(setup).start()));
        }
        for instance in starting {
            let instance = instance.await??;
            self.add(instance);
        }
        Ok(())
    }

    fn add(&mut self, instance: Instance) {
        self.urls.push(instance.url().to_owned());
        self.instances.push(Mutex::new(instance));
    }

    /// How the next instance is to be started, on this Redis or none; its ways are laid.
    async fn setup(&mut self, redis: Option<&Redis>) -> Result<Setup> {
        let mut setup = Setup::in_mode(&self.blueprint.mode)?;
        for (key, value) in &self.blueprint.env {
            setup = setup.env(key, value);
        }
        if let Some(binary) = &self.blueprint.binary {
            setup = setup.binary(binary);
        }
        if !self.blueprint.cuts {
            setup = setup.database(self.database.url());
            return Ok(match redis {
                Some(redis) => setup.arg("--redis-url").arg(&redis.url()),
                None => setup,
            });
        }
        let server = self.server.as_ref().context("only a database of ours can be cut off")?;
        let ledger = Proxy::start(server.address()).await?;
        let port = |address: std::net::SocketAddr| format!(":{}/", address.port());
        let url = self.database.url().replace(&port(server.address()), &port(ledger.address()));
        setup = setup.database(&url);
        let mut bus = None;
        if let Some(redis) = redis {
            let proxy = Proxy::start(redis.address()).await?;
            setup = setup.arg("--redis-url").arg(&format!("redis://{}/", proxy.address()));
            bus = Some(proxy);
        }
        self.ways.push(Ways { ledger, bus });
        Ok(setup)
    }

    /// Starts one more instance like the others; its URL.
    ///
    /// # Errors
    /// It does not start.
    pub async fn join(&mut self) -> Result<String> {
        self.launch(1, |setup| setup).await?;
        self.urls.last().cloned().context("it was just added")
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

    /// The processes of PostgreSQL and of Redis, of those that are this fleet's own.
    #[must_use]
    pub fn server_pids(&self) -> (Option<u32>, Option<u32>) {
        let postgres = self.server.as_ref().and_then(|server| server.pid());
        (postgres, self.redis.as_ref().and_then(|redis| redis.pid()))
    }

    /// One instance, locked against other faults meanwhile.
    pub async fn instance(&self, index: usize) -> tokio::sync::MutexGuard<'_, Instance> {
        self.instances[index].lock().await
    }

    /// Which instance has this id now.
    pub async fn find(&self, id: &str) -> Option<usize> {
        for (index, instance) in self.instances.iter().enumerate() {
            let instance = instance.lock().await;
            if instance.is_started() && instance.ready().instance == id {
                return Some(index);
            }
        }
        None
    }

    /// Kills an instance, waits, and starts it again.
    ///
    /// # Errors
    /// It had ended by itself, or does not start again.
    pub async fn kill_and_restart(&self, index: usize, down: Duration) -> Result<()> {
        let mut instance = self.instance(index).await;
        ensure!(
            instance.process().exited().is_none(),
            "instance {index} ended by itself:\n{}",
            instance.log()
        );
        instance.end_by(Signal::Kill, Duration::from_secs(10)).await?;
        tokio::time::sleep(down).await;
        instance.start().await
    }

    /// Tells an instance to stop, waits, and starts it again.
    ///
    /// # Errors
    /// It does not stop as it should, or does not start again.
    pub async fn stop_and_restart(&self, index: usize, down: Duration) -> Result<()> {
        let mut instance = self.instance(index).await;
        let status = instance.end_by(Signal::Terminate, STOP_LIMIT).await?;
        ensure!(status.success(), "instance {index} stopped with {status}:\n{}", instance.log());
        tokio::time::sleep(down).await;
        instance.start().await
    }

    /// Tells an instance to stop, and starts another binary in its place.
    ///
    /// # Errors
    /// As for [`Self::stop_and_restart`].
    pub async fn replace_binary(&self, index: usize, binary: &Path) -> Result<()> {
        self.instance(index).await.replace_binary(binary);
        self.stop_and_restart(index, Duration::ZERO).await
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

    /// Cuts one instance off from a server for a while: connections dropped, new ones refused. Nothing happens to an island
    /// that has no such server.
    ///
    /// # Errors
    /// It reaches that server without a proxy.
    pub async fn cut(&self, index: usize, link: Link, length: Duration) -> Result<()> {
        let Some(proxy) = self.proxy(index, link)? else { return Ok(()) };
        proxy.cut().await?;
        tokio::time::sleep(length).await;
        proxy.heal().await
    }

    /// Holds back for a while all that one instance and a server say to each other, as for [`Self::cut`].
    ///
    /// # Errors
    /// It reaches that server without a proxy.
    pub async fn hold_back(&self, index: usize, link: Link, length: Duration) -> Result<()> {
        let Some(proxy) = self.proxy(index, link)? else { return Ok(()) };
        proxy.freeze();
        tokio::time::sleep(length).await;
        proxy.heal().await
    }

    fn proxy(&self, index: usize, link: Link) -> Result<Option<&Proxy>> {
        let ways = self.ways.get(index).context("this fleet has no proxies")?;
        Ok(match link {
            Link::Ledger => Some(&ways.ledger),
            Link::Bus if self.is_island(index) => ways.bus.as_ref(),
            Link::Bus => Some(ways.bus.as_ref().context("this fleet has no Redis")?),
        })
    }

    /// Whether the Redis does not join this instance with the others.
    #[must_use]
    pub const fn is_island(&self, index: usize) -> bool {
        self.blueprint.islands && index >= self.blueprint.instances && index < self.blueprint.instances + 2
    }

    /// Stops the database as a crash would, waits, and starts it again.
    ///
    /// # Errors
    /// It is not ours, or does not start again.
    pub async fn restart_database(&self, down: Duration) -> Result<()> {
        let server = self.server()?;
        tokio::task::spawn_blocking(move || {
            server.stop_immediate()?;
            std::thread::sleep(down);
            server.boot()
        })
        .await?
    }

    /// Freezes all processes of the database for a while.
    ///
    /// # Errors
    /// It is not ours, or does not run.
    pub async fn freeze_database(&self, length: Duration) -> Result<()> {
        let server = self.server()?;
        tokio::task::spawn_blocking(move || server.freeze(length)).await??;
        tokio::time::sleep(length).await;
        Ok(())
    }

    /// Kills Redis, waits, and starts it again, empty.
    ///
    /// # Errors
    /// There is none, or it does not start again.
    pub async fn restart_redis(&self, down: Duration) -> Result<()> {
        let redis = self.redis()?;
        tokio::task::spawn_blocking(move || {
            redis.kill();
            std::thread::sleep(down);
            redis.boot()
        })
        .await?
    }

    /// Empties Redis.
    ///
    /// # Errors
    /// There is none, or it does not answer.
    pub async fn flush_redis(&self) -> Result<()> {
        let redis = self.redis()?;
        tokio::task::spawn_blocking(move || redis.flush()).await?
    }

    /// The Redis, if there is one.
    ///
    /// # Errors
    /// There is none.
    pub fn redis(&self) -> Result<Arc<Redis>> {
        Ok(Arc::clone(self.redis.as_ref().context("this fleet has no Redis")?))
    }

    fn server(&self) -> Result<Arc<Postgres>> {
        Ok(Arc::clone(self.server.as_ref().context("this database is not ours to hurt")?))
    }

    /// Waits until every instance that runs says that it is ready to serve.
    ///
    /// # Errors
    /// One does not within `limit`, or has ended by itself; its log is in the message.
    pub async fn all_ready(&self, client: &Client, limit: Duration) -> Result<()> {
        let give_up = Instant::now() + limit;
        for (index, url) in self.urls.iter().enumerate() {
            if !self.instance(index).await.is_started() {
                continue;
            }
            while let Err(error) = client.get(&format!("{url}/readyz")).await {
                let instance = self.instance(index).await;
                if instance.process().exited().is_some() {
                    bail!("instance {index} ended by itself:\n{}", instance.log());
                }
                if Instant::now() > give_up {
                    bail!("instance {index} is not ready after {limit:?}: {error:#}\n{}", instance.log());
                }
                drop(instance);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// Lines of the instances' logs that tell of a defect.
    pub async fn defects_logged(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for instance in &self.instances {
            lines.extend(instance.lock().await.defects_logged());
        }
        lines
    }
}
