//! The state of a signer's owner, without a runtime, a clock or SQL: a table of every stage and command, what happens
//! on each failure, and random sequences against a ledger in memory that keeps the rules in their simplest form.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod failures;
mod keys;
mod looks;
mod random;
mod table;
mod world;
