//! What a batch may bring aboard a train. A batch that is wrong in itself is refused before it boards: it costs nobody
//! else a second journey, means the same on both databases, and can write nothing that its reader would stumble over.
//!
//! What lives here: what can be seen of one batch alone. What must never: anything that needs the tables; that is
//! the database's to judge, and the train splits until the culprit stands alone.

use std::collections::HashSet;

use domain::SignerId;
use domain::limits::{HOLD_MS_MAX, MAX_IN_FLIGHT_MAX};
use domain::nonce::Change;

use crate::train::{Cargo, Tenure};
use crate::{Batch, Error, KeyScope, Result, Verdict};

/// Rows that one batch may write, its keys and its lease among them.
pub const BATCH_ROWS_MAX: usize = 5_000;
/// Longest scope of an idempotency key, in bytes: a key that an index of either database takes.
const SCOPE_BYTES_MAX: usize = 512;
/// Grants that the kept answer of one key may name.
const KEPT_GRANTS_MAX: usize = BATCH_ROWS_MAX;

/// What only one batch of nonces on a train may have.
#[derive(PartialEq, Eq, Hash)]
pub(crate) enum NonceClaim {
    Signer(SignerId),
    Key(KeyScope),
}

impl Cargo for Batch {
    type Verdict = Verdict;
    type Claim = NonceClaim;

    const NAME: &'static str = "nonces";

    fn check(&self) -> Result<()> {
        if self.rows() > BATCH_ROWS_MAX {
            return refuse(format!("a batch of {} rows, {BATCH_ROWS_MAX} at most", self.rows()));
        }
        check_keys(self.keys.iter().map(|key| &key.scope))?;
        for grants in self.keys.iter().map(|key| key.answer.grants.len()) {
            if grants > KEPT_GRANTS_MAX {
                return refuse(format!("an answer of {grants} grants, {KEPT_GRANTS_MAX} at most"));
            }
        }
        if let Some(policy) = &self.policy {
            check_hold(policy.hold_ms.unwrap_or(0))?;
            let window = policy.max_in_flight.unwrap_or(0);
            if window > MAX_IN_FLIGHT_MAX {
                return refuse(format!("a window of {window} nonces, {MAX_IN_FLIGHT_MAX} at most"));
            }
        }
        let mut nonces = HashSet::new();
        for change in &self.changes {
            if let Change::Grant { hold_ms, .. } = change {
                check_hold(*hold_ms)?;
            }
            if self.changes.len() > 1 && !nonces.insert(change.nonce()) {
                return refuse(format!("nonce {} twice in one batch", change.nonce()));
            }
        }
        Ok(())
    }

    fn line(&self) -> Option<NonceClaim> {
        Some(NonceClaim::Signer(self.signer.clone()))
    }

    fn claims(&self) -> impl Iterator<Item = NonceClaim> {
        self.keys.iter().map(|key| NonceClaim::Key(key.scope.clone()))
    }

    /// Its lease's row among them.
    fn rows(&self) -> usize {
        self.changes.len() + self.keys.len() + 1
    }

    fn tenure(&self) -> Option<Tenure<'_>> {
        Some(Tenure { resource: self.resource(), owner: &self.owner, token: self.token })
    }
}

/// Says what is wrong with a batch.
pub(crate) fn refuse(what: String) -> Result<()> {
    Err(Error::refused(sqlx::Error::InvalidArgument(what)))
}

/// Refuses keys that no index takes, and a key that is there twice.
pub(crate) fn check_keys<'a>(keys: impl Iterator<Item = &'a KeyScope>) -> Result<()> {
    let mut seen = HashSet::new();
    for key in keys {
        let scope = key.scope.as_str();
        if scope.len() > SCOPE_BYTES_MAX || scope.contains('\0') {
            return refuse(format!("a scope of {} bytes, {SCOPE_BYTES_MAX} at most and no NUL", scope.len()));
        }
        if !seen.insert(key) {
            return refuse(format!("the key {} twice in one batch", key.key));
        }
    }
    Ok(())
}

fn check_hold(hold_ms: u64) -> Result<()> {
    if hold_ms <= HOLD_MS_MAX {
        return Ok(());
    }
    refuse(format!("a hold of {hold_ms} ms, {HOLD_MS_MAX} at most"))
}
