//! Which instances want a notice of every finished job, because callers wait there. Each announces every few seconds whether it
//! does. An instance without a recent announcement gets all notices.

use std::time::{Duration, Instant};

use dashmap::DashMap;
use domain::InstanceId;
use parking_lot::Mutex;

use crate::jobs::limits::WANTED_FOR;

/// After the last caller that waited, the next one is likely to come within this time.
const WANTED_AFTER: Duration = Duration::from_secs(30);
/// The other instances receive an announcement within this time.
const RECEIVED_WITHIN: Duration = Duration::from_millis(200);
/// Where an announcement lists topics.
const ENDS: &str = "ends";
const NO_ENDS: &str = "no ends";

/// What another instance has listed among its topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// Its interest, after a long time without one: it may not have received this instance's announcement.
    First,
    /// Its interest.
    Again,
    /// Something else.
    Other,
}

#[derive(Default)]
pub(super) struct FinishInterest {
    here: Mutex<Here>,
    /// The last announcement of each other instance, and its time.
    others: DashMap<InstanceId, (bool, Instant)>,
}

/// The interest of this instance.
#[derive(Default)]
struct Here {
    /// Callers wait, or are likely to, until then.
    until: Option<Instant>,
    /// The time of the first announcement of it; `None` after one that takes it back.
    announced_at: Option<Instant>,
}

impl FinishInterest {
    /// Notes that a caller waits here for at most this time, and announces the interest unless that has been done. Returns
    /// whether the other instances may not have received the announcement yet.
    pub(super) fn caller_waits(
        &self,
        at_most: Duration,
        now: Instant,
        announce: impl FnOnce(&'static str),
    ) -> bool {
        let mut here = self.here.lock();
        here.until = here.until.max(Some(now + at_most + WANTED_AFTER));
        let announced_at = *here.announced_at.get_or_insert_with(|| {
            announce(ENDS);
            now
        });
        now.saturating_duration_since(announced_at) < RECEIVED_WITHIN
    }

    /// Announces whether this instance is interested.
    pub(super) fn repeat(&self, now: Instant, announce: impl FnOnce(&'static str)) {
        // Under the lock, so that the last announcement is the newest.
        let mut here = self.here.lock();
        let is_wanted = here.until.is_some_and(|until| now < until);
        here.announced_at = here.announced_at.filter(|_| is_wanted);
        announce(if is_wanted { ENDS } else { NO_ENDS });
    }

    /// Reads a topic that another instance has listed.
    pub(super) fn receive(&self, from: &InstanceId, topic: &str, now: Instant) -> Listed {
        let is_wanted = match topic {
            ENDS => true,
            NO_ENDS => false,
            _ => return Listed::Other,
        };
        match self.others.insert(from.clone(), (is_wanted, now)) {
            Some(_) => Listed::Again,
            None => Listed::First,
        }
    }

    /// Whether the other instance gets notices.
    pub(super) fn wants(&self, other: &InstanceId, now: Instant) -> bool {
        self.others.get(other).is_none_or(|last| last.0 || !is_recent(last.1, now))
    }

    /// Whether any instance has announced an interest recently, also one that the cluster view does not list.
    pub(super) fn any_wants(&self, now: Instant) -> bool {
        self.others.iter().any(|last| last.0 && is_recent(last.1, now))
    }

    /// Forgets old announcements.
    pub(super) fn sweep(&self, now: Instant) {
        self.others.retain(|_, (_, at)| is_recent(*at, now));
    }

    /// Announcements may have been lost: until the next ones all instances get notices.
    pub(super) fn missed(&self) {
        self.others.clear();
    }
}

fn is_recent(announced: Instant, now: Instant) -> bool {
    now.duration_since(announced) < WANTED_FOR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_spared_as_long_as_it_says_that_nobody_waits_there() {
        let (interest, now) = (FinishInterest::default(), Instant::now());
        let other = InstanceId::parse("other").unwrap();
        assert!(interest.wants(&other, now), "it has said nothing");
        assert_eq!(interest.receive(&other, "all", now), Listed::Other);
        assert!(interest.wants(&other, now));
        assert_eq!(interest.receive(&other, NO_ENDS, now), Listed::First);
        assert!(!interest.wants(&other, now) && !interest.any_wants(now));
        let late = now + WANTED_FOR;
        assert!(interest.wants(&other, late), "that was long ago");
        interest.missed();
        assert!(interest.wants(&other, now), "it may have changed its mind meanwhile");
        assert_eq!(interest.receive(&other, ENDS, now), Listed::First);
        assert!(interest.wants(&other, now) && interest.any_wants(now) && !interest.any_wants(late));
        assert_eq!(interest.receive(&other, NO_ENDS, now), Listed::Again);
        interest.sweep(late);
        assert!(interest.others.is_empty());
    }

    #[test]
    fn ends_are_wanted_from_the_first_caller_until_none_has_waited_for_long() {
        let (interest, now, second) = (FinishInterest::default(), Instant::now(), Duration::from_secs(1));
        let mut said = Vec::new();
        interest.repeat(now, |word| said.push(word));
        assert!(
            interest.caller_waits(second, now, |word| said.push(word)),
            "the others may not have heard it"
        );
        assert!(interest.caller_waits(second, now + RECEIVED_WITHIN / 2, |_| unreachable!("it was said")));
        assert!(!interest.caller_waits(second, now + second, |_| unreachable!("it was said")));
        interest.repeat(now + second + WANTED_AFTER, |word| said.push(word));
        let late = now + second * 2 + WANTED_AFTER;
        interest.repeat(late, |word| said.push(word));
        assert!(interest.caller_waits(second, late, |word| said.push(word)), "it is news again");
        assert_eq!(said, [NO_ENDS, ENDS, ENDS, NO_ENDS, ENDS]);
    }
}
