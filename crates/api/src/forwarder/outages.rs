//! The instances at which forwarded requests fail: the log has one line for each of them and each reason, and one for the end,
//! however many requests fail meanwhile. Whether an instance accepts a request depends on the caller, so that outage is the
//! caller's own.

use std::collections::HashMap;
use std::time::Instant;

use domain::InstanceId;
use parking_lot::Mutex;

use crate::limits::{OUTAGES_MAX, OWNER_ANSWERS_AFTER};

/// Why a forwarded request failed at its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The owner is advertised under another scheme.
    OtherScheme,
    /// The owner did not accept the request.
    Distrusted,
    /// There is no connection to the owner.
    Unreachable,
    /// Another instance answered at the owner's address.
    Mistaken,
    /// The owner did not answer.
    Unanswered,
    /// The owner left the cluster.
    Left,
}

/// What the log has told of owners that fail.
#[derive(Default)]
pub struct Outages(Mutex<HashMap<Whose, Outage>>);

/// An owner; and the name of a caller that it does not accept, or `None` for what fails for all callers.
type Whose = (InstanceId, Option<String>);

/// What the log has told of one.
struct Outage {
    told: Vec<Failure>,
    failed_at: Instant,
}

impl Outages {
    /// Notes a failure of a caller's request. Whether it is to be told: it is the first one of its kind in this outage.
    pub fn is_news(&self, owner: &InstanceId, caller: &str, failure: Failure, now: Instant) -> bool {
        let mut outages = self.0.lock();
        let whose = (owner.clone(), (failure == Failure::Distrusted).then(|| caller.to_owned()));
        if outages.len() >= OUTAGES_MAX && !outages.contains_key(&whose) {
            outages.clear();
        }
        let outage = outages.entry(whose).or_insert_with(|| Outage { told: Vec::new(), failed_at: now });
        outage.failed_at = now;
        let is_news = !outage.told.contains(&failure);
        if is_news {
            outage.told.push(failure);
        }
        is_news
    }

    /// Notes an answer to a caller. Whether it ends an outage: an owner that answers some requests, and others not, fails
    /// still.
    pub fn is_end(&self, owner: &InstanceId, caller: &str, now: Instant) -> bool {
        let mut outages = self.0.lock();
        let before = outages.len();
        outages.retain(|(failing, only), outage| {
            let is_answered = failing == owner && only.as_deref().is_none_or(|only| only == caller);
            !is_answered || now.duration_since(outage.failed_at) < OWNER_ANSWERS_AFTER
        });
        outages.len() < before
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_failure_is_told_once_for_each_owner_and_reason_until_the_owner_answers_again() {
        let outages = Outages::default();
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        let [one, other] = ["one-1", "other-1"].map(|id| InstanceId::parse(id).unwrap());
        assert!(outages.is_news(&one, "", Failure::Unreachable, begun));
        assert!(!outages.is_news(&one, "", Failure::Unreachable, after(1)));
        assert!(outages.is_news(&one, "", Failure::Unanswered, after(1)), "another reason");
        assert!(outages.is_news(&other, "", Failure::Unreachable, after(1)), "another owner");
        assert!(!outages.is_end(&one, "", after(2)), "it fails still");
        assert!(!outages.is_news(&one, "", Failure::Unreachable, after(1_000)));
        let well = OWNER_ANSWERS_AFTER.as_millis() as u64;
        assert!(!outages.is_end(&one, "", after(999 + well)));
        assert!(outages.is_end(&one, "", after(1_000 + well)));
        assert!(!outages.is_end(&one, "", after(1_001 + well)), "it is told once");
        assert!(outages.is_news(&one, "", Failure::Unreachable, after(1_002 + well)), "it fails anew");
        assert!(
            !outages.is_news(&other, "", Failure::Unreachable, after(1_002 + well)),
            "it has not answered"
        );
    }

    #[test]
    fn a_caller_whom_an_owner_does_not_accept_is_told_once_whatever_others_are_answered() {
        let outages = Outages::default();
        let begun = Instant::now();
        let one = InstanceId::parse("one-1").unwrap();
        assert!(outages.is_news(&one, "unknown", Failure::Distrusted, begun));
        assert!(outages.is_news(&one, "strange", Failure::Distrusted, begun), "another caller");
        assert!(outages.is_news(&one, "unknown", Failure::Unreachable, begun), "another reason");
        let well = begun + OWNER_ANSWERS_AFTER;
        assert!(outages.is_end(&one, "known", well), "it is there again");
        assert!(!outages.is_end(&one, "known", well), "it is told once");
        assert!(!outages.is_news(&one, "unknown", Failure::Distrusted, well), "it was not answered");
        assert!(outages.is_end(&one, "strange", well), "it is accepted");
        assert!(!outages.is_end(&one, "unknown", well), "it was refused at that moment");
        assert!(outages.is_end(&one, "unknown", well + OWNER_ANSWERS_AFTER));
    }

    #[test]
    fn owners_that_never_answer_again_are_forgotten() {
        let outages = Outages::default();
        for number in 0..=OUTAGES_MAX {
            let owner = InstanceId::parse(&format!("owner-{number}")).unwrap();
            assert!(outages.is_news(&owner, "", Failure::Left, Instant::now()));
        }
        assert_eq!(outages.0.lock().len(), 1);
    }
}
