//! Connections that die in the middle of a commit: what was answered is true, what is unknown is said to be, nothing is
//! there twice, and the ledger goes on without help.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use domain::{HoldId, InstanceId, Resource, SignerId, Token};
use ledger::{Acquisition, Handle, NonceFilter, Options, Verdict};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;

use crate::bench::{Bench, LONG_MS, batch, hold, nonce, owner, signer};
use crate::proxy::Proxy;

/// Owners that write at once, each for a signer of its own.
const WRITERS: usize = 8;
/// Faults before a test is content.
const FAULTS_MIN: u64 = 60;
/// How long it goes on for the rest of what it wants to see.
const PATIENCE: Duration = testkit::PATIENCE;

/// What a writer was told of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    Committed,
    SurelyNot,
    Unknown,
}

/// What the writers saw together, so that a test can go on until enough happened.
#[derive(Default)]
struct Tally {
    committed: AtomicU64,
    /// Unknown outcomes that the next load found done.
    done_unheard: AtomicU64,
    /// Unknown outcomes that the next load found undone.
    undone_unheard: AtomicU64,
    enough: AtomicBool,
}

impl Tally {
    /// Commits, and unknown outcomes that were undone.
    fn has_seen_the_usual(&self) -> bool {
        let seen = |count: &AtomicU64| count.load(Ordering::Relaxed) > 0;
        seen(&self.committed) && seen(&self.undone_unheard)
    }

    /// The rare one too: a commit whose answer was lost.
    fn has_seen_all(&self) -> bool {
        self.has_seen_the_usual() && self.done_unheard.load(Ordering::Relaxed) > 0
    }
}

/// An owner as the actors are one: after an unknown outcome it acquires anew and loads before it decides again.
struct Writer {
    ledger: Handle,
    me: InstanceId,
    signer: SignerId,
    rng: StdRng,
    answered: HashMap<HoldId, Answered>,
    /// The first nonce and the first hold of a write whose outcome it did not hear.
    unheard: Option<(u64, HoldId)>,
    tally: Arc<Tally>,
}

impl Writer {
    async fn run(mut self) -> Self {
        while !self.tally.enough.load(Ordering::Relaxed) {
            let _ = self.hold_lease(usize::MAX).await;
        }
        // Whatever is left of it is fenced by this, and the ledger has healed if it succeeds.
        let healed = Instant::now();
        while self.hold_lease(1).await.is_err() {
            assert!(healed.elapsed() < PATIENCE, "{} never healed", self.signer);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self
    }

    /// Acquires, loads, and writes so often, or until something goes wrong.
    async fn hold_lease(&mut self, writes: usize) -> Result<(), ()> {
        let asked = self.ledger.acquire(&Resource::signer(&self.signer), &self.me, LONG_MS).await;
        let Acquisition::Acquired { token, .. } = self.retryable(asked)? else {
            panic!("{} is nobody else's", self.signer);
        };
        let loaded = self.ledger.load(&self.signer, 1).await;
        let mut next = self.retryable(loaded)?.last.map_or(0, |last| last.get() + 1);
        if let Some((first, _)) = self.unheard.take() {
            let (done, undone) = (&self.tally.done_unheard, &self.tally.undone_unheard);
            if next > first { done } else { undone }.fetch_add(1, Ordering::Relaxed);
        }
        for _ in 0..writes {
            if writes > 1 && self.tally.enough.load(Ordering::Relaxed) {
                return Ok(());
            }
            next += self.write(token, next).await?;
        }
        Ok(())
    }

    async fn write(&mut self, token: Token, next: u64) -> Result<u64, ()> {
        let holds: Vec<_> = (0..self.rng.random_range(1..4)).map(|_| hold(self.rng.random())).collect();
        let grants = holds.iter().zip(next..).map(|(&hold, number)| domain::nonce::Change::Grant {
            nonce: nonce(number),
            hold,
            hold_ms: LONG_MS,
            fills: None,
        });
        let answer = self.ledger.commit(batch(&self.signer, &self.me, token, grants.collect())).await;
        let answered = match &answer {
            Ok(Verdict::Committed { .. }) => Answered::Committed,
            Ok(Verdict::Again) => Answered::SurelyNot,
            Ok(verdict) => panic!("{} with a lease of its own was told {verdict:?}", self.signer),
            Err(error) if error.may_have_written() => Answered::Unknown,
            Err(_) => Answered::SurelyNot,
        };
        self.answered.extend(holds.iter().map(|&hold| (hold, answered)));
        match answered {
            Answered::Committed => {
                self.tally.committed.fetch_add(1, Ordering::Relaxed);
                Ok(holds.len() as u64)
            }
            Answered::SurelyNot => self.retryable(answer).map(|_| 0),
            Answered::Unknown => {
                self.unheard = Some((next, holds[0]));
                self.retryable(answer).map(|_| 0)
            }
        }
    }

    fn retryable<T>(&self, answer: ledger::Result<T>) -> Result<T, ()> {
        answer.map_err(|error| assert!(error.is_retryable(), "{}: {error}", self.signer))
    }
}

fn writers(ledger: &Handle, seed: u64, tally: &Arc<Tally>) -> JoinSet<Writer> {
    let writer = |n: usize| Writer {
        ledger: ledger.clone(),
        me: owner("me-1"),
        signer: signer(&format!("s{n}")),
        rng: StdRng::seed_from_u64(seed + n as u64),
        answered: HashMap::new(),
        unheard: None,
        tally: tally.clone(),
    };
    (0..WRITERS).map(|n| writer(n).run()).collect()
}

/// Holds what the writers were told against what the tables have.
async fn hold_to_account(b: &Bench, writers: Vec<Writer>, seed: u64) {
    let mut counts = HashMap::new();
    for writer in writers {
        let filter =
            NonceFilter { signer: writer.signer.clone(), status: None, after: None, limit: 1_000_000 };
        let rows = b.ledger.nonces(&filter).await.unwrap();
        let mut times = HashMap::<_, u32>::new();
        for (row, expected) in rows.iter().zip(0..) {
            assert_eq!(row.row.nonce.get(), expected, "{}: a gap (seed {seed})", writer.signer);
            *times.entry(row.row.hold).or_default() += 1;
            assert!(
                writer.answered.contains_key(&row.row.hold),
                "{}: nobody's hold (seed {seed})",
                writer.signer
            );
        }
        for (hold, answered) in &writer.answered {
            let times = times.get(hold).copied().unwrap_or_default();
            let right = match answered {
                Answered::Committed => times == 1,
                Answered::SurelyNot => times == 0,
                Answered::Unknown => times <= 1,
            };
            assert!(
                right,
                "{}: {hold} is there {times} times, its caller was told {answered:?} (seed {seed})",
                writer.signer
            );
            *counts.entry(format!("{answered:?}, there {times} times")).or_insert(0_u64) += 1;
        }
    }
    println!("{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_killed_in_mid_commit_leaves_nothing_twice_and_nothing_lost() {
    let b = Bench::postgres().await;
    let seed: u64 = rand::rng().random();
    println!("seed {seed}");
    let (tally, mut rng) = (Arc::<Tally>::default(), StdRng::seed_from_u64(seed));
    let writers = writers(&b.ledger, seed, &tally);
    let mut executioner = PgConnection::connect(&b.options.url).await.unwrap();
    let (mut killed, begun) = (0, Instant::now());
    // A backend that is past its commit answers before it dies: the rare outcome is for cut sockets.
    while killed < FAULTS_MIN || !tally.has_seen_the_usual() {
        assert!(begun.elapsed() < PATIENCE, "{killed} killed, and not all was seen (seed {seed})");
        let ended: Vec<bool> = sqlx::query_scalar(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND random() < 0.7
               AND (application_name = 'fencepost trains' OR random() < 0.1 AND application_name ~ '^fencepost')",
        )
        .fetch_all(&mut executioner)
        .await
        .unwrap();
        killed += ended.len() as u64;
        tokio::time::sleep(Duration::from_micros(rng.random_range(100..30_000))).await;
    }
    tally.enough.store(true, Ordering::Relaxed);
    println!("{killed} backends killed in {:?}", begun.elapsed());
    hold_to_account(&b, writers.join_all().await, seed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_cut_in_mid_commit_leaves_nothing_twice_and_nothing_lost() {
    let b = Bench::postgres().await;
    let seed: u64 = rand::rng().random();
    println!("seed {seed}");
    let mut url = url::Url::parse(&b.options.url).unwrap();
    let server = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
    let server = tokio::net::lookup_host(server).await.unwrap().next().unwrap();
    let proxy = Proxy::before(server, seed).await;
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_port(Some(proxy.address.port())).unwrap();
    let ledger = ledger::open(&Options { url: url.into(), ..b.options.clone() }).await.unwrap();

    let tally = Arc::<Tally>::default();
    let writers = writers(&ledger, seed, &tally);
    proxy.set_cutting(true);
    let begun = Instant::now();
    while proxy.cuts() < FAULTS_MIN || !tally.has_seen_all() {
        assert!(begun.elapsed() < PATIENCE, "{} cuts, and not all was seen (seed {seed})", proxy.cuts());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    proxy.set_cutting(false);
    tally.enough.store(true, Ordering::Relaxed);
    println!("{} sockets cut in {:?}", proxy.cuts(), begun.elapsed());
    hold_to_account(&b, writers.join_all().await, seed).await;
}
