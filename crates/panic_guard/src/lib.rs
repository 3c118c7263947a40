//! Keeps what an instance does all the time going after a defect: a panic costs one turn of it.
//!
//! What lives here: work that begins anew after a panic, and turns of work that goes on after one. What must never: a word about
//! failures that are no panics; these are answers like others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures_util::FutureExt;
use rand::RngExt;

/// The pause before work begins anew, before jitter.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Does the work until it returns. After a panic it begins anew, and what it remembers is made anew. `name` is for the log.
pub async fn again_after_panics<W: Future<Output = ()>>(name: &'static str, work: impl Fn() -> W) {
    while guarded(name, work()).await.is_none() {
        pause().await;
    }
}

/// The pause after a panic of work that its caller begins anew, as where something is to be remembered.
pub async fn pause() {
    let pause = AGAIN_AFTER.mul_f64(rand::rng().random_range(0.5..1.5));
    tokio::time::sleep(pause).await;
}

/// Takes one turn of work that goes on after a panic in it, for which the answer is `None`. For work that remembers nothing,
/// and for work that cannot begin anew, since what it receives comes to it alone.
pub async fn guarded<T>(name: &'static str, turn: impl Future<Output = T>) -> Option<T> {
    unless_interrupted(name, AssertUnwindSafe(turn).catch_unwind().await)
}

/// The same of a turn that waits for nothing.
pub fn guarded_call<T>(name: &'static str, turn: impl FnOnce() -> T) -> Option<T> {
    unless_interrupted(name, catch_unwind(AssertUnwindSafe(turn)))
}

fn unless_interrupted<T>(name: &'static str, done: std::thread::Result<T>) -> Option<T> {
    if done.is_err() {
        metrics::counter!("fencepost_internal_errors_total").increment(1);
        tracing::error!(work = name, "a defect interrupted work of this instance, which goes on");
    }
    done.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_begins_anew_after_a_panic_until_it_returns() {
        let begun = AtomicUsize::new(0);
        let work = || async { assert!(begun.fetch_add(1, Ordering::Relaxed) > 1, "made on purpose") };
        again_after_panics("a test", work).await;
        assert_eq!(begun.into_inner(), 3);
    }

    #[tokio::test]
    async fn a_turn_that_panics_is_answered_as_none() {
        assert_eq!(guarded("a test", async { 7 }).await, Some(7));
        let panics = async { assert!(std::hint::black_box(false), "made on purpose") };
        assert!(guarded("a test", panics).await.is_none());
        assert_eq!(guarded_call("a test", || 7), Some(7));
        let panics = || assert!(std::hint::black_box(false), "made on purpose");
        assert!(guarded_call("a test", panics).is_none());
    }
}
