//! Where a load takes place: instances that are started for it, or some that run already.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use testkit::fleet::{Blueprint, Fleet};
use testkit::http::Client;
use testkit::instance::cpu_seconds;
use testkit::servers::Database;

use crate::figures::{self, Summary};
use crate::load::{self, Ask, Log, Pace, Plan, Route, Schedule, Spread, Targets, Zipf};
use crate::metrics::Metrics;
use crate::progress::Bar;
use crate::verify::{Case, Truth, Verdict, verify};

/// Holds outlive any load, so that no nonce is let go by time.
pub const HOLD_MS: u64 = 3_600_000;

/// Where a load takes place.
#[derive(Debug)]
pub enum Target {
    /// Ours, with their own servers.
    Ours(Box<Fleet>),
    /// Somebody else's.
    Running(Vec<String>),
}

impl Target {
    /// Takes the instances at `urls`, or starts what the blueprint says if there are none.
    ///
    /// # Errors
    /// Something does not start, or an instance does not answer.
    pub async fn open(urls: &[String], blueprint: Blueprint) -> Result<Self> {
        if urls.is_empty() {
            return Ok(Self::Ours(Box::new(Fleet::build(blueprint).await?)));
        }
        let client = Client::new(Duration::from_secs(5))?;
        for url in urls {
            client.get(&format!("{url}/healthz")).await?;
        }
        Ok(Self::Running(urls.iter().map(|url| url.trim_end_matches('/').to_owned()).collect()))
    }

    /// The instances.
    #[must_use]
    pub fn urls(&self) -> &[String] {
        match self {
            Self::Ours(fleet) => fleet.urls(),
            Self::Running(urls) => urls,
        }
    }

    /// The database, if it is ours to look into.
    #[must_use]
    pub fn database(&self) -> Option<&Database> {
        match self {
            Self::Ours(fleet) => Some(fleet.database()),
            Self::Running(_) => None,
        }
    }

    /// The instances, if they are ours.
    #[must_use]
    pub const fn fleet(&self) -> Option<&Fleet> {
        match self {
            Self::Ours(fleet) => Some(fleet),
            Self::Running(_) => None,
        }
    }

    /// Where the checker reads.
    #[must_use]
    pub fn truth(&self) -> Truth<'_> {
        Truth { database: self.database(), url: &self.urls()[0] }
    }

    /// What the instances tell at `/metrics`, added up.
    ///
    /// # Errors
    /// One does not answer.
    pub async fn metrics(&self) -> Result<Metrics> {
        Metrics::read(&Client::new(Duration::from_secs(10))?, self.urls()).await
    }
}

/// When requests are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rhythm {
    /// So many per second, whatever comes back.
    Open(f64, Spread),
    /// As fast as answers come back.
    Closed,
}

/// One load in a scenario's terms.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// Its name in tables.
    pub name: &'a str,
    /// What is asked.
    pub ask: Ask,
    /// When.
    pub rhythm: Rhythm,
    /// How long it is measured.
    pub length: Duration,
    /// How long it runs before it is measured.
    pub warm_up: Duration,
    /// Keep-alive connections.
    pub connections: usize,
    /// What stands before a signer's number.
    pub prefix: &'a str,
    /// Which signers, and how unequally.
    pub choice: &'a Arc<Zipf>,
    /// How many they are.
    pub signers: usize,
    /// Which instance is asked first.
    pub route: Route,
    /// Decides arrivals and signers.
    pub seed: u64,
}

impl Run<'_> {
    /// Runs it against these targets and sums it up.
    ///
    /// # Errors
    /// As for [`load::run`].
    pub async fn against(&self, targets: &Arc<Targets>, bar: &Bar) -> Result<(Log, Summary)> {
        let whole = self.warm_up + self.length;
        let pace = match self.rhythm {
            Rhythm::Open(rate, spread) => Pace::Open(Arc::new(Schedule::new(spread, rate, whole, self.seed))),
            Rhythm::Closed => Pace::Closed(whole),
        };
        let counts = Arc::default();
        let following = bar.follow(self.name, whole, &counts);
        let (began, used) = (Instant::now(), cpu_seconds(std::process::id())?);
        let log = load::run(self.plan(pace), targets, &counts).await?;
        let used = cpu_seconds(std::process::id())? - used;
        let generator_cores = used / began.elapsed().as_secs_f64();
        drop(following);
        let summary = figures::summary(self.name, &log, self.warm_up, whole)?;
        Ok((log, Summary { generator_cores, ..summary }))
    }

    /// Asks for each of its signers once, as fast as answers come.
    ///
    /// # Errors
    /// As for [`load::run`].
    pub async fn each_once(&self, target: &Target, bar: &Bar) -> Result<Log> {
        let targets = Arc::new(Targets::new(target.urls(), self.signers));
        let counts = Arc::default();
        let guess = Duration::from_secs(self.signers as u64 / 5_000 + 1);
        let following = bar.follow(&format!("{}, each signer once", self.name), guess, &counts);
        // Another seed makes other idempotency keys than those of the run itself.
        let plan = Plan { seed: !self.seed, ..self.plan(Pace::Each(self.signers)) };
        let log = load::run(plan, &targets, &counts).await?;
        drop(following);
        Ok(log)
    }

    fn plan(&self, pace: Pace) -> Plan {
        Plan {
            ask: self.ask,
            pace,
            connections: self.connections,
            prefix: self.prefix.to_owned(),
            choice: Arc::clone(self.choice),
            route: self.route,
            seed: self.seed,
        }
    }

    /// Runs it on a target.
    ///
    /// # Errors
    /// As for [`load::run`].
    pub async fn on(&self, target: &Target, bar: &Bar) -> Result<(Log, Summary)> {
        self.against(&Arc::new(Targets::new(target.urls(), self.signers)), bar).await
    }

    /// Verifies what it granted.
    ///
    /// # Errors
    /// As for [`verify`].
    pub async fn verified(&self, log: &Log, target: &Target) -> Result<Verdict> {
        let Ask::Grant { count, hold_ms, .. } = self.ask else { return Ok(Verdict::default()) };
        verify(log, &Case { prefix: self.prefix, count, hold_ms, seed: self.seed }, &target.truth()).await
    }
}

/// A prefix for signers that no earlier run has used, also on instances that live longer than we.
#[must_use]
pub fn fresh_prefix(what: &str) -> String {
    format!("load-{what}-{:08x}-", rand::random::<u32>())
}
