//! The attempts at one batch: what became of each of its jobs, and whether another attempt follows.

use client::Error;
use client::wire::Problem;
use client::wire::jobs::BatchResult;

use crate::commands::absence::Absence;

/// The attempts at a batch that were answered.
#[derive(Debug, Default)]
pub struct Attempts {
    /// What became of each job: that it was accepted, by any attempt, or its last refusal. Empty before the first answer.
    results: Vec<BatchResult>,
    /// Whether a refusal left open whether its job is accepted.
    has_doubt: bool,
}

impl Attempts {
    /// An attempt was answered, with an answer for each job. A job that was accepted stays accepted: the daemon can refuse its
    /// repetition before it looks its key up. Returns whether another attempt is to follow, once it is time for that.
    /// `overload` is since when jobs are refused for now, and none more is accepted.
    pub async fn answered(&mut self, answers: Vec<BatchResult>, overload: &mut Absence) -> bool {
        let accepted_before = self.accepted().count();
        self.has_doubt |= answers.iter().filter_map(refusal).any(|refusal| refusal.may_be_done());
        if self.results.is_empty() {
            self.results = answers;
        } else {
            for (result, answer) in self.results.iter_mut().zip(answers) {
                if !is_accepted(result) {
                    *result = answer;
                }
            }
        }
        let Some(refusal) = self.results.iter().find_map(refused_for_now) else {
            overload.end();
            return false;
        };
        if self.accepted().count() > accepted_before {
            overload.begins_anew();
        }
        overload.outlast(refusal).await.is_ok()
    }

    /// The jobs that are accepted, with their places in the batch.
    pub fn accepted(&self) -> impl Iterator<Item = (usize, &BatchResult)> {
        self.results.iter().enumerate().filter(|(_, result)| is_accepted(result))
    }

    /// Whether a job may be accepted although it was refused.
    pub const fn has_doubt(&self) -> bool {
        self.has_doubt
    }

    /// What became of each job.
    pub fn into_results(self) -> Vec<BatchResult> {
        self.results
    }
}

const fn is_accepted(result: &BatchResult) -> bool {
    matches!(result, BatchResult::Accepted { .. })
}

/// The refusal of a job that the daemon may accept later.
fn refused_for_now(result: &BatchResult) -> Option<Error> {
    refusal(result).filter(Error::is_retryable)
}

/// The refusal of a job.
fn refusal(result: &BatchResult) -> Option<Error> {
    match result {
        BatchResult::Refused { code, detail, .. } => {
            Some(Error::Refused(Box::new(Problem::of_code(code, detail.as_str()))))
        }
        BatchResult::Accepted { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use client::wire::Code;
    use tokio::time::sleep;

    use super::*;
    use crate::commands::TOTAL;

    fn accepted(id: &str) -> BatchResult {
        BatchResult::Accepted { id: id.to_owned(), seq: None }
    }

    fn refused(code: Code) -> BatchResult {
        let code = code.to_string();
        BatchResult::Refused { code, detail: "because".to_owned(), owner: None, owner_url: None }
    }

    fn full() -> BatchResult {
        refused(Code::Overloaded)
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_was_accepted_stays_accepted() {
        let (mut attempts, mut overload) = (Attempts::default(), Absence::default());
        let closed = || refused(Code::Conflict);
        let answers = [
            (vec![accepted("a"), full(), full(), closed()], true),
            (vec![full(), full(), accepted("c"), full()], true),
            (vec![full(), accepted("b"), closed(), closed()], false),
        ];
        for (answers, goes_on) in answers {
            assert_eq!(attempts.answered(answers, &mut overload).await, goes_on);
        }
        assert!(!attempts.has_doubt());
        assert_eq!(attempts.into_results(), [accepted("a"), accepted("b"), accepted("c"), closed()]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_was_refused_for_want_of_the_ledger_may_be_accepted_whatever_comes_later() {
        let (mut attempts, mut overload) = (Attempts::default(), Absence::default());
        for code in [Code::LedgerUnavailable, Code::Overloaded] {
            assert!(attempts.answered(vec![refused(code)], &mut overload).await);
            assert!(attempts.has_doubt());
        }
        assert!(!attempts.answered(vec![refused(Code::Conflict)], &mut overload).await);
        assert!(attempts.has_doubt());
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_was_refused_with_a_code_of_a_newer_daemon_is_in_doubt_and_not_sent_again() {
        let (mut attempts, mut overload) = (Attempts::default(), Absence::default());
        let (code, detail) = ("sun_unavailable".to_owned(), "because".to_owned());
        let newer = BatchResult::Refused { code, detail, owner: None, owner_url: None };
        assert!(!attempts.answered(vec![newer], &mut overload).await);
        assert!(attempts.has_doubt());
    }

    #[tokio::test(start_paused = true)]
    async fn the_minute_begins_anew_only_when_more_jobs_are_accepted() {
        let (mut attempts, mut overload) = (Attempts::default(), Absence::default());
        assert!(attempts.answered(vec![accepted("a"), accepted("b"), full()], &mut overload).await);
        // Sometimes more of them are refused, sometimes fewer, and none that was not accepted is.
        let answers = [vec![full(), full(), full()], vec![full(), accepted("b"), full()]];
        let mut tries = 0;
        for answers in answers.into_iter().cycle() {
            if !attempts.answered(answers, &mut overload).await {
                break;
            }
            tries += 1;
            assert!(tries < 1_000, "it goes on for ever");
        }
        assert_eq!(attempts.into_results(), [accepted("a"), accepted("b"), full()]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_minute_begins_anew_when_the_last_failure_is_long_past() {
        let mut absence = Absence::default();
        let failure = || refused_for_now(&full()).unwrap();
        assert!(absence.outlast(failure()).await.is_ok());
        sleep(Duration::from_secs(3_600)).await;
        assert!(absence.outlast(failure()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_minute_ends_also_where_each_call_takes_its_whole_time_to_fail() {
        let mut absence = Absence::default();
        let mut tries = 0;
        while absence.outlast(refused_for_now(&full()).unwrap()).await.is_ok() {
            sleep(TOTAL).await;
            tries += 1;
            assert!(tries < 1_000, "it goes on for ever");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_of_which_jobs_are_accepted_is_tried_again_also_after_another_was_given_up() {
        let mut overload = Absence::default();
        let mut given_up = Attempts::default();
        while given_up.answered(vec![full()], &mut overload).await {}
        assert!(!Attempts::default().answered(vec![full()], &mut overload).await);
        let mut next = Attempts::default();
        assert!(next.answered(vec![accepted("a"), full()], &mut overload).await);
        assert!(!next.answered(vec![accepted("a"), accepted("b")], &mut overload).await);
        assert_eq!(next.into_results(), [accepted("a"), accepted("b")]);
    }
}
