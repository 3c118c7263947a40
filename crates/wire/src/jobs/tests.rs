//! How the shapes of jobs are read and written.

use super::*;

fn refusal<T: for<'de> Deserialize<'de> + fmt::Debug>(body: &str) -> String {
    serde_json::from_str::<T>(body).expect_err(body).to_string()
}

#[test]
fn a_job_is_written_as_it_is_read() {
    for text in [
        r#"{"payload":null}"#,
        r#"{"payload":{ "a": 1.50 },"kind":"render/video","metadata":{"":"","k":"v"},"session":"s","tenant":"t","pool":"p","route":{"source":"zh","target":"en"},"requires":["asr:zh"],"priority":-10,"delay_ms":5,"timeout_ms":1,"max_attempts":100,"backoff":{"initial_ms":1,"factor":1.5,"max_ms":2}}"#,
        r#"{"payload":[],"run_at":"2026-01-01T00:00:00Z"}"#,
    ] {
        let job: JobRequest = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&job).unwrap(), text);
    }
    let empty: JobRequest =
        serde_json::from_str(r#"{"payload":1,"metadata":{},"requires":[],"backoff":{}}"#).unwrap();
    assert_eq!(
        empty,
        JobRequest { backoff: Some(Backoff::default()), ..JobRequest::new(Json::of(&1).unwrap()) }
    );
}

#[test]
fn what_is_wrong_with_a_job_is_said() {
    let labels = vec!["\"l\""; 17].join(",");
    for (body, says) in [
        ("{}".to_owned(), "missing field `payload`"),
        (r#"{"payload":1,"payload":1}"#.to_owned(), "duplicate field"),
        (r#"{"payload":1,"prioritie":1}"#.to_owned(), "unknown field"),
        (r#"{"payload":1,"priority":11}"#.to_owned(), "from -10 to 10"),
        (r#"{"payload":1,"priority":null}"#.to_owned(), "from -10 to 10"),
        (r#"{"payload":1,"max_attempts":0}"#.to_owned(), "from 1 to 100"),
        (r#"{"payload":1,"timeout_ms":1.5}"#.to_owned(), "from 1 to 86400000"),
        (r#"{"payload":1,"backoff":{"factor":0.5}}"#.to_owned(), "a number from 1 to 100"),
        (r#"{"payload":1,"backoff":[1]}"#.to_owned(), "an object"),
        (r#"{"payload":1,"route":["zh","en"]}"#.to_owned(), "an object"),
        (r#"{"payload":1,"route":{"source":"zh"}}"#.to_owned(), "missing field `target`"),
        (r#"{"payload":1,"requires":"gpu"}"#.to_owned(), "a list of at most 16 texts"),
        (r#"{"payload":1,"requires":[""]}"#.to_owned(), "1 to 64 characters"),
        (r#"{"payload":1,"kind":null}"#.to_owned(), "1 to 64 characters"),
        (r#"{"payload":1,"kind":7}"#.to_owned(), "1 to 64 characters"),
        (format!(r#"{{"payload":1,"kind":"{}"}}"#, "k".repeat(65)), "1 to 64 characters"),
        (r#"{"payload":1,"metadata":null}"#.to_owned(), "an object of strings"),
        (r#"{"payload":1,"metadata":[["k","v"]]}"#.to_owned(), "an object of strings"),
        (r#"{"payload":1,"metadata":{"k":7}}"#.to_owned(), "expected a string"),
        (r#"{"payload":1,"metadata":{"k":"v","k":"v"}}"#.to_owned(), "the key \"k\" is there twice"),
        (format!(r#"{{"payload":1,"requires":[{labels}]}}"#), "a list of at most 16 texts"),
        (format!(r#"{{"payload":"{}"}}"#, "x".repeat(PAYLOAD_BYTES_MAX)), "at most 1048576 bytes"),
    ] {
        let message = refusal::<JobRequest>(&body);
        assert!(message.contains(says), "{message}");
    }
    let largest = format!(r#"{{"payload":"{}"}}"#, "x".repeat(PAYLOAD_BYTES_MAX - 2));
    assert!(serde_json::from_str::<JobRequest>(&largest).is_ok());
}

/// It would name all jobs that the filter beside it matches.
#[test]
fn no_list_of_jobs_to_retry_is_empty() {
    for body in [r#"{"ids":[]}"#, r#"{"ids":[],"dead":true}"#] {
        let message = refusal::<RetryRequest>(body);
        assert!(message.contains("a list of 1 to 1000 texts"), "{message}");
    }
    let filter = RetryRequest { dead: Some(true), ..RetryRequest::default() };
    assert_eq!(serde_json::to_string(&filter).unwrap(), r#"{"dead":true}"#);
    assert_eq!(serde_json::from_str::<RetryRequest>(r#"{"dead":true}"#).unwrap(), filter);
}

#[test]
fn one_bad_job_sinks_no_other() {
    let body = r#"{"jobs":[{"payload":1},{"payload":1,"priority":99},{"payload":{"a":[]}}]}"#;
    let JobsRequest { jobs } = serde_json::from_str(body).unwrap();
    assert!(jobs[0].0.is_ok() && jobs[2].0.is_ok());
    assert_eq!(jobs[1].0.as_ref().unwrap_err().as_str(), r#"{"payload":1,"priority":99}"#);
    assert!(refusal::<JobsRequest>(r#"{"jobs":[]}"#).contains("1 to 1000 objects"));
    for shape in ["7", "[1]", "null"] {
        let JobsRequest { jobs } = serde_json::from_str(&format!(r#"{{"jobs":[{shape}]}}"#)).unwrap();
        assert_eq!(jobs[0].0.as_ref().unwrap_err().as_str(), shape);
    }
}

#[test]
fn the_answer_shows_a_null_result_and_lists_show_none() {
    let text = r#"{"id":"i","state":"FINISHED","outcome":"succeeded","lane":"l","session":null,"seq":null,"tenant":null,"pool":null,"route":null,"requires":[],"priority":0,"timeout_ms":1,"attempt":1,"max_attempts":3,"node":"n","kind":"k","metadata":{},"payload":{"a":1},"result":null,"error":null,"dead":false,"progress":{"percent":50.0},"created_at":"t","run_at":null,"dispatched_at":null,"running_at":null,"finished_at":null,"released_at":null,"retry_of":null,"retried_as":null,"dismissed_at":null,"attempts":[]}"#;
    let mut job: Job = serde_json::from_str(text).unwrap();
    assert_eq!(job.result, Some(Json::null()));
    assert_eq!(serde_json::to_string(&job).unwrap(), text);
    (job.payload, job.result, job.attempts) = (None, None, None);
    job.metadata.insert("k".to_owned(), "v".to_owned());
    let listed = serde_json::to_string(&job).unwrap();
    assert!(listed.contains(r#""metadata":{"k":"v"}"#));
    assert!(["\"payload", "\"result", "\"attempts"].iter().all(|field| !listed.contains(field)));
    assert_eq!(serde_json::from_str::<Job>(&listed).unwrap(), job);
    let older = listed.replace(r#""kind":"k","metadata":{"k":"v"},"#, "");
    let older = serde_json::from_str::<Job>(&older).unwrap();
    assert!(older.metadata.is_empty() && older.kind.is_none());
}

#[test]
fn batch_answers_keep_their_shape() {
    let text = r#"{"results":[{"id":"a"},{"code":"invalid","detail":"d"}]}"#;
    let answer: JobsAnswer = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&answer).unwrap(), text);
    let codes: Vec<_> = answer.results.iter().map(BatchResult::known_code).collect();
    assert_eq!(codes, [None, Some(Code::Invalid)]);
}

#[test]
fn a_code_of_a_newer_daemon_is_passed_on_as_it_came() {
    let text = r#"{"results":[{"id":"a"},{"code":"sun_unavailable","detail":"d"}]}"#;
    let newer = text.replace(r#""detail":"d""#, r#""detail":"d","extra":1"#);
    let answer: JobsAnswer = serde_json::from_str(&newer).unwrap();
    assert_eq!(serde_json::to_string(&answer).unwrap(), text);
    assert_eq!(answer.results[1].known_code(), None);

    let text = r#"{"retried":0,"ids":[],"results":[{"retry_of":"a","code":"sun_unavailable","detail":"d"}]}"#;
    let newer = text.replace(r#""detail":"d""#, r#""detail":"d","extra":1"#);
    let answer: RetryAnswer = serde_json::from_str(&newer).unwrap();
    assert_eq!(serde_json::to_string(&answer).unwrap(), text);
}
