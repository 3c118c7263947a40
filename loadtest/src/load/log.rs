//! What a load did, request by request, kept small: it becomes a history for the checker, and figures,
//! only when the load is over.

use std::collections::BTreeMap;

use super::answer::hold_text;
use crate::history::{Answer, Asked, Granted, Record};

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// 200 to something that grants nothing.
    Fine,
    /// 201.
    Granted {
        /// The fencing token of the answer.
        token: i64,
        /// Who granted, as an index into [`Log::owners`].
        owner: u16,
        /// The first of its nonces in [`Log::nonces`].
        first: u32,
        /// How many they are.
        count: u32,
    },
    /// A refusal: an index into [`Log::words`], which has `STATUS CODE`.
    Refused(u16),
    /// No answer: an index into [`Log::words`].
    Unknown(u16),
    /// An answer that the contract does not allow: an index into [`Log::oddities`].
    Malformed(u16),
}

/// One request. Moments are microseconds since the load began.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The signer whose nonces it asked for.
    pub signer: u32,
    /// When it was to begin; in a closed loop when it did.
    pub intended_us: u64,
    /// When it did.
    pub sent_us: u64,
    /// When the answer was there, or was given up.
    pub ended_us: u64,
    /// What came of it.
    pub said: Said,
}

impl Entry {
    /// From when it was to begin until it ended, for whatever reason it waited. A request that waits for a free
    /// connection has begun for its caller.
    #[must_use]
    pub const fn latency_us(&self) -> u64 {
        self.ended_us.saturating_sub(self.intended_us)
    }

    /// From when it was sent until it ended: the daemon's part.
    #[must_use]
    pub const fn service_us(&self) -> u64 {
        self.ended_us.saturating_sub(self.sent_us)
    }

    /// Answered as hoped.
    #[must_use]
    pub const fn is_fine(&self) -> bool {
        matches!(self.said, Said::Fine | Said::Granted { .. })
    }
}

/// One granted nonce: its number, its hold and what was left of it in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Nonce {
    /// Which.
    pub nonce: u64,
    /// The hold's UUID.
    pub hold: u128,
    /// What was left of the hold when the answer was built, in milliseconds.
    pub held_for_ms: u32,
}

/// Everything that one load, or one connection of it, did.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The requests, by the end of each.
    pub entries: Vec<Entry>,
    /// What was granted.
    pub nonces: Vec<Nonce>,
    /// The instances that granted.
    pub owners: Vec<String>,
    /// Refusals and errors, each once.
    pub words: Vec<String>,
    /// Answers that the contract does not allow, each with its status.
    pub oddities: Vec<(u16, String)>,
    /// Requests that were due and never sent, since no connection became free in time.
    pub never_sent: u64,
    /// How often a request was tried again, where that was planned.
    pub tried_again: u64,
}

/// The most oddities that are kept apart; the rest count as the last of them.
const ODDITIES_MAX: usize = 1_000;

impl Log {
    /// The index of a word, added if it is new.
    pub fn word(&mut self, word: &str) -> u16 {
        index_of(&mut self.words, word)
    }

    /// The index of an owner, added if it is new.
    pub fn owner(&mut self, owner: &str) -> u16 {
        index_of(&mut self.owners, owner)
    }

    /// Keeps an answer that the contract does not allow.
    pub fn oddity(&mut self, status: u16, body: &[u8]) -> Said {
        if self.oddities.len() < ODDITIES_MAX {
            let text = String::from_utf8_lossy(&body[..body.len().min(500)]).into_owned();
            self.oddities.push((status, text));
        }
        Said::Malformed(self.oddities.len().saturating_sub(1) as u16)
    }

    /// Puts another connection's log beside this one.
    pub fn merge(&mut self, other: Self) {
        let nonces = self.nonces.len() as u32;
        let oddities = self.oddities.len() as u16;
        let owners: Vec<u16> = other.owners.iter().map(|owner| self.owner(owner)).collect();
        let words: Vec<u16> = other.words.iter().map(|word| self.word(word)).collect();
        self.nonces.extend(other.nonces);
        self.oddities.extend(other.oddities);
        self.never_sent += other.never_sent;
        self.tried_again += other.tried_again;
        self.entries.extend(other.entries.into_iter().map(|mut entry| {
            entry.said = match entry.said {
                Said::Fine => Said::Fine,
                Said::Granted { token, owner, first, count } => {
                    Said::Granted { token, owner: owners[owner as usize], first: first + nonces, count }
                }
                Said::Refused(word) => Said::Refused(words[word as usize]),
                Said::Unknown(word) => Said::Unknown(words[word as usize]),
                Said::Malformed(which) => Said::Malformed(which + oddities),
            };
            entry
        }));
    }

    /// Puts a load that began `after_us` microseconds after this one behind it.
    pub fn append(&mut self, mut later: Self, after_us: u64) {
        for entry in &mut later.entries {
            entry.intended_us += after_us;
            entry.sent_us += after_us;
            entry.ended_us += after_us;
        }
        self.merge(later);
    }

    /// Sorts the requests by their ends. To be called after the last [`Log::merge`].
    pub fn sort(&mut self) {
        self.entries.sort_unstable_by_key(|entry| entry.ended_us);
    }

    /// The requests for each signer, by when they were to begin.
    #[must_use]
    pub fn by_signer(&self) -> BTreeMap<u32, Vec<&Entry>> {
        let mut lists: BTreeMap<u32, Vec<&Entry>> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.said != Said::Fine) {
            lists.entry(entry.signer).or_default().push(entry);
        }
        lists.values_mut().for_each(|list| list.sort_by_key(|entry| entry.intended_us));
        lists
    }

    /// The same requests as the checker wants them. They asked for `count` nonces for `hold_ms`, each once.
    #[must_use]
    pub fn records(&self, signer: &str, entries: &[&Entry], count: u64, hold_ms: u64) -> Vec<Record> {
        let asked = Asked::Grant { signer: signer.to_owned(), count, hold_ms, key: None };
        let record = |entry: &&Entry| Record {
            client: 0,
            asked: asked.clone(),
            answer: self.answer(entry.said),
            sent_us: entry.sent_us,
            ended_us: entry.ended_us,
        };
        entries.iter().map(record).collect()
    }

    fn answer(&self, said: Said) -> Answer {
        match said {
            Said::Fine => Answer::Settled(Vec::new()),
            Said::Granted { token, first, count, .. } => Answer::Granted {
                token,
                grants: self.nonces[first as usize..(first + count) as usize]
                    .iter()
                    .map(|one| Granted {
                        nonce: one.nonce,
                        hold: hold_text(one.hold),
                        held_for_ms: u64::from(one.held_for_ms),
                    })
                    .collect(),
            },
            Said::Refused(word) => {
                let word = &self.words[word as usize];
                let (status, code) = word.split_once(' ').unwrap_or(("0", word));
                Answer::Refused { status: status.parse().unwrap_or(0), code: code.to_owned() }
            }
            Said::Unknown(word) => Answer::Unknown { error: self.words[word as usize].clone() },
            Said::Malformed(which) => {
                let (status, body) = self.oddities[which as usize].clone();
                Answer::Malformed { status, body }
            }
        }
    }
}

fn index_of(list: &mut Vec<String>, word: &str) -> u16 {
    let at = list.iter().position(|known| known == word).unwrap_or_else(|| {
        list.push(word.to_owned());
        list.len() - 1
    });
    at as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(log: &mut Log, signer: u32, sent_us: u64, nonce: u64, owner: &str) {
        let (owner, first) = (log.owner(owner), log.nonces.len() as u32);
        log.nonces.push(Nonce { nonce, hold: u128::from(nonce) + 1, held_for_ms: 5 });
        let said = Said::Granted { token: 1, owner, first, count: 1 };
        log.entries.push(Entry { signer, intended_us: sent_us, sent_us, ended_us: sent_us + 10, said });
    }

    #[test]
    fn what_two_connections_did_is_told_apart_after_they_were_merged() {
        let (mut one, mut other) = (Log::default(), Log::default());
        granted(&mut one, 0, 100, 7, "a");
        granted(&mut other, 0, 50, 3, "b");
        granted(&mut other, 1, 60, 0, "a");
        let busy = other.word("429 overloaded");
        let said = Said::Refused(busy);
        other.entries.push(Entry { signer: 1, intended_us: 70, sent_us: 80, ended_us: 95, said });
        one.word("503 draining");
        one.merge(other);
        one.sort();
        assert!(one.entries.is_sorted_by_key(|entry| entry.ended_us));
        let lists = one.by_signer();
        let nonces = |signer: u32| -> Vec<Answer> {
            one.records("s", &lists[&signer], 1, 5).into_iter().map(|record| record.answer).collect()
        };
        let answer = |nonce: u64| Answer::Granted {
            token: 1,
            grants: vec![Granted { nonce, hold: hold_text(u128::from(nonce) + 1), held_for_ms: 5 }],
        };
        assert_eq!(nonces(0), [answer(3), answer(7)]);
        assert_eq!(nonces(1), [answer(0), Answer::Refused { status: 429, code: "overloaded".into() }]);
        let owners: Vec<&str> = lists[&0]
            .iter()
            .map(|entry| match entry.said {
                Said::Granted { owner, .. } => one.owners[owner as usize].as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(owners, ["b", "a"]);
    }

    #[test]
    fn a_request_that_waited_for_its_turn_has_waited() {
        let entry =
            Entry { signer: 0, intended_us: 1_000, sent_us: 9_000, ended_us: 9_500, said: Said::Fine };
        assert_eq!((entry.latency_us(), entry.service_us()), (8_500, 500));
    }
}
