//! Who has raised the token of a lease under which several lanes are owned.

use cluster::{Identity, JoinOptions, Membership, Process};
use domain::{Mode, PlanId};
use futures_util::FutureExt;

use super::*;
use crate::jobs::fixture::{Ledger, instance};

const LENGTH: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn the_token_of_the_instances_own_lease_is_raised_here_unless_another_instance_has_taken_it() {
    let ledger = Ledger::open().await;
    let identity = Identity { id: instance("me-1"), url: "http://me".to_owned() };
    let process = Process { hostname: "h".to_owned(), pid: 1, version: "0".to_owned() };
    let options =
        JoinOptions { lease: LENGTH, first_mode: Mode::WorkerQueue, patience: Duration::from_secs(5) };
    let bus = bus::Hub::default().join();
    let membership = Membership::join(ledger.handle.clone(), bus, &identity, process, options).await.unwrap();
    let own = Arc::new(OwnLease::new(membership.instance_lease(), membership.failure_detector()));
    let before = own.token().unwrap();
    let [one, other] = [LaneLease::Own(Arc::clone(&own)), LaneLease::Own(own)];
    let anew = loop {
        if let Ok(Some(token)) = one.acquire_anew(before).await {
            break token;
        }
    };
    assert!(other.is_raised_here(before).await);
    let resource = Resource::instance(&identity.id);
    ledger.handle.release(&resource, &identity.id, anew).await.unwrap();
    let taken = ledger.handle.acquire(&resource, &instance("other-1"), 60_000).await.unwrap();
    assert!(matches!(taken, Acquisition::Acquired { .. }), "{taken:?}");
    assert!(!other.is_raised_here(anew).await);
}

#[tokio::test]
async fn the_token_of_an_adopted_lease_is_raised_here_where_another_lane_of_it_is_served() {
    let ledger = Ledger::open().await;
    let (alone, clock) = (FailureDetector::alone(), SharedClock::new(Duration::from_secs(1)));
    let adopting = Adopting::new(instance("me-1"), LENGTH, ledger.handle.clone(), alone, clock);
    let adopt = async |shard: u16| {
        let lane = LaneId::instance(&instance("dead-1"), shard);
        match adopting.adopt(&lane).await.unwrap() {
            Adoption::Taken(taken) => taken,
            Adoption::Held(_) | Adoption::Missed => panic!("nobody has it"),
        }
    };
    let (one, before) = adopt(0).await;
    assert!(!one.is_raised_here(before).await);
    let (_other, now) = adopt(1).await;
    assert!(one.is_raised_here(before).await);
    assert!(!one.is_raised_here(now).await);
}

#[tokio::test]
async fn an_acquire_whose_caller_was_dropped_costs_the_owner_of_a_plan_nothing() {
    let ledger = Ledger::open().await;
    let (alone, clock) = (FailureDetector::alone(), SharedClock::new(Duration::from_secs(1)));
    let adopting = Adopting::new(instance("me-1"), LENGTH, ledger.handle.clone(), alone, clock);
    let lane = LaneId::plan(PlanId::from_u128(7));
    let Adoption::Taken((lease, before)) = adopting.adopt(&lane).await.unwrap() else {
        panic!("nobody has it");
    };
    assert!(!lease.is_raised_here(before).await);
    assert!(lease.acquire_anew(before).now_or_never().is_none(), "it is sent, and dropped then");
    let is_carried_out = async {
        while ledger.handle.lease(lane.lease()).await.unwrap().unwrap().token == before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, is_carried_out).await.expect("it was sent");
    assert!(lease.is_raised_here(before).await);
    let Ok(Some(anew)) = lease.acquire_anew(before).await else { panic!("no other instance has had it") };
    assert!(anew > before && !lease.is_raised_here(anew).await);
}
