//! After a restart while the ledger is away: the keeper uses the number that the local file proves, up to the mark that
//! the file names, or until the ledger is back.

use std::sync::Arc;
use std::time::Duration;

use super::super::worker_id_file::Record;
use super::ahead::Ahead;
use super::{Held, Keeper, KeeperContext, NumberSource, Phase, Refusal, changed};
use crate::snowflake::Generator;

/// How often it looks at the clock and moves the file on.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Pause before another try to acquire a number from the ledger.
const SEEK_AGAIN: Duration = Duration::from_millis(1_000);

impl Keeper {
    /// Makes ids by the file for as long as it proves anything; answers the number that was acquired meanwhile.
    pub(super) async fn go_on_by_file(&mut self, ahead: &mut Ahead, record: Record) -> Option<Held> {
        tracing::warn!(worker = %record.number, "issuing snowflakes by the local file");
        let generator =
            Arc::new(Generator::new(self.context.options.layout, record.number, record.issued_ms));
        let mut recalled = self.context.shared.recall.subscribe();
        let begun = *recalled.borrow_and_update();
        loop {
            let now_ms = self.context.shared.clock.now_ms();
            let is_over = self.source.has_changed().is_err();
            let source = self.source.borrow_and_update().clone();
            let is_recalled = *recalled.borrow_and_update() != begun;
            if is_over || is_recalled || matches!(source, NumberSource::Ended) || now_ms >= record.mark_ms {
                self.context.close(&generator);
                self.context.tell(Phase::Seeking(None));
                return None;
            }
            self.context.extend_by_file(ahead, &record, &generator, now_ms).await;
            let context = &self.context;
            let sought = async {
                match source {
                    NumberSource::Instance(numbers) => match context.seek(&numbers).await {
                        Ok(held) => Some(held),
                        Err(refusal) => {
                            tracing::debug!(%refusal, "no worker number from the ledger yet");
                            tokio::time::sleep(SEEK_AGAIN).await;
                            None
                        }
                    },
                    NumberSource::Unreached | NumberSource::Ended => std::future::pending().await,
                }
            };
            let mut sought = std::pin::pin!(sought);
            loop {
                tokio::select! {
                    biased;
                    () = changed(&mut self.source) => break,
                    () = changed(&mut recalled) => break,
                    found = &mut sought => match found {
                        Some(held) => return Some(held),
                        None => break,
                    },
                    () = tokio::time::sleep(LOOK_EVERY) => {
                        let now_ms = context.shared.clock.now_ms();
                        if now_ms >= record.mark_ms {
                            break;
                        }
                        context.extend_by_file(ahead, &record, &generator, now_ms).await;
                    }
                }
            }
        }
    }
}

impl KeeperContext {
    /// Whether the file proves a number to this instance.
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
        tracing::info!(worker = %record.number, reason, "the local file no longer proves a worker number");
        false
    }

    /// For how long. If the clock went back, no longer than a mark can be ahead.
    pub(super) fn proves_for(&self, record: &Record) -> Duration {
        let left_ms = record.mark_ms.saturating_sub(self.shared.clock.now_ms());
        Duration::from_millis(left_ms.min(self.options.ahead_max_ms()))
    }

    /// Updates the file and raises the limit, as far as the committed mark allows.
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
