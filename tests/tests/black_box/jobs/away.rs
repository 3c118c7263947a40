//! Redis is away: killed and empty when it is back, frozen for longer than a record lives, or cut off from one instance.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::proxy::Proxy;

use super::rig::{Node, OFFLINE, Rig, echo, hold, none_was_rejected, with};

/// Jobs that wait for other instances' nodes, and those for the own ones.
const JOBS: u64 = 10;

/// For the node of this label alone.
fn on(label: &str, job: Value) -> Value {
    with(job, json!({ "requires": [label], "backoff": {"initial_ms": 100, "max_ms": 500} }))
}

/// A node of two slots whose label is its name.
async fn labelled(rig: &Rig, at: usize, name: &str) -> Node {
    rig.node(&[at], name, |options| {
        options.capacity = 2;
        options.labels = vec![name.to_owned()];
    })
    .await
}

/// What three instances were doing before Redis went: on a node of the first, for the third, and the other way round.
struct Before {
    own: Node,
    far: Node,
    held: Vec<(usize, String)>,
}

impl Before {
    async fn of(rig: &Rig) -> Self {
        let (own, far) = (labelled(rig, 0, "own").await, labelled(rig, 1, "far").await);
        let held = vec![
            (2, rig.submit(2, on("own", hold("a"))).await),
            (0, rig.submit(0, on("far", hold("b"))).await),
        ];
        own.runs.begun(&held[0].1, 1).await;
        far.runs.begun(&held[1].1, 1).await;
        Self { own, far, held }
    }

    /// The first instance goes on with its own node. Answers what was submitted for other instances' nodes, which get it through
    /// the ledger or when Redis is back.
    async fn goes_on(&self, rig: &Rig) -> Vec<String> {
        let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
        for n in 0..JOBS {
            here.push(rig.submit(0, on("own", echo(n))).await);
            elsewhere.push(rig.submit(0, on("far", echo(n))).await);
            elsewhere.push(rig.submit(2, on("own", echo(n))).await);
        }
        for (n, id) in here.iter().enumerate() {
            let job = rig.finished(0, id).await;
            assert_eq!((&job["result"], &job["node"]), (&json!(n), &json!("own")), "{job:#}");
            assert_eq!(self.own.runs.of(id).len(), 1, "{job:#}");
            none_was_rejected(&job);
        }
        elsewhere
    }

    /// Everything is as if nothing had been.
    async fn ends(self, rig: &Rig, elsewhere: &[String]) {
        for id in elsewhere {
            let job = rig.finished(1, id).await;
            assert_eq!(job["outcome"], "succeeded", "{job:#}");
            none_was_rejected(&job);
        }
        self.own.runs.release(1);
        self.far.runs.release(1);
        for (at, id) in &self.held {
            let job = rig.finished(*at, id).await;
            assert_eq!((&job["outcome"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job:#}");
        }
        rig.nothing_is_held().await;
        rig.no_defect().await;
    }
}

/// A node that the others come to know when Redis is back.
async fn is_one_of_all(rig: &Rig, node: &Node, name: &str) {
    for index in 0..rig.urls.len() {
        rig.node_is(index, name, |shown| shown["state"] == "online").await;
        let id = rig.submit(index, on(name, echo(index))).await;
        assert_eq!(rig.finished(index, &id).await["node"], name);
        assert_eq!(node.runs.of(&id).len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_gone_instances_go_on_with_their_own_nodes() {
    let rig = Rig::impatient_with_own_redis(3).await;
    let before = Before::of(&rig).await;
    let shape = |options: &mut client::node::WorkerOptions| options.labels = vec!["new".to_owned()];
    rig.node(&[0], "new", shape).await.stop().await;
    let redis = rig.redis.as_ref().unwrap();
    redis.kill();
    let elsewhere = before.goes_on(&rig).await;
    // One that comes again meanwhile is welcomed, for the work of that instance.
    let new = Node::start(&rig.urls[..1], "new", shape);
    new.connected().await;
    rig.node_is(0, "new", |shown| shown["record_version"] == 0).await;
    let (shown, own) = (rig.get(0, "/v1/nodes/new").await, rig.get(0, "/v1/nodes/own").await);
    assert_eq!((&shown["registered_at"], &shown["state"]), (&Value::Null, &json!("online")), "{shown:#}");
    assert!(shown["seen_at"].as_str() >= own["registered_at"].as_str(), "{shown:#}");
    for n in 0..3 {
        let id = rig.submit(0, on("new", echo(n))).await;
        assert_eq!(rig.finished(0, &id).await["node"], "new");
    }
    redis.boot().unwrap();
    before.ends(&rig, &elsewhere).await;
    is_one_of_all(&rig, &new, "new").await;
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_frozen_for_longer_than_a_record_lives_costs_nobody_its_work() {
    const FROZEN: Duration = OFFLINE.saturating_add(Duration::from_secs(4));
    let rig = Rig::impatient_with_own_redis(3).await;
    let before = Before::of(&rig).await;
    // One that goes from the second instance to the third meanwhile, with what it has.
    let mut ways = Vec::new();
    for url in &rig.urls[1..] {
        ways.push(Proxy::start(url.strip_prefix("http://").unwrap().parse().unwrap()).await.unwrap());
    }
    let urls: Vec<_> = ways.iter().map(|way| format!("http://{}", way.address())).collect();
    ways[1].cut().await.unwrap();
    let moves = Node::start(&urls, "moves", |options| options.labels = vec!["moves".to_owned()]);
    moves.connected().await;
    rig.node_is(0, "moves", |shown| shown["state"] == "online").await;
    ways[1].heal().await.unwrap();
    let moved = rig.submit(0, on("moves", hold("m"))).await;
    moves.runs.begun(&moved, 1).await;

    let (redis, frozen) = (rig.redis.as_ref().unwrap(), Instant::now());
    redis.freeze().unwrap();
    ways[0].cut().await.unwrap();
    let elsewhere = before.goes_on(&rig).await;
    rig.node_is(2, "moves", |shown| shown["state"] == "online" && shown["used"] == 1).await;
    tokio::time::sleep_until((frozen + FROZEN).into()).await;
    redis.wake().unwrap();
    is_one_of_all_but_full(&rig, "moves").await;
    moves.runs.release(1);
    let job = rig.finished(0, &moved).await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!("m"), &json!(1)), "{job:#}");
    before.ends(&rig, &elsewhere).await;
}

/// A node that is full, as all see when Redis is back.
async fn is_one_of_all_but_full(rig: &Rig, name: &str) {
    let holder = rig.instance(2).await.ready().instance.clone();
    for index in 0..rig.urls.len() {
        rig.node_is(index, name, |shown| shown["instance"] == holder.as_str() && shown["used"] == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_redis_is_cut_off_from_goes_on_with_its_own_nodes() {
    let (rig, ways) = Rig::with_ways(3).await;
    let before = Before::of(&rig).await;
    ways[0].cut().await.unwrap();
    let elsewhere = before.goes_on(&rig).await;
    // The others are not concerned.
    let id = rig.submit(2, on("far", echo("there"))).await;
    assert_eq!(rig.finished(2, &id).await["node"], "far");
    ways[0].heal().await.unwrap();
    before.ends(&rig, &elsewhere).await;
}
