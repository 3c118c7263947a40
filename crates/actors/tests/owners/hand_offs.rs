//! Leases that owners give back because the mode changed, the signer moved on the ring, or the incarnation ended.

use std::sync::Arc;
use std::time::Duration;

use actors::signers::Refusal;
use domain::{InstanceId, Mode, Modes, Resource};

use crate::{Shop, numbers, until};

/// A live instance, old enough for the ring.
fn peer(name: &str) -> ledger::Peer {
    let id = InstanceId::parse(name).unwrap();
    let at = domain::Timestamp::from_micros(0);
    let lease = ledger::Lease {
        resource: Resource::instance(&id),
        owner: Some(id.clone()),
        token: domain::Token::new(1),
        acquired_at: at,
        renewed_at: at,
        expires_in_ms: 1_000,
    };
    ledger::Peer { url: format!("http://{name}"), id, lease, age_ms: 60_000 }
}

impl Shop {
    /// One nonce, around a hand-off: who asks during it is sent on; later one is served here, as nobody else has the lease.
    async fn granted_around_a_hand_off(&self) -> Vec<u64> {
        loop {
            match self.grants(1, None).await {
                Err(Refusal::NotOwner { owner, .. }) => assert_eq!(owner.as_str(), "other"),
                answer => return numbers(&answer.unwrap()),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn back_to_basic_lets_kept_leases_go() {
    let shop = Shop::open(Mode::WorkerQueue).await;
    shop.grants(1, None).await.unwrap();
    assert!(shop.is_leased().await && shop.signers.owns(&shop.signer));
    shop.cluster_view.adopt_modes(Modes { version: 1, mode: Mode::Basic, only: None });
    until("the lease is given back", async || !shop.is_leased().await).await;
    // The owner hears of the commit a moment after the ledger shows it.
    until("the owner knows", async || !shop.signers.owns(&shop.signer)).await;
    assert_eq!(numbers(&shop.grants(1, None).await.unwrap()), [1], "and it is served all the same");
    let only = Some([Resource::signer(&shop.signer)].into());
    shop.cluster_view.adopt_modes(Modes { version: 2, mode: Mode::WorkerQueue, only });
    assert_eq!(numbers(&shop.grants(1, None).await.unwrap()), [2]);
    // The turn under way was one of basic mode, and its lease is given back after it; the next one is kept.
    until("a canary is kept", async || {
        shop.grants(1, None).await.unwrap();
        shop.signers.owns(&shop.signer)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signer_that_moved_on_the_ring_is_handed_off_and_comes_back() {
    let shop = Shop::open(Mode::WorkerQueue).await;
    shop.grants(1, None).await.unwrap();
    shop.cluster_view.saw(vec![peer("other")]);
    until("the lease is given back", async || !shop.is_leased().await).await;
    assert_eq!(shop.granted_around_a_hand_off().await, [1]);
    until("it is handed off again", async || !shop.is_leased().await).await;
    shop.cluster_view.saw(vec![peer("me-1")]);
    shop.grants(1, None).await.unwrap();
    assert!(shop.is_leased().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signer_whose_new_owner_never_comes_is_served_around_its_next_hand_off() {
    let shop = Shop::open(Mode::WorkerQueue).await;
    shop.grants(1, None).await.unwrap();
    shop.cluster_view.saw(vec![peer("other")]);
    until("the lease is given back", async || !shop.is_leased().await).await;
    until("it is served here again", async || shop.grants(1, None).await.is_ok()).await;
    until("it is handed off again", async || !shop.is_leased().await).await;
    assert_eq!(shop.granted_around_a_hand_off().await, [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_signer_that_moves_is_told_where_to_or_served() {
    let shop = Arc::new(Shop::open(Mode::WorkerQueue).await);
    let asking = |shop: &Arc<Shop>| {
        let shop = Arc::clone(shop);
        tokio::spawn(async move {
            let mut granted = Vec::new();
            for _ in 0..100 {
                match shop.grants(1, None).await {
                    Ok(grants) => granted.extend(numbers(&grants)),
                    Err(Refusal::NotOwner { owner, .. }) => assert_eq!(owner.as_str(), "other"),
                    Err(refusal) => panic!("{refusal}"),
                }
            }
            granted
        })
    };
    let callers: Vec<_> = (0..8).map(|_| asking(&shop)).collect();
    for name in ["other", "me-1", "other"] {
        shop.cluster_view.saw(vec![peer(name)]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut all = Vec::new();
    for caller in callers {
        all.extend(caller.await.unwrap());
    }
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..all.len() as u64), "each once, no gap: {all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incarnation_that_ended_does_nothing_any_more() {
    let shop = Shop::open(Mode::WorkerQueue).await;
    shop.grants(1, None).await.unwrap();
    let commits = *shop.plan.commits.lock();
    shop.signers.abandon().await;
    assert!(matches!(shop.grants(1, None).await, Err(Refusal::Fenced)));
    assert!(!shop.is_leased().await, "it held its lease to the last and gives it back");
    assert_eq!(*shop.plan.commits.lock(), commits);
}
