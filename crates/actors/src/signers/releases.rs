//! Giving leases back: whatever is waiting for that goes in one statement, so that an instance that stops, or a
//! ring that changes, ends thousands of leases in moments.

use domain::limits::RENEWALS_MAX;
use domain::{InstanceId, Resource, Token};
use tokio::sync::{mpsc, oneshot};

/// A lease on its way back, and who waits for that.
type Release = (Resource, Token, oneshot::Sender<()>);

/// Cheap to clone; all clones go the same way. There are never more on their way than desks.
#[derive(Clone)]
pub(super) struct Releases {
    queue: mpsc::UnboundedSender<Release>,
}

impl Releases {
    /// Gives back for as long as somebody holds on to this.
    pub(super) fn start(ledger: ledger::Handle, owner: InstanceId) -> Self {
        let (queue, mut waiting) = mpsc::unbounded_channel::<Release>();
        tokio::spawn(async move {
            let mut boarding = Vec::new();
            while waiting.recv_many(&mut boarding, RENEWALS_MAX).await > 0 {
                let leases: Vec<_> =
                    boarding.iter().map(|(resource, token, _)| (resource.clone(), *token)).collect();
                match ledger.release_all(&owner, &leases).await {
                    Ok(ended) if ended.len() < leases.len() => {
                        let gone = leases.len() - ended.len();
                        tracing::debug!(gone, "leases were gone before their release");
                    }
                    Ok(_) => {}
                    Err(error) => {
                        let (leases, first) = (leases.len(), &leases[0].0);
                        tracing::warn!(%error, leases, %first, "leases were not released and run out by themselves");
                    }
                }
                for (_, _, done) in boarding.drain(..) {
                    // Nobody may be waiting for it.
                    let _ = done.send(());
                }
            }
        });
        Self { queue }
    }

    /// Gives a lease back, and comes back when that was tried.
    pub(super) async fn release(&self, resource: Resource, token: Token) {
        let (done, tried) = oneshot::channel();
        if self.queue.send((resource, token, done)).is_ok() {
            // Whoever gives back tells everybody, unless the process ends.
            let _ = tried.await;
        }
    }
}
