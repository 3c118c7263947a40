//! The schema that a ledger lies in. All sessions look into it first, and make in it what they make, whatever search path they
//! begin with: somebody may change that, or make a schema that comes before it, while instances run or between two starts.

use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::read_failed;
use crate::Result;
use crate::sql::sql_file;

const SCHEMA: &str = sql_file!("postgres-only", "ledger_schema");

/// Where the ledger is, or is to be made.
pub(super) struct LedgerSchema {
    pub(super) name: String,
    pub(super) has_ledger: bool,
    /// A table for the names of migrations, where there is no ledger: another program's.
    pub(super) other: Option<String>,
}

/// The schema by the search path that the session began with; the session looks into it first from then on. `None` where that
/// path leads nowhere.
pub(super) async fn found(session: &mut PgConnection) -> Result<Option<LedgerSchema>> {
    let rows = sqlx::raw_sql(SCHEMA).fetch_all(&mut *session).await.map_err(read_failed)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let name: String = row.try_get("schema").map_err(read_failed)?;
    let has_ledger = row.try_get("has_ledger").map_err(read_failed)?;
    let other = row.try_get("other").map_err(read_failed)?;
    let first = AssertSqlSafe(first_in_path(&name));
    sqlx::raw_sql(first).execute(session).await.map_err(read_failed)?;
    Ok(Some(LedgerSchema { name, has_ledger, other }))
}

/// The statement by which a session looks into this schema first, and then where it looked before. Also in a session that a
/// pooler gives again as it was, the path has it in front once.
pub(super) fn first_in_path(schema: &str) -> String {
    let first = format!("quote_ident(E'{}')", schema.replace('\\', r"\\").replace('\'', "''"));
    let path = "current_setting('search_path')";
    format!(
        "SELECT set_config('search_path', concat_ws(', ', {first}, nullif({path}, '')), false) \
         WHERE NOT starts_with({path} || ',', {first} || ','); "
    )
}
