//! Jobs of stages that failed, also those that no node began: each must name the attempt that ended it, and the node of that
//! attempt must have said so, or may have been lost with it. A job that was called off or ran out of time is none of them.

use testkit::fault_nodes::Run;

use super::Evidence;
use super::executions::Executions;
use crate::job_checker::{Diaries, finished_at_us};

/// Looks at each of them. Of the ends that a node does not say itself, `node_lost` and `unlisted` count towards `max_attempts`,
/// of which every stage here has one.
pub fn check(
    evidence: &Evidence,
    executions: &Executions<'_>,
    diaries: &Diaries<'_>,
    broken: &mut Vec<String>,
) {
    for (id, job) in evidence.jobs.iter().filter(|(_, job)| job["outcome"] == "failed") {
        let newest = Run { job: id.clone(), attempt: job["attempt"].as_u64().unwrap_or_default() };
        let mut past = job["attempts"].as_array().into_iter().flatten();
        let last = past.find(|past| past["attempt"] == newest.attempt);
        let ended = last.and_then(|last| last["state"].as_str()).unwrap_or_default();
        let by = job["node"].as_str().unwrap_or_default();
        let may_be_lost = || executions.may_be_lost(&newest, finished_at_us(job));
        let is_borne_out = match ended {
            "failed" => diaries.has_failed(&newest, by),
            "node_lost" => may_be_lost(),
            // Its node had acknowledged it, or had answered, and begins an attempt before it does either.
            "unlisted" => executions.has_begun(&newest) && may_be_lost(),
            _ => false,
        };
        if !is_borne_out {
            broken.push(format!("job {id}: {by} does not bear out that it failed, as {ended:?}: {job}"));
        }
    }
}
