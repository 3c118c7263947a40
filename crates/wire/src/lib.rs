//! The shapes that cross HTTP and the sockets: what goes in, what comes out, and the table of refusals.
//!
//! What lives here: serde structs and enums with their documentation (which the OpenAPI document
//! shows), the limits a caller can run into, and [`problem::Code`]. What must never: a decision, I/O,
//! a type of another room. Both sides use it, the daemon and the client library.
//!
//! Requests refuse unknown fields, repeated fields, `null` where it has no meaning, arrays in place of
//! objects, and numbers that are not whole; each with a text that says what would be right. Answers
//! may grow fields, so readers of answers ignore what they do not know.

pub mod cluster;
pub mod events;
mod frames;
pub mod health;
pub mod ids;
pub mod jobs;
mod json;
pub mod leases;
pub mod limits;
mod list;
pub mod nodes;
pub mod nonces;
pub mod problem;
pub mod sessions;
mod strict;
pub mod worker;

/// On a request that one instance sends on to another: the id of the one that sends. Such a request is
/// served or refused, and never sent on.
pub const FORWARDED_BY: &str = "x-fencepost-forwarded-by";
/// On such a request: the id of the instance that it was sent on to. Whoever else gets it refuses.
pub const FORWARDED_TO: &str = "x-fencepost-forwarded-to";
/// On a batch of jobs of which only a part is sent on: the place of each in the whole, with commas between them.
pub const FORWARDED_PLACES: &str = "x-fencepost-places";
/// On every answer of the API: names what `/v1/cluster` shows of ring and mode, so that clients see when to look
/// anew. Opaque.
pub const RING_VERSION: &str = "x-fencepost-ring";

pub use json::Json;
pub use list::List;
pub use problem::{Code, Problem};
