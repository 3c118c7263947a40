//! The keeper: acquires a worker number, keeps its time mark ahead of issuance, and gives it back.
//!
//! Order of writes: the mark is committed in the ledger, then the local file says so, then the generator's limit is
//! raised. At a clean stop the generator is closed, then the file deleted, then the mark lowered, then the lease
//! given back. A crash between two of these steps leaves a mark, or a file, that is further ahead than needed: the next
//! holder of the number waits a little longer.
//!
//! Where the ledger went back in time, it may give the number to others below the mark that the file names: the generator
//! is closed, then the file deleted. Where another instance has the number now, the file stays: that instance makes ids
//! from the mark on, and so what the file says is true.
//!
//! After a defect in the keeper nobody knows where the ids by the file end, nor whether a recall was heeded. It begins anew:
//! the generator is closed, then the file deleted, and ids go on under a number from the ledger alone.

mod ahead;
mod by_file;
mod seek;

use std::future::pending;
use std::mem::{Discriminant, discriminant};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use domain::WorkerNumber;
use ledger::{Marked, jittered};
use panic_guard::{guarded, pause};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::numbers::{Numbers, WorkerLease};
use super::worker_id_file::{LedgerName, Record, checksum};
use super::{Generator, NumberSource, Options, Phase, Refusal, Shared};
use crate::limits::{FILE_LEAD_MS, GIVE_BACK_MAX, LEAD_MS_MIN, MARK_EVERY_MS_MAX, MARKS_PER_LEAD};
use ahead::Ahead;
use seek::until_all_are_ahead;

/// What the log calls the keeper.
const KEEPER: &str = "the keeper of the worker number";
/// Pause before another try to acquire a number, before jitter.
const SEEK_AGAIN: Duration = Duration::from_secs(1);
/// Pause before a failed renewal of the mark is tried again, before jitter, however many callers ask for ids.
const MARK_AGAIN: Duration = Duration::from_millis(250);
/// How often the file is updated while a call to the ledger is under way.
const EXTEND_EVERY: Duration = Duration::from_secs(1);
/// A lease is renewed when one part in this many of it is over.
const RENEW_AT: u64 = 3;

const _: () = assert!(
    EXTEND_EVERY.as_millis() as u64 + MARK_EVERY_MS_MAX < FILE_LEAD_MS,
    "the file is moved on before it stops issuance"
);
const _: () = assert!(
    LEAD_MS_MIN / MARKS_PER_LEAD + MARK_AGAIN.as_millis() as u64 * 3 / 2 < LEAD_MS_MIN,
    "a renewal that fails is tried again within the shortest lead"
);

pub(super) struct Keeper {
    context: KeeperContext,
    source: watch::Receiver<NumberSource>,
    /// Kept from one number to the next, so that no recall is missed.
    recalled: watch::Receiver<u64>,
    /// Whether a number is looked for: an id was asked for, the local file proved a number, or none could be used at once, as
    /// after a recovery.
    is_wanted: bool,
    /// Whether that stays so where others have all the numbers: an id was asked for, or there was a number, if only by the file.
    is_needed: bool,
    /// Of the refusal that the log has told of last, since there was a number: which one it is, and which of the ledger's.
    told: Option<(Discriminant<Refusal>, Option<Discriminant<ledger::Error>>)>,
}

/// What stays the same from one number to the next.
struct KeeperContext {
    options: Options,
    shared: Arc<Shared>,
    /// The checksum of where the ledger is, as the file has it.
    ledger_address: String,
    /// The number of the local file, and the first time after all ids that this process and those before it have made of it;
    /// while it may make more, after all that it can make.
    made_by_file: Option<(WorkerNumber, u64)>,
}

/// A number held.
struct Held {
    numbers: Arc<dyn Numbers>,
    worker_lease: WorkerLease,
    generator: Arc<Generator>,
    /// What is committed.
    mark_ms: u64,
    /// When the lease was asked for or renewed last.
    leased_at: Instant,
}

/// The outcome of a renewal.
struct Renewed {
    sent: Instant,
    wish_ms: u64,
    marked: ledger::Result<Option<Marked>>,
    /// Whether the lease was renewed with it.
    leased: bool,
}

impl Keeper {
    pub(super) fn new(options: Options, shared: Arc<Shared>, source: watch::Receiver<NumberSource>) -> Self {
        let ledger_address = checksum(&options.ledger.address);
        let recalled = shared.recall.subscribe();
        let context = KeeperContext { options, shared, ledger_address, made_by_file: None };
        Self { context, source, recalled, is_wanted: false, is_needed: false, told: None }
    }

    /// First tells how long the local file still proves a number.
    pub(super) async fn run(mut self, prove: oneshot::Sender<Option<Duration>>) {
        let (mut ahead, record) = Ahead::take(self.context.options.file.clone()).await;
        let mut record = record.filter(|record| self.context.is_proof(record));
        // The receiver may be gone.
        let _ = prove.send(record.as_ref().map(|record| self.context.proves_for(record)));
        while guarded(KEEPER, self.keep_numbers(&mut ahead, record.take())).await.is_none() {
            if let Some(generator) = self.context.shared.current.load_full() {
                self.context.close(&generator);
            }
            ahead.remove().await;
            pause().await;
        }
        self.context.tell(Phase::Stopped);
    }

    /// Keeps one number after the other, at first that of the file, until the generator is stopped.
    async fn keep_numbers(&mut self, ahead: &mut Ahead, record: Option<Record>) {
        let mut held = match record {
            Some(record) => {
                (self.is_wanted, self.is_needed) = (true, true);
                self.go_on_by_file(ahead, record).await
            }
            None => None,
        };
        loop {
            if let Some(held) = held.take() {
                self.keep(ahead, held).await;
            }
            let is_over = self.source.has_changed().is_err();
            let source = self.source.borrow_and_update().clone();
            match source {
                _ if is_over => break,
                NumberSource::Ended => break,
                NumberSource::Unreached => {
                    let source = &self.source;
                    // A source that came meanwhile is not denied. See `Keeping::serve`.
                    self.context.shared.phase.send_if_modified(|phase| {
                        let is_unreached = source.has_changed().is_ok_and(|changed| !changed);
                        if is_unreached {
                            *phase = Phase::Refusing(Refusal::Unreached);
                        }
                        is_unreached
                    });
                    self.rest(pending(), ahead).await;
                }
                NumberSource::Instance(numbers) => {
                    if self.is_wanted || self.wait_until_wanted(ahead, &numbers).await {
                        held = self.seek(ahead, numbers).await;
                    }
                }
            }
        }
    }

    /// Waits until a number is wanted or the source changes; whether one is wanted. That is when an id is asked for. After a
    /// recovery it is at once: so the first id comes as soon as one can, and until then the status says why there is none.
    async fn wait_until_wanted(&mut self, ahead: &mut Ahead, numbers: &Arc<dyn Numbers>) -> bool {
        let (shared, numbers) = (Arc::clone(&self.context.shared), Arc::clone(numbers));
        let (choice, ahead_max_ms) = (self.context.options.choice, self.context.options.ahead_max_ms());
        let recalled = self.recalled.clone();
        let mut is_asked = false;
        let wanted = async {
            tokio::select! {
                () = shared.bell.notified() => is_asked = true,
                () = until_all_are_ahead(&*numbers, (choice, ahead_max_ms), &*shared.clock, recalled) => {}
            }
        };
        let is_wanted = self.rest(wanted, ahead).await;
        self.is_wanted |= is_wanted;
        self.is_needed |= is_asked;
        self.is_wanted
    }

    /// Tries once, and pauses after a failure. Where others have all the numbers and nobody needs one, none is wanted then.
    async fn seek(&mut self, ahead: &mut Ahead, numbers: Arc<dyn Numbers>) -> Option<Held> {
        if !matches!(*self.context.shared.phase.borrow(), Phase::Refusing(_)) {
            self.context.tell(Phase::Seeking(None));
        }
        let sought = tokio::select! {
            biased;
            () = changed(&mut self.source) => return None,
            () = changed(&mut self.recalled) => {
                // What was acquired before is dropped, and the file may still name a number of before.
                ahead.remove().await;
                return None;
            }
            sought = self.context.seek(&numbers) => sought,
        };
        match sought {
            Ok(held) => {
                self.told = None;
                self.is_needed = true;
                Some(held)
            }
            Err(Refusal::NoNumber { .. }) if !self.is_needed => {
                // Nobody waits for an id, and those that have the numbers show the wait for them.
                self.is_wanted = false;
                self.context.tell(Phase::Idle);
                None
            }
            Err(refusal) => {
                if self.is_news(&refusal) {
                    tracing::warn!(%refusal, "no worker number for snowflakes; trying again");
                } else {
                    tracing::debug!(%refusal, "no worker number for snowflakes; trying again");
                }
                self.context.tell(Phase::Refusing(refusal));
                self.rest(tokio::time::sleep(jittered(SEEK_AGAIN)), ahead).await;
                None
            }
        }
    }

    /// Whether the log is to tell of it: not of what it told of the last try, nor of an outage, which the ledger itself logs.
    fn is_news(&mut self, refusal: &Refusal) -> bool {
        let of_ledger = match refusal {
            Refusal::Ledger(error) if error.is_retryable() => return false,
            Refusal::Ledger(error) => Some(discriminant(error)),
            _ => None,
        };
        let reason = Some((discriminant(refusal), of_ledger));
        std::mem::replace(&mut self.told, reason) != reason
    }

    /// Waits until the pause is over or the source changes; whether it is over.
    async fn rest(&mut self, pause: impl Future<Output = ()>, ahead: &mut Ahead) -> bool {
        let mut pause = pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => return true,
                () = changed(&mut self.source) => return false,
                () = ahead.until_removal_is_due() => {}
            }
            ahead.remove().await;
        }
    }

    /// Keeps the mark ahead until the number is lost or has to be given back. Callers get the generator as soon as the
    /// first mark of this lease is committed.
    async fn keep(&mut self, ahead: &mut Ahead, mut held: Held) {
        let shared = Arc::clone(&self.context.shared);
        if held.mark_ms > 0 {
            // It was committed while ids were made by the local file.
            self.context.extend(ahead, &held, None).await;
        }
        let mut renewal = Some(self.context.renewal(&held));
        let (mut tried_at, mut mark_again) = (Instant::now(), jittered(MARK_AGAIN));
        let mut next = tried_at + EXTEND_EVERY;
        loop {
            let rung_at = tried_at + mark_again;
            tokio::select! {
                biased;
                () = changed(&mut self.source) => return self.give_back(ahead, held).await,
                () = changed(&mut self.recalled) => {
                    tracing::warn!(worker = %held.worker_lease.number, "a worker number was dropped");
                    return self.context.drop_number(ahead, &held.generator).await;
                }
                renewed = answer_of(&mut renewal), if renewal.is_some() => {
                    renewal = None;
                    let refusal = match held.note(renewed, &self.context.options) {
                        Ok(refusal) => refusal,
                        Err(lost) => {
                            let WorkerLease { number, token } = held.worker_lease;
                            tracing::warn!(worker = %number, %token, reason = lost.as_str(), "a worker number was lost");
                            match lost {
                                Lost::Taken => {
                                    self.context.close(&held.generator);
                                }
                                Lost::WentBack => self.context.drop_number(ahead, &held.generator).await,
                            }
                            return;
                        }
                    };
                    let again = if refusal.is_some() { mark_again } else { self.context.options.mark_every() };
                    next = tried_at.max(Instant::now()) + again;
                    self.context.extend(ahead, &held, refusal).await;
                }
                () = shared.bell.notified(), if renewal.is_none() => next = next.min(rung_at),
                () = sleep_until(next) => {
                    if renewal.is_some() {
                        // The ledger has not answered yet. The file is updated meanwhile.
                        self.context.extend(ahead, &held, None).await;
                    } else {
                        renewal = Some(self.context.renewal(&held));
                        (tried_at, mark_again) = (Instant::now(), jittered(MARK_AGAIN));
                    }
                    next = Instant::now() + EXTEND_EVERY;
                }
            }
        }
    }

    /// Gives the number back.
    async fn give_back(&self, ahead: &mut Ahead, held: Held) {
        self.context.close(&held.generator);
        if !ahead.remove().await {
            // What the file says must stay true, so the mark stays where it is and the lease runs out by itself.
            return;
        }
        held.give_back().await;
    }
}

impl Held {
    /// Closes the generator, lowers the mark to where it ended, and gives the number back.
    async fn give_back(self) {
        let mark_ms = self.generator.close();
        match timeout(GIVE_BACK_MAX, self.numbers.give_back(&self.worker_lease, mark_ms)).await {
            Ok(Ok(true)) => {
                tracing::info!(worker = %self.worker_lease.number, mark_ms, "worker number given back")
            }
            Ok(Ok(false)) => {
                let WorkerLease { number, token } = self.worker_lease;
                tracing::warn!(worker = %number, %token, "a worker number was not given back: its lease was lost, or is locked");
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "a worker number could not be given back; its lease expires by itself")
            }
            Err(_) => tracing::warn!("giving a worker number back took too long; its lease expires"),
        }
    }

    /// Notes what the ledger answered. Answers what keeps the limit from rising, if anything does; `Err` if the number
    /// is lost.
    fn note(&mut self, renewed: Renewed, options: &Options) -> Result<Option<Refusal>, Lost> {
        let marked = match renewed.marked {
            Ok(Some(marked)) => marked,
            Ok(None) => return Err(Lost::Taken),
            Err(ledger::Error::WentBack) => return Err(Lost::WentBack),
            Err(error) => {
                ledger::log_failure!(error, "the time mark of the worker number could not be renewed");
                return Ok(Some(Refusal::Ledger(error)));
            }
        };
        // The ledger lets no mark be further ahead than this, however far this clock is ahead.
        let is_short = marked.mark_ms < renewed.wish_ms;
        self.mark_ms = self.mark_ms.max(marked.mark_ms);
        if renewed.leased {
            self.leased_at = renewed.sent;
        }
        Ok(is_short.then(|| Refusal::ClockOff {
            ahead: true,
            by_ms: (renewed.wish_ms - options.lead_ms).saturating_sub(marked.database_ms),
            max_ms: options.clock_skew_ms,
        }))
    }
}

/// Why a number is held no more.
#[derive(Clone, Copy)]
enum Lost {
    /// Another instance has it now.
    Taken,
    /// The ledger is behind what this instance knows, and may give it to others.
    WentBack,
}

impl Lost {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "another instance has it now",
            Self::WentBack => "the ledger went back in time",
        }
    }
}

impl KeeperContext {
    /// Asks the ledger for a mark one lead ahead of the clock, and renews the lease if that is due.
    fn renewal(&self, held: &Held) -> Renewal {
        let (numbers, worker_lease) = (Arc::clone(&held.numbers), held.worker_lease);
        let (wish_ms, ahead_max_ms) =
            (self.shared.clock.now_ms().saturating_add(self.options.lead_ms), self.options.ahead_max_ms());
        let is_due = held.leased_at.elapsed() >= self.renew_after();
        Box::pin(async move {
            let sent = Instant::now();
            let leased = is_due && numbers.renew(&worker_lease).await.is_ok_and(|renewed| renewed);
            let marked = numbers.mark(&worker_lease, wish_ms, ahead_max_ms).await;
            Renewed { sent, wish_ms, marked, leased }
        })
    }

    /// How long after it was acquired or renewed a lease is renewed.
    fn renew_after(&self) -> Duration {
        Duration::from_millis(self.options.lease_ms / RENEW_AT)
    }

    /// Raises the limit as far as mark and file allow, and gives callers the generator. Before the first mark of this lease is
    /// committed there is nothing to raise, and the file stays as it is: it may still prove the number of before.
    async fn extend(&self, ahead: &mut Ahead, held: &Held, refusal: Option<Refusal>) {
        if held.mark_ms == 0 {
            return self.tell(Phase::Seeking(refusal));
        }
        let committed = Record {
            number: held.worker_lease.number,
            ledger: LedgerName {
                address: self.ledger_address.clone(),
                cluster: held.numbers.cluster().to_owned(),
            },
            epoch_ms: self.options.layout.epoch_ms(),
            issued_ms: 0,
            mark_ms: held.mark_ms,
        };
        let refusal = match ahead.limit(committed, self.shared.clock.now_ms()).await {
            Ok(limit_ms) => {
                held.generator.raise_limit(limit_ms);
                refusal
            }
            Err(refusal) => Some(refusal),
        };
        self.show(&held.generator);
        self.tell(Phase::Holding(refusal));
    }

    fn show(&self, generator: &Arc<Generator>) {
        let current = &self.shared.current;
        if !current.load().as_ref().is_some_and(|shown| Arc::ptr_eq(shown, generator)) {
            tracing::info!(worker = %generator.worker(), "ready to issue snowflakes");
            current.store(Some(Arc::clone(generator)));
        }
    }

    /// Takes the generator away from callers, closes it, and wakes those that wait at its limit. Answers as [`Generator::close`].
    fn close(&self, generator: &Generator) -> u64 {
        self.shared.current.store(None);
        let end_ms = generator.close();
        self.tell(Phase::Seeking(None));
        end_ms
    }

    /// Closes the generator and deletes the file: others may be given the number.
    async fn drop_number(&self, ahead: &mut Ahead, generator: &Generator) {
        self.close(generator);
        ahead.remove().await;
    }

    fn tell(&self, phase: Phase) {
        self.shared.phase.send_replace(phase);
    }
}

/// Returns when what is watched changes.
async fn changed<T>(source: &mut watch::Receiver<T>) {
    // It fails where the sender is gone, which `run` finds out.
    let _ = source.changed().await;
}

type Renewal = Pin<Box<dyn Future<Output = Renewed> + Send>>;

async fn answer_of(renewal: &mut Option<Renewal>) -> Renewed {
    renewal.as_mut().expect("it is asked for only where there is one").await
}
