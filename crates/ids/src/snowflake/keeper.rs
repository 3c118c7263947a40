//! The keeper: acquires a worker number, keeps its time mark ahead of issuance, and gives it back.
//!
//! Order of writes: the mark is committed in the ledger, then the local file says so, then the generator's limit is
//! raised. At a clean stop the generator is closed, then the file deleted, then the mark lowered, then the lease
//! given back. A crash between any two leaves a mark, or a file, that is further ahead than need be: the number is
//! waited for a little longer, and nothing worse.

mod ahead;
mod by_file;
mod seek;

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ledger::Marked;
use rand::RngExt;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::numbers::{Numbers, Tenure};
use super::{Employer, Generator, Options, Phase, Refusal, Shared};
use crate::limits::{FILE_LEAD_MS, MARK_EVERY_MS_MAX};
use ahead::Ahead;

/// Mean pause after a number could not be had, before another try.
const SEEK_AGAIN_MS: u64 = 1_000;
/// After a mark that was not renewed it is tried again this soon, and no sooner however many ask for it.
const MARK_AGAIN: Duration = Duration::from_millis(250);
/// The file is moved on this often while the ledger takes its time.
const EXTEND_EVERY: Duration = Duration::from_secs(1);
/// A lease is renewed when this part of it is over.
const RENEW_AT: u64 = 3;
/// How long giving a number back may take.
const FAREWELL_MAX: Duration = Duration::from_secs(2);

const _: () = assert!(
    EXTEND_EVERY.as_millis() as u64 + MARK_EVERY_MS_MAX < FILE_LEAD_MS,
    "the file is moved on before it stops issuance"
);

pub(super) struct Keeper {
    seat: Seat,
    employment: watch::Receiver<Employer>,
    /// Whether anybody has ever asked for an id.
    is_wanted: bool,
}

/// What does not change from one number to the next.
struct Seat {
    options: Options,
    shared: Arc<Shared>,
}

/// A number held.
struct Held {
    numbers: Arc<dyn Numbers>,
    tenure: Tenure,
    generator: Arc<Generator>,
    /// What is committed.
    mark_ms: u64,
    /// When the lease was asked for or renewed last.
    leased_at: Instant,
}

/// What became of a mark.
struct Renewed {
    sent: Instant,
    wish_ms: u64,
    marked: ledger::Result<Option<Marked>>,
    /// Whether the lease was renewed with it.
    leased: bool,
}

impl Keeper {
    pub(super) fn new(options: Options, shared: Arc<Shared>, employment: watch::Receiver<Employer>) -> Self {
        Self { seat: Seat { options, shared }, employment, is_wanted: false }
    }

    /// Tells first for how long the local file still proves a number.
    pub(super) async fn run(mut self, prove: oneshot::Sender<Option<Duration>>) {
        let (mut ahead, record) = Ahead::take(self.seat.options.file.clone()).await;
        let record = record.filter(|record| self.seat.is_proof(record));
        // Nobody may want to know.
        let _ = prove.send(record.map(|record| self.seat.proves_for(&record)));
        let mut held = match record {
            Some(record) => self.go_on_by_file(&mut ahead, record).await,
            None => None,
        };
        loop {
            if let Some(held) = held.take() {
                self.keep(&mut ahead, held).await;
            }
            let is_over = self.employment.has_changed().is_err();
            let employer = self.employment.borrow_and_update().clone();
            match employer {
                _ if is_over => break,
                Employer::Over => break,
                Employer::Nobody => {
                    self.seat.tell(Phase::Refusing(Refusal::Unreached));
                    self.rest(pending()).await;
                    self.seat.tell(Phase::Idle);
                }
                Employer::Instance(numbers) => {
                    if self.is_wanted || self.wait_until_wanted().await {
                        held = self.seek(numbers).await;
                    }
                }
            }
        }
        self.seat.tell(Phase::Stopped);
    }

    /// Whether somebody asks for an id before the employer changes.
    async fn wait_until_wanted(&mut self) -> bool {
        let shared = Arc::clone(&self.seat.shared);
        tokio::select! {
            () = shared.bell.notified() => self.is_wanted = true,
            () = changed(&mut self.employment) => {}
        }
        self.is_wanted
    }

    /// One try, and a pause after one that came to nothing.
    async fn seek(&mut self, numbers: Arc<dyn Numbers>) -> Option<Held> {
        if !matches!(*self.seat.shared.phase.borrow(), Phase::Refusing(_)) {
            self.seat.tell(Phase::Seeking(None));
        }
        let sought = tokio::select! {
            biased;
            () = changed(&mut self.employment) => return None,
            sought = self.seat.seek(&numbers) => sought,
        };
        match sought {
            Ok(held) => Some(held),
            Err(refusal) => {
                tracing::warn!(%refusal, "no worker number for snowflakes; it is tried again");
                self.seat.tell(Phase::Refusing(refusal));
                let pause = rand::rng().random_range(SEEK_AGAIN_MS / 2..SEEK_AGAIN_MS * 3 / 2);
                self.rest(tokio::time::sleep(Duration::from_millis(pause))).await;
                None
            }
        }
    }

    async fn rest(&mut self, pause: impl Future<Output = ()>) {
        tokio::select! {
            () = pause => {}
            () = changed(&mut self.employment) => {}
        }
    }

    /// Keeps the mark ahead until the number is lost or to be given back. Its generator is shown as soon as the
    /// first mark of the tenure is committed.
    async fn keep(&mut self, ahead: &mut Ahead, mut held: Held) {
        let shared = Arc::clone(&self.seat.shared);
        let mut renewal = Some(self.seat.renewal(&held));
        let mut tried_at = Instant::now();
        let mut next = tried_at + EXTEND_EVERY;
        loop {
            let rung_at = tried_at + MARK_AGAIN;
            tokio::select! {
                biased;
                () = changed(&mut self.employment) => return self.give_back(ahead, held).await,
                renewed = answer_of(&mut renewal), if renewal.is_some() => {
                    renewal = None;
                    let Ok(trouble) = held.note(renewed, &self.seat.options) else {
                        tracing::warn!(worker = %held.tenure.number, token = %held.tenure.token, "a worker number was lost");
                        self.seat.close(&held.generator);
                        return;
                    };
                    let again = if trouble.is_some() { MARK_AGAIN } else { self.seat.options.mark_every() };
                    next = tried_at.max(Instant::now()) + again;
                    self.seat.extend(ahead, &held, trouble).await;
                }
                () = shared.bell.notified(), if renewal.is_none() => next = next.min(rung_at),
                () = sleep_until(next) => {
                    if renewal.is_some() {
                        // The ledger takes its time. What the file says is moved on meanwhile.
                        self.seat.extend(ahead, &held, None).await;
                    } else {
                        renewal = Some(self.seat.renewal(&held));
                        tried_at = Instant::now();
                    }
                    next = Instant::now() + EXTEND_EVERY;
                }
            }
        }
    }

    /// Ends a tenure of one's own accord.
    async fn give_back(&self, ahead: &mut Ahead, held: Held) {
        self.seat.tell(Phase::Seeking(None));
        let mark_ms = self.seat.close(&held.generator);
        if !ahead.remove().await {
            // What the file proves must stay true, so the mark stays where it is, and the lease runs out by itself.
            return;
        }
        match timeout(FAREWELL_MAX, held.numbers.give_back(&held.tenure, mark_ms)).await {
            Ok(Ok(())) => tracing::info!(worker = %held.tenure.number, mark_ms, "worker number given back"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "a worker number was not given back; it comes free by itself")
            }
            Err(_) => tracing::warn!("giving a worker number back took too long; it comes free by itself"),
        }
    }
}

impl Held {
    /// Takes over what the ledger answered, and tells what keeps the limit from moving on. `Err` when the number is
    /// not held any more.
    fn note(&mut self, renewed: Renewed, options: &Options) -> Result<Option<Refusal>, Lost> {
        let marked = match renewed.marked {
            Ok(Some(marked)) => marked,
            Ok(None) => return Err(Lost),
            Err(error) => {
                tracing::warn!(%error, "the time mark of the worker number was not renewed");
                return Ok(Some(Refusal::Ledger(error)));
            }
        };
        // A clock that is ahead gets no further than this.
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

/// The number is another's now.
struct Lost;

impl Seat {
    /// Asks the ledger for a mark one lead ahead of the clock, and for the lease where that is due.
    fn renewal(&self, held: &Held) -> Renewal {
        let (numbers, tenure) = (Arc::clone(&held.numbers), held.tenure);
        let (wish_ms, ahead_max_ms) =
            (self.shared.clock.now_ms().saturating_add(self.options.lead_ms), self.options.ahead_max_ms());
        let lease = Duration::from_millis(self.options.lease_ms / RENEW_AT);
        let is_due = held.leased_at.elapsed() >= lease;
        Box::pin(async move {
            let sent = Instant::now();
            let leased = is_due && numbers.renew(&tenure).await.is_ok_and(|renewed| renewed);
            let marked = numbers.mark(&tenure, wish_ms, ahead_max_ms).await;
            Renewed { sent, wish_ms, marked, leased }
        })
    }

    /// Moves the limit on as far as mark and file allow, and shows the generator.
    async fn extend(&self, ahead: &mut Ahead, held: &Held, trouble: Option<Refusal>) {
        let record = (held.tenure.number, self.options.layout.epoch_ms(), held.mark_ms);
        let trouble = match ahead.limit(record, self.shared.clock.now_ms()).await {
            Ok(limit_ms) => {
                held.generator.raise_limit(limit_ms);
                trouble
            }
            Err(refusal) => Some(refusal),
        };
        if held.mark_ms == 0 {
            // Not one mark of this tenure is committed yet.
            return self.tell(Phase::Seeking(trouble));
        }
        self.show(&held.generator);
        self.tell(Phase::Holding(trouble));
    }

    fn show(&self, generator: &Arc<Generator>) {
        let current = &self.shared.current;
        if !current.load().as_ref().is_some_and(|shown| Arc::ptr_eq(shown, generator)) {
            tracing::info!(worker = %generator.worker(), "snowflakes are made");
            current.store(Some(Arc::clone(generator)));
        }
    }

    /// Nobody is shown a generator that is closed.
    fn close(&self, generator: &Generator) -> u64 {
        self.shared.current.store(None);
        generator.close()
    }

    fn tell(&self, phase: Phase) {
        self.shared.phase.send_replace(phase);
    }
}

/// Comes back when somebody else is the employer, or nobody any more.
async fn changed(employment: &mut watch::Receiver<Employer>) {
    if employment.changed().await.is_err() {
        // Whoever could have said so is gone. `run` finds out.
    }
}

type Renewal = Pin<Box<dyn Future<Output = Renewed> + Send>>;

async fn answer_of(renewal: &mut Option<Renewal>) -> Renewed {
    renewal.as_mut().expect("it is asked for only where there is one").await
}
