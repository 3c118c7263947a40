//! Spans of requests and jobs, and the header `traceparent` of W3C Trace Context by which others continue them.
//!
//! ```text
//! request ──▶ submit ──▶ dispatch ──▶ (the node's own span) ──▶ result
//! ```
//!
//! Without a tracer nothing here makes a span, and a job carries the caller's own `traceparent` to its node. What must never
//! live here: anything that waits for a collector. A span that ends goes into a queue of the tracer, or is dropped.

use std::collections::HashMap;
use std::num::{NonZeroU64, NonZeroU128};
use std::sync::OnceLock;

use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actors::jobs::{Accepted, Submission};
use bus::Slot;
use domain::{NodeId, TraceParent};
use nodes::connection::{Dispatch, ToNode};
use opentelemetry::global::{self, BoxedSpan, BoxedTracer};
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    Tracer as _,
};
use opentelemetry::{Context, KeyValue};

use crate::limits::ATTEMPT_TRACES_MAX;
use crate::request_id::RequestId;

/// The name of the header.
pub const TRACEPARENT_NAME: &str = "traceparent";
static TRACEPARENT: HeaderName = HeaderName::from_static(TRACEPARENT_NAME);

static TRACER: OnceLock<BoxedTracer> = OnceLock::new();

/// Makes spans from now on, by the tracer provider that `opentelemetry` has for the process.
pub fn start_traces() {
    let _ = TRACER.set(global::tracer("fencepost"));
}

/// The span that a request continues. Of several headers none counts, nor does one that the W3C says to ignore.
pub fn of_request(headers: &HeaderMap) -> Option<TraceParent> {
    let mut given = headers.get_all(&TRACEPARENT);
    let (only, another) = (given.next()?, given.next());
    another.is_none().then(|| only.to_str().ok()).flatten().and_then(TraceParent::parse)
}

/// A span that has begun. It ends when it is dropped.
#[derive(Debug)]
pub struct Span(BoxedSpan);

impl Span {
    fn start(
        name: impl Into<String>,
        kind: SpanKind,
        continues: Option<TraceParent>,
        attributes: impl IntoIterator<Item = KeyValue>,
    ) -> Option<Self> {
        let tracer = TRACER.get()?;
        let context = continues.map_or_else(Context::new, |parent| {
            let (trace_id, span_id) =
                (parent.trace_id.get().to_be_bytes(), parent.span_id.get().to_be_bytes());
            Context::new().with_remote_span_context(SpanContext::new(
                TraceId::from_bytes(trace_id),
                SpanId::from_bytes(span_id),
                TraceFlags::new(parent.flags()),
                true,
                TraceState::NONE,
            ))
        });
        let span = tracer.span_builder(name.into()).with_kind(kind).with_attributes(attributes);
        Some(Self(tracer.build_with_context(span, &context)))
    }

    /// What its children continue.
    fn parent(&self) -> Option<TraceParent> {
        let context = self.0.span_context();
        let trace_id = NonZeroU128::new(u128::from_be_bytes(context.trace_id().to_bytes()))?;
        let span_id = NonZeroU64::new(u64::from_be_bytes(context.span_id().to_bytes()))?;
        Some(TraceParent::new(trace_id, span_id, context.trace_flags().to_u8()))
    }

    /// The trace, as a log line names it.
    pub fn trace_id(&self) -> String {
        self.0.span_context().trace_id().to_string()
    }

    fn note(&mut self, key: &'static str, value: impl Into<opentelemetry::Value>) {
        self.0.set_attribute(KeyValue::new(key, value));
    }
}

/// Begins the span of a request, and names it in the request's header: whatever the request leads to continues this span,
/// on this instance and on one that it is forwarded to.
pub fn request(
    method: &'static str,
    route: &'static str,
    id: &RequestId,
    headers: &mut HeaderMap,
) -> Option<Span> {
    TRACER.get()?;
    let attributes = [
        KeyValue::new("http.request.method", method),
        KeyValue::new("http.route", route),
        KeyValue::new("fencepost.request_id", id.to_string()),
    ];
    let span = Span::start(format!("{method} {route}"), SpanKind::Server, of_request(headers), attributes)?;
    let parent = span.parent()?.to_string();
    headers
        .insert(TRACEPARENT.clone(), HeaderValue::from_str(&parent).expect("hexadecimal digits and hyphens"));
    Some(span)
}

/// Ends the span of a request.
pub fn answered(mut span: Span, status: StatusCode, principal: Option<&str>) {
    span.note("http.response.status_code", i64::from(status.as_u16()));
    if let Some(principal) = principal.filter(|name| !name.is_empty()) {
        span.note("fencepost.principal", principal.to_owned());
    }
    if status.is_server_error() {
        span.0.set_status(Status::error(""));
    }
}

/// Begins the span of a submission, which the attempts of its jobs continue. Without a tracer they continue the caller's
/// span.
pub fn submit(continues: Option<TraceParent>, submissions: &mut [Submission]) -> Option<Span> {
    if submissions.is_empty() {
        return None;
    }
    let count = KeyValue::new("fencepost.jobs", submissions.len() as i64);
    let span = Span::start("submit", SpanKind::Producer, continues, [count]);
    if let Some(continued) = span.as_ref().map_or(continues, Span::parent) {
        submissions.iter_mut().for_each(|submission| submission.spec.traceparent = Some(continued));
    }
    span
}

/// Ends the span of a submission.
pub fn submitted<E>(span: Option<Span>, answers: &[Result<Accepted, E>]) {
    let Some(mut span) = span else { return };
    let accepted = answers.iter().filter(|answer| answer.is_ok()).count();
    span.note("fencepost.accepted", accepted as i64);
    if let [Ok(Accepted { id, .. })] = answers {
        span.note("fencepost.job", id.to_string());
    }
}

/// The traces of the attempts that one node's connection has. Empty without a tracer.
#[derive(Debug, Default)]
pub struct AttemptTraces(HashMap<Slot, AttemptTrace>);

#[derive(Debug, Default)]
struct AttemptTrace {
    /// The span `dispatch`.
    dispatched: Option<TraceParent>,
    /// The span `result`, from the result's arrival until the node hears that it is durable or stale.
    result: Option<Span>,
}

impl AttemptTraces {
    /// The node is being sent this. An attempt of a job that has a trace gets a span, which the node continues.
    pub fn sent(&mut self, frame: &mut ToNode, node: Option<&NodeId>) {
        if TRACER.get().is_none() {
            return;
        }
        match frame {
            ToNode::Dispatch(Dispatch { slot, node_job }) => {
                let Some(submitted) = node_job.traceparent else { return };
                let span = Span::start("dispatch", SpanKind::Producer, Some(submitted), about(*slot, node));
                let dispatched = span.as_ref().and_then(Span::parent);
                node_job.traceparent = dispatched;
                self.insert(*slot, AttemptTrace { dispatched, result: None });
            }
            ToNode::Committed(slot) => self.settled(*slot, "committed"),
            ToNode::Stale(slot) => self.settled(*slot, "stale"),
            ToNode::Welcome { .. } | ToNode::HeartbeatOk { .. } | ToNode::Cancel(_) => {}
        }
    }

    /// A result has arrived from the node, which may have a span of its own.
    pub fn arrived(
        &mut self,
        slot: Slot,
        nodes_own: Option<TraceParent>,
        is_good: bool,
        node: Option<&NodeId>,
    ) {
        if TRACER.get().is_none() {
            return;
        }
        let known = self.0.get(&slot);
        let Some(continues) = nodes_own.or_else(|| known.and_then(|trace| trace.dispatched)) else { return };
        // A result may arrive again.
        if known.is_none_or(|trace| trace.result.is_none()) {
            let attributes = about(slot, node).chain([KeyValue::new("fencepost.ok", is_good)]);
            let result = Span::start("result", SpanKind::Consumer, Some(continues), attributes);
            let dispatched = known.and_then(|trace| trace.dispatched);
            self.insert(slot, AttemptTrace { dispatched, result });
        }
    }

    /// The node does not have the attempt any more, and may never have answered it.
    pub fn freed(&mut self, slot: Slot) {
        if self.0.get(&slot).is_some_and(|trace| trace.result.is_none()) {
            self.0.remove(&slot);
        }
    }

    fn settled(&mut self, slot: Slot, verdict: &'static str) {
        if let Some(AttemptTrace { result: Some(mut result), .. }) = self.0.remove(&slot) {
            result.note("fencepost.verdict", verdict);
        }
    }

    fn insert(&mut self, slot: Slot, trace: AttemptTrace) {
        if self.0.len() >= ATTEMPT_TRACES_MAX {
            // Only a node that names attempts that it does not have comes here.
            self.0.clear();
        }
        self.0.insert(slot, trace);
    }
}

fn about(slot: Slot, node: Option<&NodeId>) -> impl Iterator<Item = KeyValue> + use<> {
    let job = KeyValue::new("fencepost.job", slot.job.to_string());
    let attempt = KeyValue::new("fencepost.attempt", i64::from(slot.attempt.get()));
    let node = node.map(|node| KeyValue::new("fencepost.node", node.to_string()));
    [job, attempt].into_iter().chain(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_header_that_can_be_read_counts_and_several_count_for_none() {
        const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let read = |values: &[&'static [u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(TRACEPARENT.clone(), HeaderValue::from_bytes(value).unwrap());
            }
            of_request(&headers)
        };
        assert_eq!(read(&[GOOD.as_bytes()]), TraceParent::parse(GOOD));
        for bad in [&[][..], &[GOOD.as_bytes(), GOOD.as_bytes()], &[b"00-\xff"], &[b"00-0-0-0"]] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
