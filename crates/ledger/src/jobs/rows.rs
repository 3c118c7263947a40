//! Rows of jobs as the databases hand them over, and their way into typed values. The same for both dialects.

use domain::job::{
    Assignment, Attempt, CurrentAttempt, Ended, OnRecovery, Outcome, PastAttempt, Priority, PromotedJob,
    State,
};
use domain::limits::DELAY_MS_MAX;
use domain::{ClientRef, IdempotencyKey, InstanceId, JobId, LaneId, NodeId, PoolName, TenantId, Timestamp};
use serde::Deserialize;

use super::columns::{NeedsRow, SpecRow};
use super::plan::{KeptSubmit, group_key};
use super::{
    Finished, HELD_DUE_MICROS, HeldAttempt, JobRecord, KeptJobKey, KeptSelection, LiveJob, OrphanedLane,
    RevokedAttempt, UnderWay, UnfinishedCount, WaitingGroup,
};
use crate::records::{self, JUST_ABOVE, KeyRow, impossible, name, number};
use crate::sql::{Id, Moment, record};
use crate::{Error, KeyScope, Result};

record! {
    /// An unfinished job.
    pub(crate) struct LiveRow {
        state: String,
        held: bool,
        #[flatten]
        job: JobRow,
    }
}

impl TryFrom<LiveRow> for LiveJob {
    type Error = Error;

    fn try_from(row: LiveRow) -> Result<Self> {
        let (mut spec, placed, due_at) = (row.job.spec.spec()?, row.job.placed()?, row.job.due_at());
        if row.held {
            spec.on_recovery = OnRecovery::Held;
        }
        let JobRow { id, seq, dispatched_at, running_at, .. } = row.job;
        let (attempt, charged_attempts) = (row.job.attempt()?, row.job.counted()?);
        Ok(Self {
            id: id.0,
            lane: LaneId::parse(&row.job.lane).map_err(impossible)?,
            seq: place(seq)?,
            client_ref: row.job.client_ref()?,
            spec,
            newest: CurrentAttempt {
                state: State::parse(&row.state).map_err(impossible)?,
                attempt,
                charged_attempts,
            },
            placed,
            last_node: row.job.last_node(),
            retry_of: row.job.retry_of.map(|id| id.0),
            created_at: row.job.created_at.0,
            due_at,
            dispatched_at: dispatched_at.map(|at| at.0),
            running_at: running_at.map(|at| at.0),
            running_for_ms: 0,
        })
    }
}

record! {
    /// An unfinished job, and for how many milliseconds it has been RUNNING.
    pub(crate) struct RunningRow {
        running_for_ms: i64,
        #[flatten]
        live: LiveRow,
    }
}

impl TryFrom<RunningRow> for LiveJob {
    type Error = Error;

    fn try_from(row: RunningRow) -> Result<Self> {
        Ok(Self { running_for_ms: number(row.running_for_ms)?, ..Self::try_from(row.live)? })
    }
}

impl TryFrom<LiveRow> for JobRecord {
    type Error = Error;

    fn try_from(row: LiveRow) -> Result<Self> {
        let attempts = row.job.past_attempts()?;
        let job = LiveJob::try_from(row)?;
        Ok(Self {
            id: job.id,
            lane: job.lane,
            seq: job.seq,
            client_ref: job.client_ref,
            spec: job.spec,
            state: job.newest.state,
            attempt: job.newest.attempt,
            charged_attempts: job.newest.charged_attempts,
            placed: job.placed,
            retry_of: job.retry_of,
            created_at: job.created_at,
            due_at: job.due_at,
            dispatched_at: job.dispatched_at,
            running_at: job.running_at,
            attempts,
            finished: None,
        })
    }
}

record! {
    /// A delayed job, and in how many milliseconds it is due.
    pub(crate) struct ComingRow {
        due_in_ms: i64,
        #[flatten]
        live: LiveRow,
    }
}

impl TryFrom<ComingRow> for (LiveJob, u64) {
    type Error = Error;

    fn try_from(row: ComingRow) -> Result<Self> {
        Ok((row.live.try_into()?, number(row.due_in_ms)?))
    }
}

record! {
    /// A finished job.
    pub(crate) struct FinishedRow {
        #[flatten]
        job: JobRow,
        outcome: String,
        dead: bool,
        result: Option<String>,
        error: Option<String>,
        finished_at: Moment,
        released_at: Option<Moment>,
        retried_as: Option<Id>,
        dismissed_at: Option<Moment>,
    }
}

impl TryFrom<FinishedRow> for JobRecord {
    type Error = Error;

    fn try_from(row: FinishedRow) -> Result<Self> {
        let outcome = Outcome::parse(&row.outcome).map_err(impossible)?;
        let mut attempts = row.job.past_attempts()?;
        let (attempt, at) = (row.job.attempt()?, row.finished_at.0);
        let placed = row.job.placed()?;
        if let (Outcome::Succeeded, Some(Assignment { node, .. })) = (outcome, &placed) {
            let (node, ended, reason) = (node.clone(), Ended::Succeeded, String::new());
            attempts.push(PastAttempt { attempt, node, ended, reason, at });
        }
        Ok(Self {
            id: row.job.id.0,
            lane: LaneId::parse(&row.job.lane).map_err(impossible)?,
            seq: place(row.job.seq)?,
            client_ref: row.job.client_ref()?,
            spec: row.job.spec.spec()?,
            state: State::Finished,
            attempt,
            charged_attempts: row.job.counted()?,
            placed,
            retry_of: row.job.retry_of.map(|id| id.0),
            created_at: row.job.created_at.0,
            due_at: row.job.due_at(),
            dispatched_at: row.job.dispatched_at.map(|at| at.0),
            running_at: row.job.running_at.map(|at| at.0),
            attempts,
            finished: Some(Finished {
                outcome,
                exhausted: row.dead,
                result: row.result,
                error: row.error,
                finished_at: at,
                released_at: row.released_at.map(|at| at.0),
                retried_as: row.retried_as.map(|id| id.0),
                dismissed_at: row.dismissed_at.map(|at| at.0),
            }),
        })
    }
}

record! {
    pub(crate) struct GroupRow {
        tenant: String,
        #[flatten]
        needs: NeedsRow,
    }
}

impl TryFrom<GroupRow> for WaitingGroup {
    type Error = Error;

    fn try_from(row: GroupRow) -> Result<Self> {
        Ok(Self { tenant: name(&row.tenant, TenantId::parse)?, needs: row.needs.needs()? })
    }
}

record! {
    pub(crate) struct PromotedRow {
        id: Id,
        priority: i64,
        #[flatten]
        group: GroupRow,
    }
}

impl TryFrom<PromotedRow> for PromotedJob {
    type Error = Error;

    fn try_from(PromotedRow { id, priority, group }: PromotedRow) -> Result<Self> {
        let priority = Priority::new(priority).map_err(impossible)?;
        Ok(Self { job: id.0, priority, group: group.try_into()? })
    }
}

record! {
    pub(crate) struct UnfinishedCountRow {
        pool: String,
        tenant: String,
        created: i64,
        delayed: i64,
        dispatched: i64,
        running: i64,
        oldest_ms: Option<i64>,
        pub(crate) last: Id,
    }
}

/// The pool that some jobs name, and their tenant.
pub(crate) type PoolAndTenant = (Option<PoolName>, Option<TenantId>);

impl TryFrom<UnfinishedCountRow> for (PoolAndTenant, UnfinishedCount) {
    type Error = Error;

    fn try_from(row: UnfinishedCountRow) -> Result<Self> {
        let jobs = UnfinishedCount {
            created: records::count(row.created)?,
            delayed: records::count(row.delayed)?,
            dispatched: records::count(row.dispatched)?,
            running: records::count(row.running)?,
            // The clock may have been set back.
            oldest_ms: row.oldest_ms.map(|ms| u64::try_from(ms).unwrap_or(0)),
        };
        Ok(((name(&row.pool, PoolName::parse)?, name(&row.tenant, TenantId::parse)?), jobs))
    }
}

record! {
    pub(crate) struct LaneRow {
        lane: String,
        owner: Option<String>,
        is_left: bool,
        is_last: bool,
    }
}

/// From where a page of groups begins.
pub(crate) fn group_bound(after: Option<&WaitingGroup>) -> String {
    after.map_or_else(String::new, |after| format!("{}{JUST_ABOVE}", group_key(after)))
}

/// A length for the databases to add to their time, or to take from it. No delay is longer.
pub(crate) const fn soon(within_ms: u64) -> i64 {
    let longest = DELAY_MS_MAX * 2;
    if within_ms > longest { longest as i64 } else { within_ms as i64 }
}

/// One page of both tables. A job that was moved between the two looks is there as finished.
pub(crate) fn newest_first(
    live: Vec<LiveRow>,
    finished: Vec<FinishedRow>,
    limit: u32,
) -> Result<Vec<JobRecord>> {
    let mut jobs: Vec<JobRecord> = records::all(finished)?;
    jobs.extend(records::all::<_, JobRecord>(live)?);
    // Stable: of two with the same id the finished one comes first.
    jobs.sort_by_key(|job| std::cmp::Reverse(job.id));
    jobs.dedup_by_key(|job| job.id);
    jobs.truncate(limit as usize);
    Ok(jobs)
}

/// The lanes left, and the one to go on behind.
pub(crate) fn orphaned_lanes(rows: Vec<LaneRow>) -> Result<(Vec<OrphanedLane>, Option<LaneId>)> {
    let (mut left, mut last) = (Vec::new(), None);
    for row in rows {
        let lane = LaneId::parse(&row.lane).map_err(impossible)?;
        if row.is_last {
            last = Some(lane.clone());
        }
        if row.is_left {
            let owner = row.owner.as_deref().map(InstanceId::parse).transpose().map_err(impossible)?;
            left.push(OrphanedLane { lane, owner });
        }
    }
    Ok((left, last))
}

record! {
    pub(crate) struct AttemptRow {
        id: Id,
        attempt: i64,
    }
}

record! {
    pub(crate) struct HeldAttemptRow {
        id: Id,
        lane: String,
        attempt: i64,
        state: String,
        holder: String,
    }
}

impl TryFrom<HeldAttemptRow> for HeldAttempt {
    type Error = Error;

    fn try_from(row: HeldAttemptRow) -> Result<Self> {
        Ok(Self {
            job: row.id.0,
            lane: LaneId::parse(&row.lane).map_err(impossible)?,
            attempt: Attempt::new(number(row.attempt)?),
            state: State::parse(&row.state).map_err(impossible)?,
            holder: InstanceId::parse(&row.holder).map_err(impossible)?,
        })
    }
}

impl TryFrom<AttemptRow> for (JobId, Attempt) {
    type Error = Error;

    fn try_from(row: AttemptRow) -> Result<Self> {
        Ok((row.id.0, Attempt::new(number(row.attempt)?)))
    }
}

record! {
    pub(crate) struct UnderWayRow {
        id: Id,
        attempt: i64,
        state: String,
    }
}

impl TryFrom<UnderWayRow> for UnderWay {
    type Error = Error;

    fn try_from(row: UnderWayRow) -> Result<Self> {
        let state = State::parse(&row.state).map_err(impossible)?;
        Ok(Self { job: row.id.0, attempt: Attempt::new(number(row.attempt)?), state })
    }
}

/// A selection as it is kept: JSON text, written and read here alone.
pub(crate) fn selection_text(jobs: &[JobId]) -> String {
    let texts: Vec<_> = jobs.iter().map(JobId::to_string).collect();
    serde_json::to_string(&texts).expect("texts have a JSON form")
}

/// A selection that was kept.
pub(crate) fn selection(row: &KeyRow) -> Result<KeptSelection> {
    let texts: Vec<String> = serde_json::from_str(&row.answer).map_err(impossible)?;
    let read = |text: &String| JobId::parse(text).ok_or_else(|| impossible("no id of a job"));
    Ok(KeptSelection { body_hash: row.body_hash()?, jobs: texts.iter().map(read).collect::<Result<_>>()? })
}

impl TryFrom<KeyRow> for (KeyScope, KeptJobKey) {
    type Error = Error;

    fn try_from(row: KeyRow) -> Result<Self> {
        let kept: KeptSubmit = serde_json::from_str(&row.answer).map_err(impossible)?;
        let key = IdempotencyKey::parse(&row.key).map_err(impossible)?;
        let job = JobId::parse(&kept.job).ok_or_else(|| impossible(format_args!("job {:?}", kept.job)))?;
        let kept = KeptJobKey {
            body_hash: row.body_hash()?,
            job,
            lane: LaneId::parse(&kept.lane).map_err(impossible)?,
            seq: kept.seq,
            created_at: row.created_at.0,
        };
        Ok((KeyScope { scope: row.scope, key }, kept))
    }
}

record! {
    /// What finished and unfinished jobs have in common.
    struct JobRow {
        id: Id,
        lane: String,
        seq: i64,
        client_ref: Option<String>,
        #[flatten]
        spec: SpecRow,
        retry_of: Option<Id>,
        created_at: Moment,
        due_at: Option<Moment>,
        attempt: i64,
        counted: i64,
        node: Option<String>,
        holder: Option<String>,
        dispatched_at: Option<Moment>,
        running_at: Option<Moment>,
        past_attempts: String,
    }
}

/// A line of `past_attempts`: JSON text, written by the statements that end attempts.
#[derive(Deserialize)]
struct PastLine {
    attempt: u32,
    node: String,
    ended: String,
    reason: String,
    at: i64,
}

impl JobRow {
    fn client_ref(&self) -> Result<Option<ClientRef>> {
        self.client_ref.as_deref().map(ClientRef::parse).transpose().map_err(impossible)
    }

    /// When it may be, or would have been, dispatched; `None` at once, and for a held job never.
    fn due_at(&self) -> Option<Timestamp> {
        self.due_at.map(|at| at.0).filter(|at| at.as_micros() < HELD_DUE_MICROS)
    }

    fn placed(&self) -> Result<Option<Assignment>> {
        let (Some(node), Some(holder)) = (&self.node, &self.holder) else { return Ok(None) };
        let (node, holder) = (NodeId::parse(node), InstanceId::parse(holder));
        Ok(Some(Assignment { node: node.map_err(impossible)?, holder: holder.map_err(impossible)? }))
    }

    fn attempt(&self) -> Result<Attempt> {
        number(self.attempt).map(Attempt::new)
    }

    fn counted(&self) -> Result<u32> {
        number(self.counted)
    }

    fn past_attempts(&self) -> Result<Vec<PastAttempt>> {
        self.past_attempts.lines().map(past_attempt).collect()
    }

    /// The node of the last attempt that is over. No job fails because that cannot be read.
    fn last_node(&self) -> Option<NodeId> {
        let last = past_attempt(self.past_attempts.lines().next_back()?);
        last.ok().map(|last| last.node)
    }
}

fn past_attempt(line: &str) -> Result<PastAttempt> {
    let line: PastLine = serde_json::from_str(line).map_err(impossible)?;
    Ok(PastAttempt {
        attempt: Attempt::new(line.attempt),
        node: NodeId::parse(&line.node).map_err(impossible)?,
        ended: Ended::parse(&line.ended).ok_or_else(|| impossible(line.ended))?,
        reason: line.reason,
        at: Timestamp::from_micros(line.at),
    })
}

record! {
    /// A job whose newest attempt may be over, and the database's time.
    pub(crate) struct LastAttemptRow {
        id: Id,
        attempt: i64,
        past_attempts: String,
        now: i64,
    }
}

/// The newest attempt of those jobs that was taken back last, of those that may never have been sent.
pub(crate) fn last_revoked(rows: Vec<LastAttemptRow>) -> Result<Option<RevokedAttempt>> {
    let mut last: Option<RevokedAttempt> = None;
    for row in rows {
        let Some(over) = row.past_attempts.lines().next_back().map(past_attempt).transpose()? else {
            continue;
        };
        let attempt = Attempt::new(number(row.attempt)?);
        if over.attempt != attempt || !over.ended.may_be_unsent() {
            continue;
        }
        // The clock may have been set back.
        let ago_ms = u64::try_from(row.now.saturating_sub(over.at.as_micros()) / 1_000).unwrap_or(0);
        if last.is_none_or(|other| ago_ms < other.ago_ms) {
            last = Some(RevokedAttempt { job: row.id.0, attempt, ago_ms });
        }
    }
    Ok(last)
}

/// A place in a session, where 0 stands for none.
fn place(seq: i64) -> Result<Option<u64>> {
    Ok(Some(number(seq)?).filter(|seq| *seq > 0))
}
