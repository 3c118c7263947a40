//! What happens to one plan or one of its tasks, as it happens.

use wire::events::{MEDIA_TYPE, PLAN_EVENT};
use wire::plans::PlanEvent;

use super::Followed;
use crate::transport::Call;
use crate::{Client, Result};

/// What happens to a plan or a task, from its beginning and without an end.
#[derive(Debug)]
pub struct PlanEvents {
    stream: Followed,
    /// `plans` or `tasks`.
    of: &'static str,
    id: String,
    /// The number of the last event that was seen; 0 before the first.
    last_seq: u64,
}

impl PlanEvents {
    pub(crate) fn of(client: &Client, of: &'static str, id: &str) -> Self {
        Self { stream: Followed::new(client), of, id: id.to_owned(), last_seq: 0 }
    }

    /// The next event: first those that have happened, then each one that happens. If the stream breaks off, the client
    /// opens it again on any instance, and does not repeat events. After an error this may be called again.
    ///
    /// Cancel safe: no event is lost where the future is dropped. But a dead stream is noticed only by a call that waits
    /// for 45 s.
    ///
    /// # Errors
    /// [`crate::Error`], as any call: `not_found` for a plan or a task that does not exist, or was purged.
    pub async fn next(&mut self) -> Result<PlanEvent> {
        let path = ["v1", self.of, self.id.as_str(), "events"];
        let last_seq = self.last_seq.to_string();
        let headers = [("Accept", MEDIA_TYPE), ("Last-Event-ID", last_seq.as_str())];
        let call = Call { headers: &headers, ..Call::get(&path, &[]) };
        loop {
            let event = self.stream.next(&call).await?;
            // Any other is a newer daemon's.
            if event.kind == PLAN_EVENT {
                let event: PlanEvent = self.stream.read(&event.data)?;
                if event.seq > self.last_seq {
                    self.last_seq = event.seq;
                    return Ok(event);
                }
            }
        }
    }
}
