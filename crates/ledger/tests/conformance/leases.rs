//! Acquire, renew, release.

use domain::{Resource, ResourceKind, Token};
use ledger::{Acquisition, LeaseFilter, Renewal, Renewed, Verdict};

use crate::bench::{Bench, LONG_MS, batch, eventually, new_grant, owner, signer};

pub async fn every_acquisition_raises_the_token(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    for token in 1..=3 {
        assert_eq!(b.acquired(&a, &s, LONG_MS).await, Token::new(token), "also for the same owner");
    }
}

pub async fn a_live_lease_is_refused_with_owner_and_time_left(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    b.acquired(&a, &s, LONG_MS).await;
    let before = b.ledger.lease(&Resource::signer(&s)).await.unwrap().unwrap();
    for _ in 0..3 {
        let refused = b.ledger.acquire(&Resource::signer(&s), &owner("b"), LONG_MS).await.unwrap();
        let Acquisition::Held { owner: holder, expires_in_ms } = refused else { panic!("{refused:?}") };
        assert_eq!(holder, a);
        assert!((1..=LONG_MS).contains(&expires_in_ms), "{expires_in_ms}");
    }
    let after = b.ledger.lease(&Resource::signer(&s)).await.unwrap().unwrap();
    assert_eq!(
        (after.token, after.renewed_at),
        (before.token, before.renewed_at),
        "a refusal changes nothing"
    );
}

pub async fn a_lease_that_ran_out_is_taken_with_the_next_token(b: Bench) {
    let s = signer("s");
    assert_eq!(b.acquired(&owner("a"), &s, 20).await, Token::new(1));
    assert_eq!(b.takes_over(&owner("b"), &s).await, Token::new(2));
    let lease = b.ledger.lease(&Resource::signer(&s)).await.unwrap().unwrap();
    assert_eq!(lease.owner, Some(owner("b")));
    assert!(lease.is_live());
}

pub async fn a_dead_owners_lease_is_taken_before_it_runs_out(b: Bench) {
    let (a, s) = (owner("a-1"), signer("s"));
    b.ledger.acquire(&Resource::instance(&a), &a, 20).await.unwrap();
    let old = b.acquired(&a, &s, LONG_MS).await;
    let (resource, thief) = (Resource::signer(&s), owner("b-1"));
    let taken = std::cell::Cell::new(None);
    eventually("its instance lease runs out", async || {
        taken.set(b.ledger.take_over(&resource, &thief, &a, LONG_MS).await.unwrap());
        taken.get().is_some()
    })
    .await;
    let (token, expires_at) = taken.get().unwrap();
    assert_eq!(token, Token::new(old.get() + 1));
    let lease = b.ledger.lease(&resource).await.unwrap().unwrap();
    assert!(expires_at > lease.renewed_at, "it is told when it runs out");
    assert_eq!((lease.owner.clone(), lease.is_live()), (Some(thief.clone()), true));
    let write = batch(&s, &a, old, vec![new_grant(0, LONG_MS)]);
    assert_eq!(b.ledger.commit(write).await.unwrap(), Verdict::Fenced, "whenever it wakes");
    let again = b.ledger.take_over(&resource, &owner("c-1"), &a, LONG_MS).await.unwrap();
    assert_eq!(again, None, "it is the dead one's no more");
}

pub async fn a_living_owners_lease_is_not_taken_over(b: Bench) {
    let (a, s) = (owner("a-1"), signer("s"));
    b.ledger.acquire(&Resource::instance(&a), &a, LONG_MS).await.unwrap();
    let token = b.acquired(&a, &s, LONG_MS).await;
    let resource = Resource::signer(&s);
    assert_eq!(b.ledger.take_over(&resource, &owner("b-1"), &a, LONG_MS).await.unwrap(), None);
    assert_eq!(b.ledger.lease(&resource).await.unwrap().unwrap().token, token);
}

pub async fn a_release_keeps_the_token(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let resource = Resource::signer(&s);
    let token = b.acquired(&a, &s, LONG_MS).await;
    assert!(b.ledger.release(&resource, &a, token).await.unwrap());
    assert!(!b.ledger.release(&resource, &a, token).await.unwrap(), "twice is once");
    let lease = b.ledger.lease(&resource).await.unwrap().unwrap();
    assert_eq!((lease.owner.clone(), lease.token, lease.is_live()), (None, token, false));
    assert_eq!(b.acquired(&owner("b"), &s, LONG_MS).await, Token::new(2));
}

pub async fn a_release_under_an_old_token_ends_nothing(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let old = b.acquired(&a, &s, LONG_MS).await;
    b.acquired(&a, &s, LONG_MS).await;
    assert!(!b.ledger.release(&Resource::signer(&s), &a, old).await.unwrap());
    assert!(b.ledger.lease(&Resource::signer(&s)).await.unwrap().unwrap().is_live());
}

pub async fn one_of_many_first_askers_wins(b: Bench) {
    let s = signer("s");
    let asks = (0..16).map(|n| {
        let (ledger, resource) = (b.ledger.clone(), Resource::signer(&s));
        tokio::spawn(
            async move { ledger.acquire(&resource, &owner(&format!("o{n}")), LONG_MS).await.unwrap() },
        )
    });
    let mut winners = 0;
    for ask in asks.collect::<Vec<_>>() {
        match ask.await.unwrap() {
            Acquisition::Acquired { token, .. } => {
                assert_eq!(token, Token::new(1));
                winners += 1;
            }
            Acquisition::Held { .. } => {}
        }
    }
    assert_eq!(winners, 1);
}

fn renewal(name: &str, token: Token, lease_ms: u64) -> Renewal {
    Renewal { resource: Resource::signer(&signer(name)), token, lease_ms }
}

pub async fn a_renewal_lengthens_and_leaves_the_token(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, 10_000).await;
    let renewed = b.ledger.renew(&a, renewal("s", token, LONG_MS)).await.unwrap();
    assert_eq!(renewed, Renewed::Done);
    let lease = b.ledger.lease(&Resource::signer(&s)).await.unwrap().unwrap();
    assert_eq!(lease.token, token);
    assert!(lease.expires_in_ms > 10_000 && lease.renewed_at >= lease.acquired_at);
}

pub async fn a_renewal_revives_a_lease_that_nobody_took(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let resource = Resource::signer(&s);
    let token = b.acquired(&a, &s, 5).await;
    eventually("the lease runs out", async || !b.ledger.lease(&resource).await.unwrap().unwrap().is_live())
        .await;
    assert_eq!(b.ledger.renew(&a, renewal("s", token, LONG_MS)).await.unwrap(), Renewed::Done);
    assert!(b.ledger.lease(&resource).await.unwrap().unwrap().is_live());
}

pub async fn a_bulk_renewal_never_revives_a_released_lease(b: Bench) {
    let a = owner("a");
    let kept = b.acquired(&a, &signer("kept"), LONG_MS).await;
    let released = b.acquired(&a, &signer("released"), LONG_MS).await;
    let resource = Resource::signer(&signer("released"));
    b.ledger.release(&resource, &a, released).await.unwrap();
    let both = [renewal("released", released, LONG_MS), renewal("kept", kept, LONG_MS)];
    let renewed = b.ledger.renew_all(&a, &both).await.unwrap();
    assert_eq!(renewed, [Renewed::Lost, Renewed::Done]);
    let lease = b.ledger.lease(&resource).await.unwrap().unwrap();
    assert!(lease.owner.is_none() && !lease.is_live(), "nobody would ever serve it: {lease:?}");
}

pub async fn a_renewal_under_an_old_token_or_name_does_nothing(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let old = b.acquired(&a, &s, LONG_MS).await;
    let new = b.acquired(&a, &s, 10_000).await;
    let lost = async |by: &str, renewal| b.ledger.renew(&owner(by), renewal).await.unwrap() == Renewed::Lost;
    assert!(lost("a", renewal("s", old, LONG_MS)).await);
    assert!(lost("b", renewal("s", new, LONG_MS)).await);
    assert!(lost("a", renewal("unheard-of", new, LONG_MS)).await);
    assert!(b.ledger.renew_all(&a, &[]).await.unwrap().is_empty());
    assert!(b.ledger.lease(&Resource::signer(&s)).await.unwrap().unwrap().expires_in_ms <= 10_000);
}

pub async fn a_bulk_renewal_takes_a_thousand_and_answers_those_renewed(b: Bench) {
    let a = owner("a");
    let mut renewals = Vec::new();
    for n in 0..40 {
        let name = format!("s{n}");
        let token = b.acquired(&a, &signer(&name), LONG_MS).await;
        renewals.push(renewal(&name, token, LONG_MS));
    }
    for n in 40..1_000 {
        renewals.push(renewal(&format!("missing{n}"), Token::new(1), LONG_MS));
    }
    let renewed = b.ledger.renew_all(&a, &renewals).await.unwrap();
    assert_eq!(renewed[..40], [Renewed::Done; 40]);
    assert_eq!(renewed[40..], [Renewed::Lost; 960]);
}

pub async fn a_bulk_release_ends_the_named_leases_and_no_others(b: Bench) {
    let (a, other) = (owner("a"), owner("other"));
    let lease = |name: &str, token| (Resource::signer(&signer(name)), token);
    let mine = b.acquired(&a, &signer("mine"), LONG_MS).await;
    let old = b.acquired(&a, &signer("anew"), LONG_MS).await;
    let anew = b.acquired(&a, &signer("anew"), LONG_MS).await;
    let theirs = b.acquired(&other, &signer("theirs"), LONG_MS).await;
    let kept = b.acquired(&a, &signer("kept"), LONG_MS).await;
    let named = [lease("mine", mine), lease("anew", old), lease("theirs", theirs), lease("missing", mine)];
    assert_eq!(b.ledger.release_all(&a, &named).await.unwrap(), [Resource::signer(&signer("mine"))]);
    for (name, token, live) in
        [("mine", mine, false), ("anew", anew, true), ("theirs", theirs, true), ("kept", kept, true)]
    {
        let lease = b.ledger.lease(&Resource::signer(&signer(name))).await.unwrap().unwrap();
        assert_eq!((lease.token, lease.is_live()), (token, live), "{name}");
    }
    assert_eq!(b.ledger.release_all(&a, &[]).await.unwrap(), []);
}

pub async fn leases_are_listed_by_kind_owner_and_cursor(b: Bench) {
    for n in 0..5 {
        let who = owner(if n % 2 == 0 { "even" } else { "odd" });
        b.acquired(&who, &signer(&format!("s{n}")), LONG_MS).await;
    }
    let instance = Resource::instance(&owner("even"));
    b.ledger.acquire(&instance, &owner("even"), LONG_MS).await.unwrap();
    let listed = async |filter: LeaseFilter| {
        let leases = b.ledger.leases(&filter).await.unwrap();
        leases.into_iter().map(|lease| lease.resource.to_string()).collect::<Vec<_>>()
    };
    let all = LeaseFilter { limit: 100, ..LeaseFilter::default() };
    assert_eq!(
        listed(all.clone()).await,
        ["instance:even", "signer:s0", "signer:s1", "signer:s2", "signer:s3", "signer:s4"]
    );
    let odd = LeaseFilter { owner: Some(owner("odd")), ..all.clone() };
    assert_eq!(listed(odd).await, ["signer:s1", "signer:s3"]);
    let signers = LeaseFilter { kind: Some(ResourceKind::Signer), limit: 2, ..all.clone() };
    assert_eq!(listed(signers.clone()).await, ["signer:s0", "signer:s1"]);
    let second = LeaseFilter { prefix: "s2".to_owned(), ..signers.clone() };
    assert_eq!(listed(second).await, ["signer:s2"]);
    let after = LeaseFilter { after: Some(Resource::signer(&signer("s1"))), ..signers };
    assert_eq!(listed(after).await, ["signer:s2", "signer:s3"]);
    let instances = LeaseFilter { kind: Some(ResourceKind::Instance), ..all };
    assert_eq!(listed(instances).await, ["instance:even"]);
}
