//! Lanes: who may write in one, and what its owner, or who looks for one without an owner, is given to read.

use std::time::Instant;

use domain::job::{
    Attempt, Change, Due, Ended, NewJob, OnRecovery, Outcome, Priority, Requirements, Revoked, Route, Spec,
    State,
};
use domain::{InstanceId, JobId, Label, LaneId, PoolName, TenantId};
use ledger::{
    HeldAttempt, JobVerdict, JobsVerdict, Lane, LiveJob, OrphanedLane, PromotedJob, UnderWay, Unwritten,
    WaitingGroup,
};

use crate::bench::{Bench, LONG_MS, eventually, owner};
use crate::shop::{
    cancel, complete, dispatch, instance_lane, job, node, of_lane, plain, run, said, session, spec, submit,
    submit_placed,
};

fn revoke(job: JobId) -> Change {
    let (attempt, why) = (Attempt::new(1), Revoked::NodeLost);
    Change::Revoke { job, attempt, why, reason: String::new(), due_in_ms: 0 }
}

pub async fn a_stale_owner_writes_nothing_of_its_lane(b: Bench) {
    let old = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&old, [submit_placed(job(0)), submit(plain(job(1)))])).await;
    b.ledger.release(old.id.lease(), &old.owner, old.token).await.unwrap();
    let written = |verdict| assert_eq!(verdict, JobsVerdict::Fenced);
    let changes = || {
        let late = complete(job(0), 1, "late");
        [submit(plain(job(2))), dispatch(job(1), 1), revoke(job(0)), cancel(job(0)), late]
    };
    for change in changes() {
        written(b.ledger.commit_jobs(of_lane(&old, [change])).await.unwrap());
    }
    let new = b.lane(session("s"), &owner("b")).await;
    for change in changes() {
        written(b.ledger.commit_jobs(of_lane(&old, [change])).await.unwrap());
    }
    let other_token = Lane { token: new.token, ..old.clone() };
    let other_owner = Lane { owner: new.owner.clone(), ..old };
    for change in changes() {
        written(b.ledger.commit_jobs(of_lane(&other_token, [change.clone()])).await.unwrap());
        written(b.ledger.commit_jobs(of_lane(&other_owner, [change])).await.unwrap());
    }
    assert_eq!(b.ledger.job(job(2)).await.unwrap(), None);
    assert_eq!(
        (b.found(job(0)).await.state, b.found(job(1)).await.state),
        (State::Dispatched, State::Created)
    );
    // Its node's result counts under every owner of the lane.
    b.does(said([complete(job(0), 1, "1")])).await;
    b.does(of_lane(&new, [dispatch(job(1), 1)])).await;
}

pub async fn an_owner_writes_nothing_of_another_lane(b: Bench) {
    let (mine, other) = (b.lane(session("s"), &owner("a")).await, b.lane(session("t"), &owner("a")).await);
    b.does(of_lane(&other, [submit_placed(job(0)), submit(plain(job(1)))])).await;
    let ended = complete(job(0), 1, "1");
    let changes = [dispatch(job(1), 1), revoke(job(0)), cancel(job(0)), cancel(job(1)), ended];
    for change in changes {
        assert_eq!(b.verdicts(of_lane(&mine, [change])).await, [JobVerdict::Stale]);
    }
}

/// A job that is held once its lane has a new owner.
fn to_be_held(id: JobId) -> NewJob {
    let mut new = plain(id);
    new.spec.on_recovery = OnRecovery::Hold;
    new
}

fn fail(job: JobId, due_in_ms: u64) -> Change {
    let (attempt, node, ended, error) = (Attempt::new(1), node("n"), Ended::Failed, "broken".to_owned());
    Change::Fail { job, attempt, node, ended, error, due_in_ms: Some(due_in_ms), dead: false }
}

pub async fn a_job_to_be_held_is_never_dispatched_again_once_its_lane_had_another_owner(b: Bench) {
    let first = b.lane(session("s"), &owner("a")).await;
    let placed = |n| NewJob { placed: Some(crate::shop::placed()), ..to_be_held(job(n)) };
    // Job 0 waits, job 1 is delayed, jobs 2 to 5 are with their node; job 6 is like any other.
    b.does(of_lane(&first, [submit(to_be_held(job(0))), submit(plain(job(6)))])).await;
    b.does(of_lane(&first, [submit(NewJob { due: Due::InMs(1), ..to_be_held(job(1)) })])).await;
    b.does(of_lane(&first, (2..6).map(|n| submit(placed(n))))).await;
    // Before a new owner comes they are like any other, also for an owner that acquires anew.
    let anew = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&anew, [dispatch(job(0), 1)])).await;
    b.does(of_lane(&anew, [revoke(job(0))])).await;
    assert_eq!(b.found(job(0)).await.spec.on_recovery, OnRecovery::Hold);
    b.ledger.release(anew.id.lease(), &anew.owner, anew.token).await.unwrap();

    let second = b.lane(session("s"), &owner("b")).await;
    assert_eq!(b.ledger.hold_jobs(&second).await.unwrap(), Ok(6));
    assert_eq!(b.ledger.hold_jobs(&second).await.unwrap(), Ok(0));
    // A failure, a lost node and a late result, of attempts that were under way.
    b.does(said([fail(job(2), 0)])).await;
    b.does(of_lane(&second, [revoke(job(3))])).await;
    b.does(said([complete(job(4), 1, "1")])).await;
    let late = b.found(job(4)).await.finished.unwrap();
    assert_eq!((late.outcome, late.result.as_deref()), (Outcome::Succeeded, Some("1")));
    b.ledger.release(second.id.lease(), &second.owner, second.token).await.unwrap();

    let third = b.lane(session("s"), &owner("c")).await;
    b.does(of_lane(&third, [dispatch(job(6), 1)])).await;
    b.does(said([complete(job(6), 1, "1"), run(job(5), 1)])).await;
    for n in [0, 1, 2, 3] {
        let attempt = b.found(job(n)).await.attempt.get() + 1;
        // On PostgreSQL a batch that only dispatches is written by another statement than one that cancels as well.
        let verdicts = b.verdicts(of_lane(&third, [dispatch(job(n), attempt)])).await;
        assert_eq!(verdicts, [JobVerdict::Stale], "job {n}");
        let verdicts = b.verdicts(of_lane(&third, [dispatch(job(n), attempt), cancel(job(99))])).await;
        assert_eq!(verdicts, [JobVerdict::Stale, JobVerdict::Stale], "job {n}");
        let held = b.found(job(n)).await;
        assert_eq!((held.state, held.due_at), (State::Created, None), "job {n}");
        assert_eq!(held.spec.on_recovery, OnRecovery::Held, "job {n}");
    }
    assert_eq!(b.ledger.waiting(&third.id, &WaitingGroup::default(), 10).await.unwrap(), []);
    assert_eq!(b.ledger.coming_due(&third.id, None, u64::MAX, 10).await.unwrap(), []);
    let [in_flight] = &b.ledger.in_flight(&third.id, None, 10).await.unwrap()[..] else {
        panic!("job 5 alone is with its node");
    };
    assert_eq!((in_flight.id, in_flight.spec.on_recovery), (job(5), OnRecovery::Held));
    b.does(of_lane(&third, [cancel(job(5))])).await;
    b.ledger.release(third.id.lease(), &third.owner, third.token).await.unwrap();
    let (left, _) = b.ledger.orphaned_lanes(&owner("looks"), None, LONG_MS, 10).await.unwrap();
    assert_eq!(left, [], "nobody adopts a lane for held jobs alone");

    // A person may call them off.
    let fourth = b.lane(session("s"), &owner("d")).await;
    b.does(of_lane(&fourth, [cancel(job(0))])).await;
    let ended = b.found(job(0)).await;
    assert_eq!((ended.state, ended.due_at), (State::Finished, None));
}

pub async fn only_the_owner_of_a_lane_holds_its_jobs(b: Bench) {
    let (mine, other) = (b.lane(session("s"), &owner("a")).await, b.lane(session("t"), &owner("a")).await);
    b.does(of_lane(&mine, [submit(to_be_held(job(0)))])).await;
    assert_eq!(b.ledger.hold_jobs(&other).await.unwrap(), Ok(0));
    b.ledger.release(mine.id.lease(), &mine.owner, mine.token).await.unwrap();
    assert_eq!(b.ledger.hold_jobs(&mine).await.unwrap(), Err(Unwritten::Fenced));
    assert_eq!(b.found(job(0)).await.spec.on_recovery, OnRecovery::Hold);
    let mut held = to_be_held(job(1));
    held.spec.on_recovery = OnRecovery::Held;
    b.is_refused("a submit that is held", of_lane(&other, [submit(held)])).await;
}

pub async fn jobs_in_flight_are_paged_by_lane_and_listed_by_node(b: Bench) {
    let (mine, other) = (b.lane(session("s"), &owner("a")).await, b.lane(session("t"), &owner("a")).await);
    b.does(of_lane(&mine, (0..5).map(|n| submit_placed(job(n))))).await;
    b.does(of_lane(&mine, [submit(plain(job(5)))])).await;
    b.does(of_lane(&other, [submit_placed(job(6))])).await;
    b.does(said([run(job(1), 1), complete(job(2), 1, "1")])).await;
    let mut seen: Vec<LiveJob> = vec![];
    loop {
        let after = seen.last().map(|last| last.id);
        let page = b.ledger.in_flight(&mine.id, after, 2).await.unwrap();
        assert!(page.len() <= 2);
        if page.is_empty() {
            break;
        }
        seen.extend(page);
    }
    let states: Vec<_> = seen.iter().map(|live| (live.id, live.newest.state)).collect();
    let (dispatched, running) = (State::Dispatched, State::Running);
    assert_eq!(states, [(job(0), dispatched), (job(1), running), (job(3), dispatched), (job(4), dispatched)]);
    assert!(seen.iter().all(|live| live.placed == Some(crate::shop::placed())));
    let mut under_way = vec![];
    loop {
        let after = under_way.last().map(|last: &UnderWay| last.job);
        let page = b.ledger.under_way(&mine.id, after, 3).await.unwrap();
        assert!(page.len() <= 3);
        if page.is_empty() {
            break;
        }
        under_way.extend(page);
    }
    let of = |live: &LiveJob| UnderWay { job: live.id, attempt: Attempt::new(1), state: live.newest.state };
    assert_eq!(under_way, seen.iter().map(of).collect::<Vec<_>>());
    let on = b.ledger.attempts_on(&node("n")).await.unwrap();
    let holder = crate::shop::placed().holder;
    let held = |live: &LiveJob| HeldAttempt {
        job: live.id,
        lane: live.lane.clone(),
        attempt: Attempt::new(1),
        state: live.newest.state,
        holder: holder.clone(),
    };
    let of_both: Vec<_> = on.iter().map(|held| held.job).collect();
    assert_eq!(of_both, [0, 1, 3, 4, 6].map(job));
    for live in &seen {
        assert!(on.contains(&held(live)), "{on:?}");
    }
    assert!(b.ledger.attempts_on(&node("other")).await.unwrap().is_empty());
    // Of jobs that are finished, that wait, or that nobody knows, nothing is under way.
    let of = b.ledger.attempts_of(&[6, 2, 5, 99, 1].map(job)).await.unwrap();
    assert_eq!(of, [1, 6].map(|n| (job(n), Attempt::new(1))));
    assert!(b.ledger.attempts_of(&[]).await.unwrap().is_empty());
    let live = b.ledger.live_jobs(&[6, 5, 99, 1].map(job)).await.unwrap();
    assert_eq!(
        live.iter().map(|live| live.id).collect::<Vec<_>>(),
        [1, 5, 6].map(job),
        "all that are not finished"
    );
    let seen = seen.into_iter().find(|live| live.id == job(1)).unwrap();
    assert_eq!(live[0], LiveJob { running_for_ms: live[0].running_for_ms, ..seen });
    assert!(b.ledger.live_jobs(&[]).await.unwrap().is_empty());
}

pub async fn how_long_an_attempt_has_been_running_is_read_with_it(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, (0..2).map(|n| submit_placed(job(n))))).await;
    b.does(of_lane(&lane, [submit(plain(job(2)))])).await;
    let read = async || {
        let of = |jobs: Vec<LiveJob>| jobs.iter().map(|job| job.running_for_ms).collect::<Vec<_>>();
        let in_flight = b.ledger.in_flight(&lane.id, None, 10).await.unwrap();
        (of(in_flight), of(b.ledger.live_jobs(&[0, 1, 2].map(job)).await.unwrap()))
    };
    assert_eq!(read().await, (vec![0, 0], vec![0, 0, 0]));
    let begun = Instant::now();
    b.does(said([run(job(0), 1)])).await;
    eventually("time has passed", async || read().await.0[0] >= 20).await;
    let (in_flight, live) = read().await;
    // The database has a clock of its own.
    let ran_ms = begun.elapsed().as_millis() as u64 + 1_000;
    assert!(in_flight[0] <= live[0] && live[0] <= ran_ms, "{in_flight:?} {live:?} {ran_ms}");
    assert_eq!((&in_flight[1..], &live[1..]), (&[0][..], &[0, 0][..]));
    b.does(of_lane(&lane, [revoke(job(0))])).await;
    b.does(of_lane(&lane, [dispatch(job(0), 2)])).await;
    assert_eq!(read().await, (vec![0, 0], vec![0, 0, 0]), "it is another attempt");
}

pub async fn a_job_is_read_with_the_node_of_its_last_attempt_that_is_over(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, (0..3).map(|n| submit_placed(job(n))))).await;
    let nodes = |jobs: Vec<LiveJob>| jobs.into_iter().map(|job| job.last_node).collect::<Vec<_>>();
    let live = async || nodes(b.ledger.live_jobs(&[0, 1, 2].map(job)).await.unwrap());
    assert_eq!(live().await, [None, None, None]);
    b.does(of_lane(&lane, [revoke(job(0))])).await;
    b.does(said([fail(job(1), LONG_MS)])).await;
    let last = Some(node("n"));
    assert_eq!(live().await, [last.clone(), last.clone(), None]);
    let waiting = b.ledger.waiting(&lane.id, &WaitingGroup::default(), 10).await.unwrap();
    assert_eq!(nodes(waiting), std::slice::from_ref(&last));
    let coming = b.ledger.coming_due(&lane.id, None, u64::MAX, 10).await.unwrap();
    assert_eq!(nodes(coming.into_iter().map(|(job, _)| job).collect()), [last]);
}

pub async fn who_holds_a_node_is_noted_with_the_attempts_that_it_has(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, (0..3).map(|n| submit_placed(job(n))))).await;
    b.does(of_lane(&lane, [submit(plain(job(3)))])).await;
    b.does(said([run(job(1), 1)])).await;
    // What is not its newest attempt stays as it is, and so does what another node has.
    let listed = [(2, 1), (0, 2), (1, 1), (3, 1), (99, 1)].map(|(n, a)| (job(n), Attempt::new(a)));
    for _ in 0..2 {
        b.ledger.note_holder(&node("n"), &owner("moved-1"), &listed).await.unwrap();
        b.ledger.note_holder(&node("other"), &owner("liar-1"), &listed).await.unwrap();
    }
    b.ledger.note_holder(&node("n"), &owner("moved-2"), &[]).await.unwrap();
    let held = |n, holder: &str| HeldAttempt {
        job: job(n),
        lane: lane.id.clone(),
        attempt: Attempt::new(1),
        state: if n == 1 { State::Running } else { State::Dispatched },
        holder: owner(holder),
    };
    let on = b.ledger.attempts_on(&node("n")).await.unwrap();
    assert_eq!(on, [held(0, "holder"), held(1, "moved-1"), held(2, "moved-1")]);
    // Its owner writes on as before, and so does who says its result.
    b.does(of_lane(&lane, [revoke(job(2))])).await;
    b.does(said([complete(job(1), 1, "1")])).await;
    assert_eq!(b.ledger.attempts_on(&node("n")).await.unwrap(), [held(0, "holder")]);
}

fn group(pool: Option<&str>, tenant: Option<&str>) -> WaitingGroup {
    let needs =
        Requirements { pool: pool.map(|pool| PoolName::parse(pool).unwrap()), ..Requirements::default() };
    WaitingGroup { tenant: tenant.map(|tenant| TenantId::parse(tenant).unwrap()), needs }
}

fn requiring(group: &WaitingGroup, labels: &[&str], route: Option<&str>) -> WaitingGroup {
    let mut group = group.clone();
    group.needs.requires = labels.iter().map(|label| Label::parse(label).unwrap()).collect();
    group.needs.route = route.map(|route| Route::parse(route).unwrap());
    group
}

fn in_group(id: JobId, group: &WaitingGroup, priority: i64, seq: Option<u64>) -> NewJob {
    let mut new = plain(id);
    (new.spec.needs, new.spec.tenant) = (group.needs.clone(), group.tenant.clone());
    (new.spec.priority, new.seq) = (Priority::new(priority).unwrap(), seq);
    new
}

pub async fn groups_that_wait_are_found_one_by_one(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let groups = [
        group(None, None),
        group(None, Some("t1")),
        requiring(&group(None, Some("t1")), &["cpu", "gpu"], None),
        requiring(&group(None, Some("t1")), &["cpu"], None),
        requiring(&group(None, Some("t1")), &["cpu"], Some("de:en")),
        requiring(&group(None, Some("t1")), &["cpu"], Some("de:fr")),
        requiring(&group(None, Some("t1")), &["gpu"], Some("de:en")),
        group(None, Some("t10")),
        group(Some("p-2"), None),
        group(Some("p-2"), Some("T")),
        group(Some("p"), None),
        requiring(&group(Some("p"), None), &[], Some("de:en")),
        group(Some("p"), Some("t1")),
    ];
    let mut n = 0;
    for group in &groups {
        let jobs = (n..n + 20).map(|n| submit(in_group(job(n), group, 0, None)));
        b.does(of_lane(&lane, jobs)).await;
        n += 20;
    }
    // Neither what is delayed, nor what has a node, nor another lane's makes a group.
    let elsewhere = group(Some("elsewhere"), None);
    let delayed = NewJob { due: Due::InMs(LONG_MS), ..in_group(job(900), &elsewhere, 0, None) };
    b.does(of_lane(&lane, [submit(delayed), submit(in_group(job(901), &elsewhere, 0, None))])).await;
    b.does(of_lane(&lane, [dispatch(job(901), 1)])).await;
    let other = b.lane(session("s2"), &owner("a")).await;
    b.does(of_lane(&other, [submit(in_group(job(902), &elsewhere, 0, None))])).await;
    let groups_after = async |after: Option<&WaitingGroup>, limit| {
        b.ledger.waiting_groups(&lane.id, after, limit).await.unwrap()
    };
    assert_eq!(groups_after(None, 100).await, groups);
    for (n, after) in groups.iter().enumerate() {
        assert_eq!(
            groups_after(Some(after), 2).await,
            groups[n + 1..].iter().take(2).cloned().collect::<Vec<_>>()
        );
    }
    let gone = group(Some("o"), Some("zzz"));
    assert_eq!(
        groups_after(Some(&gone), 1).await,
        [group(Some("p-2"), None)],
        "a group that is gone bounds too"
    );
}

pub async fn delayed_jobs_that_are_due_are_promoted_by_their_owner_alone(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let gpu = requiring(&group(Some("p"), Some("t")), &["gpu"], Some("de:en"));
    let delayed = |n, group: &WaitingGroup, ms| {
        submit(NewJob { due: Due::InMs(ms), ..in_group(job(n), group, 0, None) })
    };
    let held = NewJob { due: Due::InMs(1), ..plain(job(5)) };
    let held = NewJob { spec: Spec { on_recovery: OnRecovery::Hold, ..held.spec.clone() }, ..held };
    let new =
        [delayed(0, &group(None, None), 2), delayed(1, &gpu, 1), delayed(2, &gpu, LONG_MS), submit(held)];
    b.does(of_lane(&lane, new)).await;
    assert_eq!(b.ledger.hold_jobs(&lane).await.unwrap(), Ok(1));
    let coming = async || b.ledger.coming_due(&lane.id, None, 0, 9).await.unwrap().len();
    eventually("two are due", async || coming().await == 2).await;
    let stale = Lane { owner: owner("b"), ..lane.clone() };
    assert_eq!(b.ledger.promote_jobs(&stale, 9).await.unwrap(), Err(Unwritten::Fenced));
    assert_eq!(coming().await, 2);
    let promoted = async || b.ledger.promote_jobs(&lane, 1).await.unwrap().unwrap();
    // By their times, and only what is due.
    let one = |n, group: &WaitingGroup| PromotedJob {
        job: job(n),
        priority: Priority::default(),
        group: group.clone(),
    };
    assert_eq!(promoted().await, [one(1, &gpu)]);
    assert_eq!(promoted().await, [one(0, &WaitingGroup::default())]);
    assert_eq!(promoted().await, []);
    let waiting = b.ledger.waiting(&lane.id, &gpu, 9).await.unwrap();
    assert_eq!(waiting.iter().map(|live| (live.id, live.due_at)).collect::<Vec<_>>(), [(job(1), None)]);
    b.does(of_lane(&lane, [dispatch(job(1), 1), dispatch(job(0), 1)])).await;
}

pub async fn a_page_of_a_group_has_no_job_that_needs_something_else(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let plain = group(Some("p"), Some("t"));
    let groups = [
        plain.clone(),
        requiring(&plain, &["gpu"], None),
        requiring(&plain, &["gpu"], Some("de:en")),
        requiring(&plain, &[], Some("de:en")),
    ];
    for (n, group) in (0..).zip(&groups) {
        b.does(of_lane(&lane, [submit(in_group(job(n), group, 0, None))])).await;
    }
    for (n, group) in (0..).zip(&groups) {
        let jobs = b.ledger.waiting(&lane.id, group, 9).await.unwrap();
        assert_eq!(jobs.iter().map(|live| live.id).collect::<Vec<_>>(), [job(n)], "{group:?}");
    }
}

pub async fn a_group_waits_by_priority_then_place_then_age(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let g = group(Some("p"), Some("t"));
    let jobs =
        [(0, 0, Some(2)), (1, 0, Some(1)), (2, 5, Some(9)), (3, -5, Some(3)), (4, 0, None), (5, 0, None)];
    let new = jobs.map(|(n, priority, seq)| submit(in_group(job(n), &g, priority, seq)));
    b.does(of_lane(&lane, new)).await;
    let waiting = async |limit| {
        let jobs = b.ledger.waiting(&lane.id, &g, limit).await.unwrap();
        jobs.iter().map(|live| live.id).collect::<Vec<_>>()
    };
    assert_eq!(waiting(9).await, [2, 4, 5, 1, 0, 3].map(job));
    assert_eq!(waiting(2).await, [2, 4].map(job));
    b.does(of_lane(&lane, [dispatch(job(2), 1), cancel(job(4))])).await;
    assert_eq!(waiting(2).await, [5, 1].map(job));
    // It comes back to where it was.
    b.does(of_lane(&lane, [revoke(job(2))])).await;
    assert_eq!(waiting(1).await, [job(2)]);
    assert!(b.ledger.waiting(&lane.id, &group(Some("p"), None), 9).await.unwrap().is_empty());
}

pub async fn delayed_jobs_come_when_they_are_due(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let delayed = |n, ms| submit(NewJob { due: Due::InMs(ms), ..plain(job(n)) });
    let answer =
        b.ledger.commit_jobs(of_lane(&lane, [delayed(0, 50_000), delayed(1, 30), delayed(2, 0)])).await;
    let Ok(JobsVerdict::Written { at, .. }) = answer else { panic!("{answer:?}") };
    let moment = |n, at| submit(NewJob { due: Due::At(at), ..plain(job(n)) });
    b.does(of_lane(&lane, [moment(3, at), moment(4, at.plus_ms(40_000))])).await;
    let waiting = b.ledger.waiting(&lane.id, &WaitingGroup::default(), 9).await.unwrap();
    let ids: Vec<_> = waiting.iter().map(|live| live.id).collect();
    assert_eq!(ids, [job(2), job(3)], "what is due when it is written is not delayed");
    let coming = async |within_ms| {
        let coming = b.ledger.coming_due(&lane.id, None, within_ms, 9).await.unwrap();
        coming.into_iter().map(|(live, in_ms)| (live.id, in_ms)).collect::<Vec<_>>()
    };
    eventually("the first is due", async || coming(0).await == [(job(1), 0)]).await;
    let all = coming(u64::MAX).await;
    let ids: Vec<_> = all.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [job(1), job(4), job(0)]);
    let due = b.found(job(4)).await.due_at.unwrap();
    let behind = b.ledger.coming_due(&lane.id, Some((due, job(4))), u64::MAX, 9).await.unwrap();
    assert_eq!(behind.iter().map(|(live, _)| live.id).collect::<Vec<_>>(), [job(0)]);
    assert!(all[1].1 > 0 && all[1].1 <= 40_000 && all[2].1 > all[1].1, "{all:?}");
    b.does(of_lane(&lane, [dispatch(job(1), 1)])).await;
    let again = Change::Fail {
        job: job(1),
        attempt: Attempt::new(1),
        node: node("n"),
        ended: Ended::Failed,
        error: String::new(),
        due_in_ms: Some(45_000),
        dead: false,
    };
    b.does(said([again])).await;
    let ids: Vec<_> = coming(LONG_MS).await.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [job(4), job(1), job(0)], "a retry is delayed too");
    assert!(b.found(job(1)).await.due_at > Some(at.plus_ms(40_000)));
}

pub async fn lanes_without_a_live_owner_are_found(b: Bench) {
    let (alive, dead) = (owner("alive"), owner("dead"));
    let lives = instance_lane;
    b.lane(lives(&alive), &alive).await;
    let dead_life = b.lane(lives(&dead), &dead).await;
    let mut lanes = vec![];
    for (n, (name, who)) in [("kept", &alive), ("lost", &dead), ("released", &alive)].into_iter().enumerate()
    {
        let lane = b.lane(session(name), who).await;
        b.does(of_lane(&lane, [submit_placed(job(n as u64))])).await;
        lanes.push(lane);
    }
    let released = &lanes[2];
    b.ledger.release(released.id.lease(), &released.owner, released.token).await.unwrap();
    let later = b.lane(session("later"), &alive).await;
    b.does(of_lane(&later, [submit(NewJob { due: Due::InMs(LONG_MS), ..plain(job(7)) })])).await;
    b.ledger.release(later.id.lease(), &later.owner, later.token).await.unwrap();
    let done = b.lane(session("done"), &alive).await;
    b.does(of_lane(&done, [submit_placed(job(8)), cancel(job(9))].into_iter().take(1))).await;
    b.does(said([complete(job(8), 1, "1")])).await;
    b.ledger.release(done.id.lease(), &done.owner, done.token).await.unwrap();
    b.does(of_lane(&dead_life, [submit(plain(job(10)))])).await;

    let left =
        async |within_ms| b.ledger.orphaned_lanes(&owner("looks"), None, within_ms, 100).await.unwrap();
    let lane = |lane: LaneId, owner: Option<&InstanceId>| OrphanedLane { lane, owner: owner.cloned() };
    let (free, later) = (lane(session("released"), None), lane(session("later"), None));
    assert_eq!(left(0).await, (vec![free.clone()], None));
    assert_eq!(left(LONG_MS * 2).await, (vec![later, free.clone()], None));
    // It dies: its own lease ends, and with it whatever it owned is nobody's who lives.
    b.ledger.release(dead_life.id.lease(), &dead, dead_life.token).await.unwrap();
    let its_own = lane(lives(&dead), None);
    let lost = lane(session("lost"), Some(&dead));
    assert_eq!(left(0).await, (vec![its_own, lost.clone(), free.clone()], None));
    // A survivor takes the dead one's lane: it is that one's now.
    b.lane(lives(&dead), &alive).await;
    assert_eq!(left(0).await, (vec![lost.clone(), free.clone()], None));
    // Page by page, each with as many lanes looked at.
    let (mut seen, mut after, mut pages) = (vec![], None, 0);
    loop {
        let (page, next) = b.ledger.orphaned_lanes(&owner("looks"), after.as_ref(), 0, 2).await.unwrap();
        seen.extend(page);
        (after, pages) = (next, pages + 1);
        if after.is_none() {
            break;
        }
    }
    assert_eq!((seen, pages), (vec![lost, free], 3), "five lanes have unfinished jobs");
}

pub async fn lanes_of_one_lease_are_written_side_by_side_and_fenced_together(b: Bench) {
    let a = owner("a");
    let first = b.lane(LaneId::instance(&a, 0), &a).await;
    let lane = |number: u16, from: &Lane| Lane { id: LaneId::instance(&a, number), ..from.clone() };
    let all = |from: &Lane, jobs: Vec<u64>| {
        let batches = jobs.into_iter().map(|n| of_lane(&lane(n as u16 % 4, from), [submit(plain(job(n)))]));
        futures_util::future::join_all(batches.map(|batch| b.ledger.commit_jobs(batch)))
    };
    for verdict in all(&first, (0..40).collect()).await {
        assert!(matches!(verdict.unwrap(), JobsVerdict::Written { .. }));
    }
    for number in 0..4 {
        let waiting =
            b.ledger.waiting(&lane(number, &first).id, &WaitingGroup::default(), 100).await.unwrap();
        assert_eq!(waiting.len(), 10, "lane {number} has its own jobs");
    }
    // One of them acquires the lease anew: batches with the old token are fenced, whatever shares their train. One lane
    // has the old token and three the new one, so that the order of a lane keeps them off no train.
    let anew = b.lane(first.id.clone(), &a).await;
    let of_first = |n: &u64| n.is_multiple_of(4);
    let (old, new) = tokio::join!(
        all(&first, (40..80).filter(of_first).collect()),
        all(&anew, (40..80).filter(|n| !of_first(n)).collect())
    );
    assert!(old.into_iter().all(|verdict| verdict.unwrap() == JobsVerdict::Fenced));
    assert!(new.into_iter().all(|verdict| matches!(verdict.unwrap(), JobsVerdict::Written { .. })));
    for n in (40..80).filter(of_first) {
        assert_eq!(b.ledger.job(job(n)).await.unwrap(), None);
    }
    // A job is in one lane, and another of the same lease writes nothing of it.
    let changes = [dispatch(job(61), 1), cancel(job(61))];
    for change in changes {
        assert_eq!(b.verdicts(of_lane(&lane(2, &anew), [change])).await, [JobVerdict::Stale]);
    }
    assert_eq!(b.verdicts(of_lane(&lane(1, &anew), [dispatch(job(61), 1)])).await, [JobVerdict::Written]);
}

pub async fn lanes_under_a_lease_that_the_caller_has_are_found(b: Bench) {
    let (dead, heir) = (owner("dead"), owner("heir"));
    b.lane(instance_lane(&heir), &heir).await;
    let first = b.lane(LaneId::instance(&dead, 0), &dead).await;
    for number in 0..2 {
        let lane = Lane { id: LaneId::instance(&dead, number), ..first.clone() };
        b.does(of_lane(&lane, [submit(plain(job(u64::from(number))))])).await;
    }
    b.ledger.release(first.id.lease(), &dead, first.token).await.unwrap();
    let left = async |me: &InstanceId| b.ledger.orphaned_lanes(me, None, 0, 10).await.unwrap().0;
    let both = |owner: Option<&InstanceId>| {
        [0, 1].map(|number| OrphanedLane { lane: LaneId::instance(&dead, number), owner: owner.cloned() })
    };
    assert_eq!(left(&heir).await, both(None));
    // The instance that has taken the lease for one of them finds the other one; no other instance does.
    b.lane(first.id, &heir).await;
    assert_eq!(left(&heir).await, both(Some(&heir)));
    assert_eq!(left(&owner("third")).await, []);
}

pub async fn the_last_place_given_in_a_session_is_known(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let seq = async || b.ledger.lane_seq(&lane.id).await.unwrap();
    assert_eq!(seq().await, 0);
    let in_session = |n: u64, seq| {
        let mut new = NewJob { seq: Some(seq), ..plain(job(n)) };
        new.spec.session = Some(domain::SessionId::parse("s").unwrap());
        new
    };
    b.does(of_lane(&lane, [submit(in_session(0, 1)), submit(in_session(1, 2))])).await;
    assert_eq!(seq().await, 2);
    b.does(of_lane(&lane, [dispatch(job(1), 1)])).await;
    assert_eq!(seq().await, 2);
    let delayed = NewJob { due: Due::InMs(LONG_MS), ..in_session(2, 3) };
    b.does(of_lane(&lane, [submit(delayed)])).await;
    assert_eq!(seq().await, 3);
    b.does(of_lane(&lane, [cancel(job(2)), cancel(job(0))])).await;
    assert_eq!(seq().await, 3, "a finished job keeps its place");
    assert_eq!(b.ledger.lane_seq(&session("other")).await.unwrap(), 0);
    assert_eq!(b.ledger.lane_seq(&instance_lane(&owner("a"))).await.unwrap(), 0);
}

pub async fn a_lane_with_unfinished_jobs_keeps_its_token(b: Bench) {
    let gone = owner("gone-1");
    let lane = b.lane(instance_lane(&gone), &gone).await;
    b.does(of_lane(&lane, [submit(plain(job(0)))])).await;
    b.ledger.release(lane.id.lease(), &gone, lane.token).await.unwrap();
    eventually("its end is a while ago", async || {
        b.ledger.purge_instances(2, 100).await.unwrap();
        b.ledger.lease(lane.id.lease()).await.unwrap().unwrap().expires_in_ms == 0
    })
    .await;
    b.ledger.purge_instances(0, 100).await.unwrap();
    let heir = b.lane(lane.id.clone(), &owner("heir-1")).await;
    assert!(heir.token > lane.token, "its token started over");
    let end = Change::End {
        job: job(0),
        outcome: Outcome::Cancelled,
        dead: false,
        attempt: None,
        reason: "no more".to_owned(),
    };
    b.does(of_lane(&heir, [end])).await;
    assert_eq!(b.found(job(0)).await.finished.unwrap().error.as_deref(), Some("no more"));
    b.ledger.release(heir.id.lease(), &heir.owner, heir.token).await.unwrap();
    eventually("nothing names it", async || {
        b.ledger.purge_instances(0, 100).await.unwrap();
        b.ledger.lease(lane.id.lease()).await.unwrap().is_none()
    })
    .await;
}

pub async fn pages_end_before_they_are_too_large(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let big = "x".repeat(1 << 20);
    for n in 0..20 {
        b.does(of_lane(&lane, [submit(NewJob { spec: spec(&big), ..plain(job(n)) })])).await;
    }
    let first = b.ledger.waiting(&lane.id, &WaitingGroup::default(), 100).await.unwrap();
    assert_eq!(first.len(), 16);
    let place = |n| dispatch(job(n), 1);
    b.does(of_lane(&lane, (0..20).map(place))).await;
    let page = async |after| b.ledger.in_flight(&lane.id, after, 100).await.unwrap().len();
    assert_eq!((page(None).await, page(Some(job(15))).await), (16, 4));
    // A list shows neither payloads nor results, and all jobs, finished or not.
    let list = ledger::JobFilter { limit: 100, ..ledger::JobFilter::default() };
    for finished in [0..0, 0..5, 5..20] {
        b.does(said(finished.map(|n| complete(job(n), 1, &big[..1 << 19])))).await;
        let listed = b.ledger.jobs(&list).await.unwrap();
        assert!(listed.iter().map(|one| one.id).eq((0..20).rev().map(job)), "{listed:?}");
        let without = |one: &ledger::JobRecord| {
            one.spec.payload.is_empty()
                && one.finished.as_ref().is_none_or(|finished| finished.result.is_none())
        };
        assert!(listed.iter().all(without));
    }
}

/// A row that another hand has barred: its batch is refused, and sinks nobody else on the train.
pub async fn a_batch_that_the_tables_refuse_sinks_nobody_else(b: Bench) {
    const LANES: u64 = 12;
    b.bars_jobs_on_node_666().await;
    let barred = domain::job::Assignment { node: node("666"), ..crate::shop::placed() };
    let mut lanes = vec![];
    for n in 0..LANES {
        lanes.push(b.lane(session(&format!("s{n}")), &owner("a")).await);
    }
    let mut honest = std::collections::HashSet::new();
    for round in 0..4 {
        let mut commits = tokio::task::JoinSet::new();
        for (n, lane) in lanes.iter().enumerate() {
            let id = job(round * LANES + n as u64);
            let is_barred = n as u64 == round;
            let first = if is_barred { barred.clone() } else { crate::shop::placed() };
            let batch = of_lane(lane, [submit(NewJob { placed: Some(first), ..plain(id) })]);
            let ledger = b.ledger.clone();
            commits.spawn(async move { (is_barred, id, ledger.commit_jobs(batch).await) });
        }
        for (is_barred, id, answer) in commits.join_all().await {
            match answer {
                Ok(JobsVerdict::Written { at, jobs }) if !is_barred => {
                    assert_eq!(jobs, [JobVerdict::Written]);
                    honest.insert(at);
                }
                Err(ledger::Error::Refused { .. }) if is_barred => {
                    assert_eq!(b.ledger.job(id).await.unwrap(), None);
                }
                odd => panic!("{id}: {odd:?}"),
            }
        }
    }
    assert!(honest.len() < 4 * (LANES as usize - 1), "nobody rode with anybody");
}
