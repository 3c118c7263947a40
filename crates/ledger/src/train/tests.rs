//! Which batches share a train, in which order trains leave, and what becomes of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::{IdempotencyKey, SignerId, Timestamp};
use parking_lot::Mutex;

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
        self.trains.lock().push(names.clone());
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
    let sent = Arc::<Mutex<Vec<Vec<String>>>>::default();
    let (open, gate) = oneshot::channel();
    let gate = Mutex::new(Some(gate));
    let engine = || Recorder { trains: sent.clone(), gate: gate.lock().take() };
    let trains = Arc::new(Trains::start(&[runtime::Handle::current()], engine));
    let mut waiting = Vec::new();
    for batch in batches {
        let trains = trains.clone();
        waiting.push(tokio::spawn(async move { trains.commit(batch, Duration::from_secs(9)).await }));
        tokio::task::yield_now().await;
    }
    open.send(()).unwrap();
    let mut verdicts = Vec::new();
    for verdict in waiting {
        verdicts.push(verdict.await.unwrap().unwrap());
    }
    let sent = sent.lock().clone();
    (verdicts, sent)
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
    let batches = [batch("first"), key("a", "x"), key("b", "y"), key("c", "x"), key("c", "z"), key("d", "w")];
    let (_, trains) = verdicts_of(batches.into()).await;
    assert_eq!(trains, [vec!["first"], vec!["a", "b", "d"], vec!["c"], vec!["c"]]);
}

/// A lease that ends when the test says so.
#[derive(Default)]
struct Lease {
    has_ended: AtomicBool,
}

impl LeaseClock for Lease {
    fn lasts_at(&self, _now: Instant) -> bool {
        !self.has_ended.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn a_batch_whose_lease_ends_while_it_waits_does_not_leave() {
    let sent = Arc::<Mutex<Vec<Vec<String>>>>::default();
    let (open, gate) = oneshot::channel();
    let gate = Mutex::new(Some(gate));
    let engine = || Recorder { trains: sent.clone(), gate: gate.lock().take() };
    let trains = Arc::new(Trains::start(&[runtime::Handle::current()], engine));
    let (lasting, ending) = (Arc::<Lease>::default(), Arc::<Lease>::default());
    let mut waiting = Vec::new();
    for (signer, lease) in [("first", &ending), ("a", &ending), ("b", &lasting)] {
        let (trains, link) = (trains.clone(), Link::default().under(Arc::clone(lease)));
        waiting.push(tokio::spawn(async move {
            trains.commit_linked(batch(signer), link, Duration::from_secs(9)).await
        }));
        tokio::task::yield_now().await;
    }
    ending.has_ended.store(true, Ordering::SeqCst);
    open.send(()).unwrap();
    let mut answers = Vec::new();
    for answer in waiting {
        answers.push(answer.await.unwrap());
    }
    // The one that had left is waited for.
    let as_expected = matches!(answers.as_slice(), [Ok(_), Err(Error::Unavailable { .. }), Ok(_)]);
    assert!(as_expected, "{answers:?}");
    assert_eq!(*sent.lock(), [vec!["first"], vec!["b"]]);
}

/// A lease ends while it connects, or with its first train, which the database undoes.
struct Late {
    recorder: Recorder,
    ending: Arc<Lease>,
    is_undone: bool,
}

#[async_trait::async_trait]
impl Engine<Batch> for Late {
    async fn prepare(&mut self) -> Result<()> {
        self.ending.has_ended.fetch_or(!self.is_undone, Ordering::SeqCst);
        Ok(())
    }

    async fn commit(&mut self, batches: &[Batch]) -> Arrival<Batch> {
        if std::mem::take(&mut self.is_undone) {
            self.ending.has_ended.store(true, Ordering::SeqCst);
            return Err(Error::aborted(sqlx::Error::PoolTimedOut).into());
        }
        self.recorder.commit(batches).await
    }
}

#[tokio::test]
async fn a_batch_whose_lease_ends_before_its_train_is_sent_does_not_leave() {
    for is_undone in [false, true] {
        let sent = Arc::<Mutex<Vec<Vec<String>>>>::default();
        let (lasting, ending) = (Arc::<Lease>::default(), Arc::<Lease>::default());
        let trains = Trains::start(&[runtime::Handle::current()], || Late {
            recorder: Recorder { trains: sent.clone(), gate: None },
            ending: ending.clone(),
            is_undone,
        });
        let send = |signer: &str, lease: &Arc<Lease>| {
            let link = Link::default().under(Arc::clone(lease));
            trains.commit_linked(batch(signer), link, Duration::from_secs(9))
        };
        let (a, b, c) = tokio::join!(send("a", &ending), send("b", &lasting), send("c", &lasting));
        assert!(matches!(a, Err(Error::Unavailable { .. })), "{a:?}");
        assert_eq!([b.unwrap(), c.unwrap()], [COMMITTED; 2]);
        assert_eq!(*sent.lock(), [vec!["b", "c"]]);
    }
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
    const TURNS_BETWEEN: usize = 4;

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
        assert_ne!(self.claim, DEFECT, "made on purpose");
        [self.claim.to_string()].into_iter()
    }

    fn rows(&self) -> usize {
        1
    }

    fn fence_claim(&self) -> Option<FenceClaim<'_>> {
        None
    }

    fn is_durable(verdict: &Self::Verdict) -> bool {
        assert_ne!(*verdict, DEFECTIVE, "made on purpose");
        false
    }
}

/// The claim of a parcel that cannot be looked at.
const DEFECT: u32 = u32::MAX;
/// The verdict that cannot be looked at: that of the first train of an engine of this name.
const DEFECTIVE: (&str, usize) = ("defective", 1);

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
async fn a_defect_in_a_batch_costs_those_that_wait_with_it_and_not_the_committer() {
    let trains = Trains::start(&[runtime::Handle::current()], || Named("main", 0));
    let commit = |claim| trains.commit(Parcel { line: Some("line"), claim }, Duration::from_secs(9));
    let unknown = commit(DEFECT).await.unwrap_err();
    assert!(unknown.may_have_written(), "{unknown:?}");
    assert_eq!(commit(1).await.unwrap(), ("main", 1));
}

#[tokio::test]
async fn a_defect_in_a_verdict_costs_the_answers_of_its_train_and_not_the_committer() {
    let trains = Trains::start(&[runtime::Handle::current()], || Named(DEFECTIVE.0, 0));
    let commit = |claim| trains.commit(Parcel { line: Some("line"), claim }, Duration::from_secs(9));
    let unknown = commit(1).await.unwrap_err();
    assert!(unknown.may_have_written(), "{unknown:?}");
    assert_eq!(commit(1).await.unwrap(), (DEFECTIVE.0, 2));
}

/// Its first train waits until it is let go.
struct Gated(Option<oneshot::Receiver<()>>, Named);

#[async_trait::async_trait]
impl Engine<Parcel> for Gated {
    async fn commit(&mut self, batches: &[Parcel]) -> Arrival<Parcel> {
        if let Some(gate) = self.0.take() {
            gate.await.unwrap();
        }
        self.1.commit(batches).await
    }
}

#[tokio::test]
async fn what_an_answered_caller_asks_for_next_shares_the_next_train_with_those_who_wait() {
    let (open, gate) = oneshot::channel();
    let gate = Mutex::new(Some(gate));
    let engine = || Gated(gate.lock().take(), Named("main", 0));
    let trains = Arc::new(Trains::start(&[runtime::Handle::current()], engine));
    let commit = |claim| {
        let trains = Arc::clone(&trains);
        async move { trains.commit(Parcel { line: None, claim }, Duration::from_secs(9)).await.unwrap().1 }
    };
    let (first, next) = (commit(1), commit(3));
    let answered = tokio::spawn(async move {
        let train = first.await;
        // From its socket to the queue by way of another task.
        tokio::spawn(tokio::task::yield_now()).await.unwrap();
        (train, next.await)
    });
    tokio::task::yield_now().await;
    let waiting = tokio::spawn(commit(2));
    tokio::task::yield_now().await;
    open.send(()).unwrap();
    assert_eq!(answered.await.unwrap(), (1, 2));
    assert_eq!(waiting.await.unwrap(), 2);
}

/// Writes a train at once, and counts those that were written behind another.
struct Pair {
    behind: Arc<Mutex<usize>>,
}

#[async_trait::async_trait]
impl Engine<Batch> for Pair {
    async fn commit(&mut self, batches: &[Batch]) -> Arrival<Batch> {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let lost = |batch: &Batch| if batch.token.get() == 7 { Verdict::Fenced } else { COMMITTED };
        Ok(batches.iter().map(lost).collect())
    }

    async fn commit_after(
        &mut self,
        batches: &[Batch],
        may_commit: BoxFuture<'_, bool>,
    ) -> Option<Result<Vec<Verdict>>> {
        tokio::time::sleep(Duration::from_millis(3)).await;
        if !may_commit.await {
            return None;
        }
        *self.behind.lock() += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
        Some(self.commit(batches).await.map_err(|_| unreachable!()))
    }
}

const COMMITTED: Verdict = Verdict::Committed { at: Timestamp::from_micros(0) };

/// Sends batches of one signer with these tokens, each following the one before it, two under way at once.
async fn sent_in_pairs(tokens: &[i64]) -> (Vec<Verdict>, usize) {
    let behind = Arc::<Mutex<usize>>::default();
    let engine = Pair { behind: behind.clone() };
    let trains = Arc::new(Trains::start_with(&[runtime::Handle::current()], 2, || Pair {
        behind: engine.behind.clone(),
    }));
    let mut under_way: VecDeque<tokio::task::JoinHandle<Result<Verdict>>> = VecDeque::new();
    let (mut verdicts, mut last) = (vec![], None::<Fate>);
    for token in tokens {
        let mut batch = batch("a");
        batch.token = Token::new(*token);
        let own = Fate::default();
        let link = Link::new(own.clone(), last.replace(own));
        if under_way.len() == 2 {
            verdicts.push(under_way.pop_front().unwrap().await.unwrap().unwrap());
        }
        let trains = trains.clone();
        under_way.push_back(tokio::spawn(async move {
            trains.commit_linked(batch, link, Duration::from_secs(9)).await
        }));
        tokio::task::yield_now().await;
    }
    for left in under_way {
        verdicts.push(left.await.unwrap().unwrap());
    }
    let behind = *behind.lock();
    (verdicts, behind)
}

#[tokio::test]
async fn a_batch_that_follows_one_under_way_is_written_behind_it() {
    let (verdicts, behind) = sent_in_pairs(&[1; 40]).await;
    assert_eq!(verdicts, vec![COMMITTED; 40]);
    assert!(behind > 30, "{behind} of 39 were written behind");
}

#[tokio::test]
async fn those_that_follow_a_lost_batch_are_undone() {
    let (verdicts, _) = sent_in_pairs(&[1, 1, 7, 1]).await;
    assert_eq!(verdicts, [COMMITTED, COMMITTED, Verdict::Fenced, Verdict::Undone]);
    // The one behind was not committed, so that those behind it are lost as well.
    let (verdicts, _) = sent_in_pairs(&[7, 1, 1, 1]).await;
    assert_eq!(verdicts, [Verdict::Fenced, Verdict::Undone, Verdict::Undone, Verdict::Undone]);
}

/// Followers have a queue of their own, and may come to the committer before those that they follow.
#[tokio::test]
async fn a_batch_that_comes_before_the_one_that_it_follows_waits_for_it() {
    for _ in 0..20 {
        let behind = Arc::<Mutex<usize>>::default();
        let here = [runtime::Handle::current()];
        let trains = Trains::start_with(&here, 2, || Pair { behind: behind.clone() });
        let (first, limit) = (Fate::default(), Duration::from_secs(9));
        let second = Link::new(Fate::default(), Some(first.clone()));
        let (second, first) = tokio::join!(
            trains.commit_linked(batch("a"), second, limit),
            trains.commit_linked(batch("a"), Link::new(first, None), limit)
        );
        assert_eq!([first.unwrap(), second.unwrap()], [COMMITTED; 2]);
    }
}

/// A lease ends while a train is written behind the one ahead, which waits for that.
struct Overtaken {
    ending: Arc<Lease>,
}

#[async_trait::async_trait]
impl Engine<Batch> for Overtaken {
    async fn commit(&mut self, batches: &[Batch]) -> Arrival<Batch> {
        while !self.ending.has_ended.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        Ok(vec![COMMITTED; batches.len()])
    }

    async fn commit_after(
        &mut self,
        batches: &[Batch],
        may_commit: BoxFuture<'_, bool>,
    ) -> Option<Result<Vec<Verdict>>> {
        self.ending.has_ended.store(true, Ordering::SeqCst);
        may_commit.await.then(|| Ok(vec![COMMITTED; batches.len()]))
    }
}

#[tokio::test]
async fn a_batch_whose_lease_ends_while_it_is_written_behind_another_is_not_committed() {
    let ending = Arc::<Lease>::default();
    let here = [runtime::Handle::current()];
    let trains = Trains::start_with(&here, 2, || Overtaken { ending: ending.clone() });
    let (first, limit) = (Fate::default(), Duration::from_secs(9));
    let second = Link::new(Fate::default(), Some(first.clone())).under(Arc::clone(&ending));
    let (first, second) = tokio::join!(
        trains.commit_linked(batch("a"), Link::new(first, None), limit),
        trains.commit_linked(batch("a"), second, limit)
    );
    assert_eq!(first.unwrap(), COMMITTED);
    assert!(matches!(second, Err(Error::Unavailable { .. })), "{second:?}");
}

/// The second of a pair, which cannot connect.
enum Half {
    Connected(Pair),
    Cut,
}

#[async_trait::async_trait]
impl Engine<Batch> for Half {
    async fn commit(&mut self, batches: &[Batch]) -> Arrival<Batch> {
        match self {
            Self::Connected(pair) => pair.commit(batches).await,
            Self::Cut => Err(Error::unavailable(sqlx::Error::PoolTimedOut).into()),
        }
    }

    fn is_ready(&self) -> bool {
        matches!(self, Self::Connected(_))
    }
}

#[tokio::test]
async fn an_engine_that_cannot_begin_costs_nobody_a_commit() {
    let cut = Mutex::new(vec![true, false]);
    let engine = || match cut.lock().pop().unwrap() {
        true => Half::Cut,
        false => Half::Connected(Pair { behind: Arc::default() }),
    };
    let here = [runtime::Handle::current()];
    let trains = Arc::new(Trains::start_with(&here, 2, engine));
    let (mut last, mut under_way, limit) = (None::<Fate>, Vec::new(), Duration::from_secs(9));
    for _ in 0..20 {
        let own = Fate::default();
        let link = Link::new(own.clone(), last.replace(own));
        let [follower, other] = [trains.clone(), trains.clone()];
        under_way.push(tokio::spawn(async move { follower.commit_linked(batch("a"), link, limit).await }));
        under_way.push(tokio::spawn(async move { other.commit(batch("b"), limit).await }));
        tokio::task::yield_now().await;
    }
    for verdict in under_way {
        assert_eq!(verdict.await.unwrap().unwrap(), COMMITTED);
    }
}

/// They came in the wrong order, so that the last of them was looked at before the one that it is lost with.
#[tokio::test]
async fn those_that_follow_a_lost_batch_are_told_in_whatever_order_they_came() {
    for engines in [1, 2] {
        let here = [runtime::Handle::current()];
        let trains = Trains::start_with(&here, engines, || Pair { behind: Arc::default() });
        let fates: [Fate; 4] = Default::default();
        let link = |n: usize| Link::new(fates[n].clone(), Some(fates[n - 1].clone()));
        let (limit, mut first) = (Duration::from_secs(9), batch("a"));
        first.token = Token::new(7);
        let verdicts = tokio::join!(
            trains.commit_linked(batch("a"), link(3), limit),
            trains.commit_linked(batch("a"), link(2), limit),
            trains.commit_linked(batch("a"), link(1), limit),
            trains.commit_linked(first, Link::new(fates[0].clone(), None), limit)
        );
        let verdicts = <[_; 4]>::from(verdicts).map(Result::unwrap);
        assert_eq!(verdicts, [Verdict::Undone, Verdict::Undone, Verdict::Undone, Verdict::Fenced]);
    }
}

#[tokio::test]
async fn a_poisonous_batch_sinks_nobody_else() {
    let (verdicts, _) = verdicts(&["first", "a", "poison1", "b", "c", "poison2"]).await;
    let sunk: Vec<_> = verdicts.iter().map(|verdict| *verdict == Verdict::Diverged).collect();
    assert_eq!(sunk, [false, false, true, false, false, true]);
}

/// Its first train has no verdict.
struct Silent(bool);

#[async_trait::async_trait]
impl Engine<Batch> for Silent {
    async fn commit(&mut self, _batches: &[Batch]) -> Arrival<Batch> {
        let is_first = std::mem::replace(&mut self.0, false);
        Ok(if is_first { vec![] } else { vec![Verdict::Committed { at: Timestamp::from_micros(0) }] })
    }
}

#[tokio::test]
async fn a_train_without_a_verdict_for_each_batch_costs_that_train_alone() {
    let trains = Trains::start(&[runtime::Handle::current()], || Silent(true));
    let limit = Duration::from_secs(9);
    let lost = trains.commit(batch("a"), limit).await;
    assert!(matches!(lost, Err(Error::Unknown { .. })), "{lost:?}");
    assert!(matches!(trains.commit(batch("a"), limit).await, Ok(Verdict::Committed { .. })));
}
