//! An inbox on a Redis that is killed, emptied, frozen or cut off: it is read on, and what Redis kept is not lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bus::limits::INBOX_UNUSED_MS;
use bus::{Delivery, Handle, Inbox};
use testkit::proxy::Proxy;
use testkit::servers::{Redis, RedisCluster};

use crate::bench::{LONG, blocking, comes_back, eventually, id, link_is, open, options};
use crate::inboxes::{next_batch, number, send_numbers};
use crate::outages::{address_of, with_a_server};

/// Sends this number until it was sent: an inbox that was lost is opened again by its reader.
async fn send_at_last(bus: &Handle, n: usize) {
    let text = n.to_string();
    eventually("it is sent", async || {
        let became = bus.send(&id("a-1"), &[text.as_bytes()]).await;
        became.is_ok_and(|became| became == [Delivery::Sent])
    })
    .await;
}

/// Reads and settles until all of these numbers were seen.
async fn all_are_seen(bus: &Handle, inbox: &mut Inbox, numbers: impl IntoIterator<Item = usize>) {
    let mut missing: BTreeSet<usize> = numbers.into_iter().collect();
    while !missing.is_empty() {
        let batch = next_batch(inbox).await;
        let ids: Vec<_> = batch.iter().map(|entry| entry.id).collect();
        for entry in &batch {
            missing.remove(&number(entry));
        }
        eventually("they are settled", async || bus.settle(&id("a-1"), &ids).await.is_ok()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_that_redis_lost_is_opened_again_by_its_reader() {
    let (server, bus) = with_a_server().await;
    let mut inbox = bus.open_inbox(&id("a-1"), LONG).await.unwrap();
    send_numbers(&bus, "a-1", 0..3).await;
    all_are_seen(&bus, &mut inbox, 0..3).await;
    for n in [10, 20] {
        let full = server.clone();
        blocking(move || full.flush().unwrap()).await;
        send_at_last(&bus, n).await;
        all_are_seen(&bus, &mut inbox, [n]).await;
        let running = server.clone();
        blocking(move || running.kill()).await;
        link_is(&bus, false).await;
        let refused = bus.send(&id("a-1"), &[b"0"]).await.unwrap_err();
        assert!(refused.is_retryable(), "{refused}");
        let stopped = server.clone();
        blocking(move || stopped.boot().unwrap()).await;
        link_is(&bus, true).await;
        send_at_last(&bus, n + 1).await;
        all_are_seen(&bus, &mut inbox, [n + 1]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_expires_that_nobody_uses_and_every_use_keeps_it() {
    const KEY: &str = "t:{instance:a-1}:inbox";
    const SOON: i64 = 20_000;
    let (server, bus) = with_a_server().await;
    let left = || server.command(&["PTTL", KEY]).unwrap().trim().parse::<i64>().unwrap();
    let ends_soon = || {
        server.command(&["PEXPIRE", KEY, &SOON.to_string()]).unwrap();
        assert!(left() <= SOON);
    };
    // Its reader's looks, which keep it too, come later than all of this.
    let mut inbox = bus.open_inbox(&id("a-1"), LONG).await.unwrap();
    let day = i64::try_from(INBOX_UNUSED_MS).unwrap();
    assert!((SOON..=day).contains(&left()), "{}", left());
    ends_soon();
    send_numbers(&bus, "a-1", 0..1).await;
    assert!(left() > SOON);
    let first = next_batch(&mut inbox).await;
    ends_soon();
    bus.settle(&id("a-1"), &[first[0].id]).await.unwrap();
    assert!(left() > SOON);
    ends_soon();
    bus.open_inbox(&id("a-1"), LONG).await.unwrap();
    assert!(left() > SOON);
    drop(inbox);
    let _inbox = bus.open_inbox(&id("a-1"), Duration::from_millis(100)).await.unwrap();
    ends_soon();
    eventually("its reader keeps it", async || left() > SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_redis_loses_nothing_and_holds_nobody_up() {
    let (server, bus) = with_a_server().await;
    let mut inbox = bus.open_inbox(&id("a-1"), LONG).await.unwrap();
    send_numbers(&bus, "a-1", 0..100).await;
    let first = next_batch(&mut inbox).await;
    server.freeze().unwrap();
    let refusals = async {
        [
            bus.send(&id("a-1"), &[b"200"]).await.unwrap_err(),
            bus.settle(&id("a-1"), &[first[0].id]).await.unwrap_err(),
            bus.read_inbox(&id("a-1"), None).await.unwrap_err(),
            bus.close_inbox(&id("a-1")).await.unwrap_err(),
            bus.inbox_len(&id("a-1")).await.unwrap_err(),
        ]
    };
    for refused in comes_back(refusals).await {
        assert!(refused.is_retryable(), "{refused}");
    }
    link_is(&bus, false).await;
    server.wake().unwrap();
    link_is(&bus, true).await;
    send_at_last(&bus, 300).await;
    all_are_seen(&bus, &mut inbox, (16..100).chain([300])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_is_cut_off_reads_on() {
    let (server, bus) = with_a_server().await;
    let mut inbox = bus.open_inbox(&id("a-1"), LONG).await.unwrap();
    for round in 0..3 {
        let cutting = server.clone();
        blocking(move || cutting.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap()).await;
        for n in 0..5 {
            send_at_last(&bus, round * 10 + n).await;
        }
        all_are_seen(&bus, &mut inbox, (0..5).map(|n| round * 10 + n)).await;
    }
    assert_eq!(bus.inbox_len(&id("a-1")).await.unwrap(), 0, "and settled");
    let pending = server.command(&["XPENDING", "t:{instance:a-1}:inbox", "scheduler"]).unwrap();
    assert_eq!(pending.lines().next(), Some("0"), "acknowledged as well as deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_is_read_at_the_server_to_which_the_name_of_a_full_one_leads() {
    let (full, larger) = blocking(|| (Arc::new(Redis::start().unwrap()), Redis::start().unwrap())).await;
    let name = Proxy::start(address_of(&full)).await.unwrap();
    let bus = open(&options(&format!("redis://{}", name.address()), "t:")).await.unwrap();
    let mut inbox = bus.open_inbox(&id("a-1"), LONG).await.unwrap();
    send_at_last(&bus, 0).await;
    all_are_seen(&bus, &mut inbox, [0]).await;
    name.lead_to(address_of(&larger));
    let filled = full.clone();
    // It still lets inboxes be read, and nothing is sent there any more.
    blocking(move || filled.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap()).await;
    // The link may be up again before this looks.
    send_at_last(&bus, 1).await;
    all_are_seen(&bus, &mut inbox, [1]).await;
}

/// Cuts off the connection that waits for entries; whether there was one.
fn cut_off_reader(server: &Redis) -> bool {
    let clients = server.command(&["CLIENT", "LIST"]).unwrap();
    let reader = clients.lines().find(|client| client.contains(" cmd=xreadgroup "));
    let id = reader.and_then(|client| client.split(' ').find_map(|field| field.strip_prefix("id=")));
    id.is_some_and(|id| server.command(&["CLIENT", "KILL", "ID", id]).is_ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_follow_a_reader_to_the_server_to_which_the_name_leads() {
    let (first, second) =
        blocking(|| (Arc::new(Redis::start().unwrap()), Arc::new(Redis::start().unwrap()))).await;
    let name = Proxy::start(address_of(&first)).await.unwrap();
    let bus = open(&options(&format!("redis://{}", name.address()), "t:")).await.unwrap();
    let mut inbox = bus.open_inbox(&id("a-1"), LONG).await.unwrap();
    send_at_last(&bus, 0).await;
    all_are_seen(&bus, &mut inbox, [0]).await;
    // Both take what is written, and no other connection is lost.
    name.lead_to(address_of(&second));
    eventually("the reader is cut off", async || {
        let cutting = first.clone();
        blocking(move || cut_off_reader(&cutting)).await
    })
    .await;
    eventually("the inbox is there", async || {
        let asked = second.clone();
        let there = blocking(move || asked.command(&["EXISTS", "t:{instance:a-1}:inbox"]).unwrap()).await;
        there.trim() == "1"
    })
    .await;
    send_at_last(&bus, 1).await;
    all_are_seen(&bus, &mut inbox, [1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_moves_with_its_master() {
    let cluster = blocking(|| Arc::new(RedisCluster::start().unwrap())).await;
    let bus = open(&options(&cluster.url(), "t:")).await.unwrap();
    let mut inbox = bus.open_inbox(&id("a-1"), LONG).await.unwrap();
    send_numbers(&bus, "a-1", 0..5).await;
    all_are_seen(&bus, &mut inbox, 0..5).await;
    let all = cluster.clone();
    blocking(move || Redis::kill(all.master_of("t:{instance:a-1}:inbox").unwrap())).await;
    send_at_last(&bus, 5).await;
    all_are_seen(&bus, &mut inbox, [5]).await;
}
