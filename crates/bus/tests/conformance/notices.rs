//! Publish and subscribe.

use std::time::Duration;

use bus::limits::{NOTICE_BYTES_MAX, SUBSCRIPTION_NOTICES_MAX};
use bus::{Channel, Error, Event};

use crate::bench::{Bench, message, next, tell};

pub async fn every_subscriber_of_every_instance_hears_everything_in_order(b: Bench) {
    let (one, other) = (b.join().await, b.join().await);
    let mut subscriptions =
        [&one, &one, &other].map(|instance: &bus::Handle| instance.subscribe(Channel::Cluster));
    for n in 0..100 {
        tell(&one, &n.to_string()).await;
    }
    tell(&other, "last").await;
    for subscription in &mut subscriptions {
        let mut mine = Vec::new();
        while mine.len() < 101 {
            mine.push(next(subscription).await);
        }
        // Two instances are in no order to each other.
        let last = mine.iter().position(|event| *event == message("last")).unwrap();
        mine.remove(last);
        assert_eq!(mine, (0..100).map(|n| message(&n.to_string())).collect::<Vec<_>>());
    }
}

pub async fn a_subscriber_hears_what_comes_after_it_subscribed(b: Bench) {
    let bus = b.join().await;
    let mut early = bus.subscribe(Channel::Cluster);
    tell(&bus, "before").await;
    assert_eq!(next(&mut early).await, message("before"));
    let mut late = bus.subscribe(Channel::Cluster);
    tell(&bus, "after").await;
    assert_eq!(next(&mut late).await, message("after"));
    assert_eq!(next(&mut early).await, message("after"));
}

pub async fn bytes_arrive_as_they_were_sent(b: Bench) {
    let bus = b.join().await;
    let mut subscription = bus.subscribe(Channel::Cluster);
    let every_byte: Vec<u8> = (0..=255).collect();
    for payload in [&every_byte[..], b"", b"\r\n+OK\r\n", &vec![0xff; NOTICE_BYTES_MAX]] {
        bus.publish(Channel::Cluster, payload).await.unwrap();
        assert_eq!(next(&mut subscription).await, Event::Message(payload.into()));
    }
}

pub async fn a_notice_that_is_too_large_is_refused_and_not_sent(b: Bench) {
    let bus = b.join().await;
    let mut subscription = bus.subscribe(Channel::Cluster);
    let refused = bus.publish(Channel::Cluster, &vec![0; NOTICE_BYTES_MAX + 1]).await.unwrap_err();
    assert!(matches!(refused, Error::TooLarge { bytes_max: NOTICE_BYTES_MAX, .. }), "{refused}");
    tell(&bus, "next").await;
    assert_eq!(next(&mut subscription).await, message("next"));
}

pub async fn a_slow_subscriber_is_told_how_much_it_missed(b: Bench) {
    let bus = b.join().await;
    let (mut slow, mut quick) = (bus.subscribe(Channel::Cluster), bus.subscribe(Channel::Cluster));
    let sent = SUBSCRIPTION_NOTICES_MAX + 10;
    for n in 0..sent {
        tell(&bus, &n.to_string()).await;
        assert_eq!(next(&mut quick).await, message(&n.to_string()));
    }
    assert_eq!(next(&mut slow).await, Event::Lagged { missed: 10 });
    for n in 10..sent {
        assert_eq!(next(&mut slow).await, message(&n.to_string()));
    }
}

pub async fn a_wait_that_is_given_up_loses_nothing(b: Bench) {
    let bus = b.join().await;
    let mut subscription = bus.subscribe(Channel::Cluster);
    for n in 0..50 {
        let given_up = tokio::time::timeout(Duration::ZERO, subscription.next()).await;
        assert!(given_up.is_err(), "{given_up:?}");
        tell(&bus, &n.to_string()).await;
        assert_eq!(next(&mut subscription).await, message(&n.to_string()));
    }
}

pub async fn what_is_told_on_one_channel_is_not_heard_on_another(b: Bench) {
    let bus = b.join().await;
    let (mut cluster, mut nodes) = (bus.subscribe(Channel::Cluster), bus.subscribe(Channel::Nodes));
    bus.publish(Channel::Nodes, b"a node").await.unwrap();
    tell(&bus, "a member").await;
    assert_eq!(next(&mut nodes).await, message("a node"));
    assert_eq!(next(&mut cluster).await, message("a member"));
}
