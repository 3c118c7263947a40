//! Records of nodes, and the connections that write them.

use std::time::Duration;

use bus::limits::{NODE_DOCUMENT_BYTES_MAX, NODE_SLOTS_MAX, NODE_TTL_MS_MAX, NODES_LIST_MAX};
use bus::{
    Claim, Connected, Connecting, Epoch, Error, Handle, ListChange, NewConnection, NodeRecord, NodeState,
    Report, Reserved, Slot, Unreserved, Version, Written,
};
use domain::job::Attempt;
use domain::limits::NODE_CAPACITY_MAX;
use domain::{InstanceId, JobId, NodeId, Token};

use crate::bench::{Bench, LONG, eventually, id};

/// Short, and long enough for what a busy machine does first.
const SHORT: Duration = Duration::from_secs(2);

pub fn node(name: &str) -> NodeId {
    NodeId::parse(name).unwrap()
}

/// The first attempt of a job.
pub fn slot(job: u128) -> Slot {
    Slot { job: JobId::from_u128(job), attempt: Attempt::new(1) }
}

pub fn claim(job: u128) -> Claim {
    Claim { slot: slot(job), token: Token::new(1) }
}

/// A node that accepts, and says nothing else.
pub fn report(capacity: u32) -> Report {
    Report {
        capacity,
        state: NodeState::Accepting,
        document: b"{}"[..].into(),
        ttl: LONG,
        vouched: Some(LONG),
    }
}

/// A connection to this instance that has just begun, without a token.
pub fn new(holder: &InstanceId) -> NewConnection<'_> {
    NewConnection { holder, principal: "", age: Duration::ZERO, over: None, had: None, floor: Epoch::new(0) }
}

pub async fn connect(bus: &Handle, name: &str, report: &Report, running: &[Slot]) -> Connected {
    let connected = bus.connect_node(&node(name), &new(&id("a-1")), report, running).await;
    connected.unwrap().done().expect("there is no younger one, and none of another token")
}

/// Connects a node of which nothing was known, and completes it.
pub async fn ready(bus: &Handle, name: &str, capacity: u32) -> Epoch {
    let connected = connect(bus, name, &report(capacity), &[]).await;
    assert!(!connected.is_complete);
    let written = bus.complete_node(&node(name), connected.epoch, &[]).await.unwrap();
    assert!(matches!(written, Written::Done(version) if version > connected.version), "{written:?}");
    connected.epoch
}

pub async fn reserve(bus: &Handle, name: &str, jobs: &[u128]) -> Vec<Reserved> {
    let claims: Vec<_> = jobs.iter().map(|job| claim(*job)).collect();
    bus.reserve_slots(&node(name), &claims, LONG).await.unwrap()
}

pub async fn show(bus: &Handle, name: &str) -> Option<NodeRecord> {
    bus.show_nodes(&[node(name)]).await.unwrap().remove(&node(name))
}

/// Those of these jobs that have a slot.
pub async fn held(bus: &Handle, name: &str, jobs: &[u128]) -> Vec<u128> {
    let slots: Vec<_> = jobs.iter().map(|job| slot(*job)).collect();
    let held = bus.held_slots(&node(name), &slots).await.unwrap();
    jobs.iter().zip(held.is_taken).filter(|(_, taken)| *taken).map(|(job, _)| *job).collect()
}

fn version(written: Written) -> Version {
    match written {
        Written::Done(version) => version,
        other => panic!("it was {other:?}"),
    }
}

pub async fn a_record_shows_what_its_holder_said(b: Bench) {
    let (holder, reader) = (b.join().await, b.join().await);
    assert_eq!(show(&reader, "n").await, None);
    let document: Vec<u8> = (0..=255).collect();
    let said = Report {
        capacity: 3,
        state: NodeState::Unhealthy,
        document: document.into(),
        ttl: Duration::from_secs(20),
        vouched: Some(LONG),
    };
    let connected = connect(&holder, "n", &said, &[slot(1)]).await;
    let shown = show(&reader, "n").await.unwrap();
    assert!(shown.ttl <= said.ttl && shown.ttl > said.ttl / 2, "{:?}", shown.ttl);
    let expected = NodeRecord {
        holder: id("a-1"),
        epoch: connected.epoch,
        version: connected.version,
        is_online: true,
        is_complete: false,
        capacity: 3,
        used: 1,
        state: said.state,
        document: said.document.clone(),
        ttl: shown.ttl,
    };
    assert_eq!(shown, expected);
    let now = Report { capacity: 4, state: NodeState::Draining, document: b""[..].into(), ..said };
    let written = reader.refresh_node(&node("n"), connected.epoch, &now, &[slot(1)]).await.unwrap();
    let shown = show(&holder, "n").await.unwrap();
    assert_eq!((shown.capacity, shown.state, shown.used, shown.document.len()), (4, now.state, 0, 0));
    assert_eq!(Written::Done(shown.version), written);
}

pub async fn the_version_rises_when_there_is_something_to_see(b: Bench) {
    let bus = b.join().await;
    let epoch = ready(&bus, "n", 2).await;
    let refresh = async |report: &Report, gone: &[Slot]| {
        version(bus.refresh_node(&node("n"), epoch, report, gone).await.unwrap())
    };
    let same = report(2);
    let first = refresh(&same, &[]).await;
    assert_eq!(refresh(&same, &[slot(9)]).await, first, "nothing changed");
    reserve(&bus, "n", &[1]).await;
    let taken = refresh(&same, &[]).await;
    assert!(taken > first);
    assert_eq!(refresh(&same, &[]).await, taken);
    let freed = refresh(&same, &[slot(1)]).await;
    assert!(freed > taken);
    let mut last = freed;
    for changed in [
        Report { document: b"{1}"[..].into(), ..same.clone() },
        Report { document: b"{1}"[..].into(), capacity: 3, ..same.clone() },
        Report { document: b"{1}"[..].into(), capacity: 3, state: NodeState::Draining, ..same.clone() },
    ] {
        let seen = refresh(&changed, &[]).await;
        assert!(seen > last, "{changed:?}");
        assert_eq!(refresh(&changed, &[]).await, seen);
        last = seen;
    }
}

pub async fn a_record_ends_with_its_time_unless_it_is_refreshed(b: Bench) {
    let bus = b.join().await;
    let short = Report { ttl: SHORT, ..report(2) };
    let (goes, stays) =
        (connect(&bus, "goes", &short, &[slot(1)]).await, connect(&bus, "stays", &short, &[]).await);
    for (name, connected) in [("goes", goes), ("stays", stays)] {
        version(bus.complete_node(&node(name), connected.epoch, &[]).await.unwrap());
    }
    version(bus.refresh_node(&node("stays"), stays.epoch, &report(2), &[]).await.unwrap());
    eventually("its time is over", async || show(&bus, "goes").await.is_none()).await;
    assert!(show(&bus, "stays").await.is_some());
    assert_eq!(reserve(&bus, "goes", &[2]).await, [Reserved::NotReady]);
    assert_eq!(held(&bus, "goes", &[1]).await, []);
    for written in [
        bus.refresh_node(&node("goes"), goes.epoch, &report(2), &[]).await.unwrap(),
        bus.complete_node(&node("goes"), goes.epoch, &[]).await.unwrap(),
        bus.disconnect_node(&node("goes"), goes.epoch, LONG).await.unwrap(),
    ] {
        assert_eq!(written, Written::Lost);
    }
    let again = connect(&bus, "goes", &report(2), &[]).await;
    assert!(!again.is_complete && again.version > goes.version);
    assert_eq!(held(&bus, "goes", &[1]).await, [], "what was known is known no more");
}

pub async fn versions_and_epochs_never_go_back(b: Bench) {
    let bus = b.join().await;
    let mut last = Version::new(0);
    let mut rises = |version: Version| {
        assert!(version > last, "{version} after {last}");
        last = version;
    };
    for round in 0..5 {
        let connected = connect(&bus, "n", &report(2), &[]).await;
        assert_eq!(connected.epoch.get(), connected.version.get());
        rises(connected.version);
        rises(version(bus.complete_node(&node("n"), connected.epoch, &[]).await.unwrap()));
        for n in 0..5 {
            let document = format!("{round} {n}").into_bytes().into();
            let changed = Report { document, ..report(2) };
            rises(version(bus.refresh_node(&node("n"), connected.epoch, &changed, &[]).await.unwrap()));
        }
        if round % 2 == 1 {
            rises(version(bus.disconnect_node(&node("n"), connected.epoch, LONG).await.unwrap()));
        }
    }
    let epoch = connect(&bus, "n", &Report { ttl: SHORT, ..report(2) }, &[]).await.epoch;
    rises(version(bus.complete_node(&node("n"), epoch, &[]).await.unwrap()));
    eventually("its time is over", async || show(&bus, "n").await.is_none()).await;
    let again = connect(&bus, "n", &report(2), &[]).await;
    rises(again.version);
    // An instance knows of an epoch that is an hour ahead.
    let (holder, floor) = (id("a-1"), Epoch::new(again.epoch.get() + 3_600_000_000));
    let new = NewConnection { floor, ..new(&holder) };
    let connected = bus.connect_node(&node("n"), &new, &report(2), &[]).await.unwrap().done().unwrap();
    assert_eq!(connected.epoch, floor);
    rises(connected.version);
    rises(version(bus.complete_node(&node("n"), connected.epoch, &[]).await.unwrap()));
    rises(connect(&bus, "n", &report(2), &[]).await.version);
}

pub async fn an_older_connection_writes_nothing(b: Bench) {
    let (older, newer) = (b.join().await, b.join().await);
    let old = ready(&older, "n", 2).await;
    reserve(&older, "n", &[1]).await;
    let new = connect(&newer, "n", &report(2), &[]).await;
    assert!(new.epoch > old && new.is_complete);
    let seen = show(&newer, "n").await.unwrap();
    let all_are_replaced = async || {
        let changed = Report { capacity: 1, ..report(2) };
        for written in [
            older.refresh_node(&node("n"), old, &changed, &[slot(1)]).await.unwrap(),
            older.complete_node(&node("n"), old, &[slot(7)]).await.unwrap(),
            older.disconnect_node(&node("n"), old, LONG).await.unwrap(),
            older.withdraw_node(&node("n"), old).await.unwrap(),
        ] {
            assert_eq!(written, Written::Replaced);
        }
        assert_eq!(older.send_slots(&node("n"), old, &[slot(1)]).await.unwrap(), [false]);
    };
    all_are_replaced().await;
    let still = show(&newer, "n").await.unwrap();
    assert_eq!(NodeRecord { ttl: seen.ttl, ..still }, seen);
    assert_eq!(held(&newer, "n", &[1, 7]).await, [1]);
    version(newer.disconnect_node(&node("n"), new.epoch, LONG).await.unwrap());
    all_are_replaced().await;
    assert!(!show(&newer, "n").await.unwrap().is_online, "and brings nothing back");
}

pub async fn a_node_belongs_to_whose_token_connected_it_as_long_as_it_is_online(b: Bench) {
    let (one, other) = (b.join().await, b.join().await);
    let (n, a, b) = (node("n"), id("a-1"), id("b-1"));
    let connect = async |new: NewConnection<'_>| {
        let bus = if *new.holder == a { &one } else { &other };
        bus.connect_node(&n, &new, &report(2), &[slot(9)]).await.unwrap()
    };
    let of = |principal, holder| NewConnection { principal, ..new(holder) };
    let first = connect(of("ops", &a)).await.done().unwrap();
    one.complete_node(&n, first.epoch, &[slot(1)]).await.unwrap();
    let unhealthy = Report { state: NodeState::Unhealthy, ..report(2) };
    let as_it_is_kept = format!("{} ops", first.epoch);
    for said in [report(2), unhealthy] {
        one.refresh_node(&n, first.epoch, &said, &[]).await.unwrap();
        let before = show(&one, "n").await.unwrap();
        for stranger in ["", "op", "ops2", "ops ", &as_it_is_kept] {
            for holder in [&a, &b] {
                let over = NewConnection { over: Some(first.epoch), ..of(stranger, holder) };
                for new in [of(stranger, holder), over] {
                    assert_eq!(connect(new).await, Connecting::Anothers, "{new:?}");
                }
            }
        }
        let after = show(&one, "n").await.unwrap();
        assert_eq!(NodeRecord { ttl: before.ttl, ..after }, before, "nothing was done");
        assert_eq!(held(&one, "n", &[1, 9]).await, [1, 9]);
    }
    // Its own next connection takes it over, wherever it is, and it is still its own.
    let second = connect(of("ops", &b)).await.done().unwrap();
    assert!(second.epoch > first.epoch);
    assert_eq!(connect(of("", &a)).await, Connecting::Anothers);
    // What is gone belongs to nobody, and so does what was forgotten.
    version(other.disconnect_node(&n, second.epoch, LONG).await.unwrap());
    let third = connect(of("", &a)).await.done().unwrap();
    assert_eq!(connect(of("ops", &b)).await, Connecting::Anothers);
    let short = Report { ttl: SHORT, ..report(2) };
    one.refresh_node(&n, third.epoch, &short, &[]).await.unwrap();
    eventually("its time is over", async || show(&one, "n").await.is_none()).await;
    assert!(connect(of("ops", &b)).await.done().is_some());
}

pub async fn a_new_connection_frees_what_does_not_run_and_keeps_what_is_reserved(b: Bench) {
    let bus = b.join().await;
    let old = ready(&bus, "n", 9).await;
    reserve(&bus, "n", &[1, 2, 3, 4]).await;
    assert_eq!(bus.send_slots(&node("n"), old, &[slot(1), slot(2)]).await.unwrap(), [true, true]);
    // 1 runs, 2 was sent and never arrived, 3 is reserved, 4 is reserved and runs, 5 runs unknown to the record.
    let new = connect(&bus, "n", &report(9), &[slot(1), slot(4), slot(5)]).await;
    assert!(new.is_complete, "all that was known still is");
    assert_eq!(held(&bus, "n", &[1, 2, 3, 4, 5]).await, [1, 3, 4, 5]);
    assert_eq!(show(&bus, "n").await.unwrap().used, 4);
    let sent = bus.send_slots(&node("n"), new.epoch, &[1, 2, 3, 4, 5].map(slot)).await.unwrap();
    assert_eq!(sent, [false, false, true, false, false], "what runs is not sent again");
}

pub async fn a_node_that_went_offline_shows_it_and_has_no_slots(b: Bench) {
    let bus = b.join().await;
    let epoch = ready(&bus, "n", 2).await;
    reserve(&bus, "n", &[1, 2]).await;
    assert_eq!(bus.send_slots(&node("n"), epoch, &[slot(1)]).await.unwrap(), [true]);
    let seen = show(&bus, "n").await.unwrap();
    let gone = version(bus.disconnect_node(&node("n"), epoch, LONG).await.unwrap());
    assert!(gone > seen.version);
    let shown = show(&bus, "n").await.unwrap();
    assert!(!shown.is_online && !shown.is_complete && shown.used == 0 && shown.version == gone);
    assert_eq!(reserve(&bus, "n", &[1, 3]).await, [Reserved::NotReady; 2]);
    assert_eq!(held(&bus, "n", &[1, 2]).await, []);
    assert_eq!(bus.send_slots(&node("n"), epoch, &[slot(2)]).await.unwrap(), [false]);
    assert_eq!(
        bus.disconnect_node(&node("n"), epoch, LONG).await.unwrap(),
        Written::Lost,
        "it has gone already"
    );
    let again = connect(&bus, "n", &report(2), &[slot(1)]).await;
    assert!(!again.is_complete && again.version > gone);
    let unfinished = [slot(1), slot(2)];
    version(bus.complete_node(&node("n"), again.epoch, &unfinished).await.unwrap());
    assert_eq!(held(&bus, "n", &[1, 2, 3]).await, [1, 2]);
    assert_eq!(reserve(&bus, "n", &[3]).await, [Reserved::Full], "what the ledger knew of counts");
}

pub async fn a_record_that_is_withdrawn_says_nothing_of_its_node(b: Bench) {
    let (holder, late) = (b.join().await, b.join().await);
    let (n, had) = (node("n"), ready(&holder, "n", 3).await);
    reserve(&holder, "n", &[1, 2]).await;
    assert_eq!(holder.send_slots(&n, had, &[slot(1)]).await.unwrap(), [true]);
    // The node has left the late connection for the holder's, but the late one's call reaches the bus last.
    let taken = connect(&late, "n", &report(3), &[]).await;
    let withdrawn = version(late.withdraw_node(&n, taken.epoch).await.unwrap());
    assert!(withdrawn > taken.version);
    assert_eq!(show(&holder, "n").await, None, "nobody reads that the node is gone");
    assert_eq!(reserve(&holder, "n", &[3]).await, [Reserved::NotReady]);
    assert_eq!(held(&holder, "n", &[1, 2]).await, []);
    assert_eq!(holder.unreserve_slots(&n, &[claim(2)]).await.unwrap(), [Unreserved::Unknown]);
    assert_eq!(holder.send_slots(&n, had, &[slot(2)]).await.unwrap(), [false]);
    for written in [
        holder.refresh_node(&n, had, &report(3), &[]).await.unwrap(),
        holder.complete_node(&n, had, &[]).await.unwrap(),
        late.withdraw_node(&n, taken.epoch).await.unwrap(),
        late.disconnect_node(&n, taken.epoch, LONG).await.unwrap(),
    ] {
        assert_eq!(written, Written::Lost);
    }
    // The connection that the node has goes on, and no word of the other one touches it.
    let again = connect(&holder, "n", &report(3), &[slot(1)]).await;
    assert!(!again.is_complete && again.version > withdrawn);
    version(holder.complete_node(&n, again.epoch, &[]).await.unwrap());
    assert_eq!(late.withdraw_node(&n, taken.epoch).await.unwrap(), Written::Replaced);
    assert_eq!(held(&holder, "n", &[1, 2]).await, [1]);
    assert_eq!(reserve(&holder, "n", &[4, 5, 6]).await, [Reserved::Yes, Reserved::Yes, Reserved::Full]);
}

pub async fn hundreds_of_records_are_shown_at_once(b: Bench) {
    let bus = b.join().await;
    let names: Vec<_> = (0..300).map(|n| node(&format!("n-{n}"))).collect();
    for name in names.iter().step_by(3) {
        connect(&bus, name.as_str(), &report(1), &[]).await;
    }
    let mut shown: Vec<_> = bus.show_nodes(&names).await.unwrap().into_keys().collect();
    shown.sort();
    let mut connected: Vec<_> = names.into_iter().step_by(3).collect();
    connected.sort();
    assert_eq!(shown, connected);
    assert!(bus.show_nodes(&[]).await.unwrap().is_empty());
}

/// What these instances list, in order.
async fn listed(bus: &Handle, holders: &[&str]) -> Vec<(NodeId, u64)> {
    let holders: Vec<_> = holders.iter().map(|holder| id(holder)).collect();
    let listed = bus.listed_nodes(&holders).await.unwrap().into_iter();
    let mut listed: Vec<_> = listed.map(|(node, version)| (node, version.get())).collect();
    listed.sort();
    listed
}

/// Has an instance add nodes to its list; how many it names then.
async fn list(bus: &Handle, holder: &str, held: &[(&str, u64)], ttl: Duration) -> usize {
    let held: Vec<_> = held.iter().map(|(name, version)| (node(name), Version::new(*version))).collect();
    bus.list_nodes(&id(holder), &ListChange { held: &held, ..ListChange::default() }, ttl).await.unwrap()
}

pub async fn each_instance_lists_its_nodes_and_others_read_the_lists(b: Bench) {
    let (one, other) = (b.join().await, b.join().await);
    assert_eq!(listed(&other, &["a-1", "b-1"]).await, []);
    assert_eq!(list(&one, "a-1", &[("n", 7), ("m", u64::MAX >> 11)], LONG).await, 2);
    assert_eq!(list(&other, "b-1", &[("k", 1)], LONG).await, 1);
    let of_a = [(node("m"), u64::MAX >> 11), (node("n"), 7)];
    assert_eq!(listed(&other, &["a-1"]).await, of_a);
    assert_eq!(listed(&one, &["b-1"]).await, [(node("k"), 1)]);
    assert_eq!(listed(&one, &["a-1", "b-1", "c-1"]).await.len(), 3);
    assert_eq!(listed(&one, &[]).await, [], "nobody was asked");
}

pub async fn a_list_is_changed_or_written_anew(b: Bench) {
    let bus = b.join().await;
    let change = async |held: &[(&str, u64)], gone: &[&str], is_anew| {
        let held: Vec<_> = held.iter().map(|(name, version)| (node(name), Version::new(*version))).collect();
        let gone: Vec<_> = gone.iter().map(|name| node(name)).collect();
        let change = ListChange { is_anew, held: &held, gone: &gone };
        bus.list_nodes(&id("a-1"), &change, LONG).await.unwrap()
    };
    let of_a = async || {
        let listed = listed(&bus, &["a-1"]).await.into_iter();
        listed.map(|(node, version)| format!("{node}={version}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(change(&[("n", 1), ("m", 2)], &[], false).await, 2);
    assert_eq!(change(&[("n", 3)], &["m", "unknown"], false).await, 1);
    assert_eq!(of_a().await, "n=3");
    assert_eq!(change(&[("m", 4)], &["m"], false).await, 2, "what is held now counts");
    assert_eq!(of_a().await, "m=4 n=3");
    assert_eq!(change(&[], &[], false).await, 2, "nothing is changed but its time");
    assert_eq!(change(&[("k", 5)], &[], true).await, 1);
    assert_eq!(of_a().await, "k=5");
    assert_eq!(change(&[], &[], true).await, 0);
    assert_eq!(of_a().await, "");
}

pub async fn of_a_node_in_two_lists_the_higher_version_is_found(b: Bench) {
    let bus = b.join().await;
    list(&bus, "a-1", &[("n", 9), ("m", 1)], LONG).await;
    list(&bus, "b-1", &[("n", 8), ("m", 2)], LONG).await;
    let newest = [(node("m"), 2), (node("n"), 9)];
    assert_eq!(listed(&bus, &["a-1", "b-1"]).await, newest);
    assert_eq!(listed(&bus, &["b-1", "a-1"]).await, newest);
}

pub async fn a_list_ends_with_its_time_unless_it_is_refreshed(b: Bench) {
    let bus = b.join().await;
    let brief = Duration::from_secs(2);
    list(&bus, "a-1", &[("m", 1)], brief).await;
    assert_eq!(list(&bus, "a-1", &[], LONG).await, 1);
    list(&bus, "dead-1", &[("n", 1)], brief).await;
    eventually("its time is over", async || listed(&bus, &["dead-1"]).await.is_empty()).await;
    assert_eq!(listed(&bus, &["dead-1", "a-1"]).await, [(node("m"), 1)]);
    assert_eq!(list(&bus, "dead-1", &[("k", 1)], LONG).await, 1, "what it named before is gone");
}

pub async fn ten_thousand_nodes_of_an_instance_are_read_at_once(b: Bench) {
    const NODES: u64 = 10_000;
    let (holder, reader) = (b.join().await, b.join().await);
    let all: Vec<_> = (0..NODES).map(|n| (node(&format!("n-{n}")), Version::new(n))).collect();
    let mut names = 0;
    for part in all.chunks(NODES_LIST_MAX) {
        let change = ListChange { held: part, ..ListChange::default() };
        names += part.len();
        assert_eq!(holder.list_nodes(&id("a-1"), &change, LONG).await.unwrap(), names);
    }
    let read = reader.listed_nodes(&[id("a-1")]).await.unwrap();
    assert_eq!(read, all.into_iter().collect());
}

pub async fn more_of_a_node_than_the_limit_is_refused(b: Bench) {
    let bus = b.join().await;
    let (n, holder, fine) = (node("n"), id("a-1"), report(1));
    let refused = [
        Report { capacity: NODE_CAPACITY_MAX + 1, ..fine.clone() },
        Report { document: vec![0; NODE_DOCUMENT_BYTES_MAX + 1].into(), ..fine.clone() },
        Report { ttl: Duration::ZERO, ..fine.clone() },
        Report { vouched: Some(Duration::ZERO), ..fine.clone() },
        Report { ttl: Duration::from_millis(NODE_TTL_MS_MAX + 1), ..fine.clone() },
    ];
    let is_refusal = |error: &Error| matches!(error, Error::Invalid(_) | Error::TooLarge { .. });
    for report in &refused {
        assert!(is_refusal(&bus.connect_node(&n, &new(&holder), report, &[]).await.unwrap_err()));
    }
    let many = vec![slot(1); NODE_SLOTS_MAX + 1];
    let claims = vec![claim(1); NODE_SLOTS_MAX + 1];
    let listed = vec![(n.clone(), Version::new(1)); NODES_LIST_MAX];
    let too_many = ListChange { held: &listed, gone: std::slice::from_ref(&n), ..ListChange::default() };
    assert!(is_refusal(&bus.connect_node(&n, &new(&holder), &fine, &many).await.unwrap_err()));
    assert_eq!(show(&bus, "n").await, None, "a refusal changes nothing");
    let epoch = ready(&bus, "n", 1).await;
    for error in [
        bus.refresh_node(&n, epoch, &refused[0], &[]).await.unwrap_err(),
        bus.refresh_node(&n, epoch, &fine, &many).await.unwrap_err(),
        bus.recount_node(&n, epoch, &fine, &many).await.unwrap_err(),
        bus.complete_node(&n, epoch, &many).await.unwrap_err(),
        bus.reserve_slots(&n, &claims, LONG).await.unwrap_err(),
        bus.reserve_slots(&n, &claims[..1], Duration::ZERO).await.unwrap_err(),
        bus.send_slots(&n, epoch, &many).await.unwrap_err(),
        bus.unreserve_slots(&n, &claims).await.unwrap_err(),
        bus.free_slots(&n, &many).await.unwrap_err(),
        bus.held_slots(&n, &many).await.unwrap_err(),
        bus.list_nodes(&holder, &too_many, LONG).await.unwrap_err(),
        bus.list_nodes(&holder, &ListChange::default(), Duration::ZERO).await.unwrap_err(),
    ] {
        assert!(is_refusal(&error), "{error}");
    }
    let largest = Report { document: vec![0; NODE_DOCUMENT_BYTES_MAX].into(), ..report(NODE_CAPACITY_MAX) };
    version(bus.refresh_node(&n, epoch, &largest, &many[1..]).await.unwrap());
    let all: Vec<_> = (0..NODE_CAPACITY_MAX.into()).map(claim).collect();
    let reserved = bus.reserve_slots(&n, &all, LONG).await.unwrap();
    assert!(reserved.iter().all(|it| *it == Reserved::Yes), "a whole node in one call");
}

pub async fn a_closed_bus_says_nothing_of_nodes(b: Bench) {
    let (bus, other) = (b.join().await, b.join().await);
    let (n, epoch) = (node("n"), ready(&bus, "n", 1).await);
    bus.close().await;
    for error in [
        bus.connect_node(&n, &new(&id("a-1")), &report(1), &[]).await.unwrap_err(),
        bus.complete_node(&n, epoch, &[]).await.unwrap_err(),
        bus.refresh_node(&n, epoch, &report(1), &[]).await.unwrap_err(),
        bus.recount_node(&n, epoch, &report(1), &[]).await.unwrap_err(),
        bus.disconnect_node(&n, epoch, LONG).await.unwrap_err(),
        bus.withdraw_node(&n, epoch).await.unwrap_err(),
        bus.reserve_slots(&n, &[claim(1)], LONG).await.unwrap_err(),
        bus.send_slots(&n, epoch, &[slot(1)]).await.unwrap_err(),
        bus.unreserve_slots(&n, &[claim(1)]).await.unwrap_err(),
        bus.free_slots(&n, &[slot(1)]).await.unwrap_err(),
        bus.held_slots(&n, &[slot(1)]).await.unwrap_err(),
        bus.show_nodes(&[node("n")]).await.unwrap_err(),
        bus.list_nodes(&id("a-1"), &ListChange::default(), LONG).await.unwrap_err(),
        bus.listed_nodes(&[id("a-1")]).await.unwrap_err(),
        bus.listed_nodes(&[]).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Closed), "{error}");
    }
    assert!(show(&other, "n").await.unwrap().is_online, "closing disconnects nothing");
}
