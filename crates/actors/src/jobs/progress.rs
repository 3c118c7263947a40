//! Tells how far attempts have come to those who watch them, and answers for other instances' jobs by asking the holders of
//! their nodes.

use std::sync::Arc;
use std::time::Duration;

use domain::job::{Attempt, State};
use domain::{InstanceId, JobId, NodeId};
use ledger::{JobRecord, jittered};
use nodes::Registry;
use nodes::connection::Progress;

use super::limits::{PROGRESS_SENT_EVERY, WANTED_AGAIN_EVERY};
use super::live_job::live_job;
use super::node_gateway::NodeGateway;
use super::progress_store::{Known, Lane, ProgressStore};
use super::watches::{JobEvent, JobEventKind, Watches};
use crate::panic_guard::guarded;

/// Of one instance.
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
                    this.store.sweep();
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
    pub(super) fn event(&self, job: JobId) -> Option<JobEvent> {
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

    /// See [`super::Jobs::progress`].
    pub(super) async fn of(&self, job: &JobRecord) -> Option<Progress> {
        if !matches!(job.state, State::Dispatched | State::Running) {
            return None;
        }
        let placed = job.placed.as_ref()?;
        if let Some(progress) = self.store.of(job.id, job.attempt, &placed.node) {
            return Some(progress);
        }
        // The node may have connected to another instance since.
        let holder = self.registry.get(&placed.node).map(|record| record.profile.holder.clone());
        let holder = holder.filter(|holder| *holder != self.me)?;
        self.watches.ask(job.id, job.attempt, &placed.node, &holder).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::jobs::fixture::{FIRST, Ledger, dispatch, gateway, instance, job, lane, node, slot};
    use crate::jobs::watches::{Notification, Topic};

    fn percent(percent: u8) -> Progress {
        Progress { percent: nodes::connection::Percent::new(f64::from(percent)), note: None }
    }

    #[tokio::test]
    async fn progress_reaches_the_watches_of_the_jobs_lane() {
        let ledger = Ledger::open().await;
        ledger.dispatch_all("b", &[1, 2], "n", "b").await;
        let store = Arc::<ProgressStore>::default();
        let watches = Arc::new(Watches::new(true).0);
        let reporter = ProgressReporter {
            me: instance("a"),
            ledger: ledger.handle.clone(),
            registry: Registry::new(instance("a"), domain::NodeTimeouts::DEFAULT),
            gateway: gateway(&ledger, Arc::clone(&store)),
            store,
            watches: Arc::clone(&watches),
        };
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
}
