//! Nodes and pools: how they are shown and configured, and what a selection would choose.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::jobs::Route;
use crate::lenient;
use crate::limits::{
    JOB_LABELS_MAX, LABEL_CHARS_MAX, LANGUAGE_CHARS_MAX, NUMBER_MAX, PAUSE_MS_MAX, POOL_LABELS_MAX,
    POOL_NAME_CHARS_MAX, POOL_ROUTES_MAX, POOL_WEIGHT_MAX, POOLS_MAX, REASON_CHARS_MAX,
};
use crate::strict::{self, words};
use crate::worker::Load;

/// Longest route as a pool names it, in characters: two languages and a colon.
const ROUTE_CHARS_MAX: usize = 2 * LANGUAGE_CHARS_MAX + 1;

words! {
    /// Whether a node gets jobs.
    pub growing enum NodeState {
        /// The node gets jobs.
        Online = "online",
        /// The node finishes its jobs and gets no more.
        Draining = "draining",
        /// The node has missed heartbeats or not acknowledged dispatches, or its connection is closed while attempts of it are
        /// under way. It gets no more jobs until it answers, or connects again.
        Unhealthy = "unhealthy",
        /// The node is gone: it left, was lost or was replaced. Only events say so; lists and `GET /v1/nodes/{id}` show no
        /// such node.
        Offline = "offline",
    }
}

/// A node, as the instance that answers knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its id.
    pub id: String,
    /// Whether the node gets jobs.
    #[serde(deserialize_with = "lenient::read")]
    pub state: NodeState,
    /// The instance that holds the node's connection.
    pub instance: String,
    /// The number of attempts that the node may run at once.
    pub capacity: u32,
    /// The number of the node's slots that are taken.
    pub used: u32,
    /// The node's labels, with those of its services and languages.
    pub labels: Vec<String>,
    /// The pools that the node belongs to; for a token with patterns for pools, those that it sees.
    pub pools: Vec<String>,
    /// The load that the node reported last.
    #[serde(default, deserialize_with = "lenient::read")]
    #[schema(required)]
    pub load: Option<Load>,
    /// The version of the node's software, as the node reported it.
    #[schema(required)]
    pub version: Option<String>,
    /// The services among its labels, as the node named them.
    #[serde(default)]
    #[schema(required)]
    pub services: Vec<String>,
    /// When the node registered: with its present connection, or again after the bus had lost its record. `null` while only the
    /// node's instance knows of its connection because the bus is away.
    #[serde(default)]
    #[schema(required, format = DateTime)]
    pub registered_at: Option<String>,
    /// When the instance that answers last heard of the node, by a heartbeat or another change, by that instance's clock.
    #[serde(default)]
    #[schema(required, format = DateTime)]
    pub heartbeat_at: Option<String>,
    /// The version of the node's record. It rises with each change, and never goes back. 0 while only the node's instance knows
    /// of its connection because the bus is away.
    #[serde(default)]
    #[schema(required, maximum = 9007199254740991u64)]
    pub record_version: u64,
    /// When the node's record last changed. Heartbeats that report nothing new do not change it. While only the node's instance
    /// knows of its connection because the bus is away, when that instance last heard of it.
    #[schema(format = DateTime)]
    pub seen_at: String,
}

words! {
    /// Whose a node's id is.
    pub growing enum ClaimStatus {
        /// No node of this id is known.
        Free = "free",
        /// The token that asks connected it.
        Own = "own",
        /// Another token connected it.
        Anothers = "anothers",
    }
}

/// Whose a node's id is, as the instance that answers knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeClaim {
    /// The node's id.
    pub id: String,
    /// Whose it is.
    #[serde(deserialize_with = "lenient::read")]
    pub status: ClaimStatus,
}

/// The configured pools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolsSetting {
    /// The version, which rises by one with each change.
    #[schema(minimum = 1, maximum = 9007199254740991u64)]
    pub version: u64,
    /// The pools. Without any, all nodes are in the pool `default`.
    #[serde(deserialize_with = "lenient::read")]
    pub pools: Vec<Pool>,
    /// The pools that are paused now, `default` included.
    #[serde(default)]
    #[schema(required)]
    pub paused: Vec<PoolPause>,
}

/// A pool to which nothing is dispatched. Its jobs wait; those that are dispatched already run on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolPause {
    /// The pool.
    pub pool: String,
    /// The reason that the operator gave.
    pub reason: String,
    /// The name of the operator's token. Empty without tokens.
    pub by: String,
    /// When the pool was paused.
    #[schema(format = DateTime)]
    pub since: String,
    /// When the pause ends by itself. `null` if it lasts until somebody resumes the pool.
    #[schema(required, format = DateTime)]
    pub until: Option<String>,
}

/// The pause of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// Why, for the audit and for people who wonder why jobs wait.
    #[serde(deserialize_with = "strict::prose::<REASON_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 1024)]
    pub reason: String,
    /// For how long, in milliseconds. Without it, the pause lasts until somebody resumes the pool.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<1, PAUSE_MS_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 1, maximum = 2592000000u64)]
    pub for_ms: Option<u64>,
}

/// The new pools, which replace all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolsRequest {
    /// The version that this replaces.
    #[serde(deserialize_with = "strict::integer::<1, NUMBER_MAX, _>")]
    #[schema(minimum = 1, maximum = 9007199254740991u64)]
    pub version: u64,
    /// The pools.
    #[serde(deserialize_with = "strict::any_objects::<POOLS_MAX, _, _>")]
    #[schema(max_items = 1000)]
    pub pools: Vec<Pool>,
}

/// A set of nodes that serve the same kind of job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Its name.
    #[serde(deserialize_with = "strict::text::<POOL_NAME_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 64)]
    pub name: String,
    /// The routes that the pool serves, each `source:target`. A pool without routes serves a route by its nodes that
    /// have the labels `asr:<source>` and `tts:<target>`. Jobs without a route go to any pool.
    #[serde(default, deserialize_with = "strict::texts::<POOL_ROUTES_MAX, ROUTE_CHARS_MAX, _>")]
    #[schema(max_items = 256)]
    pub routes: Vec<String>,
    /// A node belongs to the pool if it has all of these labels.
    #[serde(default, deserialize_with = "strict::texts::<POOL_LABELS_MAX, LABEL_CHARS_MAX, _>")]
    #[schema(max_items = 16)]
    pub requires: Vec<String>,
    /// The pool's share of the jobs that several pools can serve.
    #[serde(default = "one", deserialize_with = "strict::integer32::<1, POOL_WEIGHT_MAX, _>")]
    #[schema(default = 1, minimum = 1, maximum = 1000)]
    pub weight: u32,
}

impl lenient::Growing for Pool {}

const fn one() -> u32 {
    1
}

/// What a job requires of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SelectRequest {
    /// Only nodes of this pool are considered.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<POOL_NAME_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 64)]
    pub pool: Option<String>,
    /// Only pools that serve this route are considered.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    #[schema(nullable = false)]
    pub route: Option<Route>,
    /// Only nodes that have all of these labels are considered.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<JOB_LABELS_MAX, LABEL_CHARS_MAX, _>"
    )]
    #[schema(max_items = 16)]
    pub requires: Vec<String>,
}

/// The node that would be chosen now, and why. Nothing is reserved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SelectAnswer {
    /// The node. `null` when no node fits.
    #[schema(required)]
    pub node: Option<String>,
    /// The pool in which the node was found.
    #[schema(required)]
    pub pool: Option<String>,
    /// The number of nodes that were considered.
    pub considered: u64,
    /// The number of nodes that were rejected, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// How long the selection took, in microseconds.
    pub took_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_written_as_they_are_read() {
        let text =
            r#"{"version":3,"pools":[{"name":"zh-en","routes":["zh:en"],"requires":["asr:zh"],"weight":2}]}"#;
        let pools: PoolsRequest = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&pools).unwrap(), text);
        let bare: Pool = serde_json::from_str(r#"{"name":"p"}"#).unwrap();
        assert_eq!((bare.weight, bare.routes.len()), (1, 0));
        assert!(serde_json::from_str::<PoolsRequest>(r#"{"version":1,"pools":[]}"#).is_ok());
    }

    #[test]
    fn the_reason_of_a_pause_is_a_text_that_every_ledger_keeps() {
        let read = |reason: &str| {
            serde_json::from_str::<PauseRequest>(&serde_json::json!({ "reason": reason }).to_string())
        };
        assert_eq!(read("repair\n").unwrap().reason, "repair\n");
        for bad in ["", "a\0b", &"x".repeat(REASON_CHARS_MAX + 1)] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_pools_is_said() {
        for (body, says) in [
            (r#"{"pools":[]}"#, "missing field `version`"),
            (r#"{"version":0,"pools":[]}"#, "from 1 to"),
            (r#"{"version":1,"pools":[["p"]]}"#, "an object"),
            (r#"{"version":1,"pools":[{"name":"p","weight":0}]}"#, "from 1 to 1000"),
            (r#"{"version":1,"pools":[{"name":"p","weigth":1}]}"#, "unknown field"),
            (r#"{"version":1,"pools":[{"name":""}]}"#, "1 to 64 characters"),
        ] {
            let message = serde_json::from_str::<PoolsRequest>(body).expect_err(body).to_string();
            assert!(message.contains(says), "{message}");
        }
        assert!(serde_json::from_str::<SelectRequest>(r#"{"payload":1}"#).is_err());
    }
}
