//! What the nodes of one instance can do, in a few words for other instances that the bus does not join with it: every
//! combination of labels and pools that a node of it has, and whether such a node has a free slot.
//!
//! The reader asks of these what a selection asks of nodes, with its own pools and pauses. So an instance that serves a job
//! by its own knowledge also serves it by what others read of it, as long as the pools are the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use bus::{Epoch, NodeState, Version};
use domain::job::Requirements;
use domain::limits::{NODE_LABELS_MAX, NODE_POOLS_MAX};
use domain::{InstanceId, Label, NodeId, PoolName};
use serde::{Deserialize, Serialize};

use crate::index::Index;
use crate::limits::HEARTBEAT_MS_MAX;
use crate::record::{Load, Profile, Record, Stamp, Status};
use crate::registry::Registry;
use crate::select::is_served;

/// The nodes of another instance, as it has noted them.
#[derive(Debug)]
pub struct NodesElsewhere {
    index: Index,
}

/// Whether nodes that serve a job have a slot for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spare {
    /// One of them had a free slot.
    Free,
    /// All were full.
    Full,
}

/// Nodes that can do the same.
#[derive(Serialize, Deserialize)]
struct Form {
    labels: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pools: Option<Vec<String>>,
    free: bool,
}

impl Registry {
    /// What the nodes of this instance can do that take work, as JSON; `None` where there are none. What does not fit into so
    /// many bytes is left out.
    #[must_use]
    pub fn note_of_own(&self, bytes_max: usize) -> Option<String> {
        let index = self.inner.index.load();
        let own = index.nodes.iter().enumerate().filter(|(position, _)| index.own.contains(*position));
        let mut kinds: BTreeMap<(&[Label], Option<&[PoolName]>), bool> = BTreeMap::new();
        for (_, entry) in own.filter(|(_, entry)| entry.takes_work()) {
            let Profile { labels, pools, .. } = &*entry.profile;
            *kinds.entry((labels, pools.as_deref())).or_default() |= entry.is_open();
        }
        let mut note = String::new();
        for ((labels, pools), free) in kinds {
            let form = Form {
                labels: labels.iter().map(ToString::to_string).collect(),
                pools: pools.map(|pools| pools.iter().map(ToString::to_string).collect()),
                free,
            };
            let form = serde_json::to_string(&form).expect("texts can be written");
            if note.len() + form.len() + 2 > bytes_max {
                break;
            }
            note.push(if note.is_empty() { '[' } else { ',' });
            note.push_str(&form);
        }
        (!note.is_empty()).then(|| note + "]")
    }

    /// Whether a node that this instance reaches serves such a job, be it full.
    #[must_use]
    pub fn is_served(&self, needs: &Requirements) -> bool {
        let only_own = self.inner.is_alone.load(SeqCst);
        is_served(&self.inner.index.load(), needs, only_own, |entry| entry.takes_work())
    }

    /// Reads what another instance has noted of its nodes. What cannot be read is left out.
    #[must_use]
    pub fn read_note(&self, holder: &InstanceId, note: &str) -> NodesElsewhere {
        let forms: Vec<Form> = serde_json::from_str(note).unwrap_or_default();
        let nodes = forms.into_iter().enumerate();
        NodesElsewhere {
            index: self.index_of(nodes.filter_map(|(at, form)| record(holder, at, form)).collect()),
        }
    }
}

impl NodesElsewhere {
    /// Whether one of them serves such a job, and has a slot for it.
    #[must_use]
    pub fn serve(&self, needs: &Requirements) -> Option<Spare> {
        if is_served(&self.index, needs, false, |entry| entry.is_open()) {
            return Some(Spare::Free);
        }
        is_served(&self.index, needs, false, |_| true).then_some(Spare::Full)
    }
}

/// A node that stands for all that can do the same.
fn record(holder: &InstanceId, at: usize, form: Form) -> Option<Record> {
    let labels = form.labels.iter().take(NODE_LABELS_MAX).map(|text| Label::parse(text));
    let mut labels = labels.collect::<Result<Vec<_>, _>>().ok()?;
    labels.sort_unstable();
    let pools = form.pools.map(|pools| {
        let pools = pools.iter().take(NODE_POOLS_MAX).map(|name| PoolName::parse(name));
        pools.collect::<Result<Arc<[_]>, _>>()
    });
    let node = NodeId::parse(&format!("kind-{at}")).ok()?;
    let profile = Profile {
        labels: labels.into(),
        pools: pools.transpose().ok()?,
        ..Profile::new(node, holder.clone(), HEARTBEAT_MS_MAX)
    };
    let used = u32::from(!form.free);
    Some(Record {
        stamp: Stamp { epoch: Epoch::new(1), version: Version::new(1) },
        profile: Arc::new(profile),
        status: Status { capacity: 1, used, is_complete: true, state: NodeState::Accepting },
        load: Load::default(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use domain::NodeTimeouts;

    use super::*;
    use crate::fixture::{instance, labels, pool_name, record};
    use crate::pools::{Pool, Pools};

    fn needs(requires: &[&str], pool: Option<&str>) -> Requirements {
        Requirements { requires: labels(requires), pool: pool.map(pool_name), ..Requirements::default() }
    }

    fn registry(me: &str, nodes: Vec<Record>) -> Registry {
        let registry = Registry::new(instance(me), NodeTimeouts::DEFAULT);
        let pool = |name: &str, requires: &[&str]| Pool {
            name: pool_name(name),
            routes: Vec::new(),
            requires: labels(requires),
            weight: 1,
        };
        registry.adopt_pools(Pools::new(1, vec![pool("p", &["gpu"]), pool("q", &[])]).unwrap());
        for node in nodes {
            registry.apply(node, Instant::now(), Instant::now());
        }
        registry.reindex();
        registry
    }

    #[test]
    fn what_an_instance_notes_of_its_nodes_serves_what_it_serves_itself() {
        let full = record("full").labelled(&["gpu", "x"]).used(4);
        let theirs = registry("a", vec![record("n").labelled(&["y"]), full, record("m").held_by("b")]);
        let note = theirs.note_of_own(1_000).unwrap();
        let ours = registry("b", vec![]);
        let read = ours.read_note(&instance("a"), &note);
        for (needs, spare) in [
            (needs(&[], None), Some(Spare::Free)),
            (needs(&["y"], None), Some(Spare::Free)),
            (needs(&["x"], Some("p")), Some(Spare::Full)),
            (needs(&["y"], Some("p")), None),
            (needs(&["y"], Some("q")), Some(Spare::Free)),
            (needs(&["z"], None), None),
            (needs(&[], Some("none")), None),
        ] {
            assert_eq!(read.serve(&needs), spare, "{needs:?} by {note}");
            assert_eq!(theirs.is_served_here(&needs), spare.is_some(), "{needs:?}");
            assert_eq!(theirs.is_served(&needs), spare.is_some(), "{needs:?}");
            assert!(!ours.is_served(&needs));
        }
        theirs.link(false);
        assert!(theirs.is_served(&needs(&[], None)));
        assert_eq!(ours.read_note(&instance("a"), "nonsense").serve(&needs(&[], None)), None);
    }

    #[test]
    fn a_note_has_each_kind_of_node_once_and_is_bounded() {
        let nodes = (0..100).map(|n| record(&format!("n{n}")).labelled(&[if n < 50 { "a" } else { "b" }]));
        let registry = registry("a", nodes.collect());
        let whole = registry.note_of_own(1_000).unwrap();
        assert_eq!(whole, r#"[{"labels":["a"],"free":true},{"labels":["b"],"free":true}]"#);
        let some = registry.note_of_own(whole.len() - 1).unwrap();
        assert_eq!(some, r#"[{"labels":["a"],"free":true}]"#);
        assert_eq!(registry.note_of_own(10), None);
        assert_eq!(Registry::new(instance("a"), NodeTimeouts::DEFAULT).note_of_own(1_000), None);
    }
}
