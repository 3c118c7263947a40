//! What the upkeep of an instance purges, and from which age on.

use std::sync::atomic::Ordering;
use std::time::Duration;

use actors::signers::{Upkeep, UpkeepSettings};
use domain::Mode;

use crate::lanes::open_with;
use crate::plans::start_with;
use crate::{MINUTE, Shop, until};

const OFTEN: Duration = Duration::from_millis(10);
const DAY_MS: u64 = 86_400_000;
/// Each kind is kept for another time.
const KEPT_MS: [u64; 2] = [3_600_001, 7_200_002];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_audits_and_ended_incarnations_are_purged_each_at_its_own_age() {
    let shop = Shop::open(Mode::Basic).await;
    let upkeep = Upkeep::start(shop.signers.clone(), settings());
    until("all three are purged", async || shop.plan.purges.all().len() == 3).await;
    let expected = [("audits", 90 * DAY_MS), ("instances", KEPT_MS[1]), ("keys", KEPT_MS[0])];
    assert_eq!(shop.plan.purges.all(), expected);
    upkeep.stop().await;
}

fn settings() -> UpkeepSettings {
    UpkeepSettings {
        sweep_every: MINUTE,
        look_signers: 1_000,
        look_for: Duration::ZERO,
        sweep_signers_max: 4,
        purge_every: OFTEN,
        keep_keys: Duration::from_millis(KEPT_MS[0]),
        keep_instances: Duration::from_millis(KEPT_MS[1]),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_purged_beside_jobs_keeps_its_age_when_the_clock_jumps_forward() {
    let shop = Shop::open(Mode::Basic).await;
    let upkeep = Upkeep::start(shop.signers.clone(), settings());
    let purges = &shop.plan.purges;
    until("all three are purged", async || purges.all().len() == 3).await;
    shop.plan.ahead_ms.store(600_000, Ordering::Relaxed);
    // The clock is known to a few milliseconds.
    let is_kept = |what: &str, kept_ms: u64| {
        purges.all().iter().any(|step| step.0 == what && step.1 > kept_ms + 590_000)
    };
    until("the keys count as younger", async || is_kept("keys", KEPT_MS[0])).await;
    until("the audits count as younger", async || is_kept("audits", 90 * DAY_MS)).await;
    until("the incarnations count as younger", async || is_kept("instances", KEPT_MS[1])).await;
    upkeep.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_jobs_closed_sessions_and_ended_plans_are_purged_each_at_its_own_age() {
    let lanes = open_with(|config| {
        (config.purge_every, config.retention) = (OFTEN, Duration::from_millis(KEPT_MS[0]));
    })
    .await;
    let plans = start_with(&lanes, |config| {
        (config.purge_every, config.retention) = (OFTEN, Duration::from_millis(KEPT_MS[1]));
    });
    until("all three are purged", async || lanes.plan.purges.all().len() == 3).await;
    let expected = [("jobs", KEPT_MS[0]), ("plans", KEPT_MS[1]), ("sessions", KEPT_MS[0] + 3 * DAY_MS)];
    assert_eq!(lanes.plan.purges.all(), expected);
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_of_many_steps_keeps_its_age_when_the_clock_jumps_forward_between_two_of_them() {
    let kept = Duration::from_millis(KEPT_MS[0]);
    let lanes = open_with(|config| (config.purge_every, config.retention) = (OFTEN, kept)).await;
    lanes.plan.purges.are_full.store(true, Ordering::SeqCst);
    let plans = start_with(&lanes, |config| (config.purge_every, config.retention) = (OFTEN, kept));
    let purges = &lanes.plan.purges;
    let has_begun = |step| purges.all().contains(&step);
    until("jobs are purged", async || has_begun(("jobs", KEPT_MS[0]))).await;
    until("plans are purged", async || has_begun(("plans", KEPT_MS[0]))).await;
    lanes.plan.ahead_ms.store(600_000, Ordering::Relaxed);
    let before = purges.steps().len();
    // The clock is known to a few milliseconds.
    let is_kept = |what: &str, kept_ms: u64| {
        purges.all().iter().any(|step| step.0 == what && step.1 > kept_ms + 590_000)
    };
    until("the jobs count as younger", async || is_kept("jobs", KEPT_MS[0])).await;
    until("the plans count as younger", async || is_kept("plans", KEPT_MS[0])).await;
    for what in ["jobs", "plans"] {
        let as_before = purges.steps()[before..].iter().filter(|step| **step == (what, KEPT_MS[0])).count();
        assert!(as_before <= 1, "{what}: only the step that was under way is by the time before");
    }
    purges.are_full.store(false, Ordering::SeqCst);
    until("the sessions count as younger", async || is_kept("sessions", KEPT_MS[0] + 3 * DAY_MS)).await;
    plans.stop().await;
    lanes.jobs.stop().await;
}
