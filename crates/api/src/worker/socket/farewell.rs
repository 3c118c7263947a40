//! What becomes of a node's record when its socket is closed.

use std::sync::Arc;
use std::time::Instant;

use actors::jobs::Jobs;
use bus::{Slot, Written};
use nodes::{Record, Registry};

use super::away;
use crate::state::State;

/// A node whose socket is closed.
pub(super) struct Left {
    /// As it is known here.
    pub(super) record: Record,
    /// The bus did not know of the socket.
    pub(super) is_provisional: bool,
    /// What it had.
    pub(super) slots: Vec<Slot>,
    /// When the node was heard of last.
    pub(super) heard: Instant,
}

/// Has nothing more given to a node whose socket is closed, and, unless it connects anew in time, says that it is gone.
/// One that had nothing to do is gone at once.
pub(super) async fn say_farewell(state: Arc<State>, registry: Registry, jobs: Jobs, left: Left) {
    let Left { mut record, is_provisional, slots, heard } = left;
    let (node, epoch) = (record.profile.node.clone(), record.stamp.epoch);
    let grace = state.settings.node_grace.saturating_sub(heard.elapsed());
    if !slots.is_empty() {
        let written = match is_provisional {
            true => Ok(Written::Lost),
            false => state.bus.refresh_node(&node, epoch, &record.report(), &[]).await,
        };
        match written {
            Ok(Written::Done(version)) => {
                record.stamp.version = version;
                registry.recorded(record, Instant::now());
            }
            // It is connected anew.
            Ok(Written::Replaced) => return,
            Ok(Written::Lost) => {
                registry.noted(record, Instant::now());
            }
            Err(error) => {
                tracing::debug!(%error, %node, "a closed socket was not noted at the bus");
                registry.noted(record, Instant::now());
            }
        }
        tokio::time::sleep(grace).await;
    }
    let disconnected = match slots.is_empty() {
        true => state.bus.disconnect_node(&node, epoch).await,
        // While the bus is away nobody knows whether it has connected to another instance.
        false => away::disconnect_for_sure(&state.bus, &node, epoch, heard).await,
    };
    match disconnected {
        Ok(Written::Replaced) => {}
        Ok(Written::Done(_) | Written::Lost) | Err(_) if !jobs.is_attached(&node) => {
            registry.left(&node, epoch, Instant::now());
            slots.iter().for_each(|slot| jobs.slot_freed(slot.job, slot.attempt));
        }
        Ok(Written::Done(_) | Written::Lost) | Err(_) => {}
    }
}
