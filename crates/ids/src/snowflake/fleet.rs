//! A fleet in memory, for tests: a ledger's worker numbers, machines with clocks that can be set, processes that
//! can crash. Its time is the runtime's, which the tests pause.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use domain::{InstanceId, Token, WorkerNumber};
use ledger::{Marked, WorkerHolder, WorkerRecord};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::*;

/// What the database's clock shows at the beginning: in 2046, late enough for every epoch.
pub(super) const BEGIN_MS: u64 = 2_400_000_000_000;

/// A clock that runs with the runtime's, and can be set.
pub(super) struct Watch {
    begun: Instant,
    offset_ms: AtomicI64,
    /// What it shows while it stands; 0 while it runs.
    stands_at: AtomicU64,
    /// The next look at it is a defect.
    pub(super) next_look_panics: AtomicBool,
}

impl Clock for Watch {
    fn now_ms(&self) -> u64 {
        assert!(!self.next_look_panics.swap(false, Ordering::Relaxed), "made on purpose");
        match self.stands_at.load(Ordering::Relaxed) {
            0 => (BEGIN_MS + self.begun.elapsed().as_millis() as u64)
                .saturating_add_signed(self.offset_ms.load(Ordering::Relaxed)),
            shown => shown,
        }
    }
}

impl Watch {
    fn new(begun: Instant, offset_ms: i64) -> Arc<Self> {
        Arc::new(Self {
            begun,
            offset_ms: AtomicI64::new(offset_ms),
            stands_at: AtomicU64::new(0),
            next_look_panics: AtomicBool::new(false),
        })
    }

    pub(super) fn jump(&self, by_ms: i64) {
        self.offset_ms.fetch_add(by_ms, Ordering::Relaxed);
    }

    pub(super) fn stand(&self, stands: bool) {
        let shown = if stands { self.now_ms() } else { 0 };
        self.stands_at.store(shown, Ordering::Relaxed);
    }
}

/// The ledger, and every id that was ever made.
pub(super) struct Fleet {
    begun: Instant,
    clock: Arc<Watch>,
    /// The ledger's id.
    pub(super) cluster: String,
    rows: Mutex<Rows>,
    made: Mutex<HashSet<u64>>,
    instances: AtomicU64,
}

#[derive(Default)]
struct Rows {
    epoch_ms: Option<u64>,
    leases: BTreeMap<WorkerNumber, Lease>,
    marks: BTreeMap<WorkerNumber, (String, u64)>,
    dead: HashSet<InstanceId>,
}

struct Lease {
    owner: Option<InstanceId>,
    token: i64,
    expires_at: Instant,
}

impl Fleet {
    pub(super) fn new() -> Arc<Self> {
        let begun = Instant::now();
        Arc::new(Self {
            begun,
            clock: Watch::new(begun, 0),
            cluster: uuid::Uuid::new_v4().to_string(),
            rows: Mutex::default(),
            made: Mutex::default(),
            instances: AtomicU64::new(0),
        })
    }

    /// How many ids were made.
    pub(super) fn made(&self) -> usize {
        self.made.lock().len()
    }

    /// Numbers with a live lease, each with its owner.
    pub(super) fn held(&self) -> BTreeMap<u16, InstanceId> {
        let rows = self.rows.lock();
        let live = rows.leases.iter().filter(|(_, lease)| lease.expires_at > Instant::now());
        live.filter_map(|(number, lease)| Some((number.get(), lease.owner.clone()?))).collect()
    }

    /// The mark of a number.
    pub(super) fn mark_ms(&self, number: WorkerNumber) -> u64 {
        self.rows.lock().marks[&number].1
    }

    /// Lifts the mark of a number so far ahead of the clock, as a recovery does.
    pub(super) fn lift_mark(&self, number: WorkerNumber, ahead_ms: u64) {
        self.rows.lock().marks.insert(number, (String::new(), self.clock.now_ms() + ahead_ms));
    }

    /// From now on the others take it for dead.
    pub(super) fn declare_dead(&self, instance: &InstanceId) {
        self.rows.lock().dead.insert(instance.clone());
    }

    /// From now on they do not any more.
    pub(super) fn declare_alive(&self, instance: &InstanceId) {
        self.rows.lock().dead.remove(instance);
    }

    /// A process on a machine whose clock is so far off.
    pub(super) fn start(self: &Arc<Self>, node: &str, offset_ms: i64, options: Options) -> Process {
        self.start_with(node, offset_ms, options, false)
    }

    /// The same for one that does not reach the ledger.
    pub(super) fn start_cut_off(self: &Arc<Self>, node: &str, offset_ms: i64, options: Options) -> Process {
        self.start_with(node, offset_ms, options, true)
    }

    /// A process that was killed, and started again by its file while the ledger is away; and the number that both have.
    pub(super) async fn restarted_by_its_file(self: &Arc<Self>, file: PathBuf) -> (Process, u16) {
        let options = Options { lead_ms: 60_000, ..with_file(file) };
        let process = self.start("a", 0, options.clone());
        let before = process.makes().await;
        process.crash().await;
        let restarted = self.start_cut_off("a", 0, options);
        assert_eq!(restarted.makes().await, before, "by the file");
        (restarted, before)
    }

    fn start_with(self: &Arc<Self>, node: &str, offset_ms: i64, options: Options, is_away: bool) -> Process {
        let clock = Watch::new(self.begun, offset_ms);
        let (snowflakes, keeping) = Snowflakes::start(options.clone(), clock.clone());
        let process = Process {
            fleet: Arc::clone(self),
            node: node.to_owned(),
            numbers: self.numbers(node, options.lease_ms),
            clock,
            snowflakes,
            keeping,
            lease_ms: options.lease_ms,
        };
        process.numbers.is_away.store(is_away, Ordering::Relaxed);
        process.keeping.serve(process.numbers.clone());
        process
    }

    fn numbers(self: &Arc<Self>, node: &str, lease_ms: u64) -> Arc<FleetNumbers> {
        let owner = format!("{node}-{}", self.instances.fetch_add(1, Ordering::Relaxed));
        Arc::new(FleetNumbers {
            fleet: Arc::clone(self),
            owner: InstanceId::parse(&owner).unwrap(),
            node: node.to_owned(),
            lease: Duration::from_millis(lease_ms),
            is_away: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            next_call_panics: AtomicBool::new(false),
            takes_no_mark: AtomicBool::new(false),
            went_back: AtomicBool::new(false),
        })
    }
}

/// The fleet's numbers, as one instance reaches them.
pub(super) struct FleetNumbers {
    fleet: Arc<Fleet>,
    pub(super) owner: InstanceId,
    node: String,
    lease: Duration,
    /// Whether the ledger refuses to be reached.
    pub(super) is_away: AtomicBool,
    /// Whether it takes calls and never answers.
    pub(super) hangs: AtomicBool,
    /// The next call is a defect.
    pub(super) next_call_panics: AtomicBool,
    /// Whether it answers everything but marks.
    pub(super) takes_no_mark: AtomicBool,
    /// Whether it is behind what this instance knows: it gives numbers, and lets none be used.
    pub(super) went_back: AtomicBool,
}

impl FleetNumbers {
    async fn reach(&self) -> ledger::Result<MutexGuard<'_, Rows>> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!self.next_call_panics.swap(false, Ordering::Relaxed), "made on purpose");
        if self.hangs.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        if self.hangs.load(Ordering::Relaxed) || self.is_away.load(Ordering::Relaxed) {
            return Err(ledger::Error::unavailable(std::io::Error::other("away")));
        }
        Ok(self.fleet.rows.lock())
    }

    fn unless_it_went_back(&self) -> ledger::Result<()> {
        if self.went_back.load(Ordering::Relaxed) { Err(ledger::Error::WentBack) } else { Ok(()) }
    }

    fn is_mine(&self, rows: &Rows, worker_lease: &WorkerLease) -> bool {
        rows.leases.get(&worker_lease.number).is_some_and(|lease| {
            lease.owner.as_ref() == Some(&self.owner) && lease.token == worker_lease.token.get()
        })
    }

    fn marked(&self, mark_ms: u64) -> Marked {
        Marked { mark_ms, database_ms: self.fleet.clock.now_ms() }
    }
}

#[async_trait::async_trait]
impl Numbers for FleetNumbers {
    async fn epoch_ms(&self, wanted_ms: u64) -> ledger::Result<u64> {
        Ok(*self.reach().await?.epoch_ms.get_or_insert(wanted_ms))
    }

    async fn clock_ms(&self) -> ledger::Result<u64> {
        drop(self.reach().await?);
        Ok(self.fleet.clock.now_ms())
    }

    async fn is_current(&self) -> ledger::Result<bool> {
        drop(self.reach().await?);
        Ok(self.unless_it_went_back().is_ok())
    }

    async fn survey(&self) -> ledger::Result<Vec<WorkerRecord>> {
        let rows = self.reach().await?;
        let record = |(number, lease): (&WorkerNumber, &Lease)| {
            let left = lease.expires_at.saturating_duration_since(Instant::now());
            let owner = lease.owner.clone().filter(|_| !left.is_zero());
            let mark = rows.marks.get(number);
            WorkerRecord {
                number: *number,
                holder: owner.map(|id| WorkerHolder {
                    lives: !rows.dead.contains(&id),
                    is_gone: rows.dead.contains(&id),
                    expires_in_ms: left.as_millis() as u64,
                    id,
                }),
                node: mark.map(|(node, _)| node.clone()),
                mark_ms: mark.map_or(0, |(_, mark_ms)| *mark_ms),
            }
        };
        Ok(rows.leases.iter().map(record).collect())
    }

    fn cluster(&self) -> &str {
        &self.fleet.cluster
    }

    fn identity(&self) -> (&InstanceId, &str) {
        (&self.owner, &self.node)
    }

    async fn acquire(&self, candidate: &Candidate) -> ledger::Result<Option<WorkerLease>> {
        let mut rows = self.reach().await?;
        let dead = candidate.from.as_ref().filter(|dead| rows.dead.contains(*dead)).cloned();
        let now = Instant::now();
        let lease =
            rows.leases.entry(candidate.number).or_insert(Lease { owner: None, token: 0, expires_at: now });
        let is_free = match &lease.owner {
            None => true,
            Some(owner) => *owner == self.owner || lease.expires_at <= now || Some(owner) == dead.as_ref(),
        };
        if !is_free {
            return Ok(None);
        }
        lease.owner = Some(self.owner.clone());
        lease.token += 1;
        lease.expires_at = now + self.lease;
        Ok(Some(WorkerLease { number: candidate.number, token: Token::new(lease.token) }))
    }

    async fn open(&self, worker_lease: &WorkerLease) -> ledger::Result<Option<Marked>> {
        let mut rows = self.reach().await?;
        self.unless_it_went_back()?;
        if !self.is_mine(&rows, worker_lease) {
            return Ok(None);
        }
        let mark = rows.marks.entry(worker_lease.number).or_insert((String::new(), 0));
        mark.0.clone_from(&self.node);
        Ok(Some(self.marked(mark.1)))
    }

    async fn mark(
        &self,
        worker_lease: &WorkerLease,
        mark_ms: u64,
        ahead_max_ms: u64,
    ) -> ledger::Result<Option<Marked>> {
        let mut rows = self.reach().await?;
        if self.takes_no_mark.load(Ordering::Relaxed) {
            return Err(ledger::Error::unavailable(std::io::Error::other("away")));
        }
        self.unless_it_went_back()?;
        if !self.is_mine(&rows, worker_lease) {
            return Ok(None);
        }
        let mark = &mut rows.marks.get_mut(&worker_lease.number).unwrap().1;
        *mark = (*mark).max(mark_ms.min(self.fleet.clock.now_ms() + ahead_max_ms));
        Ok(Some(self.marked(*mark)))
    }

    async fn renew(&self, worker_lease: &WorkerLease) -> ledger::Result<bool> {
        let mut rows = self.reach().await?;
        let is_mine = self.is_mine(&rows, worker_lease);
        if is_mine {
            rows.leases.get_mut(&worker_lease.number).unwrap().expires_at = Instant::now() + self.lease;
        }
        Ok(is_mine)
    }

    async fn give_back(&self, worker_lease: &WorkerLease, mark_ms: u64) -> ledger::Result<bool> {
        let mut rows = self.reach().await?;
        let is_mine = self.is_mine(&rows, worker_lease);
        if is_mine {
            let mark = &mut rows.marks.get_mut(&worker_lease.number).unwrap().1;
            *mark = (*mark).min(mark_ms);
            rows.leases.get_mut(&worker_lease.number).unwrap().owner = None;
        }
        Ok(is_mine)
    }
}

/// One process of one node.
pub(super) struct Process {
    fleet: Arc<Fleet>,
    node: String,
    lease_ms: u64,
    pub(super) numbers: Arc<FleetNumbers>,
    pub(super) clock: Arc<Watch>,
    pub(super) snowflakes: Snowflakes,
    pub(super) keeping: Keeping,
}

impl Process {
    /// So many ids, none of which was ever made before.
    pub(super) async fn take(&self, count: usize, limit_ms: u64) -> Result<Batch, Refusal> {
        let batch = self.snowflakes.take(count, Duration::from_millis(limit_ms)).await?;
        let ids: Vec<_> = batch.ids().collect();
        assert!(ids.is_sorted() && ids.len() == count, "{ids:?}");
        let mut made = self.fleet.made.lock();
        for id in ids {
            assert_eq!(Layout::default().decode(id).unwrap().worker, batch.worker);
            assert!(made.insert(id), "{id} was made before: {:?}", Layout::default().decode(id));
        }
        Ok(batch)
    }

    /// An id that is there within ten seconds; answers the number it was made under.
    pub(super) async fn makes(&self) -> u16 {
        self.take(1, 10_000).await.unwrap().worker.get()
    }

    /// The same process as another instance: others have found it dead.
    pub(super) fn begin_anew(&mut self) {
        self.fleet.declare_dead(&self.numbers.owner);
        self.numbers = self.fleet.numbers(&self.node, self.lease_ms);
        self.keeping.serve(self.numbers.clone());
    }

    /// Ends it from one moment to the next. Its lease and its mark stay.
    pub(super) async fn crash(self) {
        self.keeping.keeper.abort();
        assert!(self.keeping.keeper.await.unwrap_err().is_cancelled());
        self.fleet.declare_dead(&self.numbers.owner);
    }

    /// Ends it as it should end.
    pub(super) async fn stop(self) {
        self.keeping.stop().await;
        self.fleet.declare_dead(&self.numbers.owner);
    }
}

/// Options for the one number that everybody wants.
pub(super) fn fixed(number: u16) -> Options {
    Options { choice: Choice::Fixed(WorkerNumber::new(number).unwrap()), ..Options::default() }
}

/// Options with a local file.
pub(super) fn with_file(file: PathBuf) -> Options {
    Options { file: Some(file), ..Options::default() }
}

/// Lets time pass.
pub(super) async fn pass(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
