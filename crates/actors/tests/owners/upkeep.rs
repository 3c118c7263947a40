//! What the upkeep of an instance purges, from which age on, and what it does meanwhile.

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
const KEPT_MS: [u64; 3] = [3_600_001, 7_200_002, 86_400_003];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_audits_and_ended_incarnations_are_purged_each_at_its_own_age() {
    let shop = Shop::open(Mode::Basic).await;
    let upkeep = Upkeep::start(shop.signers.clone(), settings());
    until("all three are purged", async || shop.plan.purges.all().len() == 3).await;
    let expected = [("audits", KEPT_MS[2]), ("instances", KEPT_MS[1]), ("keys", KEPT_MS[0])];
    assert_eq!(shop.plan.purges.all(), expected);
    upkeep.stop().await;
}

/// Purges come often, and each kind at its own age.
pub fn settings() -> UpkeepSettings {
    UpkeepSettings {
        sweep_every: MINUTE,
        look_signers: 1_000,
        look_for: Duration::ZERO,
        sweep_signers_max: 4,
        purge_every: OFTEN,
        keep_keys: Duration::from_millis(KEPT_MS[0]),
        keep_instances: Duration::from_millis(KEPT_MS[1]),
        keep_audits: Duration::from_millis(KEPT_MS[2]),
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
    until("the audits count as younger", async || is_kept("audits", KEPT_MS[2])).await;
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
    const JUMP_MS: u64 = 600_000;
    let kept = Duration::from_millis(KEPT_MS[0]);
    let lanes = open_with(|config| (config.purge_every, config.retention) = (OFTEN, kept)).await;
    let purges = &lanes.plan.purges;
    purges.are_full.store(true, Ordering::SeqCst);
    // The clock is known to a few milliseconds.
    let is_kept = |what: &str, kept_ms: u64| {
        purges.all().iter().any(|step| step.0 == what && step.1 > kept_ms + JUMP_MS - 10_000)
    };
    let jumps = async |what: &'static str, ahead_ms: u64| {
        let as_before = || purges.steps().iter().filter(|step| **step == (what, KEPT_MS[0])).count();
        until("a purge has begun", async || as_before() > 0).await;
        lanes.plan.ahead_ms.store(ahead_ms, Ordering::Relaxed);
        let steps = as_before();
        until("the rows count as younger", async || is_kept(what, KEPT_MS[0])).await;
        assert!(as_before() <= steps + 1, "{what}: no step but the one that was under way");
    };
    jumps("jobs", JUMP_MS).await;
    let plans = start_with(&lanes, |config| (config.purge_every, config.retention) = (OFTEN, kept));
    jumps("plans", 2 * JUMP_MS).await;
    purges.are_full.store(false, Ordering::SeqCst);
    until("the sessions count as younger", async || is_kept("sessions", KEPT_MS[0] + 3 * DAY_MS)).await;
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_sessions_are_purged_also_where_jobs_cannot_be() {
    let lanes = open_with(|config| config.purge_every = OFTEN).await;
    let purges = &lanes.plan.purges;
    *purges.fails.lock() = "jobs";
    let of_sessions = || purges.steps().iter().filter(|(what, _)| *what == "sessions").count();
    // A purge may be under way.
    let before = of_sessions();
    until("sessions are purged all the same", async || of_sessions() > before + 2).await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_audits_and_incarnations_are_purged_also_where_another_of_them_cannot_be() {
    let shop = Shop::open(Mode::Basic).await;
    let upkeep = Upkeep::start(shop.signers.clone(), settings());
    let purges = &shop.plan.purges;
    let steps = |kind: &str| purges.steps().iter().filter(|(what, _)| *what == kind).count();
    let kinds = ["keys", "audits", "instances"];
    for failing in kinds {
        *purges.fails.lock() = failing;
        // A purge may be under way.
        let before = kinds.map(steps);
        until("all are tried again and again", async || {
            kinds.into_iter().zip(before).all(|(kind, before)| steps(kind) > before + 2)
        })
        .await;
    }
    upkeep.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_sessions_are_looked_for_while_a_purge_of_jobs_has_no_end() {
    let lanes = open_with(|config| config.purge_every = OFTEN).await;
    let (purges, idle_looks) = (&lanes.plan.purges, &lanes.plan.idle_looks);
    let before = purges.steps().len();
    purges.are_full.store(true, Ordering::SeqCst);
    until("old jobs are forgotten step by step", async || purges.steps().len() > before + 10).await;
    let before = idle_looks.load(Ordering::SeqCst);
    until("idle sessions are looked for", async || idle_looks.load(Ordering::SeqCst) > before + 1).await;
    lanes.jobs.stop().await;
}
