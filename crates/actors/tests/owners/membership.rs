//! An instance's own lease over a real SQLite ledger: acquires and renewals whose answers come late, or never.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use actors::arbiters::Arbiters;
use actors::database_clock::SharedClock;
use actors::signers::{GrantRequest, Limits, Refusal, Signers, Upkeep};
use cluster::{ClusterView, Identity, JoinOptions, Membership, Process};
use domain::{InstanceId, Mode, Resource, SignerId, Timestamp, Token};
use ledger::{Acquisition, Handle, Lease, RECOVERED_TOKENS, Renewal, Renewed};

use crate::flaky::Plan;
use crate::flaky_ledger::FlakyLedger;
use crate::upkeep;

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(3);

struct Joined {
    membership: Membership,
    ledger: Handle,
    /// The same, failing as planned.
    flaky: Handle,
    plan: Arc<Plan>,
    me: InstanceId,
    _folder: tempfile::TempDir,
}

impl Joined {
    async fn open() -> Self {
        Self::on(bus::Hub::default().join()).await
    }

    async fn on(bus: bus::Handle) -> Self {
        Self::with(bus, LEASE).await
    }

    async fn with(bus: bus::Handle, lease: Duration) -> Self {
        Self::of("me-1", bus, lease).await
    }

    async fn of(id: &str, bus: bus::Handle, lease: Duration) -> Self {
        let FlakyLedger { folder, real, plan, ledger } = FlakyLedger::open().await;
        let me = InstanceId::parse(id).unwrap();
        let identity = Identity { id: me.clone(), url: "http://me".to_owned() };
        let process = Process { hostname: "h".to_owned(), pid: 1, version: "0".to_owned() };
        let options = JoinOptions { lease, first_mode: Mode::WorkerQueue, patience: Duration::from_secs(5) };
        let membership = Membership::join(ledger.clone(), bus, &identity, process, options).await.unwrap();
        Self { membership, ledger: real, flaky: ledger, plan, me, _folder: folder }
    }

    /// Acquires the lease behind the instance's back.
    async fn acquire_as(&self, owner: &InstanceId) -> Token {
        let acquired = self.ledger.acquire(&Resource::instance(&self.me), owner, 60_000).await.unwrap();
        let Acquisition::Acquired { token, .. } = acquired else { panic!("{acquired:?}") };
        token
    }

    async fn lease(&self) -> Lease {
        self.ledger.lease(&Resource::instance(&self.me)).await.unwrap().unwrap()
    }
}

/// Waits until something holds.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_joins_tells_the_others_so() {
    let hub = bus::Hub::default();
    let other = hub.join();
    let mut notices = other.subscribe(bus::Channel::Cluster);
    let _joined = Joined::on(hub.join()).await;
    let told =
        tokio::time::timeout(PATIENCE, notices.next()).await.expect("they would find it with a renewal");
    assert!(matches!(told, Some(bus::Event::Message(_))), "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_of_two_ledgers_that_meet_on_a_bus_name_each_other() {
    let hub = bus::Hub::default();
    let [one, other] = ["one-1", "other-1"].map(|id| Joined::of(id, hub.join(), LEASE));
    let (one, other) = (one.await, other.await);
    let names = |of: &Joined, id: &str| {
        let found = of.membership.other_buses().found();
        found.iter().any(|said| said.starts_with("instances of another ledger") && said.contains(id))
    };
    until("they name each other", async || names(&one, "other-1") && names(&other, "one-1")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_is_carried_out_after_its_successor_ends_no_incarnation() {
    let joined = Joined::open().await;
    let own = joined.membership.instance_lease();
    // As one of which nobody hears.
    let late = joined.acquire_as(&joined.me).await;
    until("it has a token above", async || {
        own.token().expect("its own lease was taken for another's") > late
    })
    .await;
    let lease = joined.lease().await;
    assert_eq!((lease.owner, Some(lease.token)), (Some(joined.me.clone()), own.token()));
    assert!(joined.membership.failure_detector().is_alive());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_another_instance_took_ends_the_incarnation() {
    let mut joined = Joined::open().await;
    let own = joined.membership.instance_lease();
    let life = Resource::instance(&joined.me);
    joined.ledger.release(&life, &joined.me, own.token().unwrap()).await.unwrap();
    joined.acquire_as(&InstanceId::parse("survivor-1").unwrap()).await;
    tokio::time::timeout(PATIENCE, joined.membership.lost()).await.expect("it learns of it");
    assert_eq!(own.token(), None);
    assert!(!joined.membership.failure_detector().is_alive());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_taken_and_given_back_ends_an_incarnation_whose_last_acquire_is_unheard() {
    let mut joined = Joined::open().await;
    let (own, life) = (joined.membership.instance_lease(), Resource::instance(&joined.me));
    // As while it does not reach the ledger: from then on it does not renew the lease, but acquires it.
    *joined.plan.holds.acquires_fail_after.lock() = Some(Duration::from_millis(1));
    assert_eq!(own.acquire_anew().await, None);
    let survivor = InstanceId::parse("survivor-1").unwrap();
    joined.ledger.release(&life, &joined.me, own.token().unwrap()).await.unwrap();
    let taken = joined.acquire_as(&survivor).await;
    joined.ledger.release(&life, &survivor, taken).await.unwrap();
    *joined.plan.holds.acquires_fail_after.lock() = None;
    tokio::time::timeout(PATIENCE, joined.membership.lost()).await.expect("it learns of it");
    assert_eq!(own.token(), None);
    assert!(!joined.membership.failure_detector().is_alive());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_a_recovery_has_raised_or_that_is_made_anew_ends_the_incarnation() {
    for raised_by in [RECOVERED_TOKENS, -1] {
        let mut joined = Joined::open().await;
        let own = joined.membership.instance_lease();
        joined.plan.holds.tokens_raised_by.store(raised_by, Ordering::SeqCst);
        assert_eq!(own.acquire_anew().await, None, "{raised_by}");
        tokio::time::timeout(PATIENCE, joined.membership.lost()).await.expect("it learns of it");
        assert_eq!(own.token(), None, "{raised_by}");
        assert!(!joined.membership.failure_detector().is_alive(), "{raised_by}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_hangs_is_asked_for_again_and_counts_should_it_be_answered_after_all() {
    let joined = Joined::open().await;
    let (plan, own) = (&joined.plan, joined.membership.instance_lease());
    let before = joined.lease().await;
    let renewed_after = async |at: Timestamp| {
        until("it is renewed", async || joined.lease().await.renewed_at > at).await;
    };
    // One that is never answered.
    plan.renewals_to_gate.store(1, Ordering::SeqCst);
    until("it was sent", async || plan.gated_renewals.load(Ordering::SeqCst) == 1).await;
    renewed_after(joined.lease().await.renewed_at).await;
    // Two at once, of which the first is answered in the end.
    plan.renewals_to_gate.store(2, Ordering::SeqCst);
    until("both were sent", async || plan.gated_renewals.load(Ordering::SeqCst) == 3).await;
    let late = joined.lease().await;
    plan.gate.notify_one();
    renewed_after(late.renewed_at).await;
    // As many as are under way at once, and none is ever answered.
    plan.renewals_to_gate.store(2, Ordering::SeqCst);
    until("both were sent", async || plan.gated_renewals.load(Ordering::SeqCst) == 5).await;
    renewed_after(joined.lease().await.renewed_at).await;
    let lease = joined.lease().await;
    assert_eq!((lease.token, own.token()), (before.token, Some(before.token)), "it was not acquired anew");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_however_long_it_is_is_renewed_without_waiting_for_a_look_at_the_others_that_hangs() {
    let joined = Joined::with(bus::Hub::default().join(), Duration::from_secs(60)).await;
    let looks = &joined.plan.holds;
    looks.looks_are_slow.store(true, Ordering::SeqCst);
    // A look comes after each of them.
    for _ in 0..3 {
        let before = joined.lease().await.renewed_at;
        until("it is renewed", async || joined.lease().await.renewed_at > before).await;
    }
    let (begun, awaited) = looks.slow_looks();
    assert!(begun >= 2 && awaited == 0, "{awaited} of {begun} looks held up the next renewal");
}

/// The signer of an instance that has joined, in worker-queue mode, whose lease another instance has.
struct Contended {
    joined: Joined,
    signers: Signers,
    clock: SharedClock,
    signer: SignerId,
    other: InstanceId,
}

impl Contended {
    /// The instance's own lease has this length, as has the other one's of the signer.
    async fn open(own: Duration, others_ms: u64, request_timeout: Duration) -> Self {
        let joined = Joined::with(bus::Hub::default().join(), own).await;
        let (signer, other) = (SignerId::parse("s").unwrap(), InstanceId::parse("other-1").unwrap());
        let limits = Limits {
            idle: Duration::from_secs(30),
            lease: Duration::from_secs(15),
            hold_ms: 60_000,
            lease_wait: Duration::from_millis(50),
            lease_kept_max: Duration::from_millis(100),
            request_timeout,
            queue_max: 100,
            in_flight_max: 1_000,
        };
        let me = Identity { id: joined.me.clone(), url: "http://me".to_owned() };
        let clock = SharedClock::new(Duration::from_secs(1));
        let signers = Signers::start(
            Arbiters::start(NonZeroUsize::MIN).unwrap(),
            joined.flaky.clone(),
            joined.me.clone(),
            joined.membership.failure_detector(),
            ClusterView::alone(&me, Mode::WorkerQueue),
            clock.clone(),
            limits,
        );
        let taken = joined.ledger.acquire(&Resource::signer(&signer), &other, others_ms).await.unwrap();
        assert!(matches!(taken, Acquisition::Acquired { .. }), "{taken:?}");
        Self { joined, signers, clock, signer, other }
    }

    async fn grant(&self) -> Result<Token, Refusal> {
        let request = GrantRequest { count: 1, hold_ms: None, key: None };
        self.signers.grant(&self.signer, request).await.map(|grants| grants.token)
    }

    async fn lease(&self) -> Lease {
        self.joined.ledger.lease(&Resource::signer(&self.signer)).await.unwrap().unwrap()
    }

    /// The other one's lease, once it has run out.
    async fn lapsed(&self) -> Lease {
        until("it has run out", async || !self.lease().await.is_live()).await;
        self.lease().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signers_lease_of_another_that_ran_out_is_left_alone_for_one_lease_after_joining() {
    let contended = Contended::open(Duration::from_secs(60), 1, Duration::from_secs(1)).await;
    let left = contended.lapsed().await;
    let refused = contended.grant().await;
    assert!(matches!(refused, Err(Refusal::LedgerUnavailable)), "{refused:?}");
    let lease = contended.lease().await;
    assert_eq!((lease.owner, lease.token), (left.owner, left.token));
    // What is given back is taken at once.
    let Contended { joined, signer, other, .. } = &contended;
    joined.ledger.release(&Resource::signer(signer), other, left.token).await.unwrap();
    contended.grant().await.unwrap();
    contended.signers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signers_lease_of_another_is_not_acquired_after_joining_also_where_it_has_not_run_out_yet() {
    let contended = Contended::open(Duration::from_secs(60), 60_000, Duration::from_secs(1)).await;
    let held = contended.lease().await;
    let Contended { joined, signer, other, .. } = &contended;
    joined.plan.holds.next_acquire_is_gated.store(true, Ordering::SeqCst);
    let refused = contended.grant().await;
    assert!(matches!(&refused, Err(Refusal::NotOwner { owner, .. }) if owner == other), "{refused:?}");
    // An acquire that waits since then would find it run out.
    let shortened = Renewal { resource: Resource::signer(signer), token: held.token, lease_ms: 1 };
    assert_eq!(joined.ledger.renew(other, shortened).await.unwrap(), Renewed::Done);
    contended.lapsed().await;
    joined.plan.gate.notify_one();
    let refused = contended.grant().await;
    assert!(matches!(refused, Err(Refusal::LedgerUnavailable)), "{refused:?}");
    let lease = contended.lease().await;
    assert_eq!((lease.owner.as_ref(), lease.token), (Some(other), held.token));
    contended.signers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signers_lease_of_another_that_ran_out_is_taken_one_lease_after_joining() {
    let contended = Contended::open(Duration::from_secs(1), 1, PATIENCE).await;
    let left = contended.lapsed().await;
    let token = contended.grant().await.unwrap();
    assert!(token > left.token, "{token} is not above {}", left.token);
    assert_eq!(contended.lease().await.owner.as_ref(), Some(&contended.joined.me));
    contended.signers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signers_lease_of_another_that_ran_out_is_left_alone_when_the_databases_clock_has_just_stepped_forward()
 {
    let contended = Contended::open(Duration::from_secs(1), 1, Duration::from_secs(2)).await;
    let left = contended.lapsed().await;
    let Contended { joined, clock, .. } = &contended;
    clock.look(&joined.flaky).await.unwrap();
    let detector = joined.membership.failure_detector();
    until("one lease has passed since it joined", async || detector.may_take()).await;
    joined.plan.ahead_ms.store(20_000, Ordering::SeqCst);
    // It sees the step when it is asked, before it acquires anything.
    let refused = contended.grant().await;
    assert!(matches!(refused, Err(Refusal::LedgerUnavailable)), "{refused:?}");
    let lease = contended.lease().await;
    assert_eq!((lease.owner, lease.token), (left.owner, left.token));
    contended.signers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_incarnation_is_purged_for_one_lease_after_joining() {
    for (own, are_purged) in [(Duration::from_secs(3_600), false), (Duration::from_secs(1), true)] {
        let contended = Contended::open(own, 60_000, Duration::from_secs(1)).await;
        let purges = &contended.joined.plan.purges;
        let count = |kind: &str| purges.steps().iter().filter(|(what, _)| *what == kind).count();
        let upkeep = Upkeep::start(contended.signers.clone(), upkeep::settings());
        // Entries of the audit are purged before incarnations.
        until("entries of the audit are purged twice", async || count("audits") >= 2).await;
        if are_purged {
            until("incarnations are purged", async || count("instances") > 0).await;
        }
        assert_eq!(count("instances") > 0, are_purged);
        upkeep.stop().await;
        contended.signers.stop().await;
    }
}
