//! Everything at once at random: several instances with two trains each, and leases of a few signers that they acquire,
//! renew, release and take from each other under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use domain::nonce::Change;
use domain::{IdempotencyKey, InstanceId, Resource, Token};
use ledger::{Acquisition, Error, GrantAnswer, Handle, KeyScope, NewKey, Renewal, Renewed, Verdict};
use rand::rngs::StdRng;
use rand::seq::index::sample;
use rand::{RngExt, SeedableRng};
use sqlx::{Connection, PgConnection};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::bench::{Bench, LONG_MS, batch, batch_with_policy, hold, nonce, owner, signer};

/// Ledger handles on one database.
const INSTANCES: usize = 3;
/// Owners, each with an `instance:` lease of its own, spread over the handles.
const OWNERS: usize = 32;
/// Few, so that everybody meets everybody.
const SIGNERS: usize = 12;
/// Idempotency keys that all signers share; purged now and then, so that they are free again.
const KEYS: usize = 12;

/// What happened, all owners together.
#[derive(Debug, Default)]
struct Tally {
    /// Rows committed, per signer.
    committed: [AtomicU64; SIGNERS],
    acquired: AtomicU64,
    taken_over: AtomicU64,
    lives_taken: AtomicU64,
    renewed: AtomicU64,
    fenced: AtomicU64,
    again: AtomicU64,
    key_taken: AtomicU64,
    diverged: AtomicU64,
    /// Calls that lost their connection: a starved machine is enough for the server to end an idle transaction.
    lost: AtomicU64,
    /// Rows of commits among them whose outcome is unknown, per signer.
    unheard: [AtomicU64; SIGNERS],
    /// How often each owner has begun anew.
    incarnations: [AtomicU64; OWNERS],
}

struct Owner {
    ledger: Handle,
    number: usize,
    me: InstanceId,
    rng: StdRng,
    life: Option<Token>,
    tokens: [Option<Token>; SIGNERS],
    tally: Arc<Tally>,
}

fn name(number: usize, incarnation: u64) -> InstanceId {
    owner(&format!("o-{number}-{incarnation}"))
}

fn resource(which: usize) -> Resource {
    Resource::signer(&signer(&format!("s{which}")))
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Owner {
    async fn run(mut self, operations: usize) {
        for _ in 0..operations {
            let which = self.some_signer();
            match (self.rng.random_range(0..100), self.tokens[which]) {
                (0..4, _) => self.shows_that_it_lives().await,
                (4..12, _) => self.takes_over(which).await,
                (12..15, _) => self.takes_a_life().await,
                (15..24, _) => self.renews().await,
                (24..25, _) => drop(self.heard(self.ledger.purge_keys(0, 8).await)),
                (25..30, Some(token)) => {
                    self.heard(self.ledger.release(&resource(which), &self.me, token).await);
                    self.tokens[which] = None;
                }
                (30..34, _) | (_, None) => self.acquires(which).await,
                (_, Some(token)) => self.writes(which, token).await,
            }
        }
    }

    /// Mostly one that it believes to own.
    fn some_signer(&mut self) -> usize {
        let owned: Vec<_> = (0..SIGNERS).filter(|&which| self.tokens[which].is_some()).collect();
        match self.rng.random_range(0..3) {
            1.. if !owned.is_empty() => owned[self.rng.random_range(0..owned.len())],
            _ => self.rng.random_range(0..SIGNERS),
        }
    }

    fn heard<T>(&self, answer: ledger::Result<T>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(Error::Unknown { .. } | Error::Unavailable { .. }) => {
                count(&self.tally.lost);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Contention on one lease is no failure: it is said so, and may be asked again.
    async fn asks(&self, resource: &Resource, lease_ms: u64) -> Option<Token> {
        match self.ledger.acquire(resource, &self.me, lease_ms).await {
            Ok(Acquisition::Acquired { token, .. }) => {
                count(&self.tally.acquired);
                Some(token)
            }
            Ok(Acquisition::Held { .. }) | Err(Error::Aborted { .. }) => None,
            lost => self.heard(lost).and(None),
        }
    }

    async fn acquires(&mut self, which: usize) {
        let lease_ms = self.rng.random_range(1..300);
        self.tokens[which] = self.asks(&resource(which), lease_ms).await;
    }

    async fn shows_that_it_lives(&mut self) {
        let lease_ms = self.rng.random_range(1..60);
        let life = Resource::instance(&self.me);
        self.life = self.asks(&life, lease_ms).await;
        if self.life.is_none()
            && let Some(Some(lease)) = self.heard(self.ledger.lease(&life).await)
            && lease.owner.as_ref() != Some(&self.me)
        {
            // It was found dead, and never has this lease again.
            let before = self.tally.incarnations[self.number].fetch_add(1, Ordering::Relaxed);
            (self.me, self.tokens) = (name(self.number, before + 1), [None; SIGNERS]);
        }
    }

    /// Some owner, as it is called now.
    fn somebody(&mut self) -> InstanceId {
        let number = self.rng.random_range(0..OWNERS);
        name(number, self.tally.incarnations[number].load(Ordering::Relaxed))
    }

    async fn takes_over(&mut self, which: usize) {
        let dead = self.somebody();
        let taken = self.heard(self.ledger.take_over(&resource(which), &self.me, &dead, 20).await).flatten();
        if taken.is_some() {
            count(&self.tally.taken_over);
            self.tokens[which] = taken.map(|(token, _)| token);
        }
    }

    async fn takes_a_life(&mut self) {
        let dead = self.somebody();
        let life = Resource::instance(&dead);
        if dead == self.me {
            return;
        }
        let taken = self.heard(self.ledger.take_over(&life, &self.me, &dead, 5).await);
        if let Some((token, _)) = taken.flatten() {
            count(&self.tally.lives_taken);
            // Its owner begins anew, whether it is given back or not.
            self.heard(self.ledger.release(&life, &self.me, token).await);
        }
    }

    async fn renews(&mut self) {
        let mut leases = vec![];
        if let Some(token) = self.life {
            leases.push(Renewal { resource: Resource::instance(&self.me), token, lease_ms: 30 });
        }
        for (which, token) in self.tokens.iter().enumerate() {
            leases.extend(token.map(|token| Renewal { resource: resource(which), token, lease_ms: 20 }));
        }
        if self
            .heard(self.ledger.renew_all(&self.me, &leases).await)
            .is_some_and(|all| all.contains(&Renewed::Done))
        {
            count(&self.tally.renewed);
        }
    }

    async fn writes(&mut self, which: usize, token: Token) {
        let s = signer(&format!("s{which}"));
        let Some(loaded) = self.heard(self.ledger.load(&s, 1).await) else { return };
        let first = loaded.last.map_or(0, |last| last.get() + 1);
        let make = if self.rng.random_ratio(1, 4) { batch_with_policy } else { batch };
        let grants = (first..first + self.rng.random_range(1..4)).map(|number| Change::Grant {
            nonce: nonce(number),
            hold: hold(self.rng.random()),
            hold_ms: LONG_MS,
            fills: None,
        });
        let mut write = make(&s, &self.me, token, grants.collect());
        let rows = write.changes.len() as u64;
        if self.rng.random_ratio(1, 2) {
            let keys = self.rng.random_range(1..4);
            write.keys = sample(&mut self.rng, KEYS, keys).into_iter().map(shared_key).collect();
        }
        let answer = self.ledger.commit(write).await;
        if answer.as_ref().is_err_and(Error::may_have_written) {
            self.tally.unheard[which].fetch_add(rows, Ordering::Relaxed);
        }
        let Some(verdict) = self.heard(answer) else {
            // Nothing is decided on an unknown outcome: it acquires anew, and loads.
            self.tokens[which] = None;
            return;
        };
        match verdict {
            Verdict::Committed { .. } => {
                self.tally.committed[which].fetch_add(rows, Ordering::Relaxed);
            }
            Verdict::Fenced => {
                count(&self.tally.fenced);
                self.tokens[which] = None;
            }
            Verdict::Again => count(&self.tally.again),
            Verdict::KeyTaken => count(&self.tally.key_taken),
            // This owner loads without asking whether it is the owner still; its lease was taken and came back to it
            // between this load and this commit.
            Verdict::Diverged => count(&self.tally.diverged),
            Verdict::Undone => unreachable!("nobody follows anybody here"),
        }
    }
}

fn shared_key(n: usize) -> NewKey {
    let scope =
        KeyScope { scope: "shared".to_owned(), key: IdempotencyKey::parse(&format!("k{n}")).unwrap() };
    let answer = GrantAnswer { token: Token::new(1), owner: owner("a"), grants: vec![] };
    NewKey { scope, body_hash: [0; 32], answer }
}

/// No statement may deadlock or be refused, and what was committed must be there, no more and no less. `FENCEPOST_OPERATIONS`
/// makes it longer.
pub async fn trains_takeovers_and_renewals_get_on_with_each_other(b: Bench) {
    let operations: usize = std::env::var("FENCEPOST_OPERATIONS").map_or(2_000, |text| text.parse().unwrap());
    let seed: u64 = rand::rng().random();
    println!("seed {seed}, {operations} operations");
    let begun = std::time::Instant::now();
    let (handles, tally) = (b.instances(INSTANCES).await, Arc::<Tally>::default());
    let mut owners = JoinSet::new();
    for n in 0..OWNERS {
        let owner = Owner {
            ledger: handles[n % INSTANCES].clone(),
            number: n,
            me: name(n, 0),
            rng: StdRng::seed_from_u64(seed.wrapping_add(n as u64)),
            life: None,
            tokens: [None; SIGNERS],
            tally: tally.clone(),
        };
        owners.spawn(owner.run(operations / OWNERS));
    }
    while let Some(done) = owners.join_next().await {
        done.unwrap_or_else(|error| panic!("{error} (seed {seed})"));
    }
    println!("{:?} in {:?}", tally, begun.elapsed());
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    for (which, (committed, unheard)) in tally.committed.iter().zip(&tally.unheard).enumerate() {
        // What is left under way of an unknown outcome ends here.
        let s = signer(&format!("s{which}"));
        b.takes_over(&owner("last-1"), &s).await;
        let rows = b.last(&s).await.map_or(0, |last| last + 1);
        let (at_least, at_most) = (of(committed), of(committed) + of(unheard));
        assert!((at_least..=at_most).contains(&rows), "s{which} has {rows}, {tally:?} (seed {seed})");
    }
    let seen = [&tally.acquired, &tally.renewed, &tally.fenced, &tally.key_taken];
    let taken = of(&tally.taken_over) + of(&tally.lives_taken);
    assert!(taken > 0 && seen.into_iter().all(|counter| of(counter) > 0), "{tally:?} (seed {seed})");
    for handle in &handles {
        handle.close().await;
    }
    drop(handles);
    assert_eq!(b.deadlocks_at_last().await, 0, "seed {seed}");
}

/// The measure used above: a deadlock that happens is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_would_be_seen() {
    let b = Bench::postgres().await;
    for n in 0..2 {
        b.acquired(&owner("a"), &signer(&format!("s{n}")), LONG_MS).await;
    }
    let both_have_one = Barrier::new(2);
    let locks = async |first: usize, second: usize| {
        let mut session = PgConnection::connect(&b.options.url).await.unwrap();
        let lock = "SELECT FROM lease WHERE resource = $1 FOR UPDATE";
        sqlx::query("BEGIN").execute(&mut session).await.unwrap();
        sqlx::query(lock).bind(resource(first).to_string()).execute(&mut session).await.unwrap();
        both_have_one.wait().await;
        let locked = sqlx::query(lock).bind(resource(second).to_string()).execute(&mut session).await;
        locked.err().and_then(|error| error.as_database_error()?.code().map(String::from))
    };
    let (one, other) = tokio::join!(locks(0, 1), locks(1, 0));
    assert_eq!(one.or(other).as_deref(), Some("40P01"));
    assert_eq!(b.deadlocks_at_last().await, 1);
}
