//! Streams of events: those of one job to its end, those of one plan or task, and all events.

mod lines;
mod plan;

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, Url};
use serde::de::DeserializeOwned;
use wire::events::{ClusterEvent, EventKind, JobEvent, LEFT_OUT, MEDIA_TYPE, NodeEvent, ProgressEvent};
use wire::jobs::{Job, JobState};

use crate::base_url::shown;
use crate::transport::{ANSWER_BYTES_MAX, Call, of_reading};
use crate::{Client, Error, Jobs, Result};
use lines::{Lines, Said, Whole};
pub use plan::PlanEvents;

/// A stream without a byte for this long counts as dead. The daemon sends a comment three times within it.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// The pause before a stream that ended too early is opened again, before jitter.
const AGAIN_PAUSE: Duration = Duration::from_millis(200);

/// An event of one job.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum JobUpdate {
    /// The job as it is now, without its payload.
    Job(Box<Job>),
    /// The progress of its newest attempt.
    Progress(ProgressEvent),
}

/// Something that happened, as one instance sees it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A job's state has changed.
    Job(JobEvent),
    /// The progress of a job's attempt.
    Progress(ProgressEvent),
    /// A node connected, disconnected or changed.
    Node(NodeEvent),
    /// An instance joined or left, or the mode has changed.
    Cluster(ClusterEvent),
    /// Some events were left out.
    Missed,
}

/// One job, followed to its end.
#[derive(Debug)]
pub struct JobEvents {
    stream: Followed,
    id: String,
    shown: Option<(JobState, u32)>,
}

/// All events from the opening of the stream on.
#[derive(Debug)]
pub struct Events {
    source: Source,
}

/// A stream that is opened again where it breaks off.
#[derive(Debug)]
struct Followed {
    client: Client,
    source: Option<Source>,
}

/// An open stream.
#[derive(Debug)]
struct Source {
    base: Url,
    response: Response,
    lines: Lines,
    said: VecDeque<Said>,
}

impl Jobs<'_> {
    /// Follows a job to its end. Nothing is sent before the first [`JobEvents::next`].
    #[must_use]
    pub fn events(&self, id: &str) -> JobEvents {
        JobEvents { stream: Followed::new(self.client()), id: id.to_owned(), shown: None }
    }
}

impl Client {
    /// Streams all events, or those of these kinds, as one instance sees them (scope `admin`).
    ///
    /// # Errors
    /// [`Error`].
    pub async fn events(&self, kinds: &[EventKind]) -> Result<Events> {
        let names: Vec<_> = kinds.iter().map(|kind| kind.as_str()).collect();
        let query = [("kinds", names.join(","))];
        let query = if kinds.is_empty() { &[][..] } else { &query[..] };
        Ok(Events { source: Source::open(self, &Call::get(&["v1", "events"], query)).await? })
    }
}

impl JobEvents {
    /// The next event: first the job as it stands, then each change and its progress; `None` after the job is
    /// FINISHED. If the stream breaks off, the client opens it again on any instance, and does not repeat
    /// events. After an error this may be called again.
    ///
    /// Cancel safe: no event is lost where the future is dropped. But a dead stream is noticed only by a call that waits
    /// for 45 s.
    ///
    /// # Errors
    /// [`Error`], as any call: `not_found` for a job that does not exist.
    pub async fn next(&mut self) -> Result<Option<JobUpdate>> {
        let path = ["v1", "jobs", self.id.as_str(), "events"];
        while !matches!(self.shown, Some((JobState::Finished, _))) {
            let event = self.stream.next(&Call::get(&path, &[])).await?;
            match EventKind::parse(&event.kind) {
                Some(EventKind::Job) => {
                    let job: Job = self.stream.read(&event.data)?;
                    if self.shown.replace((job.state, job.attempt)) != Some((job.state, job.attempt)) {
                        return Ok(Some(JobUpdate::Job(Box::new(job))));
                    }
                }
                Some(EventKind::Progress) => {
                    return Ok(Some(JobUpdate::Progress(self.stream.read(&event.data)?)));
                }
                // A newer daemon's.
                Some(EventKind::Node | EventKind::Cluster) | None => {}
            }
        }
        Ok(None)
    }
}

impl Events {
    /// The next event; `None` when the stream has ended because the instance is stopping or continues under a
    /// new id.
    ///
    /// Cancel safe: no event is lost where the future is dropped. But a dead stream is noticed only by a call that waits
    /// for 45 s.
    ///
    /// # Errors
    /// [`Error::Lost`] if the stream broke off: open another one with [`Client::events`].
    pub async fn next(&mut self) -> Result<Option<Event>> {
        let source = &mut self.source;
        loop {
            let (kind, data) = match source.next().await? {
                None => return Ok(None),
                Some(Said::Event(event)) => (event.kind, event.data),
                Some(Said::Comment(text)) if text == LEFT_OUT => return Ok(Some(Event::Missed)),
                Some(Said::Comment(_)) => continue,
            };
            return Ok(Some(match EventKind::parse(&kind) {
                Some(EventKind::Job) => Event::Job(source.read(&data)?),
                Some(EventKind::Progress) => Event::Progress(source.read(&data)?),
                Some(EventKind::Node) => Event::Node(source.read(&data)?),
                Some(EventKind::Cluster) => Event::Cluster(source.read(&data)?),
                None => continue,
            }));
        }
    }
}

/// Whether an answer says that it is a stream of events. Any other one has none, and its end would be taken for a stream that
/// broke off.
fn is_stream(response: &Response) -> bool {
    let said = response.headers().get(CONTENT_TYPE).and_then(|said| said.to_str().ok()).unwrap_or_default();
    said.split(';').next().is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case(MEDIA_TYPE))
}

impl Followed {
    fn new(client: &Client) -> Self {
        Self { client: client.clone(), source: None }
    }

    /// The next event. `call` opens the stream, for the first time and again.
    async fn next(&mut self, call: &Call<'_, ()>) -> Result<Whole> {
        loop {
            let source = match &mut self.source {
                Some(source) => source,
                None => self.source.insert(Source::open(&self.client, call).await?),
            };
            match source.next().await {
                Ok(Some(Said::Event(event))) => return Ok(event),
                // A sign of life.
                Ok(Some(Said::Comment(_))) => {}
                Ok(None) | Err(Error::Lost { .. }) => {
                    self.source = None;
                    tokio::time::sleep(AGAIN_PAUSE.mul_f64(rand::random_range(0.5..1.5))).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads what the last event carries.
    fn read<T: DeserializeOwned>(&self, data: &str) -> Result<T> {
        self.source.as_ref().expect("the event came from it").read(data)
    }
}

impl Source {
    async fn open(client: &Client, call: &Call<'_, ()>) -> Result<Self> {
        let (base, response) = client.open(call).await?;
        if !is_stream(&response) {
            let (url, status) = (shown(&base), response.status().as_u16());
            return Err(Error::Unexpected { url, status, reason: "it is no event stream".to_owned() });
        }
        Ok(Self { base, response, lines: Lines::default(), said: VecDeque::new() })
    }

    /// `None` at the end.
    async fn next(&mut self) -> Result<Option<Said>> {
        loop {
            if let Some(said) = self.said.pop_front() {
                return Ok(Some(said));
            }
            let chunk = match tokio::time::timeout(SILENCE_MAX, self.response.chunk()).await {
                Ok(chunk) => chunk.map_err(|error| of_reading(&self.base, error))?,
                Err(_) => {
                    let reason = "nothing was received for too long".to_owned();
                    return Err(Error::Lost { url: shown(&self.base), reason, source: None });
                }
            };
            let Some(chunk) = chunk else { return Ok(None) };
            self.said.extend(self.lines.read(&chunk));
            if self.lines.held() > ANSWER_BYTES_MAX {
                return Err(self.strange(format!("an event is longer than {ANSWER_BYTES_MAX} bytes")));
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, data: &str) -> Result<T> {
        serde_json::from_str(data).map_err(|error| self.strange(error.to_string()))
    }

    fn strange(&self, reason: String) -> Error {
        Error::Unexpected { url: shown(&self.base), status: 200, reason }
    }
}
