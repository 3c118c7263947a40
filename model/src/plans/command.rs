//! The commands of a plan's owner, from people and from events. What must never live here: what follows from them.

/// What reaches a plan's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// The owner is a new one.
    TakenOver,
    /// The owner renews the lock, and begins what may begin.
    Advance,
    /// The job in flight has ended.
    StageEnded,
    /// The job that the task waits for is over, and so is its attempt.
    OlderEnded,
    /// The task has lost its lock.
    LockLost,
    /// A person has a task go on that is PAUSED.
    Resume,
    /// A person says of the stage that is UNKNOWN that it is done.
    ResolveDone,
    /// A person says that it is not.
    ResolveNotDone,
    /// A person has the task run again, from its checkpoint.
    Retry,
    /// A person calls the task off.
    Cancel,
}

impl Command {
    /// What an owner does by itself while it serves.
    pub(super) const OWN: [Self; 4] = [Self::Advance, Self::StageEnded, Self::OlderEnded, Self::LockLost];

    /// What people ask for after the start.
    pub(super) const WORDS: [Self; 5] =
        [Self::Resume, Self::ResolveDone, Self::ResolveNotDone, Self::Retry, Self::Cancel];

    /// Whether a person says it.
    #[must_use]
    pub fn is_word(self) -> bool {
        Self::WORDS.contains(&self)
    }

    /// Whether a person thereby tells the owner to begin stages.
    #[must_use]
    pub const fn tells(self) -> bool {
        matches!(self, Self::Resume | Self::Retry)
    }
}
