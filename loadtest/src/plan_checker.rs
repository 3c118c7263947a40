//! Verifies what became of plans: what was accepted, what the instances tell of it in the end, and what the nodes wrote in
//! their diaries must be one story. Pure.
//!
//! The events of a task are replayed. They must lead, by changes that are allowed, to what the task is in the end:
//!
//! - A stage begins only while its task is RUNNING, and only as the first one that is not completed. A completed stage
//!   begins again only in a run that was retried from the start, or from an earlier checkpoint. A stage that failed begins
//!   again in the next run. A stage that became UNKNOWN begins again only after somebody said that it did nothing, or in a
//!   retry of a stage that was declared `rerun`.
//! - Checkpoints have the versions 1 to n. Each follows the end of a stage, and no other, and covers one stage more than the one
//!   before it in its run; the first of a run covers one more than the point from which the run continues. Its context is what
//!   the node said, or what a person said.
//! - The statuses and intents of tasks and plans form chains, and a plan ends as its tasks did.
//!
//! The diaries must agree with the replay:
//!
//! - Each run of a stage is one job. A node runs nothing that no event began, and is given the context of the last
//!   checkpoint before, the configuration of the task, and the token of its run.
//! - Attempts of one job count as one execution. A second one is allowed only if the first one does not count towards
//!   `max_attempts`, and no two of them end with a result, but as for two that overlap.
//! - What was confirmed to a node is there: an output is the result of its job, a failure the end of its attempt.
//! - A job failed only if its node says so, or may have been lost with an attempt that counts.
//! - Two attempts of one task never overlap, with one exception (`Execution::may_be_ignored`): the node of the older one
//!   was out of reach when the newer one began, or for longer than the grace before. Nobody can tell such a node from one
//!   that has died, so the attempt was given up.
//! - A tenant's tokens grow from task to task in the order in which the stages begin on the nodes, but for a dispatch that
//!   lay in the socket of a node that stood still: fencing tokens exist for such a late stage.

mod executions;
mod failures;
mod replay;
pub mod reported;
mod stages;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde_json::Value;
use testkit::fault_nodes::Diary;

use crate::job_checker::{Diaries, check_committed, check_diary};
use executions::Executions;
use replay::Replay;
use reported::{Checkpoint, Decision, Event, Plan, Task};

/// What was asked of a task.
#[derive(Clone, Debug, Default)]
pub struct AskedTask {
    /// For which tenant.
    pub tenant: String,
    /// The tenant's configuration.
    pub config: Value,
    /// Of each stage, whether a retry may run it again while it is UNKNOWN.
    pub reruns: Vec<bool>,
}

/// A plan that was accepted, and what the instances show of it in the end.
#[derive(Clone, Debug, Default)]
pub struct PlanStory {
    /// What was asked, in order.
    pub asked: Vec<AskedTask>,
    /// The plan.
    pub plan: Plan,
    /// Its tasks with their checkpoints, in order.
    pub tasks: Vec<(Task, Vec<Checkpoint>)>,
    /// Its events.
    pub events: Vec<Event>,
}

/// All that is to be verified.
#[derive(Debug, Default)]
pub struct Evidence {
    /// What was accepted.
    pub plans: Vec<PlanStory>,
    /// The ids of all plans that an instance lists.
    pub listed: Vec<String>,
    /// Decisions that were answered 2xx, with the task that they are about.
    pub decided: Vec<(String, Decision)>,
    /// What the instances tell of the stages' jobs, by id: of those that nodes began, of those of the newest runs, and of all
    /// that failed, unless they do not know it.
    pub jobs: HashMap<String, Value>,
    /// What the nodes wrote.
    pub diaries: Vec<Diary>,
    /// How long a node may be away before its attempts are given up.
    pub grace: Duration,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Broken promises, in words. Empty is what we want.
    pub broken: Vec<String>,
    /// What happened, and how often.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Findings {
    fn count(&mut self, what: &'static str, times: usize) {
        *self.counts.entry(what).or_default() += times as u64;
    }
}

/// Checks all of it.
#[must_use]
pub fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::default();
    let executions = Executions::read(&evidence.diaries);
    check_accepted(evidence, &mut findings.broken);
    let mut known = BTreeSet::new();
    for story in &evidence.plans {
        check_plan(story, &mut findings.broken);
        for ((task, checkpoints), asked) in story.tasks.iter().zip(&story.asked) {
            known.insert(task.id.as_str());
            let ran = executions.of(&task.id);
            let mut replay = Replay::new(evidence, (task, checkpoints), asked, ran);
            let events = story.events.iter().filter(|event| event.task.as_ref() == Some(&task.id));
            events.for_each(|event| replay.event(event));
            let replayed = replay.finish(&mut findings);
            stages::check(evidence, (task, asked), &replayed, ran, &executions, &mut findings);
        }
    }
    for task in executions.tasks().filter(|task| !known.contains(task)) {
        let first = &executions.of(task)[0];
        let (node, number) = (first.node, first.stage.number);
        findings.broken.push(format!("task {task}: {node} ran stage {number} of it, and nobody made it"));
    }
    executions.check_tokens(&mut findings);
    // Attempts that were run beside others were looked at above.
    let diaries = Diaries::read(&evidence.diaries, &mut Vec::new());
    check_committed(&evidence.jobs, &diaries, &mut findings.broken);
    failures::check(evidence, &executions, &diaries, &mut findings.broken);
    evidence.diaries.iter().for_each(|diary| check_diary(diary, &mut findings.broken));
    findings
}

/// What was answered 2xx is there, once, and nothing else is.
fn check_accepted(evidence: &Evidence, broken: &mut Vec<String>) {
    let mut listed: BTreeSet<&String> = BTreeSet::new();
    for id in &evidence.listed {
        if !listed.insert(id) {
            broken.push(format!("plan {id}: it is listed twice"));
        }
    }
    for story in &evidence.plans {
        if !listed.remove(&story.plan.id) {
            broken.push(format!("plan {}: accepted, and not listed", story.plan.id));
        }
    }
    broken.extend(listed.into_iter().map(|id| format!("plan {id}: listed, and nobody made it")));
    let events = evidence.plans.iter().flat_map(|story| &story.events);
    let carried_out: BTreeSet<_> =
        events.filter_map(|event| Some((event.task.as_ref()?, Decision::behind(event)?.number()))).collect();
    let mut retried = BTreeSet::new();
    for (task, decision) in &evidence.decided {
        if matches!(decision, Decision::Retry { .. }) && !retried.insert((task, decision.number())) {
            broken.push(format!("task {task}: {decision:?} was answered 2xx twice"));
        }
        if !carried_out.contains(&(task, decision.number())) {
            broken.push(format!("task {task}: {decision:?} was answered 2xx, and no event tells of it"));
        }
    }
}

/// A plan's own events form a chain, and it ends as its tasks did.
fn check_plan(story: &PlanStory, broken: &mut Vec<String>) {
    let PlanStory { asked, plan, tasks, events } = story;
    let mut wrong = |what: String| broken.push(format!("plan {}: {what}", plan.id));
    if let Some((at, event)) = events.iter().enumerate().find(|(at, event)| event.seq != *at as u64 + 1) {
        wrong(format!("event {} has the number {}", at + 1, event.seq));
    }
    if !tasks.iter().map(|(task, _)| &task.tenant).eq(asked.iter().map(|asked| &asked.tenant)) {
        wrong(format!("it was made for {asked:?}, and its tasks are {tasks:?}"));
    }
    let (mut status, mut intent) = (None, "run");
    for event in events {
        let (before, after) = (event.before.as_deref(), event.after.as_deref());
        match (event.task.as_ref(), event.kind.as_str()) {
            (None, "status") => {
                if before != status {
                    wrong(format!("its status was {status:?} before event {event:?}"));
                }
                status = after;
            }
            (None, "intent") => {
                if before != Some(intent) {
                    wrong(format!("its intent was {intent} before event {event:?}"));
                }
                intent = after.unwrap_or_default();
            }
            // A plan that was paused or over goes on with the task that is retried.
            (Some(_), "retried") => intent = "run",
            _ => {}
        }
    }
    if status != Some(plan.status.as_str()) {
        wrong(format!("it is {}, and its events lead to {status:?}", plan.status));
    }
    let is_over = |task: &Task| matches!(task.status.as_str(), "SUCCEEDED" | "CANCELLED");
    let has_succeeded = tasks.iter().any(|(task, _)| task.status == "SUCCEEDED");
    let expected = if intent == "cancel" || !has_succeeded { "CANCELLED" } else { "SUCCEEDED" };
    if !tasks.iter().all(|(task, _)| is_over(task)) {
        wrong(format!("it has not ended: {} with {tasks:?}", plan.status));
    } else if plan.status != expected {
        wrong(format!("it is {}, and with these tasks it must be {expected}: {tasks:?}", plan.status));
    }
}
