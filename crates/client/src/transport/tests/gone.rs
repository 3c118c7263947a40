//! Clients that have asked about no signer, and an instance that is paused and leaves the cluster.

use super::*;
use crate::socket::stand_in::PATIENCE;

/// An answer about no signer.
fn mode_on(header: &'static str) -> Act {
    Act::Answer(200, header, r#"{"mode":"basic","version":3}"#.to_owned())
}

/// The paths that a stand-in was asked for.
fn asked(server: &StandIn) -> Vec<String> {
    server.heard().iter().map(|request| request.split(' ').nth(1).unwrap().to_owned()).collect()
}

/// An instance that is paused, and one that shows how that leaves the cluster and then gives this answer. And a client of both
/// that was answered by the second one, and asks the first one next.
async fn paused(then: Act) -> (StandIn, StandIn, Client) {
    let paused = StandIn::playing(vec![Act::Hold]).await;
    let without_it = shown_as(SECOND, "worker-queue", &[]);
    let script = vec![mode_on(FIRST), ring_of(&paused), ring_of(&paused), without_it, then];
    let entry = StandIn::playing(script).await;
    let mut client = client(&[&entry, &paused]);
    client.look_after = Duration::from_millis(20);
    // Longer than the test runs: the answer that is kept is not waited for.
    client.retry.attempt_max = Duration::from_secs(600);
    client.retry.total_max = Duration::from_secs(600);
    client.mode().await.unwrap();
    let is_known = || client.routes.as_ref().is_some_and(|routes| routes.lives_at(&client.bases[1]));
    tokio::time::timeout(PATIENCE, until(is_known)).await.expect("the ring is read");
    client.rotate(0);
    (paused, entry, client)
}

#[tokio::test]
async fn a_call_about_no_signer_goes_on_elsewhere_once_its_instance_has_left_the_cluster() {
    let (paused, entry, client) = paused(mode_on(SECOND)).await;
    let mode = tokio::time::timeout(PATIENCE, client.mode()).await.expect("it is asked elsewhere");
    assert_eq!((mode.unwrap().version, paused.heard().len()), (3, 1));
    let (mode, cluster) = ("/v1/config/mode", "/v1/cluster");
    assert_eq!(asked(&entry), [mode, cluster, cluster, cluster, mode]);
}

#[tokio::test]
async fn a_stream_is_opened_elsewhere_once_its_instance_has_left_the_cluster() {
    let stream = Act::Answer(200, "content-type: text/event-stream\r\n", String::new());
    let (paused, entry, client) = paused(stream).await;
    let opened = tokio::time::timeout(PATIENCE, client.events(&[])).await.expect("it is opened elsewhere");
    assert!(opened.is_ok(), "{opened:?}");
    assert_eq!(asked(&paused), ["/v1/events"]);
    assert_eq!(asked(&entry)[4..], ["/v1/events"]);
}

#[tokio::test]
async fn the_ring_is_read_for_calls_about_no_signer_where_another_url_can_be_asked() {
    let unknown = serde_json::to_string(&Problem::new(Code::Unauthorized, "because")).unwrap();
    for (what, urls, answer, is_read) in [
        ("two URLs", 2, mode_on(FIRST), true),
        ("one URL", 1, mode_on(FIRST), false),
        ("an answer that names no ring", 2, mode_on(""), false),
        ("a token that is not known", 2, Act::Answer(401, FIRST, unknown), false),
    ] {
        let (entry, other) = (StandIn::playing(vec![answer]).await, StandIn::playing(vec![]).await);
        let client = client(&[&entry, &other][..urls]);
        let _ = client.mode().await;
        let has_begun = client.routes.as_ref().unwrap().look(Duration::MAX).is_none();
        assert_eq!(has_begun, is_read, "{what}");
    }
}

#[tokio::test]
async fn a_token_that_may_not_read_the_ring_is_refused_once_and_its_calls_go_on() {
    let script = vec![mode_on(FIRST), refused(Code::Forbidden, None), mode_on(FIRST)];
    let (entry, other) = (StandIn::playing(script).await, StandIn::playing(vec![]).await);
    let client = client(&[&entry, &other]);
    client.mode().await.unwrap();
    let (routes, version) = (client.routes.as_ref().unwrap(), HeaderValue::from_static("7.1"));
    let settled = until(|| routes.is_settled(&version));
    tokio::time::timeout(PATIENCE, settled).await.expect("it is not asked for again");
    client.mode().await.unwrap();
    assert_eq!(asked(&entry), ["/v1/config/mode", "/v1/cluster", "/v1/config/mode"]);
}

#[tokio::test]
async fn a_ring_that_a_defect_kept_from_being_read_is_read_again() {
    let html = "<h1>no server</h1>".to_owned();
    for failed in [refused(Code::Internal, None), Act::Answer(500, "", html)] {
        let entry = StandIn::playing(vec![mode_on(FIRST), failed]).await;
        let other = StandIn::playing(vec![]).await;
        let client = client(&[&entry, &other]);
        client.mode().await.unwrap();
        let routes = client.routes.as_ref().unwrap();
        let is_over = until(|| routes.look(Duration::ZERO).is_some());
        tokio::time::timeout(PATIENCE, is_over).await.expect("it was answered");
        assert_eq!(asked(&entry), ["/v1/config/mode", "/v1/cluster"]);
        assert!(!routes.is_settled(&HeaderValue::from_static("7.1")) && !routes.is_refused());
    }
}

#[tokio::test]
async fn with_a_token_that_may_not_read_the_ring_a_silent_owner_is_not_looked_after() {
    let owner = StandIn::playing(vec![Act::Hold]).await;
    let Act::Answer(status, _, body) = owned_by(&owner.url, 1) else { unreachable!() };
    let script = vec![Act::Answer(status, FIRST, body), refused(Code::Forbidden, None), granted()];
    let entry = StandIn::playing(script).await;
    let mut client = client(&[&entry]);
    client.look_after = Duration::from_millis(20);
    // Many times as long.
    client.retry.attempt_max = Duration::from_secs(1);
    grant(&client).await.unwrap();
    let grants = "/v1/signers/eip155:1:0xab/nonces";
    assert_eq!(asked(&entry), [grants, "/v1/cluster", grants]);
    assert_eq!(owner.heard().len(), 1);
}
