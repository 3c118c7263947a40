//! How long the next range is to be: one that lasts between a quarter and half an hour.

use std::time::Duration;

use domain::limits::SEGMENT_STEP_GROWN_MAX;

use crate::limits::{RANGE_LONG, RANGE_SHORT};

/// The step of one tag. Never below what its tag names, never above the larger of that and [`SEGMENT_STEP_GROWN_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    base: u64,
    now: u64,
}

impl Step {
    pub(super) const fn new(base: u64) -> Self {
        Self { base, now: base }
    }

    pub(super) const fn now(self) -> u64 {
        self.now
    }

    /// The tag names `base` now, which may have changed.
    pub(super) fn rebase(self, base: u64) -> Self {
        Self { base, now: self.now.clamp(base, base.max(SEGMENT_STEP_GROWN_MAX)) }
    }

    /// A range of this step lasted so long.
    pub(super) fn after(self, lasted: Duration) -> Self {
        let now = if lasted < RANGE_SHORT {
            self.now.saturating_mul(2)
        } else if lasted > RANGE_LONG {
            self.now / 2
        } else {
            self.now
        };
        Self { now, ..self }.rebase(self.base)
    }
}

#[cfg(test)]
mod tests {
    use domain::limits::SEGMENT_STEP_MAX;
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_step_doubles_under_15_minutes_and_halves_over_30() {
        let mut step = Step::new(1_000);
        for (minutes, expected) in
            [(14, 2_000), (15, 2_000), (30, 2_000), (0, 4_000), (31, 2_000), (60, 1_000), (60, 1_000)]
        {
            step = step.after(minutes * MINUTE);
            assert_eq!(step.now(), expected, "after {minutes} minutes");
        }
    }

    #[test]
    fn a_steady_rate_finds_its_step_and_keeps_it() {
        let rate = 700;
        let mut step = Step::new(1_000);
        let steps: Vec<_> = (0..20)
            .map(|_| {
                step = step.after(Duration::from_secs(step.now() / rate));
                step.now()
            })
            .collect();
        let last = *steps.last().unwrap();
        assert!(steps[12..].iter().all(|step| *step == last), "{steps:?}");
        assert!((RANGE_SHORT..=RANGE_LONG).contains(&Duration::from_secs(last / rate)), "{steps:?}");
    }

    proptest! {
        #[test]
        fn the_step_stays_within_its_bounds_for_any_timing(
            base in 1..=SEGMENT_STEP_MAX,
            rebased in 1..=SEGMENT_STEP_MAX,
            lasted in proptest::collection::vec(0..u64::MAX / 2, 0..60),
        ) {
            let mut step = Step::new(base);
            for (n, ms) in lasted.iter().enumerate() {
                let base = if n < 30 { base } else { rebased };
                step = step.rebase(base).after(Duration::from_millis(*ms));
                prop_assert!((base..=base.max(SEGMENT_STEP_GROWN_MAX)).contains(&step.now()), "{step:?}");
            }
        }
    }
}
