//! One owner per key: the queue of a key's work, and the one who serves it.
//!
//! What lives here: for each signer that has work, and for each lane of jobs, a task that holds its lease,
//! decides with `domain` and commits through `ledger`. What must never: SQL, HTTP, or an answer of success that
//! is not committed.

pub mod jobs;
mod pause;
mod releases;
mod renewals;
pub mod signers;
