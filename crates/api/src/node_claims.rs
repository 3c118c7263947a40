//! The ids of the nodes that are connecting to this instance, each with whose token it showed.
//!
//! A node's id belongs to the token that connected it, says the registry, which knows a node once its connection is registered.
//! Until then the connection's claim stands for that: where the bus is away, it takes seconds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use domain::NodeId;
use parking_lot::Mutex;

/// The claims of all connections.
#[derive(Debug, Default)]
pub struct NodeClaims(Mutex<HashMap<NodeId, Claimed>>);

#[derive(Debug)]
struct Claimed {
    /// The name of the token.
    principal: Arc<str>,
    /// How many connections claim the id with it, at least one.
    connections: usize,
}

/// A connection's claim to an id, which ends when it is dropped.
#[derive(Debug)]
pub struct NodeClaim {
    claims: Arc<NodeClaims>,
    node: NodeId,
}

impl NodeClaims {
    /// Claims the id for a connection with this token; `None` while one with another token claims it.
    pub fn claim(self: &Arc<Self>, node: &NodeId, principal: &Arc<str>) -> Option<NodeClaim> {
        match self.0.lock().entry(node.clone()) {
            Entry::Vacant(free) => {
                free.insert(Claimed { principal: Arc::clone(principal), connections: 1 });
            }
            Entry::Occupied(mut claimed) if claimed.get().principal == *principal => {
                claimed.get_mut().connections += 1;
            }
            Entry::Occupied(_) => return None,
        }
        Some(NodeClaim { claims: Arc::clone(self), node: node.clone() })
    }
}

impl Drop for NodeClaim {
    fn drop(&mut self) {
        let mut claims = self.claims.0.lock();
        if let Some(claimed) = claims.get_mut(&self.node) {
            claimed.connections -= 1;
            if claimed.connections == 0 {
                claims.remove(&self.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_tokens_until_its_last_claim_ends() {
        let claims = Arc::new(NodeClaims::default());
        let claim = |node: &str, token: &str| claims.claim(&NodeId::parse(node).unwrap(), &Arc::from(token));
        let (first, second) = (claim("n", "a").unwrap(), claim("n", "a").unwrap());
        assert!(claim("n", "b").is_none() && claim("m", "b").is_some());
        drop(first);
        assert!(claim("n", "b").is_none(), "the second one has it still");
        drop(second);
        assert!(claim("n", "b").is_some());
        assert!(claims.0.lock().is_empty(), "nothing is left of claims that ended");
    }
}
