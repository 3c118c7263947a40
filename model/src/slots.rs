//! A node's slots as a model that is checked exhaustively: who gives them, the bus or the holder of the node's socket, and
//! what may be concluded about an attempt that has none. What must never live here: how many slots there are (the node's
//! connection refuses what exceeds them), and whose attempt it is, which the ledger says.
//!
//! One node, whose socket one instance holds; another instance that wants slots of it too; the bus, which keeps the node's
//! record; a few attempts. [`Rules`] says how the pieces are built, [`Bounds`] says how much may happen. [`Rules::sound`]
//! must hold every property of [`properties`]; rules with one [`Trap`] reopened must break those that [`Trap::breaks`]
//! names.
//!
//! # What a step stands for
//!
//! | [`Step`] | call or event |
//! |---|---|
//! | `Tick` | a unit of time passes everywhere. A word vouches for [`VOUCHED`] of them, a slot waits for its dispatch for [`RESERVATION`] |
//! | `Give` | the holder gives a slot to a lane of its own, in memory |
//! | `Reserve` | a lane of any instance reserves a slot at the bus |
//! | `Commit` | the lane commits the attempt. From then on each owner of the lane knows of it |
//! | `Send` | the holder takes up the attempt's dispatch: where it gave the slot itself it sends it, otherwise if its slot is `sent` at the bus first |
//! | `Finish` | the node has run the attempt, its result is committed, and its slot is free |
//! | `Expire` | the holder takes back a slot that it gave and whose time is over |
//! | `Want` | another instance asks the holder to share the slots |
//! | `Calm` | nobody else has wanted one for a while |
//! | `Say` | the holder sends a word to the bus: by it the bus lends the slots, or shares them |
//! | `Land` | the bus carries the word out, be it long after it was sent |
//! | `Hear` | the holder hears that it was carried out |
//! | `GiveUp` | the holder does not hear of it. The word may land at any later time |
//! | `Judge` | the owner of the attempt's lane finds no slot of it in the record, and takes it for lost; or the owner of a job whose older attempts are to be over takes it for one of those, and knows perhaps that it was sent |
//!
//! A **pause** is not a step: between any two of its steps an instance may be left out for as long as time passes.
//!
//! # Left out
//!
//! - Records that are lost, and connections that are replaced: nothing is reserved in a record before its newest holder
//!   has listed what is taken, which tests of the bus show. So is a bus that comes back with an older record.
//! - Slots that are passed on from a result to the next attempt. Such an attempt is sent at once, or not at all.

mod rules;
mod state;
mod steps;
mod trap;

pub mod properties;

use stateright::{Model, Property};

pub use rules::{Rules, VouchedFrom};
pub use state::{AtBus, Attempt, Id, Record, State, Word};
pub use steps::Step;
pub use trap::Trap;

/// How long a word that shares the slots vouches for the record, in ticks from when it was sent.
pub const VOUCHED: u8 = 2;
/// How long a slot that was given or reserved waits for its dispatch, in ticks; longer than [`VOUCHED`].
pub const RESERVATION: u8 = 3;

const _: () = assert!(VOUCHED < RESERVATION);

/// How much may happen in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Attempts.
    pub attempts: u8,
    /// Words of the holder.
    pub words: u8,
    /// Words that the holder does not hear of.
    pub unheard: u8,
}

/// Rules within bounds: what the checker explores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotsModel {
    /// Who gives slots when, and what is evidence.
    pub rules: Rules,
    /// How much may happen.
    pub bounds: Bounds,
}

impl Model for SlotsModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.bounds.attempts)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps::possible(self, state, steps);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        Some(steps::after(self, state, step))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
