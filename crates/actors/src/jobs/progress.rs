//! Tells how far attempts have come to those who watch them, and answers for other instances' jobs by asking the holders of
//! their nodes.

use std::sync::Arc;
use std::time::Duration;

use domain::job::{Attempt, State};
use domain::{InstanceId, JobId, NodeId};
use ledger::{JobRecord, jittered};
use nodes::Registry;
use nodes::connection::Progress;
use panic_guard::{guarded, guarded_call};

use super::limits::{PROGRESS_SENT_EVERY, WANTED_AGAIN_EVERY};
use super::live_job::live_job;
use super::node_gateway::NodeGateway;
use super::progress_store::{Known, Lane, ProgressStore};
use super::watches::{JobEvent, JobEventKind, Watches};

/// Reports the progress of the attempts on one instance's nodes.
pub(super) struct ProgressReporter {
    pub(super) me: InstanceId,
    pub(super) ledger: ledger::Handle,
    pub(super) registry: Registry,
    pub(super) store: Arc<ProgressStore>,
    pub(super) gateway: Arc<NodeGateway>,
    pub(super) watches: Arc<Watches>,
}

impl ProgressReporter {
    /// Sends progress that was held back because it came too soon after the last, as long as another handle
    /// exists.
    pub(super) fn start(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut sweep_in = Duration::ZERO;
            loop {
                let pause = jittered(PROGRESS_SENT_EVERY);
                tokio::time::sleep(pause).await;
                let Some(this) = this.upgrade() else { return };
                guarded("the reports of progress", this.tell_due()).await;
                sweep_in = sweep_in.saturating_sub(pause);
                if sweep_in.is_zero() {
                    sweep_in = WANTED_AGAIN_EVERY;
                    guarded_call("the sweep of progress", || this.store.sweep());
                }
            }
        });
    }

    /// A node that is connected here says how far an attempt is.
    pub(super) fn progressed(&self, node: &NodeId, job: JobId, attempt: Attempt, progress: Progress) {
        if !self.store.heard(node, job, attempt, progress) {
            return;
        }
        if self.watches.has_nobody() {
            self.watches.tallies().progressed();
            return;
        }
        match self.event(job) {
            // Its node has come from another instance: sent when that is looked up.
            Some(JobEvent { lane: None, .. }) if self.store.has_lane_to_seek(job) => {
                self.store.put_off(job);
            }
            Some(event) => self.watches.tell_progress(event),
            None => {}
        }
    }

    /// Sends the progress that came too soon after the one before, and what was put off.
    async fn tell_due(&self) {
        let mut is_ledger_away = false;
        for job in self.store.take_due() {
            if self.watches.has_nobody() {
                self.watches.tallies().progressed();
                continue;
            }
            let Some(mut event) = self.event(job) else { continue };
            if event.lane.is_none() && !is_ledger_away && self.store.has_lane_to_seek(job) {
                match live_job(&self.ledger, job).await {
                    Ok(Some(live))
                        if live.placed.as_ref().map(|placed| &placed.node) != event.node.as_ref() =>
                    {
                        if let Some(node) = &event.node {
                            self.store.forget_of(job, node);
                        }
                        continue;
                    }
                    Ok(live) => {
                        event.lane = live.map(|live| live.lane);
                        self.store.found_lane(job, event.lane.clone().map_or(Lane::Unknown, Lane::Found));
                    }
                    Err(error) => {
                        tracing::debug!(%error, %job, "the lane of a job could not be looked up");
                        is_ledger_away = true;
                    }
                }
            }
            self.watches.tell_progress(event);
        }
    }

    /// How far a job is whose node is connected here, as an event. If it has no lane, nobody has looked up whether the node that
    /// says so has the attempt.
    fn event(&self, job: JobId) -> Option<JobEvent> {
        let Known { attempt, node, progress, lane } = self.store.known(job)?;
        // A node may have spoken of the attempt before it went to its own.
        if self.gateway.attempts().is_anothers(&node, job, attempt) {
            return None;
        }
        let lane = self.gateway.attempts().lane(job, attempt).or(match lane {
            Lane::Found(lane) => Some(lane),
            Lane::NotSought | Lane::Unknown => None,
        });
        Some(JobEvent { job, attempt, lane, node: Some(node), kind: JobEventKind::Progressed(progress) })
    }

    /// The same for other instances: nothing where the node has connected to another one since.
    pub(super) fn event_for_others(&self, job: JobId) -> Option<JobEvent> {
        let event = self.event(job)?;
        let has_left = event.node.as_ref().is_some_and(|node| self.other_holder(node).is_some());
        (!has_left).then_some(event)
    }

    /// The other instance that holds the socket of a node, if one does.
    fn other_holder(&self, node: &NodeId) -> Option<InstanceId> {
        let holder = self.registry.get(node)?.profile.holder.clone();
        (holder != self.me).then_some(holder)
    }

    /// See [`super::Jobs::progress`].
    pub(super) async fn of(&self, job: &JobRecord) -> Option<Progress> {
        if !matches!(job.state, State::Dispatched | State::Running) {
            return None;
        }
        let placed = job.placed.as_ref()?;
        let told_here = self.store.of(job.id, job.attempt, &placed.node);
        // The node may have connected to another instance since.
        let Some(holder) = self.other_holder(&placed.node) else { return told_here };
        self.watches.ask(job.id, job.attempt, &placed.node, &holder).await.or(told_here)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::jobs::fixture::{
        FIRST, Ledger, dispatch, gateway, instance, job, lane, node, node_record, slot,
    };
    use crate::jobs::watches::{Notification, Topic};

    fn percent(percent: u8) -> Progress {
        Progress { percent: nodes::connection::Percent::new(f64::from(percent)), note: None }
    }

    /// Of instance `a`.
    fn reporter(ledger: &Ledger, watches: &Arc<Watches>) -> ProgressReporter {
        let store = Arc::<ProgressStore>::default();
        ProgressReporter {
            me: instance("a"),
            ledger: ledger.handle.clone(),
            registry: Registry::new(instance("a"), domain::NodeTimeouts::DEFAULT),
            gateway: gateway(ledger, Arc::clone(&store)),
            store,
            watches: Arc::clone(watches),
        }
    }

    #[tokio::test]
    async fn progress_reaches_the_watches_of_the_jobs_lane() {
        let ledger = Ledger::open().await;
        ledger.dispatch_all("b", &[1, 2], "n", "b").await;
        let watches = Arc::new(Watches::new(true).0);
        let reporter = reporter(&ledger, &watches);
        let mut watch = watches.watch(Topic::Lane(lane("instance:b"))).unwrap();
        let mut seen = || match watch.next_now() {
            Some(Notification::Event(event)) => Some((event.job, event.kind.clone())),
            None => None,
            Some(Notification::Missed) => panic!("nothing was missed"),
        };
        reporter.gateway.attempts().expect(&dispatch(1, "n", "a"), Instant::now());
        reporter.progressed(&node("n"), job(1), FIRST, percent(10));
        assert_eq!(seen(), Some((job(1), JobEventKind::Progressed(percent(10)))), "at once");
        reporter.progressed(&node("n"), job(1), FIRST, percent(11));
        assert_eq!(seen(), None, "too soon");
        // This one came with its node, so its lane is looked up.
        reporter.gateway.attempts().connected_with(&node("n"), &[slot(2)]);
        reporter.progressed(&node("n"), job(2), FIRST, percent(20));
        assert_eq!(seen(), None);
        reporter.tell_due().await;
        let (one, other) = (seen().unwrap(), seen().unwrap());
        let mut percents = [one.1, other.1];
        percents.sort_by_key(|kind| *kind == JobEventKind::Progressed(percent(20)));
        assert_eq!(percents, [11, 20].map(|n| JobEventKind::Progressed(percent(n))));
        assert_eq!(reporter.event(job(2)).unwrap().lane, Some(lane("instance:b")), "it is known now");
    }

    #[tokio::test]
    async fn what_a_node_has_said_here_gives_way_to_what_it_says_elsewhere() {
        let ledger = Ledger::open().await;
        ledger.dispatch_all("b", &[1], "n", "a").await;
        let (watches, _outgoing) = Watches::new(false);
        let watches = Arc::new(watches);
        let reporter = reporter(&ledger, &watches);
        let record = ledger.handle.job(job(1)).await.unwrap().unwrap();
        let at = |holder, epoch| {
            let now = Instant::now();
            reporter.registry.apply(node_record("n", holder, bus::Epoch::new(epoch), 1), now, now)
        };
        assert_eq!(at("a", 1), nodes::Applied::New);
        reporter.progressed(&node("n"), job(1), FIRST, percent(50));
        let event = reporter.event_for_others(job(1)).unwrap();
        assert_eq!(event.kind, JobEventKind::Progressed(percent(50)));
        assert_eq!(reporter.of(&record).await, Some(percent(50)));
        assert_eq!(at("b", 2), nodes::Applied::New);
        assert_eq!(reporter.event_for_others(job(1)), None, "the other instance answers");
        assert_eq!(reporter.of(&record).await, Some(percent(50)), "it does not answer");
        watches.tell_progress(JobEvent { kind: JobEventKind::Progressed(percent(90)), ..event });
        assert_eq!(reporter.of(&record).await, Some(percent(90)));
    }
}
