//! What is so at one moment: the lease row, the transactions in the server, what each instance believes, and a few
//! marks that only the properties read. What must never live here: a rule of how one moment follows another.

use crate::protocol::{OwnerNames, Protocol, RowLock};

/// A fencing token; 0 stands for a lease row that does not exist yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u8);

/// A nonce, from 0 upward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u8);

/// One of the places where a process runs; a process that crashed is replaced in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance(pub u8);

/// One try to grant one nonce to one caller; also the index of its [`Write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold(pub u8);

/// The owner name as the lease row has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Where the process runs.
    pub instance: Instance,
    /// How many ran there before it.
    pub incarnation: u8,
}

/// A set of nonces below 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NonceSet(u8);

impl NonceSet {
    /// The set with one more nonce, which must be below 8.
    #[must_use]
    pub fn with(self, nonce: Nonce) -> Self {
        Self(self.0 | (1 << nonce.0))
    }

    /// The lowest nonce that is not in the set.
    #[must_use]
    pub fn lowest_missing(self) -> Nonce {
        Nonce(self.0.trailing_ones() as u8)
    }

    /// Whether the set holds every nonce below its highest.
    #[must_use]
    pub fn has_no_gap(self) -> bool {
        self.0.trailing_ones() == self.0.count_ones()
    }
}

/// The lease row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Who has it; cleared by a release.
    pub owner: Option<Owner>,
    /// Rises with every acquisition, never falls.
    pub token: Token,
    /// How it stands against the database's clock.
    pub standing: Standing,
}

/// How a lease stands against the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// `expires_at` is ahead.
    Live,
    /// `expires_at` has passed by itself.
    RanOut,
    /// The owner ended it. (In the row this looks like `RanOut`; only the properties tell them apart.)
    Released,
}

/// One fenced write: the transaction in the server, and what its caller was told. Writes are never forgotten: those
/// that committed *are* the table of nonces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    /// The process that decided it.
    pub writer: Owner,
    /// The token that the writer believed in.
    pub token: Token,
    /// The nonce that it grants.
    pub nonce: Nonce,
    /// The write of the same owner that it was decided on, if that one was still on its way.
    pub after: Option<Hold>,
    /// How far the server is with it.
    pub transaction: Transaction,
    /// What the caller knows.
    pub caller: Caller,
}

impl Write {
    /// Whether its row is in the table.
    #[must_use]
    pub fn is_committed(&self) -> bool {
        self.transaction == Transaction::Committed
    }

    /// Whether it is past its fence and can still commit.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        matches!(self.transaction, Transaction::Admitted | Transaction::Inserted)
    }

    /// Whether its caller was given the nonce.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        matches!(self.caller, Caller::Answered | Caller::AnsweredAfterLoad)
    }
}

/// How far the server is with a fenced write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transaction {
    /// Open, nothing asked yet.
    Begun,
    /// Past the fence; holds the lease row's lock if the fence takes one.
    Admitted,
    /// The row is written, visible to nobody else.
    Inserted,
    /// Done for good.
    Committed,
    /// Undone for good.
    RolledBack,
    /// Refused by the fence, so undone for good.
    Fenced,
}

impl Transaction {
    /// Whether the server has not ended it.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::Begun | Self::Admitted | Self::Inserted)
    }
}

/// What the caller of a grant was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Nothing yet; the writer awaits the outcome.
    Waits,
    /// Nothing, and the writer did not hear the outcome.
    InTheDark,
    /// The nonce.
    Answered,
    /// The nonce, once a load had shown that the unheard commit happened.
    AnsweredAfterLoad,
    /// That nothing was granted.
    Refused,
}

/// One instance: its current process and what that believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Knowledge {
    /// How many processes ran in this place before.
    pub incarnation: u8,
    /// Where its actor for the resource stands.
    pub phase: Phase,
    /// The write whose outcome it did not hear, until a load tells.
    pub unheard: Option<Hold>,
    /// A renewal under way, and the token that it was sent for; 0 where no actor has one.
    pub renewal: Option<Token>,
}

/// Where an actor stands. Nothing in it is checked against the ledger: this is what a paused process wakes up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// There is no actor, or it knows nothing.
    Cold,
    /// An acquire that also loads has taken its snapshot and waits ([`crate::LoadIn::AcquireStatement`] only).
    Acquiring {
        /// The nonces that were granted when the statement began.
        snapshot: NonceSet,
    },
    /// Under a new identity, with the memory of the old one ([`crate::Protocol::new_identity_forgets`] left out only).
    Remembering {
        /// The nonces that the old identity knew as granted.
        granted: NonceSet,
    },
    /// The lease is acquired, the state not loaded.
    Acquired {
        /// The token of the acquire.
        token: Token,
    },
    /// Ready to decide.
    Warm {
        /// The token that it believes in.
        token: Token,
        /// The nonces that it knows as granted.
        granted: NonceSet,
    },
    /// One write is on its way, or two, the second decided on the first one's effect. Nothing more is decided until the
    /// outcome of the first is known.
    Writing {
        /// The token that it believes in.
        token: Token,
        /// The nonces that it knows as granted, this write's not among them.
        granted: NonceSet,
        /// The write.
        hold: Hold,
        /// The one that follows it.
        behind: Option<Hold>,
    },
}

impl Phase {
    /// The token of the lease that the actor believes to own.
    #[must_use]
    pub fn token(self) -> Option<Token> {
        match self {
            Self::Cold | Self::Acquiring { .. } | Self::Remembering { .. } => None,
            Self::Acquired { token } | Self::Warm { token, .. } | Self::Writing { token, .. } => Some(token),
        }
    }
}

/// What has been used up of the [`crate::Bounds`]. Acquisitions and writes count themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spent {
    /// Connections lost so far.
    pub lost_connections: u8,
    /// Unheard acquires so far.
    pub unheard_acquires: u8,
    /// Crashes so far.
    pub crashes: u8,
    /// New identities so far.
    pub new_identities: u8,
}

/// Marks for the properties. No step depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The highest token under which the state was loaded.
    pub newest_load: Token,
    /// A write committed under a token below `newest_load`.
    pub stale_commit: bool,
    /// A renewal made a released lease live.
    pub release_undone: bool,
    /// The same, and no actor lived for which it was sent.
    pub release_undone_for_nobody: bool,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The lease row.
    pub lease: Lease,
    /// Every fenced write so far, in the order of their begin; a [`Hold`] is an index here.
    pub writes: Vec<Write>,
    /// The instances; an [`Instance`] is an index here.
    pub instances: Vec<Knowledge>,
    /// What has been used up.
    pub spent: Spent,
    /// Marks for the properties.
    pub seen: Seen,
}

impl State {
    /// No lease row, no write, and every instance cold.
    #[must_use]
    pub fn new(instances: u8) -> Self {
        let cold = Knowledge { incarnation: 0, phase: Phase::Cold, unheard: None, renewal: None };
        Self {
            lease: Lease { owner: None, token: Token(0), standing: Standing::RanOut },
            writes: Vec::new(),
            instances: vec![cold; usize::from(instances)],
            spent: Spent::default(),
            seen: Seen {
                newest_load: Token(0),
                stale_commit: false,
                release_undone: false,
                release_undone_for_nobody: false,
            },
        }
    }

    /// What an instance believes.
    #[must_use]
    pub fn knowledge(&self, instance: Instance) -> &Knowledge {
        &self.instances[usize::from(instance.0)]
    }

    /// The write of a hold.
    #[must_use]
    pub fn write(&self, hold: Hold) -> &Write {
        &self.writes[usize::from(hold.0)]
    }

    /// The places where processes run.
    pub fn places(&self) -> impl Iterator<Item = Instance> + use<> {
        (0..self.instances.len() as u8).map(Instance)
    }

    /// The name that an instance's current process gives as owner.
    #[must_use]
    pub fn owner_name(&self, protocol: &Protocol, instance: Instance) -> Owner {
        match protocol.owner_names {
            OwnerNames::PerIncarnation => self.process(instance),
            OwnerNames::StableAndAdopted => Owner { instance: Instance(0), incarnation: 0 },
        }
    }

    /// The process that runs in a place, told apart from every other one whatever name it bears.
    #[must_use]
    pub fn process(&self, instance: Instance) -> Owner {
        Owner { instance, incarnation: self.knowledge(instance).incarnation }
    }

    /// What a `SELECT` of the granted nonces shows now.
    #[must_use]
    pub fn granted(&self) -> NonceSet {
        self.writes
            .iter()
            .filter(|write| write.is_committed())
            .fold(NonceSet::default(), |set, write| set.with(write.nonce))
    }

    /// Whether the commit of a write may have been sent: one that follows another waits for that one.
    #[must_use]
    pub fn may_commit(&self, protocol: &Protocol, write: &Write) -> bool {
        !protocol.follower_waits || write.after.is_none_or(|after| self.write(after).is_committed())
    }

    /// Whether an open write's lock on the lease row makes this lock wait.
    #[must_use]
    pub fn lease_lock_waits(&self, protocol: &Protocol, wanted: RowLock) -> bool {
        protocol.write_lock().is_some_and(|held| held.conflicts_with(wanted))
            && self.writes.iter().any(Write::is_admitted)
    }

    /// The acquire's condition: free, run out, or mine.
    #[must_use]
    pub fn may_acquire(&self, protocol: &Protocol, instance: Instance) -> bool {
        match self.lease.owner {
            None => true,
            Some(owner) => {
                self.lease.standing != Standing::Live || owner == self.owner_name(protocol, instance)
            }
        }
    }

    /// What an early takeover needs: another owner, whose lease is live (one that ran out is there to be acquired).
    #[must_use]
    pub fn may_take_over(&self, protocol: &Protocol, instance: Instance) -> bool {
        self.lease.standing == Standing::Live
            && self.lease.owner.is_some_and(|owner| owner != self.owner_name(protocol, instance))
    }

    /// Whether an acquire by this instance raises the token.
    #[must_use]
    pub fn acquire_raises_token(&self, protocol: &Protocol, instance: Instance) -> bool {
        protocol.own_acquire_raises_token || self.lease.owner != Some(self.owner_name(protocol, instance))
    }

    /// The renewal's condition, for one sent for `token`.
    #[must_use]
    pub fn renewal_matches(&self, protocol: &Protocol, instance: Instance, token: Token) -> bool {
        self.lease.owner == Some(self.owner_name(protocol, instance))
            && (!protocol.renewal_names_token || self.lease.token == token)
    }
}
