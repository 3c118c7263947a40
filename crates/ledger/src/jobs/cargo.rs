//! What a batch of jobs may bring aboard a train. As with nonces, what is wrong in itself is refused before it
//! boards.

use std::collections::HashSet;

use domain::job::{Backoff, Change, Due, NewJob};
use domain::limits::{
    BACKOFF_MS_MAX, DELAY_MS_MAX, JOB_LABELS_MAX, JOB_TIMEOUT_MS_MAX, JOB_TIMEOUT_MS_MIN, MAX_ATTEMPTS_MAX,
    PAYLOAD_BYTES_MAX,
};
use domain::{JobId, Resource, ResourceKind};

use super::{BYTES_PER_ROW, JobBatch, JobWrite, JobsVerdict, Lane};
use crate::baggage::{BATCH_ROWS_MAX, check_keys, refuse};
use crate::train::{Cargo, Tenure};
use crate::{KeyScope, Result};

/// What only one batch of jobs on a train may have.
#[derive(PartialEq, Eq, Hash)]
pub(crate) enum JobClaim {
    Lane(Resource),
    Job(JobId),
    Key(KeyScope),
}

impl Cargo for JobBatch {
    type Verdict = JobsVerdict;
    type Claim = JobClaim;

    const NAME: &'static str = "jobs";

    fn check(&self) -> Result<()> {
        if self.rows() > BATCH_ROWS_MAX {
            return refuse(format!("a batch of {} rows, {BATCH_ROWS_MAX} at most", self.rows()));
        }
        if let Some(lane) = &self.lane
            && !matches!(lane.resource.kind(), ResourceKind::Session | ResourceKind::Instance)
        {
            return refuse(format!("{} is no lane", lane.resource));
        }
        let mut jobs = HashSet::new();
        for write in self.writes.iter() {
            if !jobs.insert(write.change.job()) {
                return refuse(format!("job {} twice in one batch", write.change.job()));
            }
            if self.lane.is_none() && write.change.is_the_lanes() {
                return refuse(format!("job {} is written for its lane by a holder", write.change.job()));
            }
            if write.key.is_some() && !matches!(write.change, Change::Submit(_)) {
                return refuse(format!("a key with a change of job {}", write.change.job()));
            }
            check_change(&write.change)?;
        }
        check_keys(self.writes.iter().filter_map(|write| Some(&write.key.as_ref()?.scope)))
    }

    /// Holders have no order: each attempt of a job has one, and says one thing at a time.
    fn line(&self) -> Option<JobClaim> {
        self.lane.as_ref().map(|lane| JobClaim::Lane(lane.resource.clone()))
    }

    fn claims(&self) -> impl Iterator<Item = JobClaim> {
        self.writes.iter().flat_map(|write| {
            let key = write.key.as_ref().map(|key| JobClaim::Key(key.scope.clone()));
            [JobClaim::Job(write.change.job())].into_iter().chain(key)
        })
    }

    /// Its lease's row among them.
    fn rows(&self) -> usize {
        1 + self.writes.iter().map(JobWrite::rows).sum::<usize>()
    }

    fn tenure(&self) -> Option<Tenure<'_>> {
        self.lane.as_ref().map(Lane::tenure)
    }
}

impl Lane {
    /// The tenure of its lease.
    pub(crate) fn tenure(&self) -> Tenure<'_> {
        Tenure { resource: self.resource.clone(), owner: &self.owner, token: self.token }
    }
}

impl JobBatch {
    /// Whether it is what a lane writes most: new jobs, due at once, attempts that begin, and good ends. Then nothing in
    /// it depends on the time.
    pub(crate) fn goes_at_once(&self) -> bool {
        let goes = |change: &Change| match change {
            Change::Submit(new) => new.due == Due::Now,
            Change::Dispatch { .. } | Change::Complete { .. } => true,
            _ => false,
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

impl JobWrite {
    /// How much room it takes in a batch: a row, one for its key, and more for a long text.
    #[must_use]
    pub fn rows(&self) -> usize {
        let text = match &self.change {
            Change::Submit(new) => new.spec.payload.len(),
            Change::Complete { output, .. } => output.len(),
            Change::Dispatch { .. }
            | Change::Revoke { .. }
            | Change::End { .. }
            | Change::Run { .. }
            | Change::Fail { .. }
            | Change::Release { .. } => 0,
        };
        1 + usize::from(self.key.is_some()) + text / BYTES_PER_ROW
    }
}

fn check_change(change: &Change) -> Result<()> {
    match change {
        Change::Submit(new) => check_new(new),
        Change::Dispatch { job, attempt, .. } if attempt.get() == 0 => {
            refuse(format!("attempt 0 of job {job}"))
        }
        Change::Complete { output, .. } => check_text("result", output),
        Change::Revoke { due_in_ms, .. } => check_ms("pause", *due_in_ms, 0, BACKOFF_MS_MAX),
        Change::Fail { due_in_ms: Some(_), dead: true, job, .. } => {
            refuse(format!("job {job} dead and with an attempt to come"))
        }
        Change::Fail { due_in_ms, .. } => check_ms("pause", due_in_ms.unwrap_or(0), 0, BACKOFF_MS_MAX),
        Change::Dispatch { .. } | Change::End { .. } | Change::Run { .. } | Change::Release { .. } => Ok(()),
    }
}

/// What the domain lets through is not checked again; what it leaves to its callers is.
fn check_new(new: &NewJob) -> Result<()> {
    let spec = &new.spec;
    check_text("payload", &spec.payload)?;
    check_ms("time-out", spec.timeout_ms, JOB_TIMEOUT_MS_MIN, JOB_TIMEOUT_MS_MAX)?;
    if let Err(invalid) = Backoff::check(spec.backoff) {
        return refuse(invalid.to_string());
    }
    if !(1..=MAX_ATTEMPTS_MAX).contains(&spec.max_attempts) {
        return refuse(format!("{} attempts, 1 to {MAX_ATTEMPTS_MAX}", spec.max_attempts));
    }
    if spec.needs.requires.len() > JOB_LABELS_MAX {
        return refuse(format!("{} labels, {JOB_LABELS_MAX} at most", spec.needs.requires.len()));
    }
    if new.seq.is_some_and(|seq| seq == 0 || i64::try_from(seq).is_err()) {
        return refuse("a place in the session from 1".to_owned());
    }
    if new.placed.is_some() && new.due != Due::Now {
        return refuse(format!("job {} is placed before it is due", new.id));
    }
    match new.due {
        Due::Now => Ok(()),
        Due::InMs(ms) => check_ms("delay", ms, 0, DELAY_MS_MAX),
        // Both databases keep it exactly up to there, which is in the year 2255.
        Due::At(at) if (0..=1 << 53).contains(&at.as_micros()) => Ok(()),
        Due::At(at) => refuse(format!("due {} microseconds after 1970", at.as_micros())),
    }
}

fn check_text(what: &str, text: &str) -> Result<()> {
    if text.len() <= PAYLOAD_BYTES_MAX && !text.contains('\0') {
        return Ok(());
    }
    refuse(format!("a {what} of {} bytes, {PAYLOAD_BYTES_MAX} at most and no NUL", text.len()))
}

fn check_ms(what: &str, ms: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&ms) {
        return Ok(());
    }
    refuse(format!("a {what} of {ms} ms, {min} to {max}"))
}
