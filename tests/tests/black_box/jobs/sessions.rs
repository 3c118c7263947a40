//! Conversations: the order of their jobs and results, their clients' sockets, and what becomes of both when instances
//! and nodes come and go.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use client::wire::worker::close;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use testkit::instance::Setup;
use testkit::process::Signal;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::fuzz::{READS_AGAIN_AFTER, code_at_the_end, with_little_room};
use super::hand::closing;
use super::rig::{Node, PATIENCE, Rig, Runs, echo, hold, with};
use super::session_client::{Talk, open, owner, seqs, settled, together};
use crate::until;

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_session_runs_one_job_at_a_time_in_the_order_of_submission() {
    let rig = together(3).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 10).await;
    node.runs.take(Duration::from_millis(5));
    let session = open(&rig, 0, json!({})).await;
    let mut talk = Talk::open(&rig, 1, &session, None).await;
    for n in 1..=60 {
        talk.job(&format!("c{n}"), echo(n)).await;
    }
    let (mut accepted, mut results) = (Vec::new(), Vec::new());
    while results.len() < 60 {
        let frame = talk.next().await;
        match frame["type"].as_str().unwrap() {
            "accepted" => accepted.push(frame),
            "result" => {
                let is_told = accepted.iter().any(|accepted| accepted["ref"] == frame["ref"]);
                assert!(is_told, "a result before its accepted: {frame}");
                results.push(frame);
            }
            _ => panic!("{frame}"),
        }
    }
    for (n, (accepted, result)) in (1..).zip(accepted.iter().zip(&results)) {
        assert_eq!((&accepted["seq"], &accepted["ref"]), (&json!(n), &json!(format!("c{n}"))));
        assert_eq!(
            (&result["seq"], &result["result"], &result["id"]),
            (&json!(n), &json!(n), &accepted["id"])
        );
        assert_eq!((&result["outcome"], &result["ref"]), (&json!("succeeded"), &accepted["ref"]));
    }
    let begun: Vec<_> = node.runs.all().iter().map(|run| run.payload["echo"].as_u64().unwrap()).collect();
    assert_eq!(begun, (1..=60).collect::<Vec<_>>());
    // No job began before the one before it had ended.
    let jobs =
        futures_util::future::join_all(accepted.iter().map(|it| rig.job(2, it["id"].as_str().unwrap())))
            .await;
    for pair in jobs.windows(2) {
        assert!(pair[0]["finished_at"].as_str() <= pair[1]["dispatched_at"].as_str(), "{pair:#?}");
    }
    let shown = rig.get(2, &format!("/v1/sessions/{session}")).await;
    assert_eq!((&shown["ordering"], &shown["last_seq"]), (&json!("strict"), &json!(60)));
    assert_eq!((&shown["jobs"]["finished"], &shown["last_node"]), (&json!(60), &json!("n")));
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_come_in_order_or_as_they_are_there() {
    let rig = together(2).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 10).await;
    for ordering in ["results", "none"] {
        let before = node.runs.all().len();
        let session = open(&rig, 1, json!({ "ordering": ordering })).await;
        let mut talk = Talk::open(&rig, 1, &session, None).await;
        talk.job("slow", hold("slow")).await;
        talk.job("two", echo(2)).await;
        talk.job("three", echo(3)).await;
        let refs: Vec<_> = [talk.next().await, talk.next().await, talk.next().await].into_iter().collect();
        assert!(refs.iter().filter(|frame| frame["type"] == "accepted").count() > 0, "{refs:?}");
        node.runs.until("they run beside one another", |runs| runs.len() == before + 3).await;
        for place in [2, 3] {
            let shown = rig.get(0, &format!("/v1/jobs?session={session}")).await;
            let items = shown["items"].as_array().unwrap().clone();
            let job = items.iter().find(|job| job["seq"] == place).unwrap();
            rig.finished(0, job["id"].as_str().unwrap()).await;
        }
        let early: Vec<_> = refs.into_iter().filter(|frame| frame["type"] == "result").collect();
        if ordering == "none" {
            let mut early = early;
            early.extend(talk.results(2 - early.len()).await);
            let places: HashSet<_> = seqs(&early).into_iter().collect();
            assert_eq!(places, HashSet::from([2, 3]));
            node.runs.release(1);
            assert_eq!(seqs(&talk.results(1).await), [1]);
        } else {
            assert!(early.is_empty(), "{early:?}");
            node.runs.release(1);
            assert_eq!(seqs(&talk.results(3).await), [1, 2, 3]);
        }
        // A client that comes later and has seen the first gets the others, once each.
        let mut again = Talk::open(&rig, 0, &session, Some(1)).await;
        let mut places = seqs(&again.results(2).await);
        places.sort_unstable();
        assert_eq!(places, [2, 3]);
        // A client that names no place gets what ends from now on.
        let mut late = Talk::open(&rig, 0, &session, None).await;
        late.job("four", echo(4)).await;
        assert_eq!(seqs(&late.results(1).await), [4]);
        assert_eq!(seqs(&again.results(1).await), [4]);
        assert_eq!(seqs(&talk.results(1).await), [4]);
    }
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ref_is_one_job_however_often_it_is_sent_and_wherever() {
    let rig = together(3).await;
    let node = rig.node(&[1], "n", |options| options.capacity = 4).await;
    let session = open(&rig, 0, json!({})).await;
    let mut ids = HashSet::new();
    for index in [0, 1, 2, 0] {
        let mut talk = Talk::open(&rig, index, &session, None).await;
        talk.job("once", echo(1)).await;
        let accepted = talk.next().await;
        assert_eq!((&accepted["type"], &accepted["seq"]), (&json!("accepted"), &json!(1)), "{accepted}");
        ids.insert(accepted["id"].as_str().unwrap().to_owned());
        talk.job("once", echo(2)).await;
        let problem = loop {
            let frame = talk.next().await;
            if frame["type"] == "problem" {
                break frame;
            }
        };
        assert_eq!((&problem["ref"], &problem["code"]), (&json!("once"), &json!("key_reused")));
    }
    // Over HTTP it is the same, and another session has a name of its own.
    let job = with(echo(1), json!({"session": session, "ref": "once"}));
    let accepted = rig.post(2, "/v1/jobs", Some(&job), 202).await;
    assert_eq!(
        (accepted["seq"].clone(), accepted["lane"].clone()),
        (json!(1), json!(format!("session:{session}")))
    );
    ids.insert(accepted["id"].as_str().unwrap().to_owned());
    assert_eq!(ids.len(), 1);
    let other = open(&rig, 1, json!({})).await;
    let job = with(echo(1), json!({"session": other, "ref": "once"}));
    let accepted = rig.post(0, "/v1/jobs", Some(&job), 202).await;
    assert!(ids.insert(accepted["id"].as_str().unwrap().to_owned()));
    for id in &ids {
        rig.finished(1, id).await;
    }
    assert_eq!(node.runs.all().len(), 2);
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_or_failing_job_of_a_strict_session_holds_the_line() {
    let rig = Rig::alone().await;
    let node = rig.node(&[0], "n", |options| options.capacity = 10).await;
    let session = open(&rig, 0, json!({})).await;
    let mut talk = Talk::open(&rig, 0, &session, None).await;
    let quick = json!({"backoff": {"initial_ms": 20, "max_ms": 40}});
    talk.job("late", with(echo("late"), json!({"delay_ms": 400}))).await;
    talk.job("poor", with(json!({"payload": {"fail": 2}}), quick)).await;
    talk.job("last", echo("last")).await;
    let results = talk.results(3).await;
    assert_eq!(seqs(&results), [1, 2, 3]);
    let order: Vec<_> = node.runs.all().iter().map(|run| run.payload.clone()).collect();
    let poor = json!({"fail": 2});
    assert_eq!(order, [json!({"echo": "late"}), poor.clone(), poor.clone(), poor, json!({"echo": "last"})]);
    // One that is called off in the line lets the next one pass; one whose turn it is as well.
    talk.job("held", hold(1)).await;
    talk.job("off", echo("off")).await;
    talk.job("after", echo("after")).await;
    let mut ids = Vec::new();
    while ids.len() < 3 {
        ids.push(talk.next().await["id"].as_str().unwrap().to_owned());
    }
    node.runs.begun(&ids[0], 1).await;
    rig.post(0, &format!("/v1/jobs/{}/cancel", ids[1]), None, 200).await;
    rig.post(0, &format!("/v1/jobs/{}/cancel", ids[0]), None, 200).await;
    let results = talk.results(3).await;
    let outcomes: Vec<_> = results.iter().map(|result| result["outcome"].as_str().unwrap()).collect();
    assert_eq!((seqs(&results), outcomes), (vec![4, 5, 6], vec!["cancelled", "cancelled", "succeeded"]));
    assert!(node.runs.of(&ids[1]).is_empty());
    let job = with(echo(1), json!({"session": session, "priority": 1}));
    let refused = rig.ask(0, "POST", "/v1/jobs", Some(&job)).await;
    assert_eq!((refused.status, refused.code()), (400, "invalid"), "{}", refused.text);
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn order_holds_through_the_death_of_owners_and_nodes() {
    let mut rig = Rig::mortal(3).await;
    settled(&rig).await;
    let runs = Runs::new();
    runs.take(Duration::from_millis(10));
    let urls = rig.urls.clone();
    let node = |name: &'static str| Node::sharing(runs.clone(), &urls, name, |options| options.capacity = 3);
    let (mut one, mut other) = (node("one"), node("other"));
    one.connected().await;
    other.connected().await;
    let session = open(&rig, 0, json!({})).await;
    // As any client it asks again: deaths are noticed so soon here that a busy machine may seem dead.
    let submit = async |rig: &Rig, index: usize, n: u64| {
        let job = with(echo(n), json!({"session": session, "ref": format!("c{n}"), "max_attempts": 20}));
        let begun = Instant::now();
        loop {
            let reply = rig.ask(index, "POST", "/v1/jobs", Some(&job)).await;
            if reply.status == 202 {
                return reply.body["seq"].as_u64().unwrap();
            }
            let is_late = begun.elapsed() > PATIENCE;
            assert!(!is_late && matches!(reply.status, 409 | 503), "{}: {}", reply.status, reply.text);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    for n in 1..=40 {
        assert_eq!(submit(&rig, (n % 3) as usize, n).await, n);
    }
    let first = owner(&rig, 0, &session).await;
    rig.end(first, Signal::Kill).await;
    let left: Vec<_> = (0..3).filter(|index| *index != first).collect();
    for n in 41..=80 {
        assert_eq!(submit(&rig, left[n as usize % 2], n).await, n);
    }
    let mut taken = 0.0;
    for index in &left {
        taken += taken_over(&rig, *index, "dead").await;
    }
    assert!(taken >= 1.0, "the session's lease was taken before it ran out: {taken}");
    drop(one);
    one = node("third");
    one.connected().await;
    let second = owner(&rig, left[0], &session).await;
    rig.end(second, Signal::Terminate).await;
    let last = *left.iter().find(|index| **index != second).unwrap();
    let mut talk = Talk::open(&rig, last, &session, Some(0)).await;
    let results = talk.results(80).await;
    assert_eq!(seqs(&results), (1..=80).collect::<Vec<_>>());
    assert!(results.iter().all(|result| result["result"] == result["seq"]), "{results:?}");
    // Attempts that were taken back apart, each began after those before it: what was begun last of each is in order.
    let mut last_of = std::collections::BTreeMap::new();
    for (at, run) in runs.all().iter().enumerate() {
        last_of.insert(run.payload["echo"].as_u64().unwrap(), at);
    }
    let begun: Vec<_> = last_of.values().copied().collect();
    assert!(begun.is_sorted() && begun.len() == 80, "{begun:?}");
    rig.nothing_is_held().await;
    rig.no_defect().await;
    let _ = (&mut rig, &mut other);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_moves_with_a_job_running() {
    let rig = Rig::together_and_patient(2).await;
    let node = rig.node(&[0, 1], "n", |options| options.capacity = 3).await;
    let session = open(&rig, 0, json!({})).await;
    let mut talk = Talk::open(&rig, 0, &session, None).await;
    talk.job("held", hold("held")).await;
    talk.job("next", echo("next")).await;
    let held = talk.next().await["id"].as_str().unwrap().to_owned();
    node.runs.begun(&held, 1).await;
    rig.in_state(0, &held, "RUNNING").await;
    let first = owner(&rig, 0, &session).await;
    rig.end(first, Signal::Terminate).await;
    let mut talk = Talk::open(&rig, 1 - first, &session, Some(0)).await;
    until("the other has it", async || {
        let lease = rig.get(1 - first, &format!("/v1/leases/session:{session}")).await;
        lease["live"] == true && !lease["owner"].is_null()
    })
    .await;
    assert_eq!(owner(&rig, 1 - first, &session).await, 1 - first);
    node.runs.release(1);
    let results = talk.results(2).await;
    assert_eq!((seqs(&results), &results[0]["result"]), (vec![1, 2], &json!("held")));
    assert_eq!(node.runs.of(&held).len(), 1, "it ran on where it was");
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

/// Sessions that an instance has taken over for this reason.
async fn taken_over(rig: &Rig, index: usize, reason: &str) -> f64 {
    let series = format!(r#"fencepost_lease_takeover_total{{kind="session",reason="{reason}"}}"#);
    rig.series(index, &series).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_with_waiting_jobs_are_left_to_the_other_instance_when_theirs_stops() {
    let rig = together(2).await;
    let mut waiting = Vec::new();
    // No node is there yet.
    while waiting.len() < 8 {
        let session = open(&rig, 0, json!({})).await;
        let of_session = rig.get(1, &format!("/v1/cluster/owner/session:{session}")).await;
        if of_session["url"] != rig.urls[0] {
            continue;
        }
        let mut talk = Talk::open(&rig, 1, &session, None).await;
        talk.job("waits", echo(1)).await;
        assert_eq!(talk.next().await["type"], "accepted");
        assert_eq!(owner(&rig, 1, &session).await, 0);
        waiting.push((session, talk));
    }
    assert_eq!(taken_over(&rig, 1, "left").await, 0.0);
    rig.end(0, Signal::Terminate).await;
    for (session, _) in &waiting {
        until("the other has it", async || {
            let lease = rig.get(1, &format!("/v1/leases/session:{session}")).await;
            lease["live"] == true
        })
        .await;
        assert_eq!(owner(&rig, 1, session).await, 1);
    }
    // Its own look may have found some of them first.
    let left = taken_over(&rig, 1, "left").await;
    assert!((1.0..=waiting.len() as f64).contains(&left), "{left} of {} were left to it", waiting.len());
    let _node = rig.node(&[1], "n", |options| options.capacity = 3).await;
    for (_, talk) in &mut waiting {
        assert_eq!(seqs(&talk.results(1).await), [1]);
    }
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_brings_jobs_to_the_owner_also_where_callers_are_redirected() {
    let redirecting = |setup: Setup| setup.env("FENCEPOST__WORKER_QUEUE__ON_MISROUTE", "redirect");
    let rig = Rig::shaped(2, false, redirecting).await;
    let session = open(&rig, 0, json!({})).await;
    for index in [0, 1] {
        let mut talk = Talk::open(&rig, index, &session, None).await;
        talk.job(&format!("c{index}"), echo(index)).await;
        let frame = talk.next().await;
        assert_eq!((&frame["type"], &frame["seq"]), (&json!("accepted"), &json!(index + 1)), "{frame}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_job_is_not_due_for_long_rests() {
    let rig = together(2).await;
    let session = open(&rig, 0, json!({ "ordering": "none" })).await;
    let late = with(echo(1), json!({ "session": session, "delay_ms": 3_600_000 }));
    rig.post(0, "/v1/jobs", Some(&late), 202).await;
    assert_eq!(rig.ask(0, "DELETE", &format!("/v1/sessions/{session}"), None).await.status, 204);
    let lease = format!("/v1/leases/session:{session}");
    until("it is released", async || rig.get(0, &lease).await["live"] == false).await;
    // An instance that went on with it would release it as well, for the next one to go on.
    let token = rig.get(0, &lease).await["fencing_token"].clone();
    assert!(token.is_i64(), "{token}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let shown = rig.get(0, &lease).await;
    assert_eq!((&shown["fencing_token"], &shown["live"]), (&token, &json!(false)), "{shown}");
    assert_eq!(taken_over(&rig, 0, "left").await + taken_over(&rig, 1, "left").await, 0.0);
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_session_finishes_what_it_has_and_takes_no_more() {
    let rig = together(2).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 3).await;
    let session = open(&rig, 0, json!({})).await;
    let path = format!("/v1/sessions/{session}");
    let mut talks = Vec::new();
    for index in [0, 1] {
        talks.push(Talk::open(&rig, index, &session, Some(0)).await);
    }
    talks[0].job("held", hold(1)).await;
    talks[0].job("next", echo(2)).await;
    let held = talks[0].next().await["id"].as_str().unwrap().to_owned();
    assert_eq!(talks[0].next().await["type"], "accepted");
    node.runs.begun(&held, 1).await;
    for index in [1, 0] {
        let reply = rig.ask(index, "DELETE", &path, None).await;
        assert_eq!((reply.status, reply.text.as_str()), (204, ""));
    }
    let job = with(echo(3), json!({"session": session}));
    for index in [0, 1] {
        let reply = rig.ask(index, "POST", "/v1/jobs", Some(&job)).await;
        assert_eq!((reply.status, reply.code()), (409, "conflict"), "{}", reply.text);
    }
    talks[1].job("no", echo(3)).await;
    assert_eq!(talks[1].next().await["code"], "conflict");
    assert!(rig.get(1, &path).await["closed_at"].is_string());
    node.runs.release(1);
    for mut talk in talks {
        assert_eq!(seqs(&talk.results(2).await), [1, 2]);
        assert_eq!(talk.closed().await, 1000);
    }
    // A job of it is not tried again either, whichever instance is asked.
    for index in [0, 1] {
        let reply = rig.ask(index, "POST", &format!("/v1/jobs/{held}/retry"), None).await;
        assert_eq!((reply.status, reply.code()), (409, "conflict"), "{}", reply.text);
        let answer = rig.post(index, "/v1/jobs/retry", Some(&json!({"ids": [held]})), 202).await;
        let wrong = &answer["results"][0];
        assert_eq!((&wrong["retry_of"], &wrong["code"]), (&json!(held), &json!("conflict")), "{answer}");
    }
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_nobody_uses_is_closed() {
    let rig = Rig::alone().await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let unused = open(&rig, 0, json!({"idle_ms": 1000})).await;
    // It is open for long enough that its job is accepted on a busy machine.
    let used = open(&rig, 0, json!({"idle_ms": 5000})).await;
    let id = rig.submit(0, with(echo(1), json!({"session": used}))).await;
    rig.finished(0, &id).await;
    for session in [unused, used] {
        until("it is closed", async || {
            rig.get(0, &format!("/v1/sessions/{session}")).await["closed_at"].is_string()
        })
        .await;
        let reply = rig.ask(0, "POST", "/v1/jobs", Some(&with(echo(1), json!({"session": session})))).await;
        assert_eq!((reply.status, reply.code()), (409, "conflict"), "{}", reply.text);
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_prefers_the_node_that_had_its_last_job_and_asks_what_it_was_made_with() {
    let rig = together(2).await;
    let runs = Runs::new();
    let mut nodes = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let url = &rig.urls[..1];
        let node = Node::sharing(runs.clone(), url, name, |options| {
            options.capacity = 2;
            options.labels = vec!["gpu".to_owned()];
        });
        node.connected().await;
        nodes.push(node);
    }
    let _plain = rig.node(&[1], "plain", |options| options.capacity = 50).await;
    for name in ["a", "b", "c", "d"] {
        rig.node_is(1, name, |shown| shown["state"] == "online").await;
    }
    let session = open(&rig, 1, json!({"requires": ["gpu"]})).await;
    let mut talk = Talk::open(&rig, 1, &session, None).await;
    for n in 0..20 {
        talk.job(&format!("c{n}"), echo(n)).await;
        talk.results(1).await;
    }
    let used: HashSet<_> = runs.all().iter().map(|run| run.node.clone()).collect();
    assert_eq!((used.len(), runs.all().len()), (1, 20), "{used:?}");
    let shown = rig.get(0, &format!("/v1/sessions/{session}")).await;
    assert_eq!(
        (&shown["requires"], shown["last_node"].as_str()),
        (&json!(["gpu"]), used.iter().next().map(String::as_str))
    );
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_may_be_of_many_sessions_and_under_a_key_is_the_same_everywhere() {
    let rig = together(3).await;
    let _node = rig.node(&[0], "n", |options| options.capacity = 50).await;
    let mut sessions = Vec::new();
    for index in 0..6 {
        sessions.push(open(&rig, index % 3, json!({})).await);
    }
    let job = |at: usize| match at % 7 {
        6 => echo(at),
        of => with(echo(at), json!({"session": sessions[of]})),
    };
    let mut jobs: Vec<_> = (0..70).map(job).collect();
    jobs.push(with(echo(1), json!({"session": "nobody"})));
    jobs.push(json!({"payload": 1, "ref": "alone"}));
    let mut answers = Vec::new();
    for index in [0, 1, 2, 1] {
        let url = format!("{}/v1/jobs/batch", rig.urls[index]);
        let reply =
            rig.http.request("POST", &url, Some("key"), Some(&json!({ "jobs": jobs }))).await.unwrap();
        assert_eq!(reply.status, 202, "{}", reply.text);
        answers.push(reply.body["results"].as_array().unwrap().clone());
    }
    let first = &answers[0];
    for again in &answers[1..] {
        assert_eq!(again, first);
    }
    assert_eq!((&first[70]["code"], &first[71]["code"]), (&json!("not_found"), &json!("invalid")));
    let mut ids = HashSet::new();
    for (at, answer) in first[..70].iter().enumerate() {
        let id = answer["id"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(ids.insert(id), "{id} twice");
        let job = rig.finished(at % 3, id).await;
        assert_eq!((&job["result"], &job["seq"]), (&json!(at), &answer["seq"]), "{job}");
        if at % 7 < 6 {
            assert_eq!((&job["seq"], &job["session"]), (&json!(at / 7 + 1), &json!(sessions[at % 7])));
        }
    }
    // Retried by hand: at the end of its session's lane, once, through any instance.
    let finished: Vec<_> = first[..12].iter().map(|answer| answer["id"].clone()).collect();
    let mut again = HashSet::new();
    for index in [2, 0] {
        let url = format!("{}/v1/jobs/retry", rig.urls[index]);
        let reply =
            rig.http.request("POST", &url, Some("again"), Some(&json!({"ids": finished}))).await.unwrap();
        assert_eq!((reply.status, &reply.body["retried"]), (202, &json!(12)), "{}", reply.text);
        again.extend(reply.body["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()));
    }
    assert_eq!(again.len(), 12, "{again:?}");
    for id in &again {
        let job = rig.finished(1, id).await;
        assert!(job["session"].is_null() || job["seq"].as_u64() > Some(10), "{job}");
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_says_wrong_is_told_and_sinks_nothing_else() {
    let rig = Rig::alone().await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let session = open(&rig, 0, json!({})).await;
    let mut talk = Talk::open(&rig, 0, &session, None).await;
    for (wrong, named) in [
        ("{", Value::Null),
        ("[]", Value::Null),
        (r#"{"type":"hello"}"#, Value::Null),
        (r#"{"type":"job","payload":1}"#, Value::Null),
        (r#"{"type":"job","ref":"r","payload":1,"session":"other"}"#, json!("r")),
        (r#"{"type":"job","ref":"r","payload":1,"unknown":1}"#, json!("r")),
        (r#"{"type":"job","ref":"r","payload":1,"priority":11}"#, json!("r")),
        (r#"{"type":"job","ref":"r ö","payload":1}"#, json!("r ö")),
        (r#"{"type":"job","ref":"r","payload":1,"delay_ms":1,"run_at":"2026-01-01T00:00:00Z"}"#, json!("r")),
    ] {
        talk.text(wrong).await;
        let problem = talk.next().await;
        assert_eq!(
            (&problem["type"], &problem["code"]),
            (&json!("problem"), &json!("invalid")),
            "{wrong}: {problem}"
        );
        assert_eq!(problem["ref"], named, "{wrong}: {problem}");
    }
    talk.job("r", echo("good")).await;
    assert_eq!(talk.results(1).await[0]["result"], "good");
    let mut binary = Talk::open(&rig, 0, &session, None).await;
    binary.socket.send(Message::binary(vec![0])).await.unwrap();
    assert_eq!(binary.closed().await, 4400);
    let mut long = Talk::open(&rig, 0, &session, None).await;
    // The other side may be gone before all of it is written.
    let _ = long.socket.send(Message::text("x".repeat(8 << 20))).await;
    assert_eq!(long.closed().await, 4400);
    until("the log says why", async || {
        let log = rig.instance(0).await.whole_log();
        let words = ["a client's socket is closed", "\"INFO\"", "4400", session.as_str()];
        log.lines().any(|line| words.iter().all(|word| line.contains(word)))
    })
    .await;
    let gpus = open(&rig, 0, json!({"requires": ["gpu"]})).await;
    let labels: Vec<_> = (0..16).map(|number| format!("l{number}")).collect();
    let many_labels = with(echo(1), json!({"session": gpus, "requires": labels}));
    for (method, path, body, status, code) in [
        ("POST", "/v1/sessions".to_owned(), json!({"ordering": "free"}), 400, "invalid"),
        ("POST", "/v1/sessions".to_owned(), json!({"idle_ms": 1}), 400, "invalid"),
        ("POST", "/v1/sessions".to_owned(), json!({"name": "s"}), 400, "invalid"),
        ("GET", "/v1/sessions/nobody".to_owned(), Value::Null, 404, "not_found"),
        ("GET", "/v1/sessions/a%20b".to_owned(), Value::Null, 404, "not_found"),
        ("DELETE", "/v1/sessions/nobody".to_owned(), Value::Null, 404, "not_found"),
        ("GET", "/v1/sessions/nobody/ws".to_owned(), Value::Null, 404, "not_found"),
        ("GET", format!("/v1/sessions/{session}/ws"), Value::Null, 400, "invalid"),
        ("GET", format!("/v1/sessions/{session}/ws?after_seq=x"), Value::Null, 400, "invalid"),
        ("PUT", format!("/v1/sessions/{session}"), Value::Null, 405, "method_not_allowed"),
        ("POST", "/v1/jobs".to_owned(), with(echo(1), json!({"session": "nobody"})), 404, "not_found"),
        ("POST", "/v1/jobs".to_owned(), with(echo(1), json!({"ref": "r"})), 400, "invalid"),
        // One more than a job may require, with its session's label.
        ("POST", "/v1/jobs".to_owned(), many_labels, 400, "invalid"),
    ] {
        let body = Some(&body).filter(|body| !body.is_null());
        let reply = rig.ask(0, method, &path, body).await;
        assert_eq!((reply.status, reply.code()), (status, code), "{method} {path}: {}", reply.text);
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_made_once_under_a_key_and_needs_the_bus_where_there_may_be_several_instances() {
    let rig = together(2).await;
    let mut ids = HashSet::new();
    for index in [0, 1, 0] {
        let url = format!("{}/v1/sessions", rig.urls[index]);
        let reply =
            rig.http.request("POST", &url, Some("key"), Some(&json!({"ordering": "none"}))).await.unwrap();
        assert_eq!((reply.status, &reply.body["ordering"]), (201, &json!("none")), "{}", reply.text);
        ids.insert(reply.body["id"].as_str().unwrap().to_owned());
        let other = rig.http.request("POST", &url, Some("key"), Some(&json!({}))).await.unwrap();
        assert_eq!((other.status, other.code()), (422, "key_reused"));
    }
    assert_eq!(ids.len(), 1);
    let database = tokio::task::spawn_blocking(testkit::servers::Database::fresh).await.unwrap().unwrap();
    let alone = Setup::in_mode("worker-queue").unwrap().database(database.url()).start().await.unwrap();
    for (method, path) in [("POST", "/v1/sessions"), ("GET", "/v1/sessions/s"), ("GET", "/v1/sessions/s/ws")]
    {
        let reply = rig.http.request(method, &format!("{}{path}", alone.url()), None, None).await.unwrap();
        assert_eq!((reply.status, reply.code()), (503, "bus_unavailable"), "{method} {path}: {}", reply.text);
    }
    let ready = rig.http.get(&format!("{}/readyz", alone.url())).await.unwrap();
    let says = "no Redis: jobs go to this instance's own nodes, and sessions are refused";
    assert_eq!(ready["checks"]["bus"], json!({"status": "ok", "detail": says}), "{ready}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_hears_how_far_its_job_is_wherever_it_runs() {
    let rig = together(3).await;
    let node = rig.node(&[2], "n", |_| {}).await;
    let session = open(&rig, 0, json!({})).await;
    let mut talk = Talk::open(&rig, 0, &session, None).await;
    let mut other = Talk::open(&rig, 1, &session, None).await;
    // The others have to be told once that somebody listens.
    for n in 0.. {
        talk.job(&format!("held{n}"), hold(n)).await;
        let progress = tokio::time::timeout(Duration::from_secs(2), async {
            loop {
                let frame = other.any().await;
                if frame["type"] == "progress" {
                    return frame;
                }
            }
        });
        let progress = progress.await;
        node.runs.release(1);
        if let Ok(frame) = progress {
            assert_eq!((&frame["percent"], &frame["note"]), (&json!(50.0), &json!("held")));
            break;
        }
        assert!(n < 20, "nothing is heard of its progress");
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_frame_of_a_client_is_answered_with_its_code() {
    let rig = Rig::alone().await;
    let session = open(&rig, 0, json!({})).await;
    for code in [1000, 4001] {
        let mut talk = Talk::open(&rig, 0, &session, None).await;
        talk.socket.send(closing(code)).await.unwrap();
        assert_eq!(talk.closed().await, code);
    }
    let mut talk = Talk::open(&rig, 0, &session, None).await;
    talk.socket.send(Message::Close(None)).await.unwrap();
    let answer = talk.socket.next().await;
    assert!(matches!(answer, Some(Ok(Message::Close(None)))), "{answer:?}");
    assert!(talk.socket.next().await.is_none(), "the connection ends in order");
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_again_late_still_sees_4429() {
    // More than the connection and the instance keep for a client.
    const JOBS: usize = 100;
    let rig = Rig::alone().await;
    let _node = rig.node(&[0], "node", |options| options.capacity = 25).await;
    let session = open(&rig, 0, json!({"ordering": "results"})).await;
    let job = with(echo("x".repeat(300_000)), json!({"session": session}));
    rig.submit_all(0, &vec![job; JOBS]).await;
    // Thirty megabytes twice over: a busy machine needs long for them.
    for part in [JOBS / 4, JOBS / 2, JOBS * 3 / 4, JOBS] {
        until("as many are finished", async || {
            let session = rig.get(0, &format!("/v1/sessions/{session}")).await;
            session["jobs"]["finished"].as_u64().is_some_and(|finished| finished >= part as u64)
        })
        .await;
    }
    // All results are there, so that they leave at once.
    let url = format!("{}/v1/sessions/{session}/ws?after_seq=0", rig.urls[0].replace("http", "ws"));
    let slow = with_little_room(url.into_client_request().unwrap()).await;
    until("it is found to be slow", async || {
        rig.instance(0).await.whole_log().contains(&format!("\"code\":{}", close::SLOW_READER))
    })
    .await;
    tokio::time::sleep(READS_AGAIN_AFTER).await;
    assert_eq!(code_at_the_end(slow).await, Some(close::SLOW_READER));
    rig.no_defect().await;
}
