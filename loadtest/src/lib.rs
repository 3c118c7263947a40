//! The load and fault harness: clients that remember everything, faults from a seed, load on a schedule, and a checker. The
//! servers, the instances and the nodes are those of `testkit`.
//!
//! It knows Fencepost only from outside (options, HTTP, tables) and shares no code with it, so that
//! one mistake cannot hide in both. The one exception is the client library, which is what `failover`
//! puts to the test: its callers are its users.

pub mod access;
pub mod attempts;
pub mod caller;
pub mod checker;
pub mod costs;
pub mod faults;
pub mod figures;
pub mod history;
pub mod inject;
pub mod job_checker;
pub mod load;
pub mod machine;
pub mod memory;
pub mod metrics;
pub mod moments;
pub mod nonce_calls;
pub mod owner;
pub mod plan_checker;
pub mod plot;
pub mod progress;
pub mod raw;
pub mod report;
pub mod scenario;
pub mod statements;
pub mod submit;
pub mod tables;
pub mod target;
pub mod verify;
