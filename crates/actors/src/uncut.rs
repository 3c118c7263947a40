//! Work that goes on when its caller is dropped, as the handler of a request is when its client closes the connection.

use std::future::Future;

use tracing::Instrument as _;

/// Runs `work` to its end, and waits for it. A panic in it is the caller's.
pub async fn uncut<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work.in_current_span()).await {
        Ok(done) => done,
        Err(gone) if gone.is_panic() => std::panic::resume_unwind(gone.into_panic()),
        // The runtime ends, and this task with it.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_is_done_although_nobody_waits_for_it_any_more() {
        let ((go, gone), (done, is_done)) = (oneshot::channel::<()>(), oneshot::channel());
        let work = uncut(async move {
            let _ = gone.await;
            done.send(()).unwrap();
        });
        assert!(tokio::time::timeout(Duration::ZERO, work).await.is_err(), "it waits");
        go.send(()).unwrap();
        is_done.await.unwrap();
    }
}
