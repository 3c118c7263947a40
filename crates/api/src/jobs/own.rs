//! Pages of a list of jobs for a caller that sees just one tenant, or one pool: of the jobs of others little is read.

use std::cmp::Reverse;

use domain::SessionId;
use ledger::{JobFilter, JobRecord, SessionFilter};
use tokio::sync::OnceCell;

use crate::auth::Sees;
use crate::refusal::Refusal;
use crate::state::State;
use crate::visibility;

/// The most sessions by whose names jobs are looked for. For a caller that sees more, jobs are read whatever their names are, as
/// for one that sees several tenants.
const SESSIONS_MAX: u32 = 1_000;

/// The names of the sessions that a caller sees, read once for a list; `None` if they are too many.
pub(super) type Names = OnceCell<Option<Vec<SessionId>>>;

/// The newest jobs that match the filter, without some that the caller does not see. Those that are left are to be looked at one
/// by one.
///
/// # Errors
/// What the ledger says.
pub(super) async fn page(
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
    let read = async || {
        let names = state.read(state.ledger.session_names(&seen)).await?;
        Ok::<_, Refusal>((names.len() <= SESSIONS_MAX as usize).then_some(names))
    };
    let Some(sessions) = names.get_or_try_init(read).await? else {
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
