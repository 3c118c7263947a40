//! Builds one batch: commands decided one after the other on what the ledger is known to hold. No caller is answered
//! from here with what a commit has yet to make true.

use std::collections::BTreeMap;
use std::time::Instant;

use super::command::{Answer, Command, Grant, GrantRequest, Grants, QueuedCommand};
use super::config::SignerConfig;
use super::facts::{Facts, whole_ms};
use super::refusal::Refusal;
use crate::AuditEntry;
use crate::id::{HoldId, Nonce, SignerId};
use crate::lease::Token;
use crate::nonce::{
    Allocator, Batch, Change, GrantAnswer, GrantRefusal, KeyScope, NewKey, Policy, Row, Status, resolve,
    settle,
};
use crate::time::Timestamp;

/// What a decision rests on.
pub(super) struct Grounds<'a> {
    pub(super) config: &'a SignerConfig,
    pub(super) signer: &'a SignerId,
    pub(super) token: Token,
    pub(super) allocator: &'a mut Allocator,
    pub(super) facts: &'a Facts,
    /// Whether another batch is being committed: no refusal may rest on what that one has taken.
    pub(super) is_beside_another: bool,
    pub(super) now: Instant,
}

/// What became of a command that was to be decided.
pub(super) enum Decision<R> {
    /// It is part of the batch.
    Added,
    /// It is answered.
    Answered(R, Result<Answer, Refusal>),
    /// It is answered with what its last try has written, whose answer was lost.
    Found(R, Grants),
    /// It is refused. An earlier try may have been written all the same.
    Refused(QueuedCommand<R>, Refusal),
    /// It waits until a batch is committed that writes the nonce, key or policy that it speaks of.
    Deferred(QueuedCommand<R>),
    /// It is a grant under a key of this batch, and waits until that is committed. Those behind it do not wait for that: else
    /// of many grants that come twice each commit would write one.
    Repeated(QueuedCommand<R>),
}

/// The answer that a command gets when the batch is committed.
enum PlannedAnswer {
    Grant { answer: GrantAnswer, hold_ms: u64 },
    Ready(Answer),
}

/// One batch being built, and later being committed.
pub(super) struct BatchBuilder<R> {
    changes: BTreeMap<Nonce, Change>,
    keys: Vec<NewKey>,
    policy: Option<Policy>,
    audit: Vec<AuditEntry>,
    /// A window was set, or whether keys are shared: what the next grant rests on must be read anew.
    must_reload: bool,
    has_grants: bool,
    /// A hole is being written by something else than a grant.
    withholds: bool,
    planned: Vec<(QueuedCommand<R>, PlannedAnswer)>,
}

/// What a committed batch means to its owner.
pub(super) struct CommittedBatch<R> {
    pub(super) replies: Vec<(R, Answer)>,
    /// Changes that the allocator did not decide itself.
    pub(super) moved: Vec<Change>,
    pub(super) must_reload: bool,
    /// Nonces granted.
    pub(super) granted: usize,
    /// The shortest hold granted.
    pub(super) shortest_hold_ms: Option<u64>,
}

impl<R> Default for BatchBuilder<R> {
    fn default() -> Self {
        Self {
            changes: BTreeMap::new(),
            keys: Vec::new(),
            policy: None,
            audit: Vec::new(),
            must_reload: false,
            has_grants: false,
            withholds: false,
            planned: Vec::new(),
        }
    }
}

impl<R> BatchBuilder<R> {
    /// Of changes that no command asked for.
    pub(super) fn of_changes(changes: Vec<Change>) -> Self {
        let changes = changes.into_iter().map(|change| (change.nonce(), change)).collect();
        Self { changes, ..Self::default() }
    }

    pub(super) fn has_answers(&self) -> bool {
        !self.planned.is_empty()
    }

    pub(super) fn writes(&self, nonce: Nonce) -> bool {
        self.changes.contains_key(&nonce)
    }

    pub(super) const fn has_grants(&self) -> bool {
        self.has_grants
    }

    pub(super) const fn sets_policy(&self) -> bool {
        self.policy.is_some()
    }

    /// Whether a command must not even be looked at before this batch is committed: it speaks of a nonce, a key or a
    /// policy that the batch writes, or would take a hole of which the batch may make something else. Nonces behind those
    /// that the batch grants may be decided on, as what is committed only after it.
    pub(super) fn conflicts_with(
        &self,
        queued: &QueuedCommand<R>,
        signer: &SignerId,
        has_shared_keys: bool,
    ) -> bool {
        match &queued.command {
            Command::Grant(request) => {
                let lost = queued.lost.iter().flat_map(|answer| &answer.grants);
                self.withholds
                    || self.sets_policy()
                    || request
                        .key
                        .as_ref()
                        .is_some_and(|key| self.keeps_any(&key.scopes(signer, has_shared_keys)))
                    || lost.into_iter().any(|(nonce, _)| self.writes(*nonce))
            }
            Command::Settle(settlements) => {
                settlements.iter().any(|settlement| self.writes(settlement.nonce))
            }
            Command::Resolve(request) => self.writes(request.nonce),
            Command::SetPolicy(_) => self.has_grants || self.sets_policy(),
            Command::Sweep => self.sets_policy(),
        }
    }

    fn keeps_any(&self, scopes: &[KeyScope]) -> bool {
        // The keys differ sooner than the scopes, which begin alike.
        let is_one = |kept: &KeyScope, of: &KeyScope| kept.key == of.key && kept.scope == of.scope;
        self.keys.iter().any(|kept| scopes.iter().any(|scope| is_one(&kept.scope, scope)))
    }

    /// Decides on a command.
    pub(super) fn decide(&mut self, grounds: &mut Grounds<'_>, mut queued: QueuedCommand<R>) -> Decision<R> {
        if self.must_reload {
            return Decision::Deferred(queued);
        }
        // What is not committed yet is not yet so; a refusal must not rest on it.
        let may_refuse = !self.has_answers() && !grounds.is_beside_another;
        match &mut queued.command {
            Command::Grant(request) => {
                let request = request.clone();
                self.grant(grounds, queued, &request, may_refuse)
            }
            Command::Settle(settlements) => {
                if settlements.iter().any(|settlement| self.writes(settlement.nonce)) {
                    return Decision::Deferred(queued);
                }
                let mut nonces: Vec<_> = settlements.iter().map(|settlement| settlement.nonce).collect();
                nonces.sort_unstable();
                nonces.dedup();
                let rows = nonces.iter().filter_map(|nonce| grounds.facts.row(*nonce).cloned()).collect();
                let settled = settle(rows, settlements);
                self.add_changes(grounds.allocator, settled.changes);
                self.plan(queued, PlannedAnswer::Ready(Answer::Settled(settled.answers)))
            }
            Command::Resolve(request) => {
                if self.writes(request.nonce) {
                    return Decision::Deferred(queued);
                }
                let decided = match grounds.facts.row(request.nonce) {
                    None => Err(Refusal::UnknownNonce),
                    Some(row) if request.hold.is_some_and(|hold| hold != row.hold) => Err(Refusal::StaleHold),
                    Some(row) => resolve(row, &request.resolution)
                        .map(|change| {
                            let to = match change {
                                Some(Change::Move { to, .. }) => to,
                                _ => row.status,
                            };
                            (change, row, to)
                        })
                        .map_err(Refusal::NotQuarantined),
                };
                match decided {
                    Err(refusal) => Decision::Refused(queued, refusal),
                    Ok((change, &Row { hold, status: before, .. }, status)) => {
                        // If this try is lost, the next one decides about the same hold or not at all: the nonce may be
                        // another caller's by then.
                        request.hold = Some(hold);
                        if let (Some(by), Some(_)) = (&queued.ticket.audit, &change) {
                            let (before, after) = (before.as_str().to_owned(), status.as_str().to_owned());
                            self.audit.push(by.changed(before, after));
                        }
                        self.add_changes(grounds.allocator, change.into_iter().collect());
                        self.plan(queued, PlannedAnswer::Ready(Answer::Resolved(status)))
                    }
                }
            }
            Command::SetPolicy(patch) => {
                // If both were written and the answer was lost, the next try would note that the first changes what the second
                // set.
                if self.planned.iter().any(|(beside, _)| matches!(beside.command, Command::SetPolicy(_))) {
                    return Decision::Deferred(queued);
                }
                let (was_known, before) =
                    (grounds.allocator.is_known(), grounds.allocator.policy().to_string());
                match grounds.allocator.set_policy(patch) {
                    Err(_) if !may_refuse => Decision::Deferred(queued),
                    Err(refusal) => Decision::Refused(
                        queued,
                        Refusal::FirstNonceFixed { first_nonce: refusal.first_nonce },
                    ),
                    Ok(policy) => {
                        self.must_reload |= patch.max_in_flight.is_some() || patch.shared_keys.is_some();
                        self.policy = Some(policy.clone());
                        let after = policy.to_string();
                        // An earlier try of this change may have been written, with its entry.
                        if let Some(by) = &queued.ticket.audit
                            && (!was_known || before != after)
                        {
                            self.audit.push(by.changed(before, after));
                        }
                        self.plan(queued, PlannedAnswer::Ready(Answer::PolicySet(policy)))
                    }
                }
            }
            // What was overdue was expired before the round was decided.
            Command::Sweep => Decision::Answered(queued.ticket.caller, Ok(Answer::Swept)),
        }
    }

    fn grant(
        &mut self,
        grounds: &mut Grounds<'_>,
        mut queued: QueuedCommand<R>,
        request: &GrantRequest,
        may_refuse: bool,
    ) -> Decision<R> {
        // What was granted before a recovery may have been used in the time that the ledger has lost.
        if grounds.allocator.is_recovering() {
            return Decision::Refused(queued, Refusal::Recovering);
        }
        // The lease was acquired anew since the last try, so that what it sent is in the ledger by now, or never will
        // be.
        if let Some(lost) = queued.lost.take()
            && let Some(grants) = grounds.facts.still_live(&lost, grounds.now)
        {
            return Decision::Found(queued.ticket.caller, grants);
        }
        let is_shared = grounds.allocator.policy().shared_keys;
        let key = request.key.as_ref().map(|key| (key, key.scopes(grounds.signer, is_shared)));
        if let Some((key, scopes)) = &key {
            if self.keeps_any(scopes) {
                return Decision::Repeated(queued);
            }
            if let Some(kept) = scopes.iter().find_map(|scope| grounds.facts.kept.get(scope)) {
                let replay = if kept.body_hash == key.body_hash {
                    let live = grounds.facts.still_live(&kept.answer, grounds.now);
                    live.ok_or_else(|| Refusal::stale_replay(&kept.answer))
                } else {
                    Err(Refusal::KeyReused)
                };
                return Decision::Answered(queued.ticket.caller, replay.map(Answer::Granted));
            }
        }
        let allocator = &mut *grounds.allocator;
        // What this batch quarantines counts for the window once it is committed.
        if self.withholds && allocator.policy().max_in_flight.is_some() {
            return Decision::Deferred(queued);
        }
        let hold_ms = request.hold_ms.or(allocator.policy().hold_ms).unwrap_or(grounds.config.hold_ms);
        let policy_of_new = (!allocator.is_known()).then(|| allocator.policy().clone());
        let holds: Vec<HoldId> = (0..request.count).map(|_| (grounds.config.sources.hold_id)()).collect();
        let changes = match allocator.grant(&holds, hold_ms) {
            Ok(changes) => changes,
            Err(_) if !may_refuse => return Decision::Deferred(queued),
            Err(refusal) => {
                let refusal = match refusal {
                    GrantRefusal::WindowFull { in_flight, max_in_flight, asked } => {
                        Refusal::WindowFull { in_flight, max_in_flight, asked }
                    }
                    GrantRefusal::Exhausted { left } => Refusal::Exhausted { left },
                    GrantRefusal::Recovering => Refusal::Recovering,
                };
                return Decision::Answered(queued.ticket.caller, Err(refusal));
            }
        };
        let answer = GrantAnswer {
            token: grounds.token,
            owner: grounds.config.owner.clone(),
            grants: changes.iter().map(Change::nonce).zip(holds).collect(),
        };
        if let Some((key, scopes)) = key {
            let kept = |scope| NewKey { scope, body_hash: key.body_hash, answer: answer.clone() };
            self.keys.extend(scopes.into_iter().map(kept));
        }
        self.policy = policy_of_new.or(self.policy.take());
        self.has_grants = true;
        self.changes.extend(changes.into_iter().map(|change| (change.nonce(), change)));
        self.plan(queued, PlannedAnswer::Grant { answer, hold_ms })
    }

    fn add_changes(&mut self, allocator: &mut Allocator, changes: Vec<Change>) {
        allocator.withhold(&changes);
        for change in changes {
            self.withholds |= matches!(change, Change::Move { from: Status::Released, .. });
            self.changes.insert(change.nonce(), change);
        }
    }

    fn plan(&mut self, queued: QueuedCommand<R>, answer: PlannedAnswer) -> Decision<R> {
        self.planned.push((queued, answer));
        Decision::Added
    }

    /// Whether an answer needs a commit.
    pub(super) fn has_writes(&self) -> bool {
        !self.changes.is_empty() || !self.keys.is_empty() || self.policy.is_some()
    }

    /// What is to be committed.
    pub(super) fn batch(&self, config: &SignerConfig, signer: &SignerId, token: Token) -> Batch {
        Batch {
            signer: signer.clone(),
            owner: config.owner.clone(),
            token,
            keys: self.keys.clone(),
            policy: self.policy.clone(),
            changes: self.changes.values().cloned().collect(),
            audit: self.audit.clone(),
        }
    }

    /// What a metric calls this batch: what it does mainly. One of [`BATCH_OPERATIONS`].
    pub(super) fn operation(&self) -> &'static str {
        match self.planned.first().map(|(queued, _)| &queued.command) {
            Some(Command::Grant(_)) => "grant",
            Some(Command::Settle(_)) => "settle",
            Some(Command::Resolve(_)) => "resolve",
            Some(Command::SetPolicy(_)) => "policy",
            Some(Command::Sweep) | None => "expire",
        }
    }

    /// It is durable. `at` is the commit's time (it does not count where nothing was granted), `sent` the own time
    /// before it.
    pub(super) fn committed(self, at: Timestamp, sent: Instant, now: Instant) -> CommittedBatch<R> {
        let since = whole_ms(now.saturating_duration_since(sent));
        let is_moved = |change: &Change| !matches!(change, Change::Grant { .. });
        let mut committed = CommittedBatch {
            replies: Vec::with_capacity(self.planned.len()),
            moved: self.changes.into_values().filter(is_moved).collect(),
            must_reload: self.must_reload,
            granted: 0,
            shortest_hold_ms: None,
        };
        for (queued, planned) in self.planned {
            let answer = match planned {
                PlannedAnswer::Ready(answer) => answer,
                PlannedAnswer::Grant { answer, hold_ms } => {
                    committed.granted += answer.grants.len();
                    committed.shortest_hold_ms =
                        Some(committed.shortest_hold_ms.map_or(hold_ms, |shortest| shortest.min(hold_ms)));
                    let (held_until, held_for_ms) = (at.plus_ms(hold_ms), hold_ms.saturating_sub(since));
                    let grant = |(nonce, hold)| Grant { nonce, hold, held_until, held_for_ms };
                    let grants = answer.grants.into_iter().map(grant).collect();
                    Answer::Granted(Grants { token: answer.token, owner: answer.owner, grants })
                }
            };
            committed.replies.push((queued.ticket.caller, answer));
        }
        committed
    }

    /// It is not durable, or nobody knows (`is_unsure`): its commands are to be decided again. Each grant remembers
    /// what was sent for it.
    pub(super) fn undecided(self, is_unsure: bool) -> impl Iterator<Item = QueuedCommand<R>> {
        self.planned.into_iter().map(move |(mut queued, planned)| {
            if let PlannedAnswer::Grant { answer, .. } = planned {
                queued.lost = Some(answer);
            }
            // Once unsure, always: what this try sends again may have been written by an earlier one.
            queued.is_unsure |= is_unsure;
            queued
        })
    }
}
