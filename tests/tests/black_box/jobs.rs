//! Jobs: submitted to real instances over HTTP, run by real nodes over their sockets.

mod away;
mod bad_input;
mod bulk;
mod corners;
mod ends;
mod events;
mod faults;
mod fuzz;
pub mod hand;
mod hostile;
mod islands;
mod kinds;
mod lanes;
mod library;
mod lists;
mod losses;
mod metadata;
mod pauses;
mod placing;
mod pubsub;
mod removal;
pub mod rig;
mod sessions;
mod socket;
mod traces;
mod waiting;
mod ways;
