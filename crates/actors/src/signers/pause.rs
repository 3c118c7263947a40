//! Asks a ledger that does not answer again, for as long as a request has time.

use std::future::Future;
use std::time::{Duration, Instant};

use domain::signer::Refusal;
use ledger::jittered;

use crate::ledger_failure::refusal_of;

/// Between two tries at a ledger that does not answer, before jitter: doubled each time, from the first to
/// the second.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(20);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(640);

/// Asks the ledger again until it answers or the deadline has passed. For reads, which may be repeated.
pub(super) async fn until<T, F>(deadline: Instant, mut read: impl FnMut() -> F) -> Result<T, Refusal>
where
    F: Future<Output = ledger::Result<T>>,
{
    let mut pause = RETRY_PAUSE_MIN;
    loop {
        match read().await {
            Ok(answer) => return Ok(answer),
            Err(error) if error.is_retryable() && Instant::now() + pause < deadline => {
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(RETRY_PAUSE_MAX);
            }
            Err(error) => return Err(refusal_of(&error, Refusal::LedgerUnavailable, Refusal::Internal)),
        }
    }
}
