//! A result that is good for a while. One request computes it, and the others wait for it.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;

/// The last result, and when it was computed.
pub struct Recent<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> Recent<T> {
    /// The last result if it is younger than `age_max`, or else a new one. A failure is not kept.
    pub async fn get<E, F: Future<Output = Result<T, E>>>(
        &self,
        age_max: Duration,
        look: impl FnOnce() -> F,
    ) -> Result<T, E> {
        let mut last = self.0.lock().await;
        if let Some((at, found)) = &*last
            && at.elapsed() < age_max
        {
            return Ok(found.clone());
        }
        let found = look().await?;
        *last = Some((Instant::now(), found.clone()));
        Ok(found)
    }
}
