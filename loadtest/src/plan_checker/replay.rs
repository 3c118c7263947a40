//! The events of a task, replayed: each must be allowed after those before it, and all of them must lead to what the task
//! is in the end.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::executions::Execution;
use super::reported::{Checkpoint, Decision, Event, Outcome, RetryFrom, Task};
use super::{AskedTask, Evidence, Findings};

/// What may become of a task without a retry.
const TASK_CHANGES: [(&str, &[&str]); 6] = [
    ("PENDING", &["RUNNING", "PAUSED", "INTERRUPTED", "CANCELLED"]),
    ("RUNNING", &["SUCCEEDED", "FAILED", "PAUSED", "INTERRUPTED", "CANCELLED"]),
    ("PAUSED", &["PENDING", "INTERRUPTED", "CANCELLED"]),
    ("FAILED", &["CANCELLED"]),
    ("INTERRUPTED", &["SUCCEEDED", "FAILED", "CANCELLED"]),
    // By the word that its last stage was done.
    ("CANCELLED", &["SUCCEEDED"]),
];
/// Of which tasks a retry opens the next run.
const RETRIED: [&str; 4] = ["FAILED", "INTERRUPTED", "PAUSED", "CANCELLED"];
/// What may become of a stage within a run. UNKNOWN becomes PENDING by a decision alone, and stays so when its job ends after the
/// task has lost its lock.
const STAGE_CHANGES: [(&str, &[&str]); 3] = [
    ("PENDING", &["RUNNING"]),
    ("RUNNING", &["SUCCEEDED", "FAILED", "UNKNOWN"]),
    ("UNKNOWN", &["SUCCEEDED", "FAILED", "PENDING", "UNKNOWN"]),
];

/// A stage that began in a run.
#[derive(Debug)]
pub struct Start {
    /// The context that its node must be given.
    pub context: Value,
    /// When it became UNKNOWN, if it did.
    pub unknown_at: Option<String>,
    /// Its job ended without success.
    pub has_failed: bool,
}

/// What begins in each run, by the run and the stage, counted from 1.
pub type Starts = BTreeMap<(u64, u64), Start>;

/// A task in the middle of its events.
pub struct Replay<'e> {
    evidence: &'e Evidence,
    reported: (&'e Task, &'e [Checkpoint]),
    asked: &'e AskedTask,
    ran: &'e [Execution<'e>],
    status: String,
    intent: String,
    run: u64,
    stages: Vec<String>,
    context: Value,
    /// How many checkpoints were written.
    versions: usize,
    starts: Starts,
    /// A stage that somebody has just resolved: the next event must say what became of it.
    resolved: Option<(u64, Outcome, Option<Value>)>,
    /// A stage was just completed: the next event must be its checkpoint.
    is_completing: bool,
    /// The context of that checkpoint, where it is known.
    left: Option<Value>,
    /// Decisions about retries that were carried out.
    retries: BTreeSet<u64>,
    counts: Vec<&'static str>,
    broken: Vec<String>,
}

impl<'e> Replay<'e> {
    /// Before the first event.
    pub fn new(
        evidence: &'e Evidence,
        (task, checkpoints): (&'e Task, &'e [Checkpoint]),
        asked: &'e AskedTask,
        ran: &'e [Execution<'e>],
    ) -> Self {
        Self {
            evidence,
            reported: (task, checkpoints),
            asked,
            ran,
            status: "PENDING".to_owned(),
            intent: "run".to_owned(),
            run: 1,
            stages: vec!["PENDING".to_owned(); asked.reruns.len()],
            context: json!({}),
            versions: 0,
            starts: Starts::new(),
            resolved: None,
            is_completing: false,
            left: None,
            retries: BTreeSet::new(),
            counts: Vec::new(),
            broken: Vec::new(),
        }
    }

    /// The next event.
    pub fn event(&mut self, event: &Event) {
        let run = self.run + u64::from(event.kind == "retried");
        if event.run.is_some_and(|reported| reported != run) {
            self.wrong(&format!("this is run {run}, not that of"), event);
        }
        if self.resolved.is_some() && event.kind != "stage" {
            self.wrong("a stage was resolved, and nothing became of it before", event);
        }
        if event.kind != "checkpoint" && std::mem::take(&mut self.is_completing) {
            self.wrong("a stage was completed, and no checkpoint was written before", event);
        }
        match event.kind.as_str() {
            "status" => self.status(event),
            "intent" => {
                if event.before.as_deref() != Some(&self.intent) {
                    self.wrong(&format!("its intent is {}, not that before", self.intent), event);
                }
                self.intent = event.after.clone().unwrap_or_default();
            }
            "stage" => self.stage(event),
            "checkpoint" => self.checkpoint(event),
            "resolved" => self.resolved(event),
            "retried" => self.retried(event),
            "lock_lost" => self.counts.push("locks lost"),
            "lock_broken" => self.counts.push("locks broken"),
            "over_time" => self.counts.push("runs that took too long"),
            _ => self.wrong("nobody knows this kind of event", event),
        }
    }

    fn status(&mut self, event: &Event) {
        let after = event.after.clone().unwrap_or_default();
        if event.before.as_deref() != Some(&self.status) {
            self.wrong(&format!("its status is {}, not that before", self.status), event);
        } else if !allows(&TASK_CHANGES, &self.status, &after) {
            self.wrong("this must not follow without a retry", event);
        }
        if after == "SUCCEEDED" && self.completed() < self.stages.len() {
            self.wrong(&format!("its stages are {:?} at", self.stages), event);
        }
        if after == "INTERRUPTED" {
            self.counts.push("tasks interrupted");
        }
        self.status = after;
    }

    fn stage(&mut self, event: &Event) {
        let stage = event.stage.unwrap_or_default();
        let (key, after) = ((self.run, stage), event.after.clone().unwrap_or_default());
        let Some(before) = self.stage_at(stage).cloned() else {
            return self.wrong("it has no such stage", event);
        };
        if event.before.as_deref() != Some(&before) {
            self.wrong(&format!("the stage is {before}, not that before"), event);
        } else if !allows(&STAGE_CHANGES, &before, &after) {
            self.wrong("this must not become of a stage", event);
        }
        let resolved = self.resolved.take();
        let follows =
            |outcome, to| resolved.as_ref().is_none_or(|(_, said, _)| *said != outcome || after == to);
        if !follows(Outcome::Done, "SUCCEEDED")
            || !follows(Outcome::NotDone, "PENDING")
            || resolved.as_ref().is_some_and(|(of, ..)| *of != stage)
        {
            self.wrong(&format!("after {resolved:?}"), event);
        }
        match after.as_str() {
            "RUNNING" => self.begins(event, key),
            "UNKNOWN" if before == "UNKNOWN" => self.counts.push("ends of jobs that counted for nothing"),
            "UNKNOWN" => {
                self.counts.push("stages that became UNKNOWN");
                if let Some(start) = self.starts.get_mut(&key) {
                    start.unknown_at = Some(event.at.clone());
                }
            }
            "FAILED" => {
                if let Some(start) = self.starts.get_mut(&key) {
                    start.has_failed = true;
                }
            }
            "PENDING" if resolved.is_none() => {
                self.wrong("nobody said that the stage did nothing, before", event);
            }
            "SUCCEEDED" => {
                self.is_completing = true;
                self.left = match resolved {
                    Some((_, _, context)) => Some(context.unwrap_or_else(|| self.context.clone())),
                    None => self.result(event, key, before == "UNKNOWN"),
                };
            }
            _ => {}
        }
        self.stages[stage as usize - 1] = after;
    }

    /// A stage begins: only the first one that is not completed, and only while its task runs.
    fn begins(&mut self, event: &Event, key: (u64, u64)) {
        if self.status != "RUNNING" || self.intent != "run" {
            self.wrong(
                &format!("a stage of a task that is {}, with the intent {}", self.status, self.intent),
                event,
            );
        }
        if key.1 as usize != self.completed() + 1 {
            self.wrong(&format!("{} stages are completed, and another begins", self.completed()), event);
        }
        let start = Start { context: self.context.clone(), unknown_at: None, has_failed: false };
        if self.starts.insert(key, start).is_some() {
            self.wrong("the stage began before in this run", event);
        }
    }

    /// The context that the result of a stage leaves.
    fn result(&mut self, event: &Event, key: (u64, u64), was_unknown: bool) -> Option<Value> {
        if was_unknown {
            self.counts.push("late results that were kept");
        }
        let of_stage = self.ran.iter().filter(|ran| (ran.stage.run, ran.stage.number) == key);
        let recorded = of_stage.filter(|ran| {
            let job = self.evidence.jobs.get(&ran.run.job);
            job.is_some_and(|job| job["attempt"] == ran.run.attempt && job["outcome"] == "succeeded")
        });
        let Some(output) = recorded.filter_map(Execution::output).next() else {
            self.wrong("no node wrote down the result that is recorded", event);
            return None;
        };
        Some(output.get("context").cloned().unwrap_or_else(|| self.context.clone()))
    }

    fn checkpoint(&mut self, event: &Event) {
        self.versions += 1;
        if !std::mem::take(&mut self.is_completing) {
            self.wrong("no stage was completed before this checkpoint:", event);
        }
        let left = self.left.take();
        let Some(found) = self.reported.1.get(self.versions - 1) else {
            return self.wrong("its checkpoint is not there:", event);
        };
        let (version, completed) = (self.versions as u64, self.completed());
        if (found.version, found.run) != (version, self.run) || found.completed_stages.len() != completed {
            self.wrong(
                &format!(
                    "version {version} of run {} must cover {completed} stages, and is {found:?}",
                    self.run
                ),
                event,
            );
        }
        if let Some(expected) = left
            && expected != found.context
        {
            self.wrong(
                &format!("the context that was left is {expected}, and the checkpoint is {found:?}"),
                event,
            );
        }
        self.context = found.context.clone();
    }

    fn resolved(&mut self, event: &Event) {
        let Some(Decision::Resolve { stage, outcome, context, .. }) = Decision::behind(event) else {
            return self.wrong("nobody decided this", event);
        };
        if self.stage_at(stage).map(String::as_str) != Some("UNKNOWN") {
            self.wrong(&format!("stage {stage} is not UNKNOWN"), event);
        }
        self.resolved = Some((stage, outcome, context));
    }

    fn retried(&mut self, event: &Event) {
        let Some(Decision::Retry { number, from, patch }) = Decision::behind(event) else {
            return self.wrong("nobody decided this", event);
        };
        if !self.retries.insert(number) {
            self.wrong("one decision was carried out twice", event);
        }
        if event.before.as_deref() != Some(&self.status) || !RETRIED.contains(&self.status.as_str()) {
            self.wrong(&format!("a retry of a task that is {}", self.status), event);
        }
        let unknown = self.stages.iter().position(|stage| stage == "UNKNOWN");
        if let Some(at) = unknown.filter(|at| !self.asked.reruns[*at]) {
            self.wrong(&format!("stage {} is UNKNOWN, and nobody resolved it", at + 1), event);
        }
        let completed = match from {
            RetryFrom::Checkpoint => self.completed(),
            RetryFrom::Start => {
                self.context = json!({});
                0
            }
            RetryFrom::CheckpointVersion(version) => {
                let written = &self.reported.1[..self.versions.min(self.reported.1.len())];
                let Some(found) = written.iter().find(|found| found.version == version) else {
                    return self.wrong("there is no such checkpoint", event);
                };
                self.context = found.context.clone();
                found.completed_stages.len()
            }
        };
        if let Some(Value::Object(patch)) = patch {
            patch.into_iter().for_each(|(name, value)| self.context[&name] = value);
        }
        for (at, stage) in self.stages.iter_mut().enumerate() {
            (if at < completed { "SKIPPED" } else { "PENDING" }).clone_into(stage);
        }
        self.counts.push("retries");
        self.run += 1;
        "run".clone_into(&mut self.intent);
        "PENDING".clone_into(&mut self.status);
    }

    /// After the last event: the task as it is shown must be the one that its events lead to.
    pub fn finish(mut self, findings: &mut Findings) -> Starts {
        let (task, checkpoints) = self.reported;
        // What follows from an event is written in its commit.
        if self.is_completing {
            self.broken
                .push(format!("a stage was completed at last, and no checkpoint was written: {task:?}"));
        }
        if let Some(resolved) = &self.resolved {
            self.broken.push(format!("{resolved:?} was decided at last, and nothing became of the stage"));
        }
        let stages: Vec<_> = task.stages.iter().map(|stage| &stage.status).collect();
        let leads_to = (&self.status, &self.intent, self.run, self.stages.iter().collect());
        if leads_to != (&task.status, &task.intent, task.run, stages) {
            self.broken.push(format!("its events lead to {leads_to:?}, and it is {task:?}"));
        }
        let versions = (checkpoints.len(), task.checkpoint_version as usize);
        if versions != (self.versions, self.versions) {
            let reported = self.versions;
            self.broken.push(format!(
                "its events tell of {reported} checkpoints, it has {versions:?}: {checkpoints:?}"
            ));
        }
        if task.lock.is_some() {
            self.broken.push(format!("it is over, and holds its tenant's lock: {task:?}"));
        }
        let says = |what: String| format!("task {}: {what}", task.id);
        findings.broken.extend(self.broken.into_iter().map(says));
        self.counts.iter().for_each(|what| findings.count(what, 1));
        findings.count("checkpoints", self.versions);
        findings.count("stages begun", self.starts.len());
        self.starts
    }

    /// The status of a stage, counted from 1.
    fn stage_at(&self, number: u64) -> Option<&String> {
        self.stages.get((number as usize).checked_sub(1)?)
    }

    /// How many stages are completed, in order.
    fn completed(&self) -> usize {
        self.stages.iter().take_while(|stage| matches!(stage.as_str(), "SUCCEEDED" | "SKIPPED")).count()
    }

    fn wrong(&mut self, what: &str, event: &Event) {
        self.broken.push(format!("{what}: {event:?}"));
    }
}

fn allows(changes: &[(&str, &[&str])], before: &str, after: &str) -> bool {
    changes.iter().any(|(from, to)| *from == before && to.contains(&after))
}
