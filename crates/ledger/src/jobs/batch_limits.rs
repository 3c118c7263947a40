//! The limits of a batch of jobs. As with nonces, a batch that is wrong in itself is refused before it is sent.

use std::collections::HashSet;

use domain::job::{Backoff, Change, Due, NewJob, OnRecovery};
use domain::limits::{
    BACKOFF_MS_MAX, DELAY_MS_MAX, JOB_LABELS_MAX, JOB_TIMEOUT_MS_MAX, JOB_TIMEOUT_MS_MIN, MAX_ATTEMPTS_MAX,
    PAYLOAD_BYTES_MAX,
};
use domain::{JobId, LaneId};

use super::{HELD_DUE_MICROS, JobBatch, JobWrite, JobsVerdict, Lane};
use crate::batch_limits::{BATCH_ROWS_MAX, check_key, refuse};
use crate::train::{CommitBatch, FenceClaim};
use crate::{KeyScope, Result};

/// What only one batch of jobs on a train may have.
#[derive(PartialEq, Eq, Hash)]
pub(crate) enum JobClaim {
    Lane(LaneId),
    Job(JobId),
    Key(KeyScope),
}

/// What the writes of a batch before one have claimed.
#[derive(Default)]
struct Claimed<'a> {
    jobs: HashSet<JobId>,
    keys: HashSet<&'a KeyScope>,
}

impl CommitBatch for JobBatch {
    type Verdict = JobsVerdict;
    type Claim = JobClaim;

    const NAME: &'static str = "jobs";
    /// A request's task, the lane, its commit, and a result's task.
    const TURNS_BETWEEN: usize = 4;

    fn check(&self) -> Result<()> {
        if self.rows() > BATCH_ROWS_MAX {
            return refuse(format!(
                "the batch has {} rows; at most {BATCH_ROWS_MAX} are allowed",
                self.rows()
            ));
        }
        let mut before = Claimed::default();
        self.writes.iter().try_for_each(|write| self.check_write(write, &mut before))
    }

    /// Holders have no order: each attempt of a job has one, and says one thing at a time.
    fn line(&self) -> Option<JobClaim> {
        self.lane.as_ref().map(|lane| JobClaim::Lane(lane.id.clone()))
    }

    /// An instance has few lanes, and each fills its commits: each has a committer. Sessions and plans are many, and each
    /// writes little at once: they share the first committer, since a commit costs much the same for one row and for
    /// twenty.
    fn shard(&self, committers: usize) -> Option<usize> {
        self.lane.as_ref().map(|lane| lane.id.number().map_or(0, |number| usize::from(number) % committers))
    }

    fn claims(&self) -> impl Iterator<Item = JobClaim> {
        self.writes.iter().flat_map(|write| {
            let key = write.key.as_ref().map(|key| JobClaim::Key(key.scope.clone()));
            write.change.written_jobs().map(JobClaim::Job).chain(key)
        })
    }

    /// Its lease's row among them.
    fn rows(&self) -> usize {
        1 + self.writes.iter().map(JobWrite::rows).sum::<usize>()
    }

    fn fence_claim(&self) -> Option<FenceClaim<'_>> {
        self.lane.as_ref().map(Lane::fence_claim)
    }
}

impl Lane {
    /// What its batches claim of its lease.
    pub(crate) fn fence_claim(&self) -> FenceClaim<'_> {
        FenceClaim { resource: self.id.lease().clone(), owner: &self.owner, token: self.token }
    }
}

impl JobBatch {
    /// Whether it is wrong in itself: then it is refused before it is sent, and nothing of it is written.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        self.check().is_err()
    }

    /// The places of its writes that are wrong in themselves, or write what a right one before them writes. Without these it may
    /// still have too many rows.
    #[must_use]
    pub fn wrong_writes(&self) -> Vec<usize> {
        let mut before = Claimed::default();
        let writes = self.writes.iter().enumerate();
        let wrong = writes.filter(|&(_, write)| self.check_write(write, &mut before).is_err());
        wrong.map(|(place, _)| place).collect()
    }

    /// Checks a write, and notes what it claims, which no write behind it may.
    fn check_write<'a>(&self, write: &'a JobWrite, before: &mut Claimed<'a>) -> Result<()> {
        if self.lane.is_none() && write.change.is_the_lanes() {
            return refuse(format!(
                "only the owner of its lane may write this of job {}",
                write.change.job()
            ));
        }
        if write.key.is_some() && !matches!(write.change, Change::Submit(_)) {
            return refuse(format!(
                "the change of job {} has an idempotency key; only a submit may have one",
                write.change.job()
            ));
        }
        check_change(&write.change)?;
        for job in write.change.written_jobs() {
            if !before.jobs.insert(job) {
                return refuse(format!("the batch writes job {job} twice"));
            }
        }
        match &write.key {
            Some(key) => check_key(&key.scope, &mut before.keys),
            None => Ok(()),
        }
    }

    /// Whether it is what a lane writes most: new jobs, due at once, that retry none, attempts that begin, and good ends. Then
    /// nothing in it depends on the time.
    pub(crate) fn goes_at_once(&self) -> bool {
        let goes = |change: &Change| match change {
            Change::Submit(new) => new.due == Due::Now && new.retry.is_none(),
            Change::Dispatch { .. } | Change::Complete { .. } => true,
            Change::Revoke { .. }
            | Change::End { .. }
            | Change::Run { .. }
            | Change::Fail { .. }
            | Change::Release { .. } => false,
        };
        self.lane.is_some() && self.writes.iter().all(|write| goes(&write.change))
    }

    /// Whether it only says how attempts ended that no other follows: then one statement writes it, whatever the time.
    pub(crate) fn ends_attempts(&self) -> bool {
        let ends = |write: &JobWrite| {
            matches!(write.change, Change::Complete { .. } | Change::Fail { due_in_ms: None, .. })
        };
        self.lane.is_none() && self.writes.iter().all(ends)
    }
}

fn check_change(change: &Change) -> Result<()> {
    match change {
        Change::Submit(new) => check_new(new),
        Change::Dispatch { job, attempt, .. } if attempt.get() == 0 => {
            refuse(format!("job {job} is dispatched as attempt 0; the first is attempt 1"))
        }
        Change::Complete { output, .. } => check_text("result", output),
        Change::Revoke { due_in_ms, .. } => check_ms("pause", *due_in_ms, 0, BACKOFF_MS_MAX),
        Change::Fail { due_in_ms: Some(_), dead: true, job, .. } => {
            refuse(format!("job {job} has no attempts left, and one that is due"))
        }
        Change::Fail { due_in_ms, .. } => check_ms("pause", due_in_ms.unwrap_or(0), 0, BACKOFF_MS_MAX),
        Change::Dispatch { .. } | Change::End { .. } | Change::Run { .. } | Change::Release { .. } => Ok(()),
    }
}

/// Checks what the domain's types do not.
fn check_new(new: &NewJob) -> Result<()> {
    let spec = &new.spec;
    check_text("payload", &spec.payload)?;
    check_ms("time-out", spec.timeout_ms, JOB_TIMEOUT_MS_MIN, JOB_TIMEOUT_MS_MAX)?;
    if let Err(invalid) = Backoff::check(spec.backoff) {
        return refuse(invalid.to_string());
    }
    if !(1..=MAX_ATTEMPTS_MAX).contains(&spec.max_attempts) {
        return refuse(format!(
            "{} attempts are asked for; 1 to {MAX_ATTEMPTS_MAX} are allowed",
            spec.max_attempts
        ));
    }
    if spec.needs.requires.len() > JOB_LABELS_MAX {
        return refuse(format!(
            "{} labels are required; at most {JOB_LABELS_MAX} are allowed",
            spec.needs.requires.len()
        ));
    }
    if new.seq.is_some_and(|seq| seq == 0 || i64::try_from(seq).is_err()) {
        return refuse("the place in the session is not between 1 and 2^63 - 1".to_owned());
    }
    if spec.on_recovery == OnRecovery::Held {
        return refuse(format!("job {} is submitted as held; only a new owner of its lane holds it", new.id));
    }
    if new.placed.is_some() && new.due != Due::Now {
        return refuse(format!("job {} has a node before it is due", new.id));
    }
    match new.due {
        Due::Now => Ok(()),
        Due::InMs(ms) => check_ms("delay", ms, 0, DELAY_MS_MAX),
        // Both databases keep it exactly up to there, which is in the year 2255.
        Due::At(at) if (0..HELD_DUE_MICROS).contains(&at.as_micros()) => Ok(()),
        Due::At(at) => refuse(format!(
            "the job is due {} microseconds after 1970; it must be between 1970 and 2255",
            at.as_micros()
        )),
    }
}

fn check_text(what: &str, text: &str) -> Result<()> {
    if text.len() <= PAYLOAD_BYTES_MAX && !text.contains('\0') {
        return Ok(());
    }
    refuse(format!(
        "the {what} has {} bytes or a NUL; {PAYLOAD_BYTES_MAX} bytes without NUL are allowed",
        text.len()
    ))
}

fn check_ms(what: &str, ms: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&ms) {
        return Ok(());
    }
    refuse(format!("the {what} is {ms} ms; {min} to {max} are allowed"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use domain::job::{JobKey, Outcome, Spec};
    use domain::{IdempotencyKey, InstanceId, Token};

    use super::*;

    fn submit(job: u128, key: Option<&str>) -> JobWrite {
        let new = NewJob {
            id: JobId::from_u128(job),
            spec: Spec::new("{}"),
            seq: None,
            client_ref: None,
            due: Due::Now,
            retry: None,
            placed: None,
        };
        let key = key.map(|key| JobKey {
            scope: KeyScope { scope: "submit".to_owned(), key: IdempotencyKey::parse(key).unwrap() },
            body_hash: [0; 32],
        });
        JobWrite { change: Change::Submit(Box::new(new)), key }
    }

    fn cancel(job: u128) -> JobWrite {
        let change = Change::End {
            job: JobId::from_u128(job),
            outcome: Outcome::Cancelled,
            dead: false,
            attempt: None,
            reason: "cancelled".to_owned(),
        };
        JobWrite { change, key: None }
    }

    /// A job that may have no attempt.
    fn wrong(job: u128, key: Option<&str>) -> JobWrite {
        let JobWrite { change: Change::Submit(mut new), key } = submit(job, key) else { unreachable!() };
        new.spec.max_attempts = 0;
        JobWrite { change: Change::Submit(new), key }
    }

    fn batch(writes: impl IntoIterator<Item = JobWrite>) -> JobBatch {
        let owner = InstanceId::parse("a").unwrap();
        let lane = Lane { id: LaneId::parse("instance:a").unwrap(), owner, token: Token::FIRST };
        JobBatch { lane: Some(lane), writes: writes.into_iter().collect::<Arc<[_]>>() }
    }

    #[test]
    fn the_wrong_writes_of_a_batch_are_those_without_which_it_is_right() {
        let writes = [
            submit(1, Some("k")),
            wrong(2, Some("l")),
            // Neither the job nor the key of a wrong write is claimed.
            submit(2, Some("l")),
            submit(3, Some("k")),
            cancel(1),
            submit(4, None),
        ];
        let all = batch(writes.clone());
        assert!(all.is_wrong());
        assert_eq!(all.wrong_writes(), [1, 3, 4]);
        let right = batch([0, 2, 5].map(|place: usize| writes[place].clone()));
        assert!(!right.is_wrong() && right.wrong_writes().is_empty());
    }

    #[test]
    fn a_batch_of_too_many_rows_has_no_write_that_is_wrong() {
        let many = batch((0..5_000).map(|job| submit(job, None)));
        assert!(many.is_wrong() && many.wrong_writes().is_empty());
    }
}
