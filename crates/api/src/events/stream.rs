//! One stream: its place among those that an instance serves, how its lines are written, and when it ends.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use actix_web::web::Bytes;
use futures_util::StreamExt;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use wire::Code;
use wire::events::{EventKind, MEDIA_TYPE};

use crate::limits::{ALL_STREAMS_MAX, EVENT_TAKEN_MAX, JOB_STREAMS_MAX, STREAM_SIGN_EVERY};
use crate::refusal::Refusal;
use crate::server::Incarnation;
use crate::state::State;

/// The streams that an instance serves.
pub struct Streams {
    of_jobs: Arc<Semaphore>,
    of_all: Arc<Semaphore>,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            of_jobs: Arc::new(Semaphore::new(JOB_STREAMS_MAX)),
            of_all: Arc::new(Semaphore::new(ALL_STREAMS_MAX)),
        }
    }
}

impl Streams {
    /// A place for a stream of one job.
    pub fn of_job(&self) -> Result<Place, Refusal> {
        Place::taken(&self.of_jobs, "job", JOB_STREAMS_MAX)
    }

    /// A place for a stream of what happens.
    pub fn of_all(&self) -> Result<Place, Refusal> {
        Place::taken(&self.of_all, "all", ALL_STREAMS_MAX)
    }
}

/// The place of one stream; free again when it is dropped.
pub struct Place {
    of: &'static str,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    fn taken(places: &Arc<Semaphore>, of: &'static str, max: usize) -> Result<Self, Refusal> {
        let permit = Arc::clone(places).try_acquire_owned().map_err(|_| {
            Refusal::new(Code::Overloaded, format!("this instance serves {max} such streams; ask another"))
        })?;
        metrics::gauge!("fencepost_event_streams", "of" => of).increment(1);
        Ok(Self { of, _permit: permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        metrics::gauge!("fencepost_event_streams", "of" => self.of).decrement(1);
    }
}

/// The stream is over: the client is gone or does not read, or this instance is stopping or has begun anew.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended;

/// What is written to one client.
pub struct Line {
    state: Arc<State>,
    incarnation: Arc<Incarnation>,
    out: mpsc::Sender<Bytes>,
    /// When the client is to be shown next that the stream is open.
    sign_at: Instant,
    _place: Place,
}

/// A stream, and the answer that carries it.
pub fn open(state: Arc<State>, incarnation: Arc<Incarnation>, place: Place) -> (Line, HttpResponse) {
    let (out, mut written) = mpsc::channel::<Bytes>(1);
    let sign_at = Instant::now() + STREAM_SIGN_EVERY;
    let line = Line { state, incarnation, out, sign_at, _place: place };
    let body = futures_util::stream::poll_fn(move |context| written.poll_recv(context));
    let answer = HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, MEDIA_TYPE))
        .insert_header((CACHE_CONTROL, "no-store"))
        // Proxies that gather answers are asked not to.
        .insert_header(("x-accel-buffering", "no"))
        .streaming(body.map(Ok::<_, std::convert::Infallible>));
    (line, answer)
}

impl Line {
    /// As whom the stream is served.
    pub fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// Writes an event.
    pub async fn event(
        &mut self,
        kind: EventKind,
        id: Option<&str>,
        data: &impl Serialize,
    ) -> Result<(), Ended> {
        self.write(event(kind, id, data)).await
    }

    /// Writes a line that is no event.
    pub async fn comment(&mut self, text: &str) -> Result<(), Ended> {
        self.write(format!(": {text}\n\n")).await
    }

    /// Waits for what is to be written next, and shows the client meanwhile that the stream is open.
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

    async fn write(&mut self, text: String) -> Result<(), Ended> {
        tokio::select! {
            biased;
            () = self.over() => return Err(Ended),
            sent = tokio::time::timeout(EVENT_TAKEN_MAX, self.out.send(Bytes::from(text))) => match sent {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Ended),
                Err(_) => {
                    metrics::counter!("fencepost_event_streams_cut_off_total").increment(1);
                    tracing::debug!("a client that does not read its stream is cut off");
                    return Err(Ended);
                }
            },
        }
        self.sign_at = Instant::now() + STREAM_SIGN_EVERY;
        Ok(())
    }

    /// Comes back when nothing more is to be written.
    async fn over(&self) {
        tokio::select! {
            () = self.state.traffic.until_draining() => {}
            () = self.incarnation.jobs.until_over() => {}
            () = self.out.closed() => {}
        }
    }
}

/// An event as it is written. JSON may be of several lines: a payload or result is kept as it came.
fn event(kind: EventKind, id: Option<&str>, data: &impl Serialize) -> String {
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
    use wire::Json;

    use super::*;

    #[test]
    fn events_are_lines_whatever_the_json_looks_like() {
        assert_eq!(
            event(EventKind::Job, Some("1.RUNNING"), &Json::parse("{\"a\":\r\n \"b\\n\"}").unwrap()),
            "event: job\nid: 1.RUNNING\ndata: {\"a\":\ndata: \ndata:  \"b\\n\"}\n\n"
        );
        assert_eq!(
            event(EventKind::Progress, None, &Json::parse("1").unwrap()),
            "event: progress\ndata: 1\n\n"
        );
    }

    #[test]
    fn places_are_bounded_and_free_again() {
        let streams = Streams::default();
        let all: Vec<_> = (0..ALL_STREAMS_MAX).map(|_| streams.of_all().unwrap()).collect();
        assert_eq!(streams.of_all().err().map(|refusal| refusal.code()), Some(Code::Overloaded));
        assert!(streams.of_job().is_ok(), "those of jobs have their own");
        drop(all);
        assert!(streams.of_all().is_ok());
    }
}
