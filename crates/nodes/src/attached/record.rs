//! The node's record at the bus: taken over when it connects, written with each heartbeat, and written again
//! when it was lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::{Connected, Epoch, Slot, Version, Written};

use super::{AtBus, AttachedNode, Contest, Effect, Known, Registered, Registering, Rival};
use crate::connection::CloseCode;
use crate::limits::{ABSENT_AFTER_MS, LOST_AGAIN_MS, contested_max};

impl AttachedNode {
    /// Has the node's record taken over at the bus, unless that is under way.
    pub(super) fn register(&mut self) {
        let Some(hello) = self.hello.as_ref().filter(|_| !self.is_registering) else { return };
        let profile = Arc::new(self.profile(hello));
        let listed = self.registered.is_none().then(|| hello.running.clone());
        let Some(record) = self.record_of(&profile, Version::new(0)) else { return };
        self.is_registering = true;
        self.is_doubted = false;
        self.heartbeats_unlisted = 0;
        let is_lent = self.authority.wants_them_lent(self.moment.now);
        self.say(is_lent);
        let running = listed.unwrap_or_else(|| self.given_or_with_node());
        let report = record.report(&self.timeouts, is_lent);
        let over = self.contest.and_then(|contest| contest.gone(self.moment.now));
        let had = self.epoch().filter(|_| self.is_known());
        self.out.push(Effect::Register { report, running, since: self.since, over, had });
    }

    pub(super) fn on_register_answer(
        &mut self,
        known: bus::Result<Registering>,
        is_lent: bool,
        provisional: Epoch,
    ) {
        self.is_registering = false;
        self.answered(&known, matches!(known, Ok(Registering::Done(_))), is_lent);
        match known {
            Ok(Registering::Done(known)) => self.on_registered(known),
            Ok(Registering::Contested(rival)) => self.contest(Some(rival)),
            Ok(Registering::Anothers) => self.turn_away(),
            Err(error) => {
                tracing::debug!(%error, "a node could not be registered yet");
                let is_away = error.is_retryable() && !error.may_have_run();
                if self.registered.is_none() && is_away {
                    self.welcome_alone(provisional, &error);
                }
                self.refuse_held_back();
                self.register_later();
            }
        }
    }

    pub(super) fn on_register_again(&mut self) {
        if self.is_refreshing {
            return self.register_later();
        }
        self.is_registering = false;
        match self.contest {
            Some(Contest { since, absent: _ }) if self.heard <= since => self.contest(None),
            Some(_) | None => self.register(),
        }
    }

    /// The attempts that the node listed in its hello. From now on those that it has are among the slots of its connection alone.
    pub(super) fn take_running(&mut self) -> Vec<Slot> {
        self.hello.as_mut().map(|hello| std::mem::take(&mut hello.running)).unwrap_or_default()
    }

    fn register_later(&mut self) {
        self.is_registering = true;
        self.out.push(Effect::RegisterLater);
    }

    fn is_rewritten_lately(&self) -> bool {
        let lately = Duration::from_millis(LOST_AGAIN_MS);
        self.rewritten_at.is_some_and(|at| self.moment.now.duration_since(at) < lately)
    }

    /// Another connection has the node's record. It may be one that the node has left, whose call reached the bus late
    /// and so seemed young. A node that still speaks here registers again, unless the other connection hears of it too;
    /// and nobody ends one whose instance is gone.
    fn contest(&mut self, rival: Option<Rival>) {
        let now = self.moment.now;
        let contest = self.contest.get_or_insert(Contest { since: now, absent: None });
        if let Some(rival) = rival {
            contest.saw(rival, now);
        }
        let Contest { since, absent } = *contest;
        if absent.is_some() || now.duration_since(since) < contested_max(self.heartbeat_ms()) {
            self.register_later();
        } else {
            self.end(CloseCode::Replaced, "a newer connection of this node took over".to_owned());
        }
    }

    /// The node's id belongs to another token. What waits for the record is nobody's.
    fn turn_away(&mut self) {
        let Some(hello) = &self.hello else { return };
        let why = format!("the node {} is connected with another token", hello.node);
        tracing::info!(principal = &*hello.principal, why, "access is refused");
        self.take_early();
        self.refuse_held_back();
        self.end(CloseCode::Unauthorized, why);
    }

    /// The bus has the record. Results that came before are committed now.
    fn on_registered(&mut self, known: Known) {
        let Known { connected: Connected { epoch, version, is_complete }, taken, unlisted } = known;
        let Some(hello) = &self.hello else { return };
        let (node, profile) = (hello.node.clone(), Arc::new(self.profile(hello)));
        let is_contested = self.contest.take().is_some();
        match &self.registered {
            None => {
                tracing::info!(%node, %epoch, drained = self.drained(), "a node is connected");
                let running = self.take_running();
                self.out.push(Effect::Attach { since: self.since, running });
            }
            Some(_) => {
                let is_provisional = !self.is_known();
                if self.is_rewritten_lately() {
                    tracing::debug!(%node, %epoch, is_provisional, is_contested, "a node's record is rewritten");
                } else {
                    tracing::info!(%node, %epoch, is_provisional, is_contested, "a node's record is rewritten");
                }
                self.rewritten_at = Some(self.moment.now);
            }
        }
        self.registered = Some(Registered { profile, epoch, at_bus: AtBus::Known });
        self.unlisted = unlisted;
        self.forget_unlisted_here();
        self.unlisted_until = self.moment.now + self.timeouts.reservation;
        self.listed(&taken);
        self.record(version, false);
        // What has ended meanwhile had its slot freed before the record listed it.
        let over =
            taken.into_iter().filter(|slot| !self.connection.has(*slot) && !self.holder_slots.has(*slot));
        let over = if self.gives() { Vec::new() } else { over.collect() };
        let effects = self.connection.registered(self.moment.now);
        self.follow(effects);
        self.free(over);
        let early = self.take_early();
        self.commit(early);
        if !is_complete {
            // The ledger could not be asked. The record is made anew until it can.
            self.register_later();
        }
        self.send_held_back();
        self.refresh();
    }

    /// What was written to the bus goes into the registry and to the other instances.
    fn record(&mut self, version: Version, is_heartbeat: bool) {
        let Some(registered) = &self.registered else { return };
        let Some(record) = self.record_of(&registered.profile, version) else { return };
        let heartbeat_at = if is_heartbeat { self.heartbeat_at.take() } else { None };
        self.out.push(Effect::Record { record, heartbeat_at });
    }

    /// The node as it is known here goes into this instance's registry, while the bus does not take it.
    pub(super) fn note(&mut self) {
        let Some(registered) = &self.registered else { return };
        self.out.extend(self.record_of(&registered.profile, Version::new(0)).map(Effect::Note));
    }

    /// Has the record say how the node is now; one such call at a time.
    pub(super) fn refresh(&mut self) {
        let Some(registered) = &self.registered else { return };
        if !self.is_known() {
            // The record lists all that is taken once the bus knows of the connection.
            self.gone.clear();
            return self.note();
        }
        // What follows a result on its slot would be on no list: the slots stay lent until all results are answered.
        let is_passing = self.gives() && self.passing > 0;
        let is_lent = is_passing || self.authority.wants_them_lent(self.moment.now);
        let lists_all = is_lent || self.authority.is_ahead() || self.gives();
        // Under an epoch that this connection itself is about to replace, it would find itself replaced. What is being
        // sent would be freed by a list of all that is taken, or be sent without its slot.
        let is_sending = lists_all && !self.sending.is_empty();
        if self.is_refreshing || self.is_registering || is_sending {
            self.refresh_again = true;
            if self.is_registering {
                self.note();
            }
            return;
        }
        let Some(record) = self.record_of(&registered.profile, Version::new(0)) else { return };
        self.is_refreshing = true;
        self.is_doubted = false;
        if lists_all {
            self.heartbeats_unlisted = 0;
        }
        self.say(is_lent);
        let (freed, taken) = (std::mem::take(&mut self.gone), lists_all.then(|| self.all_taken()));
        self.out.push(Effect::Refresh { report: record.report(&self.timeouts, is_lent), freed, taken });
    }

    pub(super) fn on_refreshed(
        &mut self,
        written: bus::Result<Written>,
        is_lent: bool,
        freed: Vec<Slot>,
        taken: Option<Vec<Slot>>,
    ) {
        self.is_refreshing = false;
        self.answered(&written, matches!(written, Ok(Written::Done(_))), is_lent);
        self.on_counted(&written, taken);
        match written {
            Ok(Written::Done(version)) => self.record(version, true),
            Ok(Written::Lost) if self.is_rewritten_lately() => self.register_later(),
            Ok(Written::Lost) => self.register(),
            Ok(Written::Replaced) => self.contest(None),
            Err(error) => {
                tracing::debug!(%error, "a node's record could not be refreshed");
                self.gone.extend(freed);
            }
        }
        self.refresh_if_wanted();
    }

    pub(super) fn refresh_if_wanted(&mut self) {
        if std::mem::take(&mut self.refresh_again) {
            self.refresh();
        }
    }

    /// Slots that count as those of attempts with the node stop counting as unlisted.
    pub(super) fn forget_unlisted_here(&mut self) {
        self.unlisted.retain(|slot| !self.connection.has(*slot));
    }

    /// Frees the slots of unlisted attempts whose dispatches have not come in time.
    pub(super) fn free_unlisted(&mut self) {
        if !self.unlisted.is_empty() && self.moment.now >= self.unlisted_until {
            self.unlisted.retain(|slot| !self.connection.has(*slot) && !self.sending.contains(slot));
            let unlisted = std::mem::take(&mut self.unlisted);
            self.free(unlisted);
        }
    }
}

impl Contest {
    fn saw(&mut self, Rival { epoch, is_there }: Rival, now: Instant) {
        let before = self.absent.filter(|(absent, _)| *absent == epoch);
        self.absent = (!is_there).then(|| before.unwrap_or((epoch, now)));
    }

    /// The other connection, if its instance has been absent for so long that it is gone.
    fn gone(&self, now: Instant) -> Option<Epoch> {
        let (epoch, since) = self.absent?;
        (now.duration_since(since) >= Duration::from_millis(ABSENT_AFTER_MS)).then_some(epoch)
    }
}
