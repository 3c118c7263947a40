//! The worker socket, spoken by hand: every frame out of order, false, or twice.

use std::time::Duration;

use client::node::Ended;
use client::wire::worker::{close, reason};
use serde_json::{Value, json};
use testkit::instance::Setup;
use testkit::node::Message;
use testkit::process::Signal;
use tokio::io::AsyncWriteExt;

use super::hand::{Hand, closing, done, frame, heartbeat, written};
use super::rig::{Node, PATIENCE, Rig, echo, hold, past, with};
use crate::until;

#[tokio::test(flavor = "multi_thread")]
async fn an_output_over_the_limit_fails_its_attempt_and_the_node_stays() {
    let rig = Rig::alone().await;
    let id = rig.submit(0, echo(1)).await;
    let mut hand = Hand::greeted(&rig, 0, "n", json!([])).await;
    let given = hand.given().await;
    hand.say(frame("ack", &given, json!({}))).await;
    hand.say(done(&given, "x".repeat(1 << 20))).await;
    hand.hear("committed").await;
    let job = rig.finished(0, &id).await;
    assert_eq!((&job["outcome"], &job["attempt"]), (&json!("failed"), &json!(1)), "{job}");
    assert!(job["error"].as_str().unwrap().contains("the limit is 1048576"), "{job}");
    let next = rig.submit(0, echo(2)).await;
    let given = hand.given().await;
    assert_eq!(given["job"], next);
    hand.say(frame("ack", &given, json!({}))).await;
    hand.say(done(&given, 2)).await;
    assert_eq!(rig.finished(0, &next).await["result"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_result_is_committed_whatever_its_message_is() {
    let rig = Rig::alone().await;
    let mut hand = Hand::greeted(&rig, 0, "n", json!([])).await;
    for (chars, kept) in [(0, 0), (8_192, 1_024), (8_193, 1_024), (500_000, 1_024)] {
        let id = rig.submit(0, echo(1)).await;
        let given = hand.given().await;
        assert_eq!(given["job"], id);
        hand.say(frame("ack", &given, json!({}))).await;
        hand.say(frame("progress", &given, json!({"note": "é".repeat(chars)}))).await;
        let error = json!({"message": "é".repeat(chars), "retryable": false});
        hand.say(frame("result", &given, json!({"ok": false, "error": error}))).await;
        assert_eq!(hand.hear("committed").await["job"], id);
        let job = rig.finished(0, &id).await;
        assert_eq!((&job["outcome"], &job["error"]), (&json!("failed"), &json!("é".repeat(kept))), "{job}");
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_another_subprotocol_is_refused_and_one_without_any_is_not() {
    let rig = Rig::alone().await;
    let session = rig.post(0, "/v1/sessions", Some(&json!({})), 201).await;
    let session = format!("/v1/sessions/{}/ws", session["id"].as_str().unwrap());
    for path in ["/v1/nodes/ws", &session] {
        for (offered, status) in [
            (None, 101),
            (Some("fencepost.v1"), 101),
            (Some("fencepost.v2, fencepost.v1"), 101),
            (Some("fencepost.v2"), 400),
            (Some("fencepost.v1x,graphql-ws"), 400),
            (Some(""), 400),
        ] {
            let request = testkit::http::plain_http(PATIENCE).unwrap().get(format!("{}{path}", rig.urls[0]));
            let mut request = request
                .header("connection", "upgrade")
                .header("upgrade", "websocket")
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
            if let Some(offered) = offered {
                request = request.header("sec-websocket-protocol", offered);
            }
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), status, "{path}: {offered:?}");
            if status == 400 {
                let problem: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
                assert_eq!(problem["code"], "invalid", "{problem}");
                assert!(problem["detail"].as_str().unwrap().contains("fencepost.v1"), "{problem}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_sent_twice_is_one_result_and_committed_both_times() {
    let rig = Rig::together(2).await;
    let mut hand = Hand::greeted(&rig, 0, "h", json!([])).await;
    let id = rig.submit(1, echo(1)).await;
    let of = hand.given().await;
    assert_eq!(of, json!({"job": id, "attempt": 1}));
    hand.say(frame("ack", &of, json!({}))).await;
    hand.say(done(&of, "first")).await;
    assert_eq!(hand.hear("committed").await["job"], id.as_str());
    hand.say(done(&of, "second")).await;
    assert_eq!(hand.hear("committed").await["job"], id.as_str());
    // On a new connection, at another instance.
    hand.say(heartbeat(json!([of]))).await;
    let mut again = Hand::greeted(&rig, 1, "h", json!([of])).await;
    again.say(done(&of, "third")).await;
    assert_eq!(again.hear("committed").await["job"], id.as_str());
    assert_eq!(hand.closed().await, close::REPLACED);
    let job = rig.finished(0, &id).await;
    assert_eq!((&job["result"], past(&job).len()), (&json!("first"), 1));
    again.say(heartbeat(json!([]))).await;
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_comes_late_or_again_is_stale_and_the_node_stays() {
    let rig = Rig::alone().await;
    let mut hand = Hand::greeted(&rig, 0, "h", json!([])).await;
    let id = rig.submit(0, echo(1)).await;
    let first = hand.given().await;
    hand.say(done(&first, "first")).await;
    hand.hear("committed").await;
    // It has heard the answer, and sends the result again.
    hand.say(heartbeat(json!([]))).await;
    hand.say(done(&first, "again")).await;
    hand.quiet_until("stale", "committed").await;
    // On a new connection, which does not list the attempt.
    let mut again = Hand::greeted(&rig, 0, "h", json!([])).await;
    assert_eq!(hand.closed().await, close::REPLACED);
    again.say(done(&first, "anew")).await;
    assert_eq!(again.hear("stale").await["job"], id.as_str());
    let job = rig.finished(0, &id).await;
    assert_eq!((&job["result"], past(&job).len()), (&json!("first"), 1));
    // The socket is lost while an attempt runs, and the node lists it no more.
    let id = rig.submit(0, with(echo(2), json!({"backoff": {"initial_ms": 0}}))).await;
    let lost = again.given().await;
    again.say(frame("ack", &lost, json!({}))).await;
    rig.in_state(0, &id, "RUNNING").await;
    drop(again);
    let mut hand = Hand::greeted(&rig, 0, "h", json!([])).await;
    hand.say(done(&lost, "late")).await;
    // The job runs again meanwhile: the frames come in either order.
    let (mut stale, mut given) = (None, None);
    while stale.is_none() || given.is_none() {
        let heard = hand.any(&["stale", "dispatch"]).await;
        let of = json!({"job": heard["job"], "attempt": heard["attempt"]});
        *(if heard["type"] == "stale" { &mut stale } else { &mut given }) = Some(of);
    }
    assert_eq!((stale, given.as_ref()), (Some(lost), Some(&json!({"job": id, "attempt": 2}))));
    hand.say(done(&given.unwrap(), "good")).await;
    hand.hear("committed").await;
    let job = rig.finished(0, &id).await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!("good"), &json!(2)));
    hand.say(heartbeat(json!([]))).await;
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_of_one_name_that_start_together_at_two_instances_one_stays_and_works() {
    let rig = Rig::together(2).await;
    let mut nodes = [0, 1].map(|index| Node::start(&rig.urls[index..=index], "n", |_| {}));
    for node in &nodes {
        node.connected().await;
    }
    let [one, other] = &mut nodes;
    let (ended, stays) = tokio::select! {
        ended = one.ended() => (ended, other),
        ended = other.ended() => (ended, one),
    };
    assert_eq!(ended, Some(Ended::Replaced));
    for index in 0..20 {
        let id = rig.submit(index % 2, echo(index)).await;
        let job = rig.finished(index % 2, &id).await;
        assert_eq!((&job["outcome"], past(&job).len()), (&json!("succeeded"), 1), "{job}");
    }
    assert_eq!(stays.runs.all().len(), 20, "all of them ran there");
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_result_of_an_attempt_that_was_taken_back_is_stale() {
    let rig = Rig::together(2).await;
    let mut hand = Hand::greeted(&rig, 0, "h", json!([])).await;
    let id = rig.submit(1, with(echo(1), json!({"timeout_ms": 200, "backoff": {"initial_ms": 0}}))).await;
    let of = hand.given().await;
    hand.say(frame("ack", &of, json!({}))).await;
    hand.say(heartbeat(json!([of]))).await;
    assert_eq!(hand.hear("cancel").await["attempt"], 1);
    hand.say(done(&of, "late")).await;
    assert_eq!(hand.hear("stale").await["attempt"], 1);
    hand.say(heartbeat(json!([]))).await;
    let second = hand.given().await;
    assert_eq!(second, json!({"job": id, "attempt": 2}));
    hand.say(done(&second, "good")).await;
    hand.hear("committed").await;
    let job = rig.finished(1, &id).await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!("good"), &json!(2)));
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_jobs_place_is_taken_until_the_node_lists_it_no_more() {
    let rig = Rig::alone().await;
    let mut hand = Hand::greeted(&rig, 0, "h", json!([])).await;
    let id = rig.submit(0, echo(1)).await;
    let of = hand.given().await;
    hand.say(frame("ack", &of, json!({}))).await;
    let job = rig.post(0, &format!("/v1/jobs/{id}/cancel"), None, 200).await;
    assert_eq!(job["outcome"], "cancelled");
    hand.hear("cancel").await;
    let next = rig.submit(0, echo(2)).await;
    hand.say(heartbeat(json!([of]))).await;
    hand.hear("heartbeat_ok").await;
    rig.node_is(0, "h", |node| node["used"] == 1).await;
    assert_eq!(rig.job(0, &next).await["state"], "CREATED");
    hand.say(heartbeat(json!([]))).await;
    let of = hand.given().await;
    assert_eq!(of["job"], next.as_str());
    hand.say(done(&of, 2)).await;
    hand.hear("committed").await;
    rig.finished(0, &next).await;
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_obeys_a_cancel_before_it_has_answered_stays_and_gets_more() {
    let rig = Rig::alone().await;
    let mut hand = Hand::greeted(&rig, 0, "h", json!([])).await;
    let id = rig.submit(0, echo(1)).await;
    let before = hand.given().await;
    rig.post(0, &format!("/v1/jobs/{id}/cancel"), None, 200).await;
    hand.hear("cancel").await;
    // It says nothing of the attempt; the socket would be closed when an answer is due.
    let next = rig.submit(0, echo(2)).await;
    let given = loop {
        hand.say(heartbeat(json!([]))).await;
        if let Some(given) = hand.within(Duration::from_secs(1), "dispatch").await {
            break json!({"job": given["job"], "attempt": given["attempt"]});
        }
    };
    assert_eq!(given["job"], next.as_str());
    until("the place is given back", async || !rig.job(0, &id).await["released_at"].is_null()).await;
    hand.say(frame("ack", &before, json!({}))).await;
    hand.say(done(&given, 2)).await;
    hand.hear("committed").await;
    rig.finished(0, &next).await;
    hand.say(heartbeat(json!([]))).await;
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_will_not_take_another_gets() {
    let rig = Rig::together(2).await;
    let mut hand = Hand::greeted(&rig, 0, "h", json!([])).await;
    let id = rig.submit(1, with(hold(7), json!({"max_attempts": 1, "backoff": {"initial_ms": 0}}))).await;
    let of = hand.given().await;
    let other = rig.node(&[1], "other", |_| {}).await;
    other.runs.release(1);
    hand.say(frame("reject", &of, json!({"reason": reason::UNABLE}))).await;
    // It is asked again only where nobody else is known yet.
    let mut finished = std::pin::pin!(rig.finished(0, &id));
    let job = loop {
        tokio::select! {
            job = &mut finished => break job,
            of = hand.given() => hand.say(frame("reject", &of, json!({"reason": reason::UNABLE}))).await,
        }
    };
    assert_eq!((&job["node"], &job["result"]), (&json!("other"), &json!(7)));
    let mut ends: Vec<_> = past(&job).into_iter().map(|(_, end)| end).collect();
    assert_eq!(ends.pop().as_deref(), Some("succeeded"));
    assert!(!ends.is_empty() && ends.iter().all(|end| end == "rejected"), "a refusal does not count: {job}");
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_its_node_forgets_is_taken_back_at_once() {
    let rig = Rig::together(2).await;
    let mut hand = Hand::greeted(&rig, 0, "h", json!([])).await;
    let id = rig.submit(1, with(echo(1), json!({"backoff": {"initial_ms": 0}}))).await;
    let of = hand.given().await;
    hand.say(frame("ack", &of, json!({}))).await;
    rig.in_state(1, &id, "RUNNING").await;
    hand.say(heartbeat(json!([]))).await;
    let of = hand.given().await;
    assert_eq!(of["attempt"], 2);
    // Once more, by a new hello at the other instance.
    hand.say(frame("ack", &of, json!({}))).await;
    until("it runs", async || rig.job(1, &id).await["state"] == "RUNNING").await;
    let mut hand = Hand::greeted(&rig, 1, "h", json!([])).await;
    let of = hand.given().await;
    assert_eq!(of["attempt"], 3);
    hand.say(done(&of, 1)).await;
    hand.hear("committed").await;
    let job = rig.finished(0, &id).await;
    let ends: Vec<_> = past(&job).into_iter().map(|(_, state)| state).collect();
    assert_eq!(ends, ["unlisted", "unlisted", "succeeded"]);
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_nobody_acknowledges_is_taken_back_and_does_not_count() {
    let rig = Rig::alone().await;
    let mut hand = Hand::greeted(&rig, 0, "mute", json!([])).await;
    let id = rig.submit(0, with(hold(1), json!({"max_attempts": 1, "backoff": {"initial_ms": 0}}))).await;
    hand.given().await;
    let other = rig.node(&[0], "other", |_| {}).await;
    other.runs.release(1);
    let job = tokio::select! {
        job = rig.finished(0, &id) => job,
        // It lives, and says nothing of the job; in the end it is hung up on for that.
        () = hand.beat() => unreachable!("it beats for ever"),
    };
    assert_eq!(past(&job), [(1, "not_acknowledged".to_owned()), (2, "succeeded".to_owned())]);
    assert_eq!(job["node"], "other");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_breach_of_the_protocol_closes_the_socket_and_hurts_nobody_else() {
    let rig = Rig::alone().await;
    let witness = rig.node(&[0], "witness", |options| options.labels.push("w".to_owned())).await;
    let hello = json!({"type": "hello", "node_id": "bad", "capacity": 1, "running": []});
    let with_hello = |more: Value| written(&with(hello.clone(), more));
    let strange = json!({"job": "0198c0de-0000-7000-8000-000000000001", "attempt": 1});
    let first: Vec<String> = vec![
        "".to_owned(),
        "{".to_owned(),
        "null".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        r#"{"type":"hello"}"#.to_owned(),
        r#"{"type":"hallo"}"#.to_owned(),
        hello.to_string(),
        written(&heartbeat(json!([]))),
        written(&frame("ack", &strange, json!({}))),
        written(&done(&strange, 1)),
        format!("[{}]", written(&hello)),
        with_hello(json!({"capacity": 0})),
        with_hello(json!({"capacity": 10_001})),
        with_hello(json!({"capacity": "1"})),
        with_hello(json!({"node_id": ""})),
        with_hello(json!({"node_id": "a b"})),
        with_hello(json!({"node_id": "x".repeat(129)})),
        with_hello(json!({"more": 1})),
        with_hello(json!({"labels": ["a b"]})),
        with_hello(json!({"labels": vec!["l"; 1_000]})),
        with_hello(json!({"running": [{"job": "x", "attempt": 1}]})),
        with_hello(json!({"running": [strange, strange]})),
        with_hello(json!({"running": [{"job": strange["job"], "attempt": 0}]})),
        "[".repeat(200_000),
        format!("{{\"type\":\"hello\",\"node_id\":\"{}\"", "x".repeat(3 << 20)),
    ];
    for text in first {
        let mut hand = Hand::open(&rig, 0).await;
        let shown: String = text.chars().take(200).collect();
        // One that is too large may be cut off before it is all sent.
        let _ = hand.socket.send(Message::text(text)).await;
        assert_eq!(hand.closed().await, close::PROTOCOL, "{shown}");
    }
    let later = [
        written(&hello),
        written(&json!({"type": "welcome"})),
        format!("[{}]", written(&heartbeat(json!([])))),
        written(&heartbeat(json!([strange]))),
        written(&frame("ack", &strange, json!({}))),
        written(&frame("reject", &strange, json!({"reason": "full"}))),
        written(&frame("progress", &strange, json!({"percent": 1}))),
        written(&frame("result", &strange, json!({"ok": true}))),
        written(&frame("result", &strange, json!({"ok": false, "output": 1}))),
        written(&json!({"type": "heartbeat", "running": [], "load": {"cpu": -1}})),
        written(&json!({"type": "drain", "now": true})),
    ];
    for text in later {
        let mut hand = Hand::greeted(&rig, 0, "bad", json!([])).await;
        hand.text(text.clone()).await;
        assert_eq!(hand.closed().await, close::PROTOCOL, "{text}");
    }
    let mut hand = Hand::greeted(&rig, 0, "bad", json!([])).await;
    hand.socket.send(Message::binary(hello.to_string().into_bytes())).await.unwrap();
    assert_eq!(hand.closed().await, close::PROTOCOL, "binary");
    // A node that says nothing at all, and one that leaves in the middle.
    let silent = Hand::open(&rig, 0).await;
    drop(Hand::open(&rig, 0).await);
    let id = rig.submit(0, with(echo("well"), json!({"requires": ["w"]}))).await;
    assert_eq!(rig.finished(0, &id).await["result"], "well");
    assert_eq!(silent.closed().await, close::PROTOCOL);
    until("only the witness is left", async || {
        let nodes = rig.get(0, "/v1/nodes").await;
        nodes["items"].as_array().unwrap().iter().all(|node| node["id"] == "witness")
    })
    .await;
    assert_eq!(witness.runs.all().len(), 1);
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_frame_of_a_node_is_answered_with_its_code() {
    let rig = Rig::alone().await;
    for (name, code) in [("early", 1000), ("greeted", 1001), ("greeted", 4001)] {
        let mut hand = match name {
            "early" => Hand::open(&rig, 0).await,
            name => Hand::greeted(&rig, 0, name, json!([])).await,
        };
        hand.socket.send(closing(code)).await.unwrap();
        assert_eq!(hand.end().await, Ok(code), "{name}");
    }
    let mut hand = Hand::greeted(&rig, 0, "wordless", json!([])).await;
    hand.socket.send(Message::Close(None)).await.unwrap();
    let answer = hand.socket.next().await;
    assert!(matches!(answer, Some(Ok(Message::Close(None)))), "{answer:?}");
    assert!(hand.socket.next().await.is_none(), "the connection ends in order");
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_in_one_line_who_closed_a_nodes_socket_and_why() {
    let rig = Rig::alone().await;
    let mut leaving = Hand::greeted(&rig, 0, "leaving", json!([])).await;
    leaving.socket.send(closing(4001)).await.unwrap();
    assert_eq!(leaving.closed().await, 4001);
    let mut breaking = Hand::greeted(&rig, 0, "breaking", json!([])).await;
    breaking.say(json!({"type": "hello", "node_id": "breaking", "capacity": 1, "running": []})).await;
    assert_eq!(breaking.closed().await, 4400);
    // Two connections end without a close frame, one of them within a frame.
    drop(Hand::greeted(&rig, 0, "killed", json!([])).await);
    let mut cut = Hand::greeted(&rig, 0, "cut", json!([])).await;
    cut.socket.stream_mut().write_all(&[0x81, 0xFE, 1, 0, 0, 0, 0, 0, b'{']).await.unwrap();
    drop(cut);
    for (node, by, code, why) in [
        ("leaving", "node", Some(4001), "enough"),
        ("breaking", "instance", Some(4400), "hello may be said once"),
        ("killed", "nobody", None, "the connection is gone"),
        ("cut", "nobody", None, "the connection is gone"),
    ] {
        let mut lines = Vec::new();
        until("it is logged", async || {
            let log = rig.instance(0).await.whole_log();
            let all = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines = all.filter(|line| line["node"] == node && line["by"].is_string()).collect();
            !lines.is_empty()
        })
        .await;
        let [line] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((&line["level"], &line["by"], &line["code"]), (&json!("INFO"), &json!(by), &json!(code)));
        assert!(line["epoch"].is_string() && line["why"] == why, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lies_about_its_attempts_changes_nothing() {
    let rig = Rig::together(2).await;
    let honest = rig.node(&[0], "honest", |_| {}).await;
    let id = rig.submit(0, hold("true")).await;
    rig.in_state(0, &id, "RUNNING").await;
    let of = json!({"job": id, "attempt": 1});
    let mut liar = Hand::greeted(&rig, 1, "liar", json!([of])).await;
    liar.say(done(&of, "false")).await;
    assert_eq!(liar.hear("stale").await["job"], id.as_str());
    let mut liar = Hand::greeted(&rig, 1, "liar", json!([{"job": id, "attempt": 2}])).await;
    liar.say(frame(
        "result",
        &json!({"job": id, "attempt": 2}),
        json!({"ok": false, "error": {"message": "no"}}),
    ))
    .await;
    assert_eq!(liar.hear("stale").await["attempt"], 2);
    liar.say(heartbeat(json!([]))).await;
    honest.runs.release(1);
    let job = rig.finished(1, &id).await;
    assert_eq!(
        (&job["result"], &job["node"], past(&job).len()),
        (&json!("true"), &json!("honest"), 1),
        "{job}"
    );
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_its_node_lists_at_another_instance_is_acknowledged() {
    let rig = Rig::shaped(2, false, |setup| setup.env("FENCEPOST__NODES__ACK_MS", "1500")).await;
    let mut hand = Hand::greeted(&rig, 0, "h", json!([])).await;
    rig.node_is(1, "h", |node| node["state"] == "online").await;
    let id = rig.submit(0, with(echo(1), json!({"max_attempts": 1}))).await;
    // Its acknowledgement is lost with the connection.
    let of = hand.given().await;
    drop(hand);
    let mut hand = Hand::greeted(&rig, 1, "h", json!([of])).await;
    let cancelled = hand.within(Duration::from_secs(4), "cancel").await;
    assert!(cancelled.is_none(), "{cancelled:?}");
    hand.say(done(&of, 1)).await;
    hand.hear("committed").await;
    assert_eq!(past(&rig.finished(0, &id).await), [(1, "succeeded".to_owned())]);
    rig.nothing_is_held().await;
}

/// A heartbeat of each of these nodes, which have these attempts.
async fn beat(nodes: &mut [(String, Hand, Value)]) {
    for (_, hand, of) in nodes {
        hand.say(heartbeat(json!([of]))).await;
    }
}

/// With the shortest time in which a node may be silent, 4 s.
fn soon_offline(setup: Setup) -> Setup {
    setup
        .env("FENCEPOST__NODES__HEARTBEAT_MS", "1000")
        .env("FENCEPOST__NODES__VOUCHED_MS", "2600")
        .env("FENCEPOST__NODES__RESERVATION_MS", "2700")
        .env("FENCEPOST__NODES__OFFLINE_MS", "4000")
}

/// As on a slow line, on which heartbeats wait behind the result.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_result_takes_longer_to_arrive_than_it_may_be_silent_stays() {
    let rig = Rig::alone_and(soon_offline).await;
    let id = rig.submit(0, with(echo(1), json!({"max_attempts": 1}))).await;
    let mut hand = Hand::greeted(&rig, 0, "slow", json!([])).await;
    let of = hand.given().await;
    hand.say(frame("ack", &of, json!({}))).await;
    // What came before took however long: the result begins in time all the same.
    hand.say(heartbeat(json!([of]))).await;
    hand.hear("heartbeat_ok").await;
    let text = written(&done(&of, "x".repeat(12_000)));
    let length = u16::try_from(text.len()).unwrap().to_be_bytes();
    // A text, with a mask of zeros.
    let mut message = vec![0x81, 0xFE, length[0], length[1], 0, 0, 0, 0];
    message.extend(text.bytes());
    for piece in message.chunks(1_000) {
        hand.socket.stream_mut().write_all(piece).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    hand.hear("committed").await;
    assert_eq!(past(&rig.finished(0, &id).await), [(1, "succeeded".to_owned())]);
    rig.no_defect().await;
}

/// As a container that is paused for longer than a node may be silent.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_stood_still_hears_its_nodes_before_it_calls_them_silent() {
    let rig = Rig::alone_and(soon_offline).await;
    let mut nodes = Vec::new();
    for n in 0..8 {
        let id = rig.submit(0, with(echo(n), json!({"max_attempts": 1}))).await;
        let mut hand = Hand::greeted(&rig, 0, &format!("n{n}"), json!([])).await;
        let of = hand.given().await;
        hand.say(frame("ack", &of, json!({}))).await;
        nodes.push((id, hand, of));
        beat(&mut nodes).await;
    }
    rig.instance(0).await.process().signal(Signal::Stop).unwrap();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        beat(&mut nodes).await;
    }
    rig.instance(0).await.process().signal(Signal::Continue).unwrap();
    for (_, hand, of) in &mut nodes {
        hand.say(done(of, "kept")).await;
    }
    for (id, hand, _) in &mut nodes {
        hand.hear("committed").await;
        assert_eq!(past(&rig.finished(0, id).await), [(1, "succeeded".to_owned())]);
    }
}
