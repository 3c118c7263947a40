//! Rows of what ids are made of.

use domain::{Resource, SegmentTag, SequenceName, WorkerNumber};

use super::{count, impossible, instance};
use crate::ids::Grant;
use crate::sql::{Moment, record};
use crate::{
    Error, Marked, RangeTaken, Result, SegmentRecord, SequenceGrant, SequenceRecord, WorkerHolder,
    WorkerRecord,
};

record! {
    pub(crate) struct WorkerRow {
        resource: String,
        holder: Option<String>,
        expires_in_ms: i64,
        holder_lives: bool,
        holder_is_gone: bool,
        node: Option<String>,
        mark_ms: i64,
    }
}

impl TryFrom<WorkerRow> for WorkerRecord {
    type Error = Error;

    fn try_from(row: WorkerRow) -> Result<Self> {
        let expires_in_ms = count(row.expires_in_ms)?;
        let holder = row.holder.as_deref().map(instance).transpose()?;
        Ok(Self {
            number: worker_number(&row.resource)?,
            holder: holder.map(|id| WorkerHolder {
                id,
                lives: row.holder_lives,
                is_gone: row.holder_is_gone,
                expires_in_ms,
            }),
            node: row.node,
            mark_ms: count(row.mark_ms)?,
        })
    }
}

record! {
    pub(crate) struct MarkRow {
        mark_ms: i64,
        database_ms: i64,
    }
}

impl TryFrom<MarkRow> for Marked {
    type Error = Error;

    fn try_from(row: MarkRow) -> Result<Self> {
        Ok(Self { mark_ms: count(row.mark_ms)?, database_ms: count(row.database_ms)? })
    }
}

record! {
    pub(crate) struct RangeRow {
        first: i64,
        length: i64,
        step: i64,
    }
}

impl TryFrom<RangeRow> for RangeTaken {
    type Error = Error;

    fn try_from(row: RangeRow) -> Result<Self> {
        let first = count(row.first)?;
        Ok(Self::Taken { range: first..first + count(row.length)?, step: count(row.step)? })
    }
}

record! {
    pub(crate) struct SegmentRow {
        tag: String,
        start: i64,
        next: i64,
        step: i64,
        description: String,
        created_at: Moment,
        updated_at: Moment,
    }
}

impl TryFrom<SegmentRow> for SegmentRecord {
    type Error = Error;

    fn try_from(row: SegmentRow) -> Result<Self> {
        Ok(Self {
            tag: SegmentTag::parse(&row.tag).map_err(impossible)?,
            start: count(row.start)?,
            next: count(row.next)?,
            step: count(row.step)?,
            description: row.description,
            created_at: row.created_at.0,
            updated_at: row.updated_at.0,
        })
    }
}

record! {
    pub(crate) struct SequenceRow {
        sequence: String,
        start: i64,
        next: i64,
        increment: i64,
        created_at: Moment,
        updated_at: Moment,
    }
}

impl TryFrom<SequenceRow> for SequenceRecord {
    type Error = Error;

    fn try_from(row: SequenceRow) -> Result<Self> {
        Ok(Self {
            sequence: SequenceName::parse(&row.sequence).map_err(impossible)?,
            start: count(row.start)?,
            next: count(row.next)?,
            increment: count(row.increment)?,
            created_at: row.created_at.0,
            updated_at: row.updated_at.0,
        })
    }
}

record! {
    pub(crate) struct GrantRow {
        sequence: String,
        next: i64,
        increment: i64,
    }
}

/// The verdict on each request for numbers: granted, or the sequence is used up, or there is none.
pub(crate) fn sequence_verdicts(
    requests: &[Grant],
    granted: &[GrantRow],
    known: &[(String,)],
) -> Result<Vec<SequenceGrant>> {
    let verdict = |request: &Grant| {
        let name = request.sequence.as_str();
        match granted.iter().find(|row| row.sequence == name) {
            Some(row) => {
                let (next, increment) = (count(row.next)?, count(row.increment)?);
                Ok(SequenceGrant::Granted { first: next - request.count * increment, increment })
            }
            None if known.iter().any(|(known,)| known == name) => Ok(SequenceGrant::Exhausted),
            None => Ok(SequenceGrant::Unknown),
        }
    };
    requests.iter().map(verdict).collect()
}

fn worker_number(resource: &str) -> Result<WorkerNumber> {
    let resource = Resource::parse(resource).map_err(impossible)?;
    let number = resource.id().parse().map_err(impossible)?;
    WorkerNumber::new(number).map_err(impossible)
}
