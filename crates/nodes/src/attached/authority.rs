//! Who gives the node's slots: the bus; or, while the bus lends them or is away, this instance to its own lanes. The first
//! word that has the bus give them again lists the slots that are taken; until then no instance reserves one there.
//!
//! The bus may come back with an older state, in which the record has slots that are free by now and lacks others that are
//! taken. So the first word over a new link, and the first one after a call that failed, lists the slots that are taken too. A
//! server of a Redis Cluster may take another's place with an older state while no call fails and the link stays up: so does the
//! word of every second heartbeat.

use std::collections::HashSet;
use std::sync::Arc;

use bus::{Epoch, Slot, Written};
use domain::job::Revoked;

use super::{AtBus, AttachedNode, Effect, Registered};
use crate::holder_slots::Room;
use crate::limits::LISTED_HEARTBEATS;

impl AttachedNode {
    /// A call to the bus was answered, or not. Whether it did what it was to do is `is_done`.
    pub(super) fn answered<T>(&mut self, answer: &bus::Result<T>, is_done: bool, is_lent: bool) {
        match answer {
            Ok(_) if is_done || !is_lent => self.authority.heard(is_lent, self.moment.now),
            Err(error) if error.may_have_run() => self.authority.may_be_heard(is_lent, self.moment.now),
            Ok(_) | Err(_) => self.authority.unheard(is_lent),
        }
    }

    /// Takes note of how the link to the bus is. Whether it was made anew.
    pub(super) fn look_at_link(&mut self) -> bool {
        let up_since = self.moment.bus_up_since;
        let is_other = self.bus_up_since != up_since;
        if is_other {
            self.bus_up_since = up_since;
            self.doubt();
        }
        is_other && up_since.is_some()
    }

    /// The bus may have lost what was written of the node: from now on the record counts as one that does not list all that is
    /// taken, until a word has listed it that was not sent yet.
    pub(super) fn doubt(&mut self) {
        if self.is_known() {
            self.is_doubted = true;
            self.authority.ahead(true);
        }
    }

    /// A heartbeat came, or waits behind a message that takes long to arrive. If its word is one that is to list all that is
    /// taken, nothing new is asked of the record until it has. What follows results on their slots would be on no list, so the
    /// list waits for those that are being committed, for one heartbeat at most.
    pub(super) fn list_in_time(&mut self) {
        self.heartbeats_unlisted += 1;
        if self.heartbeats_unlisted < LISTED_HEARTBEATS {
            return;
        }
        self.lists_when_passed = self.passing > 0 && self.heartbeats_unlisted == LISTED_HEARTBEATS;
        if !self.lists_when_passed {
            self.doubt();
        }
    }

    /// Says how many slots there are to give here, after whatever happened.
    pub(super) fn settle_slots(&mut self) {
        self.forget_unlisted_here();
        let Some(hello) = &self.hello else { return };
        // One that is not sent after all is freed as an unlisted one.
        let sending = self.sending.iter().filter(|slot| !self.unlisted.contains(slot)).count();
        let room = Room {
            gives_from: self.registered.as_ref().and_then(|_| self.authority.gives_from()),
            is_ready: self.connection.state() == Some(bus::NodeState::Accepting),
            capacity: hello.capacity as usize,
            used: self.connection.slot_count() + sending + self.unlisted.len(),
        };
        self.holder_slots.settle(room);
    }

    /// Whether this instance gives the slots now.
    pub(super) fn gives(&self) -> bool {
        self.registered.is_some() && self.authority.gives(self.moment.now)
    }

    /// A word is about to be sent to the bus, which may have the bus give the slots: from then on this instance gives none.
    /// A list that `is_lent` sends may land after an attempt that it lacks was sent: until it is heard of, the record does
    /// not list all that is taken.
    pub(super) fn say(&mut self, is_lent: bool) {
        let gave = !is_lent && self.holder_slots.close(self.moment.now);
        if gave || is_lent {
            self.authority.ahead(true);
        }
        self.authority.said(is_lent);
    }

    /// The bus did not take the node's record: the node is welcomed for jobs of this instance's lanes, and is registered when
    /// the bus does.
    pub(super) fn welcome_alone(&mut self, epoch: Epoch, error: &bus::Error) {
        let Some(hello) = &self.hello else { return };
        let (node, drained) = (&hello.node, self.drained());
        tracing::info!(%node, drained, %error, "a node is connected and could not be registered at the bus yet");
        let profile = Arc::new(self.profile(hello));
        self.registered = Some(Registered { profile, epoch, at_bus: AtBus::Unknown });
        let running = self.take_running();
        // What the node does not list any more is lost, and the lanes learn of it by the lookup.
        let attach = Effect::Attach { since: self.since, running: running.clone() };
        self.out.extend([attach, Effect::LookUp { running }]);
        let effects = self.connection.registered(self.moment.now);
        self.follow(effects);
        let early = self.take_early();
        self.commit(early);
        self.note();
    }

    /// All slots that are taken: those of the connection, those that wait for their dispatches, and those of attempts that
    /// the node does not list.
    pub(super) fn all_taken(&self) -> Vec<Slot> {
        let mut taken = self.given_or_with_node();
        taken.extend(&self.unlisted);
        taken
    }

    /// The same without attempts that the node does not list.
    pub(super) fn given_or_with_node(&self) -> Vec<Slot> {
        self.connection.slots().chain(self.holder_slots.given()).collect()
    }

    /// The record at the bus lists these as taken; it does not list yet what was taken meanwhile.
    pub(super) fn listed(&mut self, listed: &[Slot]) {
        let listed: HashSet<_> = listed.iter().copied().collect();
        let is_all = self.given_or_with_node().iter().all(|slot| listed.contains(slot));
        self.authority.ahead(!is_all || self.is_doubted);
    }

    /// Sends the dispatches that came before the record listed the taken slots.
    pub(super) fn send_held_back(&mut self) {
        if self.is_doubted {
            // Nor does the record's next list wait for the next heartbeat.
            self.refresh_again |= !self.held_back.is_empty();
            return;
        }
        let held_back = std::mem::take(&mut self.held_back);
        if !held_back.is_empty() {
            self.send_out(held_back);
        }
    }

    /// The bus cannot be asked whether the dispatches that are held back have their slots.
    pub(super) fn refuse_held_back(&mut self) {
        for dispatch in std::mem::take(&mut self.held_back) {
            self.refuse(dispatch.slot);
        }
    }

    /// The bus cannot be asked whether this attempt has its slot.
    pub(super) fn refuse(&mut self, slot: Slot) {
        self.came_to_nothing(slot, Revoked::Undeliverable, "the bus did not say that the slot is taken");
        self.not_sent(slot);
    }

    /// What became of a call that may have listed the taken slots.
    pub(super) fn on_counted(&mut self, written: &bus::Result<Written>, listed: Option<Vec<Slot>>) {
        match written {
            Ok(Written::Done(_)) => {
                if let Some(listed) = listed {
                    self.listed(&listed);
                    // The slot of what has ended meanwhile was freed before the record listed it as taken.
                    let taken: HashSet<_> = self.all_taken().into_iter().collect();
                    if !self.gives() {
                        self.free(listed.into_iter().filter(|slot| !taken.contains(slot)).collect());
                    }
                }
                self.send_held_back();
            }
            // The record is made anew first.
            Ok(Written::Lost | Written::Replaced) => {}
            Err(_) => {
                self.doubt();
                self.refuse_held_back();
                self.note();
            }
        }
    }
}
