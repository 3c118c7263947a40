//! The records sorted by what they are about: attempts of one grant, and all that is certain about
//! one hold.

use std::collections::{BTreeMap, HashMap};

use super::SLACK_US;
use crate::history::{Answer, Asked, Granted, Outcome, Record, Settlement, Verdict};

/// All attempts of one grant request: the same signer and idempotency key, or one request without.
pub(super) struct Attempts<'a> {
    pub signer: &'a str,
    pub count: u64,
    pub hold_ms: u64,
    /// In the order they were sent; never empty.
    pub records: Vec<&'a Record>,
}

impl<'a> Attempts<'a> {
    pub fn first_sent_us(&self) -> u64 {
        self.records[0].sent_us
    }

    /// The grants of the first attempt that was told any.
    pub fn grants(&self) -> Option<(&'a Record, &'a [Granted])> {
        self.records.iter().find_map(|record| match &record.answer {
            Answer::Granted { grants, .. } => Some((*record, grants.as_slice())),
            _ => None,
        })
    }

    /// How many nonces it may have been granted without anybody knowing their holds. One that is called stale at first was
    /// carried out.
    pub fn unheard(&self) -> u64 {
        let may_be_done = |answer: &Answer| {
            answer.leaves_doubt() || matches!(answer, Answer::Refused { code, .. } if code == "stale_hold")
        };
        let is_in_doubt =
            self.grants().is_none() && self.records.iter().any(|record| may_be_done(&record.answer));
        if is_in_doubt { self.count } else { 0 }
    }
}

/// One line of a settle request, and what became of it.
pub(super) struct Settle<'a> {
    pub line: &'a Settlement,
    pub sent_us: u64,
    pub ended_us: u64,
    /// `None`: nobody knows.
    pub verdict: Option<&'a Verdict>,
}

impl Settle<'_> {
    pub fn is_done(&self) -> bool {
        matches!(self.verdict, Some(Verdict::Done(_)))
    }

    pub fn is_refused_as(&self, refused: &str) -> bool {
        matches!(self.verdict, Some(Verdict::Refused(code)) if code == refused)
    }
}

/// All that is certain about one hold that a client was told of.
pub(super) struct Hold<'a> {
    pub signer: &'a str,
    pub nonce: u64,
    pub id: &'a str,
    pub hold_ms: u64,
    /// It was not granted before this.
    pub sent_us: u64,
    /// It was granted by then.
    pub answered_us: u64,
    /// It did not run out before this.
    pub expires_us: u64,
    /// In the order they were sent.
    pub settles: Vec<Settle<'a>>,
}

impl Hold<'_> {
    /// When a settlement with this outcome was first sent.
    pub fn first_sent(&self, outcome: Outcome) -> Option<u64> {
        self.settles.iter().filter(|settle| settle.line.outcome == outcome).map(|settle| settle.sent_us).min()
    }

    /// When a settlement with this outcome was first known to be done, with when it was sent.
    pub fn first_done(&self, outcome: Outcome) -> Option<&Settle<'_>> {
        self.settles
            .iter()
            .filter(|settle| settle.line.outcome == outcome && settle.is_done())
            .min_by_key(|settle| settle.ended_us)
    }

    /// By when it was known that a settlement of it is done: it is over then, whatever it said.
    pub fn settled_us(&self) -> Option<u64> {
        self.settles.iter().filter(|settle| settle.is_done()).map(|settle| settle.ended_us).min()
    }

    /// Nobody else can be granted the nonce before this.
    pub fn lives_until_us(&self) -> u64 {
        self.first_sent(Outcome::NeverSent).unwrap_or(u64::MAX).min(self.expires_us)
    }

    pub fn name(&self) -> String {
        format!(
            "{} nonce {} hold {} (sent {}, answered {}, runs out {} µs)",
            self.signer, self.nonce, self.id, self.sent_us, self.answered_us, self.expires_us
        )
    }
}

pub(super) struct Evidence<'a> {
    pub attempts: Vec<Attempts<'a>>,
    /// By signer, nonce and hold.
    pub holds: BTreeMap<(&'a str, u64, &'a str), Hold<'a>>,
    /// Settlements of holds that no grant answer names.
    pub strays: Vec<Settle<'a>>,
}

impl<'a> Evidence<'a> {
    pub fn gather(records: &'a [Record]) -> Self {
        let attempts = attempts(records);
        let mut holds = BTreeMap::new();
        for grant in &attempts {
            for record in &grant.records {
                let Answer::Granted { grants, .. } = &record.answer else { continue };
                for one in grants {
                    let hold = holds.entry((grant.signer, one.nonce, one.hold.as_str())).or_insert(Hold {
                        signer: grant.signer,
                        nonce: one.nonce,
                        id: &one.hold,
                        hold_ms: grant.hold_ms,
                        sent_us: grant.first_sent_us(),
                        answered_us: record.ended_us,
                        expires_us: 0,
                        settles: Vec::new(),
                    });
                    hold.answered_us = hold.answered_us.min(record.ended_us);
                    // It was granted for `hold_ms` at some moment after the first attempt left; and the
                    // caller may count the time left in the answer from when it sent the request.
                    let granted = grant.first_sent_us() + grant.hold_ms * 1_000;
                    let answer = record.sent_us + one.held_for_ms * 1_000;
                    let certain = granted.max(answer).saturating_sub(SLACK_US);
                    hold.expires_us = hold.expires_us.max(certain);
                }
            }
        }
        let mut strays = Vec::new();
        for record in records {
            let Asked::Settle { signer, settlements } = &record.asked else { continue };
            for (index, line) in settlements.iter().enumerate() {
                let verdict = match &record.answer {
                    Answer::Settled(verdicts) => verdicts.get(index),
                    _ => None,
                };
                let settle = Settle { line, sent_us: record.sent_us, ended_us: record.ended_us, verdict };
                match holds.get_mut(&(signer.as_str(), line.nonce, line.hold.as_str())) {
                    Some(hold) => hold.settles.push(settle),
                    None => strays.push(settle),
                }
            }
        }
        Self { attempts, holds, strays }
    }

    /// The holds by nonce: each list is about one nonce of one signer.
    pub fn by_nonce(&self) -> Vec<Vec<&Hold<'a>>> {
        let mut lists: BTreeMap<(&str, u64), Vec<&Hold<'a>>> = BTreeMap::new();
        for ((signer, nonce, _), hold) in &self.holds {
            lists.entry((signer, *nonce)).or_default().push(hold);
        }
        lists.into_values().collect()
    }
}

fn attempts(records: &[Record]) -> Vec<Attempts<'_>> {
    let mut sorted: Vec<&Record> = records.iter().collect();
    sorted.sort_by_key(|record| record.sent_us);
    let mut by_key: HashMap<(&str, &str), usize> = HashMap::new();
    let mut attempts: Vec<Attempts<'_>> = Vec::new();
    for record in sorted {
        let Asked::Grant { signer, count, hold_ms, key } = &record.asked else { continue };
        if let Some(key) = key {
            if let Some(at) = by_key.get(&(signer.as_str(), key.as_str())) {
                attempts[*at].records.push(record);
                continue;
            }
            by_key.insert((signer, key), attempts.len());
        }
        attempts.push(Attempts { signer, count: *count, hold_ms: *hold_ms, records: vec![record] });
    }
    attempts
}
