//! Commit trains: group commit across all callers of the ledger. The batches that wait leave as one transaction, and the
//! next train leaves when one returns, for jobs once their thread has looked at what it has at hand
//! ([`CommitBatch::TURNS_BETWEEN`]). There is no timer. An idle ledger gives the latency of one commit; a busy one commits
//! hundreds of batches per fsync.
//!
//! No two batches on a train write the same row or keep the same idempotency key, and none are of the same lane or
//! signer. The second one waits for the next train and finds there what the first has written. Lanes that share a lease
//! may share a train, if they own it by the same token.
//!
//! A batch may follow another one of its line that is still on its way ([`Link`]). Then a second train leaves behind the
//! first: it is written while the first is under way, and committed after it, or undone if what it follows is lost.
//!
//! A batch does not leave once its lease is past by its holder's own clock ([`LeaseClock`]): it may have waited behind a train
//! that hung, and the renewals with that, or for a connection. One that was written behind a train is not committed then. A train
//! that has left is waited for.
//!
//! What lives here: which batch leaves with which train, and what becomes of each when a train fails. What must never:
//! SQL, which is the [`Engine`]'s, or what a batch is about, which is the [`CommitBatch`]'s.

mod link;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::time::{Duration, Instant};

use domain::{InstanceId, Resource, Token};
use futures_util::future::{BoxFuture, Shared};
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, StreamExt};
use panic_guard::{guarded, guarded_call};
use tokio::runtime;
use tokio::sync::{mpsc, oneshot};

use crate::{Error, Result};

pub use link::{Fate, LeaseClock, Link};

/// Batches on one train.
const TRAIN_BATCHES_MAX: usize = 500;
/// Rows on one train, counted before its last batch is added.
pub(crate) const TRAIN_ROWS_MAX: usize = 5_000;
/// Batches that wait for one committer. A caller beyond that waits until there is room in the queue.
const QUEUE_BATCHES_MAX: usize = 10_000;

/// What the log calls a train's way to the database.
const COMMIT: &str = "the commit of a train";

/// How often a train is sent that the database is known to have undone.
const SENT_MAX: usize = 3;

/// A batch: all that one writer has one commit write.
pub(crate) trait CommitBatch: Send + Sync + 'static {
    /// What becomes of a batch.
    type Verdict: Send + 'static;
    /// What no two batches on a train may both have.
    type Claim: Eq + Hash + Send;

    /// What its trains commit, for the metrics.
    const NAME: &'static str;

    /// So many turns the other tasks of the committer's thread have after a train, before the next one leaves. Where the thread
    /// serves sockets too, what is there by then shares the next train, if it passes so many tasks on its way to the queue.
    const TURNS_BETWEEN: usize = 0;

    /// Refuses a batch that is wrong in itself.
    ///
    /// # Errors
    /// [`Error::Refused`], saying what is wrong.
    fn check(&self) -> Result<()>;

    /// The line whose batches keep their order: one on a train, all through one committer. `None` for a batch without
    /// an order.
    fn line(&self) -> Option<Self::Claim>;

    /// Which of so many committers its line goes to. `None` for a batch without a line.
    fn shard(&self, committers: usize) -> Option<usize>;

    /// The rows and keys that it claims besides.
    fn claims(&self) -> impl Iterator<Item = Self::Claim>;

    /// How many rows it counts as.
    fn rows(&self) -> usize;

    /// The lease that it is fenced by, if it is fenced.
    fn fence_claim(&self) -> Option<FenceClaim<'_>>;

    /// Whether a verdict says that the batch is durable. Only kinds whose batches follow each other ask.
    fn is_durable(_verdict: &Self::Verdict) -> bool {
        false
    }

    /// The verdict of a batch that follows one which was not surely committed.
    ///
    /// # Errors
    /// [`Error::Refused`] if batches of this kind never follow each other.
    fn undone() -> Result<Self::Verdict> {
        Err(Error::refused(sqlx::Error::Protocol("batches of this kind follow no other".to_owned())))
    }
}

/// What a batch says of a lease: a fenced write locks the lease of this resource at exactly this owner and token.
#[derive(Clone, Debug)]
pub(crate) struct FenceClaim<'a> {
    pub(crate) resource: Resource,
    pub(crate) owner: &'a InstanceId,
    pub(crate) token: Token,
}

/// The leases that batches claim, each once.
pub(crate) fn leases<'a, 'b>(claims: &'a [Option<FenceClaim<'b>>]) -> Vec<&'a FenceClaim<'b>> {
    let mut seen = HashSet::new();
    claims.iter().flatten().filter(|claim| seen.insert(&claim.resource)).collect()
}

/// The claims of batches, in their order. All claims of one lease are the same.
pub(crate) fn fence_claims<C: CommitBatch>(batches: &[C]) -> Vec<Option<FenceClaim<'_>>> {
    batches.iter().map(CommitBatch::fence_claim).collect()
}

/// What the fence says of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// The lease is locked until the transaction ends.
    Holds,
    /// Another transaction has locked the lease's row: no verdict yet.
    Again,
    /// Another owner has the lease, or it was released.
    Fenced,
}

/// Why a train was not committed. Everything was undone.
pub(crate) enum TrainError<Verdict> {
    /// Some batch cannot be written. Once it is alone on a train, this is its verdict.
    Spoiled(Verdict),
    /// The ledger failed.
    Failed(Error),
}

impl<Verdict> From<Error> for TrainError<Verdict> {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A verdict for each batch of a train, in their order; or why there are none.
pub(crate) type Arrival<C> =
    std::result::Result<Vec<<C as CommitBatch>::Verdict>, TrainError<<C as CommitBatch>::Verdict>>;

/// Commits one train: one transaction.
#[async_trait::async_trait]
pub(crate) trait Engine<C: CommitBatch>: Send + 'static {
    /// Connects, if it is not connected. Asked before each train that does not leave behind another one.
    ///
    /// # Errors
    /// What the train fails with. Nothing was sent.
    async fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// Commits all batches or none; a verdict for each, in their order. A batch that is fenced, or whose key is taken,
    /// keeps no other from being written. No two batches are of the same line or claim the same.
    async fn commit(&mut self, batches: &[C]) -> Arrival<C>;

    /// Whether it can begin at once. A train that leaves by itself takes such an engine if one is free.
    fn is_ready(&self) -> bool {
        true
    }

    /// Writes all batches, but commits only when `may_commit` says so, which it does not know before the train ahead has
    /// arrived. `None` if nothing is written, and nothing will be: they leave again. `may_commit` has been heard by then.
    async fn commit_after(
        &mut self,
        _batches: &[C],
        may_commit: BoxFuture<'_, bool>,
    ) -> Option<Result<Vec<C::Verdict>>> {
        may_commit.await;
        None
    }
}

/// A batch that waits for a train.
struct PendingBatch<C: CommitBatch> {
    batch: C,
    waiting: Waiting<C>,
}

/// Who waits for a batch's verdict.
struct Waiting<C: CommitBatch> {
    verdict: oneshot::Sender<Result<C::Verdict>>,
    link: Link,
}

impl<C: CommitBatch> Waiting<C> {
    fn tell(self, verdict: Result<C::Verdict>) {
        self.link.decide(verdict.as_ref().is_ok_and(C::is_durable));
        // A caller that stopped waiting got "the outcome is unknown".
        let _ = self.verdict.send(verdict);
    }
}

/// A committer's two queues.
struct CommitterQueues<C: CommitBatch> {
    batches: mpsc::Sender<PendingBatch<C>>,
    /// Batches that follow one whose verdict has yet to come: what wakes a committer while a train is under way.
    followers: mpsc::Sender<PendingBatch<C>>,
}

/// The committers, each a task with an engine and a queue of its own. All batches of a line go to the same one. A batch
/// without a line goes to the one for such batches, or else to the one of the first thing that it claims.
pub(crate) struct Trains<C: CommitBatch> {
    committers: Vec<CommitterQueues<C>>,
    /// For batches without a line, where they have a committer of their own.
    unordered: Option<CommitterQueues<C>>,
}

impl<C: CommitBatch> Trains<C> {
    /// Starts a committer on each runtime. They end after the trains under way when this is dropped.
    pub(crate) fn start<E: Engine<C>>(runtimes: &[runtime::Handle], engine: impl Fn() -> E) -> Self {
        Self::start_with(runtimes, 1, engine)
    }

    /// The same with so many engines for each: as many trains may be under way, each behind one that it follows.
    pub(crate) fn start_with<E: Engine<C>>(
        runtimes: &[runtime::Handle],
        engines: usize,
        engine: impl Fn() -> E,
    ) -> Self {
        let engines = || (0..engines).map(|_| engine()).collect();
        let committers = runtimes.iter().map(|runtime| start_committer(runtime, engines())).collect();
        Self { committers, unordered: None }
    }

    /// The same with one more committer, for batches without a line. They have no lease to wait for, share trains with
    /// each other alone, and so are more on each.
    pub(crate) fn with_unordered<E: Engine<C>>(self, runtime: &runtime::Handle, engine: E) -> Self {
        Self { unordered: Some(start_committer(runtime, vec![engine])), ..self }
    }

    fn committer_of(&self, batch: &C) -> &CommitterQueues<C> {
        let count = self.committers.len();
        match (batch.shard(count), &self.unordered) {
            (Some(shard), _) => &self.committers[shard],
            (None, Some(unordered)) => unordered,
            (None, None) => {
                let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(batch.claims().next());
                &self.committers[(hash % count as u64) as usize]
            }
        }
    }

    /// Sends a batch with the next train and waits for its verdict, `limit` at most. A train does not wait for callers
    /// that stopped waiting.
    pub(crate) async fn commit(&self, batch: C, limit: Duration) -> Result<C::Verdict> {
        self.commit_linked(batch, Link::default(), limit).await
    }

    /// The same for a batch that others may follow, or that follows one which was sent before.
    pub(crate) async fn commit_linked(&self, batch: C, link: Link, limit: Duration) -> Result<C::Verdict> {
        batch.check()?;
        let deadline = tokio::time::Instant::now() + limit;
        let queues = self.committer_of(&batch);
        let queue = if link.follows().is_some() { &queues.followers } else { &queues.batches };
        let (verdict, answer) = oneshot::channel();
        let pending = PendingBatch { batch, waiting: Waiting { verdict, link } };
        match tokio::time::timeout_at(deadline, queue.send(pending)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Error::unavailable(sqlx::Error::PoolClosed)),
            Err(_) => return Err(Error::unavailable(sqlx::Error::PoolTimedOut)),
        }
        match tokio::time::timeout_at(deadline, answer).await {
            Ok(Ok(verdict)) => verdict,
            // The committer died with the train: nobody knows what was written.
            Ok(Err(_)) => Err(Error::unknown(sqlx::Error::WorkerCrashed)),
            Err(elapsed) => {
                let source = std::io::Error::new(std::io::ErrorKind::TimedOut, elapsed);
                Err(Error::unknown(sqlx::Error::Io(source)))
            }
        }
    }
}

fn start_committer<C: CommitBatch, E: Engine<C>>(
    runtime: &runtime::Handle,
    engines: Vec<E>,
) -> CommitterQueues<C> {
    let (batches, queue) = mpsc::channel(QUEUE_BATCHES_MAX);
    let (followers, following) = mpsc::channel(QUEUE_BATCHES_MAX);
    let committing = Committing {
        queue,
        followers: following,
        left_over: VecDeque::new(),
        free: engines,
        under_way: VecDeque::new(),
        commits: FuturesOrdered::new(),
    };
    runtime.spawn(committing.run());
    CommitterQueues { batches, followers }
}

/// A committer at work. One train is under way; behind it more may be written, as long as a batch on each follows one on
/// those ahead. Each train takes all that waits.
struct Committing<C: CommitBatch, E> {
    queue: mpsc::Receiver<PendingBatch<C>>,
    followers: mpsc::Receiver<PendingBatch<C>>,
    /// A second batch of one line waits for the next train, and so does everything of that line behind it.
    left_over: VecDeque<PendingBatch<C>>,
    /// Engines without a train.
    free: Vec<E>,
    /// The trains under way, in the order in which they arrive.
    under_way: VecDeque<UnderWay<C>>,
    /// Each gives its engine back, and the batches that have no verdict yet.
    commits: FuturesOrdered<BoxFuture<'static, (E, Vec<PendingBatch<C>>)>>,
}

/// A train that has left.
struct UnderWay<C: CommitBatch> {
    claimed: HashSet<C::Claim>,
    fates: Vec<Fate>,
    finished: Finished,
}

/// Resolves when a train has arrived.
type Finished = Shared<oneshot::Receiver<()>>;

impl<C: CommitBatch, E: Engine<C>> Committing<C, E> {
    async fn run(mut self) {
        loop {
            self.let_leave();
            let (is_idle, has_engine) = (self.under_way.is_empty(), !self.free.is_empty());
            tokio::select! {
                biased;
                Some((engine, again)) = self.commits.next(), if !is_idle => {
                    self.under_way.pop_front();
                    self.free.push(engine);
                    self.leave_first(again);
                }
                Some(pending) = self.queue.recv(), if is_idle => self.left_over.push_back(pending),
                Some(pending) = self.followers.recv(), if has_engine => self.left_over.push_back(pending),
                else => return,
            }
        }
    }

    /// Lets the trains leave that may.
    fn let_leave(&mut self) {
        while self.under_way.is_empty()
            || self.left_over.iter().any(|pending| follows_one_of(&pending.waiting, &self.under_way))
        {
            let Some(engine) = self.next_engine() else { return };
            // A defect in a batch costs those that wait with it: their callers hear that the outcome is unknown.
            let Some(train) = guarded_call("the choice of batches for a train", || self.fill()) else {
                self.free.push(engine);
                continue;
            };
            if train.batches.is_empty() || !(train.follows || self.under_way.is_empty()) {
                // Nobody on it follows anybody: there is no haste.
                self.leave_first(train.batches);
                self.free.push(engine);
                // Who was told while this was filled may take others along that were looked at before.
                if self.left_over.iter().any(|pending| pending.waiting.link.is_lost()) {
                    continue;
                }
                return;
            }
            let (arrived, finished) = oneshot::channel();
            let ahead = self.under_way.back().map(|train| train.finished.clone());
            let fates =
                train.batches.iter().filter_map(|pending| pending.waiting.link.own().cloned()).collect();
            self.under_way.push_back(UnderWay { claimed: train.claimed, fates, finished: finished.shared() });
            self.commits.push_back(commit_batches(train.batches, engine, ahead, arrived).boxed());
        }
    }

    /// One that can begin at once, if there is one.
    fn next_engine(&mut self) -> Option<E> {
        let ready = self.free.iter().rposition(Engine::is_ready);
        let at = ready.or_else(|| self.free.len().checked_sub(1))?;
        Some(self.free.remove(at))
    }

    /// Puts batches before all that are left over.
    fn leave_first(&mut self, batches: Vec<PendingBatch<C>>) {
        for pending in batches.into_iter().rev() {
            self.left_over.push_front(pending);
        }
    }

    /// Makes a train of all that waits and has room.
    fn fill(&mut self) -> Train<C> {
        let mut train = Train::new();
        for pending in std::mem::take(&mut self.left_over) {
            train.offer(pending, &self.under_way, &mut self.left_over);
        }
        while train.has_room()
            && let Ok(pending) = self.queue.try_recv().or_else(|_| self.followers.try_recv())
        {
            train.offer(pending, &self.under_way, &mut self.left_over);
        }
        train
    }
}

fn follows_one_of<C: CommitBatch>(waiting: &Waiting<C>, ahead: &VecDeque<UnderWay<C>>) -> bool {
    waiting
        .link
        .follows()
        .is_some_and(|fate| ahead.iter().flat_map(|train| &train.fates).any(|sent| sent.is(fate)))
}

struct Train<C: CommitBatch> {
    /// When it is filled.
    now: Instant,
    batches: Vec<PendingBatch<C>>,
    claimed: HashSet<C::Claim>,
    /// Lines of which a batch was left over: the next ones are left over too.
    left: HashSet<C::Claim>,
    /// The owner and the token with which the batches on it claim each lease.
    fences: HashMap<Resource, (InstanceId, Token)>,
    rows: usize,
    /// Whether a batch on it follows one on a train ahead.
    follows: bool,
}

impl<C: CommitBatch> Train<C> {
    fn new() -> Self {
        Self {
            now: Instant::now(),
            batches: Vec::new(),
            claimed: HashSet::new(),
            left: HashSet::new(),
            fences: HashMap::new(),
            rows: 0,
            follows: false,
        }
    }

    fn has_room(&self) -> bool {
        self.batches.len() < TRAIN_BATCHES_MAX && self.rows < TRAIN_ROWS_MAX
    }

    /// Takes a batch, or leaves it over.
    fn offer(
        &mut self,
        pending: PendingBatch<C>,
        ahead: &VecDeque<UnderWay<C>>,
        left_over: &mut VecDeque<PendingBatch<C>>,
    ) {
        if pending.waiting.verdict.is_closed() {
            // Its caller got "the outcome is unknown" and has begun anew. It is not sent.
            return;
        }
        if pending.waiting.link.is_lost() {
            pending.waiting.tell(C::undone());
            return;
        }
        if !pending.waiting.link.may_leave(self.now) {
            pending.waiting.tell(Err(lease_ended()));
            return;
        }
        let follows = follows_one_of(&pending.waiting, ahead);
        if !follows && pending.waiting.link.follows().is_some() {
            // The one that it follows may yet come, and must not wait for it.
            left_over.push_back(pending);
            return;
        }
        let (line, claims) = (pending.batch.line(), pending.batch.claims().collect::<Vec<_>>());
        let fence =
            pending.batch.fence_claim().map(|claim| (claim.resource, (claim.owner.clone(), claim.token)));
        let is_claimed_ahead = |claim| ahead.iter().any(|train| train.claimed.contains(claim));
        let is_second = line.as_ref().is_some_and(|line| {
            let is_behind = is_claimed_ahead(line) && !follows;
            is_behind || self.claimed.contains(line) || self.left.contains(line)
        });
        let is_other_fence =
            fence.as_ref().is_some_and(|(lease, by)| self.fences.get(lease).is_some_and(|other| other != by));
        let is_claimed = claims.iter().any(|claim| self.claimed.contains(claim) || is_claimed_ahead(claim));
        if !self.has_room() || is_second || is_other_fence || is_claimed {
            self.left.extend(line);
            left_over.push_back(pending);
            return;
        }
        self.follows |= follows;
        self.fences.extend(fence);
        self.claimed.extend(line.into_iter().chain(claims));
        self.rows += pending.batch.rows();
        self.batches.push(pending);
    }
}

/// What becomes of a batch that may not leave.
pub(crate) fn lease_ended() -> Error {
    let why = "the lease ended before the batch left".to_owned();
    Error::unavailable(sqlx::Error::Protocol(why))
}

/// Whether the leases of all surely last.
fn may_leave<C: CommitBatch>(waiting: &[Waiting<C>]) -> bool {
    let now = Instant::now();
    waiting.iter().all(|waiting| waiting.link.may_leave(now))
}

/// Commits the batches of one train and sends their verdicts; or gives those back that must leave again.
async fn commit_batches<C: CommitBatch, E: Engine<C>>(
    pending: Vec<PendingBatch<C>>,
    mut engine: E,
    ahead: Option<Finished>,
    arrived: oneshot::Sender<()>,
) -> (E, Vec<PendingBatch<C>>) {
    let (batches, waiting): (Vec<_>, Vec<_>) =
        pending.into_iter().map(|pending| (pending.batch, pending.waiting)).unzip();
    let sent = Instant::now();
    let mut verdicts = Vec::with_capacity(batches.len());
    match ahead {
        None => commit_or_split(&mut engine, &batches, &waiting, &mut verdicts).await,
        Some(ahead) => match write_behind(&mut engine, &batches, &waiting, ahead).await {
            Some(Ok(arrived)) => verdicts.extend(arrived.into_iter().map(Ok)),
            Some(Err(error)) => verdicts.extend(batches.iter().map(|_| Err(error.clone()))),
            None => {
                let pair = |(batch, waiting)| PendingBatch { batch, waiting };
                return (engine, batches.into_iter().zip(waiting).map(pair).collect());
            }
        },
    }
    metrics::histogram!("fencepost_commit_train_size", "of" => C::NAME).record(batches.len() as f64);
    metrics::histogram!("fencepost_commit_train_seconds", "of" => C::NAME).record(sent.elapsed());
    // A defect in a verdict costs the answers that are left: their callers hear that the outcome is unknown.
    guarded_call("the answers to a train", || {
        for (waiting, verdict) in waiting.into_iter().zip(verdicts) {
            waiting.tell(verdict);
        }
    });
    // The train behind may be committed.
    drop(arrived);
    for _ in 0..C::TURNS_BETWEEN {
        tokio::task::yield_now().await;
    }
    (engine, Vec::new())
}

/// Writes a train while the one ahead is under way, and commits it if all that its batches follow is committed and their leases
/// last.
async fn write_behind<C: CommitBatch, E: Engine<C>>(
    engine: &mut E,
    batches: &[C],
    waiting: &[Waiting<C>],
    ahead: Finished,
) -> Option<Result<Vec<C::Verdict>>> {
    let may_commit = async {
        // It is heard when the other end is dropped.
        let _ = ahead.await;
        waiting.iter().all(|waiting| waiting.link.may_commit()) && may_leave(waiting)
    };
    // A defect in an engine costs its train, not its committer.
    guarded(COMMIT, engine.commit_after(batches, may_commit.boxed()))
        .await
        .unwrap_or_else(|| Some(Err(Error::unknown(sqlx::Error::WorkerCrashed))))
}

/// Sends the batches once the engine is connected. `None` where the lease of some has ended by then: nothing was sent.
async fn send<C: CommitBatch, E: Engine<C>>(
    engine: &mut E,
    batches: &[C],
    waiting: &[Waiting<C>],
) -> Option<Arrival<C>> {
    let sent = async {
        if let Err(error) = engine.prepare().await {
            return Some(Err(TrainError::Failed(error)));
        }
        if !may_leave(waiting) {
            return None;
        }
        let arrived = engine.commit(batches).await;
        if let Ok(verdicts) = &arrived {
            assert_eq!(verdicts.len(), batches.len(), "a verdict for each batch");
        }
        Some(arrived)
    };
    // A defect in an engine costs its train, not its committer.
    guarded(COMMIT, sent)
        .await
        .unwrap_or_else(|| Some(Err(TrainError::Failed(Error::unknown(sqlx::Error::WorkerCrashed)))))
}

/// Commits the batches, and adds a verdict for each. A train that fails on data, or with a batch that may not leave, is halved
/// until that is alone; one that the database undid is sent again.
async fn commit_or_split<C: CommitBatch, E: Engine<C>>(
    engine: &mut E,
    batches: &[C],
    waiting: &[Waiting<C>],
    verdicts: &mut Vec<Result<C::Verdict>>,
) {
    let mut sent = 0;
    let failed = loop {
        sent += 1;
        match send(engine, batches, waiting).await {
            Some(Ok(arrived)) => {
                verdicts.extend(arrived.into_iter().map(Ok));
                return;
            }
            Some(Err(TrainError::Failed(Error::Aborted { .. }))) if sent < SENT_MAX => {}
            Some(Err(failed)) => break Some(failed),
            None => break None,
        }
    };
    match failed {
        None | Some(TrainError::Spoiled(_) | TrainError::Failed(Error::Refused { .. }))
            if batches.len() > 1 =>
        {
            let half = batches.len() / 2;
            let ((left, right), (of_left, of_right)) = (batches.split_at(half), waiting.split_at(half));
            Box::pin(commit_or_split(engine, left, of_left, verdicts)).await;
            Box::pin(commit_or_split(engine, right, of_right, verdicts)).await;
        }
        None => verdicts.push(Err(lease_ended())),
        Some(TrainError::Spoiled(verdict)) => verdicts.push(Ok(verdict)),
        Some(TrainError::Failed(error)) => verdicts.extend(batches.iter().map(|_| Err(error.clone()))),
    }
}
