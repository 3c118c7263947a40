//! Attempts that began before an earlier one of their job was over, or while one ran.
//!
//! An attempt is dispatched once the ledger has the end of the one before it, so it begins later than that. The node of the older
//! one may go on with it only where the older one ended, as its job lists it, as
//!
//! - `not_acknowledged`: its node may have it, and the owner of the job's lane has not heard so in time; or
//! - `timed_out`, and the newer one began `timeout_ms` or more after it: its node has yet to hear that. A node that is a
//!   process of its own acknowledges an attempt before the command begins, so that its times say nothing of this; or
//! - lost with its node in any way, and this was out of reach with it. Nobody can tell such a node from one that has died.
//!
//! A node that was within reach all the time lists what it runs, and what it said of an attempt that failed, it said at its end.
//! Of nodes that are processes of their own nobody knows whether they were within reach.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::{Evidence, listed, moment_us};
use crate::attempts::{self, Absences, Ran};

/// Looks at each pair of attempts of one job.
pub(super) fn check(evidence: &Evidence, broken: &mut Vec<String>) {
    let mut by_job: BTreeMap<&str, Vec<Ran<'_>>> = BTreeMap::new();
    let mut absences = HashMap::new();
    for diary in &evidence.diaries {
        for ran in attempts::read(diary) {
            by_job.entry(ran.run.job.as_str()).or_default().push(ran);
        }
        absences.insert(diary.node.as_str(), Absences::read(diary));
    }
    for (id, ran) in by_job {
        let Some(job) = evidence.jobs.get(id) else { continue };
        for older in &ran {
            for newer in ran.iter().filter(|newer| newer.run.attempt > older.run.attempt) {
                if let Some(what) = what_is_wrong(job, older, newer, &absences[older.node]) {
                    broken.push(format!("{id}: {what}: {older:?} and {newer:?}: {job}"));
                }
            }
        }
    }
}

fn what_is_wrong(job: &Value, older: &Ran<'_>, newer: &Ran<'_>, absences: &Absences) -> Option<&'static str> {
    let past = listed(job, older.run.attempt)?;
    let Some(over_us) = moment_us(&past["at"]) else {
        return Some("it does not list when an attempt was over before a newer one began");
    };
    if newer.began_us < over_us {
        return Some("an attempt began before an older one was over");
    }
    if !older.overlaps(newer) {
        return None;
    }
    let may_go_on = match past["state"].as_str().unwrap_or_default() {
        "not_acknowledged" => true,
        "timed_out" => {
            let timeout_us = job["timeout_ms"].as_u64().unwrap_or_default().saturating_mul(1_000);
            newer.began_us >= older.began_us.saturating_add(timeout_us) || absences.are_unknown()
        }
        "node_lost" | "node_lost_unsent" | "unlisted" | "undeliverable" | "rejected" => {
            absences.may_lose(older, Some(over_us))
        }
        _ => false,
    };
    (!may_go_on).then_some("an attempt ran beside a newer one")
}
