//! What an operator changes, for the audit.

use std::sync::Arc;

/// One change by an operator. It is written in the same commit as the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// The name of the token; empty without tokens.
    pub principal: Arc<str>,
    /// What was done, such as `set_policy`.
    pub action: &'static str,
    /// To what: its kind and name, such as `signer:x`.
    pub subject: String,
    /// How it was.
    pub before: Option<String>,
    /// How it is.
    pub after: Option<String>,
    /// Why, in the operator's words.
    pub reason: Option<Arc<str>>,
    /// The id of the request.
    pub request_id: Option<Arc<str>>,
}

impl AuditEntry {
    /// A change of which no more is known.
    #[must_use]
    pub fn new(principal: &str, action: &'static str, subject: impl Into<String>) -> Self {
        let (principal, subject) = (principal.into(), subject.into());
        Self { principal, action, subject, before: None, after: None, reason: None, request_id: None }
    }

    /// The same with what was changed.
    #[must_use]
    pub fn changed(&self, before: impl Into<Option<String>>, after: impl Into<Option<String>>) -> Self {
        Self { before: before.into(), after: after.into(), ..self.clone() }
    }
}
