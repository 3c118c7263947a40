//! Pauses: how long to wait before trying again.

pub(crate) use ledger::jittered;
