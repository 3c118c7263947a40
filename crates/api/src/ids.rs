//! Ids over HTTP. Any instance serves any of them: the ledger keeps them apart.
//!
//! Most of these requests use ids up, so they take no HEAD, and no cache may keep their answers.

use std::fmt::Display;
use std::time::Instant;

use ::ids::unique::{Version, uuids as new_uuids};
use actix_web::http::header::CACHE_CONTROL;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, web};
use domain::limits::{ID_NUMBER_MAX, SEGMENT_STEP_DEFAULT, SEGMENT_TAGS_MAX, SEQUENCES_MAX};
use domain::{SegmentTag, SequenceName, Timestamp};
use ledger::{Put, SegmentChange, SequenceChange, SequenceRecord};
use wire::Code;
use wire::ids as shape;

use crate::audit;
use crate::extract::{self, CURSOR, LIMIT, Query};
use crate::forwarder::{Forwarder, Forwarding, Routed};
use crate::limits::FORWARD_SLACK;
use crate::refusal::{Answer, Refusal};
use crate::state::{Shared, State};
use crate::to_wire;

/// Issues snowflakes
///
/// Each id consists of the time, a leased worker number and a count, and is issued from memory. While the clock of this
/// instance could lead to a duplicate, it passes the request on to another instance, whose worker number the answer then has;
/// the answer is `clock_behind` if no other instance serves it. While instances that live, or were not found dead yet, hold all
/// worker numbers that this instance may use, the answer is `exhausted` with `Retry-After`.
#[utoipa::path(
    get, path = "/v1/ids/snowflake", tag = "ids", operation_id = "make_snowflakes",
    params(("count" = Option<u32>, Query, description = "The number of ids; 1 by default")),
    responses((status = 200, description = "The ids", body = shape::Snowflakes)),
)]
pub async fn snowflakes(request: HttpRequest, forwarder: Forwarding) -> Answer {
    let count = Query::read(&request, &["count"])?.count()?;
    Ok(match make_snowflakes(&request, &forwarder, count).await? {
        Routed::Here(batch) => {
            fresh().json(shape::Snowflakes { ids: texts(batch.ids()), worker: batch.worker.get() })
        }
        Routed::Elsewhere(answer) => answer,
    })
}

/// Decodes a snowflake
///
/// The instance decodes with its configured epoch. Every number of 63 bits is a snowflake.
#[utoipa::path(
    get, path = "/v1/ids/snowflake/{id}", tag = "ids", operation_id = "decode_snowflake",
    params(("id" = String, Path, description = "The id, 0 to 9223372036854775807")),
    responses((status = 200, description = "Its parts", body = shape::SnowflakeParts)),
)]
pub async fn decode(request: HttpRequest, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let id = extract::number(extract::segment(&request, "id")).filter(|id| *id <= ID_NUMBER_MAX);
    let id =
        id.ok_or_else(|| Refusal::invalid(format!("id must be a whole number from 0 to {ID_NUMBER_MAX}")))?;
    let parts = state.snowflakes.layout().decode(id)?;
    Ok(HttpResponse::Ok().json(shape::SnowflakeParts {
        id: id.to_string(),
        timestamp: to_wire::time(Timestamp::from_micros(parts.time_ms as i64 * 1_000)),
        timestamp_ms: parts.time_ms,
        data_center: parts.worker.data_center(),
        worker: parts.worker.in_its_data_center(),
        worker_number: parts.worker.get(),
        sequence: parts.sequence,
    }))
}

/// Lists the tags of segments
///
/// Tags come in the order of their names, each as the ledger has it, with the buffers of this instance.
#[utoipa::path(
    get, path = "/v1/ids/segments", tag = "ids", operation_id = "list_segments",
    params(
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<shape::Segment>)),
)]
pub async fn list(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["cursor", "limit"])?;
    let (limit, after) = (query.limit()?, query.cursor("t", |text| SegmentTag::parse(text).ok())?);
    let records = state.read(state.ledger.segments(after.as_ref(), limit + 1)).await?;
    let show = |record: &_| to_wire::segment(record, &state.generators.segments);
    Ok(HttpResponse::Ok().json(extract::page("t", records, limit, |record| record.tag.to_string(), show)))
}

/// Takes ids of a tag
///
/// The ids of one instance rise; those of all instances have a rising trend. They come from ranges in memory,
/// which the instance refills ahead of need. With `scrambled=true` the answer has the unguessable forms
/// beside the plain ids; this needs `ids.scramble_key`. The answer is `exhausted` when fewer ids are left below 2^63 - 1
/// than the tag's `step`, or than the request lacks.
#[utoipa::path(
    get, path = "/v1/ids/segments/{tag}", tag = "ids", operation_id = "take_segment",
    params(
        ("tag" = String, Path, description = "The tag, which must exist"),
        ("count" = Option<u32>, Query, description = "The number of ids; 1 by default"),
        ("scrambled" = Option<bool>, Query, description = "Whether to answer scrambled forms; false by default"),
    ),
    responses((status = 200, description = "The ids", body = shape::SegmentIds)),
)]
pub async fn segment(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["count", "scrambled"])?;
    let (tag, count) = (tag(&request)?, query.count()?);
    let scramble = if query.is_set("scrambled")? {
        Some(state.generators.scramble.as_ref().ok_or_else(|| {
            Refusal::new(Code::Conflict, "this instance has no key of scrambled forms; see ids.scramble_key")
        })?)
    } else {
        None
    };
    let numbers = state.segment(&tag, count).await?;
    let plain = texts(numbers.iter().copied());
    let (ids, plain) = match scramble {
        Some(scramble) => (texts(numbers.iter().map(|id| scramble.hide(&tag, *id))), Some(plain)),
        None => (plain, None),
    };
    Ok(fresh().json(shape::SegmentIds { tag: tag.to_string(), ids, plain }))
}

/// Creates or changes a tag of segments
///
/// Fields that the body names change, and the others stay. `start` can only rise, past all ids that were
/// given out; otherwise the answer is `conflict`. This instance uses the new start at once, the others when
/// their ranges are used up, or when they get the same request. After a recovery of the ledger, a tag that it does not know
/// is made with a `start` alone, until `fencepost recover --unknown-signers-are-new`; otherwise the answer is `conflict`.
#[utoipa::path(
    put, path = "/v1/ids/segments/{tag}", tag = "ids", operation_id = "change_segment",
    params(("tag" = String, Path, description = "The tag, 1 to 128 letters, digits and . _ : @ -")),
    request_body = shape::SegmentRequest,
    responses((status = 200, description = "The tag", body = shape::Segment)),
)]
pub async fn change_segment(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let tag = tag(&request)?;
    let asked: shape::SegmentRequest = extract::body(&request, payload, state.body_limits()).await?;
    let shape::SegmentRequest { step, start, description } = asked;
    if let Some(start) = start {
        let known = state.read(state.ledger.segment(&tag)).await?;
        // Where it is to stay, fewer ids may be left by now.
        if known.as_ref().is_none_or(|known| known.start != start) {
            let step = step.or(known.map(|known| known.step)).unwrap_or(SEGMENT_STEP_DEFAULT);
            leaves_some(start, step, "step")?;
        }
    }
    let by = audit::entry(&request, "set_segment", format!("segment:{tag}"));
    let change = SegmentChange { start, step, description };
    let outcome = state.write(state.ledger.put_segment(&tag, &change, &by)).await?;
    let record = put(outcome, (SEGMENT_TAGS_MAX, "tags of segments"), |record| record.next)?;
    // Also where an earlier request moved the start on whose answer was lost, and others have taken ranges since.
    if let Some(start) = start {
        state.generators.segments.forget_below(&tag, start);
    }
    Ok(HttpResponse::Ok().json(to_wire::segment(&record, &state.generators.segments)))
}

/// Lists the sequences
///
/// Sequences come in the order of their names, each as the ledger has it. The list takes no number.
#[utoipa::path(
    get, path = "/v1/ids/sequences", tag = "ids", operation_id = "list_sequences",
    params(
        ("name" = Option<String>, Query, description = "Only the sequence of this name"),
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<shape::Sequence>)),
)]
pub async fn list_sequences(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["name", "cursor", "limit"])?;
    let (limit, after) = (query.limit()?, query.cursor("q", |text| SequenceName::parse(text).ok())?);
    let records = match query.get("name").map(SequenceName::parse).transpose()? {
        Some(name) => {
            let known = state.read(state.ledger.sequence(&name)).await?;
            let is_behind = after.is_none_or(|after| name > after);
            known.into_iter().filter(|_| is_behind).collect()
        }
        None => state.read(state.ledger.sequences(after.as_ref(), limit + 1)).await?,
    };
    let key = |record: &SequenceRecord| record.sequence.to_string();
    Ok(HttpResponse::Ok().json(extract::page("q", records, limit, key, to_wire::sequence)))
}

/// Takes numbers of a sequence
///
/// Each number is higher than all that were granted before, on any instance. Each grant is a commit; waiting
/// requests share one. A grant whose answer is lost leaves a gap.
#[utoipa::path(
    get, path = "/v1/ids/sequences/{name}", tag = "ids", operation_id = "take_sequence",
    params(
        ("name" = String, Path, description = "The sequence, which must exist"),
        ("count" = Option<u32>, Query, description = "The number of ids; 1 by default"),
    ),
    responses((status = 200, description = "The numbers", body = shape::SequenceIds)),
)]
pub async fn sequence(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["count"])?;
    let (name, count) = (sequence_name(&request)?, query.count()?);
    let sequences = &state.generators.sequences;
    let numbers = state.call(sequences.take(&name, count, state.settings.request_timeout)).await?;
    state.id_counters.sequence.increment(count as u64);
    Ok(fresh().json(shape::SequenceIds { name: name.to_string(), ids: texts(numbers.ids()) }))
}

/// Creates or changes a sequence
///
/// Fields that the body names change, and the others stay. `start` can only rise, past all numbers that were
/// granted; otherwise the answer is `conflict`. After a recovery of the ledger, a sequence that it does not know is made with
/// a `start` alone, until `fencepost recover --unknown-signers-are-new`; otherwise the answer is `conflict`.
#[utoipa::path(
    put, path = "/v1/ids/sequences/{name}", tag = "ids", operation_id = "change_sequence",
    params(("name" = String, Path, description = "The sequence, 1 to 128 letters, digits and . _ : @ -")),
    request_body = shape::SequenceRequest,
    responses((status = 200, description = "The sequence", body = shape::Sequence)),
)]
pub async fn change_sequence(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let name = sequence_name(&request)?;
    let asked: shape::SequenceRequest = extract::body(&request, payload, state.body_limits()).await?;
    let shape::SequenceRequest { start, increment } = asked;
    if let Some(start) = start {
        let known = state.read(state.ledger.sequence(&name)).await?;
        if known.as_ref().is_none_or(|known| known.start != start) {
            let increment = increment.or(known.map(|known| known.increment)).unwrap_or(1);
            leaves_some(start, increment, "increment")?;
        }
    }
    let by = audit::entry(&request, "set_sequence", format!("sequence:{name}"));
    let change = SequenceChange { start, increment };
    let outcome = state.write(state.ledger.put_sequence(&name, &change, &by)).await?;
    let record = put(outcome, (SEQUENCES_MAX, "sequences"), |record| record.next)?;
    Ok(HttpResponse::Ok().json(to_wire::sequence(&record)))
}

/// Issues UUIDs
///
/// UUIDs of version 7 (sorted by time), or of version 4 (random) if the request asks for it.
#[utoipa::path(
    get, path = "/v1/ids/uuid", tag = "ids", operation_id = "make_uuids",
    params(
        ("version" = Option<u8>, Query, description = "4 or 7; 7 by default"),
        ("count" = Option<u32>, Query, description = "The number of ids; 1 by default"),
    ),
    responses((status = 200, description = "The UUIDs", body = shape::Uuids)),
)]
pub async fn uuids(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["version", "count"])?;
    let count = query.count()?;
    let (version, number) = uuid_version(&query)?;
    state.id_counters.uuid.increment(count as u64);
    Ok(fresh().json(shape::Uuids { ids: texts(new_uuids(version, count)), version: number }))
}

/// Which version of UUIDs is wanted, and its number; 7 by default.
///
/// # Errors
/// `invalid` for any other than 4 and 7.
pub fn uuid_version(query: &Query) -> Result<(Version, u8), Refusal> {
    match query.get("version") {
        None | Some("7") => Ok((Version::V7, 7)),
        Some("4") => Ok((Version::V4, 4)),
        Some(_) => Err(Refusal::invalid("version must be 4 or 7")),
    }
}

/// Takes one id of a tag, as text
///
/// For clients that were written for Leaf.
#[utoipa::path(
    get, path = "/api/segment/get/{tag}", tag = "ids", operation_id = "leaf_segment",
    params(("tag" = String, Path, description = "The tag, which must exist")),
    responses((status = 200, description = "The id", body = String, content_type = "text/plain")),
)]
pub async fn leaf_segment(request: HttpRequest, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let ids = state.segment(&tag(&request)?, 1).await?;
    Ok(text(ids.into_iter()))
}

/// Issues one snowflake, as text
///
/// For clients that were written for Leaf. The key has no effect. While instances that live, or were not found dead yet, hold
/// all worker numbers that this instance may use, the answer is `exhausted` with `Retry-After`.
#[utoipa::path(
    get, path = "/api/snowflake/get/{key}", tag = "ids", operation_id = "leaf_snowflake",
    params(("key" = String, Path, description = "Anything")),
    responses((status = 200, description = "The id", body = String, content_type = "text/plain")),
)]
pub async fn leaf_snowflake(request: HttpRequest, forwarder: Forwarding) -> Answer {
    Query::read(&request, &[])?;
    Ok(match make_snowflakes(&request, &forwarder, 1).await? {
        Routed::Here(batch) => text(batch.ids()),
        Routed::Elsewhere(answer) => answer,
    })
}

/// Snowflakes of this instance; while its clock is wrong, the answer of one whose clock is right.
async fn make_snowflakes(
    request: &HttpRequest,
    forwarder: &Forwarder,
    count: usize,
) -> Result<Routed<::ids::snowflake::Batch>, Refusal> {
    let state = forwarder.state();
    let limit = state.settings.request_timeout;
    // One deadline, whichever instance serves in the end.
    let deadline = Instant::now() + limit + FORWARD_SLACK;
    match state.call(state.snowflakes.take(count, limit)).await {
        Ok(batch) => {
            state.id_counters.snowflake.increment(count as u64);
            Ok(Routed::Here(batch))
        }
        Err(refusal) if refusal.is_of_the_clock() => {
            // Boxed: the future of each request would have room for it.
            let answer = Box::pin(forwarder.to_a_right_clock(request, deadline)).await;
            answer.map_or_else(|| Err(refusal.into()), |answer| Ok(Routed::Elsewhere(answer)))
        }
        Err(refusal) => Err(refusal.into()),
    }
}

impl State {
    async fn segment(&self, tag: &SegmentTag, count: usize) -> Result<Vec<u64>, Refusal> {
        let segments = &self.generators.segments;
        let ranges = self.call(segments.take(tag, count, self.settings.request_timeout)).await?;
        self.id_counters.segment.increment(count as u64);
        Ok(ranges.into_iter().flatten().collect())
    }
}

/// The answer to a change of one of these, of which there may be so many; `next` is the first number that was not given out
/// yet.
fn put<Record>(
    outcome: Put<Record>,
    (max, what): (usize, &str),
    next: impl FnOnce(&Record) -> u64,
) -> Result<Record, Refusal> {
    match outcome {
        Put::Done(record) => Ok(record),
        Put::StartTaken(record) => {
            let detail = format!("start only rises: all below {} is given out already", next(&record));
            Err(Refusal::new(Code::Conflict, detail))
        }
        Put::StartUnknown => Err(Refusal::new(
            Code::Conflict,
            "the ledger was recovered from an older state, which may lack this name: set start, above all that was given under \
             it, or to 1 if it is new",
        )),
        Put::Full => Err(Refusal::new(
            Code::Conflict,
            format!("there are {max} {what} already, and there may be no more"),
        )),
    }
}

/// Refuses a start after which not even the first ids could be taken.
fn leaves_some(start: u64, length: u64, of: &str) -> Result<(), Refusal> {
    let highest = ID_NUMBER_MAX.saturating_sub(length);
    if start <= highest {
        return Ok(());
    }
    let detail =
        format!("start must be at most {highest}: with the {of} {length}, a higher one leaves no id");
    Err(Refusal::invalid(detail))
}

fn tag(request: &HttpRequest) -> Result<SegmentTag, Refusal> {
    Ok(SegmentTag::parse(extract::segment(request, "tag"))?)
}

fn sequence_name(request: &HttpRequest) -> Result<SequenceName, Refusal> {
    Ok(SequenceName::parse(extract::segment(request, "name"))?)
}

/// An answer that must not be cached: it is valid once.
fn fresh() -> HttpResponseBuilder {
    let mut answer = HttpResponse::Ok();
    answer.insert_header((CACHE_CONTROL, "no-store"));
    answer
}

/// The only id of the answer, as text.
fn text(mut ids: impl Iterator<Item = u64>) -> HttpResponse {
    let id = ids.next().expect("there are as many as were asked for");
    fresh().content_type("text/plain; charset=utf-8").body(id.to_string())
}

fn texts(ids: impl Iterator<Item = impl Display>) -> Vec<String> {
    ids.map(|id| id.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_one_too_many_says_of_what_and_how_many() {
        let refused = put::<()>(Put::Full, (SEQUENCES_MAX, "sequences"), |_| 0).unwrap_err();
        let expected = "there are 100000 sequences already, and there may be no more".to_owned();
        assert_eq!(refused.code_and_detail(), (Code::Conflict, expected));
    }

    #[test]
    fn what_a_recovered_ledger_may_have_lost_is_refused_without_a_start() {
        let refused = put::<()>(Put::StartUnknown, (SEQUENCES_MAX, "sequences"), |_| 0).unwrap_err();
        let (code, detail) = refused.code_and_detail();
        assert!(code == Code::Conflict && detail.contains("set start"), "{detail}");
    }
}
