//! What an instance knows of life and death, its own and the others': read after each renewal of its own
//! lease, kept in memory, asked without a wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::{InstanceId, Timestamp, Token};
use ledger::Peer;

/// So many renewals of one's own in a row must have found the other's unmoved. A ledger that stalls stops
/// everybody's renewals alike; only who goes on renewing while another does not may call it dead.
const UNMOVED_MIN: u32 = 2;

/// Cheap to clone; all clones know the same.
#[derive(Clone)]
pub struct Standing {
    inner: Arc<Mutex<Known>>,
}

struct Known {
    lease: Duration,
    /// Until here this instance's own lease surely lasts, by its own clock; `None` for one that needs none.
    alive_until: Option<Instant>,
    /// Until here nothing is taken from anybody: this instance was away itself.
    calm_until: Instant,
    others: HashMap<InstanceId, Other>,
}

struct Other {
    mark: (Token, Timestamp),
    unmoved: u32,
    /// A survivor found it dead and took its lease.
    taken: bool,
    live: bool,
}

impl Standing {
    /// Of an instance that is alone with its ledger: it lives, and there is nobody to die.
    #[must_use]
    pub fn alone() -> Self {
        Self::new(Duration::ZERO, None)
    }

    pub(crate) fn member(lease: Duration) -> Self {
        Self::new(lease, Some(Instant::now()))
    }

    fn new(lease: Duration, alive_until: Option<Instant>) -> Self {
        let known = Known { lease, alive_until, calm_until: Instant::now() + lease, others: HashMap::new() };
        Self { inner: Arc::new(Mutex::new(known)) }
    }

    /// Whether this instance's own lease surely lasts, by its own clock. Past that it writes for no key.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.known().alive_until.is_none_or(|until| Instant::now() < until)
    }

    /// Whether the other's keys may be taken at once.
    #[must_use]
    pub fn is_dead(&self, other: &InstanceId) -> bool {
        let (known, now) = (self.known(), Instant::now());
        let calm = known.alive_until.is_some_and(|until| now < until) && now >= known.calm_until;
        let is_dead = |other: &Other| other.taken || !other.live && other.unmoved >= UNMOVED_MIN;
        calm && known.others.get(other).is_some_and(is_dead)
    }

    /// This instance renewed itself with a statement sent at `sent`.
    pub(crate) fn renewed(&self, sent: Instant) {
        let mut known = self.known();
        let until = sent + known.lease;
        if known.alive_until.is_none_or(|before| before < sent) {
            known.calm_until = until;
        }
        known.alive_until = Some(until);
    }

    /// This incarnation is over: it writes for nobody any more.
    pub(crate) fn ended(&self) {
        // A beginning that lies in the past is all that is needed; `None` would mean alone.
        self.known().alive_until = Some(Instant::now());
    }

    /// After a renewal of its own, this instance found the others to be so.
    pub(crate) fn saw(&self, peers: &[Peer]) {
        let mut known = self.known();
        let mut before = std::mem::take(&mut known.others);
        for peer in peers {
            let mark = (peer.lease.token, peer.lease.renewed_at);
            let unmoved = before
                .remove(&peer.id)
                .filter(|other| other.mark == mark)
                .map_or(0, |other| other.unmoved + 1);
            let taken = peer.lease.owner.as_ref().is_some_and(|owner| *owner != peer.id);
            known.others.insert(peer.id.clone(), Other { mark, unmoved, taken, live: peer.is_live() });
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        // Nothing in here panics half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn member_since(ago: Duration) -> Standing {
        let standing = Standing::member(LEASE);
        let begun = Instant::now().checked_sub(ago).unwrap();
        {
            let mut known = standing.known();
            (known.alive_until, known.calm_until) = (Some(begun), begun + LEASE);
        }
        standing
    }

    #[test]
    fn dead_is_who_did_not_move_while_i_renewed_twice_and_whose_lease_ran_out() {
        let standing = member_since(LEASE * 2);
        standing.known().alive_until = Some(Instant::now() + LEASE);
        for (expires_in_ms, dead) in [(300, false), (100, false), (0, true)] {
            standing.renewed(Instant::now());
            standing.saw(&[peer("a", 1, expires_in_ms)]);
            assert_eq!(standing.is_dead(&id("a")), dead, "{expires_in_ms}");
        }
        standing.renewed(Instant::now());
        standing.saw(&[peer("a", 2, 0)]);
        assert!(!standing.is_dead(&id("a")), "it moved");
        assert!(!standing.is_dead(&id("unheard-of")));
    }

    #[test]
    fn whose_lease_a_survivor_took_is_dead_at_once() {
        let standing = member_since(LEASE * 2);
        standing.known().alive_until = Some(Instant::now() + LEASE);
        let mut taken = peer("a", 5, 300);
        taken.lease.owner = Some(id("b"));
        standing.saw(&[taken]);
        assert!(standing.is_dead(&id("a")));
        standing.ended();
        assert!(!standing.is_dead(&id("a")), "the dead bury nobody");
    }

    #[test]
    fn who_was_away_itself_calls_nobody_dead_for_one_lease() {
        let standing = member_since(LEASE * 2);
        for _ in 0..5 {
            // Its own lease had run out before the first of these.
            standing.renewed(Instant::now());
            standing.saw(&[peer("a", 1, 0)]);
            assert!(!standing.is_dead(&id("a")));
        }
        standing.known().calm_until = Instant::now();
        assert!(standing.is_dead(&id("a")));
    }

    #[test]
    fn a_member_lives_as_long_as_its_lease_counted_from_its_sending() {
        let standing = member_since(LEASE * 2);
        assert!(!standing.is_alive());
        standing.renewed(Instant::now());
        assert!(standing.is_alive());
        standing.renewed(Instant::now().checked_sub(LEASE).unwrap());
        assert!(!standing.is_alive(), "the answer came too late");
        assert!(Standing::alone().is_alive());
    }
}
