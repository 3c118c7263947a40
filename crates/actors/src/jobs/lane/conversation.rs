//! What makes a lane a session's: its jobs have places, in a strict one each waits for the one before it, all prefer
//! the node that had the last one, and one day it is closed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::Binding;
use domain::job::{Attempt, Priority, Spec};
use domain::session::Ordering;
use domain::{JobId, NodeId, PoolName, ResourceKind, SessionId};
use ledger::{Closed, LiveJob, SessionRecord};

use super::{Lane, Over};
use crate::jobs::Refusal;
use crate::jobs::limits::{RESERVATION, SESSION_JOBS_MAX, SESSION_KEPT};
use crate::jobs::line::{Line, Next};
use crate::jobs::placer::Affinity;

/// How long the bus remembers which node a session used last, at least.
const BINDING_KEPT: Duration = Duration::from_secs(3_600);

/// Of one session.
pub(super) struct Conversation {
    record: SessionRecord,
    /// The place of the last job.
    last_seq: u64,
    unfinished: u64,
    /// Whose turn it is, in a strict one.
    line: Option<Line>,
    /// Where its last job went.
    affinity: Option<Arc<Affinity>>,
    is_closed: bool,
    /// When something happened last.
    active_at: Instant,
}

impl Conversation {
    /// A session as the ledger has it, at the beginning of a tenure.
    fn new(record: SessionRecord, last_seq: u64, unfinished: u64, affinity: Option<Affinity>) -> Self {
        let now = Instant::now();
        Self {
            last_seq,
            unfinished,
            line: (record.spec.ordering == Ordering::Strict).then(Line::default),
            affinity: affinity.map(Arc::new),
            is_closed: record.closed_at.is_some(),
            active_at: now.checked_sub(Duration::from_millis(record.idle_for_ms)).unwrap_or(now),
            record,
        }
    }

    /// How long its owner stays without work.
    pub(super) fn kept_for(&self) -> Duration {
        if self.is_closed { Duration::ZERO } else { SESSION_KEPT }
    }

    /// Whether nothing has happened for as long as it may be idle.
    fn is_forsaken(&self, now: Instant) -> bool {
        self.unfinished == 0
            && now.duration_since(self.active_at) >= Duration::from_millis(self.record.spec.idle_ms)
    }

    fn id(&self) -> &SessionId {
        &self.record.id
    }
}

impl Lane {
    pub(super) fn line(&self) -> Option<&Line> {
        self.conversation.as_ref()?.line.as_ref()
    }

    pub(super) fn line_mut(&mut self) -> Option<&mut Line> {
        self.conversation.as_mut()?.line.as_mut()
    }

    pub(super) fn affinity(&self) -> Option<Arc<Affinity>> {
        self.conversation.as_ref()?.affinity.clone()
    }

    /// Reads the session of a lane that is one's. After the acquire was answered, as all that is read of a lane.
    pub(super) async fn read_session(&mut self) -> ledger::Result<()> {
        if self.resource.kind() != ResourceKind::Session {
            return Ok(());
        }
        // A resource of that kind is named by a session's id.
        let Ok(id) = SessionId::parse(self.resource.id()) else { return Ok(()) };
        let ledger = &self.inner.ledger;
        let Some(record) = ledger.session(&id).await? else {
            // It was forgotten, which it is only without jobs.
            self.stopping = true;
            return Ok(());
        };
        let counts = ledger.session_counts(&id).await?;
        let last_seq = ledger.lane_seq(&self.resource).await?.max(counts.last_seq);
        let known = match self.inner.bus.session_binding(&id).await {
            Ok(binding) => {
                binding.and_then(|binding| Some(Affinity { node: binding.node?, pool: binding.pool }))
            }
            // A preference, no more.
            Err(_) => None,
        };
        let affinity = known.or_else(|| Some(Affinity { node: counts.last_node?, pool: None }));
        let unfinished = counts.created + counts.dispatched + counts.running;
        self.conversation = Some(Conversation::new(record, last_seq, unfinished, affinity));
        self.bind();
        Ok(())
    }

    /// Gives a new job its place. What it does not ask for itself it has of its session.
    pub(super) fn admit(&mut self, spec: &mut Spec) -> Result<Option<u64>, Refusal> {
        let Some(of) = &mut self.conversation else {
            let is_a_sessions = self.resource.kind() == ResourceKind::Session;
            return if is_a_sessions { Err(Refusal::UnknownSession) } else { Ok(None) };
        };
        if of.is_closed {
            return Err(Refusal::SessionClosed);
        }
        if of.unfinished >= SESSION_JOBS_MAX {
            return Err(Refusal::SessionFull);
        }
        if of.line.is_some() && spec.priority != Priority::default() {
            return Err(Refusal::StrictPriority);
        }
        let usual = &of.record.spec.needs;
        let needs = &mut spec.needs;
        needs.pool = needs.pool.take().or_else(|| usual.pool.clone());
        needs.route = needs.route.take().or_else(|| usual.route.clone());
        needs.requires.extend(usual.requires.iter().cloned());
        needs.requires.sort_unstable();
        needs.requires.dedup();
        of.active_at = Instant::now();
        of.last_seq += 1;
        // Counted as written until it is known not to be.
        of.unfinished += 1;
        Ok(Some(of.last_seq))
    }

    /// A job that had its place was not written: its place stays empty.
    pub(super) fn not_admitted(&mut self) {
        if let Some(of) = &mut self.conversation {
            of.unfinished = of.unfinished.saturating_sub(1);
        }
    }

    /// A new job of a strict session stands in line. `false` in all other lanes.
    pub(super) fn join_line(&mut self, job: &Arc<LiveJob>, due: Instant) -> bool {
        let Some(line) = self.line_mut() else { return false };
        line.join(Next { job: Arc::clone(job), due });
        true
    }

    /// The job has ended: whoever is next has its turn.
    pub(super) fn over(&mut self, job: JobId, now: Instant) {
        self.book.forget(job);
        self.inner.placer.forget(job);
        if let Some(of) = &mut self.conversation {
            of.unfinished = of.unfinished.saturating_sub(1);
            of.active_at = now;
            if let Some(line) = &mut of.line {
                line.ended(job);
            }
        }
    }

    /// Lets the next job of a strict session go on its way, if it is its turn.
    pub(super) fn advance(&mut self, now: Instant) {
        let Some(Next { job, due }) = self.line_mut().and_then(Line::advance) else { return };
        if job.due_at.is_none() {
            self.wait_in_group(job);
        } else {
            self.book.delay(job, due.max(now), None);
        }
    }

    /// The line is read again from the ledger, behind whoever has an attempt under way.
    pub(super) fn relearn_line(&mut self) {
        let flying = self.book.first_under_way();
        let Some(line) = self.line() else { return };
        if flying.is_none()
            && let Some(turn) = line.turn()
        {
            self.book.forget(turn);
            self.inner.placer.forget(turn);
        }
        if let Some(line) = self.line_mut() {
            line.reset(flying.as_deref());
        }
    }

    /// Until when nothing of a strict session is to be placed: the reservation of an attempt that was taken back may
    /// still stand.
    pub(super) fn barred_until(&mut self, now: Instant) -> Option<Instant> {
        self.line_mut()?.barred_until(now)
    }

    /// A reservation that was waited for is gone.
    pub(super) fn withdrawn(&mut self, job: JobId, attempt: Attempt, now: Instant) {
        let Some(line) = self.line_mut() else { return };
        if line.unbar(job, attempt)
            && let Some(turn) = line.turn()
        {
            self.book.hurry(turn, now);
        }
    }

    /// Nothing of a strict session is placed before the reservation of this attempt is gone, or has run out.
    pub(super) fn bar(&mut self, job: JobId, attempt: Attempt) -> bool {
        let Some(line) = self.line_mut() else { return false };
        line.bar(job, attempt, Instant::now() + RESERVATION);
        true
    }

    /// A job of the session has a slot: the next ones prefer its node.
    pub(super) fn prefers(&mut self, node: &NodeId, pool: PoolName) {
        let Some(of) = &mut self.conversation else { return };
        let is_new = of
            .affinity
            .as_ref()
            .is_none_or(|known| known.node != *node || known.pool.as_ref() != Some(&pool));
        if is_new {
            of.affinity = Some(Arc::new(Affinity { node: node.clone(), pool: Some(pool) }));
            self.bind();
        }
    }

    /// Notes at the bus who serves the session, and where its last job went. May be lost: it is a preference.
    fn bind(&self) {
        let Some(of) = &self.conversation else { return };
        let (node, pool) =
            of.affinity.as_ref().map_or((None, None), |known| (Some(known.node.clone()), known.pool.clone()));
        let binding = Binding { instance: self.inner.me.clone(), token: self.token, node, pool };
        let kept = Duration::from_millis(of.record.spec.idle_ms).max(BINDING_KEPT);
        let (bus, id) = (self.inner.bus.clone(), of.id().clone());
        tokio::spawn(async move {
            if let Err(error) = bus.bind_session(&id, &binding, kept).await {
                tracing::debug!(%error, session = %id, "a session's binding was not noted");
            }
        });
    }

    /// Closes the session for whoever wants that, or since nobody has used it for long.
    pub(super) async fn see_to_closing(&mut self, now: Instant) -> Result<(), Over> {
        let Some(of) = &self.conversation else {
            self.closing.drain(..).for_each(|reply| drop(reply.send(Err(Refusal::UnknownSession))));
            return Ok(());
        };
        if self.closing.is_empty() && (of.is_closed || !of.is_forsaken(now) || !self.asked.is_empty()) {
            return Ok(());
        }
        if of.is_closed {
            self.closing.drain(..).for_each(|reply| drop(reply.send(Ok(()))));
            return Ok(());
        }
        let lane =
            ledger::Lane { resource: self.resource.clone(), owner: self.inner.me.clone(), token: self.token };
        let closed = if self.tenancy.is_current() {
            self.inner.ledger.close_session(&lane).await
        } else {
            Ok(Closed::Fenced)
        };
        let replies = std::mem::take(&mut self.closing);
        let answer = |answer: Result<(), Refusal>| {
            // Whoever asked may be gone.
            replies.into_iter().for_each(|reply| drop(reply.send(answer.clone())));
        };
        match closed {
            Ok(Closed::Yes) => {
                tracing::info!(resource = %self.resource, token = %self.token, "a session is closed");
                let id = of.id().clone();
                if let Some(of) = &mut self.conversation {
                    of.is_closed = true;
                }
                let (bus, token) = (self.inner.bus.clone(), self.token);
                tokio::spawn(async move {
                    if let Err(error) = bus.unbind_session(&id, token).await {
                        tracing::debug!(%error, session = %id, "a session's binding was not removed and runs out");
                    }
                });
                answer(Ok(()));
                Ok(())
            }
            Ok(Closed::Again) => {
                answer(Err(Refusal::LedgerUnavailable));
                Ok(())
            }
            Ok(Closed::Fenced) => {
                metrics::counter!("fencepost_fence_reject_total", "op" => "close_session").increment(1);
                tracing::warn!(
                    resource = %self.resource, token = %self.token, owner = %self.inner.me, op = "close_session", "fenced"
                );
                answer(Err(Refusal::Fenced));
                self.anew().await
            }
            Err(error) => {
                tracing::debug!(%error, lane = %self.resource, "whether the session is closed is not known");
                answer(Err(Refusal::LedgerUnavailable));
                self.anew().await
            }
        }
    }

    /// A session that belongs elsewhere by now is handed on.
    pub(super) fn look_where_it_belongs(&mut self) {
        if self.conversation.is_some() && self.inner.outlook.place(&self.resource) != cluster::Place::Here {
            tracing::info!(resource = %self.resource, token = %self.token, "a session that belongs elsewhere is handed off");
            self.stopping = true;
        }
    }
}
