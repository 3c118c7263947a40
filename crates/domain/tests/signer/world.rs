//! A ledger in memory that keeps SPEC's rules in the simplest way, and the calls that a state has under way on it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::database_clock::{DueHold, LastKept, Overdue, ReadRow};
use domain::limits::HOLES_IN_MEMORY_MAX;
use domain::nonce::{
    Batch, Change, Hole, KeptKey, KeyScope, Loaded, OnExpiry, Outcome, Policy, PolicyPatch, Resolution, Row,
    Settlement, Status, Verdict,
};
use domain::signer::{
    Acquired, Answer, BatchId, Caller, Command, Effect, Effects, FactsRead, GrantRequest, LedgerFailure,
    Moment, Note, Phase, Refusal, RequestKey, ResolveRequest, Round, SignerConfig, SignerState, Sources,
    Ticket,
};
use domain::{AuditEntry, HoldId, IdempotencyKey, InstanceId, Mode, Nonce, SignerId, Timestamp, Token};

pub const LEASE: Duration = Duration::from_millis(15_000);
pub const REQUEST: Duration = Duration::from_millis(5_000);
pub const PATIENCE: Duration = Duration::from_millis(250);
pub const WAITING_MAX: usize = 12;
pub const HOLD_MS: u64 = 60_000;

thread_local! {
    static HOLDS: Cell<u128> = const { Cell::new(1) };
}

fn next_hold() -> HoldId {
    HoldId::from_u128(HOLDS.with(|holds| holds.replace(holds.get() + 1)))
}

/// A caller with a number, who may leave.
#[derive(Clone, Debug)]
pub struct Asker {
    pub number: usize,
    pub left: Rc<Cell<bool>>,
}

impl Caller for Asker {
    fn has_left(&self) -> bool {
        self.left.get()
    }
}

/// A ledger call under way.
#[derive(Debug)]
pub enum Call {
    Acquire,
    Load,
    Facts { round: Round, keys: Vec<KeyScope>, nonces: Vec<Nonce>, reads_holes: bool },
    Overdue { round: Round, from: Option<Timestamp>, max: usize },
    Commit { id: BatchId, batch: Batch, after: Option<BatchId> },
    Release(Token),
    Reclaim,
}

/// How a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Well,
    /// Done, and the answer is lost.
    DoneUnheard,
    /// Not done, and nobody knows.
    NotDone,
    /// The lease's row is locked (commits).
    Locked,
    Defect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Nobody,
    Me,
    Other,
}

/// What became of a command.
pub type Outcomes = HashMap<usize, Result<Answer, Refusal>>;

pub struct World {
    pub state: SignerState<Asker>,
    pub now: Instant,
    pub micros: i64,
    pub mode: Mode,
    pub phase: Phase,
    pub is_alive: bool,
    pub lease_until: Option<Instant>,
    pub calls: Vec<Call>,
    pub wake_at: Option<Instant>,
    pub outcomes: Outcomes,
    pub stopped: bool,
    pub reclaims: usize,
    new_owner: Option<InstanceId>,
    // The ledger.
    pub owner: Owner,
    /// The other one's lease has run out, and is not to be taken yet.
    pub is_lapsed: bool,
    pub token: i64,
    my_token: Option<Token>,
    pub rows: BTreeMap<Nonce, Row>,
    /// The state of each nonce before its last write.
    was: HashMap<Nonce, Status>,
    pub policy: Option<Policy>,
    /// The ledger was recovered, and the signer's next nonce is not confirmed.
    pub is_recovering: bool,
    keys: HashMap<KeyScope, KeptKey>,
    /// Every hold ever committed.
    pub granted: Vec<(Nonce, HoldId)>,
    /// As many nonces were granted, as the metric counts them.
    pub counted: usize,
    /// How many nonces were quarantined each time, and the lowest of them, as the log has it.
    pub quarantined: Vec<(usize, Nonce)>,
    pub commands: Vec<(Command, Rc<Cell<bool>>)>,
    /// What the last change of the policy was answered with.
    policy_answered: Option<Policy>,
    /// Batches that wait to be sent again.
    locked: HashMap<BatchId, Batch>,
    /// Batches that are in the ledger.
    done: HashSet<BatchId>,
    /// Batches that were written behind another, and those that were undone with it.
    pub followers: usize,
    pub undone: usize,
    must_reload: bool,
    commits_max: usize,
    /// Nonces whose holds have not run out by the owner's own clock.
    pub kept: HashSet<Nonce>,
    /// After how long they are said to do so.
    pub kept_for: Duration,
    /// Nonces over whose holds the database's clock jumped.
    pub doubtful: HashSet<Nonce>,
}

impl World {
    pub fn new(mode: Mode, commits_in_flight_max: usize) -> Self {
        let config = SignerConfig {
            owner: InstanceId::parse("me").unwrap(),
            hold_ms: HOLD_MS,
            lease_kept_max: Duration::from_millis(100),
            idle: Duration::from_millis(1_000),
            waiting_commands_max: WAITING_MAX,
            commits_in_flight_max,
            nonces_beside_min: 0,
            sources: Sources { hold_id: next_hold, jittered: |length| length },
        };
        Self {
            state: SignerState::new(SignerId::parse("s").unwrap(), Arc::new(config)),
            now: Instant::now(),
            micros: 1_000_000,
            mode,
            phase: Phase::Serving,
            is_alive: true,
            lease_until: None,
            calls: Vec::new(),
            wake_at: None,
            outcomes: HashMap::new(),
            stopped: false,
            reclaims: 0,
            new_owner: None,
            owner: Owner::Nobody,
            is_lapsed: false,
            token: 0,
            my_token: None,
            rows: BTreeMap::new(),
            was: HashMap::new(),
            policy: None,
            is_recovering: false,
            keys: HashMap::new(),
            granted: Vec::new(),
            counted: 0,
            quarantined: Vec::new(),
            commands: Vec::new(),
            policy_answered: None,
            locked: HashMap::new(),
            done: HashSet::new(),
            followers: 0,
            undone: 0,
            must_reload: true,
            commits_max: commits_in_flight_max,
            kept: HashSet::new(),
            kept_for: Duration::from_millis(10),
            doubtful: HashSet::new(),
        }
    }

    pub fn moment(&self) -> Moment {
        Moment {
            now: self.now,
            lease_until: self.lease_until,
            is_alive: self.is_alive,
            mode: self.mode,
            phase: self.phase,
            may_idle: true,
        }
    }

    /// Asks; answers the caller's number. The state goes on at once if it wants to.
    pub fn ask(&mut self, command: Command) -> usize {
        let number = self.apply(command);
        self.proceed();
        number
    }

    /// Asks without letting the state go on.
    pub fn apply(&mut self, command: Command) -> usize {
        self.apply_audited(command, None)
    }

    /// The same with an entry of the audit, as what an operator asks for.
    pub fn apply_audited(&mut self, command: Command, audit: Option<Box<AuditEntry>>) -> usize {
        self.stopped = false;
        let number = self.commands.len();
        let left = Rc::new(Cell::new(false));
        self.commands.push((command.clone(), Rc::clone(&left)));
        let ticket = Ticket {
            audit,
            caller: Asker { number, left },
            arrived: self.now,
            patience: self.now + if self.mode == Mode::Basic { PATIENCE } else { Duration::ZERO },
            deadline: self.now + REQUEST,
        };
        let effects = self.state.apply(command, ticket, &self.moment());
        self.run(effects);
        number
    }

    pub fn proceed(&mut self) {
        let effects = self.state.proceed(&self.moment());
        self.run(effects);
    }

    pub fn pass(&mut self, length: Duration) {
        self.now += length;
        self.micros += length.as_micros() as i64;
        if self.wake_at.is_some_and(|at| at <= self.now) {
            self.wake();
        }
    }

    pub fn wake(&mut self) {
        self.wake_at = None;
        let effects = self.state.wake(&self.moment());
        self.run(effects);
    }

    pub fn hand_off(&mut self, to: Option<&str>) {
        self.new_owner = to.map(|to| InstanceId::parse(to).unwrap());
        let effects = self.state.hand_off(&self.moment());
        self.run(effects);
    }

    /// The keys of the batches under way are taken, for grants that are not live: these.
    pub fn take_keys(&mut self) -> Vec<(Nonce, HoldId)> {
        let mut taken = Vec::new();
        for call in &self.calls {
            if let Call::Commit { batch, .. } = call {
                for key in &batch.keys {
                    let kept = KeptKey { body_hash: key.body_hash, answer: key.answer.clone() };
                    taken.extend_from_slice(&kept.answer.grants);
                    self.keys.insert(key.scope.clone(), kept);
                }
            }
        }
        taken
    }

    /// Another instance takes the lease from its owner, if it has one.
    pub fn steal(&mut self) {
        self.owner = Owner::Other;
        self.token += 1;
    }

    /// The nonces that batches under way write; the last of them that grants; whether one makes or takes holes; whether one
    /// sets the policy.
    fn in_flight(&self) -> (HashSet<Nonce>, Option<BatchId>, bool, bool) {
        let (mut nonces, mut withholds, mut has_policy) = (HashSet::new(), false, false);
        let sent = self.calls.iter().filter_map(|call| match call {
            Call::Commit { batch, .. } => Some(batch),
            _ => None,
        });
        for batch in sent.chain(self.locked.values()) {
            nonces.extend(batch.changes.iter().map(Change::nonce));
            has_policy |= batch.policy.is_some();
            // A grant would take a hole behind one of which nobody knows yet whether it stays one.
            withholds |= batch
                .changes
                .iter()
                .any(|change| matches!(change, Change::Move { from: Status::Released, .. }));
        }
        let last = self.calls.iter().rev().find_map(|call| match call {
            Call::Commit { id, batch, .. } => grants_any(batch).then_some(*id),
            _ => None,
        });
        (nonces, last, withholds, has_policy)
    }

    /// What every batch must keep to when it leaves.
    fn check_sent(&mut self, id: BatchId, batch: &Batch, after: Option<BatchId>) {
        let is_again = self.locked.remove(&id).is_some();
        assert!(!self.must_reload, "sent on what may not be so: {batch:?}");
        assert!(
            self.is_alive && self.lease_until.is_some_and(|until| self.now < until),
            "sent past the lease"
        );
        assert_eq!(Some(batch.token), self.my_token, "sent under another token than the newest");
        let in_flight = self.calls.iter().filter(|call| matches!(call, Call::Commit { .. })).count();
        assert!(in_flight < self.commits_max, "too many commits in flight");
        let (nonces, last, withholds, has_policy) = self.in_flight();
        assert!(self.state.commits_in_flight() <= self.commits_max);
        let mut written = BTreeSet::new();
        for change in &batch.changes {
            assert!(written.insert(change.nonce()), "one write per row and batch");
            assert!(!nonces.contains(&change.nonce()), "one write per row under way");
        }
        let mut grants: Vec<_> = batch
            .changes
            .iter()
            .filter_map(|change| match change {
                Change::Grant { nonce, fills, .. } => Some((*nonce, *fills)),
                _ => None,
            })
            .collect();
        // What is sent again was decided before.
        if grants.is_empty() || is_again {
            return;
        }
        assert!(!withholds && !has_policy, "a grant rests on what is not committed");
        assert_eq!(after, last, "nonces behind those of a batch under way are committed after it");
        self.followers += usize::from(after.is_some());
        grants.sort();
        // Where another owner has written meanwhile, the fence refuses whatever it is.
        if self.owner != Owner::Me || self.token != batch.token.get() {
            return;
        }
        let withheld: BTreeSet<_> = batch
            .changes
            .iter()
            .filter(|change| !matches!(change, Change::Grant { .. }))
            .map(Change::nonce)
            .collect();
        let mut holes: Vec<_> = self
            .rows
            .values()
            .filter(|row| row.status == Status::Released)
            .map(|row| row.nonce)
            .filter(|nonce| !withheld.contains(nonce) && !nonces.contains(nonce))
            .collect();
        holes.sort();
        let first =
            batch.policy.as_ref().or(self.policy.as_ref()).map_or(0, |policy| policy.first_nonce.get());
        let last_row = self.rows.last_key_value().map(|(nonce, _)| *nonce);
        let last = nonces.iter().copied().chain(last_row).max();
        let mut next = last.map_or(first, |nonce| nonce.get() + 1);
        for (at, (nonce, fills)) in grants.iter().enumerate() {
            match holes.get(at) {
                Some(hole) => {
                    assert_eq!((nonce, fills.is_some()), (hole, true), "lowest hole first: {batch:?}")
                }
                None => {
                    assert_eq!((nonce.get(), *fills), (next, None), "no gap: {batch:?}");
                    next += 1;
                }
            }
        }
    }

    pub fn run(&mut self, effects: Effects<Asker>) {
        for effect in effects {
            match effect {
                // The test calls `proceed` itself.
                Effect::Proceed => {}
                Effect::Acquire { .. } => self.calls.push(Call::Acquire),
                Effect::Load => self.calls.push(Call::Load),
                Effect::ReadFacts { round, keys, nonces, reads_holes } => {
                    self.calls.push(Call::Facts { round, keys, nonces, reads_holes });
                }
                Effect::ReadOverdue { round, from, max } => {
                    self.calls.push(Call::Overdue { round, from, max });
                }
                Effect::Commit { id, batch, after, .. } => {
                    self.check_sent(id, &batch, after);
                    self.calls.push(Call::Commit { id, batch, after });
                }
                Effect::Reply(asker, outcome) => self.answered(&asker, outcome),
                Effect::Release { is_awaited } => {
                    self.lease_until = None;
                    let token = self.my_token.take().expect("a lease to release");
                    if is_awaited {
                        self.calls.push(Call::Release(token));
                    } else {
                        self.release(token);
                    }
                }
                Effect::Reclaim => {
                    self.lease_until = None;
                    self.my_token = None;
                    self.calls.push(Call::Reclaim);
                }
                Effect::WakeAt(at) => {
                    assert!(at > self.now, "a wake-up in the past would go round for ever");
                    self.wake_at = Some(self.wake_at.map_or(at, |set| set.min(at)));
                }
                Effect::Note(Note::Diverged { op }) => panic!("{op}: a row was not as its owner knew it"),
                Effect::Note(Note::Granted(nonces)) => self.counted += nonces,
                Effect::Note(Note::Quarantined { nonces, lowest }) => self.quarantined.push((nonces, lowest)),
                Effect::Note(_) => {}
                Effect::Stop => {
                    // What a round reads that was given up is nobody's loss.
                    let is_read = |call: &Call| matches!(call, Call::Facts { .. } | Call::Overdue { .. });
                    assert!(self.calls.iter().all(is_read), "stopped with {:?} under way", self.calls);
                    self.calls.clear();
                    self.stopped = true;
                }
            }
        }
        // The last one of a batch: those before it were decided on what it has changed.
        if let Some(policy) = self.policy_answered.take() {
            assert_eq!(self.policy, Some(policy));
        }
    }

    /// An answer must be true when it is given.
    fn answered(&mut self, asker: &Asker, outcome: Result<Answer, Refusal>) {
        let is_mine = self.owner == Owner::Me;
        match &outcome {
            Ok(Answer::Granted(grants)) => {
                for grant in &grants.grants {
                    assert!(
                        self.granted.contains(&(grant.nonce, grant.hold)),
                        "a grant that is not in the ledger"
                    );
                    let row = &self.rows[&grant.nonce];
                    // Under another owner the hold may have moved on since the commit.
                    assert!(!is_mine || row.hold == grant.hold, "somebody else's nonce: {grant:?} {row:?}");
                }
            }
            Ok(Answer::Settled(answers)) => {
                let Command::Settle(settlements) = &self.commands[asker.number].0 else {
                    panic!("{outcome:?}")
                };
                for (settlement, answer) in settlements.iter().zip(answers) {
                    let Ok(status) = answer else { continue };
                    let row = &self.rows[&settlement.nonce];
                    // Another command of the same batch may have moved it on.
                    let was = self.was.get(&settlement.nonce);
                    assert!(
                        Some(row.hold) != settlement.hold || row.status == *status || was == Some(status),
                        "{settlement:?} {status:?} {row:?}"
                    );
                    // CONSUMED is final, and so is the transaction once it is named.
                    if let Outcome::Consumed(Some(tx_hash)) = &settlement.outcome {
                        assert_eq!(row.tx_hash.as_ref(), Some(tx_hash), "{settlement:?} {row:?}");
                    }
                }
            }
            Ok(Answer::PolicySet(policy)) => self.policy_answered = Some(policy.clone()),
            _ => {}
        }
        let before = self.outcomes.insert(asker.number, outcome);
        assert!(before.is_none(), "answered twice");
    }

    fn release(&mut self, token: Token) {
        if self.owner == Owner::Me && self.token == token.get() {
            self.owner = Owner::Nobody;
        }
    }

    /// A call under way comes to its end; a batch that follows another only after that one.
    pub fn complete(&mut self, at: usize, fate: Fate) {
        let ahead = match &self.calls[at] {
            Call::Commit { after: Some(after), .. } => {
                self.calls.iter().position(|call| matches!(call, Call::Commit { id, .. } if id == after))
            }
            _ => None,
        };
        if let Some(ahead) = ahead {
            return self.complete(ahead, fate);
        }
        let call = self.calls.remove(at);
        let is_done = !matches!(fate, Fate::NotDone | Fate::Defect | Fate::Locked);
        let failure = match fate {
            Fate::Defect => Some(LedgerFailure::Defect),
            Fate::DoneUnheard | Fate::NotDone => Some(LedgerFailure::Away),
            Fate::Well | Fate::Locked => None,
        };
        let effects = match call {
            Call::Acquire => {
                let sent = self.now;
                let is_free = self.owner != Owner::Other;
                self.must_reload = true;
                // Given up before.
                self.locked.clear();
                if is_done && is_free {
                    self.owner = Owner::Me;
                    self.token += 1;
                }
                let result = match failure {
                    Some(failure) => Err(failure),
                    None if is_free => {
                        self.my_token = Some(Token::new(self.token));
                        self.lease_until = Some(sent + LEASE);
                        Ok(Acquired::Lease(Token::new(self.token)))
                    }
                    None if self.is_lapsed => Ok(Acquired::Lapsed),
                    None => {
                        let owner = InstanceId::parse("other").unwrap();
                        Ok(Acquired::Held { owner, expires_in_ms: 1_000 })
                    }
                };
                self.state.acquired(result, &self.moment())
            }
            Call::Load => {
                let (holes, holes_complete) = self.holes();
                let loaded = Loaded {
                    is_recovering: self.is_recovering,
                    is_confirmed: false,
                    policy: self.policy.clone(),
                    last: self.rows.last_key_value().map(|(nonce, _)| *nonce),
                    in_flight: self.rows.values().filter(|row| row.status.is_in_flight()).count() as u64,
                    holes,
                    holes_complete,
                };
                self.must_reload &= failure.is_some();
                self.state.loaded(failure.map_or(Ok(loaded), Err), &self.moment())
            }
            Call::Facts { round, keys, mut nonces, reads_holes } => {
                let kept: Vec<_> = keys
                    .iter()
                    .filter_map(|scope| self.keys.get(scope).map(|kept| (scope.clone(), kept.clone())))
                    .collect();
                for (_, kept) in &kept {
                    nonces.extend(kept.answer.grants.iter().map(|(nonce, _)| *nonce));
                }
                let at = Timestamp::from_micros(self.micros);
                let read_row = |row: &Row| ReadRow { row: row.clone(), left_ms: row.held_until.ms_since(at) };
                let rows = nonces.iter().filter_map(|nonce| self.rows.get(nonce).map(read_row)).collect();
                let has_lease = self.owner == Owner::Me && self.my_token == Some(Token::new(self.token));
                let is_owned = kept.is_empty() || has_lease;
                let read = FactsRead { kept, rows, holes: reads_holes.then(|| self.holes()), is_owned };
                self.state.facts_read(round, failure.map_or(Ok(read), Err), &self.moment())
            }
            Call::Overdue { round, from, max } => {
                let at = Timestamp::from_micros(self.micros);
                let mut late: Vec<_> = self
                    .rows
                    .values()
                    .filter(|row| row.status == Status::Held && row.held_until <= at)
                    .filter(|row| from.is_none_or(|from| row.held_until >= from))
                    .collect();
                late.sort_by_key(|row| row.held_until);
                late.truncate(max);
                let kept = || late.iter().filter(|row| self.kept.contains(&row.nonce));
                let last_kept = kept().next_back().map(|last| LastKept {
                    held_until: last.held_until,
                    holds: kept().filter(|row| row.held_until == last.held_until).count(),
                });
                let due = late.iter().filter(|row| !self.kept.contains(&row.nonce));
                let due = due.map(|row| DueHold {
                    nonce: row.nonce,
                    hold: row.hold,
                    early_ms: 0,
                    is_doubtful: self.doubtful.contains(&row.nonce),
                });
                let held = self.rows.values().filter(|row| row.status == Status::Held && row.held_until > at);
                let later = held.map(|row| Duration::from_millis(row.held_until.ms_since(at))).min();
                let next = last_kept.map(|_| self.kept_for);
                let (due, has_more) = (due.collect(), late.len() >= max);
                let overdue = Overdue { due, last_kept, next, later, has_more };
                self.state.overdue_read(round, failure.map_or(Ok(overdue), Err), &self.moment())
            }
            Call::Commit { id, batch, after } => {
                let is_undone = after.is_some_and(|after| !self.done.contains(&after));
                let failure = failure.filter(|_| !is_undone);
                let verdict = match () {
                    () if is_undone => Verdict::Undone,
                    () if is_done => self.commit(&batch),
                    () => Verdict::Again,
                };
                self.undone += usize::from(is_undone);
                let fate = if is_undone { Fate::Well } else { fate };
                if matches!(verdict, Verdict::Committed { .. }) && failure.is_none() {
                    self.done.insert(id);
                }
                if fate == Fate::Locked {
                    self.locked.insert(id, batch);
                }
                self.must_reload |= failure.is_some()
                    || matches!(
                        verdict,
                        Verdict::KeyTaken | Verdict::Fenced | Verdict::Diverged | Verdict::Undone
                    );
                self.state.committed(id, failure.map_or(Ok(verdict), Err), &self.moment())
            }
            Call::Release(token) => {
                if is_done {
                    self.release(token);
                }
                self.state.released(self.new_owner.take(), &self.moment())
            }
            Call::Reclaim => {
                self.reclaims += 1;
                if is_done && self.owner == Owner::Me {
                    self.owner = Owner::Nobody;
                }
                self.state.reclaimed(&self.moment())
            }
        };
        self.run(effects);
    }

    fn holes(&self) -> (Vec<Hole>, bool) {
        let released = || self.rows.values().filter(|row| row.status == Status::Released);
        let holes = released()
            .take(HOLES_IN_MEMORY_MAX)
            .map(|row| Hole { nonce: row.nonce, hold: row.hold })
            .collect();
        (holes, released().count() <= HOLES_IN_MEMORY_MAX)
    }

    /// SPEC 1 and 2 in their simplest form.
    fn commit(&mut self, batch: &Batch) -> Verdict {
        if self.owner != Owner::Me || self.token != batch.token.get() {
            return Verdict::Fenced;
        }
        if batch.keys.iter().any(|key| self.keys.contains_key(&key.scope)) {
            return Verdict::KeyTaken;
        }
        let at = Timestamp::from_micros(self.micros);
        let mut rows = self.rows.clone();
        let mut granted = Vec::new();
        for change in &batch.changes {
            let row = rows.get(&change.nonce());
            match change {
                Change::Grant { nonce, hold, hold_ms, fills } => {
                    let is_as_said = match (row, fills) {
                        (None, None) => true,
                        (Some(row), Some(last)) => row.status == Status::Released && row.hold == *last,
                        _ => false,
                    };
                    if !is_as_said {
                        return Verdict::Diverged;
                    }
                    let held_until = at.plus_ms(*hold_ms);
                    let row = Row {
                        nonce: *nonce,
                        status: Status::Held,
                        hold: *hold,
                        written_at: at,
                        held_until,
                        tx_hash: None,
                    };
                    rows.insert(*nonce, row);
                    granted.push((*nonce, *hold));
                }
                Change::Move { nonce, hold, from, to, tx_hash } => {
                    match row.filter(|row| row.status == *from && row.hold == *hold).cloned() {
                        None => return Verdict::Diverged,
                        Some(row) => {
                            let is_kept = row.tx_hash.is_none() || row.tx_hash == *tx_hash;
                            assert!(is_kept, "a transaction is overwritten: {row:?} {change:?}");
                            rows.insert(*nonce, Row { status: *to, tx_hash: tx_hash.clone(), ..row })
                        }
                    };
                }
                Change::Expire { nonce, hold, to, .. } => {
                    let is_due =
                        |row: &&Row| row.status == Status::Held && row.hold == *hold && row.held_until <= at;
                    match row.filter(is_due).cloned() {
                        None => return Verdict::Diverged,
                        Some(row) => rows.insert(*nonce, Row { status: *to, ..row }),
                    };
                }
            }
        }
        let before = |change: &Change| self.rows.get(&change.nonce()).map(|row| (row.nonce, row.status));
        self.was.extend(batch.changes.iter().filter_map(before));
        self.rows = rows;
        self.granted.extend(granted);
        for key in &batch.keys {
            let kept = KeptKey { body_hash: key.body_hash, answer: key.answer.clone() };
            self.keys.insert(key.scope.clone(), kept);
        }
        self.policy = batch.policy.clone().or(self.policy.take());
        Verdict::Committed { at }
    }

    /// Lets everything come to its end, without faults.
    pub fn settle_down(&mut self) {
        for _ in 0..10_000 {
            if self.stopped {
                return;
            }
            if !self.calls.is_empty() {
                self.complete(0, Fate::Well);
            } else if let Some(at) = self.wake_at {
                self.pass(at.saturating_duration_since(self.now));
            } else {
                self.proceed();
            }
        }
        panic!("it never comes to rest");
    }

    /// Does what can be done without time passing.
    pub fn serve(&mut self) {
        while !self.calls.is_empty() {
            self.complete(0, Fate::Well);
        }
    }
}

fn grants_any(batch: &Batch) -> bool {
    batch.changes.iter().any(|change| matches!(change, Change::Grant { .. }))
}

pub fn nonce(number: u64) -> Nonce {
    Nonce::new(number).unwrap()
}

/// The refusal of a repeated grant of these.
pub fn stale(grants: &[(Nonce, HoldId)]) -> Refusal {
    Refusal::StaleReplay { grants: grants.to_vec() }
}

pub fn grant(count: usize) -> Command {
    Command::Grant(GrantRequest { count, hold_ms: None, key: None })
}

pub fn short(hold_ms: u64) -> Command {
    Command::Grant(GrantRequest { count: 1, hold_ms: Some(hold_ms), key: None })
}

pub fn keyed(count: usize, key: &str) -> Command {
    keyed_by("", count, key)
}

/// The same by a caller with a name.
pub fn keyed_by(principal: &str, count: usize, key: &str) -> Command {
    let key = RequestKey {
        principal: principal.into(),
        key: IdempotencyKey::parse(key).unwrap(),
        body_hash: [count as u8; 32],
    };
    Command::Grant(GrantRequest { count, hold_ms: None, key: Some(key) })
}

pub fn settle(nonces: &[(Nonce, HoldId)], outcome: &Outcome) -> Command {
    let settlement = |(nonce, hold): &(Nonce, HoldId)| Settlement {
        nonce: *nonce,
        hold: Some(*hold),
        outcome: outcome.clone(),
    };
    Command::Settle(nonces.iter().map(settlement).collect())
}

pub fn resolve(nonce: Nonce, hold: Option<HoldId>) -> Command {
    Command::Resolve(ResolveRequest { nonce, hold, resolution: Resolution::NeverSent })
}

pub fn window(max_in_flight: Option<u64>) -> Command {
    Command::SetPolicy(PolicyPatch { max_in_flight: Some(max_in_flight), ..PolicyPatch::default() })
}

pub fn shared_keys(is_shared: bool) -> Command {
    Command::SetPolicy(PolicyPatch { shared_keys: Some(is_shared), ..PolicyPatch::default() })
}

pub fn on_expiry(on_expiry: OnExpiry) -> Command {
    Command::SetPolicy(PolicyPatch { on_expiry: Some(on_expiry), ..PolicyPatch::default() })
}
