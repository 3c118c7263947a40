//! What the tests of jobs stand on: instances with their servers, nodes whose work the test holds in its hands, and
//! waiting for what must come.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::node::{Ended, Event, Failure, Job, Why, Worker, WorkerOptions};
use client::wire::Json;
use parking_lot::Mutex;
use serde_json::{Value, json};
pub use testkit::PATIENCE;
use testkit::http::{Client, Reply};
use testkit::instance::{Instance, Setup, last_release};
use testkit::process::Signal;
use testkit::proxy::{Proxy, Replacement};
use testkit::servers::{Database, Keyspace, Redis, RedisCluster};
use tokio::sync::{MutexGuard, Semaphore, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};

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
        let setup = Setup::in_mode("worker-queue").unwrap().database(database_url);
        let setup = setup.arg("--redis-url").arg(redis_url).env("FENCEPOST__BUS__KEY_PREFIX", prefix);
        setup.env("FENCEPOST__LEASE__INSTANCE_MS", "10000")
    }
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
        Self::start(vec![Setup::in_mode("worker-queue").unwrap()], Servers::default()).await
    }

    /// The same, shaped so.
    pub async fn alone_and(shape: impl Fn(Setup) -> Setup) -> Self {
        Self::start(vec![shape(Setup::in_mode("worker-queue").unwrap())], Servers::default()).await
    }

    /// One instance without servers, which waits for a node that connects again as long as instances do by default. With the
    /// rigs' own grace, shorter than a heartbeat's interval, a node whose socket is closed may be gone at once.
    pub async fn alone_and_patient() -> Self {
        let setups = vec![Setup::in_mode("worker-queue").unwrap()];
        Self::start_with(setups, Servers::default(), |setup| setup).await
    }

    /// So many instances on one PostgreSQL and one Redis, which wait as long as those for a node that connects again.
    pub async fn together_and_patient(count: usize) -> Self {
        let servers = Servers::start(false).await;
        let setup = |_| servers.setup(servers.database_url(), &servers.redis_url());
        let setups = (0..count).map(setup).collect();
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
        let servers = Servers::start(false).await;
        let setup = |_| impatient(servers.setup(servers.database_url(), &cluster.url()));
        let setups = (0..count).map(setup).collect();
        Self::start(setups, servers).await
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
        let setup = || servers.setup(servers.database_url(), &servers.redis_url());
        // Other names on the same server are another bus.
        let prefix = format!("{}other:", servers.keys.as_ref().map_or("", Keyspace::prefix));
        let other = setup().env("FENCEPOST__BUS__KEY_PREFIX", &prefix);
        let without = Setup::in_mode("worker-queue").unwrap().database(servers.database_url());
        let without = without.env("FENCEPOST__LEASE__INSTANCE_MS", "10000");
        let setups = vec![setup(), setup(), other, without];
        Self::start(setups, servers).await
    }

    /// An instance of the last release, and one of this release beside it.
    pub async fn beside_the_last_release() -> Self {
        let servers = Servers::start(false).await;
        let setup = || servers.setup(servers.database_url(), &servers.redis_url());
        let setups = vec![setup().binary(&last_release().unwrap()), setup()];
        Self::start(setups, servers).await
    }

    /// Two instances on a Redis that the test may ask, and one without, whose deaths are noticed soon.
    pub async fn mortal_beside_an_island() -> Self {
        let servers = Servers::start(true).await;
        let joined = || servers.setup(servers.database_url(), &servers.redis_url());
        let island = Setup::in_mode("worker-queue").unwrap().database(servers.database_url());
        let setups = [joined(), joined(), island];
        let setups = setups.map(|setup| setup.env("FENCEPOST__LEASE__INSTANCE_MS", "2000")).into();
        Self::start(setups, servers).await
    }

    /// So many instances on one PostgreSQL without Redis, whose deaths are noticed soon, and with short waits for nodes.
    pub async fn without_redis(count: usize) -> Self {
        let servers = Servers::start(false).await;
        let setup = |_| {
            let setup = Setup::in_mode("worker-queue").unwrap().database(servers.database_url());
            impatient(setup.env("FENCEPOST__LEASE__INSTANCE_MS", "2000"))
        };
        let setups = (0..count).map(setup).collect();
        Self::start(setups, servers).await
    }

    /// So many instances on one PostgreSQL and one Redis, each with a way of its own to that, and with short waits for nodes.
    pub async fn with_ways(count: usize) -> (Self, Vec<Proxy>) {
        Self::by_ways(Servers::start(false).await, count, impatient).await
    }

    /// The same, on a Redis that the test may harm, and with the usual waits for nodes.
    pub async fn with_ways_to_its_own_redis(count: usize) -> (Self, Vec<Proxy>) {
        Self::by_ways(Servers::start(true).await, count, |setup| setup).await
    }

    async fn by_ways(servers: Servers, count: usize, shape: impl Fn(Setup) -> Setup) -> (Self, Vec<Proxy>) {
        let (mut ways, mut setups) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let way = Proxy::start(address_of(&servers.redis_url())).await.unwrap();
            let url = format!("redis://{}", way.address());
            setups.push(shape(servers.setup(servers.database_url(), &url)));
            ways.push(way);
        }
        (Self::start(setups, servers).await, ways)
    }

    /// So many instances on one PostgreSQL and one Redis that never hear each other over Pub/Sub, nor themselves: what
    /// they publish and subscribe to goes by another name than they listen for. Their links are well all the same.
    pub async fn deaf(count: usize) -> (Self, Vec<Proxy>) {
        let servers = Servers::start(false).await;
        let (mut ways, mut setups) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let channels = Replacement { text: b"channel:", by: b"nowhere:" };
            let way = Proxy::replacing(address_of(&servers.redis_url()), channels).await.unwrap();
            setups.push(servers.setup(servers.database_url(), &format!("redis://{}", way.address())));
            ways.push(way);
        }
        (Self::start(setups, servers).await, ways)
    }

    /// The same, each with a way of its own to the ledger, and with short waits for nodes.
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

    async fn by_ways_to_the_ledger(count: usize, shape: impl Fn(Setup) -> Setup) -> (Self, Vec<Proxy>) {
        let servers = Servers::start(false).await;
        let address = address_of(servers.database_url());
        let (mut ways, mut setups) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let way = Proxy::start(address).await.unwrap();
            let url = servers.database_url().replace(&address.to_string(), &way.address().to_string());
            setups.push(shape(servers.setup(&url, &servers.redis_url())));
            ways.push(way);
        }
        (Self::start(setups, servers).await, ways)
    }

    /// One instance with a way of its own to PostgreSQL, whose calls may take as long as a call may.
    pub async fn with_a_long_way_to_the_ledger() -> (Self, Proxy) {
        let servers = Servers::start(false).await;
        let address = address_of(servers.database_url());
        let way = Proxy::start(address).await.unwrap();
        let url = servers.database_url().replace(&address.to_string(), &way.address().to_string());
        let setup = servers.setup(&url, &servers.redis_url());
        let setup = setup.env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "60000");
        let setup = setup.env("FENCEPOST__LEDGER__CALL_TIMEOUT_MS", "60000");
        (Self::start(vec![setup], servers).await, way)
    }

    /// So many instances on one PostgreSQL and one Redis, of its own or not, shaped so.
    pub async fn shaped(count: usize, has_own_redis: bool, shape: impl Fn(Setup) -> Setup) -> Self {
        let servers = Servers::start(has_own_redis).await;
        let setup = |_| shape(servers.setup(servers.database_url(), &servers.redis_url()));
        let setups = (0..count).map(setup).collect();
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

    /// A job when it is finished.
    pub async fn finished(&self, index: usize, id: &str) -> Value {
        let begun = Instant::now();
        loop {
            let job = self.get(index, &format!("/v1/jobs/{id}?wait_ms=5000")).await;
            if job["state"] == "FINISHED" {
                return job;
            }
            if begun.elapsed() > PATIENCE {
                let nodes = self.get(index, "/v1/nodes").await;
                panic!("not finished: {job:#}\n{nodes:#}\n{}", self.instance(index).await.log());
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

/// One attempt that a node was given.
#[derive(Clone, Debug)]
pub struct Run {
    pub node: String,
    pub job: String,
    pub attempt: u32,
    pub payload: Value,
    pub kind: Value,
    pub metadata: Value,
    /// What it was told of a plan.
    pub stage: Value,
    /// The span that it continues.
    pub traceparent: Option<String>,
    /// Why it was stopped, if it was.
    pub stopped: Option<Why>,
}

/// What nodes were given, in that order, and the gate before what is to be held.
pub struct Runs {
    runs: watch::Sender<Vec<Run>>,
    gate: Semaphore,
    /// How long what does not say otherwise takes.
    pause: Mutex<Duration>,
    /// How many run on each node, and how many did at most.
    busy: Mutex<HashMap<String, (usize, usize)>>,
    /// Whether what is deadly is so no more.
    is_cured: AtomicBool,
}

impl Runs {
    pub fn new() -> Arc<Self> {
        let (runs, gate) = (watch::Sender::default(), Semaphore::new(0));
        let is_cured = AtomicBool::new(false);
        Arc::new(Self { runs, gate, pause: Mutex::default(), busy: Mutex::default(), is_cured })
    }

    pub fn all(&self) -> Vec<Run> {
        self.runs.borrow().clone()
    }

    /// How many ran at once on this node, at most.
    pub fn most(&self, node: &str) -> usize {
        self.busy.lock().get(node).map_or(0, |(_, most)| *most)
    }

    fn begin(self: &Arc<Self>, node: &str) -> Busy {
        let mut busy = self.busy.lock();
        let (now, most) = busy.entry(node.to_owned()).or_default();
        *now += 1;
        *most = (*most).max(*now);
        Busy { runs: Arc::clone(self), node: node.to_owned() }
    }

    /// Attempts of this job.
    pub fn of(&self, job: &str) -> Vec<Run> {
        self.runs.borrow().iter().filter(|run| run.job == job).cloned().collect()
    }

    /// Lets so many of those that are held, or will be, go.
    pub fn release(&self, count: usize) {
        self.gate.add_permits(count);
    }

    /// Waits until what was given is so.
    pub async fn until(&self, what: &str, so: impl Fn(&[Run]) -> bool) {
        let mut runs = self.runs.subscribe();
        let wait = tokio::time::timeout(PATIENCE, runs.wait_for(|runs| so(runs)));
        assert!(wait.await.is_ok(), "not within {PATIENCE:?}: {what}: {:?}", self.all());
    }

    /// Waits until this job was begun so often.
    pub async fn begun(&self, job: &str, times: usize) {
        self.until("it was begun", |runs| runs.iter().filter(|run| run.job == job).count() >= times).await;
    }

    /// Waits until this attempt was stopped; why.
    pub async fn stopped(&self, job: &str, attempt: u32) -> Why {
        let of = |run: &Run| (run.job == job && run.attempt == attempt).then_some(run.stopped).flatten();
        self.until("it was stopped", |runs| runs.iter().any(|run| of(run).is_some())).await;
        self.all().iter().find_map(of).unwrap()
    }

    /// Does what the payload says: `{"echo": x}` answers x at once, `{"large": n}` n letters, `{"hold": x}` x when it is let
    /// go, `{"steps": n}` says how far it is each time it is let go, and answers then, `{"fail": n}` fails in its first n
    /// attempts, `{"broken": text}` for good, and `{"deadly": true}` takes the node with it.
    async fn run(self: Arc<Self>, node: String, job: Job, death: Arc<tokio::sync::Notify>) -> Given {
        let payload: Value = job.payload.read().unwrap();
        let Job { id, attempt, kind, metadata, stage, traceparent, stop, progress, .. } = job;
        let _busy = self.begin(&node);
        let (job, kind, metadata) = (id.clone(), json!(kind), json!(metadata));
        let stage = stage.map_or(Value::Null, |stage| stage.read().unwrap());
        let payload_given = payload.clone();
        let run = Run {
            node,
            job,
            attempt,
            payload: payload_given,
            kind,
            metadata,
            stage,
            traceparent,
            stopped: None,
        };
        self.runs.send_modify(|runs| runs.push(run));
        if payload["hold"] != Value::Null {
            progress.send(Some(50.0), Some("held"));
            tokio::select! {
                permit = self.gate.acquire() => permit.unwrap().forget(),
                why = stop.requested() => {
                    self.runs.send_modify(|runs| {
                        let of = |run: &&mut Run| run.job == id && run.attempt == attempt;
                        runs.iter_mut().find(of).unwrap().stopped = Some(why);
                    });
                    return Err(Failure::passing(why.to_string()));
                }
            }
            return Ok(Json::of(&payload["hold"]).unwrap());
        }
        if let Some(length) = payload["large"].as_u64() {
            return Ok(Json::of(&"x".repeat(length as usize)).unwrap());
        }
        if let Some(steps) = payload["steps"].as_u64() {
            for step in 1..=steps {
                self.gate.acquire().await.unwrap().forget();
                progress.send(Some((step * 100 / steps) as f64), Some(&format!("step {step}")));
            }
            self.gate.acquire().await.unwrap().forget();
            return Ok(Json::of(&steps).unwrap());
        }
        if payload["deadly"] == true && !self.is_cured.load(Ordering::Relaxed) {
            death.notify_one();
            std::future::pending::<()>().await;
        }
        if let Some(times) = payload["fail"].as_u64() {
            return match u64::from(attempt) <= times {
                true => Err(Failure::passing(format!("failure {attempt}"))),
                false => Ok(Json::of(&attempt).unwrap()),
            };
        }
        if let Some(text) = payload["broken"].as_str() {
            return Err(Failure::lasting(text));
        }
        let pause = *self.pause.lock();
        tokio::time::sleep(pause).await;
        Ok(Json::of(&payload["echo"]).unwrap())
    }

    /// From now on nothing is deadly.
    pub fn cure(&self) {
        self.is_cured.store(true, Ordering::Relaxed);
    }

    /// From now on each `echo` takes so long.
    pub fn take(&self, pause: Duration) {
        *self.pause.lock() = pause;
    }
}

/// Something runs on a node until this is dropped.
struct Busy {
    runs: Arc<Runs>,
    node: String,
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some((now, _)) = self.runs.busy.lock().get_mut(&self.node) {
            *now -= 1;
        }
    }
}

type Given = Result<Json, Failure>;

/// A node in this process. Dropped, it is as dead as one that was killed: its socket closes without a word.
pub struct Node {
    pub runs: Arc<Runs>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Option<Ended>>,
    connections: watch::Receiver<u32>,
}

impl Node {
    /// Begins to connect.
    pub fn start(urls: &[String], name: &str, shape: impl FnOnce(&mut WorkerOptions)) -> Self {
        Self::sharing(Runs::new(), urls, name, shape)
    }

    /// The same, noting what it is given beside what others are.
    pub fn sharing(
        runs: Arc<Runs>,
        urls: &[String],
        name: &str,
        shape: impl FnOnce(&mut WorkerOptions),
    ) -> Self {
        let mut options = WorkerOptions::new(urls.iter().cloned(), name);
        options.times.pause_max = Duration::from_millis(500);
        options.times.stop_grace = Duration::from_secs(1);
        shape(&mut options);
        let (connected, connections) = watch::channel(0);
        let worker = Worker::new(options).unwrap().with_observer(move |event| {
            if matches!(event, Event::Connected { .. }) {
                connected.send_modify(|count| *count += 1);
            }
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let death = Arc::new(tokio::sync::Notify::new());
        let (mine, deadly, name) = (Arc::clone(&runs), Arc::clone(&death), name.to_owned());
        let handler = move |job| Arc::clone(&mine).run(name.clone(), job, Arc::clone(&deadly));
        let task = tokio::spawn(async move {
            tokio::select! {
                // A sender that is gone tells it as well.
                ended = worker.run(handler, async { stopped.await.unwrap_or_default() }) => Some(ended.unwrap()),
                () = death.notified() => None,
            }
        });
        Self { runs, stop: Some(stop), task, connections }
    }

    /// Waits until a scheduler has taken it.
    pub async fn connected(&self) {
        let mut connections = self.connections.clone();
        let wait = tokio::time::timeout(PATIENCE, connections.wait_for(|count| *count > 0));
        assert!(wait.await.is_ok(), "the node is not connected");
    }

    /// Waits for its end; `None` if its work took it along.
    pub async fn ended(&mut self) -> Option<Ended> {
        tokio::time::timeout(PATIENCE, &mut self.task).await.expect("the node ends").unwrap()
    }

    /// Has it finish what it has, and waits until it has.
    pub async fn stop(mut self) -> Option<Ended> {
        self.stop.take().unwrap().send(()).unwrap();
        self.ended().await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
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
