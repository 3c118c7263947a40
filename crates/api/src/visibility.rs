//! What a token sees. A token whose patterns leave something out gets `not_found` for it, on every path and socket, and
//! lists pass it over.
//!
//! The gate asks [`admit`] before a handler runs: a path names a signer, a tenant, a node, a pool or a resource, a bulk
//! operation, or a job, session, plan or task, which the ledger knows the tenant and pool of. The retry of a job asks
//! [`admit_job`] itself. Lists keep to what is seen with `seen_pages`; what a request makes is checked with [`of_new_job`] and
//! its siblings. A job of a session is seen by who sees the session, a task by who sees its tenant and the pools of all its
//! stages, a plan by who sees all its tasks. The job of a stage is seen as any job, and changed by who sees the task.

mod new_names;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

use actix_web::http::Method;
use actors::jobs::Accepted;
use domain::plan::{StageSpec, TaskSpec};
use domain::{BulkId, JobId, PlanId, PoolName, Resource, ResourceKind, SessionId, TaskId, TenantId};
use ledger::{JobFilter, JobRecord, Lease, PlanAccess, SessionAccess, SessionRecord, TaskRecord};
use tokio::time::timeout_at;
use wire::Code;

use crate::auth::{Principal, Sees};
use crate::limits::{PIECE_UNSEEN_MAX, PLANS_SEEN_AT_ONCE};
use crate::plan_fields::to_wire::locking_task;
use crate::refusal::Refusal;
use crate::routes::Route;
use crate::state::{State, answered};
pub use new_names::{of_found_in, of_new, of_new_in, of_new_job, of_new_stages, of_new_tasks, of_node};

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Signer,
    Tenant,
    Node,
    Pool,
    Bulk,
    Job,
    Session,
    Plan,
    Task,
    Resource,
}

/// Checks that the caller sees what the path names, and, where the method changes it, all that changes with it.
///
/// # Errors
/// `not_found`, whether it exists or not, or `bus_unavailable` for a session on an instance that opens none; `forbidden` for
/// paths of what belongs to all.
pub async fn admit(
    state: &State,
    route: Route,
    method: &Method,
    path: &str,
    principal: &Principal,
) -> Result<(), Refusal> {
    if principal.sees().everything() {
        return Ok(());
    }
    // Boxed: most callers see everything, and the future of each request would have room for it.
    Box::pin(admit_limited(state, route, method, path, principal)).await
}

/// As [`admit`], for a caller that does not see everything.
async fn admit_limited(
    state: &State,
    route: Route,
    method: &Method,
    path: &str,
    principal: &Principal,
) -> Result<(), Refusal> {
    let sees = principal.sees();
    if route.is_for_all() {
        return of_all(sees);
    }
    let Some((subject, name)) = subject(route.pattern(), path) else { return Ok(()) };
    let is_seen = match subject {
        Subject::Signer => sees.signers.have(Some(name)),
        Subject::Tenant => sees.tenants.have(Some(name)),
        Subject::Node => sees.nodes.have(Some(name)),
        Subject::Pool => sees.pools.have(Some(name)),
        Subject::Bulk => match BulkId::parse(name) {
            // Its own, whatever it sees by now: it says how far the work has come, and names no job.
            Some(id) => {
                let record = state.read(state.ledger.bulk(id)).await?;
                record.is_some_and(|record| record.principal == principal.name())
            }
            None => false,
        },
        Subject::Job => match JobId::parse(name) {
            // A retry is repeated under its key also when the job is gone: its handler asks `admit_job`, for a job that there is
            // not as for one that is not seen.
            Some(_) if route == Route::JobRetry => true,
            Some(id) if matches!(*method, Method::GET | Method::HEAD) => job_of_id(state, sees, id).await?,
            Some(id) => {
                let is_seen = changeable_job(state, sees, id).await?;
                // An earlier request may have deleted it without an answer. As in the handler, a standby has that first.
                if !is_seen && *method == Method::DELETE {
                    state.write(state.ledger.delete_jobs(&[], None)).await?;
                }
                is_seen
            }
            None => false,
        },
        Subject::Session => match SessionId::parse(name) {
            Ok(id) => asked_session(state, sees, &id).await?,
            Err(_) => false,
        },
        Subject::Plan => match PlanId::parse(name) {
            Some(id) => plan(state, sees, id).await?,
            None => false,
        },
        Subject::Task => match TaskId::parse(name) {
            Some(id) => task_of_id(state, sees, id).await?,
            None => false,
        },
        Subject::Resource => match Resource::parse(name) {
            Ok(name) => resource(state, sees, &name).await?,
            // The handler says what a resource's name is like.
            Err(_) => true,
        },
    };
    if is_seen { Ok(()) } else { Err(unseen()) }
}

/// Checks that the caller sees this job. One without patterns sees it whether there is one or not.
///
/// # Errors
/// `not_found`, whether it exists or not; `internal` for one that cannot be read.
pub async fn admit_job(state: &State, sees: &Sees, id: JobId) -> Result<(), Refusal> {
    if sees.everything() || job_of_id(state, sees, id).await? {
        return Ok(());
    }
    Err(hidden(unseen()))
}

/// Checks that the caller, whose patterns may have changed since, sees a job that an earlier request under its key made. One that
/// is gone tells nothing of a job that there is.
///
/// # Errors
/// `not_found`, which the caller logs, and what the ledger says.
pub async fn admit_repeated(state: &State, sees: &Sees, accepted: &Accepted) -> Result<(), Refusal> {
    if !accepted.is_repeated || sees.everything() {
        return Ok(());
    }
    if job_of_many(state, sees, accepted.id).await? == Some(false) { Err(unseen()) } else { Ok(()) }
}

/// The same, of a session that an earlier request under the caller's key made. The refusal is logged.
///
/// # Errors
/// `not_found`, and what the ledger says.
pub async fn admit_made_session(state: &State, sees: &Sees, id: &SessionId) -> Result<(), Refusal> {
    if sees.everything() {
        return Ok(());
    }
    let found = state.read(state.ledger.session(id)).await?;
    if found.is_none_or(|record| session_record(sees, &record)) { Ok(()) } else { Err(hidden(unseen())) }
}

/// A refusal by a handler because its caller does not see what it asked for. It is logged here: the gate logs what it refuses
/// itself, and only `forbidden` of what handlers refuse.
pub fn hidden(refusal: impl Into<Refusal>) -> Refusal {
    let refusal = refusal.into();
    tracing::info!(%refusal, "access is refused");
    refusal
}

/// As [`hidden`], where the refusal may also be another than `not_found`.
pub fn hidden_if_not_found(refusal: Refusal) -> Refusal {
    if refusal.code() == Code::NotFound { hidden(refusal) } else { refusal }
}

/// Logs once for a request for many jobs that it was refused these, which its caller does not see.
pub fn log_hidden_jobs(refusal: &Refusal, jobs: &[JobId]) {
    if let Some(first) = jobs.first() {
        tracing::info!(%refusal, jobs = jobs.len(), %first, "access is refused");
    }
}

/// Checks that the caller may see or change what belongs to all.
///
/// # Errors
/// `forbidden` for a token with patterns.
pub fn of_all(sees: &Sees) -> Result<(), Refusal> {
    if sees.everything() {
        return Ok(());
    }
    Err(Refusal::new(Code::Forbidden, "this needs a token that sees everything: one without patterns"))
}

/// What the path of a route names, by the part before its first variable one; and the name.
fn subject<'p>(pattern: &str, path: &'p str) -> Option<(Subject, &'p str)> {
    let (begin, _) = pattern.split_once("/{")?;
    let subject = match begin.rsplit_once('/')?.1 {
        "signers" => Subject::Signer,
        "tenants" => Subject::Tenant,
        "nodes" => Subject::Node,
        "pools" => Subject::Pool,
        "bulk" => Subject::Bulk,
        "jobs" => Subject::Job,
        "sessions" => Subject::Session,
        "plans" => Subject::Plan,
        "tasks" => Subject::Task,
        "leases" | "owner" => Subject::Resource,
        // Ids are for everybody.
        _ => return None,
    };
    Some((subject, path.get(begin.len() + 1..)?.split('/').next()?))
}

/// Whether it is a job that is seen.
pub async fn job(state: &State, sees: &Sees, record: &JobRecord) -> Result<bool, Refusal> {
    match &record.spec.session {
        _ if sees.everything() => Ok(true),
        Some(id) => session(state, sees, id).await,
        None => Ok(has(sees, record.spec.tenant.as_ref(), record.spec.needs.pool.as_ref())),
    }
}

/// Which sessions a caller sees, as far as they were looked up for a list of jobs: each once for many of its jobs, and those of a
/// page together.
#[derive(Default)]
pub struct SeenSessions(RefCell<HashMap<SessionId, bool>>);

impl SeenSessions {
    /// Looks up the sessions of these jobs that are not known yet.
    ///
    /// # Errors
    /// What the ledger says.
    pub async fn look_up(&self, state: &State, sees: &Sees, jobs: &[JobRecord]) -> Result<(), Refusal> {
        if sees.everything() {
            return Ok(());
        }
        let missing = self.missing(jobs);
        let seen = sessions(state, sees, &missing).await?;
        let looked_up = missing.into_iter().map(|id| {
            let is_seen = seen.contains(&id);
            (id, is_seen)
        });
        self.0.borrow_mut().extend(looked_up);
        Ok(())
    }

    fn missing(&self, jobs: &[JobRecord]) -> Vec<SessionId> {
        let mut known = self.0.borrow_mut();
        // A list may read the jobs of any number of sessions.
        if known.len() >= PIECE_UNSEEN_MAX as usize {
            known.clear();
        }
        let named = jobs.iter().filter_map(|job| job.spec.session.as_ref());
        let missing: HashSet<_> = named.filter(|id| !known.contains_key(*id)).collect();
        missing.into_iter().cloned().collect()
    }

    /// As [`job`], of one of the jobs whose sessions were looked up last.
    pub fn job(&self, sees: &Sees, record: &JobRecord) -> bool {
        match &record.spec.session {
            _ if sees.everything() => true,
            Some(id) => self.0.borrow().get(id).copied().unwrap_or(false),
            None => has(sees, record.spec.tenant.as_ref(), record.spec.needs.pool.as_ref()),
        }
    }
}

/// Whether it is a job that is seen, by its id. One that there is not is not seen.
///
/// # Errors
/// `internal` for one that cannot be read.
async fn job_of_id(state: &State, sees: &Sees, id: JobId) -> Result<bool, Refusal> {
    match state.read(state.ledger.job(id)).await? {
        Some(record) => job(state, sees, &record).await,
        None => Ok(false),
    }
}

/// Whether it is a job that is seen, and may be changed. What ends a stage's job changes its task: the caller must see
/// that task too, as long as there is one.
async fn changeable_job(state: &State, sees: &Sees, id: JobId) -> Result<bool, Refusal> {
    let Some(record) = state.read(state.ledger.job(id)).await? else { return Ok(false) };
    if !job(state, sees, &record).await? {
        return Ok(false);
    }
    let Some(stage) = &record.spec.stage else { return Ok(true) };
    let Some(id) = actors::plans::task_of_stage(stage) else { return Ok(false) };
    let found = state.read(state.ledger.plan_task(id)).await?;
    Ok(found.is_none_or(|record| task(sees, &record)))
}

/// Whether one of many jobs is seen; `None` if there is none. One that cannot be read, or whose session cannot, is passed over as
/// one that is not seen: nobody can tell whose it is.
pub async fn job_of_many(state: &State, sees: &Sees, id: JobId) -> Result<Option<bool>, Refusal> {
    let timeout = state.settings.request_timeout;
    let record = match readable(state.ask(timeout, state.ledger.job(id)).await)? {
        Some(Some(record)) => record,
        Some(None) => return Ok(None),
        None => return Ok(Some(false)),
    };
    let is_seen = match &record.spec.session {
        Some(id) if !sees.everything() => {
            let found = readable(state.ask(timeout, state.ledger.session(id)).await)?;
            found.flatten().is_some_and(|record| session_record(sees, &record))
        }
        _ => job(state, sees, &record).await?,
    };
    Ok(Some(is_seen))
}

/// As [`answered`], but `None` for what cannot be read. Any other error may be the whole ledger's, and tells nothing of one
/// record.
fn readable<A>(answer: Option<ledger::Result<A>>) -> Result<Option<A>, Refusal> {
    match answer {
        Some(Err(error @ ledger::Error::Impossible(_))) => {
            tracing::warn!(%error, "a record that cannot be read is passed over");
            Ok(None)
        }
        answer => answered(answer).map(Some),
    }
}

/// Whether it is a session that is seen.
pub async fn session(state: &State, sees: &Sees, id: &SessionId) -> Result<bool, Refusal> {
    if sees.everything() {
        return Ok(true);
    }
    let record = state.read(state.ledger.session(id)).await?;
    Ok(record.is_some_and(|record| session_record(sees, &record)))
}

/// Those of these sessions that are seen. One that there is not is not.
async fn sessions(state: &State, sees: &Sees, ids: &[SessionId]) -> Result<HashSet<SessionId>, Refusal> {
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    let found = state.read(state.ledger.session_access(ids)).await?;
    let is_seen = |access: &SessionAccess| has(sees, access.tenant.as_ref(), access.pool.as_ref());
    Ok(found.into_iter().filter(is_seen).map(|access| access.id).collect())
}

/// As [`session`], of a session that a request is about. An instance that opens none refuses one that is not seen as it does one
/// that does not exist.
async fn asked_session(state: &State, sees: &Sees, id: &SessionId) -> Result<bool, Refusal> {
    let is_seen = session(state, sees, id).await?;
    if !is_seen {
        state.incarnation().jobs.check_sessions()?;
    }
    Ok(is_seen)
}

/// Whether it is a session that is seen, by its record.
pub fn session_record(sees: &Sees, record: &SessionRecord) -> bool {
    has(sees, record.spec.tenant.as_ref(), record.spec.needs.pool.as_ref())
}

/// Whether it is a plan that is seen: all of its tasks are.
pub async fn plan(state: &State, sees: &Sees, id: PlanId) -> Result<bool, Refusal> {
    Ok(plans(state, sees, &[id], Instant::now()).await?.0.contains(&id))
}

/// Those of these plans that are seen, as far as they are looked at by then; and how many were, which are the first ones and one
/// piece at least.
///
/// # Errors
/// What the ledger says.
pub async fn plans(
    state: &State,
    sees: &Sees,
    ids: &[PlanId],
    until: Instant,
) -> Result<(HashSet<PlanId>, usize), Refusal> {
    let (all_tenants, all_pools) = (sees.tenants.is_all(), sees.pools.is_all());
    if all_tenants && all_pools {
        return Ok((ids.iter().copied().collect(), ids.len()));
    }
    let (mut seen, mut looked_at) = (HashSet::new(), 0);
    // A plan may name a thousand tenants.
    for piece in ids.chunks(PLANS_SEEN_AT_ONCE) {
        if looked_at > 0 && Instant::now() >= until {
            break;
        }
        let mut left = piece.to_vec();
        if !all_tenants {
            left = plans_by_names(state, sees, &left, false).await?;
        }
        // The database reads whole definitions for that, with their payloads. It reads none of a plan of other tenants.
        if !all_pools && !left.is_empty() {
            left = plans_by_names(state, sees, &left, true).await?;
        }
        seen.extend(left);
        looked_at += piece.len();
    }
    Ok((seen, looked_at))
}

/// Those of these plans whose tenants are seen, and, `with_pools`, whose pools are.
async fn plans_by_names(
    state: &State,
    sees: &Sees,
    ids: &[PlanId],
    with_pools: bool,
) -> Result<Vec<PlanId>, Refusal> {
    let is_seen = |access: &PlanAccess| {
        access.tenants.iter().all(|tenant| sees.tenants.have(Some(tenant.as_str())))
            && access.pools.iter().all(|pool| sees.pools.have(pool.as_ref().map(PoolName::as_str)))
    };
    let access = state.read(state.ledger.plan_access(ids, with_pools)).await?;
    Ok(access.into_iter().filter(|(_, access)| is_seen(access)).map(|(id, _)| id).collect())
}

/// Whether it is a task that is seen: its tenant is, and the pools of all its stages are.
pub fn task(sees: &Sees, record: &TaskRecord) -> bool {
    let TaskSpec { tenant, stages, .. } = &*record.task.spec;
    let is_seen = |stage: &StageSpec| sees.pools.have(stage.needs.pool.as_ref().map(PoolName::as_str));
    sees.tenants.have(Some(tenant.as_str())) && (sees.pools.is_all() || stages.iter().all(is_seen))
}

/// The same, by its id.
pub async fn task_of_id(state: &State, sees: &Sees, id: TaskId) -> Result<bool, Refusal> {
    let record = state.read(state.ledger.plan_task(id)).await?;
    Ok(record.is_some_and(|record| task(sees, &record)))
}

/// Whether it is a lease that is seen: its resource is, and, if it is a tenant's lock, the task that has it. Of a lock that is
/// free nobody knows whose tasks had it: a caller that sees some pools only does not see it.
pub async fn lease(state: &State, sees: &Sees, lease: &Lease) -> Result<bool, Refusal> {
    if !resource(state, sees, &lease.resource).await? {
        return Ok(false);
    }
    if lease.resource.kind() != ResourceKind::Tenant || sees.pools.is_all() {
        return Ok(true);
    }
    match lease.owner.as_ref().and_then(locking_task) {
        Some(id) => task_of_id(state, sees, id).await,
        None => Ok(false),
    }
}

/// Whether these leases are seen, in their order, as far as they are looked at by then; the first one is in any case. Their
/// sessions are looked up together, and so are their plans.
///
/// # Errors
/// What the ledger says.
pub async fn leases(
    state: &State,
    sees: &Sees,
    leases: &[Lease],
    until: Instant,
) -> Result<Vec<bool>, Refusal> {
    if sees.everything() {
        return Ok(vec![true; leases.len()]);
    }
    let (mut of_sessions, mut of_plans) = (Vec::new(), Vec::new());
    for Lease { resource, .. } in leases {
        match resource.kind() {
            ResourceKind::Session => of_sessions.extend(SessionId::parse(resource.id())),
            ResourceKind::Plan => of_plans.extend(PlanId::parse(resource.id())),
            _ => {}
        }
    }
    let seen_sessions = sessions(state, sees, &of_sessions).await?;
    let (seen_plans, mut plans_left) = plans(state, sees, &of_plans, until).await?;
    let mut seen = Vec::with_capacity(leases.len());
    for found in leases {
        let id = found.resource.id();
        let is_seen = match found.resource.kind() {
            ResourceKind::Session => SessionId::parse(id).is_ok_and(|id| seen_sessions.contains(&id)),
            ResourceKind::Plan => match PlanId::parse(id) {
                Some(_) if plans_left == 0 => break,
                Some(id) => {
                    plans_left -= 1;
                    seen_plans.contains(&id)
                }
                None => false,
            },
            // To look at a tenant's lock can take a read of its own.
            _ if !seen.is_empty() && Instant::now() >= until => break,
            _ => lease(state, sees, found).await?,
        };
        seen.push(is_seen);
    }
    Ok(seen)
}

/// A refusal as its caller may see it: `tenant_locked` says which task has the lock only to a caller that sees that task.
pub async fn refusal(state: &State, sees: &Sees, refusal: Refusal) -> Refusal {
    let Some(id) = refusal.locking_task().filter(|_| !sees.everything()) else { return refusal };
    // The task is not named either where the ledger cannot say.
    let is_seen = task_of_id(state, sees, id).await.unwrap_or(false);
    if is_seen { refusal } else { refusal.without_locking_task() }
}

/// Whether it is a resource that is seen.
pub async fn resource(state: &State, sees: &Sees, resource: &Resource) -> Result<bool, Refusal> {
    Ok(match resource.kind() {
        ResourceKind::Signer => sees.signers.have(Some(resource.id())),
        ResourceKind::Tenant => sees.tenants.have(Some(resource.id())),
        ResourceKind::Session => match SessionId::parse(resource.id()) {
            Ok(id) => session(state, sees, &id).await?,
            Err(_) => false,
        },
        ResourceKind::Plan => match PlanId::parse(resource.id()) {
            Some(id) => plan(state, sees, id).await?,
            None => false,
        },
        ResourceKind::Instance | ResourceKind::IdWorker => true,
    })
}

fn has(sees: &Sees, tenant: Option<&TenantId>, pool: Option<&PoolName>) -> bool {
    sees.tenants.have(tenant.map(TenantId::as_str)) && sees.pools.have(pool.map(PoolName::as_str))
}

/// The tenant and the pool that a caller sees, each if it is just one: a list has nothing of others.
pub fn only(sees: &Sees) -> (Option<TenantId>, Option<PoolName>) {
    let tenant = sees.tenants.only().and_then(|name| TenantId::parse(name).ok());
    let pool = sees.pools.only().and_then(|name| PoolName::parse(name).ok());
    (tenant, pool)
}

/// The filter of a bulk operation, without jobs that its caller does not see, as far as [`only`] says.
pub fn narrowed(sees: &Sees, filter: &JobFilter) -> JobFilter {
    let (only_tenant, only_pool) = only(sees);
    JobFilter { only_tenant, only_pool, ..filter.clone() }
}

/// Those of these that are seen, in their order, as far as they are looked at by then; and whether all were.
///
/// # Errors
/// What `is_seen` says.
pub async fn seen_in_time<R>(
    records: Vec<R>,
    until: Instant,
    is_seen: impl AsyncFn(&R) -> Result<bool, Refusal>,
) -> Result<(Vec<R>, bool), Refusal> {
    let mut seen = Vec::new();
    for record in records {
        // To look at one record can take reads of its own.
        let Ok(looked) = timeout_at(until.into(), is_seen(&record)).await else { return Ok((seen, false)) };
        if looked? {
            seen.push(record);
        }
    }
    Ok((seen, true))
}

fn unseen() -> Refusal {
    not_found("this does not exist, or this token does not see it")
}

fn not_found(detail: &str) -> Refusal {
    Refusal::new(Code::NotFound, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_with_a_name_has_a_subject_or_is_about_ids() {
        let mut without = Vec::new();
        for route in Route::ALL.iter().filter(|route| route.pattern().contains('{')) {
            let pattern = route.pattern();
            let path = pattern.replace(['{', '}'], "");
            match subject(pattern, &path) {
                Some((_, name)) => {
                    assert!(pattern.contains(&format!("{{{name}}}")), "{pattern}")
                }
                None => without.push(pattern),
            }
        }
        let expected = [
            "/v1/ids/segments/{tag}",
            "/v1/ids/sequences/{name}",
            "/v1/ids/snowflake/{id}",
            "/api/segment/get/{tag}",
            "/api/snowflake/get/{key}",
            "/assets/{file}",
        ];
        assert_eq!(without, expected);
        assert_eq!(
            subject("/v1/signers/{signer}/nonces", "/v1/signers/a:b/nonces"),
            Some((Subject::Signer, "a:b"))
        );
        assert_eq!(
            subject("/v1/cluster/owner/{resource}", "/v1/cluster/owner/x"),
            Some((Subject::Resource, "x"))
        );
    }

    #[test]
    fn only_records_that_cannot_be_read_are_passed_over() {
        let found = |answer| readable::<u8>(answer).map_err(|refusal| refusal.code());
        assert_eq!(found(Some(Ok(1))), Ok(Some(1)));
        assert_eq!(found(Some(Err(ledger::Error::Impossible("spoilt".into())))), Ok(None));
        let newer = ledger::Error::Migration("a newer release made the tables".to_owned());
        assert_eq!(found(Some(Err(newer))), Err(Code::Internal), "it is about all records");
        assert_eq!(found(None), Err(Code::LedgerUnavailable));
    }

    #[test]
    fn the_guide_names_every_path_that_needs_a_token_without_patterns() {
        let guide = include_str!("../../../docs/access.md");
        let paragraph = guide.split("\n\n").find(|text| text.contains("What belongs to all")).unwrap();
        for route in Route::ALL.iter().filter(|route| route.is_for_all()) {
            let pattern = route.pattern();
            assert!(paragraph.contains(&format!("`{pattern}`")), "{pattern}: {paragraph}");
        }
    }

    #[tokio::test]
    async fn what_is_not_looked_at_in_time_is_not_among_what_is_seen() {
        let until = Instant::now() + std::time::Duration::from_millis(50);
        let hangs_at = |hung: u32| {
            seen_in_time(vec![1, 2, 3, 4], until, async move |number: &u32| {
                if *number == hung {
                    std::future::pending::<()>().await;
                }
                Ok(*number != 2)
            })
        };
        assert_eq!(hangs_at(5).await.unwrap(), (vec![1, 3, 4], true));
        assert_eq!(hangs_at(4).await.unwrap(), (vec![1, 3], false));
    }
}
