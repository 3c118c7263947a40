//! Transfers: while the bus does not join all instances, each says in the ledger what its nodes can do, and gives the waiting
//! jobs that no node can take that it reaches to an instance whose nodes can. So no job stays where nothing runs it.
//!
//! A job of an instance's lane is moved into the first lane of the other instance, a session moves as a whole: its owner
//! passes the lease on, and the other instance adopts the lane. A plan's jobs stay where its owner is. An instance says that
//! its nodes serve a job by the same rule by which it decides that they do not; so two instances never give each other a
//! job back and forth unless nodes move between them, and then once in [`UNSERVED_MAX`].
//!
//! While all instances use one bus, and it is up, nothing is written and nothing read.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::job::Requirements;
use domain::{InstanceId, JobId, LaneId};
use ledger::{NODES_NOTE_BYTES_MAX, TRANSFER_JOBS_MAX};
use nodes::{NodesElsewhere, Registry, Spare};

use super::keeper::LaneKeeper;
use super::lifetime::Lifetime;
use super::limits::{SESSIONS_PASSED_ON_MAX, UNSERVED_MAX, UNSERVED_REMEMBERED};
use super::messages::{LaneCommand, LaneHandle};
use super::scheduler::Scheduler;
use crate::pause::jittered;

/// The pause between two looks, before jitter.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What one instance gives and is given through the ledger.
pub(super) struct Transfers {
    pub(super) ledger: ledger::Handle,
    pub(super) registry: Registry,
    pub(super) keeper: Arc<LaneKeeper>,
    pub(super) lifetime: Lifetime,
}

/// What earlier looks came to.
#[derive(Default)]
struct Known {
    /// What the ledger has of this instance's nodes.
    note: Option<String>,
    /// Transfers to this instance that its lane was sent to look for.
    given: u64,
    unserved: Unserved,
}

/// What jobs need that no node serves that this instance reaches: since when, and when such a job was seen last.
#[derive(Default)]
struct Unserved(HashMap<Arc<Requirements>, (Instant, Instant)>);

/// Other instances, with what their nodes can do.
type Others = Vec<(InstanceId, NodesElsewhere)>;

impl Transfers {
    /// Gives and takes as long as the instance serves.
    pub(super) async fn run(self) {
        let mut known = Known::default();
        loop {
            tokio::time::sleep(jittered(LOOK_EVERY)).await;
            let is_serving = self.lifetime.is_serving();
            let is_apart = is_serving && self.lifetime.takes_work() && self.keeper.services.is_apart();
            if let Err(error) = self.look(&mut known, is_apart).await {
                tracing::debug!(%error, "jobs could not be passed through the ledger");
            }
            if !is_serving {
                return;
            }
        }
    }

    async fn look(&self, known: &mut Known, is_apart: bool) -> ledger::Result<()> {
        let note = if is_apart { self.registry.note_of_own(NODES_NOTE_BYTES_MAX) } else { None };
        self.note(known, note).await?;
        if !is_apart {
            known.unserved = Unserved::default();
            return Ok(());
        }
        let scheduler = &self.keeper.services.scheduler;
        let unserved =
            known.unserved.look(scheduler.needs(), |needs| self.registry.is_served(needs), Instant::now());
        if unserved.is_empty() {
            return Ok(());
        }
        let notes = self.ledger.nodes_elsewhere(self.keeper.me()).await?;
        let read = |(id, note): (InstanceId, String)| {
            let nodes = self.registry.read_note(&id, &note);
            (id, nodes)
        };
        let others: Others = notes.into_iter().map(read).collect();
        if !others.is_empty() {
            give(scheduler, &unserved, &others);
        }
        Ok(())
    }

    /// Says what the nodes of this instance can do, if that is new, and has its lane look for what was given to it.
    async fn note(&self, known: &mut Known, note: Option<String>) -> ledger::Result<()> {
        let given = if known.note != note {
            let given = self.ledger.note_nodes(self.keeper.me(), note.as_deref()).await?;
            known.note = note;
            given
        } else if known.note.is_some() {
            self.ledger.transfers_to(self.keeper.me()).await?
        } else {
            return Ok(());
        };
        if given != known.given
            && let Some(lane) = self.keeper.directory.get(&LaneId::instance(self.keeper.me(), 0))
        {
            lane.send(LaneCommand::LookForTransferred);
            known.given = given;
        }
        Ok(())
    }
}

impl Unserved {
    /// Of what jobs need that wait now, what was served by no node for [`UNSERVED_MAX`].
    fn look(
        &mut self,
        waiting: Vec<Arc<Requirements>>,
        is_served: impl Fn(&Requirements) -> bool,
        now: Instant,
    ) -> HashSet<Arc<Requirements>> {
        let mut long = HashSet::new();
        for needs in waiting {
            if is_served(&needs) {
                self.0.remove(&needs);
                continue;
            }
            let (since, seen) = self.0.entry(Arc::clone(&needs)).or_insert((now, now));
            *seen = now;
            if now.duration_since(*since) >= UNSERVED_MAX {
                long.insert(needs);
            }
        }
        self.0.retain(|_, (_, seen)| now.duration_since(*seen) < UNSERVED_REMEMBERED);
        long
    }
}

/// Has the lanes give what no node serves here to instances whose nodes serve it.
fn give(scheduler: &Scheduler, unserved: &HashSet<Arc<Requirements>>, others: &Others) {
    let mut jobs: BTreeMap<LaneId, (LaneHandle, Vec<(JobId, InstanceId)>)> = BTreeMap::new();
    let mut sessions: BTreeMap<LaneId, (LaneHandle, BTreeSet<InstanceId>)> = BTreeMap::new();
    for needs in unserved {
        let able = able(needs, others);
        // A session moves to any that can take one of its jobs: single jobs to those that have room first.
        let all: BTreeSet<_> = able.iter().map(|(id, _)| (*id).clone()).collect();
        let free: Vec<_> =
            able.iter().filter(|(_, spare)| *spare == Spare::Free).map(|(id, _)| *id).collect();
        let to = if free.is_empty() { able.iter().map(|(id, _)| *id).collect() } else { free };
        if to.is_empty() {
            continue;
        }
        let first = rand::random_range(0..to.len());
        for (at, (job, lane, handle)) in scheduler.jobs_with(needs, TRANSFER_JOBS_MAX).into_iter().enumerate()
        {
            if lane.is_session() {
                sessions.entry(lane).or_insert((handle, BTreeSet::new())).1.extend(all.iter().cloned());
            } else if lane.plan_id().is_none() {
                let (_, of_lane) = jobs.entry(lane).or_insert((handle, Vec::new()));
                if of_lane.len() < TRANSFER_JOBS_MAX {
                    of_lane.push((job, to[(first + at) % to.len()].clone()));
                }
            }
        }
    }
    for (handle, jobs) in jobs.into_values() {
        handle.send(LaneCommand::Transfer(jobs));
    }
    if sessions.is_empty() {
        return;
    }
    // One that has a job that is served here stays until that one has run.
    for needs in scheduler.needs().into_iter().filter(|needs| !unserved.contains(needs)) {
        for (_, lane, _) in scheduler.jobs_with(&needs, usize::MAX) {
            sessions.remove(&lane);
        }
    }
    for (lane, (handle, able)) in sessions.into_iter().take(SESSIONS_PASSED_ON_MAX) {
        // All who look choose the same of those that are able.
        if let Some(to) = cluster::owner_among(lane.lease(), &able) {
            handle.send(LaneCommand::PassOn(to));
        }
    }
}

/// The instances whose nodes serve such a job.
fn able<'o>(needs: &Requirements, others: &'o Others) -> Vec<(&'o InstanceId, Spare)> {
    others.iter().filter_map(|(id, nodes)| Some((id, nodes.serve(needs)?))).collect()
}

#[cfg(test)]
mod tests {
    use domain::PoolName;

    use super::*;

    fn needs(pool: &str) -> Arc<Requirements> {
        Arc::new(Requirements { pool: PoolName::parse(pool).ok(), ..Requirements::default() })
    }

    #[test]
    fn what_no_node_serves_is_given_away_after_a_while_and_counts_anew_once_it_was_served() {
        let (mut unserved, start) = (Unserved::default(), Instant::now());
        let (a, b) = (needs("a"), needs("b"));
        let mut look = |waiting: &[&Arc<Requirements>], served: &Arc<Requirements>, after: Duration| {
            let waiting = waiting.iter().map(|needs| Arc::clone(needs)).collect();
            let long = unserved.look(waiting, |needs| needs == &**served, start + after);
            let mut pools: Vec<_> =
                long.iter().map(|needs| needs.pool.as_ref().unwrap().to_string()).collect();
            pools.sort_unstable();
            pools.join(" ")
        };
        let (second, none) = (Duration::from_secs(1), needs("none"));
        assert_eq!(look(&[&a, &b], &none, Duration::ZERO), "");
        assert_eq!(look(&[&a, &b], &b, second), "");
        assert_eq!(look(&[&a, &b], &none, UNSERVED_MAX), "a");
        // None waits in memory for a while: the others that come from the ledger do not wait again.
        assert_eq!(look(&[&b], &none, UNSERVED_MAX + second), "");
        assert_eq!(look(&[&a, &b], &none, UNSERVED_MAX + second * 2), "a b");
        let late = UNSERVED_MAX + second * 2 + UNSERVED_REMEMBERED;
        assert_eq!(look(&[&b], &none, late - second), "b");
        assert_eq!(look(&[&b], &none, late), "b");
        assert_eq!(look(&[&a, &b], &none, late), "b");
    }
}
