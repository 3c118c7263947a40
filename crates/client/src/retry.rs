//! When to try again. Pure: the dice are handed in.

use std::time::Duration;

/// Bounds on trying again. A call ends at whichever is reached first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Times that a request is sent at most, the first included; 1 never repeats.
    pub attempts_max: u32,
    /// Longest time for one call with all its attempts and pauses.
    pub total_max: Duration,
    /// Longest time for one attempt, connecting included.
    pub attempt_max: Duration,
    /// The pause before the second attempt, before jitter; it doubles with each further one.
    pub pause_initial: Duration,
    /// Longest pause, unless the daemon asks for a longer one.
    pub pause_max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts_max: 8,
            total_max: Duration::from_secs(30),
            attempt_max: Duration::from_secs(15),
            pause_initial: Duration::from_millis(50),
            pause_max: Duration::from_secs(2),
        }
    }
}

impl Retry {
    /// The pause after attempt number `attempt` (from 1). `hint` is what the daemon asked for, and is
    /// never undercut; `dice`, 0.0 to 1.0, spreads callers that were refused together.
    pub(crate) fn pause(&self, attempt: u32, hint: Option<Duration>, dice: f64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(20);
        let backoff = self.pause_initial.saturating_mul(1 << doublings).min(self.pause_max);
        match hint {
            Some(hint) => hint + backoff.mul_f64(0.5 * dice),
            None => backoff.mul_f64(0.5 + 0.5 * dice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit_and_are_spread_over_half_of_it() {
        let retry = Retry::default();
        let ms = |attempt, dice| retry.pause(attempt, None, dice).as_millis();
        assert_eq!((ms(1, 0.0), ms(1, 1.0)), (25, 50));
        assert_eq!((ms(2, 1.0), ms(3, 1.0), ms(4, 1.0)), (100, 200, 400));
        assert_eq!((ms(7, 1.0), ms(u32::MAX, 1.0)), (2_000, 2_000));
    }

    #[test]
    fn what_the_daemon_asks_for_is_never_undercut() {
        let retry = Retry::default();
        for attempt in [1, 2, 30] {
            for dice in [0.0, 0.5, 1.0] {
                assert!(retry.pause(attempt, Some(Duration::from_secs(3)), dice) >= Duration::from_secs(3));
            }
        }
    }
}
