//! What the holder of a node's socket tells the other instances of it, and how many of these travel in one
//! notice. Notices may be lost: instances find lost ones by comparing versions.

use bus::{Epoch, Version};
use domain::NodeId;
use serde::{Deserialize, Serialize};

use crate::record::{Load, Record, Stamp, Status};

/// The form of the notices that are written here.
const NOTICE_FORM: u32 = 1;

/// The present state of one connection of a node. Facts that stay the same are left out: an instance that
/// does not know them reads the record.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeUpdate {
    /// The node.
    pub node: NodeId,
    /// Which version of which connection.
    pub stamp: Stamp,
    /// How it is; `None` when it is over.
    pub state: Option<(Status, Load)>,
    /// Whether it is over because no heartbeat came. An instance of 0.1.0 neither says nor reads it.
    pub is_lost: bool,
}

#[derive(Serialize, Deserialize)]
struct Notice {
    form: u32,
    #[serde(rename = "pulses")]
    updates: Vec<Form>,
}

/// A update with short names: there are many.
#[derive(Serialize, Deserialize)]
struct Form {
    n: String,
    e: u64,
    v: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    s: Option<StateForm>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    lost: bool,
}

#[derive(Serialize, Deserialize)]
struct StateForm {
    /// See [`Status::to_word`].
    w: u64,
    l: Load,
}

impl NodeUpdate {
    /// The update that says what this record says.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        let Record { stamp, profile, status, load } = record;
        Self { node: profile.node.clone(), stamp: *stamp, state: Some((*status, *load)), is_lost: false }
    }
}

/// The notice that tells all of these.
pub(crate) fn write(updates: &[NodeUpdate]) -> Vec<u8> {
    let form = |update: &NodeUpdate| Form {
        n: update.node.to_string(),
        e: update.stamp.epoch.get(),
        v: update.stamp.version.get(),
        s: update.state.map(|(status, l)| StateForm { w: status.to_word(), l }),
        lost: update.is_lost,
    };
    let notice = Notice { form: NOTICE_FORM, updates: updates.iter().map(form).collect() };
    serde_json::to_vec(&notice).expect("texts and numbers can be written")
}

/// What a notice tells. `None` for one that nobody of this kind can have written, or of a newer form: something was
/// missed then.
pub(crate) fn read(notice: &[u8]) -> Option<Vec<NodeUpdate>> {
    let Notice { form, updates } = serde_json::from_slice(notice).ok()?;
    let update = |Form { n, e, v, s, lost }| {
        let state = s.map(|StateForm { w, l }| (Status::from_word(w), l));
        let stamp = Stamp { epoch: Epoch::new(e), version: Version::new(v) };
        Some(NodeUpdate { node: NodeId::parse(&n).ok()?, stamp, state, is_lost: lost })
    };
    if form != NOTICE_FORM {
        return None;
    }
    updates.into_iter().map(update).collect()
}

#[cfg(test)]
mod tests {
    use bus::limits::NOTICE_BYTES_MAX;
    use domain::limits::NODE_ID_CHARS_MAX;

    use super::*;
    use crate::limits::NODE_UPDATES_MAX;

    #[test]
    fn the_largest_notice_is_one_that_the_bus_takes_and_reads_back() {
        let node = NodeId::parse(&"n".repeat(NODE_ID_CHARS_MAX)).unwrap();
        let tiny = Some(-f64::MIN_POSITIVE);
        let load = Load { cpu: tiny, gpu: tiny, memory: tiny };
        let status = Status::from_word(u64::MAX);
        let stamp = Stamp { epoch: Epoch::new(u64::MAX), version: Version::new(u64::MAX) };
        let largest = NodeUpdate { node, stamp, state: Some((status, load)), is_lost: false };
        let mut updates = vec![largest; NODE_UPDATES_MAX];
        updates[0].state = None;
        let notice = write(&updates);
        assert!(notice.len() <= NOTICE_BYTES_MAX, "{}", notice.len());
        assert_eq!(read(&notice), Some(updates));
    }

    #[test]
    fn a_connection_that_is_over_is_lost_only_where_its_holder_says_so() {
        for (says, is_lost) in [("", false), (r#","lost":true"#, true)] {
            let notice = format!(r#"{{"form":1,"pulses":[{{"n":"n","e":1,"v":2{says}}}]}}"#);
            let read = read(notice.as_bytes()).unwrap();
            assert_eq!((read[0].state, read[0].is_lost), (None, is_lost));
            assert_eq!(String::from_utf8(write(&read)).unwrap(), notice);
        }
    }

    #[test]
    fn what_is_no_notice_is_none() {
        let newer = r#"{"form":2,"pulses":[]}"#;
        let unnamed = r#"{"form":1,"pulses":[{"n":"a b","e":1,"v":1}]}"#;
        for bad in ["", "null", "{}", newer, unnamed] {
            assert_eq!(read(bad.as_bytes()), None, "{bad}");
        }
    }
}
