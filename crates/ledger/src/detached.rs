//! Calls that outlive their callers. A caller may be dropped at any await, but a connection must not be dropped in the
//! middle of a transaction. So each call runs in a task of its own, and the caller only waits.

use std::any::Any;
use std::future::Future;
use std::io;
use std::sync::Arc;
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

tokio::task_local! {
    /// What the calls of a task keep.
    static TURN: Arc<dyn Any + Send + Sync>;
}

/// Has each call of `calls` to the ledger keep `turn` until it has ended: one that took too long, or whose caller has left, may
/// go on for a while. `calls` is to make them in its own task.
pub async fn keeping<T>(turn: impl Any + Send + Sync, calls: impl Future<Output = T>) -> T {
    TURN.scope(Arc::new(turn), calls).await
}

/// Runs `call` to its end, and waits for it no longer than `limit`.
pub(crate) async fn run<T: Send + 'static>(
    effect: Effect,
    limit: Duration,
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let turn = TURN.try_with(Arc::clone).ok();
    let call = async move {
        let _turn = turn;
        call.await
    };
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
    use tokio::sync::{Semaphore, oneshot};

    use super::*;

    #[tokio::test]
    async fn a_call_that_is_late_keeps_its_turn_until_it_has_ended() {
        let turns = Arc::new(Semaphore::new(1));
        let turn = Arc::clone(&turns).try_acquire_owned().unwrap();
        let (end, ended) = oneshot::channel::<()>();
        let call = run(Effect::Reads, Duration::ZERO, async move {
            let _ = ended.await;
            Ok(())
        });
        let late = keeping(turn, call).await.unwrap_err();
        assert!(late.is_late(), "{late:?}");
        assert!(turns.try_acquire().is_err(), "the call goes on");
        end.send(()).unwrap();
        drop(turns.acquire().await.unwrap());
    }

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
