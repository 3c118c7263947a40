//! A node in this process: one task, which takes orders to die, to stand still, or to lose its socket. It does not look at
//! its own capacity: it takes whatever it is given.

mod life;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Diary, Line as DiaryLine, Wrote, is_ours_to_bear, labels_of, name_of};
use crate::credentials::Credentials;
use crate::node::frames::{self, Hello, Messages};
use crate::node::{Message, Socket};
use life::Life;

/// How long an attempt to connect may take, and how long a `welcome` is waited for.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
const WELCOME_LIMIT: Duration = Duration::from_secs(8);
/// A write that takes longer ends the connection.
const WRITE_LIMIT: Duration = Duration::from_secs(3);
const HEARTBEAT: Duration = Duration::from_secs(2);
/// A node that hears nothing for so long connects anew.
const SILENCE_MAX: Duration = Duration::from_secs(6);
/// The first bytes of a text frame that is masked and longer than what follows.
const HALF_A_FRAME: &[u8] = &[0x81, 0xFE, 0x01, 0x2C, 1, 2, 3, 4, 5, 6, 7, 8, 9];

/// What is done to a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    Die(Duration),
    StandStill(Duration),
    EndWithinFrame,
    ConnectAgain,
}

/// A node in a task of its own, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct PlainNode {
    orders: mpsc::UnboundedSender<Order>,
    diary: Arc<Mutex<Diary>>,
    task: JoinHandle<()>,
}

impl PlainNode {
    pub(super) fn start(
        number: usize,
        label: Option<&'static str>,
        urls: &[String],
        credentials: &Credentials,
        seed: u64,
    ) -> Self {
        let mut dice = StdRng::seed_from_u64(seed ^ (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (orders, ordered) = mpsc::unbounded_channel();
        let capacity = dice.random_range(1..=4);
        let node = name_of(label, 'p', number);
        let diary = Arc::new(Mutex::new(Diary { node: node.clone(), capacity, ..Diary::default() }));
        let task = Task {
            hello: Hello {
                node_id: node.clone(),
                capacity,
                batch: number.is_multiple_of(2),
                labels: labels_of(label, number),
            },
            urls: urls.to_vec(),
            credentials: credentials.clone(),
            life: Life::new(node, Arc::clone(&diary), StdRng::from_rng(&mut dice)),
            dice,
            diary: Arc::clone(&diary),
            line: None,
            old: None,
            connecting: None,
            pause_until: Instant::now(),
            postponed: VecDeque::new(),
        };
        Self { orders, diary, task: tokio::spawn(task.run(ordered)) }
    }

    pub(super) fn order(&self, order: Order) -> Result<()> {
        self.orders.send(order).ok().context("the node has ended")
    }

    pub(super) fn diary(&self) -> Diary {
        self.diary.lock().clone()
    }

    /// Its name, unless it stands still.
    pub(super) fn name_if_awake(&self) -> Option<String> {
        let diary = self.diary.lock();
        (!diary.ends_standing_still()).then(|| diary.node.clone())
    }

    /// The lines about a job, each with the node's name.
    pub(super) fn lines_of(&self, job: &str) -> Vec<(String, DiaryLine)> {
        let diary = self.diary.lock();
        let of = diary.lines.iter().filter(|line| line.wrote.is_of(job));
        of.map(|line| (diary.node.clone(), line.clone())).collect()
    }
}

impl Drop for PlainNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Line {
    socket: Socket,
    since: Instant,
    heard: Instant,
    beat_at: Instant,
    is_welcome: bool,
}

struct Task {
    hello: Hello,
    urls: Vec<String>,
    credentials: Credentials,
    life: Life,
    dice: StdRng,
    diary: Arc<Mutex<Diary>>,
    line: Option<Line>,
    /// A connection that was left open when another was made. What comes from it is not looked at.
    old: Option<Socket>,
    connecting: Option<BoxFuture<'static, Result<Socket>>>,
    pause_until: Instant,
    /// Orders about a connection that came while there was none: each is for one that is welcomed later.
    postponed: VecDeque<Order>,
}

/// What a task wakes up for.
enum Woken {
    Ordered(Order),
    Connected(Result<Box<Socket>>),
    Heard(Option<Message>),
    HeardOld(Option<Message>),
    Time,
}

impl Task {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        loop {
            if self.line.is_none() && self.connecting.is_none() && Instant::now() >= self.pause_until {
                self.connecting = Some(connect(self.any_url(), self.credentials.clone()));
            }
            let line_at = match &self.line {
                Some(line) => Some(line.beat_at),
                None => self.connecting.is_none().then_some(self.pause_until),
            };
            let at = [line_at, self.life.next_end()].into_iter().flatten().min();
            let woken = tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => Woken::Ordered(order),
                    None => return,
                },
                connected = either(self.connecting.as_mut()) => {
                    Woken::Connected(connected.map(Box::new))
                }
                heard = next(self.line.as_mut().map(|line| &mut line.socket)) => Woken::Heard(heard),
                heard = next(self.old.as_mut()) => Woken::HeardOld(heard),
                () = sleep_until(at.unwrap_or_else(Instant::now)), if at.is_some() => Woken::Time,
            };
            match woken {
                Woken::Ordered(order) => self.obey(order).await,
                Woken::Connected(connected) => self.connected(connected.map(|socket| *socket)).await,
                Woken::Heard(message) => self.heard(message).await,
                Woken::HeardOld(Some(Message::Close(frame))) => {
                    self.note_close(frame.map_or(0, |frame| frame.code.into()));
                }
                Woken::HeardOld(Some(_)) => {}
                Woken::HeardOld(None) => self.old = None,
                Woken::Time => {}
            }
            let mut results = self.messages();
            self.life.end_due(&mut results);
            self.say(results).await;
            self.beat().await;
        }
    }

    fn any_url(&mut self) -> String {
        self.urls[self.dice.random_range(0..self.urls.len())].clone()
    }

    async fn obey(&mut self, order: Order) {
        match order {
            Order::Die(down) => {
                (self.line, self.old, self.connecting) = (None, None, None);
                self.life.die();
                self.pause_until = Instant::now() + down;
            }
            Order::StandStill(length) => {
                self.life.write(Wrote::Stopped);
                sleep(length).await;
                self.life.write(Wrote::Woke);
            }
            Order::EndWithinFrame | Order::ConnectAgain if self.line.is_none() => {
                self.postponed.push_back(order);
            }
            Order::EndWithinFrame => {
                if let Some(mut line) = self.part() {
                    // A peer that is gone already needs no half frame.
                    let stream = line.socket.stream_mut();
                    let writing = async {
                        stream.write_all(HALF_A_FRAME).await?;
                        stream.flush().await
                    };
                    let _ = timeout(WRITE_LIMIT, writing).await;
                }
            }
            Order::ConnectAgain => {
                if let Some(line) = self.part() {
                    self.old = Some(line.socket);
                    self.pause_until = Instant::now();
                }
            }
        }
    }

    async fn connected(&mut self, connected: Result<Socket>) {
        self.connecting = None;
        let Ok(socket) = connected else { return self.pause() };
        let now = Instant::now();
        let beat_at = now + HEARTBEAT;
        self.line = Some(Line { socket, since: now, heard: now, beat_at, is_welcome: false });
        let mut hello = self.messages();
        hello.hello(&self.hello, self.life.listed());
        self.send(hello).await;
    }

    fn pause(&mut self) {
        self.pause_until = Instant::now() + Duration::from_millis(self.dice.random_range(20..400));
    }

    fn hang_up(&mut self) {
        self.part();
        self.pause();
    }

    /// The connection is not used any more.
    fn part(&mut self) -> Option<Line> {
        let line = self.line.take()?;
        self.life.write(Wrote::Parted);
        Some(line)
    }

    async fn heard(&mut self, message: Option<Message>) {
        let text = match message {
            Some(Message::Text(text)) => text,
            Some(Message::Close(frame)) => {
                if let Some(frame) = frame {
                    let code = u16::from(frame.code);
                    self.note_close(code);
                    if code == 4400 && !is_ours_to_bear(&frame.reason) || code == 4409 {
                        // It has no newer connection than this.
                        self.blame(format!("{code}: {}", frame.reason));
                    }
                }
                return;
            }
            Some(_) => return,
            None => return self.hang_up(),
        };
        let Some(line) = &mut self.line else { return };
        line.heard = Instant::now();
        let mut answer = self.messages();
        let mut is_welcomed = false;
        let frames = match frames::read(&text) {
            Ok(frames) => frames,
            Err(error) => return self.blame(format!("{error:#}: {text}")),
        };
        for frame in frames {
            match frame.kind {
                "welcome" => {
                    if let Some(line) = &mut self.line {
                        line.is_welcome = true;
                    }
                    is_welcomed = true;
                    self.life.write(Wrote::Joined);
                    self.life.say_owed(&mut answer);
                }
                "heartbeat_ok" => {}
                "problem" => {
                    let detail = frame.detail.unwrap_or_default();
                    if !is_ours_to_bear(&detail) {
                        self.blame(detail.into_owned());
                    }
                }
                _ => {
                    if let Err(error) = self.life.received(&frame, &mut answer) {
                        return self.blame(format!("{error:#}: {text}"));
                    }
                }
            }
        }
        self.say(answer).await;
        if is_welcomed && let Some(order) = self.postponed.pop_front() {
            self.obey(order).await;
        }
    }

    fn messages(&self) -> Messages {
        Messages::new(self.hello.batch)
    }

    /// Sends frames, if there is anybody to hear them. What is owed is said after the welcome.
    async fn say(&mut self, messages: Messages) {
        if self.line.as_ref().is_some_and(|line| line.is_welcome) && !messages.is_empty() {
            self.send(messages).await;
        }
    }

    async fn send(&mut self, messages: Messages) {
        let Some(line) = &mut self.line else { return };
        if !matches!(timeout(WRITE_LIMIT, line.socket.send_all(messages)).await, Ok(Ok(()))) {
            self.hang_up();
        }
    }

    /// A heartbeat, if it is time; and the end of a connection of which nothing is heard.
    async fn beat(&mut self) {
        let Some(line) = &mut self.line else { return };
        let now = Instant::now();
        if now < line.beat_at {
            return;
        }
        line.beat_at = now + HEARTBEAT;
        let is_lost = if line.is_welcome {
            now.duration_since(line.heard) >= SILENCE_MAX
        } else {
            now.duration_since(line.since) >= WELCOME_LIMIT
        };
        if is_lost {
            return self.hang_up();
        }
        let mut heartbeat = self.messages();
        heartbeat.heartbeat(self.life.listed());
        self.say(heartbeat).await;
    }

    fn note_close(&self, code: u16) {
        let mut diary = self.diary.lock();
        *diary.closes.entry(code).or_default() += 1;
    }

    fn blame(&self, what: String) {
        self.diary.lock().blames.push(what);
    }
}

fn connect(url: String, credentials: Credentials) -> BoxFuture<'static, Result<Socket>> {
    async move {
        match timeout(CONNECT_LIMIT, Socket::connect_by(&url, &credentials)).await {
            Ok(connected) => connected,
            Err(_) => bail!("not within {CONNECT_LIMIT:?}"),
        }
    }
    .boxed()
}

async fn either<T>(future: Option<&mut BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// The next message; `None` when there will be none.
async fn next(socket: Option<&mut Socket>) -> Option<Message> {
    match socket {
        Some(socket) => socket.next().await.and_then(std::result::Result::ok),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
    use tokio::net::TcpListener;
    use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

    use super::*;
    use crate::PATIENCE;
    use crate::node::SUBPROTOCOL;

    #[tokio::test]
    async fn a_connection_that_is_ordered_to_end_while_there_is_none_ends_once_it_is_welcomed() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let node = PlainNode::start(0, None, &[url], &Credentials::default(), 7);
        let (stream, _) = listener.accept().await.unwrap();
        // Its request is not answered yet.
        node.order(Order::EndWithinFrame).unwrap();
        tokio::task::yield_now().await;
        let mut stream = BufReader::new(stream);
        let (mut line, mut key) = (String::new(), String::new());
        while line != "\r\n" {
            line.clear();
            assert!(stream.read_line(&mut line).await.unwrap() > 0, "it hung up");
            if let Some((name, value)) = line.split_once(": ")
                && name.eq_ignore_ascii_case("sec-websocket-key")
            {
                key = value.trim().to_owned();
            }
        }
        let (accept, welcome) = (derive_accept_key(key.as_bytes()), r#"{"type":"welcome"}"#);
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
        );
        let frame = [&[0x81, welcome.len() as u8][..], welcome.as_bytes()].concat();
        stream.get_mut().write_all(&[answer.as_bytes(), frame.as_slice()].concat()).await.unwrap();
        let mut heard = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut heard)).await.unwrap().unwrap();
        assert!(heard.ends_with(HALF_A_FRAME), "{heard:?}");
    }
}
