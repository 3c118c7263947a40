//! The pause of a pool: nothing is dispatched to it, and its jobs wait.

use std::sync::Arc;

use crate::id::PoolName;
use crate::time::Timestamp;

/// A pool that an operator has paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPause {
    /// Which pool.
    pub pool: PoolName,
    /// Why, in the operator's words.
    pub reason: Arc<str>,
    /// The name of the operator's token; empty without tokens.
    pub principal: Arc<str>,
    /// Since when, by the database's clock.
    pub since: Timestamp,
    /// When it ends by itself, by the database's clock; `None` if it lasts until somebody resumes the pool.
    pub until: Option<Timestamp>,
}
