//! Jobs: how to submit, show, await, cancel and retry them.

use std::borrow::Cow;
use std::time::Duration;

use tokio::time::Instant;
use wire::List;
use wire::jobs::{
    BatchJob, BatchResult, Job, JobAccepted, JobRequest, JobState, JobsAnswer, JobsRequest, Outcome,
    RetryAnswer, RetryRequest,
};

use crate::observe::Page;
use crate::transport::{Call, key_or_new};
use crate::{Client, Result};

/// How long one request may wait for a job's end. Well below the time for one attempt of a call.
const WAIT_MAX: Duration = Duration::from_secs(8);
/// The pause between two such requests, so that answers that come at once cause no busy loop.
const WAIT_PAUSE: Duration = Duration::from_millis(100);

/// Which jobs to list.
#[derive(Clone, Debug, Default)]
pub struct JobQuery {
    /// In this state only.
    pub state: Option<JobState>,
    /// Only with this outcome.
    pub outcome: Option<Outcome>,
    /// Of this session only.
    pub session: Option<String>,
    /// Of this tenant only.
    pub tenant: Option<String>,
    /// Of this pool only.
    pub pool: Option<String>,
    /// Of this kind only.
    pub kind: Option<String>,
    /// Only those that are dead (`true`): they failed or timed out, and were neither retried nor dismissed. Or only the
    /// others (`false`).
    pub dead: Option<bool>,
    /// Only those that [`Jobs::retry_many`] with a filter may select: they have ended, were not retried, and are neither stages
    /// of plans nor of closed sessions. Daemons before 0.2.0 refuse it as `invalid`.
    pub retriable: bool,
    /// Which part.
    pub page: Page,
}

/// The calls about jobs.
#[derive(Clone, Copy, Debug)]
pub struct Jobs<'a>(&'a Client);

impl Client {
    /// The calls about jobs.
    #[must_use]
    pub const fn jobs(&self) -> Jobs<'_> {
        Jobs(self)
    }
}

/// The key of a request: the given one, or none where each job's own name is its key, or a new one.
fn key_of(key: Option<&str>, is_named: bool) -> Option<Cow<'_, str>> {
    (key.is_some() || !is_named).then(|| key_or_new(key))
}

impl Jobs<'_> {
    pub(crate) const fn client(&self) -> &Client {
        self.0
    }

    /// Submits a job; when this returns it is durable. Under one `key` (1 to 128 visible ASCII characters) the
    /// same request is the same job for 24 hours, on any instance, also when it has ended: nothing runs then. Without it
    /// the job's `client_ref` in its session is its key; of a job without one the library makes a key for this call, so
    /// that its own retries are harmless.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn submit(&self, job: &JobRequest, key: Option<&str>) -> Result<JobAccepted> {
        let key = key_of(key, job.is_named());
        self.0.call(&Call::post(&["v1", "jobs"], job).under(key.as_deref())).await
    }

    /// Submits 1 to 1,000 jobs. Returns an answer for each, in their order. The one `key` is for the whole
    /// request, and then no `client_ref` is a key; without it each job's is, if all jobs have one.
    ///
    /// # Errors
    /// [`crate::Error`] if the whole request failed; the refusal of one job is an item of the answer. A job that is
    /// refused for now may be accepted by the same request again, and one that is refused as `ledger_unavailable` or
    /// `internal` may be accepted already: only the same request under the same `key` tells. The key that the library
    /// makes is forgotten.
    pub async fn submit_batch(&self, jobs: Vec<JobRequest>, key: Option<&str>) -> Result<Vec<BatchResult>> {
        let asked = jobs.len();
        let key = key_of(key, jobs.iter().all(JobRequest::is_named));
        let request = JobsRequest { jobs: jobs.into_iter().map(|job| BatchJob(Ok(job))).collect() };
        let path = ["v1", "jobs", "batch"];
        let answer: JobsAnswer = self.0.call(&Call::post(&path, &request).under(key.as_deref())).await?;
        if answer.results.len() != asked {
            return Err(self.0.strange(format!("{} answers to {asked} jobs", answer.results.len())));
        }
        Ok(answer.results)
    }

    /// One job, as it is now.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a job that does not exist, or was purged.
    pub async fn get(&self, id: &str) -> Result<Job> {
        self.0.call(&Call::get(&["v1", "jobs", id], &[])).await
    }

    /// One job, as soon as it is FINISHED, or as it is when the time is over. Failures in between are retried
    /// as for any call, also beyond the time: an absence of the daemon that outlasts [`crate::Retry::total_max`] ends the
    /// wait with an error that is retryable, and the caller waits again.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn wait(&self, id: &str, at_most: Duration) -> Result<Job> {
        let began = Instant::now();
        // The answer must be here before the attempt is given up.
        let longest = WAIT_MAX.min(self.0.retry.attempt_max / 2).min(self.0.retry.total_max / 2);
        loop {
            let left = at_most.saturating_sub(began.elapsed()).min(longest);
            let query = [("wait_ms", left.as_millis().to_string())];
            let path = ["v1", "jobs", id];
            let job: Job = self.0.call(&Call { expected: left, ..Call::get(&path, &query) }).await?;
            if job.state == JobState::Finished || began.elapsed() >= at_most {
                return Ok(job);
            }
            tokio::time::sleep(WAIT_PAUSE).await;
        }
    }

    /// The jobs, newest first, without payloads, results and attempts.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn list(&self, wanted: &JobQuery) -> Result<List<Job>> {
        let mut query = wanted.page.query();
        query.extend(wanted.state.map(|state| ("state", state.to_string())));
        query.extend(wanted.outcome.map(|outcome| ("outcome", outcome.to_string())));
        query.extend(wanted.session.clone().map(|session| ("session", session)));
        query.extend(wanted.tenant.clone().map(|tenant| ("tenant", tenant)));
        query.extend(wanted.pool.clone().map(|pool| ("pool", pool)));
        query.extend(wanted.kind.clone().map(|kind| ("kind", kind)));
        query.extend(wanted.dead.map(|dead| ("dead", dead.to_string())));
        query.extend(wanted.retriable.then(|| ("retriable", true.to_string())));
        self.0.call(&Call::get(&["v1", "jobs"], &query)).await
    }

    /// Cancels a job, and returns it as it is then. Cancelling it again, or after its end, changes nothing.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn cancel(&self, id: &str) -> Result<Job> {
        self.0.call(&Call::act(&["v1", "jobs", id, "cancel"])).await
    }

    /// Dismisses a dead job: it is dead no more, and can still be retried. Dismissing it again changes nothing.
    ///
    /// # Errors
    /// [`crate::Error`]; `conflict` for a job that has not failed or timed out, or that was retried.
    pub async fn dismiss(&self, id: &str) -> Result<Job> {
        self.0.call(&Call::act(&["v1", "jobs", id, "dismiss"])).await
    }

    /// Deletes a finished job, with its payload, its result and its attempts.
    ///
    /// # Errors
    /// [`crate::Error`]; `conflict` for a job that is not finished, or is a stage whose plan waits for its result. `not_found`
    /// for a job that does not exist. [`crate::Error::Lost`] where the library's own repetition after a lost answer is refused:
    /// the job may be deleted.
    pub async fn delete(&self, id: &str) -> Result<()> {
        self.0.call(&Call::delete(&["v1", "jobs", id])).await
    }

    /// Retries a finished job: creates a new job from it, whether or not it was retried before. The `key` is
    /// as for [`Jobs::submit`].
    ///
    /// # Errors
    /// [`crate::Error`]; `conflict` for a job that is not finished.
    pub async fn retry(&self, id: &str, key: Option<&str>) -> Result<JobAccepted> {
        let key = key_or_new(key);
        self.0.call(&Call::act(&["v1", "jobs", id, "retry"]).under(Some(&key))).await
    }

    /// Retries many jobs: those named, or at most 1,000 that match a filter and were not retried. The `key`
    /// is as for [`Jobs::submit`].
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn retry_many(&self, which: &RetryRequest, key: Option<&str>) -> Result<RetryAnswer> {
        let key = key_or_new(key);
        self.0.call(&Call::post(&["v1", "jobs", "retry"], which).under(Some(&key))).await
    }
}
