//! Whose a node's id is, where the bus does not join all instances. Each then knows the nodes of its own bus alone, so they
//! ask each other.
//!
//! A connection asks once the bus has its record, which is what the others find when they ask about it. So of two connections
//! that begin at the same time at two instances each finds the other.

use std::time::Instant;

use wire::nodes::ClaimStatus;
use wire::whoami::Whoami;

use super::calls::Calls;
use crate::forwarder::ForwardedRequest;
use crate::limits::CLAIM_ASKED_MAX;

impl Calls {
    /// Whether an instance that this one may share no bus with knows the node as another token's. An instance that cannot be
    /// asked in time, or that is older than the question, knows of nothing.
    pub(super) async fn is_anothers_elsewhere(&self) -> bool {
        // Without tokens every node is everybody's.
        if self.principal.name().is_empty() || !self.incarnation.reach.may_be_apart() {
            return false;
        }
        let Self { forwarder, principal, node, .. } = self;
        let question = ForwardedRequest::own(principal, &format!("node-{node}"));
        let deadline = Instant::now() + CLAIM_ASKED_MAX;
        let answers = forwarder.ask_others(&question, &format!("/v1/whoami?node={node}"), deadline).await;
        answers.iter().any(|(instance, answer)| match answer {
            Ok(body) => {
                let answer = serde_json::from_slice::<Whoami>(body).ok();
                answer.and_then(|answer| answer.node).is_some_and(|node| node.status == ClaimStatus::Anothers)
            }
            Err(why) => {
                tracing::debug!(%node, instance, why, "an instance was not asked whose a node's id is");
                false
            }
        })
    }
}
