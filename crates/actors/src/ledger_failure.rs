//! What a failure of the ledger means to the caller of any kind of owner.

/// `unavailable` where the ledger did not answer in time; else `internal`, for a defect. Logs which.
pub(crate) fn refusal_of<R>(error: &ledger::Error, unavailable: R, internal: R) -> R {
    if error.is_retryable() {
        tracing::debug!(%error, "the ledger did not answer");
        return unavailable;
    }
    tracing::error!(%error, "the ledger failed");
    internal
}
