//! What is read of a frame that is refused, and which time does not count against a client.

use actix_web::HttpResponse;
use actix_web::body::to_bytes;
use actors::jobs::Topic;
use domain::LaneId;
use tempfile::TempDir;

use super::*;
use crate::auth::Auth;
use crate::settings::Settings;
use crate::tests::{forwarder, opened, state_with};
use crate::websocket::Opened;

/// A client's socket, and its two sides.
struct Connected {
    socket: Socket,
    messages: AggregatedMessageStream,
    pauses: Pauses,
    response: HttpResponse,
}

async fn connected(state: &Arc<State>) -> Connected {
    let (request, Opened { response, outlet, messages, pauses, .. }) = opened(state).await;
    let (id, incarnation) = (SessionId::parse("one").unwrap(), state.incarnation());
    let watch = incarnation.jobs.watch(Topic::Lane(LaneId::session(&id))).unwrap();
    let caller = Caller {
        forwarded: ForwardedRequest::brought(&request, Vec::new()),
        principal: Principal::of(&request),
    };
    let cursor = Cursor::behind(0, true);
    let socket = Socket::new(forwarder(state), incarnation, id, caller, watch, outlet, cursor);
    Connected { socket, messages, pauses, response }
}

#[test]
fn a_frame_that_is_no_object_has_no_ref() {
    assert_eq!(named_in(r#"{"type":"job","ref":"c1"}"#).as_deref(), Some("c1"));
    for text in [r#"["c1"]"#, "[]", "{}", r#""c1""#, r#"{"ref":1}"#, "{"] {
        assert_eq!(named_in(text), None, "{text}");
    }
}

#[actix_web::test]
async fn the_time_in_which_frames_wait_to_be_sent_to_a_client_does_not_count_against_it() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let Connected { mut socket, messages, pauses, response } = connected(&state).await;
    socket.problem(None, Code::Invalid, "a frame".to_owned());
    let begin = Instant::now();
    let since = pauses.since(begin);
    let (sent, ()) = tokio::join!(to_bytes(response.into_body()), socket.run(messages, pauses.clone()));
    assert!(!sent.unwrap().is_empty());
    let now = Instant::now();
    assert!(pauses.read_since(since, now) < now.duration_since(begin));
}
