//! What the harness can do as a whole: one module per question that it answers.

pub mod beside;
pub mod bulk;
pub mod burst;
pub mod chain;
pub mod failover;
pub mod faults;
pub mod ids;
pub mod job_faults;
pub mod jobs;
pub mod large;
pub mod live;
pub mod membership;
pub mod nonces;
pub mod overload;
pub mod plan_faults;
pub mod plans;
pub mod rate;
pub mod registry;
mod remains;
pub mod sessions;
pub mod tenants;
