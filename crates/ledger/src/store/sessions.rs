//! Sessions: made, closed, read and forgotten.

use domain::session::Spec;
use domain::{ClientRef, JobId, LaneId, PoolName, SessionId, TenantId};

use super::fence::keep_keys;
use super::result_reads::RESULTS;
use super::{Decided, Pools, Store, Way};
use crate::jobs::plan::requires;
use crate::jobs::rows::{ComingRow, LastAttemptRow, last_revoked, soon};
use crate::jobs::{JobKey, Lane, LiveJob, PAGE_BYTES_MAX, RevokedAttempt, Unwritten};
use crate::records;
use crate::sessions::rows::{self, AccessRow, CountsRow, IdleRow, KeptSession, ResultRow, SessionRow};
use crate::sessions::{
    LAST_NODE_PLACES, Opened, Opener, SessionAccess, SessionCounts, SessionFilter, SessionRecord,
    SessionResults, Sessions, changed_meanwhile, check, check_is_session, keeping,
};
use crate::sql::{Ask, Id, Moment, Statement, narrowed, statement};
use crate::{Error, Kind, Result, batch_limits};

const CREATE: Statement = statement!("session_create");
const SHOW: Statement = statement!("session_show");
const LIST: Statement = statement!("session_list");
const NAMES: Statement = statement!(both "session_names");
const ACCESS: Statement = statement!("session_access");
const COUNTS: Statement = statement!("session_counts");
const FINISHED: Statement = statement!(both "session_finished");
const CLOSE: Statement = statement!("session_close");
const LINE: Statement = statement!("job_line");
const LAST_ATTEMPTS: Statement = statement!("session_last_attempts");
const PLACES: Statement = statement!(both "session_places");
const UNFINISHED: Statement = statement!(both "session_unfinished");
const REFS: Statement = statement!(both "session_refs");
const IDLE: Statement = statement!("session_idle");
const PURGE: Statement = statement!("session_purge");
const FREE: Statement = statement!(sqlite "session_free");

/// What became of the rows of a new session.
enum Making {
    Made(Moment),
    KeyTaken,
    Exists,
}

impl Store {
    /// `key_keep`, then `session_create`, together or not at all.
    async fn make(
        &self,
        id: &SessionId,
        spec: &Spec,
        key: Option<&JobKey>,
        opener: Option<&Opener>,
    ) -> Result<Making> {
        let (id, spec, key, opener) = (id.clone(), spec.clone(), key.cloned(), opener.cloned());
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                if let Some(key) = &key
                    && keep_keys(transaction, &[keeping(&id, key)]).await? != [true]
                {
                    return Ok(Decided::Rollback(Making::KeyTaken));
                }
                let route = spec.needs.route.as_ref();
                let create = CREATE
                    .on(transaction.kind())
                    .bind(id.as_str())
                    .bind(spec.needs.pool.as_ref().map_or("", |pool| pool.as_str()))
                    .bind(route.map(|route| route.source.as_str()))
                    .bind(route.map(|route| route.target.as_str()))
                    .bind(requires(&spec.needs))
                    .bind(spec.ordering.as_str())
                    .bind(spec.idle_ms as i64)
                    .bind(spec.tenant.as_ref().map(|tenant| tenant.as_str()))
                    .bind(opener.as_ref().map(|opener| opener.principal.as_str()))
                    .bind(opener.as_ref().map_or(0, |opener| i64::from(opener.sessions_max)))
                    .at(transaction.at());
                let made: Option<(Moment,)> = transaction.optional(create).await?;
                Ok(match made {
                    Some((at,)) => Decided::Commit(Making::Made(at)),
                    None => Decided::Rollback(Making::Exists),
                })
            })
        })
        .await
    }

    /// An ask for the sessions of a filter, which stands in the text: a partial index serves a condition that is written out.
    fn listing(&self, statement: &Statement, filter: &SessionFilter) -> Ask {
        let asks_for = |mark: &str| match mark {
            "open" => filter.open == Some(true),
            "closed" => filter.open == Some(false),
            "tenant" => filter.tenant.is_some(),
            "pool" => filter.pool.is_some(),
            other => unreachable!("no list has a mark {other}"),
        };
        self.ask(statement)
            .reworded(|text| narrowed(text, asks_for))
            .bind(filter.after.as_ref().map_or("", SessionId::as_str))
            .bind(i64::from(filter.limit))
            .bind(filter.tenant.as_ref().map(TenantId::as_str))
            .bind(filter.pool.as_ref().map(PoolName::as_str))
    }
}

#[async_trait::async_trait]
impl Sessions for Store {
    /// Makes, else looks why not. What is wrong in itself is refused before.
    async fn open_session(
        &self,
        id: &SessionId,
        spec: &Spec,
        key: Option<&JobKey>,
        opener: Option<&Opener>,
    ) -> Result<Opened> {
        check(spec)?;
        batch_limits::check_keys(key.iter().map(|key| &key.scope))?;
        match (self.make(id, spec, key, opener).await?, key) {
            (Making::Made(created_at), _) => Ok(Opened::Made { created_at: created_at.0 }),
            (Making::KeyTaken, Some(key)) => {
                match self.key_rows(std::slice::from_ref(&key.scope)).await?.first() {
                    Some(row) => {
                        let (body_hash, session) = (row.body_hash()?, KeptSession::session(row)?);
                        Ok(Opened::Kept { body_hash, session })
                    }
                    // It was purged between the two looks.
                    None => Err(changed_meanwhile(id)),
                }
            }
            _ => match self.settled_session(id).await? {
                Some(SessionRecord { spec: made, created_at, .. }) if made == *spec => {
                    Ok(Opened::Made { created_at })
                }
                Some(_) => {
                    let what = format!("session {id} exists with another specification");
                    Err(Error::refused(sqlx::Error::InvalidArgument(what)))
                }
                None if opener.is_some() => Ok(Opened::TooMany),
                None => Err(changed_meanwhile(id)),
            },
        }
    }

    async fn session(&self, id: &SessionId) -> Result<Option<SessionRecord>> {
        self.record::<SessionRow, _>(Way::KeyReads, self.ask(&SHOW).bind(id.as_str())).await
    }

    async fn settled_session(&self, id: &SessionId) -> Result<Option<SessionRecord>> {
        let rows: Vec<SessionRow> = self.settled(self.ask(&SHOW).bind(id.as_str())).await?;
        rows.into_iter().next().map(SessionRecord::try_from).transpose()
    }

    async fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionRecord>> {
        records::all(self.all::<SessionRow>(Way::Reads, self.listing(&LIST, filter)).await?)
    }

    async fn session_names(&self, filter: &SessionFilter) -> Result<Vec<SessionId>> {
        let names: Vec<(String,)> = self.all(Way::Reads, self.listing(&NAMES, filter)).await?;
        names.iter().map(|(name,)| rows::session(name)).collect()
    }

    async fn session_access(&self, sessions: &[SessionId]) -> Result<Vec<SessionAccess>> {
        let ask = self.ask(&ACCESS).array::<&str>(sessions.iter().map(SessionId::as_str).collect());
        records::all(self.all::<AccessRow>(Way::KeyReads, ask).await?)
    }

    async fn session_counts(&self, id: &SessionId) -> Result<SessionCounts> {
        let ask = self.ask(&COUNTS).bind(id.as_str()).bind(LAST_NODE_PLACES as i64);
        self.one::<CountsRow>(Way::KeyReads, ask).await?.try_into()
    }

    async fn session_finished(&self, id: &SessionId) -> Result<u64> {
        let (jobs,): (i64,) = self.one(Way::Reads, self.ask(&FINISHED).bind(id.as_str())).await?;
        records::count(jobs)
    }

    async fn close_session(&self, lane: &Lane) -> Result<Result<(), Unwritten>> {
        check_is_session(lane)?;
        let close = self.ask(&CLOSE).bind(lane.id.lease().id());
        let closed = self.in_lane(lane, move |transaction| {
            Box::pin(async move { transaction.touch(close.at(transaction.at())).await.map(drop) })
        });
        closed.await
    }

    async fn line(&self, lane: &LaneId, after_seq: u64, limit: u32) -> Result<Vec<(LiveJob, u64)>> {
        if !lane.is_session() {
            return Ok(Vec::new());
        }
        let ask = self
            .ask(&LINE)
            .bind(lane.as_str())
            .bind(lane.lease().id())
            .bind(rows::place(after_seq))
            .bind(i64::from(limit))
            .bind(PAGE_BYTES_MAX as i64);
        records::all(self.all::<ComingRow>(Way::KeyReads, ask).await?)
    }

    async fn last_revoked(&self, id: &SessionId, within_ms: u64) -> Result<Option<RevokedAttempt>> {
        let ask = self.ask(&LAST_ATTEMPTS).bind(id.as_str()).bind(soon(within_ms));
        last_revoked(self.all::<LastAttemptRow>(Way::KeyReads, ask).await?)
    }

    async fn session_results(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<SessionResults> {
        if let Pools::Postgres(pools) = &self.pools {
            return self.result_reads.read(pools, self.call_timeout, id, after_seq, limit).await;
        }
        let ask = self
            .ask(&RESULTS)
            .bind(id.as_str())
            .bind(rows::place(after_seq))
            .bind(i64::from(limit))
            .bind(PAGE_BYTES_MAX as i64);
        rows::results(self.all::<ResultRow>(Way::KeyReads, ask).await?)
    }

    async fn finished_places(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<Vec<(u64, JobId)>> {
        let ask = self.ask(&PLACES).bind(id.as_str()).bind(rows::place(after_seq)).bind(i64::from(limit));
        let places = self.all::<(i64, Id)>(Way::KeyReads, ask).await?;
        places.into_iter().map(|(place, id)| Ok((records::count(place)?, id.0))).collect()
    }

    async fn unfinished_places(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<Vec<u64>> {
        let ask = self.ask(&UNFINISHED).bind(id.as_str()).bind(rows::place(after_seq)).bind(i64::from(limit));
        let places = self.all::<(i64,)>(Way::KeyReads, ask).await?;
        places.into_iter().map(|(place,)| records::count(place)).collect()
    }

    async fn session_refs(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<Vec<ClientRef>> {
        let ask = self.ask(&REFS).bind(id.as_str()).bind(rows::place(after_seq)).bind(i64::from(limit));
        let refs = self.all::<(i64, String)>(Way::KeyReads, ask).await?;
        refs.iter().map(|(_, name)| ClientRef::parse(name).map_err(records::impossible)).collect()
    }

    async fn idle_sessions(
        &self,
        ahead_ms: u64,
        after: Option<&SessionId>,
        limit: u32,
    ) -> Result<(Vec<SessionId>, Option<SessionId>)> {
        let after = after.map_or("", SessionId::as_str);
        let ask = self.ask(&IDLE).bind(after).bind(i64::from(limit)).bind(ahead_ms as i64);
        rows::idle(self.all::<IdleRow>(Way::Reads, ask).await?)
    }

    async fn purge_sessions(&self, age_ms: u64, limit: u32) -> Result<u64> {
        if self.database() == Kind::Postgres {
            let ask = self.ask(&PURGE).bind(age_ms as i64).bind(i64::from(limit));
            return self.touch(Way::Writes, ask).await;
        }
        // SQLite has no statement that deletes from two tables.
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                let now = transaction.at().unwrap_or(0);
                let before = now.saturating_sub_unsigned(age_ms.saturating_mul(1_000));
                let purge = PURGE.on(Kind::Sqlite).bind(before).bind(i64::from(limit));
                let purged: Vec<(String,)> = transaction.all(purge).await?;
                let names = purged.iter().map(|(name,)| name.as_str()).collect();
                transaction.touch(FREE.on(Kind::Sqlite).array::<&str>(names)).await?;
                Ok(Decided::Commit(purged.len() as u64))
            })
        })
        .await
    }
}
