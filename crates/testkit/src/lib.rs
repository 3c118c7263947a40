//! What tests and the load harness stand on: private servers, the real `fencepost` as a process, proxies between the two,
//! free ports, and simulated nodes.
//!
//! It knows Fencepost only from outside (options, HTTP, the worker socket) and shares no code with it, nor with the client
//! library, so that one mistake cannot hide in both. [`node`] is the second implementation of a node's side of the worker
//! protocol; the first is the client library's. There is no third.

use std::time::Duration;

pub mod authority;
pub mod credentials;
pub mod fake_clock;
pub mod fault_nodes;
pub mod fleet;
pub mod http;
pub mod instance;
pub mod node;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod servers;
pub mod sim_nodes;

/// Longer than anything takes that is right, on a machine that does much else: what does not happen within this time does
/// not happen. A test that waits for it ends as soon as it does.
pub const PATIENCE: Duration = Duration::from_secs(90);
