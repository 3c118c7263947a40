//! Bulk operations over HTTP: begun, shown and cancelled here. What is done to the jobs is done in the background, by the
//! [`runner`] of the instance that owns the operation.

mod doubts;
mod left;
pub mod purge;
pub mod runner;
mod scan_size;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use actix_web::http::header::LOCATION;
use actix_web::{HttpRequest, HttpResponse, web};
use domain::job::{Outcome, State as JobState};
use domain::{BulkId, IdempotencyKey, JobId, JobKind, PoolName, SessionId, TenantId, Timestamp};
use ledger::{
    BULKS_OPEN_MAX, BULKS_OPEN_OF_ONE_MAX, BulkAction, BulkMade, BulkRecord, BulkScan, JobFilter, NewBulk,
};
use panic_guard::again_after_panics;
use sha2::{Digest, Sha256};
use wire::Code;
use wire::bulk as shape;

use crate::audit;
use crate::auth::Principal;
use crate::extract::{self, CURSOR, LIMIT, Query};
use crate::forwarder::Forwarder;
use crate::from_wire;
use crate::idempotency::{KEY, admit_key, body_hash};
use crate::limits::{BULK_COUNT_ROWS, BULK_MATCHED_MAX, BULK_RATE_DEFAULT, BULK_SCAN_ROWS, BULK_SEEN_PAGE};
use crate::read_turn::ReadTurn;
use crate::refusal::{Answer, Refusal};
use crate::state::{Shared, State, of_write};
use crate::to_wire;
use crate::visibility;

const ID: &str = "The id of the bulk operation";

/// Begins a bulk operation
///
/// One action is done to all jobs that match a filter, in the background, `rate` jobs per second at most. The operation is in
/// the ledger: if its instance dies, another one goes on, and does to no job twice what cannot be done twice. Only jobs that
/// finished before the request, or before `before`, are among them (for `cancel`: that were submitted before it), so that it
/// ends, and a retry never retries its own retries. `retry` needs an `outcome` or `"dead": true`, and leaves out jobs that
/// were retried or are of closed sessions; `dismiss` is about dead jobs alone; `cancel` takes no `outcome` and no `dead`. A
/// dry run counts the jobs and does nothing. An instance counts for 2 requests at once, one of each token; others wait, and are
/// refused if that takes half of the time that a request may take (`overloaded`). 100 operations may be under way, 50 of them one
/// token's (`overloaded`). An instance works on 16 of them at once, 4 of them one token's, while others wait. Under an
/// `Idempotency-Key` a repetition gets the same operation for `nonce.key_retention_ms` (24 h), and as long as it is under
/// way.
#[utoipa::path(
    post, path = "/v1/bulk", tag = "jobs", operation_id = "begin_bulk",
    params(("Idempotency-Key" = Option<String>, Header, description = KEY)),
    request_body = shape::BulkRequest,
    responses(
        (status = 200, description = "How many jobs a dry run matches", body = shape::BulkAccepted),
        (status = 202, description = "The operation is durable and under way", body = shape::BulkAccepted),
    ),
)]
pub async fn begin(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let key = extract::idempotency_key(request.headers())?;
    let asked: shape::BulkRequest = extract::body(&request, payload, state.body_limits()).await?;
    let action = action_of(asked.action)?;
    let filter = filter_of(action, &asked.filter)?;
    let principal = Principal::of(&request);
    let now = state.read(state.ledger.bulk_now()).await?;
    let before = match asked.before.as_deref() {
        Some(text) => from_wire::time_of("before", text)?.min(now),
        None => now,
    };
    let hex = |digest: [u8; 32]| digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let of_caller = |key: &IdempotencyKey| Sha256::digest(format!("{}\0{key}", principal.name())).into();
    let (key_hash, body_hash) = (key.as_ref().map(|key| hex(of_caller(key))), hex(body_hash(&asked)));
    let is_dry_run = asked.dry_run == Some(true);
    // A repetition waits for no count.
    if let Some(key_hash) = key_hash.as_deref().filter(|_| !is_dry_run)
        && let Some(kept) = state.read(state.ledger.kept_bulk(key_hash)).await?
    {
        return repeated(&state, &kept, &body_hash);
    }
    if let Some(key) = key.as_ref().filter(|_| !is_dry_run) {
        admit_key(&state, &principal, "bulk", key)?;
    }
    let matched = matched(&state, &principal, action, &filter, before).await?;
    if is_dry_run {
        return Ok(HttpResponse::Ok().json(shape::BulkAccepted {
            id: None,
            matched: matched.jobs,
            at_least: !matched.is_all,
            before: Some(to_wire::time(before)),
        }));
    }
    let new = NewBulk {
        id: BulkId::from_u128(state.incarnation().jobs.new_id().as_u128()),
        principal: principal.name().to_owned(),
        action,
        filter,
        before,
        rate: asked.rate.unwrap_or(BULK_RATE_DEFAULT),
        matched: matched.jobs,
        owner: state.incarnation().identity.id.clone(),
        key_hash,
        body_hash,
    };
    let by = audit::operators_entry(&request, audit_action(action), format!("bulk:{}", new.id));
    let what = serde_json::to_string(&asked).map_err(|_| Refusal::internal())?;
    let by = by.map(|entry| entry.changed(None::<String>, what));
    match state.write(state.ledger.create_bulk(&new, by.as_ref())).await? {
        BulkMade::Made(made) => Ok(accepted(&state, &made, !matched.is_all)),
        BulkMade::Kept(kept) => repeated(&state, &kept, &new.body_hash),
        BulkMade::TooMany => Err(Refusal::new(
            Code::Overloaded,
            format!(
                "{BULKS_OPEN_MAX} bulk operations may be under way, and {BULKS_OPEN_OF_ONE_MAX} of one token; one of these limits is reached"
            ),
        )),
    }
}

/// The answer to a request under a key that has made this operation.
fn repeated(state: &State, kept: &BulkRecord, body_hash: &str) -> Answer {
    if kept.body_hash != body_hash {
        return Err(actors::jobs::Refusal::KeyReused.into());
    }
    Ok(accepted(state, kept, false))
}

/// The answer that names an operation. Wakes the runner, to which it may be new.
fn accepted(state: &State, made: &BulkRecord, at_least: bool) -> HttpResponse {
    state.bulk_woken.notify_one();
    let location = (LOCATION, format!("/v1/bulk/{}", made.id));
    let accepted = shape::BulkAccepted {
        id: Some(made.id.to_string()),
        matched: made.matched,
        at_least,
        before: Some(to_wire::time(made.before)),
    };
    HttpResponse::Accepted().insert_header(location).json(accepted)
}

/// Lists bulk operations
///
/// The newest come first; they are kept for 30 days. A token that does not see everything gets its own.
#[utoipa::path(
    get, path = "/v1/bulk", tag = "jobs", operation_id = "list_bulk",
    params(
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<shape::Bulk>)),
)]
pub async fn list(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["cursor", "limit"])?;
    let limit = query.limit()?;
    let before = query.cursor("b", BulkId::parse)?;
    let principal = Principal::of(&request);
    let own = (!principal.sees().everything()).then(|| principal.name());
    let found = state.read(state.ledger.bulks(before, limit + 1, own)).await?;
    let page = extract::page("b", found, limit, |record| record.id.to_string(), to_wire::bulk);
    Ok(HttpResponse::Ok().json(page))
}

/// Shows a bulk operation
#[utoipa::path(
    get, path = "/v1/bulk/{id}", tag = "jobs", operation_id = "show_bulk",
    params(("id" = String, Path, description = ID)),
    responses((status = 200, description = "The operation, and how far it has come", body = shape::Bulk)),
)]
pub async fn show(request: HttpRequest, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    Ok(HttpResponse::Ok().json(to_wire::bulk(&found(&request, &state).await?)))
}

/// Cancels a bulk operation
///
/// It ends after the jobs that are being worked on. What was done stays done. One that is over stays as it is.
#[utoipa::path(
    post, path = "/v1/bulk/{id}/cancel", tag = "jobs", operation_id = "cancel_bulk",
    params(("id" = String, Path, description = ID)),
    responses((status = 200, description = "The operation as it stands now", body = shape::Bulk)),
)]
pub async fn cancel(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    extract::no_fields(&request, payload, state.body_limits()).await?;
    let id = found(&request, &state).await?.id;
    let by = audit::operators_entry(&request, "cancel_bulk", format!("bulk:{id}"));
    state.write(state.ledger.cancel_bulk(id, by.as_ref())).await?;
    state.bulk_woken.notify_one();
    let record = found(&request, &state).await.map_err(of_write)?;
    Ok(HttpResponse::Ok().json(to_wire::bulk(&record)))
}

/// The operation in the path. The gate has found that this token sees it.
async fn found(request: &HttpRequest, state: &State) -> Result<BulkRecord, Refusal> {
    let unknown = || Refusal::new(Code::NotFound, "there is no such bulk operation");
    let id = BulkId::parse(extract::segment(request, "id")).ok_or_else(unknown)?;
    state.read(state.ledger.bulk(id)).await?.ok_or_else(unknown)
}

/// How many jobs match that a caller sees.
struct Matched {
    /// Those that were counted.
    jobs: u64,
    /// Whether there are no others.
    is_all: bool,
}

/// How many jobs match that the caller sees, as far as they can be counted in half of the time that a request has.
async fn matched(
    state: &State,
    principal: &Principal,
    action: BulkAction,
    filter: &JobFilter,
    before: Timestamp,
) -> Result<Matched, Refusal> {
    let give_up = Instant::now() + state.settings.request_timeout / 2;
    let sees = principal.sees();
    let filter = visibility::narrowed(sees, filter);
    let of_token = principal.used().map(|used| &used.bulk_count);
    let (mut jobs, mut behind) = (0, None);
    loop {
        let Some(turn) = ReadTurn::take(of_token, &state.bulk_counts, give_up).await else {
            if behind.is_some() {
                return Ok(Matched { jobs, is_all: false });
            }
            let detail = "jobs are counted for too many bulk operations, in all or of this token; try again";
            return Err(Refusal::new(Code::Overloaded, detail));
        };
        behind = if sees.everything() {
            let count = state.ledger.count_bulk(action, &filter, before, behind, BULK_COUNT_ROWS);
            let count = state.read(ledger::keeping(turn, count)).await?;
            jobs += count.jobs;
            count.read_to
        } else {
            let scan = BulkScan { behind, jobs_max: BULK_SEEN_PAGE, rows_max: BULK_SCAN_ROWS };
            let found = state.ledger.next_of_bulk(action, &filter, before, scan);
            let found = state.read(ledger::keeping(turn, found)).await?;
            let next = found.next(&scan);
            // They are read by their keys, without a turn.
            let is_seen = async |id: &JobId| {
                let is_seen = visibility::job_of_many(state, sees, *id).await?;
                Ok::<_, Refusal>(is_seen == Some(true))
            };
            let (seen, is_all) = visibility::seen_in_time(found.jobs, give_up, is_seen).await?;
            jobs += seen.len() as u64;
            if !is_all {
                return Ok(Matched { jobs: jobs.min(BULK_MATCHED_MAX), is_all: false });
            }
            next
        };
        if behind.is_none() {
            return Ok(Matched { jobs: jobs.min(BULK_MATCHED_MAX), is_all: jobs <= BULK_MATCHED_MAX });
        }
        if jobs >= BULK_MATCHED_MAX || Instant::now() >= give_up {
            return Ok(Matched { jobs: jobs.min(BULK_MATCHED_MAX), is_all: false });
        }
    }
}

fn action_of(asked: shape::BulkAction) -> Result<BulkAction, Refusal> {
    let known = BulkAction::ALL.into_iter().find(|action| action.as_str() == asked.as_str());
    known.ok_or_else(|| Refusal::invalid("action must be one of retry, cancel, delete, dismiss"))
}

const fn audit_action(action: BulkAction) -> &'static str {
    match action {
        BulkAction::Retry => "bulk_retry",
        BulkAction::Cancel => "bulk_cancel",
        BulkAction::Delete => "bulk_delete",
        BulkAction::Dismiss => "bulk_dismiss",
    }
}

/// The jobs that an action with this filter is about.
fn filter_of(action: BulkAction, asked: &shape::BulkFilter) -> Result<JobFilter, Refusal> {
    let shape::BulkFilter { state, outcome, session, tenant, pool, kind, dead } = asked;
    if *asked == shape::BulkFilter::default() && action != BulkAction::Dismiss {
        return Err(Refusal::invalid(
            "name one condition at least; a filter that matches all jobs is refused",
        ));
    }
    let state = state.map(|state| JobState::parse(state.as_str())).transpose()?;
    let outcome = outcome.map(from_wire::outcome).transpose()?;
    let mut filter = JobFilter {
        state,
        outcome,
        session: session.as_deref().map(SessionId::parse).transpose()?,
        tenant: tenant.as_deref().map(TenantId::parse).transpose()?,
        pool: pool.as_deref().map(PoolName::parse).transpose()?,
        kind: kind.as_deref().map(JobKind::parse).transpose()?,
        dead: *dead,
        retried: None,
        // A stage belongs to its plan: it is retried, cancelled and forgotten with that.
        without_stages: true,
        // Whether their session is open the ledger looks at where jobs are retried.
        ..JobFilter::default()
    };
    let is_about_finished = action != BulkAction::Cancel;
    match state {
        Some(JobState::Finished) if !is_about_finished => {
            return Err(Refusal::invalid("a finished job is not cancelled; name no state, or another one"));
        }
        Some(JobState::Created | JobState::Dispatched | JobState::Running) if is_about_finished => {
            let detail = format!("{} is about finished jobs; name no state, or FINISHED", action.as_str());
            return Err(Refusal::invalid(detail));
        }
        _ => {}
    }
    match action {
        BulkAction::Cancel if outcome.is_some() || dead.is_some() => {
            return Err(Refusal::invalid(
                "outcome and dead are about finished jobs, and those are not cancelled",
            ));
        }
        BulkAction::Retry if outcome.is_none() && *dead != Some(true) => {
            return Err(Refusal::invalid(
                "name an outcome, or say that the jobs are dead: a retry of all jobs is refused",
            ));
        }
        BulkAction::Retry => filter.retried = Some(false),
        BulkAction::Dismiss if *dead == Some(false) || outcome.is_some_and(is_never_dead) => {
            return Err(Refusal::invalid("only dead jobs, which failed or timed out, are dismissed"));
        }
        BulkAction::Dismiss => filter.dead = Some(true),
        BulkAction::Cancel | BulkAction::Delete => {}
    }
    Ok(filter)
}

const fn is_never_dead(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Succeeded | Outcome::Cancelled)
}

/// Works on bulk operations on the thread that calls this, as long as that serves. The first thread that calls it does, and
/// the next one that begins after that one has ended.
pub fn start(forwarder: &Arc<Forwarder>) {
    if forwarder.state().bulk_started.swap(true, Ordering::SeqCst) {
        return;
    }
    let (started, forwarder) = (Started(Arc::clone(forwarder.state())), Arc::clone(forwarder));
    actix_web::rt::spawn(async move {
        let _started = started;
        // No other instance would go on with what this one owns while it lives.
        again_after_panics("the bulk operations", || runner::run(Arc::clone(&forwarder))).await;
    });
}

/// A thread works on bulk operations while it lives.
struct Started(Arc<State>);

impl Drop for Started {
    fn drop(&mut self) {
        self.0.bulk_started.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_action_takes_the_filters_that_mean_something_for_it() {
        let filter = |text: &str| serde_json::from_str::<shape::BulkFilter>(text).unwrap();
        for (action, text, is_good) in [
            (BulkAction::Retry, "{}", false),
            (BulkAction::Retry, r#"{"pool":"p"}"#, false),
            (BulkAction::Retry, r#"{"dead":true}"#, true),
            (BulkAction::Retry, r#"{"outcome":"cancelled","kind":"k"}"#, true),
            (BulkAction::Retry, r#"{"dead":true,"state":"RUNNING"}"#, false),
            (BulkAction::Cancel, "{}", false),
            (BulkAction::Cancel, r#"{"pool":"p"}"#, true),
            (BulkAction::Cancel, r#"{"state":"CREATED"}"#, true),
            (BulkAction::Cancel, r#"{"state":"FINISHED"}"#, false),
            (BulkAction::Cancel, r#"{"pool":"p","outcome":"failed"}"#, false),
            (BulkAction::Cancel, r#"{"pool":"p","dead":false}"#, false),
            (BulkAction::Delete, "{}", false),
            (BulkAction::Delete, r#"{"state":"FINISHED"}"#, true),
            (BulkAction::Delete, r#"{"state":"CREATED"}"#, false),
            (BulkAction::Dismiss, "{}", true),
            (BulkAction::Dismiss, r#"{"outcome":"timed_out"}"#, true),
            (BulkAction::Dismiss, r#"{"outcome":"succeeded"}"#, false),
            (BulkAction::Dismiss, r#"{"dead":false}"#, false),
            (BulkAction::Delete, r#"{"kind":"a b"}"#, false),
        ] {
            let found = filter_of(action, &filter(text));
            assert_eq!(found.is_ok(), is_good, "{action:?} {text}: {found:?}");
            if let Ok(found) = found {
                assert!(found.without_stages, "{action:?} {text}");
                assert_eq!(found.retried, (action == BulkAction::Retry).then_some(false));
                assert!(action != BulkAction::Dismiss || found.dead == Some(true));
            }
        }
    }
}
