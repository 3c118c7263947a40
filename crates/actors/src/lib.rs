//! One owner per key: the actor that a key's work queues for, and that serves it.
//!
//! What lives here: for each signer that has work, and for each lane of jobs, an actor that holds its lease,
//! decides with `domain` and commits through `ledger`. What must never: SQL, HTTP, or an answer of success that
//! is not committed.

pub mod arbiters;
mod counted;
pub mod database_clock;
mod directory;
pub mod handed_on;
mod job_ids;
pub mod jobs;
mod ledger_failure;
mod mailbox;
pub mod plans;
mod purges;
mod queue_meter;
#[cfg(test)]
mod recorded;
mod releases;
mod renewals;
mod replies;
mod row_locks;
pub mod signers;
#[cfg(test)]
mod test_ledger;
pub mod uncut;

pub use purges::PurgeWatch;
