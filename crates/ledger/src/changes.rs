//! The changes of all batches of nonces on a train, by the statement that writes them.

use domain::nonce::{Change, Status};
use domain::{HoldId, Nonce, TxHash};

use crate::Batch;

/// The signer of a row, and the owner and token under which it is written.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'a> {
    pub(crate) signer: &'a str,
    pub(crate) token: i64,
    pub(crate) owner: &'a str,
}

/// A nonce granted for the first time.
pub(crate) struct New<'a> {
    pub(crate) by: Writer<'a>,
    pub(crate) nonce: Nonce,
    pub(crate) hold: HoldId,
    pub(crate) hold_ms: u64,
}

/// A hole granted again.
pub(crate) struct Refill<'a> {
    pub(crate) grant: New<'a>,
    pub(crate) last_hold: HoldId,
}

/// A nonce that changes state under its hold.
pub(crate) struct Moved<'a> {
    pub(crate) by: Writer<'a>,
    pub(crate) nonce: Nonce,
    pub(crate) hold: HoldId,
    pub(crate) from: Status,
    pub(crate) to: Status,
    pub(crate) tx_hash: Option<&'a TxHash>,
}

/// A hold that ran out.
pub(crate) struct Expired<'a> {
    pub(crate) by: Writer<'a>,
    pub(crate) nonce: Nonce,
    pub(crate) hold: HoldId,
    pub(crate) early_ms: u64,
    pub(crate) to: Status,
}

/// One list per statement, each in the order of signers and nonces: rows are locked in one order.
#[derive(Default)]
pub(crate) struct Changes<'a> {
    pub(crate) new: Vec<New<'a>>,
    pub(crate) refills: Vec<Refill<'a>>,
    pub(crate) moved: Vec<Moved<'a>>,
    pub(crate) expired: Vec<Expired<'a>>,
}

impl<'a> Changes<'a> {
    pub(crate) fn sorted(batches: impl IntoIterator<Item = &'a Batch>) -> Self {
        let mut changes: Vec<_> = batches
            .into_iter()
            .flat_map(|batch| {
                let by = Writer {
                    signer: batch.signer.as_str(),
                    token: batch.token.get(),
                    owner: batch.owner.as_str(),
                };
                batch.changes.iter().map(move |change| (by, change))
            })
            .collect();
        changes.sort_unstable_by_key(|(by, change)| (by.signer, change.nonce()));
        let mut sorted = Self::default();
        for (by, change) in changes {
            match *change {
                Change::Grant { nonce, hold, hold_ms, fills } => {
                    let grant = New { by, nonce, hold, hold_ms };
                    match fills {
                        None => sorted.new.push(grant),
                        Some(last_hold) => sorted.refills.push(Refill { grant, last_hold }),
                    }
                }
                Change::Move { nonce, hold, from, to, ref tx_hash } => {
                    sorted.moved.push(Moved { by, nonce, hold, from, to, tx_hash: tx_hash.as_ref() });
                }
                Change::Expire { nonce, hold, early_ms, to } => {
                    sorted.expired.push(Expired { by, nonce, hold, early_ms, to });
                }
            }
        }
        sorted
    }
}
