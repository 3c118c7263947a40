//! What a batch may bring aboard a train. A batch that is wrong in itself is refused before it boards: it costs nobody
//! else a second journey, means the same on both databases, and can write nothing that its reader would stumble over.
//!
//! What lives here: what can be seen of one batch alone. What must never: anything that needs the tables; that is
//! the database's to judge, and the train splits until the culprit stands alone.

use std::collections::HashSet;

use domain::limits::{HOLD_MS_MAX, MAX_IN_FLIGHT_MAX};
use domain::nonce::Change;

use crate::{Batch, Error, Result};

/// Rows that one batch may write, its keys and its lease among them.
pub const BATCH_ROWS_MAX: usize = 5_000;
/// Longest scope of an idempotency key, in bytes: a key that an index of either database takes.
const SCOPE_BYTES_MAX: usize = 512;
/// Grants that the kept answer of one key may name.
const KEPT_GRANTS_MAX: usize = BATCH_ROWS_MAX;

/// How many rows a batch writes, its lease's included.
pub(crate) fn rows(batch: &Batch) -> usize {
    batch.changes.len() + batch.keys.len() + 1
}

/// Refuses a batch that no database should be asked to write.
///
/// # Errors
/// [`Error::Refused`], saying what is wrong.
pub(crate) fn check(batch: &Batch) -> Result<()> {
    let refuse = |what: String| Err(Error::refused(sqlx::Error::InvalidArgument(what)));
    if rows(batch) > BATCH_ROWS_MAX {
        return refuse(format!("a batch of {} rows, {BATCH_ROWS_MAX} at most", rows(batch)));
    }
    let mut keys = HashSet::new();
    for key in &batch.keys {
        let scope = key.scope.scope.as_str();
        if scope.len() > SCOPE_BYTES_MAX || scope.contains('\0') {
            return refuse(format!("a scope of {} bytes, {SCOPE_BYTES_MAX} at most and no NUL", scope.len()));
        }
        if key.answer.grants.len() > KEPT_GRANTS_MAX {
            let grants = key.answer.grants.len();
            return refuse(format!("an answer of {grants} grants, {KEPT_GRANTS_MAX} at most"));
        }
        if !keys.insert((scope, &key.scope.key)) {
            return refuse(format!("the key {} twice in one batch", key.scope.key));
        }
    }
    if let Some(policy) = &batch.policy {
        check_hold(policy.hold_ms.unwrap_or(0))?;
        let window = policy.max_in_flight.unwrap_or(0);
        if window > MAX_IN_FLIGHT_MAX {
            return refuse(format!("a window of {window} nonces, {MAX_IN_FLIGHT_MAX} at most"));
        }
    }
    let mut nonces = HashSet::new();
    for change in &batch.changes {
        if let Change::Grant { hold_ms, .. } = change {
            check_hold(*hold_ms)?;
        }
        if batch.changes.len() > 1 && !nonces.insert(change.nonce()) {
            return refuse(format!("nonce {} twice in one batch", change.nonce()));
        }
    }
    Ok(())
}

fn check_hold(hold_ms: u64) -> Result<()> {
    if hold_ms <= HOLD_MS_MAX {
        return Ok(());
    }
    let what = format!("a hold of {hold_ms} ms, {HOLD_MS_MAX} at most");
    Err(Error::refused(sqlx::Error::InvalidArgument(what)))
}
