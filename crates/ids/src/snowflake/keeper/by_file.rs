//! After a restart while the ledger is away: going on with the number that the local file proves, until the mark
//! that it names, or until the ledger is there again.

use std::sync::Arc;
use std::time::Duration;

use super::super::keepsake::Record;
use super::ahead::Ahead;
use super::{Employer, Held, Keeper, Phase, Refusal, Seat, changed};
use crate::snowflake::Generator;

/// How often it looks at the clock and moves the file on.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Pause after a number could not be had from the ledger.
const SEEK_AGAIN: Duration = Duration::from_millis(1_000);

impl Keeper {
    /// Serves from the file for as long as it proves anything; answers a number that was acquired meanwhile.
    pub(super) async fn go_on_by_file(&mut self, ahead: &mut Ahead, record: Record) -> Option<Held> {
        tracing::warn!(worker = %record.number, "going on by the local file until the ledger is reached");
        let generator = Arc::new(Generator::new(self.seat.options.layout, record.number, record.issued_ms));
        loop {
            let now_ms = self.seat.shared.clock.now_ms();
            let is_over = self.employment.has_changed().is_err();
            let employer = self.employment.borrow_and_update().clone();
            if is_over || matches!(employer, Employer::Over) || now_ms >= record.mark_ms {
                self.seat.close(&generator);
                self.seat.tell(Phase::Seeking(None));
                return None;
            }
            self.seat.extend_by_file(ahead, &record, &generator, now_ms).await;
            let seat = &self.seat;
            let sought = async {
                match employer {
                    Employer::Instance(numbers) => match seat.seek(&numbers).await {
                        Ok(held) => Some(held),
                        Err(refusal) => {
                            tracing::debug!(%refusal, "no worker number from the ledger yet");
                            tokio::time::sleep(SEEK_AGAIN).await;
                            None
                        }
                    },
                    Employer::Nobody | Employer::Over => std::future::pending().await,
                }
            };
            let mut sought = std::pin::pin!(sought);
            loop {
                tokio::select! {
                    biased;
                    () = changed(&mut self.employment) => break,
                    found = &mut sought => match found {
                        Some(held) => return Some(held),
                        None => break,
                    },
                    () = tokio::time::sleep(LOOK_EVERY) => {
                        let now_ms = seat.shared.clock.now_ms();
                        if now_ms >= record.mark_ms {
                            break;
                        }
                        seat.extend_by_file(ahead, &record, &generator, now_ms).await;
                    }
                }
            }
        }
    }
}

impl Seat {
    /// Whether a number may be gone on with by what the file says.
    pub(super) fn is_proof(&self, record: &Record) -> bool {
        let Self { options, shared } = self;
        let reason = if record.epoch_ms != options.layout.epoch_ms() {
            "it is of another epoch"
        } else if !options.choice.admits(record.number) {
            "its number is none of those configured"
        } else if shared.clock.now_ms() >= record.mark_ms {
            "its mark is past"
        } else {
            return true;
        };
        tracing::info!(worker = %record.number, reason, "the local file proves no worker number any more");
        false
    }

    /// For how long it may. A clock that went back makes it no longer than a mark can be ahead.
    pub(super) fn proves_for(&self, record: &Record) -> Duration {
        let left_ms = record.mark_ms.saturating_sub(self.shared.clock.now_ms());
        Duration::from_millis(left_ms.min(self.options.ahead_max_ms()))
    }

    /// Moves the file and the limit on, as far as the mark that is committed allows.
    async fn extend_by_file(
        &self,
        ahead: &mut Ahead,
        record: &Record,
        generator: &Arc<Generator>,
        now_ms: u64,
    ) {
        if now_ms < record.issued_ms {
            let wait_ms = record.issued_ms - now_ms;
            return self.tell(Phase::Seeking(Some(Refusal::MarkAhead { number: record.number, wait_ms })));
        }
        match ahead.limit((record.number, record.epoch_ms, record.mark_ms), now_ms).await {
            Ok(limit_ms) => {
                generator.raise_limit(limit_ms);
                self.show(generator);
                self.tell(Phase::Holding(None));
            }
            Err(refusal) => self.tell(Phase::Holding(Some(refusal))),
        }
    }
}
