//! Channels, and what a subscriber gets from them.

use std::sync::Arc;

use tokio::sync::{broadcast, watch};

use crate::Result;
use crate::limits::{NOTICE_BYTES_MAX, SUBSCRIPTION_NOTICES_MAX, check_bytes};

/// The channels of notices to every instance. Only messages that may be lost go here, never a job or a
/// result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Something of the cluster changed and is to be looked up: its mode, its members.
    Cluster,
    /// Records of nodes changed and are to be looked up: batches of a node and its version.
    Nodes,
    /// Something happened to jobs: attempts were acknowledged or ended.
    Jobs,
    /// Announcements of listeners, and events for them.
    Watches,
    /// Announcements of callers that count the events of jobs, and numbers for them.
    Tallies,
    /// Instances say that they are here: each its id.
    Instances,
}

impl Channel {
    /// Every channel. Each bus listens to all of them, from its opening to its closing.
    pub const ALL: [Self; 6] =
        [Self::Cluster, Self::Nodes, Self::Jobs, Self::Watches, Self::Tallies, Self::Instances];

    /// The name, as it stands in Redis and in logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Nodes => "nodes",
            Self::Jobs => "jobs",
            Self::Watches => "watches",
            Self::Tallies => "tallies",
            Self::Instances => "instances",
        }
    }
}

/// What happened on a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An instance published this, perhaps this very one.
    Message(Arc<[u8]>),
    /// The connection was lost and made again, and the channel is subscribed to: from here on nothing is
    /// missed, and anything may have been missed before. Load the data again that the messages are about.
    Resumed,
    /// This subscriber was too slow: some were lost, perhaps a `Resumed`
    /// among them. Load again here too.
    Lagged {
        /// How many events.
        missed: u64,
    },
}

/// One subscriber's view of a channel, from the moment of [`crate::Bus::subscribe`] on.
#[derive(Debug)]
pub struct Subscription {
    events: broadcast::Receiver<Event>,
    closed: watch::Receiver<bool>,
}

impl Subscription {
    /// The next event; `None` when the bus was closed. Nothing is lost when the wait is given up.
    pub async fn next(&mut self) -> Option<Event> {
        tokio::select! {
            biased;
            _ = self.closed.wait_for(|closed| *closed) => None,
            event = self.events.recv() => match event {
                Ok(event) => Some(event),
                Err(broadcast::error::RecvError::Lagged(missed)) => Some(Event::Lagged { missed }),
                Err(broadcast::error::RecvError::Closed) => None,
            },
        }
    }
}

/// All channels of one process, which pass on what arrives. A publisher never waits for a subscriber.
#[derive(Debug)]
pub(crate) struct Channels([broadcast::Sender<Event>; Channel::ALL.len()]);

impl Channels {
    pub(crate) fn new() -> Self {
        Self(Channel::ALL.map(|_| broadcast::channel(SUBSCRIPTION_NOTICES_MAX).0))
    }

    pub(crate) fn subscribe(&self, channel: Channel, closed: &watch::Sender<bool>) -> Subscription {
        Subscription { events: self.0[channel as usize].subscribe(), closed: closed.subscribe() }
    }

    /// Hands an event to all who subscribed; there may be none.
    pub(crate) fn tell(&self, channel: Channel, event: Event) {
        let _ = self.0[channel as usize].send(event);
    }

    /// Hands an event to the subscribers of all channels.
    pub(crate) fn tell_all(&self, event: &Event) {
        for channel in Channel::ALL {
            self.tell(channel, event.clone());
        }
    }
}

/// Refuses what no subscriber would be handed.
pub(crate) fn check_payload(payload: &[u8]) -> Result<()> {
    check_bytes("a notice", payload.len(), NOTICE_BYTES_MAX)
}
