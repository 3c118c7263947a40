//! What a hold, or an operator, says became of a nonce.

use std::collections::BTreeMap;

use super::{Change, Row, Status};
use crate::id::{HoldId, Nonce, TxHash};

/// The caller's settlement of one nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Which nonce.
    pub nonce: Nonce,
    /// The hold it was granted under; `None` where the caller's text is no hold that could exist.
    pub hold: Option<HoldId>,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was used, by this transaction if named.
    Consumed(Option<TxHash>),
    /// It was not sent and never will be: a hole.
    NeverSent,
    /// It may have been sent.
    Unknown,
}

/// An operator's decision on a quarantined nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It was used, by this transaction if named.
    Consumed(Option<TxHash>),
    /// It was not sent and never will be: a hole.
    NeverSent,
}

/// Why a settlement is refused. Nothing changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleRefusal {
    /// The nonce was never granted.
    NeverGranted,
    /// The hold is not the nonce's last one.
    StaleHold,
    /// The hold is the last one, but the nonce is CONSUMED already, by this transaction if named: by another one than the
    /// settlement names, or the settlement says that it was not.
    AlreadySettled(Option<TxHash>),
}

/// Why an operator's decision is refused: the nonce is in this state, not QUARANTINED.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveRefusal(pub Status);

/// A batch of settlements, decided: an answer for each, in the order asked, and at most one change
/// per nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The state each nonce is in once the changes are committed, or why its settlement is refused.
    pub answers: Vec<Result<Status, SettleRefusal>>,
    /// What is to be written, in the order of the nonces.
    pub changes: Vec<Change>,
}

/// Decides settlements one after the other, each on what the one before left behind. `rows` are the
/// nonces as they stand; one that is not among them was never granted.
#[must_use]
pub fn settle(rows: Vec<Row>, settlements: &[Settlement]) -> Settled {
    let before: BTreeMap<Nonce, Row> = rows.into_iter().map(|row| (row.nonce, row)).collect();
    let mut after = before.clone();
    let answers = settlements
        .iter()
        .map(|settlement| match after.get_mut(&settlement.nonce) {
            None => Err(SettleRefusal::NeverGranted),
            Some(row) if settlement.hold != Some(row.hold) => Err(SettleRefusal::StaleHold),
            Some(row) => settle_one(row, &settlement.outcome),
        })
        .collect();
    let changes = before.values().filter_map(|row| difference(row, &after[&row.nonce])).collect();
    Settled { answers, changes }
}

fn settle_one(row: &mut Row, outcome: &Outcome) -> Result<Status, SettleRefusal> {
    match (row.status, outcome) {
        (Status::Consumed, Outcome::Consumed(again)) if again.is_none() || *again == row.tx_hash => {}
        // The transaction was not named so far, and its hold names it now.
        (Status::Consumed, Outcome::Consumed(tx_hash)) if row.tx_hash.is_none() => {
            row.tx_hash.clone_from(tx_hash);
        }
        (Status::Consumed, _) => return Err(SettleRefusal::AlreadySettled(row.tx_hash.clone())),
        (Status::Held | Status::Released | Status::Quarantined, Outcome::Consumed(tx_hash)) => {
            row.status = Status::Consumed;
            row.tx_hash.clone_from(tx_hash);
        }
        (Status::Held | Status::Released | Status::Quarantined, Outcome::NeverSent) => {
            row.status = Status::Released;
        }
        (Status::Held | Status::Released | Status::Quarantined, Outcome::Unknown) => {
            row.status = Status::Quarantined;
        }
    }
    Ok(row.status)
}

/// Decides an operator's resolution of one nonce: the change to write, `None` where the same was decided
/// before.
///
/// # Errors
/// [`ResolveRefusal`] when the nonce is not QUARANTINED.
pub fn resolve(row: &Row, resolution: &Resolution) -> Result<Option<Change>, ResolveRefusal> {
    let (to, tx_hash) = match resolution {
        Resolution::Consumed(tx_hash) => (Status::Consumed, tx_hash.clone()),
        Resolution::NeverSent => (Status::Released, None),
    };
    let repeated = row.status == to && (tx_hash.is_none() || tx_hash == row.tx_hash);
    match row.status {
        Status::Quarantined => {
            Ok(Some(Change::Move { nonce: row.nonce, hold: row.hold, from: row.status, to, tx_hash }))
        }
        Status::Consumed | Status::Released if repeated => Ok(None),
        status => Err(ResolveRefusal(status)),
    }
}

fn difference(before: &Row, after: &Row) -> Option<Change> {
    let is_changed = before.status != after.status || before.tx_hash != after.tx_hash;
    is_changed.then(|| Change::Move {
        nonce: before.nonce,
        hold: before.hold,
        from: before.status,
        to: after.status,
        tx_hash: after.tx_hash.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    const MINE: HoldId = HoldId::from_u128(1);
    const OTHER: HoldId = HoldId::from_u128(2);

    fn tx(name: &str) -> Option<TxHash> {
        Some(TxHash::parse(name).unwrap())
    }

    fn row(status: Status) -> Row {
        let tx_hash = if status == Status::Consumed { tx("0xa") } else { None };
        Row {
            nonce: Nonce::new(7).unwrap(),
            status,
            hold: MINE,
            written_at: Timestamp::from_micros(0),
            held_until: Timestamp::from_micros(0),
            tx_hash,
        }
    }

    fn says(hold: HoldId, outcome: Outcome) -> Settlement {
        Settlement { nonce: Nonce::new(7).unwrap(), hold: Some(hold), outcome }
    }

    #[test]
    fn every_state_answers_every_outcome() {
        use Outcome::{NeverSent, Unknown};
        use Status::{Consumed, Held, Quarantined, Released};
        let final_ = |hash: &str| Err(SettleRefusal::AlreadySettled(tx(hash)));
        let table = [
            (Held, Outcome::Consumed(tx("0xa")), Ok(Consumed)),
            (Held, Outcome::Consumed(None), Ok(Consumed)),
            (Held, NeverSent, Ok(Released)),
            (Held, Unknown, Ok(Quarantined)),
            (Released, Outcome::Consumed(tx("0xa")), Ok(Consumed)),
            (Released, NeverSent, Ok(Released)),
            (Released, Unknown, Ok(Quarantined)),
            (Quarantined, Outcome::Consumed(tx("0xa")), Ok(Consumed)),
            (Quarantined, NeverSent, Ok(Released)),
            (Quarantined, Unknown, Ok(Quarantined)),
            (Consumed, Outcome::Consumed(tx("0xa")), Ok(Consumed)),
            (Consumed, Outcome::Consumed(None), Ok(Consumed)),
            (Consumed, Outcome::Consumed(tx("0xb")), final_("0xa")),
            (Consumed, NeverSent, final_("0xa")),
            (Consumed, Unknown, final_("0xa")),
        ];
        for (from, outcome, expected) in table {
            let settled = settle(vec![row(from)], &[says(MINE, outcome.clone())]);
            assert_eq!(settled.answers, vec![expected.clone()], "{from:?} {outcome:?}");
            let moves = expected.is_ok_and(|to| to != from);
            assert_eq!(settled.changes.len(), usize::from(moves), "{from:?} {outcome:?}");
            // Another's hold changes nothing, whatever it says.
            let stale = settle(vec![row(from)], &[says(OTHER, outcome)]);
            assert_eq!(stale.answers, vec![Err(SettleRefusal::StaleHold)]);
            assert!(stale.changes.is_empty());
        }
    }

    #[test]
    fn a_nonce_settled_twice_in_one_batch_is_written_once() {
        let settled = settle(
            vec![row(Status::Held)],
            &[
                says(MINE, Outcome::Unknown),
                says(OTHER, Outcome::NeverSent),
                says(MINE, Outcome::Consumed(tx("0xc"))),
            ],
        );
        assert_eq!(
            settled.answers,
            vec![Ok(Status::Quarantined), Err(SettleRefusal::StaleHold), Ok(Status::Consumed)]
        );
        let [Change::Move { from: Status::Held, to: Status::Consumed, tx_hash, .. }] = &settled.changes[..]
        else {
            panic!("{:?}", settled.changes);
        };
        assert_eq!(*tx_hash, tx("0xc"));
    }

    #[test]
    fn the_hold_of_a_consumed_nonce_names_its_transaction_later_and_only_once() {
        use Outcome::{Consumed, NeverSent, Unknown};
        let unnamed = Row { tx_hash: None, ..row(Status::Consumed) };
        let said = [
            says(OTHER, Consumed(tx("0xb"))),
            says(MINE, Consumed(None)),
            says(MINE, Consumed(tx("0xa"))),
            says(MINE, Consumed(tx("0xb"))),
            says(MINE, Consumed(None)),
            says(MINE, Consumed(tx("0xa"))),
        ];
        let settled = settle(vec![unnamed.clone()], &said);
        let done = || Ok(Status::Consumed);
        let another = Err(SettleRefusal::AlreadySettled(tx("0xa")));
        let expected = vec![Err(SettleRefusal::StaleHold), done(), done(), another, done(), done()];
        assert_eq!(settled.answers, expected);
        let (nonce, from, to) = (unnamed.nonce, Status::Consumed, Status::Consumed);
        assert_eq!(settled.changes, [Change::Move { nonce, hold: MINE, from, to, tx_hash: tx("0xa") }]);
        for outcome in [Consumed(None), NeverSent, Unknown] {
            let settled = settle(vec![unnamed.clone()], &[says(MINE, outcome.clone())]);
            assert!(settled.changes.is_empty(), "{outcome:?}");
            let is_refused = settled.answers == [Err(SettleRefusal::AlreadySettled(None))];
            assert_eq!(is_refused, outcome != Consumed(None), "{outcome:?}");
        }
    }

    #[test]
    fn a_nonce_that_was_never_granted_has_no_hold_to_speak_for_it() {
        let settled = settle(vec![], &[says(MINE, Outcome::NeverSent)]);
        assert_eq!(settled.answers, vec![Err(SettleRefusal::NeverGranted)]);
    }

    #[test]
    fn an_operator_decides_what_is_quarantined_and_may_repeat_it() {
        let consumed = Resolution::Consumed(tx("0xa"));
        assert!(matches!(
            resolve(&row(Status::Quarantined), &consumed),
            Ok(Some(Change::Move { to: Status::Consumed, .. }))
        ));
        assert!(matches!(
            resolve(&row(Status::Quarantined), &Resolution::NeverSent),
            Ok(Some(Change::Move { to: Status::Released, .. }))
        ));
        assert_eq!(resolve(&row(Status::Consumed), &consumed), Ok(None));
        assert_eq!(resolve(&row(Status::Released), &Resolution::NeverSent), Ok(None));
        for (status, resolution) in [
            (Status::Held, consumed.clone()),
            (Status::Held, Resolution::NeverSent),
            (Status::Released, consumed),
            (Status::Consumed, Resolution::NeverSent),
            (Status::Consumed, Resolution::Consumed(tx("0xb"))),
        ] {
            assert_eq!(resolve(&row(status), &resolution), Err(ResolveRefusal(status)));
        }
    }
}
