//! Sessions: which instance has each, and where its work went last.
//!
//! A binding is a hint for instances that look for a session's owner, and for its next owner; the lease in
//! the ledger is the truth. It may be lost at any time.

use std::time::Duration;

use domain::{InstanceId, NodeId, PoolName, SessionId, Token};

use crate::Result;
use crate::limits::{SESSION_TTL_MS_MAX, check_ms};

/// Where a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The instance that owns it.
    pub instance: InstanceId,
    /// The token under which it does.
    pub token: Token,
    /// The node that had its last job.
    pub node: Option<NodeId>,
    /// The pool out of which that node was chosen.
    pub pool: Option<PoolName>,
}

/// Bindings of sessions. An owner's binding stands until a later owner, with a higher token, writes its own.
#[async_trait::async_trait]
pub trait Sessions: Send + Sync {
    /// Binds a session for `ttl` from now, in place of what was said of it before, unless one of a higher token is
    /// there. Says whether it was written.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a `ttl` of no time or of more than [`crate::limits::SESSION_TTL_MS_MAX`], and
    /// what the server says; repeating is harmless.
    async fn bind_session(&self, id: &SessionId, binding: &Binding, ttl: Duration) -> Result<bool>;

    /// Where a session is, if that is known. A binding that cannot be read counts as none, and is logged.
    ///
    /// # Errors
    /// What the server says.
    async fn session_binding(&self, id: &SessionId) -> Result<Option<Binding>>;

    /// Forgets where a session is, unless one of a higher token said it.
    ///
    /// # Errors
    /// What the server says; repeating is harmless.
    async fn unbind_session(&self, id: &SessionId, token: Token) -> Result<()>;
}

/// The time that a binding lives, in milliseconds.
pub(crate) fn check_session_ttl(ttl: Duration) -> Result<u64> {
    check_ms("a session binding's time to live", ttl, SESSION_TTL_MS_MAX)
}
