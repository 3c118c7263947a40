//! Client commands as processes, against stand-ins for the scheduler: signals, exit statuses, and what is printed where.

#![expect(clippy::unwrap_used, reason = "all of this is test code, its helper functions too")]

mod jobs;
mod many_jobs;
mod node;
mod plans;
mod pools;
mod process;
mod readers;
mod sessions;
