//! A single Redis that is killed, emptied or frozen under an open bus.

use std::net::SocketAddr;
use std::sync::Arc;

use bus::{Channel, Error, Handle, Options};
use testkit::proxy::Proxy;
use testkit::servers::Redis;

use crate::bench::{
    LONG, blocking, comes_back, eventually, id, is_present, link_is, message, next, open, options, presence,
    resumed, tell,
};

pub async fn with_a_server() -> (Arc<Redis>, Handle) {
    let server = blocking(|| Arc::new(Redis::start().unwrap())).await;
    let bus = open(&options(&server.url(), "t:")).await.unwrap();
    (server, bus)
}

/// Every call comes back, with an error that says to ask again.
async fn refuses(bus: &Handle) {
    let refusals = async {
        [
            bus.announce(&presence("a-1"), LONG).await.unwrap_err(),
            bus.present(&[id("a-1"), id("a-2")]).await.unwrap_err(),
            bus.publish(Channel::Cluster, b"").await.unwrap_err(),
            bus.check().await.unwrap_err(),
        ]
    };
    for refused in comes_back(refusals).await {
        assert!(refused.is_retryable(), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_restarted_is_found_again_and_subscriptions_resume() {
    let (server, bus) = with_a_server().await;
    let mut subscription = bus.subscribe(Channel::Cluster);
    bus.announce(&presence("a-1"), LONG).await.unwrap();
    let up_since = *bus.link().borrow();
    for round in 0..3 {
        let running = server.clone();
        blocking(move || running.kill()).await;
        link_is(&bus, false).await;
        refuses(&bus).await;
        let stopped = server.clone();
        blocking(move || stopped.boot().unwrap()).await;
        link_is(&bus, true).await;
        assert_ne!(*bus.link().borrow(), up_since, "it counts anew");
        resumed(&mut subscription).await;
        assert!(!is_present(&bus, "a-1").await, "the server lost it");
        bus.announce(&presence("a-1"), LONG).await.unwrap();
        assert!(is_present(&bus, "a-1").await);
        tell(&bus, &format!("round {round}")).await;
        assert_eq!(next(&mut subscription).await, message(&format!("round {round}")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_emptied_keeps_the_link_and_the_subscriptions() {
    let (server, bus) = with_a_server().await;
    let mut subscription = bus.subscribe(Channel::Cluster);
    let link = *bus.link().borrow();
    bus.announce(&presence("a-1"), LONG).await.unwrap();
    let full = server.clone();
    blocking(move || full.flush().unwrap()).await;
    assert!(!is_present(&bus, "a-1").await);
    bus.announce(&presence("a-1"), LONG).await.unwrap();
    assert!(is_present(&bus, "a-1").await);
    tell(&bus, "after").await;
    assert_eq!(next(&mut subscription).await, message("after"), "nothing came between");
    assert_eq!(*bus.link().borrow(), link, "it was up all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_costs_each_call_its_time_until_the_link_is_known_to_be_down() {
    let (server, bus) = with_a_server().await;
    let mut subscription = bus.subscribe(Channel::Cluster);
    bus.announce(&presence("a-1"), LONG).await.unwrap();
    // Longer than a test waits for all of its calls.
    let lasting = Options { command_timeout_ms: 60_000, ..options(&server.url(), "t:") };
    let patient = open(&lasting).await.unwrap();
    server.freeze().unwrap();
    refuses(&bus).await;
    for bus in [&bus, &patient] {
        link_is(bus, false).await;
        refuses(bus).await;
    }
    server.wake().unwrap();
    link_is(&bus, true).await;
    eventually("it answers", async || bus.announce(&presence("a-1"), LONG).await.is_ok()).await;
    assert!(is_present(&bus, "a-1").await, "what it knew it still knows");
    tell(&bus, "awake").await;
    while next(&mut subscription).await != message("awake") {}
    assert!(bus.check().await.unwrap().warnings.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_is_made_again_and_said_to_be_new() {
    let (server, bus) = with_a_server().await;
    let mut subscription = bus.subscribe(Channel::Cluster);
    for kind in ["pubsub", "normal", "pubsub"] {
        let cutting = server.clone();
        let cut = blocking(move || cutting.command(&["CLIENT", "KILL", "TYPE", kind]).unwrap()).await;
        assert_ne!(cut.trim(), "0", "a connection of type {kind}");
        if kind == "pubsub" {
            resumed(&mut subscription).await;
        }
        eventually("commands go through", async || bus.announce(&presence("a-1"), LONG).await.is_ok()).await;
        link_is(&bus, true).await;
        tell(&bus, kind).await;
        while next(&mut subscription).await != message(kind) {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_emptied_gets_its_name_back_and_another_server_has_another() {
    let (server, bus) = with_a_server().await;
    let name = bus.identity().await.unwrap();
    let emptied = server.clone();
    blocking(move || emptied.flush().unwrap()).await;
    assert_eq!(bus.identity().await.unwrap(), name);
    let newcomer = open(&options(&server.url(), "t:")).await.unwrap();
    assert_eq!(newcomer.identity().await.unwrap(), name);
    let (_another, elsewhere) = with_a_server().await;
    assert_ne!(elsewhere.identity().await.unwrap(), name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_writes_is_no_link_until_it_takes_them() {
    let (server, bus) = with_a_server().await;
    let minimum = |replicas| vec!["CONFIG", "SET", "min-replicas-to-write", replicas];
    let memory = |bytes| vec!["CONFIG", "SET", "maxmemory", bytes];
    for (refusing, taking) in [
        (minimum("1"), minimum("0")),
        (memory("1"), memory("0")),
        (vec!["REPLICAOF", "127.0.0.1", "1"], vec!["REPLICAOF", "NO", "ONE"]),
    ] {
        let command = async |command: Vec<&'static str>| {
            let server = server.clone();
            blocking(move || server.command(&command).unwrap()).await
        };
        command(refusing.clone()).await;
        link_is(&bus, false).await;
        let refused = bus.announce(&presence("a-1"), LONG).await.unwrap_err();
        assert!(refused.is_retryable() && !refused.may_have_run(), "{refusing:?}: {refused}");
        assert!(!is_present(&bus, "a-1").await, "what only reads is answered");
        command(taking).await;
        link_is(&bus, true).await;
        bus.announce(&presence("a-1"), LONG).await.unwrap();
        assert!(is_present(&bus, "a-1").await);
        bus.withdraw(&id("a-1")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_a_right_away_is_no_link_until_it_gives_it_back() {
    let (server, bus) = with_a_server().await;
    // What each probe does needs neither.
    for (taken, given) in [("-xadd", "+xadd"), ("-evalsha", "+evalsha")] {
        let change = async |right: &'static str| {
            let server = server.clone();
            blocking(move || server.command(&["ACL", "SETUSER", "default", right]).unwrap()).await
        };
        change(taken).await;
        link_is(&bus, false).await;
        eventually("the right is named", async || matches!(bus.failure(), Some(Error::Forbidden { .. })))
            .await;
        change(given).await;
        link_is(&bus, true).await;
    }
}

/// Sets the password of a server that has another one, and cuts its connections, which stay let in otherwise.
pub fn change_password(server: &Redis, from: &str, to: &str) {
    let with = |password: &str, command: &[&str]| {
        server.command(&[&["-a", password, "--no-auth-warning"], command].concat()).unwrap()
    };
    with(from, &["CONFIG", "SET", "requirepass", to]);
    for kind in ["normal", "pubsub"] {
        with(to, &["CLIENT", "KILL", "TYPE", kind]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_password_is_named_until_it_is_changed_back() {
    let server = blocking(|| Arc::new(Redis::with(&["--requirepass", "right"]).unwrap())).await;
    let url = server.url().replace("//", "//:right@");
    let bus = open(&options(&url, "t:")).await.unwrap();
    let changing = server.clone();
    blocking(move || change_password(&changing, "right", "other")).await;
    link_is(&bus, false).await;
    eventually("the password is named", async || matches!(bus.failure(), Some(Error::Denied { .. }))).await;
    let changing = server.clone();
    blocking(move || change_password(&changing, "other", "right")).await;
    link_is(&bus, true).await;
    assert!(bus.failure().is_none());
}

pub fn address_of(server: &Redis) -> SocketAddr {
    server.url().strip_prefix("redis://").unwrap().trim_end_matches('/').parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_server_is_left_for_the_one_that_its_name_leads_to() {
    let (demoted, promoted) = blocking(|| (Arc::new(Redis::start().unwrap()), Redis::start().unwrap())).await;
    let name = Proxy::start(address_of(&demoted)).await.unwrap();
    let bus = open(&options(&format!("redis://{}", name.address()), "t:")).await.unwrap();
    let mut subscription = bus.subscribe(Channel::Cluster);
    name.lead_to(address_of(&promoted));
    let command = demoted.clone();
    // It answers as before, and takes no writes.
    blocking(move || command.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap()).await;
    // The link may be up again before this looks.
    eventually("a write is taken", async || bus.announce(&presence("a-1"), LONG).await.is_ok()).await;
    let there =
        blocking(move || promoted.command(&["EXISTS", "t:schedulers:presence:a-1"]).map(|it| (it, promoted)));
    let (there, _promoted) = there.await.unwrap();
    assert_eq!(there.trim(), "1");
    // What is published is heard there, too.
    eventually("a notice is heard", async || {
        let _ = bus.publish(Channel::Cluster, b"after").await;
        let heard = tokio::time::timeout(std::time::Duration::from_millis(100), subscription.next()).await;
        heard.is_ok_and(|event| event == Some(message("after")))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_go_to_the_server_at_which_the_listener_is_connected_anew() {
    let (first, second) = blocking(|| (Arc::new(Redis::start().unwrap()), Redis::start().unwrap())).await;
    let name = Proxy::start(address_of(&first)).await.unwrap();
    let bus = open(&options(&format!("redis://{}", name.address()), "t:")).await.unwrap();
    // Both take what is written.
    name.lead_to(address_of(&second));
    let cutting = first.clone();
    blocking(move || cutting.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap()).await;
    let second = Arc::new(second);
    eventually("commands go there, too", async || {
        let _ = bus.announce(&presence("a-1"), LONG).await;
        let asked = second.clone();
        let there = blocking(move || asked.command(&["EXISTS", "t:schedulers:presence:a-1"]).unwrap()).await;
        there.trim() == "1"
    })
    .await;
    link_is(&bus, true).await;
}
