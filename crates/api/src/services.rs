//! What the API serves from: the identity of the incarnation, and the services behind it.

/// The identity under which a process serves. An incarnation may end while the process goes on as another one.
pub struct Incarnation {
    /// The instance's id and address.
    pub identity: cluster::Identity,
    /// The live instances, and which of them owns a key.
    pub cluster_view: cluster::ClusterView,
    /// The instances that use another bus.
    pub other_buses: cluster::OtherBuses,
    /// What this instance reaches, and since when.
    pub reach: cluster::Reach,
    /// The owners of signers.
    pub signers: actors::signers::Signers,
    /// The lanes of jobs, and the nodes that are attached to this instance.
    pub jobs: actors::jobs::Jobs,
    /// The owners of plans.
    pub plans: actors::plans::Plans,
    /// All nodes of the cluster.
    pub registry: ::nodes::Registry,
}

impl Incarnation {
    /// The other live instances.
    pub fn others(&self) -> Vec<cluster::Member> {
        let view = self.cluster_view.view();
        view.members().filter(|member| member.id != self.identity.id).cloned().collect()
    }
}

/// What a start waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The ledger, or what only the ledger can say, in words.
    Ledger(&'static str),
    /// The bus.
    Bus,
}

impl Awaited {
    /// In words.
    #[must_use]
    pub const fn what(self) -> &'static str {
        match self {
            Self::Ledger(what) => what,
            Self::Bus => "the bus",
        }
    }

    /// Why a request is refused meanwhile.
    pub(crate) fn detail(self) -> String {
        format!("this instance has not completed its start: it waits for {}", self.what())
    }
}

/// What the API serves from before the start is complete.
#[derive(Clone)]
pub struct Early {
    /// Snowflakes: at first by the local file, then under the worker number of the current incarnation.
    pub snowflakes: ::ids::Snowflakes,
    /// What `/metrics` renders. The caller runs its upkeep.
    pub metrics: metrics_exporter_prometheus::PrometheusHandle,
}

/// What makes ids out of the ledger, for as long as the process runs.
pub struct Generators {
    /// Segments.
    pub segments: ::ids::Segments,
    /// Sequences.
    pub sequences: ::ids::Sequences,
    /// The key of scrambled forms, where one is configured.
    pub scramble: Option<::ids::Scramble>,
}

/// What the API serves from once the start is complete.
pub struct Services {
    /// By which this instance and the others know each other's messages.
    pub cluster_secret: domain::ClusterSecret,
    /// The database's clock, by which instances date what they forward to each other.
    pub clock: actors::database_clock::SharedClock,
    /// The first incarnation.
    pub incarnation: Incarnation,
    /// The ledger, for reads.
    pub ledger: ledger::Handle,
    /// The bus, over which the other instances hear of changes.
    pub bus: bus::Handle,
    /// What makes ids.
    pub generators: Generators,
    /// Connections to the other instances.
    pub peers: client::Peers,
}
