//! What nodes ran of plans' stages, when they were out of reach, and what follows from both: which attempts overlap, and
//! the order of the tenants' tokens.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;

use serde_json::Value;
use testkit::fault_nodes::{Diary, Run, Said, Stage};

use super::Findings;
use crate::attempts::{self, Absences, Ran};

/// One attempt of a stage's job, as its node wrote it down.
#[derive(Debug)]
pub struct Execution<'d> {
    ran: Ran<'d>,
    /// What the node was told of the plan.
    pub stage: &'d Stage,
}

/// All attempts, and the absences of the nodes.
#[derive(Debug, Default)]
pub struct Executions<'d> {
    by_task: BTreeMap<&'d str, Vec<Execution<'d>>>,
    absences: HashMap<&'d str, Absences>,
}

impl<'d> Deref for Execution<'d> {
    type Target = Ran<'d>;

    fn deref(&self) -> &Ran<'d> {
        &self.ran
    }
}

impl<'d> Execution<'d> {
    /// The output, if it ended with one.
    pub fn output(&self) -> Option<&'d Value> {
        match self.ended {
            Some((_, Some(Said::Output(output)))) => Some(output),
            _ => None,
        }
    }

    /// Whether it ran to its end, well or not.
    pub fn is_complete(&self) -> bool {
        matches!(self.ended, Some((_, Some(Said::Output(_) | Said::Failure))))
    }

    /// Which of the task's attempts it is: a later one was dispatched later.
    fn place(&self) -> (u64, u64, u64) {
        (self.stage.run, self.stage.number, self.run.attempt)
    }

    /// Whether a newer attempt may have begun although this one had not ended. Its node was out of reach:
    ///
    /// - when the newer one began, or until a moment before, in which the node had yet to hear that it lost the attempt; or
    /// - for the grace or longer since the attempt began. It was given up then, and the node learns that when it is back;
    /// - or the dispatch lay in the node's socket while the node stood still, and the attempt began after the newer one.
    ///
    /// A node that was within reach all the time lists what it runs, so that nothing may begin beside it.
    fn may_be_ignored(&self, newer: &Self, absences: &Absences, grace_us: u64) -> bool {
        if self.began_us > newer.began_us {
            return absences.has_just_woken(self.began_us);
        }
        absences.was_out(self.began_us, newer.began_us, grace_us)
    }
}

impl<'d> Executions<'d> {
    /// Reads the diaries.
    pub fn read(diaries: &'d [Diary]) -> Self {
        let mut all = Self::default();
        for diary in diaries {
            for ran in attempts::read(diary) {
                if let Some(stage) = ran.stage {
                    all.by_task.entry(stage.task.as_str()).or_default().push(Execution { ran, stage });
                }
            }
            all.absences.insert(diary.node.as_str(), Absences::read(diary));
        }
        all.by_task.values_mut().for_each(|executions| executions.sort_by_key(|one| one.began_us));
        all
    }

    /// The tasks of which nodes ran something.
    pub fn tasks(&self) -> impl Iterator<Item = &'d str> {
        self.by_task.keys().copied()
    }

    /// What nodes ran of a task, by when it began.
    pub fn of(&self, task: &str) -> &[Execution<'d>] {
        self.by_task.get(task).map_or(&[], Vec::as_slice)
    }

    /// Whether an attempt may have been lost with its node before its job was finished, in microseconds since 1970, if it is
    /// known when. Where no node has begun it, its dispatch may have been lost on the way.
    pub fn may_be_lost(&self, run: &Run, finished_us: Option<u64>) -> bool {
        self.attempts(run).all(|one| self.absences[one.node].may_lose(one, finished_us))
    }

    /// Whether a node has begun an attempt.
    pub fn has_begun(&self, run: &Run) -> bool {
        self.attempts(run).next().is_some()
    }

    fn attempts(&self, run: &Run) -> impl Iterator<Item = &Execution<'d>> {
        self.by_task.values().flatten().filter(move |one| one.run == run)
    }

    /// Looks at each pair of attempts of a task, the older one first.
    pub fn check_pairs(&self, task: &str, grace_us: u64, findings: &mut Findings) {
        let executions = self.of(task);
        for (at, one) in executions.iter().enumerate() {
            for other in &executions[at + 1..] {
                let (older, newer) = if one.place() < other.place() { (one, other) } else { (other, one) };
                let is_one_job = older.run.job == newer.run.job;
                let what = if older.overlaps(newer) {
                    "two attempts at once"
                } else if is_one_job && older.is_complete() && newer.is_complete() {
                    "one stage is run to its end twice, and nobody asked for it"
                } else {
                    continue;
                };
                if older.may_be_ignored(newer, &self.absences[older.node], grace_us) {
                    findings
                        .count("attempts that ran beside a newer one, on nodes that were out of reach", 1);
                } else {
                    findings.broken.push(format!("task {task}: {what}: {older:?} and {newer:?}"));
                }
            }
        }
    }

    /// The tokens of a tenant grow from task to task.
    pub fn check_tokens(&self, findings: &mut Findings) {
        let mut tenants: BTreeMap<&str, Vec<&Execution<'d>>> = BTreeMap::new();
        for execution in self.by_task.values().flatten() {
            tenants.entry(&execution.stage.tenant).or_default().push(execution);
        }
        for (tenant, mut executions) in tenants {
            executions.sort_by_key(|one| one.began_us);
            let mut highest: Option<&Execution<'d>> = None;
            for one in executions {
                let Some(before) = highest else {
                    highest = Some(one);
                    continue;
                };
                let (token, other) = (one.stage.tenant_token, before.stage.tenant_token);
                if token > other {
                    highest = Some(one);
                } else if token == other && one.stage.task != before.stage.task {
                    let what = "two tasks of it have one token";
                    findings.broken.push(format!("tenant {tenant}: {what}: {before:?} and {one:?}"));
                } else if token < other && one.stage.task != before.stage.task {
                    if self.absences[one.node].has_just_woken(one.began_us) {
                        findings.count("stages that began late, with a token that counts no more", 1);
                        continue;
                    }
                    let what = "two tasks of it at once: a lower token after a higher one";
                    findings.broken.push(format!("tenant {tenant}: {what}: {before:?} and {one:?}"));
                }
            }
        }
    }
}
