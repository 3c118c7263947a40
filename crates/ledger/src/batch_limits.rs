//! The limits of a batch. A batch that is wrong in itself is refused before it is sent: then no other batch is sent a
//! second time for it, the refusal is the same on both databases, and nothing is written that a reader could not parse.
//!
//! What lives here: what can be seen of one batch alone. What must never: anything that needs the tables. The database
//! judges that, and the train is halved until the culprit is alone.

use std::collections::HashSet;

use domain::limits::{HOLD_MS_MAX, MAX_IN_FLIGHT_MAX};
use domain::nonce::Change;
use domain::{SignerId, shard_of};

use crate::train::{CommitBatch, FenceClaim, TRAIN_ROWS_MAX};
use crate::{Batch, Error, KeyScope, Result, Verdict};

/// Rows that one batch may write, its keys and its lease among them.
pub const BATCH_ROWS_MAX: usize = 5_000;
/// Longest scope of an idempotency key, in bytes: a key that an index of either database takes.
const SCOPE_BYTES_MAX: usize = 512;
/// Grants that the kept answer of one key may name.
const KEPT_GRANTS_MAX: usize = BATCH_ROWS_MAX;

const _: () = assert!(BATCH_ROWS_MAX <= TRAIN_ROWS_MAX, "a batch fits a train");

/// What only one batch of nonces on a train may have.
#[derive(PartialEq, Eq, Hash)]
pub(crate) enum NonceClaim {
    Signer(SignerId),
    Key(KeyScope),
}

impl CommitBatch for Batch {
    type Verdict = Verdict;
    type Claim = NonceClaim;

    const NAME: &'static str = "nonces";

    fn check(&self) -> Result<()> {
        if self.rows() > BATCH_ROWS_MAX {
            return refuse(format!(
                "the batch has {} rows; at most {BATCH_ROWS_MAX} are allowed",
                self.rows()
            ));
        }
        check_keys(self.keys.iter().map(|key| &key.scope))?;
        for grants in self.keys.iter().map(|key| key.answer.grants.len()) {
            if grants > KEPT_GRANTS_MAX {
                return refuse(format!(
                    "the answer to keep has {grants} grants; at most {KEPT_GRANTS_MAX} are allowed"
                ));
            }
        }
        if let Some(policy) = &self.policy {
            check_hold(policy.hold_ms.unwrap_or(0))?;
            let window = policy.max_in_flight.unwrap_or(0);
            if window > MAX_IN_FLIGHT_MAX {
                return refuse(format!(
                    "the window has {window} nonces; at most {MAX_IN_FLIGHT_MAX} are allowed"
                ));
            }
        }
        let mut nonces = HashSet::new();
        for change in &self.changes {
            if let Change::Grant { hold_ms, .. } = change {
                check_hold(*hold_ms)?;
            }
            if self.changes.len() > 1 && !nonces.insert(change.nonce()) {
                return refuse(format!("the batch writes nonce {} twice", change.nonce()));
            }
        }
        Ok(())
    }

    fn line(&self) -> Option<NonceClaim> {
        Some(NonceClaim::Signer(self.signer.clone()))
    }

    fn shard(&self, committers: usize) -> Option<usize> {
        Some(shard_of(self.signer.as_str(), committers))
    }

    fn claims(&self) -> impl Iterator<Item = NonceClaim> {
        self.keys.iter().map(|key| NonceClaim::Key(key.scope.clone()))
    }

    /// Its lease's row among them.
    fn rows(&self) -> usize {
        self.changes.len() + self.keys.len() + 1
    }

    fn fence_claim(&self) -> Option<FenceClaim<'_>> {
        Some(FenceClaim { resource: self.resource(), owner: &self.owner, token: self.token })
    }

    fn is_durable(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Committed { .. })
    }

    fn undone() -> Result<Verdict> {
        Ok(Verdict::Undone)
    }
}

/// Refuses a batch, saying what is wrong with it and what is allowed.
pub(crate) fn refuse(what: String) -> Result<()> {
    Err(Error::refused(sqlx::Error::InvalidArgument(what)))
}

/// Refuses a key that is too long for an index, and a key that is there twice.
pub(crate) fn check_keys<'a>(mut keys: impl Iterator<Item = &'a KeyScope>) -> Result<()> {
    let mut before = HashSet::new();
    keys.try_for_each(|key| check_key(key, &mut before))
}

/// The same for one key, behind those before it.
pub(crate) fn check_key<'a>(key: &'a KeyScope, before: &mut HashSet<&'a KeyScope>) -> Result<()> {
    let scope = key.scope.as_str();
    if scope.len() > SCOPE_BYTES_MAX || scope.contains('\0') {
        return refuse(format!(
            "the key's scope has {} bytes or a NUL; {SCOPE_BYTES_MAX} bytes without NUL are allowed",
            scope.len()
        ));
    }
    if !before.insert(key) {
        return refuse(format!("the batch keeps the key {} twice", key.key));
    }
    Ok(())
}

fn check_hold(hold_ms: u64) -> Result<()> {
    if hold_ms <= HOLD_MS_MAX {
        return Ok(());
    }
    refuse(format!("the hold lasts {hold_ms} ms; at most {HOLD_MS_MAX} are allowed"))
}
