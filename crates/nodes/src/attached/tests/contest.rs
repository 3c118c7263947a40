//! What an attached node does while another connection has its record, or the bus loses it.

use super::*;
use crate::limits::{ABSENT_AFTER_MS, LOST_AGAIN_MS, contested_max};

const CONTESTED_MAX: Duration = contested_max(TIMEOUTS.heartbeat.as_millis() as u64);

#[test]
fn a_contested_record_is_registered_again_as_long_as_the_node_speaks_here() {
    let mut rig = Rig::registered(&[]);
    assert_eq!(rig.apply(answered(Ok(Written::Replaced), None)), ["register later"]);
    // Nothing was heard since: the node has left.
    rig.after(Duration::from_secs(1));
    assert_eq!(rig.apply(Event::RegisterAgain), ["register later"]);
    rig.frames([heartbeat(&[])]);
    assert_eq!(rig.apply(Event::RegisterAgain), ["register []"]);
    assert_eq!(rig.apply(contested()), ["register later"]);
    rig.after(CONTESTED_MAX);
    rig.frames([heartbeat(&[])]);
    assert_eq!(rig.apply(Event::RegisterAgain), ["register []"]);
    assert_eq!(rig.apply(contested()), ["close Replaced"]);
    // And where it did speak in time, it has its record again.
    let mut rig = Rig::registered(&[]);
    rig.apply(answered(Ok(Written::Replaced), None));
    rig.after(Duration::from_secs(1)).frames([heartbeat(&[])]);
    rig.apply(Event::RegisterAgain);
    assert_eq!(rig.apply(registered(&[], &[], true)), ["record 1 used 0", "refresh [] None"]);
    rig.apply(refreshed(9));
    rig.after(CONTESTED_MAX * 2);
    assert_eq!(rig.apply(answered(Ok(Written::Replaced), None)), ["register later"], "the doubt begins anew");
}

#[test]
fn a_record_that_is_lost_again_and_again_is_rewritten_after_a_pause() {
    let lost = || answered(Ok(Written::Lost), None);
    let mut rig = Rig::registered(&[]);
    assert_eq!(rig.apply(lost()), ["register []"], "at once");
    for _ in 0..2 {
        rig.apply(registered(&[], &[], true));
        assert_eq!(rig.apply(lost()), ["register later"]);
        assert_eq!(rig.apply(Event::RegisterAgain), ["register []"]);
    }
    rig.apply(registered(&[], &[], true));
    rig.apply(refreshed(2));
    rig.after(Duration::from_millis(LOST_AGAIN_MS));
    rig.frames([heartbeat(&[])]);
    assert_eq!(rig.apply(lost()), ["register []"]);
}

#[test]
fn a_connection_is_as_old_as_its_socket_however_late_its_hello_is_read() {
    let mut rig = Rig::opened();
    let opened = rig.now;
    rig.after(Duration::from_secs(9));
    let effects = rig.effects(Event::Frames(vec![Rig::hello(&[1])]));
    let since = effects.iter().find_map(|effect| match effect {
        Effect::Register { since, .. } => Some(*since),
        _ => None,
    });
    assert_eq!(since, Some(opened));
}

#[test]
fn a_record_of_an_instance_that_is_gone_is_taken_over_and_the_node_stays() {
    let mut rig = Rig::registered(&[]);
    let absent = Duration::from_millis(ABSENT_AFTER_MS);
    let again = |rig: &mut Rig| {
        rig.frames([heartbeat(&[])]);
        rig.apply(Event::RegisterAgain)
    };
    rig.apply(answered(Ok(Written::Replaced), None));
    rig.after(Duration::from_millis(1));
    assert_eq!(again(&mut rig), ["register []"]);
    for (what, seen, pause, next) in [
        ("missed: the bus may have lost its data", contested_by(8, false), absent / 2, "register []"),
        ("there again", contested_by(8, true), absent / 2, "register []"),
        ("missed anew", contested_by(8, false), absent - Duration::from_millis(1), "register []"),
        ("missed for long enough", contested_by(8, false), Duration::from_millis(1), "register [] over 8"),
        ("another one", contested_by(9, false), absent - Duration::from_millis(1), "register []"),
        ("missed for long enough", contested_by(9, false), Duration::from_millis(1), "register [] over 9"),
    ] {
        assert_eq!(rig.apply(seen), ["register later"], "{what}");
        rig.after(pause);
        assert_eq!(again(&mut rig), [next], "{what}");
    }
    rig.after(CONTESTED_MAX);
    assert_eq!(rig.apply(contested_by(9, false)), ["register later"], "nobody else hears of the node");
    assert_eq!(again(&mut rig), ["register [] over 9"]);
    assert_eq!(rig.apply(registered(&[], &[], true))[0], "record 1 used 0");
}

#[test]
fn a_connection_that_had_the_record_says_so_when_it_registers_again() {
    let had = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Register { had, .. } => Some(*had),
            _ => None,
        })
    };
    let mut rig = Rig::shared();
    assert_eq!(had(&rig.effects(Event::Frames(vec![Rig::hello(&[])]))), Some(None));
    rig.apply(registered(&[], &[], true));
    rig.apply(answered(Ok(Written::Replaced), None));
    rig.after(Duration::from_secs(1)).frames([heartbeat(&[])]);
    assert_eq!(had(&rig.effects(Event::RegisterAgain)), Some(Some(Epoch::new(7))));
    // Welcomed while the bus was away, it has had nothing there.
    let mut rig = Rig::alone(&[]);
    rig.is_bus_up = true;
    assert_eq!(had(&rig.effects(Event::RegisterAgain)), Some(None));
}
