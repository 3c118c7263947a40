//! The nodes: what every instance knows of them, which of them gets a job, and the state of one's connection.
//!
//! What lives here: the records of nodes and the pools that they form ([`Record`], [`Pools`]); the whole registry in
//! memory ([`Registry`]), kept up to date by a task of its own ([`Follower`]); selection from it without a lock,
//! without a wait and without asking anybody ([`Registry::select`]); the protocol of one node's socket as a pure state
//! machine ([`connection`]), and beside it the state of a node that is attached to this instance, between its socket, its
//! record at the bus and the lanes ([`attached`]). What must never: a socket, SQL, Redis, or a decision about a job's
//! result. Who owns a slot is decided at the bus, or, while that lends the slots or is away, by the holder of the node's socket
//! ([`HolderSlots`]); what the registry counts only makes a refusal there rare.

pub mod attached;
pub mod connection;
mod elsewhere;
mod entry;
mod explain;
#[cfg(test)]
mod fixture;
mod follower;
mod hearing;
mod holder_slots;
mod index;
pub mod limits;
mod listing;
mod node_update;
mod pools;
mod record;
mod registry;
mod select;
mod slot_authority;
mod source;

pub use connection::Connection;
pub use elsewhere::{NodesElsewhere, Spare};
pub use explain::{Explanation, Reason};
pub use follower::Follower;
pub use hearing::Hearing;
pub use holder_slots::{GivenBack, HolderSlots};
pub use node_update::NodeUpdate;
pub use pools::{DEFAULT_POOL, Pool, Pools};
pub use record::{Abilities, Applied, Load, Profile, Record, Stamp, Status};
pub use registry::{Changed, Departure, Ended, NodeChange, Registry};
pub use select::{Choice, Wanted};
pub use slot_authority::SlotAuthority;
pub use source::{BusSource, Kept, Notices, Source, SourceHandle};
