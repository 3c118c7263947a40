//! What a person has to do on the server before an instance can start: a role, a database or rights that are missing, a ledger
//! that the role may not use, a schema that another program has, a database that cannot keep every text, or settings that a
//! pooler drops, with the SQL that mends it.

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, Postgres, Row};

use super::connect_url::session_settings;
use super::ledger_schema::LedgerSchema;
use super::{has_code, read_failed};
use crate::sql::sql_file;
use crate::{Error, Result, Unwritable};

const ENCODING: &str = sql_file!("postgres-only", "session_encoding");
const HIDDEN: &str = sql_file!("postgres-only", "hidden_ledger");
const SETTING: &str = sql_file!("postgres-only", "session_setting");
/// The encoding of a database that keeps every text.
const UTF8: &str = "UTF8";
/// A database with it keeps the bytes that it is sent, which are those of [`UTF8`].
const AS_SENT: &str = "SQL_ASCII";

/// All that the serving role does with tables that another role owns. It creates and drops partitions of none of them.
const RIGHTS: &str = "SELECT, INSERT, UPDATE, DELETE";
/// The names for a schema of the ledger's own: the second one where the first is taken.
const OWN_SCHEMAS: [&str; 2] = ["fencepost", "fencepost_ledger"];
/// What PostgreSQL says of a name that is taken: by a table, an index or a view; by a type or a trigger; by a function.
const TAKEN: [&str; 3] = ["42P07", "42710", "42723"];
/// What the driver says of a server that shows an authority's certificate as its own.
const CERTIFICATE_OF_AUTHORITY: &str = "CaUsedAsEndEntity";
/// What PostgreSQL says of a statement that an earlier client of a pooler has prepared.
const DUPLICATE_STATEMENT: &str = "42P05";
/// What stands for a password that nobody knows here.
const PASSWORD: &str = "'…'";

/// The same failure; if the server lacks what only a person can give it, [`Error::Unprepared`], which says how. Also of the
/// server's certificate, or of a pooler, it says what is to be another.
pub(super) fn explained(error: Error, connect: &PgConnectOptions) -> Error {
    let Some(source) = error.driver() else { return error };
    if let sqlx::Error::Io(source) = source
        && source.to_string().contains(CERTIFICATE_OF_AUTHORITY)
    {
        let said = "the server shows the certificate of an authority (CA:TRUE), as `openssl req -x509` makes it, which is not \
                    taken: it must be one that an authority has signed, or a self-signed one with CA:FALSE";
        return Error::unavailable(std::io::Error::new(source.kind(), said));
    }
    let Some(database) = source.as_database_error() else { return error };
    let code = database.code().unwrap_or_default().into_owned();
    if code == DUPLICATE_STATEMENT {
        return Error::Address(format!(
            "the database URL leads to a pooler that gives sessions as other clients have left them ({}): set \
             server_reset_query = DISCARD ALL in PgBouncer, which is its default",
            database.message()
        ));
    }
    match repair(&code, database.message(), connect) {
        Some(sql) => unprepared(&format!("the database server refuses: {}", database.message()), &sql),
        None => error,
    }
}

/// The same of a command that writes in one transaction, and waits for nothing: a server that takes reads only has undone it.
pub(super) fn explained_once(error: Error, connect: &PgConnectOptions) -> Error {
    if Unwritable::why(&error) != Some(Unwritable::ReadOnly) {
        return explained(error, connect);
    }
    let role = identifier(connect.get_username());
    let said = error.driver().map(ToString::to_string).unwrap_or_default();
    let what = format!(
        "the database server takes reads only, and nothing was written: {said}\n  If it is a standby, name the primary in the \
         database URL, or promote it first (pg_promote). If it is none, a setting makes it so."
    );
    unprepared(&what, &[format!("ALTER ROLE {role} SET default_transaction_read_only = off;")])
}

/// The same failure of a migration; if what it was to make is there, which another program must have made, [`Error::Unprepared`].
pub(super) fn explained_clash(
    error: Error,
    schema: Option<&LedgerSchema>,
    connect: &PgConnectOptions,
) -> Error {
    let (Some(source), Some(schema)) = (error.driver().filter(|source| has_code(source, &TAKEN)), schema)
    else {
        return error;
    };
    let said = source.as_database_error().map_or_else(String::new, |said| said.message().to_owned());
    if schema.has_ledger {
        // In a schema of its own there would be another ledger.
        return Error::Unprepared(format!(
            "a migration cannot make what it is to make in the ledger's schema {}: {said}. If it is another program's, move it \
             into another schema (ALTER … SET SCHEMA), and start again.",
            identifier(&schema.name)
        ));
    }
    taken_schema(&schema.name, &said, connect)
}

/// Refuses to make a ledger where another program notes its migrations: in a table of the same name.
pub(super) fn refuse_other_program(schema: &LedgerSchema, connect: &PgConnectOptions) -> Result<()> {
    match &schema.other {
        Some(table) => {
            Err(taken_schema(&schema.name, &format!("relation {} is there", identifier(table)), connect))
        }
        None => Ok(()),
    }
}

/// The refusal of a schema in which no ledger can be made beside what another program has there.
fn taken_schema(schema: &str, said: &str, connect: &PgConnectOptions) -> Error {
    let [first, second] = OWN_SCHEMAS;
    let own = if schema == first { second } else { first };
    let what = format!(
        "the search_path leads to no ledger, and in the schema {} none can be made beside the tables of another program: \
         {said}. Nothing was made. If the ledger is in another schema, name that one in the database URL \
         (options=-csearch_path%3DNAME), and make none. Otherwise give it a schema of its own, and name this one \
         (options=-csearch_path%3D{own}).",
        identifier(schema)
    );
    let create = [
        format!("-- in the database {}:", identifier(database_of(connect))),
        format!("CREATE SCHEMA {} AUTHORIZATION {};", identifier(own), identifier(connect.get_username())),
    ];
    unprepared(&what, &create)
}

fn unprepared(what: &str, sql: &[String]) -> Error {
    Error::Unprepared(format!("{what}\n  As a superuser of the server:\n    {}", sql.join("\n    ")))
}

/// Refuses a pooler that drops settings which the options of the URL name. One may be the search path that leads to the ledger:
/// without it another ledger would be made, which grants all again.
pub(super) async fn refuse_dropped_options(connect: &PgConnectOptions) -> Result<()> {
    let wanted = session_settings(connect);
    if wanted.is_empty() {
        return Ok(());
    }
    let mut session = PgConnection::connect_with(connect).await.map_err(read_failed)?;
    for (name, value) in &wanted {
        let mut transaction = session.begin().await.map_err(read_failed)?;
        let asked = sqlx::query_as::<Postgres, (bool, String, String)>(SETTING)
            .bind(name.as_str())
            .bind(value.as_str());
        let found = asked.persistent(false).fetch_one(&mut *transaction).await;
        transaction.rollback().await.map_err(read_failed)?;
        match found {
            Ok((true, ..)) => {}
            Ok((false, database, role)) => return Err(dropped_option([name, value], [&database, &role])),
            // One that no session gets later, so that nobody knows what the server makes of the value.
            Err(sqlx::Error::Database(_)) => {}
            Err(error) => return Err(read_failed(error)),
        }
    }
    session.close().await.map_err(read_failed)
}

fn dropped_option([name, value]: [&str; 2], [database, role]: [&str; 2]) -> Error {
    let what = format!(
        "sessions do not begin with {name} = {value}, which the options of the database URL (or PGOPTIONS) ask for: a pooler \
         on the way drops its options (ignore_startup_parameters in PgBouncer). Take them out of the URL, and let the role have \
         them."
    );
    // A search path is a list of names, and no text.
    let is_list = name.eq_ignore_ascii_case("search_path");
    let value = if is_list { value.to_owned() } else { format!("'{}'", value.replace('\'', "''")) };
    let [database, role] = [database, role].map(identifier);
    let sql = [
        format!("ALTER ROLE {role} IN DATABASE {database} SET {name} = {value};"),
        "-- and end the pooler's connections to the server (RECONNECT in PgBouncer)".to_owned(),
    ];
    unprepared(&what, &sql)
}

/// Refuses to go on where the search path leads to a ledger that the role may not use, as after a restore without its rights.
/// PostgreSQL passes over such a schema. So this would count as no ledger, and one made instead would grant all again.
pub(super) async fn refuse_hidden_ledger(
    connect: &PgConnectOptions,
    session: &mut PgConnection,
) -> Result<()> {
    let rows = sqlx::raw_sql(HIDDEN).fetch_all(session).await.map_err(read_failed)?;
    let Some(row) = rows.first() else { return Ok(()) };
    let schema: String = row.try_get("schema").map_err(read_failed)?;
    let role: String = row.try_get("role").map_err(read_failed)?;
    Err(hidden_ledger(&schema, &role, connect))
}

fn hidden_ledger(schema: &str, role: &str, connect: &PgConnectOptions) -> Error {
    let [schema, role] = [schema, role].map(identifier);
    let what = format!(
        "the schema {schema} has a ledger, which the role {role} may not use. If another ledger is meant, take this schema out of \
         the role's search_path."
    );
    let grant = [
        format!("-- in the database {}:", identifier(database_of(connect))),
        format!("GRANT USAGE ON SCHEMA {schema} TO {role};"),
    ];
    unprepared(&what, &grant)
}

/// Refuses a database with another encoding than [`UTF8`] or [`AS_SENT`]: it keeps only some texts, and reads not even all
/// statements.
pub(super) async fn refuse_other_encoding(
    connect: &PgConnectOptions,
    session: &mut PgConnection,
) -> Result<()> {
    let row = sqlx::raw_sql(ENCODING).fetch_one(session).await.map_err(read_failed)?;
    let encoding: String = row.try_get("encoding").map_err(read_failed)?;
    if [UTF8, AS_SENT].contains(&encoding.as_str()) {
        return Ok(());
    }
    let has_ledger: bool = row.try_get("has_ledger").map_err(read_failed)?;
    Err(other_encoding(&encoding, has_ledger, connect))
}

fn other_encoding(encoding: &str, has_ledger: bool, connect: &PgConnectOptions) -> Error {
    let role = identifier(connect.get_username());
    let name = database_of(connect);
    let make = format!(
        "CREATE DATABASE {} OWNER {role} ENCODING '{UTF8}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;",
        identifier(&format!("{name}_utf8"))
    );
    let what = format!("the database {} has the encoding {encoding}, and must have {UTF8}", identifier(name));
    let mut sql = vec![make];
    if has_ledger {
        // What is empty grants all again.
        let moves = "-- stop all instances, and restore a dump (pg_dump) of this database into that one (docs/recovery.md)";
        sql.push(moves.to_owned());
    }
    sql.push("-- and name that one in the database URL".to_owned());
    unprepared(&what, &sql)
}

/// The database's name. The driver takes the role's where none is given.
fn database_of(connect: &PgConnectOptions) -> &str {
    connect.get_database().unwrap_or(connect.get_username())
}

/// The SQL that mends what the server refuses; `None` where it is something else.
fn repair(code: &str, message: &str, connect: &PgConnectOptions) -> Option<Vec<String>> {
    let role = identifier(connect.get_username());
    let database = identifier(database_of(connect));
    Some(match code {
        // invalid_catalog_name
        "3D000" => vec![format!("CREATE DATABASE {database} OWNER {role};")],
        // invalid_authorization_specification
        "28000" if message.contains("does not exist") => {
            vec![format!("CREATE ROLE {role} LOGIN PASSWORD {PASSWORD};")]
        }
        "28000" if message.contains("not permitted to log in") => vec![format!("ALTER ROLE {role} LOGIN;")],
        "28000" => {
            let mut lines = vec![
                format!(
                    "-- A line of pg_hba.conf must let the role {role} into the database {database}; then:"
                ),
                "SELECT pg_reload_conf();".to_owned(),
            ];
            if message.contains("no encryption") {
                let by_tls = "-- or, where it has one for connections by TLS (hostssl): sslmode=verify-full in the URL";
                lines.push(by_tls.to_owned());
            }
            lines
        }
        // invalid_password; the server says the same where there is no such role
        "28P01" => vec![
            format!("CREATE ROLE {role} LOGIN PASSWORD {PASSWORD};"),
            "-- or, if there is the role, and the URL has another password than it:".to_owned(),
            format!("ALTER ROLE {role} PASSWORD {PASSWORD};"),
        ],
        // insufficient_privilege
        "42501" if message.contains("permission denied for database") => {
            vec![format!("GRANT CONNECT, CREATE, TEMPORARY ON DATABASE {database} TO {role};")]
        }
        "42501" if message.contains("permission denied for schema") => {
            let schema = message.rsplit(' ').next().unwrap_or("public");
            vec![
                format!("-- in the database {database}:"),
                format!("GRANT USAGE, CREATE ON SCHEMA {} TO {role};", identifier(schema)),
            ]
        }
        "42501" if denies_rows(message) => vec![
            format!(
                "-- in the database {database}, with the schema of the tables in place of NAME, and the role that"
            ),
            "-- owns them in place of OWNER:".to_owned(),
            format!("GRANT {RIGHTS} ON ALL TABLES IN SCHEMA NAME TO {role};"),
            format!(
                "ALTER DEFAULT PRIVILEGES FOR ROLE OWNER IN SCHEMA NAME GRANT {RIGHTS} ON TABLES TO {role};"
            ),
            format!("-- or, so that {role} also creates and drops the partitions of finished jobs:"),
            format!("REASSIGN OWNED BY OWNER TO {role};"),
        ],
        "42501" => vec![
            format!(
                "-- in the database {database}, with the role that owns the tables now in place of OWNER:"
            ),
            format!("REASSIGN OWNED BY OWNER TO {role};"),
        ],
        // invalid_schema_name: none of the search path is there, or may be used
        "3F000" => vec![
            format!("-- in the database {database}:"),
            format!("CREATE SCHEMA {role} AUTHORIZATION {role};"),
        ],
        _ => return None,
    })
}

/// Whether the role may not read or write a table that there is.
fn denies_rows(message: &str) -> bool {
    ["permission denied for table ", "permission denied for view "]
        .iter()
        .any(|words| message.contains(words))
}

/// A name as SQL writes it.
fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;

    fn sql(code: &str, message: &str) -> String {
        let connect = PgConnectOptions::from_str("postgres://f%22p:secret@h/led").unwrap();
        let sql = repair(code, message, &connect).map_or_else(String::new, |lines| lines.join("\n"));
        assert!(!sql.contains("secret"));
        sql
    }

    #[test]
    fn what_is_missing_is_made_by_the_sql_with_names_quoted() {
        assert_eq!(
            sql("3D000", "database \"led\" does not exist"),
            "CREATE DATABASE \"led\" OWNER \"f\"\"p\";"
        );
        let role = sql("28000", "role \"f\"p\" does not exist");
        assert_eq!(role, "CREATE ROLE \"f\"\"p\" LOGIN PASSWORD '…';");
        assert!(sql("28000", "role \"x\" is not permitted to log in").ends_with("LOGIN;"));
        let unadmitted = "no pg_hba.conf entry for host \"::1\", user \"x\", database \"led\", ";
        for (encryption, by_tls) in [("no encryption", true), ("SSL encryption", false)] {
            let lines = sql("28000", &format!("{unadmitted}{encryption}"));
            assert!(lines.contains("SELECT pg_reload_conf();"), "{lines}");
            assert_eq!(lines.contains("sslmode=verify-full"), by_tls, "{lines}");
        }
        assert!(sql("28P01", "password authentication failed").contains("ALTER ROLE"));
        let schema = sql("42501", "permission denied for schema my");
        assert!(schema.ends_with("GRANT USAGE, CREATE ON SCHEMA \"my\" TO \"f\"\"p\";"), "{schema}");
        assert!(sql("42501", "permission denied for database led").starts_with("GRANT CONNECT"));
        for denied in ["permission denied for table lease", "permission denied for view ledger_current"] {
            let rows = sql("42501", denied);
            let now = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA NAME TO \"f\"\"p\";";
            assert!(rows.contains(now) && rows.contains("ALTER DEFAULT PRIVILEGES FOR ROLE OWNER"), "{rows}");
        }
        let owned = sql("42501", "must be owner of table lease");
        assert!(owned.contains("REASSIGN OWNED") && !owned.contains("GRANT"), "{owned}");
        assert!(sql("3F000", "no schema has been selected to create in").contains("CREATE SCHEMA"));
    }

    #[test]
    fn a_ledger_that_the_role_may_not_use_is_refused_with_the_right_to_use_it() {
        let connect = PgConnectOptions::from_str("postgres://f%22p:secret@h/led").unwrap();
        // The role in force may be another than the one that has connected.
        let refused = hidden_ledger("my\"s", "acts", &connect).to_string();
        assert!(refused.contains("the schema \"my\"\"s\" has a ledger"), "{refused}");
        assert!(refused.contains("in the database \"led\":"), "{refused}");
        assert!(refused.ends_with("GRANT USAGE ON SCHEMA \"my\"\"s\" TO \"acts\";"), "{refused}");
    }

    #[test]
    fn an_option_that_a_pooler_drops_is_refused_with_the_sql_that_gives_it_to_the_role() {
        let refused = |name, value| dropped_option([name, value], ["led", "f\"p"]).to_string();
        let path = refused("search_path", "a, \"B\"");
        assert!(path.starts_with("sessions do not begin with search_path = a, \"B\""), "{path}");
        let alter = "ALTER ROLE \"f\"\"p\" IN DATABASE \"led\" SET search_path = a, \"B\";";
        assert!(path.contains(alter) && path.contains("RECONNECT"), "{path}");
        let text = refused("lock_timeout", "5's");
        assert!(text.contains("SET lock_timeout = '5''s';"), "{text}");
    }

    #[test]
    fn a_schema_that_another_program_has_is_refused_with_the_sql_of_another_one_unless_it_has_a_ledger() {
        let connect = PgConnectOptions::from_str("postgres://f%22p:secret@h/led").unwrap();
        let refused = |schema| taken_schema(schema, "relation \"job\" already exists", &connect).to_string();
        let public = refused("public");
        assert!(
            public.contains("in the schema \"public\"") && public.contains("relation \"job\""),
            "{public}"
        );
        // It may be that the role lacks the path that leads to the ledger.
        assert!(public.contains("If the ledger is in another schema"), "{public}");
        assert!(public.contains("options=-csearch_path%3Dfencepost)"), "{public}");
        assert!(public.ends_with("CREATE SCHEMA \"fencepost\" AUTHORIZATION \"f\"\"p\";"), "{public}");
        let own = refused("fencepost");
        assert!(own.contains("%3Dfencepost_ledger)") && own.contains("SCHEMA \"fencepost_ledger\""), "{own}");
    }

    #[test]
    fn a_database_of_another_encoding_is_refused_with_the_sql_of_one_that_keeps_every_text() {
        let connect = PgConnectOptions::from_str("postgres://f%22p:secret@h/led").unwrap();
        let refused = other_encoding("LATIN1", false, &connect).to_string();
        assert!(refused.starts_with("the database \"led\" has the encoding LATIN1"), "{refused}");
        assert!(
            refused.contains("CREATE DATABASE \"led_utf8\" OWNER \"f\"\"p\" ENCODING 'UTF8'"),
            "{refused}"
        );
        assert!(!refused.contains("pg_dump"), "{refused}");
        let refused = other_encoding("LATIN1", true, &connect).to_string();
        let (stop, name) = (refused.find("stop all instances"), refused.find("name that one"));
        assert!(stop.is_some() && stop < name && refused.contains("pg_dump"), "{refused}");
    }

    #[test]
    fn the_certificate_of_an_authority_is_explained_once_and_may_be_another_one_later() {
        let connect = PgConnectOptions::from_str("postgres://h/led").unwrap();
        let said = "invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))";
        let failed = || std::io::Error::new(std::io::ErrorKind::InvalidData, said);
        let told = explained(Error::unavailable(failed()), &connect);
        assert!(told.is_retryable() && told.to_string().ends_with("with CA:FALSE"), "{told}");
        assert_eq!(explained(told.clone(), &connect).to_string(), told.to_string());
    }

    #[test]
    fn what_ends_by_itself_needs_no_sql() {
        for code in ["57P03", "53300", "40001", "08006", ""] {
            assert_eq!(sql(code, "the database system is starting up"), "");
        }
    }
}
