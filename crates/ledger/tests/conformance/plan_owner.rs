//! Plans as they are made, and the owner of one, as its actor would be.

use std::sync::Arc;

use domain::job::{Due, NewJob, OnRecovery, Spec};
use domain::plan::{
    Command, OnFailure, PlanSpec, PlanState, StageEnd, StageSpec, StageStart, Step, TaskSpec, TaskState,
};
use domain::{InstanceId, JobId, PlanId, Resource, TaskId, TenantId, Timestamp, Token};
use ledger::{Acquisition, Author, NewPlan, PlanBatch, PlanVerdict};

use crate::bench::{Bench, LONG_MS, owner};
use crate::shop::job_made;

/// For how long a step takes locks.
pub const HOUR_MS: u64 = 3_600_000;

pub fn plan_id(n: u128) -> PlanId {
    PlanId::from_u128(n)
}

pub fn task_id(plan: u128, at: u128) -> TaskId {
    TaskId::from_u128(plan * 1_000 + at)
}

/// A plan for these tenants, with two stages each.
pub fn plan(n: u128, tenants: &[&str]) -> PlanState {
    let stages = [StageSpec::new("first", "{\"run\":1}"), StageSpec::new("second", "[2]")];
    let task = |(at, tenant): (usize, &&str)| {
        let spec = TaskSpec {
            name: Some("a task".into()),
            config: Some("{\"size\":3}".into()),
            ..TaskSpec::new(TenantId::parse(tenant).unwrap(), stages.clone())
        };
        TaskState::new(task_id(n, at as u128), Arc::new(spec))
    };
    let spec =
        PlanSpec { name: Some("a plan".into()), on_failure: OnFailure::Continue, ..PlanSpec::default() };
    PlanState::new(plan_id(n), Arc::new(spec), tenants.iter().enumerate().map(task).collect())
}

/// A plan that is made without being started.
pub fn new(plan: &PlanState) -> NewPlan {
    NewPlan {
        plan: Arc::new(plan.clone()),
        take: Vec::new(),
        lock_ms: HOUR_MS,
        events: Vec::new(),
        key: None,
        author: Author::default(),
        audit: None,
    }
}

/// A plan that is started in the commit that makes it.
pub fn new_started(plan: &PlanState) -> NewPlan {
    let step = plan.apply(&Command::Start, Timestamp::from_micros(5), &mut || unreachable!()).unwrap();
    let plan = Arc::new(PlanState { version: 1, ..step.next });
    NewPlan { take: step.writes.take, events: step.writes.events, ..new(&plan) }
}

/// The owner of a plan, as its actor would be.
pub struct PlanOwner<'b> {
    bench: &'b Bench,
    pub me: InstanceId,
    pub token: Token,
    pub state: PlanState,
    /// The number of the job that was made last.
    pub jobs: u64,
    /// How long ago the jobs of its stages were made, by their ids.
    pub days_ago: u64,
}

impl<'b> PlanOwner<'b> {
    /// Makes a plan and takes its lease.
    pub async fn of(bench: &'b Bench, plan: PlanState) -> Self {
        bench.ledger.create_plan(new(&plan)).await.unwrap();
        Self::acquire(bench, "a", plan.id).await
    }

    pub async fn acquire(bench: &'b Bench, me: &str, plan: PlanId) -> Self {
        let me = owner(me);
        let acquired = bench.ledger.acquire(&Resource::plan(plan), &me, LONG_MS).await.unwrap();
        let Acquisition::Acquired { token, .. } = acquired else { panic!("{acquired:?}") };
        let state = bench.ledger.load_plan(plan).await.unwrap().unwrap();
        let jobs = u64::try_from(plan.as_u128()).unwrap() * 100;
        Self { bench, me, token, state, jobs, days_ago: 0 }
    }

    /// The same owner with what it knows now, whose next jobs are numbered behind this one.
    pub fn twin(&self, jobs: u64) -> Self {
        Self { me: self.me.clone(), state: self.state.clone(), jobs, ..*self }
    }

    pub fn decide(&mut self, command: &Command) -> (Step, PlanBatch) {
        let (jobs, days_ago) = (&mut self.jobs, self.days_ago);
        let mut new_job = || {
            *jobs += 1;
            job_made(*jobs, days_ago)
        };
        let step = self.state.apply(command, Timestamp::from_micros(5), &mut new_job).unwrap();
        let batch = self.batch_of(&step);
        (step, batch)
    }

    pub fn batch_of(&self, step: &Step) -> PlanBatch {
        let [principal, request_id, reason] = ["ops", "r-1", "because"].map(|text| Some(Arc::from(text)));
        let job = |start: &StageStart| {
            let task = step.next.tasks[start.task].id;
            let stage = Some(format!(r#"{{"plan":"{}","task":"{task}","run":1}}"#, step.next.id).into());
            let (id, spec) = (start.job, Spec { on_recovery: OnRecovery::Hold, stage, ..Spec::new("{}") });
            NewJob { id, spec, seq: None, client_ref: None, due: Due::Now, retry: None, placed: None }
        };
        PlanBatch {
            owner: self.me.clone(),
            token: self.token,
            next: Arc::new(step.next.clone()),
            jobs: step.writes.starts.iter().map(job).collect(),
            writes: step.writes.clone(),
            lock_ms: HOUR_MS,
            key: None,
            author: Author { principal, request_id, reason, traceparent: None },
            audit: None,
        }
    }

    pub async fn try_step(&mut self, command: &Command) -> PlanVerdict {
        let (step, batch) = self.decide(command);
        let verdict = self.bench.ledger.commit_plan(batch).await.unwrap();
        if let PlanVerdict::Written { locks, .. } = &verdict {
            self.state = step.next;
            self.state.locked(locks.iter().copied());
        }
        verdict
    }

    pub async fn step(&mut self, command: &Command) {
        let verdict = self.try_step(command).await;
        assert!(matches!(verdict, PlanVerdict::Written { .. }), "{command:?}: {verdict:?}");
    }

    /// Started, with the first stages of all tasks under way.
    pub async fn started(bench: &'b Bench, plan: PlanState) -> Self {
        let mut owner = Self::of(bench, plan).await;
        owner.step(&Command::Start).await;
        owner.step(&Command::Advance).await;
        owner
    }

    pub fn in_flight(&self, at: usize) -> JobId {
        self.state.tasks[at].in_flight().unwrap().1
    }

    pub async fn complete(&mut self, at: usize, context: Option<&str>) {
        let end = StageEnd::Completed(context.map(Arc::from));
        let command = Command::StageEnded { task: self.state.tasks[at].id, job: self.in_flight(at), end };
        self.step(&command).await;
    }

    /// What another instance would load.
    pub async fn is_as_loaded(&self) {
        assert_eq!(self.bench.ledger.load_plan(self.state.id).await.unwrap(), Some(self.state.clone()));
    }
}
