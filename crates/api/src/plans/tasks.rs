//! Tasks over HTTP: one task, its checkpoints, and what people decide about it.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use domain::plan::{Command, StageSpec};
use domain::{PlanId, TaskId};
use ledger::CheckpointRecord;
use wire::Code;
use wire::plans as shape;

use super::{Answer, Forwarding, Shared, behind_write, carry_out, reason, records};
use crate::cursors::Cursors;
use crate::extract::{self, CURSOR, LIMIT, Query};
use crate::forwarder::Routed;
use crate::large_pages;
use crate::plan_fields::{from_wire, to_wire};
use crate::refusal::Refusal;

/// Shows a task
#[utoipa::path(
    get, path = "/v1/tasks/{task}", tag = "plans", operation_id = "show_task",
    params(("task" = String, Path, description = ID)),
    responses((status = 200, description = "The task", body = shape::Task)),
)]
pub async fn show(request: HttpRequest, state: Shared) -> Answer {
    let id = task(&request)?;
    Query::read(&request, &[])?;
    Ok(HttpResponse::Ok().json(records::task(&state, id).await?))
}

/// Shows the stages of a task as they are defined
///
/// They have their payloads, and the form that `stages` of a retry has: who corrects a stage begins with them. What the plan left
/// out has its default. `stages` are up to 16 MiB.
#[utoipa::path(
    get, path = "/v1/tasks/{task}/stages", tag = "plans", operation_id = "show_stages",
    params(("task" = String, Path, description = ID)),
    responses((status = 200, description = "The stages of the newest run", body = shape::TaskDefinition)),
)]
pub async fn stages(request: HttpRequest, state: Shared) -> Answer {
    let id = task(&request)?;
    Query::read(&request, &[])?;
    let record = records::whole_task_record(&state, id).await?;
    Ok(HttpResponse::Ok().json(to_wire::definition(&record)?))
}

/// Lists the checkpoints of a task
///
/// The newest checkpoints come first. A page ends early when its contexts are long.
#[utoipa::path(
    get, path = "/v1/tasks/{task}/checkpoints", tag = "plans", operation_id = "list_checkpoints",
    params(
        ("task" = String, Path, description = ID),
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<shape::Checkpoint>)),
)]
pub async fn checkpoints(request: HttpRequest, state: Shared) -> Answer {
    let id = task(&request)?;
    let query = Query::read(&request, &["cursor", "limit"])?;
    let limit = query.limit()?;
    let begin = query.cursor("c", |text| u32::try_from(extract::number(text)?).ok())?;
    records::plan_of_task(&state, id).await?;
    // A checkpoint names the stages of the definition under which it was written. Of the definitions, which may be large, only
    // these names are read.
    let known = RefCell::new(HashMap::<u32, Vec<Arc<str>>>::new());
    let read = async |before, limit| {
        let saved = state.read(state.ledger.checkpoints(id, before, limit)).await?;
        let missing = missing(&saved, &known.borrow());
        if !missing.is_empty() {
            let names = state.read(state.ledger.stage_names(id, &missing)).await?;
            known.borrow_mut().extend(names);
        }
        Ok(saved)
    };
    let shown = |saved: &CheckpointRecord| {
        let known = known.borrow();
        let item = to_wire::checkpoint(saved, known.get(&saved.definition).map_or(&[], Vec::as_slice))?;
        Ok((saved.checkpoint.version, Some(item)))
    };
    let room = large_pages::room(&state, &request);
    let cursors = Cursors::in_clear("c");
    Ok(HttpResponse::Ok().json(large_pages::page(room, &cursors, begin, limit, read, shown).await?))
}

/// The definitions of these checkpoints whose names are not known, each once.
fn missing(saved: &[CheckpointRecord], known: &HashMap<u32, Vec<Arc<str>>>) -> Vec<u32> {
    let numbers = saved.iter().map(|checkpoint| checkpoint.definition);
    let missing: BTreeSet<_> = numbers.filter(|number| !known.contains_key(number)).collect();
    missing.into_iter().collect()
}

/// Pauses a task
///
/// No further stage of the task starts. If a stage is under way, the task becomes PAUSED after the end of that stage.
/// Pausing a paused task changes nothing. A task that has changed 10,000 times is not paused any more (`conflict`).
#[utoipa::path(
    post, path = "/v1/tasks/{task}/pause", tag = "plans", operation_id = "pause_task",
    params(("task" = String, Path, description = ID)),
    request_body(content = shape::ReasonRequest, description = "The body may be absent"),
    responses((status = 200, description = "The task as it stands now", body = shape::Task)),
)]
pub async fn pause(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    change(request, payload, forwarder, Command::PauseTask).await
}

/// Resumes a task
///
/// A paused task waits for its turn and goes on. Resuming a task that runs changes nothing. While its plan is paused, a task
/// that is resumed alone waits as PENDING until the plan is resumed, after the stage that is under way; it is paused if another
/// task of the paused plan is retried. A task that is FAILED, INTERRUPTED or CANCELLED is retried, not resumed; one that was
/// cancelled in a plan that was never started is neither.
#[utoipa::path(
    post, path = "/v1/tasks/{task}/resume", tag = "plans", operation_id = "resume_task",
    params(("task" = String, Path, description = ID)),
    request_body(content = shape::ReasonRequest, description = "The body may be absent"),
    responses((status = 200, description = "The task as it stands now", body = shape::Task)),
)]
pub async fn resume(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    change(request, payload, forwarder, Command::ResumeTask).await
}

/// Cancels a task
///
/// If a stage is under way, its job is cancelled, and the task becomes CANCELLED when the job has ended. A stage that is UNKNOWN
/// stays so, unless its node says how it ended. Cancelling a cancelled task changes nothing. A run that somebody has opened since
/// is cancelled as well, unless the request says in `expect` which run it is about (`conflict`). Tasks that the failure of this
/// one has kept from their turn start, unless the plan is paused before.
#[utoipa::path(
    post, path = "/v1/tasks/{task}/cancel", tag = "plans", operation_id = "cancel_task",
    params(("task" = String, Path, description = ID)),
    request_body(content = shape::TaskCancelRequest, description = "The body may be absent"),
    responses((status = 200, description = "The task as it stands now", body = shape::Task)),
)]
pub async fn cancel(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let state = forwarder.state();
    let id = task(&request)?;
    Query::read(&request, &[])?;
    let body = extract::bytes(&request, payload, state.body_limits()).await?;
    let asked: shape::TaskCancelRequest = extract::optional_object(&request, &body)?.unwrap_or_default();
    let command = match asked.expect {
        Some(expect) => Command::CancelRun(id, expect.run),
        None => Command::CancelTask(id),
    };
    let plan = records::plan_of_task(state, id).await?;
    decide(&request, body, &forwarder, plan, id, command, asked.reason.as_deref()).await
}

async fn change(
    request: HttpRequest,
    payload: web::Payload,
    forwarder: Forwarding,
    command: impl FnOnce(TaskId) -> Command,
) -> Answer {
    let id = task(&request)?;
    Query::read(&request, &[])?;
    let (body, reason) = reason(&request, payload, forwarder.state()).await?;
    let plan = records::plan_of_task(forwarder.state(), id).await?;
    decide(&request, body, &forwarder, plan, id, command(id), reason.as_deref()).await
}

/// Resolves an UNKNOWN stage
///
/// A person says what the stage did. With `done` the stage becomes SUCCEEDED and leaves a checkpoint; with `not_done` it
/// becomes PENDING. The task stays INTERRUPTED or CANCELLED until it is retried, unless `done` was said of its last stage. A
/// stage that is not UNKNOWN is refused as `conflict`, and so is one that has another job by now than the `job` of the request.
/// With `done`, a task that has lost its tenant's lock takes it first: `tenant_locked` if another task has it.
#[utoipa::path(
    post, path = "/v1/tasks/{task}/stages/{stage}/resolve", tag = "plans", operation_id = "resolve_stage",
    params(
        ("task" = String, Path, description = ID),
        ("stage" = String, Path, description = "The stage's name, or its number, counted from 1. If a stage has this name, \
            the name counts"),
    ),
    request_body = shape::StageResolveRequest,
    responses((status = 200, description = "The task as it stands now", body = shape::Task)),
)]
pub async fn resolve(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let state = forwarder.state();
    let id = task(&request)?;
    Query::read(&request, &[])?;
    let body = extract::bytes(&request, payload, state.body_limits()).await?;
    let asked: shape::StageResolveRequest = extract::object(&request, &body)?;
    let (job, resolution) = (from_wire::resolved_job(&asked)?, from_wire::resolution(&asked)?);
    let record = records::task_record(state, id).await?;
    let named = decoded(extract::segment(&request, "stage"));
    let stage = stage_of(&record.task.spec.stages, &named)
        .ok_or_else(|| Refusal::new(Code::NotFound, "the task has no stage of this name or number"))?;
    let command = Command::Resolve { task: id, stage, job, resolution };
    decide(&request, body, &forwarder, record.plan, id, command, Some(&asked.reason)).await
}

/// Has the owner of the task's plan carry out a command, and shows the task as it is then.
async fn decide(
    request: &HttpRequest,
    body: Vec<u8>,
    forwarder: &Forwarding,
    plan: PlanId,
    id: TaskId,
    command: Command,
    reason: Option<&str>,
) -> Answer {
    match carry_out(forwarder, request, body, plan, command, reason).await? {
        Routed::Here(()) => {
            let task = records::task(forwarder.state(), id).await.map_err(behind_write)?;
            Ok(HttpResponse::Ok().json(task))
        }
        Routed::Elsewhere(answer) => Ok(answer),
    }
}

/// The place of the stage with this name, or else with this number.
fn stage_of(stages: &[StageSpec], named: &str) -> Option<usize> {
    let by_name = stages.iter().position(|stage| *stage.name == *named);
    let by_number =
        || usize::try_from(extract::number(named)?).ok()?.checked_sub(1).filter(|at| *at < stages.len());
    by_name.or_else(by_number)
}

/// A segment of the path with nothing left encoded: the router keeps `%25`, `%2B` and `%2F` as they came.
fn decoded(segment: &str) -> String {
    let mut text = String::with_capacity(segment.len());
    let mut rest = segment;
    while let Some((before, behind)) = rest.split_once('%') {
        text.push_str(before);
        let plain = match behind.get(..2) {
            Some("25") => '%',
            Some("2B" | "2b") => '+',
            Some("2F" | "2f") => '/',
            _ => {
                text.push('%');
                rest = behind;
                continue;
            }
        };
        text.push(plain);
        rest = &behind[2..];
    }
    text + rest
}

/// The task in the path.
pub fn task(request: &HttpRequest) -> Result<TaskId, Refusal> {
    TaskId::parse(extract::segment(request, "task"))
        .ok_or_else(|| Refusal::new(Code::NotFound, "no task has an id of this form"))
}

/// How the OpenAPI document describes it.
pub const ID: &str = "The task's id";

#[cfg(test)]
mod tests {
    use domain::Timestamp;
    use domain::plan::Checkpoint;

    use super::*;

    #[test]
    fn a_stage_is_found_by_its_name_before_its_number() {
        let stages = ["prepare", "0", "50% of it"].map(|name| StageSpec::new(name, "{}"));
        for (named, place) in [
            ("prepare", Some(0)),
            ("0", Some(1)),
            ("1", Some(0)),
            ("2", Some(1)),
            ("3", Some(2)),
            ("50% of it", Some(2)),
            ("4", None),
            ("-1", None),
            ("00", None),
            ("", None),
            ("Prepare", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(stage_of(&stages, named), place, "{named:?}");
        }
    }

    #[test]
    fn the_definitions_of_a_page_are_read_at_once_and_once() {
        let saved = [3, 1, 3, 2, 1].map(|definition| CheckpointRecord {
            checkpoint: Checkpoint { version: 1, completed: 1, context: "{}".into() },
            run: 1,
            definition,
            saved_at: Timestamp::from_micros(1),
        });
        assert_eq!(missing(&saved, &HashMap::new()), [1, 2, 3]);
        assert_eq!(missing(&saved, &HashMap::from([(1, vec![]), (3, vec!["a".into()])])), [2]);
    }

    #[test]
    fn what_the_router_leaves_encoded_is_decoded_once() {
        for (segment, text) in [
            ("plain", "plain"),
            ("50%25", "50%"),
            ("a%2Fb%2fc", "a/b/c"),
            ("1%2B1", "1+1"),
            ("%252F", "%2F"),
            ("%", "%"),
            ("%2", "%2"),
            ("%ä", "%ä"),
            ("%%25", "%%"),
        ] {
            assert_eq!(decoded(segment), text);
        }
    }
}
