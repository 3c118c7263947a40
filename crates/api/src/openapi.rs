//! The OpenAPI document: made of the handlers' and shapes' own annotations, and of the table of codes.

use serde_json::{Value, json};
use utoipa::OpenApi;
use wire::Code;
use wire::problem::MEDIA_TYPE;

use crate::auth::Access;
use crate::{
    events, housekeeping, ids, instances, jobs, leases, modes, nodes, routes, sessions, signers, worker,
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
        jobs::retry,
        jobs::retry_many,
        events::of_job,
        events::of_all,
        nodes::list,
        nodes::show,
        nodes::drain,
        nodes::undrain,
        nodes::select,
        nodes::pools,
        nodes::replace_pools,
        sessions::open,
        sessions::show,
        sessions::close,
        sessions::connect,
        worker::connect,
        ids::snowflakes,
        ids::decode,
        ids::list,
        ids::segment,
        ids::change_segment,
        ids::sequence,
        ids::change_sequence,
        ids::uuids,
        ids::leaf_segment,
        ids::leaf_snowflake,
        housekeeping::healthz,
        housekeeping::readyz,
        housekeeping::metrics,
        housekeeping::document,
        housekeeping::page,
    ),
    components(schemas(
        wire::Problem,
        Code,
        wire::events::JobEvent,
        wire::events::ProgressEvent,
        wire::events::NodeEvent,
        wire::events::ClusterEvent,
    ))
)]
struct Annotated;

const ABOUT: &str = "Nonces for blockchain accounts, from any number of instances: no duplicate, no lost hole. Jobs for \
    worker nodes: none lost, one result each. Ids: none twice, under any clock.\n\n\
    JSON in and out, UTF-8. Times are RFC 3339 in UTC; lengths are whole milliseconds. Fields, query parameters \
    and JSON keys that are unknown or repeated are refused. With configured tokens every request but the probes \
    shows one (`Authorization: Bearer …`); `submit` opens all of `/v1` but what says otherwise, `admin` opens \
    everything. Lists are paged: `limit` (1 to 1,000, default 100), and `cursor`, the `next_cursor` of the page \
    before.\n\n\
    Every refusal is `application/problem+json` with a stable `code`. Those that may succeed later carry \
    `Retry-After` (seconds) and `retry_after_ms`.";

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

/// Adds what all operations have in common: the request id, the token, the refusals.
fn complete(path: &str, method: &str, operation: &mut Value) {
    let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
    let id_header = json!({
        "description": "The request's id: the caller's, or one that was made",
        "schema": { "type": "string" },
    });
    if id == "grant" {
        operation["requestBody"]["required"] = Value::from(false);
    }
    let mut parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
    for parameter in &mut parameters {
        without_null(&mut parameter["schema"]);
    }
    parameters.push(json!({
        "name": "X-Request-Id", "in": "header", "required": false,
        "description": "The caller's id for this request, 1 to 128 visible ASCII characters. Answered and \
                        logged; one is made without it",
        "schema": { "type": "string", "minLength": 1, "maxLength": 128 },
    }));
    operation["parameters"] = Value::from(parameters);
    if !matches!(path, "/healthz" | "/readyz") {
        operation["security"] = json!([{}, { "token": [] }]);
    }
    let mut by_status = std::collections::BTreeMap::<u16, Vec<Code>>::new();
    for code in codes(path, method, &id) {
        by_status.entry(code.status()).or_default().push(code);
    }
    let responses = operation["responses"].as_object_mut().expect("an operation has responses");
    for response in responses.values_mut() {
        response["headers"]["X-Request-Id"] = id_header.clone();
    }
    for (status, codes) in by_status {
        let describe = |code: &Code| format!("`{code}`: {}", code.title());
        let mut headers = json!({ "X-Request-Id": id_header });
        if codes.iter().any(|code| code.is_retryable()) {
            headers["Retry-After"] = json!({
                "description": "After how many seconds to try again; retry_after_ms says it more exactly",
                "schema": { "type": "integer", "minimum": 1 },
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

/// A parameter may be left out, but there is no way to write a null into a header or a query.
fn without_null(schema: &mut Value) {
    if let Some(types) = schema.get_mut("type").and_then(Value::as_array_mut) {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            schema["type"] = only.clone();
        }
    }
    if let Some(choices) = schema.get_mut("oneOf").and_then(Value::as_array_mut) {
        choices.retain(|choice| choice["type"] != "null");
        if let [only] = choices.as_slice() {
            *schema = only.clone();
        }
    }
}

/// The codes with which an operation may be refused.
fn codes(path: &str, method: &str, id: &str) -> Vec<Code> {
    use Code::{
        AlreadySettled, BusUnavailable, ClockBehind, Conflict, Draining, Exhausted, Fenced, Forbidden,
        Internal, Invalid, KeyReused, LeaseHeld, LedgerUnavailable, MethodNotAllowed, NotFound, NotOwner,
        Overloaded, StaleHold, TooLarge, Unauthorized, UnsupportedMediaType, WindowFull,
    };
    let mut codes = vec![MethodNotAllowed, Internal];
    if matches!(path, "/healthz" | "/readyz") {
        if id == "readyz" {
            codes.extend([LedgerUnavailable, Draining]);
        }
        return codes;
    }
    codes.push(Unauthorized);
    if routes::find(path).is_none_or(|route| !matches!(route.access, Access::Scope(_))) {
        if id == "page" {
            codes.push(LedgerUnavailable);
        }
        return codes;
    }
    codes.extend([Invalid, Forbidden, LedgerUnavailable, Draining]);
    if matches!(method, "post" | "put") {
        codes.extend([TooLarge, UnsupportedMediaType, LeaseHeld, NotOwner, Fenced, Overloaded]);
    }
    codes.extend_from_slice(match id {
        "grant" => &[StaleHold, KeyReused, WindowFull, Exhausted],
        "settle" | "show_signer" | "list_nonces" | "show_lease" => &[NotFound],
        "consume" | "release" => &[NotFound, StaleHold, AlreadySettled],
        "resolve" => &[NotFound, StaleHold, Conflict, AlreadySettled],
        "set_policy" | "change_segment" | "change_sequence" => &[Conflict],
        "make_snowflakes" | "leaf_snowflake" => &[ClockBehind, Exhausted],
        "take_segment" => &[NotFound, Conflict, Exhausted],
        "take_sequence" => &[NotFound, Exhausted, Overloaded],
        "leaf_segment" => &[NotFound, Exhausted],
        "job_events" => &[NotFound, Overloaded, Fenced],
        "events" => &[Overloaded],
        "open_session" => &[KeyReused, BusUnavailable],
        "show_session" | "connect_client" => &[NotFound, Overloaded, BusUnavailable],
        "close_session" => &[NotFound, NotOwner, Fenced, BusUnavailable],
        "submit_job" => &[NotFound, Conflict, KeyReused, BusUnavailable],
        "submit_jobs" => &[KeyReused, BusUnavailable],
        "retry_job" => &[NotFound, Conflict, KeyReused],
        "show_job" | "cancel_job" => &[NotFound],
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
        let routed: BTreeSet<_> = routes::ALL
            .iter()
            .flat_map(|route| {
                let methods = route.allow.split(", ").filter(|method| *method != "HEAD");
                methods.map(|method| (route.pattern.to_owned(), method.to_owned()))
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

    #[test]
    fn every_code_can_be_met_somewhere() {
        let document = document();
        for code in Code::ALL {
            assert!(document.matches(&format!("`{code}`")).count() >= 2, "{code} is documented nowhere");
        }
    }
}
