//! A round of commands, decided one after the other on what the ledger is known to hold, and drafted
//! into one batch. Nothing is answered from here that a commit has yet to make true.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use domain::nonce::{Allocator, Change, GrantRefusal, Policy, Row, Settlement, Status, resolve, settle};
use domain::{HoldId, IdempotencyKey, Nonce, Timestamp};
use ledger::{Batch, GrantAnswer, KeptKey, NewKey};
use uuid::Uuid;

use super::command::{Command, Granting, Reply, Settlements, Ticket, Work};
use super::tenure::Tenure;
use super::{Grant, Grants, Inner, Refusal};

/// What was read of the ledger for a round, under its lease.
pub(super) struct Facts {
    /// Requests that were answered before.
    pub(super) kept: HashMap<IdempotencyKey, KeptKey>,
    /// The nonces that the round speaks of.
    pub(super) rows: HashMap<Nonce, Row>,
    /// The database's time of reading them.
    pub(super) at: Timestamp,
    /// The own time before that.
    pub(super) asked: Instant,
}

impl Facts {
    /// The grants of an earlier answer, if every hold of it is still live; `None` as soon as one was
    /// settled, ran out, or was never written.
    pub(super) fn still_live(&self, answer: &GrantAnswer) -> Option<Grants> {
        let since = whole_ms(self.asked.elapsed());
        let grants = answer.grants.iter().map(|&(nonce, hold)| {
            let row = self.rows.get(&nonce).filter(|row| row.hold == hold && row.status == Status::Held)?;
            let held_for_ms = row.held_until.ms_since(self.at).saturating_sub(since);
            (held_for_ms > 0).then_some(Grant { nonce, hold, held_until: row.held_until, held_for_ms })
        });
        let grants = grants.collect::<Option<Vec<_>>>()?;
        Some(Grants { token: answer.token, owner: answer.owner.clone(), grants })
    }
}

/// An answer that waits for the commit.
enum Pending {
    Grant { granting: Granting, reply: Reply<Grants>, answer: GrantAnswer, hold_ms: u64 },
    Settle { settlements: Vec<Settlement>, reply: Reply<Settlements>, answers: Settlements },
    Resolve { resolving: super::command::Resolving, reply: Reply<Status>, status: Status },
    SetPolicy { patch: domain::nonce::PolicyPatch, reply: Reply<Policy>, policy: Policy },
}

/// One batch in the making.
#[derive(Default)]
pub(super) struct Draft {
    changes: BTreeMap<Nonce, Change>,
    keys: Vec<NewKey>,
    policy: Option<Policy>,
    /// A window was set: those in flight must be counted anew before the next grant.
    recount: bool,
    pending: Vec<(Ticket, Pending)>,
}

impl Draft {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Decides on a command. `Some` gives it back: it must wait until this batch is committed, because it
    /// speaks of a nonce, a key or a policy that the batch writes.
    pub(super) fn decide(
        &mut self,
        inner: &Inner,
        tenure: &mut Tenure,
        facts: &Facts,
        work: Work,
    ) -> Option<Work> {
        if self.recount {
            return Some(work);
        }
        let Work { command, ticket } = work;
        match command {
            Command::Grant(granting, reply) => self.grant(inner, tenure, facts, ticket, granting, reply),
            Command::Settle(settlements, reply) => {
                if settlements.iter().any(|settlement| self.changes.contains_key(&settlement.nonce)) {
                    return Some(Work { command: Command::Settle(settlements, reply), ticket });
                }
                let mut nonces: Vec<_> = settlements.iter().map(|settlement| settlement.nonce).collect();
                nonces.sort_unstable();
                nonces.dedup();
                let rows = nonces.iter().filter_map(|nonce| facts.rows.get(nonce).cloned()).collect();
                let settled = settle(rows, &settlements);
                self.write(&mut tenure.allocator, settled.changes);
                self.pending.push((ticket, Pending::Settle { settlements, reply, answers: settled.answers }));
                None
            }
            Command::Resolve(resolving, reply) => {
                if self.changes.contains_key(&resolving.nonce) {
                    return Some(Work { command: Command::Resolve(resolving, reply), ticket });
                }
                let decided = match facts.rows.get(&resolving.nonce) {
                    None => Err(Refusal::UnknownNonce),
                    Some(row) if resolving.hold.is_some_and(|hold| hold != row.hold) => {
                        Err(Refusal::StaleHold)
                    }
                    Some(row) => resolve(row, &resolving.resolution)
                        .map(|change| {
                            let to = match change {
                                Some(Change::Move { to, .. }) => to,
                                _ => row.status,
                            };
                            (change, to)
                        })
                        .map_err(Refusal::NotQuarantined),
                };
                match decided {
                    Err(refusal) => drop(reply.send(Err(refusal))),
                    Ok((change, status)) => {
                        self.write(&mut tenure.allocator, change.into_iter().collect());
                        self.pending.push((ticket, Pending::Resolve { resolving, reply, status }));
                    }
                }
                None
            }
            Command::SetPolicy(patch, reply) => {
                match tenure.allocator.set_policy(&patch) {
                    // What is drafted is not yet so; a refusal must not rest on it.
                    Err(_) if !self.is_empty() => {
                        return Some(Work { command: Command::SetPolicy(patch, reply), ticket });
                    }
                    Err(refusal) => {
                        let first_nonce = refusal.first_nonce;
                        drop(reply.send(Err(Refusal::FirstNonceFixed { first_nonce })));
                    }
                    Ok(policy) => {
                        self.recount |= patch.max_in_flight.is_some();
                        self.policy = Some(policy.clone());
                        self.pending.push((ticket, Pending::SetPolicy { patch, reply, policy }));
                    }
                }
                None
            }
            // The round expired what was overdue before it began to draft.
            Command::Sweep(reply) => {
                drop(reply.send(Ok(())));
                None
            }
        }
    }

    fn grant(
        &mut self,
        inner: &Inner,
        tenure: &mut Tenure,
        facts: &Facts,
        ticket: Ticket,
        mut granting: Granting,
        reply: Reply<Grants>,
    ) -> Option<Work> {
        // The lease was acquired anew since the last try, so that what it sent is in the ledger by now, or
        // never will be.
        if let Some(grants) = granting.lost.take().and_then(|answer| facts.still_live(&answer)) {
            drop(reply.send(Ok(grants)));
            return None;
        }
        if let Some(key) = &granting.request.key {
            if self.keys.iter().any(|drafted| drafted.scope.key == key.key) {
                return Some(Work { command: Command::Grant(granting, reply), ticket });
            }
            if let Some(kept) = facts.kept.get(&key.key) {
                let replay = if kept.body_hash == key.body_hash {
                    facts.still_live(&kept.answer).ok_or(Refusal::StaleReplay)
                } else {
                    Err(Refusal::KeyReused)
                };
                drop(reply.send(replay));
                return None;
            }
        }
        let allocator = &mut tenure.allocator;
        let hold_ms = granting.request.hold_ms.or(allocator.policy().hold_ms).unwrap_or(inner.limits.hold_ms);
        let first_of_signer = (!allocator.is_known()).then(|| allocator.policy().clone());
        let count = granting.request.count;
        let holds: Vec<_> = (0..count).map(|_| HoldId::from_u128(Uuid::new_v4().as_u128())).collect();
        let changes = match allocator.grant(&holds, hold_ms) {
            Ok(changes) => changes,
            // As above.
            Err(_) if !self.is_empty() => {
                return Some(Work { command: Command::Grant(granting, reply), ticket });
            }
            Err(refusal) => {
                drop(reply.send(Err(match refusal {
                    GrantRefusal::WindowFull { in_flight, max_in_flight } => {
                        Refusal::WindowFull { in_flight, max_in_flight }
                    }
                    GrantRefusal::Exhausted => Refusal::Exhausted,
                })));
                return None;
            }
        };
        let answer = GrantAnswer {
            token: tenure.token(),
            owner: inner.owner.clone(),
            grants: changes.iter().map(Change::nonce).zip(holds).collect(),
        };
        if let Some(key) = &granting.request.key {
            let scope = key.scope(tenure.signer());
            self.keys.push(NewKey { scope, body_hash: key.body_hash, answer: answer.clone() });
        }
        self.policy = first_of_signer.or(self.policy.take());
        self.changes.extend(changes.into_iter().map(|change| (change.nonce(), change)));
        self.pending.push((ticket, Pending::Grant { granting, reply, answer, hold_ms }));
        None
    }

    fn write(&mut self, allocator: &mut Allocator, changes: Vec<Change>) {
        allocator.withhold(&changes);
        self.changes.extend(changes.into_iter().map(|change| (change.nonce(), change)));
    }

    /// What is to be committed; `None` where no answer needs a commit.
    pub(super) fn batch(&self, empty: Batch) -> Option<Batch> {
        if self.changes.is_empty() && self.keys.is_empty() && self.policy.is_none() {
            return None;
        }
        let changes = self.changes.values().cloned().collect();
        Some(Batch { keys: self.keys.clone(), policy: self.policy.clone(), changes, ..empty })
    }

    /// What a metric calls this batch: what it does mainly.
    pub(super) fn operation(&self) -> &'static str {
        match self.pending.first() {
            Some((_, Pending::Grant { .. })) => "grant",
            Some((_, Pending::Settle { .. })) => "settle",
            Some((_, Pending::Resolve { .. })) => "resolve",
            Some((_, Pending::SetPolicy { .. })) => "policy",
            None => "nothing",
        }
    }

    /// It is durable: everybody gets their answer. `at` is the commit's time (of no matter where nothing was
    /// granted), `sent` the own time before it.
    pub(super) fn answer(self, tenure: &mut Tenure, at: Timestamp, sent: Instant) {
        let moved: Vec<_> =
            self.changes.into_values().filter(|change| !matches!(change, Change::Grant { .. })).collect();
        tenure.allocator.note(&moved);
        if self.recount {
            tenure.spoil();
        }
        let since = whole_ms(sent.elapsed());
        for (_, pending) in self.pending {
            match pending {
                Pending::Grant { reply, answer, hold_ms, .. } => {
                    let (held_until, held_for_ms) = (at.plus_ms(hold_ms), hold_ms.saturating_sub(since));
                    tenure.granted(hold_ms);
                    let grant = |(nonce, hold)| Grant { nonce, hold, held_until, held_for_ms };
                    let grants: Vec<_> = answer.grants.into_iter().map(grant).collect();
                    metrics::counter!("fencepost_nonce_grants_total").increment(grants.len() as u64);
                    // A caller that has left meanwhile will never settle them: they run out.
                    drop(reply.send(Ok(Grants { token: answer.token, owner: answer.owner, grants })));
                }
                Pending::Settle { reply, answers, .. } => drop(reply.send(Ok(answers))),
                Pending::Resolve { reply, status, .. } => drop(reply.send(Ok(status))),
                Pending::SetPolicy { reply, policy, .. } => drop(reply.send(Ok(policy))),
            }
        }
    }

    /// It is not durable, or nobody knows (`unsure`): the commands are to be decided again. Each grant
    /// remembers what was sent for it.
    pub(super) fn undecided(self, unsure: bool) -> Vec<Work> {
        let work = |(ticket, pending): (Ticket, Pending)| {
            let command = match pending {
                Pending::Grant { granting, reply, answer, .. } => {
                    Command::Grant(Granting { lost: Some(answer), ..granting }, reply)
                }
                Pending::Settle { settlements, reply, .. } => Command::Settle(settlements, reply),
                Pending::Resolve { resolving, reply, .. } => Command::Resolve(resolving, reply),
                Pending::SetPolicy { patch, reply, .. } => Command::SetPolicy(patch, reply),
            };
            // Once unsure, always: what this try drafts again may have been written by an earlier one.
            let unsure = unsure || ticket.unsure;
            Work { command, ticket: Ticket { unsure, ..ticket } }
        };
        self.pending.into_iter().map(work).collect()
    }
}

/// Milliseconds, a begun one counted as a whole: what is left of a hold is never told too long.
fn whole_ms(length: Duration) -> u64 {
    length.as_micros().div_ceil(1_000) as u64
}
