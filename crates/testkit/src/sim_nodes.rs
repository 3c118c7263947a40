//! Simulated nodes: many worker sockets in this process, whose jobs do nothing. A node answers each dispatch at once
//! with its result, and keeps it until it is settled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::node::attempts::{Attempts, Held};
use crate::node::frames::{self, Attempt, Hello, Messages};
use crate::node::{Message, Socket};

/// Nodes that connect at once.
const CONNECTING_MAX: usize = 32;
/// The longest that a node may wait for its welcome.
const WELCOME_MAX: Duration = Duration::from_secs(30);

/// What the nodes are like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many.
    pub nodes: usize,
    /// Slots of each.
    pub capacity: u32,
    /// Whether each dispatch is acknowledged before its result is said.
    pub acks: bool,
}

/// Hears when what happens to the numbered jobs of simulated nodes. A job's number is the member `n` of its payload.
pub trait Observer: Send + Sync + 'static {
    /// A node has the job.
    fn dispatched(&self, number: usize, at: Instant);
    /// Its node knows that the result is durable.
    fn committed(&self, number: usize, at: Instant);
}

/// The nodes. They leave when it is dropped.
#[derive(Debug)]
pub struct SimNodes {
    nodes: JoinSet<()>,
    lost: Arc<Mutex<Vec<String>>>,
    registrations: Vec<Duration>,
    heartbeats: Arc<AtomicUsize>,
}

impl SimNodes {
    /// Connects all of them, to the instances in turn, and waits until each is welcome.
    ///
    /// # Errors
    /// A node is not welcome.
    pub async fn connect<O: Observer>(urls: &[String], plan: &Plan, observer: &Arc<O>) -> Result<Self> {
        let (lost, heartbeats) = (Arc::<Mutex<Vec<String>>>::default(), Arc::default());
        let mut nodes = JoinSet::new();
        let mut connecting = JoinSet::new();
        let mut registrations = Vec::with_capacity(plan.nodes);
        let mut at = 0;
        while at < plan.nodes || !connecting.is_empty() {
            while at < plan.nodes && connecting.len() < CONNECTING_MAX {
                let url = urls[at % urls.len()].clone();
                connecting.spawn(connect(url, format!("sim-{at}"), plan.capacity));
                at += 1;
            }
            let Some(connected) = connecting.join_next().await else { break };
            let (socket, heartbeat, took) = connected??;
            registrations.push(took);
            let node = Node {
                socket,
                observer: Arc::clone(observer),
                acks: plan.acks,
                attempts: Attempts::default(),
                heartbeats: Arc::clone(&heartbeats),
            };
            let lost = Arc::clone(&lost);
            nodes.spawn(async move {
                let why = node.serve(heartbeat).await;
                lost.lock().push(why);
            });
        }
        Ok(Self { nodes, lost, registrations, heartbeats })
    }

    /// How long each took from its hello to its welcome.
    #[must_use]
    pub fn registrations(&self) -> &[Duration] {
        &self.registrations
    }

    /// Heartbeats sent so far.
    #[must_use]
    pub fn heartbeats(&self) -> usize {
        self.heartbeats.load(Ordering::Relaxed)
    }

    /// Why nodes lost their sockets, of those that did.
    #[must_use]
    pub fn lost(&self) -> Vec<String> {
        self.lost.lock().clone()
    }

    /// How many are connected.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.nodes.len() - self.lost().len()
    }
}

/// A node that does what a test asks for, and nothing by itself.
#[derive(Debug)]
pub struct Puppet(Socket);

impl Puppet {
    /// Connects to the instance.
    ///
    /// # Errors
    /// It is not welcome.
    pub async fn connect(url: &str, name: &str) -> Result<Self> {
        Ok(Self(connect(url.to_owned(), name.to_owned(), 1).await?.0))
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The socket is closed.
    pub async fn send(&mut self, frame: &str) -> Result<()> {
        Ok(self.0.send(Message::text(frame)).await?)
    }
}

async fn connect(url: String, name: String, capacity: u32) -> Result<(Socket, Duration, Duration)> {
    let mut socket = Socket::connect(&url).await?;
    let hello = Hello { node_id: name, capacity: capacity as usize, batch: true, labels: Vec::new() };
    let mut messages = Messages::new(true);
    messages.hello(&hello, std::iter::empty());
    let sent = Instant::now();
    socket.send_all(messages).await?;
    let answer = tokio::time::timeout(WELCOME_MAX, socket.next()).await.context("no welcome in time")?;
    let answer = answer.context("the socket was closed before the welcome")??;
    let took = sent.elapsed();
    let received = frames::read(answer.to_text()?)?;
    let welcome = received.iter().find(|frame| frame.kind == "welcome");
    let heartbeat_ms = welcome.and_then(|welcome| welcome.heartbeat_ms);
    let heartbeat_ms = heartbeat_ms.with_context(|| format!("no welcome for {}: {answer}", hello.node_id))?;
    ensure!(heartbeat_ms > 0, "a heartbeat of 0 ms");
    Ok((socket, Duration::from_millis(heartbeat_ms), took))
}

struct Node<O> {
    socket: Socket,
    observer: Arc<O>,
    acks: bool,
    /// Nothing runs for any time: of each result that is owed, the number of its job.
    attempts: Attempts<(), usize>,
    heartbeats: Arc<AtomicUsize>,
}

#[derive(Deserialize)]
struct Payload {
    n: usize,
}

impl<O: Observer> Node<O> {
    /// Works until the socket is closed; why it was.
    async fn serve(mut self, heartbeat: Duration) -> String {
        // Not all at once.
        let first = tokio::time::Instant::now() + heartbeat.mul_f64(rand::random());
        let mut beat = tokio::time::interval_at(first, heartbeat);
        loop {
            let answer = tokio::select! {
                message = self.socket.next() => match message {
                    Some(Ok(Message::Text(text))) => match self.received(&text) {
                        Ok(answer) => answer,
                        Err(error) => return format!("{error:#}: {text}"),
                    },
                    Some(Ok(Message::Close(why))) => return format!("closed: {why:?}"),
                    Some(Ok(_)) => continue,
                    Some(Err(error)) => return error.to_string(),
                    None => return "the socket ended".to_owned(),
                },
                _ = beat.tick() => {
                    self.heartbeats.fetch_add(1, Ordering::Relaxed);
                    let mut messages = Messages::new(true);
                    messages.heartbeat(self.attempts.listed());
                    messages
                }
            };
            if let Err(error) = self.socket.send_all(answer).await {
                return error.to_string();
            }
        }
    }

    fn received(&mut self, text: &str) -> Result<Messages> {
        let now = Instant::now();
        let mut answer = Messages::new(true);
        for frame in frames::read(text)? {
            match frame.kind {
                "dispatch" => {
                    let attempt = frame.attempt()?;
                    let payload = frame.payload.context("a payload")?.get();
                    let Payload { n } = serde_json::from_str(payload).context("a payload with a number")?;
                    self.observer.dispatched(n, now);
                    self.run(attempt, n, &mut answer);
                }
                "committed" => {
                    if let Some(Held::Owed(number)) = self.attempts.settle(frame.attempt()?) {
                        self.observer.committed(number, now);
                    }
                }
                "stale" => {
                    self.attempts.settle(frame.attempt()?);
                }
                // A `cancel` finds nothing that runs; a heartbeat's answer, and what later versions say, needs none.
                _ => {}
            }
        }
        Ok(answer)
    }

    fn run(&mut self, attempt: Attempt, number: usize, answer: &mut Messages) {
        self.attempts.end(attempt, number);
        if self.acks {
            answer.ack(attempt);
        }
        answer.output(attempt, "null");
    }
}
