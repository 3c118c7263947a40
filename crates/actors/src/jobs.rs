//! Jobs: the handle through which everybody reaches the lanes, and the sockets of nodes.
//!
//! The way of a job: handle (here) → its [`lane`]'s owner → a slot from the [`placer`] → commit in `ledger` → the
//! [`holder`] of the node's socket, here or by way of an inbox. Back: what the node says → commit → `committed` to the
//! node, and word to the lane. Words may be lost; what is committed is found again by whoever reads the ledger.

mod adoption;
mod book;
mod delivery;
mod follow;
mod holder;
mod lane;
pub mod limits;
mod line;
mod placer;
mod pools;
mod post;
mod progress;
mod queue;
mod refusal;
mod results;
mod sessions;
mod strays;
mod tenancy;
mod upkeep;
mod waiters;
mod watches;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::Slot;
use cluster::{Outlook, Standing, Tenure};
use dashmap::DashMap;
use domain::job::{Attempt, Due, Newest, Revoked, Spec, State};
use domain::{ClientRef, InstanceId, JobId, NodeId, Resource, Timestamp};
use ledger::{JobKey, JobRecord, LiveJob};
use nodes::Registry;
use nodes::connection::Progress;
use tokio::sync::{Mutex, Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::pause::jittered;
use crate::releases::Releases;
use crate::renewals::Renewals;
pub use delivery::Dispatch;
use delivery::Letter;
pub use follow::{Following, Step};
use holder::Holder;
pub use holder::{Line, ToNode};
use lane::{Address, Asked, Heard, Lane, Word};
use limits::{NOTICES_MAX, SUBMISSION_BYTES_MAX, SUBMISSIONS_MAX};
use placer::Placer;
use post::Notice;
use progress::Progresses;
pub use refusal::Refusal;
pub use results::{Answer, Failure, NodeResult};
pub use sessions::Session;
use sessions::sharing;
use tenancy::{Adopting, Adoption, Tenancy};
use waiters::Waiters;
use watches::Watches;
pub use watches::{News, Seen, Topic, Watch, What};

/// A job to be accepted.
#[derive(Clone, Debug)]
pub struct Submission {
    /// What is asked.
    pub spec: Spec,
    /// What the client of a session calls it.
    pub client_ref: Option<ClientRef>,
    /// When it may be dispatched.
    pub due: Due,
    /// Under which idempotency key.
    pub key: Option<JobKey>,
    /// The job that it repeats by hand.
    pub retry_of: Option<JobId>,
}

/// A job that was accepted: it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Its id.
    pub id: JobId,
    /// The lane that it belongs to.
    pub lane: Resource,
    /// Its place in its session.
    pub seq: Option<u64>,
    /// When it was accepted, by the database's clock.
    pub created_at: Timestamp,
}

/// How the lanes of an instance work.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Length of the lease of a lane that is taken from a dead instance.
    pub lease: Duration,
    /// How long a request may take altogether.
    pub request_timeout: Duration,
    /// How long finished jobs are kept.
    pub retention: Duration,
}

/// What the lanes of an instance rest on.
pub struct Ground {
    /// The truth.
    pub ledger: ledger::Handle,
    /// Slots and inboxes.
    pub bus: bus::Handle,
    /// As whom they write.
    pub me: InstanceId,
    /// Whether that one lives, and who does not.
    pub standing: Standing,
    /// What belongs where.
    pub outlook: Outlook,
    /// The lease of the instance's own lane.
    pub tenure: Tenure,
    /// The nodes there are.
    pub registry: Registry,
}

/// Those who wait for a job look into the ledger so often, in case that the word was lost; before jitter.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Whoever waits for long looks less and less often, and so often at least.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(4);
/// Lanes are taken in so many rows beside one another.
const TAKING: usize = 64;
/// Between two looks for whoever owns a lane, before jitter.
const OWNER_LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long the lanes of an incarnation go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    Stopping,
    Over,
}

/// What one submission takes of the bounds on what is on its way.
struct Places {
    _job: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

/// Cheap to clone; all clones reach the same lanes.
#[derive(Clone)]
pub struct Jobs {
    inner: Arc<Inner>,
}

struct Inner {
    ledger: ledger::Handle,
    bus: bus::Handle,
    me: InstanceId,
    standing: Standing,
    outlook: Outlook,
    tenure: Tenure,
    terms: Terms,
    registry: Registry,
    adopting: Adopting,
    placer: Arc<Placer>,
    holder: Arc<Holder>,
    waiters: Waiters,
    watches: Watches,
    progresses: Progresses,
    /// The lanes that are served here.
    lanes: DashMap<Resource, Address>,
    /// Held by whoever takes a lane, so that none is taken twice: by a share of their names.
    taking: [Mutex<()>; TAKING],
    lane_ended: Notify,
    phase: watch::Sender<Phase>,
    letters: mpsc::UnboundedSender<Letter>,
    notices: mpsc::Sender<Notice>,
    submissions: Arc<Semaphore>,
    submission_bytes: Arc<Semaphore>,
}

impl Jobs {
    /// Opens the lanes of an instance. Must be called within a Tokio runtime; they run on it.
    #[must_use]
    pub fn start(ground: Ground, terms: Terms) -> Self {
        let Ground { ledger, bus, me, standing, outlook, tenure, registry } = ground;
        let renewals = Arc::<Renewals>::default();
        renewals.start(ledger.clone(), me.clone(), terms.lease);
        let releases = Releases::start(ledger.clone(), me.clone(), terms.lease);
        let holder = Arc::<Holder>::default();
        let placer = Arc::new(Placer::new(registry.clone(), bus.clone(), Arc::clone(&holder)));
        placer.start();
        let (letters, letters_written) = mpsc::unbounded_channel();
        let (notices, notices_told) = mpsc::channel(NOTICES_MAX);
        let (watches, told) = Watches::new(bus.kind() == bus::Kind::Local);
        let adopting = Adopting {
            me: me.clone(),
            lease: terms.lease,
            ledger: ledger.clone(),
            standing: standing.clone(),
            renewals,
            releases,
        };
        let inner = Arc::new(Inner {
            ledger,
            bus: bus.clone(),
            me,
            standing,
            outlook,
            tenure,
            terms,
            registry,
            adopting,
            placer,
            holder,
            waiters: Waiters::default(),
            watches,
            progresses: Progresses::default(),
            lanes: DashMap::new(),
            taking: std::array::from_fn(|_| Mutex::default()),
            lane_ended: Notify::new(),
            phase: watch::Sender::new(Phase::Serving),
            letters,
            notices,
            submissions: Arc::new(Semaphore::new(SUBMISSIONS_MAX)),
            submission_bytes: Arc::new(Semaphore::new(SUBMISSION_BYTES_MAX)),
        });
        tokio::spawn(post::carry_letters(Arc::downgrade(&inner), letters_written));
        tokio::spawn(post::tell_notices(bus, notices_told));
        post::hear_notices(&inner);
        post::read_inbox(&inner);
        watches::start(&inner, told);
        inner.note_running();
        inner.watch_departures();
        if let Some(token) = inner.tenure.token() {
            inner.open_own(token);
        }
        adoption::start(&inner);
        pools::follow(&inner);
        strays::start(&inner);
        upkeep::start(&inner);
        Self { inner }
    }

    /// Accepts jobs, each on its own; an answer for each, in their order.
    pub async fn submit(&self, submissions: Vec<Submission>) -> Vec<Result<Accepted, Refusal>> {
        let deadline = Instant::now() + self.inner.terms.request_timeout;
        let own = self.inner.lanes.get(&Resource::instance(&self.inner.me)).map(|own| own.clone());
        self.inner.submit_to(own, submissions, deadline).await
    }

    /// One job, as the ledger has it.
    ///
    /// # Errors
    /// [`Refusal::UnknownJob`], and what the ledger says.
    pub async fn get(&self, id: JobId) -> Result<JobRecord, Refusal> {
        let found = self.inner.ledger.job(id).await.map_err(|error| refusal::of_ledger(&error))?;
        found.ok_or(Refusal::UnknownJob)
    }

    /// One job, when it is finished or that time is up, whichever comes first.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn wait(&self, id: JobId, at_most: Duration) -> Result<JobRecord, Refusal> {
        let until = Instant::now() + at_most;
        let waiter = self.inner.waiters.wait_for(id);
        let mut look_every = LOOK_EVERY;
        loop {
            let mut finished = pin!(waiter.finished());
            // Registered before the look, so that an end in between is not missed.
            finished.as_mut().enable();
            let job = self.get(id).await?;
            let left = until.saturating_duration_since(Instant::now());
            if job.state == State::Finished || left.is_zero() {
                return Ok(job);
            }
            let look_again = tokio::time::sleep(jittered(look_every).min(left));
            look_every = (look_every * 2).min(LOOK_EVERY_MAX);
            tokio::select! {
                () = finished => {}
                () = look_again => {}
            }
        }
    }

    /// Calls a job off, in whatever state it is; answers how it stands then. Called off or finished already, it stays
    /// as it is.
    ///
    /// # Errors
    /// [`Refusal::NotOwner`] where its lane is served by another instance.
    pub async fn cancel(&self, id: JobId) -> Result<JobRecord, Refusal> {
        let inner = &self.inner;
        let deadline = Instant::now() + inner.terms.request_timeout;
        loop {
            let job = self.get(id).await?;
            if job.state == State::Finished {
                return Ok(job);
            }
            let address = inner.lanes.get(&job.lane).map(|address| address.clone());
            let Some(address) = address else {
                match inner.owner_of(&job.lane).await? {
                    Some(owner) if owner != inner.me => return Err(Refusal::NotOwner { owner }),
                    // It is about to be adopted.
                    _ if Instant::now() + OWNER_LOOK_EVERY * 2 < deadline => {
                        tokio::time::sleep(jittered(OWNER_LOOK_EVERY)).await;
                        continue;
                    }
                    _ => return Err(Refusal::NoOwner { lane: job.lane }),
                }
            };
            let (reply, answer) = oneshot::channel();
            address.tell(Word::Cancel(id, reply));
            match tokio::time::timeout_at(deadline.into(), answer).await {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(refusal))) => return Err(refusal),
                Ok(Err(_)) => return Err(Refusal::Fenced),
                Err(_) => return Err(Refusal::LedgerUnavailable),
            }
        }
    }

    /// A node's connection to this instance, which said hello then: what is for the node comes out of the line.
    #[must_use]
    pub fn attach(&self, node: &NodeId, since: Instant) -> Line {
        self.inner.attach(node, since)
    }

    /// As whom the lanes write.
    #[must_use]
    pub fn me(&self) -> &InstanceId {
        &self.inner.me
    }

    /// Whether a socket of the node is held here.
    #[must_use]
    pub fn is_attached(&self, node: &NodeId) -> bool {
        self.inner.holder.is_attached(node)
    }

    /// Has a node that is connected here get no more work, or get work again. `false` if it is not here.
    pub fn drain(&self, node: &NodeId, is_drained: bool) -> bool {
        self.inner.holder.drain(node, is_drained)
    }

    /// The unfinished attempts that a node which has connected here has, or may still get by this connection. Of those in
    /// the ledger that it has not, and will not get, the lanes hear.
    ///
    /// # Errors
    /// What the ledger says.
    pub async fn attempts_on(&self, node: &NodeId, listed: &[Slot]) -> ledger::Result<Vec<Slot>> {
        self.inner.attempts_on(node, listed).await
    }

    /// How far an attempt has come, as its node says, which is connected here.
    pub fn progressed(&self, node: &NodeId, job: JobId, attempt: Attempt, progress: Progress) {
        self.inner.progressed(node, job, attempt, progress);
    }

    /// How far a job's newest attempt has come, if its node said so lately and is connected to any instance that can
    /// be asked within a moment.
    pub async fn progress(&self, job: &JobRecord) -> Option<Progress> {
        self.inner.progress(job).await
    }

    /// An attempt's slot is free.
    pub fn slot_freed(&self, job: JobId, attempt: Attempt) {
        self.inner.slot_freed(job, attempt);
    }

    /// A node has acknowledged an attempt.
    pub fn acknowledged(&self, node: &NodeId, job: JobId, attempt: Attempt) {
        self.inner.acknowledged(node, job, attempt);
    }

    /// The socket was closed after an attempt was sent and before anything was heard of it: it may be what the node
    /// died of.
    pub fn cut_off(&self, job: JobId, attempt: Attempt) {
        self.inner.cut_off(job, attempt);
    }

    /// Whether the attempt is still one that a node which is connected here has, or is to have.
    #[must_use]
    pub fn is_expected(&self, job: JobId, attempt: Attempt) -> bool {
        self.inner.holder.attempts.contains_key(&(job, attempt))
    }

    /// A node would not take an attempt, or it could not be given to it.
    pub fn came_to_nothing(&self, job: JobId, attempt: Attempt, why: Revoked, reason: &str) {
        self.inner.came_to_nothing(job, attempt, why, reason);
    }

    /// Records what became of attempts, in their node's words; comes back when that is known, however long it takes.
    /// Where slots may be passed on, there may be an attempt with an answer that has begun with the same commit: it is to
    /// have the slot of the one that is over, and came to nothing if it is not sent.
    pub async fn results(
        &self,
        node: &NodeId,
        results: Vec<NodeResult>,
        may_pass: bool,
    ) -> Vec<(Answer, Option<Box<Dispatch>>)> {
        self.inner.results(node, results, may_pass).await
    }

    /// Whether a result is written by the owner of its job's lane, with what that writes next. It does not depend on what
    /// becomes of others then.
    #[must_use]
    pub fn is_the_owners(&self, result: &NodeResult) -> bool {
        self.inner.writer_of(result).is_some()
    }

    /// How many jobs wait for a slot here.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.placer.waiting()
    }

    /// Finishes what is being committed, and gives the lanes up. Jobs that are not finished stay in the ledger, for
    /// others. Accept nothing more before calling this.
    pub async fn stop(&self) {
        self.end(Phase::Stopping).await;
    }

    /// Comes back when the lanes are given up, or have ended.
    pub async fn until_over(&self) {
        let mut phase = self.inner.phase.subscribe();
        // The sender lives as long as this.
        let _ = phase.wait_for(|phase| *phase != Phase::Serving).await;
    }

    /// Ends all that is under way: this incarnation's lanes may be others' by now.
    pub async fn abandon(&self) {
        self.end(Phase::Over).await;
    }

    async fn end(&self, phase: Phase) {
        let inner = &self.inner;
        inner.phase.send_modify(|now| *now = phase.max(*now));
        loop {
            // Registered before the look, so that a lane that ends in between is not missed.
            let ended = inner.lane_ended.notified();
            if inner.lanes.is_empty() {
                return;
            }
            inner.lanes.iter().for_each(|lane| lane.tell(Word::Stop));
            ended.await;
        }
    }
}

impl Inner {
    fn is_serving(&self) -> bool {
        *self.phase.borrow() == Phase::Serving
    }

    fn is_over(&self) -> bool {
        *self.phase.borrow() == Phase::Over
    }

    fn serves(&self, lane: &Resource) -> bool {
        self.lanes.contains_key(lane)
    }

    fn places(&self, submission: &Submission) -> Option<Places> {
        let bytes = u32::try_from(submission.spec.payload.len()).ok()?;
        let job = Arc::clone(&self.submissions).try_acquire_owned().ok()?;
        let bytes = Arc::clone(&self.submission_bytes).try_acquire_many_owned(bytes).ok()?;
        Some(Places { _job: job, _bytes: bytes })
    }

    /// Has a lane's owner accept jobs; an answer for each, in their order.
    async fn submit_to(
        &self,
        lane: Option<Address>,
        submissions: Vec<Submission>,
        deadline: Instant,
    ) -> Vec<Result<Accepted, Refusal>> {
        let mut asked = Vec::with_capacity(submissions.len());
        let mut answers = Vec::with_capacity(submissions.len());
        for submission in submissions {
            let Some(places) = self.places(&submission) else {
                answers.push(Err(Refusal::Overloaded));
                continue;
            };
            let (reply, answer) = oneshot::channel();
            asked.push(Asked { submission, deadline, reply, _places: places });
            answers.push(Ok(answer));
        }
        if !asked.is_empty() {
            match lane {
                Some(lane) => lane.tell(Word::Submit(asked)),
                // Whoever waits is told by the loss of their replies.
                None => drop(asked),
            }
        }
        let mut answered = Vec::with_capacity(answers.len());
        for answer in answers {
            answered.push(match answer {
                Ok(answer) => match tokio::time::timeout_at(deadline.into(), answer).await {
                    Ok(answer) => answer.unwrap_or(Err(Refusal::Fenced)),
                    Err(_) => Err(Refusal::LedgerUnavailable),
                },
                Err(refusal) => Err(refusal),
            });
        }
        answered
    }

    async fn owner_of(&self, lane: &Resource) -> Result<Option<InstanceId>, Refusal> {
        let lease = self.ledger.lease(lane).await.map_err(|error| refusal::of_ledger(&error))?;
        Ok(lease.filter(ledger::Lease::is_live).and_then(|lease| lease.owner))
    }

    /// An unfinished job, as the ledger has it.
    async fn live_job(&self, id: JobId) -> ledger::Result<Option<LiveJob>> {
        let Some(job) = self.ledger.job(id).await? else { return Ok(None) };
        if job.finished.is_some() {
            return Ok(None);
        }
        let newest = Newest { state: job.state, attempt: job.attempt, counted: job.counted };
        Ok(Some(LiveJob {
            id: job.id,
            lane: job.lane,
            seq: job.seq,
            client_ref: job.client_ref,
            spec: job.spec,
            newest,
            placed: job.placed,
            retry_of: job.retry_of,
            created_at: job.created_at,
            due_at: job.due_at,
            dispatched_at: job.dispatched_at,
            running_at: job.running_at,
        }))
    }

    fn open_own(self: &Arc<Self>, token: domain::Token) {
        let tenancy = Tenancy::Own { tenure: self.tenure.clone(), standing: self.standing.clone() };
        self.open(Resource::instance(&self.me), tenancy, token);
    }

    /// Serves a lane from now on, if it is to be had: an address of its owner here, or who else has it.
    async fn adopt(self: &Arc<Self>, lane: &Resource) -> ledger::Result<Result<Address, Option<InstanceId>>> {
        let _turn = self.taking[sharing(lane)].lock().await;
        if let Some(address) = self.lanes.get(lane) {
            return Ok(Ok(address.clone()));
        }
        let adopted = self.adopting.adopt(lane).await?;
        let kind = lane.kind().as_str();
        let result = if matches!(adopted, Adoption::Taken(..)) { "acquired" } else { "held" };
        metrics::counter!("fencepost_lease_acquire_total", "kind" => kind, "result" => result).increment(1);
        match adopted {
            Adoption::Taken(tenancy, token) => {
                tracing::info!(resource = %lane, owner = %self.me, %token, lease_ms = self.terms.lease.as_millis(), "a lane is acquired");
                Ok(Ok(self.open(lane.clone(), tenancy, token)))
            }
            Adoption::Held(owner) => Ok(Err(Some(owner))),
            Adoption::Missed => Ok(Err(None)),
        }
    }

    fn open(self: &Arc<Self>, resource: Resource, tenancy: Tenancy, token: domain::Token) -> Address {
        let (lane, address) = Lane::new(Arc::clone(self), resource.clone(), tenancy, token);
        self.lanes.insert(resource.clone(), address.clone());
        // One that was adopted while this incarnation came to its end has not been told so.
        if !self.is_serving() {
            address.tell(Word::Stop);
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = tokio::spawn(lane.run()).await {
                // A defect. Whoever waits is told by the loss of their replies. An adopted lane's lease runs out; the
                // own one does not, so it is opened again.
                tracing::error!(%error, %resource, "a lane's owner died");
                inner.placer.forget_lane(&resource);
                if resource == Resource::instance(&inner.me) && inner.is_serving() {
                    return inner.open_own_again().await;
                }
            }
            inner.lanes.remove(&resource);
            inner.lane_ended.notify_waiters();
        });
        address
    }

    /// After its owner died: under a new token, so that what that one had sent does not count.
    async fn open_own_again(self: &Arc<Self>) {
        while self.is_serving() && self.tenure.token().is_some() {
            tokio::time::sleep(jittered(LOOK_EVERY)).await;
            if let Some(token) = self.tenure.acquire_anew().await {
                return self.open_own(token);
            }
        }
        self.lanes.remove(&Resource::instance(&self.me));
        self.lane_ended.notify_waiters();
    }

    /// Word of an attempt to the owner of its lane, here or wherever it is; and of an end to all who wait for it.
    fn tell_lane(&self, lane: &Resource, job: JobId, attempt: Attempt, heard: Heard) {
        let here = self.lanes.get(lane).map(|address| address.clone());
        self.tell_other_instances(lane, job, attempt, &heard, here.is_some());
        if let Some(address) = here {
            address.tell(Word::Heard(job, attempt, heard));
        }
    }

    fn tell_other_instances(
        &self,
        lane: &Resource,
        job: JobId,
        attempt: Attempt,
        heard: &Heard,
        is_lane_here: bool,
    ) {
        let is_news = !is_lane_here || (*heard == Heard::Finished && self.has_others());
        if self.bus.kind() != bus::Kind::Local && is_news {
            // What is not told is found in the ledger.
            let _ = self.notices.try_send(Notice::new(lane, job, attempt, heard));
        }
    }

    /// Whether another instance lives. One that has just begun may be missed for a moment.
    fn has_others(&self) -> bool {
        self.outlook.view().members().nth(1).is_some()
    }

    /// A letter for another instance.
    fn post(&self, letter: Letter) {
        // The receiver lives as long as this.
        let _ = self.letters.send(letter);
    }

    /// Has the lanes look at once at what a lost node had.
    fn watch_departures(self: &Arc<Self>) {
        let mut departures = self.registry.departures();
        let inner = Arc::downgrade(self);
        tokio::spawn(async move {
            use tokio::sync::broadcast::error::RecvError;
            loop {
                match departures.recv().await {
                    Ok(departure) => {
                        let Some(inner) = inner.upgrade() else { return };
                        for lane in &inner.lanes {
                            lane.tell(Word::Departed(departure.node.clone(), departure.how));
                        }
                    }
                    // What was missed is found by the look at attempts that are under way for long.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }
}
