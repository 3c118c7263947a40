//! The connection for commands: how it is made, and what is sent on it. A task keeps it ([`keeper`]).

mod keeper;

use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
use super::cluster_slots::{cluster_slots, named};
use super::failure::{self, Effect};
use super::first_words;
use super::half_moved::HalfMoved;
use super::refusals::Refusals;
use super::script::{Script, script};
use crate::limits::{CLUSTER_RETRIES, CLUSTER_SERVERS_MAX, CONNECT_MS, PROBE_KEY_MS, RECONNECT_PAUSE_MS};
use crate::link::Part;
use crate::{Error, Result};
pub(super) use keeper::keep;

const CONNECT: Duration = Duration::from_millis(CONNECT_MS);

static TRY_CALLS: Script = script!("try_calls");

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

    /// Which connection to a single server this is, the first, the second and so on: with each its name may lead to another
    /// server. Always the same of a Cluster, which says itself where a key is.
    pub(super) fn generation(&self) -> u64 {
        if self.is_cluster() { 0 } else { self.made.load(Ordering::Acquire) }
    }

    pub(super) fn drop_connection(&self) {
        *self.connection.write() = None;
    }

    /// Another connection is made anew, or does not show what goes by this one: the name of a single server may lead to another
    /// one by now.
    pub(super) fn suspect_apart(&self) {
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

/// Has a script make each call that Fencepost needs, on the keys of these numbers: the user may lack the right to one, and the
/// server may have it under another name. Nothing is left there.
pub(super) async fn try_calls(shared: &Shared, numbers: &[u64]) -> Result<()> {
    try_join_all(numbers.iter().map(|number| try_calls_on(shared, *number))).await.map(|_| ())
}

/// The script goes by its digest and as a text, as others do, in one round trip.
async fn try_calls_on(shared: &Shared, number: u64) -> Result<()> {
    let keys = [shared.names.probe(number)];
    let (by_digest, by_text) = (TRY_CALLS.by_digest(&keys), TRY_CALLS.by_text(&keys));
    let by_digest = send_as(shared, TRY_CALLS.name, &by_digest, To::Key, Effect::Reads);
    let by_text = send_as(shared, TRY_CALLS.name, &by_text, To::Key, Effect::Reads);
    match tokio::join!(by_digest, by_text) {
        (Err(error), _) if !failure::is_unknown_script(&error) => Err(error),
        (_, answer) => answer.map(|_| ()),
    }
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
    match failure::in_time(CONNECT, connection).await? {
        Ok(connection) => Ok(connection),
        Err(error) => Err(first_words::explained(host, opened(error)).await),
    }
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

/// The same failure with its reason, on a Cluster. The driver does not say why it is connected to no server; and where it lost
/// a connection, the server may refuse the password. So one of the servers that the Cluster named is asked, at random since
/// some may be away. Hosts of the URL may have left the Cluster.
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
