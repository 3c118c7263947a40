//! An unfinished job, as the ledger has it.

use domain::JobId;
use ledger::LiveJob;

/// `None` for a job that has finished, or is not there.
pub(super) async fn live_job(ledger: &ledger::Handle, id: JobId) -> ledger::Result<Option<LiveJob>> {
    Ok(ledger.live_jobs(&[id]).await?.pop())
}
