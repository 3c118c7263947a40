//! Retries, rotation and errors, against a stand-in that plays a script over real sockets.

use std::collections::HashSet;

use wire::Code;
use wire::bulk::{BulkAction, BulkFilter, BulkRequest};
use wire::nodes::SelectRequest;
use wire::nonces::{GrantRequest, Resolution, ResolveRequest};
use wire::plans::{RetryFrom, RetryPoint, TaskRetryRequest};

use super::stand_in::{Act, StandIn, client, header, refused};
use super::*;

mod cluster;
mod cut_off;
mod gone;
mod jobs;
mod log;
mod no_http;
mod owners;
mod unreached;

fn granted() -> Act {
    let body = r#"{"signer":"s","fencing_token":1,"owner":"a-1","grants":[{"nonce":7,"hold":"h","status":"HELD","held_until":"2026-01-01T00:00:00Z","held_for_ms":60000}]}"#;
    Act::Answer(201, "", body.to_owned())
}

fn bounded(servers: &[&StandIn], attempts_max: u32, total_max: Duration) -> Client {
    let client = client(servers);
    let retry = Retry { attempts_max, total_max, ..client.retry.clone() };
    client.with_retry(retry)
}

/// A refusal that names the instance which has the key.
fn owned_by(owner: &str, retry_after_ms: u64) -> Act {
    let mut problem = Problem::new(Code::NotOwner, "because");
    problem.retry_after_ms = Some(retry_after_ms);
    problem.owner_url = Some(owner.to_owned());
    Act::Answer(409, "", serde_json::to_string(&problem).unwrap())
}

async fn grant(client: &Client) -> Result<u64> {
    let granted = client.grant("eip155:1:0xab", &GrantRequest::default(), None).await?;
    assert!(granted.usable_until(&granted.answer.grants[0]) > Instant::now());
    Ok(granted.answer.grants[0].nonce)
}

#[tokio::test]
async fn a_grant_whose_answer_was_lost_is_repeated_under_the_same_key_and_request_id() {
    let server = StandIn::playing(vec![Act::HangUp, refused(Code::LeaseHeld, Some(1)), granted()]).await;
    assert_eq!(grant(&client(&[&server])).await.unwrap(), 7);
    let heard = server.heard();
    assert_eq!(heard.len(), 3);
    for name in ["Idempotency-Key", "X-Request-Id"] {
        let first = header(&heard[0], name).expect(name);
        assert!(heard.iter().all(|request| header(request, name).as_ref() == Some(&first)), "{heard:?}");
    }
    assert!(heard[0].starts_with("POST /v1/signers/eip155:1:0xab/nonces HTTP/1.1\r\n"), "{}", heard[0]);
    assert_eq!(header(&heard[0], "Authorization").as_deref(), Some("Bearer t-1"));
    assert!(heard[0].ends_with("{}"));
}

#[tokio::test]
async fn a_resolve_that_may_have_been_done_is_repeated_only_if_it_names_the_hold() {
    let resolved = || Act::Answer(200, "", r#"{"signer":"s","nonce":7,"status":"RELEASED"}"#.to_owned());
    let lost =
        || [Act::HangUp, refused(Code::LedgerUnavailable, Some(1)), Act::Answer(502, "", "?".to_owned())];
    let resolve = async |server: &StandIn, hold: Option<&str>| {
        let hold = hold.map(str::to_owned);
        let request = ResolveRequest { outcome: Resolution::NeverSent, hold, tx_hash: None };
        client(&[server]).resolve("s", 7, &request).await
    };
    for act in lost() {
        let server = StandIn::playing(vec![act, resolved()]).await;
        let error = resolve(&server, None).await.unwrap_err();
        assert_eq!(server.heard().len(), 1, "the nonce may be another caller's by now: {error}");
    }
    for act in lost() {
        let server = StandIn::playing(vec![act, resolved()]).await;
        assert!(resolve(&server, Some("h")).await.is_ok());
        assert_eq!(server.heard().len(), 2);
    }
    // Nothing was done yet: an idle connection ended just when the request was sent on it.
    let problem = serde_json::to_string(&Problem::new(Code::Invalid, "late")).unwrap();
    let late = Act::Answer(408, "", problem);
    let server = StandIn::playing(vec![late, resolved()]).await;
    resolve(&server, None).await.unwrap();
    assert_eq!(server.heard().len(), 2);
    let (busy, dead) = (refused(Code::LeaseHeld, Some(1)), StandIn::dead());
    let server = StandIn::playing(vec![busy, resolved()]).await;
    let request = ResolveRequest { outcome: Resolution::NeverSent, hold: None, tx_hash: None };
    client(&[&dead, &server]).resolve("s", 7, &request).await.unwrap();
    assert_eq!(server.heard().len(), 2);
}

#[tokio::test]
async fn one_nonce_is_asked_for_behind_the_one_before_it() {
    let list = |nonce: u64| {
        let record = format!(
            r#"{{"nonce":{nonce},"status":"HELD","hold":"h","held_until":"t","tx_hash":null,"fencing_token":1,"owner":"a-1",
            "created_at":"t","updated_at":"t"}}"#
        );
        Act::Answer(200, "", format!(r#"{{"items":[{record}],"next_cursor":"n.{nonce}"}}"#))
    };
    let none = || Act::Answer(200, "", r#"{"items":[],"next_cursor":null}"#.to_owned());
    let server = StandIn::playing(vec![list(0), list(7), list(8), none(), none()]).await;
    let client = client(&[&server]);
    let mut found = Vec::new();
    for nonce in [0, 7, 7, wire::limits::NONCE_MAX, u64::MAX] {
        found.push(client.nonce("s", nonce).await.unwrap().map(|record| record.nonce));
    }
    assert_eq!(found, [Some(0), Some(7), None, None, None]);
    let asked: Vec<_> =
        server.heard().iter().map(|request| request.lines().next().unwrap().to_owned()).collect();
    let line = |cursor: &str| format!("GET /v1/signers/s/nonces?limit=1{cursor} HTTP/1.1");
    let (largest, before) = (wire::limits::NONCE_MAX, wire::limits::NONCE_MAX - 1);
    let behind = |nonce: u64| line(&format!("&cursor=n.{nonce}"));
    assert_eq!(asked, [line(""), behind(6), behind(6), behind(before), behind(largest)]);
}

#[tokio::test]
async fn the_callers_own_key_is_used() {
    let server = StandIn::playing(vec![granted()]).await;
    client(&[&server]).grant("s", &GrantRequest::default(), Some("mine")).await.unwrap();
    assert_eq!(header(&server.heard()[0], "Idempotency-Key").as_deref(), Some("mine"));
}

#[tokio::test]
async fn refusals_for_good_are_not_repeated_and_carry_the_problem() {
    let codes = [Code::Invalid, Code::StaleHold, Code::KeyReused, Code::Internal, Code::Exhausted];
    // Without a time it is the answer to a grant of more than the whole window.
    for code in codes.into_iter().chain([Code::WindowFull]) {
        let server = StandIn::playing(vec![refused(code, None)]).await;
        let error = grant(&client(&[&server])).await.unwrap_err();
        assert!(!error.is_retryable());
        assert_eq!(error.problem().unwrap().known_code(), Some(code));
        assert_eq!(server.heard().len(), 1);
    }
}

#[tokio::test]
async fn where_a_clock_is_behind_another_instance_is_asked_for_snowflakes() {
    let behind = StandIn::playing(vec![refused(Code::ClockBehind, Some(1))]).await;
    let made = r#"{"ids":["7","8"],"worker":3}"#.to_owned();
    let well = StandIn::playing(vec![Act::Answer(200, "", made)]).await;
    let answer = client(&[&behind, &well]).ids().snowflakes(2).await.unwrap();
    assert_eq!((answer.ids, answer.worker), (vec!["7".to_owned(), "8".to_owned()], 3));
    assert_eq!((behind.heard().len(), well.heard().len()), (1, 1));
    assert!(well.heard()[0].starts_with("GET /v1/ids/snowflake?count=2 HTTP/1.1\r\n"), "{:?}", well.heard());
}

#[tokio::test]
async fn where_a_worker_number_may_come_free_snowflakes_are_asked_for_elsewhere_and_again() {
    let made = || Act::Answer(200, "", r#"{"ids":["7"],"worker":3}"#.to_owned());
    let none_free = || refused(Code::Exhausted, Some(1));
    let server = StandIn::playing(vec![none_free(), made()]).await;
    assert_eq!(client(&[&server]).ids().snowflakes(1).await.unwrap().worker, 3);
    assert_eq!(server.heard().len(), 2);
    let (without, with) = (StandIn::playing(vec![none_free()]).await, StandIn::playing(vec![made()]).await);
    assert_eq!(client(&[&without, &with]).ids().snowflakes(1).await.unwrap().worker, 3);
    assert_eq!((without.heard().len(), with.heard().len()), (1, 1));
}

#[tokio::test]
async fn attempts_are_bounded_and_the_last_refusal_is_told() {
    let script = (0..9).map(|_| refused(Code::WindowFull, Some(1))).collect();
    let server = StandIn::playing(script).await;
    let error = grant(&client(&[&server])).await.unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(error.problem().unwrap().known_code(), Some(Code::WindowFull));
    assert_eq!(server.heard().len(), 5);
}

#[tokio::test]
async fn a_pause_that_the_call_has_no_time_for_ends_it_at_once() {
    let hour = refused(Code::LeaseHeld, Some(3_600_000));
    let header = Act::Answer(503, "Retry-After: 3600\r\n", "busy".to_owned());
    for act in [hour, header] {
        let server = StandIn::playing(vec![act]).await;
        assert!(grant(&client(&[&server])).await.unwrap_err().is_retryable());
        assert_eq!(server.heard().len(), 1);
    }
}

#[tokio::test]
async fn the_pause_that_the_daemon_asks_for_is_kept() {
    let server = StandIn::playing(vec![refused(Code::LeaseHeld, Some(40)), granted()]).await;
    let started = Instant::now();
    assert_eq!(grant(&client(&[&server])).await.unwrap(), 7);
    assert!(started.elapsed() >= Duration::from_millis(40));
}

#[tokio::test]
async fn a_dead_or_draining_instance_is_left_for_the_next_one() {
    let dead = StandIn::dead();
    let draining = StandIn::playing(vec![refused(Code::Draining, Some(60_000))]).await;
    let well = StandIn::playing(vec![granted(), granted()]).await;
    let client = client(&[&dead, &draining, &well]);
    assert_eq!(grant(&client).await.unwrap(), 7);
    assert_eq!(grant(&client).await.unwrap(), 7);
    assert_eq!((draining.heard().len(), well.heard().len()), (1, 2));
}

#[tokio::test]
async fn nobody_listening_is_told_with_the_address() {
    let nobody = StandIn::dead();
    let url = nobody.url.clone();
    let client = bounded(&[&nobody], 5, Duration::from_millis(300));
    let error = grant(&client).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { url: named, .. } if *named == url), "{error:?}");
    assert!(error.to_string().to_lowercase().contains("connection refused"), "{error}");
}

#[tokio::test]
async fn a_lost_answer_counts_where_nobody_listens_later() {
    let server = StandIn::playing(vec![Act::Leave]).await;
    let url = server.url.clone();
    // Time for further rounds.
    let error = grant(&bounded(&[&server], 5, Duration::from_secs(2))).await.unwrap_err();
    assert!(matches!(&error, Error::Lost { url: named, .. } if *named == url), "{error:?}");
    assert!(error.may_be_done() && error.is_retryable());
    let last = std::error::Error::source(&error).and_then(|last| last.downcast_ref::<Error>());
    assert!(matches!(last, Some(Error::Unreachable { .. })), "{error:?}");
    assert!(error.to_string().contains(&format!("; then no connection to {url}: ")), "{error}");
}

#[tokio::test]
async fn a_lost_answer_counts_whatever_a_later_attempt_is_refused_for() {
    let hour = Some(3_600_000);
    let later = [
        (Code::Draining, hour),
        (Code::Overloaded, hour),
        (Code::LeaseHeld, hour),
        (Code::Unauthorized, None),
        (Code::Conflict, None),
        (Code::KeyReused, None),
    ];
    for (code, retry_after_ms) in later {
        let is_unknown = |error: Error| {
            assert!(matches!(&error, Error::Lost { .. }) && error.may_be_done(), "{code}: {error:?}");
            assert!(error.to_string().ends_with(&format!("; then {code}: because")), "{error}");
            let last = std::error::Error::source(&error).and_then(|last| last.downcast_ref::<Error>());
            assert_eq!(last.and_then(Error::problem).and_then(Problem::known_code), Some(code));
        };
        let server = StandIn::playing(vec![Act::HangUp, refused(code, retry_after_ms)]).await;
        is_unknown(grant(&client(&[&server])).await.unwrap_err());
        assert_eq!(server.heard().len(), 2);
        // In one round, too.
        let lost = StandIn::playing(vec![Act::HangUp]).await;
        let refuses = StandIn::playing(vec![refused(code, retry_after_ms)]).await;
        is_unknown(grant(&client(&[&lost, &refuses])).await.unwrap_err());
        // A refusal may leave the same doubt.
        let unknown = StandIn::playing(vec![refused(Code::LedgerUnavailable, Some(1))]).await;
        let refuses = StandIn::playing(vec![refused(code, retry_after_ms)]).await;
        is_unknown(grant(&client(&[&unknown, &refuses])).await.unwrap_err());
    }
}

#[tokio::test]
async fn a_lost_answer_counts_where_a_later_refusal_leaves_the_same_doubt() {
    let is_lost = |error: Error, first: &str, last: Code| {
        assert!(matches!(&error, Error::Lost { .. }), "{last}: {error:?}");
        assert!(error.to_string().ends_with(&format!("{first}; then {last}: because")), "{error}");
    };
    let unknown = || refused(Code::LedgerUnavailable, Some(1));
    let strange = || Act::Answer(502, "", "?".to_owned());
    for (code, retry_after_ms) in [(Code::LedgerUnavailable, Some(3_600_000)), (Code::Internal, None)] {
        let last = || refused(code, retry_after_ms);
        let server = StandIn::playing(vec![Act::HangUp, last()]).await;
        is_lost(grant(&client(&[&server])).await.unwrap_err(), "", code);
        assert_eq!(server.heard().len(), 2);
        let server = StandIn::playing(vec![strange(), last()]).await;
        let said = "HTTP status 502: it is no problem document";
        is_lost(grant(&client(&[&server])).await.unwrap_err(), said, code);
        // Whatever was before it.
        let server = StandIn::playing(vec![unknown(), Act::HangUp, last()]).await;
        is_lost(grant(&client(&[&server])).await.unwrap_err(), "", code);
        assert_eq!(server.heard().len(), 3);
        // Where each attempt was answered, the last answer says as much as any.
        let server = StandIn::playing(vec![unknown(), last()]).await;
        let error = grant(&client(&[&server])).await.unwrap_err();
        assert_eq!(error.problem().and_then(Problem::known_code), Some(code), "{error:?}");
        assert!(error.may_be_done());
    }
}

#[tokio::test]
async fn a_lost_answer_counts_where_the_last_attempt_was_not_read() {
    let late = Act::Answer(408, "", String::new());
    let server = StandIn::playing(vec![Act::HangUp, late]).await;
    let error = grant(&bounded(&[&server], 2, Duration::from_secs(60))).await.unwrap_err();
    assert!(matches!(&error, Error::Lost { .. }) && error.may_be_done(), "{error:?}");
    let late = StandIn::playing(vec![Act::Answer(408, "", String::new())]).await;
    let error = grant(&bounded(&[&late], 1, Duration::from_secs(60))).await.unwrap_err();
    assert!(matches!(&error, Error::Unexpected { status: 408, .. }) && !error.may_be_done(), "{error:?}");
}

#[tokio::test]
async fn a_read_ends_with_its_last_refusal() {
    let server = StandIn::playing(vec![Act::HangUp, refused(Code::NotFound, None)]).await;
    let error = client(&[&server]).jobs().get("j").await.unwrap_err();
    assert_eq!(error.problem().and_then(Problem::known_code), Some(Code::NotFound), "{error:?}");
    assert_eq!(server.heard().len(), 2);
}

#[tokio::test]
async fn what_changes_nothing_ends_with_its_last_refusal_whatever_its_method() {
    let lost = || StandIn::playing(vec![Act::HangUp, refused(Code::Unauthorized, None)]);
    let is_refused = |error: Error| {
        assert_eq!(error.problem().and_then(Problem::known_code), Some(Code::Unauthorized), "{error:?}");
    };
    let server = lost().await;
    is_refused(client(&[&server]).nodes().select(&SelectRequest::default()).await.unwrap_err());
    let bulk = |dry_run| {
        let (action, filter) = (BulkAction::Cancel, BulkFilter::default());
        BulkRequest { dry_run, ..BulkRequest::new(action, filter) }
    };
    let server = lost().await;
    is_refused(client(&[&server]).bulks().begin(&bulk(Some(true)), None).await.unwrap_err());
    let from = RetryFrom::Point(RetryPoint::Checkpoint);
    let retry = TaskRetryRequest { dry_run: Some(true), ..TaskRetryRequest::new(from, "r") };
    let server = lost().await;
    is_refused(client(&[&server]).tasks().retry("k", &retry, Some("mine")).await.unwrap_err());
    let server = lost().await;
    is_refused(client(&[&server]).tenants().retry("t", &retry, Some("mine")).await.unwrap_err());
    for dry_run in [None, Some(false)] {
        let server = lost().await;
        let error = client(&[&server]).bulks().begin(&bulk(dry_run), None).await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_change_without_a_key_that_an_earlier_attempt_may_have_made_does_not_end_as_refused() {
    let lost = |code| StandIn::playing(vec![Act::HangUp, refused(code, None)]);
    let is_unknown = |error: Error| assert!(error.may_be_done() && error.problem().is_none(), "{error:?}");
    let server = lost(Code::NotFound).await;
    is_unknown(client(&[&server]).jobs().delete("j").await.unwrap_err());
    let server = lost(Code::Conflict).await;
    let pools = wire::nodes::PoolsRequest { version: 1, pools: Vec::new() };
    is_unknown(client(&[&server]).nodes().set_pools(&pools).await.unwrap_err());
    let server = lost(Code::Conflict).await;
    let unlock = wire::plans::UnlockRequest { token: 1, reason: "r".to_owned() };
    is_unknown(client(&[&server]).tenants().unlock("t", &unlock).await.unwrap_err());
    let server = lost(Code::Conflict).await;
    let outcome = wire::plans::StageOutcome::NotDone;
    let resolution =
        wire::plans::StageResolveRequest { outcome, context: None, job: None, reason: "r".to_owned() };
    is_unknown(client(&[&server]).tasks().resolve("k", "1", &resolution).await.unwrap_err());
}

#[tokio::test]
async fn answers_of_strangers_are_told_as_such() {
    let server = StandIn::playing(vec![Act::Answer(200, "", "<html>".to_owned())]).await;
    let error = grant(&client(&[&server])).await.unwrap_err();
    assert!(matches!(error, Error::Unexpected { status: 200, .. }) && !error.is_retryable(), "{error:?}");
    let server =
        StandIn::playing(vec![Act::Answer(302, "location: http://127.0.0.1:1/\r\n", String::new())]).await;
    let error = grant(&client(&[&server])).await.unwrap_err();
    assert!(matches!(error, Error::Unexpected { status: 302, .. }), "{error:?}");
}

#[tokio::test]
async fn settlements_without_an_answer_each_are_not_taken_for_done() {
    let server = StandIn::playing(vec![Act::Answer(200, "", r#"{"results":[]}"#.to_owned())]).await;
    let settlement = wire::nonces::Settlement {
        nonce: 1,
        hold: "h".to_owned(),
        outcome: wire::nonces::Outcome::Unknown,
        tx_hash: None,
    };
    let error = client(&[&server]).settle("s", vec![settlement]).await.unwrap_err();
    assert!(matches!(error, Error::Unexpected { status: 200, .. }), "{error:?}");
}

#[tokio::test]
async fn a_grant_of_fewer_nonces_than_were_asked_for_is_not_taken_for_whole() {
    let server = StandIn::playing(vec![granted()]).await;
    let request = GrantRequest { count: Some(2), ..GrantRequest::default() };
    let error = client(&[&server]).grant("s", &request, None).await.unwrap_err();
    assert!(matches!(error, Error::Unexpected { status: 200, .. }) && error.may_be_done(), "{error:?}");
}

#[test]
fn urls_and_tokens_that_cannot_work_are_refused_before_anything_is_sent() {
    for url in ["127.0.0.1:port", "ftp://h", "http://", "http://u:hunter2@h", "http://h/?x=1"] {
        let error = Client::new([url], None).unwrap_err();
        assert!(matches!(&error, Error::Unusable(_)), "{url}");
        assert!(!error.to_string().contains("hunter2"));
    }
    assert!(Client::new(Vec::<String>::new(), None).is_err());
    assert!(Client::new(["http://h"], Some("a\nb")).is_err());
    let empty = Client::new(["http://h"], Some("")).unwrap_err();
    assert!(matches!(&empty, Error::Unusable(why) if why.contains("an empty token")), "{empty}");
}

#[test]
fn clients_begin_with_different_urls_and_in_order_with_the_first() {
    let new = || Client::new(["http://a", "http://b"], None).unwrap();
    // That all begin with the same one by chance is as likely as forty coins that fall alike.
    let begun: HashSet<_> = (0..41).map(|_| new().url()).collect();
    assert_eq!(begun.len(), 2, "{begun:?}");
    for _ in 0..41 {
        let url = new().in_order().url();
        assert!(url.starts_with("http://a"), "{url}");
    }
}

#[tokio::test]
async fn a_client_that_begins_with_the_last_url_goes_on_with_the_first() {
    let (server, dead) = (StandIn::playing(vec![granted()]).await, StandIn::dead());
    let client = client(&[&server, &dead]);
    client.current.store(1, Ordering::Relaxed);
    assert_eq!(grant(&client).await.unwrap(), 7);
}

#[tokio::test]
async fn what_no_header_can_carry_is_refused_with_the_headers_name() {
    let server = StandIn::playing(Vec::new()).await;
    let named = client(&[&server]).with_request_id("bad\nid".to_owned());
    let error = named.health().await.unwrap_err();
    assert!(matches!(&error, Error::Unusable(why) if why.contains("X-Request-Id: \"bad\\nid\"")), "{error}");
    let request = GrantRequest::default();
    // Blanks at the ends do not arrive: the key would be another one.
    for key in ["bad\nkey", " key", "key\t"] {
        let error = client(&[&server]).grant("s", &request, Some(key)).await.unwrap_err();
        assert!(matches!(&error, Error::Unusable(why) if why.contains("Idempotency-Key")), "{error}");
    }
    assert!(server.heard().is_empty());
}

#[test]
fn https_is_set_up_without_a_provider_being_chosen_elsewhere() {
    let reading = crate::tls::Reading::Once;
    assert!(crate::tls::settings(false, &TlsOptions::default(), reading).is_ok());
}

/// The version that [`ring_of`] is shown under, as a header line.
const FIRST: &str = "x-fencepost-ring: 7.1\r\n";
/// Another one.
const SECOND: &str = "x-fencepost-ring: 7.2\r\n";

/// What `/v1/cluster` shows when these are all that live.
fn shown_as(header: &'static str, mode: &str, living: &[&str]) -> Act {
    let instances = living.iter().enumerate().map(|(number, url)| {
        serde_json::json!({
            "instance_id": format!("i-{number}"), "url": url, "started_at": "", "hostname": "", "pid": 1,
            "version": "", "resources": 0, "on_ring": true,
        })
    });
    let cluster = serde_json::json!({
        "instance": "entry-1", "mode": mode, "ring_version": 7, "instances": instances.collect::<Vec<_>>(),
    });
    Act::Answer(200, header, cluster.to_string())
}

/// The ring of one other instance.
fn ring_of(other: &StandIn) -> Act {
    shown_as(FIRST, "worker-queue", &[&other.url])
}

fn granted_on(header: &'static str) -> Act {
    let Act::Answer(status, _, body) = granted() else { unreachable!() };
    Act::Answer(status, header, body)
}

/// The ring is looked at in the background.
async fn until(fact: impl Fn() -> bool) {
    while !fact() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn how_an_instance_is_is_not_waited_for() {
    let server = StandIn::playing((0..5).map(|_| Act::HangUp).collect()).await;
    let client = bounded(&[&server], 2, Duration::from_secs(30));
    assert!(client.health().await.is_err());
    assert_eq!(server.heard().len(), 2);
}
