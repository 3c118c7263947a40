//! What a session gives to its jobs.

use super::*;
use crate::TenantId;
use crate::job::Requirements;
use crate::session::Spec;

/// A session with so many unfinished jobs, whose last place is 4.
pub(super) fn snapshot(unfinished: u64, ordering: Ordering) -> SessionSnapshot {
    let spec = Spec { tenant: None, needs: Requirements::default(), ordering, idle_ms: 60_000 };
    SessionSnapshot { spec, is_closed: false, idle_for_ms: 0, last_seq: 4, unfinished, affinity: None }
}

/// The new jobs that are to be committed.
fn new_jobs(effects: &Effects) -> Vec<crate::job::NewJob> {
    let batches = effects.iter().filter_map(|effect| match effect {
        Effect::Commit(batch) => Some(batch),
        _ => None,
    });
    let changes = batches.flat_map(|batch| batch.writes.iter().map(|write| write.change.clone()));
    changes.filter_map(|change| if let Change::Submit(new) = change { Some(*new) } else { None }).collect()
}

#[test]
fn a_job_without_a_tenant_of_its_own_is_its_sessions_tenants() {
    let now = Instant::now();
    let tenant = |name: &str| TenantId::parse(name).ok();
    for (of_session, of_job, expected) in
        [("", "", None), ("a", "", tenant("a")), ("", "b", tenant("b")), ("a", "b", tenant("b"))]
    {
        let mut session = snapshot(0, Ordering::Free);
        session.spec.tenant = tenant(of_session);
        let (mut state, _) = opened(session, now);
        let mut pending = submission(1, Due::Now, None, now);
        pending.submission.spec.tenant = tenant(of_job);
        give(&mut state, Command::Submit(vec![pending]), now);
        let effects = state.slots_found(SlotsFound::default(), now);
        assert_eq!(new_jobs(&effects)[0].spec.tenant, expected, "{of_session:?} {of_job:?}");
        // What waits for a slot is the tenant's too.
        let effects = written(&mut state, batch(&effects), now);
        let waits = effects.iter().find_map(|effect| match effect {
            Effect::Enqueue(enqueue) => Some(enqueue.job.spec.tenant.clone()),
            _ => None,
        });
        assert_eq!(waits, Some(expected));
    }
}
