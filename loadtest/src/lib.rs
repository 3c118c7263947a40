//! The load and fault harness: private servers, real instances, clients that remember everything,
//! faults from a seed, and a judge.
//!
//! It knows Fencepost only from outside (options, HTTP, tables) and shares no code with it, so that
//! one mistake cannot hide in both.

pub mod caller;
pub mod checker;
pub mod faults;
pub mod fleet;
pub mod history;
pub mod http;
pub mod instance;
pub mod ports;
pub mod process;
pub mod raw;
pub mod report;
pub mod scenario;
pub mod servers;
pub mod tables;
