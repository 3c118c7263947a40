//! Nodes to test with.

use std::sync::Arc;
use std::time::Instant;

use bus::{Epoch, NodeState, Version};
use domain::job::{Requirements, Route};
use domain::{InstanceId, Label, NodeId, NodeTimeouts, PoolName};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::pools::{Pool, Pools};
use crate::record::Applied;
use crate::record::{Load, Profile, Record, Stamp, Status};
use crate::registry::Registry;
use crate::select::{Choice, Wanted};

pub(crate) fn instance(name: &str) -> InstanceId {
    InstanceId::parse(name).unwrap()
}

pub(crate) fn node(name: &str) -> NodeId {
    NodeId::parse(name).unwrap()
}

pub(crate) fn pool_name(name: &str) -> PoolName {
    PoolName::parse(name).unwrap()
}

pub(crate) fn labels(texts: &[&str]) -> Vec<Label> {
    let mut labels: Vec<_> = texts.iter().map(|text| Label::parse(text).unwrap()).collect();
    labels.sort_unstable();
    labels
}

fn stamp(epoch: u64, version: u64) -> Stamp {
    Stamp { epoch: Epoch::new(epoch), version: Version::new(version) }
}

/// A node of instance `a` with four free slots, at version 1 of connection 1.
pub(crate) fn record(name: &str) -> Record {
    Record {
        stamp: stamp(1, 1),
        profile: Arc::new(Profile::new(node(name), instance("a"), 2_000)),
        status: Status { capacity: 4, used: 0, is_complete: true, state: NodeState::Accepting },
        load: Load::default(),
    }
}

impl Record {
    pub(crate) fn at(self, epoch: u64, version: u64) -> Self {
        Self { stamp: stamp(epoch, version), ..self }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Status)) -> Self {
        change(&mut self.status);
        self
    }

    pub(crate) fn used(self, used: u32) -> Self {
        self.with(|status| status.used = used)
    }

    pub(crate) fn capacity(self, capacity: u32) -> Self {
        self.with(|status| status.capacity = capacity)
    }

    pub(crate) fn profile(mut self, change: impl FnOnce(&mut Profile)) -> Self {
        change(Arc::make_mut(&mut self.profile));
        self
    }

    pub(crate) fn held_by(self, holder: &str) -> Self {
        self.profile(|profile| profile.holder = instance(holder))
    }

    pub(crate) fn labelled(self, texts: &[&str]) -> Self {
        self.profile(|profile| profile.labels = labels(texts).into())
    }
}

/// The registry of instance `a`, with these nodes in its index.
pub(crate) fn registry(records: impl IntoIterator<Item = Record>) -> Registry {
    let registry = Registry::new(instance("a"), NodeTimeouts::DEFAULT);
    for record in records {
        assert_eq!(apply(&registry, record), Applied::New);
    }
    registry.reindex();
    registry
}

pub(crate) fn apply(registry: &Registry, record: Record) -> Applied {
    let now = Instant::now();
    registry.apply(record, now, now)
}

/// A pool of weight 1.
pub(crate) fn pool(name: &str, routes: &[&str], requires: &[&str]) -> Pool {
    let routes = routes.iter().map(|text| Route::parse(text).unwrap()).collect();
    Pool { name: pool_name(name), routes, requires: labels(requires), weight: 1 }
}

pub(crate) fn adopt(registry: &Registry, version: u64, pools: Vec<Pool>) {
    assert!(registry.adopt_pools(Pools::new(version, pools).unwrap()));
    registry.reindex();
}

pub(crate) fn needs(pool: Option<&str>, route: Option<&str>, requires: &[&str]) -> Requirements {
    Requirements {
        pool: pool.map(pool_name),
        route: route.map(|text| Route::parse(text).unwrap()),
        requires: labels(requires),
    }
}

/// A generator whose seed is shown when the test fails.
pub(crate) fn seeded() -> StdRng {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

/// Any node at all.
pub(crate) fn anybody(registry: &Registry, rng: &mut StdRng) -> Option<Choice> {
    registry.select(&Wanted::new(&Requirements::default()), rng)
}
