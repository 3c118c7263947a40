//! The load itself: requests on plain keep-alive connections, open (on a schedule that waits for
//! nobody, latency counted from the intended start) or closed (as fast as the answers come).
//!
//! What must never live here: what a scenario wants to know. A request goes to the instance that served its
//! signer last, or to any, and once more to the owner if that one is named. It is tried again only where the
//! plan says so.

mod answer;
mod log;
mod schedule;
mod targets;
mod zipf;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use testkit::http::Client;
use tokio::sync::Semaphore;

use crate::raw::Connection;
use answer::{Granted, Problem, hold_number};
pub use log::{Entry, Log, Nonce, Said};
pub use schedule::{Schedule, Spread};
pub use targets::Targets;
pub use zipf::Zipf;

/// Longest time for one request; past it the connection is given up.
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// The longest time for which requests that are overdue at the end of a schedule are still sent.
const OVERTIME_MAX: Duration = Duration::from_secs(5);
/// The pause before a request is tried again, where the plan says so.
const AGAIN: Duration = Duration::from_millis(10);
/// A connection that could not be opened is tried again after this.
const RECONNECT: Duration = Duration::from_millis(20);

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// `GET /healthz`.
    Empty,
    /// Nonces.
    Grant {
        /// How many.
        count: u64,
        /// For how long, in milliseconds.
        hold_ms: u64,
        /// Each request under an idempotency key of its own.
        keys: bool,
        /// Each request is tried again under its key, after 10 ms each, until it is granted or 30 s are over.
        /// Requires `keys`.
        again: bool,
    },
}

/// When.
#[derive(Clone, Debug)]
pub enum Pace {
    /// On a schedule.
    Open(Arc<Schedule>),
    /// Each connection as soon as its last request was answered, for this long.
    Closed(Duration),
    /// The same, until each of so many signers was asked for once.
    Each(usize),
}

/// Which instance is asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Route {
    /// The one that served the signer last.
    Owner,
    /// Any.
    Any,
}

/// A load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is asked.
    pub ask: Ask,
    /// When.
    pub pace: Pace,
    /// Keep-alive connections, each with one request in flight.
    pub connections: usize,
    /// What stands before a signer's number in its name.
    pub prefix: String,
    /// Which signer is asked for.
    pub choice: Arc<Zipf>,
    /// Which instance is asked first.
    pub route: Route,
    /// Decides what each connection asks for.
    pub seed: u64,
}

/// Counts that grow while a load runs, for its observers.
#[derive(Debug, Default)]
pub struct Progress {
    /// Requests answered as hoped.
    pub fine: AtomicU64,
    /// Requests that ended otherwise.
    pub not: AtomicU64,
}

struct Shared {
    plan: Plan,
    targets: Arc<Targets>,
    progress: Arc<Progress>,
    began: Instant,
    gate: Arc<Semaphore>,
    next: AtomicUsize,
    stop: Arc<AtomicBool>,
}

/// The name of a signer.
#[must_use]
pub fn signer_name(prefix: &str, signer: u32) -> String {
    format!("{prefix}{signer}")
}

/// Runs a load to its end.
///
/// # Errors
/// A connection does something that no HTTP server does, or a task of ours panics.
pub async fn run(plan: Plan, targets: &Arc<Targets>, progress: &Arc<Progress>) -> Result<Log> {
    ensure!(plan.connections > 0, "a load needs a connection");
    let shared = Arc::new(Shared {
        targets: Arc::clone(targets),
        progress: Arc::clone(progress),
        began: Instant::now(),
        gate: Arc::new(Semaphore::new(0)),
        next: AtomicUsize::new(0),
        stop: Arc::default(),
        plan,
    });
    let learning = tokio::spawn(Arc::clone(targets).keep_learning(Client::new(Duration::from_secs(2))?));
    let (keeper, length) = match &shared.plan.pace {
        Pace::Open(schedule) => {
            let last = schedule.len().checked_sub(1).and_then(|last| schedule.moment_us(last)).unwrap_or(0);
            let keeper = schedule.keep_time(shared.began, &shared.gate, &shared.stop);
            (Some((keeper, schedule.len())), Duration::from_micros(last))
        }
        Pace::Closed(_) | Pace::Each(_) => (None, Duration::ZERO),
    };
    let mut running = tokio::task::JoinSet::new();
    for number in 0..shared.plan.connections {
        running.spawn(work(Arc::clone(&shared), number as u64));
    }
    if let Some((keeper, due)) = keeper {
        let overtime = Duration::from_micros(length.as_micros() as u64) + OVERTIME_MAX;
        while shared.next.load(Ordering::Relaxed) < due && shared.began.elapsed() < overtime {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        shared.stop.store(true, Ordering::Relaxed);
        tokio::task::spawn_blocking(move || keeper.join()).await?.ok().context("the keeper of time")?;
        // Connections that wait for the next arrival learn that there is none.
        shared.gate.add_permits(shared.plan.connections);
    }
    let mut log = Log::default();
    while let Some(done) = running.join_next().await {
        log.merge(done??);
    }
    learning.abort();
    if let Pace::Open(schedule) = &shared.plan.pace {
        log.never_sent = schedule.len() as u64 - log.entries.len() as u64;
    }
    log.sort();
    Ok(log)
}

/// One connection's work: one connection to each instance, but one request at a time over all of them.
struct Worker {
    shared: Arc<Shared>,
    log: Log,
    dice: StdRng,
    number: u64,
    asked: u64,
    connections: Vec<Option<Connection>>,
    request: Vec<u8>,
}

async fn work(shared: Arc<Shared>, number: u64) -> Result<Log> {
    let dice = StdRng::seed_from_u64(shared.plan.seed.wrapping_mul(1_000_003).wrapping_add(number));
    let mut worker = Worker {
        log: Log::default(),
        dice,
        number,
        asked: 0,
        connections: Vec::new(),
        request: Vec::with_capacity(512),
        shared,
    };
    while let Some(turn) = worker.turn().await? {
        let signer = match turn {
            Turn::For(signer) => signer,
            Turn::Now | Turn::At(_) => worker.shared.plan.choice.draw(&mut worker.dice) as u32,
        };
        let sent_us = worker.now_us();
        let intended_us = if let Turn::At(moment) = turn { moment.min(sent_us) } else { sent_us };
        worker.asked += 1;
        let said = worker.ask_as_planned(signer, sent_us).await?;
        let ended_us = worker.now_us();
        let entry = Entry { signer, intended_us, sent_us, ended_us, said };
        let progress = &worker.shared.progress;
        let counted = if entry.is_fine() { &progress.fine } else { &progress.not };
        counted.fetch_add(1, Ordering::Relaxed);
        worker.log.entries.push(entry);
    }
    Ok(worker.log)
}

/// A request's turn has come.
#[derive(Clone, Copy)]
enum Turn {
    /// It was to begin at this moment.
    At(u64),
    /// It begins now.
    Now,
    /// It begins now, and is for this signer.
    For(u32),
}

/// An attempt at one instance.
enum Attempt {
    Ended(Said),
    /// The owner is another one.
    Elsewhere(u16),
}

impl Worker {
    fn now_us(&self) -> u64 {
        self.shared.began.elapsed().as_micros() as u64
    }

    /// Waits for the next request's turn. `None`: no more.
    async fn turn(&self) -> Result<Option<Turn>> {
        match &self.shared.plan.pace {
            Pace::Closed(length) => Ok((self.shared.began.elapsed() < *length).then_some(Turn::Now)),
            Pace::Each(signers) => {
                let signer = self.shared.next.fetch_add(1, Ordering::Relaxed);
                Ok((signer < *signers).then_some(Turn::For(signer as u32)))
            }
            Pace::Open(schedule) => {
                self.shared.gate.acquire().await.context("the gate is open")?.forget();
                if self.shared.stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                let index = self.shared.next.fetch_add(1, Ordering::Relaxed);
                Ok(schedule.moment_us(index).map(Turn::At))
            }
        }
    }

    async fn ask_as_planned(&mut self, signer: u32, sent_us: u64) -> Result<Said> {
        let again = matches!(self.shared.plan.ask, Ask::Grant { keys: true, again: true, .. });
        let give_up_us = sent_us + REQUEST_MAX.as_micros() as u64;
        loop {
            let said = self.ask(signer).await?;
            let settled = matches!(said, Said::Fine | Said::Granted { .. } | Said::Malformed(_));
            if settled || !again || self.now_us() > give_up_us {
                return Ok(said);
            }
            self.log.tried_again += 1;
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn ask(&mut self, signer: u32) -> Result<Said> {
        let targets = Arc::clone(&self.shared.targets);
        let known = match self.shared.plan.route {
            Route::Owner => targets.owner(signer),
            Route::Any => None,
        };
        let host = known.unwrap_or_else(|| targets.any(self.dice.random_range(0..1 << 20)));
        self.build(signer)?;
        match self.attempt(host, signer, true).await {
            Attempt::Ended(said) => Ok(said),
            Attempt::Elsewhere(owner) => match self.attempt(owner, signer, false).await {
                Attempt::Ended(said) => Ok(said),
                Attempt::Elsewhere(_) => Ok(Said::Refused(self.log.word("409 not_owner"))),
            },
        }
    }

    /// Writes the request's bytes, the same for all instances.
    fn build(&mut self, signer: u32) -> Result<()> {
        self.request.clear();
        match self.shared.plan.ask {
            Ask::Empty => self.request.extend_from_slice(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            Ask::Grant { count, hold_ms, keys, .. } => {
                let body = format!("{{\"count\":{count},\"hold_ms\":{hold_ms}}}");
                let prefix = &self.shared.plan.prefix;
                write!(
                    self.request,
                    "POST /v1/signers/{prefix}{signer}/nonces HTTP/1.1\r\nHost: localhost\r\n\
                     Content-Type: application/json\r\nContent-Length: {}\r\n",
                    body.len()
                )?;
                if keys {
                    let seed = self.shared.plan.seed;
                    write!(self.request, "Idempotency-Key: {seed:x}-{}-{}\r\n", self.number, self.asked)?;
                }
                self.request.extend_from_slice(b"\r\n");
                self.request.extend_from_slice(body.as_bytes());
            }
        }
        Ok(())
    }

    async fn attempt(&mut self, host: u16, signer: u32, may_follow: bool) -> Attempt {
        let targets = Arc::clone(&self.shared.targets);
        let mut connection = match self.connection(host).await {
            Ok(connection) => connection,
            Err(error) => {
                targets.forget(signer);
                tokio::time::sleep(RECONNECT).await;
                return Attempt::Ended(Said::Unknown(self.log.word(&reason(&error))));
            }
        };
        let request = std::mem::take(&mut self.request);
        let answered = tokio::time::timeout(REQUEST_MAX, connection.exchange(&request)).await;
        self.request = request;
        let attempt = match answered {
            Ok(Ok((status, body))) => self.read(host, signer, (status, body), may_follow),
            Ok(Err(error)) => {
                targets.forget(signer);
                return Attempt::Ended(Said::Unknown(self.log.word(&reason(&error))));
            }
            Err(_) => {
                targets.forget(signer);
                return Attempt::Ended(Said::Unknown(self.log.word("no answer in time")));
            }
        };
        self.connections[host as usize] = Some(connection);
        attempt
    }

    /// Takes the connection to an instance; it is put back when it is still good.
    async fn connection(&mut self, host: u16) -> Result<Connection> {
        let at = host as usize;
        if self.connections.len() <= at {
            self.connections.resize_with(at + 1, || None);
        }
        match self.connections[at].take() {
            Some(connection) if !connection.is_stale() => Ok(connection),
            _ => Connection::open(&self.shared.targets.address(host)).await,
        }
    }

    fn read(&mut self, host: u16, signer: u32, (status, body): (u16, &[u8]), may_follow: bool) -> Attempt {
        let targets = &self.shared.targets;
        match (self.shared.plan.ask, status) {
            (Ask::Empty, 200) => Attempt::Ended(Said::Fine),
            (Ask::Grant { .. }, 201) => {
                let Some(said) = granted(&mut self.log, body) else {
                    return Attempt::Ended(self.log.oddity(status, body));
                };
                if let Said::Granted { owner, .. } = said {
                    let owner = targets.host_of(&self.log.owners[owner as usize]).unwrap_or(host);
                    targets.served(signer, owner);
                }
                Attempt::Ended(said)
            }
            (_, 400..) => match serde_json::from_slice::<Problem>(body) {
                Ok(Problem { code, owner_url: Some(url) }) if may_follow && code == "not_owner" => {
                    let owner = targets.index_of(&url);
                    targets.served(signer, owner);
                    Attempt::Elsewhere(owner)
                }
                Ok(Problem { code, .. }) => {
                    if matches!(code.as_str(), "draining" | "not_owner" | "fenced") {
                        targets.forget(signer);
                    }
                    Attempt::Ended(Said::Refused(self.log.word(&format!("{status} {code}"))))
                }
                Err(_) => Attempt::Ended(self.log.oddity(status, body)),
            },
            _ => Attempt::Ended(self.log.oddity(status, body)),
        }
    }
}

/// Keeps what was granted; `None` if the answer is not as the contract says.
fn granted(log: &mut Log, body: &[u8]) -> Option<Said> {
    let read: Granted<'_> = serde_json::from_slice(body).ok()?;
    let first = log.nonces.len();
    for grant in &read.grants {
        let hold = hold_number(grant.hold).filter(|_| grant.status == "HELD");
        match hold {
            Some(hold) => {
                let held_for_ms = u32::try_from(grant.held_for_ms).unwrap_or(u32::MAX);
                log.nonces.push(Nonce { nonce: grant.nonce, hold, held_for_ms });
            }
            None => {
                log.nonces.truncate(first);
                return None;
            }
        }
    }
    let owner = log.owner(read.owner);
    Some(Said::Granted {
        token: read.fencing_token,
        owner,
        first: first as u32,
        count: read.grants.len() as u32,
    })
}

/// What the system said, without addresses, so that the same trouble is the same word.
fn reason(error: &anyhow::Error) -> String {
    error.root_cause().to_string()
}

#[cfg(test)]
mod tests;
