//! Sending, reading, settling, and what survivors do.

use std::collections::BTreeSet;
use std::time::Duration;

use bus::limits::{
    INBOX_ENTRIES_MAX, INBOX_ENTRY_BYTES_MAX, INBOX_IDLE_MS_MAX, INBOX_SEND_ENTRIES_MAX,
    INBOX_SETTLE_ENTRIES_MAX,
};
use bus::{Delivery, Entry, EntryId, Error, Handle, Inbox};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::bench::{Bench, LONG, PATIENCE, id};

/// Sends numbers, as text.
pub async fn send_numbers(bus: &Handle, to: &str, numbers: std::ops::Range<usize>) -> Vec<Delivery> {
    let texts: Vec<_> = numbers.map(|n| n.to_string()).collect();
    let entries: Vec<_> = texts.iter().map(String::as_bytes).collect();
    bus.send(&id(to), &entries).await.unwrap()
}

/// The next batch; fails when none comes.
pub async fn next_batch(inbox: &mut Inbox) -> Vec<Entry> {
    tokio::time::timeout(PATIENCE, inbox.next()).await.expect("entries").expect("the inbox is open")
}

/// So many entries.
async fn next_entries(inbox: &mut Inbox, count: usize) -> Vec<Entry> {
    let mut entries = Vec::new();
    while entries.len() < count {
        entries.extend(next_batch(inbox).await);
    }
    assert_eq!(entries.len(), count, "and no more");
    entries
}

pub fn number(entry: &Entry) -> usize {
    std::str::from_utf8(&entry.payload).unwrap().parse().unwrap()
}

fn numbers(entries: &[Entry]) -> Vec<usize> {
    entries.iter().map(number).collect()
}

fn ids(entries: &[Entry]) -> Vec<EntryId> {
    entries.iter().map(|entry| entry.id).collect()
}

pub async fn entries_arrive_in_order_and_as_they_were_sent(b: Bench) {
    let (owner, sender) = (b.join().await, b.join().await);
    let mut inbox = owner.open_inbox(&id("a-1"), LONG).await.unwrap();
    let _other = sender.open_inbox(&id("a-2"), LONG).await.unwrap();
    assert_eq!(send_numbers(&sender, "a-1", 0..100).await, [Delivery::Sent; 100]);
    assert_eq!(send_numbers(&owner, "a-1", 100..200).await, [Delivery::Sent; 100]);
    assert_eq!(sender.send(&id("a-1"), &[]).await.unwrap(), []);
    let entries = next_entries(&mut inbox, 200).await;
    assert_eq!(numbers(&entries), (0..200).collect::<Vec<_>>());
    assert!(entries.is_sorted_by_key(|entry| entry.id));
    let every_byte: Vec<u8> = (0..=255).collect();
    for payload in [&every_byte[..], b"", b"\r\n+OK\r\n", &vec![0xff; INBOX_ENTRY_BYTES_MAX]] {
        assert_eq!(sender.send(&id("a-1"), &[payload]).await.unwrap(), [Delivery::Sent]);
        assert!(*next_entries(&mut inbox, 1).await[0].payload == *payload);
    }
    assert_eq!(owner.inbox_len(&id("a-1")).await.unwrap(), 204);
    assert_eq!(owner.inbox_len(&id("a-2")).await.unwrap(), 0, "each has its own");
}

pub async fn what_was_read_and_not_settled_is_given_out_first_to_the_next_reader(b: Bench) {
    let (owner, sender) = (b.join().await, b.join().await);
    let mut inbox = owner.open_inbox(&id("a-1"), LONG).await.unwrap();
    send_numbers(&sender, "a-1", 0..60).await;
    let read = next_entries(&mut inbox, 60).await;
    let (settled, left): (Vec<_>, Vec<_>) =
        read.into_iter().partition(|entry| number(entry).is_multiple_of(3));
    owner.settle(&id("a-1"), &ids(&settled)).await.unwrap();
    owner.settle(&id("a-1"), &ids(&settled)).await.unwrap();
    drop(inbox);
    send_numbers(&sender, "a-1", 60..70).await;
    let mut inbox = owner.open_inbox(&id("a-1"), LONG).await.unwrap();
    let again = next_entries(&mut inbox, 50).await;
    assert_eq!(again[..40], left, "the very same entries");
    assert_eq!(numbers(&again[40..]), (60..70).collect::<Vec<_>>());
}

pub async fn nothing_is_lost_however_often_the_reader_crashes(b: Bench) {
    const SENDERS: usize = 4;
    const EACH: usize = 150;
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let owner = b.join().await;
    // Short: what the server gave to a reader that was gone already is given out again after it.
    let open = async || owner.open_inbox(&id("a-1"), Duration::from_millis(500)).await.unwrap();
    let mut inbox = open().await;
    let mut senders = Vec::new();
    for sender in 0..SENDERS {
        let bus = b.join().await;
        senders.push(tokio::spawn(async move {
            for n in (0..EACH).step_by(3) {
                let from = sender * EACH + n;
                assert_eq!(send_numbers(&bus, "a-1", from..from + 3).await, [Delivery::Sent; 3]);
                tokio::task::yield_now().await;
            }
        }));
    }
    let mut settled = BTreeSet::new();
    while settled.len() < SENDERS * EACH {
        let batch = next_batch(&mut inbox).await;
        if random.random_bool(0.7) {
            owner.settle(&id("a-1"), &ids(&batch)).await.unwrap();
            settled.extend(numbers(&batch));
        }
        if random.random_bool(0.2) {
            drop(inbox);
            inbox = open().await;
        }
    }
    for sender in senders {
        sender.await.unwrap();
    }
    assert_eq!(owner.inbox_len(&id("a-1")).await.unwrap(), 0, "seed {seed}");
}

pub async fn what_idles_is_given_out_again_and_what_was_settled_is_not(b: Bench) {
    let bus = b.join().await;
    let mut inbox = bus.open_inbox(&id("a-1"), Duration::from_millis(200)).await.unwrap();
    send_numbers(&bus, "a-1", 0..40).await;
    let first = next_entries(&mut inbox, 40).await;
    bus.settle(&id("a-1"), &ids(&first[1..])).await.unwrap();
    assert_eq!(next_batch(&mut inbox).await, first[..1], "only what was not settled");
    assert_eq!(next_batch(&mut inbox).await, first[..1], "again and again");
    bus.settle(&id("a-1"), &ids(&first[..1])).await.unwrap();
    assert_eq!(bus.inbox_len(&id("a-1")).await.unwrap(), 0);
    send_numbers(&bus, "a-1", 40..41).await;
    // It may have been on its way already when it was settled.
    while next_batch(&mut inbox).await == first[..1] {}
    drop(inbox);
    let mut inbox = bus.open_inbox(&id("a-1"), LONG).await.unwrap();
    assert_eq!(numbers(&next_entries(&mut inbox, 1).await), [40]);
}

pub async fn a_full_inbox_refuses_and_keeps_what_it_has(b: Bench) {
    let bus = b.join().await;
    let owner = id("a-1");
    drop(bus.open_inbox(&owner, LONG).await.unwrap());
    let mut sent = 0;
    while sent < INBOX_ENTRIES_MAX - 2 {
        let count = INBOX_SEND_ENTRIES_MAX.min(INBOX_ENTRIES_MAX - 2 - sent);
        assert_eq!(send_numbers(&bus, "a-1", sent..sent + count).await, vec![Delivery::Sent; count]);
        sent += count;
    }
    let last = send_numbers(&bus, "a-1", sent..sent + 4).await;
    assert_eq!(last, [Delivery::Sent, Delivery::Sent, Delivery::Full, Delivery::Full]);
    assert_eq!(bus.inbox_len(&owner).await.unwrap(), INBOX_ENTRIES_MAX as u64);
    let first = bus.read_inbox(&owner, None).await.unwrap();
    assert_eq!(number(&first[0]), 0, "nothing was trimmed");
    bus.settle(&owner, &[first[0].id]).await.unwrap();
    assert_eq!(send_numbers(&bus, "a-1", 0..2).await, [Delivery::Sent, Delivery::Full]);
}

pub async fn an_inbox_that_was_never_opened_takes_nothing(b: Bench) {
    let bus = b.join().await;
    assert_eq!(send_numbers(&bus, "a-1", 0..3).await, [Delivery::Undeliverable; 3]);
    assert_eq!(bus.inbox_len(&id("a-1")).await.unwrap(), 0);
    assert_eq!(bus.read_inbox(&id("a-1"), None).await.unwrap(), []);
    let mut inbox = bus.open_inbox(&id("a-1"), LONG).await.unwrap();
    bus.settle(&id("a-1"), &[]).await.unwrap();
    send_numbers(&bus, "a-1", 7..8).await;
    assert_eq!(numbers(&next_entries(&mut inbox, 1).await), [7], "what was undeliverable is not delivered");
}

/// Reads page by page and settles, as a survivor does, until the inbox is closed.
async fn drain(bus: &Handle, dead: &str) -> Vec<usize> {
    let (dead, mut drained) = (id(dead), Vec::new());
    loop {
        let mut after = None;
        loop {
            let page = bus.read_inbox(&dead, after).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            drained.extend(numbers(&page));
            bus.settle(&dead, &ids(&page)).await.unwrap();
        }
        if bus.close_inbox(&dead).await.unwrap() {
            return drained;
        }
    }
}

pub async fn what_is_sent_while_a_survivor_drains_is_drained_or_undeliverable(b: Bench) {
    let (dead, survivor, sender) = (b.join().await, b.join().await, b.join().await);
    let mut inbox = dead.open_inbox(&id("a-1"), LONG).await.unwrap();
    send_numbers(&sender, "a-1", 0..50).await;
    let read = next_batch(&mut inbox).await;
    assert!(!read.is_empty(), "some are given out and not settled");
    drop(inbox);
    let sending = tokio::spawn(async move {
        let mut sent: Vec<usize> = (0..50).collect();
        for n in (50..).step_by(3) {
            let became = send_numbers(&sender, "a-1", n..n + 3).await;
            if became[0] == Delivery::Undeliverable {
                assert_eq!(became, [Delivery::Undeliverable; 3]);
                return sent;
            }
            assert_eq!(became, [Delivery::Sent; 3]);
            sent.extend(n..n + 3);
            // As fast as it can would be faster than the survivor, and fill the inbox, on some days.
            match n < 500 {
                true => tokio::task::yield_now().await,
                false => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        sent
    });
    let drained = drain(&survivor, "a-1").await;
    assert_eq!(drained, sending.await.unwrap(), "all that was sent, once, in order");
    assert_eq!(survivor.inbox_len(&id("a-1")).await.unwrap(), 0);
}

pub async fn a_closed_inbox_stays_closed_and_its_reader_ends(b: Bench) {
    let (owner, survivor) = (b.join().await, b.join().await);
    let mut inbox = owner.open_inbox(&id("a-1"), LONG).await.unwrap();
    send_numbers(&survivor, "a-1", 0..1).await;
    assert_eq!(next_batch(&mut inbox).await.len(), 1);
    assert_eq!(drain(&survivor, "a-1").await, [0], "given out or not");
    assert!(survivor.close_inbox(&id("a-1")).await.unwrap(), "as often as one likes");
    assert_eq!(tokio::time::timeout(PATIENCE, inbox.next()).await.unwrap(), None);
    let mut again = owner.open_inbox(&id("a-1"), LONG).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, again.next()).await.unwrap(), None);
    assert_eq!(send_numbers(&survivor, "a-1", 0..1).await, [Delivery::Undeliverable]);
    let mut other = owner.open_inbox(&id("a-2"), LONG).await.unwrap();
    send_numbers(&survivor, "a-2", 0..1).await;
    assert_eq!(numbers(&next_batch(&mut other).await), [0], "its next incarnation has its own");
}

pub async fn an_inbox_that_its_owner_takes_back_is_opened_again(b: Bench) {
    let (owner, stranger) = (b.join().await, b.join().await);
    let mut inbox = owner.open_inbox(&id("a-1"), LONG).await.unwrap();
    for n in 0..2 {
        assert!(stranger.close_inbox(&id("a-1")).await.unwrap());
        assert_eq!(tokio::time::timeout(PATIENCE, inbox.next()).await.unwrap(), None);
        owner.reopen_inbox(&id("a-1")).await.unwrap();
        assert_eq!(send_numbers(&stranger, "a-1", n..n + 1).await, [Delivery::Undeliverable], "not yet");
        inbox = owner.open_inbox(&id("a-1"), LONG).await.unwrap();
        assert_eq!(send_numbers(&stranger, "a-1", n..n + 1).await, [Delivery::Sent]);
        let read = next_batch(&mut inbox).await;
        assert_eq!(numbers(&read), [n]);
        owner.settle(&id("a-1"), &ids(&read)).await.unwrap();
    }
    // One that was not closed is as it was.
    owner.reopen_inbox(&id("a-1")).await.unwrap();
    send_numbers(&stranger, "a-1", 2..3).await;
    assert_eq!(numbers(&next_batch(&mut inbox).await), [2]);
}

pub async fn an_inbox_with_something_in_it_is_not_closed(b: Bench) {
    let bus = b.join().await;
    let mut inbox = bus.open_inbox(&id("a-1"), LONG).await.unwrap();
    send_numbers(&bus, "a-1", 0..1).await;
    assert!(!bus.close_inbox(&id("a-1")).await.unwrap());
    let read = next_batch(&mut inbox).await;
    assert!(!bus.close_inbox(&id("a-1")).await.unwrap(), "reading is not settling");
    assert_eq!(send_numbers(&bus, "a-1", 1..2).await, [Delivery::Sent], "nothing was done");
    bus.settle(&id("a-1"), &ids(&read)).await.unwrap();
    assert_eq!(numbers(&next_batch(&mut inbox).await), [1]);
}

pub async fn waiting_in_vain_loses_nothing(b: Bench) {
    let bus = b.join().await;
    let mut inbox = bus.open_inbox(&id("a-1"), LONG).await.unwrap();
    for n in 0..50 {
        let given_up = tokio::time::timeout(Duration::ZERO, inbox.next()).await;
        assert!(given_up.is_err(), "{given_up:?}");
        send_numbers(&bus, "a-1", n..n + 1).await;
        assert_eq!(numbers(&next_batch(&mut inbox).await), [n]);
    }
}

pub async fn a_closed_bus_reads_and_sends_nothing(b: Bench) {
    let (bus, other) = (b.join().await, b.join().await);
    let mut inbox = bus.open_inbox(&id("a-1"), LONG).await.unwrap();
    let waits = tokio::spawn(async move { inbox.next().await });
    bus.close().await;
    assert_eq!(waits.await.unwrap(), None);
    let refusals = [
        bus.open_inbox(&id("a-1"), LONG).await.unwrap_err(),
        bus.send(&id("a-1"), &[b"x"]).await.unwrap_err(),
        bus.settle(&id("a-1"), &[]).await.unwrap_err(),
        bus.read_inbox(&id("a-1"), None).await.unwrap_err(),
        bus.close_inbox(&id("a-1")).await.unwrap_err(),
        bus.reopen_inbox(&id("a-1")).await.unwrap_err(),
        bus.inbox_len(&id("a-1")).await.unwrap_err(),
    ];
    for refused in refusals {
        assert!(matches!(refused, Error::Closed), "{refused}");
    }
    assert_eq!(send_numbers(&other, "a-1", 0..1).await, [Delivery::Sent], "the inbox stays");
}

pub async fn more_than_the_limit_is_refused_and_nothing_sent(b: Bench) {
    let bus = b.join().await;
    let owner = id("a-1");
    for idle in [Duration::ZERO, Duration::from_millis(INBOX_IDLE_MS_MAX + 1)] {
        let refused = bus.open_inbox(&owner, idle).await.unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    }
    let mut inbox = bus.open_inbox(&owner, LONG).await.unwrap();
    let large = vec![0; INBOX_ENTRY_BYTES_MAX + 1];
    let refused = bus.send(&owner, &[b"small", &large]).await.unwrap_err();
    assert!(matches!(refused, Error::TooLarge { .. }), "{refused}");
    let refused = bus.send(&owner, &[&b"x"[..]; INBOX_SEND_ENTRIES_MAX + 1]).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    assert_eq!(bus.inbox_len(&owner).await.unwrap(), 0);
    send_numbers(&bus, "a-1", 0..1).await;
    let entry = next_batch(&mut inbox).await[0].id;
    let refused = bus.settle(&owner, &[entry; INBOX_SETTLE_ENTRIES_MAX + 1]).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    assert_eq!(bus.inbox_len(&owner).await.unwrap(), 1, "a refusal changes nothing");
    bus.settle(&owner, &[entry; INBOX_SETTLE_ENTRIES_MAX]).await.unwrap();
    assert_eq!(bus.inbox_len(&owner).await.unwrap(), 0);
}
