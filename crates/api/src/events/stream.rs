//! One stream: its place among those of its kind, how its lines are written, and when it ends.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use actix_web::web::Bytes;
use futures_util::StreamExt;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;
use wire::events::MEDIA_TYPE;

use crate::auth::Principal;
use crate::limits::{EVENT_TAKEN_MAX, STREAM_RETRY, STREAM_SIGN_EVERY, UNCOUNTED_BYTES_MAX};
use crate::refusal::Refusal;
use crate::services::Incarnation;
use crate::shares::{Kind, Share};
use crate::state::State;

/// The place of a stream; free again when it is dropped.
pub struct Place {
    of: &'static str,
    _share: Share,
}

impl Place {
    /// A place for a stream of this kind, whose gauge has this label.
    ///
    /// # Errors
    /// The instance serves as many as it may, or the caller's token has as many.
    pub fn take(state: &State, principal: &Principal, kind: Kind, of: &'static str) -> Result<Self, Refusal> {
        let share = state.shares.take(kind, principal.used(), 1)?;
        metrics::gauge!("fencepost_event_streams", "of" => of).increment(1);
        Ok(Self { of, _share: share })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        metrics::gauge!("fencepost_event_streams", "of" => self.of).decrement(1);
    }
}

/// The stream has ended: the client has left or does not read, its token is good no more, or this
/// instance stops or serves as a new incarnation.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended;

/// The writing end of one client's stream.
pub struct SseWriter {
    state: Arc<State>,
    incarnation: Arc<Incarnation>,
    principal: Arc<Principal>,
    out: mpsc::Sender<Bytes>,
    /// When the next comment line is due.
    sign_at: Instant,
    /// The share of the newest event, if that is large.
    unsent: Option<Share>,
    _place: Place,
}

/// A stream, and the answer that carries it.
pub fn open(
    state: Arc<State>,
    incarnation: Arc<Incarnation>,
    principal: Arc<Principal>,
    place: Place,
) -> (SseWriter, HttpResponse) {
    let (out, mut written) = mpsc::channel::<Bytes>(1);
    let sign_at = Instant::now() + STREAM_SIGN_EVERY;
    let writer = SseWriter { state, incarnation, principal, out, sign_at, unsent: None, _place: place };
    let first = format!("retry: {}\n\n", STREAM_RETRY.as_millis());
    writer.out.try_send(Bytes::from(first)).expect("the channel is new and has room for one");
    let body = futures_util::stream::poll_fn(move |context| written.poll_recv(context));
    let answer = HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, MEDIA_TYPE))
        .insert_header((CACHE_CONTROL, "no-store"))
        // Asks proxies not to buffer the answer.
        .insert_header(("x-accel-buffering", "no"))
        .streaming(body.map(Ok::<_, std::convert::Infallible>));
    (writer, answer)
}

impl SseWriter {
    /// The incarnation that serves the stream.
    pub fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// Writes an event.
    pub async fn event(&mut self, kind: &str, id: Option<&str>, data: &impl Serialize) -> Result<(), Ended> {
        self.write(event(kind, id, data)).await
    }

    /// Writes events that are written already.
    pub async fn batch(&mut self, batch: Bytes) -> Result<(), Ended> {
        self.write(batch).await
    }

    /// Writes a line that is no event.
    pub async fn comment(&mut self, text: &str) -> Result<(), Ended> {
        self.write(comment(text)).await
    }

    /// Waits for the next event, and writes a comment line now and then meanwhile, so that the client knows that the
    /// stream is open.
    pub async fn beside<T>(&mut self, next: impl Future<Output = T>) -> Result<T, Ended> {
        let mut next = pin!(next);
        loop {
            let sign_at = self.sign_at;
            tokio::select! {
                biased;
                () = self.over() => return Err(Ended),
                next = &mut next => return Ok(next),
                () = tokio::time::sleep_until(sign_at) => {}
            }
            self.comment("still here").await?;
        }
    }

    async fn write(&mut self, text: impl Into<Bytes>) -> Result<(), Ended> {
        let text = text.into();
        let unsent = self.count_unsent(text.len())?;
        tokio::select! {
            biased;
            () = self.over() => return Err(Ended),
            sent = tokio::time::timeout(EVENT_TAKEN_MAX, self.out.send(text)) => match sent {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Ended),
                Err(_) => {
                    metrics::counter!("fencepost_event_streams_cut_off_total").increment(1);
                    tracing::debug!("a client that does not read its stream is cut off");
                    return Err(Ended);
                }
            },
        }
        // The one before has been taken.
        self.unsent = unsent;
        self.sign_at = Instant::now() + STREAM_SIGN_EVERY;
        Ok(())
    }

    /// Counts the bytes of a large event. Without room for it the stream ends; its client asks again.
    fn count_unsent(&self, bytes: usize) -> Result<Option<Share>, Ended> {
        if bytes <= UNCOUNTED_BYTES_MAX {
            return Ok(None);
        }
        let share = self.state.shares.take(Kind::Sending, self.principal.used(), bytes);
        share.map(Some).map_err(|reached| {
            metrics::counter!("fencepost_event_streams_cut_off_total").increment(1);
            tracing::debug!(%reached, "there is no room for a stream's next event");
            Ended
        })
    }

    /// Resolves when the stream has ended.
    async fn over(&self) {
        tokio::select! {
            () = self.state.traffic.until_draining() => {}
            () = self.incarnation.jobs.until_over() => {}
            () = self.out.closed() => {}
            () = self.state.settings.auth.until_less(&self.principal) => {}
        }
    }
}

/// A line that is no event, as it is written.
pub fn comment(text: &str) -> String {
    format!(": {text}\n\n")
}

/// An event as it is written. JSON may have several lines: payloads and results are kept as they came.
pub fn event(kind: &str, id: Option<&str>, data: &impl Serialize) -> String {
    let json = serde_json::to_string(data).expect("it has text keys only");
    let mut text = format!("event: {kind}\n");
    if let Some(id) = id {
        text.push_str(&format!("id: {id}\n"));
    }
    for line in json.split(['\n', '\r']) {
        text.push_str("data: ");
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use actix_web::body::MessageBody;
    use actix_web::test::TestRequest;
    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
    use tempfile::TempDir;
    use wire::Json;

    use super::*;
    use crate::auth::Auth;
    use crate::limits::Limit;
    use crate::settings::Settings;
    use crate::tests::state_with;

    /// A stream of all events, to which nothing is written yet.
    fn opened(state: &Arc<State>) -> (SseWriter, HttpResponse) {
        let principal = Principal::of(&TestRequest::get().to_http_request());
        let place = Place::take(state, &principal, Kind::AllStreams, "all").unwrap();
        open(Arc::clone(state), state.incarnation(), principal, place)
    }

    fn is_cut_off_counted(counted: &PrometheusHandle) -> bool {
        counted.render().lines().any(|line| line == "fencepost_event_streams_cut_off_total 1")
    }

    #[test]
    fn events_are_lines_whatever_the_json_looks_like() {
        assert_eq!(
            event("job", Some("1.RUNNING"), &Json::parse("{\"a\":\r\n \"b\\n\"}").unwrap()),
            "event: job\nid: 1.RUNNING\ndata: {\"a\":\ndata: \ndata:  \"b\\n\"}\n\n"
        );
        assert_eq!(event("progress", None, &Json::parse("1").unwrap()), "event: progress\ndata: 1\n\n");
    }

    #[actix_web::test]
    async fn a_client_that_does_not_take_an_event_in_its_time_is_cut_off_and_counted() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let counted = recorder.handle();
        let _counting = metrics::set_default_local_recorder(&recorder);
        let dir = TempDir::new().unwrap();
        let state = state_with(&dir, Settings::new(Auth::open())).await;
        // Nobody reads the answer, and its first line takes all the room.
        let (mut writer, _answer) = opened(&state);
        tokio::time::pause();
        let mut event = pin!(writer.comment("1"));
        let second = Duration::from_secs(1);
        let early = tokio::time::timeout(EVENT_TAKEN_MAX - second, &mut event).await;
        assert!(early.is_err() && !is_cut_off_counted(&counted), "the client has time");
        let ended = tokio::time::timeout(2 * second, event).await;
        assert_eq!(ended.expect("the time is over"), Err(Ended));
        assert!(is_cut_off_counted(&counted), "{}", counted.render());
    }

    #[actix_web::test]
    async fn a_stream_without_room_for_a_large_event_is_cut_off_and_counted() {
        const ROOM: usize = 2 * UNCOUNTED_BYTES_MAX;
        let recorder = PrometheusBuilder::new().build_recorder();
        let counted = recorder.handle();
        let _counting = metrics::set_default_local_recorder(&recorder);
        let dir = TempDir::new().unwrap();
        let sending_bytes = Limit { in_all: ROOM, of_token: ROOM };
        let state = state_with(&dir, Settings { sending_bytes, ..Settings::new(Auth::open()) }).await;
        let (mut writer, answer) = opened(&state);
        let mut body = pin!(answer.into_body());
        let mut taken = async || {
            let read = poll_fn(|context| body.as_mut().poll_next(context)).await;
            read.expect("the stream is open").unwrap().len()
        };
        taken().await;
        // A large event counts until the one behind it is taken, and a small one needs no room.
        for (bytes, in_use) in
            [(ROOM, ROOM), (UNCOUNTED_BYTES_MAX, 0), (UNCOUNTED_BYTES_MAX + 1, UNCOUNTED_BYTES_MAX + 1)]
        {
            assert_eq!(writer.batch(Bytes::from(vec![b'x'; bytes])).await, Ok(()), "{bytes}");
            assert_eq!((taken().await, state.shares.in_use(Kind::Sending)), (bytes, in_use));
        }
        assert!(!is_cut_off_counted(&counted), "{}", counted.render());
        let event = Bytes::from(vec![b'x'; UNCOUNTED_BYTES_MAX + 1]);
        assert_eq!(writer.batch(event).await, Err(Ended));
        assert!(is_cut_off_counted(&counted), "{}", counted.render());
        drop(writer);
        assert_eq!(state.shares.in_use(Kind::Sending), 0);
    }
}
