//! The owners of signers over a real SQLite ledger, with its commits failing on command; in both modes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod flaky;
mod flaky_ledger;
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
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actors::arbiters::Arbiters;
use actors::database_clock::SharedClock;
use actors::signers::{
    GrantRequest, Grants, Limits, PURGE_EVERY, Refusal, RequestKey, Signers, Upkeep, UpkeepSettings,
};
use cluster::{ClusterView, FailureDetector, Identity};
use domain::limits::HOLES_IN_MEMORY_MAX;
use domain::nonce::{OnExpiry, Outcome, PolicyPatch, Resolution, SettleRefusal, Settlement, Status};
use domain::{HoldId, IdempotencyKey, InstanceId, Mode, Modes, Nonce, Resource, SignerId, TxHash};
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

    /// One nonce, around a hand-off: who asks during it is sent on; later one is served here, as nobody else has the lease.
    async fn granted_around_a_hand_off(&self) -> Vec<u64> {
        loop {
            match self.grants(1, None).await {
                Err(Refusal::NotOwner { owner, .. }) => assert_eq!(owner.as_str(), "other"),
                answer => return numbers(&answer.unwrap()),
            }
        }
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

async fn unheard_of_signers_are_not_made_by_asking(mode: Mode) {
    let shop = Shop::open(mode).await;
    let settlement = Settlement { nonce: Nonce::ZERO, hold: None, outcome: Outcome::NeverSent };
    assert!(matches!(shop.signers.settle(&shop.signer, vec![settlement]).await, Err(Refusal::UnknownSigner)));
    let resolved = shop.signers.resolve(&shop.signer, Nonce::ZERO, None, Resolution::NeverSent, by()).await;
    assert!(matches!(resolved, Err(Refusal::UnknownSigner)));
    assert_eq!(shop.ledger.lease(&Resource::signer(&shop.signer)).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_overdue_signers_of_a_look_are_swept_and_one_that_hangs_keeps_no_other_waiting() {
    const SIGNERS: usize = 100;
    // A lease that is not kept, and a request that waits for longer than the test.
    let shop = Shop::with(Mode::Basic, |limits| limits.request_timeout = 10 * PATIENCE).await;
    for number in 0..SIGNERS {
        let signer = SignerId::parse(&format!("s{number}")).unwrap();
        let short = GrantRequest { count: 1, hold_ms: Some(1), key: None };
        shop.signers.grant(&signer, short).await.unwrap();
    }
    shop.plan.next_are(&[Fault::Gated]);
    let settings = UpkeepSettings {
        sweep_every: Duration::from_millis(100),
        look_signers: 1_000,
        look_for: Duration::ZERO,
        sweep_signers_max: 4,
        purge_every: PURGE_EVERY,
        keep_keys: MINUTE * 60,
        keep_instances: MINUTE * 60,
    };
    let upkeep = Upkeep::start(shop.signers.clone(), settings);
    let held = async || {
        let counts = shop.ledger.open_counts().await.unwrap();
        counts.iter().find(|(status, _)| *status == Status::Held).map_or(0, |(_, held)| *held)
    };
    until("all but the one that hangs are swept", async || held().await <= 1).await;
    assert_eq!(shop.plan.looks.load(Ordering::SeqCst), 1, "by the look that found them");
    shop.plan.gate.notify_one();
    until("all are swept", async || held().await == 0).await;
    upkeep.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_goes_on_behind_signers_that_are_not_overdue() {
    let shop = Shop::open(Mode::Basic).await;
    for (name, hold_ms) in [("a", MINUTE_MS), ("b", MINUTE_MS), ("c", MINUTE_MS), ("d", MINUTE_MS), ("e", 1)]
    {
        let request = GrantRequest { count: 1, hold_ms: Some(hold_ms), key: None };
        shop.signers.grant(&SignerId::parse(name).unwrap(), request).await.unwrap();
    }
    let settings = UpkeepSettings {
        sweep_every: Duration::from_secs(1),
        look_signers: 2,
        look_for: PATIENCE,
        sweep_signers_max: 4,
        purge_every: PURGE_EVERY,
        keep_keys: MINUTE * 60,
        keep_instances: MINUTE * 60,
    };
    let upkeep = Upkeep::start(shop.signers.clone(), settings);
    let looks = || shop.plan.looks.load(Ordering::SeqCst);
    until("it looks", async || looks() > 0).await;
    // The sweep under way is done, and none follows.
    upkeep.stop().await;
    assert_eq!(looks() % 3, 0, "a sweep takes three looks at five signers");
    let released = async || {
        let counts = shop.ledger.open_counts().await.unwrap();
        counts.contains(&(Status::Released, 1)) && counts.contains(&(Status::Held, 4))
    };
    until("the last one is swept", released).await;
}

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

/// Longer than anything takes that is right, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !so().await {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Shop {
    async fn is_leased(&self) -> bool {
        self.ledger.lease(&Resource::signer(&self.signer)).await.unwrap().is_some_and(|lease| lease.is_live())
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

/// Who changes something.
fn by() -> domain::AuditEntry {
    domain::AuditEntry::new("ops", "test", "signer:s")
}
