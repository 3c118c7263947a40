//! Transfers: an instance whose nodes cannot take a job gives it to one whose nodes can, through the ledger alone. Needed where
//! the bus is away, or where instances use different ones.
//!
//! The order of a transfer, and what a crash leaves behind: one transaction locks the lease of the giving lane and those of
//! the receiving instances, says in their rows that they are to look, and moves the jobs' rows into their lanes. Before the
//! commit nothing has changed; after it the jobs wait in a lane of an instance that lived. An instance that takes that lane over
//! waits for the commit, since a takeover changes a locked lease, and then reads the jobs.

use domain::{InstanceId, JobId, Resource, Token};

use crate::Result;
use crate::jobs::{Lane, Unwritten};

/// Jobs transferred in one commit.
pub const TRANSFER_JOBS_MAX: usize = 1_000;
/// Bytes of what an instance notes of its nodes.
pub const NODES_NOTE_BYTES_MAX: usize = 256 << 10;
/// Instances whose notes are read.
pub(crate) const NOTES_MAX: u32 = 1_000;

/// What instances give each other through the ledger.
#[async_trait::async_trait]
pub trait Transfers: Send + Sync {
    /// Notes what the nodes of an instance can do, in a form that the ledger does not read, at most [`NODES_NOTE_BYTES_MAX`];
    /// `None`, and nothing is transferred to it from then on. Answers how many transfers to it there were so far.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn note_nodes(&self, id: &InstanceId, nodes: Option<&str>) -> Result<u64>;

    /// How many transfers to an instance there were so far.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn transfers_to(&self, id: &InstanceId) -> Result<u64>;

    /// What the nodes of the other live instances can do, as these have noted it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn nodes_elsewhere(&self, me: &InstanceId) -> Result<Vec<(InstanceId, String)>>;

    /// Transfers jobs of a lane that wait for a slot, at most [`TRANSFER_JOBS_MAX`], each to the first lane of an instance.
    /// Answers those that are in their new lanes. The others were not as said, or their new owners do not take jobs now.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] they may be, or may yet be, transferred: acquire anew and load.
    async fn transfer_jobs(
        &self,
        from: &Lane,
        jobs: &[(JobId, InstanceId)],
    ) -> Result<Result<Vec<JobId>, Unwritten>>;

    /// Passes a lease on to a live instance for so many milliseconds, within which that one is to acquire it. `false` if the
    /// lease had another owner or token by then, or if the other instance does not live.
    ///
    /// # Errors
    /// After an error it may be passed on, or may still run; it then runs out by itself.
    async fn pass_lease(
        &self,
        resource: &Resource,
        owner: &InstanceId,
        token: Token,
        to: &InstanceId,
        lease_ms: u64,
    ) -> Result<bool>;
}
