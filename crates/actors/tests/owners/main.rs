//! The owners of signers over a real SQLite ledger, with its commits failing on command; in both modes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod bounds;
mod flaky;
mod flaky_ledger;
mod hand_offs;
mod holder_notes;
mod holds;
mod inbox;
mod job_reads;
mod lanes;
mod membership;
mod passed_on;
mod plans;
mod purges;
mod recovery;
mod repetitions;
mod session_reads;
mod sessions;
mod sweeps;
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actors::arbiters::Arbiters;
use actors::database_clock::SharedClock;
use actors::signers::{GrantRequest, Grants, Limits, Refusal, RequestKey, Signers};
use cluster::{ClusterView, FailureDetector, Identity};
use domain::limits::HOLES_IN_MEMORY_MAX;
use domain::nonce::{OnExpiry, Outcome, PolicyPatch, Resolution, SettleRefusal, Settlement, Status};
use domain::{HoldId, IdempotencyKey, InstanceId, Mode, Nonce, Resource, SignerId, TxHash};
use flaky::{Fault, Plan};
use flaky_ledger::FlakyLedger;
use ledger::Handle;

const MINUTE_MS: u64 = 60_000;
const MINUTE: Duration = Duration::from_millis(MINUTE_MS);

/// Runs every case in both modes.
macro_rules! in_both_modes {
    ($($case:ident,)+) => {
        mod in_basic {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { crate::$case(domain::Mode::Basic).await; })+
        }
        mod in_worker_queue {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { crate::$case(domain::Mode::WorkerQueue).await; })+
        }
    };
}

in_both_modes! {
    a_commit_that_was_done_unheard_is_found_and_answered,
    a_commit_that_was_not_done_is_done_again_and_leaves_no_gap,
    every_unknown_settlement_ends_as_it_was_asked,
    a_stale_owner_is_refused_and_begins_anew,
    who_may_have_been_granted_is_not_told_that_nothing_was_written,
    a_ledger_that_stays_away_is_reported_in_time_and_costs_nothing,
    the_lease_is_let_go_when_there_is_no_more_work,
    a_lease_that_another_has_is_waited_for_and_then_named,
    the_same_key_gets_the_same_nonces_until_they_moved_on,
    one_key_sprayed_at_once_is_one_grant,
    one_key_of_two_callers_is_two_grants_also_when_one_commit_decides_both,
    callers_share_keys_where_the_policy_says_so,
    a_signer_that_recovers_answers_nothing_that_was_granted_before,
    a_full_window_still_answers_what_was_granted_before,
    holds_that_ran_out_are_granted_again_or_kept_for_an_operator,
    many_holes_are_granted_in_order_though_few_are_in_memory,
    unheard_of_signers_are_not_made_by_asking,
    a_panic_in_an_actor_costs_its_callers_an_internal_error_and_the_next_request_is_served,
}

struct Shop {
    signers: Signers,
    cluster_view: ClusterView,
    ledger: Handle,
    plan: Arc<Plan>,
    signer: SignerId,
    _folder: tempfile::TempDir,
}

impl Shop {
    async fn open(mode: Mode) -> Self {
        Self::with(mode, |_| {}).await
    }

    async fn with(mode: Mode, change: impl FnOnce(&mut Limits)) -> Self {
        let FlakyLedger { folder, real, plan, ledger } = FlakyLedger::open().await;
        let mut limits = Limits {
            idle: Duration::from_secs(30),
            lease: Duration::from_secs(15),
            hold_ms: MINUTE_MS,
            lease_wait: Duration::from_millis(50),
            lease_kept_max: Duration::from_millis(100),
            request_timeout: Duration::from_secs(10),
            queue_max: 100,
            in_flight_max: 1_000,
        };
        change(&mut limits);
        let me = Identity { id: InstanceId::parse("me-1").unwrap(), url: "http://me".to_owned() };
        let cluster_view = ClusterView::alone(&me, mode);
        let arbiters = Arbiters::start(std::num::NonZeroUsize::new(2).unwrap()).unwrap();
        let (clock, view) = (SharedClock::new(Duration::from_secs(1)), cluster_view.clone());
        let signers = Signers::start(arbiters, ledger, me.id, FailureDetector::alone(), view, clock, limits);
        Self {
            signers,
            cluster_view,
            ledger: real,
            plan,
            signer: SignerId::parse("s").unwrap(),
            _folder: folder,
        }
    }

    async fn grants(&self, count: usize, key: Option<&str>) -> Result<Grants, Refusal> {
        self.grants_to("", count, key).await
    }

    async fn grants_to(&self, principal: &str, count: usize, key: Option<&str>) -> Result<Grants, Refusal> {
        let key = key.map(|key| RequestKey {
            principal: principal.into(),
            key: IdempotencyKey::parse(key).unwrap(),
            body_hash: [u8::try_from(count).unwrap(); 32],
        });
        self.signers.grant(&self.signer, GrantRequest { count, hold_ms: None, key }).await
    }

    async fn settle(&self, nonce: u64, hold: HoldId, outcome: Outcome) -> Result<Status, SettleRefusal> {
        let settlement = Settlement { nonce: Nonce::new(nonce).unwrap(), hold: Some(hold), outcome };
        self.signers.settle(&self.signer, vec![settlement]).await.unwrap().remove(0)
    }

    async fn next_nonce(&self) -> u64 {
        self.ledger.signer(&self.signer).await.unwrap().map_or(0, |record| record.next_nonce)
    }

    async fn is_leased(&self) -> bool {
        self.ledger.lease(&Resource::signer(&self.signer)).await.unwrap().is_some_and(|lease| lease.is_live())
    }
}

fn numbers(grants: &Grants) -> Vec<u64> {
    grants.grants.iter().map(|grant| grant.nonce.get()).collect()
}

async fn a_commit_that_was_done_unheard_is_found_and_answered(mode: Mode) {
    let shop = Shop::open(mode).await;
    for key in [None, Some("k")] {
        let before = shop.next_nonce().await;
        shop.plan.next_are(&[Fault::DoneUnheard]);
        let granted = shop.grants(3, key).await.unwrap();
        assert_eq!(numbers(&granted), [before, before + 1, before + 2]);
        assert_eq!(shop.next_nonce().await, before + 3, "it was not granted a second time");
        for grant in &granted.grants {
            let settled = shop.settle(grant.nonce.get(), grant.hold, Outcome::NeverSent).await;
            assert_eq!(settled, Ok(Status::Released), "the holds answered are those in the ledger");
        }
        shop.grants(3, None).await.unwrap();
    }
}

async fn a_commit_that_was_not_done_is_done_again_and_leaves_no_gap(mode: Mode) {
    let shop = Shop::open(mode).await;
    let faults = [
        vec![Fault::NotDoneUnheard],
        vec![Fault::Aborted],
        vec![Fault::Unreachable],
        vec![Fault::Locked],
        vec![Fault::Locked; 4],
        vec![Fault::NotDoneUnheard, Fault::Aborted, Fault::Locked, Fault::Unreachable],
    ];
    for (round, faults) in faults.iter().enumerate() {
        shop.plan.next_are(faults);
        let granted = shop.grants(1, None).await.unwrap();
        assert_eq!(numbers(&granted), [round as u64], "{faults:?}");
        assert!(shop.plan.is_used_up());
    }
    assert_eq!(shop.next_nonce().await, faults.len() as u64);
}

async fn every_unknown_settlement_ends_as_it_was_asked(mode: Mode) {
    let shop = Shop::open(mode).await;
    let tx_hash = || Some(TxHash::parse("0xab").unwrap());
    for fault in [Fault::DoneUnheard, Fault::NotDoneUnheard, Fault::Aborted, Fault::Unreachable] {
        let granted = shop.grants(1, None).await.unwrap().grants[0];
        shop.plan.next_are(&[fault]);
        let settled = shop.settle(granted.nonce.get(), granted.hold, Outcome::Consumed(tx_hash())).await;
        assert_eq!(settled, Ok(Status::Consumed), "{fault:?}");
        let again = shop.settle(granted.nonce.get(), granted.hold, Outcome::Consumed(tx_hash())).await;
        assert_eq!(again, Ok(Status::Consumed));
        // One that names its transaction later.
        let unnamed = shop.grants(1, None).await.unwrap().grants[0];
        let settled = shop.settle(unnamed.nonce.get(), unnamed.hold, Outcome::Consumed(None)).await;
        assert_eq!(settled, Ok(Status::Consumed));
        shop.plan.next_are(&[fault]);
        let named = shop.settle(unnamed.nonce.get(), unnamed.hold, Outcome::Consumed(tx_hash())).await;
        assert_eq!(named, Ok(Status::Consumed), "{fault:?}");
        let rows = shop.ledger.rows(&shop.signer, &[unnamed.nonce]).await.unwrap().value;
        assert_eq!(rows[0].tx_hash, tx_hash(), "{fault:?}");
        let other = Some(TxHash::parse("0xcd").unwrap());
        let refused = shop.settle(unnamed.nonce.get(), unnamed.hold, Outcome::Consumed(other)).await;
        assert_eq!(refused, Err(SettleRefusal::AlreadySettled(tx_hash())));
    }
}

async fn a_stale_owner_is_refused_and_begins_anew(mode: Mode) {
    let shop = Shop::open(mode).await;
    shop.grants(1, None).await.unwrap();
    shop.plan.next_are(&[Fault::TakenOver]);
    assert!(matches!(shop.grants(1, None).await, Err(Refusal::Fenced)));
    assert_eq!(shop.next_nonce().await, 1, "nothing of it was written");
    let again = shop.grants(1, None).await.unwrap();
    assert_eq!(numbers(&again), [1]);
    let token = shop.ledger.lease(&Resource::signer(&shop.signer)).await.unwrap().unwrap().token;
    assert!(token >= again.token && again.token.get() >= 3);
}

async fn who_may_have_been_granted_is_not_told_that_nothing_was_written(mode: Mode) {
    let shop = Shop::open(mode).await;
    shop.plan.next_are(&[Fault::DoneUnheardAndTaken]);
    let answer = shop.grants(1, None).await;
    assert!(matches!(answer, Err(Refusal::LedgerUnavailable)), "{answer:?}");
    assert_eq!(shop.next_nonce().await, 1);
    // The next one has tried nothing yet.
    let answer = shop.grants(1, None).await;
    assert!(matches!(answer, Err(Refusal::LeaseHeld { .. } | Refusal::NotOwner { .. })), "{answer:?}");
}

async fn a_ledger_that_stays_away_is_reported_in_time_and_costs_nothing(mode: Mode) {
    let shop = Shop::with(mode, |limits| limits.request_timeout = Duration::from_millis(300)).await;
    shop.plan.next_are(&[Fault::NotDoneUnheard; 100]);
    assert!(matches!(shop.grants(1, None).await, Err(Refusal::LedgerUnavailable)));
    assert_eq!(shop.next_nonce().await, 0);
}

async fn the_lease_is_let_go_when_there_is_no_more_work(mode: Mode) {
    let shop = Shop::open(mode).await;
    shop.grants(1, None).await.unwrap();
    shop.signers.stop().await;
    let lease = shop.ledger.lease(&Resource::signer(&shop.signer)).await.unwrap().unwrap();
    assert_eq!((lease.owner.clone(), lease.is_live()), (None, false));
    assert_eq!(shop.signers.under_way(), 0);
}

async fn a_lease_that_another_has_is_waited_for_and_then_named(mode: Mode) {
    let shop = Shop::open(mode).await;
    let (resource, other) = (Resource::signer(&shop.signer), InstanceId::parse("other-1").unwrap());
    shop.ledger.acquire(&resource, &other, MINUTE_MS).await.unwrap();
    match shop.grants(1, None).await {
        Err(Refusal::LeaseHeld { owner, expires_in_ms } | Refusal::NotOwner { owner, expires_in_ms }) => {
            assert_eq!(owner, other);
            assert!(expires_in_ms > 0 && expires_in_ms <= MINUTE_MS);
        }
        answer => panic!("{answer:?}"),
    }
}

async fn the_same_key_gets_the_same_nonces_until_they_moved_on(mode: Mode) {
    let shop = Shop::open(mode).await;
    let first = shop.grants(2, Some("k")).await.unwrap();
    let again = shop.grants(2, Some("k")).await.unwrap();
    let holds =
        |grants: &Grants| grants.grants.iter().map(|g| (g.nonce, g.hold, g.held_until)).collect::<Vec<_>>();
    assert_eq!(holds(&again), holds(&first));
    // Both are on the safe side, each by what its own way took.
    assert!(again.grants[0].held_for_ms > 0 && again.grants[0].held_for_ms <= MINUTE_MS);
    assert!(matches!(shop.grants(3, Some("k")).await, Err(Refusal::KeyReused)));
    // One of the two moves on: the grant is stale as a whole, also while the nonce is a hole, also when
    // it is somebody else's by then.
    shop.settle(0, first.grants[0].hold, Outcome::NeverSent).await.unwrap();
    assert!(matches!(shop.grants(2, Some("k")).await, Err(Refusal::StaleReplay { .. })));
    assert_eq!(numbers(&shop.grants(1, None).await.unwrap()), [0]);
    assert!(matches!(shop.grants(2, Some("k")).await, Err(Refusal::StaleReplay { .. })));
}

async fn one_key_sprayed_at_once_is_one_grant(mode: Mode) {
    let shop = Arc::new(Shop::open(mode).await);
    let asks: Vec<_> = (0..20)
        .map(|_| {
            let shop = shop.clone();
            tokio::spawn(async move { shop.grants(2, Some("k")).await.unwrap() })
        })
        .collect();
    let mut seen = Vec::new();
    for ask in asks {
        seen.push(numbers(&ask.await.unwrap()));
    }
    assert!(seen.iter().all(|grant| *grant == [0, 1]), "{seen:?}");
    assert_eq!(shop.next_nonce().await, 2);
}

async fn one_key_of_two_callers_is_two_grants_also_when_one_commit_decides_both(mode: Mode) {
    // What the commit that both share comes to, if it is their first.
    for (was_granted, fault) in [(true, None), (false, None), (false, Some(Fault::DoneUnheard))] {
        let shop = Shop::open(mode).await;
        if was_granted {
            shop.grants_to("a", 1, Some("k")).await.unwrap();
        }
        // One commit is held up, so that what comes meanwhile waits together.
        shop.plan.next_are(&[Fault::Gated]);
        shop.plan.next_are(fault.as_slice());
        // In basic mode a repetition is answered from the ledger.
        let waiting = if was_granted && mode == Mode::Basic { 2 } else { 3 };
        let both_wait = async {
            until("all wait", async || shop.signers.under_way() == waiting).await;
            shop.plan.gate.notify_one();
        };
        let is_shut = async || *shop.plan.commits.lock() > usize::from(was_granted);
        let under_k = async |principal: &'static str| {
            until("the first is being committed", is_shut).await;
            shop.grants_to(principal, 1, Some("k")).await.unwrap()
        };
        let (first, of_a, of_b, ()) =
            tokio::join!(shop.grants(1, None), under_k("a"), under_k("b"), both_wait);
        first.unwrap();
        assert_ne!(of_a.grants[0].hold, of_b.grants[0].hold, "{was_granted} {fault:?}");
        assert_ne!(numbers(&of_a), numbers(&of_b));
        for (principal, granted) in [("a", of_a), ("b", of_b)] {
            let again = shop.grants_to(principal, 1, Some("k")).await.unwrap();
            assert_eq!(again.grants[0].hold, granted.grants[0].hold, "each gets its own again");
        }
        assert_eq!(shop.next_nonce().await, 3);
    }
}

async fn callers_share_keys_where_the_policy_says_so(mode: Mode) {
    let shop = Shop::open(mode).await;
    let share = async |shared_keys| {
        let patch = PolicyPatch { shared_keys: Some(shared_keys), ..PolicyPatch::default() };
        shop.signers.set_policy(&shop.signer, patch, by()).await.unwrap();
    };
    let nonce_of = async |principal, key| numbers(&shop.grants_to(principal, 1, Some(key)).await.unwrap())[0];
    assert_eq!((nonce_of("a", "k").await, nonce_of("b", "k").await), (0, 1));
    share(true).await;
    assert_eq!((nonce_of("a", "k").await, nonce_of("b", "k").await), (0, 1), "from before the change");
    for principal in ["a", "b", "c", ""] {
        assert_eq!(nonce_of(principal, "l").await, 2, "{principal:?}");
    }
    let other_body = shop.grants_to("b", 2, Some("l")).await;
    assert!(matches!(other_body, Err(Refusal::KeyReused)), "{other_body:?}");
    share(false).await;
    assert_eq!((nonce_of("a", "l").await, nonce_of("b", "l").await), (2, 3), "each has its own again");
}

async fn a_signer_that_recovers_answers_nothing_that_was_granted_before(mode: Mode) {
    let shop = Shop::open(mode).await;
    let before = shop.grants(1, Some("k")).await.unwrap();
    shop.plan.recovery.is_on.store(true, Ordering::SeqCst);
    // After it the owner, if there is one, loads anew.
    let patch = PolicyPatch { max_in_flight: Some(None), ..PolicyPatch::default() };
    shop.signers.set_policy(&shop.signer, patch, by()).await.unwrap();
    for (count, key) in [(1, Some("k")), (2, Some("k")), (1, Some("other")), (1, None)] {
        let refused = shop.grants(count, key).await;
        assert!(matches!(refused, Err(Refusal::Recovering)), "{count} {key:?}: {refused:?}");
    }
    shop.plan.recovery.is_on.store(false, Ordering::SeqCst);
    let confirmed = shop.grants(1, Some("k")).await.unwrap();
    assert_eq!(confirmed.grants[0].hold, before.grants[0].hold);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_in_basic_mode_does_not_count_what_is_in_flight() {
    let shop = Shop::open(Mode::Basic).await;
    let patch = PolicyPatch { max_in_flight: Some(Some(5)), ..PolicyPatch::default() };
    shop.signers.set_policy(&shop.signer, patch, by()).await.unwrap();
    let first = shop.grants(2, Some("k")).await.unwrap();
    let loads = shop.plan.loads.load(Ordering::SeqCst);
    assert_eq!(numbers(&shop.grants(2, Some("k")).await.unwrap()), numbers(&first));
    assert_eq!(shop.plan.loads.load(Ordering::SeqCst), loads);
}

async fn a_full_window_still_answers_what_was_granted_before(mode: Mode) {
    let shop = Shop::open(mode).await;
    let patch = PolicyPatch { max_in_flight: Some(Some(2)), ..PolicyPatch::default() };
    shop.signers.set_policy(&shop.signer, patch, by()).await.unwrap();
    let first = shop.grants(2, Some("k")).await.unwrap();
    assert!(matches!(
        shop.grants(1, Some("other")).await,
        Err(Refusal::WindowFull { in_flight: 2, max_in_flight: 2, asked: 1 })
    ));
    assert_eq!(numbers(&shop.grants(2, Some("k")).await.unwrap()), numbers(&first));
}

async fn holds_that_ran_out_are_granted_again_or_kept_for_an_operator(mode: Mode) {
    let shop = Shop::open(mode).await;
    let short = |count| GrantRequest { count, hold_ms: Some(20), key: None };
    let late = shop.signers.grant(&shop.signer, short(1)).await.unwrap().grants[0];
    tokio::time::sleep(Duration::from_millis(30)).await; // the hold's own length
    assert_eq!(numbers(&shop.grants(1, None).await.unwrap()), [0], "released, and granted first");
    assert_eq!(shop.settle(0, late.hold, Outcome::Consumed(None)).await, Err(SettleRefusal::StaleHold));
    let patch = PolicyPatch { on_expiry: Some(OnExpiry::Quarantine), ..PolicyPatch::default() };
    shop.signers.set_policy(&shop.signer, patch, by()).await.unwrap();
    let quarantined = shop.signers.grant(&shop.signer, short(1)).await.unwrap().grants[0];
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(numbers(&shop.grants(1, None).await.unwrap()), [2], "1 is not granted again");
    let resolve = || {
        shop.signers.resolve(
            &shop.signer,
            quarantined.nonce,
            Some(quarantined.hold),
            Resolution::NeverSent,
            by(),
        )
    };
    assert_eq!(resolve().await.unwrap(), Status::Released);
    assert_eq!(resolve().await.unwrap(), Status::Released, "twice is once");
    assert_eq!(numbers(&shop.grants(1, None).await.unwrap()), [1]);
    assert!(matches!(resolve().await, Err(Refusal::StaleHold)), "the hold named is not the last any more");
    let unnamed =
        shop.signers.resolve(&shop.signer, quarantined.nonce, None, Resolution::NeverSent, by()).await;
    assert!(matches!(unnamed, Err(Refusal::NotQuarantined(_))));
}

async fn many_holes_are_granted_in_order_though_few_are_in_memory(mode: Mode) {
    const NONCES: usize = HOLES_IN_MEMORY_MAX + 500;
    let shop = Shop::open(mode).await;
    let mut holds = Vec::new();
    for granted in (0..NONCES).step_by(1_000) {
        let count = (NONCES - granted).min(1_000);
        let request = GrantRequest { count, hold_ms: None, key: None };
        holds.extend(shop.signers.grant(&shop.signer, request).await.unwrap().grants);
    }
    for chunk in holds.chunks(1_000) {
        let settlements = chunk
            .iter()
            .map(|g| Settlement { nonce: g.nonce, hold: Some(g.hold), outcome: Outcome::NeverSent })
            .collect();
        let answers = shop.signers.settle(&shop.signer, settlements).await.unwrap();
        assert!(answers.iter().all(|answer| *answer == Ok(Status::Released)));
    }
    let mut seen = Vec::new();
    while seen.len() <= NONCES {
        let request = GrantRequest { count: 900, hold_ms: None, key: None };
        seen.extend(numbers(&shop.signers.grant(&shop.signer, request).await.unwrap()));
    }
    assert_eq!(seen, (0..seen.len() as u64).collect::<Vec<_>>(), "{NONCES} holes first, then new ones");
}

#[tokio::test]
async fn a_late_word_on_a_hole_does_not_make_a_grant_beside_it_skip_unread_holes() {
    // More holes than are kept in memory, and all but five of those in memory granted again.
    let shop = Shop::open(Mode::WorkerQueue).await;
    let mut grants = Vec::new();
    while grants.len() <= HOLES_IN_MEMORY_MAX {
        let request = GrantRequest { count: 1_000, hold_ms: None, key: None };
        grants.extend(shop.signers.grant(&shop.signer, request).await.unwrap().grants);
    }
    for chunk in grants.chunks(1_000) {
        let word = |g: &actors::signers::Grant| Settlement {
            nonce: g.nonce,
            hold: Some(g.hold),
            outcome: Outcome::NeverSent,
        };
        shop.signers.settle(&shop.signer, chunk.iter().map(word).collect()).await.unwrap();
    }
    // A new lease, whose holder reads the lowest holes.
    let patch = PolicyPatch { max_in_flight: Some(None), ..PolicyPatch::default() };
    shop.signers.set_policy(&shop.signer, patch, by()).await.unwrap();
    let left = HOLES_IN_MEMORY_MAX - 5;
    for granted in (0..left).step_by(1_000) {
        let request = GrantRequest { count: (left - granted).min(1_000), hold_ms: None, key: None };
        shop.signers.grant(&shop.signer, request).await.unwrap();
    }
    let late = Settlement {
        nonce: grants[left + 2].nonce,
        hold: Some(grants[left + 2].hold),
        outcome: Outcome::Consumed(None),
    };
    let (settled, granted) =
        tokio::join!(shop.signers.settle(&shop.signer, vec![late]), shop.grants(5, None));
    assert_eq!(settled.unwrap(), [Ok(Status::Consumed)]);
    let skipped = [0, 1, 3, 4, 5].map(|next| (left + next) as u64);
    assert_eq!(numbers(&granted.unwrap()), skipped);
}

async fn a_panic_in_an_actor_costs_its_callers_an_internal_error_and_the_next_request_is_served(mode: Mode) {
    let shop = Shop::open(mode).await;
    shop.grants(1, None).await.unwrap();
    shop.plan.next_are(&[Fault::Panic]);
    assert!(matches!(shop.grants(1, None).await, Err(Refusal::Internal)));
    assert_eq!(numbers(&shop.grants(1, None).await.unwrap()), [1], "nothing of it was written");
    shop.signers.stop().await;
    assert_eq!(shop.signers.under_way(), 0);
    until("no lease is left behind", async || !shop.is_leased().await).await;
}

async fn unheard_of_signers_are_not_made_by_asking(mode: Mode) {
    let shop = Shop::open(mode).await;
    let settlement = Settlement { nonce: Nonce::ZERO, hold: None, outcome: Outcome::NeverSent };
    assert!(matches!(shop.signers.settle(&shop.signer, vec![settlement]).await, Err(Refusal::UnknownSigner)));
    let resolved = shop.signers.resolve(&shop.signer, Nonce::ZERO, None, Resolution::NeverSent, by()).await;
    assert!(matches!(resolved, Err(Refusal::UnknownSigner)));
    assert_eq!(shop.ledger.lease(&Resource::signer(&shop.signer)).await.unwrap(), None);
}

/// Longer than anything takes that is right, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !so().await {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Who changes something.
fn by() -> domain::AuditEntry {
    domain::AuditEntry::new("ops", "test", "signer:s")
}
