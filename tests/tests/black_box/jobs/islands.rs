//! Instances that the bus does not join: jobs pass between them through the ledger, each runs once, and a session keeps its
//! order.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use testkit::process::Signal;
use testkit::proxy::Proxy;
use testkit::servers::Redis;

use super::hand::{Hand, done, frame, heartbeat};
use super::rig::{Node, OFFLINE, Rig, echo, hold, past, with};
use crate::until;

/// Jobs submitted to each instance.
const JOBS: u64 = 5;
/// Sessions that move at once. By 32 of them each second not all would be adopted before their leases run out.
const SESSIONS: usize = 1_000;

/// For the node of this label alone.
pub fn on(label: &str, job: Value) -> Value {
    with(job, json!({ "requires": [label] }))
}

/// A node of two slots whose label is its name, on one instance that others may not know it from.
async fn labelled(rig: &Rig, at: usize, name: &str) -> Node {
    let node = Node::start(&rig.urls[at..=at], name, |options| {
        options.capacity = 2;
        options.labels = vec![name.to_owned()];
    });
    node.connected().await;
    node
}

/// What all instances gave to others.
pub async fn handed_on(rig: &Rig, kind: &str) -> f64 {
    let mut sum = 0.0;
    for index in 0..rig.urls.len() {
        sum += rig.series(index, &format!("fencepost_handed_on_total{{kind=\"{kind}\"}}")).await;
    }
    sum
}

async fn ran_once(rig: &Rig, at: usize, node: &Node, name: &str, id: &str) {
    let job = rig.finished(at, id).await;
    assert_eq!((&job["outcome"], &job["node"]), (&json!("succeeded"), &json!(name)), "{job:#}");
    assert_eq!((&job["attempt"], node.runs.of(id).len()), (&json!(1), 1), "{job:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_four_instances_on_three_buses_run_on_the_nodes_that_there_are() {
    let rig = Rig::on_three_buses().await;
    assert_eq!((handed_on(&rig, "job").await, handed_on(&rig, "session").await), (0.0, 0.0));
    // One without Redis has the first node, one of the two on the same Redis the second.
    let nodes = [(labelled(&rig, 3, "bare").await, "bare"), (labelled(&rig, 0, "bused").await, "bused")];
    let mut jobs = Vec::new();
    for (node, name) in &nodes {
        for index in 0..rig.urls.len() {
            for n in 0..JOBS {
                jobs.push((index, node, *name, rig.submit(index, on(name, echo(n))).await));
            }
        }
    }
    for (index, node, name, id) in jobs {
        ran_once(&rig, index, node, name, &id).await;
    }
    // Of the eight pairs three need no transfer: two that are one instance, and one on the same Redis.
    let expected = JOBS as f64 * 5.0;
    assert!(handed_on(&rig, "job").await >= expected, "{} of {expected}", handed_on(&rig, "job").await);

    // A session moves to the instance without Redis as well, which opens none, and is closed there.
    let spec = json!({ "ordering": "strict", "requires": ["bare"] });
    let able = rig.instance(3).await.ready().instance.clone();
    let session = loop {
        let opened = rig.post(0, "/v1/sessions", Some(&spec), 201).await;
        // The ring may choose the able instance at once.
        if opened["owner"] != *able {
            break opened["id"].as_str().unwrap().to_owned();
        }
    };
    for n in 0..JOBS {
        let index = (n % 3) as usize;
        let id = rig.submit(index, with(echo(n), json!({ "session": session }))).await;
        ran_once(&rig, index, &nodes[0].0, "bare", &id).await;
    }
    let refused = rig.ask(3, "POST", "/v1/sessions", Some(&spec)).await;
    assert_eq!(refused.code(), "bus_unavailable", "{}", refused.text);
    assert_eq!(rig.get(3, &format!("/v1/sessions/{session}")).await["id"], *session);
    let unknown = rig.ask(3, "GET", "/v1/sessions/00000000-0000-0000-0000-000000000000", None).await;
    assert_eq!(unknown.code(), "bus_unavailable", "{}", unknown.text);
    let closed = rig.ask(1, "DELETE", &format!("/v1/sessions/{session}"), None).await;
    assert_eq!(closed.status, 204, "{}", closed.text);
    assert!(handed_on(&rig, "session").await >= 1.0);

    // A job that was transferred is cancelled and retried as any other, wherever that is asked.
    let (bare, _) = &nodes[0];
    let held = [rig.submit(3, on("bare", hold("a"))).await, rig.submit(3, on("bare", hold("b"))).await];
    for id in &held {
        bare.runs.begun(id, 1).await;
    }
    let moved = rig.submit(0, on("bare", echo("late"))).await;
    let receiver = rig.instance(3).await.ready().instance.clone();
    until("it is in the other instance's lane", async || {
        rig.job(0, &moved).await["lane"] == format!("instance:{receiver}#0")
    })
    .await;
    let cancelled = rig.ask(2, "POST", &format!("/v1/jobs/{moved}/cancel"), None).await;
    assert_eq!(
        (cancelled.status, &cancelled.body["outcome"]),
        (200, &json!("cancelled")),
        "{}",
        cancelled.text
    );
    let again = rig.post(1, &format!("/v1/jobs/{moved}/retry"), None, 202).await;
    bare.runs.release(2);
    ran_once(&rig, 1, bare, "bare", again["id"].as_str().unwrap()).await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_gone_jobs_run_on_the_nodes_of_other_instances_once_each() {
    let rig = Rig::with_own_redis(3).await;
    let node = rig.node(&[1], "far", |options| options.labels = vec!["far".to_owned()]).await;
    rig.redis.as_ref().unwrap().kill();
    let mut jobs = Vec::new();
    for n in 0..JOBS * 2 {
        for index in [0, 2] {
            jobs.push((index, rig.submit(index, on("far", echo(n))).await));
        }
    }
    for (index, id) in &jobs {
        ran_once(&rig, *index, &node, "far", id).await;
    }
    assert_eq!(handed_on(&rig, "job").await, jobs.len() as f64, "each was given once");
    // It is back: the same jobs need no ledger between them.
    rig.redis.as_ref().unwrap().boot().unwrap();
    rig.node_is(0, "far", |shown| shown["state"] == "online").await;
    let id = rig.submit(0, on("far", echo("after"))).await;
    ran_once(&rig, 0, &node, "far", &id).await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_moves_to_an_instance_with_a_node_and_keeps_its_order() {
    let rig = Rig::with_own_redis(3).await;
    super::session_client::settled(&rig).await;
    let node = rig.node(&[1], "far", |_| {}).await;
    let mut sessions = Vec::new();
    for _ in 0..8 {
        let opened = rig.post(0, "/v1/sessions", Some(&json!({ "ordering": "strict" })), 201).await;
        sessions.push(opened["id"].as_str().unwrap().to_owned());
    }
    let mut jobs = Vec::new();
    let mut submit = async |index: usize, session: &str, n: u64| {
        let id = rig.submit(index, with(echo(n), json!({ "session": session }))).await;
        jobs.push((session.to_owned(), id));
    };
    for session in &sessions {
        submit(0, session, 0).await;
    }
    rig.redis.as_ref().unwrap().kill();
    for n in 1..=JOBS {
        for session in &sessions {
            submit((n % 3) as usize, session, n).await;
        }
    }
    for (_, id) in &jobs {
        let job = rig.finished(0, id).await;
        assert_eq!((&job["outcome"], &job["node"]), (&json!("succeeded"), &json!("far")), "{job:#}");
    }
    for session in &sessions {
        let of = |id: &str| jobs.iter().any(|(other, job)| other == session && job == id);
        let mut ran: Vec<_> = node.runs.all().into_iter().filter(|run| of(&run.job)).collect();
        // An attempt that was on its way when Redis went may be repeated; nothing overtakes it.
        ran.dedup_by(|later, earlier| later.job == earlier.job);
        let order: Vec<_> = ran.iter().map(|run| run.payload["echo"].as_u64().unwrap()).collect();
        assert_eq!(order, (0..=JOBS).collect::<Vec<_>>(), "session {session}");
    }
    assert!(handed_on(&rig, "session").await >= 1.0);
    rig.redis.as_ref().unwrap().boot().unwrap();
    for session in &sessions {
        let id = rig.submit(2, with(echo("after"), json!({ "session": session }))).await;
        assert_eq!(rig.finished(0, &id).await["outcome"], "succeeded");
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sessions_that_move_at_once_are_all_served_and_none_is_passed_on_twice() {
    let rig = Rig::on_three_buses().await;
    super::session_client::settled(&rig).await;
    let able = rig.instance(3).await.ready().instance.clone();
    let spec = json!({ "requires": ["bare"] });
    let opened = stream::iter(0..).map(|n: usize| {
        let (rig, spec) = (&rig, &spec);
        async move { rig.post(n % 3, "/v1/sessions", Some(spec), 201).await }
    });
    let elsewhere = opened.buffer_unordered(8).filter(|opened| std::future::ready(opened["owner"] != *able));
    let sessions: Vec<_> = elsewhere.take(SESSIONS).collect().await;
    let submitted = stream::iter(sessions.iter().enumerate()).map(|(n, session)| {
        let (rig, job) = (&rig, with(echo(n as u64), json!({ "session": session["id"] })));
        async move { rig.submit(n % 3, job).await }
    });
    let jobs: Vec<_> = submitted.buffer_unordered(8).collect().await;
    assert_eq!(handed_on(&rig, "session").await, 0.0, "no node is there yet");
    let node = Node::start(&rig.urls[3..], "bare", |options| {
        options.capacity = 50;
        options.labels = vec!["bare".to_owned()];
    });
    node.connected().await;
    for id in &jobs {
        // A slot that is reserved for an attempt is free again before the node has it, if the ledger takes too long.
        let job = rig.finished(3, id).await;
        assert_eq!((&job["outcome"], node.runs.of(id).len()), (&json!("succeeded"), 1), "{job:#}");
    }
    let passed_on = handed_on(&rig, "session").await;
    assert!((1.0..=SESSIONS as f64).contains(&passed_on), "{passed_on} leases of {SESSIONS} were passed on");
    rig.no_defect().await;
}

/// A way to an instance, for nodes.
async fn way_to(rig: &Rig, at: usize) -> Proxy {
    Proxy::start(rig.urls[at].strip_prefix("http://").unwrap().parse().unwrap()).await.unwrap()
}

/// A node that these ways lead to instances, with two slots and its name as its label.
async fn by_ways(ways: &[&Proxy], name: &str) -> Node {
    let urls: Vec<_> = ways.iter().map(|way| format!("http://{}", way.address())).collect();
    let node = Node::start(&urls, name, |options| {
        options.capacity = 2;
        options.labels = vec![name.to_owned()];
    });
    node.connected().await;
    node
}

async fn is_at(rig: &Rig, at: usize, node: &str) {
    let instance = rig.instance(at).await.ready().instance.clone();
    rig.node_is(at, node, |shown| shown["instance"] == *instance && shown["state"] == "online").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_moves_to_another_bus_keeps_what_it_has() {
    let rig = Rig::on_three_buses().await;
    let (bare, other) = (way_to(&rig, 3).await, way_to(&rig, 2).await);
    other.cut().await.unwrap();
    let node = by_ways(&[&bare, &other], "moves").await;
    let id = rig.submit(3, on("moves", hold("m"))).await;
    node.runs.begun(&id, 1).await;
    rig.in_state(3, &id, "RUNNING").await;
    other.heal().await.unwrap();
    bare.cut().await.unwrap();
    is_at(&rig, 2, "moves").await;
    // The instance that it has left has given it up.
    until("it is gone there", async || rig.ask(3, "GET", "/v1/nodes/moves", None).await.status == 404).await;
    node.runs.release(1);
    let job = rig.finished(3, &id).await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!("m"), &json!(1)), "{job:#}");
    assert_eq!(node.runs.of(&id).len(), 1, "{job:#}");
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_had_that_dies_where_its_jobs_owner_does_not_hear_of_it_runs_elsewhere() {
    let rig = Rig::on_three_buses().await;
    let (bare, other) = (way_to(&rig, 3).await, way_to(&rig, 2).await);
    other.cut().await.unwrap();
    // One dies where it was given its job, one where it has moved to.
    let (stays, moves) = (by_ways(&[&bare], "stays").await, by_ways(&[&bare, &other], "moves").await);
    let mut ids = Vec::new();
    for (node, name) in [(&stays, "stays"), (&moves, "moves")] {
        let job = with(on(name, hold(name)), json!({ "backoff": {"initial_ms": 50} }));
        ids.push(rig.submit(3, job).await);
        node.runs.begun(ids.last().unwrap(), 1).await;
    }
    // What is not acknowledged is its owner's to take back.
    for id in &ids {
        rig.in_state(3, id, "RUNNING").await;
    }
    other.heal().await.unwrap();
    bare.cut().await.unwrap();
    is_at(&rig, 2, "moves").await;
    until("it is gone there", async || rig.ask(3, "GET", "/v1/nodes/moves", None).await.status == 404).await;
    let heirs = Node::start(&rig.urls[3..], "heir", |options| {
        options.capacity = 2;
        options.labels = vec!["stays".to_owned(), "moves".to_owned()];
    });
    heirs.connected().await;
    heirs.runs.release(2);
    drop((stays, moves));
    for (id, name) in ids.iter().zip(["stays", "moves"]) {
        let job = rig.finished(3, id).await;
        assert_eq!((&job["result"], &job["node"]), (&json!(name), &json!("heir")), "{job:#}");
        assert_eq!(past(&job), [(1, "node_lost".to_owned()), (2, "succeeded".to_owned())], "{job:#}");
    }
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_what_a_node_runs_for_a_dead_instance_is_left_to_it_wherever_it_goes() {
    let rig = Rig::without_redis(3).await;
    let (first, next) = (way_to(&rig, 0).await, way_to(&rig, 1).await);
    next.cut().await.unwrap();
    let node = by_ways(&[&first, &next], "n").await;
    let id = rig.submit(0, on("n", hold("kept"))).await;
    node.runs.begun(&id, 1).await;
    rig.in_state(1, &id, "RUNNING").await;
    let killed = rig.instance(0).await.ready().instance.clone();
    rig.end(0, Signal::Kill).await;
    // The instance that takes the dead one's lease adopts its lanes. The node goes to the other one.
    let mut heir = String::new();
    until("the dead instance's lane is adopted", async || {
        let lease = rig.get(1, &format!("/v1/leases/instance:{killed}")).await;
        heir = lease["owner"].as_str().unwrap_or_default().to_owned();
        !heir.is_empty() && heir != *killed
    })
    .await;
    let other = if rig.instance(1).await.ready().instance == heir { 2 } else { 1 };
    next.lead_to(rig.urls[other].strip_prefix("http://").unwrap().parse().unwrap());
    next.heal().await.unwrap();
    is_at(&rig, other, "n").await;
    // The heir has not heard of the node for longer than it takes to miss one.
    tokio::time::sleep(OFFLINE * 2).await;
    node.runs.release(1);
    let job = rig.finished(3 - other, &id).await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!("kept"), &json!(1)), "{job:#}");
    assert_eq!(node.runs.of(&id).len(), 1, "{job:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_an_instance_that_goes_on_under_another_id_ends_nothing_that_its_node_runs_elsewhere() {
    let rig = Rig::without_redis(2).await;
    let mut before = Hand::greeted(&rig, 0, "n", json!([])).await;
    let id = rig.submit(0, hold("kept")).await;
    let of = before.given().await;
    before.say(frame("ack", &of, json!({}))).await;
    rig.in_state(1, &id, "RUNNING").await;
    let heir = rig.instance(1).await.ready().instance.clone();
    let lease = format!("/v1/leases/instance:{}", rig.instance(0).await.ready().instance);
    rig.instance(0).await.process().signal(Signal::Stop).unwrap();
    until("the other instance has its lane", async || rig.get(1, &lease).await["owner"] == *heir).await;
    let mut now = Hand::greeted(&rig, 1, "n", json!([of])).await;
    is_at(&rig, 1, "n").await;
    // It closes the socket that it finds, as it has another id by then.
    rig.instance(0).await.process().signal(Signal::Continue).unwrap();
    let _ = before.end().await;
    // What it took for lost it would have ended by then.
    let resumed = Instant::now();
    while resumed.elapsed() < OFFLINE * 2 {
        now.say(heartbeat(json!([of]))).await;
        now.hear("heartbeat_ok").await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let job = rig.job(1, &id).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("RUNNING"), &json!(1)), "{job:#}");
    now.say(done(&of, "kept")).await;
    now.hear("committed").await;
    let job = rig.finished(1, &id).await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!("kept"), &json!(1)), "{job:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_instances_inbox_is_closed_on_its_own_bus_though_an_island_has_taken_its_lease() {
    let rig = Rig::mortal_beside_an_island().await;
    let me =
        async |index: usize| rig.get(index, "/v1/cluster").await["instance"].as_str().unwrap().to_owned();
    let (dead, island) = (me(0).await, me(2).await);
    let inboxes = || rig.redis.as_ref().unwrap().command(&["KEYS", "*{instance:*}:inbox"]).unwrap();
    until("it has an inbox", async || inboxes().contains(&dead)).await;
    // The one that shares the bus comes too late to take the lease.
    rig.instance(1).await.process().signal(Signal::Stop).unwrap();
    rig.end(0, Signal::Kill).await;
    let lease = format!("/v1/leases/instance:{dead}");
    until("the island has its lease", async || rig.get(2, &lease).await["owner"] == island.as_str()).await;
    rig.instance(1).await.process().signal(Signal::Continue).unwrap();
    until("its inbox is closed", async || !inboxes().contains(&dead)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_instances_inbox_that_comes_back_with_an_older_state_of_redis_is_closed_again() {
    let rig = Rig::shaped(2, true, |setup| setup.env("FENCEPOST__LEASE__INSTANCE_MS", "2000")).await;
    let dead = rig.get(0, "/v1/cluster").await["instance"].as_str().unwrap().to_owned();
    let redis = rig.redis.as_ref().unwrap();
    let inbox = || {
        let inboxes = redis.command(&["KEYS", "*{instance:*}:inbox"]).unwrap();
        inboxes.lines().find(|inbox| inbox.contains(&dead)).map(str::to_owned)
    };
    let mut found = None;
    until("it has an inbox", async || {
        found = inbox();
        found.is_some()
    })
    .await;
    rig.end(0, Signal::Kill).await;
    until("its inbox is closed", async || inbox().is_none()).await;
    rig.instance(1).await.process().signal(Signal::Stop).unwrap();
    redis.kill();
    redis.boot().unwrap();
    redis.command(&["XGROUP", "CREATE", &found.unwrap(), "g", "0", "MKSTREAM"]).unwrap();
    rig.instance(1).await.process().signal(Signal::Continue).unwrap();
    until("its inbox is closed again", async || inbox().is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_runs_stays_there_when_redis_is_split_and_its_jobs_owner_hears_no_more_of_it() {
    let (rig, ways) = Rig::with_ways_to_its_own_redis(2).await;
    let node = rig.node(&[0], "far", |options| options.labels = vec!["far".to_owned()]).await;
    let id = rig.submit(1, on("far", hold("kept"))).await;
    node.runs.begun(&id, 1).await;
    rig.in_state(1, &id, "RUNNING").await;
    // One instance goes to a replica, which is promoted and has the bus's name. The other one stays with the master.
    let replica = Redis::start().unwrap();
    let master = rig.redis.as_ref().unwrap().port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &master]).unwrap();
    until("the replica has what the master has", async || {
        replica.command(&["INFO", "replication"]).is_ok_and(|said| said.contains("master_link_status:up"))
    })
    .await;
    ways[1].cut().await.unwrap();
    replica.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    ways[1].lead_to(replica.address());
    ways[1].heal().await.unwrap();
    for index in 0..2 {
        until("the instance on the other server is named", async || {
            rig.ask(index, "GET", "/readyz", None).await.text.contains("shows no presence")
        })
        .await;
    }
    // Longer than a node's record lives there.
    tokio::time::sleep(Duration::from_secs(45)).await;
    let job = rig.job(1, &id).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("RUNNING"), &json!(1)), "{job:#}");
    node.runs.release(1);
    let job = rig.finished(1, &id).await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!("kept"), &json!(1)), "{job:#}");
    assert_eq!(node.runs.of(&id).len(), 1, "{job:#}");
    rig.no_defect().await;
}
