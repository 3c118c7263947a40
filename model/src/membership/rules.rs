//! How life is shown, judged and taken, one field for each condition, and the traps that open when one of them is left
//! out. What must never live here: the steps themselves.

use super::properties;

/// The conditions of early takeover. [`Rules::sound`] is how they are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// So many renewals of one's own in a row must have found the other's lease unmoved.
    pub unmoved_min: u8,
    /// Whether a renewal whose answer came late starts that count anew: whoever was held up itself has no evidence.
    pub late_starts_anew: bool,
    /// What counts as evidence of death.
    pub evidence: Evidence,
    /// Whether evidence is good for half a lease only: what was seen before a stall says nothing after it.
    pub evidence_expires: bool,
    /// How long nothing is taken after one's own lease had run out.
    pub calm: Calm,
    /// Whether the takeover's statement has it in its condition that the other's `instance:` lease is not live.
    pub statement_asks: bool,
    /// Whether the dead one's `instance:` lease is taken, and before its keys.
    pub life_before_keys: bool,
    /// By what an instance stops by itself.
    pub own_clock: OwnClock,
}

/// What counts as evidence of death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A lease that does not move, and that has run out when one looks.
    UnmovedAndRunOut,
    /// A lease that does not move, run out or not.
    Unmoved,
    /// A lease that does not move once it has run out.
    UnmovedSinceRunOut,
}

/// How long nothing is taken after one's own lease had run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calm {
    /// For one lease length from an answer that came after the own lease had run out.
    FromAnswer,
    /// For one lease length from the sending of a renewal after the own lease had run out; neither looks at how long it
    /// was under way.
    FromSending,
    /// Not at all.
    None,
}

/// By what an instance stops by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnClock {
    /// Its lease counts from when its last good renewal was sent.
    FromSending,
    /// Its lease counts from when the answer came.
    FromAnswer,
    /// It writes until it is told that it is dead.
    Ignored,
}

impl Rules {
    /// The conditions of SPEC 1.
    #[must_use]
    pub const fn sound() -> Self {
        Self {
            unmoved_min: 2,
            late_starts_anew: true,
            evidence: Evidence::UnmovedAndRunOut,
            evidence_expires: true,
            calm: Calm::FromAnswer,
            statement_asks: true,
            life_before_keys: true,
            own_clock: OwnClock::FromSending,
        }
    }
}

/// A condition left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// A thief needs no renewals of its own: the first look after a stall calls everybody dead.
    NoRenewalsOfOnesOwn,
    /// A renewal that a stall held up counts as one of the two in a row.
    LateRenewalCounts,
    /// An instance that was away itself takes at once.
    NoCalmAfterGap,
    /// A thief goes by what it saw before a stall.
    EvidenceIsKept,
    /// The calm after a gap counts from a renewal that was itself held up.
    CalmFromSending,
    /// The takeover's statement goes by what the thief remembers.
    StatementTrustsMemory,
    /// A lease need not have run out.
    TakesBeforeTheEnd,
    /// The keys are taken and the `instance:` lease is left.
    KeysWithoutLife,
    /// The own lease counts from the answer to the renewal.
    ClockFromAnswer,
    /// No clock of its own stops an instance.
    NoOwnClock,
    /// The two renewals count only after the lease ran out.
    EvidenceOnlyAfterTheEnd,
}

impl Trap {
    /// Every trap.
    pub const ALL: [Self; 11] = [
        Self::NoRenewalsOfOnesOwn,
        Self::LateRenewalCounts,
        Self::NoCalmAfterGap,
        Self::CalmFromSending,
        Self::EvidenceIsKept,
        Self::StatementTrustsMemory,
        Self::TakesBeforeTheEnd,
        Self::KeysWithoutLife,
        Self::ClockFromAnswer,
        Self::NoOwnClock,
        Self::EvidenceOnlyAfterTheEnd,
    ];

    /// The sound rules with this one trap reopened.
    #[must_use]
    pub const fn reopened(self) -> Rules {
        let mut rules = Rules::sound();
        match self {
            Self::NoRenewalsOfOnesOwn => rules.unmoved_min = 0,
            Self::LateRenewalCounts => rules.late_starts_anew = false,
            Self::NoCalmAfterGap => rules.calm = Calm::None,
            Self::EvidenceIsKept => rules.evidence_expires = false,
            Self::CalmFromSending => rules.calm = Calm::FromSending,
            Self::StatementTrustsMemory => rules.statement_asks = false,
            Self::TakesBeforeTheEnd => {
                rules.evidence = Evidence::Unmoved;
                rules.statement_asks = false;
            }
            Self::KeysWithoutLife => rules.life_before_keys = false,
            Self::ClockFromAnswer => rules.own_clock = OwnClock::FromAnswer,
            Self::NoOwnClock => rules.own_clock = OwnClock::Ignored,
            Self::EvidenceOnlyAfterTheEnd => rules.evidence = Evidence::UnmovedSinceRunOut,
        }
        rules
    }

    /// The promises that must break once the trap is open.
    #[must_use]
    pub const fn breaks(self) -> &'static [&'static str] {
        match self {
            Self::NoRenewalsOfOnesOwn
            | Self::LateRenewalCounts
            | Self::NoCalmAfterGap
            | Self::CalmFromSending
            | Self::EvidenceIsKept
            | Self::StatementTrustsMemory => &[properties::NO_THEFT_FROM_THE_LIVING],
            Self::TakesBeforeTheEnd => {
                &[properties::NO_THEFT_FROM_THE_LIVING, properties::WHO_WRITES_IS_ALIVE]
            }
            Self::KeysWithoutLife => &[properties::THE_ROBBED_DO_NOT_GO_ON],
            Self::ClockFromAnswer | Self::NoOwnClock => &[properties::WHO_WRITES_IS_ALIVE],
            Self::EvidenceOnlyAfterTheEnd => &[properties::THE_DEAD_ARE_SEEN_IN_TIME],
        }
    }
}
