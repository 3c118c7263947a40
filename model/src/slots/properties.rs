//! What must always hold, and what must be possible at all. Each property looks at one moment only; what must never
//! live here is anything that changes one.

use stateright::Property;

use super::SlotsModel;
use super::state::{AtBus, State};

/// The bus and the holder never give slots at the same time.
pub const ONE_GIVES: &str = "either the bus gives slots or the holder";
/// A lane that reserves at the bus finds there all that is taken.
pub const THE_BUS_KNOWS_ALL: &str = "while the bus gives slots the record lists all that are taken";
/// What was taken for lost is not with the node, then or later.
pub const THE_LOST_ARE_LOST: &str = "no attempt that was taken for lost is with the node";

/// Who gave an attempt up when its slot had lasted as long as a reservation need not fear that it is sent.
pub const NOTHING_IS_SENT_LATE: &str =
    "nothing is sent on a slot that was given longer ago than a reservation lasts";

/// The holder gives slots after others had some.
pub const LENT_AGAIN: &str = "slots are lent again after they were shared";
/// Another instance gets a slot of a node on which the holder's own attempts run.
pub const SHARED: &str = "another instance reserves a slot beside one that the holder gave";
/// An attempt that was not sent is found while the slots are lent.
pub const FOUND_WHILE_LENT: &str = "an attempt that was never sent is found while the slots are lent";
/// A word lands when the holder has long said another one.
pub const A_WORD_IS_LATE: &str = "a word is still on its way when a later one has landed";

/// All properties, those that always hold first.
#[must_use]
pub fn all() -> Vec<Property<SlotsModel>> {
    vec![
        Property::always(ONE_GIVES, |model: &SlotsModel, state: &State| {
            !(state.bus_gives() && state.holder_gives(model.rules.sharing_stops_giving))
        }),
        Property::always(THE_BUS_KNOWS_ALL, |_, state: &State| {
            let is_listed = |attempt: &super::Attempt| !attempt.is_taken() || attempt.at_bus != AtBus::None;
            !state.bus_gives() || state.attempts.iter().all(is_listed)
        }),
        Property::always(THE_LOST_ARE_LOST, |_, state: &State| {
            !state.attempts.iter().any(|attempt| attempt.is_judged && attempt.is_with_node)
        }),
        Property::always(NOTHING_IS_SENT_LATE, |_, state: &State| {
            !state.attempts.iter().any(|attempt| attempt.was_sent_late)
        }),
        Property::sometimes(LENT_AGAIN, |_, state: &State| {
            state.was_shared && state.record.listed.is_some() && state.until == 0
        }),
        Property::sometimes(SHARED, |_, state: &State| state.was_shared),
        Property::sometimes(FOUND_WHILE_LENT, |_, state: &State| {
            state.record.listed.is_some() && state.attempts.iter().any(|attempt| attempt.is_judged)
        }),
        Property::sometimes(A_WORD_IS_LATE, |_, state: &State| {
            state.words.iter().any(|word| !word.has_landed && word.number < state.record.word)
        }),
    ]
}
