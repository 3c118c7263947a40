//! After a restart while the ledger is away: the keeper uses the number that the local file proves, up to the mark that
//! the file names, or until the ledger is back: until a mark of another number is committed there. Until then the file names
//! the same number and the same mark, and only its `issued_ms` moves on, so that a crash before that mark leaves the proof.
//! Once a ledger is reached that is not the file's, or that went back in time, no id is made by the file any more, and the
//! file is deleted.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ledger::jittered;
use tokio::time::sleep;

use super::super::numbers::{Numbers, WorkerLease};
use super::super::worker_id_file::Record;
use super::ahead::Ahead;
use super::{
    Held, Keeper, KeeperContext, Lost, MARK_AGAIN, NumberSource, Phase, Refusal, SEEK_AGAIN, changed,
};
use crate::snowflake::Generator;

/// How often it looks at the clock and moves the file on.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Why no more ids are made by the file.
#[derive(Clone, Copy)]
enum End {
    /// The ledger that is reached may give the file's number to others, for this reason.
    Void(&'static str),
    /// The generator is stopped.
    Stopped,
    /// A mark of another number is committed.
    Marked,
    /// The file's mark is past.
    Past,
}

impl Keeper {
    /// Makes ids by the file for as long as it proves anything; answers the number that was acquired meanwhile.
    pub(super) async fn go_on_by_file(&mut self, ahead: &mut Ahead, record: Record) -> Option<Held> {
        tracing::warn!(worker = %record.number, "issuing snowflakes by the local file");
        let generator =
            Arc::new(Generator::new(self.context.options.layout, record.number, record.issued_ms));
        let begun = *self.recalled.borrow_and_update();
        self.context.made_by_file = Some((record.number, record.mark_ms));
        // The number that was acquired from the ledger, and of whose lease no mark is committed yet.
        let mut acquired: Option<Held> = None;
        let mut went_back = false;
        loop {
            let now_ms = self.context.shared.clock.now_ms();
            let is_over = self.source.has_changed().is_err();
            let source = self.source.borrow_and_update().clone();
            let is_recalled = *self.recalled.borrow_and_update() != begun || went_back;
            if is_recalled {
                acquired = None;
            }
            let of_before = acquired.take_if(|held| !held.is_of(&source));
            let end = if record.is_of_another_than(&source) {
                Some(End::Void("it is of another ledger than the one reached"))
            } else if is_recalled {
                Some(End::Void("its ledger went back in time, or was recovered"))
            } else if is_over || matches!(source, NumberSource::Ended) {
                Some(End::Stopped)
            } else if acquired.as_ref().is_some_and(|held| held.mark_ms > 0) {
                Some(End::Marked)
            } else {
                (now_ms >= record.mark_ms).then_some(End::Past)
            };
            if end.is_some() {
                // First, so that no id is made while the ledger is waited for.
                self.end_by_file(&generator, &record);
            }
            if let Some(End::Void(reason)) = end {
                tracing::warn!(worker = %record.number, reason, "the local file proves its worker number no more");
                ahead.remove().await;
            }
            if matches!(end, Some(End::Past)) {
                tracing::warn!(
                    worker = %record.number, now_ms, mark_ms = record.mark_ms,
                    "the machine's clock has come to the mark of the local file: no more snowflakes by it, also if the clock is \
                     set back; they go on under a number from the ledger"
                );
            }
            if let Some(held) = of_before {
                held.give_back().await;
            }
            if end.is_some() {
                if let Some(held) = &mut acquired {
                    let (number, start_ms) = (held.worker_lease.number, held.generator.close());
                    let start_ms = self.context.first_free_ms(number, start_ms);
                    held.generator = Arc::new(Generator::new(self.context.options.layout, number, start_ms));
                }
                return acquired;
            }
            self.context.extend_by_file(ahead, &record, &generator, now_ms).await;
            let context = &self.context;
            let step = async {
                match source {
                    NumberSource::Instance(numbers) => context.acquire_or_mark(&numbers, &mut acquired).await,
                    NumberSource::Unreached | NumberSource::Ended => pending().await,
                }
            };
            let mut step = pin!(step);
            loop {
                tokio::select! {
                    biased;
                    () = changed(&mut self.source) => break,
                    () = changed(&mut self.recalled) => break,
                    is_behind = &mut step => {
                        went_back = is_behind;
                        break;
                    }
                    () = sleep(LOOK_EVERY) => {
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

    /// Closes the generator. The next one of its number begins after its ids, whatever the mark in the ledger is. One that has
    /// made none ends where it began: after the ids of the process that wrote the file.
    fn end_by_file(&mut self, generator: &Generator, record: &Record) {
        self.context.made_by_file = Some((record.number, self.context.close(generator)));
    }
}

impl Record {
    /// Whether a ledger is reached that is not the record's.
    fn is_of_another_than(&self, source: &NumberSource) -> bool {
        matches!(source, NumberSource::Instance(numbers) if numbers.cluster() != self.ledger.cluster)
    }
}

impl Held {
    /// Whether its number is of this source.
    fn is_of(&self, source: &NumberSource) -> bool {
        matches!(source, NumberSource::Instance(numbers) if numbers.identity() == self.numbers.identity())
    }
}

impl KeeperContext {
    /// Whether the file proves a number to this instance.
    pub(super) fn is_proof(&self, record: &Record) -> bool {
        let Self { options, shared, ledger_address, .. } = self;
        let known = options.ledger.cluster.as_ref();
        let reason = if record.ledger.address != *ledger_address {
            "it is of a ledger at another address"
        } else if known.is_some_and(|cluster| *cluster != record.ledger.cluster) {
            "it is of another ledger than the one known"
        } else if record.epoch_ms != options.layout.epoch_ms() {
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

    /// For how long the file proves its number. If the clock went back, no longer than a mark can be ahead.
    pub(super) fn proves_for(&self, record: &Record) -> Duration {
        let left_ms = record.mark_ms.saturating_sub(self.shared.clock.now_ms());
        Duration::from_millis(left_ms.min(self.options.ahead_max_ms()))
    }

    /// Acquires a number from the ledger, or commits the first mark of the one that was acquired. Pauses after a failure.
    /// Whether the ledger went back in time.
    async fn acquire_or_mark(&self, numbers: &Arc<dyn Numbers>, acquired: &mut Option<Held>) -> bool {
        let Some(held) = acquired else {
            match self.seek(numbers).await {
                Ok(held) => *acquired = Some(held),
                Err(Refusal::Ledger(ledger::Error::WentBack)) => return true,
                Err(refusal) => {
                    tracing::debug!(%refusal, "no worker number from the ledger yet");
                    sleep(jittered(SEEK_AGAIN)).await;
                }
            }
            return false;
        };
        let renewed = self.renewal(held).await;
        match held.note(renewed, &self.options) {
            Ok(_) if held.mark_ms > 0 => {}
            Ok(_) => sleep(jittered(MARK_AGAIN)).await,
            Err(Lost::WentBack) => return true,
            Err(lost @ Lost::Taken) => {
                let WorkerLease { number, token } = held.worker_lease;
                tracing::warn!(worker = %number, %token, reason = lost.as_str(), "a worker number was lost");
                *acquired = None;
            }
        }
        false
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
        match ahead.limit(record.clone(), now_ms).await {
            Ok(limit_ms) => {
                generator.raise_limit(limit_ms);
                self.show(generator);
                self.tell(Phase::Holding(None));
            }
            Err(refusal) => self.tell(Phase::Holding(Some(refusal))),
        }
    }
}
