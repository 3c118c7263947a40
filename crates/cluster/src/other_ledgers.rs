//! The instances on this bus that have another ledger with this ledger's id: one of the two is a copy of the other, and both are
//! served. By each of them the instances of the other are dead, or unknown, while they live.
//!
//! Each instance says every few seconds that it is here, if it lives by its ledger, which it has just read. So one that has
//! only lost its way to the ledger says nothing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bus::Event;
use domain::InstanceId;

/// How long an instance counts as here after it has said so: for as long as it says so three times.
const HERE_FOR: Duration = Duration::from_secs(15);
/// An instance must say that it is here so long after the look that found it to have ended, or later. What comes before may be
/// late: an instance that waited for its ledger hears at once all that was said meanwhile, also by those that have ended since,
/// and what an instance says may wait for its network.
const SAID_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Instances that are remembered. Further ones are passed over.
const HEARD_MAX: usize = 10_000;

/// What was heard, and what the last look made of it. Pure.
#[derive(Clone, Debug, Default)]
pub(crate) struct OtherLedgers {
    /// Those that have said that they are here, each with when it did so last.
    heard: HashMap<InstanceId, Instant>,
    /// Those of them that did not live by this ledger at the last look, each with when the first look was that found it so.
    ended: HashMap<InstanceId, Instant>,
}

impl OtherLedgers {
    /// Takes a notice of an instance that is here.
    pub(crate) fn hear(&mut self, event: &Event, now: Instant) {
        let Event::Message(notice) = event else { return };
        let id = std::str::from_utf8(notice).ok().and_then(|id| InstanceId::parse(id).ok());
        if let Some(id) = id.filter(|id| self.heard.len() < HEARD_MAX || self.heard.contains_key(id)) {
            self.heard.insert(id, now);
        }
    }

    /// Looks at who is here, given which instances may live by this ledger. Answers those that do not and have said again that
    /// they are here so long after an earlier look found that, in order: one that has just ended says nothing more.
    pub(crate) fn look(&mut self, may_live: impl Fn(&InstanceId) -> bool, now: Instant) -> Vec<InstanceId> {
        self.heard.retain(|_, at| now.saturating_duration_since(*at) < HERE_FOR);
        let before = std::mem::take(&mut self.ended);
        let mut others = Vec::new();
        for (id, at) in self.heard.iter().filter(|(id, _)| !may_live(id)) {
            let found_at = before.get(id).copied().unwrap_or(now);
            self.ended.insert(id.clone(), found_at);
            if at.saturating_duration_since(found_at) >= SAID_AGAIN_AFTER {
                others.push(id.clone());
            }
        }
        others.sort_unstable();
        others
    }
}

/// What is wrong where these are here, in a sentence; nothing where nobody is.
pub(crate) fn named(others: &[InstanceId]) -> Option<String> {
    let ids: Vec<_> = others.iter().map(InstanceId::as_str).collect();
    (!ids.is_empty()).then(|| {
        format!(
            "instances of another ledger with the id of this one are on this bus: {}; one of the two ledgers is a copy of the \
             other: stop the copy's instances, or start them with a Redis of their own, or with another bus.key_prefix",
            ids.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> InstanceId {
        InstanceId::parse(name).unwrap()
    }

    fn says(others: &mut OtherLedgers, name: &str, at: Instant) {
        others.hear(&Event::Message(name.as_bytes().into()), at);
    }

    #[test]
    fn who_says_again_that_it_is_here_after_it_was_found_to_have_ended_has_another_ledger() {
        let (mut others, begun, second) = (OtherLedgers::default(), Instant::now(), Duration::from_secs(1));
        let lives = |id: &InstanceId| id.as_str() == "lives-1";
        for name in ["b-1", "a-1", "ends-1", "lives-1"] {
            says(&mut others, name, begun);
        }
        for after in [1, 2] {
            assert_eq!(others.look(lives, begun + second * after), [], "they may have ended since");
        }
        for name in ["b-1", "a-1", "lives-1"] {
            says(&mut others, name, begun + second * 6);
        }
        assert_eq!(others.look(lives, begun + second * 7), [id("a-1"), id("b-1")]);
        assert_eq!(others.look(|_| true, begun + second * 8), [], "they have joined this ledger's instances");
        assert_eq!(others.look(lives, begun + second * 9), [], "that counts from the look on that finds it");
        says(&mut others, "a-1", begun + second * 14);
        assert_eq!(others.look(lives, begun + second * 15), [id("a-1")]);
        assert_eq!(others.look(lives, begun + second * 14 + HERE_FOR), [], "it is silent");
        assert!(others.heard.is_empty() && others.ended.is_empty());
    }

    #[test]
    fn what_an_instance_said_before_it_ended_and_is_heard_late_says_nothing_of_another_ledger() {
        let (mut others, begun, second) = (OtherLedgers::default(), Instant::now(), Duration::from_secs(1));
        says(&mut others, "ends-1", begun);
        assert_eq!(others.look(|_| false, begun + second), []);
        for late in [1, 2, 5] {
            says(&mut others, "ends-1", begun + second * late);
            assert_eq!(others.look(|_| false, begun + second * late), [], "{late}");
        }
    }

    #[test]
    fn what_is_no_notice_of_an_instance_is_passed_over_and_no_more_than_the_limit_is_kept() {
        let (mut others, now) = (OtherLedgers::default(), Instant::now());
        others.hear(&Event::Resumed, now);
        for notice in [&b""[..], b"a b", b"\xff"] {
            others.hear(&Event::Message(notice.into()), now);
        }
        assert!(others.heard.is_empty(), "{others:?}");
        for number in 0..=HEARD_MAX {
            says(&mut others, &format!("a-{number}"), now);
        }
        assert_eq!(others.heard.len(), HEARD_MAX);
        let later = now + Duration::from_secs(1);
        says(&mut others, "a-0", later);
        assert_eq!(others.heard[&id("a-0")], later);
    }

    #[test]
    fn the_sentence_names_all_of_them_and_says_what_to_set() {
        assert_eq!(named(&[]), None);
        let said = named(&[id("a-1"), id("b-1")]).unwrap();
        assert!(said.contains(": a-1, b-1;") && said.contains("bus.key_prefix"), "{said}");
    }
}
