//! Probes, metrics, and the answers where there is no handler. Probes come often, so they are cheap, and a scrape of the
//! metrics never asks the ledger.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse};
use ledger::jittered;
use panic_guard::guarded;
use wire::Code;
use wire::health::{Check, CheckStatus, Readiness, Ready};

use crate::limits::{
    BUS_DOWN_CHECK_MAX, CHECKS_SHOWN_EVERY, HEALTH_AGE_MAX, HEALTH_TIMEOUT, SEGMENT_LEFT_SECONDS_MAX,
    STARTING_AGAIN_MS,
};
use crate::loopback;
use crate::recent::{Look, Recent};
use crate::refusal::{Answer, Refusal};
use crate::routes::{self, Route};
use crate::services::Awaited;
use crate::shares::Kind;
use crate::state::{Shared, State};

/// The checks of `/readyz`.
const CHECKS: [&str; 4] = ["ledger", "bus", "snowflakes", "plans"];

/// Says that the process runs
#[utoipa::path(
    get, path = "/healthz", tag = "operations", operation_id = "healthz",
    responses((status = 200, description = "The process runs", body = wire::health::Health)),
)]
pub async fn healthz() -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(Bytes::from_static(br#"{"status":"ok"}"#))
}

/// Says whether this instance can serve
///
/// The checks are up to a second old. `degraded` means that the instance serves although a check found
/// something wrong. Before the instance has completed its start, the answer is `ledger_unavailable` or `bus_unavailable`,
/// by what the start waits for. Until then the instance serves only UUIDs, the decoding of snowflakes, and
/// snowflakes where `ids.file` proves a worker number. Without tokens, a request under a host that is no loopback name gets the
/// status without the checks.
#[utoipa::path(
    get, path = "/readyz", tag = "operations", operation_id = "readyz",
    responses((status = 200, description = "The instance can serve", body = Ready)),
)]
pub async fn readyz(request: HttpRequest, state: Shared) -> Answer {
    let answer = readiness(&state).await;
    if !state.settings.auth.is_open() || loopback::is_named(request.uri(), request.headers()) {
        return answer.map(|ready| HttpResponse::Ok().json(ready));
    }
    // A load balancer needs no more, and a page of another site may read no more.
    match answer {
        Ok(ready) => Ok(HttpResponse::Ok().json(Ready { checks: BTreeMap::new(), ..ready })),
        Err(refusal) => Err(without_reasons(refusal)),
    }
}

/// The refusal as it is for those who may not read why. It says when to ask again.
fn without_reasons(refusal: Refusal) -> Refusal {
    refusal.with(|problem| {
        problem.detail = "this instance says why to those who ask it under a loopback name".to_owned();
        problem.checks = None;
    })
}

async fn readiness(state: &Arc<State>) -> Result<Ready, Refusal> {
    if let Some(refusal) = state.went_back() {
        let detail = "it went back in time, or is another one; nothing is served".to_owned();
        let ledger = Check { status: CheckStatus::Down, detail: Some(detail) };
        return Err(refusal.with(|problem| problem.checks = Some(named([("ledger", ledger)]))));
    }
    if let Some(awaited) = state.awaited() {
        return Err(not_open_yet(state, awaited));
    }
    let (ledger, bus) = tokio::join!(
        looked(state, &state.ledger_check, look_at_ledger),
        looked(state, &state.bus_check, look_at_bus),
    );
    let down = ledger.status == CheckStatus::Down;
    // Without its bus an instance still serves.
    let snowflakes = look_at_snowflakes(state);
    let plans = look_at_plans(state);
    let well = [&ledger, &bus, &snowflakes, &plans].iter().all(|check| check.status == CheckStatus::Ok);
    let status = if well { Readiness::Ready } else { Readiness::Degraded };
    let checks = named([("ledger", ledger), ("bus", bus), ("snowflakes", snowflakes), ("plans", plans)]);
    if state.traffic.is_stopping() {
        return Err(
            Refusal::new(Code::Draining, "this instance is stopping").with(|p| p.checks = Some(checks))
        );
    }
    if down {
        let why = checks["ledger"].detail.clone().unwrap_or_else(|| "the ledger does not answer".to_owned());
        return Err(Refusal::new(Code::LedgerUnavailable, why).with(|problem| problem.checks = Some(checks)));
    }
    Ok(Ready { status, checks })
}

/// The refusal of an instance that has not completed its start.
fn not_open_yet(state: &State, awaited: Awaited) -> Refusal {
    let (code, name) = match awaited {
        Awaited::Ledger(_) => (Code::LedgerUnavailable, "ledger"),
        Awaited::Bus => (Code::BusUnavailable, "bus"),
    };
    let mut what = awaited.detail();
    let snowflakes = state.snowflakes.status();
    // By the local file.
    if snowflakes.worker.is_some() && snowflakes.refusal.is_none() {
        what.push_str("; it issues snowflakes only");
    }
    let down = Check { status: CheckStatus::Down, detail: Some(what.clone()) };
    let checks = named([(name, down), ("snowflakes", look_at_snowflakes(state))]);
    Refusal::new(code, what).with(|problem| {
        problem.checks = Some(checks);
        // The start goes on trying, whichever of the two it waits for.
        problem.retry_after_ms = problem.retry_after_ms.or(Some(STARTING_AGAIN_MS));
    })
}

fn named<const N: usize>(checks: [(&str, Check); N]) -> BTreeMap<String, Check> {
    checks.into_iter().map(|(name, check)| (name.to_owned(), check)).collect()
}

/// The result of a check, which goes on where the request is cut off.
async fn looked<F: Future<Output = Check> + Send + 'static>(
    state: &Arc<State>,
    last: &Recent<Check>,
    check: impl FnOnce(Arc<State>) -> F,
) -> Check {
    let begin = |look: Look<Check>| {
        let check = check(Arc::clone(state));
        state.spawn(async move { look.end(Ok(check.await)) });
    };
    // A check ends by itself, and earlier.
    match last.get(HEALTH_AGE_MAX, HEALTH_TIMEOUT * 2, begin).await {
        Some(Ok(found)) => found,
        None => Check { status: CheckStatus::Down, detail: Some("the check did not end".to_owned()) },
    }
}

async fn look_at_ledger(state: Arc<State>) -> Check {
    match state.ask(HEALTH_TIMEOUT, state.ledger.check()).await {
        Some(Ok(ledger::Health { unwritable: Some(reason), .. })) => Check {
            status: CheckStatus::Down,
            detail: Some(match reason {
                ledger::Unwritable::Corrupt => {
                    format!("{reason}; put a backup in its place, and start the instance again")
                }
                _ => format!("{reason}; writes are refused until the ledger takes them again"),
            }),
        },
        // Reads are answered, and yet commits wait, as for a standby, or no incarnation can begin.
        Some(Ok(_)) if state.incarnation().reach.is_without_lease_for(HEALTH_TIMEOUT) => {
            let detail = "this instance could not renew its lease, or has lost it; writes are refused until it has one";
            Check { status: CheckStatus::Down, detail: Some(detail.to_owned()) }
        }
        Some(Ok(health)) => warned(health.durability_warnings),
        Some(Err(error)) => {
            ledger::log_failure!(error, "the ledger is not healthy");
            Check { status: CheckStatus::Down, detail: Some("the ledger does not answer".to_owned()) }
        }
        None => {
            let detail = format!("the ledger did not answer within {} ms", HEALTH_TIMEOUT.as_millis());
            Check { status: CheckStatus::Down, detail: Some(detail) }
        }
    }
}

async fn look_at_bus(state: Arc<State>) -> Check {
    let is_up = state.bus.link().borrow().is_up();
    match tokio::time::timeout(bus_check_max(is_up), state.call(state.bus.check())).await {
        Ok(Ok(health)) if is_up => {
            let found =
                warned(health.warnings.into_iter().chain(state.incarnation().other_buses.found()).collect());
            Check { detail: found.detail.or_else(|| left_out(&state)), ..found }
        }
        found => {
            let failure = state.bus.failure();
            let detail = match (state.bus.trial(), found) {
                (Some(trial), _) => trial.to_string(),
                (None, Ok(Err(error))) => {
                    tracing::debug!(%error, "the bus is not healthy");
                    format!("the bus does not answer: {}", why_away(&failure.unwrap_or(error)))
                }
                (None, Ok(Ok(health))) if !health.warnings.is_empty() => {
                    format!("the link to the bus is down: {}", health.warnings.join("; "))
                }
                (None, Ok(Ok(_)) | Err(_)) => {
                    let why = failure.map(|error| format!(": {}", why_away(&error))).unwrap_or_default();
                    format!("the link to the bus is down{why}")
                }
            };
            Check { status: CheckStatus::Down, detail: Some(detail) }
        }
    }
}

/// How long a look at the bus may take. Where a server of a Redis Cluster is silent, a check takes its whole time, again and
/// again: no instance is to look unready for that.
const fn bus_check_max(is_up: bool) -> Duration {
    if is_up { HEALTH_TIMEOUT } else { BUS_DOWN_CHECK_MAX }
}

/// What an instance leaves out that may have others beside it, and has no Redis by its configuration. Nothing is wrong with it.
fn left_out(state: &State) -> Option<String> {
    let is_without = state.bus.kind() == bus::Kind::Local && state.ledger.kind() == ledger::Kind::Postgres;
    is_without.then(|| "no Redis: jobs go to this instance's own nodes, and sessions are refused".to_owned())
}

/// Why the bus does not answer, as anybody may read it. The words of a server that refuses may quote what it was sent, and are
/// left to the log.
fn why_away(error: &bus::Error) -> String {
    match error {
        bus::Error::Denied { .. } => "Redis refuses the user or the password".to_owned(),
        bus::Error::Forbidden { .. } => "Redis denies its user a right; the log says which".to_owned(),
        bus::Error::Refused { .. } => "Redis cannot be used as it is; the log says why".to_owned(),
        bus::Error::Unavailable { source } | bus::Error::Unknown { source } | bus::Error::Full { source } => {
            source.to_string()
        }
        error => error.to_string(),
    }
}

/// The checkpoints of stages that wait for the ledger.
fn look_at_plans(state: &State) -> Check {
    let late = state.incarnation().plans.late_checkpoints().map(|(plans, oldest)| {
        format!("{plans} plans wait for the ledger with a checkpoint, the oldest for {} s", oldest.as_secs())
    });
    warned(late.into_iter().collect())
}

/// Nothing is wrong as long as no snowflake was asked for, unless the ledger was recovered and none can be made yet.
fn look_at_snowflakes(state: &State) -> Check {
    let status = state.snowflakes.status();
    let warnings = status.refusal.map(|refusal| why_none(&refusal)).into_iter();
    warned(warnings.chain(status.ends_in_ms.map(room_left)).collect())
}

/// Why no snowflake is made. If the ledger takes no writes, this gives the ledger's reason, not the driver's words.
fn why_none(refusal: &ids::snowflake::Refusal) -> String {
    let reason = match refusal {
        ids::snowflake::Refusal::Ledger(error) => ledger::Unwritable::why(error),
        _ => None,
    };
    reason.map_or_else(|| refusal.to_string(), |reason| reason.to_string())
}

/// What is said of the milliseconds that are left until the epoch ends.
fn room_left(left_ms: u64) -> String {
    const DAY_MS: u64 = 86_400_000;
    match left_ms {
        0 => "the time since ids.epoch_ms is used up: no more snowflakes can be made".to_owned(),
        _ => format!(
            "the time since ids.epoch_ms has room for {} more days; plan for another kind of id",
            left_ms / DAY_MS
        ),
    }
}

fn warned(warnings: Vec<String>) -> Check {
    if warnings.is_empty() {
        return Check { status: CheckStatus::Ok, detail: None };
    }
    Check { status: CheckStatus::Warn, detail: Some(warnings.join("; ")) }
}

/// Shows in the metrics what `/readyz` says of each check, again and again, also where nobody asks for it: until the instance
/// stops.
pub async fn show_checks(state: Arc<State>) {
    while !state.traffic.is_draining() {
        guarded("the gauges of the checks", look_at_checks(&state)).await;
        tokio::time::sleep(jittered(CHECKS_SHOWN_EVERY)).await;
    }
}

async fn look_at_checks(state: &Arc<State>) {
    let checks = match readiness(state).await {
        Ok(ready) => ready.checks,
        Err(refusal) => refusal.checks().unwrap_or_default(),
    };
    for of in CHECKS {
        metrics::gauge!("fencepost_readyz_check", "of" => of).set(shown(checks.get(of)));
    }
}

/// What the gauge of a check shows. Of one that was not made, as before the start is complete, nothing is wrong.
fn shown(check: Option<&Check>) -> f64 {
    check.map_or(0.0, |check| match check.status {
        CheckStatus::Ok => 0.0,
        CheckStatus::Warn => 1.0,
        _ => 2.0,
    })
}

/// Shows the metrics
///
/// The metrics are in Prometheus' text format.
#[utoipa::path(
    get, path = "/metrics", tag = "operations", operation_id = "metrics",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain")),
)]
pub async fn metrics(state: Shared) -> HttpResponse {
    metrics::gauge!("fencepost_http_requests_in_flight").set(state.traffic.in_flight() as f64);
    for (of, kind) in [("reading", Kind::Reading), ("sending", Kind::Sending)] {
        metrics::gauge!("fencepost_callers_bytes", "of" => of).set(state.shares.in_use(kind) as f64);
    }
    metrics::gauge!("fencepost_sockets").set(state.shares.in_use(Kind::Sockets) as f64);
    if state.is_open() {
        metrics::gauge!("fencepost_pool_in_use", "pool" => state.ledger.kind().as_str())
            .set(f64::from(state.ledger.connections_in_use()));
    }
    let generators = state.is_open().then(|| &*state.generators);
    let left = generators.and_then(|generators| generators.segments.least_seconds_left());
    let left = left.map_or(SEGMENT_LEFT_SECONDS_MAX, |left| left.min(SEGMENT_LEFT_SECONDS_MAX));
    metrics::gauge!("fencepost_segment_left_seconds").set(left);
    HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(state.metrics.render())
}

/// A path that exists, with a method that it does not take.
pub async fn method_not_allowed(request: HttpRequest) -> Answer {
    let allow = routes::find(request.match_info().as_str()).map_or("GET, HEAD", Route::allow);
    Err(Refusal::method_not_allowed(allow))
}

/// A path that does not exist.
pub async fn not_found() -> Answer {
    Err(Refusal::new(Code::NotFound, "there is no such path; see /openapi.json"))
}

#[cfg(test)]
mod tests {
    use std::io;

    use actix_web::ResponseError as _;
    use actix_web::body::MessageBody as _;
    use actix_web::http::header::RETRY_AFTER;

    use super::*;

    #[test]
    fn who_may_not_read_why_an_instance_is_not_ready_reads_when_to_ask_again() {
        let down = Check { status: CheckStatus::Down, detail: Some("redis://secret".to_owned()) };
        let refusal = Refusal::new(Code::BusUnavailable, "redis://secret").with(|problem| {
            problem.checks = Some(named([("bus", down)]));
            problem.retry_after_ms = Some(STARTING_AGAIN_MS);
        });
        let answer = without_reasons(refusal).error_response();
        assert_eq!(answer.headers().get(RETRY_AFTER).unwrap(), "1");
        let body = answer.into_body().try_into_bytes().unwrap();
        let problem: wire::Problem = serde_json::from_slice(&body).unwrap();
        assert_eq!((problem.checks, problem.retry_after_ms), (None, Some(STARTING_AGAIN_MS)));
        assert!(!problem.detail.contains("secret"), "{}", problem.detail);
    }

    #[test]
    fn why_the_bus_is_away_is_said_without_the_words_of_a_server_that_refuses() {
        let source = |said: &str| -> bus::Cause { Arc::new(io::Error::other(said.to_owned())) };
        let denied = why_away(&bus::Error::Denied { source: source("secret") });
        assert_eq!(denied, "Redis refuses the user or the password");
        let forbidden = why_away(&bus::Error::Forbidden { source: source("secret") });
        assert_eq!(forbidden, "Redis denies its user a right; the log says which");
        assert!(!why_away(&bus::Error::Refused { source: source("secret") }).contains("secret"));
        let away = bus::Error::Unavailable { source: source("h:1: connection refused") };
        assert_eq!(why_away(&away), "h:1: connection refused");
    }

    #[test]
    fn a_bus_that_is_down_already_keeps_no_probe_waiting_for_a_second() {
        assert!(bus_check_max(false) < Duration::from_secs(1) / 2);
        assert_eq!(bus_check_max(true), HEALTH_TIMEOUT);
    }

    #[test]
    fn the_gauge_of_a_check_tells_what_is_wrong_from_what_does_not_work() {
        let of = |status| shown(Some(&Check { status, detail: None }));
        let gauges = [of(CheckStatus::Ok), of(CheckStatus::Warn), of(CheckStatus::Down), shown(None)];
        assert!(gauges.iter().zip([0.0, 1.0, 2.0, 0.0]).all(|(found, right)| *found == right), "{gauges:?}");
    }

    #[test]
    fn past_the_end_of_the_epoch_nothing_is_left_to_be_planned() {
        assert!(room_left(0).contains("no more snowflakes can be made"));
        assert!(room_left(1).contains("room for 0 more days; plan for another"));
        assert!(room_left(86_400_000 * 3).contains("room for 3 more days"));
    }
}
