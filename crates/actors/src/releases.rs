//! Giving leases back: whatever is waiting for that goes in one statement, so that an instance that stops, or a
//! ring that changes, ends thousands of leases in moments.
//!
//! What did not come back is tried again for a while, though nobody waits for it: the exact token makes that
//! harmless, however late it comes.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use domain::limits::RENEWALS_MAX;
use domain::{InstanceId, Resource, Token};
use ledger::jittered;
use panic_guard::guarded;
use tokio::sync::{mpsc, oneshot};

/// Between two tries of what did not come back, before jitter.
const AGAIN_EVERY: Duration = Duration::from_millis(100);
/// How often a release is tried. A row that did not match this often belongs to another owner; a lock ends
/// sooner.
const MISSES_MAX: u32 = 3;

/// A lease on its way back.
struct Release {
    resource: Resource,
    token: Token,
    /// Past that it has run out by itself.
    until: Instant,
    misses: u32,
    /// Who waits for the first try.
    tried: Option<oneshot::Sender<()>>,
}

/// Cheap to clone; all clones go the same way. Never more are on their way than there are actors.
#[derive(Clone)]
pub(crate) struct Releases {
    queue: mpsc::UnboundedSender<Release>,
    lease: Duration,
}

impl Releases {
    /// Releases leases as long as a handle to this exists.
    pub(crate) fn start(ledger: ledger::Handle, owner: InstanceId, lease: Duration) -> Self {
        let (queue, mut waiting) = mpsc::unbounded_channel::<Release>();
        tokio::spawn(async move {
            let mut again: Vec<Release> = Vec::new();
            let mut again_at = Instant::now();
            loop {
                let mut batch = Vec::new();
                let more = waiting.recv_many(&mut batch, RENEWALS_MAX);
                let received = match again.is_empty() {
                    true => Ok(more.await),
                    false => tokio::time::timeout_at(again_at.into(), more).await,
                };
                if received == Ok(0) {
                    return;
                }
                let now = Instant::now();
                again.retain(|release| now < release.until);
                let room = RENEWALS_MAX.saturating_sub(batch.len()).min(again.len());
                // However much comes meanwhile, but for a full statement.
                if now >= again_at && room > 0 {
                    batch.extend(again.drain(..room));
                    again_at = now + jittered(AGAIN_EVERY);
                }
                if !batch.is_empty() {
                    // After a panic these leases run out by themselves.
                    let left = guarded("the release of leases", try_all(&ledger, &owner, batch)).await;
                    again.extend(left.into_iter().flatten());
                }
            }
        });
        Self { queue, lease }
    }

    /// Gives a lease back, and comes back when that was tried.
    pub(crate) async fn release(&self, resource: Resource, token: Token) {
        let (tried, done) = oneshot::channel();
        let until = Instant::now() + self.lease;
        if self.queue.send(Release { resource, token, until, misses: 0, tried: Some(tried) }).is_ok() {
            // The task answers each release, unless a panic interrupts it or the process ends.
            let _ = done.await;
        }
    }
}

/// One statement; answers those to be tried again.
async fn try_all(ledger: &ledger::Handle, owner: &InstanceId, mut batch: Vec<Release>) -> Vec<Release> {
    let leases: Vec<_> = batch.iter().map(|release| (release.resource.clone(), release.token)).collect();
    let ended = ledger.release_all(owner, &leases).await;
    for release in &mut batch {
        // Nobody may be waiting for it.
        let _ = release.tried.take().map(|tried| tried.send(()));
    }
    match ended {
        Ok(ended) => {
            let ended: HashSet<_> = ended.into_iter().collect();
            batch.retain_mut(|release| {
                release.misses += 1;
                !ended.contains(&release.resource) && release.misses < MISSES_MAX
            });
        }
        Err(error) => {
            let leases = batch.len();
            ledger::log_failure!(
                error,
                leases,
                "leases were not released yet; else they expire by themselves"
            );
        }
    }
    batch
}
