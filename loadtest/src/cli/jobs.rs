//! The options of scenarios that run jobs.

use std::time::Duration;

use clap::Args;
use loadtest::load::Spread;
use loadtest::scenario::{beside, bulk, burst, jobs, large, registry, sessions, tenants};
use testkit::fleet::Blueprint;

use super::{positive, quiet};

#[derive(Args)]
pub struct Jobs {
    #[command(flatten)]
    work: Work,
    /// Requests in flight.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4_096))]
    in_flight: u16,
    /// Measure in turns without and with so many open dashboards, and count the ledger's statements.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=120))]
    viewers: u16,
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
        jobs::Plan {
            blueprint: Blueprint {
                redis: !self.no_redis,
                counting: self.statements,
                ..quiet("worker-queue", self.instances)
            },
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
            viewers: 0,
            seed,
        }
    }
}

#[derive(Args)]
pub struct Beside {
    #[command(flatten)]
    work: Work,
    /// Requests of one job in flight.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4_096))]
    in_flight: u16,
    /// Jobs of a large request.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(2..=1_000))]
    bulk: u16,
    /// Large requests in flight.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    bulk_in_flight: u16,
    /// How often each is run.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
}

impl Beside {
    pub fn plan(&self, seed: u64) -> beside::Plan {
        let ours = self.work.plan("beside", 1, self.in_flight, seed);
        beside::Plan {
            ours: jobs::Plan { idle: 0, finished: 0, rate: None, ..ours },
            in_flight: usize::from(self.in_flight),
            bulk: usize::from(self.bulk),
            bulk_in_flight: usize::from(self.bulk_in_flight),
            rounds: usize::from(self.rounds),
        }
    }
}

#[derive(Args)]
pub struct Registry {
    /// Worker sockets.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    nodes: u32,
    /// How long heartbeats are watched, in seconds; each node sends one every 2 s.
    #[arg(long, default_value_t = 20.0, value_parser = positive)]
    seconds: f64,
    /// Changes that are looked for on another instance.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    changes: u32,
    /// How many instances to start.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=32))]
    instances: u16,
}

impl Registry {
    pub fn plan(&self) -> registry::Plan {
        registry::Plan {
            blueprint: Blueprint { redis: true, ..quiet("worker-queue", self.instances) },
            nodes: self.nodes as usize,
            length: Duration::from_secs_f64(self.seconds),
            changes: self.changes as usize,
        }
    }
}

#[derive(Args)]
pub struct Tenants {
    /// Waiting jobs of the one tenant.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    backlog: u32,
    /// Jobs of the other, one after the other.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    singles: u32,
    /// Simulated nodes.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    nodes: u32,
    /// Slots of each.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    capacity: u32,
}

#[derive(Args)]
pub struct Large {
    /// Finished jobs.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    finished: u64,
    /// Waiting jobs, which no node can take.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    waiting: u32,
    /// Simulated nodes, of four slots each.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    nodes: u32,
    /// How many instances to start.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=16))]
    instances: u16,
    /// The command to run. `FENCEPOST_URLS` names the instances to it, with commas between. If it fails, so does this.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Large {
    pub fn plan(&self) -> large::Plan {
        large::Plan {
            blueprint: Blueprint { redis: true, ..quiet("worker-queue", self.instances) },
            finished: self.finished,
            waiting: self.waiting as usize,
            nodes: self.nodes as usize,
            command: self.command.clone(),
        }
    }
}

#[derive(Args)]
pub struct Burst {
    /// How many jobs.
    #[arg(long, default_value_t = 384, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    jobs: u32,
    /// Bytes of each payload, about.
    #[arg(long, default_value_t = (1 << 20) - 64, value_parser = clap::value_parser!(u32).range(1..=((1 << 20) - 64)))]
    payload_bytes: u32,
    /// Requests in flight.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    in_flight: u16,
    /// Simulated nodes, of two slots each.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// How long the instance is left alone afterwards, in seconds.
    #[arg(long, default_value_t = 60.0, value_parser = positive)]
    rest: f64,
}

impl Burst {
    pub fn plan(&self) -> burst::Plan {
        burst::Plan {
            blueprint: quiet("worker-queue", 1),
            jobs: self.jobs as usize,
            payload_bytes: self.payload_bytes as usize,
            in_flight: usize::from(self.in_flight),
            nodes: (usize::from(self.nodes), 2),
            rest: Duration::from_secs_f64(self.rest),
        }
    }
}

#[derive(Args)]
pub struct Bulk {
    /// Failed jobs that are there.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    jobs: u64,
    /// Waiting jobs instead, which are cancelled.
    #[arg(long)]
    waiting: bool,
    /// Delete the failed jobs instead of retrying them.
    #[arg(long, conflicts_with = "waiting")]
    delete: bool,
    /// Jobs of the operation per second, at most.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    bulk_rate: u32,
    /// Single submissions per second.
    #[arg(long, default_value_t = 50.0, value_parser = positive)]
    rate: f64,
    /// How long they are measured without the operation, and again beside it, in seconds.
    #[arg(long, default_value_t = 30.0, value_parser = positive)]
    seconds: f64,
}

impl Bulk {
    pub fn plan(&self, seed: u64) -> bulk::Plan {
        bulk::Plan {
            blueprint: Blueprint { redis: true, ..quiet("worker-queue", 3) },
            action: match (self.waiting, self.delete) {
                (true, _) => bulk::Action::Cancel,
                (false, true) => bulk::Action::Delete,
                (false, false) => bulk::Action::Retry,
            },
            jobs: self.jobs,
            bulk_rate: self.bulk_rate,
            rate: self.rate,
            length: Duration::from_secs_f64(self.seconds),
            seed,
        }
    }
}

#[derive(Args)]
pub struct Sessions {
    /// How many, each with a socket of its own.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sessions: u32,
    /// Jobs of each.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    jobs: u32,
    /// Jobs of each that are sent and have no result yet.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    in_flight: u16,
    /// The order of jobs and results.
    #[arg(long, default_value = "strict", value_parser = ["strict", "results", "none"])]
    ordering: String,
    /// Instances.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    instances: u16,
    /// Simulated nodes.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    nodes: u32,
    /// Slots of each.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    capacity: u32,
    /// Also show which statements took PostgreSQL's time; counting them costs some of it.
    #[arg(long)]
    statements: bool,
}

impl Sessions {
    pub fn plan(&self) -> sessions::Plan {
        sessions::Plan {
            blueprint: Blueprint {
                redis: true,
                counting: self.statements,
                ..quiet("worker-queue", self.instances)
            },
            sessions: self.sessions as usize,
            jobs: self.jobs as usize,
            in_flight: usize::from(self.in_flight),
            ordering: self.ordering.clone(),
            nodes: self.nodes as usize,
            capacity: self.capacity,
        }
    }
}

impl Tenants {
    pub fn plan(&self) -> tenants::Plan {
        tenants::Plan {
            blueprint: Blueprint { redis: true, ..quiet("worker-queue", 1) },
            backlog: self.backlog as usize,
            singles: self.singles as usize,
            nodes: self.nodes as usize,
            capacity: self.capacity,
        }
    }
}

impl Jobs {
    pub fn plan(&self, seed: u64) -> jobs::Plan {
        let plan = self.work.plan("jobs", 1, self.in_flight, seed);
        let viewers = usize::from(self.viewers);
        let counting = plan.blueprint.counting || viewers > 0;
        jobs::Plan { viewers, blueprint: Blueprint { counting, ..plan.blueprint }, ..plan }
    }
}

impl JobsBatch {
    pub fn plan(&self, seed: u64) -> jobs::Plan {
        self.work.plan("jobs-batch", self.batch, self.in_flight, seed)
    }
}
