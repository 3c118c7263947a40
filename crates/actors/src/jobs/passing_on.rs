//! How many sessions this instance may pass on to each other one before it looks again. What is passed on beyond that could
//! not be opened there before its lease runs out.

use std::collections::HashMap;

use domain::InstanceId;
use parking_lot::Mutex;

use super::limits::SESSIONS_PASSED_ON_MAX;

/// What is left of the shares.
#[derive(Default)]
pub(super) struct PassingOn(Mutex<HashMap<InstanceId, usize>>);

impl PassingOn {
    /// A look begins, in which so many live instances may each pass sessions on to each of these.
    pub(super) fn begin<'i>(&self, givers: usize, receivers: impl Iterator<Item = &'i InstanceId>) {
        let givers = givers.max(1);
        // What does not divide goes to some givers by chance, so that on average all pass on what one receiver opens.
        let share = |_: &InstanceId| (SESSIONS_PASSED_ON_MAX + rand::random_range(0..givers)) / givers;
        let shares = receivers.map(|id| (id.clone(), share(id))).collect();
        *self.0.lock() = shares;
    }

    /// Whether one more session may be passed on to this instance; then it counts.
    pub(super) fn take(&self, to: &InstanceId) -> bool {
        let mut shares = self.0.lock();
        let left = shares.get_mut(to).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::fixture::instance;

    #[test]
    fn what_all_pass_on_to_one_instance_in_one_look_is_bounded() {
        let (shares, receivers) = (PassingOn::default(), [instance("a"), instance("b")]);
        assert!(!shares.take(&receivers[0]), "no look has begun");
        for givers in [1, 2, 5, SESSIONS_PASSED_ON_MAX] {
            shares.begin(givers, receivers.iter());
            for to in &receivers {
                let taken = (0..SESSIONS_PASSED_ON_MAX * 2).filter(|_| shares.take(to)).count();
                assert_eq!(taken, SESSIONS_PASSED_ON_MAX / givers);
            }
            assert!(!shares.take(&instance("c")));
        }
        shares.begin(1_000, receivers.iter());
        assert!((0..10).filter(|_| shares.take(&receivers[0])).count() <= 1);
    }
}
