//! What is concluded about an attempt that has no slot, and what becomes of slots that are given back.

use bus::{Connected, NewConnection, NodeState, Report, Version};
use cluster::ClusterView;
use domain::job::{Ended, LiveJob, PastAttempt};
use domain::{Label, NodeTimeouts, Resource, Timestamp};
use futures_util::FutureExt;
use ledger::{JobRecord, Lease, Peer};
use nodes::attached::{AttachedNode, Event, Known, Moment, Registering};
use nodes::connection::{FromNode, Hello};
use panic_guard::guarded;

use super::*;
use crate::jobs::fixture::{
    FIRST, KnownOwners, Ledger, instance, job, lane, node, node_record, reach_in, serve, slot, spec, view,
};
use crate::jobs::inter_instance::InterInstance;
use crate::jobs::messages::Directory;
use crate::jobs::older_attempts;
use crate::jobs::progress_store::ProgressStore;

const RESERVATION: Duration = NodeTimeouts::DEFAULT.reservation;
/// After so many yields every task of a test has come to where it waits.
const YIELDS: usize = 100;

/// Instance `a`, and the bus that keeps the record of node `n`.
struct Here {
    scheduler: Arc<Scheduler>,
    gateway: Arc<NodeGateway>,
    bus: bus::Handle,
    view: ClusterView,
    epoch: bus::Epoch,
    ledger: Ledger,
}

async fn here() -> Here {
    here_with(NodeTimeouts::DEFAULT).await
}

async fn here_with(timeouts: NodeTimeouts) -> Here {
    let (ledger, bus, lanes) =
        (Ledger::open().await, bus::Hub::default().join(), Arc::<Directory>::default());
    let sends = InterInstance::start(instance("a"), bus.clone(), false, lanes, Arc::<KnownOwners>::default());
    let registry = Registry::new(instance("a"), timeouts);
    let store = Arc::<ProgressStore>::default();
    let gateway = NodeGateway::new(ledger.handle.clone(), registry.clone(), sends, store);
    let view = view();
    let reach = reach_in(&bus, view.clone());
    let scheduler = Arc::new(Scheduler::new(registry, bus.clone(), Arc::clone(&gateway), reach));
    let epoch = connect(&bus, "b").await;
    Here { scheduler, gateway, bus, view, epoch, ledger }
}

/// Node `n` connects to an instance, to which its slots are lent.
async fn connect(bus: &bus::Handle, holder: &str) -> bus::Epoch {
    let (holder, floor) = (instance(holder), bus::Epoch::new(0));
    let new =
        NewConnection { holder: &holder, principal: "", age: Duration::ZERO, over: None, had: None, floor };
    let connected = bus.connect_node(&node("n"), &new, &report(true), &[]).await;
    let epoch = connected.unwrap().done().unwrap().epoch;
    bus.complete_node(&node("n"), epoch, &[]).await.unwrap();
    epoch
}

/// An instance whose lease is its own, and has so long to run.
fn peer(name: &str, expires_in_ms: u64) -> Peer {
    let (id, at) = (instance(name), Timestamp::from_micros(0));
    let lease = Lease {
        resource: Resource::instance(&id),
        owner: Some(id.clone()),
        token: Token::new(1),
        acquired_at: at,
        renewed_at: at,
        expires_in_ms,
    };
    Peer { url: format!("http://{name}"), id, lease, age_ms: 60_000 }
}

fn report(is_lent: bool) -> Report {
    let long = Duration::from_secs(60);
    let vouched = (!is_lent).then_some(long);
    Report { capacity: 3, state: NodeState::Accepting, document: b"{}"[..].into(), ttl: long, vouched }
}

fn claim(number: u128) -> Claim {
    Claim { slot: slot(number), token: Token::new(1) }
}

impl Here {
    /// A job of instance `a`'s lane waits, which needs nothing but perhaps this label.
    fn enqueue(&self, handle: &LaneHandle, number: u128, requires: Option<&str>, priority: i64) {
        let (own, mut asked) = (lane("instance:a"), spec());
        asked.needs = needs(requires);
        asked.priority = Priority::new(priority).unwrap();
        let job = Arc::new(LiveJob::created(job(number), own.clone(), asked));
        let (token, since) = (Token::new(1), Instant::now());
        let (avoid, prefer, is_back) = (None, None, false);
        let enqueue = Enqueue { job, attempt: FIRST, token, avoid, prefer, since, is_back };
        self.scheduler.enqueue(handle, &own, enqueue);
    }

    /// The job of instance `a`'s lane that gets the slot which another one leaves on this node.
    fn passed_on(&self, name: &str) -> Option<JobId> {
        let offers = vec![(job(500_000), node(name))];
        let search = SlotSearch { offers, has_more_outside: false, requests: Vec::new() };
        let (found, _) = self.scheduler.pass_on(&instance("a"), &lane("instance:a"), search, false);
        found.passed.first().map(|(job, ..)| *job)
    }

    /// A node of instance `a` with this label and one slot, of which so many are used.
    fn has_node(&self, name: &str, label: &str, used: u32) {
        let mut record = node_record(name, "a", self.epoch, used);
        Arc::make_mut(&mut record.profile).labels = [Label::parse(label).unwrap()].into();
        self.scheduler.registry.recorded(record, Instant::now());
        self.scheduler.registry.reindex();
    }

    async fn lists(&self, is_lent: bool, taken: &[Slot]) {
        self.bus.recount_node(&node("n"), self.epoch, &report(is_lent), taken).await.unwrap();
    }

    /// Whether attempts 1 and 2, known for so long, are taken for lost.
    async fn missing(&self, known_for: Duration) -> Vec<bool> {
        let since = Instant::now().checked_sub(known_for).unwrap();
        self.scheduler
            .missing(&node("n"), &[(job(1), FIRST, since), (job(2), FIRST, since)], Sender::Anybody)
            .await
    }
}

fn needs(requires: Option<&str>) -> Requirements {
    let requires = requires.iter().map(|label| Label::parse(label).unwrap()).collect();
    Requirements { requires, ..Requirements::default() }
}

/// A node that is connected here and whose slots are lent.
fn lent_here() -> AttachedNode {
    let now = Instant::now();
    let mut attached = AttachedNode::opened(instance("a"), NodeTimeouts::DEFAULT, now);
    let moment = Moment { now, bus_up_since: Some(now) };
    let hello = Hello {
        node: node("n"),
        capacity: 2,
        takes_batches: true,
        labels: Arc::from([]),
        services: Arc::from([]),
        pools: None,
        software: None,
        is_drained: false,
        principal: "".into(),
        running: vec![],
    };
    attached.apply(Event::Frames(vec![FromNode::Hello(hello)]), moment);
    let connected = Connected { epoch: bus::Epoch::new(7), version: Version::new(7), is_complete: true };
    let known = Ok(Registering::Done(Known { connected, taken: vec![], unlisted: vec![] }));
    attached.apply(Event::Registered { known, is_lent: true, provisional: bus::Epoch::new(1) }, moment);
    attached
}

#[tokio::test]
async fn a_scheduler_that_waits_for_jobs_ends_with_its_last_handle() {
    let here = here().await;
    let registry = here.scheduler.registry.clone();
    let mut openings = registry.openings();
    let (known, woken) = (Arc::downgrade(&here.scheduler), Arc::downgrade(&here.scheduler.queued));
    let others_take_turns = async || {
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
    };
    openings.mark_unchanged();
    here.scheduler.start(&Handle::current());
    others_take_turns().await;
    assert_eq!(woken.strong_count(), 3, "its task waits: the queue is empty");
    drop(here.scheduler);
    assert!(known.upgrade().is_none(), "the task does not hold it meanwhile");
    others_take_turns().await;
    assert_eq!(woken.strong_count(), 0, "the task has ended");
    assert!(!openings.has_changed().unwrap(), "nothing else woke it");
}

#[tokio::test]
async fn a_node_that_nobody_knows_is_gone_only_if_all_nodes_are_known_and_have_been_for_long() {
    let here = here_with(NodeTimeouts { offline: Duration::ZERO, ..NodeTimeouts::DEFAULT }).await;
    let is_gone = || here.scheduler.is_surely_gone(&node("n"));
    assert!(!is_gone(), "the nodes of the bus were not loaded yet");
    here.scheduler.registry.loaded(true);
    assert!(is_gone());
    assert!(!here.scheduler.is_out_of_sight(&node("n"), Duration::ZERO), "all instances are on this bus");
    here.bus.close().await;
    assert!(!is_gone(), "nothing is heard");
    let patient = self::here().await;
    patient.scheduler.registry.loaded(true);
    assert!(!patient.scheduler.is_surely_gone(&node("n")), "it has not been listened to for long");
}

#[tokio::test]
async fn a_node_that_connects_again_is_not_gone_before_its_newer_connection_would_have_been_heard_of() {
    let offline = Duration::from_secs(1);
    let here = here_with(NodeTimeouts { offline, ..NodeTimeouts::DEFAULT }).await;
    let is_gone = || here.scheduler.is_surely_gone(&node("n"));
    here.scheduler.registry.loaded(true);
    tokio::time::sleep(offline).await;
    assert!(is_gone());
    let replaced = Instant::now();
    here.scheduler.registry.replaced(&node("n"), bus::Epoch::new(7), replaced);
    assert!(!is_gone() || replaced.elapsed() >= offline);
    tokio::time::sleep(offline).await;
    assert!(is_gone());
}

#[tokio::test]
async fn a_node_may_be_where_it_was_until_that_instance_has_ended_or_it_is_seen_at_another() {
    let here = here().await;
    let may_be = |holder| {
        let placed = Assignment { node: node("n"), holder: instance(holder) };
        here.scheduler.may_be_connected(&placed)
    };
    assert!(may_be("a"), "that nothing is heard of it says nothing");
    assert!(!may_be("b"), "nobody knows that instance any more");
    let (registry, now) = (&here.scheduler.registry, Instant::now());
    registry.apply(node_record("n", "a", here.epoch, 0), now, now);
    assert!(may_be("a") && !may_be("b"));
    registry.apply(node_record("n", "b", registry.next_epoch(&node("n")), 0), now, now);
    assert!(!may_be("a"), "it has connected elsewhere since");
}

/// No reservation is waited for: what the other instance lists is all that there is.
#[tokio::test]
async fn a_cancelled_attempt_is_over_soon_if_its_instance_has_ended_and_its_node_has_connected_to_another() {
    let mut here = here().await;
    here.ledger.dispatch_all("b", &[1], "n", "b").await;
    let mut record = here.ledger.handle.job(job(1)).await.unwrap().unwrap();
    let (ended, reason, at) = (Ended::Cancelled, "cancelled".to_owned(), Timestamp::from_micros(0));
    record.attempts = vec![PastAttempt { attempt: FIRST, node: node("n"), ended, reason, at }];
    let since = Instant::now().checked_sub(RESERVATION / 2).unwrap();
    let scheduler = Arc::clone(&here.scheduler);
    let is_over = async |record: &JobRecord| older_attempts::are_over(&scheduler, record, since).await;
    here.lists(true, &[]).await;
    assert!(!is_over(&record).await, "the list is by the instance that has ended");
    let now = Instant::now();
    scheduler.registry.apply(node_record("n", "a", here.epoch, 0), now, now);
    assert!(!is_over(&record).await, "so it is though the node was seen at another one");
    here.epoch = connect(&here.bus, "a").await;
    here.lists(true, &[]).await;
    assert!(is_over(&record).await);
    for left_ms in [1_000, 0] {
        here.view.saw(vec![peer("a", 1_000), peer("b", left_ms)]);
        assert!(!is_over(&record).await, "its instance, with {left_ms} ms of its lease, may not have ended");
    }
    let mut left = peer("b", 0);
    left.lease.owner = None;
    here.view.saw(vec![peer("a", 1_000), left]);
    assert!(is_over(&record).await);
    here.lists(true, &[slot(1)]).await;
    assert!(!is_over(&record).await, "its node has it");
    here.lists(true, &[]).await;
    record.placed = Some(Assignment { node: node("n"), holder: instance("a") });
    assert!(!is_over(&record).await, "its dispatch may still come");
}

#[tokio::test]
async fn a_list_of_lent_slots_says_nothing_of_attempts_that_it_may_not_know_yet() {
    let here = here().await;
    assert_eq!(here.missing(RESERVATION * 9).await, [false; 2], "nothing was listed");
    here.lists(true, &[slot(1)]).await;
    assert_eq!(
        here.missing(RESERVATION).await,
        [false; 2],
        "its dispatch may still have come after the list"
    );
    assert_eq!(here.missing(RESERVATION * 2).await, [false, true]);
    // A list by which the bus gives the slots knows all, but for what a Redis may have lost that came back with an older state.
    here.lists(false, &[slot(1)]).await;
    let vouched = here.scheduler.registry.timeouts().vouched;
    assert_eq!(here.missing(vouched).await, [false; 2]);
    assert_eq!(here.missing(vouched * 2).await, [false, true]);
    here.bus.disconnect_node(&node("n"), here.epoch, Duration::from_secs(9)).await.unwrap();
    assert_eq!(here.missing(RESERVATION * 9).await, [false; 2]);
}

#[tokio::test]
async fn a_reservation_is_gone_when_whoever_gave_it_says_so() {
    let here = here().await;
    let unreserve = async |number| here.scheduler.unreserve(&node("n"), claim(number)).await;
    here.lists(true, &[]).await;
    assert_eq!(unreserve(1).await, None, "its holder, which is another instance, may have given it");
    here.lists(false, &[]).await;
    assert_eq!(unreserve(1).await, Some(Unreserved::Absent));
    here.bus.reserve_slots(&node("n"), &[claim(1)], RESERVATION).await.unwrap();
    assert_eq!(unreserve(1).await, Some(Unreserved::Removed));
    // This instance gives the slots.
    here.lists(true, &[]).await;
    let attached = lent_here();
    let _outbox = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::clone(attached.holder_slots()));
    let all = [Reserved::Yes, Reserved::Yes, Reserved::Full];
    assert_eq!(
        here.gateway.reserve(&node("n"), &instance("a"), &[claim(1), claim(2), claim(3)]),
        Some(all.to_vec())
    );
    assert_eq!(unreserve(1).await, Some(Unreserved::Removed));
    assert_eq!(unreserve(1).await, Some(Unreserved::Absent), "it has it no more, and nobody else gave it");
    assert_eq!(here.gateway.reserve(&node("n"), &instance("a"), &[claim(3)]), Some(vec![Reserved::Yes]));
    assert_eq!(
        here.gateway.reserve(&node("n"), &instance("b"), &[claim(4)]),
        None,
        "it is connected there now"
    );
}

#[tokio::test]
async fn a_slot_is_passed_on_behind_many_jobs_that_its_node_does_not_serve() {
    let here = here().await;
    here.scheduler.registry.recorded(node_record("n", "a", here.epoch, 1), Instant::now());
    here.scheduler.registry.reindex();
    let (lanes, own) = (Directory::default(), lane("instance:a"));
    let _owner = serve(&lanes, "instance:a");
    let handle = lanes.get(&own).unwrap();
    for number in 1..=20 {
        here.enqueue(&handle, number, Some(&format!("none{number}")), 0);
    }
    here.enqueue(&handle, 100, None, 0);
    assert_eq!(here.passed_on("n"), Some(job(100)));
}

#[tokio::test]
async fn a_slot_is_passed_on_however_many_jobs_wait_that_no_node_serves() {
    let here = here().await;
    here.has_node("n", "cpu", 1);
    let lanes = Directory::default();
    let _owner = serve(&lanes, "instance:a");
    let handle = lanes.get(&lane("instance:a")).unwrap();
    for number in 1..=200 {
        here.enqueue(&handle, number, Some(&format!("none{number}")), 0);
    }
    for number in 1_000..1_003 {
        here.enqueue(&handle, number, None, 0);
    }
    here.scheduler.pass().await;
    assert_eq!(here.passed_on("n"), Some(job(1_000)));
    // It serves one of them. Which one is found out bit by bit, be it without a pass.
    here.has_node("m", "none7", 1);
    for _ in 0..200 / CLASSES_PASSED_OVER {
        assert_eq!(here.passed_on("m"), None);
    }
    assert_eq!(here.passed_on("m"), Some(job(7)));
    assert_eq!(here.passed_on("m"), Some(job(1_001)));
}

#[tokio::test]
async fn a_pass_over_very_many_classes_lets_others_have_the_queue_meanwhile() {
    let here = here().await;
    here.has_node("n", "cpu", 1);
    let lanes = Directory::default();
    let _owner = serve(&lanes, "instance:a");
    let handle = lanes.get(&lane("instance:a")).unwrap();
    let many = CLASSES_AT_ONCE as u128;
    here.enqueue(&handle, 1, Some("cpu"), 2);
    for number in 2..=many {
        here.enqueue(&handle, number, Some(&format!("none{number}")), 1);
    }
    here.enqueue(&handle, many + 1, None, 0);
    let mut pass = Box::pin(here.scheduler.pass());
    assert!(pass.as_mut().now_or_never().is_none(), "it is not through");
    assert_eq!(here.passed_on("n"), None, "the pass has asked for the first ones");
    pass.await;
    assert_eq!(here.passed_on("n"), Some(job(1)));
    assert_eq!(here.passed_on("n"), Some(job(many + 1)));
}

#[tokio::test]
async fn a_new_job_leaves_a_slot_to_one_that_waits_with_other_needs_and_at_least_its_priority() {
    let here = here().await;
    here.lists(false, &[]).await;
    here.has_node("n", "gpu", 0);
    let lanes = Directory::default();
    let mut owner = serve(&lanes, "instance:a");
    let handle = lanes.get(&lane("instance:a")).unwrap();
    let gets_slot = async |number| {
        let wanted = PlacementRequest::first(job(number), &spec(), Token::new(1), None);
        let placed = here.scheduler.place_now(vec![wanted]).await;
        here.scheduler.unreserve(&node("n"), claim(number)).await;
        placed.contains_key(&job(number))
    };
    for (number, requires, priority, expected) in
        [(1, "gpu", 1, false), (2, "gpu", 0, false), (3, "gpu", -1, true), (4, "none", 1, true)]
    {
        here.enqueue(&handle, number, Some(requires), priority);
        assert_eq!(gets_slot(100 + number).await, expected, "{requires} waits at {priority}");
        here.scheduler.forget(job(number));
    }
    here.enqueue(&handle, 5, Some("gpu"), 0);
    assert!(!gets_slot(105).await);
    here.scheduler.pass().await;
    let Some(LaneCommand::SlotReserved(next, ..)) = owner.recv().await else { panic!("it has a slot") };
    assert_eq!(next, job(5));
}

#[tokio::test]
async fn a_pass_that_panics_gives_the_jobs_that_it_took_out_back_to_their_lanes_owner() {
    // There is no time at which such a reservation at a node of this instance ends.
    let here = here_with(NodeTimeouts { reservation: Duration::MAX, ..NodeTimeouts::DEFAULT }).await;
    for name in ["n", "m"] {
        here.scheduler.registry.recorded(node_record(name, "a", here.epoch, 0), Instant::now());
    }
    here.scheduler.registry.reindex();
    let (lanes, own) = (Directory::default(), lane("instance:a"));
    let mut owner = serve(&lanes, "instance:a");
    let handle = lanes.get(&own).unwrap();
    for number in [1, 2] {
        let job = Arc::new(LiveJob::created(job(number), own.clone(), spec()));
        let (token, since) = (Token::new(1), Instant::now());
        let (avoid, prefer, is_back) = (None, None, false);
        let enqueue = Enqueue { job, attempt: FIRST, token, avoid, prefer, since, is_back };
        here.scheduler.enqueue(&handle, &own, enqueue);
    }
    assert!(guarded("a test", here.scheduler.pass()).await.is_none(), "it panics");
    assert_eq!((here.scheduler.waiting(), owner.left()), (0, 2));
    let mut back = Vec::new();
    for _ in 0..2 {
        let Some(LaneCommand::SlotUnavailable(job)) = owner.recv().await else { panic!("it has no slot") };
        back.push(job);
    }
    back.sort_unstable();
    assert_eq!(back, [job(1), job(2)]);
}

#[tokio::test]
async fn a_job_goes_to_another_node_where_nobody_says_whether_the_best_one_has_a_slot() {
    let here = here().await;
    // The bus gives its slots, and is away. Those of the other one are lent to this instance.
    let mut best = node_record("m", "a", here.epoch, 0);
    best.status.capacity = 9;
    for record in [best, node_record("n", "a", here.epoch, 0)] {
        here.scheduler.registry.recorded(record, Instant::now());
    }
    here.scheduler.registry.reindex();
    let attached = lent_here();
    let _outbox = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::clone(attached.holder_slots()));
    here.bus.close().await;
    let (lanes, own) = (Directory::default(), lane("instance:a"));
    let mut owner = serve(&lanes, "instance:a");
    let handle = lanes.get(&own).unwrap();
    // In a moment the best one may be chosen again.
    for _ in 0..20 {
        let job = Arc::new(LiveJob::created(job(1), own.clone(), spec()));
        let (token, since) = (Token::new(1), Instant::now());
        let (avoid, prefer, is_back) = (None, None, false);
        let enqueue = Enqueue { job, attempt: FIRST, token, avoid, prefer, since, is_back };
        here.scheduler.enqueue(&handle, &own, enqueue);
        here.scheduler.pass().await;
        match owner.recv().await {
            Some(LaneCommand::SlotUnavailable(_)) => {}
            Some(LaneCommand::SlotReserved(_, _, slot)) => {
                assert_eq!(slot.placed.node, node("n"));
                return;
            }
            _ => panic!("it has a slot or none"),
        }
    }
    panic!("it is never placed");
}

#[tokio::test]
async fn a_node_is_shared_for_a_job_that_has_waited_or_that_no_node_here_may_serve() {
    let here = here().await;
    let needs = Requirements { pool: None, route: None, requires: Vec::new() };
    let shares = |waited, had_much_room| here.scheduler.is_to_be_shared(&needs, waited, had_much_room);
    assert!(shares(Duration::ZERO, false), "no node is here");
    let _outbox = here.gateway.attach(&node("m"), Instant::now(), &[], Arc::default());
    assert!(!shares(Duration::ZERO, true), "one has just connected");
    assert!(shares(SHARED_AFTER, true) && !shares(SHARED_AFTER, false));
    assert!(shares(SHARED_FULL_AFTER, false), "also by one that is nearly full");
}
