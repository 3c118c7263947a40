//! Poison on a train: whatever is wrong with one batch, it gets the refusal, writes nothing, and sinks no other batch.

use std::collections::HashSet;

use domain::limits::{HOLD_MS_MAX, MAX_IN_FLIGHT_MAX, NONCE_MAX};
use domain::nonce::{Change, Policy, Status};
use domain::{IdempotencyKey, SignerId, Token, TxHash};
use ledger::{Batch, Error, GrantAnswer, KeyScope, NewKey, NonceFilter, NonceRecord, Verdict};
use tokio::task::JoinSet;

use crate::bench::{Bench, LONG_MS, batch, hold, new_grant, nonce, owner, signer};

/// Honest batches that share a train with each poisonous one.
const HONEST: usize = 12;

/// The answer to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Committed,
    Fenced,
    KeyTaken,
    Diverged,
    Refused,
}

/// Makes a batch what it is to be. Its signer has nonce 0 HELD under hold 0, and nonce 1 RELEASED under hold 1.
type Spoil = Box<dyn Fn(&mut Batch)>;

fn kinds() -> Vec<(&'static str, Outcome, Spoil)> {
    let mut kinds = vec![];
    kinds.extend(strangers());
    kinds.extend(wrong_rows());
    kinds.extend(wrong_in_themselves());
    kinds.extend(odd_but_right());
    kinds
}

fn kind(
    what: &'static str,
    outcome: Outcome,
    spoil: impl Fn(&mut Batch) + 'static,
) -> (&'static str, Outcome, Spoil) {
    (what, outcome, Box::new(spoil))
}

/// Batches of somebody who is not the owner, or of a request that was answered.
fn strangers() -> Vec<(&'static str, Outcome, Spoil)> {
    vec![
        kind("the token of another claim", Outcome::Fenced, |b| b.token = Token::new(b.token.get() + 1)),
        kind("token 0", Outcome::Fenced, |b| b.token = Token::new(0)),
        kind("a token below everything", Outcome::Fenced, |b| b.token = Token::new(i64::MIN)),
        kind("a token above everything", Outcome::Fenced, |b| b.token = Token::new(i64::MAX)),
        kind("an owner that nobody knows", Outcome::Fenced, |b| b.owner = owner("nobody")),
        kind("a signer that nobody leased", Outcome::Fenced, |b| b.signer = signer("unleased")),
        kind("a key that is taken", Outcome::KeyTaken, |b| b.keys = vec![key("any", "taken")]),
        kind("a new key and one that is taken", Outcome::KeyTaken, |b| {
            b.keys = vec![key("any", "new"), key("any", "taken")];
        }),
    ]
}

/// Batches that say of a row what is not so.
fn wrong_rows() -> Vec<(&'static str, Outcome, Spoil)> {
    let fills = |number, last| {
        move |b: &mut Batch| {
            let (nonce, fills) = (nonce(number), Some(hold(last)));
            b.changes[0] = Change::Grant { nonce, hold: hold(77), hold_ms: LONG_MS, fills };
        }
    };
    let moves =
        |number, of, from| move |b: &mut Batch| b.changes.push(move_to_consumed(number, of, from, None));
    let expires = |number, of| {
        move |b: &mut Batch| {
            b.changes.push(Change::Expire {
                nonce: nonce(number),
                hold: hold(of),
                early_ms: 0,
                to: Status::Released,
            });
        }
    };
    vec![
        kind("a nonce that was granted", Outcome::Diverged, |b| b.changes.push(new_grant(0, LONG_MS))),
        kind("a nonce that another hand has barred", Outcome::Refused, |b| {
            b.changes.push(new_grant(666_666, LONG_MS))
        }),
        kind("a hole that is held", Outcome::Diverged, fills(0, 0)),
        kind("a hole under another last hold", Outcome::Diverged, fills(1, 0)),
        kind("a hole that never was", Outcome::Diverged, fills(50, 1)),
        kind("a move from another state", Outcome::Diverged, moves(0, 0, Status::Quarantined)),
        kind("a move under another hold", Outcome::Diverged, moves(0, 1, Status::Held)),
        kind("a move of a nonce never granted", Outcome::Diverged, moves(50, 0, Status::Held)),
        kind("a hold that has not run out", Outcome::Diverged, expires(0, 0)),
        kind("a hold that is gone", Outcome::Diverged, expires(1, 1)),
        kind("one wrong row of many", Outcome::Diverged, |b| {
            b.changes.extend((3..400).map(|n| new_grant(n, LONG_MS)));
            b.changes.push(move_to_consumed(0, 0, Status::Released, None));
        }),
    ]
}

/// Batches that no table need be asked about.
fn wrong_in_themselves() -> Vec<(&'static str, Outcome, Spoil)> {
    let lasts = |hold_ms| move |b: &mut Batch| b.changes = vec![new_grant(2, hold_ms)];
    let policy = |hold_ms, max_in_flight| {
        move |b: &mut Batch| b.policy = Some(Policy { hold_ms, max_in_flight, ..Policy::default() })
    };
    vec![
        kind("a hold longer than any", Outcome::Refused, lasts(HOLD_MS_MAX + 1)),
        kind("a hold of all the milliseconds of 63 bits", Outcome::Refused, lasts(i64::MAX as u64)),
        kind("a hold of all the milliseconds of 64 bits", Outcome::Refused, lasts(u64::MAX)),
        kind("a policy with a hold of 64 bits", Outcome::Refused, policy(Some(u64::MAX), None)),
        kind("a policy with a window of 64 bits", Outcome::Refused, policy(None, Some(u64::MAX))),
        kind("a policy with a window too wide", Outcome::Refused, policy(None, Some(MAX_IN_FLIGHT_MAX + 1))),
        kind("a nonce granted twice", Outcome::Refused, |b| b.changes.push(new_grant(2, LONG_MS))),
        kind("a nonce granted and settled at once", Outcome::Refused, |b| {
            b.changes.push(move_to_consumed(2, 2, Status::Held, None));
        }),
        kind("a nonce settled twice", Outcome::Refused, |b| {
            b.changes.extend([
                move_to_consumed(0, 0, Status::Held, None),
                move_to_consumed(0, 0, Status::Held, None),
            ]);
        }),
        kind("a key twice", Outcome::Refused, |b| b.keys = vec![key("any", "new"), key("any", "new")]),
        kind("a NUL in a scope", Outcome::Refused, |b| b.keys = vec![key("any\0", "new")]),
        kind("a scope that no index takes", Outcome::Refused, |b| {
            let long: String =
                (0..10_000_u32).filter_map(|n| char::from_u32(33 + n * 7919 % 5_000)).collect();
            b.keys = vec![key(&long, "new")];
        }),
        kind("more rows than a batch may have", Outcome::Refused, |b| {
            b.changes = (2..6_002).map(|n| new_grant(n, LONG_MS)).collect();
        }),
        kind("more keys than a batch may have", Outcome::Refused, |b| {
            b.keys = (0..6_000).map(|n| key("many", &format!("new{n}"))).collect();
        }),
        kind("an answer of more grants than there can be", Outcome::Refused, |b| {
            b.keys = vec![key("any", "new")];
            b.keys[0].answer.grants = (0..100_000).map(|n| (nonce(n), hold(1))).collect();
        }),
    ]
}

/// Batches that look bad and are not.
fn odd_but_right() -> Vec<(&'static str, Outcome, Spoil)> {
    let scope = |text: &'static str| move |b: &mut Batch| b.keys = vec![key(text, "odd")];
    vec![
        kind("nothing at all", Outcome::Committed, |b| (b.changes, b.policy) = (vec![], None)),
        kind("the highest nonce", Outcome::Committed, |b| b.changes = vec![new_grant(NONCE_MAX, LONG_MS)]),
        kind("the longest hold", Outcome::Committed, |b| b.changes = vec![new_grant(2, HOLD_MS_MAX)]),
        kind("a scope like a surrogate", Outcome::Committed, scope("\\ud800 \\u0000 \\udfff")),
        kind(
            "a scope of odd characters",
            Outcome::Committed,
            scope("\u{ffff}\u{10ffff}\u{1}\u{7f}\u{2028}é\u{301}"),
        ),
        kind(
            "a scope like a program",
            Outcome::Committed,
            scope("'); DROP TABLE lease; --\"{}[]$1 %s\r\n\t"),
        ),
        kind("an empty scope", Outcome::Committed, scope("")),
        kind("a hash like a program", Outcome::Committed, |b| {
            b.changes = vec![move_to_consumed(0, 0, Status::Held, Some("';DROP/**/TABLE--\\\"{}\\u0000"))];
        }),
        kind("the largest batch", Outcome::Committed, |b| {
            b.changes = (2..5_001).map(|n| new_grant(n, LONG_MS)).collect();
        }),
    ]
}

fn key(scope: &str, name: &str) -> NewKey {
    let answer = GrantAnswer { token: Token::new(1), owner: owner("a"), grants: vec![] };
    let scope = KeyScope { scope: scope.to_owned(), key: IdempotencyKey::parse(name).unwrap() };
    NewKey { scope, body_hash: [0; 32], answer }
}

fn move_to_consumed(number: u64, of: u128, from: Status, hash: Option<&str>) -> Change {
    let tx_hash = hash.map(|text| TxHash::parse(text).unwrap());
    Change::Move { nonce: nonce(number), hold: hold(of), from, to: Status::Consumed, tx_hash }
}

async fn rows_of(b: &Bench, signer: &SignerId) -> Vec<NonceRecord> {
    let filter = NonceFilter { signer: signer.clone(), status: None, after: None, limit: 10_000 };
    b.ledger.nonces(&filter).await.unwrap()
}

fn outcome(answer: &ledger::Result<Verdict>) -> Outcome {
    match answer {
        Ok(Verdict::Committed { .. }) => Outcome::Committed,
        Ok(Verdict::Fenced) => Outcome::Fenced,
        Ok(Verdict::KeyTaken) => Outcome::KeyTaken,
        Ok(Verdict::Diverged) => Outcome::Diverged,
        Err(Error::Refused { .. }) => Outcome::Refused,
        other => panic!("{other:?}"),
    }
}

pub async fn every_kind_of_bad_data_is_told_so_and_sinks_nobody_else(b: Bench) {
    let a = owner("a");
    b.bars_nonce_666_666().await;
    let mut tokens = vec![];
    for n in 0..HONEST {
        tokens.push(b.acquired(&a, &signer(&format!("honest{n}")), LONG_MS * 10).await);
    }
    let mut first = batch(&signer("honest0"), &a, tokens[0], vec![]);
    first.keys = vec![key("any", "taken")];
    b.commits(first).await;
    let (mut trains, mut honest) = (HashSet::new(), 0);
    for (round, (what, expected, spoil)) in kinds().into_iter().enumerate() {
        let culprit = signer(&format!("culprit{round}"));
        let token = b.acquired(&a, &culprit, LONG_MS * 10).await;
        b.commits(batch(&culprit, &a, token, vec![new_grant(0, LONG_MS), new_grant(1, LONG_MS)])).await;
        let (from, to) = (Status::Held, Status::Released);
        let release = Change::Move { nonce: nonce(1), hold: hold(1), from, to, tx_hash: None };
        b.commits(batch(&culprit, &a, token, vec![release])).await;
        let before = rows_of(&b, &culprit).await;

        let mut write = batch(&culprit, &a, token, vec![new_grant(2, LONG_MS)]);
        spoil(&mut write);
        let scopes: Vec<_> = write.keys.iter().map(|key| key.scope.clone()).collect();
        let mut commits = JoinSet::new();
        for (n, &token) in tokens.iter().enumerate() {
            let mut write =
                batch(&signer(&format!("honest{n}")), &a, token, vec![new_grant(round as u64, LONG_MS)]);
            write.keys = vec![key("own", &format!("{n}-{round}"))];
            let ledger = b.ledger.clone();
            commits.spawn(async move { (n, ledger.commit(write).await) });
        }
        let answer = b.ledger.commit(write).await;
        assert_eq!(outcome(&answer), expected, "{what}: {answer:?}");
        while let Some(done) = commits.join_next().await {
            let (n, answer) = done.unwrap();
            let Ok(Verdict::Committed { at }) = answer else { panic!("{what} sank honest{n}: {answer:?}") };
            trains.insert(at);
            honest += 1;
        }
        let changed = rows_of(&b, &culprit).await != before;
        if expected != Outcome::Committed {
            assert!(!changed, "{what}: it wrote a row");
            for scope in
                scopes.iter().filter(|scope| scope.key.as_str() != "taken" && !scope.scope.contains('\0'))
            {
                assert_eq!(b.kept(scope).await, None, "{what}: it kept a key");
            }
        }
        for scope in scopes.iter().filter(|_| expected == Outcome::Committed) {
            assert!(b.kept(scope).await.is_some(), "{what}: its key {scope:?} is not found again");
        }
        assert!(b.ledger.load(&culprit, 10).await.is_ok(), "{what}: it cannot be loaded");
    }
    for n in 0..HONEST {
        assert_eq!(b.last(&signer(&format!("honest{n}"))).await, Some(kinds().len() as u64 - 1));
    }
    assert!(trains.len() < honest, "{honest} batches on {} trains: nobody rode with anybody", trains.len());
}

/// Two that keep the same key on one train: one is written, and the other reads its answer.
pub async fn one_of_two_signers_that_keep_the_same_key_is_written(b: Bench) {
    const SIGNERS: usize = 10;
    const ROUNDS: u64 = 10;
    let a = owner("a");
    let mut tokens = vec![];
    for n in 0..SIGNERS {
        tokens.push(b.acquired(&a, &signer(&format!("s{n}")), LONG_MS).await);
    }
    // Every committer has a long train under way, so that the batches after it wait and share the next one.
    let long = (0..4).map(|n| signer(&format!("long{n}")));
    let long: Vec<_> = long.collect();
    let mut long_tokens = vec![];
    for s in &long {
        long_tokens.push(b.acquired(&a, s, LONG_MS).await);
    }
    let mut committed = 0;
    for round in 0..ROUNDS {
        let mut under_way = JoinSet::new();
        for (s, &token) in long.iter().zip(&long_tokens) {
            let grants = (round * 2_000..(round + 1) * 2_000).map(|n| new_grant(n, LONG_MS)).collect();
            let (ledger, write) = (b.ledger.clone(), batch(s, &a, token, grants));
            under_way.spawn(async move { outcome(&ledger.commit(write).await) });
        }
        let mut commits = JoinSet::new();
        for (n, &token) in tokens.iter().enumerate() {
            let s = signer(&format!("s{n}"));
            let next = b.last(&s).await.map_or(0, |last| last + 1);
            let mut write = batch(&s, &a, token, vec![new_grant(next, LONG_MS)]);
            write.keys = vec![key("shared", &format!("k{round}"))];
            let ledger = b.ledger.clone();
            commits.spawn(async move { outcome(&ledger.commit(write).await) });
        }
        let outcomes: Vec<_> = commits.join_all().await;
        assert!(under_way.join_all().await.iter().all(|outcome| *outcome == Outcome::Committed));
        let winners = outcomes.iter().filter(|outcome| **outcome == Outcome::Committed).count();
        let losers = outcomes.iter().filter(|outcome| **outcome == Outcome::KeyTaken).count();
        assert_eq!((winners, losers), (1, SIGNERS - 1), "round {round}");
        committed += 1;
    }
    let mut rows = 0;
    for n in 0..SIGNERS {
        rows += rows_of(&b, &signer(&format!("s{n}"))).await.len();
    }
    assert_eq!(rows, committed, "a loser's row was written");
}
