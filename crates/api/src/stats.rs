//! Statistics over HTTP. A request counts nothing: what it shows was counted before, here and by the other instances.

mod merge;

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::{HttpRequest, HttpResponse};
use actors::jobs::{HISTORY_STEP, JobCount, JobStatistics, PoolStatistics};
use actors::plans::PlanStatistics;
use domain::plan::{PlanStatus, StageStatus, TaskStatus};
use domain::{InstanceId, PoolName, PoolPause, TenantId};
use wire::Code;
use wire::stats::{
    InstanceRates, JobHistory, JobRate, JobRates, JobStates, OutcomeRates, PlanStatuses, PoolStats,
    SlotStats, Stats, TaskStatuses, TenantStats,
};

use crate::extract::Query;
use crate::forwarder::{ForwardedRequest, Forwarder, Forwarding};
use crate::limits::{STATS_ASKED_MAX, STATS_OF_OTHERS_AGE_MAX};
use crate::peer_credential;
use crate::recent::Look;
use crate::refusal::{Answer, Refusal};
use crate::routes::Route;
use crate::state::StatsOfOthers;
use crate::to_wire;

/// Shows statistics
///
/// The numbers of jobs, plans and tasks by state are those of the whole cluster, as the instance last counted them in
/// the ledger, usually a few seconds ago: `counted_ms_ago`, `finished_counted_ms_ago` and `plans_counted_ms_ago` say
/// when. An instance that has just started waits 0.1 s at most until it has counted the FINISHED jobs: where these are many,
/// it says `null` for FINISHED and `finished_counted_ms_ago` meanwhile.
/// The rates, over the last 1, 5 and 15 minutes, and the history are the sum of what each live instance has counted in
/// its memory: the jobs that it accepted, and those whose end it wrote. The instance that answers asks the others once a second
/// at most; one that says nothing within a second has a `problem` in `instances`. A request reads nothing from the ledger.
#[utoipa::path(
    get, path = "/v1/stats", tag = "operations", operation_id = "stats",
    responses((status = 200, description = "The statistics", body = Stats)),
)]
pub async fn show(request: HttpRequest, forwarder: Forwarding) -> Answer {
    Query::read(&request, &[])?;
    let state = forwarder.state();
    let incarnation = state.incarnation();
    // An instance that has just started waits for its first counts, but for that of the finished jobs only a moment.
    let (jobs, plans) = state
        .read(async { Ok(tokio::join!(incarnation.jobs.statistics(), incarnation.plans.statistics())) })
        .await?;
    let pauses = incarnation.registry.pauses();
    let mut shown = own(&incarnation.identity.id, &jobs, &plans, &pauses);
    // An instance that asks wants this one's own alone.
    if !peer_credential::is_forwarded(&request) {
        let begin = |look: Look<StatsOfOthers>| {
            let (forwarder, question) = (forwarder.clone(), ForwardedRequest::of(&request, Vec::new()));
            // Another caller may wait for it when this one is gone.
            actix_web::rt::spawn(async move { look.end(Ok(of_others(&forwarder, &question).await)) });
        };
        // The question ends by itself, and earlier.
        let others = state.stats_of_others.get(STATS_OF_OTHERS_AGE_MAX, STATS_ASKED_MAX * 2, begin).await;
        let Some(Ok(others)) = others else {
            return Err(Refusal::new(Code::Overloaded, "the other instances could not be asked in time"));
        };
        for (instance, said) in others.iter() {
            merge::add(&mut shown, instance, said);
        }
    }
    Ok(HttpResponse::Ok().json(shown))
}

/// What each other live instance says of itself.
async fn of_others(forwarder: &Forwarder, question: &ForwardedRequest) -> StatsOfOthers {
    let deadline = Instant::now() + STATS_ASKED_MAX;
    let answers = forwarder.ask_others(question, Route::Stats.pattern(), deadline).await;
    let read = |body: Vec<u8>| {
        serde_json::from_slice(&body)
            .map_err(|_| "its answer cannot be read: is it of another release?".to_owned())
    };
    Arc::new(answers.into_iter().map(|(instance, body)| (instance, body.and_then(read))).collect())
}

fn own(instance: &InstanceId, jobs: &JobStatistics, plans: &PlanStatistics, pauses: &[PoolPause]) -> Stats {
    let all = &jobs.all;
    let plan = |status| plans.plans.iter().find(|(of, _)| *of == status).map_or(0, |(_, count)| *count);
    let of =
        |status: &str| plans.tasks.iter().find(|count| count.status == status).map_or(0, |count| count.count);
    let task = |status: TaskStatus| of(status.as_str());
    let counting_since = Some(to_wire::ago(jobs.history.age));
    let kept = HISTORY_STEP * jobs.history.steps.len() as u32 + jobs.history.ended_ago;
    Stats {
        instance: instance.to_string(),
        jobs: states(all),
        delayed: all.delayed,
        oldest_waiting_ms: all.oldest_ms,
        rates: rates(&all.rates),
        instances: vec![InstanceRates {
            instance: instance.to_string(),
            counting_since,
            rates: Some(rates(&all.rates)),
            problem: None,
        }],
        history_since: Some(to_wire::ago(kept)),
        history: history(&jobs.history),
        pools: jobs.pools.iter().map(|(name, pool)| of_pool(name.as_ref(), pool, pauses)).collect(),
        tenants: jobs.tenants.iter().map(|(name, jobs)| of_tenant(name.as_ref(), jobs)).collect(),
        slots: Some(SlotStats { used: jobs.slots.0, all: jobs.slots.1 }),
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
        finished_counted_ms_ago: jobs.finished_counted_ago.map(ms),
        plans_counted_ms_ago: ms(plans.counted_ago),
    }
}

fn history(of: &actors::jobs::JobHistory) -> JobHistory {
    let column = |count: fn(&JobCount) -> u32| of.steps.iter().map(|step| count(step).into()).collect();
    JobHistory {
        step_ms: ms(HISTORY_STEP),
        ended_ms_ago: ms(of.ended_ago),
        accepted: column(|step| step.accepted),
        succeeded: column(|step| step.succeeded),
        failed: column(|step| step.failed),
        cancelled: column(|step| step.cancelled),
        timed_out: column(|step| step.timed_out),
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

fn of_tenant(name: Option<&TenantId>, jobs: &PoolStatistics) -> TenantStats {
    TenantStats {
        tenant: name.map(ToString::to_string),
        jobs: states(jobs),
        delayed: jobs.delayed,
        oldest_waiting_ms: jobs.oldest_ms,
        rates: rates(&jobs.rates),
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
