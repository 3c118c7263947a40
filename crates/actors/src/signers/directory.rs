//! The directory of an instance's signer actors: it finds a signer's actor or starts one, and lets one stop.
//!
//! No command is lost between an actor that stops and one that starts: commands are sent under the entry's lock, and
//! counted there; an actor stops only after it has removed its entry under the same lock, which it may only if it has
//! handled all that were sent.
//!
//! What must never happen under an entry's lock: a wait, or a second look into the directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use actix::Addr;
use actix::prelude::SendError;
use dashmap::{DashMap, Entry};
use domain::SignerId;
use domain::signer::Refusal;
use tokio::sync::Notify;

use super::Inner;
use super::actor::{Ask, HandOff, SignerActor, Wake};

/// Signers whose leases an instance keeps without work. With more live actors than that, leases are given back at once.
const KEPT_MAX: usize = 150_000;

struct Listed {
    /// The one address through which commands are sent: a clone of it may go one message over the mailbox's bound.
    addr: Addr<SignerActor>,
    /// Tells this actor from one that had the signer before.
    generation: u64,
    /// Commands sent to it.
    sent: u64,
}

/// The actors that are live.
#[derive(Default)]
pub(super) struct Directory {
    listed: DashMap<SignerId, Listed>,
    live: AtomicUsize,
    generations: AtomicU64,
    removed: Notify,
}

impl Inner {
    /// Sends a command to the signer's actor, and starts the actor if there is none.
    pub(super) fn send(self: &Arc<Self>, signer: &SignerId, ask: Ask) -> Result<(), Refusal> {
        let directory = &self.directory;
        match directory.listed.entry(signer.clone()) {
            Entry::Occupied(mut entry) => {
                let listed = entry.get_mut();
                match listed.addr.try_send(ask) {
                    Ok(()) => {
                        listed.sent += 1;
                        Ok(())
                    }
                    Err(SendError::Full(_)) => Err(Refusal::Overloaded),
                    // It has died. The next one trusts nothing of it.
                    Err(SendError::Closed(ask)) => {
                        let next = self.list(signer, ask)?;
                        entry.insert(next);
                        Ok(())
                    }
                }
            }
            Entry::Vacant(entry) => {
                let listed = self.list(signer, ask)?;
                // Counted before it can be removed.
                directory.live.fetch_add(1, Ordering::Relaxed);
                entry.insert(listed);
                Ok(())
            }
        }
    }

    /// Starts an actor with its first command.
    fn list(self: &Arc<Self>, signer: &SignerId, ask: Ask) -> Result<Listed, Refusal> {
        let generation = self.directory.generations.fetch_add(1, Ordering::Relaxed);
        let (inner, id) = (Arc::clone(self), signer.clone());
        let addr = self.arbiters.start_actor(
            self.arbiters.number_of(signer.as_str()),
            // The signer's state bounds what waits; a mailbox holds all requests that may be in flight.
            self.limits.in_flight_max,
            move |_| SignerActor::new(inner, id, generation),
        );
        match addr.try_send(ask) {
            Ok(()) => Ok(Listed { addr, generation, sent: 1 }),
            Err(SendError::Full(_)) => Err(Refusal::Overloaded),
            Err(SendError::Closed(_)) => {
                tracing::error!(%signer, "a signer's actor could not be started: the arbiters have stopped");
                Err(Refusal::Internal)
            }
        }
    }
}

impl Directory {
    /// Removes an actor that wants to stop, unless a command is on its way to it.
    pub(super) fn remove_if_all_handled(&self, signer: &SignerId, generation: u64, handled: u64) -> bool {
        self.remove_if(signer, |listed| listed.generation == generation && listed.sent == handled)
    }

    /// Removes an actor that has died, unless another one has its place already.
    pub(super) fn remove_dead(&self, signer: &SignerId, generation: u64) {
        self.remove_if(signer, |listed| listed.generation == generation);
    }

    fn remove_if(&self, signer: &SignerId, is_it: impl FnOnce(&Listed) -> bool) -> bool {
        let is_removed = self.listed.remove_if(signer, |_, listed| is_it(listed)).is_some();
        if is_removed {
            self.live.fetch_sub(1, Ordering::Relaxed);
            self.removed.notify_waiters();
        }
        is_removed
    }

    /// Whether there is room to keep leases without work.
    pub(super) fn has_room(&self) -> bool {
        self.live.load(Ordering::Relaxed) <= KEPT_MAX
    }

    /// Has the signer's actor, if there is one, look at what has changed around it. Sent whatever its mailbox holds.
    pub(super) fn wake(&self, signer: &SignerId) {
        if let Some(listed) = self.listed.get(signer) {
            listed.addr.do_send(Wake);
        }
    }

    /// The same for all of them.
    pub(super) fn wake_all(&self) {
        self.listed.iter().for_each(|listed| listed.addr.do_send(Wake));
    }

    /// Has the signer's actor, if there is one, give its lease back.
    pub(super) fn hand_off(&self, signer: &SignerId) {
        if let Some(listed) = self.listed.get(signer) {
            listed.addr.do_send(HandOff);
        }
    }

    #[cfg(test)]
    pub(super) fn address(&self, signer: &SignerId) -> Option<Addr<SignerActor>> {
        self.listed.get(signer).map(|listed| listed.addr.clone())
    }

    /// Waits until no actor is live.
    pub(super) async fn emptied(&self) {
        loop {
            // Registered before the look, so that an actor that stops in between is not missed.
            let removed = self.removed.notified();
            if self.listed.is_empty() {
                return;
            }
            removed.await;
        }
    }
}
