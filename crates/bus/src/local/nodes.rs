//! Nodes in memory.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use domain::{InstanceId, NodeId};

use super::Local;
use super::node::{Connection, Node};
use crate::limits::{NODES_LISTED_MAX, NODES_SWEEP_MS};
use crate::nodes::{check_lasting, check_listed, check_node_ttl, check_report, check_slots, merge_listed};
use crate::{
    Claim, Connected, Connecting, Epoch, Held, ListChange, NewConnection, NodeRecord, Nodes, Report,
    Reserved, Result, Slot, Unreserved, Version, Written,
};

/// All nodes of a hub.
#[derive(Default)]
pub(super) struct All {
    records: HashMap<NodeId, Node>,
    /// The newest version of any record; none ever goes back.
    newest: u64,
    /// The nodes that each instance lists, and the end of its list's time.
    lists: HashMap<InstanceId, (HashMap<NodeId, Version>, Instant)>,
    /// When records that ended are thrown away next.
    sweep: Option<Instant>,
}

impl All {
    /// The record of a node that has one.
    fn alive(&mut self, node: &NodeId, now: Instant) -> Option<&mut Node> {
        self.records.get_mut(node).filter(|record| record.lives(now))
    }

    /// The same while the node is online: only then its slots count.
    fn online(&mut self, node: &NodeId, now: Instant) -> Option<&mut Node> {
        self.alive(node, now).filter(|record| record.is_online())
    }

    fn next_version(&mut self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(since.as_micros()).unwrap_or_default();
        self.newest = now.max(self.newest + 1);
        self.newest
    }

    /// Has a connection write, if it may.
    fn write(
        &mut self,
        node: &NodeId,
        epoch: Epoch,
        now: Instant,
        write: impl FnOnce(&mut Node, u64) -> Written,
    ) -> Written {
        // Drawn before the record is held; one that is not used is no loss.
        let version = self.next_version();
        let Some(record) = self.alive(node, now) else { return Written::Lost };
        record.refusal(epoch).unwrap_or_else(|| write(record, version))
    }

    /// Throws away what ended, once in a while.
    fn sweep(&mut self, now: Instant) {
        if self.sweep.is_none_or(|due| due <= now) {
            self.records.retain(|_, record| record.lives(now));
            self.sweep = Some(now + Duration::from_millis(NODES_SWEEP_MS));
        }
    }
}

#[async_trait::async_trait]
impl Nodes for Local {
    async fn connect_node(
        &self,
        node: &NodeId,
        new: &NewConnection<'_>,
        report: &Report,
        running: &[Slot],
    ) -> Result<Connecting> {
        check_slots(running)?;
        check_report(report)?;
        let (mut nodes, now) = (self.open()?.nodes.lock(), Instant::now());
        nodes.sweep(now);
        nodes.newest = nodes.newest.max(new.floor.get().saturating_sub(1));
        let number = nodes.next_version();
        let (epoch, version) = (Epoch::new(number), Version::new(number));
        let since = now.checked_sub(new.age).unwrap_or(now);
        let new = Connection { new, report, running, epoch, since };
        if let Some(record) = nodes.online(node, now) {
            let connected = record.connect(&new, now);
            return Ok(connected.map_or_else(
                |refused| refused,
                |()| Connecting::Done(Connected { epoch, version, is_complete: record.is_complete() }),
            ));
        }
        nodes.records.insert(node.clone(), Node::new(&new, now));
        Ok(Connecting::Done(Connected { epoch, version, is_complete: false }))
    }

    async fn complete_node(&self, node: &NodeId, epoch: Epoch, unfinished: &[Slot]) -> Result<Written> {
        check_slots(unfinished)?;
        let mut nodes = self.open()?.nodes.lock();
        let now = Instant::now();
        Ok(nodes.write(node, epoch, now, |record, version| record.complete(unfinished, version, now)))
    }

    async fn refresh_node(
        &self,
        node: &NodeId,
        epoch: Epoch,
        report: &Report,
        gone: &[Slot],
    ) -> Result<Written> {
        check_slots(gone)?;
        check_report(report)?;
        let (mut nodes, now) = (self.open()?.nodes.lock(), Instant::now());
        Ok(nodes.write(node, epoch, now, |record, version| {
            record.free_all(gone);
            record.refresh(report, version, now)
        }))
    }

    async fn recount_node(
        &self,
        node: &NodeId,
        epoch: Epoch,
        report: &Report,
        taken: &[Slot],
    ) -> Result<Written> {
        check_slots(taken)?;
        check_report(report)?;
        let (mut nodes, now) = (self.open()?.nodes.lock(), Instant::now());
        Ok(nodes.write(node, epoch, now, |record, version| {
            record.list(taken, report, now);
            record.refresh(report, version, now)
        }))
    }

    async fn disconnect_node(&self, node: &NodeId, epoch: Epoch, ttl: Duration) -> Result<Written> {
        let ttl = Duration::from_millis(check_node_ttl(ttl)?);
        let (mut nodes, now) = (self.open()?.nodes.lock(), Instant::now());
        let end = now + ttl;
        Ok(nodes.write(node, epoch, now, |record, version| record.disconnect(version, end)))
    }

    async fn withdraw_node(&self, node: &NodeId, epoch: Epoch) -> Result<Written> {
        let (mut nodes, now) = (self.open()?.nodes.lock(), Instant::now());
        let written = nodes.write(node, epoch, now, |_, version| Written::Done(Version::new(version)));
        if matches!(written, Written::Done(_)) {
            nodes.records.remove(node);
        }
        Ok(written)
    }

    async fn reserve_slots(
        &self,
        node: &NodeId,
        claims: &[Claim],
        lasting: Duration,
    ) -> Result<Vec<Reserved>> {
        check_slots(claims)?;
        let lasting = Duration::from_millis(check_lasting(lasting)?);
        let (mut nodes, now) = (self.open()?.nodes.lock(), Instant::now());
        Ok(match nodes.online(node, now) {
            Some(record) => record.reserve(claims, now + lasting, now),
            None => vec![Reserved::NotReady; claims.len()],
        })
    }

    async fn send_slots(&self, node: &NodeId, epoch: Epoch, slots: &[Slot]) -> Result<Vec<bool>> {
        check_slots(slots)?;
        let (mut nodes, now) = (self.open()?.nodes.lock(), Instant::now());
        Ok(match nodes.online(node, now).filter(|record| record.refusal(epoch).is_none()) {
            Some(record) => record.send(slots, now),
            None => vec![false; slots.len()],
        })
    }

    async fn pass_slots(&self, node: &NodeId, epoch: Epoch, pairs: &[(Slot, Slot)]) -> Result<Vec<bool>> {
        check_slots(pairs)?;
        let (mut nodes, now) = (self.open()?.nodes.lock(), Instant::now());
        let Some(record) = nodes.online(node, now) else { return Ok(vec![false; pairs.len()]) };
        Ok(match record.refusal(epoch) {
            None => pairs.iter().map(|(over, follows)| record.pass(over, follows)).collect(),
            Some(_) => {
                pairs.iter().for_each(|(over, _)| record.free_all(&[*over]));
                vec![false; pairs.len()]
            }
        })
    }

    async fn unreserve_slots(&self, node: &NodeId, claims: &[Claim]) -> Result<Vec<Unreserved>> {
        check_slots(claims)?;
        let (mut nodes, now) = (self.open()?.nodes.lock(), Instant::now());
        Ok(match nodes.alive(node, now) {
            Some(record) if record.is_online() => record.unreserve(claims, now),
            // Its holder says that it is gone.
            Some(_) => vec![Unreserved::Absent; claims.len()],
            None => vec![Unreserved::Unknown; claims.len()],
        })
    }

    async fn free_slots(&self, node: &NodeId, slots: &[Slot]) -> Result<()> {
        check_slots(slots)?;
        if let Some(record) = self.open()?.nodes.lock().online(node, Instant::now()) {
            record.free_all(slots);
        }
        Ok(())
    }

    async fn held_slots(&self, node: &NodeId, slots: &[Slot]) -> Result<Held> {
        check_slots(slots)?;
        let (mut nodes, now) = (self.open()?.nodes.lock(), Instant::now());
        Ok(match nodes.online(node, now) {
            Some(record) => record.held(slots, now),
            None => Held { holder: None, age: None, is_taken: vec![false; slots.len()] },
        })
    }

    async fn show_nodes(&self, nodes: &[NodeId]) -> Result<HashMap<NodeId, NodeRecord>> {
        let (mut all, now) = (self.open()?.nodes.lock(), Instant::now());
        let show = |node: &NodeId| Some((node.clone(), all.alive(node, now)?.show(now)));
        Ok(nodes.iter().filter_map(show).collect())
    }

    async fn list_nodes(&self, holder: &InstanceId, change: &ListChange<'_>, ttl: Duration) -> Result<usize> {
        check_listed(change)?;
        let ttl = Duration::from_millis(check_node_ttl(ttl)?);
        let (mut all, now) = (self.open()?.nodes.lock(), Instant::now());
        all.lists.retain(|_, (_, end)| *end > now);
        let (list, end) = all.lists.entry(holder.clone()).or_insert_with(|| (HashMap::new(), now));
        if change.is_anew {
            list.clear();
        }
        for node in change.gone {
            list.remove(node);
        }
        for (node, version) in change.held {
            if list.len() < NODES_LISTED_MAX || list.contains_key(node) {
                list.insert(node.clone(), *version);
            }
        }
        *end = now + ttl;
        Ok(list.len())
    }

    async fn listed_nodes(&self, holders: &[InstanceId]) -> Result<HashMap<NodeId, Version>> {
        let (all, now) = (self.open()?.nodes.lock(), Instant::now());
        let lists = holders.iter().filter_map(|holder| all.lists.get(holder)).filter(|(_, end)| *end > now);
        let mut merged = HashMap::new();
        for (node, version) in lists.flat_map(|(list, _)| list) {
            merge_listed(&mut merged, node.clone(), *version);
        }
        Ok(merged)
    }
}
