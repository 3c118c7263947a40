//! The bus within one process: tables and channels in memory, shared by all who join one [`Hub`].

mod inbox;
mod node;
mod nodes;
mod sessions;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::InstanceId;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::channel::{Channels, check_payload};
use crate::link::{Gauge, Part};
use crate::presence::check_ttl;
use crate::{Bus, Channel, Error, Event, Handle, Health, Kind, Link, Presence, Result, Subscription};

/// What the instances of one process share. [`crate::open`] makes one of its own for each handle; several
/// handles of one hub are to each other what instances on one Redis are.
#[derive(Clone)]
pub struct Hub(Arc<Shared>);

struct Shared {
    identity: String,
    /// Each with the end of its time. Those that ended go at the next announcement.
    presences: Mutex<HashMap<InstanceId, (Presence, Instant)>>,
    inboxes: Mutex<inbox::All>,
    nodes: Mutex<nodes::All>,
    sessions: Mutex<sessions::All>,
    channels: Channels,
}

impl Default for Hub {
    fn default() -> Self {
        Self(Arc::new(Shared {
            identity: format!("{}:{:016x}", Kind::Local.as_str(), rand::random::<u64>()),
            presences: Mutex::default(),
            inboxes: Mutex::default(),
            nodes: Mutex::default(),
            sessions: Mutex::default(),
            channels: Channels::new(),
        }))
    }
}

impl Hub {
    /// One more instance on it.
    #[must_use]
    pub fn join(&self) -> Handle {
        let link = Gauge::new();
        link.up(Part::Commands);
        link.up(Part::Listener);
        Arc::new(Local { hub: self.0.clone(), link, closed: watch::Sender::new(false) })
    }
}

struct Local {
    hub: Arc<Shared>,
    link: Gauge,
    closed: watch::Sender<bool>,
}

impl Local {
    fn open(&self) -> Result<&Shared> {
        if *self.closed.borrow() { Err(Error::Closed) } else { Ok(&self.hub) }
    }
}

#[async_trait::async_trait]
impl Bus for Local {
    fn kind(&self) -> Kind {
        Kind::Local
    }

    async fn identity(&self) -> Result<String> {
        Ok(self.open()?.identity.clone())
    }

    async fn announce(&self, presence: &Presence, ttl: Duration) -> Result<()> {
        let ttl = Duration::from_millis(check_ttl(ttl)?);
        // What Redis would refuse is refused here too.
        presence.to_json()?;
        let mut presences = self.open()?.presences.lock();
        let now = Instant::now();
        presences.retain(|_, (_, end)| *end > now);
        presences.insert(presence.instance.clone(), (presence.clone(), now + ttl));
        Ok(())
    }

    async fn withdraw(&self, instance: &InstanceId) -> Result<()> {
        self.open()?.presences.lock().remove(instance);
        Ok(())
    }

    async fn present(&self, instances: &[InstanceId]) -> Result<HashMap<InstanceId, Presence>> {
        let presences = self.open()?.presences.lock();
        let now = Instant::now();
        let shown = instances.iter().filter_map(|id| presences.get(id)).filter(|(_, end)| *end > now);
        Ok(shown.map(|(presence, _)| (presence.instance.clone(), presence.clone())).collect())
    }

    async fn publish(&self, channel: Channel, payload: &[u8]) -> Result<()> {
        check_payload(payload)?;
        self.open()?.channels.tell(channel, Event::Message(Arc::from(payload)));
        Ok(())
    }

    fn subscribe(&self, channel: Channel) -> Subscription {
        self.hub.channels.subscribe(channel, &self.closed)
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.watch()
    }

    fn answers(&self) -> watch::Receiver<bool> {
        self.link.watch_commands()
    }

    async fn check(&self) -> Result<Health> {
        self.open()?;
        Ok(Health { round_trip: Duration::ZERO, warnings: vec![] })
    }

    async fn close(&self) {
        self.closed.send_replace(true);
        self.link.close();
    }
}
