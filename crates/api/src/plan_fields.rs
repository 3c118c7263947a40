//! The fields of plans, tasks and tenants between the wire and the domain: as requests give them, and as answers show them.

pub mod from_wire;
pub mod to_wire;
