//! The owner of a session over a real SQLite ledger.

use std::sync::atomic::Ordering as Atomic;
use std::time::Duration;

use actors::jobs::{Accepted, Notification, Refusal, Submission, Topic, Watch};
use domain::job::{Assignment, Attempt, Change, Due, Ended, NewJob, Priority, Requirements, Spec, State};
use domain::limits::SESSION_IDLE_MS_MIN;
use domain::session::{self, Ordering};
use domain::{ClientRef, IdempotencyKey, InstanceId, JobId, LaneId, NodeId, SessionId};
use futures_util::FutureExt;
use futures_util::future::join_all;
use ledger::{Acquisition, JobBatch, JobKey, JobWrite, KeyScope, Lane, Lease};

use crate::lanes::{Lanes, open, open_among_others, open_with};
use crate::session_reads::SessionRead;
use crate::until;

async fn session(lanes: &Lanes, ordering: Ordering) -> SessionId {
    session_with(lanes, ordering, 60_000).await
}

async fn session_with(lanes: &Lanes, ordering: Ordering, idle_ms: u64) -> SessionId {
    let needs = Requirements::default();
    let spec = session::Spec { tenant: None, needs, ordering, idle_ms };
    lanes.jobs.open_session(&spec, None, None).await.unwrap().id
}

/// A job of a client that calls it so.
fn named(session: &SessionId, name: &str) -> Submission {
    let key = JobKey {
        scope: KeyScope {
            scope: format!("session {session} someone"),
            key: IdempotencyKey::parse(name).unwrap(),
        },
        body_hash: [1; 32],
    };
    Submission {
        spec: Spec { session: Some(session.clone()), ..Spec::new("1") },
        client_ref: Some(ClientRef::parse(name).unwrap()),
        due: Due::Now,
        key: Some(key),
        retry: None,
    }
}

async fn submit(lanes: &Lanes, session: &SessionId, names: &[&str]) -> Vec<Result<Accepted, Refusal>> {
    let new = names.iter().map(|name| named(session, name)).collect();
    lanes.jobs.submit_in(session, new, None).await.unwrap()
}

/// What the repetition of a submission is answered.
fn repeated(first: &Accepted) -> Accepted {
    Accepted { is_repeated: true, ..first.clone() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repetition_is_not_refused_while_nobody_can_tell_whether_its_job_was_accepted() {
    let lanes = open().await;
    let id = session(&lanes, Ordering::Strict).await;
    let first = submit(&lanes, &id, &["c1"]).await.remove(0).unwrap();
    lanes.jobs.close_session(&id).await.unwrap();
    lanes.plan.job_keys_are_away.store(true, Atomic::SeqCst);
    assert_eq!(submit(&lanes, &id, &["c1"]).await, [Err(Refusal::LedgerUnavailable)]);
    lanes.plan.job_keys_are_away.store(false, Atomic::SeqCst);
    let again = Ok(repeated(&first));
    assert_eq!(submit(&lanes, &id, &["c1", "c2"]).await, [again, Err(Refusal::SessionClosed)]);
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watches_of_a_session_hear_that_it_is_closed() {
    let lanes = open().await;
    let id = session(&lanes, Ordering::Strict).await;
    let mut watch = lanes.jobs.watch(Topic::Lane(LaneId::session(&id))).unwrap();
    lanes.jobs.close_session(&id).await.unwrap();
    // It was told before it was answered.
    assert!(matches!(watch.next().now_or_never(), Some(Notification::Missed)));
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watches_of_a_session_hear_that_it_is_closed_where_the_answer_to_that_was_lost() {
    let lanes = open().await;
    let id = session(&lanes, Ordering::Strict).await;
    let mut watch = lanes.jobs.watch(Topic::Lane(LaneId::session(&id))).unwrap();
    lanes.plan.session_reads.next_close_is_unheard.store(true, Atomic::SeqCst);
    assert_eq!(lanes.jobs.close_session(&id).await, Err(Refusal::LedgerUnavailable));
    hears_of_a_close(&mut watch).await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watches_of_a_session_hear_that_it_is_closed_where_that_is_written_after_its_owner_gave_it_up() {
    let lanes = open().await;
    let id = session(&lanes, Ordering::Strict).await;
    // Its owner begins.
    submit(&lanes, &id, &["c1"]).await.remove(0).unwrap();
    let mut watch = lanes.jobs.watch(Topic::Lane(LaneId::session(&id))).unwrap();
    lanes.plan.holds.next_acquire_is_gated.store(true, Atomic::SeqCst);
    lanes.plan.session_reads.next_close_is_lost.store(true, Atomic::SeqCst);
    assert_eq!(lanes.jobs.close_session(&id).await, Err(Refusal::LedgerUnavailable));
    let told = watch.next().now_or_never();
    assert!(!matches!(told, Some(Notification::Missed)), "they would find it open");
    let Lease { owner, token, .. } = lease_of(&lanes, &id).await;
    let lane = Lane { id: LaneId::session(&id), owner: owner.unwrap(), token };
    lanes.ledger.close_session(&lane).await.unwrap().unwrap();
    lanes.plan.gate.notify_one();
    hears_of_a_close(&mut watch).await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_found_closed_is_answered_by_what_a_standby_has() {
    let lanes = open().await;
    let id = session(&lanes, Ordering::Strict).await;
    // The commit of the first close has waited for a standby.
    for settled in [0, 1] {
        lanes.jobs.close_session(&id).await.unwrap();
        assert_eq!(lanes.plan.session_reads.settled.load(Atomic::SeqCst), settled);
    }
    lanes.jobs.stop().await;
}

async fn hears_of_a_close(watch: &mut Watch) {
    until("the watch reads the ledger", async || {
        matches!(watch.next().now_or_never(), Some(Notification::Missed))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_session_without_order_a_repetition_leaves_no_gap_under_this_owner_or_the_next() {
    let lanes = open().await;
    let id = session(&lanes, Ordering::Free).await;
    let all =
        |answers: Vec<Result<Accepted, Refusal>>| answers.into_iter().map(Result::unwrap).collect::<Vec<_>>();
    let seqs = |accepted: &[Accepted]| accepted.iter().map(|one| one.seq.unwrap()).collect::<Vec<_>>();
    let first = all(submit(&lanes, &id, &["c1", "c2"]).await);
    assert_eq!(seqs(&first), [1, 2]);
    let again = all(submit(&lanes, &id, &["c1", "c2", "c3", "c2"]).await);
    let first: Vec<_> = first.iter().map(repeated).collect();
    assert_eq!((seqs(&again), &again[..2]), (vec![1, 2, 3, 2], &first[..]));
    assert!(!again[2].is_repeated);
    let mut other = named(&id, "c1");
    other.key.as_mut().unwrap().body_hash = [2; 32];
    assert_eq!(lanes.jobs.submit_in(&id, vec![other], None).await.unwrap(), [Err(Refusal::KeyReused)]);
    // Another caller's key is another one, whatever it calls its job.
    let mut other = named(&id, "c1");
    other.key.as_mut().unwrap().scope.scope = format!("session {id} other");
    assert_eq!(seqs(&all(lanes.jobs.submit_in(&id, vec![other], None).await.unwrap())), [4]);

    lanes.plan.next_jobs_panic();
    assert_eq!(submit(&lanes, &id, &["c4"]).await, [Err(Refusal::Internal)]);
    // Another owner begins within moments.
    let next = loop {
        let answers = submit(&lanes, &id, &["c1", "c2", "c3", "c4"]).await;
        if answers.iter().all(Result::is_ok) {
            break all(answers);
        }
        assert!(answers.iter().all(|answer| matches!(answer, Err(Refusal::Internal | Refusal::Fenced))));
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let again: Vec<_> = again.iter().map(repeated).collect();
    assert_eq!((seqs(&next), &next[..3]), (vec![1, 2, 3, 5], &again[..3]));

    // While nobody can tell, nothing is accepted that may be a repetition.
    lanes.plan.job_keys_are_away.store(true, Atomic::SeqCst);
    let answers = submit(&lanes, &id, &["c1", "c5"]).await;
    assert_eq!(
        (answers[0].clone(), answers[1].as_ref().unwrap().seq),
        (Err(Refusal::LedgerUnavailable), Some(6))
    );
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_used_a_moment_ago_stays_open_before_anybody_has_seen_the_clocks_jump_forward() {
    let lanes = open().await;
    let id = session(&lanes, Ordering::Strict).await;
    lanes.clock.look(&lanes.ledger).await.unwrap();
    lanes.plan.ahead_ms.store(600_000, Atomic::Relaxed);
    // The session's owner begins, and has nothing to do after this.
    let mut urgent = named(&id, "c1");
    urgent.spec.priority = Priority::new(1).unwrap();
    assert_eq!(lanes.jobs.submit_in(&id, vec![urgent], None).await.unwrap(), [Err(Refusal::StrictPriority)]);
    let accepted = submit(&lanes, &id, &["c2"]).await.remove(0);
    assert!(accepted.is_ok(), "{accepted:?}");
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_a_release_costs_the_leases_of_that_release_alone() {
    let lanes = open().await;
    let (first, second) = (session(&lanes, Ordering::Strict).await, session(&lanes, Ordering::Strict).await);
    let panics = &lanes.plan.holds.next_release_panics;
    panics.store(true, Atomic::SeqCst);
    lanes.jobs.close_session(&first).await.unwrap();
    until("a release panics", async || !panics.load(Atomic::SeqCst)).await;
    lanes.jobs.close_session(&second).await.unwrap();
    until("the other one is made", async || lease_of(&lanes, &second).await.owner.is_none()).await;
    lanes.jobs.stop().await;
}

/// Another instance takes a session, for so long; its lease.
async fn take_elsewhere(lanes: &Lanes, session: &SessionId, lease_ms: u64) -> Lease {
    let (other, lane) = (InstanceId::parse("other-1").unwrap(), LaneId::session(session));
    let taken = lanes.ledger.acquire(lane.lease(), &other, lease_ms).await.unwrap();
    assert!(matches!(taken, Acquisition::Acquired { .. }), "{taken:?}");
    lease_of(lanes, session).await
}

async fn lease_of(lanes: &Lanes, session: &SessionId) -> Lease {
    lanes.ledger.lease(LaneId::session(session).lease()).await.unwrap().unwrap()
}

async fn release(lanes: &Lanes, lease: &Lease) {
    lanes.ledger.release(&lease.resource, lease.owner.as_ref().unwrap(), lease.token).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_another_that_ran_out_is_left_alone_for_one_lease_after_joining() {
    let lanes = open_among_others(|config| config.request_timeout = Duration::from_secs(2)).await;
    let id = session(&lanes, Ordering::Strict).await;
    let taken = take_elsewhere(&lanes, &id, 1).await;
    until("it has run out", async || !lease_of(&lanes, &id).await.is_live()).await;
    let refused = lanes.jobs.submit_in(&id, vec![named(&id, "c1")], None).await;
    assert!(matches!(refused, Err(Refusal::NoOwner { .. })), "{refused:?}");
    let left = lease_of(&lanes, &id).await;
    assert_eq!((left.owner.as_ref(), left.token), (taken.owner.as_ref(), taken.token));
    // What is given back is taken at once.
    release(&lanes, &left).await;
    submit(&lanes, &id, &["c1"]).await.remove(0).unwrap();
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_wait_for_a_sessions_lease_are_refused_in_time_and_none_of_them_asks_for_it_later() {
    let lanes = open_with(|config| config.request_timeout = Duration::from_secs(2)).await;
    let (id, other) = (session(&lanes, Ordering::Strict).await, session(&lanes, Ordering::Strict).await);
    let holds = &lanes.plan.holds;
    *holds.acquires_fail_after.lock() = Some(Duration::from_secs(1));
    let asked =
        (0..10).map(|number| lanes.jobs.submit_in(&id, vec![named(&id, &format!("c{number}"))], None));
    let answers = join_all(asked).await;
    let is_refused = |answer: &Result<_, Refusal>| matches!(answer, Err(Refusal::LedgerUnavailable));
    assert!(answers.iter().all(is_refused), "{answers:?}");
    let tried = holds.failed_acquires();
    assert!((1..10).contains(&tried), "{tried} callers asked for it, one after the other");
    // As long as three tries more would take. The last one may have begun meanwhile.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let later = holds.failed_acquires();
    assert!(later <= tried + 1, "{later} callers asked for it, {tried} of them in time");
    *holds.acquires_fail_after.lock() = None;
    submit(&lanes, &other, &["c1"]).await.remove(0).unwrap();
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_of_a_sessions_lease_that_hangs_is_asked_for_again() {
    let lanes = open_with(|config| config.lease = Duration::from_secs(6)).await;
    let id = session(&lanes, Ordering::Strict).await;
    submit(&lanes, &id, &["c1"]).await.remove(0).unwrap();
    let before = lease_of(&lanes, &id).await;
    // One that is never answered.
    lanes.plan.renewals_to_gate.store(1, Atomic::SeqCst);
    until("it was sent", async || lanes.plan.gated_renewals.load(Atomic::SeqCst) == 1).await;
    let hung = lease_of(&lanes, &id).await.renewed_at;
    until("it is renewed", async || lease_of(&lanes, &id).await.renewed_at > hung).await;
    assert_eq!(lease_of(&lanes, &id).await.token, before.token, "it was not acquired anew");
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_without_writes_finds_out_that_its_lease_is_lost_and_the_session_is_served_again() {
    let lanes = open_with(|config| config.lease = Duration::from_secs(3)).await;
    let id = session(&lanes, Ordering::Strict).await;
    // It waits, since there is no node.
    submit(&lanes, &id, &["c1"]).await.remove(0).unwrap();
    // As an acquire that was given up, and is carried out after its successor.
    let late = lanes.ledger.acquire(LaneId::session(&id).lease(), lanes.jobs.me(), 60_000).await.unwrap();
    let Acquisition::Acquired { token, .. } = late else { panic!("{late:?}") };
    until("it has a token above", async || lease_of(&lanes, &id).await.token > token).await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_jobs_are_held_under_a_lease_that_may_have_run_out() {
    let lease = Duration::from_secs(1);
    let lanes = open_with(|config| config.lease = lease).await;
    let id = session(&lanes, Ordering::Strict).await;
    let before = take_elsewhere(&lanes, &id, 60_000).await;
    release(&lanes, &before).await;
    // Its new owner hears of its lease when that is over, and no renewal is answered.
    lanes.plan.renewals_to_gate.store(usize::MAX, Atomic::SeqCst);
    *lanes.plan.holds.next_acquire_is_late.lock() = Some(lease);
    // Whether the job comes in time does not matter.
    let _ = lanes.jobs.submit_in(&id, vec![named(&id, "c1")], None).await;
    until("they are held", async || !lanes.plan.holds.tokens().is_empty()).await;
    let late = before.token.get() + 1;
    let tokens = lanes.plan.holds.tokens();
    assert!(tokens.iter().all(|token| token.get() > late), "{tokens:?}");
    lanes.jobs.stop().await;
}

const FIRST: Attempt = Attempt::new(1);

/// A session of another instance, whose two jobs have been at a node for longer than the session may be idle.
struct Elsewhere {
    session: SessionId,
    lease: Lease,
    jobs: [JobId; 2],
    node: NodeId,
}

impl Elsewhere {
    async fn begin(lanes: &Lanes) -> Self {
        let session = session_with(lanes, Ordering::Results, SESSION_IDLE_MS_MIN).await;
        let lease = take_elsewhere(lanes, &session, 60_000).await;
        let (jobs, node) = ([1, 2].map(JobId::from_u128), NodeId::parse("n").unwrap());
        let owner = lease.owner.clone().unwrap();
        let new = |seq, id| NewJob {
            id,
            spec: named(&session, "c1").spec,
            seq: Some(seq),
            client_ref: None,
            due: Due::Now,
            retry: None,
            placed: Some(Assignment { node: node.clone(), holder: owner.clone() }),
        };
        let new = [new(1, jobs[0]), new(2, jobs[1])].map(|new| Change::Submit(Box::new(new)));
        let lane = Lane { id: LaneId::session(&session), owner: owner.clone(), token: lease.token };
        lanes.ledger.commit_jobs(JobBatch { lane: Some(lane), ..written(new) }).await.unwrap();
        until("it looks idle", async || {
            let found = lanes.ledger.session(&session).await.unwrap().unwrap();
            found.idle_for_ms >= SESSION_IDLE_MS_MIN
        })
        .await;
        Self { session, lease, jobs, node }
    }

    /// This instance takes the session, and this is written behind one of its owner's reads.
    async fn is_taken(&self, lanes: &Lanes, behind: SessionRead, batch: JobBatch) {
        lanes.plan.session_reads.then(behind, batch);
        release(lanes, &self.lease).await;
        until("its owner reads it", async || lanes.plan.session_reads.has_written()).await;
    }

    /// The first owner closes it when nothing has happened since the end of its jobs for as long as it may be idle.
    async fn is_closed(&self, lanes: &Lanes) {
        let closed_at = async || lanes.ledger.session(&self.session).await.unwrap().unwrap().closed_at;
        until("it is closed", async || closed_at().await.is_some()).await;
        let token = lease_of(lanes, &self.session).await.token.get();
        assert_eq!(token, self.lease.token.get() + 1, "no later owner has closed it");
        for job in self.jobs {
            let ended = lanes.ledger.job(job).await.unwrap().unwrap().finished.unwrap();
            let idle_for_ms = closed_at().await.unwrap().ms_since(ended.finished_at);
            assert!(idle_for_ms > SESSION_IDLE_MS_MIN / 2, "closed {idle_for_ms} ms after the end of {job}");
        }
    }

    fn completed(&self, job: JobId) -> Change {
        Change::Complete { job, attempt: FIRST, node: self.node.clone(), output: "7".to_owned() }
    }

    /// It is to be tried again.
    fn failed(&self, job: JobId) -> Change {
        Change::Fail {
            job,
            attempt: FIRST,
            node: self.node.clone(),
            ended: Ended::Failed,
            error: "why".to_owned(),
            due_in_ms: Some(0),
            dead: false,
        }
    }
}

/// What the instance writes that has the node.
fn written<const N: usize>(changes: [Change; N]) -> JobBatch {
    JobBatch { lane: None, writes: changes.map(|change| JobWrite { change, key: None }).into() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_last_jobs_end_while_its_owner_begins_is_closed_when_it_was_idle_for_its_time() {
    for behind in [SessionRead::Counts, SessionRead::Record] {
        let lanes = open().await;
        let elsewhere = Elsewhere::begin(&lanes).await;
        let completed = elsewhere.jobs.map(|job| elsewhere.completed(job));
        elsewhere.is_taken(&lanes, behind, written(completed)).await;
        elsewhere.is_closed(&lanes).await;
        lanes.jobs.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_attempt_ends_while_its_sessions_owner_begins_is_counted_once_or_not_any_more() {
    for (behind, is_completed) in
        [(SessionRead::Counts, true), (SessionRead::InFlight, true), (SessionRead::InFlight, false)]
    {
        let lanes = open().await;
        let elsewhere = Elsewhere::begin(&lanes).await;
        let first = elsewhere.jobs[0];
        let change = if is_completed { elsewhere.completed(first) } else { elsewhere.failed(first) };
        elsewhere.is_taken(&lanes, behind, written([change])).await;
        for job in elsewhere.jobs {
            assert_eq!(lanes.jobs.cancel(job).await.unwrap().state, State::Finished);
        }
        elsewhere.is_closed(&lanes).await;
        lanes.jobs.stop().await;
    }
}
