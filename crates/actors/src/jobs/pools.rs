//! Follows the pools of nodes as they are configured: read every half second, and as soon as somebody tells that
//! something was decided.

use std::sync::Arc;
use std::time::Duration;

use bus::Channel;
use nodes::Pools;

use super::Inner;
use crate::pause::jittered;

/// Between two looks, before jitter: with it, half as much again is under a second.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Follows the pools as long as another handle to the lanes exists.
pub(super) fn follow(inner: &Arc<Inner>) {
    let mut told = inner.bus.subscribe(Channel::Cluster);
    let inner = Arc::downgrade(inner);
    tokio::spawn(async move {
        loop {
            {
                let Some(inner) = inner.upgrade() else { return };
                match inner.ledger.pools().await {
                    Ok((version, pools)) if version > inner.registry.pools().version() => {
                        match Pools::from_json(version, &pools) {
                            Ok(pools) => {
                                inner.registry.adopt_pools(pools);
                            }
                            Err(error) => tracing::error!(%error, version, "the pools cannot be read"),
                        }
                    }
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, "the pools could not be read"),
                }
            }
            tokio::select! {
                Some(_) = told.next() => {}
                () = tokio::time::sleep(jittered(LOOK_EVERY)) => {}
            }
        }
    });
}
