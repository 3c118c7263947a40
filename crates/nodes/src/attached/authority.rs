//! Who grants the node's slots: the bus, or, while the bus is away, this instance to its own lanes. The first
//! call that reaches the bus again lists the granted slots; until then no instance reserves a slot there.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use bus::{Claim, Epoch, Reserved, Slot, Written};
use domain::job::Revoked;

use super::{AttachedNode, Effect, Registered};

impl AttachedNode {
    /// A call to the bus was answered, or not.
    pub(super) fn answered<T>(&mut self, answer: &bus::Result<T>) {
        match answer {
            Err(error) if !error.may_have_run() => self.authority.unheard(),
            Ok(_) | Err(_) => self.authority.heard(self.moment.now),
        }
    }

    /// The bus is away: the node is welcomed for jobs of this instance's lanes, and is registered when the
    /// bus is back.
    pub(super) fn welcome_alone(&mut self, epoch: Epoch) {
        let Some(hello) = &self.hello else { return };
        tracing::info!(node = %hello.node, "a node is connected while the bus is away");
        let (profile, running) = (Arc::new(self.profile(hello)), hello.running.clone());
        self.registered = Some(Registered { profile, epoch, is_provisional: true });
        // What the node does not list any more is lost, and the lanes learn of it by the lookup.
        self.out.extend([Effect::Attach(self.since), Effect::LookUp { running }]);
        let effects = self.connection.registered(&[], self.moment.now);
        self.follow(effects);
        let early = std::mem::take(&mut self.early_results);
        self.commit(early);
        self.note();
    }

    /// A lane of this instance wants slots, and could not ask the bus for them.
    pub(super) fn grant(&mut self, number: usize, claims: &[Claim], until: Instant) {
        let now = self.moment.now;
        let given = self.authority.may_give(now).then(|| self.connection.grant(claims, until, now));
        if given.as_ref().is_some_and(|given| given.contains(&Reserved::Yes)) {
            self.authority.ahead(true);
            self.note();
        }
        self.out.push(Effect::Granted { number, given });
    }

    /// All slots that are taken, if the record may not know of some.
    pub(super) fn recount(&self) -> Option<Vec<Slot>> {
        self.authority.is_ahead().then(|| self.all_taken().collect())
    }

    fn all_taken(&self) -> impl Iterator<Item = Slot> {
        self.connection.taken().chain(self.unlisted.iter().copied())
    }

    /// The record at the bus lists these as taken; it does not list yet what was taken meanwhile.
    pub(super) fn listed(&mut self, listed: &[Slot]) {
        let listed: HashSet<_> = listed.iter().copied().collect();
        let is_all = self.connection.taken().all(|slot| listed.contains(&slot));
        self.authority.ahead(!is_all);
    }

    /// Sends the dispatches that came before the record listed the taken slots.
    pub(super) fn send_held_back(&mut self) {
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
        self.called_off.remove(&slot);
        self.came_to_nothing(slot, Revoked::Undeliverable, "the bus is away, and with it the slot");
    }

    /// What became of a call that may have listed the taken slots.
    pub(super) fn on_counted(&mut self, written: &bus::Result<Written>, listed: Option<Vec<Slot>>) {
        match written {
            Ok(Written::Done(_)) => {
                if let Some(listed) = listed {
                    self.listed(&listed);
                    // The slot of what has ended meanwhile was freed before the record listed it as taken.
                    let taken: HashSet<_> = self.all_taken().collect();
                    self.free(listed.into_iter().filter(|slot| !taken.contains(slot)).collect());
                }
                self.send_held_back();
            }
            // The record is made anew first.
            Ok(Written::Lost | Written::Replaced) => {}
            Err(_) => {
                self.refuse_held_back();
                self.note();
            }
        }
    }
}
