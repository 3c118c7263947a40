//! Which instances want to hear of the end of every job, since callers wait there. Each says now and then whether it does. One
//! that has not said so lately is told of all ends.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use domain::InstanceId;

use crate::jobs::limits::WANTED_FOR;

/// So long after the last caller that waited the next one is likely to come.
const WANTED_AFTER: Duration = Duration::from_secs(30);
/// So long it may take until the others have heard that callers wait.
const HEARD_WITHIN: Duration = Duration::from_millis(200);
/// Where an announcement lists topics.
const ENDS: &str = "ends";
const NO_ENDS: &str = "no ends";

/// What another instance has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Whether it wants ends, for the first time for long: it may not have heard what this instance says.
    First,
    /// Whether it wants ends.
    Again,
    /// Something else.
    Other,
}

#[derive(Default)]
pub(super) struct EndsWanted {
    here: Mutex<Here>,
    /// What each of the others said last, and when.
    said: DashMap<InstanceId, (bool, Instant)>,
}

/// What this instance wants.
#[derive(Default)]
struct Here {
    /// Ends are wanted until then.
    until: Option<Instant>,
    /// It was said that they are, at that time, and not taken back since.
    said_at: Option<Instant>,
}

impl EndsWanted {
    /// A caller waits here for so long at most. It is said if the others do not know that callers wait. Answers whether they may
    /// not have heard it yet.
    pub(super) fn caller_waits(
        &self,
        at_most: Duration,
        now: Instant,
        say: impl FnOnce(&'static str),
    ) -> bool {
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        here.until = here.until.max(Some(now + at_most + WANTED_AFTER));
        let said_at = *here.said_at.get_or_insert_with(|| {
            say(ENDS);
            now
        });
        now.saturating_duration_since(said_at) < HEARD_WITHIN
    }

    /// Says whether they are wanted.
    pub(super) fn repeat(&self, now: Instant, say: impl FnOnce(&'static str)) {
        // What is said is said under the lock: the last word is the newest.
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        let is_wanted = here.until.is_some_and(|until| now < until);
        here.said_at = here.said_at.filter(|_| is_wanted);
        say(if is_wanted { ENDS } else { NO_ENDS });
    }

    /// Another instance says this among its topics.
    pub(super) fn hear(&self, from: &InstanceId, said: &str, now: Instant) -> Heard {
        let is_wanted = match said {
            ENDS => true,
            NO_ENDS => false,
            _ => return Heard::Other,
        };
        match self.said.insert(from.clone(), (is_wanted, now)) {
            Some(_) => Heard::Again,
            None => Heard::First,
        }
    }

    /// Whether the other instance is to be told of ends.
    pub(super) fn wants(&self, other: &InstanceId, now: Instant) -> bool {
        let is_spared = |said: &(bool, Instant)| !said.0 && now.duration_since(said.1) < WANTED_FOR;
        !self.said.get(other).is_some_and(|said| is_spared(&said))
    }

    /// Whether any instance has said lately that it wants them, be it known otherwise or not.
    pub(super) fn any_wants(&self, now: Instant) -> bool {
        self.said.iter().any(|said| said.0 && now.duration_since(said.1) < WANTED_FOR)
    }

    /// Forgets what was said long ago.
    pub(super) fn sweep(&self, now: Instant) {
        self.said.retain(|_, (_, at)| now.duration_since(*at) < WANTED_FOR);
    }

    /// Something that was said may not have been heard.
    pub(super) fn missed(&self) {
        self.said.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_spared_as_long_as_it_says_that_nobody_waits_there() {
        let (ends, now) = (EndsWanted::default(), Instant::now());
        let other = InstanceId::parse("other").unwrap();
        assert!(ends.wants(&other, now), "it has said nothing");
        assert_eq!(ends.hear(&other, "all", now), Heard::Other);
        assert!(ends.wants(&other, now));
        assert_eq!(ends.hear(&other, NO_ENDS, now), Heard::First);
        assert!(!ends.wants(&other, now) && !ends.any_wants(now));
        let late = now + WANTED_FOR;
        assert!(ends.wants(&other, late), "that was long ago");
        ends.missed();
        assert!(ends.wants(&other, now), "it may have changed its mind meanwhile");
        assert_eq!(ends.hear(&other, ENDS, now), Heard::First);
        assert!(ends.wants(&other, now) && ends.any_wants(now) && !ends.any_wants(late));
        assert_eq!(ends.hear(&other, NO_ENDS, now), Heard::Again);
        ends.sweep(late);
        assert!(ends.said.is_empty());
    }

    #[test]
    fn ends_are_wanted_from_the_first_caller_until_none_has_waited_for_long() {
        let (ends, now, second) = (EndsWanted::default(), Instant::now(), Duration::from_secs(1));
        let mut said = Vec::new();
        ends.repeat(now, |word| said.push(word));
        assert!(ends.caller_waits(second, now, |word| said.push(word)), "the others may not have heard it");
        assert!(ends.caller_waits(second, now + HEARD_WITHIN / 2, |_| unreachable!("it was said")));
        assert!(!ends.caller_waits(second, now + second, |_| unreachable!("it was said")));
        ends.repeat(now + second + WANTED_AFTER, |word| said.push(word));
        let late = now + second * 2 + WANTED_AFTER;
        ends.repeat(late, |word| said.push(word));
        assert!(ends.caller_waits(second, late, |word| said.push(word)), "it is news again");
        assert_eq!(said, [NO_ENDS, ENDS, ENDS, NO_ENDS, ENDS]);
    }
}
