//! The addresses to which the client sends nothing directly for a while. Pure: the time is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use reqwest::Url;

/// How long an instance is avoided after its first failure.
const AVOIDED_FOR_MIN: Duration = Duration::from_secs(2);
/// The longest time for which an instance is avoided.
const AVOIDED_FOR_MAX: Duration = Duration::from_secs(60);

/// Addresses that failed and have not answered since.
#[derive(Debug, Default)]
pub(crate) struct Avoided {
    urls: HashMap<Url, Term>,
}

#[derive(Debug)]
struct Term {
    until: Instant,
    length: Duration,
}

impl Avoided {
    /// Whether a request may go to this address. When the time of an avoided address is over, one call gets
    /// `true` and must try the address for all. The others avoid it for twice as long as before, or until it
    /// has answered.
    pub(crate) fn may_try(&mut self, url: &Url, now: Instant) -> bool {
        let Some(term) = self.urls.get_mut(url) else { return true };
        if now < term.until {
            return false;
        }
        term.length = (term.length * 2).min(AVOIDED_FOR_MAX);
        term.until = now + term.length;
        true
    }

    /// A request to the address failed. Changes nothing if the address is avoided already.
    pub(crate) fn failed(&mut self, url: &Url, now: Instant) {
        if !self.urls.contains_key(url) {
            let length = AVOIDED_FOR_MIN;
            self.urls.insert(url.clone(), Term { until: now + length, length });
        }
    }

    /// The address answered.
    pub(crate) fn answered(&mut self, url: &Url) {
        self.urls.remove(url);
    }

    /// Forgets all addresses but these.
    pub(crate) fn keep(&mut self, is_known: impl Fn(&Url) -> bool) {
        self.urls.retain(|url, _| is_known(url));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_keeps_failing_is_tried_ever_less_often_and_by_one_call_at_a_time() {
        let (mut avoided, url) = (Avoided::default(), Url::parse("http://h").unwrap());
        let mut now = Instant::now();
        assert!(avoided.may_try(&url, now));
        let mut lengths = Vec::new();
        for _ in 0..7 {
            // Those that were under way together fail together.
            avoided.failed(&url, now);
            avoided.failed(&url, now);
            let since = now;
            while !avoided.may_try(&url, now) {
                now += Duration::from_secs(1);
            }
            assert!(!avoided.may_try(&url, now), "one is enough");
            lengths.push((now - since).as_secs());
        }
        assert_eq!(lengths, [2, 4, 8, 16, 32, 60, 60]);
        avoided.answered(&url);
        assert!(avoided.may_try(&url, now) && avoided.may_try(&url, now));
        avoided.failed(&url, now);
        assert!(!avoided.may_try(&url, now + Duration::from_millis(1_999)));
        assert!(avoided.may_try(&url, now + AVOIDED_FOR_MIN), "it begins anew");
    }

    #[test]
    fn addresses_that_nobody_advertises_any_more_are_forgotten() {
        let mut avoided = Avoided::default();
        let (gone, here) = (Url::parse("http://gone").unwrap(), Url::parse("http://here").unwrap());
        let now = Instant::now();
        avoided.failed(&gone, now);
        avoided.failed(&here, now);
        avoided.keep(|url| *url == here);
        assert!(avoided.may_try(&gone, now) && !avoided.may_try(&here, now));
    }
}
