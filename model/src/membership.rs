//! Life and death as a model that is checked exhaustively: when an instance may call another dead, take its life (its
//! `instance:` lease) and then its keys, and when it must stop writing itself. What must never live here: nonces and
//! fences. [`crate::LeaseModel`] shows that a takeover at any moment, wise or not, duplicates nothing; what is left is
//! whether it is wise, and that is a matter of time.
//!
//! # Time
//!
//! A [`Step::Tick`] is one renewal period, and a lease lasts [`LEASE`] of them. A ledger that is up answers within the
//! tick, instances do what is due within the tick, and all of it in any order: the steps between two ticks are every
//! phase that renewals can have to each other. A ledger that stalls stops the statements of *all* alike, for as long as
//! one likes; before it stalls again, everybody's statement that waited has had its turn. Nothing else bounds time:
//! counters are cut off where they stop to matter, so that runs of every length are searched.
//!
//! # Keys
//!
//! An instance's keys have leases of their own, which anybody may acquire once they have run out. Here each is as long as the
//! `instance:` lease and is renewed by the same statement. That is enough: of an instance that takes a key only the renewals
//! of its `instance:` lease matter, and of the key's owner only those of the key, which come back after a stall no later.
//! By default a key's lease is many times as long as that, so that a stall which lets it run out has cut everybody off;
//! [`properties::WHO_OUTLASTS_A_STALL_MAY_TAKE`] is a run where it is not. An acquire that was sent before a stall and is
//! carried out after it asks nobody, and is left out.
//!
//! # What a step stands for
//!
//! | [`Step`] | statement or event |
//! |---|---|
//! | `Send`, `Land`, `Hear` | the renewal of one's own `instance:` lease is sent, carried out, and heard of. By exact (resource, owner, token), so it revives a lease that ran out, and not one that was taken. After it is heard the instance looks at the others' leases, unless the ledger stalls by then |
//! | `Hear` of a renewal that found nothing | the lease was taken. The instance drops its actors and is there again under a new id, knowing of nobody |
//! | `GiveUp` | a statement that stalled for longer than a lease is broken off, and sent again up to [`COME_BACK_MAX`] ticks later (time-outs, reconnects, jitter) |
//! | `TakeLife` | a survivor takes the dead one's `instance:` lease, one token on |
//! | `TakeKeys` | a survivor takes what the dead one owned |
//! | `TakeLapsed` | an instance acquires a key whose lease ran out under another that nobody found dead. That one loses the key alone and goes on |
//! | `Stall`, `Heal` | the ledger answers nobody, and answers again |
//! | `Pause`, `Wake`, `Crash` | one process stands still while its clock runs, goes on with what it believed, dies for good |

mod rules;
mod state;
mod steps;
mod trap;

pub mod properties;

use stateright::{Model, Property};

pub use rules::{Calm, Evidence, OwnClock, Rules};
pub use state::{Member, Place, Run, Seen, State, Statement, View};
pub use steps::Step;
pub use trap::Trap;

/// Length of an `instance:` lease, in ticks of one renewal period.
pub const LEASE: u8 = 4;
/// An answer that comes later than this after the renewal before it was sent is late, in ticks: half a lease.
pub const TIMELY_MAX: u8 = LEASE / 2;
/// Longest way back for an instance that gave up a statement, in ticks; shorter than a lease.
pub const COME_BACK_MAX: u8 = LEASE - 1;
/// Most instances.
pub const PLACES_MAX: usize = 3;

const _: () = assert!(COME_BACK_MAX < LEASE);

/// How much may happen in one run, over all instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Instances side by side; 2 to [`PLACES_MAX`].
    pub instances: u8,
    /// Stalls of the ledger.
    pub stalls: u8,
    /// Processes stopped for a while.
    pub pauses: u8,
    /// Processes that die.
    pub crashes: u8,
}

/// Rules within bounds: what the checker explores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MembershipModel {
    /// How life is shown, judged and taken.
    pub rules: Rules,
    /// How much may happen.
    pub bounds: Bounds,
}

impl Model for MembershipModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        assert!(
            (2..=PLACES_MAX).contains(&usize::from(self.bounds.instances)),
            "2 to {PLACES_MAX} instances"
        );
        vec![State::new(self.bounds.instances)]
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
