//! What nodes are sent, and what the owners of lanes hear of it.

use std::collections::HashSet;

use domain::job::Assignment;
use futures_util::FutureExt;
use tokio::time::timeout;

use super::*;
use crate::jobs::fixture::{
    FIRST, KnownOwners, Ledger, ServedLane, dispatch, event_now, instance, job, node, node_record, serve,
    slot,
};
use crate::jobs::limits::{AWAY_REMEMBERED, OUTGOING_BYTES_OF_NODE_MAX, OUTGOING_MESSAGES_MAX};
use crate::jobs::messages::Directory;
use crate::jobs::orphaned_attempts;

const PLAN: &str = "plan:00000000-0000-0000-0000-000000000001";

/// Instance `a`, beside `b`, whose lane is served here too, so that a test sees what its owner gets.
struct Here {
    gateway: Arc<NodeGateway>,
    registry: Registry,
    owner: ServedLane,
    /// The lane of a plan.
    plan: ServedLane,
    ledger: Ledger,
    bus: bus::Handle,
}

async fn here() -> Here {
    let (ledger, bus, lanes) =
        (Ledger::open().await, bus::Hub::default().join(), Arc::<Directory>::default());
    let owners = Arc::<KnownOwners>::default();
    owners.live.lock().extend([instance("a"), instance("b")]);
    let (owner, plan) = (serve(&lanes, "instance:b"), serve(&lanes, PLAN));
    let sends = InterInstance::start(instance("a"), bus.clone(), false, lanes, owners);
    let registry = Registry::new(instance("a"), domain::NodeTimeouts::DEFAULT);
    let store = Arc::<ProgressStore>::default();
    let gateway = NodeGateway::new(ledger.handle.clone(), registry.clone(), sends, store);
    Here { gateway, registry, owner, plan, ledger, bus }
}

impl Here {
    /// Of a connection that goes on.
    async fn attempts_on(&self, handed_since: Instant, listed: &[Slot]) -> OnNode {
        let connection = Arc::<HolderNote>::default();
        let note = Arc::downgrade(&connection);
        self.gateway.attempts_on(&node("n"), &note, handed_since, listed).await.unwrap()
    }

    /// Why the attempt was taken back, as reported to the lane.
    async fn revoked(&mut self, number: u128) -> Revoked {
        match event_now(&mut self.owner).await {
            Some((of, AttemptEvent::Revoked(why, _))) if of == job(number) => why,
            other => panic!("a revocation of job {number} was awaited, not {other:?}"),
        }
    }

    /// The job of which the lane has heard that its node does not list the attempt any more.
    async fn unlisted(&mut self) -> Option<JobId> {
        match event_now(&mut self.owner).await? {
            (of, AttemptEvent::Revoked(Revoked::Unlisted, _)) => Some(of),
            other => panic!("an attempt was to be unlisted, not {other:?}"),
        }
    }
}

async fn next(outbox: &mut NodeOutbox) -> String {
    let messages = outbox.next(1).await;
    match &messages[..] {
        [ToNode::Dispatch(dispatch)] => format!("dispatch {}", dispatch.job.as_u128()),
        [ToNode::Cancel(job, _)] => format!("cancel {}", job.as_u128()),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn an_attempt_goes_to_its_node_and_is_expected_until_it_is_cancelled() {
    let mut here = here().await;
    let mut outbox = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    here.gateway.deliver(dispatch(1, "n", "a"));
    assert_eq!(next(&mut outbox).await, "dispatch 1");
    assert!(here.gateway.attempts().is_expected(job(1), FIRST));
    let placed = Assignment { node: node("n"), holder: instance("a") };
    here.gateway.withdraw(Withdrawal { job: job(1), attempt: FIRST, placed });
    assert_eq!(next(&mut outbox).await, "cancel 1");
    assert!(!here.gateway.attempts().is_expected(job(1), FIRST));
    here.gateway.attempts().slot_freed(&node("n"), job(1), FIRST);
    assert_eq!(here.gateway.attempts().take_released(), [(job(1), FIRST)]);
    assert_eq!(event_now(&mut here.owner).await, None, "it knows that");
}

/// A node that answers within the call that sends it something.
struct Hasty(Arc<NodeGateway>);

impl std::task::Wake for Hasty {
    fn wake(self: Arc<Self>) {
        self.0.attempts().slot_freed(&node("n"), job(1), FIRST);
    }
}

#[tokio::test]
async fn a_slot_that_is_free_as_soon_as_its_node_is_told_is_noted() {
    let here = here().await;
    let mut outbox = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    let waker = Arc::new(Hasty(Arc::clone(&here.gateway))).into();
    let mut told = std::pin::pin!(outbox.next(1));
    assert!(told.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    here.gateway.cancel_at_node(&node("n"), job(1), FIRST);
    assert_eq!(here.gateway.attempts().take_released(), [(job(1), FIRST)]);
}

#[tokio::test]
async fn the_slot_of_a_cancelled_attempt_is_noted_free_when_its_node_that_died_is_given_up() {
    let here = here().await;
    let died = Instant::now();
    let look = async |after: Duration| {
        let (no_wait, now) = (Duration::ZERO, died + after);
        orphaned_attempts::look(&here.gateway, &here.ledger.handle, no_wait, now).await.unwrap();
    };
    let outbox = here.gateway.attach(&node("n"), died, &[], Arc::default());
    here.gateway.cancel_at_node(&node("n"), job(1), FIRST);
    drop(outbox);
    here.gateway.cancel_at_node(&node("n"), job(2), FIRST);
    look(Duration::ZERO).await;
    look(AWAY_REMEMBERED / 2).await;
    for number in [1, 2] {
        here.gateway.attempts().slot_freed(&node("n"), job(number), FIRST);
    }
    let released = [1, 2].map(|number| (job(number), FIRST));
    assert_eq!(
        here.gateway.attempts().take_released(),
        released,
        "it was cancelled before, or while it was away"
    );
}

#[tokio::test]
async fn a_cancelled_attempt_is_remembered_for_as_long_as_its_node_that_died_is_not_given_up() {
    let here = here().await;
    let died = Instant::now();
    let look = async |after: Duration| {
        let (no_wait, now) = (Duration::ZERO, died + after);
        orphaned_attempts::look(&here.gateway, &here.ledger.handle, no_wait, now).await.unwrap();
    };
    let outbox = here.gateway.attach(&node("n"), died, &[], Arc::default());
    // An older connection of the node has ended as well, and is found to be replaced.
    let (older, departing) = (here.gateway.departs(&node("n")), here.gateway.departs(&node("n")));
    here.gateway.cancel_at_node(&node("n"), job(1), FIRST);
    drop((outbox, older));
    // The bus and the ledger are away, so that nobody knows whether the node is elsewhere.
    look(Duration::ZERO).await;
    look(AWAY_REMEMBERED * 2).await;
    here.gateway.attempts().slot_freed(&node("n"), job(1), FIRST);
    assert_eq!(here.gateway.attempts().take_released(), [(job(1), FIRST)]);
    here.gateway.cancel_at_node(&node("n"), job(2), FIRST);
    drop(departing);
    look(AWAY_REMEMBERED * 3).await;
    look(AWAY_REMEMBERED * 4).await;
    here.gateway.attempts().slot_freed(&node("n"), job(2), FIRST);
    assert!(here.gateway.attempts().take_released().is_empty(), "it is nobody's by now");
}

#[tokio::test]
async fn an_attempt_whose_node_is_not_here_is_undeliverable() {
    let mut here = here().await;
    here.gateway.deliver(dispatch(1, "n", "a"));
    assert_eq!(here.revoked(1).await, Revoked::Undeliverable);
    assert!(!here.gateway.attempts().is_expected(job(1), FIRST));
    drop(here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default()));
    here.gateway.deliver(dispatch(2, "n", "a"));
    assert_eq!(here.revoked(2).await, Revoked::Undeliverable);
}

#[tokio::test]
async fn what_still_waits_when_a_socket_is_closed_is_undeliverable() {
    let mut here = here().await;
    let outbox = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    for number in [1, 2] {
        here.gateway.deliver(dispatch(number, "n", "a"));
    }
    here.gateway.cancel_at_node(&node("n"), job(1), FIRST);
    here.gateway.share(&node("n"));
    drop(outbox);
    assert_eq!(here.revoked(2).await, Revoked::Undeliverable);
    assert_eq!(event_now(&mut here.owner).await, None, "the other was called off");
    assert!(!here.gateway.is_attached(&node("n")));
}

#[tokio::test]
async fn a_stop_waits_for_a_socket_until_the_lanes_have_heard_all_of_it() {
    let mut here = here().await;
    let gateway = Arc::clone(&here.gateway);
    gateway.until_no_socket().await;
    let outbox = gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    gateway.deliver(dispatch(1, "n", "a"));
    let mut over = std::pin::pin!(gateway.until_no_socket());
    assert!(over.as_mut().now_or_never().is_none(), "it is there");
    let open = outbox.close();
    assert_eq!(here.revoked(1).await, Revoked::Undeliverable);
    assert!(over.as_mut().now_or_never().is_none(), "its calls may be under way");
    drop(open);
    over.await;
}

#[tokio::test]
async fn the_holder_of_a_node_is_asked_to_share_it() {
    let here = here().await;
    let mut inbox = here.bus.open_inbox(&instance("b"), Duration::from_secs(9)).await.unwrap();
    here.gateway.ask_to_share(node("n"), instance("a"));
    here.gateway.ask_to_share(node("m"), instance("b"));
    let entries = inbox.next().await.unwrap();
    let read: Vec<_> = entries.iter().map(|entry| InstanceMessage::from_bytes(&entry.payload)).collect();
    assert!(matches!(&read[..], [Some(InstanceMessage::Share(of))] if *of == node("m")), "{read:?}");
    let mut outbox = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    here.gateway.share(&node("n"));
    assert_eq!(next(&mut outbox).await, "[Share]");
}

#[tokio::test]
async fn slots_of_a_node_are_left_to_others_while_they_want_some() {
    let here = here().await;
    let _outbox = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    assert!(!here.gateway.leave_to_others(&node("n")), "nobody wants one");
    here.gateway.share(&node("n"));
    assert!(!here.gateway.is_left_to_others(&node("n"), &instance("b")), "its socket would be there");
    assert!(here.gateway.is_left_to_others(&node("n"), &instance("a")));
}

#[test]
fn slots_are_left_for_a_moment_and_again_after_a_while() {
    let (mut yielding, begun) = (Yielding::default(), Instant::now());
    assert!(!yielding.leave(begun) && !yielding.is_left(begun));
    yielding.asked = Some(begun);
    assert!(yielding.leave(begun) && yielding.is_left(begun));
    let over = begun + SLOTS_LEFT_FOR;
    assert!(!yielding.is_left(over) && !yielding.leave(over), "not again so soon");
    let again = begun + SLOTS_LEFT_EVERY;
    assert!(yielding.leave(again) && yielding.is_left(again));
    assert!(!yielding.leave(begun + SLOTS_WANTED_FOR), "that is long ago");
}

#[tokio::test]
async fn an_attempt_goes_into_its_holders_inbox_if_that_instance_is_there() {
    let mut here = here().await;
    let mut inbox = here.bus.open_inbox(&instance("b"), Duration::from_secs(9)).await.unwrap();
    here.gateway.deliver(dispatch(1, "n", "b"));
    let entries = inbox.next().await.unwrap();
    let read = InstanceMessage::from_bytes(&entries[0].payload).unwrap();
    assert!(matches!(read, InstanceMessage::Dispatch(dispatch) if dispatch.job == job(1)));
    assert!(!here.gateway.attempts().is_expected(job(1), FIRST), "it is not this instance's");
    // What is known of nodes is known of their holders.
    here.registry.recorded(node_record("n", "b", bus::Epoch::new(1), 0), Instant::now());
    let now = Instant::now();
    here.registry.found_there(&HashSet::new(), now);
    here.registry.found_there(&HashSet::new(), now + Duration::from_secs(60));
    here.gateway.deliver(dispatch(2, "n", "b"));
    assert_eq!(here.revoked(2).await, Revoked::Undeliverable);
    assert_eq!(here.bus.inbox_len(&instance("b")).await.unwrap(), 1, "nothing more was sent");
}

#[tokio::test]
async fn what_a_node_says_of_an_attempt_is_reported_to_its_lane() {
    let mut here = here().await;
    let _outbox = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    for number in [1, 2, 3] {
        here.gateway.deliver(dispatch(number, "n", "a"));
    }
    here.gateway.acknowledged(&node("n"), job(1), FIRST);
    assert_eq!(event_now(&mut here.owner).await, Some((job(1), AttemptEvent::Acknowledged)));
    here.gateway.cut_off(job(2), FIRST);
    assert_eq!(event_now(&mut here.owner).await, Some((job(2), AttemptEvent::ConnectionLost)));
    here.gateway.came_to_nothing(job(3), FIRST, Revoked::Rejected, "busy");
    assert_eq!(here.revoked(3).await, Revoked::Rejected);
    // Of what came with the node nothing is known that could be reported, nor of what is over.
    here.gateway.attempts().connected_with(&node("n"), &[slot(4)]);
    here.gateway.acknowledged(&node("n"), job(4), FIRST);
    here.gateway.cut_off(job(4), FIRST);
    here.gateway.came_to_nothing(job(3), FIRST, Revoked::Rejected, "busy");
    assert_eq!(event_now(&mut here.owner).await, None);
}

#[tokio::test]
async fn an_end_that_another_instance_wrote_stops_the_node_here() {
    let here = here().await;
    let mut outbox = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    here.gateway.attempts().connected_with(&node("n"), &[slot(1)]);
    here.gateway.attempt_is_over(job(9), FIRST);
    here.gateway.attempt_is_over(job(1), FIRST);
    assert_eq!(next(&mut outbox).await, "cancel 1");
}

#[tokio::test]
async fn a_newer_connection_of_a_node_gets_what_is_for_it() {
    let here = here().await;
    let (old, new) = (Instant::now(), Instant::now() + Duration::from_secs(1));
    let mut newer = here.gateway.attach(&node("n"), new, &[], Arc::default());
    let mut older = here.gateway.attach(&node("n"), old, &[], Arc::default());
    assert!(older.next(1).await.is_empty(), "it is replaced");
    drop(older);
    here.gateway.deliver(dispatch(1, "n", "a"));
    assert_eq!(next(&mut newer).await, "dispatch 1");
    drop(newer);
    assert!(!here.gateway.is_attached(&node("n")));
}

#[tokio::test]
async fn a_node_that_connects_gets_what_is_its_own_and_lanes_hear_of_the_rest() {
    let mut here = here().await;
    here.ledger.dispatch_all("b", &[1, 2], "n", "a").await;
    here.ledger.dispatch_all("b", &[3], "n", "b").await;
    let there = here.attempts_on(Instant::now(), &[slot(1)]).await.there;
    assert_eq!(HashSet::from_iter(there), HashSet::from([slot(1), slot(2)]), "one may be on its way here");
    assert_eq!(event_now(&mut here.owner).await, Some((job(3), AttemptEvent::NodeElsewhere)));
    assert_eq!(event_now(&mut here.owner).await, None);
}

#[tokio::test]
async fn the_list_of_a_connection_that_is_over_says_nothing_of_what_its_node_has_got_elsewhere_since() {
    let mut here = here().await;
    here.ledger.dispatch_all("b", &[1, 2], "n", "b").await;
    here.ledger.run_all(&[2], "n").await;
    let on = here.gateway.attempts_on(&node("n"), &Weak::new(), Instant::now(), &[]).await;
    let OnNode { there, gone } = on.unwrap();
    assert_eq!((there, gone), (vec![slot(1), slot(2)], vec![]));
    assert_eq!(event_now(&mut here.owner).await, None);
}

#[tokio::test]
async fn what_was_handed_to_a_connection_after_it_was_attached_is_there_whatever_its_list_says() {
    let mut here = here().await;
    here.ledger.dispatch_all("b", &[1, 2], "n", "a").await;
    here.ledger.run_all(&[1, 2], "n").await;
    let (old, new) = (Instant::now(), Instant::now() + Duration::from_secs(1));
    let mut older = here.gateway.attach(&node("n"), old, &[], Arc::default());
    here.gateway.deliver(dispatch(1, "n", "a"));
    assert_eq!(next(&mut older).await, "dispatch 1");
    let of_older = older.attached();
    let OnNode { there, gone } = here.attempts_on(of_older, &[]).await;
    assert_eq!((there, gone), (vec![slot(1)], vec![slot(2)]), "it was handed to none");
    assert_eq!((here.unlisted().await, here.unlisted().await), (Some(job(2)), None));
    // A newer connection is not attached yet: what was handed to the older one is lost if the node does not list it.
    let OnNode { there, gone } = here.attempts_on(Instant::now(), &[slot(2)]).await;
    assert_eq!((there, gone), (vec![slot(2)], vec![slot(1)]));
    assert_eq!((here.unlisted().await, here.unlisted().await), (Some(job(1)), None));
    let mut newer = here.gateway.attach(&node("n"), new, &[slot(2)], Arc::default());
    here.gateway.deliver(dispatch(1, "n", "a"));
    assert_eq!(next(&mut newer).await, "dispatch 1");
    // One that was attached after a newer one gets nothing.
    let late = here.gateway.attach(&node("n"), old, &[], Arc::default());
    let attached = [of_older, newer.attached(), late.attached()];
    for of in attached {
        let OnNode { there, gone } = here.attempts_on(of, &[slot(2)]).await;
        assert_eq!((there.len(), gone.len()), (2, 0));
    }
    assert_eq!(here.unlisted().await, None);
    // Nor does a list say more when its connection has ended meanwhile.
    drop((older, late, newer));
    for of in attached {
        let OnNode { there, gone } = here.attempts_on(of, &[slot(2)]).await;
        assert_eq!((there.len(), gone.len()), (2, 0));
    }
    assert_eq!(here.unlisted().await, None);
}

#[tokio::test]
async fn what_a_node_has_acknowledged_and_lists_no_more_is_gone_before_that_it_runs_is_written() {
    let mut here = here().await;
    here.ledger.dispatch_all("b", &[1, 2], "n", "a").await;
    let mut outbox = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    for number in [1, 2] {
        here.gateway.deliver(dispatch(number, "n", "a"));
        assert_eq!(next(&mut outbox).await, format!("dispatch {number}"));
    }
    here.gateway.acknowledged(&node("n"), job(1), FIRST);
    assert_eq!(event_now(&mut here.owner).await, Some((job(1), AttemptEvent::Acknowledged)));
    let OnNode { there, gone } = here.attempts_on(Instant::now(), &[]).await;
    assert_eq!((there, gone), (vec![slot(2)], vec![slot(1)]), "the other may be on its way");
    assert_eq!((here.unlisted().await, here.unlisted().await), (Some(job(1)), None));
    // One that it lists is there.
    let OnNode { there, gone } = here.attempts_on(Instant::now(), &[slot(1)]).await;
    assert_eq!((there.len(), gone.len()), (2, 0));
    assert_eq!(here.unlisted().await, None);
}

#[tokio::test]
async fn what_was_handed_to_a_newer_connection_after_an_older_one_gave_its_list_is_there() {
    let mut here = here().await;
    here.ledger.dispatch_all("b", &[1], "n", "a").await;
    here.ledger.run_all(&[1], "n").await;
    let listed_at = Instant::now();
    let mut newer = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    here.gateway.deliver(dispatch(1, "n", "a"));
    assert_eq!(next(&mut newer).await, "dispatch 1");
    let OnNode { there, gone } = here.attempts_on(listed_at, &[]).await;
    assert_eq!((there, gone), (vec![slot(1)], vec![]));
    assert_eq!(here.unlisted().await, None);
}

#[tokio::test]
async fn an_attempt_that_is_found_orphaned_before_its_node_is_attached_is_cancelled_then() {
    let here = here().await;
    let no_wait = Duration::ZERO;
    let look = async || {
        orphaned_attempts::look(&here.gateway, &here.ledger.handle, no_wait, Instant::now()).await.unwrap();
    };
    // The ledger knows no such attempt.
    here.attempts_on(Instant::now(), &[slot(1)]).await;
    look().await;
    let mut outbox = here.gateway.attach(&node("n"), Instant::now(), &[slot(1)], Arc::default());
    look().await;
    assert_eq!(timeout(Duration::from_secs(10), next(&mut outbox)).await.unwrap(), "cancel 1");
}

#[tokio::test]
async fn an_attempt_of_another_instance_is_what_the_ledger_has_of_it_or_nothing() {
    let mut here = here().await;
    here.ledger.dispatch_all("b", &[1, 2, 3], "n", "a").await;
    let mut outbox = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    let notice = |number| {
        let notice = dispatch(number, "n", "a").notice();
        DispatchNotice { owner: Some(instance("b")), ..notice }
    };
    let noticed = |notice| Noticed { notice, was_read: false };
    let later = DispatchNotice { attempt: FIRST.next(), ..notice(2) };
    let elsewhere = Assignment { node: node("n"), holder: instance("b") };
    let elsewhere = DispatchNotice { placed: elsewhere, ..notice(3) };
    here.gateway.hand_noticed([later, elsewhere, notice(4), notice(1)].map(noticed).into()).await;
    let messages = outbox.next(10).await;
    let [ToNode::Dispatch(sent)] = &messages[..] else { panic!("one is sent, not {messages:?}") };
    assert_eq!((sent.job, sent.is_foreign()), (job(1), true));
    assert_eq!(sent.node_job, crate::jobs::fixture::spec().node_job(None, None));
    assert_eq!(event_now(&mut here.owner).await, None, "the others are nobody's");
    // Of a node that is elsewhere the lane hears.
    drop(outbox);
    here.gateway.hand_noticed(vec![noticed(notice(2))]).await;
    assert_eq!(here.revoked(2).await, Revoked::Undeliverable);
}

#[tokio::test]
async fn of_a_dispatch_that_was_read_before_no_lane_hears_that_it_came_to_nothing() {
    let mut here = here().await;
    let noticed = |to: &str, was_read| {
        let notice = DispatchNotice {
            lane: crate::jobs::fixture::lane(to),
            owner: Some(instance("b")),
            ..dispatch(1, "n", "a").notice()
        };
        Noticed { notice, was_read }
    };
    for (lane, was_read, is_told) in
        [("instance:b", false, true), ("instance:b", true, false), (PLAN, false, true), (PLAN, true, false)]
    {
        here.gateway.hand_noticed(vec![noticed(lane, was_read)]).await;
        let served = if lane == PLAN { &mut here.plan } else { &mut here.owner };
        let told = event_now(served).await;
        let is_taken_back = matches!(told, Some((_, AttemptEvent::Revoked(Revoked::Undeliverable, _))));
        assert_eq!(is_taken_back, is_told, "{lane}, read before: {was_read}, {told:?}");
    }
    // Its node has connected here, and cannot be sent it.
    here.ledger.dispatch_all("b", &[1], "n", "a").await;
    for (was_read, is_told) in [(true, false), (false, true)] {
        let outbox = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
        here.gateway.hand_noticed(vec![noticed("instance:b", was_read)]).await;
        assert!(here.gateway.attempts().is_expected(job(1), FIRST));
        drop(outbox);
        assert!(!here.gateway.attempts().is_expected(job(1), FIRST));
        assert_eq!(event_now(&mut here.owner).await.is_some(), is_told, "read before: {was_read}");
    }
}

/// Attempts with a payload of 1 MiB each, which share it in memory.
fn large(holder: &str) -> impl Fn(u128) -> Dispatch {
    let payload: Arc<str> = "x".repeat(1 << 20).into();
    let holder = holder.to_owned();
    move |number| {
        let mut dispatch = dispatch(number, "n", &holder);
        dispatch.node_job.payload = Arc::clone(&payload);
        dispatch
    }
}

/// So many of them may be on their way to one node.
const FIT: u128 = (OUTGOING_BYTES_OF_NODE_MAX >> 20) as u128;

#[tokio::test]
async fn attempts_that_wait_at_sockets_are_bounded_by_their_bytes_and_taken_few_at_once() {
    let mut here = here().await;
    let mut outbox = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    let large = large("a");
    (0..FIT).for_each(|number| here.gateway.deliver(large(number)));
    assert!(event_now(&mut here.owner).await.is_none(), "all of them wait");
    here.gateway.deliver(large(FIT));
    assert_eq!(here.revoked(FIT).await, Revoked::Undeliverable);
    // What a socket has taken makes room.
    assert_eq!(outbox.next(1_000).await.len(), SOCKET_BYTES_AT_ONCE >> 20);
    here.gateway.deliver(large(FIT + 1));
    assert!(event_now(&mut here.owner).await.is_none());
    drop(outbox);
    for number in 8..FIT {
        assert_eq!(here.revoked(number).await, Revoked::Undeliverable);
    }
}

#[tokio::test]
async fn a_node_that_does_not_read_leaves_room_for_attempts_of_others() {
    let mut here = here().await;
    let _unread = here.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    let mut outbox = here.gateway.attach(&node("m"), Instant::now(), &[], Arc::default());
    let large = large("a");
    (0..=FIT).for_each(|number| here.gateway.deliver(large(number)));
    assert_eq!(here.revoked(FIT).await, Revoked::Undeliverable);
    let placed = Assignment { node: node("m"), holder: instance("a") };
    here.gateway.deliver(Dispatch { placed, ..large(FIT + 1) });
    assert_eq!(event_now(&mut here.owner).await, None);
    assert_eq!(next(&mut outbox).await, format!("dispatch {}", FIT + 1));
}

#[tokio::test]
async fn messages_for_other_instances_are_bounded_by_their_number() {
    let mut here = here().await;
    let other = instance("b");
    let post = |number| {
        let notice = dispatch(number, "n", "b").notice();
        here.gateway.inter_instance.post(other.clone(), InstanceMessage::Dispatch(notice));
    };
    // Nothing is sent before this test waits.
    let most = OUTGOING_MESSAGES_MAX as u128;
    (0..=most).for_each(post);
    assert_eq!(here.revoked(most).await, Revoked::Undeliverable);
}
