//! All events as one instance sees them, of jobs, nodes and the cluster, in the wire's shapes.

use std::collections::{BTreeMap, VecDeque};

use ::nodes::{Changed, Ended, NodeChange};
use actors::jobs::{self, JobEventKind, Notification, Watch};
use bus::NodeState;
use cluster::{ClusterView, View};
use domain::job::State as JobState;
use domain::{InstanceId, Modes};
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use wire::Json;
use wire::events::{
    ClusterEvent, ClusterHappening, EventKind, JobEvent, NodeEvent, NodeHappening, ProgressEvent,
};

use crate::services::Incarnation;
use crate::to_wire;

/// The events of one feed, from its start on.
pub struct World {
    kinds: Vec<EventKind>,
    jobs: Option<Watch>,
    nodes: Option<broadcast::Receiver<NodeChange>>,
    cluster: Option<Cluster>,
    /// Events that came together.
    waiting: VecDeque<Event>,
}

/// An event: its kind, and its data.
pub type Event = (EventKind, Json);

/// The cluster as the feed showed it last.
struct Cluster {
    cluster_view: ClusterView,
    changes: watch::Receiver<()>,
    members: BTreeMap<InstanceId, String>,
    modes: Modes,
}

impl World {
    /// Events of these kinds; those of jobs come from the watch.
    pub fn new(incarnation: &Incarnation, kinds: Vec<EventKind>, jobs: Option<Watch>) -> Self {
        let has = |kind: EventKind| kinds.contains(&kind);
        let nodes = has(EventKind::Node).then(|| incarnation.registry.changes());
        let cluster = has(EventKind::Cluster).then(|| Cluster::of(&incarnation.cluster_view));
        Self { kinds, jobs, nodes, cluster, waiting: VecDeque::new() }
    }

    /// The next event; `None` where events were missed.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            tokio::select! {
                news = of_jobs(&mut self.jobs) => match news {
                    Notification::Event(seen) => self.waiting.extend(to_events(&seen).filter(|(kind, _)| self.kinds.contains(kind))),
                    Notification::Missed => return None,
                },
                change = of_nodes(&mut self.nodes) => return Some(event(EventKind::Node, &node(&change?))),
                () = of_cluster(&mut self.cluster) => {
                    if let Some(cluster) = &mut self.cluster {
                        self.waiting.extend(cluster.look().iter().map(|it| event(EventKind::Cluster, it)));
                    }
                }
            }
        }
    }
}

async fn of_jobs(jobs: &mut Option<Watch>) -> Notification {
    match jobs {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

async fn of_nodes(nodes: &mut Option<broadcast::Receiver<NodeChange>>) -> Option<NodeChange> {
    let Some(changes) = nodes else { return std::future::pending().await };
    match changes.recv().await {
        Ok(change) => Some(change),
        Err(RecvError::Lagged(_)) => None,
        // The incarnation is over; the feed ends.
        Err(RecvError::Closed) => std::future::pending().await,
    }
}

async fn of_cluster(cluster: &mut Option<Cluster>) {
    if let Some(Cluster { changes, .. }) = cluster
        && changes.changed().await.is_ok()
    {
        return;
    }
    // The incarnation is over; the feed ends.
    std::future::pending().await
}

fn event(kind: EventKind, shape: &impl Serialize) -> Event {
    (kind, Json::of(shape).expect("it has text keys only"))
}

fn to_events(seen: &jobs::JobEvent) -> Option<Event> {
    let jobs::JobEvent { job, attempt, lane, node, kind } = seen;
    let (id, attempt) = (job.to_string(), attempt.get());
    Some(match kind {
        JobEventKind::Changed(state, outcome) => event(
            EventKind::Job,
            &JobEvent {
                id,
                state: to_wire::job_state(*state),
                outcome: outcome.map(to_wire::outcome),
                attempt,
                lane: lane.as_ref().map(ToString::to_string),
                // A job that is back in its queue is with no node, whichever had the attempt that is over.
                node: node.as_ref().filter(|_| *state != JobState::Created).map(ToString::to_string),
            },
        ),
        JobEventKind::Progressed(progress) => {
            let (percent, note) =
                (progress.percent.map(::nodes::connection::Percent::get), progress.note.clone());
            event(EventKind::Progress, &ProgressEvent { id, attempt, percent, note })
        }
    })
}

fn node(change: &NodeChange) -> NodeEvent {
    let shown = |state: NodeState| to_wire::node_state(state);
    let (what, state) = match change.what {
        Changed::Joined(state) => (NodeHappening::Joined, shown(state)),
        Changed::State(state) => (NodeHappening::Changed, shown(state)),
        Changed::Ended(how) => {
            let what = match how {
                Ended::Left => NodeHappening::Left,
                Ended::Replaced => NodeHappening::Replaced,
                Ended::Lost | Ended::Unseen => NodeHappening::Lost,
            };
            (what, wire::nodes::NodeState::Offline)
        }
    };
    NodeEvent { id: change.node.to_string(), what, state, instance: change.holder.to_string() }
}

impl Cluster {
    fn of(cluster_view: &ClusterView) -> Self {
        // Registered before the look.
        let changes = cluster_view.changes();
        let view = cluster_view.view();
        Self {
            cluster_view: cluster_view.clone(),
            changes,
            members: members(&view),
            modes: view.modes().clone(),
        }
    }

    /// What is not as it was.
    fn look(&mut self) -> Vec<ClusterEvent> {
        let view = self.cluster_view.view();
        let now = members(&view);
        let instance = |what: ClusterHappening, (id, url): (&InstanceId, &String)| ClusterEvent {
            what,
            instance_id: Some(id.to_string()),
            url: Some(url.clone()),
            mode: None,
            version: None,
        };
        let left = self.members.iter().filter(|(id, _)| !now.contains_key(*id));
        let joined = now.iter().filter(|(id, _)| !self.members.contains_key(*id));
        let mut events: Vec<_> = left.map(|it| instance(ClusterHappening::Left, it)).collect();
        events.extend(joined.map(|it| instance(ClusterHappening::Joined, it)));
        if *view.modes() != self.modes {
            self.modes = view.modes().clone();
            events.push(ClusterEvent {
                what: ClusterHappening::Mode,
                instance_id: None,
                url: None,
                mode: Some(to_wire::mode(self.modes.mode)),
                version: Some(self.modes.version),
            });
        }
        self.members = now;
        events
    }
}

fn members(view: &View) -> BTreeMap<InstanceId, String> {
    view.members().map(|member| (member.id.clone(), member.url.clone())).collect()
}

#[cfg(test)]
mod tests {
    use domain::job::{Attempt, Outcome};
    use domain::{JobId, NodeId};

    use super::*;

    #[test]
    fn a_job_that_is_back_in_its_queue_is_with_no_node() {
        for (state, outcome, shown) in [
            (JobState::Dispatched, None, Some("n")),
            (JobState::Running, None, Some("n")),
            (JobState::Created, None, None),
            (JobState::Finished, Some(Outcome::Failed), Some("n")),
        ] {
            let (attempt, node) = (Attempt::new(1), NodeId::parse("n").ok());
            let kind = JobEventKind::Changed(state, outcome);
            let seen = jobs::JobEvent { job: JobId::from_u128(1), attempt, lane: None, node, kind };
            let (_, event) = to_events(&seen).expect("it is shown");
            assert_eq!(event.read::<JobEvent>().unwrap().node.as_deref(), shown, "{event}");
        }
    }
}
