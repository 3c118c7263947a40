//! Membership: an incarnation is registered in the ledger, and renews its `instance:` lease. With each
//! renewal it reads the others' leases and the settings.
//!
//! An incarnation ends when its lease is lost: another instance took it, its row is gone, or the ledger was recovered from an
//! earlier state: what the incarnation knows may be of a time that the ledger has lost. It never acquires the lease again; the
//! process continues as another incarnation. A lease whose token rose by an acquire of its own that was not heard of is not lost.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use domain::limits::RENEWALS_MAX;
use domain::{InstanceId, Mode, Resource, Timestamp, Token};
use ledger::{Acquisition, Handle, NewInstance, Peer, RECOVERED_TOKENS, Renewal, Renewed, jittered};
use rand::RngExt;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::failure_detector::SILENCE_MAX;
use crate::other_buses::OtherBuses;
use crate::presence_publisher::{PresencePublisher, PublishingTask, tell};
use crate::{ClusterView, FailureDetector, Identity};

/// Between two attempts to join, before jitter.
const JOIN_PAUSE: Duration = Duration::from_millis(200);
/// A lease is renewed this many times before it would run out, or more often.
const RENEWALS_PER_LEASE: u32 = 4;
/// Longest mean time between two renewals, however long the lease is: with each the modes are read, and without any for
/// [`SILENCE_MAX`] an instance counts as silent.
const RENEWAL_PERIOD_MAX: Duration = Duration::from_millis(500);
/// A renewal is asked for once more when it was not answered within the lease's length divided by this: the last renewal was sent
/// a quarter of it before.
const RENEWAL_ANSWERS_PER_LEASE: u32 = 3;
/// Longest time until it is asked for once more, however long the lease is.
const RENEWAL_ANSWER_MAX: Duration = Duration::from_secs(1);
/// Renewals under way at once. The ledger has more connections for them.
const RENEWALS_AT_ONCE: usize = 2;
/// Instances looked at after each renewal.
const PEERS_MAX: u32 = 1_000;
/// How long ended incarnations are read, in milliseconds: by then all their leases have expired.
const PEERS_SINCE_MS: u64 = 600_000;
/// Notices that come within this time are answered by one look.
const NOTICES_GATHERED: Duration = Duration::from_millis(20);
/// Leases of dead instances taken after one renewal.
const BURIALS_MAX: usize = 16;

/// By how much a token may have risen by the incarnation's own acquires since the last one that it heard of. A recovery raises it
/// by more: to the database's time in milliseconds, and by [`RECOVERED_TOKENS`] at least.
const UNHEARD_ACQUIRES_MAX: i64 = 1_000;

const _: () = assert!(PEERS_MAX as usize <= RENEWALS_MAX);
// A pause is up to 1.1 periods long, and a look as long as one.
const _: () = assert!(
    (RENEWAL_PERIOD_MAX.as_millis() * 21 / 10 + RENEWAL_ANSWER_MAX.as_millis()) * 4 < SILENCE_MAX.as_millis(),
    "an instance is not silent because a renewal, or the look before it, was late or hung"
);
const _: () = assert!(UNHEARD_ACQUIRES_MAX < RECOVERED_TOKENS);

/// What an incarnation tells of its process.
#[derive(Clone, Debug)]
pub struct Process {
    /// The machine's name.
    pub hostname: String,
    /// The process there.
    pub pid: u32,
    /// The version of the binary.
    pub version: String,
}

/// How an incarnation joins.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// Length of its lease.
    pub lease: Duration,
    /// The mode to set if none is set yet.
    pub first_mode: Mode,
    /// How long to wait for a ledger that is away.
    pub patience: Duration,
}

/// This incarnation's own lease, for what is written under it: the lane of the jobs that it accepted.
/// Cheap to clone.
#[derive(Clone)]
pub struct InstanceLease {
    token: watch::Receiver<Option<Token>>,
    anew: mpsc::Sender<oneshot::Sender<Option<Token>>>,
}

impl InstanceLease {
    /// Of an instance that has no lease, or none any more: nothing can be written under it.
    #[must_use]
    pub fn over() -> Self {
        Self { token: watch::channel(None).1, anew: mpsc::channel(1).0 }
    }

    /// Its token now; `None` once the lease is lost.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        *self.token.borrow()
    }

    /// Acquires the lease again, which raises the token: every earlier write with an unknown outcome has then
    /// ended, or is fenced. `None` if the lease is lost, or the ledger does not answer: ask again.
    pub async fn acquire_anew(&self) -> Option<Token> {
        let (reply, answer) = oneshot::channel();
        self.anew.send(reply).await.ok()?;
        answer.await.ok()?
    }
}

/// The running membership.
pub struct Membership {
    failure_detector: FailureDetector,
    cluster_view: ClusterView,
    instance_lease: InstanceLease,
    lost: watch::Receiver<bool>,
    stop: oneshot::Sender<()>,
    heart: JoinHandle<()>,
    publishing: PublishingTask,
    other_buses: OtherBuses,
}

impl Membership {
    /// Writes the incarnation down, takes its lease and keeps renewing it. A ledger that goes away
    /// meanwhile is waited for; everything here can be repeated, whatever became of the first attempt.
    ///
    /// # Errors
    /// [`ledger::Error`] when the ledger cannot be written.
    pub async fn join(
        ledger: Handle,
        bus: bus::Handle,
        identity: &Identity,
        process: Process,
        options: JoinOptions,
    ) -> ledger::Result<Self> {
        let JoinOptions { lease, first_mode, patience } = options;
        let Process { hostname, pid, version } = process;
        let (id, url) = (identity.id.clone(), identity.url.clone());
        let instance = NewInstance { id: id.clone(), url, hostname, pid, version };
        let failure_detector = FailureDetector::member(lease);
        let cluster_view = ClusterView::member(identity, first_mode, lease);
        let (lose, lost) = watch::channel(false);
        let (show_token, token) = watch::channel(None);
        let (anew, asked_anew) = mpsc::channel(1);
        let look = Arc::new(Notify::new());
        let presence = presence(&instance);
        let mut heart = Heart {
            ledger: ledger.clone(),
            bus: bus.clone(),
            id,
            lease,
            token: show_token,
            unsure: false,
            is_late: false,
            failure_detector: failure_detector.clone(),
            cluster_view: cluster_view.clone(),
            look: Arc::clone(&look),
            lose,
        };
        let instance_lease = InstanceLease { token, anew };
        let give_up = tokio::time::Instant::now() + patience;
        while let Err(error) = heart.start(&instance, first_mode).await {
            if !error.is_retryable() || tokio::time::Instant::now() >= give_up {
                return Err(error);
            }
            ledger::log_failure!(error, "waiting for the ledger");
            tokio::time::sleep(jittered(JOIN_PAUSE)).await;
        }
        // The others need not find it with their next renewals.
        let others = bus.clone();
        tokio::spawn(async move { tell(&others).await });
        let (found, other_buses) = OtherBuses::new();
        let publisher = PresencePublisher {
            bus,
            ledger,
            presence,
            lease,
            failure_detector: failure_detector.clone(),
            look,
            found,
            cluster_view: cluster_view.clone(),
        };
        let publishing = publisher.start();
        let (stop, stopped) = oneshot::channel();
        let heart = tokio::spawn(heart.beat(stopped, asked_anew));
        Ok(Self {
            failure_detector,
            cluster_view,
            instance_lease,
            lost,
            stop,
            heart,
            publishing,
            other_buses,
        })
    }

    /// This incarnation's own lease.
    #[must_use]
    pub fn instance_lease(&self) -> InstanceLease {
        self.instance_lease.clone()
    }

    /// The failure detector.
    #[must_use]
    pub fn failure_detector(&self) -> FailureDetector {
        self.failure_detector.clone()
    }

    /// The view of the cluster.
    #[must_use]
    pub fn cluster_view(&self) -> ClusterView {
        self.cluster_view.clone()
    }

    /// The instances that use another bus.
    #[must_use]
    pub fn other_buses(&self) -> OtherBuses {
        self.other_buses.clone()
    }

    /// Returns when this incarnation has ended: another instance declared it dead and took its lease, or the ledger has lost
    /// that. It writes for no key any more; the process needs a new incarnation.
    pub async fn lost(&mut self) {
        // A heart that died has lost it as well.
        let _ = self.lost.wait_for(|lost| *lost).await;
    }

    /// Ends the lease, so that others see at once that this instance is gone.
    pub async fn leave(self) {
        self.publishing.stop().await;
        // The heart may have stopped by itself; there is then nothing to tell it.
        let _ = self.stop.send(());
        if let Err(error) = self.heart.await {
            tracing::error!(%error, "the task that renews the instance's lease had panicked");
        }
    }
}

/// The pause before the next renewal of a lease of this length.
fn renewal_pause(lease: Duration) -> Duration {
    let period = (lease / RENEWALS_PER_LEASE).min(RENEWAL_PERIOD_MAX);
    period.mul_f64(rand::rng().random_range(0.9..1.1))
}

/// What the incarnation shows of itself on the bus. The moment of its start is by this machine's clock; the
/// ledger has it by the database's.
fn presence(instance: &NewInstance) -> bus::Presence {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    bus::Presence {
        instance: instance.id.clone(),
        started_at: Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)),
        hostname: instance.hostname.clone(),
        pid: instance.pid,
        version: instance.version.clone(),
        address: instance.url.clone(),
    }
}

struct Heart {
    ledger: Handle,
    bus: bus::Handle,
    id: InstanceId,
    lease: Duration,
    /// `None` before the first acquire and after the loss.
    token: watch::Sender<Option<Token>>,
    /// An acquire was not heard of: the token may be higher by now, and renewing the old one proves nothing.
    unsure: bool,
    /// Renewals come to nothing, and the log says so already.
    is_late: bool,
    failure_detector: FailureDetector,
    cluster_view: ClusterView,
    look: Arc<Notify>,
    lose: watch::Sender<bool>,
}

impl Heart {
    async fn start(&mut self, instance: &NewInstance, first_mode: Mode) -> ledger::Result<()> {
        self.ledger.register(instance).await?;
        self.cluster_view.adopt_modes(self.ledger.decide_mode(first_mode).await?);
        if self.acquire().await?.is_some() {
            let peers = self.ledger.peers(PEERS_SINCE_MS, PEERS_MAX).await?;
            self.saw(peers);
        }
        Ok(())
    }

    /// Acquires its own lease, for the first time or again; `None` if another instance has it or had it, or the ledger has lost
    /// the lease that it had, which ends this incarnation.
    async fn acquire(&mut self) -> ledger::Result<Option<Token>> {
        let resource = Resource::instance(&self.id);
        let sent = Instant::now();
        self.unsure = true;
        let lease_ms = self.lease_ms();
        let acquired = self.ledger.acquire(&resource, &self.id, lease_ms).await;
        let result = match &acquired {
            Ok(Acquisition::Acquired { .. }) => "acquired",
            Ok(Acquisition::Held { .. }) => "held",
            Err(_) => "error",
        };
        metrics::counter!("fencepost_lease_acquire_total", "kind" => "instance", "result" => result)
            .increment(1);
        let acquired = acquired?;
        self.unsure = false;
        match acquired {
            Acquisition::Acquired { token, .. } if self.is_another(token) => {
                tracing::error!(
                    %resource, owner = %self.id, %token,
                    "this is not the lease that the instance had, as after a recovery of the ledger: this incarnation ends"
                );
                self.lose_lease();
                self.release(token).await;
                Ok(None)
            }
            Acquisition::Acquired { token, expires_at } => {
                let expires_at = expires_at.as_micros();
                tracing::info!(%resource, owner = %self.id, %token, expires_at, lease_ms, "lease acquired");
                self.token.send_replace(Some(token));
                self.note_renewed(sent);
                Ok(Some(token))
            }
            // It took so long that others have found it dead. By now they may have given the lease back.
            Acquisition::Held { owner, .. } => {
                tracing::warn!(%resource, %owner, "acquired too late: another instance has taken this lease");
                self.lose_lease();
                Ok(None)
            }
        }
    }

    /// Whether a lease that it acquired is not the one that it had: the row was made anew, or a recovery has raised the token.
    fn is_another(&self, acquired: Token) -> bool {
        let Some(known) = self.token() else { return false };
        !(1..=UNHEARD_ACQUIRES_MAX).contains(&(acquired.get() - known.get()))
    }

    /// The lease lasts from the moment in which this was asked for.
    fn note_renewed(&mut self, sent: Instant) {
        self.failure_detector.renewed(sent);
        if std::mem::take(&mut self.is_late) {
            tracing::info!("the instance's lease is renewed again");
        }
    }

    /// Logs why a renewal came to nothing: the first of several at WARN, as the beginning of an outage, and the others at DEBUG.
    fn note_not_renewed(&mut self, why: &'static str) {
        if std::mem::replace(&mut self.is_late, true) {
            tracing::debug!("{why}");
        } else {
            tracing::warn!("{why}");
        }
    }

    fn lose_lease(&mut self) {
        self.token.send_replace(None);
        self.failure_detector.ended();
        self.lose.send_replace(true);
    }

    fn token(&self) -> Option<Token> {
        *self.token.borrow()
    }

    async fn beat(
        mut self,
        mut stopped: oneshot::Receiver<()>,
        mut asked_anew: mpsc::Receiver<oneshot::Sender<Option<Token>>>,
    ) {
        while let Some(token) = self.token() {
            let renewal = tokio::time::Instant::now() + renewal_pause(self.lease);
            let is_stopped = loop {
                tokio::select! {
                    biased;
                    _ = &mut stopped => break true,
                    () = tokio::time::sleep_until(renewal) => break false,
                    () = self.look.notified() => self.look_again(renewal).await,
                    Some(reply) = asked_anew.recv() => {
                        let token = self.acquire_anew(renewal).await;
                        // The caller may be gone.
                        let _ = reply.send(token);
                        break false;
                    }
                }
            };
            if is_stopped {
                break;
            }
            if self.token() != Some(token) {
                // Acquired anew, which is as good as renewed, or lost.
                continue;
            }
            let renewed = if self.unsure { self.acquire_again().await } else { self.renew(token).await };
            let result = match renewed {
                Ok(Renewed::Done) => "renewed",
                Ok(Renewed::Lost) => "lost",
                Ok(Renewed::Locked) => "error",
                Err(error) => {
                    ledger::log_failure!(error, "the instance's lease could not be renewed");
                    "error"
                }
            };
            metrics::counter!("fencepost_lease_renew_total", "kind" => "instance", "result" => result)
                .increment(1);
        }
        self.failure_detector.ended();
        if let Some(token) = self.token() {
            self.release(token).await;
            tell(&self.bus).await;
        }
    }

    async fn release(&self, token: Token) {
        let resource = Resource::instance(&self.id);
        if let Err(error) = self.ledger.release(&resource, &self.id, token).await {
            tracing::warn!(%error, "the instance's lease could not be released; it expires by itself");
        }
    }

    /// Renews by the exact token, which also revives a lease that ran out and that nobody took.
    async fn renew(&mut self, token: Token) -> ledger::Result<Renewed> {
        let Some((sent, renewed)) = self.ask_to_renew(token).await else {
            self.note_not_renewed(
                "no renewal of the instance's lease was answered for as long as it lasts; it is renewed later",
            );
            return Ok(Renewed::Locked);
        };
        let renewed = renewed?;
        match renewed {
            Renewed::Done => {
                self.note_renewed(sent);
                self.look_around().await;
            }
            // An earlier renewal whose answer did not come may wait in its commit, and hold the row.
            Renewed::Locked => {
                self.note_not_renewed("the row of the instance's lease is locked; it is renewed later");
            }
            Renewed::Lost if self.has_risen_above(token).await => {
                tracing::info!(instance = %self.id, %token, "the token of the instance's lease rose unheard");
                self.unsure = true;
                return self.acquire_again().await;
            }
            Renewed::Lost => {
                tracing::error!(instance = %self.id, %token, "the instance's lease was taken: this incarnation ends");
                self.lose_lease();
            }
        }
        Ok(renewed)
    }

    /// Asks for a renewal, and once more where no answer comes in time: it goes another way, while the first may hang with its
    /// connection. Two of one token do no more than one. An answer that is late counts too, from when it was asked for: a
    /// server may be that slow and well. Answers when the renewal that counts was sent; `None` where no answer came while the
    /// lease lasts, after which none would count.
    async fn ask_to_renew(&self, token: Token) -> Option<(Instant, ledger::Result<Renewed>)> {
        let mut tries = JoinSet::new();
        let mut next = tokio::time::Instant::now();
        let give_up = next + self.lease;
        let mut last = None;
        loop {
            let has_turn = tries.len() < RENEWALS_AT_ONCE;
            tokio::select! {
                Some(tried) = tries.join_next() => match tried {
                    // Another one may yet be answered: it may be what has the row locked.
                    Ok(tried @ (_, Ok(Renewed::Locked) | Err(_))) if !tries.is_empty() => last = Some(tried),
                    Ok(tried) => return Some(tried),
                    Err(gone) => std::panic::resume_unwind(gone.into_panic()),
                },
                // The next beat asks anew, with what connections there are.
                () = tokio::time::sleep_until(give_up) => return last,
                () = tokio::time::sleep_until(next), if has_turn => {
                    let (ledger, id) = (Arc::clone(&self.ledger), self.id.clone());
                    let resource = Resource::instance(&self.id);
                    let renewal = Renewal { resource, token, lease_ms: self.lease_ms() };
                    let sent = Instant::now();
                    tries.spawn(async move { (sent, ledger.renew(&id, renewal).await) });
                    let patience = (self.lease / RENEWAL_ANSWERS_PER_LEASE).min(RENEWAL_ANSWER_MAX);
                    next = tokio::time::Instant::now() + patience;
                }
            }
        }
    }

    /// Whether the lease is this instance's under a later token: an acquire that was given up was carried out after the one that
    /// was answered. What is written under the token before is refused, and waits for a token above.
    /// Where that cannot be read it has not: then the incarnation ends, and the process begins another one.
    async fn has_risen_above(&self, token: Token) -> bool {
        let peers = match self.ledger.peers(PEERS_SINCE_MS, PEERS_MAX).await {
            Ok(peers) => peers,
            Err(error) => {
                ledger::log_failure!(error, "whose the instance's lease is could not be read");
                return false;
            }
        };
        let own = peers.into_iter().find(|peer| peer.id == self.id);
        own.is_some_and(|own| own.lease.owner.as_ref() == Some(&self.id) && own.lease.token > token)
    }

    /// Acquires the lease where its token may have risen in an acquire whose answer was lost. That is as good as to renew it.
    async fn acquire_again(&mut self) -> ledger::Result<Renewed> {
        let acquired = self.acquire().await?;
        Ok(if acquired.is_some() { Renewed::Done } else { Renewed::Lost })
    }

    /// For as long as the next renewal is not due; `None` where that was too short, or the lease is lost.
    async fn acquire_anew(&mut self, until: tokio::time::Instant) -> Option<Token> {
        match tokio::time::timeout_at(until, self.acquire()).await {
            Ok(Ok(token)) => token,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the instance's lease could not be acquired again");
                None
            }
            Err(_) => None,
        }
    }

    /// Looks at the others, for an eighth of the lease at most, and no longer than [`RENEWAL_PERIOD_MAX`]: the next renewal waits
    /// for it, and a ledger that is slow to answer must not make this instance look dead, or silent.
    async fn look_around(&self) {
        let look = async {
            let peers = self.peers_and_modes().await?;
            for dead in self.saw(peers) {
                self.bury(&dead).await?;
            }
            Ok(())
        };
        let longest = (self.lease / RENEWALS_PER_LEASE / 2).min(RENEWAL_PERIOD_MAX);
        Self::in_time(look, tokio::time::Instant::now() + longest).await;
    }

    /// A notice says that something has changed. What is read now counts for the ring, the modes, and
    /// instances that left; it is no evidence that a lease does not move.
    async fn look_again(&self, until: tokio::time::Instant) {
        let look = async {
            tokio::time::sleep(NOTICES_GATHERED).await;
            let peers = self.peers_and_modes().await?;
            self.failure_detector.saw_gone(&peers);
            self.cluster_view.saw(peers);
            Ok(())
        };
        Self::in_time(look, until).await;
    }

    /// Reads the others' leases, and the modes, which are adopted.
    async fn peers_and_modes(&self) -> ledger::Result<Vec<Peer>> {
        let peers = self.ledger.peers(PEERS_SINCE_MS, PEERS_MAX).await?;
        if let Some(modes) = self.ledger.modes().await? {
            self.cluster_view.adopt_modes(modes);
        }
        Ok(peers)
    }

    async fn in_time(look: impl Future<Output = ledger::Result<()>>, until: tokio::time::Instant) {
        match tokio::time::timeout_at(until, look).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the other instances' leases could not be read"),
            Err(_) => tracing::debug!("the other instances' leases could not be read in time"),
        }
    }

    /// Notes how the others are; answers who is dead and has nobody yet to say so.
    fn saw(&self, peers: Vec<Peer>) -> Vec<InstanceId> {
        self.failure_detector.saw(&peers);
        let dead = peers.iter().filter(|peer| self.failure_detector.is_lifeless(&peer.id));
        let dead = dead.take(BURIALS_MAX).map(|peer| peer.id.clone()).collect();
        self.cluster_view.saw(peers);
        dead
    }

    /// Takes the lease of a dead instance, so that it finds out should it wake, and all the others know.
    async fn bury(&self, dead: &InstanceId) -> ledger::Result<()> {
        let resource = Resource::instance(dead);
        if let Some((token, expires_at)) =
            self.ledger.take_over(&resource, &self.id, dead, self.lease_ms()).await?
        {
            self.failure_detector.buried(dead, &self.id);
            let expires_at = expires_at.as_micros();
            tracing::warn!(
                %resource, owner = %self.id, %token, expires_at,
                "an instance is dead; its lease is taken"
            );
            metrics::counter!("fencepost_lease_takeover_total", "kind" => "instance", "reason" => "dead")
                .increment(1);
            let bus = self.bus.clone();
            tokio::spawn(async move { tell(&bus).await });
        }
        Ok(())
    }

    fn lease_ms(&self) -> u64 {
        self.lease.as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_renewed_several_times_in_its_length_and_every_550_ms_at_least_however_long_it_is() {
        for ms in (1_000..=60_000).step_by(50) {
            let (lease, longest) = (Duration::from_millis(ms), Duration::from_millis(550));
            let pause = renewal_pause(lease);
            assert!(pause <= longest && pause * 7 / 2 < lease, "{pause:?} of {lease:?}");
        }
    }
}
