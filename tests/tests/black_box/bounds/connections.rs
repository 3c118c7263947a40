//! More connections than the daemon has descriptors for, and connections whose callers have left.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::Bounded;
use crate::{patient, until};

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_idle_connections_leave_a_daemon_of_1024_descriptors_at_work() {
    let daemon =
        Bounded::shaped(&[("SERVER__RECEIVE_TIMEOUT_MS", "5000")], |setup| setup.descriptors(1_024)).await;
    let log = daemon.instance.whole_log();
    assert!(log.contains("the limit of open files leaves room for fewer connections"), "{log}");
    // Who is connected stays connected, and is served with all that needs descriptors of its own.
    let client = patient().with_token("other");
    daemon.is_well(&client).await;
    let connect = || tokio::time::timeout(Duration::from_secs(3), TcpStream::connect(daemon.address()));
    let idle = join_all((0..2_000).map(|_| connect())).await;
    // The system keeps some of them waiting, and others do not get that far.
    let connected = idle.iter().filter(|stream| matches!(stream, Ok(Ok(_)))).count();
    assert!(connected > 800, "{connected} of 2,000: more than the daemon takes");
    for n in 0..20 {
        let path = daemon.url(&format!("/v1/signers/s{n}/nonces"));
        let reply = client.request("POST", &path, None, None).await.unwrap();
        assert_eq!(reply.status, 201, "{}", reply.text);
    }
    daemon.is_well(&client).await;
    // A new one waits until those that sent nothing are closed.
    drop(idle);
    daemon.serves_others().await;
    daemon.is_sound();
}

/// How many requests the daemon answers besides the one that asks.
async fn in_flight(daemon: &Bounded) -> f64 {
    let metrics = daemon.ask("root", "GET", "/metrics", None).await.text;
    let gauge = metrics.lines().find_map(|line| line.strip_prefix("fencepost_http_requests_in_flight "));
    gauge.expect("it is among the metrics").parse::<f64>().unwrap() - 1.0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_whose_caller_has_left_gives_its_place_back() {
    let daemon = Bounded::start(&[("SERVER__CALLER_REQUESTS_MAX", "1")]).await;
    let job = daemon.done("greedy", "POST", "/v1/jobs", json!({"payload": 1, "delay_ms": 600_000})).await;
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let mut stream = TcpStream::connect(daemon.address()).await.unwrap();
    let wait =
        format!("GET {path}?wait_ms=60000 HTTP/1.1\r\nhost: test\r\nauthorization: Bearer greedy\r\n\r\n");
    stream.write_all(wait.as_bytes()).await.unwrap();
    until("the wait is under way", async || in_flight(&daemon).await == 1.0).await;
    let refused = daemon.ask("greedy", "GET", &path, None).await;
    assert_eq!((refused.status, refused.code()), (429, "overloaded"), "{}", refused.text);
    // An orderly close: the daemon has nothing unread to be reset for.
    drop(stream);
    let free =
        until("the place is free", async || daemon.ask("greedy", "GET", &path, None).await.status == 200);
    tokio::time::timeout(Duration::from_secs(30), free).await.expect("the wait itself would take a minute");
    daemon.is_sound();
}
