//! A ledger that takes no writes for a while: the disk is full, the database is read-only, the role lacks a right, or a table is
//! missing. Writes fail as retryable, the health says why, and all heals by itself.

use std::time::Duration;

use domain::{InstanceId, SequenceName, SignerId, Token};
use ledger::{Error, Margins, Migrate, Options, SequenceChange, Unwritable, Verdict};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use crate::bench::{Bench, LONG_MS, batch, by, eventually, new_grant, owner, signer};
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_that_the_server_refuses_says_what_to_do() {
    let (b, role) = as_a_role(Bench::postgres().await).await;
    let (_, host) = b.options.url.rsplit_once('@').unwrap();
    let options = Options { url: format!("postgres://{role}@{host}"), ..b.options.clone() };
    let margins = Margins { numbers: 0, lead_ms: 0 };
    let told = async || match ledger::recover(&options, Migrate::Auto, margins, &by()).await {
        Err(Error::Unprepared(told)) => told,
        other => panic!("{other:?}"),
    };
    by_hand(&b, &format!("ALTER ROLE {role} SET default_transaction_read_only = on")).await;
    let text = told().await;
    assert!(text.contains("nothing was written") && text.contains("name the primary"), "{text}");
    by_hand(&b, &format!("ALTER ROLE {role} RESET ALL; REVOKE UPDATE, DELETE ON lease FROM {role}")).await;
    let text = told().await;
    assert!(text.contains("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES"), "{text}");
    by_hand(&b, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// The same database, whose ledger is opened by a role that has no rights but those on the tables; and that role.
async fn as_a_role(b: Bench) -> (Bench, String) {
    let (server, name) = b.options.url.rsplit_once('/').unwrap();
    let (scheme, server) = server.split_once("://").unwrap();
    let (role, host) = (format!("{name}_role"), server.rsplit('@').next().unwrap());
    let url = format!("{scheme}://{role}@{host}/{name}");
    let rights = "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public";
    by_hand(&b, &format!("CREATE ROLE {role} LOGIN; GRANT {rights} TO {role}")).await;
    let ledger = ledger::open(&Options { url, ..b.options.clone() }).await.unwrap();
    (Bench { ledger, ..b }, role)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_the_role_lacks_is_retryable_and_reported_until_it_has_it() {
    let (b, role) = as_a_role(Bench::postgres().await).await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    grants(&b, &s, &a, token, 0).await.unwrap();
    let is_denied = async || {
        for _ in 0..2 {
            // The probe writes to a table on which the role has all rights.
            assert_eq!(b.ledger.check().await.unwrap().unwritable, Some(Unwritable::Denied));
        }
        assert_eq!(b.ledger.unwritable(), Some(Unwritable::Denied));
    };
    by_hand(&b, &format!("REVOKE INSERT ON signer_nonce_allocation FROM {role}")).await;
    let refused = grants(&b, &s, &a, token, 1).await.unwrap_err();
    assert!(refused.is_retryable() && !refused.may_have_written(), "{refused:?}");
    is_denied().await;
    by_hand(&b, &format!("GRANT INSERT ON signer_nonce_allocation TO {role}")).await;
    assert_eq!(b.ledger.check().await.unwrap().unwritable, None);
    grants(&b, &s, &a, token, 1).await.unwrap();
    by_hand(&b, &format!("REVOKE SELECT ON job FROM {role}")).await;
    let refused = b.ledger.job(job(0)).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");
    is_denied().await;
    by_hand(&b, &format!("GRANT SELECT ON job TO {role}")).await;
    assert_eq!(b.ledger.check().await.unwrap().unwritable, None);
    assert!(b.ledger.job(job(0)).await.unwrap().is_none());
    by_hand(&b, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_missing_is_retryable_and_reported_until_it_is_there() {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    grants(&b, &s, &a, token, 0).await.unwrap();
    let is_incomplete = async || {
        for _ in 0..2 {
            // The probe writes to a table that is there.
            assert_eq!(b.ledger.check().await.unwrap().unwritable, Some(Unwritable::Incomplete));
        }
        assert_eq!(b.ledger.unwritable(), Some(Unwritable::Incomplete));
    };
    by_hand(&b, "ALTER TABLE signer_nonce_allocation RENAME TO gone").await;
    let refused = grants(&b, &s, &a, token, 1).await.unwrap_err();
    assert!(refused.is_retryable() && !refused.may_have_written(), "{refused:?}");
    is_incomplete().await;
    by_hand(&b, "ALTER TABLE gone RENAME TO signer_nonce_allocation").await;
    assert_eq!(b.ledger.check().await.unwrap().unwritable, None);
    grants(&b, &s, &a, token, 1).await.unwrap();
    by_hand(&b, "ALTER TABLE job RENAME TO gone").await;
    let refused = b.ledger.job(job(0)).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");
    is_incomplete().await;
    by_hand(&b, "ALTER TABLE gone RENAME TO job").await;
    assert_eq!(b.ledger.check().await.unwrap().unwritable, None);
    assert!(b.ledger.job(job(0)).await.unwrap().is_none());
}

/// A schema of the role's name comes first by default, also in sessions that are open. Another path is that of new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_path_that_is_changed_meanwhile_leads_to_no_other_tables() {
    let (b, role) = as_a_role(Bench::postgres().await).await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    grants(&b, &s, &a, token, 0).await.unwrap();
    let schema = format!("CREATE SCHEMA {role} CREATE TABLE lease (LIKE public.lease)");
    let rights = format!("GRANT USAGE ON SCHEMA {role} TO {role}; GRANT ALL ON {role}.lease TO {role}");
    by_hand(&b, &format!("{schema}; {rights}")).await;
    let token = b.acquired(&a, &s, LONG_MS).await;
    grants(&b, &s, &a, token, 1).await.unwrap();
    for (nonce, path) in [(2, "nowhere"), (3, "\"$user\", public")] {
        by_hand(&b, &format!("ALTER ROLE {role} SET search_path = {path}")).await;
        let end =
            format!("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = '{role}'");
        by_hand(&b, &end).await;
        eventually("a grant is committed in a new session", async || {
            match b.ledger.acquire(&domain::Resource::signer(&s), &a, LONG_MS).await {
                Ok(ledger::Acquisition::Acquired { token, .. }) => {
                    grants(&b, &s, &a, token, nonce).await.is_ok()
                }
                Ok(held) => panic!("{held:?}"),
                Err(error) => {
                    assert!(error.is_retryable(), "{error:?}");
                    false
                }
            }
        })
        .await;
        assert_eq!(b.ledger.check().await.unwrap().unwritable, None);
    }
    assert_eq!(b.last(&s).await, Some(3));
    by_hand(&b, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_a_policy_denies_are_reported_though_the_role_has_all_rights() {
    let (b, role) = as_a_role(Bench::postgres().await).await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    by_hand(&b, "ALTER TABLE signer_nonce_allocation ENABLE ROW LEVEL SECURITY").await;
    let refused = grants(&b, &s, &a, token, 0).await.unwrap_err();
    assert!(refused.is_retryable() && !refused.may_have_written(), "{refused:?}");
    for _ in 0..2 {
        assert_eq!(b.ledger.check().await.unwrap().unwritable, Some(Unwritable::Denied));
    }
    by_hand(&b, "ALTER TABLE signer_nonce_allocation DISABLE ROW LEVEL SECURITY").await;
    grants(&b, &s, &a, token, 0).await.unwrap();
    by_hand(&b, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// Ends the sessions of a role that have this name, and waits until they are gone.
async fn end_sessions(b: &Bench, role: &str, name: &str) {
    let end = format!(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
         WHERE usename = '{role}' AND application_name = '{name}'"
    );
    by_hand(b, &end).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_connection_for_a_write_is_away_while_it_answers_reads() {
    let (b, role) = as_a_role(Bench::postgres().await).await;
    let (a, s) = (owner("a"), signer("s"));
    let of_database =
        |what: &str| format!("DO $$ BEGIN EXECUTE format('{what} PUBLIC', current_database()); END $$");
    let refusals = [
        (format!("ALTER ROLE {role} CONNECTION LIMIT 1"), format!("ALTER ROLE {role} CONNECTION LIMIT -1")),
        (of_database("REVOKE CONNECT ON DATABASE %I FROM"), of_database("GRANT CONNECT ON DATABASE %I TO")),
    ];
    for (nonce, (refuse, allow)) in [0, 2].into_iter().zip(refusals) {
        let token = b.acquired(&a, &s, LONG_MS).await;
        grants(&b, &s, &a, token, nonce).await.unwrap();
        // On connections that stay: several, since the one that was used last may not be back in the pool yet.
        let reads = async || b.ledger.lease(&domain::Resource::signer(&s)).await.unwrap();
        futures_util::future::join_all((0..4).map(|_| reads())).await;
        by_hand(&b, &refuse).await;
        end_sessions(&b, &role, "fencepost trains").await;
        eventually("a write has no connection", async || {
            let refused = grants(&b, &s, &a, token, nonce + 1).await.unwrap_err();
            assert!(refused.is_retryable(), "{refused:?}");
            !refused.may_have_written()
        })
        .await;
        for _ in 0..2 {
            reads().await;
            b.ledger.check().await.unwrap_err();
            assert_eq!(b.ledger.unwritable(), None);
        }
        by_hand(&b, &allow).await;
        b.ledger.check().await.unwrap();
        let token = b.acquired(&a, &s, LONG_MS).await;
        grants(&b, &s, &a, token, nonce + 1).await.unwrap();
    }
    by_hand(&b, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_write_fails_on_a_connection_that_the_server_ended_while_it_was_idle() {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let (token, lane) = (b.acquired(&a, &s, LONG_MS).await, b.lane(session("l"), &a).await);
    let sequence = SequenceName::parse("s").unwrap();
    b.ledger.put_sequence(&sequence, &SequenceChange::default(), &by()).await.unwrap();
    for number in 0..3 {
        let granted = grants(&b, &s, &a, token, number).await;
        assert!(matches!(granted, Ok(Verdict::Committed { .. })), "{granted:?}");
        b.does(of_lane(&lane, [submit(plain(job(number)))])).await;
        b.ledger.grant_sequence(&sequence, 1).await.unwrap();
        by_hand(
            &b,
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
             WHERE datname = current_database()
               AND application_name IN ('fencepost trains', 'fencepost sequences')",
        )
        .await;
        // One that was used a moment ago is taken as it is.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_without_a_connection_has_written_nothing() {
    let b = Bench::postgres().await;
    // It waits for a connection nearly as long.
    let options = Options { call_timeout_ms: 2_000, ..b.options.clone() };
    let (b, role) = as_a_role(Bench { options, ..b }).await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    // On a connection that stays.
    grants(&b, &s, &a, token, 0).await.unwrap();
    by_hand(&b, &format!("ALTER ROLE {role} CONNECTION LIMIT 1")).await;
    end_sessions(&b, &role, "fencepost").await;
    let refused = async || {
        let refused = b.ledger.acquire(&domain::Resource::signer(&s), &a, LONG_MS).await.unwrap_err();
        assert!(refused.is_retryable(), "{refused:?}");
        refused
    };
    // The pool hears of each connection that is gone when it is used.
    eventually("an acquire has no connection", async || !refused().await.may_have_written()).await;
    for _ in 0..2 {
        assert!(!refused().await.may_have_written());
        b.ledger.check().await.unwrap_err();
    }
    by_hand(&b, &format!("ALTER ROLE {role} CONNECTION LIMIT -1")).await;
    b.ledger.check().await.unwrap();
    b.acquired(&a, &s, LONG_MS).await;
    by_hand(&b, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_the_role_may_not_make_are_refused_and_say_nothing_of_writes() {
    let (b, role) = as_a_role(Bench::postgres().await).await;
    by_hand(
        &b,
        "DO $$ DECLARE part text; BEGIN
             FOR part IN SELECT inhrelid::regclass::text FROM pg_inherits
                         WHERE inhparent = 'job_finished'::regclass AND inhrelid::regclass::text ~ '[0-9]$' LOOP
                 EXECUTE 'DROP TABLE ' || part;
             END LOOP;
         END $$",
    )
    .await;
    let refused = b.ledger.make_job_partitions().await.unwrap_err();
    assert!(!refused.is_retryable(), "a person has to change something: {refused:?}");
    assert_eq!(b.ledger.unwritable(), None);
    by_hand(&b, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}
