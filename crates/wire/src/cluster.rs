//! The instances that run, what belongs to which of them, and the mode.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limits::{CANARY_SIGNERS_MAX, NUMBER_MAX};
use crate::strict::{self, words};

words! {
    /// How requests and owners find each other.
    pub enum Mode {
        /// Any instance takes any request, and has the key for as long as that takes.
        Basic = "basic",
        /// A key's owner keeps it while there is work; requests are brought to the owner.
        WorkerQueue = "worker-queue",
    }
}

/// The instances that live, and which of them answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cluster {
    /// The instance that answers.
    pub instance: String,
    /// How requests find their owner.
    pub mode: Mode,
    /// These signers only are in that mode, the others in the other one; absent when all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Vec<String>>,
    /// Names the ring: the same on all instances that see the same members. It does not count.
    #[schema(maximum = 9007199254740991u64)]
    pub ring_version: u64,
    /// Those that live, in the order of their ids.
    pub instances: Vec<Instance>,
}

/// One running Fencepost process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Instance {
    /// Its id: node name and a part unique to this start.
    pub instance_id: String,
    /// Where others and clients reach it.
    pub url: String,
    /// When it started.
    #[schema(format = DateTime)]
    pub started_at: String,
    /// The machine's name.
    pub hostname: String,
    /// Its process id there.
    pub pid: u32,
    /// The version of the binary.
    pub version: String,
    /// Whether its bus worked when it last said so; absent for a bus within the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_up: Option<bool>,
    /// How many live leases it has, its own `instance:` lease left out.
    pub resources: u64,
    /// Whether it is on the ring, as the instance that answers sees it. A newcomer is after three seconds.
    #[serde(default)]
    pub on_ring: bool,
}

/// To whom a resource belongs: who has its live lease, or else whom the ring gives it to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Owner {
    /// The resource.
    pub resource: String,
    /// The instance.
    pub instance_id: String,
    /// Where it is reached.
    pub url: String,
    /// Names the ring that was looked at.
    #[schema(maximum = 9007199254740991u64)]
    pub ring_version: u64,
    /// Whether it has a live lease, or is only the one to ask.
    pub leased: bool,
}

/// The mode of the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModeSetting {
    /// The mode.
    pub mode: Mode,
    /// These signers only are in that mode, the others in the other one; absent when all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Vec<String>>,
    /// Rises by one with every change.
    #[schema(minimum = 1, maximum = 9007199254740991u64)]
    pub version: u64,
}

/// A change of the mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModeRequest {
    /// The mode.
    pub mode: Mode,
    /// These resources only, such as `signer:eip155:1:0xab`; without it, all.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_texts::<CANARY_SIGNERS_MAX, _>"
    )]
    #[schema(nullable = false, min_items = 1, max_items = 1000)]
    pub only: Option<Vec<String>>,
    /// The version that this replaces.
    #[serde(deserialize_with = "strict::integer::<1, NUMBER_MAX, _>")]
    #[schema(minimum = 1, maximum = 9007199254740991u64)]
    pub version: u64,
}
