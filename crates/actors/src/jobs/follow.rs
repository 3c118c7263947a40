//! Follows one job to its end, wherever its lane is served: reads the ledger on each notification, and at
//! intervals in case a notification was lost.

use std::time::{Duration, Instant};

use domain::job::{Attempt, State};
use domain::{JobId, NodeId};
use ledger::{JobRecord, jittered};
use nodes::connection::Progress;
use rand::RngExt;
use tokio::sync::watch::Receiver;

use super::lifetime::Phase;
use super::limits::{FOLLOWER_PAUSE_MAX, FOLLOWER_PAUSE_MIN};
use super::watches::{JobEventKind, Notification, Topic, Watch};
use super::{Jobs, Refusal};

/// Followers that may have missed an event read the ledger within this time, spread at random so that they do
/// not all read at once.
const MISSED_LOOK_WITHIN: Duration = Duration::from_millis(500);

/// An event of a followed job.
#[derive(Clone, Debug)]
pub enum Step {
    /// The job as it is: at first, and whenever its state or newest attempt has changed. States between two
    /// reads may be left out.
    Job(Box<JobRecord>),
    /// The progress of its newest attempt.
    Progress(Attempt, Progress),
}

/// Follows one job.
pub struct Following {
    ledger: ledger::Handle,
    job: JobId,
    watch: Watch,
    phase: Receiver<Phase>,
    /// As it was shown last.
    shown: Option<(State, Attempt)>,
    /// The node of its newest attempt, as the ledger had it last.
    node: Option<NodeId>,
    shown_progress: Option<(Attempt, Progress)>,
    /// The newest progress that came, of an attempt that may not have been shown yet.
    heard: Option<Heard>,
    look_at: Instant,
    pause: Duration,
}

/// What a node says of an attempt, which may not be its own.
struct Heard {
    attempt: Attempt,
    node: Option<NodeId>,
    progress: Progress,
}

impl Jobs {
    /// Follows a job from now on. What comes first is how it stands.
    ///
    /// # Errors
    /// [`Refusal::TooManyWatched`].
    pub fn follow(&self, job: JobId) -> Result<Following, Refusal> {
        let watch = self.watch(Topic::Job(job))?;
        Ok(Following::new(job, self.callers.ledger.clone(), watch, self.phase.subscribe()))
    }
}

impl Following {
    fn new(job: JobId, ledger: ledger::Handle, watch: Watch, phase: Receiver<Phase>) -> Self {
        Self {
            ledger,
            job,
            watch,
            phase,
            shown: None,
            node: None,
            shown_progress: None,
            heard: None,
            look_at: Instant::now(),
            pause: FOLLOWER_PAUSE_MIN,
        }
    }

    /// Which job.
    #[must_use]
    pub const fn job(&self) -> JobId {
        self.job
    }

    /// The next event; `None` after the job's end. Cancel safe.
    ///
    /// # Errors
    /// At first as [`Jobs::get`]; later only [`Refusal::Fenced`], when this incarnation is over, and
    /// [`Refusal::UnknownJob`], when the job was purged.
    pub async fn next(&mut self) -> Result<Option<Step>, Refusal> {
        loop {
            if matches!(self.shown, Some((State::Finished, _))) {
                return Ok(None);
            }
            if let Some(progress) = self.progress() {
                return Ok(Some(progress));
            }
            if Instant::now() >= self.look_at
                && let Some(step) = self.look().await?
            {
                return Ok(Some(step));
            }
            let heard = tokio::select! {
                biased;
                _ = self.phase.wait_for(|phase| *phase >= Phase::Stopping) => return Err(Refusal::Fenced),
                notification = self.watch.next() => Some(notification),
                () = tokio::time::sleep_until(self.look_at.into()) => None,
            };
            if let Some(notification) = heard {
                self.hear(notification);
            }
        }
    }

    /// Progress of the attempt that is shown, unless it was a step already.
    fn progress(&mut self) -> Option<Step> {
        let (_, newest) = self.shown?;
        let Heard { attempt, node, progress } = self.heard.take_if(|heard| heard.attempt <= newest)?;
        let progress = (attempt, progress);
        if attempt < newest || node != self.node || self.shown_progress.as_ref() == Some(&progress) {
            return None;
        }
        self.shown_progress = Some(progress.clone());
        Some(Step::Progress(attempt, progress.1))
    }

    fn hear(&mut self, notification: Notification) {
        let now = Instant::now();
        let Notification::Event(seen) = notification else {
            let within = MISSED_LOOK_WITHIN.mul_f64(rand::rng().random());
            self.look_at = self.look_at.min(now + within);
            return;
        };
        match &seen.kind {
            JobEventKind::Changed(state, _) if self.shown == Some((*state, seen.attempt)) => {}
            JobEventKind::Changed(..) => self.look_at = now,
            JobEventKind::Progressed(progress) => {
                if self.heard.as_ref().is_none_or(|heard| heard.attempt <= seen.attempt) {
                    let (attempt, node) = (seen.attempt, seen.node.clone());
                    self.heard = Some(Heard { attempt, node, progress: progress.clone() });
                }
                if self.shown.is_none_or(|(_, newest)| newest < seen.attempt) {
                    self.look_at = now;
                }
            }
        }
    }

    async fn look(&mut self) -> Result<Option<Step>, Refusal> {
        let looked = Instant::now();
        let found = self.ledger.job(self.job).await;
        self.look_at = looked + jittered(self.pause);
        self.pause = (self.pause * 2).min(FOLLOWER_PAUSE_MAX);
        let job = match found {
            Ok(job) => job.ok_or(Refusal::UnknownJob)?,
            Err(error) if self.shown.is_some() && error.is_retryable() => {
                tracing::debug!(%error, job = %self.job, "a job that a client follows could not be read");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        self.node = job.placed.as_ref().map(|placed| placed.node.clone());
        // What was heard of an attempt that the ledger does not have is not true.
        if self.heard.as_ref().is_some_and(|heard| heard.attempt > job.attempt) {
            self.heard = None;
        }
        let found = (job.state, job.attempt);
        if self.shown == Some(found) {
            return Ok(None);
        }
        if job.state == State::Finished && self.shown.is_some_and(|(_, shown)| shown == job.attempt) {
            // Progress that came before the end is a step before the end.
            while let Some(notification) = self.watch.next_now() {
                self.hear(notification);
            }
            if let Some(progress) = self.progress() {
                self.look_at = looked;
                return Ok(Some(progress));
            }
        }
        self.shown = Some(found);
        Ok(Some(Step::Job(Box::new(job))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nodes::connection::Percent;
    use tokio::sync::watch;

    use super::*;
    use crate::jobs::fixture::{FIRST, Ledger, job, node};
    use crate::jobs::watches::{JobEvent, Watches};

    #[tokio::test]
    async fn a_follower_hears_of_an_attempt_from_its_node_alone() {
        let ledger = Ledger::open().await;
        ledger.dispatch_all("b", &[1], "n", "b").await;
        let watches = Arc::new(Watches::new(true).0);
        let (_phase, phase) = watch::channel(Phase::Serving);
        let watch = watches.watch(Topic::Job(job(1))).unwrap();
        let mut following = Following::new(job(1), ledger.handle.clone(), watch, phase);
        assert!(matches!(following.next().await, Ok(Some(Step::Job(_)))));
        let progress = |percent| Progress { percent: Percent::new(percent), note: None };
        for (of, attempt, percent) in
            [("liar", FIRST, 66.0), ("liar", Attempt::new(9), 67.0), ("n", FIRST, 5.0)]
        {
            let kind = JobEventKind::Progressed(progress(percent));
            watches.tell_progress(JobEvent { job: job(1), attempt, lane: None, node: Some(node(of)), kind });
        }
        match following.next().await {
            Ok(Some(Step::Progress(attempt, shown))) => assert_eq!((attempt, shown), (FIRST, progress(5.0))),
            other => panic!("{other:?}"),
        }
    }
}
