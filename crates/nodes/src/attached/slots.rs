//! Slots and what runs on them: dispatches on their way to the node, results on their way to the ledger.
//!
//! For one dispatch: its slot is `sent` at the bus, then the frame leaves. For one result: it is committed,
//! then the node gets `committed`, then the slot is freed at the bus, or passed to the attempt that the same
//! commit dispatched. While this instance gives the slots, the bus is not asked.

use bus::Slot;
use domain::job::Revoked;

use super::{AttachedNode, CommitTerms, Committed, Effect, FromLane};
use crate::connection::{self, CloseCode, Dispatch, End, Refused};
use crate::limits::EARLY_RESULTS_BYTES_MAX;

impl AttachedNode {
    /// What the lanes want of the node.
    pub(super) fn on_wanted(&mut self, wishes: Vec<FromLane>) {
        let now = self.moment.now;
        let (mut dispatches, mut effects, mut unknown) = (Vec::<Dispatch>::new(), Vec::new(), Vec::new());
        let mut is_shared = false;
        for wish in wishes {
            match wish {
                FromLane::Dispatch { dispatch, .. } if self.holder_slots.take(dispatch.slot, now) => {
                    let sent = self.dispatch(dispatch);
                    effects.extend(sent);
                }
                // It was delivered twice. Whatever became of asking for its slot again would be said of the first.
                FromLane::Dispatch { dispatch, .. } if self.is_under_way(dispatch.slot, &dispatches) => {}
                FromLane::Dispatch { dispatch, is_foreign } => {
                    if is_foreign {
                        self.authority.share(now);
                    }
                    dispatches.push(dispatch);
                }
                FromLane::Cancel(slot) => {
                    if self.connection.has(slot) {
                        effects.extend(self.connection.cancel(slot, now));
                    } else if self.is_under_way(slot, &dispatches) {
                        self.called_off.insert(slot);
                    } else {
                        // The node does not have it.
                        unknown.push(slot);
                    }
                }
                FromLane::Drain(is_drained) => {
                    effects.extend(self.connection.drain(is_drained, now));
                }
                FromLane::Share => {
                    self.authority.share(now);
                    is_shared = true;
                }
            }
        }
        self.follow(effects);
        self.free_at_bus(unknown);
        if is_shared && self.passing == 0 {
            self.refresh();
        } else if is_shared {
            self.shares_when_passed = true;
        }
        if dispatches.is_empty() {
            return;
        }
        if self.registered.is_some() && !self.is_known() {
            dispatches.into_iter().for_each(|dispatch| self.refuse(dispatch.slot));
        } else if !self.gives() && (self.authority.is_ahead() || self.is_being_lent()) {
            self.held_back.extend(dispatches);
            self.refresh();
        } else {
            self.send_out(dispatches);
        }
    }

    /// Whether the bus is to lend the slots again, and has not yet: nothing new is asked of it until it has.
    fn is_being_lent(&self) -> bool {
        self.is_known() && self.authority.wants_them_lent(self.moment.now) && !self.gives()
    }

    /// Whether the attempt is with the node, or on its way to it: among those that came before it, too.
    fn is_under_way(&self, slot: Slot, before: &[Dispatch]) -> bool {
        let mut waiting = self.held_back.iter().chain(before);
        self.connection.has(slot) || self.sending.contains(&slot) || waiting.any(|it| it.slot == slot)
    }

    /// Asks the bus for the slots of dispatches.
    pub(super) fn send_out(&mut self, dispatches: Vec<Dispatch>) {
        if self.registered.is_some() {
            self.sending.extend(dispatches.iter().map(|dispatch| dispatch.slot));
            self.out.push(Effect::SendSlots(dispatches));
        }
    }

    /// What has its slot goes to the node; what has none does not.
    pub(super) fn on_sent(&mut self, sent: bus::Result<Vec<bool>>, dispatches: Vec<Dispatch>) {
        if sent.is_err() {
            self.doubt();
        }
        let mut freed = Vec::new();
        let sent = sent.unwrap_or_else(|error| {
            tracing::debug!(%error, "dispatches are dropped: their slots may not be marked as sent");
            freed.extend(dispatches.iter().map(|dispatch| dispatch.slot));
            vec![false; dispatches.len()]
        });
        let mut sent_on = Vec::with_capacity(dispatches.len());
        for (dispatch, is_sent) in dispatches.into_iter().zip(sent) {
            let slot = dispatch.slot;
            self.sending.remove(&slot);
            if self.called_off.remove(&slot) {
                freed.push(slot);
            } else if is_sent {
                sent_on.push(dispatch);
            } else {
                self.came_to_nothing(slot, Revoked::Undeliverable, "its slot was gone");
            }
        }
        self.send_on(sent_on, freed);
        self.refresh_if_wanted();
    }

    /// Sends dispatches that have their slots to the node. The slots of those that the node cannot be sent are freed,
    /// together with `freed`.
    fn send_on(&mut self, dispatches: Vec<Dispatch>, freed: Vec<Slot>) {
        let mut effects: Vec<_> = freed.into_iter().map(connection::Effect::Free).collect();
        for dispatch in dispatches {
            effects.extend(self.dispatch(dispatch));
        }
        self.follow(effects);
    }

    /// Has a dispatch that has its slot go to the node. If the node cannot be sent it, its slot is to be freed.
    fn dispatch(&mut self, dispatch: Dispatch) -> Vec<connection::Effect> {
        let slot = dispatch.slot;
        match self.try_dispatch(dispatch) {
            Ok(effects) => effects,
            Err(Refused::Known) => vec![],
            Err(_) => vec![connection::Effect::Free(slot)],
        }
    }

    /// Has a dispatch go to the node. The lane hears of one that the node cannot be sent.
    fn try_dispatch(&mut self, dispatch: Dispatch) -> Result<Vec<connection::Effect>, Refused> {
        let slot = dispatch.slot;
        let sent = self.connection.dispatch(dispatch, self.holder_slots.given_count(), self.moment.now);
        if let Err(refused) = sent.as_ref()
            && *refused != Refused::Known
        {
            self.came_to_nothing(slot, Revoked::Undeliverable, &refused.to_string());
        }
        sent
    }

    /// Has results committed; those that come before the node is registered wait for that.
    pub(super) fn commit(&mut self, results: Vec<(Slot, End)>) {
        if results.is_empty() {
            return;
        }
        if self.registered.is_none() {
            return self.keep_early(results);
        }
        let now = self.moment.now;
        let may_pass = match self.gives() {
            // Once the slots are to be shared, those that are taken are to be listed.
            true => self.authority.wants_them_lent(now) || !self.is_known(),
            false => self.may_pass_at_bus() && !self.is_being_lent() && !self.lists_when_passed,
        };
        if may_pass {
            self.passing += results.len();
        }
        self.out.push(Effect::Commit { results, terms: CommitTerms { may_pass, came_at: now } });
    }

    /// Keeps results until the node is registered; not without a bound, however long that takes.
    fn keep_early(&mut self, results: Vec<(Slot, End)>) {
        let bytes = |(_, end): &(Slot, End)| size_of::<(Slot, End)>() + end.text_bytes();
        self.early_bytes += results.iter().map(bytes).sum::<usize>();
        self.early_results.extend(results);
        if self.early_bytes > EARLY_RESULTS_BYTES_MAX {
            self.take_early();
            let why = "too many results came before `welcome`; send them again after the next one";
            self.end(CloseCode::Overloaded, why.to_owned());
        }
    }

    /// Takes the results that came before the node was registered.
    pub(super) fn take_early(&mut self) -> Vec<(Slot, End)> {
        self.early_bytes = 0;
        std::mem::take(&mut self.early_results)
    }

    /// Whether a slot may go from one attempt to the next at the bus, which knows of the connection and gives the slots.
    fn may_pass_at_bus(&self) -> bool {
        self.moment.bus_up_since.is_some()
            && self.is_known()
            && !self.authority.is_ahead()
            && !self.is_registering
    }

    /// Sends `committed` or `stale` to the node, and the attempts that take over its slots. An attempt whose commit took
    /// longer than a reservation lasts is not sent: the owner of its lane may have given it up.
    pub(super) fn on_committed(&mut self, committed: Vec<Committed>, terms: CommitTerms) {
        let is_late = self.moment.now.duration_since(terms.came_at) >= self.timeouts.reservation;
        if terms.may_pass {
            self.passing -= committed.len();
        }
        let (gives, may_pass) = (self.gives() && !is_late, self.may_pass_at_bus() && !is_late);
        let (mut effects, mut over, mut dispatches) = (Vec::new(), Vec::new(), Vec::new());
        for Committed { slot, is_recorded, next } in committed {
            let mut answer = match is_recorded {
                true => self.connection.committed(slot),
                false => self.connection.stale(slot, self.moment.now),
            };
            match next {
                Some(next) if gives => self.pass(slot, next, &mut answer),
                Some(next) if may_pass => {
                    over.push(slot);
                    dispatches.push(next);
                }
                Some(next) => self.not_passed(next.slot),
                None => {}
            }
            effects.append(&mut answer);
        }
        effects.retain(|effect| !matches!(effect, connection::Effect::Free(slot) if over.contains(slot)));
        self.follow(effects);
        if !over.is_empty() && self.registered.is_some() {
            self.out.extend(over.iter().map(|slot| Effect::SlotFreed(*slot)));
            self.sending.extend(dispatches.iter().map(|dispatch| dispatch.slot));
            self.out.push(Effect::PassSlots { over, dispatches });
        }
        if self.passing == 0 {
            let lists = std::mem::take(&mut self.lists_when_passed);
            if lists {
                self.doubt();
            }
            if std::mem::take(&mut self.shares_when_passed) || lists {
                self.refresh();
            }
        }
    }

    /// Has the attempt that follows another go to the node on its slot, which this instance gives. If the node cannot be
    /// sent it, the slot stays among what is to be freed.
    fn pass(&mut self, over: Slot, next: Dispatch, effects: &mut Vec<connection::Effect>) {
        if let Ok(sent) = self.try_dispatch(next) {
            effects.retain(|effect| *effect != connection::Effect::Free(over));
            effects.extend(sent);
            self.out.push(Effect::SlotFreed(over));
        }
    }

    /// The socket was closed before this attempt was sent.
    pub(super) fn too_late(&mut self, slot: Slot) {
        self.came_to_nothing(
            slot,
            Revoked::Undeliverable,
            "the node's socket was closed before the attempt was sent",
        );
        self.not_sent(slot);
    }

    /// An attempt that came to nothing never gets to the node. If it was called off, its slot is waited for.
    pub(super) fn not_sent(&mut self, slot: Slot) {
        if self.called_off.remove(&slot) {
            self.out.push(Effect::SlotFreed(slot));
        }
    }

    /// This attempt was to have a slot that was not passed on to it.
    pub(super) fn not_passed(&mut self, slot: Slot) {
        self.came_to_nothing(slot, Revoked::Undeliverable, "its slot could not be passed on");
        self.not_sent(slot);
    }

    /// What has its slot goes to the node. Where the bus did not say, the slots are freed with the next refresh.
    pub(super) fn on_passed(
        &mut self,
        passed: bus::Result<Vec<bool>>,
        over: Vec<Slot>,
        dispatches: Vec<Dispatch>,
    ) {
        if passed.is_err() {
            self.doubt();
        }
        match &passed {
            Ok(passed) if self.registered.is_some() => {
                let kept = passed.iter().filter(|is_passed| !**is_passed).count();
                if kept > 0 {
                    self.out.push(Effect::CountFreed(kept));
                }
            }
            Ok(_) | Err(_) => {
                self.gone.extend(over);
                self.refresh();
            }
        }
        self.on_sent(passed, dispatches);
    }

    /// Slots are free: at the bus too, unless this instance gives them.
    pub(super) fn free(&mut self, slots: Vec<Slot>) {
        if !self.gives() {
            return self.free_at_bus(slots);
        }
        self.unlisted.retain(|slot| !slots.contains(slot));
        if !slots.is_empty() {
            self.out.extend(slots.iter().map(|slot| Effect::SlotFreed(*slot)));
            self.out.push(Effect::CountFreed(slots.len()));
        }
    }

    fn free_at_bus(&mut self, slots: Vec<Slot>) {
        self.unlisted.retain(|slot| !slots.contains(slot));
        let Some(hello) = self.hello.as_ref().filter(|_| self.registered.is_some() && !slots.is_empty())
        else {
            return;
        };
        let was_full = self.connection.slot_count() + slots.len() >= hello.capacity as usize;
        self.out.extend(slots.iter().map(|slot| Effect::SlotFreed(*slot)));
        self.out.push(Effect::FreeSlots { slots, was_full });
    }

    /// What could not be freed is, with the next refresh, which lists all that is taken.
    pub(super) fn on_freed(&mut self, left: Vec<Slot>, was_full: bool) {
        // The other instances do not ask a full node again before an update of it.
        if was_full && self.is_known() {
            self.out.push(Effect::TellOf);
        }
        if !left.is_empty() {
            self.doubt();
            self.gone.extend(left);
            self.refresh();
        }
    }
}
