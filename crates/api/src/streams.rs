//! The places for event streams: how many an instance serves at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wire::Code;

use crate::limits::{ALL_STREAMS_MAX, JOB_STREAMS_MAX, PLAN_STREAMS_MAX};
use crate::refusal::Refusal;

/// The streams that an instance serves.
pub struct Streams {
    of_jobs: Arc<Semaphore>,
    of_plans: Arc<Semaphore>,
    of_all: Arc<Semaphore>,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            of_jobs: Arc::new(Semaphore::new(JOB_STREAMS_MAX)),
            of_plans: Arc::new(Semaphore::new(PLAN_STREAMS_MAX)),
            of_all: Arc::new(Semaphore::new(ALL_STREAMS_MAX)),
        }
    }
}

impl Streams {
    /// A place for a stream of one job.
    pub fn of_job(&self) -> Result<Place, Refusal> {
        Place::taken(&self.of_jobs, "job", JOB_STREAMS_MAX)
    }

    /// A place for a stream of one plan.
    pub fn of_plan(&self) -> Result<Place, Refusal> {
        Place::taken(&self.of_plans, "plan", PLAN_STREAMS_MAX)
    }

    /// A place for a stream of what happens.
    pub fn of_all(&self) -> Result<Place, Refusal> {
        Place::taken(&self.of_all, "all", ALL_STREAMS_MAX)
    }
}

/// The place of one stream; free again when it is dropped.
pub struct Place {
    of: &'static str,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    fn taken(places: &Arc<Semaphore>, of: &'static str, max: usize) -> Result<Self, Refusal> {
        let permit = Arc::clone(places).try_acquire_owned().map_err(|_| {
            Refusal::new(Code::Overloaded, format!("this instance serves {max} such streams; ask another"))
        })?;
        metrics::gauge!("fencepost_event_streams", "of" => of).increment(1);
        Ok(Self { of, _permit: permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        metrics::gauge!("fencepost_event_streams", "of" => self.of).decrement(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_free_again() {
        let streams = Streams::default();
        let all: Vec<_> = (0..ALL_STREAMS_MAX).map(|_| streams.of_all().unwrap()).collect();
        assert_eq!(streams.of_all().err().map(|refusal| refusal.code()), Some(Code::Overloaded));
        assert!(
            streams.of_job().is_ok() && streams.of_plan().is_ok(),
            "those of jobs and plans have their own"
        );
        drop(all);
        assert!(streams.of_all().is_ok());
    }
}
