//! The command line: one subcommand per question, and how it becomes a scenario's plan.

mod jobs;
mod plans;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use loadtest::load::{Route, Spread};
use loadtest::scenario::{failover, faults, ids, job_faults, live, membership, nonces, overload, rate};
use loadtest::target::Rhythm;
use testkit::fault_nodes::Counts;
use testkit::fleet::Blueprint;

pub use jobs::{Beside, Bulk, Burst, Jobs, JobsBatch, Large, Registry, Sessions, Tenants};
pub use plans::{PlanFaults, Plans};

/// The load and fault harness of Fencepost.
///
/// Starts instances and private servers by itself (PostgreSQL with fsync on, all on 127.0.0.1) and removes
/// them afterwards, or uses running instances where --url is offered. After every scenario that grants
/// nonces, the history checker compares the answers with the ledger; it lists every broken promise, and the
/// exit status is then 1.
///
/// FENCEPOST_BIN names the daemon's binary; by default it is the one in the same build directory.
#[derive(Parser)]
#[command(max_term_width = 110)]
pub struct Options {
    /// The seed of arrivals, signers and faults; by default a random one, which is printed.
    #[arg(long, global = true)]
    pub seed: Option<u64>,
    #[command(flatten)]
    pub output: Output,
    #[command(subcommand)]
    pub what: What,
}

#[derive(Args)]
pub struct Output {
    /// Write the report as JSON; `-` prints it instead of the table.
    #[arg(long, global = true, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw throughput, p99 and the distribution of latencies as SVG.
    #[arg(long, global = true, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum What {
    /// Grants for one hot signer.
    NonceHot(Hot),
    /// Grants for many signers, with popularity by Zipf's law.
    NonceMany(Many),
    /// Grants of a hundred nonces each.
    NonceBatch(Batch),
    /// How long a signer is without an owner: kill its owner, and stop its owner in order, under load.
    Failover(Failover),
    /// Kill, freeze, crash and cut off under load, on a seeded schedule, then verify.
    Faults(Faults),
    /// The same for jobs: nodes killed, frozen, cut off and connected twice, instances and servers as above, under a
    /// stream of jobs of all kinds; then the nodes' diaries are compared with what is recorded.
    JobFaults(JobFaults),
    /// The same for plans: operators make, steer and retry plans and decide about stages while all of it is hurt; then
    /// events, checkpoints and the nodes' diaries are compared.
    PlanFaults(PlanFaults),
    /// An instance joins and one leaves under load: keys moved, longest pause of a key, and a check that
    /// nothing is lost.
    Membership(Membership),
    /// Several times the load that an instance can serve: memory, refusals, latency, recovery.
    Overload(Overload),
    /// Many live owners on one instance: memory of each, cost of renewals, effect on other signers.
    Live(Live),
    /// The comparison run: empty route, hot signer, 1,000 signers and grants of 100 in both modes, beside
    /// bare bulk inserts, as ratios.
    Rate(Rate),
    /// Jobs of one request each: how many a second from submission to recorded result, the latency of each,
    /// the cost for each process, and one at a time beside bare commits.
    Jobs(Jobs),
    /// The same with many jobs in one request.
    JobsBatch(JobsBatch),
    /// Many plans at once, with stages that do nothing: stages a second, how long it takes to make a large plan, and to
    /// change the state of a task while nothing else happens.
    Plans(Plans),
    /// Many worker sockets: registrations, heartbeats, and how soon another instance sees a change.
    Registry(Registry),
    /// How long one tenant's single job waits behind another's backlog.
    Tenants(Tenants),
    /// A burst of large jobs: the memory that the instance takes for it, and what it gives back.
    Burst(Burst),
    /// Run a command against a large cluster: many nodes, finished and waiting jobs.
    Large(Large),
    /// A bulk operation over very many jobs, beside single submissions: their p99 with and without it, and a kill of its
    /// owner in the middle.
    Bulk(Bulk),
    /// Sessions: jobs over their clients' sockets, and the results back.
    Sessions(Sessions),
    /// The same jobs through BullMQ, and apalis where it is built, in turns, as ratios.
    Beside(Beside),
    /// Ids of all kinds over HTTP, compared with the empty route.
    Ids(Ids),
    /// Hand out nonces for a real chain.
    Chain {
        /// Grants that each of the thirty senders asks for.
        #[arg(long, default_value_t = 30)]
        grants: usize,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// No routing: any instance serves any signer, with a commit for each grant.
    Basic,
    /// One owner per signer; waiting requests share commits.
    WorkerQueue,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::WorkerQueue => "worker-queue",
        }
    }
}

/// What is started.
#[derive(Args)]
pub struct Start {
    /// How requests find the owner of their signer, in instances that are started.
    #[arg(long, value_enum, default_value = "worker-queue")]
    mode: Mode,
    /// How many instances to start.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    instances: u16,
    /// Also start a private Redis for the instances.
    #[arg(long)]
    redis: bool,
}

impl Start {
    fn blueprint(&self) -> Blueprint {
        Blueprint { redis: self.redis, ..quiet(self.mode.name(), self.instances) }
    }
}

/// Instances that log no more than warnings.
fn quiet(mode: &str, instances: u16) -> Blueprint {
    Blueprint::new(mode, usize::from(instances)).env("FENCEPOST__LOG__FILTER", "warn")
}

/// When and where requests are made.
#[derive(Args)]
pub struct Load {
    /// Use these running instances instead of starting some. The signers get new names.
    #[arg(long, value_name = "URL", conflicts_with_all = ["instances", "redis", "mode"])]
    url: Vec<String>,
    /// How long to measure, in seconds, after a warm-up of a fifth of it.
    #[arg(long, default_value_t = 10.0, value_parser = positive)]
    seconds: f64,
    /// Requests per second, on a schedule that does not wait for answers; latency counts from the intended
    /// start. Without it, every connection sends its next request as soon as it gets an answer.
    #[arg(long, value_parser = positive)]
    rate: Option<f64>,
    /// How arrivals are spread, with --rate.
    #[arg(long, value_enum, default_value = "poisson")]
    arrivals: Spread,
    /// Keep-alive connections, each with one request in flight.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Which instance is asked first.
    #[arg(long, value_enum, default_value = "owner")]
    route: Route,
    /// Send every request under an idempotency key of its own.
    #[arg(long)]
    keys: bool,
    /// Also show which statements took PostgreSQL's time; counting them costs some of it.
    #[arg(long, conflicts_with = "url")]
    statements: bool,
}

impl Load {
    fn plan(&self, name: &str, start: &Start, seed: u64) -> nonces::Plan {
        nonces::Plan {
            name: name.to_owned(),
            urls: self.url.clone(),
            blueprint: Blueprint { counting: self.statements, ..start.blueprint() },
            signers: 1,
            skew: 0.0,
            count: 1,
            keys: self.keys,
            rhythm: self.rate.map_or(Rhythm::Closed, |rate| Rhythm::Open(rate, self.arrivals)),
            length: Duration::from_secs_f64(self.seconds),
            connections: self.connections,
            route: self.route,
            seed,
        }
    }
}

#[derive(Args)]
pub struct Hot {
    #[command(flatten)]
    start: Start,
    #[command(flatten)]
    load: Load,
}

impl Hot {
    pub fn plan(&self, name: &str, seed: u64) -> nonces::Plan {
        self.load.plan(name, &self.start, seed)
    }
}

#[derive(Args)]
pub struct Many {
    #[command(flatten)]
    start: Start,
    #[command(flatten)]
    load: Load,
    /// How many signers.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    signers: u32,
    /// How unequal their popularity is: 0 is equal; with 1, the second gets half as many requests as the
    /// first.
    #[arg(long, default_value_t = 1.0)]
    skew: f64,
}

impl Many {
    pub fn plan(&self, seed: u64) -> nonces::Plan {
        let plan = self.load.plan("nonce-many", &self.start, seed);
        nonces::Plan { signers: self.signers as usize, skew: self.skew, ..plan }
    }
}

#[derive(Args)]
pub struct Batch {
    #[command(flatten)]
    start: Start,
    #[command(flatten)]
    load: Load,
    /// Nonces of one request.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    count: u64,
    /// How many signers, all equally popular.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    signers: u32,
}

impl Batch {
    pub fn plan(&self, seed: u64) -> nonces::Plan {
        let plan = self.load.plan("nonce-batch", &self.start, seed);
        nonces::Plan { signers: self.signers as usize, count: self.count, ..plan }
    }
}

#[derive(Args)]
pub struct Failover {
    #[command(flatten)]
    start: Start,
    /// How often to kill the owner (SIGKILL).
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// How often to ask the owner to stop (SIGTERM).
    #[arg(long, default_value_t = 20)]
    stops: usize,
    /// How many callers, each with the client library and its retries, to keep the signer busy.
    #[arg(long, default_value_t = 8)]
    callers: usize,
}

impl Failover {
    pub fn plan(&self, seed: u64) -> failover::Plan {
        failover::Plan {
            blueprint: self.start.blueprint(),
            kills: self.kills,
            stops: self.stops,
            callers: self.callers,
            seed,
        }
    }
}

#[derive(Args)]
pub struct Faults {
    /// How requests find the owner of their signer.
    #[arg(long, value_enum, default_value = "worker-queue")]
    mode: Mode,
    /// How many instances; each reaches its servers through proxies of its own.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    instances: u16,
    /// How many faults.
    #[arg(long, default_value_t = 200)]
    faults: usize,
    /// Mean time from one fault to the next, in seconds.
    #[arg(long, default_value_t = 2.0, value_parser = positive)]
    seconds_between: f64,
    /// How many clients.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// How many signers; the first two get half of the requests.
    #[arg(long, default_value_t = 8)]
    signers: usize,
    /// Run without Redis, and without its faults.
    #[arg(long)]
    no_redis: bool,
    /// TLS between clients and instances and among instances, tokens, and a secret of the instances.
    #[arg(long)]
    secured: bool,
}

impl Faults {
    pub fn plan(&self, seed: u64) -> faults::Plan {
        faults::Plan {
            mode: self.mode.name(),
            seed,
            faults: self.faults,
            instances: usize::from(self.instances),
            clients: self.clients,
            signers: self.signers.max(1),
            mean_gap: Duration::from_secs_f64(self.seconds_between),
            redis: !self.no_redis,
            secured: self.secured,
            ..faults::Plan::default()
        }
    }
}

#[derive(Args)]
pub struct JobFaults {
    /// How many instances; each reaches its servers through proxies of its own.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    instances: u16,
    /// How many faults.
    #[arg(long, default_value_t = 500)]
    faults: usize,
    /// Mean time from one fault to the next, in seconds.
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    seconds_between: f64,
    /// How many nodes the harness simulates itself.
    #[arg(long, default_value_t = 44, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    nodes: u16,
    /// How many `fencepost node` processes beside them.
    #[arg(long, default_value_t = 6)]
    commands: u16,
    /// How many clients, each of which submits some five times a second.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    clients: u16,
    /// TLS between clients, nodes and instances, tokens for all of them, and a secret of the instances.
    #[arg(long)]
    secured: bool,
    /// Two more instances, one without Redis and one on another: jobs reach them through the ledger alone.
    #[arg(long)]
    islands: bool,
    /// Where to keep the logs of the instances and the diaries of the nodes, if a promise was broken.
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
}

impl JobFaults {
    pub fn plan(&self, seed: u64) -> job_faults::Plan {
        job_faults::Plan {
            seed,
            faults: self.faults,
            instances: usize::from(self.instances),
            nodes: Counts { plain: usize::from(self.nodes), commands: usize::from(self.commands) },
            clients: usize::from(self.clients),
            mean_gap: Duration::from_secs_f64(self.seconds_between),
            secured: self.secured,
            islands: self.islands,
            logs: self.logs.clone(),
            ..job_faults::Plan::default()
        }
    }
}

#[derive(Args)]
pub struct Membership {
    #[command(flatten)]
    start: Start,
    /// How many signers, all equally popular.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    signers: u32,
    /// Requests per second.
    #[arg(long, default_value_t = 500.0, value_parser = positive)]
    rate: f64,
    /// Length of each of three parts, in seconds: before the join, after it, after the leave.
    #[arg(long, default_value_t = 20.0, value_parser = positive)]
    seconds: f64,
    /// Keep-alive connections.
    #[arg(long, default_value_t = 256)]
    connections: usize,
}

impl Membership {
    pub fn plan(&self, seed: u64) -> membership::Plan {
        membership::Plan {
            blueprint: self.start.blueprint(),
            signers: self.signers as usize,
            rate: self.rate,
            part: Duration::from_secs_f64(self.seconds),
            connections: self.connections,
            seed,
        }
    }
}

#[derive(Args)]
pub struct Overload {
    /// Use this running instance instead of starting one; its memory is then not measured.
    #[arg(long, value_name = "URL", conflicts_with_all = ["mode", "redis", "in_flight_max"])]
    url: Vec<String>,
    /// How requests find the owner of their signer.
    #[arg(long, value_enum, default_value = "worker-queue")]
    mode: Mode,
    /// Also start a private Redis for the instance.
    #[arg(long)]
    redis: bool,
    /// The load, as a multiple of what the instance can serve.
    #[arg(long, default_value_t = 3.0, value_parser = positive)]
    times: f64,
    /// How long, in seconds.
    #[arg(long, default_value_t = 30.0, value_parser = positive)]
    seconds: f64,
    /// How many signers, all equally popular.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    signers: u32,
    /// Nonces of one request. With many, a request costs more to serve than to send, so that the generator
    /// can overload the instance on the same cores.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    count: u64,
    /// Keep-alive connections during the overload.
    #[arg(long, default_value_t = 3_000)]
    connections: usize,
    /// The number of requests that the instance admits at once (`nonce.in_flight_max`, and `nonce.queue_max`
    /// for each signer). Unless it is smaller than the number of connections, nothing is refused.
    #[arg(long, default_value_t = 1_000)]
    in_flight_max: usize,
}

impl Overload {
    pub fn plan(&self, seed: u64) -> overload::Plan {
        let most = self.in_flight_max.to_string();
        let blueprint = Blueprint::new(self.mode.name(), 1)
            .env("FENCEPOST__LOG__FILTER", "error")
            .env("FENCEPOST__NONCE__IN_FLIGHT_MAX", &most)
            .env("FENCEPOST__NONCE__QUEUE_MAX", &most);
        overload::Plan {
            urls: self.url.clone(),
            blueprint: Blueprint { redis: self.redis, ..blueprint },
            signers: self.signers as usize,
            count: self.count,
            times: self.times,
            length: Duration::from_secs_f64(self.seconds),
            connections: self.connections,
            measuring_connections: 64,
            seed,
        }
    }
}

#[derive(Args)]
pub struct Live {
    /// How many live owners.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    actors: u32,
    /// Grants per second for others, before and while they live.
    #[arg(long, default_value_t = 200.0, value_parser = positive)]
    rate: f64,
    /// How long to measure while they live, in seconds; leases are renewed every 5 s.
    #[arg(long, default_value_t = 30.0, value_parser = positive)]
    seconds: f64,
    /// Keep-alive connections.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Also start a private Redis for the instance.
    #[arg(long)]
    redis: bool,
}

impl Live {
    pub fn plan(&self, seed: u64) -> live::Plan {
        live::Plan {
            blueprint: Blueprint { redis: self.redis, ..live::Plan::blueprint() },
            actors: self.actors as usize,
            rate: self.rate,
            length: Duration::from_secs_f64(self.seconds),
            connections: self.connections,
            seed,
        }
    }
}

#[derive(Args)]
pub struct Rate {
    /// Length of each case, in seconds, after a warm-up of a fifth of it.
    #[arg(long, default_value_t = 5.0, value_parser = positive)]
    seconds: f64,
    /// Keep-alive connections.
    #[arg(long, default_value_t = 256)]
    connections: usize,
    /// Also measure SQLite.
    #[arg(long)]
    sqlite: bool,
    /// Also start a private Redis for each instance, for it to use.
    #[arg(long)]
    redis: bool,
}

impl Rate {
    pub fn plan(&self, seed: u64) -> rate::Plan {
        rate::Plan {
            length: Duration::from_secs_f64(self.seconds),
            connections: self.connections,
            sqlite: self.sqlite,
            redis: self.redis,
            seed,
        }
    }
}

#[derive(Args)]
pub struct Ids {
    /// Length of each case, in seconds.
    #[arg(long, default_value_t = 8.0, value_parser = positive)]
    seconds: f64,
    /// Keep-alive connections.
    #[arg(long, default_value_t = 64)]
    connections: usize,
}

impl Ids {
    pub fn plan(&self) -> ids::Plan {
        ids::Plan { length: Duration::from_secs_f64(self.seconds), connections: self.connections }
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 1e7 => Ok(number),
        _ => Err("a number above 0, 10,000,000 at most".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn a_rate_makes_the_load_open() {
        let plan = |line: &[&str]| match Options::try_parse_from(line).map(|options| options.what) {
            Ok(What::NonceMany(many)) => many.plan(1),
            _ => panic!("{line:?}"),
        };
        let open =
            plan(&["loadtest", "nonce-many", "--rate", "100", "--signers", "100000", "--arrivals", "even"]);
        assert_eq!((open.rhythm, open.signers), (Rhythm::Open(100.0, Spread::Even), 100_000));
        assert_eq!(plan(&["loadtest", "nonce-many"]).rhythm, Rhythm::Closed);
        assert!(Options::try_parse_from(["loadtest", "nonce-hot", "--rate", "0"]).is_err());
        assert!(
            Options::try_parse_from(["loadtest", "nonce-hot", "--url", "http://x:1", "--redis"]).is_err()
        );
    }
}
