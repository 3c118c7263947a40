//! What a Cluster says of its slots: which servers it names, and a key of each master.

use std::collections::{HashMap, HashSet};

use redis::cluster_routing::Slot as HashSlot;
use redis::{Cmd, Value, cmd};

use crate::limits::{CLUSTER_SLOTS, MASTER_KEYS_TRIED_MAX};

/// Asks a Cluster for its servers.
pub(super) fn cluster_slots() -> Cmd {
    let mut slots = cmd("CLUSTER");
    slots.arg("SLOTS");
    slots
}

/// The servers in the answer to `CLUSTER SLOTS`: ranges of `[first, last, [host, port, …]…]`. A host that the
/// answering server does not know is left out, and so is 0.0.0.0, which the driver takes for the answering server.
pub(super) fn named(slots: &Value) -> impl Iterator<Item = (String, u16)> {
    let list = |value: &Value| match value {
        Value::Array(items) => items.clone(),
        _ => vec![],
    };
    list(slots).into_iter().flat_map(move |range| list(&range).into_iter().skip(2)).filter_map(
        move |server| {
            let Value::Array(server) = server else { return None };
            let (Some(Value::BulkString(host)), Some(Value::Int(port))) = (server.first(), server.get(1))
            else {
                return None;
            };
            let is_known = |host: &String| !matches!(host.as_str(), "" | "?" | "0.0.0.0" | "::");
            let host = String::from_utf8(host.clone()).ok().filter(is_known)?;
            Some((host, u16::try_from(*port).ok()?))
        },
    )
}

/// For each master in the answer to `CLUSTER SLOTS` the number of a key that it has, and where the masters do not have all slots
/// the number of one that no master has, as far as each is found in [`MASTER_KEYS_TRIED_MAX`] tries. One number at least.
pub(super) fn one_of_each_master(slots: &Value, key: impl Fn(u64) -> String) -> Vec<u64> {
    let mut masters = HashMap::new();
    let ranges = if let Value::Array(ranges) = slots { ranges.as_slice() } else { &[] };
    for range in ranges {
        let Value::Array(range) = range else { continue };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = range.as_slice() else {
            continue;
        };
        let [Value::BulkString(host), Value::Int(port), ..] = master.as_slice() else { continue };
        for slot in *first..=*last {
            let Some(slot) = u16::try_from(slot).ok().and_then(HashSlot::new) else { break };
            masters.insert(slot, (host.as_slice(), *port));
        }
    }
    let lacks_slots = masters.len() < usize::from(CLUSTER_SLOTS);
    let wanted = masters.values().collect::<HashSet<_>>().len() + usize::from(lacks_slots);
    let mut numbers = HashMap::new();
    for _ in 0..MASTER_KEYS_TRIED_MAX {
        let number = rand::random();
        numbers.entry(masters.get(&HashSlot::for_key(key(number)))).or_insert(number);
        if numbers.len() == wanted {
            break;
        }
    }
    numbers.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_master_of_a_cluster_has_one_of_the_keys_however_its_slots_lie() {
        let server = |port| {
            let host = Value::BulkString(b"127.0.0.1".to_vec());
            Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())])
        };
        let range = |first, last, master| {
            Value::Array(vec![Value::Int(first), Value::Int(last), server(master), server(9)])
        };
        let key = |number: u64| format!("t:probe:{number:016x}");
        let has = |numbers: &[u64], slots: std::ops::Range<u16>| {
            let slots: HashSet<_> = slots.filter_map(HashSlot::new).collect();
            numbers.iter().filter(|number| slots.contains(&HashSlot::for_key(key(**number)))).count()
        };
        let whole = Value::Array(vec![range(0, 99, 1), range(100, 8_191, 2), range(8_192, 16_383, 3)]);
        let numbers = one_of_each_master(&whole, key);
        let of_each = [0..100, 100..8_192, 8_192..16_384].map(|slots| has(&numbers, slots));
        assert_eq!((of_each, numbers.len()), ([1, 1, 1], 3));
        let in_pieces = Value::Array(vec![range(0, 8_191, 1), range(8_192, 16_383, 1)]);
        assert_eq!(one_of_each_master(&in_pieces, key).len(), 1);
        // Nobody serves most of the slots.
        let little = Value::Array(vec![range(0, 99, 1)]);
        let numbers = one_of_each_master(&little, key);
        assert_eq!((has(&numbers, 0..100), has(&numbers, 100..16_384)), (1, 1));
        // Nobody serves a few, which a first key hardly ever meets.
        let most = Value::Array(vec![range(0, 16_282, 1)]);
        for _ in 0..100 {
            let numbers = one_of_each_master(&most, key);
            assert_eq!((has(&numbers, 0..16_283), has(&numbers, 16_283..16_384)), (1, 1));
        }
        for unreadable in [Value::Nil, Value::Array(vec![range(-1, i64::MAX, 1)])] {
            assert_eq!(one_of_each_master(&unreadable, key).len(), 1);
        }
    }
}
