//! What ids are made of: marks of worker numbers, segments, sequences.

use domain::limits::{SEGMENT_TAGS_MAX, SEQUENCES_MAX};
use domain::{AuditEntry, SegmentTag, SequenceName};

use super::committer::{Write, Written};
use super::failure::write_failed;
use super::fence::is_current;
use super::{Decided, Pools, Store, Way, audit};
use crate::ids::{
    Grant, Ids, Marked, Put, RangeTaken, SegmentChange, SegmentRecord, SequenceChange, SequenceGrant,
    SequenceRecord, WorkerClaim, WorkerRecord,
};
use crate::records::{self, GrantRow, MarkRow, RangeRow, SegmentRow, SequenceRow, WorkerRow};
use crate::sql::{Ask, FromEither, Statement, Transaction, statement};
use crate::train::TrainError;
use crate::{Error, Result};

const CLOCK: Statement = statement!("clock");
const WORKERS: Statement = statement!("id_worker_list");
const WORKER_OPEN: Statement = statement!("id_worker_open");
const WORKER_MARK: Statement = statement!("id_worker_mark");
const WORKER_LOWER: Statement = statement!("id_worker_lower");
const SEGMENT_TAKE: Statement = statement!("id_segment_take");
const SEGMENT_SHOW: Statement = statement!(both "id_segment_show");
const SEGMENT_LIST: Statement = statement!(both "id_segment_list");
const SEGMENT_LOCK: Statement = statement!("id_segment_lock");
const SEGMENT_CHANGE: Statement = statement!("id_segment_change");
const SEGMENT_CREATE: Statement = statement!(both "id_segment_create");
const SEQUENCE_GRANT: Statement = statement!("id_sequence_grant");
const SEQUENCE_KNOWN: Statement = statement!("id_sequence_known");
const SEQUENCE_SHOW: Statement = statement!(both "id_sequence_show");
const SEQUENCE_LIST: Statement = statement!(both "id_sequence_list");
const SEQUENCE_LOCK: Statement = statement!("id_sequence_lock");
const SEQUENCE_CHANGE: Statement = statement!("id_sequence_change");
const SEQUENCE_CREATE: Statement = statement!(both "id_sequence_create");
const UNKNOWN_WAIT: Statement = statement!(both "recovery_unknown_wait");

impl Store {
    /// Begins an ask of a statement that is fenced by a worker number's lease.
    fn fenced(&self, statement: &Statement, claim: &WorkerClaim) -> Ask {
        self.ask(statement)
            .bind(i32::from(claim.number.get()))
            .bind(claim.token.get())
            .bind(claim.owner.as_str())
    }

    /// Whether the ledger is as far as is known. `way` is one that writes: only sessions that write have what is known.
    async fn is_as_far(&self, way: Way) -> Result<bool> {
        match &self.pools {
            Pools::Sqlite(pools) => Ok(!pools.has_lost_name()),
            Pools::Postgres(_) => {
                self.with(way, |mut session| Box::pin(async move { is_current(&mut session).await })).await
            }
        }
    }

    /// The record that a statement gives which writes nothing where the ledger went back. That says nothing about the lease.
    async fn marked_if_current(&self, way: Way, ask: Ask) -> Result<Option<Marked>> {
        match self.record::<MarkRow, _>(way, ask).await? {
            None if !self.is_as_far(way).await? => Err(Error::WentBack),
            marked => Ok(marked),
        }
    }
}

#[async_trait::async_trait]
impl Ids for Store {
    async fn clock_ms(&self) -> Result<u64> {
        // Asked for with every look at the ledger, which must not queue behind requests.
        let (micros,): (i64,) = self.one(Way::VitalReads, self.ask(&CLOCK)).await?;
        u64::try_from(micros / 1_000).map_err(records::impossible)
    }

    async fn is_current(&self) -> Result<bool> {
        self.is_as_far(Way::Writes).await
    }

    async fn id_workers(&self) -> Result<Vec<WorkerRecord>> {
        records::all(self.all::<WorkerRow>(Way::Reads, self.ask(&WORKERS)).await?)
    }

    async fn open_id_worker(&self, claim: &WorkerClaim, node: &str) -> Result<Option<Marked>> {
        self.marked_if_current(Way::Writes, self.fenced(&WORKER_OPEN, claim).bind(node)).await
    }

    async fn mark_id_worker(
        &self,
        claim: &WorkerClaim,
        mark_ms: u64,
        ahead_max_ms: u64,
    ) -> Result<Option<Marked>> {
        let ask = self.fenced(&WORKER_MARK, claim).bind(mark_ms as i64).bind(ahead_max_ms as i64);
        // As a lease's renewal is: it must not queue behind requests.
        self.marked_if_current(Way::VitalWrites, ask).await
    }

    async fn lower_id_worker(&self, claim: &WorkerClaim, mark_ms: u64) -> Result<Option<Marked>> {
        let ask = self.fenced(&WORKER_LOWER, claim).bind(mark_ms as i64);
        self.record::<MarkRow, _>(Way::Writes, ask).await
    }

    async fn take_range(&self, tag: &SegmentTag, at_least: u64) -> Result<RangeTaken> {
        let ask = self.ask(&SEGMENT_TAKE).bind(tag.as_str()).bind(at_least as i64);
        match self.optional::<RangeRow>(Way::Writes, ask).await? {
            Some(row) => row.try_into(),
            None if !self.is_as_far(Way::Writes).await? => Err(Error::WentBack),
            None if self.segment(tag).await?.is_some() => Ok(RangeTaken::Exhausted),
            None => Ok(RangeTaken::Unknown),
        }
    }

    async fn put_segment(
        &self,
        tag: &SegmentTag,
        change: &SegmentChange,
        by: &AuditEntry,
    ) -> Result<Put<SegmentRecord>> {
        let (tag, change, by) = (tag.clone(), change.clone(), by.clone());
        self.in_transaction(move |transaction| {
            Box::pin(async move { put_segment(transaction, &tag, &change, &by).await })
        })
        .await
    }

    async fn segment(&self, tag: &SegmentTag) -> Result<Option<SegmentRecord>> {
        self.record::<SegmentRow, _>(Way::Reads, self.ask(&SEGMENT_SHOW).bind(tag.as_str())).await
    }

    async fn segments(&self, after: Option<&SegmentTag>, limit: u32) -> Result<Vec<SegmentRecord>> {
        let after = after.map_or("", SegmentTag::as_str);
        let ask = self.ask(&SEGMENT_LIST).bind(after).bind(i64::from(limit));
        records::all(self.all::<SegmentRow>(Way::Reads, ask).await?)
    }

    async fn grant_sequence(&self, sequence: &SequenceName, count: u64) -> Result<SequenceGrant> {
        self.sequence_trains.commit(Grant { sequence: sequence.clone(), count }, self.call_timeout).await
    }

    async fn put_sequence(
        &self,
        sequence: &SequenceName,
        change: &SequenceChange,
        by: &AuditEntry,
    ) -> Result<Put<SequenceRecord>> {
        let (sequence, change, by) = (sequence.clone(), *change, by.clone());
        self.in_transaction(move |transaction| {
            Box::pin(async move { put_sequence(transaction, &sequence, change, &by).await })
        })
        .await
    }

    async fn sequence(&self, sequence: &SequenceName) -> Result<Option<SequenceRecord>> {
        self.record::<SequenceRow, _>(Way::Reads, self.ask(&SEQUENCE_SHOW).bind(sequence.as_str())).await
    }

    async fn sequences(&self, after: Option<&SequenceName>, limit: u32) -> Result<Vec<SequenceRecord>> {
        let after = after.map_or("", SequenceName::as_str);
        let ask = self.ask(&SEQUENCE_LIST).bind(after).bind(i64::from(limit));
        records::all(self.all::<SequenceRow>(Way::Reads, ask).await?)
    }
}

/// The row that a statement answers, if it answers one.
async fn found<Row, Record>(transaction: &mut Transaction<'_>, ask: Ask) -> sqlx::Result<Option<Record>>
where
    Row: FromEither,
    Record: TryFrom<Row, Error = Error>,
{
    let row: Option<Row> = transaction.optional(ask).await?;
    row.map(Record::try_from).transpose().map_err(|error| sqlx::Error::Decode(error.into()))
}

/// Whether what the ledger does not know may have been there: it was recovered from an older state.
async fn may_be_lost(transaction: &mut Transaction<'_>) -> sqlx::Result<bool> {
    let ask = UNKNOWN_WAIT.on(transaction.kind());
    Ok(transaction.optional::<(bool,)>(ask).await?.is_some_and(|(waits,)| waits))
}

/// Changes a tag or makes it, and notes that, between BEGIN and COMMIT. Its row is locked while it is looked at: another instance
/// may change it at the same time. On PostgreSQL the lock is a write, so that what is found done is answered when a synchronous
/// standby has it.
async fn put_segment(
    transaction: &mut Transaction<'_>,
    tag: &SegmentTag,
    change: &SegmentChange,
    by: &AuditEntry,
) -> sqlx::Result<Decided<Put<SegmentRecord>>> {
    let kind = transaction.kind();
    let lock = || SEGMENT_LOCK.on(kind).bind(tag.as_str());
    let mut known: Option<SegmentRecord> = found::<SegmentRow, _>(transaction, lock()).await?;
    if known.is_none() {
        if change.start.is_none() && may_be_lost(transaction).await? {
            return Ok(Decided::Rollback(Put::StartUnknown));
        }
        let (start, step, description) = change.made();
        let create = SEGMENT_CREATE
            .on(kind)
            .bind(tag.as_str())
            .bind(start)
            .bind(step)
            .bind(description)
            .bind(SEGMENT_TAGS_MAX as i64);
        if let Some(made) = found::<SegmentRow, SegmentRecord>(transaction, create).await? {
            audit::add(transaction, &[&by.changed(None::<String>, made.settings())]).await?;
            return Ok(Decided::Commit(Put::Done(made)));
        }
        // Made between the two statements, or there are too many.
        known = found::<SegmentRow, _>(transaction, lock()).await?;
    }
    let Some(known) = known else { return Ok(Decided::Rollback(Put::Full)) };
    if change.is_done_in(&known) {
        return Ok(Decided::Commit(Put::Done(known)));
    }
    if !change.is_admitted_by(&known) {
        return Ok(Decided::Rollback(Put::StartTaken(known)));
    }
    let ask = SEGMENT_CHANGE
        .on(kind)
        .bind(tag.as_str())
        .bind(change.start.map(|start| start as i64))
        .bind(change.step.map(|step| step as i64))
        .bind(change.description.as_deref());
    let changed =
        found::<SegmentRow, SegmentRecord>(transaction, ask).await?.ok_or(sqlx::Error::RowNotFound)?;
    audit::add(transaction, &[&by.changed(known.settings(), changed.settings())]).await?;
    Ok(Decided::Commit(Put::Done(changed)))
}

/// The same of a sequence.
async fn put_sequence(
    transaction: &mut Transaction<'_>,
    sequence: &SequenceName,
    change: SequenceChange,
    by: &AuditEntry,
) -> sqlx::Result<Decided<Put<SequenceRecord>>> {
    let kind = transaction.kind();
    let lock = || SEQUENCE_LOCK.on(kind).bind(sequence.as_str());
    let mut known: Option<SequenceRecord> = found::<SequenceRow, _>(transaction, lock()).await?;
    if known.is_none() {
        if change.start.is_none() && may_be_lost(transaction).await? {
            return Ok(Decided::Rollback(Put::StartUnknown));
        }
        let (start, increment) = change.made();
        let create = SEQUENCE_CREATE
            .on(kind)
            .bind(sequence.as_str())
            .bind(start)
            .bind(increment)
            .bind(SEQUENCES_MAX as i64);
        if let Some(made) = found::<SequenceRow, SequenceRecord>(transaction, create).await? {
            audit::add(transaction, &[&by.changed(None::<String>, made.settings())]).await?;
            return Ok(Decided::Commit(Put::Done(made)));
        }
        known = found::<SequenceRow, _>(transaction, lock()).await?;
    }
    let Some(known) = known else { return Ok(Decided::Rollback(Put::Full)) };
    if change.is_done_in(&known) {
        return Ok(Decided::Commit(Put::Done(known)));
    }
    if !change.is_admitted_by(&known) {
        return Ok(Decided::Rollback(Put::StartTaken(known)));
    }
    let ask = SEQUENCE_CHANGE
        .on(kind)
        .bind(sequence.as_str())
        .bind(change.start.map(|start| start as i64))
        .bind(change.increment.map(|increment| increment as i64));
    let changed =
        found::<SequenceRow, SequenceRecord>(transaction, ask).await?.ok_or(sqlx::Error::RowNotFound)?;
    audit::add(transaction, &[&by.changed(known.settings(), changed.settings())]).await?;
    Ok(Decided::Commit(Put::Done(changed)))
}

#[async_trait::async_trait]
impl Write for Grant {
    async fn write(
        transaction: &mut Transaction<'_>,
        requests: &[Self],
    ) -> std::result::Result<Written<SequenceGrant>, TrainError<SequenceGrant>> {
        let ask = SEQUENCE_GRANT.on(transaction.kind()).rows(requests, |requests| {
            requests
                .column("sequence", |request| request.sequence.as_str())
                .column("count", |request| request.count as i64);
        });
        let granted: Vec<GrantRow> = transaction.all(ask.at(transaction.at())).await.map_err(write_failed)?;
        let mut known: Vec<(String,)> = Vec::new();
        if granted.len() < requests.len() {
            if !is_current(&mut transaction.session()).await.map_err(write_failed)? {
                return Err(TrainError::Failed(Error::WentBack));
            }
            let names = requests.iter().map(|request| request.sequence.as_str()).collect();
            let ask = SEQUENCE_KNOWN.on(transaction.kind()).array::<&str>(names);
            known = transaction.all(ask).await.map_err(write_failed)?;
        }
        Ok(Written {
            verdicts: records::sequence_verdicts(requests, &granted, &known)?,
            anything: !granted.is_empty(),
        })
    }
}
