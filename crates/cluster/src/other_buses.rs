//! The instances that use another bus than this one: jobs pass between them through the ledger alone, slowly, and messages not at
//! all. It is meant where no instance has a Redis. Otherwise it is a mistake in somebody's configuration; or a Redis whose
//! replica was promoted while its master still serves some instances. Both servers then have the bus's name, and an instance on
//! one of them shows no presence on the other.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bus::Channel;
use domain::InstanceId;
use ledger::{Instance, NewInstance};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::ClusterView;
use crate::other_ledgers::{OtherLedgers, named};

/// Between two comparisons of the buses that the instances use.
const COMPARISONS: Duration = Duration::from_secs(5);

/// Those instances, in a sentence each, and those on this bus that have another ledger, in one. A task beside the presence
/// publisher compares every few seconds.
#[derive(Clone, Debug)]
pub struct OtherBuses(watch::Receiver<Vec<String>>);

impl OtherBuses {
    /// Of an instance that has not compared yet, and its writer.
    pub(crate) fn new() -> (watch::Sender<Vec<String>>, Self) {
        let (found, shown) = watch::channel(Vec::new());
        (found, Self(shown))
    }

    /// Of an instance that never compares.
    #[must_use]
    pub fn none() -> Self {
        Self::new().1
    }

    /// What was found last.
    #[must_use]
    pub fn found(&self) -> Vec<String> {
        self.0.borrow().clone()
    }
}

/// Compares the buses, and shows what it finds.
#[derive(Clone)]
pub(crate) struct Comparison {
    bus: bus::Handle,
    ledger: ledger::Handle,
    me: InstanceId,
    found: watch::Sender<Vec<String>>,
    cluster_view: ClusterView,
    /// Whether the bus is up, as it is to be noted: it is noted again whenever this is touched.
    is_up: watch::Sender<Option<bool>>,
    /// The bus that the ledger knows this instance to use.
    noted: Option<String>,
    /// The instances that were missing on this bus when that was looked at last, and at how many looks in a row.
    missing: HashMap<InstanceId, u32>,
    /// At so many an instance counts as one on another bus.
    missing_max: u32,
    other_ledgers: OtherLedgers,
}

impl Comparison {
    /// Of an instance whose lease, like that of every other one, has this length.
    pub(crate) fn new(
        bus: bus::Handle,
        ledger: ledger::Handle,
        me: InstanceId,
        lease: Duration,
        found: watch::Sender<Vec<String>>,
        cluster_view: ClusterView,
        is_up: watch::Sender<Option<bool>>,
    ) -> Self {
        let (missing, missing_max, other_ledgers) =
            (HashMap::new(), missing_max(lease), OtherLedgers::default());
        Self { bus, ledger, me, found, cluster_view, is_up, noted: None, missing, missing_max, other_ledgers }
    }

    pub(crate) async fn run(mut self) {
        let mut here = self.bus.subscribe(Channel::Instances);
        let mut comparisons = tokio::time::interval(COMPARISONS);
        comparisons.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = comparisons.tick() => self.compare().await,
                Some(event) = here.next() => self.other_ledgers.hear(&event, Instant::now()),
            }
        }
    }

    /// Notes which bus this instance uses, and looks whether the others use the same. An instance that is missing there is not
    /// known to use it: it may have begun or ended a moment ago. One that is missing for longer than a lease lasts counts as one
    /// on another bus. A look that fails changes nothing in that. Without its own bus this instance only looks at what is noted
    /// of itself.
    async fn compare(&mut self) {
        let link = *self.bus.link().borrow();
        let own = if link.is_up() { self.identity().await } else { None };
        let to_note = own.as_ref().filter(|own| self.noted.as_ref() != Some(*own));
        let noted = async {
            if let Some(own) = to_note {
                self.ledger.note_bus(&self.me, None, Some(own)).await?;
            }
            self.ledger.live_instances().await
        };
        let live = match noted.await {
            Ok(live) => live,
            Err(error) => return tracing::debug!(%error, "the buses of the instances could not be compared"),
        };
        self.correct(&live);
        let Some(own) = own else {
            self.missing.clear();
            return count(mistaken(None, &live, 0));
        };
        let begun = Instant::now();
        let looked = self.look_for(expected(&self.me, &own, &live)).await;
        let looked_at = looked.is_some().then_some(begun);
        let missing = match looked {
            Some(missing) => counted(missing, &self.missing),
            None => self.missing.clone(),
        };
        let is_unseen = |(id, looks): (&InstanceId, &u32)| (*looks >= self.missing_max).then(|| id.clone());
        let unseen = missing.iter().filter_map(is_unseen).collect();
        let found = compare(&own, &live, &unseen);
        let is_cut_off = |it: &Instance| it.about.id != self.me && it.bus_up == Some(false);
        let differ = !found.is_empty() || live.iter().any(is_cut_off);
        let is_compared = |it: &&Instance| it.bus.is_some() && !missing.contains_key(&it.about.id);
        let compared = live.iter().filter(is_compared).map(|it| it.about.id.clone());
        self.cluster_view.compared_buses(differ, compared.collect(), looked_at);
        count(mistaken(Some(&own), &live, found.len()));
        let others = self.on_other_ledgers(&live).await;
        self.show(found.into_iter().chain(named(&others)).collect());
        (self.noted, self.missing) = (Some(own), missing);
    }

    /// Says on the bus that this instance is here, and answers those that say so too and have another ledger. An instance that
    /// does not live by its own ledger, as that was just read, does neither: the ledger may have gone back, and know nobody.
    async fn on_other_ledgers(&mut self, live: &[Instance]) -> Vec<InstanceId> {
        let is_live = |id: &InstanceId| live.iter().any(|it| it.about.id == *id);
        if !is_live(&self.me) {
            self.other_ledgers = OtherLedgers::default();
            return Vec::new();
        }
        if let Err(error) = self.bus.publish(Channel::Instances, self.me.as_str().as_bytes()).await {
            tracing::debug!(%error, "the others did not hear that this instance is here");
        }
        let view = self.cluster_view.view();
        self.other_ledgers.look(|id| is_live(id) || !view.has_ended(id), Instant::now())
    }

    /// Those of these instances that show no presence on this bus; `None` if it does not say. A bus that does not even show this
    /// instance has lost its memory, and is no evidence.
    async fn look_for(&self, mut instances: Vec<InstanceId>) -> Option<HashSet<InstanceId>> {
        if instances.is_empty() {
            return Some(HashSet::new());
        }
        instances.push(self.me.clone());
        let there = self.bus.present(&instances).await;
        let there = there.inspect_err(
            |error| tracing::debug!(%error, "the presence of the other instances could not be read"),
        );
        let there = there.ok().filter(|there| there.contains_key(&self.me))?;
        Some(instances.into_iter().filter(|id| !there.contains_key(id)).collect())
    }

    async fn identity(&self) -> Option<String> {
        let own = self.bus.identity().await;
        own.inspect_err(|error| tracing::debug!(%error, "the identity of the bus could not be read")).ok()
    }

    /// Has it noted again whether the bus is up, where the ledger has it wrong: a note that was given up may be carried out
    /// after the next one.
    fn correct(&self, live: &[Instance]) {
        let link = *self.bus.link().borrow();
        if self.bus.kind() != bus::Kind::Local && is_noted_wrong(&self.me, link.is_up(), live) {
            self.is_up.send_modify(|_| {});
        }
    }

    fn show(&self, found: Vec<String>) {
        let changed = self.found.send_if_modified(|shown| {
            let changed = *shown != found;
            shown.clone_from(&found);
            changed
        });
        if !changed {
            return;
        }
        for what in &found {
            tracing::warn!("{what}");
        }
        if found.is_empty() {
            tracing::info!("all instances use the same bus");
        }
    }
}

/// Whether something else is noted of this instance than that its bus is up, or is not. Of one that is not seen to live nothing
/// is known.
fn is_noted_wrong(me: &InstanceId, is_up: bool, live: &[Instance]) -> bool {
    live.iter().any(|it| it.about.id == *me && it.bus_up != Some(is_up))
}

/// The other instances that say that they use this bus and reach it: they are to show themselves there.
fn expected(me: &InstanceId, own: &str, live: &[Instance]) -> Vec<InstanceId> {
    let is_here = |it: &&Instance| it.bus_up == Some(true) && it.bus.as_deref() == Some(own);
    live.iter().filter(is_here).map(|it| it.about.id.clone()).filter(|id| id != me).collect()
}

/// At how many looks in a row an instance is missing on this bus before it counts as one on another bus. One that was killed is
/// missing until its lease has run out: it is forgotten before, with one look to spare.
fn missing_max(lease: Duration) -> u32 {
    let leases = lease.as_millis().div_ceil(COMPARISONS.as_millis());
    u32::try_from(leases + 2).unwrap_or(u32::MAX)
}

/// At how many looks in a row these instances are missing, given at how many they were `before` this one.
fn counted(missing: HashSet<InstanceId>, before: &HashMap<InstanceId, u32>) -> HashMap<InstanceId, u32> {
    let with_looks = |id: InstanceId| {
        let looks = before.get(&id).map_or(1, |looks| looks.saturating_add(1));
        (id, looks)
    };
    missing.into_iter().map(with_looks).collect()
}

/// What is wrong among the live instances for one that uses this bus, on which some were `unseen`. Those that have not said which
/// they use are left out.
pub(crate) fn compare(own: &str, live: &[Instance], unseen: &HashSet<InstanceId>) -> Vec<String> {
    let wrong = live.iter().filter_map(|it| {
        let NewInstance { id, url, .. } = &it.about;
        match it.bus.as_deref()? {
            bus if bus != own => Some(format!(
                "{id} at {url} uses the bus {bus}, this instance {own}: jobs pass between them through the \
                 ledger alone, slowly; start all instances with the same --redis-url and the same bus.key_prefix"
            )),
            _ if unseen.contains(id) => Some(format!(
                "{id} at {url} says that it reaches the bus {own} and shows no presence there: they may be two \
                 servers, as when a replica is promoted while its master still serves; jobs pass between \
                 these instances through the ledger alone, slowly"
            )),
            _ => None,
        }
    });
    wrong.collect()
}

/// Shows how many instances use another bus by mistake.
fn count(instances: usize) {
    metrics::gauge!("fencepost_instances_on_other_buses").set(instances as f64);
}

/// How many of the live instances use another bus by mistake, given how many were `found` to be on another one. A cluster may be
/// without Redis: then each instance has a bus of its own. While the `own` one is away, nothing is known of that.
fn mistaken(own: Option<&str>, live: &[Instance], found: usize) -> usize {
    let Some(own) = own else { return 0 };
    let is_local = |bus: &str| bus.split(':').next() == Some(bus::Kind::Local.as_str());
    if !is_local(own) {
        return found;
    }
    live.iter().filter_map(|it| it.bus.as_deref()).filter(|bus| !is_local(bus)).count()
}

#[cfg(test)]
mod tests {
    use domain::Timestamp;

    use super::*;

    fn instance(id: &str, bus: Option<&str>) -> Instance {
        Instance {
            about: NewInstance {
                id: InstanceId::parse(id).unwrap(),
                url: format!("http://{id}"),
                hostname: "host".to_owned(),
                pid: 1,
                version: "1".to_owned(),
            },
            bus_up: None,
            bus: bus.map(str::to_owned),
            started_at: Timestamp::from_micros(0),
        }
    }

    #[test]
    fn the_instances_on_another_bus_are_named_and_no_others() {
        let live = [
            instance("a-1", Some("redis:1")),
            instance("b-1", Some("redis:2")),
            instance("c-1", Some("local:3")),
            instance("old-1", None),
        ];
        let found = compare("redis:1", &live, &HashSet::new());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("b-1 at http://b-1 uses the bus redis:2"), "{found:?}");
        assert!(found[1].starts_with("c-1 "), "{found:?}");
        let says_what_to_set =
            |said: &String| said.contains("--redis-url") && said.contains("bus.key_prefix");
        assert!(found.iter().all(says_what_to_set), "{found:?}");
        assert!(compare("redis:1", &live[..1], &HashSet::new()).is_empty());
    }

    #[test]
    fn instances_without_redis_are_told_of_one_another_and_are_no_mistake() {
        let without = [instance("a-1", Some("local:1")), instance("b-1", Some("local:2"))];
        let mixed = [&without[..], &[instance("c-1", Some("redis:3")), instance("old-1", None)]].concat();
        for (own, live, told, mistakes) in
            [("local:1", &without[..], 1, 0), ("local:1", &mixed[..], 2, 1), ("redis:3", &mixed[..], 2, 2)]
        {
            let found = compare(own, live, &HashSet::new());
            assert_eq!(found.len(), told, "{own}: {found:?}");
            assert_eq!(mistaken(Some(own), live, found.len()), mistakes, "{own}: {found:?}");
            assert_eq!(mistaken(None, live, found.len()), 0, "the own bus is away");
        }
    }

    #[test]
    fn an_instance_that_is_not_seen_on_the_bus_that_it_names_is_named_too() {
        let live = [
            instance("a-1", Some("redis:1")),
            instance("b-1", Some("redis:1")),
            instance("c-1", Some("redis:2")),
        ];
        let unseen: HashSet<_> = ["b-1", "c-1", "gone-1"].map(|id| InstanceId::parse(id).unwrap()).into();
        let found = compare("redis:1", &live, &unseen);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("b-1 at http://b-1 says that it reaches the bus redis:1"), "{found:?}");
        assert!(found[1].starts_with("c-1 at http://c-1 uses the bus redis:2"), "{found:?}");
    }

    #[test]
    fn the_others_that_say_that_they_reach_this_bus_are_expected_there_and_nobody_else() {
        let me = InstanceId::parse("a-1").unwrap();
        let noted = |id, bus, bus_up| Instance { bus_up, ..instance(id, bus) };
        let live = [
            noted("a-1", Some("redis:1"), Some(true)),
            noted("cut-off-1", Some("redis:1"), Some(false)),
            noted("here-1", Some("redis:1"), Some(true)),
            noted("new-1", None, Some(true)),
            noted("old-1", Some("redis:1"), None),
            noted("there-1", Some("redis:2"), Some(true)),
        ];
        assert_eq!(expected(&me, "redis:1", &live), [InstanceId::parse("here-1").unwrap()]);
    }

    #[test]
    fn an_instance_that_was_killed_is_forgotten_before_it_counts_as_one_on_another_bus() {
        for lease in [1_000, 1_200, 5_000, 5_001, 15_000, 60_000].map(Duration::from_millis) {
            // Between the first look, just after its end, and the one that counts. The one before that is to spare.
            let missing = COMPARISONS * (missing_max(lease) - 1);
            assert!(missing >= lease + COMPARISONS && missing < lease + COMPARISONS * 2, "{lease:?}");
        }
        assert_eq!(missing_max(Duration::from_millis(1_200)), 3, "with the usual lease");
    }

    #[test]
    fn looks_at_which_an_instance_is_missing_count_in_a_row() {
        let ids = |names: &[&str]| names.iter().map(|name| InstanceId::parse(name).unwrap()).collect();
        let mut missing = HashMap::new();
        for (names, looks) in [(vec!["b-1"], 1), (vec!["b-1", "c-1"], 2), (vec!["c-1"], 0), (vec!["b-1"], 1)]
        {
            missing = counted(ids(&names), &missing);
            assert_eq!(missing.len(), names.len());
            let of_b = missing.get(&InstanceId::parse("b-1").unwrap());
            assert_eq!(of_b.copied().unwrap_or_default(), looks, "{names:?}");
        }
    }

    #[test]
    fn what_is_noted_of_this_instance_is_wrong_where_its_link_says_otherwise() {
        let me = InstanceId::parse("a-1").unwrap();
        let noted = |up| [Instance { bus_up: up, ..instance("a-1", None) }, instance("b-1", None)];
        for (up, is_up, wrong) in [
            (None, true, true),
            (None, false, true),
            (Some(true), true, false),
            (Some(true), false, true),
            (Some(false), false, false),
            (Some(false), true, true),
        ] {
            assert_eq!(is_noted_wrong(&me, is_up, &noted(up)), wrong, "{up:?} {is_up}");
        }
        assert!(!is_noted_wrong(&me, true, &noted(None)[1..]), "it is not seen");
    }
}
