//! Carries faults out, on a fleet and on the nodes that are connected to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use testkit::fault_nodes::FaultNodes;
use testkit::fleet::Fleet;
use tokio::sync::Mutex;

use crate::faults::{Fault, Step};

/// Harms a fleet and its nodes. What is done to one server, to one way or to one node is done one after the other; the rest
/// overlaps.
#[derive(Debug)]
pub struct Injector {
    fleet: Arc<Fleet>,
    nodes: Option<Arc<FaultNodes>>,
    database: Mutex<()>,
    redis: Mutex<()>,
    ways: Vec<Mutex<()>>,
}

impl Injector {
    /// Of these.
    #[must_use]
    pub fn new(fleet: Arc<Fleet>, nodes: Option<Arc<FaultNodes>>) -> Self {
        let ways = fleet.urls().iter().map(|_| Mutex::default()).collect();
        Self { fleet, nodes, database: Mutex::default(), redis: Mutex::default(), ways }
    }

    /// Carries out a schedule, and waits until all is healed. `step` is called as each fault begins. How many there were
    /// of each kind.
    ///
    /// # Errors
    /// Something ended by itself, or does not come up again.
    pub async fn carry_out(
        self: &Arc<Self>,
        schedule: Vec<Step>,
        step: impl Fn(&Fault),
    ) -> Result<BTreeMap<&'static str, u64>> {
        let mut done = BTreeMap::new();
        let mut running = tokio::task::JoinSet::new();
        for Step { after, fault } in schedule {
            tokio::time::sleep(after).await;
            let this = Arc::clone(self);
            running.spawn(async move { this.inject(fault).await.with_context(|| format!("{fault:?}")) });
            *done.entry(fault.name()).or_default() += 1;
            step(&fault);
            while let Some(ended) = running.try_join_next() {
                ended??;
            }
        }
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        Ok(done)
    }

    async fn inject(&self, fault: Fault) -> Result<()> {
        let fleet = &self.fleet;
        let (_database, _redis, _way);
        match fault {
            Fault::Kill { instance, down } => fleet.kill_and_restart(instance, down).await,
            Fault::Stop { instance, down } => fleet.stop_and_restart(instance, down).await,
            Fault::Pause { instance, length } => fleet.pause(instance, length).await,
            Fault::RestartDatabase { down } => {
                _database = self.database.lock().await;
                fleet.restart_database(down).await
            }
            Fault::FreezeDatabase { length } => {
                _database = self.database.lock().await;
                fleet.freeze_database(length).await
            }
            Fault::KillRedis { down } => {
                _redis = self.redis.lock().await;
                fleet.restart_redis(down).await
            }
            Fault::FlushRedis => {
                _redis = self.redis.lock().await;
                fleet.flush_redis().await
            }
            Fault::Cut { instance, link, length } => {
                _way = self.ways[instance].lock().await;
                fleet.cut(instance, link, length).await
            }
            Fault::HoldBack { instance, link, length } => {
                _way = self.ways[instance].lock().await;
                fleet.hold_back(instance, link, length).await
            }
            Fault::KillNode { node, down } => self.nodes()?.kill(node, down).await,
            Fault::PauseNode { node, length } => self.nodes()?.pause(node, length).await,
            Fault::CutNode { node } => self.nodes()?.cut(node),
            Fault::DoubleNode { node } => self.nodes()?.connect_again(node),
        }
    }

    fn nodes(&self) -> Result<&FaultNodes> {
        self.nodes.as_deref().context("there are no nodes")
    }
}
