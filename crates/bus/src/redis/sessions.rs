//! Bindings of sessions, `{session:<id>}:binding` each.

use std::time::Duration;

use domain::{InstanceId, NodeId, PoolName, SessionId, Token};
use redis::{Cmd, cmd};

use super::Redis;
use super::failure::Effect;
use super::script::{Script, script};
use crate::sessions::check_session_ttl;
use crate::{Binding, Result, Sessions};

static BIND: Script = script!("session_bind");
static UNBIND: Script = script!("session_unbind");

#[async_trait::async_trait]
impl Sessions for Redis {
    async fn bind_session(&self, id: &SessionId, binding: &Binding, ttl: Duration) -> Result<bool> {
        let ttl_ms = check_session_ttl(ttl)?;
        let Binding { instance, token, node, pool } = binding;
        let fill = |call: &mut Cmd| {
            call.arg(token.get()).arg(ttl_ms).arg(instance.as_str());
            call.arg(node.as_ref().map_or("", NodeId::as_str));
            call.arg(pool.as_ref().map_or("", PoolName::as_str));
        };
        self.run(&BIND, &[self.shared.names.session(id)], fill, Effect::Writes).await
    }

    async fn session_binding(&self, id: &SessionId) -> Result<Option<Binding>> {
        let mut get = cmd("HMGET");
        get.arg(self.shared.names.session(id)).arg(&["token", "instance", "node", "pool"]);
        let fields: [Option<Vec<u8>>; 4] = self.ask(&get, Effect::Reads).await?;
        if fields.iter().all(Option::is_none) {
            return Ok(None);
        }
        let found = binding(&fields);
        if found.is_none() {
            tracing::warn!(session = %id, "a session's binding cannot be read and is ignored");
        }
        Ok(found)
    }

    async fn unbind_session(&self, id: &SessionId, token: Token) -> Result<()> {
        let fill = |call: &mut Cmd| {
            call.arg(token.get());
        };
        self.run(&UNBIND, &[self.shared.names.session(id)], fill, Effect::Writes).await
    }
}

/// Reads a binding. `None` for one that nobody of this kind can have written.
fn binding(fields: &[Option<Vec<u8>>; 4]) -> Option<Binding> {
    let texts = fields.each_ref().map(|it| it.as_deref().and_then(|bytes| str::from_utf8(bytes).ok()));
    let [token, instance, node, pool] = texts;
    let (node, pool) = (node?, pool?);
    Some(Binding {
        instance: InstanceId::parse(instance?).ok()?,
        token: Token::new(token?.parse().ok()?),
        node: if node.is_empty() { None } else { Some(NodeId::parse(node).ok()?) },
        pool: if pool.is_empty() { None } else { Some(PoolName::parse(pool).ok()?) },
    })
}
