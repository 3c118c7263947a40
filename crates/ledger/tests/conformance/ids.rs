//! What ids are made of: the time marks of worker numbers, ranges, sequences.

use std::collections::HashSet;

use domain::limits::{ID_NUMBER_MAX, SEGMENT_TAGS_MAX, SEQUENCE_GRANT_MAX, SEQUENCES_MAX};
use domain::{InstanceId, Resource, SegmentTag, SequenceName, WorkerNumber};
use ledger::{
    Acquisition, AuditFilter, Marked, Put, RangeTaken, SegmentChange, SequenceChange, SequenceGrant,
    WorkerClaim, WorkerHolder,
};

use crate::bench::{Bench, LONG_MS, by, eventually, owner};

const AHEAD_MS: u64 = 11_000;

fn number(n: u16) -> WorkerNumber {
    WorkerNumber::new(n).unwrap()
}

fn tag(name: &str) -> SegmentTag {
    SegmentTag::parse(name).unwrap()
}

fn sequence(name: &str) -> SequenceName {
    SequenceName::parse(name).unwrap()
}

async fn holds(b: &Bench, owner: &InstanceId, n: u16, lease_ms: u64) -> WorkerClaim {
    let resource = Resource::id_worker(number(n));
    match b.ledger.acquire(&resource, owner, lease_ms).await.unwrap() {
        Acquisition::Acquired { token, .. } => WorkerClaim { number: number(n), owner: owner.clone(), token },
        held @ Acquisition::Held { .. } => panic!("{held:?}"),
    }
}

async fn marks(b: &Bench, claim: &WorkerClaim, mark_ms: u64) -> Option<Marked> {
    b.ledger.mark_id_worker(claim, mark_ms, AHEAD_MS).await.unwrap()
}

pub async fn a_mark_rises_and_is_found_by_the_next_holder(b: Bench) {
    let first = holds(&b, &owner("a"), 7, LONG_MS).await;
    let opened = b.ledger.open_id_worker(&first, "node-a").await.unwrap().unwrap();
    assert_eq!(opened.mark_ms, 0, "nobody had it");
    let now = b.ledger.clock_ms().await.unwrap();
    assert!(now.abs_diff(opened.database_ms) < LONG_MS);
    for (asked, is) in [(now + 1_000, now + 1_000), (now + 900, now + 1_000), (now + 2_000, now + 2_000)] {
        assert_eq!(marks(&b, &first, asked).await.unwrap().mark_ms, is);
    }
    b.ledger.release(&Resource::id_worker(number(7)), &first.owner, first.token).await.unwrap();
    let second = holds(&b, &owner("b"), 7, LONG_MS).await;
    let opened = b.ledger.open_id_worker(&second, "node-b").await.unwrap().unwrap();
    assert_eq!(opened.mark_ms, now + 2_000);
    let known = b.ledger.id_workers().await.unwrap();
    assert_eq!((known[0].node.as_deref(), known[0].mark_ms), (Some("node-b"), now + 2_000));
}

pub async fn a_mark_gets_no_further_ahead_than_allowed(b: Bench) {
    let claim = holds(&b, &owner("a"), 7, LONG_MS).await;
    b.ledger.open_id_worker(&claim, "node").await.unwrap();
    let marked = marks(&b, &claim, u64::from(u32::MAX) * 1_000_000).await.unwrap();
    let ahead = marked.mark_ms - marked.database_ms;
    assert!((AHEAD_MS - 1_000..=AHEAD_MS).contains(&ahead), "{ahead}");
}

pub async fn a_holder_that_lost_its_number_moves_no_mark(b: Bench) {
    let old = holds(&b, &owner("a"), 7, LONG_MS).await;
    b.ledger.open_id_worker(&old, "node").await.unwrap();
    let now = b.ledger.clock_ms().await.unwrap();
    marks(&b, &old, now + 1_000).await.unwrap();
    let new = holds(&b, &owner("a"), 7, LONG_MS).await;
    assert_eq!(marks(&b, &old, now + 5_000).await, None);
    assert_eq!(b.ledger.lower_id_worker(&old, 1).await.unwrap(), None);
    assert_eq!(b.ledger.open_id_worker(&old, "other").await.unwrap(), None);
    assert_eq!(b.ledger.open_id_worker(&new, "node").await.unwrap().unwrap().mark_ms, now + 1_000);
    b.ledger.release(&Resource::id_worker(number(7)), &new.owner, new.token).await.unwrap();
    assert_eq!(marks(&b, &new, now + 5_000).await, None, "nor one that gave it back");
    assert_eq!(b.ledger.lower_id_worker(&new, 1).await.unwrap(), None);
    assert_eq!(b.ledger.open_id_worker(&new, "node").await.unwrap(), None);
}

pub async fn a_mark_is_lowered_by_its_holder_and_never_raised_so(b: Bench) {
    let claim = holds(&b, &owner("a"), 7, LONG_MS).await;
    b.ledger.open_id_worker(&claim, "node").await.unwrap();
    let now = b.ledger.clock_ms().await.unwrap();
    marks(&b, &claim, now + 5_000).await.unwrap();
    for (asked, is) in [(now + 6_000, now + 5_000), (now + 10, now + 10), (now + 20, now + 10)] {
        assert_eq!(b.ledger.lower_id_worker(&claim, asked).await.unwrap().unwrap().mark_ms, is);
    }
}

pub async fn worker_numbers_are_listed_with_who_holds_them_and_whether_they_live(b: Bench) {
    let (living, dead) = (owner("living-1"), owner("dead-1"));
    b.ledger.acquire(&Resource::instance(&living), &living, LONG_MS).await.unwrap();
    b.ledger.acquire(&Resource::instance(&dead), &dead, 1).await.unwrap();
    holds(&b, &living, 0, LONG_MS).await;
    holds(&b, &dead, 1_023, LONG_MS).await;
    let back = holds(&b, &living, 5, LONG_MS).await;
    b.ledger.release(&Resource::id_worker(number(5)), &living, back.token).await.unwrap();
    holds(&b, &living, 9, 1).await;
    let listed = async || {
        let mut known = b.ledger.id_workers().await.unwrap();
        known.sort_by_key(|record| record.number);
        assert_eq!(known.iter().map(|record| record.number.get()).collect::<Vec<_>>(), [0, 5, 9, 1_023]);
        let holder =
            |holder: WorkerHolder| (holder.id, holder.lives, holder.is_gone, holder.expires_in_ms > 0);
        known.into_iter().map(|record| record.holder.map(holder)).collect::<Vec<_>>()
    };
    let of_living = |is_running| Some((living.clone(), true, false, is_running));
    let expected =
        |is_gone| [of_living(true), None, of_living(false), Some((dead.clone(), false, is_gone, true))];
    eventually("the dead one and the end of a lease are seen", async || listed().await == expected(false))
        .await;
    b.ledger.take_over(&Resource::instance(&dead), &living, &dead, LONG_MS).await.unwrap().unwrap();
    assert_eq!(listed().await, expected(true), "it was found dead");
    let dead_token = b.ledger.take_over(&Resource::id_worker(number(1_023)), &living, &dead, LONG_MS).await;
    assert!(dead_token.unwrap().is_some(), "what a dead instance has may be taken");
}

pub async fn the_epoch_of_snowflakes_is_decided_once(b: Bench) {
    let (one, other) = tokio::join!(b.ledger.decide_id_epoch(1), b.ledger.decide_id_epoch(2));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one, other);
    assert_eq!(b.ledger.decide_id_epoch(3).await.unwrap(), one);
}

async fn range(b: &Bench, name: &str, at_least: u64) -> std::ops::Range<u64> {
    match b.ledger.take_range(&tag(name), at_least).await.unwrap() {
        RangeTaken::Taken { range, .. } => range,
        other => panic!("{other:?}"),
    }
}

pub async fn ranges_follow_each_other_and_are_as_long_as_step_and_wish(b: Bench) {
    assert_eq!(b.ledger.take_range(&tag("t"), 1).await.unwrap(), RangeTaken::Unknown);
    let change = SegmentChange { step: Some(100), ..SegmentChange::default() };
    b.ledger.put_segment(&tag("t"), &change, &by()).await.unwrap();
    assert_eq!(range(&b, "t", 1).await, 1..101);
    assert_eq!(range(&b, "t", 250).await, 101..351);
    let change = SegmentChange { step: Some(10), ..SegmentChange::default() };
    b.ledger.put_segment(&tag("t"), &change, &by()).await.unwrap();
    let taken = b.ledger.take_range(&tag("t"), 1).await.unwrap();
    assert_eq!(taken, RangeTaken::Taken { range: 351..361, step: 10 });
}

pub async fn many_takers_never_share_a_range(b: Bench) {
    b.ledger.put_segment(&tag("t"), &SegmentChange::default(), &by()).await.unwrap();
    let takers = (0..8).map(|_| {
        let ledger = b.ledger.clone();
        tokio::spawn(async move {
            let mut mine = Vec::new();
            for _ in 0..25 {
                match ledger.take_range(&tag("t"), 1).await.unwrap() {
                    RangeTaken::Taken { range, .. } => mine.push(range.start),
                    other => panic!("{other:?}"),
                }
            }
            assert!(mine.is_sorted(), "each one's rise");
            mine
        })
    });
    let mut starts = HashSet::new();
    for taker in takers.collect::<Vec<_>>() {
        starts.extend(taker.await.unwrap());
    }
    assert_eq!(starts, (0..200).map(|n| 1 + n * 1_000).collect());
}

pub async fn a_tag_ends_at_the_last_number_and_never_wraps(b: Bench) {
    let start = ID_NUMBER_MAX - 1_500;
    let change = SegmentChange { start: Some(start), ..SegmentChange::default() };
    b.ledger.put_segment(&tag("t"), &change, &by()).await.unwrap();
    assert_eq!(range(&b, "t", 1).await, start..start + 1_000);
    assert_eq!(b.ledger.take_range(&tag("t"), 1).await.unwrap(), RangeTaken::Exhausted);
}

pub async fn the_start_of_a_tag_only_rises(b: Bench) {
    let start = |start| SegmentChange { start: Some(start), ..SegmentChange::default() };
    let put = async |change: &SegmentChange| b.ledger.put_segment(&tag("t"), change, &by()).await.unwrap();
    let Put::Done(made) = put(&start(500)).await else { panic!("made") };
    assert_eq!((made.start, made.next, made.step), (500, 500, 1_000));
    assert_eq!(range(&b, "t", 1).await, 500..1_500);
    for lower in [0, 499, 501, 1_499] {
        let refused = put(&start(lower)).await;
        assert!(matches!(&refused, Put::StartTaken(record) if record.next == 1_500), "{lower}: {refused:?}");
    }
    assert!(
        matches!(put(&start(500)).await, Put::Done(record) if record.next == 1_500),
        "the same is no change"
    );
    assert!(matches!(put(&start(9_000)).await, Put::Done(record) if record.next == 9_000));
    assert_eq!(range(&b, "t", 1).await.start, 9_000);
    let described = SegmentChange { description: Some("orders".to_owned()), ..SegmentChange::default() };
    put(&described).await;
    let record = b.ledger.segment(&tag("t")).await.unwrap().unwrap();
    assert_eq!((record.description.as_str(), record.start, record.next), ("orders", 9_000, 10_000));
}

pub async fn tags_are_listed_by_name_and_cursor(b: Bench) {
    for name in ["b", "a", "c"] {
        b.ledger.put_segment(&tag(name), &SegmentChange::default(), &by()).await.unwrap();
    }
    let listed = async |after: Option<&str>, limit| {
        let after = after.map(tag);
        let records = b.ledger.segments(after.as_ref(), limit).await.unwrap();
        records.into_iter().map(|record| record.tag.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(listed(None, 2).await, ["a", "b"]);
    assert_eq!(listed(Some("b"), 2).await, ["c"]);
    assert_eq!(b.ledger.segment(&tag("d")).await.unwrap(), None);
}

pub async fn sequences_are_listed_by_name_and_cursor(b: Bench) {
    for name in ["b", "a", "c"] {
        b.ledger.put_sequence(&sequence(name), &SequenceChange::default(), &by()).await.unwrap();
    }
    granted(&b, "b", 3).await;
    let listed = async |after: Option<&str>, limit| {
        let after = after.map(sequence);
        let records = b.ledger.sequences(after.as_ref(), limit).await.unwrap();
        records.into_iter().map(|record| (record.sequence.to_string(), record.next)).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        let first = [("a".to_owned(), 1), ("b".to_owned(), 4)];
        assert_eq!(listed(None, 2).await, first, "a look takes no number");
    }
    assert_eq!(listed(Some("b"), 2).await, [("c".to_owned(), 1)]);
    assert!(listed(Some("c"), 2).await.is_empty());
}

/// What the audit has of changes: before and after, the newest first.
async fn noted(b: &Bench) -> Vec<[Option<String>; 2]> {
    let entries = b.ledger.audits(&AuditFilter { limit: 100, ..AuditFilter::default() }).await.unwrap();
    entries.into_iter().map(|entry| [entry.before, entry.after]).collect()
}

pub async fn a_change_is_noted_with_how_it_was_and_what_is_so_already_is_not(b: Bench) {
    let text = |text: &str| Some(text.to_owned());
    for name in ["defaults", "defaults"] {
        b.ledger.put_segment(&tag(name), &SegmentChange::default(), &by()).await.unwrap();
        b.ledger.put_sequence(&sequence(name), &SequenceChange::default(), &by()).await.unwrap();
    }
    let made = [[None, text("start=1 increment=1")], [None, text("start=1 step=1000")]];
    assert_eq!(noted(&b).await, made, "one that is made with the defaults has them");
    let step = |step| SegmentChange { start: Some(5), step: Some(step), ..SegmentChange::default() };
    let described = SegmentChange { description: Some("orders".to_owned()), ..SegmentChange::default() };
    let changes = [step(10), step(10), SegmentChange::default(), described.clone(), described, step(20)];
    for change in changes {
        let put = b.ledger.put_segment(&tag("t"), &change, &by()).await.unwrap();
        assert!(matches!(put, Put::Done(_)), "{change:?}: {put:?}");
    }
    let expected = [
        [text("start=5 step=10 description=orders"), text("start=5 step=20 description=orders")],
        [text("start=5 step=10"), text("start=5 step=10 description=orders")],
        [None, text("start=5 step=10")],
    ];
    assert_eq!(noted(&b).await[..3], expected);
    for increment in [Some(3), Some(3), None, Some(4)] {
        let change = SequenceChange { start: Some(5), increment };
        let put = b.ledger.put_sequence(&sequence("s"), &change, &by()).await.unwrap();
        assert!(matches!(put, Put::Done(_)), "{change:?}: {put:?}");
    }
    let expected =
        [[text("start=5 increment=3"), text("start=5 increment=4")], [None, text("start=5 increment=3")]];
    assert_eq!(noted(&b).await[..2], expected);
}

/// So many more rows of a table, each like the one that is called `first`.
async fn copies(b: &Bench, times: usize, table: &str, key: &str, others: &str) {
    let others = format!("start, next, {others}, created_at, updated_at");
    b.by_hand(format!(
        "INSERT INTO {table} ({key}, {others})
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {times})
         SELECT 'copy-' || i, {others} FROM n, {table} WHERE {key} = 'first'"
    ))
    .await;
}

pub async fn there_are_no_more_tags_than_there_may_be(b: Bench) {
    let put =
        async |name: &str| b.ledger.put_segment(&tag(name), &SegmentChange::default(), &by()).await.unwrap();
    put("first").await;
    copies(&b, SEGMENT_TAGS_MAX - 2, "id_segment", "tag", "step, description").await;
    assert!(matches!(put("last").await, Put::Done(_)));
    assert!(matches!(put("more").await, Put::Full));
    assert!(matches!(put("first").await, Put::Done(_)), "one that is there may be changed");
    assert_eq!(b.ledger.segment(&tag("more")).await.unwrap(), None);
}

pub async fn there_are_no_more_sequences_than_there_may_be(b: Bench) {
    let put = async |name: &str| {
        b.ledger.put_sequence(&sequence(name), &SequenceChange::default(), &by()).await.unwrap()
    };
    put("first").await;
    copies(&b, SEQUENCES_MAX - 2, "id_sequence", "sequence", "increment").await;
    assert!(matches!(put("last").await, Put::Done(_)));
    assert!(matches!(put("more").await, Put::Full));
    assert!(matches!(put("first").await, Put::Done(_)), "one that is there may be changed");
    assert_eq!(b.ledger.sequence(&sequence("more")).await.unwrap(), None);
}

async fn granted(b: &Bench, name: &str, count: u64) -> SequenceGrant {
    b.ledger.grant_sequence(&sequence(name), count).await.unwrap()
}

pub async fn a_sequence_rises_by_its_increment(b: Bench) {
    assert_eq!(granted(&b, "s", 1).await, SequenceGrant::Unknown);
    let change = SequenceChange { start: Some(3), increment: Some(10) };
    let put = b.ledger.put_sequence(&sequence("s"), &change, &by()).await.unwrap();
    assert!(matches!(put, Put::Done(record) if (record.next, record.increment) == (3, 10)));
    assert_eq!(granted(&b, "s", 1).await, SequenceGrant::Granted { first: 3, increment: 10 });
    assert_eq!(granted(&b, "s", 5).await, SequenceGrant::Granted { first: 13, increment: 10 });
    assert_eq!(granted(&b, "s", 1).await, SequenceGrant::Granted { first: 63, increment: 10 });
    let lower = SequenceChange { start: Some(60), increment: None };
    let refused = b.ledger.put_sequence(&sequence("s"), &lower, &by()).await.unwrap();
    assert!(matches!(refused, Put::StartTaken(record) if record.next == 73));
    let other = SequenceChange { start: None, increment: Some(1) };
    b.ledger.put_sequence(&sequence("s"), &other, &by()).await.unwrap();
    assert_eq!(granted(&b, "s", 1).await, SequenceGrant::Granted { first: 73, increment: 1 });
    assert_eq!(b.ledger.sequence(&sequence("s")).await.unwrap().unwrap().next, 74);
    assert!(b.ledger.grant_sequence(&sequence("s"), SEQUENCE_GRANT_MAX + 1).await.is_err());
}

pub async fn a_sequence_ends_at_the_last_number_and_never_wraps(b: Bench) {
    let change = SequenceChange { start: Some(ID_NUMBER_MAX - 4), increment: Some(2) };
    b.ledger.put_sequence(&sequence("s"), &change, &by()).await.unwrap();
    assert_eq!(granted(&b, "s", 3).await, SequenceGrant::Exhausted, "all or none");
    for first in [ID_NUMBER_MAX - 4, ID_NUMBER_MAX - 2] {
        assert_eq!(granted(&b, "s", 1).await, SequenceGrant::Granted { first, increment: 2 });
    }
    for _ in 0..3 {
        assert_eq!(granted(&b, "s", 1).await, SequenceGrant::Exhausted);
    }
}

pub async fn many_grants_of_many_sequences_share_trains_and_nothing_else(b: Bench) {
    let names: Vec<_> = (0..5).map(|n| format!("s{n}")).collect();
    for name in &names {
        b.ledger.put_sequence(&sequence(name), &SequenceChange::default(), &by()).await.unwrap();
    }
    let instances = b.instances(2).await;
    let takers = (0..8).map(|n| {
        let (ledger, names) = (instances[n % 2].clone(), names.clone());
        tokio::spawn(async move {
            let mut got = Vec::new();
            for round in 0..40 {
                let name = &names[(n + round) % names.len()];
                match ledger.grant_sequence(&sequence(name), 3).await.unwrap() {
                    SequenceGrant::Granted { first, .. } => got.push((name.clone(), first)),
                    other => panic!("{other:?}"),
                }
                let unknown = ledger.grant_sequence(&sequence("unheard-of"), 1).await.unwrap();
                assert_eq!(unknown, SequenceGrant::Unknown);
            }
            got
        })
    });
    let mut all = HashSet::new();
    for taker in takers.collect::<Vec<_>>() {
        for one in taker.await.unwrap() {
            assert!(all.insert(one.clone()), "{one:?} twice");
        }
    }
    let expected = names.iter().flat_map(|name| (0..64).map(move |n| (name.clone(), 1 + n * 3)));
    assert_eq!(all, expected.collect(), "and none is lost");
}
