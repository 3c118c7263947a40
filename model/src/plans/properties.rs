//! What must always hold, and what must be possible at all. Each property looks at one moment only; what must never
//! live here is anything that changes one.

use stateright::Property;

use super::PlansModel;
use super::state::{Attempt, Job, Memory, Place, PlanNumber, Record, Row, Stage, State, Status, Token};

/// A stage begins once, and again only after a person said of it that it is not done, or retried it where that is allowed.
pub const BEGUN_ONCE: &str = "no stage begins twice without a person's word between";
/// An owner begins a stage or sends its job only after a start, a resume or a retry, and while no other owner has written since.
pub const BEGUN_WHEN_ASKED: &str = "nothing is dispatched between a takeover and a person's word";
/// Two tasks never interleave their steps under the tenant's lock.
pub const OLDER_TASK_NEVER_COMMITS: &str = "no step commits under a lock that was taken since";
/// Nor does a task go on whose lock nobody has taken yet.
pub const LOCKED_STEPS: &str = "no step commits under a lock that its task has lost";
/// Another task may have the tenant, also where the owner knows that its own has lost the lock.
pub const CHECKPOINTS_UNDER_LOCK: &str = "no task writes a checkpoint without its lock";
/// I2: once the new owner has read the plan, no step of an earlier one commits.
pub const STALE_OWNER_NEVER_COMMITS: &str = "no earlier owner's step commits after a read";
/// Checkpoints are only added.
pub const CHECKPOINTS_STAY: &str = "no checkpoint is overwritten or forgotten";
/// The lock is a task's, which no process is.
pub const LOCKS_OUTLIVE_ALL: &str = "a crash of all instances frees no lock";
/// Nobody else frees a task's lock.
pub const LOCKS_ARE_LOST_BY_NAME: &str = "a lock is lost by a break that names it, or after it ran out";
/// An attempt begins when every older one of its task has ended, also where a person has said that it may.
pub const ONE_ATTEMPT: &str = "no two attempts of one task run at once";
/// A job that its own owner's lane holds would keep its stage RUNNING for ever.
pub const NO_STAGE_WAITS_IN_VAIN: &str = "no owner waits for a job that nobody may send";
/// A task without its lock begins nothing, and only an INTERRUPTED one is retried, which takes the lock.
pub const NO_TASK_WAITS_IN_VAIN: &str = "no owner has a task go on that has no lock";

/// The result of a stage that a takeover called UNKNOWN becomes its checkpoint.
pub const LATE_RESULT_COUNTS: &str = "a late result after a takeover becomes a checkpoint";
/// A step is under way under a lock that was broken, and that the other task has by now.
pub const LOCK_CHANGES_HANDS: &str = "a lock is broken and taken while a step is under way";
/// The same, by time alone.
pub const LOCK_RUNS_OUT: &str = "a lock runs out and is taken while its task runs";
/// What a tenant's token is given to attempts for.
pub const TWO_TASKS_RUN: &str = "attempts of two tasks of one tenant run at once";
/// A retry is accepted, and its stage waits.
pub const OLDER_ATTEMPT_RUNS_ON: &str = "a retried task waits for an older attempt that runs";
/// A transaction commits whose sender does not listen any more.
pub const LATE_COMMIT: &str = "a commit lands that nobody listens to";
/// An owner acts on a plan that another one has by now.
pub const PAUSED_OWNER_WAKES: &str = "a paused owner has a step for a plan that another serves";
/// The instance that made a plan acquires it after another one has written: only the row's version tells it.
pub const MAKER_IS_LATE: &str = "the maker of a plan owns it after another owner has written";
/// A task is brought to its end.
pub const RESTART_IS_SURVIVED: &str = "a task succeeds after a restart of all instances";
/// One task after the other.
pub const BOTH_SUCCEED: &str = "both tasks succeed";

/// All properties, those that always hold first.
#[must_use]
pub fn all() -> Vec<Property<PlansModel>> {
    vec![
        Property::always(BEGUN_ONCE, |_, state: &State| !state.seen.begun_twice),
        Property::always(BEGUN_WHEN_ASKED, |_, state: &State| !state.seen.begun_unasked),
        Property::always(OLDER_TASK_NEVER_COMMITS, |_, state: &State| !state.seen.overtaken_commit),
        Property::always(LOCKED_STEPS, |_, state: &State| !state.seen.lockless_commit),
        Property::always(CHECKPOINTS_UNDER_LOCK, |_, state: &State| !state.seen.lockless_checkpoint),
        Property::always(STALE_OWNER_NEVER_COMMITS, |_, state: &State| !state.seen.stale_commit),
        Property::always(CHECKPOINTS_STAY, |_, state: &State| !state.seen.checkpoint_undone),
        Property::always(LOCKS_OUTLIVE_ALL, |_, state: &State| !state.seen.freed_by_restart),
        Property::always(LOCKS_ARE_LOST_BY_NAME, |_, state: &State| !state.seen.freed_unnamed),
        Property::always(ONE_ATTEMPT, |_, state: &State| {
            state.plan_numbers().all(|plan| running(state, plan) <= 1)
        }),
        Property::always(NO_STAGE_WAITS_IN_VAIN, |_, state: &State| {
            !some_owner(state, |plan, row, _| waits_in_vain(state, plan, row))
        }),
        Property::always(NO_TASK_WAITS_IN_VAIN, |_, state: &State| {
            !some_owner(state, |_, row, lock| lock.is_none() && row.status.needs_lock())
        }),
        Property::sometimes(LATE_RESULT_COUNTS, |_, state: &State| {
            state.spent.words == 0
                && state.plans.iter().any(|plan| {
                    let counts = |job: &Job| plan.row.is_some_and(|row| job.stage < row.completed);
                    plan.jobs.iter().any(|job| job.is_held && job.record == Record::Succeeded && counts(job))
                })
        }),
        Property::sometimes(LOCK_CHANGES_HANDS, |_, state: &State| {
            let lock = &state.lock;
            let is_overtaken = |token: Option<Token>| token.is_some_and(|token| token < lock.token);
            let mut late = state.under_way.iter();
            state.spent.breaks > 0
                && late
                    .any(|step| lock.owner.is_some_and(|owner| owner != step.plan) && is_overtaken(step.lock))
        }),
        Property::sometimes(LOCK_RUNS_OUT, |_, state: &State| {
            state.spent.breaks == 0
                && some_owner(state, |plan, row, lock| {
                    let is_lost = lock.is_some_and(|token| !state.lock.is_held(plan, token));
                    is_lost && row.status == Status::Running
                })
        }),
        Property::sometimes(TWO_TASKS_RUN, |_, state: &State| {
            state.plan_numbers().filter(|plan| running(state, *plan) > 0).count() > 1
        }),
        Property::sometimes(OLDER_ATTEMPT_RUNS_ON, |_, state: &State| {
            some_owner(state, |plan, row, lock| {
                let older = row.waits_for.map(|job| state.plan(plan).job(job).attempt);
                row.status == Status::Running && lock.is_some() && older == Some(Attempt::Running)
            })
        }),
        Property::sometimes(LATE_COMMIT, |_, state: &State| state.seen.late_commit),
        Property::sometimes(PAUSED_OWNER_WAKES, paused_owner_wakes),
        Property::sometimes(MAKER_IS_LATE, |_, state: &State| {
            some_owner(state, |plan, row, _| {
                *row == Row::STARTED && state.plan(plan).row.is_some_and(|now| now.version > row.version)
            })
        }),
        Property::sometimes(RESTART_IS_SURVIVED, |_, state: &State| {
            let is_done = |row: Option<Row>| row.is_some_and(|row| row.status == Status::Succeeded);
            state.spent.restarts > 0 && state.plans.iter().any(|plan| is_done(plan.row))
        }),
        Property::sometimes(BOTH_SUCCEED, |_, state: &State| {
            let is_done = |row: Option<Row>| row.is_some_and(|row| row.status == Status::Succeeded);
            state.plans.len() > 1 && state.plans.iter().all(|plan| is_done(plan.row))
        }),
    ]
}

/// Attempts of a plan's task that run.
fn running(state: &State, plan: PlanNumber) -> usize {
    state.plan(plan).jobs.iter().filter(|job| job.attempt == Attempt::Running).count()
}

/// Whether what some rightful owner remembers of its plan is so.
fn some_owner(state: &State, is_so: impl Fn(PlanNumber, &Row, Option<Token>) -> bool) -> bool {
    state
        .pairs()
        .any(|(place, plan)| serves(state, place, plan).is_some_and(|(row, lock)| is_so(plan, row, lock)))
}

/// What an instance remembers of a plan that it serves and owns.
fn serves(state: &State, place: Place, plan: PlanNumber) -> Option<(&Row, Option<Token>)> {
    match state.memory(place, plan) {
        Memory::Serving { token, row, lock, .. } if *token == state.plan(plan).lease => Some((row, *lock)),
        _ => None,
    }
}

fn paused_owner_wakes(_: &PlansModel, state: &State) -> bool {
    state.pairs().any(|(place, plan)| {
        let Memory::Serving { token, row: Row { stage: Stage::Running(job), .. }, .. } =
            state.memory(place, plan)
        else {
            return false;
        };
        let is_due = state.plan(plan).job(*job).record == Record::Succeeded;
        let is_served = state.places().any(|other| serves(state, other, plan).is_some());
        is_due && is_served && *token < state.plan(plan).lease
    })
}

/// Whether a plan's stage that is RUNNING waits for a job which nobody may send any more.
fn waits_in_vain(state: &State, plan: PlanNumber, row: &Row) -> bool {
    let Stage::Running(job) = row.stage else { return false };
    let job = state.plan(plan).job(job);
    job.is_held && job.attempt == Attempt::Unsent && job.record == Record::Open
}
