//! Counts and rates, brought together by pool and by tenant.

use std::pin::pin;

use cluster::FailureDetector;
use domain::{InstanceId, NodeTimeouts};
use futures_util::FutureExt as _;
use tokio::sync::watch;

use super::*;
use crate::counted::FAILED_PAUSE_MAX;
use crate::jobs::lifetime::Phase;
use crate::jobs::rates::JobRate;
use crate::recorded::Recorded;
use crate::test_ledger;

fn pool(name: &str) -> PoolName {
    PoolName::parse(name).unwrap()
}

fn no_rates() -> Rates {
    Rates::default()
}

/// Jobs of some pools: so many that are CREATED, and for how long the first of them has been due.
fn waiting<const N: usize>(jobs: [(Option<PoolName>, u64, Option<u64>); N]) -> UnfinishedCounts {
    let mut counts = UnfinishedCounts::default();
    for (pool, created, oldest_ms) in jobs {
        let of_pool = UnfinishedCount { created, delayed: 1, dispatched: 2, running: 3, oldest_ms };
        counts.all.add(&of_pool);
        counts.of_pools.insert(pool, of_pool);
    }
    counts
}

#[test]
fn without_any_job_all_and_each_configured_pool_are_zero() {
    let (p, q) = (pool("p"), pool("q"));
    let (configured, counts) = (HashSet::from([q.clone(), p.clone()]), FinishedCounts::default());
    for finished in [Some(&counts), None] {
        let (all, pools, tenants) = together(&UnfinishedCounts::default(), finished, no_rates(), &configured);
        let zero = PoolStatistics { finished: finished.map(|_| 0), ..PoolStatistics::default() };
        assert_eq!(all, zero);
        assert_eq!(pools, [(None, zero), (Some(p.clone()), zero), (Some(q.clone()), zero)]);
        assert_eq!(tenants, [(None, zero)]);
    }
}

#[test]
fn counts_and_rates_of_a_pool_come_together_and_add_up() {
    let (p, q) = (pool("p"), pool("q"));
    let unfinished = waiting([(None, 4, Some(7)), (Some(p.clone()), 5, Some(9)), (Some(q.clone()), 6, None)]);
    let finished_in = FinishedBy { all: 41, of: vec![(p.clone(), 40), (pool("old"), 1)] };
    let finished = FinishedCounts { all: 100, pools: finished_in, ..FinishedCounts::default() };
    let rate = |accepted| [JobRate { accepted, ..JobRate::default() }; 3];
    let rates = Rates {
        all: rate(3.0),
        pools: RatesBy { none: rate(1.0), of: vec![(q.clone(), rate(2.0))] },
        ..no_rates()
    };
    let (all, pools, _) = together(&unfinished, Some(&finished), rates, &HashSet::new());
    let of = |created, finished, oldest_ms, accepted| PoolStatistics {
        created,
        delayed: 1,
        dispatched: 2,
        running: 3,
        finished: Some(finished),
        oldest_ms,
        rates: rate(accepted),
    };
    let sum = PoolStatistics { delayed: 3, dispatched: 6, running: 9, ..of(15, 100, Some(9), 3.0) };
    assert_eq!(all, sum);
    let old = PoolStatistics { finished: Some(1), ..PoolStatistics::default() };
    assert_eq!(
        pools,
        [
            (None, of(4, 59, Some(7), 1.0)),
            (Some(pool("old")), old),
            (Some(p), of(5, 40, Some(9), 0.0)),
            (Some(q), of(6, 0, None, 2.0)),
        ]
    );
}

#[test]
fn of_too_many_pools_the_configured_and_the_busiest_are_listed() {
    let configured = pool("configured");
    let of = (0..=STATISTICS_NAMES_MAX as u64).map(|n| (pool(&format!("p{n}")), n + 1)).collect();
    let (none, finished) = (UnfinishedCounts::default(), FinishedBy { all: 1_000, of });
    let finished = FinishedCounts { all: 1_000_000, pools: finished, ..FinishedCounts::default() };
    let (_, pools, _) = together(&none, Some(&finished), no_rates(), &HashSet::from([configured]));
    assert_eq!(pools.len(), STATISTICS_NAMES_MAX);
    let has =
        |name: &str| pools.iter().any(|(pool, _)| pool.as_ref().is_some_and(|pool| pool.as_str() == name));
    assert_eq!(
        (has("configured"), has("p0"), has("p2"), has("p3"), has("p1000"), pools[0].0.is_none()),
        (true, false, false, true, true, true)
    );
    assert!(pools.is_sorted_by(|a, b| a.0 < b.0));
}

#[test]
fn counts_and_rates_of_a_tenant_come_together() {
    let tenant = |name: &str| TenantId::parse(name).unwrap();
    let waits = UnfinishedCount { created: 5, delayed: 2, oldest_ms: Some(9), ..UnfinishedCount::default() };
    let mut unfinished = UnfinishedCounts::default();
    unfinished.of_tenants.insert(Some(tenant("a")), waits);
    let finished = FinishedBy { all: 30, of: vec![(tenant("a"), 10), (tenant("b"), 20)] };
    let finished = FinishedCounts { all: 100, tenants: finished, ..FinishedCounts::default() };
    let rate = [JobRate { accepted: 0.5, ..JobRate::default() }; 3];
    let rates = Rates { tenants: RatesBy { none: rate, of: vec![(tenant("c"), rate)] }, ..no_rates() };
    let (_, _, tenants) = together(&unfinished, Some(&finished), rates, &HashSet::new());
    let of = |finished| PoolStatistics { finished: Some(finished), ..PoolStatistics::default() };
    let expected = [
        (None, PoolStatistics { rates: rate, ..of(70) }),
        (Some(tenant("a")), of(10).with(&waits)),
        (Some(tenant("b")), of(20)),
        (Some(tenant("c")), PoolStatistics { rates: rate, ..of(0) }),
    ];
    assert_eq!(tenants, expected);
}

#[tokio::test]
async fn statistics_wait_for_the_count_of_unfinished_jobs_and_a_moment_for_that_of_finished_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (_serves, phase) = watch::channel(Phase::Serving);
    let statistics = Statistics {
        ledger: test_ledger::open(&folder).await,
        registry: Registry::new(InstanceId::parse("me-1").unwrap(), NodeTimeouts::DEFAULT),
        rates: Arc::new(RateCounter::new()),
        lifetime: Lifetime::new(phase, FailureDetector::alone()),
        unfinished: Counted::default(),
        finished: Counted::default(),
    };
    assert!(statistics.newest().now_or_never().is_none());
    let (_, counted) = statistics.unfinished.renew(async { Ok(waiting([(None, 4, None)])) }).await;
    counted.unwrap();
    let shown = statistics.newest().await;
    assert_eq!((shown.all.created, shown.all.finished, shown.finished_counted_ago), (4, None, None));
    let mut first = pin!(statistics.newest());
    assert!(first.as_mut().now_or_never().is_none(), "the finished jobs may be counted in a moment");
    let five = FinishedCounts { all: 5, ..FinishedCounts::default() };
    let (_, counted) = statistics.finished.renew(async { Ok(five) }).await;
    counted.unwrap();
    let first = first.await;
    assert_eq!((first.all.finished, first.finished_counted_ago.is_some()), (Some(5), true));
    let shown = statistics.newest().now_or_never().unwrap();
    assert_eq!(shown.all.finished, Some(5));
}

#[test]
fn a_slow_count_is_taken_seldom() {
    for (took, least) in
        [(Duration::ZERO, 3.0), (Duration::from_millis(50), 3.0), (Duration::from_secs(1), 30.0)]
    {
        let pause = Pauses::new(UNFINISHED_EVERY).after(took, true).as_secs_f64();
        assert!((least * 0.5..least * 1.5).contains(&pause), "{took:?}: {pause}");
    }
}

#[test]
fn one_count_that_hung_delays_the_next_ones_no_more_than_the_one_before_it() {
    let (usual, hung) = (Duration::from_millis(10), Duration::from_secs(5));
    for every in [UNFINISHED_EVERY, FINISHED_EVERY] {
        let mut pauses = Pauses::new(every);
        for (took, takes) in
            [(usual, usual), (hung, usual), (usual, usual), (hung, usual), (hung, hung), (hung, hung)]
        {
            let (pause, mean) = (pauses.after(took, true), every.0.max(takes * every.1));
            assert!(pause >= mean / 2 && pause <= mean * 3 / 2, "{took:?}: {pause:?}, not {mean:?}");
        }
    }
}

#[test]
fn a_count_that_failed_is_soon_repeated_however_long_it_took() {
    let minutes = Duration::from_secs(120);
    for every in [UNFINISHED_EVERY, FINISHED_EVERY] {
        for (took, most) in [(Duration::ZERO, every.0), (minutes, FAILED_PAUSE_MAX)] {
            let pause = Pauses::new(every).after(took, false);
            assert!(pause >= every.0 / 2 && pause <= most * 3 / 2, "{took:?}: {pause:?}");
        }
        assert!(
            Pauses::new(every).after(minutes, true) > Duration::from_secs(1_200),
            "one that did not is not"
        );
    }
}

#[test]
fn a_pool_that_is_configured_no_more_is_empty_in_the_metrics_whichever_incarnation_showed_it() {
    let recorded = Recorded::default();
    let _recording = metrics::set_default_local_recorder(&recorded);
    let shown = |label: &str| {
        let gauge = |name: &str| recorded.gauge(&format!("{name}{{pool={label}}}"));
        (gauge("fencepost_pool_waiting"), gauge("fencepost_pool_oldest_seconds"))
    };
    let (kept, dropped) = (pool("shown-and-kept"), pool("shown-and-dropped"));
    let counts = |each: u64| {
        let of = |pool: &PoolName| (Some(pool.clone()), each, Some(each * 1_000));
        waiting([of(&kept), of(&dropped)])
    };
    show_pools(&mut POOLS_IN_METRICS.lock(), &counts(7), &HashSet::from([kept.clone(), dropped.clone()]));
    assert_eq!(shown("shown-and-dropped"), (Some(6.0), Some(7.0)));
    // Nothing but the process remembers it.
    let further = UnfinishedCount { created: 4, oldest_ms: Some(11_000), ..UnfinishedCount::default() };
    let counts = UnfinishedCounts { of_further_pools: further, ..counts(9) };
    show_pools(&mut POOLS_IN_METRICS.lock(), &counts, &HashSet::from([kept]));
    assert_eq!(shown("shown-and-kept"), (Some(8.0), Some(9.0)));
    assert_eq!(shown("shown-and-dropped"), (Some(0.0), Some(0.0)));
    assert_eq!(
        shown("other"),
        (Some(12.0), Some(11.0)),
        "its jobs are still there, and those of further pools"
    );
}

#[test]
fn however_often_all_pools_are_replaced_the_metrics_have_a_label_for_as_many_as_may_be_configured_at_once() {
    let recorded = Recorded::default();
    let _recording = metrics::set_default_local_recorder(&recorded);
    let shown = |label: &str| recorded.gauge(&format!("fencepost_pool_waiting{{pool={label}}}"));
    let generation = |of: char, first: usize| -> HashSet<PoolName> {
        (first..POOLS_SHOWN_MAX).map(|n| pool(&format!("{of}{n:03}"))).collect()
    };
    let mut known = BTreeSet::new();
    // The first list leaves room for one pool of the second.
    show_pools(&mut known, &waiting([]), &generation('a', 1));
    let counts = waiting([(Some(pool("b000")), 3, None), (Some(pool("b001")), 5, None)]);
    show_pools(&mut known, &counts, &generation('b', 0));
    assert_eq!((known.len(), shown("a001")), (POOLS_SHOWN_MAX, Some(0.0)));
    assert_eq!((shown("b000"), shown("b001"), shown("other")), (Some(2.0), None, Some(4.0)));
    // A pool that has a label keeps it.
    let counts = waiting([(Some(pool("a001")), 8, None), (Some(pool("a000")), 11, None)]);
    show_pools(&mut known, &counts, &generation('a', 0));
    assert_eq!((known.len(), shown("a001"), shown("b000")), (POOLS_SHOWN_MAX, Some(7.0), Some(0.0)));
    assert_eq!((shown("a000"), shown("other")), (None, Some(10.0)));
}
