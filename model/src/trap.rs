//! The traps: each takes one lock, condition or constraint out of the protocol, and names the promises that
//! break then. What must never live here: the steps themselves.

use crate::properties;
use crate::protocol::{AfterUnknown, Fence, LoadIn, OwnerNames, Protocol, RowLock};

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
    /// A write that follows another is committed without waiting for that one.
    FollowerDoesNotWait,
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
    pub const ALL: [Self; 15] = [
        Self::TokenOnDataRowOnly,
        Self::LeaseComparedNotLocked,
        Self::LockBlocksRenewal,
        Self::LockLetsTakeoverPass,
        Self::OwnAcquireKeepsToken,
        Self::LoadWithoutAcquireAfterUnknown,
        Self::UnknownTakenForFailed,
        Self::UnknownTakenForDone,
        Self::FollowerDoesNotWait,
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
            Self::FollowerDoesNotWait => protocol.follower_waits = false,
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
            Self::FollowerDoesNotWait => &[properties::REFUSED_IS_NOT_IN_THE_LEDGER, properties::NO_GAP],
            Self::RenewalByOwner => {
                &[properties::RELEASED_STAYS_RELEASED, properties::NOBODY_RENEWS_WHAT_WAS_RELEASED]
            }
            Self::ReleaseKeepsOwner => &[properties::RELEASED_STAYS_RELEASED],
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
