//! What the HTTP parser refuses by itself, before any route is known.

use serde_json::Value;
use testkit::PATIENCE;
use testkit::instance::{Instance, Setup};
use testkit::process::Signal;
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
    let headers = |count: usize| {
        let more = "a: b\r\n".repeat(count - 2);
        format!("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{more}\r\n")
    };
    let path = |bytes: usize| {
        let path = "x".repeat(bytes - 1);
        format!("GET /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    };
    let (many, far) = (headers(97), path(65_535));
    let announced = "POST /v1/jobs/batch HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n\
                     Content-Length: 1000000000\r\n\r\n";
    for (sent, status, code, detail) in [
        ("nonsense\r\n\r\n", 400, "invalid", "no HTTP/1.1 request"),
        ("GET / HTTP/3.7\r\n\r\n", 400, "invalid", "a header may be malformed"),
        ("GET / HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n", 400, "invalid", "no HTTP/1.1 request"),
        (
            "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
            400,
            "invalid",
            "no HTTP/1.1 request",
        ),
        ("POST /v1/jobs HTTP/1.0\r\n\r\n", 400, "invalid", "missing in a POST of HTTP/1.0"),
        ("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n", 408, "invalid", "did not come in time"),
        (&long, 413, "too_large", "131072 bytes"),
        (&many, 413, "too_large", "96 headers"),
        (&far, 400, "invalid", "65534 bytes"),
        (announced, 413, "too_large", " bytes"),
    ] {
        let answer = raw(&instance, sent.as_bytes()).await;
        let shown: String = sent.chars().take(60).collect();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{shown}: {answer:?}"));
        let problem: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{shown}: {answer}"));
        assert_eq!(problem["status"], status, "{shown}: {answer}");
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{shown}: {answer}");
        assert!(head.contains("content-type: application/problem+json"), "{shown}: {answer}");
        assert_eq!(problem["code"], code, "{shown}: {answer}");
        assert!(problem["title"].as_str().unwrap().starts_with("The request is "), "{shown}: {answer}");
        assert!(problem["detail"].as_str().unwrap().contains(detail), "{shown}: {answer}");
        let id = problem["request_id"].as_str().unwrap();
        assert!(head.contains(&format!("x-request-id: {id}")), "{shown}: {answer}");
        until("it is logged", async || {
            instance.whole_log().lines().any(|line| line.contains(id) && line.contains("\"DEBUG\""))
        })
        .await;
    }
    // A refusal in one write with the answer before it is a problem, and counts. The parser refuses no broken body.
    let health = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nnonsense\r\n\r\n";
    let answer = raw(&instance, health.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("no HTTP/1.1 request"), "{answer}");
    let broken = "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
                  Transfer-Encoding: chunked\r\n\r\nzz\r\n";
    let answer = raw(&instance, broken.as_bytes()).await;
    assert!(!answer.contains("no HTTP/1.1 request"), "{answer}");
    let metrics = format!("{}/metrics", instance.url());
    let shown = patient().request("GET", &metrics, None, None).await.unwrap().text;
    for (method, status, count) in [("other", 400, 7), ("other", 413, 2), ("POST", 413, 1)] {
        let labels = format!("route=\"other\",method=\"{method}\",status=\"{status}\"");
        let counted = format!("fencepost_http_requests_total{{{labels}}} {count}");
        assert!(shown.lines().any(|line| line == counted), "{counted} is missing in\n{shown}");
    }
    // What is at the limits is read.
    for (sent, served) in [(headers(96), "HTTP/1.1 200 "), (path(65_534), "HTTP/1.1 404 ")] {
        let answer = raw(&instance, sent.as_bytes()).await;
        assert!(answer.starts_with(served), "{served}: {answer}");
    }
    // Others are served as before.
    let served = patient().get(&format!("{}/healthz", instance.url())).await.unwrap();
    assert_eq!(served["status"], "ok", "{served}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_request_are_no_error_in_the_log() {
    let mut instance = Setup::basic().unwrap().start().await.unwrap();
    let host = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n";
    let (many, long) =
        (format!("{host}{}\r\n", "a: b\r\n".repeat(100)), format!("{host}a: {}", "x".repeat(200_000)));
    let far = format!("GET /{} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "x".repeat(66_000));
    // The begin of a TLS client's hello, too.
    for sent in ["GARBAGE\r\n\r\n", "\x16\x03\x01\x02\0\x01\0\x01\u{7c}\x03\x03\r\n\r\n", &many, &long, &far]
    {
        let answer = raw(&instance, sent.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    // The end writes all of the log.
    instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    let log = instance.whole_log();
    assert!(!log.is_empty() && !log.contains("\"ERROR\""), "{log}");
}
