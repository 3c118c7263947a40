//! What the annotations of the OpenAPI document cannot say, or say in a form that generators of clients read badly: names for
//! the members of unions and for the events of streams, lists that refer to the schema of their items, bounds of names and
//! numbers, the header `Location`, the tags and the server.

use serde_json::{Map, Value, json};

use super::constraints;

/// The tags, in the order in which the document shows them.
const TAGS: [(&str, &str); 9] = [
    ("jobs", "Work for nodes: submit it, follow it, cancel it, retry it"),
    ("sessions", "Jobs of one client in an order"),
    ("nonces", "Nonces of blockchain accounts: grant them, settle them, resolve what is unknown"),
    ("ids", "Distributed ids: snowflakes, segments, sequences and UUIDs"),
    ("plans", "The same stages for many tenants"),
    ("nodes", "The workers, their pools, and which of them a job would go to"),
    ("leases and cluster", "Who owns what, and how the instances work together"),
    ("cluster", "Events of all kinds"),
    ("operations", "Health, metrics, history, and the dashboard"),
];

/// The largest number of 64 bits that the ledger keeps.
const INTEGER_MAX: u64 = i64::MAX as u64;

/// The members of unions, in their order there.
const UNIONS: [(&str, [&str; 2]); 2] = [
    ("BatchResult", ["BatchResult_Accepted", "BatchResult_Refused"]),
    ("SettlementResult", ["SettlementResult_Accepted", "SettlementResult_Refused"]),
];

/// Words in answers, to which a newer daemon may add.
const OPEN_ENUMS: [&str; 21] = [
    "BulkAction",
    "BulkStatus",
    "CheckStatus",
    "ClaimStatus",
    "ClusterHappening",
    "Code",
    "Intent",
    "JobState",
    "Mode",
    "NodeHappening",
    "NodeState",
    "OnExpiry",
    "OnFailure",
    "Ordering",
    "Outcome",
    "PlanStatus",
    "Readiness",
    "StageStatus",
    "Status",
    "TaskStatus",
    "TokenScope",
];

/// The events of each stream: the operation, and the name and the data of each event.
const STREAMS: [(&str, &[(&str, &str)]); 4] = [
    ("job_events", &[("job", "Job"), ("progress", "ProgressEvent")]),
    (
        "events",
        &[
            ("job", "JobEvent"),
            ("progress", "ProgressEvent"),
            ("node", "NodeEvent"),
            ("cluster", "ClusterEvent"),
            ("digest", "DigestEvent"),
        ],
    ),
    ("plan_events", &[("plan", "PlanEvent")]),
    ("task_events", &[("plan", "PlanEvent")]),
];

/// The fields of answers that may be left out, and may be `null` where they are not.
const NULL_OR_LEFT_OUT: [(&str, &str); 1] = [("Task", "lock")];

/// Completes the document.
pub fn refine(document: &mut Value) {
    document["servers"] =
        json!([{ "url": "http://127.0.0.1:7070", "description": "An instance with the default settings" }]);
    document["info"]["contact"] = json!({ "name": "The operators of this instance" });
    let tag = |(name, about)| json!({ "name": name, "description": about });
    document["tags"] = TAGS.into_iter().map(tag).collect();
    let schemas = document["components"]["schemas"].as_object_mut().expect("there are schemas");
    name_members(schemas);
    without_nulls(schemas);
    refer_to_items(schemas);
    for name in OPEN_ENUMS {
        let about =
            schemas[name]["description"].as_str().unwrap_or_default().trim_end_matches('.').to_owned();
        let open = format!("{about}. Answers of newer versions may have further words.");
        schemas[name]["description"] = Value::from(open);
    }
    name_events(schemas);
    constraints::of_bodies(schemas);
    schemas.values_mut().for_each(bound);
    let operations = document["paths"].as_object_mut().expect("there are paths").values_mut();
    for operation in operations.flat_map(|path| path.as_object_mut().expect("it has operations").values_mut())
    {
        refine_operation(operation);
    }
}

/// Gives the members of unions names of their own, by which generators call them.
fn name_members(schemas: &mut Map<String, Value>) {
    for (union, names) in UNIONS {
        let members = schemas[union]["oneOf"].as_array_mut().expect("it is a union");
        let mut named = Vec::new();
        for (member, name) in members.iter_mut().zip(names) {
            named.push((name, member.take()));
            *member = reference(name);
        }
        schemas.extend(named.into_iter().map(|(name, member)| (name.to_owned(), member)));
    }
}

/// A field of an answer that may be left out is left out where there is nothing to say: it is never `null`.
fn without_nulls(schemas: &mut Map<String, Value>) {
    let answers = schemas.iter_mut().filter(|(_, schema)| schema["additionalProperties"] != false);
    for (name, schema) in answers {
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
        for (field, property) in fields.into_iter().flatten() {
            let may_be_null = NULL_OR_LEFT_OUT.contains(&(name.as_str(), field.as_str()));
            if !may_be_null && required.iter().all(|name| name != field) {
                without_null(property);
            }
        }
    }
}

/// The same schema without `null`, where it is one of several choices.
pub fn without_null(schema: &mut Value) {
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

/// The annotations repeat the schema of the items in each list.
fn refer_to_items(schemas: &mut Map<String, Value>) {
    let lists: Vec<_> = schemas.keys().filter(|name| name.starts_with("List_")).cloned().collect();
    for list in lists {
        let item = list.trim_start_matches("List_");
        assert!(schemas.contains_key(item), "the items of {list} have a schema");
        schemas[&list]["properties"]["items"]["items"] = reference(item);
        schemas[&list]["properties"]["items"]["maxItems"] = Value::from(1_000);
    }
}

/// The events of streams, as schemas: what stands in each of their fields.
fn name_events(schemas: &mut Map<String, Value>) {
    for (_, events) in STREAMS {
        for (event, data) in events {
            let about = format!("An event of the name `{event}` in a stream. `data` is its JSON text, read.");
            let message = json!({
                "description": about,
                "type": "object",
                "required": ["event", "data"],
                "properties": {
                    "event": { "description": "The event's name.", "type": "string", "const": event },
                    "id": { "description": "What to send as `Last-Event-ID`.", "type": "string" },
                    "data": {
                        "$ref": format!("#/components/schemas/{data}"),
                        "description": "What happened.",
                    },
                },
            });
            schemas.insert(message_name(data), message);
        }
    }
}

fn message_name(data: &str) -> String {
    format!("{data}_Message")
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// Bounds every whole number that has no bound: those of 32 bits, and those of 64.
fn bound(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let kinds = match fields.get("type") {
                Some(Value::Array(kinds)) => kinds.as_slice(),
                Some(kind) => std::slice::from_ref(kind),
                None => &[],
            };
            if kinds.iter().any(|kind| kind == "integer") && !fields.contains_key("maximum") {
                let is_short = fields.get("format").is_some_and(|format| format == "int32");
                let most = if is_short { u64::from(u32::MAX) } else { INTEGER_MAX };
                fields.insert("maximum".to_owned(), Value::from(most));
                // A number of 32 bits without a sign does not fit the format that has one.
                fields.insert("format".to_owned(), Value::from("int64"));
            }
            fields.values_mut().for_each(bound);
        }
        Value::Array(items) => items.iter_mut().for_each(bound),
        _ => {}
    }
}

fn refine_operation(operation: &mut Value) {
    let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
    for parameter in operation["parameters"].as_array_mut().into_iter().flatten() {
        let (name, place) = (parameter["name"].clone(), parameter["in"].clone());
        if let (Some(name), Some(place)) = (name.as_str(), place.as_str()) {
            constraints::of_parameter(&id, name, place, parameter);
        }
    }
    if operation["description"].as_str().is_none_or(str::is_empty) {
        let summary = operation["summary"].as_str().unwrap_or_default();
        operation["description"] = Value::from(format!("{summary}."));
    }
    if let Some((status, leads_to)) = location(&id) {
        operation["responses"][status]["headers"]["Location"] = json!({
            "description": format!("The path of {leads_to}"),
            "schema": { "type": "string", "format": "uri-reference" },
        });
    }
    if let Some((_, events)) = STREAMS.iter().find(|(stream, _)| *stream == id) {
        let messages: Vec<_> = events.iter().map(|(_, data)| reference(&message_name(data))).collect();
        let shape =
            if let [only] = messages.as_slice() { only.clone() } else { json!({ "oneOf": messages }) };
        let stream = json!({
            "type": "string",
            "description": "Server-sent events. Each has the fields of one of these messages.",
            "contentMediaType": "text/event-stream",
            "contentSchema": shape,
        });
        operation["responses"]["200"]["content"]["text/event-stream"]["schema"] = stream;
    }
    bound(operation);
}

/// The status of the answer with the header `Location`, and what that leads to.
fn location(id: &str) -> Option<(&'static str, &'static str)> {
    match id {
        "begin_bulk" => Some(("202", "the operation")),
        "submit_job" | "retry_job" => Some(("202", "the new job")),
        "open_session" => Some(("201", "the session")),
        "create_plan" => Some(("201", "the plan")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use wire::events::{DIGEST_EVENT, EventKind};
    use wire::limits::NONCE_MAX;

    use super::*;

    fn document() -> Value {
        serde_json::from_str(&super::super::document()).unwrap()
    }

    /// Everything in the document, with its place.
    fn all(document: &Value) -> Vec<(String, &Value)> {
        let (mut found, mut open) = (Vec::new(), vec![(String::new(), document)]);
        while let Some((place, value)) = open.pop() {
            match value {
                Value::Object(fields) => {
                    open.extend(fields.iter().map(|(name, value)| (format!("{place}/{name}"), value)));
                }
                Value::Array(items) => {
                    open.extend(items.iter().enumerate().map(|(n, value)| (format!("{place}/{n}"), value)));
                }
                _ => {}
            }
            found.push((place, value));
        }
        found
    }

    #[test]
    fn nonces_have_the_same_bound_in_requests_and_answers() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut with_nonces = BTreeSet::new();
        for (name, schema) in schemas {
            for field in ["nonce", "first_nonce"] {
                let property = &schema["properties"][field];
                if property.is_object() {
                    assert_eq!(property["maximum"], NONCE_MAX, "{name}.{field}: {property}");
                    with_nonces.insert(name.as_str());
                }
            }
        }
        for name in ["NonceRecord", "NonceAnswer", "Policy", "Settlement", "SettlementResult_Refused"] {
            assert!(with_nonces.contains(name), "{name}: {with_nonces:?}");
        }
    }

    #[test]
    fn lists_and_unions_refer_to_schemas_by_name() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let lists: Vec<_> = schemas.iter().filter(|(name, _)| name.starts_with("List_")).collect();
        assert!(lists.len() > 8);
        for (name, list) in lists {
            let item = reference(name.trim_start_matches("List_"));
            assert_eq!(list["properties"]["items"]["items"], item, "{name}");
        }
        for (place, value) in all(&document) {
            for member in value["oneOf"].as_array().into_iter().flatten() {
                assert!(member["$ref"].is_string() || member["type"] == "null", "{place}: {member}");
            }
        }
    }

    /// The lines of the sources of `wire`.
    fn lines_of_wire() -> Vec<String> {
        fn read(dir: &Path, lines: &mut Vec<String>) {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    read(&path, lines);
                } else {
                    lines.extend(std::fs::read_to_string(&path).unwrap().lines().map(str::to_owned));
                }
            }
        }
        let mut lines = Vec::new();
        read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/src"), &mut lines);
        lines
    }

    #[test]
    fn every_enum_whose_words_may_become_more_says_so() {
        let lines = lines_of_wire();
        let growing = lines.iter().filter_map(|line| line.trim().strip_prefix("pub growing enum "));
        let mut growing: BTreeSet<_> = growing.filter_map(|rest| rest.strip_suffix(" {")).collect();
        // Answers have codes as texts.
        growing.insert("Code");
        assert_eq!(growing, BTreeSet::from(OPEN_ENUMS));
    }

    #[test]
    fn what_is_always_in_an_answer_is_required_and_what_may_be_left_out_is_never_null() {
        // They are left out by other releases, or where a client makes a problem.
        const ALWAYS: [(&str, &str); 2] = [("Problem", "request_id"), ("Stats", "slots")];
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        // The attributes of what comes next, and the answer whose fields these are.
        let (mut about, mut answer, mut fields) = (String::new(), None, 0);
        for line in &lines_of_wire() {
            if let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {")) {
                let is_answer = about.contains("ToSchema") && !about.contains("deny_unknown_fields");
                // A list has the name of its items' type as well.
                let is_upper = about.contains("UPPERCASE");
                answer = (is_answer && !name.contains('<')).then(|| (name.to_owned(), is_upper));
                about.clear();
            } else if let (Some(rest), Some((schema, is_upper))) = (line.strip_prefix("    pub "), &answer) {
                let own = rest.split(':').next().unwrap();
                let renamed = about.split_once("rename = \"").and_then(|(_, rest)| rest.split('"').next());
                let field = renamed.unwrap_or(own);
                let field = if *is_upper { field.to_uppercase() } else { field.to_owned() };
                let may_be_left_out = about.contains("skip_serializing_if");
                let is_always = !may_be_left_out || ALWAYS.contains(&(schema.as_str(), own));
                let mut required = schemas[schema]["required"].as_array().into_iter().flatten();
                assert_eq!(required.any(|name| *name == *field), is_always, "{schema}.{field}");
                assert!(schemas[schema]["properties"][&field].is_object(), "{schema}.{field}");
                fields += 1;
                about.clear();
            } else if line.trim().is_empty() || line == "}" {
                answer = answer.filter(|_| line != "}");
                about.clear();
            } else if !line.trim().starts_with("//") {
                about.push_str(line);
            }
        }
        assert!(fields > 300, "the sources are not read as they are written: {fields}");
        for (name, schema) in schemas.iter().filter(|(_, schema)| schema["additionalProperties"] != false) {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            for (field, property) in schema["properties"].as_object().into_iter().flatten() {
                let may_be_null = NULL_OR_LEFT_OUT.contains(&(name.as_str(), field.as_str()));
                let is_required = required.iter().any(|name| name == field);
                let mut without = property.clone();
                without_null(&mut without);
                assert!(is_required || may_be_null || without == *property, "{name}.{field}: {property}");
            }
        }
    }

    #[test]
    fn whole_numbers_and_names_in_paths_and_queries_have_bounds() {
        let document = document();
        for (place, value) in all(&document) {
            let is_whole = value["type"] == "integer"
                || value["type"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "integer"));
            assert!(!is_whole || value["maximum"].is_u64() || value["enum"].is_array(), "{place}: {value}");
            if place.contains("/parameters/") && value["in"].is_string() {
                let (name, schema) = (&value["name"], &value["schema"]);
                let is_free = schema["type"] == "string"
                    && ["maxLength", "format", "enum", "pattern"].iter().all(|key| schema[key].is_null());
                // Words whose list is in the description, and what a client does not choose.
                const FREE: [&str; 9] = [
                    "action",
                    "file",
                    "If-None-Match",
                    "key",
                    "Last-Event-ID",
                    "principal",
                    "stage",
                    "subject",
                    "X-Request-Id",
                ];
                assert!(!is_free || FREE.contains(&name.as_str().unwrap()), "{place}: {value}");
            }
        }
    }

    #[test]
    fn every_event_of_a_stream_has_a_message_that_the_stream_refers_to() {
        const OF_ALL: &str =
            "/paths/~1v1~1events/get/responses/200/content/text~1event-stream/schema/contentSchema/oneOf";
        let document = document();
        let found = all(&document);
        let shapes = found.iter().filter(|(place, _)| place.contains("/contentSchema"));
        let referred: Vec<_> = shapes.filter_map(|(_, shape)| shape["$ref"].as_str()).collect();
        let schemas = &document["components"]["schemas"];
        let names = schemas.as_object().unwrap().keys();
        let events: Vec<_> = names.filter(|name| name.ends_with("Event") && !name.contains('_')).collect();
        assert!(events.len() > 5, "{events:?}");
        for event in events {
            let message = message_name(event);
            assert_eq!(schemas[&message]["properties"]["data"]["$ref"], reference(event)["$ref"], "{event}");
            let message = reference(&message);
            assert!(referred.iter().any(|shape| message["$ref"] == *shape), "{event} is in no stream");
        }
        let of_all = document.pointer(OF_ALL).unwrap().as_array().unwrap();
        let name = |shape: &Value| {
            let message = document.pointer(&shape["$ref"].as_str().unwrap()[1..]).unwrap();
            message["properties"]["event"]["const"].clone()
        };
        let names: Vec<_> = of_all.iter().map(name).collect();
        let kinds = EventKind::ALL.iter().map(|kind| kind.as_str());
        assert_eq!(names, kinds.chain([DIGEST_EVENT]).collect::<Vec<_>>());
    }

    #[test]
    fn streams_name_their_events_and_answers_that_lead_somewhere_say_so() {
        let document = document();
        let (mut streams, mut locations) = (Vec::new(), Vec::new());
        for (place, value) in all(&document) {
            if place.ends_with("/content/text~1event-stream") || place.ends_with("/content/text/event-stream")
            {
                let schema = &value["schema"]["contentSchema"];
                assert!(schema["$ref"].is_string() || schema["oneOf"].is_array(), "{place}: {value}");
                streams.push(place.clone());
            }
            if place.ends_with("/headers/Location") {
                locations.push(place);
            }
        }
        assert_eq!(streams.len(), STREAMS.len(), "{streams:?}");
        locations.sort();
        for (path, location) in [
            "bulk/post/responses/202",
            "jobs/post/responses/202",
            "jobs/{id}/retry/post",
            "plans/post/responses/201",
            "sessions/post",
        ]
        .iter()
        .zip(&locations)
        {
            assert!(location.contains(&format!("/v1/{path}")), "{location}");
        }
        assert_eq!(locations.len(), 5);
        let tags: Vec<_> = TAGS.iter().map(|(name, _)| *name).collect();
        let mut used: Vec<_> = all(&document)
            .into_iter()
            .filter(|(place, _)| place.starts_with("/paths/") && place.ends_with("/tags/0"))
            .filter_map(|(_, tag)| tag.as_str())
            .collect();
        used.sort_unstable();
        used.dedup();
        assert!(used.iter().all(|tag| tags.contains(tag)) && used.len() == tags.len(), "{used:?}");
    }
}
