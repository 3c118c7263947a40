//! How one moment follows another: which steps are possible, and what each of them changes. What must never live here:
//! a judgement on whether the outcome is good.

use super::PlansModel;
use super::command::Command;
use super::commit::{self, Refusal, judge, write};
use super::rules::{Anew, Rules};
use super::state::{Attempt, JobNumber, Memory, Place, PlanNumber, Record, Row, State, Token, Transaction};

/// One thing that happens. The module's first page says which statement or event each stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A plan is made and started at an instance.
    Start(Place, PlanNumber),
    /// An instance acquires a plan's lease.
    Acquire(Place, PlanNumber),
    /// A plan's lease is acquired and nobody hears of it.
    AcquireUnheard(PlanNumber),
    /// The lane of a new owner has the jobs held that were left to it.
    Hold(Place, PlanNumber),
    /// A new owner takes the plan in.
    TakeIn(Place, PlanNumber),
    /// The owner commits a command.
    Commit(Place, PlanNumber, Command),
    /// The owner sends a command's commit and never hears of it.
    Lose(Place, PlanNumber, Command),
    /// A commit whose sender does not listen any more is carried out.
    Land(Transaction),
    /// The owner, or its lane, acquires the lease anew after a lost verdict.
    AcquireAnew(Place, PlanNumber),
    /// The lane dispatches a job.
    Send(Place, PlanNumber, JobNumber),
    /// The lane ends a job without success.
    GiveUp(Place, PlanNumber, JobNumber),
    /// The node ends an attempt.
    End(PlanNumber, JobNumber),
    /// A person breaks the lock that was shown with this token.
    Break(Token),
    /// The lock's time is over.
    RunOut,
    /// All processes die, and others start.
    Restart,
}

/// Lists every step that can be taken now.
pub(super) fn possible(model: &PlansModel, state: &State, steps: &mut Vec<Step>) {
    let (bounds, spent) = (&model.bounds, &state.spent);
    for (place, plan) in state.pairs() {
        of_pair(model, state, place, plan, steps);
    }
    for plan in state.plan_numbers() {
        let rows = state.plan(plan);
        if spent.unheard_acquires < bounds.unheard_acquires && can_acquire(model, state, plan) {
            steps.push(Step::AcquireUnheard(plan));
        }
        let running = rows.jobs.iter().enumerate().filter(|(_, job)| job.attempt == Attempt::Running);
        steps.extend(running.map(|(number, _)| Step::End(plan, JobNumber(number as u8))));
    }
    let landing = state.under_way.iter().filter(|step| judge(&model.rules, state, step).is_ok());
    steps.extend(landing.map(|step| Step::Land(*step)));
    if state.lock.owner.is_some() {
        if spent.breaks < bounds.breaks {
            let named = if model.rules.break_names_token { state.lock.token.0 } else { 1 };
            steps.extend((named..=state.lock.token.0).map(|token| Step::Break(Token(token))));
        }
        if spent.run_outs < bounds.run_outs && !state.lock.ran_out {
            steps.push(Step::RunOut);
        }
    }
    let is_known = state.memories.iter().flatten().any(|memory| *memory != Memory::Nothing);
    if spent.restarts < bounds.restarts && is_known {
        steps.push(Step::Restart);
    }
}

fn of_pair(model: &PlansModel, state: &State, place: Place, plan: PlanNumber, steps: &mut Vec<Step>) {
    let PlansModel { rules, bounds } = model;
    let may_lose = state.spent.lost_verdicts < bounds.lost_verdicts;
    match *state.memory(place, plan) {
        Memory::Nothing if state.plan(plan).row.is_none() => {
            if may_be_next(state, place, plan) && state.lock.may_be_taken(plan) {
                steps.push(Step::Start(place, plan));
            }
        }
        Memory::Nothing | Memory::Made { .. } => {
            if can_acquire(model, state, plan) {
                steps.push(Step::Acquire(place, plan));
            }
        }
        Memory::Acquired { made, has_held, .. } => {
            if has_held || !rules.serves_after_hold {
                steps.push(Step::TakeIn(place, plan));
                let taken_over = transaction(state, place, plan, Command::TakenOver);
                if may_lose
                    && made.is_none()
                    && taken_over.is_some_and(|step| judge(rules, state, &step).is_ok())
                {
                    steps.push(Step::Lose(place, plan, Command::TakenOver));
                }
            }
            if !has_held {
                steps.push(Step::Hold(place, plan));
            }
        }
        Memory::Serving { has_held, .. } => {
            commands(model, state, place, plan, steps);
            if !has_held {
                steps.push(Step::Hold(place, plan));
            }
            // The lane, after a commit of its own.
            if may_lose && can_acquire(model, state, plan) {
                steps.push(Step::AcquireAnew(place, plan));
            }
        }
        Memory::Unsure { .. } => {
            if can_acquire(model, state, plan) {
                steps.push(Step::AcquireAnew(place, plan));
            }
        }
    }
    of_lane(model, state, place, plan, steps);
}

/// Instances differ by nothing but their number, and so do plans: the first to start may be called the first.
fn may_be_next(state: &State, place: Place, plan: PlanNumber) -> bool {
    match plan {
        PlanNumber(0) => place == Place(0),
        _ => state.plan(PlanNumber(0)).row.is_some(),
    }
}

fn can_acquire(model: &PlansModel, state: &State, plan: PlanNumber) -> bool {
    let acquired: u8 = state.plans.iter().map(|rows| rows.lease.0).sum();
    state.plan(plan).row.is_some() && acquired < model.bounds.acquisitions
}

fn commands(model: &PlansModel, state: &State, place: Place, plan: PlanNumber, steps: &mut Vec<Step>) {
    let PlansModel { rules, bounds } = model;
    let has_words = state.spent.words < bounds.words;
    let words = Command::WORDS.into_iter().filter(|_| has_words);
    for command in Command::OWN.into_iter().chain(words) {
        let Some(step) = transaction(state, place, plan, command) else { continue };
        let judged = judge(rules, state, &step);
        let is_decided = !matches!(judged, Err(Refusal::Idle | Refusal::Fenced));
        if is_decided && state.spent.lost_verdicts < bounds.lost_verdicts {
            steps.push(Step::Lose(place, plan, command));
        }
        let is_heard = match judged {
            Ok(_) | Err(Refusal::Diverged) => true,
            // The renewal of the lock is what an owner notices it by that has nothing else to do.
            Err(Refusal::Fenced) => command == Command::Advance,
            // Nothing changes, but that the loss of the lock is known.
            Err(Refusal::Idle | Refusal::LockLost | Refusal::Locked) => false,
        };
        if is_heard {
            steps.push(Step::Commit(place, plan, command));
        }
    }
}

/// What an instance would commit. The loss of a lock is only known by a step that was refused for it.
fn transaction(state: &State, place: Place, plan: PlanNumber, command: Command) -> Option<Transaction> {
    let (token, row, lock) = match *state.memory(place, plan) {
        Memory::Serving { token, row, lock, .. } => (token, row, lock),
        Memory::Acquired { token, .. } => (token, state.plan(plan).row?, state.lock_of(plan)),
        Memory::Nothing | Memory::Made { .. } | Memory::Unsure { .. } => return None,
    };
    let is_held = lock.is_none_or(|token| state.lock.is_held(plan, token));
    let is_due = command != Command::LockLost || !is_held;
    let author = state.process(place);
    is_due.then_some(Transaction { author, plan, token, row, lock, command })
}

fn of_lane(model: &PlansModel, state: &State, place: Place, plan: PlanNumber, steps: &mut Vec<Step>) {
    let (memory, rows) = (state.memory(place, plan), state.plan(plan));
    if !memory.token().is_some_and(|token| state.passes(&model.rules, plan, token)) {
        return;
    }
    let numbered = rows.jobs.iter().enumerate().map(|(number, job)| (JobNumber(number as u8), job));
    for (number, job) in numbered.filter(|(_, job)| job.record == Record::Open) {
        if memory.sends() && job.attempt == Attempt::Unsent && !job.is_held {
            steps.push(Step::Send(place, plan, number));
        }
        let Memory::Serving { row: Row { stage, waits_for, .. }, .. } = memory else { continue };
        let may_fail = stage.in_flight() == Some(number) && state.spent.failures < model.bounds.failures;
        if may_fail || *waits_for == Some(number) {
            steps.push(Step::GiveUp(place, plan, number));
        }
    }
}

/// The state after a step that [`possible`] listed.
pub(super) fn after(model: &PlansModel, state: &State, step: Step) -> State {
    let rules = &model.rules;
    let mut next = state.clone();
    match step {
        Step::Start(place, plan) => {
            let lock = commit::take(&mut next, plan);
            next.plans[usize::from(plan.0)].row = Some(Row::STARTED);
            next.seen.plans[usize::from(plan.0)].asked = Some(state.process(place));
            set(&mut next, place, plan, Memory::Made { row: Row::STARTED, lock });
        }
        Step::Acquire(place, plan) => {
            let made = match *state.memory(place, plan) {
                Memory::Made { row, lock } => Some((row, lock)),
                _ => None,
            };
            let token = raise(&mut next, plan);
            set(&mut next, place, plan, Memory::Acquired { token, made, has_held: false });
        }
        Step::AcquireUnheard(plan) => {
            next.spent.unheard_acquires += 1;
            raise(&mut next, plan);
        }
        Step::Hold(place, plan) => hold(rules, &mut next, place, plan),
        Step::TakeIn(place, plan) => take_in(rules, &mut next, place, plan),
        Step::Commit(place, plan, command) => commit(rules, &mut next, place, plan, command),
        Step::Lose(place, plan, command) => lose(rules, &mut next, place, plan, command),
        Step::Land(step) => {
            next.under_way.retain(|other| *other != step);
            if let Ok(decision) = judge(rules, state, &step) {
                next.seen.late_commit = true;
                write(&mut next, &step, &decision);
            }
        }
        Step::AcquireAnew(place, plan) => acquire_anew(rules, &mut next, place, plan),
        Step::Send(place, plan, job) => {
            commit::note_begin(&mut next, plan, state.process(place));
            next.plans[usize::from(plan.0)].jobs[usize::from(job.0)].attempt = Attempt::Running;
        }
        Step::GiveUp(_, plan, job) => {
            let rows = &mut next.plans[usize::from(plan.0)];
            rows.jobs[usize::from(job.0)].record = Record::GivenUp;
            let is_in_flight = rows.row.is_some_and(|row| row.stage.in_flight() == Some(job));
            next.spent.failures += u8::from(is_in_flight);
        }
        Step::End(plan, job) => {
            let job = &mut next.plans[usize::from(plan.0)].jobs[usize::from(job.0)];
            job.attempt = Attempt::Ended;
            if job.record == Record::Open {
                job.record = Record::Succeeded;
            }
        }
        Step::Break(named) => {
            next.spent.breaks += 1;
            next.seen.freed_unnamed |= named != state.lock.token;
            next.lock.owner = None;
        }
        Step::RunOut => {
            next.spent.run_outs += 1;
            next.lock.ran_out = true;
        }
        Step::Restart => {
            next.spent.restarts += 1;
            next.memories.iter_mut().flatten().for_each(|memory| *memory = Memory::Nothing);
            if !rules.restart_keeps_locks && state.lock.owner.is_some() {
                next.lock.owner = None;
                (next.seen.freed_by_restart, next.seen.freed_unnamed) = (true, true);
            }
        }
    }
    forget_hopeless(rules, &mut next);
    next
}

/// Forgets transactions that can never commit any more: tokens and versions only rise.
fn forget_hopeless(rules: &Rules, state: &mut State) {
    let mut under_way = std::mem::take(&mut state.under_way);
    under_way.retain(|step| {
        let row = state.plan(step.plan).row;
        state.passes(rules, step.plan, step.token)
            && (!rules.step_compares_version || row.is_some_and(|row| row.version == step.row.version))
    });
    state.under_way = under_way;
}

fn set(state: &mut State, place: Place, plan: PlanNumber, memory: Memory) {
    state.memories[usize::from(place.0)][usize::from(plan.0)] = memory;
}

fn raise(state: &mut State, plan: PlanNumber) -> Token {
    let lease = &mut state.plans[usize::from(plan.0)].lease;
    *lease = lease.next();
    *lease
}

/// An owner knows the plan as it is.
fn serve(state: &mut State, place: Place, plan: PlanNumber, memory: Memory) {
    if let Memory::Serving { token, .. } = memory {
        let newest = &mut state.seen.plans[usize::from(plan.0)].newest_read;
        *newest = token.max(*newest);
    }
    set(state, place, plan, memory);
}

fn hold(rules: &Rules, state: &mut State, place: Place, plan: PlanNumber) {
    let mut memory = *state.memory(place, plan);
    let (Memory::Acquired { token, has_held, .. } | Memory::Serving { token, has_held, .. }) = &mut memory
    else {
        return;
    };
    *has_held = true;
    if !state.passes(rules, plan, *token) {
        return set(state, place, plan, Memory::Nothing);
    }
    let jobs = state.plans[usize::from(plan.0)].jobs.iter_mut();
    jobs.filter(|job| job.record == Record::Open).for_each(|job| job.is_held = true);
    set(state, place, plan, memory);
}

fn take_in(rules: &Rules, state: &mut State, place: Place, plan: PlanNumber) {
    let Memory::Acquired { token, made, has_held } = *state.memory(place, plan) else { return };
    if let Some((row, lock)) = made {
        return serve(state, place, plan, Memory::Serving { token, row, lock: Some(lock), has_held });
    }
    let Some(step) = transaction(state, place, plan, Command::TakenOver) else { return };
    let (row, lock) = match judge(rules, state, &step) {
        Ok(decision) => write(state, &step, &decision),
        Err(Refusal::Idle) => (step.row, step.lock),
        Err(_) => return set(state, place, plan, Memory::Nothing),
    };
    serve(state, place, plan, Memory::Serving { token, row, lock, has_held });
}

fn commit(rules: &Rules, state: &mut State, place: Place, plan: PlanNumber, command: Command) {
    let Memory::Serving { token, has_held, .. } = *state.memory(place, plan) else { return };
    let Some(step) = transaction(state, place, plan, command) else { return };
    let memory = match judge(rules, state, &step) {
        Ok(decision) => {
            state.spent.words += u8::from(command.is_word());
            let (row, lock) = write(state, &step, &decision);
            Memory::Serving { token, row, lock, has_held }
        }
        Err(_) => match rules.anew {
            Anew::IfNobodyWasBetween => Memory::Nothing,
            Anew::AsTheOwner => Memory::Unsure { token, has_held },
        },
    };
    set(state, place, plan, memory);
}

fn lose(rules: &Rules, state: &mut State, place: Place, plan: PlanNumber, command: Command) {
    let Some(step) = transaction(state, place, plan, command) else { return };
    state.spent.lost_verdicts += 1;
    state.spent.words += u8::from(command.is_word());
    state.under_way.push(step);
    let memory = match *state.memory(place, plan) {
        // The maker of a plan that has heard of no step may never have been its only owner.
        Memory::Serving { row: Row::STARTED, .. } if rules.anew == Anew::IfNobodyWasBetween => {
            Memory::Nothing
        }
        Memory::Serving { token, has_held, .. } => Memory::Unsure { token, has_held },
        // One that takes the plan in begins once more.
        _ => Memory::Nothing,
    };
    set(state, place, plan, memory);
}

fn acquire_anew(rules: &Rules, state: &mut State, place: Place, plan: PlanNumber) {
    let before = *state.memory(place, plan);
    let Some(last) = before.token() else { return };
    let token = raise(state, plan);
    let goes_on = rules.anew == Anew::AsTheOwner || token == last.next();
    let as_new = |has_held| Memory::Acquired { token, made: None, has_held };
    match before {
        Memory::Serving { row, lock, has_held, .. } => {
            state.spent.lost_verdicts += 1;
            let memory = if goes_on { Memory::Serving { token, row, lock, has_held } } else { as_new(false) };
            set(state, place, plan, memory);
        }
        Memory::Unsure { has_held, .. } if goes_on => {
            let lock = state.lock_of(plan);
            let Some(row) = state.plan(plan).row else { return };
            let is_lost = rules.read_looks_for_lock && lock.is_none() && row.status.needs_lock();
            let memory =
                if is_lost { as_new(has_held) } else { Memory::Serving { token, row, lock, has_held } };
            serve(state, place, plan, memory);
        }
        _ => set(state, place, plan, as_new(false)),
    }
}
