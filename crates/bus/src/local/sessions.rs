//! Bindings of sessions in memory.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use domain::{SessionId, Token};

use super::Local;
use crate::limits::SESSIONS_SWEEP_MS;
use crate::sessions::check_session_ttl;
use crate::{Binding, Result, Sessions};

/// All bindings of a hub.
#[derive(Default)]
pub(super) struct All {
    /// Each with the end of its time.
    bindings: HashMap<SessionId, (Binding, Instant)>,
    /// When those that ended are thrown away next.
    sweep: Option<Instant>,
}

impl All {
    fn alive(&self, id: &SessionId, now: Instant) -> Option<&Binding> {
        self.bindings.get(id).filter(|(_, end)| *end > now).map(|(binding, _)| binding)
    }

    /// Whether an owner of that token is not the latest.
    fn is_superseded(&self, id: &SessionId, token: Token, now: Instant) -> bool {
        self.alive(id, now).is_some_and(|binding| binding.token > token)
    }

    /// Throws away what ended, once in a while.
    fn sweep(&mut self, now: Instant) {
        if self.sweep.is_none_or(|due| due <= now) {
            self.bindings.retain(|_, (_, end)| *end > now);
            self.sweep = Some(now + Duration::from_millis(SESSIONS_SWEEP_MS));
        }
    }
}

#[async_trait::async_trait]
impl Sessions for Local {
    async fn bind_session(&self, id: &SessionId, binding: &Binding, ttl: Duration) -> Result<bool> {
        let ttl = Duration::from_millis(check_session_ttl(ttl)?);
        let (mut sessions, now) = (self.open()?.sessions.lock(), Instant::now());
        sessions.sweep(now);
        if sessions.is_superseded(id, binding.token, now) {
            return Ok(false);
        }
        sessions.bindings.insert(id.clone(), (binding.clone(), now + ttl));
        Ok(true)
    }

    async fn session_binding(&self, id: &SessionId) -> Result<Option<Binding>> {
        Ok(self.open()?.sessions.lock().alive(id, Instant::now()).cloned())
    }

    async fn unbind_session(&self, id: &SessionId, token: Token) -> Result<()> {
        let mut sessions = self.open()?.sessions.lock();
        if !sessions.is_superseded(id, token, Instant::now()) {
            sessions.bindings.remove(id);
        }
        Ok(())
    }
}
