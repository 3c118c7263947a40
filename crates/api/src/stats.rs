//! Statistics over HTTP. A request counts nothing: what it shows was counted before.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use actors::jobs::{JobStatistics, PoolStatistics};
use actors::plans::PlanStatistics;
use domain::plan::{PlanStatus, StageStatus, TaskStatus};
use domain::{InstanceId, PoolName, PoolPause};
use wire::stats::{
    JobRate, JobRates, JobStates, OutcomeRates, PlanStatuses, PoolStats, SlotStats, Stats, TaskStatuses,
};

use crate::extract::Query;
use crate::refusal::Refusal;
use crate::state::State;

/// Shows statistics
///
/// The numbers of jobs, plans and tasks by state are those of the whole cluster, as the instance last counted them in
/// the ledger, usually a few seconds ago: `counted_ms_ago`, `finished_counted_ms_ago` and `plans_counted_ms_ago` say
/// when. The rates are those of the instance that answers, over the last 1, 5 and 15 minutes: the jobs that it
/// accepted, and those whose end it wrote. A request reads nothing from the ledger.
#[utoipa::path(
    get, path = "/v1/stats", tag = "operations", operation_id = "stats",
    responses((status = 200, description = "The statistics", body = Stats)),
)]
pub async fn show(request: HttpRequest, state: web::Data<State>) -> Result<HttpResponse, Refusal> {
    Query::read(&request, &[])?;
    let incarnation = state.incarnation();
    // An instance that has just started waits for its first counts.
    let (jobs, plans) = state
        .read(async { Ok(tokio::join!(incarnation.jobs.statistics(), incarnation.plans.statistics())) })
        .await?;
    let pauses = incarnation.registry.pauses();
    Ok(HttpResponse::Ok().json(stats(&incarnation.identity.id, &jobs, &plans, &pauses)))
}

fn stats(instance: &InstanceId, jobs: &JobStatistics, plans: &PlanStatistics, pauses: &[PoolPause]) -> Stats {
    let all = &jobs.all;
    let plan = |status| plans.plans.iter().find(|(of, _)| *of == status).map_or(0, |(_, count)| *count);
    let of =
        |status: &str| plans.tasks.iter().find(|count| count.status == status).map_or(0, |count| count.count);
    let task = |status: TaskStatus| of(status.as_str());
    Stats {
        instance: instance.to_string(),
        jobs: states(all),
        delayed: all.delayed,
        oldest_waiting_ms: all.oldest_ms,
        rates: rates(&all.rates),
        pools: jobs.pools.iter().map(|(name, pool)| of_pool(name.as_ref(), pool, pauses)).collect(),
        slots: SlotStats { used: jobs.slots.0, all: jobs.slots.1 },
        plans: PlanStatuses {
            created: plan(PlanStatus::Created),
            running: plan(PlanStatus::Running),
            paused: plan(PlanStatus::Paused),
            attention: plan(PlanStatus::Attention),
            succeeded: plan(PlanStatus::Succeeded),
            cancelled: plan(PlanStatus::Cancelled),
        },
        tasks: TaskStatuses {
            pending: task(TaskStatus::Pending),
            running: task(TaskStatus::Running),
            succeeded: task(TaskStatus::Succeeded),
            failed: task(TaskStatus::Failed),
            paused: task(TaskStatus::Paused),
            interrupted: task(TaskStatus::Interrupted),
            cancelled: task(TaskStatus::Cancelled),
        },
        unknown_stages: of(StageStatus::Unknown.as_str()),
        counted_ms_ago: ms(jobs.counted_ago),
        finished_counted_ms_ago: ms(jobs.finished_counted_ago),
        plans_counted_ms_ago: ms(plans.counted_ago),
    }
}

fn of_pool(name: Option<&PoolName>, pool: &PoolStatistics, pauses: &[PoolPause]) -> PoolStats {
    PoolStats {
        pool: name.map(ToString::to_string),
        jobs: states(pool),
        delayed: pool.delayed,
        oldest_waiting_ms: pool.oldest_ms,
        rates: rates(&pool.rates),
        paused: pauses.iter().any(|pause| Some(&pause.pool) == name),
    }
}

const fn states(of: &PoolStatistics) -> JobStates {
    let PoolStatistics { created, dispatched, running, finished, .. } = *of;
    JobStates { created, dispatched, running, finished }
}

fn rates(of: &actors::jobs::JobRates) -> JobRates {
    let [one_minute, five_minutes, fifteen_minutes] = of.map(|rate| JobRate {
        accepted_per_second: rate.accepted,
        finished_per_second: OutcomeRates {
            succeeded: rate.succeeded,
            failed: rate.failed,
            cancelled: rate.cancelled,
            timed_out: rate.timed_out,
        },
    });
    JobRates { one_minute, five_minutes, fifteen_minutes }
}

fn ms(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
