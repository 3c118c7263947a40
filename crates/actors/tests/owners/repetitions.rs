//! Repeated grants while the ledger is recovered: none gets a hold from before.

use std::sync::atomic::Ordering;

use actors::signers::Refusal;
use domain::{Mode, Resource};

use crate::Shop;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_in_basic_mode_gets_no_hold_from_before_the_confirmation_that_it_crosses() {
    let shop = Shop::open(Mode::Basic).await;
    shop.grants(1, Some("k")).await.unwrap();
    shop.plan.recovery.is_on.store(true, Ordering::SeqCst);
    shop.plan.recovery.ends_after_rows.store(true, Ordering::SeqCst);
    let crossing = shop.grants(1, Some("k")).await;
    assert!(matches!(crossing, Err(Refusal::Recovering)), "{crossing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_whose_lease_a_recovery_has_ended_unheard_repeats_nothing() {
    let shop = Shop::open(Mode::WorkerQueue).await;
    let granted = shop.grants(1, Some("k")).await.unwrap();
    let resource = Resource::signer(&shop.signer);
    assert!(shop.ledger.release(&resource, &granted.owner, granted.token).await.unwrap());
    shop.plan.recovery.is_on.store(true, Ordering::SeqCst);
    let again = shop.grants(1, Some("k")).await;
    assert!(matches!(again, Err(Refusal::Recovering)), "{again:?}");
}
