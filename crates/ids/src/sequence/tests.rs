//! Sequences over a source in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::*;

const LIMIT: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Source {
    next: Mutex<HashMap<String, u64>>,
    commits: AtomicU64,
    /// The last number there is; 0 for no end.
    end: u64,
    dies: AtomicBool,
    /// The next grant is of the last number of all, behind which a sum does not fit.
    is_at_the_last: AtomicBool,
}

#[derive(Clone)]
struct Shared(Arc<Source>, Arc<Semaphore>);

#[async_trait::async_trait]
impl Counter for Shared {
    async fn grant(&self, name: &SequenceName, count: u64) -> ledger::Result<SequenceGrant> {
        let _turn = self.1.acquire().await.unwrap();
        self.0.commits.fetch_add(1, Ordering::Relaxed);
        assert!(!self.0.dies.swap(false, Ordering::Relaxed), "a defect");
        if self.0.is_at_the_last.swap(false, Ordering::Relaxed) {
            return Ok(SequenceGrant::Granted { first: u64::MAX, increment: 1 });
        }
        if name.as_str() == "unknown" {
            return Ok(SequenceGrant::Unknown);
        }
        let mut next = self.0.next.lock();
        let next = next.entry(name.to_string()).or_insert(1);
        if self.0.end > 0 && *next + count - 1 > self.0.end {
            return Ok(SequenceGrant::Exhausted);
        }
        *next += count;
        Ok(SequenceGrant::Granted { first: *next - count, increment: 1 })
    }
}

fn sequences(source: Source) -> (Sequences, Shared) {
    let shared = Shared(Arc::new(source), Arc::new(Semaphore::new(1)));
    (Sequences::new(shared.clone()), shared)
}

fn name(text: &str) -> SequenceName {
    SequenceName::parse(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_share_a_commit_and_are_served_in_the_order_of_asking() {
    let (sequences, shared) = sequences(Source::default());
    let held = shared.1.clone().acquire_owned().await.unwrap();
    let mut waiting = Vec::new();
    for count in [1, 2, 3, 4] {
        let sequences = sequences.clone();
        waiting.push(tokio::spawn(async move { sequences.take(&name("s"), count, LIMIT).await.unwrap() }));
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
    drop(held);
    let mut got = Vec::new();
    for one in waiting {
        got.extend(one.await.unwrap().ids());
    }
    assert_eq!(got, (1..=10).collect::<Vec<_>>());
    assert_eq!(shared.0.commits.load(Ordering::Relaxed), 2, "the first alone, then all the others");
    assert!(sequences.inner.queues.is_empty() || sequences.inner.queues.get(&name("s")).unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_after_an_answer_gets_more() {
    let (sequences, _) = sequences(Source::default());
    let mut last = 0;
    for _ in 0..100 {
        let numbers = sequences.take(&name("s"), 3, LIMIT).await.unwrap();
        assert!(numbers.first > last);
        last = numbers.ids().last().unwrap();
    }
    assert_eq!(last, 300);
}

#[tokio::test(start_paused = true)]
async fn near_the_end_each_gets_what_fits_alone() {
    let (sequences, shared) = sequences(Source { end: 5, ..Source::default() });
    let held = shared.1.clone().acquire_owned().await.unwrap();
    let mut waiting = Vec::new();
    for count in [1, 3, 9, 1, 1] {
        let sequences = sequences.clone();
        waiting.push(tokio::spawn(async move { sequences.take(&name("s"), count, LIMIT).await }));
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
    drop(held);
    let mut firsts = Vec::new();
    for one in waiting {
        firsts.push(one.await.unwrap().map(|numbers| numbers.first).ok());
    }
    assert_eq!(firsts, [Some(1), Some(2), None, Some(5), None]);
}

#[tokio::test(start_paused = true)]
async fn unknown_sequences_are_refused_and_take_no_room() {
    let (sequences, _) = sequences(Source::default());
    assert!(matches!(sequences.take(&name("unknown"), 1, LIMIT).await, Err(Refusal::Unknown)));
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
    assert!(sequences.inner.queues.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_defect_of_the_source_costs_its_commit_and_not_the_sequence() {
    let (sequences, shared) = sequences(Source::default());
    shared.0.dies.store(true, Ordering::Relaxed);
    let refused = sequences.take(&name("s"), 1, LIMIT).await;
    assert!(matches!(refused, Err(Refusal::Ledger(error)) if error.may_have_written()));
    assert_eq!(sequences.take(&name("s"), 1, LIMIT).await.unwrap().first, 1);
}

#[tokio::test(start_paused = true)]
async fn a_defect_behind_a_grant_costs_its_answers_and_not_the_sequence() {
    let (sequences, shared) = sequences(Source::default());
    shared.0.is_at_the_last.store(true, Ordering::Relaxed);
    assert_eq!(sequences.take(&name("s"), 1, LIMIT).await.unwrap().first, u64::MAX);
    assert_eq!(sequences.take(&name("s"), 1, LIMIT).await.unwrap().first, 1);
}

#[tokio::test(start_paused = true)]
async fn who_stopped_waiting_is_not_counted_for_and_too_many_are_refused() {
    let (sequences, shared) = sequences(Source::default());
    let held = shared.1.clone().acquire_owned().await.unwrap();
    assert!(matches!(sequences.take(&name("s"), 1, LIMIT).await, Err(Refusal::Late)), "it was counted for");
    assert!(matches!(sequences.take(&name("s"), 5, LIMIT).await, Err(Refusal::Late)), "it only waited");
    let queue = || sequences.inner.queues.get_mut(&name("s")).unwrap();
    let full = (0..SEQUENCE_QUEUE_MAX).map(|_| Waiting { count: 1, answer: oneshot::channel().0 });
    queue().extend(full.collect::<Vec<_>>());
    assert!(matches!(sequences.take(&name("s"), 1, LIMIT).await, Err(Refusal::Overloaded)));
    drop(held);
    let served = loop {
        match sequences.take(&name("s"), 1, LIMIT).await {
            Ok(numbers) => break numbers,
            Err(Refusal::Overloaded) => tokio::task::yield_now().await,
            Err(other) => panic!("{other:?}"),
        }
    };
    assert_eq!(served.first, 2, "one number was for the first, which was counted for");
}
