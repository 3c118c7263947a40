//! Lending keeps every promise in every run within the bounds, and each trap, reopened, breaks what it names.

use model::slots::{Bounds, Rules, SlotsModel, Trap, properties};

/// Two attempts, and the slots go there and back again.
const THERE_AND_BACK: Bounds = Bounds { attempts: 2, words: 2, unheard: 0 };
/// One attempt, and words of which two are heard by nobody.
const UNHEARD: Bounds = Bounds { attempts: 1, words: 4, unheard: 2 };
/// One attempt, and one word that nobody hears of.
const SMALL: Bounds = Bounds { attempts: 1, words: 3, unheard: 1 };

#[test]
fn slots_that_go_there_and_back_are_given_by_one_alone() {
    let shown = [properties::LENT_AGAIN, properties::SHARED, properties::FOUND_WHILE_LENT];
    let model = SlotsModel { rules: Rules::sound(), bounds: THERE_AND_BACK };
    crate::search::keeps_every_promise_and_shows(model, &shown);
}

#[test]
fn words_that_nobody_hears_of_break_no_promise() {
    let shown = [properties::A_WORD_IS_LATE, properties::FOUND_WHILE_LENT];
    let model = SlotsModel { rules: Rules::sound(), bounds: UNHEARD };
    crate::search::keeps_every_promise_and_shows(model, &shown);
}

#[test]
fn each_trap_breaks_what_it_names() {
    for trap in Trap::ALL {
        let shut = SlotsModel { rules: Rules::sound(), bounds: SMALL };
        let open = SlotsModel { rules: trap.reopened(), bounds: SMALL };
        crate::search::is_caught(&format!("{trap:?}"), trap.breaks(), shut, open);
    }
}

#[test]
fn every_promise_about_slots_is_broken_by_some_trap() {
    let is_broken = |name| Trap::ALL.into_iter().any(|trap| trap.breaks().contains(&name));
    crate::search::every_promise_can_be_broken(properties::all(), is_broken);
}
