//! A result that is good for a while. One request computes it, and the others wait for it.

use std::convert::Infallible;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard};

/// The last result, or why there was none, and when it was computed.
pub struct Recent<T, E = Infallible> {
    last: Mutex<Last<T, E>>,
    /// The last one that was no failure.
    known: std::sync::Mutex<Option<T>>,
}

type Last<T, E> = Option<(Instant, Result<T, E>)>;

impl<T, E> Default for Recent<T, E> {
    fn default() -> Self {
        Self { last: Mutex::new(None), known: std::sync::Mutex::new(None) }
    }
}

impl<T: Clone, E: Clone> Recent<T, E> {
    /// The last result if it is younger than `age_max`, or else a new one. A failure is kept as long: those who waited for it do
    /// not try again one after the other.
    ///
    /// # Errors
    /// What `look` says, or said last.
    pub async fn get<F: Future<Output = Result<T, E>>>(
        &self,
        age_max: Duration,
        look: impl FnOnce() -> F,
    ) -> Result<T, E> {
        let last = self.last.lock().await;
        self.found(last, age_max, look).await
    }

    /// The same for a caller that waits for the others no longer than `wait_max`, and takes an older result where there is no new
    /// one. `None` where the others take longer and there is no older one.
    pub async fn get_or_older<F: Future<Output = Result<T, E>>>(
        &self,
        age_max: Duration,
        wait_max: Duration,
        look: impl FnOnce() -> F,
    ) -> Option<Result<T, E>> {
        let found = match tokio::time::timeout(wait_max, self.last.lock()).await {
            Ok(last) => Some(self.found(last, age_max, look).await),
            Err(_) => None,
        };
        if matches!(found, Some(Ok(_))) {
            return found;
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.map(Ok).or(found)
    }

    async fn found<F: Future<Output = Result<T, E>>>(
        &self,
        mut last: MutexGuard<'_, Last<T, E>>,
        age_max: Duration,
        look: impl FnOnce() -> F,
    ) -> Result<T, E> {
        if let Some((at, found)) = &*last
            && at.elapsed() < age_max
        {
            return found.clone();
        }
        let found = look().await;
        if let Ok(found) = &found {
            *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(found.clone());
        }
        *last = Some((Instant::now(), found.clone()));
        found
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    type Found = Result<u8, &'static str>;

    #[tokio::test]
    async fn a_failure_is_kept_as_long_as_a_result() {
        let recent = Recent::<u8, &str>::default();
        assert_eq!(recent.get(HOUR, || async { Err("away") }).await, Err("away"));
        assert_eq!(recent.get(HOUR, || async { Ok(1) }).await, Err("away"), "it is not tried again");
        assert_eq!(recent.get(Duration::ZERO, || async { Ok(1) }).await, Ok(1));
        assert_eq!(recent.get(HOUR, || async { Ok(2) }).await, Ok(1));
    }

    #[tokio::test]
    async fn an_older_result_does_where_there_is_no_new_one() {
        let recent = Recent::<u8, &str>::default();
        let fails = || async { Err("away") };
        assert_eq!(recent.get_or_older(Duration::ZERO, HOUR, fails).await, Some(Err("away")));
        assert_eq!(recent.get_or_older(Duration::ZERO, HOUR, || async { Ok(1) }).await, Some(Ok(1)));
        assert_eq!(recent.get_or_older(Duration::ZERO, HOUR, fails).await, Some(Ok(1)));
        assert_eq!(recent.get_or_older(HOUR, HOUR, || async { Ok(2) }).await, Some(Ok(1)), "kept, too");
    }

    #[tokio::test]
    async fn nobody_waits_for_the_others_longer_than_it_may() {
        let recent = Recent::<u8, &str>::default();
        let mut slow = pin!(recent.get(HOUR, pending::<Found>));
        assert!(slow.as_mut().now_or_never().is_none(), "it has begun");
        assert_eq!(recent.get_or_older(HOUR, Duration::ZERO, || async { Ok(1) }).await, None);
        let recent = Recent::<u8, &str>::default();
        assert_eq!(recent.get(HOUR, || async { Ok(1) }).await, Ok(1));
        let mut slow = pin!(recent.get(Duration::ZERO, pending::<Found>));
        assert!(slow.as_mut().now_or_never().is_none(), "it has begun");
        assert_eq!(recent.get_or_older(HOUR, Duration::ZERO, || async { Ok(2) }).await, Some(Ok(1)));
    }
}
