//! What a train of jobs does between its fence and its COMMIT, the same on both databases.

use std::collections::HashSet;

use domain::{JobId, Timestamp};

use super::sorted::{Aboard, Acknowledged, Back, Dispatched, Done, New};
use super::{JobBatch, JobsVerdict};
use crate::keys::Keeping;
use crate::train::Fence;

/// The statements of one dialect in the transaction of one train. Each answers the jobs that were as said; those are
/// written.
#[async_trait::async_trait]
pub(crate) trait Tables: Send {
    /// Locks the rows of those that are there; answers them, and the transaction's time.
    async fn lock(&mut self, jobs: &[JobId]) -> sqlx::Result<(HashSet<JobId>, Timestamp)>;
    /// Keeps idempotency keys; says of each whether it is new.
    async fn keep_keys(&mut self, keys: &[Keeping<'_>]) -> sqlx::Result<Vec<bool>>;
    async fn submit(&mut self, new: &[New<'_>], at: Timestamp) -> sqlx::Result<Vec<JobId>>;
    async fn dispatch(&mut self, dispatched: &[Dispatched<'_>]) -> sqlx::Result<Vec<JobId>>;
    async fn acknowledge(&mut self, acknowledged: &[Acknowledged<'_>]) -> sqlx::Result<Vec<JobId>>;
    async fn put_back(&mut self, back: &[Back<'_>]) -> sqlx::Result<Vec<JobId>>;
    async fn finish(&mut self, done: &[Done<'_>]) -> sqlx::Result<Vec<JobId>>;
    async fn release(&mut self, released: &[JobId]) -> sqlx::Result<Vec<JobId>>;
}

/// Writes the batches that the fence lets pass; answers the verdict on every batch, and whether there is anything to
/// commit. The order is the order of locks: all rows of unfinished jobs, unique keys, new rows, finished rows, each
/// sorted.
pub(crate) async fn write(
    tables: &mut impl Tables,
    batches: &[JobBatch],
    fences: Vec<Fence>,
) -> sqlx::Result<(Vec<JobsVerdict>, bool)> {
    let mut aboard = Aboard::of(batches, fences);
    let (there, at) = tables.lock(&aboard.ids()).await?;
    let mut sorted = aboard.sorted(at, |job| there.contains(&job));
    let keys = sorted.keys();
    if !keys.is_empty() {
        let is_new = tables.keep_keys(&keys).await?;
        aboard.key_taken = sorted.drop_taken(&is_new);
    }
    if !sorted.new.is_empty() {
        aboard.written.extend(tables.submit(&sorted.new, at).await?);
    }
    if !sorted.dispatched.is_empty() {
        aboard.written.extend(tables.dispatch(&sorted.dispatched).await?);
    }
    if !sorted.acknowledged.is_empty() {
        aboard.written.extend(tables.acknowledge(&sorted.acknowledged).await?);
    }
    if !sorted.back.is_empty() {
        aboard.written.extend(tables.put_back(&sorted.back).await?);
    }
    if !sorted.done.is_empty() {
        aboard.written.extend(tables.finish(&sorted.done).await?);
    }
    if !sorted.released.is_empty() {
        aboard.written.extend(tables.release(&sorted.released).await?);
    }
    Ok((aboard.verdicts(at), !aboard.written.is_empty()))
}
