//! How fast ids are made in process, by the system's clock, over a SQLite ledger that is synced. `cargo bench -p ids`
//! prints figures; the test suite asserts none of them.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use domain::{InstanceId, SegmentTag, WorkerNumber};
use hdrhistogram::Histogram;
use ids::segment::Ranges;
use ids::snowflake::{Generator, Layout, LedgerNumbers, Options, Refusal, Stop};
use ids::{Segments, Snowflakes, SystemClock};
use ledger::{RangeTaken, SegmentChange};
use parking_lot::Mutex;

const SECONDS: u64 = 3;
/// What the format has room for, in ids per second.
const FORMAT_LIMIT: f64 = 4_096_000.0;
/// Ids of one wish of those that wish for many.
const BATCH: u32 = 100;
/// Ids in a second where the switch of ranges is looked at: the longest range lasts 100 ms.
const PACE: u64 = 10_000_000;
/// So many wishes after a switch are looked at together with it.
const NEAR: u64 = 1_000;
const LIMIT: Duration = Duration::from_secs(10);

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    println!("snowflakes, {SECONDS} s each; the format has room for {FORMAT_LIMIT} ids/s");
    for threads in [1, 2, 4, 8] {
        for batch in [1, BATCH] {
            generator(threads, batch);
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let options = ledger::Options {
        url: format!("sqlite:{}", folder.path().join("ledger.db").display()),
        connections_max: 2,
        connect_timeout_ms: 5_000,
        call_timeout_ms: 5_000,
        expected_id: None,
    };
    runtime.block_on(async {
        let ledger = ledger::open(&options).await.expect("a ledger");
        for (tasks, batch) in [(1, 1), (1, 1_000), (8, 1), (8, 1_000)] {
            snowflakes(&ledger, tasks, batch).await;
        }
        println!("segments, {SECONDS} s each");
        for (tasks, batch) in [(1, 1), (1, BATCH), (8, 1), (8, BATCH)] {
            segments(&ledger, tasks, batch).await;
        }
        switches(&ledger).await;
    });
}

/// The generator alone, asked again at once when a millisecond is used up.
fn generator(threads: usize, batch: u32) {
    let generator = Generator::new(Layout::default(), WorkerNumber::new(7).expect("it is one"), 0);
    generator.raise_limit(u64::MAX);
    let made = AtomicU64::new(0);
    let end = Instant::now() + Duration::from_secs(SECONDS);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut mine = 0;
                while Instant::now() < end {
                    for _ in 0..100 {
                        match generator.take(&SystemClock, batch) {
                            Ok(run) => mine += u64::from(run.count),
                            Err(Stop::Full) => std::hint::spin_loop(),
                            Err(stop) => panic!("{stop:?}"),
                        }
                    }
                }
                made.fetch_add(mine, Relaxed);
            });
        }
    });
    let per_second = made.into_inner() as f64 / SECONDS as f64;
    tell(&format!("generator, {threads} threads, {batch} at once"), per_second, Some(FORMAT_LIMIT));
}

/// As a daemon has them: under a leased number, waiting where a millisecond is used up.
async fn snowflakes(ledger: &ledger::Handle, tasks: usize, batch: usize) {
    let (snowflakes, keeping) = Snowflakes::start(Options::default(), Arc::new(SystemClock));
    keeping.serve(Arc::new(LedgerNumbers {
        ledger: Arc::clone(ledger),
        cluster: "bench".to_owned(),
        owner: InstanceId::parse("bench-1").expect("it is one"),
        node: "bench".to_owned(),
        lease_ms: 60_000,
        may_take_from: Box::new(|_, _| true),
        inherits_until: Instant::now(),
    }));
    // Until the generator has a source of numbers.
    while let Err(refusal) = snowflakes.take(1, LIMIT).await {
        assert!(matches!(refusal, Refusal::Unreached), "{refusal}");
        tokio::task::yield_now().await;
    }
    let takers = (0..tasks).map(|_| {
        let snowflakes = snowflakes.clone();
        tokio::spawn(async move {
            let (mut made, end) = (0, Instant::now() + Duration::from_secs(SECONDS));
            while Instant::now() < end {
                for _ in 0..10 {
                    snowflakes.take(batch, LIMIT).await.expect("the clock goes on");
                    made += batch as u64;
                }
                tokio::task::yield_now().await;
            }
            made
        })
    });
    let mut made = 0;
    for taker in takers.collect::<Vec<_>>() {
        made += taker.await.expect("it takes");
    }
    keeping.stop().await;
    let per_second = made as f64 / SECONDS as f64;
    tell(&format!("snowflakes, {tasks} tasks, {batch} at once"), per_second, Some(FORMAT_LIMIT));
}

/// The ledger, and where its ranges began.
#[derive(Clone)]
struct Noted {
    ledger: ledger::Handle,
    starts: Arc<Mutex<HashSet<u64>>>,
}

#[async_trait::async_trait]
impl Ranges for Noted {
    async fn take(&self, tag: &SegmentTag, at_least: u64) -> ledger::Result<RangeTaken> {
        let taken = self.ledger.take_range(tag, at_least).await?;
        if let RangeTaken::Taken { range, .. } = &taken {
            self.starts.lock().insert(range.start);
        }
        Ok(taken)
    }
}

/// A tag with the longest step that ranges grow to by themselves.
async fn tag(ledger: &ledger::Handle, name: &str) -> (SegmentTag, Noted) {
    let tag = SegmentTag::parse(name).expect("it is one");
    let change = SegmentChange { step: Some(1_000_000), ..SegmentChange::default() };
    ledger
        .put_segment(&tag, &change, &domain::AuditEntry::new("", "set_segment", "segment:bench"))
        .await
        .expect("the tag is made");
    (tag, Noted { ledger: Arc::clone(ledger), starts: Arc::default() })
}

async fn segments(ledger: &ledger::Handle, tasks: usize, batch: u32) {
    let (tag, source) = tag(ledger, &format!("t-{tasks}-{batch}")).await;
    let segments = Segments::new(source);
    let takers = (0..tasks).map(|_| {
        let (segments, tag) = (segments.clone(), tag.clone());
        tokio::spawn(async move {
            let (mut made, end) = (0, Instant::now() + Duration::from_secs(SECONDS));
            while Instant::now() < end {
                for _ in 0..100 {
                    segments.take(&tag, batch as usize, LIMIT).await.expect("there are ids");
                    made += u64::from(batch);
                }
                tokio::task::yield_now().await;
            }
            made
        })
    });
    let mut made = 0;
    for taker in takers.collect::<Vec<_>>() {
        made += taker.await.expect("it takes");
    }
    tell(&format!("segments, {tasks} tasks, {batch} at once"), made as f64 / SECONDS as f64, None);
}

/// How long a wish takes that begins a new range, and the next ones, beside all others, at a pace that the ledger keeps
/// up with.
async fn switches(ledger: &ledger::Handle) {
    let (tag, source) = tag(ledger, "switches").await;
    let segments = Segments::new(source.clone());
    segments.take(&tag, 1, LIMIT).await.expect("there are ids");
    let new = || Histogram::<u64>::new(3).expect("three digits are allowed");
    let (mut at_switch, mut near, mut elsewhere) = (new(), new(), new());
    let (began, mut made, mut since_switch) = (Instant::now(), 0, NEAR);
    while began.elapsed() < Duration::from_secs(SECONDS * 10) {
        while made < began.elapsed().as_micros() as u64 * PACE / 1_000_000 {
            let asked = Instant::now();
            let ids = segments.take(&tag, BATCH as usize, LIMIT).await.expect("there are ids");
            let took = asked.elapsed().as_nanos() as u64;
            since_switch += 1;
            if ids.len() > 1 || begins(&source, &ids[0]) {
                since_switch = 0;
                at_switch.record(took).expect("it grows by itself");
            }
            let histogram = if since_switch < NEAR { &mut near } else { &mut elsewhere };
            histogram.record(took).expect("it grows by itself");
            made += u64::from(BATCH);
        }
        tokio::task::yield_now().await;
    }
    println!(
        "{:<44}{:>12}{:>8}{:>8}{:>8}{:>10}",
        "nanoseconds of a wish", "wishes", "p50", "p99", "p99.9", "max"
    );
    let named = [
        ("that begins a new range", at_switch),
        ("that begins one, and the 999 after it", near),
        ("elsewhere", elsewhere),
    ];
    for (name, histogram) in named {
        let at = |quantile| histogram.value_at_quantile(quantile);
        let (count, max) = (histogram.len(), histogram.max());
        println!("{name:<44}{count:>12}{:>8}{:>8}{:>8}{max:>10}", at(0.5), at(0.99), at(0.999));
    }
}

fn begins(source: &Noted, ids: &Range<u64>) -> bool {
    source.starts.lock().contains(&ids.start)
}

fn tell(what: &str, per_second: f64, of: Option<f64>) {
    let part = of.map_or_else(String::new, |of| format!("{:>8.3} of the limit", per_second / of));
    println!("{what:<44}{per_second:>12.0} ids/s{part}");
}
