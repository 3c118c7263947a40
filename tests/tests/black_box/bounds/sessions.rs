//! Many sessions of one token.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use testkit::http::Reply;
use testkit::node::Message;

use super::{Bounded, MIB};
use crate::access::world;
use crate::{patient, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_so_many_sessions_and_others_are_served() {
    const MOST: usize = 300;
    let daemon = Bounded::start(&[("JOBS__CALLER_SESSIONS_MAX", &MOST.to_string())]).await;
    let before = daemon.memory();
    let open = async |_: usize| daemon.ask("greedy", "POST", "/v1/sessions", Some(&json!({}))).await;
    let replies: Vec<_> =
        futures_util::stream::iter(0..MOST + 100).map(open).buffer_unordered(8).collect().await;
    let opened: Vec<_> = replies.iter().filter(|reply| reply.status == 201).collect();
    // Several at once may be some more.
    assert!((MOST..MOST + 8).contains(&opened.len()), "{}", opened.len());
    for refused in replies.iter().filter(|reply| reply.status != 201) {
        assert_eq!((refused.status, refused.code()), (429, "overloaded"), "{}", refused.text);
        assert!(refused.retry_after.is_some() && refused.text.contains("close those"), "{}", refused.text);
    }
    daemon.serves_others().await;
    daemon.done("other", "POST", "/v1/sessions", json!({})).await;
    assert!(daemon.memory().saturating_sub(before) < 64 * MIB);
    // The log names the token, and not once for each request.
    let told = |token: &str| {
        let (log, principal) = (daemon.instance.whole_log(), format!("\"principal\":\"{token}\""));
        log.lines().filter(|line| line.contains("a limit is reached") && line.contains(&principal)).count()
    };
    until("the token is in the log", async || told("greedy") > 0).await;
    let refused = replies.len() - opened.len();
    assert!(told("greedy") < refused && told("other") == 0, "{refused}: {}", daemon.instance.whole_log());
    // One that is closed makes room for another.
    let over = opened.len() - MOST;
    for reply in &opened[..=over] {
        let path = format!("/v1/sessions/{}", reply.body["id"].as_str().unwrap());
        assert_eq!(daemon.ask("greedy", "DELETE", &path, None).await.status, 204);
    }
    assert_eq!(open(0).await.status, 201);
    assert_eq!(open(0).await.status, 429);
    daemon.is_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_tokens_many_new_keys_are_refused_and_those_it_has_used_and_those_of_others_are_served() {
    let daemon = Bounded::start(&[("SERVER__CALLER_KEYS_MAX", "20")]).await;
    let client = patient();
    let post = async |token: &str, path: &str, key: Option<&str>, body: Value| {
        let client = client.clone().with_token(token);
        client.request("POST", &daemon.url(path), key, Some(&body)).await.unwrap()
    };
    let job = || json!({"payload": 1, "delay_ms": 600_000});
    let is_refused = |reply: &Reply| {
        assert_eq!((reply.status, reply.code()), (429, "overloaded"), "{}", reply.text);
        let seconds: u64 = reply.retry_after.as_ref().unwrap().parse().unwrap();
        assert!(
            (1..=3_600).contains(&seconds) && reply.text.contains("20 new idempotency keys"),
            "{}",
            reply.text
        );
    };
    // Every route that takes keys, and the refs of a session.
    let signer = "/v1/signers/s/nonces";
    let granted = post("greedy", signer, Some("k"), json!({})).await;
    assert_eq!(granted.status, 201, "{}", granted.text);
    let session = post("greedy", "/v1/sessions", Some("k"), json!({})).await;
    assert_eq!(session.status, 201, "{}", session.text);
    let first = post("greedy", "/v1/jobs", Some("k"), job()).await;
    assert_eq!(first.status, 202, "{}", first.text);
    let plan = json!({"tasks": [{"tenant": "t", "stages": [{"name": "s", "payload": 1}]}]});
    assert_eq!(post("greedy", "/v1/plans", Some("k"), plan.clone()).await.status, 201);
    let of_session = json!({"payload": 1, "session": session.body["id"], "ref": "r"});
    let with_ref = post("greedy", "/v1/jobs", None, of_session.clone()).await;
    assert_eq!(with_ref.status, 202, "{}", with_ref.text);
    let many = json!({"jobs": vec![job(); 17]});
    let batch = post("greedy", "/v1/jobs/batch", Some("k"), many).await;
    let results = batch.body["results"].as_array().unwrap();
    let (accepted, refused) = results.split_at(15);
    assert!(accepted.iter().all(|result| result["id"].is_string()), "{}", batch.text);
    assert!(refused.iter().all(|result| result["code"] == "overloaded"), "{}", batch.text);
    // Twenty keys were used.
    for path in [signer, "/v1/sessions", "/v1/jobs"] {
        let body = if path == "/v1/jobs" { job() } else { json!({}) };
        is_refused(&post("greedy", path, Some("another"), body).await);
    }
    is_refused(&post("greedy", "/v1/plans", Some("another"), plan).await);
    is_refused(
        &post("greedy", "/v1/jobs", None, json!({"payload": 1, "session": session.body["id"], "ref": "r2"}))
            .await,
    );
    let id = session.body["id"].as_str().unwrap();
    let mut socket = world::session_socket(daemon.instance.url(), "greedy", id).await;
    socket.send(world::message("job", &json!({"ref": "r3", "payload": 1}))).await.unwrap();
    let problem = loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Text(text) => break serde_json::from_str::<Value>(&text).unwrap(),
            other => assert!(other.is_ping(), "{other:?}"),
        }
    };
    let expected = [&json!("problem"), &json!("overloaded"), &json!("r3")];
    assert_eq!([&problem["type"], &problem["code"], &problem["ref"]], expected, "{problem}");
    // What was accepted is found again, and work without keys goes on.
    let again = post("greedy", signer, Some("k"), json!({})).await;
    assert_eq!(again.body["grants"][0]["hold"], granted.body["grants"][0]["hold"], "{}", again.text);
    assert_eq!(post("greedy", "/v1/jobs", Some("k"), job()).await.body["id"], first.body["id"]);
    assert_eq!(post("greedy", "/v1/jobs", None, of_session).await.body["id"], with_ref.body["id"]);
    assert_eq!(post("greedy", "/v1/jobs", None, job()).await.status, 202);
    assert_eq!(post("other", "/v1/jobs", Some("another"), job()).await.status, 202);
    daemon.serves_others().await;
    daemon.is_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_what_its_token_does_not_see_uses_no_key() {
    let daemon = Bounded::start(&[("SERVER__CALLER_KEYS_MAX", "3")]).await;
    let client = patient().with_token("narrow");
    let post = async |path: &str, key: &str, body: Value| {
        client.request("POST", &daemon.url(path), Some(key), Some(&body)).await.unwrap()
    };
    let plan = |pool: &str| json!({"tasks": [{"tenant": "t", "stages": [{"name": "s", "payload": 1, "pool": pool}]}]});
    let session = daemon.done("greedy", "POST", "/v1/sessions", json!({})).await;
    for number in 0..2 {
        let key = format!("k-{number}");
        for (path, body) in [
            ("/v1/jobs", json!({"payload": 1, "session": session["id"]})),
            ("/v1/sessions", json!({"pool": "slow"})),
            ("/v1/plans", plan("slow")),
        ] {
            let refused = post(path, &key, body).await;
            assert_eq!((refused.status, refused.code()), (404, "not_found"), "{path}: {}", refused.text);
        }
    }
    let other = daemon.done("greedy", "POST", "/v1/jobs", json!({"payload": 1})).await;
    let retry = format!("/v1/jobs/{}/retry", other["id"].as_str().unwrap());
    for number in 0..4 {
        let refused = post(&retry, &format!("k-{number}"), json!({})).await;
        assert_eq!((refused.status, refused.code()), (404, "not_found"), "{}", refused.text);
    }
    let hidden = json!({"jobs": vec![json!({"payload": 1, "session": session["id"]}); 4]});
    let batch = post("/v1/jobs/batch", "k", hidden).await;
    let results = batch.body["results"].as_array().unwrap();
    assert_eq!(results.len(), 4, "{}", batch.text);
    assert!(results.iter().all(|result| result["code"] == "not_found"), "{}", batch.text);
    let job = || json!({"payload": 1, "pool": "fast", "delay_ms": 600_000});
    for (path, body, status) in [
        ("/v1/jobs", job(), 202),
        ("/v1/sessions", json!({"pool": "fast"}), 201),
        ("/v1/plans", plan("fast"), 201),
    ] {
        let served = post(path, "new", body).await;
        assert_eq!(served.status, status, "{path}: {}", served.text);
    }
    let refused = post("/v1/jobs", "one-more", job()).await;
    assert_eq!((refused.status, refused.code()), (429, "overloaded"), "{}", refused.text);
    daemon.is_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_refused_for_its_key_uses_no_signer() {
    let daemon =
        Bounded::start(&[("SERVER__CALLER_KEYS_MAX", "1"), ("NONCE__CALLER_SIGNERS_MAX", "2")]).await;
    let client = patient().with_token("greedy");
    let grant = async |signer: &str, key: Option<&str>| {
        let path = format!("/v1/signers/{signer}/nonces");
        client.request("POST", &daemon.url(&path), key, Some(&json!({}))).await.unwrap()
    };
    assert_eq!(grant("s-0", Some("k")).await.status, 201);
    let refused = grant("s-1", Some("another")).await;
    assert_eq!((refused.status, refused.code()), (429, "overloaded"), "{}", refused.text);
    assert!(refused.text.contains("new idempotency keys"), "{}", refused.text);
    let served = grant("s-2", None).await;
    assert_eq!(served.status, 201, "{}", served.text);
    assert_eq!(grant("s-3", None).await.status, 429, "two were used");
    daemon.is_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_tokens_many_signers_are_refused_and_those_it_has_used_and_those_of_others_are_served() {
    let daemon = Bounded::start(&[("NONCE__CALLER_SIGNERS_MAX", "20")]).await;
    let grant = async |token: &str, number: usize| {
        daemon.ask(token, "POST", &format!("/v1/signers/s-{number}/nonces"), None).await
    };
    for number in 0..20 {
        assert_eq!(grant("greedy", number).await.status, 201);
    }
    for number in 20..30 {
        let refused = grant("greedy", number).await;
        assert_eq!((refused.status, refused.code()), (429, "overloaded"), "{}", refused.text);
        let seconds: u64 = refused.retry_after.as_ref().unwrap().parse().unwrap();
        assert!((60..=3_600).contains(&seconds), "the rest of the hour: {seconds}");
    }
    assert_eq!(grant("greedy", 0).await.status, 201, "it has used this one");
    assert_eq!(grant("other", 20).await.status, 201);
    daemon.serves_others().await;
    daemon.is_sound();
}
