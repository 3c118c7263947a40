//! What the owner of a plan uses of its lane: a share of the plan's lease, and the jobs that its stages are.
//!
//! The lane and the plan's owner write under one lease, each for itself. Where one of them acquires it anew, the other's
//! next write is fenced, and it goes on under the token that the lease has by then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bus::{Claim, Slot};
use domain::job::{CurrentAttempt, LiveJob, NewJob};
use domain::lane::{JobNotice, PlacementRequest};
use domain::{JobId, LaneId, PlanId, Timestamp, Token};
use ledger::{JobRecord, jittered};

use super::keeper::LaneKeeper;
use super::lane::reads::Loader;
use super::lease::{Adoption, LaneLease, Lost};
use super::messages::LaneCommand;
use super::older_attempts;
use super::waiters::Waiter;
use super::{Jobs, Refusal};

/// Between two tries to open a plan's lane, before jitter.
const OPEN_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The lane of a plan that is owned here.
pub(crate) struct PlanLane {
    jobs: Jobs,
    id: LaneId,
    lease: Arc<LaneLease>,
    /// Whether the lane was opened for this owner of the plan, and not for one before.
    was_opened: AtomicBool,
}

impl Jobs {
    /// Acquires the lease of a plan, if it is free or its owner is dead.
    ///
    /// # Errors
    /// What the ledger says.
    pub(crate) async fn plan_lane(&self, plan: PlanId) -> ledger::Result<Adoption<PlanLane>> {
        let id = LaneId::plan(plan);
        Ok(match self.keeper.share(&id).await? {
            Adoption::Taken((lease, token)) => {
                tracing::info!(resource = %id, owner = %self.me(), %token, "a plan is acquired");
                let was_opened = AtomicBool::new(false);
                Adoption::Taken(PlanLane { jobs: self.clone(), id, lease: Arc::new(lease), was_opened })
            }
            Adoption::Held(owner) => Adoption::Held(owner),
            Adoption::Missed => Adoption::Missed,
        })
    }

    /// Whether this incarnation takes on work.
    pub(crate) fn is_serving(&self) -> bool {
        self.callers.lifetime.takes_work()
    }

    /// Whether this incarnation is over, so that nothing is written any more.
    pub(crate) fn is_over(&self) -> bool {
        self.callers.lifetime.is_over()
    }

    /// The plans whose lanes have work and no live owner. Each is sent as long as that is so.
    pub(crate) fn left_plans(&self) -> tokio::sync::broadcast::Receiver<PlanId> {
        self.left_plans.subscribe()
    }

    /// The plans with stages whose results the ledger has not taken yet, each with the time since which that is so; of nodes
    /// whose sockets are here.
    pub(crate) fn late_results(&self) -> Vec<(PlanId, Instant)> {
        self.sockets.results.late.plans()
    }

    /// Waits for the end of a job from now on.
    pub(crate) fn wait_for_end(&self, job: JobId) -> Waiter {
        self.callers.waiters.wait_for(job)
    }

    /// Whether a job has ended and nothing of it runs any more, as has been waited for since `since`.
    pub(crate) async fn is_surely_over(&self, job: &JobRecord, since: Instant) -> bool {
        job.finished.is_some() && older_attempts::are_over(&self.scheduler, job, since).await
    }
}

impl PlanLane {
    /// The token under which the plan's owner writes.
    pub(crate) fn token(&self) -> Token {
        match &*self.lease {
            LaneLease::Adopted(adopted) => adopted.token(),
            LaneLease::Own(_) => unreachable!("a plan's lease is never an instance's"),
        }
    }

    /// Whether the lease surely lasts, by this process's own clock.
    pub(crate) fn is_current(&self) -> bool {
        self.lease.is_current()
    }

    /// With it a step leaves only while the lease surely lasts.
    pub(crate) fn link(&self) -> ledger::Link {
        ledger::Link::default().under(Arc::clone(&self.lease))
    }

    /// As [`LaneLease::acquire_anew`].
    pub(crate) async fn acquire_anew(&self, above: Token) -> Result<Option<Token>, Lost> {
        if self.keeper().lifetime.is_over() {
            return Err(Lost);
        }
        self.lease.acquire_anew(above).await
    }

    /// Has the lane served here. Jobs from before, if there can be any, are held first: the answer says whether they may be.
    /// To be called before the plan's owner adds jobs to the lane.
    pub(crate) async fn open(&self) -> Result<bool, Lost> {
        let (directory, was_opened) = (self.keeper().directory(), self.was_opened.load(Ordering::Acquire));
        if was_opened && self.is_open() {
            return Ok(false);
        }
        if !was_opened && directory.contains_key(&self.id) {
            // An owner that died of a defect has left it. It has read jobs that are not held, and would dispatch them.
            directory.until_none(|lane| *lane == self.id, || LaneCommand::Stop).await;
        }
        // Under the first token nobody else can have added jobs.
        let is_to_hold = self.token() > Token::FIRST;
        let loader = Loader {
            services: Arc::clone(&self.keeper().services),
            lane: self.id.clone(),
            lease: Arc::clone(&self.lease),
        };
        if is_to_hold {
            loader.hold(self.token()).await?;
        }
        // One that is about to end is waited for.
        while !self.is_open() {
            if self.keeper().lifetime.is_over() {
                return Err(Lost);
            }
            match self.keeper().adopt(&self.id).await {
                Ok(Adoption::Taken(())) => break,
                Ok(Adoption::Held(_)) => return Err(Lost),
                Ok(Adoption::Missed) => {}
                Err(error) => tracing::debug!(%error, lane = %self.id, "a plan's lane cannot be opened yet"),
            }
            tokio::time::sleep(jittered(OPEN_AGAIN_AFTER)).await;
        }
        self.was_opened.store(true, Ordering::Release);
        Ok(is_to_hold)
    }

    /// Whether the lane is served here. Until the plan's owner releases it, it ends only with its lease or of a defect.
    pub(crate) fn is_open(&self) -> bool {
        self.keeper().directory().get(&self.id).is_some()
    }

    /// Has slots reserved for jobs that the plan's owner is about to add under this token, where some are free and nobody
    /// waits for them: these jobs begin as they are added.
    pub(crate) async fn place(&self, token: Token, jobs: &mut [NewJob]) {
        let request = |job: &NewJob| PlacementRequest::first(job.id, &job.spec, token, None);
        let mut reserved = self.jobs.scheduler.place_now(jobs.iter().map(request).collect()).await;
        for job in jobs {
            job.placed = reserved.remove(&job.id).map(|slot| slot.placed);
        }
    }

    /// The jobs were surely not added: nobody needs their slots.
    pub(crate) fn give_back(&self, token: Token, jobs: &[NewJob]) {
        for (job, placed) in jobs.iter().filter_map(|job| Some((job.id, job.placed.as_ref()?))) {
            let slot = Slot { job, attempt: CurrentAttempt::FIRST.attempt };
            self.jobs.scheduler.take_back(&placed.node, Claim { slot, token }, None);
        }
    }

    /// The plan's owner has added these jobs under this token, at this time by the database's clock. This counts them, notifies
    /// their watchers and sends them to the lane.
    pub(crate) fn added(&self, token: Token, at: Timestamp, jobs: Vec<NewJob>) {
        for job in &jobs {
            let created = JobNotice::Created(job.id, job.spec.class());
            self.keeper().services.host.notify(&self.id, created);
        }
        if let Some(owner) = self.keeper().directory().get(&self.id) {
            let live = |job: NewJob| {
                let new = LiveJob { created_at: at, ..LiveJob::created(job.id, self.id.clone(), job.spec) };
                match job.placed {
                    Some(placed) => LiveJob {
                        newest: CurrentAttempt::FIRST,
                        placed: Some(placed),
                        dispatched_at: Some(at),
                        ..new
                    },
                    None => new,
                }
            };
            owner.send(LaneCommand::Added(token, jobs.into_iter().map(live).collect()));
        }
    }

    /// The plan's owner may have added these jobs: the lane is to look for them.
    pub(crate) fn written(&self, jobs: Vec<JobId>) {
        if let Some(owner) = self.keeper().directory().get(&self.id) {
            owner.send(LaneCommand::Written(jobs));
        }
    }

    /// Has a stage's job called off.
    ///
    /// # Errors
    /// As [`Jobs::cancel`].
    pub(crate) async fn cancel(&self, job: JobId) -> Result<(), Refusal> {
        self.jobs.cancel(job).await.map(drop)
    }

    /// The plan's owner has ended: the lane is not served for its sake any more, and with the last share the lease is given
    /// back.
    pub(crate) async fn release(&self) {
        self.stop();
        self.lease.release(None).await;
    }

    /// The plan's owner dies of a defect, or ends: the lane ends too, and its share of the lease keeps the plan from no other
    /// owner.
    pub(crate) fn stop(&self) {
        if let Some(owner) = self.keeper().directory().get(&self.id) {
            owner.send(LaneCommand::Stop);
        }
    }

    fn keeper(&self) -> &Arc<LaneKeeper> {
        &self.jobs.keeper
    }
}
