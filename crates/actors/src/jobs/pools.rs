//! Follows the pools of nodes as they are configured, and which of them are paused: read every half second, and as soon as a
//! notice says that something was decided. Before both were read for the first time, nothing is placed.

use std::time::Duration;

use bus::Subscription;
use ledger::jittered;
use nodes::{Pools, Registry};
use panic_guard::again_after_panics;

use super::lifetime::Lifetime;

/// Between two looks, before jitter: with it, half as much again is under a second.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Follows the pools as long as a handle to the jobs exists. From here on no node is selected before they were read.
pub(super) fn start(ledger: ledger::Handle, bus: bus::Handle, registry: Registry, lifetime: Lifetime) {
    registry.await_pools();
    let work = move || {
        let notices = bus.subscribe(bus::Channel::Cluster);
        follow(ledger.clone(), notices, registry.clone(), lifetime.clone())
    };
    tokio::spawn(again_after_panics("the look at the pools", work));
}

async fn follow(ledger: ledger::Handle, mut notices: Subscription, registry: Registry, lifetime: Lifetime) {
    while !lifetime.is_dropped() {
        // What no look will ever read is not waited for.
        let has_pools = match ledger.pools().await {
            Ok((version, pools)) => {
                if version > registry.pools().version() {
                    adopt(&registry, version, &pools);
                }
                true
            }
            Err(error) => {
                tracing::debug!(%error, "the pools could not be read");
                !error.is_retryable()
            }
        };
        let known = registry.pauses();
        let has_pauses = match ledger.pool_pauses().await {
            Ok(pauses) => {
                // If somebody paused or resumed a pool here meanwhile, the next look finds it.
                registry.adopt_pauses(&known, pauses);
                true
            }
            // Those that are known stay: what was paused is not dispatched because the ledger is away.
            Err(error) => {
                tracing::debug!(%error, "the pauses of pools could not be read");
                !error.is_retryable()
            }
        };
        if has_pools && has_pauses {
            registry.pools_are_read();
        }
        tokio::select! {
            Some(_) = notices.next() => {}
            () = tokio::time::sleep(jittered(LOOK_EVERY)) => {}
        }
    }
}

fn adopt(registry: &Registry, version: u64, pools: &str) {
    match Pools::from_json(version, pools) {
        Ok(pools) => {
            registry.adopt_pools(pools);
        }
        Err(error) => tracing::error!(%error, version, "the pools cannot be read"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use cluster::FailureDetector;
    use domain::job::Requirements;
    use domain::{AuditEntry, NodeTimeouts, PoolName};
    use nodes::Wanted;
    use tokio::sync::watch;

    use super::*;
    use crate::jobs::fixture::{Ledger, instance, node_record};
    use crate::jobs::lifetime::Phase;

    #[tokio::test]
    async fn nothing_is_placed_before_it_is_known_which_pools_are_paused() {
        for is_paused in [true, false] {
            let ledger = Ledger::open().await;
            if is_paused {
                let pool = PoolName::parse("default").unwrap();
                let by = AuditEntry::new("ops", "pause_pool", "pool:default");
                ledger.handle.pause_pool(&pool, "repair", None, &by).await.unwrap();
            }
            let registry = Registry::new(instance("a"), NodeTimeouts::DEFAULT);
            registry.recorded(node_record("n", "a", bus::Epoch::new(1), 0), Instant::now());
            registry.reindex();
            let needs = Requirements::default();
            let finds = || registry.select(&Wanted::new(&needs), &mut rand::rng()).is_some();
            assert!(finds(), "the node is there");
            let mut openings = registry.openings();
            let (_serving, phase) = watch::channel(Phase::Serving);
            let lifetime = Lifetime::new(phase, FailureDetector::alone());
            start(ledger.handle.clone(), bus::Hub::default().join(), registry.clone(), lifetime);
            assert!(!finds(), "nothing was read yet");
            let is_known = || if is_paused { !registry.pauses().is_empty() } else { finds() };
            while !is_known() {
                openings.changed().await.unwrap();
            }
            assert_eq!(finds(), !is_paused);
        }
    }
}
