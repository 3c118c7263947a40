//! Flags and waits in queries: the document beside the daemon.

use actix_web::http::Method;

use super::*;

/// A job that does not exist.
const NO_JOB: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// Values at the limits of a parameter and beyond them, each with whether its schema allows it.
fn at_limits(schema: &Value) -> Vec<(String, bool)> {
    let mut samples = vec![(String::new(), false), ("x".to_owned(), false)];
    let is_flag = schema["type"] == "boolean";
    samples.extend(["true", "false"].map(|flag| (flag.to_owned(), is_flag)));
    if let (Some(least), Some(most)) = (schema["minimum"].as_i64(), schema["maximum"].as_i64()) {
        let numbers = [(least, true), (least - 1, false), (most, true), (most + 1, false)];
        samples.extend(numbers.map(|(number, is_allowed)| (number.to_string(), is_allowed)));
    }
    samples
}

#[actix_web::test]
async fn flags_and_waits_of_queries_are_read_as_the_document_says() {
    const NAMES: [&str; 6] = ["dead", "digest", "once", "retriable", "scrambled", "wait_ms"];
    let dir = TempDir::new().unwrap();
    let service = init_service(app(&forwarder(&state(&dir, Auth::open()).await))).await;
    let document: Value = serde_json::from_str(&crate::openapi::document()).unwrap();
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.replace("{id}", NO_JOB).replace("{tag}", "t");
        for (method, operation) in item.as_object().unwrap() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap();
                if !NAMES.contains(&name) {
                    continue;
                }
                found.push(name);
                for (value, is_allowed) in at_limits(&parameter["schema"]) {
                    let uri = format!("{path}?{name}={value}");
                    let request = TestRequest::default().insert_header(LOCAL).method(method.clone());
                    let status = call_service(&service, request.uri(&uri).to_request()).await.status();
                    // What is asked for need not be there.
                    assert_eq!(status != StatusCode::BAD_REQUEST, is_allowed, "{method} {uri}: {status}");
                }
            }
        }
    }
    found.sort_unstable();
    assert_eq!(found, NAMES);
}
