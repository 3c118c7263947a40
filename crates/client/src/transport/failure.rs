//! What the failure of an attempt says about the next one.

use std::time::Duration;

use reqwest::Url;
use wire::{Code, Problem};

use super::RETRY_AFTER_S_MAX;
use crate::Error;
use crate::base_url::{self, shown};
use crate::error::is_no_http;

/// An attempt that failed, and what it says about the next one.
pub(super) struct Failure {
    pub(super) error: Error,
    /// The shortest time before the next try.
    pub(super) hint: Option<Duration>,
    /// Whether another instance may succeed now.
    pub(super) elsewhere: bool,
    /// The owner of the key, where the instance asked is not.
    pub(super) owner: Option<Url>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, hint: None, elsewhere: false, owner: None }
    }
}

impl Failure {
    /// No answer came. Another instance may be there.
    pub(super) const fn unanswered(error: Error) -> Self {
        Self { error, hint: None, elsewhere: true, owner: None }
    }

    pub(super) fn unexpected(base: &Url, status: u16, reason: String, hint: Option<Duration>) -> Self {
        let error = Error::Unexpected { url: shown(base), status, reason };
        Self { error, hint, elsewhere: status >= 500, owner: None }
    }

    pub(super) fn refused(problem: Problem, header: Option<Duration>) -> Self {
        // Of the two the body is the finer one: the header counts in whole seconds.
        let hint = problem.retry_after_ms.map(Duration::from_millis).or(header);
        let hint = hint.map(|hint| hint.min(Duration::from_secs(RETRY_AFTER_S_MAX)));
        let elsewhere = match problem.known_code() {
            Some(Code::Draining | Code::LedgerUnavailable | Code::Fenced) => true,
            // Another machine has another clock, and any instance serves.
            Some(Code::ClockBehind) => true,
            // For want of a worker number: other instances have one each. Any instance would say that a sequence is at its end.
            Some(Code::Exhausted) => problem.retry_after_ms.is_some(),
            // Every other instance forwards it to the same owner: further requests would only add to its load
            // (`overloaded`), or come before the key has moved (`not_owner`, `lease_held`).
            Some(_) | None => false,
        };
        let owner = match problem.known_code() {
            Some(Code::NotOwner) => problem.owner_url.as_deref().and_then(|url| base_url::parse(url).ok()),
            _ => None,
        };
        Self { error: Error::Refused(Box::new(problem)), hint, elsewhere, owner }
    }

    /// Whether it is a failure that occurs during a failover, a restart or a hand-off: no instance there, no
    /// owner of the key yet, or no ledger.
    pub(super) fn is_moving(&self) -> bool {
        match &self.error {
            Error::Unreachable { .. } | Error::Lost { .. } => true,
            // A proxy without anybody behind it.
            Error::Unexpected { status, .. } => matches!(status, 502..=504),
            Error::Refused(problem) => match problem.known_code() {
                Some(
                    Code::NotOwner
                    | Code::LeaseHeld
                    | Code::LedgerUnavailable
                    | Code::Draining
                    | Code::Fenced,
                ) => true,
                Some(_) | None => false,
            },
            Error::Unusable(_) => false,
        }
    }

    /// Whether nobody was reached who speaks HTTP: the URL may be wrong.
    pub(super) fn is_nobody(&self) -> bool {
        match &self.error {
            Error::Unreachable { .. } => true,
            Error::Lost { source: Some(source), .. } => is_no_http(&**source),
            Error::Lost { source: None, .. }
            | Error::Refused(_)
            | Error::Unexpected { .. }
            | Error::Unusable(_) => false,
        }
    }

    /// Whether the instance is down, or is going: nothing is sent straight to it for a while. One that refuses for another
    /// reason, such as a ledger that is away, is there.
    pub(super) fn is_down(&self) -> bool {
        match &self.error {
            Error::Unreachable { .. } | Error::Lost { .. } => true,
            Error::Unexpected { status, .. } => *status >= 500,
            Error::Refused(problem) => problem.known_code() == Some(Code::Draining),
            Error::Unusable(_) => false,
        }
    }

    /// Combines this failure with the `next` one, of another instance. An answer, or a request that may have
    /// been carried out, outweighs an instance that could not be reached.
    pub(super) fn then(self, next: Self) -> Self {
        let unreachable = |failure: &Self| matches!(failure.error, Error::Unreachable { .. });
        if unreachable(&next) && !unreachable(&self) { Self { hint: next.hint, ..self } } else { next }
    }

    /// Combines this failure with the one before it, if there is one.
    pub(super) fn after(self, before: Option<Self>) -> Self {
        match before {
            Some(before) => before.then(self),
            None => self,
        }
    }
}
