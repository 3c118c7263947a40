//! `with-servers COMMAND [ARGUMENTS…]`: runs a command beside a private PostgreSQL, a Redis and, for the first test that
//! asks, a Redis Cluster, and ends with its exit status. The tests find the servers by variables. Where the daemon lies beside
//! this program, their databases are copies of one that it has migrated.

use std::process::{Command, ExitCode};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use testkit::servers::{
    POSTGRES_TEMPLATE_VARIABLE, POSTGRES_URL_VARIABLE, Postgres, REDIS_CLUSTER_DOOR_VARIABLE,
    REDIS_URL_VARIABLE, Redis, RedisClusterDoor,
};

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args_os().skip(1).skip_while(|argument| argument == "--");
    let program = arguments.next().context("usage: with-servers COMMAND [ARGUMENTS…]")?;
    let postgres = Arc::new(Postgres::start()?);
    let daemon = std::env::current_exe()?.with_file_name("fencepost");
    let template = if daemon.is_file() { postgres.template(&daemon)? } else { None };
    let redis = Redis::start()?;
    let cluster = RedisClusterDoor::open()?;
    let status = Command::new(&program)
        .args(arguments)
        .env(POSTGRES_URL_VARIABLE, postgres.url("postgres"))
        .envs(template.map(|name| (POSTGRES_TEMPLATE_VARIABLE, name)))
        .env(REDIS_URL_VARIABLE, redis.url())
        .env(REDIS_CLUSTER_DOOR_VARIABLE, cluster.address())
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}
