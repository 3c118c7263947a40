//! The identity of this instance, its lease, and what it knows of the other instances.
//!
//! What lives here: the identity of one incarnation; the `instance:` lease behind it ([`Membership`]); what
//! follows from the others' leases ([`FailureDetector`]: which instances are dead; [`ClusterView`]: who owns
//! which key); whether silence is evidence ([`Reach`]). What must never: a decision about a key's work, or a name that two
//! incarnations could share.

mod cluster_view;
mod failure_detector;
mod identity;
mod membership;
mod other_buses;
mod other_ledgers;
mod presence_publisher;
mod reach;

pub use cluster_view::{ClusterView, KeyOwner, Member, RING_AGE, View, owners_among};
pub use failure_detector::FailureDetector;
pub use identity::{Identity, NODE_NAME_CHARS_MAX};
pub use membership::{InstanceLease, JoinOptions, Membership, Process};
pub use other_buses::OtherBuses;
pub use presence_publisher::tell;
pub use reach::{HeardAll, Reach};
