//! Runs calls to sources in tasks of their own, so that a call that panics costs its own answer and nothing else.

use std::future::Future;
use std::io;

/// Runs the call in a task of its own. A call that panics is answered as one whose outcome is unknown.
pub(crate) async fn guarded<T: Send + 'static>(
    call: impl Future<Output = ledger::Result<T>> + Send + 'static,
) -> ledger::Result<T> {
    tokio::spawn(call).await.unwrap_or_else(|died| Err(ledger::Error::unknown(io::Error::other(died))))
}
