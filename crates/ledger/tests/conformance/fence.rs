//! The fence: whatever an owner does after it lost its lease comes to nothing (I1, I2).

use std::sync::Arc;
use std::time::Instant;

use domain::nonce::{Change, Policy, Status};
use domain::plan::Command;
use domain::{IdempotencyKey, Resource, Token};
use ledger::{Acquisition, Error, GrantAnswer, KeyScope, LeaseClock, Link, NewKey, PlanVerdict, Verdict};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};

use crate::bench::{Bench, LONG_MS, batch, hold, new_grant, nonce, owner, signer};
use crate::plan_owner::{PlanOwner, plan};

pub async fn stale_owner_cannot_insert_an_untouched_nonce(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let old = b.acquired(&a, &s, 10).await;
    b.takes_over(&owner("b"), &s).await;
    // The new owner has not written a thing: there is no row whose token could stop this.
    let verdict = b.ledger.commit(batch(&s, &a, old, vec![new_grant(0, LONG_MS)])).await.unwrap();
    assert_eq!(verdict, Verdict::Fenced);
    assert_eq!(b.last(&s).await, None);
}

pub async fn stale_owner_cannot_change_a_nonce(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let old = b.acquired(&a, &s, 200).await;
    b.commits(batch(&s, &a, old, vec![new_grant(0, LONG_MS), new_grant(1, 1)])).await;
    b.takes_over(&owner("b"), &s).await;
    let consume = Change::Move {
        nonce: nonce(0),
        hold: hold(0),
        from: Status::Held,
        to: Status::Consumed,
        tx_hash: None,
    };
    let expire = Change::Expire { nonce: nonce(1), hold: hold(1), early_ms: 0, to: Status::Released };
    for change in [consume, expire] {
        assert_eq!(b.ledger.commit(batch(&s, &a, old, vec![change])).await.unwrap(), Verdict::Fenced);
    }
    let rows = b.ledger.rows(&s, &[nonce(0), nonce(1)]).await.unwrap().value;
    assert!(rows.iter().all(|row| row.status == Status::Held), "{rows:?}");
}

pub async fn stale_owner_cannot_set_a_policy_or_keep_a_key(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let old = b.acquired(&a, &s, 10).await;
    b.takes_over(&owner("b"), &s).await;
    let scope = KeyScope { scope: "grant signer:s".to_owned(), key: IdempotencyKey::parse("k").unwrap() };
    let answer = GrantAnswer { token: old, owner: a.clone(), grants: vec![] };
    let key = NewKey { scope: scope.clone(), body_hash: [1; 32], answer };
    let policy = Policy { max_in_flight: Some(1), ..Policy::default() };
    let mut write = batch(&s, &a, old, vec![]);
    (write.keys, write.policy) = (vec![key], Some(policy));
    assert_eq!(b.ledger.commit(write).await.unwrap(), Verdict::Fenced);
    assert_eq!(b.kept(&scope).await, None);
    assert_eq!(b.ledger.load(&s, 1).await.unwrap().policy, None);
}

pub async fn a_released_lease_admits_no_write(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    b.ledger.release(&Resource::signer(&s), &a, token).await.unwrap();
    let verdict = b.ledger.commit(batch(&s, &a, token, vec![new_grant(0, LONG_MS)])).await.unwrap();
    assert_eq!(verdict, Verdict::Fenced);
    assert_eq!(b.last(&s).await, None);
}

pub async fn nobody_writes_without_a_lease(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let grant = || vec![new_grant(0, LONG_MS)];
    assert_eq!(b.ledger.commit(batch(&s, &a, Token::new(1), grant())).await.unwrap(), Verdict::Fenced);
    let token = b.acquired(&a, &s, LONG_MS).await;
    for (who, token) in [(owner("b"), token), (a, Token::new(token.get() + 1))] {
        assert_eq!(b.ledger.commit(batch(&s, &who, token, grant())).await.unwrap(), Verdict::Fenced);
    }
    assert_eq!(b.last(&s).await, None);
}

/// Owners that take the lease from each other as fast as they can and never look at the time. Whatever a
/// holder commits must have been there when a later holder loaded.
pub async fn a_successor_sees_all_that_its_predecessors_committed(b: Bench) {
    const OWNERS: usize = 4;
    const ROUNDS: usize = 40;
    let seed: u64 = rand::rng().random();
    println!("seed {seed}");
    let s = signer("s");
    // What each holder loaded as the highest nonce, and what it committed.
    type Seen<T> = Arc<Mutex<Vec<(Token, T)>>>;
    let loaded: Seen<Option<u64>> = Arc::default();
    let committed: Seen<u64> = Arc::default();
    let owners = (0..OWNERS).map(|n| {
        let (ledger, s) = (b.ledger.clone(), s.clone());
        let (loaded, committed) = (loaded.clone(), committed.clone());
        let mut rng = rand::rngs::StdRng::seed_from_u64(seed + n as u64);
        tokio::spawn(async move {
            let me = owner(&format!("o{n}"));
            // As short as a commit on this machine allows, so that takeovers are many.
            let mut lease_ms = 3;
            for _ in 0..ROUNDS {
                let token = loop {
                    match ledger.acquire(&Resource::signer(&s), &me, lease_ms).await.unwrap() {
                        Acquisition::Acquired { token, .. } => break token,
                        Acquisition::Held { .. } => tokio::task::yield_now().await,
                    }
                };
                let last = ledger.load(&s, 10).await.unwrap().last.map(|last| last.get());
                loaded.lock().push((token, last));
                let mut next = last.map_or(0, |last| last + 1);
                for commits in 0..rng.random_range(1..4) {
                    let change = Change::Grant {
                        nonce: nonce(next),
                        hold: hold(rng.random()),
                        hold_ms: LONG_MS,
                        fills: None,
                    };
                    match ledger.commit(batch(&s, &me, token, vec![change])).await.unwrap() {
                        Verdict::Committed { .. } => committed.lock().push((token, next)),
                        Verdict::Again => continue,
                        Verdict::Fenced => {
                            if commits == 0 && lease_ms < 400 {
                                lease_ms += lease_ms / 2;
                            }
                            break;
                        }
                        odd => panic!("{odd:?}: the row of an untouched nonce was there (seed {seed})"),
                    }
                    next += 1;
                }
            }
        })
    });
    for owner in owners.collect::<Vec<_>>() {
        owner.await.unwrap();
    }
    let (loaded, committed) = (loaded.lock(), committed.lock());
    assert!(committed.len() > ROUNDS / 2, "only {} commits", committed.len());
    for (token, number) in committed.iter() {
        for (later, last) in loaded.iter().filter(|(later, _)| later > token) {
            assert!(
                Some(*number) <= *last,
                "{number} under {token} came after the load of {later} (seed {seed})"
            );
        }
    }
    let mut numbers: Vec<_> = committed.iter().map(|(_, number)| *number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>(), "no gap, nothing twice (seed {seed})");
}

/// A lease that is past by its holder's own clock.
struct Past;

impl LeaseClock for Past {
    fn lasts_at(&self, _now: Instant) -> bool {
        false
    }
}

pub async fn a_step_that_takes_locks_does_not_leave_once_its_lease_is_past(b: Bench) {
    let mut owner = PlanOwner::of(&b, plan(1, &["x"])).await;
    let (step, batch) = owner.decide(&Command::Start);
    assert!(!step.writes.take.is_empty(), "it waits for no train");
    let late = b.ledger.commit_plan_linked(batch.clone(), Link::default().under(Arc::new(Past))).await;
    assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
    let verdict = b.ledger.commit_plan(batch).await.unwrap();
    assert!(matches!(verdict, PlanVerdict::Written { .. }), "nothing was written before: {verdict:?}");
}
