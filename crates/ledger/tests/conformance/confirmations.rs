//! Signers of a recovered ledger: they grant nothing until an operator has confirmed their next nonce.

use domain::nonce::{
    Allocator, Change, Outcome, Policy, Resolution, SettleRefusal, Settlement, Status, resolve, settle,
};
use domain::{SignerId, TxHash};
use ledger::{
    AuditFilter, Batch, CONFIRMED_AT_ONCE_MAX, CONFIRMED_HOLES_MAX, CONFIRMED_NONCES_MAX, Confirmation,
    NonceFilter, RECOVERED_TOKENS, Verdict,
};

use crate::bench::{Bench, LONG_MS, batch, batch_with_policy, by, hold, new_grant, nonce, owner, signer};
use crate::nonces::moves;
use crate::recovery::{is_recovering, recovered, with_new_signers};

/// A signer with one nonce in each state, recovering: 0 HELD, 1 CONSUMED, 2 RELEASED, 3 QUARANTINED, 4 HELD.
pub async fn with_all_states(b: Bench) -> (Bench, SignerId) {
    let (me, s) = (owner("a"), signer("s"));
    let token = b.acquired(&me, &s, LONG_MS).await;
    let grants = (0..5).map(|number| new_grant(number, LONG_MS)).collect();
    b.commits(batch_with_policy(&s, &me, token, grants)).await;
    let settled = |number, to| moves(number, Status::Held, to, None);
    let settled =
        vec![settled(1, Status::Consumed), settled(2, Status::Released), settled(3, Status::Quarantined)];
    b.commits(batch(&s, &me, token, settled)).await;
    let (b, _) = recovered(b, false).await;
    (b, s)
}

pub async fn states(b: &Bench, s: &SignerId) -> String {
    let filter = NonceFilter { signer: s.clone(), status: None, after: None, limit: 100 };
    let rows = b.ledger.nonces(&filter).await.unwrap();
    rows.iter().map(|record| &record.row.status.as_str()[..1]).collect()
}

pub async fn a_confirmed_signer_goes_on_where_its_chain_is(b: Bench) {
    let (b, s) = with_all_states(b).await;
    assert_eq!(states(&b, &s).await, "HCRQH");
    let me = owner("b");
    let token = b.acquired(&me, &s, LONG_MS).await;
    let too_far = b.ledger.confirm_signer(&s, nonce(6 + CONFIRMED_NONCES_MAX), &by()).await.unwrap();
    assert_eq!(too_far, Confirmation::TooFar(CONFIRMED_NONCES_MAX + 1));
    assert_eq!(states(&b, &s).await, "HCRQH");
    assert_eq!(b.ledger.confirm_signer(&s, nonce(7), &by()).await.unwrap(), Confirmation::Done);
    assert_eq!(states(&b, &s).await, "CCCCCCC", "two of them the ledger had lost");
    let loaded = b.ledger.load(&s, 10).await.unwrap();
    assert!(!loaded.is_recovering && loaded.holes.is_empty() && loaded.last == Some(nonce(6)));
    assert!(loaded.is_confirmed && !b.ledger.load(&signer("unknown"), 10).await.unwrap().is_confirmed);
    let late = batch(&s, &me, token, vec![new_grant(7, LONG_MS)]);
    assert_eq!(b.ledger.commit(late).await.unwrap(), Verdict::Fenced, "its owner begins anew");
    assert_eq!(b.ledger.confirm_signer(&s, nonce(8), &by()).await.unwrap(), Confirmation::NotRecovering);
}

pub async fn a_signer_that_lost_many_nonces_waits_until_the_last_of_them_is_added(b: Bench) {
    let (b, s) = with_all_states(b).await;
    let (me, next) = (owner("b"), 5 + 2 * CONFIRMED_AT_ONCE_MAX + 1);
    for left in [CONFIRMED_AT_ONCE_MAX + 1, 1] {
        let token = b.acquired(&me, &s, LONG_MS).await;
        let partly = b.ledger.confirm_signer(&s, nonce(next), &by()).await.unwrap();
        assert_eq!(partly, Confirmation::Partly(left));
        assert!(is_recovering(&b, &s).await, "{left}");
        assert_eq!(b.last(&s).await, Some(next - left - 1));
        assert!(states(&b, &s).await.starts_with("HCRQHCC"), "holds from before settle their nonces");
        let late = batch(&s, &me, token, vec![new_grant(next - left, LONG_MS)]);
        assert_eq!(b.ledger.commit(late).await.unwrap(), Verdict::Fenced, "its owner begins anew");
    }
    assert_eq!(b.ledger.confirm_signer(&s, nonce(next), &by()).await.unwrap(), Confirmation::Done);
    assert!(!is_recovering(&b, &s).await);
    assert_eq!(b.last(&s).await, Some(next - 1));
    let shown = b.ledger.signer(&s).await.unwrap().unwrap();
    assert_eq!((shown.consumed, shown.held, shown.released, shown.quarantined), (next, 0, 0, 0));
}

/// Begins to confirm a nonce that is far too large, as often as this.
async fn mistyped(b: &Bench, s: &SignerId, times: u64) {
    let next = nonce(5 + (times + 1) * CONFIRMED_AT_ONCE_MAX);
    for left in (1..=times).rev() {
        let partly = b.ledger.confirm_signer(s, next, &by()).await.unwrap();
        assert_eq!(partly, Confirmation::Partly(left * CONFIRMED_AT_ONCE_MAX));
    }
    assert_eq!(b.last(s).await, Some(4 + times * CONFIRMED_AT_ONCE_MAX));
}

pub async fn a_mistyped_nonce_is_taken_back_until_the_last_one_is_added(b: Bench) {
    let (b, s) = with_all_states(b).await;
    mistyped(&b, &s, 2).await;
    let partly = b.ledger.confirm_signer(&s, nonce(7), &by()).await.unwrap();
    assert_eq!(partly, Confirmation::Partly(CONFIRMED_AT_ONCE_MAX - 2));
    assert!(is_recovering(&b, &s).await);
    assert_eq!(b.last(&s).await, Some(4 + CONFIRMED_AT_ONCE_MAX));
    assert_eq!(b.ledger.confirm_signer(&s, nonce(7), &by()).await.unwrap(), Confirmation::Done);
    assert_eq!((states(&b, &s).await.as_str(), b.last(&s).await), ("CCCCCCC", Some(6)));
    // What that confirmation has added stays, whatever is confirmed after the next recovery.
    let (b, _) = recovered(b, false).await;
    assert_eq!(b.ledger.confirm_signer(&s, nonce(5), &by()).await.unwrap(), Confirmation::Done);
    assert_eq!((states(&b, &s).await.as_str(), b.last(&s).await), ("CCCCCCC", Some(6)));
}

pub async fn no_nonce_that_was_granted_is_taken_back_with_a_mistyped_one(b: Bench) {
    let (b, s) = with_all_states(b).await;
    mistyped(&b, &s, 1).await;
    let partly = b.ledger.confirm_signer(&s, nonce(2), &by()).await.unwrap();
    assert_eq!(partly, Confirmation::Partly(3), "those that the ledger had before are left to the last step");
    assert_eq!(states(&b, &s).await, "HCRQH");
    assert_eq!(b.ledger.confirm_signer(&s, nonce(2), &by()).await.unwrap(), Confirmation::Done);
    assert_eq!((states(&b, &s).await.as_str(), b.last(&s).await), ("CCQQQ", Some(4)));
}

/// A recovering signer whose nonces begin at this one: it and the next one are HELD.
async fn with_first_nonce(b: Bench, first: u64) -> (Bench, SignerId) {
    let (me, s) = (owner("a"), signer("s"));
    let token = b.acquired(&me, &s, LONG_MS).await;
    let policy = Policy { first_nonce: nonce(first), ..Policy::default() };
    let grants = vec![new_grant(first, LONG_MS), new_grant(first + 1, LONG_MS)];
    b.commits(Batch { policy: Some(policy), ..batch(&s, &me, token, grants) }).await;
    let (b, _) = recovered(b, false).await;
    (b, s)
}

pub async fn a_signer_confirmed_below_its_first_nonce_grants_from_there(b: Bench) {
    let (b, s) = with_first_nonce(b, 10).await;
    for _ in 0..2 {
        assert_eq!(b.ledger.confirm_signer(&s, nonce(7), &by()).await.unwrap(), Confirmation::Done);
        assert_eq!(states(&b, &s).await, "RRRQQ", "what was granted may have been sent");
    }
    let shown = b.ledger.signer(&s).await.unwrap().unwrap();
    assert_eq!((shown.consumed, shown.held, shown.released, shown.quarantined), (0, 0, 3, 2));
    let me = owner("b");
    let token = b.acquired(&me, &s, LONG_MS).await;
    let loaded = b.ledger.load(&s, 10).await.unwrap();
    let holes: Vec<_> = loaded.holes.iter().map(|hole| hole.nonce).collect();
    assert_eq!(holes, [7, 8, 9].map(nonce));
    assert_eq!(loaded.policy.as_ref().unwrap().first_nonce, nonce(7));
    let granted = Allocator::new(loaded).grant(&[100, 101, 102, 103].map(hold), LONG_MS).unwrap();
    b.commits(batch(&s, &me, token, granted)).await;
    assert_eq!(states(&b, &s).await, "HHHQQH");
}

pub async fn a_nonce_far_below_a_signers_first_one_is_not_confirmed(b: Bench) {
    let (b, s) = with_first_nonce(b, CONFIRMED_HOLES_MAX + 1).await;
    let refused = b.ledger.confirm_signer(&s, nonce(0), &by()).await.unwrap();
    assert_eq!(refused, Confirmation::TooLow(CONFIRMED_HOLES_MAX + 1));
    assert!(is_recovering(&b, &s).await);
    assert_eq!(states(&b, &s).await, "HH");
    assert_eq!(b.ledger.confirm_signer(&s, nonce(1), &by()).await.unwrap(), Confirmation::Done);
    let shown = b.ledger.signer(&s).await.unwrap().unwrap();
    let counted = (shown.consumed, shown.held, shown.released, shown.quarantined);
    assert_eq!(counted, (0, 0, CONFIRMED_HOLES_MAX, 2));
}

pub async fn a_mistyped_nonce_is_taken_back_before_one_below_the_first_is_confirmed(b: Bench) {
    let (b, s) = with_first_nonce(b, 10).await;
    let mistyped = nonce(12 + CONFIRMED_AT_ONCE_MAX + 1);
    assert_eq!(b.ledger.confirm_signer(&s, mistyped, &by()).await.unwrap(), Confirmation::Partly(1));
    let partly = b.ledger.confirm_signer(&s, nonce(7), &by()).await.unwrap();
    assert_eq!(partly, Confirmation::Partly(5), "from the confirmed one to the last that was granted");
    assert_eq!(states(&b, &s).await, "HH");
    assert_eq!(b.ledger.confirm_signer(&s, nonce(7), &by()).await.unwrap(), Confirmation::Done);
    assert_eq!((states(&b, &s).await.as_str(), b.last(&s).await), ("RRRQQ", Some(11)));
}

pub async fn a_nonce_that_was_used_is_not_confirmed_as_the_next_one(b: Bench) {
    let (b, s) = with_all_states(b).await;
    // Its holder says that the chain has it: a node that says otherwise lags, and does not know of later ones either.
    assert_eq!(b.ledger.confirm_signer(&s, nonce(1), &by()).await.unwrap(), Confirmation::Used);
    assert!(is_recovering(&b, &s).await);
    assert_eq!(states(&b, &s).await, "HCRQH");
    // The chain may wait for an open one below a used one.
    assert_eq!(b.ledger.confirm_signer(&s, nonce(0), &by()).await.unwrap(), Confirmation::Done);
    assert_eq!(states(&b, &s).await, "QCQQQ");
}

pub async fn a_confirmation_may_be_repeated_and_changes_nothing_then(b: Bench) {
    let (b, s) = with_all_states(b).await;
    // Nonces from the confirmed one on stay, so that the next nonce is another one.
    assert_eq!(b.ledger.confirm_signer(&s, nonce(2), &by()).await.unwrap(), Confirmation::Done);
    let me = owner("b");
    let token = b.acquired(&me, &s, LONG_MS).await;
    b.commits(batch(&s, &me, token, vec![new_grant(5, LONG_MS)])).await;
    let entries = async || {
        let filter = AuditFilter { action: Some("test".to_owned()), limit: 100, ..AuditFilter::default() };
        b.ledger.audits(&filter).await.unwrap().len()
    };
    let before = entries().await;
    assert!(before > 0);
    assert_eq!(b.ledger.confirm_signer(&s, nonce(2), &by()).await.unwrap(), Confirmation::Done);
    for other in [0, 1, 3, 5, 6] {
        let answer = b.ledger.confirm_signer(&s, nonce(other), &by()).await.unwrap();
        assert_eq!(answer, Confirmation::NotRecovering, "{other}");
    }
    assert_eq!((states(&b, &s).await.as_str(), entries().await), ("CCQQQH", before));
    b.commits(batch(&s, &me, token, vec![new_grant(6, LONG_MS)])).await;
    let b = with_new_signers(b).await;
    let never = signer("never");
    let token = b.acquired(&me, &never, LONG_MS).await;
    b.commits(batch_with_policy(&never, &me, token, vec![new_grant(0, LONG_MS)])).await;
    let answer = b.ledger.confirm_signer(&never, nonce(1), &by()).await.unwrap();
    assert_eq!(answer, Confirmation::NotRecovering, "nobody has confirmed it");
}

pub async fn what_may_have_been_sent_after_the_backup_is_quarantined(b: Bench) {
    let (b, s) = with_all_states(b).await;
    assert_eq!(b.ledger.confirm_signer(&s, nonce(2), &by()).await.unwrap(), Confirmation::Done);
    assert_eq!(states(&b, &s).await, "CCQQQ");
    assert_eq!(b.last(&s).await, Some(4));
}

pub async fn no_hold_from_before_a_confirmation_settles_what_it_quarantined(b: Bench) {
    let (b, s) = with_all_states(b).await;
    assert_eq!(b.ledger.confirm_signer(&s, nonce(2), &by()).await.unwrap(), Confirmation::Done);
    let rows = async || {
        let mut rows = b.ledger.rows(&s, &[0, 1, 2, 3, 4].map(nonce)).await.unwrap().value;
        rows.sort_by_key(|row| row.nonce);
        rows
    };
    let confirmed = rows().await;
    // Somebody else may have got them under holds that the ledger has lost.
    for outcome in [Outcome::NeverSent, Outcome::Unknown, Outcome::Consumed(None)] {
        let says = |number| Settlement {
            nonce: nonce(number),
            hold: Some(hold(u128::from(number))),
            outcome: outcome.clone(),
        };
        let settled = settle(confirmed.clone(), &[2, 3, 4].map(says));
        assert_eq!(settled.answers, vec![Err(SettleRefusal::StaleHold); 3], "{outcome:?}");
        assert!(settled.changes.is_empty(), "{outcome:?}");
    }
    // Nor is anything written that names them.
    let me = owner("b");
    let token = b.acquired(&me, &s, LONG_MS).await;
    for number in [2, 3, 4] {
        let late = batch(&s, &me, token, vec![moves(number, Status::Quarantined, Status::Released, None)]);
        assert_eq!(b.ledger.commit(late).await.unwrap(), Verdict::Diverged, "{number}");
    }
    assert_eq!(rows().await, confirmed);
    assert_eq!(states(&b, &s).await, "CCQQQ");
    // What is on the chain keeps its hold, which names the transaction.
    assert_eq!((confirmed[0].hold, confirmed[1].hold), (hold(0), hold(1)));
    let tx_hash = Some(TxHash::parse("0xaa").unwrap());
    let says =
        Settlement { nonce: nonce(0), hold: Some(hold(0)), outcome: Outcome::Consumed(tx_hash.clone()) };
    let settled = settle(confirmed.clone(), &[says]);
    assert_eq!(settled.answers, [Ok(Status::Consumed)]);
    b.commits(batch(&s, &me, token, settled.changes)).await;
    assert_eq!(rows().await[0].tx_hash, tx_hash);
    let new = confirmed[4].hold;
    assert!(confirmed[2..].iter().all(|row| row.hold == new && new != hold(0)), "{confirmed:?}");
    let decided = resolve(&confirmed[4], &Resolution::NeverSent).unwrap().unwrap();
    assert!(matches!(decided, Change::Move { hold: named, .. } if named == new), "{decided:?}");
    b.commits(batch(&s, &me, token, vec![decided])).await;
    assert_eq!(states(&b, &s).await, "CCQQR");
}

pub async fn a_signer_that_a_recovered_ledger_does_not_know_waits_until_it_is_confirmed(b: Bench) {
    let (me, s, with_policy) = (owner("a"), signer("s"), signer("with-policy"));
    assert_eq!(b.ledger.confirm_signer(&s, nonce(51), &by()).await.unwrap(), Confirmation::Unknown);
    let (b, _) = recovered(b, false).await;
    // Its first grants may be what the ledger has lost.
    assert!(is_recovering(&b, &s).await);
    assert!(b.ledger.signer(&s).await.unwrap().is_none(), "a look makes no signer");
    let token = b.acquired(&me, &with_policy, LONG_MS).await;
    b.commits(batch_with_policy(&with_policy, &me, token, vec![])).await;
    assert!(is_recovering(&b, &with_policy).await, "a policy names no next nonce");
    assert!(b.ledger.signer(&with_policy).await.unwrap().unwrap().is_recovering);

    let token = b.acquired(&me, &s, LONG_MS).await;
    let done = b.ledger.confirm_signer(&s, nonce(51), &by()).await.unwrap();
    assert_eq!(done, Confirmation::Done);
    let loaded = b.ledger.load(&s, 1).await.unwrap();
    assert!(!is_recovering(&b, &s).await && loaded.last.is_none(), "{loaded:?}");
    assert_eq!(loaded.policy.unwrap().first_nonce, nonce(51));
    let late = batch_with_policy(&s, &me, token, vec![new_grant(0, LONG_MS)]);
    assert_eq!(b.ledger.commit(late).await.unwrap(), Verdict::Fenced, "its owner begins anew");
    assert_eq!(b.ledger.confirm_signer(&s, nonce(51), &by()).await.unwrap(), Confirmation::Done, "again");
    assert_eq!(b.ledger.confirm_signer(&s, nonce(52), &by()).await.unwrap(), Confirmation::NotRecovering);
    // Nobody had asked for this one since the recovery.
    let unasked = signer("unasked");
    assert_eq!(b.ledger.confirm_signer(&unasked, nonce(7), &by()).await.unwrap(), Confirmation::Done);
    let first = b.acquired(&me, &unasked, LONG_MS).await;
    assert!(first.get() > RECOVERED_TOKENS, "{first}");
    b.commits(batch(&unasked, &me, first, vec![new_grant(7, LONG_MS)])).await;
    assert_eq!(b.last(&unasked).await, Some(7));
    // An operator says that all are confirmed that had nonces before.
    let b = with_new_signers(b).await;
    let new = signer("new");
    assert!(!is_recovering(&b, &new).await);
    assert_eq!(b.ledger.confirm_signer(&new, nonce(7), &by()).await.unwrap(), Confirmation::Unknown);
    assert!(is_recovering(&b, &with_policy).await, "this one the ledger knows");
}
