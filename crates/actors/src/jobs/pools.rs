//! Follows the pools of nodes as they are configured, and which of them are paused: read every half second, and as soon as a
//! notice says that something was decided.

use std::time::Duration;

use bus::Subscription;
use ledger::jittered;
use nodes::{Pools, Registry};

use super::lifetime::Lifetime;
use crate::panic_guard::again_after_panics;

/// Between two looks, before jitter: with it, half as much again is under a second.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Follows the pools as long as a handle to the jobs exists.
pub(super) fn start(ledger: ledger::Handle, bus: bus::Handle, registry: Registry, lifetime: Lifetime) {
    let work = move || {
        let notices = bus.subscribe(bus::Channel::Cluster);
        follow(ledger.clone(), notices, registry.clone(), lifetime.clone())
    };
    tokio::spawn(again_after_panics("the look at the pools", work));
}

async fn follow(ledger: ledger::Handle, mut notices: Subscription, registry: Registry, lifetime: Lifetime) {
    while !lifetime.is_dropped() {
        match ledger.pools().await {
            Ok((version, pools)) if version > registry.pools().version() => {
                match Pools::from_json(version, &pools) {
                    Ok(pools) => {
                        registry.adopt_pools(pools);
                    }
                    Err(error) => tracing::error!(%error, version, "the pools cannot be read"),
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the pools could not be read"),
        }
        let known = registry.pauses();
        match ledger.pool_pauses().await {
            // If somebody paused or resumed a pool here meanwhile, the next look finds it.
            Ok(pauses) => drop(registry.adopt_pauses(&known, pauses)),
            // Those that are known stay: what was paused is not dispatched because the ledger is away.
            Err(error) => tracing::debug!(%error, "the pauses of pools could not be read"),
        }
        tokio::select! {
            Some(_) = notices.next() => {}
            () = tokio::time::sleep(jittered(LOOK_EVERY)) => {}
        }
    }
}
