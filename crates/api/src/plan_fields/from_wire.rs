//! Plans, retries and resolutions as requests give them. What is refused names its field, with the task and the stage.

use std::sync::Arc;

use actors::plans::{RetryFrom, RetryRequest};
use domain::limits::{
    PLAN_CONCURRENCY_DEFAULT, PLAN_TIMEOUT_MS_DEFAULT, STAGE_TIMEOUT_MS_DEFAULT, TASK_TIMEOUT_MS_DEFAULT,
};
use domain::plan::{OnFailure, OnUnknown, PlanSpec, Resolution, Seen, StageSpec, TaskSpec, spec};
use domain::{JobId, TenantId};
use wire::plans as shape;

use crate::from_wire;
use crate::job_fields;
use crate::refusal::Refusal;

/// A plan and its tasks.
pub fn plan(asked: &shape::PlanRequest) -> Result<(PlanSpec, Vec<TaskSpec>), Refusal> {
    let tasks = asked.tasks.iter().enumerate();
    let tasks = tasks.map(|(at, asked)| task(asked).map_err(|refusal| refusal.within("tasks", at)));
    let tasks = tasks.collect::<Result<Vec<_>, _>>()?;
    let plan = PlanSpec {
        name: asked.name.as_deref().map(Arc::from),
        max_concurrency: asked.max_concurrency.unwrap_or(PLAN_CONCURRENCY_DEFAULT),
        on_failure: on_failure(asked.on_failure.unwrap_or(shape::OnFailure::StopNew))?,
        timeout_ms: asked.timeout_ms.unwrap_or(PLAN_TIMEOUT_MS_DEFAULT),
    };
    spec::check(&plan, &tasks).map_err(|refused| Refusal::invalid(refused.to_string()))?;
    Ok((plan, tasks))
}

fn task(asked: &shape::TaskRequest) -> Result<TaskSpec, Refusal> {
    Ok(TaskSpec {
        tenant: TenantId::parse(&asked.tenant)?,
        name: asked.name.as_deref().map(Arc::from),
        config: asked.config.as_ref().map(text),
        timeout_ms: asked.timeout_ms.unwrap_or(TASK_TIMEOUT_MS_DEFAULT),
        stages: stages(&asked.stages)?.into(),
    })
}

fn stages(asked: &[shape::StageRequest]) -> Result<Vec<StageSpec>, Refusal> {
    let stages = asked.iter().enumerate();
    stages.map(|(at, asked)| stage(asked).map_err(|refusal| refusal.within("stages", at))).collect()
}

fn stage(asked: &shape::StageRequest) -> Result<StageSpec, Refusal> {
    Ok(StageSpec {
        needs: from_wire::requirements(asked.pool.as_deref(), asked.route.as_ref(), &asked.requires)?,
        timeout_ms: asked.timeout_ms.unwrap_or(STAGE_TIMEOUT_MS_DEFAULT),
        max_attempts: asked.max_attempts.unwrap_or(1),
        backoff: job_fields::backoff(asked.backoff.clone().unwrap_or_default())?,
        on_unknown: match asked.on_unknown.unwrap_or(shape::OnUnknown::Confirm) {
            shape::OnUnknown::Confirm => OnUnknown::Confirm,
            shape::OnUnknown::Rerun => OnUnknown::Rerun,
        },
        ..StageSpec::new(asked.name.as_str(), asked.payload.as_str())
    })
}

fn on_failure(asked: shape::OnFailure) -> Result<OnFailure, Refusal> {
    Ok(OnFailure::parse(asked.as_str())?)
}

/// What a person says of a stage.
pub fn resolution(asked: &shape::StageResolveRequest) -> Result<Resolution, Refusal> {
    match (asked.outcome, &asked.context) {
        (shape::StageOutcome::Done, context) => Ok(Resolution::Done(context.as_ref().map(text))),
        (shape::StageOutcome::NotDone, None) => Ok(Resolution::NotDone),
        (shape::StageOutcome::NotDone, Some(_)) => {
            Err(Refusal::invalid("context goes with the outcome done only"))
        }
    }
}

/// The job of the stage that the person means.
pub fn resolved_job(asked: &shape::StageResolveRequest) -> Result<Option<JobId>, Refusal> {
    let parse =
        |id: &String| JobId::parse(id).ok_or_else(|| Refusal::invalid(format!("job: {id:?} is no job's id")));
    asked.job.as_ref().map(parse).transpose()
}

/// How a task is to be run again.
pub fn retry(asked: &shape::TaskRetryRequest) -> Result<RetryRequest, Refusal> {
    let stages = asked.stages.as_deref().map(stages).transpose()?;
    if let Some(stages) = &stages {
        spec::check_stages(stages).map_err(|refused| Refusal::invalid(refused.to_string()))?;
    }
    Ok(RetryRequest {
        from: match asked.from {
            shape::RetryFrom::Point(shape::RetryPoint::Checkpoint) => RetryFrom::Checkpoint,
            shape::RetryFrom::Point(shape::RetryPoint::Start) => RetryFrom::Start,
            shape::RetryFrom::Version(from) => RetryFrom::Version(from.checkpoint_version),
        },
        expect: asked.expect.map(|seen| Seen { run: seen.run, checkpoint_version: seen.checkpoint_version }),
        context_patch: asked.context_patch.as_ref().map(text),
        stages: stages.map(Arc::from),
        config: asked.config.as_ref().map(text),
        max_attempts: asked.max_attempts,
        reason: Arc::from(asked.reason.as_str()),
    })
}

fn text(json: &wire::Json) -> Arc<str> {
    Arc::from(json.as_str())
}

#[cfg(test)]
mod tests;
