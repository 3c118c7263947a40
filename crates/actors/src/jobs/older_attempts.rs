//! Whether attempts that were taken from their nodes may still be under way there.

use std::time::{Duration, Instant};

use domain::job::{Ended, PastAttempt, Revoked};
use ledger::JobRecord;

use super::scheduler::{Scheduler, Sender};

/// Whether no earlier attempt of a job runs any more, and none of one that has ended, as has been waited for since `since`:
/// their slots are free, or their nodes are gone for sure. Of a node that may be where the bus does not reach nothing will be
/// heard: what it ran has ended when the time that it may run is over. What a node that has connected elsewhere does not list
/// there it does not have, once the instance that was to send it has ended.
pub(super) async fn are_over(scheduler: &Scheduler, job: &JobRecord, since: Instant) -> bool {
    let run_time = Duration::from_millis(job.spec.timeout_ms);
    let is_released = job.finished.as_ref().is_some_and(|finished| finished.released_at.is_some());
    let may_go_on: Vec<_> = job.attempts.iter().filter(|past| past.ended.may_go_on()).collect();
    for past in &may_go_on {
        let PastAttempt { attempt, node, ended, .. } = past;
        let newest = job.placed.as_ref().filter(|_| *attempt == job.attempt);
        // An instance of 0.1.0 notes a free slot of the job, whichever attempt had it: of an only one there is no doubt.
        let is_noted = is_released && may_go_on.len() == 1 && newest.is_some();
        let sender = match newest {
            _ if *ended == Ended::Revoked(Revoked::TimedOut) => Sender::Nobody,
            Some(placed) => Sender::Instance(&placed.holder),
            None => Sender::Anybody,
        };
        let is_over = is_noted
            || scheduler.is_surely_gone(node)
            || scheduler.is_out_of_sight(node, since.elapsed().saturating_sub(run_time))
            || scheduler.missing(node, &[(job.id, *attempt, since)], sender).await.contains(&true);
        if !is_over {
            return false;
        }
    }
    true
}
