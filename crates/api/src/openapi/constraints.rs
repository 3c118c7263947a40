//! What the names and texts of requests are made of, as patterns and lengths: what the daemon refuses, the document does not
//! allow. A test compares both on samples. The remaining differences are in docs/api-document.md.

use domain::limits as l;
use domain::{ResourceKind, limits::ID_WORKER_MAX};
use serde_json::{Map, Value, json};
use wire::limits::{ID_BATCH_MAX, JOB_WAIT_MS_MAX, LIST_ITEMS_DEFAULT, LIST_ITEMS_MAX};

use crate::limits::CURSOR_CHARS_MAX;

const UUID: &str = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
/// Visible ASCII characters.
const PRINTABLE: &str = "^[!-~]+$";
/// Without the character NUL.
const PROSE: &str = "^[^\\u0000]*$";
/// Without control characters.
const NAME: &str = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$";
/// The same, but neither `.` nor `..`.
const PATH_NAME: &str = "^([^.\\u0000-\\u001f\\u007f-\\u009f][^\\u0000-\\u001f\\u007f-\\u009f]*\
    |\\.[^.\\u0000-\\u001f\\u007f-\\u009f][^\\u0000-\\u001f\\u007f-\\u009f]*\
    |\\.\\.[^\\u0000-\\u001f\\u007f-\\u009f]+)$";
/// A whole number in its one spelling, of so few digits that every reader has room for it.
const DIGITS: &str = "(0|[1-9][0-9]{0,14})";
/// The same, below the largest number of 32 bits.
const FEW_DIGITS: &str = "(0|[1-9][0-9]{0,8})";
/// An id of 63 bits in its one spelling, below 9,000,000,000,000,000,000: a pattern that says where 63 bits end is too long to
/// read.
const ID_DIGITS: &str = "^(0|[1-9][0-9]{0,17}|[1-8][0-9]{18})$";

/// A sealed key in a cursor: in base64, 28 bytes and a key of one at least.
const SEALED: &str = "~[A-Za-z0-9_-]{39,}";

/// The lists: the operation, what its cursors begin with, and the key that follows.
const CURSORS: [(&str, &str, Key); 16] = [
    ("list_audit", "a", Key::Digits),
    ("list_bulk", "b", Key::Uuid),
    ("list_checkpoints", "c", Key::FewDigits),
    ("list_jobs", "j", Key::Uuid),
    ("list_leases", "l", Key::Resource),
    ("list_nodes", "n", Key::Name(l::NODE_ID_CHARS_MAX)),
    ("list_nonces", "n", Key::Digits),
    ("list_plan_tasks", "k", Key::Digits),
    ("list_plans", "p", Key::Uuid),
    ("list_segments", "t", Key::Name(l::SEGMENT_TAG_CHARS_MAX)),
    ("list_sequences", "q", Key::Name(l::SEQUENCE_NAME_CHARS_MAX)),
    ("list_sessions", "ses", Key::Name(l::SESSION_ID_CHARS_MAX)),
    ("list_signers", "s", Key::Name(l::SIGNER_ID_CHARS_MAX)),
    ("list_tenant_tasks", "h", Key::Uuid),
    ("plan_events", "e", Key::Digits),
    ("task_events", "e", Key::Digits),
];

/// The lists that seal the keys in the cursors of tokens with patterns.
const SEALING: [&str; 7] = [
    "list_jobs",
    "list_leases",
    "list_nodes",
    "list_plans",
    "list_sessions",
    "list_signers",
    "list_tenant_tasks",
];

/// The key in a cursor.
#[derive(Clone, Copy)]
enum Key {
    Uuid,
    Digits,
    FewDigits,
    Name(usize),
    Resource,
}

impl Key {
    fn pattern(self) -> String {
        match self {
            Self::Uuid => UUID.to_owned(),
            Self::Digits => DIGITS.to_owned(),
            Self::FewDigits => FEW_DIGITS.to_owned(),
            Self::Name(chars) => safe_of(chars, ":"),
            Self::Resource => format!("({})", resource_of()),
        }
    }
}

/// 1 to `chars` letters, digits and `. _ @ -` and the characters of `more`, but neither `.` nor `..`.
fn safe_of(chars: usize, more: &str) -> String {
    let (first, any) = (format!("[A-Za-z0-9_{more}@-]"), format!("[A-Za-z0-9._{more}@-]"));
    let (one, two, three) = (chars - 1, chars - 2, chars - 3);
    format!(
        "({first}{any}{{0,{one}}}|\\.{first}{any}{{0,{two}}}|\\.\\.{first}{any}{{0,{three}}}|\\.\\.\\.{any}{{0,{three}}})"
    )
}

/// A resource with a lease, such as `signer:eip155:1:0xab`.
fn resource_of() -> String {
    let of_kind = |kind: &ResourceKind| {
        let id = match kind {
            ResourceKind::Signer => safe_of(l::SIGNER_ID_CHARS_MAX, ":"),
            ResourceKind::Instance => safe_of(l::INSTANCE_ID_CHARS_MAX, ":"),
            ResourceKind::Session => safe_of(l::SESSION_ID_CHARS_MAX, ":"),
            ResourceKind::Tenant => safe_of(l::TENANT_ID_CHARS_MAX, ":"),
            ResourceKind::Plan => UUID.to_owned(),
            ResourceKind::IdWorker => "(0|[1-9][0-9]{0,2}|10[01][0-9]|102[0-3])".to_owned(),
        };
        format!("{kind}:{id}", kind = kind.as_str())
    };
    ResourceKind::ALL.iter().map(of_kind).collect::<Vec<_>>().join("|")
}

const _: () = assert!(ID_WORKER_MAX == 1_023, "the pattern of worker numbers has that");

fn safe(chars: usize) -> Value {
    let pattern = format!("^{}$", safe_of(chars, ":"));
    json!({ "minLength": 1, "maxLength": chars, "pattern": pattern })
}

fn printable(chars: usize) -> Value {
    json!({ "minLength": 1, "maxLength": chars, "pattern": PRINTABLE })
}

/// `source:target`, the languages of a route.
fn route() -> Value {
    let (source, target) = (safe_of(l::LANGUAGE_CHARS_MAX, ""), safe_of(l::LANGUAGE_CHARS_MAX, ":"));
    let chars = 2 * l::LANGUAGE_CHARS_MAX + 1;
    json!({ "minLength": 3, "maxLength": chars, "pattern": format!("^{source}:{target}$") })
}

/// What a field of a request is made of.
fn of_field(schema: &str, field: &str) -> Option<Value> {
    Some(match (schema, field) {
        (_, "tenant") => safe(l::TENANT_ID_CHARS_MAX),
        (_, "pool") | ("Pool", "name") => safe(l::POOL_NAME_CHARS_MAX),
        (_, "session") => safe(l::SESSION_ID_CHARS_MAX),
        (_, "kind") => printable(l::JOB_KIND_CHARS_MAX),
        (_, "ref") => printable(l::CLIENT_REF_CHARS_MAX),
        (_, "tx_hash") => printable(l::TX_HASH_CHARS_MAX),
        ("StageResolveRequest", "job") => json!({ "format": "uuid", "pattern": format!("^{UUID}$") }),
        ("Route", _) => safe(l::LANGUAGE_CHARS_MAX),
        (_, "reason" | "description") => json!({ "pattern": PROSE }),
        ("PlanRequest" | "TaskRequest", "name") => json!({ "pattern": NAME }),
        ("StageRequest", "name") => json!({ "pattern": PATH_NAME }),
        ("SegmentRequest" | "SequenceRequest", "start") => {
            json!({ "type": ["integer", "string"], "pattern": ID_DIGITS })
        }
        _ => return None,
    })
}

/// What the items of a list in a request are made of.
fn of_items(schema: &str, field: &str) -> Option<Value> {
    Some(match (schema, field) {
        (_, "requires") => safe(l::LABEL_CHARS_MAX),
        ("Pool", "routes") => route(),
        ("RetryRequest", "ids") => json!({ "format": "uuid", "pattern": format!("^{UUID}$") }),
        ("ModeRequest", "only") => {
            let signer = safe_of(l::SIGNER_ID_CHARS_MAX, ":");
            json!({ "pattern": format!("^signer:{signer}$") })
        }
        _ => return None,
    })
}

/// Which fields of a request go together.
fn of_request(schema: &str) -> Option<Value> {
    let outcome_of = |field: &str, outcome: &str| {
        let outcome = json!({ "properties": { "outcome": { "const": outcome } } });
        json!({ "dependentSchemas": { field: outcome } })
    };
    Some(match schema {
        "JobRequest" => json!({
            "not": { "required": ["delay_ms", "run_at"] },
            "dependentRequired": { "ref": ["session"] },
        }),
        "Settlement" | "ResolveRequest" => outcome_of("tx_hash", "consumed"),
        "StageResolveRequest" => outcome_of("context", "done"),
        "RetryRequest" => {
            let by_ids = json!({ "required": ["ids"], "maxProperties": 1 });
            let by = |condition| {
                let properties = json!({ "ids": false, "state": { "const": "FINISHED" } });
                json!({ "required": [condition], "properties": properties })
            };
            let conditions = ["state", "outcome", "session", "tenant", "pool", "kind", "dead"];
            let ways: Vec<_> = std::iter::once(by_ids).chain(conditions.map(by)).collect();
            json!({ "anyOf": ways })
        }
        "BulkRequest" => {
            let action = |action: &str, filter: Value| {
                let properties = json!({ "action": { "const": action }, "filter": filter });
                json!({ "required": ["action", "filter"], "properties": properties })
            };
            let finished = json!({ "const": "FINISHED" });
            let dead = json!({ "required": ["dead"], "properties": { "dead": { "const": true } } });
            let retry = json!({
                "properties": { "state": finished },
                "anyOf": [{ "required": ["outcome"] }, dead],
            });
            let cancel = json!({
                "minProperties": 1,
                "properties": {
                    "state": { "enum": ["CREATED", "DISPATCHED", "RUNNING"] }, "outcome": false, "dead": false,
                },
            });
            let delete = json!({ "minProperties": 1, "properties": { "state": finished } });
            let dismiss = json!({ "properties": {
                "state": finished, "dead": { "const": true }, "outcome": { "enum": ["failed", "timed_out"] },
            } });
            json!({ "anyOf": [
                action("retry", retry), action("cancel", cancel), action("delete", delete),
                json!({
                    "properties": { "action": { "const": "dismiss" }, "filter": dismiss },
                }),
            ] })
        }
        _ => return None,
    })
}

/// Completes the schemas of what requests have in their bodies: those that allow no other fields.
pub fn of_bodies(schemas: &mut Map<String, Value>) {
    for (name, schema) in schemas.iter_mut().filter(|(_, schema)| schema["additionalProperties"] == false) {
        for (field, property) in schema["properties"].as_object_mut().into_iter().flatten() {
            if let Some(constraint) = of_field(name, field) {
                merge(property, constraint);
            }
            if let Some(constraint) = of_items(name, field) {
                merge(&mut property["items"], constraint);
            }
            // A job may name a label twice; a pool may not.
            if name == "Pool" && matches!(field.as_str(), "routes" | "requires") {
                merge(property, json!({ "uniqueItems": true }));
            }
            if field == "metadata" {
                merge(
                    property,
                    json!({
                        "maxProperties": l::METADATA_ENTRIES_MAX,
                        "propertyNames": { "type": "string", "minLength": 1, "maxLength": l::METADATA_KEY_BYTES_MAX },
                        "additionalProperties": { "type": "string", "maxLength": l::METADATA_VALUE_BYTES_MAX },
                    }),
                );
            }
        }
        if let Some(constraint) = of_request(name) {
            merge(schema, constraint);
        }
    }
}

fn merge(schema: &mut Value, constraint: Value) {
    let (Value::Object(schema), Value::Object(constraint)) = (schema, constraint) else { return };
    schema.extend(constraint);
}

/// A whole number of this format, between these two.
fn whole(format: &str, minimum: u64, maximum: u64) -> Value {
    json!({ "type": "integer", "format": format, "minimum": minimum, "maximum": maximum })
}

/// What a name or a number in a path, a query or a header is made of, as its whole schema: the annotations leave it out.
pub fn of_parameter(operation: &str, name: &str, place: &str, parameter: &mut Value) {
    let text = |constraint: Value| {
        let mut schema = json!({ "type": "string" });
        merge(&mut schema, constraint);
        Some(schema)
    };
    let is_node = operation.ends_with("_node");
    let is_session = operation.ends_with("_session") || operation == "connect_client";
    let schema = match (place, name) {
        ("query", "cursor") => {
            let list = CURSORS.iter().find(|(list, _, _)| *list == operation);
            let (_, begin, key) = list.unwrap_or_else(|| panic!("{operation} has cursors"));
            let mut key = key.pattern();
            if SEALING.contains(&operation) {
                key = format!("({key}|{SEALED})");
            }
            let pattern = format!("^{begin}\\.{key}$");
            text(json!({ "minLength": 1, "maxLength": CURSOR_CHARS_MAX, "pattern": pattern }))
        }
        ("query", "principal" | "action" | "subject") => text(json!({ "pattern": PROSE })),
        ("header", "Idempotency-Key") => text(printable(l::IDEMPOTENCY_KEY_CHARS_MAX)),
        ("query", "session") => text(safe(l::SESSION_ID_CHARS_MAX)),
        ("path", "id") if is_session => text(safe(l::SESSION_ID_CHARS_MAX)),
        ("path", "id") if is_node => text(safe(l::NODE_ID_CHARS_MAX)),
        ("query", "node") => text(safe(l::NODE_ID_CHARS_MAX)),
        ("path", "id") if operation == "decode_snowflake" => {
            text(json!({ "minLength": 1, "maxLength": 19, "pattern": ID_DIGITS }))
        }
        ("path", "id" | "plan" | "task") => text(json!({ "format": "uuid", "pattern": format!("^{UUID}$") })),
        ("path", "signer") => text(safe(l::SIGNER_ID_CHARS_MAX)),
        ("query" | "path", "tenant") => text(safe(l::TENANT_ID_CHARS_MAX)),
        ("query" | "path", "pool") => text(safe(l::POOL_NAME_CHARS_MAX)),
        ("query", "kind") if operation == "list_jobs" => text(printable(l::JOB_KIND_CHARS_MAX)),
        ("query", "kind") => {
            let kinds: Vec<_> = ResourceKind::ALL.iter().map(|kind| kind.as_str()).collect();
            text(json!({ "enum": kinds }))
        }
        ("path", "resource") => text(json!({ "pattern": format!("^({})$", resource_of()) })),
        ("query", "owner") => text(safe(l::INSTANCE_ID_CHARS_MAX)),
        ("path", "tag") => text(safe(l::SEGMENT_TAG_CHARS_MAX)),
        ("query" | "path", "name") => text(safe(l::SEQUENCE_NAME_CHARS_MAX)),
        ("query", "limit") => {
            let mut schema = whole("int32", 1, LIST_ITEMS_MAX.into());
            // A stream, which the same path may be asked for, takes none.
            if !operation.ends_with("_events") {
                schema["default"] = Value::from(LIST_ITEMS_DEFAULT);
            }
            Some(schema)
        }
        ("query", "count") => {
            let mut schema = whole("int32", 1, ID_BATCH_MAX);
            schema["default"] = Value::from(1);
            Some(schema)
        }
        ("query", "wait_ms") => {
            let mut schema = whole("int64", 0, JOB_WAIT_MS_MAX);
            schema["default"] = Value::from(0);
            Some(schema)
        }
        ("query", "digest" | "once" | "retriable" | "scrambled") => {
            Some(json!({ "type": "boolean", "default": false }))
        }
        ("query", "version") => Some(json!({ "type": "integer", "enum": [4, 7], "default": 7 })),
        ("query", "kinds") => {
            parameter["style"] = Value::from("form");
            parameter["explode"] = Value::from(false);
            let words = ["job", "progress", "node", "cluster"];
            Some(json!({ "type": "array", "minItems": 1, "items": { "type": "string", "enum": words } }))
        }
        _ => None,
    };
    if let Some(schema) = schema {
        parameter["schema"] = schema;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use actix_web::test::TestRequest;
    use domain::job::{Metadata, Route};
    use domain::plan::StageSpec;
    use domain::plan::spec::check_stages;
    use domain::{
        ClientRef, IdempotencyKey, InstanceId, JobId, JobKind, Label, Language, NodeId, PlanId, PoolName,
        Resource, SegmentTag, SequenceName, SessionId, SignerId, TenantId, TxHash,
    };
    use regex_lite::Regex;

    use super::*;
    use crate::extract;
    use crate::ids::uuid_version;

    fn document() -> Value {
        serde_json::from_str(&super::super::document()).unwrap()
    }

    /// Whether the schema allows the text.
    fn allows(schema: &Value, text: &str) -> bool {
        let chars = text.chars().count() as u64;
        let pattern = schema["pattern"].as_str().map(|pattern| Regex::new(pattern).unwrap());
        schema["minLength"].as_u64().is_none_or(|min| chars >= min)
            && schema["maxLength"].as_u64().is_none_or(|max| chars <= max)
            && schema["enum"].as_array().is_none_or(|words| words.iter().any(|word| word == text))
            && pattern.is_none_or(|pattern| pattern.is_match(text))
    }

    fn samples() -> Vec<String> {
        let mut samples: Vec<String> = [
            "",
            ".",
            "..",
            "...",
            "....",
            ".a",
            "..a",
            "...a",
            "a.",
            "a..",
            "a b",
            " a",
            "a ",
            "a/b",
            "a%b",
            "a{b}",
            "\u{e4}",
            "\u{1f600}",
            "a\0",
            "\0",
            "a\n",
            "\n",
            "a\u{7f}",
            "a\u{85}",
            "\u{85}",
            "A.b_c:d@e-f",
            "zh",
            "zh:en",
            ":",
            "a:",
            ":a",
            ".:a",
            "a:.",
            "..:a",
            "..a:..b",
            "a:b:c",
            "a:..",
            "eip155:1:0xab",
            "0xab/+=",
            "0x ab",
            "~!",
            "\"",
            "signer",
            "id-worker",
            "signer:a",
            "signer:",
            "signer:.",
            "signer:a/b",
            "lane:a",
            "session:s",
            "tenant:t",
            "instance:i-1",
            "id-worker:0",
            "id-worker:7",
            "id-worker:07",
            "id-worker:+7",
            "id-worker:1023",
            "id-worker:1024",
            "id-worker:999",
            "id-worker:1000",
            "plan:x",
            "plan:01890a5d-ac96-774b-bcce-b302099a8057",
            "plan:01890A5D-AC96-774B-BCCE-B302099A8057",
            "01890a5d-ac96-774b-bcce-b302099a8057",
            "01890a5d-ac96-774b-bcce-b302099a805",
            "0",
            "7",
            "07",
            "+7",
            "-7",
            "7.0",
            "123456789012345",
        ]
        .map(str::to_owned)
        .to_vec();
        for chars in [35, 36, 64, 65, 128, 129] {
            samples.push("x".repeat(chars));
            samples.push(format!("..{}", "x".repeat(chars - 2)));
            samples.push(".".repeat(chars));
            samples.push(format!("signer:{}", "x".repeat(chars)));
            samples.push(format!("{}:{}", "a".repeat(chars), "b".repeat(35)));
            samples.push(format!("{}:{}", "a".repeat(35), "b".repeat(chars)));
            samples.push("\u{e4}".repeat(chars));
        }
        samples
    }

    #[test]
    fn what_the_document_allows_the_daemon_takes_and_nothing_else() {
        let document = document();
        let field = |schema: &str, field: &str| {
            document["components"]["schemas"][schema]["properties"][field].clone()
        };
        let parameter = |path: &str, method: &str, name: &str| {
            let parameters = document["paths"][path][method]["parameters"].as_array().unwrap();
            let found = parameters.iter().find(|parameter| parameter["name"] == name);
            found.unwrap_or_else(|| panic!("{method} {path} has {name}"))["schema"].clone()
        };
        let items = |schema: &str, name: &str| field(schema, name)["items"].clone();
        type Reads = fn(&str) -> bool;
        let tenant: Reads = |text| TenantId::parse(text).is_ok();
        let pool: Reads = |text| PoolName::parse(text).is_ok();
        let session: Reads = |text| SessionId::parse(text).is_ok();
        let kind: Reads = |text| JobKind::parse(text).is_ok();
        let label: Reads = |text| Label::parse(text).is_ok();
        let language: Reads = |text| Language::parse(text).is_ok();
        let resource: Reads = |text| Resource::parse(text).is_ok();
        let signer: Reads = |text| SignerId::parse(text).is_ok();
        let node: Reads = |text| NodeId::parse(text).is_ok();
        let tx_hash: Reads = |text| TxHash::parse(text).is_ok();
        let key: Reads = |text| IdempotencyKey::parse(text).is_ok();
        let table: Vec<(Value, Reads)> = vec![
            (field("JobRequest", "tenant"), tenant),
            (field("JobRequest", "pool"), pool),
            (field("JobRequest", "session"), session),
            (field("JobRequest", "kind"), kind),
            (field("JobRequest", "ref"), |text| ClientRef::parse(text).is_ok()),
            (items("JobRequest", "requires"), label),
            (field("Route", "source"), language),
            (field("Route", "target"), language),
            (field("SessionRequest", "tenant"), tenant),
            (items("SessionRequest", "requires"), label),
            (field("TaskRequest", "tenant"), tenant),
            (field("StageRequest", "name"), |text| check_stages(&[StageSpec::new(text, "1")]).is_ok()),
            (field("StageRequest", "pool"), pool),
            (items("StageRequest", "requires"), label),
            (field("BulkFilter", "kind"), kind),
            (field("BulkFilter", "tenant"), tenant),
            (field("RetryRequest", "session"), session),
            (field("Pool", "name"), pool),
            (items("Pool", "requires"), label),
            (items("Pool", "routes"), |text| Route::parse(text).is_ok()),
            (field("Settlement", "tx_hash"), tx_hash),
            (field("ConsumeRequest", "tx_hash"), tx_hash),
            (items("ModeRequest", "only"), |text| {
                Resource::parse(text).is_ok_and(|resource| resource.kind() == ResourceKind::Signer)
            }),
            (parameter("/v1/jobs", "get", "tenant"), tenant),
            (parameter("/v1/sessions", "get", "tenant"), tenant),
            (parameter("/v1/jobs", "get", "kind"), kind),
            (parameter("/v1/jobs", "post", "Idempotency-Key"), key),
            (parameter("/v1/leases", "get", "kind"), |text| ResourceKind::parse(text).is_ok()),
            (parameter("/v1/leases", "get", "owner"), |text| InstanceId::parse(text).is_ok()),
            (parameter("/v1/leases/{resource}", "get", "resource"), resource),
            (parameter("/v1/cluster/owner/{resource}", "get", "resource"), resource),
            (parameter("/v1/signers/{signer}", "get", "signer"), signer),
            (parameter("/v1/nodes/{id}", "get", "id"), node),
            (parameter("/v1/whoami", "get", "node"), node),
            (parameter("/v1/sessions/{id}", "get", "id"), session),
            (parameter("/v1/tenants/{tenant}", "get", "tenant"), tenant),
            (parameter("/v1/pools/{pool}/pause", "post", "pool"), pool),
            (parameter("/v1/ids/segments/{tag}", "get", "tag"), |text| SegmentTag::parse(text).is_ok()),
            (parameter("/v1/ids/sequences", "get", "name"), |text| SequenceName::parse(text).is_ok()),
            (parameter("/v1/ids/sequences/{name}", "get", "name"), |text| SequenceName::parse(text).is_ok()),
            (parameter("/v1/signers", "get", "cursor"), |text| {
                text.strip_prefix("s.").is_some_and(|rest| SignerId::parse(rest).is_ok())
            }),
        ];
        for (schema, reads) in table {
            let cursors = samples().into_iter().map(|sample| format!("s.{sample}"));
            let (mut taken, mut refused) = (0, 0);
            for sample in samples().into_iter().chain(cursors) {
                assert_eq!(allows(&schema, &sample), reads(&sample), "{sample:?}: {schema}");
                *(if reads(&sample) { &mut taken } else { &mut refused }) += 1;
            }
            assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused: {schema}");
        }
    }

    #[test]
    fn what_has_several_spellings_is_documented_with_one_that_the_daemon_takes() {
        let document = document();
        let ids = &document["components"]["schemas"]["RetryRequest"]["properties"]["ids"]["items"];
        for sample in samples() {
            assert!(!allows(ids, &sample) || JobId::parse(&sample).is_some(), "{sample:?}");
            let schema = json!({ "pattern": format!("^{}$", Key::Digits.pattern()) });
            assert!(!allows(&schema, &sample) || sample.parse::<u64>().is_ok(), "{sample:?}");
            let schema = json!({ "pattern": format!("^{}$", Key::FewDigits.pattern()) });
            assert!(!allows(&schema, &sample) || sample.parse::<u32>().is_ok(), "{sample:?}");
        }
        assert!(allows(ids, "01890a5d-ac96-774b-bcce-b302099a8057"));
        assert!(PlanId::parse("01890a5d-ac96-774b-bcce-b302099a8057").is_some());
    }

    #[test]
    fn an_id_of_19_digits_is_documented_up_to_what_a_pattern_can_say() {
        let document = document();
        let start = |schema: &str| document["components"]["schemas"][schema]["properties"]["start"].clone();
        let parameters = document["paths"]["/v1/ids/snowflake/{id}"]["get"]["parameters"].as_array().unwrap();
        let id = parameters.iter().find(|parameter| parameter["name"] == "id").unwrap();
        let read = |text: &str| extract::number(text).filter(|number| *number <= l::ID_NUMBER_MAX);
        let ids = ["0", "999999999999999999", "2125418359758520320", "8999999999999999999"];
        let none = ["00", "-1", "9223372036854775808", "9999999999999999999", "18446744073709551615"];
        for schema in [id["schema"].clone(), start("SegmentRequest"), start("SequenceRequest")] {
            for sample in samples().iter().map(String::as_str).chain(ids).chain(none) {
                assert!(!allows(&schema, sample) || read(sample).is_some(), "{sample:?}: {schema}");
            }
            for sample in ids {
                assert!(allows(&schema, sample), "{sample}: {schema}");
            }
        }
    }

    #[test]
    fn jobs_to_retry_are_named_by_each_field_of_the_request() {
        let document = document();
        let schema = &document["components"]["schemas"]["RetryRequest"];
        let fields: BTreeSet<_> = schema["properties"].as_object().unwrap().keys().cloned().collect();
        let ways = schema["anyOf"].as_array().unwrap().iter();
        let named: BTreeSet<_> = ways.map(|way| way["required"][0].as_str().unwrap().to_owned()).collect();
        assert_eq!(named, fields);
    }

    #[test]
    fn every_list_and_every_count_of_ids_has_the_limits_and_the_default_of_its_reader() {
        let document = document();
        let read = |name: &str, value: String| {
            let request = TestRequest::with_uri(&format!("/?{name}={value}")).to_http_request();
            let query = extract::Query::read(&request, &["limit", "count"]).unwrap();
            if name == "limit" { query.limit().map(u64::from) } else { query.count().map(|n| n as u64) }
        };
        let none = TestRequest::with_uri("/").to_http_request();
        let none = extract::Query::read(&none, &[]).unwrap();
        let (mut lists, mut counts) = (0, 0);
        for (path, item) in document["paths"].as_object().unwrap() {
            for parameter in item["get"]["parameters"].as_array().into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap();
                let default = match name {
                    "limit" => none.limit().map(u64::from).unwrap(),
                    "count" => none.count().unwrap() as u64,
                    _ => continue,
                };
                *(if name == "limit" { &mut lists } else { &mut counts }) += 1;
                let schema = &parameter["schema"];
                let limit = |name: &str| schema[name].as_u64().unwrap();
                let (least, most) = (limit("minimum"), limit("maximum"));
                let numbers = [(least, true), (least - 1, false), (most, true), (most + 1, false)];
                for (number, is_read) in numbers {
                    let found = read(name, number.to_string());
                    assert_eq!(found.ok(), is_read.then_some(number), "{path}: {schema}");
                }
                let is_of_a_stream_too = path.ends_with("/events");
                assert_eq!(schema["default"].as_u64(), (!is_of_a_stream_too).then_some(default), "{path}");
            }
        }
        assert_eq!((lists, counts), (CURSORS.len(), 4));
    }

    #[test]
    fn every_default_of_a_parameter_is_that_of_its_reader() {
        let document = document();
        let none = TestRequest::with_uri("/").to_http_request();
        let none = extract::Query::read(&none, &[]).unwrap();
        let of_reader = |name: &str| match name {
            "limit" => json!(none.limit().unwrap()),
            "count" => json!(none.count().unwrap()),
            "wait_ms" => json!(none.wait_ms().unwrap()),
            "version" => json!(uuid_version(&none).unwrap().1),
            flag => json!(none.is_set(flag).unwrap()),
        };
        let mut found = BTreeSet::new();
        let operations = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .flat_map(|item| item.as_object().unwrap().values());
        for parameter in
            operations.flat_map(|operation| operation["parameters"].as_array().into_iter().flatten())
        {
            let (name, default) = (parameter["name"].as_str().unwrap(), &parameter["schema"]["default"]);
            if !default.is_null() {
                assert_eq!(*default, of_reader(name), "{name}");
                found.insert(name);
            }
        }
        let flags = ["digest", "once", "retriable", "scrambled"];
        let expected: BTreeSet<_> =
            ["count", "limit", "version", "wait_ms"].into_iter().chain(flags).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn metadata_has_the_limits_of_the_daemon() {
        let document = document();
        let schema = &document["components"]["schemas"]["JobRequest"]["properties"]["metadata"];
        let of = |entries: usize, key: usize, value: usize| {
            let key = |n: usize| format!("{n:0key$}", key = key);
            Metadata::new((0..entries).map(|n| (key(n), "v".repeat(value))).collect()).is_ok()
        };
        let entries = schema["maxProperties"].as_u64().unwrap() as usize;
        let key = schema["propertyNames"]["maxLength"].as_u64().unwrap() as usize;
        let value = schema["additionalProperties"]["maxLength"].as_u64().unwrap() as usize;
        assert!(of(entries, key, value));
        for (entries, key, value) in
            [(entries + 1, key, value), (entries, key + 1, value), (entries, key, value + 1)]
        {
            assert!(!of(entries, key, value), "{entries} {key} {value}");
        }
    }
}
