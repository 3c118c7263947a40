//! Reads and events that several callers share.

use actix_web::http::header::CACHE_CONTROL;
use futures_util::FutureExt as _;
use wire::events::EventKind;

use super::*;
use crate::event_feeds::{EventFeeds, FeedKind, Joined};
use crate::shared_reads::SharedReads;

#[actix_web::test]
async fn callers_who_accept_it_share_a_read_and_everybody_else_reads_the_ledger() {
    let dir = TempDir::new().unwrap();
    let some = Sees {
        signers: domain::Names::Some([domain::Pattern::parse("s*").unwrap()].into()),
        ..Sees::default()
    };
    let narrow = |name| Token { sees: some.clone(), ..token(name, Scope::Read) };
    let tokens = vec![token("a", Scope::Submit), token("b", Scope::Submit), narrow("c"), narrow("d")];
    let (early, _) = early(Options::default());
    let mut state = State::new(early, Settings::new(Auth::tokens(tokens)), runtime::Handle::current());
    state.shared_reads = SharedReads::new(Duration::from_secs(3_600));
    state.open(services(&dir).await);
    let service = init_service(app(&forwarder(&Arc::new(state)))).await;
    let ask = async |who: &str, path: &str, accepts: Option<&str>| {
        let request = TestRequest::get().uri(path).insert_header((AUTHORIZATION, format!("Bearer {who}")));
        let request = match accepts {
            Some(accepts) => request.insert_header((CACHE_CONTROL, accepts)),
            None => request,
        };
        let answer = call_service(&service, request.to_request()).await;
        let kind = answer.headers().get("content-type").cloned();
        assert!(answer.headers().contains_key("x-request-id"));
        let (status, body): (_, Value) = (answer.status().as_u16(), read_body_json(answer).await);
        (status, kind, body)
    };
    let signers = async |who: &str, accepts: Option<&str>| {
        let (status, kind, body) = ask(who, "/v1/signers", accepts).await;
        assert_eq!((status, kind.unwrap().to_str().unwrap()), (200, "application/json"));
        body["items"].as_array().unwrap().len()
    };
    let grant = async |signer: &str| {
        let request = TestRequest::post().uri(&format!("/v1/signers/{signer}/nonces"));
        let request = request.insert_header((AUTHORIZATION, "Bearer a"));
        assert_eq!(call_service(&service, request.to_request()).await.status(), StatusCode::CREATED);
    };
    let shared = Some("max-age=1");
    grant("s1").await;
    assert_eq!((signers("a", shared).await, signers("c", shared).await), (1, 1));
    assert_eq!(ask("a", "/v1/signers/s2", shared).await.0, 404);
    grant("s2").await;
    assert_eq!(ask("a", "/v1/signers/s2", shared).await.0, 200, "an error is not shared");
    for (who, accepts, found, why) in [
        ("a", None, 2, "a caller who does not say so reads"),
        ("a", Some("max-age=0"), 2, "or wants the newest"),
        ("a", shared, 1, "the same token"),
        ("b", shared, 1, "a token that sees and may do the same"),
        ("c", shared, 1, "the same token with patterns"),
        ("d", shared, 2, "another token with patterns, though the same ones"),
    ] {
        assert_eq!(signers(who, accepts).await, found, "{who}: {why}");
    }
}

#[tokio::test]
async fn streams_of_the_same_kinds_share_a_feed_until_the_last_one_leaves() {
    let dir = TempDir::new().unwrap();
    let incarnation = Arc::new(services(&dir).await.incarnation);
    let other = Arc::new(services(&TempDir::new().unwrap()).await.incarnation);
    let feeds = EventFeeds::default();
    let of = |is_digest| FeedKind { kinds: vec![EventKind::Job], is_digest };
    let start = || Ok::<_, ()>(());
    assert!(feeds.join(&of(false), &incarnation, || Err::<(), _>("full")).is_err());
    let Joined { batches: mut first, new } = feeds.join(&of(false), &incarnation, start).unwrap();
    let (out, ()) = new.expect("there is no feed yet");
    let Joined { batches: mut second, new } = feeds.join(&of(false), &incarnation, start).unwrap();
    assert!(new.is_none(), "the feed is shared");
    for (kind, incarnation) in [(of(true), &incarnation), (of(false), &other)] {
        assert!(feeds.join(&kind, incarnation, start).unwrap().new.is_some(), "another feed");
    }
    let batch = web::Bytes::from_static(b"x");
    assert_eq!(out.send(batch.clone()).unwrap(), 2);
    for stream in [&mut first, &mut second] {
        assert_eq!(stream.recv().await.unwrap().as_ptr(), batch.as_ptr(), "the bytes are the same ones");
    }
    drop(first);
    assert!(!feeds.remove(&out), "one stream is left");
    drop(second);
    out.closed().now_or_never().expect("no stream is left");
    assert!(feeds.remove(&out));
    assert!(feeds.join(&of(false), &incarnation, start).unwrap().new.is_some(), "a new feed");
}

#[actix_web::test]
async fn a_feed_keeps_nothing_of_an_incarnation_that_is_over() {
    let (dir, later) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let state = state(&dir, Auth::open()).await;
    let service = init_service(app(&forwarder(&state))).await;
    let request = TestRequest::get().insert_header(LOCAL).uri("/v1/events");
    let stream = call_service(&service, request.to_request()).await;
    assert_eq!(stream.status(), StatusCode::OK);
    let over = state.incarnation();
    state.reincarnate(services(&later).await.incarnation);
    over.jobs.end_at_once();
    let known = Arc::downgrade(&over);
    drop(over);
    let is_gone = async {
        while known.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_gone).await.expect("nothing has it any more");
}

#[actix_web::test]
async fn the_cluster_is_shown_also_while_its_leases_cannot_be_counted() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::open()).await;
    let service = init_service(app(&forwarder(&state))).await;
    let me = state.incarnation().identity.clone();
    let about = ledger::NewInstance {
        id: me.id.clone(),
        url: me.url,
        hostname: "host".to_owned(),
        pid: 1,
        version: "0.1.0".to_owned(),
    };
    state.ledger.register(&about).await.unwrap();
    state.ledger.acquire(&domain::Resource::instance(&me.id), &me.id, 600_000).await.unwrap();
    let is_shown = async |why: &str| {
        let request = TestRequest::get().insert_header(LOCAL).uri("/v1/cluster");
        let answer = call_service(&service, request.to_request()).await;
        assert_eq!(answer.status(), StatusCode::OK, "{why}");
        let cluster: Value = read_body_json(answer).await;
        let [instance] = &cluster["instances"].as_array().unwrap()[..] else { panic!("{cluster}") };
        assert_eq!(
            (&instance["instance_id"], &instance["resources"]),
            (&"test-1".into(), &0.into()),
            "{why}"
        );
    };
    let mut under_way = None;
    let begun = state.lease_counts.get(Duration::ZERO, Duration::ZERO, |look| under_way = Some(look)).await;
    assert!(begun.is_none());
    is_shown("the count takes long").await;
    under_way.unwrap().end(Err(()));
    is_shown("the count has failed").await;
}
