//! Submissions on their way to the owners of lanes, and the answers on their way back.

use std::sync::Arc;
use std::time::Instant;

use domain::lane::{Accepted, Submission};
use domain::{JobId, LaneId};
use nodes::Registry;
use tokio::sync::oneshot;

use super::Refusal;
use super::lifetime::Lifetime;
use super::messages::{Directory, LaneCommand, PendingSubmission, SubmitReply};
use super::own_lanes::{OwnLanes, WaitingSubmission};
use super::submission_limits::{SubmissionLimits, TokenSubmissions};
use crate::directory::Undelivered;
use crate::job_ids::JobIds;
use crate::replies::reply_channel;

/// Hands the submissions of one instance's callers to the owners of lanes.
pub(super) struct Submissions {
    directory: Arc<Directory>,
    own_lanes: OwnLanes,
    /// The nodes, where commits of two lanes overlap.
    overlapping: Option<Registry>,
    ids: JobIds,
    limits: SubmissionLimits,
    lifetime: Lifetime,
}

impl Submissions {
    /// To the lanes in the directory; jobs without a session go to the own ones. `overlapping` are the nodes, where commits of
    /// two lanes overlap.
    pub(super) fn new(
        directory: Arc<Directory>,
        own_lanes: OwnLanes,
        overlapping: Option<Registry>,
        ids: JobIds,
        lifetime: Lifetime,
    ) -> Self {
        Self { directory, own_lanes, overlapping, ids, limits: SubmissionLimits::default(), lifetime }
    }

    /// An id for a new job, that was never used.
    pub(super) fn new_id(&self) -> JobId {
        self.ids.draw()
    }

    /// Has owners of the instance's own lanes accept jobs; an answer for each, in their order.
    pub(super) async fn submit(
        &self,
        submissions: Vec<Submission>,
        of_token: Option<&TokenSubmissions>,
        deadline: Instant,
    ) -> Vec<Result<Accepted, Refusal>> {
        let has_slots = |count| self.overlapping.as_ref().is_some_and(|nodes| nodes.has_slots_here(count));
        let lanes = self.own_lanes.choose(submissions.len(), has_slots);
        let each = submissions.into_iter().zip(lanes);
        let each = each.map(|(one, (lane, waiting))| (lane, one, Some(waiting)));
        self.submit_each(each, of_token, deadline).await
    }

    /// Has a lane's owner accept jobs; an answer for each, in their order.
    pub(super) async fn submit_to(
        &self,
        lane: &LaneId,
        submissions: impl ExactSizeIterator<Item = Submission>,
        of_token: Option<&TokenSubmissions>,
        deadline: Instant,
    ) -> Vec<Result<Accepted, Refusal>> {
        self.submit_each(submissions.map(|one| (lane, one, None)), of_token, deadline).await
    }

    /// The same with a lane for each.
    async fn submit_each<'l>(
        &self,
        submissions: impl ExactSizeIterator<Item = (&'l LaneId, Submission, Option<WaitingSubmission>)>,
        of_token: Option<&TokenSubmissions>,
        deadline: Instant,
    ) -> Vec<Result<Accepted, Refusal>> {
        let (arrived, is_looked_up) = (Instant::now(), false);
        let submitter = of_token.map(TokenSubmissions::submitter);
        let mut pending: Vec<(&LaneId, Vec<PendingSubmission>)> = Vec::new();
        let mut answers = Vec::with_capacity(submissions.len());
        // Of a session's jobs none is accepted behind one for which there was no room.
        let mut full: Option<&LaneId> = None;
        for (lane, submission, waiting) in submissions {
            let is_behind = full == Some(lane);
            let share = if is_behind { None } else { self.limits.take(&submission, of_token, waiting) };
            let Some(share) = share else {
                full = full.or(lane.session_id().map(|_| lane));
                answers.push(Err(Refusal::Overloaded));
                continue;
            };
            let (reply, answer) = reply_channel();
            let reply = SubmitReply { reply, _share: share };
            let id = self.new_id();
            let one = PendingSubmission { id, submission, submitter, arrived, deadline, is_looked_up, reply };
            match pending.iter_mut().find(|(other, _)| *other == lane) {
                Some((_, of_lane)) => of_lane.push(one),
                None => pending.push((lane, vec![one])),
            }
            answers.push(Ok(answer));
        }
        for (lane, pending) in pending {
            if let Err(Undelivered { command, is_full }) =
                self.directory.try_send(lane, LaneCommand::Submit(pending))
                && let LaneCommand::Submit(pending) = *command
            {
                let refusal = if is_full { Refusal::Overloaded } else { Refusal::Fenced };
                pending.into_iter().for_each(|one| one.reply.send(Err(refusal.clone())));
            }
        }
        let mut answered = Vec::with_capacity(answers.len());
        for answer in answers {
            answered.push(match answer {
                Ok(answer) => answer_by(deadline, answer, &self.lifetime).await,
                Err(refusal) => Err(refusal),
            });
        }
        answered
    }
}

/// The answer of the lane's owner, or the refusal where there is none. At the deadline the owner drops what it has not begun
/// to write, and this may see that before its own time is up.
async fn answer_by(
    deadline: Instant,
    answer: oneshot::Receiver<Result<Accepted, Refusal>>,
    lifetime: &Lifetime,
) -> Result<Accepted, Refusal> {
    match tokio::time::timeout_at(deadline.into(), answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) if Instant::now() < deadline => Err(lifetime.refusal_of_lost_owner()),
        Ok(Err(_)) | Err(_) => Err(Refusal::LedgerUnavailable),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cluster::FailureDetector;
    use domain::job::Due;
    use tokio::sync::watch;

    use super::*;
    use crate::database_clock::SharedClock;
    use crate::jobs::fixture::{lane, serve, spec};
    use crate::jobs::lifetime::Phase;

    #[tokio::test]
    async fn a_lane_is_told_of_each_submission_with_whose_it_takes_its_turn() {
        let directory = Arc::new(Directory::default());
        let mut served = serve(&directory, "instance:a");
        let (_serving, phase) = watch::channel(Phase::Serving);
        let lifetime = Lifetime::new(phase, FailureDetector::alone());
        let ids = JobIds::new(SharedClock::new(Duration::from_secs(1)));
        let own = OwnLanes::new([lane("instance:a")]);
        let submissions = Submissions::new(directory, own, None, ids, lifetime);
        let [one, other] = [(); 2].map(|()| TokenSubmissions::default());
        for token in [Some(&one), Some(&other), None] {
            let new = Submission { spec: spec(), client_ref: None, due: Due::Now, key: None, retry: None };
            // Nobody answers.
            submissions.submit(vec![new], token, Instant::now()).await;
            let Some(LaneCommand::Submit(pending)) = served.recv().await else {
                panic!("a submission was awaited")
            };
            let submitters: Vec<_> = pending.iter().map(|pending| pending.submitter).collect();
            assert_eq!(submitters, [token.map(TokenSubmissions::submitter)]);
        }
    }

    #[tokio::test]
    async fn a_submission_that_its_owner_drops_at_the_deadline_is_no_defect() {
        let (_serving, phase) = watch::channel(Phase::Serving);
        let lifetime = Lifetime::new(phase, FailureDetector::alone());
        let now = Instant::now();
        for (deadline, expected) in [
            (now, Refusal::LedgerUnavailable),
            // The owner panicked.
            (now + Duration::from_secs(3_600), Refusal::Internal),
        ] {
            let (reply, answer) = reply_channel();
            drop(reply);
            assert_eq!(answer_by(deadline, answer, &lifetime).await, Err(expected));
        }
    }
}
