//! Requests beyond what a signer's queue takes, and callers that leave it.

use std::sync::Arc;
use std::time::Duration;

use actors::signers::Refusal;
use domain::{InstanceId, Mode, Resource};

use crate::flaky::Fault;
use crate::{MINUTE_MS, Shop, numbers, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_at_once_are_refused_at_once_beyond_the_bound() {
    const QUEUE_MAX: usize = 100;
    let shop = Arc::new(
        Shop::with(Mode::WorkerQueue, |limits| {
            (limits.queue_max, limits.in_flight_max) = (QUEUE_MAX, 100_000);
        })
        .await,
    );
    shop.grants(1, None).await.unwrap();
    // One commit is held up, so that nothing of what comes can be answered but by a refusal.
    shop.plan.next_are(&[Fault::Gated]);
    let first = tokio::spawn({
        let shop = Arc::clone(&shop);
        async move { shop.grants(1, None).await }
    });
    until("the first is being committed", async || shop.plan.is_used_up()).await;
    let begun = std::time::Instant::now();
    let asks: Vec<_> = (0..10_000)
        .map(|_| {
            let shop = Arc::clone(&shop);
            tokio::spawn(async move { shop.grants(1, None).await })
        })
        .collect();
    // In the mailbox, in the state, and one message over that a mailbox's bound allows.
    let accepted_max = 2 * QUEUE_MAX + 1;
    until("those beyond the bound are refused", async || {
        asks.iter().filter(|ask| ask.is_finished()).count() >= 10_000 - accepted_max
    })
    .await;
    assert!(!first.is_finished(), "the gate is shut: whoever is answered was refused");
    assert!(shop.signers.under_way() <= accepted_max + 1, "{} are under way", shop.signers.under_way());
    println!("10,000 in {:?}", begun.elapsed());
    shop.plan.gate.notify_one();
    let mut granted = numbers(&first.await.unwrap().unwrap());
    let mut refused = 0;
    for ask in asks {
        match ask.await.unwrap() {
            Ok(grants) => granted.extend(numbers(&grants)),
            Err(Refusal::Overloaded) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    granted.sort_unstable();
    assert!(refused >= 10_000 - accepted_max, "{refused}");
    assert!(granted.iter().copied().eq(1..=granted.len() as u64), "each once, no gap: {granted:?}");
}

#[tokio::test]
async fn a_queue_that_is_full_refuses_at_once() {
    let shop = Arc::new(
        Shop::with(Mode::Basic, |limits| (limits.queue_max, limits.lease_wait) = (3, Duration::from_secs(5)))
            .await,
    );
    let (resource, other) = (Resource::signer(&shop.signer), InstanceId::parse("other-1").unwrap());
    shop.ledger.acquire(&resource, &other, MINUTE_MS).await.unwrap();
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let shop = shop.clone();
            tokio::spawn(async move { shop.grants(1, None).await })
        })
        .collect();
    while waiting.iter().filter(|ask| ask.is_finished()).count() < 4 {
        tokio::task::yield_now().await;
    }
    let token = shop.ledger.lease(&resource).await.unwrap().unwrap().token;
    shop.ledger.release(&resource, &other, token).await.unwrap();
    let (mut granted, mut refused) = (Vec::new(), 0);
    for ask in waiting {
        match ask.await.unwrap() {
            Ok(grants) => granted.extend(numbers(&grants)),
            Err(Refusal::Overloaded) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    granted.sort_unstable();
    assert!(refused >= 4, "{refused}");
    assert_eq!(granted, (0..granted.len() as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_caller_that_left_gets_nothing_granted() {
    let shop = Shop::with(Mode::Basic, |limits| limits.lease_wait = Duration::from_secs(5)).await;
    let (resource, other) = (Resource::signer(&shop.signer), InstanceId::parse("other-1").unwrap());
    shop.ledger.acquire(&resource, &other, MINUTE_MS).await.unwrap();
    // The first waits for the lease, so that the second waits behind it.
    let first = shop.grants(1, None);
    let second = tokio::time::timeout(Duration::from_millis(50), shop.grants(5, None));
    let release = async {
        while shop.signers.under_way() > 0 && shop.signers.under_way() < 2 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(80)).await; // longer than the second caller's patience
        let token = shop.ledger.lease(&resource).await.unwrap().unwrap().token;
        shop.ledger.release(&resource, &other, token).await.unwrap();
    };
    let (first, second, ()) = tokio::join!(first, second, release);
    assert!(second.is_err());
    assert_eq!(numbers(&first.unwrap()), [0]);
    shop.signers.stop().await;
    assert_eq!(shop.next_nonce().await, 1);
}
