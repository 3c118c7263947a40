//! Sockets that flood, that send without end, and that are too many.

use std::time::Duration;

use client::wire::worker::close;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use testkit::instance::Setup;
use testkit::node::{Message, Socket};
use testkit::servers::{Database, Keyspace};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::{Bounded, MIB};
use crate::recovery::LockedTable;
use crate::until;

/// What a flood begins with, and what is repeated then: frames as a client writes them, with a mask of zeros.
const FLOODS: [(&str, &[u8], [u8; 6]); 3] = [
    ("pings", &[], [0x89, 0x80, 0, 0, 0, 0]),
    ("pongs", &[], [0x8A, 0x80, 0, 0, 0, 0]),
    ("empty fragments", &[0x01, 0x81, 0, 0, 0, 0, b' '], [0x00, 0x80, 0, 0, 0, 0]),
];

async fn node(daemon: &Bounded, token: &str, name: &str) -> Socket {
    let mut socket = Socket::connect_with(daemon.instance.url(), token).await.unwrap();
    let hello = format!(r#"{{"type":"hello","node_id":"{name}","capacity":1,"running":[]}}"#);
    socket.send(Message::text(hello)).await.unwrap();
    assert_eq!(frame(&mut socket).await["type"], "welcome");
    socket
}

async fn frame(socket: &mut Socket) -> Value {
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => return serde_json::from_str(&text).unwrap(),
            Some(Ok(Message::Close(frame))) => panic!("closed: {frame:?}"),
            Some(Ok(_)) => {}
            ended => panic!("{ended:?}"),
        }
    }
}

/// The code with which it is closed; `None` for a connection that was just cut.
async fn closed(socket: &mut Socket) -> Option<u16> {
    loop {
        if let Some(end) = end_of(socket.next().await) {
            return end;
        }
    }
}

/// The code of a close frame, or `None` of an end without one, if it is the end.
fn end_of(next: Option<Result<Message, Error>>) -> Option<Option<u16>> {
    match next {
        Some(Ok(Message::Close(Some(frame)))) => Some(Some(frame.code.into())),
        Some(Ok(_)) => None,
        Some(Err(_)) | None => Some(None),
    }
}

async fn client(daemon: &Bounded, token: &str, session: &str) -> WebSocketStream<MaybeTlsStream<TcpStream>> {
    connected(daemon, token, session).await.unwrap()
}

async fn connected(
    daemon: &Bounded,
    token: &str,
    session: &str,
) -> Result<WebSocketStream<MaybeTlsStream<TcpStream>>, Box<Error>> {
    let url = format!("ws://{}/v1/sessions/{session}/ws", daemon.address());
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    tokio_tungstenite::connect_async(request).await.map(|(socket, _)| socket).map_err(Box::new)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_frames_that_carry_nothing_closes_the_socket() {
    let daemon = Bounded::start(&[]).await;
    let session = daemon.done("greedy", "POST", "/v1/sessions", json!({})).await;
    let session = session["id"].as_str().unwrap();
    let before = daemon.memory();
    for (what, begin, repeated) in FLOODS {
        let flood = [begin, &repeated.repeat(100_000)].concat();
        let mut socket = node(&daemon, "greedy", "n").await;
        // The daemon stops reading before the end.
        let _ = socket.stream_mut().write_all(&flood).await;
        let code = tokio::time::timeout(testkit::PATIENCE, closed(&mut socket)).await.expect(what);
        assert!(code.is_none_or(|code| code == close::PROTOCOL), "{what}: {code:?}");
        let mut socket = client(&daemon, "greedy", session).await;
        let MaybeTlsStream::Plain(stream) = socket.get_mut() else { panic!("it is plain") };
        let _ = stream.write_all(&flood).await;
        let ended = tokio::time::timeout(testkit::PATIENCE, async {
            while let Some(Ok(message)) = socket.next().await {
                if let Message::Close(Some(frame)) = message {
                    assert_eq!(u16::from(frame.code), close::PROTOCOL, "{what}");
                }
            }
        });
        ended.await.expect(what);
        daemon.serves_others().await;
    }
    assert!(daemon.memory().saturating_sub(before) < 64 * MIB);
    // Now and then a ping is welcome.
    let mut socket = node(&daemon, "greedy", "polite").await;
    for _ in 0..100 {
        socket.send(Message::Ping(vec![7].into())).await.unwrap();
        loop {
            match socket.next().await.unwrap().unwrap() {
                Message::Pong(bytes) => break assert_eq!(bytes[..], [7]),
                Message::Close(frame) => panic!("{frame:?}"),
                _ => {}
            }
        }
    }
    daemon.is_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_never_complete_take_a_bounded_memory_and_end_in_time() {
    let daemon = Bounded::start(&[
        ("SERVER__READING_BYTES_MAX", "33554432"),
        ("SERVER__CALLER_READING_BYTES_MAX", "33554432"),
        ("SERVER__RECEIVE_TIMEOUT_MS", "8000"),
    ])
    .await;
    let mut sockets = Vec::new();
    for n in 0..12 {
        let mut socket = node(&daemon, "greedy", &format!("n{n}")).await;
        // The header of a text of 4 MiB, and little of it.
        let mut begun = vec![0x81, 0xFF];
        begun.extend((4 * MIB as u64).to_be_bytes());
        begun.extend([0; 4]);
        begun.resize(1_024, b' ');
        let _ = socket.stream_mut().write_all(&begun).await;
        sockets.push(socket);
    }
    let mut codes = Vec::new();
    for mut socket in sockets {
        codes.push(tokio::time::timeout(testkit::PATIENCE, closed(&mut socket)).await.expect("it is closed"));
    }
    // Eight fit and are closed as too late; the others are refused and may come again.
    let count = |wanted: u16| codes.iter().filter(|code| code.is_some_and(|code| code == wanted)).count();
    assert!(count(close::OVERLOADED) >= 1, "{codes:?}");
    assert!(count(close::PROTOCOL) >= 1, "{codes:?}");
    until("there is room again", async || {
        let body = json!({"payload": "x".repeat(MIB / 2), "delay_ms": 600_000});
        daemon.ask("greedy", "POST", "/v1/jobs", Some(&body)).await.status == 202
    })
    .await;
    daemon.serves_others().await;
    daemon.is_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_sessions_that_wait_for_the_ledger_count_until_they_are_submitted() {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let settings = [("SERVER__CALLER_READING_BYTES_MAX", "33554432"), ("LEDGER__CALL_TIMEOUT_MS", "10000")];
    let keys = Keyspace::fresh().unwrap();
    let shape = |setup: Setup| {
        let setup = setup.database(database.url()).arg("--redis-url").arg(keys.url());
        setup.env("FENCEPOST__BUS__KEY_PREFIX", keys.prefix())
    };
    let daemon = Bounded::shaped(&settings, shape).await;
    let session = daemon.done("greedy", "POST", "/v1/sessions", json!({})).await;
    let session = session["id"].as_str().unwrap();
    let mut sockets = Vec::new();
    for _ in 0..8 {
        sockets.push(client(&daemon, "greedy", session).await);
    }
    let lock = LockedTable::lock(&database, "job", "EXCLUSIVE").await;
    for (n, socket) in sockets.iter_mut().enumerate() {
        for m in 0..7 {
            let job = json!({
                "type": "job", "ref": format!("{n}-{m}"), "payload": "x".repeat(MIB - 4_096), "delay_ms": 600_000,
            });
            // It may be closed already.
            let _ = socket.send(Message::text(job.to_string())).await;
        }
    }
    let mut closed = Vec::new();
    for socket in &mut sockets {
        // Four have room at the same time; the others are closed at once.
        let end = async {
            loop {
                if let Some(end) = end_of(socket.next().await) {
                    return end;
                }
            }
        };
        closed.extend(tokio::time::timeout(Duration::from_secs(1), end).await.ok());
    }
    lock.free();
    assert!(closed.contains(&Some(close::OVERLOADED)), "{closed:?}");
    assert!(closed.len() < sockets.len(), "{closed:?}");
    until("there is room again", async || {
        let body = json!({"payload": "x".repeat(MIB / 2), "delay_ms": 600_000});
        daemon.ask("greedy", "POST", "/v1/jobs", Some(&body)).await.status == 202
    })
    .await;
    daemon.serves_others().await;
    daemon.is_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_nodes_make_up_are_bounded_for_a_token_and_leave_room_for_others() {
    // Five times 10,000 attempts fit, and no sixth time. A node that sends nothing while others' long lists are read stays.
    let daemon =
        Bounded::start(&[("SERVER__CALLER_READING_BYTES_MAX", "33554432"), ("NODES__OFFLINE_MS", "300000")])
            .await;
    let lists = async |token: &str, name: &str| {
        let attempt = |n| format!(r#"{{"job":"00000000-0000-7000-8000-{n:012x}","attempt":1}}"#);
        let running = (1..=10_000).map(attempt).collect::<Vec<_>>().join(",");
        let hello =
            format!(r#"{{"type":"hello","node_id":"{name}","capacity":10000,"running":[{running}]}}"#);
        let mut socket = Socket::connect_with(daemon.instance.url(), token).await.unwrap();
        socket.send(Message::text(hello)).await.unwrap();
        socket
    };
    let mut sockets = Vec::new();
    for n in 0..5 {
        let mut socket = lists("greedy", &format!("n{n}")).await;
        assert_eq!(frame(&mut socket).await["type"], "welcome");
        sockets.push(socket);
    }
    let mut further = lists("greedy", "further").await;
    let end = tokio::time::timeout(testkit::PATIENCE, closed(&mut further)).await.expect("it is closed");
    assert_eq!(end, Some(close::OVERLOADED));
    let mut others = lists("other", "others").await;
    assert_eq!(frame(&mut others).await["type"], "welcome");
    // What the nodes list no more does not count.
    for socket in &mut sockets {
        let heartbeat = Message::text(r#"{"type":"heartbeat","running":[]}"#);
        socket.send(heartbeat).await.unwrap();
    }
    until("there is room again", async || {
        let mut again = lists("greedy", "further").await;
        let next = tokio::time::timeout(testkit::PATIENCE, again.next()).await.expect("it is answered");
        matches!(next, Some(Ok(Message::Text(text))) if text.contains("welcome"))
    })
    .await;
    daemon.serves_others().await;
    daemon.is_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_token_does_not_take_all_sockets() {
    let daemon = Bounded::start(&[("SERVER__SOCKETS_MAX", "60"), ("SERVER__CALLER_SOCKETS_MAX", "40")]).await;
    let session = daemon.done("greedy", "POST", "/v1/sessions", json!({})).await;
    let session = session["id"].as_str().unwrap();
    let mut sockets = Vec::new();
    for n in 0..100 {
        match connected(&daemon, "greedy", session).await {
            Ok(socket) => sockets.push(socket),
            Err(refused) => {
                let Error::Http(answer) = *refused else { panic!("socket {n}: {refused:?}") };
                assert_eq!(answer.status().as_u16(), 429);
                assert!(answer.headers().contains_key("retry-after"));
            }
        }
    }
    assert_eq!(sockets.len(), 40);
    // Its nodes are refused as well, and others' are not.
    assert!(Socket::connect_with(daemon.instance.url(), "greedy").await.is_err());
    let _node = node(&daemon, "other", "others").await;
    daemon.serves_others().await;
    // A place is free again when its socket has ended.
    for socket in &mut sockets {
        let _ = socket.close(None).await;
    }
    drop(sockets);
    until("a socket is let in again", async || connected(&daemon, "greedy", session).await.is_ok()).await;
    daemon.is_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_of_a_silent_node_is_closed() {
    let daemon = Bounded::start(&[
        ("NODES__HEARTBEAT_MS", "1000"),
        ("NODES__VOUCHED_MS", "3000"),
        ("NODES__RESERVATION_MS", "4000"),
        ("NODES__OFFLINE_MS", "5000"),
        ("JOBS__NODE_GRACE_MS", "5000"),
    ])
    .await;
    let mut silent = node(&daemon, "greedy", "silent").await;
    let code =
        tokio::time::timeout(Duration::from_secs(60), closed(&mut silent)).await.expect("it is closed");
    assert_eq!(code, Some(close::PROTOCOL));
    daemon.serves_others().await;
}
