//! The instances that use another bus than this one, which is a mistake in somebody's configuration: jobs and results do not
//! pass between them.

use ledger::Instance;
use tokio::sync::watch;

/// Those instances, in a sentence each. The presence publisher compares every few seconds.
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

/// What is wrong among the live instances for one that uses this bus. Those that have not said which they use are left out.
pub(crate) fn compare(own: &str, live: &[Instance]) -> Vec<String> {
    let apart = live.iter().filter_map(|it| Some((&it.about, it.bus.as_deref().filter(|bus| *bus != own)?)));
    apart
        .map(|(about, bus)| {
            format!(
                "{} at {} uses the bus {bus}, this instance {own}: no job passes between them; start all instances with \
                 the same --redis-url",
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
}
