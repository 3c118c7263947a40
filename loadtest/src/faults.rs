//! What goes wrong, and when: a schedule that a seed decides. Pure.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use testkit::fault_nodes::Counts;
use testkit::fleet::Link;

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, then a new start after a while.
    Kill {
        /// Which instance.
        instance: usize,
        /// How long it stays away.
        down: Duration,
    },
    /// SIGSTOP, then SIGCONT: longer than its leases last.
    Pause {
        /// Which instance.
        instance: usize,
        /// How long it is frozen.
        length: Duration,
    },
    /// PostgreSQL stopped as by a crash, then started.
    RestartDatabase {
        /// How long it stays away.
        down: Duration,
    },
    /// All processes of PostgreSQL stand still, then go on.
    FreezeDatabase {
        /// How long they stand still.
        length: Duration,
    },
    /// Redis killed, then started again, empty.
    KillRedis {
        /// How long it stays away.
        down: Duration,
    },
    /// Redis loses everything while it runs.
    FlushRedis,
    /// One instance cannot reach one of its servers: connections dropped, new ones refused.
    Cut {
        /// Which instance.
        instance: usize,
        /// From what.
        link: Link,
        /// For how long.
        length: Duration,
    },
    /// Whatever one instance and one of its servers say to each other is held back, then arrives.
    HoldBack {
        /// Which instance.
        instance: usize,
        /// From what.
        link: Link,
        /// For how long.
        length: Duration,
    },
    /// SIGTERM, then a new start after a while.
    Stop {
        /// Which instance.
        instance: usize,
        /// How long it stays away.
        down: Duration,
    },
    /// A node dies with all that it had; after a while one of its name comes in its place.
    KillNode {
        /// Which node.
        node: usize,
        /// How long it stays away.
        down: Duration,
    },
    /// A node stands still with its socket open.
    PauseNode {
        /// Which node.
        node: usize,
        /// How long it stands still.
        length: Duration,
    },
    /// A node's socket ends in the middle of a frame.
    CutNode {
        /// Which node.
        node: usize,
    },
    /// A node connects anew while its socket lives.
    DoubleNode {
        /// Which node.
        node: usize,
    },
}

impl Fault {
    /// Its name in reports.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Kill { .. } => "instance killed",
            Self::Pause { .. } => "instance paused",
            Self::RestartDatabase { .. } => "PostgreSQL crashed",
            Self::FreezeDatabase { .. } => "PostgreSQL frozen",
            Self::KillRedis { .. } => "Redis killed",
            Self::FlushRedis => "Redis flushed",
            Self::Cut { link: Link::Ledger, .. } => "cut off from PostgreSQL",
            Self::Cut { link: Link::Bus, .. } => "cut off from Redis",
            Self::HoldBack { link: Link::Ledger, .. } => "held back from PostgreSQL",
            Self::HoldBack { link: Link::Bus, .. } => "held back from Redis",
            Self::Stop { .. } => "instance told to stop",
            Self::KillNode { .. } => "node killed",
            Self::PauseNode { .. } => "node paused",
            Self::CutNode { .. } => "node's socket cut within a frame",
            Self::DoubleNode { .. } => "node connected twice",
        }
    }
}

/// A fault, and how long after the one before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// From the beginning of the step before.
    pub after: Duration,
    /// What goes wrong.
    pub fault: Fault,
}

/// What a schedule is made from.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Decides everything that is left open.
    pub seed: u64,
    /// How many faults.
    pub faults: usize,
    /// How many instances there are to be hurt.
    pub instances: usize,
    /// Mean time from the beginning of one fault to that of the next.
    pub mean_gap: Duration,
    /// How long a signer's lease lasts; pauses, cuts and what is held back are longer.
    pub lease: Duration,
    /// How long PostgreSQL is frozen.
    pub freeze: Duration,
    /// Whether there is a Redis to be hurt.
    pub redis: bool,
    /// The nodes that there are to be hurt; without any, instances are not told to stop either.
    pub nodes: Counts,
}

/// One in so many pauses of a node is longer than a silent node is borne.
const LONG_PAUSES: u32 = 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kill,
    Pause,
    RestartDatabase,
    FreezeDatabase,
    CutLedger,
    HoldBackLedger,
    KillRedis,
    FlushRedis,
    CutBus,
    HoldBackBus,
    Stop,
    KillNode,
    PauseNode,
    CutNode,
    DoubleNode,
}

impl Kind {
    const ALL: [Self; 15] = [
        Self::Kill,
        Self::Pause,
        Self::RestartDatabase,
        Self::FreezeDatabase,
        Self::CutLedger,
        Self::HoldBackLedger,
        Self::KillRedis,
        Self::FlushRedis,
        Self::CutBus,
        Self::HoldBackBus,
        Self::Stop,
        Self::KillNode,
        Self::PauseNode,
        Self::CutNode,
        Self::DoubleNode,
    ];

    const fn is_possible(self, recipe: &Recipe) -> bool {
        (recipe.redis || !self.needs_redis()) && (recipe.nodes.plain > 0 || !self.needs_nodes())
    }

    const fn needs_nodes(self) -> bool {
        matches!(self, Self::Stop | Self::KillNode | Self::PauseNode | Self::CutNode | Self::DoubleNode)
    }

    const fn needs_redis(self) -> bool {
        matches!(self, Self::KillRedis | Self::FlushRedis | Self::CutBus | Self::HoldBackBus)
    }

    /// How often it comes in a round after the first, in which each comes once. What is most common
    /// outside, and what lets much else go on beside it, comes more often.
    const fn weight(self) -> usize {
        match self {
            Self::CutNode => 8,
            Self::Kill | Self::KillNode => 6,
            Self::Pause => 5,
            Self::PauseNode | Self::DoubleNode => 4,
            Self::Stop => 3,
            Self::RestartDatabase | Self::CutLedger => 2,
            _ => 1,
        }
    }
}

impl Recipe {
    /// The schedule. The same recipe gives the same one. Each kind of fault comes once before any comes
    /// again.
    #[must_use]
    pub fn schedule(&self) -> Vec<Step> {
        let mut dice = StdRng::seed_from_u64(self.seed);
        let menu: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kind.is_possible(self)).collect();
        let mut kinds = Vec::new();
        while kinds.len() < self.faults {
            let weight = |kind: &Kind| if kinds.is_empty() { 1 } else { kind.weight() };
            let mut round: Vec<Kind> =
                menu.iter().flat_map(|kind| std::iter::repeat_n(*kind, weight(kind))).collect();
            round.shuffle(&mut dice);
            kinds.extend(round);
        }
        kinds.truncate(self.faults);
        kinds.into_iter().map(|kind| self.step(kind, &mut dice)).collect()
    }

    fn step(&self, kind: Kind, dice: &mut StdRng) -> Step {
        let after = self.mean_gap.mul_f64(dice.random_range(0.4..1.6));
        let instance = dice.random_range(0..self.instances);
        let down = Duration::from_millis(dice.random_range(0..800));
        let length = self.lease.mul_f64(dice.random_range(1.2..2.5));
        let plain = dice.random_range(0..self.nodes.plain.max(1));
        let node = dice.random_range(0..self.nodes.all().max(1));
        let still = match dice.random_ratio(1, LONG_PAUSES) {
            true => Duration::from_millis(dice.random_range(31_000..35_000)),
            false => Duration::from_millis(dice.random_range(500..12_000)),
        };
        let fault = match kind {
            Kind::Kill => Fault::Kill { instance, down },
            Kind::Pause => Fault::Pause { instance, length },
            Kind::RestartDatabase => Fault::RestartDatabase { down },
            Kind::FreezeDatabase => Fault::FreezeDatabase { length: self.freeze },
            Kind::CutLedger => Fault::Cut { instance, link: Link::Ledger, length },
            Kind::HoldBackLedger => Fault::HoldBack { instance, link: Link::Ledger, length },
            Kind::KillRedis => Fault::KillRedis { down },
            Kind::FlushRedis => Fault::FlushRedis,
            Kind::CutBus => Fault::Cut { instance, link: Link::Bus, length },
            Kind::HoldBackBus => Fault::HoldBack { instance, link: Link::Bus, length },
            Kind::Stop => Fault::Stop { instance, down },
            Kind::KillNode => Fault::KillNode { node, down },
            Kind::PauseNode => Fault::PauseNode { node, length: still },
            Kind::CutNode => Fault::CutNode { node: plain },
            Kind::DoubleNode => Fault::DoubleNode { node: plain },
        };
        Step { after, fault }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn recipe(seed: u64, faults: usize, redis: bool) -> Recipe {
        Recipe {
            seed,
            faults,
            instances: 3,
            mean_gap: Duration::from_secs(2),
            lease: Duration::from_secs(1),
            freeze: Duration::from_secs(10),
            redis,
            nodes: Counts::default(),
        }
    }

    fn names(recipe: &Recipe) -> BTreeMap<&'static str, usize> {
        let mut names = BTreeMap::new();
        recipe.schedule().iter().for_each(|step| *names.entry(step.fault.name()).or_default() += 1);
        names
    }

    #[test]
    fn a_seed_decides_everything() {
        let schedule = recipe(7, 25, true).schedule();
        assert_eq!(schedule, recipe(7, 25, true).schedule());
        assert_ne!(schedule, recipe(8, 25, true).schedule());
        assert_eq!(schedule.len(), 25);
        for step in schedule {
            if let Fault::Pause { length, .. } | Fault::Cut { length, .. } = step.fault {
                assert!(length > Duration::from_secs(1), "it outlasts the lease");
            }
        }
    }

    #[test]
    fn each_kind_comes_once_before_any_comes_again() {
        for seed in 0..20 {
            let names = names(&recipe(seed, 10, true));
            assert_eq!((names.len(), names.values().sum::<usize>()), (10, 10), "{names:?}");
        }
        assert_eq!(names(&recipe(1, 31, true))["instance killed"], 7);
    }

    #[test]
    fn where_there_are_nodes_they_are_hurt_too() {
        let nodes = Counts { plain: 4, commands: 2 };
        let names = names(&Recipe { nodes, ..recipe(5, 15, true) });
        assert_eq!(names.len(), 15, "{names:?}");
        for step in (Recipe { nodes, ..recipe(6, 300, true) }).schedule() {
            match step.fault {
                Fault::CutNode { node } | Fault::DoubleNode { node } => assert!(node < 4),
                Fault::KillNode { node, .. } | Fault::PauseNode { node, .. } => assert!(node < 6),
                _ => {}
            }
        }
    }

    #[test]
    fn without_redis_nothing_is_done_to_it() {
        let names = names(&recipe(3, 200, false));
        assert!(names.keys().all(|name| !name.contains("Redis")), "{names:?}");
        assert_eq!(names.values().sum::<usize>(), 200);
    }
}
