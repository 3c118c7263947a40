//! Bulk operations, as an instance takes them that works on as many as it may.

use std::time::Instant;

use domain::{BulkId, JobId, Timestamp};
use ledger::{BulkAction, BulkMade, BulkRecord, BulkStatus, JobFilter, NewBulk};

use super::bounds::submitted;
use super::*;
use crate::bulk::purge::Purge;
use crate::bulk::runner::{Kept, run, take};
use crate::limits::{
    BULK_HELD_FOR, BULK_LEFT_MAX, BULK_SCANS_AT_ONCE, BULK_SHOWN_EVERY, BULKS_AT_ONCE, BULKS_OF_TOKEN_AT_ONCE,
};

/// An operation of this token, whose owner is dead.
async fn orphaned(state: &State, n: u128, principal: &str) -> BulkRecord {
    orphaned_of(state, n, principal, BulkAction::Dismiss).await
}

/// The same with this action, on all jobs that there are.
async fn orphaned_of(state: &State, n: u128, principal: &str, action: BulkAction) -> BulkRecord {
    let new = NewBulk {
        id: BulkId::from_u128(n),
        principal: principal.to_owned(),
        action,
        filter: JobFilter::default(),
        before: state.ledger.bulk_now().await.unwrap().plus_ms(60_000),
        rate: 1,
        matched: 0,
        owner: InstanceId::parse("other-1").unwrap(),
        key_hash: None,
        body_hash: "h".to_owned(),
    };
    match state.ledger.create_bulk(&new, None).await.unwrap() {
        BulkMade::Made(made) => *made,
        found => panic!("it is new: {found:?}"),
    }
}

/// One that an instance has left, since it does not know the token.
async fn left(state: &State, n: u128, principal: &str) -> BulkId {
    let made = orphaned(state, n, principal).await;
    state.ledger.leave_bulk(&made).await.unwrap().unwrap().id
}

/// What an instance keeps that works on as many as it may.
fn full() -> Kept {
    let kept = Kept::default();
    let running = (10..).take(BULKS_AT_ONCE).map(|n| (BulkId::from_u128(n), format!("token-{n}")));
    kept.running.borrow_mut().extend(running);
    kept
}

#[actix_web::test]
async fn an_instance_without_room_holds_what_others_left_for_a_moment_if_it_knows_the_token() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::tokens(vec![token("ops", Scope::Submit)])).await;
    let (known, unknown) = (left(&state, 1, "ops").await, left(&state, 2, "other").await);
    let (forwarder, mut kept, now) = (forwarder(&state), full(), Instant::now());
    let owner = async |id| state.ledger.bulk(id).await.unwrap().unwrap().owner;
    let nobody = owner(unknown).await;
    let shown = crate::to_wire::bulk(&state.ledger.bulk(unknown).await.unwrap().unwrap());
    assert_eq!(shown.instance, None, "no instance has it");

    take(&forwarder, &mut kept, now).await.unwrap();
    assert_eq!(owner(known).await, nobody, "an instance with room may take it");
    let mut at = now + BULK_LEFT_MAX;
    for _ in 0..2 {
        take(&forwarder, &mut kept, at).await.unwrap();
        assert_eq!(owner(known).await, state.incarnation().identity.id);
        assert_eq!(owner(unknown).await, nobody);
        at += BULK_HELD_FOR;
        take(&forwarder, &mut kept, at).await.unwrap();
        assert_eq!(owner(known).await, nobody, "an instance with room may take it again");
        take(&forwarder, &mut kept, at).await.unwrap();
        assert_eq!(owner(known).await, nobody);
        at += BULK_SHOWN_EVERY;
    }
    assert_eq!(kept.running.borrow().len(), BULKS_AT_ONCE, "it works on no more");

    // A place is free while it is held.
    take(&forwarder, &mut kept, at).await.unwrap();
    kept.running.borrow_mut().remove(&BulkId::from_u128(10));
    take(&forwarder, &mut kept, at).await.unwrap();
    while state.ledger.bulk(known).await.unwrap().unwrap().status != BulkStatus::Done {
        tokio::task::yield_now().await;
    }
}

#[actix_web::test]
async fn operations_of_one_token_leave_room_for_those_of_others() {
    let dir = TempDir::new().unwrap();
    let tokens = ["ops", "other"].map(|name| token(name, Scope::Submit));
    let state = state(&dir, Auth::tokens(tokens.into())).await;
    let (forwarder, mut kept) = (forwarder(&state), Kept::default());
    let running = (10..).take(BULKS_OF_TOKEN_AT_ONCE).map(|n| (BulkId::from_u128(n), "ops".to_owned()));
    kept.running.borrow_mut().extend(running);
    let (own, others) = (orphaned(&state, 1, "ops").await, orphaned(&state, 2, "other").await);
    take(&forwarder, &mut kept, Instant::now()).await.unwrap();
    let owner = async |id| state.ledger.bulk(id).await.unwrap().unwrap().owner;
    assert_eq!(owner(own.id).await, own.owner, "it waits for a place");
    assert_eq!(owner(others.id).await, state.incarnation().identity.id);
}

#[actix_web::test]
async fn an_operation_looks_for_its_jobs_when_few_others_do() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::tokens(vec![token("ops", Scope::Submit)])).await;
    let mut others = Vec::new();
    while let Ok(turn) = state.bulk_scans.try_acquire() {
        others.push(turn);
    }
    assert_eq!(others.len(), BULK_SCANS_AT_ONCE);
    let id = orphaned(&state, 1, "ops").await.id;
    let (forwarder, mut kept) = (forwarder(&state), Kept::default());
    take(&forwarder, &mut kept, Instant::now()).await.unwrap();
    assert_eq!(kept.running.borrow().len(), 1, "it has a place");
    let has_its_turn = async {
        loop {
            tokio::task::yield_now().await;
            drop(others.pop());
            // Who waits gets the turn at once.
            match state.bulk_scans.try_acquire() {
                Ok(turn) => others.push(turn),
                Err(_) => break,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), has_its_turn).await.expect("it waits for a turn");
    while state.ledger.bulk(id).await.unwrap().unwrap().status != BulkStatus::Done {
        tokio::task::yield_now().await;
    }
}

#[actix_web::test]
async fn jobs_are_counted_for_few_requests_at_once_and_for_one_of_a_token() {
    let dir = TempDir::new().unwrap();
    let tokens = ["ops", "other"].map(|name| token(name, Scope::Submit));
    // Half of it is for the count, and so for the wait before.
    let request_timeout = Duration::from_secs(2);
    let settings = Settings { request_timeout, ..Settings::new(Auth::tokens(tokens.into())) };
    let state = state_with(&dir, settings).await;
    let service = init_service(app(&forwarder(&state))).await;
    let counted = async |who: &str| {
        let dry = serde_json::json!({"action": "dismiss", "filter": {}, "dry_run": true});
        let request = TestRequest::post().uri("/v1/bulk").set_json(dry);
        let request = request.insert_header((AUTHORIZATION, format!("Bearer {who}")));
        let answer = call_service(&service, request.to_request()).await;
        let (status, body): (_, Value) = (answer.status().as_u16(), read_body_json(answer).await);
        (status, body)
    };
    let is_overloaded = |(status, problem): (u16, Value)| status == 429 && problem["code"] == "overloaded";
    let ops = state.settings.auth.named("ops").unwrap();
    let under_way = ops.used().unwrap().bulk_count.lock().await;
    assert!(is_overloaded(counted("ops").await), "jobs are counted for the token");
    assert_eq!(counted("other").await.0, 200, "another one has its own turn");
    drop(under_way);
    let mut others = Vec::new();
    while let Ok(turn) = state.bulk_counts.try_acquire() {
        others.push(turn);
    }
    assert_eq!(others.len(), BULK_SCANS_AT_ONCE / 2);
    assert!(is_overloaded(counted("ops").await), "all turns are taken");
    others.pop();
    for who in ["ops", "other"] {
        let (status, found) = counted(who).await;
        assert!(status == 200 && found["matched"] == 0, "a turn is free: {status} {found}");
    }
}

#[actix_web::test]
async fn a_repetition_under_a_key_waits_for_no_count() {
    let dir = TempDir::new().unwrap();
    let auth = Auth::tokens(vec![token("ops", Scope::Submit)]);
    let settings = Settings { request_timeout: Duration::from_secs(2), ..Settings::new(auth) };
    let state = state_with(&dir, settings).await;
    let service = init_service(app(&forwarder(&state))).await;
    let begun = async |rate: u32| {
        let dismiss = serde_json::json!({"action": "dismiss", "filter": {}, "rate": rate});
        let request = TestRequest::post().uri("/v1/bulk").set_json(dismiss);
        let request = request.insert_header((AUTHORIZATION, "Bearer ops"));
        let answer =
            call_service(&service, request.insert_header(("idempotency-key", "k")).to_request()).await;
        let (status, body): (_, Value) = (answer.status().as_u16(), read_body_json(answer).await);
        (status, body)
    };
    let (status, made) = begun(1).await;
    assert!(status == 202 && made["id"].is_string(), "{status} {made}");
    let ops = state.settings.auth.named("ops").unwrap();
    let _under_way = ops.used().unwrap().bulk_count.lock().await;
    assert_eq!(begun(1).await, (202, made), "jobs are counted for the token");
    let (status, problem) = begun(2).await;
    assert!(status == 422 && problem["code"] == "key_reused", "{status} {problem}");
}

#[actix_web::test]
async fn an_operation_under_a_key_counts_among_the_new_keys_of_its_token() {
    let dir = TempDir::new().unwrap();
    let auth = Auth::tokens(vec![token("ops", Scope::Submit)]);
    let state = state_with(&dir, Settings { caller_keys_max: 1, ..Settings::new(auth) }).await;
    let service = init_service(app(&forwarder(&state))).await;
    let begun = async |key: &str, is_dry_run: bool| {
        let dismiss = serde_json::json!({"action": "dismiss", "filter": {}, "dry_run": is_dry_run});
        let request = TestRequest::post().uri("/v1/bulk").set_json(dismiss);
        let request = request.insert_header((AUTHORIZATION, "Bearer ops"));
        let answer =
            call_service(&service, request.insert_header(("idempotency-key", key)).to_request()).await;
        let (status, body): (_, Value) = (answer.status().as_u16(), read_body_json(answer).await);
        (status, body)
    };
    let (status, made) = begun("k", false).await;
    assert_eq!(status, 202, "{made}");
    let (status, problem) = begun("another", false).await;
    assert_eq!((status, &problem["code"]), (429, &Value::from("overloaded")), "{problem}");
    assert_eq!(begun("another", true).await.0, 200, "a dry run keeps no key");
    assert_eq!(begun("k", false).await, (202, made), "a repetition");
}

#[actix_web::test]
async fn an_operation_has_an_id_with_the_time_of_the_databases_clock() {
    const HOUR_MS: u64 = 3_600_000;
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::tokens(vec![token("ops", Scope::Submit)])).await;
    let service = init_service(app(&forwarder(&state))).await;
    let sent = Instant::now();
    let shown_ms = state.ledger.clock_ms().await.unwrap() + HOUR_MS;
    state.clock.saw(Timestamp::from_micros(0).plus_ms(shown_ms), sent, Instant::now());
    let dismiss = serde_json::json!({"action": "dismiss", "filter": {}});
    let request = TestRequest::post().uri("/v1/bulk").set_json(dismiss);
    let request = request.insert_header((AUTHORIZATION, "Bearer ops"));
    let answer = call_service(&service, request.to_request()).await;
    assert_eq!(answer.status(), StatusCode::ACCEPTED);
    let made: Value = read_body_json(answer).await;
    let made_at_ms = JobId::parse(made["id"].as_str().unwrap()).unwrap().made_at_ms();
    assert!(made_at_ms.abs_diff(shown_ms) < HOUR_MS / 2, "made at {made_at_ms}, where it is {shown_ms}");
}

#[actix_web::test]
async fn an_operation_stops_where_the_ledger_went_back_and_goes_on_afterwards() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::tokens(vec![token("ops", Scope::Submit)])).await;
    let id = orphaned(&state, 1, "ops").await.id;
    let (forwarder, mut kept) = (forwarder(&state), Kept::default());
    // Between two pages.
    state.set_went_back(Some("it is behind".to_owned()));
    take(&forwarder, &mut kept, Instant::now()).await.unwrap();
    while !kept.running.borrow().is_empty() {
        tokio::task::yield_now().await;
    }
    let status = async || state.ledger.bulk(id).await.unwrap().unwrap().status;
    assert_eq!(status().await, BulkStatus::Running);
    state.set_went_back(None);
    take(&forwarder, &mut kept, Instant::now()).await.unwrap();
    while status().await != BulkStatus::Done {
        tokio::task::yield_now().await;
    }
}

#[actix_web::test]
async fn an_operation_whose_token_is_taken_away_amid_a_page_leaves_the_page_to_others() {
    let dir = TempDir::new().unwrap();
    let auth = Auth::tokens(vec![token("ops", Scope::Submit)]);
    let state = state(&dir, auth.clone()).await;
    // The owner of its lane cannot be asked: the cancel is tried in many rounds.
    let (_, job) = submitted(&state, "1").await;
    let id = orphaned_of(&state, 1, "ops", BulkAction::Cancel).await.id;
    let (forwarder, mut kept) = (forwarder(&state), Kept::default());
    take(&forwarder, &mut kept, Instant::now()).await.unwrap();
    let row = async || state.ledger.bulk(id).await.unwrap().unwrap();
    while row().await.page.is_empty() {
        tokio::task::yield_now().await;
    }
    auth.replace(vec![token("other", Scope::Submit)]);
    while !row().await.is_left() {
        tokio::task::yield_now().await;
    }
    let left = row().await;
    assert_eq!((left.page, left.failed, left.status), (vec![job], 0, BulkStatus::Running));
}

#[actix_web::test]
async fn an_instance_without_room_ends_what_somebody_cancelled() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::tokens(vec![token("ops", Scope::Submit)])).await;
    let held = left(&state, 1, "ops").await;
    let (forwarder, mut kept, now) = (forwarder(&state), full(), Instant::now());
    for at in [now, now + BULK_LEFT_MAX] {
        take(&forwarder, &mut kept, at).await.unwrap();
    }
    assert_eq!(state.ledger.bulk(held).await.unwrap().unwrap().owner, state.incarnation().identity.id);
    let (known, unknown) = (left(&state, 2, "ops").await, left(&state, 3, "other").await);
    let orphan = orphaned(&state, 4, "ops").await.id;
    for id in [held, known, unknown, orphan] {
        state.ledger.cancel_bulk(id, None).await.unwrap();
    }

    take(&forwarder, &mut kept, now + BULK_LEFT_MAX).await.unwrap();
    while kept.running.borrow().len() > BULKS_AT_ONCE {
        tokio::task::yield_now().await;
    }
    for id in [held, known, unknown, orphan] {
        assert_eq!(state.ledger.bulk(id).await.unwrap().unwrap().status, BulkStatus::Cancelled);
    }
}

#[actix_web::test]
async fn an_operation_that_is_over_is_purged_at_its_age() {
    let month = Duration::from_secs(30 * 86_400);
    assert_eq!(Settings::new(Auth::open()).bulk_kept, month);
    for (kept, is_purged) in [(Duration::ZERO, true), (month, false)] {
        let dir = TempDir::new().unwrap();
        let auth = Auth::tokens(vec![token("ops", Scope::Submit)]);
        let settings = Settings { bulk_purge_every: Duration::ZERO, bulk_kept: kept, ..Settings::new(auth) };
        let state = state_with(&dir, settings).await;
        let over = orphaned(&state, 1, "ops").await;
        state.ledger.finish_bulk(&over, BulkStatus::Done, None).await.unwrap().unwrap();
        let record = async |id| state.ledger.bulk(id).await.unwrap();
        let running = actix_web::rt::spawn(run(forwarder(&state)));
        let looks = async {
            let look = async || {
                state.bulk_woken.notify_one();
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            // One look takes the first of them and then purges, before the next look takes the second.
            for n in [2, 3] {
                let next = orphaned(&state, n, "ops").await.id;
                while record(next).await.is_some_and(|found| !found.status.is_over()) {
                    look().await;
                }
            }
            while is_purged && record(over.id).await.is_some() {
                look().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), looks).await.expect("it is purged");
        assert_eq!(record(over.id).await.is_none(), is_purged, "kept for {kept:?}");
        state.traffic.drain();
        running.await.unwrap();
    }
}

#[actix_web::test]
async fn what_looks_old_since_the_databases_clock_stepped_forward_is_not_purged() {
    const KEPT_MS: u64 = 1_000;
    let dir = TempDir::new().unwrap();
    let auth = Auth::tokens(vec![token("ops", Scope::Submit)]);
    let bulk_kept = Duration::from_millis(KEPT_MS);
    let settings = Settings { bulk_purge_every: Duration::ZERO, bulk_kept, ..Settings::new(auth) };
    let state = state_with(&dir, settings).await;
    let over = orphaned(&state, 1, "ops").await;
    state.ledger.finish_bulk(&over, BulkStatus::Done, None).await.unwrap().unwrap();
    let finished = state.ledger.bulk_now().await.unwrap();
    while state.ledger.bulk_now().await.unwrap() <= finished.plus_ms(KEPT_MS + 1) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // An hour earlier, as far as this instance has seen.
    let before_ms = state.ledger.clock_ms().await.unwrap() - 3_600_000;
    let now = Instant::now();
    state.clock.saw(Timestamp::from_micros(0).plus_ms(before_ms), now, now);
    Purge::new(&state).step(&state).await;
    assert!(state.ledger.bulk(over.id).await.unwrap().is_some());
}

#[actix_web::test]
async fn a_write_of_an_owner_before_the_last_is_counted_as_fenced_and_one_to_what_is_over_is_not() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::tokens(vec![token("ops", Scope::Submit)])).await;
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let counted = recorder.handle();
    let _counting = metrics::set_default_local_recorder(&recorder);
    for (n, is_over) in [(1, true), (2, false)] {
        let id = orphaned(&state, n, "ops").await.id;
        let mut turns = Vec::new();
        while let Ok(turn) = state.bulk_scans.try_acquire() {
            turns.push(turn);
        }
        let (forwarder, mut kept) = (forwarder(&state), Kept::default());
        take(&forwarder, &mut kept, Instant::now()).await.unwrap();
        // Its owner waits for a turn.
        let owned = state.ledger.bulk(id).await.unwrap().unwrap();
        assert_eq!(owned.owner, state.incarnation().identity.id);
        if is_over {
            state.ledger.finish_bulk(&owned, BulkStatus::Done, None).await.unwrap().unwrap();
        } else {
            // This raises the token as a takeover does.
            state.ledger.leave_bulk(&owned).await.unwrap().unwrap();
        }
        drop(turns);
        while !kept.running.borrow().is_empty() {
            tokio::task::yield_now().await;
        }
        let shown = counted.render();
        assert_eq!(shown.contains(r#"fencepost_fence_reject_total{op="bulk"} 1"#), !is_over, "{shown}");
    }
}
