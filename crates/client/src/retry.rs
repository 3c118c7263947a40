//! When to try again.

use std::time::Duration;

use tokio::time::Instant;

use crate::Error;

/// No pause is shorter, whatever else is set: a call may repeat for as long as `total_max`.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// After a connection that held for so long, the next pause is the shortest one again.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// The first pause before another connection; it doubles with each further one.
const RECONNECT_PAUSE_INITIAL: Duration = Duration::from_millis(200);

/// A client that every instance has refused for so long after it was let in is refused for good. Tokens are not exchanged at
/// all instances at once.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// Bounds on trying again.
///
/// Two kinds of failure are told apart.
///
/// - *No instance serves the key yet*: no connection, a lost answer, a proxy's 502 to 504, `not_owner`,
///   `lease_held`, `fenced`, `draining`, `ledger_unavailable`. These occur while a killed instance's keys
///   move, which usually takes 3 s and at most 5 s, and while an instance restarts. A call is tried again
///   after these until `total_max`; the default is several times as long as a failover.
/// - *Too much, or not now*: `overloaded`, `window_full` of a grant that fits the window, `clock_behind`, `exhausted` for
///   want of a worker number, a proxy's 429, and codes of newer daemons. A call ends with the `attempts_max`th of these,
///   or at `total_max`. As long as no instance could be reached at all, a refused connection counts as one of these too,
///   because the URLs may be wrong.
///
/// Requests go out in rounds: to the owner of the signer, then to the given URLs in turn, as long as another
/// one may succeed, and once to the owner that an answer names. Between rounds there is a pause. So a round
/// has at most two requests more than there are URLs.
///
/// The checks of an instance ([`crate::Client::health`], [`crate::Client::ready`]) do not wait for a
/// failover: there every failure counts towards `attempts_max`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The number of failures of the second kind after which a call ends; 8 by default. With 1, the client never
    /// repeats a request, nor does it ask another URL.
    pub attempts_max: u32,
    /// Longest time for one call with all its attempts and pauses; 30 s by default. A call ends earlier if the
    /// remaining time is shorter than the next pause and the time for which it tried to connect before. If it ends in
    /// the middle of an attempt that reads, and the attempt before was refused, that refusal is the answer. A change
    /// may have been made then: its answer counts as lost.
    pub total_max: Duration,
    /// Longest time for one attempt; 15 s by default. It includes connecting, which may take 2 s: with a shorter time
    /// here or in `total_max`, a change that is asked of a silent host counts as lost, though nothing was sent. An
    /// attempt that waits for an instance which has left the cluster is given up sooner, once an answer has shown the
    /// client where the instances are (see *Routes* in [the crate's documentation](crate)).
    pub attempt_max: Duration,
    /// The first pause, before jitter; 200 ms by default. It doubles with each further one, and a random part of up to
    /// a half is left out. None is shorter than 100 ms.
    pub pause_initial: Duration,
    /// Longest pause; 500 ms by default. Where the instance that was asked last says how long to wait (`retry_after_ms`,
    /// or `Retry-After` in seconds; an hour at most), the pause is as long, and by up to a half of the usual one longer.
    pub pause_max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts_max: 8,
            total_max: Duration::from_secs(30),
            attempt_max: Duration::from_secs(15),
            pause_initial: Duration::from_millis(200),
            // A key that moves is noticed soon: this is what a caller loses in a failover.
            pause_max: Duration::from_millis(500),
        }
    }
}

impl Retry {
    /// Pause number `number` (from 1) of a call. `hint` is what the daemon asked for, and is never undercut;
    /// `dice`, 0.0 to 1.0, spreads callers that were refused together.
    pub(crate) fn pause(&self, number: u32, hint: Option<Duration>, dice: f64) -> Duration {
        let doublings = number.saturating_sub(1).min(20);
        let backoff = self.pause_initial.saturating_mul(1 << doublings).min(self.pause_max);
        let pause = match hint {
            Some(hint) => hint + backoff.mul_f64(0.5 * dice),
            None => backoff.mul_f64(0.5 + 0.5 * dice),
        };
        pause.max(PAUSE_MIN)
    }
}

/// The pauses of a client that keeps a connection open, before it connects again.
#[derive(Debug)]
pub(crate) struct Reconnects {
    bounds: Retry,
    /// Short or failed connections in a row.
    failed: u32,
}

impl Reconnects {
    /// With pauses of at most this.
    pub(crate) fn new(pause_max: Duration) -> Self {
        let pause_initial = RECONNECT_PAUSE_INITIAL.min(pause_max);
        Self { bounds: Retry { pause_initial, pause_max, ..Retry::default() }, failed: 0 }
    }

    /// The pause after a connection that held for so long and ended this way. `None` for one that failed to open, or that
    /// was refused or not answered when it was open: however long that took, it was no good one.
    pub(crate) fn pause(&mut self, held: Option<Duration>, error: &Error) -> Duration {
        let was_good = held.is_some_and(|held| held >= GOOD_AFTER);
        self.failed = if was_good { 1 } else { self.failed.saturating_add(1) };
        let hint = error.problem().and_then(|problem| problem.retry_after_ms).map(Duration::from_millis);
        self.bounds.pause(self.failed, hint.map(|hint| hint.min(self.bounds.pause_max)), rand::random())
    }
}

/// Which of so many instances a client turns to after this one: the next in turn, so that in the end all are asked. After one
/// that has served it, any other one by chance. Else all clients of an instance that stops went to the same one, and when all
/// instances had been restarted one after the other, all clients were there.
pub(crate) fn next_instance(at: usize, instances: usize, has_served: bool) -> usize {
    let others = instances.saturating_sub(1);
    let step = if has_served && others > 0 { rand::random_range(1..=others) } else { 1 };
    (at + step) % instances
}

/// Lasting refusals one after the other, of a client that keeps a connection open.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    was_let_in: bool,
    count: usize,
    since: Option<Instant>,
}

impl Refusals {
    /// An instance has let the client in.
    pub(crate) fn let_in(&mut self) {
        *self = Self { was_let_in: true, ..Self::default() };
    }

    /// Whether any instance ever let the client in.
    pub(crate) const fn was_let_in(&self) -> bool {
        self.was_let_in
    }

    /// A connection has failed, or was not opened: whether the client is refused for good. It is once all instances have
    /// refused it, one after the other; if it was let in before, once they have done so for [`REFUSED_FOR`].
    pub(crate) fn are_final(&mut self, is_refused: bool, now: Instant, instances: usize) -> bool {
        if !is_refused {
            *self = Self { was_let_in: self.was_let_in, ..Self::default() };
            return false;
        }
        self.count += 1;
        let since = *self.since.get_or_insert(now);
        self.count >= instances && (!self.was_let_in || now.duration_since(since) >= REFUSED_FOR)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_client_is_refused_once_all_instances_have_refused_it_and_later_once_they_did_for_a_while() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        assert!(!refusals.are_final(true, at(0), 2));
        assert!(!refusals.are_final(false, at(1), 2), "one is away");
        assert!(!refusals.are_final(true, at(2), 2));
        assert!(refusals.are_final(true, at(3), 2) && !refusals.was_let_in());
        refusals.let_in();
        for (seconds, is_final) in [(10, false), (15, false), (39, false), (40, true)] {
            assert_eq!(refusals.are_final(true, at(seconds), 2), is_final, "{seconds}");
        }
        assert!(!refusals.are_final(false, at(41), 2), "one is away");
        assert!(!refusals.are_final(true, at(42), 2) && refusals.was_let_in());
        assert!(refusals.are_final(true, at(72), 2));
        refusals.let_in();
        assert!(!refusals.are_final(true, at(73), 1), "it was let in since");
        assert!(!refusals.are_final(true, at(102), 1) && refusals.are_final(true, at(103), 1));
    }

    #[test]
    fn pauses_double_up_to_their_limit_and_are_spread_over_half_of_it() {
        let retry = Retry::default();
        let ms = |number, dice| retry.pause(number, None, dice).as_millis();
        assert_eq!((ms(1, 0.0), ms(1, 1.0)), (100, 200));
        assert_eq!((ms(2, 1.0), ms(3, 1.0), ms(4, 1.0)), (400, 500, 500));
        assert_eq!((ms(7, 0.0), ms(u32::MAX, 1.0)), (250, 500));
    }

    #[test]
    fn no_setting_and_no_hint_makes_a_call_hammer() {
        let eager = Retry { pause_initial: Duration::ZERO, pause_max: Duration::ZERO, ..Retry::default() };
        for hint in [None, Some(Duration::ZERO), Some(Duration::from_millis(1))] {
            assert_eq!(eager.pause(1, hint, 0.0), PAUSE_MIN);
        }
    }

    #[test]
    fn what_the_daemon_asks_for_is_never_undercut() {
        let retry = Retry::default();
        for number in [1, 2, 30] {
            for dice in [0.0, 0.5, 1.0] {
                assert!(retry.pause(number, Some(Duration::from_secs(3)), dice) >= Duration::from_secs(3));
            }
        }
    }

    #[test]
    fn pauses_between_connections_are_short_again_after_a_good_one() {
        let error = Error::Lost { url: String::new(), reason: String::new(), source: None };
        let mut reconnects = Reconnects::new(Duration::from_secs(5));
        let mut after = |held, times| (0..times).map(|_| reconnects.pause(held, &error)).last().unwrap();
        assert!(after(None, 1) <= Duration::from_millis(200));
        assert!(after(None, 9) >= Duration::from_millis(2_500));
        assert!(after(Some(Duration::ZERO), 1) >= Duration::from_millis(2_500));
        assert!(after(Some(GOOD_AFTER), 1) <= Duration::from_millis(200));
    }

    #[test]
    fn the_clients_of_an_instance_that_stops_go_to_all_others_and_those_that_nobody_lets_in_ask_all_in_turn()
    {
        let by_chance: BTreeSet<_> = (0..1_000).map(|_| next_instance(3, 5, true)).collect();
        assert_eq!(by_chance, BTreeSet::from([0, 1, 2, 4]));
        let in_turn: Vec<_> = (0..5).map(|at| next_instance(at, 5, false)).collect();
        assert_eq!(in_turn, [1, 2, 3, 4, 0]);
        assert_eq!([true, false].map(|has_served| next_instance(0, 1, has_served)), [0, 0]);
    }

    #[test]
    fn a_connection_that_is_refused_for_a_while_is_not_asked_for_sooner_nor_waited_for_beyond_the_bound() {
        let mut problem = wire::Problem::new(wire::Code::Draining, "later");
        problem.retry_after_ms = Some(3_000);
        let error = Error::Refused(Box::new(problem));
        assert!(Reconnects::new(Duration::from_secs(5)).pause(None, &error) >= Duration::from_secs(3));
        assert_eq!(Reconnects::new(Duration::ZERO).pause(None, &error), PAUSE_MIN);
    }
}
