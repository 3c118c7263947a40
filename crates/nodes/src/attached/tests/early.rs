//! What becomes of results that come before the node is registered.

use super::*;
use crate::limits::EARLY_RESULTS_BYTES_MAX;

const RUNNING: [u128; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// A result of an eighth of the bytes that may wait.
fn large(n: u128) -> FromNode {
    let output = "1".repeat(EARLY_RESULTS_BYTES_MAX / 8);
    FromNode::Result { slot: slot(n), end: End::Succeeded { output } }
}

#[test]
fn results_before_the_record_wait_for_it() {
    let mut rig = Rig::greeted(&[1, 2]);
    assert_eq!(rig.frames([result(1)]), Vec::<String>::new());
    let effects = rig.apply(registered(&[1, 2], &[], true));
    assert_eq!(effects[3..], ["acknowledged 2", "commit [1] passing", "refresh [] None"]);
    let mut alone = Rig::greeted(&[1]);
    alone.is_bus_up = false;
    alone.frames([result(1)]);
    let effects = alone.apply(register_failed(away()));
    assert_eq!(
        effects,
        ["attach", "look up [1]", "welcome", "commit [1] passing", "note used 1", "register later"]
    );
}

#[test]
fn results_before_the_record_that_are_too_many_bytes_end_the_socket() {
    let mut rig = Rig::greeted(&RUNNING);
    for n in 1..8 {
        assert_eq!(rig.frames([large(n)]), Vec::<String>::new(), "{n}");
    }
    assert_eq!(rig.frames([large(8)]), ["close Overloaded"], "each counts with more than its text");
    assert_eq!(rig.frames([heartbeat(&RUNNING)]), Vec::<String>::new(), "nothing follows");
    assert!(rig.node.early_results.is_empty());
    // Those that were committed do not count any more.
    let mut rig = Rig::greeted(&RUNNING);
    for n in 1..8 {
        rig.frames([large(n)]);
    }
    let effects = rig.apply(registered(&RUNNING, &[], true));
    assert!(effects.contains(&"commit [1, 2, 3, 4, 5, 6, 7] passing".to_owned()), "{effects:?}");
    assert_eq!(rig.node.early_bytes(), 0);
    assert_eq!(rig.frames([large(8)]), ["commit [8] passing"]);
}

#[test]
fn results_that_wait_for_the_record_are_forgotten_when_the_socket_is_closed() {
    let mut rig = Rig::greeted(&[1]);
    rig.frames([large(1)]);
    assert!(rig.node.early_bytes() > EARLY_RESULTS_BYTES_MAX / 8);
    rig.node.leave();
    assert!(rig.node.early_results.is_empty());
    assert_eq!(rig.node.early_bytes(), 0);
}
