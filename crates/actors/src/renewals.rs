//! Renewal of the leases that owners keep (worker-queue mode): one task for all of an instance, which no actor's
//! handler can block. It names live leases only, by their exact tokens.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use domain::limits::RENEWALS_MAX;
use domain::{InstanceId, Resource, Token};
use ledger::{LastTold, Renewal, Renewed, jittered};
use panic_guard::guarded;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// A lease is renewed when this part of it is over.
const RENEW_AT: u32 = 3;
/// Looks per lease for those that are due.
const LOOKS_PER_LEASE: u32 = 10;
/// The longest pause behind a look that left leases unrenewed, before jitter. When the ledger is back, the others take what has
/// run out after one length of an `instance:` lease, and of these the shortest that can be configured lasts 1 s.
const LOOK_AGAIN_AFTER_MAX: Duration = Duration::from_millis(250);
/// A look is not waited for any longer than this: the next one asks once more on another connection, since one may hang while the
/// others are well. Half of that shortest length.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Looks whose renewals are under way at once: one may hang, and one more renews what is due. The ledger has no connections for
/// more of them.
const LOOKS_AT_ONCE: usize = 2;

/// Until when a lease surely lasts, by this process's own clock. Read by the lease's owner, moved on by the renewals.
pub(crate) struct LeaseDeadline {
    token: Token,
    epoch: Instant,
    ends_ms: AtomicU64,
    lost: AtomicBool,
}

impl LeaseDeadline {
    /// A lease that was asked for at `sent`: the database cannot have begun to count earlier.
    pub(crate) fn new(token: Token, sent: Instant, lease: Duration) -> Self {
        let ends_ms = AtomicU64::new(lease.as_millis() as u64);
        Self { token, epoch: sent, ends_ms, lost: AtomicBool::new(false) }
    }

    pub(crate) const fn token(&self) -> Token {
        self.token
    }

    pub(crate) fn is_running(&self) -> bool {
        self.is_running_at(Instant::now())
    }

    pub(crate) fn is_running_at(&self, now: Instant) -> bool {
        self.until().is_some_and(|until| now < until)
    }

    /// Until when the lease surely lasts; `None` when it was lost.
    pub(crate) fn until(&self) -> Option<Instant> {
        let ends = Duration::from_millis(self.ends_ms.load(Ordering::Acquire));
        (!self.lost.load(Ordering::Acquire)).then(|| self.epoch + ends)
    }

    fn left(&self) -> Duration {
        let ends = Duration::from_millis(self.ends_ms.load(Ordering::Acquire));
        ends.saturating_sub(self.epoch.elapsed())
    }

    fn renewed(&self, sent: Instant, lease: Duration) {
        let ends = sent.saturating_duration_since(self.epoch) + lease;
        // A renewal that was sent before the last one may be answered after it.
        self.ends_ms.fetch_max(ends.as_millis() as u64, Ordering::Release);
    }
}

/// What is called with the resource of a lease that was lost.
type OnLost = Box<dyn Fn(&Resource) + Send + Sync>;

/// The leases that are to be renewed.
#[derive(Default)]
pub(crate) struct Renewals {
    kept: DashMap<Resource, Arc<LeaseDeadline>>,
    on_lost: OnceLock<OnLost>,
    told_locked: LastTold,
}

impl Renewals {
    /// Calls `on_lost` with the resource of each lease that is lost. To be set once, before the first lease is kept.
    pub(crate) fn on_lost(&self, on_lost: impl Fn(&Resource) + Send + Sync + 'static) {
        if self.on_lost.set(Box::new(on_lost)).is_err() {
            tracing::error!("a callback for lost leases is already set");
        }
    }

    /// From now on this lease is renewed.
    pub(crate) fn keep(&self, resource: Resource, deadline: Arc<LeaseDeadline>) {
        self.kept.insert(resource, deadline);
    }

    /// Not any more. To be called before the lease is released.
    pub(crate) fn forget(&self, resource: &Resource, token: Token) {
        self.kept.remove_if(resource, |_, kept| kept.token == token);
    }

    /// Whether a lease of it is kept that surely lasts.
    pub(crate) fn keeps(&self, resource: &Resource) -> bool {
        self.kept.get(resource).is_some_and(|kept| kept.is_running())
    }

    /// What is kept.
    pub(crate) fn resources(&self) -> Vec<Resource> {
        self.kept.iter().map(|kept| kept.key().clone()).collect()
    }

    /// Renews leases as long as another handle to the renewals exists. Asks once more where no answer comes in time: it goes
    /// another way, while the first may hang with its connection. Two renewals under one token do no more than one. An answer
    /// that is late counts too, from when it was asked for: a server may be that slow and well.
    pub(crate) fn start(
        self: &Arc<Self>,
        ledger: ledger::Handle,
        owner: InstanceId,
        lease: Duration,
    ) -> JoinHandle<()> {
        let renewals = Arc::downgrade(self);
        let look = move || {
            let (renewals, ledger, owner) = (renewals.upgrade()?, Arc::clone(&ledger), owner.clone());
            Some(async move { renewals.renew_due(&ledger, &owner, lease).await })
        };
        tokio::spawn(keep_looking(lease, look))
    }

    /// Whether all that were due are renewed, or lost.
    async fn renew_due(&self, ledger: &ledger::Handle, owner: &InstanceId, lease: Duration) -> bool {
        let due_below = lease - lease / RENEW_AT;
        let mut due: Vec<_> = self
            .kept
            .iter()
            .filter(|kept| kept.left() < due_below)
            .map(|kept| Renewal {
                resource: kept.key().clone(),
                token: kept.token,
                lease_ms: lease.as_millis() as u64,
            })
            .collect();
        due.sort_unstable_by(|a, b| a.resource.cmp(&b.resource));
        let mut are_done = true;
        for chunk in due.chunks(RENEWALS_MAX) {
            // Another look may have renewed them while the chunk before was under way.
            let is_due = |renewal: &&Renewal| self.is_due(renewal, due_below);
            let chunk: Vec<_> = chunk.iter().filter(is_due).cloned().collect();
            if chunk.is_empty() {
                continue;
            }
            let sent = Instant::now();
            match ledger.renew_all(owner, &chunk).await {
                Ok(renewed) => are_done &= self.note(&chunk, &renewed, sent, lease),
                Err(error) => {
                    are_done = false;
                    chunk.iter().for_each(|renewal| count(&renewal.resource, "error"));
                    ledger::log_failure!(error, leases = chunk.len(), "leases could not be renewed");
                }
            }
        }
        are_done
    }

    /// Whether it is kept still, under the same token, and not renewed yet.
    fn is_due(&self, renewal: &Renewal, due_below: Duration) -> bool {
        let kept = self.kept.get(&renewal.resource);
        kept.is_some_and(|kept| kept.token == renewal.token && kept.left() < due_below)
    }

    /// Whether none was locked.
    fn note(&self, asked: &[Renewal], renewed: &[Renewed], sent: Instant, lease: Duration) -> bool {
        let mut locked = 0;
        for (Renewal { resource, token, .. }, renewed) in asked.iter().zip(renewed) {
            // It may have been forgotten, or acquired anew, while the statement was under way.
            let Some(kept) = self.kept.get(resource).filter(|kept| kept.token == *token) else { continue };
            match renewed {
                Renewed::Done => {
                    kept.renewed(sent, lease);
                    count(resource, "renewed");
                }
                // An earlier renewal may still wait in its commit, and hold the row.
                Renewed::Locked => {
                    locked += 1;
                    count(resource, "error");
                }
                // Until its owner has ended it is asked for again, and its owner told again.
                Renewed::Lost => {
                    let was_lost = kept.lost.swap(true, Ordering::AcqRel);
                    drop(kept);
                    if !was_lost {
                        count(resource, "lost");
                        tracing::warn!(%resource, %token, "a lease was lost");
                    }
                    if let Some(on_lost) = self.on_lost.get() {
                        on_lost(resource);
                    }
                }
            }
        }
        if locked > 0 {
            let words = "rows of leases are locked; the leases are renewed later";
            if self.told_locked.is_due() {
                tracing::warn!(leases = locked, "{words}");
            } else {
                tracing::debug!(leases = locked, "{words}");
            }
        }
        locked == 0
    }
}

fn count(resource: &Resource, result: &'static str) {
    let kind = resource.kind().as_str();
    metrics::counter!("fencepost_lease_renew_total", "kind" => kind, "result" => result).increment(1);
}

/// Looks for leases that are due, again and again, until there is nothing that can look: `look` says how. A look answers whether
/// it left none unrenewed. Each is waited for by itself: what an earlier one answers late says nothing of the ledger after that.
async fn keep_looking<L>(lease: Duration, look: impl Fn() -> Option<L>)
where
    L: Future<Output = bool> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(LOOKS_AT_ONCE));
    let mut are_done = Some(true);
    loop {
        tokio::time::sleep(jittered(pause(lease, are_done))).await;
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let Some(look) = look() else { return };
        let look = tokio::spawn(async move {
            let _place = place;
            guarded("the renewal of leases", look).await.unwrap_or(false)
        });
        are_done = match tokio::time::timeout(ASK_AGAIN_AFTER, look).await {
            Ok(Ok(are_done)) => Some(are_done),
            // The runtime ends.
            Ok(Err(_)) => return,
            Err(_) => None,
        };
    }
}

/// Between two looks for leases that are due, before jitter. `None`: renewals are under way, and were waited for.
fn pause(lease: Duration, are_done: Option<bool>) -> Duration {
    let pause = lease / LOOKS_PER_LEASE;
    match are_done {
        Some(true) => pause,
        Some(false) => pause.min(LOOK_AGAIN_AFTER_MAX),
        None => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::poll;
    use ledger::Acquisition;
    use parking_lot::Mutex;

    use super::*;
    use crate::recorded::Recorded;

    #[test]
    fn after_an_outage_leases_of_any_length_are_renewed_before_another_instance_takes_them() {
        // The shortest `instance:` lease, for which the others wait, and the longest pause that jitter makes.
        let (calm, longest) = (Duration::from_secs(1), 1.5);
        for lease in [1, 15, 300].map(Duration::from_secs) {
            assert_eq!(pause(lease, Some(true)), lease / LOOKS_PER_LEASE);
            assert!(pause(lease, Some(false)).mul_f64(longest) < calm / 2, "{lease:?}");
            assert!(ASK_AGAIN_AFTER + pause(lease, None).mul_f64(longest) <= calm / 2, "{lease:?}");
        }
    }

    /// Looks of which each takes so long and answers so, until none is left. How long after the first each of them began.
    async fn begun(lease: Duration, looks: &[(Duration, bool)]) -> Vec<Duration> {
        let (left, begun) = (Mutex::new(looks.iter().copied()), Mutex::new(Vec::new()));
        let look = || {
            begun.lock().push(tokio::time::Instant::now());
            let (length, are_done) = left.lock().next()?;
            Some(async move {
                tokio::time::sleep(length).await;
                are_done
            })
        };
        keep_looking(lease, look).await;
        let begun = begun.into_inner();
        begun.iter().map(|at| at.duration_since(begun[0])).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_of_a_look_that_took_long_is_not_taken_for_that_of_a_later_one() {
        let lease = Duration::from_secs(30);
        let slow = ASK_AGAIN_AFTER + Duration::from_millis(100);
        let looks = [(slow, true), (Duration::ZERO, true), (Duration::ZERO, false)];
        let begun = begun(lease, &looks).await;
        assert!(begun[2] > slow, "the first is over: {begun:?}");
        // Where the last one failed, the next one comes before the others take what has run out.
        assert!(begun[3] - begun[2] < LOOK_AGAIN_AFTER_MAX * 2, "{begun:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn beside_a_look_that_hangs_there_is_one_more() {
        let lease = Duration::from_secs(30);
        let hangs = Duration::from_secs(3_600);
        let begun_at = begun(lease, &[(hangs, true), (Duration::ZERO, true), (hangs, true)]).await;
        assert!(begun_at[1] < ASK_AGAIN_AFTER * 2, "{begun_at:?}");
        assert!(begun_at[2] < lease, "the one that hangs holds up no other: {begun_at:?}");
        let is_over = hangs..begun_at[2] + hangs;
        assert!(
            is_over.contains(&begun_at[3]),
            "two hang, and a third one waits for the end of one: {begun_at:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_panics_is_followed_by_another_one() {
        let begun = AtomicUsize::new(0);
        let look = || {
            let number = begun.fetch_add(1, Ordering::Relaxed);
            (number < 2).then_some(async move {
                assert!(number > 0, "made on purpose");
                true
            })
        };
        keep_looking(Duration::from_secs(30), look).await;
        assert_eq!(begun.into_inner(), 3);
    }

    #[tokio::test]
    async fn a_look_that_is_late_renews_nothing_that_another_one_has_renewed_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let options = ledger::Options {
            url: format!("sqlite:{}", folder.path().join("ledger.db").display()),
            connections_max: 2,
            connect_timeout_ms: 1_000,
            call_timeout_ms: 60_000,
            expected_id: None,
        };
        let ledger = ledger::open(&options).await.unwrap();
        let (renewals, owner) = (Renewals::default(), InstanceId::parse("me-1").unwrap());
        let (lease, short) = (Duration::from_secs(300), Duration::from_secs(60));
        // One more than one statement names.
        for number in 0..=RENEWALS_MAX {
            let resource = Resource::parse(&format!("signer:s{number:04}")).unwrap();
            let acquired = ledger.acquire(&resource, &owner, lease.as_millis() as u64).await.unwrap();
            let Acquisition::Acquired { token, .. } = acquired else { panic!("{acquired:?}") };
            renewals.keep(resource, Arc::new(LeaseDeadline::new(token, Instant::now(), short)));
        }
        let mut late = std::pin::pin!(renewals.renew_due(&ledger, &owner, lease));
        assert!(poll!(late.as_mut()).is_pending(), "its first statement was sent");
        assert!(renewals.renew_due(&ledger, &owner, lease).await);
        let last = Resource::parse(&format!("signer:s{RENEWALS_MAX:04}")).unwrap();
        let token = renewals.kept.get(&last).unwrap().token;
        // Asked for once more, it is found lost.
        ledger.release(&last, &owner, token).await.unwrap();
        assert!(late.await);
        assert!(renewals.keeps(&last), "it was asked for once more");
    }

    #[test]
    fn a_lease_whose_row_is_locked_is_asked_for_again_soon() {
        let renewals = Renewals::default();
        let (resource, token) = (Resource::parse("signer:s").unwrap(), Token::new(1));
        let (sent, lease) = (Instant::now(), Duration::from_secs(30));
        renewals.keep(resource.clone(), Arc::new(LeaseDeadline::new(token, sent, lease)));
        let asked = [Renewal { resource, token, lease_ms: 30_000 }];
        assert!(renewals.note(&asked, &[Renewed::Done], sent, lease));
        assert!(!renewals.note(&asked, &[Renewed::Locked], sent, lease));
    }

    #[test]
    fn a_lost_lease_is_counted_once_and_its_owner_told_until_it_has_ended() {
        let recorded = Recorded::default();
        let _recording = metrics::set_default_local_recorder(&recorded);
        let (renewals, told) = (Renewals::default(), Arc::<AtomicUsize>::default());
        let counted = Arc::clone(&told);
        renewals.on_lost(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let (resource, token) = (Resource::parse("signer:s").unwrap(), Token::new(1));
        let (sent, lease) = (Instant::now(), Duration::from_secs(30));
        renewals.keep(resource.clone(), Arc::new(LeaseDeadline::new(token, sent, lease)));
        let asked = [Renewal { resource, token, lease_ms: 30_000 }];
        for times in 1..=3 {
            renewals.note(&asked, &[Renewed::Lost], sent, lease);
            assert_eq!(recorded.counter("fencepost_lease_renew_total{kind=signer,result=lost}"), 1);
            assert_eq!(told.load(Ordering::Relaxed), times);
        }
        assert!(!renewals.keeps(&asked[0].resource));
    }
}
