//! Calls that outlive their callers. A caller may be dropped at any await, but a connection must not be dropped in the
//! middle of a transaction. So each call runs in a task of its own, and the caller only waits.

use std::future::Future;
use std::io;
use std::time::Duration;

use crate::{Error, Result};

/// What a call may leave behind when its answer does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    Reads,
    /// Perhaps its write.
    Writes,
}

/// Runs `call` to its end, and waits for it no longer than `limit`.
pub(crate) async fn run<T: Send + 'static>(
    effect: Effect,
    limit: Duration,
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let source = match tokio::time::timeout(limit, tokio::spawn(call)).await {
        Ok(Ok(answer)) => return answer,
        Ok(Err(gone)) if gone.is_panic() => std::panic::resume_unwind(gone.into_panic()),
        Ok(Err(gone)) => io::Error::other(gone),
        Err(elapsed) => io::Error::new(io::ErrorKind::TimedOut, elapsed),
    };
    let source = sqlx::Error::Io(source);
    Err(match effect {
        Effect::Reads => Error::unavailable(source),
        Effect::Writes => Error::unknown(source),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_without_an_answer_in_time_is_late_and_one_that_was_cut_off_is_not() {
        for effect in [Effect::Reads, Effect::Writes] {
            let late = run(effect, Duration::ZERO, std::future::pending::<Result<()>>()).await.unwrap_err();
            assert!(late.is_late() && late.is_retryable(), "{late:?}");
            let cut = async { Err::<(), _>(Error::unavailable(io::Error::from(io::ErrorKind::BrokenPipe))) };
            let cut = run(effect, Duration::MAX, cut).await.unwrap_err();
            assert!(!cut.is_late(), "{cut:?}");
        }
        assert!(!Error::unavailable(sqlx::Error::PoolTimedOut).is_late(), "nothing was sent");
    }
}
