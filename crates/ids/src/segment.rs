//! Segments: ids of a tag out of ranges that are taken from the ledger ahead of need.
//!
//! An instance's ids of a tag rise. Between instances they rise by trend: each has its own ranges. A range that was
//! taken and not used, by a crash or because the ledger's answer was lost, leaves a gap and nothing worse.

mod buffer;
mod step;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use domain::SegmentTag;
use domain::limits::ID_BATCH_MAX;
use ledger::RangeTaken;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::calls::answer_of;
use buffer::{Behind, Buffer, Taken};

/// Where ranges come from.
#[async_trait::async_trait]
pub trait Ranges: Send + Sync + 'static {
    /// Takes the next range of a tag, as long as the tag's step and no shorter than `at_least`.
    ///
    /// # Errors
    /// [`ledger::Error`]. A range may be taken all the same; it is then never used.
    async fn take(&self, tag: &SegmentTag, at_least: u64) -> ledger::Result<RangeTaken>;
}

#[async_trait::async_trait]
impl Ranges for ledger::Handle {
    async fn take(&self, tag: &SegmentTag, at_least: u64) -> ledger::Result<RangeTaken> {
        self.take_range(tag, at_least).await
    }
}

/// Why there are no ids of a tag or sequence now.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    /// There is no such tag or sequence.
    #[error("there is no such tag or sequence; set it first")]
    Unknown,
    /// The sequence has fewer numbers left than are asked for, or none.
    #[error("fewer numbers are left than are asked for: the one after them would be above 2^63 - 1")]
    Exhausted,
    /// The ledger has no range of the tag left that is as long as its step and as what the request lacks.
    #[error(
        "the ledger has fewer ids of this tag left below 2^63 - 1 than its step, or than the request lacks; a lower step, or \
         fewer ids in each request, gets the last ones"
    )]
    TagExhausted,
    /// The ledger was asked and did not answer as it should.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// No answer within the time of the request.
    #[error("the ledger did not answer in time")]
    Late,
    /// Too many requests wait for it.
    #[error("too many requests wait for this sequence")]
    Overloaded,
}

/// The state of a tag in this instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status {
    /// How long the next range will be, in ids.
    pub step: u64,
    /// Ids in memory.
    pub left: u64,
    /// Ids given in a second, of late.
    pub rate: f64,
}

impl Status {
    /// How long the ids in memory last at this rate, in seconds; `None` while none are asked for.
    #[must_use]
    pub fn seconds_left(&self) -> Option<f64> {
        (self.rate > 0.0).then(|| self.left as f64 / self.rate)
    }
}

/// Cheap to clone; all clones take from the same ranges.
#[derive(Clone)]
pub struct Segments {
    inner: Arc<Inner>,
}

struct Inner {
    source: Arc<dyn Ranges>,
    /// The tags that were asked for and are there.
    tags: DashMap<SegmentTag, Arc<Tag>>,
}

struct Tag {
    name: SegmentTag,
    buffer: Mutex<Buffer>,
    /// What became of the last load.
    outcome: watch::Sender<Outcome>,
}

type Outcome = Result<(), Refusal>;

impl Segments {
    /// Takes from this source. Must be used within a Tokio runtime: loads run on it.
    #[must_use]
    pub fn new(source: impl Ranges) -> Self {
        Self { inner: Arc::new(Inner { source: Arc::new(source), tags: DashMap::new() }) }
    }

    /// `count` ids of a tag, rising; waits no longer than `limit`. In steady state it does not wait at all.
    ///
    /// # Errors
    /// [`Refusal`]. The next request tries again.
    ///
    /// # Panics
    /// Above [`ID_BATCH_MAX`], which callers check.
    pub async fn take(
        &self,
        name: &SegmentTag,
        count: usize,
        limit: Duration,
    ) -> Result<Vec<Range<u64>>, Refusal> {
        assert!((1..=ID_BATCH_MAX).contains(&count), "the caller checks its batch");
        let tag = self.tag(name);
        if let Taken::Ids(ids) = self.take_buffered(&tag, count) {
            return Ok(ids);
        }
        metrics::counter!("fencepost_segment_wait_total").increment(1);
        let waited = tokio::time::timeout(limit, self.wait_and_draw(&tag, count)).await;
        waited.unwrap_or(Err(Refusal::Late))
    }

    /// The state of a tag; `None` if this instance has given no id of it.
    #[must_use]
    pub fn status(&self, name: &SegmentTag) -> Option<Status> {
        let tag = Arc::clone(self.inner.tags.get(name)?.value());
        let mut buffer = tag.buffer.lock();
        let (left, rate) = (buffer.left(), buffer.rate(Instant::now()));
        buffer.step().map(|step| Status { step, left, rate })
    }

    /// How long the ids in memory last of the tag that runs out first, at the rate at which they are taken, in seconds;
    /// `None` while none are asked for.
    #[must_use]
    pub fn least_seconds_left(&self) -> Option<f64> {
        let tags: Vec<_> = self.inner.tags.iter().map(|tag| tag.key().clone()).collect();
        let left = tags.iter().filter_map(|tag| self.status(tag)?.seconds_left());
        left.min_by(f64::total_cmp)
    }

    /// Drops the ids in memory of all tags: the ledger went back in time, or was recovered, and may give them to others.
    pub fn drop_ranges(&self) {
        for tag in &self.inner.tags {
            tag.buffer.lock().drop_ranges();
        }
    }

    /// Forgets the ids of a tag below `start`, in memory and in a range that is loaded just now: its start was raised. Its next
    /// id is no lower then.
    pub fn forget_below(&self, name: &SegmentTag, start: u64) {
        // It stays the same tag: what waits for a range of it and what comes now have their ids from the same ranges.
        if let Some(tag) = self.inner.tags.get(name) {
            tag.buffer.lock().forget_below(start);
        }
    }

    fn tag(&self, name: &SegmentTag) -> Arc<Tag> {
        if let Some(tag) = self.inner.tags.get(name) {
            return Arc::clone(tag.value());
        }
        let new = || {
            let buffer = Mutex::new(Buffer::new(Instant::now()));
            Arc::new(Tag { name: name.clone(), buffer, outcome: watch::Sender::new(Ok(())) })
        };
        Arc::clone(self.inner.tags.entry(name.clone()).or_insert_with(new).value())
    }

    async fn wait_and_draw(&self, tag: &Arc<Tag>, count: usize) -> Result<Vec<Range<u64>>, Refusal> {
        loop {
            // Subscribe before looking: else the end of a load under way could be missed.
            let mut outcome = tag.outcome.subscribe();
            if let Taken::Ids(ids) = self.take_buffered(tag, count) {
                return Ok(ids);
            }
            outcome.changed().await.expect("the tag holds the sender");
            outcome.borrow_and_update().clone()?;
        }
    }

    fn load(&self, tag: &Arc<Tag>) -> Load {
        Load { inner: Arc::clone(&self.inner), tag: Arc::clone(tag), outcome: Err(Refusal::Late) }
    }

    fn take_buffered(&self, tag: &Arc<Tag>, count: usize) -> Taken {
        let (taken, load) = tag.buffer.lock().take(count as u64, Instant::now());
        if let Some(at_least) = load {
            // In a task of its own: all callers wait for the same load, and it goes on when they give up.
            tokio::spawn(load_range(self.load(tag), at_least));
        }
        taken
    }
}

/// A load under way. However it ends, its callers are woken, and the next request may begin another.
struct Load {
    inner: Arc<Inner>,
    tag: Arc<Tag>,
    outcome: Outcome,
}

impl Drop for Load {
    fn drop(&mut self) {
        let Self { inner, tag, outcome } = self;
        if let Err(refusal) = outcome {
            tag.buffer.lock().failed(Instant::now());
            if matches!(refusal, Refusal::Unknown) || tag.buffer.lock().step().is_none() {
                // A tag that is unknown, or may be since no range of it was ever loaded, must not take memory.
                inner.tags.remove_if(&tag.name, |_, known| Arc::ptr_eq(known, tag));
            }
        }
        let _ = tag.outcome.send_replace(outcome.clone());
    }
}

async fn load_range(mut load: Load, at_least: u64) {
    let (source, name) = (Arc::clone(&load.inner.source), load.tag.name.clone());
    let needed = load.tag.buffer.lock().needed();
    let taken = answer_of("the load of a segment's range", async move {
        match source.take(&name, at_least).await {
            // The tag may have numbers left for a shorter range.
            Ok(RangeTaken::Exhausted) if needed < at_least => source.take(&name, needed).await,
            taken => taken,
        }
    })
    .await;
    let result = match &taken {
        Ok(RangeTaken::Taken { .. }) => "loaded",
        Ok(RangeTaken::Unknown | RangeTaken::Exhausted) => "refused",
        Err(_) => "error",
    };
    metrics::counter!("fencepost_segment_loads_total", "result" => result).increment(1);
    let tag = &load.tag;
    load.outcome = match taken {
        Ok(RangeTaken::Taken { range, step }) => {
            let loaded = tag.buffer.lock().loaded(range, step, Instant::now());
            loaded.map_err(|Behind| {
                tracing::error!(tag = %tag.name, "the ledger gives ids again; the next request goes past them");
                Refusal::Ledger(ledger::Error::WentBack)
            })
        }
        Ok(RangeTaken::Unknown) => Err(Refusal::Unknown),
        Ok(RangeTaken::Exhausted) => Err(Refusal::TagExhausted),
        Err(error) => {
            ledger::log_failure!(error, tag = %tag.name, "a range could not be loaded; the next request tries again");
            Err(Refusal::Ledger(error))
        }
    };
}

#[cfg(test)]
mod tests;
