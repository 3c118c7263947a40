//! Attempts of nodes here that no lane expects any more: they were revoked or ended, while the message about
//! it was lost, or went to an instance that the node had left. They are looked for in the ledger now and
//! then, so that no node works for nothing for long, and no slot stays taken. What is remembered of a node
//! that has gone elsewhere is forgotten.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::limits::BATCH_JOBS_MAX;
use ledger::jittered;
use panic_guard::guarded;

use super::limits::AWAY_REMEMBERED;
use super::node_gateway::NodeGateway;

/// Between two looks, before jitter.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Searches as long as another handle to the gateway exists.
pub(super) fn start(gateway: &Arc<NodeGateway>, ledger: ledger::Handle, stranded: Duration) {
    let gateway = Arc::downgrade(gateway);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(jittered(LOOK_EVERY)).await;
            let Some(gateway) = gateway.upgrade() else { return };
            let look = look(&gateway, &ledger, stranded, Instant::now());
            if let Some(Err(error)) = guarded("the look at old attempts", look).await {
                tracing::debug!(%error, "orphaned attempts could not be looked up");
            }
        }
    });
}

pub(super) async fn look(
    gateway: &NodeGateway,
    ledger: &ledger::Handle,
    stranded: Duration,
    now: Instant,
) -> ledger::Result<()> {
    let attempts = gateway.attempts();
    for old in attempts.known_for(stranded, now).chunks(BATCH_JOBS_MAX) {
        let jobs: Vec<_> = old.iter().map(|((job, _), ..)| *job).collect();
        let current: HashSet<_> = ledger.attempts_of(&jobs).await?.into_iter().collect();
        for ((job, attempt), node, age) in old {
            let is_here = gateway.is_attached(node);
            if !current.contains(&(*job, *attempt)) {
                tracing::debug!(%job, %attempt, %node, "an attempt of a node here is orphaned");
                gateway.cancel_at_node(node, *job, *attempt);
            } else if !is_here && *age >= AWAY_REMEMBERED {
                gateway.forget(*job, *attempt);
            } else {
                attempts.confirm(*job, *attempt, now);
            }
        }
    }
    // A node that has gone elsewhere says there that it has stopped; nobody there knows what for.
    attempts.keep_cancelled_of(|node| gateway.looks_after(node), now);
    Ok(())
}
