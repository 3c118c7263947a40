//! The background work of bulk operations: one task for each that this instance owns, page by page.
//!
//! What is written in which order, and what a crash leaves: the page's jobs are noted on the operation's row, then the action is
//! done to each, then the row says how far it has come. The next owner begins with the jobs of the page. A retry is made
//! under an idempotency key of the operation and the job, and only of a job that no other has retried; a cancelled job stays
//! cancelled. Jobs are dismissed and deleted in the transaction that notes the progress. Each write names the row's token: an
//! owner that was replaced writes nothing. In a ledger that went back in time none is taken, no progress is noted, and none ends.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::body::MessageBody;
use domain::job::Outcome;
use domain::{BulkId, IdempotencyKey, InstanceId, JobId};
use futures_util::StreamExt;
use ledger::{
    BulkAction, BulkRecord, BulkScan, BulkStatus, BulkStep, JobRecord, LastTold, OpenBulk, jittered,
};
use rand::RngExt;
use sha2::{Digest, Sha256};
use tracing::Instrument;
use wire::Code;

use super::doubts::Doubts;
use super::left::{Due, Left};
use super::purge::Purge;
use super::scan_size::{ScanSize, in_time};
use crate::auth::{Principal, Scope, Sees};
use crate::forwarder::{ForwardedRequest, Forwarder};
use crate::jobs::retries::{Retries, RetryKeys};
use crate::limits::{
    BULK_CANCELS_AT_ONCE, BULK_LOOK_EVERY, BULK_PAGE_JOBS, BULK_ROUND_PAUSE, BULK_ROUND_PAUSES_MAX,
    BULK_ROUNDS_MAX, BULK_SCAN_ROWS_MIN, BULKS_AT_ONCE, BULKS_OF_TOKEN_AT_ONCE,
};
use crate::refusal::{Refusal, count_defect};
use crate::state::{State, answered};
use crate::visibility;

/// The operations that this instance works on, with the tokens for which it does.
type Running = Rc<RefCell<HashMap<BulkId, String>>>;

/// When failures of the looks for operations were told of last.
static LOOK_TOLD: LastTold = LastTold::never();

/// What the runner keeps in memory.
#[derive(Default)]
pub struct Kept {
    pub running: Running,
    doubts: Rc<RefCell<Doubts>>,
    left: Left,
    /// Those that cannot be read.
    unreadable: HashSet<BulkId>,
}

/// Takes what has no owner, and works on it, until the instance drains.
pub async fn run(forwarder: Arc<Forwarder>) {
    let state = Arc::clone(forwarder.state());
    let mut kept = Kept::default();
    let mut purge = Purge::new(&state);
    while !state.traffic.is_draining() {
        if state.is_open() && state.went_back().is_none() {
            if let Err(refusal) = take(&forwarder, &mut kept, Instant::now()).await {
                tracing::debug!(%refusal, "the bulk operations could not be looked up");
            }
            purge.step(&state).await;
        }
        let pause = BULK_LOOK_EVERY.mul_f64(rand::rng().random_range(0.75..1.25));
        tokio::select! {
            () = state.bulk_woken.notified() => {}
            () = state.traffic.until_draining() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Begins to work on operations of this instance, and on those whose owner is dead. Those that cannot be read, such as a later
/// release's, are noted, and left to another instance. An instance without room, for any or for this token's, ends those that
/// somebody cancelled, and shows that it knows the tokens of those that others left: see [`Left`].
pub async fn take(forwarder: &Arc<Forwarder>, kept: &mut Kept, now: Instant) -> Result<(), Refusal> {
    let Kept { running, doubts, left, unreadable } = kept;
    let state = forwarder.state();
    let me = state.incarnation().identity.id.clone();
    let found = state.look(&LOOK_TOLD, state.ledger.open_bulks()).await?;
    doubts.borrow_mut().look(&found, &me);
    left.look(&found, &me, now);
    for open in found {
        let is_anothers = open.is_owned && open.owner != me;
        if is_anothers || running.borrow().contains_key(&open.id) || unreadable.contains(&open.id) {
            continue;
        }
        // One that somebody cancelled needs no place: it ends after a page at most.
        if !open.is_cancelling && !has_room(&running.borrow(), &open.principal) {
            if let Some(due) = left.due(&open, &me, now) {
                match hold_or_leave(state, &open, &me, due).await {
                    Ok(()) if due == Due::Leave => left.rest(open.id, now),
                    Ok(()) => {}
                    // It keeps the others from nothing.
                    Err(refusal) => {
                        tracing::debug!(bulk = %open.id, %refusal, "a bulk operation is neither held nor left");
                    }
                }
            }
            continue;
        }
        let is_known = |name: &str| submitter(state, name).is_ok();
        // Any instance may end one that somebody cancelled.
        if !open.is_cancelling && doubts.borrow().leaves(open.id, now, is_known) {
            continue;
        }
        let taken = state.ask(state.settings.request_timeout, state.ledger.take_bulk(&open, &me)).await;
        if let Some(Err(error @ ledger::Error::Impossible(_))) = &taken {
            tracing::warn!(bulk = %open.id, %error, "a bulk operation cannot be read, and is left to another instance");
            unreadable.insert(open.id);
            continue;
        }
        let bulk = match answered(taken) {
            Ok(Some(bulk)) => bulk,
            Ok(None) => continue,
            // It keeps the others from nothing.
            Err(refusal) if !refusal.code().is_retryable() => {
                tracing::debug!(bulk = %open.id, %refusal, "a bulk operation cannot be taken");
                continue;
            }
            Err(refusal) => return Err(refusal),
        };
        if open.is_left() {
            tracing::info!(bulk = %bulk.id, "a bulk operation that its last owner left to the others is taken");
        } else if open.owner != me {
            tracing::info!(bulk = %bulk.id, owner = %open.owner, "a bulk operation without a live owner is taken over");
        }
        running.borrow_mut().insert(bulk.id, open.principal);
        left.forget(bulk.id);
        let worker = Worker {
            forwarder: Arc::clone(forwarder),
            running: Rc::clone(running),
            doubts: Rc::clone(doubts),
            id: bulk.id,
            scan_size: Cell::new(ScanSize::first(BULK_SCAN_ROWS_MIN)),
        };
        actix_web::rt::spawn(async move { worker.work(bulk).await });
    }
    Ok(())
}

/// Whether this instance may work on one more operation of a token.
fn has_room(running: &HashMap<BulkId, String>, principal: &str) -> bool {
    let of_token = running.values().filter(|of| *of == principal).count();
    running.len() < BULKS_AT_ONCE && of_token < BULKS_OF_TOKEN_AT_ONCE
}

/// Takes an operation that others left, if its token is known here, to hold it for a moment; or leaves it again.
async fn hold_or_leave(state: &State, open: &OpenBulk, me: &InstanceId, due: Due) -> Result<(), Refusal> {
    let Some(bulk) = state.read(state.ledger.bulk(open.id)).await? else { return Ok(()) };
    let changed = match due {
        Due::Hold if submitter(state, &bulk.principal).is_ok() => {
            state.read(state.ledger.take_bulk(open, me)).await?
        }
        Due::Leave if bulk.owner == *me => state.read(state.ledger.leave_bulk(&bulk)).await?,
        Due::Hold | Due::Leave => None,
    };
    if changed.is_some() && due == Due::Hold {
        tracing::info!(bulk = %open.id, "others left a bulk operation whose token is known here; it is held for a moment");
    }
    Ok(())
}

/// The caller that asked for an operation, or why the operation ends.
fn submitter(state: &State, name: &str) -> Result<Arc<Principal>, &'static str> {
    match state.settings.auth.named(name) {
        Ok(principal) if principal.has(Scope::Submit) => Ok(principal),
        Ok(_) => Err("its token lost the scope submit"),
        Err(_) => Err("its token is not configured any more, or has expired"),
    }
}

/// Why an owner stops before the operation is over.
enum Stop {
    /// Another instance owns it, or it was ended.
    Lost,
    /// The ledger or another instance did not answer; the row says how far it has come.
    Away(Refusal),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Away(refusal)
    }
}

/// Works on one operation.
struct Worker {
    forwarder: Arc<Forwarder>,
    running: Running,
    doubts: Rc<RefCell<Doubts>>,
    id: BulkId,
    scan_size: Cell<ScanSize>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.running.borrow_mut().remove(&self.id);
    }
}

impl Worker {
    fn state(&self) -> &State {
        self.forwarder.state()
    }

    async fn work(&self, mut bulk: BulkRecord) {
        let (mut pause, mut is_stale) = (BULK_ROUND_PAUSE, false);
        // In a ledger that went back nothing goes on. What a recovery does not end is taken anew.
        while !self.state().traffic.is_draining()
            && self.state().went_back().is_none()
            && bulk.owner == self.state().incarnation().identity.id
        {
            let stepped = if is_stale { self.take_anew(&mut bulk).await } else { self.step(&mut bulk).await };
            match stepped {
                Ok(true) => return,
                Ok(false) => (pause, is_stale) = (BULK_ROUND_PAUSE, false),
                Err(Stop::Lost) => {
                    tracing::debug!(bulk = %self.id, "the bulk operation is another instance's, or over");
                    return;
                }
                Err(Stop::Away(refusal)) => {
                    tracing::debug!(bulk = %self.id, %refusal, "a bulk operation waits");
                    // Whether the last write was done, or will be, is not known before the operation is taken anew.
                    is_stale = true;
                    self.sleep(jittered(pause)).await;
                    pause = (pause * 2).min(BULK_ROUND_PAUSE * 20);
                }
            }
        }
    }

    /// One page. `true` when the operation is over, or left to another instance.
    async fn step(&self, bulk: &mut BulkRecord) -> Result<bool, Stop> {
        let state = self.state();
        if ends_now(bulk.status, &bulk.page) {
            return self.finish(bulk, BulkStatus::Cancelled, None).await;
        }
        let principal = match submitter(state, &bulk.principal) {
            Ok(principal) => principal,
            Err(_) if bulk.status == BulkStatus::Cancelling => {
                return self.finish(bulk, BulkStatus::Cancelled, None).await;
            }
            Err(why) => return self.leave(bulk, why).await,
        };
        self.doubts.borrow_mut().forget(self.id);
        let begun = Instant::now();
        let is_resumed = !bulk.page.is_empty();
        let (page, next) = match is_resumed {
            true => (bulk.page.clone(), bulk.page.last().copied()),
            false => self.scan(bulk, principal.sees()).await?,
        };
        // Behind the page where no row was left: the operation is over once the next scan finds none.
        let Some(behind) = next.or(page.last().copied()) else {
            return self.finish(bulk, BulkStatus::Done, None).await;
        };
        // Jobs that the caller does not see are not counted either.
        let page = if is_resumed { page } else { self.seen(&principal, page).await? };
        if page.is_empty() {
            // Nothing matched that the caller sees: the next owner need not look at these rows again.
            let noted = state.read(state.ledger.note_progress(bulk, behind, &BulkStep::default())).await?;
            *bulk = self.written(bulk, noted).await?;
            // Half of the time is for others.
            self.sleep(begun.elapsed()).await;
            return Ok(false);
        }
        let jobs = page.len() as u32;
        let noted = match bulk.action {
            BulkAction::Delete | BulkAction::Dismiss => {
                state.read(state.ledger.remove_page(bulk, &page, behind)).await?
            }
            BulkAction::Retry | BulkAction::Cancel => {
                if !is_resumed {
                    match state.read(state.ledger.begin_page(bulk, &page)).await? {
                        Some(noted) => *bulk = noted,
                        // It is to end, or it is another instance's.
                        None => return self.look_again(bulk).await,
                    }
                }
                let bulk = &*bulk;
                let round = async |left, step: &mut BulkStep, may_be_done| -> Result<Again, Stop> {
                    // Rounds may take minutes, in which the token may be taken away or see less. The row has the page.
                    let principal = submitter(state, &bulk.principal);
                    let principal = principal.map_err(|why| Refusal::new(Code::Unauthorized, why))?;
                    match bulk.action {
                        BulkAction::Retry => self.retry(bulk, &principal, left, step, may_be_done).await,
                        _ => Ok(self.cancel(bulk, &principal, left, step, may_be_done).await),
                    }
                };
                let span = tracing::info_span!("bulk", bulk = %self.id);
                let step = in_rounds(self.state(), page, is_resumed, round).instrument(span).await?;
                state.read(state.ledger.note_progress(bulk, behind, &step)).await?
            }
        };
        *bulk = self.written(bulk, noted).await?;
        let due = Duration::from_secs_f64(f64::from(jobs) / f64::from(bulk.rate.max(1)));
        self.sleep(due.saturating_sub(begun.elapsed())).await;
        Ok(false)
    }

    /// The next jobs that match among a bounded number of rows, and behind which job the next scan begins. A statement that
    /// takes too long is sent again for fewer rows.
    async fn scan(&self, bulk: &BulkRecord, sees: &Sees) -> Result<(Vec<JobId>, Option<JobId>), Stop> {
        let (state, filter) = (self.state(), visibility::narrowed(sees, &bulk.filter));
        let scan = |rows_max: u32| {
            let jobs_max = BULK_PAGE_JOBS.min(bulk.rate);
            BulkScan { behind: bulk.behind, jobs_max, rows_max }
        };
        let look = async |rows: u32| {
            // The wait for a turn does not count as the statement's time. Nobody closes the semaphore.
            let turn = Arc::clone(&state.bulk_scans).acquire_owned().await.ok();
            let next = state.ledger.next_of_bulk(bulk.action, &filter, bulk.before, scan(rows));
            state.ask(state.settings.request_timeout, ledger::keeping(turn, next)).await
        };
        let mut size = self.scan_size.get();
        let found = in_time(self.id, &mut size, look).await;
        // The next scan begins with fewer rows also where this one failed.
        self.scan_size.set(size);
        let (found, scan) = (found?, scan(size.rows));
        size.adapt(found.jobs.len() >= scan.jobs_max as usize);
        self.scan_size.set(size);
        let next = found.next(&scan);
        Ok((found.jobs, next))
    }

    /// Takes the operation with the next token, as a takeover does. A write that was sent before and whose outcome is not known
    /// is seen in the row now, or finds no row with its token when the ledger comes to it.
    async fn take_anew(&self, bulk: &mut BulkRecord) -> Result<bool, Stop> {
        let (state, me) = (self.state(), bulk.owner.clone());
        // The token is not the one that is known here where the answer to an earlier taking was lost.
        let now = state.read(state.ledger.bulk(self.id)).await?;
        let now = now.filter(|now| now.owner == me && !now.status.is_over()).ok_or(Stop::Lost)?;
        let is_cancelling = now.status == BulkStatus::Cancelling;
        let open = OpenBulk {
            id: now.id,
            principal: now.principal,
            owner: now.owner,
            token: now.token,
            is_owned: true,
            is_cancelling,
        };
        *bulk = state.read(state.ledger.take_bulk(&open, &me)).await?.ok_or(Stop::Lost)?;
        Ok(false)
    }

    /// Reads the row again, as it is now.
    async fn look_again(&self, bulk: &mut BulkRecord) -> Result<bool, Stop> {
        *bulk = self.unless_lost(bulk).await?.ok_or(Stop::Lost)?;
        Ok(false)
    }

    /// The row as a write left it.
    async fn written(&self, bulk: &BulkRecord, row: Option<BulkRecord>) -> Result<BulkRecord, Stop> {
        if row.is_none()
            && let Err(refusal) = self.unless_lost(bulk).await
        {
            tracing::debug!(bulk = %self.id, %refusal, "it is not known whether a write was fenced");
        }
        row.ok_or(Stop::Lost)
    }

    /// The row as it is after a write that found none, unless the operation is over or another owner's. That of a later owner has
    /// fenced the write.
    async fn unless_lost(&self, bulk: &BulkRecord) -> Result<Option<BulkRecord>, Refusal> {
        let row = self.state().read(self.state().ledger.bulk(self.id)).await?;
        if row.as_ref().is_some_and(|row| row.token > bulk.token) {
            metrics::counter!("fencepost_fence_reject_total", "op" => "bulk").increment(1);
            let (resource, token, instance) = (format!("bulk:{}", self.id), bulk.token, &bulk.owner);
            tracing::warn!(%resource, operation = "bulk", %token, %instance, "a stale owner was fenced");
        }
        Ok(row.filter(|row| row.token == bulk.token && !row.status.is_over()))
    }

    /// Leaves the operation to an instance that knows its token, which may have newer ones. Ends it where that has been tried
    /// for long enough.
    async fn leave(&self, bulk: &BulkRecord, why: &str) -> Result<bool, Stop> {
        if self.doubts.borrow().is_over(self.id, Instant::now()) {
            return self.finish(bulk, BulkStatus::Failed, Some(why)).await;
        }
        let left = self.state().read(self.state().ledger.leave_bulk(bulk)).await?;
        self.written(bulk, left).await?;
        // Only now: while the ledger takes no writes, no other instance can take it.
        self.doubts.borrow_mut().note(self.id, &bulk.principal, Instant::now());
        tracing::warn!(
            bulk = %self.id, principal = %bulk.principal, why,
            "a bulk operation is left to an instance that knows its token"
        );
        Ok(true)
    }

    async fn finish(&self, bulk: &BulkRecord, status: BulkStatus, why: Option<&str>) -> Result<bool, Stop> {
        let ended = self.state().read(self.state().ledger.finish_bulk(bulk, status, why)).await?;
        let ended = self.written(bulk, ended).await?;
        tracing::info!(
            bulk = %ended.id, action = ended.action.as_str(), status = status.as_str(), done = ended.done,
            skipped = ended.skipped, failed = ended.failed, "a bulk operation is over"
        );
        Ok(true)
    }

    /// Retries jobs, each once. Returns those to try again.
    async fn retry(
        &self,
        bulk: &BulkRecord,
        principal: &Arc<Principal>,
        mut left: Vec<JobId>,
        step: &mut BulkStep,
        may_be_done: bool,
    ) -> Result<Again, Stop> {
        let state = self.state();
        let key = IdempotencyKey::parse(&bulk.id.to_string()).map_err(Refusal::from)?;
        let body_hash = Sha256::digest(bulk.id.to_string()).into();
        let keys = RetryKeys::new(Some(key), Arc::clone(principal), body_hash);
        if may_be_done {
            // An earlier owner, or an earlier round that got no answer, retried these under the operation's own keys.
            let made = keys.made(state, &left, true).await?;
            step.done += made.len() as u64;
            left.retain(|id| !made.contains_key(id));
        }
        let tried = left.len() as u64;
        let forwarded = ForwardedRequest::for_bulk(principal, bulk.id);
        let deadline = Instant::now() + state.settings.request_timeout;
        let is_about_dead = bulk.filter.dead == Some(true);
        let mut retries = Retries::new(&self.forwarder, forwarded, keys, is_about_dead, deadline);
        retries.run(&left).await?;
        let (made, not_retried) = retries.into_outcome();
        step.done += made;
        let (again, refused): (Vec<_>, Vec<_>) =
            not_retried.into_iter().partition(|(_, refusal)| refusal.code().is_retryable());
        let failed: Vec<_> = refused.into_iter().filter(|(_, refusal)| !leaves_out(refusal.code())).collect();
        step.failed += failed.len() as u64;
        // Some do not allow it; those without a word were retried by somebody else.
        step.skipped += tried - made - again.len() as u64 - failed.len() as u64;
        for (_, refusal) in failed {
            step.error = Some(why_failed(refusal.code_and_detail()));
        }
        let jobs = again.iter().map(|(id, _)| *id).collect();
        Ok(Again { jobs, why: again.into_iter().next_back().map(|(_, refusal)| refusal.code_and_detail().1) })
    }

    /// Cancels jobs, on whichever instance owns their lanes. Returns those to try again.
    async fn cancel(
        &self,
        bulk: &BulkRecord,
        principal: &Arc<Principal>,
        left: Vec<JobId>,
        step: &mut BulkStep,
        may_be_done: bool,
    ) -> Again {
        let one = |id: JobId| async move { (id, self.cancel_one(bulk, principal, id, may_be_done).await) };
        let ends: Vec<_> =
            futures_util::stream::iter(left).map(one).buffer_unordered(BULK_CANCELS_AT_ONCE).collect().await;
        let mut again = Again::default();
        for (id, end) in ends {
            match end {
                Ok(true) => step.done += 1,
                Ok(false) => step.skipped += 1,
                Err(refusal) if refusal.code().is_retryable() => {
                    again.jobs.push(id);
                    again.why = Some(refusal.code_and_detail().1);
                }
                Err(refusal) => {
                    count_defect(&refusal);
                    step.failed += 1;
                    step.error = Some(why_failed(refusal.code_and_detail()));
                }
            }
        }
        again
    }

    /// Whether this cancelled the job, now or before.
    async fn cancel_one(
        &self,
        bulk: &BulkRecord,
        principal: &Arc<Principal>,
        id: JobId,
        may_be_done: bool,
    ) -> Result<bool, Refusal> {
        let state = self.state();
        let Some(record) = state.read(state.ledger.job(id)).await? else { return Ok(false) };
        if !visibility::job(state, principal.sees(), &record).await? {
            return Ok(false);
        }
        // Whenever that was: the operation found the job unfinished. The database's clock may have been set back since.
        let is_cancelled = |record: &JobRecord| {
            record.finished.as_ref().is_some_and(|end| end.outcome == Outcome::Cancelled)
        };
        if record.finished.is_some() {
            return Ok(may_be_done && is_cancelled(&record));
        }
        // It may have gone on since the page was noted, which an earlier owner may have done.
        if bulk.filter.state.is_some_and(|state| state != record.state) {
            return Ok(false);
        }
        match state.call(state.incarnation().jobs.cancel(id)).await {
            Ok(record) => Ok(is_cancelled(&record)),
            Err(actors::jobs::Refusal::UnknownJob) => Ok(false),
            Err(actors::jobs::Refusal::NotOwner { owner }) => {
                let own = ForwardedRequest::for_bulk(principal, bulk.id);
                let passed = own.within("POST", format!("/v1/jobs/{id}/cancel"), None);
                let answer = self.forwarder.to_instance(&passed, &owner).await?;
                let is_done = answer.status().is_success();
                let body = answer.into_body().try_into_bytes().unwrap_or_default();
                match serde_json::from_slice::<wire::jobs::Job>(&body) {
                    Ok(job) if is_done => Ok(job.outcome == Some(wire::jobs::Outcome::Cancelled)),
                    _ => match Refusal::passed_back(&body) {
                        Some(refusal) if refusal.code() == Code::NotFound => Ok(false),
                        Some(refusal) => Err(refusal),
                        None => Err(Refusal::new(Code::NotOwner, format!("{owner} did not cancel job {id}"))),
                    },
                }
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The jobs that the operation's caller sees.
    async fn seen(&self, principal: &Principal, page: Vec<JobId>) -> Result<Vec<JobId>, Refusal> {
        if principal.sees().everything() {
            return Ok(page);
        }
        let (state, mut seen) = (self.state(), Vec::with_capacity(page.len()));
        for id in page {
            if visibility::job_of_many(state, principal.sees(), id).await? == Some(true) {
                seen.push(id);
            }
        }
        Ok(seen)
    }

    async fn sleep(&self, pause: Duration) {
        sleep(self.state(), pause).await;
    }
}

/// Jobs to try again, and why the last of them must be.
#[derive(Default)]
struct Again {
    jobs: Vec<JobId>,
    why: Option<String>,
}

/// Does a round with the jobs of a page, and another one with those that it leaves, until none is left or too many rounds
/// failed. The round's flag says whether the action may have been done to some of its jobs before. The error of the step is one
/// of a job that has failed: rounds note no other. An instance that drains leaves the page to the next owner.
async fn in_rounds(
    state: &State,
    page: Vec<JobId>,
    is_resumed: bool,
    round: impl AsyncFn(Vec<JobId>, &mut BulkStep, bool) -> Result<Again, Stop>,
) -> Result<BulkStep, Stop> {
    let (mut step, mut left) = (BulkStep::default(), page);
    for done in 0.. {
        let again = round(left, &mut step, is_resumed || done > 0).await?;
        if again.jobs.is_empty() {
            break;
        }
        if state.traffic.is_draining() {
            return Err(Stop::Lost);
        }
        if done + 1 >= BULK_ROUNDS_MAX {
            step.failed += again.jobs.len() as u64;
            step.error = again.why.or(step.error);
            break;
        }
        left = again.jobs;
        sleep(state, jittered(pause_after(done))).await;
    }
    Ok(step)
}

async fn sleep(state: &State, pause: Duration) {
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = state.traffic.until_draining() => {}
    }
}

/// Whether a retry that was refused so is left out: the job is gone, or does not allow it, or its session is closed or gone.
const fn leaves_out(code: Code) -> bool {
    matches!(code, Code::Conflict | Code::NotFound)
}

/// What an operation says of a job that has failed. A defect was logged in the span of the operation.
fn why_failed((code, detail): (Code, String)) -> String {
    match code {
        Code::Internal => "this is a defect; the log has more under the id of the bulk operation".to_owned(),
        _ => detail,
    }
}

/// Whether an operation is over because somebody cancelled it. An earlier owner may have done the action to jobs of its page,
/// which are counted only once that is worked through.
const fn ends_now(status: BulkStatus, page: &[JobId]) -> bool {
    matches!(status, BulkStatus::Cancelling) && page.is_empty()
}

/// The pause after so many vain tries and one more, before jitter. All of them together outlast an instance that drains, and the
/// takeover of what it owned: jobs that wait for that have not failed.
fn pause_after(round: u32) -> Duration {
    BULK_ROUND_PAUSE * (round + 1).min(BULK_ROUND_PAUSES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Auth;
    use crate::settings::Settings;

    #[actix_web::test]
    async fn the_error_of_a_page_is_never_that_of_a_job_that_a_later_round_was_done_to() {
        let dir = tempfile::TempDir::new().unwrap();
        let state = crate::tests::state_with(&dir, Settings::new(Auth::open())).await;
        let page = || [1, 2].map(JobId::from_u128).to_vec();
        for (failed, error) in [(1, Some("unreadable")), (0, None)] {
            let rounds = Cell::new(0);
            let round = async |_left: Vec<JobId>, step: &mut BulkStep, _may_be_done: bool| {
                rounds.set(rounds.get() + 1);
                if rounds.get() == 1 {
                    step.failed += failed;
                    step.error = error.map(str::to_owned);
                }
                match rounds.get() {
                    3 => Ok(Again::default()),
                    _ => Ok(Again { jobs: vec![JobId::from_u128(2)], why: Some("draining".to_owned()) }),
                }
            };
            let Ok(step) = in_rounds(&state, page(), false, round).await else { panic!("it is not stopped") };
            assert_eq!(rounds.get(), 3);
            assert_eq!(step, BulkStep { failed, error: error.map(str::to_owned), ..BulkStep::default() });
        }
    }

    #[test]
    fn a_cancelled_operation_ends_once_the_page_of_an_earlier_owner_is_worked_through() {
        let page = [JobId::from_u128(1)];
        assert!(!ends_now(BulkStatus::Cancelling, &page));
        assert!(ends_now(BulkStatus::Cancelling, &[]));
        assert!(!ends_now(BulkStatus::Running, &page) && !ends_now(BulkStatus::Running, &[]));
    }

    #[test]
    fn jobs_of_an_instance_that_drains_are_tried_until_it_is_gone() {
        let tried_for: Duration = (0..BULK_ROUNDS_MAX - 1).map(pause_after).sum();
        // A drain takes 30 s at most, and its lanes have another owner within seconds.
        assert!(tried_for >= Duration::from_secs(45), "{tried_for:?}");
        assert!(pause_after(u32::MAX - 1) <= Duration::from_secs(2), "nor is a page held up by one job");
    }
}
