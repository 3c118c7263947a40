//! The connection for commands: sending, and a task that probes it and makes it again.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use metrics::SharedString;
use parking_lot::{Mutex, RwLock};
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo, Slot as HashSlot};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, FromRedisValue, RedisResult, TlsCertificates, Value,
    cmd,
};
use tokio::sync::Notify;

use super::Shared;
use super::address::{HereOnly, at_once, elsewhere, is_here, refused};
use super::cluster_slots::{cluster_slots, named, one_of_each_master};
use super::failure::{self, Effect};
use super::half_moved::{self, HalfMoved};
use super::pause::{Pause, jittered};
use super::refusals::Refusals;
use super::script::Script;
use super::told::Told;
use crate::limits::{
    CLUSTER_RETRIES, CLUSTER_SERVERS_MAX, CLUSTER_SERVERS_PROBES, CONNECT_MS, ECHO_MS, PROBE_KEY_MS,
    PROBE_MS, RECONNECT_PAUSE_MS, REMAKE_MS,
};
use crate::link::Part;
use crate::{Error, Result};

const CONNECT: Duration = Duration::from_millis(CONNECT_MS);

/// One connection that carries the commands of all callers together.
#[derive(Clone)]
pub(super) enum Connection {
    /// To one server.
    Single(MultiplexedConnection),
    /// To every server of a Cluster.
    Cluster(ClusterConnection),
}

/// Where a command goes.
#[derive(Clone, Copy)]
enum To<'k> {
    /// To the server that has its key.
    Key,
    /// The same, of a script: its first key.
    ScriptKey(&'k str),
    /// To any master.
    Anybody,
    /// To every master; the answer is a map.
    Masters,
}

impl Connection {
    /// Sends a command to the server that has its key, and waits for the answer without a limit.
    pub(super) async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        self.clone().carry(command, To::Key).await
    }

    async fn carry(self, command: &Cmd, to: To<'_>) -> RedisResult<Value> {
        match self {
            Self::Single(mut server) => server.send_packed_command(command).await?.extract_error(),
            Self::Cluster(mut cluster) => {
                let routing = match to {
                    To::Key | To::ScriptKey(_) => return command.query_async(&mut cluster).await,
                    To::Anybody => RoutingInfo::SingleNode(SingleNodeRoutingInfo::RandomPrimary),
                    To::Masters => RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None)),
                };
                cluster.route_command(command.clone(), routing).await?.extract_error()
            }
        }
    }
}

/// What senders and the task share.
#[derive(Default)]
pub(super) struct Commands {
    /// `None` while there is none: callers are then refused at once, and only the task tries.
    connection: RwLock<Option<Connection>>,
    /// Counts the connections.
    made: AtomicU64,
    /// Whether another connection of this handle may be to another server than this one.
    is_apart: AtomicBool,
    /// A command failed in a way that the connection may be to blame for.
    suspected: Notify,
    /// What the server said that it is, the first time that it was reached.
    is_cluster: OnceLock<bool>,
    /// The servers of the Cluster, as last heard.
    servers: Mutex<Vec<ConnectionInfo>>,
    /// Where scripts that write were refused, or not answered.
    refusals: Refusals,
    /// The hash slots among those whose move was left half done.
    half_moved: HalfMoved,
    /// Why a probe failed last, unless commands are answered again.
    failure: Mutex<Option<Error>>,
}

impl Commands {
    fn get(&self) -> Option<Connection> {
        self.connection.read().clone()
    }

    pub(super) fn set(&self, connection: Connection) {
        *self.connection.write() = Some(connection);
        self.made.fetch_add(1, Ordering::AcqRel);
    }

    /// Which connection to a single server this is, the first, the second and so on: with each its name may lead to another server.
    /// Always the same of a Cluster, which says itself where a key is.
    pub(super) fn generation(&self) -> u64 {
        if self.is_cluster() { 0 } else { self.made.load(Ordering::Acquire) }
    }

    pub(super) fn drop_connection(&self) {
        *self.connection.write() = None;
    }

    /// Another connection is made anew, or does not show what goes by this one: the name of a single server may lead to another
    /// one by now.
    pub(super) fn may_be_apart(&self) {
        self.is_apart.store(true, Ordering::Release);
    }

    /// Has the connection looked at soon.
    pub(super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Why a probe failed last; `None` once commands are answered again.
    pub(super) fn failure(&self) -> Option<Error> {
        self.failure.lock().clone()
    }

    /// The hash slots whose move was left half done and in which scripts are refused for it, in a sentence each.
    pub(super) fn half_moved(&self) -> Vec<String> {
        self.half_moved.found()
    }

    fn is_cluster(&self) -> bool {
        self.is_cluster.get().copied().unwrap_or_default()
    }

    /// The servers to hear from: those that the Cluster named, for a host of the URL may have left it and hear nothing; else
    /// those of the URL.
    pub(super) fn heard_servers(&self, shared: &Shared) -> Vec<ConnectionInfo> {
        let named = self.servers.lock().clone();
        if named.is_empty() { shared.address.hosts.clone() } else { named }
    }

    /// All servers that may be connected to: those of the URL, and those that the Cluster named.
    pub(super) fn servers(&self, shared: &Shared) -> Vec<ConnectionInfo> {
        let mut servers = shared.address.hosts.clone();
        for server in self.servers.lock().iter() {
            if !servers.iter().any(|known| known.addr() == server.addr()) {
                servers.push(server.clone());
            }
        }
        servers
    }
}

/// Refuses callers while a single server does not answer, or not steadily: nothing but probes is sent to it then. So they know
/// that nothing was done. Else the holder of a node would wait, again and again, until nothing that it said can vouch for the
/// node's record. A server that answers the probes with a refusal is of use for reads, and for what frees its memory; but only
/// while it does so.
fn refuse_while_unsteady(shared: &Shared) -> Result<()> {
    let is_word = || shared.commands.failure().as_ref().is_some_and(failure::is_servers_word);
    let is_refusing = || !shared.link.is_well(Part::Commands) && is_word();
    match shared.commands.is_cluster() || shared.link.answers() || is_refusing() {
        true => Ok(()),
        false => Err(unsteady(shared)),
    }
}

/// Why nothing is sent to a server.
fn unsteady(shared: &Shared) -> Error {
    shared.link.trial_of_commands().map_or_else(failure::not_connected, failure::on_trial)
}

/// Sends a command to the server that has its key, and reads the answer.
pub(super) async fn ask<T: FromRedisValue>(shared: &Shared, command: &Cmd, effect: Effect) -> Result<T> {
    refuse_while_unsteady(shared)?;
    let answer = send(shared, command, To::Key, effect).await?;
    read(answer, effect)
}

/// Runs a script beside its keys, which lie in one slot, with the arguments that `fill` adds.
pub(super) async fn run<T: FromRedisValue>(
    shared: &Shared,
    script: &Script,
    keys: &[String],
    fill: impl Fn(&mut Cmd),
    effect: Effect,
) -> Result<T> {
    refuse_while_unsteady(shared)?;
    let filled = |mut command: Cmd| {
        fill(&mut command);
        command
    };
    let to = keys.first().map_or(To::Key, |key| To::ScriptKey(key));
    let known = filled(script.by_digest(keys));
    let answer = match send_as(shared, script.name, &known, to, effect).await {
        Err(error) if failure::is_unknown_script(&error) => {
            let whole = filled(script.by_text(keys));
            send_as(shared, script.name, &whole, to, effect).await
        }
        answer => answer,
    };
    read(answer?, effect)
}

/// Publishes. On a Cluster any server would do; a channel always has the same one, so that what one instance
/// tells arrives in the order in which it was told.
pub(super) async fn publish(shared: &Shared, channel: &str, payload: &[u8]) -> Result<()> {
    refuse_while_unsteady(shared)?;
    send(shared, cmd("PUBLISH").arg(channel).arg(payload), To::Key, Effect::Writes).await.map(|_| ())
}

/// Publishes to ourselves by way of any server, and writes the keys of these numbers. A server that refuses writes (a demoted
/// master, one whose memory or disk is full) publishes all the same.
pub(super) async fn try_out(shared: &Shared, numbers: &[u64]) -> Result<()> {
    let now = shared.listener.clock().as_micros().to_string();
    let mut publish = cmd("PUBLISH");
    publish.arg(&shared.echo).arg(now);
    let written = try_join_all(numbers.iter().copied().map(|number| write_key(shared, number)));
    let published = send(shared, &publish, To::Anybody, Effect::Writes);
    tokio::try_join!(written, published).map(|_| ())
}

async fn write_key(shared: &Shared, number: u64) -> Result<Value> {
    let mut write = cmd("SET");
    write.arg(shared.names.probe(number)).arg("1").arg("PX").arg(PROBE_KEY_MS);
    send(shared, &write, To::Key, Effect::Writes).await
}

/// What every server that takes writes says of itself, with its address.
pub(super) async fn ask_all(shared: &Shared) -> Result<Vec<(String, String)>> {
    refuse_while_unsteady(shared)?;
    let info = cmd("INFO");
    let info = send(shared, &info, To::Masters, Effect::Reads);
    if !shared.commands.is_cluster() {
        let server = shared.address.hosts[0].addr().to_string();
        return Ok(vec![(server, read(info.await?, Effect::Reads)?)]);
    }
    let mut state = cmd("CLUSTER");
    state.arg("INFO");
    let state = send(shared, &state, To::Masters, Effect::Reads);
    let (info, state) = tokio::try_join!(info, state)?;
    let servers: HashMap<String, String> = read(info, Effect::Reads)?;
    let mut state: HashMap<String, String> = read(state, Effect::Reads)?;
    let whole = servers.into_iter().map(|(server, info)| {
        let state = state.remove(&server).unwrap_or_default();
        (server, format!("{info}\n{state}"))
    });
    Ok(whole.collect())
}

fn read<T: FromRedisValue>(answer: Value, effect: Effect) -> Result<T> {
    redis::from_redis_value(answer).map_err(|error| failure::of(error.into(), effect))
}

async fn send(shared: &Shared, command: &Cmd, to: To<'_>, effect: Effect) -> Result<Value> {
    send_as(shared, name(command), command, to, effect).await
}

/// The same under the name that the metric is to show.
async fn send_as(
    shared: &Shared,
    name: impl Into<SharedString>,
    command: &Cmd,
    to: To<'_>,
    effect: Effect,
) -> Result<Value> {
    let connection = shared.commands.get().ok_or_else(failure::not_connected)?;
    let is_to_cluster = matches!(connection, Connection::Cluster(_));
    let (refusals, sent) = (&shared.commands.refusals, Instant::now());
    let slot = match to {
        To::ScriptKey(key) if is_to_cluster && effect == Effect::Writes => Some(HashSlot::for_key(key)),
        _ => None,
    };
    // Where nobody answers, each further write would hold up the holder of a node as one to a single server does.
    if slot.is_some_and(|slot| refusals.is_silent(slot, sent)) && !shared.link.answers() {
        return Err(unsteady(shared));
    }
    // The driver sends a command to a Cluster again when its answer was lost, and tells of the last try alone. A script that is
    // sent after the last write to its hash slot was refused is taken to have found no server in any try: otherwise the holder of
    // a node would wait, as long as an outage of all or of a part lasts, until nothing that it says can vouch for the node's
    // record. That the probe has failed says nothing of a slot: the master that is away may be another one.
    let is_outage_known = match slot {
        Some(slot) => refusals.has(slot, sent),
        None => !shared.link.is_well(Part::Commands),
    };
    let answer = match tokio::time::timeout(shared.limit, connection.carry(command, to)).await {
        Ok(answer) => answer.map_err(|error| failure::of(error, effect)),
        Err(_) => Err(failure::timed_out(effect)),
    };
    if let Some(slot) = slot {
        refusals.note(slot, &answer, Instant::now());
    }
    let answer = match answer {
        Err(error) if is_to_cluster && !is_outage_known => Err(failure::of_last_try(error, effect)),
        answer => answer,
    };
    metrics::histogram!("fencepost_redis_command_seconds", "command" => name).record(sent.elapsed());
    if matches!(answer, Err(Error::Unavailable { .. } | Error::Unknown { .. })) {
        shared.commands.suspect();
    }
    answer
}

/// The command's own name, for the metric. What follows it is never shown.
fn name(command: &Cmd) -> String {
    match command.args_iter().next() {
        Some(redis::Arg::Simple(name)) => String::from_utf8_lossy(name).to_ascii_lowercase(),
        _ => String::new(),
    }
}

/// Makes the connection, and finds out whether it is to a Cluster.
pub(super) async fn connect(shared: &Shared) -> Result<Connection> {
    if shared.commands.is_cluster() {
        return to_cluster(shared).await;
    }
    let mut last = failure::not_connected();
    for host in &shared.address.hosts {
        let server = match to_server(host).await {
            Ok(server) => server,
            Err(error) => {
                last = error;
                continue;
            }
        };
        if shared.commands.is_cluster.get().is_some() || !is_cluster(server.clone()).await? {
            if shared.address.hosts.len() > 1 {
                let addr = host.addr();
                return Err(refused(&format!("it names several hosts, and {addr} is not part of a Cluster")));
            }
            shared.commands.is_cluster.get_or_init(|| false);
            return Ok(Connection::Single(server));
        }
        if !shared.address.is_tls() {
            let slots = ask_server(server, &cluster_slots()).await?;
            if let Some((host, port)) = named(&slots).find(|(host, _)| !is_here(host)) {
                if shared.stays_here {
                    return Err(elsewhere(&host, port));
                }
                tracing::warn!(host, port, "a server of the Redis Cluster is reached unencrypted");
            }
        }
        shared.commands.is_cluster.get_or_init(|| true);
        return to_cluster(shared).await;
    }
    Err(last)
}

/// One more connection, for callers that wait for answers: each answer may take `limit`. Nothing is sent
/// twice on it, and its user reconnects it.
pub(super) async fn connect_apart(shared: &Shared, limit: Duration) -> Result<Connection> {
    if shared.commands.is_cluster() {
        return to_cluster_with(shared, limit, 0).await;
    }
    to_server(&shared.address.hosts[0]).await.map(Connection::Single)
}

async fn to_server(host: &ConnectionInfo) -> Result<MultiplexedConnection> {
    let opened = |error| failure::of(error, Effect::Reads);
    let client = Client::open(host.clone()).map_err(opened)?;
    // Each command has its own time, counted by who sent it.
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    failure::in_time(CONNECT, connection).await?.map_err(opened)
}

async fn is_cluster(server: MultiplexedConnection) -> Result<bool> {
    let mut info = cmd("INFO");
    info.arg("cluster");
    let said: String = ask_server(server, &info).await?;
    Ok(said.lines().any(|line| line.trim() == "cluster_enabled:1"))
}

/// Asks one server, before there is a connection for all commands.
async fn ask_server<T: FromRedisValue>(mut server: MultiplexedConnection, command: &Cmd) -> Result<T> {
    let answer = failure::in_time(CONNECT, command.query_async(&mut server)).await?;
    answer.map_err(|error| failure::of(error, Effect::Reads))
}

/// The same failure with its reason: where the driver is connected to no server of a Cluster it does not say why, and one that
/// the Cluster named is asked, since a host of the URL may have left it; so it is where a connection is lost, since that server
/// may refuse the password. Chance picks the server, as some may be away.
pub(super) async fn explained(shared: &Shared, error: Error) -> Error {
    let is_unexplained = failure::is_unexplained(&error);
    if !shared.commands.is_cluster() || !(is_unexplained || failure::is_of_connection(&error)) {
        return error;
    }
    let mut servers = shared.commands.heard_servers(shared);
    let server = servers.swap_remove(rand::random_range(0..servers.len()));
    let asked = async { ask_server::<Value>(to_server(&server).await?, &cmd("PING")).await };
    match tokio::time::timeout(shared.limit, asked).await {
        Ok(Err(why)) if is_unexplained || !why.is_retryable() => failure::at(server.addr().to_string(), why),
        Ok(_) | Err(_) => error,
    }
}

async fn to_cluster(shared: &Shared) -> Result<Connection> {
    to_cluster_with(shared, shared.limit, CLUSTER_RETRIES).await
}

async fn to_cluster_with(shared: &Shared, limit: Duration, retries: u32) -> Result<Connection> {
    let opened = |error| failure::of(error, Effect::Reads);
    let mut client = ClusterClientBuilder::new(shared.commands.servers(shared));
    if let Some(authorities) = &shared.address.authorities {
        client = client.certs(TlsCertificates { client_tls: None, root_cert: Some(authorities.clone()) });
    }
    if shared.stays_here {
        // The Cluster may name other servers at any time.
        client = client.async_dns_resolver(HereOnly);
    }
    let client = client
        .connection_timeout(CONNECT)
        .tcp_settings(at_once())
        .response_timeout(limit)
        .overall_response_timeout(Some(limit))
        .retries(retries)
        .min_retry_wait(RECONNECT_PAUSE_MS)
        .max_retry_wait(RECONNECT_PAUSE_MS * 8)
        .build()
        .map_err(opened)?;
    // A server that is lost takes its whole time, beside that of the others.
    match failure::in_time(CONNECT * 2, client.get_async_connection()).await? {
        Ok(connection) => Ok(Connection::Cluster(connection)),
        Err(error) => Err(explained(shared, opened(error)).await),
    }
}

/// Keeps the connection for commands: probes it, and makes it again when it is lost. For ever.
pub(super) async fn keep(shared: Arc<Shared>) {
    let mut keeper = Keeper {
        shared,
        pause: Pause::default(),
        awaited: None,
        remade: Instant::now(),
        probes: 0,
        is_trial_told: false,
        elsewhere: Told::default(),
        refused: Told::default(),
    };
    loop {
        keeper.turn().await;
    }
}

struct Keeper {
    shared: Arc<Shared>,
    pause: Pause,
    /// The first echo that was not heard yet: when it was sent, and which listening connection was to hear it.
    awaited: Option<(Duration, u64)>,
    remade: Instant,
    probes: u32,
    /// Whether the log has said so of the trial that the link is on.
    is_trial_told: bool,
    /// That the Cluster names a server that may not be connected to.
    elsewhere: Told,
    /// Why Redis refuses this instance.
    refused: Told,
}

impl Keeper {
    async fn turn(&mut self) {
        let shared = self.shared.clone();
        if shared.commands.get().is_none() {
            shared.commands.is_apart.store(false, Ordering::Release);
            match connect(&shared).await {
                Ok(connection) => shared.commands.set(connection),
                Err(error) => {
                    tracing::debug!(%error, "no connection to Redis");
                    self.note(error);
                    return self.pause.wait().await;
                }
            }
        }
        let look = shared.link.look();
        match self.probe().await {
            Ok(()) => {
                shared.link.found_up(look);
                self.refused.ends();
                if shared.link.answers() {
                    *shared.commands.failure.lock() = None;
                }
                let trial = shared.link.trial();
                let is_told = std::mem::replace(&mut self.is_trial_told, trial.is_some());
                if let Some(trial) = trial.filter(|_| !is_told) {
                    tracing::info!(%trial, "the bus is on trial");
                }
                self.pause = Pause::default();
                self.follow_name().await;
                let probed = jittered(Duration::from_millis(PROBE_MS));
                tokio::select! {
                    () = tokio::time::sleep(probed) => {}
                    () = shared.commands.suspected.notified() => {
                        // A single server is asked again first: its connection, if that is at fault, says so by then.
                        if shared.commands.is_cluster() {
                            self.remake().await;
                        }
                        // However many fail: one probe for all of them.
                        tokio::time::sleep(jittered(Duration::from_millis(RECONNECT_PAUSE_MS))).await;
                    }
                }
            }
            Err(error) => {
                let is_refusal = failure::is_servers_word(&error);
                if shared.link.is_up(Part::Commands) {
                    // The presence publisher follows the link, and logs it with this failure.
                    tracing::debug!(%error, "the link to Redis is down");
                }
                *shared.commands.failure.lock() = Some(error.clone());
                shared.link.down(Part::Commands);
                // Those who wait for Redis do not wait for the reason as well.
                self.note(explained(&shared, error).await);
                // A server that answers is of use for reads, and for what frees its memory, until there is a better one.
                if !shared.commands.is_cluster() && !is_refusal {
                    shared.commands.drop_connection();
                }
                self.pause.wait().await;
                if shared.commands.get().is_some() {
                    self.remake().await;
                }
            }
        }
    }

    /// Takes note of why commands are not answered. What only a person can mend is told once: the line that the link is down may
    /// have come before it was known.
    fn note(&mut self, error: Error) {
        if !error.is_retryable() && self.refused.is_new(&error) {
            tracing::warn!(%error, "Redis cannot be used until this is mended");
        }
        *self.shared.commands.failure.lock() = Some(error);
    }

    /// Writes and publishes to ourselves, and sees whether what was published earlier was heard.
    async fn probe(&mut self) -> Result<()> {
        let shared = &self.shared;
        let listener = &shared.listener;
        if let Some((sent, generation)) = self.awaited {
            if listener.heard() >= sent || listener.generation() != generation {
                self.awaited = None;
            } else if listener.clock().saturating_sub(sent) >= Duration::from_millis(ECHO_MS) {
                tracing::warn!("the probe published to Redis did not come back; reconnecting the listener");
                listener.condemn(generation);
                self.awaited = None;
                shared.commands.may_be_apart();
            }
        }
        let (now, generation) = (listener.clock(), listener.generation());
        let hearing = shared.link.is_well(Part::Listener);
        // Keys of any slot, so that in the end all masters are tried. What was down is up when all of them are well at
        // once: else the link would be down and up in turn while one of them is away.
        let numbers = match shared.commands.is_cluster() && !shared.link.is_up(Part::Commands) {
            true => {
                let slots = send(shared, &cluster_slots(), To::Anybody, Effect::Reads).await?;
                // Also where no write is taken: other servers may have taken the place of all that were known.
                remember_servers(shared, &slots);
                one_of_each_master(&slots, |number| shared.names.probe(number))
            }
            false => vec![rand::random()],
        };
        try_out(shared, &numbers).await?;
        if hearing && self.awaited.is_none() {
            self.awaited = Some((now, generation));
        }
        if shared.commands.is_cluster() && self.probes.is_multiple_of(CLUSTER_SERVERS_PROBES) {
            self.look_for_servers().await;
            self.look_at_refusals().await;
        }
        self.probes = self.probes.wrapping_add(1);
        Ok(())
    }

    /// Connects anew where another connection may be to another server: the name of a single one leads both to the same. A
    /// Cluster says itself where a key is.
    async fn follow_name(&mut self) {
        let commands = &self.shared.commands;
        let is_due = self.remade.elapsed() >= Duration::from_millis(REMAKE_MS);
        if !commands.is_cluster() && is_due && commands.is_apart.swap(false, Ordering::AcqRel) {
            let made = commands.generation();
            self.remake().await;
            // Where there is no new one, it is tried again.
            if self.shared.commands.generation() == made {
                self.shared.commands.may_be_apart();
            }
        }
    }

    /// Connects anew, in place of a connection that is not lost. One to a Cluster may know it as it was: a server that went
    /// silent is otherwise waited for again and again. The name of a single server may lead to another one by now, which is
    /// the master. Those who ask meanwhile go on with the old connection.
    async fn remake(&mut self) {
        if self.remade.elapsed() < Duration::from_millis(REMAKE_MS) {
            return;
        }
        match connect(&self.shared).await {
            Ok(connection) => self.shared.commands.set(connection),
            // The driver goes on trying, and may say no more than that the time is over.
            Err(error) if self.shared.commands.is_cluster() && !error.is_retryable() => {
                if !self.shared.link.is_well(Part::Commands) {
                    self.note(error);
                }
            }
            Err(error) => tracing::debug!(%error, "no new connection to Redis"),
        }
        self.remade = Instant::now();
    }

    async fn look_for_servers(&mut self) {
        let shared = &self.shared;
        match send(shared, &cluster_slots(), To::Anybody, Effect::Reads).await {
            Ok(slots) => {
                // The first in their order: each server may name them in another one.
                match named(&slots).filter(|(host, _)| !shared.may_reach(host)).min() {
                    Some((host, port)) => {
                        let refused = elsewhere(&host, port);
                        if self.elsewhere.is_new(&refused) {
                            tracing::warn!(%refused, "a server of the Redis Cluster is not connected to");
                        }
                    }
                    // A server that has left its Cluster names none.
                    None if named(&slots).next().is_some() && self.elsewhere.ends() => {
                        tracing::info!("all servers that the Redis Cluster names may be connected to");
                    }
                    None => {}
                }
                remember_servers(shared, &slots);
            }
            Err(error) => tracing::debug!(%error, "the Cluster's servers could not be listed"),
        }
    }

    /// Finds out whether scripts are refused for long because a hash slot is half moved.
    async fn look_at_refusals(&self) {
        let shared = &self.shared;
        let refused = shared.commands.refusals.long(Instant::now());
        if refused.is_empty() {
            return shared.commands.half_moved.show(Vec::new());
        }
        let views = send(shared, &half_moved::cluster_nodes(), To::Masters, Effect::Reads).await;
        match views.and_then(|views| read::<HashMap<String, String>>(views, Effect::Reads)) {
            Ok(views) => {
                let found = half_moved::half_moved(views.values().map(String::as_str), &refused);
                shared.commands.half_moved.show(found);
            }
            Err(error) => tracing::debug!(%error, "the Cluster's servers did not say what they move"),
        }
    }
}

/// Takes note of the servers in the answer to `CLUSTER SLOTS` that may be connected to. One without any, as of a server that has
/// left its Cluster, takes none from those that are known.
fn remember_servers(shared: &Shared, slots: &Value) {
    // A server is named once for each of its ranges.
    let servers: BTreeSet<_> = named(slots).filter(|(host, _)| shared.may_reach(host)).collect();
    let servers = servers.iter().take(CLUSTER_SERVERS_MAX);
    let servers: Vec<_> = servers.map(|(host, port)| shared.address.beside(host, *port)).collect();
    if !servers.is_empty() {
        *shared.commands.servers.lock() = servers;
    }
}

/// Chooses the provider of TLS for the process, unless that was done: ring, as everywhere here.
pub(super) fn prepare_tls(wanted: bool) {
    if wanted && rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::debug!("the process already has a TLS provider");
    }
}

#[cfg(test)]
mod tests;
