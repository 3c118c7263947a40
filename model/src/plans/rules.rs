//! How steps, takeovers, retries and breaks are built, one field for each condition. What must never live here: the
//! steps themselves, and the traps that open when a condition is left out.

/// The conditions under which plans go on. [`Rules::sound`] is how they must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether a step commits only while its task has the tenant's lock at the token that the owner knows.
    pub step_looks_at_lock: bool,
    /// Whether what an owner and its lane write commits only while the plan's lease has their token.
    pub step_looks_at_plan: bool,
    /// Whether the end of a job and the word that a stage is done count only for a task that has its lock, or takes it.
    pub end_wants_lock: bool,
    /// Whether a step commits only while the task's row has the version that it was decided on.
    pub step_compares_version: bool,
    /// What a new owner makes of a task that ran.
    pub takeover: Takeover,
    /// Whether a new owner, or one that reads its plan anew, looks whether its task still has the lock.
    pub read_looks_for_lock: bool,
    /// Whether a new owner serves only once its lane has held the jobs that were left to it.
    pub serves_after_hold: bool,
    /// How an owner goes on that acquired its lease anew.
    pub anew: Anew,
    /// Whether a retry is refused while a stage is UNKNOWN, unless that stage is one that may run again.
    pub retry_wants_word: bool,
    /// Whether no stage begins before an older attempt of its task has ended.
    pub waits_for_older: bool,
    /// Whether a break names the token of the lock that is meant.
    pub break_names_token: bool,
    /// Whether a restart of all instances leaves the tenants' locks.
    pub restart_keeps_locks: bool,
}

/// What a new owner makes of a task that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// The task is INTERRUPTED, its stage in flight UNKNOWN, and nothing begins.
    Interrupts,
    /// The stage in flight begins once more.
    BeginsAgain,
}

/// How an owner goes on that acquired its lease anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anew {
    /// As the owner that it was, if its acquire followed its last one directly; otherwise somebody else was the owner
    /// between, and it begins as a new owner does. So does one that was fenced, one that finds a row of another version,
    /// and the maker of a plan that lost the verdict of its first step.
    IfNobodyWasBetween,
    /// As the owner that it was, whatever was between.
    AsTheOwner,
}

impl Rules {
    /// Every condition, so that SPEC 9 holds.
    #[must_use]
    pub const fn sound() -> Self {
        Self {
            step_looks_at_lock: true,
            step_looks_at_plan: true,
            end_wants_lock: true,
            step_compares_version: true,
            takeover: Takeover::Interrupts,
            read_looks_for_lock: true,
            serves_after_hold: true,
            anew: Anew::IfNobodyWasBetween,
            retry_wants_word: true,
            waits_for_older: true,
            break_names_token: true,
            restart_keeps_locks: true,
        }
    }
}
