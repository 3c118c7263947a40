//! A worker against a stand-in for the scheduler, over real sockets: what it says, what it survives, how it ends.

mod cuts;
mod drains;
mod options;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::{SinkExt, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as Packet;
use wire::worker::{
    AttemptOutcome, AttemptRef, AttemptResult, Dispatch, HeartbeatOk, Message, NodeFrame, Notice,
    SchedulerFrame, Welcome, close,
};

use super::worker_loop::REFUSED_WITHIN;
use super::*;
use crate::socket::stand_in::{self, Instance, PATIENCE};

const HEARTBEAT_MS: u64 = 50;

/// Where workers connect to.
struct Scheduler(Instance);

/// One connection of a worker.
struct Peer {
    socket: WebSocketStream<TcpStream>,
    unread: Vec<NodeFrame>,
    /// What the last list of attempts said.
    listed: Vec<AttemptRef>,
    /// What its hello said.
    drained: bool,
    answers_heartbeats: bool,
}

impl Scheduler {
    async fn new() -> Self {
        Self(Instance::new().await)
    }

    /// The next connection, as far as `hello`.
    async fn greeted(&self) -> Peer {
        let (socket, asked_for) = self.0.opened().await;
        assert_eq!(asked_for, "/v1/nodes/ws");
        let (unread, listed) = (Vec::new(), Vec::new());
        let mut peer = Peer { socket, unread, listed, drained: false, answers_heartbeats: true };
        let NodeFrame::Hello(hello) = peer.hear().await.unwrap() else { panic!("hello comes first") };
        (peer.listed, peer.drained) = (hello.running, hello.drained);
        peer
    }

    /// The next connection, welcomed.
    async fn welcomed(&self) -> Peer {
        let mut peer = self.greeted().await;
        peer.welcome().await;
        peer
    }
}

impl Peer {
    async fn welcome(&mut self) {
        self.welcome_to(HEARTBEAT_MS).await;
    }

    /// Asks for a heartbeat so often.
    async fn welcome_to(&mut self, heartbeat_ms: u64) {
        let (node_id, instance) = ("n".to_owned(), "i".to_owned());
        self.say(SchedulerFrame::Welcome(Welcome { node_id, instance, heartbeat_ms, pools: None })).await;
    }

    async fn say(&mut self, frame: SchedulerFrame) {
        stand_in::say(&mut self.socket, Message::One(frame).to_text()).await;
    }

    async fn dispatch(&mut self, job: &str, attempt: u32) {
        self.say(SchedulerFrame::Dispatch(dispatch(job, attempt))).await;
    }

    async fn commit(&mut self, job: &str, attempt: u32) {
        self.say(SchedulerFrame::Committed(Notice { job: job.to_owned(), attempt })).await;
    }

    /// The next frame that is no heartbeat; `None` when the connection is gone.
    async fn hear(&mut self) -> Option<NodeFrame> {
        loop {
            while !self.unread.is_empty() {
                match self.unread.remove(0) {
                    NodeFrame::Heartbeat(heartbeat) => {
                        self.listed = heartbeat.running;
                        if self.answers_heartbeats {
                            let ok =
                                Message::One(SchedulerFrame::HeartbeatOk(HeartbeatOk::default())).to_text();
                            self.socket.send(Packet::text(ok)).await.ok()?;
                        }
                    }
                    frame => return Some(frame),
                }
            }
            match tokio::time::timeout(PATIENCE, self.socket.next()).await.expect("a word in time") {
                Some(Ok(Packet::Text(text))) => self.unread = Message::read(&text).unwrap().into_frames(),
                Some(Ok(Packet::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    /// The next frame, in short.
    async fn heard(&mut self) -> String {
        match self.hear().await {
            Some(NodeFrame::Ack(it)) => format!("ack {}{}", it.job, it.attempt),
            Some(NodeFrame::Reject(it)) => format!("reject {}{}: {}", it.job, it.attempt, it.reason),
            Some(NodeFrame::Result(AttemptResult { job, attempt, outcome, .. })) => match outcome {
                AttemptOutcome::Done(output) => format!("done {job}{attempt}: {output}"),
                AttemptOutcome::Failed(failure) => format!("failed {job}{attempt}: {}", failure.message),
            },
            Some(NodeFrame::Progress(it)) => format!("progress {}{}: {:?}", it.job, it.attempt, it.percent),
            Some(frame) => frame.kind().to_owned(),
            None => "gone".to_owned(),
        }
    }

    /// Hears heartbeats until one lists exactly these.
    async fn until_listed(&mut self, wanted: &[AttemptRef]) {
        while self.listed != wanted {
            let next = tokio::time::timeout(PATIENCE, self.socket.next()).await.unwrap().unwrap().unwrap();
            for frame in Message::read(next.to_text().unwrap()).unwrap().into_frames() {
                let NodeFrame::Heartbeat(heartbeat) = frame else { panic!("{frame:?}") };
                self.listed = heartbeat.running;
            }
            self.say(SchedulerFrame::HeartbeatOk(HeartbeatOk::default())).await;
        }
    }

    async fn close(mut self, code: u16) {
        stand_in::close(&mut self.socket, code).await;
    }

    /// Finds a fault in what the worker says.
    async fn refuse(mut self, why: &str) {
        stand_in::close_for(&mut self.socket, close::PROTOCOL, why).await;
    }
}

fn dispatch(job: &str, attempt: u32) -> Dispatch {
    let payload = Json::of(job).unwrap();
    Dispatch::new(job, attempt, payload, 60_000)
}

fn attempt(job: &str, attempt: u32) -> AttemptRef {
    AttemptRef { job: job.to_owned(), attempt }
}

/// A worker that runs, and the way to stop it.
struct Running {
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Result<Ended>>,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Running {
    fn start<H, F>(options: WorkerOptions, handler: H) -> Self
    where
        H: Fn(Job) -> F + Send + Sync + 'static,
        F: Future<Output = std::result::Result<Json, Failure>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel::<()>();
        let (tells, events) = mpsc::unbounded_channel();
        let worker = Worker::new(options).unwrap().with_observer(move |event| {
            let _ = tells.send(event);
        });
        let ended = tokio::spawn(worker.run(handler, async {
            let _ = stopped.await;
        }));
        Self { stop: Some(stop), ended, events }
    }

    fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    async fn ended(self) -> Result<Ended> {
        tokio::time::timeout(PATIENCE, self.ended).await.expect("it ends").unwrap()
    }
}

fn options(scheduler: &Scheduler, capacity: u32) -> WorkerOptions {
    let times = Times { pause_max: Duration::ZERO, ..Times::default() };
    WorkerOptions { capacity, times, ..WorkerOptions::new([scheduler.0.url.as_str()], "n") }
}

async fn echo(job: Job) -> std::result::Result<Json, Failure> {
    Ok(job.payload)
}

/// Works until it is asked to stop.
async fn endless(job: Job) -> std::result::Result<Json, Failure> {
    Err(Failure::passing(job.stop.requested().await.to_string()))
}

#[tokio::test]
async fn a_job_is_acknowledged_run_and_answered_and_a_stop_closes_the_socket() {
    let scheduler = Scheduler::new().await;
    let go = Arc::new(Notify::new());
    let gate = Arc::clone(&go);
    let mut worker = Running::start(options(&scheduler, 1), move |job| {
        let gate = Arc::clone(&gate);
        async move {
            job.progress.send(Some(50.0), None);
            gate.notified().await;
            echo(job).await
        }
    });
    let mut peer = scheduler.welcomed().await;
    peer.dispatch("a", 1).await;
    assert_eq!(peer.heard().await, "ack a1");
    assert_eq!(peer.heard().await, "progress a1: Some(50.0)");
    go.notify_one();
    assert_eq!(peer.heard().await, r#"done a1: "a""#);
    peer.until_listed(&[attempt("a", 1)]).await;
    peer.commit("a", 1).await;
    peer.until_listed(&[]).await;
    worker.stop();
    assert_eq!(peer.heard().await, "drain");
    assert_eq!(peer.heard().await, "gone");
    assert_eq!(worker.ended().await.unwrap(), Ended::Drained { unsettled: 0 });
}

#[tokio::test]
async fn the_observer_hears_of_each_attempt_and_of_an_operators_drain() {
    let scheduler = Scheduler::new().await;
    let mut worker = Running::start(options(&scheduler, 3), |job: Job| async move {
        match job.id.as_str() {
            "good" => echo(job).await,
            "bad" => Err(Failure::lasting("no such voice")),
            _ => endless(job).await,
        }
    });
    let mut peer = scheduler.welcomed().await;
    for job in ["good", "bad", "called"] {
        peer.dispatch(job, 2).await;
    }
    peer.say(SchedulerFrame::Cancel(attempt("called", 2).into())).await;
    peer.say(SchedulerFrame::HeartbeatOk(HeartbeatOk { draining: true })).await;
    // The answers to heartbeats say that the drain is over.
    let mut events = Vec::new();
    while events.len() < 8 {
        tokio::select! {
            event = worker.events.recv() => match event.unwrap() {
                Event::Connected { .. } => {}
                Event::Finished { job, attempt, end, .. } => events.push(format!("{job}{attempt} {end:?}")),
                Event::Started { job, attempt } => events.push(format!("{job}{attempt} begins")),
                event => events.push(format!("{event:?}")),
            },
            _ = peer.hear() => {}
        }
    }
    for of in ["good", "bad", "called"] {
        let of: Vec<_> = events.iter().filter(|event| event.starts_with(of)).collect();
        assert!(of.len() == 2 && of[0].ends_with(" begins"), "{events:#?}");
    }
    for event in [
        "good2 Succeeded",
        r#"bad2 Failed { message: "no such voice", retryable: false }"#,
        "called2 CalledOff",
    ] {
        assert!(events.iter().any(|seen| seen == event), "{event}: {events:#?}");
    }
    let drains: Vec<_> = events.iter().filter(|event| event.starts_with("Drained")).collect();
    assert_eq!(drains, ["Drained(true)", "Drained(false)"]);
    worker.ended.abort();
}

#[tokio::test]
async fn a_result_is_sent_on_every_connection_until_it_is_durable() {
    let scheduler = Scheduler::new().await;
    let worker = Running::start(options(&scheduler, 2), echo);
    let mut peer = scheduler.welcomed().await;
    peer.dispatch("a", 1).await;
    assert_eq!((peer.heard().await.as_str(), peer.heard().await.as_str()), ("ack a1", r#"done a1: "a""#));
    drop(peer);
    for _ in 0..2 {
        let mut peer = scheduler.welcomed().await;
        assert_eq!(peer.listed, [attempt("a", 1)]);
        assert_eq!(peer.heard().await, r#"done a1: "a""#);
        peer.close(close::GOING_AWAY).await;
    }
    let mut peer = scheduler.welcomed().await;
    assert_eq!(peer.heard().await, r#"done a1: "a""#);
    peer.say(SchedulerFrame::Stale(attempt("a", 1).into())).await;
    peer.until_listed(&[]).await;
    worker.ended.abort();
}

#[tokio::test]
async fn an_attempt_runs_on_while_the_connection_is_cut_within_a_frame() {
    let scheduler = Scheduler::new().await;
    let go = Arc::new(Notify::new());
    let (gate, runs) = (Arc::clone(&go), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&runs);
    let worker = Running::start(options(&scheduler, 1), move |job| {
        count.fetch_add(1, Ordering::Relaxed);
        let gate = Arc::clone(&gate);
        async move {
            gate.notified().await;
            echo(job).await
        }
    });
    let mut peer = scheduler.welcomed().await;
    peer.dispatch("a", 1).await;
    assert_eq!(peer.heard().await, "ack a1");
    // A text of 16 bytes is announced, and 9 come.
    peer.socket.get_mut().write_all(b"\x81\x10{\"type\":\"").await.unwrap();
    drop(peer);
    let mut peer = scheduler.welcomed().await;
    assert_eq!(peer.listed, [attempt("a", 1)]);
    // A scheduler that lost its memory may dispatch it once more.
    peer.dispatch("a", 1).await;
    assert_eq!(peer.heard().await, "ack a1");
    go.notify_one();
    assert_eq!(peer.heard().await, r#"done a1: "a""#);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    worker.ended.abort();
}

#[tokio::test]
async fn what_is_called_off_stops_and_gives_its_place_back_unreported() {
    let scheduler = Scheduler::new().await;
    let worker = Running::start(options(&scheduler, 1), endless);
    let mut peer = scheduler.welcomed().await;
    peer.dispatch("a", 1).await;
    assert_eq!(peer.heard().await, "ack a1");
    peer.dispatch("b", 1).await;
    assert_eq!(peer.heard().await, "reject b1: full");
    peer.say(SchedulerFrame::Cancel(attempt("a", 1).into())).await;
    peer.until_listed(&[]).await;
    peer.dispatch("b", 2).await;
    assert_eq!(peer.heard().await, "ack b2");
    worker.ended.abort();
}

#[tokio::test]
async fn who_is_replaced_stops_its_work_and_does_not_come_back() {
    let scheduler = Scheduler::new().await;
    let reason = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&reason);
    let worker = Running::start(options(&scheduler, 1), move |job| {
        let tell = Arc::clone(&tell);
        async move {
            *tell.lock().unwrap() = Some(job.stop.requested().await);
            Ok(Json::null())
        }
    });
    let mut peer = scheduler.welcomed().await;
    peer.dispatch("a", 1).await;
    assert_eq!(peer.heard().await, "ack a1");
    peer.close(close::REPLACED).await;
    assert_eq!(worker.ended().await.unwrap(), Ended::Replaced);
    assert_eq!(*reason.lock().unwrap(), Some(Why::CalledOff));
}

#[tokio::test]
async fn a_connection_on_which_nothing_is_heard_is_given_up() {
    let scheduler = Scheduler::new().await;
    let worker = Running::start(options(&scheduler, 1), echo);
    let mut silent = scheduler.welcomed().await;
    silent.answers_heartbeats = false;
    // The silent one is still open when the next one comes.
    let mut peer = scheduler.welcomed().await;
    peer.dispatch("a", 1).await;
    assert_eq!(peer.heard().await, "ack a1");
    worker.ended.abort();
}

/// As in a container that was paused.
#[tokio::test]
async fn a_process_that_stood_still_reads_what_came_meanwhile() {
    let scheduler = Scheduler::new().await;
    let worker = Running::start(options(&scheduler, 1), echo);
    let mut peer = scheduler.welcomed().await;
    // Which of two events that have come a `select!` takes is chance.
    for attempt in 1..=8 {
        peer.dispatch("a", attempt).await;
        std::thread::sleep(Duration::from_millis(6 * HEARTBEAT_MS));
        assert_eq!(peer.heard().await, format!("ack a{attempt}"));
        assert_eq!(peer.heard().await, format!(r#"done a{attempt}: "a""#));
        peer.commit("a", attempt).await;
    }
    worker.ended.abort();
}

#[tokio::test]
async fn a_connection_on_which_a_frame_is_still_coming_is_kept() {
    let scheduler = Scheduler::new().await;
    let worker = Running::start(options(&scheduler, 1), echo);
    let mut peer = scheduler.greeted().await;
    peer.welcome_to(8 * HEARTBEAT_MS).await;
    let text = Message::One(SchedulerFrame::Dispatch(dispatch(&"a".repeat(99), 1))).to_text();
    // One frame of a text, whose length has two bytes (RFC 6455, section 5.2).
    let head = [[0x81, 126], (text.len() as u16).to_be_bytes()].concat();
    let frame = [&head[..], text.as_bytes()].concat();
    let (slow, rest) = frame.split_at(6);
    for byte in slow {
        peer.socket.get_mut().write_all(&[*byte]).await.unwrap();
        // No heartbeat is answered, for longer than three of them.
        let Some(Ok(Packet::Text(_))) = peer.socket.next().await else { panic!("a heartbeat") };
    }
    peer.socket.get_mut().write_all(rest).await.unwrap();
    assert!(peer.heard().await.starts_with("ack aaa"));
    worker.ended.abort();
}

#[tokio::test]
async fn another_url_is_tried_when_one_fails() {
    let (dead, alive) = (Scheduler::new().await, Scheduler::new().await);
    let urls = [dead.0.url.clone(), alive.0.url.clone()];
    drop(dead);
    let mut worker = Running::start(WorkerOptions::new(urls, "n"), echo);
    let peer = alive.welcomed().await;
    drop(peer);
    alive.welcomed().await;
    let mut lost = 0;
    while let Ok(event) = worker.events.try_recv() {
        lost += u32::from(matches!(event, Event::Lost { .. }));
    }
    assert!(lost >= 2, "the cut connection and the dead URL: {lost}");
    worker.ended.abort();
}

#[tokio::test]
async fn after_a_connection_that_was_welcome_any_other_url_is_next() {
    let schedulers = [Scheduler::new().await, Scheduler::new().await, Scheduler::new().await];
    let urls = schedulers.iter().map(|scheduler| scheduler.0.url.clone());
    let times = Times { pause_max: Duration::ZERO, ..Times::default() };
    let worker = Running::start(WorkerOptions { times, ..WorkerOptions::new(urls, "n") }, echo);
    let (mut before, mut steps) = (None, BTreeSet::new());
    for _ in 0..60 {
        let (at, peer) = tokio::select! {
            peer = schedulers[0].welcomed() => (0, peer),
            peer = schedulers[1].welcomed() => (1, peer),
            peer = schedulers[2].welcomed() => (2, peer),
        };
        peer.close(close::GOING_AWAY).await;
        if let Some(before) = before.replace(at) {
            steps.insert((at + 3 - before) % 3);
        }
        if steps.len() > 1 {
            break;
        }
    }
    assert_eq!(steps, BTreeSet::from([1, 2]));
    worker.ended.abort();
}

#[tokio::test]
async fn who_is_not_let_in_says_so_instead_of_trying_for_ever() {
    let scheduler = Scheduler::new().await;
    let worker = Running::start(options(&scheduler, 1), echo);
    scheduler.0.refuse(&wire::Problem::new(wire::Code::Forbidden, "no scope node")).await;
    let error = worker.ended().await.unwrap_err();
    assert_eq!(error.problem().map(|problem| problem.code.as_str()), Some("forbidden"));

    let scheduler = Scheduler::new().await;
    let worker = Running::start(options(&scheduler, 1), echo);
    scheduler.greeted().await.close(close::UNAUTHORIZED).await;
    let error = worker.ended().await.unwrap_err();
    assert_eq!(error.problem().map(|problem| problem.code.as_str()), Some("unauthorized"));

    // What it says of itself is wrong.
    let scheduler = Scheduler::new().await;
    let worker = Running::start(options(&scheduler, 1), echo);
    scheduler.greeted().await.close(close::PROTOCOL).await;
    let error = worker.ended().await.unwrap_err();
    assert_eq!(error.problem().map(|problem| problem.code.as_str()), Some("invalid"));
}

/// A daemon that hears no hello in time closes with the same code.
#[tokio::test]
async fn who_may_have_said_hello_too_late_says_it_again() {
    let scheduler = Scheduler::new().await;
    let mut worker = Running::start(options(&scheduler, 1), echo);
    let late = scheduler.greeted().await;
    tokio::time::sleep(REFUSED_WITHIN).await;
    late.close(close::PROTOCOL).await;
    let again = tokio::time::timeout(PATIENCE, scheduler.welcomed()).await;
    drop(again.expect("it connects again"));
    worker.stop();
    worker.ended().await.unwrap();
}

#[tokio::test]
async fn patience_ends_when_nobody_is_there_and_a_stop_ends_the_search() {
    let scheduler = Scheduler::new().await;
    let nobody = options(&scheduler, 1);
    drop(scheduler);
    let times = Times { patience: Some(Duration::ZERO), ..Times::default() };
    let error = Running::start(WorkerOptions { times, ..nobody.clone() }, echo).ended().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    let mut worker = Running::start(nobody, echo);
    assert!(matches!(worker.events.recv().await, Some(Event::Lost { .. })));
    worker.stop();
    assert_eq!(worker.ended().await.unwrap(), Ended::Drained { unsettled: 0 });
}

#[tokio::test]
async fn handlers_that_panic_or_take_too_long_fail_and_nothing_else_does() {
    let scheduler = Scheduler::new().await;
    let times = Times { timeout_grace: Duration::ZERO, ..Times::default() };
    let worker = Running::start(WorkerOptions { times, ..options(&scheduler, 1) }, |job| async move {
        if job.attempt == 1 {
            // A panic without the hook, whose backtrace would take longer than heartbeats may.
            std::panic::resume_unwind(Box::new("wanted"));
        }
        endless(job).await
    });
    let mut peer = scheduler.welcomed().await;
    peer.dispatch("a", 1).await;
    assert_eq!(peer.heard().await, "ack a1");
    assert_eq!(peer.heard().await, "failed a1: the handler panicked: wanted");
    peer.commit("a", 1).await;
    peer.say(SchedulerFrame::Dispatch(Dispatch { timeout_ms: 1, ..dispatch("a", 2) })).await;
    assert_eq!(peer.heard().await, "ack a2");
    assert_eq!(peer.heard().await, "failed a2: the attempt ran for too long");
    worker.ended.abort();
}

#[tokio::test]
async fn what_is_no_frame_ends_the_connection_with_the_reason() {
    let scheduler = Scheduler::new().await;
    let mut worker = Running::start(options(&scheduler, 1), echo);
    let mut peer = scheduler.welcomed().await;
    peer.socket.send(Packet::text("{}")).await.unwrap();
    let Some(Ok(Packet::Close(Some(frame)))) = peer.socket.next().await else { panic!("a close") };
    assert_eq!(u16::from(frame.code), close::PROTOCOL);
    drop(peer);
    let reason = loop {
        if let Some(Event::Lost { reason, .. }) = worker.events.recv().await {
            break reason;
        }
    };
    assert!(reason.contains("it sent no valid frame: a frame has a field"), "{reason}");
    scheduler.welcomed().await;
    worker.ended.abort();
}
