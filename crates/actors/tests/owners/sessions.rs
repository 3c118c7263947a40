//! The owner of a session over a real SQLite ledger.

use std::sync::atomic::Ordering as Atomic;

use actors::jobs::{Accepted, Refusal, Submission};
use domain::job::{Due, Requirements, Spec};
use domain::session::{self, Ordering};
use domain::{ClientRef, IdempotencyKey, SessionId};
use ledger::{JobKey, KeyScope};

use crate::lanes::{Lanes, open};

async fn session(lanes: &Lanes, ordering: Ordering) -> SessionId {
    let needs = Requirements::default();
    let spec = session::Spec { tenant: None, needs, ordering, idle_ms: 60_000 };
    lanes.jobs.open_session(&spec, None, None).await.unwrap()
}

/// A job of a client that calls it so.
fn named(session: &SessionId, name: &str) -> Submission {
    let key = JobKey {
        scope: KeyScope {
            scope: format!("session {session} someone"),
            key: IdempotencyKey::parse(name).unwrap(),
        },
        body_hash: [1; 32],
    };
    Submission {
        spec: Spec { session: Some(session.clone()), ..Spec::new("1") },
        client_ref: Some(ClientRef::parse(name).unwrap()),
        due: Due::Now,
        key: Some(key),
        retry: None,
    }
}

async fn submit(lanes: &Lanes, session: &SessionId, names: &[&str]) -> Vec<Result<Accepted, Refusal>> {
    let new = names.iter().map(|name| named(session, name)).collect();
    lanes.jobs.submit_in(session, new).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repetition_is_not_refused_while_nobody_can_tell_whether_its_job_was_accepted() {
    let lanes = open().await;
    let id = session(&lanes, Ordering::Strict).await;
    let first = submit(&lanes, &id, &["c1"]).await.remove(0).unwrap();
    lanes.jobs.close_session(&id).await.unwrap();
    lanes.plan.job_keys_are_away.store(true, Atomic::SeqCst);
    assert_eq!(submit(&lanes, &id, &["c1"]).await, [Err(Refusal::LedgerUnavailable)]);
    lanes.plan.job_keys_are_away.store(false, Atomic::SeqCst);
    assert_eq!(submit(&lanes, &id, &["c1", "c2"]).await, [Ok(first), Err(Refusal::SessionClosed)]);
    lanes.jobs.stop().await;
}
