//! The live instances, the owners of resources, and the mode.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::lenient;
use crate::limits::{CANARY_SIGNERS_MAX, NUMBER_MAX};
use crate::strict::{self, words};

words! {
    /// How requests and owners find each other.
    pub growing enum Mode {
        /// Any instance serves any request, and holds the key's lease while it does.
        Basic = "basic",
        /// One instance owns a key while there is work, and requests are forwarded to it.
        WorkerQueue = "worker-queue",
    }
}

/// The live instances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cluster {
    /// The instance that answers.
    pub instance: String,
    /// How requests find their owner.
    #[serde(deserialize_with = "lenient::read")]
    pub mode: Mode,
    /// Of the signers that the caller sees, only these are in that mode, and all others in the other mode. Absent when all
    /// signers are in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Vec<String>>,
    /// The fingerprint of the ring: equal on all instances that see the same members. It does not count up.
    #[schema(maximum = 9007199254740991u64)]
    pub ring_version: u64,
    /// The live instances, in the order of their ids.
    pub instances: Vec<Instance>,
}

/// A running Fencepost process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Instance {
    /// The instance's id: its node name and a part unique to this start.
    pub instance_id: String,
    /// The URL at which other instances and clients reach it.
    pub url: String,
    /// When it started.
    #[schema(format = DateTime)]
    pub started_at: String,
    /// The machine's name.
    pub hostname: String,
    /// The process id on that machine.
    pub pid: u32,
    /// The version of the binary.
    pub version: String,
    /// Whether the instance reached its bus when it last reported. Absent for a bus within the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_up: Option<bool>,
    /// The bus that the instance uses: its kind, `:`, and an id that it keeps. Instances with different ones cannot give each
    /// other jobs, and call themselves `degraded`. Absent until the instance has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// The number of live leases that the instance holds, without its own `instance:` lease, as they were last counted: some
    /// seconds ago, and minutes ago where there are millions: 5 minutes, and what the count takes. 0 until they are
    /// counted for the first time.
    pub resources: u64,
    /// Whether the instance is on the ring, as the instance that answers sees it. A newcomer joins after three seconds.
    #[serde(default)]
    #[schema(required)]
    pub on_ring: bool,
}

/// The owner of a resource: the instance that holds its live lease, or else the one that the ring names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Owner {
    /// The resource.
    pub resource: String,
    /// The instance.
    pub instance_id: String,
    /// The URL at which it is reached.
    pub url: String,
    /// The fingerprint of the ring.
    #[schema(maximum = 9007199254740991u64)]
    pub ring_version: u64,
    /// Whether the instance holds a live lease; otherwise the ring names it.
    pub leased: bool,
}

/// The mode of the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModeSetting {
    /// The mode.
    #[serde(deserialize_with = "lenient::read")]
    pub mode: Mode,
    /// Only these signers are in that mode, and all others in the other mode. Absent when all are in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Vec<String>>,
    /// The version, which rises by one with each change.
    #[schema(minimum = 1, maximum = 9007199254740991u64)]
    pub version: u64,
}

/// A change of the mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModeRequest {
    /// The mode.
    pub mode: Mode,
    /// Only these signers, such as `signer:eip155:1:0xab`. Absent means all.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signers_of_a_mode_are_a_list_that_says_what_it_may_be() {
        let read = |only: &str| {
            serde_json::from_str::<ModeRequest>(&format!(r#"{{"mode":"basic","version":1,"only":{only}}}"#))
        };
        assert_eq!(read(r#"["signer:a"]"#).unwrap().only.unwrap(), ["signer:a"]);
        let many = format!("[{}]", vec![r#""signer:a""#; CANARY_SIGNERS_MAX + 1].join(","));
        for bad in ["null", "[]", r#""signer:a""#, "{}", &many] {
            let message = read(bad).expect_err(bad).to_string();
            let expected = format!("expected a list of 1 to {CANARY_SIGNERS_MAX} texts");
            assert!(message.contains(&expected), "{message}");
        }
        assert!(read("[7]").is_err());
    }
}
