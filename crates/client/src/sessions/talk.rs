//! A session's socket at work: the connection while there is one, the pauses between them, and the end.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_tungstenite::tungstenite::Utf8Bytes;
use wire::worker::close;
use wire::{Code, Problem};

use super::book::{Book, Sent};
use super::socket::{Happening, Told};
use crate::retry::Reconnects;
use crate::socket::{Heard, Socket};
use crate::{Client, Error, Result};

/// Goodbye, said by either side: by the daemon's when the session is closed and all its results were sent.
const NORMAL: u16 = 1000;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// How often the other side is asked for a sign of life.
    pub(super) ping_every: Duration,
    /// After so long without one the connection is taken for dead. Jobs that find no owner may keep the daemon from
    /// reading for half of it.
    pub(super) silence_max: Duration,
    /// Longest pause before another connection.
    pub(super) pause_max: Duration,
    /// How long what was sent may take to be accepted after the caller said that it is enough.
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

/// How far the end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is none.
    Open,
    /// The caller reads no more; what was sent may be accepted until then.
    Closing(Instant),
    /// Enough.
    Over,
}

/// How a connection ended.
enum Parted {
    /// By a fault or a refusal.
    Cut(Error),
    /// The session is closed.
    Closed,
    /// The caller has enough.
    Enough,
}

pub(super) struct Talk {
    client: Client,
    id: String,
    book: Book,
    jobs: mpsc::UnboundedReceiver<Sent>,
    tell: mpsc::Sender<Told>,
    stop: oneshot::Receiver<()>,
    pace: Pace,
    phase: Phase,
    /// Up to this place all results were told.
    told_seq: u64,
}

impl Talk {
    pub(super) fn new(
        client: &Client,
        id: &str,
        book: Book,
        jobs: mpsc::UnboundedReceiver<Sent>,
        tell: mpsc::Sender<Told>,
        stop: oneshot::Receiver<()>,
        pace: Pace,
    ) -> Self {
        let (client, id, told_seq) = (client.clone(), id.to_owned(), book.after_seq());
        Self { client, id, book, jobs, tell, stop, pace, phase: Phase::Open, told_seq }
    }

    /// Talks until the session is closed, the caller has enough, or it cannot go on; what is not accepted then.
    pub(super) async fn run(mut self) -> Vec<String> {
        let end = match self.keep_connected().await {
            Parted::Enough => None,
            Parted::Cut(error) => Some(Err(error)),
            Parted::Closed => Some(Ok(())),
        };
        self.take_all();
        if let (Some(end), Phase::Open) = (end, self.phase) {
            if end.is_ok() {
                let refused = self.book.closed();
                self.tell(refused).await;
            }
            self.say(Told::End(end)).await;
        }
        self.book.left()
    }

    /// Connects, talks, connects again.
    async fn keep_connected(&mut self) -> Parted {
        // Many clients with the same list do not all go to its first.
        let mut at = rand::random_range(0..self.client.sockets().0.len());
        let mut reconnects = Reconnects::new(self.pace.pause_max);
        loop {
            let opening = open(self.client.clone(), at, self.id.clone(), self.book.after_seq());
            let Some(opened) = self.meanwhile(opening).await else { return Parted::Enough };
            let opened_at = Instant::now();
            let error = match opened {
                Err(error) => error,
                Ok(socket) => match self.converse(socket).await {
                    Parted::Cut(error) => error,
                    parted => return parted,
                },
            };
            if !error.is_retryable() {
                return Parted::Cut(error);
            }
            let pause = reconnects.pause(opened_at.elapsed(), &error);
            self.tell(vec![Happening::Lost { reason: error.to_string(), pause }]).await;
            at = (at + 1) % self.client.sockets().0.len();
            if self.meanwhile(sleep(pause)).await.is_none() {
                return Parted::Enough;
            }
        }
    }

    /// Waits for something; `None` when it is enough before that.
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

    /// One connection.
    async fn converse(&mut self, mut socket: Socket) -> Parted {
        self.book.connected();
        self.tell(vec![Happening::Connected { url: socket.url().to_owned() }]).await;
        let mut heard_at = Instant::now();
        let mut ping_at = heard_at + self.pace.ping_every;
        loop {
            if self.is_over() {
                socket.close(|| None, NORMAL, "done").await;
                return Parted::Enough;
            }
            tokio::select! {
                // Silence counts where there is nothing to be heard.
                biased;
                phase = next_phase(self.phase, &mut self.stop, self.pace) => self.enter(phase),
                Some(sent) = self.jobs.recv() => self.book.add(sent),
                heard = socket.next(|| self.book.next()) => {
                    match heard {
                        Err(error) => return Parted::Cut(error),
                        Ok(Heard::Sign) => {}
                        Ok(Heard::Text(text)) => {
                            if let Err(error) = self.hear(&text, &socket).await {
                                socket.close(|| None, close::PROTOCOL, "no frame").await;
                                return Parted::Cut(error);
                            }
                        }
                        Ok(Heard::Binary) => {
                            let error = strange(&socket, "a binary message; frames are texts".to_owned());
                            socket.close(|| None, close::PROTOCOL, "no frame").await;
                            return Parted::Cut(error);
                        }
                        Ok(Heard::Closed(Some((NORMAL, _)))) => return Parted::Closed,
                        Ok(Heard::Closed(Some((close::PROTOCOL, why)))) => {
                            // It would say the same again.
                            return Parted::Cut(Error::Refused(Box::new(Problem::new(Code::Invalid, why))));
                        }
                        Ok(Heard::Closed(why)) => return Parted::Cut(socket.closed(why)),
                    }
                    // The caller may have taken its time.
                    heard_at = Instant::now();
                }
                () = sleep_until(heard_at + self.pace.silence_max) => {
                    return Parted::Cut(socket.lost("nothing was heard for long"));
                }
                () = sleep_until(ping_at) => {
                    ping_at = Instant::now() + self.pace.ping_every;
                    socket.ping();
                }
            }
        }
    }

    async fn hear(&mut self, text: &Utf8Bytes, socket: &Socket) -> Result<()> {
        // One that is left out could be a result that nobody misses.
        let frame = serde_json::from_str(text).map_err(|error| strange(socket, error.to_string()))?;
        let told = self.book.heard(frame);
        self.tell(told).await;
        Ok(())
    }

    /// Tells the caller, as soon as there is room.
    async fn tell(&mut self, happenings: Vec<Happening>) {
        for happening in happenings {
            if matches!(happening, Happening::Result(_)) {
                self.told_seq = self.book.after_seq();
            }
            self.say(Told::Happening(happening, self.told_seq)).await;
        }
    }

    async fn say(&mut self, told: Told) {
        if self.phase != Phase::Open {
            return;
        }
        tokio::select! {
            biased;
            // Whoever has enough is told nothing more.
            phase = next_phase(self.phase, &mut self.stop, self.pace) => self.enter(phase),
            said = self.tell.send(told) => drop(said),
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        // What was sent before is received still.
        self.jobs.close();
    }

    fn take_all(&mut self) {
        self.jobs.close();
        while let Ok(sent) = self.jobs.try_recv() {
            self.book.add(sent);
        }
    }

    fn is_over(&self) -> bool {
        match self.phase {
            Phase::Open => false,
            Phase::Closing(_) => self.book.is_empty() && self.jobs.is_empty(),
            Phase::Over => true,
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

/// What was heard is none of this protocol: asked again, it would be the same.
fn strange(socket: &Socket, reason: String) -> Error {
    Error::Unexpected { url: socket.url().to_owned(), status: 101, reason }
}
