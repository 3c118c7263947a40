//! Requests for an instance that is not reached, or is leaving.

use cluster::KeyOwner;
use domain::{Resource, SignerId, Timestamp};
use ledger::{Lease, Peer};
use tokio::sync::mpsc;
use wire::Code;

use super::*;
use crate::forwarder::ForwardedRequest;
use crate::limits::LEAVING_NAMED_MAX;

/// A live instance that has been on the ring for long.
fn peer(id: &InstanceId, url: &str) -> Peer {
    let lease = Lease {
        resource: Resource::instance(id),
        owner: Some(id.clone()),
        token: domain::Token::new(1),
        acquired_at: Timestamp::from_micros(0),
        renewed_at: Timestamp::from_micros(0),
        expires_in_ms: 60_000,
    };
    Peer { id: id.clone(), url: url.to_owned(), lease, age_ms: 60_000 }
}

#[actix_web::test]
async fn an_instance_that_a_request_for_it_does_not_reach_is_avoided_and_its_address_is_told() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::open()).await;
    let incarnation = state.incarnation();
    let (me, view) = (&incarnation.identity, &incarnation.cluster_view);
    // Nobody listens there, and nobody renews what is known of the instances.
    let (away, url) = (InstanceId::parse("away-1").unwrap(), "http://127.0.0.1:1");
    view.saw(vec![peer(&me.id, &me.url), peer(&away, url)]);
    let keys = (0..).map(|number| Resource::signer(&SignerId::parse(&format!("signer-{number}")).unwrap()));
    let theirs = keys.take(1_000).find(|key| view.owner_of(key) != KeyOwner::Here).unwrap();

    let request = ForwardedRequest::own(&state.settings.auth.named("").unwrap(), "r-1");
    let Err(refusal) = forwarder(&state).to_instance(&request, &away).await else {
        panic!("it was answered")
    };
    assert_eq!(refusal.code(), Code::NotOwner, "{refusal}");
    assert!(refusal.to_string().contains("could not be reached from here"), "{refusal}");
    assert_eq!(refusal.owner_and_url(), (Some(away.to_string()), Some(url.to_owned())));
    assert_eq!(view.owner_of(&theirs), KeyOwner::Here);
}

/// An instance that is leaving, and refuses each request so: its URL, and the heads of the requests.
async fn leaving_instance() -> (String, mpsc::UnboundedReceiver<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (heads, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let problem = serde_json::to_string(&wire::Problem::new(Code::Draining, "it is stopping")).unwrap();
        let answer = format!(
            "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{problem}",
            problem.len()
        );
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                assert!(stream.read_buf(&mut head).await.unwrap() > 0, "the request has no body");
            }
            let _ = heads.send(String::from_utf8(head).unwrap().to_lowercase());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (url, heard)
}

#[actix_web::test]
async fn an_instance_that_makes_no_snowflakes_since_it_is_leaving_is_avoided_until_it_has_left() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::open()).await;
    let incarnation = state.incarnation();
    let (me, view) = (&incarnation.identity, &incarnation.cluster_view);
    let (leaves, (url, _heads)) = (InstanceId::parse("leaves-1").unwrap(), leaving_instance().await);
    view.saw(vec![peer(&me.id, &me.url), peer(&leaves, &url)]);
    let request = TestRequest::get().uri("/v1/ids/snowflake").to_http_request();
    let deadline = Instant::now() + Duration::from_secs(20);
    assert!(forwarder(&state).to_a_right_clock(&request, deadline).await.is_none(), "it makes none");
    assert_eq!(view.view().leaving(), [leaves]);
}

#[actix_web::test]
async fn a_forwarded_request_names_some_of_many_instances_that_are_leaving() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::open()).await;
    let incarnation = state.incarnation();
    let (me, view) = (&incarnation.identity, &incarnation.cluster_view);
    let (asked, (url, mut heads)) = (InstanceId::parse("asked-1").unwrap(), leaving_instance().await);
    let leaving: Vec<_> = (0..=LEAVING_NAMED_MAX)
        .map(|number| InstanceId::parse(&format!("leaves-{number}")).unwrap())
        .collect();
    let others = leaving.iter().map(|id| peer(id, "http://127.0.0.1:1"));
    view.saw(others.chain([peer(&me.id, &me.url), peer(&asked, &url)]).collect());
    for id in &leaving {
        view.avoid_leaving(id);
    }
    let request = ForwardedRequest::own(&state.settings.auth.named("").unwrap(), "r-1");
    assert!(forwarder(&state).to_instance(&request, &asked).await.is_err(), "it is leaving itself");
    let head = heads.recv().await.unwrap();
    let named = head.lines().find_map(|line| line.strip_prefix("x-fencepost-leaving: ")).unwrap();
    let named: Vec<_> = named.split(',').map(|id| InstanceId::parse(id).unwrap()).collect();
    assert!(named.len() == LEAVING_NAMED_MAX && named.iter().all(|id| leaving.contains(id)), "{head}");
}
