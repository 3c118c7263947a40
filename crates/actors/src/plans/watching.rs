//! Waiting for the jobs of stages: for the end of one that is under way, and for the last of one that was called off. What the
//! ledger has of ends when an owner begins is read here too.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use domain::JobId;
use domain::job::{Outcome, State};
use domain::plan::{Command, PlanState, StageEnd};
use futures_util::future::join_all;
use ledger::{JobRecord, jittered};

use super::{Inner, stage};
use crate::jobs::{self, Waiter};

/// How long one wait for a job's end lasts, before jitter. After each wait the whole job is read, with one statement for each
/// stage.
const WAIT: Duration = Duration::from_secs(3_600);
/// How long the end of a new job is waited for before the ledger is asked, before jitter.
const NOTICE_WAIT: Duration = Duration::from_secs(1);
/// Between two looks at a job that was called off, or after a failed one, before jitter.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The longest time between two looks, which grows.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(4);
/// Jobs of a plan that a new owner reads at the same time.
const READS_MAX: usize = 8;

/// The job once it has ended, however long that takes. `None` where there is no such job any more.
pub(super) async fn ended(inner: &Inner, job: JobId) -> Option<JobRecord> {
    loop {
        match inner.jobs.wait(job, jittered(WAIT)).await {
            Ok(record) if record.state == State::Finished => return Some(record),
            Ok(_) => {}
            Err(jobs::Refusal::UnknownJob) => return None,
            Err(error) => {
                tracing::debug!(%error, %job, "the job of a stage could not be read");
                tokio::time::sleep(jittered(LOOK_EVERY)).await;
            }
        }
    }
}

/// How a stage's job has ended, however long that takes. `None` where there is no such job any more. Of a job that is new
/// nobody has heard before: its end comes to those who wait, and is looked for in the ledger only in case that was lost.
pub(super) async fn stage_ended(inner: &Inner, job: JobId, waiter: Waiter, is_new: bool) -> Option<StageEnd> {
    let since = Instant::now();
    let recorded = async {
        if is_new {
            let _is_late = tokio::time::timeout(jittered(NOTICE_WAIT), waiter.finished()).await;
        }
        ended(inner, job).await
    };
    let (end, outcome, took) = tokio::select! {
        biased;
        output = waiter.output() => (stage::completed(&output), Outcome::Succeeded, since.elapsed()),
        record = recorded => {
            let record = record?;
            let finished = record.finished.as_ref()?;
            let took = Duration::from_millis(finished.finished_at.ms_since(record.created_at));
            (end_of(&record)?, finished.outcome, took)
        }
    };
    metrics::histogram!("fencepost_stage_seconds", "outcome" => outcome.as_str()).record(took);
    Some(end)
}

/// How the stage of a job has ended; `None` if the job has not.
fn end_of(job: &JobRecord) -> Option<StageEnd> {
    let finished = job.finished.as_ref()?;
    Some(stage::end(finished, job.attempts.last().map(|last| last.ended)))
}

/// The ends of stages that the ledger has by now, of those whose ends the plan waits for.
pub(super) async fn ended_already(inner: &Inner, plan: &PlanState) -> ledger::Result<Vec<Command>> {
    let in_flight = plan.tasks.iter().filter_map(|task| Some((task.id, task.in_flight()?.1)));
    let mut in_flight: Vec<_> = in_flight.collect();
    let jobs: Vec<JobId> = in_flight.iter().map(|(_, job)| *job).collect();
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let under_way = inner.ledger.attempts_of(&jobs).await?;
    let under_way: HashSet<_> = under_way.into_iter().map(|(job, _)| job).collect();
    in_flight.retain(|(_, job)| !under_way.contains(job));
    let mut ends = Vec::new();
    for some in in_flight.chunks(READS_MAX) {
        let found = join_all(some.iter().map(|(_, job)| inner.ledger.job(*job))).await;
        for (&(task, job), record) in some.iter().zip(found) {
            if let Some(end) = record?.as_ref().and_then(end_of) {
                ends.push(Command::StageEnded { task, job, end });
            }
        }
    }
    Ok(ends)
}

/// Returns once the job has ended and nothing of it runs any more; of one that was deleted meanwhile, as it was seen last.
pub(super) async fn over(inner: &Inner, job: JobId) {
    let mut pause = LOOK_EVERY;
    let Some(mut record) = ended(inner, job).await else { return };
    let since = Instant::now();
    while !inner.jobs.is_surely_over(&record, since).await {
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(LOOK_EVERY_MAX);
        if let Ok(read) = inner.jobs.get(job).await {
            record = read;
        }
    }
}
