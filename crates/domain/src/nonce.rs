//! Nonces: the states of one, and what may be done to it.
//!
//! A nonce that was ever granted has one row for good. What its last hold says is obeyed, late or not, until
//! the nonce is granted again; every other hold gets `stale_hold`.
//!
//! ```text
//!            grant                consumed
//!   (none) ───────▶ HELD ───────────────────────▶ CONSUMED
//!                  │ ▲  │ unknown, or expiry           ▲
//!       never_sent │ │  ▼ under `quarantine`           │ consumed
//!        or expiry │ │  QUARANTINED ───────────────────┤
//!  under `release` │ │      │ never_sent               │
//!                  ▼ │grant ▼                          │
//!                RELEASED ─────────────────────────────┘  (late word of the last hold)
//! ```

mod allocator;
mod commit;
mod settlement;

pub use allocator::{Allocator, GrantRefusal, Hole, Loaded, PolicyRefusal};
pub use commit::{Batch, GrantAnswer, KeptKey, KeyScope, NewKey, Verdict};
pub use settlement::{
    Outcome, Resolution, ResolveRefusal, SettleRefusal, Settled, Settlement, resolve, settle,
};

use crate::id::{HoldId, Invalid, Nonce, TxHash};
use crate::limits::{HOLD_MS_MAX, HOLD_MS_MIN, MAX_IN_FLIGHT_MAX};
use crate::named::named;
use crate::time::Timestamp;

named!(
    /// The state of a nonce that was granted at least once.
    Status, "status" {
        /// Granted to one caller under a hold, until `held_until`.
        Held = "HELD",
        /// Used. Final.
        Consumed = "CONSUMED",
        /// A hole, free for the next grant.
        Released = "RELEASED",
        /// May have been sent; not granted again until its hold or an operator decides.
        Quarantined = "QUARANTINED",
    }
);

impl Status {
    /// Counts towards the signer's window.
    #[must_use]
    pub const fn is_in_flight(self) -> bool {
        matches!(self, Self::Held | Self::Quarantined)
    }
}

/// What the ledger knows of one nonce, as far as decisions need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which nonce.
    pub nonce: Nonce,
    /// Its state.
    pub status: Status,
    /// The hold it was granted under last.
    pub hold: HoldId,
    /// When the row was written last: for a HELD one, when its hold began.
    pub written_at: Timestamp,
    /// When that hold runs (or ran) out.
    pub held_until: Timestamp,
    /// The transaction that used it, if it was named.
    pub tx_hash: Option<TxHash>,
}

/// One write to one nonce row. The ledger carries it out only if the row is still as the change
/// says it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// HELD under `hold` for `hold_ms` from the commit on.
    Grant {
        /// Which nonce.
        nonce: Nonce,
        /// The new hold.
        hold: HoldId,
        /// How long it lives, in milliseconds.
        hold_ms: u64,
        /// The last hold of the hole that is filled; `None` where the nonce was never granted and the
        /// row is new.
        fills: Option<HoldId>,
    },
    /// From one state to another under the same hold; or CONSUMED as before, and the transaction is named now.
    Move {
        /// Which nonce.
        nonce: Nonce,
        /// The hold it has and keeps.
        hold: HoldId,
        /// The state it must be in.
        from: Status,
        /// The state it goes to.
        to: Status,
        /// Recorded with CONSUMED.
        tx_hash: Option<TxHash>,
    },
    /// A hold ran out: HELD becomes `to`, and only if the database agrees that the time has come.
    Expire {
        /// Which nonce.
        nonce: Nonce,
        /// The hold that ran out.
        hold: HoldId,
        /// How far before its end by the database's clock it may be ended, in milliseconds; 0 unless that clock stepped
        /// back.
        early_ms: u64,
        /// RELEASED or QUARANTINED, as the policy says.
        to: Status,
    },
}

impl Change {
    /// The nonce that it writes.
    #[must_use]
    pub const fn nonce(&self) -> Nonce {
        match self {
            Self::Grant { nonce, .. } | Self::Move { nonce, .. } | Self::Expire { nonce, .. } => *nonce,
        }
    }

    /// Whether its nonce is QUARANTINED from it on.
    #[must_use]
    pub const fn quarantines(&self) -> bool {
        matches!(
            self,
            Self::Move { to: Status::Quarantined, .. } | Self::Expire { to: Status::Quarantined, .. }
        )
    }
}

/// What happens to a hold that runs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpiry {
    /// The nonce becomes a hole and is granted again.
    #[default]
    Release,
    /// The nonce waits until its hold or an operator says what became of it.
    Quarantine,
}

impl OnExpiry {
    /// The name that tables and answers show.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Quarantine => "quarantine",
        }
    }

    /// Reads the name.
    ///
    /// # Errors
    /// [`Invalid`], naming the two.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        match text {
            "release" => Ok(Self::Release),
            "quarantine" => Ok(Self::Quarantine),
            _ => Err(Invalid { what: "on_expiry", expected: "release or quarantine".to_owned() }),
        }
    }

    /// The state that an expired hold's nonce goes to.
    #[must_use]
    pub const fn target(self) -> Status {
        match self {
            Self::Release => Status::Released,
            Self::Quarantine => Status::Quarantined,
        }
    }
}

/// How a signer's nonces are handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Where numbering begins. Fixed by the first grant.
    pub first_nonce: Nonce,
    /// Length of a hold whose request names none, in milliseconds; `None` follows the daemon's default.
    pub hold_ms: Option<u64>,
    /// What happens to holds that run out.
    pub on_expiry: OnExpiry,
    /// Most nonces HELD or QUARANTINED at once; `None` is no window.
    pub max_in_flight: Option<u64>,
    /// Whether an idempotency key is one key for all callers. Otherwise each has its own.
    pub shared_keys: bool,
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { first_nonce, hold_ms, on_expiry, max_in_flight, shared_keys } = self;
        let or_none =
            |number: &Option<u64>| number.map_or_else(|| "none".to_owned(), |number| number.to_string());
        let (hold_ms, max_in_flight) = (or_none(hold_ms), or_none(max_in_flight));
        let on_expiry = on_expiry.as_str();
        write!(
            f,
            "first_nonce={first_nonce} hold_ms={hold_ms} on_expiry={on_expiry} max_in_flight={max_in_flight} \
             shared_keys={shared_keys}"
        )
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            first_nonce: Nonce::ZERO,
            hold_ms: None,
            on_expiry: OnExpiry::default(),
            max_in_flight: None,
            shared_keys: false,
        }
    }
}

/// A change of policy: what it names changes, the rest stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyPatch {
    /// New start of numbering; refused after the first grant unless it is what already holds.
    pub first_nonce: Option<Nonce>,
    /// New default length of a hold, in milliseconds.
    pub hold_ms: Option<u64>,
    /// New treatment of holds that run out.
    pub on_expiry: Option<OnExpiry>,
    /// New window: `Some(None)` takes it away.
    pub max_in_flight: Option<Option<u64>>,
    /// Whether callers share keys from now on.
    pub shared_keys: Option<bool>,
}

/// Checks the length of a hold.
///
/// # Errors
/// [`Invalid`] outside [`HOLD_MS_MIN`] to [`HOLD_MS_MAX`].
pub fn check_hold_ms(hold_ms: u64) -> Result<u64, Invalid> {
    if (HOLD_MS_MIN..=HOLD_MS_MAX).contains(&hold_ms) {
        return Ok(hold_ms);
    }
    Err(Invalid { what: "hold_ms", expected: format!("{HOLD_MS_MIN} to {HOLD_MS_MAX}") })
}

/// Checks a window.
///
/// # Errors
/// [`Invalid`] outside 1 to [`MAX_IN_FLIGHT_MAX`].
pub fn check_max_in_flight(nonces: u64) -> Result<u64, Invalid> {
    if (1..=MAX_IN_FLIGHT_MAX).contains(&nonces) {
        return Ok(nonces);
    }
    Err(Invalid { what: "max_in_flight", expected: format!("1 to {MAX_IN_FLIGHT_MAX}, or null for none") })
}
