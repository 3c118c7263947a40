//! What the upkeep of an instance purges, and from which age on.

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
    let settings = UpkeepSettings {
        sweep_every: MINUTE,
        look_signers: 1_000,
        look_for: Duration::ZERO,
        sweep_signers_max: 4,
        purge_every: OFTEN,
        keep_keys: Duration::from_millis(KEPT_MS[0]),
        keep_instances: Duration::from_millis(KEPT_MS[1]),
    };
    let upkeep = Upkeep::start(shop.signers.clone(), settings);
    until("all three are purged", async || shop.plan.purges.all().len() == 3).await;
    let expected = [("audits", 90 * DAY_MS), ("instances", KEPT_MS[1]), ("keys", KEPT_MS[0])];
    assert_eq!(shop.plan.purges.all(), expected);
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
