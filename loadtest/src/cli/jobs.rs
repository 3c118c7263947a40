//! The options of scenarios that run jobs.

use clap::Args;
use loadtest::fleet::Blueprint;
use loadtest::load::Spread;
use loadtest::scenario::jobs;

use super::positive;

#[derive(Args)]
pub struct Jobs {
    #[command(flatten)]
    work: Work,
    /// Requests in flight.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4_096))]
    in_flight: u16,
}

#[derive(Args)]
pub struct JobsBatch {
    #[command(flatten)]
    work: Work,
    /// Jobs of one request.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(2..=1_000))]
    batch: u16,
    /// Requests in flight.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=4_096))]
    in_flight: u16,
}

/// What both have.
#[derive(Args)]
struct Work {
    /// How many jobs to measure, after a warm-up.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    jobs: u32,
    /// Jobs per second, on a schedule that waits for nobody; latency counts from when each was due. Without it every
    /// connection asks as fast as it is answered.
    #[arg(long, value_parser = positive)]
    rate: Option<f64>,
    /// How arrivals are spread, with --rate.
    #[arg(long, value_enum, default_value = "poisson")]
    arrivals: Spread,
    /// Simulated nodes, each with a worker socket.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    nodes: u32,
    /// Slots of each.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    capacity: u32,
    /// Nodes acknowledge each dispatch before they say its result.
    #[arg(long)]
    acks: bool,
    /// Jobs one at a time, afterwards, beside bare commits; 0 leaves it out.
    #[arg(long, default_value_t = 300)]
    idle: u32,
    /// Measure again with so many finished jobs in the ledger, and how long they take to be read.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    finished: u64,
    /// How many instances to start.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=32))]
    instances: u16,
    /// Without a Redis: one instance, which knows its own nodes.
    #[arg(long, conflicts_with = "instances")]
    no_redis: bool,
    /// Also show which statements took PostgreSQL's time; counting them costs some of it.
    #[arg(long)]
    statements: bool,
}

impl Work {
    fn plan(&self, name: &str, batch: u16, in_flight: u16, seed: u64) -> jobs::Plan {
        let blueprint =
            Blueprint::new("worker-queue", usize::from(self.instances)).env("FENCEPOST__LOG__FILTER", "warn");
        jobs::Plan {
            blueprint: Blueprint { redis: !self.no_redis, counting: self.statements, ..blueprint },
            name: name.to_owned(),
            jobs: self.jobs as usize,
            batch: usize::from(batch),
            in_flight: usize::from(in_flight),
            rate: self.rate,
            arrivals: self.arrivals,
            nodes: self.nodes as usize,
            capacity: self.capacity,
            acks: self.acks,
            idle: self.idle as usize,
            finished: self.finished,
            seed,
        }
    }
}

impl Jobs {
    pub fn plan(&self, seed: u64) -> jobs::Plan {
        self.work.plan("jobs", 1, self.in_flight, seed)
    }
}

impl JobsBatch {
    pub fn plan(&self, seed: u64) -> jobs::Plan {
        self.work.plan("jobs-batch", self.batch, self.in_flight, seed)
    }
}
