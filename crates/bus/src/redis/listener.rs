//! The connection that hears: subscribed to every channel, made again when it is lost, by one task.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use parking_lot::Mutex;
use rand::seq::SliceRandom;
use redis::aio::PubSub;
use redis::{Client, ConnectionInfo, Msg};
use tokio::sync::watch;

use super::Shared;
use super::failure::{self, Effect};
use super::first_words;
use super::pause::Pause;
use super::seal::{Origin, Place, Replays};
use crate::limits::{CONNECT_MS, RECONNECT_SETTLED_MS};
use crate::link::Part;
use crate::{Channel, Event, Result};

/// What the task tells to who probes, and the other way round.
pub(super) struct Listener {
    born: Instant,
    /// Counts the connections.
    generation: AtomicU64,
    /// The newest echo that was heard: when it was sent, in microseconds of [`Self::clock`].
    heard: AtomicU64,
    /// Connections up to this one are to be given up.
    condemned: watch::Sender<u64>,
    /// The notices that were heard.
    heard_notices: Mutex<Replays>,
}

impl Default for Listener {
    fn default() -> Self {
        let counter = || AtomicU64::new(0);
        Self {
            born: Instant::now(),
            generation: counter(),
            heard: counter(),
            condemned: watch::Sender::new(0),
            heard_notices: Mutex::default(),
        }
    }
}

impl Listener {
    /// Time since this handle was made, which is what an echo says.
    pub(super) fn clock(&self) -> Duration {
        Duration::from_micros(self.born.elapsed().as_micros() as u64)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// When the newest echo that was heard had been sent.
    pub(super) fn heard(&self) -> Duration {
        Duration::from_micros(self.heard.load(Ordering::Acquire))
    }

    /// Has a connection given up, unless it is already.
    pub(super) fn condemn(&self, generation: u64) {
        self.condemned.send_replace(generation);
    }

    /// Notes a notice; whether it was not heard before.
    fn is_new(&self, notice: Origin) -> bool {
        self.heard_notices.lock().is_new(notice)
    }

    /// What was not sent yet is nobody's echo, and would hide that echoes are missing.
    fn hear_echo(&self, payload: &[u8]) {
        let sent = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
        let Some(sent) = sent else { return };
        let Some(lag) = self.clock().checked_sub(Duration::from_micros(sent)) else { return };
        self.heard.fetch_max(sent, Ordering::AcqRel);
        metrics::histogram!("fencepost_pubsub_lag_seconds").record(lag);
    }
}

/// Connects to any server and subscribes. On a Cluster every server of it hears everything.
pub(super) async fn connect(shared: &Shared) -> Result<PubSub> {
    let mut servers = shared.commands.heard_servers(shared);
    servers.shuffle(&mut rand::rng());
    let mut last = failure::not_connected();
    for server in servers {
        let subscribed = subscribe(shared, server.clone());
        match tokio::time::timeout(Duration::from_millis(CONNECT_MS), subscribed).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => last = first_words::explained(&server, failure::of(error, Effect::Reads)).await,
            Err(_) => last = failure::timed_out(Effect::Reads),
        }
    }
    Err(last)
}

async fn subscribe(shared: &Shared, server: ConnectionInfo) -> redis::RedisResult<PubSub> {
    let mut connection = Client::open(server)?.get_async_pubsub().await?;
    let mut channels: Vec<String> = Channel::ALL.map(|channel| shared.names.channel(channel)).into();
    channels.push(shared.echo.clone());
    connection.subscribe(channels).await?;
    Ok(connection)
}

/// Keeps the connection that hears, beginning with the first one, which is gone after a panic. For ever.
pub(super) async fn keep(shared: Arc<Shared>, first: Option<PubSub>) {
    let mut pause = Pause::default();
    let mut connection = first;
    if connection.is_none() {
        shared.link.doubt();
    }
    loop {
        let made = match connection.take() {
            Some(first) => first,
            None => match connect(&shared).await {
                Ok(again) => {
                    // The subscription comes before the event: a subscriber that loads anew now misses nothing.
                    shared.channels.tell_all(&Event::Resumed);
                    tracing::debug!("listening to Redis again");
                    again
                }
                Err(error) => {
                    tracing::debug!(%error, "the listener has no connection to Redis");
                    pause.wait().await;
                    continue;
                }
            },
        };
        let began = Instant::now();
        let generation = shared.listener.generation.fetch_add(1, Ordering::AcqRel) + 1;
        shared.link.up(Part::Listener);
        hear(&shared, made, generation).await;
        // What took this connection may have taken the other.
        shared.link.doubt();
        tracing::debug!("the listener's connection to Redis is lost");
        shared.commands.suspect();
        if began.elapsed() >= Duration::from_millis(RECONNECT_SETTLED_MS) {
            pause = Pause::default();
        }
        pause.wait().await;
    }
}

/// Hands on what is heard, until the connection ends or is given up.
async fn hear(shared: &Shared, connection: PubSub, generation: u64) {
    let names = Channel::ALL.map(|channel| (shared.names.channel(channel), channel));
    let mut condemned = shared.listener.condemned.subscribe();
    let mut messages = connection.into_on_message();
    loop {
        let message = tokio::select! {
            biased;
            _ = condemned.wait_for(|condemned| *condemned >= generation) => return,
            message = messages.next() => message,
        };
        let Some(message) = message else { return };
        let name = message.get_channel_name();
        if name == shared.echo {
            shared.listener.hear_echo(message.get_payload_bytes());
        } else if let Some((_, channel)) = names.iter().find(|(known, _)| known == name)
            && let Some(event) = event(shared, *channel, &message)
        {
            shared.channels.tell(*channel, event);
        }
    }
}

/// `None` for what no instance of this cluster published, and for a copy.
fn event(shared: &Shared, channel: Channel, message: &Msg) -> Option<Event> {
    let sealed = message.get_payload_bytes();
    let Some((origin, payload)) = shared.sealer.open(Place::Channel(channel), sealed) else {
        shared.rejected("notice", "seal");
        return None;
    };
    if !shared.listener.is_new(origin) {
        shared.rejected("notice", "replay");
        return None;
    }
    Some(Event::Message(Arc::from(payload)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_of_a_time_to_come_is_none() {
        let listener = Listener::default();
        listener.hear_echo(u64::MAX.to_string().as_bytes());
        assert_eq!(listener.heard(), Duration::ZERO);
        let sent = listener.clock();
        listener.hear_echo(sent.as_micros().to_string().as_bytes());
        assert_eq!(listener.heard(), sent);
    }
}
