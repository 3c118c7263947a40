//! Snowflakes: ids made in memory, out of the time, a worker number that is leased, and a count.
//!
//! The path of an id: [`Snowflakes::take`] → the [`Generator`] of the leased number → answer. In the
//! background the [`keeper`] acquires a number on the first request for an id (after a recovery at once), keeps its
//! time mark ahead of issuance, and gives it back.
//!
//! **Why no id comes twice.** Two generators never share a number and a time. The ids made under one lease of a number
//! have times from the mark that the earlier holders left, up to the mark that this holder has committed. The mark is
//! written under the fence: a holder that lost its number cannot move the mark, and makes ids at most up to the mark at
//! which its successor began. This holds whatever the clocks show: a wrong clock makes ids wait, or be refused.

mod generator;
mod guarded_numbers;
mod keeper;
mod layout;
mod numbers;
mod refusal;
mod take;
mod worker_id_file;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use domain::WorkerNumber;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

use crate::Clock;
use crate::limits::{
    CLOCK_BACK_MS_MAX, CLOCK_SKEW_MS_DEFAULT, EPOCH_END_WARNED_MS, LEAD_MS_DEFAULT, LEAD_MS_MAX, LEAD_MS_MIN,
    MARK_EVERY_MS_MAX, MARKS_PER_LEAD, WORKER_LEASE_MS_DEFAULT,
};
pub use generator::{Generator, Run, Stop};
use guarded_numbers::GuardedNumbers;
use keeper::Keeper;
pub use layout::{Layout, PER_MS, Parts};
pub use numbers::{Candidate, Choice, LedgerNumbers, Numbers, WorkerLease, candidates};
pub use refusal::Refusal;
pub use worker_id_file::why_file_refused;

/// What is known of the ledger before it is reached.
#[derive(Clone, Debug, Default)]
pub struct KnownLedger {
    /// Where it is, without a password. The local file counts for the same place alone; it keeps a checksum of it.
    pub address: String,
    /// Its id, if that was seen before. The local file then counts for this ledger alone.
    pub cluster: Option<String>,
}

/// The settings of snowflakes.
#[derive(Clone, Debug)]
pub struct Options {
    /// The layout, which all of a fleet share.
    pub layout: Layout,
    /// The numbers that this instance may acquire.
    pub choice: Choice,
    /// How far ahead of the clock the mark is committed, in milliseconds: [`LEAD_MS_MIN`] to [`LEAD_MS_MAX`].
    pub lead_ms: u64,
    /// Length of the number's lease, in milliseconds. Not shorter than the lead.
    pub lease_ms: u64,
    /// How far this machine's clock may be off the database's, in milliseconds.
    pub clock_skew_ms: u64,
    /// The ledger.
    pub ledger: KnownLedger,
    /// The local file; `None` for none.
    pub file: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            layout: Layout::default(),
            choice: Choice::Any,
            lead_ms: LEAD_MS_DEFAULT,
            lease_ms: WORKER_LEASE_MS_DEFAULT,
            clock_skew_ms: CLOCK_SKEW_MS_DEFAULT,
            ledger: KnownLedger::default(),
            file: None,
        }
    }
}

impl Options {
    /// Between two renewals of the mark.
    fn mark_every(&self) -> Duration {
        Duration::from_millis((self.lead_ms / MARKS_PER_LEAD).min(MARK_EVERY_MS_MAX))
    }

    /// How far the mark may be ahead of the database's clock, in milliseconds.
    const fn ahead_max_ms(&self) -> u64 {
        self.lead_ms + self.clock_skew_ms
    }
}

/// Ids, and the number they were made under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The ids, rising.
    pub runs: Vec<Run>,
    /// The number they were made under.
    pub worker: WorkerNumber,
}

impl Batch {
    /// The ids.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.runs.iter().flat_map(|run| run.ids())
    }
}

/// The state of this instance's snowflakes.
#[derive(Clone, Debug)]
pub struct Status {
    /// The number held, if any.
    pub worker: Option<WorkerNumber>,
    /// The reason why no ids can be issued, if there is one. Before the first request `None`, but after a recovery.
    pub refusal: Option<Refusal>,
    /// Milliseconds until the time exceeds the layout, if that is soon.
    pub ends_in_ms: Option<u64>,
}

/// Cheap to clone; all clones share the number.
#[derive(Clone)]
pub struct Snowflakes {
    shared: Arc<Shared>,
}

/// What the keeper and its callers share.
struct Shared {
    clock: Arc<dyn Clock>,
    layout: Layout,
    /// The generator of the number held now.
    current: ArcSwapOption<Generator>,
    phase: watch::Sender<Phase>,
    /// A caller that finds no generator, or one at its limit, wakes the keeper by it.
    bell: Notify,
    /// Tells the keeper to drop its number.
    recall: watch::Sender<u64>,
    /// Whether the clock went back by more than [`CLOCK_BACK_MS_MAX`] and has not caught up since.
    is_behind: AtomicBool,
}

/// What the keeper is doing.
#[derive(Clone, Debug)]
enum Phase {
    /// No id was requested yet.
    Idle,
    /// It looks for a number, or waits until it may use the one it has.
    Seeking(Option<Refusal>),
    /// It has one. If something keeps it from raising the limit, that is an error once ids reach the limit.
    Holding(Option<Refusal>),
    /// It could not get one, and tries again.
    Refusing(Refusal),
    /// It is over.
    Stopped,
}

/// Where the keeper acquires worker numbers.
#[derive(Clone)]
enum NumberSource {
    /// The ledger was not reached since the start.
    Unreached,
    /// For this instance. A process that joins again under another id acquires for that one.
    Instance(Arc<dyn Numbers>),
    /// The generator is stopped.
    Ended,
}

impl Snowflakes {
    /// Starts the keeper. Must be called within a Tokio runtime; the keeper runs on it. Until
    /// [`Keeping::serve`] is called it can go on only with what the local file proves.
    ///
    /// # Panics
    /// Where lead, lease and skew are not in the order that [`Options`] asks for.
    #[must_use]
    pub fn start(options: Options, clock: Arc<dyn Clock>) -> (Self, Keeping) {
        assert!(
            (LEAD_MS_MIN..=LEAD_MS_MAX).contains(&options.lead_ms) && options.lead_ms <= options.lease_ms
        );
        let shared = Arc::new(Shared {
            clock,
            layout: options.layout,
            current: ArcSwapOption::empty(),
            phase: watch::Sender::new(Phase::Idle),
            bell: Notify::new(),
            recall: watch::Sender::new(0),
            is_behind: AtomicBool::new(false),
        });
        let (sender, source) = watch::channel(NumberSource::Unreached);
        let (prove, proof) = oneshot::channel();
        let keeper = Keeper::new(options, Arc::clone(&shared), source);
        let keeping = Keeping {
            shared: Arc::clone(&shared),
            source: sender,
            proof,
            keeper: tokio::spawn(keeper.run(prove)),
        };
        (Self { shared }, keeping)
    }

    /// The layout of the ids.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.shared.layout
    }

    /// Drops the number that is held or waited for now, and acquires one anew: the ledger went back in time, or was recovered,
    /// and may give the number to others. No id is made under it any more.
    pub fn recall(&self) {
        self.shared.recall.send_modify(|times| *times += 1);
    }

    /// Their state.
    #[must_use]
    pub fn status(&self) -> Status {
        let left = self.shared.layout.ends_at_ms().saturating_sub(self.shared.clock.now_ms());
        let current = self.shared.current.load();
        let by_ms = current.as_ref().map_or(0, |generator| generator.behind_ms(&self.shared.clock));
        let refusal = match &*self.shared.phase.borrow() {
            Phase::Seeking(refusal) | Phase::Holding(refusal) => refusal.clone(),
            Phase::Refusing(refusal) => Some(refusal.clone()),
            Phase::Idle | Phase::Stopped => None,
        };
        Status {
            worker: current.as_ref().map(|generator| generator.worker()),
            refusal: if by_ms > CLOCK_BACK_MS_MAX { Some(Refusal::ClockBack { by_ms }) } else { refusal },
            ends_in_ms: (left <= EPOCH_END_WARNED_MS).then_some(left),
        }
    }
}

/// A handle on the keeper. When it is dropped, the keeper stops as it does on [`Self::stop`], without anybody waiting
/// for that.
pub struct Keeping {
    shared: Arc<Shared>,
    source: watch::Sender<NumberSource>,
    proof: oneshot::Receiver<Option<Duration>>,
    keeper: JoinHandle<()>,
}

impl Keeping {
    /// How long the local file still proves a worker number; waits until the file was read. For this time snowflakes are
    /// made before [`Self::serve`] is called. Call it once.
    pub async fn proof(&mut self) -> Option<Duration> {
        (&mut self.proof).await.ok().flatten()
    }

    /// Acquires numbers from this source from now on. A number of another source is given back there.
    pub fn serve(&self, numbers: Arc<dyn Numbers>) {
        self.source.send_replace(NumberSource::Instance(Arc::new(GuardedNumbers(numbers))));
        // From now on callers wait for the keeper, also before it has noticed.
        self.shared.phase.send_if_modified(|phase| {
            let was_unreached = matches!(phase, Phase::Refusing(Refusal::Unreached));
            if was_unreached {
                *phase = Phase::Idle;
            }
            was_unreached
        });
    }

    /// Closes the generator, deletes the local file, lowers the mark, gives the number back. If the ledger was not
    /// reached since the start, the number cannot be given back and the file stays: what it says is still true.
    pub async fn stop(self) {
        self.source.send_replace(NumberSource::Ended);
        if let Err(error) = self.keeper.await {
            tracing::error!(%error, "the keeper of the worker number had panicked");
        }
    }
}

#[cfg(test)]
mod fleet;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
