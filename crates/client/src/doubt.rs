//! What a change ends with of which an earlier attempt may have been carried out. Pure.

use crate::Error;

/// The attempts at one change that failed and may have been carried out. A call of this library has one for its own attempts; a
/// caller that repeats a call has one for its calls.
#[derive(Debug, Default)]
pub struct Doubt(Option<First>);

/// The first such attempt, or the first one without an answer.
#[derive(Debug)]
struct First {
    /// Where it went.
    url: String,
    /// What became of its answer.
    reason: String,
    /// Whether that was a refusal.
    is_refusal: bool,
}

impl Doubt {
    /// An attempt has failed. `url` is where a refusal came from; the other failures name it.
    pub fn note(&mut self, error: &Error, url: impl FnOnce() -> String) {
        let is_refusal = error.problem().is_some();
        // An answer that was lost says less than any refusal.
        let is_first = self.0.as_ref().is_none_or(|first| first.is_refusal && !is_refusal);
        if !is_first || !error.may_be_done() {
            return;
        }
        let (url, reason) = match error {
            Error::Lost { url, reason, .. } => (url.clone(), reason.clone()),
            Error::Unexpected { url, status, reason } => {
                (url.clone(), format!("HTTP status {status}: {reason}"))
            }
            other => (url(), other.to_string()),
        };
        self.0 = Some(First { url, reason, is_refusal });
    }

    /// What the change ends with. The last failure may prove that the last attempt changed nothing. It proves nothing of an
    /// earlier attempt without an answer, which may even be carried out later.
    #[must_use]
    pub fn over(self, last: Error) -> Error {
        let says_so = |first: &First| match &last {
            Error::Lost { .. } => true,
            Error::Unexpected { .. } => last.may_be_done(),
            last => first.is_refusal && last.may_be_done(),
        };
        match self.0 {
            Some(first) if !says_so(&first) => {
                let reason = format!("{}; then {last}", first.reason);
                Error::Lost { url: first.url, reason, source: Some(last.into()) }
            }
            _ => last,
        }
    }
}
