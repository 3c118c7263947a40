//! An unfinished job, as the ledger has it.

use domain::JobId;
use domain::job::CurrentAttempt;
use ledger::LiveJob;

/// `None` for a job that has finished, or is not there.
pub(super) async fn live_job(ledger: &ledger::Handle, id: JobId) -> ledger::Result<Option<LiveJob>> {
    let Some(job) = ledger.job(id).await? else { return Ok(None) };
    if job.finished.is_some() {
        return Ok(None);
    }
    let newest =
        CurrentAttempt { state: job.state, attempt: job.attempt, charged_attempts: job.charged_attempts };
    Ok(Some(LiveJob {
        id: job.id,
        lane: job.lane,
        seq: job.seq,
        client_ref: job.client_ref,
        spec: job.spec,
        newest,
        placed: job.placed,
        retry_of: job.retry_of,
        created_at: job.created_at,
        due_at: job.due_at,
        dispatched_at: job.dispatched_at,
        running_at: job.running_at,
    }))
}
