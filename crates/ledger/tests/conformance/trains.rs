//! Commit trains: many signers in one transaction, each with a fate of its own.

use domain::nonce::{Change, Status};
use domain::{IdempotencyKey, Token, TxHash};
use ledger::{Batch, Fate, GrantAnswer, KeyScope, Link, NewKey, Verdict};
use tokio::task::JoinSet;

use crate::bench::{Bench, LONG_MS, batch, hold, new_grant, nonce, owner, signer};

fn key(name: &str) -> NewKey {
    let answer = GrantAnswer { token: Token::new(1), owner: owner("a"), grants: vec![] };
    let scope = KeyScope { scope: "any".to_owned(), key: IdempotencyKey::parse(name).unwrap() };
    NewKey { scope, body_hash: [0; 32], answer }
}

/// Ways for a batch not to be written, and the answer to each.
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

/// Two batches of a signer under way at once: the second is decided on what the first one grants.
pub async fn a_batch_follows_another_and_is_lost_with_it(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    let (mut last, mut under_way) = (None, JoinSet::new());
    // The fifth is of a token that never was.
    for n in 0..9 {
        let token = if n == 4 { Token::new(77) } else { token };
        let grants = (20 * n..20 * (n + 1)).map(|number| new_grant(number, LONG_MS)).collect();
        let (ledger, write, own) = (b.ledger.clone(), batch(&s, &a, token, grants), Fate::default());
        let link = Link::new(own.clone(), last.replace(own));
        under_way.spawn(async move { (n, ledger.commit_linked(write, link).await.unwrap()) });
    }
    let mut verdicts = under_way.join_all().await;
    verdicts.sort_by_key(|(n, _)| *n);
    for (n, verdict) in verdicts {
        match n {
            0..4 => assert!(matches!(verdict, Verdict::Committed { .. }), "{n}: {verdict:?}"),
            4 => assert_eq!(verdict, Verdict::Fenced),
            _ => assert_eq!(verdict, Verdict::Undone, "{n}"),
        }
    }
    assert_eq!(b.last(&s).await, Some(79), "nothing is written behind what was lost");
}
