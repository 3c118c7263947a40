//! What results that come before a node's `welcome`, and the attempts in its `hello`, take of what callers share, what becomes of
//! a node for which there is no room, which of two connections under one id begins, which time does not count against a node,
//! what of the frames for a node was sent when the instance stops or the connection is gone, what a connection leaves that got
//! the node's record too late, and who is not there though the bus shows its presence.

use std::ops::RangeInclusive;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use actix_web::body::to_bytes;
use actix_web::dev::Payload;
use bus::{Connected, Epoch, NewConnection, NodeState, Report, Version, Written};
use domain::JobId;
use domain::job::{Assignment, Attempt, Change, Due, NewJob, Spec};
use futures_util::{StreamExt, stream};
use ledger::{Acquisition, JobBatch, JobWrite, JobsVerdict, Lane};
use nodes::attached::{Known, Registering};
use nodes::connection::{Dispatch, Hello};
use tempfile::TempDir;

use super::*;
use crate::auth::{Auth, Scope, Sees, Token};
use crate::limits::{LISTED_ATTEMPT_BYTES, Limit, UNCOUNTED_BYTES_MAX};
use crate::settings::Settings;
use crate::tests::{forwarder, opened, opened_with, state_with, token};
use crate::websocket::Opened;

/// Of one result.
const BYTES: usize = 1_000_000;

fn slot(n: u128) -> Slot {
    Slot { job: JobId::from_u128(n), attempt: Attempt::new(1) }
}

/// A node that has said hello, runs two attempts, and is not registered yet.
async fn greeted(state: &Arc<State>, name: &str) -> Socket {
    greeted_with(state, name, vec![slot(1), slot(2)]).await
}

/// The same of one that runs these.
async fn greeted_with(state: &Arc<State>, name: &str, running: Vec<Slot>) -> Socket {
    let (request, Opened { outlet, .. }) = opened(state).await;
    let mut socket = Socket::new(forwarder(state), state.incarnation(), Principal::of(&request), outlet);
    let hello = Hello {
        node: domain::NodeId::parse(name).unwrap(),
        capacity: 2,
        takes_batches: false,
        labels: Arc::default(),
        services: Arc::default(),
        pools: None,
        software: None,
        is_drained: false,
        running,
        principal: "".into(),
    };
    socket.apply(Event::Frames(vec![FromNode::Hello(hello)]));
    socket
}

fn two_tokens() -> Auth {
    Auth::tokens(["one", "other"].map(|name| token(name, Scope::Node)).to_vec())
}

/// So many attempts.
fn numbered(count: usize) -> Vec<Slot> {
    (1..=count as u128).map(slot).collect()
}

/// A node that says hello with this token, and lists so many attempts.
async fn connected(state: &Arc<State>, token: &str, node: &str, count: usize) -> Socket {
    connected_with(state, token, node, numbered(count)).await
}

/// The same, where it lists these.
async fn connected_with(state: &Arc<State>, token: &str, node: &str, listed: Vec<Slot>) -> Socket {
    let (_, Opened { outlet, .. }) = opened(state).await;
    let principal = state.settings.auth.named(token).unwrap();
    let mut socket = Socket::new(forwarder(state), state.incarnation(), principal, outlet);
    let attempt = |Slot { job, attempt }| format!(r#"{{"job":"{job}","attempt":{attempt}}}"#);
    let running = listed.into_iter().map(attempt).collect::<Vec<_>>().join(",");
    let hello = format!(r#"{{"type":"hello","node_id":"{node}","capacity":2,"running":[{running}]}}"#);
    socket.on_message(AggregatedMessage::Text(hello.into()));
    socket
}

fn is_overloaded(socket: &Socket) -> bool {
    matches!(socket.closing, Some(Closing::ByInstance(CloseCode::Overloaded, _)))
}

/// The ledger has jobs whose first attempts are at this node.
async fn dispatch_all(state: &State, node: &domain::NodeId, slots: &[Slot]) {
    let owner = domain::InstanceId::parse("owner-1").unwrap();
    let id = domain::LaneId::instance(&owner, 0);
    let acquired = state.ledger.acquire(id.lease(), &owner, 600_000).await.unwrap();
    let Acquisition::Acquired { token, .. } = acquired else { panic!("{acquired:?}") };
    let placed = Assignment { node: node.clone(), holder: state.incarnation().identity.id.clone() };
    let write = |slot: &Slot| {
        let new = NewJob {
            id: slot.job,
            spec: Spec::new("1"),
            seq: None,
            client_ref: None,
            due: Due::Now,
            retry: None,
            placed: Some(placed.clone()),
        };
        JobWrite { change: Change::Submit(Box::new(new)), key: None }
    };
    let writes = slots.iter().map(write).collect();
    let batch = JobBatch { lane: Some(Lane { id, owner, token }), writes };
    let verdict = state.ledger.commit_jobs(batch).await.unwrap();
    assert!(matches!(verdict, JobsVerdict::Written { .. }), "{verdict:?}");
}

fn ends(socket: &mut Socket, n: u128) {
    let end = End::Succeeded { output: "1".repeat(BYTES) };
    socket.apply(Event::Frames(vec![FromNode::Result { slot: slot(n), end }]));
}

/// The bus has the record now, which lists both attempts.
fn registered(socket: &mut Socket) {
    let connected = Connected { epoch: Epoch::new(7), version: Version::new(1), is_complete: true };
    let known = Known { connected, taken: vec![slot(1), slot(2)], unlisted: Vec::new() };
    socket.apply(Event::Registered {
        known: Ok(Registering::Done(known)),
        is_lent: false,
        provisional: Epoch::new(1),
    });
}

#[actix_web::test]
async fn what_is_wrong_with_a_frame_names_its_field() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let (request, Opened { outlet, .. }) = opened(&state).await;
    let mut socket = Socket::new(forwarder(&state), state.incarnation(), Principal::of(&request), outlet);
    let why = socket.read(r#"{"type":"hello","node_id":"n","capacity":0,"running":[]}"#).unwrap_err();
    assert!(why.starts_with("capacity: invalid value: integer `0`, expected "), "{why}");
    assert!(!why.contains(" column "), "{why}");
    let why = socket.read("{").unwrap_err();
    assert!(why.ends_with("EOF while parsing an object at line 1 column 1"), "{why}");
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
    assert!(is_overloaded(&other));
    drop(other);
    ends(&mut one, 2);
    assert!(in_use() > 2 * BYTES && one.closing.is_none());
    // They are committed now, and their room is not taken twice.
    registered(&mut one);
    assert_eq!(in_use(), 2 * BYTES);
    assert!(one.closing.is_none());
    drop(one);
    assert_eq!(in_use(), 0);
}

#[actix_web::test]
async fn a_node_for_which_the_registry_has_no_room_is_sent_away() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let (mut known, mut further) = (greeted(&state, "known").await, greeted(&state, "further").await);
    registered(&mut known);
    let incarnation = state.incarnation();
    let registry = &incarnation.registry;
    let record = registry.get(known.node.node().unwrap()).unwrap();
    let now = Instant::now();
    for n in 1..NODES_MAX {
        let mut another = record.clone();
        Arc::make_mut(&mut another.profile).node = domain::NodeId::parse(&format!("n{n}")).unwrap();
        registry.apply(another, now, now);
    }
    registered(&mut further);
    assert!(is_overloaded(&further));
    assert!(known.closing.is_none());
}

#[actix_web::test]
async fn of_connections_with_different_tokens_those_of_one_begin_under_an_id() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(two_tokens())).await;
    // None of them is in the registry yet.
    let first = connected(&state, "one", "n", 0).await;
    let (again, other) = (connected(&state, "one", "n", 0).await, connected(&state, "other", "n", 0).await);
    assert!(first.closing.is_none() && again.closing.is_none());
    assert!(is_overloaded(&other));
    drop((first, again));
    assert!(connected(&state, "other", "n", 0).await.closing.is_none());
}

#[actix_web::test]
async fn attempts_that_a_node_lists_count_until_they_are_known_as_its_own_or_it_has_them_no_more() {
    const MANY: usize = UNCOUNTED_BYTES_MAX / LISTED_ATTEMPT_BYTES + 1;
    const LIST_BYTES: usize = MANY * LISTED_ATTEMPT_BYTES;
    let dir = TempDir::new().unwrap();
    let mut settings = Settings::new(two_tokens());
    settings.reading_bytes = Limit { in_all: 3 * LIST_BYTES, of_token: 2 * LIST_BYTES };
    let state = state_with(&dir, settings).await;
    let in_use = || state.shares.in_use(Kind::Reading);
    let _few = connected(&state, "one", "few", MANY - 1).await;
    assert_eq!(in_use(), 0);
    let mut own = connected(&state, "one", "own", MANY).await;
    let mut made_up = connected(&state, "one", "made-up", MANY).await;
    assert!(own.closing.is_none() && made_up.closing.is_none());
    assert!(is_overloaded(&connected(&state, "one", "further", MANY).await), "its token has too many");
    let mut others = connected(&state, "other", "others", MANY).await;
    assert!(others.closing.is_none() && in_use() == 3 * LIST_BYTES);
    registered(&mut others);
    others.look_at_listed();
    assert_eq!(in_use(), 3 * LIST_BYTES, "nobody knows yet");
    let heartbeat = FromNode::Heartbeat { load: nodes::Load::default(), running: Vec::new() };
    others.apply(Event::Frames(vec![heartbeat]));
    others.look_at_listed();
    assert_eq!(in_use(), 2 * LIST_BYTES, "it has them no more");
    let (n, listed) = (own.node.node().unwrap().clone(), numbered(MANY));
    dispatch_all(&state, &n, &listed).await;
    let jobs = state.incarnation().jobs.clone();
    jobs.attempts_on(&n, &Weak::new(), Instant::now(), &listed).await.unwrap();
    own.look_at_listed();
    made_up.look_at_listed();
    assert_eq!(in_use(), LIST_BYTES, "they are one node's own, and not the other's");
    assert!(connected(&state, "one", "again", MANY).await.closing.is_none());
    made_up.depart().await;
    assert_eq!(in_use(), LIST_BYTES, "nobody has forgotten them yet");
}

#[actix_web::test]
async fn attempts_of_a_hello_that_breaks_the_protocol_do_not_count_when_its_connection_has_ended() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(two_tokens())).await;
    let mut listed = numbered(UNCOUNTED_BYTES_MAX / LISTED_ATTEMPT_BYTES + 1);
    listed.push(listed[0]);
    let twice = connected_with(&state, "one", "n", listed).await;
    assert!(matches!(twice.closing, Some(Closing::ByInstance(CloseCode::Protocol, _))));
    assert!(state.shares.in_use(Kind::Reading) > 0);
    twice.depart().await;
    assert_eq!(state.shares.in_use(Kind::Reading), 0, "nobody looks them up");
}

#[actix_web::test]
async fn a_token_that_may_not_connect_a_node_keeps_no_other_token_from_it() {
    const HELLOS: usize = 10_000;
    let dir = TempDir::new().unwrap();
    let names = domain::Names::Some(vec![domain::Pattern::parse("m").unwrap()].into());
    let sees = Sees { nodes: names, ..Sees::default() };
    let stranger = Token { sees, ..token("stranger", Scope::Node) };
    let state = state_with(&dir, Settings::new(Auth::tokens(vec![stranger]))).await;
    let (_, Opened { outlet, .. }) = opened(&state).await;
    let principal = state.settings.auth.named("stranger").unwrap();
    let mut socket = Socket::new(forwarder(&state), state.incarnation(), principal, outlet);
    let (claims, is_over) = (&state.node_claims, AtomicBool::new(false));
    // The node's own token claims it all the time, from another thread.
    let failed = std::thread::scope(|scope| {
        let own = scope.spawn(|| {
            let (n, own) = (domain::NodeId::parse("n").unwrap(), Arc::<str>::from("own"));
            let mut failed = 0;
            while !is_over.load(Ordering::Relaxed) {
                failed += usize::from(claims.claim(&n, &own).is_none());
            }
            failed
        });
        for _ in 0..HELLOS {
            let hello = r#"{"type":"hello","node_id":"n","capacity":2,"running":[]}"#;
            socket.on_message(AggregatedMessage::Text(hello.into()));
        }
        is_over.store(true, Ordering::Relaxed);
        own.join().unwrap()
    });
    assert!(matches!(socket.closing, Some(Closing::ByInstance(CloseCode::Unauthorized, _))));
    assert_eq!(failed, 0);
}

#[actix_web::test]
async fn the_first_tick_after_a_standstill_does_not_count_and_the_next_one_does() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let mut socket = greeted(&state, "n").await;
    let [in_time, late] = [TICK_MS - 1, TICK_MS].map(Duration::from_millis);
    let counts = [in_time, late, late, late, in_time].map(|late| socket.counts_tick(late));
    assert_eq!(counts, [true, false, true, false, true]);
}

#[actix_web::test]
async fn the_time_in_which_frames_wait_to_be_sent_to_a_node_does_not_count_against_it() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let (request, Opened { outlet, messages, pauses, arriving, response, .. }) = opened(&state).await;
    let mut socket = Socket::new(forwarder(&state), state.incarnation(), Principal::of(&request), outlet);
    socket.ping = Some(Bytes::new());
    let begin = Instant::now();
    let since = pauses.since(begin);
    let (sent, ()) =
        tokio::join!(to_bytes(response.into_body()), socket.run(messages, pauses.clone(), arriving));
    assert!(!sent.unwrap().is_empty());
    let now = Instant::now();
    assert!(pauses.read_since(since, now) < now.duration_since(begin));
}

/// Has these attempts wait to be sent.
fn waiting(socket: &mut Socket, numbers: RangeInclusive<u128>) {
    for n in numbers {
        let node_job = Spec::new("1").node_job(None, None);
        socket.send(ToNode::Dispatch(Dispatch { slot: slot(n), node_job }));
    }
}

/// The attempts that wait to be sent.
fn unsent(socket: &Socket) -> Vec<Slot> {
    socket.out.iter().filter_map(frames::dispatched).collect()
}

#[actix_web::test]
async fn a_node_that_does_not_read_holds_up_no_stop_and_it_is_known_what_it_was_not_sent() {
    const DISPATCHES: u128 = 100;
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    // Of a connection on which nothing comes, and which takes nothing before the end.
    let silent = Payload::Stream { payload: stream::pending().boxed_local() };
    let (request, Opened { response, outlet, mut messages, pauses, arriving, place: _place }) =
        opened_with(&state, silent).await;
    let mut socket = Socket::new(forwarder(&state), state.incarnation(), Principal::of(&request), outlet);
    waiting(&mut socket, 1..=DISPATCHES);
    tokio::join!(socket.serve(&mut messages, &pauses, &arriving), async { state.traffic.drain() });
    assert!(matches!(socket.closing, Some(Closing::ByInstance(CloseCode::GoingAway, _))));
    let unsent = unsent(&socket);
    drop(socket);
    let sent = to_bytes(response.into_body()).await.unwrap();
    let sent = String::from_utf8_lossy(&sent).matches(r#""type":"dispatch""#).count() as u128;
    assert!((1..DISPATCHES).contains(&sent), "{sent}");
    assert!(unsent.into_iter().eq((sent + 1..=DISPATCHES).map(slot)), "each is sent, or waits");
}

#[actix_web::test]
async fn many_frames_take_no_memory_when_they_are_sent() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let (request, Opened { response, outlet, .. }) = opened(&state).await;
    let mut socket = Socket::new(forwarder(&state), state.incarnation(), Principal::of(&request), outlet);
    waiting(&mut socket, 1..=4 * SOCKET_FRAMES_KEPT as u128);
    // The connection ends with its socket.
    let flushed = async move {
        assert!(socket.flush().await);
        socket.out.capacity()
    };
    let (sent, capacity) = tokio::join!(to_bytes(response.into_body()), flushed);
    assert!(!sent.unwrap().is_empty());
    assert!(capacity < 2 * SOCKET_FRAMES_KEPT, "{capacity}");
}

#[actix_web::test]
async fn what_a_connection_that_is_gone_was_not_given_waits_until_its_end_is_read() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let (request, Opened { response, outlet, .. }) = opened(&state).await;
    let mut socket = Socket::new(forwarder(&state), state.incarnation(), Principal::of(&request), outlet);
    drop(response);
    for n in 1..=3 {
        waiting(&mut socket, n..=n);
        assert!(socket.flush().await, "that it is gone says nothing of its reader");
    }
    assert_eq!(unsent(&socket), [1, 2, 3].map(slot));
}

#[actix_web::test]
async fn a_node_departs_also_after_a_panic_in_its_socket() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let mut socket = greeted(&state, "n").await;
    registered(&mut socket);
    let n = socket.node.node().unwrap().clone();
    let registry = state.incarnation().registry.clone();
    let stands = || registry.get(&n).map(|record| record.status.state);
    assert_eq!(stands(), Some(NodeState::Accepting));
    socket.calls = FuturesUnordered::new();
    // The first one ends the connection, and the second one is under way still as the node departs.
    for _ in 0..2 {
        socket.call(async {
            assert!(std::hint::black_box(false), "made on purpose");
            None
        });
    }
    // Of a connection on which nothing comes, and that stays.
    let silent = Payload::Stream { payload: stream::pending().boxed_local() };
    let (_, Opened { messages, pauses, arriving, .. }) = opened_with(&state, silent).await;
    socket.run(messages, pauses, arriving).await;
    let departed = async {
        while stands() == Some(NodeState::Accepting) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), departed).await.expect("the node has departed");
}

/// What the holder of a node says of it, for so long.
fn reported(ttl: Duration) -> Report {
    Report { capacity: 2, state: NodeState::Accepting, document: Arc::default(), ttl, vouched: None }
}

#[actix_web::test]
async fn a_connection_that_gets_the_nodes_record_after_its_end_leaves_none_and_calls_no_node_gone() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let late = greeted_with(&state, "n", Vec::new()).await;
    // The connection that the node has, which seems to be the older one.
    let (n, holder) = (late.node.node().unwrap().clone(), domain::InstanceId::parse("other-1").unwrap());
    let long = Duration::from_secs(60);
    let report = reported(long);
    let floor = Epoch::new(0);
    let new = NewConnection { holder: &holder, principal: "", age: long, over: None, had: None, floor };
    let connected = state.bus.connect_node(&n, &new, &report, &[]).await.unwrap().done().unwrap();
    late.depart().await;
    let registry = state.incarnation().registry.clone();
    let over = async {
        while !registry.is_moving(&n, Instant::now()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), over).await.expect("the late connection is over");
    let shown = state.bus.show_nodes(slice::from_ref(&n)).await.unwrap();
    assert!(shown.is_empty(), "nobody reads that the node is gone: {shown:?}");
    let written = state.bus.refresh_node(&n, connected.epoch, &report, &[]).await.unwrap();
    assert_eq!(written, Written::Lost, "the other connection registers the node again");
}

#[actix_web::test]
async fn an_instance_that_has_ended_is_not_there_though_the_bus_shows_its_presence() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let (request, _) = opened(&state).await;
    let n = domain::NodeId::parse("n").unwrap();
    let (holder, long) = (domain::InstanceId::parse("other-1").unwrap(), Duration::from_secs(60));
    let presence = bus::Presence {
        instance: holder.clone(),
        started_at: domain::Timestamp::from_micros(0),
        hostname: "h".to_owned(),
        pid: 1,
        version: "v".to_owned(),
        address: "http://other".to_owned(),
    };
    state.bus.announce(&presence, long).await.unwrap();
    let report = reported(long);
    let (age, floor) = (Duration::ZERO, Epoch::new(0));
    let new = NewConnection { holder: &holder, principal: "", age, over: None, had: None, floor };
    state.bus.connect_node(&n, &new, &report, &[]).await.unwrap().done().unwrap();
    let is_there = async || {
        let calls = Calls {
            state: Arc::clone(&state),
            forwarder: forwarder(&state),
            incarnation: state.incarnation(),
            principal: Principal::of(&request),
            node: n.clone(),
            epoch: floor,
            handed_since: Instant::now(),
            holder_note: Weak::new(),
        };
        // The older connection of the two.
        let since = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        match calls.register(report.clone(), Vec::new(), (since, None, None), false).await {
            Event::Registered { known: Ok(Registering::Contested(rival)), .. } => rival.is_there,
            other => panic!("the younger one has the record: {other:?}"),
        }
    };
    assert!(!is_there().await);
    let lease = ledger::Lease {
        resource: domain::Resource::instance(&holder),
        owner: Some(holder.clone()),
        token: domain::Token::new(1),
        acquired_at: domain::Timestamp::from_micros(0),
        renewed_at: domain::Timestamp::from_micros(0),
        expires_in_ms: 60_000,
    };
    let peer = ledger::Peer { id: holder.clone(), url: presence.address, lease, age_ms: 60_000 };
    state.incarnation().cluster_view.saw(vec![peer]);
    assert!(is_there().await, "it lives");
}
