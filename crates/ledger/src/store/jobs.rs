//! Jobs: what the owner of a lane loads, and what anybody may read. Writes leave by train.

pub(super) mod removal;
mod write;

use std::collections::HashSet;

use domain::job::{Attempt, Outcome, State};
use domain::{
    AuditEntry, InstanceId, JobId, JobKind, LaneId, NodeId, PoolName, SessionId, TenantId, Timestamp,
};

use super::fence::keep_keys;
use super::{Decided, Store, Way, audit, settle, settle_commit};
use crate::keys::Keeping;
use crate::{Error, Kind, Result, batch_limits};
pub(super) use write::{SUBMIT, between};

use crate::jobs::plan::group_key;
use crate::jobs::rows::{
    self, AttemptRow, ComingRow, FinishedRow, GroupRow, HeldAttemptRow, LaneRow, LiveRow, PromotedRow,
    RunningRow, UnderWayRow,
};
use crate::jobs::{
    FinishedCounts, HELD_DUE_MICROS, HeldAttempt, JobBatch, JobFilter, JobKey, JobRecord, Jobs, JobsVerdict,
    KeptJobKey, KeptSelection, Lane, LiveJob, OrphanedLane, PAGE_BYTES_MAX, PromotedJob, UnderWay,
    UnfinishedCounts, Unwritten, WaitingGroup,
};
use crate::nonces::KeyScope;
use crate::records;
use crate::sql::{Ask, Id, Statement, statement};
use crate::train::Link;

const HOLD: Statement = statement!("job_hold");
const PROMOTE: Statement = statement!("job_promote");
const SHOW: Statement = statement!(both "job_show");
const SHOW_FINISHED: Statement = statement!(both "job_show_finished");
const STATES: Statement = statement!("job_states");
const STATES_FINISHED: Statement = statement!("job_states_finished");
const LIST: Statement = statement!("job_list");
const LIST_NEWEST: Statement = statement!(postgres "job_list_newest");
const LIST_FINISHED: Statement = statement!("job_list_finished");
const IN_FLIGHT: Statement = statement!("job_in_flight");
const UNDER_WAY: Statement = statement!(both "job_under_way");
const GROUPS: Statement = statement!("job_groups");
const WAITING: Statement = statement!(both "job_waiting");
const COMING: Statement = statement!("job_coming");
const LANES: Statement = statement!("job_lanes");
const SEQ: Statement = statement!("job_seq");
const ON_NODE: Statement = statement!(both "job_on_node");
const HOLDER: Statement = statement!("job_holder");
const LIVE: Statement = statement!("job_live");
const CURRENT: Statement = statement!("job_current");

/// Above the ids of all jobs.
const HIGHEST: Id = Id(JobId::from_u128(u128::MAX));

pub(super) fn ids(jobs: &[JobId]) -> Vec<Id> {
    jobs.iter().copied().map(Id).collect()
}

#[async_trait::async_trait]
impl Jobs for Store {
    async fn commit_jobs_linked(&self, batch: JobBatch, link: Link) -> Result<JobsVerdict> {
        self.job_trains.commit_linked(batch, link, self.call_timeout).await
    }

    async fn hold_jobs(&self, lane: &Lane) -> Result<Result<u64, Unwritten>> {
        let hold = self.ask(&HOLD).bind(lane.id.as_str()).bind(HELD_DUE_MICROS);
        self.in_lane(lane, move |transaction| Box::pin(transaction.touch(hold))).await
    }

    async fn promote_jobs(&self, lane: &Lane, limit: u32) -> Result<Result<Vec<PromotedJob>, Unwritten>> {
        let promote = self.ask(&PROMOTE).bind(lane.id.as_str()).bind(i64::from(limit));
        let promoted =
            self.in_lane(lane, move |transaction| Box::pin(transaction.all::<PromotedRow>(promote)));
        Ok(match promoted.await? {
            Ok(jobs) => Ok(records::all(jobs)?),
            Err(unwritten) => Err(unwritten),
        })
    }

    async fn job(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.read_job(id, false).await
    }

    async fn settled_job(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.read_job(id, true).await
    }

    async fn job_states(&self, jobs: &[JobId]) -> Result<Vec<(JobId, State)>> {
        let (kind, jobs) = (self.database(), jobs.to_vec());
        let (unfinished, finished): (Vec<(Id, String)>, Vec<(Id,)>) = self
            .with(Way::KeyReads, move |mut session| {
                Box::pin(async move {
                    // In this order, since a job moves one way only.
                    let unfinished = session.all::<(Id, String)>(STATES.on(kind).array(ids(&jobs))).await?;
                    let found: HashSet<JobId> = unfinished.iter().map(|(id, _)| id.0).collect();
                    let others: Vec<JobId> = jobs.into_iter().filter(|job| !found.contains(job)).collect();
                    if others.is_empty() {
                        return Ok((unfinished, Vec::new()));
                    }
                    let ask = STATES_FINISHED.on(kind).array(ids(&others));
                    let ask = between(ask, kind, others.iter().min(), others.iter().max());
                    Ok((unfinished, session.all(ask).await?))
                })
            })
            .await?;
        let mut states: Vec<_> = finished.into_iter().map(|(id,)| (id.0, State::Finished)).collect();
        for (id, state) in unfinished {
            states.push((id.0, State::parse(&state).map_err(records::impossible)?));
        }
        Ok(states)
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobRecord>> {
        let list = |statement: &Statement| {
            self.ask(statement)
                .reworded(|text| filter.narrowed(text))
                .bind(filter.before.map_or(HIGHEST, Id))
                .bind(i64::from(filter.limit))
                .bind(filter.session.as_ref().map(SessionId::as_str))
                .bind(filter.tenant.as_ref().map(TenantId::as_str))
                .bind(filter.pool.as_ref().map(PoolName::as_str))
                .bind(filter.kind.as_ref().map(JobKind::as_str))
        };
        let of_sessions = |ask: Ask| {
            let sessions = filter.sessions.iter().flatten().map(SessionId::as_str);
            ask.bind(filter.after.map_or(Id::LOWEST, Id)).array::<&str>(sessions.collect())
        };
        let of_state =
            |statement: &Statement| of_sessions(list(statement).bind(filter.state.map(State::as_str)));
        // Those that nodes have are all read only where a page of them is not among the newest jobs. SQLite would read the
        // payloads of these, which stand before the state in the row.
        let looks_at_newest =
            filter.is_on_nodes() && filter.allows_unfinished() && self.database() == Kind::Postgres;
        let newest = looks_at_newest.then(|| of_state(&LIST_NEWEST));
        let unfinished = filter.allows_unfinished().then(|| of_state(&LIST));
        let page = filter.limit as usize;
        let finished = filter
            .allows_finished()
            .then(|| of_sessions(list(&LIST_FINISHED).bind(filter.outcome.map(Outcome::as_str))));
        let (live, finished): (Vec<LiveRow>, Vec<FinishedRow>) = self
            .with(Way::Reads, move |mut session| {
                Box::pin(async move {
                    let (mut unfinished_rows, mut finished_rows) = (Vec::new(), Vec::new());
                    if let Some(list) = newest {
                        unfinished_rows = session.all(list).await?;
                    }
                    // In this order, since a job moves one way only.
                    if let Some(list) = unfinished
                        && unfinished_rows.len() < page
                    {
                        unfinished_rows = session.all(list).await?;
                    }
                    if let Some(list) = finished {
                        finished_rows = session.all(list).await?;
                    }
                    Ok((unfinished_rows, finished_rows))
                })
            })
            .await?;
        rows::newest_first(live, finished, filter.limit)
    }

    async fn kept_job_keys(&self, scopes: &[KeyScope]) -> Result<Vec<(KeyScope, KeptJobKey)>> {
        records::all(self.key_rows(scopes).await?)
    }

    async fn kept_selection(&self, scope: &KeyScope) -> Result<Option<KeptSelection>> {
        self.key_rows(std::slice::from_ref(scope)).await?.first().map(rows::selection).transpose()
    }

    async fn keep_selection(&self, key: &JobKey, jobs: &[JobId]) -> Result<KeptSelection> {
        batch_limits::check_keys(std::iter::once(&key.scope))?;
        let (kept, answer) = (key.clone(), rows::selection_text(jobs));
        let is_new = self.in_transaction(move |transaction| {
            Box::pin(async move {
                let keeping = Keeping { scope: &kept.scope, body_hash: &kept.body_hash, answer };
                let is_new = keep_keys(transaction, &[keeping]).await? == [true];
                Ok(Decided::Commit(is_new))
            })
        });
        if is_new.await? {
            return Ok(KeptSelection { body_hash: key.body_hash, jobs: jobs.to_vec() });
        }
        // It can only have been purged between the two looks.
        let kept = self.kept_selection(&key.scope).await?;
        kept.ok_or_else(|| {
            Error::aborted(std::io::Error::other("a key was purged in the middle of a request"))
        })
    }

    async fn in_flight(&self, lane: &LaneId, after: Option<JobId>, limit: u32) -> Result<Vec<LiveJob>> {
        let ask = self.behind(&IN_FLIGHT, lane, after, limit).bind(PAGE_BYTES_MAX as i64);
        records::all(self.all::<RunningRow>(Way::KeyReads, ask).await?)
    }

    async fn under_way(&self, lane: &LaneId, after: Option<JobId>, limit: u32) -> Result<Vec<UnderWay>> {
        let ask = self.behind(&UNDER_WAY, lane, after, limit);
        records::all(self.all::<UnderWayRow>(Way::KeyReads, ask).await?)
    }

    async fn waiting_groups(
        &self,
        lane: &LaneId,
        after: Option<&WaitingGroup>,
        limit: u32,
    ) -> Result<Vec<WaitingGroup>> {
        let bound = rows::group_bound(after);
        let ask = self.ask(&GROUPS).bind(lane.as_str()).bind(bound).bind(i64::from(limit));
        records::all(self.all::<GroupRow>(Way::KeyReads, ask).await?)
    }

    async fn waiting(&self, lane: &LaneId, group: &WaitingGroup, limit: u32) -> Result<Vec<LiveJob>> {
        let ask = self
            .ask(&WAITING)
            .bind(lane.as_str())
            .bind(group_key(group))
            .bind(i64::from(limit))
            .bind(PAGE_BYTES_MAX as i64);
        records::all(self.all::<LiveRow>(Way::KeyReads, ask).await?)
    }

    async fn coming_due(
        &self,
        lane: &LaneId,
        after: Option<(Timestamp, JobId)>,
        within_ms: u64,
        limit: u32,
    ) -> Result<Vec<(LiveJob, u64)>> {
        let ask = self
            .ask(&COMING)
            .bind(lane.as_str())
            .bind(rows::soon(within_ms))
            .bind(i64::from(limit))
            .bind(PAGE_BYTES_MAX as i64)
            // Nothing is due before 1970.
            .bind(after.map_or(-1, |(due, _)| due.as_micros()))
            .bind(after.map_or(Id::LOWEST, |(_, id)| Id(id)));
        records::all(self.all::<ComingRow>(Way::KeyReads, ask).await?)
    }

    async fn orphaned_lanes(
        &self,
        me: &InstanceId,
        after: Option<&LaneId>,
        due_within_ms: u64,
        look_at: u32,
    ) -> Result<(Vec<OrphanedLane>, Option<LaneId>)> {
        let ask = self
            .ask(&LANES)
            .bind(after.map_or("", LaneId::as_str))
            .bind(rows::soon(due_within_ms))
            .bind(i64::from(look_at))
            .bind(me.as_str());
        rows::orphaned_lanes(self.all::<LaneRow>(Way::Reads, ask).await?)
    }

    async fn lane_seq(&self, lane: &LaneId) -> Result<u64> {
        if !lane.is_session() {
            return Ok(0);
        }
        let (seq,): (i64,) = self.one(Way::KeyReads, self.ask(&SEQ).bind(lane.lease().id())).await?;
        records::count(seq)
    }

    async fn attempts_on(&self, node: &NodeId) -> Result<Vec<HeldAttempt>> {
        let ask = self.ask(&ON_NODE).bind(node.as_str());
        records::all(self.all::<HeldAttemptRow>(Way::KeyReads, ask).await?)
    }

    async fn note_holder(
        &self,
        node: &NodeId,
        holder: &InstanceId,
        attempts: &[(JobId, Attempt)],
    ) -> Result<()> {
        if attempts.is_empty() {
            return Ok(());
        }
        let ask = self.ask(&HOLDER).bind(node.as_str()).bind(holder.as_str());
        let ask = ask.rows(attempts, |rows| {
            rows.column("id", |(job, _)| Id(*job)).column("attempt", |(_, attempt)| i64::from(attempt.get()));
        });
        self.touch(Way::Writes, ask).await.map(drop)
    }

    async fn live_jobs(&self, jobs: &[JobId]) -> Result<Vec<LiveJob>> {
        let ask = self.ask(&LIVE).array(ids(jobs));
        records::all(self.all::<RunningRow>(Way::KeyReads, ask).await?)
    }

    async fn attempts_of(&self, jobs: &[JobId]) -> Result<Vec<(JobId, Attempt)>> {
        let ask = self.ask(&CURRENT).array(ids(jobs));
        records::all(self.all::<AttemptRow>(Way::KeyReads, ask).await?)
    }

    async fn unfinished_counts(&self, piece: u32, pools: &HashSet<PoolName>) -> Result<UnfinishedCounts> {
        self.count_unfinished(piece, pools).await
    }

    async fn finished_counts(&self, piece: u32, pools: &HashSet<PoolName>) -> Result<FinishedCounts> {
        self.count_finished(piece, pools).await
    }

    async fn purge_jobs(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.forget_finished_jobs(age_ms, limit).await
    }

    async fn dismiss_jobs(&self, jobs: &[JobId], by: Option<&AuditEntry>) -> Result<Vec<JobId>> {
        let (jobs, by) = (jobs.to_vec(), by.cloned());
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                let dismissed = removal::dismiss(transaction, &jobs).await?;
                if dismissed.is_empty() {
                    // A call before this one may have dismissed them without an answer.
                    settle_commit(transaction).await?;
                } else {
                    audit::add(transaction, by.as_ref().as_slice()).await?;
                }
                Ok(Decided::Commit(dismissed))
            })
        })
        .await
    }

    async fn delete_jobs(&self, jobs: &[JobId], by: Option<&AuditEntry>) -> Result<Vec<JobId>> {
        let (jobs, by) = (jobs.to_vec(), by.cloned());
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                let deleted = removal::delete(transaction, &jobs, &JobFilter::default()).await?;
                if deleted.is_empty() {
                    // A call before this one may have deleted them without an answer.
                    settle_commit(transaction).await?;
                } else {
                    audit::add(transaction, by.as_ref().as_slice()).await?;
                }
                Ok(Decided::Commit(deleted))
            })
        })
        .await
    }

    async fn make_job_partitions(&self) -> Result<()> {
        self.make_missing_partitions().await
    }
}

impl Store {
    /// One job. With `settles` it is answered once a synchronous standby has what is answered, as [`Self::settled`].
    async fn read_job(&self, id: JobId, settles: bool) -> Result<Option<JobRecord>> {
        let (live, finished) = (self.ask(&SHOW).bind(Id(id)), self.ask(&SHOW_FINISHED).bind(Id(id)));
        let remembered = self.remembered.clone();
        let (live, finished): (Vec<LiveRow>, Vec<FinishedRow>) = self
            .with(Way::KeyReads, move |mut session| {
                Box::pin(async move {
                    let (live, mut ended) = (session.all(live).await?, Vec::new());
                    // A job moves one way only: one that is not found here any more is found there.
                    if live.is_empty() {
                        ended = session.all(finished).await?;
                    }
                    if settles && !(live.is_empty() && ended.is_empty()) {
                        settle(&mut session, &remembered).await?;
                    }
                    Ok((live, ended))
                })
            })
            .await?;
        Ok(rows::newest_first(live, finished, 1)?.pop())
    }

    /// An ask for `limit` jobs of a lane behind an id.
    fn behind(&self, statement: &Statement, lane: &LaneId, after: Option<JobId>, limit: u32) -> Ask {
        self.ask(statement).bind(lane.as_str()).bind(after.map_or(Id::LOWEST, Id)).bind(i64::from(limit))
    }
}
