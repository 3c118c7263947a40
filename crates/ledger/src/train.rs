//! Commit trains: the fenced writes of everybody who waits leave as one transaction, and the next train
//! leaves when one returns. There is no timer. An idle ledger gives the latency of one commit, a busy one
//! carries hundreds of batches per fsync.
//!
//! No two batches on a train write the same: one of a signer, and one that keeps an idempotency key. The
//! second waits for the next train, and finds there what the first has written.
//!
//! What lives here: who boards which train, and what becomes of each when a train fails. What must never:
//! SQL, which is the [`Engine`]'s.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use domain::{IdempotencyKey, SignerId};
use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};

use crate::{Batch, Error, Result, Verdict, baggage};

/// Batches on one train.
const TRAIN_BATCHES_MAX: usize = 500;
/// Rows on one train, counted before the last batch boards.
const TRAIN_ROWS_MAX: usize = 5_000;
/// Batches that wait for one track. Beyond that whoever brings one waits to queue.
const QUEUE_BATCHES_MAX: usize = 10_000;

const _: () = assert!(baggage::BATCH_ROWS_MAX <= TRAIN_ROWS_MAX, "a batch fits a train");

/// A train that the database is known to have undone is sent again so often.
const SENT_AGAIN_MAX: usize = 3;

/// Why a train did not arrive.
pub(crate) enum Derailed {
    /// A row was not as its batch said it was. Everything was undone.
    Diverged,
    /// As the error says.
    Failed(Error),
}

impl From<Error> for Derailed {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Carries one train: one transaction.
#[async_trait::async_trait]
pub(crate) trait Engine: Send + 'static {
    /// Commits all batches or none; a verdict for each, in their order. A batch that is fenced, or whose
    /// key is taken, sinks nobody else. No two batches are of the same signer or keep the same key.
    async fn pull(&mut self, batches: &[Batch]) -> std::result::Result<Vec<Verdict>, Derailed>;
}

struct Passenger {
    batch: Batch,
    verdict: oneshot::Sender<Result<Verdict>>,
}

/// The tracks on which trains run, each its own engine. A signer always takes the same one.
pub(crate) struct Trains {
    tracks: Vec<mpsc::Sender<Passenger>>,
}

impl Trains {
    /// Opens a track for each engine. Ends when dropped, after the trains under way.
    pub(crate) fn start<E: Engine>(engines: impl IntoIterator<Item = E>) -> Self {
        let tracks = engines.into_iter().map(|engine| {
            let (board, boarding) = mpsc::channel(QUEUE_BATCHES_MAX);
            tokio::spawn(run(engine, boarding));
            board
        });
        Self { tracks: tracks.collect() }
    }

    /// Boards the next train and waits for its arrival, `limit` at most. The train does not wait for
    /// whoever stops waiting.
    pub(crate) async fn commit(&self, batch: Batch, limit: Duration) -> Result<Verdict> {
        baggage::check(&batch)?;
        let deadline = tokio::time::Instant::now() + limit;
        let track = &self.tracks[track_of(&batch.signer, self.tracks.len())];
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

fn track_of(signer: &SignerId, tracks: usize) -> usize {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(signer);
    (hash % tracks as u64) as usize
}

async fn run<E: Engine>(mut engine: E, mut boarding: mpsc::Receiver<Passenger>) {
    // A second batch of one signer waits for the next train, and everything of that signer behind it.
    let mut left_behind = VecDeque::new();
    loop {
        let mut train = Train::default();
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

#[derive(Default)]
struct Train {
    passengers: Vec<Passenger>,
    signers: HashSet<SignerId>,
    keys: HashSet<(String, IdempotencyKey)>,
    rows: usize,
}

impl Train {
    fn has_room(&self) -> bool {
        self.passengers.len() < TRAIN_BATCHES_MAX && self.rows < TRAIN_ROWS_MAX
    }

    fn offer(&mut self, passenger: Passenger, left_behind: &mut VecDeque<Passenger>) {
        if passenger.verdict.is_closed() {
            // Whoever sent it was told that its outcome is unknown, and has begun anew. It is not sent.
            return;
        }
        let keys = passenger.batch.keys.iter().map(|key| (key.scope.scope.clone(), key.scope.key.clone()));
        let keys: Vec<_> = keys.collect();
        // Of a signer whose batch is left behind, the next one is too: it is among the signers by then.
        if !self.has_room()
            || !self.signers.insert(passenger.batch.signer.clone())
            || keys.iter().any(|key| self.keys.contains(key))
        {
            left_behind.push_back(passenger);
            return;
        }
        self.keys.extend(keys);
        self.rows += baggage::rows(&passenger.batch);
        self.passengers.push(passenger);
    }

    async fn leave<E: Engine>(self, engine: &mut E) {
        let (batches, waiting): (Vec<_>, Vec<_>) =
            self.passengers.into_iter().map(|passenger| (passenger.batch, passenger.verdict)).unzip();
        let sent = Instant::now();
        let mut verdicts = Vec::with_capacity(batches.len());
        carry(engine, &batches, &mut verdicts).await;
        metrics::histogram!("fencepost_commit_train_size").record(batches.len() as f64);
        metrics::histogram!("fencepost_commit_train_seconds").record(sent.elapsed());
        for (waiting, verdict) in waiting.into_iter().zip(verdicts) {
            // Whoever stopped waiting was told that the outcome is unknown.
            let _ = waiting.send(verdict);
        }
    }
}

/// Carries the batches to their verdicts. A train that fails on data is halved until the culprit stands
/// alone; one that was undone is sent again.
async fn carry<E: Engine>(engine: &mut E, batches: &[Batch], verdicts: &mut Vec<Result<Verdict>>) {
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
        Derailed::Diverged | Derailed::Failed(Error::Refused { .. }) if batches.len() > 1 => {
            let (left, right) = batches.split_at(batches.len() / 2);
            Box::pin(carry(engine, left, verdicts)).await;
            Box::pin(carry(engine, right, verdicts)).await;
        }
        Derailed::Diverged => verdicts.push(Ok(Verdict::Diverged)),
        Derailed::Failed(error) => verdicts.extend(batches.iter().map(|_| Err(error.clone()))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use domain::{InstanceId, Timestamp, Token};

    use super::*;
    use crate::{GrantAnswer, KeyScope, NewKey};

    /// Records its trains; refuses those with a signer called `poison…`.
    struct Recorder {
        trains: Arc<Mutex<Vec<Vec<String>>>>,
        /// The first train waits for this.
        gate: Option<oneshot::Receiver<()>>,
    }

    #[async_trait::async_trait]
    impl Engine for Recorder {
        async fn pull(&mut self, batches: &[Batch]) -> std::result::Result<Vec<Verdict>, Derailed> {
            if let Some(gate) = self.gate.take() {
                gate.await.unwrap();
            }
            let names: Vec<_> = batches.iter().map(|batch| batch.signer.to_string()).collect();
            self.trains.lock().unwrap().push(names.clone());
            if names.iter().any(|name| name.starts_with("poison")) {
                return Err(Derailed::Diverged);
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

    #[tokio::test]
    async fn a_poisonous_batch_sinks_nobody_else() {
        let (verdicts, _) = verdicts(&["first", "a", "poison1", "b", "c", "poison2"]).await;
        let sunk: Vec<_> = verdicts.iter().map(|verdict| *verdict == Verdict::Diverged).collect();
        assert_eq!(sunk, [false, false, true, false, false, true]);
    }
}
