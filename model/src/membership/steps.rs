//! How one moment follows another: which steps are possible, and what each of them changes. What must never live here:
//! a judgement on whether the outcome is good.

use super::state::{Member, Place, Run, State, Statement, View};
use super::{COME_BACK_MAX, Calm, Evidence, LEASE, MembershipModel, OwnClock, Rules, TIMELY_MAX};

/// One thing that happens. The module's first page says which statement or event each stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// One renewal period passes.
    Tick,
    /// An instance sends the renewal of its own lease.
    Send(Place),
    /// The ledger carries it out.
    Land(Place),
    /// The instance hears of it, and looks at the others.
    Hear(Place),
    /// The instance gives up a statement that stalled, and sends the next after so many ticks.
    GiveUp(Place, u8),
    /// A survivor (the first) takes the `instance:` lease of the second.
    TakeLife(Place, Place),
    /// A survivor (the first) takes the keys of the second.
    TakeKeys(Place, Place),
    /// An instance (the first) acquires a key of the second that ran out.
    TakeLapsed(Place, Place),
    /// The ledger stops answering.
    Stall,
    /// It answers again.
    Heal,
    /// A process is stopped.
    Pause(Place),
    /// It goes on.
    Wake(Place),
    /// A process dies.
    Crash(Place),
}

/// Lists every step that can be taken now.
pub(super) fn possible(model: &MembershipModel, state: &State, steps: &mut Vec<Step>) {
    let bounds = &model.bounds;
    for place in state.places() {
        let me = state.member(place);
        if me.run == Run::Running {
            match me.statement {
                Statement::None if me.due_in == 0 => steps.push(Step::Send(place)),
                // To come back under a new id, an instance needs the ledger.
                Statement::Executed { renewed, .. } if renewed || !state.stalled => {
                    steps.push(Step::Hear(place))
                }
                Statement::Sent { age: LEASE, .. } if state.stalled => {
                    steps.extend((1..=COME_BACK_MAX).map(|ticks| Step::GiveUp(place, ticks)));
                }
                _ => {}
            }
            takeovers(model, state, place, steps);
            if state.pauses < bounds.pauses {
                steps.push(Step::Pause(place));
            }
            if state.crashes < bounds.crashes {
                steps.push(Step::Crash(place));
            }
        }
        if me.run == Run::Paused {
            steps.push(Step::Wake(place));
        }
        if !state.stalled && matches!(me.statement, Statement::Sent { .. }) {
            steps.push(Step::Land(place));
        }
    }
    if state.stalled {
        steps.push(Step::Heal);
    } else if state.stalls < bounds.stalls && !state.members.iter().any(|me| me.behind) {
        steps.push(Step::Stall);
    }
    if !state.members.iter().any(|me| is_urgent(me, state.stalled)) {
        steps.push(Step::Tick);
    }
}

/// Whether something is to be done before time goes on.
fn is_urgent(me: &Member, stalled: bool) -> bool {
    match (me.run, me.statement) {
        (Run::Crashed, _) | (Run::Paused, Statement::None | Statement::Executed { .. }) => false,
        (Run::Running, Statement::None) => me.due_in == 0,
        (Run::Running, Statement::Executed { renewed, .. }) => renewed || !stalled,
        (_, Statement::Sent { .. }) => !stalled,
    }
}

fn takeovers(model: &MembershipModel, state: &State, thief: Place, steps: &mut Vec<Step>) {
    let rules = &model.rules;
    if state.stalled {
        return;
    }
    for victim in state.places().filter(|&victim| victim != thief) {
        let them = state.member(victim);
        let dead = state.member(thief).calls_dead(rules, victim) && !(rules.statement_asks && them.lives());
        if dead && rules.life_before_keys && !them.life_taken {
            steps.push(Step::TakeLife(thief, victim));
        }
        let open = if rules.life_before_keys { them.life_taken } else { dead };
        if open && !them.keys_taken && state.member(thief).writes(rules) {
            steps.push(Step::TakeKeys(thief, victim));
        }
        if them.lapsed() && state.member(thief).may_take(rules) {
            steps.push(Step::TakeLapsed(thief, victim));
        }
    }
}

/// The state after a step that [`possible`] listed.
pub(super) fn after(model: &MembershipModel, state: &State, step: Step) -> State {
    let mut next = state.clone();
    match step {
        Step::Tick => {
            let undisturbed = state.stalls == 0 && state.pauses == 0;
            next.members.iter_mut().for_each(|me| me.age(undisturbed));
            if state.stalled {
                next.members.iter_mut().for_each(|me| me.cut_off |= me.alive_left == 0);
            }
            next.seen.everybody_ran_out |= next.members.iter().all(|me| me.lease_left == 0);
        }
        Step::Send(place) => {
            let me = member(&mut next, place);
            let after_gap = model.rules.calm == Calm::FromSending && me.alive_left == 0;
            me.statement = Statement::Sent { age: 0, after_gap };
        }
        Step::Land(place) => land(&mut next, place),
        Step::Hear(place) => hear(&model.rules, &mut next, place),
        Step::GiveUp(place, ticks) => {
            let me = member(&mut next, place);
            (me.statement, me.due_in) = (Statement::None, ticks);
        }
        Step::TakeLife(thief, victim) => {
            let has_seen_its_end = state.member(thief).views[usize::from(victim.0)].ended;
            next.seen.taken_before_its_end |= state.member(victim).lives() && !has_seen_its_end;
            let them = member(&mut next, victim);
            them.life_taken = true;
            let theft = !them.excused;
            next.seen.theft_from_the_living |= theft;
        }
        Step::TakeKeys(_, victim) => {
            let them = member(&mut next, victim);
            them.keys_taken = true;
            let theft = !them.excused;
            next.seen.theft_from_the_living |= theft;
        }
        Step::TakeLapsed(thief, victim) => {
            let theft = state.member(thief).cut_off && !state.member(victim).excused;
            next.seen.lapsed_taken_from_the_living |= theft;
        }
        Step::Stall => {
            next.stalled = true;
            next.stalls += 1;
        }
        Step::Heal => {
            next.stalled = false;
            next.members.iter_mut().for_each(|me| me.behind = me.run == Run::Running);
        }
        Step::Pause(place) => {
            next.pauses += 1;
            let me = member(&mut next, place);
            (me.run, me.excused, me.behind) = (Run::Paused, true, false);
        }
        Step::Wake(place) => member(&mut next, place).run = Run::Running,
        Step::Crash(place) => {
            next.crashes += 1;
            let me = member(&mut next, place);
            (me.run, me.excused, me.behind) = (Run::Crashed, true, false);
            me.statement = Statement::None;
        }
    }
    if !next.stalled && !next.members.iter().any(|me| me.behind) {
        next.members.iter_mut().for_each(|me| me.cut_off = false);
    }
    next
}

fn land(state: &mut State, place: Place) {
    let me = member(state, place);
    let Statement::Sent { age, after_gap } = me.statement else { return };
    let renewed = !me.life_taken;
    me.statement = Statement::Executed { age, after_gap, renewed };
    me.behind = false;
    if renewed {
        me.lease_left = LEASE;
        // A statement that was under way when its sender was stopped says nothing of what came after.
        me.excused &= me.run != Run::Running;
        moves(state, place);
    }
}

fn moves(state: &mut State, place: Place) {
    for other in &mut state.members {
        other.views[usize::from(place.0)].moved = true;
    }
}

fn hear(rules: &Rules, state: &mut State, place: Place) {
    let stalled = state.stalled;
    let me = member(state, place);
    let Statement::Executed { age, after_gap, renewed } = me.statement else { return };
    if !renewed {
        // A new id, with a lease, a standing and a past of its own.
        *me = Member::joined();
        state.seen.new_id = true;
        for other in &mut state.members {
            other.views[usize::from(place.0)] = View::UNKNOWN;
        }
        return;
    }
    let timely = me.since_sent <= TIMELY_MAX;
    let left = LEASE - age;
    match rules.calm {
        Calm::FromAnswer if me.alive_left == 0 => me.calm_left = LEASE,
        Calm::FromSending if after_gap => me.calm_left = left,
        _ => {}
    }
    me.alive_left = if rules.own_clock == OwnClock::FromAnswer { LEASE } else { left };
    (me.since_sent, me.due_in, me.statement) = (age.min(TIMELY_MAX + 1), 1, Statement::None);
    if !timely && rules.late_starts_anew {
        me.views.iter_mut().for_each(|view| view.unmoved = 0);
    }
    if !stalled {
        me.evidence_left = TIMELY_MAX;
        look(rules, state, place, timely || !rules.late_starts_anew);
    }
}

fn look(rules: &Rules, state: &mut State, place: Place, counts: bool) {
    for other in state.places().filter(|&other| other != place) {
        let ended = !state.member(other).lives();
        let view = &mut member(state, place).views[usize::from(other.0)];
        let may_count = ended || rules.evidence != Evidence::UnmovedSinceRunOut;
        let unmoved = if view.moved || !counts || !may_count { 0 } else { view.unmoved + 1 };
        *view = View { unmoved: unmoved.min(rules.unmoved_min), ended, moved: false };
    }
}

fn member(state: &mut State, place: Place) -> &mut Member {
    &mut state.members[usize::from(place.0)]
}
