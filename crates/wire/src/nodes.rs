//! Nodes and pools: what is shown of them, how pools are configured, and what a selection would choose.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::jobs::Route;
use crate::limits::{
    JOB_LABELS_MAX, LABEL_CHARS_MAX, LANGUAGE_CHARS_MAX, NUMBER_MAX, POOL_LABELS_MAX, POOL_NAME_CHARS_MAX,
    POOL_ROUTES_MAX, POOL_WEIGHT_MAX, POOLS_MAX,
};
use crate::strict::{self, words};
use crate::worker::Load;

/// Longest route as a pool names it, in characters: two languages and a colon.
const ROUTE_CHARS_MAX: usize = 2 * LANGUAGE_CHARS_MAX + 1;

words! {
    /// Whether a node is given work.
    pub enum NodeState {
        /// It is.
        Online = "online",
        /// It finishes what it has and is given no more.
        Draining = "draining",
        /// It has missed heartbeats or left dispatches unanswered; until it answers it is given no more.
        Unhealthy = "unhealthy",
        /// Its connection is gone.
        Offline = "offline",
    }
}

/// One node, as the instance asked knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its id.
    pub id: String,
    /// Whether it is given work.
    pub state: NodeState,
    /// The instance that holds its connection.
    pub instance: String,
    /// Attempts that it may run at once.
    pub capacity: u32,
    /// How many of its slots are taken.
    pub used: u32,
    /// Its labels, those of its services and languages included.
    pub labels: Vec<String>,
    /// The pools it belongs to.
    pub pools: Vec<String>,
    /// Its load, as it said last.
    #[schema(required)]
    pub load: Option<Load>,
    /// The version of what runs there, as it said.
    #[schema(required)]
    pub version: Option<String>,
    /// When anything of this was last another: heartbeats that say nothing new do not move it.
    #[schema(format = DateTime)]
    pub seen_at: String,
}

/// The pools that are configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolsSetting {
    /// Rises by one with every change.
    #[schema(minimum = 1, maximum = 9007199254740991u64)]
    pub version: u64,
    /// The pools. When there is none, all nodes are in `default`.
    pub pools: Vec<Pool>,
}

/// A change of the pools: what is sent replaces all of them.
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
    /// The routes that it serves, each `source:target`. Without any it serves a route by those of its nodes that hear
    /// the source language and speak the target language. Jobs without a route go to any pool.
    #[serde(default, deserialize_with = "strict::texts::<POOL_ROUTES_MAX, ROUTE_CHARS_MAX, _>")]
    #[schema(max_items = 256)]
    pub routes: Vec<String>,
    /// A node that has all of these labels belongs to it.
    #[serde(default, deserialize_with = "strict::texts::<POOL_LABELS_MAX, LABEL_CHARS_MAX, _>")]
    #[schema(max_items = 16)]
    pub requires: Vec<String>,
    /// Its share of the jobs that several pools could serve.
    #[serde(default = "one", deserialize_with = "strict::integer32::<1, POOL_WEIGHT_MAX, _>")]
    #[schema(default = 1, minimum = 1, maximum = 1000)]
    pub weight: u32,
}

const fn one() -> u32 {
    1
}

/// What a job asks of whoever runs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SelectRequest {
    /// Only nodes of this pool.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<POOL_NAME_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 64)]
    pub pool: Option<String>,
    /// Only pools that serve this route.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    #[schema(nullable = false)]
    pub route: Option<Route>,
    /// Only nodes that have all of these labels.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<JOB_LABELS_MAX, LABEL_CHARS_MAX, _>"
    )]
    #[schema(max_items = 16)]
    pub requires: Vec<String>,
}

/// What would be chosen now, and why. Nothing is reserved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SelectAnswer {
    /// The node; `null` when there is none.
    #[schema(required)]
    pub node: Option<String>,
    /// The pool it was found in.
    #[schema(required)]
    pub pool: Option<String>,
    /// How many nodes were looked at.
    pub considered: u64,
    /// How many of them fell out, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// How long it took, in microseconds.
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
