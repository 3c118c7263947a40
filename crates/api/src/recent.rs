//! What was found a moment ago, and is good for a while. One request looks, the others wait for what it finds.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;

/// The last finding, and when it was found.
pub struct Recent<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> Recent<T> {
    /// What was found less than `age_max` ago, or else what is found now. A look that fails is not kept.
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
