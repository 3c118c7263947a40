//! The plans that operators ask for: a few tasks of a few short stages, some of which fail, hang, or keep the context as
//! it is.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::seq::index;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use testkit::fault_nodes::{Chore, RARE_LABEL};

use crate::plan_checker::AskedTask;

/// Tenants from which each plan draws its own, some of which are locked by other plans.
const TENANTS: usize = 800;
/// How long a stage takes, in milliseconds.
const TAKES_MS: Range<u64> = 20..600;
/// The time for a stage that hangs, and for the run of a hurried task, in milliseconds.
const STAGE_TIMEOUT_MS: u64 = 1_000;
const HURRIED_RUN_MS: u64 = 1_500;

/// A plan that was made.
#[derive(Debug)]
pub(super) struct Made {
    /// Its id.
    pub(super) id: String,
    /// Its tasks, in order.
    pub(super) tasks: Vec<MadeTask>,
}

/// A task of it.
#[derive(Debug)]
pub(super) struct MadeTask {
    /// Its id.
    pub(super) id: String,
    /// What was asked.
    pub(super) asked: AskedTask,
    /// Its stages, corrected, where one of them cannot succeed as it was asked for.
    pub(super) mended: Option<Value>,
}

/// A plan to be made.
pub(super) struct Asked {
    /// The request.
    pub(super) body: Value,
    /// Of each task, what was asked, and its corrected stages.
    pub(super) tasks: Vec<(AskedTask, Option<Value>)>,
}

impl Asked {
    /// A plan that a seed decides.
    pub(super) fn draw(seed: u64, tasks: usize, stages: usize, label: Option<&str>) -> Self {
        let mut dice = StdRng::seed_from_u64(seed);
        let tenants = index::sample(&mut dice, TENANTS, tasks);
        let drawn: Vec<_> = tenants.iter().map(|tenant| task(&mut dice, tenant, stages, label)).collect();
        let on_failure = ["stop_new", "continue", "pause"][dice.random_range(0..3)];
        let body = json!({
            "max_concurrency": dice.random_range(1..=tasks),
            "on_failure": on_failure,
            "start": dice.random_ratio(4, 5),
            "tasks": drawn.iter().map(|(body, ..)| body).collect::<Vec<_>>(),
        });
        Self { body, tasks: drawn.into_iter().map(|(_, asked, mended)| (asked, mended)).collect() }
    }
}

fn task(
    dice: &mut StdRng,
    tenant: usize,
    stages: usize,
    label: Option<&str>,
) -> (Value, AskedTask, Option<Value>) {
    let (tenant, config) = (format!("tenant-{tenant}"), json!({ "size": dice.random_range(0..1_000) }));
    let drawn: Vec<_> = (0..stages).map(|number| stage(dice, number, label)).collect();
    let reruns = drawn.iter().map(|(_, mended)| mended["on_unknown"] == "rerun").collect();
    let is_faulty = drawn.iter().any(|(stage, mended)| stage != mended);
    let (stages, mended): (Vec<_>, Vec<_>) = drawn.into_iter().unzip();
    let mut body = json!({ "tenant": tenant, "config": config, "stages": stages });
    if dice.random_ratio(1, 20) {
        body["timeout_ms"] = json!(HURRIED_RUN_MS);
    }
    (body, AskedTask { tenant, config, reruns }, is_faulty.then(|| mended.into()))
}

/// A stage, and the same one without its faults.
fn stage(dice: &mut StdRng, number: usize, label: Option<&str>) -> (Value, Value) {
    let good = Chore {
        number: number as u64,
        take_ms: dice.random_range(TAKES_MS),
        is_silent: dice.random_ratio(1, 4),
        ..Chore::default()
    };
    let mut mended = json!({ "name": format!("s{number}"), "payload": good.payload() });
    if dice.random_ratio(1, 3) {
        mended["on_unknown"] = json!("rerun");
    }
    let rare = dice.random_ratio(1, 10).then_some(RARE_LABEL);
    mended["requires"] = label.into_iter().chain(rare).collect();
    let mut stage = mended.clone();
    match dice.random_range(0..40) {
        0 | 1 => stage["payload"] = Chore { is_broken: true, ..good }.payload(),
        2 => {
            stage["payload"] = Chore { hangs: 1, ..good }.payload();
            stage["timeout_ms"] = json!(STAGE_TIMEOUT_MS);
        }
        _ => {}
    }
    (stage, mended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_a_plan_and_only_stages_with_faults_are_mended() {
        let one = Asked::draw(7, 4, 3, None);
        assert_eq!(one.body, Asked::draw(7, 4, 3, None).body);
        assert_ne!(one.body, Asked::draw(8, 4, 3, Some("x")).body);
        let mut faulty = 0;
        for seed in 0..50 {
            let plan = Asked::draw(seed, 4, 3, None);
            for (task, (asked, mended)) in plan.body["tasks"].as_array().unwrap().iter().zip(&plan.tasks) {
                assert_eq!((task["tenant"].as_str(), asked.reruns.len()), (Some(asked.tenant.as_str()), 3));
                if let Some(mended) = mended {
                    faulty += 1;
                    assert_ne!(task["stages"], *mended);
                    assert!(mended.as_array().unwrap().iter().all(|stage| stage["payload"]["broken"] == 0));
                }
            }
        }
        assert!(faulty > 20, "{faulty}");
    }
}
