//! What other instances put into the inbox of an instance.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use actors::jobs::ToNode;
use bus::Delivery;
use domain::{InstanceId, JobId, NodeId, Resource, Timestamp};
use ledger::{Acquisition, NewInstance};

use crate::lanes::Lanes;
use crate::{PATIENCE, until};

/// An entry that has no effect.
const ENTRY: &[u8] = br#"{"type":"share","node":"unknown"}"#;
/// For so long an instance shows itself, unless it is withdrawn.
const SHOWN: Duration = Duration::from_secs(600);

/// What becomes of an entry that is sent to this instance.
async fn delivery(lanes: &Lanes, to: &InstanceId) -> Delivery {
    lanes.bus.send(to, &[ENTRY]).await.unwrap()[0]
}

/// An instance with an entry in its inbox, which it does not read. It shows itself on the bus, if so said.
async fn on_the_bus(lanes: &Lanes, name: &str, is_shown: bool) -> InstanceId {
    let id = InstanceId::parse(name).unwrap();
    drop(lanes.bus.open_inbox(&id, SHOWN).await.unwrap());
    assert_eq!(delivery(lanes, &id).await, Delivery::Sent);
    if is_shown {
        let presence = bus::Presence {
            instance: id.clone(),
            started_at: Timestamp::from_micros(0),
            hostname: "h".to_owned(),
            pid: 1,
            version: "0".to_owned(),
            address: format!("http://{name}"),
        };
        lanes.bus.announce(&presence, SHOWN).await.unwrap();
    }
    id
}

/// By the ledger this instance has lived, and is over.
async fn ends(lanes: &Lanes, id: &InstanceId) {
    let (url, hostname, version) = (format!("http://{id}"), "h".to_owned(), "0".to_owned());
    let about = NewInstance { id: id.clone(), url, hostname, pid: 1, version };
    lanes.ledger.register(&about).await.unwrap();
    let life = Resource::instance(id);
    let acquired = lanes.ledger.acquire(&life, id, 60_000).await.unwrap();
    let Acquisition::Acquired { token, .. } = acquired else { panic!("nobody else has it") };
    assert!(lanes.ledger.release(&life, id, token).await.unwrap());
}

/// As where this instance's ledger is a copy that is served beside its original.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_inbox_of_an_instance_that_shows_itself_is_left_to_it_however_dead_it_is_by_the_ledger() {
    let lanes = crate::lanes::open_among_the_dead().await;
    let lives = on_the_bus(&lanes, "lives-1", true).await;
    let goes = on_the_bus(&lanes, "goes-1", true).await;
    let gone = on_the_bus(&lanes, "gone-1", false).await;
    // A look that finds the last of them dead finds all of them so.
    for id in [&lives, &goes, &gone] {
        ends(&lanes, id).await;
    }
    let is_closed = async |id: &InstanceId| delivery(&lanes, id).await == Delivery::Undeliverable;
    until("one is closed", async || is_closed(&gone).await).await;
    lanes.bus.withdraw(&goes).await.unwrap();
    until("another one is closed, at a later look", async || is_closed(&goes).await).await;
    assert_eq!(lanes.bus.inbox_len(&lives).await.unwrap(), 1, "nothing was taken out");
    assert_eq!(delivery(&lanes, &lives).await, Delivery::Sent);
    lanes.bus.withdraw(&lives).await.unwrap();
    until("it is seen to once it is gone", async || is_closed(&lives).await).await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_lives_by_its_ledger_opens_its_inbox_again_that_another_has_closed() {
    let lanes = crate::lanes::open().await;
    let me = lanes.jobs.me();
    for _ in 0..2 {
        until("it is open", async || delivery(&lanes, me).await == Delivery::Sent).await;
        until("it is closed", async || lanes.bus.close_inbox(me).await.unwrap()).await;
    }
    until("it is open again", async || delivery(&lanes, me).await == Delivery::Sent).await;
    until("it is read again", async || lanes.bus.inbox_len(me).await.unwrap() == 0).await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dispatch_whose_job_cannot_be_read_holds_up_nothing_that_came_behind_it() {
    let lanes = crate::lanes::open().await;
    let (reads, me) = (&lanes.plan.job_reads, lanes.jobs.me());
    let node = NodeId::parse("n").unwrap();
    let mut outbox = lanes.jobs.attach(&node, Instant::now(), &[], &Arc::default());
    let send = async |entry: String| {
        until("it lies in the inbox", async || {
            lanes.bus.send(me, &[entry.as_bytes()]).await.unwrap() == [Delivery::Sent]
        })
        .await;
    };
    let [dispatched, called_off] = [1, 2].map(JobId::from_u128);
    let of = |job: JobId| format!(r#""job":"{job}","attempt":1,"node":"n","holder":"{me}""#);
    let owner = r#""lane":"instance:other-1","owner":"other-1""#;
    reads.unfinished_stall.store(true, Ordering::SeqCst);
    send(format!(r#"{{"type":"dispatch",{},{owner}}}"#, of(dispatched))).await;
    until("its job is being read", async || reads.unfinished() > 0).await;
    send(format!(r#"{{"type":"withdrawal",{}}}"#, of(called_off))).await;
    let messages = tokio::time::timeout(PATIENCE, outbox.next(1)).await.expect("it is taken up");
    assert!(matches!(messages[..], [ToNode::Cancel(job, _)] if job == called_off), "{messages:?}");
}
