//! The OpenAPI document. It is built from the annotations of handlers and shapes, and from the table of
//! codes. [`refine`] and [`constraints`] add what annotations cannot say.

#[cfg(test)]
mod bodies;
mod constraints;
mod refine;

use std::sync::LazyLock;

use actix_web::HttpResponse;
use actix_web::http::Method;
use actix_web::web::Bytes;
use serde_json::{Value, json};
use utoipa::OpenApi;
use wire::Code;
use wire::problem::MEDIA_TYPE;

use crate::auth::Access;
use crate::routes::{self, Route};
use crate::{
    audit, bulk, dashboard, events, ids, instances, jobs, leases, modes, nodes, ops, plans, sessions,
    signers, stats, whoami, worker,
};

#[derive(OpenApi)]
#[openapi(
    info(title = "Fencepost", license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")),
    paths(
        signers::grant,
        signers::settle,
        signers::consume,
        signers::release,
        signers::resolve,
        signers::set_policy,
        signers::confirm,
        audit::list,
        signers::show,
        signers::nonces,
        signers::list,
        leases::list,
        leases::show,
        instances::show,
        instances::owner,
        modes::show,
        modes::replace,
        jobs::submit,
        jobs::batch::submit_batch,
        jobs::show,
        jobs::list,
        jobs::cancel,
        jobs::dismiss,
        jobs::delete,
        jobs::retries::retry,
        jobs::retries::retry_many,
        bulk::begin,
        bulk::list,
        bulk::show,
        bulk::cancel,
        events::of_job,
        events::of_all,
        nodes::list,
        nodes::show,
        nodes::drain,
        nodes::undrain,
        nodes::select,
        nodes::pools,
        nodes::replace_pools,
        nodes::pause_pool,
        nodes::resume_pool,
        sessions::open,
        sessions::list,
        sessions::show,
        sessions::close,
        sessions::connect,
        plans::create,
        plans::list,
        plans::show,
        plans::tasks,
        plans::start,
        plans::pause,
        plans::resume,
        plans::cancel,
        plans::events::of_plan,
        plans::events::of_task,
        plans::tasks::show,
        plans::tasks::stages,
        plans::tasks::checkpoints,
        plans::tasks::pause,
        plans::tasks::resume,
        plans::tasks::cancel,
        plans::tasks::resolve,
        plans::retries::of_task,
        plans::retries::of_tenant,
        plans::tenants::show,
        plans::tenants::history,
        plans::tenants::unlock,
        worker::connect,
        ids::snowflakes,
        ids::decode,
        ids::list,
        ids::segment,
        ids::change_segment,
        ids::list_sequences,
        ids::sequence,
        ids::change_sequence,
        ids::uuids,
        ids::leaf_segment,
        ids::leaf_snowflake,
        stats::show,
        ops::healthz,
        ops::readyz,
        ops::metrics,
        show,
        whoami::show,
        dashboard::page,
        dashboard::asset,
    ),
    components(schemas(
        wire::Problem,
        Code,
        wire::events::JobEvent,
        wire::events::ProgressEvent,
        wire::events::NodeEvent,
        wire::events::ClusterEvent,
        wire::events::DigestEvent,
    ))
)]
struct Annotated;

const ABOUT: &str = "Nonces for blockchain accounts, from any number of instances: no duplicate, and no gap \
    left behind. Jobs for worker nodes: none lost, one result each. Plans: the same stages for many tenants, with people \
    who decide after a failure. Ids: no duplicate, under any clock.\n\n\
    Bodies are JSON in UTF-8. Times are RFC 3339 in UTC; lengths are whole milliseconds. Fields, JSON keys and query \
    parameters that are unknown or repeated are refused, but `/`, `/assets/{file}`, `/healthz`, `/readyz`, \
    `/metrics` and `/openapi.json` ignore such query parameters. Lists are paged: `limit` (1 to 1,000, default 100), and \
    `cursor`, the `next_cursor` of the page before. A page can have fewer items than `limit`, even none, while its \
    `next_cursor` says that the list goes on; it ends where that is `null`. A `next_cursor` that a token with patterns gets \
    is good for that token alone.\n\n\
    Where tokens are configured, every request but the probes and the dashboard's files must carry one \
    (`Authorization: Bearer …`), and `x-required-scope` of an operation names the scope that it must have, if any. The scope \
    `submit` includes `read`, and `admin` includes every other. Where no tokens are configured, the daemon listens on \
    loopback only and refuses requests \
    from web pages of other sites, on every path and on every WebSocket: the `Host` must be a loopback name \
    (`localhost`, `127.0.0.0/8`, `[::1]`, with any port), an `Origin` must be absent or equal to that host, and \
    `Sec-Fetch-Site` must be absent, `same-origin` or `none`; else the answer is 403 `forbidden`. So it is for a request \
    with `Forwarded`, `X-Forwarded-For`, `X-Forwarded-Host`, `X-Real-IP` or `Via`, which came through a proxy. GET and HEAD of \
    `/healthz` and `/readyz` may come through a proxy, with any `Host` or none.\n\n\
    Every refusal is `application/problem+json` with a stable `code`. Those that may succeed later carry \
    `Retry-After` (seconds) and `retry_after_ms`.\n\n\
    A GET reads what the ledger has when the request comes. With `Cache-Control: max-age=1` a caller accepts an answer from \
    one second earlier: several such callers of the same request, with the same token or with tokens of the same scopes that \
    see everything, share one answer. The dashboard polls so.";

/// Shows this document
#[utoipa::path(
    get, path = "/openapi.json", tag = "operations", operation_id = "openapi",
    responses((status = 200, description = "The API, as an OpenAPI document", body = Object)),
)]
pub async fn show() -> HttpResponse {
    static MADE: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(document()));
    HttpResponse::Ok().content_type("application/json").body(MADE.clone())
}

/// The document, as JSON.
///
/// # Panics
/// Never: it is made of constants.
#[must_use]
pub fn document() -> String {
    let mut document = serde_json::to_value(Annotated::openapi()).expect("the document's keys are texts");
    document["info"]["description"] = Value::from(format!("{ABOUT}\n\n{}", table()));
    document["info"]["version"] = Value::from(env!("CARGO_PKG_VERSION"));
    document["components"]["securitySchemes"] = json!({ "token": { "type": "http", "scheme": "bearer" } });
    let paths = document["paths"].as_object_mut().expect("there are paths");
    for (path, item) in paths {
        for (method, operation) in item.as_object_mut().expect("a path is an object") {
            complete(path, method, operation);
        }
    }
    refine::refine(&mut document);
    document.to_string()
}

fn table() -> String {
    let mut table = "| code | status | retryable | meaning |\n|---|---|---|---|\n".to_owned();
    for code in Code::ALL {
        let retryable = if code.is_retryable() { "yes" } else { "no" };
        table.push_str(&format!("| `{code}` | {} | {retryable} | {} |\n", code.status(), code.title()));
    }
    table
}

/// The headers that every answer on this path has.
fn common_headers(path: &str) -> Value {
    let mut headers = json!({ "X-Request-Id": {
        "description": "The request's id: the caller's, or one that the daemon chose",
        "schema": { "type": "string" },
    }});
    if path.starts_with("/v1/") {
        headers["X-Fencepost-Ring"] = json!({
            "description": "An opaque fingerprint of the ring and the mode: if it changes, the answer of `/v1/cluster` has \
                            changed. Absent before the instance has completed its start",
            "schema": { "type": "string" },
        });
    }
    headers
}

/// Adds what all operations have in common: the request id, the token, the refusals.
fn complete(path: &str, method: &str, operation: &mut Value) {
    let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
    if matches!(id.as_str(), "grant" | "open_session") || takes_reason(&id) {
        operation["requestBody"]["required"] = Value::from(false);
    }
    let mut parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
    for parameter in &mut parameters {
        // There is no way to write a null into a header or a query.
        refine::without_null(&mut parameter["schema"]);
    }
    parameters.push(json!({
        "name": "X-Request-Id", "in": "header", "required": false,
        "description": "The caller's id for this request, 1 to 128 visible ASCII characters. Answered and \
                        logged. Without it, or in place of any other text, the daemon chooses one",
        "schema": { "type": "string" },
    }));
    operation["parameters"] = Value::from(parameters);
    let access = access(path, method);
    operation["security"] = match access {
        Some(Access::Open) => json!([]),
        // Without tokens none is needed.
        _ => json!([{}, { "token": [] }]),
    };
    if let Some(Access::Scope(scope)) = access {
        operation["x-required-scope"] = Value::from(scope.as_str());
        let about = operation["description"].as_str().unwrap_or_default();
        let needs = format!("{about} This needs a token with the scope `{}`.", scope.as_str());
        operation["description"] = Value::from(needs.trim_start());
    }
    let is_for_all = routes::find(path).is_some_and(Route::is_for_all);
    if is_for_all {
        let about = operation["description"].as_str().unwrap_or_default();
        let needs = format!("{about} A token with patterns is refused (`forbidden`).");
        operation["description"] = Value::from(needs.trim_start());
    }
    let mut by_status = std::collections::BTreeMap::<u16, Vec<Code>>::new();
    for code in codes(path, method, &id) {
        by_status.entry(code.status()).or_default().push(code);
    }
    let responses = operation["responses"].as_object_mut().expect("an operation has responses");
    let common = common_headers(path);
    for response in responses.values_mut() {
        for (name, header) in common.as_object().into_iter().flatten() {
            response["headers"][name] = header.clone();
        }
    }
    for (status, codes) in by_status {
        let describe = |code: &Code| format!("`{code}`: {}", code.title());
        let mut headers = common.clone();
        if codes.iter().any(|code| code.is_retryable()) {
            headers["Retry-After"] = json!({
                "description": "The number of seconds after which to try again; retry_after_ms is more exact",
                "schema": { "type": "integer", "minimum": 1 },
            });
        }
        if codes.contains(&Code::Unauthorized) {
            headers["WWW-Authenticate"] = json!({
                "description": "`Bearer`: the request needs a token that the daemon knows",
                "schema": { "type": "string" },
            });
        }
        if codes.contains(&Code::MethodNotAllowed) {
            headers["Allow"] = json!({
                "description": "The methods that the path takes, with commas between them",
                "schema": { "type": "string" },
            });
        }
        responses.insert(
            status.to_string(),
            json!({
                "description": codes.iter().map(describe).collect::<Vec<_>>().join(". "),
                "headers": headers,
                "content": { MEDIA_TYPE: { "schema": { "$ref": "#/components/schemas/Problem" } } },
            }),
        );
    }
}

/// The access that an operation requires.
fn access(path: &str, method: &str) -> Option<Access> {
    let method = Method::from_bytes(method.to_uppercase().as_bytes()).ok()?;
    routes::find(path).map(|route| route.access(&method))
}

/// Whether an operation changes a plan or a task and takes nothing but a reason.
fn takes_reason(id: &str) -> bool {
    let change = id.strip_suffix("_plan").or_else(|| id.strip_suffix("_task"));
    matches!(change, Some("start" | "pause" | "resume" | "cancel"))
}

/// The operations that make what their path names, or compute something of it. What any other path names may be unknown.
const NEVER_UNKNOWN: [&str; 4] = ["change_segment", "change_sequence", "decode_snowflake", "leaf_snowflake"];

/// The codes with which an operation may be refused.
fn codes(path: &str, method: &str, id: &str) -> Vec<Code> {
    use Code::{
        AlreadySettled, BusUnavailable, ClockBehind, Conflict, DefinitionChanged, Draining, Exhausted,
        Fenced, Forbidden, Internal, Invalid, KeyReused, LeaseHeld, LedgerUnavailable, LedgerWentBack,
        MethodNotAllowed, NotFound, NotOwner, Overloaded, Recovering, StageUnknown, StaleHold, StillRunning,
        TenantLocked, TooLarge, Unauthorized, UnsupportedMediaType, WindowFull,
    };
    // Without tokens, of a request that names no host, or a foreign one. Every request has a head, which may be too long.
    let mut codes = vec![Invalid, Forbidden, MethodNotAllowed, TooLarge, Internal];
    if access(path, method) == Some(Access::Open) {
        match id {
            "readyz" => codes.extend([LedgerUnavailable, BusUnavailable, LedgerWentBack, Draining]),
            "page_asset" => codes.extend([NotFound, Overloaded]),
            _ => {}
        }
        return codes;
    }
    // Requests in flight, sockets, and bytes of answers have their limits.
    codes.extend([Unauthorized, Overloaded]);
    if !matches!(access(path, method), Some(Access::Scope(_))) {
        return codes;
    }
    codes.extend([LedgerUnavailable, LedgerWentBack, Draining]);
    // A DELETE may bring a body, an empty object, which is read as any other.
    if method != "get" {
        codes.push(UnsupportedMediaType);
    }
    if matches!(method, "post" | "put") {
        codes.extend([LeaseHeld, NotOwner, Fenced]);
    }
    if path.contains('{') && !NEVER_UNKNOWN.contains(&id) {
        codes.push(NotFound);
    }
    codes.extend_from_slice(match id {
        "grant" => &[StaleHold, KeyReused, WindowFull, Exhausted, Recovering],
        "consume" | "release" => &[StaleHold, AlreadySettled],
        "resolve" => &[StaleHold, Conflict, AlreadySettled],
        "confirm_signer" | "set_policy" => &[Conflict],
        "change_segment" | "change_sequence" | "change_mode" | "change_pools" => &[Conflict],
        "make_snowflakes" | "leaf_snowflake" => &[ClockBehind, Exhausted],
        "take_segment" => &[Conflict, Exhausted],
        "take_sequence" | "leaf_segment" => &[Exhausted],
        "job_events" => &[Fenced],
        // `not_found` is for a tenant or a pool that the token does not see.
        "open_session" => &[NotFound, KeyReused, BusUnavailable],
        "submit_jobs" | "retry_jobs" => &[KeyReused, BusUnavailable],
        "list_sessions" | "show_session" | "connect_client" => &[BusUnavailable],
        "close_session" => &[NotOwner, Fenced, BusUnavailable],
        "submit_job" => &[NotFound, Conflict, KeyReused, BusUnavailable],
        "retry_job" => &[Conflict, KeyReused, BusUnavailable],
        "create_plan" => &[NotFound, KeyReused, TenantLocked],
        "start_plan" | "resolve_stage" => &[Conflict, TenantLocked],
        "retry_task" | "retry_tenant" => {
            &[Conflict, KeyReused, TenantLocked, StageUnknown, StillRunning, DefinitionChanged]
        }
        "unlock_tenant" | "dismiss_job" | "delete_job" => &[Conflict],
        id if takes_reason(id) => &[Conflict],
        "begin_bulk" => &[KeyReused],
        _ => &[],
    });
    codes.sort_unstable_by_key(|code| code.as_str());
    codes.dedup();
    codes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_and_method_is_documented_and_nothing_else() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let mut documented = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                documented.insert((path.clone(), method.to_uppercase()));
                assert!(operation["summary"].is_string(), "{method} {path} has no summary");
                assert!(operation["responses"]["405"]["content"][MEDIA_TYPE].is_object(), "{method} {path}");
            }
        }
        let routed: BTreeSet<_> = Route::ALL
            .iter()
            .flat_map(|route| {
                let methods = route.methods().filter(|method| *method != Method::HEAD);
                methods.map(move |method| (route.pattern().to_owned(), method.to_string()))
            })
            .collect();
        assert_eq!(documented, routed);
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_field_is_described() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let mut open = vec![&document];
        while let Some(value) = open.pop() {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(target)) = fields.get("$ref") {
                        assert!(document.pointer(&target[1..]).is_some(), "{target}");
                    }
                    open.extend(fields.values());
                }
                Value::Array(items) => open.extend(items),
                _ => {}
            }
        }
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            for (field, about) in schema["properties"].as_object().into_iter().flatten() {
                // Of one that may be null, the other form is described.
                let forms = about["oneOf"].as_array().into_iter().flatten();
                let is_described = forms.chain([about]).any(|form| form["description"].is_string());
                assert!(is_described, "{name}.{field} is not described: {about}");
            }
        }
    }

    /// No schema can limit it.
    #[test]
    fn the_depth_of_a_patch_is_named_in_words() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let patch = &document["components"]["schemas"]["TaskRetryRequest"]["properties"]["context_patch"];
        let depth = format!("{} objects in each other", domain::limits::CONTEXT_PATCH_DEPTH_MAX);
        assert!(patch["description"].as_str().unwrap().contains(&depth), "{patch}");
    }

    #[test]
    fn a_name_of_a_job_is_documented_as_its_key_only_without_another() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let name = &document["components"]["schemas"]["JobRequest"]["properties"]["ref"];
        let about = name["description"].as_str().unwrap();
        assert!(about.contains("Unless the request has an `Idempotency-Key`"), "{about}");
    }

    #[test]
    fn every_code_can_be_met_somewhere() {
        let document = document();
        for code in Code::ALL {
            assert!(document.matches(&format!("`{code}`")).count() >= 2, "{code} is documented nowhere");
        }
    }

    #[test]
    fn whatever_takes_a_place_may_be_overloaded() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                // A large file takes room until it is read; nothing else that is open does.
                let takes = access(path, method) != Some(Access::Open) || path == "/assets/{file}";
                assert_eq!(operation["responses"]["429"].is_object(), takes, "{method} {path}");
            }
        }
    }

    #[test]
    fn whatever_reads_a_body_may_refuse_its_media_type_and_everything_a_length() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let lists = |code: Code| operation["responses"][code.status().to_string()].is_object();
                // Of the head, if of nothing else.
                assert!(lists(Code::TooLarge), "{method} {path}");
                assert_eq!(lists(Code::UnsupportedMediaType), method != "get", "{method} {path}");
            }
        }
    }

    #[test]
    fn answers_have_the_headers_that_are_sent() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                for (status, answer) in operation["responses"].as_object().unwrap() {
                    let has = |name: &str| answer["headers"][name]["description"].is_string();
                    assert!(has("X-Request-Id"), "{method} {path} {status}");
                    assert_eq!(has("X-Fencepost-Ring"), path.starts_with("/v1/"), "{method} {path} {status}");
                    assert_eq!(has("WWW-Authenticate"), status == "401", "{method} {path} {status}");
                    assert_eq!(has("Allow"), status == "405", "{method} {path} {status}");
                    let about = answer["description"].as_str().unwrap();
                    let names = |code: &Code| about.contains(&format!("`{code}`: "));
                    let may_pass = Code::ALL.iter().any(|code| code.is_retryable() && names(code));
                    assert_eq!(has("Retry-After"), may_pass, "{method} {path} {status}");
                    assert!(may_pass || (status != "429" && status != "503"), "{method} {path} {status}");
                }
            }
        }
    }

    #[test]
    fn what_needs_a_token_without_patterns_says_so() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let mut paths = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let about = operation["description"].as_str().unwrap_or_default();
                if about.contains("A token with patterns is refused") {
                    paths.insert(format!("{method} {path}"));
                }
            }
        }
        let of_all = [
            "get /metrics",
            "get /v1/audit",
            "get /v1/config/mode",
            "get /v1/events",
            "get /v1/stats",
            "post /v1/nodes/select",
            "put /v1/config/mode",
            "put /v1/config/pools",
        ];
        assert_eq!(paths, BTreeSet::from(of_all.map(str::to_owned)));
    }

    #[test]
    fn a_body_may_be_left_out_where_the_handler_takes_none() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let items = document["paths"].as_object().unwrap().values();
        let operations = items.flat_map(|item| item.as_object().unwrap().values());
        let optional: BTreeSet<_> = operations
            .filter(|operation| operation["requestBody"]["required"] == false)
            .map(|operation| operation["operationId"].as_str().unwrap())
            .collect();
        let of_plans = [
            "cancel_plan",
            "cancel_task",
            "pause_plan",
            "pause_task",
            "resume_plan",
            "resume_task",
            "start_plan",
        ];
        assert_eq!(optional, ["grant", "open_session"].into_iter().chain(of_plans).collect());
    }

    #[test]
    fn refusals_by_what_was_asked_or_changed_before_are_listed() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        for (method, path, code) in [
            ("put", "/v1/config/mode", Code::Conflict),
            ("put", "/v1/config/pools", Code::Conflict),
            ("post", "/v1/jobs/retry", Code::KeyReused),
            ("post", "/v1/jobs/retry", Code::BusUnavailable),
            ("post", "/v1/jobs/{id}/retry", Code::Conflict),
            ("post", "/v1/jobs/{id}/retry", Code::NotFound),
            ("post", "/v1/jobs/{id}/retry", Code::BusUnavailable),
            ("post", "/v1/sessions", Code::NotFound),
            ("get", "/readyz", Code::BusUnavailable),
        ] {
            let refusal = &document["paths"][path][method]["responses"][code.status().to_string()];
            let about = refusal["description"].as_str().unwrap_or_default();
            assert!(about.contains(&format!("`{code}`")), "{method} {path} lacks {code}: {about}");
        }
    }

    /// What a reference or an inline schema stands for.
    fn resolved<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
        match schema["$ref"].as_str() {
            Some(target) => document.pointer(&target[1..]).unwrap_or(&Value::Null),
            None => schema,
        }
    }

    /// The words that a schema allows.
    fn words(schema: &Value) -> Vec<&str> {
        schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }

    #[test]
    fn every_enum_has_exactly_the_words_of_its_type() {
        fn of<T: Copy>(all: &[T], word: fn(T) -> &'static str) -> Vec<&'static str> {
            all.iter().map(|one| word(*one)).collect()
        }
        use wire::{bulk, cluster, events, health, jobs, nodes, nonces, plans, sessions, whoami};
        let document: Value = serde_json::from_str(&document()).unwrap();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let known = [
            ("Status", of(nonces::Status::ALL, nonces::Status::as_str)),
            ("SettlementOutcome", of(nonces::Outcome::ALL, nonces::Outcome::as_str)),
            ("ReleaseOutcome", of(nonces::ReleaseOutcome::ALL, nonces::ReleaseOutcome::as_str)),
            ("Resolution", of(nonces::Resolution::ALL, nonces::Resolution::as_str)),
            ("OnExpiry", of(nonces::OnExpiry::ALL, nonces::OnExpiry::as_str)),
            ("BulkAction", of(bulk::BulkAction::ALL, bulk::BulkAction::as_str)),
            ("BulkStatus", of(bulk::BulkStatus::ALL, bulk::BulkStatus::as_str)),
            ("JobState", of(jobs::JobState::ALL, jobs::JobState::as_str)),
            ("Outcome", of(jobs::Outcome::ALL, jobs::Outcome::as_str)),
            ("Ordering", of(sessions::Ordering::ALL, sessions::Ordering::as_str)),
            ("PlanStatus", of(plans::PlanStatus::ALL, plans::PlanStatus::as_str)),
            ("TaskStatus", of(plans::TaskStatus::ALL, plans::TaskStatus::as_str)),
            ("StageStatus", of(plans::StageStatus::ALL, plans::StageStatus::as_str)),
            ("Intent", of(plans::Intent::ALL, plans::Intent::as_str)),
            ("OnFailure", of(plans::OnFailure::ALL, plans::OnFailure::as_str)),
            ("OnUnknown", of(plans::OnUnknown::ALL, plans::OnUnknown::as_str)),
            ("StageOutcome", of(plans::StageOutcome::ALL, plans::StageOutcome::as_str)),
            ("RetryPoint", of(plans::RetryPoint::ALL, plans::RetryPoint::as_str)),
            ("Mode", of(cluster::Mode::ALL, cluster::Mode::as_str)),
            ("NodeState", of(nodes::NodeState::ALL, nodes::NodeState::as_str)),
            ("ClaimStatus", of(nodes::ClaimStatus::ALL, nodes::ClaimStatus::as_str)),
            ("NodeHappening", of(events::NodeHappening::ALL, events::NodeHappening::as_str)),
            ("ClusterHappening", of(events::ClusterHappening::ALL, events::ClusterHappening::as_str)),
            ("TokenScope", of(whoami::TokenScope::ALL, whoami::TokenScope::as_str)),
            ("Readiness", of(health::Readiness::ALL, health::Readiness::as_str)),
            ("CheckStatus", of(health::CheckStatus::ALL, health::CheckStatus::as_str)),
            ("Code", Code::ALL.iter().map(|code| code.as_str()).collect()),
        ];
        for (name, expected) in &known {
            assert_eq!(words(&schemas[*name]), *expected, "{name}");
        }
        let enums: BTreeSet<_> = schemas
            .iter()
            .filter(|(_, schema)| schema["enum"].is_array())
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(
            enums,
            known.iter().map(|(name, _)| *name).collect(),
            "an enum is not compared with its type"
        );
    }

    #[test]
    fn every_field_of_the_contract_that_is_one_of_some_words_has_these_words() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        for (schema, field, expected) in [
            ("Settlement", "outcome", &["consumed", "never_sent", "unknown"][..]),
            ("ReleaseRequest", "outcome", &["never_sent", "unknown"]),
            ("ResolveRequest", "outcome", &["consumed", "never_sent"]),
            ("Grant", "status", &["HELD", "CONSUMED", "RELEASED", "QUARANTINED"]),
            ("NonceAnswer", "status", &["HELD", "CONSUMED", "RELEASED", "QUARANTINED"]),
            ("NonceRecord", "status", &["HELD", "CONSUMED", "RELEASED", "QUARANTINED"]),
            ("PolicyRequest", "on_expiry", &["release", "quarantine"]),
            ("ModeRequest", "mode", &["basic", "worker-queue"]),
            ("Job", "state", &["CREATED", "DISPATCHED", "RUNNING", "FINISHED"]),
            ("Job", "outcome", &["succeeded", "failed", "cancelled", "timed_out"]),
            ("SessionRequest", "ordering", &["strict", "results", "none"]),
            ("Plan", "status", &["CREATED", "RUNNING", "PAUSED", "ATTENTION", "SUCCEEDED", "CANCELLED"]),
            ("PlanRequest", "on_failure", &["stop_new", "continue", "pause"]),
            (
                "Task",
                "status",
                &["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "PAUSED", "INTERRUPTED", "CANCELLED"],
            ),
            ("Task", "intent", &["run", "pause", "cancel"]),
            ("TaskStage", "status", &["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "SKIPPED", "UNKNOWN"]),
            ("StageRequest", "on_unknown", &["confirm", "rerun"]),
            ("StageResolveRequest", "outcome", &["done", "not_done"]),
            ("Ready", "status", &["ready", "degraded"]),
        ] {
            let shape = &document["components"]["schemas"][schema]["properties"][field];
            // One that may be null refers to its words beside the null.
            let forms = shape["oneOf"].as_array().into_iter().flatten().chain([shape]);
            let found: Vec<_> = forms.flat_map(|form| words(resolved(&document, form))).collect();
            assert_eq!(found, expected, "{schema}.{field}: {shape}");
        }
    }

    /// The names under which the types of `wire` appear in the document, read from its sources: two types of one name
    /// would overwrite each other without a word.
    #[test]
    fn no_two_types_share_a_name_in_the_document() {
        fn sources(dir: &std::path::Path) -> String {
            let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
            entries
                .map(
                    |path| {
                        if path.is_dir() { sources(&path) } else { std::fs::read_to_string(path).unwrap() }
                    },
                )
                .collect()
        }
        let text = sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/src"));
        let (mut names, mut is_shape, mut alias) = (Vec::new(), false, None);
        for line in text.lines().map(str::trim) {
            is_shape |= line.starts_with("#[derive(") && line.contains("ToSchema") || line == "words! {";
            if let Some((_, name)) = line.split_once("#[schema(as = ") {
                alias = name.split(')').next();
            }
            let forms = ["pub struct ", "pub enum ", "pub growing enum "];
            let declared = forms.iter().find_map(|form| line.strip_prefix(form));
            // A name with a `$` is a macro's parameter.
            if let Some(declared) = declared.filter(|declared| is_shape && !declared.starts_with('$')) {
                let name = declared.split(|c: char| !c.is_alphanumeric()).next().unwrap();
                names.push(alias.take().unwrap_or(name));
                is_shape = false;
            }
        }
        let all: BTreeSet<_> = names.iter().collect();
        assert!(all.len() > 60, "the sources are not read as they are written: {names:?}");
        assert_eq!(all.len(), names.len(), "two types have one name: {names:?}");
        let document: Value = serde_json::from_str(&document()).unwrap();
        for name in document["components"]["schemas"].as_object().unwrap().keys() {
            // A list has the name of its items' type as well.
            let own = name.split('_').next().unwrap();
            assert!(all.contains(&own), "{name} is no type of `wire`, so its name may be another's too");
        }
    }
}
