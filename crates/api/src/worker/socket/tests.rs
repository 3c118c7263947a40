//! What results that come before a node's `welcome` take of what callers share, and how a node is served that reads slowly.

use std::future::poll_fn;
use std::pin::Pin;

use actix_web::body::{BoxBody, MessageBody, to_bytes};
use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use actix_web::test::TestRequest;
use actix_web::web::Bytes;
use actix_web::{FromRequest, web};
use bus::{Connected, Epoch, Version};
use domain::JobId;
use domain::job::Attempt;
use futures_util::{Stream, stream};
use nodes::attached::{Known, Registering};
use nodes::connection::Hello;
use tempfile::TempDir;
use tokio::sync::mpsc;
use wire::limits::MESSAGE_FRAMES_MAX;
use wire::worker::HeartbeatOk;

use super::*;
use crate::auth::Auth;
use crate::limits::{Limit, SOCKET_OUT_FRAMES_MAX, UNCOUNTED_BYTES_MAX};
use crate::settings::Settings;
use crate::tests::{forwarder, state_with};
use crate::websocket::Opened;

/// Of one result.
const BYTES: usize = 1_000_000;
/// More messages than a connection takes of which nothing is read.
const MANY: usize = 100;
const HELLO: &str = r#"{"type":"hello","node_id":"n","capacity":2,"running":[]}"#;
const HEARTBEAT: &str = r#"{"type":"heartbeat","running":[]}"#;
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
/// What a close frame of a side that has nothing more to say has in it.
const NORMAL: [u8; 2] = 1_000_u16.to_be_bytes();

fn slot(n: u128) -> Slot {
    Slot { job: JobId::from_u128(n), attempt: Attempt::new(1) }
}

/// The other side of a socket.
struct Peer {
    sends: mpsc::UnboundedSender<Result<Bytes, PayloadError>>,
    /// What it has not read.
    reads: BoxBody,
}

impl Peer {
    /// Sends a short frame, under a mask of zeros.
    fn sends(&self, operation: u8, payload: &[u8]) {
        assert!(payload.len() < 126);
        let header = [0x80 | operation, 0x80 | payload.len() as u8, 0, 0, 0, 0];
        self.sends.send(Ok([&header[..], payload].concat().into())).unwrap();
    }

    /// Reads what is there.
    async fn reads(&mut self) {
        poll_fn(|context| Pin::new(&mut self.reads).poll_next(context)).await.unwrap().unwrap();
    }
}

/// A socket that was just opened.
async fn opened(state: &Arc<State>) -> (Socket, AggregatedMessageStream, Pauses, Peer) {
    let request = TestRequest::get()
        .insert_header(("connection", "upgrade"))
        .insert_header(("upgrade", "websocket"))
        .insert_header(("sec-websocket-version", "13"))
        .insert_header(("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="));
    let (request, _) = request.to_http_parts();
    let (sends, mut sent) = mpsc::unbounded_channel();
    let sent: Pin<Box<dyn Stream<Item = _>>> =
        Box::pin(stream::poll_fn(move |context| sent.poll_recv(context)));
    let payload = web::Payload::from_request(&request, &mut Payload::from(sent)).await.unwrap();
    let Opened { response, outlet, messages, pauses, .. } =
        websocket::open(&request, payload, state).unwrap();
    let socket = Socket::new(forwarder(state), state.incarnation(), Principal::of(&request), outlet);
    (socket, messages, pauses, Peer { sends, reads: response.into_body() })
}

/// The same, so long ago that its node is taken for silent unless something comes from it.
async fn opened_long_ago(state: &Arc<State>) -> (Socket, AggregatedMessageStream, Pauses, Peer) {
    let (mut socket, messages, pauses, peer) = opened(state).await;
    let incarnation = state.incarnation();
    let (me, timeouts) = (incarnation.identity.id.clone(), *incarnation.registry.timeouts());
    let long_ago = Instant::now().checked_sub(timeouts.offline).unwrap();
    socket.node = AttachedNode::opened(me, timeouts, long_ago);
    socket.tick_due = Some(Instant::now());
    (socket, messages, pauses, peer)
}

/// A node that has said hello, runs two attempts, and is not registered yet.
async fn greeted(state: &Arc<State>, name: &str) -> Socket {
    let (mut socket, ..) = opened(state).await;
    let hello = Hello {
        node: domain::NodeId::parse(name).unwrap(),
        capacity: 2,
        takes_batches: false,
        labels: Arc::default(),
        services: Arc::default(),
        pools: None,
        software: None,
        running: vec![slot(1), slot(2)],
        principal: "".into(),
    };
    socket.apply(Event::Frames(vec![FromNode::Hello(hello)]));
    socket
}

fn ends(socket: &mut Socket, n: u128) {
    let end = End::Succeeded { output: "1".repeat(BYTES) };
    socket.apply(Event::Frames(vec![FromNode::Result { slot: slot(n), end }]));
}

#[actix_web::test]
async fn results_that_wait_for_the_records_of_their_nodes_count_among_what_is_being_read() {
    let dir = TempDir::new().unwrap();
    let mut settings = Settings::new(Auth::open());
    settings.reading_bytes = Limit { in_all: 5 * BYTES / 2, of_token: 5 * BYTES / 2 };
    let state = state_with(&dir, settings).await;
    let in_use = || state.shares.in_use(Kind::Reading);
    let (mut one, mut other) = (greeted(&state, "a").await, greeted(&state, "b").await);
    assert_eq!(in_use(), 0);
    ends(&mut one, 1);
    ends(&mut other, 1);
    assert!(in_use() > 2 * BYTES && one.closing.is_none() && other.closing.is_none());
    ends(&mut other, 2);
    assert!(matches!(other.closing, Some(Closing::ByInstance(CloseCode::Overloaded, _))));
    drop(other);
    ends(&mut one, 2);
    assert!(in_use() > 2 * BYTES && one.closing.is_none());
    // They are committed now, and their room is not taken twice.
    let connected = Connected { epoch: Epoch::new(7), version: Version::new(1), is_complete: true };
    let known = Known { connected, taken: vec![slot(1), slot(2)], unlisted: Vec::new() };
    one.apply(Event::Registered {
        known: Ok(Registering::Done(known)),
        is_lent: false,
        provisional: Epoch::new(1),
    });
    assert_eq!(in_use(), 2 * BYTES);
    assert!(one.closing.is_none());
    drop(one);
    assert_eq!(in_use(), 0);
}

#[actix_web::test]
async fn what_a_node_sends_is_read_while_it_reads_nothing() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let (socket, messages, pauses, peer) = opened(&state).await;
    peer.sends(TEXT, HELLO.as_bytes());
    (0..MANY).for_each(|_| peer.sends(TEXT, HEARTBEAT.as_bytes()));
    peer.sends(CLOSE, &NORMAL);
    actix_web::rt::spawn(socket.run(messages, pauses)).await.unwrap();
    // It reads again: all that was for it is there, in its order, and its own close is answered.
    let read = to_bytes(peer.reads).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&read).matches("heartbeat_ok").count(), MANY);
    assert!(
        read.ends_with(&[&[0x80 | CLOSE, 2][..], &NORMAL].concat()),
        "{}",
        String::from_utf8_lossy(&read)
    );
}

#[actix_web::test]
async fn what_a_node_has_sent_is_read_before_its_silence_is_judged() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let (mut socket, mut messages, _, peer) = opened_long_ago(&state).await;
    peer.sends(TEXT, HELLO.as_bytes());
    socket.tick(&mut messages);
    assert!(socket.closing.is_none() && socket.node.node().is_some() && socket.tick_due.is_none());
    let (mut silent, mut messages, _, _peer) = opened_long_ago(&state).await;
    silent.tick(&mut messages);
    assert!(matches!(silent.closing, Some(Closing::ByInstance(CloseCode::Protocol, _))));
}

#[actix_web::test]
async fn the_silence_of_a_node_is_not_judged_before_it_has_read_what_waits() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let (mut socket, mut messages, _, mut peer) = opened_long_ago(&state).await;
    for _ in 0..MANY {
        socket.out.push(&SchedulerFrame::HeartbeatOk(HeartbeatOk { draining: false }), None);
    }
    socket.flush();
    socket.tick(&mut messages);
    assert!(socket.closing.is_none() && socket.out.is_waiting());
    while socket.out.is_waiting() {
        peer.reads().await;
        socket.flush();
    }
    assert!(socket.closing.is_none());
    socket.tick(&mut messages);
    assert!(matches!(socket.closing, Some(Closing::ByInstance(CloseCode::Protocol, _))));
}

#[actix_web::test]
async fn time_passes_also_for_a_node_that_always_has_something_to_read() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let frame = SchedulerFrame::HeartbeatOk(HeartbeatOk { draining: false });
    for speaks in [true, false] {
        let (mut socket, mut messages, _, peer) = opened_long_ago(&state).await;
        // There is no room for answers either.
        (0..SOCKET_OUT_FRAMES_MAX + MANY).for_each(|_| socket.out.push(&frame, None));
        socket.flush();
        assert!(socket.out.is_waiting() && !socket.out.has_room());
        socket.tick_due = Instant::now().checked_sub(SOCKET_SEND_MAX);
        if speaks {
            peer.sends(TEXT, HELLO.as_bytes());
        }
        socket.tick(&mut messages);
        assert!(socket.out.is_waiting() && socket.tick_due.is_none());
        assert_eq!(socket.closing.is_none(), speaks);
        assert_eq!(socket.node.node().is_some(), speaks);
    }
}

#[actix_web::test]
async fn frames_wait_up_to_a_limit_and_go_together_to_a_node_that_takes_batches() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let (mut socket, ..) = opened(&state).await;
    let frame = SchedulerFrame::HeartbeatOk(HeartbeatOk { draining: false });
    let text = serde_json::to_string(&frame).unwrap();
    (0..2).for_each(|_| socket.out.push(&frame, None));
    assert_eq!(socket.out.end(false).last, [text.clone(), text.clone()]);
    (0..2).for_each(|_| socket.out.push(&frame, None));
    assert_eq!(socket.out.end(true).last, [format!("[{text},{text}]")]);
    (1..SOCKET_OUT_FRAMES_MAX).for_each(|_| socket.out.push(&frame, None));
    assert!(socket.out.has_room());
    socket.out.push(&frame, None);
    assert!(!socket.out.has_room());
    let messages = socket.out.end(true).last;
    assert_eq!(messages.len(), SOCKET_OUT_FRAMES_MAX / MESSAGE_FRAMES_MAX);
    assert!(socket.out.has_room() && !socket.out.is_waiting());
}

#[actix_web::test]
async fn attempts_that_wait_when_a_socket_ends_are_not_sent_and_other_frames_are() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let dispatch = SchedulerFrame::HeartbeatOk(HeartbeatOk { draining: true });
    let other = SchedulerFrame::HeartbeatOk(HeartbeatOk { draining: false });
    let text = serde_json::to_string(&other).unwrap();
    for is_batch in [false, true] {
        let (mut socket, _messages, _, _peer) = opened(&state).await;
        // Each is a message of its own, the last of which the connection has not taken.
        let mut pushed = 0;
        while !socket.out.is_waiting() {
            pushed += 1;
            socket.out.push(&dispatch, Some(slot(pushed)));
            if is_batch {
                socket.out.push(&other, None);
            }
            socket.out.flush(is_batch).unwrap();
        }
        socket.out.push(&dispatch, Some(slot(pushed + 1)));
        socket.out.push(&other, None);
        let Left { sending, last, unsent, .. } = socket.out.end(is_batch);
        assert!(sending.is_none());
        assert_eq!(unsent, [slot(pushed), slot(pushed + 1)]);
        let expected = if is_batch { format!("[{text},{text}]") } else { text.clone() };
        assert_eq!(last, [expected]);
    }
}

#[actix_web::test]
async fn frames_that_wait_for_nodes_count_among_what_is_not_sent() {
    let dir = TempDir::new().unwrap();
    let mut settings = Settings::new(Auth::open());
    settings.sending_bytes = Limit { in_all: 4 * UNCOUNTED_BYTES_MAX, of_token: 4 * UNCOUNTED_BYTES_MAX };
    let state = state_with(&dir, settings).await;
    let in_use = || state.shares.in_use(Kind::Sending);
    let frame = SchedulerFrame::HeartbeatOk(HeartbeatOk { draining: false });
    let bytes = serde_json::to_string(&frame).unwrap().len();
    let (mut socket, ..) = opened(&state).await;
    let few = UNCOUNTED_BYTES_MAX / bytes;
    (0..few).for_each(|_| socket.out.push(&frame, None));
    assert_eq!(in_use(), 0, "few bytes are not counted");
    socket.out.push(&frame, None);
    assert_eq!(in_use(), (few + 1) * bytes);
    let others = state.shares.take(Kind::Sending, None, 4 * UNCOUNTED_BYTES_MAX - in_use()).unwrap();
    assert!(socket.out.has_room());
    socket.out.push(&frame, None);
    assert!(!socket.out.has_room(), "others have all the room");
    drop(others);
    socket.out.push(&frame, None);
    assert!(socket.out.has_room());
    // They count until they are sent, also after the end.
    let left = socket.out.end(false);
    assert_eq!((left.last.len(), in_use()), (few + 3, (few + 3) * bytes));
    drop((left, socket));
    assert_eq!(in_use(), 0);
}
