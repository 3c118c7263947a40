//! What a connection does beside and between its requests, over real sockets.

use std::net::SocketAddr;

use tokio::io::AsyncRead;

use super::*;
use crate::limits::{BATCH_BYTES_MAX, HEADS_BYTES_AT_ONCE};

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
const LAST_HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
const SIGNERS: &str = "GET /v1/signers HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A server on one thread.
struct Rig {
    address: SocketAddr,
    handle: Handle,
    dir: TempDir,
}

impl Rig {
    /// Requests for the API wait until it is opened.
    fn unopened(auth: Auth, set: impl FnOnce(&mut Settings)) -> Self {
        let dir = TempDir::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut settings = Settings { workers: 1, ..Settings::new(auth) };
        set(&mut settings);
        let server = Server::bind(listener, early(Options::default()).0, settings, || {}).unwrap();
        let handle = server.handle();
        tokio::spawn(server.run());
        Self { address, handle, dir }
    }

    async fn open(auth: Auth, set: impl FnOnce(&mut Settings)) -> Self {
        let rig = Self::unopened(auth, set);
        rig.handle.open(services(&rig.dir).await);
        rig
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// The whole answer, in lower case, to a request after which the server closes the connection.
    async fn asked(&self, request: &str) -> String {
        converse(&mut self.connect().await, request.as_bytes()).await.to_lowercase()
    }

    /// Resolves when a request is under way, and what is read beside it was read.
    async fn until_read_beside(&self) {
        while self.handle.in_flight() == 0 {
            tokio::task::yield_now().await;
        }
        // Once the one thread has served another connection, it has read of the first one what it reads.
        self.asked(LAST_HEALTH).await;
    }
}

/// Reads until this text has come.
async fn until_read(stream: &mut TcpStream, text: &str) -> String {
    let mut bytes = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&bytes).contains(text) {
            assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "the connection goes on");
        }
    };
    tokio::time::timeout(Duration::from_secs(20), read).await.expect("it comes");
    String::from_utf8(bytes).unwrap()
}

/// Reads until the server closes the connection.
async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes)).await;
    // What the server did not read ends the connection with an error, behind the answer.
    let _ = read.expect("the server closes the connection");
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn requests_behind_one_that_waits_are_not_read_before_it_is_answered() {
    const BEHIND: usize = 1_000;
    let rig = Rig::unopened(Auth::open(), |_| {});
    let mut stream = rig.connect().await;
    // The last byte is no request: the library gives up all requests of the connection when it reads that.
    let sent = format!("{SIGNERS}{}\u{1}", HEALTH.repeat(BEHIND));
    stream.write_all(sent.as_bytes()).await.unwrap();
    rig.until_read_beside().await;
    assert_eq!(rig.handle.in_flight(), 1);
    rig.handle.open(services(&rig.dir).await);
    let answers = rest(&mut stream).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 1 + BEHIND);
    assert_eq!(answers.matches("HTTP/1.1 400 Bad Request\r\n").count(), 1);
    rig.handle.stop().await;
}

#[tokio::test]
async fn requests_that_were_read_behind_one_that_waits_are_all_answered() {
    const BEHIND: usize = 60;
    let rig = Rig::unopened(Auth::open(), |_| {});
    let mut stream = rig.connect().await;
    let sent = format!("{SIGNERS}{}{LAST_HEALTH}", HEALTH.repeat(BEHIND - 1));
    // In the bytes that are handed on first are so many requests that the library does not decode what it gets beside them.
    let sent_bytes = sent.len() as u64;
    assert!(HEADS_BYTES_AT_ONCE < sent_bytes && sent_bytes < 2 * HEADS_BYTES_AT_ONCE);
    stream.write_all(sent.as_bytes()).await.unwrap();
    rig.until_read_beside().await;
    rig.handle.open(services(&rig.dir).await);
    let answers = rest(&mut stream).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 1 + BEHIND);
    rig.handle.stop().await;
}

#[tokio::test]
async fn of_a_long_body_that_nobody_reads_only_the_beginning_is_read() {
    const SPACES: usize = 60_000;
    let rig = Rig::unopened(Auth::open(), |_| {});
    let ask = async |line: &str| {
        let mut stream = rig.connect().await;
        let request = format!(
            "{line} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{{}}{}",
            2 + SPACES,
            " ".repeat(SPACES)
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    };
    let (mut unread, mut read) = (ask("GET /v1/signers").await, ask("POST /v1/signers/x/nonces").await);
    while rig.handle.in_flight() < 2 {
        tokio::task::yield_now().await;
    }
    rig.until_read_beside().await;
    rig.handle.open(services(&rig.dir).await);
    let answer = until_read(&mut unread, "}\n").await.to_lowercase();
    assert!(answer.starts_with("http/1.1 200 ") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    let answer = until_read(&mut read, "}\n").await.to_lowercase();
    assert!(answer.starts_with("http/1.1 201 ") && !answer.contains("connection: close"), "{answer}");
    rig.handle.stop().await;
}

#[tokio::test]
async fn a_later_head_that_is_not_complete_in_time_is_refused_like_the_first_one() {
    let rig =
        Rig::open(Auth::open(), |settings| settings.client_request_timeout = Duration::from_secs(1)).await;
    for trickles in [false, true] {
        let mut stream = rig.connect().await;
        for _ in 0..2 {
            stream.write_all(HEALTH.as_bytes()).await.unwrap();
            until_read(&mut stream, "}\n").await;
        }
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: lo").await.unwrap();
        let (mut reading, mut writing) = stream.split();
        let trickle = async {
            while trickles && writing.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            std::future::pending::<()>().await;
        };
        let answer = tokio::select! {
            answer = rest(&mut reading) => answer,
            () = trickle => unreachable!("it does not end"),
        };
        assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("did not come in time"), "{answer}");
        assert!(answer.contains("x-request-id: "), "{answer}");
    }
    rig.handle.stop().await;
}

#[tokio::test]
async fn the_first_head_of_a_connection_has_all_of_its_time() {
    let rig =
        Rig::open(Auth::open(), |settings| settings.client_request_timeout = Duration::from_secs(1)).await;
    // The time of a later head is exact, and that of a connection which begins after it is over after it.
    let mut exact = rig.connect().await;
    exact.write_all(HEALTH.as_bytes()).await.unwrap();
    until_read(&mut exact, "}\n").await;
    exact.write_all(b"GET /healthz HTTP/1.1\r\nhost: lo").await.unwrap();
    let mut between = rig.connect().await;
    between.write_all(LAST_HEALTH.as_bytes()).await.unwrap();
    rest(&mut between).await;
    let mut first = rig.connect().await;
    {
        let mut answer = std::pin::pin!(rest(&mut first));
        tokio::select! {
            biased;
            exact = rest(&mut exact) => assert!(exact.starts_with("HTTP/1.1 408 "), "{exact}"),
            answer = &mut answer => panic!("it is too early: {answer}"),
        }
        let answer = answer.await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    rig.handle.stop().await;
}

#[tokio::test]
async fn the_listener_for_probes_refuses_a_later_head_that_is_not_complete_in_time_as_well() {
    let rig = Rig::open(Auth::open(), |_| {}).await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let probe = crate::probe::Probe::start(listener, &rig.handle).unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(HEALTH.as_bytes()).await.unwrap();
    until_read(&mut stream, "}\n").await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: lo").await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("did not come in time"), "{answer}");
    // A body without an end keeps no connection either.
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 404 ") && !answer.contains("HTTP/1.1 408 "), "{answer}");
    probe.stop().await;
    rig.handle.stop().await;
}

#[tokio::test]
async fn the_offer_of_another_protocol_is_ignored() {
    // What Java's client sends with each request, unless its program chooses HTTP/1.1.
    const OFFER: &str = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n";
    let open = Rig::open(Auth::open(), |_| {}).await;
    let closed = Rig::open(Auth::tokens(vec![token("a", Scope::Submit)]), |_| {}).await;
    for (rig, line, body, status) in [
        (&open, "GET /healthz", "", 200),
        (&open, "GET /v1/signers", "", 200),
        (&open, "POST /v1/signers/x/nonces", "{\"count\":2}", 201),
        (&open, "POST /v1/signers/x/nonces", "{\"count\"", 400),
        (&open, "DELETE /v1/signers", "", 405),
        (&open, "GET /nowhere", "", 404),
        (&closed, "POST /v1/signers/x/nonces", "{\"count\":2}", 401),
        (&closed, "GET /v1/signers", "", 401),
    ] {
        let length = body.len();
        let request = format!(
            "{line} HTTP/1.1\r\nhost: localhost\r\n{OFFER}content-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        let answer = rig.asked(&request).await;
        assert!(answer.starts_with(&format!("http/1.1 {status} ")), "{line}: {answer}");
        let (head, _) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("\r\nconnection: close\r\n") && !head.contains("upgrade"), "{line}: {answer}");
    }
    open.handle.stop().await;
    closed.handle.stop().await;
}

#[tokio::test]
async fn a_socket_is_opened_for_one_who_asks_for_nothing_else_and_with_a_whole_key() {
    const KEY: &str = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let rig = Rig::open(Auth::open(), |_| {}).await;
    for (upgrade, key, detail) in [
        ("h2c, websocket", KEY, "this path takes websockets only: websocket upgrade is expected"),
        ("h2c", KEY, "this path takes websockets only: websocket upgrade is expected"),
        ("websocket", "", "sec-websocket-key must be 16 bytes in base64"),
        ("websocket", "sec-websocket-key: c2hvcnQ=\r\n", "sec-websocket-key must be 16 bytes in base64"),
    ] {
        let request = format!(
            "GET /v1/nodes/ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: {upgrade}\r\n\
             sec-websocket-version: 13\r\n{key}\r\n"
        );
        let answer = rig.asked(&request).await;
        assert!(answer.starts_with("http/1.1 400 ") && answer.contains(detail), "{upgrade}: {answer}");
    }
    rig.handle.stop().await;
}

#[tokio::test]
async fn an_event_stream_has_no_chunks_in_http_1_0() {
    let rig = Rig::open(Auth::open(), |_| {}).await;
    for (version, is_chunked) in [("1.0", false), ("1.1", true)] {
        let mut stream = rig.connect().await;
        let request =
            format!("GET /v1/events HTTP/{version}\r\nhost: localhost\r\nconnection: keep-alive\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = until_read(&mut stream, "the stream is open").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/{version} 200 ")), "{answer}");
        assert_eq!(head.contains("transfer-encoding: chunked"), is_chunked, "{answer}");
        assert_eq!(body.starts_with("retry: "), !is_chunked, "{answer}");
        assert!(!head.contains("keep-alive"), "{answer}");
    }
    rig.handle.stop().await;
}

#[tokio::test]
async fn a_body_that_is_too_long_for_every_path_is_refused_before_it_is_sent() {
    let rig = Rig::open(Auth::open(), |_| {}).await;
    let head = |bytes: usize| {
        format!(
            "POST /v1/jobs/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             expect: 100-continue\r\ncontent-length: {bytes}\r\n\r\n"
        )
    };
    let refused = rig.asked(&head(BATCH_BYTES_MAX + 1)).await;
    assert!(refused.starts_with("http/1.1 413 payload too large\r\n"), "{refused}");
    assert!(refused.contains(&format!("{BATCH_BYTES_MAX} bytes")), "{refused}");
    assert!(refused.contains("x-request-id: ") && refused.contains("connection: close"), "{refused}");
    let mut stream = rig.connect().await;
    stream.write_all(head(2).as_bytes()).await.unwrap();
    until_read(&mut stream, "HTTP/1.1 100 Continue\r\n\r\n").await;
    stream.write_all(b"{}").await.unwrap();
    until_read(&mut stream, "HTTP/1.1 400 Bad Request\r\n").await;
    rig.handle.stop().await;
}
