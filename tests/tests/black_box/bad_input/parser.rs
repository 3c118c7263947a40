//! What the HTTP parser refuses by itself, before any route is known.

use serde_json::Value;
use testkit::PATIENCE;
use testkit::instance::{Instance, Setup};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{patient, until};

/// Sends these bytes on a connection of its own; the whole answer, until the connection is closed.
async fn raw(instance: &Instance, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(instance.url().strip_prefix("http://").unwrap()).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("it is closed");
    // What was not read may reset the connection after the answer.
    let _ = read;
    String::from_utf8(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_parser_refuses_is_a_problem_with_a_request_id() {
    let setup = Setup::basic().unwrap().env("FENCEPOST__SERVER__RECEIVE_TIMEOUT_MS", "1000");
    let instance = setup.env("RUST_LOG", "info,api=debug").start().await.unwrap();
    let long = format!("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: {}\r\n\r\n", "x".repeat(200_000));
    let many = format!("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n{}\r\n", "a: b\r\n".repeat(200));
    let far = format!("GET /{} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "x".repeat(70_000));
    for (sent, statuses, code) in [
        ("nonsense\r\n\r\n", &[400][..], "invalid"),
        ("GET / HTTP/3.7\r\n\r\n", &[400], "invalid"),
        ("GET / HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n", &[400], "invalid"),
        ("POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n", &[400], "invalid"),
        ("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n", &[408], "invalid"),
        (&long, &[413], "too_large"),
        (&many, &[413], "too_large"),
        (&far, &[400, 413], ""),
    ] {
        let answer = raw(&instance, sent.as_bytes()).await;
        let shown: String = sent.chars().take(60).collect();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{shown}: {answer:?}"));
        let problem: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{shown}: {answer}"));
        let status = problem["status"].as_u64().unwrap();
        assert!(statuses.contains(&status), "{shown}: {answer}");
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{shown}: {answer}");
        assert!(head.contains("content-type: application/problem+json"), "{shown}: {answer}");
        assert!(code.is_empty() || problem["code"] == code, "{shown}: {answer}");
        let id = problem["request_id"].as_str().unwrap();
        assert!(head.contains(&format!("x-request-id: {id}")), "{shown}: {answer}");
        until("it is logged", async || {
            instance.whole_log().lines().any(|line| line.contains(id) && line.contains("\"DEBUG\""))
        })
        .await;
    }
    // Others are served as before.
    let served = patient().get(&format!("{}/healthz", instance.url())).await.unwrap();
    assert_eq!(served["status"], "ok", "{served}");
}
