//! How the protocol is built, one field for each lock, condition and constraint that it rests on, and the traps that
//! open when one of them is taken out. What must never live here: the steps themselves.

use crate::properties;

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

/// A known way to get the protocol wrong: one lock, condition or constraint taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// Trap 1: the token is compared on the data row only.
    TokenOnDataRowOnly,
    /// Trap 2: the lease row is compared but not locked.
    LeaseComparedNotLocked,
    /// Trap 3: the lock is strong enough to hold up renewals (`FOR SHARE`).
    LockBlocksRenewal,
    /// Trap 3: without `UNIQUE (resource, fencing_token)` a takeover does not wait for `FOR KEY SHARE`.
    LockLetsTakeoverPass,
    /// Trap 4: the last owner acquires its own lease without a higher token, so past its own zombie.
    OwnAcquireKeepsToken,
    /// Trap 4: after an unknown commit the writer loads, but does not acquire anew.
    LoadWithoutAcquireAfterUnknown,
    /// Trap 4: an unknown commit is taken for a failure.
    UnknownTakenForFailed,
    /// I9: an unknown commit is taken for a success.
    UnknownTakenForDone,
    /// Trap 5: the bulk renewal says `WHERE owner = me`, and a release only ends the lease.
    RenewalByOwner,
    /// Trap 5, its other half: the renewal is exact, but a release leaves the owner in place, and a renewal that was
    /// under way lands after it.
    ReleaseKeepsOwner,
    /// Trap 6: one statement acquires and loads.
    LoadInAcquireStatement,
    /// Trap 7: a restarted process bears the name of its paused predecessor.
    StableOwnerName,
    /// An early takeover changes the owner only, as if the lease were handed over.
    TakeoverKeepsToken,
    /// A new identity keeps its actors' memory.
    NewIdentityRemembers,
}

impl Trap {
    /// Every trap.
    pub const ALL: [Self; 14] = [
        Self::TokenOnDataRowOnly,
        Self::LeaseComparedNotLocked,
        Self::LockBlocksRenewal,
        Self::LockLetsTakeoverPass,
        Self::OwnAcquireKeepsToken,
        Self::LoadWithoutAcquireAfterUnknown,
        Self::UnknownTakenForFailed,
        Self::UnknownTakenForDone,
        Self::RenewalByOwner,
        Self::ReleaseKeepsOwner,
        Self::LoadInAcquireStatement,
        Self::StableOwnerName,
        Self::TakeoverKeepsToken,
        Self::NewIdentityRemembers,
    ];

    /// The sound protocol with this one trap reopened.
    #[must_use]
    pub const fn reopened(self) -> Protocol {
        let mut protocol = Protocol::sound();
        match self {
            Self::TokenOnDataRowOnly => protocol.fence = Fence::DataRowOnly,
            Self::LeaseComparedNotLocked => protocol.fence = Fence::Compare,
            Self::LockBlocksRenewal => protocol.fence = Fence::Lock(RowLock::Share),
            Self::LockLetsTakeoverPass => protocol.token_is_a_key = false,
            Self::OwnAcquireKeepsToken => protocol.own_acquire_raises_token = false,
            Self::LoadWithoutAcquireAfterUnknown => protocol.after_unknown = AfterUnknown::LoadOnly,
            Self::UnknownTakenForFailed => protocol.after_unknown = AfterUnknown::TakeForFailed,
            Self::UnknownTakenForDone => protocol.after_unknown = AfterUnknown::TakeForDone,
            Self::RenewalByOwner => {
                protocol.renewal_names_token = false;
                protocol.release_clears_owner = false;
            }
            Self::ReleaseKeepsOwner => protocol.release_clears_owner = false,
            Self::LoadInAcquireStatement => protocol.load = LoadIn::AcquireStatement,
            Self::StableOwnerName => protocol.owner_names = OwnerNames::StableAndAdopted,
            Self::TakeoverKeepsToken => protocol.takeover_raises_token = false,
            Self::NewIdentityRemembers => protocol.new_identity_forgets = false,
        }
        protocol
    }

    /// The promises that must break once the trap is open.
    #[must_use]
    pub const fn breaks(self) -> &'static [&'static str] {
        match self {
            Self::TokenOnDataRowOnly | Self::LeaseComparedNotLocked | Self::LockLetsTakeoverPass => &[
                properties::NEVER_ANSWERED_TWICE,
                properties::NEVER_GRANTED_TWICE,
                properties::ONE_OWNER_WRITES,
                properties::STALE_OWNER_NEVER_COMMITS,
                properties::OWNER_KNOWS_ALL,
            ],
            Self::LockBlocksRenewal => &[properties::RENEWAL_NEVER_WAITS],
            Self::OwnAcquireKeepsToken
            | Self::LoadWithoutAcquireAfterUnknown
            | Self::UnknownTakenForFailed => &[
                properties::NEVER_GRANTED_TWICE,
                properties::REFUSED_IS_NOT_IN_THE_LEDGER,
                properties::OWNER_KNOWS_ALL,
            ],
            Self::UnknownTakenForDone => {
                &[properties::ANSWERED_IS_IN_THE_LEDGER, properties::NO_GAP, properties::OWNER_KNOWS_ALL]
            }
            Self::RenewalByOwner | Self::ReleaseKeepsOwner => &[properties::RELEASED_STAYS_RELEASED],
            Self::LoadInAcquireStatement | Self::NewIdentityRemembers => &[
                properties::NEVER_ANSWERED_TWICE,
                properties::NEVER_GRANTED_TWICE,
                properties::OWNER_KNOWS_ALL,
            ],
            Self::StableOwnerName | Self::TakeoverKeepsToken => &[
                properties::NEVER_ANSWERED_TWICE,
                properties::NEVER_GRANTED_TWICE,
                properties::ONE_OWNER_WRITES,
                properties::OWNER_KNOWS_ALL,
            ],
        }
    }
}
