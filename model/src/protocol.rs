//! How the protocol is built, one field for each lock, condition and constraint that it rests on. What must
//! never live here: the steps themselves, and the traps that open when one of these fields is wrong.

/// The pieces of the protocol that can be got wrong. [`Protocol::sound`] is how it is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// What a write does before it touches rows.
    pub fence: Fence,
    /// Whether `UNIQUE (resource, fencing_token)` exists. It makes the token a key column, so that raising it locks
    /// `FOR UPDATE` rather than `FOR NO KEY UPDATE`.
    pub token_is_a_key: bool,
    /// Whether an acquire raises the token also when the lease is the asker's own.
    pub own_acquire_raises_token: bool,
    /// When the granted nonces are read.
    pub load: LoadIn,
    /// What a writer does when it did not hear whether its commit happened.
    pub after_unknown: AfterUnknown,
    /// Whether a write that follows another is committed only once that one is, and undone if that one is lost.
    pub follower_waits: bool,
    /// Whether a renewal names the token and is sent for living actors only. Otherwise it is one timer per process
    /// with `WHERE owner = me`.
    pub renewal_names_token: bool,
    /// Whether a release clears the owner. Otherwise it only ends the lease.
    pub release_clears_owner: bool,
    /// Who a process says it is.
    pub owner_names: OwnerNames,
    /// Whether an early takeover raises the token.
    pub takeover_raises_token: bool,
    /// Whether a process that goes on under a new identity drops what its actors knew. Otherwise they acquire anew and
    /// go on without a load.
    pub new_identity_forgets: bool,
}

impl Protocol {
    /// The protocol as SPEC 1 has it: every trap shut.
    #[must_use]
    pub const fn sound() -> Self {
        Self {
            fence: Fence::Lock(RowLock::KeyShare),
            token_is_a_key: true,
            own_acquire_raises_token: true,
            load: LoadIn::LaterStatement,
            after_unknown: AfterUnknown::AcquireAnew,
            follower_waits: true,
            renewal_names_token: true,
            release_clears_owner: true,
            owner_names: OwnerNames::PerIncarnation,
            takeover_raises_token: true,
            new_identity_forgets: true,
        }
    }

    /// The row lock that an acquire takes on the lease.
    #[must_use]
    pub const fn acquire_lock(&self, raises_token: bool) -> RowLock {
        if raises_token && self.token_is_a_key { RowLock::Update } else { RowLock::NoKeyUpdate }
    }

    /// The row lock that an admitted write keeps on the lease until its transaction ends.
    #[must_use]
    pub const fn write_lock(&self) -> Option<RowLock> {
        match self.fence {
            Fence::Lock(mode) => Some(mode),
            Fence::Compare | Fence::DataRowOnly => None,
        }
    }
}

/// What a write does before it touches rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// It finds the lease row at exactly its token and locks it until its transaction ends.
    Lock(RowLock),
    /// It finds the lease row at exactly its token, and does not lock it.
    Compare,
    /// It never looks at the lease. Only a row that is there already refuses a lower token than its own.
    DataRowOnly,
}

/// PostgreSQL's row locks, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLock {
    /// `FOR KEY SHARE`: the key columns stay as they are.
    KeyShare,
    /// `FOR SHARE`: nothing of the row changes.
    Share,
    /// `FOR NO KEY UPDATE`: what an `UPDATE` takes that leaves the key columns alone.
    NoKeyUpdate,
    /// `FOR UPDATE`: what an `UPDATE` takes that changes a key column.
    Update,
}

impl RowLock {
    /// Whether two transactions cannot hold these locks on one row at the same time.
    #[must_use]
    pub const fn conflicts_with(self, other: Self) -> bool {
        match self {
            Self::KeyShare => matches!(other, Self::Update),
            Self::Share => matches!(other, Self::NoKeyUpdate | Self::Update),
            Self::NoKeyUpdate => !matches!(other, Self::KeyShare),
            Self::Update => true,
        }
    }
}

/// When the granted nonces are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadIn {
    /// In a statement after the acquire: it sees every write that the acquire waited for.
    LaterStatement,
    /// In the acquire's own statement: it sees what was there before the acquire waited.
    AcquireStatement,
}

/// What a writer does when it did not hear whether its commit happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterUnknown {
    /// It acquires the lease anew and loads, and only then speaks and decides.
    AcquireAnew,
    /// It loads, but keeps its token.
    LoadOnly,
    /// It takes the write for failed and goes on.
    TakeForFailed,
    /// It takes the write for done and goes on.
    TakeForDone,
}

/// Who a process says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerNames {
    /// A new name each time a process starts.
    PerIncarnation,
    /// One name such as host:port for a process and those that it replaces; a process that starts carries on, by
    /// renewing, with the leases that bear its name. All instances of the model are then one after the other at one
    /// address, the earlier ones paused rather than dead.
    StableAndAdopted,
}
