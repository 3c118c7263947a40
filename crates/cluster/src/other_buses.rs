//! The instances that use another bus than this one, which is a mistake in somebody's configuration: jobs pass
//! between them through the ledger alone, slowly, and messages not at all.

use std::time::Duration;

use domain::InstanceId;
use ledger::Instance;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::ClusterView;

/// Between two comparisons of the buses that the instances use.
const COMPARISONS: Duration = Duration::from_secs(5);

/// Those instances, in a sentence each. A task beside the presence publisher compares every few seconds.
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
}

impl Comparison {
    pub(crate) const fn new(
        bus: bus::Handle,
        ledger: ledger::Handle,
        me: InstanceId,
        found: watch::Sender<Vec<String>>,
        cluster_view: ClusterView,
        is_up: watch::Sender<Option<bool>>,
    ) -> Self {
        Self { bus, ledger, me, found, cluster_view, is_up, noted: None }
    }

    pub(crate) async fn run(mut self) {
        let mut comparisons = tokio::time::interval(COMPARISONS);
        comparisons.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            comparisons.tick().await;
            self.compare().await;
        }
    }

    /// Notes which bus this instance uses, and looks whether the others use the same. Without the bus it only looks at what is
    /// noted of itself.
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
        let Some(own) = own else { return };
        let found = compare(&own, &live);
        let is_cut_off = |it: &Instance| it.about.id != self.me && it.bus_up == Some(false);
        let differ = !found.is_empty() || live.iter().any(is_cut_off);
        let compared = live.iter().filter(|it| it.bus.is_some()).map(|it| it.about.id.clone());
        self.cluster_view.compared_buses(differ, compared.collect());
        self.show(found);
        self.noted = Some(own);
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
        metrics::gauge!("fencepost_instances_on_other_buses").set(found.len() as f64);
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

/// What is wrong among the live instances for one that uses this bus. Those that have not said which they use are left out.
pub(crate) fn compare(own: &str, live: &[Instance]) -> Vec<String> {
    let apart = live.iter().filter_map(|it| Some((&it.about, it.bus.as_deref().filter(|bus| *bus != own)?)));
    apart
        .map(|(about, bus)| {
            format!(
                "{} at {} uses the bus {bus}, this instance {own}: jobs pass between them through the ledger alone, \
                 slowly; start all instances with the same --redis-url",
                about.id, about.url
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use domain::{InstanceId, Timestamp};
    use ledger::NewInstance;

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
        let found = compare("redis:1", &live);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("b-1 at http://b-1 uses the bus redis:2"), "{found:?}");
        assert!(found[1].starts_with("c-1 "), "{found:?}");
        assert!(compare("redis:1", &live[..1]).is_empty());
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
