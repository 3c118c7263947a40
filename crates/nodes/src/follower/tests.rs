//! Tests of the follower: over a bus that can be made to fail, by a paused clock; and over a whole one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use domain::job::Needs;
use tokio::sync::broadcast;

use super::*;
use crate::fixture::*;
use crate::limits::OFFLINE_MS;
use crate::pulse::Pulse;
use crate::record::Record;
use crate::registry::Ended;
use crate::select::Wanted;
use crate::source::Source;

/// A bus in memory that does what a test wants.
struct Shelf {
    records: Mutex<BTreeMap<NodeId, (Record, Instant)>>,
    events: broadcast::Sender<Event>,
    link: watch::Sender<Link>,
    is_broken: AtomicBool,
    /// While a test holds it, nobody is said to be online.
    loading: tokio::sync::Mutex<()>,
    told: Mutex<Vec<Vec<Pulse>>>,
    listed: Mutex<Vec<NodeId>>,
}

impl Shelf {
    fn new(records: impl IntoIterator<Item = Record>) -> Arc<Self> {
        let shelf = Self {
            records: Mutex::default(),
            events: broadcast::channel(64).0,
            link: watch::Sender::new(Link::Up { since: Instant::now().into_std() }),
            is_broken: AtomicBool::new(false),
            loading: tokio::sync::Mutex::default(),
            told: Mutex::default(),
            listed: Mutex::default(),
        };
        for record in records {
            shelf.keep(record);
        }
        Arc::new(shelf)
    }

    /// Keeps a record and tells nobody.
    fn keep(&self, record: Record) {
        self.records.lock().unwrap().insert(record.profile.node.clone(), (record, Instant::now()));
    }

    fn lose(&self, name: &str) {
        self.records.lock().unwrap().remove(&node(name));
    }

    fn event(&self, event: Event) {
        self.events.send(event).unwrap();
    }

    fn pulse(&self, record: &Record) {
        self.event(Event::Message(pulse::write(&[Pulse::of(record)]).into()));
    }

    fn set_link(&self, is_up: bool) {
        let since = Instant::now().into_std();
        self.link.send_replace(if is_up { Link::Up { since } } else { Link::Down { since } });
        self.is_broken.store(!is_up, SeqCst);
    }

    fn check(&self) -> bus::Result<()> {
        if self.is_broken.load(SeqCst) {
            return Err(bus::Error::Unavailable { source: Arc::new(std::io::Error::other("broken")) });
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl Source for Shelf {
    fn listen(&self) -> Box<dyn Notices> {
        Box::new(self.events.subscribe())
    }

    async fn tell(&self, notice: &[u8]) -> bus::Result<()> {
        self.check()?;
        self.told.lock().unwrap().push(pulse::read(notice).unwrap());
        Ok(())
    }

    async fn list(&self, nodes: &[NodeId]) -> bus::Result<()> {
        self.check()?;
        self.listed.lock().unwrap().extend_from_slice(nodes);
        Ok(())
    }

    async fn online(&self) -> bus::Result<Vec<NodeId>> {
        self.check()?;
        let _loading = self.loading.lock().await;
        Ok(self.records.lock().unwrap().keys().cloned().collect())
    }

    async fn read(&self, nodes: &[NodeId]) -> bus::Result<Vec<Kept>> {
        self.check()?;
        assert!(nodes.len() <= RECORDS_READ_MAX);
        let records = self.records.lock().unwrap();
        let kept = |node: &NodeId| match records.get(node) {
            Some((record, at)) => Kept::Online { record: record.clone(), age: at.elapsed() },
            None => Kept::Absent,
        };
        Ok(nodes.iter().map(kept).collect())
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
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
    let registry = Registry::new(instance("a"));
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
    shelf.pulse(&far("n7").at(1, 2).used(3));
    within(SOON, || used(&registry, "n7") == Some(3)).await;
    let newcomer = far("new").at(2, 9);
    shelf.keep(newcomer.clone());
    shelf.pulse(&newcomer);
    within(SOON, || registry.list(None, 1_000).len() == 251).await;
    let left = Pulse { state: None, ..Pulse::of(&newcomer) };
    shelf.event(Event::Message(pulse::write(&[left]).into()));
    within(SOON, || registry.get(&node("new")).is_none()).await;
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn it_listens_before_it_loads() {
    let shelf = Shelf::new([far("n")]);
    let loading = shelf.loading.lock().await;
    let registry = Registry::new(instance("a"));
    let mut follower = Follower::start(registry.clone(), Arc::clone(&shelf) as SourceHandle);
    within(SOON, || shelf.events.receiver_count() > 0).await;
    shelf.lose("n");
    let left = Pulse { state: None, ..Pulse::of(&far("n")) };
    shelf.event(Event::Message(pulse::write(&[left]).into()));
    shelf.keep(far("m"));
    shelf.pulse(&far("m"));
    tokio::time::sleep(SOON).await;
    drop(loading);
    follower.loaded().await;
    within(SOON, || registry.get(&node("m")).is_some() && registry.get(&node("n")).is_none()).await;
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
        shelf.pulse(&far("n").at(1, version));
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
    shelf.pulse(&far("m"));
    for n in 0..450 {
        registry.recorded(record(&format!("own{n}")), Instant::now().into_std());
    }
    tokio::time::sleep(SECOND).await;
    assert!(registry.get(&node("m")).is_none() && shelf.told.lock().unwrap().is_empty());
    shelf.is_broken.store(false, SeqCst);
    within(SECOND * 4, || registry.get(&node("m")).is_some()).await;
    let told = || shelf.told.lock().unwrap().iter().map(Vec::len).collect::<Vec<_>>();
    within(SECOND * 4, || told().iter().sum::<usize>() == 450).await;
    assert!(told().iter().all(|pulses| *pulses <= PULSES_MAX), "{:?}", told());
    within(SECOND * 15, || shelf.listed.lock().unwrap().len() == 450).await;
    follower.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_clean_stop_tells_what_is_left_to_tell() {
    let shelf = Shelf::new([]);
    let (registry, follower) = following(&shelf).await;
    registry.recorded(record("own"), Instant::now().into_std());
    follower.stop().await;
    assert_eq!(*shelf.told.lock().unwrap(), [[Pulse::of(&record("own"))]]);
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
    let offline = Duration::from_millis(OFFLINE_MS);
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
    follower.stop().await;
}

fn select_far(registry: &Registry) -> Option<NodeId> {
    let needs = Needs::default();
    registry.select(&Wanted::new(&needs), &mut rand::rng()).map(|choice| choice.node().clone())
}

#[tokio::test]
async fn two_instances_on_one_bus_know_each_others_nodes() {
    const LIMIT: Duration = Duration::from_secs(20);
    let hub = bus::Hub::default();
    let join = |name: &str| {
        let registry = Registry::new(instance(name));
        let bus = hub.join();
        let follower = Follower::start(registry.clone(), Arc::new(Arc::clone(&bus)));
        (registry, bus, follower)
    };
    let (holder, bus, mut follower) = join("a");
    let (other, _bus, mut other_follower) = join("b");
    follower.loaded().await;
    other_follower.loaded().await;

    let mut own = record("n").labelled(&["asr:zh"]);
    let (id, me, report) = (node("n"), instance("a"), own.report());
    let connected = bus.connect_node(&id, &me, &report, &[], Duration::ZERO).await.unwrap().unwrap();
    own.stamp.epoch = connected.epoch;
    let bus::Written::Done(version) = bus.complete_node(&id, connected.epoch, &[]).await.unwrap() else {
        panic!("the connection is the newest");
    };
    own.stamp.version = version;
    holder.recorded(own.clone(), std::time::Instant::now());
    within(LIMIT, || select_far(&other) == Some(id.clone())).await;
    assert_eq!(other.get(&id), Some(own.clone()));

    own.status.state = bus::NodeState::Draining;
    let written = bus.refresh_node(&id, connected.epoch, &own.report(), &[]).await.unwrap();
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

    bus.disconnect_node(&id, connected.epoch).await.unwrap();
    holder.left(&id, connected.epoch, std::time::Instant::now());
    within(LIMIT, || [&holder, &other, &third].iter().all(|registry| registry.count() == 0)).await;
    for follower in [follower, other_follower, third_follower] {
        follower.stop().await;
    }
}
