//! Forgetting finished jobs. On PostgreSQL they lie in partitions: one for each day of the ids' own time, made ahead, and
//! dropped as a whole when all of it is old. In SQLite they lie in one table. The job of a stage stays, whatever its age,
//! while its plan waits for its result, until the stage has its checkpoint or failed, or the plan is forgotten or runs the
//! stage again; and while its task waits until no attempt of it is under way. Its partition stays with it; the other jobs of
//! that day are deleted one by one.
//!
//! Making and dropping a partition both lock the table for a moment, and every statement that comes meanwhile queues
//! behind them. So they wait for the lock only briefly; the upkeep calls them again and again.

use std::collections::{BTreeMap, HashSet};
use std::iter;
use std::sync::Once;
use std::time::{Duration, Instant};

use domain::JobId;
use parking_lot::Mutex;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::failure::has_code;
use super::{Store, Way};
use crate::jobs::PARTITION_DAYS_AHEAD;
use crate::sessions::rows::{PurgedRow, highest_places};
use crate::sql::{Id, Session, Statement, Transaction, sql_file, statement};
use crate::unwritable::{INSUFFICIENT_PRIVILEGE, UNDEFINED_TABLE};
use crate::{Error, Kind, Result};

const PURGE: Statement = statement!("job_purge");
const PURGE_REST: Statement = statement!(postgres "job_purge_rest");
const PURGED_SEQ: Statement = statement!("session_purged_seq");
const PARTITIONS: Statement = statement!(postgres "job_partitions");
const LOCK_WAIT: &str = sql_file!("postgres-only", "lock_wait");
const REST: &str = sql_file!("postgres-only", "job_partition_rest");
const ROOM: &str = sql_file!("postgres-only", "job_partition_room");
const MAKE: &str = sql_file!("postgres-only", "job_partition_make");
const KEPT: &str = sql_file!("postgres-only", "job_partition_kept");
const CLOSE: &str = sql_file!("postgres-only", "job_partition_close");
const PLACES: &str = sql_file!("postgres-only", "job_partition_places");
const DROP: &str = sql_file!("postgres-only", "job_partition_drop");

const DAY_MS: u64 = 86_400_000;
/// How long trains may be kept waiting.
const PATIENCE: &str = "200ms";
/// Where the partition that takes what no other does is larger, in bytes, none is made: the server reads all of it meanwhile
/// (some 0.1 s for so much in memory), and every statement about finished jobs waits for that.
const REST_BYTES_MAX: i64 = 128 << 20;
/// Before the number of a partition's day.
const PREFIX: &str = "job_finished_";
/// The partition that takes what no other does.
const REST_NAME: &str = "job_finished_rest";
/// Jobs that are kept for no more days than this need no more locks than PostgreSQL has room for by default.
const DAYS_BY_DEFAULT_MAX: u64 = 30;
/// Where they are kept for more, `max_locks_per_transaction` is to have so many for each day, if the server has its default of
/// connections: docs/operations.md says so.
const LOCKS_PER_DAY: u64 = 7;
/// PostgreSQL's default of `max_connections`.
const CONNECTIONS_DEFAULT: u64 = 100;
/// After partitions could not be dropped, none is tried for so many times what that took: jobs that are deleted one by one do not
/// wait for it with each step.
const DROPS_REST_FACTOR: u32 = 10;

/// Until when no partition is dropped, since some could not be.
#[derive(Debug, Default)]
pub(super) struct DropsRest(Mutex<Option<Instant>>);

impl DropsRest {
    fn is_over(&self, now: Instant) -> bool {
        self.0.lock().is_none_or(|until| now >= until)
    }

    /// Some could not be dropped, which took so long.
    fn begin(&self, now: Instant, took: Duration) {
        *self.0.lock() = Some(now + took * DROPS_REST_FACTOR);
    }
}

impl Store {
    /// Makes the partitions of today and the next days that are missing. One that cannot be made keeps no other one from it.
    pub(super) async fn make_missing_partitions(&self) -> Result<()> {
        let made = self.with(Way::Writes, |mut session| {
            Box::pin(async move {
                // SQLite has none.
                if session.kind() == Kind::Sqlite {
                    return Ok(Ok(()));
                }
                let Partitions { days, now_ms, .. } = partitions(&mut session).await?;
                let Session::Postgres(session) = session else { return Ok(Ok(())) };
                let today = now_ms / DAY_MS;
                let mut missing =
                    (today..=today + PARTITION_DAYS_AHEAD).filter(|day| !days.contains(day)).peekable();
                if missing.peek().is_none() || is_rest_long(session).await? {
                    return Ok(Ok(()));
                }
                let mut made = Ok(());
                for day in missing {
                    if let Err(error) = make(session, day).await {
                        tracing::debug!(%error, day, "the partition of a day could not be created yet");
                        made = Err(error);
                    }
                }
                match made {
                    // The table may be another role's. The ledger takes writes all the same.
                    Err(error) if has_code(&error, &[INSUFFICIENT_PRIVILEGE]) => Ok(Err(error)),
                    made => made.map(Ok),
                }
            })
        });
        let made: sqlx::Result<()> = made.await?;
        made.map_err(Error::refused)
    }

    /// Drops the partitions of which all is old; deletes what is old in those that cannot be dropped for the sake of
    /// a few even a day later, and in the one that takes what no other does. Answers how many jobs were deleted. What keeps a
    /// partition from being dropped, as somebody's view of it or more sessions than the statement has time for, keeps no
    /// other job from being deleted.
    pub(super) async fn forget_finished_jobs(&self, age_ms: u64, limit: u32) -> Result<u64> {
        let begun = Instant::now();
        if self.database() == Kind::Postgres && self.drops_rest.is_over(begun) {
            let dropped = self.drop_old_partitions(age_ms).await;
            if let Err(error) = dropped {
                self.drops_rest.begin(Instant::now(), begun.elapsed());
                crate::log_failure!(
                    error,
                    "a partition of finished jobs could not be dropped; its old jobs are deleted one by one a day later"
                );
            }
        }
        self.delete_old_jobs(age_ms, limit).await
    }

    /// One that cannot be dropped keeps no other one from it. What is begun in the first half of the call's time can end in
    /// that time; the next call goes on with the others. The order is another one each time, so that no partition is always
    /// behind those that take long.
    async fn drop_old_partitions(&self, age_ms: u64) -> Result<()> {
        let until = Instant::now() + self.call_timeout / 2;
        let dropped = self.with(Way::Writes, move |mut session| {
            Box::pin(async move {
                let Partitions { days, now_ms, room, .. } = partitions(&mut session).await?;
                let Session::Postgres(session) = session else { return Ok(Ok(())) };
                room.warn_where_short(age_ms / DAY_MS);
                let kept = first_kept_day(now_ms, age_ms);
                let mut dropped = Ok(());
                for day in days.into_iter().filter(|day| *day < kept) {
                    if Instant::now() >= until {
                        tracing::debug!(day, "the partition of a day is left to the next purge");
                        break;
                    }
                    match drop_if_old(session, day, age_ms).await {
                        Ok(()) => {}
                        // Another instance was quicker.
                        Err(error) if has_code(&error, &[UNDEFINED_TABLE]) => {}
                        Err(error) => {
                            tracing::debug!(%error, day, "the partition of a day could not be dropped yet");
                            dropped = Err(error);
                        }
                    }
                }
                match dropped {
                    // It may be another role's. The ledger takes writes all the same.
                    Err(error) if has_code(&error, &[INSUFFICIENT_PRIVILEGE]) => Ok(Err(error)),
                    dropped => dropped.map(Ok),
                }
            })
        });
        let dropped: sqlx::Result<()> = dropped.await?;
        dropped.map_err(Error::refused)
    }

    async fn delete_old_jobs(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.with(Way::Writes, move |mut session| {
            Box::pin(async move {
                if session.kind() == Kind::Sqlite {
                    let mut transaction = session.begin().await?;
                    let purge = PURGE.on(Kind::Sqlite).bind(age_ms as i64).bind(i64::from(limit));
                    let deleted = transaction.all(purge).await?;
                    return commit_deleted(transaction, deleted).await;
                }
                let Partitions { days, has_others, now_ms, .. } = partitions(&mut session).await?;
                // A day that is old as a whole a little later is not worth deleting row by row.
                let first_dropped_day = first_kept_day(now_ms, age_ms).saturating_sub(1);
                let old_days: Vec<_> = match has_others {
                    // They may have jobs of any day.
                    true => iter::once(0..first_dropped_day).collect(),
                    false => days
                        .into_iter()
                        .filter(|day| *day < first_dropped_day)
                        .map(|day| day..day + 1)
                        .collect(),
                };
                let mut transaction = session.begin().await?;
                let mut deleted: Vec<PurgedRow> = Vec::new();
                let mut left = i64::from(limit);
                for days in old_days {
                    let purge = PURGE
                        .on(Kind::Postgres)
                        .bind(age_ms as i64)
                        .bind(Id(JobId::first_at_ms(days.start * DAY_MS)))
                        .bind(Id(JobId::first_at_ms(days.end * DAY_MS)))
                        .bind(left);
                    let of_days = transaction.all::<PurgedRow>(purge).await?;
                    left = left.saturating_sub_unsigned(of_days.len() as u64);
                    deleted.extend(of_days);
                }
                let purge_rest = PURGE_REST.on(Kind::Postgres).bind(age_ms as i64).bind(left);
                deleted.extend(transaction.all::<PurgedRow>(purge_rest).await?);
                commit_deleted(transaction, deleted).await
            })
        })
        .await
    }
}

/// The first day of which jobs are kept, whenever they finished.
const fn first_kept_day(now_ms: u64, age_ms: u64) -> u64 {
    now_ms.saturating_sub(age_ms) / DAY_MS
}

/// Commits with the highest place that was deleted in each session.
async fn commit_deleted(mut transaction: Transaction<'_>, deleted: Vec<PurgedRow>) -> sqlx::Result<u64> {
    let count = deleted.len() as u64;
    note_places(&mut transaction, highest_places(deleted)).await?;
    transaction.commit().await?;
    Ok(count)
}

/// Notes the highest place that was deleted in each session, so that no place is given again.
pub(super) async fn note_places(
    transaction: &mut Transaction<'_>,
    places: BTreeMap<String, i64>,
) -> sqlx::Result<()> {
    let places: Vec<_> = places.into_iter().collect();
    let note = PURGED_SEQ.on(transaction.kind()).rows(&places, |places| {
        places.column("session", |(session, _)| session.as_str()).column("seq", |(_, seq)| *seq);
    });
    transaction.touch(note).await.map(drop)
}

/// What partitions there are.
struct Partitions {
    /// The days that have one.
    days: HashSet<u64>,
    /// Somebody has made one under a name of their own, of whatever days.
    has_others: bool,
    /// The time.
    now_ms: u64,
    /// The server's room for locks.
    room: LockRoom,
}

/// What the server has for `max_locks_per_transaction` and for `max_connections`: their product is the room for locks, which
/// all sessions share.
#[derive(Clone, Copy, Debug, Default)]
struct LockRoom {
    locks: u64,
    connections: u64,
}

impl LockRoom {
    /// What `max_locks_per_transaction` is to be where jobs are kept for so many days, if it is less.
    fn lacks(self, days: u64) -> Option<u64> {
        let room = LOCKS_PER_DAY * days * CONNECTIONS_DEFAULT;
        let needed = room.div_ceil(self.connections.max(CONNECTIONS_DEFAULT));
        (days > DAYS_BY_DEFAULT_MAX && self.locks < needed).then_some(needed)
    }

    /// Logs it, once in a process.
    fn warn_where_short(self, days: u64) {
        static TOLD: Once = Once::new();
        let Some(needed) = self.lacks(days) else { return };
        TOLD.call_once(|| {
            tracing::warn!(
                days,
                needed,
                found = self.locks,
                "max_locks_per_transaction of PostgreSQL is too low for jobs.retention_ms: statements about finished jobs \
                 can fail (out of shared memory); see jobs.retention_ms in docs/operations.md"
            );
        });
    }
}

async fn partitions(session: &mut Session<'_>) -> sqlx::Result<Partitions> {
    let rows: Vec<(Option<String>, i64, i64, i64)> = session.all(PARTITIONS.on(Kind::Postgres)).await?;
    let (now_ms, room) = rows.first().map_or_else(Default::default, |(_, now_ms, locks, connections)| {
        let room = LockRoom { locks: locks.unsigned_abs(), connections: connections.unsigned_abs() };
        (now_ms.unsigned_abs(), room)
    });
    let (mut days, mut has_others) = (HashSet::new(), false);
    for name in rows.iter().filter_map(|(name, ..)| name.as_deref()).filter(|name| *name != REST_NAME) {
        match name.strip_prefix(PREFIX).and_then(|day| day.parse::<u64>().ok()) {
            Some(day) => {
                days.insert(day);
            }
            None => has_others = true,
        }
    }
    Ok(Partitions { days, has_others, now_ms, room })
}

/// Whether the partition that takes what no other does is so large that none is made beside it.
async fn is_rest_long(session: &mut PgConnection) -> sqlx::Result<bool> {
    let is_long = sqlx::query_scalar::<_, i64>(REST).fetch_one(session).await? > REST_BYTES_MAX;
    if is_long {
        tracing::warn!(
            bytes_max = REST_BYTES_MAX,
            "job_finished_rest is too large for the partitions of the coming days to be created without a stop of the \
             traffic; see \"Partitions of finished jobs\" in docs/operations.md"
        );
    }
    Ok(is_long)
}

async fn make(session: &mut PgConnection, day: u64) -> sqlx::Result<()> {
    let first = |day| JobId::first_at_ms(day * DAY_MS).to_string();
    let of_day = |statement: &str| {
        let statement = statement.replace("FIRST", &first(day)).replace("NEXT", &first(day + 1));
        AssertSqlSafe(statement.replace("DAY", &day.to_string()))
    };
    // Jobs of that day have finished already: they, and all of that day, stay where they are. To find that out here, by the
    // key, keeps nobody waiting.
    if sqlx::query_scalar(of_day(ROOM)).fetch_one(&mut *session).await? {
        return Ok(());
    }
    let mut transaction = session.begin().await?;
    sqlx::query(LOCK_WAIT).bind(PATIENCE).execute(&mut *transaction).await?;
    match sqlx::raw_sql(of_day(MAKE)).execute(&mut *transaction).await {
        Ok(_) => transaction.commit().await,
        Err(error) => {
            transaction.rollback().await?;
            // Another instance was quicker; or a job of that day has finished since.
            if has_code(&error, &["42P07", "23505", "23514"]) { Ok(()) } else { Err(error) }
        }
    }
}

/// Looks twice: quickly first, and then while nothing can be moved there any more.
async fn drop_if_old(session: &mut PgConnection, day: u64, age_ms: u64) -> sqlx::Result<()> {
    let of_day = |statement: &str| AssertSqlSafe(statement.replace("DAY", &day.to_string()));
    let is_kept = || sqlx::query_scalar(of_day(KEPT)).bind(age_ms as i64);
    if is_kept().fetch_one(&mut *session).await? {
        return Ok(());
    }
    let mut transaction = session.begin().await?;
    sqlx::query(LOCK_WAIT).bind(PATIENCE).execute(&mut *transaction).await?;
    sqlx::raw_sql(of_day(CLOSE)).execute(&mut *transaction).await?;
    if is_kept().fetch_one(&mut *transaction).await? {
        return transaction.rollback().await;
    }
    // A session of that day's jobs was made before them; the time in their ids may be ahead of the database's.
    let made_before = (day + 2).saturating_mul(DAY_MS * 1_000);
    sqlx::query(of_day(PLACES)).bind(made_before as i64).execute(&mut *transaction).await?;
    sqlx::raw_sql(of_day(DROP)).execute(&mut *transaction).await?;
    transaction.commit().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_month_of_jobs_asks_for_the_locks_that_the_page_names() {
        let lacks = |locks, connections, days| LockRoom { locks, connections }.lacks(days);
        for days in [0, 7, 30] {
            assert_eq!(lacks(64, 100, days), None, "{days} days");
        }
        for (days, needed, named) in [(31, 217, 217), (90, 630, 700), (365, 2_555, 2_600)] {
            assert_eq!(lacks(64, 100, days), Some(needed), "{days} days");
            assert_eq!(lacks(named, 100, days), None, "{days} days");
            assert_eq!(lacks(64, 20, days), Some(needed), "{days} days");
        }
        // Sessions share what there is.
        assert_eq!((lacks(64, 500, 90), lacks(128, 500, 90)), (Some(126), None));
    }

    #[test]
    fn after_partitions_could_not_be_dropped_none_is_tried_for_a_while() {
        let (rest, now, second) = (DropsRest::default(), Instant::now(), Duration::from_secs(1));
        assert!(rest.is_over(now), "none has failed");
        rest.begin(now, second);
        assert!(!rest.is_over(now) && !rest.is_over(now + second * (DROPS_REST_FACTOR - 1)));
        assert!(rest.is_over(now + second * DROPS_REST_FACTOR));
    }
}
