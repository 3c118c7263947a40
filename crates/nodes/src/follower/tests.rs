//! Tests of the follower: over a bus that can be made to fail, by a paused clock; and over a whole one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use bus::Version;
use domain::NodeTimeouts;
use domain::job::Requirements;
use tokio::sync::broadcast;

use super::*;
use crate::fixture::*;
use crate::hearing::Hearing;
use crate::record::Record;
use crate::registry::Ended;
use crate::select::Wanted;
use crate::source::{BusSource, Source};

/// A bus in memory that does what a test wants.
struct Shelf {
    records: Mutex<BTreeMap<NodeId, (Record, Instant)>>,
    events: broadcast::Sender<Event>,
    link: watch::Sender<Link>,
    answers: watch::Sender<bool>,
    is_broken: AtomicBool,
    /// The next notice is told without an end.
    is_stuck: AtomicBool,
    /// The next look for who shows itself is a defect.
    do_looks_panic: AtomicBool,
    /// Nodes whose records cannot be read though all else can.
    unreadable: Mutex<HashSet<NodeId>>,
    /// Other instances are on another bus.
    is_apart: AtomicBool,
    /// While a test holds it, nobody is said to be online.
    loading: tokio::sync::Mutex<()>,
    sent: Mutex<Vec<Vec<NodeUpdate>>>,
    /// What this instance lists.
    list: Mutex<HashMap<NodeId, Version>>,
    lists_lost: AtomicBool,
    /// The other instances that are live, and those of them that show themselves.
    live: Mutex<Vec<InstanceId>>,
    shown: Mutex<HashSet<InstanceId>>,
    /// Who was asked for last.
    asked: Mutex<Vec<InstanceId>>,
}

impl Shelf {
    fn new(records: impl IntoIterator<Item = Record>) -> Arc<Self> {
        let shelf = Self {
            records: Mutex::default(),
            events: broadcast::channel(64).0,
            link: watch::Sender::new(Link::Up { since: Instant::now().into_std() }),
            answers: watch::Sender::new(true),
            is_broken: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            do_looks_panic: AtomicBool::new(false),
            unreadable: Mutex::default(),
            is_apart: AtomicBool::new(false),
            loading: tokio::sync::Mutex::default(),
            sent: Mutex::default(),
            list: Mutex::default(),
            lists_lost: AtomicBool::new(false),
            live: Mutex::new(vec![instance("a"), instance("b")]),
            shown: Mutex::new([instance("a"), instance("b")].into()),
            asked: Mutex::default(),
        };
        for record in records {
            shelf.keep(record);
        }
        Arc::new(shelf)
    }

    /// Keeps a record and tells nobody.
    fn keep(&self, record: Record) {
        self.records.lock().insert(record.profile.node.clone(), (record, Instant::now()));
    }

    fn lose(&self, name: &str) {
        self.records.lock().remove(&node(name));
    }

    fn event(&self, event: Event) {
        self.events.send(event).unwrap();
    }

    fn update(&self, record: &Record) {
        self.event(Event::Message(node_update::write(&[NodeUpdate::of(record)]).into()));
    }

    fn set_link(&self, is_up: bool) {
        let since = Instant::now().into_std();
        self.link.send_replace(if is_up { Link::Up { since } } else { Link::Down { since } });
        self.answers.send_replace(is_up);
        self.is_broken.store(!is_up, SeqCst);
    }

    fn check(&self) -> bus::Result<()> {
        if self.is_broken.load(SeqCst) { Err(broken()) } else { Ok(()) }
    }
}

fn broken() -> bus::Error {
    bus::Error::Unavailable { source: Arc::new(std::io::Error::other("broken")) }
}

#[async_trait::async_trait]
impl Source for Shelf {
    fn listen(&self) -> Box<dyn Notices> {
        Box::new(self.events.subscribe())
    }

    async fn tell(&self, notice: &[u8]) -> bus::Result<()> {
        self.check()?;
        if self.is_stuck.swap(false, SeqCst) {
            std::future::pending::<()>().await;
        }
        self.sent.lock().push(node_update::read(notice).unwrap());
        Ok(())
    }

    fn instances(&self) -> Vec<InstanceId> {
        self.live.lock().clone()
    }

    async fn present(&self, instances: &[InstanceId]) -> bus::Result<HashSet<InstanceId>> {
        assert!(!self.do_looks_panic.swap(false, SeqCst), "made on purpose");
        self.check()?;
        let shown = self.shown.lock();
        Ok(instances.iter().filter(|instance| shown.contains(*instance)).cloned().collect())
    }

    async fn list(&self, change: &ListChange<'_>) -> bus::Result<usize> {
        self.check()?;
        let mut list = self.list.lock();
        if change.is_anew || self.lists_lost.swap(false, SeqCst) {
            list.clear();
        }
        list.retain(|node, _| !change.gone.contains(node));
        list.extend(change.held.iter().cloned());
        Ok(list.len())
    }

    async fn listed(&self, holders: &[InstanceId]) -> bus::Result<HashMap<NodeId, Version>> {
        self.check()?;
        let _loading = self.loading.lock().await;
        *self.asked.lock() = holders.to_vec();
        let records = self.records.lock();
        let of = |record: &&Record| holders.contains(&record.profile.holder);
        let records = records.values().map(|(record, _)| record).filter(of);
        Ok(records.map(|record| (record.profile.node.clone(), record.stamp.version)).collect())
    }

    async fn read(&self, nodes: &[NodeId]) -> Vec<bus::Result<Kept>> {
        assert!(nodes.len() <= RECORDS_READ_MAX);
        let (records, unreadable) = (self.records.lock(), self.unreadable.lock());
        let kept = |node: &NodeId| match records.get(node) {
            _ if unreadable.contains(node) => Err(broken()),
            Some((record, at)) => Ok(Kept::Online { record: record.clone(), age: at.elapsed() }),
            None => Ok(Kept::Absent),
        };
        nodes.iter().map(|node| self.check().and_then(|()| kept(node))).collect()
    }

    fn hearing(&self) -> Hearing {
        let heard = match *self.link.borrow() {
            Link::Up { since } => Some(Instant::now().into_std().saturating_duration_since(since)),
            Link::Down { .. } => None,
        };
        let all = heard.filter(|_| !self.is_apart.load(SeqCst));
        Hearing { bus: heard, all, all_ago: Duration::ZERO }
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    fn answers(&self) -> watch::Receiver<bool> {
        self.answers.subscribe()
    }
}

#[async_trait::async_trait]
impl Notices for broadcast::Receiver<Event> {
    async fn next(&mut self) -> Option<Event> {
        match self.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Event::Lagged { missed }),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// A registry that follows, and has loaded.
async fn following(shelf: &Arc<Shelf>) -> (Registry, Follower) {
    let registry = Registry::new(instance("a"), NodeTimeouts::DEFAULT);
    let mut follower = Follower::start(registry.clone(), Arc::clone(shelf) as SourceHandle);
    follower.loaded().await;
    (registry, follower)
}

fn far(name: &str) -> Record {
    record(name).held_by("b")
}

fn used(registry: &Registry, name: &str) -> Option<u32> {
    registry.get(&node(name)).map(|record| record.status.used)
}

/// Comes back when this is so; it must be within so long.
async fn within(limit: Duration, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < end, "it is not so within {limit:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

const SECOND: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(200);

#[tokio::test(start_paused = true)]
async fn nodes_are_loaded_and_then_followed() {
    let shelf = Shelf::new((0..250).map(|n| far(&format!("n{n}"))));
    let (registry, follower) = following(&shelf).await;
    assert_eq!((registry.count(), registry.list(None, 1_000).len()), (250, 250), "it can be selected from");
    shelf.update(&far("n7").at(1, 2).used(3));
    within(SOON, || used(&registry, "n7") == Some(3)).await;
    let newcomer = far("new").at(2, 9);
    shelf.keep(newcomer.clone());
    shelf.update(&newcomer);
    within(SOON, || registry.list(None, 1_000).len() == 251).await;
    let left = NodeUpdate { state: None, ..NodeUpdate::of(&newcomer) };
    shelf.event(Event::Message(node_update::write(&[left]).into()));
    within(SOON, || registry.get(&node("new")).is_none()).await;
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn it_listens_before_it_loads() {
    let shelf = Shelf::new([far("n")]);
    let loading = shelf.loading.lock().await;
    let registry = Registry::new(instance("a"), NodeTimeouts::DEFAULT);
    let mut follower = Follower::start(registry.clone(), Arc::clone(&shelf) as SourceHandle);
    within(SOON, || shelf.events.receiver_count() > 0).await;
    shelf.lose("n");
    let left = NodeUpdate { state: None, ..NodeUpdate::of(&far("n")) };
    shelf.event(Event::Message(node_update::write(&[left]).into()));
    shelf.keep(far("m"));
    shelf.update(&far("m"));
    tokio::time::sleep(SOON).await;
    drop(loading);
    follower.loaded().await;
    within(SOON, || registry.get(&node("m")).is_some() && registry.get(&node("n")).is_none()).await;
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_interrupts_it_for_a_moment_after_which_all_is_read_again() {
    let shelf = Shelf::new([far("n")]);
    let (registry, follower) = following(&shelf).await;
    shelf.do_looks_panic.store(true, SeqCst);
    within(SECOND * 2, || !shelf.do_looks_panic.load(SeqCst)).await;
    shelf.keep(far("m"));
    within(SECOND * 2, || registry.get(&node("m")).is_some()).await;
    shelf.update(&far("n").at(1, 2).used(3));
    within(SOON, || used(&registry, "n") == Some(3)).await;
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_missed_notices_loads_anew() {
    let shelf = Shelf::new([far("n")]);
    let (registry, follower) = following(&shelf).await;
    let unreadable = Event::Message(b"?".as_slice().into());
    for (round, event) in [Event::Lagged { missed: 3 }, Event::Resumed, unreadable].into_iter().enumerate() {
        let version = 10 * (round as u64 + 1);
        // It was heard of just now, so nobody compares its version.
        shelf.update(&far("n").at(1, version));
        within(SOON, || registry.get(&node("n")).is_some_and(|n| n.stamp.version.get() == version)).await;
        shelf.keep(far("n").at(1, version + 1).used(2));
        shelf.event(event);
        within(SOON, || registry.get(&node("n")).is_some_and(|n| n.stamp.version.get() > version)).await;
    }
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_told_is_found_by_comparing_versions() {
    let shelf = Shelf::new([far("n")]);
    let (registry, follower) = following(&shelf).await;
    shelf.keep(far("n").at(1, 2).used(3));
    shelf.keep(far("m"));
    within(SECOND * 4, || used(&registry, "n") == Some(3) && used(&registry, "m") == Some(0)).await;
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_or_told_is_tried_again() {
    let shelf = Shelf::new([far("n")]);
    let (registry, follower) = following(&shelf).await;
    shelf.is_broken.store(true, SeqCst);
    shelf.keep(far("m"));
    shelf.update(&far("m"));
    for n in 0..450 {
        registry.recorded(record(&format!("own{n}")), Instant::now().into_std());
    }
    tokio::time::sleep(SECOND).await;
    assert!(registry.get(&node("m")).is_none() && shelf.sent.lock().is_empty());
    shelf.is_broken.store(false, SeqCst);
    within(SECOND * 4, || registry.get(&node("m")).is_some()).await;
    let sent = || shelf.sent.lock().iter().map(Vec::len).collect::<Vec<_>>();
    within(SECOND * 4, || sent().iter().sum::<usize>() == 450).await;
    assert!(sent().iter().all(|updates| *updates <= NODE_UPDATES_MAX), "{:?}", sent());
    within(SECOND * 4, || shelf.list.lock().len() == 450).await;
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_list_of_own_nodes_follows_them_and_is_written_again_when_it_was_lost() {
    let shelf = Shelf::new([far("other")]);
    shelf.list.lock().insert(node("stale"), Version::new(1));
    let (registry, follower) = following(&shelf).await;
    let names = |of: &[(&str, u64)]| {
        let of = of.iter().map(|(name, version)| (node(name), Version::new(*version)));
        let of = of.collect::<HashMap<_, _>>();
        let list = Arc::clone(&shelf);
        move || *list.list.lock() == of
    };
    let now = || Instant::now().into_std();
    registry.recorded(record("n").at(1, 1), now());
    registry.recorded(record("m").at(1, 1), now());
    within(SECOND * 3, names(&[("n", 1), ("m", 1)])).await;
    registry.recorded(record("n").at(1, 2), now());
    registry.left(&node("m"), bus::Epoch::new(1), now());
    within(SECOND * 3, names(&[("n", 2)])).await;
    registry.recorded(record("k").at(1, 9), now());
    shelf.lists_lost.store(true, SeqCst);
    within(SECOND * 4, names(&[("n", 2), ("k", 9)])).await;
    follower.stop().await;
    assert!(shelf.list.lock().is_empty(), "it is taken away");
}

#[tokio::test(start_paused = true)]
async fn only_instances_that_show_themselves_are_asked_and_get_work() {
    let shelf = Shelf::new([far("n")]);
    *shelf.live.lock() = ["a", "b", "c"].map(instance).to_vec();
    *shelf.shown.lock() = ["a", "b", "unknown"].map(instance).into();
    let (registry, follower) = following(&shelf).await;
    assert_eq!(*shelf.asked.lock(), [instance("b")]);
    // It is heard of all the time.
    let beats = async |seconds: u32| {
        for _ in 0..seconds * 2 {
            shelf.update(&far("n"));
            tokio::time::sleep(SECOND / 2).await;
        }
    };
    let is_chosen = || select_far(&registry).is_some();
    let show = |name: &str| shelf.shown.lock().insert(instance(name));
    shelf.shown.lock().clear();
    beats(10).await;
    assert!(is_chosen(), "the bus has lost its memory: it shows nobody");
    show("a");
    beats(1).await;
    assert!(is_chosen(), "it may be about to show itself");
    beats(2).await;
    assert!(!is_chosen() && !registry.is_there(&instance("b")));
    show("b");
    beats(1).await;
    assert!(is_chosen());
    // The ledger was read some time ago: who holds nodes is looked for all the same.
    shelf.live.lock().clear();
    beats(5).await;
    assert!(is_chosen());
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn while_nothing_is_heard_versions_are_compared_all_the_same() {
    let shelf = Shelf::new([far("n")]);
    let (registry, follower) = following(&shelf).await;
    shelf.link.send_replace(Link::Down { since: Instant::now().into_std() });
    shelf.keep(far("n").at(1, 2).used(3));
    shelf.keep(far("m"));
    within(SECOND * 4, || used(&registry, "n") == Some(3) && used(&registry, "m") == Some(0)).await;
    assert!(select_far(&registry).is_some(), "others' nodes can be reached");
    tokio::time::sleep(SECOND * 60).await;
    assert_eq!(registry.count(), 2, "silence is no evidence");
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_full_is_soon_looked_at_again() {
    let shelf = Shelf::new([far("n").capacity(1)]);
    let (registry, follower) = following(&shelf).await;
    let needs = Requirements::default();
    let mut rng = seeded();
    registry.select(&Wanted::new(&needs), &mut rng).unwrap().found_full();
    assert!(select_far(&registry).is_none());
    within(SECOND / 2, || select_far(&registry).is_some()).await;
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_clean_stop_tells_what_is_left_to_tell() {
    let shelf = Shelf::new([]);
    let (registry, follower) = following(&shelf).await;
    registry.recorded(record("own"), Instant::now().into_std());
    follower.stop().await;
    assert_eq!(*shelf.sent.lock(), [[NodeUpdate::of(&record("own"))]]);
}

#[tokio::test(start_paused = true)]
async fn a_clean_stop_tells_also_what_was_being_told() {
    let shelf = Shelf::new([]);
    let (registry, follower) = following(&shelf).await;
    shelf.is_stuck.store(true, SeqCst);
    registry.recorded(record("own"), Instant::now().into_std());
    within(SECOND, || !shelf.is_stuck.load(SeqCst)).await;
    assert!(shelf.sent.lock().is_empty());
    follower.stop().await;
    assert_eq!(*shelf.sent.lock(), [[NodeUpdate::of(&record("own"))]]);
}

#[tokio::test(start_paused = true)]
async fn what_was_to_be_told_when_a_panic_came_is_told_after_it() {
    let shelf = Shelf::new([]);
    let (registry, follower) = following(&shelf).await;
    registry.recorded(record("own"), Instant::now().into_std());
    // The follower wakes, and gathers more until the clock goes on.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    shelf.do_looks_panic.store(true, SeqCst);
    shelf.event(Event::Resumed);
    within(SECOND * 4, || !shelf.sent.lock().is_empty()).await;
    assert!(!shelf.do_looks_panic.load(SeqCst), "it was interrupted");
    assert_eq!(*shelf.sent.lock(), [[NodeUpdate::of(&record("own"))]]);
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_is_lost_only_after_the_own_link_was_well_for_long() {
    let shelf = Shelf::new([far("n"), far("m")]);
    let (registry, follower) = following(&shelf).await;
    let mut departures = registry.departures();
    shelf.lose("n");
    shelf.set_link(false);
    within(SOON, || select_far(&registry).is_none()).await;
    tokio::time::sleep(SECOND * 120).await;
    assert_eq!((registry.count(), departures.try_recv().ok()), (2, None), "its own link was down");
    shelf.set_link(true);
    let offline = NodeTimeouts::DEFAULT.offline;
    for beat in 0..14 {
        shelf.keep(far("m").at(1, 10 + beat));
        tokio::time::sleep(offline / 15).await;
    }
    assert_eq!((registry.count(), departures.try_recv().ok()), (2, None), "it is not up for long enough");
    for beat in 0..3 {
        shelf.keep(far("m").at(1, 100 + beat));
        tokio::time::sleep(offline / 15).await;
    }
    let departure = departures.try_recv().unwrap();
    assert_eq!((departure.node, departure.how), (node("n"), Ended::Lost));
    assert_eq!((registry.count(), departures.try_recv().ok()), (1, None), "the other one is there");
    shelf.is_apart.store(true, SeqCst);
    shelf.lose("m");
    within(offline * 2, || registry.count() == 0).await;
    assert_eq!(departures.try_recv().unwrap().how, Ended::Unseen, "it may be where this bus does not reach");
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_registry_is_loaded_when_all_is_read_and_nothing_was_missed_since() {
    let shelf = Shelf::new([far("n")]);
    let (registry, follower) = following(&shelf).await;
    within(SOON, || registry.is_loaded()).await;
    // What comes when the link is up again cannot be read at once.
    shelf.is_broken.store(true, SeqCst);
    shelf.event(Event::Resumed);
    within(SOON, || !registry.is_loaded()).await;
    tokio::time::sleep(SECOND * 60).await;
    assert!(!registry.is_loaded());
    shelf.is_broken.store(false, SeqCst);
    within(SECOND * 10, || registry.is_loaded()).await;
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_keeps_no_other_from_being_read_and_proves_nothing() {
    let shelf = Shelf::new((0..250).map(|n| far(&format!("n{n}"))));
    shelf.unreadable.lock().insert(node("n7"));
    let registry = Registry::new(instance("a"), NodeTimeouts::DEFAULT);
    let follower = Follower::start(registry.clone(), Arc::clone(&shelf) as SourceHandle);
    within(SOON, || registry.count() == 249 && registry.is_loaded()).await;
    assert!(!registry.is_nowhere(&node("n7")), "it may be there");
    assert!(registry.is_nowhere(&node("nobody")) && !registry.is_nowhere(&node("n8")));
    within(SECOND * 4, || registry.lacks_records()).await;
    // The others are followed and compared as ever.
    shelf.keep(far("n8").at(1, 2).used(3));
    shelf.keep(far("new"));
    within(SECOND * 4, || used(&registry, "n8") == Some(3) && used(&registry, "new") == Some(0)).await;
    tokio::time::sleep(SECOND * 60).await;
    assert!(registry.lacks_records() && !registry.is_nowhere(&node("n7")));
    shelf.unreadable.lock().clear();
    within(SECOND * 4, || used(&registry, "n7") == Some(0) && !registry.lacks_records()).await;
    // Nor is one missed that its holder lists no more.
    shelf.unreadable.lock().insert(node("gone"));
    shelf.keep(far("gone"));
    within(SECOND * 4, || registry.lacks_records()).await;
    shelf.lose("gone");
    within(SECOND * 4, || !registry.lacks_records() && registry.is_nowhere(&node("gone"))).await;
    follower.stop().await;
}

fn select_far(registry: &Registry) -> Option<NodeId> {
    let needs = Requirements::default();
    registry.select(&Wanted::new(&needs), &mut rand::rng()).map(|choice| choice.node().clone())
}

fn presence(name: &str) -> bus::Presence {
    bus::Presence {
        instance: instance(name),
        started_at: domain::Timestamp::from_micros(0),
        hostname: "host".to_owned(),
        pid: 1,
        version: "0".to_owned(),
        address: "http://127.0.0.1".to_owned(),
    }
}

#[tokio::test]
async fn two_instances_on_one_bus_know_each_others_nodes() {
    const LIMIT: Duration = Duration::from_secs(20);
    let hub = bus::Hub::default();
    let join = |name: &str| {
        let registry = Registry::new(instance(name), NodeTimeouts::DEFAULT);
        let bus = hub.join();
        let instances = || ["a", "b", "c"].map(instance).to_vec();
        let source = BusSource::new(Arc::clone(&bus), &registry, instances, |_| false, Hearing::default);
        let follower = Follower::start(registry.clone(), Arc::new(source));
        (registry, bus, follower)
    };
    let announcer = hub.join();
    for name in ["a", "b", "c"] {
        announcer.announce(&presence(name), Duration::from_secs(600)).await.unwrap();
    }
    let (holder, bus, mut follower) = join("a");
    let (other, _bus, mut other_follower) = join("b");
    follower.loaded().await;
    other_follower.loaded().await;

    let mut own = record("n").labelled(&["asr:zh"]);
    let (id, me, report) = (node("n"), instance("a"), own.report(&NodeTimeouts::DEFAULT, false));
    let floor = holder.epoch_floor(&id);
    let new =
        bus::NewConnection { holder: &me, principal: "", age: Duration::ZERO, over: None, had: None, floor };
    let connected = bus.connect_node(&id, &new, &report, &[]).await.unwrap().done().unwrap();
    own.stamp.epoch = connected.epoch;
    let bus::Written::Done(version) = bus.complete_node(&id, connected.epoch, &[]).await.unwrap() else {
        panic!("the connection is the newest");
    };
    own.stamp.version = version;
    holder.recorded(own.clone(), std::time::Instant::now());
    within(LIMIT, || select_far(&other) == Some(id.clone())).await;
    assert_eq!(other.get(&id), Some(own.clone()));

    own.status.state = bus::NodeState::Draining;
    let written = bus
        .refresh_node(&id, connected.epoch, &own.report(&NodeTimeouts::DEFAULT, false), &[])
        .await
        .unwrap();
    let bus::Written::Done(version) = written else { panic!("the connection is the newest") };
    own.stamp.version = version;
    holder.recorded(own.clone(), std::time::Instant::now());
    within(LIMIT, || other.get(&id).as_ref() == Some(&own)).await;
    assert_eq!(select_far(&other), None);

    let (third, _third_bus, mut third_follower) = join("c");
    third_follower.loaded().await;
    // The next heartbeat.
    holder.recorded(own.clone(), std::time::Instant::now());
    within(LIMIT, || third.get(&id).as_ref() == Some(&own)).await;

    bus.disconnect_node(&id, connected.epoch, NodeTimeouts::DEFAULT.offline).await.unwrap();
    holder.left(&id, connected.epoch, std::time::Instant::now());
    within(LIMIT, || [&holder, &other, &third].iter().all(|registry| registry.count() == 0)).await;
    for follower in [follower, other_follower, third_follower] {
        follower.stop().await;
    }
}

#[tokio::test]
async fn an_instance_that_has_ended_by_the_ledger_is_not_there_though_it_shows_itself() {
    let bus = bus::Hub::default().join();
    let registry = Registry::new(instance("a"), NodeTimeouts::DEFAULT);
    // An instance that lost its own lease still knows that the bus has kept its memory.
    let has_ended = |id: &InstanceId| *id != instance("b");
    let source = BusSource::new(Arc::clone(&bus), &registry, Vec::new, has_ended, Hearing::default);
    let names = ["a", "b", "c"];
    for name in names {
        bus.announce(&presence(name), Duration::from_secs(600)).await.unwrap();
    }
    let there = source.present(&names.map(instance)).await.unwrap();
    assert_eq!(there, HashSet::from(["a", "b"].map(instance)));
}
