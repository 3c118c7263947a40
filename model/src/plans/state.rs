//! What is so at one moment: the rows in the ledger, the jobs and their attempts, what each instance remembers of each
//! plan, and a few marks that only the properties read. What must never live here: a rule of how one moment follows
//! another.

use super::command::Command;
use super::rules::Rules;
use super::{STAGE_TO_RERUN, STAGES};

/// A fencing token, of a plan's lease or of the tenant's lock; 0 stands for a row that does not exist yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u8);

impl Token {
    /// The next one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// One of the places where a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place(pub u8);

/// One process: those before and after a restart are not the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Where it runs.
    pub place: Place,
    /// How many restarts were before it.
    pub incarnation: u8,
}

/// A plan, and its one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanNumber(pub u8);

/// A job of a plan's stage, in the order of their beginnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobNumber(pub u8);

/// The lease `tenant:<id>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lock {
    /// The task that has it, by its plan.
    pub owner: Option<PlanNumber>,
    /// Rises each time that it is taken.
    pub token: Token,
    /// Its time is over: anybody may take it.
    pub ran_out: bool,
}

impl Lock {
    /// Whether a task has it at this token.
    #[must_use]
    pub fn is_held(&self, plan: PlanNumber, token: Token) -> bool {
        self.owner == Some(plan) && self.token == token
    }

    /// Whether a task may take it: it is free, ran out, or is the task's own.
    #[must_use]
    pub fn may_be_taken(&self, plan: PlanNumber) -> bool {
        self.ran_out || self.owner.is_none_or(|owner| owner == plan)
    }
}

/// The status of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It is about to run.
    Pending,
    /// Its stages run.
    Running,
    /// Somebody has to resume it.
    Paused,
    /// Its owner has changed, or its lock was lost, while it ran.
    Interrupted,
    /// A stage failed.
    Failed,
    /// All its stages are completed.
    Succeeded,
    /// Somebody called it off.
    Cancelled,
}

impl Status {
    /// Whether nothing follows but a retry.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Cancelled)
    }

    /// Whether the task goes on by itself, or once somebody resumes it: for that it needs the lock.
    #[must_use]
    pub const fn needs_lock(self) -> bool {
        matches!(self, Self::Pending | Self::Running | Self::Paused)
    }
}

/// The first stage that is not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// It has not begun.
    Pending,
    /// Its job has no end yet that the owner knows.
    Running(JobNumber),
    /// As `Running`, and the owner has changed since.
    Unknown(JobNumber),
    /// Its job ended without success.
    Failed,
}

impl Stage {
    /// The job that may be under way.
    #[must_use]
    pub const fn in_flight(self) -> Option<JobNumber> {
        match self {
            Self::Running(job) | Self::Unknown(job) => Some(job),
            Self::Pending | Self::Failed => None,
        }
    }
}

/// A task's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Raised by every write.
    pub version: u8,
    /// The task's status.
    pub status: Status,
    /// Stages completed, which is the version of the last checkpoint too: each writes one.
    pub completed: u8,
    /// The stage after those.
    pub stage: Stage,
    /// A job that was called off, or that somebody resolved, and whose attempt may still run.
    pub waits_for: Option<JobNumber>,
}

impl Row {
    /// Of a plan that was just started.
    pub(super) const STARTED: Self =
        Self { version: 1, status: Status::Pending, completed: 0, stage: Stage::Pending, waits_for: None };

    /// Whether a person has to say what its stage did before it may run again.
    #[must_use]
    pub fn wants_word(&self) -> bool {
        matches!(self.stage, Stage::Unknown(_)) && self.completed != STAGE_TO_RERUN
    }
}

/// The job of a stage. It is never forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// The stage.
    pub stage: u8,
    /// What the ledger has of it.
    pub record: Record,
    /// It is never sent any more.
    pub is_held: bool,
    /// What the node has of it.
    pub attempt: Attempt,
}

/// What the ledger has of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// No end.
    Open,
    /// Its result.
    Succeeded,
    /// That it ended without success.
    GivenUp,
}

/// What the node has of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attempt {
    /// Nothing.
    Unsent,
    /// It works on it.
    Running,
    /// It has ended it.
    Ended,
}

/// What the ledger has of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlanRows {
    /// The token of the lease `plan:<id>`.
    pub lease: Token,
    /// The row of the task; `None` before the plan is made.
    pub row: Option<Row>,
    /// The jobs of its stages; a [`JobNumber`] is an index here.
    pub jobs: Vec<Job>,
}

impl PlanRows {
    /// A job.
    #[must_use]
    pub fn job(&self, number: JobNumber) -> &Job {
        &self.jobs[usize::from(number.0)]
    }

    /// Whether nothing of a job will run any more.
    #[must_use]
    pub fn is_over(&self, number: JobNumber) -> bool {
        let job = self.job(number);
        job.record != Record::Open && job.attempt != Attempt::Running
    }
}

/// What an instance remembers of a plan. Nothing of it is checked against the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// It does not own it.
    Nothing,
    /// It has made it, and does not own it yet.
    Made {
        /// The row that it wrote.
        row: Row,
        /// The lock that it took.
        lock: Token,
    },
    /// It has acquired it, and not read it.
    Acquired {
        /// The token of the plan's lease.
        token: Token,
        /// The row and the lock, if it has made the plan itself.
        made: Option<(Row, Token)>,
        /// Its lane has held the jobs of earlier owners.
        has_held: bool,
    },
    /// It carries out what is due.
    Serving {
        /// The token of the plan's lease.
        token: Token,
        /// The task's row.
        row: Row,
        /// The task's lock.
        lock: Option<Token>,
        /// As in [`Memory::Acquired`].
        has_held: bool,
    },
    /// It did not hear what became of its last step.
    Unsure {
        /// The token of the plan's lease.
        token: Token,
        /// As in [`Memory::Acquired`].
        has_held: bool,
    },
}

impl Memory {
    /// The token of the plan's lease that it believes to own.
    #[must_use]
    pub const fn token(&self) -> Option<Token> {
        match self {
            Self::Nothing | Self::Made { .. } => None,
            Self::Acquired { token, .. } | Self::Serving { token, .. } | Self::Unsure { token, .. } => {
                Some(*token)
            }
        }
    }

    /// Whether the plan's lane is served, so that jobs are sent.
    #[must_use]
    pub const fn sends(&self) -> bool {
        matches!(self, Self::Serving { has_held: true, .. } | Self::Unsure { has_held: true, .. })
    }
}

/// One step on its way to the ledger, or one whose sender does not listen any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transaction {
    /// Who decided it.
    pub author: Process,
    /// Of which plan.
    pub plan: PlanNumber,
    /// The token of the plan's lease that the author knew.
    pub token: Token,
    /// The row that it was decided on.
    pub row: Row,
    /// The lock that the author knew.
    pub lock: Option<Token>,
    /// What was decided.
    pub command: Command,
}

/// What has been used up of the [`super::Bounds`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spent {
    /// Words of people so far.
    pub words: u8,
    /// Lost verdicts so far.
    pub lost_verdicts: u8,
    /// Unheard acquires so far.
    pub unheard_acquires: u8,
    /// Failures so far.
    pub failures: u8,
    /// Locks broken so far.
    pub breaks: u8,
    /// Locks run out so far.
    pub run_outs: u8,
    /// Restarts so far; the incarnation of every process.
    pub restarts: u8,
}

/// Marks of one plan for the properties. No step depends on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SeenOfPlan {
    /// Stages that have begun, and of which nobody has said since that they may begin again.
    pub begun: [bool; STAGES as usize],
    /// The highest version of a checkpoint.
    pub checkpoint: u8,
    /// The process that a person last told to start, resume or retry, as long as no other has written since.
    pub asked: Option<Process>,
    /// The highest token under which an owner has read the plan.
    pub newest_read: Token,
}

/// Marks for the properties. No step depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// For each plan.
    pub plans: Vec<SeenOfPlan>,
    /// A stage began once more and nobody had said so.
    pub begun_twice: bool,
    /// A stage began, or a job was sent, by one that nobody had told.
    pub begun_unasked: bool,
    /// A step committed under a lock that had been taken once more since.
    pub overtaken_commit: bool,
    /// A step committed under a lock that its task did not have.
    pub lockless_commit: bool,
    /// A task wrote a checkpoint without having its lock, whether or not its owner knew that.
    pub lockless_checkpoint: bool,
    /// A step committed under a token below `newest_read`.
    pub stale_commit: bool,
    /// A checkpoint was written over, or a row forgot one.
    pub checkpoint_undone: bool,
    /// A lock was freed by a restart.
    pub freed_by_restart: bool,
    /// A task lost its lock, though nobody named it.
    pub freed_unnamed: bool,
    /// A transaction committed whose sender did not listen any more.
    pub late_commit: bool,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The tenant's lock.
    pub lock: Lock,
    /// The plans; a [`PlanNumber`] is an index here.
    pub plans: Vec<PlanRows>,
    /// What each instance remembers of each plan; a [`Place`] is an index here.
    pub memories: Vec<Vec<Memory>>,
    /// Transactions whose sender does not listen any more, and that may still commit.
    pub under_way: Vec<Transaction>,
    /// What has been used up.
    pub spent: Spent,
    /// Marks for the properties.
    pub seen: Seen,
}

impl State {
    /// No plan, no lock.
    #[must_use]
    pub fn new(instances: u8, plans: u8) -> Self {
        let plans = usize::from(plans);
        Self {
            lock: Lock { owner: None, token: Token(0), ran_out: false },
            plans: vec![PlanRows::default(); plans],
            memories: vec![vec![Memory::Nothing; plans]; usize::from(instances)],
            under_way: Vec::new(),
            spent: Spent::default(),
            seen: Seen { plans: vec![SeenOfPlan::default(); plans], ..Seen::default() },
        }
    }

    /// What the ledger has of a plan.
    #[must_use]
    pub fn plan(&self, plan: PlanNumber) -> &PlanRows {
        &self.plans[usize::from(plan.0)]
    }

    /// What an instance remembers of a plan.
    #[must_use]
    pub fn memory(&self, place: Place, plan: PlanNumber) -> &Memory {
        &self.memories[usize::from(place.0)][usize::from(plan.0)]
    }

    /// The places where processes run.
    pub fn places(&self) -> impl Iterator<Item = Place> + use<> {
        (0..self.memories.len() as u8).map(Place)
    }

    /// The plans.
    pub fn plan_numbers(&self) -> impl Iterator<Item = PlanNumber> + use<> {
        (0..self.plans.len() as u8).map(PlanNumber)
    }

    /// Every instance with every plan.
    pub fn pairs(&self) -> impl Iterator<Item = (Place, PlanNumber)> + use<> {
        let plans = self.plans.len() as u8;
        self.places().flat_map(move |place| (0..plans).map(move |plan| (place, PlanNumber(plan))))
    }

    /// The process that runs in a place.
    #[must_use]
    pub const fn process(&self, place: Place) -> Process {
        Process { place, incarnation: self.spent.restarts }
    }

    /// The token of the lock, if this plan's task has it: what a read of the plan shows.
    #[must_use]
    pub fn lock_of(&self, plan: PlanNumber) -> Option<Token> {
        (self.lock.owner == Some(plan)).then_some(self.lock.token)
    }

    /// Whether a write under this token passes the plan's fence.
    #[must_use]
    pub fn passes(&self, rules: &Rules, plan: PlanNumber, token: Token) -> bool {
        !rules.step_looks_at_plan || self.plan(plan).lease == token
    }
}
