//! Deletes bulk operations that have been over for long enough, some at a time.

use std::io;
use std::time::Instant;

use actors::PurgeWatch;
use ledger::LastTold;

use crate::limits::BULK_PURGE_STEP;
use crate::refusal::Refusal;
use crate::state::State;

/// When failures were told of last.
static TOLD: LastTold = LastTold::never();

/// When the next are to be deleted.
pub struct Purge {
    at: Instant,
    watch: PurgeWatch,
}

impl Purge {
    /// Begins after one pause.
    pub fn new(state: &State) -> Self {
        Self { at: Instant::now() + state.settings.bulk_purge_every, watch: PurgeWatch::new("bulks") }
    }

    /// Deletes some, if their time has come. Where there may be more, the next step is due at once.
    pub async fn step(&mut self, state: &State) {
        if Instant::now() < self.at {
            return;
        }
        let answer = state.ask(state.settings.request_timeout, purge(state)).await;
        let purged = answer
            .unwrap_or_else(|| Err(ledger::Error::unavailable(io::Error::from(io::ErrorKind::TimedOut))));
        self.watch.saw(&purged);
        if !matches!(purged, Ok(count) if count >= u64::from(BULK_PURGE_STEP)) {
            self.at = Instant::now() + state.settings.bulk_purge_every;
        }
        if let Err(error) = purged {
            let refusal = Refusal::of_background(error, &TOLD);
            tracing::debug!(%refusal, "old bulk operations could not be purged");
        }
    }
}

async fn purge(state: &State) -> ledger::Result<u64> {
    let kept_ms = state.clock.read_kept_ms(&state.ledger, state.settings.bulk_kept).await?;
    state.ledger.purge_bulks(kept_ms, BULK_PURGE_STEP).await
}
