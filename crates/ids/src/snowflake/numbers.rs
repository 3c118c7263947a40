//! Where worker numbers come from, and which one to try first.

use std::time::Instant;

use domain::{InstanceId, Resource, Token, WorkerNumber};
use ledger::{Acquisition, Marked, Renewal, Renewed, WorkerClaim, WorkerRecord};

/// The lease of a number, as this instance acquired it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLease {
    /// The number.
    pub number: WorkerNumber,
    /// The fencing token of the acquisition.
    pub token: Token,
}

/// A number that could be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The number.
    pub number: WorkerNumber,
    /// The dead instance to take it from; `None` if the number is free.
    pub from: Option<InstanceId>,
    /// No id may have an earlier time, in milliseconds since 1970.
    pub mark_ms: u64,
    rank: Rank,
}

/// What is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// A number that this instance acquired although the answer was lost.
    Mine,
    /// The number that this node had before.
    Last,
    /// A number whose lease was given back, or ran out.
    Free,
    /// A number that was never leased.
    Unused,
    /// A number that a dead instance still has.
    Orphaned,
    /// A free number whose mark the clock has not reached: its first id has to wait.
    Ahead,
}

/// The worker numbers of a fleet, as one instance acquires them. A call whose answer is lost may have taken effect.
#[async_trait::async_trait]
pub trait Numbers: Send + Sync + 'static {
    /// The epoch that the fleet has decided on: this one, unless another was first.
    ///
    /// # Errors
    /// [`ledger::Error`].
    async fn epoch_ms(&self, wanted_ms: u64) -> ledger::Result<u64>;

    /// The database's time, in milliseconds since 1970.
    ///
    /// # Errors
    /// [`ledger::Error`].
    async fn clock_ms(&self) -> ledger::Result<u64>;

    /// Whether the ledger is as far as is known. One that is not still gives numbers, which are of no use.
    ///
    /// # Errors
    /// [`ledger::Error`].
    async fn is_current(&self) -> ledger::Result<bool>;

    /// The numbers that were ever acquired, or have a mark ahead of the clock. Those that are not to be taken from their holder
    /// are held by one that lives; those whose lease has run out, and that may be taken, by none.
    ///
    /// # Errors
    /// [`ledger::Error`].
    async fn survey(&self) -> ledger::Result<Vec<WorkerRecord>>;

    /// The id of the ledger that the numbers are of, which its tables keep.
    fn cluster(&self) -> &str;

    /// The instance that acquires numbers, and its node: the node's next incarnation gets the same number back.
    fn identity(&self) -> (&InstanceId, &str);

    /// Acquires a number; `None` if another instance was quicker.
    ///
    /// # Errors
    /// [`ledger::Error`].
    async fn acquire(&self, candidate: &Candidate) -> ledger::Result<Option<WorkerLease>>;

    /// Begins to use the number: answers the mark that earlier holders have left. `None` if the lease is lost.
    ///
    /// # Errors
    /// [`ledger::Error`]; [`ledger::Error::WentBack`] where the ledger is behind what is known.
    async fn open(&self, worker_lease: &WorkerLease) -> ledger::Result<Option<Marked>>;

    /// Raises the mark, at most to `ahead_max_ms` ahead of the database's clock; answers where it is now. `None` if the
    /// lease is lost.
    ///
    /// # Errors
    /// [`ledger::Error`]. The mark may be raised all the same, but after [`ledger::Error::WentBack`].
    async fn mark(
        &self,
        worker_lease: &WorkerLease,
        mark_ms: u64,
        ahead_max_ms: u64,
    ) -> ledger::Result<Option<Marked>>;

    /// Renews the lease; `false` if it is lost.
    ///
    /// # Errors
    /// [`ledger::Error`].
    async fn renew(&self, worker_lease: &WorkerLease) -> ledger::Result<bool>;

    /// Lowers the mark to the first time that no id has, then gives the number back; `false` if the lease was lost, or
    /// its row is locked.
    ///
    /// # Errors
    /// [`ledger::Error`]. The number then comes free by itself, later.
    async fn give_back(&self, worker_lease: &WorkerLease, mark_ms: u64) -> ledger::Result<bool>;
}

/// Which numbers an instance may acquire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// All 1,024.
    #[default]
    Any,
    /// The 32 of this data centre.
    DataCenter(u8),
    /// This one alone.
    Fixed(WorkerNumber),
}

impl Choice {
    /// Whether it is among them.
    #[must_use]
    pub fn admits(self, number: WorkerNumber) -> bool {
        match self {
            Self::Any => true,
            Self::DataCenter(data_center) => number.data_center() == data_center,
            Self::Fixed(fixed) => number == fixed,
        }
    }
}

/// Says whether a number may be taken from an instance. The flag says whether the instance's lease of it has run out.
pub type MayTakeFrom = Box<dyn Fn(&InstanceId, bool) -> bool + Send + Sync>;

/// The numbers in a ledger, for one instance.
pub struct LedgerNumbers {
    /// Where they are.
    pub ledger: ledger::Handle,
    /// The ledger's id, as its witness has it.
    pub cluster: String,
    /// The instance that acquires them.
    pub owner: InstanceId,
    /// The node that it is an incarnation of: its next one gets its number back.
    pub node: String,
    /// Length of their leases, in milliseconds.
    pub lease_ms: u64,
    /// Whether a number may be taken from this instance, whose own lease has run out, and which is not known to be gone: one
    /// whose lease of the number still runs, or has run out (`true`). A ledger that was away lets the leases of the living run
    /// out as well. From an instance whose own lease runs no number is taken, whatever became of the number's lease.
    pub may_take_from: MayTakeFrom,
    /// Until then the node's last number is taken from its holder whose own lease has run out, without that question: after a
    /// restart that is the process before this one, and nobody else may be there to find it dead.
    pub inherits_until: Instant,
}

impl LedgerNumbers {
    fn claim(&self, worker_lease: &WorkerLease) -> WorkerClaim {
        WorkerClaim { number: worker_lease.number, owner: self.owner.clone(), token: worker_lease.token }
    }

    /// Logs and counts a write of the mark that was fenced.
    fn unless_fenced(
        &self,
        marked: Option<Marked>,
        operation: &'static str,
        worker_lease: &WorkerLease,
    ) -> Option<Marked> {
        if marked.is_none() {
            let (resource, token) = (Resource::id_worker(worker_lease.number), worker_lease.token);
            metrics::counter!("fencepost_fence_reject_total", "op" => operation).increment(1);
            tracing::warn!(%resource, operation, %token, instance = %self.owner, "a stale owner was fenced");
        }
        marked
    }
}

#[async_trait::async_trait]
impl Numbers for LedgerNumbers {
    async fn epoch_ms(&self, wanted_ms: u64) -> ledger::Result<u64> {
        self.ledger.decide_id_epoch(wanted_ms).await
    }

    async fn clock_ms(&self) -> ledger::Result<u64> {
        self.ledger.clock_ms().await
    }

    async fn is_current(&self) -> ledger::Result<bool> {
        self.ledger.is_current().await
    }

    async fn survey(&self) -> ledger::Result<Vec<WorkerRecord>> {
        let mut known = self.ledger.id_workers().await?;
        for record in &mut known {
            let is_last = record.node.as_ref() == Some(&self.node) && Instant::now() < self.inherits_until;
            let Some(holder) = &mut record.holder else { continue };
            let is_over = holder.expires_in_ms == 0;
            let may_be_taken = holder.id == self.owner
                || !holder.lives && (holder.is_gone || is_last || (self.may_take_from)(&holder.id, is_over));
            if is_over && may_be_taken {
                record.holder = None;
            } else {
                holder.lives |= !may_be_taken;
            }
        }
        Ok(known)
    }

    fn cluster(&self) -> &str {
        &self.cluster
    }

    fn identity(&self) -> (&InstanceId, &str) {
        (&self.owner, &self.node)
    }

    async fn acquire(&self, candidate: &Candidate) -> ledger::Result<Option<WorkerLease>> {
        let resource = Resource::id_worker(candidate.number);
        let (owner, lease_ms) = (&self.owner, self.lease_ms);
        let acquired = match &candidate.from {
            Some(dead) => self.ledger.take_over(&resource, owner, dead, lease_ms).await,
            None => {
                self.ledger.acquire(&resource, owner, lease_ms).await.map(|acquisition| match acquisition {
                    Acquisition::Acquired { token, expires_at } => Some((token, expires_at)),
                    Acquisition::Held { .. } => None,
                })
            }
        };
        let result = match &acquired {
            Ok(Some(_)) => "acquired",
            Ok(None) => "held",
            Err(_) => "error",
        };
        metrics::counter!("fencepost_lease_acquire_total", "kind" => "id-worker", "result" => result)
            .increment(1);
        let Some((token, expires_at)) = acquired? else { return Ok(None) };
        let expires_at = expires_at.as_micros();
        if let Some(dead) = &candidate.from {
            metrics::counter!("fencepost_lease_takeover_total", "kind" => "id-worker", "reason" => "dead")
                .increment(1);
            tracing::info!(
                %resource, %owner, %token, expires_at, lease_ms, %dead,
                "lease taken over from a dead instance"
            );
        } else {
            tracing::info!(%resource, %owner, %token, expires_at, lease_ms, "lease acquired");
        }
        Ok(Some(WorkerLease { number: candidate.number, token }))
    }

    async fn open(&self, worker_lease: &WorkerLease) -> ledger::Result<Option<Marked>> {
        let opened = self.ledger.open_id_worker(&self.claim(worker_lease), &self.node).await?;
        Ok(self.unless_fenced(opened, "open_id_mark", worker_lease))
    }

    async fn mark(
        &self,
        worker_lease: &WorkerLease,
        mark_ms: u64,
        ahead_max_ms: u64,
    ) -> ledger::Result<Option<Marked>> {
        let marked = self.ledger.mark_id_worker(&self.claim(worker_lease), mark_ms, ahead_max_ms).await?;
        Ok(self.unless_fenced(marked, "id_mark", worker_lease))
    }

    async fn renew(&self, worker_lease: &WorkerLease) -> ledger::Result<bool> {
        let renewal = Renewal {
            resource: Resource::id_worker(worker_lease.number),
            token: worker_lease.token,
            lease_ms: self.lease_ms,
        };
        let renewed = self.ledger.renew(&self.owner, renewal).await;
        let result = match renewed {
            Ok(Renewed::Done) => "renewed",
            Ok(Renewed::Lost) => "lost",
            Ok(Renewed::Locked) | Err(_) => "error",
        };
        metrics::counter!("fencepost_lease_renew_total", "kind" => "id-worker", "result" => result)
            .increment(1);
        Ok(renewed? == Renewed::Done)
    }

    async fn give_back(&self, worker_lease: &WorkerLease, mark_ms: u64) -> ledger::Result<bool> {
        let lowered = self.ledger.lower_id_worker(&self.claim(worker_lease), mark_ms).await?;
        if self.unless_fenced(lowered, "id_lower", worker_lease).is_none() {
            return Ok(false);
        }
        self.ledger.release(&Resource::id_worker(worker_lease.number), &self.owner, worker_lease.token).await
    }
}

/// The numbers that the instance `me` of `node` could have, the best first. Those of the living are not among them.
pub fn candidates(
    known: &[WorkerRecord],
    choice: Choice,
    (me, node): (&InstanceId, &str),
    now_ms: u64,
) -> Vec<Candidate> {
    let mut unseen = vec![true; usize::from(domain::limits::ID_WORKER_MAX) + 1];
    let mut found = Vec::new();
    for record in known {
        unseen[usize::from(record.number.get())] = false;
        let (rank, from) = match &record.holder {
            None => (Rank::Free, None),
            Some(holder) if holder.id == *me => (Rank::Mine, None),
            Some(holder) if holder.lives => continue,
            Some(holder) => (Rank::Orphaned, Some(holder.id.clone())),
        };
        let rank = if record.mark_ms > now_ms {
            Rank::Ahead
        } else if record.node.as_deref() == Some(node) {
            rank.min(Rank::Last)
        } else {
            rank
        };
        found.push(Candidate { number: record.number, from, mark_ms: record.mark_ms, rank });
    }
    let unused = WorkerNumber::all().filter(|number| unseen[usize::from(number.get())]);
    found.extend(unused.map(|number| Candidate { number, from: None, mark_ms: 0, rank: Rank::Unused }));
    found.retain(|candidate| choice.admits(candidate.number));
    // Those that are to be waited for by how soon they come; the others have a mark that does not matter.
    let wait = |candidate: &Candidate| candidate.mark_ms.saturating_sub(now_ms);
    found.sort_by_key(|candidate| (candidate.rank, wait(candidate), candidate.number));
    found
}

impl Candidate {
    /// Whether one is as good as the other, so that it does not matter which of them is tried.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.rank == other.rank && self.rank != Rank::Ahead
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use ledger::WorkerHolder;
    use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

    use super::*;

    const NOW: u64 = 1_000_000;

    fn id(name: &str) -> InstanceId {
        InstanceId::parse(name).unwrap()
    }

    fn record(number: u16, holder: Option<(&str, bool)>, node: &str, mark_ms: u64) -> WorkerRecord {
        let number = WorkerNumber::new(number).unwrap();
        let holder = holder.map(|(name, lives)| WorkerHolder {
            id: id(name),
            lives,
            is_gone: !lives,
            expires_in_ms: 1_000,
        });
        WorkerRecord { number, holder, node: Some(node.to_owned()), mark_ms }
    }

    fn numbers(known: &[WorkerRecord], choice: Choice) -> Vec<u16> {
        let found = candidates(known, choice, (&id("me-1"), "me"), NOW);
        found.into_iter().map(|candidate| candidate.number.get()).collect()
    }

    /// Counts what a series of a counter gets.
    struct Counted {
        name: &'static str,
        label: (&'static str, &'static str),
        count: Arc<AtomicU64>,
    }

    impl Counted {
        fn new(name: &'static str, label: (&'static str, &'static str)) -> Self {
            Self { name, label, count: Arc::default() }
        }

        fn get(&self) -> u64 {
            self.count.load(Ordering::Relaxed)
        }
    }

    impl Recorder for Counted {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            let mut labels = key.labels().map(|label| (label.key(), label.value()));
            let is_it = key.name() == self.name && labels.any(|label| label == self.label);
            if is_it { Counter::from_arc(Arc::clone(&self.count)) } else { Counter::noop() }
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    /// The numbers of a new ledger in this folder.
    async fn numbers_in(folder: &Path) -> LedgerNumbers {
        let options = ledger::Options {
            url: format!("sqlite:{}", folder.join("ledger.db").display()),
            connections_max: 2,
            connect_timeout_ms: 5_000,
            call_timeout_ms: 5_000,
            expected_id: None,
        };
        LedgerNumbers {
            ledger: ledger::open(&options).await.unwrap(),
            cluster: "one".to_owned(),
            owner: id("me-1"),
            node: "me".to_owned(),
            lease_ms: 60_000,
            may_take_from: Box::new(|_, _| true),
            inherits_until: Instant::now(),
        }
    }

    /// Of the numbers 7 and 8 those that could be had, and whether by taking them from a dead instance.
    async fn to_be_had(numbers: &LedgerNumbers) -> BTreeMap<u16, bool> {
        let known = numbers.survey().await.unwrap();
        let found = candidates(&known, Choice::Any, numbers.identity(), NOW);
        let found = found.into_iter().map(|candidate| (candidate.number.get(), candidate.from.is_some()));
        found.filter(|(number, _)| [7, 8].contains(number)).collect()
    }

    #[tokio::test]
    async fn no_number_is_taken_from_an_instance_that_may_be_about_to_renew_its_lease() {
        let folder = tempfile::tempdir().unwrap();
        let mut numbers = numbers_in(folder.path()).await;
        let (ledger, other) = (numbers.ledger.clone(), id("other-1"));
        let of_other =
            async |resource: &Resource, lease_ms| match ledger.acquire(resource, &other, lease_ms).await {
                Ok(Acquisition::Acquired { token, .. }) => token,
                held => panic!("{held:?}"),
            };
        let resource = |number| Resource::id_worker(WorkerNumber::new(number).unwrap());
        let instance = Resource::instance(&other);
        let (running, over) = (resource(7), resource(8));
        let token = of_other(&running, 60_000).await;
        let claim = WorkerClaim { number: WorkerNumber::new(7).unwrap(), owner: other.clone(), token };
        ledger.open_id_worker(&claim, "me").await.unwrap().unwrap();
        let of_instance = of_other(&instance, 1).await;
        of_other(&over, 1).await;
        for lease in [&instance, &over] {
            while ledger.lease(lease).await.unwrap().unwrap().expires_in_ms > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        // As after an outage of the ledger: the other one may live, and be about to renew its leases.
        numbers.may_take_from = Box::new(|_, _| false);
        assert_eq!(to_be_had(&numbers).await, BTreeMap::new());
        numbers.may_take_from = Box::new(|_, is_over| is_over);
        assert_eq!(to_be_had(&numbers).await, BTreeMap::from([(8, false)]));
        numbers.may_take_from = Box::new(|_, _| true);
        assert_eq!(to_be_had(&numbers).await, BTreeMap::from([(7, true), (8, false)]));
        // After a start, what the process before this one had.
        numbers.may_take_from = Box::new(|_, _| false);
        numbers.inherits_until = Instant::now() + Duration::from_secs(3_600);
        assert_eq!(to_be_had(&numbers).await, BTreeMap::from([(7, true)]));
        numbers.inherits_until = Instant::now();
        // It has renewed its own lease, and not that of its number yet.
        let renewal = Renewal { resource: instance.clone(), token: of_instance, lease_ms: 60_000 };
        assert_eq!(ledger.renew(&other, renewal).await.unwrap(), Renewed::Done);
        numbers.may_take_from = Box::new(|_, is_over| is_over);
        assert_eq!(to_be_had(&numbers).await, BTreeMap::new(), "it lives");
        numbers.may_take_from = Box::new(|_, _| false);
        ledger.release(&instance, &other, of_instance).await.unwrap();
        assert_eq!(to_be_had(&numbers).await, BTreeMap::from([(7, true), (8, false)]), "it has left");
    }

    #[tokio::test]
    async fn a_number_that_was_lost_is_not_given_back_and_that_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let numbers = numbers_in(folder.path()).await;
        let found = candidates(&[], Choice::Any, numbers.identity(), NOW);
        let lost = numbers.acquire(&found[0]).await.unwrap().unwrap();
        numbers.open(&lost).await.unwrap().unwrap();
        let held = numbers.acquire(&found[0]).await.unwrap().unwrap();
        let fenced = Counted::new("fencepost_fence_reject_total", ("op", "id_lower"));
        let _counting = metrics::set_default_local_recorder(&fenced);
        assert!(!numbers.give_back(&lost, 1).await.unwrap());
        assert_eq!(fenced.get(), 1);
        assert!(numbers.renew(&held).await.unwrap(), "the later lease stays");
        assert!(numbers.give_back(&held, 1).await.unwrap());
        assert!(!numbers.renew(&held).await.unwrap());
        assert_eq!(fenced.get(), 1);
    }

    #[tokio::test]
    async fn an_acquire_that_fails_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let numbers = numbers_in(folder.path()).await;
        let free = candidates(&[], Choice::Any, numbers.identity(), NOW).remove(0);
        let of_a_dead = Candidate { from: Some(id("dead-1")), ..free.clone() };
        numbers.ledger.close().await;
        let failed = Counted::new("fencepost_lease_acquire_total", ("result", "error"));
        let _counting = metrics::set_default_local_recorder(&failed);
        for (candidate, count) in [(free, 1), (of_a_dead, 2)] {
            numbers.acquire(&candidate).await.unwrap_err();
            assert_eq!(failed.get(), count, "{candidate:?}");
        }
    }

    #[test]
    fn the_last_number_comes_first_then_free_ones_then_unused_then_orphans_then_those_to_wait_for() {
        let known = [
            record(0, Some(("live-1", true)), "live", NOW),
            record(1, Some(("dead-1", false)), "dead", NOW),
            record(2, None, "other", NOW + 5_000),
            record(3, None, "other", NOW),
            record(4, Some(("me-0", false)), "me", NOW - 1),
            record(5, Some(("me-1", true)), "me", NOW - 1),
            record(6, Some(("dead-2", false)), "me", NOW + 3_000),
        ];
        let found = numbers(&known, Choice::Any);
        assert_eq!(found[..4], [5, 4, 3, 7], "mine, my node's, free, unused");
        assert_eq!(found[found.len() - 3..], [1, 6, 2], "orphans, then by how soon");
        assert_eq!(found.len(), 1_023, "the living keep theirs");
        let from_dead = candidates(&known, Choice::Any, (&id("me-1"), "me"), NOW);
        assert_eq!(from_dead[1].from, Some(id("me-0")));
    }

    #[test]
    fn a_data_center_or_a_fixed_number_narrow_the_choice() {
        let known = [record(64, None, "other", 0), record(3, None, "other", 0)];
        assert_eq!(numbers(&known, Choice::DataCenter(2)), (64..96).collect::<Vec<_>>());
        let fixed = WorkerNumber::new(3).unwrap();
        assert_eq!(numbers(&known, Choice::Fixed(fixed)), [3]);
        assert_eq!(numbers(&[record(3, Some(("live-1", true)), "live", 0)], Choice::Fixed(fixed)), [0; 0]);
    }
}
