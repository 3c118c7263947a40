//! `cargo run --release -p loadtest -- faults|rate|chain|servers`: reads the command line, shows
//! progress, prints the report. What the scenarios do is in the library.

use std::io::IsTerminal as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use loadtest::scenario::{chain, faults, rate};
use loadtest::servers::{
    Database, POSTGRES_URL_VARIABLE, Postgres, REDIS_CLUSTER_DOOR_VARIABLE, REDIS_URL_VARIABLE, Redis,
    RedisClusterDoor,
};

/// The load and fault harness of Fencepost.
#[derive(Parser)]
struct Options {
    /// Print the report as JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Kill, freeze and crash under load, then judge.
    Faults {
        /// How many faults.
        #[arg(long, default_value_t = 200)]
        faults: usize,
        /// Decides faults and requests; drawn when not given, and printed.
        #[arg(long)]
        seed: Option<u64>,
        /// Mean time from one fault to the next, in seconds.
        #[arg(long, default_value_t = 2.0)]
        seconds_between: f64,
        /// `basic` or `worker-queue`.
        #[arg(long, default_value = "basic")]
        mode: String,
        /// How many instances.
        #[arg(long, default_value_t = 3)]
        instances: usize,
        /// How many clients.
        #[arg(long, default_value_t = 8)]
        clients: usize,
    },
    /// Grants per second on both ledgers beside an empty route.
    Rate {
        /// Length of each case, in seconds.
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// Keep-alive connections.
        #[arg(long, default_value_t = 32)]
        connections: usize,
    },
    /// Hand out nonces for a real chain.
    Chain {
        /// Grants that each of the thirty senders asks for.
        #[arg(long, default_value_t = 30)]
        grants: usize,
    },
    /// Start a private PostgreSQL and Redis, run a command that finds them by environment variables,
    /// stop them, and end as the command did. A Redis Cluster joins them when a test first asks for it.
    Servers {
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if let What::Servers { command } = &options.what {
        return with_servers(command);
    }
    build_daemon()?;
    tokio::runtime::Runtime::new()?.block_on(scenario(&options))
}

async fn scenario(options: &Options) -> Result<ExitCode> {
    let good = match options.what {
        What::Faults { faults, seed, seconds_between, ref mode, instances, clients } => {
            let mut plan = faults::Plan {
                mode: if mode == "basic" { "basic" } else { "worker-queue" },
                faults,
                instances,
                clients,
                mean_gap: Duration::from_secs_f64(seconds_between),
                ..faults::Plan::default()
            };
            plan.seed = seed.unwrap_or(plan.seed);
            eprintln!("seed {}", plan.seed);
            let bar = bar(faults as u64);
            let report = faults::run(&plan, |fault| {
                bar.set_message(format!("{fault:?}"));
                bar.inc(1);
            })
            .await?;
            bar.finish_and_clear();
            print(options.json, &report, || report.table())?;
            report.violations.is_empty()
        }
        What::Rate { seconds, connections } => {
            let plan = rate::Plan { length: Duration::from_secs_f64(seconds), connections };
            let bar = bar(20);
            let measured = rate::run(&plan, |case| {
                bar.set_message(case.to_owned());
                bar.inc(1);
            })
            .await?;
            bar.finish_and_clear();
            print(options.json, &measured, || rate::table(&measured))?;
            true
        }
        What::Chain { grants } => {
            let plan = chain::Plan { grants, ..chain::Plan::default() };
            let database = tokio::task::spawn_blocking(Database::fresh).await??;
            let report = chain::run(&plan, database).await?;
            print(options.json, &report, || format!("{report:#?}"))?;
            report.violations.is_empty()
        }
        What::Servers { .. } => true,
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(json: bool, report: &impl serde::Serialize, table: impl Fn() -> String) -> Result<()> {
    println!("{}", if json { serde_json::to_string_pretty(report)? } else { table() });
    Ok(())
}

fn bar(steps: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{elapsed_precise} {wide_bar} {pos}/{len} {msg}");
    ProgressBar::new(steps).with_style(style.expect("the template is well-formed"))
}

/// Under `cargo run` the daemon beside us may be missing or old; cargo knows.
fn build_daemon() -> Result<()> {
    let (Some(cargo), None) = (std::env::var_os("CARGO"), std::env::var_os("FENCEPOST_BIN")) else {
        return Ok(());
    };
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", "daemon", "--bin", "fencepost"]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    ensure!(build.status()?.success(), "the daemon does not build");
    Ok(())
}

fn with_servers(command: &[String]) -> Result<ExitCode> {
    let postgres = Postgres::start()?;
    let redis = Redis::start()?;
    let cluster = RedisClusterDoor::open()?;
    let (program, arguments) = command.split_first().context("a command")?;
    let status = Command::new(program)
        .args(arguments)
        .env(POSTGRES_URL_VARIABLE, postgres.url("postgres"))
        .env(REDIS_URL_VARIABLE, redis.url())
        .env(REDIS_CLUSTER_DOOR_VARIABLE, cluster.address())
        .status()
        .with_context(|| format!("cannot start {program}"))?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}
