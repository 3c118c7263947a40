//! The jobs of a plan's stages, as the plan's owner follows them: it waits for their ends, waits for the last of those that were
//! called off, and calls jobs off.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use actix::Context;
use domain::JobId;
use domain::plan::Command;
use ledger::jittered;

use super::{OwnerStage, PlanActor, RELOAD_EVERY, spawn};
use crate::jobs::Refusal;
use crate::plans::pending::Pending;
use crate::plans::watching;

/// The jobs that are followed.
#[derive(Default)]
pub(super) struct StageJobs {
    /// Those whose end is, or was, waited for.
    ends: HashMap<JobId, End>,
    /// Jobs of earlier attempts, of which the last is waited for.
    older: HashSet<JobId>,
    /// Those that are called off.
    called_off: HashMap<JobId, CallingOff>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Awaited,
    /// It was told.
    Told,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CallingOff {
    UnderWay,
    /// The job has ended. Counts until the state is read again.
    Done,
}

impl StageJobs {
    /// Whether the end of this job was not waited for before. From now on it is.
    fn begins_to_await(&mut self, job: JobId) -> bool {
        match self.ends.entry(job) {
            Entry::Vacant(end) => {
                end.insert(End::Awaited);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// The state was read. The end of what was called off before may be wanted by now: what was written may be more than this
    /// owner heard of.
    pub(super) fn state_was_read(&mut self) {
        self.called_off.retain(|_, how_far| *how_far == CallingOff::UnderWay);
    }
}

impl PlanActor {
    /// Waits for the ends of all jobs that the plan waits for. Of those that are new nobody has heard before.
    pub(super) fn watch(&mut self, are_new: bool, context: &mut Context<Self>) {
        let state = Arc::clone(&self.state);
        // A task may wait for the same job again: when somebody cancels it, and when somebody resolves its stage.
        let awaited: HashSet<_> = state.tasks.iter().filter_map(|task| task.waits_for).collect();
        self.stage_jobs.older.retain(|job| awaited.contains(job));
        for task in &state.tasks {
            let id = task.id;
            if let Some((_, job)) = task.in_flight()
                && self.stage_jobs.begins_to_await(job)
            {
                let (inner, waiter) = (Arc::clone(&self.inner), self.inner.jobs.wait_for_end(job));
                let ended = async move { watching::stage_ended(&inner, job, waiter, are_new).await };
                spawn(context, ended, move |ended, actor, context| {
                    actor.stage_jobs.ends.insert(job, End::Told);
                    if let Some(end) = ended {
                        actor.queue.push_back(Pending::own(Command::StageEnded { task: id, job, end }));
                    }
                    actor.advance(context);
                });
            }
            if let Some(job) = task.waits_for
                && self.stage_jobs.older.insert(job)
            {
                let inner = Arc::clone(&self.inner);
                let over = async move { watching::over(&inner, job).await };
                spawn(context, over, move |(), actor, context| {
                    actor.queue.push_back(Pending::own(Command::OlderEnded { task: id, job }));
                    actor.advance(context);
                });
            }
        }
        self.call_off_due(context);
    }

    /// Has jobs called off that a step says, also such as have ended: the task may not have wanted their end when it came.
    pub(super) fn call_off(&mut self, jobs: Vec<JobId>, context: &mut Context<Self>) {
        for job in jobs {
            let before = self.stage_jobs.called_off.insert(job, CallingOff::UnderWay);
            if before != Some(CallingOff::UnderWay) {
                self.try_to_call_off(job, context);
            }
        }
    }

    /// The same for what the state says and no try has done yet: the one who called them off may have died before it was done,
    /// or lost its lease for a moment.
    pub(super) fn call_off_due(&mut self, context: &mut Context<Self>) {
        let due =
            self.state.tasks.iter().flat_map(|task| task.called_off().into_iter().chain(task.waits_for));
        let due = due.filter(|job| !self.stage_jobs.called_off.contains_key(job)).collect();
        self.call_off(due, context);
    }

    /// Tries until the job has ended or the lease is lost.
    fn try_to_call_off(&mut self, job: JobId, context: &mut Context<Self>) {
        let lane = Arc::clone(&self.lane);
        let tried = async move {
            loop {
                match lane.cancel(job).await {
                    Ok(()) | Err(Refusal::UnknownJob) => return true,
                    Err(_) if !lane.is_current() => return false,
                    Err(error) => {
                        tracing::debug!(%error, %job, "the job of a stage could not be called off yet")
                    }
                }
                tokio::time::sleep(jittered(RELOAD_EVERY)).await;
            }
        };
        spawn(context, tried, move |has_ended, actor, context| {
            let jobs = &mut actor.stage_jobs;
            if !has_ended || matches!(actor.stage, OwnerStage::Releasing | OwnerStage::Released) {
                jobs.called_off.remove(&job);
                return;
            }
            jobs.called_off.insert(job, CallingOff::Done);
            if jobs.ends.get(&job) == Some(&End::Told) {
                jobs.ends.remove(&job);
                actor.watch(false, context);
            }
        });
    }
}
