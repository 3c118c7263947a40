//! Why a job waits, for a person who looks at it.

use client::Client;
use client::wire::jobs::{Job, JobState};
use client::wire::nodes::{SelectAnswer, SelectRequest};

/// Why a job has no attempt under way. `None` where it has one, where a node could take it at once, and where the daemon
/// does not say: the caller's token may not see nodes.
pub async fn reason(client: &Client, job: &Job) -> Option<String> {
    if job.state != JobState::Created {
        return None;
    }
    if let Some(at) = &job.run_at {
        return Some(format!("it is not due before {at}"));
    }
    let wanted =
        SelectRequest { pool: job.pool.clone(), route: job.route.clone(), requires: job.requires.clone() };
    obstacle(&client.nodes().select(&wanted).await.ok()?)
}

/// Why no node can take a job; `None` where one can.
pub fn obstacle(answer: &SelectAnswer) -> Option<String> {
    if answer.node.is_some() {
        return None;
    }
    if answer.considered == 0 {
        return Some("no node is connected; `fencepost node --exec CMD…` starts one".to_owned());
    }
    let reasons: Vec<_> =
        answer.rejected.iter().map(|(reason, count)| format!("{count} {}", words(reason))).collect();
    Some(format!("no node can take it now; of {}: {}", nodes(answer.considered), reasons.join(", ")))
}

fn nodes(count: u64) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}

/// What a reason of the daemon means. Newer daemons may have others.
fn words(reason: &str) -> &str {
    match reason {
        "pool" => "in no pool that serves it",
        "labels" => "without its labels or languages",
        "excluded" => "left out",
        "unreachable" => "not reachable from the instance that answered",
        "not_ready" => "not ready",
        "full" => "without a free slot",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn answer(node: Option<&str>, considered: u64, rejected: &[(&str, u64)]) -> SelectAnswer {
        let rejected: BTreeMap<_, _> =
            rejected.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect();
        SelectAnswer { node: node.map(str::to_owned), pool: None, considered, rejected, took_us: 1.0 }
    }

    #[test]
    fn a_person_learns_why_no_node_takes_the_job() {
        assert_eq!(obstacle(&answer(Some("n"), 3, &[("full", 2)])), None);
        assert!(obstacle(&answer(None, 0, &[])).unwrap().starts_with("no node is connected"));
        assert_eq!(
            obstacle(&answer(None, 1, &[("full", 1)])).unwrap(),
            "no node can take it now; of 1 node: 1 without a free slot"
        );
        assert_eq!(
            obstacle(&answer(None, 10, &[("draining", 3), ("labels", 6), ("newer", 1)])).unwrap(),
            "no node can take it now; of 10 nodes: 3 draining, 6 without its labels or languages, 1 newer"
        );
    }
}
