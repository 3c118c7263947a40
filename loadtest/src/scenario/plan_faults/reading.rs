//! What the instances tell in the end of all that was made.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures_util::{StreamExt as _, TryStreamExt as _};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::Deserialize;
use serde_json::Value;
use testkit::fault_nodes::{Diary, Wrote};

use super::asked::Made;
use super::operator_state::OperatorState;
use crate::plan_checker::reported::{Checkpoint, Plan, Task};
use crate::plan_checker::{Evidence, PlanStory};

/// Plans and jobs that are read at once.
const READS_AT_ONCE: usize = 16;

/// A job in a list.
#[derive(Deserialize)]
struct Listed {
    id: String,
    lane: String,
}

/// Reads all of it, each part at any instance.
///
/// # Errors
/// No instance answers.
pub(super) async fn evidence(
    shared: &OperatorState,
    diaries: Vec<Diary>,
    grace: Duration,
    seed: u64,
) -> Result<Evidence> {
    let mut dice = StdRng::seed_from_u64(seed);
    let made = shared.memory().made.clone();
    let stories = made.iter().map(|made| (made, StdRng::from_rng(&mut dice))).collect::<Vec<_>>();
    let plans: Vec<PlanStory> = futures_util::stream::iter(stories)
        .map(|(made, dice)| story(shared, made, dice))
        .buffered(READS_AT_ONCE)
        .try_collect()
        .await?;
    let lines = diaries.iter().flat_map(|diary| &diary.lines);
    let mut jobs: BTreeSet<String> = lines
        .filter_map(|line| match &line.wrote {
            Wrote::Began { run, .. } => Some(run.job.clone()),
            _ => None,
        })
        .collect();
    // And those that no node began: of the newest runs, and of earlier ones where they failed.
    let stages = plans.iter().flat_map(|story| &story.tasks).flat_map(|(task, _)| &task.stages);
    jobs.extend(stages.filter_map(|stage| stage.job.clone()));
    let failed = shared.list::<Listed>(&mut dice, "/v1/jobs?outcome=failed").await?.into_iter();
    jobs.extend(failed.filter(|job| job.lane.starts_with("plan:")).map(|job| job.id));
    let jobs: Vec<_> = jobs.into_iter().map(|job| (job, StdRng::from_rng(&mut dice))).collect();
    // One that is not there is left out, for the checker to miss it.
    let found: Vec<Option<(String, Value)>> = futures_util::stream::iter(jobs)
        .map(async |(job, mut dice)| {
            let reported: Option<Value> = shared.find(&mut dice, &format!("/v1/jobs/{job}")).await?;
            anyhow::Ok(reported.map(|reported| (job, reported)))
        })
        .buffer_unordered(READS_AT_ONCE)
        .try_collect()
        .await?;
    let jobs: HashMap<_, _> = found.into_iter().flatten().collect();
    let listed = shared.list::<Plan>(&mut dice, "/v1/plans").await?.into_iter().map(|plan| plan.id).collect();
    let decided = shared.memory().decided.clone();
    Ok(Evidence { plans, listed, decided, jobs, diaries, grace })
}

async fn story(shared: &OperatorState, made: &Arc<Made>, mut dice: StdRng) -> Result<PlanStory> {
    let dice = &mut dice;
    let plan = shared.show(dice, &format!("/v1/plans/{}", made.id)).await?;
    let mut tasks = Vec::new();
    for task in &made.tasks {
        let reported: Task = shared.show(dice, &format!("/v1/tasks/{}", task.id)).await?;
        let mut checkpoints: Vec<Checkpoint> =
            shared.list(dice, &format!("/v1/tasks/{}/checkpoints", task.id)).await?;
        checkpoints.sort_by_key(|checkpoint| checkpoint.version);
        tasks.push((reported, checkpoints));
    }
    let events = shared.list(dice, &format!("/v1/plans/{}/events", made.id)).await?;
    let asked = made.tasks.iter().map(|task| task.asked.clone()).collect();
    Ok(PlanStory { asked, plan, tasks, events })
}
