//! A job that retries another is named on that one by the same commit.

use domain::job::{Attempt, Change, NewJob, Outcome, Retry, Revoked};
use domain::{AuditEntry, IdempotencyKey, JobId};
use ledger::{AuditFilter, JobBatch, JobFilter, JobKey, JobVerdict, JobsVerdict, KeyScope, Lane};
use tokio::task::JoinSet;

use crate::bench::{Bench, owner};
use crate::shop::{
    cancel, complete, job, job_made, of_lane, plain, release, said, session, session_id, submit,
    submit_placed, with_key, write,
};

fn retry(n: u64, of: JobId, once: bool) -> Change {
    submit(NewJob { retry: Some(Retry { of, once }), ..plain(job(n)) })
}

/// The job ends without a result.
pub fn fail(id: JobId) -> Change {
    Change::End {
        job: id,
        outcome: Outcome::Failed,
        dead: true,
        attempt: Some((Attempt::new(1), Revoked::NodeLost)),
        reason: String::new(),
    }
}

/// A lane, and jobs that failed there.
async fn dead_jobs(b: &Bench, jobs: impl IntoIterator<Item = JobId> + Clone) -> Lane {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, jobs.clone().into_iter().map(submit_placed))).await;
    b.does(of_lane(&lane, jobs.into_iter().map(fail))).await;
    lane
}

async fn retried_as(b: &Bench, id: JobId) -> Option<JobId> {
    b.found(id).await.finished.unwrap().retried_as
}

fn key(name: &str) -> JobKey {
    let scope = KeyScope { scope: "retry someone".to_owned(), key: IdempotencyKey::parse(name).unwrap() };
    JobKey { scope, body_hash: [3; 32] }
}

pub async fn a_retried_job_names_the_newest_job_that_retries_it(b: Bench) {
    // One of today, and one of a day that has no partition.
    let (today, long_ago) = (job(0), job_made(1, 40));
    let lane = dead_jobs(&b, [today, long_ago]).await;
    for old in [today, long_ago] {
        assert_eq!((retried_as(&b, old).await, b.found(old).await.is_dead()), (None, true));
    }
    b.does(of_lane(&lane, [retry(2, today, true), retry(3, long_ago, true)])).await;
    for (old, new) in [(today, job(2)), (long_ago, job(3))] {
        assert_eq!((retried_as(&b, old).await, b.found(old).await.is_dead()), (Some(new), false));
        assert_eq!(b.found(new).await.retry_of, Some(old));
    }
    b.does(of_lane(&lane, [retry(4, today, false)])).await;
    assert_eq!(retried_as(&b, today).await, Some(job(4)));
    // With an attempt at once, too.
    let Change::Submit(mut new) = retry(5, today, false) else { unreachable!() };
    new.placed = Some(crate::shop::placed());
    b.does(of_lane(&lane, [Change::Submit(new)])).await;
    assert_eq!(retried_as(&b, today).await, Some(job(5)));
}

pub async fn a_job_is_retried_once_by_those_that_ask_for_that(b: Bench) {
    let lane = dead_jobs(&b, [job(0), job(1)]).await;
    b.does(of_lane(&lane, [retry(2, job(0), false)])).await;
    let verdicts =
        b.verdicts(of_lane(&lane, [retry(3, job(0), true), retry(4, job(1), true), cancel(job(2))])).await;
    assert_eq!(verdicts, [JobVerdict::AlreadyRetried, JobVerdict::Written, JobVerdict::Written]);
    assert_eq!(b.ledger.job(job(3)).await.unwrap(), None);
    assert_eq!((retried_as(&b, job(0)).await, retried_as(&b, job(1)).await), (Some(job(2)), Some(job(4))));
    // Nor is one retried once that is gone, or not finished: it cannot be written there.
    let unknown = [retry(5, job_made(99, 3), true), retry(6, job(4), true)];
    assert_eq!(b.verdicts(of_lane(&lane, unknown)).await, [JobVerdict::AlreadyRetried; 2]);
    b.does(of_lane(&lane, [retry(7, job_made(99, 3), false)])).await;
}

pub async fn a_retry_whose_key_is_taken_is_named_nowhere(b: Bench) {
    let lane = dead_jobs(&b, [job(0), job(1)]).await;
    let batch = |writes: Vec<_>| JobBatch { lane: Some(lane.clone()), writes: writes.into() };
    b.does(batch(vec![with_key(retry(2, job(0), true), &key("k"))])).await;
    let verdicts = b.verdicts(batch(vec![with_key(retry(3, job(0), false), &key("k"))])).await;
    assert_eq!((verdicts, retried_as(&b, job(0)).await), (vec![JobVerdict::KeyTaken], Some(job(2))));
    let verdicts = b.verdicts(batch(vec![with_key(retry(4, job(0), true), &key("k"))])).await;
    assert_eq!(verdicts, [JobVerdict::AlreadyRetried], "its key tells what was answered then");
    let verdicts = b.verdicts(batch(vec![
        with_key(retry(5, job(1), true), &key("k")),
        with_key(retry(6, job(0), true), &key("new")),
        write(submit(plain(job(7)))),
    ]));
    let (taken, retried, written) = (JobVerdict::KeyTaken, JobVerdict::AlreadyRetried, JobVerdict::Written);
    assert_eq!((verdicts.await, retried_as(&b, job(1)).await), (vec![taken, retried, written], None));
    let kept = b.ledger.kept_job_keys(&[key("new").scope]).await.unwrap();
    assert_eq!(kept, [], "no key is kept for what was not written");
}

pub async fn a_stale_owner_retries_nothing(b: Bench) {
    let stale = dead_jobs(&b, [job(0)]).await;
    let lane = b.lane(session("s"), &owner("a")).await;
    assert_ne!(stale.token, lane.token);
    let verdict = b.ledger.commit_jobs(of_lane(&stale, [retry(1, job(0), true)])).await.unwrap();
    assert_eq!(verdict, JobsVerdict::Fenced);
    assert_eq!((b.ledger.job(job(1)).await.unwrap(), retried_as(&b, job(0)).await), (None, None));
    b.is_refused("two retries of a job", of_lane(&lane, [retry(1, job(0), true), retry(2, job(0), true)]))
        .await;
}

/// Everybody retries everything once, and tells of slots that are free, in orders of their own.
pub async fn of_many_retries_of_one_job_one_is_written(b: Bench) {
    const JOBS: u64 = 12;
    const RACERS: u64 = 8;
    let _lane = dead_jobs(&b, (0..JOBS).map(job)).await;
    let handles = b.instances(2).await;
    let mut racers = JoinSet::new();
    for racer in 0..RACERS {
        let lane = b.lane(session(&format!("racer{racer}")), &owner("a")).await;
        let ledger = handles[racer as usize % 2].clone();
        racers.spawn(async move {
            let old = |n: u64| if racer % 3 == 0 { n } else { JOBS - 1 - n };
            let batch = (0..JOBS).map(|n| retry(100 + racer * JOBS + n, job(old(n)), true));
            let released = said((0..JOBS).map(|n| release(job(JOBS - 1 - old(n)), 1)));
            let batch = of_lane(&lane, batch);
            let (retried, _) = tokio::join!(ledger.commit_jobs(batch.clone()), ledger.commit_jobs(released));
            let JobsVerdict::Written { jobs, .. } = retried.unwrap() else { panic!("the lease is held") };
            let made = batch.writes.iter().zip(jobs).filter(|(_, verdict)| *verdict == JobVerdict::Written);
            made.map(|(write, _)| write.change.job()).collect::<Vec<_>>()
        });
    }
    let mut made: Vec<_> = racers.join_all().await.concat();
    let mut named = Vec::new();
    for n in 0..JOBS {
        named.extend(retried_as(&b, job(n)).await);
    }
    made.sort_unstable();
    named.sort_unstable();
    assert_eq!((made.len() as u64, &made), (JOBS, &named));
    for handle in handles.iter().skip(1) {
        handle.close().await;
    }
    drop(handles);
    assert_eq!(b.deadlocks_at_last().await, 0);
}

pub async fn only_dead_jobs_are_dismissed_and_then_they_are_not_dead(b: Bench) {
    let lane = dead_jobs(&b, (0..4).map(job)).await;
    b.does(of_lane(&lane, [submit_placed(job(4)), submit(plain(job(5))), retry(6, job(1), true)])).await;
    b.does(said([complete(job(4), 1, "1")])).await;
    let asked: Vec<_> = [3, 0, 1, 4, 5, 99].map(job).into();
    let mut dismissed = b.ledger.dismiss_jobs(&asked, None).await.unwrap();
    dismissed.sort_unstable();
    assert_eq!(dismissed, [job(0), job(3)]);
    assert_eq!(b.ledger.dismiss_jobs(&asked, None).await.unwrap(), []);
    assert_eq!(b.ledger.dismiss_jobs(&[], None).await.unwrap(), []);
    let at = async |n: u64| b.found(job(n)).await.finished.unwrap().dismissed_at;
    assert!(at(0).await.is_some() && at(3).await.is_some() && at(1).await.is_none() && at(2).await.is_none());
    assert!(!b.found(job(0)).await.is_dead());
    let listed = async |dead: bool| {
        let filter = JobFilter { dead: Some(dead), limit: 100, ..JobFilter::default() };
        b.ledger.jobs(&filter).await.unwrap().iter().rev().map(|record| record.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(true).await, [job(2)]);
    assert_eq!(listed(false).await, [0, 1, 3, 4, 5, 6].map(job));
    // It can still be retried by its id.
    assert_eq!(b.verdicts(of_lane(&lane, [retry(7, job(0), true)])).await, [JobVerdict::Written]);
}

pub async fn finished_jobs_are_deleted_and_their_places_are_not_given_again(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.ledger.open_session(&session_id("s"), &crate::sessions::spec(), None, None).await.unwrap();
    let in_session = |n: u64| {
        let mut new = plain(job(n));
        (new.seq, new.spec.session) = (Some(n), Some(session_id("s")));
        new
    };
    b.does(of_lane(&lane, (1..4).map(|n| submit(in_session(n))))).await;
    b.does(of_lane(&lane, (2..4).map(|n| cancel(job(n))))).await;
    let (today, long_ago) = (job(5), job_made(6, 40));
    b.does(of_lane(&lane, [submit(plain(today)), submit(plain(long_ago))])).await;
    b.does(of_lane(&lane, [cancel(today), cancel(long_ago)])).await;
    let by = AuditEntry::new("operator", "delete_job", "job:many");
    let mut deleted =
        b.ledger.delete_jobs(&[job(3), long_ago, job(1), today, job(99)], Some(&by)).await.unwrap();
    deleted.sort_unstable();
    let mut expected = vec![job(3), today, long_ago];
    expected.sort_unstable();
    assert_eq!(deleted, expected, "an unfinished one stays");
    for gone in expected {
        assert_eq!(b.ledger.job(gone).await.unwrap(), None);
    }
    assert_eq!(b.ledger.delete_jobs(&[today], Some(&by)).await.unwrap(), []);
    assert_eq!(b.ledger.delete_jobs(&[], None).await.unwrap(), []);
    let of_deletions =
        AuditFilter { subject: Some("job:many".to_owned()), limit: 10, ..AuditFilter::default() };
    assert_eq!(b.ledger.audits(&of_deletions).await.unwrap().len(), 1, "nothing was deleted the second time");
    assert_eq!((b.found(job(1)).await.seq, b.found(job(2)).await.seq), (Some(1), Some(2)));
    assert_eq!(b.ledger.lane_seq(&lane.id).await.unwrap(), 3);
}

pub async fn lists_tell_dead_and_retried_jobs_from_others(b: Bench) {
    let lane = dead_jobs(&b, (0..4).map(job)).await;
    b.does(of_lane(&lane, [submit_placed(job(4)), submit_placed(job(5)), submit(plain(job(6)))])).await;
    b.does(said([complete(job(4), 1, "1")])).await;
    b.does(of_lane(&lane, [cancel(job(5)), retry(7, job(1), true), retry(8, job(4), true)])).await;
    // The newest is the stage of a plan.
    let mut stage = plain(job(9));
    stage.spec.stage = Some("{}".into());
    b.does(of_lane(&lane, [submit(NewJob { placed: Some(crate::shop::placed()), ..stage })])).await;
    b.does(of_lane(&lane, [fail(job(9))])).await;
    let newest = async |without_stages: bool| {
        let filter = JobFilter { dead: Some(true), without_stages, limit: 1, ..JobFilter::default() };
        b.ledger.jobs(&filter).await.unwrap()[0].id
    };
    assert_eq!((newest(false).await, newest(true).await), (job(9), job(3)));
    let listed = async |dead: Option<bool>, retried: Option<bool>, outcome: Option<Outcome>| {
        let without_stages = true;
        let filter = JobFilter { dead, retried, outcome, without_stages, limit: 100, ..JobFilter::default() };
        let jobs = b.ledger.jobs(&filter).await.unwrap();
        assert!(jobs.iter().all(|record| dead.is_none_or(|dead| record.is_dead() == dead)));
        jobs.iter().rev().map(|record| record.id).collect::<Vec<_>>()
    };
    let jobs = |numbers: &[u64]| numbers.iter().map(|n| job(*n)).collect::<Vec<_>>();
    assert_eq!(listed(Some(true), None, None).await, jobs(&[0, 2, 3]));
    assert_eq!(listed(Some(false), None, None).await, jobs(&[1, 4, 5, 6, 7, 8]));
    assert_eq!(listed(None, Some(true), None).await, jobs(&[1, 4]));
    assert_eq!(listed(None, Some(false), None).await, jobs(&[0, 2, 3, 5, 6, 7, 8]));
    assert_eq!(listed(Some(true), Some(true), None).await, []);
    assert_eq!(listed(Some(false), None, Some(Outcome::Failed)).await, jobs(&[1]));
    assert_eq!(listed(None, Some(false), Some(Outcome::Failed)).await, jobs(&[0, 2, 3]));
    assert_eq!(listed(None, Some(true), Some(Outcome::Succeeded)).await, jobs(&[4]));
}
