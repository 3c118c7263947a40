//! The checker: from what the clients recorded and what the tables hold at the end, everything that
//! breaks a promise. Pure: no clock, no network, no database.
//!
//! A verdict is only passed on what is certain. A request was carried out, if at all, after it was
//! sent; what its answer promises was true when the answer arrived; a request without an answer may
//! have been carried out at any time after it was sent, or never. Where two orders are possible, the
//! innocent one is assumed.

mod evidence;
mod holds;
mod retries;
mod rows;

use std::collections::BTreeMap;
use std::fmt;

use crate::history::{Answer, Record, TokenSeen};
use evidence::Evidence;

/// One row of `signer_nonce_allocation`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonceRow {
    /// Whose.
    pub signer: String,
    /// Which.
    pub nonce: u64,
    /// `HELD`, `CONSUMED`, `RELEASED` or `QUARANTINED`.
    pub status: String,
    /// Its last hold.
    pub hold: String,
    /// The transaction that used it.
    pub tx_hash: Option<String>,
}

/// What the ledger holds when all is over.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// All nonce rows.
    pub rows: Vec<NonceRow>,
    /// Where each signer's numbering begins; 0 for those not named.
    pub first_nonce: BTreeMap<String, u64>,
    /// `next_nonce` as the daemon tells it, for signers that were asked about.
    pub next_nonce: BTreeMap<String, u64>,
    /// When all rows had been read, in microseconds since the run began, by the clock of its records. `None`: nobody noted
    /// it, and what lived then is not looked at.
    pub read_us: Option<u64>,
}

/// A promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// No nonce is under two live holds, and no hold is given to two callers.
    OneLiveHold,
    /// A consumed nonce is never granted again.
    ConsumedStays,
    /// A quarantined nonce is not granted again before somebody decides.
    QuarantineHolds,
    /// Only the last hold settles a nonce.
    StaleSettleRefused,
    /// Every nonce from first to next has exactly one row.
    NoGap,
    /// What was answered 2xx is in the ledger.
    AnsweredIsDurable,
    /// The ledger holds nothing that nobody asked for.
    NothingFromNowhere,
    /// The same request under the same key has the same answer, until its holds moved on.
    RetryAnswersTheSame,
    /// A hold that lives is not called stale.
    LiveHoldServes,
    /// A lease's fencing token never goes back.
    TokenRises,
    /// Answers have the contract's shapes and codes.
    ContractKept,
}

/// A promise broken, with what shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub rule: Rule,
    /// What shows it.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.detail)
    }
}

/// How far two clocks of one machine may drift apart over one hold, plus rounding to milliseconds.
const SLACK_US: u64 = 10_000;

/// How long a hold must have left when the rows were read to be looked for there: the machine's time may be set a little while
/// the holds of a run run out.
const READ_MARGIN_US: u64 = 1_000_000;

/// The refusals that a well-formed request may meet while instances and databases come and go.
const HONEST_REFUSALS: [(u16, &str); 7] = [
    (409, "stale_hold"),
    (429, "overloaded"),
    (503, "lease_held"),
    (503, "ledger_unavailable"),
    (503, "fenced"),
    (503, "draining"),
    (409, "not_owner"),
];

/// Verifies a run. An empty list means that every promise held.
#[must_use]
pub fn check(records: &[Record], tokens: &[TokenSeen], tables: &Tables) -> Vec<Violation> {
    let evidence = Evidence::gather(records);
    let mut found = Vec::new();
    shapes(records, &mut found);
    holds::check(&evidence, &mut found);
    retries::check(&evidence, &mut found);
    rows::check(&evidence, tables, &mut found);
    tokens_rise(tokens, &evidence, &mut found);
    found
}

fn accuse(found: &mut Vec<Violation>, rule: Rule, detail: String) {
    found.push(Violation { rule, detail });
}

fn shapes(records: &[Record], found: &mut Vec<Violation>) {
    for record in records {
        match &record.answer {
            Answer::Malformed { status, body } => {
                accuse(found, Rule::ContractKept, format!("{:?} was answered {status} {body}", record.asked))
            }
            Answer::Refused { status, code } if !HONEST_REFUSALS.contains(&(*status, code)) => {
                accuse(found, Rule::ContractKept, format!("{:?} was refused {status} {code}", record.asked))
            }
            _ => {}
        }
    }
}

fn tokens_rise(seen: &[TokenSeen], evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    for TokenSeen { resource, token } in seen {
        let last = last.entry(resource).or_insert(*token);
        if token < last {
            accuse(found, Rule::TokenRises, format!("{resource}: {last}, then {token}"));
        }
        *last = (*last).max(*token);
    }
    // By signer, the grants whose first attempt was answered: their tokens follow their order.
    let mut grants: BTreeMap<&str, Vec<(u64, u64, i64)>> = BTreeMap::new();
    for attempts in &evidence.attempts {
        let first = attempts.records[0];
        if let Answer::Granted { token, .. } = &first.answer {
            grants.entry(attempts.signer).or_default().push((first.sent_us, first.ended_us, *token));
        }
    }
    for (signer, grants) in grants {
        let mut by_end = grants.clone();
        by_end.sort_by_key(|(_, ended, _)| *ended);
        let mut ended = by_end.iter().peekable();
        let mut highest = i64::MIN;
        let mut by_sent = grants;
        by_sent.sort_by_key(|(sent, ..)| *sent);
        for (sent, _, token) in by_sent {
            while let Some((_, _, earlier)) = ended.next_if(|(_, ended, _)| *ended < sent) {
                highest = highest.max(*earlier);
            }
            if token < highest {
                accuse(
                    found,
                    Rule::TokenRises,
                    format!(
                        "{signer}: a grant sent at {sent} µs has token {token}, an earlier one had {highest}"
                    ),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
