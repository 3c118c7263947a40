//! The load and fault harness: private servers, real instances, clients that remember everything,
//! faults from a seed, load on a schedule, and a judge.
//!
//! It knows Fencepost only from outside (options, HTTP, tables) and shares no code with it, so that
//! one mistake cannot hide in both. The one exception is the client library, which is what `failover`
//! puts to the test: its callers are its users.

pub mod caller;
pub mod checker;
pub mod costs;
pub mod crew;
pub mod crowd;
pub mod faults;
pub mod figures;
pub mod fleet;
pub mod harm;
pub mod history;
pub mod http;
pub mod instance;
pub mod job_checker;
pub mod judge;
pub mod load;
pub mod metrics;
pub mod moments;
pub mod plot;
pub mod ports;
pub mod process;
pub mod progress;
pub mod proxy;
pub mod raw;
pub mod report;
pub mod scenario;
pub mod servers;
pub mod stage;
pub mod submit;
pub mod tables;
