//! The bus over Redis, single or Cluster.
//!
//! Two connections, each made again by a task of its own: [`commands`] sends, [`listener`] hears. What is written, and
//! published to itself, every half second tells whether both are well; that is the link. An open inbox has one more, which
//! waits for entries ([`reader`]).

mod address;
mod cluster_slots;
mod commands;
mod failure;
mod first_words;
mod half_moved;
mod health;
mod inbox;
mod inbox_seals;
mod inbox_stream;
mod listener;
mod logged_reasons;
mod nodes;
mod pause;
mod reader;
mod refusals;
mod script;
mod seal;
mod sessions;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::redis::{Cmd, FromRedisValue, cmd};
use domain::{InstanceId, Invalid, NodeId, SessionId};
use futures_util::{StreamExt, TryStreamExt, stream};
use panic_guard::again_after_panics;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::channel::{Channels, check_payload};
use crate::limits::{KEY_PREFIX_CHARS_MAX, PRESENCE_READS_MAX};
use crate::link::Gauge;
use crate::presence::check_ttl;
use crate::{
    Bus, Channel, Cluster, Error, Health, Kind, Link, Options, Presence, Result, Subscription, Trial,
};
use address::Address;
use commands::Commands;
use failure::Effect;
use inbox_seals::InboxSeals;
use listener::Listener;
use script::Script;
use seal::{Place, Sealer};

/// Checks what can be checked without a server.
pub(crate) fn check(options: &Options) -> Result<()> {
    Names::new(&options.key_prefix, "")?;
    let Some(url) = options.redis_url.as_deref() else { return Ok(()) };
    Address::parse(url)?.trusting(options.tls_ca_file.as_deref()).map(drop)
}

/// Whether all of it stays on this machine, or goes over TLS.
pub(crate) fn is_private(options: &Options) -> Result<bool> {
    options
        .redis_url
        .as_deref()
        .map_or(Ok(true), |url| Address::parse(url).map(|address| address.is_private()))
}

/// How often the log says that messages are rejected.
const REJECTION_SAID_EVERY: Duration = Duration::from_secs(10);

/// How everything of Fencepost is called in Redis.
#[derive(Clone, Debug)]
struct Names {
    prefix: String,
    /// The ledger's id. Ids of nodes and sessions of two clusters may be the same; those of instances never are, but a copy of
    /// a ledger has this id, and knows the instances of its original.
    cluster: String,
}

impl Names {
    fn new(prefix: &str, cluster: &str) -> Result<Self> {
        let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '@' | '-');
        if prefix.len() > KEY_PREFIX_CHARS_MAX || !prefix.chars().all(safe) {
            let expected =
                format!("at most {KEY_PREFIX_CHARS_MAX} characters of letters, digits and . _ : @ -");
            return Err(Invalid { what: "the key prefix", expected }.into());
        }
        Ok(Self { prefix: prefix.to_owned(), cluster: cluster.to_owned() })
    }

    fn presence(&self, instance: &InstanceId) -> String {
        format!("{}schedulers:presence:{instance}", self.prefix)
    }

    /// An instance's inbox.
    fn inbox(&self, instance: &InstanceId) -> String {
        format!("{}{{instance:{instance}}}:inbox", self.prefix)
    }

    /// The inbox, and the mark that it was closed.
    fn inbox_and_mark(&self, instance: &InstanceId) -> [String; 2] {
        let inbox = self.inbox(instance);
        let mark = format!("{inbox}-closed");
        [inbox, mark]
    }

    /// A node's record, its slots and their reservations.
    fn node(&self, node: &NodeId) -> [String; 3] {
        let Self { prefix, cluster } = self;
        ["record", "slots", "reserved"].map(|part| format!("{prefix}{{node:{node}}}:{cluster}:{part}"))
    }

    /// Where a session is.
    fn session(&self, session: &SessionId) -> String {
        format!("{}{{session:{session}}}:{}:binding", self.prefix, self.cluster)
    }

    /// The list of the nodes that an instance holds.
    fn instance_nodes(&self, instance: &InstanceId) -> String {
        format!("{}{{instance:{instance}}}:nodes", self.prefix)
    }

    fn channel(&self, channel: Channel) -> String {
        format!("{}channel:{}:{}", self.prefix, self.cluster, channel.as_str())
    }

    /// What tells this Redis from others that the cluster's instances may use by mistake.
    fn identity(&self) -> String {
        format!("{}schedulers:identity:{}", self.prefix, self.cluster)
    }

    /// A key that is written to see whether its server takes writes.
    fn probe(&self, number: u64) -> String {
        format!("{}probe:{number:016x}", self.prefix)
    }

    /// The channel on which one handle hears itself.
    fn echo(&self, handle: u128) -> String {
        format!("{}echo:{handle:032x}", self.prefix)
    }
}

/// What the two connections' tasks and the handle share.
struct Shared {
    address: Address,
    /// Whether only servers on this machine are connected to, because what is sent is not encrypted.
    stays_here: bool,
    names: Names,
    /// The channel on which this handle hears itself.
    echo: String,
    /// How long one command may take.
    limit: Duration,
    channels: Channels,
    link: Gauge,
    commands: Commands,
    listener: Listener,
    sealer: Sealer,
    inbox_seals: InboxSeals,
    /// When the log said last that a message was rejected.
    rejection_said: Mutex<Option<Instant>>,
    /// What the servers said last, or what this handle stores there if they have none.
    identity: Mutex<String>,
    node_clocks: nodes::Clocks,
    closed: watch::Sender<bool>,
}

impl Shared {
    /// Whether a server that a Cluster names may be connected to.
    fn may_reach(&self, host: &str) -> bool {
        !self.stays_here || address::is_here(host)
    }

    /// Counts a message that takes no effect, since no instance of this cluster sent it, or since it is a copy. The log says
    /// so now and then.
    fn rejected(&self, what: &'static str, why: &'static str) {
        metrics::counter!("fencepost_bus_rejected_total", "what" => what, "why" => why).increment(1);
        let mut said = self.rejection_said.lock();
        if said.is_none_or(|at| at.elapsed() >= REJECTION_SAID_EVERY) {
            *said = Some(Instant::now());
            tracing::warn!(
                what,
                why,
                "a message in Redis is not from this cluster's instances, or is a copy, and is dropped"
            );
        }
    }
}

/// A handle on Redis. Its connections end with it.
pub(crate) struct Redis {
    shared: Arc<Shared>,
    /// The two that keep the connections; gone once this was closed.
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Redis {
    pub(crate) async fn open(options: &Options, cluster: &Cluster) -> Result<Self> {
        let url = options.redis_url.as_deref().unwrap_or_default();
        let names = Names::new(&options.key_prefix, &cluster.id)?;
        let give_up = tokio::time::Instant::now() + Duration::from_millis(options.connect_timeout_ms);
        let address = Address::parse(url)?.trusting(options.tls_ca_file.as_deref())?;
        let shared = Arc::new(Shared {
            stays_here: !options.insecure && !address.is_tls(),
            address,
            echo: names.echo(rand::random()),
            names,
            limit: Duration::from_millis(options.command_timeout_ms),
            channels: Channels::new(),
            link: Gauge::new(),
            commands: Commands::default(),
            listener: Listener::default(),
            sealer: Sealer::new(cluster),
            inbox_seals: InboxSeals::default(),
            rejection_said: Mutex::default(),
            identity: Mutex::new(format!("{}:{:016x}", Kind::Redis.as_str(), rand::random::<u64>())),
            node_clocks: nodes::Clocks::default(),
            closed: watch::Sender::new(false),
        });
        commands::prepare_tls(shared.address.is_tls());
        let mut pause = pause::Pause::default();
        let mut last = None;
        let connected = loop {
            match tokio::time::timeout_at(give_up, connect(&shared)).await {
                Ok(Ok(connected)) => break connected,
                Ok(Err(error)) if !error.is_retryable() => return Err(error),
                Ok(Err(error)) if tokio::time::Instant::now() + pause.mean() >= give_up => return Err(error),
                Ok(Err(error)) => {
                    match last {
                        Some(_) => tracing::debug!(%error, "still waiting for Redis"),
                        None => tracing::warn!(%error, "waiting for Redis"),
                    }
                    last = Some(error);
                }
                Err(_) => return Err(last.unwrap_or_else(|| failure::timed_out(Effect::Reads))),
            }
            pause.wait().await;
        };
        let (sending, hearing, first) = (shared.clone(), shared.clone(), Mutex::new(Some(connected)));
        let send = move || commands::keep(sending.clone());
        let sender = tokio::spawn(again_after_panics("the connection that sends to Redis", send));
        let hear = move || listener::keep(hearing.clone(), first.lock().take());
        let hearer = tokio::spawn(again_after_panics("the connection that hears Redis", hear));
        let bus = Self { shared, tasks: Mutex::new(vec![sender, hearer]) };
        // The first probe is on its way; what it meets is met again and again until the time is up.
        let mut link = bus.link();
        match tokio::time::timeout_at(give_up, link.wait_for(Link::is_up)).await {
            Ok(_) => Ok(bus),
            Err(_) => Err(bus.failure().unwrap_or_else(|| failure::timed_out(Effect::Reads))),
        }
    }

    async fn ask<T: FromRedisValue>(&self, command: &Cmd, effect: Effect) -> Result<T> {
        self.refuse_if_closed()?;
        commands::ask(&self.shared, command, effect).await
    }

    async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        fill: impl Fn(&mut Cmd),
        effect: Effect,
    ) -> Result<T> {
        self.refuse_if_closed()?;
        commands::run(&self.shared, script, keys, fill, effect).await
    }

    fn refuse_if_closed(&self) -> Result<()> {
        if *self.shared.closed.borrow() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Has the tasks end, and hands them out.
    fn stop(&self) -> Vec<JoinHandle<()>> {
        self.shared.closed.send_replace(true);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.iter().for_each(JoinHandle::abort);
        tasks
    }
}

/// Both connections, for the first time.
async fn connect(shared: &Arc<Shared>) -> Result<::redis::aio::PubSub> {
    let connection = commands::connect(shared).await?;
    shared.commands.set(connection);
    // What this user may not do is said at once, and what this server does not do.
    let numbers = [rand::random()];
    commands::try_out(shared, &numbers).await?;
    commands::try_calls(shared, &numbers).await?;
    listener::connect(shared).await
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.stop());
    }
}

#[async_trait::async_trait]
impl Bus for Redis {
    fn kind(&self) -> Kind {
        Kind::Redis
    }

    async fn identity(&self) -> Result<String> {
        let key = self.shared.names.identity();
        let known = self.shared.identity.lock().clone();
        let (mut set, mut get) = (cmd("SET"), cmd("GET"));
        set.arg(&key).arg(known).arg("NX");
        get.arg(&key);
        // Repeating it is harmless: the first one to be stored stays.
        self.ask::<Option<String>>(&set, Effect::Reads).await?;
        let stored: Option<String> = self.ask(&get, Effect::Reads).await?;
        let mut identity = self.shared.identity.lock();
        // Nothing is there if the servers were emptied between the two.
        stored.into_iter().for_each(|stored| *identity = stored);
        Ok(identity.clone())
    }

    async fn announce(&self, presence: &Presence, ttl: Duration) -> Result<()> {
        let ttl_ms = check_ttl(ttl)?;
        let key = self.shared.names.presence(&presence.instance);
        let mut set = cmd("SET");
        set.arg(key).arg(presence.to_json()?).arg("PX").arg(ttl_ms);
        self.ask(&set, Effect::Writes).await
    }

    async fn withdraw(&self, instance: &InstanceId) -> Result<()> {
        let mut del = cmd("DEL");
        del.arg(self.shared.names.presence(instance));
        self.ask(&del, Effect::Writes).await
    }

    async fn present(&self, instances: &[InstanceId]) -> Result<HashMap<InstanceId, Presence>> {
        // One question per key, since the keys lie in different slots; the connection carries them together.
        let read = |id: InstanceId| async move {
            let mut get = cmd("GET");
            get.arg(self.shared.names.presence(&id));
            let json: Option<Vec<u8>> = self.ask(&get, Effect::Reads).await?;
            let presence = json.as_deref().and_then(|json| Presence::from_json(&id, json));
            if json.is_some() && presence.is_none() {
                tracing::warn!(instance = %id, "an instance's presence cannot be read and is ignored");
            }
            Ok::<_, Error>(presence)
        };
        let reads = stream::iter(instances.iter().cloned().map(read)).buffer_unordered(PRESENCE_READS_MAX);
        let shown = reads.try_filter_map(async |presence| Ok(presence.map(|it| (it.instance.clone(), it))));
        failure::in_time(self.shared.limit, shown.try_collect()).await?
    }

    async fn publish(&self, channel: Channel, payload: &[u8]) -> Result<()> {
        check_payload(payload)?;
        self.refuse_if_closed()?;
        let sealed = self.shared.sealer.seal(Place::Channel(channel), payload);
        commands::publish(&self.shared, &self.shared.names.channel(channel), &sealed).await
    }

    fn subscribe(&self, channel: Channel) -> Subscription {
        self.shared.channels.subscribe(channel, &self.shared.closed)
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.shared.link.watch()
    }

    fn answers(&self) -> watch::Receiver<bool> {
        self.shared.link.watch_commands()
    }

    fn failure(&self) -> Option<Error> {
        match self.shared.link.answers() {
            true => None,
            false => self
                .shared
                .link
                .trial_of_commands()
                .map(failure::on_trial)
                .or_else(|| self.shared.commands.failure()),
        }
    }

    fn trial(&self) -> Option<Trial> {
        self.shared.link.trial()
    }

    async fn check(&self) -> Result<Health> {
        self.refuse_if_closed()?;
        let sent = Instant::now();
        let servers = match commands::ask_all(&self.shared).await {
            Ok(servers) => servers,
            Err(error) => return Err(commands::explained(&self.shared, error).await),
        };
        let round_trip = sent.elapsed();
        let of_servers = servers.iter().flat_map(|(server, info)| health::warnings(server, info));
        let warnings = of_servers.chain(self.shared.commands.half_moved()).collect();
        Ok(Health { round_trip, warnings })
    }

    async fn close(&self) {
        for task in self.stop() {
            // Cut off at its next wait; a task that had panicked is no reason to stay.
            let _ = task.await;
        }
        self.shared.commands.drop_connection();
        self.shared.link.close();
    }
}
