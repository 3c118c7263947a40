//! What a round of decisions reads of the ledger before it decides.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::command::{Grant, Grants};
use crate::database_clock::ReadRow;
use crate::id::Nonce;
use crate::nonce::{GrantAnswer, Hole, KeptKey, KeyScope, Row, Status};

/// Names one round of decisions. An answer for a round that was given up meanwhile is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round(pub(super) u64);

/// What was read for a round, under its lease.
#[derive(Clone, Debug)]
pub struct FactsRead {
    /// Requests that were answered before, each under its key and where that counts: one key of two callers is two.
    pub kept: Vec<(KeyScope, KeptKey)>,
    /// The rows asked for, and those that the kept answers speak of.
    pub rows: Vec<ReadRow>,
    /// The lowest holes, and whether these are all; as asked for.
    pub holes: Option<(Vec<Hole>, bool)>,
    /// Whether the lease was still this owner's by the ledger once the rows were read. That is asked only where
    /// requests were answered before: they are answered again without a commit, whose fence would tell.
    pub is_owned: bool,
}

/// The same, for looking up.
pub(super) struct Facts {
    pub(super) kept: HashMap<KeyScope, KeptKey>,
    rows: ReadRows,
    asked: Instant,
}

impl Facts {
    /// `asked` is the own time before they were read.
    pub(super) fn new(kept: Vec<(KeyScope, KeptKey)>, rows: Vec<ReadRow>, asked: Instant) -> Self {
        Self { kept: kept.into_iter().collect(), rows: ReadRows::new(rows), asked }
    }

    /// Of a round that needs to know nothing.
    pub(super) fn none(now: Instant) -> Self {
        Self::new(Vec::new(), Vec::new(), now)
    }

    pub(super) fn row(&self, nonce: Nonce) -> Option<&Row> {
        self.rows.0.get(&nonce).map(|read| &read.row)
    }

    pub(super) fn still_live(&self, answer: &GrantAnswer, now: Instant) -> Option<Grants> {
        self.rows.still_live(answer, now.saturating_duration_since(self.asked))
    }
}

struct ReadRows(HashMap<Nonce, ReadRow>);

impl ReadRows {
    fn new(rows: Vec<ReadRow>) -> Self {
        Self(rows.into_iter().map(|read| (read.row.nonce, read)).collect())
    }

    fn still_live(&self, answer: &GrantAnswer, since: Duration) -> Option<Grants> {
        let since = whole_ms(since);
        let grants = answer.grants.iter().map(|&(nonce, hold)| {
            let is_held = |read: &&ReadRow| read.row.hold == hold && read.row.status == Status::Held;
            let read = self.0.get(&nonce).filter(is_held)?;
            let held_for_ms = read.left_ms.saturating_sub(since);
            (held_for_ms > 0).then_some(Grant { nonce, hold, held_until: read.row.held_until, held_for_ms })
        });
        let grants = grants.collect::<Option<Vec<_>>>()?;
        Some(Grants { token: answer.token, owner: answer.owner.clone(), grants })
    }
}

/// The grants of an earlier answer, if every hold of it is still live; `None` as soon as one was settled, ran out, or
/// was never written. `rows` were read in a call that began `since` ago.
#[must_use]
pub fn still_live(answer: &GrantAnswer, rows: Vec<ReadRow>, since: Duration) -> Option<Grants> {
    ReadRows::new(rows).still_live(answer, since)
}

/// Milliseconds, a begun one counted as a whole: no answer says that a hold lasts longer than it does.
pub(super) fn whole_ms(length: Duration) -> u64 {
    length.as_micros().div_ceil(1_000) as u64
}
