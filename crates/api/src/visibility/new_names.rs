//! What a caller may make and name in it: nothing in a tenant, a pool or a session that it does not see.

use domain::{Names, NodeId, PoolName, SessionId, TenantId};
use ledger::SessionRecord;
use wire::plans::{StageRequest, TaskRequest};

use super::{hidden_if_not_found, not_found, session_record};
use crate::auth::Sees;
use crate::refusal::Refusal;
use crate::state::State;

/// The tenant and the pool of something new. Where the token sees one name only, that one is meant.
///
/// # Errors
/// `not_found` for names that the token does not see, which the caller logs; `invalid` where it must name one.
pub fn of_new(
    sees: &Sees,
    tenant: Option<TenantId>,
    pool: Option<PoolName>,
) -> Result<(Option<TenantId>, Option<PoolName>), Refusal> {
    let tenant = named(&sees.tenants, "tenant", tenant, TenantId::parse)?;
    let pool = named(&sees.pools, "pool", pool, PoolName::parse)?;
    Ok((tenant, pool))
}

fn named<N: std::fmt::Display>(
    names: &Names,
    what: &str,
    asked: Option<N>,
    parse: impl FnOnce(&str) -> Result<N, domain::Invalid>,
) -> Result<Option<N>, Refusal> {
    match asked {
        Some(name) if names.have(Some(&name.to_string())) => Ok(Some(name)),
        Some(name) => Err(not_seen(what, &name.to_string())),
        None if names.is_all() => Ok(None),
        None => match names.only() {
            Some(only) => Ok(Some(parse(only)?)),
            None => Err(Refusal::invalid(format!("name a {what}: this token sees some {what}s only"))),
        },
    }
}

/// Checks and completes what a new job names. A job of a session gets the session's tenant and pool, from the session's owner.
///
/// # Errors
/// As [`of_new`].
pub fn of_new_job(sees: &Sees, spec: &mut domain::job::Spec) -> Result<(), Refusal> {
    if sees.everything() {
        return Ok(());
    }
    if spec.session.is_some() {
        let tenant = spec.tenant.as_ref().is_none_or(|tenant| sees.tenants.have(Some(tenant.as_str())));
        let pool = spec.needs.pool.as_ref().is_none_or(|pool| sees.pools.have(Some(pool.as_str())));
        return match (tenant, pool) {
            (true, true) => Ok(()),
            (false, _) => Err(not_seen("tenant", spec.tenant.as_ref().map_or("", TenantId::as_str))),
            (true, false) => Err(not_seen("pool", spec.needs.pool.as_ref().map_or("", PoolName::as_str))),
        };
    }
    (spec.tenant, spec.needs.pool) = of_new(sees, spec.tenant.take(), spec.needs.pool.take())?;
    Ok(())
}

/// Checks the tenants of new tasks, and the pools of their stages.
///
/// # Errors
/// As [`of_new_stages`], with the place of the task; `not_found` also for a tenant that the token does not see.
pub fn of_new_tasks(sees: &Sees, tasks: &[TaskRequest]) -> Result<(), Refusal> {
    for (at, task) in tasks.iter().enumerate() {
        let is_seen = sees.tenants.have(Some(&task.tenant));
        let tenant = if is_seen { Ok(()) } else { Err(field_not_seen("tenant", &task.tenant)) };
        let checked = tenant.and_then(|()| new_stages(sees, &task.stages));
        checked.map_err(|refusal| hidden_if_not_found(refusal.within("tasks", at)))?;
    }
    Ok(())
}

/// Checks the pools of new stages.
///
/// # Errors
/// With the place of the stage: `not_found` for a pool that the token does not see, `invalid` where the stage must name one.
pub fn of_new_stages(sees: &Sees, stages: &[StageRequest]) -> Result<(), Refusal> {
    new_stages(sees, stages).map_err(hidden_if_not_found)
}

/// The same, for a caller that logs `not_found`.
fn new_stages(sees: &Sees, stages: &[StageRequest]) -> Result<(), Refusal> {
    if sees.pools.is_all() {
        return Ok(());
    }
    let check = |stage: &StageRequest| match &stage.pool {
        Some(pool) if sees.pools.have(Some(pool)) => Ok(()),
        Some(pool) => Err(field_not_seen("pool", pool)),
        None => Err(Refusal::invalid("pool must be named: this token sees some pools only")),
    };
    let mut stages = stages.iter().enumerate();
    stages.try_for_each(|(at, stage)| check(stage).map_err(|refusal| refusal.within("stages", at)))
}

/// Checks that a job may be put into a session.
///
/// # Errors
/// `not_found` for one that the token does not see; `bus_unavailable` on an instance that opens none.
pub async fn of_new_in(state: &State, sees: &Sees, id: &SessionId) -> Result<(), Refusal> {
    if sees.everything() {
        return Ok(());
    }
    let found = state.read(state.ledger.session(id)).await?;
    let is_there = found.is_some();
    match of_found_in(state, sees, id, found) {
        Err(refusal) if is_there => Err(hidden_if_not_found(refusal)),
        checked => checked.map(drop),
    }
}

/// The same, of what the ledger has of the session.
///
/// # Errors
/// As [`of_new_in`]. The caller logs `not_found` of a session that there is.
pub fn of_found_in(
    state: &State,
    sees: &Sees,
    id: &SessionId,
    found: Option<SessionRecord>,
) -> Result<SessionRecord, Refusal> {
    if let Some(record) = found.filter(|record| session_record(sees, record)) {
        return Ok(record);
    }
    state.incarnation().jobs.check_sessions()?;
    Err(not_seen("session", id.as_str()))
}

/// Checks that a node may connect under its name, to these pools.
///
/// # Errors
/// Why not, in words fit for the node.
pub fn of_node(sees: &Sees, node: &NodeId, pools: Option<&[PoolName]>) -> Result<(), String> {
    if !sees.nodes.have(Some(node.as_str())) {
        return Err(format!("this token may not connect the node {node}"));
    }
    let Some(pools) = pools else {
        let needs = "name the node's pools: this token sees some pools only";
        return if sees.pools.is_all() { Ok(()) } else { Err(needs.to_owned()) };
    };
    match pools.iter().find(|pool| !sees.pools.have(Some(pool.as_str()))) {
        None => Ok(()),
        Some(pool) => Err(format!("this token may not connect nodes of the pool {pool}")),
    }
}

fn not_seen(what: &str, name: &str) -> Refusal {
    not_found(&format!("this token sees no {what} {name:?}"))
}

/// The same with the field that names it, for [`Refusal::within`].
fn field_not_seen(field: &str, name: &str) -> Refusal {
    not_found(&format!("{field}: this token sees no {field} {name:?}"))
}

#[cfg(test)]
mod tests {
    use wire::Code;

    use super::*;

    #[test]
    fn a_token_of_one_tenant_need_not_name_it() {
        let some = |texts: &[&str]| {
            Names::Some(texts.iter().map(|text| domain::Pattern::parse(text).unwrap()).collect())
        };
        let tenant = |text: &str| Some(TenantId::parse(text).unwrap());
        let one = Sees { tenants: some(&["a"]), ..Sees::default() };
        assert_eq!(of_new(&one, None, None).unwrap(), (tenant("a"), None));
        assert_eq!(of_new(&one, tenant("b"), None).unwrap_err().code(), Code::NotFound);
        let many = Sees { tenants: some(&["a-*"]), ..Sees::default() };
        assert_eq!(of_new(&many, tenant("a-1"), None).unwrap(), (tenant("a-1"), None));
        assert_eq!(of_new(&many, None, None).unwrap_err().code(), Code::Invalid);
        assert_eq!(of_new(&Sees::default(), None, None).unwrap(), (None, None));
    }
}
