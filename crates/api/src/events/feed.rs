//! The task of one feed: it reads the events, writes each of them once, and hands them in batches to the streams that
//! follow it.

use std::sync::Arc;
use std::time::Duration;

use actix_web::web::Bytes;
use actors::jobs::Topic;
use tokio::sync::broadcast::{Receiver, Sender};
use tokio::time::{Instant, sleep_until};
use wire::events::{DIGEST_EVENT, DigestEvent, EventKind};

use super::stream;
use super::world::{Event, World};
use crate::event_feeds::{FeedKind, Joined};
use crate::limits::{DIGEST_EVERY, EVENT_BATCH_BYTES_MAX, EVENTS_GATHERED};
use crate::refusal::Refusal;
use crate::services::Incarnation;
use crate::state::State;

/// Joins the feed of this kind, and starts it where there is none.
///
/// # Errors
/// The instance watches too much already.
pub fn join(
    state: &Arc<State>,
    incarnation: &Arc<Incarnation>,
    of: &FeedKind,
) -> Result<Receiver<Bytes>, Refusal> {
    let start = || -> Result<World, Refusal> {
        let jobs = of.kinds.iter().any(|kind| matches!(kind, EventKind::Job | EventKind::Progress));
        let watch = jobs.then(|| incarnation.jobs.watch(Topic::All)).transpose()?;
        Ok(World::new(incarnation, of.kinds.clone(), watch))
    };
    let Joined { batches, new } = state.event_feeds.join(of, incarnation, start)?;
    if let Some((out, world)) = new {
        let batch =
            if of.is_digest { Batch::Digest(DigestEvent::default()) } else { Batch::Text(String::new()) };
        state.spawn(run(Arc::clone(state), Arc::clone(incarnation), world, batch, out));
    }
    Ok(batches)
}

async fn run(
    state: Arc<State>,
    incarnation: Arc<Incarnation>,
    mut world: World,
    mut batch: Batch,
    mut out: Sender<Bytes>,
) {
    let mut next_at = Instant::now();
    loop {
        let first = tokio::select! {
            biased;
            () = incarnation.jobs.until_over() => return,
            () = out.closed() => match state.event_feeds.leave(out) {
                Some(again) => {
                    out = again;
                    continue;
                }
                None => return,
            },
            event = world.next() => event,
        };
        batch.add(first);
        // Those that come before the next batch may leave.
        while !batch.is_full() {
            tokio::select! {
                biased;
                () = incarnation.jobs.until_over() => return,
                () = sleep_until(next_at) => break,
                event = world.next() => batch.add(event),
            }
        }
        // Without a receiver the loop ends in a moment.
        let _ = out.send(batch.take());
        next_at = Instant::now() + batch.every();
    }
}

/// What is sent together.
enum Batch {
    /// The events themselves.
    Text(String),
    /// Their numbers.
    Digest(DigestEvent),
}

impl Batch {
    /// Adds an event; `None` where events were missed.
    fn add(&mut self, event: Option<Event>) {
        match (self, event) {
            (Self::Text(text), Some((kind, json))) => {
                text.push_str(&stream::event(kind.as_str(), None, &json))
            }
            (Self::Text(text), None) => text.push_str(stream::LEFT_OUT),
            (Self::Digest(digest), Some((kind, _))) => match kind {
                EventKind::Job => digest.job += 1,
                EventKind::Progress => digest.progress += 1,
                EventKind::Node => digest.node += 1,
                EventKind::Cluster => digest.cluster += 1,
            },
            (Self::Digest(digest), None) => digest.missed = true,
        }
    }

    fn is_full(&self) -> bool {
        matches!(self, Self::Text(text) if text.len() >= EVENT_BATCH_BYTES_MAX)
    }

    const fn every(&self) -> Duration {
        match self {
            Self::Text(_) => EVENTS_GATHERED,
            Self::Digest(_) => DIGEST_EVERY,
        }
    }

    /// The bytes of the batch; the next one begins.
    fn take(&mut self) -> Bytes {
        Bytes::from(match self {
            Self::Text(text) => std::mem::take(text),
            Self::Digest(digest) => stream::event(DIGEST_EVENT, None, &std::mem::take(digest)),
        })
    }
}

#[cfg(test)]
mod tests {
    use wire::Json;

    use super::*;

    #[test]
    fn a_batch_has_the_events_in_their_order_and_a_digest_their_numbers() {
        let event = |kind| Some((kind, Json::parse("1").unwrap()));
        let mut texts = Batch::Text(String::new());
        let mut digest = Batch::Digest(DigestEvent::default());
        for batch in [&mut texts, &mut digest] {
            batch.add(event(EventKind::Job));
            batch.add(None);
            batch.add(event(EventKind::Node));
            batch.add(event(EventKind::Job));
        }
        let written = "event: job\ndata: 1\n\n: some events were left out\n\nevent: node\ndata: 1\n\nevent: job\ndata: 1\n\n";
        assert_eq!(texts.take(), written);
        let counted =
            "event: digest\ndata: {\"job\":2,\"progress\":0,\"node\":1,\"cluster\":0,\"missed\":true}\n\n";
        assert_eq!(digest.take(), counted);
        for _ in 0..EVENT_BATCH_BYTES_MAX {
            texts.add(event(EventKind::Job));
            digest.add(event(EventKind::Job));
        }
        assert!(texts.is_full() && !digest.is_full());
    }
}
