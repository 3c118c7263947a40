//! Simulated nodes: many worker sockets in this process, whose jobs do nothing. A node answers each dispatch at once
//! with its result, and keeps it until it is `committed`.

mod frames;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use crate::moments::{Moments, Step};
use frames::{Heard, Said};

/// Nodes that connect at once.
const JOINING_MAX: usize = 32;
/// The longest that a node may wait for its welcome.
const WELCOME_MAX: Duration = Duration::from_secs(30);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// What the nodes are like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many.
    pub nodes: usize,
    /// Slots of each.
    pub capacity: u32,
    /// Whether each dispatch is acknowledged before its result is said.
    pub acks: bool,
    /// What stands before a node's number.
    pub prefix: String,
}

/// The nodes. They leave when it is dropped.
#[derive(Debug)]
pub struct Crew {
    nodes: JoinSet<()>,
    lost: Arc<Mutex<Vec<String>>>,
    registrations: Vec<Duration>,
    beats: Arc<AtomicUsize>,
}

impl Crew {
    /// Connects all of them, to the instances in turn, and waits until each is welcome.
    ///
    /// # Errors
    /// A node is not welcome.
    pub async fn muster(urls: &[String], plan: &Plan, moments: &Arc<Moments>) -> Result<Self> {
        let (lost, beats) = (Arc::<Mutex<Vec<String>>>::default(), Arc::default());
        let mut nodes = JoinSet::new();
        let mut joining = JoinSet::new();
        let mut registrations = Vec::with_capacity(plan.nodes);
        let mut at = 0;
        while at < plan.nodes || !joining.is_empty() {
            while at < plan.nodes && joining.len() < JOINING_MAX {
                let url = urls[at % urls.len()].clone();
                joining.spawn(join(url, format!("{}{at}", plan.prefix), plan.capacity));
                at += 1;
            }
            let Some(joined) = joining.join_next().await else { break };
            let (socket, heartbeat, took) = joined??;
            registrations.push(took);
            let node = Node {
                socket,
                moments: Arc::clone(moments),
                acks: plan.acks,
                held: HashMap::new(),
                beats: Arc::clone(&beats),
            };
            let lost = Arc::clone(&lost);
            nodes.spawn(async move {
                let why = node.serve(heartbeat).await;
                lost.lock().expect("no holder of this lock panics").push(why);
            });
        }
        Ok(Self { nodes, lost, registrations, beats })
    }

    /// How long each took from its hello to its welcome.
    #[must_use]
    pub fn registrations(&self) -> &[Duration] {
        &self.registrations
    }

    /// Heartbeats sent so far.
    #[must_use]
    pub fn beats(&self) -> usize {
        self.beats.load(Ordering::Relaxed)
    }

    /// Why nodes lost their sockets, of those that did.
    #[must_use]
    pub fn lost(&self) -> Vec<String> {
        self.lost.lock().expect("no holder of this lock panics").clone()
    }

    /// How many are connected.
    #[must_use]
    pub fn present(&self) -> usize {
        self.nodes.len() - self.lost().len()
    }
}

/// A node that does what it is told and nothing by itself.
#[derive(Debug)]
pub struct Puppet(Socket);

impl Puppet {
    /// Connects to the instance.
    ///
    /// # Errors
    /// It is not welcome.
    pub async fn join(url: &str, name: &str) -> Result<Self> {
        Ok(Self(join(url.to_owned(), name.to_owned(), 1).await?.0))
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The socket is closed.
    pub async fn say(&mut self, frame: &str) -> Result<()> {
        Ok(self.0.send(Message::text(frame)).await?)
    }
}

async fn join(url: String, name: String, capacity: u32) -> Result<(Socket, Duration, Duration)> {
    let url = format!("{}/v1/nodes/ws", url.replacen("http://", "ws://", 1));
    let mut request = url.into_client_request()?;
    request.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static("fencepost.v1"));
    let (mut socket, _) = connect_async_with_config(request, None, true).await?;
    let hello = format!(
        "{{\"type\":\"hello\",\"node_id\":\"{name}\",\"capacity\":{capacity},\"batch\":true,\"running\":[]}}"
    );
    let sent = Instant::now();
    socket.send(Message::text(hello)).await?;
    let answer = tokio::time::timeout(WELCOME_MAX, socket.next()).await.context("no welcome in time")?;
    let answer = answer.context("the socket was closed before the welcome")??;
    let took = sent.elapsed();
    let heard = frames::read(answer.to_text()?)?;
    let heartbeat_ms = heard.iter().find(|frame| frame.kind == "welcome").and_then(|it| it.heartbeat_ms);
    let heartbeat_ms = heartbeat_ms.with_context(|| format!("no welcome for {name}: {answer}"))?;
    ensure!(heartbeat_ms > 0, "a heartbeat of 0 ms");
    Ok((socket, Duration::from_millis(heartbeat_ms), took))
}

struct Node {
    socket: Socket,
    moments: Arc<Moments>,
    acks: bool,
    /// Attempts whose results are not committed, and the numbers of their jobs.
    held: HashMap<u128, (u32, usize)>,
    beats: Arc<AtomicUsize>,
}

impl Node {
    /// Works until the socket is closed; why it was.
    async fn serve(mut self, heartbeat: Duration) -> String {
        // Not all at once.
        let first = tokio::time::Instant::now() + heartbeat.mul_f64(rand::random());
        let mut beat = tokio::time::interval_at(first, heartbeat);
        loop {
            let sent = tokio::select! {
                message = self.socket.next() => match message {
                    Some(Ok(Message::Text(text))) => match self.hear(&text) {
                        Ok(said) => self.say(said).await,
                        Err(error) => return format!("{error:#}: {text}"),
                    },
                    Some(Ok(Message::Close(why))) => return format!("closed: {why:?}"),
                    Some(Ok(_)) => Ok(()),
                    Some(Err(error)) => return error.to_string(),
                    None => return "the socket ended".to_owned(),
                },
                _ = beat.tick() => {
                    self.beats.fetch_add(1, Ordering::Relaxed);
                    let mut said = Said::default();
                    said.heartbeat(self.held.iter().map(|(job, (attempt, _))| (*job, *attempt)));
                    self.say(said).await
                }
            };
            if let Err(error) = sent {
                return error.to_string();
            }
        }
    }

    fn hear(&mut self, text: &str) -> Result<Said> {
        let now = Instant::now();
        let mut said = Said::default();
        for frame in frames::read(text)? {
            let Heard { kind, .. } = frame;
            match kind {
                "dispatch" => {
                    let (job, attempt, number) = frame.dispatch()?;
                    self.moments.at(Step::There, number, now);
                    self.held.insert(job, (attempt, number));
                    if self.acks {
                        said.ack(job, attempt);
                    }
                    said.result(job, attempt);
                }
                "committed" => {
                    let (job, attempt) = frame.attempt()?;
                    if self.held.get(&job).is_some_and(|(held, _)| *held == attempt)
                        && let Some((_, number)) = self.held.remove(&job)
                    {
                        self.moments.at(Step::Recorded, number, now);
                    }
                }
                "stale" | "cancel" => {
                    self.held.remove(&frame.attempt()?.0);
                }
                // A heartbeat's answer, and what later versions say.
                _ => {}
            }
        }
        Ok(said)
    }

    async fn say(&mut self, said: Said) -> Result<()> {
        for message in said.messages() {
            self.socket.send(Message::text(message)).await?;
        }
        Ok(())
    }
}
