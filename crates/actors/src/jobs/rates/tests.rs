//! The windows of rates, at times that the tests choose.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn pool(name: &str) -> PoolName {
    PoolName::parse(name).unwrap()
}

/// The rates of accepted jobs over the three windows.
fn accepted(rates: &JobRates) -> [f64; 3] {
    rates.map(|rate| rate.accepted)
}

fn of_pool(pool: Option<&PoolName>) -> Class {
    Class { pool: pool.cloned(), ..Class::default() }
}

fn accept(counts: &mut Counts, pool: Option<&PoolName>, at: Instant) {
    counts.count(&of_pool(pool), at, |jobs| jobs.accepted += 1);
}

fn near(found: [f64; 3], expected: [f64; 3]) -> bool {
    found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-9)
}

#[test]
fn a_steady_stream_has_the_same_rate_over_every_window_at_every_moment() {
    let start = Instant::now();
    let mut counts = Counts::new(start);
    for second in 0..2_000 {
        let now = start + SECOND * second;
        for _ in 0..3 {
            accept(&mut counts, None, now);
        }
        // Just before the next one.
        let found = accepted(&counts.read(now + SECOND).all);
        let full = second + 1 >= 5;
        assert!(!full || near(found, [3.0; 3]), "after {second} s: {found:?}");
    }
}

#[test]
fn a_burst_leaves_each_window_after_its_length() {
    let start = Instant::now();
    let burst = start + SECOND * 1_000;
    let mut counts = Counts::new(start);
    for _ in 0..900 {
        accept(&mut counts, None, burst);
    }
    for (after_s, expected) in [
        (0, [15.0, 3.0, 1.0]),
        (60, [15.0, 3.0, 1.0]),
        (65, [0.0, 3.0, 1.0]),
        (300, [0.0, 3.0, 1.0]),
        (305, [0.0, 0.0, 1.0]),
        (900, [0.0, 0.0, 1.0]),
        (905, [0.0; 3]),
        (1_000_000, [0.0; 3]),
    ] {
        let found = accepted(&counts.read(burst + SECOND * after_s).all);
        assert!(near(found, expected), "after {after_s} s: {found:?}");
    }
    // Between the buckets, the one that is being filled lengthens the window.
    let found = accepted(&counts.read(burst + SECOND * 63).all);
    assert!(near(found, [900.0 / 63.0, 900.0 / 303.0, 900.0 / 903.0]), "{found:?}");
}

#[test]
fn young_counts_are_divided_by_their_age() {
    let start = Instant::now();
    let mut counts = Counts::new(start);
    for _ in 0..30 {
        accept(&mut counts, None, start);
    }
    for (age_s, expected) in [
        // What is younger than a bucket is as good as one.
        (0, [6.0; 3]),
        (1, [6.0; 3]),
        (10, [3.0; 3]),
        (60, [0.5; 3]),
        (100, [0.0, 0.3, 0.3]),
        (600, [0.0, 0.0, 0.05]),
    ] {
        let found = accepted(&counts.read(start + SECOND * age_s).all);
        assert!(near(found, expected), "after {age_s} s: {found:?}");
    }
}

#[test]
fn outcomes_and_pools_are_counted_apart() {
    let start = Instant::now();
    let mut counts = Counts::new(start);
    let (p, q) = (pool("p"), pool("q"));
    accept(&mut counts, Some(&p), start);
    accept(&mut counts, None, start);
    let ends = [
        (Some(&p), Outcome::Succeeded),
        (Some(&p), Outcome::Failed),
        (Some(&q), Outcome::Cancelled),
        (None, Outcome::TimedOut),
        (None, Outcome::TimedOut),
    ];
    for (pool, outcome) in ends {
        counts.count(&of_pool(pool), start, |jobs| jobs.finished(outcome));
    }
    let Rates { all, pools: RatesBy { none, of: mut of_pools }, .. } = counts.read(start + SECOND);
    let rate = JobRate { accepted: 0.4, succeeded: 0.2, failed: 0.2, cancelled: 0.2, timed_out: 0.4 };
    assert_eq!(all, [rate; 3]);
    let rate = JobRate { accepted: 0.2, timed_out: 0.4, ..JobRate::default() };
    assert_eq!(none, [rate; 3]);
    of_pools.sort_by(|a, b| a.0.cmp(&b.0));
    let of_p = JobRate { accepted: 0.2, succeeded: 0.2, failed: 0.2, ..JobRate::default() };
    let of_q = JobRate { cancelled: 0.2, ..JobRate::default() };
    assert_eq!(of_pools, [(p, [of_p; 3]), (q, [of_q; 3])]);
    let later = counts.read(start + SECOND * 2_000);
    assert_eq!(later.pools.of, [], "pools without jobs are left out");
}

#[test]
fn the_tenants_of_a_pool_are_counted_apart() {
    let start = Instant::now();
    let mut counts = Counts::new(start);
    let tenant = |name: &str| TenantId::parse(name).unwrap();
    for (of, jobs) in [(None, 1), (Some(tenant("a")), 2), (Some(tenant("b")), 3)] {
        let class = Class { tenant: of, ..of_pool(Some(&pool("p"))) };
        for _ in 0..jobs {
            counts.count(&class, start, |jobs| jobs.accepted += 1);
        }
    }
    let Rates { pools, mut tenants, .. } = counts.read(start + SECOND);
    tenants.of.sort_by(|a, b| a.0.cmp(&b.0));
    let found: Vec<_> =
        tenants.of.iter().map(|(tenant, rates)| (tenant.as_str(), rates[0].accepted)).collect();
    assert_eq!((tenants.none[0].accepted, found), (0.2, vec![("a", 0.4), ("b", 0.6)]));
    assert_eq!((pools.none[0].accepted, pools.of.len(), pools.of[0].1[0].accepted), (0.0, 1, 1.2));
}

#[test]
fn pools_are_bounded_and_make_room_once_they_are_idle() {
    let start = Instant::now();
    let mut counts = Counts::new(start);
    for n in 0..=RATES_NAMES_MAX {
        accept(&mut counts, Some(&pool(&format!("p{n}"))), start);
    }
    let full = counts.read(start);
    assert_eq!(full.pools.of.len(), RATES_NAMES_MAX);
    assert!(near(accepted(&full.all), [(RATES_NAMES_MAX + 1) as f64 / 5.0; 3]), "all jobs count");
    let later = start + SECOND * 500;
    accept(&mut counts, Some(&pool("p0")), later);
    accept(&mut counts, Some(&pool("new")), later);
    assert_eq!(counts.read(later).pools.of.len(), RATES_NAMES_MAX, "none of them is idle yet");
    let much_later = start + SECOND * 1_000;
    accept(&mut counts, Some(&pool("new")), much_later);
    let mut names: Vec<_> = counts.read(much_later).pools.of.into_iter().map(|(pool, _)| pool).collect();
    names.sort();
    assert_eq!(names, [pool("new"), pool("p0")]);
}

/// Against a list of everything that was counted.
#[test]
fn random_streams_have_the_rates_of_their_list() {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};
    let seed: u64 = rand::random();
    let mut random = SmallRng::seed_from_u64(seed);
    let start = Instant::now();
    let mut counts = Counts::new(start);
    let (mut list, mut age) = (Vec::new(), Duration::ZERO);
    for _ in 0..3_000 {
        let longest = if random.random_ratio(1, 100) { 1_200_000 } else { 3_000 };
        age += Duration::from_millis(random.random_range(0..longest));
        accept(&mut counts, None, start + age);
        list.push(age);
        let (_, filled) = place_in_time(age);
        let expected = RATE_WINDOWS.map(|window| {
            let from = age.saturating_sub(window + filled);
            let jobs = list.iter().rev().take_while(|at| **at >= from).count();
            jobs as f64 / (window + filled).min(age).max(BUCKET).as_secs_f64()
        });
        let found = accepted(&counts.read(start + age).all);
        assert!(near(found, expected), "seed {seed}, at {age:?}: {found:?}, not {expected:?}");
    }
}

#[test]
fn the_history_has_a_step_for_every_full_bucket_that_is_kept() {
    let start = Instant::now();
    let mut counts = Counts::new(start);
    let history = |counts: &Counts, second: u32| counts.read(start + SECOND * second).history;
    assert_eq!(history(&counts, 4).steps, [], "the first bucket is being filled");
    for second in [0, 1, 11] {
        accept(&mut counts, None, start + SECOND * second);
    }
    let found = history(&counts, 17);
    let accepted = |found: &JobHistory| found.steps.iter().map(|step| step.accepted).collect::<Vec<_>>();
    assert_eq!(accepted(&found), [2, 0, 1]);
    assert_eq!((found.age, found.ended_ago), (SECOND * 17, SECOND * 2));
    let found = history(&counts, 905);
    assert_eq!(
        (found.steps.len(), accepted(&found)[..2].to_vec()),
        (BUCKETS - 1, vec![0, 1]),
        "the oldest one has left"
    );
    assert!(history(&counts, 5_000).steps.iter().all(|step| *step == JobCount::default()));
}
