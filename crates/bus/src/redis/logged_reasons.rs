//! What the log has said of a failure that goes on: one line for its beginning, one for each other reason, one for its end.

use crate::Error;

/// Reasons of one failure that the log gets. Each server of a Cluster may give another one, in turn.
const REASONS_MAX: usize = 8;

/// The reasons that the log has told of a failure that has not ended.
#[derive(Debug, Default)]
pub(super) struct LoggedReasons(Vec<String>);

impl LoggedReasons {
    /// Whether the log is to name this failure: nothing failed before, or only for other reasons. Notes its reason.
    pub(super) fn is_new(&mut self, error: &Error) -> bool {
        let reason = error.to_string();
        let is_new = self.0.len() < REASONS_MAX && !self.0.contains(&reason);
        if is_new {
            self.0.push(reason);
        }
        is_new
    }

    /// Nothing fails any more. Whether the log is to name the end of a failure.
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
        let mut logged = LoggedReasons::default();
        assert!(!logged.ends(), "nothing has failed");
        assert_eq!([&one, &one, &other, &one].map(|error| logged.is_new(error)), [true, false, true, false]);
        assert_eq!([logged.ends(), logged.ends()], [true, false]);
        assert!(logged.is_new(&other), "it begins anew");
    }
}
