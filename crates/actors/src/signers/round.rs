//! Rounds: what waits is decided together, committed as one batch, and answered. A round that may or may
//! not have been committed is never guessed at: its tenure ends, and what it was to do is decided again on
//! what the ledger has then (I9).

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use domain::limits::{EXPIRIES_MAX, HOLES_IN_MEMORY_MAX};
use domain::{Mode, Resource, SignerId, Timestamp};

use super::command::{Command, Work};
use super::draft::{Draft, Facts};
use super::pause::{RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};
use super::tenure::{Tenure, Trouble};
use super::{Inner, Refusal};
use crate::pause::jittered;

/// Between two looks at a lease that another instance has, before jitter.
const LOOK_PAUSE: Duration = Duration::from_millis(15);
/// The serving of some work to its end: an answer, or a refusal, for each.
pub(super) struct Rounds<'a> {
    pub(super) inner: &'a Inner,
    pub(super) signer: &'a SignerId,
    pub(super) mode: Mode,
    /// The tenure, as it is found and left.
    pub(super) tenure: &'a mut Option<Tenure>,
    /// Whether the last acquire was sent without an answer: the lease may be this instance's.
    pub(super) unheard: &'a mut bool,
    pub(super) works: VecDeque<Work>,
}

impl Rounds<'_> {
    pub(super) async fn run(mut self) {
        let mut pause = RETRY_PAUSE_MIN;
        loop {
            if self.inner.is_over() {
                self.refuse_all(&Refusal::Fenced);
            }
            self.drop_hopeless();
            if self.works.is_empty() {
                return;
            }
            match self.round().await {
                Ok(()) => pause = RETRY_PAUSE_MIN,
                Err(Trouble::Refused(refusal)) => self.wait_or_refuse(&refusal).await,
                Err(Trouble::Fenced { op }) => {
                    self.report_fenced(op);
                    self.refuse_all(&Refusal::Fenced);
                    self.inner.reclaim(self.signer).await;
                }
                Err(Trouble::Defect) => {
                    self.spoil();
                    self.refuse_all(&Refusal::Internal);
                }
                // The state in memory and the ledger differ: begin again from the ledger.
                Err(Trouble::Reload) => self.spoil(),
                Err(Trouble::Away) => {
                    if let Some(tenure) = self.tenure {
                        tenure.spoil_away();
                    }
                    let patience = self.works.iter().map(|work| work.ticket.deadline).max();
                    let left = patience
                        .map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
                    tokio::time::sleep(jittered(pause).min(left)).await;
                    pause = (pause * 2).min(RETRY_PAUSE_MAX);
                }
            }
        }
    }

    /// Work whose caller has left is not begun: nobody would ever settle what it grants. Nor is work that
    /// has waited too long: each such try would keep those behind it waiting too.
    fn drop_hopeless(&mut self) {
        let now = Instant::now();
        for work in std::mem::take(&mut self.works) {
            if work.is_abandoned() {
                continue;
            }
            if now >= work.ticket.deadline {
                work.refuse(Refusal::LedgerUnavailable);
            } else {
                self.works.push_back(work);
            }
        }
    }

    fn refuse_all(&mut self, refusal: &Refusal) {
        for work in self.works.drain(..) {
            work.refuse(refusal.clone());
        }
    }

    /// Another instance has the lease: whoever still has patience waits for a moment.
    async fn wait_or_refuse(&mut self, refusal: &Refusal) {
        let now = Instant::now();
        for work in std::mem::take(&mut self.works) {
            if now >= work.ticket.patience {
                work.refuse(refusal.clone());
            } else {
                self.works.push_back(work);
            }
        }
        if !self.works.is_empty() {
            tokio::time::sleep(jittered(LOOK_PAUSE)).await;
        }
    }

    fn spoil(&mut self) {
        if let Some(tenure) = self.tenure {
            tenure.spoil();
        }
    }

    fn report_fenced(&mut self, operation: &'static str) {
        let token = self.tenure.take().map_or(0, |tenure| tenure.token().get());
        let (resource, instance) = (Resource::signer(self.signer), &self.inner.owner);
        metrics::counter!("fencepost_fence_reject_total", "op" => operation).increment(1);
        tracing::warn!(%resource, operation, token, %instance, "a stale owner was fenced");
    }

    /// One round: facts, decisions, commit, answers. What could not be part of it stays in `works`, and on
    /// trouble all of it does.
    async fn round(&mut self) -> Result<(), Trouble> {
        let inner = self.inner;
        if !self.tenure.as_ref().is_some_and(Tenure::is_current) {
            // An instance that cannot show that it lives writes for nobody until it can.
            if !inner.standing.is_alive() {
                return Err(Trouble::Away);
            }
            let acquired = Tenure::acquire(inner, self.signer, self.mode).await;
            *self.unheard = matches!(acquired, Err(Trouble::Away));
            let acquired = acquired?;
            // Kept before it is loaded: whatever happens from here on, the lease is to be given back.
            self.tenure.insert(acquired).load(inner).await?;
        }
        let tenure = self.tenure.as_mut().expect("just seen to");
        if self.works.iter().any(|work| matches!(work.command, Command::Sweep(_))) {
            sweep(inner, tenure).await?;
        }
        tenure.expire_due(inner).await?;
        // Settlements count too: one that comes late takes a hole away before a grant behind it is decided.
        let nonces = self.works.iter().map(Work::nonces);
        if tenure.allocator.lacks_holes_for(nonces.sum()) {
            let (holes, complete) = inner.ledger.holes(self.signer, HOLES_IN_MEMORY_MAX).await?;
            tenure.allocator.refill(holes, complete);
        }
        let facts = read_facts(inner, self.signer, &self.works).await?;
        let mut draft = Draft::default();
        let mut later = VecDeque::new();
        for work in self.works.drain(..) {
            // Order is kept: behind one that must wait, all wait.
            if later.is_empty() {
                later.extend(draft.decide(inner, tenure, &facts, work));
            } else {
                later.push_back(work);
            }
        }
        self.works = later;
        if draft.is_empty() {
            return Ok(());
        }
        let sent = Instant::now();
        let committed = match draft.batch(tenure.batch(inner)) {
            Some(batch) => tenure.commit(inner, draft.operation(), batch).await,
            // Nothing changes: what was read is the answer.
            None => Ok(Some(Timestamp::from_micros(0))),
        };
        match committed {
            Ok(Some(at)) => {
                inner.remember(self.signer);
                draft.answer(tenure, at, sent);
                Ok(())
            }
            // An idempotency key was taken since the facts were read. What was decided beside it is not in
            // the ledger either.
            Ok(None) => self.decide_again(draft, Trouble::Reload),
            Err(trouble) => self.decide_again(draft, trouble),
        }
    }

    fn decide_again(&mut self, draft: Draft, trouble: Trouble) -> Result<(), Trouble> {
        // Told that nothing was written is only who surely was not.
        let unsure = matches!(trouble, Trouble::Away);
        for work in draft.undecided(unsure).into_iter().rev() {
            self.works.push_front(work);
        }
        Err(trouble)
    }
}

/// Expires what is overdue, in steps, for as long as a turn may last.
async fn sweep(inner: &Inner, tenure: &mut Tenure) -> Result<(), Trouble> {
    let begun = Instant::now();
    while tenure.expire_overdue(inner).await? == EXPIRIES_MAX && begun.elapsed() < inner.limits.tenure_max {}
    Ok(())
}

/// Reads what the round must know: in two statements at most, however many commands there are, and in none
/// where all are grants without a key.
async fn read_facts(inner: &Inner, signer: &SignerId, works: &VecDeque<Work>) -> Result<Facts, Trouble> {
    let asked = Instant::now();
    let scopes: Vec<_> = works
        .iter()
        .filter_map(|work| match &work.command {
            Command::Grant(granting, _) => granting.request.key.as_ref().map(|key| key.scope(signer)),
            _ => None,
        })
        .collect();
    let kept: HashMap<_, _> = if scopes.is_empty() {
        HashMap::new()
    } else {
        inner.ledger.kept_keys(&scopes).await?.into_iter().map(|(scope, kept)| (scope.key, kept)).collect()
    };
    let mut nonces = Vec::new();
    for work in works {
        match &work.command {
            Command::Grant(granting, _) => {
                let before = granting.request.key.as_ref().and_then(|key| kept.get(&key.key));
                let answers = granting.lost.iter().chain(before.map(|kept| &kept.answer));
                nonces.extend(answers.flat_map(|answer| answer.grants.iter().map(|(nonce, _)| *nonce)));
            }
            Command::Settle(settlements, _) => {
                nonces.extend(settlements.iter().map(|settlement| settlement.nonce))
            }
            Command::Resolve(resolving, _) => nonces.push(resolving.nonce),
            Command::SetPolicy(..) | Command::Sweep(_) => {}
        }
    }
    if nonces.is_empty() {
        return Ok(Facts { kept, rows: HashMap::new(), at: Timestamp::from_micros(0), asked });
    }
    nonces.sort_unstable();
    nonces.dedup();
    let read = inner.ledger.rows(signer, &nonces).await?;
    let rows = read.value.into_iter().map(|row| (row.nonce, row)).collect();
    Ok(Facts { kept, rows, at: read.at, asked })
}
