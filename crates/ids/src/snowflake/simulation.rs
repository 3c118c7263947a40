//! Whole lives of fleets: thousands of restarts, more instances than numbers, clocks that are set at random.

use std::sync::atomic::Ordering;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::fleet::{Fleet, fixed, pass};
use super::*;

/// Processes that live on beside those that are restarted.
const NEIGHBOURS: usize = 3;
/// Between two restarts, in milliseconds.
const PAUSE_MS: u64 = 20;

#[tokio::test(start_paused = true)]
async fn five_thousand_restarts_use_up_no_numbers() {
    // Numbers that were never leased come before those that the dead still have. So all are used, and then those of the dead.
    assert_eq!(highest_of(5_000, &Options::default()).await, domain::limits::ID_WORKER_MAX);
}

#[tokio::test(start_paused = true)]
async fn restarts_use_no_more_numbers_than_lead_and_lease_keep_from_the_next() {
    let options = Options { lease_ms: LEAD_MS_DEFAULT, ..Options::default() };
    // Each number comes free when its lease is over and its mark is past.
    let kept_ms = options.lease_ms.max(options.lead_ms) + options.clock_skew_ms;
    let most = NEIGHBOURS as u64 + kept_ms / PAUSE_MS;
    let highest = highest_of(2_000, &options).await;
    assert!(u64::from(highest) <= most && most < u64::from(domain::limits::ID_WORKER_MAX), "{highest}");
}

/// Restarts one process so often; answers the highest number that one of them had.
async fn highest_of(times: usize, options: &Options) -> u16 {
    let fleet = Fleet::new();
    let neighbours: Vec<_> =
        (0..NEIGHBOURS).map(|n| fleet.start(&format!("n{n}"), 0, options.clone())).collect();
    for neighbour in &neighbours {
        neighbour.makes().await;
    }
    let mut highest = 0;
    for restart in 0..times {
        // As containers are: each start under a name of its own, hardly one of them stopped as it should be.
        let process = fleet.start(&format!("pod-{restart}"), 0, options.clone());
        highest = highest.max(process.makes().await);
        let held = fleet.held();
        assert_eq!(held.values().filter(|owner| **owner == process.numbers.owner).count(), 1);
        if restart % 10 == 0 {
            process.stop().await;
        } else {
            process.crash().await;
        }
        neighbours[restart % NEIGHBOURS].makes().await;
        pass(PAUSE_MS).await;
    }
    assert!(fleet.made() >= 2 * times);
    highest
}

#[tokio::test(start_paused = true)]
async fn of_1025_live_instances_the_last_is_refused_and_has_the_first_number_that_comes_free() {
    let fleet = Fleet::new();
    let mut processes = Vec::new();
    for n in 0..1_024 {
        let process = fleet.start(&format!("n{n}"), 0, Options::default());
        process.makes().await;
        processes.push(process);
    }
    assert_eq!(fleet.held().len(), 1_024);
    let last = fleet.start("last", 0, Options::default());
    let refused = last.take(1, 5_000).await;
    assert!(matches!(refused, Err(Refusal::NoNumber { numbers: 1_024, .. })), "{refused:?}");
    let mut leaver = processes.swap_remove(500);
    let free = leaver.makes().await;
    leaver.begin_anew();
    leaver.stop().await;
    pass(3_000).await;
    assert_eq!(last.makes().await, free);
}

#[tokio::test(start_paused = true)]
async fn nothing_comes_twice_in_fleets_whose_clocks_and_ledger_do_as_they_like() {
    for _ in 0..12 {
        let seed: u64 = rand::rng().random();
        println!("seed {seed}");
        random_life(&mut StdRng::seed_from_u64(seed)).await;
    }
}

/// Few numbers for many processes, so that they change hands all the time.
async fn random_life(random: &mut StdRng) {
    let fleet = Fleet::new();
    let folder = tempfile::tempdir().unwrap();
    let start = |random: &mut StdRng, n: usize| {
        let offset_ms = random.random_range(-900..900);
        let mut options = fixed(random.random_range(0..3));
        options.lead_ms = [1_000, 3_000, 10_000][random.random_range(0..3)];
        options.file = random.random_bool(0.5).then(|| folder.path().join(format!("worker-{n}")));
        fleet.start(&format!("n{n}"), offset_ms, options)
    };
    let mut processes: Vec<_> = (0..5).map(|n| start(random, n)).collect();
    for _ in 0..1_500 {
        let n = random.random_range(0..processes.len());
        let process = &processes[n];
        match random.random_range(0..100) {
            0..60 => {
                let count = [1, 10, 5_000][random.random_range(0..3)];
                // Refused or not: what counts is that nothing comes twice.
                let _ = process.take(count, random.random_range(1..20)).await;
            }
            60..66 => process.clock.jump(random.random_range(-3_000..3_000)),
            66..68 => process.clock.jump(random.random_range(-60_000..60_000)),
            68..72 => process.clock.stand(random.random_bool(0.3)),
            72..78 => process.numbers.is_away.store(random.random_bool(0.5), Ordering::Relaxed),
            78..80 => process.numbers.hangs.store(random.random_bool(0.5), Ordering::Relaxed),
            80..84 => {
                // Taken for dead by the others, rightly or not.
                fleet.declare_dead(&process.numbers.owner);
            }
            84..86 => fleet.declare_alive(&process.numbers.owner),
            86..90 => {
                let process = processes.swap_remove(n);
                if random.random_bool(0.5) {
                    process.stop().await
                } else {
                    process.crash().await
                }
                processes.push(start(random, n));
            }
            90..92 => processes[n].begin_anew(),
            _ => pass(random.random_range(1..4_000)).await,
        }
    }
    assert!(fleet.made() > 1_000, "{} ids were made", fleet.made());
}
