//! One incarnation and its parts: its lease, the owners of keys, their upkeep. When others have declared it
//! dead, the process continues as a new incarnation.

use std::sync::Arc;
use std::time::Duration;

use actors::arbiters::Arbiters;
use actors::database_clock::SharedClock;
use actors::jobs::{self, Jobs};
use actors::plans::{self, Plans};
use actors::signers::{Signers, Upkeep};
use cluster::{FailureDetector, Identity, JoinOptions, Membership, Process, Reach};
use domain::InstanceId;
use nodes::{BusSource, Follower, Hearing, Registry};

use super::endpoint::Endpoint;
use super::{not_opened, settings, version};
use crate::config::Config;
use crate::exit::{Exit, Failure};

/// One incarnation.
pub struct Incarnation {
    pub identity: Identity,
    pub membership: Membership,
    reach: Reach,
    pub signers: Signers,
    pub jobs: Jobs,
    pub plans: Plans,
    registry: Registry,
    pub follower: Follower,
    pub upkeep: Upkeep,
}

impl Incarnation {
    /// Joins the cluster under a new id, and starts the owners; their actors live on `arbiters`.
    ///
    /// # Errors
    /// [`Exit::Config`] for a node name that cannot be part of an id; what the ledger said where it could not
    /// be written within its time.
    pub async fn begin(
        ledger: &ledger::Handle,
        bus: &bus::Handle,
        arbiters: &Arbiters,
        config: &Config,
        endpoint: &Endpoint,
        clock: &SharedClock,
    ) -> Result<Self, Failure> {
        let identity = Identity::new(&endpoint.node_name, endpoint.advertise.clone())
            .map_err(|invalid| Failure::new(Exit::Config, invalid))?;
        let process = Process {
            hostname: endpoint.hostname.clone(),
            pid: std::process::id(),
            version: version().to_owned(),
        };
        let options = JoinOptions {
            lease: Duration::from_millis(config.lease.instance_ms),
            first_mode: domain::Mode::parse(&config.mode).expect("the mode is checked"),
            patience: Duration::from_millis(config.ledger.connect_timeout_ms),
        };
        let joined = Membership::join(ledger.clone(), bus.clone(), &identity, process, options).await;
        let membership = joined.map_err(|error| not_opened(error, config))?;
        // A SQLite file has one process; its lock says more about life and death than any lease.
        let failure_detector = match ledger.kind() {
            ledger::Kind::Sqlite => FailureDetector::alone(),
            ledger::Kind::Postgres => membership.failure_detector(),
        };
        let (id, cluster_view) = (identity.id.clone(), membership.cluster_view());
        let registry = Registry::new(id.clone(), config.nodes.timeouts());
        let seen = cluster_view.clone();
        let instances = move || seen.view().members().map(|member| member.id.clone()).collect();
        let reach = Reach::new(bus.clone(), failure_detector.clone(), cluster_view.clone());
        let reached = reach.clone();
        let hearing = move || {
            let all = reached.hears_all();
            let all_ago = all.map_or(Duration::ZERO, |all| all.ago);
            Hearing { bus: reached.unbroken_for(), all: all.map(|all| all.length), all_ago }
        };
        let ending = reach.clone();
        let has_ended = move |id: &InstanceId| ending.has_ended(id);
        let source = BusSource::new(bus.clone(), &registry, instances, has_ended, hearing);
        let follower = Follower::start(registry.clone(), Arc::new(source));
        let dependencies = jobs::Dependencies {
            ledger: ledger.clone(),
            bus: bus.clone(),
            me: id.clone(),
            failure_detector: failure_detector.clone(),
            cluster_view: cluster_view.clone(),
            instance_lease: membership.instance_lease(),
            registry: registry.clone(),
            arbiters: arbiters.clone(),
            clock: clock.clone(),
        };
        let jobs = Jobs::start(dependencies, settings::lanes(config));
        let plans = plans::Dependencies {
            ledger: ledger.clone(),
            jobs: jobs.clone(),
            failure_detector: failure_detector.clone(),
            cluster_view: cluster_view.clone(),
            arbiters: arbiters.clone(),
            clock: clock.clone(),
        };
        let plans = Plans::start(plans, settings::plans(config));
        let signers = Signers::start(
            arbiters.clone(),
            ledger.clone(),
            id,
            failure_detector,
            cluster_view,
            clock.clone(),
            settings::signers(config),
        );
        let upkeep = Upkeep::start(signers.clone(), settings::upkeep(config));
        Ok(Self { identity, membership, reach, signers, jobs, plans, registry, follower, upkeep })
    }

    /// As the API is to know it.
    pub fn shown(&self) -> api::Incarnation {
        api::Incarnation {
            identity: self.identity.clone(),
            cluster_view: self.membership.cluster_view(),
            other_buses: self.membership.other_buses(),
            reach: self.reach.clone(),
            signers: self.signers.clone(),
            jobs: self.jobs.clone(),
            plans: self.plans.clone(),
            registry: self.registry.clone(),
        }
    }

    /// Others have declared the incarnation dead: its work ends now, in the background, and none of it gets a
    /// success answer.
    pub fn abandon(self) {
        let Self { membership, signers, jobs, plans, follower, upkeep, .. } = self;
        tokio::spawn(async move {
            tokio::join!(signers.abandon(), jobs.abandon(), plans.stop());
            follower.stop().await;
            upkeep.stop().await;
            membership.leave().await;
        });
    }
}
