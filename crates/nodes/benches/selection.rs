//! How long a selection takes among 10,000 nodes, without heartbeats and while 10,000 of them a second are applied by
//! another thread. `cargo bench -p nodes` prints percentiles; the test suite asserts none of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bus::{Epoch, NodeState, Version};
use domain::job::{Requirements, Route};
use domain::{InstanceId, Label, Language, NodeId, NodeTimeouts};
use hdrhistogram::Histogram;
use nodes::{Abilities, Load, NodeUpdate, Profile, Record, Registry, Stamp, Status, Wanted};
use rand::SeedableRng;
use rand::rngs::SmallRng;

const NODES: u64 = 10_000;
const HEARTBEATS_PER_SECOND: u64 = 10_000;
const CAPACITY: u32 = 8;
const SECONDS: u64 = 3;
const LANGUAGES: [&str; 8] = ["zh", "en", "de", "fr", "es", "ja", "ko", "pt"];

fn main() {
    let route = Route::parse("zh:en").expect("it is one");
    let gpu = Label::parse("gpu").expect("it is one");
    let any = Requirements::default();
    let narrow = Requirements { route: Some(route), requires: vec![gpu], ..Requirements::default() };
    println!("{NODES} nodes, {SECONDS} s each; nanoseconds");
    println!(
        "{:<38}{:>12}{:>12}{:>8}{:>8}{:>8}{:>10}",
        "", "heartbeats/s", "selections", "p50", "p99", "p99.9", "max"
    );
    for (name, needs, free_in) in [
        ("any node, all free", &any, 1),
        ("a route and a label, all free", &narrow, 1),
        ("any node, one in 100 free", &any, 100),
        ("a route and a label, one in 100 free", &narrow, 100),
        ("any node, none free", &any, u64::MAX),
    ] {
        let registry = Registry::new(InstanceId::parse("bench").expect("it is one"), NodeTimeouts::DEFAULT);
        let now = Instant::now();
        for n in 0..NODES {
            registry.apply(record(n, free_in), now, now);
        }
        registry.reindex();
        for rate in [0, HEARTBEATS_PER_SECOND] {
            let (histogram, beats) = measure(&registry, needs, free_in, rate);
            let at = |quantile| histogram.value_at_quantile(quantile);
            let (count, max) = (histogram.len(), histogram.max());
            let beaten = beats / SECONDS;
            println!(
                "{name:<38}{beaten:>12}{count:>12}{:>8}{:>8}{:>8}{max:>10}",
                at(0.5),
                at(0.99),
                at(0.999)
            );
            assert!((beats > 0) == (rate > 0), "{beats} heartbeats were applied");
        }
    }
}

/// Selections, each giving its slot back, while heartbeats are applied at their rate.
fn measure(registry: &Registry, needs: &Requirements, free_in: u64, rate: u64) -> (Histogram<u64>, u64) {
    let (is_over, beats) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut histogram = Histogram::new(3).expect("three digits are allowed");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = Instant::now();
            while !is_over.load(SeqCst) {
                let due = began.elapsed().as_micros() as u64 * rate / 1_000_000;
                for beat in beats.load(SeqCst)..due {
                    let mut record = record(beat % NODES, free_in);
                    record.stamp.version = Version::new(2 + beat);
                    registry.hear(&NodeUpdate::of(&record), Instant::now());
                }
                beats.store(due, SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut rng = SmallRng::seed_from_u64(1);
        let end = Instant::now() + Duration::from_secs(SECONDS);
        let wanted = Wanted::new(needs);
        while Instant::now() < end {
            for _ in 0..100 {
                let began = Instant::now();
                let choice = registry.select(&wanted, &mut rng);
                histogram.record(began.elapsed().as_nanos() as u64).expect("it grows by itself");
                assert_eq!(choice.is_some(), free_in <= NODES);
            }
        }
        is_over.store(true, SeqCst);
    });
    (histogram, beats.into_inner())
}

fn record(n: u64, free_in: u64) -> Record {
    let language = |n: u64| Language::parse(LANGUAGES[n as usize % LANGUAGES.len()]).expect("it is one");
    let label = |text: &str| Label::parse(text).expect("it is one");
    let abilities = Abilities {
        hears: vec![language(n)],
        speaks: vec![language(n / 8), language(n / 64)],
        labels: if n.is_multiple_of(2) { vec![label("gpu")] } else { vec![label("cpu")] },
        ..Abilities::default()
    };
    let node = NodeId::parse(&format!("node-{n}")).expect("it is one");
    let holder = InstanceId::parse("bench").expect("it is one");
    let labels = abilities.into_labels().expect("they are few");
    let profile = Profile { labels, ..Profile::new(node, holder, 1_000) };
    let used = if n.is_multiple_of(free_in) && free_in <= NODES { 0 } else { CAPACITY };
    Record {
        stamp: Stamp { epoch: Epoch::new(1), version: Version::new(1) },
        profile: Arc::new(profile),
        status: Status { capacity: CAPACITY, used, is_complete: true, state: NodeState::Accepting },
        load: Load::default(),
    }
}
