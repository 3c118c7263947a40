//! A ledger that takes no writes for a while: the disk is full, or the database is read-only. Writes fail as
//! retryable, the health says why, and all heals by itself.

use domain::{InstanceId, SignerId, Token};
use ledger::{Unwritable, Verdict};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use crate::bench::{Bench, LONG_MS, batch, eventually, new_grant, owner, signer};
use crate::shop::{job, of_lane, plain, session, submit};

/// Runs statements as another hand would, on a connection of its own.
async fn by_hand(b: &Bench, statements: &str) {
    let statements = AssertSqlSafe(statements.to_owned());
    if b.database.is_some() {
        let mut hand = PgConnection::connect(&b.options.url).await.unwrap();
        sqlx::raw_sql(statements).execute(&mut hand).await.unwrap();
        hand.close().await.unwrap();
    } else {
        let mut hand = SqliteConnection::connect(&b.options.url).await.unwrap();
        sqlx::raw_sql(statements).execute(&mut hand).await.unwrap();
        hand.close().await.unwrap();
    }
}

/// Grants a nonce for the first time.
async fn grants(
    b: &Bench,
    s: &SignerId,
    a: &InstanceId,
    token: Token,
    nonce: u64,
) -> ledger::Result<Verdict> {
    b.ledger.commit(batch(s, a, token, vec![new_grant(nonce, LONG_MS)])).await
}

pub async fn a_transaction_that_the_database_undid_by_itself_breaks_no_later_one(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let lane = b.lane(session("l"), &a).await;
    // SQLite ends the transaction, as it does when the disk is full; PostgreSQL ends the session.
    let undo = if b.database.is_some() {
        "CREATE FUNCTION end_session() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
         CREATE TRIGGER undo BEFORE INSERT ON signer_nonce_allocation FOR EACH ROW
             WHEN (NEW.nonce = 666666) EXECUTE FUNCTION end_session();
         CREATE TRIGGER undo BEFORE INSERT ON job FOR EACH ROW
             WHEN (NEW.payload = '\"undo\"') EXECUTE FUNCTION end_session()"
    } else {
        "CREATE TRIGGER undo BEFORE INSERT ON signer_nonce_allocation WHEN NEW.nonce = 666666
             BEGIN SELECT RAISE(ROLLBACK, 'undone'); END;
         CREATE TRIGGER undo_job BEFORE INSERT ON job WHEN NEW.payload = '\"undo\"'
             BEGIN SELECT RAISE(ROLLBACK, 'undone'); END"
    };
    by_hand(&b, undo).await;
    for number in 0..3 {
        let token = b.acquired(&a, &s, LONG_MS).await;
        grants(&b, &s, &a, token, 666_666).await.unwrap_err();
        let committed = grants(&b, &s, &a, token, number).await;
        assert!(matches!(committed, Ok(Verdict::Committed { .. })), "{committed:?}");
        let mut undone = plain(job(number));
        undone.spec.payload = "\"undo\"".into();
        b.ledger.commit_jobs(of_lane(&lane, [submit(undone)])).await.unwrap_err();
        b.does(of_lane(&lane, [submit(plain(job(number)))])).await;
    }
}

/// PostgreSQL alone: SQLite's own test is beside its code, since only the writing connection can be given a limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_the_server_is_retryable_and_reported_until_it_has_room() {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    by_hand(
        &b,
        "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END $$;
         CREATE TRIGGER full_nonces BEFORE INSERT ON signer_nonce_allocation EXECUTE FUNCTION no_room();
         CREATE TRIGGER full_settings BEFORE INSERT ON setting EXECUTE FUNCTION no_room()",
    )
    .await;
    let refused = grants(&b, &s, &a, token, 0).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");
    for _ in 0..2 {
        // The lease is renewed all the while: a small write has room where a large one has none.
        b.acquired(&a, &s, LONG_MS).await;
        assert_eq!(b.ledger.check().await.unwrap().unwritable, Some(Unwritable::DiskFull));
    }
    by_hand(&b, "DROP TRIGGER full_nonces ON signer_nonce_allocation; DROP TRIGGER full_settings ON setting")
        .await;
    assert_eq!(b.ledger.check().await.unwrap().unwritable, None);
    let token = b.acquired(&a, &s, LONG_MS).await;
    grants(&b, &s, &a, token, 0).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_only_reads_is_retryable_and_reported_until_it_writes() {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    grants(&b, &s, &a, token, 0).await.unwrap();
    // New sessions are read-only; the old ones end.
    by_hand(
        &b,
        "DO $$ BEGIN
             EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database());
             PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid();
         END $$",
    )
    .await;
    eventually("writes are refused as read-only", async || {
        let granted = grants(&b, &s, &a, token, 1).await.unwrap_err();
        let acquired = b.ledger.acquire(&domain::Resource::signer(&s), &a, LONG_MS).await.unwrap_err();
        assert!(granted.is_retryable() && acquired.is_retryable(), "{granted:?}, {acquired:?}");
        b.ledger.check().await.is_ok_and(|health| health.unwritable == Some(Unwritable::ReadOnly))
    })
    .await;
    by_hand(
        &b,
        "SET TRANSACTION READ WRITE;
         DO $$ BEGIN
             EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', current_database());
         END $$",
    )
    .await;
    eventually("the ledger takes writes again", async || {
        b.ledger.check().await.is_ok_and(|health| health.unwritable.is_none())
    })
    .await;
    eventually("a grant is committed", async || {
        match b.ledger.acquire(&domain::Resource::signer(&s), &a, LONG_MS).await {
            Ok(ledger::Acquisition::Acquired { token, .. }) => grants(&b, &s, &a, token, 1).await.is_ok(),
            Ok(held) => panic!("{held:?}"),
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                false
            }
        }
    })
    .await;
}
