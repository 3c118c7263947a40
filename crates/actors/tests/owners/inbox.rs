//! What other instances put into the inbox of an instance.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use actors::jobs::ToNode;
use bus::Delivery;
use domain::{JobId, NodeId};

use crate::{PATIENCE, until};

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
