//! The presence publisher announces this instance on the bus as long as it reaches the ledger, and receives
//! the others' notices.
//!
//! Everything here may be lost. The ledger decides membership; a notice only makes an instance read the
//! ledger now instead of with the next renewal.

use std::sync::Arc;
use std::time::Duration;

use bus::{Channel, Link, Presence};
use domain::InstanceId;
use ledger::jittered;
use panic_guard::{again_after_panics, guarded};
use rand::RngExt;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::cluster_view::PRESENCE_TTL;
use crate::failure_detector::SILENCE_MAX;
use crate::other_buses::Comparison;
use crate::{ClusterView, FailureDetector};

/// Between two announcements, before jitter.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Between two tries to note in the ledger whether the bus is up, before jitter.
const NOTE_AGAIN: Duration = Duration::from_secs(1);

const _: () = assert!(PRESENCE_TTL.as_millis() == 2 * HEARTBEAT.as_millis());

/// What the log calls the task that announces this instance.
const PUBLISHING: &str = "the presence publisher";

/// The content of a notice: members or modes may have changed.
const NOTICE: &[u8] = b"look";

pub(crate) struct PresencePublisher {
    pub(crate) bus: bus::Handle,
    pub(crate) ledger: ledger::Handle,
    pub(crate) presence: Presence,
    /// Length of an instance's lease.
    pub(crate) lease: Duration,
    pub(crate) failure_detector: FailureDetector,
    /// Wakes the task that looks at the others.
    pub(crate) look: Arc<Notify>,
    /// Where the instances on other buses are shown.
    pub(crate) found: watch::Sender<Vec<String>>,
    /// Where it is noted whether the buses differ.
    pub(crate) cluster_view: ClusterView,
}

impl PresencePublisher {
    pub(crate) fn start(self) -> PublishingTask {
        let (stop, stopped) = oneshot::channel();
        let (is_up, newest) = watch::channel(None);
        let (ledger, me) = (self.ledger.clone(), self.presence.instance.clone());
        let note = BusNote { ledger: ledger.clone(), me: me.clone(), newest };
        let (bus, found, view) = (self.bus.clone(), self.found.clone(), self.cluster_view.clone());
        let comparison = Comparison::new(bus, ledger, me, self.lease, found, view, is_up.clone());
        // Apart: what waits for the ledger must not keep the presence from being announced.
        let mut beside = JoinSet::new();
        beside.spawn(again_after_panics("the comparison of the buses", move || comparison.clone().run()));
        beside.spawn(again_after_panics("the note of the bus", move || note.clone().run()));
        PublishingTask { stop, task: tokio::spawn(self.run(stopped, is_up)), _beside: beside }
    }

    async fn run(self, mut stopped: oneshot::Receiver<()>, is_up: watch::Sender<Option<bool>>) {
        let mut shown = false;
        while guarded(PUBLISHING, self.publish(&mut stopped, &is_up, &mut shown)).await.is_none() {
            panic_guard::pause().await;
        }
        if shown && let Err(error) = self.bus.withdraw(&self.presence.instance).await {
            tracing::debug!(%error, "this instance's presence could not be withdrawn; it expires by itself");
        }
    }

    /// Announces and listens until it is to stop.
    async fn publish(
        &self,
        stopped: &mut oneshot::Receiver<()>,
        is_up: &watch::Sender<Option<bool>>,
        shown: &mut bool,
    ) {
        let mut notices = self.bus.subscribe(Channel::Cluster);
        // Who joined after the first look and told so before this one listened is seen now.
        self.look.notify_one();
        let mut link = self.bus.link();
        link.mark_changed();
        let mut next = tokio::time::Instant::now();
        loop {
            tokio::select! {
                _ = &mut *stopped => return,
                Some(_) = notices.next() => {
                    self.look.notify_one();
                    continue;
                }
                Ok(()) = link.changed() => {
                    let link = *link.borrow_and_update();
                    self.tell_link(link).await;
                    // Of a bus within the process there is nothing to note.
                    if self.bus.kind() != bus::Kind::Local {
                        is_up.send_replace(Some(link.is_up()));
                    }
                }
                () = tokio::time::sleep_until(next) => {
                    next += HEARTBEAT.mul_f64(rand::rng().random_range(0.8..1.0));
                    next = next.max(tokio::time::Instant::now());
                }
            }
            *shown = show(&self.bus, &self.presence, &self.failure_detector, *shown).await;
        }
    }

    async fn tell_link(&self, link: Link) {
        match link {
            Link::Up { .. } => tracing::info!("the bus is up"),
            Link::Down { .. } => {
                let error = why_down(&self.bus).await;
                tracing::warn!(error, "the bus is down; operations that need it wait");
            }
        }
        if link.is_up() && self.bus.kind() != bus::Kind::Local {
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
    }
}

/// Why the link is down: what a probe met, or what another call comes to, or else there is only one reason left.
async fn why_down(bus: &bus::Handle) -> String {
    let error = match bus.failure() {
        Some(error) => Some(error),
        None => bus.check().await.err(),
    };
    error.map_or_else(
        || "the connection that hears what is published was lost".to_owned(),
        |error| error.to_string(),
    )
}

/// Shows the instance, or, when it has not reached the ledger for long, shows it no more. Answers whether it may be shown now.
async fn show(
    bus: &bus::Handle,
    presence: &Presence,
    failure_detector: &FailureDetector,
    shown: bool,
) -> bool {
    if failure_detector.is_silent_for(SILENCE_MAX) {
        return shown && bus.withdraw(&presence.instance).await.is_err();
    }
    if let Err(error) = bus.announce(presence, PRESENCE_TTL).await {
        tracing::debug!(%error, "this instance's presence could not be announced");
    }
    true
}

/// Notes in the ledger whether the bus is up, and nothing else does. However long that takes, only the newest word of it is noted
/// next.
#[derive(Clone)]
struct BusNote {
    ledger: ledger::Handle,
    me: InstanceId,
    newest: watch::Receiver<Option<bool>>,
}

impl BusNote {
    async fn run(mut self) {
        loop {
            let is_up = *self.newest.borrow_and_update();
            let noted = match is_up {
                Some(_) => self.ledger.note_bus(&self.me, is_up, None).await,
                None => Ok(()),
            };
            let changed = match noted {
                Err(error) if error.is_retryable() => {
                    tracing::debug!(%error, "the state of the bus could not be stored yet");
                    tokio::time::timeout(jittered(NOTE_AGAIN), self.newest.changed()).await.unwrap_or(Ok(()))
                }
                Err(error) => {
                    tracing::warn!(%error, "the state of the bus could not be stored");
                    self.newest.changed().await
                }
                Ok(()) => self.newest.changed().await,
            };
            // The publisher has stopped.
            if changed.is_err() {
                return;
            }
        }
    }
}

/// The running presence publisher.
pub(crate) struct PublishingTask {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    /// What waits for the ledger; it ends when this is dropped.
    _beside: JoinSet<()>,
}

impl PublishingTask {
    /// Withdraws the instance's presence.
    pub(crate) async fn stop(self) {
        // It may have died; the log says so below.
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use domain::Timestamp;

    use super::*;

    #[tokio::test]
    async fn a_bus_that_is_down_is_told_with_a_reason_also_where_it_answers() {
        let bus = bus::Hub::default().join();
        assert!(bus.failure().is_none() && bus.check().await.is_ok());
        assert_eq!(why_down(&bus).await, "the connection that hears what is published was lost");
    }

    #[tokio::test]
    async fn an_instance_that_has_not_reached_the_ledger_for_long_is_shown_no_more_until_it_reaches_it() {
        let bus = bus::Hub::default().join();
        let me = InstanceId::parse("a").unwrap();
        let presence = Presence {
            instance: me.clone(),
            started_at: Timestamp::from_micros(0),
            hostname: "h".to_owned(),
            pid: 1,
            version: "v".to_owned(),
            address: "http://a".to_owned(),
        };
        let detector = FailureDetector::member(Duration::from_secs(2));
        let is_present = async || bus.present(std::slice::from_ref(&me)).await.unwrap().contains_key(&me);
        let mut shown = false;
        for (ago, expected) in [
            (Duration::ZERO, true),
            (SILENCE_MAX / 2, true),
            (SILENCE_MAX, false),
            (SILENCE_MAX * 2, false),
            (Duration::ZERO, true),
        ] {
            detector.renewed(Instant::now().checked_sub(ago).unwrap());
            shown = show(&bus, &presence, &detector, shown).await;
            assert_eq!((shown, is_present().await), (expected, expected), "{ago:?}");
        }
    }
}
