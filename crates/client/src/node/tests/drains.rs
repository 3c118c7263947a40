//! How a worker drains that is stopped, and how its work ends then; and what it makes of an operator's drain.

use super::*;

#[tokio::test]
async fn who_drains_finishes_what_it_has_also_over_a_new_connection_and_without_a_limit() {
    let scheduler = Scheduler::new().await;
    let go = Arc::new(Notify::new());
    let gate = Arc::clone(&go);
    let mut options = options(&scheduler, 2);
    options.times = Times { timeout_grace: Duration::MAX, drain_max: Duration::MAX, ..options.times };
    let mut worker = Running::start(options, move |job| {
        let gate = Arc::clone(&gate);
        async move {
            gate.notified().await;
            echo(job).await
        }
    });
    let mut peer = scheduler.welcomed().await;
    peer.dispatch("a", 1).await;
    assert_eq!(peer.heard().await, "ack a1");
    worker.stop();
    assert_eq!(peer.heard().await, "drain");
    peer.dispatch("b", 1).await;
    assert_eq!(peer.heard().await, "reject b1: draining");
    drop(peer);
    let mut peer = scheduler.welcomed().await;
    assert_eq!(peer.heard().await, "drain");
    go.notify_one();
    assert_eq!(peer.heard().await, r#"done a1: "a""#);
    peer.commit("a", 1).await;
    assert_eq!(peer.heard().await, "gone");
    assert_eq!(worker.ended().await.unwrap(), Ended::Drained { unsettled: 0 });
}

/// The worker says that it drains, rejects what crosses that, and is gone when the scheduler has heard of it.
async fn drains_with_a_dispatch_on_its_way(worker: Running, mut peer: Peer) {
    assert_eq!(peer.heard().await, "drain");
    // The scheduler has not heard of it when it dispatches. Then it answers the heartbeat that came behind.
    peer.dispatch("a", 1).await;
    assert_eq!(peer.heard().await, "reject a1: draining");
    assert_eq!(peer.heard().await, "gone");
    assert_eq!(worker.ended().await.unwrap(), Ended::Drained { unsettled: 0 });
}

#[tokio::test]
async fn a_dispatch_that_crosses_the_drain_of_an_idle_worker_is_rejected() {
    let scheduler = Scheduler::new().await;
    let mut worker = Running::start(options(&scheduler, 1), echo);
    let peer = scheduler.welcomed().await;
    assert!(matches!(worker.events.recv().await, Some(Event::Connected { .. })));
    worker.stop();
    drains_with_a_dispatch_on_its_way(worker, peer).await;
}

#[tokio::test]
async fn who_is_stopped_before_its_welcome_waits_for_it_and_drains() {
    let scheduler = Scheduler::new().await;
    let mut worker = Running::start(options(&scheduler, 1), echo);
    let mut peer = scheduler.greeted().await;
    worker.stop();
    assert!(matches!(worker.events.recv().await, Some(Event::Draining { held: 0 })));
    peer.welcome().await;
    drains_with_a_dispatch_on_its_way(worker, peer).await;
}

#[tokio::test]
async fn a_drain_that_takes_too_long_stops_the_work_and_counts_what_is_not_settled() {
    let scheduler = Scheduler::new().await;
    // Results may take as long to be settled as a busy machine needs to settle one.
    let (stop_grace, settle_max) = (Duration::from_millis(50), Duration::from_secs(2));
    let times = Times { drain_max: Duration::ZERO, stop_grace, settle_max, ..Times::default() };
    let mut worker = Running::start(WorkerOptions { times, ..options(&scheduler, 2) }, |job| async move {
        if *job.payload.as_str() == *"\"deaf\"" {
            std::future::pending::<()>().await;
        }
        endless(job).await
    });
    let mut peer = scheduler.welcomed().await;
    peer.dispatch("deaf", 1).await;
    peer.dispatch("good", 1).await;
    assert_eq!((peer.heard().await.as_str(), peer.heard().await.as_str()), ("ack deaf1", "ack good1"));
    worker.stop();
    assert_eq!(peer.heard().await, "drain");
    assert_eq!(peer.heard().await, "failed good1: the node stopped before the attempt had finished");
    assert_eq!(
        peer.heard().await,
        "failed deaf1: the node stopped before the attempt had finished, and the handler did not stop"
    );
    peer.commit("good", 1).await;
    assert_eq!(peer.heard().await, "gone");
    assert_eq!(worker.ended().await.unwrap(), Ended::Drained { unsettled: 1 });
}

/// An operator drains the node of this connection, or ends that.
async fn told(worker: &mut Running, peer: &mut Peer, draining: bool) {
    peer.say(SchedulerFrame::HeartbeatOk(HeartbeatOk { draining })).await;
    until_drained(worker, draining).await;
}

/// The next connection, welcomed, of which no heartbeat is due soon.
async fn quiet(scheduler: &Scheduler) -> Peer {
    let mut peer = scheduler.greeted().await;
    peer.welcome_to(60_000).await;
    peer
}

async fn until_drained(worker: &mut Running, draining: bool) {
    while !matches!(worker.events.recv().await.expect("it works on"), Event::Drained(it) if it == draining) {}
}

#[tokio::test]
async fn answers_that_come_unasked_do_not_end_a_drain() {
    let scheduler = Scheduler::new().await;
    let mut worker = Running::start(options(&scheduler, 1), echo);
    let mut peer = scheduler.welcomed().await;
    for draining in [true, false] {
        told(&mut worker, &mut peer, draining).await;
    }
    worker.stop();
    drains_with_a_dispatch_on_its_way(worker, peer).await;
}

#[tokio::test]
async fn a_worker_that_is_drained_says_so_when_it_connects_again() {
    let scheduler = Scheduler::new().await;
    let mut worker = Running::start(options(&scheduler, 1), echo);
    let mut peer = quiet(&scheduler).await;
    assert!(!peer.drained);
    for _ in 0..2 {
        told(&mut worker, &mut peer, true).await;
        told(&mut worker, &mut peer, false).await;
        told(&mut worker, &mut peer, true).await;
        for _ in 0..2 {
            peer.close(close::GOING_AWAY).await;
            peer = quiet(&scheduler).await;
            assert!(peer.drained);
        }
        told(&mut worker, &mut peer, false).await;
        peer.close(close::GOING_AWAY).await;
        peer = quiet(&scheduler).await;
        assert!(!peer.drained);
    }
    worker.ended.abort();
}

/// As an instance of 0.1.0 says it, as far as there is room in a close frame.
const UNKNOWN_FIELD: &str = "unknown field `drained`, expected one of `node_id`, `capacity`, `batch`";

#[tokio::test]
async fn where_a_scheduler_takes_no_hello_that_says_so_the_drain_ends() {
    let scheduler = Scheduler::new().await;
    let mut worker = Running::start(options(&scheduler, 1), echo);
    let mut peer = quiet(&scheduler).await;
    told(&mut worker, &mut peer, true).await;
    // A fault of a connection that was welcome says nothing of the hello.
    for is_welcome in [true, false] {
        peer.refuse(UNKNOWN_FIELD).await;
        peer = scheduler.greeted().await;
        assert!(peer.drained);
        if is_welcome {
            peer.welcome_to(60_000).await;
        }
    }
    peer.refuse(UNKNOWN_FIELD).await;
    until_drained(&mut worker, false).await;
    assert!(!quiet(&scheduler).await.drained);
    worker.ended.abort();
}

#[tokio::test]
async fn a_drain_outlasts_connections_that_are_not_welcome_for_another_reason() {
    let scheduler = Scheduler::new().await;
    let mut worker = Running::start(options(&scheduler, 1), echo);
    let mut peer = quiet(&scheduler).await;
    told(&mut worker, &mut peer, true).await;
    peer.close(close::GOING_AWAY).await;
    // The worker stood still before its hello, or the bus kept it from being registered.
    for why in ["no hello within 5000 ms", "no heartbeat for 4000 ms"] {
        let peer = scheduler.greeted().await;
        assert!(peer.drained);
        peer.refuse(why).await;
    }
    assert!(quiet(&scheduler).await.drained);
    worker.ended.abort();
}
