//! Event streams over HTTP: the events of one job until its end, those of one plan, or all events. A stream sends
//! server-sent events, for as long as the client reads and this instance serves.
//!
//! The streams of all events with the same kinds share one feed, which reads and writes each event once. A task of its own
//! writes each stream. It writes an event when the client has taken the one before, so a client that does
//! not read costs one event, is cut off, and delays no other client.

mod feed;
mod plans;
mod stream;
mod world;

use std::sync::Arc;

use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse};
use actors::jobs::{Following, Step};
use domain::job::State as JobState;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use wire::events::{END_ID, EventKind, LEFT_OUT, ProgressEvent};

use crate::auth::Principal;
use crate::event_feeds::FeedKind;
use crate::extract::Query;
use crate::job_fields;
use crate::jobs::job;
use crate::refusal::{Answer, Refusal};
use crate::shares::Kind;
use crate::state::Shared;
pub use plans::{PlanFollower, of_plan};
use stream::{Ended, Place, SseWriter};

/// Streams the events of a job
///
/// Server-sent events. The first is `job`: the job as `GET` shows it, without its payload and `waiting_for`, which changes
/// without an event. A further `job` event follows each change of the job's state or newest attempt, and a `progress` event
/// (`{"id","attempt","percent"?,"note"?}`) follows each progress report of its node. The stream ends after
/// the `job` with `"state":"FINISHED"`. States in quick succession may be left out, and progress may be lost;
/// the end is never lost. If a stream ends earlier (the instance stops, or the client does not read), ask any
/// instance again: the new stream begins with the job as it is then. A client that comes back with the
/// `Last-Event-ID` of the end gets 204.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/events", tag = "jobs", operation_id = "job_events",
    params(
        ("id" = String, Path, description = "The job's id"),
        ("Last-Event-ID" = Option<String>, Header, description = "Browsers send it when they reconnect"),
    ),
    responses(
        (status = 200, description = "The stream", body = String, content_type = "text/event-stream"),
        (status = 204, description = "The client has seen the end; nothing more comes"),
    ),
)]
pub async fn of_job(request: HttpRequest, state: Shared) -> Answer {
    let id = job(&request)?;
    Query::read(&request, &[])?;
    let state = state.into_inner();
    let place = Place::take(&state, &Principal::of(&request), Kind::JobStreams, "job")?;
    let incarnation = state.incarnation();
    let mut following = incarnation.jobs.follow(id)?;
    let first = state.look_up(following.next()).await?.ok_or_else(Refusal::internal)?;
    let has_heard_end = request
        .headers()
        .get("last-event-id")
        .and_then(|last| last.to_str().ok())
        .is_some_and(|last| last.ends_with(END_ID));
    if has_heard_end && matches!(&first, Step::Job(record) if record.state == JobState::Finished) {
        return Ok(HttpResponse::NoContent().finish());
    }
    let (writer, answer) =
        stream::open(Arc::clone(&state), Arc::clone(&incarnation), Principal::of(&request), place);
    state.spawn(follow(following, first, writer));
    Ok(answer)
}

/// Streams all events
///
/// Server-sent events of the kinds `job`, `progress`, `node` and `cluster`, or of those named in `kinds`, as
/// this instance sees them. Events of jobs and progress come from all instances, at most 1,000 a second from
/// each other one. Delivery is best effort: events from before the request are not sent, events may be lost
/// (a comment line says so where the instance knows), and events of different instances have no order. The
/// resources themselves are the source of truth. Events that come within 50 ms are sent together.
///
/// With `digest=true` the stream says how many events there were since it said so last, once a second at most, in events
/// of the kind `digest`: for a client that reads what it shows again when something has changed.
#[utoipa::path(
    get, path = "/v1/events", tag = "cluster", operation_id = "events",
    params(
        ("digest" = Option<bool>, Query, description = "`true` for the numbers of the events instead of the events"),
        ("kinds" = Option<String>, Query, description = "Some of `job`, `progress`, `node`, `cluster`, separated by commas; all by default"),
    ),
    responses((status = 200, description = "The stream", body = String, content_type = "text/event-stream")),
)]
pub async fn of_all(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["digest", "kinds"])?;
    let of = FeedKind { kinds: kinds(query.get("kinds"))?, is_digest: query.is_set("digest")? };
    let state = state.into_inner();
    let place = Place::take(&state, &Principal::of(&request), Kind::AllStreams, "all")?;
    let incarnation = state.incarnation();
    let batches = feed::join(&state, &incarnation, &of)?;
    let (writer, answer) = stream::open(Arc::clone(&state), incarnation, Principal::of(&request), place);
    state.spawn(tell_all(batches, writer));
    Ok(answer)
}

fn kinds(asked: Option<&str>) -> Result<Vec<EventKind>, Refusal> {
    let Some(asked) = asked else { return Ok(EventKind::ALL.to_vec()) };
    let kind = |name: &str| {
        EventKind::parse(name).ok_or_else(|| {
            Refusal::invalid("kinds must be some of job, progress, node, cluster, with commas between them")
        })
    };
    let asked = asked.split(',').map(kind).collect::<Result<Vec<_>, _>>()?;
    Ok(EventKind::ALL.iter().copied().filter(|kind| asked.contains(kind)).collect())
}

async fn follow(mut following: Following, first: Step, mut writer: SseWriter) {
    let mut step = Some(first);
    loop {
        let sent = match step {
            Some(Step::Job(record)) => {
                let progress = writer.incarnation().jobs.progress(&record).await;
                match job_fields::job_without_payload(&record, progress) {
                    Ok(shown) => {
                        let id = format!("{}.{}", shown.attempt, shown.state);
                        writer.event(EventKind::Job.as_str(), Some(&id), &shown).await
                    }
                    Err(_) => return,
                }
            }
            Some(Step::Progress(attempt, progress)) => {
                let (id, attempt) = (following.job().to_string(), attempt.get());
                let percent = progress.percent.map(::nodes::connection::Percent::get);
                let event = ProgressEvent { id, attempt, percent, note: progress.note };
                writer.event(EventKind::Progress.as_str(), None, &event).await
            }
            None => return,
        };
        if sent.is_err() {
            return;
        }
        step = match writer.beside(following.next()).await {
            Ok(Ok(next)) => next,
            Ok(Err(refusal)) => {
                tracing::debug!(%refusal, job = %following.job(), "a job's stream has ended");
                return;
            }
            Err(Ended) => return,
        };
    }
}

async fn tell_all(mut batches: Receiver<Bytes>, mut writer: SseWriter) {
    if writer.comment("the stream is open").await.is_err() {
        return;
    }
    while let Ok(next) = writer.beside(batches.recv()).await {
        let written = match next {
            Ok(batch) => writer.batch(batch).await,
            Err(RecvError::Lagged(_)) => writer.comment(LEFT_OUT).await,
            // The incarnation is over.
            Err(RecvError::Closed) => return,
        };
        if written.is_err() {
            return;
        }
    }
}
