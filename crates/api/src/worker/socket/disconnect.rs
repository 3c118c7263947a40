//! What becomes of a node's record when its socket is closed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actors::jobs::Jobs;
use bus::{Epoch, Written};
use domain::NodeId;
use nodes::Registry;
use nodes::attached::Departure;

use crate::limits::NODE_REGISTER_AGAIN;
use crate::state::State;

/// Lets nothing more be given to a node whose socket is closed, and, unless the node connects again in time, takes it off.
/// A node that had nothing to do is taken off at once.
pub(super) async fn disconnect(state: Arc<State>, registry: Registry, jobs: Jobs, departure: Departure) {
    let Departure { mut record, is_provisional, slots, heard, .. } = departure;
    let (node, epoch) = (record.profile.node.clone(), record.stamp.epoch);
    let offline = registry.timeouts().offline;
    let grace = state.settings.node_grace.saturating_sub(heard.elapsed());
    if !slots.is_empty() {
        let written = match is_provisional {
            true => Ok(Written::Lost),
            // All that is taken is with the node; nothing more is sent over this connection.
            false => {
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
    let disconnected = match slots.is_empty() {
        true => state.bus.disconnect_node(&node, epoch, offline).await,
        // While the bus is away nobody knows whether the node has connected to another instance.
        false => disconnect_for_sure(&state.bus, &node, epoch, heard, offline).await,
    };
    match disconnected {
        // Its slots are the newer connection's. Of two connections that said hello at once, the one that the bus knows as the
        // older may have been the one that was attached here: nobody else ends its entry.
        Ok(Written::Replaced) => registry.replaced(&node, epoch, Instant::now()),
        Ok(Written::Done(_) | Written::Lost) | Err(_) if !jobs.is_attached(&node) => {
            registry.left(&node, epoch, Instant::now());
            slots.iter().for_each(|slot| jobs.slot_freed(slot.job, slot.attempt));
        }
        Ok(Written::Done(_) | Written::Lost) | Err(_) => {}
    }
}

/// Takes a node off that was heard of last at `heard`, once no other instance may have it. Tries until that is answered.
async fn disconnect_for_sure(
    bus: &bus::Handle,
    node: &NodeId,
    epoch: Epoch,
    heard: Instant,
    offline: Duration,
) -> bus::Result<Written> {
    loop {
        until_known(bus, heard, offline).await;
        match bus.disconnect_node(node, epoch, offline).await {
            Err(error) if error.is_retryable() => {
                tracing::debug!(%error, %node, "the record of a node that is gone could not be removed yet");
                tokio::time::sleep(NODE_REGISTER_AGAIN).await;
            }
            answer => return answer,
        }
    }
}

/// Waits until it is known whether a node that was heard of last at `heard` has connected to another instance: the link
/// to the bus has been up since then, or for so long that an instance that took the node meanwhile has told the bus.
async fn until_known(bus: &bus::Handle, heard: Instant, offline: Duration) {
    let mut link = bus.link();
    loop {
        let up_for = link.borrow_and_update().up_for();
        let changed = match up_for {
            Some(up) if up >= heard.elapsed().min(offline) => return,
            Some(up) => {
                tokio::time::timeout(offline.saturating_sub(up), link.changed()).await.unwrap_or(Ok(()))
            }
            None => link.changed().await,
        };
        // A bus that was closed does not come back.
        if changed.is_err() {
            return;
        }
    }
}
