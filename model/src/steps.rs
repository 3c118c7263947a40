//! How one moment follows another: which steps are possible, and what each of them changes. What must never live here:
//! a judgement on whether the outcome is good.

use crate::LeaseModel;
use crate::protocol::{AfterUnknown, Fence, LoadIn, OwnerNames, RowLock};
use crate::state::{Caller, Hold, Instance, Lease, Phase, Standing, State, Token, Transaction, Write};

/// One thing that happens. The crate's first page says which statement or event each stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An instance acquires the lease.
    Acquire(Instance),
    /// An instance takes the lease from an owner that it calls dead, rightly or not.
    TakeOver(Instance),
    /// An instance's acquire takes effect and nobody hears of it.
    AcquireUnheard(Instance),
    /// An acquire that also loads takes its snapshot ([`LoadIn::AcquireStatement`] only).
    BeginAcquire(Instance),
    /// A process carries on with the lease that bears its name ([`OwnerNames::StableAndAdopted`] only).
    Adopt(Instance),
    /// An instance reads the granted nonces, and what became of its unheard write.
    Load(Instance),
    /// An instance decides a grant and opens its transaction.
    Begin(Instance),
    /// An instance decides a second grant on the effect of the first, and opens its transaction.
    BeginBehind(Instance),
    /// The server puts a write before the fence.
    Admit(Hold),
    /// The server writes the row of an admitted write.
    Insert(Hold),
    /// The server commits a write.
    Commit(Hold),
    /// The server ends a write without a trace.
    RollBack(Hold),
    /// An instance hears how its write ended.
    Hear(Instance),
    /// An instance loses the connection that its write is on.
    LoseConnection(Instance),
    /// An instance sends a renewal.
    SendRenewal(Instance),
    /// The server carries out an instance's renewal.
    LandRenewal(Instance),
    /// An instance lets the lease go.
    Release(Instance),
    /// The database's clock passes the lease's end.
    RunOut,
    /// An instance's process dies; another starts in its place.
    Crash(Instance),
    /// An instance's process goes on under a new identity.
    NewIdentity(Instance),
}

/// Lists every step that can be taken now.
pub(crate) fn possible(model: &LeaseModel, state: &State, steps: &mut Vec<Step>) {
    for instance in state.places() {
        of_instance(model, state, instance, steps);
    }
    for (index, write) in state.writes.iter().enumerate() {
        let hold = Hold(index as u8);
        match write.transaction {
            Transaction::Begun => steps.push(Step::Admit(hold)),
            Transaction::Admitted => steps.push(Step::Insert(hold)),
            Transaction::Inserted if state.may_commit(&model.protocol, write) => {
                steps.push(Step::Commit(hold))
            }
            Transaction::Inserted => {}
            Transaction::Committed | Transaction::RolledBack | Transaction::Fenced => {}
        }
        if write.transaction.is_open() {
            steps.push(Step::RollBack(hold));
        }
    }
    if state.lease.standing == Standing::Live {
        steps.push(Step::RunOut);
    }
}

fn of_instance(model: &LeaseModel, state: &State, instance: Instance, steps: &mut Vec<Step>) {
    let LeaseModel { protocol, bounds } = model;
    let me = state.knowledge(instance);
    let can_acquire = acquire_can_land(model, state, instance);

    match me.phase {
        Phase::Cold => {
            match protocol.load {
                LoadIn::LaterStatement if can_acquire => steps.push(Step::Acquire(instance)),
                LoadIn::AcquireStatement
                    if may_be_next(state, instance) && state.may_acquire(protocol, instance) =>
                {
                    steps.push(Step::BeginAcquire(instance));
                }
                _ => {}
            }
            if protocol.owner_names == OwnerNames::StableAndAdopted
                && state.lease.standing == Standing::Live
                && state.lease.owner == Some(state.owner_name(protocol, instance))
            {
                steps.push(Step::Adopt(instance));
            }
        }
        Phase::Acquiring { .. } => {
            if can_acquire {
                steps.push(Step::Acquire(instance));
            }
        }
        Phase::Remembering { .. } => {
            if can_acquire {
                steps.push(Step::Acquire(instance));
            }
        }
        Phase::Acquired { .. } => steps.push(Step::Load(instance)),
        Phase::Warm { .. } => {
            if state.writes.len() < usize::from(bounds.writes) {
                steps.push(Step::Begin(instance));
            }
            steps.push(Step::Release(instance));
        }
        Phase::Writing { hold, behind, .. } => {
            if behind.is_none() && state.writes.len() < usize::from(bounds.writes) {
                steps.push(Step::BeginBehind(instance));
            }
            if !state.write(hold).transaction.is_open() {
                steps.push(Step::Hear(instance));
            }
            // The commit of the one behind is sent only once that of the first was heard.
            let was_heard = state.write(hold).is_committed()
                && behind.is_some_and(|behind| state.write(behind).is_committed());
            if state.spent.lost_connections < bounds.lost_connections && !was_heard {
                steps.push(Step::LoseConnection(instance));
            }
        }
    }

    if me.phase == Phase::Cold && takeover_can_land(model, state, instance) {
        steps.push(Step::TakeOver(instance));
    }
    match me.renewal {
        None => {
            // Sent for living actors only; a timer per process asks for whatever bears its name.
            if me.phase.token().is_some() || !protocol.renewal_names_token {
                steps.push(Step::SendRenewal(instance));
            }
        }
        Some(_) => {
            if !state.lease_lock_waits(protocol, RowLock::NoKeyUpdate) {
                steps.push(Step::LandRenewal(instance));
            }
        }
    }
    if state.spent.unheard_acquires < bounds.unheard_acquires && can_acquire {
        steps.push(Step::AcquireUnheard(instance));
    }
    // A process that knows nothing and is named by nothing has nothing to lose.
    let has_something = me.phase != Phase::Cold
        || me.unheard.is_some()
        || state.lease.owner == Some(state.owner_name(protocol, instance));
    if state.spent.crashes < bounds.crashes && has_something {
        steps.push(Step::Crash(instance));
    }
    if state.spent.new_identities < bounds.new_identities && has_something {
        steps.push(Step::NewIdentity(instance));
    }
}

/// Instances differ by nothing but their number, so the first to acquire may be called the first. (While there is no
/// lease row, an acquire that is not the first has nothing to wait for either.)
fn may_be_next(state: &State, instance: Instance) -> bool {
    state.lease.token > Token(0) || instance == Instance(0)
}

/// Whether an acquire of this instance finds its condition true and its lock free, within the bounds.
fn acquire_can_land(model: &LeaseModel, state: &State, instance: Instance) -> bool {
    let LeaseModel { protocol, bounds } = model;
    let raises = state.acquire_raises_token(protocol, instance);
    may_be_next(state, instance)
        && state.may_acquire(protocol, instance)
        && !state.lease_lock_waits(protocol, protocol.acquire_lock(raises))
        && (!raises || state.lease.token.0 < bounds.acquisitions)
}

/// Whether an early takeover finds its condition true and its lock free, within the bounds.
fn takeover_can_land(model: &LeaseModel, state: &State, instance: Instance) -> bool {
    let LeaseModel { protocol, bounds } = model;
    let raises = protocol.takeover_raises_token;
    protocol.load == LoadIn::LaterStatement
        && state.may_take_over(protocol, instance)
        && !state.lease_lock_waits(protocol, protocol.acquire_lock(raises))
        && (!raises || state.lease.token.0 < bounds.acquisitions)
}

/// The state after a step that [`possible`] listed.
pub(crate) fn after(model: &LeaseModel, state: &State, step: Step) -> State {
    let mut next = state.clone();
    match step {
        Step::Acquire(instance) => acquire(model, &mut next, instance),
        Step::TakeOver(instance) => {
            take(model, &mut next, instance, model.protocol.takeover_raises_token);
            let token = next.lease.token;
            set_phase(&mut next, instance, Phase::Acquired { token });
        }
        Step::AcquireUnheard(instance) => {
            next.spent.unheard_acquires += 1;
            raise(model, &mut next, instance);
        }
        Step::BeginAcquire(instance) => {
            let snapshot = state.granted();
            set_phase(&mut next, instance, Phase::Acquiring { snapshot });
        }
        Step::Adopt(instance) => {
            let token = state.lease.token;
            set_phase(&mut next, instance, Phase::Acquired { token });
        }
        Step::Load(instance) => {
            if let Phase::Acquired { token } = state.knowledge(instance).phase {
                let granted = state.granted();
                set_phase(&mut next, instance, Phase::Warm { token, granted });
                next.seen.newest_load = next.seen.newest_load.max(token);
                tell_the_one_in_the_dark(&mut next, instance);
            }
        }
        Step::Begin(instance) => begin(&mut next, instance),
        Step::BeginBehind(instance) => begin_behind(&mut next, instance),
        Step::Admit(hold) => admit(model, &mut next, hold),
        Step::Insert(hold) => insert(model, &mut next, hold),
        Step::Commit(hold) => {
            next.seen.stale_commit |= state.write(hold).token < state.seen.newest_load;
            set_transaction(&mut next, hold, Transaction::Committed);
        }
        Step::RollBack(hold) => set_transaction(&mut next, hold, Transaction::RolledBack),
        Step::Hear(instance) => hear(&mut next, instance),
        Step::LoseConnection(instance) => lose_connection(model, &mut next, instance),
        Step::SendRenewal(instance) => {
            let token = state.knowledge(instance).phase.token();
            next.instances[usize::from(instance.0)].renewal = Some(token.unwrap_or(Token(0)));
        }
        Step::LandRenewal(instance) => land_renewal(model, &mut next, instance),
        Step::Release(instance) => release(model, &mut next, instance),
        Step::RunOut => next.lease.standing = Standing::RanOut,
        Step::Crash(instance) => {
            next.spent.crashes += 1;
            forget(&mut next, instance);
        }
        Step::NewIdentity(instance) => {
            next.spent.new_identities += 1;
            let granted = match state.knowledge(instance).phase {
                Phase::Warm { granted, .. } | Phase::Writing { granted, .. } => Some(granted),
                _ => None,
            };
            forget(&mut next, instance);
            if let (false, Some(granted)) = (model.protocol.new_identity_forgets, granted) {
                set_phase(&mut next, instance, Phase::Remembering { granted });
            }
        }
    }
    next
}

/// The acquire's effect on the row.
fn raise(model: &LeaseModel, state: &mut State, instance: Instance) {
    let raises = state.acquire_raises_token(&model.protocol, instance);
    take(model, state, instance, raises);
}

fn take(model: &LeaseModel, state: &mut State, instance: Instance, raises: bool) {
    state.lease = Lease {
        owner: Some(state.owner_name(&model.protocol, instance)),
        token: Token(state.lease.token.0 + u8::from(raises)),
        standing: Standing::Live,
    };
}

fn acquire(model: &LeaseModel, state: &mut State, instance: Instance) {
    raise(model, state, instance);
    let token = state.lease.token;
    let phase = match state.knowledge(instance).phase {
        // The snapshot is older than the wait for the lock: what committed meanwhile is missing from it.
        Phase::Acquiring { snapshot } => {
            state.seen.newest_load = state.seen.newest_load.max(token);
            tell_the_one_in_the_dark(state, instance);
            Phase::Warm { token, granted: snapshot }
        }
        Phase::Remembering { granted } => Phase::Warm { token, granted },
        _ => Phase::Acquired { token },
    };
    set_phase(state, instance, phase);
}

/// After a load the writer knows what became of the write whose outcome it had not heard: committed, or fenced for ever.
fn tell_the_one_in_the_dark(state: &mut State, instance: Instance) {
    if let Some(hold) = state.instances[usize::from(instance.0)].unheard.take() {
        let caller =
            if state.write(hold).is_committed() { Caller::AnsweredAfterLoad } else { Caller::Refused };
        set_caller(state, hold, caller);
    }
}

fn begin(state: &mut State, instance: Instance) {
    if let Phase::Warm { token, granted } = state.knowledge(instance).phase {
        let hold = Hold(state.writes.len() as u8);
        state.writes.push(Write {
            writer: state.process(instance),
            token,
            nonce: granted.lowest_missing(),
            after: None,
            transaction: Transaction::Begun,
            caller: Caller::Waits,
        });
        let phase = Phase::Writing { token, granted, hold, behind: None };
        set_phase(state, instance, phase);
    }
}

fn begin_behind(state: &mut State, instance: Instance) {
    if let Phase::Writing { token, granted, hold, behind: None } = state.knowledge(instance).phase {
        let behind = Hold(state.writes.len() as u8);
        let first = *state.write(hold);
        let nonce = granted.with(first.nonce).lowest_missing();
        state.writes.push(Write {
            nonce,
            after: Some(hold),
            transaction: Transaction::Begun,
            caller: Caller::Waits,
            ..first
        });
        set_phase(state, instance, Phase::Writing { token, granted, hold, behind: Some(behind) });
    }
}

/// The commit of a write that follows a lost one was not sent, and will not be.
fn undo_behind(state: &mut State, behind: Option<Hold>) {
    if let Some(behind) = behind {
        if state.write(behind).transaction.is_open() {
            set_transaction(state, behind, Transaction::RolledBack);
        }
        set_caller(state, behind, Caller::Refused);
    }
}

fn admit(model: &LeaseModel, state: &mut State, hold: Hold) {
    let admitted = match model.protocol.fence {
        Fence::Lock(_) | Fence::Compare => state.lease.token == state.write(hold).token,
        Fence::DataRowOnly => true,
    };
    let verdict = if admitted { Transaction::Admitted } else { Transaction::Fenced };
    set_transaction(state, hold, verdict);
}

fn insert(model: &LeaseModel, state: &mut State, hold: Hold) {
    let write = *state.write(hold);
    let touched_by_a_newer_owner = state
        .writes
        .iter()
        .any(|row| row.is_committed() && row.nonce == write.nonce && row.token > write.token);
    let verdict = if model.protocol.fence == Fence::DataRowOnly && touched_by_a_newer_owner {
        Transaction::Fenced
    } else {
        Transaction::Inserted
    };
    set_transaction(state, hold, verdict);
}

fn hear(state: &mut State, instance: Instance) {
    if let Phase::Writing { token, granted, hold, behind } = state.knowledge(instance).phase {
        let write = *state.write(hold);
        let (caller, phase) = match (write.transaction, behind) {
            (Transaction::Committed, None) => {
                let granted = granted.with(write.nonce);
                (Caller::Answered, Phase::Warm { token, granted })
            }
            (Transaction::Committed, Some(behind)) => {
                let granted = granted.with(write.nonce);
                (Caller::Answered, Phase::Writing { token, granted, hold: behind, behind: None })
            }
            (_, Some(_)) => {
                undo_behind(state, behind);
                (Caller::Refused, Phase::Cold)
            }
            // Fenced: somebody else is the owner. The actor stops and drops its state.
            (Transaction::Fenced, None) => (Caller::Refused, Phase::Cold),
            // Known to be undone, so what it knew before still stands.
            _ => (Caller::Refused, Phase::Warm { token, granted }),
        };
        set_caller(state, hold, caller);
        set_phase(state, instance, phase);
    }
}

fn lose_connection(model: &LeaseModel, state: &mut State, instance: Instance) {
    if let Phase::Writing { token, granted, hold, behind } = state.knowledge(instance).phase {
        state.spent.lost_connections += 1;
        undo_behind(state, behind);
        let (caller, phase) = match model.protocol.after_unknown {
            AfterUnknown::AcquireAnew => (Caller::InTheDark, Phase::Cold),
            AfterUnknown::LoadOnly => (Caller::InTheDark, Phase::Acquired { token }),
            AfterUnknown::TakeForFailed => (Caller::Refused, Phase::Warm { token, granted }),
            AfterUnknown::TakeForDone => {
                let granted = granted.with(state.write(hold).nonce);
                (Caller::Answered, Phase::Warm { token, granted })
            }
        };
        if caller == Caller::InTheDark {
            state.instances[usize::from(instance.0)].unheard = Some(hold);
        }
        set_caller(state, hold, caller);
        set_phase(state, instance, phase);
    }
}

fn land_renewal(model: &LeaseModel, state: &mut State, instance: Instance) {
    let Some(token) = state.instances[usize::from(instance.0)].renewal.take() else {
        return;
    };
    if state.renewal_matches(&model.protocol, instance, token) {
        let is_undone = state.lease.standing == Standing::Released;
        state.seen.release_undone |= is_undone;
        state.seen.release_undone_for_nobody |= is_undone && token == Token(0);
        state.lease.standing = Standing::Live;
        return;
    }
    // The row did not come back: the lease is lost. An actor with a write on its way awaits that verdict first.
    match state.knowledge(instance).phase {
        Phase::Acquired { token: held } | Phase::Warm { token: held, .. } if held == token => {
            set_phase(state, instance, Phase::Cold);
        }
        _ => {}
    }
}

fn release(model: &LeaseModel, state: &mut State, instance: Instance) {
    let me = state.owner_name(&model.protocol, instance);
    let held = state.knowledge(instance).phase.token();
    if state.lease.owner == Some(me) && held == Some(state.lease.token) {
        state.lease.standing = Standing::Released;
        if model.protocol.release_clears_owner {
            state.lease.owner = None;
        }
    }
    set_phase(state, instance, Phase::Cold);
}

/// Another process, or the same under another name: it knows nothing.
fn forget(state: &mut State, instance: Instance) {
    let me = &mut state.instances[usize::from(instance.0)];
    let phase = me.phase;
    me.incarnation += 1;
    me.phase = Phase::Cold;
    me.unheard = None;
    me.renewal = None;
    if let Phase::Writing { hold, behind, .. } = phase {
        for hold in [Some(hold), behind].into_iter().flatten() {
            set_caller(state, hold, Caller::InTheDark);
        }
    }
}

fn set_phase(state: &mut State, instance: Instance, phase: Phase) {
    state.instances[usize::from(instance.0)].phase = phase;
}

fn set_transaction(state: &mut State, hold: Hold, transaction: Transaction) {
    state.writes[usize::from(hold.0)].transaction = transaction;
}

fn set_caller(state: &mut State, hold: Hold, caller: Caller) {
    state.writes[usize::from(hold.0)].caller = caller;
}
