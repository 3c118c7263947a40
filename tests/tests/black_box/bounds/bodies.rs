//! Many large bodies at once, that come slowly.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use testkit::PATIENCE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Bounded, MIB};
use crate::until;

const BATCH: usize = 32 * MIB;

/// The begin of a batch of 32 MiB.
async fn begun(daemon: &Bounded, token: &str, sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(daemon.address()).await.unwrap();
    let head = format!(
        "POST /v1/jobs/batch HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {BATCH}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The daemon stops reading when it has refused.
    let _ = stream.write_all(&vec![b' '; sent]).await;
    stream
}

/// The first line and the headers of the answer.
async fn head(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    String::from_utf8_lossy(&bytes).to_lowercase()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_slow_batches_of_32_mib_do_not_fill_the_memory() {
    const READING: usize = 96 * MIB;
    let daemon = Bounded::start(&[
        ("SERVER__READING_BYTES_MAX", &READING.to_string()),
        ("SERVER__CALLER_READING_BYTES_MAX", &(2 * BATCH).to_string()),
    ])
    .await;
    let before = daemon.memory();
    let slow = join_all((0..200).map(|_| begun(&daemon, "greedy", MIB))).await;
    let mut ends: FuturesUnordered<_> = slow
        .into_iter()
        .map(async |mut stream| {
            let answer = head(&mut stream).await;
            (answer, stream)
        })
        .collect();
    // Two of them are being read. All others are refused; an answer is lost where more was sent than is thrown away.
    let (mut refused, mut ended) = (0, Vec::new());
    for _ in 0..198 {
        let (answer, stream) = tokio::time::timeout(PATIENCE, ends.next()).await.expect("a refusal").unwrap();
        let is_refused = answer.starts_with("http/1.1 429") && answer.contains("\r\nretry-after: ");
        assert!(is_refused || answer.is_empty(), "{answer}");
        refused += usize::from(is_refused);
        ended.push(stream);
    }
    assert!(refused >= 50, "{refused} answers came");
    let grown = daemon.memory().saturating_sub(before);
    // What arrived of all of them would be 200 MiB, besides buffers. Measured: 60 to 100 MiB.
    assert!(grown < 160 * MIB, "{} MiB", grown / MIB);
    daemon.serves_others().await;
    // Another token has its share of the rest.
    let jobs: Vec<_> =
        (0..8).map(|_| json!({"payload": "x".repeat(1_000_000), "delay_ms": 600_000})).collect();
    daemon.done("other", "POST", "/v1/jobs/batch", json!({ "jobs": jobs })).await;
    // The bytes of who has left are free again.
    drop((ends, ended));
    until("a batch is read again", async || {
        let body = json!({"jobs": [{"payload": "x".repeat(MIB / 2), "delay_ms": 600_000}]});
        daemon.ask("greedy", "POST", "/v1/jobs/batch", Some(&body)).await.status == 202
    })
    .await;
    daemon.is_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_trickles_is_refused_in_time() {
    let daemon = Bounded::start(&[("SERVER__RECEIVE_TIMEOUT_MS", "1000")]).await;
    let mut body = begun(&daemon, "greedy", 100).await;
    let answer = head(&mut body).await;
    assert!(answer.starts_with("http/1.1 400") && answer.contains("connection: close"), "{answer}");
    // A head that is never complete ends the connection.
    let mut stream = TcpStream::connect(daemon.address()).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: te").await.unwrap();
    let answer = head(&mut stream).await;
    assert!(answer.is_empty() || answer.starts_with("http/1.1 408"), "{answer}");
    daemon.serves_others().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_that_a_body_takes_is_none_of_the_time_of_a_retry_of_many() {
    let times = [("SERVER__REQUEST_TIMEOUT_MS", "3000"), ("LEDGER__CALL_TIMEOUT_MS", "3000")];
    let daemon = Bounded::start(&times).await;
    let body = json!({ "ids": ["01a2108f-e74a-7352-9aaa-d26c0f3daa5a"] }).to_string();
    let mut stream = TcpStream::connect(daemon.address()).await.unwrap();
    let head_of = format!(
        "POST /v1/jobs/retry HTTP/1.1\r\nhost: test\r\nauthorization: Bearer other\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head_of.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 202") && answer.contains("not_found"), "{answer}");
}
