//! Runs calls to sources so that a call that panics costs its own answer and nothing else.

use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

/// Runs the call in a task of its own. A call that panics is answered as one whose outcome is unknown.
pub(crate) async fn guarded<T: Send + 'static>(
    call: impl Future<Output = ledger::Result<T>> + Send + 'static,
) -> ledger::Result<T> {
    tokio::spawn(call).await.unwrap_or_else(|died| Err(ledger::Error::unknown(io::Error::other(died))))
}

/// Runs a call of the keeper of the worker number within its task, with which it ends. A call that panics is answered as one
/// whose outcome is unknown.
pub(crate) async fn caught<T>(call: impl Future<Output = ledger::Result<T>>) -> ledger::Result<T> {
    AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|_| {
        metrics::counter!("fencepost_internal_errors_total").increment(1);
        let work = "the worker number of snowflakes";
        tracing::error!(work, "a defect interrupted work of this instance, which goes on");
        Err(ledger::Error::unknown(io::Error::other("the call panicked")))
    })
}
