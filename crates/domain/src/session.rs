//! Sessions: one client's conversation, whose jobs have places, and what was asked of it.

use crate::id::Invalid;
use crate::job::Requirements;

/// In which order a session's jobs run, and in which their results are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ordering {
    /// One job at a time: the next is dispatched when the one before it has ended.
    #[default]
    Strict,
    /// Jobs run side by side; their results are put back in the order of their places.
    Results,
    /// Jobs run side by side; each result is given as it comes.
    Free,
}

impl Ordering {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Strict, Self::Results, Self::Free];

    /// The name that tables and answers show.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Results => "results",
            Self::Free => "none",
        }
    }

    /// Reads the name.
    ///
    /// # Errors
    /// [`Invalid`], naming the three.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        Self::ALL.into_iter().find(|ordering| ordering.as_str() == text).ok_or_else(|| Invalid {
            what: "ordering",
            expected: format!("one of {}", Self::ALL.map(Self::as_str).join(", ")),
        })
    }
}

/// What was asked of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
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
        for ordering in Ordering::ALL {
            assert_eq!(Ordering::parse(ordering.as_str()), Ok(ordering));
        }
        assert_eq!(Ordering::default(), Ordering::Strict);
        let refusal = Ordering::parse("Strict").unwrap_err();
        assert_eq!(refusal.to_string(), "ordering must be one of strict, results, none");
    }
}
