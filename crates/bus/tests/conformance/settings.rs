//! Wrong URLs, wrong passwords, servers that are set dangerously: said quickly, and said what.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use bus::{Channel, Error, Options};
use domain::{SessionId, Token};
use testkit::ports;
use testkit::servers::{Keyspace, Redis, RedisCluster};

use crate::bench::{
    LONG, blocking, comes_back, eventually, id, is_present, message, next, open, options, presence, tell,
};
use crate::inboxes::{next_batch, send_numbers};
use crate::nodes::{node, ready};

/// The error of an opening that must fail at once, though a server that is away would be waited for for ten minutes.
async fn refused_at_once(options: &Options) -> Error {
    let lasting = Options { connect_timeout_ms: 600_000, ..options.clone() };
    comes_back(open(&lasting)).await.err().expect("a refusal")
}

#[tokio::test]
async fn a_wrong_password_is_refused_at_once_and_not_shown() {
    let server = blocking(|| Redis::with(&["--requirepass", "right"]).unwrap()).await;
    let with = |user: &str| options(&server.url().replace("//", &format!("//{user}")), "t:");
    for user in ["", ":guess@", "nobody:right@", "nobody:guess@"] {
        let refused = refused_at_once(&with(user)).await;
        assert!(matches!(refused, Error::Denied { .. }), "{user}: {refused:?}");
        assert!(!refused.is_retryable() && !refused.to_string().contains("guess"), "{refused}");
    }
    for user in [":right@", "default:right@"] {
        let bus = open(&with(user)).await.unwrap();
        let mut subscription = bus.subscribe(Channel::Cluster);
        bus.announce(&presence("a-1"), LONG).await.unwrap();
        tell(&bus, "in").await;
        assert_eq!(next(&mut subscription).await, message("in"));
    }
}

#[tokio::test]
async fn a_user_who_may_not_write_publish_or_listen_is_refused_at_once() {
    let server = blocking(|| Redis::start().unwrap()).await;
    for (user, rules) in [
        ("mute", "+@all -publish allkeys allchannels"),
        ("deaf", "+@all allkeys resetchannels"),
        ("still", "+@all -@write allkeys allchannels"),
        ("blind", "+@all -info allkeys allchannels"),
    ] {
        let mut command = vec!["ACL", "SETUSER", user, "on", ">p"];
        command.extend(rules.split(' '));
        server.command(&command).unwrap();
        let url = server.url().replace("//", &format!("//{user}:p@"));
        let refused = refused_at_once(&options(&url, "t:")).await;
        assert!(matches!(refused, Error::Forbidden { .. }), "{user}: {refused:?}");
    }
}

#[tokio::test]
async fn a_user_who_may_not_make_a_call_of_scripts_or_readers_is_refused_at_once() {
    let server = blocking(|| Redis::start().unwrap()).await;
    let url = server.url().replace("//", "//u:p@");
    for call in ["eval", "evalsha", "time", "hgetall", "zadd", "xadd", "xreadgroup", "xautoclaim"] {
        let denied = format!("-{call}");
        let rights = ["reset", "on", ">p", "allkeys", "allchannels", "+@all", &denied];
        server.command(&[&["ACL", "SETUSER", "u"], &rights[..]].concat()).unwrap();
        let refused = refused_at_once(&options(&url, "t:")).await;
        let is_named = refused.to_string().to_lowercase().contains(call);
        assert!(matches!(refused, Error::Forbidden { .. }) && is_named, "{call}: {refused:?}");
    }
}

#[tokio::test]
async fn a_server_with_renamed_commands_is_refused_at_once() {
    for command in ["HGETALL", "EVALSHA"] {
        let server = blocking(move || Redis::with(&["--rename-command", command, ""]).unwrap()).await;
        let refused = refused_at_once(&options(&server.url(), "t:")).await;
        let is_named = refused.to_string().contains(command);
        assert!(matches!(refused, Error::Refused { .. }) && is_named, "{command}: {refused:?}");
    }
}

/// The rights that docs/operations.md gives to a user, for this prefix and with the password `p`.
fn documented_rights(prefix: &str) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rights = page.lines().find(|line| line.starts_with("ACL SETUSER fencepost ")).unwrap();
    rights.replace("PREFIX", prefix).replace("PASSWORD", "p").split(' ').map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_the_documented_rights_may_do_all_that_is_done() {
    let single = blocking(|| Redis::start().unwrap()).await;
    let cluster = blocking(|| RedisCluster::start().unwrap()).await;
    let rights = documented_rights("t:");
    let rights: Vec<_> = rights.iter().map(String::as_str).collect();
    for server in cluster.servers().iter().chain([&single]) {
        server.command(&rights).unwrap();
    }
    for url in [single.url(), cluster.url()] {
        let bus = open(&options(&url.replace("//", "//fencepost:p@"), "t:")).await.unwrap();
        let mut subscription = bus.subscribe(Channel::Cluster);
        bus.identity().await.unwrap();
        bus.announce(&presence("a-1"), LONG).await.unwrap();
        assert!(is_present(&bus, "a-1").await);
        tell(&bus, "heard").await;
        assert_eq!(next(&mut subscription).await, message("heard"));
        let mut inbox = bus.open_inbox(&id("a-1"), LONG).await.unwrap();
        send_numbers(&bus, "a-1", 0..1).await;
        let read = next_batch(&mut inbox).await;
        assert_eq!(bus.read_inbox(&id("a-1"), None).await.unwrap(), read);
        bus.settle(&id("a-1"), &[read[0].id]).await.unwrap();
        ready(&bus, "n", 1).await;
        assert!(bus.show_nodes(&[node("n")]).await.unwrap().contains_key(&node("n")));
        assert!(bus.listed_nodes(&[id("a-1")]).await.unwrap().is_empty());
        bus.unbind_session(&SessionId::parse("s").unwrap(), Token::new(1)).await.unwrap();
        assert!(bus.check().await.unwrap().warnings.is_empty());
    }
}

#[tokio::test]
async fn a_wrong_address_is_refused_at_once() {
    let server = blocking(|| Redis::start().unwrap()).await;
    let two = server.url().replace("//", "//127.0.0.1:1,");
    for url in ["", "http://127.0.0.1/", "redis://", "redis://h:port", &two] {
        let refused = refused_at_once(&options(url, "t:")).await;
        assert!(matches!(refused, Error::Address(_)) && !refused.is_retryable(), "{url}: {refused:?}");
    }
    for prefix in ["{t}:", "t t", "t\n", &"t".repeat(65)] {
        let refused = refused_at_once(&options(&server.url(), prefix)).await;
        assert!(matches!(refused, Error::Invalid(_)), "{prefix}: {refused:?}");
    }
    let beyond = refused_at_once(&options(&format!("{}99", server.url()), "t:")).await;
    assert!(matches!(beyond, Error::Refused { .. }), "there is no such database: {beyond:?}");
}

#[tokio::test]
async fn a_cluster_that_names_servers_on_other_machines_is_refused_at_once_without_tls() {
    let server = blocking(|| {
        // Its port for other servers is by default one that may be in use.
        let second = ports::free().unwrap().to_string();
        let redis = Redis::with(&[
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &second,
            "--cluster-announce-ip",
            "192.0.2.1",
        ]);
        redis.unwrap()
    })
    .await;
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).unwrap();
    let refused = refused_at_once(&options(&server.url(), "t:")).await;
    assert!(matches!(refused, Error::Address(_)) && !refused.is_retryable(), "{refused:?}");
    let said = refused.to_string();
    assert!(said.contains("192.0.2.1") && said.contains("rediss://"), "{said}");
    // The network is trusted: it is tried, and nobody is there.
    let insecure = Options { insecure: true, connect_timeout_ms: 300, ..options(&server.url(), "t:") };
    let away = comes_back(open(&insecure)).await.err().expect("nobody is there");
    assert!(away.is_retryable(), "{away:?}");
    server.command(&["CONFIG", "SET", "cluster-announce-ip", "127.0.0.1"]).unwrap();
    open(&options(&server.url(), "t:")).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_no_redis_is_refused_at_once() {
    let web = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", web.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut client in web.incoming().flatten() {
            let _ = client.read(&mut [0; 1024]);
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let refused = refused_at_once(&options(&url, "t:")).await;
    assert!(matches!(refused, Error::Refused { .. }), "{refused:?}");
}

#[tokio::test]
async fn a_server_that_is_away_is_waited_for_as_long_as_configured() {
    let server = blocking(|| Redis::start().unwrap()).await;
    let url = server.url();
    server.kill();
    let short = Options { connect_timeout_ms: 300, ..options(&url, "t:") };
    let refused = comes_back(open(&short)).await.err().unwrap();
    assert!(matches!(refused, Error::Unavailable { .. }) && refused.is_retryable(), "{refused:?}");
    let waiting = tokio::spawn(async move { open(&options(&url, "t:")).await.map(|_| ()) });
    let _server = blocking(move || server.boot().map(|()| server).unwrap()).await;
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_takes_no_more_clients_is_quoted() {
    let server = blocking(|| Redis::with(&["--maxclients", "1"]).unwrap()).await;
    let mut only = None;
    // One that looked whether the server listens may not have left yet.
    eventually("one client is taken", async || {
        let mut client = TcpStream::connect(server.address()).unwrap();
        let mut said = [0; 5];
        let asked = client.write_all(b"PING\r\n").and_then(|()| client.read_exact(&mut said));
        let is_taken = asked.is_ok() && said == *b"+PONG";
        only = is_taken.then_some(client);
        is_taken
    })
    .await;
    let short = Options { connect_timeout_ms: 3_000, ..options(&server.url(), "t:") };
    let away = comes_back(open(&short)).await.err().unwrap();
    assert!(away.is_retryable() && away.to_string().contains("max number of clients reached"), "{away}");
    drop(only);
}

#[tokio::test]
async fn dangerous_settings_are_warned_of() {
    let server =
        blocking(|| Redis::with(&["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]).unwrap())
            .await;
    let bus = open(&options(&server.url(), "t:")).await.unwrap();
    let warned = bus.check().await.unwrap().warnings;
    assert!(warned.len() == 1 && warned[0].contains("allkeys-lru"), "{warned:?}");

    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
    assert!(bus.check().await.unwrap().warnings.is_empty());

    server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let warned = bus.check().await.unwrap().warnings;
    assert!(warned.len() == 1 && warned[0].contains("maxmemory is 1"), "{warned:?}");
    let full = bus.announce(&presence("a-1"), LONG).await.unwrap_err();
    assert!(matches!(full, Error::Full { .. }) && full.is_retryable(), "{full:?}");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    bus.announce(&presence("a-1"), LONG).await.unwrap();

    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let warned = bus.check().await.unwrap().warnings;
    assert!(warned.len() == 1 && warned[0].contains("replica"), "{warned:?}");
    let refused = bus.announce(&presence("a-1"), LONG).await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
}

#[tokio::test]
async fn two_prefixes_on_one_redis_never_meet() {
    let (one, other) = blocking(|| (Keyspace::fresh().unwrap(), Keyspace::fresh().unwrap())).await;
    assert_ne!(one.prefix(), other.prefix());
    let (a, b) = (
        open(&options(one.url(), one.prefix())).await.unwrap(),
        open(&options(one.url(), other.prefix())).await.unwrap(),
    );
    let (mut heard_a, mut heard_b) = (a.subscribe(Channel::Cluster), b.subscribe(Channel::Cluster));
    a.announce(&presence("a-1"), LONG).await.unwrap();
    assert!(!is_present(&b, "a-1").await);
    tell(&a, "of a").await;
    tell(&b, "of b").await;
    assert_eq!(next(&mut heard_a).await, message("of a"));
    assert_eq!(next(&mut heard_b).await, message("of b"));
}

#[tokio::test]
async fn a_record_of_another_hand_counts_as_none() {
    let server = blocking(|| Redis::start().unwrap()).await;
    let bus = open(&options(&server.url(), "t:")).await.unwrap();
    for n in 0..3 {
        bus.announce(&presence(&format!("a-{n}")), LONG).await.unwrap();
    }
    server.command(&["SET", "t:schedulers:presence:a-1", "not a record"]).unwrap();
    let ids = ["a-0", "a-1", "a-2"].map(id);
    assert_eq!(bus.present(&ids).await.unwrap().len(), 2, "and hides no other");
    server.command(&["LPUSH", "t:schedulers:presence:a-3", "not even a text"]).unwrap();
    let refused = bus.present(&[id("a-3")]).await.unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused:?}");
    let mut subscription = bus.subscribe(Channel::Cluster);
    server.command(&["PUBLISH", "t:channel:c:cluster", &"x".repeat(70_000)]).unwrap();
    tell(&bus, "mode").await;
    assert_eq!(next(&mut subscription).await, message("mode"), "what another hand published is dropped");
}
