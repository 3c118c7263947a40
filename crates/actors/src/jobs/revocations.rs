//! Counts the attempts that are taken from their nodes, and names them in the log.

use domain::job::{Attempt, Revoked};
use domain::{JobId, NodeId};
use ledger::LastTold;

/// When an attempt had a line at INFO last, by the reason.
static TOLD: [LastTold; Revoked::ALL.len()] = [const { LastTold::never() }; Revoked::ALL.len()];

/// Notes an attempt that was taken from its node. One has a line at INFO in a minute for each reason, since there may be
/// thousands: all that a lost node had, or each that a node does not answer. The others are at DEBUG.
pub(super) fn note(job: JobId, attempt: Attempt, node: Option<&NodeId>, why: Revoked) {
    let reason = why.as_str();
    metrics::counter!("fencepost_dispatch_revoked_total", "reason" => reason).increment(1);
    let node = node.map(tracing::field::display);
    if TOLD[why as usize].is_due() {
        tracing::info!(%job, %attempt, node, reason, "an attempt was taken back");
    } else {
        tracing::debug!(%job, %attempt, node, reason, "an attempt was taken back");
    }
}
