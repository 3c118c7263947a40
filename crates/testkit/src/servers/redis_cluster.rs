//! A private Redis Cluster: three masters, a replica of each.
//!
//! It takes seconds and six processes, so a test run starts it for the first test that asks: the process
//! that runs the tests opens a door ([`Door`]), each test knocks ([`Keyspace::on_cluster`]), and all get the same one.
//!
//! [`Keyspace::on_cluster`]: super::Keyspace::on_cluster

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use parking_lot::Mutex;

use super::redis::{Redis, run_cli};
use crate::ports;

/// Where tests knock for a Cluster that serves the whole run: `HOST:PORT`.
pub const DOOR_VARIABLE: &str = "FENCEPOST_TEST_REDIS_CLUSTER_DOOR";

const MASTERS: usize = 3;
const SERVERS: usize = 2 * MASTERS;
const FORM_LIMIT: Duration = Duration::from_secs(60);
/// A server that others do not hear for so long is taken for dead, in milliseconds.
const NODE_TIMEOUT_MS: &str = "1000";
/// A server's second port, on which it talks to the others, is so much higher.
const SECOND_PORT: u16 = 10_000;

/// A hash slot whose move from one master to another was begun, and is left so until [`Self::end`].
#[derive(Debug)]
pub struct HalfMove<'c> {
    /// The hash slot.
    pub slot: u16,
    /// The master that serves it, and gives it away.
    pub from: &'c Redis,
    /// The master that is to receive it.
    pub to: &'c Redis,
}

impl HalfMove<'_> {
    /// Has the slot stay where it is.
    ///
    /// # Errors
    /// A server refuses it, or cannot be reached.
    pub fn end(&self) -> Result<()> {
        let slot = self.slot.to_string();
        for server in [self.to, self.from] {
            server.command(&["CLUSTER", "SETSLOT", &slot, "STABLE"])?;
        }
        Ok(())
    }
}

/// Six servers that form a Cluster, killed and removed on drop.
#[derive(Debug)]
pub struct RedisCluster {
    servers: Vec<Redis>,
}

impl RedisCluster {
    /// Starts the servers, joins them, and waits until every one serves and every replica follows.
    ///
    /// # Errors
    /// Redis is not installed, does not start, or the servers do not come together within a minute.
    pub fn start() -> Result<Self> {
        let settings = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            NODE_TIMEOUT_MS,
            "--repl-diskless-sync-delay",
            "0",
        ];
        let mut servers = Vec::new();
        for _ in 0..SERVERS {
            servers.push(Redis::at(free_pair()?, &settings)?);
        }
        let cluster = Self { servers };
        let addresses: Vec<_> =
            cluster.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        let mut create = vec!["--cluster", "create"];
        create.extend(addresses.iter().map(String::as_str));
        create.extend(["--cluster-replicas", "1", "--cluster-yes"]);
        run_cli(&create)?;
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    /// The URL of three of its servers.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.servers.iter().take(MASTERS).map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("redis://{}/", hosts.join(","))
    }

    /// All its servers.
    #[must_use]
    pub fn servers(&self) -> &[Redis] {
        &self.servers
    }

    /// The master that serves a key now.
    ///
    /// # Errors
    /// No server that runs knows one.
    pub fn master_of(&self, key: &str) -> Result<&Redis> {
        for server in &self.servers {
            let Ok(slot) = server.command(&["CLUSTER", "KEYSLOT", key]) else { continue };
            let slot: u16 = slot.trim().parse()?;
            let nodes = server.command(&["CLUSTER", "NODES"])?;
            let port = nodes.lines().find_map(|line| serves(line, slot)).context("nobody serves it")?;
            let found = self.servers.iter().find(|server| server.port() == port);
            return found.context("a server that is none of ours");
        }
        bail!("no server answers")
    }

    /// Begins to move the hash slot of a key to another master, as a resharding does, and goes no further: keys that are there
    /// stay, new ones are to come to the other master, and both refuse a command that names some of each. From then on no replica
    /// takes a master's place: it would not know of the move.
    ///
    /// # Errors
    /// A server refuses it, or cannot be reached.
    pub fn half_move(&self, key: &str) -> Result<HalfMove<'_>> {
        for server in &self.servers {
            server.command(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"])?;
        }
        let from = self.master_of(key)?;
        let is_master = |server: &Redis| {
            server.command(&["ROLE"]).is_ok_and(|role| role.lines().next() == Some("master"))
        };
        let mut others = self.servers.iter().filter(|server| server.port() != from.port());
        let to = others.find(|server| is_master(server)).context("there is no other master")?;
        let slot = from.command(&["CLUSTER", "KEYSLOT", key])?;
        let id = |server: &Redis| server.command(&["CLUSTER", "MYID"]);
        to.command(&["CLUSTER", "SETSLOT", slot.trim(), "IMPORTING", id(from)?.trim()])?;
        from.command(&["CLUSTER", "SETSLOT", slot.trim(), "MIGRATING", id(to)?.trim()])?;
        Ok(HalfMove { slot: slot.trim().parse()?, from, to })
    }

    /// Waits until all servers serve and all replicas follow their masters.
    ///
    /// # Errors
    /// They do not within a minute.
    pub fn wait_until_whole(&self) -> Result<()> {
        let give_up = Instant::now() + FORM_LIMIT;
        while !self.servers.iter().all(|server| is_whole(server).unwrap_or_default()) {
            ensure!(Instant::now() < give_up, "the Redis Cluster did not become whole in {FORM_LIMIT:?}");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

fn is_whole(server: &Redis) -> Result<bool> {
    let cluster = server.command(&["CLUSTER", "INFO"])?;
    let all = format!("cluster_known_nodes:{SERVERS}");
    let has = |text: &str, wanted: &str| text.lines().any(|line| line.trim() == wanted);
    if !has(&cluster, "cluster_state:ok") || !has(&cluster, &all) || !has(&cluster, "cluster_slots_ok:16384")
    {
        return Ok(false);
    }
    let role = server.command(&["INFO", "replication"])?;
    Ok(has(&role, "master_link_status:up") || (has(&role, "role:master") && has(&role, "connected_slaves:1")))
}

/// The port in a line of `CLUSTER NODES`, if it is of a living master that serves the slot.
fn serves(line: &str, slot: u16) -> Option<u16> {
    let fields: Vec<_> = line.split_whitespace().collect();
    // "nofailover" is no failure.
    let has = |wanted: &str| fields.get(2).is_some_and(|flags| flags.split(',').any(|flag| flag == wanted));
    if !has("master") || has("fail") || has("fail?") {
        return None;
    }
    let covers = |range: &&str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.parse().ok()?..=last.parse().ok()?).contains(&slot))
    };
    fields.get(8..)?.iter().filter_map(covers).find(|covered| *covered)?;
    fields[1].split_once('@')?.0.rsplit_once(':')?.1.parse().ok()
}

/// A port for a server and a second one for its talk with the others, both below those of outgoing connections.
fn free_pair() -> Result<u16> {
    for _ in 0..100 {
        let port = ports::free()?;
        let second = port.checked_add(SECOND_PORT).filter(|second| *second < 32_000);
        if second.is_some_and(|second| TcpListener::bind((Ipv4Addr::LOCALHOST, second)).is_ok()) {
            return Ok(port);
        }
    }
    bail!("no two free ports, {SECOND_PORT} apart")
}

/// Where the tests of one run knock for the Cluster that they share. It starts at the first knock.
#[derive(Debug)]
pub struct Door {
    address: String,
    pub(super) cluster: Arc<Mutex<Option<RedisCluster>>>,
}

impl Door {
    /// Opens it, on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// No port can be listened on.
    pub fn open() -> Result<Self> {
        let knocks = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = knocks.local_addr()?.to_string();
        let cluster = Arc::new(Mutex::new(None));
        let inside = cluster.clone();
        thread::spawn(move || {
            for knock in knocks.incoming().flatten() {
                // One after the other: the first starts it, and the others find it there.
                answer(knock, &inside);
            }
        });
        Ok(Self { address, cluster })
    }

    /// What to put into [`DOOR_VARIABLE`].
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.cluster.lock().take();
    }
}

/// Says the URL, or why there is none. A test that went away meanwhile needs neither.
fn answer(mut knock: TcpStream, cluster: &Mutex<Option<RedisCluster>>) {
    let mut cluster = cluster.lock();
    if cluster.is_none() {
        match RedisCluster::start() {
            Ok(started) => *cluster = Some(started),
            Err(error) => {
                let _ = write!(knock, "error: {error:#}");
                return;
            }
        }
    }
    if let Some(cluster) = &*cluster {
        let _ = write!(knock, "{}", cluster.url());
    }
}

/// The URL of the Cluster that serves the whole run; `None` where nobody opened a door.
pub(super) fn url_of_the_run() -> Result<Option<String>> {
    let Ok(door) = std::env::var(DOOR_VARIABLE) else { return Ok(None) };
    let mut said = String::new();
    let mut knock = TcpStream::connect(&door)?;
    knock.set_read_timeout(Some(FORM_LIMIT * 2))?;
    knock.read_to_string(&mut said)?;
    ensure!(said.starts_with("redis://"), "the run's Redis Cluster: {said}");
    Ok(Some(said))
}
