//! What a lane's owner reads: everything after it acquires the lease, a page at a time later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::Context;
use domain::job::{Attempt, LiveJob, State};
use domain::lane::limits::{COMING_BYTES_MAX, COMING_JOBS_MAX, RECENT_KEYS_MAX, REREAD_EVERY};
use domain::lane::{Affinity, AttemptsAt, Coming, LaneState, Read, SessionSnapshot, Snapshot, Unread};
use domain::limits::{JOB_TIMEOUT_MS_MAX, PAYLOAD_BYTES_MAX};
use domain::session::Ordering;
use domain::{JobId, LaneId, SessionId, Token};
use futures_util::future::join_all;
use ledger::{
    LastTold, PAGE_BYTES_MAX, RevokedAttempt, SessionCounts, UnderWay, Unwritten, WaitingGroup, jittered,
};

use super::{LaneActor, LaneServices, RELOAD_EVERY, ask, note_fenced};
use crate::database_clock::SharedClock;
use crate::jobs::lease::{LaneLease, Lost};
use crate::jobs::limits::{ATTEMPTS_PAGE, NODES_ASKED_MAX, PAGE_JOBS, SESSION_IDLE_MAX};
use crate::jobs::messages::LaneCommand;
use crate::jobs::scheduler::{Scheduler, Sender};

/// Between two tries to hold jobs while the lane's lease row is locked, before jitter.
const HOLD_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Acquires leases anew and reads lanes.
pub(in crate::jobs) struct Loader {
    pub(in crate::jobs) services: Arc<LaneServices>,
    pub(in crate::jobs) lane: LaneId,
    pub(in crate::jobs) lease: Arc<LaneLease>,
}

impl Loader {
    /// What a new owner does first: it has the ledger hold the jobs that ask for it, if the lane has had another owner
    /// before, and then reads the lane. Of a plan's lane the plan's owner has them held, before it adds any.
    pub(super) async fn begin(&self, token: Token) -> Result<(Token, Snapshot), Lost> {
        let is_to_hold = self.lease.is_adopted() && self.lane.plan_id().is_none() && token != Token::FIRST;
        let token = if is_to_hold { self.hold(token).await? } else { token };
        self.load(token).await
    }

    /// Has the lane's jobs held that ask for it. Tries until it surely is so; answers the token under which it is.
    pub(in crate::jobs) async fn hold(&self, mut token: Token) -> Result<Token, Lost> {
        let told = LastTold::never();
        loop {
            if self.services.host.is_over() {
                return Err(Lost);
            }
            let lane = ledger::Lane { id: self.lane.clone(), owner: self.services.me.clone(), token };
            // Nothing of the lane leaves under a lease that may have run out.
            if self.lease.is_current() {
                match self.services.ledger.hold_jobs(&lane).await {
                    Ok(Ok(jobs)) => {
                        if jobs > 0 {
                            tracing::info!(lane = %self.lane, %token, jobs, "jobs are held after a takeover");
                        }
                        return Ok(token);
                    }
                    Ok(Err(Unwritten::Again)) => {
                        tokio::time::sleep(jittered(HOLD_AGAIN_AFTER)).await;
                        continue;
                    }
                    Ok(Err(Unwritten::Fenced)) => note_fenced(&lane, &self.lease, "hold_jobs").await,
                    Err(error) => {
                        let lane = &self.lane;
                        ledger::log_failure!(told: told, error, %lane, "the lane's jobs may not be held yet");
                    }
                }
            }
            // What was sent may yet be written, under the token before.
            tokio::time::sleep(jittered(RELOAD_EVERY)).await;
            if let Some(anew) = self.lease.acquire_anew(token).await? {
                token = anew;
            }
        }
    }

    /// The lease is acquired anew, above this token, and everything read again.
    pub(super) async fn anew(&self, before: Token) -> Result<(Token, Snapshot), Lost> {
        loop {
            if self.services.host.is_over() {
                return Err(Lost);
            }
            match self.lease.acquire_anew(before).await? {
                Some(token) => return self.load(token).await,
                None => tokio::time::sleep(jittered(RELOAD_EVERY)).await,
            }
        }
    }

    /// Reads what the ledger has of this lane, after an acquire that was answered. Tries until it does.
    pub(super) async fn load(&self, mut token: Token) -> Result<(Token, Snapshot), Lost> {
        let told = LastTold::never();
        loop {
            if self.services.host.is_over() {
                return Err(Lost);
            }
            match self.read_all(token).await {
                Ok(Some(snapshot)) => return Ok((token, snapshot)),
                Ok(None) => {}
                Err(error) => {
                    let lane = &self.lane;
                    ledger::log_failure!(told: told, error, %lane, "the lane's jobs could not be read; trying again");
                    tokio::time::sleep(jittered(RELOAD_EVERY)).await;
                }
            }
            if !self.lease.is_current()
                && let Some(anew) = self.lease.acquire_anew(token).await?
            {
                token = anew;
            }
        }
    }

    /// `None` where the reads do not agree, because a node's instance has written in between what became of an attempt.
    async fn read_all(&self, token: Token) -> ledger::Result<Option<Snapshot>> {
        let (ledger, lane) = (&self.services.ledger, &self.lane);
        let counts = self.count(token).await?;
        let mut snapshot =
            Snapshot { session: self.read_session(counts.as_ref()).await?, ..Snapshot::default() };
        if snapshot.session.as_ref().is_some_and(|session| session.unfinished == 0) {
            snapshot.revoked = self.read_revoked(&snapshot).await?;
            return Ok(Some(snapshot));
        }
        let mut after = None;
        loop {
            let page = ledger.in_flight(lane, after, PAGE_JOBS).await?;
            let Some(last) = page.last().map(|job| job.id) else { break };
            after = Some(last);
            snapshot.in_flight.extend(without_steps(ledger, &self.services.clock, page).await?);
        }
        if let (Some(session), Some(before)) = (&mut snapshot.session, &counts)
            && let Some(after) = self.count(token).await?
        {
            // Of the attempts under way those count that are known here, whatever has ended meanwhile: their ends are followed.
            session.unfinished = after.created + snapshot.in_flight.len() as u64;
            // A job that has become CREATED may be counted twice. Where the last one has ended, the session may look idle for
            // longer than it is.
            if after.created != before.created || after.unfinished() == 0 {
                return Ok(None);
            }
        }
        if snapshot.session.as_ref().is_some_and(|session| session.spec.ordering == Ordering::Strict) {
            // Its order is read page by page.
            snapshot.revoked = self.read_revoked(&snapshot).await?;
            return Ok(Some(snapshot));
        }
        snapshot.groups = groups(ledger, lane).await?;
        snapshot.coming = coming(ledger, lane, (REREAD_EVERY * 2).as_millis() as u64).await?;
        Ok(Some(snapshot))
    }

    /// The unfinished jobs of a session, by their states. `None` for another lane, and under the first token: an owner accepts
    /// jobs, and there was none. A recovery leaves a lease where there may have been one.
    async fn count(&self, token: Token) -> ledger::Result<Option<SessionCounts>> {
        match self.lane.session_id() {
            Some(id) if token != Token::FIRST => self.services.ledger.session_counts(&id).await.map(Some),
            _ => Ok(None),
        }
    }

    /// The attempt of a strict session whose reservation may still stand. Nothing is read where none can: an attempt is under
    /// way, so that the one before it was waited for, or all has been over for longer than a reservation stands.
    async fn read_revoked(&self, snapshot: &Snapshot) -> ledger::Result<Option<RevokedAttempt>> {
        let (Some(id), Some(session)) = (self.lane.session_id(), &snapshot.session) else { return Ok(None) };
        let is_strict = session.spec.ordering == Ordering::Strict;
        if !is_strict || session.last_seq == 0 || !snapshot.in_flight.is_empty() {
            return Ok(None);
        }
        let LaneServices { ledger, clock, registry, .. } = &*self.services;
        last_revoked(ledger, clock, &id, session, registry.timeouts().reservation).await
    }

    /// The session of a lane that is one's, whose jobs were counted before: where none was unfinished, what is read here knows
    /// the end of each. `None` as well where it was forgotten.
    async fn read_session(&self, counts: Option<&SessionCounts>) -> ledger::Result<Option<SessionSnapshot>> {
        let Some(id) = self.lane.session_id() else { return Ok(None) };
        let (ledger, clock) = (&self.services.ledger, &self.services.clock);
        let Some(record) = ledger.session(&id).await? else { return Ok(None) };
        // It looks idle for longer than it is if the database's clock stepped forward meanwhile.
        let mut ahead_ms = clock.ahead_ms(SESSION_IDLE_MAX);
        if record.idle_for_ms.saturating_sub(ahead_ms) >= record.spec.idle_ms {
            // It would be closed: the step may be so new that it is not known yet.
            clock.look(ledger).await?;
            ahead_ms = clock.ahead_ms(SESSION_IDLE_MAX);
        }
        let mut snapshot = SessionSnapshot {
            is_closed: record.closed_at.is_some(),
            idle_for_ms: record.idle_for_ms.saturating_sub(ahead_ms),
            spec: record.spec,
            last_seq: 0,
            unfinished: 0,
            affinity: None,
            recent_refs: Vec::new(),
        };
        let Some(counts) = counts else { return Ok(Some(snapshot)) };
        snapshot.last_seq = ledger.lane_seq(&self.lane).await?.max(counts.last_seq);
        snapshot.unfinished = counts.unfinished();
        if snapshot.spec.ordering == Ordering::Free {
            let before = snapshot.last_seq.saturating_sub(RECENT_KEYS_MAX as u64);
            snapshot.recent_refs = ledger.session_refs(&id, before, RECENT_KEYS_MAX as u32).await?;
        }
        let known = match self.services.bus.session_binding(&id).await {
            Ok(binding) => {
                binding.and_then(|binding| Some(Affinity { node: binding.node?, pool: binding.pool }))
            }
            // A preference, no more.
            Err(_) => None,
        };
        snapshot.affinity = known.or_else(|| Some(Affinity { node: counts.last_node.clone()?, pool: None }));
        Ok(Some(snapshot))
    }
}

/// The attempt of a strict session that was taken back last, if its reservation, which lasts so long, may still stand. What was
/// taken back before the database's clock stepped forward looks older than it is: the clock is looked at, since the step may be
/// so new that it is not known.
async fn last_revoked(
    ledger: &ledger::Handle,
    clock: &SharedClock,
    id: &SessionId,
    session: &SessionSnapshot,
    reservation: Duration,
) -> ledger::Result<Option<RevokedAttempt>> {
    clock.look_lately(ledger).await?;
    let ahead_ms = clock.ahead_ms(reservation);
    let within_ms = (reservation.as_millis() as u64).saturating_add(ahead_ms);
    if session.unfinished == 0 && session.idle_for_ms >= within_ms {
        return Ok(None);
    }
    let last = ledger.last_revoked(id, within_ms).await?;
    Ok(last.map(|last| RevokedAttempt { ago_ms: last.ago_ms.saturating_sub(ahead_ms), ..last }))
}

/// Jobs that were read, with how long they have surely been RUNNING: those that were before the database's clock stepped forward
/// would all seem to have run for too long. Where any runs, the clock is looked at: the step may be so new that it is not known.
async fn without_steps(
    ledger: &ledger::Handle,
    clock: &SharedClock,
    mut jobs: Vec<LiveJob>,
) -> ledger::Result<Vec<LiveJob>> {
    if jobs.iter().all(|job| job.running_for_ms == 0) {
        return Ok(jobs);
    }
    clock.look(ledger).await?;
    let ahead_ms = clock.ahead_ms(Duration::from_millis(JOB_TIMEOUT_MS_MAX));
    for job in &mut jobs {
        job.running_for_ms = job.running_for_ms.saturating_sub(ahead_ms);
    }
    Ok(jobs)
}

/// The groups of a lane that have jobs that may be dispatched at once.
async fn groups(ledger: &ledger::Handle, lane: &LaneId) -> ledger::Result<Vec<WaitingGroup>> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = ledger.waiting_groups(lane, after.as_ref(), PAGE_JOBS).await?;
        let Some(last) = page.last().cloned() else { return Ok(all) };
        after = Some(last);
        all.extend(page);
    }
}

/// The first delayed jobs of a lane that come due within that time.
async fn coming(ledger: &ledger::Handle, lane: &LaneId, within_ms: u64) -> ledger::Result<Coming> {
    let (mut jobs, mut bytes, mut after) = (Vec::new(), 0, None);
    loop {
        let page = ledger.coming_due(lane, after, within_ms, PAGE_JOBS).await?;
        let Some((last, _)) = page.last() else { return Ok(Coming { jobs, is_cut: false }) };
        after = last.due_at.map(|due_at| (due_at, last.id));
        bytes += page.iter().map(|(job, _)| job.spec.text_bytes()).sum::<usize>();
        jobs.extend(page);
        if jobs.len() >= COMING_JOBS_MAX || bytes >= COMING_BYTES_MAX {
            return Ok(Coming { jobs, is_cut: true });
        }
    }
}

async fn attempts(ledger: &ledger::Handle, lane: &LaneId) -> ledger::Result<Vec<UnderWay>> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = ledger.under_way(lane, after, ATTEMPTS_PAGE).await?;
        let Some(last) = page.last().map(|attempt| attempt.job) else { return Ok(all) };
        after = Some(last);
        all.extend(page);
    }
}

/// Attempts that have neither a result nor a slot, though their node's slots are all known; each with whether its node
/// is gone for sure.
async fn stranded(
    scheduler: &Arc<Scheduler>,
    by_node: Vec<AttemptsAt>,
) -> Vec<(JobId, Attempt, State, bool)> {
    let mut lost = Vec::new();
    for nodes in by_node.chunks(NODES_ASKED_MAX) {
        let looks = nodes.iter().map(|(node, attempts)| async move {
            let slots: Vec<_> =
                attempts.iter().map(|(job, attempt, _, since)| (*job, *attempt, *since)).collect();
            match scheduler.is_surely_gone(node) {
                true => (attempts, true, vec![true; slots.len()]),
                false => (attempts, false, scheduler.missing(node, &slots, Sender::Anybody).await),
            }
        });
        for (attempts, is_gone, missing) in join_all(looks).await {
            let missing = attempts.iter().zip(missing).filter(|(_, is_missing)| *is_missing);
            lost.extend(missing.map(|((job, attempt, state, _), _)| (*job, *attempt, *state, is_gone)));
        }
    }
    lost
}

/// Logs a read that failed.
fn read<T>(result: ledger::Result<T>, lane: &LaneId) -> Result<T, Unread> {
    result.map_err(|error| {
        tracing::debug!(%error, %lane, "the lane's jobs could not be read");
        Unread
    })
}

/// Carries a read out; its answer goes to the state.
pub(super) fn start(actor: &mut LaneActor, wanted: Read, context: &mut Context<LaneActor>) {
    let (services, lane) = (Arc::clone(&actor.services), actor.lane.clone());
    if wanted == Read::Attempts {
        stop_if_lost_or_elsewhere(actor);
    }
    match wanted {
        Read::Jobs(ids) => {
            let jobs = async move {
                let found = match services.ledger.live_jobs(&ids).await {
                    Ok(jobs) => without_steps(&services.ledger, &services.clock, jobs).await,
                    Err(error) => Err(error),
                };
                (read(found, &lane), ids)
            };
            ask(context, jobs, |state, (found, ids), now| state.jobs_read(&ids, found, now));
        }
        Read::Waiting { page: id, group, limit } => {
            let page = async move {
                let jobs = read(services.ledger.waiting(&lane, &group, limit).await, &lane)?;
                // A page also ends when its payloads are many bytes.
                let bytes: usize = jobs.iter().map(|job| job.spec.payload.len()).sum();
                let is_all =
                    jobs.len() < limit as usize && bytes + PAYLOAD_BYTES_MAX < PAGE_BYTES_MAX as usize;
                Ok::<_, Unread>((jobs, is_all))
            };
            ask(context, page, move |state, page, now| state.waiting_read(id, page, now));
        }
        Read::Fifo { after } => {
            let page = async move { read(services.ledger.line(&lane, after, PAGE_JOBS).await, &lane) };
            ask(context, page, LaneState::fifo_read);
        }
        Read::Groups => {
            let all = async move { read(groups(&services.ledger, &lane).await, &lane) };
            ask(context, all, LaneState::groups_read);
        }
        Read::Attempts => {
            let all = async move { read(attempts(&services.ledger, &lane).await, &lane) };
            ask(context, all, LaneState::attempts_read);
        }
        Read::Coming { within_ms } => {
            let all = async move { read(coming(&services.ledger, &lane, within_ms).await, &lane) };
            ask(context, all, LaneState::coming_read);
        }
        Read::Stranded(by_node) => {
            let lost = async move { stranded(&services.scheduler, by_node).await };
            ask(context, lost, LaneState::stranded_read);
        }
    }
}

/// A lane whose lease is lost ends: its owner may have nothing to write, and as long as it is served here, this instance does not
/// open it again. A plan's lane ends with the plan's owner. A session that belongs elsewhere by now is handed on.
fn stop_if_lost_or_elsewhere(actor: &mut LaneActor) {
    let why = if actor.lane.plan_id().is_none() && actor.lease.was_lost() {
        "a lane whose lease was lost is served here no more"
    } else if belongs_elsewhere(actor) {
        "a session that belongs elsewhere is handed off"
    } else {
        return;
    };
    tracing::info!(resource = %actor.lane, token = %actor.state.token(), "{why}");
    // It ends when the read is over.
    let effects = actor.state.apply(LaneCommand::Stop, Instant::now());
    actor.outbox.extend(effects);
}

fn belongs_elsewhere(actor: &LaneActor) -> bool {
    let services = &actor.services;
    actor.lane.is_session()
        && services.cluster_view.owner_of(actor.lane.lease()) != cluster::KeyOwner::Here
        // Where it belongs there may be no node that it can reach.
        && !services.reach.is_apart()
        && !services.registry.lacks_records()
}

#[cfg(test)]
mod tests {
    use domain::Timestamp;
    use domain::job::{Assignment, Change, Due, NewJob, Outcome, Requirements};
    use domain::session::Spec;
    use ledger::{Acquisition, JobBatch, JobWrite, JobsVerdict};

    use super::*;
    use crate::jobs::fixture::{Ledger, instance, job, lane, node, spec};

    const HOUR_MS: u64 = 3_600_000;

    #[tokio::test]
    async fn no_attempt_has_run_for_longer_since_the_databases_clock_stepped_forward() {
        let (ledger, clock) = (Ledger::open().await, SharedClock::new(Duration::from_secs(1)));
        let read = async |ran_ms: [u64; 2]| {
            let running = |running_for_ms| LiveJob {
                running_for_ms,
                ..LiveJob::created(job(1), lane("instance:a"), spec())
            };
            let jobs = ran_ms.map(running).into();
            let jobs = without_steps(&ledger.handle, &clock, jobs).await.unwrap();
            jobs.iter().map(|job| job.running_for_ms).collect::<Vec<_>>()
        };
        assert_eq!(read([0, 0]).await, [0, 0]);
        assert_eq!(clock.shows(), None, "nobody asks for the time where nothing runs");
        // When it was looked at last, the clock was two hours behind: nobody has seen the step.
        let sent = Instant::now();
        let before_ms = ledger.handle.clock_ms().await.unwrap() - 2 * HOUR_MS;
        clock.saw(Timestamp::from_micros(0).plus_ms(before_ms), sent, Instant::now());
        let ran_ms = read([5_000, 3 * HOUR_MS]).await;
        assert!(ran_ms[0] == 0 && (HOUR_MS / 2..HOUR_MS * 3 / 2).contains(&ran_ms[1]), "{ran_ms:?}");
    }

    #[tokio::test]
    async fn a_reservation_stands_though_the_clock_stepped_forward_since_its_attempt_was_taken_back() {
        let reservation = Duration::from_millis(500);
        let (ledger, clock) = (Ledger::open().await, SharedClock::new(Duration::from_secs(1)));
        // When it was looked at last, the clock was two hours behind.
        let sent = Instant::now();
        let before_ms = ledger.handle.clock_ms().await.unwrap() - 2 * HOUR_MS;
        clock.saw(Timestamp::from_micros(0).plus_ms(before_ms), sent, Instant::now());
        let (id, of) = (SessionId::parse("s").unwrap(), lane("session:s"));
        let Acquisition::Acquired { token, .. } =
            ledger.handle.acquire(of.lease(), &instance("a"), 60_000).await.unwrap()
        else {
            panic!("nobody else has it");
        };
        let write = async |change| {
            let lane = ledger::Lane { id: of.clone(), owner: instance("a"), token };
            let writes = [JobWrite { change, key: None }].into();
            let verdict = ledger.handle.commit_jobs(JobBatch { lane: Some(lane), writes }).await.unwrap();
            assert!(matches!(verdict, JobsVerdict::Written { .. }));
        };
        let mut of_session = spec();
        of_session.session = Some(id.clone());
        write(Change::Submit(Box::new(NewJob {
            id: job(1),
            spec: of_session,
            seq: Some(1),
            client_ref: None,
            due: Due::Now,
            retry: None,
            placed: Some(Assignment { node: node("n"), holder: instance("a") }),
        })))
        .await;
        let (outcome, reason) = (Outcome::Cancelled, "cancelled".to_owned());
        write(Change::End { job: job(1), outcome, dead: false, attempt: None, reason }).await;
        let within_ms = reservation.as_millis() as u64;
        while ledger.handle.last_revoked(&id, within_ms).await.unwrap().is_some() {
            tokio::time::sleep(jittered(Duration::from_millis(20))).await;
        }
        let session = |idle_for_ms| SessionSnapshot {
            spec: Spec {
                tenant: None,
                needs: Requirements::default(),
                ordering: Ordering::Strict,
                idle_ms: HOUR_MS,
            },
            is_closed: false,
            idle_for_ms,
            last_seq: 1,
            unfinished: 0,
            affinity: None,
            recent_refs: Vec::new(),
        };
        let read = async |clock: &SharedClock, idle_for_ms| {
            last_revoked(&ledger.handle, clock, &id, &session(idle_for_ms), reservation).await.unwrap()
        };
        assert_eq!(read(&SharedClock::new(Duration::from_secs(1)), 0).await, None, "no step was seen");
        let found = read(&clock, 2 * HOUR_MS).await.map(|last| (last.job, last.ago_ms));
        assert_eq!(found, Some((job(1), 0)));
    }
}
