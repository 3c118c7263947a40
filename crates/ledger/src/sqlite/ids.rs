//! What ids are made of, in SQLite.

use domain::limits::{SEGMENT_TAGS_MAX, SEQUENCES_MAX};
use domain::{SegmentTag, SequenceName};
use serde_json::{Value, json};
use sqlx::SqliteTransaction;

use super::engine::{Writes, Written};
use super::{Sqlite, sql, write_failed};
use crate::Result;
use crate::ids::{
    Changing, Grant, Ids, Marked, Put, RangeTaken, SegmentChange, SegmentRecord, SequenceChange,
    SequenceGrant, SequenceRecord, WorkerRecord, WorkerTenure, columns, put,
};
use crate::records::{self, GrantRow, MarkRow, RangeRow, SegmentRow, SequenceRow, WorkerRow};
use crate::train::Derailed;

#[async_trait::async_trait]
impl Ids for Sqlite {
    async fn clock_ms(&self) -> Result<u64> {
        let pool = self.readers.clone();
        let micros: i64 =
            self.reads(async move { sqlx::query_scalar(sql!("clock")).fetch_one(&pool).await }).await?;
        u64::try_from(micros / 1_000).map_err(records::impossible)
    }

    async fn id_workers(&self) -> Result<Vec<WorkerRecord>> {
        let pool = self.readers.clone();
        let rows: Vec<WorkerRow> =
            self.reads(async move { sqlx::query_as(sql!("id_worker_list")).fetch_all(&pool).await }).await?;
        records::all(rows)
    }

    // All rows of a write are asked for, though there is one at most: see `take_with`.
    async fn open_id_worker(&self, tenure: &WorkerTenure, node: &str) -> Result<Option<Marked>> {
        let ((worker, token, owner), node) = (columns(tenure), node.to_owned());
        let pool = self.writer.clone();
        let rows: Vec<MarkRow> = self
            .writes(async move {
                sqlx::query_as(sql!("id_worker_open"))
                    .bind(worker)
                    .bind(token)
                    .bind(owner)
                    .bind(node)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        rows.into_iter().next().map(Marked::try_from).transpose()
    }

    async fn mark_id_worker(
        &self,
        tenure: &WorkerTenure,
        mark_ms: u64,
        ahead_max_ms: u64,
    ) -> Result<Option<Marked>> {
        let (worker, token, owner) = columns(tenure);
        let pool = self.writer.clone();
        let rows: Vec<MarkRow> = self
            .writes(async move {
                sqlx::query_as(sql!("id_worker_mark"))
                    .bind(worker)
                    .bind(token)
                    .bind(owner)
                    .bind(mark_ms as i64)
                    .bind(ahead_max_ms as i64)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        rows.into_iter().next().map(Marked::try_from).transpose()
    }

    async fn lower_id_worker(&self, tenure: &WorkerTenure, mark_ms: u64) -> Result<Option<Marked>> {
        let (worker, token, owner) = columns(tenure);
        let pool = self.writer.clone();
        let rows: Vec<MarkRow> = self
            .writes(async move {
                sqlx::query_as(sql!("id_worker_lower"))
                    .bind(worker)
                    .bind(token)
                    .bind(owner)
                    .bind(mark_ms as i64)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        rows.into_iter().next().map(Marked::try_from).transpose()
    }

    async fn take_range(&self, tag: &SegmentTag, at_least: u64) -> Result<RangeTaken> {
        let name = tag.to_string();
        let pool = self.writer.clone();
        let rows: Vec<RangeRow> = self
            .writes(async move {
                sqlx::query_as(sql!("id_segment_take"))
                    .bind(name)
                    .bind(at_least as i64)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        match rows.into_iter().next() {
            Some(row) => row.try_into(),
            None if self.segment(tag).await?.is_some() => Ok(RangeTaken::Exhausted),
            None => Ok(RangeTaken::Unknown),
        }
    }

    async fn put_segment(&self, tag: &SegmentTag, change: &SegmentChange) -> Result<Put<SegmentRecord>> {
        put(self, tag, change).await
    }

    async fn segment(&self, tag: &SegmentTag) -> Result<Option<SegmentRecord>> {
        let name = tag.to_string();
        let pool = self.readers.clone();
        let row: Option<SegmentRow> = self
            .reads(
                async move { sqlx::query_as(sql!("id_segment_show")).bind(name).fetch_optional(&pool).await },
            )
            .await?;
        row.map(SegmentRecord::try_from).transpose()
    }

    async fn segments(&self, after: Option<&SegmentTag>, limit: u32) -> Result<Vec<SegmentRecord>> {
        let after = after.map(ToString::to_string).unwrap_or_default();
        let pool = self.readers.clone();
        let rows: Vec<SegmentRow> = self
            .reads(async move {
                let list = sqlx::query_as(sql!("id_segment_list")).bind(after).bind(i64::from(limit));
                list.fetch_all(&pool).await
            })
            .await?;
        records::all(rows)
    }

    async fn grant_sequence(&self, sequence: &SequenceName, count: u64) -> Result<SequenceGrant> {
        self.sequences.commit(Grant { sequence: sequence.clone(), count }, self.call_timeout).await
    }

    async fn put_sequence(
        &self,
        sequence: &SequenceName,
        change: &SequenceChange,
    ) -> Result<Put<SequenceRecord>> {
        put(self, sequence, change).await
    }

    async fn sequence(&self, sequence: &SequenceName) -> Result<Option<SequenceRecord>> {
        let name = sequence.to_string();
        let pool = self.readers.clone();
        let row: Option<SequenceRow> =
            self.reads(async move {
                sqlx::query_as(sql!("id_sequence_show")).bind(name).fetch_optional(&pool).await
            })
            .await?;
        row.map(SequenceRecord::try_from).transpose()
    }
}

#[async_trait::async_trait]
impl Changing<SegmentChange> for Sqlite {
    type Name = SegmentTag;
    type Record = SegmentRecord;

    async fn show(&self, tag: &SegmentTag) -> Result<Option<SegmentRecord>> {
        self.segment(tag).await
    }

    async fn change(&self, tag: &SegmentTag, change: &SegmentChange) -> Result<Option<SegmentRecord>> {
        let (name, change) = (tag.to_string(), change.clone());
        let pool = self.writer.clone();
        let rows: Vec<SegmentRow> = self
            .writes(async move {
                sqlx::query_as(sql!("id_segment_change"))
                    .bind(name)
                    .bind(change.start.map(|start| start as i64))
                    .bind(change.step.map(|step| step as i64))
                    .bind(change.description)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        rows.into_iter().next().map(SegmentRecord::try_from).transpose()
    }

    async fn create(&self, tag: &SegmentTag, change: &SegmentChange) -> Result<Option<SegmentRecord>> {
        let (name, (start, step, description)) = (tag.to_string(), change.made());
        let pool = self.writer.clone();
        let rows: Vec<SegmentRow> = self
            .writes(async move {
                sqlx::query_as(sql!("id_segment_create"))
                    .bind(name)
                    .bind(start)
                    .bind(step)
                    .bind(description)
                    .bind(SEGMENT_TAGS_MAX as i64)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        rows.into_iter().next().map(SegmentRecord::try_from).transpose()
    }
}

#[async_trait::async_trait]
impl Changing<SequenceChange> for Sqlite {
    type Name = SequenceName;
    type Record = SequenceRecord;

    async fn show(&self, sequence: &SequenceName) -> Result<Option<SequenceRecord>> {
        self.sequence(sequence).await
    }

    async fn change(
        &self,
        sequence: &SequenceName,
        change: &SequenceChange,
    ) -> Result<Option<SequenceRecord>> {
        let (name, change) = (sequence.to_string(), *change);
        let pool = self.writer.clone();
        let rows: Vec<SequenceRow> = self
            .writes(async move {
                sqlx::query_as(sql!("id_sequence_change"))
                    .bind(name)
                    .bind(change.start.map(|start| start as i64))
                    .bind(change.increment.map(|increment| increment as i64))
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        rows.into_iter().next().map(SequenceRecord::try_from).transpose()
    }

    async fn create(
        &self,
        sequence: &SequenceName,
        change: &SequenceChange,
    ) -> Result<Option<SequenceRecord>> {
        let (name, (start, increment)) = (sequence.to_string(), change.made());
        let pool = self.writer.clone();
        let rows: Vec<SequenceRow> = self
            .writes(async move {
                sqlx::query_as(sql!("id_sequence_create"))
                    .bind(name)
                    .bind(start)
                    .bind(increment)
                    .bind(SEQUENCES_MAX as i64)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        rows.into_iter().next().map(SequenceRecord::try_from).transpose()
    }
}

#[async_trait::async_trait]
impl Writes for Grant {
    async fn write(
        transaction: &mut SqliteTransaction<'_>,
        wishes: &[Self],
        at: i64,
    ) -> std::result::Result<Written<SequenceGrant>, Derailed<SequenceGrant>> {
        let wanted = Value::from_iter(
            wishes.iter().map(|wish| json!({ "sequence": wish.sequence.as_str(), "count": wish.count })),
        );
        let granted: Vec<GrantRow> = sqlx::query_as(sql!("id_sequence_grant"))
            .bind(wanted.to_string())
            .bind(at)
            .fetch_all(&mut **transaction)
            .await
            .map_err(write_failed)?;
        let mut known = Vec::new();
        if granted.len() < wishes.len() {
            let names = Value::from_iter(wishes.iter().map(|wish| wish.sequence.as_str()));
            known = sqlx::query_scalar(sql!("id_sequence_known"))
                .bind(names.to_string())
                .fetch_all(&mut **transaction)
                .await
                .map_err(write_failed)?;
        }
        Ok(Written {
            verdicts: records::sequence_verdicts(wishes, &granted, &known)?,
            anything: !granted.is_empty(),
        })
    }
}
