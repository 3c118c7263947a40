//! Opening a ledger: the tables are there, stay, and are left alone when they are newer.

use ledger::{Error, Kind};

use crate::bench::{Bench, LONG_MS, batch_with_policy, new_grant, owner, signer};

pub async fn the_ledger_is_found_again_as_it_was_left(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    b.commits(batch_with_policy(&s, &a, token, vec![new_grant(0, LONG_MS)])).await;
    let Bench { ledger, options, database, _folder } = b;
    ledger.close().await;
    let kind = ledger.kind();
    if kind == Kind::Sqlite {
        let second = ledger::open(&options).await.err();
        let pid = std::process::id().to_string();
        assert!(matches!(&second, Some(Error::InUse { pid: holder, .. }) if *holder == pid), "{second:?}");
    }
    drop(ledger);
    ledger::migrate(&options).await.unwrap();
    let ledger = ledger::open(&options).await.unwrap();
    let record = ledger.signer(&s).await.unwrap().unwrap();
    assert_eq!((record.next_nonce, record.held), (1, 1));
    // Only one process can have a SQLite file, so that whoever left leases there is dead. On a server
    // the lease runs on.
    assert_eq!(record.owner.is_none(), kind == Kind::Sqlite);
    drop((database, _folder));
}

pub async fn a_start_ends_no_lock_of_a_tenant(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    b.acquired(&a, &s, LONG_MS).await;
    let Bench { ledger, options, database, _folder } = b;
    let kind = ledger.kind();
    let (ago, later) = match kind {
        Kind::Sqlite => ("1", "99999999999999999"),
        Kind::Postgres => ("now()", "now() + interval '1 hour'"),
    };
    let insert = format!(
        "INSERT INTO lease (resource, owner, fencing_token, acquired_at, renewed_at, expires_at)
         VALUES ('tenant:t', 'task:1', 7, {ago}, {ago}, {later})"
    );
    sqlx_execute(&options.url, &insert).await;
    ledger.close().await;
    drop(ledger);
    let ledger = ledger::open(&options).await.unwrap();
    let record = ledger.signer(&s).await.unwrap();
    assert!(record.is_none_or(|record| record.owner.is_none() == (kind == Kind::Sqlite)));
    let untouched = format!(
        "UPDATE lease SET owner = owner
         WHERE resource = 'tenant:t' AND owner = 'task:1' AND fencing_token = 7 AND expires_at > {ago}"
    );
    assert_eq!(sqlx_execute(&options.url, &untouched).await, 1, "the task has its lock still");
    drop((database, _folder));
}

pub async fn a_newer_database_is_refused(b: Bench) {
    let insert = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                  VALUES (9999, 'from the future', TRUE, '', 0)";
    let Bench { ledger, options, database, _folder } = b;
    ledger.close().await;
    drop(ledger);
    sqlx_execute(&options.url, insert).await;
    let refused = ledger::open(&options).await.err();
    let Some(Error::Migration(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("newer") && why.contains("9999"), "{why}");
    drop((database, _folder));
}

async fn sqlx_execute(url: &str, statement: &str) -> u64 {
    use sqlx::Connection;
    let statement = sqlx::AssertSqlSafe(statement.to_owned());
    if url.starts_with("sqlite") {
        let mut connection = sqlx::SqliteConnection::connect(url).await.unwrap();
        sqlx::query(statement).execute(&mut connection).await.unwrap().rows_affected()
    } else {
        let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
        sqlx::query(statement).execute(&mut connection).await.unwrap().rows_affected()
    }
}

pub async fn durable_settings_raise_no_warning(b: Bench) {
    assert_eq!(b.ledger.check().await.unwrap().durability_warnings, [""; 0]);
}
