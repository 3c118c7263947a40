//! Sessions on PostgreSQL and their settings; and the refusal of poolers that give none.
//!
//! A session SETs its settings itself. They are no options of the connection, because poolers do not pass those on.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Row};

use super::ledger_schema::first_in_path;
use super::read_failed;
use crate::identity::Remembered;
use crate::outage::OutageWatch;
use crate::sql::sql_file;
use crate::store::server::reaches_accepted;
use crate::{Error, Result};

/// Simple statements, which no prepared statement stands for: a pooler could lose that between two messages.
const PROCESS: &str = sql_file!("postgres-only", "session_process");
const PROCESS_HELD: &str = sql_file!("postgres-only", "session_process_held");

/// How often the start looks whether two sessions share a process of the server. A pooler gives the process that became
/// free last, so that the first look finds it; the others are for a pooler that other instances keep busy.
const LOOKS: usize = 3;

/// What every session has, whatever is the default of the role or the database. All statements are written for read committed:
/// each one sees what was committed before it, and goes on with a row that another transaction has changed meanwhile. The
/// sessions' own limits end a transaction that takes too long; a migration and a recovery take as long as they take. Servers
/// before 17 have no `transaction_timeout`. The server ends no session that is idle: its next call would fail. It compiles no
/// statements: they read so little that this takes longer than they do. A commit is answered once it is on the disk, and on that
/// of a synchronous standby: `synchronous_commit` is set in any case, so that no later reload of the server's settings turns it
/// off. Where it came from is kept for the look at the ledger's health, also in a session that a pooler gives again as it was.
const ALWAYS: &str = "SET default_transaction_isolation = 'read committed'; SET idle_session_timeout = 0; SET jit = off; \
     SELECT set_config('transaction_timeout', '0', false) WHERE current_setting('transaction_timeout', true) <> '0'; \
     SELECT set_config('fencepost.commits_set_by', \
                       coalesce(nullif(current_setting('fencepost.commits_set_by', true), ''), source), false), \
            set_config('synchronous_commit', CASE setting WHEN 'remote_apply' THEN setting ELSE 'on' END, false) \
     FROM pg_settings WHERE name = 'synchronous_commit'; ";

/// A session that was idle for longer is pinged before it is lent.
pub(super) const KNOWN_WELL_FOR: Duration = Duration::from_millis(200);
/// One that does not answer the ping within this part of a call's limit is replaced, so that there is time for the call on a
/// new one: not sooner, since a server that is slow for a moment must not have all of them made anew. Vital ones have a limit
/// of their own.
pub(super) const PINGS_PER_CALL: u32 = 4;

/// How sessions of one kind are begun.
#[derive(Clone, Debug)]
pub(super) struct ServerSessions {
    connect: PgConnectOptions,
    /// The statements that set what such a session has.
    settings: Arc<str>,
    /// What the last look at the ledger accepted, where the sessions are for that server alone.
    remembered: Option<Remembered>,
    /// Notes each session that begins.
    outage: OutageWatch,
}

impl ServerSessions {
    /// Sessions that the server shows under this name.
    pub(super) fn named(connect: &PgConnectOptions, name: &str) -> Self {
        let (connect, outage) = (connect.clone().application_name(name), OutageWatch::default());
        Self { connect, settings: ALWAYS.into(), remembered: None, outage }
    }

    /// The same, with these settings too, none of which is anybody else's text.
    pub(super) fn with<V: Display>(self, settings: impl IntoIterator<Item = (&'static str, V)>) -> Self {
        let set = settings.into_iter().map(|(name, value)| format!("SET {name} = {value}; "));
        let settings = set.fold(self.settings.to_string(), |all, one| all + &one);
        Self { settings: settings.into(), ..self }
    }

    /// The same, which look into this schema first, if there is one, whatever search path they begin with.
    pub(super) fn looking_first_into(self, schema: Option<&str>) -> Self {
        let settings = self.settings.to_string() + &schema.map(first_in_path).unwrap_or_default();
        Self { settings: settings.into(), ..self }
    }

    /// The same, on no other server than the one that the last look at the ledger accepted.
    pub(super) fn reaching(self, remembered: &Remembered) -> Self {
        Self { remembered: Some(remembered.clone()), ..self }
    }

    /// The same; this watch notes each session that begins.
    pub(super) fn noted_by(self, outage: &OutageWatch) -> Self {
        Self { outage: outage.clone(), ..self }
    }

    /// Begins one.
    pub(super) async fn begin(&self) -> sqlx::Result<PgConnection> {
        let mut session = PgConnection::connect_with(&self.connect).await?;
        prepare(&mut session, Arc::clone(&self.settings), self.remembered.clone()).await?;
        self.outage.wrote();
        Ok(session)
    }

    /// Whether one that was idle still answers, for a call with this limit.
    pub(super) async fn answers(session: &mut PgConnection, limit: Duration) -> bool {
        tokio::time::timeout(limit / PINGS_PER_CALL, session.ping()).await.is_ok_and(|answer| answer.is_ok())
    }

    /// A pool of such sessions, which begins each when it is needed.
    pub(super) fn pool(self, options: PgPoolOptions) -> PgPool {
        let Self { connect, settings, remembered, outage } = self;
        let options = options.after_connect(move |session, _| {
            let (settings, remembered, outage) = (Arc::clone(&settings), remembered.clone(), outage.clone());
            Box::pin(async move { prepare(session, settings, remembered).await.inspect(|()| outage.wrote()) })
        });
        options.connect_lazy_with(connect)
    }
}

/// Sets all in one message, and looks which server it is.
async fn prepare(
    session: &mut PgConnection,
    settings: Arc<str>,
    remembered: Option<Remembered>,
) -> sqlx::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(settings)).execute(&mut *session).await?;
    match remembered {
        Some(remembered) => reaches_accepted(session, &remembered).await,
        None => Ok(()),
    }
}

/// Refuses a pooler that gives each transaction, or each statement, another process of the server: locks, settings,
/// prepared statements and the position that a session was told would be another session's.
pub(super) async fn refuse_shared(connect: &PgConnectOptions, session: &mut PgConnection) -> Result<()> {
    let own = process(session, PROCESS).await?;
    let mut second = PgConnection::connect_with(connect).await.map_err(read_failed)?;
    for _ in 0..LOOKS {
        // Before it is asked again, which would wait for a pooler's only process.
        if process(&mut second, PROCESS_HELD).await? == own {
            return Err(shared());
        }
        let again = process(session, PROCESS).await?;
        sqlx::raw_sql("ROLLBACK").execute(&mut second).await.map_err(read_failed)?;
        if again != own {
            return Err(shared());
        }
    }
    second.close().await.map_err(read_failed)
}

async fn process(session: &mut PgConnection, sql: &'static str) -> Result<i32> {
    let failed = |error: sqlx::Error| {
        // PgBouncer's words where it gives each statement another process.
        let is_pooler =
            error.as_database_error().is_some_and(|error| error.message().contains("pooling mode"));
        if is_pooler { shared() } else { read_failed(error) }
    };
    let row = sqlx::raw_sql(sql).fetch_one(session).await.map_err(failed)?;
    row.try_get("process").map_err(read_failed)
}

fn shared() -> Error {
    Error::Address(
        "the database URL leads to a pooler that gives each transaction another process of the server (transaction \
         pooling). Fencepost needs sessions of its own: set pool_mode = session in PgBouncer, or name PostgreSQL itself"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use testkit::PATIENCE;
    use testkit::servers::{Database, PgBouncer, PoolMode};
    use tokio::task::block_in_place;

    use super::*;
    use crate::identity::Server;

    fn sessions_at(url: &str) -> ServerSessions {
        let connect = PgConnectOptions::from_str(url).unwrap().extra_float_digits(None);
        ServerSessions::named(&connect, "some name").with([("lock_timeout", 1_234)])
    }

    /// Sessions begin with such a default.
    fn set_default(database: &Database, setting: &str) {
        let alter = format!(
            "do $$ begin execute format('alter database %I set {setting}', current_database()); end $$"
        );
        database.query(&alter).unwrap();
    }

    async fn shown(session: &mut PgConnection) -> [String; 6] {
        let mut shown = Vec::new();
        for setting in [
            "SHOW lock_timeout",
            "SHOW jit",
            "SHOW application_name",
            "SHOW transaction_isolation",
            "SHOW synchronous_commit",
            "SHOW idle_session_timeout",
        ] {
            shown.push(sqlx::query_scalar::<_, String>(setting).fetch_one(&mut *session).await.unwrap());
        }
        shown.try_into().unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_session_has_its_settings_also_behind_a_pooler() {
        let started = tokio::task::spawn_blocking(|| {
            let database = Database::fresh().unwrap();
            set_default(&database, "default_transaction_isolation = serializable");
            set_default(&database, "synchronous_commit = off");
            set_default(&database, "idle_session_timeout = 60000");
            let pooler = PgBouncer::start(&database, PoolMode::Session).unwrap();
            (database, pooler)
        });
        let (database, pooler) = started.await.unwrap();
        for url in [database.url(), pooler.url()] {
            let sessions = sessions_at(url);
            let wanted = ["1234ms", "off", "some name", "read committed", "on", "0"];
            assert_eq!(shown(&mut sessions.begin().await.unwrap()).await, wanted, "{url}");
            let pool = sessions.pool(PgPoolOptions::new().max_connections(2));
            let (mut first, mut second) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
            for session in [&mut first, &mut second] {
                assert_eq!(shown(session).await, wanted, "{url}");
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_session_waits_for_the_disk_and_keeps_a_default_that_waits_for_more() {
        let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
        for (default, wanted) in [
            ("off", "on"),
            ("local", "on"),
            ("remote_write", "on"),
            ("on", "on"),
            ("remote_apply", "remote_apply"),
        ] {
            block_in_place(|| set_default(&database, &format!("synchronous_commit = {default}")));
            let mut session = sessions_at(database.url()).begin().await.unwrap();
            assert_eq!(shown(&mut session).await[4], wanted, "{default}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_session_that_is_given_again_as_it_was_knows_what_it_began_with() {
        let database = tokio::task::spawn_blocking(|| {
            let database = Database::fresh().unwrap();
            set_default(&database, "synchronous_commit = off");
            database
        });
        let database = database.await.unwrap();
        let sessions = sessions_at(database.url());
        let mut session = sessions.begin().await.unwrap();
        for given in 0..2 {
            let set_by = sqlx::query_scalar::<_, String>("SHOW fencepost.commits_set_by");
            assert_eq!(set_by.fetch_one(&mut session).await.unwrap(), "database", "{given}");
            prepare(&mut session, Arc::clone(&sessions.settings), None).await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_session_looks_first_into_the_ledgers_schema_and_then_where_it_looked_before() {
        let database = tokio::task::spawn_blocking(|| {
            let database = Database::fresh().unwrap();
            database.query(r#"create schema "Led ""ger\'s""#).unwrap();
            database
        });
        let database = database.await.unwrap();
        let sessions = || sessions_at(database.url());
        let pinned = sessions().looking_first_into(Some(r#"Led "ger\'s"#));
        for (path, wanted) in [
            ("''", r#""Led ""ger\'s", """#),
            ("nowhere, public", r#""Led ""ger\'s", nowhere, public"#),
            (r#""Led ""ger\'s", public"#, r#""Led ""ger\'s", public"#),
            // The role may get such a schema while the session is open.
            (r#""$user", "Led ""ger\'s""#, r#""Led ""ger\'s", "$user", "Led ""ger\'s""#),
        ] {
            let mut session = sessions().with([("search_path", path)]).begin().await.unwrap();
            for given in 0..2 {
                prepare(&mut session, Arc::clone(&pinned.settings), None).await.unwrap();
                let path = sqlx::query_scalar::<_, String>("SHOW search_path");
                assert_eq!(path.fetch_one(&mut session).await.unwrap(), wanted, "{given}");
                let first = sqlx::query_scalar::<_, String>("SELECT current_schema()::text");
                assert_eq!(first.fetch_one(&mut session).await.unwrap(), r#"Led "ger\'s"#, "{given}");
            }
        }
    }

    /// A database with a schema whose functions go before those of the server, and sessions that look there first.
    async fn deceived(function: &str) -> (Database, ServerSessions) {
        let function = format!("create schema deceiving; create function deceiving.{function}");
        let made = tokio::task::spawn_blocking(move || {
            let database = Database::fresh().unwrap();
            database.query(&function).unwrap();
            database
        });
        let database = made.await.unwrap();
        let first = [("lock_timeout", "0"), ("search_path", "deceiving, pg_catalog")];
        let sessions = sessions_at(database.url()).with(first);
        (database, sessions)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_session_begins_only_on_a_server_that_says_which_one_it_is_or_never_does() {
        let says = |code: &str| {
            format!(
                "pg_control_system() returns table (system_identifier bigint) language plpgsql as
                 $$ begin raise exception 'no' using errcode = '{code}'; end $$"
            )
        };
        for (code, begins) in [("query_canceled", false), ("insufficient_privilege", true)] {
            let (_database, sessions) = deceived(&says(code)).await;
            let begun = sessions.reaching(&Remembered::default()).begin().await;
            assert_eq!(begun.is_ok(), begins, "{code}: {begun:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_session_begins_on_a_server_in_whose_place_another_one_is_accepted_meanwhile() {
        // The last statement of the beginning waits.
        let (database, sessions) = deceived(
            "set_config(text, text, boolean) returns text language plpgsql as
             $$ begin perform pg_advisory_xact_lock(7); return $2; end $$",
        )
        .await;
        let mut other = sessions_at(database.url()).begin().await.unwrap();
        sqlx::query("select pg_advisory_lock(7)").execute(&mut other).await.unwrap();
        let remembered = Remembered::default();
        let sessions = sessions.reaching(&remembered);
        let beginning = tokio::spawn(async move { sessions.begin().await });
        let waits = "select exists (
                         select from pg_locks
                         where locktype = 'advisory' and objid = 7 and not granted
                           and database = (select oid from pg_database where datname = current_database())
                     )";
        let until_it_waits =
            async { while !sqlx::query_scalar::<_, bool>(waits).fetch_one(&mut other).await.unwrap() {} };
        tokio::time::timeout(PATIENCE, until_it_waits).await.expect("the session waits");
        let server = Server { system: "another".to_owned(), timeline: 1, written: 0, is_synchronous: true };
        remembered.accepts(Some(&server));
        sqlx::query("select pg_advisory_unlock(7)").execute(&mut other).await.unwrap();
        assert!(beginning.await.unwrap().is_err());
    }
}
