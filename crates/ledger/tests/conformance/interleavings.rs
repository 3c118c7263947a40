//! What can go wrong only between the sessions of a server, step by step on a real PostgreSQL.
//!
//! A commit is stopped in its middle by a session that has inserted the same nonce and neither commits
//! nor rolls back. The test reads from the server which session waits for which, and guesses nothing from the time.

use domain::nonce::Change;
use domain::{InstanceId, Resource, SegmentTag, SequenceName, SignerId, Token, WorkerNumber};
use ledger::{
    Acquisition, AuditFilter, Batch, BulkAction, BulkStep, Fate, JobFilter, JobsVerdict, Lane, Link, Marked,
    Options, Put, Renewal, Renewed, SegmentChange, SequenceChange, Verdict, WorkerClaim,
};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinHandle;

use crate::bench::{Bench, LONG_MS, batch, batch_with_policy, by, eventually, new_grant, owner, signer};
use crate::bulks;
use crate::shop::{self, dispatch, job, of_lane, plain, submit};

/// A session beside the ledger's own.
async fn session(b: &Bench) -> PgConnection {
    PgConnection::connect(&b.options.url).await.unwrap()
}

/// How many of the ledger's sessions wait for a lock now.
async fn waiting(observer: &mut PgConnection) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )
    .fetch_one(observer)
    .await
    .unwrap()
}

pub async fn until_waiting(b: &Bench, sessions: i64) {
    let observer = tokio::sync::Mutex::new(session(b).await);
    eventually("sessions wait for locks", async || waiting(&mut *observer.lock().await).await == sessions)
        .await;
}

/// Lets nobody else insert the nonce until it is rolled back.
async fn bar(b: &Bench, signer: &SignerId, nonce: i64) -> PgConnection {
    let mut bar = session(b).await;
    sqlx::query("BEGIN").execute(&mut bar).await.unwrap();
    sqlx::query(
        "INSERT INTO signer_nonce_allocation
         VALUES ($1, $2, 'HELD', gen_random_uuid(), now(), NULL, 1, 'bar', now(), now())",
    )
    .bind(signer.as_str())
    .bind(nonce)
    .execute(&mut bar)
    .await
    .unwrap();
    bar
}

async fn lift(mut bar: PgConnection) {
    sqlx::query("ROLLBACK").execute(&mut bar).await.unwrap();
}

fn commits(b: &Bench, s: &SignerId, who: &InstanceId, token: Token) -> JoinHandle<ledger::Result<Verdict>> {
    commits_as(batch, b, s, who, token)
}

type MakeBatch = fn(&SignerId, &InstanceId, Token, Vec<Change>) -> Batch;

/// What one statement writes, and what is written the general way: each has a fence of its own.
const BOTH_WAYS: [MakeBatch; 2] = [batch, batch_with_policy];

fn commits_as(
    make: MakeBatch,
    b: &Bench,
    s: &SignerId,
    who: &InstanceId,
    token: Token,
) -> JoinHandle<ledger::Result<Verdict>> {
    let (ledger, write) = (b.ledger.clone(), make(s, who, token, vec![new_grant(0, LONG_MS)]));
    tokio::spawn(async move { ledger.commit(write).await })
}

fn sends(b: &Bench, write: Batch, link: Link) -> JoinHandle<Verdict> {
    let ledger = b.ledger.clone();
    tokio::spawn(async move { ledger.commit_linked(write, link).await.unwrap() })
}

fn acquires(b: &Bench, s: &SignerId, who: &InstanceId) -> JoinHandle<Acquisition> {
    let (ledger, resource, who) = (b.ledger.clone(), Resource::signer(s), who.clone());
    tokio::spawn(async move { ledger.acquire(&resource, &who, LONG_MS).await.unwrap() })
}

async fn run_out(b: &Bench, s: &SignerId) {
    lease_runs_out(b, &Resource::signer(s)).await;
}

async fn lease_runs_out(b: &Bench, resource: &Resource) {
    eventually("the lease runs out", async || !b.ledger.lease(resource).await.unwrap().unwrap().is_live())
        .await;
}

/// A claim to a worker number that was opened.
async fn opened(b: &Bench, who: &InstanceId, lease_ms: u64) -> WorkerClaim {
    let number = WorkerNumber::new(7).unwrap();
    let acquired = b.ledger.acquire(&Resource::id_worker(number), who, lease_ms).await.unwrap();
    let Acquisition::Acquired { token, .. } = acquired else { panic!("{acquired:?}") };
    let claim = WorkerClaim { number, owner: who.clone(), token };
    b.ledger.open_id_worker(&claim, "node").await.unwrap().unwrap();
    claim
}

fn raises(b: &Bench, claim: &WorkerClaim, mark_ms: u64) -> JoinHandle<ledger::Result<Option<Marked>>> {
    let (ledger, claim) = (b.ledger.clone(), claim.clone());
    tokio::spawn(async move { ledger.mark_id_worker(&claim, mark_ms, LONG_MS).await })
}

/// Traps 2 and 3: the fence is a lock that a takeover waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_waits_for_a_fenced_write_and_its_load_sees_it() {
    for make in BOTH_WAYS {
        a_takeover_waits_for_a_write(make).await;
    }
}

async fn a_takeover_waits_for_a_write(make: MakeBatch) {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, 50).await;
    let bar = bar(&b, &s, 0).await;
    let commit = commits_as(make, &b, &s, &a, token);
    until_waiting(&b, 1).await;
    run_out(&b, &s).await;
    let takeover = acquires(&b, &s, &owner("b"));
    // Either it waits, or it has got through: then what it loads must be all there will ever be.
    tokio::select! {
        () = until_waiting(&b, 2) => {}
        () = eventually("the takeover got through", async || takeover.is_finished()) => {}
    }
    let got_through = takeover.is_finished();
    let seen_early = b.last(&s).await;
    lift(bar).await;
    let verdict = commit.await.unwrap().unwrap();
    assert!(matches!(takeover.await.unwrap(), Acquisition::Acquired { token, .. } if token == Token::new(2)));
    assert!(matches!(verdict, Verdict::Committed { .. }), "{verdict:?}");
    assert!(
        !got_through,
        "the new owner loaded {seen_early:?} while the old owner's write of 0 was still to come: {verdict:?}"
    );
    assert_eq!(b.last(&s).await, Some(0));
}

/// An instance that renews its lease while a survivor takes it for dead: the takeover waits for the renewal, and comes too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_renews_in_time_is_not_found_dead_by_a_takeover_that_waited() {
    let b = Bench::postgres().await;
    let (slow, life) = (owner("slow-1"), Resource::instance(&owner("slow-1")));
    b.ledger.acquire(&life, &slow, 20).await.unwrap();
    lease_runs_out(&b, &life).await;
    let mut renewal = session(&b).await;
    sqlx::query("BEGIN").execute(&mut renewal).await.unwrap();
    sqlx::query("UPDATE lease SET expires_at = clock_timestamp() + interval '1 minute'")
        .execute(&mut renewal)
        .await
        .unwrap();
    let (ledger, resource, dead) = (b.ledger.clone(), life.clone(), slow.clone());
    let takeover = tokio::spawn(async move {
        let survivor = owner("b-1");
        ledger.take_over(&resource, &survivor, &dead, LONG_MS).await.unwrap()
    });
    until_waiting(&b, 1).await;
    sqlx::query("COMMIT").execute(&mut renewal).await.unwrap();
    assert_eq!(takeover.await.unwrap(), None, "it had just renewed its lease");
    let lease = b.ledger.lease(&life).await.unwrap().unwrap();
    assert_eq!((lease.owner.clone(), lease.token, lease.is_live()), (Some(slow), Token::new(1), true));
}

/// The same of a lane's jobs, whose fence is in the statement that writes them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_of_a_lane_waits_for_what_its_owner_writes() {
    let b = Bench::postgres().await;
    let id = shop::session("s");
    let acquired = b.ledger.acquire(id.lease(), &owner("a"), 200).await.unwrap();
    let Acquisition::Acquired { token, .. } = acquired else { panic!("{acquired:?}") };
    let lane = Lane { id: id.clone(), owner: owner("a"), token };
    b.does(of_lane(&lane, [submit(plain(job(0)))])).await;
    // Somebody has the row: the attempt's writing stops there, behind its fence.
    let mut bar = session(&b).await;
    sqlx::query("BEGIN").execute(&mut bar).await.unwrap();
    sqlx::query("SELECT FROM job FOR UPDATE").execute(&mut bar).await.unwrap();
    let (ledger, batch) = (b.ledger.clone(), of_lane(&lane, [dispatch(job(0), 1)]));
    let commit = tokio::spawn(async move { ledger.commit_jobs(batch).await });
    until_waiting(&b, 1).await;
    lease_runs_out(&b, id.lease()).await;
    let (ledger, taken) = (b.ledger.clone(), id.lease().clone());
    let takeover = tokio::spawn(async move { ledger.acquire(&taken, &owner("b"), LONG_MS).await.unwrap() });
    tokio::select! {
        () = until_waiting(&b, 2) => {}
        () = eventually("the takeover got through", async || takeover.is_finished()) => {}
    }
    let got_through = takeover.is_finished();
    lift(bar).await;
    let verdict = commit.await.unwrap().unwrap();
    assert!(!got_through, "the new owner reads its jobs while the old one's {verdict:?} was still to come");
    assert!(matches!(takeover.await.unwrap(), Acquisition::Acquired { .. }));
    assert!(matches!(verdict, JobsVerdict::Written { .. }), "{verdict:?}");
    let seen = b.ledger.in_flight(&id, None, 9).await.unwrap();
    assert_eq!(seen.iter().map(|live| live.id).collect::<Vec<_>>(), [job(0)]);
}

/// Trap 3: the lock does not stand in the way of renewals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_does_not_wait_for_a_fenced_write() {
    for make in BOTH_WAYS {
        a_renewal_does_not_wait_for_a_write(make).await;
    }
}

async fn a_renewal_does_not_wait_for_a_write(make: MakeBatch) {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, 10_000).await;
    let bar = bar(&b, &s, 0).await;
    let commit = commits_as(make, &b, &s, &a, token);
    until_waiting(&b, 1).await;
    let renewal = Renewal { resource: Resource::signer(&s), token, lease_ms: LONG_MS };
    let renewed = b.ledger.renew(&a, renewal).await.unwrap();
    assert!(!commit.is_finished(), "the write was to be still under way");
    assert_eq!(renewed, Renewed::Done, "passed over or put off because of a fenced write");
    lift(bar).await;
    assert!(matches!(commit.await.unwrap().unwrap(), Verdict::Committed { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_whose_row_is_locked_is_not_lost() {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let renewal = |token| Renewal { resource: Resource::signer(&s), token, lease_ms: LONG_MS };
    let token = b.acquired(&a, &s, LONG_MS).await;
    let mut bar = session(&b).await;
    sqlx::query("BEGIN").execute(&mut bar).await.unwrap();
    sqlx::query("SELECT FROM lease FOR UPDATE").execute(&mut bar).await.unwrap();
    assert_eq!(b.ledger.renew(&a, renewal(token)).await.unwrap(), Renewed::Locked);
    assert_eq!(b.ledger.renew(&a, renewal(Token::new(9))).await.unwrap(), Renewed::Lost);
    assert_eq!(b.ledger.renew(&owner("b"), renewal(token)).await.unwrap(), Renewed::Lost);
    lift(bar).await;
    assert_eq!(b.ledger.renew(&a, renewal(token)).await.unwrap(), Renewed::Done);
}

/// A database may have another default than the statements are written for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_met_another_is_carried_out_whatever_isolation_the_database_has_by_default() {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    b.acquired(&a, &s, LONG_MS).await;
    let mut other = session(&b).await;
    let serializable = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = \
                        serializable', current_database()); END $$";
    sqlx::query(serializable).execute(&mut other).await.unwrap();
    let ledger = b.instances(2).await.remove(1);
    sqlx::query("BEGIN").execute(&mut other).await.unwrap();
    sqlx::query("UPDATE lease SET renewed_at = clock_timestamp()").execute(&mut other).await.unwrap();
    let resource = Resource::signer(&s);
    let acquiring = tokio::spawn(async move { ledger.acquire(&resource, &a, LONG_MS).await });
    until_waiting(&b, 1).await;
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    let acquired = acquiring.await.unwrap().unwrap();
    assert!(
        matches!(acquired, Acquisition::Acquired { token, .. } if token == Token::new(2)),
        "{acquired:?}"
    );
}

/// An instance acquires its own lease also while requests have all the other connections: they must not make it look dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instances_lease_is_acquired_while_requests_have_all_connections() {
    let b = Bench::postgres().await;
    let life = Resource::instance(&owner("a-1"));
    let taken = Resource::instance(&owner("b-1"));
    b.ledger.acquire(&life, &owner("a-1"), LONG_MS).await.unwrap();
    b.ledger.acquire(&taken, &owner("a-1"), LONG_MS).await.unwrap();
    // One connection for requests, and one for what they read by keys.
    let ledger = ledger::open(&Options { connections_max: 2, ..b.options.clone() }).await.unwrap();
    let mut bar = session(&b).await;
    sqlx::query("BEGIN").execute(&mut bar).await.unwrap();
    sqlx::query("LOCK TABLE instance, session IN ACCESS EXCLUSIVE MODE").execute(&mut bar).await.unwrap();
    let (lists, reads) = (ledger.clone(), ledger.clone());
    let listing = tokio::spawn(async move { lists.live_instances().await });
    let reading = tokio::spawn(async move { reads.session(&shop::session_id("s")).await });
    until_waiting(&b, 2).await;
    let own = ledger.acquire(&life, &owner("a-1"), LONG_MS).await.unwrap();
    let anothers = ledger.acquire(&taken, &owner("b-1"), LONG_MS).await.unwrap();
    assert!(!listing.is_finished() && !reading.is_finished(), "it was to wait for neither");
    assert!(matches!(own, Acquisition::Acquired { token, .. } if token == Token::new(2)), "{own:?}");
    assert!(matches!(&anothers, Acquisition::Held { owner: holder, .. } if *holder == owner("a-1")));
    lift(bar).await;
}

/// Lists leave a connection to those who acquire leases and write, and the look at the ledger's health waits for none of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_acquired_while_lists_have_all_connections_that_they_may() {
    let b = Bench::postgres().await;
    let mut bar = session(&b).await;
    sqlx::query("BEGIN").execute(&mut bar).await.unwrap();
    sqlx::query("LOCK TABLE instance IN ACCESS EXCLUSIVE MODE").execute(&mut bar).await.unwrap();
    let list = |_| {
        let ledger = b.ledger.clone();
        tokio::spawn(async move { ledger.live_instances().await })
    };
    let lists: Vec<_> = (0..20).map(list).collect();
    // Of the eight connections four are for reads by keys.
    until_waiting(&b, 3).await;
    b.acquired(&owner("a"), &signer("s"), LONG_MS).await;
    b.ledger.check().await.unwrap();
    assert!(lists.iter().any(|list| !list.is_finished()), "it was to wait for none");
    lift(bar).await;
}

/// Trap 4: a connection dies, its statement runs on, and the same owner begins anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_acquires_anew_waits_for_its_own_zombie() {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    b.acquired(&a, &s, LONG_MS).await;
    // What is left in the server of a transaction whose client is gone.
    let mut zombie = session(&b).await;
    sqlx::query("BEGIN").execute(&mut zombie).await.unwrap();
    let locked = sqlx::query(sql!("postgres/fence_lock"))
        .bind(vec![Resource::signer(&s).to_string()])
        .bind(vec![1_i64])
        .bind(vec![a.as_str()])
        .fetch_all(&mut zombie)
        .await
        .unwrap();
    assert_eq!(locked.len(), 1);
    sqlx::query(
        "INSERT INTO signer_nonce_allocation
         VALUES ($1, 0, 'HELD', gen_random_uuid(), now(), NULL, 1, 'a', now(), now())",
    )
    .bind(s.as_str())
    .execute(&mut zombie)
    .await
    .unwrap();
    let anew = acquires(&b, &s, &a);
    tokio::select! {
        () = until_waiting(&b, 1) => {}
        () = eventually("the acquire got through", async || anew.is_finished()) => {}
    }
    assert!(!anew.is_finished(), "the owner went on while its zombie could still commit");
    sqlx::query("COMMIT").execute(&mut zombie).await.unwrap();
    assert!(matches!(anew.await.unwrap(), Acquisition::Acquired { token, .. } if token == Token::new(2)));
    assert_eq!(b.last(&s).await, Some(0), "what the zombie wrote is known before the next decision");
    // And one that has not come to its lock yet never will.
    assert_eq!(commits(&b, &s, &a, Token::new(1)).await.unwrap().unwrap(), Verdict::Fenced);
}

/// Why the load is a later statement: one that acquires and loads reads a snapshot from before it waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_after_the_acquire_sees_what_one_statement_for_both_misses() {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, 50).await;
    let bar = bar(&b, &s, 0).await;
    let commit = commits(&b, &s, &a, token);
    until_waiting(&b, 1).await;
    run_out(&b, &s).await;
    let mut other = session(&b).await;
    let both = tokio::spawn(async move {
        sqlx::query_as::<_, (i64, Option<i64>)>(
            "WITH acquired AS (
                 UPDATE lease SET owner = 'b', fencing_token = fencing_token + 1,
                                  expires_at = clock_timestamp() + interval '1 minute'
                 WHERE resource = 'signer:s' AND expires_at <= clock_timestamp()
                 RETURNING fencing_token)
             SELECT fencing_token, (SELECT max(nonce) FROM signer_nonce_allocation WHERE signer = 's')
             FROM acquired",
        )
        .fetch_one(&mut other)
        .await
        .unwrap()
    });
    until_waiting(&b, 2).await;
    lift(bar).await;
    assert!(matches!(commit.await.unwrap().unwrap(), Verdict::Committed { .. }));
    assert_eq!(both.await.unwrap(), (2, None), "the trap is gone from this server: the comment may go too");
    assert_eq!(b.last(&s).await, Some(0));
}

/// A row that a takeover has locked is no verdict yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_meets_a_takeover_half_way_is_told_to_come_again() {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    let mut takeover = session(&b).await;
    sqlx::query("BEGIN").execute(&mut takeover).await.unwrap();
    sqlx::query("UPDATE lease SET owner = 'b', fencing_token = fencing_token + 1")
        .execute(&mut takeover)
        .await
        .unwrap();
    assert_eq!(commits(&b, &s, &a, token).await.unwrap().unwrap(), Verdict::Again);
    sqlx::query("ROLLBACK").execute(&mut takeover).await.unwrap();
    assert!(matches!(commits(&b, &s, &a, token).await.unwrap().unwrap(), Verdict::Committed { .. }));
}

/// I9 begins here: a connection that is lost leaves an outcome that nobody knows, and it is said so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_lost_in_a_write_is_an_unknown_outcome() {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    let bar = bar(&b, &s, 0).await;
    let commit = commits(&b, &s, &a, token);
    until_waiting(&b, 1).await;
    let mut executioner = session(&b).await;
    let ended: bool = sqlx::query_scalar(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )
    .fetch_one(&mut executioner)
    .await
    .unwrap();
    assert!(ended);
    let error = commit.await.unwrap().expect_err("its connection was lost");
    assert!(error.may_have_written() && error.is_retryable(), "{error}");
    lift(bar).await;
    let anew = b.acquired(&a, &s, LONG_MS).await;
    assert_eq!(b.last(&s).await, None);
    assert!(matches!(commits(&b, &s, &a, anew).await.unwrap().unwrap(), Verdict::Committed { .. }));
}

/// The time mark of a worker number is raised by one statement; that too is a lock which a takeover waits for. Else the
/// next holder could begin below ids that the last one is about to make.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_of_a_worker_number_waits_for_a_mark_that_is_being_raised() {
    let b = Bench::postgres().await;
    let (old, new) = (owner("a"), owner("b"));
    let claim = opened(&b, &old, 50).await;
    let resource = Resource::id_worker(claim.number);
    let wish_ms = b.ledger.clock_ms().await.unwrap() + 5_000;
    let mut bar = session(&b).await;
    sqlx::query("BEGIN").execute(&mut bar).await.unwrap();
    sqlx::query("SELECT FROM id_worker FOR UPDATE").execute(&mut bar).await.unwrap();
    let raising = raises(&b, &claim, wish_ms);
    until_waiting(&b, 1).await;
    lease_runs_out(&b, &resource).await;
    let (ledger, taken) = (b.ledger.clone(), resource.clone());
    let takeover = tokio::spawn(async move { ledger.acquire(&taken, &new, LONG_MS).await.unwrap() });
    tokio::select! {
        () = until_waiting(&b, 2) => {}
        () = eventually("the takeover got through", async || takeover.is_finished()) => {}
    }
    let got_through = takeover.is_finished();
    lift(bar).await;
    let raised = raising.await.unwrap().unwrap();
    assert!(
        !got_through,
        "the number was another's while the old holder's mark was still to come: {raised:?}"
    );
    assert_eq!(raised.map(|marked| marked.mark_ms), Some(wish_ms));
    let acquired = takeover.await.unwrap();
    let Acquisition::Acquired { token, .. } = acquired else { panic!("{acquired:?}") };
    let next = WorkerClaim { owner: owner("b"), token, ..claim };
    let begun = b.ledger.open_id_worker(&next, "node").await.unwrap().unwrap();
    assert_eq!(begun.mark_ms, wish_ms, "the new holder begins above all that the old one may make");
}

/// A mark that comes while the number changes hands waits, and then finds that it is too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_that_meets_a_takeover_half_way_waits_for_it_and_is_not_raised() {
    let b = Bench::postgres().await;
    let claim = opened(&b, &owner("a"), LONG_MS).await;
    let mut takeover = session(&b).await;
    sqlx::query("BEGIN").execute(&mut takeover).await.unwrap();
    sqlx::query("UPDATE lease SET fencing_token = fencing_token + 1").execute(&mut takeover).await.unwrap();
    let raising = raises(&b, &claim, b.ledger.clock_ms().await.unwrap() + 5_000);
    tokio::select! {
        () = until_waiting(&b, 1) => {}
        () = eventually("the mark was raised", async || raising.is_finished()) => {}
    }
    sqlx::query("COMMIT").execute(&mut takeover).await.unwrap();
    assert_eq!(raising.await.unwrap().unwrap(), None);
    let mark_ms: i64 =
        sqlx::query_scalar("SELECT mark_ms FROM id_worker").fetch_one(&mut takeover).await.unwrap();
    assert_eq!(mark_ms, 0);
}

/// A batch that follows another is written while that one waits, and committed after it, or not at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_written_behind_the_one_that_it_follows_and_shares_its_fate() {
    for is_lost in [false, true] {
        let b = Bench::postgres().await;
        let (a, s) = (owner("a"), signer("s"));
        let token = b.acquired(&a, &s, LONG_MS).await;
        let mut bar = bar(&b, &s, 0).await;
        let fate = Fate::default();
        let first =
            sends(&b, batch(&s, &a, token, vec![new_grant(0, LONG_MS)]), Link::new(fate.clone(), None));
        until_waiting(&b, 1).await;
        let link = Link::new(Fate::default(), Some(fate));
        let second = sends(&b, batch(&s, &a, token, vec![new_grant(1, LONG_MS)]), link);
        let observer = tokio::sync::Mutex::new(session(&b).await);
        eventually("the second is written", async || is_written_behind(&mut *observer.lock().await).await)
            .await;
        assert_eq!(b.last(&s).await, None, "nobody sees it yet");
        let takeover = acquires(&b, &s, &a);
        until_waiting(&b, 2).await;
        sqlx::query(if is_lost { "COMMIT" } else { "ROLLBACK" }).execute(&mut bar).await.unwrap();
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        takeover.await.unwrap();
        if is_lost {
            // It is looked at again what stands there, and the takeover may have come before that.
            let is_refused = matches!(first, Verdict::Diverged | Verdict::Fenced);
            assert!(is_refused && second == Verdict::Undone, "{first:?} {second:?}");
            assert_eq!(b.last(&s).await, Some(0), "the bar's own");
        } else {
            let is_committed = |verdict| matches!(verdict, Verdict::Committed { .. });
            assert!(is_committed(first) && is_committed(second), "{first:?} {second:?}");
            assert_eq!(b.last(&s).await, Some(1));
        }
    }
}

/// The server ends a transaction that is idle for long. What it had written is written again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_was_written_behind_one_that_takes_long_is_written_again() {
    let b = Bench::postgres().await;
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    let mut bar = bar(&b, &s, 0).await;
    let fates = [Fate::default(), Fate::default()];
    let links = [Link::new(fates[0].clone(), None), Link::new(fates[1].clone(), Some(fates[0].clone()))];
    let mut sent = Vec::new();
    for (number, link) in (0..).zip(links) {
        sent.push(sends(&b, batch(&s, &a, token, vec![new_grant(number, LONG_MS)]), link));
        until_waiting(&b, 1).await;
    }
    let observer = tokio::sync::Mutex::new(session(&b).await);
    eventually("it is written", async || is_written_behind(&mut *observer.lock().await).await).await;
    eventually("it is ended", async || !is_written_behind(&mut *observer.lock().await).await).await;
    sqlx::query("ROLLBACK").execute(&mut bar).await.unwrap();
    for verdict in sent {
        let verdict = verdict.await.unwrap();
        assert!(matches!(verdict, Verdict::Committed { .. }), "{verdict:?}");
    }
    assert_eq!(b.last(&s).await, Some(1));
}

/// Whether a session of the ledger has written and waits to be told whether to commit.
async fn is_written_behind(observer: &mut PgConnection) -> bool {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
         AND state = 'idle in transaction' AND application_name = 'fencepost trains' AND query LIKE '%granted%')",
    )
    .fetch_one(observer)
    .await
    .unwrap()
}

/// The names of all sessions that write.
const WRITERS: [&str; 4] = ["fencepost", "fencepost sequences", "fencepost trains", "fencepost vital"];

/// Each session that writes into these tables notes its limits, in milliseconds, and what its commits wait for.
const NOTE_LIMITS: &str = "
    CREATE TABLE limits_seen (session text, idle_ms bigint, lock_ms bigint, statement_ms bigint, commits text);
    CREATE FUNCTION limit_ms(which text) RETURNS bigint LANGUAGE sql AS $$
        SELECT setting::bigint FROM pg_settings WHERE name = which AND unit = 'ms'
    $$;
    CREATE FUNCTION note_limits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO limits_seen VALUES (current_setting('application_name'), limit_ms('idle_in_transaction_session_timeout'),
                                  limit_ms('lock_timeout'), limit_ms('statement_timeout'),
                                  current_setting('synchronous_commit'));
        RETURN NULL;
    END $$;
    CREATE TRIGGER note_limits AFTER INSERT OR UPDATE ON lease EXECUTE FUNCTION note_limits();
    CREATE TRIGGER note_limits AFTER INSERT OR UPDATE ON signer_nonce_allocation EXECUTE FUNCTION note_limits();
    CREATE TRIGGER note_limits AFTER INSERT OR UPDATE ON id_sequence EXECUTE FUNCTION note_limits();";

/// Has each session of the ledger that writes do so, and note itself; answers a session beside them.
async fn noted(b: &Bench) -> PgConnection {
    let mut hand = session(b).await;
    sqlx::raw_sql(NOTE_LIMITS).execute(&mut hand).await.unwrap();
    let (a, s, q) = (owner("a-1"), signer("s"), SequenceName::parse("q").unwrap());
    let token = b.acquired(&a, &s, LONG_MS).await;
    b.commits(batch(&s, &a, token, vec![new_grant(0, LONG_MS)])).await;
    b.ledger.acquire(&Resource::instance(&a), &a, LONG_MS).await.unwrap();
    b.ledger.put_sequence(&q, &SequenceChange::default(), &by()).await.unwrap();
    b.ledger.grant_sequence(&q, 1).await.unwrap();
    hand
}

/// A client that stands still in its transaction, behind the fence, ends nothing itself. The server ends it within a second, and
/// before a takeover gives up that waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_ends_what_hangs_in_each_session_that_writes() {
    let b = Bench::postgres().await;
    let mut hand = noted(&b).await;
    let limits = "SELECT DISTINCT session, idle_ms, lock_ms, statement_ms FROM limits_seen ORDER BY 1";
    let seen: Vec<(String, i64, i64, i64)> = sqlx::query_as(limits).fetch_all(&mut hand).await.unwrap();
    let sessions: Vec<_> = seen.iter().map(|(session, ..)| session.as_str()).collect();
    assert_eq!(sessions, WRITERS);
    for (session, idle_ms, lock_ms, statement_ms) in seen {
        assert!((1..1_000).contains(&idle_ms), "{session}: {idle_ms} ms");
        assert!((idle_ms + 1..=10_000).contains(&lock_ms), "{session}: {lock_ms} ms");
        assert_eq!(u64::try_from(statement_ms), Ok(b.options.call_timeout_ms), "{session}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_on_the_disk_when_it_is_answered_whatever_sessions_begin_with() {
    let mut b = Bench::postgres().await;
    let off = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$";
    sqlx::raw_sql(off).execute(&mut session(&b).await).await.unwrap();
    // All of its sessions begin now.
    b.ledger = ledger::open(&b.options).await.unwrap();
    let mut hand = noted(&b).await;
    let commits = "SELECT DISTINCT session, commits FROM limits_seen ORDER BY 1";
    let seen: Vec<(String, String)> = sqlx::query_as(commits).fetch_all(&mut hand).await.unwrap();
    assert_eq!(seen, WRITERS.map(|session| (session.to_owned(), "on".to_owned())));
    let began_with: String =
        sqlx::query_scalar("SHOW synchronous_commit").fetch_one(&mut hand).await.unwrap();
    assert_eq!(began_with, "off");
}

/// A connection dies, its note of progress is carried out late, and the same owner takes the operation anew: it waits for
/// the note, and its reload has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_takes_its_bulk_operation_anew_waits_for_its_own_late_note() {
    let b = Bench::postgres().await;
    let made = bulks::made(&b, &bulks::new(&b, 1, BulkAction::Cancel, JobFilter::default()).await).await;
    let noted = b.ledger.begin_page(&made, &[job(0), job(1)]).await.unwrap().unwrap();
    let open = b.ledger.open_bulks().await.unwrap().remove(0);
    let mut late = session(&b).await;
    sqlx::query("BEGIN").execute(&mut late).await.unwrap();
    sqlx::query("UPDATE bulk SET page = NULL, done = done + 2 WHERE token = 1")
        .execute(&mut late)
        .await
        .unwrap();
    let (ledger, me) = (b.ledger.clone(), noted.owner.clone());
    let taking = tokio::spawn(async move { ledger.take_bulk(&open, &me).await });
    until_waiting(&b, 1).await;
    sqlx::query("COMMIT").execute(&mut late).await.unwrap();
    let taken = taking.await.unwrap().unwrap().unwrap();
    assert_eq!((taken.token, taken.done, taken.page.len()), (2, 2, 0));
    let step = BulkStep { done: 2, ..BulkStep::default() };
    assert_eq!(b.ledger.note_progress(&noted, job(1), &step).await.unwrap(), None, "one that comes later");
}

/// A dead job is retried while a bulk operation on dead jobs is about to delete it: the retry came first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_dead_no_more_once_it_is_locked_is_not_deleted() {
    let b = Bench::postgres().await;
    bulks::stock(&b).await;
    let dead = JobFilter { dead: Some(true), ..JobFilter::default() };
    let bulk = bulks::made(&b, &bulks::new(&b, 1, BulkAction::Delete, dead).await).await;
    let mut retry = session(&b).await;
    sqlx::query("BEGIN").execute(&mut retry).await.unwrap();
    sqlx::query("UPDATE job_finished SET retried_as = gen_random_uuid() WHERE id = $1")
        .bind(sqlx::types::Uuid::from_u128(job(1).as_u128()))
        .execute(&mut retry)
        .await
        .unwrap();
    let ledger = b.ledger.clone();
    let deleting =
        tokio::spawn(async move { ledger.remove_page(&bulk, &[job(0), job(1), job(2)], job(2)).await });
    until_waiting(&b, 1).await;
    sqlx::query("COMMIT").execute(&mut retry).await.unwrap();
    let noted = deleting.await.unwrap().unwrap().unwrap();
    assert_eq!((noted.done, noted.skipped), (2, 1));
    assert!(b.found(job(1)).await.finished.is_some_and(|finished| finished.retried_as.is_some()));
}

/// A segment and a sequence are put while a change of another instance is under way: what counts is what that leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_put_is_compared_with_the_row_as_another_change_leaves_it() {
    let b = Bench::postgres().await;
    let (tag, name) = (SegmentTag::parse("t").unwrap(), SequenceName::parse("s").unwrap());
    let start = SegmentChange { start: Some(500), ..SegmentChange::default() };
    b.ledger.put_segment(&tag, &start, &by()).await.unwrap();
    b.ledger.put_sequence(&name, &SequenceChange::default(), &by()).await.unwrap();
    let mut other = session(&b).await;
    for statement in
        ["BEGIN", "UPDATE id_segment SET start = 9000, next = 9000", "UPDATE id_sequence SET increment = 15"]
    {
        sqlx::query(statement).execute(&mut other).await.unwrap();
    }
    let ledger = b.ledger.clone();
    let as_it_was = tokio::spawn(async move { ledger.put_segment(&tag, &start, &by()).await });
    let ledger = b.ledger.clone();
    let changed = tokio::spawn(async move {
        let change = SequenceChange { start: None, increment: Some(20) };
        ledger.put_sequence(&name, &change, &by()).await
    });
    until_waiting(&b, 2).await;
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    let as_it_was = as_it_was.await.unwrap().unwrap();
    assert!(matches!(&as_it_was, Put::StartTaken(record) if record.next == 9_000), "{as_it_was:?}");
    let changed = changed.await.unwrap().unwrap();
    assert!(matches!(&changed, Put::Done(record) if record.increment == 20), "{changed:?}");
    let noted = b.ledger.audits(&AuditFilter { limit: 1, ..AuditFilter::default() }).await.unwrap().remove(0);
    assert_eq!(
        (noted.before.as_deref(), noted.after.as_deref()),
        (Some("start=1 increment=15"), Some("start=1 increment=20"))
    );
}
