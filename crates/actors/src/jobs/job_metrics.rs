//! The series that change with every job. Each is looked up once: a lookup takes longer than what it counts.

use std::sync::LazyLock;

use domain::job::Outcome;
use metrics::{Counter, Histogram};

/// The metrics of this process. The first use comes after the recorder is installed.
pub(super) static JOB_METRICS: LazyLock<JobMetrics> = LazyLock::new(JobMetrics::new);

/// `fencepost_jobs_total` and `fencepost_job_seconds`.
pub(super) struct JobMetrics {
    /// Changes to CREATED.
    pub(super) created: Counter,
    /// Changes to DISPATCHED.
    pub(super) dispatched: Counter,
    /// Changes to RUNNING.
    pub(super) running: Counter,
    /// Changes to FINISHED.
    pub(super) finished: OutcomeCounters,
    /// From the acceptance, or the due time, to the dispatch.
    pub(super) waiting_seconds: Histogram,
    /// From the dispatch to the acknowledgement.
    pub(super) starting_seconds: Histogram,
    /// From the dispatch to the recorded result.
    pub(super) running_seconds: Histogram,
}

impl JobMetrics {
    fn new() -> Self {
        let state = |state: &'static str| metrics::counter!("fencepost_jobs_total", "state" => state, "outcome" => "");
        let seconds = |stage: &'static str| metrics::histogram!("fencepost_job_seconds", "stage" => stage);
        Self {
            created: state("CREATED"),
            dispatched: state("DISPATCHED"),
            running: state("RUNNING"),
            finished: OutcomeCounters::new(
                |outcome| metrics::counter!("fencepost_jobs_total", "state" => "FINISHED", "outcome" => outcome),
            ),
            waiting_seconds: seconds("waiting"),
            starting_seconds: seconds("starting"),
            running_seconds: seconds("running"),
        }
    }
}

/// A counter for each outcome.
pub(super) struct OutcomeCounters {
    succeeded: Counter,
    failed: Counter,
    cancelled: Counter,
    timed_out: Counter,
}

impl OutcomeCounters {
    pub(super) fn new(counter: impl Fn(&'static str) -> Counter) -> Self {
        let of = |outcome: Outcome| counter(outcome.as_str());
        Self {
            succeeded: of(Outcome::Succeeded),
            failed: of(Outcome::Failed),
            cancelled: of(Outcome::Cancelled),
            timed_out: of(Outcome::TimedOut),
        }
    }

    pub(super) const fn of(&self, outcome: Outcome) -> &Counter {
        match outcome {
            Outcome::Succeeded => &self.succeeded,
            Outcome::Failed => &self.failed,
            Outcome::Cancelled => &self.cancelled,
            Outcome::TimedOut => &self.timed_out,
        }
    }
}
