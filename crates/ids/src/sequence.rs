//! Sequences: numbers that rise strictly, for all instances together. Each grant is a commit of its own in the
//! ledger; what waits for the same sequence in this instance shares one, in the order of asking.

use std::sync::Arc;
use std::time::Duration;

use dashmap::{DashMap, Entry};
use domain::SequenceName;
use domain::limits::{ID_BATCH_MAX, SEQUENCE_GRANT_MAX};
use ledger::SequenceGrant;
use panic_guard::guarded;
use tokio::sync::oneshot;

use crate::calls::answer_of;
use crate::limits::SEQUENCE_QUEUE_MAX;
use crate::segment::Refusal;

/// Where numbers of sequences come from.
#[async_trait::async_trait]
pub trait Counter: Send + Sync + 'static {
    /// Grants the next `count` numbers of a sequence.
    ///
    /// # Errors
    /// [`ledger::Error`]. The numbers may have been granted; then they are lost.
    async fn grant(&self, name: &SequenceName, count: u64) -> ledger::Result<SequenceGrant>;
}

#[async_trait::async_trait]
impl Counter for ledger::Handle {
    async fn grant(&self, name: &SequenceName, count: u64) -> ledger::Result<SequenceGrant> {
        self.grant_sequence(name, count).await
    }
}

/// Numbers granted: `first`, `first + increment`, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The lowest.
    pub first: u64,
    /// From each to the next.
    pub increment: u64,
    /// How many.
    pub count: u64,
}

impl Numbers {
    /// The numbers.
    pub fn ids(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |n| self.first + n * self.increment)
    }
}

/// Cheap to clone; all clones wait in the same queues.
#[derive(Clone)]
pub struct Sequences {
    inner: Arc<Inner>,
}

struct Inner {
    source: Arc<dyn Counter>,
    /// Who waits for which sequence. An entry is there exactly as long as a task serves it.
    queues: DashMap<SequenceName, Vec<Waiting>>,
}

struct Waiting {
    count: u64,
    answer: oneshot::Sender<Result<Numbers, Refusal>>,
}

impl Sequences {
    /// Counts in this source. Must be used within a Tokio runtime: queues are served on it.
    #[must_use]
    pub fn new(source: impl Counter) -> Self {
        Self { inner: Arc::new(Inner { source: Arc::new(source), queues: DashMap::new() }) }
    }

    /// The next `count` numbers of a sequence; waits no longer than `limit`. A request that is sent after an
    /// answer gets higher numbers, on any instance.
    ///
    /// # Errors
    /// [`Refusal`]. If the ledger did not answer, the numbers may be used up; no other caller gets them.
    ///
    /// # Panics
    /// Above [`ID_BATCH_MAX`], which callers check.
    pub async fn take(&self, name: &SequenceName, count: usize, limit: Duration) -> Result<Numbers, Refusal> {
        assert!((1..=ID_BATCH_MAX).contains(&count), "the caller checks its batch");
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { count: count as u64, answer };
        match self.inner.queues.entry(name.clone()) {
            Entry::Occupied(queue) if queue.get().len() >= SEQUENCE_QUEUE_MAX => {
                return Err(Refusal::Overloaded);
            }
            Entry::Occupied(mut queue) => queue.get_mut().push(waiting),
            Entry::Vacant(entry) => {
                entry.insert(vec![waiting]);
                tokio::spawn(serve(Arc::clone(&self.inner), name.clone()));
            }
        }
        match tokio::time::timeout(limit, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(Refusal::Late),
        }
    }
}

/// Serves the queue of one sequence until nobody waits.
async fn serve(inner: Arc<Inner>, name: SequenceName) {
    loop {
        let mut waiting = inner
            .queues
            .get_mut(&name)
            .map(|mut queue| std::mem::take(queue.value_mut()))
            .unwrap_or_default();
        // No number is taken for callers that stopped waiting.
        waiting.retain(|one| !one.answer.is_closed());
        if waiting.is_empty() {
            if inner.queues.remove_if(&name, |_, queue| queue.is_empty()).is_some() {
                return;
            }
            continue;
        }
        // After a panic those that have no answer yet get none, as if it were late.
        guarded("the grants of a sequence", grant_all(&inner.source, &name, waiting)).await;
    }
}

/// As few commits as there can be for all of these.
async fn grant_all(source: &Arc<dyn Counter>, name: &SequenceName, mut waiting: Vec<Waiting>) {
    while !waiting.is_empty() {
        let mut sum = 0;
        let fits = waiting.iter().take_while(|one| {
            sum += one.count;
            sum <= SEQUENCE_GRANT_MAX
        });
        let rest = waiting.split_off(fits.count());
        grant(source, name, waiting).await;
        waiting = rest;
    }
}

/// One commit for all of these. Where the end of the numbers is too near for all together, each is tried alone.
async fn grant(source: &Arc<dyn Counter>, name: &SequenceName, waiting: Vec<Waiting>) {
    let sum = waiting.iter().map(|one| one.count).sum();
    match answer_of("a grant of a sequence", source.grant(name, sum)).await {
        Ok(SequenceGrant::Granted { mut first, increment }) => {
            for Waiting { count, answer } in waiting {
                // Nobody may be waiting any more: a gap, and no more than that.
                let _ = answer.send(Ok(Numbers { first, increment, count }));
                first += count * increment;
            }
        }
        Ok(SequenceGrant::Exhausted) if waiting.len() > 1 => {
            for one in waiting {
                Box::pin(grant(source, name, vec![one])).await;
            }
        }
        Ok(SequenceGrant::Exhausted) => refuse(waiting, &Refusal::Exhausted),
        Ok(SequenceGrant::Unknown) => refuse(waiting, &Refusal::Unknown),
        Err(error) => refuse(waiting, &Refusal::Ledger(error)),
    }
}

fn refuse(waiting: Vec<Waiting>, refusal: &Refusal) {
    for one in waiting {
        let _ = one.answer.send(Err(refusal.clone()));
    }
}

#[cfg(test)]
mod tests;
