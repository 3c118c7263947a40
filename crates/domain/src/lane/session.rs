//! What makes a lane a session's: its jobs have places, in a strict session each waits for the one before it, all prefer
//! the node that had the last one, and one day the session is closed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fifo::SessionFifo;
use super::limits::{SESSION_BYTES_OWN, SESSION_JOBS_MAX, SESSION_KEPT};
use super::messages::{Affinity, Refused, SessionSnapshot, Submission};
use super::recent_keys::RecentKeys;
use super::waiting_bytes::WaitingBytes;
use crate::job::{JobKey, Priority, Spec as JobSpec};
use crate::limits::JOB_LABELS_MAX;
use crate::session::{Ordering, Spec};
use crate::{JobId, NodeId, PoolName};

/// The state of one session beside its lane's jobs.
pub struct SessionState {
    spec: Spec,
    last_seq: u64,
    unfinished: u64,
    fifo: Option<SessionFifo>,
    affinity: Option<Arc<Affinity>>,
    /// Where results have no order: there a client cannot see that a place below others stays empty, so a repetition is to
    /// take none.
    recent: Option<RecentKeys>,
    is_closed: bool,
    active_at: Instant,
}

impl SessionState {
    /// A session whose owner has just acquired its lease, in an instance that has this memory.
    #[must_use]
    pub fn new(snapshot: SessionSnapshot, waiting: &WaitingBytes, now: Instant) -> Self {
        let SessionSnapshot { spec, is_closed, idle_for_ms, last_seq, unfinished, affinity, recent_refs } =
            snapshot;
        let mut recent = (spec.ordering == Ordering::Free).then(RecentKeys::default);
        if let Some(recent) = &mut recent {
            recent_refs.iter().for_each(|client_ref| recent.note(client_ref.as_str()));
        }
        Self {
            last_seq,
            unfinished,
            fifo: (spec.ordering == Ordering::Strict)
                .then(|| SessionFifo::new(waiting.share(SESSION_BYTES_OWN))),
            affinity: affinity.map(Arc::new),
            recent,
            is_closed,
            active_at: now.checked_sub(Duration::from_millis(idle_for_ms)).unwrap_or(now),
            spec,
        }
    }

    pub(super) const fn fifo(&self) -> Option<&SessionFifo> {
        self.fifo.as_ref()
    }

    pub(super) const fn fifo_mut(&mut self) -> Option<&mut SessionFifo> {
        self.fifo.as_mut()
    }

    /// Where the next job prefers to go.
    #[must_use]
    pub fn affinity(&self) -> Option<Arc<Affinity>> {
        self.affinity.clone()
    }

    /// Whether its jobs, or their results, have the order of the submissions.
    pub(super) const fn has_order(&self) -> bool {
        !matches!(self.spec.ordering, Ordering::Free)
    }

    /// Whether it takes no more jobs.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// How many of its jobs are unfinished, those included whose commit is under way.
    #[must_use]
    pub const fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// After how long without anything happening it is closed.
    #[must_use]
    pub const fn idle(&self) -> Duration {
        Duration::from_millis(self.spec.idle_ms)
    }

    /// How long its owner stays without work.
    pub(super) const fn kept_for(&self) -> Duration {
        if self.is_closed { Duration::ZERO } else { SESSION_KEPT }
    }

    /// Whether nothing has happened for as long as it may be idle.
    #[must_use]
    pub fn is_idle_for_long(&self, now: Instant) -> bool {
        self.unfinished == 0
            && now.saturating_duration_since(self.active_at) >= Duration::from_millis(self.spec.idle_ms)
    }

    /// Whether a session of which this was asked ever takes such a job.
    ///
    /// # Errors
    /// [`Refused::StrictPriority`] and [`Refused::TooManyLabels`].
    pub fn judge(session: &Spec, job: &JobSpec) -> Result<(), Refused> {
        if session.ordering == Ordering::Strict && job.priority != Priority::default() {
            return Err(Refused::StrictPriority);
        }
        let labels: BTreeSet<_> = session.needs.requires.iter().chain(&job.needs.requires).collect();
        if labels.len() > JOB_LABELS_MAX {
            return Err(Refused::TooManyLabels);
        }
        Ok(())
    }

    /// Gives a new job its place. What the job does not ask for itself it has of its session.
    ///
    /// # Errors
    /// [`Refused::SessionClosed`], [`Refused::SessionFull`], [`Refused::StrictPriority`] and [`Refused::TooManyLabels`].
    pub fn admit(&mut self, job: &mut JobSpec, now: Instant) -> Result<u64, Refused> {
        if self.is_closed {
            return Err(Refused::SessionClosed);
        }
        if self.unfinished >= SESSION_JOBS_MAX {
            return Err(Refused::SessionFull);
        }
        Self::judge(&self.spec, job)?;
        let (usual, needs) = (&self.spec.needs, &mut job.needs);
        needs.requires.extend(usual.requires.iter().cloned());
        needs.requires.sort_unstable();
        needs.requires.dedup();
        needs.pool = needs.pool.take().or_else(|| usual.pool.clone());
        needs.route = needs.route.take().or_else(|| usual.route.clone());
        job.tenant = job.tenant.take().or_else(|| self.spec.tenant.clone());
        self.active_at = now;
        self.last_seq += 1;
        // Counted as written until it is known not to be.
        self.unfinished += 1;
        Ok(self.last_seq)
    }

    /// Whether a job may have come under its key before, so that the ledger is to be asked. A key is a `ref`, unless the
    /// request had one of its own; of the time before this owner only `ref`s are known.
    pub(super) fn may_have_come(&self, submission: &Submission) -> bool {
        let (Some(recent), Some(key)) = (&self.recent, &submission.key) else { return false };
        let has_ref = |client_ref: &crate::ClientRef| {
            client_ref.as_str() != key.scope.key.as_str() && recent.has(client_ref.as_str())
        };
        recent.has(key.scope.key.as_str())
            || (submission.retry.is_none() && submission.client_ref.as_ref().is_some_and(has_ref))
    }

    /// A job has come under this key.
    pub(super) fn note_key(&mut self, key: &JobKey) {
        if let Some(recent) = &mut self.recent {
            recent.note(key.scope.key.as_str());
        }
    }

    /// A job that had its place was not written: its place stays empty.
    pub(super) const fn not_admitted(&mut self) {
        self.unfinished = self.unfinished.saturating_sub(1);
    }

    /// A job has ended.
    pub(super) fn ended(&mut self, job: JobId, now: Instant) {
        self.unfinished = self.unfinished.saturating_sub(1);
        self.active_at = now;
        if let Some(fifo) = &mut self.fifo {
            fifo.ended(job);
        }
    }

    /// It takes no more jobs from now on.
    pub(super) const fn closed(&mut self) {
        self.is_closed = true;
    }

    /// A job has a slot: the next ones prefer its node. Whether that is another one than before.
    pub(super) fn prefers(&mut self, node: &NodeId, pool: PoolName) -> bool {
        let is_new = self
            .affinity
            .as_ref()
            .is_none_or(|known| known.node != *node || known.pool.as_ref() != Some(&pool));
        if is_new {
            self.affinity = Some(Arc::new(Affinity { node: node.clone(), pool: Some(pool) }));
        }
        is_new
    }
}
