//! Transfers: jobs and leases that instances give each other through the ledger alone.

use domain::job::{Attempt, Change, Due, NewJob, OnRecovery, State};
use domain::{InstanceId, JobId, LaneId};
use ledger::{Acquisition, JobVerdict, JobsVerdict, Lane, Unwritten};

use crate::bench::{Bench, LONG_MS, eventually, owner};
use crate::instances::joins;
use crate::shop::{
    cancel, complete, dispatch, in_session, instance_lane, job, of_lane, plain, said, session, submit,
    submit_placed,
};

/// An instance that lives, the first of its lanes, and the token of its lease.
async fn lives(b: &Bench, name: &str) -> Lane {
    let id = owner(name);
    joins(b, &id, LONG_MS).await;
    let lane = instance_lane(&id);
    let lease = b.ledger.lease(lane.lease()).await.unwrap().unwrap();
    Lane { id: lane, owner: id, token: lease.token }
}

async fn transferred(b: &Bench, from: &Lane, jobs: &[(u64, &InstanceId)]) -> Vec<JobId> {
    let jobs: Vec<_> = jobs.iter().map(|(n, to)| (job(*n), (*to).clone())).collect();
    let mut moved = b.ledger.transfer_jobs(from, &jobs).await.unwrap().unwrap();
    moved.sort_unstable();
    moved
}

async fn lane_of(b: &Bench, n: u64) -> LaneId {
    b.found(job(n)).await.lane
}

pub async fn nodes_are_noted_for_the_other_live_instances(b: Bench) {
    let (a, c) = (owner("a"), owner("c"));
    joins(&b, &a, LONG_MS).await;
    joins(&b, &c, LONG_MS).await;
    joins(&b, &owner("gone"), 1).await;
    for (id, note) in [(&a, "[1]"), (&a, "[2]"), (&owner("gone"), "[3]")] {
        assert_eq!(b.ledger.note_nodes(id, Some(note)).await.unwrap(), 0);
    }
    assert_eq!(b.ledger.note_nodes(&owner("never"), Some("[4]")).await.unwrap(), 0);
    let noted = [(a.clone(), "[2]".to_owned())];
    eventually("the dead are left out", async || b.ledger.nodes_elsewhere(&c).await.unwrap() == noted).await;
    assert_eq!(b.ledger.nodes_elsewhere(&a).await.unwrap(), [], "its own are left out");
    b.ledger.note_nodes(&a, None).await.unwrap();
    assert_eq!(b.ledger.nodes_elsewhere(&c).await.unwrap(), []);
}

pub async fn jobs_that_wait_are_transferred_to_live_instances_that_take_them(b: Bench) {
    let (from, to, silent) = (lives(&b, "a").await, lives(&b, "b").await, lives(&b, "c").await);
    let gone = owner("gone");
    joins(&b, &gone, 1).await;
    for id in [&to.owner, &gone] {
        b.ledger.note_nodes(id, Some("[]")).await.unwrap();
    }
    eventually("one is gone", async || b.ledger.live_instances().await.unwrap().len() == 3).await;
    let held = {
        let mut new = plain(job(4));
        new.spec.on_recovery = OnRecovery::Hold;
        new
    };
    let later = NewJob { due: Due::InMs(LONG_MS), ..plain(job(2)) };
    let soon = NewJob { due: Due::InMs(1), ..plain(job(3)) };
    b.does(of_lane(&from, [submit(plain(job(0))), submit_placed(job(1))])).await;
    b.does(of_lane(&from, [submit(later), submit(soon), submit(held)])).await;
    b.does(of_lane(&from, (5..8).map(|n| submit(plain(job(n)))))).await;
    let other = b.lane(session("s"), &from.owner).await;
    b.does(of_lane(&other, [submit(in_session("s", 8))])).await;
    b.ledger.hold_jobs(&from).await.unwrap().unwrap();
    let all: Vec<_> = (0..=8).map(|n| (n, &to.owner)).collect();
    let jobs: Vec<_> = [(6, &silent.owner), (7, &gone)].into_iter().chain(all).collect();
    // Of a job that is named twice the first name may count; these are not given to anybody else.
    let jobs: Vec<_> = jobs.into_iter().filter(|(n, to)| *n < 6 || *n == 8 || **to != owner("b")).collect();
    eventually("job 3 is due", async || {
        transferred(&b, &from, &jobs).await;
        lane_of(&b, 3).await == to.id
    })
    .await;
    for n in 0..=8 {
        let lane = match n {
            0 | 3 | 5 => &to.id,
            8 => &other.id,
            _ => &from.id,
        };
        assert_eq!(lane_of(&b, n).await, *lane, "job {n}");
    }
    assert_eq!(b.found(job(3)).await.due_at, None, "it waits like any other");
    let given = b.ledger.transfers_to(&to.owner).await.unwrap();
    assert!(given >= 1, "its instance is to look");
    assert_eq!(b.ledger.transfers_to(&silent.owner).await.unwrap(), 0);
    b.ledger.note_nodes(&to.owner, None).await.unwrap();
    assert_eq!(transferred(&b, &from, &[(7, &to.owner)]).await, []);
    assert_eq!(
        b.ledger.note_nodes(&to.owner, Some("[]")).await.unwrap(),
        given,
        "nothing was given meanwhile"
    );
    assert_eq!(transferred(&b, &from, &[(7, &to.owner)]).await, [job(7)]);
}

pub async fn who_gave_a_job_writes_it_no_more_and_its_new_lane_does(b: Bench) {
    let (from, to) = (lives(&b, "a").await, lives(&b, "b").await);
    b.ledger.note_nodes(&to.owner, Some("[]")).await.unwrap();
    b.does(of_lane(&from, [submit(plain(job(0))), submit(plain(job(1)))])).await;
    assert_eq!(transferred(&b, &from, &[(0, &to.owner), (1, &to.owner)]).await, [job(0), job(1)]);
    let unfinished = b.ledger.waiting_groups(&to.id, None, 10).await.unwrap();
    assert_eq!(b.ledger.waiting(&to.id, &unfinished[0], 10).await.unwrap().len(), 2);
    assert_eq!(b.ledger.waiting_groups(&from.id, None, 10).await.unwrap(), []);
    for change in [dispatch(job(0), 1), cancel(job(0)), cancel(job(1))] {
        assert_eq!(b.verdicts(of_lane(&from, [change])).await, [JobVerdict::Stale]);
    }
    b.does(of_lane(&to, [dispatch(job(0), 1)])).await;
    let revoke = Change::Revoke {
        job: job(0),
        attempt: Attempt::new(1),
        why: domain::job::Revoked::NodeLost,
        reason: String::new(),
        due_in_ms: 0,
    };
    assert_eq!(b.verdicts(of_lane(&from, [revoke])).await, [JobVerdict::Stale]);
    assert_eq!(transferred(&b, &from, &[(0, &to.owner)]).await, [], "it is not in that lane");
    b.does(said([complete(job(0), 1, "1")])).await;
    assert_eq!(b.found(job(0)).await.state, State::Finished);
    b.does(of_lane(&to, [cancel(job(1))])).await;
}

pub async fn an_owner_that_lost_its_lane_transfers_nothing(b: Bench) {
    let (old, to) = (b.lane(session("s"), &owner("a")).await, lives(&b, "b").await);
    b.ledger.note_nodes(&to.owner, Some("[]")).await.unwrap();
    b.does(of_lane(&old, [submit(plain(job(0)))])).await;
    b.ledger.release(old.id.lease(), &old.owner, old.token).await.unwrap();
    let jobs = [(job(0), to.owner.clone())];
    assert_eq!(b.ledger.transfer_jobs(&old, &jobs).await.unwrap(), Err(Unwritten::Fenced));
    let new = b.lane(session("s"), &owner("c")).await;
    assert_eq!(b.ledger.transfer_jobs(&old, &jobs).await.unwrap(), Err(Unwritten::Fenced));
    assert_eq!((lane_of(&b, 0).await, b.ledger.transfers_to(&to.owner).await.unwrap()), (new.id.clone(), 0));
    assert_eq!(b.ledger.transfer_jobs(&new, &jobs).await.unwrap(), Ok(vec![job(0)]));
}

pub async fn a_lease_is_passed_to_a_live_instance_and_fences_who_passed_it(b: Bench) {
    let (to, gone) = (lives(&b, "b").await, owner("gone"));
    joins(&b, &gone, 1).await;
    eventually("one is gone", async || b.ledger.live_instances().await.unwrap().len() == 1).await;
    let old = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&old, [submit(in_session("s", 1))])).await;
    let lease = old.id.lease();
    let pass = async |lane: &Lane, to: &InstanceId| {
        b.ledger.pass_lease(lease, &lane.owner, lane.token, to, LONG_MS).await.unwrap()
    };
    assert!(!pass(&old, &gone).await, "a dead instance gets nothing");
    assert!(pass(&old, &to.owner).await);
    let passed = b.ledger.lease(lease).await.unwrap().unwrap();
    assert_eq!((passed.owner.as_ref(), passed.token.get()), (Some(&to.owner), old.token.get() + 1));
    assert!(!pass(&old, &to.owner).await, "it is not its own any more");
    let stale = b.ledger.commit_jobs(of_lane(&old, [dispatch(job(1), 1)])).await.unwrap();
    assert_eq!(stale, JobsVerdict::Fenced);
    let held = b.ledger.acquire(lease, &old.owner, LONG_MS).await.unwrap();
    assert!(matches!(held, Acquisition::Held { owner, .. } if owner == to.owner));
    let (left, _) = b.ledger.orphaned_lanes(&to.owner, None, 0, 10).await.unwrap();
    assert_eq!(left.iter().map(|left| &left.lane).collect::<Vec<_>>(), [&old.id], "it finds its work");
    let new = b.lane(session("s"), &to.owner).await;
    b.does(of_lane(&new, [dispatch(job(1), 1)])).await;
}
