//! A connection whose node has said hello: its slots, its answers, its health.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use bus::{NodeState, Slot};
use domain::limits::NODE_CAPACITY_MAX;
use domain::{InstanceId, NodeId, NodeTimeouts};

use super::effect::{Effect, Refused};
use super::frame::{Dispatch, End, FromNode, Hello, Progress, ToNode};
use super::{Effects, Fault};
use crate::limits::{ANSWERED_MAX, UNACKNOWLEDGED_MAX, silence_max};
use crate::record::Load;

#[derive(Debug)]
pub(super) struct Live {
    node: NodeId,
    capacity: u32,
    timeouts: NodeTimeouts,
    is_registered: bool,
    slots: HashMap<Slot, Held>,
    /// Dispatches by when they were sent; some are answered meanwhile.
    sent: VecDeque<Sent>,
    /// Dispatches in a row that were not acknowledged in time.
    unacknowledged: u32,
    /// Attempts whose result is committed and whose node may not have heard it.
    answered: Remembered,
    /// One of them was forgotten: from then on an attempt that is not known may have been such a one.
    has_forgotten: bool,
    /// Attempts that were called off before the node answered, and whose slots are free: it may still speak of them, but not
    /// after so many others.
    withdrawn: Remembered,
    /// When the last heartbeat came, or the hello.
    heard: Instant,
    /// When the last bytes came that count of a message that was not complete.
    arrived: Instant,
    /// When the record was last to be refreshed because the node showed that it lives.
    refreshed: Instant,
    /// No heartbeat came for so long that the connection ended.
    fell_silent: bool,
    /// The node wants no more work.
    is_draining: bool,
    /// An operator wants it to get no more work.
    is_drained: bool,
    /// As last reported.
    state: NodeState,
}

/// A slot that is taken.
#[derive(Debug)]
struct Held {
    stage: Stage,
    /// When it was sent, or listed in the hello.
    since: Instant,
    /// When it was called off.
    cancelled: Option<Instant>,
    /// When the first heartbeat came that did not list it though the node had had the time to read that it is called off.
    unlisted: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was heard of it.
    Sent,
    /// The node has it: it said so, or listed it.
    Running { has_acked: bool },
    /// Its result is being committed.
    Answered,
    /// The node got `stale` for its result.
    Stale,
}

#[derive(Debug)]
struct Sent {
    slot: Slot,
    at: Instant,
    /// When the last bytes came of a message behind which the answer may wait; until then, when it was sent.
    arrived: Instant,
    is_late: bool,
}

/// Attempts without a slot of which the node may still speak. The oldest are forgotten first.
#[derive(Debug, Default)]
struct Remembered {
    slots: HashSet<Slot>,
    order: VecDeque<Slot>,
}

impl Live {
    pub(super) fn begin(hello: &Hello, timeouts: NodeTimeouts, now: Instant) -> Result<Self, Fault> {
        if !(1..=NODE_CAPACITY_MAX).contains(&hello.capacity) {
            return Err(format!("capacity must be 1 to {NODE_CAPACITY_MAX}"));
        }
        if hello.running.len() > NODE_CAPACITY_MAX as usize {
            return Err(format!("running must list at most {NODE_CAPACITY_MAX} attempts"));
        }
        let running = Stage::Running { has_acked: false };
        let held = |slot: &Slot| (*slot, Held::new(running, now));
        let slots: HashMap<_, _> = hello.running.iter().map(held).collect();
        if slots.len() < hello.running.len() {
            return Err("running lists an attempt twice".to_owned());
        }
        let state = if hello.is_drained { NodeState::Draining } else { NodeState::Accepting };
        Ok(Self {
            node: hello.node.clone(),
            capacity: hello.capacity,
            timeouts,
            is_registered: false,
            slots,
            sent: VecDeque::new(),
            unacknowledged: 0,
            answered: Remembered::default(),
            has_forgotten: false,
            withdrawn: Remembered::default(),
            heard: now,
            arrived: now,
            refreshed: now,
            fell_silent: false,
            is_draining: false,
            is_drained: hello.is_drained,
            state,
        })
    }

    pub(super) const fn node(&self) -> &NodeId {
        &self.node
    }

    pub(super) const fn fell_silent(&self) -> bool {
        self.fell_silent
    }

    const fn heartbeat_ms(&self) -> u64 {
        self.timeouts.heartbeat.as_millis() as u64
    }

    pub(super) const fn state(&self) -> NodeState {
        self.state
    }

    pub(super) const fn is_drained(&self) -> bool {
        self.is_drained
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.slots.keys().copied()
    }

    pub(super) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn unanswered(&self) -> impl Iterator<Item = Slot> {
        self.slots.iter().filter(|(_, held)| held.stage == Stage::Sent).map(|(slot, _)| *slot)
    }

    pub(super) fn has(&self, slot: Slot) -> bool {
        self.slots.contains_key(&slot)
    }

    pub(super) fn registered(&mut self, holder: InstanceId, now: Instant) -> Effects {
        if self.is_registered {
            return vec![];
        }
        self.is_registered = true;
        let (node, heartbeat_ms) = (self.node.clone(), self.heartbeat_ms());
        let mut effects = vec![Effect::Send(ToNode::Welcome { node, instance: holder, heartbeat_ms })];
        let runs = |(slot, held): (&Slot, &Held)| {
            matches!(held.stage, Stage::Running { .. }).then_some(Effect::Acknowledged(*slot))
        };
        effects.extend(self.slots.iter().filter_map(runs));
        self.tell_state(now, &mut effects);
        effects
    }

    pub(super) fn on_frame(&mut self, frame: FromNode, now: Instant) -> Result<Effects, Fault> {
        let mut effects = match frame {
            FromNode::Hello(_) => return Err("hello may be said once".to_owned()),
            FromNode::Heartbeat { load, running } => self.heartbeat(load, &running, now)?,
            FromNode::Ready => {
                self.is_draining = false;
                vec![]
            }
            FromNode::Drain => {
                self.is_draining = true;
                vec![]
            }
            FromNode::Ack(slot) => self.ack(slot)?,
            FromNode::Reject { slot, reason } => self.reject(slot, reason)?,
            FromNode::Progress { slot, progress } => self.progress(slot, progress)?,
            FromNode::Result { slot, end } => self.result(slot, end)?,
        };
        self.tell_state(now, &mut effects);
        Ok(effects)
    }

    pub(super) fn on_bytes(&mut self, since: Instant, now: Instant) -> Effects {
        let NodeTimeouts { heartbeat, offline, unanswered, .. } = self.timeouts;
        if since.saturating_duration_since(self.heard) >= offline {
            return vec![];
        }
        self.arrived = now;
        for sent in &mut self.sent {
            // Before a message that began later, the answer was due.
            if since.saturating_duration_since(sent.at) < unanswered {
                sent.arrived = now;
            }
        }
        if now.duration_since(self.refreshed) < heartbeat {
            return vec![];
        }
        self.refreshed = now;
        vec![Effect::Arriving]
    }

    pub(super) fn on_tick(&mut self, now: Instant) -> Result<Effects, Fault> {
        let NodeTimeouts { offline, ack, unanswered, .. } = self.timeouts;
        if now.duration_since(self.heard.max(self.arrived)) >= offline {
            self.fell_silent = true;
            return Err(format!("no heartbeat for {} ms", offline.as_millis()));
        }
        let is_unanswered = |slots: &HashMap<Slot, Held>, sent: &Sent| {
            slots.get(&sent.slot).is_some_and(|held| held.owes_answer(ack))
        };
        while self.sent.front().is_some_and(|sent| !is_unanswered(&self.slots, sent)) {
            self.sent.pop_front();
        }
        if let Some(Sent { slot, arrived, .. }) = self.sent.front()
            && now.duration_since(*arrived) >= unanswered
        {
            return Err(format!("{slot} was not answered within {} ms", unanswered.as_millis()));
        }
        for sent in self.sent.iter_mut().take_while(|sent| now.duration_since(sent.at) >= ack) {
            if !sent.is_late && is_unanswered(&self.slots, sent) {
                sent.is_late = true;
                self.unacknowledged += 1;
            }
        }
        let mut effects = vec![];
        self.tell_state(now, &mut effects);
        Ok(effects)
    }

    pub(super) fn dispatch(
        &mut self,
        dispatch: Dispatch,
        given: usize,
        now: Instant,
    ) -> Result<Effects, Refused> {
        let slot = dispatch.slot;
        if self.slots.contains_key(&slot) || self.answered.slots.contains(&slot) {
            return Err(Refused::Known);
        }
        if !self.is_registered {
            return Err(Refused::NotReady);
        }
        if self.is_draining || self.is_drained {
            return Err(Refused::Draining);
        }
        if self.slots.len() + given >= self.capacity as usize {
            return Err(Refused::Full);
        }
        self.withdrawn.forget(slot);
        self.slots.insert(slot, Held::new(Stage::Sent, now));
        self.sent.push_back(Sent { slot, at: now, arrived: now, is_late: false });
        Ok(vec![Effect::Send(ToNode::Dispatch(dispatch))])
    }

    pub(super) fn committed(&mut self, slot: Slot) -> Effects {
        if self.stage(slot) != Some(Stage::Answered) {
            return vec![];
        }
        self.slots.remove(&slot);
        self.has_forgotten |= self.answered.remember(slot);
        vec![Effect::Send(ToNode::Committed(slot)), Effect::Free(slot)]
    }

    pub(super) fn stale(&mut self, slot: Slot, now: Instant) -> Effects {
        match self.slots.get_mut(&slot) {
            Some(held) if held.stage == Stage::Answered => {
                held.stage = Stage::Stale;
                vec![Effect::Send(ToNode::Stale(slot))]
            }
            _ => self.cancel(slot, now),
        }
    }

    pub(super) fn cancel(&mut self, slot: Slot, now: Instant) -> Effects {
        match self.slots.get_mut(&slot) {
            Some(Held { stage: Stage::Sent | Stage::Running { .. }, cancelled, .. })
                if cancelled.is_none() =>
            {
                *cancelled = Some(now);
                vec![Effect::Send(ToNode::Cancel(slot))]
            }
            _ => vec![],
        }
    }

    pub(super) fn take_back(&mut self, slot: Slot) -> bool {
        self.stage(slot) == Some(Stage::Sent) && self.slots.remove(&slot).is_some()
    }

    pub(super) fn drain(&mut self, is_drained: bool, now: Instant) -> Effects {
        let is_news = is_drained != self.is_drained;
        self.is_drained = is_drained;
        let mut effects = vec![];
        // The answer to its heartbeat tells a node that is not registered yet.
        if is_news && self.is_registered {
            effects.push(self.heartbeat_ok());
        }
        self.tell_state(now, &mut effects);
        effects
    }

    const fn heartbeat_ok(&self) -> Effect {
        Effect::Send(ToNode::HeartbeatOk { is_drained: self.is_drained })
    }

    fn heartbeat(&mut self, load: Load, running: &[Slot], now: Instant) -> Result<Effects, Fault> {
        let listed: HashSet<_> = running.iter().copied().collect();
        if listed.len() < running.len() {
            return Err("running lists an attempt twice".to_owned());
        }
        (self.heard, self.refreshed) = (now, now);
        if !self.is_registered {
            // What it lists is on its way to the bus. The next one will say what is gone by then.
            return Ok(vec![self.heartbeat_ok()]);
        }
        let (mut effects, mut is_back) = (vec![], false);
        for slot in running {
            match self.slots.get_mut(slot) {
                Some(held) if held.stage == Stage::Sent => {
                    held.stage = Stage::Running { has_acked: false };
                    self.unacknowledged = 0;
                    effects.push(Effect::Acknowledged(*slot));
                }
                Some(_) => {}
                None if self.withdrawn.slots.contains(slot) => {
                    // The node began it before it read the `cancel`, and has still to stop it.
                    self.withdrawn.forget(*slot);
                    let running = Held::new(Stage::Running { has_acked: false }, now);
                    self.slots.insert(*slot, Held { cancelled: Some(now), ..running });
                    is_back = true;
                }
                None if self.has_forgotten || self.answered.slots.contains(slot) => {}
                None => return Err(format!("running lists {slot}, which is not with this node")),
            }
        }
        let (mut gone, timeouts) = (vec![], self.timeouts);
        self.slots.retain(|slot, held| {
            let is_gone = !listed.contains(slot) && held.is_gone(timeouts, now);
            if is_gone {
                gone.push(*slot);
            }
            if is_gone && held.stage == Stage::Sent {
                self.withdrawn.remember(*slot);
            }
            !is_gone
        });
        if !gone.is_empty() {
            // Of a long list in the hello nothing is left in memory then.
            self.slots.shrink_to(2 * self.slots.len());
        }
        self.answered.keep(&listed);
        effects.extend([Effect::Heartbeat { load, gone, is_back }, self.heartbeat_ok()]);
        Ok(effects)
    }

    fn ack(&mut self, slot: Slot) -> Result<Effects, Fault> {
        let Some(held) = self.slots.get_mut(&slot) else {
            return self.unknown(slot);
        };
        match held.stage {
            Stage::Sent => {
                held.stage = Stage::Running { has_acked: true };
                self.unacknowledged = 0;
                Ok(vec![Effect::Acknowledged(slot)])
            }
            // A heartbeat overtook it.
            Stage::Running { has_acked: false } => {
                held.stage = Stage::Running { has_acked: true };
                Ok(vec![])
            }
            Stage::Running { has_acked: true } => Err(format!("{slot} was acknowledged before")),
            Stage::Answered | Stage::Stale => Err(format!("{slot} is acknowledged after its result")),
        }
    }

    fn reject(&mut self, slot: Slot, reason: String) -> Result<Effects, Fault> {
        match self.stage(slot) {
            Some(Stage::Sent) => {
                self.slots.remove(&slot);
                self.unacknowledged = 0;
                Ok(vec![Effect::Rejected { slot, reason }])
            }
            Some(_) => Err(format!("{slot} is rejected after it was acknowledged or listed")),
            None => self.unknown(slot),
        }
    }

    fn progress(&self, slot: Slot, progress: Progress) -> Result<Effects, Fault> {
        match self.stage(slot) {
            // The node may not have heard yet that it is called off.
            Some(Stage::Running { .. }) if self.slots[&slot].cancelled.is_some() => Ok(vec![]),
            Some(Stage::Running { .. }) => Ok(vec![Effect::Progress { slot, progress }]),
            Some(Stage::Sent) => Err(format!("{slot} makes progress before it was acknowledged")),
            Some(Stage::Answered | Stage::Stale) => Err(format!("{slot} makes progress after its result")),
            None => self.unknown(slot),
        }
    }

    fn result(&mut self, slot: Slot, end: End) -> Result<Effects, Fault> {
        let Some(held) = self.slots.get_mut(&slot) else {
            // It comes again, or late. If it was forgotten it had its answer; either answer makes the node forget it too.
            let is_answered = self.answered.slots.contains(&slot);
            let answer = if is_answered { ToNode::Committed(slot) } else { ToNode::Stale(slot) };
            return Ok(vec![Effect::Send(answer)]);
        };
        match held.stage {
            Stage::Sent | Stage::Running { .. } => {
                held.stage = Stage::Answered;
                self.unacknowledged = 0;
                Ok(vec![Effect::Result { slot, end }])
            }
            Stage::Answered => Ok(vec![]),
            Stage::Stale => Ok(vec![Effect::Send(ToNode::Stale(slot))]),
        }
    }

    /// A frame other than a result about an attempt that this node does not have: a protocol error, unless this instance has
    /// forgotten the attempt, or called it off before the node answered.
    fn unknown(&self, slot: Slot) -> Result<Effects, Fault> {
        match self.has_forgotten || self.withdrawn.slots.contains(&slot) {
            true => Ok(vec![]),
            false => Err(format!("{slot} is not with this node")),
        }
    }

    fn stage(&self, slot: Slot) -> Option<Stage> {
        self.slots.get(&slot).map(|held| held.stage)
    }

    /// Whether the node gets work.
    fn state_at(&self, now: Instant) -> NodeState {
        let is_silent = now.duration_since(self.heard) > silence_max(self.heartbeat_ms());
        if self.is_draining || self.is_drained {
            NodeState::Draining
        } else if is_silent || self.unacknowledged >= UNACKNOWLEDGED_MAX {
            NodeState::Unhealthy
        } else {
            NodeState::Accepting
        }
    }

    /// Tells whether the node gets work, if that has changed.
    fn tell_state(&mut self, now: Instant, effects: &mut Effects) {
        let state = self.state_at(now);
        if self.is_registered && state != self.state {
            self.state = state;
            effects.push(Effect::State(state));
        }
    }
}

impl Held {
    const fn new(stage: Stage, since: Instant) -> Self {
        Self { stage, since, cancelled: None, unlisted: None }
    }

    /// Whether it was called off so soon that the node, which answers within `ack`, may answer nothing to it. What was called
    /// off later owes its answer all the same: lanes take back what a node does not answer, and that proves no node well.
    fn is_excused(&self, ack: Duration) -> bool {
        let is_soon = |at: Instant| at.duration_since(self.since) < ack / 2;
        self.cancelled.is_some_and(is_soon)
    }

    /// Whether the node is to answer it.
    fn owes_answer(&self, ack: Duration) -> bool {
        self.stage == Stage::Sent && !self.is_excused(ack)
    }

    /// A heartbeat does not list it: whether its slot is free.
    fn is_gone(&mut self, timeouts: NodeTimeouts, now: Instant) -> bool {
        match self.stage {
            Stage::Sent => self.is_withdrawn(timeouts, now),
            Stage::Running { .. } | Stage::Stale => true,
            Stage::Answered => false,
        }
    }

    /// Whether a heartbeat that does not list it shows that the node, which need not answer, does not run it. The first one
    /// that comes when the node has had the time to read the `cancel` may have waited here or on its way, and have been sent
    /// before; what the node said after it then waits right behind it. So a later one counts.
    fn is_withdrawn(&mut self, timeouts: NodeTimeouts, now: Instant) -> bool {
        let NodeTimeouts { ack, heartbeat, .. } = timeouts;
        let is_read = self.cancelled.is_some_and(|at| now.duration_since(at) >= ack);
        if !is_read || !self.is_excused(ack) {
            return false;
        }
        let unlisted = *self.unlisted.get_or_insert(now);
        now.duration_since(unlisted) >= heartbeat / 2
    }
}

impl Remembered {
    /// Whether another one was forgotten for it.
    fn remember(&mut self, slot: Slot) -> bool {
        let oldest = if self.order.len() >= ANSWERED_MAX { self.order.pop_front() } else { None };
        if let Some(oldest) = oldest {
            self.slots.remove(&oldest);
        }
        self.slots.insert(slot);
        self.order.push_back(slot);
        oldest.is_some()
    }

    fn forget(&mut self, slot: Slot) {
        if self.slots.remove(&slot) {
            self.order.retain(|remembered| *remembered != slot);
        }
    }

    /// A node that lists them no more has heard the answer.
    fn keep(&mut self, listed: &HashSet<Slot>) {
        self.slots.retain(|slot| listed.contains(slot));
        self.order.retain(|slot| listed.contains(slot));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use domain::JobId;
    use domain::job::Attempt;

    use super::*;

    #[test]
    fn a_long_list_takes_no_memory_when_the_node_does_not_list_it_any_more() {
        let now = Instant::now();
        let slot = |n: u128| Slot { job: JobId::from_u128(n), attempt: Attempt::new(1) };
        let hello = Hello {
            node: NodeId::parse("n").unwrap(),
            capacity: NODE_CAPACITY_MAX,
            takes_batches: false,
            labels: Arc::default(),
            services: Arc::default(),
            pools: None,
            software: None,
            is_drained: false,
            running: (0..1_000).map(slot).collect(),
            principal: "".into(),
        };
        let mut live = Live::begin(&hello, NodeTimeouts::DEFAULT, now).unwrap();
        live.registered(InstanceId::parse("here-1").unwrap(), now);
        let heartbeat = FromNode::Heartbeat { load: Load::default(), running: vec![slot(1)] };
        live.on_frame(heartbeat, now).unwrap();
        assert_eq!(live.slot_count(), 1);
        assert!(live.slots.capacity() < 100, "{}", live.slots.capacity());
    }
}
