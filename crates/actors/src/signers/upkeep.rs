//! Work that no request asks for: overdue holds of signers without an owner, old idempotency keys,
//! incarnations that ended long ago, the look at the ledger's health, and the gauges that come from the ledger. Every step is
//! bounded and jittered, so that many instances share the work instead of doing it all at the same moment.

use std::time::{Duration, Instant};

use domain::SignerId;
use futures_util::{StreamExt, stream};
use ledger::{LastTold, OverdueSigners, jittered};
use panic_guard::guarded;
use rand::seq::SliceRandom;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Refusal, Signers};
use crate::counted::Pauses;
use crate::purges::{PurgeWatch, Step};

/// How often, and how much at once.
#[derive(Clone, Debug)]
pub struct UpkeepSettings {
    /// Between two looks for overdue holds, before jitter.
    pub sweep_every: Duration,
    /// Signers that one look for overdue holds reads, at some 5 µs of the ledger's time for each.
    pub look_signers: u32,
    /// How long the looks of one sweep may take together where they find nothing.
    pub look_for: Duration,
    /// Signers swept at once.
    pub sweep_signers_max: usize,
    /// Between two purges, before jitter: [`PURGE_EVERY`].
    pub purge_every: Duration,
    /// Age at which an idempotency key is forgotten.
    pub keep_keys: Duration,
    /// Age at which an ended incarnation is forgotten.
    pub keep_instances: Duration,
    /// Age at which an entry of the audit is forgotten.
    pub keep_audits: Duration,
}

/// Between two purges of a daemon, before jitter.
pub const PURGE_EVERY: Duration = Duration::from_secs(30);
/// Incarnations that ended which are forgotten in one purge, at most.
const PURGED_INSTANCES_MAX: u32 = 1_000;
/// Between two looks at the ledger's health, before jitter: its settings may change while nobody asks for `/readyz`.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Between two refreshes of the gauges, before jitter.
const GAUGES_EVERY: Duration = Duration::from_secs(10);
/// After a refresh the ledger is left alone for so many times what one takes, before jitter …
const GAUGES_REST_FACTOR: u32 = 100;
/// … but no longer than this.
const GAUGES_REST_MAX: Duration = Duration::from_secs(60);

/// The running upkeep of one instance.
pub struct Upkeep {
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Upkeep {
    /// Starts it. Must be called within a Tokio runtime.
    #[must_use]
    pub fn start(signers: Signers, settings: UpkeepSettings) -> Self {
        let (stop, stopped) = watch::channel(false);
        let sweep = {
            let (signers, settings, every) = (signers.clone(), settings.clone(), settings.sweep_every);
            let mut after = None;
            tokio::spawn(repeat("sweep", every, stopped.clone(), async move || {
                sweep(&signers, &settings, &mut after).await
            }))
        };
        let purge = {
            let (signers, every) = (signers.clone(), settings.purge_every);
            let mut purges = Purges::new();
            tokio::spawn(repeat("purge", every, stopped.clone(), async move || {
                purge(&signers, &settings, &mut purges).await;
                Ok(())
            }))
        };
        let look = {
            let ledger = signers.inner.ledger.clone();
            // The ledger logs what has changed.
            tokio::spawn(repeat("health", LOOK_EVERY, stopped.clone(), async move || {
                ledger.check().await.map(drop)
            }))
        };
        let mut rest = CountRest::new();
        let gauges = tokio::spawn(repeat("gauges", GAUGES_EVERY, stopped, async move || {
            gauges(&signers, &mut rest).await
        }));
        Self { stop, tasks: vec![sweep, purge, look, gauges] }
    }

    /// Ends it, a step under way first.
    pub async fn stop(self) {
        // No receiver is left when all tasks have died; they are looked at below.
        let _ = self.stop.send(true);
        for task in self.tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "an upkeep task had panicked");
            }
        }
    }
}

/// Does a step again and again. `of` is for the log.
async fn repeat(
    of: &'static str,
    every: Duration,
    mut stopped: watch::Receiver<bool>,
    mut step: impl AsyncFnMut() -> ledger::Result<()>,
) {
    let told = LastTold::never();
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(jittered(every)) => {}
        }
        let begun = Instant::now();
        match guarded("the upkeep of signers", step()).await {
            Some(Ok(())) | None => {}
            Some(Err(error)) => log_failure(of, &error, &told),
        }
        tracing::trace!(took = ?begun.elapsed(), "upkeep");
    }
}

/// Logs a failure of the upkeep, and of which part. One that does not end by itself has a line at ERROR, once a minute for each
/// `told`.
fn log_failure(of: &'static str, error: &ledger::Error, told: &LastTold) {
    if error.is_retryable() || !told.is_due() {
        tracing::debug!(of, %error, "upkeep waits for the ledger");
    } else {
        tracing::error!(of, %error, "upkeep failed");
    }
}

/// Sweeps the next signers behind `after`, and sets it for the next look. It goes on behind them, up to the last signer, while
/// its looks have time. Where signers were overdue, more may be behind them: it then goes on in any case.
async fn sweep(
    signers: &Signers,
    settings: &UpkeepSettings,
    after: &mut Option<SignerId>,
) -> ledger::Result<()> {
    let (owner, ledger) = (&signers.inner.config.owner, &signers.inner.ledger);
    let mut looked_for = Duration::ZERO;
    loop {
        let behind_ms = signers.inner.clock.behind_ms();
        let asked = Instant::now();
        let look = ledger.overdue_signers(owner, behind_ms, after.as_ref(), settings.look_signers).await?;
        looked_for += asked.elapsed();
        let OverdueSigners { mut overdue, next } = look;
        // A sweep leaves the signer's lease here for a while, so the instance that the ring names sweeps it.
        overdue.retain(|signer| !signers.inner.belongs_elsewhere(signer));
        *after = next;
        let was_overdue = !overdue.is_empty();
        // Instances that look at the same signers rarely begin with the same one.
        overdue.shuffle(&mut rand::rng());
        // One that waits for its lease or for the ledger keeps none but itself waiting.
        let sweeps = stream::iter(overdue);
        sweeps.for_each_concurrent(settings.sweep_signers_max, |signer| sweep_one(signers, signer)).await;
        let goes_on = was_overdue || looked_for < settings.look_for;
        if !goes_on || after.is_none() || !signers.is_serving() {
            return Ok(());
        }
    }
}

async fn sweep_one(signers: &Signers, signer: SignerId) {
    if !signers.is_serving() {
        return;
    }
    match signers.sweep(&signer).await {
        Ok(()) => {}
        // Another instance was quicker, or this one has better things to do.
        Err(Refusal::LeaseHeld { .. } | Refusal::NotOwner { .. } | Refusal::Fenced | Refusal::Overloaded) => {
        }
        Err(refusal) => tracing::debug!(%signer, %refusal, "overdue holds could not be swept"),
    }
}

/// What the purges go by: how much the next step of each deletes, what they come to, and when a failure that does not end by
/// itself was told of last.
struct Purges {
    keys: (Step, PurgeWatch, LastTold),
    audits: (Step, PurgeWatch, LastTold),
    instances: (PurgeWatch, LastTold),
}

impl Purges {
    const fn new() -> Self {
        Self {
            keys: (Step::of_rows(), PurgeWatch::new("keys"), LastTold::never()),
            audits: (Step::of_rows(), PurgeWatch::new("audits"), LastTold::never()),
            instances: (PurgeWatch::new("instances"), LastTold::never()),
        }
    }
}

/// Purges keys, entries of the audit, and incarnations: each of them also where another cannot be purged.
async fn purge(signers: &Signers, settings: &UpkeepSettings, purges: &mut Purges) {
    let ledger = &signers.inner.ledger;
    let (step, watch, told) = &mut purges.keys;
    let purge_keys = move |kept_ms, limit| ledger.purge_keys(kept_ms, limit);
    note_purge(&purge_rows(signers, settings.keep_keys, step, purge_keys).await, watch, told);
    let (step, watch, told) = &mut purges.audits;
    let purge_audits = move |kept_ms, limit| ledger.purge_audits(kept_ms, limit);
    note_purge(&purge_rows(signers, settings.keep_audits, step, purge_audits).await, watch, told);
    let (watch, told) = &mut purges.instances;
    note_purge(&purge_instances(signers, settings.keep_instances).await, watch, told);
}

/// Notes what a purge has come to.
fn note_purge(purged: &ledger::Result<()>, watch: &mut PurgeWatch, told: &LastTold) {
    watch.saw(purged);
    if let Err(error) = purged {
        log_failure(watch.of, error, told);
    }
}

/// Forgets incarnations that ended so long ago.
async fn purge_instances(signers: &Signers, kept: Duration) -> ledger::Result<()> {
    let (ledger, clock) = (&signers.inner.ledger, &signers.inner.clock);
    // After an outage of the ledger the leases of the living have run out as well, and they renew them first.
    if signers.inner.failure_detector.may_take() {
        let age_ms = clock.read_kept_ms(ledger, kept).await?;
        ledger.purge_instances(age_ms, PURGED_INSTANCES_MAX).await?;
    }
    Ok(())
}

/// Deletes rows that are kept for so long, step by step. `delete` deletes those of an age, up to a limit.
async fn purge_rows<D: Future<Output = ledger::Result<u64>>>(
    signers: &Signers,
    kept: Duration,
    step: &mut Step,
    delete: impl Fn(u64, u32) -> D,
) -> ledger::Result<()> {
    let (ledger, clock) = (&signers.inner.ledger, &signers.inner.clock);
    while signers.is_serving() {
        let limit = step.size();
        let delete_old = async { delete(clock.read_kept_ms(ledger, kept).await?, limit).await };
        if !step.run(delete_old).await? {
            break;
        }
    }
    Ok(())
}

/// When the open nonces are counted again.
struct CountRest {
    pauses: Pauses,
    /// Until then they are not.
    until: Option<Instant>,
}

impl CountRest {
    const fn new() -> Self {
        Self { pauses: Pauses::new((Duration::ZERO, GAUGES_REST_FACTOR)), until: None }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// A count has taken so long. One that hung with the ledger delays the next ones no more than the one before it.
    fn begin(&mut self, now: Instant, took: Duration, is_counted: bool) {
        self.until = Some(now + self.pauses.after(took, is_counted).min(GAUGES_REST_MAX));
    }
}

/// Counts the open nonces, unless counts take so long that it is too early for the next.
async fn gauges(signers: &Signers, rest: &mut CountRest) -> ledger::Result<()> {
    let asked = Instant::now();
    if !rest.is_over(asked) {
        return Ok(());
    }
    let counts = signers.inner.ledger.open_counts().await;
    rest.begin(Instant::now(), asked.elapsed(), counts.is_ok());
    let counts = counts?;
    for status in domain::nonce::Status::ALL.iter().copied() {
        // CONSUMED ones only ever grow in number and are not counted anew each time.
        if status != domain::nonce::Status::Consumed {
            let nonces =
                counts.iter().find(|(counted, _)| *counted == status).map_or(0, |(_, nonces)| *nonces);
            metrics::gauge!("fencepost_nonces", "state" => status.as_str()).set(nonces as f64);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use cluster::{ClusterView, FailureDetector, Identity};
    use domain::{InstanceId, Mode};

    use super::super::Limits;
    use super::*;
    use crate::arbiters::Arbiters;
    use crate::database_clock::SharedClock;
    use crate::recorded::Recorded;
    use crate::test_ledger;

    /// How long a count usually takes.
    const QUICK: Duration = Duration::from_millis(10);

    #[tokio::test(start_paused = true)]
    async fn a_step_that_panics_is_followed_by_others() {
        let (stop, stopped) = watch::channel(false);
        let steps = AtomicUsize::new(0);
        repeat("a test", LOOK_EVERY, stopped, async || {
            assert!(steps.fetch_add(1, Ordering::Relaxed) > 0, "made on purpose");
            stop.send(true).unwrap();
            Ok(())
        })
        .await;
        assert_eq!(steps.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn each_purge_that_fails_is_counted() {
        let recorded = Recorded::default();
        let _recording = metrics::set_default_local_recorder(&recorded);
        let folder = tempfile::tempdir().unwrap();
        let ledger = test_ledger::open(&folder).await;
        ledger.close().await;
        let second = Duration::from_secs(1);
        let limits = Limits {
            idle: second,
            lease: second,
            hold_ms: 1_000,
            lease_wait: second,
            lease_kept_max: second,
            request_timeout: second,
            queue_max: 1,
            in_flight_max: 1,
        };
        let me = Identity { id: InstanceId::parse("me-1").unwrap(), url: "http://me".to_owned() };
        let (view, clock) = (ClusterView::alone(&me, Mode::Basic), SharedClock::new(second));
        let arbiters = Arbiters::start(NonZeroUsize::MIN).unwrap();
        let signers = Signers::start(arbiters, ledger, me.id, FailureDetector::alone(), view, clock, limits);
        let settings = UpkeepSettings {
            sweep_every: second,
            look_signers: 1,
            look_for: second,
            sweep_signers_max: 1,
            purge_every: second,
            keep_keys: second,
            keep_instances: second,
            keep_audits: second,
        };
        purge(&signers, &settings, &mut Purges::new()).await;
        for of in ["keys", "audits", "instances"] {
            let series = format!("fencepost_purge_failures_total{{of={of}}}");
            assert_eq!(recorded.counter(&series), 1, "{series}");
        }
    }

    /// How long no count is made after these, of which each took so long, and succeeded or not.
    fn rests_after(counts: &[(Duration, bool)]) -> Duration {
        let (mut rest, now) = (CountRest::new(), Instant::now());
        for (took, is_counted) in counts {
            rest.begin(now, *took, *is_counted);
        }
        let until = rest.until.expect("there was a count");
        assert!(rest.is_over(until) && !rest.is_over(now));
        until.duration_since(now)
    }

    #[test]
    fn a_count_that_took_long_is_not_repeated_soon() {
        assert!(rests_after(&[(QUICK, true)]) < GAUGES_EVERY);
        assert!(rests_after(&[(Duration::from_millis(300), true)]) >= Duration::from_secs(15));
        assert_eq!(rests_after(&[(Duration::from_secs(60), true)]), GAUGES_REST_MAX);
    }

    #[test]
    fn a_count_that_hung_with_the_ledger_delays_no_other_one() {
        let hung = Duration::from_secs(5);
        // It failed, or was answered when the outage was over.
        for is_counted in [false, true] {
            assert!(rests_after(&[(QUICK, true), (hung, is_counted)]) < GAUGES_EVERY, "{is_counted}");
        }
    }
}
