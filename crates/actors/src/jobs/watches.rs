//! Watches: callers hear what becomes of a job, of a lane's jobs, or of all jobs, on any instance.
//!
//! What lives here: who listens on this instance, and what other instances have asked for. A notification may be lost, and
//! may come twice; the ledger has the truth, and a caller that missed something reads it there. An event that nobody
//! listens to costs one read of a number, and no message.
//!
//! What crosses the bus is in [`exchange`].

mod exchange;
mod finish_interest;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dashmap::{DashMap, Entry};
use domain::job::{Attempt, Outcome, State};
use domain::{InstanceId, JobId, LaneId, NodeId};
use nodes::connection::Progress;
use tokio::sync::{broadcast, mpsc};

use super::limits::{
    ASKED_TOPICS_MAX, EVENTS_OF_ALL_PER_SECOND, FINISHED_JOBS_KNOWN, NOTIFICATIONS_OF_ALL_MAX,
    NOTIFICATIONS_OF_JOB_MAX, NOTIFICATIONS_OF_LANE_MAX, OUTGOING_NOTICES_MAX, PROGRESS_ASKED,
    WANTED_AGAIN_EVERY, WANTED_FOR, WANTED_TOPICS_MAX, WATCHED_TOPICS_MAX,
};
use super::tallies::Tallies;
use exchange::Notice;
pub(super) use exchange::start;
use finish_interest::FinishInterest;

/// What can be watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// One job.
    Job(JobId),
    /// All jobs of a lane.
    Lane(LaneId),
    /// All jobs there are. Other instances send only so many events a second for this topic alone.
    All,
}

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEvent {
    /// The job.
    pub job: JobId,
    /// The newest attempt when it happened.
    pub attempt: Attempt,
    /// The lane that the job belongs to, if the instance that saw the event knows it.
    pub lane: Option<LaneId>,
    /// The node that has the attempt, or had it.
    pub node: Option<NodeId>,
    /// What it was.
    pub kind: JobEventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEventKind {
    /// It is in this state now, by the ledger; when FINISHED, with this outcome, where that is known.
    Changed(State, Option<Outcome>),
    /// Its node says how far the attempt has come.
    Progressed(Progress),
}

/// What a watch gets.
#[derive(Clone, Debug)]
pub enum Notification {
    /// Something happened.
    Event(Arc<JobEvent>),
    /// Events may have been lost: read the ledger.
    Missed,
}

/// Hears of its topic, from its making on. Notifications may come twice, and be lost.
pub struct Watch {
    watches: Arc<Watches>,
    topic: Topic,
    notifications: broadcast::Receiver<Notification>,
}

impl Watch {
    /// What comes next. Nothing is lost when the wait is given up.
    pub async fn next(&mut self) -> Notification {
        match self.notifications.recv().await {
            Ok(notification) => notification,
            Err(broadcast::error::RecvError::Lagged(_)) => Notification::Missed,
            // The sender lives as long as somebody watches.
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }

    /// What is there already.
    pub(super) fn next_now(&mut self) -> Option<Notification> {
        match self.notifications.try_recv() {
            Ok(notification) => Some(notification),
            Err(broadcast::error::TryRecvError::Lagged(_)) => Some(Notification::Missed),
            Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed) => None,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // This one's receiver still counts.
        self.watches.forget_if(&self.topic, |watched| watched.notifications.receiver_count() <= 1);
    }
}

/// What callers of one instance, and other instances, listen to.
pub(super) struct Watches {
    here: DashMap<Topic, Watched>,
    /// The number of entries in it that a caller asked for, which take no room of the others.
    asked: AtomicUsize,
    /// What other instances want to learn, and until when.
    wanted: DashMap<Topic, Instant>,
    /// The number of entries in both maps. If it is zero, there is no listener.
    topics: AtomicUsize,
    /// The queue of notices to the other instances; `None` if there are none.
    outgoing: Option<mpsc::Sender<Notice>>,
    born: Instant,
    /// Events that only watches of all jobs get: the second since birth, and how many in it.
    all_sent: AtomicU64,
    tallies: Arc<Tallies>,
    finish_interest: FinishInterest,
}

/// A topic with a listener on this instance, now or a short while ago.
struct Watched {
    notifications: broadcast::Sender<Notification>,
    /// A caller asked for the job's progress; other instances send it at least until then. An entry with it is one of
    /// [`Watches::asked`].
    asked_until: Option<Instant>,
    /// The newest progress that came.
    progress: Option<Reported>,
    /// The last jobs that were told to be finished, the newest at the end.
    finished: VecDeque<JobId>,
}

/// Progress as it came. A node may have spoken of an attempt that is not its own.
struct Reported {
    attempt: Attempt,
    node: Option<NodeId>,
    progress: Progress,
}

impl Topic {
    const fn notifications_max(&self) -> usize {
        match self {
            Self::Job(_) => NOTIFICATIONS_OF_JOB_MAX,
            Self::Lane(_) => NOTIFICATIONS_OF_LANE_MAX,
            Self::All => NOTIFICATIONS_OF_ALL_MAX,
        }
    }
}

impl Watched {
    fn new(topic: &Topic) -> Self {
        Self {
            notifications: broadcast::channel(topic.notifications_max()).0,
            asked_until: None,
            progress: None,
            finished: VecDeque::new(),
        }
    }

    /// Whether a finished job was told here before, as far back as it is known. From now on it was.
    fn was_finished(&mut self, job: JobId) -> bool {
        let is_known = self.finished.contains(&job);
        if !is_known {
            if self.finished.len() == FINISHED_JOBS_KNOWN {
                self.finished.pop_front();
            }
            self.finished.push_back(job);
        }
        is_known
    }

    /// What the node that has the attempt says of it.
    fn progress_of(&self, attempt: Attempt, node: &NodeId) -> Option<Progress> {
        let reported = self.progress.as_ref()?;
        let is_its = reported.attempt == attempt && reported.node.as_ref() == Some(node);
        is_its.then(|| reported.progress.clone())
    }
}

impl Watches {
    /// For an instance among others, with the notices for them; or for one that is alone.
    pub(super) fn new(is_alone: bool) -> (Self, mpsc::Receiver<Notice>) {
        let (outgoing, to_tell) = mpsc::channel(OUTGOING_NOTICES_MAX);
        let watches = Self {
            here: DashMap::new(),
            asked: AtomicUsize::new(0),
            wanted: DashMap::new(),
            topics: AtomicUsize::new(0),
            outgoing: (!is_alone).then_some(outgoing),
            born: Instant::now(),
            all_sent: AtomicU64::new(0),
            tallies: Arc::default(),
            finish_interest: FinishInterest::default(),
        };
        (watches, to_tell)
    }

    /// Listens to a topic from now on, and asks the other instances for its events. `None` where too many topics are
    /// listened to.
    pub(super) fn watch(self: &Arc<Self>, topic: Topic) -> Option<Watch> {
        let notifications = self.listen(&topic)?;
        self.want(&topic, None);
        Some(Watch { watches: Arc::clone(self), topic, notifications })
    }

    /// Notes that a caller waits here for a job, for at most this time. Returns whether the other instances may not know yet that
    /// callers wait, and so send no notices.
    pub(super) fn caller_waits(&self, at_most: Duration) -> bool {
        self.outgoing.is_some()
            && self.finish_interest.caller_waits(at_most, Instant::now(), |topic| self.announce(topic))
    }

    /// Whether the other instance gets a notice of every finished job.
    pub(super) fn wants_finish_notices(&self, other: &InstanceId) -> bool {
        self.finish_interest.wants(other, Instant::now())
    }

    /// Whether any instance has announced recently that it wants these notices.
    pub(super) fn any_wants_finish_notices(&self) -> bool {
        self.finish_interest.any_wants(Instant::now())
    }

    /// Another instance announces whether callers wait there.
    #[cfg(test)]
    pub(super) fn receives(&self, from: &InstanceId, topic: &str) {
        let listed = self.finish_interest.receive(from, topic, Instant::now());
        assert_ne!(listed, finish_interest::Listed::Other);
    }

    /// The numbers of what this tells.
    pub(super) fn tallies(&self) -> &Arc<Tallies> {
        &self.tallies
    }

    /// Tells all who listen, here and elsewhere, that a job has changed.
    pub(super) fn tell_change(&self, seen: impl FnOnce() -> JobEvent) {
        self.tallies.changed();
        self.tell(seen);
    }

    /// Tells all who listen, here and elsewhere, how far an attempt is.
    pub(super) fn tell_progress(&self, seen: JobEvent) {
        self.tallies.progressed();
        self.tell(|| seen);
    }

    /// Tells the watches of a lane, here and elsewhere, that its session is closed: they read the ledger.
    pub(super) fn closed(&self, lane: &LaneId) {
        if self.has_nobody() {
            return;
        }
        let topic = Topic::Lane(lane.clone());
        let is_wanted = self.wanted.get(&topic).is_some_and(|until| Instant::now() < *until);
        if is_wanted {
            self.tell_closed(lane);
        }
        self.missed_in(&topic);
    }

    fn tell(&self, seen: impl FnOnce() -> JobEvent) {
        if self.has_nobody() {
            return;
        }
        let seen = seen();
        if self.outgoing.is_some() && self.is_wanted(&seen) {
            self.put(Notice::of(&seen));
        }
        self.hand_out(seen);
    }

    /// Whether there is no listener on any instance.
    pub(super) fn has_nobody(&self) -> bool {
        self.topics.load(Ordering::Relaxed) == 0
    }

    /// Another instance says that a job is finished: its watches here read the ledger. How it ended is not known.
    pub(super) fn finished(&self, lane: &LaneId, job: JobId, attempt: Attempt) {
        if self.has_nobody() {
            return;
        }
        let kind = JobEventKind::Changed(State::Finished, None);
        let seen = Arc::new(JobEvent { job, attempt, lane: Some(lane.clone()), node: None, kind });
        self.hand_to(&Topic::Job(job), &seen);
        self.hand_to(&Topic::Lane(lane.clone()), &seen);
    }

    /// How far a job's attempt is that this node has, asked of the instance that holds the node's socket, if it answers within
    /// moments. After the first question that instance sends each progress for a while. Beyond [`ASKED_TOPICS_MAX`] it is asked
    /// about no more jobs.
    pub(super) async fn ask(
        &self,
        job: JobId,
        attempt: Attempt,
        node: &NodeId,
        holder: &InstanceId,
    ) -> Option<Progress> {
        self.outgoing.as_ref()?;
        let topic = Topic::Job(job);
        let has_room = self.asked.load(Ordering::Relaxed) < ASKED_TOPICS_MAX;
        let mut notifications = self.listen_if(&topic, has_room)?;
        {
            let mut watched = self.here.get_mut(&topic)?;
            let now = Instant::now();
            // What another node says must not stand for a newer attempt, and keep out what the job's own says.
            if watched.progress.as_ref().is_some_and(|reported| reported.node.as_ref() != Some(node)) {
                watched.progress = None;
            }
            if watched.asked_until.is_some_and(|until| now < until) {
                return watched.progress_of(attempt, node);
            }
            if watched.asked_until.is_none() {
                if !has_room {
                    return watched.progress_of(attempt, node);
                }
                self.asked.fetch_add(1, Ordering::Relaxed);
            }
            watched.asked_until = Some(now + WANTED_FOR);
            if watched.progress.is_some() {
                let known = watched.progress_of(attempt, node);
                drop(watched);
                self.want_all(&[topic], true);
                return known;
            }
        }
        self.want(&topic, Some(holder.clone()));
        let answered = async {
            // That nothing is known ends the wait as well; what another node says does not.
            while let Ok(Notification::Event(seen)) = notifications.recv().await
                && seen.node.as_ref() != Some(node)
            {}
        };
        let _ = tokio::time::timeout(PROGRESS_ASKED, answered).await;
        self.here.get(&topic)?.progress_of(attempt, node)
    }

    fn listen(&self, topic: &Topic) -> Option<broadcast::Receiver<Notification>> {
        let watched = self.here.len().saturating_sub(self.asked.load(Ordering::Relaxed));
        self.listen_if(topic, watched < WATCHED_TOPICS_MAX)
    }

    fn listen_if(&self, topic: &Topic, has_room: bool) -> Option<broadcast::Receiver<Notification>> {
        match self.here.entry(topic.clone()) {
            Entry::Occupied(watched) => Some(watched.get().notifications.subscribe()),
            Entry::Vacant(_) if !has_room => None,
            Entry::Vacant(vacant) => {
                self.topics.fetch_add(1, Ordering::Relaxed);
                Some(vacant.insert(Watched::new(topic)).notifications.subscribe())
            }
        }
    }

    /// Whether any other instance wants it.
    fn is_wanted(&self, seen: &JobEvent) -> bool {
        let now = Instant::now();
        let is_live = |topic: &Topic| self.wanted.get(topic).is_some_and(|until| now < *until);
        is_live(&Topic::Job(seen.job))
            || seen.lane.clone().is_some_and(|lane| is_live(&Topic::Lane(lane)))
            || (is_live(&Topic::All) && self.may_tell_all(now))
    }

    /// Whether this second has room for one more of what only those hear who want all.
    fn may_tell_all(&self, now: Instant) -> bool {
        let second = now.duration_since(self.born).as_secs();
        let count = |packed: u64| {
            let (of, sent) = (packed >> 32, packed & u64::from(u32::MAX));
            let sent = if of == second & u64::from(u32::MAX) { sent } else { 0 };
            (sent < EVENTS_OF_ALL_PER_SECOND).then_some(second << 32 | (sent + 1))
        };
        let may = self.all_sent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_ok();
        if !may {
            metrics::counter!("fencepost_job_notices_left_out_total").increment(1);
        }
        may
    }

    fn hand_out(&self, seen: JobEvent) {
        let seen = Arc::new(seen);
        self.hand_to(&Topic::Job(seen.job), &seen);
        if let Some(lane) = &seen.lane {
            self.hand_to(&Topic::Lane(lane.clone()), &seen);
        }
        // Whether its node has the attempt was looked up with the lane. Who follows the job knows its node.
        let is_doubtful = seen.lane.is_none() && matches!(seen.kind, JobEventKind::Progressed(_));
        if !is_doubtful {
            self.hand_to(&Topic::All, &seen);
        }
    }

    fn hand_to(&self, topic: &Topic, seen: &Arc<JobEvent>) {
        if let (Topic::Job(_), JobEventKind::Progressed(progress)) = (topic, &seen.kind)
            && let Some(mut watched) = self.here.get_mut(topic)
        {
            let is_older = watched.progress.as_ref().is_some_and(|known| known.attempt > seen.attempt);
            if !is_older {
                let (attempt, node) = (seen.attempt, seen.node.clone());
                watched.progress = Some(Reported { attempt, node, progress: progress.clone() });
            }
        }
        // An instance that wants a job's events may hear of its end twice: by the notice for callers that wait, and by its
        // own. Each costs a read of the ledger.
        if !matches!(topic, Topic::All)
            && matches!(seen.kind, JobEventKind::Changed(State::Finished, _))
            && self.here.get_mut(topic).is_some_and(|mut watched| watched.was_finished(seen.job))
        {
            return;
        }
        if let Some(watched) = self.here.get(topic) {
            // Nobody may be listening any more.
            let _ = watched.notifications.send(Notification::Event(Arc::clone(seen)));
        }
    }

    /// Watches here may have missed events.
    fn missed(&self) {
        for watched in &self.here {
            let _ = watched.notifications.send(Notification::Missed);
        }
    }

    /// The watches of a topic may have missed something.
    fn missed_in(&self, topic: &Topic) {
        if let Some(watched) = self.here.get(topic) {
            let _ = watched.notifications.send(Notification::Missed);
        }
    }

    /// A notice that is not sent is lost, as notices may be.
    fn put(&self, notice: Notice) {
        if let Some(queue) = &self.outgoing {
            let _ = queue.try_send(notice);
        }
    }

    /// Forgets a topic for which this holds, unless a caller asked for it a short while ago.
    fn forget_if(&self, topic: &Topic, so: impl Fn(&Watched) -> bool) {
        let now = Instant::now();
        let is_asked = |watched: &Watched| watched.asked_until.is_some_and(|until| now < until);
        let forgotten = self.here.remove_if(topic, |_, watched| so(watched) && !is_asked(watched));
        if let Some((_, watched)) = forgotten {
            self.topics.fetch_sub(1, Ordering::Relaxed);
            if watched.asked_until.is_some() {
                self.asked.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Another instance wants events of a topic.
    fn wanted_by_another(&self, topic: Topic) {
        let until = Instant::now() + WANTED_FOR;
        let has_room = self.wanted.len() < WANTED_TOPICS_MAX;
        match self.wanted.entry(topic) {
            Entry::Occupied(mut known) => {
                known.insert(until);
            }
            // Without events, a watch reads the ledger now and then.
            Entry::Vacant(_) if !has_room => {}
            Entry::Vacant(vacant) => {
                self.topics.fetch_add(1, Ordering::Relaxed);
                vacant.insert(until);
            }
        }
    }

    /// Forgets topics without listeners; returns the topics that are left here.
    fn sweep(&self) -> Vec<Topic> {
        let now = Instant::now();
        let over: Vec<_> =
            self.wanted.iter().filter(|it| *it.value() <= now).map(|it| it.key().clone()).collect();
        for topic in over {
            if self.wanted.remove_if(&topic, |_, until| *until <= now).is_some() {
                self.topics.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.finish_interest.sweep(now);
        let here: Vec<_> = self.here.iter().map(|watched| watched.key().clone()).collect();
        for topic in &here {
            if let Some(mut watched) = self.here.get_mut(topic)
                && watched.asked_until.take_if(|until| *until <= now).is_some()
            {
                self.asked.fetch_sub(1, Ordering::Relaxed);
            }
            self.forget_if(topic, |watched| watched.notifications.receiver_count() == 0);
        }
        here.into_iter().filter(|topic| self.here.contains_key(topic)).collect()
    }
}

// With jitter, half as long again lies between two times that it is said.
const _: () = assert!(WANTED_FOR.as_millis() >= 3 * WANTED_AGAIN_EVERY.as_millis());
