//! What goes wrong, and when: a schedule that a seed decides. Pure.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, then a new start after a while.
    Kill {
        /// Which instance.
        instance: usize,
        /// How long it stays away.
        down: Duration,
    },
    /// SIGSTOP, then SIGCONT: longer than its leases last.
    Pause {
        /// Which instance.
        instance: usize,
        /// How long it is frozen.
        length: Duration,
    },
    /// PostgreSQL stopped as by a crash, then started.
    RestartDatabase {
        /// How long it stays away.
        down: Duration,
    },
}

/// A fault, and how long after the one before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// From the beginning of the step before.
    pub after: Duration,
    /// What goes wrong.
    pub fault: Fault,
}

/// What a schedule is made from.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Decides everything that is left open.
    pub seed: u64,
    /// How many faults.
    pub faults: usize,
    /// How many instances there are to be hurt.
    pub instances: usize,
    /// Mean time from the beginning of one fault to that of the next.
    pub mean_gap: Duration,
    /// How long a signer's lease lasts; pauses are longer.
    pub lease: Duration,
}

/// Of ten faults in a row, four kill, four pause, two stop the database.
const ROUND: [usize; 10] = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2];

impl Recipe {
    /// The schedule. The same recipe gives the same one.
    #[must_use]
    pub fn schedule(&self) -> Vec<Step> {
        let mut dice = StdRng::seed_from_u64(self.seed);
        let mut kinds = Vec::new();
        while kinds.len() < self.faults {
            let mut round = ROUND;
            round.shuffle(&mut dice);
            kinds.extend(round);
        }
        kinds.truncate(self.faults);
        kinds.into_iter().map(|kind| self.step(kind, &mut dice)).collect()
    }

    fn step(&self, kind: usize, dice: &mut StdRng) -> Step {
        let after = self.mean_gap.mul_f64(dice.random_range(0.4..1.6));
        let instance = dice.random_range(0..self.instances);
        let down = Duration::from_millis(dice.random_range(0..800));
        let fault = match kind {
            0 => Fault::Kill { instance, down },
            1 => Fault::Pause { instance, length: self.lease.mul_f64(dice.random_range(1.2..2.5)) },
            _ => Fault::RestartDatabase { down },
        };
        Step { after, fault }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_everything() {
        let recipe = |seed| Recipe {
            seed,
            faults: 25,
            instances: 3,
            mean_gap: Duration::from_secs(2),
            lease: Duration::from_secs(1),
        };
        let schedule = recipe(7).schedule();
        assert_eq!(schedule, recipe(7).schedule());
        assert_ne!(schedule, recipe(8).schedule());
        assert_eq!(schedule.len(), 25);
        for step in schedule {
            if let Fault::Pause { length, .. } = step.fault {
                assert!(length > Duration::from_secs(1), "a pause outlasts the lease");
            }
        }
    }
}
