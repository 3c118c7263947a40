//! A session's socket against a stand-in for the scheduler, over real sockets: what it says, what it survives, how it
//! ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{FutureExt, SinkExt, StreamExt};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as Packet;
use wire::jobs::JobRequest;
use wire::sessions::{ClientFrame, Ordering};
use wire::worker::close;
use wire::{Code, Json, Problem};

use super::session_loop::Pace;
use super::socket::WAITING_MAX;
use super::*;
use crate::Error;
use crate::socket::stand_in::{self, Instance, PATIENCE};
use crate::transport::stand_in::{Act, StandIn, client};

/// One connection of a session's client.
struct Peer {
    socket: WebSocketStream<TcpStream>,
    asked_for: String,
}

impl Peer {
    async fn of(instance: &Instance) -> Self {
        let (socket, asked_for) = instance.opened().await;
        Self { socket, asked_for }
    }

    /// The name of the next job, or how it was closed.
    async fn hear(&mut self) -> std::result::Result<String, Option<u16>> {
        loop {
            match tokio::time::timeout(PATIENCE, self.socket.next()).await.expect("a word in time") {
                Some(Ok(Packet::Text(text))) => {
                    let ClientFrame::Job(job) = serde_json::from_str(&text).unwrap();
                    return Ok(job.client_ref.unwrap());
                }
                Some(Ok(Packet::Close(frame))) => return Err(frame.map(|frame| frame.code.into())),
                Some(Err(_)) | None => return Err(None),
                Some(Ok(_)) => {}
            }
        }
    }

    async fn heard(&mut self) -> String {
        self.hear().await.expect("a job")
    }

    async fn accept(&mut self, client_ref: &str, seq: u64) {
        self.say(&format!(r#"{{"type":"accepted","ref":"{client_ref}","id":"j{seq}","seq":{seq}}}"#)).await;
    }

    async fn result(&mut self, seq: u64, client_ref: &str) {
        self.say(&result(seq, client_ref)).await;
    }

    async fn say(&mut self, text: &str) {
        stand_in::say(&mut self.socket, text).await;
    }
}

fn result(seq: u64, client_ref: &str) -> String {
    format!(r#"{{"type":"result","id":"j{seq}","seq":{seq},"ref":"{client_ref}","outcome":"succeeded"}}"#)
}

fn job() -> JobRequest {
    JobRequest::new(Json::of("p").unwrap())
}

fn pace() -> Pace {
    Pace { pause_max: Duration::ZERO, ..Pace::default() }
}

fn open(instances: &[&Instance], ordering: Ordering, after_seq: u64, pace: Pace) -> SessionSocket {
    let client = Client::new(instances.iter().map(|instance| &instance.url), None).unwrap();
    SessionSocket::start(&client, "s", ordering, after_seq, pace)
}

/// What happens next, in short.
async fn next(socket: &mut SessionSocket) -> String {
    match tokio::time::timeout(PATIENCE, socket.next()).await.expect("something happens") {
        Ok(Some(happening)) => match happening {
            Happening::Connected { .. } => "connected".to_owned(),
            Happening::Lost { .. } => "lost".to_owned(),
            Happening::Accepted(it) => format!("accepted {}", it.client_ref),
            Happening::Progress(it) => format!("progress {}", it.id),
            Happening::Result(it) => format!("result {}", it.seq),
            Happening::Problem(it) => format!("problem {:?} {}", it.client_ref, it.code),
        },
        Ok(None) => "over".to_owned(),
        Err(Error::Refused(problem)) => format!("refused: {}", problem.code),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn a_job_is_sent_accepted_and_told_of_and_a_close_says_goodbye() {
    let instance = Instance::new().await;
    let mut socket = open(&[&instance], Ordering::Strict, 7, pace());
    let mut peer = Peer::of(&instance).await;
    assert_eq!(peer.asked_for, "/v1/sessions/s/ws?after_seq=7");
    socket.send("a", JobRequest { session: Some("other".to_owned()), ..job() }).await.unwrap();
    assert_eq!(peer.heard().await, "a");
    peer.accept("a", 8).await;
    peer.say(r#"{"type":"progress","id":"j8","attempt":1,"percent":50.0}"#).await;
    peer.result(8, "a").await;
    peer.say(r#"{"type":"problem","code":"invalid","detail":"no"}"#).await;
    for expected in ["connected", "accepted a", "progress j8"] {
        assert_eq!((next(&mut socket).await.as_str(), socket.after_seq()), (expected, 7));
    }
    for expected in ["result 8", "problem None invalid"] {
        assert_eq!((next(&mut socket).await.as_str(), socket.after_seq()), (expected, 8));
    }
    let close = tokio::spawn(socket.close());
    assert_eq!(peer.hear().await, Err(Some(1000)));
    assert_eq!(close.await.unwrap(), Remains { after_seq: 8, unaccepted: Vec::new() });
}

#[tokio::test]
async fn a_number_that_the_session_has_not_given_yet_is_refused() {
    let session = r#"{"id":"s","owner":null,"tenant":null,"ordering":"strict","route":null,"pool":null,"requires":[],
        "idle_ms":1000,"idle_for_ms":1,"created_at":"2026-11-25T02:36:39.627000Z","closed_at":null,
        "jobs":{"created":0,"dispatched":0,"running":0,"finished":3},"last_seq":3,"last_node":null}"#;
    let answer = || Act::Answer(200, "", session.to_owned());
    let instance = StandIn::playing(vec![answer(), answer()]).await;
    let fencepost = client(&[&instance]);
    let refused = fencepost.sessions().connect("s", 4).await;
    assert!(matches!(refused, Err(Error::Unusable(_))), "{refused:?}");
    let socket = fencepost.sessions().connect("s", 3).await.unwrap();
    assert_eq!(socket.after_seq(), 3);
}

#[tokio::test]
async fn another_connection_goes_on_where_the_last_one_was_lost() {
    let instance = Instance::new().await;
    let mut socket = open(&[&instance], Ordering::Results, 0, pace());
    let mut peer = Peer::of(&instance).await;
    for name in ["a", "b", "c"] {
        socket.send(name, job()).await.unwrap();
        assert_eq!(peer.heard().await, name);
    }
    peer.accept("a", 1).await;
    peer.result(1, "a").await;
    for expected in ["connected", "accepted a", "result 1"] {
        assert_eq!(next(&mut socket).await, expected);
    }
    drop(peer);
    let mut peer = Peer::of(&instance).await;
    assert_eq!(peer.asked_for, "/v1/sessions/s/ws?after_seq=1");
    // `b` was accepted, but the answer was lost; its first result comes twice.
    peer.result(1, "a").await;
    peer.result(2, "b").await;
    assert_eq!((peer.heard().await.as_str(), peer.heard().await.as_str()), ("b", "c"));
    peer.accept("b", 2).await;
    peer.accept("c", 4).await;
    for expected in ["lost", "connected", "accepted b", "result 2", "accepted c"] {
        assert_eq!(next(&mut socket).await, expected);
    }
    stand_in::close(&mut peer.socket, close::GOING_AWAY).await;
    let mut peer = Peer::of(&instance).await;
    assert_eq!(peer.asked_for, "/v1/sessions/s/ws?after_seq=2");
    peer.result(4, "c").await;
    for expected in ["lost", "connected", "result 4"] {
        assert_eq!(next(&mut socket).await, expected);
    }
    drop(socket);
    assert_eq!(peer.hear().await, Err(Some(1000)));
}

#[tokio::test]
async fn a_job_that_another_socket_had_sent_is_accepted_before_its_result_though_that_comes_first() {
    let instance = Instance::new().await;
    let mut socket = open(&[&instance], Ordering::Strict, 0, pace());
    socket.send("a", job()).await.unwrap();
    let mut peer = Peer::of(&instance).await;
    peer.result(1, "a").await;
    assert_eq!(peer.heard().await, "a");
    peer.accept("a", 1).await;
    peer.result(1, "a").await;
    peer.result(2, "x").await;
    for expected in ["connected", "accepted a", "result 1", "result 2"] {
        assert_eq!(next(&mut socket).await, expected);
    }
}

#[tokio::test]
async fn where_jobs_have_an_order_what_is_refused_for_now_goes_out_again_before_what_was_behind_it() {
    let instance = Instance::new().await;
    let mut socket = open(&[&instance], Ordering::Strict, 0, pace());
    let mut peer = Peer::of(&instance).await;
    for client_ref in ["a", "b", "c"] {
        socket.send(client_ref, job()).await.unwrap();
        assert_eq!(peer.heard().await, client_ref);
    }
    peer.accept("a", 1).await;
    peer.say(r#"{"type":"problem","ref":"b","code":"overloaded","detail":"no"}"#).await;
    // An instance of an earlier version goes on by itself: what it accepts on this connection is not waited for.
    assert_eq!(peer.hear().await, Err(Some(1000)));
    let mut peer = Peer::of(&instance).await;
    for (client_ref, seq) in [("b", 2), ("c", 3)] {
        assert_eq!(peer.heard().await, client_ref);
        peer.accept(client_ref, seq).await;
    }
    for expected in ["connected", "accepted a", "lost", "connected", "accepted b", "accepted c"] {
        assert_eq!(next(&mut socket).await, expected);
    }
}

#[tokio::test]
async fn without_a_known_order_it_goes_on_behind_the_first_place_that_was_not_seen() {
    for ordering in [Ordering::Free, Ordering::Unrecognised] {
        let instance = Instance::new().await;
        let mut socket = open(&[&instance], ordering, 0, pace());
        let mut peer = Peer::of(&instance).await;
        for seq in [3, 1, 5] {
            peer.result(seq, "x").await;
        }
        for expected in ["connected", "result 3", "result 1", "result 5"] {
            assert_eq!(next(&mut socket).await, expected);
        }
        assert_eq!(socket.after_seq(), 1);
        drop(peer);
        let mut peer = Peer::of(&instance).await;
        assert_eq!(peer.asked_for, "/v1/sessions/s/ws?after_seq=1");
        for seq in [5, 3, 2, 4] {
            peer.result(seq, "x").await;
        }
        for expected in ["lost", "connected", "result 2", "result 4"] {
            assert_eq!(next(&mut socket).await, expected);
        }
        assert_eq!(socket.after_seq(), 5);
    }
}

#[tokio::test]
async fn another_url_is_tried_when_one_fails() {
    let (one, other) = (Instance::new().await, Instance::new().await);
    let mut socket = open(&[&one, &other], Ordering::Strict, 0, pace());
    let (first, second) = tokio::select! {
        peer = Peer::of(&one) => (peer, &other),
        peer = Peer::of(&other) => (peer, &one),
    };
    drop(first);
    let mut peer = Peer::of(second).await;
    assert_eq!(next(&mut socket).await, "connected");
    assert_eq!(next(&mut socket).await, "lost");
    let connected = socket.next().await.unwrap();
    assert_eq!(connected, Some(Happening::Connected { url: second.url.clone() }));
    peer.result(1, "x").await;
    assert_eq!(next(&mut socket).await, "result 1");
}

#[tokio::test]
async fn a_closed_session_is_the_end_and_what_was_not_accepted_is_refused() {
    let instance = Instance::new().await;
    let mut socket = open(&[&instance], Ordering::Strict, 0, pace());
    let mut peer = Peer::of(&instance).await;
    socket.send("a", job()).await.unwrap();
    assert_eq!(peer.heard().await, "a");
    peer.result(1, "other").await;
    stand_in::close(&mut peer.socket, 1000).await;
    for expected in ["connected", "result 1", "problem Some(\"a\") conflict", "over", "over"] {
        assert_eq!(next(&mut socket).await, expected);
    }
    let sender = socket.sender();
    assert!(matches!(sender.send("b", job()).await, Err(Error::Unusable(_))));
    assert_eq!(socket.close().await, Remains { after_seq: 1, unaccepted: Vec::new() });
}

#[tokio::test]
async fn a_refusal_for_good_ends_it_and_one_for_now_does_not() {
    for (code, is_end) in [
        (Code::NotFound, true),
        (Code::Unauthorized, true),
        (Code::Forbidden, true),
        (Code::Draining, false),
        (Code::LedgerUnavailable, false),
        (Code::BusUnavailable, true),
    ] {
        let instance = Instance::new().await;
        let mut socket = open(&[&instance], Ordering::Strict, 0, pace());
        socket.send("a", job()).await.unwrap();
        instance.refuse(&Problem::new(code, "so it is")).await;
        if is_end {
            assert_eq!(next(&mut socket).await, format!("refused: {code}"));
            assert_eq!(next(&mut socket).await, "the session's socket has ended");
            assert_eq!(socket.close().await.unaccepted, ["a"]);
        } else {
            let mut peer = Peer::of(&instance).await;
            assert_eq!((next(&mut socket).await.as_str(), peer.heard().await.as_str()), ("lost", "a"));
        }
    }
}

#[tokio::test]
async fn a_refusal_ends_it_only_where_each_url_refuses_it() {
    let (one, other) = (Instance::new().await, Instance::new().await);
    for code in [Code::Forbidden, Code::Internal] {
        let no = Problem::new(code, "so it is");
        let mut socket = open(&[&one, &other], Ordering::Strict, 0, pace());
        let (first, second) = tokio::select! {
            () = one.refuse(&no) => (&one, &other),
            () = other.refuse(&no) => (&other, &one),
        };
        let peer = Peer::of(second).await;
        assert_eq!([next(&mut socket).await, next(&mut socket).await], ["lost", "connected"], "{code}");
        drop(peer);
        // Once it was connected, all may refuse it for a while.
        for refuses in [first, second, first] {
            assert_eq!(next(&mut socket).await, "lost", "{code}");
            refuses.refuse(&no).await;
        }
        let mut peer = Peer::of(second).await;
        assert_eq!([next(&mut socket).await, next(&mut socket).await], ["lost", "connected"], "{code}");
        drop(socket);
        assert_eq!(peer.hear().await, Err(Some(1000)));
        // One that was never connected.
        let mut socket = open(&[&one, &other], Ordering::Strict, 0, pace());
        let second = tokio::select! {
            () = one.refuse(&no) => &other,
            () = other.refuse(&no) => &one,
        };
        second.refuse(&no).await;
        assert_eq!(
            [next(&mut socket).await, next(&mut socket).await],
            ["lost".to_owned(), format!("refused: {code}")]
        );
    }
}

#[tokio::test]
async fn a_session_that_is_not_there_ends_it_at_once() {
    let (one, other) = (Instance::new().await, Instance::new().await);
    let mut socket = open(&[&one, &other], Ordering::Strict, 0, pace());
    let gone = Problem::new(Code::NotFound, "so it is");
    tokio::select! {
        () = one.refuse(&gone) => {}
        () = other.refuse(&gone) => {}
    }
    assert_eq!(next(&mut socket).await, "refused: not_found");
}

#[tokio::test]
async fn what_breaks_the_protocol_ends_it() {
    let instance = Instance::new().await;
    let mut socket = open(&[&instance], Ordering::Strict, 0, pace());
    // Nothing that the caller has sent can be the fault.
    for _ in 0..4 {
        stand_in::close(&mut Peer::of(&instance).await.socket, close::PROTOCOL).await;
        assert_eq!([next(&mut socket).await, next(&mut socket).await], ["connected", "lost"]);
    }
    socket.send("a", job()).await.unwrap();
    for then in ["lost", "lost", "refused: invalid"] {
        let mut peer = Peer::of(&instance).await;
        assert_eq!((next(&mut socket).await.as_str(), peer.heard().await.as_str()), ("connected", "a"));
        stand_in::close(&mut peer.socket, close::PROTOCOL).await;
        assert_eq!(next(&mut socket).await, then);
    }
    for frame in [Packet::text(r#"{"type":"result","seq":1}"#), Packet::binary(vec![1])] {
        let mut socket = open(&[&instance], Ordering::Strict, 0, pace());
        let mut peer = Peer::of(&instance).await;
        peer.socket.send(frame).await.unwrap();
        assert_eq!(next(&mut socket).await, "connected");
        assert!(matches!(socket.next().await, Err(Error::Unexpected { status: 101, .. })));
        assert_eq!(peer.hear().await, Err(Some(close::PROTOCOL)));
    }
}

#[tokio::test]
async fn a_client_that_was_paused_within_a_message_connects_again() {
    let instance = Instance::new().await;
    let mut socket = open(&[&instance], Ordering::Strict, 0, pace());
    for (seq, name) in [(1, "a"), (2, "b"), (3, "c")] {
        socket.send(name, job()).await.unwrap();
        for _ in 0..2 {
            let mut peer = Peer::of(&instance).await;
            assert_eq!((next(&mut socket).await.as_str(), peer.heard().await.as_str()), ("connected", name));
            stand_in::close(&mut peer.socket, close::PROTOCOL).await;
            assert_eq!(next(&mut socket).await, "lost");
        }
        let mut peer = Peer::of(&instance).await;
        assert_eq!((next(&mut socket).await.as_str(), peer.heard().await.as_str()), ("connected", name));
        peer.accept(name, seq).await;
        assert_eq!(next(&mut socket).await, format!("accepted {name}"));
        stand_in::close(&mut peer.socket, close::GOING_AWAY).await;
        assert_eq!(next(&mut socket).await, "lost");
    }
}

#[tokio::test]
async fn pings_are_answered_and_a_connection_on_which_nothing_is_heard_is_given_up() {
    let instance = Instance::new().await;
    let (ping_every, silence_max) = (Duration::from_millis(100), Duration::from_secs(3));
    let pace = Pace { ping_every, silence_max, ..pace() };
    let mut socket = open(&[&instance], Ordering::Strict, 0, pace);
    let mut peer = Peer::of(&instance).await;
    peer.socket.send(Packet::Ping(vec![7].into())).await.unwrap();
    let (mut pings, mut pongs) = (0, 0);
    // A client that reads answers pings: this lasts longer than silence may.
    while pings < 35 {
        match peer.socket.next().await.unwrap().unwrap() {
            Packet::Ping(_) => pings += 1,
            Packet::Pong(bytes) => pongs += usize::from(bytes[..] == [7]),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(pongs, 1);
    // The silent one is still open when the next one comes.
    let mut next_one = Peer::of(&instance).await;
    for expected in ["connected", "lost", "connected"] {
        assert_eq!(next(&mut socket).await, expected);
    }
    next_one.result(1, "x").await;
    assert_eq!(next(&mut socket).await, "result 1");
}

#[tokio::test]
async fn who_sends_waits_for_room_and_what_no_daemon_would_take_is_not_sent() {
    let instance = Instance::new().await;
    let mut socket = open(&[&instance], Ordering::Strict, 0, pace());
    let mut peer = Peer::of(&instance).await;
    assert_eq!(next(&mut socket).await, "connected");
    let long = Json::of(&"x".repeat(wire::limits::PAYLOAD_BYTES_MAX)).unwrap();
    for (name, job) in [("", job()), ("long", JobRequest::new(long))] {
        assert!(matches!(socket.send(name, job).await, Err(Error::Unusable(_))), "{name}");
    }
    for n in 0..UNACCEPTED_JOBS_MAX {
        socket.send(&n.to_string(), job()).await.unwrap();
    }
    let sender = socket.sender();
    let mut one_more = Box::pin(sender.send("more", job()));
    for n in 0..UNACCEPTED_JOBS_MAX {
        assert_eq!(peer.heard().await, n.to_string());
        assert!((&mut one_more).now_or_never().is_none());
    }
    peer.accept("0", 1).await;
    assert_eq!(next(&mut socket).await, "accepted 0");
    tokio::time::timeout(PATIENCE, one_more).await.expect("there is room").unwrap();
    assert_eq!(peer.heard().await, "more");
}

#[tokio::test]
async fn a_close_waits_for_what_was_sent_and_names_what_was_not_accepted() {
    let instance = Instance::new().await;
    let socket = open(&[&instance], Ordering::Strict, 3, pace());
    socket.send("a", job()).await.unwrap();
    socket.send("b", job()).await.unwrap();
    let sender = socket.sender();
    let closing = tokio::spawn(socket.close());
    let mut peer = Peer::of(&instance).await;
    assert_eq!((peer.heard().await.as_str(), peer.heard().await.as_str()), ("a", "b"));
    peer.accept("a", 4).await;
    peer.result(4, "a").await;
    peer.accept("b", 5).await;
    assert_eq!(peer.hear().await, Err(Some(1000)));
    // The result was told to nobody.
    assert_eq!(closing.await.unwrap(), Remains { after_seq: 3, unaccepted: Vec::new() });
    assert!(sender.send("c", job()).await.is_err());

    let socket =
        open(&[&instance], Ordering::Strict, 0, Pace { close_within: Duration::from_millis(50), ..pace() });
    socket.send("a", job()).await.unwrap();
    let mut peer = Peer::of(&instance).await;
    assert_eq!(peer.heard().await, "a");
    let (remains, heard) = tokio::join!(socket.close(), peer.hear());
    assert_eq!((remains.unaccepted, heard), (vec!["a".to_owned()], Err(Some(1000))));
}

#[tokio::test]
async fn a_close_names_the_jobs_that_were_refused_and_of_which_the_caller_has_not_heard() {
    let instance = Instance::new().await;
    // Some refusals wait for the caller, one waits for room, and the others are heard when the caller closes the socket.
    let names: Vec<_> = (0..WAITING_MAX + 10).map(|n| n.to_string()).collect();
    let socket = open(&[&instance], Ordering::Free, 0, pace());
    let mut peer = Peer::of(&instance).await;
    for name in &names {
        socket.send(name, job()).await.unwrap();
        assert_eq!(peer.heard().await, *name);
    }
    for name in &names {
        peer.say(&format!(r#"{{"type":"problem","ref":"{name}","code":"overloaded","detail":"no"}}"#)).await;
    }
    let (remains, heard) = tokio::join!(socket.close(), peer.hear());
    assert_eq!((remains.unaccepted, heard), (names, Err(Some(1000))));

    // The session is closed a moment before the socket.
    let socket = open(&[&instance], Ordering::Strict, 0, pace());
    socket.send("a", job()).await.unwrap();
    let mut peer = Peer::of(&instance).await;
    assert_eq!(peer.heard().await, "a");
    stand_in::close(&mut peer.socket, 1000).await;
    assert_eq!(socket.close().await.unaccepted, ["a"]);
}

#[test]
fn a_close_names_what_was_not_accepted_also_where_the_runtime_of_the_socket_has_ended() {
    let runtime = || {
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        threads.worker_threads(1).enable_all().build().unwrap()
    };
    let (of_socket, other) = (runtime(), runtime());
    let instance = other.block_on(Instance::new());
    let socket = of_socket.block_on(async { open(&[&instance], Ordering::Free, 0, pace()) });
    let names: Vec<_> = (0..UNACCEPTED_JOBS_MAX as usize + WAITING_MAX).map(|n| n.to_string()).collect();
    let (first, last) = names.split_at(UNACCEPTED_JOBS_MAX as usize);
    let _peer = other.block_on(async {
        let mut peer = Peer::of(&instance).await;
        for name in first {
            socket.send(name, job()).await.unwrap();
            assert_eq!(peer.heard().await, *name);
        }
        // The caller has room for one less: it has not taken the news of the connection.
        for name in &first[..WAITING_MAX] {
            let no = format!(r#"{{"type":"problem","ref":"{name}","code":"overloaded","detail":"no"}}"#);
            peer.say(&no).await;
        }
        // Each refusal that was read makes room for a job. So all were read once these are sent, and the last one waits until
        // the caller takes one.
        for name in last {
            let sending = socket.send(name, job());
            tokio::time::timeout(PATIENCE, sending).await.expect("there is room").unwrap();
        }
        peer
    });
    drop(of_socket);
    let remains = other.block_on(socket.close());
    assert_eq!(remains, Remains { after_seq: 0, unaccepted: names });
}

/// A scheduler with one session, whose connections are cut again and again.
struct Daemon {
    instance: Instance,
    rng: SmallRng,
    is_ordered: bool,
    jobs: usize,
    cuts: u32,
    places: BTreeMap<String, u64>,
    last_seq: u64,
    finished: BTreeSet<u64>,
}

impl Daemon {
    /// Until the client says goodbye.
    async fn serve(mut self) {
        while !self.connection().await {
            self.cuts -= 1;
        }
    }

    async fn connection(&mut self) -> bool {
        let mut peer = Peer::of(&self.instance).await;
        let (_, after) = peer.asked_for.split_once("after_seq=").unwrap();
        let mut sent: BTreeSet<u64> = (1..=after.parse().unwrap()).collect();
        let mut left = if self.cuts > 0 { self.rng.random_range(0..40) } else { usize::MAX };
        loop {
            if left == 0 {
                if self.rng.random_bool(0.5) {
                    stand_in::close(&mut peer.socket, close::GOING_AWAY).await;
                }
                return false;
            }
            left -= 1;
            if let Some((client_ref, seq)) = self.due(&sent) {
                sent.insert(seq);
                peer.result(seq, &client_ref).await;
            } else if self.finished.len() < self.places.len()
                && (self.places.len() == self.jobs || self.rng.random_bool(0.5))
            {
                let running: Vec<_> =
                    self.places.values().filter(|seq| !self.finished.contains(seq)).copied().collect();
                self.finished.insert(running[self.rng.random_range(0..running.len())]);
            } else {
                let Ok(client_ref) = peer.hear().await else { return true };
                self.last_seq += 1;
                // A repetition leaves a gap.
                let seq = *self.places.entry(client_ref.clone()).or_insert(self.last_seq);
                // Some a client does not hear of.
                if left > 0 {
                    peer.accept(&client_ref, seq).await;
                }
            }
        }
    }

    /// A result that may be sent.
    fn due(&mut self, sent: &BTreeSet<u64>) -> Option<(String, u64)> {
        let unfinished = self.places.values().filter(|seq| !self.finished.contains(seq)).min();
        let first = unfinished.filter(|_| self.is_ordered).copied().unwrap_or(u64::MAX);
        let mut due: Vec<_> =
            self.finished.iter().filter(|seq| !sent.contains(seq) && **seq < first).collect();
        if self.is_ordered {
            due.truncate(1);
        }
        let seq = **due.get(self.rng.random_range(0..due.len().max(1)))?;
        let (client_ref, _) = self.places.iter().find(|(_, place)| **place == seq)?;
        Some((client_ref.clone(), seq))
    }
}

#[tokio::test]
async fn whatever_is_cut_every_job_is_accepted_once_and_its_result_told_once_behind_that() {
    for ordering in [Ordering::Results, Ordering::Free] {
        let seed = rand::random();
        println!("seed {seed}");
        let jobs = 150;
        let is_ordered = ordering == Ordering::Results;
        let daemon = Daemon {
            instance: Instance::new().await,
            rng: SmallRng::seed_from_u64(seed),
            is_ordered,
            jobs,
            cuts: 12,
            places: BTreeMap::new(),
            last_seq: 0,
            finished: BTreeSet::new(),
        };
        let mut socket = open(&[&daemon.instance], ordering, 0, pace());
        let daemon = tokio::spawn(daemon.serve());
        let sender = socket.sender();
        let sending = async move {
            for n in 0..jobs {
                sender.send(&n.to_string(), job()).await.unwrap();
            }
        };
        if is_ordered {
            tokio::spawn(sending);
        } else {
            // Who reads late loses nothing.
            sending.await;
        }
        let (mut accepted, mut results) = (BTreeMap::new(), BTreeMap::new());
        while results.len() < jobs {
            match tokio::time::timeout(PATIENCE, socket.next()).await.expect("something happens").unwrap() {
                Some(Happening::Accepted(it)) => {
                    assert_eq!(accepted.insert(it.client_ref, it.seq), None, "seed {seed}");
                }
                Some(Happening::Result(it)) => {
                    let client_ref = it.client_ref.unwrap();
                    assert_eq!(accepted.get(&client_ref), Some(&it.seq), "seed {seed}");
                    let last = results.last_key_value().map_or(0, |(seq, _)| *seq);
                    assert!(!is_ordered || last < it.seq, "seed {seed}: {} behind {last}", it.seq);
                    assert_eq!(results.insert(it.seq, client_ref), None, "seed {seed}");
                    let is_whole = (1..=socket.after_seq()).all(|seq| results.contains_key(&seq));
                    assert!(is_ordered || is_whole, "seed {seed}: up to {}", socket.after_seq());
                }
                Some(Happening::Connected { .. } | Happening::Lost { .. }) => {}
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        // Sent again they are in the order in which they were sent.
        let names: Vec<usize> = results.values().map(|name| name.parse().unwrap()).collect();
        assert!(names.is_sorted(), "seed {seed}: {names:?}");
        let remains = socket.close().await;
        assert!(remains.unaccepted.is_empty(), "seed {seed}");
        if is_ordered {
            assert_eq!(Some(&remains.after_seq), results.last_key_value().map(|(seq, _)| seq), "seed {seed}");
        }
        // It may wait for another connection.
        daemon.abort();
    }
}
