//! A real ledger whose commits can be made to fail as a network and a server make them fail.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use domain::job::Attempt;
use domain::nonce::{Hole, Loaded, Row, Status};
use domain::plan::{PlanState, TaskStatus};
use domain::{
    AuditEntry, ClientRef, InstanceId, JobId, LaneId, NodeId, Nonce, PlanId, PoolName, Resource, SegmentTag,
    SequenceName, SessionId, SignerId, TaskId, TenantId, Timestamp, Token,
};
use ledger::*;
use parking_lot::Mutex;

use crate::session_reads::{SessionRead, SessionReads};

/// What happens to one commit.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It is done, and the answer is lost.
    DoneUnheard,
    /// The same, and then another owner has the lease.
    DoneUnheardAndTaken,
    /// It is not done, and its caller gets no answer.
    NotDoneUnheard,
    /// The server undid it and said so.
    Aborted,
    /// The server could not be reached.
    Unreachable,
    /// Another owner takes the lease just before.
    TakenOver,
    /// A takeover has the row locked.
    Locked,
    /// The ledger's code panics.
    Panic,
    /// It is done when the gate opens.
    Gated,
}

/// Faults for the commits to come, in order; without one a commit goes through.
#[derive(Default)]
pub struct Plan {
    faults: Mutex<VecDeque<Fault>>,
    pub commits: Mutex<usize>,
    do_jobs_panic: AtomicBool,
    do_plans_panic: AtomicBool,
    /// The next step of a plan is done when the gate opens.
    pub next_plan_step_is_gated: AtomicBool,
    /// The next step of a plan that begins stages is done, and the answer is lost.
    pub next_start_is_unheard: AtomicBool,
    /// So many of the next steps of plans do not leave.
    pub plan_steps_to_keep: AtomicUsize,
    /// Plans' rows cannot be read by themselves.
    pub plans_are_away: AtomicBool,
    /// By how much the database's clock has stepped forward, as itself, sessions and steps of plans show it.
    pub ahead_ms: AtomicU64,
    /// Signers that wait for a confirmation.
    pub recovery: crate::recovery::Recovery,
    /// How often a signer was loaded.
    pub loads: AtomicUsize,
    /// Looks for overdue signers.
    pub looks: AtomicUsize,
    /// Looks for idle sessions.
    pub idle_looks: AtomicUsize,
    /// Notes of the bus in use are never answered, and how many were asked for.
    pub bus_notes_stall: AtomicBool,
    pub stalled: AtomicUsize,
    /// So many of the next renewals are done when the gate opens, and how many wait for it.
    pub renewals_to_gate: AtomicUsize,
    pub gated_renewals: AtomicUsize,
    /// What is kept under keys of jobs cannot be read.
    pub job_keys_are_away: AtomicBool,
    /// Reads of one job.
    pub job_reads: crate::job_reads::JobReads,
    /// Reads of a session and its jobs.
    pub session_reads: SessionReads,
    /// Notes of who holds a node.
    pub holder_notes: crate::holder_notes::HolderNotes,
    /// What was to be purged.
    pub purges: crate::purges::Purges,
    /// Under which leases jobs were held.
    pub holds: crate::holds::Holds,
    pub gate: tokio::sync::Notify,
}

impl Plan {
    pub fn next_are(&self, faults: &[Fault]) {
        self.faults.lock().extend(faults);
    }
    /// The next commit of jobs is a defect of its caller.
    pub fn next_jobs_panic(&self) {
        self.do_jobs_panic.store(true, Ordering::Relaxed);
    }
    /// The next step of a plan is a defect of its caller.
    pub fn next_plans_panic(&self) {
        self.do_plans_panic.store(true, Ordering::Relaxed);
    }
    pub fn is_used_up(&self) -> bool {
        self.faults.lock().is_empty()
    }
}

pub struct Flaky {
    pub real: Handle,
    pub plan: Arc<Plan>,
}

pub fn lost() -> std::io::Error {
    std::io::ErrorKind::ConnectionReset.into()
}

#[async_trait]
impl Nonces for Flaky {
    async fn commit_linked(&self, batch: Batch, link: Link) -> Result<Verdict> {
        let fault = self.plan.faults.lock().pop_front();
        *self.plan.commits.lock() += 1;
        match fault {
            None => self.real.commit_linked(batch, link).await,
            Some(Fault::DoneUnheard) => {
                let verdict = self.real.commit_linked(batch, link).await?;
                assert!(matches!(verdict, Verdict::Committed { .. }), "{verdict:?}");
                Err(Error::unknown(lost()))
            }
            Some(Fault::DoneUnheardAndTaken) => {
                let (resource, thief) = (batch.resource(), InstanceId::parse("thief").unwrap());
                let (owner, token) = (batch.owner.clone(), batch.token);
                self.real.commit_linked(batch, link).await?;
                self.real.release(&resource, &owner, token).await?;
                self.real.acquire(&resource, &thief, 60_000).await?;
                Err(Error::unknown(lost()))
            }
            Some(Fault::NotDoneUnheard) => Err(Error::unknown(lost())),
            Some(Fault::Aborted) => Err(Error::aborted(lost())),
            Some(Fault::Unreachable) => Err(Error::unavailable(lost())),
            Some(Fault::Locked) => Ok(Verdict::Again),
            Some(Fault::Panic) => panic!("made on purpose"),
            Some(Fault::Gated) => {
                self.plan.gate.notified().await;
                self.real.commit_linked(batch, link).await
            }
            Some(Fault::TakenOver) => {
                let (resource, thief) = (batch.resource(), InstanceId::parse("thief").unwrap());
                self.real.release(&resource, &batch.owner, batch.token).await?;
                self.real.acquire(&resource, &thief, 1).await?;
                self.real.commit_linked(batch, link).await
            }
        }
    }

    async fn load(&self, signer: &SignerId, holes_max: usize) -> Result<Loaded> {
        self.plan.loads.fetch_add(1, Ordering::SeqCst);
        let mut loaded = self.real.load(signer, holes_max).await?;
        loaded.is_recovering |= self.plan.recovery.is_on();
        Ok(loaded)
    }
    async fn is_recovering(&self, signer: &SignerId) -> Result<bool> {
        Ok(self.plan.recovery.is_on() || self.real.is_recovering(signer).await?)
    }
    async fn holes(&self, signer: &SignerId, max: usize) -> Result<(Vec<Hole>, bool)> {
        self.real.holes(signer, max).await
    }
    async fn overdue(
        &self,
        signer: &SignerId,
        ahead_ms: u64,
        from: Option<Timestamp>,
        max: usize,
    ) -> Result<Vec<HeldNonce>> {
        self.real.overdue(signer, ahead_ms, from, max).await
    }
    async fn rows(&self, signer: &SignerId, nonces: &[Nonce]) -> Result<Read<Vec<Row>>> {
        self.plan.recovery.read(self.real.rows(signer, nonces)).await
    }
    async fn kept_keys(&self, scopes: &[KeyScope]) -> Result<Vec<(KeyScope, KeptKey)>> {
        self.real.kept_keys(scopes).await
    }
    async fn is_known(&self, signer: &SignerId) -> Result<bool> {
        self.real.is_known(signer).await
    }
    async fn signer(&self, signer: &SignerId) -> Result<Option<SignerRecord>> {
        self.real.signer(signer).await
    }
    async fn signers(&self, prefix: &str, after: Option<&SignerId>, limit: u32) -> Result<Vec<SignerRecord>> {
        self.real.signers(prefix, after, limit).await
    }
    async fn nonces(&self, filter: &NonceFilter) -> Result<Vec<NonceRecord>> {
        self.real.nonces(filter).await
    }
    async fn overdue_signers(
        &self,
        me: &InstanceId,
        ahead_ms: u64,
        after: Option<&SignerId>,
        limit: u32,
    ) -> Result<OverdueSigners> {
        self.plan.looks.fetch_add(1, Ordering::SeqCst);
        self.real.overdue_signers(me, ahead_ms, after, limit).await
    }
    async fn open_counts(&self) -> Result<Vec<(Status, u64)>> {
        self.real.open_counts().await
    }
    async fn confirm_signer(&self, signer: &SignerId, next: Nonce, by: &AuditEntry) -> Result<Confirmation> {
        self.real.confirm_signer(signer, next, by).await
    }
    async fn purge_keys(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.plan.purges.step(("keys", age_ms), limit, self.real.purge_keys(age_ms, limit)).await
    }
}

#[async_trait]
impl Instances for Flaky {
    async fn register(&self, instance: &NewInstance) -> Result<()> {
        self.real.register(instance).await
    }
    async fn live_instances(&self) -> Result<Vec<Instance>> {
        self.real.live_instances().await
    }
    async fn lease_counts(&self, piece: u32) -> Result<HashMap<InstanceId, u64>> {
        self.real.lease_counts(piece).await
    }
    async fn note_bus(&self, id: &InstanceId, up: Option<bool>, bus: Option<&str>) -> Result<()> {
        if bus.is_some() && self.plan.bus_notes_stall.load(Ordering::SeqCst) {
            self.plan.stalled.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
        self.real.note_bus(id, up, bus).await
    }
    async fn peers(&self, since_ms: u64, limit: u32) -> Result<Vec<Peer>> {
        self.plan.holds.look(self.real.peers(since_ms, limit)).await
    }
    async fn instance_url(&self, id: &InstanceId) -> Result<Option<String>> {
        self.real.instance_url(id).await
    }
    async fn purge_instances(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.plan.purges.step(("instances", age_ms), limit, self.real.purge_instances(age_ms, limit)).await
    }
}

#[async_trait]
impl Transfers for Flaky {
    async fn note_nodes(&self, id: &InstanceId, nodes: Option<&str>) -> Result<u64> {
        self.real.note_nodes(id, nodes).await
    }
    async fn transfers_to(&self, id: &InstanceId) -> Result<u64> {
        self.real.transfers_to(id).await
    }
    async fn nodes_elsewhere(&self, me: &InstanceId) -> Result<Vec<(InstanceId, String)>> {
        self.real.nodes_elsewhere(me).await
    }
    async fn transfer_jobs(
        &self,
        from: &Lane,
        jobs: &[(JobId, InstanceId)],
    ) -> Result<Result<Vec<JobId>, Unwritten>> {
        self.real.transfer_jobs(from, jobs).await
    }
    async fn pass_lease(
        &self,
        resource: &Resource,
        owner: &InstanceId,
        token: Token,
        to: &InstanceId,
        lease_ms: u64,
    ) -> Result<bool> {
        self.real.pass_lease(resource, owner, token, to, lease_ms).await
    }
}

#[async_trait]
impl Jobs for Flaky {
    async fn commit_jobs_linked(&self, batch: JobBatch, link: Link) -> Result<JobsVerdict> {
        assert!(!self.plan.do_jobs_panic.swap(false, Ordering::Relaxed), "made on purpose");
        self.real.commit_jobs_linked(batch, link).await
    }
    async fn promote_jobs(&self, lane: &Lane, limit: u32) -> Result<Result<Vec<PromotedJob>, Unwritten>> {
        self.real.promote_jobs(lane, limit).await
    }
    async fn hold_jobs(&self, lane: &Lane) -> Result<Result<u64, Unwritten>> {
        self.plan.holds.note(lane.token);
        self.real.hold_jobs(lane).await
    }
    async fn job(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.plan.job_reads.of_whole()?;
        self.real.job(id).await
    }
    async fn settled_job(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.plan.job_reads.of_settled()?;
        self.real.settled_job(id).await
    }
    async fn job_states(&self, jobs: &[JobId]) -> Result<Vec<(JobId, domain::job::State)>> {
        self.plan.job_reads.of_states().await;
        self.real.job_states(jobs).await
    }
    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobRecord>> {
        self.real.jobs(filter).await
    }
    async fn kept_selection(&self, scope: &KeyScope) -> Result<Option<KeptSelection>> {
        self.real.kept_selection(scope).await
    }
    async fn keep_selection(&self, key: &JobKey, jobs: &[JobId]) -> Result<KeptSelection> {
        self.real.keep_selection(key, jobs).await
    }
    async fn kept_job_keys(&self, scopes: &[KeyScope]) -> Result<Vec<(KeyScope, KeptJobKey)>> {
        if self.plan.job_keys_are_away.load(Ordering::SeqCst) {
            return Err(Error::unavailable(lost()));
        }
        self.real.kept_job_keys(scopes).await
    }
    async fn under_way(&self, lane: &LaneId, after: Option<JobId>, limit: u32) -> Result<Vec<UnderWay>> {
        self.real.under_way(lane, after, limit).await
    }
    async fn in_flight(&self, lane: &LaneId, after: Option<JobId>, limit: u32) -> Result<Vec<LiveJob>> {
        let read = self.real.in_flight(lane, after, limit);
        self.plan.session_reads.read(SessionRead::InFlight, &self.real, read).await
    }
    async fn waiting_groups(
        &self,
        lane: &LaneId,
        after: Option<&WaitingGroup>,
        limit: u32,
    ) -> Result<Vec<WaitingGroup>> {
        self.real.waiting_groups(lane, after, limit).await
    }
    async fn waiting(&self, lane: &LaneId, group: &WaitingGroup, limit: u32) -> Result<Vec<LiveJob>> {
        self.real.waiting(lane, group, limit).await
    }
    async fn coming_due(
        &self,
        lane: &LaneId,
        after: Option<(Timestamp, JobId)>,
        within_ms: u64,
        limit: u32,
    ) -> Result<Vec<(LiveJob, u64)>> {
        self.real.coming_due(lane, after, within_ms, limit).await
    }
    async fn orphaned_lanes(
        &self,
        me: &InstanceId,
        after: Option<&LaneId>,
        due_within_ms: u64,
        look_at: u32,
    ) -> Result<(Vec<OrphanedLane>, Option<LaneId>)> {
        self.plan.holds.look_for_lanes(self.real.orphaned_lanes(me, after, due_within_ms, look_at)).await
    }
    async fn lane_seq(&self, lane: &LaneId) -> Result<u64> {
        self.real.lane_seq(lane).await
    }
    async fn attempts_on(&self, node: &NodeId) -> Result<Vec<HeldAttempt>> {
        self.plan.holder_notes.read()?;
        self.real.attempts_on(node).await
    }
    async fn note_holder(
        &self,
        node: &NodeId,
        holder: &InstanceId,
        attempts: &[(JobId, Attempt)],
    ) -> Result<()> {
        self.plan.holder_notes.begin().await?;
        self.real.note_holder(node, holder, attempts).await
    }
    async fn live_jobs(&self, jobs: &[JobId]) -> Result<Vec<LiveJob>> {
        self.plan.job_reads.of_unfinished().await;
        self.real.live_jobs(jobs).await
    }
    async fn attempts_of(&self, jobs: &[JobId]) -> Result<Vec<(JobId, Attempt)>> {
        self.real.attempts_of(jobs).await
    }
    async fn unfinished_counts(&self, piece: u32, pools: &HashSet<PoolName>) -> Result<UnfinishedCounts> {
        self.plan.holds.count(self.real.unfinished_counts(piece, pools)).await
    }
    async fn finished_counts(&self, piece: u32, pools: &HashSet<PoolName>) -> Result<FinishedCounts> {
        self.real.finished_counts(piece, pools).await
    }
    async fn purge_jobs(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.plan.purges.step(("jobs", age_ms), limit, self.real.purge_jobs(age_ms, limit)).await
    }
    async fn dismiss_jobs(&self, jobs: &[JobId], by: Option<&AuditEntry>) -> Result<Vec<JobId>> {
        self.real.dismiss_jobs(jobs, by).await
    }
    async fn delete_jobs(&self, jobs: &[JobId], by: Option<&AuditEntry>) -> Result<Vec<JobId>> {
        self.real.delete_jobs(jobs, by).await
    }
    async fn make_job_partitions(&self) -> Result<()> {
        self.real.make_job_partitions().await
    }
}

#[async_trait]
impl Sessions for Flaky {
    async fn open_session(
        &self,
        id: &SessionId,
        spec: &domain::session::Spec,
        key: Option<&JobKey>,
        opener: Option<&Opener>,
    ) -> Result<Opened> {
        self.real.open_session(id, spec, key, opener).await
    }
    async fn session(&self, id: &SessionId) -> Result<Option<SessionRecord>> {
        let ahead_ms = self.plan.ahead_ms.load(Ordering::Relaxed);
        let read = self.real.session(id);
        let found = self.plan.session_reads.read(SessionRead::Record, &self.real, read).await?;
        Ok(found.map(|found| SessionRecord { idle_for_ms: found.idle_for_ms + ahead_ms, ..found }))
    }
    async fn settled_session(&self, id: &SessionId) -> Result<Option<SessionRecord>> {
        self.plan.session_reads.settled.fetch_add(1, Ordering::SeqCst);
        self.real.settled_session(id).await
    }
    async fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionRecord>> {
        self.real.sessions(filter).await
    }
    async fn session_names(&self, filter: &SessionFilter) -> Result<Vec<SessionId>> {
        self.real.session_names(filter).await
    }
    async fn session_access(&self, sessions: &[SessionId]) -> Result<Vec<SessionAccess>> {
        self.real.session_access(sessions).await
    }
    async fn session_finished(&self, id: &SessionId) -> Result<u64> {
        self.real.session_finished(id).await
    }
    async fn session_counts(&self, id: &SessionId) -> Result<SessionCounts> {
        self.plan.session_reads.read(SessionRead::Counts, &self.real, self.real.session_counts(id)).await
    }
    async fn close_session(&self, lane: &Lane) -> Result<Result<(), Unwritten>> {
        self.plan.session_reads.close(self.real.close_session(lane)).await
    }
    async fn line(&self, lane: &LaneId, after_seq: u64, limit: u32) -> Result<Vec<(LiveJob, u64)>> {
        self.real.line(lane, after_seq, limit).await
    }
    async fn last_revoked(&self, id: &SessionId, within_ms: u64) -> Result<Option<RevokedAttempt>> {
        self.real.last_revoked(id, within_ms).await
    }
    async fn session_results(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<SessionResults> {
        self.real.session_results(id, after_seq, limit).await
    }
    async fn finished_places(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<Vec<(u64, JobId)>> {
        self.real.finished_places(id, after_seq, limit).await
    }
    async fn unfinished_places(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<Vec<u64>> {
        self.real.unfinished_places(id, after_seq, limit).await
    }
    async fn session_refs(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<Vec<ClientRef>> {
        self.real.session_refs(id, after_seq, limit).await
    }
    async fn idle_sessions(
        &self,
        ahead_ms: u64,
        after: Option<&SessionId>,
        limit: u32,
    ) -> Result<(Vec<SessionId>, Option<SessionId>)> {
        self.plan.idle_looks.fetch_add(1, Ordering::SeqCst);
        self.real.idle_sessions(ahead_ms, after, limit).await
    }
    async fn purge_sessions(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.plan.purges.step(("sessions", age_ms), limit, self.real.purge_sessions(age_ms, limit)).await
    }
}

#[async_trait]
impl Plans for Flaky {
    async fn create_plan(&self, plan: NewPlan) -> Result<PlanCreated> {
        self.real.create_plan(plan).await
    }
    async fn commit_plan_linked(&self, batch: PlanBatch, link: Link) -> Result<PlanVerdict> {
        assert!(!self.plan.do_plans_panic.swap(false, Ordering::Relaxed), "made on purpose");
        self.plan.let_plan_step_pass().await?;
        let is_unheard =
            !batch.jobs.is_empty() && self.plan.next_start_is_unheard.swap(false, Ordering::Relaxed);
        match self.real.commit_plan_linked(batch, link).await? {
            PlanVerdict::Written { .. } if is_unheard => Err(Error::unknown(lost())),
            PlanVerdict::Written { at, locks } => {
                let at = at.plus_ms(self.plan.ahead_ms.load(Ordering::Relaxed));
                Ok(PlanVerdict::Written { at, locks })
            }
            other => Ok(other),
        }
    }
    async fn kept_plan(&self, scope: &KeyScope) -> Result<Option<KeptPlan>> {
        self.real.kept_plan(scope).await
    }
    async fn kept_retry(&self, scope: &KeyScope) -> Result<Option<KeptRetry>> {
        self.real.kept_retry(scope).await
    }
    async fn plan(&self, id: PlanId) -> Result<Option<PlanRecord>> {
        if self.plan.plans_are_away.load(Ordering::Relaxed) {
            return Err(Error::unavailable(lost()));
        }
        self.real.plan(id).await
    }
    async fn load_plan(&self, id: PlanId) -> Result<Option<PlanState>> {
        self.real.load_plan(id).await
    }
    async fn plans(&self, filter: &PlanFilter) -> Result<Vec<PlanRecord>> {
        self.real.plans(filter).await
    }
    async fn plan_access(&self, plans: &[PlanId], with_pools: bool) -> Result<HashMap<PlanId, PlanAccess>> {
        self.real.plan_access(plans, with_pools).await
    }
    async fn plan_tasks(&self, plan: PlanId, after: Option<usize>, limit: u32) -> Result<Vec<TaskRecord>> {
        self.real.plan_tasks(plan, after, limit).await
    }
    async fn plan_tasks_with(
        &self,
        plan: PlanId,
        statuses: &[TaskStatus],
        after: Option<usize>,
        limit: u32,
    ) -> Result<Vec<TaskRecord>> {
        self.real.plan_tasks_with(plan, statuses, after, limit).await
    }
    async fn tasks_of_plans(
        &self,
        plans: &[PlanId],
        statuses: &[TaskStatus],
        of_each: u32,
    ) -> Result<Vec<FoundTask>> {
        self.real.tasks_of_plans(plans, statuses, of_each).await
    }
    async fn plan_progress(&self, plans: &[PlanId]) -> Result<Vec<(PlanId, TaskStatus, u64)>> {
        self.real.plan_progress(plans).await
    }
    async fn stage_attempts(&self, jobs: &[JobId]) -> Result<Vec<(JobId, Attempt)>> {
        self.real.stage_attempts(jobs).await
    }
    async fn plan_of_task(&self, task: TaskId) -> Result<Option<PlanId>> {
        self.real.plan_of_task(task).await
    }
    async fn plan_task(&self, task: TaskId) -> Result<Option<TaskRecord>> {
        self.real.plan_task(task).await
    }
    async fn tenant_tasks(
        &self,
        tenant: &TenantId,
        before: Option<TaskId>,
        limit: u32,
    ) -> Result<Vec<TaskRecord>> {
        self.real.tenant_tasks(tenant, before, limit).await
    }
    async fn checkpoints(
        &self,
        task: TaskId,
        before: Option<u32>,
        limit: u32,
    ) -> Result<Vec<CheckpointRecord>> {
        self.real.checkpoints(task, before, limit).await
    }
    async fn definition(&self, task: TaskId, version: u32) -> Result<Option<Arc<[domain::plan::StageSpec]>>> {
        self.real.definition(task, version).await
    }
    async fn stage_names(&self, task: TaskId, versions: &[u32]) -> Result<HashMap<u32, Vec<Arc<str>>>> {
        self.real.stage_names(task, versions).await
    }
    async fn plan_events(
        &self,
        plan: PlanId,
        task: Option<TaskId>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<TimedEvent>> {
        self.real.plan_events(plan, task, after, limit).await
    }
    async fn break_lock(&self, tenant: &TenantId, token: Token, author: &Author) -> Result<LockBreak> {
        self.real.break_lock(tenant, token, author).await
    }
    async fn plan_counts(&self) -> Result<Vec<PlanCount>> {
        self.real.plan_counts().await
    }
    async fn plan_statuses(&self) -> Result<Vec<(domain::plan::PlanStatus, u64)>> {
        self.real.plan_statuses().await
    }
    async fn purge_plans(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.plan.purges.step(("plans", age_ms), limit, self.real.purge_plans(age_ms, limit)).await
    }
    async fn trim_plan(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.real.trim_plan(age_ms, limit).await
    }
    async fn left_plans(&self, me: &InstanceId, limit: u32) -> Result<Vec<(PlanId, Option<InstanceId>)>> {
        self.real.left_plans(me, limit).await
    }
}

#[async_trait]
impl Ledger for Flaky {
    fn kind(&self) -> Kind {
        self.real.kind()
    }
    async fn check(&self) -> Result<Health> {
        self.real.check().await
    }
    fn unwritable(&self) -> Option<Unwritable> {
        self.real.unwritable()
    }
    async fn witness(&self, known: Option<&Identity>) -> Result<Witness> {
        self.real.witness(known).await
    }
    fn connections_in_use(&self) -> u32 {
        self.real.connections_in_use()
    }
    async fn close(&self) {
        self.real.close().await;
    }
}

#[async_trait]
impl Audits for Flaky {
    async fn audit(&self, entry: &AuditEntry) -> Result<()> {
        self.real.audit(entry).await
    }
    async fn audit_once(&self, entry: &AuditEntry) -> Result<()> {
        self.real.audit_once(entry).await
    }
    async fn audits(&self, filter: &AuditFilter) -> Result<Vec<AuditRecord>> {
        self.real.audits(filter).await
    }
    async fn purge_audits(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.plan.purges.step(("audits", age_ms), limit, self.real.purge_audits(age_ms, limit)).await
    }
}

#[async_trait]
impl Ids for Flaky {
    async fn clock_ms(&self) -> Result<u64> {
        Ok(self.real.clock_ms().await? + self.plan.ahead_ms.load(Ordering::Relaxed))
    }
    async fn is_current(&self) -> Result<bool> {
        Ok(self.plan.recovery.is_current() && self.real.is_current().await?)
    }
    async fn id_workers(&self) -> Result<Vec<WorkerRecord>> {
        self.real.id_workers().await
    }
    async fn open_id_worker(&self, claim: &WorkerClaim, node: &str) -> Result<Option<Marked>> {
        self.real.open_id_worker(claim, node).await
    }
    async fn mark_id_worker(&self, claim: &WorkerClaim, mark: u64, ahead: u64) -> Result<Option<Marked>> {
        self.real.mark_id_worker(claim, mark, ahead).await
    }
    async fn lower_id_worker(&self, claim: &WorkerClaim, mark_ms: u64) -> Result<Option<Marked>> {
        self.real.lower_id_worker(claim, mark_ms).await
    }
    async fn take_range(&self, tag: &SegmentTag, at_least: u64) -> Result<RangeTaken> {
        self.real.take_range(tag, at_least).await
    }
    async fn put_segment(
        &self,
        tag: &SegmentTag,
        change: &SegmentChange,
        by: &AuditEntry,
    ) -> Result<Put<SegmentRecord>> {
        self.real.put_segment(tag, change, by).await
    }
    async fn segment(&self, tag: &SegmentTag) -> Result<Option<SegmentRecord>> {
        self.real.segment(tag).await
    }
    async fn segments(&self, after: Option<&SegmentTag>, limit: u32) -> Result<Vec<SegmentRecord>> {
        self.real.segments(after, limit).await
    }
    async fn grant_sequence(&self, name: &SequenceName, count: u64) -> Result<SequenceGrant> {
        self.real.grant_sequence(name, count).await
    }
    async fn put_sequence(
        &self,
        name: &SequenceName,
        change: &SequenceChange,
        by: &AuditEntry,
    ) -> Result<Put<SequenceRecord>> {
        self.real.put_sequence(name, change, by).await
    }
    async fn sequence(&self, name: &SequenceName) -> Result<Option<SequenceRecord>> {
        self.real.sequence(name).await
    }
    async fn sequences(&self, after: Option<&SequenceName>, limit: u32) -> Result<Vec<SequenceRecord>> {
        self.real.sequences(after, limit).await
    }
}
