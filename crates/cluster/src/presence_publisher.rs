//! The presence publisher announces this instance on the bus as long as it reaches the ledger, and receives
//! the others' notices.
//!
//! Everything here may be lost. The ledger decides membership; a notice only makes an instance read the
//! ledger now instead of with the next renewal.

use std::sync::Arc;
use std::time::Duration;

use bus::{Channel, Link, Presence};
use rand::RngExt;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::FailureDetector;
use crate::other_buses::compare;

/// Between two announcements, before jitter.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long an announcement counts.
const PRESENCE_TTL: Duration = Duration::from_secs(2);
/// Between two comparisons of the buses that the instances use.
const COMPARISONS: Duration = Duration::from_secs(5);
/// After this long without the ledger, an instance withdraws its presence.
const SILENCE_MAX: Duration = Duration::from_secs(15);

const _: () = assert!(PRESENCE_TTL.as_millis() == 2 * HEARTBEAT.as_millis());

/// The content of a notice: members or modes may have changed.
const NOTICE: &[u8] = b"look";

pub(crate) struct PresencePublisher {
    pub(crate) bus: bus::Handle,
    pub(crate) ledger: ledger::Handle,
    pub(crate) presence: Presence,
    pub(crate) failure_detector: FailureDetector,
    /// Wakes whoever looks at the others.
    pub(crate) look: Arc<Notify>,
    /// Where the instances on other buses are shown.
    pub(crate) found: watch::Sender<Vec<String>>,
    /// The bus that the ledger knows this instance to use.
    pub(crate) noted: Option<String>,
}

impl PresencePublisher {
    pub(crate) fn start(self) -> PublishingTask {
        let (stop, stopped) = oneshot::channel();
        PublishingTask { stop, task: tokio::spawn(self.run(stopped)) }
    }

    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut notices = self.bus.subscribe(Channel::Cluster);
        let mut link = self.bus.link();
        link.mark_changed();
        let mut shown = false;
        let mut next = tokio::time::Instant::now();
        let mut comparisons = tokio::time::interval(COMPARISONS);
        comparisons.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = &mut stopped => break,
                Some(_) = notices.next() => self.look.notify_one(),
                Ok(()) = link.changed() => {
                    let link = *link.borrow_and_update();
                    self.tell_link(link).await;
                    shown = self.show(shown).await;
                }
                _ = comparisons.tick() => self.compare_buses().await,
                () = tokio::time::sleep_until(next) => {
                    next += HEARTBEAT.mul_f64(rand::rng().random_range(0.8..1.0));
                    next = next.max(tokio::time::Instant::now());
                    shown = self.show(shown).await;
                }
            }
        }
        if shown && let Err(error) = self.bus.withdraw(&self.presence.instance).await {
            tracing::debug!(%error, "this instance's presence could not be withdrawn; it expires by itself");
        }
    }

    /// Shows this instance, or, when it has not reached the ledger for long, shows it no more. Answers whether
    /// it may be shown now.
    async fn show(&self, shown: bool) -> bool {
        if self.failure_detector.is_silent_for(SILENCE_MAX) {
            return shown && self.bus.withdraw(&self.presence.instance).await.is_err();
        }
        if let Err(error) = self.bus.announce(&self.presence, PRESENCE_TTL).await {
            tracing::debug!(%error, "this instance's presence could not be announced");
        }
        true
    }

    /// Notes which bus this instance uses, and looks whether the others use the same.
    async fn compare_buses(&mut self) {
        let link = *self.bus.link().borrow();
        if !link.is_up() {
            return;
        }
        let own = match self.bus.identity().await {
            Ok(own) => own,
            Err(error) => return tracing::debug!(%error, "the identity of the bus could not be read"),
        };
        let needs_note = self.noted.as_ref() != Some(&own);
        let up = (self.bus.kind() != bus::Kind::Local).then_some(true);
        let noted = async {
            if needs_note {
                self.ledger.note_bus(&self.presence.instance, up, Some(&own)).await?;
            }
            self.ledger.live_instances().await
        };
        match noted.await {
            Ok(live) => self.show_other_buses(compare(&own, &live)),
            Err(error) => return tracing::debug!(%error, "the buses of the instances could not be compared"),
        }
        self.noted = Some(own);
    }

    fn show_other_buses(&self, found: Vec<String>) {
        metrics::gauge!("fencepost_instances_on_other_buses").set(found.len() as f64);
        let changed = self.found.send_if_modified(|shown| {
            let changed = *shown != found;
            shown.clone_from(&found);
            changed
        });
        if !changed {
            return;
        }
        for what in &found {
            tracing::warn!("{what}");
        }
        if found.is_empty() {
            tracing::info!("all instances use the same bus");
        }
    }

    async fn tell_link(&self, link: Link) {
        match link {
            Link::Up { .. } => tracing::info!("the bus is up"),
            Link::Down { .. } => {
                // What another call comes to says why.
                let error = self.bus.check().await.err().map(|error| error.to_string()).unwrap_or_default();
                tracing::warn!(error, "the bus is down; operations that need it wait");
            }
        }
        if self.bus.kind() == bus::Kind::Local {
            return;
        }
        if link.is_up() {
            // At the start, and whenever it may be another server.
            match self.bus.check().await {
                Ok(health) => {
                    for warning in health.warnings {
                        tracing::warn!(warning, "the bus may lose data");
                    }
                }
                Err(error) => tracing::debug!(%error, "the state of the bus could not be read"),
            }
        }
        if let Err(error) = self.ledger.note_bus(&self.presence.instance, Some(link.is_up()), None).await {
            tracing::debug!(%error, "the state of the bus could not be stored");
        }
    }
}

/// The running presence publisher.
pub(crate) struct PublishingTask {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl PublishingTask {
    /// Withdraws the instance's presence.
    pub(crate) async fn stop(self) {
        // It may have died; that is told below.
        let _ = self.stop.send(());
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the presence publisher had panicked");
        }
    }
}

/// Publishes a notice to all instances.
pub async fn tell(bus: &bus::Handle) {
    if let Err(error) = bus.publish(Channel::Cluster, NOTICE).await {
        tracing::debug!(%error, "a notice was not published; the others read the ledger soon");
    }
}
