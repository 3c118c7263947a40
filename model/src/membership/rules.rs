//! How life is shown, judged and taken, one field for each condition. What must never live here: the steps
//! themselves, and the traps that open when a condition is left out.

/// The conditions of early takeover. [`Rules::sound`] is how they are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// So many renewals of one's own in a row must have found the other's lease unmoved.
    pub unmoved_min: u8,
    /// Whether a renewal whose answer came late starts that count anew: an instance that was held up itself has no evidence.
    pub late_starts_anew: bool,
    /// What counts as evidence of death.
    pub evidence: Evidence,
    /// Whether evidence is good for half a lease only: what was seen before a stall says nothing after it.
    pub evidence_expires: bool,
    /// How long nothing is taken after one's own lease had run out.
    pub calm: Calm,
    /// Whether another's key that ran out, and that may be a living one's, is left to it until that calm is over.
    pub lapsed_waits_for_calm: bool,
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
    /// It writes until an answer says that it is dead.
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
            lapsed_waits_for_calm: true,
            statement_asks: true,
            life_before_keys: true,
            own_clock: OwnClock::FromSending,
        }
    }
}
