//! Rows of sessions as the databases hand them over, and their way into typed values. The same for both dialects.

use std::collections::{BTreeMap, HashMap};

use domain::job::Outcome;
use domain::session::{Ordering, Spec};
use domain::{ClientRef, NodeId, PoolName, SessionId, TenantId};
use serde::{Deserialize, Serialize};

use super::{SessionAccess, SessionCounts, SessionRecord, SessionResult, SessionResults};
use crate::jobs::columns::NeedsRow;
use crate::records::{KeyRow, impossible, name, number};
use crate::sql::{Id, Moment, record};
use crate::{Error, Result};

record! {
    pub(crate) struct SessionRow {
        session: String,
        tenant: Option<String>,
        #[flatten]
        needs: NeedsRow,
        ordering: String,
        idle_ms: i64,
        created_at: Moment,
        closed_at: Option<Moment>,
        idle_for_ms: i64,
    }
}

impl TryFrom<SessionRow> for SessionRecord {
    type Error = Error;

    fn try_from(row: SessionRow) -> Result<Self> {
        Ok(Self {
            id: session(&row.session)?,
            spec: Spec {
                tenant: row.tenant.as_deref().map(TenantId::parse).transpose().map_err(impossible)?,
                needs: row.needs.needs()?,
                ordering: Ordering::parse(&row.ordering).map_err(impossible)?,
                idle_ms: number(row.idle_ms)?,
            },
            created_at: row.created_at.0,
            closed_at: row.closed_at.map(|at| at.0),
            idle_for_ms: number(row.idle_for_ms)?,
        })
    }
}

record! {
    pub(crate) struct AccessRow {
        session: String,
        tenant: Option<String>,
        pool: String,
    }
}

impl TryFrom<AccessRow> for SessionAccess {
    type Error = Error;

    fn try_from(row: AccessRow) -> Result<Self> {
        Ok(Self {
            id: session(&row.session)?,
            tenant: row.tenant.as_deref().map(TenantId::parse).transpose().map_err(impossible)?,
            pool: name(&row.pool, PoolName::parse)?,
        })
    }
}

record! {
    pub(crate) struct CountsRow {
        created: i64,
        dispatched: i64,
        running: i64,
        last_seq: i64,
        last_node: Option<String>,
    }
}

impl TryFrom<CountsRow> for SessionCounts {
    type Error = Error;

    fn try_from(row: CountsRow) -> Result<Self> {
        Ok(Self {
            created: number(row.created)?,
            dispatched: number(row.dispatched)?,
            running: number(row.running)?,
            last_seq: number(row.last_seq)?,
            last_node: row.last_node.as_deref().map(NodeId::parse).transpose().map_err(impossible)?,
        })
    }
}

record! {
    /// A result, or none where there was none; and what every row says.
    pub(crate) struct ResultRow {
        first_unfinished: Option<i64>,
        is_open: bool,
        id: Option<Id>,
        seq: Option<i64>,
        client_ref: Option<String>,
        outcome: Option<String>,
        result: Option<String>,
        error: Option<String>,
    }
}

record! {
    /// The same of one session of several, by its number.
    pub(crate) struct ManyResultsRow {
        n: i64,
        #[flatten]
        row: ResultRow,
    }
}

/// The rows of each session, by its number.
pub(crate) fn pages(rows: Vec<ManyResultsRow>) -> HashMap<i64, Vec<ResultRow>> {
    let mut pages: HashMap<_, Vec<_>> = HashMap::new();
    for ManyResultsRow { n, row } in rows {
        pages.entry(n).or_default().push(row);
    }
    pages
}

/// The page that these rows are.
pub(crate) fn results(rows: Vec<ResultRow>) -> Result<SessionResults> {
    let first = rows.first().ok_or_else(|| impossible("no row says which place is unfinished"))?;
    let (first_unfinished, is_open) = (first.first_unfinished.map(number).transpose()?, first.is_open);
    let results = rows.into_iter().filter_map(|row| {
        let (id, seq, outcome) = (row.id?.0, row.seq?, row.outcome?);
        let read = || {
            Ok(SessionResult {
                id,
                seq: number(seq)?,
                client_ref: row
                    .client_ref
                    .as_deref()
                    .map(ClientRef::parse)
                    .transpose()
                    .map_err(impossible)?,
                outcome: Outcome::parse(&outcome).map_err(impossible)?,
                result: row.result,
                error: row.error,
            })
        };
        Some(read())
    });
    Ok(SessionResults { results: results.collect::<Result<_>>()?, first_unfinished, is_open })
}

/// A bound for places. None is higher than the databases can count.
pub(crate) fn place(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

record! {
    pub(crate) struct IdleRow {
        session: String,
        is_idle: bool,
        is_last: bool,
    }
}

/// The idle sessions, and the one to go on behind.
pub(crate) fn idle(rows: Vec<IdleRow>) -> Result<(Vec<SessionId>, Option<SessionId>)> {
    let (mut idle, mut last) = (Vec::new(), None);
    for row in rows {
        let id = session(&row.session)?;
        if row.is_last {
            last = Some(id.clone());
        }
        if row.is_idle {
            idle.push(id);
        }
    }
    Ok((idle, last))
}

record! {
    /// A finished job that was forgotten.
    pub(crate) struct PurgedRow {
        session: Option<String>,
        seq: i64,
    }
}

/// The highest place that was forgotten in each session.
pub(crate) fn highest_places(purged: Vec<PurgedRow>) -> BTreeMap<String, i64> {
    let mut highest = BTreeMap::new();
    for PurgedRow { session, seq } in purged {
        if let Some(session) = session {
            let place = highest.entry(session).or_insert(seq);
            *place = seq.max(*place);
        }
    }
    highest
}

/// The answer to a request for a session as it is kept under its key: JSON text, written and read here alone.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeptSession {
    session: String,
}

impl KeptSession {
    pub(crate) fn text(id: &SessionId) -> String {
        serde_json::to_string(&Self { session: id.to_string() }).expect("texts always serialise")
    }

    pub(crate) fn session(row: &KeyRow) -> Result<SessionId> {
        let kept: Self = serde_json::from_str(&row.answer).map_err(impossible)?;
        session(&kept.session)
    }
}

/// A session's name as a row has it.
pub(crate) fn session(name: &str) -> Result<SessionId> {
    SessionId::parse(name).map_err(impossible)
}
