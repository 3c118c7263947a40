//! The owners of keys, as this instance sees them: the ring of live instances and the modes, read with each
//! renewal of its lease. Readers get a snapshot without a lock and without waiting.
//!
//! Two instances may see different rings for a moment. No decision depends on their agreement: the holder of
//! the lease serves.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use domain::{InstanceId, Mode, Modes, Resource};
use ledger::Peer;
use parking_lot::Mutex;
use placement::Ring;
use tokio::sync::watch;

use crate::Identity;

/// A new instance joins the ring when it has renewed its lease for this long, and for the lease's length: until then it takes
/// no lease of others that ran out.
pub const RING_AGE: Duration = Duration::from_secs(3);
/// How long an instance that could not be reached is avoided.
const AVOIDED_FOR: Duration = Duration::from_secs(2);
/// How long an instance that the ledger does not show any more counts as one whose lease has only run out. After a jump of the
/// database's clock, or a long outage, the ledger shows each instance only once the instance has renewed its lease.
const UNSEEN_FOR: Duration = Duration::from_secs(15);
/// How long an instance's presence on the bus counts after it was announced.
pub(crate) const PRESENCE_TTL: Duration = Duration::from_secs(2);

/// A live instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: InstanceId,
    /// Its URL.
    pub url: String,
}

/// The owner of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyOwner {
    /// This instance.
    Here,
    /// Another one.
    Elsewhere(Member),
}

/// One moment's knowledge.
#[derive(Clone, Debug)]
pub struct View {
    ring: Ring,
    /// The ring without those that are avoided now.
    reachable: Ring,
    /// Those that are avoided since they are leaving.
    leaving: Arc<[InstanceId]>,
    /// That one without this instance, once somebody has asked for it.
    others: Arc<OnceLock<Ring>>,
    members: Arc<HashMap<String, Member>>,
    /// Those whose leases ran out, and that nobody has found dead; and since when the ledger does not show them, if so.
    lapsed: Arc<HashMap<InstanceId, Option<Instant>>>,
    modes: Arc<Modes>,
    label: Arc<str>,
}

impl View {
    /// Names ring and modes together: another text, another view. Opaque.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    fn relabelled(mut self) -> Self {
        self.label = format!("{}.{}", self.ring.version(), self.modes.version).into();
        self
    }

    /// The ring of the live instances.
    #[must_use]
    pub const fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The modes.
    #[must_use]
    pub fn modes(&self) -> &Modes {
        &self.modes
    }

    /// A live instance, by its id.
    #[must_use]
    pub fn member(&self, id: &str) -> Option<&Member> {
        self.members.get(id)
    }

    /// Whether an instance has surely ended: its lease was taken or released, or the ledger has not shown it for a while. One
    /// whose lease has only run out may be about to renew it, as all are after a stall of the ledger.
    #[must_use]
    pub fn has_ended(&self, id: &InstanceId) -> bool {
        self.member(id.as_str()).is_none() && !self.lapsed.contains_key(id)
    }

    /// Its instances that are not among those that the ledger shows now, but were a short while ago; and since when.
    fn unseen(&self, shown: &HashSet<InstanceId>, now: Instant) -> Vec<(InstanceId, Option<Instant>)> {
        let members = self.members.values().map(|member| (&member.id, None));
        let lapsed = self.lapsed.iter().map(|(id, since)| (id, *since));
        members
            .chain(lapsed)
            .filter(|(id, _)| !shown.contains(*id))
            .map(|(id, since)| (id, since.unwrap_or(now)))
            .filter(|(_, since)| now.duration_since(*since) < UNSEEN_FOR)
            .map(|(id, since)| (id.clone(), Some(since)))
            .collect()
    }

    /// The live instances that are leaving, as far as this one has heard: see [`ClusterView::avoid_leaving`].
    #[must_use]
    pub fn leaving(&self) -> &[InstanceId] {
        &self.leaving
    }

    /// All live instances.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// The owner of a key on the ring, if the ring has members.
    #[must_use]
    pub fn placed(&self, resource: &Resource) -> Option<&Member> {
        self.ring.owner(resource.as_str()).and_then(|id| self.member(id))
    }
}

/// Answers the owner of each key on the ring of these instances alone; `None` if there are none.
pub fn owners_among(instances: &BTreeSet<InstanceId>) -> impl Fn(&Resource) -> Option<InstanceId> + use<> {
    let ring = Ring::new(instances.iter().map(InstanceId::as_str));
    move |resource| ring.owner(resource.as_str()).and_then(|id| InstanceId::parse(id).ok())
}

/// Cheap to clone; all clones see the same.
#[derive(Clone)]
pub struct ClusterView {
    inner: Arc<Inner>,
}

struct Inner {
    me: InstanceId,
    /// For how long an instance has renewed its lease when it joins the ring.
    ring_age: Duration,
    view: ArcSwap<View>,
    /// Who is avoided, and for how long. The one lock under which the view is replaced.
    avoided: Mutex<HashMap<InstanceId, Avoided>>,
    changed: watch::Sender<()>,
    buses: Mutex<Buses>,
}

/// For how long an instance is avoided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Avoided {
    /// It could not be reached.
    Until(Instant),
    /// It is leaving.
    UntilItLeft,
}

/// What was found last of the buses that the live instances use.
struct Buses {
    /// Since when all that were compared use one, and reach it; `None` where they do not.
    joined_since: Option<Instant>,
    /// When it was looked at last whether they show themselves there; `None` if nobody looks.
    looked_at: Option<Instant>,
    /// Those that were compared.
    compared: HashSet<InstanceId>,
}

/// When all live instances used one bus and reached it. What has changed since is not known before the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    /// From then on, as was found again and again ...
    pub(crate) since: Instant,
    /// ... until then. It may be before the beginning.
    pub(crate) until: Instant,
}

impl ClusterView {
    /// Of an instance that knows of no other.
    #[must_use]
    pub fn alone(me: &Identity, mode: Mode) -> Self {
        Self::member(me, mode, Duration::ZERO)
    }

    /// The same, of one whose own lease has this length. Those of the others are to have it as well.
    pub(crate) fn member(me: &Identity, mode: Mode, lease: Duration) -> Self {
        let member = Member { id: me.id.clone(), url: me.url.clone() };
        let ring = Ring::new([me.id.as_str()]);
        let view = View {
            reachable: ring.clone(),
            leaving: Arc::default(),
            others: Arc::default(),
            ring,
            members: Arc::new([(me.id.to_string(), member)].into()),
            lapsed: Arc::default(),
            modes: Arc::new(Modes { version: 0, mode, only: None }),
            label: Arc::from(""),
        };
        let view = view.relabelled();
        let inner = Inner {
            me: me.id.clone(),
            ring_age: RING_AGE.max(lease),
            view: ArcSwap::from_pointee(view),
            avoided: Mutex::default(),
            changed: watch::Sender::new(()),
            buses: Mutex::new(Buses {
                joined_since: Some(Instant::now()),
                looked_at: None,
                compared: HashSet::new(),
            }),
        };
        Self { inner: Arc::new(inner) }
    }

    /// What is known now.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.inner.view.load_full()
    }

    /// Reads the label of what is known now: see [`View::label`]. Other than [`Self::view`] it counts no reader, which is a write
    /// that all threads have in common.
    pub fn with_label<T>(&self, read: impl FnOnce(&str) -> T) -> T {
        read(self.inner.view.load().label())
    }

    /// The mode in which a key is served.
    #[must_use]
    pub fn mode(&self, resource: &Resource) -> Mode {
        self.inner.view.load().modes.of(resource)
    }

    /// The owner of a key now: on the ring, without avoided instances.
    #[must_use]
    pub fn owner_of(&self, resource: &Resource) -> KeyOwner {
        let view = self.inner.view.load();
        match view.reachable.owner(resource.as_str()).and_then(|id| view.member(id)) {
            Some(member) if member.id != self.inner.me => KeyOwner::Elsewhere(member.clone()),
            _ => KeyOwner::Here,
        }
    }

    /// The owner of a key once this instance is gone. `None` where no other one is on the ring.
    #[must_use]
    pub fn next_owner_of(&self, resource: &Resource) -> Option<InstanceId> {
        let view = self.inner.view.load();
        let is_me = |id: &str| id == self.inner.me.as_str();
        let others = view.others.get_or_init(|| view.reachable.without(is_me));
        others.owner(resource.as_str()).and_then(|id| view.member(id)).map(|member| member.id.clone())
    }

    /// Wakes whenever the ring, the instances or the modes have changed.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.inner.changed.subscribe()
    }

    /// Whether other instances live.
    #[must_use]
    pub fn has_others(&self) -> bool {
        self.inner.view.load().members().nth(1).is_some()
    }

    /// Whether some instance uses another bus than this one, does not reach its bus, or does not show itself there, as was found
    /// last. It says nothing of this instance's own link.
    #[must_use]
    pub fn buses_differ(&self) -> bool {
        self.buses().joined_since.is_none()
    }

    /// When all live instances used one bus and reached it; `None` while [`Self::buses_differ`], and while there is an instance
    /// that was not compared yet.
    pub(crate) fn joined(&self, now: Instant) -> Option<Joined> {
        let (view, buses) = (self.view(), self.buses());
        let is_known = |member: &Member| member.id == self.inner.me || buses.compared.contains(&member.id);
        let since = buses.joined_since.filter(|_| view.members().all(is_known))?;
        let until = match buses.looked_at {
            // An instance that shows itself announced itself there not longer ago than this.
            Some(at) => at.checked_sub(PRESENCE_TTL).unwrap_or(since),
            None => now,
        };
        Some(Joined { since, until })
    }

    /// The buses of these instances were compared, and those that are to show themselves on this one did when that was looked
    /// at. `None` if it could not be: what was found last of them stands.
    pub(crate) fn compared_buses(
        &self,
        differ: bool,
        compared: HashSet<InstanceId>,
        looked_at: Option<Instant>,
    ) {
        let mut buses = self.buses();
        let since = buses.joined_since.unwrap_or_else(Instant::now);
        let looked_at = looked_at.or(buses.looked_at).or(Some(since));
        *buses = Buses { joined_since: (!differ).then_some(since), looked_at, compared };
    }

    /// An instance could not be reached: it is avoided for a moment.
    pub fn avoid(&self, id: &InstanceId) {
        self.avoid_for(id, Avoided::Until(Instant::now() + AVOIDED_FOR));
    }

    /// An instance is leaving, from which there is no way back: it is avoided until it has left, however long that takes.
    /// Otherwise keys that others serve in its place would be handed off to it again.
    pub fn avoid_leaving(&self, id: &InstanceId) {
        self.avoid_for(id, Avoided::UntilItLeft);
    }

    fn avoid_for(&self, id: &InstanceId, how_long: Avoided) {
        if *id == self.inner.me {
            return;
        }
        let mut avoided = self.avoided();
        let known = avoided.get(id).copied();
        if known == Some(Avoided::UntilItLeft) {
            return;
        }
        avoided.insert(id.clone(), how_long);
        if known.is_none() || how_long == Avoided::UntilItLeft {
            self.replace(&mut avoided, |_| {});
        }
    }

    /// These modes are in force, unless newer ones are known.
    pub fn adopt_modes(&self, modes: Modes) {
        let mut avoided = self.avoided();
        if modes.version > self.inner.view.load().modes.version {
            self.replace(&mut avoided, |view| view.modes = Arc::new(modes));
        }
    }

    /// The instances were found to be these.
    pub fn saw(&self, peers: Vec<Peer>) {
        self.saw_at(peers, Instant::now());
    }

    fn saw_at(&self, peers: Vec<Peer>, now: Instant) {
        let shown = peers.iter().map(|peer| peer.id.clone()).collect::<HashSet<_>>();
        let (live, rest): (Vec<_>, Vec<_>) = peers.into_iter().partition(Peer::is_live);
        let keeps_lease = |peer: &Peer| peer.lease.owner.as_ref() == Some(&peer.id);
        let lapsed = rest.into_iter().filter(keeps_lease).map(|peer| (peer.id, None));
        let now_on = self.view().ring.clone();
        // Instances that started together are its first members, and none leaves it while the first of them has settled.
        let stays = |peer: &Peer| {
            let members = now_on.members();
            members.len() > 1 && members.binary_search_by(|id| id.as_str().cmp(peer.id.as_str())).is_ok()
        };
        let ring_age_ms = self.inner.ring_age.as_millis();
        let settled = |peer: &&Peer| u128::from(peer.age_ms) >= ring_age_ms || stays(peer);
        let ring = if live.iter().any(|peer| settled(&peer)) {
            Ring::new(live.iter().filter(settled).map(|peer| peer.id.as_str()))
        } else {
            Ring::new(live.iter().map(|peer| peer.id.as_str()))
        };
        let members = live
            .into_iter()
            .map(|peer| (peer.id.to_string(), Member { id: peer.id, url: peer.url }))
            .collect::<HashMap<_, _>>();
        let mut avoided = self.avoided();
        let before = avoided.len();
        avoided.retain(|id, avoided| match avoided {
            Avoided::Until(until) => now < *until,
            Avoided::UntilItLeft => members.contains_key(id.as_str()),
        });
        let view = self.inner.view.load();
        let lapsed = lapsed.chain(view.unseen(&shown, now)).collect::<HashMap<_, _>>();
        let is_known = view.ring == ring && *view.members == members && *view.lapsed == lapsed;
        if avoided.len() != before || !is_known {
            self.replace(&mut avoided, |view| {
                (view.ring, view.members, view.lapsed) = (ring, Arc::new(members), Arc::new(lapsed));
            });
        }
    }

    fn replace(&self, avoided: &mut HashMap<InstanceId, Avoided>, change: impl FnOnce(&mut View)) {
        let before = self.inner.view.load();
        let mut view = View::clone(&before);
        change(&mut view);
        let is_avoided = |id: &str| InstanceId::parse(id).is_ok_and(|id| avoided.contains_key(&id));
        view.others = Arc::default();
        let leaving = avoided.iter().filter(|(_, how_long)| **how_long == Avoided::UntilItLeft);
        view.leaving = leaving.map(|(id, _)| id.clone()).collect();
        view.reachable = if avoided.is_empty() { view.ring.clone() } else { view.ring.without(is_avoided) };
        if view.ring.version() != before.ring.version() {
            let (ring_version, instances) = (view.ring.version(), view.ring.members().len());
            tracing::info!(ring_version, instances, "the ring has changed");
        }
        // The first look at the ledger is no change.
        if view.modes != before.modes && before.modes.version != 0 {
            let Modes { version, mode, only } = &*view.modes;
            let named = only.as_ref().map(BTreeSet::len);
            tracing::info!(version, mode = mode.as_str(), named, "the mode has changed");
        }
        self.inner.view.store(Arc::new(view.relabelled()));
        self.inner.changed.send_replace(());
    }

    fn buses(&self) -> parking_lot::MutexGuard<'_, Buses> {
        self.inner.buses.lock()
    }

    fn avoided(&self) -> parking_lot::MutexGuard<'_, HashMap<InstanceId, Avoided>> {
        self.inner.avoided.lock()
    }
}

#[cfg(test)]
mod tests {
    use domain::{SignerId, Timestamp, Token};
    use ledger::Lease;

    use super::*;

    fn identity(name: &str) -> Identity {
        Identity { id: InstanceId::parse(name).unwrap(), url: format!("http://{name}") }
    }

    fn peer(name: &str, age_ms: u64) -> Peer {
        let Identity { id, url } = identity(name);
        let lease = Lease {
            resource: Resource::instance(&id),
            owner: Some(id.clone()),
            token: Token::new(1),
            acquired_at: Timestamp::from_micros(0),
            renewed_at: Timestamp::from_micros(0),
            expires_in_ms: 1_000,
        };
        Peer { id, url, lease, age_ms }
    }

    fn ids(names: &[&str]) -> HashSet<InstanceId> {
        names.iter().map(|name| InstanceId::parse(name).unwrap()).collect()
    }

    fn members(cluster_view: &ClusterView) -> Vec<String> {
        cluster_view.view().ring().members().to_vec()
    }

    const OLD: u64 = RING_AGE.as_millis() as u64;

    #[test]
    fn a_newcomer_waits_for_its_place_and_a_leaver_is_out_at_once() {
        let cluster_view = ClusterView::alone(&identity("a"), Mode::Basic);
        cluster_view.saw(vec![peer("a", OLD), peer("b", OLD - 1)]);
        assert_eq!(members(&cluster_view), ["a"]);
        assert!(cluster_view.view().member("b").is_some(), "it lives all the same");
        cluster_view.saw(vec![peer("a", OLD), peer("b", OLD)]);
        assert_eq!(members(&cluster_view), ["a", "b"]);
        let mut taken = peer("b", OLD);
        taken.lease.owner = Some(InstanceId::parse("a").unwrap());
        cluster_view.saw(vec![peer("a", OLD), taken]);
        assert_eq!(members(&cluster_view), ["a"], "whose lease is another's is dead");
    }

    #[test]
    fn a_newcomer_whose_lease_is_long_waits_for_its_place_until_it_may_take_what_ran_out() {
        let cluster_view = ClusterView::member(&identity("a"), Mode::Basic, Duration::from_secs(30));
        cluster_view.saw(vec![peer("a", OLD)]);
        assert_eq!(members(&cluster_view), ["a"], "alone it has its place at once");
        let ring_beside = |age_ms| {
            cluster_view.saw(vec![peer("a", 30_000), peer("b", 60_000), peer("c", age_ms)]);
            members(&cluster_view)
        };
        for age_ms in [OLD + 1_000, 29_999] {
            assert_eq!(ring_beside(age_ms), ["a", "b"], "{age_ms}");
        }
        assert_eq!(ring_beside(30_000), ["a", "b", "c"]);
    }

    #[test]
    fn who_has_ended_is_told_from_who_has_only_not_renewed() {
        let cluster_view = ClusterView::alone(&identity("a"), Mode::Basic);
        let b = InstanceId::parse("b").unwrap();
        let of_b = |owner: Option<&str>, expires_in_ms| {
            let mut other = peer("b", OLD);
            other.lease.owner = owner.map(|owner| InstanceId::parse(owner).unwrap());
            other.lease.expires_in_ms = expires_in_ms;
            vec![peer("a", OLD), other]
        };
        let mut changes = cluster_view.changes();
        for ended in [of_b(Some("a"), 1_000), of_b(None, 0)] {
            cluster_view.saw(of_b(Some("b"), 1_000));
            assert!(cluster_view.view().member("b").is_some() && !cluster_view.view().has_ended(&b));
            cluster_view.saw(of_b(Some("b"), 0));
            assert!(cluster_view.view().member("b").is_none(), "nothing is placed there");
            assert!(!cluster_view.view().has_ended(&b), "it may renew its lease");
            changes.mark_unchanged();
            cluster_view.saw(ended);
            assert!(cluster_view.view().has_ended(&b) && changes.has_changed().unwrap());
        }
    }

    #[test]
    fn who_is_not_shown_any_more_has_not_ended_before_a_while_has_passed() {
        let cluster_view = ClusterView::alone(&identity("a"), Mode::Basic);
        let b = InstanceId::parse("b").unwrap();
        let mut lapsed = peer("b", OLD);
        lapsed.lease.expires_in_ms = 0;
        let now = Instant::now();
        let has_ended = |after: Duration, other: Option<&Peer>| {
            let peers = other.into_iter().cloned().chain([peer("a", OLD)]);
            cluster_view.saw_at(peers.collect(), now + after);
            cluster_view.view().has_ended(&b)
        };
        let second = Duration::from_secs(1);
        for before in [peer("b", OLD), lapsed] {
            assert!(!has_ended(Duration::ZERO, Some(&before)));
            assert!(!has_ended(second, None), "it has not renewed its lease since the clock has jumped");
            assert!(cluster_view.view().member("b").is_none(), "nothing is placed there");
            assert!(!has_ended(UNSEEN_FOR, Some(&peer("b", OLD))), "by now it has");
            let since = UNSEEN_FOR + second;
            assert!(!has_ended(since, None));
            assert!(!has_ended(since + UNSEEN_FOR - second, None));
            let changes = cluster_view.changes();
            assert!(has_ended(since + UNSEEN_FOR, None) && changes.has_changed().unwrap());
        }
    }

    #[test]
    fn instances_that_start_together_stay_on_the_ring_together() {
        for me in ["a", "b"] {
            let cluster_view = ClusterView::alone(&identity(me), Mode::Basic);
            cluster_view.saw(vec![peer("a", 20), peer("b", 10)]);
            assert_eq!(members(&cluster_view), ["a", "b"], "none is old enough, so all are the ring");
            cluster_view.saw(vec![peer("a", OLD), peer("b", OLD - 10), peer("c", 10)]);
            assert_eq!(members(&cluster_view), ["a", "b"]);
            cluster_view.saw(vec![peer("b", OLD - 10), peer("c", 10)]);
            assert_eq!(members(&cluster_view), ["b"], "who has left is out at once");
        }
    }

    #[test]
    fn who_cannot_be_reached_is_avoided_and_stays_on_the_ring() {
        let cluster_view = ClusterView::alone(&identity("a"), Mode::WorkerQueue);
        cluster_view.saw(vec![peer("a", OLD), peer("b", OLD)]);
        let theirs = (0..).map(|n| Resource::signer(&SignerId::parse(&format!("s{n}")).unwrap()));
        let theirs = theirs.into_iter().find(|s| cluster_view.owner_of(s) != KeyOwner::Here).unwrap();
        let b = InstanceId::parse("b").unwrap();
        cluster_view.avoid(&b);
        assert_eq!(cluster_view.owner_of(&theirs), KeyOwner::Here);
        assert_eq!(cluster_view.view().placed(&theirs).unwrap().id, b);
        cluster_view.avoid(&InstanceId::parse("a").unwrap());
        assert_eq!(cluster_view.owner_of(&theirs), KeyOwner::Here, "nobody avoids itself");
        cluster_view.avoided().insert(b.clone(), Avoided::Until(Instant::now()));
        cluster_view.saw(vec![peer("a", OLD), peer("b", OLD)]);
        assert!(
            matches!(cluster_view.owner_of(&theirs), KeyOwner::Elsewhere(member) if member.id == b),
            "it is over"
        );
    }

    #[test]
    fn who_is_leaving_is_avoided_until_it_has_left() {
        let cluster_view = ClusterView::alone(&identity("a"), Mode::WorkerQueue);
        let now = Instant::now();
        let saw = |names: &[&str], later: Duration| {
            cluster_view.saw_at(names.iter().map(|name| peer(name, OLD)).collect(), now + later);
        };
        let reachable = || cluster_view.view().reachable.members().to_vec();
        let leaving = || cluster_view.view().leaving().to_vec();
        let b = InstanceId::parse("b").unwrap();
        saw(&["a", "b"], Duration::ZERO);
        // Found to be so before and after it could not be reached.
        for how in [ClusterView::avoid, ClusterView::avoid_leaving, ClusterView::avoid] {
            how(&cluster_view, &b);
            assert_eq!(reachable(), ["a"]);
        }
        saw(&["a", "b"], AVOIDED_FOR * 10);
        assert_eq!((reachable(), leaving()), (vec!["a".to_owned()], vec![b.clone()]));
        assert_eq!(members(&cluster_view), ["a", "b"], "it lives");
        saw(&["a"], AVOIDED_FOR * 11);
        assert!(leaving().is_empty());
        saw(&["a", "b"], AVOIDED_FOR * 12);
        assert_eq!(reachable(), ["a", "b"], "nothing is remembered of it");
    }

    #[test]
    fn the_next_owner_of_a_key_is_the_ring_without_this_instance() {
        let cluster_view = ClusterView::alone(&identity("a"), Mode::WorkerQueue);
        let keys: Vec<_> = (0..40).map(|n| Resource::parse(&format!("session:{n}")).unwrap()).collect();
        assert!(keys.iter().all(|key| cluster_view.next_owner_of(key).is_none()), "it is alone");
        cluster_view.saw(vec![peer("a", OLD), peer("b", OLD), peer("c", OLD), peer("young", 0)]);
        let mut next = BTreeSet::new();
        for key in &keys {
            let owner = cluster_view.next_owner_of(key).unwrap();
            if let KeyOwner::Elsewhere(member) = cluster_view.owner_of(key) {
                assert_eq!(owner, member.id, "what is another's stays its");
            }
            next.insert(owner.to_string());
        }
        assert_eq!(next, BTreeSet::from(["b".to_owned(), "c".to_owned()]));
        cluster_view.avoid(&InstanceId::parse("b").unwrap());
        assert!(keys.iter().all(|key| cluster_view.next_owner_of(key).unwrap().as_str() == "c"));
    }

    #[test]
    fn instances_are_on_one_bus_once_each_of_them_was_compared() {
        let cluster_view = ClusterView::alone(&identity("a"), Mode::Basic);
        let compared = |differ, names: &[&str]| {
            cluster_view.compared_buses(differ, ids(names), Some(Instant::now()));
        };
        let joined = || cluster_view.joined(Instant::now());
        assert!(joined().is_some(), "it is alone");
        cluster_view.saw(vec![peer("a", OLD), peer("b", 0)]);
        assert!(joined().is_none() && !cluster_view.buses_differ(), "nobody knows of b");
        compared(false, &["a", "b"]);
        let before = joined().unwrap();
        cluster_view.saw(vec![peer("a", OLD), peer("b", OLD), peer("c", 0)]);
        assert_eq!(joined(), None);
        compared(false, &["b", "c"]);
        assert_eq!(joined().unwrap().since, before.since, "c has always been on this bus");
        compared(true, &["a", "b", "c"]);
        assert!(joined().is_none() && cluster_view.buses_differ());
        compared(false, &["a", "b", "c"]);
        assert!(joined().unwrap().since > before.since);
    }

    #[test]
    fn that_instances_are_on_one_bus_is_known_until_the_last_look_alone() {
        let cluster_view = ClusterView::alone(&identity("a"), Mode::Basic);
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let joined = |seconds| cluster_view.joined(at(seconds)).unwrap();
        assert_eq!(joined(5).until, at(5), "it is alone, and nobody looks");
        cluster_view.saw(vec![peer("a", OLD), peer("b", OLD)]);
        let compared = |looked_at| cluster_view.compared_buses(false, ids(&["b"]), looked_at);
        compared(None);
        assert!(joined(5).until <= joined(5).since, "nobody has seen b there");
        compared(Some(at(10)));
        for seconds in [10, 15, 90] {
            assert_eq!(joined(seconds).until, at(10) - PRESENCE_TTL, "{seconds}");
        }
        compared(None);
        assert_eq!(joined(16).until, at(10) - PRESENCE_TTL, "b was not seen anew");
        compared(Some(at(20)));
        assert_eq!(joined(20).until, at(20) - PRESENCE_TTL);
    }

    #[test]
    fn only_newer_modes_are_adopted_and_changes_are_told() {
        let cluster_view = ClusterView::alone(&identity("a"), Mode::Basic);
        let s = Resource::parse("signer:s").unwrap();
        let mut changes = cluster_view.changes();
        cluster_view.adopt_modes(Modes { version: 2, mode: Mode::WorkerQueue, only: None });
        assert_eq!(cluster_view.mode(&s), Mode::WorkerQueue);
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        cluster_view.adopt_modes(Modes { version: 1, mode: Mode::Basic, only: None });
        cluster_view.adopt_modes(Modes { version: 2, mode: Mode::Basic, only: None });
        assert_eq!(cluster_view.mode(&s), Mode::WorkerQueue);
        assert!(!changes.has_changed().unwrap());
    }
}
