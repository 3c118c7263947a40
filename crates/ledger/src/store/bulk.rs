//! The statements of bulk operations.

use domain::job::{Outcome, State};
use domain::{AuditEntry, BulkId, InstanceId, JobId, JobKind, PoolName, SessionId, TenantId, Timestamp};

use super::jobs::removal;
use super::{Decided, Store, Way, audit, settle_commit};
use crate::bulk::{
    BULKS_OPEN_MAX, BULKS_OPEN_OF_ONE_MAX, BulkAction, BulkCount, BulkFound, BulkMade, BulkRecord, BulkRow,
    BulkScan, BulkStatus, BulkStep, Bulks, NewBulk, OpenBulk, OpenRow, filter_text, page_text,
};
use crate::jobs::JobFilter;
use crate::sql::{Ask, BulkKey, Id, Moment, Statement, statement};
use crate::{Error, Kind, Result, records};

const CLOCK: Statement = statement!("clock");
const CREATE: Statement = statement!("bulk_create");
const SHOW: Statement = statement!(both "bulk_show");
const KEPT: Statement = statement!(both "bulk_kept");
const LIST: Statement = statement!(both "bulk_list");
const OPEN: Statement = statement!("bulk_open");
const TAKE: Statement = statement!("bulk_take");
const LEAVE: Statement = statement!(both "bulk_leave");
const PAGE: Statement = statement!(both "bulk_page");
const PROGRESS: Statement = statement!("bulk_progress");
const FINISH: Statement = statement!("bulk_finish");
const CANCEL: Statement = statement!(both "bulk_cancel");
const PURGE: Statement = statement!("bulk_purge");
const NEXT_FINISHED: Statement = statement!(both "bulk_next_finished");
const NEXT_UNFINISHED: Statement = statement!(both "bulk_next_unfinished");
const COUNT_FINISHED: Statement = statement!(both "bulk_count_finished");
const COUNT_UNFINISHED: Statement = statement!(both "bulk_count_unfinished");

/// Above the ids of all bulk operations.
const HIGHEST: BulkKey = BulkKey(BulkId::from_u128(u128::MAX));
/// By how much the time of a job's id is ahead of the database's clock when the job is written, at most: the instance has seen
/// that clock, or goes by its own before it has. A job whose id is later than a time by more than this did not exist by then:
/// without that bound the last page of a bulk operation would read every job that has come since.
const CLOCKS_APART_MS: u64 = 86_400_000;

impl Store {
    /// An ask about the jobs of a bulk operation.
    fn of_bulk(
        &self,
        [finished, unfinished]: [&Statement; 2],
        action: BulkAction,
        filter: &JobFilter,
        (before, scan): (Timestamp, BulkScan),
    ) -> Ask {
        let is_unfinished = action == BulkAction::Cancel;
        let filter = &JobFilter { in_open_session: action == BulkAction::Retry, ..filter.clone() };
        let ask = self
            .ask(if is_unfinished { unfinished } else { finished })
            .reworded(|text| filter.narrowed(text))
            .bind(scan.behind.map_or(Id::LOWEST, Id))
            .bind(Moment(before))
            .bind(i64::from(scan.jobs_max))
            .bind(filter.session.as_ref().map(SessionId::as_str))
            .bind(filter.tenant.as_ref().map(TenantId::as_str))
            .bind(filter.pool.as_ref().map(PoolName::as_str))
            .bind(filter.kind.as_ref().map(JobKind::as_str));
        let ask = match is_unfinished {
            true => ask.bind(filter.state.map(State::as_str)),
            false => ask.bind(filter.outcome.map(Outcome::as_str)),
        };
        let before_ms = u64::try_from(before.as_micros() / 1_000).unwrap_or(0);
        ask.bind(Id(JobId::first_at_ms(before_ms + CLOCKS_APART_MS)))
            .bind(i64::from(scan.rows_max))
            .bind(filter.only_tenant.as_ref().map(TenantId::as_str))
            .bind(filter.only_pool.as_ref().map(PoolName::as_str))
    }

    async fn changed_bulk(&self, ask: Ask) -> Result<Option<BulkRecord>> {
        self.record::<BulkRow, _>(Way::Writes, ask).await
    }

    fn owned(&self, statement: &Statement, bulk: &BulkRecord) -> Ask {
        self.ask(statement).bind(BulkKey(bulk.id)).bind(token(bulk.token))
    }
}

/// The record, unless it cannot be read, such as a later release's.
fn readable(row: BulkRow) -> Option<BulkRecord> {
    let id = row.id.0;
    let unread = |error: &Error| tracing::debug!(bulk = %id, %error, "a list leaves a bulk operation out");
    BulkRecord::try_from(row).inspect_err(unread).ok()
}

fn token(token: u64) -> i64 {
    i64::try_from(token).unwrap_or(i64::MAX)
}

#[async_trait::async_trait]
impl Bulks for Store {
    async fn bulk_now(&self) -> Result<Timestamp> {
        let (micros,): (i64,) = self.one(Way::KeyReads, self.ask(&CLOCK)).await?;
        let now = Timestamp::from_micros(micros);
        // Times in SQLite are whole milliseconds: what was written a moment ago may have this one.
        Ok(if self.database() == Kind::Sqlite { now.plus_ms(1) } else { now })
    }

    async fn count_bulk(
        &self,
        action: BulkAction,
        filter: &JobFilter,
        before: Timestamp,
        behind: Option<JobId>,
        rows_max: u32,
    ) -> Result<BulkCount> {
        let scan = BulkScan { behind, jobs_max: 0, rows_max };
        let ask = self.of_bulk([&COUNT_FINISHED, &COUNT_UNFINISHED], action, filter, (before, scan));
        let (matching, read, last): (i64, i64, Option<Id>) = self.one(Way::Reads, ask).await?;
        let read_to = last.filter(|_| read >= i64::from(rows_max)).map(|last| last.0);
        Ok(BulkCount { jobs: records::count(matching)?, read_to })
    }

    async fn create_bulk(&self, new: &NewBulk, by: Option<&AuditEntry>) -> Result<BulkMade> {
        let (wanted, by) = (new.clone(), by.cloned());
        let made: Option<BulkRow> = self
            .in_transaction(move |transaction| {
                Box::pin(async move {
                    let create = CREATE
                        .on(transaction.kind())
                        .bind(BulkKey(wanted.id))
                        .bind(wanted.principal.as_str())
                        .bind(wanted.action.as_str())
                        .bind(filter_text(&wanted.filter))
                        .bind(Moment(wanted.before))
                        .bind(i64::from(wanted.rate))
                        .bind(i64::try_from(wanted.matched).unwrap_or(i64::MAX))
                        .bind(wanted.owner.as_str())
                        .bind(wanted.key_hash.as_deref())
                        .bind(wanted.body_hash.as_str())
                        .bind(i64::from(BULKS_OPEN_MAX))
                        .bind(i64::from(BULKS_OPEN_OF_ONE_MAX))
                        .at(transaction.at());
                    let made = transaction.optional(create).await?;
                    if made.is_none() {
                        return Ok(Decided::Rollback(None));
                    }
                    audit::add(transaction, by.as_ref().as_slice()).await?;
                    Ok(Decided::Commit(made))
                })
            })
            .await?;
        if let Some(row) = made {
            return Ok(BulkMade::Made(Box::new(row.try_into()?)));
        }
        let kept = match &new.key_hash {
            Some(hash) => self.kept_bulk(hash).await?,
            None => None,
        };
        Ok(kept.map_or(BulkMade::TooMany, |kept| BulkMade::Kept(Box::new(kept))))
    }

    async fn kept_bulk(&self, key_hash: &str) -> Result<Option<BulkRecord>> {
        let rows: Vec<BulkRow> = self.settled(self.ask(&KEPT).bind(key_hash)).await?;
        rows.into_iter().next().map(BulkRecord::try_from).transpose()
    }

    async fn bulk(&self, id: BulkId) -> Result<Option<BulkRecord>> {
        self.record::<BulkRow, _>(Way::KeyReads, self.ask(&SHOW).bind(BulkKey(id))).await
    }

    async fn bulks(
        &self,
        before: Option<BulkId>,
        limit: u32,
        principal: Option<&str>,
    ) -> Result<Vec<BulkRecord>> {
        let (mut found, mut before) = (Vec::new(), before);
        loop {
            let left = limit.saturating_sub(found.len() as u32);
            let ask =
                self.ask(&LIST).bind(before.map_or(HIGHEST, BulkKey)).bind(i64::from(left)).bind(principal);
            let rows: Vec<BulkRow> = self.all(Way::Reads, ask).await?;
            let has_more = rows.len() >= left as usize;
            before = rows.last().map(|row| row.id.0);
            found.extend(rows.into_iter().filter_map(readable));
            if !has_more || found.len() >= limit as usize {
                return Ok(found);
            }
        }
    }

    async fn open_bulks(&self) -> Result<Vec<OpenBulk>> {
        let ask = self.ask(&OPEN).bind(i64::from(BULKS_OPEN_MAX));
        records::all(self.all::<OpenRow>(Way::KeyReads, ask).await?)
    }

    async fn take_bulk(&self, open: &OpenBulk, me: &InstanceId) -> Result<Option<BulkRecord>> {
        // One that cannot be read stays as it is, for an instance that can.
        if self.bulk(open.id).await?.is_none() {
            return Ok(None);
        }
        let ask = self.ask(&TAKE).bind(BulkKey(open.id)).bind(token(open.token)).bind(me.as_str());
        self.changed_bulk(ask).await
    }

    async fn leave_bulk(&self, bulk: &BulkRecord) -> Result<Option<BulkRecord>> {
        self.changed_bulk(self.owned(&LEAVE, bulk)).await
    }

    async fn next_of_bulk(
        &self,
        action: BulkAction,
        filter: &JobFilter,
        before: Timestamp,
        scan: BulkScan,
    ) -> Result<BulkFound> {
        let ask = self.of_bulk([&NEXT_FINISHED, &NEXT_UNFINISHED], action, filter, (before, scan));
        let mut found = BulkFound::default();
        for (id, read) in self.all::<(Id, i64)>(Way::Reads, ask).await? {
            // The row of the last one that was read has their number.
            match read {
                0 => found.jobs.push(id.0),
                read => found.read_to = (read >= i64::from(scan.rows_max)).then_some(id.0),
            }
        }
        found.jobs.sort_unstable();
        Ok(found)
    }

    async fn begin_page(&self, bulk: &BulkRecord, page: &[JobId]) -> Result<Option<BulkRecord>> {
        self.changed_bulk(self.owned(&PAGE, bulk).bind(page_text(page))).await
    }

    async fn remove_page(
        &self,
        bulk: &BulkRecord,
        jobs: &[JobId],
        behind: JobId,
    ) -> Result<Option<BulkRecord>> {
        let (bulk, page) = (bulk.clone(), jobs.to_vec());
        let row: Option<BulkRow> = self
            .in_transaction(move |transaction| {
                Box::pin(async move {
                    let removed = match bulk.action {
                        BulkAction::Delete => removal::delete(transaction, &page, &bulk.filter).await?,
                        BulkAction::Dismiss => removal::dismiss(transaction, &page).await?,
                        BulkAction::Retry | BulkAction::Cancel => {
                            unreachable!("no job is removed by a bulk operation that retries or cancels")
                        }
                    };
                    let done = removed.len() as i64;
                    let progress = PROGRESS
                        .on(transaction.kind())
                        .bind(BulkKey(bulk.id))
                        .bind(token(bulk.token))
                        .bind(Id(behind))
                        .bind(done)
                        .bind(page.len() as i64 - done)
                        .bind(0_i64)
                        .bind(None::<&str>);
                    let noted = transaction.optional(progress).await?;
                    if noted.is_none() {
                        return Ok(Decided::Rollback(None));
                    }
                    Ok(Decided::Commit(noted))
                })
            })
            .await?;
        row.map(BulkRecord::try_from).transpose()
    }

    async fn note_progress(
        &self,
        bulk: &BulkRecord,
        behind: JobId,
        step: &BulkStep,
    ) -> Result<Option<BulkRecord>> {
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let ask = self
            .owned(&PROGRESS, bulk)
            .bind(Id(behind))
            .bind(count(step.done))
            .bind(count(step.skipped))
            .bind(count(step.failed))
            .bind(step.error.as_deref());
        self.changed_bulk(ask).await
    }

    async fn finish_bulk(
        &self,
        bulk: &BulkRecord,
        status: BulkStatus,
        error: Option<&str>,
    ) -> Result<Option<BulkRecord>> {
        self.changed_bulk(self.owned(&FINISH, bulk).bind(status.as_str()).bind(error)).await
    }

    async fn cancel_bulk(&self, id: BulkId, by: Option<&AuditEntry>) -> Result<()> {
        let by = by.cloned();
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                let changed = transaction.touch(CANCEL.on(transaction.kind()).bind(BulkKey(id))).await?;
                if changed == 0 {
                    settle_commit(transaction).await?;
                } else {
                    audit::add(transaction, by.as_ref().as_slice()).await?;
                }
                Ok(Decided::Commit(()))
            })
        })
        .await
    }

    async fn purge_bulks(&self, age_ms: u64, limit: u32) -> Result<u64> {
        let age_ms = i64::try_from(age_ms).unwrap_or(i64::MAX / 2);
        let ask = self.ask(&PURGE).bind(age_ms).bind(i64::from(limit));
        self.touch(Way::Writes, ask).await
    }
}
