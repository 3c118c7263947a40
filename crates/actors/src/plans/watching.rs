//! Waiting for the jobs of stages: for the end of one that is under way, and for the last of one that was called off.

use std::time::{Duration, Instant};

use domain::JobId;
use domain::job::State;
use ledger::JobRecord;

use super::Inner;
use crate::jobs;
use crate::pause::jittered;

/// How long one wait for a job's end lasts, before the next.
const WAIT: Duration = Duration::from_secs(30);
/// Between two looks at a job that was called off, or after a failed one, before jitter.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The longest time between two looks, which grows.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(4);

/// The job once it has ended, however long that takes. `None` where there is no such job any more.
pub(super) async fn ended(inner: &Inner, job: JobId) -> Option<JobRecord> {
    loop {
        match inner.jobs.wait(job, WAIT).await {
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

/// Returns once the job has ended and nothing of it runs any more.
pub(super) async fn over(inner: &Inner, job: JobId) {
    let mut pause = LOOK_EVERY;
    while let Some(mut record) = ended(inner, job).await {
        let since = Instant::now();
        loop {
            if inner.jobs.is_surely_over(&record, since).await {
                return;
            }
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(LOOK_EVERY_MAX);
            match inner.jobs.get(job).await {
                Ok(read) => record = read,
                Err(_) => break,
            }
        }
    }
}
