//! What the cases about jobs share: lanes, jobs, and short forms of what is done to them.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use domain::job::{Assignment, Attempt, Change, Due, Ended, Event, NewJob, Outcome, Spec};
use domain::{InstanceId, JobId, LaneId, NodeId, SessionId};
use ledger::{Acquisition, Error, JobBatch, JobKey, JobRecord, JobVerdict, JobWrite, JobsVerdict, Lane};

use crate::bench::{Bench, LONG_MS, owner};

/// How many attempts a plain job has.
pub const ATTEMPTS: u32 = 5;
const DAY_MS: u64 = 86_400_000;

/// The day of the first job, in days since 1970: a test that goes on past midnight has its jobs of one day.
static TODAY: LazyLock<u64> = LazyLock::new(|| {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs() / (DAY_MS / 1_000)
});

/// The job number `n` of the test, made today.
pub fn job(n: u64) -> JobId {
    job_made(n, 0)
}

/// One made so many days ago.
pub fn job_made(n: u64, days_ago: u64) -> JobId {
    let day = *TODAY - days_ago;
    let first = JobId::first_at_ms(day * DAY_MS + DAY_MS / 2);
    JobId::from_u128(first.as_u128() | 7 << 76 | u128::from(n))
}

pub fn session_id(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

pub fn session(name: &str) -> LaneId {
    LaneId::session(&session_id(name))
}

/// The first lane of an instance.
pub fn instance_lane(id: &InstanceId) -> LaneId {
    LaneId::instance(id, 0)
}

pub fn node(name: &str) -> NodeId {
    NodeId::parse(name).unwrap()
}

pub fn placed() -> Assignment {
    Assignment { node: node("n"), holder: owner("holder") }
}

pub fn spec(payload: &str) -> Spec {
    Spec { timeout_ms: 1_000, max_attempts: ATTEMPTS, ..Spec::new(payload) }
}

/// A job that is due at once and has no wishes.
pub fn plain(id: JobId) -> NewJob {
    NewJob { id, spec: spec("{}"), seq: None, client_ref: None, due: Due::Now, retry: None, placed: None }
}

/// The job number `n` of the test, at that place of the session.
pub fn in_session(name: &str, n: u64) -> NewJob {
    let mut new = NewJob { seq: Some(n), ..plain(job(n)) };
    new.spec.session = Some(session_id(name));
    new
}

pub fn submit(new: NewJob) -> Change {
    Change::Submit(Box::new(new))
}

/// A job whose first attempt is with node n.
pub fn submit_placed(id: JobId) -> Change {
    submit(NewJob { placed: Some(placed()), ..plain(id) })
}

pub fn dispatch(job: JobId, attempt: u32) -> Change {
    Change::Dispatch { job, attempt: Attempt::new(attempt), placed: placed(), behind: None }
}

pub fn run(job: JobId, attempt: u32) -> Change {
    Change::Run { job, attempt: Attempt::new(attempt), node: node("n") }
}

pub fn complete(job: JobId, attempt: u32, output: &str) -> Change {
    Change::Complete { job, attempt: Attempt::new(attempt), node: node("n"), output: output.to_owned() }
}

pub fn release(job: JobId, attempt: u32) -> Change {
    Change::Release { job, attempt: Attempt::new(attempt) }
}

pub fn cancel(job: JobId) -> Change {
    let (outcome, reason) = (Outcome::Cancelled, String::new());
    Change::End { job, outcome, dead: false, attempt: None, reason }
}

/// The forms in which an event may be written: where there are two, the one that leads on first, then the end.
pub fn forms(job: JobId, event: Event, next: Attempt) -> Vec<Change> {
    let reason = || "for a reason".to_owned();
    let fail = |attempt, due_in_ms| {
        let (node, ended, error) = (node("n"), Ended::Failed, reason());
        Change::Fail { job, attempt, node, ended, error, due_in_ms, dead: due_in_ms.is_none() }
    };
    match event {
        Event::Place => vec![Change::Dispatch { job, attempt: next, placed: placed(), behind: None }],
        Event::Acknowledged(attempt) => vec![Change::Run { job, attempt, node: node("n") }],
        Event::Succeeded(attempt) => vec![complete(job, attempt.get(), "1")],
        Event::Failed { attempt, retryable: true } => vec![fail(attempt, Some(0)), fail(attempt, None)],
        Event::Failed { attempt, retryable: false } => vec![fail(attempt, None)],
        Event::Revoked { attempt, why } => {
            let end = Change::End {
                job,
                outcome: Outcome::TimedOut,
                dead: true,
                attempt: Some((attempt, why)),
                reason: reason(),
            };
            vec![Change::Revoke { job, attempt, why, reason: reason(), due_in_ms: 0 }, end]
        }
        Event::Cancelled => vec![cancel(job)],
    }
}

pub fn write(change: Change) -> JobWrite {
    JobWrite { change, key: None }
}

pub fn with_key(change: Change, key: &JobKey) -> JobWrite {
    JobWrite { change, key: Some(key.clone()) }
}

pub fn of_lane(lane: &Lane, changes: impl IntoIterator<Item = Change>) -> JobBatch {
    JobBatch { lane: Some(lane.clone()), writes: changes.into_iter().map(write).collect() }
}

/// What a holder of sockets says.
pub fn said(changes: impl IntoIterator<Item = Change>) -> JobBatch {
    JobBatch { lane: None, writes: changes.into_iter().map(write).collect() }
}

impl Bench {
    /// The lease of a lane, which is free at once.
    pub async fn lane(&self, id: LaneId, owner: &InstanceId) -> Lane {
        match self.ledger.acquire(id.lease(), owner, LONG_MS * 10).await.unwrap() {
            Acquisition::Acquired { token, .. } => Lane { id, owner: owner.clone(), token },
            held @ Acquisition::Held { .. } => panic!("{owner} was refused: {held:?}"),
        }
    }

    /// What became of each write of a batch that is not fenced.
    pub async fn verdicts(&self, batch: JobBatch) -> Vec<JobVerdict> {
        match self.ledger.commit_jobs(batch).await.unwrap() {
            JobsVerdict::Written { jobs, .. } => jobs,
            other => panic!("{other:?}"),
        }
    }

    /// All of a batch must be written.
    pub async fn does(&self, batch: JobBatch) {
        let verdicts = self.verdicts(batch).await;
        assert!(verdicts.iter().all(|verdict| *verdict == JobVerdict::Written), "{verdicts:?}");
    }

    /// A batch must be refused before it boards.
    pub async fn is_refused(&self, what: &str, batch: JobBatch) {
        let answer = self.ledger.commit_jobs(batch).await;
        assert!(matches!(answer, Err(Error::Refused { .. })), "{what}: {answer:?}");
    }

    pub async fn found(&self, id: JobId) -> JobRecord {
        self.ledger.job(id).await.unwrap().unwrap()
    }
}
