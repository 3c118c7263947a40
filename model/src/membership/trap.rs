//! The traps: each leaves one condition out of the rules, and names the promises that break then. What must
//! never live here: the steps themselves.

use super::properties;
use super::rules::{Calm, Evidence, OwnClock, Rules};

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
    /// An instance that was away itself acquires at once what ran out meanwhile.
    TakesWhatRanOut,
    /// The takeover's statement goes by what the thief remembers.
    StatementTrustsMemory,
    /// A lease need not have run out, neither when the thief looks nor for the takeover's statement.
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
    pub const ALL: [Self; 12] = [
        Self::NoRenewalsOfOnesOwn,
        Self::LateRenewalCounts,
        Self::NoCalmAfterGap,
        Self::CalmFromSending,
        Self::EvidenceIsKept,
        Self::TakesWhatRanOut,
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
            Self::TakesWhatRanOut => rules.lapsed_waits_for_calm = false,
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
            Self::TakesWhatRanOut => &[properties::WHAT_RAN_OUT_IS_LEFT_TO_THE_LIVING],
            Self::TakesBeforeTheEnd => {
                &[properties::NO_LEASE_IS_TAKEN_BEFORE_ITS_END, properties::WHO_WRITES_IS_ALIVE]
            }
            Self::KeysWithoutLife => &[properties::THE_ROBBED_DO_NOT_GO_ON],
            Self::ClockFromAnswer | Self::NoOwnClock => &[properties::WHO_WRITES_IS_ALIVE],
            Self::EvidenceOnlyAfterTheEnd => &[properties::THE_DEAD_ARE_SEEN_IN_TIME],
        }
    }
}
