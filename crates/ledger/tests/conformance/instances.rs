//! Instances: written down at their start, alive as long as their lease.

use domain::{InstanceId, Resource, Token};
use ledger::{Acquisition, Lane, NewInstance, Renewal, Renewed};

use crate::bench::{Bench, LONG_MS, eventually, owner, signer};
use crate::shop::{instance_lane, job, of_lane, plain, submit};

pub async fn joins(b: &Bench, id: &InstanceId, lease_ms: u64) {
    let about = NewInstance {
        id: id.clone(),
        url: format!("http://{id}:7070"),
        hostname: "host".to_owned(),
        pid: 42,
        version: "0.1.0".to_owned(),
    };
    b.ledger.register(&about).await.unwrap();
    b.ledger.register(&about).await.expect("twice is once");
    let taken = b.ledger.acquire(&Resource::instance(id), id, lease_ms).await.unwrap();
    assert!(matches!(taken, Acquisition::Acquired { .. }));
}

pub async fn an_instance_lives_while_its_lease_does(b: Bench) {
    let (a, gone) = (owner("a-1"), owner("gone-1"));
    joins(&b, &a, LONG_MS).await;
    joins(&b, &gone, 1).await;
    b.acquired(&a, &signer("s"), LONG_MS).await;
    eventually("the other is gone", async || b.ledger.live_instances().await.unwrap().len() == 1).await;
    let live = b.ledger.live_instances().await.unwrap();
    assert_eq!((live[0].about.id.clone(), live[0].bus_up), (a.clone(), None));
    b.acquired(&a, &signer("t"), LONG_MS).await;
    b.acquired(&owner("b-1"), &signer("u"), LONG_MS).await;
    // In as many statements as it takes.
    for piece in [1, 2, 3, 5, 6, 100] {
        let counts = b.ledger.lease_counts(piece).await.unwrap();
        assert_eq!(counts, [(a.clone(), 2), (owner("b-1"), 1)].into(), "{piece}: its own is left out");
    }
    for (up, bus, noted) in [
        (None, Some("local:2"), (None, "local:2")),
        (Some(true), Some("redis:1"), (Some(true), "redis:1")),
        (Some(false), None, (Some(false), "redis:1")),
        (None, Some("redis:3"), (Some(false), "redis:3")),
    ] {
        b.ledger.note_bus(&a, up, bus).await.unwrap();
        let live = &b.ledger.live_instances().await.unwrap()[0];
        assert_eq!((live.bus_up, live.bus.as_deref().unwrap()), noted);
    }
    assert_eq!(b.ledger.instance_url(&gone).await.unwrap().as_deref(), Some("http://gone-1:7070"));
    assert_eq!(b.ledger.instance_url(&owner("never")).await.unwrap(), None);
}

pub async fn peers_are_seen_living_dying_and_taken(b: Bench) {
    let (a, gone) = (owner("a-1"), owner("gone-1"));
    joins(&b, &a, LONG_MS).await;
    joins(&b, &gone, 1).await;
    let seen = async || b.ledger.peers(LONG_MS, 10).await.unwrap();
    eventually("the other's lease ran out", async || seen().await.iter().any(|peer| !peer.is_live())).await;
    let peers = seen().await;
    assert_eq!(peers.iter().map(|peer| peer.id.clone()).collect::<Vec<_>>(), [a.clone(), gone.clone()]);
    assert_eq!((peers[0].url.as_str(), peers[0].is_live()), ("http://a-1:7070", true));
    eventually("it grows older", async || seen().await[0].age_ms > peers[0].age_ms).await;
    assert_eq!(b.ledger.peers(LONG_MS, 1).await.unwrap()[0].id, a, "the living come first");
    eventually("it is too long ago", async || b.ledger.peers(1, 10).await.unwrap().len() == 1).await;
    let taken = b.ledger.take_over(&Resource::instance(&gone), &a, &gone, LONG_MS).await.unwrap();
    assert!(taken.is_some());
    let peer = seen().await.into_iter().find(|peer| peer.id == gone).unwrap();
    assert!(peer.lease.is_live() && !peer.is_live(), "a lease that a survivor took shows no life");
}

pub async fn a_peer_from_before_the_clock_went_back_is_old(b: Bench) {
    let a = owner("a-1");
    joins(&b, &a, LONG_MS).await;
    let seen = async || b.ledger.peers(LONG_MS, 10).await.unwrap();
    assert!(seen().await[0].age_ms < LONG_MS);
    let later = if b.database.is_some() { "interval '1 hour'" } else { "3600000000" };
    let lease = "WHERE resource = 'instance:a-1'";
    b.by_hand(format!("UPDATE lease SET acquired_at = acquired_at + {later} {lease}")).await;
    assert!(seen().await[0].age_ms > LONG_MS);
}

pub async fn an_instance_that_was_found_dead_never_gets_its_lease_back(b: Bench) {
    let (a, gone) = (owner("a-1"), owner("gone-1"));
    let life = Resource::instance(&gone);
    joins(&b, &gone, 1).await;
    let again = b.ledger.acquire(&life, &gone, 1).await.unwrap();
    assert!(
        matches!(again, Acquisition::Acquired { token, .. } if token == Token::new(2)),
        "its own ran out"
    );
    eventually("it is found dead", async || b.ledger.take_over(&life, &a, &gone, 1).await.unwrap().is_some())
        .await;
    eventually("the survivor's hold ran out", async || {
        b.ledger.lease(&life).await.unwrap().is_some_and(|lease| !lease.is_live())
    })
    .await;
    let held = b.ledger.acquire(&life, &gone, LONG_MS).await.unwrap();
    assert_eq!(held, Acquisition::Held { owner: a.clone(), expires_in_ms: 0 }, "the others are done with it");
    // The survivor serves the jobs that it has left.
    let taken = b.ledger.acquire(&life, &a, LONG_MS).await.unwrap();
    let Acquisition::Acquired { token, .. } = taken else { panic!("{taken:?}") };
    assert!(b.ledger.release(&life, &a, token).await.unwrap());
    let over = b.ledger.acquire(&life, &gone, LONG_MS).await.unwrap();
    assert_eq!(over, Acquisition::Held { owner: gone.clone(), expires_in_ms: 0 }, "also once it is free");
    let free = b.ledger.lease(&life).await.unwrap().unwrap();
    assert_eq!((free.owner, free.token), (None, token), "nothing has changed");
    // Others take it, where more of its jobs are found.
    let heir = b.ledger.acquire(&life, &owner("b-1"), LONG_MS).await.unwrap();
    assert!(matches!(heir, Acquisition::Acquired { .. }), "{heir:?}");
}

pub async fn an_incarnation_that_never_had_a_lease_is_forgotten_too(b: Bench) {
    let about = NewInstance {
        id: owner("stillborn-1"),
        url: "http://stillborn:7070".to_owned(),
        hostname: "host".to_owned(),
        pid: 42,
        version: "0.1.0".to_owned(),
    };
    b.ledger.register(&about).await.unwrap();
    assert_eq!(b.ledger.instance_url(&about.id).await.unwrap(), Some(about.url.clone()));
    eventually("it is forgotten", async || {
        b.ledger.purge_instances(1, 10).await.unwrap();
        b.ledger.instance_url(&about.id).await.unwrap().is_none()
    })
    .await;
}

pub async fn ended_instances_are_forgotten_after_their_time(b: Bench) {
    let (a, gone) = (owner("a-1"), owner("gone-1"));
    joins(&b, &a, LONG_MS).await;
    joins(&b, &gone, 1).await;
    assert_eq!(b.ledger.purge_instances(LONG_MS, 10).await.unwrap(), 0);
    eventually("it is forgotten", async || b.ledger.purge_instances(1, 10).await.unwrap() == 1).await;
    assert_eq!(b.ledger.lease(&Resource::instance(&gone)).await.unwrap(), None);
    assert_eq!(b.ledger.instance_url(&gone).await.unwrap(), None);
    assert_eq!(b.ledger.live_instances().await.unwrap()[0].about.id, a, "the living stay");
}

pub async fn an_incarnation_that_was_forgotten_does_not_go_on(b: Bench) {
    let away = owner("away-1");
    let life = Resource::instance(&away);
    joins(&b, &away, 1).await;
    // Its job keeps the lease, whose token must not start over.
    let lane = Lane { id: instance_lane(&away), owner: away.clone(), token: Token::FIRST };
    b.does(of_lane(&lane, [submit(plain(job(0)))])).await;
    eventually("it is forgotten", async || {
        b.ledger.purge_instances(1, 10).await.unwrap();
        b.ledger.instance_url(&away).await.unwrap().is_none()
    })
    .await;
    let renewal = Renewal { resource: life.clone(), token: Token::FIRST, lease_ms: LONG_MS };
    assert_eq!(b.ledger.renew(&away, renewal).await.unwrap(), Renewed::Lost);
    let over = b.ledger.acquire(&life, &away, LONG_MS).await.unwrap();
    assert_eq!(over, Acquisition::Held { owner: away, expires_in_ms: 0 });
    let heir = b.lane(lane.id, &owner("heir-1")).await;
    assert_eq!(heir.token, Token::new(2), "its jobs are found by others");
}
