//! Attempts that the owner of a lane has read from the ledger, and did not begin itself: nobody knows whether they were sent.

use super::*;
use crate::lane::limits::NODE_ELSEWHERE_WAIT;
use crate::lane::messages::NodeFound;

/// The only attempt of job 1 under way: taken over, or begun here.
fn under_way(is_taken_over: bool, now: Instant) -> LaneState<Numbered> {
    let mut state =
        if is_taken_over { taken_over(OnRecovery::Run, now) } else { with_job("dispatched", now) };
    state.reread_at = now + Duration::from_secs(3_600);
    state
}

/// Why the attempt was revoked by what was committed, if it was.
fn why(effects: &Effects) -> Option<Revoked> {
    effects.iter().find_map(|effect| match effect {
        Effect::Commit(batch) => match &batch.writes[0].change {
            Change::Revoke { why, .. } => Some(*why),
            Change::End { attempt, .. } => attempt.map(|(_, why)| why),
            _ => None,
        },
        _ => None,
    })
}

/// What became of the attempt once nothing was heard of it for as long as its node may take.
fn looked_for(state: &mut LaneState<Numbered>, found: NodeFound, start: Instant) -> Effects {
    let late = start + NodeTimeouts::DEFAULT.ack;
    assert_eq!(words(&state.flush(late)), "look_for_node");
    let mut effects = state.node_looked_for(vec![(job(1), Attempt::new(1), found)], late);
    effects.extend(state.flush(late));
    effects
}

#[test]
fn an_attempt_that_was_taken_over_counts_as_sent_if_its_node_is_gone() {
    let now = Instant::now();
    let late = now + NodeTimeouts::DEFAULT.ack;
    for (is_taken_over, departed, elsewhere) in [
        (true, Revoked::NodeLost, Revoked::NodeLost),
        (false, Revoked::NodeLostUnsent, Revoked::Undeliverable),
    ] {
        let mut state = under_way(is_taken_over, now);
        assert_eq!(why(&give(&mut state, command("departed", now), now)), Some(departed));

        let mut state = under_way(is_taken_over, now);
        assert_eq!(why(&give(&mut state, command("elsewhere", now), now)), None, "more may be heard");
        assert_eq!(why(&state.flush(now + NODE_ELSEWHERE_WAIT)), Some(elsewhere));
    }
    let mut state = under_way(false, now);
    assert_eq!(why(&state.flush(late)), Some(Revoked::NotAcknowledged));
    for (found, expected) in
        [(NodeFound::Gone, Some(Revoked::NodeLost)), (NodeFound::There, Some(Revoked::NotAcknowledged))]
    {
        let mut state = under_way(true, now);
        assert_eq!(why(&looked_for(&mut state, found, now)), expected, "{found:?}");
    }
    // What its instance knows not to have been sent never counts.
    let mut state = under_way(true, now);
    let unsent = AttemptEvent::Revoked(Revoked::Undeliverable, String::new());
    let effects = give(&mut state, Command::Attempt(job(1), Attempt::new(1), unsent), now);
    assert_eq!(why(&effects), Some(Revoked::Undeliverable));
}

/// A person who reads that it never reached its node would have the stage done again.
#[test]
fn the_attempt_of_a_stage_that_was_taken_over_is_not_said_to_be_unsent_unless_that_is_known() {
    let now = Instant::now();
    for on_recovery in [OnRecovery::Hold, OnRecovery::Held] {
        let mut state = taken_over(on_recovery, now);
        assert_eq!(why(&give(&mut state, command("departed", now), now)), Some(Revoked::NodeLost));

        let mut state = taken_over(on_recovery, now);
        assert_eq!(why(&give(&mut state, command("elsewhere", now), now)), None, "more may be heard");
        assert_eq!(why(&state.flush(now + NODE_ELSEWHERE_WAIT)), Some(Revoked::NodeLost));

        // Its slot says that it was not sent.
        let mut state = taken_over(on_recovery, now);
        assert_eq!(why(&give(&mut state, command("unsent", now), now)), Some(Revoked::NotAcknowledged));
    }
}

#[test]
fn a_job_with_one_attempt_is_dead_if_that_was_taken_over_and_its_node_is_gone() {
    let now = Instant::now();
    let mut only = live(1, OnRecovery::Run, Some("n"));
    only.spec.max_attempts = 1;
    let mut state = loaded(Snapshot { in_flight: vec![only], ..Snapshot::default() }, now);
    state.reread_at = now + Duration::from_secs(3_600);
    let effects = looked_for(&mut state, NodeFound::Gone, now);
    assert_eq!((words(&effects).as_str(), why(&effects)), ("commit(end)", Some(Revoked::NodeLost)));
}

#[test]
fn an_attempt_that_was_taken_over_goes_on_if_its_node_has_it_or_says_so_in_time() {
    let now = Instant::now();
    let late = now + NodeTimeouts::DEFAULT.ack;
    let mut state = under_way(true, now);
    assert_eq!(words(&looked_for(&mut state, NodeFound::Running, now)), "");
    assert_eq!(words(&state.flush(late + NodeTimeouts::DEFAULT.ack)), "", "its running time has begun");
    for news in ["acknowledged", "finished"] {
        let mut state = under_way(true, now);
        assert_eq!(words(&state.flush(late)), "look_for_node");
        // It waits for the next round when the answer comes.
        state.apply(command(news, late), late);
        let mut effects = state.node_looked_for(vec![(job(1), Attempt::new(1), NodeFound::Gone)], late);
        effects.extend(state.flush(late));
        assert_eq!(why(&effects), None, "{news}: {}", words(&effects));
    }
    // Where nothing could be read it is looked for again, and not at once.
    let mut state = under_way(true, now);
    assert_eq!(words(&state.flush(late)), "look_for_node");
    assert_eq!(words(&state.flush(late)), "");
    assert_eq!(words(&state.flush(late + NodeTimeouts::DEFAULT.ack)), "look_for_node");
}

/// An attempt that must not run beside another one is not given up because nothing is heard of it: the bus says whether it
/// was sent, and is asked again as long as it does not say that it was not.
#[test]
fn what_wants_evidence_is_not_revoked_because_nothing_is_heard_of_it() {
    let start = Instant::now();
    let ack = NodeTimeouts::DEFAULT.ack;
    let later = |times: u32| start + ack * times + Duration::from_millis(10);
    for (on_recovery, silent, cut_off) in [
        (OnRecovery::Run, "look_for_node", "commit(revoke)"),
        (OnRecovery::Hold, "release_unsent", "release_unsent"),
        (OnRecovery::Held, "release_unsent", "release_unsent"),
    ] {
        let mut state = taken_over(on_recovery, start);
        assert_eq!(words(&state.flush(later(1))), silent, "{on_recovery:?}, silent");

        let mut state = taken_over(on_recovery, start);
        give(&mut state, command("connection lost", start), start);
        assert_eq!(words(&state.flush(later(1))), cut_off, "{on_recovery:?}, its socket was closed");

        let mut state = taken_over(on_recovery, start);
        give(&mut state, command("elsewhere", start), start);
        assert_eq!(
            words(&state.flush(start + NODE_ELSEWHERE_WAIT)),
            "commit(revoke)",
            "{on_recovery:?}, its node does not have it"
        );
    }

    let mut state = taken_over(OnRecovery::Hold, start);
    for times in 1..4 {
        assert_eq!(words(&state.flush(later(times))), "release_unsent");
        assert_eq!(words(&state.flush(later(times))), "", "not at once again");
    }
    assert_eq!(words(&give(&mut state, command("unsent", later(3)), later(3))), "commit(revoke)");

    let mut state = taken_over(OnRecovery::Hold, start);
    assert_eq!(words(&state.flush(later(1))), "release_unsent");
    give(&mut state, command("acknowledged", later(1)), later(1));
    assert_eq!(words(&give(&mut state, command("unsent", later(1)), later(1))), "", "its node has it");
}

#[test]
fn an_attempt_without_a_slot_counts_if_its_node_may_have_died_of_it() {
    let now = Instant::now();
    let stranded = |state: &mut LaneState<Numbered>, is_gone| {
        state.stranded = StrandedLook::UnderWay;
        let missed = vec![(job(1), Attempt::new(1), State::Dispatched, is_gone)];
        let mut effects = state.stranded_read(missed, now);
        effects.extend(state.flush(now));
        effects
    };
    for (on_recovery, news, is_gone, expected) in [
        (OnRecovery::Hold, Some("connection lost"), false, Revoked::NodeLost),
        (OnRecovery::Hold, None, false, Revoked::NodeLost),
        (OnRecovery::Held, None, false, Revoked::NodeLost),
        (OnRecovery::Run, Some("connection lost"), false, Revoked::NodeLost),
        (OnRecovery::Run, Some("elsewhere"), false, Revoked::NodeLost),
        (OnRecovery::Run, None, true, Revoked::NodeLost),
    ] {
        let mut state = taken_over(on_recovery, now);
        if let Some(news) = news {
            give(&mut state, command(news, now), now);
        }
        let effects = stranded(&mut state, is_gone);
        assert_eq!(why(&effects), Some(expected), "{on_recovery:?}, {news:?}: {}", words(&effects));
    }
    // Of its node nothing is known yet: it may be well, and never have had the attempt.
    for (found, expected) in
        [(NodeFound::There, Revoked::NotAcknowledged), (NodeFound::Gone, Revoked::NodeLost)]
    {
        let mut state = under_way(true, now);
        assert_eq!(words(&stranded(&mut state, false)), "");
        assert_eq!(why(&looked_for(&mut state, found, now)), Some(expected), "{found:?}");
    }
    let mut state = under_way(false, now);
    assert_eq!(why(&stranded(&mut state, false)), Some(Revoked::Undeliverable));
}
