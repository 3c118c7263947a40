//! Attempts that nodes here have, and that are nobody's any more: taken back or ended, while the word of it was lost, or
//! went to an instance that the node had left. They are looked for in the ledger now and then, so that no node works
//! for nothing for long, and no slot stays taken. What is remembered of a node that has gone elsewhere is forgotten.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::limits::BATCH_JOBS_MAX;

use super::Inner;
use super::limits::{AWAY_REMEMBERED, STRANDED_AFTER};
use crate::pause::jittered;

/// Between two looks, before jitter.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Looks for as long as somebody else holds on to the lanes.
pub(super) fn start(inner: &Arc<Inner>) {
    let inner = Arc::downgrade(inner);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(jittered(LOOK_EVERY)).await;
            let Some(inner) = inner.upgrade() else { return };
            if let Err(error) = inner.look_for_strays(Instant::now()).await {
                tracing::debug!(%error, "attempts that are nobody's were not looked for");
            }
        }
    });
}

impl Inner {
    async fn look_for_strays(&self, now: Instant) -> ledger::Result<()> {
        let holder = &self.holder;
        let age = |since: Option<Instant>| since.map_or(STRANDED_AFTER, |since| now.duration_since(since));
        let mut old: Vec<_> = holder
            .attempts
            .iter()
            .filter(|there| age(there.since) >= STRANDED_AFTER)
            .map(|there| (*there.key(), there.node.clone(), age(there.since)))
            .collect();
        old.sort_unstable_by_key(|(attempt, ..)| *attempt);
        for old in old.chunks(BATCH_JOBS_MAX) {
            let jobs: Vec<_> = old.iter().map(|((job, _), ..)| *job).collect();
            let current: HashSet<_> = self.ledger.attempts_of(&jobs).await?.into_iter().collect();
            for ((job, attempt), node, age) in old {
                let is_here = holder.is_attached(node);
                if !current.contains(&(*job, *attempt)) {
                    tracing::debug!(%job, %attempt, %node, "an attempt is nobody's any more");
                    self.leave_off(node.clone(), *job, *attempt);
                } else if !is_here && *age >= AWAY_REMEMBERED {
                    self.forget(*job, *attempt);
                } else if let Some(mut there) = holder.attempts.get_mut(&(*job, *attempt)) {
                    there.since.get_or_insert(now);
                }
            }
        }
        // A node that is not here says elsewhere that it has stopped; nobody there knows what for.
        holder.called_off.retain(|_, node| holder.is_attached(node));
        Ok(())
    }
}
