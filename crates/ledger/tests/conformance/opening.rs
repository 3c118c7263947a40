//! Opening a ledger: the tables are there, stay, and are left alone when they are newer.

use std::sync::Arc;

use domain::Resource;
use ledger::{Acquisition, Error, Kind, Migrate, Options, Witness};
use sqlx::Connection;
use testkit::proxy::Proxy;
use testkit::servers::Postgres;
use tokio::runtime;
use tokio::task::block_in_place;

use crate::bench::{Bench, LONG_MS, batch_with_policy, eventually, new_grant, options_of, owner, signer};
use crate::sessions::spec;
use crate::shop::session_id;

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
        // Nor by a link.
        let file = options.url.trim_start_matches("sqlite:").trim_start_matches("//");
        std::os::unix::fs::symlink(file, format!("{file}.link")).unwrap();
        let by_link = Options { url: format!("{}.link", options.url), ..options.clone() };
        let second = ledger::open(&by_link).await.err();
        assert!(matches!(&second, Some(Error::InUse { .. })), "{second:?}");
        // Nor by a hard link, beside which SQLite would look for another log; nor is a copy made by it, which would lack the log.
        let hard_link = format!("{file}.hard");
        std::fs::hard_link(file, &hard_link).unwrap();
        let by_link = Options { url: format!("sqlite:{hard_link}"), ..options.clone() };
        let copy = format!("{file}.copy");
        for refused in [
            ledger::open(&by_link).await.err(),
            ledger::backup(&by_link, std::path::Path::new(&copy)).await.err(),
        ] {
            let Some(Error::Address(why)) = refused else { panic!("{refused:?}") };
            assert!(why.contains(&hard_link) && why.contains("2 names"), "{why}");
        }
        std::fs::remove_file(hard_link).unwrap();
        // Nor by a URI, which SQLite reads as another name of the file.
        let by_uri = Options { url: format!("sqlite:file:{file}"), ..options.clone() };
        let second = ledger::open(&by_uri).await.err();
        assert!(matches!(&second, Some(Error::Address(_))), "{second:?}");
    }
    drop(ledger);
    ledger::migrate(&options, Migrate::Auto).await.unwrap();
    let ledger = ledger::open(&options).await.unwrap();
    let record = ledger.signer(&s).await.unwrap().unwrap();
    assert_eq!((record.next_nonce, record.held), (1, 1));
    // Only one process can have a SQLite file, so the owner of leases there is dead. On a server
    // the lease runs on.
    assert_eq!(record.owner.is_none(), kind == Kind::Sqlite);
    drop((database, _folder));
}

#[test]
fn an_address_is_of_one_database_whatever_the_password() {
    let address = |url: &str| ledger::address(url).unwrap();
    let here = address("postgres://fence:pass-1@db:5432/f");
    assert_eq!(address("postgresql://fence:pass-2@db/f"), here);
    assert!(!here.contains("pass-1"), "{here}");
    for other in [
        "fence:pass-1@db:5433/f",
        "fence:pass-1@db2:5432/f",
        "fence:pass-1@db:5432/g",
        "role:pass-1@db:5432/f",
    ] {
        assert_ne!(address(&format!("postgres://{other}")), here, "{other}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("ledger.db"), folder.path().join("link"));
    std::fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let of_path = |path: &std::path::Path| address(&format!("sqlite:{}", path.display()));
    assert_eq!(of_path(&link), of_path(&file));
    assert_ne!(of_path(&folder.path().join("other.db")), of_path(&file));
    assert_ne!(address("sqlite:ledger.db"), "sqlite ledger.db", "it is relative to a folder");
    for no_path in ["mysql://db/f", "sqlite:file:ledger.db", "sqlite://file:ledger.db"] {
        assert!(matches!(ledger::address(no_path), Err(Error::Address(_))), "{no_path}");
    }
    assert!(address("sqlite:./file:ledger.db").ends_with("/file:ledger.db"));
}

#[test]
fn a_file_has_one_address_before_it_is_made_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let (real, link) = (folder.path().join("real"), folder.path().join("link"));
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    // A link to a file that is made by its first use.
    std::os::unix::fs::symlink("new/target.db", real.join("linked.db")).unwrap();
    let named =
        ["ledger.db", "new/ledger.db", "new/deeper/ledger.db", "linked.db"].map(|name| link.join(name));
    let addresses =
        || named.each_ref().map(|path| ledger::address(&format!("sqlite:{}", path.display())).unwrap());
    let before = addresses();
    std::fs::create_dir_all(real.join("new/deeper")).unwrap();
    for path in &named {
        // Through the link, if it is one.
        std::fs::write(path, "").unwrap();
    }
    assert_eq!(addresses(), before);
    assert!(before.iter().all(|address| !address.contains("/link")), "{before:?}");
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
    execute(&options.url, &insert).await;
    ledger.close().await;
    drop(ledger);
    let ledger = ledger::open(&options).await.unwrap();
    let record = ledger.signer(&s).await.unwrap();
    assert!(record.is_none_or(|record| record.owner.is_none() == (kind == Kind::Sqlite)));
    let untouched = format!(
        "UPDATE lease SET owner = owner
         WHERE resource = 'tenant:t' AND owner = 'task:1' AND fencing_token = 7 AND expires_at > {ago}"
    );
    assert_eq!(execute(&options.url, &untouched).await, 1, "the task has its lock still");
    drop((database, _folder));
}

pub async fn a_newer_database_is_refused(b: Bench) {
    let insert = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                  VALUES (9999, 'from the future', TRUE, '', 0)";
    let Bench { ledger, options, database, _folder } = b;
    ledger.close().await;
    drop(ledger);
    execute(&options.url, insert).await;
    let refused = ledger::open(&options).await.err();
    let Some(Error::Migration(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("newer") && why.contains("9999"), "{why}");
    drop((database, _folder));
}

/// For a start that only a refusal ends.
fn patient(url: String) -> Options {
    Options { connections_max: 2, connect_timeout_ms: LONG_MS, call_timeout_ms: LONG_MS, ..options_of(url) }
}

async fn opened_as_it_is(options: &Options) -> ledger::Result<ledger::Handle> {
    ledger::open_on(options, &[runtime::Handle::current()], Migrate::Check).await
}

pub async fn newer_tables_that_older_binaries_can_read_are_served(b: Bench) {
    let Bench { ledger, options, database, _folder } = b;
    ledger.close().await;
    drop(ledger);
    let insert = "INSERT INTO schema_migration (version, description, success, checksum, execution_time) \
                  VALUES (9999, 'from the future', TRUE, '', 0)";
    execute(&options.url, insert).await;
    execute(&options.url, "ALTER TABLE lease ADD COLUMN from_the_future text").await;
    for (migrate, s) in [(Migrate::Auto, signer("auto")), (Migrate::Check, signer("check"))] {
        let ledger = ledger::open_on(&options, &[runtime::Handle::current()], migrate).await.unwrap();
        let acquired = ledger.acquire(&Resource::signer(&s), &owner("a"), LONG_MS).await.unwrap();
        assert!(matches!(acquired, Acquisition::Acquired { .. }), "{acquired:?}");
        ledger.close().await;
    }
    drop((database, _folder));
}

pub async fn newer_tables_that_this_binary_cannot_read_are_refused(b: Bench) {
    let Bench { ledger, options, database, _folder } = b;
    ledger.close().await;
    let now = match ledger.kind() {
        Kind::Sqlite => "1",
        Kind::Postgres => "now()",
    };
    drop(ledger);
    let insert = format!(
        "INSERT INTO setting (name, version, value, updated_at) VALUES ('schema.readable_from', 1, '9998', {now})"
    );
    execute(&options.url, &insert).await;
    for refused in [ledger::open(&options).await.err(), opened_as_it_is(&options).await.err()] {
        let Some(Error::Migration(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("newer") && why.contains("9998"), "{why}");
    }
    drop((database, _folder));
}

pub async fn a_check_changes_nothing_and_refuses_older_tables_by_the_command_that_mends_them(b: Bench) {
    let Bench { ledger, options, database, _folder } = b;
    ledger.close().await;
    drop(ledger);
    opened_as_it_is(&options).await.unwrap().close().await;
    execute(&options.url, "DELETE FROM _sqlx_migrations WHERE version = 13").await;
    for _ in 0..2 {
        let refused = opened_as_it_is(&options).await.err();
        let Some(Error::Migration(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("fencepost migrate") && why.contains("13"), "{why}");
    }
    drop((database, _folder));
}

pub async fn a_check_creates_no_ledger(b: Bench) {
    let Bench { ledger, options, database, _folder } = b;
    let empty = match ledger.kind() {
        Kind::Sqlite => None,
        Kind::Postgres => Some(fresh().await),
    };
    let url = empty.as_ref().map_or_else(|| format!("{}.new", options.url), |empty| empty.url().to_owned());
    let nowhere = Options { url, ..options };
    for _ in 0..2 {
        let refused = opened_as_it_is(&nowhere).await.err();
        let Some(Error::Migration(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("fencepost migrate"), "{why}");
        // Nor does a recovery: the one that is meant would not be recovered.
        let margins = ledger::Margins { numbers: 0, lead_ms: 0 };
        let mut refusals = vec![ledger::try_recovery(&nowhere, margins).await.err()];
        for migrate in [Migrate::Auto, Migrate::Check] {
            let by = crate::bench::by();
            refusals.push(ledger::recover(&nowhere, migrate, margins, &by).await.err());
        }
        for refused in refusals {
            let Some(Error::Migration(why)) = refused else { panic!("{refused:?}") };
            assert!(why.contains("no ledger") && why.contains("--database-url"), "{why}");
            assert!(!why.contains("fencepost migrate"), "{why}");
        }
    }
    ledger::migrate(&nowhere, Migrate::Auto).await.unwrap();
    opened_as_it_is(&nowhere).await.unwrap().close().await;
    drop((database, _folder));
}

pub async fn another_ledger_than_the_expected_one_is_refused_and_none_is_made_in_its_place(b: Bench) {
    let Bench { ledger, options, database, _folder } = b;
    let Ok(Witness::Current(identity)) = ledger.witness(None).await else { panic!("nothing else is known") };
    ledger.close().await;
    let empty = match ledger.kind() {
        Kind::Sqlite => None,
        Kind::Postgres => Some(fresh().await),
    };
    drop(ledger);
    let (id, other) = (identity.cluster, "0".repeat(32));
    let expecting = |id: &str| Options { expected_id: Some(id.to_owned()), ..options.clone() };
    ledger::open(&expecting(&id)).await.unwrap().close().await;
    // A start that came as far as the migrations would try the one that it lacks.
    execute(&options.url, "DELETE FROM _sqlx_migrations WHERE version = 13").await;
    let margins = ledger::Margins { numbers: 0, lead_ms: 0 };
    for refused in [
        ledger::open(&expecting(&other)).await.err(),
        opened_as_it_is(&expecting(&other)).await.err(),
        ledger::migrate(&expecting(&other), Migrate::Auto).await.err(),
        ledger::recover(&expecting(&other), Migrate::Auto, margins, &crate::bench::by()).await.err(),
    ] {
        let Some(Error::Migration(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains(&id) && why.contains(&other) && why.contains("ledger.expected_id"), "{why}");
    }
    let url = empty.as_ref().map_or_else(|| format!("{}.new", options.url), |empty| empty.url().to_owned());
    let nowhere = Options { url, ..expecting(&id) };
    for refused in [
        ledger::open(&nowhere).await.err(),
        opened_as_it_is(&nowhere).await.err(),
        ledger::migrate(&nowhere, Migrate::Auto).await.err(),
    ] {
        let Some(Error::Migration(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("no ledger") && why.contains("ledger.expected_id"), "{why}");
    }
    let found = opened_as_it_is(&Options { expected_id: None, ..nowhere }).await.err();
    let Some(Error::Migration(why)) = found else { panic!("{found:?}") };
    assert!(why.contains("fencepost migrate"), "nothing was made: {why}");
    drop((database, _folder));
}

#[tokio::test]
async fn a_database_that_cannot_keep_every_text_is_refused_with_the_sql_of_one_that_can() {
    let database = fresh().await;
    let url = format!("{}_latin1", database.url());
    let (_, name) = url.rsplit_once('/').unwrap();
    let create =
        format!("CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
    execute(database.url(), &create).await;
    let options = patient(url);
    for refused in [
        ledger::open(&options).await.err(),
        opened_as_it_is(&options).await.err(),
        ledger::migrate(&options, Migrate::Auto).await.err(),
    ] {
        let Some(Error::Unprepared(why)) = refused else { panic!("{refused:?}") };
        assert!(
            why.contains("LATIN1") && why.contains("ENCODING 'UTF8'") && !why.contains("pg_dump"),
            "{why}"
        );
    }
    // With a ledger, which is to be moved.
    execute(&options.url, "CREATE TABLE signer_nonce_allocation (nonce bigint)").await;
    let refused = ledger::open(&options).await.err();
    let Some(Error::Unprepared(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("ENCODING 'UTF8'") && why.contains("pg_dump"), "{why}");
}

/// PostgreSQL passes over a schema that the role may not use, as after a restore without its rights.
#[tokio::test]
async fn a_ledger_that_the_role_may_not_use_is_never_taken_for_none() {
    let Bench { ledger, options, database, _folder } = Bench::postgres().await;
    ledger.close().await;
    drop(ledger);
    let role = format!("unadmitted_{}", std::process::id());
    let change = async |sql: String| execute(&options.url, &sql).await;
    let mut url = url::Url::parse(&options.url).unwrap();
    url.set_username(&role).unwrap();
    url.set_password(None).unwrap();
    let of_role = Options { url: url.into(), connect_timeout_ms: LONG_MS, ..options.clone() };
    let is_refused = async |schema: &str| {
        let margins = ledger::Margins { numbers: 0, lead_ms: 0 };
        let by = crate::bench::by();
        let grant = format!("GRANT USAGE ON SCHEMA {schema} TO \"{role}\";");
        for refused in [
            ledger::open(&of_role).await.err(),
            opened_as_it_is(&of_role).await.err(),
            ledger::migrate(&of_role, Migrate::Auto).await.err(),
            ledger::migrate(&of_role, Migrate::Check).await.err(),
            ledger::try_recovery(&of_role, margins).await.err(),
            ledger::recover(&of_role, Migrate::Auto, margins, &by).await.err(),
            ledger::recover(&of_role, Migrate::Check, margins, &by).await.err(),
        ] {
            let Some(Error::Unprepared(why)) = refused else { panic!("{refused:?}") };
            assert!(why.ends_with(&grant) && !why.contains("CREATE SCHEMA"), "{why}");
        }
    };
    change(format!("CREATE ROLE {role} LOGIN")).await;
    change("REVOKE ALL ON SCHEMA public FROM PUBLIC".to_owned()).await;
    change(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")).await;
    is_refused("\"public\"").await;
    // It has one of its own, in which tables could be made.
    change(format!("CREATE SCHEMA {role} AUTHORIZATION {role}")).await;
    is_refused("\"public\"").await;
    // Or another program's tables.
    change(format!("CREATE TABLE {role}._sqlx_migrations (version bigint)")).await;
    is_refused("\"public\"").await;
    change(format!("DROP TABLE {role}._sqlx_migrations")).await;
    change("ALTER SCHEMA public RENAME TO \"Led\"\"ger, 1\"".to_owned()).await;
    change(format!("ALTER ROLE {role} SET search_path = nowhere, \"$user\", \"Led\"\"ger, 1\"")).await;
    is_refused("\"Led\"\"ger, 1\"").await;
    change(format!("ALTER SCHEMA {role} RENAME TO aside")).await;
    change(format!("ALTER SCHEMA \"Led\"\"ger, 1\" RENAME TO {role}")).await;
    is_refused(&format!("\"{role}\"")).await;
    change(format!("ALTER SCHEMA {role} RENAME TO public")).await;
    // Another one is meant, which there is not yet.
    change(format!("ALTER ROLE {role} SET search_path = aside")).await;
    let refused = opened_as_it_is(&of_role).await.err();
    assert!(matches!(&refused, Some(Error::Migration(_))), "{refused:?}");
    // A superuser may use all.
    opened_as_it_is(&options).await.unwrap().close().await;
    change(format!("ALTER ROLE {role} SET search_path = aside, public")).await;
    is_refused("\"public\"").await;
    change(format!("GRANT USAGE ON SCHEMA public TO {role}")).await;
    opened_as_it_is(&of_role).await.unwrap().close().await;
    change(format!("DROP OWNED BY {role}")).await;
    change(format!("DROP ROLE {role}")).await;
    drop((database, _folder));
}

/// It uses the same library for its migrations.
#[tokio::test]
async fn tables_of_another_program_are_not_taken_for_a_ledgers() {
    let database = fresh().await;
    let options = patient(database.url().to_owned());
    let theirs = "CREATE TABLE _sqlx_migrations (
                      version bigint PRIMARY KEY, description text NOT NULL, installed_on timestamptz DEFAULT now(),
                      success boolean NOT NULL, checksum bytea NOT NULL, execution_time bigint NOT NULL
                  );
                  INSERT INTO _sqlx_migrations
                  VALUES (1, 'theirs', now(), true, 'a', 0), (20240101120000, 'theirs', now(), true, 'b', 0);
                  CREATE TABLE setting (name text);
                  CREATE SCHEMA fencepost";
    let mut hand = sqlx::PgConnection::connect(&options.url).await.unwrap();
    sqlx::raw_sql(theirs).execute(&mut hand).await.unwrap();
    for refused in [ledger::open(&options).await.err(), ledger::migrate(&options, Migrate::Auto).await.err()]
    {
        let Some(Error::Unprepared(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("\"_sqlx_migrations\"") && why.contains("CREATE SCHEMA"), "{why}");
    }
    let margins = ledger::Margins { numbers: 0, lead_ms: 0 };
    for refused in [
        opened_as_it_is(&options).await.err(),
        ledger::try_recovery(&options, margins).await.err(),
        ledger::recover(&options, Migrate::Auto, margins, &crate::bench::by()).await.err(),
    ] {
        let Some(Error::Migration(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("no ledger") || why.contains("no tables of a ledger"), "{why}");
    }
    for (path, name) in [("fencepost", "a"), ("fencepost,public", "b"), ("public,fencepost", "c")] {
        let url = format!("{}?options=-csearch_path%3D{path}", database.url());
        let ledger = ledger::open(&Options { url, ..options.clone() }).await.unwrap();
        let acquired = ledger.acquire(&Resource::signer(&signer(name)), &owner("a"), LONG_MS).await.unwrap();
        assert!(matches!(acquired, Acquisition::Acquired { .. }), "{acquired:?}");
        ledger.close().await;
    }
    assert_eq!(execute(&options.url, "SELECT FROM public._sqlx_migrations").await, 2);
    assert_eq!(execute(&options.url, "SELECT FROM fencepost.lease WHERE resource LIKE 'signer:%'").await, 3);
}

/// Another program has a table of the name of one that a later migration makes.
#[tokio::test]
async fn a_first_start_among_tables_of_the_same_names_leaves_nothing_behind() {
    let database = fresh().await;
    let options = patient(database.url().to_owned());
    execute(&options.url, "CREATE TABLE plan_event (id integer)").await;
    let there = "SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace";
    for refused in [ledger::open(&options).await.err(), ledger::migrate(&options, Migrate::Auto).await.err()]
    {
        let Some(Error::Unprepared(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("\"plan_event\"") && why.contains("CREATE SCHEMA \"fencepost\""), "{why}");
        assert_eq!(execute(&options.url, there).await, 1, "theirs alone");
    }
    execute(&options.url, "CREATE SCHEMA fencepost").await;
    for path in ["fencepost", "fencepost,public"] {
        let url = format!("{}?options=-csearch_path%3D{path}", database.url());
        ledger::open(&Options { url, ..options.clone() }).await.unwrap().close().await;
    }
    assert_eq!(execute(&options.url, there).await, 1, "the ledger is in its own schema");
    // Where there is a ledger it is not to be made elsewhere.
    execute(&options.url, "DELETE FROM fencepost._sqlx_migrations WHERE version = 8").await;
    let url = format!("{}?options=-csearch_path%3Dfencepost", database.url());
    let refused = ledger::open(&Options { url, ..options }).await.err();
    let Some(Error::Unprepared(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("already exists") && !why.contains("CREATE SCHEMA"), "{why}");
}

/// By its name, which is the role's, it comes first by default.
#[tokio::test]
async fn a_schema_that_is_made_later_gets_no_part_of_a_ledger() {
    let database = fresh().await;
    let role = format!("divided_{}", std::process::id());
    let change = async |sql: &str| execute(database.url(), sql).await;
    let mut url = url::Url::parse(database.url()).unwrap();
    url.set_username(&role).unwrap();
    url.set_password(None).unwrap();
    let options = patient(url.into());
    change(&format!("CREATE ROLE {role} LOGIN")).await;
    change(&format!("GRANT CREATE ON SCHEMA public TO {role}")).await;
    ledger::open(&options).await.unwrap().close().await;
    change(&format!("CREATE SCHEMA {role} AUTHORIZATION {role}")).await;
    // As for a later day, and by a later release.
    change(
        "DO $$ DECLARE part text; BEGIN
             FOR part IN SELECT inhrelid::regclass::text FROM pg_inherits
                         WHERE inhparent = 'job_finished'::regclass AND inhrelid::regclass::text ~ '[0-9]$' LOOP
                 EXECUTE 'DROP TABLE ' || part;
             END LOOP;
             DROP TABLE instance_nodes;
             DELETE FROM schema_migration WHERE version = 18;
         END $$",
    )
    .await;
    ledger::open(&options).await.unwrap().close().await;
    let parts = "SELECT FROM pg_inherits WHERE inhparent = 'job_finished'::regclass";
    assert!(change(parts).await > 1, "it has partitions again");
    assert_eq!(change(&format!("SELECT FROM pg_class WHERE relnamespace = '{role}'::regnamespace")).await, 0);
    change(&format!("DROP OWNED BY {role}")).await;
    change(&format!("DROP ROLE {role}")).await;
}

/// What migration 21 took away.
const BEFORE_MIGRATION_21: &str = "
    CREATE INDEX signer_nonce_overdue ON signer_nonce_allocation (held_until) WHERE status = 'HELD';
    CREATE INDEX plan_event_task ON plan_event (task, seq) WHERE task IS NOT NULL;
    DELETE FROM schema_migration WHERE version = 21;";

#[tokio::test]
async fn a_migration_that_waits_for_a_reader_holds_up_no_grant() {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    let mut reader = sqlx::PgConnection::connect(&b.options.url).await.unwrap();
    let reads = "BEGIN; SELECT count(*) FROM signer_nonce_allocation";
    sqlx::raw_sql(BEFORE_MIGRATION_21).execute(&mut reader).await.unwrap();
    sqlx::raw_sql(reads).execute(&mut reader).await.unwrap();
    let options = Options { connect_timeout_ms: LONG_MS, ..b.options.clone() };
    let migration = tokio::spawn(async move { ledger::migrate(&options, Migrate::Auto).await });
    let waiting = "SELECT FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted \
                   AND relation = 'signer_nonce_allocation'::regclass";
    for nonce in 0..2 {
        eventually("the migration waits", async || execute(&b.options.url, waiting).await > 0).await;
        b.commits(batch_with_policy(&s, &a, token, vec![new_grant(nonce, LONG_MS)])).await;
    }
    assert!(!migration.is_finished());
    sqlx::raw_sql("COMMIT").execute(&mut reader).await.unwrap();
    migration.await.unwrap().unwrap();
    opened_as_it_is(&b.options).await.unwrap();
}

#[tokio::test]
async fn a_migration_may_take_longer_than_the_server_is_waited_for() {
    let b = Bench::postgres().await;
    let mut hand = sqlx::PgConnection::connect(&b.options.url).await.unwrap();
    let slow = "CREATE FUNCTION slow() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1.5); END $$;
                CREATE EVENT TRIGGER slow ON ddl_command_start WHEN TAG IN ('DROP INDEX') EXECUTE FUNCTION slow();";
    sqlx::raw_sql(BEFORE_MIGRATION_21).execute(&mut hand).await.unwrap();
    sqlx::raw_sql(slow).execute(&mut hand).await.unwrap();
    let options = Options { connect_timeout_ms: 500, ..b.options.clone() };
    ledger::migrate(&options, Migrate::Auto).await.unwrap();
    opened_as_it_is(&b.options).await.unwrap();
}

#[tokio::test]
async fn another_processs_migration_is_waited_for_as_long_as_it_takes() {
    let b = Bench::postgres().await;
    let mut other = sqlx::PgConnection::connect(&b.options.url).await.unwrap();
    sqlx::raw_sql(BEFORE_MIGRATION_21).execute(&mut other).await.unwrap();
    sqlx::migrate::Migrate::lock(&mut other).await.unwrap();
    // Three tries for the lock take longer than that. To connect and to look at the tables takes no time that is near it.
    let options = Options { connect_timeout_ms: 2_500, ..b.options.clone() };
    let migration = tokio::spawn(async move { ledger::migrate(&options, Migrate::Auto).await });
    let first = "SELECT coalesce(max(pid), 0) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let another = async |than: i32| {
        let mut hand = sqlx::PgConnection::connect(&b.options.url).await.unwrap();
        let pid = sqlx::query_scalar::<_, i32>(first).fetch_one(&mut hand).await.unwrap();
        (pid != 0 && pid != than).then_some(pid)
    };
    let mut tried = 0;
    for _ in 0..4 {
        eventually("it tries again", async || migration.is_finished() || another(tried).await.is_some())
            .await;
        assert!(!migration.is_finished(), "the other process still has the lock");
        tried = another(tried).await.unwrap_or_default();
    }
    other.close().await.unwrap();
    migration.await.unwrap().unwrap();
    opened_as_it_is(&b.options).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_falls_silent_during_another_processs_migration_is_given_up() {
    let b = Bench::postgres().await;
    let mut other = sqlx::PgConnection::connect(&b.options.url).await.unwrap();
    sqlx::raw_sql(BEFORE_MIGRATION_21).execute(&mut other).await.unwrap();
    sqlx::migrate::Migrate::lock(&mut other).await.unwrap();
    let mut url = url::Url::parse(&b.options.url).unwrap();
    let server = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
    let server = tokio::net::lookup_host(server).await.unwrap().next().unwrap();
    let proxy = Proxy::start(server).await.unwrap();
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_port(Some(proxy.address().port())).unwrap();
    let options = Options { url: url.into(), connect_timeout_ms: 5_000, ..b.options.clone() };
    let migration = tokio::spawn(async move { ledger::migrate(&options, Migrate::Auto).await });
    let waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    eventually("it waits for the other process", async || execute(&b.options.url, waiting).await > 0).await;
    proxy.freeze();
    let given_up = tokio::time::timeout(testkit::PATIENCE, migration).await.unwrap();
    let error = given_up.unwrap().unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
}

#[tokio::test]
async fn no_time_limit_that_the_database_has_by_default_is_a_migrations() {
    let b = Bench::postgres().await;
    let mut hand = sqlx::PgConnection::connect(&b.options.url).await.unwrap();
    // Servers before 17 have no limit for a transaction.
    let limits = "DO $$ DECLARE limited text; BEGIN
                      FOR limited IN SELECT s.name FROM pg_settings s
                                     WHERE s.name IN ('statement_timeout', 'transaction_timeout') LOOP
                          EXECUTE format('ALTER DATABASE %I SET %I = %L', current_database(), limited, '1min');
                      END LOOP;
                  END $$;
                  CREATE FUNCTION refuse_limits() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
                      IF current_setting('statement_timeout') <> '0'
                         OR coalesce(current_setting('transaction_timeout', true), '0') <> '0' THEN
                          RAISE EXCEPTION 'the migration has a time limit';
                      END IF;
                  END $$;
                  CREATE EVENT TRIGGER refuse_limits ON ddl_command_start WHEN TAG IN ('DROP INDEX')
                      EXECUTE FUNCTION refuse_limits();";
    sqlx::raw_sql(BEFORE_MIGRATION_21).execute(&mut hand).await.unwrap();
    sqlx::raw_sql(limits).execute(&mut hand).await.unwrap();
    ledger::migrate(&b.options, Migrate::Auto).await.unwrap();
    opened_as_it_is(&b.options).await.unwrap();
}

/// A migration of a role that may not end the instances' sessions changes the tables under them.
#[tokio::test]
async fn a_read_whose_columns_changed_is_refused_once_as_retryable() {
    let b = Bench::postgres().await;
    let id = session_id("s");
    // One connection for reads by keys.
    let options = Options { connections_max: 2, ..b.options.clone() };
    let ledger = ledger::open(&options).await.unwrap();
    ledger.open_session(&id, &spec(), None, None).await.unwrap();
    assert!(ledger.session(&id).await.unwrap().is_some());
    for column in ["one", "another"] {
        execute(&options.url, &format!("ALTER TABLE session ADD COLUMN {column} text")).await;
        let refused = ledger.session(&id).await.unwrap_err();
        assert!(refused.is_retryable() && !refused.may_have_written(), "{refused:?}");
        for _ in 0..2 {
            assert!(ledger.session(&id).await.unwrap().is_some());
        }
    }
}

/// The same of a commit, which nobody notices: nothing was written, and the batch is sent again on a new connection.
#[tokio::test]
async fn a_commit_whose_columns_changed_is_sent_again() {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    b.commits(batch_with_policy(&s, &a, token, vec![new_grant(0, LONG_MS)])).await;
    let change = "ALTER TABLE lease ALTER COLUMN resource TYPE varchar COLLATE \"C\"";
    execute(&b.options.url, change).await;
    for nonce in 1..3 {
        b.commits(batch_with_policy(&s, &a, token, vec![new_grant(nonce, LONG_MS)])).await;
    }
}

async fn fresh() -> testkit::servers::Database {
    tokio::task::spawn_blocking(|| testkit::servers::Database::fresh().unwrap()).await.unwrap()
}

/// Sends one statement past the ledger; answers how many rows it touched or found.
pub async fn execute(url: &str, statement: &str) -> u64 {
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

/// A session begins with what its role has in this database, before what the database has. What is set there counts at once, and
/// does not count for longer in a session that began with it.
#[tokio::test]
async fn a_default_under_which_others_may_lose_commits_is_warned_of_until_it_is_mended() {
    let b = Bench::postgres().await;
    let altered = async |what: &str| {
        let alter = format!("EXECUTE format('ALTER {what}', current_database(), current_user)");
        execute(&b.options.url, &format!("DO $$ BEGIN {alter}; END $$")).await;
    };
    let is_warned = async |ledger: &ledger::Handle| {
        let warnings = ledger.check().await.unwrap().durability_warnings;
        let is_of_it = |warning: &String| warning.starts_with("synchronous_commit is off by default");
        assert!(warnings.iter().all(is_of_it), "{warnings:?}");
        !warnings.is_empty()
    };
    altered("DATABASE %1$I SET synchronous_commit = off").await;
    let later = ledger::open(&b.options).await.unwrap();
    let both = async || (is_warned(&b.ledger).await, is_warned(&later).await);
    assert_eq!(both().await, (true, true));
    altered("ROLE %2$I IN DATABASE %1$I SET synchronous_commit = ''YES''").await;
    assert_eq!(both().await, (false, false));
    altered("ROLE %2$I IN DATABASE %1$I RESET synchronous_commit").await;
    assert_eq!(both().await, (true, true));
    altered("DATABASE %1$I RESET synchronous_commit").await;
    assert_eq!(both().await, (false, false));
}

/// Some sessions began with what the database had, and do not know what the server has: any of them may look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_began_under_another_default_do_not_contradict_each_other() {
    let started = tokio::task::spawn_blocking(|| {
        let server = Arc::new(Postgres::start().unwrap());
        server.query("ALTER SYSTEM SET synchronous_commit = off").unwrap();
        server.query("SELECT pg_reload_conf()").unwrap();
        server.database().unwrap()
    });
    let database = started.await.unwrap();
    let options = options_of(database.url().to_owned());
    let altered = async |what: &str| {
        let alter = format!("EXECUTE format('ALTER DATABASE %I {what}', current_database())");
        execute(&options.url, &format!("DO $$ BEGIN {alter}; END $$")).await;
    };
    altered("SET synchronous_commit = on").await;
    let ledger = ledger::open(&options).await.unwrap();
    let is_warned = async || !ledger.check().await.unwrap().durability_warnings.is_empty();
    assert!(!is_warned().await, "nobody begins with what the server has");
    altered("RESET synchronous_commit").await;
    // A look for which no session is free begins one, until one knows.
    eventually("it is found", async || {
        <[bool; 4]>::from(tokio::join!(is_warned(), is_warned(), is_warned(), is_warned())).contains(&true)
    })
    .await;
    for look in 0..16 {
        assert!(is_warned().await, "look {look}");
    }
}

/// Nobody promotes what reads changes, or copies the log without replaying it, as a backup does. A role that may not see what
/// is replayed tells readers of changes alone from standbys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_reads_the_log_and_is_no_standby_is_not_warned_of() {
    let server = block_in_place(|| {
        let server = Arc::new(Postgres::start().unwrap());
        server.query("alter system set wal_level = logical").unwrap();
        server.query("create role plain login").unwrap();
        server.stop_immediate().unwrap();
        server.boot().unwrap();
        server
    });
    let (seeing, plain) = block_in_place(|| {
        let (seeing, plain) = (server.database().unwrap(), server.database().unwrap());
        seeing.query("create publication changes").unwrap();
        seeing.query("select pg_create_logical_replication_slot('changes', 'pgoutput')").unwrap();
        let alter = "execute format('alter database %I owner to plain', current_database())";
        plain.query(&format!("do $$ begin {alter}; end $$")).unwrap();
        (seeing, plain)
    });
    let opened = async |url: String| {
        let options = options_of(url);
        ledger::open(&options).await.unwrap()
    };
    let by_all = opened(seeing.url().to_owned()).await;
    let by_plain = opened(plain.url().replace("//postgres@", "//plain@")).await;
    let is_warned =
        async |ledger: &ledger::Handle| !ledger.check().await.unwrap().durability_warnings.is_empty();
    let both = async || (is_warned(&by_all).await, is_warned(&by_plain).await);
    let reading = async |count: &str| {
        let read = "select count(*) from pg_stat_replication where state = 'streaming'";
        eventually("it reads", async || block_in_place(|| server.query(read).unwrap()) == [[count]]).await;
    };
    let port = format!("--port={}", server.address().port());
    let (_, name) = seeing.url().rsplit_once('/').unwrap();
    let name = format!("--dbname={name}");
    let at = ["--host=127.0.0.1", "--username=postgres", port.as_str()];
    let changes = ["--start", "--slot=changes", "--file=changes", "--option=proto_version=1"];
    let of_changes = ["--option=publication_names=changes", name.as_str()];
    let _changes = server.runs("pg_recvlogical", &[&at[..], &changes[..], &of_changes[..]].concat()).unwrap();
    reading("1").await;
    assert_eq!(both().await, (false, false));
    let copy = ["--directory=.", "--no-sync"];
    let _copy = server.runs("pg_receivewal", &[&at[..], &copy[..]].concat()).unwrap();
    reading("2").await;
    assert_eq!(both().await, (false, true));
    let _standby = block_in_place(|| server.standby(server.address(), "standby").unwrap());
    eventually("the standby is found", async || both().await == (true, true)).await;
}
