//! The loop of a worker: it runs the handlers, keeps connected, and ends in order.

use std::any::Any;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use reqwest::Url;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use wire::limits::HEARTBEATS_UNANSWERED_MAX;
use wire::worker::{
    AttemptOutcome, AttemptProgress, AttemptRef, Dispatch, Heartbeat, HeartbeatOk, Hello, NodeFrame,
    SchedulerFrame, Welcome, close,
};
use wire::{Code, Json, Problem};

use super::connection::{Connection, Received};
use super::job::{Stop, Stopper, outcome};
use super::protocol::{Effect, Protocol};
use super::{AttemptEnd, Ended, Event, Failure, Job, Observer, ProgressSender, Times, Why};
use crate::retry::{Reconnects, Refusals, next_instance};
use crate::socket::Dialer;
use crate::unreached::Unreached;
use crate::{Error, Result};

/// Reports of progress that wait to be sent.
const PROGRESS_QUEUE: usize = 1_024;
/// How long the scheduler may take to answer `hello`.
const WELCOME_WITHIN: Duration = Duration::from_secs(10);
/// A daemon that breaks a connection off sooner has read what the worker says, and refuses it: no time limit of a daemon is
/// shorter, be it for `hello` or for a message.
pub(super) const REFUSED_WITHIN: Duration = Duration::from_secs(1);
/// How long a worker that has nothing more waits until the scheduler has heard of its `drain`. Until then the scheduler may
/// dispatch, and what is not rejected counts as lost with the node.
const GOODBYE_WITHIN: Duration = Duration::from_secs(2);
/// Shortest time between two heartbeats; a shorter one in `welcome` counts as this.
const HEARTBEAT_MIN: Duration = Duration::from_millis(10);
/// Longest time between two heartbeats; a longer one in `welcome` counts as this.
const HEARTBEAT_MAX: Duration = Duration::from_secs(60);
/// How long a worker that heard nothing for too long still reads before it gives the connection up. Where its process stood
/// still, as in a paused container, what came meanwhile lies there unread, and a dispatch is lost with the connection.
const READ_FIRST: Duration = Duration::from_millis(100);

/// In place of a length that no clock can count, such as [`Duration::MAX`].
const NO_LIMIT: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What can happen with or without a connection.
enum Happening {
    /// A handler has returned, or panicked.
    Returned(std::result::Result<(Id, AttemptOutcome), JoinError>),
    /// A handler reports its progress.
    Progress(AttemptProgress),
    /// The caller tells the worker to stop.
    Asked,
    /// The time for the present phase is over.
    Late,
}

/// How far the worker is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nobody has told it to stop.
    Working,
    /// It takes no more jobs; those that run may finish until then.
    Draining(Instant),
    /// It told the handlers to stop; their results may be settled until then.
    Stopping(Instant),
    /// It waits for nothing more.
    Over,
}

/// How a connection ended.
enum Parted {
    /// By a fault or a refusal.
    Cut(Error),
    /// A newer connection of the same node took over.
    Replaced,
    /// The work is over.
    Over,
}

pub(super) struct WorkerLoop<H, S> {
    pub(super) hello: Hello,
    pub(super) bases: Vec<Url>,
    pub(super) dialer: Dialer,
    pub(super) times: Times,
    pub(super) observer: Observer,
    handler: Arc<H>,
    asked: Pin<Box<S>>,
    phase: Phase,
    protocol: Protocol,
    work: JoinSet<AttemptOutcome>,
    /// The attempts that run, and since when.
    attempts: HashMap<Id, (AttemptRef, Instant)>,
    stoppers: HashMap<AttemptRef, Stopper>,
    progress: (mpsc::Sender<AttemptProgress>, mpsc::Receiver<AttemptProgress>),
    /// [`WELCOME_WITHIN`].
    welcome_within: Duration,
    refusals: Refusals,
    /// When the scheduler welcomed this connection.
    welcomed_at: Option<Instant>,
    /// Whether an operator drains the node, as the last `heartbeat_ok` said. The next `hello` says so.
    drained: bool,
}

impl<H, F, S> WorkerLoop<H, S>
where
    H: Fn(Job) -> F + Send + Sync + 'static,
    F: Future<Output = std::result::Result<Json, Failure>> + Send + 'static,
    S: Future<Output = ()>,
{
    pub(super) fn new(
        hello: Hello,
        (bases, dialer): (Vec<Url>, Dialer),
        times: Times,
        observer: Observer,
        handler: H,
        asked: S,
    ) -> Self {
        Self {
            protocol: Protocol::new(hello.capacity),
            hello,
            bases,
            dialer,
            times,
            observer,
            handler: Arc::new(handler),
            asked: Box::pin(asked),
            phase: Phase::Working,
            work: JoinSet::new(),
            attempts: HashMap::new(),
            stoppers: HashMap::new(),
            progress: mpsc::channel(PROGRESS_QUEUE),
            welcome_within: WELCOME_WITHIN,
            refusals: Refusals::default(),
            welcomed_at: None,
            drained: false,
        }
    }

    /// Connects, works, connects again; until the caller stops it, another worker replaces it, or every scheduler refuses
    /// it: before its first `welcome` once, later for a while.
    pub(super) async fn run(mut self) -> Result<Ended> {
        let began = Instant::now();
        // Many nodes with the same list must not all connect to its first URL.
        let mut at = rand::random_range(0..self.bases.len());
        let mut reconnects = Reconnects::new(self.times.pause_max);
        let mut unreached = Unreached::default();
        loop {
            let dialled_at = Instant::now();
            let (dialer, base, batch) = (self.dialer.clone(), self.bases[at].clone(), self.hello.batch);
            let opening = async move { Connection::open(&dialer, &base, batch).await };
            let Some(opened) = self.meanwhile(opening).await else { break };
            let error = match opened {
                Err(error) => error,
                Ok(connection) => match self.converse(connection).await {
                    Parted::Over => break,
                    Parted::Replaced => {
                        self.stop_work(Why::CalledOff).await;
                        return Ok(Ended::Replaced);
                    }
                    Parted::Cut(error) => error,
                },
            };
            unreached.note(&self.bases[at], Some(&error));
            let is_refused = is_refused_for_good(&error, dialled_at.elapsed());
            let held = self.held();
            if held.is_none() {
                self.not_let_in(&error);
            }
            let is_final = self.refusals.are_final(is_refused, Instant::now(), self.bases.len());
            let patience = self.times.patience.filter(|_| !self.refusals.was_let_in());
            if is_final || patience.is_some_and(|most| began.elapsed() >= most) {
                self.stop_work(Why::CalledOff).await;
                return Err(unreached.over(error));
            }
            let pause = reconnects.pause(held, &error);
            (self.observer)(Event::Lost { reason: error.to_string(), pause });
            at = next_instance(at, self.bases.len(), held.is_some() && !is_refused);
            if self.meanwhile(sleep(pause)).await.is_none() {
                break;
            }
        }
        let unsettled = self.protocol.len();
        self.stop_work(Why::Stopping).await;
        Ok(Ended::Drained { unsettled })
    }

    /// How long the connection that has ended held, from its welcome on; `None` if it was not welcome.
    fn held(&mut self) -> Option<Duration> {
        self.welcomed_at.take().map(|at| at.elapsed())
    }

    /// A connection was not welcome. An instance of an older release takes no hello that says that the node is drained, and names
    /// the field: the next hello does not say so, and the drain is over. Who was too late with its hello, or was kept waiting for
    /// its welcome, is closed with the same code: that says nothing of the drain.
    fn not_let_in(&mut self, error: &Error) {
        let names_it = |problem: &Problem| {
            problem.known_code() == Some(Code::Invalid) && problem.detail.contains("drained")
        };
        if error.problem().is_some_and(names_it) && std::mem::take(&mut self.drained) {
            (self.observer)(Event::Drained(false));
        }
    }

    /// Waits for something while the handlers go on; `None` if the worker has to end first.
    async fn meanwhile<T>(&mut self, wait: impl Future<Output = T>) -> Option<T> {
        let mut wait = pin!(wait);
        loop {
            if self.is_over() {
                return None;
            }
            tokio::select! {
                done = &mut wait => return Some(done),
                happening = self.happening() => {
                    // The next connection sends what is owed.
                    self.handle(happening, None);
                }
            }
        }
    }

    /// Serves one connection, from `hello` on.
    async fn converse(&mut self, mut connection: Connection) -> Parted {
        let (drained, running) = (self.drained, self.protocol.listed());
        connection.send(NodeFrame::Hello(Hello { drained, running, ..self.hello.clone() }));
        let welcome = match self.welcome(&mut connection).await {
            Ok(welcome) => welcome,
            Err(parted) => return parted,
        };
        self.refusals.let_in();
        self.welcomed_at = Some(Instant::now());
        let every = Duration::from_millis(welcome.heartbeat_ms).clamp(HEARTBEAT_MIN, HEARTBEAT_MAX);
        (self.observer)(Event::Connected {
            url: connection.url().to_owned(),
            instance: welcome.instance,
            heartbeat: every,
            pools: welcome.pools,
        });
        for frame in self.protocol.welcomed() {
            connection.send(frame);
        }
        if self.phase != Phase::Working {
            connection.beat_behind_drain(self.heartbeat());
        }
        let mut next_beat = Instant::now() + every;
        let silence_max = every * HEARTBEATS_UNANSWERED_MAX;
        let (mut silent_at, mut is_read) = (Instant::now() + silence_max, false);
        let mut leave_at = None;
        loop {
            let is_heard = connection.is_drain_heard();
            if self.is_over() && (is_heard || self.phase == Phase::Over || is_late(&mut leave_at)) {
                connection.close(1000, "done").await;
                return Parted::Over;
            }
            if connection.is_stuck() {
                return Parted::Cut(connection.lost("it does not read what it is sent"));
            }
            tokio::select! {
                heard = connection.next() => {
                    (silent_at, is_read) = (Instant::now() + silence_max, false);
                    match heard {
                        Err(error) => return Parted::Cut(error),
                        Ok(Received::Sign) => {}
                        Ok(Received::Frames(frames)) => {
                            for frame in frames {
                                self.hear(frame, &mut connection);
                            }
                        }
                        Ok(Received::Unreadable(why)) => {
                            let error = connection.lost(format!("it sent no valid frame: {why}"));
                            connection.close(close::PROTOCOL, "no frame").await;
                            return Parted::Cut(error);
                        }
                        Ok(Received::Closed(why)) => return closed(&connection, why),
                    }
                }
                happening = self.happening() => self.handle(happening, Some(&mut connection)),
                () = sleep_until(leave_at.unwrap_or(next_beat)), if leave_at.is_some() => {}
                () = sleep_until(silent_at) => {
                    // It may have stood still between the two as well.
                    let now = Instant::now();
                    if connection.has_moved() {
                        (silent_at, is_read) = (now + silence_max, false);
                    } else if is_read && now < silent_at + READ_FIRST {
                        return Parted::Cut(connection.lost("nothing was received for three heartbeats"));
                    } else {
                        (silent_at, is_read) = (now + READ_FIRST, true);
                    }
                }
                () = sleep_until(next_beat) => {
                    next_beat = Instant::now() + every;
                    connection.beat(self.heartbeat());
                }
            }
        }
    }

    /// Waits for the answer to `hello`.
    async fn welcome(&mut self, connection: &mut Connection) -> std::result::Result<Welcome, Parted> {
        let deadline = Instant::now() + self.welcome_within;
        let mut leave_at = None;
        loop {
            // The scheduler may welcome it at this moment, and dispatch: it has to hear of the drain.
            if self.is_over() && (self.phase == Phase::Over || is_late(&mut leave_at)) {
                return Err(Parted::Over);
            }
            tokio::select! {
                heard = connection.next() => match heard {
                    Err(error) => return Err(Parted::Cut(error)),
                    Ok(Received::Closed(Some((close::PROTOCOL, why)))) => {
                        let refused = Problem::new(Code::Invalid, why);
                        return Err(Parted::Cut(Error::Refused(Box::new(refused))));
                    }
                    Ok(Received::Closed(why)) => return Err(closed(connection, why)),
                    Ok(Received::Sign) => {}
                    Ok(Received::Unreadable(why)) => {
                        return Err(Parted::Cut(connection.lost(format!("it sent no valid frame: {why}"))));
                    }
                    Ok(Received::Frames(frames)) => {
                        let mut frames = frames.into_iter();
                        match frames.next() {
                            Some(SchedulerFrame::Welcome(welcome)) if frames.len() == 0 => return Ok(welcome),
                            Some(SchedulerFrame::Problem(it)) => {
                                (self.observer)(Event::Problem { code: it.code, detail: it.detail });
                            }
                            _ => {
                                return Err(Parted::Cut(connection.lost("its first message is no welcome")));
                            }
                        }
                    }
                },
                // The protocol keeps what happens until the connection is welcome.
                happening = self.happening() => self.handle(happening, None),
                () = sleep_until(leave_at.unwrap_or(deadline)), if leave_at.is_some() => {}
                () = sleep_until(deadline) => return Err(Parted::Cut(connection.lost("hello was not answered"))),
            }
        }
    }

    /// The next thing that happens. Cancel safe.
    async fn happening(&mut self) -> Happening {
        let deadline = match self.phase {
            Phase::Draining(until) | Phase::Stopping(until) => Some(until),
            Phase::Working | Phase::Over => None,
        };
        tokio::select! {
            Some(returned) = self.work.join_next_with_id() => Happening::Returned(returned),
            Some(progress) = self.progress.1.recv() => Happening::Progress(progress),
            () = &mut self.asked, if self.phase == Phase::Working => Happening::Asked,
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => Happening::Late,
        }
    }

    fn handle(&mut self, happening: Happening, connection: Option<&mut Connection>) {
        match happening {
            Happening::Returned(returned) => {
                let (id, outcome) = match returned {
                    Ok(returned) => returned,
                    Err(error) => {
                        (error.id(), outcome(Err(panicked(error.try_into_panic().ok().as_deref()))))
                    }
                };
                let (attempt, since) = self.attempts.remove(&id).expect("every task is one attempt's");
                self.stoppers.remove(&attempt);
                let mut end = end_of(&outcome);
                let effect = self.protocol.ended(&attempt, outcome);
                if !matches!(effect, Some(Effect::Send(_))) {
                    end = AttemptEnd::CalledOff;
                }
                let AttemptRef { job, attempt } = attempt;
                (self.observer)(Event::Finished { job, attempt, took: since.elapsed(), end });
                if let Some(effect) = effect {
                    self.carry_out(effect, connection);
                }
            }
            Happening::Progress(progress) => {
                let attempt = AttemptRef { job: progress.job.clone(), attempt: progress.attempt };
                if let (Some(connection), true) = (connection, self.protocol.is_running(&attempt)) {
                    connection.progress(progress);
                }
            }
            Happening::Asked => {
                self.phase = Phase::Draining(in_at_most(self.times.drain_max));
                (self.observer)(Event::Draining { held: self.protocol.len() });
                let frame = self.protocol.drain();
                if let Some(connection) = connection {
                    connection.send(frame);
                    connection.beat_behind_drain(self.heartbeat());
                }
            }
            Happening::Late if matches!(self.phase, Phase::Draining(_)) => {
                let most = self.times.stop_grace.saturating_add(self.times.settle_max);
                self.phase = Phase::Stopping(in_at_most(most));
                self.stoppers.values().for_each(|stopper| stopper.stop(Why::Stopping));
            }
            Happening::Late => self.phase = Phase::Over,
        }
    }

    fn hear(&mut self, frame: SchedulerFrame, connection: &mut Connection) {
        if let SchedulerFrame::Problem(it) = &frame {
            (self.observer)(Event::Problem { code: it.code.clone(), detail: it.detail.clone() });
        }
        if let SchedulerFrame::HeartbeatOk(HeartbeatOk { draining }) = frame {
            if std::mem::replace(&mut self.drained, draining) != draining {
                (self.observer)(Event::Drained(draining));
            } else {
                // One that tells news may come unasked.
                connection.answered();
            }
        }
        for effect in self.protocol.heard(frame) {
            self.carry_out(effect, Some(&mut *connection));
        }
    }

    fn carry_out(&mut self, effect: Effect, connection: Option<&mut Connection>) {
        match effect {
            Effect::Start(dispatch) => self.start(dispatch),
            Effect::Stop(attempt) => {
                if let Some(stopper) = self.stoppers.get(&attempt) {
                    stopper.stop(Why::CalledOff);
                }
            }
            Effect::Send(frame) => {
                if let Some(connection) = connection {
                    connection.send(frame);
                }
            }
            Effect::Beat => {
                if let Some(connection) = connection {
                    connection.beat(self.heartbeat());
                }
            }
        }
    }

    fn start(&mut self, dispatch: Dispatch) {
        let attempt = AttemptRef { job: dispatch.job.clone(), attempt: dispatch.attempt };
        let (stopper, stop) = Stopper::new();
        let progress = ProgressSender::new(attempt.clone(), self.progress.0.clone());
        let job = Job::of(dispatch, stop.clone(), progress);
        let run = job.timeout.saturating_add(self.times.timeout_grace);
        let limits = Limits { run, grace: self.times.stop_grace };
        let handler = Arc::clone(&self.handler);
        let work = attend(async move { handler(job).await }, stop, stopper.clone(), limits);
        let task = self.work.spawn(work);
        self.attempts.insert(task.id(), (attempt.clone(), Instant::now()));
        (self.observer)(Event::Started { job: attempt.job.clone(), attempt: attempt.attempt });
        self.stoppers.insert(attempt, stopper);
    }

    fn heartbeat(&self) -> Heartbeat {
        Heartbeat { load: None, running: self.protocol.listed() }
    }

    fn is_over(&self) -> bool {
        match self.phase {
            Phase::Working => false,
            Phase::Draining(_) | Phase::Stopping(_) => self.protocol.is_empty(),
            Phase::Over => true,
        }
    }

    /// Tells all handlers to stop and waits for each, at most for its grace.
    async fn stop_work(&mut self, why: Why) {
        self.stoppers.values().for_each(|stopper| stopper.stop(why));
        while self.work.join_next().await.is_some() {}
    }
}

/// What came of an attempt that was not called off.
fn end_of(outcome: &AttemptOutcome) -> AttemptEnd {
    match outcome {
        AttemptOutcome::Done(_) => AttemptEnd::Succeeded,
        AttemptOutcome::Failed(failure) => {
            AttemptEnd::Failed { message: failure.message.clone(), retryable: failure.retryable }
        }
    }
}

/// How long a handler may work, and how long it may take to stop.
struct Limits {
    run: Duration,
    grace: Duration,
}

/// Runs one handler, at most for its time.
async fn attend(
    work: impl Future<Output = std::result::Result<Json, Failure>>,
    stop: Stop,
    stopper: Stopper,
    limits: Limits,
) -> AttemptOutcome {
    let work = AssertUnwindSafe(work).catch_unwind();
    let mut work = pin!(work.map(|done| match done {
        Ok(given) => outcome(given),
        Err(payload) => outcome(Err(panicked(Some(&*payload)))),
    }));
    let why = tokio::select! {
        done = &mut work => return done,
        why = stop.requested() => why,
        () = sleep(limits.run) => {
            stopper.stop(Why::TimedOut);
            Why::TimedOut
        }
    };
    match timeout(limits.grace, work).await {
        Ok(done) => done,
        Err(_) => outcome(Err(Failure::passing(format!("{why}, and the handler did not stop")))),
    }
}

/// The failure of a handler that panicked, with the text of the panic if it has one.
fn panicked(payload: Option<&(dyn Any + Send)>) -> Failure {
    let text = payload.and_then(|payload| {
        let owned = payload.downcast_ref::<String>().map(String::as_str);
        owned.or_else(|| payload.downcast_ref::<&str>().copied())
    });
    Failure::passing(match text {
        Some(text) if !text.is_empty() => format!("the handler panicked: {text}"),
        _ => "the handler panicked".to_owned(),
    })
}

/// What the other side's close code means.
fn closed(connection: &Connection, why: Option<(u16, String)>) -> Parted {
    match why {
        Some((close::REPLACED, _)) => Parted::Replaced,
        why => Parted::Cut(connection.closed(why)),
    }
}

/// So long from now, or when no process of today lives any more.
fn in_at_most(length: Duration) -> Instant {
    Instant::now() + length.min(NO_LIMIT)
}

/// Whether a worker that has nothing more has waited for the scheduler for long enough: from the first time on that this is
/// asked.
fn is_late(leave_at: &mut Option<Instant>) -> bool {
    let now = Instant::now();
    now >= *leave_at.get_or_insert(now + GOODBYE_WITHIN)
}

/// Whether only a person can resolve the error, which came so long after the connection was begun.
fn is_refused_for_good(error: &Error, after: Duration) -> bool {
    match error {
        Error::Unusable(_) => true,
        Error::Refused(problem) => match problem.known_code() {
            Some(Code::Unauthorized | Code::Forbidden) => true,
            Some(Code::Invalid) => after < REFUSED_WITHIN,
            _ => false,
        },
        Error::Unreachable { .. } | Error::Lost { .. } | Error::Unexpected { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use wire::limits::ERROR_MESSAGE_CHARS_MAX;
    use wire::worker::Message;

    use super::super::{Worker, WorkerOptions};
    use super::*;
    use crate::socket::stand_in::{self, Instance, PATIENCE};

    async fn echo(job: Job) -> std::result::Result<Json, Failure> {
        Ok(job.payload)
    }

    #[test]
    fn a_panic_is_a_failure_that_may_pass_and_says_its_text() {
        let says = |payload: Option<&(dyn Any + Send)>| match outcome(Err(panicked(payload))) {
            AttemptOutcome::Failed(failure) => {
                assert!(failure.retryable);
                failure.message
            }
            done => panic!("{done:?}"),
        };
        assert_eq!(says(Some(&"literal")), "the handler panicked: literal");
        assert_eq!(says(Some(&"made".to_owned())), "the handler panicked: made");
        let without_text: [Option<&(dyn Any + Send)>; 3] = [None, Some(&7_u8), Some(&"")];
        for payload in without_text {
            assert_eq!(says(payload), "the handler panicked");
        }
        assert_eq!(says(Some(&"ä".repeat(9_000))).chars().count(), ERROR_MESSAGE_CHARS_MAX);
    }

    #[tokio::test]
    async fn a_connection_holds_from_its_welcome_on_however_long_that_takes() {
        let scheduler = Instance::new().await;
        let options = WorkerOptions::new([scheduler.url.as_str()], "n");
        let Worker { hello, bases, dialer, times, observer } = Worker::new(options).unwrap();
        let (base, own) = (bases[0].clone(), dialer.clone());
        let never = std::future::pending::<()>();
        let mut worker = WorkerLoop::new(hello, (bases, dialer), times, observer, echo, never);

        let (connection, (silent, _)) =
            tokio::join!(Connection::open(&own, &base, false), scheduler.opened());
        worker.welcome_within = Duration::from_millis(50);
        let parted = worker.converse(connection.unwrap()).await;
        assert!(matches!(parted, Parted::Cut(Error::Lost { .. })), "hello was not answered");
        assert_eq!(worker.held(), None);
        drop(silent);

        let (connection, (mut socket, _)) =
            tokio::join!(Connection::open(&own, &base, false), scheduler.opened());
        worker.welcome_within = PATIENCE;
        let (node_id, instance) = ("n".to_owned(), "i".to_owned());
        let welcome = Welcome { node_id, instance, heartbeat_ms: 60_000, pools: None };
        let welcomes = async {
            let text = Message::One(SchedulerFrame::Welcome(welcome)).to_text();
            stand_in::say(&mut socket, text).await;
            stand_in::close(&mut socket, close::GOING_AWAY).await;
        };
        let (parted, ()) = tokio::join!(worker.converse(connection.unwrap()), welcomes);
        assert!(matches!(parted, Parted::Cut(_)));
        assert!(worker.held().is_some());
        assert_eq!(worker.held(), None, "that was of the connection before");
    }
}
