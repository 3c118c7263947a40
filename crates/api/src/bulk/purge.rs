//! Deletes bulk operations that have been over for long enough, some at a time.

use std::time::Instant;

use ledger::LastTold;

use crate::limits::BULK_PURGE_STEP;
use crate::state::State;

/// When failures were told of last.
static TOLD: LastTold = LastTold::never();

/// When the next are to be deleted.
pub struct Purge {
    at: Instant,
}

impl Purge {
    /// Begins after one pause.
    pub fn new(state: &State) -> Self {
        Self { at: Instant::now() + state.settings.bulk_purge_every }
    }

    /// Deletes some, if their time has come. Where there may be more, the next step is due at once.
    pub async fn step(&mut self, state: &State) {
        if Instant::now() < self.at {
            return;
        }
        let purged = state.look(&TOLD, purge(state)).await;
        if !matches!(purged, Ok(count) if count >= u64::from(BULK_PURGE_STEP)) {
            self.at = Instant::now() + state.settings.bulk_purge_every;
        }
        if let Err(refusal) = purged {
            metrics::counter!("fencepost_purge_failures_total", "of" => "bulks").increment(1);
            tracing::debug!(%refusal, "old bulk operations could not be purged");
        }
    }
}

async fn purge(state: &State) -> ledger::Result<u64> {
    let kept_ms = state.clock.read_kept_ms(&state.ledger, state.settings.bulk_kept).await?;
    state.ledger.purge_bulks(kept_ms, BULK_PURGE_STEP).await
}
