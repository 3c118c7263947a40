//! What the tests of jobs stand on: instances with their servers, and waiting for what must come.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use client::node::WorkerOptions;
use parking_lot::Mutex;
use serde_json::{Value, json};
pub use testkit::PATIENCE;
use testkit::http::{Client, Reply};
use testkit::instance::{Instance, Setup, last_release};
use testkit::process::Signal;
use testkit::proxy::{Proxy, Replacement};
use testkit::servers::{Database, Keyspace, Redis, RedisCluster};
use tokio::sync::MutexGuard;
use tokio::task::AbortHandle;

pub use super::node::{Node, Run, Runs};
use crate::until;

/// How long a node whose socket was cut may take to come back, in milliseconds.
pub const GRACE_MS: &str = "1000";

/// What the instances of a rig share.
#[derive(Default)]
struct Servers {
    database: Option<Database>,
    /// Names of its own on the Redis of the whole run.
    keys: Option<Keyspace>,
    /// A Redis of its own, which the test may harm.
    redis: Option<Redis>,
}

impl Servers {
    async fn start(has_own_redis: bool) -> Self {
        let start = move || {
            let (keys, redis) = match has_own_redis {
                true => (None, Some(Redis::start().unwrap())),
                false => (Some(Keyspace::fresh().unwrap()), None),
            };
            Self { database: Some(Database::migrated().unwrap()), keys, redis }
        };
        tokio::task::spawn_blocking(start).await.unwrap()
    }

    fn database_url(&self) -> &str {
        self.database.as_ref().unwrap().url()
    }

    fn redis_url(&self) -> String {
        self.redis.as_ref().map_or_else(|| self.keys.as_ref().unwrap().url().to_owned(), Redis::url)
    }

    /// An instance that reaches them at these URLs. Its lease is long enough that a busy machine kills nobody.
    fn setup(&self, database_url: &str, redis_url: &str) -> Setup {
        let prefix = self.keys.as_ref().map_or("", Keyspace::prefix);
        let setup = bare().database(database_url).arg("--redis-url").arg(redis_url);
        setup.env("FENCEPOST__BUS__KEY_PREFIX", prefix).env("FENCEPOST__LEASE__INSTANCE_MS", "10000")
    }

    /// An instance that reaches both directly.
    fn joined(&self) -> Setup {
        self.setup(self.database_url(), &self.redis_url())
    }

    /// An instance without Redis.
    fn apart(&self) -> Setup {
        bare().database(self.database_url())
    }
}

/// An instance without servers.
fn bare() -> Setup {
    Setup::in_mode("worker-queue").unwrap()
}

/// How long nodes are [`impatient`]ly waited for until they are offline.
pub const OFFLINE: Duration = Duration::from_secs(8);

/// With the shortest waits for nodes that a busy machine bears.
fn impatient(setup: Setup) -> Setup {
    setup
        .env("FENCEPOST__NODES__HEARTBEAT_MS", "1000")
        .env("FENCEPOST__NODES__VOUCHED_MS", "3000")
        .env("FENCEPOST__NODES__RESERVATION_MS", "4000")
        .env("FENCEPOST__NODES__OFFLINE_MS", &OFFLINE.as_millis().to_string())
        .env("FENCEPOST__NODES__STRANDED_MS", "2000")
}

/// With deaths that are noticed soon, and leases of sessions and plans that last for longer than a test waits: what a dead
/// instance had is taken over before they run out.
fn mortal(setup: Setup) -> Setup {
    setup.env("FENCEPOST__LEASE__INSTANCE_MS", "2000").env("FENCEPOST__LEASE__SIGNER_MS", "300000")
}

/// The address in a URL.
fn address_of(url: &str) -> SocketAddr {
    let (_, rest) = url.split_once("://").unwrap();
    let host = rest.split('/').next().unwrap();
    host.rsplit('@').next().unwrap().parse().unwrap()
}

/// Instances, and the servers they share.
pub struct Rig {
    // In this order: instances end before the servers do.
    instances: Vec<tokio::sync::Mutex<Instance>>,
    pub urls: Vec<String>,
    /// The Redis that the test may harm, where it asked for one.
    pub redis: Option<Redis>,
    /// The PostgreSQL database of all instances, where they have one.
    pub database: Option<Database>,
    _keys: Option<Keyspace>,
    pub http: Client,
    /// Those that [`Self::node`] has started.
    nodes: Mutex<Vec<Started>>,
}

/// A node that was started, and goes on until its task has ended.
struct Started {
    name: String,
    /// The instances that it connects to.
    at: Vec<usize>,
    task: AbortHandle,
}

impl Rig {
    /// One instance on SQLite, with nothing beside it.
    pub async fn alone() -> Self {
        Self::alone_and(|setup| setup).await
    }

    /// The same, shaped so.
    pub async fn alone_and(shape: impl Fn(Setup) -> Setup) -> Self {
        Self::start(vec![shape(bare())], Servers::default()).await
    }

    /// One instance without servers, which waits for a node that connects again as long as instances do by default. With the
    /// rigs' own grace, shorter than a heartbeat's interval, a node whose socket is closed may be gone at once.
    pub async fn alone_and_patient() -> Self {
        Self::start_with(vec![bare()], Servers::default(), |setup| setup).await
    }

    /// So many instances on one PostgreSQL and one Redis, which wait as long as those for a node that connects again.
    pub async fn together_and_patient(count: usize) -> Self {
        let servers = Servers::start(false).await;
        let setups = (0..count).map(|_| servers.joined()).collect();
        Self::start_with(setups, servers, |setup| setup).await
    }

    /// So many instances on one PostgreSQL and one Redis.
    pub async fn together(count: usize) -> Self {
        Self::shaped(count, false, |setup| setup).await
    }

    /// The same, on a Redis that the test may harm.
    pub async fn with_own_redis(count: usize) -> Self {
        Self::shaped(count, true, |setup| setup).await
    }

    /// The same as [`Self::with_own_redis`], with short waits for nodes.
    pub async fn impatient_with_own_redis(count: usize) -> Self {
        Self::shaped(count, true, impatient).await
    }

    /// So many instances on one PostgreSQL and this Redis Cluster, with short waits for nodes.
    pub async fn impatient_on(cluster: &RedisCluster, count: usize) -> Self {
        let setup = |servers: &Servers| impatient(servers.setup(servers.database_url(), &cluster.url()));
        Self::on(Servers::start(false).await, count, setup).await
    }

    /// The same as [`Self::mortal`], with instances that have two lanes each for jobs without a session.
    pub async fn with_two_lanes(count: usize) -> Self {
        Self::shaped(count, false, |setup| mortal(setup).env("FENCEPOST__SERVER__WORKERS", "2")).await
    }

    /// The same as [`Self::together`], with [`mortal`] instances.
    pub async fn mortal(count: usize) -> Self {
        Self::shaped(count, false, mortal).await
    }

    /// Four instances on one PostgreSQL: two on one Redis, one on another, and one without.
    pub async fn on_three_buses() -> Self {
        let servers = Servers::start(false).await;
        // Other names on the same server are another bus.
        let prefix = format!("{}other:", servers.keys.as_ref().map_or("", Keyspace::prefix));
        let other = servers.joined().env("FENCEPOST__BUS__KEY_PREFIX", &prefix);
        let without = servers.apart().env("FENCEPOST__LEASE__INSTANCE_MS", "10000");
        Self::start(vec![servers.joined(), servers.joined(), other, without], servers).await
    }

    /// An instance of the last release, and one of this release beside it.
    pub async fn beside_the_last_release() -> Self {
        let servers = Servers::start(false).await;
        let setups = vec![servers.joined().binary(&last_release().unwrap()), servers.joined()];
        Self::start(setups, servers).await
    }

    /// Two instances on a Redis that the test may ask, and one without, whose deaths are noticed soon.
    pub async fn mortal_beside_an_island() -> Self {
        let servers = Servers::start(true).await;
        let setups = [servers.joined(), servers.joined(), servers.apart()];
        let setups = setups.map(|setup| setup.env("FENCEPOST__LEASE__INSTANCE_MS", "2000")).into();
        Self::start(setups, servers).await
    }

    /// So many instances on one PostgreSQL without Redis, whose deaths are noticed soon, and with short waits for nodes.
    pub async fn without_redis(count: usize) -> Self {
        let setup =
            |servers: &Servers| impatient(servers.apart().env("FENCEPOST__LEASE__INSTANCE_MS", "2000"));
        Self::on(Servers::start(false).await, count, setup).await
    }

    /// So many instances on one PostgreSQL and one Redis, each with a way of its own to that, and with short waits for nodes.
    pub async fn with_ways(count: usize) -> (Self, Vec<Proxy>) {
        Self::by_ways(Servers::start(false).await, count, None, impatient).await
    }

    /// The same, on a Redis that the test may harm, and with the usual waits for nodes.
    pub async fn with_ways_to_its_own_redis(count: usize) -> (Self, Vec<Proxy>) {
        Self::by_ways(Servers::start(true).await, count, None, |setup| setup).await
    }

    /// So many instances on one PostgreSQL and one Redis that never hear each other over Pub/Sub, nor themselves: what
    /// they publish and subscribe to goes by another name than they listen for. Their links are well all the same.
    pub async fn deaf(count: usize) -> (Self, Vec<Proxy>) {
        let channels = Replacement { text: b"channel:", by: b"nowhere:" };
        Self::by_ways(Servers::start(false).await, count, Some(channels), |setup| setup).await
    }

    async fn by_ways(
        servers: Servers,
        count: usize,
        replacement: Option<Replacement>,
        shape: impl Fn(Setup) -> Setup,
    ) -> (Self, Vec<Proxy>) {
        let redis = address_of(&servers.redis_url());
        Self::each_by_a_way(servers, count, (redis, replacement), |servers, way| {
            shape(servers.setup(servers.database_url(), &format!("redis://{way}")))
        })
        .await
    }

    /// So many instances on one PostgreSQL and one Redis, each with a way of its own to the ledger, and with short waits for
    /// nodes.
    pub async fn with_ways_to_the_ledger(count: usize) -> (Self, Vec<Proxy>) {
        Self::by_ways_to_the_ledger(count, impatient).await
    }

    /// The same, with leases of instances and of plans that all last for so long, in milliseconds.
    pub async fn with_ways_to_the_ledger_and_leases(count: usize, lease_ms: &str) -> (Self, Vec<Proxy>) {
        let shape = |setup: Setup| {
            impatient(setup)
                .env("FENCEPOST__LEASE__INSTANCE_MS", lease_ms)
                .env("FENCEPOST__LEASE__SIGNER_MS", lease_ms)
        };
        Self::by_ways_to_the_ledger(count, shape).await
    }

    /// One instance with a way of its own to PostgreSQL, whose calls may take as long as a call may.
    pub async fn with_a_long_way_to_the_ledger() -> (Self, Proxy) {
        let shape = |setup: Setup| {
            setup
                .env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "60000")
                .env("FENCEPOST__LEDGER__CALL_TIMEOUT_MS", "60000")
        };
        let (rig, mut ways) = Self::by_ways_to_the_ledger(1, shape).await;
        (rig, ways.remove(0))
    }

    async fn by_ways_to_the_ledger(count: usize, shape: impl Fn(Setup) -> Setup) -> (Self, Vec<Proxy>) {
        let servers = Servers::start(false).await;
        let ledger = address_of(servers.database_url());
        Self::each_by_a_way(servers, count, (ledger, None), |servers, way| {
            let url = servers.database_url().replace(&ledger.to_string(), &way.to_string());
            shape(servers.setup(&url, &servers.redis_url()))
        })
        .await
    }

    /// So many instances, each with a way of its own to this address, on which a text may be replaced, and set up for the way's
    /// own address.
    async fn each_by_a_way(
        servers: Servers,
        count: usize,
        (to, replacement): (SocketAddr, Option<Replacement>),
        setup: impl Fn(&Servers, SocketAddr) -> Setup,
    ) -> (Self, Vec<Proxy>) {
        let (mut ways, mut setups) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let way = match replacement {
                Some(replacement) => Proxy::replacing(to, replacement).await.unwrap(),
                None => Proxy::start(to).await.unwrap(),
            };
            setups.push(setup(&servers, way.address()));
            ways.push(way);
        }
        (Self::start(setups, servers).await, ways)
    }

    /// So many instances on one PostgreSQL and one Redis, of its own or not, shaped so.
    pub async fn shaped(count: usize, has_own_redis: bool, shape: impl Fn(Setup) -> Setup) -> Self {
        let servers = Servers::start(has_own_redis).await;
        Self::on(servers, count, |servers| shape(servers.joined())).await
    }

    /// So many instances on these servers, set up so.
    async fn on(servers: Servers, count: usize, setup: impl Fn(&Servers) -> Setup) -> Self {
        let setups = (0..count).map(|_| setup(&servers)).collect();
        Self::start(setups, servers).await
    }

    async fn start(setups: Vec<Setup>, servers: Servers) -> Self {
        let with_short_grace = |setup: Setup| setup.env("FENCEPOST__JOBS__NODE_GRACE_MS", GRACE_MS);
        Self::start_with(setups, servers, with_short_grace).await
    }

    async fn start_with(setups: Vec<Setup>, servers: Servers, shape: impl Fn(Setup) -> Setup) -> Self {
        let starting = setups.into_iter().map(|setup| {
            let setup = shape(setup);
            tokio::spawn(setup.env("RUST_LOG", "info,actors=debug,api=debug").start())
        });
        let (mut instances, mut urls) = (Vec::new(), Vec::new());
        for instance in starting.collect::<Vec<_>>() {
            let instance = instance.await.unwrap().unwrap();
            urls.push(instance.url().to_owned());
            instances.push(tokio::sync::Mutex::new(instance));
        }
        let http = Client::new(PATIENCE).unwrap();
        let Servers { database, keys, redis } = servers;
        let rig = Self { instances, urls, redis, database, _keys: keys, http, nodes: Mutex::default() };
        let count = rig.urls.len();
        for url in &rig.urls {
            until("all see each other", async || {
                let Ok(cluster) = rig.http.get(&format!("{url}/v1/cluster")).await else { return false };
                cluster["instances"].as_array().is_some_and(|all| all.len() == count)
            })
            .await;
        }
        rig
    }

    /// One instance.
    pub async fn instance(&self, index: usize) -> MutexGuard<'_, Instance> {
        self.instances[index].lock().await
    }

    /// Ends one instance by a signal.
    pub async fn end(&self, index: usize, signal: Signal) {
        let mut instance = self.instance(index).await;
        let status = instance.end_by(signal, PATIENCE).await.unwrap();
        if signal == Signal::Terminate {
            assert_eq!(status.code(), Some(0), "{}", instance.log());
        }
    }

    /// Sends a request to one instance.
    pub async fn ask(&self, index: usize, method: &str, path: &str, body: Option<&Value>) -> Reply {
        self.http.request(method, &format!("{}{path}", self.urls[index]), None, body).await.unwrap()
    }

    /// A series of an instance's metrics, named with its labels, which must be there.
    pub async fn series(&self, index: usize, series: &str) -> f64 {
        let text = self.ask(index, "GET", "/metrics", None).await.text;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{series} is not there")).parse().unwrap()
    }

    /// `GET`, which must succeed.
    pub async fn get(&self, index: usize, path: &str) -> Value {
        let reply = self.ask(index, "GET", path, None).await;
        assert_eq!(reply.status, 200, "GET {path}: {}", reply.text);
        reply.body
    }

    /// `POST`, which must be answered so.
    pub async fn post(&self, index: usize, path: &str, body: Option<&Value>, status: u16) -> Value {
        let reply = self.ask_owner(index, path, body, &[]).await;
        assert_eq!(reply.status, status, "POST {path}: {}", reply.text);
        reply.body
    }

    /// `POST` with these headers. As any client it asks again while the instances do not agree on the key's owner.
    pub async fn ask_owner(
        &self,
        index: usize,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Reply {
        let (begun, url) = (Instant::now(), format!("{}{path}", self.urls[index]));
        loop {
            let reply = self.http.request_with("POST", &url, headers, body).await.unwrap();
            if reply.code() != "not_owner" || begun.elapsed() >= PATIENCE {
                return reply;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Submits a job; its id.
    pub async fn submit(&self, index: usize, job: Value) -> String {
        let accepted = self.post(index, "/v1/jobs", Some(&job), 202).await;
        accepted["id"].as_str().unwrap().to_owned()
    }

    /// Submits a batch until each of its jobs is accepted, as a client does: on a machine that stands still for a while
    /// some of them are refused. Their ids, in order.
    pub async fn submit_all(&self, index: usize, jobs: &[Value]) -> Vec<String> {
        let (url, body) = (format!("{}/v1/jobs/batch", self.urls[index]), json!({ "jobs": jobs }));
        let (key, begun) = (format!("batch-{:032x}", rand::random::<u128>()), Instant::now());
        loop {
            let reply = self.http.request("POST", &url, Some(&key), Some(&body)).await.unwrap();
            let results = reply.body["results"].as_array().cloned().unwrap_or_default();
            let ids: Option<Vec<_>> =
                results.iter().map(|result| result["id"].as_str().map(str::to_owned)).collect();
            match ids {
                Some(ids) if ids.len() == jobs.len() => return ids,
                _ => assert!(begun.elapsed() < PATIENCE, "{}", reply.text),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// How a job is.
    pub async fn job(&self, index: usize, id: &str) -> Value {
        self.get(index, &format!("/v1/jobs/{id}")).await
    }

    /// A job when it is finished. As any client it asks again where a busy ledger did not answer in time.
    pub async fn finished(&self, index: usize, id: &str) -> Value {
        let (begun, path) = (Instant::now(), format!("/v1/jobs/{id}?wait_ms=5000"));
        loop {
            let reply = self.ask(index, "GET", &path, None).await;
            let is_busy = reply.code() == "ledger_unavailable";
            assert!(reply.status == 200 || is_busy, "GET {path}: {}", reply.text);
            let job = reply.body;
            if job["state"] == "FINISHED" {
                return job;
            }
            if begun.elapsed() > PATIENCE {
                let nodes = self.get(index, "/v1/nodes").await;
                panic!("not finished: {job:#}\n{nodes:#}\n{}", self.instance(index).await.log());
            }
            if is_busy {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Waits until a job is in this state.
    pub async fn in_state(&self, index: usize, id: &str, state: &str) {
        until(&format!("job {id} is {state}"), async || self.job(index, id).await["state"] == state).await;
    }

    /// Waits until the instance shows the node so.
    pub async fn node_is(&self, index: usize, node: &str, so: impl Fn(&Value) -> bool) {
        until(&format!("node {node} is shown so"), async || {
            let reply = self.ask(index, "GET", &format!("/v1/nodes/{node}"), None).await;
            so(&reply.body)
        })
        .await;
    }

    /// A node connected to the instances named, known to all that run, with work that the test has in its hands.
    pub async fn node(&self, at: &[usize], name: &str, shape: impl FnOnce(&mut WorkerOptions)) -> Node {
        let urls: Vec<_> = at.iter().map(|index| self.urls[*index].clone()).collect();
        let node = Node::start(&urls, name, shape);
        let (name_of, task) = (name.to_owned(), node.task.abort_handle());
        self.nodes.lock().push(Started { name: name_of, at: at.to_vec(), task });
        node.connected().await;
        for index in 0..self.urls.len() {
            if self.instance(index).await.is_started() {
                self.node_is(index, name, |shown| shown["state"] == "online").await;
            }
        }
        node
    }

    /// The nodes of [`Self::node`] that go on and have an instance to connect to, of those that run.
    fn living(&self, running: &[usize]) -> Vec<String> {
        let nodes = self.nodes.lock();
        let is_living =
            |node: &&Started| !node.task.is_finished() && node.at.iter().any(|index| running.contains(index));
        nodes.iter().filter(is_living).map(|node| node.name.clone()).collect()
    }

    /// Waits until no node is shown with a slot taken, on any instance, and every node that lives is back at one of them.
    pub async fn nothing_is_held(&self) {
        let mut running = Vec::new();
        for index in 0..self.urls.len() {
            if self.instance(index).await.is_started() {
                running.push(index);
            }
        }
        until("no slot is taken, and every node is there", async || {
            let mut missing = self.living(&running);
            for index in &running {
                let nodes = self.get(*index, "/v1/nodes?limit=1000").await;
                let nodes = nodes["items"].as_array().unwrap();
                if nodes.iter().any(|node| node["used"] != 0) {
                    return false;
                }
                missing.retain(|name| !is_back(nodes, name));
            }
            missing.is_empty()
        })
        .await;
    }

    /// No instance has logged a defect. That one was taken for dead is none.
    pub async fn no_defect(&self) {
        let of = |line: &&str| {
            let is_error = line.contains("\"ERROR\"") && !line.contains("\"cluster::membership\"");
            is_error || line.contains("panicked")
        };
        for instance in &self.instances {
            let log = instance.lock().await.whole_log();
            let defect = log.lines().find(of);
            assert_eq!(defect, None);
        }
    }
}

/// Whether an instance shows this node as one that it hears of. The record of another may have outlived its instance.
fn is_back(nodes: &[Value], name: &str) -> bool {
    let is_heard = |node: &Value| node["state"] == "online" || node["state"] == "draining";
    nodes.iter().any(|node| node["id"] == name && is_heard(node))
}

#[test]
fn a_node_of_which_only_a_record_is_left_is_not_back() {
    let shown = |state: &str| [json!({"id": "n", "state": state}), json!({"id": "other", "state": "online"})];
    for state in ["online", "draining"] {
        assert!(is_back(&shown(state), "n"), "{state}");
    }
    for state in ["unhealthy", "offline"] {
        assert!(!is_back(&shown(state), "n"), "{state}");
    }
    assert!(!is_back(&shown("online"), "nobody"));
}

/// A job that is given back at once.
pub fn echo(of: impl Into<Value>) -> Value {
    json!({ "payload": { "echo": of.into() } })
}

/// A job that is held until it is let go.
pub fn hold(of: impl Into<Value>) -> Value {
    json!({ "payload": { "hold": of.into() } })
}

/// A job with these fields beside.
pub fn with(mut job: Value, fields: Value) -> Value {
    job.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    job
}

/// No node was given more than it takes: it would have rejected the attempt.
pub fn none_was_rejected(job: &Value) {
    assert!(past(job).iter().all(|(_, how)| how != "rejected"), "{job:#}");
}

/// What the attempts of a job that are over came to.
pub fn past(job: &Value) -> Vec<(u64, String)> {
    let of = |past: &Value| (past["attempt"].as_u64().unwrap(), past["state"].as_str().unwrap().to_owned());
    job["attempts"].as_array().unwrap().iter().map(of).collect()
}
