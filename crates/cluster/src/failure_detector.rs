//! Which instances are alive or dead, including this one. It is updated after each renewal of this instance's
//! lease, and readers do not wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{InstanceId, Timestamp, Token};
use ledger::Peer;
use parking_lot::Mutex;

/// How many of its own renewals in a row an instance must make while the other's lease does not move. A
/// stalled ledger stops all renewals alike, so only an instance that keeps renewing may declare another dead.
const UNMOVED_MIN: u32 = 2;
/// In so many looks in a row nobody is seen that nobody knows of any more: an instance that lives renews itself meanwhile.
const UNSEEN_MIN: u32 = 4;

/// An instance that has not reached the ledger for this long withdraws its presence: the others go on without it.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Cheap to clone; all clones know the same.
#[derive(Clone)]
pub struct FailureDetector {
    known: Arc<Mutex<Known>>,
}

struct Known {
    lease: Duration,
    /// The time until which this instance's own lease certainly lasts, by its own clock; `None` if it needs
    /// no lease.
    alive_until: Option<Instant>,
    /// When the last renewal that was answered was sent.
    renewed_at: Option<Instant>,
    /// Since when renewals have been answered without a gap of [`SILENCE_MAX`].
    reached_since: Instant,
    /// Whether it was answered soon enough to be one of several in a row.
    timely: bool,
    /// The time until which this instance takes nothing over, because it was away itself.
    calm_until: Instant,
    /// The time until which its observations of the others are recent enough for a takeover: a stall may have
    /// begun since.
    evidence_until: Instant,
    others: HashMap<InstanceId, Other>,
    /// How many looks at the others in a row were timely.
    looks: u32,
    /// Those that the last looks did not show any more, and how many of these looks were timely.
    vanished: HashMap<InstanceId, u32>,
}

impl Known {
    /// Whether this instance lives, and has for long enough since it was away itself to take anything over.
    fn is_calm(&self, now: Instant) -> bool {
        self.alive_until.is_some_and(|until| now < until) && now >= self.calm_until
    }
}

struct Other {
    mark: (Token, Timestamp),
    unmoved: u32,
    /// Whose its lease is; `None` where it is free.
    owner: Option<InstanceId>,
    live: bool,
}

impl Other {
    /// Whether its lease, that of this id, is its own no more: a survivor found it dead and took it, or it has left. It
    /// never comes back.
    fn is_gone(&self, id: &InstanceId) -> bool {
        self.owner.as_ref() != Some(id)
    }
}

impl FailureDetector {
    /// Of an instance that is alone with its ledger: it lives, and there is nobody to die.
    #[must_use]
    pub fn alone() -> Self {
        Self::new(Duration::ZERO, None)
    }

    pub(crate) fn member(lease: Duration) -> Self {
        Self::new(lease, Some(Instant::now()))
    }

    fn new(lease: Duration, alive_until: Option<Instant>) -> Self {
        let now = Instant::now();
        let known = Known {
            lease,
            alive_until,
            renewed_at: None,
            reached_since: now,
            timely: false,
            calm_until: now + lease,
            evidence_until: now,
            others: HashMap::new(),
            looks: 0,
            vanished: HashMap::new(),
        };
        Self { known: Arc::new(Mutex::new(known)) }
    }

    /// Whether this instance is alone with its ledger: there is nobody whose lease it could take.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.known.lock().alive_until.is_none()
    }

    /// Whether this instance's own lease certainly lasts, by its own clock. If not, it writes for no key.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.is_alive_at(Instant::now())
    }

    /// The same at this time by the own clock, as far as is known.
    #[must_use]
    pub fn is_alive_at(&self, now: Instant) -> bool {
        self.known.lock().alive_until.is_none_or(|until| now < until)
    }

    /// Whether leases of others that have run out may be taken: not for one lease length after this instance joined or was away
    /// itself. A ledger that is away lets the leases of the living run out as well, and they renew them meanwhile.
    #[must_use]
    pub fn may_take(&self) -> bool {
        let (known, now) = (self.known.lock(), Instant::now());
        known.alive_until.is_none() || known.is_calm(now)
    }

    /// Whether the other's keys may be taken at once.
    #[must_use]
    pub fn is_dead(&self, other: &InstanceId) -> bool {
        let (known, now) = (self.known.lock(), Instant::now());
        known.is_calm(now) && known.others.get(other).is_some_and(|seen| seen.is_gone(other))
    }

    /// Whether the other is none of those that lived within the last ten minutes, so that no survivor will find it dead any
    /// more. Its keys may be taken once their leases have run out. One look is not enough: the database's clock may have
    /// jumped by so much, and who lives renews itself before the next.
    #[must_use]
    pub fn is_forgotten(&self, other: &InstanceId) -> bool {
        let (known, now) = (self.known.lock(), Instant::now());
        let is_unknown = !known.others.contains_key(other) && !known.vanished.contains_key(other);
        known.is_calm(now) && now < known.evidence_until && known.looks >= UNSEEN_MIN && is_unknown
    }

    /// Those whose keys may be taken at once.
    #[must_use]
    pub fn dead(&self) -> Vec<InstanceId> {
        let others: Vec<_> = self.known.lock().others.keys().cloned().collect();
        others.into_iter().filter(|other| self.is_dead(other)).collect()
    }

    /// Those of [`Self::dead`] after which this instance cleans up: it took their lease; or no live instance has that, and
    /// `is_chosen` chooses this instance. So exactly one of the survivors cleans up.
    #[must_use]
    pub fn left_to(&self, me: &InstanceId, is_chosen: impl Fn(&InstanceId) -> bool) -> Vec<InstanceId> {
        let mut dead = self.dead();
        dead.retain(|dead| match self.owner_of(dead) {
            Some(owner) if owner == *me => true,
            Some(owner) if !self.is_gone(&owner) => false,
            Some(_) | None => is_chosen(dead),
        });
        dead
    }

    fn owner_of(&self, other: &InstanceId) -> Option<InstanceId> {
        self.known.lock().others.get(other)?.owner.clone()
    }

    /// Whether the other has ended, or so long ago that nobody speaks of it any more.
    fn is_gone(&self, other: &InstanceId) -> bool {
        self.known.lock().others.get(other).is_none_or(|seen| seen.is_gone(other))
    }

    /// Whether the other is to be declared dead: its `instance:` lease may be taken, and must be before any of
    /// its keys, or it would go on under its id should it wake.
    pub(crate) fn is_lifeless(&self, other: &InstanceId) -> bool {
        let (known, now) = (self.known.lock(), Instant::now());
        let is_lifeless = |seen: &Other| !seen.is_gone(other) && !seen.live && seen.unmoved >= UNMOVED_MIN;
        known.is_calm(now) && now < known.evidence_until && known.others.get(other).is_some_and(is_lifeless)
    }

    /// This instance, `by`, has taken the other's `instance:` lease.
    pub(crate) fn buried(&self, other: &InstanceId, by: &InstanceId) {
        if let Some(other) = self.known.lock().others.get_mut(other) {
            other.owner = Some(by.clone());
        }
    }

    /// This instance has just heard that it renewed itself, with a statement sent at `sent`.
    ///
    /// Being away is judged, and counted, by when the answer came. A statement that a stall held up was sent in
    /// time, and yet the others may have had no turn since the stall began.
    pub(crate) fn renewed(&self, sent: Instant) {
        let (mut known, now) = (self.known.lock(), Instant::now());
        if known.alive_until.is_none_or(|before| before < now) {
            known.calm_until = now + known.lease;
        }
        known.timely = known.renewed_at.is_some_and(|before| now <= before + known.lease / 2);
        if !known.timely {
            known.others.values_mut().for_each(|other| other.unmoved = 0);
        }
        if known.renewed_at.is_none_or(|before| now.duration_since(before) >= SILENCE_MAX) {
            known.reached_since = now;
        }
        known.renewed_at = Some(sent);
        known.alive_until = Some(sent + known.lease);
    }

    /// Whether no renewal of this instance was answered for this long. Never true for an instance without a
    /// lease.
    pub(crate) fn is_silent_for(&self, length: Duration) -> bool {
        let known = self.known.lock();
        known.alive_until.is_some() && known.renewed_at.is_none_or(|at| at.elapsed() >= length)
    }

    /// Whether no renewal of this instance was answered for the lease's length and this one together: its own lease has been
    /// over for so long at least. Never true for an instance without a lease.
    pub(crate) fn is_without_lease_for(&self, length: Duration) -> bool {
        let lease = self.known.lock().lease;
        self.is_silent_for(lease.saturating_add(length))
    }

    /// How long this instance has reached the ledger without such a gap; `None` within one.
    pub(crate) fn reached_for(&self) -> Option<Duration> {
        if self.is_silent_for(SILENCE_MAX) {
            return None;
        }
        let known = self.known.lock();
        Some(known.alive_until.map_or(Duration::MAX, |_| known.reached_since.elapsed()))
    }

    /// This incarnation is over: it writes for nobody any more.
    pub(crate) fn ended(&self) {
        // A beginning that lies in the past is all that is needed; `None` would mean alone.
        self.known.lock().alive_until = Some(Instant::now());
    }

    /// After a renewal of its own, this instance found the others to be so.
    pub(crate) fn saw(&self, peers: &[Peer]) {
        let mut known = self.known.lock();
        known.evidence_until = Instant::now() + known.lease / 2;
        let (timely, mut before) = (known.timely, std::mem::take(&mut known.others));
        for peer in peers {
            let mark = (peer.lease.token, peer.lease.renewed_at);
            let unmoved = before
                .remove(&peer.id)
                .filter(|other| other.mark == mark && timely)
                .map_or(0, |other| other.unmoved + 1);
            let owner = peer.lease.owner.clone();
            known.others.insert(peer.id.clone(), Other { mark, unmoved, owner, live: peer.is_live() });
            known.vanished.remove(&peer.id);
        }
        known.vanished.extend(before.into_keys().map(|id| (id, 0)));
        known.looks = if timely { known.looks.saturating_add(1) } else { 0 };
        known.vanished.retain(|_, looks| {
            *looks = if timely { *looks + 1 } else { 0 };
            *looks < UNSEEN_MIN
        });
    }

    /// The others were found to be so, between two renewals. That tells who is gone, and nothing of who moves.
    pub(crate) fn saw_gone(&self, peers: &[Peer]) {
        let mut known = self.known.lock();
        for peer in peers.iter().filter(|peer| peer.lease.owner.as_ref() != Some(&peer.id)) {
            if let Some(other) = known.others.get_mut(&peer.id) {
                other.owner.clone_from(&peer.lease.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::Resource;
    use ledger::Lease;

    use super::*;

    const LEASE: Duration = Duration::from_millis(400);

    fn id(name: &str) -> InstanceId {
        InstanceId::parse(name).unwrap()
    }

    fn peer(name: &str, renewed_at: i64, expires_in_ms: u64) -> Peer {
        let lease = Lease {
            resource: Resource::instance(&id(name)),
            owner: Some(id(name)),
            token: Token::new(1),
            acquired_at: Timestamp::from_micros(0),
            renewed_at: Timestamp::from_micros(renewed_at),
            expires_in_ms,
        };
        Peer { id: id(name), url: String::new(), lease, age_ms: 10_000 }
    }

    /// A member that joined `ago` and has renewed itself ever since.
    fn member_since(ago: Duration) -> FailureDetector {
        let failure_detector = FailureDetector::member(LEASE);
        let begun = Instant::now().checked_sub(ago).unwrap();
        {
            let mut known = failure_detector.known.lock();
            (known.alive_until, known.calm_until) = (Some(begun), begun + LEASE);
        }
        failure_detector
    }

    #[test]
    fn dead_is_who_did_not_move_while_i_renewed_twice_and_whose_lease_ran_out() {
        let failure_detector = member_since(LEASE * 2);
        failure_detector.known.lock().alive_until = Some(Instant::now() + LEASE);
        for (expires_in_ms, dead) in [(300, false), (100, false), (0, true)] {
            failure_detector.renewed(Instant::now());
            failure_detector.saw(&[peer("a", 1, expires_in_ms)]);
            assert_eq!(failure_detector.is_lifeless(&id("a")), dead, "{expires_in_ms}");
        }
        failure_detector.renewed(Instant::now());
        failure_detector.saw(&[peer("a", 2, 0)]);
        assert!(!failure_detector.is_lifeless(&id("a")), "it moved");
        assert!(!failure_detector.is_lifeless(&id("unheard-of")));
    }

    #[test]
    fn nobodys_keys_are_taken_before_its_own_lease() {
        let failure_detector = about_to_call_a_dead();
        failure_detector.renewed(Instant::now());
        failure_detector.saw(&[peer("a", 1, 0)]);
        assert!(failure_detector.is_lifeless(&id("a")) && !failure_detector.is_dead(&id("a")));
        failure_detector.buried(&id("a"), &id("me"));
        assert!(failure_detector.is_dead(&id("a")) && !failure_detector.is_lifeless(&id("a")));
        let mut left = peer("b", 1, 0);
        left.lease.owner = None;
        failure_detector.saw(&[left]);
        assert!(failure_detector.is_dead(&id("b")), "who has left never comes back");
    }

    #[test]
    fn forgotten_is_who_is_not_seen_in_any_of_several_looks_in_a_row() {
        let failure_detector = member_since(LEASE * 2);
        let looks = |times, peers: &[Peer]| {
            for _ in 0..times {
                failure_detector.renewed(Instant::now());
                failure_detector.saw(peers);
            }
        };
        assert!(!failure_detector.is_forgotten(&id("a")), "nobody was looked for yet");
        looks(UNSEEN_MIN + 1, &[peer("b", 1, 0)]);
        assert!(!failure_detector.is_forgotten(&id("a")), "this instance was away itself");
        failure_detector.known.lock().calm_until = Instant::now();
        assert!(failure_detector.is_forgotten(&id("a")) && !failure_detector.is_forgotten(&id("b")));
        failure_detector.known.lock().evidence_until = Instant::now();
        assert!(!failure_detector.is_forgotten(&id("a")), "that was too long ago");
        // The database's clock jumps, and nobody is seen before he has renewed himself.
        looks(UNSEEN_MIN - 1, &[]);
        assert!(!failure_detector.is_forgotten(&id("b")));
        looks(1, &[peer("b", 2, 300)]);
        looks(UNSEEN_MIN - 1, &[]);
        assert!(!failure_detector.is_forgotten(&id("b")));
        looks(1, &[]);
        assert!(failure_detector.is_forgotten(&id("b")));
    }

    #[test]
    fn whose_lease_a_survivor_took_is_dead_at_once() {
        let failure_detector = member_since(LEASE * 2);
        failure_detector.known.lock().alive_until = Some(Instant::now() + LEASE);
        let mut taken = peer("a", 5, 300);
        taken.lease.owner = Some(id("b"));
        failure_detector.saw(&[taken]);
        assert!(
            failure_detector.is_dead(&id("a")) && !failure_detector.is_lifeless(&id("a")),
            "once is enough"
        );
        failure_detector.ended();
        assert!(!failure_detector.is_dead(&id("a")), "the dead take nothing");
    }

    #[test]
    fn one_survivor_cleans_up_after_each_of_the_dead() {
        let survivor = || {
            let failure_detector = member_since(LEASE * 2);
            failure_detector.known.lock().alive_until = Some(Instant::now() + LEASE);
            failure_detector
        };
        let (b, c) = (survivor(), survivor());
        let taken = |name: &str, owner: Option<&str>| {
            let mut peer = peer(name, 1, 300);
            peer.lease.owner = owner.map(id);
            peer
        };
        let live = ["b", "c"].map(|name| peer(name, 1, 300));
        let ended =
            [taken("a", Some("b")), taken("left", None), taken("late", Some("a")), taken("old", Some("x"))];
        for failure_detector in [&b, &c] {
            failure_detector.saw(&[&live[..], &ended[..]].concat());
        }
        let to = |of: &FailureDetector, me: &str, is_chosen: bool| {
            let mut left = of.left_to(&id(me), |_| is_chosen);
            left.sort_unstable();
            left
        };
        assert_eq!(to(&b, "b", false), [id("a")], "it took the lease");
        assert_eq!(to(&c, "c", false), []);
        // Nobody has the others' leases who is still there.
        assert_eq!(to(&c, "c", true), ["late", "left", "old"].map(id));
        let mut died = live;
        died[0].lease.owner = Some(id("c"));
        c.saw(&[&died[..], &ended[..]].concat());
        assert_eq!(to(&c, "c", true), ["a", "b", "late", "left", "old"].map(id));
        // What a notice says, and what it has just done itself, counts as well.
        c.saw_gone(&[taken("old", Some("b"))]);
        assert_eq!(to(&c, "c", false), [id("b")]);
        c.buried(&id("late"), &id("c"));
        assert_eq!(to(&c, "c", false), ["b", "late"].map(id));
    }

    #[test]
    fn who_was_away_itself_calls_nobody_dead_for_one_lease() {
        let failure_detector = member_since(LEASE * 2);
        for _ in 0..5 {
            // Its own lease had run out before the first of these.
            failure_detector.renewed(Instant::now());
            failure_detector.saw(&[peer("a", 1, 0)]);
            assert!(!failure_detector.is_lifeless(&id("a")));
        }
        failure_detector.known.lock().calm_until = Instant::now();
        assert!(failure_detector.is_lifeless(&id("a")));
    }

    #[test]
    fn who_was_away_itself_takes_no_lease_that_ran_out_for_one_lease() {
        assert!(FailureDetector::alone().may_take(), "nobody else is there");
        let failure_detector = FailureDetector::member(LEASE);
        failure_detector.renewed(Instant::now());
        assert!(failure_detector.is_alive() && !failure_detector.may_take(), "it has just joined");
        failure_detector.known.lock().calm_until = Instant::now();
        assert!(failure_detector.may_take());
        failure_detector.known.lock().alive_until = Some(Instant::now());
        assert!(!failure_detector.may_take(), "its own lease may have run out");
        // The ledger was away for everybody.
        failure_detector.known.lock().alive_until = Instant::now().checked_sub(LEASE);
        failure_detector.renewed(Instant::now());
        assert!(failure_detector.is_alive() && !failure_detector.may_take(), "the others had no turn yet");
        failure_detector.known.lock().calm_until = Instant::now();
        assert!(failure_detector.may_take());
    }

    /// A member that is about to find `a` dead: one more renewal finds it unmoved and its lease run out.
    fn about_to_call_a_dead() -> FailureDetector {
        let failure_detector = member_since(LEASE * 2);
        failure_detector.known.lock().alive_until = Some(Instant::now() + LEASE);
        for _ in 0..UNMOVED_MIN {
            failure_detector.renewed(Instant::now());
            failure_detector.saw(&[peer("a", 1, 100)]);
        }
        failure_detector
    }

    #[test]
    fn a_renewal_that_was_held_up_is_not_one_of_two_in_a_row() {
        let failure_detector = about_to_call_a_dead();
        failure_detector.known.lock().renewed_at = Instant::now().checked_sub(LEASE * 3 / 4);
        failure_detector.renewed(Instant::now());
        failure_detector.saw(&[peer("a", 1, 0)]);
        assert!(!failure_detector.is_lifeless(&id("a")), "its own renewal may be on its way yet");
        for dead in [false, true] {
            failure_detector.renewed(Instant::now());
            failure_detector.saw(&[peer("a", 1, 0)]);
            assert_eq!(failure_detector.is_lifeless(&id("a")), dead);
        }
    }

    #[test]
    fn what_was_seen_half_a_lease_ago_is_no_evidence() {
        let failure_detector = about_to_call_a_dead();
        failure_detector.renewed(Instant::now());
        failure_detector.saw(&[peer("a", 1, 0)]);
        assert!(failure_detector.is_lifeless(&id("a")));
        failure_detector.known.lock().evidence_until = Instant::now();
        assert!(!failure_detector.is_lifeless(&id("a")));
        failure_detector.renewed(Instant::now());
        assert!(!failure_detector.is_lifeless(&id("a")), "it renewed itself and has not looked");
    }

    #[test]
    fn the_calm_counts_from_the_answer_however_long_the_renewal_was_under_way() {
        let failure_detector = about_to_call_a_dead();
        let answered = Instant::now();
        failure_detector.known.lock().alive_until = answered.checked_sub(LEASE / 8);
        failure_detector.renewed(answered.checked_sub(LEASE / 2).unwrap());
        assert!(
            failure_detector.known.lock().calm_until >= answered + LEASE,
            "sent before its lease had run out"
        );
        assert!(failure_detector.is_alive());
    }

    #[test]
    fn a_gap_in_reaching_the_ledger_counts_until_it_ends_and_what_comes_after_counts_anew() {
        let failure_detector = member_since(LEASE);
        assert_eq!(failure_detector.reached_for(), None, "it never was");
        failure_detector.renewed(Instant::now());
        let begun = Instant::now().checked_sub(SILENCE_MAX * 2).unwrap();
        failure_detector.known.lock().reached_since = begun;
        failure_detector.known.lock().renewed_at = Instant::now().checked_sub(SILENCE_MAX - LEASE);
        failure_detector.renewed(Instant::now());
        assert!(failure_detector.reached_for().unwrap() >= SILENCE_MAX * 2, "a pause is no gap");
        failure_detector.known.lock().renewed_at = Instant::now().checked_sub(SILENCE_MAX);
        assert!(failure_detector.is_silent_for(SILENCE_MAX) && failure_detector.reached_for().is_none());
        failure_detector.renewed(Instant::now());
        assert!(failure_detector.reached_for().unwrap() < SILENCE_MAX);
        assert!(FailureDetector::alone().reached_for().unwrap() >= SILENCE_MAX, "its ledger is its own");
    }

    #[test]
    fn a_member_lives_as_long_as_its_lease_counted_from_its_sending() {
        let failure_detector = member_since(LEASE * 2);
        assert!(!failure_detector.is_alive());
        failure_detector.renewed(Instant::now());
        assert!(failure_detector.is_alive());
        failure_detector.renewed(Instant::now().checked_sub(LEASE).unwrap());
        assert!(!failure_detector.is_alive(), "the answer came too late");
        assert!(FailureDetector::alone().is_alive());
    }
}
