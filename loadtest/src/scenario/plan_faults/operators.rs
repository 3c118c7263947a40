//! Operators at work: they make plans, steer them, and decide about tasks that need somebody, at random instances.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use testkit::fault_nodes::{Said, Wrote};

use super::asked::{Asked, Made, MadeTask};
use super::operator_state::OperatorState;
use crate::plan_checker::reported::{Decision, Outcome, Plan, RetryFrom, Task};

/// Retries of one task that are asked for at once.
const BURST: usize = 50;
/// Runs of a task that is brought to its end, before it is given up.
const RUNS_MAX: u64 = 15;
/// How long a plan that is brought to its end may take before all of it is cancelled.
const ENDS_BY_ITSELF: Duration = Duration::from_secs(60);
/// Between two looks at a plan that is brought to its end.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What plans are like, and how many there are.
#[derive(Clone, Copy, Debug)]
pub(in crate::scenario) struct Habits {
    /// Plans that may be open at once.
    pub(in crate::scenario) at_once: usize,
    /// Tasks of a plan.
    pub(in crate::scenario) tasks: usize,
    /// Stages of a task.
    pub(in crate::scenario) stages: usize,
    /// Mean pause between two deeds of an operator.
    pub(in crate::scenario) pause: Duration,
    /// A label of the nodes that run the stages, if not all nodes do.
    pub(in crate::scenario) label: Option<&'static str>,
}

/// One operator.
pub(super) struct Operator {
    shared: Arc<OperatorState>,
    dice: StdRng,
    habits: Habits,
}

impl Operator {
    pub(super) fn new(shared: &Arc<OperatorState>, seed: u64, habits: Habits) -> Self {
        Self { shared: Arc::clone(shared), dice: StdRng::seed_from_u64(seed), habits }
    }

    /// Works until `stop` is set.
    ///
    /// # Errors
    /// No instance answers.
    pub(super) async fn run(mut self, stop: Arc<AtomicBool>) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let open = self.shared.memory().open.choose(&mut self.dice).cloned();
            let has_room = self.shared.memory().open.len() < self.habits.at_once;
            match open {
                Some(made) if !has_room || self.dice.random() => self.tend(&made).await?,
                _ => self.make().await?,
            }
            tokio::time::sleep(self.habits.pause.mul_f64(self.dice.random_range(0.0..2.0))).await;
        }
        Ok(())
    }

    /// Makes a plan, once, however often it must be asked for.
    async fn make(&mut self) -> Result<()> {
        let Habits { tasks, stages, label, .. } = self.habits;
        let asked = Asked::draw(self.dice.next_u64(), tasks, stages, label);
        let key = format!("plan-{}", self.shared.next_number());
        let begun = Instant::now();
        let reply = loop {
            match self.shared.ask(&mut self.dice, "make", "/v1/plans", &asked.body, Some(&key)).await {
                Some(reply) => break reply,
                None if begun.elapsed() > ENDS_BY_ITSELF => anyhow::bail!("no instance makes a plan"),
                None => tokio::time::sleep(Duration::from_millis(self.dice.random_range(20..300))).await,
            }
        };
        let Some(id) = reply.body["id"].as_str().filter(|_| reply.status == 201) else {
            // A tenant of it is locked: it was not made.
            return Ok(());
        };
        let tasks: Vec<Task> = self.shared.list(&mut self.dice, &format!("/v1/plans/{id}/tasks")).await?;
        let made = |(task, (asked, mended)): (Task, _)| MadeTask { id: task.id, asked, mended };
        let tasks = tasks.into_iter().zip(asked.tasks).map(made).collect();
        let made = Arc::new(Made { id: id.to_owned(), tasks });
        let mut memory = self.shared.memory();
        memory.made.push(Arc::clone(&made));
        memory.open.push(made);
        Ok(())
    }

    /// Looks at a plan, and does what it needs, or what comes to mind.
    async fn tend(&mut self, made: &Arc<Made>) -> Result<()> {
        let plan: Plan = self.shared.show(&mut self.dice, &format!("/v1/plans/{}", made.id)).await?;
        match (plan.status.as_str(), self.dice.random_range(0..100)) {
            ("SUCCEEDED" | "CANCELLED", dice) => {
                self.shared.memory().open.retain(|open| open.id != made.id);
                if dice < 10 {
                    self.tend_task(made, &["CANCELLED"]).await?;
                }
            }
            ("CREATED", 0..90) => {
                self.steer(made, "start").await;
            }
            ("PAUSED", 0..60) => {
                self.steer(made, "resume").await;
            }
            ("PAUSED", _) => {
                self.tend_task(made, &["PAUSED"]).await?;
            }
            ("ATTENTION", 0..80) => {
                let waits_for_people = self.tend_task(made, &["FAILED", "INTERRUPTED"]).await?;
                if !waits_for_people {
                    self.steer(made, "resume").await;
                }
            }
            ("RUNNING" | "ATTENTION", 80..88) => {
                self.tend_task(made, &["PENDING", "RUNNING"]).await?;
            }
            ("RUNNING", 88..95) => {
                self.steer(made, "pause").await;
            }
            (_, 95..97) => {
                self.steer(made, "cancel").await;
            }
            _ => {}
        }
        Ok(())
    }

    /// The status of the answer.
    async fn steer(&mut self, made: &Made, verb: &str) -> Option<u16> {
        let (path, reason) = (format!("/v1/plans/{}/{verb}", made.id), json!({ "reason": "an operator" }));
        let reply = self.shared.ask(&mut self.dice, &format!("{verb} a plan"), &path, &reason, None).await;
        reply.map(|reply| reply.status)
    }

    async fn steer_task(&mut self, task: &Task, verb: &str) {
        let (path, reason) = (format!("/v1/tasks/{}/{verb}", task.id), json!({ "reason": "an operator" }));
        self.shared.ask(&mut self.dice, &format!("{verb} a task"), &path, &reason, None).await;
    }

    /// Does something about one of the tasks with such a status. Whether there is one.
    async fn tend_task(&mut self, made: &Arc<Made>, statuses: &[&str]) -> Result<bool> {
        let tasks: Vec<Task> =
            self.shared.list(&mut self.dice, &format!("/v1/plans/{}/tasks", made.id)).await?;
        let such = tasks.iter().zip(&made.tasks).filter(|(task, _)| statuses.contains(&task.status.as_str()));
        let Some((task, made)) = such.collect::<Vec<_>>().choose(&mut self.dice).copied() else {
            return Ok(false);
        };
        match (task.status.as_str(), self.dice.random_range(0..100)) {
            ("PENDING" | "RUNNING", 0..60) => self.steer_task(task, "pause").await,
            ("PAUSED", 0..60) => self.steer_task(task, "resume").await,
            ("PENDING" | "RUNNING" | "PAUSED" | "FAILED" | "INTERRUPTED", 60..66) => {
                self.steer_task(task, "cancel").await;
            }
            ("FAILED" | "INTERRUPTED", 66..72) => self.unlock(task).await?,
            _ => self.decide(task, made).await,
        }
        Ok(true)
    }

    /// Has a task run again, after a word about its UNKNOWN stage.
    async fn decide(&mut self, task: &Task, made: &MadeTask) {
        if let Some(stage) = task.stages.iter().position(|stage| stage.status == "UNKNOWN") {
            let may_rerun = made.asked.reruns[stage];
            let is_hasty = self.dice.random_ratio(1, 5);
            if !is_hasty && (!may_rerun || self.dice.random_ratio(1, 3)) {
                self.resolve(task, stage, may_rerun).await;
            }
            // A retry without a word is refused, unless the stage may be run again.
            if !is_hasty && !may_rerun {
                return;
            }
        }
        let from = match self.dice.random_range(0..10) {
            0 => RetryFrom::Start,
            1 if task.checkpoint_version > 0 => {
                RetryFrom::CheckpointVersion(self.dice.random_range(1..=task.checkpoint_version))
            }
            _ => RetryFrom::Checkpoint,
        };
        let is_burst = self.dice.random_ratio(1, 12);
        self.retry(task, made, from, if is_burst { BURST } else { 1 }).await;
    }

    /// Asks for one retry, so many times at once. Of many, at most one may be carried out.
    async fn retry(&mut self, task: &Task, made: &MadeTask, from: RetryFrom, times: usize) {
        let number = self.shared.next_number();
        let patch = self.dice.random_ratio(1, 4).then(|| json!({ "patched": number }));
        let decision = Decision::Retry { number, from, patch: patch.clone() };
        let mut body = json!({ "from": from, "reason": decision.reason() });
        if let Some(patch) = patch {
            body["context_patch"] = patch;
        }
        if times > 1 || self.dice.random() {
            body["expect"] = json!({ "run": task.run, "checkpoint_version": task.checkpoint_version });
        }
        let mut path = format!("/v1/tasks/{}/retry", task.id);
        match &made.mended {
            Some(mended) if task.status == "FAILED" && self.dice.random_ratio(4, 5) => {
                body["stages"] = mended.clone();
            }
            // By tenant its newest task is meant, which may have no such checkpoint.
            _ if matches!(from, RetryFrom::CheckpointVersion(_)) => {}
            _ if self.dice.random() => path = format!("/v1/tenants/{}/retry", task.tenant),
            _ => {}
        }
        let what = if times > 1 { "retry many times" } else { "retry" };
        let asked = (0..times).map(|_| {
            let mut dice = StdRng::from_rng(&mut self.dice);
            let (shared, path, body) = (&self.shared, &path, &body);
            async move { shared.ask(&mut dice, what, path, body, None).await }
        });
        for reply in join_all(asked.collect::<Vec<_>>()).await.into_iter().flatten() {
            if reply.status == 202 {
                // By tenant, it may be another task.
                let task = reply.body["id"].as_str().unwrap_or_default().to_owned();
                self.shared.memory().decided.push((task, decision.clone()));
            }
        }
    }

    /// Says what a stage did: what the nodes' diaries tell, or anything where it may be run again.
    async fn resolve(&mut self, task: &Task, stage: usize, may_rerun: bool) {
        let number = self.shared.next_number();
        let (outcome, context) = if may_rerun {
            match self.dice.random() {
                true => (Outcome::Done, Some(json!({ "by_hand": number }))),
                false => (Outcome::NotDone, None),
            }
        } else {
            match self.output(task, stage) {
                Some(output) => (Outcome::Done, output.get("context").cloned()),
                // It may still run: its node gets `cancel`.
                None => (Outcome::NotDone, None),
            }
        };
        let decision =
            Decision::Resolve { number, stage: stage as u64 + 1, outcome, context: context.clone() };
        let mut body = json!({ "outcome": outcome, "reason": decision.reason() });
        if let Some(context) = context {
            body["context"] = context;
        }
        let path = format!("/v1/tasks/{}/stages/{}/resolve", task.id, stage + 1);
        let reply = self.shared.ask(&mut self.dice, "resolve", &path, &body, None).await;
        if reply.is_some_and(|reply| reply.status == 200) {
            self.shared.memory().decided.push((task.id.clone(), decision));
        }
    }

    /// The output of a stage's job, if a node wrote one down.
    fn output(&self, task: &Task, stage: usize) -> Option<Value> {
        let lines = self.shared.nodes.lines_of(task.stages[stage].job.as_deref()?);
        lines.into_iter().find_map(|(_, line)| match line.wrote {
            Wrote::Ended { said: Said::Output(output), .. } => Some(output),
            _ => None,
        })
    }

    /// Breaks the lock that a task holds.
    async fn unlock(&mut self, task: &Task) -> Result<()> {
        let shown: Task = self.shared.show(&mut self.dice, &format!("/v1/tasks/{}", task.id)).await?;
        let Some(lock) = shown.lock else { return Ok(()) };
        let decision = Decision::Unlock { number: self.shared.next_number(), token: lock.token };
        let body = json!({ "token": lock.token, "reason": decision.reason() });
        let path = format!("/v1/tenants/{}/unlock", task.tenant);
        let reply = self.shared.ask(&mut self.dice, "unlock", &path, &body, None).await;
        if reply.is_some_and(|reply| reply.status == 200) {
            self.shared.memory().decided.push((task.id.clone(), decision));
        }
        Ok(())
    }

    /// Does what a plan needs until it has ended, for so long at most. Whether it has.
    ///
    /// # Errors
    /// No instance answers.
    pub(super) async fn bring_to_end(&mut self, made: &Arc<Made>, limit: Duration) -> Result<bool> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            let plan: Plan = self.shared.show(&mut self.dice, &format!("/v1/plans/{}", made.id)).await?;
            match plan.status.as_str() {
                "SUCCEEDED" | "CANCELLED" => return Ok(true),
                _ if begun.elapsed() > ENDS_BY_ITSELF => {
                    self.steer(made, "cancel").await;
                }
                "CREATED" => {
                    // A tenant may be locked for as long as its operators please.
                    let started = self.steer(made, "start").await;
                    if started == Some(409) {
                        self.steer(made, "cancel").await;
                    }
                }
                "PAUSED" => {
                    self.steer(made, "resume").await;
                }
                "ATTENTION" => self.bring_tasks_to_end(made).await?,
                _ => {}
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(false)
    }

    async fn bring_tasks_to_end(&mut self, made: &Arc<Made>) -> Result<()> {
        let tasks: Vec<Task> =
            self.shared.list(&mut self.dice, &format!("/v1/plans/{}/tasks", made.id)).await?;
        let mut waits_for_people = false;
        for (task, made) in tasks.iter().zip(&made.tasks) {
            match task.status.as_str() {
                "FAILED" | "INTERRUPTED" if task.run >= RUNS_MAX => {
                    waits_for_people = true;
                    self.steer_task(task, "cancel").await;
                }
                "FAILED" | "INTERRUPTED" => {
                    waits_for_people = true;
                    self.decide(task, made).await;
                }
                "PAUSED" => self.steer_task(task, "resume").await,
                _ => {}
            }
        }
        if !waits_for_people {
            self.steer(made, "resume").await;
        }
        Ok(())
    }
}
