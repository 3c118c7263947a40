//! How jobs end: retried, dead, called off, out of time; and when they may begin.

use std::collections::BTreeSet;
use std::time::Duration;

use client::node::Why;
use serde_json::{Value, json};
use testkit::http::Reply;
use testkit::instance::Setup;

use super::rig::{Rig, echo, hold, past, with};
use crate::until;

const QUICK: &str = r#"{"initial_ms": 50, "factor": 2, "max_ms": 200}"#;

fn failing(times: u64, max_attempts: u64) -> Value {
    let backoff: Value = serde_json::from_str(QUICK).unwrap();
    json!({ "payload": {"fail": times}, "max_attempts": max_attempts, "backoff": backoff })
}

fn states(ends: &[(u64, &str)]) -> Vec<(u64, String)> {
    ends.iter().map(|(attempt, state)| (*attempt, (*state).to_owned())).collect()
}

/// Microseconds of the day at the end of an RFC 3339 time, enough to compare two that are near.
fn micros(time: &Value) -> i64 {
    let time = time.as_str().unwrap();
    let (_, clock) = time.trim_end_matches('Z').split_once('T').unwrap();
    let mut parts = clock.split(':');
    let (hours, minutes) =
        (parts.next().unwrap().parse::<i64>().unwrap(), parts.next().unwrap().parse::<i64>().unwrap());
    let seconds: f64 = parts.next().unwrap().parse().unwrap();
    (hours * 3_600 + minutes * 60) * 1_000_000 + (seconds * 1e6).round() as i64
}

/// From one time to a later one of the same day or the next.
fn between_ms(from: &Value, to: &Value) -> i64 {
    (micros(to) - micros(from)).rem_euclid(86_400_000_000) / 1_000
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_tried_again_until_it_succeeds() {
    let rig = Rig::together(2).await;
    let node = rig.node(&[0], "n", |_| {}).await;
    // Once where the node is, once where it is not.
    for index in [0, 1] {
        let id = rig.submit(index, failing(2, 3)).await;
        let job = rig.finished(index, &id).await;
        assert_eq!(
            (&job["outcome"], &job["result"], &job["attempt"]),
            (&json!("succeeded"), &json!(3), &json!(3))
        );
        assert_eq!(past(&job), states(&[(1, "failed"), (2, "failed"), (3, "succeeded")]));
        assert_eq!(
            (&job["attempts"][1]["reason"], &job["attempts"][1]["node"]),
            (&json!("failure 2"), &json!("n"))
        );
        assert_eq!(node.runs.of(&id).len(), 3);
    }
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_too_often_is_dead_with_its_reasons_and_can_be_tried_again_by_hand() {
    let rig = Rig::alone().await;
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let dead = rig.submit(0, with(failing(9, 2), json!({"tenant": "t", "priority": -2}))).await;
    let job = rig.finished(0, &dead).await;
    assert_eq!(
        (&job["outcome"], &job["dead"], &job["error"]),
        (&json!("failed"), &json!(true), &json!("failure 2"))
    );
    assert_eq!(past(&job), states(&[(1, "failed"), (2, "failed")]));
    let broken = rig.submit(0, json!({"payload": {"broken": "no such voice"}})).await;
    let job = rig.finished(0, &broken).await;
    assert_eq!(
        (&job["outcome"], &job["error"], &job["attempt"]),
        (&json!("failed"), &json!("no such voice"), &json!(1))
    );
    assert_eq!(job["result"], Value::Null);
    assert_eq!(job["dead"], true, "no node will try it again");
    let good = rig.submit(0, echo(1)).await;
    rig.finished(0, &good).await;
    let listed = async |dead: bool| ids(&rig.get(0, &format!("/v1/jobs?dead={dead}")).await);
    assert_eq!(listed(true).await, [broken.as_str(), dead.as_str()]);
    assert_eq!(listed(false).await, [good.as_str()]);

    let again = rig.post(0, &format!("/v1/jobs/{dead}/retry"), None, 202).await;
    assert_eq!(again["retry_of"], dead.as_str());
    let id = again["id"].as_str().unwrap();
    let job = rig.finished(0, id).await;
    assert_eq!((&job["retry_of"], &job["tenant"], &job["priority"]), (&json!(dead), &json!("t"), &json!(-2)));
    assert_eq!(node.runs.of(id).len(), 2, "with all its attempts");
    let old = rig.job(0, &dead).await;
    assert_eq!(
        (&old["state"], &old["retried_as"], &old["dead"]),
        (&json!("FINISHED"), &json!(id), &json!(false))
    );
    assert_eq!(listed(true).await, [id, broken.as_str()]);
    assert_eq!(listed(false).await, [good.as_str(), dead.as_str()]);
    let newest = rig.post(0, &format!("/v1/jobs/{dead}/retry"), None, 202).await["id"].clone();
    rig.finished(0, newest.as_str().unwrap()).await;
    assert_eq!(rig.job(0, &dead).await["retried_as"], newest, "by its id it is retried as often as is asked");
    let refused = rig.ask(0, "POST", &format!("/v1/jobs/{dead}/retry?once=true"), None).await;
    assert_eq!((refused.status, refused.code()), (409, "conflict"), "{}", refused.text);
    rig.nothing_is_held().await;
}

/// The ids of a list's items.
fn ids(list: &Value) -> Vec<String> {
    list["items"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_by_filter_make_one_new_job_of_each_dead_one() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[0], "n", |options| options.capacity = 8).await;
    let mut sessions = Vec::new();
    for index in [0, 1] {
        let opened = rig.post(index, "/v1/sessions", Some(&json!({"ordering": "none"})), 201).await;
        sessions.push(opened["id"].clone());
    }
    let dead = failing(9, 1);
    for n in 0..4 {
        let id = rig.submit(n % 2, dead.clone()).await;
        rig.finished(0, &id).await;
        let id = rig.submit(n % 2, with(dead.clone(), json!({"session": sessions[n / 2]}))).await;
        rig.finished(0, &id).await;
    }
    const DEAD: usize = 8;
    let retry = async |index: usize, key: Option<&str>, filter: &Value| {
        let url = format!("{}/v1/jobs/retry", rig.urls[index]);
        let reply = rig.http.request("POST", &url, key, Some(filter)).await.unwrap();
        assert_eq!(reply.status, 202, "{}", reply.text);
        let ids = reply.body["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    // The new jobs die as the old ones did, so that there are some to be retried in each round.
    for filter in [json!({"dead": true}), json!({"outcome": "failed"})] {
        for _ in 0..3 {
            let before = ids(&rig.get(0, "/v1/jobs?dead=true&limit=1000").await);
            assert_eq!(before.len(), DEAD, "what was retried is not dead any more");
            // Two people press the button at the same moment.
            let (one, other) = tokio::join!(retry(0, None, &filter), retry(1, None, &filter));
            for id in one.iter().chain(&other) {
                rig.finished(1, id).await;
            }
        }
    }
    let all = rig.get(0, "/v1/jobs?limit=1000").await["items"].as_array().unwrap().clone();
    let mut retried: Vec<_> = all.iter().filter_map(|job| job["retry_of"].as_str()).collect();
    assert_eq!(retried.len(), all.len() - DEAD);
    retried.sort_unstable();
    retried.dedup();
    assert_eq!(retried.len(), all.len() - DEAD, "none was retried twice");
    for job in &all {
        let retry = all.iter().find(|other| other["retry_of"] == job["id"]);
        assert_eq!(job["retried_as"], retry.map_or(Value::Null, |retry| retry["id"].clone()), "{job}");
    }
    // A request whose answer was lost is sent again, to any instance: it gets the same answer, and retries nothing more.
    let dead = json!({"dead": true});
    let made = retry(0, Some("key"), &dead).await;
    assert_eq!(made.len(), DEAD);
    for id in &made {
        rig.finished(0, id).await;
    }
    for index in [1, 0] {
        let mut again = retry(index, Some("key"), &dead).await;
        let mut made = made.clone();
        again.sort_unstable();
        made.sort_unstable();
        assert_eq!(again, made);
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_by_filter_that_is_repeated_under_its_key_selects_nothing_more() {
    // All thousand are to be retried in one request, however slow the machine is.
    let patient = |setup: Setup| setup.env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "60000");
    let rig = Rig::shaped(2, false, patient).await;
    let _node = rig.node(&[0], "n", |options| options.capacity = 50).await;
    let dead: Vec<_> = (0..1_010).map(|_| with(failing(9, 1), json!({"tenant": "t"}))).collect();
    let mut ids = rig.submit_all(0, &dead[..1_000]).await;
    ids.extend(rig.submit_all(1, &dead[1_000..]).await);
    for id in &ids {
        rig.finished(0, id).await;
    }
    let ask = async |index: usize, body: Value| {
        let url = format!("{}/v1/jobs/retry", rig.urls[index]);
        rig.http.request("POST", &url, Some("k"), Some(&body)).await.unwrap()
    };
    let filter = json!({"dead": true, "tenant": "t"});
    let new = |reply: Reply| {
        assert_eq!(reply.status, 202, "{}", reply.text);
        reply.body["ids"].as_array().unwrap().iter().map(Value::to_string).collect::<BTreeSet<_>>()
    };
    let made = new(ask(0, filter.clone()).await);
    assert_eq!(made.len(), 1_000, "the newest of 1,010");
    assert_eq!(new(ask(1, filter).await), made, "and none of the others");
    for other in [json!({"dead": true, "tenant": "nobody"}), json!({"ids": [ids[0]]})] {
        let refused = ask(1, other).await;
        assert_eq!((refused.status, refused.code()), (422, "key_reused"), "{}", refused.text);
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_closed_session_are_in_the_way_of_no_retry_by_filter() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let opened = rig.post(0, "/v1/sessions", Some(&json!({"ordering": "none"})), 201).await;
    let dead = with(failing(9, 1), json!({"kind": "k"}));
    let older = rig.submit(0, dead.clone()).await;
    let of_closed = rig.submit(1, with(dead, json!({"session": opened["id"]}))).await;
    for id in [&older, &of_closed] {
        rig.finished(0, id).await;
    }
    let close = format!("/v1/sessions/{}", opened["id"].as_str().unwrap());
    let closed = rig.ask(0, "DELETE", &close, None).await;
    assert_eq!(closed.status, 204, "{}", closed.text);
    let filter = json!({"dead": true, "kind": "k", "state": "finished"});
    let count = json!({"action": "retry", "filter": filter, "dry_run": true});
    assert_eq!(rig.post(1, "/v1/bulk", Some(&count), 200).await["matched"], 1);
    let retriable = async || ids(&rig.get(1, "/v1/jobs?retriable=true&kind=k").await);
    assert_eq!(retriable().await, std::slice::from_ref(&older));
    let answer = rig.post(1, "/v1/jobs/retry", Some(&filter), 202).await;
    assert_eq!((&answer["retried"], &answer["results"]), (&json!(1), &Value::Null), "{answer}");
    let retry = answer["ids"][0].as_str().unwrap();
    rig.finished(0, retry).await;
    assert_eq!(rig.job(0, &older).await["retried_as"], retry);
    assert_eq!(retriable().await, [retry]);
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_by_hand_is_one_under_its_key_and_not_of_what_is_not_finished() {
    let rig = Rig::together(2).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(rig.submit(n % 2, json!({"payload": {"broken": "b"}})).await);
    }
    for id in &ids {
        rig.finished(0, id).await;
    }
    let ask = async |index: usize, path: &str, key: &str, body: Option<&Value>| {
        let url = format!("{}{path}", rig.urls[index]);
        rig.http.request("POST", &url, Some(key), body).await.unwrap()
    };
    let path = format!("/v1/jobs/{}/retry", ids[0]);
    let one = ask(0, &path, "k", None).await;
    let same = ask(1, &path, "k", None).await;
    assert_eq!((one.status, same.status, &one.body), (202, 202, &same.body));
    let other = ask(1, &format!("/v1/jobs/{}/retry", ids[1]), "k", None).await;
    assert_eq!((other.status, other.code()), (422, "key_reused"));
    let many = json!({ "ids": [ids[2], ids[0], ids[1], ids[0]] });
    let all = ask(0, "/v1/jobs/retry", "k", Some(&many)).await;
    assert_eq!((all.status, &all.body["retried"]), (202, &json!(3)), "{}", all.text);
    assert_eq!(ask(1, "/v1/jobs/retry", "k", Some(&many)).await.body, all.body);
    let other = ask(1, "/v1/jobs/retry", "k", Some(&json!({"ids": ids[..2]}))).await;
    assert_eq!((other.status, other.code()), (422, "key_reused"), "{}", other.text);
    let filtered =
        rig.post(1, "/v1/jobs/retry", Some(&json!({"outcome": "failed", "tenant": "none"})), 202).await;
    assert_eq!(filtered, json!({"retried": 0, "ids": []}));
    // Each condition is a filter by itself.
    let alone = rig.submit(0, with(echo(1), json!({"tenant": "alone", "kind": "once"}))).await;
    rig.finished(0, &alone).await;
    for filter in
        [json!({"tenant": "alone"}), json!({"kind": "once", "state": "FINISHED", "outcome": "succeeded"})]
    {
        let made = rig.post(1, "/v1/jobs/retry", Some(&filter), 202).await;
        assert_eq!(made["retried"], 1, "{filter}: {made}");
        rig.finished(0, made["ids"][0].as_str().unwrap()).await;
    }
    for filter in
        [json!({"session": "none"}), json!({"pool": "none"}), json!({"dead": false, "tenant": "none"})]
    {
        let none = rig.post(0, "/v1/jobs/retry", Some(&filter), 202).await;
        assert_eq!(none["retried"], 0, "{filter}: {none}");
    }

    let held = rig.submit(1, hold(1)).await;
    node.runs.begun(&held, 1).await;
    let refused = rig.ask(0, "POST", &format!("/v1/jobs/{held}/retry"), None).await;
    assert_eq!((refused.status, refused.code()), (409, "conflict"), "{}", refused.text);
    let none = rig.post(0, "/v1/jobs/retry", Some(&json!({"ids": [held]})), 202).await;
    assert_eq!(none["retried"], 0);
    node.runs.release(1);
    rig.finished(0, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_is_repeated_under_its_key_is_the_same_also_when_the_old_job_is_gone() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let session = rig.post(1, "/v1/sessions", Some(&json!({"ordering": "none"})), 201).await["id"].clone();
    let broken = || json!({"payload": {"broken": "b"}});
    let in_session = || with(broken(), json!({"session": session}));
    let mut ids = Vec::new();
    for job in [in_session(), broken(), in_session(), broken()] {
        ids.push(rig.submit(0, job).await);
        rig.finished(0, ids.last().unwrap()).await;
    }
    let ask = async |index: usize, path: &str, key: &str, body: Option<&Value>| {
        let url = format!("{}{path}", rig.urls[index]);
        rig.http.request("POST", &url, Some(key), body).await.unwrap()
    };
    let many = json!({ "ids": ids });
    let all = ask(0, "/v1/jobs/retry", "many", Some(&many)).await;
    assert_eq!((all.status, &all.body["retried"]), (202, &json!(4)), "{}", all.text);
    for id in &ids[..2] {
        let path = format!("/v1/jobs/{id}/retry");
        let one = ask(0, &path, id, None).await;
        assert_eq!(one.status, 202, "{}", one.text);
        let deleted = rig.ask(0, "DELETE", &format!("/v1/jobs/{id}"), None).await;
        assert_eq!(deleted.status, 204, "{}", deleted.text);
        for index in [0, 1] {
            let again = ask(index, &path, id, None).await;
            assert_eq!((again.status, &again.body), (202, &one.body), "{}", again.text);
            let again = ask(index, "/v1/jobs/retry", "many", Some(&many)).await;
            assert_eq!((again.status, &again.body), (202, &all.body), "{}", again.text);
        }
        let other = ask(1, &format!("{path}?once=true"), id, None).await;
        assert_eq!((other.status, other.code()), (422, "key_reused"), "{}", other.text);
        let unknown = ask(1, &path, "new", None).await;
        assert_eq!((unknown.status, unknown.code()), (404, "not_found"), "{}", unknown.text);
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_called_off_in_every_state_from_every_instance() {
    let rig = Rig::together(2).await;
    let cancel =
        async |index: usize, id: &str| rig.post(index, &format!("/v1/jobs/{id}/cancel"), None, 200).await;
    let of = |job: &Value| (job["state"].clone(), job["outcome"].clone(), job["attempt"].clone());
    let off = |attempt: u64| (json!("FINISHED"), json!("cancelled"), json!(attempt));
    for index in [0, 1] {
        let created = rig.submit(0, echo(1)).await;
        assert_eq!(of(&cancel(index, &created).await), off(0));
        let delayed = rig.submit(0, with(echo(2), json!({"delay_ms": 3_600_000}))).await;
        assert_eq!(of(&cancel(index, &delayed).await), off(0));
        assert_eq!(of(&cancel(1 - index, &delayed).await), off(0), "again");
    }
    let node = rig.node(&[1], "n", |_| {}).await;
    for index in [0, 1] {
        let running = rig.submit(0, hold(3)).await;
        node.runs.begun(&running, 1).await;
        let job = cancel(index, &running).await;
        assert_eq!(of(&job), off(1));
        assert_eq!(past(&job), states(&[(1, "cancelled")]));
        assert_eq!(node.runs.stopped(&running, 1).await, Why::CalledOff);
        // The node has its place back for others.
        let next = rig.submit(0, echo(4)).await;
        let job = rig.finished(index, &next).await;
        assert_eq!(of(&cancel(index, &next).await), of(&job), "what is finished stays as it is");
        assert_eq!(job["outcome"], "succeeded");
    }
    assert_eq!(node.runs.all().len(), 4, "what was called off before never ran");
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_for_too_long_is_stopped_and_tried_again_or_ends_so() {
    let rig = Rig::together(2).await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let once = rig.submit(1, with(hold(1), json!({"timeout_ms": 300, "max_attempts": 1}))).await;
    let job = rig.finished(1, &once).await;
    assert_eq!((&job["outcome"], past(&job)), (&json!("timed_out"), states(&[(1, "timed_out")])));
    assert_eq!(node.runs.stopped(&once, 1).await, Why::CalledOff);
    assert!(between_ms(&job["dispatched_at"], &job["finished_at"]) >= 300, "{job}");
    let backoff: Value = serde_json::from_str(QUICK).unwrap();
    let twice = with(hold(2), json!({"timeout_ms": 1_500, "max_attempts": 2, "backoff": backoff}));
    let twice = rig.submit(1, twice).await;
    node.runs.begun(&twice, 2).await;
    node.runs.release(1);
    let job = rig.finished(1, &twice).await;
    assert_eq!(past(&job), states(&[(1, "timed_out"), (2, "succeeded")]), "{job}");
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_does_not_begin_before_its_time() {
    let rig = Rig::alone().await;
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let delayed = rig.submit(0, with(echo(1), json!({"delay_ms": 700}))).await;
    let at_once = rig.submit(0, with(echo(2), json!({"delay_ms": 0}))).await;
    let past_due = rig.submit(0, with(echo(3), json!({"run_at": "2020-01-01T00:00:00+01:00"}))).await;
    let later = rig.job(0, &delayed).await["run_at"].clone();
    let also = rig.submit(0, with(echo(4), json!({ "run_at": later }))).await;
    for id in [&at_once, &past_due] {
        rig.finished(0, id).await;
        assert!(node.runs.of(&delayed).is_empty() && node.runs.of(&also).is_empty());
    }
    for id in [&delayed, &also] {
        let job = rig.finished(0, id).await;
        assert!(micros(&job["dispatched_at"]) >= micros(&later), "{job}");
    }
    assert!(between_ms(&rig.job(0, &delayed).await["created_at"], &later) >= 700);
    until("nothing waits", async || {
        let waiting = rig.get(0, "/v1/jobs?state=CREATED").await;
        waiting["items"].as_array().unwrap().is_empty()
    })
    .await;
    tokio::time::timeout(Duration::from_secs(60), node.stop()).await.unwrap();
}
