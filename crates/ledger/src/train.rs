//! Commit trains: the fenced writes of everybody who waits leave as one transaction, and the next train
//! leaves when one returns. There is no timer. An idle ledger gives the latency of one commit, a busy one
//! carries hundreds of batches per fsync.
//!
//! No two batches on a train write the same: one of a line, and one that claims a row or an idempotency key.
//! The second waits for the next train, and finds there what the first has written.
//!
//! What lives here: who boards which train, and what becomes of each when a train fails. What must never:
//! SQL, which is the [`Engine`]'s, or what a batch is about, which is the [`Cargo`]'s.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use domain::{InstanceId, Resource, Token};
use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};

use crate::{Error, Result, baggage};

/// Batches on one train.
const TRAIN_BATCHES_MAX: usize = 500;
/// Rows on one train, counted before the last batch boards.
const TRAIN_ROWS_MAX: usize = 5_000;
/// Batches that wait for one track. Beyond that whoever brings one waits to queue.
const QUEUE_BATCHES_MAX: usize = 10_000;

const _: () = assert!(baggage::BATCH_ROWS_MAX <= TRAIN_ROWS_MAX, "a batch fits a train");

/// A train that the database is known to have undone is sent again so often.
const SENT_AGAIN_MAX: usize = 3;

/// What rides: all that one writer has one commit write.
pub(crate) trait Cargo: Send + Sync + 'static {
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

    /// Whose batches keep their order: one on a train, all on one track. `None` for those without an order.
    fn line(&self) -> Option<Self::Claim>;

    /// The rows and keys that it claims besides.
    fn claims(&self) -> impl Iterator<Item = Self::Claim>;

    /// How much room it takes.
    fn rows(&self) -> usize;

    /// The tenure that it is written under, if it is under one.
    fn tenure(&self) -> Option<Tenure<'_>>;
}

/// One owner's time with one lease. A fenced write locks the lease at exactly this token.
#[derive(Clone, Debug)]
pub(crate) struct Tenure<'a> {
    pub(crate) resource: Resource,
    pub(crate) owner: &'a InstanceId,
    pub(crate) token: Token,
}

/// The tenures that batches are under.
pub(crate) fn tenures<C: Cargo>(batches: &[C]) -> Vec<Option<Tenure<'_>>> {
    batches.iter().map(Cargo::tenure).collect()
}

/// What the fence says of a tenure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// Its lease is locked until the transaction ends.
    Holds,
    /// Somebody has the lease's row: no verdict yet.
    Again,
    /// The lease is another's, or released.
    Fenced,
}

/// Why a train did not arrive. Everything was undone.
pub(crate) enum Derailed<Verdict> {
    /// Some batch cannot be written. The one that stands alone is told this.
    Spoiled(Verdict),
    /// As the error says.
    Failed(Error),
}

impl<Verdict> From<Error> for Derailed<Verdict> {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A verdict for each batch of a train, in their order; or why there are none.
pub(crate) type Arrival<C> = std::result::Result<Vec<<C as Cargo>::Verdict>, Derailed<<C as Cargo>::Verdict>>;

/// Carries one train: one transaction.
#[async_trait::async_trait]
pub(crate) trait Engine<C: Cargo>: Send + 'static {
    /// Commits all batches or none; a verdict for each, in their order. A batch that is fenced, or whose
    /// key is taken, sinks nobody else. No two batches are of the same line or claim the same.
    async fn pull(&mut self, batches: &[C]) -> Arrival<C>;
}

struct Passenger<C: Cargo> {
    batch: C,
    verdict: oneshot::Sender<Result<C::Verdict>>,
}

/// The tracks on which trains run, each its own engine. A line always takes the same one; a batch without a line the
/// siding, or else the one of the first thing that it claims.
pub(crate) struct Trains<C: Cargo> {
    tracks: Vec<mpsc::Sender<Passenger<C>>>,
    /// For those without a line, where they have a track of their own.
    siding: Option<mpsc::Sender<Passenger<C>>>,
}

impl<C: Cargo> Trains<C> {
    /// Opens a track for each engine. Ends when dropped, after the trains under way.
    pub(crate) fn start<E: Engine<C>>(engines: impl IntoIterator<Item = E>) -> Self {
        Self { tracks: engines.into_iter().map(open_track).collect(), siding: None }
    }

    /// The same with one more track, for batches without a line: they have no lease to wait for, share their trains
    /// with each other alone, and so are more on each.
    pub(crate) fn with_siding<E: Engine<C>>(self, engine: E) -> Self {
        Self { siding: Some(open_track(engine)), ..self }
    }

    fn track_of(&self, batch: &C) -> &mpsc::Sender<Passenger<C>> {
        match (&self.siding, batch.line()) {
            (Some(siding), None) => siding,
            (_, line) => {
                let lead = line.or_else(|| batch.claims().next());
                let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(lead);
                &self.tracks[(hash % self.tracks.len() as u64) as usize]
            }
        }
    }

    /// Boards the next train and waits for its arrival, `limit` at most. The train does not wait for
    /// whoever stops waiting.
    pub(crate) async fn commit(&self, batch: C, limit: Duration) -> Result<C::Verdict> {
        batch.check()?;
        let deadline = tokio::time::Instant::now() + limit;
        let track = self.track_of(&batch);
        let (verdict, arrival) = oneshot::channel();
        match tokio::time::timeout_at(deadline, track.send(Passenger { batch, verdict })).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Error::unavailable(sqlx::Error::PoolClosed)),
            Err(_) => return Err(Error::unavailable(sqlx::Error::PoolTimedOut)),
        }
        match tokio::time::timeout_at(deadline, arrival).await {
            Ok(Ok(verdict)) => verdict,
            // The track died with the train: nobody knows.
            Ok(Err(_)) => Err(Error::unknown(sqlx::Error::WorkerCrashed)),
            Err(elapsed) => {
                let source = std::io::Error::new(std::io::ErrorKind::TimedOut, elapsed);
                Err(Error::unknown(sqlx::Error::Io(source)))
            }
        }
    }
}

fn open_track<C: Cargo, E: Engine<C>>(engine: E) -> mpsc::Sender<Passenger<C>> {
    let (board, boarding) = mpsc::channel(QUEUE_BATCHES_MAX);
    tokio::spawn(run(engine, boarding));
    board
}

async fn run<C: Cargo, E: Engine<C>>(mut engine: E, mut boarding: mpsc::Receiver<Passenger<C>>) {
    // A second batch of one line waits for the next train, and everything of that line behind it.
    let mut left_behind = VecDeque::new();
    loop {
        let mut train = Train::new();
        for passenger in std::mem::take(&mut left_behind) {
            train.offer(passenger, &mut left_behind);
        }
        if train.passengers.is_empty() {
            let Some(first) = boarding.recv().await else { return };
            train.offer(first, &mut left_behind);
        }
        while train.has_room()
            && let Ok(passenger) = boarding.try_recv()
        {
            train.offer(passenger, &mut left_behind);
        }
        train.leave(&mut engine).await;
    }
}

struct Train<C: Cargo> {
    passengers: Vec<Passenger<C>>,
    claimed: HashSet<C::Claim>,
    rows: usize,
}

impl<C: Cargo> Train<C> {
    fn new() -> Self {
        Self { passengers: Vec::new(), claimed: HashSet::new(), rows: 0 }
    }

    fn has_room(&self) -> bool {
        self.passengers.len() < TRAIN_BATCHES_MAX && self.rows < TRAIN_ROWS_MAX
    }

    fn offer(&mut self, passenger: Passenger<C>, left_behind: &mut VecDeque<Passenger<C>>) {
        if passenger.verdict.is_closed() {
            // Whoever sent it was told that its outcome is unknown, and has begun anew. It is not sent.
            return;
        }
        let claims: Vec<_> = passenger.batch.claims().collect();
        // Of a line whose batch is left behind, the next one is too: the line is claimed by then.
        let is_second = passenger.batch.line().is_some_and(|line| !self.claimed.insert(line));
        if !self.has_room() || is_second || claims.iter().any(|claim| self.claimed.contains(claim)) {
            left_behind.push_back(passenger);
            return;
        }
        self.claimed.extend(claims);
        self.rows += passenger.batch.rows();
        self.passengers.push(passenger);
    }

    async fn leave<E: Engine<C>>(self, engine: &mut E) {
        let (batches, waiting): (Vec<_>, Vec<_>) =
            self.passengers.into_iter().map(|passenger| (passenger.batch, passenger.verdict)).unzip();
        let sent = Instant::now();
        let mut verdicts = Vec::with_capacity(batches.len());
        carry(engine, &batches, &mut verdicts).await;
        metrics::histogram!("fencepost_commit_train_size", "of" => C::NAME).record(batches.len() as f64);
        metrics::histogram!("fencepost_commit_train_seconds", "of" => C::NAME).record(sent.elapsed());
        for (waiting, verdict) in waiting.into_iter().zip(verdicts) {
            // Whoever stopped waiting was told that the outcome is unknown.
            let _ = waiting.send(verdict);
        }
    }
}

/// Carries the batches to their verdicts. A train that fails on data is halved until the culprit stands
/// alone; one that was undone is sent again.
async fn carry<C: Cargo, E: Engine<C>>(
    engine: &mut E,
    batches: &[C],
    verdicts: &mut Vec<Result<C::Verdict>>,
) {
    let mut sent = 0;
    let derailed = loop {
        sent += 1;
        // A defect in an engine costs its train, not its track.
        let pulled = AssertUnwindSafe(engine.pull(batches)).catch_unwind().await;
        let lost = |_| Err(Derailed::Failed(Error::unknown(sqlx::Error::WorkerCrashed)));
        match pulled.unwrap_or_else(lost) {
            Ok(arrived) => {
                assert_eq!(arrived.len(), batches.len(), "a verdict for each batch");
                verdicts.extend(arrived.into_iter().map(Ok));
                return;
            }
            Err(Derailed::Failed(Error::Aborted { .. })) if sent < SENT_AGAIN_MAX => {}
            Err(derailed) => break derailed,
        }
    };
    match derailed {
        Derailed::Spoiled(_) | Derailed::Failed(Error::Refused { .. }) if batches.len() > 1 => {
            let (left, right) = batches.split_at(batches.len() / 2);
            Box::pin(carry(engine, left, verdicts)).await;
            Box::pin(carry(engine, right, verdicts)).await;
        }
        Derailed::Spoiled(verdict) => verdicts.push(Ok(verdict)),
        Derailed::Failed(error) => verdicts.extend(batches.iter().map(|_| Err(error.clone()))),
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
        async fn pull(&mut self, batches: &[Batch]) -> Arrival<Batch> {
            if let Some(gate) = self.gate.take() {
                gate.await.unwrap();
            }
            let names: Vec<_> = batches.iter().map(|batch| batch.signer.to_string()).collect();
            self.trains.lock().unwrap().push(names.clone());
            if names.iter().any(|name| name.starts_with("poison")) {
                return Err(Derailed::Spoiled(Verdict::Diverged));
            }
            Ok(vec![Verdict::Committed { at: Timestamp::from_micros(0) }; batches.len()])
        }
    }

    fn batch(signer: &str) -> Batch {
        Batch {
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
        let station = Arc::new(Trains::start([Recorder { trains: trains.clone(), gate: Some(gate) }]));
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

    /// Cargo whose verdict is the number of its train, and which track that was on.
    struct Parcel {
        line: Option<&'static str>,
        claim: u32,
    }

    impl Cargo for Parcel {
        type Verdict = (&'static str, usize);
        type Claim = String;

        const NAME: &'static str = "parcels";

        fn check(&self) -> Result<()> {
            Ok(())
        }

        fn line(&self) -> Option<String> {
            self.line.map(str::to_owned)
        }

        fn claims(&self) -> impl Iterator<Item = String> {
            [self.claim.to_string()].into_iter()
        }

        fn rows(&self) -> usize {
            1
        }

        fn tenure(&self) -> Option<Tenure<'_>> {
            None
        }
    }

    struct Named(&'static str, usize);

    #[async_trait::async_trait]
    impl Engine<Parcel> for Named {
        async fn pull(&mut self, batches: &[Parcel]) -> Arrival<Parcel> {
            self.1 += 1;
            Ok(vec![(self.0, self.1); batches.len()])
        }
    }

    #[tokio::test]
    async fn those_without_a_line_share_trains_of_their_own() {
        let trains = Trains::start([Named("main", 0)]).with_siding(Named("siding", 0));
        let limit = Duration::from_secs(9);
        let sent = |line| (0..20).map(move |claim| Parcel { line, claim });
        let alone = futures_util::future::join_all(sent(None).map(|parcel| trains.commit(parcel, limit)));
        let together =
            futures_util::future::join_all(sent(Some("line")).map(|parcel| trains.commit(parcel, limit)));
        let (alone, together) = tokio::join!(alone, together);
        let alone: Vec<_> = alone.into_iter().map(Result::unwrap).collect();
        assert!(alone.iter().all(|(track, train)| *track == "siding" && *train <= 2), "{alone:?}");
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
