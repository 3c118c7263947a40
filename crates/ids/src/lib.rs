//! Distributed ids: snowflakes, segments, sequences, scrambled forms, UUIDs.
//!
//! What lives here: generators over an injected [`Clock`] and over sources of numbers ([`snowflake::Numbers`],
//! [`segment::Ranges`], [`sequence::Counter`]), which a ledger is. They can be used in process, without a daemon:
//!
//! ```
//! use std::sync::Arc;
//! use domain::WorkerNumber;
//! use ids::SystemClock;
//! use ids::snowflake::{Generator, Layout};
//!
//! // A number that nobody else uses, and the times that are its own.
//! let generator = Generator::new(Layout::default(), WorkerNumber::new(7)?, 0);
//! generator.raise_limit(u64::MAX);
//! let run = generator.take(&SystemClock, 1).expect("the clock moves on");
//! assert_eq!(Layout::default().decode(run.first)?.worker.get(), 7);
//! # Ok::<_, domain::Invalid>(())
//! ```
//!
//! What must never: HTTP, SQL, or an id that might have been made before.

mod calls;
mod clock;
pub mod limits;
pub mod scramble;
pub mod segment;
pub mod sequence;
pub mod snowflake;
pub mod unique;

pub use clock::{Clock, SystemClock};
pub use scramble::Scramble;
pub use segment::Segments;
pub use sequence::Sequences;
pub use snowflake::Snowflakes;
