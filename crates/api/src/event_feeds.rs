//! The feeds of events, each of which goes to several streams: a feed reads and writes each event once, whatever the number of
//! its streams. `events::feed` has the task of each.

use std::sync::Arc;

use actix_web::web::Bytes;
use parking_lot::Mutex;
use tokio::sync::broadcast::{Receiver, Sender, WeakSender, channel};
use wire::events::EventKind;

use crate::limits::EVENT_BATCHES_MAX;
use crate::services::Incarnation;

/// What a feed is of. Streams of the same share it.
#[derive(Clone, PartialEq, Eq)]
pub struct FeedKind {
    /// The kinds of its events, each once, in the order of [`EventKind::ALL`].
    pub kinds: Vec<EventKind>,
    /// Whether it says only how many there were.
    pub is_digest: bool,
}

/// A stream's place in a feed.
pub struct Joined<W> {
    /// What the feed sends from now on.
    pub batches: Receiver<Bytes>,
    /// What a new feed's task needs: where it sends, and what it reads.
    pub new: Option<(Sender<Bytes>, W)>,
}

/// The feeds of an instance.
#[derive(Default)]
pub struct EventFeeds(Mutex<Vec<Feed>>);

struct Feed {
    of: FeedKind,
    incarnation: Arc<Incarnation>,
    /// Gone when the feed's task has ended.
    out: WeakSender<Bytes>,
}

impl EventFeeds {
    /// Joins the feed of this kind. Without one, `start` makes what a new one reads, and the caller runs it.
    ///
    /// # Errors
    /// What `start` says.
    pub fn join<W, E>(
        &self,
        of: &FeedKind,
        incarnation: &Arc<Incarnation>,
        start: impl FnOnce() -> Result<W, E>,
    ) -> Result<Joined<W>, E> {
        let mut feeds = self.0.lock();
        let is_it = |feed: &&Feed| feed.of == *of && Arc::ptr_eq(&feed.incarnation, incarnation);
        if let Some(out) = feeds.iter().find(is_it).and_then(|feed| feed.out.upgrade()) {
            return Ok(Joined { batches: out.subscribe(), new: None });
        }
        let new = start()?;
        let (out, batches) = channel(EVENT_BATCHES_MAX);
        feeds.retain(|feed| feed.out.strong_count() > 0);
        let incarnation = Arc::clone(incarnation);
        feeds.push(Feed { of: of.clone(), incarnation, out: out.downgrade() });
        Ok(Joined { batches, new: Some((out, new)) })
    }

    /// Removes a feed that no stream follows, so that none joins it any more. `false` where one has joined since.
    pub fn remove(&self, out: &Sender<Bytes>) -> bool {
        let mut feeds = self.0.lock();
        if out.receiver_count() > 0 {
            return false;
        }
        take_out(&mut feeds, out);
        true
    }

    /// Forgets a feed whose task ends, also where streams follow it, and with it the incarnation that it was of.
    pub fn forget(&self, out: &Sender<Bytes>) {
        take_out(&mut self.0.lock(), out);
    }
}

fn take_out(feeds: &mut Vec<Feed>, out: &Sender<Bytes>) {
    feeds.retain(|feed| feed.out.upgrade().is_some_and(|other| !other.same_channel(out)));
}
