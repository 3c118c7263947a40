//! Tests of the registry: which updates count, who leaves and when, and who is notified.

use std::collections::HashSet;

use bus::NodeState;
use domain::NodeTimeouts;
use domain::job::Requirements;

use super::*;
use crate::explain::Reason;
use crate::fixture::*;
use crate::limits::{ABSENT_AFTER_MS, FULL_MS, LEFT_FORGOTTEN_AT_ONCE, NODES_MAX, left_remembered};
use crate::record::Load;
use crate::select::Wanted;

const OFFLINE: Duration = NodeTimeouts::DEFAULT.offline;

/// Everything would have been heard for so long.
fn well(length: Duration) -> Hearing {
    Hearing { bus: Some(length), all: Some(length), all_ago: Duration::ZERO }
}

fn update(name: &str, epoch: u64, version: u64) -> NodeUpdate {
    NodeUpdate::of(&record(name).at(epoch, version).used(3))
}

fn used(registry: &Registry, name: &str) -> Option<u32> {
    registry.get(&node(name)).map(|record| record.status.used)
}

#[test]
fn only_newer_news_count() {
    let registry = registry([record("n").at(5, 50)]);
    let now = Instant::now();
    assert_eq!(registry.hear(&update("n", 5, 49), now), Applied::Stale);
    assert_eq!(registry.hear(&update("n", 4, 99), now), Applied::Stale, "an older connection loses");
    assert_eq!(apply(&registry, record("n").at(4, 99).held_by("b")), Applied::Stale);
    assert_eq!(used(&registry, "n"), Some(0));
    assert_eq!(registry.hear(&update("n", 5, 51), now), Applied::New);
    assert_eq!(used(&registry, "n"), Some(3));
    assert_eq!(apply(&registry, record("n").at(5, 51).used(2)), Applied::Repeated);
    assert_eq!(used(&registry, "n"), Some(2), "slots come and go without a new version");
    assert_eq!(registry.hear(&update("n", 6, 60), now), Applied::Unknown, "a new one is to be read");
    assert_eq!(registry.hear(&update("m", 1, 1), now), Applied::Unknown);
    assert_eq!(used(&registry, "n"), Some(2));
}

#[test]
fn a_new_connection_takes_the_node_over_and_the_old_one_is_told() {
    let registry = registry([record("n").at(5, 50)]);
    let mut departures = registry.departures();
    assert_eq!(apply(&registry, record("n").at(6, 51).held_by("b")), Applied::New);
    let gone =
        Departure { node: node("n"), holder: instance("a"), epoch: Epoch::new(5), how: Ended::Replaced };
    assert_eq!(departures.try_recv(), Ok(gone));
    assert_eq!(registry.get(&node("n")).unwrap().profile.holder, instance("b"));
    let mut rng = seeded();
    assert!(anybody(&registry, &mut rng).is_none(), "the old connection gets nothing more");
    registry.reindex();
    assert_eq!(anybody(&registry, &mut rng).unwrap().holder(), &instance("b"));
}

#[test]
fn a_connection_that_the_bus_says_is_replaced_has_not_left_its_node() {
    let registry = registry([record("n").at(5, 50)]);
    let mut departures = registry.departures();
    registry.replaced(&node("n"), Epoch::new(5), Instant::now());
    assert_eq!(departures.try_recv().unwrap().how, Ended::Replaced, "what the node was doing is left alone");
    assert!(registry.get(&node("n")).is_none(), "nothing more is given to the old connection");
    assert!(registry.take_outbox(9).is_empty(), "the newer one's holder publishes that one");
    assert_eq!(apply(&registry, record("n").at(5, 51)), Applied::Stale);
    assert_eq!(apply(&registry, record("n").at(6, 52).held_by("b")), Applied::New);
}

#[test]
fn a_node_whose_heartbeats_stopped_is_lost_at_its_holder_and_at_the_others() {
    let (holder, other) = (registry([record("n").at(5, 50)]), registry([record("n").at(5, 50).held_by("b")]));
    let mut departures = [&holder, &other].map(Registry::departures);
    let now = Instant::now();
    holder.lost(&node("n"), Epoch::new(5), now);
    let told = holder.take_outbox(9);
    assert_eq!(told.iter().map(|update| other.hear(update, now)).collect::<Vec<_>>(), [Applied::New]);
    for departures in &mut departures {
        assert_eq!(departures.try_recv().unwrap().how, Ended::Lost);
    }
}

#[test]
fn a_node_that_left_is_not_brought_back_by_late_news() {
    let registry = registry([record("n").at(5, 50), record("m")]);
    let mut departures = registry.departures();
    let now = Instant::now();
    registry.left(&node("n"), Epoch::new(4), now);
    assert!(registry.get(&node("n")).is_some() && departures.try_recv().is_err(), "that was over before");
    registry.left(&node("n"), Epoch::new(5), now);
    assert_eq!(departures.try_recv().unwrap().how, Ended::Left);
    assert_eq!((registry.get(&node("n")), registry.count(), registry.list(None, 9).len()), (None, 1, 1));
    assert_eq!(apply(&registry, record("n").at(5, 51)), Applied::Stale);
    assert_eq!(registry.hear(&update("n", 5, 52), now), Applied::Stale);
    assert_eq!(
        registry.hear_leave(&node("new"), Epoch::new(7), now),
        Applied::New,
        "published before it was known"
    );
    assert_eq!(apply(&registry, record("new").at(7, 70)), Applied::Stale);
    let sent: Vec<_> =
        registry.take_outbox(9).into_iter().map(|update| (update.state, update.stamp.epoch.get())).collect();
    assert_eq!(sent, [(None, 5)]);
    assert_eq!(apply(&registry, record("n").at(6, 51)), Applied::New);
    registry.sweep(now + left_remembered(OFFLINE), None);
    assert_eq!(apply(&registry, record("new").at(7, 70)), Applied::New, "it was forgotten in time");
}

#[test]
fn nodes_that_left_first_make_room_for_others_and_without_any_a_node_is_refused() {
    let name = |n: usize| format!("n{n}");
    let registry = registry((0..NODES_MAX).map(|n| record(&name(n))));
    let now = Instant::now();
    assert_eq!(registry.recorded(record("own"), now), Applied::TooMany);
    assert_eq!(registry.noted(record("own"), now), Applied::TooMany);
    assert_eq!(registry.recorded(record("n0").at(1, 2), now), Applied::New, "one that is known goes on");
    let left = LEFT_FORGOTTEN_AT_ONCE + 1;
    let moving = node(&name(left));
    registry.replaced(&moving, Epoch::new(1), now);
    for n in 0..left {
        registry.left(&node(&name(n)), Epoch::new(1), now + Duration::from_millis(n as u64));
    }
    let later = now + Duration::from_millis(FULL_MS);
    assert_eq!(registry.recorded(record("own"), later), Applied::New);
    assert_eq!(apply(&registry, record(&name(left - 1)).at(1, 9)), Applied::Stale, "the last is remembered");
    assert_eq!(apply(&registry, record(&name(0)).at(2, 1)), Applied::New);
    assert_eq!(registry.count(), NODES_MAX - left - 1 + 2);
    assert!(registry.is_moving(&moving, later), "one that is moving is remembered");
}

#[test]
fn a_node_that_the_bus_does_not_know_yet_is_known_here_alone() {
    let registry = registry([record("n").at(5, 50).held_by("b")]);
    let (n, now) = (node("n"), Instant::now());
    let epoch = registry.next_epoch(&n);
    assert_eq!((epoch, registry.next_epoch(&node("new"))), (Epoch::new(6), Epoch::new(1)));
    assert_eq!(registry.noted(record("n").at(6, 0), now), Applied::New);
    assert_eq!(registry.noted(record("n").at(6, 0).used(4), now), Applied::Repeated);
    assert_eq!(used(&registry, "n"), Some(4));
    registry.reindex();
    assert!(anybody(&registry, &mut seeded()).is_none(), "it is full");
    registry.noted(record("n").at(6, 0).used(3), now);
    assert_eq!(anybody(&registry, &mut seeded()).unwrap().holder(), &instance("a"));
    // What the bus still says of the connection before changes nothing.
    assert_eq!(apply(&registry, record("n").at(5, 51).held_by("b")), Applied::Stale);
    assert_eq!(registry.hear_leave(&n, Epoch::new(5), now), Applied::Stale);
    // Another instance may have given its connection of the node the same number, or the bus a higher one.
    for epoch in [6, 999] {
        let left = NodeUpdate { state: None, ..update("n", epoch, 52) };
        assert_eq!(registry.hear(&left, now), Applied::Stale, "its socket says more");
    }
    assert!(!registry.absent(&n, now + OFFLINE * 2, well(OFFLINE * 2)), "its socket says more");
    assert!(registry.take_outbox(9).is_empty(), "nothing is published");
    // What the bus knows in the end takes its place, from here or elsewhere.
    assert_eq!(registry.recorded(record("n").at(1_000, 1_000), now), Applied::New);
    assert_eq!(
        registry.noted(record("n").at(1_000, 0).used(1), now),
        Applied::Repeated,
        "under the version known"
    );
    assert_eq!(registry.noted(record("n").at(6, 0), now), Applied::Stale);
    registry.take_outbox(9);
    registry.left_alone(&n, Epoch::new(1_000), Ended::Left, now);
    assert!(registry.get(&n).is_none() && registry.take_outbox(9).is_empty(), "nobody else knew of it");
    assert_eq!(registry.noted(record("n").at(registry.next_epoch(&n).get(), 0), now), Applied::New);
}

#[test]
fn an_own_node_is_missing_once_the_bus_has_not_taken_it_for_two_heartbeats_until_it_does() {
    let registry = registry([record("own"), record("far").held_by("b")]);
    let (now, silence) = (Instant::now(), silence_max(2_000));
    let lacks = |after: Duration| {
        registry.sweep(now + after, None);
        registry.lacks_records()
    };
    assert!(!lacks(OFFLINE), "all that was said of it was taken");
    let more = Duration::from_millis(1);
    for after in [Duration::ZERO, silence / 2, silence + more] {
        assert_eq!(registry.noted(record("own").used(1), now + after), Applied::Repeated);
    }
    assert!(!lacks(silence), "not for long");
    assert!(lacks(silence + more), "since the first of them");
    assert_eq!(registry.recorded(record("own").at(1, 2), now), Applied::New);
    assert!(!lacks(OFFLINE));
    // One that the bus did not take at its connection.
    assert_eq!(registry.noted(record("new").at(7, 0), now), Applied::New);
    assert!(!lacks(silence) && lacks(silence + more));
    registry.left_alone(&node("new"), Epoch::new(7), Ended::Left, now);
    assert!(!lacks(silence + more));
}

#[test]
fn a_record_that_the_bus_lost_is_written_anew_above_all_that_is_known_of_the_node() {
    let registry = registry([]);
    let (n, now) = (node("n"), Instant::now());
    assert_eq!(registry.epoch_floor(&n), Epoch::new(1));
    assert_eq!(registry.recorded(record("n").at(50, 70).used(4), now), Applied::New);
    let floor = registry.epoch_floor(&n);
    assert_eq!(floor, Epoch::new(71), "others look for versions that are above the last one");
    assert_eq!(registry.recorded(record("n").at(71, 71).used(4), now), Applied::New);
    registry.freed(&n, floor);
    assert_eq!(used(&registry, "n"), Some(3), "its slots count");
    registry.left(&n, floor, now);
    let floor = registry.epoch_floor(&n);
    assert_eq!(registry.recorded(record("n").at(floor.get(), floor.get()), now), Applied::New);
}

#[test]
fn behind_the_last_number_that_the_bus_can_name_there_is_none() {
    let registry = registry([record("n").at(u64::MAX, 1).held_by("b")]);
    let last = Epoch::new(u64::MAX);
    assert_eq!((registry.next_epoch(&node("n")), registry.epoch_floor(&node("n"))), (last, last));
}

#[test]
fn no_news_is_no_evidence_until_the_own_link_was_well_for_long() {
    let registry = registry([record("own"), record("far").held_by("b")]);
    let mut departures = registry.departures();
    let far = node("far");
    let later = Instant::now() + OFFLINE + Duration::from_secs(1);
    let short = OFFLINE - Duration::from_millis(1);
    assert!(!registry.absent(&far, later, Hearing::default()), "the link is down");
    assert!(!registry.absent(&far, later, well(short)), "the link was down");
    assert!(!registry.absent(&far, Instant::now() + short, well(OFFLINE * 2)), "it was heard of");
    assert!(!registry.absent(&node("own"), later, well(OFFLINE)), "its socket says more");
    assert!(!registry.absent(&node("nobody"), later, well(OFFLINE)));
    assert!(departures.try_recv().is_err());
    assert!(registry.absent(&far, later, well(OFFLINE)));
    let gone = Departure { node: far.clone(), holder: instance("b"), epoch: Epoch::new(1), how: Ended::Lost };
    assert_eq!((departures.try_recv(), registry.get(&far)), (Ok(gone), None));
    assert_eq!(
        apply(&registry, record("far").held_by("b")),
        Applied::Stale,
        "the very record that was missed"
    );
    assert_eq!(apply(&registry, record("far").held_by("b").at(1, 2)), Applied::New, "it is there after all");
}

#[test]
fn a_node_that_may_be_where_the_bus_does_not_reach_is_gone_from_this_bus_and_not_lost() {
    let registry = registry([record("far").held_by("b")]);
    let mut departures = registry.departures();
    let later = Instant::now() + OFFLINE;
    let joined = Some(OFFLINE - Duration::from_millis(1));
    assert!(registry.absent(&node("far"), later, Hearing { all: joined, ..well(OFFLINE) }));
    assert_eq!(departures.try_recv().unwrap().how, Ended::Unseen);
    assert_eq!(registry.get(&node("far")), None);
}

#[test]
fn a_silent_node_is_lost_when_its_instance_was_still_on_this_bus_after_so_long() {
    let registry = registry([record("far").held_by("b")]);
    let (mut departures, far) = (registry.departures(), node("far"));
    let later = Instant::now() + OFFLINE;
    let seen = |before, ago| Hearing { all: Some(before), all_ago: ago, ..well(OFFLINE * 9) };
    assert!(!registry.absent(&far, later, seen(OFFLINE * 8, OFFLINE)), "it may have moved since");
    let short = OFFLINE - Duration::from_millis(1);
    assert!(!registry.absent(&far, later + OFFLINE, seen(short, OFFLINE)), "it came to this bus too late");
    assert!(registry.get(&far).is_some() && departures.try_recv().is_err());
    assert!(registry.absent(&far, later + OFFLINE, seen(OFFLINE, OFFLINE)));
    assert_eq!(departures.try_recv().unwrap().how, Ended::Lost);
}

#[test]
fn two_missed_heartbeats_are_unhealthy_unless_the_own_link_was_down() {
    let registry = registry([record("own"), record("far").held_by("b")]);
    let state = |name: &str| registry.get(&node(name)).unwrap().status.state;
    let now = Instant::now();
    let silence = silence_max(2_000);
    let (soon, late) = (now + silence - Duration::from_secs(1), now + silence + Duration::from_secs(1));
    registry.sweep(soon, Some(OFFLINE));
    registry.sweep(late, None);
    registry.sweep(late, Some(silence));
    assert_eq!((state("own"), state("far")), (NodeState::Accepting, NodeState::Accepting));
    registry.sweep(late, Some(OFFLINE));
    assert_eq!((state("own"), state("far")), (NodeState::Accepting, NodeState::Unhealthy));
    assert_eq!(shown_silent(&registry, late), NodeState::Unhealthy, "an old refreshment is no update");
    registry.sweep(late, None);
    assert_eq!(state("far"), NodeState::Unhealthy, "a link that goes down moves nothing");
    assert_eq!(registry.hear(&update("far", 1, 1), late), Applied::Repeated);
    assert_eq!(state("far"), NodeState::Accepting, "it was refreshed");
}

#[test]
fn the_nodes_of_an_instance_that_is_not_there_get_no_work_until_it_is() {
    let registry =
        registry([record("own").used(4), record("far").held_by("b"), record("full").held_by("c").used(4)]);
    let (mut rng, far) = (seeded(), node("far"));
    let chosen = |rng: &mut _| anybody(&registry, rng).map(|choice| choice.node().clone());
    let (absent_after, began) = (Duration::from_millis(ABSENT_AFTER_MS), Instant::now());
    let looked = |names: &[&str], after| {
        registry.found_there(&names.iter().map(|name| instance(name)).collect(), began + after);
    };
    // Two looks, as far apart as it takes.
    let there = |names: &[&str]| {
        looked(names, Duration::ZERO);
        looked(names, absent_after);
    };
    assert_eq!(chosen(&mut rng), Some(far.clone()), "nobody has looked yet");
    there(&["b", "c", "other"]);
    assert_eq!(chosen(&mut rng), Some(far.clone()));
    let mut openings = registry.openings();
    looked(&["c"], Duration::ZERO);
    looked(&["c"], absent_after - Duration::from_millis(1));
    assert_eq!(chosen(&mut rng), Some(far.clone()), "it may be about to show itself");
    looked(&["b", "c"], absent_after);
    looked(&["c"], absent_after * 2 - Duration::from_millis(1));
    assert_eq!(chosen(&mut rng), Some(far.clone()), "it did");
    there(&["b", "c"]);
    there(&["c"]);
    assert_eq!(chosen(&mut rng), None);
    assert!(registry.is_there(&instance("a")) && registry.is_there(&instance("c")));
    assert!(!registry.is_there(&instance("b")));
    assert_eq!(registry.get(&far).unwrap().status.state, NodeState::Unhealthy);
    let explained = registry.explain(&Wanted::new(&Requirements::default()), &mut rng);
    assert_eq!(explained.rejected, [(Reason::Unreachable, 1), (Reason::Full, 2)]);
    registry.hear(&update("far", 1, 2), Instant::now());
    assert_eq!(chosen(&mut rng), None, "what was on its way is no sign of it");
    apply(&registry, record("far").held_by("b").at(2, 3));
    apply(&registry, record("farther").held_by("b"));
    registry.reindex();
    assert_eq!(chosen(&mut rng), None, "nor is a record");
    openings.mark_unchanged();
    there(&["b"]);
    assert!(openings.has_changed().unwrap(), "whoever waits is notified");
    assert!(chosen(&mut rng).is_some_and(|node| node.as_str().starts_with("far")));
    apply(&registry, record("own").at(1, 2));
    there(&[]);
    assert_eq!(chosen(&mut rng), Some(node("own")), "it is there itself");
}

/// The state of `far` after its record was read again, as old as it was.
fn shown_silent(registry: &Registry, now: Instant) -> NodeState {
    let long_ago = now - Duration::from_secs(20);
    let read = record("far").held_by("b");
    assert_eq!(registry.apply(read, long_ago, now), Applied::Repeated);
    registry.get(&node("far")).unwrap().status.state
}

#[test]
fn a_waiter_hears_of_a_node_that_opens_and_of_a_new_index() {
    let registry = registry([record("x").used(4), record("z")]);
    let mut openings = registry.openings();
    let mut heard = || {
        let is_new = openings.has_changed().unwrap();
        openings.mark_unchanged();
        is_new
    };
    apply(&registry, record("x").at(1, 2).used(3));
    assert!(heard());
    apply(&registry, record("x").at(1, 3).used(2));
    assert!(!heard(), "it was open before");
    apply(&registry, record("z").at(1, 2).with(|status| status.state = NodeState::Draining));
    assert!(!heard());
    apply(&registry, record("z").at(1, 3));
    assert!(heard());
    adopt(&registry, 1, vec![pool("later", &[], &[])]);
    assert!(heard());
}

#[test]
fn only_newer_pools_are_adopted() {
    let registry = registry([]);
    adopt(&registry, 2, vec![pool("x", &[], &[])]);
    for version in [1, 2] {
        assert!(!registry.adopt_pools(Pools::new(version, vec![]).unwrap()));
    }
    assert_eq!(registry.pools().version(), 2);
    adopt(&registry, 3, vec![]);
    assert!(registry.pools().configured().is_empty());
}

#[test]
fn what_this_instance_writes_is_told_once_and_the_newest_of_each_node() {
    let registry = registry([]);
    let now = Instant::now();
    registry.recorded(record("n").at(1, 1), now);
    registry.recorded(record("n").at(1, 2), now);
    let load = Load { cpu: Some(0.5), ..Load::default() };
    registry.heartbeat_recorded(Record { load, ..record("n").at(1, 3) }, now, now);
    registry.recorded(record("n").at(1, 1), now);
    registry.recorded(record("m"), now);
    let mut sent = registry.take_outbox(1);
    assert_eq!(sent.len(), 1);
    sent.extend(registry.take_outbox(9));
    sent.sort_unstable_by_key(|update| update.stamp);
    let update =
        NodeUpdate { state: Some((record("n").status, load)), ..NodeUpdate::of(&record("n").at(1, 3)) };
    assert_eq!(sent, [NodeUpdate::of(&record("m")), update]);
    registry.recorded(record("n").at(1, 4), now);
    registry.put_back(sent);
    let stamps: HashSet<_> =
        registry.take_outbox(9).into_iter().map(|update| update.stamp.version.get()).collect();
    assert_eq!(stamps, HashSet::from([4, 1]), "what was not published does not replace what is newer");
}

#[test]
fn the_list_is_sorted_and_paged() {
    let registry = registry(["c", "a", "b"].map(record));
    let names = |after: Option<&str>, limit| -> Vec<String> {
        let records = registry.list(after.map(node).as_ref(), limit);
        records.iter().map(|record| record.profile.node.to_string()).collect()
    };
    assert_eq!(names(None, 2), ["a", "b"]);
    assert_eq!(names(Some("b"), 2), ["c"]);
    assert_eq!(names(Some("bb"), 2), ["c"]);
}

#[test]
fn those_unheard_of_for_longest_are_compared_first() {
    let registry = registry([]);
    let began = Instant::now();
    for (n, name) in ["old", "older", "oldest"].into_iter().enumerate() {
        let heard = began - Duration::from_secs(n as u64);
        registry.apply(record(name).held_by("b"), heard, heard);
    }
    registry.apply(record("own"), began - Duration::from_secs(9), began);
    let now = began + Duration::from_secs(1);
    let chosen = |listed: &[(&str, u64)], limit| {
        let listed = listed.iter().map(|(name, version)| (node(name), Version::new(*version))).collect();
        let nodes = registry.to_compare(&listed, now, Duration::from_secs(2), limit);
        nodes.iter().map(ToString::to_string).collect::<HashSet<_>>()
    };
    let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<HashSet<_>>();
    assert_eq!(chosen(&[("old", 1), ("new", 1)], 9), set(&["new", "older", "oldest"]));
    assert_eq!(chosen(&[("new", 1)], 1), set(&["new", "oldest"]));
    assert_eq!(
        chosen(&[("older", 1), ("own", 9)], 0),
        set(&[]),
        "its version is the listed one, or its own affair"
    );
    assert_eq!(chosen(&[("older", 2), ("oldest", 2)], 0), set(&["older", "oldest"]), "all that are behind");
    assert_eq!(chosen(&[("old", 2)], 0), set(&[]), "it was heard of just now");
}

#[test]
fn a_node_that_left_is_looked_up_when_another_connection_of_it_is_listed() {
    let registry = registry([]);
    let now = Instant::now();
    apply(&registry, record("n").held_by("b").at(5, 5));
    registry.hear_leave(&node("n"), Epoch::new(5), now);
    let chosen = |version, ago: u64| {
        let listed = [(node("n"), Version::new(version))].into();
        registry.to_compare(&listed, now + Duration::from_secs(ago), Duration::from_secs(1), 9)
    };
    assert_eq!(chosen(6, 2), [node("n")]);
    assert!(chosen(5, 2).is_empty(), "it is the one that left");
    assert!(chosen(6, 0).is_empty(), "its holder has not changed its list yet");
}

#[test]
fn others_nodes_that_were_found_full_are_looked_at_unless_news_came() {
    let registry = registry([record("own"), record("far").held_by("b")]);
    let mut rng = seeded();
    let (now, ago) = (Instant::now(), Duration::from_millis(200));
    for _ in 0..2 {
        anybody(&registry, &mut rng).unwrap().found_full();
    }
    assert!(registry.found_full(now, ago).is_empty(), "an update came not long ago");
    assert_eq!(registry.found_full(now + ago, ago), [node("far")]);
    registry.hear(&update("far", 1, 2), now);
    assert!(registry.found_full(now + ago, ago).is_empty());
}

#[test]
fn whoever_looks_on_is_told_of_changes_and_not_of_heartbeats() {
    let registry = registry([]);
    let mut changes = registry.changes();
    let mut sent =
        || std::iter::from_fn(|| changes.try_recv().ok()).map(|change| change.what).collect::<Vec<_>>();
    let now = Instant::now();
    apply(&registry, record("n").at(5, 50).held_by("b"));
    assert_eq!(sent(), [Changed::Joined(NodeState::Accepting)]);
    registry.hear(&update("n", 5, 51), now);
    assert_eq!(sent(), [], "it is busier");
    registry
        .hear(&NodeUpdate::of(&record("n").at(5, 52).with(|status| status.state = NodeState::Draining)), now);
    registry.hear(&update("n", 5, 53), now);
    assert_eq!(sent(), [Changed::State(NodeState::Draining), Changed::State(NodeState::Accepting)]);
    let late = now + Duration::from_millis(ABSENT_AFTER_MS);
    registry.found_there(&HashSet::new(), now);
    for there in [HashSet::new(), HashSet::new(), HashSet::from([instance("b")])] {
        registry.found_there(&there, late);
    }
    assert_eq!(sent(), [Changed::State(NodeState::Unhealthy), Changed::State(NodeState::Accepting)]);
    apply(&registry, record("n").at(6, 55));
    assert_eq!(sent(), [Changed::Ended(Ended::Replaced), Changed::Joined(NodeState::Accepting)]);
    registry.left(&node("n"), Epoch::new(6), now);
    assert_eq!(sent(), [Changed::Ended(Ended::Left)]);
}
