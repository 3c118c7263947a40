//! What is read of a frame that is refused, when a socket ends whose client reads slowly or is gone, and which time does not
//! count against a client.

use std::future::poll_fn;
use std::pin::{Pin, pin};

use actix_web::HttpResponse;
use actix_web::body::{MessageBody, to_bytes};
use actix_web::web::Bytes;
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
    let socket = Socket::new(forwarder(state), incarnation, id, caller, watch, (outlet, pauses), cursor);
    Connected { socket, messages, response }
}

#[test]
fn a_frame_that_is_no_object_has_no_ref() {
    assert_eq!(named_in(r#"{"type":"job","ref":"c1"}"#).as_deref(), Some("c1"));
    for text in [r#"["c1"]"#, "[]", "{}", r#""c1""#, r#"{"ref":1}"#, "{"] {
        assert_eq!(named_in(text), None, "{text}");
    }
}

#[actix_web::test]
async fn a_frame_that_is_refused_is_told_which_field_is_wrong() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let Connected { mut socket, response, .. } = connected(&state).await;
    for (fields, says) in [
        (r#""priority":11"#, "priority: invalid value"),
        (r#""metadata":{"a":7}"#, "metadata.a: invalid type"),
    ] {
        socket.on_text(&format!(r#"{{"type":"job","ref":"r","payload":1,{fields}}}"#));
        let Some(SessionFrame::Problem(problem)) = socket.out.pop_front() else { panic!("{says}") };
        assert!(problem.detail.starts_with(says), "{problem:?}");
        assert_eq!(problem.client_ref.as_deref(), Some("r"));
    }
    drop(response);
}

#[actix_web::test]
async fn a_page_that_is_read_slowly_ends_when_the_client_is_not_served_any_more() {
    for code in [CloseCode::Other(close::UNAUTHORIZED), CloseCode::Away] {
        let dir = TempDir::new().unwrap();
        let state = state_with(&dir, Settings::new(Auth::open())).await;
        let Connected { mut socket, response, .. } = connected(&state).await;
        (0..1_000).for_each(|n| socket.problem(None, Code::Invalid, n.to_string()));
        socket.unsent = Some(state.shares.take(Kind::Sending, None, 1 << 20).unwrap());
        socket.tick_at = Instant::now();
        let mut body = response.into_body();
        {
            let mut flush = pin!(socket.flush());
            assert!(flush.as_mut().now_or_never().is_none(), "the client has not read all of them");
            match code {
                CloseCode::Away => state.traffic.drain(),
                _ => state.settings.auth.replace(Vec::new()),
            }
            // It reads those that wait for it, which makes room for as many.
            assert!(poll_fn(|context| Pin::new(&mut body).poll_next(context)).await.is_some());
            assert!(flush.await, "the next frame is not waited for");
        }
        assert!(matches!(&socket.closing, Some(Closing::ByServer(with, _)) if *with == code));
        assert!(socket.out.is_empty() && socket.unsent.is_none());
    }
}

#[actix_web::test]
async fn a_client_that_is_gone_while_its_socket_does_not_read_is_found_by_a_ping() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let Connected { mut socket, response, .. } = connected(&state).await;
    socket.pinged -= CLIENT_PING_EVERY;
    socket.on_tick().await;
    assert!(socket.closing.is_none());
    drop(response);
    socket.pinged -= CLIENT_PING_EVERY;
    socket.on_tick().await;
    assert!(matches!(socket.closing, Some(Closing::Gone)));
}

#[actix_web::test]
async fn only_time_in_which_the_socket_reads_is_a_clients_silence() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    for (pause, is_too_long) in [(Duration::ZERO, true), (2 * CLIENT_SILENT_MAX, false)] {
        let Connected { mut socket, .. } = connected(&state).await;
        let heard = Instant::now().checked_sub(2 * CLIENT_SILENT_MAX).unwrap();
        socket.heard = socket.pauses.since(heard);
        socket.pauses.add(pause);
        socket.on_tick().await;
        assert_eq!(matches!(socket.closing, Some(Closing::ByServer(CloseCode::Away, _))), is_too_long);
        socket.on_message(AggregatedMessage::Pong(Bytes::new())).await;
        assert!(socket.heard.at() > heard, "a message ends the silence, whatever it is");
    }
}

#[actix_web::test]
async fn the_time_in_which_frames_wait_to_be_sent_to_a_client_does_not_count_against_it() {
    let dir = TempDir::new().unwrap();
    let state = state_with(&dir, Settings::new(Auth::open())).await;
    let Connected { mut socket, messages, response } = connected(&state).await;
    let pauses = socket.pauses.clone();
    socket.problem(None, Code::Invalid, "a frame".to_owned());
    let begin = Instant::now();
    let since = pauses.since(begin);
    let (sent, ()) = tokio::join!(to_bytes(response.into_body()), socket.run(messages));
    assert!(!sent.unwrap().is_empty());
    let now = Instant::now();
    assert!(pauses.read_since(since, now) < now.duration_since(begin));
}
