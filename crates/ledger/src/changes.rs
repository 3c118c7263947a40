//! A batch's changes, sorted by the statement that writes them.

use domain::nonce::{Change, Status};
use domain::{HoldId, Nonce, TxHash};

/// Nonces granted for the first time.
pub(crate) struct New {
    pub(crate) nonce: Nonce,
    pub(crate) hold: HoldId,
    pub(crate) hold_ms: u64,
}

/// Holes granted again.
pub(crate) struct Refill {
    pub(crate) grant: New,
    pub(crate) last_hold: HoldId,
}

/// Nonces that change state under their hold.
pub(crate) struct Moved {
    pub(crate) nonce: Nonce,
    pub(crate) hold: HoldId,
    pub(crate) from: Status,
    pub(crate) to: Status,
    pub(crate) tx_hash: Option<TxHash>,
}

/// Holds that ran out.
pub(crate) struct Expired {
    pub(crate) nonce: Nonce,
    pub(crate) hold: HoldId,
    pub(crate) to: Status,
}

/// One list per statement, each in the order of the nonces: rows are locked in one order.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) new: Vec<New>,
    pub(crate) refills: Vec<Refill>,
    pub(crate) moved: Vec<Moved>,
    pub(crate) expired: Vec<Expired>,
}

impl Changes {
    pub(crate) fn sorted(mut changes: Vec<Change>) -> Self {
        changes.sort_unstable_by_key(Change::nonce);
        debug_assert!(changes.windows(2).all(|pair| pair[0].nonce() != pair[1].nonce()), "one write per row");
        let mut sorted = Self::default();
        for change in changes {
            match change {
                Change::Grant { nonce, hold, hold_ms, fills: None } => {
                    sorted.new.push(New { nonce, hold, hold_ms })
                }
                Change::Grant { nonce, hold, hold_ms, fills: Some(last_hold) } => {
                    sorted.refills.push(Refill { grant: New { nonce, hold, hold_ms }, last_hold });
                }
                Change::Move { nonce, hold, from, to, tx_hash } => {
                    sorted.moved.push(Moved { nonce, hold, from, to, tx_hash });
                }
                Change::Expire { nonce, hold, to } => sorted.expired.push(Expired { nonce, hold, to }),
            }
        }
        sorted
    }
}
