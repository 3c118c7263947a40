//! The shapes that cross HTTP and the sockets: requests, answers, and the table of refusals.
//!
//! What lives here: serde structs and enums with their documentation (which the OpenAPI document shows), the
//! limits a caller can run into, and [`problem::Code`]. What must never: a decision, I/O, a type of another
//! crate. Both sides use it, the daemon and the client library.
//!
//! Requests refuse unknown fields, repeated fields, `null` where it has no meaning, arrays in place of
//! objects, and numbers that are not whole; each with a text that says what would be right. Answers
//! may grow fields and words, so readers of answers ignore the fields that they do not know, and read a word that they do not
//! know as `Unrecognised`: a state, and also what a caller has chosen, such as a session's ordering.

pub mod audit;
pub mod bulk;
pub mod cluster;
pub mod events;
mod frames;
pub mod health;
pub mod ids;
pub mod jobs;
mod json;
pub mod leases;
mod lenient;
pub mod limits;
mod list;
pub mod nodes;
pub mod nonces;
pub mod plans;
pub mod problem;
pub mod sessions;
pub mod stats;
mod strict;
pub mod whoami;
pub mod worker;

/// The header of a request that one instance forwards to another: the id of the instance that forwards it. Such a request
/// is served or refused, and never forwarded again.
pub const FORWARDED_BY: &str = "x-fencepost-forwarded-by";
/// The header of such a request with the id of the instance that it is meant for. Any other instance refuses it.
pub const FORWARDED_TO: &str = "x-fencepost-forwarded-to";
/// The header of a forwarded part of a batch: the place of each of its jobs in the whole batch, separated by commas. It counts
/// without a credential too: it chooses among the caller's own idempotency keys alone.
pub const FORWARDED_PLACES: &str = "x-fencepost-places";
/// What [`FORWARDED_PLACES`] says of a request that an instance makes for a bulk operation: it is no part of a batch, and the
/// caller did not send it. It counts under a good credential alone.
pub const FORWARDED_FOR_BULK: &str = "bulk";
/// What [`FORWARDED_PLACES`] says of a request that an instance makes for a part of what its caller asked for, and the audit has
/// noted as a whole. It counts under a good credential alone; an instance of 0.1.0 does not know it.
pub const FORWARDED_NOTED: &str = "noted";
/// The header by which a forwarded request proves that an instance of the same cluster forwards it, and for which caller.
/// Without a good one [`FORWARDED_BY`] and [`FORWARDED_TO`] count for nothing.
pub const FORWARDED_CREDENTIAL: &str = "x-fencepost-credential";
/// The header of a forwarded request with the ids of the live instances that are leaving, as far as the one that forwards it
/// knows, separated by commas. Its receiver leaves them no key either. An instance of 0.1.0 does not read it.
pub const FORWARDED_LEAVING: &str = "x-fencepost-leaving";
/// The header of every answer of the API that tells a client when to read `/v1/cluster` again: an opaque fingerprint of
/// ring and mode.
pub const RING_VERSION: &str = "x-fencepost-ring";

pub use json::Json;
pub use list::List;
pub use problem::{Code, Problem};
pub use strict::{Object, is_too_large};
