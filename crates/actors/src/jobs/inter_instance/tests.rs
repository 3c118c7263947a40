//! Tests of what instances send each other: over a bus within the process, with owners that the test names.

use std::time::Duration;

use bus::{Entry, Inbox};

use super::*;
use crate::jobs::delivery::Withdrawal;
use crate::jobs::fixture::{FIRST, KnownOwners, ServedLane, dispatch, instance, job, lane, node, serve};

/// Longer than anything takes that is right.
const PATIENCE: Duration = Duration::from_secs(20);

fn report(lane_name: &str, job: u128, event: AttemptEvent) -> AttemptReport {
    AttemptReport { lane: lane(lane_name), job: JobId::from_u128(job), attempt: Attempt::new(1), event }
}

fn first_try(report: AttemptReport) -> Try {
    Try { pending: PendingReport { owner: None, is_forwarded: false, report }, is_again: false }
}

/// Instances on one bus.
struct World {
    hub: bus::Hub,
    known: Arc<KnownOwners>,
}

/// One of them.
struct One {
    sends: Arc<InterInstance>,
    lanes: Arc<Directory>,
    inbox: Inbox,
    bus: bus::Handle,
    me: InstanceId,
}

impl World {
    fn new() -> Self {
        Self { hub: bus::Hub::default(), known: Arc::default() }
    }

    async fn join(&self, name: &str) -> One {
        let (me, bus, lanes) = (instance(name), self.hub.join(), Arc::<Directory>::default());
        self.known.live.lock().insert(me.clone());
        let inbox = bus.open_inbox(&me, PATIENCE).await.unwrap();
        let owners = Arc::clone(&self.known) as LaneOwnersHandle;
        let sends = InterInstance::start(me.clone(), bus.clone(), false, lanes.clone(), owners);
        One { sends, lanes, inbox, bus, me }
    }

    fn owns(&self, name: &str, of: &str) {
        self.known.owners.lock().insert(lane(of), instance(name));
    }
}

impl One {
    async fn entries(&mut self) -> Vec<Entry> {
        let entries = tokio::time::timeout(PATIENCE, self.inbox.next()).await.expect("an entry").unwrap();
        let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
        self.bus.settle(&self.me, &ids).await.unwrap();
        entries
    }

    /// The reports in the next entries, of which there is at least one, and whether they were forwarded.
    async fn reported(&mut self) -> Vec<(AttemptReport, bool)> {
        let mut all = Vec::new();
        for entry in self.entries().await {
            match InstanceMessage::from_bytes(&entry.payload).unwrap() {
                InstanceMessage::Reports { is_forwarded, reports } => {
                    all.extend(reports.into_iter().map(|report| (report, is_forwarded)));
                }
                other => panic!("reports were awaited, not {other:?}"),
            }
        }
        all
    }
}

async fn next_event(lane: &mut ServedLane) -> (JobId, AttemptEvent) {
    match tokio::time::timeout(PATIENCE, lane.recv()).await.expect("a command").unwrap() {
        LaneCommand::Attempt(job, _, event) => (job, event),
        _ => panic!("an event of an attempt was awaited"),
    }
}

#[tokio::test]
async fn a_report_for_a_lane_that_is_here_goes_straight_to_its_owner() {
    let world = World::new();
    let one = world.join("a").await;
    let mut lane = serve(&one.lanes, "session:s");
    one.sends.report(report("session:s", 1, AttemptEvent::Finished), Some(&instance("b")));
    assert_eq!(next_event(&mut lane).await, (JobId::from_u128(1), AttemptEvent::Finished));
    assert!(world.known.asked.lock().is_empty());
}

#[tokio::test]
async fn a_report_goes_into_the_inbox_of_whoever_dispatched_the_attempt() {
    let world = World::new();
    let (one, mut other) = (world.join("a").await, world.join("b").await);
    let failed = AttemptEvent::Failed { due_in_ms: 7 };
    one.sends.report(report("session:s", 1, failed.clone()), Some(&other.me));
    assert_eq!(other.reported().await, [(report("session:s", 1, failed), false)]);
    // An instance's own lane names its owner.
    one.sends.report(report("instance:b", 2, AttemptEvent::Finished), None);
    assert_eq!(other.reported().await, [(report("instance:b", 2, AttemptEvent::Finished), false)]);
    assert!(world.known.asked.lock().is_empty(), "nobody looks into the ledger");
}

#[tokio::test]
async fn of_an_owner_that_is_unknown_or_has_no_inbox_the_ledger_is_asked() {
    let world = World::new();
    let (one, mut other) = (world.join("a").await, world.join("b").await);
    for lane in ["session:s", "instance:dead"] {
        world.owns("b", lane);
    }
    let finished = |lane, job| report(lane, job, AttemptEvent::Finished);
    one.sends.report(finished("session:s", 1), None);
    assert_eq!(other.reported().await, [(finished("session:s", 1), false)]);
    // The inboxes of these were closed by the survivor that has their lanes.
    one.sends.report(finished("session:s", 2), Some(&instance("dead")));
    assert_eq!(other.reported().await, [(finished("session:s", 2), true)]);
    one.sends.report(finished("instance:dead", 3), None);
    assert_eq!(other.reported().await, [(finished("instance:dead", 3), true)]);
    assert_eq!(world.known.asked.lock().len(), 3);
}

#[tokio::test]
async fn an_instance_that_has_ended_by_the_ledger_gets_nothing_though_it_reads_its_inbox() {
    let world = World::new();
    let (one, mut other, mut stranger) =
        (world.join("a").await, world.join("b").await, world.join("c").await);
    let mut lane = serve(&one.lanes, "instance:b");
    world.known.ended.lock().insert(instance("c"));
    let dispatched = dispatch(1, "n", "c");
    one.sends.post(instance("c"), InstanceMessage::Dispatch(dispatched.notice()));
    let (of, event) = next_event(&mut lane).await;
    assert_eq!(of, job(1));
    assert!(matches!(event, AttemptEvent::Revoked(Revoked::Undeliverable, _)), "{event:?}");
    let withdrawal = Withdrawal { job: job(1), attempt: FIRST, placed: dispatched.placed };
    one.sends.post(instance("c"), InstanceMessage::Withdrawal(withdrawal));
    // Who owns the lanes of what it dispatched, and its own, says the ledger.
    let finished = |lane, job| report(lane, job, AttemptEvent::Finished);
    for (number, of, dispatcher) in [(2, "session:s", Some(instance("c"))), (3, "instance:c", None)] {
        world.owns("b", of);
        one.sends.report(finished(of, number), dispatcher.as_ref());
        assert_eq!(other.reported().await, [(finished(of, number), false)]);
    }
    // What had been sent to it before would come first.
    world.known.ended.lock().clear();
    one.sends.post(instance("c"), InstanceMessage::Share(node("m")));
    let entries = stranger.entries().await;
    let first = InstanceMessage::from_bytes(&entries[0].payload);
    assert!(matches!(&first, Some(InstanceMessage::Share(of)) if *of == node("m")), "{first:?}");
}

/// Sends a report whose owner is looked up in this world, and another one that comes to its owner all the same.
async fn another_report_comes_beside_a_look(world: &World) {
    let (one, mut other) = (world.join("a").await, world.join("b").await);
    one.sends.report(report("session:s", 1, AttemptEvent::Finished), None);
    let is_asked = async {
        while world.known.asked.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, is_asked).await.expect("the ledger is asked");
    let finished = report("session:t", 2, AttemptEvent::Finished);
    one.sends.report(finished.clone(), Some(&other.me));
    assert_eq!(other.reported().await, [(finished, false)]);
}

#[tokio::test]
async fn a_ledger_that_does_not_name_the_owner_of_a_lane_holds_up_no_other_report() {
    let world = World::new();
    world.known.unanswered.lock().insert(lane("session:s"));
    another_report_comes_beside_a_look(&world).await;
}

#[tokio::test]
async fn a_panic_in_the_look_for_an_owner_costs_no_other_report() {
    let world = World::new();
    world.known.broken.lock().insert(lane("session:s"));
    another_report_comes_beside_a_look(&world).await;
}

#[tokio::test]
async fn a_report_that_comes_to_the_wrong_instance_is_passed_on_once() {
    let world = World::new();
    let (one, mut other) = (world.join("a").await, world.join("b").await);
    world.owns("b", "session:s");
    let finished = report("session:s", 1, AttemptEvent::Finished);
    one.sends.take_report(finished.clone(), false);
    assert_eq!(other.reported().await, [(finished.clone(), true)]);
    other.sends.take_report(finished.clone(), true);
    let mut lane = serve(&other.lanes, "session:s");
    other.sends.take_report(finished, true);
    assert_eq!(next_event(&mut lane).await.0, JobId::from_u128(1));
    // What went round in circles would come before this.
    one.sends.report(report("session:s", 2, AttemptEvent::Finished), Some(&other.me));
    assert_eq!(other.reported().await, [(report("session:s", 2, AttemptEvent::Finished), false)]);
}

#[tokio::test]
async fn a_lane_that_came_here_while_its_report_was_under_way_gets_it() {
    let world = World::new();
    let one = world.join("a").await;
    world.owns("a", "session:s");
    let mut lane = serve(&one.lanes, "session:s");
    let pending = PendingReport {
        owner: None,
        is_forwarded: true,
        report: report("session:s", 1, AttemptEvent::Finished),
    };
    one.sends.queue(pending);
    assert_eq!(next_event(&mut lane).await.0, JobId::from_u128(1));
}

#[tokio::test]
async fn many_reports_share_an_entry() {
    const REPORTS: u128 = 3 * REPORTS_PER_ENTRY as u128;
    let world = World::new();
    let (one, mut other) = (world.join("a").await, world.join("b").await);
    let finished = |job| first_try(report("session:s", job, AttemptEvent::Finished));
    let again = one.sends.send_reports(&other.me, (0..REPORTS).map(finished).collect()).await;
    assert!(again.is_empty());
    assert_eq!(other.bus.inbox_len(&other.me).await.unwrap(), 3);
    let mut jobs = Vec::new();
    while jobs.len() < REPORTS as usize {
        jobs.extend(other.reported().await.into_iter().map(|(report, _)| report.job));
    }
    assert_eq!(jobs, (0..REPORTS).map(JobId::from_u128).collect::<Vec<_>>(), "in their order");
}

#[tokio::test]
async fn a_full_inbox_keeps_nobody_waiting() {
    let world = World::new();
    let (one, other) = (world.join("a").await, world.join("b").await);
    drop(other.inbox);
    for _ in 0..bus::limits::INBOX_ENTRIES_MAX / bus::limits::INBOX_SEND_ENTRIES_MAX {
        let entries = vec![b"full".as_slice(); bus::limits::INBOX_SEND_ENTRIES_MAX];
        one.bus.send(&other.me, &entries).await.unwrap();
    }
    let finished = first_try(report("session:s", 1, AttemptEvent::Finished));
    let sent = one.sends.send_reports(&other.me, vec![finished]);
    assert!(tokio::time::timeout(PATIENCE, sent).await.expect("it is left out").is_empty());
    assert_eq!(one.bus.inbox_len(&other.me).await.unwrap(), bus::limits::INBOX_ENTRIES_MAX as u64);
}

#[tokio::test]
async fn of_several_calls_each_report_is_told_by_its_place_what_became_of_it() {
    const ROOM: usize = 58;
    let world = World::new();
    let (one, other) = (world.join("a").await, world.join("b").await);
    // Too many bytes for one call. The last entry has one report.
    let revoked = AttemptEvent::Revoked(Revoked::Undeliverable, "r".repeat(500));
    let reports = vec![report("session:s", 1, revoked); 60 * REPORTS_PER_ENTRY + 1];
    let undelivered = one.sends.send_reports_to(&instance("dead"), false, &reports).await;
    assert!(undelivered.into_iter().eq(0..reports.len()), "all, in their order");
    let (full, mut room) = (vec![b"full".as_slice(); 500], bus::limits::INBOX_ENTRIES_MAX);
    while room > ROOM {
        let sent = &full[..full.len().min(room - ROOM)];
        one.bus.send(&other.me, sent).await.unwrap();
        room -= sent.len();
    }
    // The inbox takes the first call, and of the second one what it has room for.
    let undelivered = one.sends.send_reports_to(&other.me, false, &reports).await;
    assert!(undelivered.is_empty(), "it has an inbox");
    assert_eq!(one.bus.inbox_len(&other.me).await.unwrap(), bus::limits::INBOX_ENTRIES_MAX as u64);
}

#[test]
fn entries_go_in_as_few_calls_as_the_bus_takes() {
    let sizes = |of: &[usize]| of.iter().map(|size| vec![0; *size]).collect::<Vec<_>>();
    let counts =
        |entries: &[Vec<u8>]| calls(entries, Vec::len).into_iter().map(<[_]>::len).collect::<Vec<_>>();
    assert_eq!(counts(&[]), [0; 0]);
    let bytes_max = bus::limits::INBOX_SEND_BYTES_MAX;
    assert_eq!(counts(&sizes(&[bytes_max / 2, bytes_max / 2, 1])), [2, 1]);
    let entries_max = bus::limits::INBOX_SEND_ENTRIES_MAX;
    assert_eq!(counts(&sizes(&vec![1; entries_max + 1])), [entries_max, 1]);
}
