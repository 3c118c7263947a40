//! Which instance is asked: the key's owner by the ring, one that a refusal names, or the next one.

use tokio::sync::Notify;

use super::*;
use crate::socket::stand_in::PATIENCE;

#[tokio::test]
async fn a_signers_owner_is_asked_straight_once_the_ring_is_known_and_left_where_it_fails() {
    let other = StandIn::playing(vec![granted(), Act::HangUp]).await;
    let entry = StandIn::playing(vec![granted_on(FIRST), ring_of(&other), granted()]).await;
    let client = client(&[&entry]);
    grant(&client).await.unwrap();
    until(|| client.owner(Some("x")).is_some()).await;
    assert!(entry.heard()[1].starts_with("GET /v1/cluster "));
    grant(&client).await.unwrap();
    assert_eq!((entry.heard().len(), other.heard().len()), (2, 1), "it went straight to the owner");
    grant(&client).await.unwrap();
    assert_eq!((entry.heard().len(), other.heard().len()), (3, 2), "and back to the URL that was given");
}

#[tokio::test]
async fn an_owner_is_avoided_if_it_is_down_or_leaves_and_not_if_it_cannot_serve_for_now() {
    let refusal = |code| refused(code, Some(1));
    for (what, act, is_avoided) in [
        ("ledger_unavailable", refusal(Code::LedgerUnavailable), false),
        ("fenced", refusal(Code::Fenced), false),
        ("clock_behind", refusal(Code::ClockBehind), false),
        ("draining", refusal(Code::Draining), true),
        ("no answer", Act::HangUp, true),
        ("a proxy without it", Act::Answer(502, "", "?".to_owned()), true),
    ] {
        let owner = StandIn::playing(vec![act]).await;
        let entry = StandIn::playing(vec![granted_on(FIRST), ring_of(&owner), granted()]).await;
        let client = client(&[&entry]);
        grant(&client).await.unwrap();
        until(|| client.owner(Some("x")).is_some()).await;
        grant(&client).await.unwrap();
        assert_eq!((entry.heard().len(), owner.heard().len()), (3, 1), "{what}");
        assert_eq!(client.owner(Some("x")).is_none(), is_avoided, "{what}");
    }
}

#[tokio::test]
async fn a_client_without_the_ring_asks_its_own_urls_only() {
    let other = StandIn::playing(vec![]).await;
    let entry = StandIn::playing(vec![granted_on(FIRST), granted(), ring_of(&other)]).await;
    let client = client(&[&entry]).without_ring();
    grant(&client).await.unwrap();
    grant(&client).await.unwrap();
    assert_eq!((entry.heard().len(), other.heard().len()), (2, 0));
}

#[tokio::test]
async fn a_killed_owners_key_is_waited_for_with_the_pauses_of_whoever_names_it() {
    let dead = StandIn::dead();
    let names_it = || owned_by(&dead.url, 120);
    // Twice as often as attempts would be allowed, and then it has moved.
    let script = vec![names_it(), names_it(), names_it(), names_it(), granted()];
    let (entry, other) = (StandIn::playing(script).await, StandIn::playing(vec![]).await);
    let client = bounded(&[&entry, &other], 2, Duration::from_secs(30));
    let started = Instant::now();
    assert_eq!(grant(&client).await.unwrap(), 7);
    assert!(started.elapsed() >= Duration::from_millis(4 * 120), "{:?}", started.elapsed());
    assert_eq!((entry.heard().len(), other.heard().len()), (5, 0), "nobody else was bothered");
}

#[tokio::test]
async fn who_names_a_dead_owner_is_who_is_told_of() {
    let dead = StandIn::dead();
    let entry = StandIn::playing(vec![owned_by(&dead.url, 60_000)]).await;
    let error = grant(&client(&[&entry])).await.unwrap_err();
    assert_eq!(error.problem().and_then(Problem::known_code), Some(Code::NotOwner), "{error:?}");
}

#[tokio::test]
async fn a_dead_owner_that_was_asked_straight_is_not_asked_again_in_the_same_round() {
    let owner = StandIn::playing(vec![]).await;
    let names_it = owned_by(&owner.url, 100);
    let script = vec![granted_on(FIRST), ring_of(&owner), names_it, granted()];
    let entry = StandIn::playing(script).await;
    let client = client(&[&entry]);
    grant(&client).await.unwrap();
    until(|| client.owner(Some("x")).is_some()).await;
    grant(&client).await.unwrap();
    assert_eq!((entry.heard().len(), owner.heard().len()), (4, 1));
}

#[tokio::test]
async fn a_single_attempt_follows_nobody_and_repeats_nothing() {
    let owner = StandIn::playing(vec![granted()]).await;
    let entry = StandIn::playing(vec![owned_by(&owner.url, 1), granted()]).await;
    assert!(grant(&bounded(&[&entry], 1, Duration::from_secs(30))).await.is_err());
    assert_eq!((entry.heard().len(), owner.heard().len()), (1, 0));
}

#[tokio::test]
async fn one_that_does_not_answer_is_not_asked_first_again() {
    let silent = StandIn::playing(vec![Act::Hold, Act::Hold]).await;
    let other = StandIn::playing(vec![granted(), granted()]).await;
    // All of the call's time goes to the first.
    let client = bounded(&[&silent, &other], 5, Duration::from_millis(300));
    assert!(grant(&client).await.is_err());
    for _ in 0..2 {
        assert_eq!(grant(&client).await.unwrap(), 7);
    }
    assert_eq!((silent.heard().len(), other.heard().len()), (1, 2));
}

#[tokio::test]
async fn attempts_at_a_named_owner_count_too() {
    let full = || refused(Code::WindowFull, Some(1));
    let owner = StandIn::playing(vec![full(), full(), granted()]).await;
    let names_it = || owned_by(&owner.url, 1);
    let entry = StandIn::playing(vec![names_it(), names_it(), names_it()]).await;
    let error = grant(&bounded(&[&entry], 2, Duration::from_secs(30))).await.unwrap_err();
    assert_eq!(error.problem().and_then(Problem::known_code), Some(Code::WindowFull));
    assert_eq!((entry.heard().len(), owner.heard().len()), (2, 2));
}

#[tokio::test]
async fn a_named_owner_has_the_time_that_is_left_and_no_more() {
    let owner = StandIn::playing(vec![Act::Hold]).await;
    // Most of the call's time is over when the owner is named: with all of it once more, it would end far later.
    let (late, total) = (Duration::from_millis(2_700), Duration::from_secs(3));
    let entry = StandIn::playing(vec![Act::Late(late, Box::new(owned_by(&owner.url, 1)))]).await;
    let started = Instant::now();
    let error = grant(&bounded(&[&entry], 5, total)).await.unwrap_err();
    let took = started.elapsed();
    assert!(matches!(error, Error::Lost { .. }), "it may have been carried out: {error:?}");
    assert_eq!(owner.heard().len(), 1);
    assert!(took < late + total, "{took:?}");
}

#[tokio::test]
async fn an_overload_is_waited_out_and_not_carried_around() {
    let script = vec![refused(Code::Overloaded, Some(150)), granted()];
    let (full, other) = (StandIn::playing(script).await, StandIn::playing(vec![granted()]).await);
    let started = Instant::now();
    assert_eq!(grant(&client(&[&full, &other])).await.unwrap(), 7);
    assert!(started.elapsed() >= Duration::from_millis(150));
    assert_eq!((full.heard().len(), other.heard().len()), (2, 0));
}

#[tokio::test]
async fn a_request_that_a_paused_owner_keeps_is_repeated_once_it_has_left_the_cluster() {
    let paused = StandIn::playing(vec![Act::Hold]).await;
    let without_it = shown_as(SECOND, "worker-queue", &[]);
    let script = vec![granted_on(FIRST), ring_of(&paused), ring_of(&paused), without_it, granted_on(SECOND)];
    let entry = StandIn::playing(script).await;
    let mut client = client(&[&entry]);
    client.look_after = Duration::from_millis(20);
    // Longer than the test runs: the answer that is kept is not waited for.
    client.retry.attempt_max = Duration::from_secs(600);
    client.retry.total_max = Duration::from_secs(600);
    grant(&client).await.unwrap();
    until(|| client.owner(Some("x")).is_some()).await;
    tokio::time::timeout(PATIENCE, grant(&client)).await.expect("it is repeated elsewhere").unwrap();
    let heard = entry.heard();
    assert_eq!((heard.len(), paused.heard().len()), (5, 1));
    assert!(heard[2].starts_with("GET /v1/cluster ") && heard[3].starts_with("GET /v1/cluster "));
    let key = |request| header(request, "Idempotency-Key").expect("a key");
    assert_eq!(key(&heard[4]), key(&paused.heard()[0]));
}

#[tokio::test]
async fn a_slow_owner_that_lives_is_waited_for() {
    let notify = Arc::new(Notify::new());
    let slow = Act::When(Arc::clone(&notify), Box::new(granted()));
    let owner = StandIn::playing(vec![slow]).await;
    let script = [granted_on(FIRST)].into_iter().chain((0..50).map(|_| ring_of(&owner)));
    let entry = StandIn::playing(script.collect()).await;
    let mut client = client(&[&entry]);
    client.look_after = Duration::from_millis(20);
    grant(&client).await.unwrap();
    until(|| client.owner(Some("x")).is_some()).await;
    // It is looked up twice, found alive, and only then answers.
    let watching = async {
        until(|| entry.heard().len() > 3).await;
        notify.notify_one();
    };
    let (granted, ()) = tokio::join!(grant(&client), watching);
    granted.unwrap();
    let heard = entry.heard();
    assert!(heard[1..].iter().all(|request| request.starts_with("GET /v1/cluster ")), "{heard:?}");
    assert_eq!(owner.heard().len(), 1);
}

#[tokio::test]
async fn a_change_of_the_mode_alone_is_noticed() {
    let owner = StandIn::playing(vec![granted_on(SECOND), shown_as(SECOND, "basic", &["http://h"])]).await;
    let entry = StandIn::playing(vec![granted_on(FIRST), ring_of(&owner), granted_on(SECOND)]).await;
    let client = client(&[&entry]);
    grant(&client).await.unwrap();
    until(|| client.owner(Some("x")).is_some()).await;
    // A look is due again only after a while.
    tokio::time::sleep(Duration::from_millis(250)).await;
    grant(&client).await.unwrap();
    until(|| client.owner(Some("x")).is_none()).await;
    grant(&client).await.unwrap();
    assert_eq!((entry.heard().len(), owner.heard().len()), (3, 2));
}

#[tokio::test]
async fn the_token_goes_to_no_address_of_another_scheme() {
    let other = StandIn::playing(vec![]).await;
    let secure = other.url.replace("http://", "https://");
    let ring = shown_as(FIRST, "worker-queue", &[&secure]);
    let script = vec![granted_on(FIRST), ring, owned_by(&secure, 1), granted_on(FIRST)];
    let entry = StandIn::playing(script).await;
    let client = client(&[&entry]);
    grant(&client).await.unwrap();
    until(|| client.routes.as_ref().is_some_and(|routes| routes.owner("x").is_some())).await;
    assert_eq!(client.owner(Some("x")), None);
    grant(&client).await.unwrap();
    assert_eq!((entry.heard().len(), other.heard().len()), (4, 0));
}
