//! The node's side of the worker socket: a [`Worker`] connects to a daemon (the scheduler), gets jobs, runs a
//! handler for each, and keeps each result until the scheduler has it.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use client::node::{Ended, Event, Failure, Job, Worker, WorkerOptions};
//! use client::wire::Json;
//! use tokio::signal::unix::{SignalKind, signal};
//!
//! # async fn count(words: &[String]) -> Result<Json, Failure> {
//! #     Json::of(&words.len()).map_err(|error| Failure::lasting(error.to_string()))
//! # }
//! let mut options = WorkerOptions::new(["http://127.0.0.1:7070", "http://127.0.0.1:7071"], "gpu-7");
//! options.capacity = 4;
//! options.labels.push("gpu".to_owned());
//! let handler = |job: Job| async move {
//!     let words: Vec<String> = job.payload.read().map_err(|error| Failure::lasting(error.to_string()))?;
//!     job.progress.send(Some(50.0), None);
//!     // A handler that does not look at `stop` is dropped a while after it should have stopped.
//!     tokio::select! {
//!         counted = count(&words) => counted,
//!         why = job.stop.requested() => Err(Failure::passing(why.to_string())),
//!     }
//! };
//! let worker = Worker::new(options)?.with_observer(|event| {
//!     if let Event::Lost { reason, .. } = event {
//!         eprintln!("no connection: {reason}");
//!     }
//! });
//! // With SIGTERM it takes no more jobs, and finishes those that it has.
//! let mut terminated = signal(SignalKind::terminate())?;
//! let ended = worker.run(handler, async move { terminated.recv().await; }).await?;
//! if ended == Ended::Replaced {
//!     eprintln!("another worker has this id");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! **What it promises.** At most `capacity` handlers run at once. An attempt runs once, even if it is
//! dispatched again. Its result is kept, and sent again on every new connection, until the scheduler says
//! that it is durable or stale; until then the attempt takes one of the node's slots. If a connection is cut,
//! or for three heartbeats nothing is received on it and nothing that waits can be sent, the worker connects to another
//! of the URLs after a jittered pause, to any by chance if it was welcome before; handlers are not affected. The handler of a
//! cancelled attempt is stopped, and nothing of it is reported. A panic of a handler is caught, where panics unwind: it is
//! a failure after which another attempt may succeed, with the text of the panic, and the worker goes on.
//!
//! What lives here: `protocol` decides what a frame means, `connection` is one socket, `job` is what a
//! handler gets, and `worker_loop` ties them together. What must never: a decision about the protocol outside
//! `protocol`.

mod connection;
mod job;
mod protocol;
mod worker_loop;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use wire::Json;
use wire::limits::{
    LABEL_CHARS_MAX, LANGUAGE_CHARS_MAX, NODE_CAPACITY_MAX, NODE_ID_CHARS_MAX, NODE_LABELS_MAX,
    NODE_POOLS_MAX, NODE_VERSION_CHARS_MAX, POOL_NAME_CHARS_MAX,
};
use wire::worker::{Hello, Languages};

use crate::socket::Dialer;
use crate::token::{Token, TokenFile, bearer};
use crate::{Error, Result, TlsOptions, base_url};
use worker_loop::WorkerLoop;

pub use job::{Failure, Job, ProgressSender, Stop, Stopper, Why};

/// A worker's identity and abilities. In its `Debug` form the token is left out.
#[derive(Clone)]
pub struct WorkerOptions {
    /// Base URLs of daemons of one cluster; the worker connects to any of them.
    pub urls: Vec<String>,
    /// Its id. If two workers use the same id, the later one stays.
    pub node_id: String,
    /// Attempts that it may have at once, 1 to 10,000.
    pub capacity: u32,
    /// The services it runs; each gives the label of its name.
    pub services: Vec<String>,
    /// The languages it can work with.
    pub languages: Languages,
    /// Further labels that a job may require.
    pub labels: Vec<String>,
    /// The only pools that it joins; without any, all whose requirements it meets.
    pub pools: Vec<String>,
    /// The version of the software that runs here; for people.
    pub version: Option<String>,
    /// The bearer token, with the scope `node`.
    pub token: Option<String>,
    /// A file with the bearer token, in place of `token`: the file is read again for each connection, so a token that is replaced
    /// needs no restart. Of a file that cannot be used later the worker warns by `tracing`, and goes on with what it read before.
    pub token_file: Option<PathBuf>,
    /// The authorities that it trusts for `https://`, and its own certificate.
    pub tls: TlsOptions,
    /// Whether several frames may share a message.
    pub batch: bool,
    /// How long things may take.
    pub times: Times,
}

impl fmt::Debug for WorkerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { urls, tls, times, token, token_file, .. } = self;
        f.debug_struct("WorkerOptions")
            .field("urls", urls)
            .field("hello", &self.hello())
            .field("has_token", &token.is_some())
            .field("token_file", token_file)
            .field("tls", tls)
            .field("times", times)
            .finish()
    }
}

impl WorkerOptions {
    /// A worker that takes one job at a time and has no labels.
    #[must_use]
    pub fn new<U: Into<String>>(urls: impl IntoIterator<Item = U>, node_id: impl Into<String>) -> Self {
        Self {
            urls: urls.into_iter().map(Into::into).collect(),
            node_id: node_id.into(),
            capacity: 1,
            services: Vec::new(),
            languages: Languages::default(),
            labels: Vec::new(),
            pools: Vec::new(),
            version: None,
            token: None,
            token_file: None,
            tls: TlsOptions::default(),
            batch: true,
            times: Times::default(),
        }
    }

    fn hello(&self) -> Hello {
        Hello {
            node_id: self.node_id.clone(),
            capacity: self.capacity,
            batch: self.batch,
            services: self.services.clone(),
            languages: self.languages.clone(),
            labels: self.labels.clone(),
            pools: self.pools.clone(),
            version: self.version.clone(),
            drained: false,
            running: Vec::new(),
        }
    }
}

/// How long things may take. [`Duration::MAX`] stands for no limit.
///
/// A stop takes `drain_max`, `stop_grace` and `settle_max` together at most, and about a second to close the connection:
/// 41 s by default. A process that is killed sooner may lose results, whose jobs run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// How long the worker tries to connect for the first time; without it, as by default, for ever. After the first
    /// connection it tries for ever.
    pub patience: Option<Duration>,
    /// Longest pause before another connection; 5 s by default. The first one is 200 ms, each further one twice as long,
    /// and a random part of up to a half is left out. None is shorter than 100 ms.
    pub pause_max: Duration,
    /// How long after its timeout a handler is asked to stop; 2 s by default. The scheduler itself revokes an attempt
    /// that runs for too long; this is for the case that it cannot reach the worker.
    pub timeout_grace: Duration,
    /// How long after it was told to stop a handler is dropped; 5 s by default.
    pub stop_grace: Duration,
    /// How long running attempts may take to finish after the worker was told to stop; 30 s by default.
    pub drain_max: Duration,
    /// How much longer, after the handlers' grace, results may take to be durable; 5 s by default.
    pub settle_max: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            patience: None,
            pause_max: Duration::from_secs(5),
            timeout_grace: Duration::from_secs(2),
            stop_grace: Duration::from_secs(5),
            drain_max: Duration::from_secs(30),
            settle_max: Duration::from_secs(5),
        }
    }
}

/// What a worker reports to its observer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A daemon has accepted the worker.
    Connected {
        /// The base URL.
        url: String,
        /// The instance behind it.
        instance: String,
        /// How often the worker sends a heartbeat.
        heartbeat: Duration,
        /// The pools that the worker is in. In none it gets no job. Older daemons do not say.
        pools: Option<Vec<String>>,
    },
    /// There is no connection; the next try is after the pause.
    Lost {
        /// What ended the connection, or kept it from being made.
        reason: String,
        /// How long it waits.
        pause: Duration,
    },
    /// The scheduler reported a problem.
    Problem {
        /// The code.
        code: String,
        /// The problem, in words.
        detail: String,
    },
    /// An attempt begins.
    Started {
        /// The job's id.
        job: String,
        /// The attempt's number.
        attempt: u32,
    },
    /// The handler of an attempt has returned. The result is not durable yet.
    Finished {
        /// The job's id.
        job: String,
        /// The attempt's number.
        attempt: u32,
        /// How long it ran.
        took: Duration,
        /// What came of it.
        end: AttemptEnd,
    },
    /// An operator drains the node (`true`), which gets no more jobs, or the drain has ended. It goes on when the worker
    /// connects again, unless that is to an instance of an older release, and ends with the worker.
    Drained(bool),
    /// The worker was told to stop, and has this many attempts to finish.
    Draining {
        /// How many.
        held: usize,
    },
}

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttemptEnd {
    /// It gave its output.
    Succeeded,
    /// It failed.
    Failed {
        /// The reason, in words.
        message: String,
        /// Whether another attempt may succeed.
        retryable: bool,
    },
    /// The scheduler had called it off; nothing of it is reported.
    CalledOff,
}

/// The observer.
type Observer = Arc<dyn Fn(Event) + Send + Sync>;

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// It was told to stop, and has stopped.
    Drained {
        /// The number of attempts whose results are not known to be durable; usually 0. Their jobs run again.
        unsettled: usize,
    },
    /// Another worker with the same id took over. The attempts that ran here were stopped.
    Replaced,
}

/// A node. See the [module's page](self).
pub struct Worker {
    hello: Hello,
    bases: Vec<Url>,
    dialer: Dialer,
    times: Times,
    observer: Observer,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("hello", &self.hello).finish_non_exhaustive()
    }
}

impl Worker {
    /// Prepares a worker, without connecting.
    ///
    /// # Errors
    /// [`Error::Unusable`] for options that no daemon would accept, and for a file that cannot be used, with the reason.
    pub fn new(options: WorkerOptions) -> Result<Self> {
        let hello = options.hello();
        check_names(&hello)?;
        check_others(&hello)?;
        // What a scheduler reads strictly is read so here already.
        serde_json::to_value(&hello)
            .and_then(serde_json::from_value::<Hello>)
            .map_err(|error| Error::Unusable(format!("no daemon accepts this node: {error}")))?;
        let bases: Vec<_> = options.urls.iter().map(|url| base_url::parse(url)).collect::<Result<_>>()?;
        if bases.is_empty() {
            return Err(Error::Unusable("a worker needs at least one URL".to_owned()));
        }
        let token = match options.token_file {
            Some(file) => Some(Token::OfFile(Arc::new(TokenFile::open(file)?))),
            None => options.token.as_deref().map(bearer).transpose()?.map(Token::Given),
        };
        let dialer = Dialer::for_bases(&bases, token, &options.tls)?;
        Ok(Self { hello, bases, dialer, times: options.times, observer: Arc::new(|_| {}) })
    }

    /// The same worker, with an observer of its events, which must not block.
    #[must_use]
    pub fn with_observer(mut self, observer: impl Fn(Event) + Send + Sync + 'static) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    /// Works until `stop` completes. Then it takes no more jobs, finishes those that it has, and returns when
    /// their results are durable or the limits of [`Times`] are reached. Dropping the future stops all
    /// handlers at once.
    ///
    /// Handlers run as tasks of the runtime, and must not block their thread: one that does cannot be stopped, and where
    /// it keeps this future from running, no heartbeat is sent, and the attempts go to other nodes. Work that blocks
    /// belongs into `tokio::task::spawn_blocking`. It must look at [`Job::stop`] itself, as it outlasts its handler.
    ///
    /// # Errors
    /// [`Error`] if it could not begin: the token is refused, or the id, a label or a pool; or no daemon could be
    /// reached within [`Times::patience`].
    pub async fn run<H, F>(self, handler: H, stop: impl Future<Output = ()>) -> Result<Ended>
    where
        H: Fn(Job) -> F + Send + Sync + 'static,
        F: Future<Output = std::result::Result<Json, Failure>> + Send + 'static,
    {
        let Self { hello, bases, dialer, times, observer } = self;
        WorkerLoop::new(hello, (bases, dialer), times, observer, handler, stop).run().await
    }
}

/// Refuses names that no daemon takes, by the field that they stand in.
fn check_names(hello: &Hello) -> Result<()> {
    let Hello { node_id, services, languages: Languages { asr, tts, semantic }, labels, pools, .. } = hello;
    check_name("node_id", node_id, NODE_ID_CHARS_MAX)?;
    for (what, names, count_max, chars_max) in [
        ("service", services, NODE_LABELS_MAX, LABEL_CHARS_MAX),
        ("asr", asr, NODE_LABELS_MAX, LANGUAGE_CHARS_MAX),
        ("tts", tts, NODE_LABELS_MAX, LANGUAGE_CHARS_MAX),
        ("semantic", semantic, NODE_LABELS_MAX, LANGUAGE_CHARS_MAX),
        ("label", labels, NODE_LABELS_MAX, LABEL_CHARS_MAX),
        ("pool", pools, NODE_POOLS_MAX, POOL_NAME_CHARS_MAX),
    ] {
        if names.len() > count_max {
            return Err(Error::Unusable(format!("{what}: a node has at most {count_max} of them")));
        }
        names.iter().try_for_each(|name| check_name(what, name, chars_max))?;
    }
    let mut all: BTreeSet<_> = services.iter().chain(labels).cloned().collect();
    for (kind, languages) in [("asr", asr), ("tts", tts), ("semantic", semantic)] {
        all.extend(languages.iter().map(|language| format!("{kind}:{language}")));
    }
    if all.len() > NODE_LABELS_MAX {
        return Err(Error::Unusable(format!(
            "label: a node has at most {NODE_LABELS_MAX} of them, those of services and languages included"
        )));
    }
    Ok(())
}

/// Refuses a capacity and a version that no daemon takes.
fn check_others(Hello { capacity, version, .. }: &Hello) -> Result<()> {
    if !(1..=NODE_CAPACITY_MAX).contains(&u64::from(*capacity)) {
        return Err(Error::Unusable(format!("capacity {capacity} must be from 1 to {NODE_CAPACITY_MAX}")));
    }
    match version {
        Some(version) if !(1..=NODE_VERSION_CHARS_MAX).contains(&version.chars().count()) => {
            Err(Error::Unusable(format!("version must have 1 to {NODE_VERSION_CHARS_MAX} characters")))
        }
        _ => Ok(()),
    }
}

fn check_name(what: &str, name: &str, chars_max: usize) -> Result<()> {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '@' | '-');
    let is_of_length = (1..=chars_max).contains(&name.len());
    let is_dots = name == "." || name == "..";
    if is_of_length && !is_dots && name.chars().all(is_safe) {
        return Ok(());
    }
    let but = if is_dots { ", but not . or .. alone" } else { "" };
    Err(Error::Unusable(format!(
        "{what} {name:?} must be 1 to {chars_max} characters of letters, digits and . _ : @ -{but}"
    )))
}

#[cfg(test)]
mod tests;
