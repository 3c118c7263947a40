//! One node's record and slots: what the scripts do at a server, as plain steps. The time comes in.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{InstanceId, Token};

use crate::limits::NODE_YOUNGER_MS;
use crate::{
    Claim, Connecting, Epoch, Held, NewConnection, NodeRecord, NodeState, Report, Reserved, Slot, Unreserved,
    Version, Written,
};

/// What is known of a node.
pub(super) struct Node {
    holder: InstanceId,
    principal: Arc<str>,
    report: Report,
    epoch: Epoch,
    /// When the connection began.
    since: Instant,
    version: Version,
    is_online: bool,
    is_complete: bool,
    /// Until then its holder vouches for the slots.
    vouched_until: Option<Instant>,
    /// When the holder, while the slots are lent to it, listed them last.
    listed: Option<Instant>,
    /// How many slots were taken when the version rose last.
    reported: usize,
    /// When the record ends unless it is refreshed.
    end: Instant,
    slots: HashMap<Slot, Taken>,
    /// The ends of all reservations.
    reserved: BTreeSet<(Instant, Slot)>,
}

/// What a slot is taken by.
#[derive(Clone, Copy)]
enum Taken {
    /// What was running when a connection began, or what the ledger knew of.
    Running,
    /// What this connection sent.
    Sent(Epoch),
    /// What is to be sent before then.
    Reserved { token: Token, end: Instant },
}

/// A connection that is new.
pub(super) struct Connection<'a> {
    pub(super) new: &'a NewConnection<'a>,
    pub(super) report: &'a Report,
    /// What the node says that it is running.
    pub(super) running: &'a [Slot],
    pub(super) epoch: Epoch,
    /// When it began.
    pub(super) since: Instant,
}

impl Node {
    /// The first connection of a node without a record.
    pub(super) fn new(new: &Connection<'_>, now: Instant) -> Self {
        let mut node = Self {
            holder: new.new.holder.clone(),
            principal: new.new.principal.into(),
            report: new.report.clone(),
            epoch: new.epoch,
            since: new.since,
            version: Version::new(new.epoch.get()),
            is_online: true,
            is_complete: false,
            vouched_until: None,
            listed: None,
            reported: 0,
            end: now + new.report.ttl,
            slots: HashMap::new(),
            reserved: BTreeSet::new(),
        };
        node.take_over(new, now);
        node
    }

    /// A newer connection takes it over; unless this one is another principal's, or is younger, another instance's, and
    /// hears of the node, as far as the caller knows. Nor does one that seems equally old take back what it lost to this one,
    /// nor one that comes late for the first time what a younger one has.
    pub(super) fn connect(&mut self, new: &Connection<'_>, now: Instant) -> Result<(), Connecting> {
        let NewConnection { holder, principal, age, over, had, .. } = *new.new;
        if self.is_online && *self.principal != *principal {
            return Err(Connecting::Anothers);
        }
        let alike = Duration::from_millis(NODE_YOUNGER_MS);
        let has_lost = had.is_some_and(|had| self.epoch > had);
        let is_late = had.is_none() && age > alike;
        let is_younger = self.since > new.since + alike
            || has_lost && self.since + alike >= new.since
            || is_late && self.since > new.since;
        let hears_of_it = self.report.state != NodeState::Unhealthy && over != Some(self.epoch);
        if is_younger && self.is_online && self.holder != *holder && hears_of_it {
            return Err(Connecting::Younger);
        }
        self.take_over(new, now);
        Ok(())
    }

    fn take_over(&mut self, new: &Connection<'_>, now: Instant) {
        let Connection { new, report, running, epoch, since } = *new;
        self.prune(now);
        self.recount(running);
        self.holder = new.holder.clone();
        self.principal = new.principal.into();
        self.report = report.clone();
        self.listed = None;
        if report.vouched.is_none() {
            self.vouched_until = None;
        }
        self.epoch = epoch;
        self.since = since;
        self.is_online = true;
        self.end = now + report.ttl;
        self.rise(epoch.get());
    }

    /// A word of the holder: what was sent is exactly this.
    pub(super) fn list(&mut self, running: &[Slot], report: &Report, now: Instant) {
        self.recount(running);
        self.listed = report.vouched.is_none().then_some(now);
    }

    /// What was sent is exactly this.
    fn recount(&mut self, running: &[Slot]) {
        let listed: HashSet<_> = running.iter().collect();
        self.slots.retain(|slot, taken| matches!(taken, Taken::Reserved { .. }) || listed.contains(slot));
        for slot in running {
            self.free(slot);
            self.slots.insert(*slot, Taken::Running);
        }
        // Of a long list before nothing is left in memory.
        self.slots.shrink_to(2 * self.slots.len());
    }

    pub(super) fn complete(&mut self, unfinished: &[Slot], version: u64, now: Instant) -> Written {
        for slot in unfinished {
            self.slots.entry(*slot).or_insert(Taken::Running);
        }
        self.is_complete = true;
        self.vouch(now);
        self.rise(version)
    }

    pub(super) fn refresh(&mut self, report: &Report, version: u64, now: Instant) -> Written {
        self.prune(now);
        self.end = now + report.ttl;
        let Report { capacity, state, document, ttl: _, vouched: _ } = &self.report;
        let is_same = (*capacity, *state) == (report.capacity, report.state) && *document == report.document;
        self.report = report.clone();
        self.vouch(now);
        if is_same && self.reported == self.slots.len() {
            Written::Done(self.version)
        } else {
            self.rise(version)
        }
    }

    /// Offline; the record stays until then to say so.
    pub(super) fn disconnect(&mut self, version: u64, end: Instant) -> Written {
        self.is_online = false;
        self.is_complete = false;
        self.end = end;
        self.slots = HashMap::new();
        self.reserved = BTreeSet::new();
        self.rise(version)
    }

    pub(super) fn reserve(&mut self, claims: &[Claim], end: Instant, now: Instant) -> Vec<Reserved> {
        self.prune(now);
        let is_accepting = self.is_complete && self.report.state == NodeState::Accepting;
        let unready = match is_accepting && self.listed.is_some() && !self.is_known(now) {
            true => Reserved::Lent,
            false => Reserved::NotReady,
        };
        let is_ready = is_accepting && self.is_known(now);
        let reserve = |Claim { slot, token }: &Claim| {
            match self.slots.get(slot) {
                // A lane's next owner takes over what the last one reserved. A repeated call gains no time.
                Some(Taken::Reserved { token: earlier, .. }) if earlier < token => self.free(slot),
                Some(_) => return Reserved::Yes,
                None if !is_ready => return unready,
                None if self.slots.len() >= self.report.capacity as usize => return Reserved::Full,
                None => {}
            }
            self.slots.insert(*slot, Taken::Reserved { token: *token, end });
            self.reserved.insert((end, *slot));
            Reserved::Yes
        };
        claims.iter().map(reserve).collect()
    }

    pub(super) fn send(&mut self, slots: &[Slot], now: Instant) -> Vec<bool> {
        self.prune(now);
        let send = |slot: &Slot| match self.slots.get(slot) {
            Some(Taken::Reserved { .. }) => {
                self.free(slot);
                self.slots.insert(*slot, Taken::Sent(self.epoch));
                true
            }
            Some(Taken::Sent(epoch)) => *epoch == self.epoch,
            Some(Taken::Running) | None => false,
        };
        slots.iter().map(send).collect()
    }

    /// Whether what follows has the slot of what is over.
    pub(super) fn pass(&mut self, over: &Slot, follows: &Slot) -> bool {
        let had = self.slots.get(over).copied();
        let is_mine = matches!(self.slots.get(follows), Some(Taken::Sent(epoch)) if *epoch == self.epoch);
        self.free(over);
        let is_passed = is_mine || matches!(had, Some(Taken::Running | Taken::Sent(_)));
        if is_passed {
            self.free(follows);
            self.slots.insert(*follows, Taken::Sent(self.epoch));
        }
        is_passed
    }

    pub(super) fn unreserve(&mut self, claims: &[Claim], now: Instant) -> Vec<Unreserved> {
        self.prune(now);
        let absent = if self.is_known(now) { Unreserved::Absent } else { Unreserved::Unknown };
        let unreserve = |Claim { slot, token }: &Claim| match self.slots.get(slot) {
            Some(Taken::Reserved { token: reserved, .. }) if reserved <= token => {
                self.free(slot);
                Unreserved::Removed
            }
            Some(Taken::Reserved { .. }) => Unreserved::Absent,
            None => absent,
            Some(Taken::Running | Taken::Sent(_)) => Unreserved::WasSent,
        };
        claims.iter().map(unreserve).collect()
    }

    pub(super) fn free_all(&mut self, slots: &[Slot]) {
        slots.iter().for_each(|slot| self.free(slot));
    }

    pub(super) fn held(&mut self, slots: &[Slot], now: Instant) -> Held {
        self.prune(now);
        let is_taken = slots.iter().map(|slot| self.slots.contains_key(slot)).collect();
        let age = |at: Instant| now.duration_since(at).max(Duration::from_nanos(1));
        let listed = self.listed.filter(|_| self.is_complete).map(age);
        let age = if self.is_known(now) { Some(Duration::ZERO) } else { listed };
        Held { holder: Some(self.holder.clone()), age, is_taken }
    }

    pub(super) fn show(&mut self, now: Instant) -> NodeRecord {
        self.prune(now);
        NodeRecord {
            holder: self.holder.clone(),
            epoch: self.epoch,
            version: self.version,
            is_online: self.is_online,
            is_complete: self.is_complete,
            capacity: self.report.capacity,
            used: u32::try_from(self.slots.len()).unwrap_or(u32::MAX),
            state: self.report.state,
            document: self.report.document.clone(),
            ttl: self.end.saturating_duration_since(now),
        }
    }

    /// Whether there still is a record.
    pub(super) fn lives(&self, now: Instant) -> bool {
        self.end > now
    }

    pub(super) const fn is_online(&self) -> bool {
        self.is_online
    }

    pub(super) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Why this connection may not write; `None` if it may.
    pub(super) fn refusal(&self, epoch: Epoch) -> Option<Written> {
        if self.epoch > epoch {
            return Some(Written::Replaced);
        }
        (self.epoch < epoch || !self.is_online).then_some(Written::Lost)
    }

    /// Whether all slots are known, and vouched for now.
    fn is_known(&self, now: Instant) -> bool {
        self.is_complete && self.vouched_until.is_some_and(|until| until > now)
    }

    fn vouch(&mut self, now: Instant) {
        self.vouched_until = match self.report.vouched {
            Some(vouched) => {
                self.listed = None;
                self.vouched_until.max(Some(now + vouched))
            }
            None => None,
        };
    }

    fn rise(&mut self, version: u64) -> Written {
        self.version = Version::new(version);
        self.reported = self.slots.len();
        Written::Done(self.version)
    }

    fn free(&mut self, slot: &Slot) {
        if let Some(Taken::Reserved { end, .. }) = self.slots.remove(slot) {
            self.reserved.remove(&(end, *slot));
        }
    }

    /// Frees what was reserved for too long.
    fn prune(&mut self, now: Instant) {
        while let Some((end, slot)) = self.reserved.first().copied()
            && end <= now
        {
            self.free(&slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::JobId;
    use domain::job::Attempt;

    use super::*;

    #[test]
    fn a_long_list_takes_no_memory_when_a_short_one_has_followed_it() {
        let (holder, now, ttl) = (InstanceId::parse("a-1").unwrap(), Instant::now(), Duration::from_secs(9));
        let new = NewConnection {
            holder: &holder,
            principal: "",
            age: Duration::ZERO,
            over: None,
            had: None,
            floor: Epoch::new(0),
        };
        let state = NodeState::Accepting;
        let report = Report { capacity: 1, state, document: Arc::default(), ttl, vouched: None };
        let slot = |n| Slot { job: JobId::from_u128(n), attempt: Attempt::new(1) };
        let running: Vec<_> = (0..1_000).map(slot).collect();
        let new =
            Connection { new: &new, report: &report, running: &running, epoch: Epoch::new(1), since: now };
        let mut node = Node::new(&new, now);
        node.list(&running[..1], &report, now);
        assert_eq!(node.slots.len(), 1);
        assert!(node.slots.capacity() < 100, "{}", node.slots.capacity());
    }
}
