//! The bus: messages and soft state that the instances of Fencepost share.
//!
//! What lives here: presence (who is there, with a time to live), notices over Pub/Sub, [`Inboxes`] of
//! instances, records of [`Nodes`] with their slots, and where [`Sessions`] are, behind one trait, [`Bus`];
//! over Redis, single or Cluster, and within one process, held to one conformance suite. What must never:
//! anything that could not be read from the ledger again. The ledger is the truth, and everything here may be
//! lost with the bus's memory. `redis` is named in no other crate.
//!
//! ```no_run
//! # async fn example() -> bus::Result<()> {
//! let options = bus::Options {
//!     redis_url: Some("redis://:secret@10.0.0.1:6379,10.0.0.2:6379".to_owned()),
//!     key_prefix: "fencepost:".to_owned(),
//!     connect_timeout_ms: 30_000,
//!     command_timeout_ms: 1_000,
//!     tls_ca_file: None,
//!     insecure: true,
//! };
//! let cluster = bus::Cluster { id: "the ledger's".to_owned(), secret: domain::ClusterSecret::parse(&"s".repeat(32))? };
//! let bus = bus::open(&options, &cluster).await?;
//! let mut notices = bus.subscribe(bus::Channel::Cluster);
//! bus.publish(bus::Channel::Cluster, b"mode").await?;
//! while let Some(event) = notices.next().await {
//!     match event {
//!         bus::Event::Message(text) => println!("look {} up", String::from_utf8_lossy(&text)),
//!         bus::Event::Resumed | bus::Event::Lagged { .. } => println!("look everything up"),
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! What an instance puts into an inbox or publishes over Redis is sealed with the cluster's secret; what carries no seal, or
//! is a copy of what took effect, is dropped and counted (`fencepost_bus_rejected_total`).
//!
//! Rules that every key, script and channel here keeps, so that all of it works on a Cluster: a command or
//! script touches one entity and one slot; ids and prefix contain no braces; nothing scans, and nothing is
//! sorted. To ask for many records is to ask for each, all of them on their way at once.

mod channel;
mod error;
mod inbox;
pub mod limits;
mod link;
mod local;
mod nodes;
mod presence;
mod redis;
mod sessions;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use domain::{ClusterSecret, InstanceId};
use tokio::sync::watch;

pub use channel::{Channel, Event, Subscription};
pub use error::{Cause, Error, Result};
pub use inbox::{Delivery, Entry, EntryId, Inbox, Inboxes};
pub use link::{Link, Trial};
pub use local::Hub;
pub use nodes::{
    Claim, Connected, Connecting, Epoch, Held, ListChange, NewConnection, NodeRecord, NodeState, Nodes,
    Report, Reserved, Slot, Unreserved, Version, Written,
};
pub use presence::Presence;
pub use sessions::{Binding, Sessions};

/// How the bus is reached. Not to be printed: the URL may hold a password.
#[derive(Clone)]
pub struct Options {
    /// `redis://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]]…[/DATABASE]`, or `rediss://…` for TLS, trusting what
    /// the system trusts. Whether it is a Cluster is asked of the server: for one, any of its servers will do,
    /// several hosts are better, and there is no database but 0. `None`: a bus within this process.
    pub redis_url: Option<String>,
    /// The prefix of every key and channel: at most [`limits::KEY_PREFIX_CHARS_MAX`] letters, digits and `. _
    /// : @ -`; may be empty.
    pub key_prefix: String,
    /// How long [`open`] goes on trying, in milliseconds.
    pub connect_timeout_ms: u64,
    /// How long one call may take, in milliseconds.
    pub command_timeout_ms: u64,
    /// A PEM file of certificates: for `rediss://`, the only authorities to trust, instead of the system's.
    pub tls_ca_file: Option<PathBuf>,
    /// Whether the servers that a Cluster names may be on other machines where the URL is not one of `rediss://`. If not, such a
    /// Cluster is refused. Where the URL itself leads, [`Options::is_private`] says.
    pub insecure: bool,
}

impl Options {
    /// Checks everything that can be checked without a server.
    ///
    /// # Errors
    /// [`Error::Address`] and [`Error::Invalid`], saying what is allowed; without the password.
    pub fn check(&self) -> Result<()> {
        redis::check(self)
    }

    /// Whether nobody on the way can read or change what is said on the bus: it is in this process, on this machine, or
    /// behind TLS.
    ///
    /// # Errors
    /// [`Error::Address`] for a URL that cannot be used.
    pub fn is_private(&self) -> Result<bool> {
        redis::is_private(self)
    }
}

/// Whose instances meet on the bus. Clusters that share a Redis never meet there, unless the ledger of one is a copy of the
/// other's, which has the same id, and perhaps the same secret.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The id of their ledger: letters and digits. It is in the names of keys and channels.
    pub id: String,
    /// By which they know each other's entries and notices.
    pub secret: ClusterSecret,
}

/// Which bus it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Within this process.
    Local,
    /// Redis, single or Cluster.
    Redis,
}

impl Kind {
    /// The name in logs and in the ready line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Redis => "redis",
        }
    }
}

/// What [`Bus::check`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// How long the answer took.
    pub round_trip: Duration,
    /// What is dangerous about the servers as they are set or as they are now, each with what it should be.
    pub warnings: Vec<String>,
}

/// The whole bus. Every call is answered within the command time-out, and while the link is down at once.
///
/// If a caller drops a call, the command may still be executed; nothing else is left behind.
#[async_trait::async_trait]
pub trait Bus: Inboxes + Nodes + Sessions + Send + Sync {
    /// Which bus it is.
    fn kind(&self) -> Kind;

    /// Announces an instance's presence for `ttl` from now, replacing the earlier one.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Invalid`], and what the server says; after [`Error::Unknown`] it may be
    /// shown. Repeating is harmless.
    async fn announce(&self, presence: &Presence, ttl: Duration) -> Result<()>;

    /// Withdraws an instance's presence.
    ///
    /// # Errors
    /// What the server says; repeating is harmless.
    async fn withdraw(&self, instance: &InstanceId) -> Result<()>;

    /// Which of these instances have presence now. A record that cannot be read counts as none, and is
    /// logged.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if any of them could not be read: a failed read does not prove absence.
    async fn present(&self, instances: &[InstanceId]) -> Result<HashMap<InstanceId, Presence>>;

    /// Publishes a notice to all subscribers of the channel, including this instance's own. Notices of one
    /// instance arrive in their order; there is no order between instances. At most once, or, when a Cluster
    /// loses a server meanwhile, rarely twice or out of order.
    ///
    /// # Errors
    /// [`Error::TooLarge`] beyond [`limits::NOTICE_BYTES_MAX`], and what the server says; after
    /// [`Error::Unknown`] it may have been told.
    async fn publish(&self, channel: Channel, payload: &[u8]) -> Result<()>;

    /// Listens from now on. The bus listens to every channel from its opening on, so nothing is asked of the
    /// server, and a link that is down is no obstacle.
    fn subscribe(&self, channel: Channel) -> Subscription;

    /// Whether the link is up, and since when; follow it to learn of changes. A link that falls silent is found
    /// down within about a second and the command time-out, one that is cut at once. A Redis Cluster of which a master does
    /// not take what is written is down until all of them do, and one that was down is not up while slots have no master. A
    /// link that goes down within [`limits::LINK_AGAIN_MS`] of coming back is on trial when it returns: it counts as down until
    /// it has been well throughout the trial.
    fn link(&self) -> watch::Receiver<Link>;

    /// Whether commands are answered, writes included, also while nothing that is published is heard and the link is
    /// therefore down. False while commands are on trial: see [`Self::link`].
    fn answers(&self) -> watch::Receiver<bool>;

    /// Why commands are not answered as they should be, as was found last, or that they are on trial; `None` while they are
    /// answered, and for a bus within this process.
    fn failure(&self) -> Option<Error> {
        None
    }

    /// The trial that the link is on, if it is well and yet counts as down: see [`Self::link`].
    fn trial(&self) -> Option<Trial> {
        None
    }

    /// A name for what this bus reaches: the same for two handles of one cluster exactly if they share it. It begins with the
    /// kind's name and a colon. Redis keeps it; after a flush the next handle that asks puts it back.
    ///
    /// # Errors
    /// What the server says; repeating is harmless.
    async fn identity(&self) -> Result<String>;

    /// Asks whether the servers answer, and whether they are set to keep what they are given.
    ///
    /// # Errors
    /// What the server says.
    async fn check(&self) -> Result<Health>;

    /// Ends the connections, all subscriptions and the reading of inboxes. Later calls are refused with [`Error::Closed`].
    async fn close(&self);
}

/// A bus to share.
pub type Handle = Arc<dyn Bus>;

/// Reaches the bus and hands it out, with its link up and every channel listened to.
///
/// # Errors
/// [`Error::Unavailable`] when it could not be reached within `connect_timeout_ms`; anything that trying again
/// would not mend, at once: [`Error::Address`], [`Error::Denied`], [`Error::Forbidden`], [`Error::Refused`],
/// [`Error::Invalid`].
pub async fn open(options: &Options, cluster: &Cluster) -> Result<Handle> {
    options.check()?;
    match options.redis_url {
        None => Ok(Hub::default().join()),
        Some(_) => Ok(Arc::new(redis::Redis::open(options, cluster).await?)),
    }
}
