//! Hash slots of a Cluster whose move from one master to another was left half done. Keys of such a slot are on both, or new ones
//! are to come to the other: so neither serves a script that touches several of them, until somebody ends the move.

use std::collections::{BTreeMap, HashMap, HashSet};

use parking_lot::Mutex;
use redis::cluster_routing::Slot as HashSlot;
use redis::{Cmd, cmd};

use crate::limits::HALF_MOVED_NAMED_MAX;

/// What was found last, in a sentence for each such hash slot.
#[derive(Debug, Default)]
pub(super) struct HalfMoved(Mutex<Vec<String>>);

impl HalfMoved {
    pub(super) fn found(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    /// Takes note of these, and of no others. The log has a line for the beginning of each and for the end of all.
    pub(super) fn show(&self, mut found: Vec<String>) {
        metrics::gauge!("fencepost_redis_half_moved_slots").set(found.len() as f64);
        found.truncate(HALF_MOVED_NAMED_MAX);
        let before = std::mem::replace(&mut *self.0.lock(), found.clone());
        for new in found.iter().filter(|what| !before.contains(what)) {
            tracing::warn!("{new}");
        }
        if found.is_empty() && !before.is_empty() {
            tracing::info!("no hash slot of the Redis Cluster is half moved");
        }
    }
}

/// Asks a master for what it knows of the Cluster: of moves it knows its own.
pub(super) fn cluster_nodes() -> Cmd {
    let mut nodes = cmd("CLUSTER");
    nodes.arg("NODES");
    nodes
}

/// A sentence for each of these hash slots that is being moved, by the answers of all masters to `CLUSTER NODES`.
pub(super) fn half_moved<'v>(
    views: impl Iterator<Item = &'v str>,
    refused: &HashSet<HashSlot>,
) -> Vec<String> {
    let mut moves = BTreeMap::new();
    for view in views {
        for (slot, from, to) in own_moves(view) {
            if HashSlot::new(slot).is_some_and(|slot| refused.contains(&slot)) {
                moves.insert(slot, (from, to));
            }
        }
    }
    let sentence = |(slot, (from, to)): (u16, (&str, &str))| {
        format!(
            "Redis Cluster: the move of hash slot {slot} from {from} to {to} is half done, and scripts in it are refused; \
             finish it (redis-cli --cluster fix {from}), or end it with CLUSTER SETSLOT {slot} STABLE on both"
        )
    };
    moves.into_iter().map(sentence).collect()
}

/// The hash slots that the answering server is moving or is to receive, each with the addresses of both servers. A line has a
/// server's id, its address (`HOST:PORT@PORT,NAME`), its flags, five more fields, and what it serves: ranges, and of the
/// answering server `[SLOT->-ID]` for one that it moves, `[SLOT-<-ID]` for one that it receives.
fn own_moves(view: &str) -> Vec<(u16, &str, &str)> {
    let lines = view.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let lines: Vec<_> = lines.filter(|fields| fields.len() >= 8).collect();
    let servers: HashMap<_, _> = lines.iter().map(|fields| (fields[0], address(fields[1]))).collect();
    let is_own = |fields: &&Vec<&str>| fields[2].split(',').any(|flag| flag == "myself");
    let Some(own) = lines.iter().find(is_own) else { return Vec::new() };
    let me = address(own[1]);
    let other = |id: &str| servers.get(id).copied().unwrap_or("an unknown server");
    let moved = |field: &&str| {
        let inside = field.strip_prefix('[')?.strip_suffix(']')?;
        if let Some((slot, id)) = inside.split_once("->-") {
            return Some((slot.parse::<u16>().ok()?, me, other(id)));
        }
        let (slot, id) = inside.split_once("-<-")?;
        Some((slot.parse().ok()?, other(id), me))
    };
    own[8..].iter().filter_map(moved).collect()
}

fn address(of: &str) -> &str {
    of.split('@').next().unwrap_or(of)
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    /// What the first of three servers says, if these are the moves that it knows.
    fn view(me: usize, moves: &str) -> String {
        let line = |n: usize| {
            let (flags, serves) = match n == me {
                true => ("myself,master", format!("{}-{} {moves}", n * 100, n * 100 + 99)),
                false => ("master", format!("{}-{}", n * 100, n * 100 + 99)),
            };
            format!("id{n} 10.0.0.{n}:6379@16379,host{n} {flags} - 0 1700000000000 {n} connected {serves}\n")
        };
        let replica = "id9 10.0.0.9:6379@16379 slave id1 0 1700000000000 1 connected\n";
        (1..=3).map(line).collect::<String>() + replica
    }

    fn named(views: &[String], refused: &[u16]) -> Vec<String> {
        let refused = refused.iter().filter_map(|slot| HashSlot::new(*slot)).collect();
        half_moved(views.iter().map(String::as_str), &refused)
    }

    #[test]
    fn a_half_moved_hash_slot_is_named_with_both_servers_whichever_of_them_says_so() {
        let (gives, takes) = (view(1, "[101->-id2] [150->-id7]"), view(2, "[101-<-id1]"));
        for views in [vec![gives.clone(), takes.clone()], vec![gives.clone()], vec![takes]] {
            let found = named(&views, &[101, 300]);
            assert_eq!(found.len(), 1, "{views:?}");
            for part in [
                "hash slot 101 from 10.0.0.1:6379 to 10.0.0.2:6379 is half done",
                "--cluster fix 10.0.0.1:6379)",
                "CLUSTER SETSLOT 101 STABLE",
            ] {
                assert!(found[0].contains(part), "{found:?}");
            }
        }
        let found = named(slice::from_ref(&gives), &[101, 150]);
        assert!(found[1].contains("hash slot 150 from 10.0.0.1:6379 to an unknown server"), "{found:?}");
        assert!(named(slice::from_ref(&gives), &[300]).is_empty(), "no script is refused for these");
    }

    #[test]
    fn what_is_no_view_of_a_server_names_no_move() {
        let (odd, nobodys) = (view(1, "[x->-id2] [101] [70000->-id2]"), view(4, "[101->-id2]"));
        for view in [String::new(), "a line".to_owned(), odd, nobodys] {
            assert!(named(slice::from_ref(&view), &[101]).is_empty(), "{view}");
        }
    }

    #[test]
    fn what_is_shown_is_what_was_found_last_and_no_more_than_a_few() {
        let shown = HalfMoved::default();
        let sentences = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
        shown.show(sentences(HALF_MOVED_NAMED_MAX + 1));
        assert_eq!(shown.found(), sentences(HALF_MOVED_NAMED_MAX));
        shown.show(vec![]);
        assert!(shown.found().is_empty());
    }
}
