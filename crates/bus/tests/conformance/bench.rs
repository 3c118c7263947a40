//! What a case works on: a bus that several instances join, and short forms of what every case does.

use std::time::{Duration, Instant};

use bus::{Channel, Cluster, Event, Handle, Hub, Options, Presence, Subscription};
use domain::{ClusterSecret, InstanceId, Timestamp};
use testkit::servers::Keyspace;

/// Long enough for any case.
pub const LONG: Duration = Duration::from_secs(60);
/// How long a case waits for what must happen.
pub use testkit::PATIENCE;
/// How long one command may take.
const COMMAND_MS: u64 = 1_000;

pub enum Bench {
    Local(Hub),
    Redis(Keyspace),
}

impl Bench {
    pub fn local() -> Self {
        Self::Local(Hub::default())
    }

    pub async fn redis() -> Self {
        Self::Redis(blocking(|| Keyspace::fresh().unwrap()).await)
    }

    pub async fn redis_cluster() -> Self {
        Self::Redis(blocking(|| Keyspace::on_cluster().unwrap()).await)
    }

    /// One more instance on it.
    pub async fn join(&self) -> Handle {
        match self {
            Self::Local(hub) => hub.join(),
            Self::Redis(keys) => open(&options(keys.url(), keys.prefix())).await.unwrap(),
        }
    }
}

/// The cluster of all cases but those about others.
pub fn cluster() -> Cluster {
    Cluster { id: "c".to_owned(), secret: ClusterSecret::parse(&"s".repeat(32)).unwrap() }
}

/// As [`bus::open`], for that cluster.
pub async fn open(options: &Options) -> bus::Result<Handle> {
    bus::open(options, &cluster()).await
}

pub fn options(url: &str, prefix: &str) -> Options {
    Options {
        redis_url: Some(url.to_owned()),
        key_prefix: prefix.to_owned(),
        connect_timeout_ms: 20_000,
        command_timeout_ms: COMMAND_MS,
        tls_ca_file: None,
        insecure: false,
    }
}

/// What a call answers, which must not wait for ever.
pub async fn comes_back<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, call).await.expect("the call comes back")
}

/// Runs what waits for processes.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// Waits until something holds, by looking again and again; fails when it never does.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < patience, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub fn id(name: &str) -> InstanceId {
    InstanceId::parse(name).unwrap()
}

pub fn presence(name: &str) -> Presence {
    Presence {
        instance: id(name),
        started_at: Timestamp::from_micros(1_700_000_000_000_001),
        hostname: format!("host of {name}"),
        pid: 4_711,
        version: "0.1.0".to_owned(),
        address: "http://127.0.0.1:7070".to_owned(),
    }
}

pub async fn is_present(bus: &Handle, name: &str) -> bool {
    bus.present(&[id(name)]).await.unwrap().contains_key(&id(name))
}

pub async fn tell(bus: &Handle, text: &str) {
    bus.publish(Channel::Cluster, text.as_bytes()).await.unwrap();
}

/// The next event; fails when none comes.
pub async fn next(subscription: &mut Subscription) -> Event {
    tokio::time::timeout(PATIENCE, subscription.next()).await.expect("an event").expect("the bus is open")
}

pub fn message(text: &str) -> Event {
    Event::Message(text.as_bytes().into())
}

/// Waits until the link is up, or down.
pub async fn link_is(bus: &Handle, up: bool) {
    let mut link = bus.link();
    let came = tokio::time::timeout(PATIENCE, link.wait_for(|link| link.is_up() == up)).await;
    assert!(came.is_ok(), "the link never was {}", if up { "up" } else { "down" });
}

/// Waits for [`Event::Resumed`], passing over the rest.
pub async fn resumed(subscription: &mut Subscription) {
    while next(subscription).await != Event::Resumed {}
}
