//! From the opening to the closing.

use bus::{Channel, Error};

use crate::bench::{Bench, LONG, id, is_present, message, next, presence, tell};

pub async fn the_link_is_up_from_the_opening_on(b: Bench) {
    let bus = b.join().await;
    let link = bus.link();
    assert!(link.borrow().is_up());
    let before = link.borrow().up_for().unwrap();
    tell(&bus, "anything").await;
    assert!(link.borrow().up_for().unwrap() > before, "without a break");
}

pub async fn a_healthy_bus_gives_no_warning(b: Bench) {
    let bus = b.join().await;
    assert_eq!(bus.check().await.unwrap().warnings, Vec::<String>::new());
    let kind = if matches!(b, Bench::Local(_)) { "local" } else { "redis" };
    assert_eq!(bus.kind().as_str(), kind);
}

pub async fn a_closed_bus_refuses_and_ends_its_subscriptions(b: Bench) {
    let (bus, other) = (b.join().await, b.join().await);
    let mut subscription = bus.subscribe(Channel::Cluster);
    let mut others = other.subscribe(Channel::Cluster);
    bus.announce(&presence("a-1"), LONG).await.unwrap();
    let waits = tokio::spawn(async move { subscription.next().await });
    bus.close().await;
    bus.close().await;
    assert_eq!(waits.await.unwrap(), None);
    assert_eq!(bus.subscribe(Channel::Cluster).next().await, None);
    assert!(!bus.link().borrow().is_up());
    let refusals = [
        bus.announce(&presence("a-1"), LONG).await.unwrap_err(),
        bus.withdraw(&id("a-1")).await.unwrap_err(),
        bus.present(&[id("a-1")]).await.unwrap_err(),
        bus.publish(Channel::Cluster, b"").await.unwrap_err(),
        bus.check().await.unwrap_err(),
    ];
    for refused in refusals {
        assert!(matches!(refused, Error::Closed) && !refused.is_retryable(), "{refused}");
    }
    tell(&other, "still here").await;
    assert_eq!(next(&mut others).await, message("still here"));
    assert!(is_present(&other, "a-1").await, "closing withdraws nothing");
}
