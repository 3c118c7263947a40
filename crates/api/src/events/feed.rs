//! The task of one feed: it reads the events, writes each of them once, and hands them in batches to the streams that
//! follow it; or it counts them.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use actix_web::web::Bytes;
use actors::jobs::{Tally, Topic};
use tokio::sync::broadcast::{Receiver, Sender};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use wire::events::{DIGEST_EVENT, DigestEvent, EventKind, LEFT_OUT};

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
    let start = || -> Result<Source, Refusal> {
        let jobs = of.kinds.iter().any(|kind| matches!(kind, EventKind::Job | EventKind::Progress));
        if of.is_digest {
            let tally = jobs.then(|| incarnation.jobs.tally());
            return Ok(Source::Numbers(World::new(incarnation, of.kinds.clone(), None), tally));
        }
        let watch = jobs.then(|| incarnation.jobs.watch(Topic::All)).transpose()?;
        Ok(Source::Events(World::new(incarnation, of.kinds.clone(), watch)))
    };
    let Joined { batches, new } = state.event_feeds.join(of, incarnation, start)?;
    if let Some((out, source)) = new {
        let feed = Feed { state: Arc::clone(state), incarnation: Arc::clone(incarnation), out };
        match source {
            Source::Events(world) => state.spawn(feed.send_events(world)),
            Source::Numbers(world, tally) => state.spawn(feed.send_numbers(world, tally, of.kinds.clone())),
        }
    }
    Ok(batches)
}

/// What a feed is made of.
enum Source {
    Events(World),
    /// The events of jobs are counted where they happen. What is read are those of nodes and the cluster.
    Numbers(World, Option<Tally>),
}

struct Feed {
    state: Arc<State>,
    incarnation: Arc<Incarnation>,
    out: Sender<Bytes>,
}

impl Drop for Feed {
    /// However it ends: what it leaves behind would keep all of an incarnation that is over.
    fn drop(&mut self) {
        self.state.event_feeds.forget(&self.out);
    }
}

/// The incarnation is over, or no stream follows the feed.
struct Over;

impl Feed {
    /// Waits for it beside the end of the feed.
    async fn beside<T>(&mut self, next: impl Future<Output = T>) -> Result<T, Over> {
        let mut next = pin!(next);
        loop {
            tokio::select! {
                biased;
                () = self.incarnation.jobs.until_over() => return Err(Over),
                () = self.out.closed() => if self.state.event_feeds.remove(&self.out) {
                    return Err(Over);
                },
                next = &mut next => return Ok(next),
            }
        }
    }

    /// Sends the events themselves.
    async fn send_events(mut self, mut world: World) {
        let mut text = String::new();
        let mut next_at = Instant::now();
        while let Ok(first) = self.beside(world.next()).await {
            add(&mut text, first);
            // Those that come before the next batch may leave.
            while text.len() < EVENT_BATCH_BYTES_MAX {
                match self.beside(timeout_at(next_at, world.next())).await {
                    Ok(Ok(event)) => add(&mut text, event),
                    Ok(Err(_)) => break,
                    Err(Over) => return,
                }
            }
            // Without a receiver the loop ends in a moment.
            let _ = self.out.send(Bytes::from(std::mem::take(&mut text)));
            next_at = Instant::now() + EVENTS_GATHERED;
        }
    }

    /// Sends how many events there were.
    async fn send_numbers(mut self, mut world: World, mut tally: Option<Tally>, kinds: Vec<EventKind>) {
        let mut digest = DigestEvent::default();
        let mut ticks = interval(DIGEST_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let next = async {
                tokio::select! {
                    event = world.next() => Some(event),
                    _ = ticks.tick() => None,
                }
            };
            match self.beside(next).await {
                Ok(Some(event)) => count(&mut digest, event.map(|(kind, _)| kind)),
                Ok(None) => {
                    if let Some(tally) = &mut tally {
                        let (numbers, has_gap) = tally.take();
                        let of = |kind, number| if kinds.contains(&kind) { number } else { 0 };
                        digest.job += of(EventKind::Job, numbers.changes);
                        digest.progress += of(EventKind::Progress, numbers.progress);
                        digest.missed |= has_gap;
                    }
                    if digest != DigestEvent::default() {
                        let text = stream::event(DIGEST_EVENT, None, &std::mem::take(&mut digest));
                        let _ = self.out.send(Bytes::from(text));
                    }
                }
                Err(Over) => return,
            }
        }
    }
}

/// Adds an event; `None` where events were missed.
fn add(text: &mut String, event: Option<Event>) {
    match event {
        Some((kind, json)) => text.push_str(&stream::event(kind.as_str(), None, &json)),
        None => text.push_str(&stream::comment(LEFT_OUT)),
    }
}

/// Counts an event; `None` where events were missed.
fn count(digest: &mut DigestEvent, event: Option<EventKind>) {
    match event {
        Some(EventKind::Job) => digest.job += 1,
        Some(EventKind::Progress) => digest.progress += 1,
        Some(EventKind::Node) => digest.node += 1,
        Some(EventKind::Cluster) => digest.cluster += 1,
        None => digest.missed = true,
    }
}

#[cfg(test)]
mod tests {
    use wire::Json;

    use super::*;

    #[test]
    fn a_batch_has_the_events_in_their_order_and_a_digest_their_numbers() {
        let (mut text, mut digest) = (String::new(), DigestEvent::default());
        for kind in [Some(EventKind::Job), None, Some(EventKind::Node), Some(EventKind::Job)] {
            add(&mut text, kind.map(|kind| (kind, Json::parse("1").unwrap())));
            count(&mut digest, kind);
        }
        let written = "event: job\ndata: 1\n\n: some events were left out\n\nevent: node\ndata: 1\n\nevent: job\ndata: 1\n\n";
        assert_eq!(text, written);
        assert_eq!(digest, DigestEvent { job: 2, progress: 0, node: 1, cluster: 0, missed: true });
    }
}
