//! Idempotency keys: kept in the commit that they stand for, or not at all (I3).

use domain::{IdempotencyKey, InstanceId, Token};
use ledger::{GrantAnswer, KeyScope, NewKey, Options, Verdict};

use crate::bench::{Bench, LONG_MS, batch, eventually, hold, new_grant, nonce, owner, signer};

fn key(name: &str, owner: &InstanceId, number: u64) -> NewKey {
    NewKey {
        scope: KeyScope { scope: "grant signer:s".to_owned(), key: IdempotencyKey::parse(name).unwrap() },
        body_hash: [7; 32],
        answer: GrantAnswer {
            token: Token::new(1),
            owner: owner.clone(),
            grants: vec![(nonce(number), hold(u128::from(number)))],
        },
    }
}

pub async fn a_key_is_kept_with_its_batch_and_taken_afterwards(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    let first = key("k", &a, 0);
    let mut write = batch(&s, &a, token, vec![new_grant(0, LONG_MS)]);
    write.keys = vec![first.clone()];
    b.commits(write).await;
    let kept = b.kept(&first.scope).await.unwrap();
    assert_eq!((kept.body_hash, kept.answer), (first.body_hash, first.answer.clone()));
    let mut again = batch(&s, &a, token, vec![new_grant(1, LONG_MS)]);
    again.keys = vec![key("k", &a, 1)];
    assert_eq!(b.ledger.commit(again).await.unwrap(), Verdict::KeyTaken);
    assert_eq!(b.last(&s).await, Some(0), "nothing is written beside a taken key");
    assert_eq!(b.kept(&first.scope).await.unwrap().answer, first.answer);
    let elsewhere = KeyScope { scope: "grant signer:other".to_owned(), ..first.scope };
    assert_eq!(b.kept(&elsewhere).await, None);
}

pub async fn a_key_is_not_kept_with_a_batch_that_failed(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    b.commits(batch(&s, &a, token, vec![new_grant(0, LONG_MS)])).await;
    let failed = key("k", &a, 0);
    let mut write = batch(&s, &a, token, vec![new_grant(0, LONG_MS)]);
    write.keys = vec![failed.clone()];
    assert_eq!(b.ledger.commit(write).await.unwrap(), Verdict::Diverged);
    assert_eq!(b.kept(&failed.scope).await, None);
}

pub async fn one_of_many_requests_under_one_key_is_written(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    let writes = (0..12).map(|number| {
        let (ledger, mut write) = (b.ledger.clone(), batch(&s, &a, token, vec![new_grant(number, LONG_MS)]));
        write.keys = vec![key("k", &a, number)];
        tokio::spawn(async move { ledger.commit(write).await.unwrap() })
    });
    let mut committed = 0;
    for write in writes.collect::<Vec<_>>() {
        match write.await.unwrap() {
            Verdict::Committed { .. } => committed += 1,
            verdict => assert_eq!(verdict, Verdict::KeyTaken),
        }
    }
    assert_eq!(committed, 1);
    let all: Vec<_> = (0..12).map(nonce).collect();
    assert_eq!(b.ledger.rows(&s, &all).await.unwrap().value.len(), 1);
}

pub async fn old_keys_are_purged_in_steps(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    for number in 0..5 {
        let mut write = batch(&s, &a, token, vec![new_grant(number, LONG_MS)]);
        write.keys = vec![key(&format!("k{number}"), &a, number)];
        b.commits(write).await;
    }
    assert_eq!(b.ledger.purge_keys(LONG_MS, 100).await.unwrap(), 0, "young keys stay");
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    assert_eq!(b.ledger.purge_keys(2, 3).await.unwrap(), 3);
    assert_eq!(b.ledger.purge_keys(0, 3).await.unwrap(), 2);
    assert_eq!(b.kept(&key("k4", &a, 4).scope).await, None);
}

pub async fn a_purge_of_keys_goes_on_where_the_step_before_it_ended(b: Bench) {
    const HOUR_MS: u64 = 3_600_000;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    let hours = if b.database.is_some() { "interval '1 hour'" } else { "3600000000" };
    let ages = async |name: &str, by: u64| {
        let older = format!(
            "UPDATE idempotency_key SET created_at = created_at - {by} * {hours} WHERE key = '{name}'"
        );
        b.by_hand(older).await;
    };
    for (number, name, age) in [(0, "first", 4), (1, "second", 3), (2, "third", 2)] {
        let mut write = batch(&s, &a, token, vec![new_grant(number, LONG_MS)]);
        write.keys = vec![key(name, &a, number)];
        b.commits(write).await;
        ages(name, age).await;
    }
    let left = async || {
        let scopes = ["first", "second", "third"].map(|name| key(name, &a, 0).scope);
        let kept = b.ledger.kept_keys(&scopes).await.unwrap();
        let mut names: Vec<_> = kept.into_iter().map(|(scope, _)| scope.key.as_str().to_owned()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(b.ledger.purge_keys(HOUR_MS, 1).await.unwrap(), 1);
    assert_eq!(left().await, ["second", "third"]);
    // As one that another transaction had locked.
    ages("third", 10).await;
    assert_eq!(b.ledger.purge_keys(HOUR_MS, 1).await.unwrap(), 1);
    assert_eq!(left().await, ["third"], "nothing before the first is looked at");
    let mut ended = 0;
    while b.ledger.purge_keys(HOUR_MS, 1).await.unwrap() == 0 {
        ended += 1;
        assert!(ended < 1_000, "one in many begins with the oldest");
    }
    assert!(ended > 10, "few begin with the oldest: {ended}");
    assert!(left().await.is_empty());
}

/// A step that passes over too much is one that sleeps here: PostgreSQL ends it.
#[tokio::test]
async fn a_purge_of_keys_of_which_a_step_takes_too_long_goes_on_with_what_has_just_come_of_age() {
    const MINUTE_MS: u64 = 60_000;
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    for (number, name, minutes) in [(0, "oldest", 300), (1, "due", 60), (2, "stuck", 50), (3, "last", 30)] {
        let mut write = batch(&s, &a, token, vec![new_grant(number, LONG_MS)]);
        write.keys = vec![key(name, &a, number)];
        b.commits(write).await;
        let older = format!(
            "UPDATE idempotency_key SET created_at = created_at - {minutes} * interval '1 minute' \
             WHERE key = '{name}'"
        );
        b.by_hand(older).await;
    }
    let sleeps = "CREATE FUNCTION sleeps() RETURNS trigger LANGUAGE plpgsql AS \
                  $$ BEGIN PERFORM pg_sleep(600); RETURN OLD; END $$";
    let at_two = "CREATE TRIGGER sleeps BEFORE DELETE ON idempotency_key FOR EACH ROW \
                  WHEN (OLD.key IN ('oldest', 'stuck')) EXECUTE FUNCTION sleeps()";
    for statement in [sleeps, at_two] {
        b.by_hand(statement.to_owned()).await;
    }
    let begun = ledger::open(&Options { call_timeout_ms: 2_000, ..b.options.clone() }).await.unwrap();
    // The first step of a process, and one that looks for what came of age since it deleted something.
    for (minutes, passed, purged, number) in [(60, "oldest", "due", 1), (30, "stuck", "last", 3)] {
        let late = begun.purge_keys(minutes * MINUTE_MS, 10).await.unwrap_err();
        assert!(late.is_late(), "{late:?}");
        eventually("PostgreSQL has ended the late statement, and its locks", async || {
            matches!(begun.purge_keys(minutes * MINUTE_MS, 10).await, Ok(1))
        })
        .await;
        assert!(b.kept(&key(purged, &a, number).scope).await.is_none());
        assert!(b.kept(&key(passed, &a, number - 1).scope).await.is_some(), "it is left to a later purge");
    }
}
