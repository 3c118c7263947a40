//! Runs the socket of one session's client: brings its jobs to the session's owner, in the order in which they came, and
//! sends their results.
//!
//! Results are read from the ledger, on any instance. Notices say when to read; they may be lost, so the ledger is also
//! read now and then without one. No result is sent before its job's `accepted`.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_ws::{AggregatedMessage, AggregatedMessageStream, CloseCode, CloseReason, ProtocolError};
use actors::jobs::{JobEvent, JobEventKind, Notification, Watch};
use domain::job::State as JobState;
use domain::{JobId, SessionId};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use ledger::{SessionResult, jittered};
use wire::jobs::{BatchResult, JobRequest};
use wire::sessions::{ClientFrame, JobProblem, JobProgress, JobResult, JobTaken, SessionFrame};
use wire::worker::close;
use wire::{Code, Object};

use super::cursor::Cursor;
use super::looks::{self, InLedger, Look, Room};
use crate::auth::{Principal, Scope};
use crate::extract::refused_part;
use crate::forwarder::{ForwardedRequest, Forwarder};
use crate::idempotency::admit;
use crate::jobs::{Part, submit_part};
use crate::limits::{
    CLIENT_FIRST_PAUSE, CLIENT_FRAMES_BYTES_MAX, CLIENT_FRAMES_MAX, CLIENT_IDLE_LOOK_EVERY,
    CLIENT_JOBS_KNOWN_MAX, CLIENT_LOOK_EVERY, CLIENT_PING_EVERY, CLIENT_REPEATED_MAX, CLIENT_RESULTS_AT_ONCE,
    CLIENT_ROOM_PAUSE, CLIENT_SILENT_MAX, CLIENT_SUBMIT_FOR, CLIENT_SUBMIT_PAUSE, CLIENT_TICK,
};
use crate::refusal::{Refusal, count_defect};
use crate::services::Incarnation;
use crate::shares::{Kind, Share};
use crate::state::State;
use crate::to_wire;
use crate::websocket::{self, Fault, Outlet, Pauses, Since, Unsent};

/// Why clients are sent to another instance.
const STOPPING: &str = "this instance is stopping; connect to another";

/// The client, as its request named it.
pub struct Caller {
    pub forwarded: ForwardedRequest,
    pub principal: Arc<Principal>,
}

/// One client's socket, from its opening to its end.
pub struct Socket {
    forwarder: Arc<Forwarder>,
    state: Arc<State>,
    incarnation: Arc<Incarnation>,
    id: SessionId,
    caller: Arc<Caller>,
    watch: Watch,
    outlet: Outlet,
    cursor: Cursor,
    /// Jobs that came and are not on their way yet.
    asked: VecDeque<Asks>,
    /// Those that are: one batch at a time, so that they arrive in their order.
    submitting: Option<LocalBoxFuture<'static, Vec<BatchResult>>>,
    submitted: Vec<String>,
    looking: Option<LocalBoxFuture<'static, Result<Look, Refusal>>>,
    look_at: Instant,
    /// When the next look is at everything, whatever is known by then: what was told may be lost.
    full_at: Instant,
    /// Everything was read once.
    has_looked: bool,
    /// A result was read whose job is not known to be accepted.
    is_held_back: bool,
    /// Results that the next look at everything in order reads at most.
    at_once: u32,
    /// Finished by what was told; looked at before the next look at everything. Only where results have no order.
    known: HashSet<JobId>,
    /// Jobs of places behind which the client began, or whose results it was sent: it has sent them again, and is sent their
    /// results again. By their places, in the order of which the results go.
    repeated: BTreeMap<u64, JobId>,
    /// The next look is at those.
    asks_repeated: bool,
    /// Whether the session is closed and all of its jobs have ended.
    is_over: bool,
    out: VecDeque<SessionFrame>,
    /// The bytes of the results in there, if they are many.
    unsent: Option<Share>,
    pauses: Pauses,
    /// When something was received last.
    heard: Since,
    pinged: Instant,
    /// When it is looked next whether the client may still be here, however much happens meanwhile.
    tick_at: Instant,
    /// A job that is refused for now in a session with an order, with its name: the client hears of it behind the answers to
    /// the jobs before it.
    refused: Option<(Option<String>, Code, String)>,
    closing: Option<Closing>,
}

/// The next message of a client's connection; `None` once it is gone.
type Received = Option<Result<AggregatedMessage, ProtocolError>>;

/// Why the socket is over.
enum Closing {
    /// The client closed it, for this reason; its close frame is answered with the same code.
    ByClient(Option<CloseReason>),
    /// It is closed from here.
    ByServer(CloseCode, String),
    /// The connection is gone.
    Gone,
}

/// A job that the client asks for, with the bytes that it takes meanwhile.
struct Asks {
    job: JobRequest,
    share: Share,
}

/// What a look is at.
enum Asked {
    /// Jobs that the client has sent again.
    Repeated(Vec<JobId>),
    /// Jobs that notices named.
    Named(HashSet<JobId>),
    /// Everything that the client lacks.
    All(Cursor),
}

impl Socket {
    pub fn new(
        forwarder: Arc<Forwarder>,
        incarnation: Arc<Incarnation>,
        id: SessionId,
        caller: Caller,
        watch: Watch,
        (outlet, pauses): (Outlet, Pauses),
        cursor: Cursor,
    ) -> Self {
        let now = Instant::now();
        Self {
            state: Arc::clone(forwarder.state()),
            forwarder,
            incarnation,
            id,
            caller: Arc::new(caller),
            watch,
            outlet,
            cursor,
            asked: VecDeque::new(),
            submitting: None,
            submitted: Vec::new(),
            looking: None,
            look_at: now,
            full_at: now,
            has_looked: false,
            is_held_back: false,
            at_once: CLIENT_RESULTS_AT_ONCE,
            known: HashSet::new(),
            repeated: BTreeMap::new(),
            asks_repeated: false,
            is_over: false,
            out: VecDeque::new(),
            unsent: None,
            heard: pauses.since(now),
            pauses,
            pinged: now,
            tick_at: now + CLIENT_TICK,
            refused: None,
            closing: None,
        }
    }

    /// Serves until either side ends it.
    pub async fn run(mut self, mut messages: AggregatedMessageStream) {
        let state = Arc::clone(&self.state);
        let mut draining = std::pin::pin!(state.traffic.until_draining());
        while self.closing.is_none() {
            self.submit();
            self.look();
            let takes_more = self.takes_more();
            let not_reading_since = (!takes_more).then(Instant::now);
            // While a look is under way the next one waits for it, not for a time that may have passed.
            let ping_at = self.pinged + CLIENT_PING_EVERY;
            let wake_at = if self.looking.is_none() { self.look_at.min(ping_at) } else { ping_at };
            let wake_at = if self.closing.is_none() { wake_at.min(self.tick_at) } else { Instant::now() };
            tokio::select! {
                message = messages.recv(), if takes_more => self.on_messages(message, &mut messages).await,
                answers = wait_for(&mut self.submitting) => self.on_submitted(answers),
                look = wait_for(&mut self.looking) => self.on_look(look),
                notification = self.watch.next() => self.on_notification(notification),
                () = tokio::time::sleep_until(wake_at.into()) => self.on_tick().await,
                () = &mut draining => self.end(CloseCode::Away, STOPPING),
            }
            // Nor is anything read until the frames that wait are sent.
            let not_reading_since = not_reading_since.unwrap_or_else(Instant::now);
            if !self.flush().await {
                self.end(CloseCode::Other(close::SLOW_READER), "the client does not read what it is sent");
            }
            self.pauses.add(not_reading_since.elapsed());
        }
        let Self { id, outlet, closing, .. } = self;
        let reason = match closing {
            Some(Closing::ByServer(code, why)) => {
                log_end(&id, code, &why);
                Some(CloseReason { code, description: Some(why) })
            }
            Some(Closing::ByClient(reason)) => reason.map(|reason| reason.code.into()),
            Some(Closing::Gone) | None => return,
        };
        websocket::close(outlet.session(), Vec::new(), reason).await;
    }

    fn takes_more(&self) -> bool {
        self.asked.len() < CLIENT_FRAMES_MAX
            && bytes(&self.asked) < CLIENT_FRAMES_BYTES_MAX
            && self.repeated.len() < CLIENT_REPEATED_MAX
    }

    /// A message, and those that are there already: jobs that came together are submitted together.
    async fn on_messages(&mut self, first: Received, messages: &mut AggregatedMessageStream) {
        let mut next = Some(first);
        while let Some(message) = next.take() {
            match message {
                Some(Ok(message)) => self.on_message(message).await,
                Some(Err(error)) => match websocket::fault(&error) {
                    Fault::Protocol(code, why) => self.fault(code, why),
                    Fault::Overloaded(why) => self.end(CloseCode::Again, &why),
                    // What the client sent before is read first, and then the end.
                    Fault::Gone => {}
                },
                None => self.closing = Some(Closing::Gone),
            }
            if self.closing.is_none() && self.takes_more() {
                next = messages.recv().now_or_never();
            }
        }
    }

    async fn on_message(&mut self, message: AggregatedMessage) {
        self.heard = self.pauses.since(Instant::now());
        match message {
            AggregatedMessage::Text(text) => self.on_text(&text),
            AggregatedMessage::Binary(_) => {
                self.fault(Code::Invalid, "messages must be JSON text".to_owned());
            }
            AggregatedMessage::Ping(bytes) => {
                let begun = Instant::now();
                let sent = self.outlet.pong(&bytes).await;
                self.pauses.add(begun.elapsed());
                match sent {
                    Ok(()) => {}
                    Err(Unsent::Closed) => self.closing = Some(Closing::Gone),
                    Err(Unsent::NotRead) => {
                        self.end(CloseCode::Other(close::SLOW_READER), "the client does not read its pongs");
                    }
                }
            }
            AggregatedMessage::Pong(_) => {}
            AggregatedMessage::Close(reason) => self.closing = Some(Closing::ByClient(reason)),
        }
    }

    fn on_text(&mut self, text: &str) {
        if !self.is_welcome() {
            return;
        }
        // It counts until it is submitted, however long that takes.
        let share = match self.state.shares.take(Kind::Reading, self.caller.principal.used(), text.len()) {
            Ok(share) => share,
            Err(reached) => return self.end(CloseCode::Again, &reached.to_string()),
        };
        let read = serde_json::from_str(text).map_err(|_| refused_part::<ClientFrame>(text));
        let named = |frame| match frame {
            ClientFrame::Job(job) if job.client_ref.is_none() => {
                Err(Refusal::invalid("a job must have a ref"))
            }
            ClientFrame::Job(job) if job.session.as_ref().is_some_and(|named| named != self.id.as_str()) => {
                Err(Refusal::invalid("this is another session's socket"))
            }
            ClientFrame::Job(job) => self.caller.principal.require(Scope::Submit).map(|()| *job),
        };
        match read.and_then(named) {
            Ok(job) => {
                let job = JobRequest { session: Some(self.id.to_string()), ..job };
                self.asked.push_back(Asks { job, share });
            }
            Err(refusal) => {
                let client_ref = named_in(text);
                let (code, detail) = refusal.code_and_detail();
                self.problem(client_ref, code, detail);
            }
        }
    }

    fn problem(&mut self, client_ref: Option<String>, code: Code, detail: String) {
        let problem = JobProblem { client_ref, code: code.as_str().to_owned(), detail };
        self.out.push_back(SessionFrame::Problem(problem));
    }

    fn fault(&mut self, code: Code, why: String) {
        self.problem(None, code, why);
        self.end(CloseCode::Other(close::PROTOCOL), "a protocol error; the problem frame says which");
    }

    fn end(&mut self, code: CloseCode, why: &str) {
        self.closing = Some(Closing::ByServer(code, why.to_owned()));
    }

    /// Sends the jobs that came on their way, together.
    fn submit(&mut self) {
        if self.submitting.is_some() {
            return;
        }
        let (mut jobs, mut parts, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        // At most one more than fit was read.
        for Asks { job, share } in std::mem::take(&mut self.asked) {
            let part = Part::of_client(parts.len(), job.clone(), &self.caller.principal).and_then(|part| {
                admit(self.forwarder.state(), &self.caller.principal, part.key())?;
                Ok(part)
            });
            match part {
                Ok(part) => {
                    self.submitted.extend(job.client_ref.clone());
                    parts.push(part);
                    jobs.push(job);
                    shares.push(share);
                }
                Err(refusal) => {
                    count_defect(&refusal);
                    let (code, detail) = refusal.code_and_detail();
                    if self.ends_by(code) {
                        self.refused = Some((job.client_ref, code, detail));
                        break;
                    }
                    self.problem(job.client_ref, code, detail);
                }
            }
        }
        if parts.is_empty() {
            return self.tell_refused();
        }
        let (forwarder, caller, id) =
            (Arc::clone(&self.forwarder), Arc::clone(&self.caller), self.id.clone());
        let submit = async move {
            let _shares = shares;
            let until = Instant::now() + CLIENT_SUBMIT_FOR;
            let mut parts = parts;
            loop {
                let forwarded = caller.forwarded.within("POST", "/v1/jobs/batch".to_owned(), None);
                let answers = match submit_part(&forwarder, &forwarded, &id, parts).await {
                    Ok(answers) => answers,
                    Err(refusal) => {
                        count_defect(&refusal);
                        let (code, detail) = refusal.code_and_detail();
                        let code = code.to_string();
                        // No frame names an owner: a socket brings its jobs there by itself.
                        vec![BatchResult::Refused { code, detail, owner: None, owner_url: None }; jobs.len()]
                    }
                };
                // Under their refs they may be sent again, whatever became of them.
                let is_passing =
                    answers.iter().all(|answer| answer.known_code().is_some_and(Code::is_retryable));
                if !is_passing || Instant::now() >= until {
                    return answers;
                }
                tokio::time::sleep(jittered(CLIENT_SUBMIT_PAUSE)).await;
                let again = jobs.iter().enumerate();
                let again = again.map(|(at, job)| Part::of_client(at, job.clone(), &caller.principal));
                let Ok(again) = again.collect::<Result<Vec<_>, _>>() else { return answers };
                parts = again;
            }
        };
        self.submitting = Some(submit.boxed_local());
    }

    fn on_submitted(&mut self, answers: Vec<BatchResult>) {
        for (client_ref, answer) in std::mem::take(&mut self.submitted).into_iter().zip(answers) {
            match answer {
                BatchResult::Accepted { id, seq } => {
                    let seq = seq.unwrap_or_default();
                    if let (false, Some(job)) = (self.cursor.lacks(seq), JobId::parse(&id)) {
                        self.repeated.insert(seq, job);
                        self.asks_repeated = true;
                        self.look_at = Instant::now();
                    }
                    self.out.push_back(SessionFrame::Accepted(JobTaken { client_ref, id, seq }));
                }
                BatchResult::Refused { code, detail, .. } => {
                    let ends = Code::parse(&code).is_some_and(|code| self.ends_by(code));
                    let problem = JobProblem { client_ref: Some(client_ref), code, detail };
                    self.out.push_back(SessionFrame::Problem(problem));
                    if ends {
                        self.refused = None;
                        return self.end_for_order();
                    }
                }
            }
        }
        self.tell_refused();
        if std::mem::take(&mut self.is_held_back) {
            self.look_at_everything(Duration::ZERO);
        } else {
            self.look_at = self.look_at.min(Instant::now() + CLIENT_LOOK_EVERY);
        }
    }

    /// Whether a job that is refused so ends the socket. Where jobs have an order, none of those that the client sent behind it
    /// is accepted before the client can know of the refusal: else one whose connection is cut would send it again behind them.
    /// So the client connects again, and sends again what was not accepted.
    const fn ends_by(&self, code: Code) -> bool {
        code.is_retryable() && matches!(self.cursor, Cursor::Ordered(_))
    }

    fn tell_refused(&mut self) {
        if let Some((client_ref, code, detail)) = self.refused.take() {
            self.problem(client_ref, code, detail);
            self.end_for_order();
        }
    }

    fn end_for_order(&mut self) {
        self.end(
            CloseCode::Again,
            "a job was refused for now; connect again, and send what was not accepted",
        );
    }

    fn on_notification(&mut self, notification: Notification) {
        match notification {
            Notification::Event(seen) => self.on_seen(&seen),
            Notification::Missed => self.look_at_everything(Duration::ZERO),
        }
    }

    fn on_seen(&mut self, seen: &JobEvent) {
        match &seen.kind {
            JobEventKind::Changed(JobState::Finished, _) => {
                self.look_at = Instant::now();
                self.asks_repeated |= self.repeated.values().any(|job| *job == seen.job);
                if matches!(self.cursor, Cursor::Ordered(_)) {
                    return;
                }
                if self.known.len() < CLIENT_JOBS_KNOWN_MAX {
                    self.known.insert(seen.job);
                } else {
                    self.look_at_everything(Duration::ZERO);
                }
            }
            JobEventKind::Changed(..) => {}
            JobEventKind::Progressed(progress) => {
                let progress = JobProgress {
                    id: seen.job.to_string(),
                    attempt: seen.attempt.get(),
                    percent: progress.percent.map(::nodes::connection::Percent::get),
                    note: progress.note.clone(),
                };
                self.out.push_back(SessionFrame::Progress(progress));
            }
        }
    }

    /// Looks into the ledger when it is time; one look at a time.
    fn look(&mut self) {
        let now = Instant::now();
        if self.looking.is_some() || now < self.look_at {
            return;
        }
        self.look_at = now + CLIENT_IDLE_LOOK_EVERY;
        let asked = self.next_look(now);
        let (state, incarnation, id) =
            (Arc::clone(&self.state), Arc::clone(&self.incarnation), self.id.clone());
        let room = Room::of(&self.state.shares, self.caller.principal.used());
        let at_once = self.at_once;
        let look = async move {
            let source = InLedger { jobs: &incarnation.jobs, id: &id };
            let look = async {
                match asked {
                    Asked::Repeated(jobs) => looks::repeated(&source, jobs, room).await,
                    Asked::Named(jobs) => looks::named(&source, jobs, room).await,
                    Asked::All(Cursor::Ordered(low)) => looks::in_order(&source, low, at_once, room).await,
                    Asked::All(Cursor::Free(sent)) => looks::freely(&source, &sent, room).await,
                }
            };
            state.call(look).await
        };
        self.looking = Some(look.boxed_local());
    }

    /// What the next look is at.
    fn next_look(&mut self, now: Instant) -> Asked {
        if std::mem::take(&mut self.asks_repeated) {
            return Asked::Repeated(self.repeated.values().copied().collect());
        }
        // A look at everything finds what is known, too.
        let known = std::mem::take(&mut self.known);
        if !known.is_empty() && now < self.full_at {
            return Asked::Named(known);
        }
        self.full_at = now + CLIENT_LOOK_EVERY;
        self.asks_repeated = !self.repeated.is_empty();
        Asked::All(self.cursor.clone())
    }

    /// The next look is at everything, after this pause at the latest.
    fn look_at_everything(&mut self, pause: Duration) {
        self.full_at = Instant::now();
        self.look_at = self.look_at.min(self.full_at + pause);
    }

    fn on_look(&mut self, look: Result<Look, Refusal>) {
        let look = match look {
            Ok(look) => look,
            Err(refusal) => {
                tracing::debug!(%refusal, session = %self.id, "a session's results could not be read");
                return self.look_at_everything(CLIENT_LOOK_EVERY);
            }
        };
        match look {
            Look::Ordered { results, is_all, is_idle, room } => {
                let is_full = room.is_full();
                self.at_once = looks::next_at_once(self.at_once, is_full);
                self.unsent = Some(room.share());
                for result in results {
                    if self.is_on_its_way(&result) {
                        // It is read again when its job is known to be accepted.
                        self.is_held_back = true;
                        return;
                    }
                    self.result(result);
                }
                if is_full {
                    return self.look_at_everything(CLIENT_ROOM_PAUSE);
                }
                self.look_again(is_all, is_idle);
            }
            Look::Free { results, settled, is_all, is_idle, room } => {
                let is_full = room.is_full();
                self.unsent = Some(room.share());
                for result in results {
                    if self.is_on_its_way(&result) {
                        self.is_held_back = true;
                    } else if self.cursor.lacks(result.seq) {
                        self.result(result);
                    }
                }
                if let (Some(settled), false) = (settled, self.is_held_back) {
                    self.cursor.settle(settled);
                }
                if is_full || self.is_held_back {
                    return self.look_at_everything(CLIENT_ROOM_PAUSE);
                }
                self.look_again(is_all, is_idle);
            }
            Look::Repeated { results, forgotten, is_all, room } => {
                let is_full = room.is_full();
                self.unsent = Some(room.share());
                for result in results {
                    self.repeated.remove(&result.seq);
                    self.result(result);
                }
                self.repeated.retain(|_, job| !forgotten.contains(job));
                if is_full || !is_all {
                    self.asks_repeated = true;
                } else if self.is_over {
                    // No result of the others will come.
                    self.repeated.clear();
                }
                self.look_at = Instant::now() + if is_full { CLIENT_ROOM_PAUSE } else { Duration::ZERO };
            }
            Look::Over => {
                self.is_over = true;
                // What is sent once more has its turn first.
                if self.asks_repeated {
                    self.look_at = Instant::now();
                    self.full_at = self.look_at;
                } else if self.submitting.is_none() && self.asked.is_empty() {
                    self.end(CloseCode::Normal, "the session is closed");
                }
            }
        }
    }

    fn look_again(&mut self, is_all: bool, is_idle: bool) {
        if !is_all {
            self.look_at_everything(Duration::ZERO);
        } else if !is_idle {
            let pause = if self.has_looked { CLIENT_LOOK_EVERY } else { CLIENT_FIRST_PAUSE };
            self.look_at = self.look_at.min(Instant::now() + pause);
        }
        self.has_looked |= is_all;
    }

    /// Whether its job is one of those that were sent on their way and not answered.
    fn is_on_its_way(&self, result: &SessionResult) -> bool {
        let Some(client_ref) = &result.client_ref else { return false };
        self.submitting.is_some() && self.submitted.iter().any(|submitted| submitted == client_ref.as_str())
    }

    fn result(&mut self, result: SessionResult) {
        let SessionResult { id, seq, client_ref, outcome, result, error } = result;
        let Ok(output) = result.as_deref().map(to_wire::json).transpose() else { return };
        self.out.push_back(SessionFrame::Result(JobResult {
            id: id.to_string(),
            seq,
            client_ref: client_ref.map(|client_ref| client_ref.to_string()),
            outcome: to_wire::outcome(outcome),
            result: output,
            error,
        }));
        self.cursor.sent(seq);
    }

    /// Whether the client's token is still good; if not, the socket ends.
    fn is_welcome(&mut self) -> bool {
        let is_known = self.state.settings.auth.knows(&self.caller.principal);
        if !is_known {
            let why = "the client's token was taken away, has expired, or may do less than when it connected";
            self.end(CloseCode::Other(close::UNAUTHORIZED), why);
        }
        is_known
    }

    /// Whether this instance serves the client; if not, the socket ends.
    fn is_served(&mut self) -> bool {
        if self.state.traffic.is_draining() {
            self.end(CloseCode::Away, STOPPING);
            return false;
        }
        if self.state.incarnation().identity.id != self.incarnation.identity.id {
            self.end(CloseCode::Away, "this instance continues under a new id; connect again");
            return false;
        }
        self.is_welcome()
    }

    async fn on_tick(&mut self) {
        let now = Instant::now();
        self.tick_at = now + CLIENT_TICK;
        if !self.is_served() {
            return;
        }
        // What came while the socket did not read still waits to be read.
        if self.pauses.read_since(self.heard, now) >= CLIENT_SILENT_MAX {
            return self.end(CloseCode::Away, "nothing was received from the client");
        }
        if now.duration_since(self.pinged) >= CLIENT_PING_EVERY {
            self.pinged = now;
            // The next read would say so, too; but a socket in which much waits does not read.
            if self.outlet.ping().await == Err(Unsent::Closed) {
                self.closing = Some(Closing::Gone);
            }
            if self.takes_more() {
                self.pauses.add(now.elapsed());
            }
        }
    }

    /// Sends all frames that wait, as long as the client is served. `false` if the client does not read them.
    async fn flush(&mut self) -> bool {
        while let Some(frame) = self.out.pop_front() {
            // To a client that reads slowly a page takes many ticks. How long it has been silent is not known before the end.
            if self.closing.is_none() && Instant::now() >= self.tick_at && !self.is_served() {
                self.out.clear();
                break;
            }
            let text = serde_json::to_string(&frame).expect("frames have text keys only");
            // From here on the outlet counts it.
            if let Some(share) = &mut self.unsent {
                share.shrink(text.len());
            }
            match self.outlet.text(text).await {
                Ok(()) => {}
                Err(Unsent::Closed) => {
                    self.closing.get_or_insert(Closing::Gone);
                    return true;
                }
                Err(Unsent::NotRead) => return false,
            }
        }
        self.unsent = None;
        true
    }
}

fn bytes(asked: &VecDeque<Asks>) -> usize {
    asked.iter().map(|asks| asks.job.payload.as_str().len()).sum()
}

/// The `ref` of a frame that is refused.
#[derive(serde::Deserialize)]
struct Named {
    #[serde(rename = "ref")]
    client_ref: Option<String>,
}

/// The `ref` in the text of a frame, if it is an object that has one.
fn named_in(text: &str) -> Option<String> {
    serde_json::from_str(text).ok().and_then(|Object(Named { client_ref })| client_ref)
}

/// Says why the instance ends a client's socket: at INFO where that is for what the client does, for its token, or for want of
/// room.
fn log_end(session: &SessionId, code: CloseCode, why: &str) {
    let code = u16::from(code);
    if matches!(code, close::NORMAL | close::GOING_AWAY) {
        tracing::debug!(%session, code, why, "a client's socket is closed");
    } else {
        tracing::info!(%session, code, why, "a client's socket is closed");
    }
}

/// Waits for the future, if there is one, and takes it away; without one, waits for ever.
async fn wait_for<T>(waiting: &mut Option<LocalBoxFuture<'static, T>>) -> T {
    match waiting {
        Some(future) => {
            let done = future.await;
            *waiting = None;
            done
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
