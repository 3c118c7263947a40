//! The traps: each leaves one condition out of the rules, and names the promises that break then. What must never live
//! here: the steps themselves.

use super::properties;
use super::rules::{Anew, Rules, Takeover};

/// A condition left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// A step does not look at the tenant's lock.
    StepIgnoresLock,
    /// An owner that knows that its task has lost the lock still turns a late result into its checkpoint.
    EndIgnoresLostLock,
    /// A step does not look at the plan's lease, and nor does the lane.
    StepIgnoresPlanLease,
    /// A step does not compare the version of the row that it changes.
    StepIgnoresVersion,
    /// A new owner dispatches the stage in flight once more.
    TakeoverBeginsAgain,
    /// A restart ends every lease, those of tenants too.
    RestartFreesLocks,
    /// A break frees whatever lock the tenant has by then.
    BreakNamesNoToken,
    /// A retry takes a stage that is UNKNOWN for not done.
    RetryGuesses,
    /// A retry does not wait for the older attempt.
    RetryDoesNotWait,
    /// An instance that acquires its lease anew goes on, also where another owned the plan in between.
    AnewAsTheOwner,
    /// A new owner serves before its lane has held what was left to it.
    ServesBeforeHold,
    /// A new owner takes a lock for granted that its task has lost before.
    ReadTrustsLock,
}

impl Trap {
    /// Every trap.
    pub const ALL: [Self; 12] = [
        Self::StepIgnoresLock,
        Self::EndIgnoresLostLock,
        Self::StepIgnoresPlanLease,
        Self::StepIgnoresVersion,
        Self::TakeoverBeginsAgain,
        Self::RestartFreesLocks,
        Self::BreakNamesNoToken,
        Self::RetryGuesses,
        Self::RetryDoesNotWait,
        Self::AnewAsTheOwner,
        Self::ServesBeforeHold,
        Self::ReadTrustsLock,
    ];

    /// The sound rules with this one trap reopened.
    #[must_use]
    pub const fn reopened(self) -> Rules {
        let mut rules = Rules::sound();
        match self {
            Self::StepIgnoresLock => rules.step_looks_at_lock = false,
            Self::EndIgnoresLostLock => rules.end_wants_lock = false,
            Self::StepIgnoresPlanLease => rules.step_looks_at_plan = false,
            Self::StepIgnoresVersion => rules.step_compares_version = false,
            Self::TakeoverBeginsAgain => rules.takeover = Takeover::BeginsAgain,
            Self::RestartFreesLocks => rules.restart_keeps_locks = false,
            Self::BreakNamesNoToken => rules.break_names_token = false,
            Self::RetryGuesses => rules.retry_wants_word = false,
            Self::RetryDoesNotWait => rules.waits_for_older = false,
            Self::AnewAsTheOwner => rules.anew = Anew::AsTheOwner,
            Self::ServesBeforeHold => rules.serves_after_hold = false,
            Self::ReadTrustsLock => rules.read_looks_for_lock = false,
        }
        rules
    }

    /// The promises that must break once the trap is open, and the only ones that may.
    #[must_use]
    pub const fn breaks(self) -> &'static [&'static str] {
        match self {
            Self::StepIgnoresLock => &[
                properties::OLDER_TASK_NEVER_COMMITS,
                properties::LOCKED_STEPS,
                properties::CHECKPOINTS_UNDER_LOCK,
            ],
            Self::EndIgnoresLostLock => &[properties::CHECKPOINTS_UNDER_LOCK],
            Self::StepIgnoresPlanLease => &[
                properties::STALE_OWNER_NEVER_COMMITS,
                properties::BEGUN_WHEN_ASKED,
                properties::NO_STAGE_WAITS_IN_VAIN,
            ],
            Self::StepIgnoresVersion => &[
                properties::BEGUN_ONCE,
                properties::BEGUN_WHEN_ASKED,
                properties::CHECKPOINTS_STAY,
                properties::ONE_ATTEMPT,
            ],
            Self::TakeoverBeginsAgain => {
                &[properties::BEGUN_ONCE, properties::BEGUN_WHEN_ASKED, properties::ONE_ATTEMPT]
            }
            Self::RestartFreesLocks => &[properties::LOCKS_OUTLIVE_ALL, properties::LOCKS_ARE_LOST_BY_NAME],
            Self::BreakNamesNoToken => &[properties::LOCKS_ARE_LOST_BY_NAME],
            Self::RetryGuesses => &[properties::BEGUN_ONCE],
            Self::RetryDoesNotWait => &[properties::ONE_ATTEMPT],
            Self::AnewAsTheOwner => &[properties::BEGUN_WHEN_ASKED, properties::NO_STAGE_WAITS_IN_VAIN],
            Self::ServesBeforeHold => &[properties::NO_STAGE_WAITS_IN_VAIN],
            Self::ReadTrustsLock => &[properties::NO_TASK_WAITS_IN_VAIN],
        }
    }
}
