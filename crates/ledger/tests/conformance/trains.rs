//! Commit trains: many signers in one transaction, each with a fate of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use domain::nonce::{Change, Status};
use domain::{IdempotencyKey, Resource, Token, TxHash};
use ledger::{Acquisition, Batch, GrantAnswer, KeyScope, NewKey, Renewal, Verdict};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use crate::bench::{Bench, LONG_MS, batch, hold, new_grant, nonce, owner, signer};

fn key(name: &str) -> NewKey {
    let answer = GrantAnswer { token: Token::new(1), owner: owner("a"), grants: vec![] };
    let scope = KeyScope { scope: "any".to_owned(), key: IdempotencyKey::parse(name).unwrap() };
    NewKey { scope, body_hash: [0; 32], answer }
}

/// Ways for a batch not to be written, and what it is told.
fn spoil(write: &mut Batch, n: usize) -> Verdict {
    let moves = |from, hold| Change::Move {
        nonce: nonce(0),
        hold,
        from,
        to: Status::Consumed,
        tx_hash: Some(TxHash::parse("';DROP/**/TABLE--\\\"{}").unwrap()),
    };
    match n % 6 {
        0 => {
            write.token = Token::new(77);
            Verdict::Fenced
        }
        1 => {
            write.owner = owner("nobody");
            Verdict::Fenced
        }
        2 => {
            write.keys = vec![key("taken")];
            Verdict::KeyTaken
        }
        3 => {
            // One of its keys is new. It is not kept either.
            write.keys = vec![key(&format!("new{n}")), key("taken")];
            Verdict::KeyTaken
        }
        4 => {
            write.changes = vec![new_grant(1, LONG_MS), moves(Status::Quarantined, hold(0))];
            Verdict::Diverged
        }
        _ => {
            write.changes = vec![new_grant(1, LONG_MS), new_grant(0, LONG_MS)];
            Verdict::Diverged
        }
    }
}

pub async fn what_is_wrong_with_one_batch_sinks_nobody_else(b: Bench) {
    const SIGNERS: usize = 90;
    let a = owner("a");
    let mut token = Token::new(0);
    for n in 0..SIGNERS {
        let s = signer(&format!("s{n}"));
        token = b.acquired(&a, &s, LONG_MS).await;
        b.commits(batch(&s, &a, token, vec![new_grant(0, LONG_MS)])).await;
    }
    let mut first = batch(&signer("s0"), &a, token, vec![]);
    first.keys = vec![key("taken")];
    b.commits(first).await;
    let mut commits = JoinSet::new();
    for n in 0..SIGNERS {
        let mut write = batch(&signer(&format!("s{n}")), &a, token, vec![new_grant(1, LONG_MS)]);
        write.keys = vec![key(&format!("own{n}"))];
        let expected = (n % 3 == 1).then(|| spoil(&mut write, n / 3));
        let ledger = b.ledger.clone();
        commits.spawn(async move { (n, expected, ledger.commit(write).await.unwrap()) });
    }
    while let Some(done) = commits.join_next().await {
        let (n, expected, verdict) = done.unwrap();
        match expected {
            Some(expected) => assert_eq!(verdict, expected, "s{n}"),
            None => assert!(matches!(verdict, Verdict::Committed { .. }), "s{n} was sunk: {verdict:?}"),
        }
        let written = expected.is_none();
        assert_eq!(b.last(&signer(&format!("s{n}"))).await, Some(u64::from(written)), "s{n}");
        let kept = b.kept(&key(&format!("own{n}")).scope).await;
        assert_eq!(kept.is_some(), written, "s{n}: its key goes with its rows");
    }
    for n in 0..SIGNERS {
        assert_eq!(b.kept(&key(&format!("new{n}")).scope).await, None);
    }
}

/// Owners that acquire, renew, write and release a few signers at random, many at once. No statement may
/// deadlock or fail, and what was committed must be there. `FENCEPOST_OPERATIONS` makes it longer.
pub async fn trains_takeovers_and_renewals_get_on_with_each_other(b: Bench) {
    const OWNERS: usize = 8;
    const SIGNERS: usize = 6;
    let operations: usize = std::env::var("FENCEPOST_OPERATIONS").map_or(2_000, |text| text.parse().unwrap());
    let seed: u64 = rand::rng().random();
    println!("seed {seed}, {operations} operations");
    let committed = Arc::new([const { AtomicU64::new(0) }; SIGNERS]);
    let mut owners = JoinSet::new();
    for n in 0..OWNERS {
        let (ledger, committed) = (b.ledger.clone(), committed.clone());
        let mut rng = StdRng::seed_from_u64(seed + n as u64);
        owners.spawn(async move {
            let me = owner(&format!("o{n}"));
            let mut tokens: [Option<Token>; SIGNERS] = [None; SIGNERS];
            for _ in 0..operations / OWNERS {
                let which = rng.random_range(0..SIGNERS);
                let s = signer(&format!("s{which}"));
                match (tokens[which], rng.random_range(0..10)) {
                    (None, _) | (_, 0) => {
                        let lease_ms = rng.random_range(1..20);
                        let asked = ledger.acquire(&Resource::signer(&s), &me, lease_ms).await.unwrap();
                        tokens[which] = match asked {
                            Acquisition::Acquired { token, .. } => Some(token),
                            Acquisition::Held { .. } => None,
                        };
                    }
                    (Some(_), 1) => {
                        let leases: Vec<_> = (0..SIGNERS)
                            .filter_map(|n| {
                                let resource = Resource::signer(&signer(&format!("s{n}")));
                                tokens[n].map(|token| Renewal { resource, token, lease_ms: 10 })
                            })
                            .collect();
                        ledger.renew(&me, &leases).await.unwrap();
                    }
                    (Some(token), 2) => {
                        ledger.release(&Resource::signer(&s), &me, token).await.unwrap();
                        tokens[which] = None;
                    }
                    (Some(token), _) => {
                        let last = ledger.load(&s, 1).await.unwrap().last;
                        let change = Change::Grant {
                            nonce: nonce(last.map_or(0, |last| last.get() + 1)),
                            hold: hold(rng.random()),
                            hold_ms: LONG_MS,
                            fills: None,
                        };
                        match ledger.commit(batch(&s, &me, token, vec![change])).await.unwrap() {
                            Verdict::Committed { .. } => {
                                committed[which].fetch_add(1, Ordering::Relaxed);
                            }
                            Verdict::Fenced => tokens[which] = None,
                            Verdict::Again => {}
                            // Somebody else wrote it between this load and this commit, and this owner's
                            // lease with it: it loads without asking whether it is still the owner.
                            Verdict::Diverged => {}
                            Verdict::KeyTaken => panic!("no key was used (seed {seed})"),
                        }
                    }
                }
            }
        });
    }
    while let Some(done) = owners.join_next().await {
        done.unwrap_or_else(|error| panic!("{error} (seed {seed})"));
    }
    let mut all = 0;
    for (which, committed) in committed.iter().enumerate() {
        let committed = committed.load(Ordering::Relaxed);
        all += committed;
        let last = b.last(&signer(&format!("s{which}"))).await;
        assert_eq!(last.map_or(0, |last| last + 1), committed, "s{which} (seed {seed})");
    }
    assert!(all > 0, "nothing was committed (seed {seed})");
}
