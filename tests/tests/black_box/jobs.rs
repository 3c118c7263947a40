//! Jobs: submitted to real instances over HTTP, run by real nodes over their sockets.

mod away;
mod bad_input;
mod corners;
mod ends;
mod events;
mod faults;
mod fuzz;
pub mod hand;
mod hostile;
mod lanes;
mod library;
mod lists;
mod losses;
mod metadata;
mod placing;
mod pubsub;
pub mod rig;
mod sessions;
mod socket;
mod traces;
mod ways;
