//! How one moment follows another: which steps are possible, and what each of them changes. What must never live here:
//! a judgement on whether the outcome is good.

use super::state::{AtBus, Attempt, Id, State, Word};
use super::{RESERVATION, Rules, SlotsModel, VOUCHED, VouchedFrom};

/// One thing that happens. The module's first page says which call or event each stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// The holder gives the attempt a slot.
    Give(Id),
    /// A lane reserves a slot for it at the bus.
    Reserve(Id),
    /// It is committed.
    Commit(Id),
    /// The holder takes up its dispatch.
    Send(Id),
    /// The node has run it.
    Finish(Id),
    /// The holder takes back what it gave.
    Expire(Id),
    /// Another instance wants slots.
    Want,
    /// Nobody has wanted any for a while.
    Calm,
    /// The holder sends a word.
    Say,
    /// The bus carries out the word of this number.
    Land(u8),
    /// The holder hears of it.
    Hear(u8),
    /// The holder waits for it no more.
    GiveUp(u8),
    /// The owner of the attempt's lane takes it for lost.
    Judge(Id),
}

/// Lists every step that can be taken now.
pub(super) fn possible(model: &SlotsModel, state: &State, steps: &mut Vec<Step>) {
    let (rules, bounds) = (&model.rules, &model.bounds);
    steps.push(Step::Tick);
    for id in state.ids() {
        let attempt = state.attempt(id);
        if !attempt.has_begun && state.holder_gives(rules.sharing_stops_giving) {
            steps.push(Step::Give(id));
        }
        if !attempt.has_begun && state.bus_gives() {
            steps.push(Step::Reserve(id));
        }
        if attempt.has_begun && attempt.known_for.is_none() {
            steps.push(Step::Commit(id));
        }
        let waits = matches!(attempt.at_bus, AtBus::Reserved(_)) && sending_waits(rules, state);
        if attempt.known_for.is_some() && !attempt.is_taken_up && !waits {
            steps.push(Step::Send(id));
        }
        if attempt.is_with_node {
            steps.push(Step::Finish(id));
        }
        if attempt.given == Some(0) {
            steps.push(Step::Expire(id));
        }
        if !attempt.is_judged && !attempt.is_over && is_missing(rules, state, id) {
            steps.push(Step::Judge(id));
        }
    }
    steps.push(if state.is_wanted { Step::Calm } else { Step::Want });
    let is_waiting = state.words.iter().any(|word| word.is_awaited);
    if !is_waiting && state.said < bounds.words {
        steps.push(Step::Say);
    }
    for word in &state.words {
        if !word.has_landed {
            steps.push(Step::Land(word.number));
        }
        if word.is_awaited && word.has_landed {
            steps.push(Step::Hear(word.number));
        }
        if word.is_awaited && state.unheard < bounds.unheard {
            steps.push(Step::GiveUp(word.number));
        }
    }
}

/// Whether a list is to land before anything is sent that was reserved at the bus.
fn sending_waits(rules: &Rules, state: &State) -> bool {
    rules.sending_waits_for_lists && state.is_ahead && !state.holder_gives(rules.sharing_stops_giving)
}

/// Whether the record shows that the attempt has no slot and gets none any more.
fn is_missing(rules: &Rules, state: &State, id: Id) -> bool {
    let attempt = state.attempt(id);
    let (Some(known_for), AtBus::None) = (attempt.known_for, attempt.at_bus) else { return false };
    if state.bus_gives() {
        return known_for >= rules.shared_known_for_min;
    }
    let Some(listed) = &state.record.listed else { return false };
    let is_known_long = listed[usize::from(id.0)].is_some_and(|known_for| known_for >= rules.known_for_min);
    is_known_long || (attempt.is_with_node && !rules.sent_before_the_list)
}

/// The state after a step that [`possible`] listed.
pub(super) fn after(model: &SlotsModel, state: &State, step: Step) -> State {
    let rules = &model.rules;
    let mut next = state.clone();
    match step {
        Step::Tick => {
            next.attempts.iter_mut().for_each(Attempt::age);
            next.record.vouched = next.record.vouched.saturating_sub(1);
            next.until = next.until.saturating_sub(1);
            next.words.iter_mut().for_each(|word| word.vouches = word.vouches.saturating_sub(1));
        }
        Step::Give(id) => {
            let attempt = attempt(&mut next, id);
            (attempt.given, attempt.has_begun) = (Some(RESERVATION), true);
            next.is_ahead = true;
        }
        Step::Reserve(id) => {
            next.was_shared |= next.attempts.iter().any(Attempt::is_taken);
            let attempt = attempt(&mut next, id);
            (attempt.at_bus, attempt.has_begun) = (AtBus::Reserved(RESERVATION), true);
        }
        Step::Commit(id) => attempt(&mut next, id).known_for = Some(0),
        Step::Send(id) => send(rules, attempt(&mut next, id)),
        Step::Finish(id) => {
            // Where the holder gives the slots the record hears of it with the next list.
            let is_told = !next.holder_gives(rules.sharing_stops_giving);
            let attempt = attempt(&mut next, id);
            (attempt.is_with_node, attempt.is_over) = (false, true);
            attempt.known_for = Some(RESERVATION);
            if is_told {
                attempt.at_bus = AtBus::None;
            }
        }
        Step::Expire(id) => attempt(&mut next, id).given = None,
        Step::Want => next.is_wanted = true,
        Step::Calm => next.is_wanted = false,
        Step::Say => say(rules, &mut next),
        Step::Land(number) => land(rules, &mut next, number),
        Step::Hear(number) => {
            let word = word(&mut next, number);
            word.is_awaited = false;
            next.until = if word.lends { 0 } else { VOUCHED };
            if let Some(taken) =
                next.words.iter().find(|word| word.number == number).and_then(|word| word.taken.clone())
            {
                next.is_ahead =
                    next.attempts.iter().zip(taken).any(|(attempt, listed)| attempt.is_taken() && !listed);
            }
        }
        Step::GiveUp(number) => {
            next.unheard += 1;
            let word = word(&mut next, number);
            word.is_awaited = false;
            if !word.lends {
                next.until = VOUCHED;
            }
        }
        Step::Judge(id) => attempt(&mut next, id).is_judged = true,
    }
    // What has landed and is not waited for changes nothing more.
    next.words.retain(|word| word.is_awaited || !word.has_landed);
    next
}

fn send(rules: &Rules, attempt: &mut Attempt) {
    attempt.is_taken_up = true;
    let is_given = match attempt.given {
        Some(0) => !rules.given_slots_end,
        Some(_) => true,
        None => false,
    };
    if is_given {
        attempt.was_sent_late = attempt.given == Some(0);
        (attempt.given, attempt.is_with_node) = (None, true);
    } else if let AtBus::Reserved(_) = attempt.at_bus {
        (attempt.at_bus, attempt.is_with_node) = (AtBus::Sent, true);
    }
}

fn say(rules: &Rules, state: &mut State) {
    let lends = !state.is_wanted;
    let lists = lends || (rules.sharing_lists && state.is_ahead);
    state.said += 1;
    state.is_ahead |= lists && rules.unheard_lists_count;
    let word = Word {
        number: state.said,
        lends,
        taken: lists.then(|| state.attempts.iter().map(Attempt::is_taken).collect()),
        known_for: state.attempts.iter().map(Attempt::known_when_listed).collect(),
        vouches: if lends { 0 } else { VOUCHED },
        has_landed: false,
        is_awaited: true,
    };
    state.words.push(word);
}

fn land(rules: &Rules, state: &mut State, number: u8) {
    let word = word(state, number);
    word.has_landed = true;
    let word = word.clone();
    if rules.late_words_are_ignored && number < state.record.word {
        return;
    }
    state.record.word = number;
    if let Some(taken) = &word.taken {
        for (attempt, is_taken) in state.attempts.iter_mut().zip(taken) {
            attempt.at_bus = match attempt.at_bus {
                _ if *is_taken => AtBus::Sent,
                AtBus::Reserved(left) => AtBus::Reserved(left),
                AtBus::None | AtBus::Sent => AtBus::None,
            };
        }
    }
    if word.lends {
        state.record.listed = Some(word.known_for);
        if rules.lending_ends_vouching {
            state.record.vouched = 0;
        }
        return;
    }
    state.record.listed = None;
    let vouches = match rules.vouched_from {
        VouchedFrom::Sending => word.vouches,
        VouchedFrom::Landing => VOUCHED,
    };
    state.record.vouched = state.record.vouched.max(vouches);
}

fn attempt(state: &mut State, id: Id) -> &mut Attempt {
    &mut state.attempts[usize::from(id.0)]
}

fn word(state: &mut State, number: u8) -> &mut Word {
    state.words.iter_mut().find(|word| word.number == number).expect("the step is about a word on its way")
}
