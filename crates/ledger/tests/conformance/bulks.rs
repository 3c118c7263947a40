//! Bulk operations: one owner at a time, whose writes count only while it is the owner.

use domain::job::{Attempt, Change, NewJob, Outcome, Requirements, Retry, Revoked};
use domain::plan::{Command, StageEnd};
use domain::session::Spec;
use domain::{AuditEntry, BulkId, InstanceId, JobId, JobKind, LaneId, PoolName, TenantId, Timestamp};
use ledger::{
    AuditFilter, BULKS_OPEN_MAX, BULKS_OPEN_OF_ONE_MAX, BulkAction, BulkCount, BulkMade, BulkRecord,
    BulkScan, BulkStatus, BulkStep, JobFilter, Lane, NewBulk,
};

use crate::bench::{Bench, LONG_MS, by, eventually, owner};
use crate::plan_owner::{PlanOwner, plan};
use crate::sessions::spec;
use crate::shop::{cancel, in_session, job, of_lane, plain, session, session_id, submit, submit_placed};

pub async fn new(b: &Bench, n: u128, action: BulkAction, filter: JobFilter) -> NewBulk {
    NewBulk {
        id: BulkId::from_u128(n),
        principal: "me".to_owned(),
        action,
        filter,
        before: b.ledger.bulk_now().await.unwrap(),
        rate: 7,
        matched: 3,
        owner: owner("a"),
        key_hash: None,
        body_hash: "h".to_owned(),
    }
}

pub async fn made(b: &Bench, new: &NewBulk) -> BulkRecord {
    match b.ledger.create_bulk(new, None).await.unwrap() {
        BulkMade::Made(made) => *made,
        other => panic!("{other:?}"),
    }
}

fn failed() -> JobFilter {
    JobFilter { outcome: Some(Outcome::Failed), without_stages: true, ..JobFilter::default() }
}

/// The jobs 0 to 5: three failed, one was cancelled, two wait.
pub async fn stock(b: &Bench) {
    let lane = b.lane(session("s"), &owner("lanes")).await;
    let kinds = |n: u64| {
        let mut new = plain(job(n));
        new.spec.kind = (!n.is_multiple_of(2)).then(|| JobKind::parse("odd").unwrap());
        submit(new)
    };
    b.does(of_lane(&lane, (0..3).map(|n| submit_placed(job(n))))).await;
    b.does(of_lane(&lane, (3..6).map(kinds))).await;
    let fail = |n: u64| Change::End {
        job: job(n),
        outcome: Outcome::Failed,
        dead: true,
        attempt: Some((Attempt::new(1), Revoked::NodeLost)),
        reason: String::new(),
    };
    b.does(of_lane(&lane, (0..3).map(fail).chain([cancel(job(3))]))).await;
}

pub async fn a_bulk_operation_is_kept_as_it_was_asked_for(b: Bench) {
    let filter = JobFilter { kind: Some(JobKind::parse("k").unwrap()), dead: Some(true), ..failed() };
    let asked = new(&b, 1, BulkAction::Retry, filter).await;
    let entry = AuditEntry::new("me", "bulk_retry", "bulk:1");
    let BulkMade::Made(first) = b.ledger.create_bulk(&asked, Some(&entry)).await.unwrap() else { panic!() };
    assert_eq!(
        (first.id, &first.filter, first.before, first.rate),
        (asked.id, &asked.filter, asked.before, 7)
    );
    assert_eq!((first.action, first.status, first.matched), (BulkAction::Retry, BulkStatus::Running, 3));
    assert_eq!((&first.principal, &first.owner, first.token), (&asked.principal, &asked.owner, 1));
    assert_eq!((first.done, first.skipped, first.failed, &first.error), (0, 0, 0, &None));
    assert_eq!(b.ledger.bulk(asked.id).await.unwrap().as_ref(), Some(&*first));
    assert_eq!(b.ledger.bulk(BulkId::from_u128(9)).await.unwrap(), None);
    let second = new(&b, 2, BulkAction::Cancel, JobFilter::default()).await;
    let second = made(&b, &NewBulk { principal: "other".to_owned(), ..second }).await;
    let ids = async |before, principal| {
        let found = b.ledger.bulks(before, 10, principal).await.unwrap();
        found.iter().map(|record| record.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(None, None).await, [second.id, first.id]);
    assert_eq!(ids(Some(second.id), None).await, [first.id]);
    assert_eq!(ids(None, Some("me")).await, [first.id]);
    let audited = b.ledger.audits(&AuditFilter { limit: 10, ..AuditFilter::default() }).await.unwrap();
    assert_eq!((audited.len(), audited[0].action.as_str()), (1, "bulk_retry"));
}

pub async fn a_key_makes_one_bulk_operation(b: Bench) {
    let asked = NewBulk { key_hash: Some("k".to_owned()), ..new(&b, 1, BulkAction::Retry, failed()).await };
    let first = made(&b, &asked).await;
    let again = NewBulk { id: BulkId::from_u128(2), body_hash: "other".to_owned(), ..asked };
    let kept = b.ledger.create_bulk(&again, Some(&by())).await.unwrap();
    assert_eq!(kept, BulkMade::Kept(Box::new(first.clone())));
    assert_eq!(b.ledger.kept_bulk("k").await.unwrap(), Some(first));
    assert_eq!(b.ledger.kept_bulk("other").await.unwrap(), None);
    assert!(b.ledger.audits(&AuditFilter { limit: 10, ..AuditFilter::default() }).await.unwrap().is_empty());
}

pub async fn a_key_is_free_again_after_its_time_once_its_bulk_operation_is_over(b: Bench) {
    let asked = NewBulk { key_hash: Some("k".to_owned()), ..new(&b, 1, BulkAction::Retry, failed()).await };
    let first = made(&b, &asked).await;
    let again = NewBulk { id: BulkId::from_u128(2), ..asked };
    eventually("it is old", async || b.ledger.bulk_now().await.unwrap() > first.created_at.plus_ms(1)).await;
    assert_eq!(b.ledger.purge_keys(0, 9).await.unwrap(), 0, "it is under way");
    let kept = b.ledger.create_bulk(&again, None).await.unwrap();
    assert_eq!(kept, BulkMade::Kept(Box::new(first.clone())));
    let over = b.ledger.finish_bulk(&first, BulkStatus::Done, None).await.unwrap().unwrap();
    assert_eq!(b.ledger.purge_keys(LONG_MS, 9).await.unwrap(), 0, "young keys stay");
    let kept = b.ledger.create_bulk(&again, None).await.unwrap();
    assert_eq!(kept, BulkMade::Kept(Box::new(over.clone())));
    assert_eq!(b.ledger.purge_keys(0, 9).await.unwrap(), 1);
    let second = made(&b, &again).await;
    assert_eq!(b.ledger.bulk(over.id).await.unwrap(), Some(over), "it is shown as before");
    assert_eq!(b.ledger.purge_keys(0, 9).await.unwrap(), 0);
    let kept = b.ledger.create_bulk(&NewBulk { id: BulkId::from_u128(3), ..again }, None).await.unwrap();
    assert_eq!(kept, BulkMade::Kept(Box::new(second)), "of the new one");
}

pub async fn only_so_many_bulk_operations_are_under_way(b: Bench) {
    let of = async |n: u32, principal: &str| NewBulk {
        principal: principal.to_owned(),
        ..new(&b, u128::from(n) + 1, BulkAction::Retry, failed()).await
    };
    for n in 0..BULKS_OPEN_OF_ONE_MAX {
        made(&b, &of(n, "me").await).await;
    }
    let greedy = of(998, "me").await;
    assert_eq!(b.ledger.create_bulk(&greedy, None).await.unwrap(), BulkMade::TooMany, "of one token");
    // Without tokens there is one caller.
    for n in BULKS_OPEN_OF_ONE_MAX..BULKS_OPEN_MAX {
        made(&b, &of(n, if n % 2 == 0 { "you" } else { "" }).await).await;
    }
    let more = of(999, "third").await;
    assert_eq!(b.ledger.create_bulk(&more, None).await.unwrap(), BulkMade::TooMany);
    let first = b.ledger.bulk(BulkId::from_u128(1)).await.unwrap().unwrap();
    let ended = b.ledger.finish_bulk(&first, BulkStatus::Done, None).await.unwrap().unwrap();
    assert!(ended.finished_at.is_some() && ended.status == BulkStatus::Done);
    made(&b, &more).await;
}

pub async fn a_bulk_operation_is_about_the_jobs_of_its_filter_and_time(b: Bench) {
    let early = b.ledger.bulk_now().await.unwrap();
    stock(&b).await;
    let late = b.ledger.bulk_now().await.unwrap().plus_ms(1);
    let found = async |action, filter: &JobFilter, before: Timestamp, behind: Option<u64>| {
        let scan = scan(behind.map(job), 10);
        let next = b.ledger.next_of_bulk(action, filter, before, scan).await.unwrap().jobs;
        if behind.is_none() {
            let all = BulkCount { jobs: next.len() as u64, read_to: None };
            let count = b.ledger.count_bulk(action, filter, before, None, 10);
            assert_eq!(count.await.unwrap(), all);
        }
        next
    };
    let jobs = |numbers: &[u64]| numbers.iter().map(|n| job(*n)).collect::<Vec<_>>();
    assert_eq!(found(BulkAction::Retry, &failed(), late, None).await, jobs(&[0, 1, 2]));
    assert_eq!(found(BulkAction::Retry, &failed(), late, Some(0)).await, jobs(&[1, 2]));
    assert_eq!(found(BulkAction::Retry, &failed(), early, None).await, []);
    assert_eq!(found(BulkAction::Delete, &JobFilter::default(), late, None).await, jobs(&[0, 1, 2, 3]));
    assert_eq!(found(BulkAction::Cancel, &JobFilter::default(), late, None).await, jobs(&[4, 5]));
    assert_eq!(found(BulkAction::Cancel, &JobFilter::default(), early, None).await, []);
    let odd = JobFilter { kind: Some(JobKind::parse("odd").unwrap()), ..JobFilter::default() };
    assert_eq!(found(BulkAction::Cancel, &odd, late, None).await, jobs(&[5]));
    assert_eq!(found(BulkAction::Delete, &odd, late, None).await, jobs(&[3]));
    // However few of the rows match, a count reads as many as it may, and the next one begins behind them.
    let not_dead = JobFilter { dead: Some(false), ..JobFilter::default() };
    for (filter, rows_max, expected) in [
        (&JobFilter::default(), 3, &[(3, Some(2)), (1, None)][..]),
        (&JobFilter::default(), 2, &[(2, Some(1)), (2, Some(3)), (0, None)]),
        (&not_dead, 3, &[(0, Some(2)), (1, None)]),
    ] {
        let mut behind = None;
        for (jobs, read_to) in expected {
            let count = b.ledger.count_bulk(BulkAction::Delete, filter, late, behind, rows_max);
            let expected = BulkCount { jobs: *jobs, read_to: read_to.map(job) };
            assert_eq!(count.await.unwrap(), expected, "{filter:?} {rows_max} {behind:?}");
            behind = expected.read_to;
        }
    }
}

pub async fn a_bulk_operation_of_a_caller_of_one_tenant_reads_no_others(b: Bench) {
    for (name, tenant, pool) in [("x", "x", "p"), ("y", "y", "q")] {
        let needs = Requirements { pool: PoolName::parse(pool).ok(), ..Requirements::default() };
        let asked = Spec { tenant: TenantId::parse(tenant).ok(), needs, ..spec() };
        b.ledger.open_session(&session_id(name), &asked, None, None).await.unwrap();
    }
    let lane = b.lane(session("s"), &owner("lanes")).await;
    // Of a session of x, of one of y, and of none; each with the other's names, with no names, and with its own.
    let jobs = (0..9).map(|n| {
        let mut new = plain(job(n));
        new.spec.session = match n {
            0..3 => Some(session_id("x")),
            3..6 => Some(session_id("y")),
            _ => None,
        };
        let (tenant, pool) = match n % 3 {
            0 => ("y", "q"),
            1 => ("", ""),
            _ => ("x", "p"),
        };
        (new.spec.tenant, new.spec.needs.pool) = (TenantId::parse(tenant).ok(), PoolName::parse(pool).ok());
        submit(new)
    });
    b.does(of_lane(&lane, jobs)).await;
    let x = JobFilter { only_tenant: TenantId::parse("x").ok(), ..JobFilter::default() };
    let p = JobFilter { only_pool: PoolName::parse("p").ok(), ..JobFilter::default() };
    let expected: Vec<_> = [0, 1, 2, 8].into_iter().map(job).collect();
    for action in [BulkAction::Cancel, BulkAction::Delete] {
        if action == BulkAction::Delete {
            b.does(of_lane(&lane, (0..9).map(|n| cancel(job(n))))).await;
        }
        let late = b.ledger.bulk_now().await.unwrap().plus_ms(1);
        for filter in [&x, &p] {
            let next = b.ledger.next_of_bulk(action, filter, late, scan(None, 10)).await.unwrap().jobs;
            assert_eq!(next, expected, "{action:?} {filter:?}");
            let count = b.ledger.count_bulk(action, filter, late, None, 100).await.unwrap();
            assert_eq!(count, BulkCount { jobs: 4, read_to: None }, "{action:?} {filter:?}");
        }
    }
}

/// Up to `jobs_max` jobs, among a thousand rows.
fn scan(behind: Option<JobId>, jobs_max: u32) -> BulkScan {
    BulkScan { behind, jobs_max, rows_max: 1_000 }
}

/// However few of the rows match, a scan reads as many as it may, and the next one begins behind them.
pub async fn a_scan_is_bounded_and_scans_together_find_every_job_once(b: Bench) {
    stock(&b).await;
    let late = b.ledger.bulk_now().await.unwrap().plus_ms(1);
    let jobs = |numbers: &[u64]| numbers.iter().map(|n| job(*n)).collect::<Vec<_>>();
    let odd = JobFilter { kind: Some(JobKind::parse("odd").unwrap()), ..JobFilter::default() };
    let dead_and_odd = JobFilter { dead: Some(true), ..odd.clone() };
    for (action, filter, expected) in [
        (BulkAction::Retry, &failed(), &[0, 1, 2][..]),
        (BulkAction::Delete, &JobFilter::default(), &[0, 1, 2, 3]),
        (BulkAction::Delete, &odd, &[3]),
        (BulkAction::Delete, &dead_and_odd, &[]),
        (BulkAction::Cancel, &odd, &[5]),
        (BulkAction::Cancel, &JobFilter::default(), &[4, 5]),
    ] {
        for (rows_max, jobs_max) in [(1, 1), (2, 1), (2, 10), (3, 2), (100, 1), (100, 100)] {
            let (mut found, mut behind, mut scans) = (Vec::new(), None, 0);
            loop {
                let scan = BulkScan { behind, jobs_max, rows_max };
                let next = b.ledger.next_of_bulk(action, filter, late, scan).await.unwrap();
                assert!(next.jobs.len() <= rows_max.min(jobs_max) as usize, "{action:?} {filter:?} {scan:?}");
                behind = next.next(&scan);
                found.extend(next.jobs);
                scans += 1;
                assert!(scans < 10, "{action:?} {filter:?}: a scan does not get on");
                if behind.is_none() {
                    break;
                }
            }
            assert_eq!(found, jobs(expected), "{action:?} {filter:?} {rows_max} {jobs_max}");
        }
    }
}

/// Such a retry would be refused, and the job would be among the next ones again.
pub async fn a_retry_finds_no_job_of_a_closed_session(b: Bench) {
    for name in ["open", "closed"] {
        b.ledger.open_session(&session_id(name), &spec(), None, None).await.unwrap();
    }
    let lane = b.lane(session("open"), &owner("a")).await;
    let closed = b.lane(session("closed"), &owner("a")).await;
    let first_of = |name: &str, n: u64| submit(NewJob { seq: Some(1), ..in_session(name, n) });
    b.does(of_lane(&lane, [submit(plain(job(0))), first_of("open", 1), submit(plain(job(3)))])).await;
    b.does(of_lane(&closed, [first_of("closed", 2)])).await;
    b.does(of_lane(&lane, [cancel(job(0)), cancel(job(1))])).await;
    b.does(of_lane(&closed, [cancel(job(2))])).await;
    let late = b.ledger.bulk_now().await.unwrap().plus_ms(1);
    for jobs in [&[0, 1, 2][..], &[0, 1]] {
        let jobs: Vec<_> = jobs.iter().map(|n| job(*n)).collect();
        // Only what has ended can be retried.
        let filter = JobFilter { in_open_session: true, limit: 10, ..JobFilter::default() };
        let listed = b.ledger.jobs(&filter).await.unwrap();
        assert_eq!(listed.iter().rev().map(|record| record.id).collect::<Vec<_>>(), jobs);
        let all = JobFilter::default();
        let next = b.ledger.next_of_bulk(BulkAction::Retry, &all, late, scan(None, 10)).await.unwrap();
        assert_eq!(next.jobs, jobs);
        let count = b.ledger.count_bulk(BulkAction::Retry, &all, late, None, 10).await.unwrap();
        assert_eq!(count, BulkCount { jobs: jobs.len() as u64, read_to: None });
        // The others are about it as well.
        let next = b.ledger.next_of_bulk(BulkAction::Delete, &all, late, scan(None, 10)).await.unwrap();
        assert_eq!(next.jobs, [0, 1, 2].map(job));
        b.ledger.close_session(&closed).await.unwrap().unwrap();
    }
}

pub async fn jobs_that_were_made_long_after_its_time_are_not_read(b: Bench) {
    let before = b.ledger.bulk_now().await.unwrap().plus_ms(60_000);
    let before_ms = before.as_micros().unsigned_abs() / 1_000;
    let made_at = |ms: u64| JobId::from_u128(JobId::first_at_ms(ms).as_u128() + 1);
    // By the database's clock both were made and ended before that time: the ids alone tell them apart.
    let (clock_ahead, later) = (made_at(before_ms + 80_000_000), made_at(before_ms + 90_000_000));
    let lane = b.lane(session("s"), &owner("lanes")).await;
    let all = JobFilter::default();
    b.does(of_lane(&lane, [submit(plain(clock_ahead)), submit(plain(later))])).await;
    for (action, change) in [(BulkAction::Cancel, true), (BulkAction::Delete, false)] {
        let found = b.ledger.next_of_bulk(action, &all, before, scan(None, 10)).await.unwrap().jobs;
        assert_eq!(found, [clock_ahead], "{action:?}");
        let count = b.ledger.count_bulk(action, &all, before, None, 10).await.unwrap();
        assert_eq!(count, BulkCount { jobs: 1, read_to: None }, "{action:?}");
        if change {
            b.does(of_lane(&lane, [cancel(clock_ahead), cancel(later)])).await;
        }
    }
}

pub async fn an_owner_that_was_replaced_writes_nothing(b: Bench) {
    stock(&b).await;
    let (dead, heir) = (owner("dead"), owner("heir"));
    b.lane(LaneId::instance(&heir, 0), &heir).await;
    let asked = NewBulk { owner: dead.clone(), ..new(&b, 1, BulkAction::Delete, failed()).await };
    let first = made(&b, &asked).await;
    let noted = b.ledger.begin_page(&first, &[job(0), job(1)]).await.unwrap().unwrap();
    assert_eq!(noted.page, [job(0), job(1)]);
    let open = b.ledger.open_bulks().await.unwrap();
    assert_eq!((open.len(), &open[0].owner, open[0].is_owned), (1, &dead, false));
    assert_eq!(open[0].principal, first.principal);
    let taken = b.ledger.take_bulk(&open[0], &heir).await.unwrap().unwrap();
    assert_eq!((&taken.owner, taken.token, &taken.page), (&heir, 2, &noted.page), "it begins with the page");
    assert_eq!(b.ledger.take_bulk(&open[0], &owner("slow")).await.unwrap(), None, "somebody was quicker");
    // The earlier owner writes nothing, and deletes nothing.
    let step = BulkStep { done: 1, ..BulkStep::default() };
    assert_eq!(b.ledger.begin_page(&noted, &[job(2)]).await.unwrap(), None);
    assert_eq!(b.ledger.remove_page(&noted, &[job(0), job(1)], job(1)).await.unwrap(), None);
    assert_eq!(b.ledger.note_progress(&noted, job(1), &step).await.unwrap(), None);
    assert_eq!(b.ledger.finish_bulk(&noted, BulkStatus::Done, None).await.unwrap(), None);
    assert!(b.ledger.job(job(0)).await.unwrap().is_some(), "its transaction was undone");
    let removed = b.ledger.remove_page(&taken, &[job(0), job(1), job(99)], job(1)).await.unwrap().unwrap();
    assert_eq!((removed.done, removed.skipped, removed.behind, removed.page.len()), (2, 1, Some(job(1)), 0));
    assert_eq!(b.ledger.job(job(0)).await.unwrap(), None);
    let step = BulkStep { done: 4, skipped: 5, failed: 6, error: Some("no".to_owned()) };
    let noted = b.ledger.note_progress(&taken, job(2), &step).await.unwrap().unwrap();
    assert_eq!((noted.done, noted.skipped, noted.failed), (6, 6, 6));
    assert_eq!((noted.error.as_deref(), noted.behind), (Some("no"), Some(job(2))));
}

/// A job may be retried or dismissed after the scan that found it.
pub async fn jobs_are_deleted_if_they_are_as_dead_as_the_filter_says_when_their_turn_comes(b: Bench) {
    stock(&b).await;
    let lane = b.lane(session("other"), &owner("lanes")).await;
    let retry = Some(Retry { of: job(0), once: true });
    b.does(of_lane(&lane, [submit(NewJob { retry, ..plain(job(9)) })])).await;
    assert_eq!(b.ledger.dismiss_jobs(&[job(1)], None).await.unwrap(), [job(1)]);
    let of = |dead| JobFilter { dead: Some(dead), ..JobFilter::default() };
    for (n, dead, page, deleted) in [
        (1, true, [0, 1, 2], vec![2]),
        // Of the rest one is retried, one is dismissed and one was cancelled: none is dead.
        (2, true, [0, 1, 3], vec![]),
        (3, false, [0, 1, 3], vec![0, 1, 3]),
    ] {
        let bulk = made(&b, &new(&b, n, BulkAction::Delete, of(dead)).await).await;
        let noted = b.ledger.remove_page(&bulk, &page.map(job), job(page[2])).await.unwrap().unwrap();
        let done = deleted.len() as u64;
        assert_eq!((noted.done, noted.skipped), (done, 3 - done), "dead: {dead}, {page:?}");
        for n in page {
            let is_there = b.ledger.job(job(n)).await.unwrap().is_some();
            assert_eq!(is_there, !deleted.contains(&n), "dead: {dead}, job {n}");
        }
    }
}

/// Others may have dealt with jobs before a scan found them.
pub async fn what_matched_and_was_not_found_is_skipped_when_an_operation_is_done(b: Bench) {
    for (n, status, skipped) in [(1, BulkStatus::Done, 2), (2, BulkStatus::Cancelled, 0)] {
        let bulk = made(&b, &new(&b, n, BulkAction::Retry, failed()).await).await;
        assert_eq!(bulk.matched, 3);
        let step = BulkStep { done: 1, ..BulkStep::default() };
        let noted = b.ledger.note_progress(&bulk, job(1), &step).await.unwrap().unwrap();
        let over = b.ledger.finish_bulk(&noted, status, None).await.unwrap().unwrap();
        assert_eq!((over.done, over.skipped, over.failed), (1, skipped, 0), "{status:?}");
    }
    let more = made(&b, &new(&b, 3, BulkAction::Retry, failed()).await).await;
    let step = BulkStep { done: 4, skipped: 1, ..BulkStep::default() };
    let noted = b.ledger.note_progress(&more, job(1), &step).await.unwrap().unwrap();
    let over = b.ledger.finish_bulk(&noted, BulkStatus::Done, None).await.unwrap().unwrap();
    assert_eq!((over.done, over.skipped), (4, 1), "more matched than were counted");
}

pub async fn a_dead_job_is_not_deleted_with_those_that_are_not(b: Bench) {
    stock(&b).await;
    let filter = JobFilter { dead: Some(false), ..JobFilter::default() };
    let bulk = made(&b, &new(&b, 1, BulkAction::Delete, filter).await).await;
    let noted = b.ledger.remove_page(&bulk, &[job(2), job(3)], job(3)).await.unwrap().unwrap();
    assert_eq!((noted.done, noted.skipped), (1, 1));
    assert!(b.found(job(2)).await.is_dead() && b.ledger.job(job(3)).await.unwrap().is_none());
}

/// The last attempt of a failed stage may still be under way.
pub async fn a_job_that_a_task_waits_for_is_not_deleted_with_others(b: Bench) {
    let mut owner = PlanOwner::started(&b, plan(1, &["x"])).await;
    let (task, its_job) = (owner.state.tasks[0].id, owner.in_flight(0));
    let lane = Lane { id: LaneId::plan(owner.state.id), owner: owner.me.clone(), token: owner.token };
    b.does(of_lane(&lane, [cancel(its_job)])).await;
    let end = StageEnd::Ended(Outcome::Cancelled, "cancelled".into());
    owner.step(&Command::StageEnded { task, job: its_job, end }).await;
    assert_eq!(owner.state.tasks[0].waits_for, Some(its_job));
    let bulk = made(&b, &new(&b, 1, BulkAction::Delete, JobFilter::default()).await).await;
    let noted = b.ledger.remove_page(&bulk, &[its_job], its_job).await.unwrap().unwrap();
    assert_eq!((noted.done, noted.skipped), (0, 1));
    owner.step(&Command::OlderEnded { task, job: its_job }).await;
    let noted = b.ledger.remove_page(&noted, &[its_job], its_job).await.unwrap().unwrap();
    assert_eq!((noted.done, noted.skipped), (1, 1));
    assert_eq!(b.ledger.job(its_job).await.unwrap(), None);
}

pub async fn a_bulk_operation_of_a_live_owner_is_left_to_it(b: Bench) {
    let live = owner("live");
    b.lane(LaneId::instance(&live, 0), &live).await;
    let asked = NewBulk { owner: live.clone(), ..new(&b, 1, BulkAction::Dismiss, failed()).await };
    let first = made(&b, &asked).await;
    let open = b.ledger.open_bulks().await.unwrap();
    assert!(open[0].is_owned);
    let other: InstanceId = owner("other");
    assert_eq!(b.ledger.take_bulk(&open[0], &other).await.unwrap(), None);
    let own = b.ledger.take_bulk(&open[0], &live).await.unwrap().unwrap();
    assert_eq!((&own.owner, own.token), (&live, 2), "itself it may begin anew");
    let step = BulkStep { done: 1, ..BulkStep::default() };
    assert_eq!(
        b.ledger.note_progress(&first, job(1), &step).await.unwrap(),
        None,
        "what it sent before is void"
    );
    assert_eq!(b.ledger.bulk(first.id).await.unwrap(), Some(own.clone()));
    // Unless the owner leaves it: then it writes nothing more, and another one takes it.
    let left = b.ledger.leave_bulk(&own).await.unwrap().unwrap();
    assert_eq!((left.id, left.token, left.status), (own.id, 3, BulkStatus::Running));
    assert_eq!(b.ledger.leave_bulk(&own).await.unwrap(), None);
    assert_eq!(b.ledger.note_progress(&own, job(1), &step).await.unwrap(), None);
    let open = b.ledger.open_bulks().await.unwrap();
    assert!(!open[0].is_owned && open[0].owner != live && open[0].is_left());
    let taken = b.ledger.take_bulk(&open[0], &other).await.unwrap().unwrap();
    assert_eq!((&taken.owner, taken.token), (&other, 4));
    assert!(!b.ledger.open_bulks().await.unwrap()[0].is_left());
}

pub async fn a_bulk_operation_that_cannot_be_read_keeps_its_owner_and_is_in_no_list(b: Bench) {
    for n in 1..=5 {
        let principal = if n == 2 || n == 5 { "later" } else { "me" };
        let asked = new(&b, n, BulkAction::Retry, failed()).await;
        made(&b, &NewBulk { principal: principal.to_owned(), ..asked }).await;
    }
    let later_release = r#"UPDATE bulk SET filter = '{"colour":"blue"}' WHERE principal = 'later'"#;
    b.by_hand(later_release.to_owned()).await;
    let before = b.ledger.open_bulks().await.unwrap();
    for (open, is_readable) in before.iter().zip([true, false, true, true, false]) {
        let taken = b.ledger.take_bulk(open, &owner("heir")).await;
        assert!(if is_readable { matches!(taken, Ok(Some(_))) } else { taken.is_err() }, "{taken:?}");
    }
    let after = b.ledger.open_bulks().await.unwrap();
    assert_eq!((&after[1], &after[4]), (&before[1], &before[4]), "they stay as they are");
    for (before, limit, expected) in
        [(None, 2, &[4, 3][..]), (None, 9, &[4, 3, 1]), (Some(3), 1, &[1]), (Some(3), 2, &[1])]
    {
        let found = b.ledger.bulks(before.map(BulkId::from_u128), limit, None).await.unwrap();
        let expected: Vec<_> = expected.iter().copied().map(BulkId::from_u128).collect();
        assert_eq!(found.iter().map(|record| record.id).collect::<Vec<_>>(), expected, "{before:?} {limit}");
    }
}

pub async fn a_cancelled_bulk_operation_begins_no_page(b: Bench) {
    stock(&b).await;
    let asked = new(&b, 1, BulkAction::Dismiss, failed()).await;
    let first = made(&b, &asked).await;
    let dismissed = b.ledger.remove_page(&first, &[job(0), job(3)], job(3)).await.unwrap().unwrap();
    assert_eq!((dismissed.done, dismissed.skipped), (1, 1));
    assert!(!b.found(job(0)).await.is_dead() && b.found(job(1)).await.is_dead());
    assert!(!b.ledger.open_bulks().await.unwrap()[0].is_cancelling);
    b.ledger.cancel_bulk(first.id, Some(&by())).await.unwrap();
    assert_eq!(b.ledger.bulk(first.id).await.unwrap().unwrap().status, BulkStatus::Cancelling);
    assert!(b.ledger.open_bulks().await.unwrap()[0].is_cancelling);
    assert_eq!(b.ledger.begin_page(&first, &[job(1)]).await.unwrap(), None);
    // What was begun is still noted.
    let noted = b.ledger.note_progress(&first, job(4), &BulkStep::default()).await.unwrap().unwrap();
    assert_eq!(noted.status, BulkStatus::Cancelling);
    let ended = b.ledger.finish_bulk(&noted, BulkStatus::Cancelled, Some("why")).await.unwrap().unwrap();
    assert_eq!((ended.status, ended.error.as_deref()), (BulkStatus::Cancelled, Some("why")));
    b.ledger.cancel_bulk(first.id, Some(&by())).await.unwrap();
    assert_eq!(b.ledger.bulk(first.id).await.unwrap(), Some(ended), "it stays as it ended");
    let audited = b.ledger.audits(&AuditFilter { limit: 10, ..AuditFilter::default() }).await.unwrap();
    assert_eq!(audited.len(), 1, "of what changed nothing there is no entry: {audited:?}");
    assert!(b.ledger.open_bulks().await.unwrap().is_empty());
}

pub async fn old_bulk_operations_are_forgotten_in_steps(b: Bench) {
    for n in 1..=4 {
        let made = made(&b, &new(&b, n, BulkAction::Retry, failed()).await).await;
        if n < 4 {
            b.ledger.finish_bulk(&made, BulkStatus::Done, None).await.unwrap().unwrap();
        }
    }
    assert_eq!(b.ledger.purge_bulks(LONG_MS, 9).await.unwrap(), 0, "young ones stay");
    let now = b.ledger.bulk_now().await.unwrap();
    eventually("they are old", async || b.ledger.bulk_now().await.unwrap() > now.plus_ms(1)).await;
    for left in [2, 1, 0] {
        assert_eq!(b.ledger.purge_bulks(0, 2).await.unwrap(), left);
    }
    assert!(b.ledger.bulk(BulkId::from_u128(4)).await.unwrap().is_some(), "one that is not over stays");
}
