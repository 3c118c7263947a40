//! From the submission to the result, over whatever instances lie between.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::instance::fencepost;

use super::rig::{PATIENCE, Rig, echo, hold, past, with};
use super::session_client::open;

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_with_nothing_beside_it_runs_jobs() {
    let rig = Rig::alone().await;
    let job = json!({ "payload": {"echo": {"text": "你好", "n": 1.50}}, "tenant": "t", "priority": 3, "max_attempts": 2 });
    let reply = rig.ask(0, "POST", "/v1/jobs", Some(&job)).await;
    assert_eq!((reply.status, &reply.body["state"]), (202, &json!("CREATED")), "{}", reply.text);
    let id = reply.body["id"].as_str().unwrap();
    let waiting = rig.job(0, id).await;
    assert_eq!(
        (&waiting["state"], &waiting["attempt"], &waiting["node"]),
        (&json!("CREATED"), &json!(0), &Value::Null)
    );
    let _node = rig.node(&[0], "n", |_| {}).await;
    let job = rig.finished(0, id).await;
    assert_eq!((&job["outcome"], &job["result"]), (&json!("succeeded"), &json!({"text": "你好", "n": 1.5})));
    assert_eq!((&job["attempt"], &job["max_attempts"], &job["node"]), (&json!(1), &json!(2), &json!("n")));
    assert_eq!((&job["tenant"], &job["priority"], &job["error"]), (&json!("t"), &json!(3), &Value::Null));
    assert_eq!((&job["lane"], &job["created_at"]), (&reply.body["lane"], &reply.body["created_at"]));
    assert_eq!(past(&job), [(1, "succeeded".to_owned())]);
    for time in ["dispatched_at", "finished_at", "released_at"] {
        assert!(job[time].as_str().is_some_and(|time| time.ends_with('Z')), "{time}: {job}");
    }
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_node_and_whoever_waits_may_each_be_at_another_instance() {
    let rig = Rig::together(3).await;
    let node = rig.node(&[0], "far", |options| options.capacity = 4).await;
    let ids = futures_util::future::join_all((0..30).map(|n| rig.submit(1, echo(n)))).await;
    let jobs = futures_util::future::join_all(ids.iter().map(|id| rig.finished(2, id))).await;
    for (n, job) in jobs.iter().enumerate() {
        assert_eq!(
            (&job["result"], &job["attempt"], &job["node"]),
            (&json!(n), &json!(1), &json!("far")),
            "{job}"
        );
    }
    assert_eq!(node.runs.all().len(), 30, "each ran once");
    // What runs is shown so, with how far it is, where the node is.
    let held = rig.submit(2, hold("slow")).await;
    rig.in_state(1, &held, "RUNNING").await;
    assert_eq!(rig.job(0, &held).await["progress"], json!({"percent": 50.0, "note": "held"}));
    node.runs.release(1);
    assert_eq!(rig.finished(1, &held).await["result"], "slow");
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_in_a_session_is_one_job_however_often_the_command_is_run() {
    let rig = Rig::alone().await;
    let session = rig.post(0, "/v1/sessions", None, 201).await["id"].as_str().unwrap().to_owned();
    let submitted = async |arguments: &[&str]| {
        let mut submit = fencepost().unwrap();
        submit.args(["submit", "--url", &rig.urls[0], "--session", &session]).args(arguments);
        let output = tokio::process::Command::from(submit).kill_on_drop(true).output();
        let output = tokio::time::timeout(PATIENCE, output).await.unwrap().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let first = submitted(&["--ref", "a", "1"]).await;
    assert_eq!(submitted(&["--ref", "a", "1"]).await, first);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs");
    std::fs::write(&file, "{\"ref\":\"a\",\"payload\":1}\n{\"payload\":2}\n{\"ref\":\"b\",\"payload\":3}\n")
        .unwrap();
    let file = ["--file", file.to_str().unwrap()];
    let (many, again) = (submitted(&file).await, submitted(&file).await);
    assert_eq!((many.len(), &many[0], &many[2]), (3, &first[0], &again[2]));
    assert_ne!(many[1], again[1], "a job without a name is another one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_one_job_on_every_instance() {
    let rig = Rig::together(2).await;
    let ask = async |index: usize, path: &str, key: &str, body: &Value| {
        let url = format!("{}{path}", rig.urls[index]);
        rig.http.request("POST", &url, Some(key), Some(body)).await.unwrap()
    };
    let first = ask(0, "/v1/jobs", "k", &echo(1)).await;
    assert_eq!(first.status, 202, "{}", first.text);
    for index in [1, 0, 1] {
        let again = ask(index, "/v1/jobs", "k", &echo(1)).await;
        assert_eq!((again.status, &again.body), (202, &first.body), "{}", again.text);
        let other = ask(index, "/v1/jobs", "k", &echo(2)).await;
        assert_eq!((other.status, other.code()), (422, "key_reused"), "{}", other.text);
    }
    // At once, on both.
    let racing = (0..8).map(|n| {
        let ask = &ask;
        async move { ask(n % 2, "/v1/jobs", "race", &echo(3)).await.body }
    });
    let racing = futures_util::future::join_all(racing).await;
    let first_id = &racing[0]["id"];
    assert!(first_id.is_string() && racing.iter().all(|answer| answer["id"] == *first_id), "{racing:?}");
    let batch = json!({ "jobs": [echo(4), echo(5)] });
    let accepted = ask(0, "/v1/jobs/batch", "k", &batch).await;
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    assert_eq!(ask(1, "/v1/jobs/batch", "k", &batch).await.body, accepted.body);
    for (index, other) in [
        json!([echo(4), echo(6)]),
        json!([echo(4), echo(5), echo(6)]),
        json!([echo(4)]),
        json!([echo(5), echo(4)]),
        json!([echo(4), {}]),
        json!([{}]),
    ]
    .into_iter()
    .enumerate()
    {
        let other = ask(index % 2, "/v1/jobs/batch", "k", &json!({ "jobs": other })).await;
        assert_eq!((other.status, other.code()), (422, "key_reused"), "{}", other.text);
    }
    // One that is refused whole is remembered as little as it is submitted.
    let refused = ask(0, "/v1/jobs/batch", "none", &json!({ "jobs": [{}, {}] })).await;
    assert_eq!(refused.body["results"][1]["code"], "invalid", "{}", refused.text);
    let accepted = ask(1, "/v1/jobs/batch", "none", &json!({ "jobs": [{}, echo(5)] })).await;
    assert!(accepted.body["results"][1]["id"].is_string(), "{}", accepted.text);
    let refused = ask(0, "/v1/jobs/batch", "none", &json!({ "jobs": [{}, {}] })).await;
    assert_eq!((refused.status, refused.code()), (422, "key_reused"), "{}", refused.text);
    // The replay of what is finished long since.
    let _node = rig.node(&[0, 1], "n", |options| options.capacity = 8).await;
    rig.finished(0, first.body["id"].as_str().unwrap()).await;
    assert_eq!(ask(1, "/v1/jobs", "k", &echo(1)).await.body, first.body);
    let all = rig.get(0, "/v1/jobs?limit=1000").await;
    assert_eq!(all["items"].as_array().unwrap().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_sessions_take_no_job_leaves_its_key_free() {
    let rig = Rig::alone().await;
    let (session, closed) = (open(&rig, 0, json!({})).await, open(&rig, 0, json!({})).await);
    let reply = rig.ask(0, "DELETE", &format!("/v1/sessions/{closed}"), None).await;
    assert_eq!(reply.status, 204, "{}", reply.text);
    let labels: Vec<_> = (0..16).map(|n| format!("l{n}")).collect();
    let labelled = open(&rig, 0, json!({ "requires": labels })).await;
    let url = format!("{}/v1/jobs/batch", rig.urls[0]);
    let ask = async |key: &str, jobs: &[&Value]| {
        rig.http.request("POST", &url, Some(key), Some(&json!({ "jobs": jobs }))).await.unwrap()
    };
    let of = |session: &str, fields| with(with(echo(1), json!({ "session": session })), fields);
    let taken = of(&session, json!({}));
    for (key, job, code) in [
        ("unknown", of("mistyped", json!({})), "not_found"),
        ("closed", of(&closed, json!({})), "conflict"),
        ("urgent", of(&session, json!({ "priority": 1 })), "invalid"),
        ("labels", of(&labelled, json!({ "requires": ["another"] })), "invalid"),
    ] {
        for jobs in [&[&job][..], &[&job, &job]] {
            let refused = ask(key, jobs).await;
            assert_eq!(
                (refused.status, &refused.body["results"][0]["code"]),
                (202, &json!(code)),
                "{}",
                refused.text
            );
        }
        let accepted = ask(key, &[&job, &taken]).await;
        assert_eq!(accepted.body["results"][0]["code"], code, "{}", accepted.text);
        assert!(accepted.body["results"][1]["id"].is_string(), "{}", accepted.text);
        assert_eq!(ask(key, &[&job, &taken]).await.body, accepted.body);
        let other = ask(key, &[&job]).await;
        assert_eq!((other.status, other.code()), (422, "key_reused"), "{}", other.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_job_of_a_batch_sinks_no_other() {
    let rig = Rig::alone().await;
    let _node = rig.node(&[0], "n", |options| options.capacity = 10).await;
    let jobs = json!([echo(0), {"payload": 1, "prority": 1}, echo(2), with(echo(3), json!({"priority": 11})), echo(4)]);
    let answer = rig.post(0, "/v1/jobs/batch", Some(&json!({ "jobs": jobs })), 202).await;
    for n in [0, 2, 4] {
        let id = answer["results"][n]["id"].as_str().unwrap();
        assert_eq!(rig.finished(0, id).await["result"], n);
    }
    for (n, says) in [(1, "prority"), (3, "priority: invalid value: integer `11`")] {
        let refused = &answer["results"][n];
        assert_eq!(refused["code"], "invalid", "{answer}");
        assert!(refused["detail"].as_str().unwrap().contains(says), "{refused}");
    }
    let many: Vec<_> = (0..1_000).map(echo).collect();
    for id in rig.submit_all(0, &many).await {
        rig.finished(0, &id).await;
    }
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_payload_goes_there_and_back_as_it_was_written() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let text = "x".repeat((1 << 20) - r#"{"echo":""}"#.len());
    let id = rig.submit(1, echo(text.as_str())).await;
    assert_eq!(rig.finished(1, &id).await["result"], text.as_str());
    let larger = rig.ask(1, "POST", "/v1/jobs", Some(&echo(format!("{text}x")))).await;
    assert!([400, 413].contains(&larger.status), "{}", larger.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_waits_for_the_end_and_no_longer_than_asked() {
    let rig = Rig::together(2).await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let id = rig.submit(0, hold(1)).await;
    let began = Instant::now();
    let waited = rig.get(1, &format!("/v1/jobs/{id}?wait_ms=300")).await;
    assert_ne!(waited["state"], "FINISHED");
    assert!(began.elapsed() >= Duration::from_millis(300));
    let path = format!("/v1/jobs/{id}?wait_ms=20000");
    let asked = rig.get(1, &path);
    let release = async {
        node.runs.begun(&id, 1).await;
        node.runs.release(1);
    };
    let (answer, ()) = tokio::join!(asked, release);
    assert_eq!(answer["state"], "FINISHED");
}
