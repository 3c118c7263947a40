//! Pages of a list of jobs, with what says which of them its caller sees. For a caller that sees just one tenant, or one pool,
//! little is read of the jobs of others.

use std::cmp::Reverse;

use domain::SessionId;
use ledger::{JobFilter, JobRecord, SessionFilter};
use tokio::sync::OnceCell;

use crate::auth::Sees;
use crate::refusal::Refusal;
use crate::state::State;
use crate::visibility::{self, SeenSessions};

/// The most sessions by whose names jobs are looked for. For a caller that sees more, jobs are read whatever their names are, as
/// for one that sees several tenants.
const SESSIONS_MAX: u32 = 1_000;

/// The names of the sessions that a caller sees, read once for a list; `None` if they are too many.
pub(super) type Names = OnceCell<Option<Vec<SessionId>>>;

/// The newest jobs that match the filter, without some that the caller does not see. `sessions` says of each that is left
/// whether it is seen.
///
/// # Errors
/// What the ledger says.
pub(super) async fn page(
    state: &State,
    sees: &Sees,
    names: &Names,
    sessions: &SeenSessions,
    filter: &JobFilter,
) -> Result<Vec<JobRecord>, Refusal> {
    let found = read(state, sees, names, filter).await?;
    sessions.look_up(state, sees, &found).await?;
    Ok(found)
}

async fn read(
    state: &State,
    sees: &Sees,
    names: &Names,
    filter: &JobFilter,
) -> Result<Vec<JobRecord>, Refusal> {
    let (tenant, pool) = visibility::only(sees);
    // Of the dead, which have an index of their own, few are others'.
    let is_plain = filter.session.is_some() || filter.dead == Some(true);
    if is_plain || (tenant.is_none() && pool.is_none()) {
        return state.read(state.ledger.jobs(filter)).await;
    }
    let seen = SessionFilter {
        tenant: tenant.clone(),
        pool: pool.clone(),
        limit: SESSIONS_MAX + 1,
        ..SessionFilter::default()
    };
    let read_names = async || {
        let names = state.read(state.ledger.session_names(&seen)).await?;
        Ok::<_, Refusal>((names.len() <= SESSIONS_MAX as usize).then_some(names))
    };
    let Some(sessions) = names.get_or_try_init(read_names).await? else {
        return state.read(state.ledger.jobs(filter)).await;
    };
    let mut found = Vec::new();
    // A job in no session is seen by its own names. This also finds jobs of sessions that have these names.
    if fits(filter.tenant.as_ref(), tenant.as_ref()) && fits(filter.pool.as_ref(), pool.as_ref()) {
        let named = JobFilter {
            tenant: tenant.or_else(|| filter.tenant.clone()),
            pool: pool.or_else(|| filter.pool.clone()),
            ..filter.clone()
        };
        found = state.read(state.ledger.jobs(&named)).await?;
    }
    if sessions.is_empty() {
        return Ok(found);
    }
    // A job of a session is seen by the session's names, whatever its own are.
    let is_full = found.len() >= filter.limit as usize;
    let in_sessions = JobFilter {
        sessions: Some(sessions.clone()),
        after: found.last().filter(|_| is_full).map(|last| last.id),
        ..filter.clone()
    };
    found.extend(state.read(state.ledger.jobs(&in_sessions)).await?);
    found.sort_by_key(|record| Reverse(record.id));
    found.dedup_by_key(|record| record.id);
    found.truncate(filter.limit as usize);
    Ok(found)
}

/// Whether something may have the name that is asked for and the only one that is seen.
fn fits<N: PartialEq>(asked: Option<&N>, only: Option<&N>) -> bool {
    asked.is_none() || only.is_none() || asked == only
}

#[cfg(test)]
mod tests {
    use domain::job::{Change, Due, NewJob, Requirements, Spec};
    use domain::{InstanceId, JobId, LaneId, Names as Patterns, Pattern, TenantId, session};
    use ledger::{Acquisition, JobBatch, JobWrite, JobsVerdict, Lane};

    use super::*;
    use crate::auth::Auth;
    use crate::settings::Settings;
    use crate::tests::state_with;

    /// Opens a session of this tenant.
    async fn open(state: &State, session: &str, tenant: &str) {
        let (tenant, needs) = (TenantId::parse(tenant).ok(), Requirements::default());
        let spec = session::Spec { tenant, needs, ordering: session::Ordering::Strict, idle_ms: 60_000 };
        state.ledger.open_session(&SessionId::parse(session).unwrap(), &spec, None, None).await.unwrap();
    }

    /// Submits a job in each of these sessions, by a lane of an instance that nobody reaches. The first one's number is 1.
    async fn submit(state: &State, sessions: &[&str]) {
        let owner = InstanceId::parse("owner-1").unwrap();
        let id = LaneId::instance(&owner, 0);
        let acquired = state.ledger.acquire(id.lease(), &owner, 600_000).await.unwrap();
        let Acquisition::Acquired { token, .. } = acquired else { panic!("{acquired:?}") };
        let write = |(n, session): (u128, &&str)| {
            let (id, session) = (JobId::from_u128(n), SessionId::parse(session).unwrap());
            let spec = Spec { session: Some(session), ..Spec::new("1") };
            let (due, placed) = (Due::Now, None);
            let new = NewJob { id, spec, seq: None, client_ref: None, due, retry: None, placed };
            JobWrite { change: Change::Submit(Box::new(new)), key: None }
        };
        let writes = (1..).zip(sessions).map(write).collect();
        let batch = JobBatch { lane: Some(Lane { id, owner, token }), writes };
        let verdict = state.ledger.commit_jobs(batch).await.unwrap();
        assert!(matches!(verdict, JobsVerdict::Written { .. }), "{verdict:?}");
    }

    #[actix_web::test]
    async fn the_sessions_of_a_page_are_looked_up_together_and_one_that_there_is_not_is_not_seen() {
        let dir = tempfile::TempDir::new().unwrap();
        let state = state_with(&dir, Settings::new(Auth::open())).await;
        open(&state, "own", "x-1").await;
        open(&state, "other", "y").await;
        submit(&state, &["own", "other", "none", "own"]).await;
        let tenants = Patterns::Some(vec![Pattern::parse("x-*").unwrap()].into());
        let (names, sessions) = (Names::default(), SeenSessions::default());
        for (sees, expected) in
            [(Sees { tenants, ..Sees::default() }, &[4, 1][..]), (Sees::default(), &[4, 3, 2, 1])]
        {
            let filter = JobFilter { limit: 100, ..JobFilter::default() };
            let page = page(&state, &sees, &names, &sessions, &filter).await.unwrap();
            assert_eq!(page.len(), 4);
            let seen = page.iter().filter(|record| sessions.job(&sees, record)).map(|record| record.id);
            assert!(seen.eq(expected.iter().map(|n| JobId::from_u128(*n))), "{sees:?}");
        }
    }
}
