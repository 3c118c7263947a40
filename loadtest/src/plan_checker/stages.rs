//! What the nodes ran of a task, beside what its events say that began.

use std::collections::BTreeMap;

use serde_json::Value;

use super::executions::{Execution, Executions};
use super::replay::Starts;
use super::reported::Task;
use super::{AskedTask, Evidence, Findings};

/// How an attempt may end that does not count towards `max_attempts`, of which every stage here has one.
const UNCOUNTED: [&str; 4] = ["not_acknowledged", "rejected", "undeliverable", "node_lost_unsent"];

/// Compares both.
pub fn check(
    evidence: &Evidence,
    (task, asked): (&Task, &AskedTask),
    starts: &Starts,
    ran: &[Execution<'_>],
    executions: &Executions<'_>,
    findings: &mut Findings,
) {
    let mut wrong = |what: String| findings.broken.push(format!("task {}: {what}", task.id));
    let mut jobs: BTreeMap<(u64, u64), &str> = BTreeMap::new();
    let mut tokens: BTreeMap<u64, i64> = BTreeMap::new();
    let mut more = 0;
    for one in ran {
        let (stage, key) = (one.stage, (one.stage.run, one.stage.number));
        let Some(start) = starts.get(&key) else {
            wrong(format!("no event says that this began: {one:?}"));
            continue;
        };
        match jobs.insert(key, &one.run.job) {
            Some(other) if other != one.run.job => {
                wrong(format!("one run of a stage is two jobs: {other} and {one:?}"));
            }
            Some(_) => more += 1,
            None => {}
        }
        if stage.context != start.context {
            wrong(format!("the last checkpoint before it left {}, and the node got {one:?}", start.context));
        }
        if stage.config != asked.config || stage.tenant != asked.tenant {
            wrong(format!("it was made for {asked:?}, and the node got {one:?}"));
        }
        if *tokens.entry(stage.run).or_insert(stage.tenant_token) != stage.tenant_token {
            wrong(format!("a run has two tokens: {tokens:?} and {one:?}"));
        }
    }
    if !tokens.values().is_sorted_by(|earlier, later| earlier < later) {
        wrong(format!("the tokens of its runs do not grow: {tokens:?}"));
    }
    let held = starts.iter().filter(|(key, start)| start.unknown_at.is_some() && !jobs.contains_key(key));
    let held = held.count();
    // Those of the newest run are known where no node began them, too.
    for (stage, number) in task.stages.iter().zip(1..) {
        if let Some(job) = &stage.job {
            jobs.entry((task.run, number)).or_insert(job);
        }
    }
    for (key, job) in &jobs {
        let Some(start) = starts.get(key) else {
            wrong(format!("stage {key:?} has the job {job}, and no event says that it began"));
            continue;
        };
        let Some(record) = evidence.jobs.get(*job) else {
            wrong(format!("the job {job} of stage {key:?} is nowhere to be found"));
            continue;
        };
        check_job(*key, record, start.has_failed, &mut wrong);
        let has_begun = ran.iter().any(|one| one.run.job == *job);
        let dispatched = record["dispatched_at"].as_str().filter(|_| has_begun);
        if let (Some(unknown), Some(dispatched)) = (start.unknown_at.as_deref(), dispatched)
            && dispatched > unknown
        {
            wrong(format!("stage {key:?} was dispatched after it had become UNKNOWN at {unknown}: {record}"));
        }
        let newest = record["attempt"].as_u64().unwrap_or_default();
        if let Some(one) = ran.iter().find(|one| one.run.job == *job && one.run.attempt > newest) {
            wrong(format!("the newest attempt is {newest}, and there is {one:?}"));
        }
        let reported = &task.stages[key.1 as usize - 1];
        // One that did nothing, as somebody said, has no job any more.
        let is_reported =
            reported.job.as_deref() == Some(*job) || (reported.job.is_none() && reported.status == "PENDING");
        if key.0 == task.run && !is_reported {
            wrong(format!("stage {key:?} ran as the job {job}, and is told as {:?}", task.stages));
        }
    }
    findings.count("further attempts of one job", more);
    findings.count("stages that became UNKNOWN, and that no node ever began", held);
    executions.check_pairs(&task.id, evidence.grace.as_micros() as u64, findings);
}

/// The attempts of a stage's job: one that counts ends it.
fn check_job(key: (u64, u64), record: &Value, has_failed: bool, wrong: &mut impl FnMut(String)) {
    if record["state"] != "FINISHED" {
        wrong(format!("the job of stage {key:?} is not finished: {record}"));
    }
    if has_failed && record["outcome"] == "succeeded" {
        wrong(format!("stage {key:?} is FAILED, and its job succeeded: {record}"));
    }
    let attempts = record["attempts"].as_array().map_or(&[][..], Vec::as_slice);
    for attempt in attempts.iter().filter(|attempt| attempt["attempt"] != record["attempt"]) {
        if !UNCOUNTED.iter().any(|uncounted| attempt["state"] == *uncounted) {
            wrong(format!(
                "stage {key:?} may have one attempt that counts, and has another after it: {record}"
            ));
        }
    }
}
