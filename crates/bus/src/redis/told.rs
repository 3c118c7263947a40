//! What the log has said of a failure that goes on: one line for its beginning, one for each other reason, one for its end.

use crate::Error;

/// Reasons of one failure that the log gets. Of a Cluster each server may give another one, in turn.
const REASONS_MAX: usize = 8;

/// The reasons that the log has told of a failure that has not ended.
#[derive(Debug, Default)]
pub(super) struct Told(Vec<String>);

impl Told {
    /// Whether this is to be told: nothing failed before, or for other reasons.
    pub(super) fn is_new(&mut self, error: &Error) -> bool {
        let reason = error.to_string();
        let is_new = self.0.len() < REASONS_MAX && !self.0.contains(&reason);
        if is_new {
            self.0.push(reason);
        }
        is_new
    }

    /// Nothing fails. Whether the end of a failure is to be told.
    pub(super) fn ends(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_when_it_begins_when_its_reason_changes_and_when_it_ends() {
        let [one, other] = ["one", "other"].map(|reason| Error::Address(reason.to_owned()));
        let mut told = Told::default();
        assert!(!told.ends(), "nothing has failed");
        assert_eq!([&one, &one, &other, &one].map(|error| told.is_new(error)), [true, false, true, false]);
        assert_eq!([told.ends(), told.ends()], [true, false]);
        assert!(told.is_new(&other), "it begins anew");
    }
}
