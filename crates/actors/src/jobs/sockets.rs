//! What the sockets of nodes ask of jobs: to attach a node, to note what it says of its attempts, and to record its results.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Instant;

use bus::Slot;
use domain::job::{Attempt, Revoked};
use domain::{JobId, NodeId};
use ledger::{JobRecord, jittered};
use nodes::HolderSlots;
use nodes::connection::Progress;

use super::Jobs;
use super::delivery::Dispatch;
use super::limits::REREAD_EVERY;
use super::node_gateway::{Departing, HolderNote, NodeGateway, NodeOutbox, OnNode};
use super::progress::ProgressReporter;
use super::results::{Answer, NodeResult, ResultWriter};

/// What the sockets of one instance use.
pub(super) struct Sockets {
    pub(super) gateway: Arc<NodeGateway>,
    pub(super) progress: Arc<ProgressReporter>,
    pub(super) results: Arc<ResultWriter>,
}

impl Jobs {
    /// Attaches a node's connection, which said `hello` at `since` and listed the attempts `running`, to this instance.
    /// Lanes take its slots from `slots` while the bus does not give them. Returns the queue of requests for the node.
    #[must_use]
    pub fn attach(
        &self,
        node: &NodeId,
        since: Instant,
        running: &[Slot],
        slots: &Arc<HolderSlots>,
    ) -> NodeOutbox {
        self.sockets.gateway.attach(node, since, running, Arc::clone(slots))
    }

    /// Returns when no socket of a node is open here, and the lanes were told what became of all that was on its way to nodes.
    pub async fn until_no_socket(&self) {
        self.sockets.gateway.until_no_socket().await;
    }

    /// Whether a socket of the node is held here.
    #[must_use]
    pub fn is_attached(&self, node: &NodeId) -> bool {
        self.sockets.gateway.is_attached(node)
    }

    /// A socket of the node is about to be closed. The answer is kept until the node has connected again, or is taken off and
    /// its slots are freed, so that by then it is remembered which attempts it was to stop.
    pub fn departs(&self, node: &NodeId) -> Departing {
        self.sockets.gateway.departs(node)
    }

    /// Drains a node that is connected here, or ends its drain. `false` if it is not connected here.
    pub fn drain(&self, node: &NodeId, is_drained: bool) -> bool {
        self.sockets.gateway.drain(node, is_drained)
    }

    /// The unfinished attempts of a node that is connected here: those that it has or may still get on this connection. It had
    /// those in `listed` a moment ago; what was handed over for it at `handed_since` or later is there as well: since its
    /// connection was attached, or since the list was made, if it was not. The lanes learn of the other unfinished attempts that
    /// the ledger has for the node, unless the connection is over when they were read. That it is here is noted in the ledger for
    /// as long as `holder_note` lives, which is to be one for the connection, until that is over.
    ///
    /// # Errors
    /// What the ledger says.
    pub async fn attempts_on(
        &self,
        node: &NodeId,
        holder_note: &Weak<HolderNote>,
        handed_since: Instant,
        listed: &[Slot],
    ) -> ledger::Result<Vec<Slot>> {
        let OnNode { there, gone } =
            self.sockets.gateway.attempts_on(node, holder_note, handed_since, listed).await?;
        self.end_elsewhere(node, gone, Revoked::Unlisted, "the node no longer lists the attempt");
        Ok(there)
    }

    /// Whether another instance has noted in the ledger that it holds this node, which left this one with these attempts.
    ///
    /// # Errors
    /// What the ledger says.
    pub async fn is_held_elsewhere(&self, node: &NodeId, attempts: &[Slot]) -> ledger::Result<bool> {
        let attempts: HashSet<_> = attempts.iter().map(|slot| (slot.job, slot.attempt)).collect();
        let held = self.keeper.services.ledger.attempts_on(node).await?;
        Ok(held.iter().any(|it| it.holder != *self.me() && attempts.contains(&(it.job, it.attempt))))
    }

    /// A node that was connected here is taken off for good; it had these attempts.
    pub fn lost_with(&self, node: &NodeId, attempts: &[Slot]) {
        self.end_elsewhere(node, attempts.to_vec(), Revoked::NodeLost, "the node was lost");
    }

    /// Attempts of a node here that it does not run any more. Their lanes' owners learn it by a report, or by the registry, and
    /// revoke them. An owner that the bus does not reach learns nothing, and would wait for as long as an attempt may run: in its
    /// stead this instance ends such attempts, unless they are stages. That counts as a result does, for the newest attempt of a
    /// job alone.
    fn end_elsewhere(&self, node: &NodeId, attempts: Vec<Slot>, why: Revoked, reason: &'static str) {
        let is_here = |slot: &Slot| {
            let lane = self.sockets.gateway.attempts().lane(slot.job, slot.attempt);
            lane.is_some_and(|lane| self.keeper.directory().contains_key(&lane))
        };
        let elsewhere: Vec<_> = attempts.into_iter().filter(|slot| !is_here(slot)).collect();
        let reach = self.keeper.services.reach.clone();
        if elsewhere.is_empty() || !reach.may_be_apart() {
            return;
        }
        let (results, node) = (Arc::clone(&self.sockets.results), node.clone());
        tokio::spawn(async move {
            // Owners that are reached are quicker.
            tokio::time::sleep(jittered(REREAD_EVERY)).await;
            if !reach.may_be_apart() {
                return;
            }
            results.lost(&node, &elsewhere, why, reason).await;
        });
    }

    /// Stores the progress of an attempt, as reported by a node that is connected here; unless it is another node's.
    pub fn progressed(&self, node: &NodeId, job: JobId, attempt: Attempt, progress: Progress) {
        if !self.sockets.gateway.attempts().is_anothers(node, job, attempt) {
            self.sockets.progress.progressed(node, job, attempt, progress);
        }
    }

    /// The progress of a job's newest attempt, if its node reported one lately and the instance that holds
    /// the node's socket answers quickly.
    pub async fn progress(&self, job: &JobRecord) -> Option<Progress> {
        self.sockets.progress.of(job).await
    }

    /// An attempt has no slot of the node any more.
    pub fn slot_freed(&self, node: &NodeId, job: JobId, attempt: Attempt) {
        self.sockets.gateway.attempts().slot_freed(node, job, attempt);
    }

    /// A node has acknowledged an attempt, which is not another's.
    pub fn acknowledged(&self, node: &NodeId, job: JobId, attempt: Attempt) {
        self.sockets.gateway.acknowledged(node, job, attempt);
    }

    /// The socket was closed after an attempt was sent and before the node answered: the attempt may have
    /// crashed the node.
    pub fn cut_off(&self, job: JobId, attempt: Attempt) {
        self.sockets.gateway.cut_off(job, attempt);
    }

    /// Whether a node that is connected here still has the attempt, or is about to get it.
    #[must_use]
    pub fn is_expected(&self, job: JobId, attempt: Attempt) -> bool {
        self.sockets.gateway.attempts().is_expected(job, attempt)
    }

    /// Whether an attempt that a node here has listed is known to be the node's: it was dispatched to the node by way of this
    /// instance, or was found in the ledger. Otherwise the node may have made it up.
    #[must_use]
    pub fn is_confirmed(&self, node: &NodeId, slot: Slot) -> bool {
        self.sockets.gateway.attempts().is_confirmed(node, slot)
    }

    /// A node rejected an attempt or lists it no more, or the attempt could not be sent to it. Of another node's attempt it says
    /// nothing.
    pub fn came_to_nothing(&self, node: &NodeId, job: JobId, attempt: Attempt, why: Revoked, reason: &str) {
        if !self.sockets.gateway.attempts().is_anothers(node, job, attempt) {
            self.sockets.gateway.came_to_nothing(job, attempt, why, reason);
        }
    }

    /// Records the results of attempts, and returns when their outcome is known, however long that takes. If
    /// slots may be passed on, an answer may contain an attempt that the same commit dispatched: it takes the
    /// slot of the finished one, and fails if it is not sent.
    pub async fn results(
        &self,
        node: &NodeId,
        results: Vec<NodeResult>,
        may_pass: bool,
    ) -> Vec<(Answer, Option<Box<Dispatch>>)> {
        self.sockets.results.write(node, results, may_pass).await
    }

    /// Whether the owner of the job's lane writes a result, in its next batch. Its outcome does not depend on
    /// other results then.
    #[must_use]
    pub fn is_the_owners(&self, result: &NodeResult) -> bool {
        self.sockets.results.writer_of(result).is_some()
    }
}
