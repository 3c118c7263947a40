//! The instances that run.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The instances that live, and which of them answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cluster {
    /// The instance that answers.
    pub instance: String,
    /// How requests find their owner.
    #[schema(example = "basic")]
    pub mode: String,
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
    /// How many live leases it has, its own `instance:` lease left out.
    pub resources: u64,
}
