//! The attempts that nodes connected to this instance have, or are about to have: what is expected, acknowledged, cancelled
//! and over. Memory only; the ledger has the truth, and `orphaned_attempts` compares the two.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bus::Slot;
use dashmap::DashMap;
use domain::job::Attempt;
use domain::{JobId, LaneId, NodeId};
use parking_lot::Mutex;

use super::delivery::{Dispatch, RetryPolicy};
use super::limits::AWAY_REMEMBERED;

/// The attempts of the nodes of one instance.
#[derive(Default)]
pub(super) struct LocalAttempts {
    attempts: DashMap<(JobId, Attempt), LocalAttempt>,
    /// Cancelled, and their slots not known to be free yet. By their nodes: one that connects costs no look at what others have.
    cancelled: DashMap<NodeId, CancelledAttempts>,
    /// Those of them whose slots are free: to be written down.
    released: Mutex<Vec<(JobId, Attempt)>>,
    /// Acknowledged, and not written down as RUNNING yet: when. By their nodes, as the cancelled ones.
    acknowledged: DashMap<NodeId, HashMap<(JobId, Attempt), Instant>>,
}

/// An attempt that a node here has, or is about to have.
pub(super) struct LocalAttempt {
    pub(super) node: NodeId,
    /// Since when it is known here; `None` for one that the node came with and that was not looked up yet.
    pub(super) since: Option<Instant>,
    /// `None` for an attempt that was not dispatched to this instance.
    pub(super) policy: Option<RetryPolicy>,
    /// Its node has said that it has it.
    is_acknowledged: bool,
    /// It was dispatched to the node, or the ledger has it as the job's newest. Otherwise the node may have made it up.
    is_confirmed: bool,
}

/// Attempts that their node is to stop.
#[derive(Default)]
struct CancelledAttempts {
    attempts: HashSet<(JobId, Attempt)>,
    /// Since when this instance is known not to look after the node.
    away_since: Option<Instant>,
}

impl LocalAttempt {
    /// One that its node came with.
    fn brought_by(node: &NodeId) -> Self {
        Self { node: node.clone(), since: None, policy: None, is_acknowledged: false, is_confirmed: false }
    }

    /// How long the attempt is known here, if it was dispatched to this instance.
    pub(super) fn age(&self, now: Instant) -> Option<Duration> {
        self.policy.as_ref()?;
        self.since.map(|since| now.saturating_duration_since(since))
    }
}

impl LocalAttempts {
    /// A node here is about to have the attempt.
    pub(super) fn expect(&self, dispatch: &Dispatch, now: Instant) {
        let (since, policy) = (Some(now), Some(dispatch.policy.clone()));
        let node = dispatch.placed.node.clone();
        let attempt = LocalAttempt { node, since, policy, is_acknowledged: false, is_confirmed: true };
        self.attempts.insert((dispatch.job, dispatch.attempt), attempt);
    }

    /// Whether the attempt is one that a node here has, or is about to have.
    pub(super) fn is_expected(&self, job: JobId, attempt: Attempt) -> bool {
        self.attempts.contains_key(&(job, attempt))
    }

    /// The node that has the attempt, or is about to.
    pub(super) fn node_of(&self, job: JobId, attempt: Attempt) -> Option<NodeId> {
        self.with(job, attempt, |known| Some(known.node.clone()))
    }

    /// Whether another node has the attempt, or is about to. What this one says of it is not to be believed.
    pub(super) fn is_anothers(&self, node: &NodeId, job: JobId, attempt: Attempt) -> bool {
        self.attempts.get(&(job, attempt)).is_some_and(|known| known.node != *node)
    }

    /// Whether the attempt was dispatched to the node by way of this instance, at that time or later.
    pub(super) fn was_dispatched_since(&self, node: &NodeId, of: Slot, since: Instant) -> bool {
        let dispatched = self.with(of.job, of.attempt, |known| {
            known.since.filter(|_| known.policy.is_some() && known.node == *node)
        });
        dispatched.is_some_and(|at| at >= since)
    }

    pub(super) fn policy(&self, job: JobId, attempt: Attempt) -> Option<RetryPolicy> {
        self.with(job, attempt, |known| known.policy.clone())
    }

    /// The lane of an attempt that was dispatched to this instance.
    pub(super) fn lane(&self, job: JobId, attempt: Attempt) -> Option<LaneId> {
        self.with(job, attempt, |known| known.policy.as_ref().map(|policy| policy.lane.clone()))
    }

    /// Reads of the attempt, if it is known. The reader must not come back here: it holds a lock.
    pub(super) fn with<R>(
        &self,
        job: JobId,
        attempt: Attempt,
        read: impl FnOnce(&LocalAttempt) -> Option<R>,
    ) -> Option<R> {
        self.attempts.get(&(job, attempt)).and_then(|known| read(&known))
    }

    /// The attempt is over: removes it.
    pub(super) fn take(&self, job: JobId, attempt: Attempt) -> Option<LocalAttempt> {
        let (_, known) = self.attempts.remove(&(job, attempt))?;
        self.not_acknowledged(&known.node, job, attempt);
        Some(known)
    }

    /// That the node has acknowledged the attempt need not be written down any more.
    fn not_acknowledged(&self, node: &NodeId, job: JobId, attempt: Attempt) {
        if let Some(mut of_node) = self.acknowledged.get_mut(node) {
            of_node.remove(&(job, attempt));
        }
    }

    /// The attempt is over: removes it. Answers its policy, if it was dispatched to this instance.
    pub(super) fn forget(&self, job: JobId, attempt: Attempt) -> Option<RetryPolicy> {
        self.take(job, attempt)?.policy
    }

    /// A node has connected and lists these.
    pub(super) fn connected_with(&self, node: &NodeId, listed: &[Slot]) {
        self.listed(node, listed);
        let Some(mut cancelled) = self.cancelled.get_mut(node) else { return };
        // What it was to stop and does not list has stopped.
        let listed: HashSet<_> = listed.iter().map(|slot| (slot.job, slot.attempt)).collect();
        let stopped: Vec<_> = cancelled.attempts.extract_if(|attempt| !listed.contains(attempt)).collect();
        drop(cancelled);
        self.released.lock().extend(stopped);
    }

    /// A node lists these: those that are not known are from now on.
    pub(super) fn listed(&self, node: &NodeId, listed: &[Slot]) {
        for Slot { job, attempt } in listed {
            let known = || LocalAttempt::brought_by(node);
            self.attempts.entry((*job, *attempt)).or_insert_with(known);
        }
    }

    /// The ledger says that the node has the attempt, also where another node reported it.
    pub(super) fn confirm_on(&self, node: &NodeId, Slot { job, attempt }: Slot) {
        let known = LocalAttempt::brought_by(node);
        let mut entry = self.attempts.entry((job, attempt)).or_insert(known);
        if entry.policy.is_none() {
            entry.node = node.clone();
        }
        entry.is_confirmed = true;
    }

    /// Whether the attempt is known to be the node's, which did not make it up.
    pub(super) fn is_confirmed(&self, node: &NodeId, Slot { job, attempt }: Slot) -> bool {
        self.attempts.get(&(job, attempt)).is_some_and(|known| known.is_confirmed && known.node == *node)
    }

    /// The node is about to get `cancel` for the attempt, if it is here.
    pub(super) fn cancelled(&self, node: &NodeId, job: JobId, attempt: Attempt) {
        let mut cancelled = self.cancelled.entry(node.clone()).or_default();
        cancelled.attempts.insert((job, attempt));
        cancelled.away_since = None;
    }

    /// The attempt has no slot of the node any more.
    pub(super) fn slot_freed(&self, node: &NodeId, job: JobId, attempt: Attempt) {
        let of_node = self.cancelled.get_mut(node);
        if of_node.is_some_and(|mut cancelled| cancelled.attempts.remove(&(job, attempt))) {
            self.released.lock().push((job, attempt));
        }
    }

    /// Forgets what was cancelled at nodes that this instance has not looked after for [`AWAY_REMEMBERED`]: they say elsewhere
    /// that they have stopped. Until then a node may come back.
    pub(super) fn keep_cancelled_of(&self, looks_after: impl Fn(&NodeId) -> bool, now: Instant) {
        let is_short = |since| now.saturating_duration_since(since) < AWAY_REMEMBERED;
        self.cancelled.retain(|node, of| {
            of.away_since = if looks_after(node) { None } else { of.away_since.or(Some(now)) };
            !of.attempts.is_empty() && of.away_since.is_none_or(is_short)
        });
    }

    /// Cancelled attempts whose slots are free, in order, and of each job the newest: to be written down, and put back with
    /// [`Self::not_released`] if that fails.
    pub(super) fn take_released(&self) -> Vec<(JobId, Attempt)> {
        let mut released = std::mem::take(&mut *self.released.lock());
        released.sort_unstable_by_key(|(job, attempt)| (*job, Reverse(*attempt)));
        // A batch writes a job once, and of an earlier attempt nothing is written.
        released.dedup_by_key(|(job, _)| *job);
        released
    }

    pub(super) fn not_released(&self, attempts: &[(JobId, Attempt)]) {
        self.released.lock().extend(attempts);
    }

    /// The node has the attempt. Where that was not known before, and the attempt was dispatched to this instance: how long the
    /// attempt is known here.
    pub(super) fn acknowledged(
        &self,
        node: &NodeId,
        job: JobId,
        attempt: Attempt,
        now: Instant,
    ) -> Option<Duration> {
        self.acknowledged.entry(node.clone()).or_default().insert((job, attempt), now);
        let mut known = self.attempts.get_mut(&(job, attempt))?;
        let was_acknowledged = std::mem::replace(&mut known.is_acknowledged, true);
        known.age(now).filter(|_| !was_acknowledged)
    }

    /// Attempts that the node has acknowledged, which is not written down yet.
    pub(super) fn acknowledged_by(&self, node: &NodeId) -> HashSet<Slot> {
        let Some(of_node) = self.acknowledged.get(node) else { return HashSet::new() };
        of_node.keys().map(|(job, attempt)| Slot { job: *job, attempt: *attempt }).collect()
    }

    /// Attempts that were acknowledged so long ago, in order, and of each job the newest: to be written down, and then taken off
    /// with [`Self::noted_running`].
    pub(super) fn running_for(&self, age: Duration, now: Instant) -> Vec<(JobId, Attempt, NodeId)> {
        let mut due = Vec::new();
        self.acknowledged.retain(|node, of| {
            let is_due = of.iter().filter(|(_, at)| now.duration_since(**at) >= age);
            due.extend(is_due.map(|((job, attempt), _)| (*job, *attempt, node.clone())));
            !of.is_empty()
        });
        due.sort_unstable_by_key(|(job, attempt, _)| (*job, Reverse(*attempt)));
        // A batch writes a job once. An earlier attempt, which was acknowledged late, has its turn with the next one.
        due.dedup_by_key(|(job, ..)| *job);
        due
    }

    pub(super) fn noted_running(&self, noted: &[(JobId, Attempt, NodeId)]) {
        for (job, attempt, node) in noted {
            self.not_acknowledged(node, *job, *attempt);
        }
    }

    /// Attempts that are known here for so long, or of which nobody knows for how long, in order: with their nodes and
    /// that length.
    pub(super) fn known_for(&self, age: Duration, now: Instant) -> Vec<((JobId, Attempt), NodeId, Duration)> {
        let known_for = |since: Option<Instant>| since.map_or(age, |since| now.duration_since(since));
        let old = self.attempts.iter().filter(|known| known_for(known.since) >= age);
        let mut old: Vec<_> =
            old.map(|known| (*known.key(), known.node.clone(), known_for(known.since))).collect();
        old.sort_unstable_by_key(|(attempt, ..)| *attempt);
        old
    }

    /// The attempt was looked up, and is still one. From now on its time is counted, unless it is already.
    pub(super) fn confirm(&self, job: JobId, attempt: Attempt, now: Instant) {
        if let Some(mut known) = self.attempts.get_mut(&(job, attempt)) {
            known.since.get_or_insert(now);
            known.is_confirmed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::fixture::{FIRST, dispatch, job, lane, node, slot};

    #[test]
    fn what_was_dispatched_is_expected_until_it_is_forgotten() {
        let (attempts, now) = (LocalAttempts::default(), Instant::now());
        attempts.expect(&dispatch(1, "n", "a"), now);
        assert!(attempts.is_expected(job(1), FIRST) && !attempts.is_expected(job(1), FIRST.next()));
        assert_eq!(attempts.node_of(job(1), FIRST), Some(node("n")));
        assert_eq!(attempts.lane(job(1), FIRST), Some(lane("instance:b")));
        let second = Duration::from_secs(1);
        let age = |of| attempts.with(job(of), FIRST, |known| known.age(now + second));
        assert_eq!((age(1), age(2)), (Some(second), None));
        assert!(attempts.forget(job(1), FIRST).is_some());
        assert!(!attempts.is_expected(job(1), FIRST) && attempts.forget(job(1), FIRST).is_none());
    }

    #[test]
    fn what_a_node_comes_with_is_known_and_nothing_of_its_job() {
        let (attempts, now) = (LocalAttempts::default(), Instant::now());
        attempts.expect(&dispatch(1, "n", "a"), now);
        attempts.connected_with(&node("n"), &[slot(1), slot(2)]);
        assert!(attempts.policy(job(1), FIRST).is_some(), "what is known of it stays");
        assert!(attempts.is_expected(job(2), FIRST) && attempts.policy(job(2), FIRST).is_none());
        let age = Duration::from_secs(10);
        let known_for =
            |at| attempts.known_for(age, at).into_iter().map(|((job, _), ..)| job).collect::<Vec<_>>();
        assert_eq!(known_for(now), [job(2)], "it may be old");
        attempts.confirm(job(2), FIRST, now);
        assert!(known_for(now).is_empty());
        assert_eq!(known_for(now + age), [job(1), job(2)]);
    }

    #[test]
    fn what_a_node_lists_is_its_own_when_the_ledger_has_named_it_or_it_was_dispatched_to_it() {
        let (attempts, now) = (LocalAttempts::default(), Instant::now());
        attempts.connected_with(&node("n"), &[1, 2, 3, 4].map(slot));
        attempts.confirm_on(&node("n"), slot(1));
        attempts.confirm_on(&node("m"), slot(2));
        attempts.expect(&dispatch(3, "n", "a"), now);
        let own = |of| [1, 2, 3, 4, 5].map(|number| attempts.is_confirmed(&node(of), slot(number)));
        assert_eq!(own("n"), [true, false, true, false, false]);
        assert_eq!(own("m"), [false, true, false, false, false]);
        attempts.confirm(job(4), FIRST, now);
        assert!(own("n")[3]);
    }

    #[test]
    fn a_cancelled_attempt_is_released_when_its_slot_is_free_or_its_node_does_not_list_it() {
        let attempts = LocalAttempts::default();
        for number in [1, 2, 3] {
            attempts.cancelled(&node("n"), job(number), FIRST);
        }
        attempts.cancelled(&node("m"), job(4), FIRST);
        attempts.slot_freed(&node("m"), job(1), FIRST);
        assert!(attempts.take_released().is_empty(), "it is another node's");
        for number in [1, 1, 9] {
            attempts.slot_freed(&node("n"), job(number), FIRST);
        }
        assert_eq!(attempts.take_released(), [(job(1), FIRST)], "once; and nothing that was not cancelled");
        attempts.connected_with(&node("n"), &[slot(2)]);
        assert_eq!(attempts.take_released(), [(job(3), FIRST)]);
        attempts.not_released(&[(job(3), FIRST)]);
        attempts.slot_freed(&node("n"), job(2), FIRST);
        attempts.slot_freed(&node("m"), job(4), FIRST);
        assert_eq!(attempts.take_released(), [2, 3, 4].map(|number| (job(number), FIRST)));
    }

    #[test]
    fn a_cancelled_attempt_is_remembered_until_its_node_has_been_away_for_long() {
        let (attempts, now) = (LocalAttempts::default(), Instant::now());
        let (away, back) = (now + AWAY_REMEMBERED / 2, now + AWAY_REMEMBERED);
        for (number, name) in [(1, "here"), (2, "away"), (3, "back")] {
            attempts.cancelled(&node(name), job(number), FIRST);
        }
        attempts.keep_cancelled_of(|of| *of == node("here"), now);
        attempts.keep_cancelled_of(|of| *of != node("away"), away);
        attempts.keep_cancelled_of(|of| *of == node("here"), back);
        for (number, name) in [(1, "here"), (2, "away"), (3, "back")] {
            attempts.slot_freed(&node(name), job(number), FIRST);
        }
        let released = [1, 3].map(|number| (job(number), FIRST));
        assert_eq!(attempts.take_released(), released, "the other node says so elsewhere");
    }

    #[test]
    fn of_a_job_whose_attempts_are_both_free_the_newest_is_written_down() {
        let attempts = LocalAttempts::default();
        for attempt in [FIRST.next(), FIRST] {
            attempts.cancelled(&node("n"), job(1), attempt);
            attempts.slot_freed(&node("n"), job(1), attempt);
        }
        assert_eq!(attempts.take_released(), [(job(1), FIRST.next())]);
    }

    #[test]
    fn of_a_job_whose_attempts_were_both_acknowledged_the_newest_is_written_down_first() {
        let (attempts, now) = (LocalAttempts::default(), Instant::now());
        for (name, attempt) in [("n", FIRST), ("m", FIRST.next())] {
            attempts.acknowledged(&node(name), job(1), attempt, now);
        }
        for (name, attempt) in [("m", FIRST.next()), ("n", FIRST)] {
            let running = attempts.running_for(Duration::ZERO, now);
            assert_eq!(running, [(job(1), attempt, node(name))]);
            attempts.noted_running(&running);
        }
        assert!(attempts.running_for(Duration::ZERO, now).is_empty());
    }

    #[test]
    fn how_long_an_attempt_took_to_start_is_told_once() {
        let (attempts, now) = (LocalAttempts::default(), Instant::now());
        attempts.expect(&dispatch(1, "n", "a"), now);
        attempts.connected_with(&node("n"), &[slot(1), slot(2)]);
        let second = Duration::from_secs(1);
        let age = |number| attempts.acknowledged(&node("n"), job(number), FIRST, now + second);
        assert_eq!((age(1), age(1)), (Some(second), None));
        attempts.noted_running(&attempts.running_for(Duration::ZERO, now + second));
        assert_eq!(age(1), None, "as by a result that waits for its commit");
        assert_eq!((age(2), age(3)), (None, None), "they were not dispatched to this instance");
    }

    #[test]
    fn only_what_runs_for_long_is_written_down_once() {
        let (attempts, now, age) = (LocalAttempts::default(), Instant::now(), Duration::from_secs(2));
        for (number, name) in [(2, "n"), (1, "n"), (3, "n"), (4, "m")] {
            attempts.expect(&dispatch(number, name, "a"), now);
            attempts.acknowledged(&node(name), job(number), FIRST, now);
        }
        attempts.forget(job(3), FIRST);
        assert!(attempts.running_for(age, now).is_empty());
        assert_eq!(attempts.acknowledged_by(&node("n")), HashSet::from([slot(1), slot(2)]));
        assert_eq!(attempts.acknowledged_by(&node("m")), HashSet::from([slot(4)]));
        attempts.forget(job(4), FIRST);
        assert!(attempts.acknowledged_by(&node("m")).is_empty());
        let running = attempts.running_for(age, now + age);
        assert_eq!(running, [1, 2].map(|number| (job(number), FIRST, node("n"))));
        attempts.noted_running(&running[..1]);
        assert_eq!(attempts.running_for(age, now + age), running[1..]);
        assert_eq!(attempts.acknowledged_by(&node("n")), HashSet::from([slot(2)]));
        attempts.noted_running(&running);
        assert!(attempts.running_for(age, now + age).is_empty());
        assert!(attempts.acknowledged.is_empty(), "of a node that has none nothing is kept");
    }
}
