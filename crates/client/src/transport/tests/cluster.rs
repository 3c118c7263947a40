//! What is asked for about the cluster, its mode and the caller.

use wire::cluster::{Mode, ModeRequest};

use super::*;

#[tokio::test]
async fn owners_the_mode_and_the_caller_are_asked_for() {
    let answer = |body: &str| Act::Answer(200, "", body.to_owned());
    let server = StandIn::playing(vec![
        answer(r#"{"resource":"signer:s","instance_id":"a-1","url":"u","ring_version":1,"leased":true}"#),
        answer(r#"{"mode":"basic","version":3}"#),
        answer(r#"{"mode":"worker-queue","only":["signer:s"],"version":4}"#),
        answer(r#"{"name":"t","scopes":["read"],"sees_everything":true,"instance":"a-1","version":"0.2.0"}"#),
        answer(r#"{"name":null,"scopes":[],"sees_everything":true,"instance":null,"version":"0.2.0"}"#),
    ])
    .await;
    let client = client(&[&server]);
    assert!(client.owner_of("signer:s").await.unwrap().leased);
    let version = client.mode().await.unwrap().version;
    let only = Some(vec!["signer:s".to_owned()]);
    let set = client.set_mode(&ModeRequest { mode: Mode::WorkerQueue, only, version }).await.unwrap();
    assert_eq!(set.version, 4);
    assert_eq!(client.whoami(None).await.unwrap().name.as_deref(), Some("t"));
    assert_eq!(client.whoami(Some("n 1")).await.unwrap().instance, None);
    let heard = server.heard();
    let asked: Vec<_> = heard.iter().map(|request| request.lines().next().unwrap()).collect();
    assert_eq!(
        asked,
        [
            "GET /v1/cluster/owner/signer:s HTTP/1.1",
            "GET /v1/config/mode HTTP/1.1",
            "PUT /v1/config/mode HTTP/1.1",
            "GET /v1/whoami HTTP/1.1",
            "GET /v1/whoami?node=n+1 HTTP/1.1",
        ]
    );
    assert!(heard[2].ends_with(r#"{"mode":"worker-queue","only":["signer:s"],"version":3}"#), "{}", heard[2]);
}
