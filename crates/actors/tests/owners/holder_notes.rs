//! Notes of who holds a node, while the ledger is away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use actors::jobs::HolderNote;
use bus::Slot;
use domain::job::Attempt;
use domain::{JobId, NodeId};
use ledger::{Error, Result};

use crate::flaky::lost;
use crate::until;

/// Notes of who holds a node.
#[derive(Default)]
pub struct HolderNotes {
    /// What nodes have cannot be read, and of the notes the first fails, and the others are never answered.
    is_away: AtomicBool,
    begun: AtomicUsize,
    under_way: AtomicUsize,
}

/// A note that is not answered, until it is given up.
struct UnderWay<'n>(&'n AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl HolderNotes {
    /// What a node has is to be read.
    pub fn read(&self) -> Result<()> {
        if self.is_away.load(Ordering::SeqCst) { Err(Error::unavailable(lost())) } else { Ok(()) }
    }

    /// A note begins.
    pub async fn begin(&self) -> Result<()> {
        if !self.is_away.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let _under_way = UnderWay(&self.under_way);
        if self.begun.fetch_add(1, Ordering::SeqCst) == 0 {
            return Err(Error::unavailable(lost()));
        }
        std::future::pending().await
    }

    /// Waits until so many have begun, and so many of them are under way.
    async fn are(&self, begun: usize, under_way: usize) {
        until(&format!("of {begun} notes {under_way} are under way"), async || {
            let now = (self.begun.load(Ordering::SeqCst), self.under_way.load(Ordering::SeqCst));
            now == (begun, under_way)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_a_node_is_here_is_noted_once_at_a_time_and_no_longer_than_its_connection_lasts() {
    let lanes = crate::lanes::open().await;
    let (node, slot) =
        (NodeId::parse("n").unwrap(), Slot { job: JobId::from_u128(1), attempt: Attempt::new(1) });
    crate::lanes::dispatch_elsewhere(&lanes.ledger, slot.job, &node).await;
    let attempts_on = async |connection: &Arc<HolderNote>| {
        lanes.jobs.attempts_on(&node, &Arc::downgrade(connection), Instant::now(), &[slot]).await
    };
    let (notes, connection) = (&lanes.plan.holder_notes, Arc::<HolderNote>::default());
    notes.is_away.store(true, Ordering::SeqCst);
    assert!(attempts_on(&connection).await.is_err());
    notes.are(2, 1).await;
    // Its record is registered again.
    assert!(attempts_on(&connection).await.is_err());
    notes.are(3, 1).await;
    drop(connection);
    notes.are(3, 0).await;
    notes.is_away.store(false, Ordering::SeqCst);
    let holder = async || lanes.ledger.attempts_on(&node).await.unwrap()[0].holder.clone();
    assert_eq!(holder().await.as_str(), "other-1");
    let connection = Arc::<HolderNote>::default();
    assert_eq!(attempts_on(&connection).await.unwrap(), [slot]);
    until("that it is here is noted", async || holder().await == *lanes.jobs.me()).await;
}
