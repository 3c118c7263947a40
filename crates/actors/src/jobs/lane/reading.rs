//! What a lane's owner reads of the ledger: everything at the beginning of a tenure, a little now and then.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::JobId;
use domain::job::{OnRecovery, Revoked, State};
use domain::limits::PAYLOAD_BYTES_MAX;
use futures_util::future::join_all;
use ledger::{LiveJob, PAGE_BYTES_MAX, UnderWay};

use super::round::Round;
use super::{Lane, Over};
use crate::jobs::book::Book;
use crate::jobs::limits::{ATTEMPTS_PAGE, NODES_ASKED_MAX, PAGE_JOBS, REREAD_EVERY, RESERVATION};
use crate::jobs::line::{Line, Next};
use crate::jobs::tenancy::Lost;
use crate::pause::jittered;

/// Between two tries to learn anew what the ledger has, before jitter.
const RELOAD_EVERY: Duration = Duration::from_millis(200);

impl Lane {
    /// Reads one job again, after a write of it found it otherwise.
    pub(super) async fn look_up(&mut self, id: JobId, now: Instant) {
        match self.inner.live_job(id).await {
            Ok(found) => {
                if let Some(job) = found.filter(|job| job.lane == self.resource) {
                    self.book.forget(id);
                    self.inner.placer.forget(id);
                    self.learn(Arc::new(job), now);
                } else {
                    self.over(id, now);
                }
            }
            Err(error) => {
                tracing::debug!(%error, job = %id, "a job was not read again");
                self.book.look_again(id, now + REREAD_EVERY);
            }
        }
    }

    /// A job as the ledger has it.
    fn learn(&mut self, job: Arc<LiveJob>, now: Instant) {
        let newest = job.newest;
        match (newest.state, job.placed.clone()) {
            (State::Dispatched | State::Running, Some(placed)) => {
                self.book.fly(job, newest, placed, now);
                self.relearn_line();
            }
            _ if self.line().is_some() => self.relearn_line(),
            _ if self.tenancy.is_adopted() && job.spec.on_recovery == OnRecovery::Hold => {}
            _ if job.due_at.is_some() => {
                // How long it still has is asked for with the others.
                self.reread_at = self.reread_at.min(now);
            }
            _ => {
                self.wait_in_group(job);
            }
        }
    }

    /// The lease is acquired anew, and everything learnt again.
    pub(super) async fn anew(&mut self) -> Result<(), Over> {
        loop {
            if self.inner.is_over() {
                return Err(Over::Lost);
            }
            match self.tenancy.acquire_anew().await {
                Ok(Some(token)) => {
                    self.token = token;
                    return self.load().await;
                }
                Ok(None) => tokio::time::sleep(jittered(RELOAD_EVERY)).await,
                Err(Lost) => return Err(Over::Lost),
            }
        }
    }

    /// Learns what the ledger has of this lane, after an acquire that was answered. Tries until it does.
    pub(super) async fn load(&mut self) -> Result<(), Over> {
        loop {
            if self.inner.is_over() {
                return Err(Over::Lost);
            }
            self.book = Book::default();
            self.conversation = None;
            self.inner.placer.forget_lane(&self.resource);
            match self.read_all().await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, lane = %self.resource, "the lane's jobs could not be read; trying again");
                    tokio::time::sleep(jittered(RELOAD_EVERY)).await;
                    if !self.tenancy.is_current() {
                        match self.tenancy.acquire_anew().await {
                            Ok(Some(token)) => self.token = token,
                            Ok(None) => {}
                            Err(Lost) => return Err(Over::Lost),
                        }
                    }
                }
            }
        }
    }

    async fn read_all(&mut self) -> ledger::Result<()> {
        let ledger = self.inner.ledger.clone();
        self.read_session().await?;
        let mut after = None;
        loop {
            let page = ledger.in_flight(&self.resource, after, PAGE_JOBS).await?;
            let Some(last) = page.last().map(|job| job.id) else { break };
            after = Some(last);
            for job in page {
                self.learn(Arc::new(job), Instant::now());
            }
        }
        if self.line().is_some() {
            self.relearn_line();
            self.reread_at = Instant::now() + jittered(REREAD_EVERY);
            return self.fill().await;
        }
        let mut after = None;
        loop {
            let page = ledger.waiting_groups(&self.resource, after.as_ref(), PAGE_JOBS).await?;
            let Some(last) = page.last().cloned() else { break };
            after = Some(last);
            page.into_iter().for_each(|group| self.book.heard_of(group));
        }
        self.read_coming().await?;
        self.reread_at = Instant::now() + jittered(REREAD_EVERY);
        self.fill().await
    }

    /// Delayed jobs that come due before the next look.
    async fn read_coming(&mut self) -> ledger::Result<()> {
        let within_ms = (REREAD_EVERY * 2).as_millis() as u64;
        let mut after = None;
        loop {
            let asked = Instant::now();
            let coming = self.inner.ledger.coming_due(&self.resource, after, within_ms, PAGE_JOBS).await?;
            let Some((last, _)) = coming.last() else { return Ok(()) };
            after = last.due_at.map(|due_at| (due_at, last.id));
            for (job, due_in_ms) in coming {
                if self.book.get(job.id).is_none()
                    && !(self.tenancy.is_adopted() && job.spec.on_recovery == OnRecovery::Hold)
                {
                    self.delay(Arc::new(job), due_in_ms, asked, None);
                }
            }
        }
    }

    /// Reads more waiting jobs where few of many are known.
    pub(super) async fn fill(&mut self) -> ledger::Result<()> {
        if self.line().is_some() {
            return self.fill_line().await;
        }
        while let Some((group, inside)) = self.book.group_to_fill() {
            let limit = PAGE_JOBS + inside as u32;
            let read = self.inner.ledger.waiting(&self.resource, &group, limit).await?;
            // A page also ends when its payloads are many bytes.
            let bytes: usize = read.iter().map(|job| job.spec.payload.len()).sum();
            let is_all = read.len() < limit as usize && bytes + PAYLOAD_BYTES_MAX < PAGE_BYTES_MAX as usize;
            let held = |job: &LiveJob| self.tenancy.is_adopted() && job.spec.on_recovery == OnRecovery::Hold;
            let read: Vec<_> = read.into_iter().filter(|job| !held(job)).collect();
            let new = self.book.fill(&group, read, is_all);
            for job in new {
                self.enqueue(job);
            }
        }
        Ok(())
    }

    async fn fill_line(&mut self) -> ledger::Result<()> {
        while let Some(after) = self.line().and_then(Line::to_read) {
            let asked = Instant::now();
            let read = self.inner.ledger.line(&self.resource, after, PAGE_JOBS).await?;
            let next = read.into_iter().map(|(job, due_in_ms)| Next {
                job: Arc::new(job),
                due: asked + Duration::from_millis(due_in_ms),
            });
            let next = next.collect();
            if let Some(line) = self.line_mut() {
                line.fill(next);
            }
        }
        Ok(())
    }

    pub(super) fn is_time_to_reread(&self, now: Instant) -> bool {
        now >= self.reread_at
    }

    /// What a lost notice would have told: results, failures, and attempts whose slot is gone.
    pub(super) async fn reread(&mut self) -> ledger::Result<()> {
        let asked = Instant::now();
        self.reread_at = asked + jittered(REREAD_EVERY);
        self.book.look_at_groups_again();
        self.look_where_it_belongs();
        let mut known = HashSet::new();
        let mut after = None;
        loop {
            let page = self.inner.ledger.under_way(&self.resource, after, ATTEMPTS_PAGE).await?;
            let Some(last) = page.last().map(|attempt| attempt.job) else { break };
            after = Some(last);
            for UnderWay { job, attempt, state } in page {
                known.insert((job, attempt));
                if state == State::Running {
                    self.book.acknowledged(job, attempt, asked);
                }
            }
        }
        for job in self.book.unheard_of(&known, asked.checked_sub(RESERVATION).unwrap_or(asked)) {
            self.look_up(job, asked).await;
        }
        match self.line().map(Line::turn) {
            None => self.read_coming().await?,
            // Whoever has the turn is in the book, or was lost on the way.
            Some(Some(turn)) if self.book.get(turn).is_none() => self.relearn_line(),
            Some(_) => {}
        }
        self.look_for_stranded(asked).await;
        Ok(())
    }

    /// Attempts that have neither a result nor a slot, though their node's slots are all known, are lost.
    async fn look_for_stranded(&mut self, now: Instant) {
        let mut by_node: HashMap<_, Vec<_>> = HashMap::new();
        for (job, attempt, flight, state) in self.book.long_under_way(now) {
            by_node.entry(flight.placed.node.clone()).or_default().push((job, attempt, state));
        }
        let by_node: Vec<_> = by_node.into_iter().collect();
        let mut looked = Vec::with_capacity(by_node.len());
        for nodes in by_node.chunks(NODES_ASKED_MAX) {
            let looks = nodes.iter().map(|(node, attempts)| {
                let slots: Vec<_> = attempts.iter().map(|(job, attempt, _)| (*job, *attempt)).collect();
                let (placer, node) = (Arc::clone(&self.inner.placer), node.clone());
                async move {
                    match placer.is_surely_gone(&node) {
                        true => (true, vec![true; slots.len()]),
                        false => (false, placer.missing(&node, &slots).await),
                    }
                }
            });
            let looks = join_all(looks);
            looked.extend(looks.await);
        }
        let mut round = Round::default();
        for ((_, attempts), (is_gone, lost)) in by_node.into_iter().zip(looked) {
            for ((job, attempt, state), lost) in attempts.into_iter().zip(lost) {
                if lost {
                    let (why, reason) = match state {
                        State::Running if is_gone => (Revoked::NodeLost, "the node is gone"),
                        State::Running => (Revoked::Unlisted, "the node does not know of it any more"),
                        _ => (Revoked::Undeliverable, "it never reached the node"),
                    };
                    self.revoke(job, attempt, why, reason.to_owned(), &mut round);
                }
            }
        }
        if !round.items.is_empty() {
            // A commit that fails has everything learnt again; should the lease be lost, the next round says so.
            let _ = self.commit(round).await;
            self.tell().await;
        }
    }
}
