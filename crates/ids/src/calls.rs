//! Calls to sources: one that panics costs its own answer and nothing else.

use std::io;

use panic_guard::guarded;

/// The answer to the call. One that panics is answered as one whose outcome is unknown. `work` is for the log.
pub(crate) async fn answer_of<T>(
    work: &'static str,
    call: impl Future<Output = ledger::Result<T>>,
) -> ledger::Result<T> {
    let answered = guarded(work, call).await;
    answered.unwrap_or_else(|| Err(ledger::Error::unknown(io::Error::other("the call panicked"))))
}
