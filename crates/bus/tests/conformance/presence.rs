//! Announce, withdraw, and who is there.

use std::time::Duration;

use bus::limits::{PRESENCE_BYTES_MAX, PRESENCE_TTL_MS_MAX};
use bus::{Error, Presence};

use crate::bench::{Bench, LONG, eventually, id, is_present, presence};

/// Short, and long enough to be seen once.
const SHORT: Duration = Duration::from_millis(300);

pub async fn an_announced_instance_is_seen_by_another_as_it_said(b: Bench) {
    let (one, other) = (b.join().await, b.join().await);
    let said = Presence { hostname: "\"quoted\" & höst\u{0}\n{}".to_owned(), ..presence("a-1") };
    one.announce(&said, LONG).await.unwrap();
    let seen = other.present(&[id("a-1")]).await.unwrap();
    assert_eq!(seen.into_values().collect::<Vec<_>>(), [said]);
}

pub async fn who_never_announced_is_not_present(b: Bench) {
    let bus = b.join().await;
    assert!(bus.present(&[]).await.unwrap().is_empty());
    assert!(bus.present(&[id("a-1"), id("a-2")]).await.unwrap().is_empty());
    bus.announce(&presence("a-1"), LONG).await.unwrap();
    let seen = bus.present(&[id("a-2"), id("a-1"), id("a-1")]).await.unwrap();
    assert_eq!(seen.into_keys().collect::<Vec<_>>(), [id("a-1")], "asking twice is asking once");
}

pub async fn an_announcement_takes_the_place_of_the_one_before(b: Bench) {
    let bus = b.join().await;
    bus.announce(&presence("a-1"), LONG).await.unwrap();
    let moved = Presence { address: "http://elsewhere".to_owned(), ..presence("a-1") };
    bus.announce(&moved, LONG).await.unwrap();
    assert_eq!(bus.present(&[id("a-1")]).await.unwrap()[&id("a-1")], moved);
}

pub async fn a_presence_ends_with_its_time_unless_announced_again(b: Bench) {
    let bus = b.join().await;
    bus.announce(&presence("stays"), SHORT).await.unwrap();
    bus.announce(&presence("stays"), LONG).await.unwrap();
    bus.announce(&presence("goes"), SHORT).await.unwrap();
    eventually("its time is over", async || !is_present(&bus, "goes").await).await;
    assert!(is_present(&bus, "stays").await);
    bus.announce(&presence("goes"), LONG).await.unwrap();
    assert!(is_present(&bus, "goes").await, "it is back");
}

pub async fn a_withdrawn_instance_is_gone_at_once(b: Bench) {
    let (one, other) = (b.join().await, b.join().await);
    one.announce(&presence("a-1"), LONG).await.unwrap();
    one.announce(&presence("a-2"), LONG).await.unwrap();
    one.withdraw(&id("a-1")).await.unwrap();
    assert!(!is_present(&other, "a-1").await && is_present(&other, "a-2").await);
    one.withdraw(&id("a-1")).await.unwrap();
    other.withdraw(&id("a-2")).await.unwrap();
    assert!(!is_present(&one, "a-2").await);
}

pub async fn a_thousand_instances_are_asked_for_at_once(b: Bench) {
    let bus = b.join().await;
    let ids: Vec<_> = (0..1_000).map(|n| id(&format!("a-{n}"))).collect();
    for n in (0..1_000).step_by(10) {
        bus.announce(&presence(&format!("a-{n}")), LONG).await.unwrap();
    }
    let mut seen: Vec<_> = bus.present(&ids).await.unwrap().into_keys().collect();
    seen.sort();
    let mut announced: Vec<_> = ids.into_iter().step_by(10).collect();
    announced.sort();
    assert_eq!(seen, announced);
}

pub async fn what_is_too_large_or_too_long_is_refused(b: Bench) {
    let bus = b.join().await;
    let large = Presence { version: "v".repeat(PRESENCE_BYTES_MAX), ..presence("a-1") };
    let refused = bus.announce(&large, LONG).await.unwrap_err();
    assert!(matches!(refused, Error::TooLarge { .. }) && !refused.is_retryable(), "{refused}");
    for ttl in [Duration::ZERO, Duration::from_millis(PRESENCE_TTL_MS_MAX + 1)] {
        let refused = bus.announce(&presence("a-1"), ttl).await.unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    }
    assert!(!is_present(&bus, "a-1").await, "a refusal changes nothing");
}

pub async fn handles_that_share_a_bus_name_it_alike_and_others_otherwise(b: Bench) {
    let (one, other) = (b.join().await, b.join().await);
    let name = one.identity().await.unwrap();
    assert_eq!(other.identity().await.unwrap(), name);
    assert_ne!(Bench::local().join().await.identity().await.unwrap(), name);
}
