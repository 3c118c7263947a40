//! Sessions: one client's conversation, whose jobs have places, and what was asked of it.

use crate::TenantId;
use crate::job::Requirements;
use crate::named::named;

named!(
    /// In which order a session's jobs run, and in which their results are given.
    #[derive(Default)]
    Ordering, "ordering" {
        /// One job at a time: the next is dispatched when the one before it has ended.
        #[default]
        Strict = "strict",
        /// Jobs run side by side; their results are put back in the order of their places.
        Results = "results",
        /// Jobs run side by side; each result is given as it comes.
        Free = "none",
    }
);

/// What was asked of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// On whose behalf.
    pub tenant: Option<TenantId>,
    /// Who may run its jobs.
    pub needs: Requirements,
    /// In which order.
    pub ordering: Ordering,
    /// After how long without anything happening it is closed, in milliseconds.
    pub idle_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orderings_read_back_what_they_print() {
        for ordering in Ordering::ALL.iter().copied() {
            assert_eq!(Ordering::parse(ordering.as_str()), Ok(ordering));
        }
        assert_eq!(Ordering::default(), Ordering::Strict);
        let refusal = Ordering::parse("Strict").unwrap_err();
        assert_eq!(refusal.to_string(), "ordering must be one of strict, results, none");
    }
}
