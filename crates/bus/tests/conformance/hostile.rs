//! A Redis to which others can write: what they put there, and copies of what instances sent, take no effect; and clusters that
//! share a Redis never meet.

use std::collections::HashSet;
use std::time::Duration;

use bus::{Channel, Cluster, Delivery, Handle, Inbox};
use domain::{ClusterSecret, InstanceId};
use redis::{Commands, Connection, Value};
use testkit::PATIENCE;
use testkit::servers::Keyspace;

use crate::bench::{LONG, blocking, cluster, id, message, next, open, options, tell};

/// Somebody who may read and write everything in Redis.
struct Stranger {
    connection: Connection,
    prefix: String,
}

impl Stranger {
    fn on(keys: &Keyspace) -> Self {
        let connection = redis::Client::open(keys.url()).unwrap().get_connection().unwrap();
        Self { connection, prefix: keys.prefix().to_owned() }
    }

    fn inbox(&self, of: &InstanceId) -> String {
        format!("{}{{instance:{of}}}:inbox", self.prefix)
    }

    /// What lies in an inbox.
    fn captured(&mut self, of: &InstanceId) -> Vec<Vec<u8>> {
        type Fields = Vec<(String, Vec<u8>)>;
        let entries: Vec<(String, Fields)> =
            redis::cmd("XRANGE").arg(self.inbox(of)).arg("-").arg("+").query(&mut self.connection).unwrap();
        entries.into_iter().flat_map(|(_, fields)| fields).map(|(_, payload)| payload).collect()
    }

    fn put(&mut self, into: &InstanceId, payload: &[u8]) {
        let key = self.inbox(into);
        let _: Value =
            redis::cmd("XADD").arg(key).arg("*").arg("e").arg(payload).query(&mut self.connection).unwrap();
    }

    fn publish(&mut self, channel: Channel, payload: &[u8]) {
        let channel = format!("{}channel:{}:{}", self.prefix, cluster().id, channel.as_str());
        let _: u64 = self.connection.publish(channel, payload).unwrap();
    }
}

async fn send(bus: &Handle, to: &InstanceId, text: &str) {
    assert_eq!(bus.send(to, &[text.as_bytes()]).await.unwrap(), [Delivery::Sent]);
}

/// The texts of entries, in the order in which they come, until the one that is `last`.
async fn texts(bus: &Handle, inbox: &mut Inbox, of: &InstanceId, last: &str) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.last().is_none_or(|text| text != last) {
        let entries =
            tokio::time::timeout(PATIENCE, inbox.next()).await.expect("entries").expect("it is open");
        let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
        texts.extend(entries.iter().map(|entry| String::from_utf8(entry.payload.to_vec()).unwrap()));
        bus.settle(of, &ids).await.unwrap();
    }
    texts
}

#[tokio::test]
async fn entries_of_strangers_and_copies_of_entries_take_no_effect() {
    let keys = blocking(|| Keyspace::fresh().unwrap()).await;
    let bus = open(&options(keys.url(), keys.prefix())).await.unwrap();
    let (me, other) = (id("a-1"), id("b-1"));
    let mut inbox = bus.open_inbox(&me, LONG).await.unwrap();
    let _others = bus.open_inbox(&other, LONG).await.unwrap();
    // Nobody reads the other's inbox while this one's reader is away: the stranger copies what lies there.
    drop(inbox);
    for text in ["one", "two"] {
        send(&bus, &me, text).await;
    }
    let mut stranger = Stranger::on(&keys);
    let captured = stranger.captured(&me);
    assert_eq!(captured.len(), 2);
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(seed);
    for sealed in &captured {
        stranger.put(&me, sealed);
        stranger.put(&other, sealed);
        let mut changed = sealed.clone();
        let at = rand::RngExt::random_range(&mut random, 0..changed.len());
        changed[at] ^= 1 << rand::RngExt::random_range(&mut random, 0..8);
        stranger.put(&me, &changed);
    }
    for text in [&b""[..], b"{}", br#"{"type":"withdrawal","job":"x"}"#, &[0; 100], &[1; 41], &[0xff; 4_000]]
    {
        stranger.put(&me, text);
    }
    inbox = bus.open_inbox(&me, LONG).await.unwrap();
    send(&bus, &me, "three").await;
    let came = texts(&bus, &mut inbox, &me, "three").await;
    assert_eq!(came, ["one", "two", "three"]);
    // What was settled does not come again.
    for sealed in &captured {
        stranger.put(&me, sealed);
    }
    send(&bus, &me, "four").await;
    assert_eq!(texts(&bus, &mut inbox, &me, "four").await, ["four"]);
    crate::bench::eventually("what was rejected is removed", async || bus.inbox_len(&me).await.unwrap() == 0)
        .await;
}

#[tokio::test]
async fn notices_of_strangers_and_copies_of_notices_are_dropped() {
    let keys = blocking(|| Keyspace::fresh().unwrap()).await;
    let bus = open(&options(keys.url(), keys.prefix())).await.unwrap();
    let mut heard = bus.subscribe(Channel::Cluster);
    let mut elsewhere = bus.subscribe(Channel::Jobs);
    // The stranger listens too.
    let client = redis::Client::open(keys.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut listening = connection.as_pubsub();
    listening.subscribe(format!("{}channel:{}:cluster", keys.prefix(), cluster().id)).unwrap();
    listening.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    tell(&bus, "one").await;
    let copy: Vec<u8> = listening.get_message().unwrap().get_payload().unwrap();
    assert_eq!(next(&mut heard).await, message("one"));
    let mut stranger = Stranger::on(&keys);
    for text in [&copy[..], b"", b"mode", &[1; 41], &copy[..copy.len() - 1]] {
        stranger.publish(Channel::Cluster, text);
        stranger.publish(Channel::Jobs, text);
    }
    tell(&bus, "two").await;
    assert_eq!(next(&mut heard).await, message("two"));
    bus.publish(Channel::Jobs, b"three").await.unwrap();
    assert_eq!(next(&mut elsewhere).await, message("three"));
}

#[tokio::test]
async fn two_clusters_on_one_redis_never_meet() {
    let keys = blocking(|| Keyspace::fresh().unwrap()).await;
    let at = options(keys.url(), keys.prefix());
    let one = open(&at).await.unwrap();
    let secret = ClusterSecret::parse(&"t".repeat(32)).unwrap();
    let other = bus::open(&at, &Cluster { id: "d".to_owned(), secret }).await.unwrap();
    // The same ledger's name with another secret: an instance that somebody made up.
    let forged = ClusterSecret::parse(&"u".repeat(32)).unwrap();
    let forged = bus::open(&at, &Cluster { id: cluster().id, secret: forged }).await.unwrap();
    let me = id("a-1");
    let mut inbox = one.open_inbox(&me, LONG).await.unwrap();
    let mut heard = one.subscribe(Channel::Nodes);
    for stranger in [&other, &forged] {
        stranger.publish(Channel::Nodes, b"n 7").await.unwrap();
        send(stranger, &me, "a dispatch").await;
    }
    one.publish(Channel::Nodes, b"n 8").await.unwrap();
    assert_eq!(next(&mut heard).await, message("n 8"));
    send(&one, &me, "its own").await;
    let came: HashSet<_> = texts(&one, &mut inbox, &me, "its own").await.into_iter().collect();
    assert_eq!(came, HashSet::from(["its own".to_owned()]));
}
