//! A result that is good for a while. One look at a time computes it, and requests wait for it. A look is a task of its own: it
//! goes on when the request that began it is cut off, and has its own time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

/// The last result, or why there was none, and when it was computed.
pub struct Recent<T, E = Infallible>(Arc<Mutex<Kept<T, E>>>);

struct Kept<T, E> {
    last: Option<(Instant, Result<T, E>)>,
    /// The last one that was no failure.
    known: Option<T>,
    /// The result of the look that is under way, once there is one.
    looking: Option<watch::Receiver<Found<T, E>>>,
}

type Found<T, E> = Option<Result<T, E>>;

/// A look that has begun. Dropped without a result, it is over, too, and the next request begins another one.
pub struct Look<T, E = Infallible> {
    kept: Arc<Mutex<Kept<T, E>>>,
    waiting: watch::Sender<Found<T, E>>,
}

impl<T, E> Default for Recent<T, E> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Kept { last: None, known: None, looking: None })))
    }
}

impl<T: Clone, E: Clone> Recent<T, E> {
    /// The last result if it is younger than `age_max`, or else a new one: that of the look under way, or of one that `begin`
    /// starts in a task of its own. A failure is kept as long: those who waited for it do not try again one after the other.
    /// `None` where that takes longer than `wait_max`, or the look ended without a result.
    pub async fn get(
        &self,
        age_max: Duration,
        wait_max: Duration,
        begin: impl FnOnce(Look<T, E>),
    ) -> Option<Result<T, E>> {
        let mut looking = match self.last_or_looking(age_max, begin) {
            Ok(last) => return Some(last),
            Err(looking) => looking,
        };
        match tokio::time::timeout(wait_max, looking.wait_for(Option::is_some)).await {
            Ok(Ok(found)) => found.clone(),
            _ => None,
        }
    }

    /// The same, but an older result where there is no new one, or it takes too long. `None` where there is no older one.
    pub async fn get_or_older(
        &self,
        age_max: Duration,
        wait_max: Duration,
        begin: impl FnOnce(Look<T, E>),
    ) -> Option<Result<T, E>> {
        let found = self.get(age_max, wait_max, begin).await;
        if matches!(found, Some(Ok(_))) {
            return found;
        }
        self.known().map(Ok).or(found)
    }

    /// The last result that was no failure, however old it is.
    pub fn known(&self) -> Option<T> {
        lock(&self.0).known.clone()
    }

    /// Whether the last result was a failure.
    pub fn has_failed(&self) -> bool {
        matches!(lock(&self.0).last, Some((_, Err(_))))
    }

    fn last_or_looking(
        &self,
        age_max: Duration,
        begin: impl FnOnce(Look<T, E>),
    ) -> Result<Result<T, E>, watch::Receiver<Found<T, E>>> {
        let mut kept = lock(&self.0);
        if let Some((at, found)) = &kept.last
            && at.elapsed() < age_max
        {
            return Ok(found.clone());
        }
        // The channel of a look that ended without a result is closed.
        let under_way = kept.looking.as_ref().filter(|looking| looking.has_changed().is_ok());
        if let Some(looking) = under_way {
            return Err(looking.clone());
        }
        let (waiting, looking) = watch::channel(None);
        kept.looking = Some(looking.clone());
        drop(kept);
        begin(Look { kept: Arc::clone(&self.0), waiting });
        Err(looking)
    }
}

impl<T: Clone, E: Clone> Look<T, E> {
    /// The result.
    pub fn end(self, found: Result<T, E>) {
        let mut kept = lock(&self.kept);
        if let Ok(found) = &found {
            kept.known = Some(found.clone());
        }
        kept.last = Some((Instant::now(), found.clone()));
        kept.looking = None;
        drop(kept);
        self.waiting.send_replace(Some(found));
    }
}

fn lock<T, E>(kept: &Mutex<Kept<T, E>>) -> MutexGuard<'_, Kept<T, E>> {
    kept.lock()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    type Looked = Look<u8, &'static str>;

    fn finds(found: Result<u8, &'static str>) -> impl FnOnce(Looked) {
        move |look| look.end(found)
    }

    fn nobody_looks(_: Looked) {
        panic!("another look is under way, or not needed");
    }

    #[tokio::test]
    async fn a_failure_is_kept_as_long_as_a_result() {
        let recent = Recent::<u8, &str>::default();
        assert_eq!(recent.get(HOUR, HOUR, finds(Err("away"))).await, Some(Err("away")));
        assert_eq!(recent.get(HOUR, HOUR, nobody_looks).await, Some(Err("away")), "it is not tried again");
        assert_eq!(recent.get(Duration::ZERO, HOUR, finds(Ok(1))).await, Some(Ok(1)));
        assert_eq!(recent.get(HOUR, HOUR, nobody_looks).await, Some(Ok(1)));
    }

    #[tokio::test]
    async fn an_older_result_does_where_there_is_no_new_one() {
        let recent = Recent::<u8, &str>::default();
        let fails = || finds(Err("away"));
        assert_eq!(recent.get_or_older(Duration::ZERO, HOUR, fails()).await, Some(Err("away")));
        assert_eq!(recent.get_or_older(Duration::ZERO, HOUR, finds(Ok(1))).await, Some(Ok(1)));
        assert!(!recent.has_failed());
        assert_eq!(recent.get_or_older(Duration::ZERO, HOUR, fails()).await, Some(Ok(1)));
        assert!(recent.has_failed(), "the last one has, although an older one did");
        assert_eq!(recent.get_or_older(HOUR, HOUR, nobody_looks).await, Some(Ok(1)), "kept, too");
    }

    #[tokio::test]
    async fn nobody_waits_longer_than_it_may_and_the_look_goes_on_for_the_others() {
        let recent = Recent::<u8, &str>::default();
        let mut under_way = None;
        let hasty = recent.get_or_older(HOUR, Duration::ZERO, |look| under_way = Some(look));
        assert_eq!(hasty.await, None, "its time is over");
        assert_eq!(recent.get_or_older(HOUR, Duration::ZERO, nobody_looks).await, None);
        let mut waits = pin!(recent.get(HOUR, HOUR, nobody_looks));
        assert!(waits.as_mut().now_or_never().is_none());
        under_way.take().unwrap().end(Ok(1));
        assert_eq!(waits.await, Some(Ok(1)));
        let hasty = recent.get_or_older(Duration::ZERO, Duration::ZERO, |look| under_way = Some(look));
        assert_eq!(hasty.await, Some(Ok(1)), "the older one");
        assert!(under_way.is_some(), "and a look for a new one has begun");
    }

    #[tokio::test]
    async fn a_request_that_is_cut_off_ends_no_look() {
        let recent = Recent::<u8, &str>::default();
        let mut under_way = None;
        {
            let mut cut_off = pin!(recent.get(HOUR, HOUR, |look| under_way = Some(look)));
            assert!(cut_off.as_mut().now_or_never().is_none(), "it has begun");
        }
        assert_eq!(recent.get(HOUR, Duration::ZERO, nobody_looks).await, None, "no second look");
        under_way.unwrap().end(Ok(1));
        assert_eq!(recent.get(HOUR, HOUR, nobody_looks).await, Some(Ok(1)));
    }

    #[tokio::test]
    async fn a_look_that_ends_without_a_result_is_over() {
        let recent = Recent::<u8, &str>::default();
        assert_eq!(recent.get(HOUR, HOUR, drop).await, None);
        assert_eq!(recent.get(HOUR, HOUR, finds(Ok(1))).await, Some(Ok(1)));
    }
}
