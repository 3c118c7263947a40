//! Sweeps of signers whose holds have run out.

use std::sync::atomic::Ordering;
use std::time::Duration;

use actors::signers::{GrantRequest, PURGE_EVERY, Upkeep, UpkeepSettings};
use domain::nonce::Status;
use domain::{Mode, SignerId};

use crate::flaky::Fault;
use crate::{MINUTE, MINUTE_MS, PATIENCE, Shop, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_overdue_signers_of_a_look_are_swept_and_one_that_hangs_keeps_no_other_waiting() {
    const SIGNERS: usize = 100;
    // A lease that is not kept, and a request that waits for longer than the test.
    let shop = Shop::with(Mode::Basic, |limits| limits.request_timeout = 10 * PATIENCE).await;
    for number in 0..SIGNERS {
        let signer = SignerId::parse(&format!("s{number}")).unwrap();
        let short = GrantRequest { count: 1, hold_ms: Some(1), key: None };
        shop.signers.grant(&signer, short).await.unwrap();
    }
    shop.plan.next_are(&[Fault::Gated]);
    let settings = UpkeepSettings {
        sweep_every: Duration::from_millis(100),
        look_signers: 1_000,
        look_for: Duration::ZERO,
        sweep_signers_max: 4,
        purge_every: PURGE_EVERY,
        keep_keys: MINUTE * 60,
        keep_instances: MINUTE * 60,
        keep_audits: MINUTE * 60,
    };
    let upkeep = Upkeep::start(shop.signers.clone(), settings);
    let held = async || {
        let counts = shop.ledger.open_counts().await.unwrap();
        counts.iter().find(|(status, _)| *status == Status::Held).map_or(0, |(_, held)| *held)
    };
    until("all but the one that hangs are swept", async || held().await <= 1).await;
    assert_eq!(shop.plan.looks.load(Ordering::SeqCst), 1, "by the look that found them");
    shop.plan.gate.notify_one();
    until("all are swept", async || held().await == 0).await;
    upkeep.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_goes_on_behind_signers_that_are_not_overdue() {
    let shop = Shop::open(Mode::Basic).await;
    for (name, hold_ms) in [("a", MINUTE_MS), ("b", MINUTE_MS), ("c", MINUTE_MS), ("d", MINUTE_MS), ("e", 1)]
    {
        let request = GrantRequest { count: 1, hold_ms: Some(hold_ms), key: None };
        shop.signers.grant(&SignerId::parse(name).unwrap(), request).await.unwrap();
    }
    let settings = UpkeepSettings {
        sweep_every: Duration::from_secs(1),
        look_signers: 2,
        look_for: PATIENCE,
        sweep_signers_max: 4,
        purge_every: PURGE_EVERY,
        keep_keys: MINUTE * 60,
        keep_instances: MINUTE * 60,
        keep_audits: MINUTE * 60,
    };
    let upkeep = Upkeep::start(shop.signers.clone(), settings);
    let looks = || shop.plan.looks.load(Ordering::SeqCst);
    until("it looks", async || looks() > 0).await;
    // The sweep under way is done, and none follows.
    upkeep.stop().await;
    assert_eq!(looks() % 3, 0, "a sweep takes three looks at five signers");
    let released = async || {
        let counts = shop.ledger.open_counts().await.unwrap();
        counts.contains(&(Status::Released, 1)) && counts.contains(&(Status::Held, 4))
    };
    until("the last one is swept", released).await;
}
