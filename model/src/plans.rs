//! A tenant's lock as a model that is checked exhaustively: a lock whose owner is a task, and which therefore outlives
//! every instance. What lives here is how the steps of two plans follow one another under two leases: the plan's, which
//! an instance owns, and the tenant's, which a task owns. What must never live here: how a lease is taken and fenced,
//! which [`crate::LeaseModel`] shows, and when it is wise to take one, which [`crate::membership`] shows.
//!
//! Two plans with one task each, and both tasks want the one tenant. A task has two stages. One node runs attempts, as
//! many at once as it is sent. [`Rules`] says how the pieces are built, [`Bounds`] says how much may happen.
//! [`Rules::sound`] must hold every property of [`properties`]; rules with one [`Trap`] reopened must break those that
//! [`Trap::breaks`] names, and no other.
//!
//! # What a step stands for
//!
//! | [`Step`] | statement or event |
//! |---|---|
//! | `Start` | a person has a plan made and started: its rows and its tenant's lock, all in one commit. The instance remembers what it made, and owns nothing yet |
//! | `Acquire` | an instance without an owner for the plan acquires the lease `plan:<id>`, one token on. Here without any condition on who had it: a lease that is free, that ran out, and a takeover at any moment, wise or not |
//! | `AcquireUnheard` | the same, and nobody hears of it: a late statement of an instance that does not wait for it any more |
//! | `Hold` | the plan's lane at its new owner has those jobs held that the owners before have left: none of them is sent any more |
//! | `TakeIn` | the new owner reads the plan, and commits that it has changed owners: a task that ran is INTERRUPTED, its stage in flight UNKNOWN; one that was about to run is PAUSED. The instance that has just made the plan goes on with what it remembers |
//! | `Commit` | the owner decides a [`Command`] from what it remembers, commits it, and hears the verdict. It may have remembered this for as long as one likes: that covers every pause, and every delay between the decision and the commit |
//! | `Lose` | the same, and the verdict is never heard, whatever it is. The transaction may commit at any later time ([`Step::Land`]), or never |
//! | `Land` | a transaction whose sender does not listen any more is carried out |
//! | `AcquireAnew` | after a lost verdict the owner acquires the lease anew and reads the plan. The plan's lane acquires it anew after a lost verdict of its own: both write under one lease, so the owner goes on under the new token with what it remembers |
//! | `Send` | the lane commits that a stage's job is dispatched, and the node begins its attempt |
//! | `GiveUp` | the lane commits that a job has ended without success: it was called off, or ran over its time. Its attempt may run on |
//! | `End` | the attempt ends. Its result is recorded, unless the job was given up before |
//! | `Break` | a person breaks the tenant's lock, by the token that the person was shown |
//! | `RunOut` | the database's clock passes the lock's end. The lock stays its owner's until somebody takes it |
//! | `Restart` | every process dies, and others start in their places. Transactions under way live on, and so does the node |
//!
//! # What a transaction sees
//!
//! A step locks both lease rows from its fence to its end, so that no takeover, take or break comes between:
//! [`crate::LeaseModel`] shows what that is worth, and the step is a single moment here. So is an acquire with the read
//! that follows it. What is not a single moment is a decision and its commit: the rows are those of the commit, the
//! decision is made from the owner's memory.
//!
//! # What a step claims
//!
//! Every step needs the plan's lease at its owner's token and the row at the version that it was decided on. A step that
//! begins a stage, that takes in the end of its job, that resolves one, or that has the task go on or end, needs the
//! tenant's lock too, at the token that the owner knows. A step that only finds what is so needs none: that the owner has
//! changed, that the lock is lost. For an owner that knows of the loss the end of a job counts for nothing: the stage stays
//! UNKNOWN until a person says what it did. The word that it is done takes the lock anew, and so does a retry.
//!
//! # No unique key
//!
//! The real table of checkpoints has the key (task, version). The model leaves it out, as [`crate::LeaseModel`] does with
//! nonces: the leases and the row's version have to hold by themselves.
//!
//! # Left out
//!
//! - Plans of several tasks, and with them the plan's own row: that a plan is halted shows as a task that is PAUSED. What
//!   a step decides from rows that it does not write is guarded by the plan's lease alone.
//! - Pauses by a person, and the cancellation of a stage in flight: both wait for the end of the stage, and begin nothing.
//! - Retries from the start or from an earlier checkpoint: the person's word covers the stages that run again.
//! - Further attempts of one job. A job that is held has none; any other is its lane's, not the plan's.
//! - That the job in flight is called off with the lock: its attempt may run on all the same.
//! - Outside systems. Attempts of *two* tasks may run at once after a lock was broken ([`properties::TWO_TASKS_RUN`]):
//!   only the token that each attempt is given tells them apart.

mod command;
mod commit;
mod decide;
mod rules;
mod state;
mod steps;
mod trap;

pub mod properties;

use stateright::{Model, Property};

pub use command::Command;
pub use rules::{Anew, Rules, Takeover};
pub use state::{
    Attempt, Job, JobNumber, Lock, Memory, Place, PlanNumber, PlanRows, Process, Record, Row, Seen,
    SeenOfPlan, Spent, Stage, State, Status, Token, Transaction,
};
pub use steps::Step;
pub use trap::Trap;

/// Stages of each task.
pub const STAGES: u8 = 2;
/// The one stage that a retry may run again while nobody knows what it did: `on_unknown: rerun`. The other wants a
/// person's word on it first: `on_unknown: confirm`.
pub const STAGE_TO_RERUN: u8 = 1;
/// Most plans.
pub const PLANS_MAX: u8 = 2;

/// How much may happen in one run, over all plans and instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Instances side by side.
    pub instances: u8,
    /// Plans; 1 to [`PLANS_MAX`].
    pub plans: u8,
    /// Acquisitions of plans' leases, takeovers and unheard ones included.
    pub acquisitions: u8,
    /// What people say after the start: resume, resolve, retry, cancel.
    pub words: u8,
    /// Steps whose verdict is lost.
    pub lost_verdicts: u8,
    /// Acquires that take effect without anybody hearing of it.
    pub unheard_acquires: u8,
    /// Stages in flight whose jobs end without success.
    pub failures: u8,
    /// Locks that a person breaks.
    pub breaks: u8,
    /// Locks that run out.
    pub run_outs: u8,
    /// Restarts of all instances.
    pub restarts: u8,
}

/// Rules within bounds: what the checker explores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlansModel {
    /// How a step, a takeover, a retry and a break are built.
    pub rules: Rules,
    /// How much may happen.
    pub bounds: Bounds,
}

impl Model for PlansModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        assert!((1..=PLANS_MAX).contains(&self.bounds.plans), "1 to {PLANS_MAX} plans");
        vec![State::new(self.bounds.instances, self.bounds.plans)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps::possible(self, state, steps);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        Some(steps::after(self, state, step))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
