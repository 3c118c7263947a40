//! `cargo run --release -p loadtest -- SCENARIO`: reads the command line, runs the scenario, prints its
//! table, writes its JSON and its plot. What the scenarios do is in the library.

mod cli;

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;
use loadtest::progress::Bar;
use loadtest::report::Report;
use loadtest::scenario::{
    beside, bulk, burst, chain, failover, faults, ids, job_faults, jobs, large, live, membership, nonces,
    overload, plan_faults, plans, rate, registry, sessions, tenants,
};
use loadtest::{plot, report};
use testkit::servers::Database;

use cli::{Options, Output, What};

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    build_daemon()?;
    tokio::runtime::Runtime::new()?.block_on(scenario(options))
}

async fn scenario(options: Options) -> Result<ExitCode> {
    let seed = options.seed.unwrap_or_else(rand::random);
    eprintln!("seed {seed}");
    let (bar, output) = (Bar::new(), &options.output);
    match &options.what {
        What::NonceHot(asked) => {
            finish("nonce-hot", &nonces::run(&asked.plan("nonce-hot", seed), &bar).await?, output)
        }
        What::NonceMany(asked) => finish("nonce-many", &nonces::run(&asked.plan(seed), &bar).await?, output),
        What::NonceBatch(asked) => {
            finish("nonce-batch", &nonces::run(&asked.plan(seed), &bar).await?, output)
        }
        What::Failover(asked) => finish("failover", &failover::run(&asked.plan(seed), &bar).await?, output),
        What::Faults(asked) => {
            let plan = asked.plan(seed);
            bar.steps(plan.faults as u64);
            let report = faults::run(&plan, |fault| bar.step(&format!("{fault:?}"))).await?;
            bar.done();
            finish("faults", &report, output)
        }
        What::JobFaults(asked) => {
            let plan = asked.plan(seed);
            bar.steps(plan.faults as u64);
            let report = job_faults::run(&plan, |fault| bar.step(&format!("{fault:?}"))).await?;
            bar.done();
            finish("job-faults", &report, output)
        }
        What::PlanFaults(asked) => {
            let plan = asked.plan(seed);
            bar.steps(plan.faults as u64);
            let report = plan_faults::run(&plan, |fault| bar.step(&format!("{fault:?}"))).await?;
            bar.done();
            finish("plan-faults", &report, output)
        }
        What::Membership(asked) => {
            finish("membership", &membership::run(&asked.plan(seed), &bar).await?, output)
        }
        What::Overload(asked) => finish("overload", &overload::run(&asked.plan(seed), &bar).await?, output),
        What::Live(asked) => finish("live", &live::run(&asked.plan(seed), &bar).await?, output),
        What::Ids(asked) => finish("ids", &ids::run(&asked.plan(), &bar).await?, output),
        What::Rate(asked) => finish("rate", &rate::run(&asked.plan(seed), &bar).await?, output),
        What::Jobs(asked) => finish("jobs", &jobs::run(&asked.plan(seed), &bar).await?, output),
        What::JobsBatch(asked) => finish("jobs-batch", &jobs::run(&asked.plan(seed), &bar).await?, output),
        What::Plans(asked) => finish("plans", &plans::run(&asked.plan(seed), &bar).await?, output),
        What::Registry(asked) => finish("registry", &registry::run(&asked.plan(), &bar).await?, output),
        What::Tenants(asked) => finish("tenants", &tenants::run(&asked.plan(), &bar).await?, output),
        What::Large(asked) => finish("large", &large::run(&asked.plan(), &bar).await?, output),
        What::Bulk(asked) => finish("bulk", &bulk::run(&asked.plan(seed), &bar).await?, output),
        What::Burst(asked) => finish("burst", &burst::run(&asked.plan(), &bar).await?, output),
        What::Sessions(asked) => finish("sessions", &sessions::run(&asked.plan(), &bar).await?, output),
        What::Beside(asked) => finish("beside", &beside::run(&asked.plan(seed), &bar).await?, output),
        What::Chain { grants } => {
            let plan = chain::Plan { grants: *grants, seed, ..chain::Plan::default() };
            let database = tokio::task::spawn_blocking(Database::fresh).await??;
            finish("chain", &chain::run(&plan, database).await?, output)
        }
    }
}

/// Prints the table, writes what was asked for; the exit status says whether a promise was broken.
fn finish(name: &str, report: &impl Report, output: &Output) -> Result<ExitCode> {
    match &output.json {
        Some(file) if file.as_os_str() == "-" => println!("{}", serde_json::to_string_pretty(report)?),
        Some(file) => {
            println!("{}", report.table());
            let text = serde_json::to_string_pretty(report)?;
            std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
        }
        None => println!("{}", report.table()),
    }
    if let Some(file) = &output.plot {
        let (bars, panels) = (report.bars(), report.panels());
        ensure!(!bars.is_empty() || !panels.is_empty(), "there is nothing to be drawn of {name}");
        let picture = plot::svg(&format!("loadtest {name}"), &bars, &panels);
        std::fs::write(file, picture).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(if report::is_good(report) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
