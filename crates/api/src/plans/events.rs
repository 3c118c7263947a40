//! The events of plans and tasks over HTTP: a list, or, where the caller accepts it, a stream.

use actix_web::http::header::ACCEPT;
use actix_web::{HttpRequest, HttpResponse};
use domain::{PlanId, TaskId};
use ledger::TimedEvent;
use wire::events::MEDIA_TYPE;
use wire::plans as shape;

use super::{Answer, Shared, plan, records, tasks};
use crate::auth::Principal;
use crate::cursors::Cursors;
use crate::events::{self, PlanFollower};
use crate::extract::{self, Query};
use crate::large_pages;
use crate::plan_fields::to_wire;
use crate::refusal::Refusal;

// What the API document says of the parameters.
const CURSOR: &str = "A next_cursor of this list, unchanged. A stream begins there";
const LIMIT: &str = "The most items on the page; 100 by default. Not for a stream";
const LAST_EVENT_ID: &str =
    "The id of the last event that the client has seen. For a stream; browsers send it when they reconnect";

/// Shows the events of a plan
///
/// Each event says what happened to the plan or to a task, who asked for it, why, and what changed. Events come in
/// order. A page ends early when its events are long. With `Accept: text/event-stream` the answer is a stream of
/// server-sent events named `plan`, each with one event as its data and the event's number as its id. The stream goes on
/// until the client leaves or the instance stops. A client that reconnects with `Last-Event-ID` gets the events after
/// that one.
#[utoipa::path(
    get, path = "/v1/plans/{plan}/events", tag = "plans", operation_id = "plan_events",
    params(
        ("plan" = String, Path, description = "The plan's id"),
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
        ("Last-Event-ID" = Option<String>, Header, description = LAST_EVENT_ID),
    ),
    responses((status = 200, description = "A page, or the stream", content(
        (wire::List<shape::PlanEvent> = "application/json"),
        (String = "text/event-stream"),
    ))),
)]
pub async fn of_plan(request: HttpRequest, state: Shared) -> Answer {
    let id = plan(&request)?;
    let wanted = Wanted::read(&request)?;
    records::plan_record(&state, id).await?;
    wanted.answer(&request, state, id, None).await
}

/// Shows the events of a task
///
/// The answer is like that of the plan's events, but has the events of this task alone.
#[utoipa::path(
    get, path = "/v1/tasks/{task}/events", tag = "plans", operation_id = "task_events",
    params(
        ("task" = String, Path, description = tasks::ID),
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
        ("Last-Event-ID" = Option<String>, Header, description = LAST_EVENT_ID),
    ),
    responses((status = 200, description = "A page, or the stream", content(
        (wire::List<shape::PlanEvent> = "application/json"),
        (String = "text/event-stream"),
    ))),
)]
pub async fn of_task(request: HttpRequest, state: Shared) -> Answer {
    let id = tasks::task(&request)?;
    let wanted = Wanted::read(&request)?;
    let plan = records::plan_of_task(&state, id).await?;
    wanted.answer(&request, state, plan, Some(id)).await
}

/// What the caller asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// A page of events behind a number.
    Page { after: Option<u64>, limit: u32 },
    /// All events behind a number, as they happen.
    Stream { after: u64 },
}

impl Wanted {
    fn read(request: &HttpRequest) -> Result<Self, Refusal> {
        if !accepts_stream(request) {
            let query = Query::read(request, &["cursor", "limit"])?;
            return Ok(Self::Page { after: query.cursor("e", seq)?, limit: query.limit()? });
        }
        let after = Query::read(request, &["cursor"])?.cursor("e", seq)?;
        let seen = request.headers().get("last-event-id").map(|id| {
            let read = id.to_str().ok().and_then(seq);
            read.ok_or_else(|| Refusal::invalid("Last-Event-ID must be the id of an event of this stream"))
        });
        Ok(Self::Stream { after: seen.transpose()?.or(after).unwrap_or(0) })
    }

    async fn answer(
        self,
        request: &HttpRequest,
        state: Shared,
        plan: PlanId,
        task: Option<TaskId>,
    ) -> Answer {
        match self {
            Self::Page { after, limit } => {
                let read = async |after: Option<u64>, limit| {
                    state.read(state.ledger.plan_events(plan, task, after.unwrap_or(0), limit)).await
                };
                let shown = |event: &TimedEvent| Ok((event.seq, Some(to_wire::event(event)?)));
                let room = large_pages::room(&state, request);
                let cursors = Cursors::in_clear("e");
                let page = large_pages::page(room, &cursors, after, limit, read, shown).await?;
                Ok(HttpResponse::Ok().json(page))
            }
            Self::Stream { after } => {
                let follower = PlanFollower { plan, task, after };
                events::of_plan(state.into_inner(), Principal::of(request), follower)
            }
        }
    }
}

/// The number of an event, as cursors and streams write it. The ledger's numbers have 63 bits.
fn seq(text: &str) -> Option<u64> {
    extract::number(text).filter(|seq| i64::try_from(*seq).is_ok())
}

fn accepts_stream(request: &HttpRequest) -> bool {
    let accepted = request.headers().get_all(ACCEPT).filter_map(|value| value.to_str().ok());
    let mut media_types = accepted.flat_map(|value| value.split(','));
    media_types.any(|one| {
        let (media_type, parameters) = one.split_once(';').unwrap_or((one, ""));
        media_type.trim().eq_ignore_ascii_case(MEDIA_TYPE) && !parameters.split(';').any(is_weight_of_zero)
    })
}

/// Whether a media type with this parameter is one that the caller does not accept: `q=0`, `q=0.0`.
fn is_weight_of_zero(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else { return false };
    let zeros = |decimals: &str| decimals.bytes().all(|byte| matches!(byte, b'.' | b'0'));
    name.trim().eq_ignore_ascii_case("q") && value.trim().strip_prefix('0').is_some_and(zeros)
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    fn read(uri: &str, headers: &[(&'static str, &'static str)]) -> Result<Wanted, String> {
        let request =
            headers.iter().fold(TestRequest::with_uri(uri), |request, header| request.append_header(*header));
        Wanted::read(&request.to_http_request()).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn a_page_is_the_default_and_a_stream_is_for_callers_that_accept_one() {
        let page = |after, limit| Ok(Wanted::Page { after, limit });
        let stream = |after| Ok(Wanted::Stream { after });
        let accept = |value| ("accept", value);
        for (uri, headers, wanted) in [
            ("/", vec![], page(None, 100)),
            ("/?cursor=e.7&limit=2", vec![accept("application/json")], page(Some(7), 2)),
            ("/", vec![accept("*/*")], page(None, 100)),
            ("/", vec![accept("text/event-stream")], stream(0)),
            ("/", vec![accept("application/json, Text/Event-Stream; q=0.9")], stream(0)),
            ("/", vec![accept("application/json"), accept("text/event-stream")], stream(0)),
            ("/", vec![accept("text/event-stream;q=0.001")], stream(0)),
            ("/", vec![accept("text/event-stream;q=0")], page(None, 100)),
            ("/", vec![accept("application/json, text/event-stream; v=1; Q=0.0")], page(None, 100)),
            ("/?cursor=e.7", vec![accept("text/event-stream")], stream(7)),
            ("/?cursor=e.7", vec![accept("text/event-stream"), ("last-event-id", "9")], stream(9)),
            ("/", vec![("last-event-id", "9")], page(None, 100)),
        ] {
            assert_eq!(read(uri, &headers), wanted, "{uri} {headers:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_the_place_is_said() {
        let accept = ("accept", "text/event-stream");
        for (uri, headers, says) in [
            ("/?cursor=k.7", vec![], "cursor must be"),
            ("/?cursor=e.x", vec![], "cursor must be"),
            ("/?cursor=e.9223372036854775808", vec![], "cursor must be"),
            ("/?limit=0", vec![], "limit must be"),
            ("/?after=1", vec![], "unknown query parameter"),
            ("/?limit=1", vec![accept], "unknown query parameter"),
            ("/", vec![accept, ("last-event-id", "x")], "Last-Event-ID must be"),
            ("/", vec![accept, ("last-event-id", "")], "Last-Event-ID must be"),
            ("/", vec![accept, ("last-event-id", "1.FINISHED")], "Last-Event-ID must be"),
        ] {
            let refusal = read(uri, &headers).unwrap_err();
            assert!(refusal.contains(says), "{uri} {headers:?}: {refusal}");
        }
    }
}
