//! What becomes of a node's record when its socket is closed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::{Epoch, Slot, Written};
use domain::NodeId;
use ledger::jittered;
use nodes::Ended;
use nodes::attached::{AtBus, Departure};

use crate::limits::NODE_REGISTER_AGAIN;
use crate::services::Incarnation;
use crate::state::State;

/// Lets nothing more be given to a node whose socket is closed, and, unless the node connects again in time, takes it off.
/// A node that had nothing to do is taken off at once.
pub(super) async fn disconnect(state: Arc<State>, incarnation: Arc<Incarnation>, departure: Departure) {
    let Departure { mut record, at_bus, slots, heard, fell_silent, .. } = departure;
    let (registry, jobs) = (&incarnation.registry, &incarnation.jobs);
    let (node, epoch) = (record.profile.node.clone(), record.stamp.epoch);
    let offline = registry.timeouts().offline;
    let grace = state.settings.node_grace.saturating_sub(heard.elapsed());
    if !slots.is_empty() {
        let written = match at_bus {
            AtBus::Unknown => Ok(Written::Lost),
            // All that is taken is with the node; nothing more is sent over this connection.
            AtBus::Known | AtBus::KnownLate => {
                let report = record.report(registry.timeouts(), false);
                state.bus.recount_node(&node, epoch, &report, &slots).await
            }
        };
        match written {
            Ok(Written::Done(version)) => {
                record.stamp.version = version;
                registry.recorded(record, Instant::now());
            }
            // It is connected again.
            Ok(Written::Replaced) => return registry.replaced(&node, epoch, Instant::now()),
            Ok(Written::Lost) => {
                registry.noted(record, Instant::now());
            }
            Err(error) => {
                tracing::debug!(%error, %node, "a closed socket could not be recorded at the bus");
                registry.noted(record, Instant::now());
            }
        }
        tokio::time::sleep(grace).await;
    }
    // It may have taken the record from the connection that the node has, here or elsewhere. That one's holder writes the
    // record anew when it finds none; until then nobody may read that the node is gone, and give out again what it runs. So a
    // node that is gone all the same is gone later for an instance that knows an earlier connection of it: when nothing was
    // heard of it for `nodes.offline_ms`, as after any loss of a record, and not when the record is looked at next.
    let is_late = (at_bus == AtBus::KnownLate || jobs.is_attached(&node)) && slots.is_empty();
    let disconnected = match slots.is_empty() {
        true if is_late => state.bus.withdraw_node(&node, epoch).await,
        true => state.bus.disconnect_node(&node, epoch, offline).await,
        false => {
            let left = Left { state: &state, incarnation: &incarnation, node: &node, slots: &slots, heard };
            left.disconnect(epoch).await
        }
    };
    match disconnected {
        Ok(_) | Err(_) if is_late => registry.replaced(&node, epoch, Instant::now()),
        // Its slots are the newer connection's. Of two connections that said hello at once, the one that the bus knows as the
        // older may have been the one that was attached here: nobody else ends its entry.
        Ok(Written::Replaced) => registry.replaced(&node, epoch, Instant::now()),
        Ok(Written::Done(_) | Written::Lost) | Err(_) if !jobs.is_attached(&node) => {
            let (how, now) = (if fell_silent { Ended::Lost } else { Ended::Left }, Instant::now());
            match at_bus {
                AtBus::Unknown => registry.left_alone(&node, epoch, how, now),
                AtBus::Known | AtBus::KnownLate if fell_silent => registry.lost(&node, epoch, now),
                AtBus::Known | AtBus::KnownLate => registry.left(&node, epoch, now),
            }
            slots.iter().for_each(|slot| jobs.slot_freed(&node, slot.job, slot.attempt));
            jobs.lost_with(&node, &slots);
        }
        Ok(Written::Done(_) | Written::Lost) | Err(_) => {}
    }
}

/// A node that left this instance with attempts, and was heard of last at `heard`.
struct Left<'l> {
    state: &'l State,
    incarnation: &'l Incarnation,
    node: &'l NodeId,
    slots: &'l [Slot],
    heard: Instant,
}

impl Left<'_> {
    /// Takes the node off, once no other instance may have it. Tries until that is answered.
    async fn disconnect(&self, epoch: Epoch) -> bus::Result<Written> {
        let offline = self.incarnation.registry.timeouts().offline;
        loop {
            if self.is_elsewhere().await {
                return Ok(Written::Replaced);
            }
            match self.state.bus.disconnect_node(self.node, epoch, offline).await {
                Err(error) if error.is_retryable() => {
                    tracing::debug!(%error, node = %self.node, "the record of a node that is gone could not be removed yet");
                    tokio::time::sleep(jittered(NODE_REGISTER_AGAIN)).await;
                }
                answer => return answer,
            }
        }
    }

    /// Whether the node has connected to an instance that the bus does not reach, which has noted in the ledger that it has the
    /// node's attempts. Returns when that is known, and when the bus knows whether it has connected to any other.
    async fn is_elsewhere(&self) -> bool {
        loop {
            self.until_reached().await;
            match self.incarnation.jobs.is_held_elsewhere(self.node, self.slots).await {
                Ok(is_elsewhere) => return is_elsewhere,
                Err(error) => {
                    tracing::debug!(%error, node = %self.node, "whether a node is elsewhere is not known yet");
                    tokio::time::sleep(jittered(NODE_REGISTER_AGAIN)).await;
                }
            }
        }
    }

    /// For how long the bus and the ledger must have been reached: since the node was heard of, or for so long that an instance
    /// that took the node meanwhile has told the bus. Without the ledger no instance takes a node.
    fn needed(&self) -> Duration {
        self.heard.elapsed().min(self.incarnation.registry.timeouts().offline)
    }

    async fn until_reached(&self) {
        let mut link = self.state.bus.link();
        loop {
            let up_for = link.borrow_and_update().up_for();
            // The ledger's time of an incarnation that is over stands still. Its lanes are others' by now.
            let reached = if self.is_over() { up_for } else { self.incarnation.reach.unbroken_for() };
            let needed = self.needed();
            if reached.is_some_and(|reached| reached >= needed) {
                return;
            }
            let wait = needed.saturating_sub(reached.unwrap_or_default()).min(NODE_REGISTER_AGAIN);
            // A bus that was closed does not come back.
            if let Ok(Err(_)) = tokio::time::timeout(wait, link.changed()).await {
                return;
            }
        }
    }

    /// Whether the process continues as another incarnation.
    fn is_over(&self) -> bool {
        self.state.incarnation().identity.id != self.incarnation.identity.id
    }
}
