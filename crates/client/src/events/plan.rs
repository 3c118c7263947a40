//! What happens to one plan or one of its tasks, as it happens.

use wire::events::{MEDIA_TYPE, PLAN_EVENT};
use wire::plans::PlanEvent;

use super::{Source, pause_before_again};
use crate::events::lines::Said;
use crate::transport::Call;
use crate::{Client, Error, Result};

/// What happens to a plan or a task, from its beginning and without an end.
#[derive(Debug)]
pub struct PlanEvents {
    client: Client,
    /// `plans` or `tasks`.
    of: &'static str,
    id: String,
    source: Option<Source>,
    /// The number of the last event that was seen; 0 before the first.
    last_seq: u64,
}

impl PlanEvents {
    pub(crate) fn of(client: &Client, of: &'static str, id: &str) -> Self {
        Self { client: client.clone(), of, id: id.to_owned(), source: None, last_seq: 0 }
    }

    /// The next event: first those that have happened, then each one that happens. If the stream breaks off, the client
    /// opens it again on any instance, and does not repeat events. After an error this may be called again.
    ///
    /// Cancel safe: no event is lost where the future is dropped. But a dead stream is noticed only by a call that waits
    /// for 45 s.
    ///
    /// # Errors
    /// [`Error`], as any call: `not_found` for a plan or a task that does not exist, or was purged.
    pub async fn next(&mut self) -> Result<PlanEvent> {
        loop {
            let source = match &mut self.source {
                Some(source) => source,
                None => {
                    let source = self.open().await?;
                    self.source.insert(source)
                }
            };
            let event = match source.next().await {
                Ok(Some(Said::Event(event))) if event.kind == PLAN_EVENT => event,
                // A sign of life, or a newer daemon's event.
                Ok(Some(Said::Event(_) | Said::Comment(_))) => continue,
                Ok(None) | Err(Error::Lost { .. }) => {
                    self.source = None;
                    pause_before_again().await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let event: PlanEvent = source.read(&event.data)?;
            if event.seq > self.last_seq {
                self.last_seq = event.seq;
                return Ok(event);
            }
        }
    }

    /// Opens the stream behind the last event that was seen.
    async fn open(&self) -> Result<Source> {
        let path = ["v1", self.of, self.id.as_str(), "events"];
        let last_seq = self.last_seq.to_string();
        let headers = [("Accept", MEDIA_TYPE), ("Last-Event-ID", last_seq.as_str())];
        Source::open(&self.client, &Call { headers: &headers, ..Call::get(&path, &[]) }).await
    }
}
