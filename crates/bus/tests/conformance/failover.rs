//! A Redis Cluster that loses a master under an open bus.

use std::sync::Arc;
use std::time::Duration;

use bus::{Channel, Error, Handle, Subscription};
use testkit::servers::{Keyspace, Redis, RedisCluster};

use crate::bench::{
    LONG, PATIENCE, blocking, eventually, id, is_present, link_is, message, next, open, options, presence,
    resumed, tell,
};
use crate::outages::change_password;

struct Room {
    cluster: Arc<RedisCluster>,
    bus: Handle,
    other: Handle,
}

impl Room {
    async fn open() -> Self {
        let cluster = blocking(|| Arc::new(RedisCluster::start().unwrap())).await;
        let options = options(&cluster.url(), "t:");
        let (bus, other) = (open(&options).await.unwrap(), open(&options).await.unwrap());
        Self { cluster, bus, other }
    }

    /// Does something to the master that serves this instance's presence.
    async fn to_the_master_of(&self, name: &str, what: impl FnOnce(&Redis) + Send + 'static) {
        let (cluster, key) = (self.cluster.clone(), format!("t:schedulers:presence:{name}"));
        blocking(move || what(cluster.master_of(&key).unwrap())).await;
    }

    /// Waits until every instance can be announced, whichever server has it, and seen by the other.
    async fn heals(&self) {
        let names: Vec<_> = (0..12).map(|n| format!("a-{n}")).collect();
        let ids: Vec<_> = names.iter().map(|name| id(name)).collect();
        eventually("all are announced and seen", async || {
            for name in &names {
                if self.bus.announce(&presence(name), LONG).await.is_err() {
                    return false;
                }
            }
            self.other.present(&ids).await.is_ok_and(|seen| seen.len() == ids.len())
        })
        .await;
        link_is(&self.bus, true).await;
        link_is(&self.other, true).await;
    }

    /// Waits until a notice arrives, said as often as it takes.
    async fn is_heard(&self, subscription: &mut Subscription, text: &str) {
        let heard = async {
            loop {
                // A notice may be lost with a server. The subscriber then gets `Resumed`, and the notice is sent again.
                let _ = self.bus.publish(Channel::Cluster, text.as_bytes()).await;
                let patience = Duration::from_millis(300);
                while let Ok(event) = tokio::time::timeout(patience, subscription.next()).await {
                    if event == Some(message(text)) {
                        return;
                    }
                }
            }
        };
        tokio::time::timeout(PATIENCE, heard).await.expect("the notice is heard");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_replaced_and_everything_goes_on() {
    let room = Room::open().await;
    let mut subscription = room.other.subscribe(Channel::Cluster);
    room.heals().await;
    room.is_heard(&mut subscription, "before").await;
    room.to_the_master_of("a-1", Redis::kill).await;
    room.heals().await;
    room.is_heard(&mut subscription, "after").await;
    let health = room.bus.check().await.unwrap();
    assert!(health.warnings.is_empty(), "{health:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_master_is_replaced_and_not_waited_for() {
    let room = Room::open().await;
    let mut subscription = room.other.subscribe(Channel::Cluster);
    room.heals().await;
    room.to_the_master_of("a-1", |master| master.freeze().unwrap()).await;
    room.heals().await;
    room.is_heard(&mut subscription, "after").await;
}

/// How many `SET`s a server has taken.
fn sets_of(server: &Redis) -> u64 {
    let statistics = server.command(&["INFO", "commandstats"]).unwrap();
    let calls = statistics.lines().find_map(|line| line.strip_prefix("cmdstat_set:calls=")?.split_once(','));
    calls.map_or(0, |(calls, _)| calls.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_lacks_a_master_is_no_link_until_it_has_it_whatever_the_others_take() {
    let cluster = blocking(|| Arc::new(RedisCluster::start().unwrap())).await;
    for server in cluster.servers() {
        // Nothing takes the place of the lost master, and the others serve what is theirs.
        for (name, value) in [("cluster-replica-no-failover", "yes"), ("cluster-require-full-coverage", "no")]
        {
            server.command(&["CONFIG", "SET", name, value]).unwrap();
        }
    }
    let bus = open(&options(&cluster.url(), "t:")).await.unwrap();
    let of_key = |key: &str| {
        let port = cluster.master_of(key).unwrap().port();
        cluster.servers().iter().position(|server| server.port() == port).unwrap()
    };
    let lost = of_key("a");
    let other = ["b", "c", "d"].map(of_key).into_iter().find(|place| *place != lost).unwrap();
    let mut link = bus.link();
    assert!(link.borrow().is_up() && bus.failure().is_none());
    let killing = cluster.clone();
    blocking(move || killing.servers()[lost].kill()).await;
    link_is(&bus, false).await;
    link.mark_unchanged();
    // What the probes write to the other master is taken, again and again. That says nothing of the lost one.
    let before = sets_of(&cluster.servers()[other]);
    eventually("probes are taken", async || sets_of(&cluster.servers()[other]) >= before + 6).await;
    assert!(!link.has_changed().unwrap() && !link.borrow().is_up());
    let failure = bus.failure().unwrap();
    let said = failure.to_string();
    assert!(failure.is_retryable() && !said.is_empty() && !said.contains("Moved"), "{failure:?}");
    let booting = cluster.clone();
    blocking(move || booting.servers()[lost].boot().unwrap()).await;
    link_is(&bus, true).await;
    assert!(bus.failure().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_password_of_a_cluster_is_named() {
    let cluster = blocking(|| Arc::new(RedisCluster::start().unwrap())).await;
    let protecting = cluster.clone();
    blocking(move || {
        for server in protecting.servers() {
            server.command(&["CONFIG", "SET", "requirepass", "right"]).unwrap();
        }
    })
    .await;
    let bus = open(&options(&cluster.url().replace("//", "//:right@"), "t:")).await.unwrap();
    let changing = cluster.clone();
    blocking(move || changing.servers().iter().for_each(|server| change_password(server, "right", "other")))
        .await;
    link_is(&bus, false).await;
    let is_denied = |error: Option<Error>| matches!(error, Some(Error::Denied { .. }));
    eventually("the password is named", async || is_denied(bus.failure())).await;
    eventually("a check names it, too", async || is_denied(bus.check().await.err())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_that_was_listened_to_is_left_for_another() {
    let cluster = blocking(|| Arc::new(RedisCluster::start().unwrap())).await;
    let bus = open(&options(&cluster.url(), "t:")).await.unwrap();
    let mut subscription = bus.subscribe(Channel::Cluster);
    let all = cluster.clone();
    blocking(move || {
        let listened_to = |server: &&Redis| {
            server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).unwrap().contains("addr=")
        };
        let mut found: Vec<_> = all.servers().iter().filter(listened_to).collect();
        assert_eq!(found.len(), 1, "one bus listens at one place");
        found.remove(0).freeze().unwrap();
    })
    .await;
    resumed(&mut subscription).await;
    link_is(&bus, true).await;
    eventually("a notice is taken", async || bus.publish(Channel::Cluster, b"after").await.is_ok()).await;
    while next(&mut subscription).await != message("after") {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_host_of_a_cluster_is_enough_and_a_database_is_refused() {
    let keys = blocking(|| Keyspace::on_cluster().unwrap()).await;
    let first = keys.url().split(',').next().unwrap();
    let bus = open(&options(first, keys.prefix())).await.unwrap();
    let mut subscription = bus.subscribe(Channel::Cluster);
    for n in 0..12 {
        let name = format!("a-{n}");
        bus.announce(&presence(&name), LONG).await.unwrap();
        assert!(is_present(&bus, &name).await);
    }
    tell(&bus, "heard").await;
    assert_eq!(next(&mut subscription).await, message("heard"));
    let refused = open(&options(&format!("{first}/1"), keys.prefix())).await.err().unwrap();
    assert!(matches!(refused, Error::Refused { .. }) && refused.to_string().contains("SELECT"), "{refused}");
}
