//! Jobs that do nothing through apalis on PostgreSQL: how many a second from the first one pushed to the last one done,
//! results kept. Prints one line of JSON.
//!
//! `beside-apalis DATABASE_URL JOBS BATCH CONCURRENCY`

use std::time::{Duration, Instant};

use anyhow::Result;
use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage, queries::push_tasks};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

const QUEUE: &str = "beside";
const WARM_UP_JOBS: usize = 2_000;
/// A worker that has done what it had fetched may sleep until then: the usual 30 s came to a stand of 30 s.
const HEARTBEAT: Duration = Duration::from_millis(50);
/// How often it is looked whether all are done.
const LOOK_EVERY: Duration = Duration::from_millis(10);

async fn nothing(_: usize) -> Result<(), BoxDynError> {
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, jobs, batch, concurrency] = &arguments[..] else {
        anyhow::bail!("DATABASE_URL JOBS BATCH CONCURRENCY")
    };
    let (jobs, batch, concurrency): (usize, usize, usize) = (jobs.parse()?, batch.parse()?, concurrency.parse()?);
    let pool = PgPoolOptions::new().max_connections(10).connect(url).await?;
    PostgresStorage::setup(&pool).await?;
    let config = Config::default().queue(QUEUE).batch_size(batch).heartbeat_interval(HEARTBEAT);
    let backend =
        PostgresStorage::new(&pool).with_config(config).poll_with_interval(Duration::from_millis(1));
    let worker = WorkerBuilder::new("beside-1").backend(backend).concurrency(concurrency).build(nothing);
    tokio::spawn(worker.run());
    push(&pool, WARM_UP_JOBS, batch).await?;
    until_done(&pool, WARM_UP_JOBS).await?;
    let began = Instant::now();
    push(&pool, jobs, batch).await?;
    let added_s = began.elapsed().as_secs_f64();
    until_done(&pool, WARM_UP_JOBS + jobs).await?;
    let seconds = began.elapsed().as_secs_f64();
    let per_second = jobs as f64 / seconds;
    println!(
        "{{\"jobs\":{jobs},\"seconds\":{seconds},\"added_s\":{added_s},\"per_second\":{per_second},\"completed\":{jobs}}}"
    );
    Ok(())
}

async fn push(pool: &PgPool, jobs: usize, batch: usize) -> Result<()> {
    let mut connection = pool.acquire().await?;
    for first in (0..jobs).step_by(batch) {
        let numbers = first..(first + batch).min(jobs);
        let tasks = numbers.map(|n| TaskBuilder::new(n.to_string().into_bytes()).build()).collect();
        push_tasks(&mut *connection, QUEUE, tasks).await.map_err(|error| anyhow::anyhow!("{error}"))?;
    }
    Ok(())
}

async fn until_done(pool: &PgPool, jobs: usize) -> Result<()> {
    let done = "select count(*) from apalis.jobs where status = 'Done'";
    let give_up = Instant::now() + Duration::from_secs(120);
    while usize::try_from(sqlx::query_scalar::<_, i64>(done).fetch_one(pool).await?)? < jobs {
        anyhow::ensure!(Instant::now() < give_up, "not all are done");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}
