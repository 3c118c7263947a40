//! The worker socket under nodes that were written by a monkey: whatever they send, the socket is closed with the right
//! code, nobody else notices, and nothing is left of them.

use std::time::Duration;

use client::wire::worker::close;
use futures_util::{SinkExt, StreamExt};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use testkit::node::Message;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::hand::{Hand, frame, heartbeat, written};
use super::rig::{PATIENCE, Rig, with};
use crate::until;

const SOCKETS: usize = 400;
/// The allocator takes memory from the system in steps of 2 MiB; so many may fall into the second half.
const ALLOCATOR_KIB: usize = 2 * 2048;
const AT_ONCE: usize = 8;
/// A socket that leaves so much behind is a leak.
const SOCKET_KIB_MAX: usize = 16;
/// Longer than a socket that has done no wrong is waited for.
const QUIET: Duration = Duration::from_millis(200);

/// Something that a node may send, right or wrong.
fn any_frame(dice: &mut StdRng) -> Value {
    let jobs = ["0198c0de-0000-7000-8000-000000000001", "0198c0de-0000-7000-8000-000000000002", "x", ""];
    let of = json!({"job": jobs.choose(dice).unwrap(), "attempt": dice.random_range(0..3)});
    let name = format!("monkey-{}", dice.random_range(0..4));
    match dice.random_range(0..11) {
        0 => json!({"type": "hello", "node_id": name, "capacity": dice.random_range(0..3), "running": []}),
        1 => json!({"type": "hello", "node_id": name, "capacity": 2, "batch": true, "running": [of]}),
        2 => heartbeat(json!([])),
        3 => heartbeat(json!([of])),
        4 => frame("ack", &of, json!({})),
        5 => frame("reject", &of, json!({"reason": "full"})),
        6 => frame("progress", &of, json!({"percent": dice.random_range(-10..200), "note": "n"})),
        7 => frame("result", &of, json!({"ok": true, "output": null})),
        8 => frame("result", &of, json!({"ok": false, "error": {"message": "m"}})),
        9 => json!({"type": "drain"}),
        _ => json!({"type": "ready"}),
    }
}

/// Something else in its place.
fn any_value(dice: &mut StdRng) -> Value {
    match dice.random_range(0..9) {
        0 => Value::Null,
        1 => json!(-1),
        2 => json!(1e300),
        3 => json!(u64::MAX),
        4 => json!(true),
        5 => json!("x".repeat(dice.random_range(0..2_000))),
        6 => json!([[[]]]),
        7 => json!({"a": {"b": {}}}),
        _ => json!("\u{0}\u{feff}ü"),
    }
}

/// A frame with a member changed, added or taken away; and now and then as it is.
fn bent(dice: &mut StdRng) -> String {
    let mut value = any_frame(dice);
    let members = value.as_object_mut().unwrap();
    let names: Vec<_> = members.keys().filter(|name| *name != "type").cloned().collect();
    let name = names.choose(dice).cloned().unwrap_or_else(|| "more".to_owned());
    match dice.random_range(0..5) {
        0 => {
            members.remove(&name);
        }
        1 => {
            members.insert(name, any_value(dice));
        }
        2 => {
            members.insert("more".to_owned(), any_value(dice));
        }
        3 => {
            members.insert("type".to_owned(), any_value(dice));
        }
        _ => {}
    }
    written(&value)
}

/// A text that is damaged anywhere.
fn damaged(text: &str, dice: &mut StdRng) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    let at = dice.random_range(0..chars.len());
    match dice.random_range(0..4) {
        0 => chars.truncate(at),
        1 => chars[at] = *['{', '"', '\\', '\u{0}', '9', ','].choose(dice).unwrap(),
        2 => {
            chars.remove(at);
        }
        _ => chars.insert(at, *['}', '[', '"', ' ', 'e', ':'].choose(dice).unwrap()),
    }
    chars.into_iter().collect()
}

/// What goes over one socket next; some of it in pieces, some of it no text at all.
fn messages(dice: &mut StdRng) -> Vec<Message> {
    let text = bent(dice);
    let whole = |text: String| vec![Message::text(text)];
    match dice.random_range(0..16) {
        0 => whole(damaged(&text, dice)),
        1 => whole("[".repeat(dice.random_range(1..5_000))),
        2 => whole(format!("[{text},{}]", bent(dice))),
        3 => whole(format!("{text}{text}")),
        4 => vec![Message::binary(text)],
        5 => vec![Message::Ping(vec![7; 100].into()), Message::Pong(vec![].into())],
        6 => whole(format!("{}{text}{}", " ".repeat(100), "\n".repeat(100))),
        7 => {
            // In pieces, with something between.
            let at = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
            let (head, tail) = text.as_bytes().split_at(at);
            let piece = |bytes: &[u8], code, is_last| {
                Message::Frame(Frame::message(bytes.to_vec(), OpCode::Data(code), is_last))
            };
            vec![
                piece(head, Data::Text, false),
                Message::Ping(vec![].into()),
                piece(b"", Data::Continue, false),
                piece(tail, Data::Continue, true),
            ]
        }
        8 => vec![Message::Frame(Frame::message(b"\xff\xfe".to_vec(), OpCode::Data(Data::Text), true))],
        9 => vec![Message::Frame(Frame::message(b"x".to_vec(), OpCode::Data(Data::Continue), true))],
        _ => whole(text),
    }
}

/// Bytes that are no frame.
const NO_FRAMES: [&[u8]; 4] = [
    // Longer than any message may be, and than any memory.
    &[0x81, 0xFF, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0],
    // An operation that does not exist; one without a mask; bits that mean nothing.
    &[0x83, 0x80, 0, 0, 0, 0],
    &[0x81, 0x01, b'x'],
    &[0xF1, 0x80, 0, 0, 0, 0],
];

/// One node of the monkey's. How it ended, if it was closed.
async fn monkey(rig: &Rig, seed: u64) -> Option<(Result<u16, String>, String)> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut hand = Hand::open(rig, dice.random_range(0..2)).await;
    let mut said = String::new();
    if dice.random_ratio(2, 3) {
        let name = format!("monkey-{}", dice.random_range(0..4));
        let hello = json!({"type": "hello", "node_id": name, "capacity": 2, "batch": dice.random_bool(0.5), "running": []});
        let _ = hand.socket.send(Message::text(written(&hello))).await;
    }
    for _ in 0..dice.random_range(1..8) {
        for message in messages(&mut dice) {
            said = format!("{message:?}").chars().take(300).collect();
            // It may be closed by now.
            let _ = hand.socket.send(message).await;
        }
    }
    if dice.random_ratio(1, 8) {
        let bytes = NO_FRAMES.choose(&mut dice).unwrap();
        said = format!("{bytes:?}");
        let _ = hand.socket.stream_mut().write_all(bytes).await;
    }
    let closed = async {
        while let Some(message) = hand.socket.next().await {
            match message {
                Ok(Message::Close(Some(frame))) => return Ok(frame.code.into()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("without a word".to_owned())
    };
    tokio::time::timeout(QUIET, closed).await.ok().map(|end| (end, said))
}

/// Open files of an instance.
fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// What the process has of memory for itself, in KiB.
fn memory(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_node_sends_the_socket_is_closed_rightly_and_nothing_is_left() {
    let seed = std::env::var("FENCEPOST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(rand::random);
    eprintln!("FENCEPOST_SEED={seed}");
    let rig = Rig::together(2).await;
    let witness = rig.node(&[0], "witness", |options| options.labels.push("w".to_owned())).await;
    let works = async |n: u64| {
        let id = rig.submit(1, json!({"payload": {"echo": n}, "requires": ["w"]})).await;
        assert_eq!(rig.finished(0, &id).await["result"], n);
    };
    works(0).await;
    let mut pids = Vec::new();
    for index in 0..2 {
        pids.push(rig.instance(index).await.process().pid());
    }
    let before: Vec<_> = pids.iter().map(|pid| (open_files(*pid), threads(*pid))).collect();
    let (mut closed, mut spoken, mut half) = (0, 0, Vec::new());
    let mut ends = futures_util::stream::iter(0..SOCKETS as u64)
        .map(|n| monkey(&rig, seed.wrapping_add(n)))
        .buffer_unordered(AT_ONCE);
    while let Some(end) = ends.next().await {
        spoken += 1;
        if spoken % 100 == 0 {
            works(spoken).await;
        }
        if spoken == SOCKETS as u64 / 2 {
            half = pids.iter().map(|pid| memory(*pid)).collect();
        }
        let Some((end, said)) = end else { continue };
        closed += 1;
        // What took over may be another of the monkey's.
        let is_right = match &end {
            Ok(code) => [close::PROTOCOL, close::REPLACED, close::GOING_AWAY].contains(code),
            Err(why) => why.contains("reset") || why.contains("closing handshake"),
        };
        assert!(is_right, "{end:?} after {said}, FENCEPOST_SEED={seed}");
    }
    // Most of it is wrong; on a busy machine some are not closed while they are looked at.
    assert!(closed > SOCKETS / 4, "{closed} of {SOCKETS} were closed");
    drop(ends);
    works(1_000).await;
    let mut looks = 0;
    until("only the witness is left", async || {
        let nodes = rig.get(0, "/v1/nodes").await;
        looks += 1;
        if looks % 500 == 0 {
            eprintln!("still listed: {nodes}");
        }
        nodes["items"].as_array().unwrap().iter().all(|node| node["id"] == "witness")
    })
    .await;
    rig.nothing_is_held().await;
    for ((pid, (files, tasks)), half) in pids.into_iter().zip(before).zip(half) {
        // What the first half needed serves the second, but for what the allocator scatters.
        let now = memory(pid);
        eprintln!("{half} KiB after half of the sockets, {now} KiB after all");
        let most = half + SOCKETS / 2 * SOCKET_KIB_MAX + ALLOCATOR_KIB;
        assert!(now < most, "{now} KiB, {half} KiB after half of the sockets");
        // Some for connections that are kept for the next caller.
        until("sockets are closed", async || open_files(pid) < files + 20).await;
        assert!(threads(pid) < tasks + 20, "{} threads, {tasks} before", threads(pid));
    }
    assert_eq!(witness.runs.all().len(), spoken as usize / 100 + 2);
    rig.no_defect().await;
}

/// A node with much work, of which it reads nothing until the instance has lost its patience; and its jobs.
async fn slow_node(rig: &Rig) -> (WebSocketStream<TcpStream>, Vec<String>) {
    let (slow, ids) = silent_node(rig, json!({})).await;
    until("it is found to be slow", async || {
        let log = rig.instance(0).await.whole_log();
        log.contains(&format!("\"code\":{}", close::SLOW_READER))
    })
    .await;
    (slow, ids)
}

/// A node with much work, of which it reads nothing; and its jobs, which have these fields beside.
pub async fn silent_node(rig: &Rig, fields: Value) -> (WebSocketStream<TcpStream>, Vec<String>) {
    // More than the connection and the instance keep for a node.
    const JOBS: usize = 96;
    let url = rig.urls[0].clone();
    // Its work is there before it is, so that all of it leaves at once.
    let payload = json!({"echo": 1, "weight": "x".repeat(400_000)});
    let mut ids = Vec::new();
    for _ in 0..JOBS {
        let job = with(json!({"payload": payload}), json!({"backoff": {"initial_ms": 0}}));
        ids.push(rig.submit(0, with(job, fields.clone())).await);
    }
    let mut request = format!("{}/v1/nodes/ws", url.replace("http", "ws")).into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", "fencepost.v1".parse().unwrap());
    let mut slow = with_little_room(request).await;
    let hello = json!({"type": "hello", "node_id": "slow", "capacity": JOBS, "running": []});
    slow.send(Message::text(written(&hello))).await.unwrap();
    (slow, ids)
}

/// A WebSocket with little room for what is not read.
pub async fn with_little_room(request: Request) -> WebSocketStream<TcpStream> {
    let tcp = TcpSocket::new_v4().unwrap();
    tcp.set_recv_buffer_size(16 << 10).unwrap();
    let stream = tcp.connect(request.uri().authority().unwrap().as_str().parse().unwrap()).await.unwrap();
    tokio_tungstenite::client_async(request, stream).await.unwrap().0
}

/// The code with which a socket is closed, once all before it is read.
pub async fn code_at_the_end(mut socket: WebSocketStream<TcpStream>) -> Option<u16> {
    let read = async {
        let mut code = None;
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Close(Some(frame)) = message {
                code = Some(u16::from(frame.code));
            }
        }
        code
    };
    tokio::time::timeout(PATIENCE, read).await.expect("the socket ends")
}

/// A reader that stopped and reads again after so long, counted from when its socket was closed, is still told why. The
/// kernel cuts the connection a few seconds later.
pub const READS_AGAIN_AFTER: Duration = Duration::from_millis(11_500);

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_read_is_closed_with_4429_and_its_jobs_run_elsewhere() {
    let rig = Rig::alone().await;
    let (slow, ids) = slow_node(&rig).await;
    assert_eq!(code_at_the_end(slow).await, Some(close::SLOW_READER));
    let other = rig.node(&[0], "other", |options| options.capacity = 4).await;
    for id in &ids {
        assert_eq!(rig.finished(0, id).await["node"], "other");
    }
    assert_eq!(other.runs.all().len(), ids.len());
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_reads_again_late_still_sees_4429() {
    let rig = Rig::alone().await;
    let (slow, _) = slow_node(&rig).await;
    tokio::time::sleep(READS_AGAIN_AFTER).await;
    assert_eq!(code_at_the_end(slow).await, Some(close::SLOW_READER));
    rig.no_defect().await;
}

/// The header of a frame as a client sends it: its first byte, and eight bytes of length.
fn announced(first: u8, length: u64) -> Vec<u8> {
    [&[first, 0xFF][..], &length.to_be_bytes(), &[0; 4]].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_refused_by_the_length_that_its_header_announces() {
    const GIB: u64 = 1 << 30;
    const MIB: usize = 1 << 20;
    let rig = Rig::alone().await;
    let pid = rig.instance(0).await.process().pid();
    let session = rig.post(0, "/v1/sessions", None, 201).await["id"].as_str().unwrap().to_owned();
    let part = |length| [announced(0x01, length), vec![b' '; length as usize]].concat();
    let whole = 4 * MIB as u64;
    let before = memory(pid);
    for path in ["/v1/nodes/ws".to_owned(), format!("/v1/sessions/{session}/ws")] {
        let url = format!("{}{path}", rig.urls[0].replace("http", "ws"));
        for bytes in [announced(0x81, GIB), [part(whole), announced(0x80, 1)].concat()] {
            // Nothing follows the header, and it is refused all the same.
            let (mut socket, _) = tokio_tungstenite::connect_async(url.as_str()).await.unwrap();
            let MaybeTlsStream::Plain(stream) = socket.get_mut() else {
                unreachable!("there is no TLS here")
            };
            stream.write_all(&bytes).await.unwrap();
            let mut said = String::new();
            let code = tokio::time::timeout(PATIENCE, async {
                while let Some(message) = socket.next().await {
                    match message.unwrap() {
                        Message::Text(text) => said.push_str(&text),
                        Message::Close(Some(frame)) => return u16::from(frame.code),
                        _ => {}
                    }
                }
                panic!("{path}: closed without a code after {said:?}")
            });
            assert_eq!(code.await.expect("the socket is closed"), close::PROTOCOL, "{path}");
            let problem: Value = serde_json::from_str(&said).unwrap();
            assert_eq!(problem["code"], "too_large", "{path}: {said}");
            let detail = "the message cannot be read: a message may have 4194304 bytes";
            assert_eq!(problem["detail"], detail, "{path}");
        }
        // All of it follows, as long as it is taken.
        let (mut socket, _) = tokio_tungstenite::connect_async(url.as_str()).await.unwrap();
        let MaybeTlsStream::Plain(stream) = socket.get_mut() else { unreachable!("there is no TLS here") };
        stream.write_all(&announced(0x81, GIB)).await.unwrap();
        let piece = vec![b' '; MIB];
        for _ in 0..256 {
            match tokio::time::timeout(Duration::from_secs(5), stream.write_all(&piece)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => break,
            }
            let now = memory(pid);
            assert!(now < before + 64 * 1024, "{path}: {now} KiB, {before} KiB before");
        }
    }
    rig.no_defect().await;
}
