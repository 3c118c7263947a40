//! The transaction of one step: what it compares before it writes, what it writes, and what the properties note of it.
//! What must never live here: who sends it, and who hears the verdict.

use super::STAGES;
use super::command::Command;
use super::decide::{Decision, LockChange, decide};
use super::rules::Rules;
use super::state::{
    Attempt, Job, JobNumber, Lock, PlanNumber, Process, Record, Row, State, Token, Transaction,
};

/// Why nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The command changes nothing.
    Idle,
    /// The plan's lease is another's by now.
    Fenced,
    /// The task does not have its lock any more.
    LockLost,
    /// Another task has the lock.
    Locked,
    /// The row is not at the version that the step was decided on.
    Diverged,
}

/// What a step would write now.
pub(super) fn judge(rules: &Rules, state: &State, step: &Transaction) -> Result<Decision, Refusal> {
    let plan = state.plan(step.plan);
    if !state.passes(rules, step.plan, step.token) {
        return Err(Refusal::Fenced);
    }
    let new_job = JobNumber(plan.jobs.len() as u8);
    let decided = decide(rules, (step.row, step.lock), step.command, plan, new_job);
    let decision = decided.ok_or(Refusal::Idle)?;
    let has_lock = decision.claims.is_none_or(|token| state.lock.is_held(step.plan, token));
    if rules.step_looks_at_lock && !has_lock {
        return Err(Refusal::LockLost);
    }
    if decision.lock == LockChange::Take && !state.lock.may_be_taken(step.plan) {
        return Err(Refusal::Locked);
    }
    let is_same = plan.row.is_some_and(|row| row.version == step.row.version);
    if rules.step_compares_version && !is_same {
        return Err(Refusal::Diverged);
    }
    Ok(decision)
}

/// Writes a step; answers the row and the lock that its author knows from then on.
pub(super) fn write(state: &mut State, step: &Transaction, decision: &Decision) -> (Row, Option<Token>) {
    note(state, step, decision);
    let lock = match decision.lock {
        LockChange::None => step.lock,
        LockChange::Forget => None,
        LockChange::Take => Some(take(state, step.plan)),
        LockChange::Free => {
            if step.lock.is_some_and(|token| state.lock.is_held(step.plan, token)) {
                state.lock.owner = None;
            }
            None
        }
    };
    let plan = &mut state.plans[usize::from(step.plan.0)];
    plan.row = Some(decision.next);
    if let Some(stage) = decision.begins {
        plan.jobs.push(Job { stage, record: Record::Open, is_held: false, attempt: Attempt::Unsent });
    }
    (decision.next, lock)
}

/// A task takes the lock, one token on.
pub(super) fn take(state: &mut State, plan: PlanNumber) -> Token {
    let token = state.lock.token.next();
    state.lock = Lock { owner: Some(plan), token, ran_out: false };
    token
}

/// A process begins a stage, or has its job sent.
pub(super) fn note_begin(state: &mut State, plan: PlanNumber, author: Process) {
    let asked = state.seen.plans[usize::from(plan.0)].asked;
    state.seen.begun_unasked |= asked != Some(author);
}

fn note(state: &mut State, step: &Transaction, decision: &Decision) {
    let has_lock = decision.claims.is_none_or(|token| state.lock.is_held(step.plan, token));
    let is_overtaken = decision.claims.is_some_and(|token| token < state.lock.token);
    let is_under_lock = decision.lock == LockChange::Take || decision.claims.is_some() && has_lock;
    let remembered = state.plan(step.plan).row.map_or(0, |row| row.completed);
    let seen = &mut state.seen;
    let of_plan = &mut seen.plans[usize::from(step.plan.0)];
    seen.overtaken_commit |= is_overtaken;
    seen.lockless_commit |= !has_lock;
    seen.stale_commit |= step.token < of_plan.newest_read;
    seen.checkpoint_undone |= decision.next.completed < remembered;
    if decision.is_checkpoint {
        seen.lockless_checkpoint |= !is_under_lock;
        seen.checkpoint_undone |= decision.next.completed <= of_plan.checkpoint;
        of_plan.checkpoint = of_plan.checkpoint.max(decision.next.completed);
    }
    if step.command.tells() {
        of_plan.asked = Some(step.author);
    } else if of_plan.asked != Some(step.author) {
        of_plan.asked = None;
    }
    // A retry is the word on a stage that failed, and on one that may run again while it is UNKNOWN.
    let allows_again = match step.command {
        Command::ResolveNotDone => true,
        Command::Retry => !step.row.wants_word(),
        _ => false,
    };
    if allows_again && step.row.completed < STAGES {
        of_plan.begun[usize::from(step.row.completed)] = false;
    }
    if let Some(stage) = decision.begins {
        seen.begun_twice |= std::mem::replace(&mut of_plan.begun[usize::from(stage)], true);
        note_begin(state, step.plan, step.author);
    }
}
