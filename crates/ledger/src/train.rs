//! Commit trains: group commit across all callers of the ledger. The batches that wait leave as one transaction, and the
//! next train leaves when one returns. There is no timer. An idle ledger gives the latency of one commit; a busy one
//! carries hundreds of batches per fsync.
//!
//! No two batches on a train write the same row or keep the same idempotency key, and none are of the same lane or
//! signer. The second one waits for the next train and finds there what the first has written. Lanes that share a lease
//! may share a train, if they own it by the same token.
//!
//! What lives here: which batch leaves with which train, and what becomes of each when a train fails. What must never:
//! SQL, which is the [`Engine`]'s, or what a batch is about, which is the [`CommitBatch`]'s.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use domain::{InstanceId, Resource, Token};
use futures_util::FutureExt;
use tokio::runtime;
use tokio::sync::{mpsc, oneshot};

use crate::{Error, Result};

/// Batches on one train.
const TRAIN_BATCHES_MAX: usize = 500;
/// Rows on one train, counted before its last batch is added.
pub(crate) const TRAIN_ROWS_MAX: usize = 5_000;
/// Batches that wait for one committer. A caller beyond that waits until there is room in the queue.
const QUEUE_BATCHES_MAX: usize = 10_000;

/// How often a train is sent that the database is known to have undone.
const SENT_MAX: usize = 3;

/// A batch: all that one writer has one commit write.
pub(crate) trait CommitBatch: Send + Sync + 'static {
    /// What becomes of a batch.
    type Verdict: Send + 'static;
    /// What no two batches on a train may both have.
    type Claim: Eq + Hash + Send;

    /// What its trains carry, for the metrics.
    const NAME: &'static str;

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
    /// Commits all batches or none; a verdict for each, in their order. A batch that is fenced, or whose key is taken,
    /// keeps no other from being written. No two batches are of the same line or claim the same.
    async fn commit(&mut self, batches: &[C]) -> Arrival<C>;
}

/// A batch that waits for a train.
struct PendingBatch<C: CommitBatch> {
    batch: C,
    verdict: oneshot::Sender<Result<C::Verdict>>,
}

/// The committers, each a task with an engine and a queue of its own. All batches of a line go to the same one. A batch
/// without a line goes to the one for such batches, or else to the one of the first thing that it claims.
pub(crate) struct Trains<C: CommitBatch> {
    committers: Vec<mpsc::Sender<PendingBatch<C>>>,
    /// For batches without a line, where they have a committer of their own.
    unordered: Option<mpsc::Sender<PendingBatch<C>>>,
}

impl<C: CommitBatch> Trains<C> {
    /// Starts a committer on each runtime. They end after the trains under way when this is dropped.
    pub(crate) fn start<E: Engine<C>>(runtimes: &[runtime::Handle], engine: impl Fn() -> E) -> Self {
        let committers = runtimes.iter().map(|runtime| start_committer(runtime, engine())).collect();
        Self { committers, unordered: None }
    }

    /// The same with one more committer, for batches without a line. They have no lease to wait for, share trains with
    /// each other alone, and so are more on each.
    pub(crate) fn with_unordered<E: Engine<C>>(self, runtime: &runtime::Handle, engine: E) -> Self {
        Self { unordered: Some(start_committer(runtime, engine)), ..self }
    }

    fn committer_of(&self, batch: &C) -> &mpsc::Sender<PendingBatch<C>> {
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
        batch.check()?;
        let deadline = tokio::time::Instant::now() + limit;
        let committer = self.committer_of(&batch);
        let (verdict, arrival) = oneshot::channel();
        match tokio::time::timeout_at(deadline, committer.send(PendingBatch { batch, verdict })).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Error::unavailable(sqlx::Error::PoolClosed)),
            Err(_) => return Err(Error::unavailable(sqlx::Error::PoolTimedOut)),
        }
        match tokio::time::timeout_at(deadline, arrival).await {
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
    engine: E,
) -> mpsc::Sender<PendingBatch<C>> {
    let (enqueue, queue) = mpsc::channel(QUEUE_BATCHES_MAX);
    runtime.spawn(run(engine, queue));
    enqueue
}

async fn run<C: CommitBatch, E: Engine<C>>(mut engine: E, mut queue: mpsc::Receiver<PendingBatch<C>>) {
    // A second batch of one line waits for the next train, and so does everything of that line behind it.
    let mut left_over = VecDeque::new();
    loop {
        let mut train = Train::new();
        for pending in std::mem::take(&mut left_over) {
            train.offer(pending, &mut left_over);
        }
        if train.batches.is_empty() {
            let Some(first) = queue.recv().await else { return };
            train.offer(first, &mut left_over);
        }
        while train.has_room()
            && let Ok(pending) = queue.try_recv()
        {
            train.offer(pending, &mut left_over);
        }
        train.leave(&mut engine).await;
    }
}

struct Train<C: CommitBatch> {
    batches: Vec<PendingBatch<C>>,
    claimed: HashSet<C::Claim>,
    /// By whom and at what token the batches on it claim their leases.
    fences: HashMap<Resource, (InstanceId, Token)>,
    rows: usize,
}

impl<C: CommitBatch> Train<C> {
    fn new() -> Self {
        Self { batches: Vec::new(), claimed: HashSet::new(), fences: HashMap::new(), rows: 0 }
    }

    fn has_room(&self) -> bool {
        self.batches.len() < TRAIN_BATCHES_MAX && self.rows < TRAIN_ROWS_MAX
    }

    fn offer(&mut self, pending: PendingBatch<C>, left_over: &mut VecDeque<PendingBatch<C>>) {
        if pending.verdict.is_closed() {
            // Its caller got "the outcome is unknown" and has begun anew. It is not sent.
            return;
        }
        let claims: Vec<_> = pending.batch.claims().collect();
        // Behind a batch that is left over, the next ones of its line are too: the line is claimed by then.
        let is_second = pending.batch.line().is_some_and(|line| !self.claimed.insert(line));
        let fence =
            pending.batch.fence_claim().map(|claim| (claim.resource, (claim.owner.clone(), claim.token)));
        let is_other_fence =
            fence.as_ref().is_some_and(|(lease, by)| self.fences.get(lease).is_some_and(|other| other != by));
        let is_claimed = claims.iter().any(|claim| self.claimed.contains(claim));
        if !self.has_room() || is_second || is_other_fence || is_claimed {
            left_over.push_back(pending);
            return;
        }
        self.fences.extend(fence);
        self.claimed.extend(claims);
        self.rows += pending.batch.rows();
        self.batches.push(pending);
    }

    async fn leave<E: Engine<C>>(self, engine: &mut E) {
        let (batches, waiting): (Vec<_>, Vec<_>) =
            self.batches.into_iter().map(|pending| (pending.batch, pending.verdict)).unzip();
        let sent = Instant::now();
        let mut verdicts = Vec::with_capacity(batches.len());
        carry(engine, &batches, &mut verdicts).await;
        metrics::histogram!("fencepost_commit_train_size", "of" => C::NAME).record(batches.len() as f64);
        metrics::histogram!("fencepost_commit_train_seconds", "of" => C::NAME).record(sent.elapsed());
        for (waiting, verdict) in waiting.into_iter().zip(verdicts) {
            // A caller that stopped waiting got "the outcome is unknown".
            let _ = waiting.send(verdict);
        }
    }
}

/// Carries the batches to their verdicts. A train that fails on data is halved until the culprit is alone; one that the
/// database undid is sent again.
async fn carry<C: CommitBatch, E: Engine<C>>(
    engine: &mut E,
    batches: &[C],
    verdicts: &mut Vec<Result<C::Verdict>>,
) {
    let mut sent = 0;
    let failed = loop {
        sent += 1;
        // A defect in an engine costs its train, not its committer.
        let committed = AssertUnwindSafe(engine.commit(batches)).catch_unwind().await;
        let lost = |_| Err(TrainError::Failed(Error::unknown(sqlx::Error::WorkerCrashed)));
        match committed.unwrap_or_else(lost) {
            Ok(arrived) => {
                assert_eq!(arrived.len(), batches.len(), "a verdict for each batch");
                verdicts.extend(arrived.into_iter().map(Ok));
                return;
            }
            Err(TrainError::Failed(Error::Aborted { .. })) if sent < SENT_MAX => {}
            Err(failed) => break failed,
        }
    };
    match failed {
        TrainError::Spoiled(_) | TrainError::Failed(Error::Refused { .. }) if batches.len() > 1 => {
            let (left, right) = batches.split_at(batches.len() / 2);
            Box::pin(carry(engine, left, verdicts)).await;
            Box::pin(carry(engine, right, verdicts)).await;
        }
        TrainError::Spoiled(verdict) => verdicts.push(Ok(verdict)),
        TrainError::Failed(error) => verdicts.extend(batches.iter().map(|_| Err(error.clone()))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use domain::{IdempotencyKey, SignerId, Timestamp};

    use super::*;
    use crate::{Batch, GrantAnswer, KeyScope, NewKey, Verdict};

    /// Records its trains; refuses those with a signer called `poison…`.
    struct Recorder {
        trains: Arc<Mutex<Vec<Vec<String>>>>,
        /// The first train waits for this.
        gate: Option<oneshot::Receiver<()>>,
    }

    #[async_trait::async_trait]
    impl Engine<Batch> for Recorder {
        async fn commit(&mut self, batches: &[Batch]) -> Arrival<Batch> {
            if let Some(gate) = self.gate.take() {
                gate.await.unwrap();
            }
            let names: Vec<_> = batches.iter().map(|batch| batch.signer.to_string()).collect();
            self.trains.lock().unwrap().push(names.clone());
            if names.iter().any(|name| name.starts_with("poison")) {
                return Err(TrainError::Spoiled(Verdict::Diverged));
            }
            Ok(vec![Verdict::Committed { at: Timestamp::from_micros(0) }; batches.len()])
        }
    }

    fn batch(signer: &str) -> Batch {
        Batch {
            audit: vec![],
            signer: SignerId::parse(signer).unwrap(),
            owner: InstanceId::parse("me").unwrap(),
            token: Token::new(1),
            keys: vec![],
            policy: None,
            changes: vec![],
        }
    }

    async fn verdicts(signers: &[&str]) -> (Vec<Verdict>, Vec<Vec<String>>) {
        verdicts_of(signers.iter().map(|signer| batch(signer)).collect()).await
    }

    async fn verdicts_of(batches: Vec<Batch>) -> (Vec<Verdict>, Vec<Vec<String>>) {
        let trains = Arc::<Mutex<Vec<Vec<String>>>>::default();
        let (open, gate) = oneshot::channel();
        let gate = Mutex::new(Some(gate));
        let engine = || Recorder { trains: trains.clone(), gate: gate.lock().unwrap().take() };
        let station = Arc::new(Trains::start(&[runtime::Handle::current()], engine));
        let mut waiting = Vec::new();
        for batch in batches {
            let station = station.clone();
            waiting.push(tokio::spawn(async move { station.commit(batch, Duration::from_secs(9)).await }));
            tokio::task::yield_now().await;
        }
        open.send(()).unwrap();
        let mut verdicts = Vec::new();
        for verdict in waiting {
            verdicts.push(verdict.await.unwrap().unwrap());
        }
        let trains = trains.lock().unwrap().clone();
        (verdicts, trains)
    }

    #[tokio::test]
    async fn those_who_wait_share_the_next_train() {
        let (_, trains) = verdicts(&["first", "a", "b", "c"]).await;
        assert_eq!(trains, [vec!["first"], vec!["a", "b", "c"]]);
    }

    #[tokio::test]
    async fn a_signer_has_one_batch_on_a_train_and_keeps_its_order() {
        let (_, trains) = verdicts(&["first", "a", "a", "b", "a"]).await;
        assert_eq!(trains, [vec!["first"], vec!["a", "b"], vec!["a"], vec!["a"]]);
    }

    #[tokio::test]
    async fn one_of_two_that_keep_the_same_key_waits_for_the_next_train() {
        let key = |signer: &str, key: &str| {
            let mut batch = batch(signer);
            let scope = KeyScope { scope: "any".to_owned(), key: IdempotencyKey::parse(key).unwrap() };
            let answer = GrantAnswer { token: batch.token, owner: batch.owner.clone(), grants: vec![] };
            batch.keys = vec![NewKey { scope, body_hash: [0; 32], answer }];
            batch
        };
        let batches =
            [batch("first"), key("a", "x"), key("b", "y"), key("c", "x"), key("c", "z"), key("d", "w")];
        let (_, trains) = verdicts_of(batches.into()).await;
        assert_eq!(trains, [vec!["first"], vec!["a", "b", "d"], vec!["c"], vec!["c"]]);
    }

    /// A batch whose verdict is the number of its train, and which committer that was on.
    struct Parcel {
        line: Option<&'static str>,
        claim: u32,
    }

    impl CommitBatch for Parcel {
        type Verdict = (&'static str, usize);
        type Claim = String;

        const NAME: &'static str = "parcels";

        fn check(&self) -> Result<()> {
            Ok(())
        }

        fn line(&self) -> Option<String> {
            self.line.map(str::to_owned)
        }

        fn shard(&self, committers: usize) -> Option<usize> {
            self.line.map(|line| domain::shard_of(line, committers))
        }

        fn claims(&self) -> impl Iterator<Item = String> {
            [self.claim.to_string()].into_iter()
        }

        fn rows(&self) -> usize {
            1
        }

        fn fence_claim(&self) -> Option<FenceClaim<'_>> {
            None
        }
    }

    struct Named(&'static str, usize);

    #[async_trait::async_trait]
    impl Engine<Parcel> for Named {
        async fn commit(&mut self, batches: &[Parcel]) -> Arrival<Parcel> {
            self.1 += 1;
            Ok(vec![(self.0, self.1); batches.len()])
        }
    }

    #[tokio::test]
    async fn those_without_a_line_share_trains_of_their_own() {
        let here = runtime::Handle::current();
        let trains = Trains::start(std::slice::from_ref(&here), || Named("main", 0))
            .with_unordered(&here, Named("unordered", 0));
        let limit = Duration::from_secs(9);
        let sent = |line| (0..20).map(move |claim| Parcel { line, claim });
        let alone = futures_util::future::join_all(sent(None).map(|parcel| trains.commit(parcel, limit)));
        let together =
            futures_util::future::join_all(sent(Some("line")).map(|parcel| trains.commit(parcel, limit)));
        let (alone, together) = tokio::join!(alone, together);
        let alone: Vec<_> = alone.into_iter().map(Result::unwrap).collect();
        assert!(alone.iter().all(|(committer, train)| *committer == "unordered" && *train <= 2), "{alone:?}");
        let last = together.into_iter().map(Result::unwrap).last().unwrap();
        assert_eq!(last, ("main", 20), "a line has one batch on a train");
    }

    #[tokio::test]
    async fn a_poisonous_batch_sinks_nobody_else() {
        let (verdicts, _) = verdicts(&["first", "a", "poison1", "b", "c", "poison2"]).await;
        let sunk: Vec<_> = verdicts.iter().map(|verdict| *verdict == Verdict::Diverged).collect();
        assert_eq!(sunk, [false, false, true, false, false, true]);
    }
}
