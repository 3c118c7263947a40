//! The connection for commands to real servers that are well, refuse, or do not answer.

use std::path::Path;

use domain::{ClusterSecret, SessionId, Token};
use testkit::PATIENCE;
use testkit::servers::{Redis as Server, RedisCluster};

use super::super::Redis;
use super::*;
use crate::{Bus, Channel, Cluster, Options, Sessions};

async fn opened(redis_url: String) -> Redis {
    let options = Options {
        redis_url: Some(redis_url),
        key_prefix: "t:".to_owned(),
        connect_timeout_ms: 20_000,
        command_timeout_ms: 1_000,
        tls_ca_file: None,
        insecure: false,
    };
    let own = Cluster { id: "c".to_owned(), secret: ClusterSecret::parse(&"s".repeat(32)).unwrap() };
    Redis::open(&options, &own).await.unwrap()
}

/// From now on nobody looks at the link, and the connections stay.
async fn leave_alone(bus: &Redis) {
    let tasks = std::mem::take(&mut *bus.tasks.lock());
    for task in tasks {
        task.abort();
        let _ = task.await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_answer_steadily_is_asked_by_probes_alone() {
    let server = tokio::task::spawn_blocking(|| Server::start().unwrap()).await.unwrap();
    let bus = opened(server.url()).await;
    leave_alone(&bus).await;
    let shared = &bus.shared;
    let fails = |error| *shared.commands.failure.lock() = Some(error);
    let session = SessionId::parse("s").unwrap();
    let refusals = async || {
        [
            bus.identity().await.err(),
            bus.unbind_session(&session, Token::new(1)).await.err(),
            bus.publish(Channel::Cluster, b"").await.err(),
            bus.check().await.err(),
        ]
    };
    assert!(refusals().await.iter().all(Option::is_none));
    fails(failure::timed_out(Effect::Writes));
    shared.link.down(Part::Commands);
    for refused in refusals().await {
        let refused = refused.expect("it is not sent");
        assert!(refused.is_retryable() && !refused.may_have_run(), "{refused}");
    }
    try_out(shared, &[1]).await.expect("the probe is");
    let refuses = || {
        let refusal = redis::parse_redis_value(b"-READONLY x\r\n").unwrap().extract_error();
        fails(failure::of(refusal.unwrap_err(), Effect::Writes));
    };
    refuses();
    assert!(refusals().await.iter().all(Option::is_none), "it answers");
    fails(failure::timed_out(Effect::Writes));
    shared.link.found_up(shared.link.look());
    assert!(refusals().await.iter().all(Option::is_none));
    assert!(bus.failure().is_none());
    shared.link.down(Part::Commands);
    refuses();
    // It went down again soon.
    shared.link.found_up(shared.link.look());
    for refused in refusals().await {
        let refused = refused.expect("it is on trial");
        assert!(refused.is_retryable() && !refused.may_have_run(), "{refused}");
        assert!(refused.to_string().contains("Redis comes and goes"), "{refused}");
    }
    assert!(bus.failure().unwrap().to_string().contains("Redis comes and goes"));
}

/// The words that stand between one of these marks and a quotation mark, in the files of a folder.
fn words_in(folder: &str, marks: &[&str]) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let read = |path| std::fs::read_to_string(path).unwrap();
    let texts: Vec<_> = files.filter(|path| path.is_file()).map(read).collect();
    let after = |mark: &&str| {
        let found = texts.iter().flat_map(|text| text.split(*mark).skip(1));
        found.filter_map(|rest| Some(rest.split_once(['\'', '"'])?.0.to_owned())).collect::<Vec<_>>()
    };
    marks.iter().flat_map(after).collect()
}

#[test]
fn each_call_that_scripts_and_readers_make_is_tried() {
    let tried = words_in("lua", &["  { '"]);
    let mut made = words_in("lua", &["redis.call('", "redis.pcall('"]);
    made.extend(["src", "src/redis"].iter().flat_map(|folder| words_in(folder, &["cmd(\""])));
    // A start makes these in another way; the last one may be denied.
    for otherwise in ["CLUSTER", "INFO", "PUBLISH", "PING"] {
        assert!(made.remove(otherwise), "{otherwise} is made nowhere");
    }
    assert!(made.contains("XADD") && made.contains("XREADGROUP"), "{made:?}");
    assert_eq!(made, tried);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_tried_leaves_nothing_behind_and_names_what_is_refused() {
    let server = tokio::task::spawn_blocking(|| Server::start().unwrap()).await.unwrap();
    let bus = opened(server.url()).await;
    leave_alone(&bus).await;
    let shared = &bus.shared;
    let key = shared.names.probe(7);
    let is_there = || server.command(&["EXISTS", &key]).unwrap().trim() == "1";
    try_calls(shared, &[7]).await.unwrap();
    assert!(!is_there());
    server.command(&["ACL", "SETUSER", "default", "-xack"]).unwrap();
    let refused = try_calls(shared, &[7]).await.unwrap_err();
    assert!(matches!(refused, Error::Forbidden { .. }) && refused.to_string().contains("XACK"), "{refused}");
    assert!(!is_there());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_a_cluster_did_not_answer_nothing_is_written_until_the_link_is_up_or_for_a_while() {
    let started = tokio::task::spawn_blocking(|| RedisCluster::start().unwrap());
    let cluster = started.await.unwrap();
    let bus = opened(cluster.url()).await;
    leave_alone(&bus).await;
    let shared = &bus.shared;
    let [silent, other] = ["a", "b"].map(|name| SessionId::parse(name).unwrap());
    let write = async |session: &SessionId| bus.unbind_session(session, Token::new(1)).await;
    let slot = HashSlot::for_key(shared.names.session(&silent));
    let unanswered = Err::<(), _>(failure::timed_out(Effect::Writes));
    shared.commands.refusals.note(slot, &unanswered, Instant::now());
    shared.link.down(Part::Commands);
    let refused = write(&silent).await.unwrap_err();
    assert!(refused.is_retryable() && !refused.may_have_run(), "{refused}");
    write(&other).await.expect("another master may be well");
    assert!(bus.session_binding(&silent).await.unwrap().is_none(), "what only reads is sent");
    shared.link.found_up(shared.link.look());
    write(&silent).await.expect("all masters are well");
    shared.link.down(Part::Commands);
    write(&silent).await.expect("it was answered since");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_of_a_cluster_are_learned_also_while_it_takes_no_writes() {
    let started = tokio::task::spawn_blocking(|| RedisCluster::start().unwrap());
    let cluster = started.await.unwrap();
    let bus = opened(cluster.url()).await;
    for server in cluster.servers() {
        server.command(&["CONFIG", "SET", "min-replicas-to-write", "9"]).unwrap();
    }
    let mut answers = bus.answers();
    let refused = answers.wait_for(|answers| !answers);
    // Nothing of it is kept: it would hold up the task that probes.
    tokio::time::timeout(PATIENCE, refused).await.expect("writes are refused").unwrap();
    let known = &bus.shared.commands.servers;
    known.lock().clear();
    let learned = async {
        while known.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, learned).await.expect("the servers are learned");
    assert!(!bus.shared.link.answers(), "and no write is taken");
    let heard = || {
        let servers = bus.shared.commands.heard_servers(&bus.shared);
        servers.iter().map(|server| server.addr().to_string()).collect::<Vec<_>>()
    };
    let hosts: Vec<_> = bus.shared.address.hosts.iter().map(|host| host.addr().to_string()).collect();
    leave_alone(&bus).await;
    let remaining = bus.shared.address.beside("127.0.0.1", 9);
    let named = std::mem::replace(&mut *known.lock(), vec![remaining]);
    assert_eq!(heard(), ["127.0.0.1:9"], "a host of the URL that is not named is not heard from");
    let unexplained = redis::RedisError::from((redis::ErrorKind::ClusterConnectionNotFound, "none"));
    let why = explained(&bus.shared, failure::of(unexplained, Effect::Reads)).await;
    assert!(why.to_string().contains("; 127.0.0.1:9: "), "nor is it asked for a reason: {why}");
    known.lock().clear();
    assert_eq!(heard(), hosts);
    *known.lock() = named;
    // A server that is in no Cluster names none.
    let before = known.lock().len();
    remember_servers(&bus.shared, &Value::Array(vec![]));
    assert_eq!(known.lock().len(), before);
}
