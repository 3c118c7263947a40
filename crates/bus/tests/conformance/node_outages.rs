//! Nodes on a Redis that is killed, emptied, frozen, or forgets its scripts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::{
    Connecting, Epoch, Error, Handle, ListChange, NewConnection, Report, Reserved, Unreserved, Version,
    Written,
};
use futures_util::FutureExt;
use testkit::servers::{Redis, RedisCluster};

use crate::bench::{LONG, blocking, comes_back, eventually, id, link_is, open, options};
use crate::nodes::{claim, connect, held, new, node, ready, report, reserve, show, slot};
use crate::outages::with_a_server;

/// Every call comes back, with an error that says to ask again.
async fn refuses(bus: &Handle, epoch: Epoch) {
    let n = node("n");
    let refusals = async {
        let refusals: [Error; 12] = [
            bus.connect_node(&n, &new(&id("a-1")), &report(2), &[]).await.unwrap_err(),
            bus.complete_node(&n, epoch, &[]).await.unwrap_err(),
            bus.refresh_node(&n, epoch, &report(2), &[]).await.unwrap_err(),
            bus.recount_node(&n, epoch, &report(2), &[]).await.unwrap_err(),
            bus.reserve_slots(&n, &[claim(1)], LONG).await.unwrap_err(),
            bus.send_slots(&n, epoch, &[slot(1)]).await.unwrap_err(),
            bus.unreserve_slots(&n, &[claim(1)]).await.unwrap_err(),
            bus.free_slots(&n, &[slot(1)]).await.unwrap_err(),
            bus.held_slots(&n, &[slot(1)]).await.unwrap_err(),
            bus.show_nodes(&[n.clone(), node("m")]).await.unwrap_err(),
            bus.list_nodes(&id("a-1"), &ListChange::default(), LONG).await.unwrap_err(),
            bus.listed_nodes(&[id("a-1"), id("b-1")]).await.unwrap_err(),
        ];
        refusals
    };
    for refused in comes_back(refusals).await {
        assert!(refused.is_retryable(), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_redis_lost_is_connected_anew_with_a_higher_version() {
    let (server, bus) = with_a_server().await;
    for is_killed in [false, true] {
        let epoch = ready(&bus, "n", 2).await;
        reserve(&bus, "n", &[1]).await;
        let seen = show(&bus, "n").await.unwrap();
        let losing = server.clone();
        if is_killed {
            blocking(move || losing.kill()).await;
            link_is(&bus, false).await;
            refuses(&bus, epoch).await;
            let stopped = server.clone();
            blocking(move || stopped.boot().unwrap()).await;
            link_is(&bus, true).await;
        } else {
            blocking(move || losing.flush().unwrap()).await;
        }
        assert_eq!(reserve(&bus, "n", &[1, 2]).await, [Reserved::NotReady; 2]);
        let written = bus.refresh_node(&node("n"), epoch, &report(2), &[]).await.unwrap();
        assert_eq!(written, Written::Lost);
        assert_eq!(bus.send_slots(&node("n"), epoch, &[slot(1)]).await.unwrap(), [false]);
        let again = connect(&bus, "n", &report(2), &[]).await;
        assert!(!again.is_complete && again.version > seen.version && again.epoch > epoch);
        assert!(matches!(
            bus.disconnect_node(&node("n"), again.epoch, LONG).await.unwrap(),
            Written::Done(_)
        ));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_from_before_what_its_holder_said_is_connected_anew() {
    let (server, bus) = with_a_server().await;
    let (n, epoch) = (node("n"), ready(&bus, "n", 2).await);
    let said = async |capacity| bus.refresh_node(&n, epoch, &report(capacity), &[]).await.unwrap();
    let (record, copy) = ("t:{node:n}:c:record", "t:{node:n}:copy");
    assert!(matches!(said(2).await, Written::Done(_)));
    server.command(&["COPY", record, copy]).unwrap();
    let Written::Done(newest) = said(3).await else { panic!("it is the newest connection") };
    server.command(&["COPY", copy, record, "REPLACE"]).unwrap();
    assert_eq!(said(3).await, Written::Lost);
    assert_eq!(show(&bus, "n").await, None, "nobody reads that the node is gone");
    assert_eq!(bus.unreserve_slots(&n, &[claim(1)]).await.unwrap(), [Unreserved::Unknown]);
    assert_eq!(reserve(&bus, "n", &[1]).await, [Reserved::NotReady]);
    let again = connect(&bus, "n", &report(3), &[]).await;
    assert!(!again.is_complete && again.epoch > epoch && again.version > newest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_redis_costs_each_call_its_time_and_keeps_the_record() {
    let (server, bus) = with_a_server().await;
    let before = ready(&bus, "n", 2).await;
    assert_eq!(reserve(&bus, "n", &[2]).await, [Reserved::Yes]);
    server.freeze().unwrap();
    refuses(&bus, before).await;
    server.wake().unwrap();
    link_is(&bus, true).await;
    // What was sent while it was frozen may be done now, a new connection among it.
    eventually("it answers", async || bus.show_nodes(&[node("n")]).await.is_ok()).await;
    let again = connect(&bus, "n", &report(2), &[]).await;
    assert!(again.is_complete && again.epoch > before);
    assert_eq!(held(&bus, "n", &[2]).await, [2]);
    assert_eq!(bus.send_slots(&node("n"), again.epoch, &[slot(2)]).await.unwrap(), [true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_frozen_redis_carries_out_late_vouches_for_nothing() {
    let (server, holder) = with_a_server().await;
    let lane = open(&options(&server.url(), "t:")).await.unwrap();
    let vouched = Duration::from_secs(2);
    let epoch = ready(&holder, "n", 2).await;
    // What was vouched for before stays so; here that is to end.
    let after = connect(&holder, "n", &Report { vouched: Some(vouched), ..report(2) }, &[]).await.epoch;
    assert!(after > epoch);
    server.command(&["HDEL", "t:{node:n}:c:record", "vouched"]).unwrap();
    assert_eq!(reserve(&lane, "n", &[1]).await, [Reserved::NotReady]);
    let brief = Report { vouched: Some(vouched), ..report(2) };
    holder.refresh_node(&node("n"), after, &brief, &[]).await.unwrap();
    assert_eq!(reserve(&lane, "n", &[1]).await, [Reserved::Yes]);
    server.freeze().unwrap();
    let (sent, begun) = (holder.refresh_node(&node("n"), after, &brief, &[]).await, Instant::now());
    assert!(sent.unwrap_err().may_have_run());
    tokio::time::sleep_until((begun + vouched).into()).await;
    server.wake().unwrap();
    link_is(&lane, true).await;
    eventually("it answers", async || lane.held_slots(&node("n"), &[]).await.is_ok()).await;
    let known = lane.held_slots(&node("n"), &[slot(9)]).await.unwrap();
    assert!(known.age.is_none(), "what has no slot is not known to have none");
    assert_eq!(reserve(&lane, "n", &[1, 2]).await, [Reserved::Yes, Reserved::NotReady]);
    link_is(&holder, true).await;
    eventually("it is vouched for again", async || {
        let taken = [slot(7)];
        let recounted = holder.recount_node(&node("n"), after, &brief, &taken).await;
        recounted.is_ok() && reserve(&lane, "n", &[2]).await == [Reserved::Full]
    })
    .await;
}

/// Each handle counts its own words: what one that never connected the node says is a word from before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_that_comes_after_a_newer_one_changes_nothing() {
    let (server, holder) = with_a_server().await;
    let late = open(&options(&server.url(), "t:")).await.unwrap();
    let (n, epoch) = (node("n"), ready(&holder, "n", 2).await);
    let Written::Done(version) = holder.recount_node(&n, epoch, &report(2), &[slot(1)]).await.unwrap() else {
        panic!("it is the newest connection");
    };
    let lent = Report { vouched: None, ..report(5) };
    assert_eq!(late.recount_node(&n, epoch, &lent, &[slot(2)]).await.unwrap(), Written::Done(version));
    assert_eq!(late.refresh_node(&n, epoch, &lent, &[slot(1)]).await.unwrap(), Written::Done(version));
    assert_eq!(held(&holder, "n", &[1, 2]).await, [1]);
    assert_eq!(reserve(&late, "n", &[3, 4]).await, [Reserved::Yes, Reserved::Full]);
    assert!(matches!(holder.refresh_node(&n, epoch, &report(3), &[]).await.unwrap(), Written::Done(_)));
    assert_eq!(reserve(&late, "n", &[4]).await, [Reserved::Yes]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_goodbye_whose_answer_is_read_late_takes_nothing_from_the_next_connection() {
    let (_server, bus) = with_a_server().await;
    // From then on the server knows the script of a goodbye, and one message is enough.
    let other = ready(&bus, "m", 1).await;
    bus.disconnect_node(&node("m"), other, LONG).await.unwrap();
    let n = node("n");
    // The answer may be there at once, where this thread had to wait for a core.
    let goodbye = loop {
        let first = ready(&bus, "n", 1).await;
        let mut sent = bus.disconnect_node(&n, first, LONG);
        if sent.as_mut().now_or_never().is_none() {
            break sent;
        }
    };
    let next = connect(&bus, "n", &report(1), &[]).await;
    assert!(matches!(goodbye.await.unwrap(), Written::Done(_)), "the server had it first");
    bus.complete_node(&n, next.epoch, &[]).await.unwrap();
    bus.refresh_node(&n, next.epoch, &report(1), &[]).await.unwrap();
    assert_eq!(reserve(&bus, "n", &[1]).await, [Reserved::Yes], "its holder vouches for it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_forgot_its_scripts_is_told_again() {
    let (server, bus) = with_a_server().await;
    let epoch = ready(&bus, "n", 100).await;
    for job in 0..3 {
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        assert_eq!(reserve(&bus, "n", &[job]).await, [Reserved::Yes]);
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        assert_eq!(bus.send_slots(&node("n"), epoch, &[slot(job)]).await.unwrap(), [true]);
    }
    assert_eq!(show(&bus, "n").await.unwrap().used, 3);
}

/// A version that the server's clock does not reach.
const AHEAD: &str = "4000000000000000";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_went_back_takes_no_version_back() {
    let (server, bus) = with_a_server().await;
    let old = ready(&bus, "n", 1).await;
    server.command(&["HSET", "t:{node:n}:c:record", "version", AHEAD]).unwrap();
    let ahead = show(&bus, "n").await.unwrap().version;
    assert_eq!(ahead.to_string(), AHEAD, "no digit is lost");
    let new = connect(&bus, "n", &report(1), &[]).await;
    assert!(new.version > ahead && new.epoch > old);
    let written = bus.disconnect_node(&node("n"), new.epoch, LONG).await.unwrap();
    assert!(matches!(written, Written::Done(version) if version > new.version), "{written:?}");
    let last = connect(&bus, "n", &report(1), &[]).await;
    let Written::Done(withdrawn) = bus.withdraw_node(&node("n"), last.epoch).await.unwrap() else {
        panic!("it is the newest connection");
    };
    assert!(withdrawn > last.version && connect(&bus, "n", &report(1), &[]).await.version > withdrawn);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_went_back_takes_no_version_back_of_a_record_that_redis_lost() {
    let (server, bus) = with_a_server().await;
    let (n, holder) = (node("n"), id("a-1"));
    ready(&bus, "n", 1).await;
    server.command(&["HSET", "t:{node:n}:c:record", "version", AHEAD]).unwrap();
    let known = connect(&bus, "n", &report(1), &[]).await;
    server.flush().unwrap();
    let new = NewConnection { floor: Epoch::new(known.version.get() + 1), ..new(&holder) };
    let again = bus.connect_node(&n, &new, &report(1), &[]).await.unwrap().done().unwrap();
    assert!(!again.is_complete && again.epoch > known.epoch && again.version > known.version);
    let written = bus.complete_node(&n, again.epoch, &[]).await.unwrap();
    assert!(matches!(written, Written::Done(version) if version > again.version), "{written:?}");
    assert_eq!(reserve(&bus, "n", &[1]).await, [Reserved::Yes]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_whose_end_redis_has_evicted_is_over_with_the_holders_next_list() {
    let (server, bus) = with_a_server().await;
    let (n, epoch) = (node("n"), ready(&bus, "n", 2).await);
    assert_eq!(reserve(&bus, "n", &[1, 2]).await, [Reserved::Yes; 2]);
    server.command(&["DEL", "t:{node:n}:c:reserved"]).unwrap();
    assert_eq!(reserve(&bus, "n", &[3]).await, [Reserved::Full]);
    let written = bus.recount_node(&n, epoch, &report(2), &[slot(1)]).await.unwrap();
    assert!(matches!(written, Written::Done(_)), "{written:?}");
    assert_eq!(held(&bus, "n", &[1, 2]).await, [1]);
    assert_eq!(reserve(&bus, "n", &[3]).await, [Reserved::Yes]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_went_back_has_nothing_reserved_for_longer_than_a_record_lives() {
    let (server, bus) = with_a_server().await;
    let (n, epoch) = (node("n"), ready(&bus, "n", 2).await);
    assert_eq!(reserve(&bus, "n", &[1, 2]).await, [Reserved::Yes; 2]);
    server.command(&["ZADD", "t:{node:n}:c:reserved", AHEAD, &slot(1).to_string()]).unwrap();
    assert_eq!(reserve(&bus, "n", &[3]).await, [Reserved::Full]);
    let written = bus.refresh_node(&n, epoch, &report(2), &[]).await.unwrap();
    assert!(matches!(written, Written::Done(_)), "{written:?}");
    assert_eq!(held(&bus, "n", &[1, 2]).await, [2]);
    assert_eq!(show(&bus, "n").await.unwrap().used, 1);
    assert_eq!(reserve(&bus, "n", &[3]).await, [Reserved::Yes]);
    assert_eq!(bus.send_slots(&n, epoch, &[slot(1), slot(2)]).await.unwrap(), [false, true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_went_back_has_nobody_vouch_for_longer_than_a_record_lives() {
    let (server, bus) = with_a_server().await;
    let (n, epoch) = (node("n"), ready(&bus, "n", 1).await);
    server.command(&["HSET", "t:{node:n}:c:record", "vouched", AHEAD]).unwrap();
    let brief = Report { vouched: Some(Duration::from_secs(1)), ..report(1) };
    for said in [Report { ttl: Duration::from_secs(5), ..brief.clone() }, brief] {
        let written = bus.refresh_node(&n, epoch, &said, &[]).await.unwrap();
        assert!(matches!(written, Written::Done(_)), "{written:?}");
    }
    let is_vouched = async || bus.held_slots(&n, &[]).await.unwrap().age.is_some();
    eventually("nobody vouches for it", async || !is_vouched().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_connection_an_older_release_wrote_is_everybodys() {
    let (server, bus) = with_a_server().await;
    let (n, holder) = (node("n"), id("a-1"));
    let of = |principal| NewConnection { principal, ..new(&holder) };
    let own = bus.connect_node(&n, &of("ops"), &report(1), &[]).await.unwrap().done().unwrap();
    assert_eq!(bus.connect_node(&n, &of(""), &report(1), &[]).await.unwrap(), Connecting::Anothers);
    // An instance of an older release takes the record over, and leaves the field that it does not know.
    let next = (own.epoch.get() + 1).to_string();
    server.command(&["HSET", "t:{node:n}:c:record", "epoch", &next, "version", &next]).unwrap();
    assert!(bus.connect_node(&n, &of(""), &report(1), &[]).await.unwrap().done().is_some());
    assert_eq!(bus.connect_node(&n, &of("ops"), &report(1), &[]).await.unwrap(), Connecting::Anothers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_node_outlives_its_record_for_long() {
    let (server, bus) = with_a_server().await;
    let short = Report { ttl: Duration::from_secs(2), ..report(3) };
    let epoch = connect(&bus, "n", &short, &[slot(1)]).await.epoch;
    bus.complete_node(&node("n"), epoch, &[slot(2)]).await.unwrap();
    assert_eq!(reserve(&bus, "n", &[3]).await, [Reserved::Yes]);
    let withdrawn = connect(&bus, "m", &short, &[slot(1)]).await.epoch;
    bus.withdraw_node(&node("m"), withdrawn).await.unwrap();
    let held = [(node("n"), Version::new(1))];
    let change = ListChange { held: &held, ..ListChange::default() };
    bus.list_nodes(&id("a-1"), &change, short.ttl).await.unwrap();
    // The probes of the open bus write a key now and then.
    let left = || server.command(&["KEYS", "*"]).unwrap();
    eventually("nothing is left", async || left().lines().all(|key| key.starts_with("t:probe:"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_redis_lost_is_told_to_its_holder() {
    let (server, bus) = with_a_server().await;
    let (holder, held) = (id("a-1"), [(node("n"), Version::new(1)), (node("m"), Version::new(2))]);
    let all = ListChange { held: &held, ..ListChange::default() };
    let one = ListChange { held: &held[..1], ..ListChange::default() };
    for is_killed in [false, true] {
        assert_eq!(bus.list_nodes(&holder, &all, LONG).await.unwrap(), 2);
        let losing = server.clone();
        blocking(move || if is_killed { losing.kill() } else { losing.flush().unwrap() }).await;
        if is_killed {
            link_is(&bus, false).await;
            let stopped = server.clone();
            blocking(move || stopped.boot().unwrap()).await;
            link_is(&bus, true).await;
        }
        assert!(bus.listed_nodes(std::slice::from_ref(&holder)).await.unwrap().is_empty());
        assert_eq!(bus.list_nodes(&holder, &one, LONG).await.unwrap(), 1, "one of them is missing");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_instance_wrote_in_a_list_names_no_node() {
    let (server, bus) = with_a_server().await;
    server.command(&["HSET", "t:{instance:a-1}:nodes", "n", "7", "m", "new", "no node", "1"]).unwrap();
    let listed = bus.listed_nodes(&[id("a-1")]).await.unwrap();
    assert_eq!(listed, [(node("n"), Version::new(7))].into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_another_hand_counts_as_none() {
    let (server, bus) = with_a_server().await;
    ready(&bus, "n", 1).await;
    ready(&bus, "m", 1).await;
    server.command(&["HSET", "t:{node:n}:c:record", "state", "of a newer version"]).unwrap();
    let shown = bus.show_nodes(&[node("n"), node("m")]).await.unwrap();
    assert_eq!(shown.into_keys().collect::<Vec<_>>(), [node("m")], "and hides no other");
    assert_eq!(reserve(&bus, "n", &[1]).await, [Reserved::NotReady]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_moves_with_its_master() {
    let cluster = blocking(|| Arc::new(RedisCluster::start().unwrap())).await;
    let bus = open(&options(&cluster.url(), "t:")).await.unwrap();
    let before = ready(&bus, "n", 1).await;
    let all = cluster.clone();
    blocking(move || Redis::kill(all.master_of("t:{node:n}:c:record").unwrap())).await;
    let n = node("n");
    let mut epoch = before;
    let holder = id("a-1");
    eventually("it is connected", async || {
        match bus.connect_node(&n, &new(&holder), &report(1), &[]).await {
            Ok(connected) => {
                epoch = connected.done().unwrap().epoch;
                true
            }
            Err(_) => false,
        }
    })
    .await;
    assert!(epoch > before, "the replica goes on from what it had");
    eventually("it is complete", async || {
        bus.complete_node(&n, epoch, &[]).await.is_ok_and(|written| matches!(written, Written::Done(_)))
    })
    .await;
    assert_eq!(reserve(&bus, "n", &[1, 2]).await, [Reserved::Yes, Reserved::Full]);
}

/// Whether the master is to serve the slot of a key. Nobody else does.
fn serves(master: &Redis, key: &str, is_so: bool) {
    let how = if is_so { "ADDSLOTS" } else { "DELSLOTS" };
    let slot = master.command(&["CLUSTER", "KEYSLOT", key]).unwrap();
    master.command(&["CLUSTER", how, slot.trim()]).unwrap();
}

/// Has a master that lacks a slot serve the others, or nothing.
fn serves_the_rest(cluster: &RedisCluster, is_so: bool) {
    let wanted = if is_so { "no" } else { "yes" };
    for server in cluster.servers() {
        server.command(&["CONFIG", "SET", "cluster-require-full-coverage", wanted]).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_a_cluster_refuses_at_last_may_have_run_unless_the_outage_is_known() {
    let cluster = blocking(|| Arc::new(RedisCluster::start().unwrap())).await;
    let bus = open(&options(&cluster.url(), "t:")).await.unwrap();
    let (n, epoch) = (node("n"), ready(&bus, "n", 1).await);
    let refresh = async || bus.refresh_node(&n, epoch, &report(1), &[]).await;
    let key = "t:{node:n}:c:record";
    let master = cluster.master_of(key).unwrap();
    serves_the_rest(&cluster, true);
    for _ in 0..2 {
        serves(master, key, false);
        // All else is served, so the link is up. What became of the tries before the last one is not known.
        let refused = refresh().await.unwrap_err();
        assert!(refused.may_have_run() && refused.is_retryable(), "{refused}");
        let read = bus.held_slots(&n, &[slot(1)]).await.unwrap_err();
        assert!(!read.may_have_run() && read.is_retryable(), "{read}");
        // That nobody serves the slot was known before this one was sent.
        let again = refresh().await.unwrap_err();
        assert!(!again.may_have_run() && again.is_retryable(), "{again}");
        serves(master, key, true);
        eventually("the slot is served", async || refresh().await.is_ok()).await;
    }
    // A master of other slots is away, without a replica to take its place. That says nothing of this slot.
    for server in cluster.servers() {
        server.command(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]).unwrap();
    }
    let others = ["a", "b"].map(|key| cluster.master_of(key).unwrap().port());
    let lost = cluster.servers().iter().position(|server| {
        let port = server.port();
        port != master.port() && others.contains(&port)
    });
    let (lost, killing) = (lost.unwrap(), cluster.clone());
    blocking(move || killing.servers()[lost].kill()).await;
    let mut answers = bus.answers();
    comes_back(answers.wait_for(|answers| !answers)).await.unwrap();
    serves(master, key, false);
    let refused = refresh().await.unwrap_err();
    assert!(refused.may_have_run() && refused.is_retryable(), "{refused}");
    eventually("it is known that nobody serves the slot", async || {
        refresh().await.is_err_and(|error| error.is_retryable() && !error.may_have_run())
    })
    .await;
    serves(master, key, true);
    let booting = cluster.clone();
    blocking(move || {
        booting.servers()[lost].boot().unwrap();
        booting.wait_until_whole().unwrap();
    })
    .await;
    link_is(&bus, true).await;
    eventually("the slot is served", async || refresh().await.is_ok()).await;
    // No master serves anything: each lacks the slot of one of these.
    let all = cluster.clone();
    blocking(move || {
        serves_the_rest(&all, false);
        for key in ["a", "b", "c"] {
            serves(all.master_of(key).unwrap(), key, false);
        }
    })
    .await;
    link_is(&bus, false).await;
    eventually("nothing is done, for sure", async || {
        refresh().await.is_err_and(|error| error.is_retryable() && !error.may_have_run())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_moved_hash_slot_takes_no_scripts_and_is_named_until_its_move_is_ended() {
    let cluster = blocking(|| Arc::new(RedisCluster::start().unwrap())).await;
    let bus = open(&options(&cluster.url(), "t:")).await.unwrap();
    let (n, epoch) = (node("n"), ready(&bus, "n", 1).await);
    let refresh = async || bus.refresh_node(&n, epoch, &report(1), &[]).await;
    let half = cluster.half_move("t:{node:n}:c:record").unwrap();
    let named = async || {
        let is_it = |warning: &String| warning.contains(&format!("the move of hash slot {} from", half.slot));
        bus.check().await.unwrap().warnings.into_iter().find(is_it)
    };
    eventually("it is named", async || {
        assert!(refresh().await.unwrap_err().is_retryable());
        named().await.is_some()
    })
    .await;
    let warning = named().await.unwrap();
    for server in [half.from, half.to] {
        assert!(warning.contains(&server.address().to_string()), "{warning}");
    }
    eventually("nothing is done, for sure", async || {
        refresh().await.is_err_and(|error| error.is_retryable() && !error.may_have_run())
    })
    .await;
    assert!(bus.show_nodes(std::slice::from_ref(&n)).await.is_err(), "nor is it read");
    assert!(show(&bus, "elsewhere").await.is_none() && bus.link().borrow().is_up(), "all else is served");
    half.end().unwrap();
    eventually("it is served again", async || refresh().await.is_ok()).await;
    eventually("nothing is named", async || named().await.is_none()).await;
}
