//! States and decisions of Fencepost.
//!
//! What lives here: the words of the system as types ([`SignerId`], [`Token`], [`nonce::Status`]), its
//! limits, and the pure decisions over them. What must never: I/O, async, a clock, serde. Time comes in as an
//! argument, so every decision can be tested with a table.

mod audit;
mod cluster_secret;
pub mod database_clock;
pub mod id;
pub mod job;
pub mod key;
pub mod lane;
mod lane_id;
pub mod lease;
pub mod limits;
pub mod mode;
mod named;
mod node_timeouts;
pub mod nonce;
mod pattern;
pub mod plan;
mod pool_pause;
pub mod session;
mod shard;
pub mod signer;
pub mod time;
mod trace_parent;

pub use audit::AuditEntry;
pub use cluster_secret::ClusterSecret;
pub use database_clock::DatabaseClock;
pub use id::{
    BulkId, ClientRef, HoldId, IdempotencyKey, InstanceId, Invalid, JobId, JobKind, Label, Language, NodeId,
    Nonce, PlanId, PoolName, SegmentTag, SequenceName, SessionId, SignerId, TaskId, TenantId, TxHash,
    WorkerNumber,
};
pub use key::KeyScope;
pub use lane_id::LaneId;
pub use lease::{Resource, ResourceKind, Token};
pub use mode::{Mode, Modes};
pub use node_timeouts::NodeTimeouts;
pub use pattern::{Names, Pattern};
pub use pool_pause::PoolPause;
pub use shard::shard_of;
pub use time::Timestamp;
pub use trace_parent::TraceParent;
