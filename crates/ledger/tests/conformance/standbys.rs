//! Commits that wait for a standby that is not there.

use std::sync::Arc;
use std::time::Instant;

use domain::{BulkId, IdempotencyKey, LaneId, PoolName, SegmentTag, SequenceName};
use ledger::{
    Acquisition, BulkAction, BulkMade, BulkStatus, JobFilter, JobKey, KeptPlan, KeyScope, Lane, NewBulk,
    NewPlan, Opened, Options, PlanCreated, Put, SegmentChange, SequenceChange,
};
use testkit::PATIENCE;
use testkit::servers::Postgres;

use crate::bench::{LONG_MS, by, eventually, options_of, owner};
use crate::job_retries::fail;
use crate::plan_owner::{new, plan, plan_id};
use crate::sessions::spec;
use crate::shop::{complete, instance_lane, job, of_lane, said, session, session_id, submit_placed};

fn key(name: &str) -> JobKey {
    let scope = KeyScope { scope: "someone".to_owned(), key: IdempotencyKey::parse(name).unwrap() };
    JobKey { scope, body_hash: [3; 32] }
}

async fn says(server: &Arc<Postgres>, statement: &'static str) {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || server.query(statement)).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_standby_has_is_not_answered_as_done_to_a_repetition() {
    let server = tokio::task::spawn_blocking(|| Arc::new(Postgres::start().unwrap())).await.unwrap();
    let database = server.database().unwrap();
    // A commit that waits is given up soon.
    let options = Options { call_timeout_ms: 2_000, ..options_of(database.url().to_owned()) };
    let ledger = ledger::open(&options).await.unwrap();
    let me = owner("a");
    let owned = async |id: LaneId| {
        let acquired = ledger.acquire(id.lease(), &me, LONG_MS).await.unwrap();
        let Acquisition::Acquired { token, .. } = acquired else { panic!("nobody else has it") };
        Lane { id, owner: me.clone(), token }
    };
    let (lane, of_session) = (owned(instance_lane(&me)).await, owned(session("closed")).await);
    ledger.open_session(&session_id("closed"), &spec(), None, None).await.unwrap();
    let pool = PoolName::parse("resumed").unwrap();
    ledger.pause_pool(&pool, "repair", None, &by()).await.unwrap();
    let bulk = NewBulk {
        id: BulkId::from_u128(1),
        principal: "me".to_owned(),
        action: BulkAction::Delete,
        filter: JobFilter::default(),
        before: ledger.bulk_now().await.unwrap(),
        rate: 7,
        matched: 0,
        owner: me.clone(),
        key_hash: None,
        body_hash: "h".to_owned(),
    };
    assert!(matches!(ledger.create_bulk(&bulk, None).await, Ok(BulkMade::Made(_))));
    let (dead, deleted) = ([job(3)], [job(4)]);
    ledger.commit_jobs(of_lane(&lane, [1, 3, 4].map(job).map(submit_placed))).await.unwrap();
    ledger.commit_jobs(of_lane(&lane, [job(3), job(4)].map(fail))).await.unwrap();
    says(&server, "alter system set synchronous_standby_names = 'gone'").await;
    says(&server, "select pg_reload_conf()").await;
    let make = async |id: u128, named: u128| {
        let plan = NewPlan { key: Some(key(&format!("p{named}"))), ..new(&plan(id, &["x"])) };
        ledger.create_plan(plan).await
    };
    let open = async |name: &str, is_keyed: bool| {
        let key = is_keyed.then(|| key(name));
        ledger.open_session(&session_id(name), &spec(), key.as_ref(), None).await
    };
    let (tag, sequence) = (SegmentTag::parse("t").unwrap(), SequenceName::parse("s").unwrap());
    let (of_tag, of_sequence) = (SegmentChange::default(), SequenceChange::default());
    let put = async || {
        let by = by();
        let (segment, sequence) = tokio::join!(
            ledger.put_segment(&tag, &of_tag, &by),
            ledger.put_sequence(&sequence, &of_sequence, &by)
        );
        [segment.map(|put| matches!(put, Put::Done(_))), sequence.map(|put| matches!(put, Put::Done(_)))]
    };
    // The server reads its settings when it comes to it.
    let (mut last, patience) = (1, Instant::now() + PATIENCE);
    while make(last, last).await.is_ok() {
        last += 1;
        assert!(Instant::now() < patience, "no commit waits for the standby");
    }
    let hung = [open("keyed", true).await, open("named", false).await];
    assert!(hung.iter().all(Result::is_err), "{hung:?}");
    let reported = ledger.commit_jobs(said([complete(job(1), 1, "1")])).await;
    assert!(reported.as_ref().is_err_and(ledger::Error::may_have_written), "{reported:?}");
    let closed = ledger.close_session(&of_session).await;
    assert!(closed.is_err(), "{closed:?}");
    let resumed = ledger.resume_pool(&pool, &by()).await;
    assert!(resumed.is_err(), "{resumed:?}");
    let cancelled = ledger.cancel_bulk(bulk.id, None).await;
    assert!(cancelled.is_err(), "{cancelled:?}");
    let (made, dismissed) = (put().await, ledger.dismiss_jobs(&dead, None).await);
    assert!(made.iter().all(Result::is_err) && dismissed.is_err(), "{made:?}, {dismissed:?}");
    let gone = ledger.delete_jobs(&deleted, None).await;
    assert!(gone.is_err(), "{gone:?}");
    // Other calls see the rows once the sessions that wait are gone.
    let end = "select pg_terminate_backend(pid, 60000) from pg_stat_activity where wait_event = 'SyncRep'";
    says(&server, end).await;
    assert!(ledger.plan(plan_id(last)).await.unwrap().is_some());
    assert_eq!(ledger.pool_pauses().await.unwrap(), []);
    let resumed = ledger.resume_pool(&pool, &by()).await;
    assert!(resumed.is_err(), "{resumed:?}");
    assert_eq!(ledger.bulk(bulk.id).await.unwrap().unwrap().status, BulkStatus::Cancelling);
    let cancelled = ledger.cancel_bulk(bulk.id, None).await;
    assert!(cancelled.is_err(), "{cancelled:?}");
    assert!(
        ledger.segment(&tag).await.unwrap().is_some() && ledger.sequence(&sequence).await.unwrap().is_some()
    );
    let found = ledger.job(dead[0]).await.unwrap().unwrap();
    assert!(found.finished.as_ref().is_some_and(|finished| finished.dismissed_at.is_some()), "{found:?}");
    let (found, dismissed) = (put().await, ledger.dismiss_jobs(&dead, None).await);
    assert!(found.iter().all(Result::is_err) && dismissed.is_err(), "{found:?}, {dismissed:?}");
    assert_eq!(ledger.job(deleted[0]).await.unwrap(), None);
    let gone = ledger.delete_jobs(&deleted, None).await;
    assert!(gone.is_err(), "{gone:?}");
    let (made, opened) =
        (make(last + 1, last).await, [open("keyed", true).await, open("named", false).await]);
    assert!(made.as_ref().is_err_and(ledger::Error::is_retryable), "{made:?}");
    assert!(
        opened.iter().all(|opened| opened.as_ref().is_err_and(ledger::Error::is_retryable)),
        "{opened:?}"
    );
    assert!(ledger.kept_plan(&key(&format!("p{last}")).scope).await.is_err());
    let found = ledger.job(job(1)).await.unwrap();
    assert!(found.as_ref().is_some_and(|job| job.finished.is_some()), "{found:?}");
    let settled = ledger.settled_job(job(1)).await;
    assert!(settled.as_ref().is_err_and(ledger::Error::is_retryable), "{settled:?}");
    assert_eq!(ledger.settled_job(job(2)).await.unwrap(), None, "there is nothing to be lost");
    let closed = ledger.session(&session_id("closed")).await.unwrap();
    assert!(closed.as_ref().is_some_and(|session| session.closed_at.is_some()), "{closed:?}");
    let settled = ledger.settled_session(&session_id("closed")).await;
    assert!(settled.as_ref().is_err_and(ledger::Error::is_retryable), "{settled:?}");
    says(&server, "alter system reset synchronous_standby_names").await;
    says(&server, "select pg_reload_conf()").await;
    let kept = PlanCreated::Kept(KeptPlan { body_hash: [3; 32], plan: plan_id(last) });
    eventually("the first plan is the answer", async || {
        make(last + 1, last).await.is_ok_and(|made| made == kept)
    })
    .await;
    let kept = Opened::Kept { body_hash: [3; 32], session: session_id("keyed") };
    assert_eq!(open("keyed", true).await.unwrap(), kept);
    assert!(matches!(open("named", false).await, Ok(Opened::Made { .. })));
    assert_eq!(ledger.settled_job(job(1)).await.unwrap(), found);
    ledger.resume_pool(&pool, &by()).await.unwrap();
    ledger.cancel_bulk(bulk.id, None).await.unwrap();
    assert!(put().await.into_iter().all(Result::unwrap));
    assert_eq!(ledger.dismiss_jobs(&dead, None).await.unwrap(), []);
    assert_eq!(ledger.delete_jobs(&deleted, None).await.unwrap(), []);
    let settled = ledger.settled_session(&session_id("closed")).await.unwrap();
    assert_eq!(settled.unwrap().closed_at, closed.unwrap().closed_at);
}
