//! Nodes as three keys each, `{node:<id>}:…`, which only scripts touch; `lua/node.lua` says what they hold.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{InstanceId, NodeId};
use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::{Mutex, MutexGuard};
use redis::{Cmd, cmd};

use super::Redis;
use super::failure::{self, Effect};
use super::script::{Script, script};
use crate::limits::{
    NODE_LISTS_READ_MAX, NODE_READS_MAX, NODE_TTL_MS_MAX, NODE_YOUNGER_MS, NODES_LISTED_MAX,
};
use crate::nodes::{check_lasting, check_listed, check_node_ttl, check_report, check_slots, merge_listed};
use crate::{
    Claim, Connected, Connecting, Epoch, Error, Held, ListChange, NewConnection, NodeRecord, NodeState,
    Nodes, Report, Reserved, Result, Slot, Unreserved, Version, Written,
};

static CONNECT: Script = script!("node_connect" after "node");
static COMPLETE: Script = script!("node_complete" after "node");
static REFRESH: Script = script!("node_refresh" after "node");
static DISCONNECT: Script = script!("node_disconnect" after "node");
static WITHDRAW: Script = script!("node_withdraw" after "node");
static RESERVE: Script = script!("node_reserve" after "node");
static SEND: Script = script!("node_to_sent" after "node");
static PASS: Script = script!("node_pass" after "node");
static UNRESERVE: Script = script!("node_unreserve" after "node");
static FREE: Script = script!("node_free" after "node");
static HOLDS: Script = script!("node_holds" after "node");
static SHOW: Script = script!("node_show" after "node");
static LIST: Script = script!("instance_nodes");

/// What `node_connect` answers where a connection of another principal has the node.
const ANOTHERS: i64 = -3;

#[async_trait::async_trait]
impl Nodes for Redis {
    async fn connect_node(
        &self,
        node: &NodeId,
        new: &NewConnection<'_>,
        report: &Report,
        running: &[Slot],
    ) -> Result<Connecting> {
        check_slots(running)?;
        let ttl_ms = check_report(report)?;
        let fill = |call: &mut Cmd| {
            call.arg(new.holder.as_str());
            add_report(call, report, ttl_ms);
            call.arg(micros(new.age)).arg(NODE_YOUNGER_MS * 1_000).arg(u8::from(report.vouched.is_none()));
            call.arg(new.over.map_or(0, Epoch::get)).arg(new.principal).arg(new.floor.get());
            call.arg(new.had.map_or(0, Epoch::get));
            add_slots(call, running);
        };
        let (number, is_complete, at): (i64, bool, u64) =
            self.run_at(node, &CONNECT, fill, Effect::Writes).await?;
        if number == ANOTHERS {
            return Ok(Connecting::Anothers);
        }
        match written(number)? {
            Written::Done(version) => {
                let epoch = Epoch::new(version.get());
                self.shared.node_clocks.connected(node, epoch, at, report.vouched);
                Ok(Connecting::Done(Connected { epoch, version, is_complete }))
            }
            Written::Replaced => Ok(Connecting::Younger),
            Written::Lost => Err(failure::unreadable()),
        }
    }

    async fn complete_node(&self, node: &NodeId, epoch: Epoch, unfinished: &[Slot]) -> Result<Written> {
        check_slots(unfinished)?;
        let vouched_until = self.shared.node_clocks.vouched_until(node);
        let fill = |call: &mut Cmd| {
            call.arg(epoch.get()).arg(vouched_until);
            add_slots(call, unfinished);
        };
        self.write_at(node, &COMPLETE, fill).await
    }

    async fn refresh_node(
        &self,
        node: &NodeId,
        epoch: Epoch,
        report: &Report,
        gone: &[Slot],
    ) -> Result<Written> {
        self.refresh(node, epoch, report, ("gone", gone)).await
    }

    async fn recount_node(
        &self,
        node: &NodeId,
        epoch: Epoch,
        report: &Report,
        taken: &[Slot],
    ) -> Result<Written> {
        self.refresh(node, epoch, report, ("taken", taken)).await
    }

    async fn disconnect_node(&self, node: &NodeId, epoch: Epoch, ttl: Duration) -> Result<Written> {
        let ms = check_node_ttl(ttl)?;
        let fill = |call: &mut Cmd| {
            call.arg(epoch.get()).arg(ms);
        };
        self.write_last(node, epoch, &DISCONNECT, fill).await
    }

    async fn withdraw_node(&self, node: &NodeId, epoch: Epoch) -> Result<Written> {
        let fill = |call: &mut Cmd| {
            call.arg(epoch.get());
        };
        self.write_last(node, epoch, &WITHDRAW, fill).await
    }

    async fn reserve_slots(
        &self,
        node: &NodeId,
        claims: &[Claim],
        lasting: Duration,
    ) -> Result<Vec<Reserved>> {
        check_slots(claims)?;
        let ms = check_lasting(lasting)?;
        let fill = |call: &mut Cmd| {
            call.arg(ms);
            add_claims(call, claims);
        };
        let meaning = |answer| match answer {
            1 => Some(Reserved::Yes),
            0 => Some(Reserved::Full),
            -1 => Some(Reserved::NotReady),
            -2 => Some(Reserved::Lent),
            _ => None,
        };
        let answers = self.run_at(node, &RESERVE, fill, Effect::Writes).await?;
        each(answers, claims.len(), meaning)
    }

    async fn send_slots(&self, node: &NodeId, epoch: Epoch, slots: &[Slot]) -> Result<Vec<bool>> {
        check_slots(slots)?;
        let fill = |call: &mut Cmd| {
            call.arg(epoch.get());
            add_slots(call, slots);
        };
        let answers = self.run_at(node, &SEND, fill, Effect::Writes).await?;
        each(answers, slots.len(), is_one)
    }

    async fn pass_slots(&self, node: &NodeId, epoch: Epoch, pairs: &[(Slot, Slot)]) -> Result<Vec<bool>> {
        check_slots(pairs)?;
        let fill = |call: &mut Cmd| {
            call.arg(epoch.get());
            for (over, follows) in pairs {
                call.arg(over.to_string()).arg(follows.to_string());
            }
        };
        let answers = self.run_at(node, &PASS, fill, Effect::Writes).await?;
        each(answers, pairs.len(), is_one)
    }

    async fn unreserve_slots(&self, node: &NodeId, claims: &[Claim]) -> Result<Vec<Unreserved>> {
        check_slots(claims)?;
        let meaning = |answer| match answer {
            0 => Some(Unreserved::Absent),
            1 => Some(Unreserved::Removed),
            2 => Some(Unreserved::WasSent),
            3 => Some(Unreserved::Unknown),
            _ => None,
        };
        let fill = |call: &mut Cmd| add_claims(call, claims);
        let answers = self.run_at(node, &UNRESERVE, fill, Effect::Writes).await?;
        each(answers, claims.len(), meaning)
    }

    async fn free_slots(&self, node: &NodeId, slots: &[Slot]) -> Result<()> {
        check_slots(slots)?;
        self.run_at(node, &FREE, |call: &mut Cmd| add_slots(call, slots), Effect::Writes).await
    }

    async fn held_slots(&self, node: &NodeId, slots: &[Slot]) -> Result<Held> {
        check_slots(slots)?;
        let fill = |call: &mut Cmd| add_slots(call, slots);
        let (holder, age, is_taken): (Option<String>, i64, Vec<i64>) =
            self.run_at(node, &HOLDS, fill, Effect::Reads).await?;
        let holder = holder.and_then(|holder| InstanceId::parse(&holder).ok());
        let age = u64::try_from(age).ok().map(Duration::from_micros);
        Ok(Held { holder, age, is_taken: each(is_taken, slots.len(), is_one)? })
    }

    async fn show_nodes(&self, nodes: &[NodeId]) -> Result<HashMap<NodeId, NodeRecord>> {
        // One question per node, since they lie in different slots; the connection carries them together.
        let read = |node: NodeId| async move {
            let found: Option<Shown> = self.run_at(&node, &SHOW, |_: &mut Cmd| {}, Effect::Reads).await?;
            let is_found = found.is_some();
            let record = found.and_then(record);
            if is_found && record.is_none() {
                tracing::warn!(%node, "a node's record cannot be read and is ignored");
            }
            Ok::<_, Error>(record.map(|record| (node, record)))
        };
        let reads = stream::iter(nodes.iter().cloned().map(read)).buffer_unordered(NODE_READS_MAX);
        let shown = reads.try_filter_map(async |shown| Ok(shown));
        failure::in_time(self.shared.limit, shown.try_collect()).await?
    }

    async fn list_nodes(&self, holder: &InstanceId, change: &ListChange<'_>, ttl: Duration) -> Result<usize> {
        check_listed(change)?;
        let ttl_ms = check_node_ttl(ttl)?;
        let fill = |call: &mut Cmd| {
            call.arg(ttl_ms).arg(NODES_LISTED_MAX);
            call.arg(u8::from(change.is_anew)).arg(change.gone.len());
            for node in change.gone {
                call.arg(node.as_str());
            }
            for (node, version) in change.held {
                call.arg(node.as_str()).arg(version.get());
            }
        };
        self.run(&LIST, &[self.shared.names.instance_nodes(holder)], fill, Effect::Writes).await
    }

    async fn listed_nodes(&self, holders: &[InstanceId]) -> Result<HashMap<NodeId, Version>> {
        self.refuse_if_closed()?;
        // One question per list, since they lie in different slots.
        let read = |holder: InstanceId| async move {
            let mut all = cmd("HGETALL");
            all.arg(self.shared.names.instance_nodes(&holder));
            let listed: Vec<(Vec<u8>, Vec<u8>)> = self.ask(&all, Effect::Reads).await?;
            Ok::<_, Error>(listed)
        };
        let reads = stream::iter(holders.iter().cloned().map(read)).buffer_unordered(NODE_LISTS_READ_MAX);
        let merged = reads.try_fold(HashMap::new(), async |mut merged, listed| {
            // What no version of Fencepost wrote names no node.
            for (node, version) in listed.iter().filter_map(|(node, version)| named(node, version)) {
                merge_listed(&mut merged, node, version);
            }
            Ok(merged)
        });
        failure::in_time(self.shared.limit, merged).await?
    }
}

impl Redis {
    async fn run_at<T: redis::FromRedisValue>(
        &self,
        node: &NodeId,
        script: &Script,
        fill: impl Fn(&mut Cmd),
        effect: Effect,
    ) -> Result<T> {
        self.run(script, &self.shared.names.node(node), fill, effect).await
    }

    async fn refresh(
        &self,
        node: &NodeId,
        epoch: Epoch,
        report: &Report,
        (which, slots): (&str, &[Slot]),
    ) -> Result<Written> {
        check_slots(slots)?;
        let ttl_ms = check_report(report)?;
        let stamp = self.shared.node_clocks.stamp(node, report.vouched);
        let ReportStamp { vouched_until, said_at, number, answered } = stamp;
        let fill = |call: &mut Cmd| {
            call.arg(epoch.get());
            add_report(call, report, ttl_ms);
            call.arg(&vouched_until).arg(said_at).arg(number).arg(answered).arg(which);
            add_slots(call, slots);
        };
        let written = self.write_at(node, &REFRESH, fill).await;
        if matches!(written, Ok(Written::Done(_))) {
            self.shared.node_clocks.answered(node, epoch, number);
        }
        written
    }

    /// Writes by an epoch, and notes what the server's clock showed.
    async fn write_at(&self, node: &NodeId, script: &Script, fill: impl Fn(&mut Cmd)) -> Result<Written> {
        let (answer, at): (i64, u64) = self.run_at(node, script, fill, Effect::Writes).await?;
        self.shared.node_clocks.heard(node, at);
        written(answer)
    }

    /// The last that a connection writes.
    async fn write_last(
        &self,
        node: &NodeId,
        epoch: Epoch,
        script: &Script,
        fill: impl Fn(&mut Cmd),
    ) -> Result<Written> {
        let written = self.run_at(node, script, fill, Effect::Writes).await.and_then(written);
        if matches!(written, Ok(Written::Done(_))) {
            self.shared.node_clocks.forget(node, epoch);
        }
        written
    }
}

/// What the clocks of the servers that keep records of nodes showed, as their holder heard it last. By them a holder
/// says until when it vouches in a time of the server's own, so that what a server carries out late vouches for
/// nothing.
#[derive(Default)]
pub(super) struct Clocks(Mutex<HashMap<NodeId, Clock>>);

struct Clock {
    /// The node's newest connection to this instance.
    epoch: Epoch,
    /// What it showed, in microseconds since 1970, ...
    at: u64,
    /// ... at this time at the latest.
    heard: Instant,
    /// How long the holder vouches for what it says, as far as it has said so.
    vouched: Duration,
    /// How many reports of this connection there were.
    reports: u64,
    /// The newest of them that the server carried out, as far as it has said so.
    answered: u64,
}

impl Clock {
    /// What it shows now, or a little less.
    fn now(&self) -> u64 {
        self.at.saturating_add(micros(self.heard.elapsed()))
    }
}

/// What goes with a holder's report.
struct ReportStamp {
    /// Until when it vouches, by the server's clock: 0 where that is not known yet, empty where the slots are lent to it.
    vouched_until: String,
    /// When it was said, by the server's clock, and never ahead of it; 0 where that is not known yet.
    said_at: u64,
    /// Which of the connection's reports it is.
    number: u64,
    /// The newest one that the server carried out, as far as it has said so: a record that lacks it is from before.
    answered: u64,
}

impl Clocks {
    /// A new connection of a node is known at the server, which showed this time. The answers about two connections may come in
    /// any order: an older one's brings only the time.
    fn connected(&self, node: &NodeId, epoch: Epoch, at: u64, vouched: Option<Duration>) {
        let (mut clocks, heard) = (self.all(), Instant::now());
        if clocks.len() >= NODES_LISTED_MAX {
            let kept = Duration::from_millis(NODE_TTL_MS_MAX);
            clocks.retain(|_, clock| heard.duration_since(clock.heard) < kept);
        }
        match clocks.get_mut(node) {
            Some(newer) if newer.epoch > epoch => (newer.at, newer.heard) = (at, heard),
            _ => {
                let vouched = vouched.unwrap_or_default();
                clocks.insert(node.clone(), Clock { epoch, at, heard, vouched, reports: 0, answered: 0 });
            }
        }
    }

    /// A server's answer about a node came, and with it its time.
    fn heard(&self, node: &NodeId, at: u64) {
        if let Some(clock) = self.all().get_mut(node) {
            (clock.at, clock.heard) = (at, Instant::now());
        }
    }

    /// Until when the holder vouches for what it says now, by the server's clock; 0 where that is not known yet.
    fn vouched_until(&self, node: &NodeId) -> u64 {
        let clocks = self.all();
        clocks.get(node).map_or(0, |clock| clock.now().saturating_add(micros(clock.vouched)))
    }

    /// What goes with a report that is made now, which vouches for so long, or has the slots lent.
    fn stamp(&self, node: &NodeId, vouched: Option<Duration>) -> ReportStamp {
        let mut clocks = self.all();
        let mut stamp = ReportStamp { vouched_until: String::new(), said_at: 0, number: 0, answered: 0 };
        if let Some(clock) = clocks.get_mut(node) {
            clock.reports += 1;
            clock.vouched = vouched.unwrap_or(clock.vouched);
            (stamp.said_at, stamp.number, stamp.answered) = (clock.now(), clock.reports, clock.answered);
        }
        if let Some(vouched) = vouched {
            let until = if stamp.said_at == 0 { 0 } else { stamp.said_at.saturating_add(micros(vouched)) };
            stamp.vouched_until = until.to_string();
        }
        stamp
    }

    /// The server has carried out this report of a connection.
    fn answered(&self, node: &NodeId, epoch: Epoch, number: u64) {
        let mut clocks = self.all();
        if let Some(clock) = clocks.get_mut(node).filter(|clock| clock.epoch == epoch) {
            clock.answered = clock.answered.max(number);
        }
    }

    /// This connection is over. The clock of a newer one of the same node stays: the answer to the end of the older one may
    /// come after the answer to the beginning of the newer one.
    fn forget(&self, node: &NodeId, epoch: Epoch) {
        let mut clocks = self.all();
        if clocks.get(node).is_some_and(|clock| clock.epoch == epoch) {
            clocks.remove(node);
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<NodeId, Clock>> {
        self.0.lock()
    }
}

fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

fn add_report(call: &mut Cmd, report: &Report, ttl_ms: u64) {
    let Report { capacity, state, document, ttl: _, vouched: _ } = report;
    call.arg(capacity).arg(state.as_str()).arg(&document[..]).arg(ttl_ms);
}

fn add_slots(call: &mut Cmd, slots: &[Slot]) {
    for slot in slots {
        call.arg(slot.to_string());
    }
}

fn add_claims(call: &mut Cmd, claims: &[Claim]) {
    for Claim { slot, token } in claims {
        call.arg(slot.to_string()).arg(token.get());
    }
}

/// What a script answers to who writes by its epoch.
fn written(answer: i64) -> Result<Written> {
    match answer {
        -2 => Ok(Written::Replaced),
        -1 => Ok(Written::Lost),
        version => u64::try_from(version)
            .map(|version| Written::Done(Version::new(version)))
            .map_err(|_| failure::unreadable()),
    }
}

fn is_one(answer: i64) -> Option<bool> {
    match answer {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// One answer for each that was asked for.
fn each<T>(answers: Vec<i64>, count: usize, meaning: impl Fn(i64) -> Option<T>) -> Result<Vec<T>> {
    let meant: Option<Vec<T>> = answers.into_iter().map(meaning).collect();
    meant.filter(|meant| meant.len() == count).ok_or_else(failure::unreadable)
}

/// Reads one place of a list of nodes.
fn named(node: &[u8], version: &[u8]) -> Option<(NodeId, Version)> {
    let node = NodeId::parse(std::str::from_utf8(node).ok()?).ok()?;
    Some((node, Version::new(std::str::from_utf8(version).ok()?.parse().ok()?)))
}

/// What `node_show` answers.
type Shown = (String, String, Vec<u8>, u64, u64, u32, u32, bool, bool, u64);

/// Reads a record. `None` for one that nobody of this kind can have written.
fn record(shown: Shown) -> Option<NodeRecord> {
    let (holder, state, document, epoch, version, capacity, used, is_online, is_complete, ttl_ms) = shown;
    Some(NodeRecord {
        holder: InstanceId::parse(&holder).ok()?,
        epoch: Epoch::new(epoch),
        version: Version::new(version),
        is_online,
        is_complete,
        capacity,
        used,
        state: NodeState::ALL.into_iter().find(|known| known.as_str() == state)?,
        document: Arc::from(document),
        ttl: Duration::from_millis(ttl_ms),
    })
}
