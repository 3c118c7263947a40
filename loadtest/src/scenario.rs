//! What the harness can do as a whole: one module per question that it answers.

pub mod chain;
pub mod faults;
pub mod rate;
