//! Calls to sources, kept apart from who makes them: a defect in one costs its answer and nothing else.

use std::future::Future;
use std::io;

/// Runs the call in a task of its own. One that dies is a call whose outcome nobody knows.
pub(crate) async fn sheltered<T: Send + 'static>(
    call: impl Future<Output = ledger::Result<T>> + Send + 'static,
) -> ledger::Result<T> {
    tokio::spawn(call).await.unwrap_or_else(|died| Err(ledger::Error::unknown(io::Error::other(died))))
}
