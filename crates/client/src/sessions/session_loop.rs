//! The loop of a session's socket: it keeps the connection, sends the caller's jobs, and passes on what it
//! receives.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_tungstenite::tungstenite::Utf8Bytes;
use wire::sessions::JobProblem;
use wire::worker::close;
use wire::{Code, Problem};

use super::happening::Happening;
use super::protocol::{Protocol, Sent};
use crate::retry::{Reconnects, Refusals, next_instance};
use crate::socket::{Received, Socket};
use crate::{Client, Error, Result};

/// The socket ends with the connection that is the last of so many which Fencepost has closed for a fault of the protocol while
/// jobs waited and none was accepted. A client that is paused in the middle of a message commits such a fault once; a job that
/// is too large commits it whenever it is sent.
const FAULTS_MAX: u32 = 3;

/// The HTTP status of a socket that was opened.
const SWITCHED: u16 = 101;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// How often the client sends a ping.
    pub(super) ping_every: Duration,
    /// A connection on which nothing is received for this long counts as dead. The daemon may not read for half of it
    /// while it looks for the session's owner.
    pub(super) silence_max: Duration,
    /// Longest pause before another connection.
    pub(super) pause_max: Duration,
    /// How long the jobs that were sent may take to be accepted after the caller closed the socket.
    pub(super) close_within: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            ping_every: Duration::from_secs(5),
            silence_max: Duration::from_secs(20),
            pause_max: Duration::from_secs(5),
            close_within: Duration::from_secs(5),
        }
    }
}

/// What the caller gets.
#[derive(Debug)]
pub(super) enum Delivery {
    /// This event, and the place up to which the caller has then got all results.
    Happening(Happening, u64),
    /// The end: the session is closed, or the socket cannot continue.
    End(Result<()>),
}

impl Delivery {
    /// The name of the job of which this says that it was refused.
    pub(super) fn refused(self) -> Option<String> {
        match self {
            Self::Happening(Happening::Problem(problem), _) => problem.client_ref,
            Self::Happening(..) | Self::End(_) => None,
        }
    }
}

/// How far the socket is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The caller has not closed it.
    Open,
    /// The caller has closed it; what was sent may be accepted until then.
    Closing(Instant),
    /// It waits for nothing more.
    Over,
}

/// How a connection ended.
enum Parted {
    /// By a fault or a refusal.
    Cut(Error),
    /// The session is closed.
    Closed,
    /// The caller has closed the socket.
    Enough,
}

pub(super) struct SessionLoop {
    client: Client,
    id: String,
    protocol: Protocol,
    jobs: mpsc::UnboundedReceiver<Sent>,
    tell: mpsc::Sender<Delivery>,
    stop: oneshot::Receiver<()>,
    pace: Pace,
    phase: Phase,
    /// The connections that a fault of the protocol has ended while jobs waited, since one was accepted.
    faults: u32,
    /// The caller got all results up to this place.
    reported_seq: u64,
    /// What the caller has not got yet.
    untold: VecDeque<Delivery>,
    /// The names of jobs that were refused when the caller had closed the socket.
    refused: Vec<String>,
    /// Gets what remains when the loop is dropped.
    left: Option<oneshot::Sender<Vec<String>>>,
}

impl SessionLoop {
    /// The loop; and, once it has ended, the names of the jobs that are not accepted then: those first whose refusals it did
    /// not deliver. They come also where the loop ends with its runtime.
    pub(super) fn new(
        client: &Client,
        id: &str,
        protocol: Protocol,
        jobs: mpsc::UnboundedReceiver<Sent>,
        tell: mpsc::Sender<Delivery>,
        stop: oneshot::Receiver<()>,
        pace: Pace,
    ) -> (Self, oneshot::Receiver<Vec<String>>) {
        let (left, unaccepted) = oneshot::channel();
        let session_loop = Self {
            client: client.clone(),
            id: id.to_owned(),
            reported_seq: protocol.after_seq(),
            protocol,
            jobs,
            tell,
            stop,
            pace,
            phase: Phase::Open,
            faults: 0,
            untold: VecDeque::new(),
            refused: Vec::new(),
            left: Some(left),
        };
        (session_loop, unaccepted)
    }

    /// Runs until the session is closed, the caller stops, or the error is lasting.
    pub(super) async fn run(mut self) {
        let end = match self.keep_connected().await {
            Parted::Enough => None,
            Parted::Cut(error) => Some(Err(error)),
            Parted::Closed => Some(Ok(())),
        };
        self.take_all();
        if let (Some(end), Phase::Open) = (end, self.phase) {
            if end.is_ok() {
                let refused = self.protocol.closed();
                self.tell(refused).await;
            }
            self.untold.push_back(Delivery::End(end));
            self.deliver().await;
        }
    }

    /// Connects, serves the connection, connects again. Ends where no connection would help, and where every instance
    /// refuses it: before the first connection once, later for a while.
    async fn keep_connected(&mut self) -> Parted {
        // Many clients with the same list must not all connect to its first URL.
        let mut at = rand::random_range(0..self.client.sockets().0.len());
        let mut reconnects = Reconnects::new(self.pace.pause_max);
        let (mut refusals, instances) = (Refusals::default(), self.client.sockets().0.len());
        loop {
            let opening = open(self.client.clone(), at, self.id.clone(), self.protocol.after_seq());
            let Some(opened) = self.meanwhile(opening).await else { return Parted::Enough };
            let (error, held) = match opened {
                Err(error) => (error, None),
                Ok(socket) => {
                    refusals.let_in();
                    let opened_at = Instant::now();
                    match self.converse(socket).await {
                        Parted::Cut(error) => (error, Some(opened_at.elapsed())),
                        parted => return parted,
                    }
                }
            };
            let is_refused = !error.is_retryable();
            if is_refused && is_alike_everywhere(&error)
                || refusals.are_final(is_refused, Instant::now(), instances)
            {
                return Parted::Cut(error);
            }
            let pause = reconnects.pause(held, &error);
            self.tell(vec![Happening::Lost { reason: error.to_string(), pause }]).await;
            at = next_instance(at, instances, held.is_some() && !is_refused);
            if self.meanwhile(sleep(pause)).await.is_none() {
                return Parted::Enough;
            }
        }
    }

    /// Waits for something; `None` if the socket has to end first.
    async fn meanwhile<T>(&mut self, wait: impl Future<Output = T>) -> Option<T> {
        let mut wait = pin!(wait);
        loop {
            if self.is_over() {
                return None;
            }
            tokio::select! {
                done = &mut wait => return Some(done),
                phase = next_phase(self.phase, &mut self.stop, self.pace) => self.enter(phase),
            }
        }
    }

    /// Serves one connection.
    async fn converse(&mut self, mut socket: Socket) -> Parted {
        self.protocol.connected();
        self.tell(vec![Happening::Connected { url: socket.url().to_owned() }]).await;
        let mut heard_at = Instant::now();
        let mut ping_at = heard_at + self.pace.ping_every;
        loop {
            if self.is_over() {
                socket.close(|| None, close::NORMAL, "done").await;
                return Parted::Enough;
            }
            tokio::select! {
                // What is received must count before the silence is measured.
                biased;
                phase = next_phase(self.phase, &mut self.stop, self.pace) => self.enter(phase),
                Some(sent) = self.jobs.recv() => self.protocol.add(sent),
                heard = socket.next(|| self.protocol.next()) => {
                    match heard {
                        Err(error) => return Parted::Cut(error),
                        Ok(Received::Sign) => {}
                        Ok(Received::Text(text)) => {
                            if let Err(error) = self.hear(&text, &socket).await {
                                socket.close(|| None, close::PROTOCOL, "no frame").await;
                                return Parted::Cut(error);
                            }
                            if let Some(JobProblem { code, detail, .. }) = self.protocol.refused_for_now() {
                                socket.close(|| None, close::NORMAL, "a job was refused for now").await;
                                let code = Code::parse(&code).unwrap_or(Code::Overloaded);
                                return Parted::Cut(Error::Refused(Box::new(Problem::new(code, detail))));
                            }
                        }
                        Ok(Received::Binary) => {
                            let error = strange(&socket, "a binary message; frames are texts".to_owned());
                            socket.close(|| None, close::PROTOCOL, "no frame").await;
                            return Parted::Cut(error);
                        }
                        Ok(Received::Closed(Some((close::NORMAL, _)))) => return Parted::Closed,
                        Ok(Received::Closed(Some((close::PROTOCOL, why)))) => {
                            self.faults += u32::from(!self.protocol.is_empty());
                            return Parted::Cut(match self.faults {
                                ..FAULTS_MAX => socket.closed(Some((close::PROTOCOL, why))),
                                // The same frame would get the same answer.
                                _ => Error::Refused(Box::new(Problem::new(Code::Invalid, why))),
                            });
                        }
                        Ok(Received::Closed(why)) => return Parted::Cut(socket.closed(why)),
                    }
                    // Read the clock now: the caller may have been slow to take the result.
                    heard_at = Instant::now();
                }
                () = sleep_until(heard_at + self.pace.silence_max) => {
                    if !socket.has_moved() {
                        return Parted::Cut(socket.lost("nothing was received for too long"));
                    }
                    heard_at = Instant::now();
                }
                () = sleep_until(ping_at) => {
                    ping_at = Instant::now() + self.pace.ping_every;
                    socket.ping();
                }
            }
        }
    }

    async fn hear(&mut self, text: &Utf8Bytes, socket: &Socket) -> Result<()> {
        // A frame that cannot be read must not be skipped: it could be a result.
        let frame = serde_json::from_str(text).map_err(|error| strange(socket, error.to_string()))?;
        let happenings = self.protocol.heard(frame);
        if happenings.iter().any(|happening| matches!(happening, Happening::Accepted(_))) {
            self.faults = 0;
        }
        self.tell(happenings).await;
        Ok(())
    }

    /// Tells the caller, as soon as there is room.
    async fn tell(&mut self, happenings: Vec<Happening>) {
        for happening in happenings {
            if matches!(happening, Happening::Result(_)) {
                self.reported_seq = self.protocol.after_seq();
            }
            self.untold.push_back(Delivery::Happening(happening, self.reported_seq));
        }
        self.deliver().await;
    }

    /// Delivers what the caller has not got, in its order.
    async fn deliver(&mut self) {
        while self.phase == Phase::Open && !self.untold.is_empty() {
            let phase = tokio::select! {
                biased;
                // A caller that has closed the socket hears nothing more.
                phase = next_phase(self.phase, &mut self.stop, self.pace) => Some(phase),
                room = self.tell.reserve() => {
                    let delivery = self.untold.pop_front();
                    // A socket that was dropped has no room.
                    if let (Ok(room), Some(delivery)) = (room, delivery) {
                        room.send(delivery);
                    }
                    None
                }
            };
            if let Some(phase) = phase {
                self.enter(phase);
            }
        }
        self.refused.extend(self.untold.drain(..).filter_map(Delivery::refused));
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        // Jobs that were sent before are still in the channel.
        self.jobs.close();
    }

    fn take_all(&mut self) {
        self.jobs.close();
        while let Ok(sent) = self.jobs.try_recv() {
            self.protocol.add(sent);
        }
    }

    fn is_over(&self) -> bool {
        match self.phase {
            Phase::Open => false,
            Phase::Closing(_) => self.protocol.is_empty() && self.jobs.is_empty(),
            Phase::Over => true,
        }
    }
}

impl Drop for SessionLoop {
    /// The end of the loop, and also that of its runtime, which comes while the loop waits for anything.
    fn drop(&mut self) {
        self.take_all();
        let mut unaccepted = std::mem::take(&mut self.refused);
        unaccepted.extend(self.untold.drain(..).filter_map(Delivery::refused));
        unaccepted.extend(self.protocol.left());
        if let Some(left) = self.left.take() {
            // A socket that was dropped does not ask for it.
            let _ = left.send(unaccepted);
        }
    }
}

/// The next phase, when it comes.
async fn next_phase(phase: Phase, stop: &mut oneshot::Receiver<()>, pace: Pace) -> Phase {
    match phase {
        Phase::Open => match stop.await {
            Ok(()) => Phase::Closing(Instant::now() + pace.close_within),
            // The socket was dropped.
            Err(_) => Phase::Over,
        },
        Phase::Closing(until) => {
            sleep_until(until).await;
            Phase::Over
        }
        Phase::Over => std::future::pending().await,
    }
}

async fn open(client: Client, at: usize, id: String, after_seq: u64) -> Result<Socket> {
    let (bases, dialer) = client.sockets();
    let query = [("after_seq", after_seq.to_string())];
    dialer.open(&bases[at], &["v1", "sessions", &id, "ws"], &query).await
}

/// Whether each instance gives the same lasting answer, whenever it is asked. Tokens are not exchanged at all instances at
/// once, and an answer that is not Fencepost's is of one balancer.
fn is_alike_everywhere(error: &Error) -> bool {
    match error {
        Error::Refused(problem) => matches!(problem.known_code(), Some(Code::NotFound | Code::Invalid)),
        Error::Unexpected { status, .. } => *status == SWITCHED,
        Error::Unusable(_) => true,
        Error::Unreachable { .. } | Error::Lost { .. } => false,
    }
}

/// The error for a frame that this protocol does not have; another connection would not help.
fn strange(socket: &Socket, reason: String) -> Error {
    Error::Unexpected { url: socket.url().to_owned(), status: SWITCHED, reason }
}
