//! The options of scenarios that run plans.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use loadtest::scenario::{plan_faults, plans};
use testkit::fleet::Blueprint;

use super::{positive, quiet};

/// Jobs that are run beside plans.
const JOBS_BESIDE: usize = 20_000;

#[derive(Args)]
pub struct Plans {
    /// Plans at once.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    plans: u32,
    /// Tasks of each plan, up to 100 of which run at once.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    tasks: u32,
    /// Stages of each task.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    stages: u32,
    /// Requests in flight that make plans.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4_096))]
    in_flight: u16,
    /// Plans of 100 tasks that are made one at a time.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    large: u32,
    /// How often a task is paused and resumed while nothing else happens.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    changes: u32,
    /// Measure again among so many finished plans, of one task with one stage each.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    history: u32,
    /// Also run jobs afterwards, as the scenario `jobs` does, and compare the rates.
    #[arg(long, conflicts_with = "sqlite")]
    beside_jobs: bool,
    /// On SQLite in place of PostgreSQL.
    #[arg(long, conflicts_with = "redis")]
    sqlite: bool,
    /// Also start a private Redis for the instance.
    #[arg(long)]
    redis: bool,
    /// Also show which statements took PostgreSQL's time; counting them costs some of it.
    #[arg(long, conflicts_with = "sqlite")]
    statements: bool,
    /// Simulated nodes, each with a worker socket.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    nodes: u32,
    /// Slots of each.
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    capacity: u32,
}

impl Plans {
    pub fn plan(&self, seed: u64) -> plans::Plan {
        plans::Plan {
            blueprint: Blueprint { redis: self.redis, counting: self.statements, ..quiet("worker-queue", 1) },
            sqlite: self.sqlite,
            plans: self.plans as usize,
            tasks: self.tasks as usize,
            stages: self.stages as usize,
            in_flight: usize::from(self.in_flight),
            large: self.large as usize,
            changes: self.changes as usize,
            history: self.history as usize,
            beside_jobs: if self.beside_jobs { JOBS_BESIDE } else { 0 },
            nodes: self.nodes as usize,
            capacity: self.capacity,
            seed,
        }
    }
}

#[derive(Args)]
pub struct PlanFaults {
    /// How many instances; each reaches its servers through proxies of its own.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    instances: u16,
    /// How many faults.
    #[arg(long, default_value_t = 300)]
    faults: usize,
    /// Mean time from one fault to the next, in seconds.
    #[arg(long, default_value_t = 2.0, value_parser = positive)]
    seconds_between: f64,
    /// How many nodes. They are so few that stages wait for slots, also while owners change.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    nodes: u16,
    /// How many operators. Each does something some four times a second.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    operators: u16,
    /// Plans that may be open at once.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    plans: u16,
    /// Tasks of each plan.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=100))]
    tasks: u16,
    /// Stages of each task.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=100))]
    stages: u16,
    /// TLS between operators, nodes and instances, tokens for all of them, and a secret of the instances.
    #[arg(long)]
    secured: bool,
    /// Where to keep the logs of the instances, the diaries of the nodes and the plans, if a promise was broken.
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
}

impl PlanFaults {
    pub fn plan(&self, seed: u64) -> plan_faults::Plan {
        plan_faults::Plan {
            seed,
            faults: self.faults,
            instances: usize::from(self.instances),
            nodes: usize::from(self.nodes),
            operators: usize::from(self.operators),
            plans: usize::from(self.plans),
            tasks: usize::from(self.tasks),
            stages: usize::from(self.stages),
            mean_gap: Duration::from_secs_f64(self.seconds_between),
            secured: self.secured,
            logs: self.logs.clone(),
            ..plan_faults::Plan::default()
        }
    }
}
