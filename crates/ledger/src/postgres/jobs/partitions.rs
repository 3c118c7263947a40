//! The partitions of finished jobs: one for each day of the ids' own time, made ahead, and dropped as a whole when all
//! of it is old.
//!
//! Both need the table for themselves for a moment, and everybody who comes meanwhile queues behind. So they wait for
//! that only briefly, and are asked for again and again.

use std::collections::HashSet;

use domain::JobId;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::uuid;
use crate::Result;
use crate::jobs::PARTITION_DAYS_AHEAD;
use crate::postgres::{Postgres, sql};
use crate::sessions::rows::{PurgedRow, highest_places};

const DAY_MS: u64 = 86_400_000;
/// How long trains may be kept waiting.
const PATIENCE: &str = "200ms";
/// Before the number of a partition's day.
const PREFIX: &str = "job_finished_";

macro_rules! sql_here {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/postgres-only/", $name, ".sql"))
    };
}

impl Postgres {
    /// Makes the partitions of today and the next days that are missing.
    pub(super) async fn make_missing_partitions(&self) -> Result<()> {
        self.writes(|session| {
            Box::pin(async move {
                let (days, now_ms) = partitions(session).await?;
                let today = now_ms / DAY_MS;
                for day in (today..=today + PARTITION_DAYS_AHEAD).filter(|day| !days.contains(day)) {
                    make(session, day).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Drops the partitions of which all is old; deletes what is old in those that cannot be dropped for the sake of
    /// a few, and in the one that takes what no other does.
    pub(super) async fn forget_finished_jobs(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.writes(move |session| {
            Box::pin(async move {
                let (days, now_ms) = partitions(session).await?;
                let first_kept_day = now_ms.saturating_sub(age_ms) / DAY_MS;
                for day in days.into_iter().filter(|day| *day < first_kept_day) {
                    match drop_if_old(session, day, age_ms).await {
                        // Another instance was quicker.
                        Err(error) if is(&error, &["42P01"]) => {}
                        other => other?,
                    }
                }
                let mut transaction = session.begin().await?;
                let mut deleted: Vec<PurgedRow> = sqlx::query_as(sql!("job_purge"))
                    .bind(age_ms as i64)
                    .bind(uuid(JobId::first_at_ms(first_kept_day * DAY_MS)))
                    .bind(i64::from(limit))
                    .fetch_all(&mut *transaction)
                    .await?;
                let rest: Vec<PurgedRow> = sqlx::query_as(sql_here!("job_purge_rest"))
                    .bind(age_ms as i64)
                    .bind(i64::from(limit).saturating_sub_unsigned(deleted.len() as u64))
                    .fetch_all(&mut *transaction)
                    .await?;
                deleted.extend(rest);
                let count = deleted.len() as u64;
                let (sessions, places): (Vec<_>, Vec<_>) = highest_places(deleted).into_iter().unzip();
                sqlx::query(sql!("session_purged_seq"))
                    .bind(sessions)
                    .bind(places)
                    .execute(&mut *transaction)
                    .await?;
                transaction.commit().await?;
                Ok(count)
            })
        })
        .await
    }
}

/// The days that have a partition, and the time.
async fn partitions(session: &mut PgConnection) -> sqlx::Result<(HashSet<u64>, u64)> {
    let row = sqlx::query(sql_here!("job_partitions")).fetch_one(session).await?;
    let (names, now_ms): (Vec<String>, i64) = (row.try_get("names")?, row.try_get("now_ms")?);
    let days = names.iter().filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok());
    Ok((days.collect(), now_ms.unsigned_abs()))
}

async fn make(session: &mut PgConnection, day: u64) -> sqlx::Result<()> {
    let first = |day| JobId::first_at_ms(day * DAY_MS).to_string();
    let statement = sql_here!("job_partition_make")
        .replace("FIRST", &first(day))
        .replace("NEXT", &first(day + 1))
        .replace("DAY", &day.to_string());
    let mut transaction = session.begin().await?;
    sqlx::query(sql_here!("lock_wait")).bind(PATIENCE).execute(&mut *transaction).await?;
    match sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *transaction).await {
        Ok(_) => transaction.commit().await,
        Err(error) => {
            transaction.rollback().await?;
            // Another instance was quicker; or jobs of that day have finished already: they, and all of that day, stay
            // where they are.
            if is(&error, &["42P07", "23505", "23514"]) { Ok(()) } else { Err(error) }
        }
    }
}

/// Whether the server refused for one of these reasons.
fn is(error: &sqlx::Error, codes: &[&str]) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| codes.contains(&&*code))
}

/// Looks twice: quickly first, and then while nothing can be moved there any more.
async fn drop_if_old(session: &mut PgConnection, day: u64, age_ms: u64) -> sqlx::Result<()> {
    let of_day = |statement: &str| AssertSqlSafe(statement.replace("DAY", &day.to_string()));
    let young = || sqlx::query_scalar(of_day(sql_here!("job_partition_young"))).bind(age_ms as i64);
    if young().fetch_one(&mut *session).await? {
        return Ok(());
    }
    let mut transaction = session.begin().await?;
    sqlx::query(sql_here!("lock_wait")).bind(PATIENCE).execute(&mut *transaction).await?;
    sqlx::raw_sql(of_day(sql_here!("job_partition_close"))).execute(&mut *transaction).await?;
    if young().fetch_one(&mut *transaction).await? {
        return transaction.rollback().await;
    }
    // A session of that day's jobs was made before them; its time is another clock's than their ids'.
    let made_before = (day + 2).saturating_mul(DAY_MS * 1_000);
    sqlx::query(of_day(sql_here!("job_partition_places")))
        .bind(made_before as i64)
        .execute(&mut *transaction)
        .await?;
    sqlx::raw_sql(of_day(sql_here!("job_partition_drop"))).execute(&mut *transaction).await?;
    transaction.commit().await
}
