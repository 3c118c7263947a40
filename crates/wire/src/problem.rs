//! Refusals: one table of stable codes, and the body that carries them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::health::Check;
use crate::strict::words;

/// The media type of every refusal.
pub const MEDIA_TYPE: &str = "application/problem+json";

words! {
    /// The kind of a refusal. Codes are stable, so that programs can branch on them.
    #[non_exhaustive]
    pub enum Code {
        /// The request is not valid; `detail` says what is wrong, and what is allowed.
        Invalid = "invalid",
        /// No bearer token, or an unknown one.
        Unauthorized = "unauthorized",
        /// The token lacks the scope, or a web page of another site sent the request to a daemon without tokens.
        Forbidden = "forbidden",
        /// The resource that the request names does not exist.
        NotFound = "not_found",
        /// This path does not take this method; `Allow` says which it takes.
        MethodNotAllowed = "method_not_allowed",
        /// The hold is not the nonce's last one. Of a grant that is repeated under its idempotency key: one of its holds was
        /// settled, or has expired; `granted_before` has the nonces and the holds.
        StaleHold = "stale_hold",
        /// The hold is the nonce's last one, but the nonce is CONSUMED already, and this settlement differs.
        AlreadySettled = "already_settled",
        /// Another instance owns the key: ask it at `owner_url`, or again here later.
        NotOwner = "not_owner",
        /// The request contradicts the present state.
        Conflict = "conflict",
        /// Another task has the lock of a tenant. `tenant`, `task` and `plan` name the tenant, that task and its plan; a
        /// caller that does not see the task gets `tenant` alone.
        TenantLocked = "tenant_locked",
        /// A stage is UNKNOWN, and nobody has resolved it. `task` and `stage` name it.
        StageUnknown = "stage_unknown",
        /// The task runs, or waits for its turn.
        StillRunning = "still_running",
        /// A corrected definition changes a stage that is completed.
        DefinitionChanged = "definition_changed",
        /// The body, a part of it, or the head is longer than this daemon takes.
        TooLarge = "too_large",
        /// The body is not `application/json`.
        UnsupportedMediaType = "unsupported_media_type",
        /// The idempotency key (of a session's job without one, its `ref`) was used for another request.
        KeyReused = "key_reused",
        /// The signer's window is full. A grant of more nonces than the whole window has carries neither `Retry-After` nor
        /// `retry_after_ms`, although the code is retryable: no wait makes room for it.
        WindowFull = "window_full",
        /// Too many requests are waiting.
        Overloaded = "overloaded",
        /// A defect of the daemon, counted and logged under the request id.
        Internal = "internal",
        /// Another instance has the lease: `owner` and `owner_url` name the instance, `expires_in_ms` the time that is
        /// left.
        LeaseHeld = "lease_held",
        /// The ledger did not answer in time, or the owner of the key was lost with the request that was forwarded to it.
        /// `detail` says which, and whether anything may have been written: then the request is safe to send again under the
        /// same idempotency key, and one that takes a key and had none may be done twice.
        LedgerUnavailable = "ledger_unavailable",
        /// The request needs the bus (Redis), and this instance is configured without one. (One that is away refuses nothing.)
        BusUnavailable = "bus_unavailable",
        /// This instance is stopping.
        Draining = "draining",
        /// The lease was taken over while the request was served; nothing was written.
        Fenced = "fenced",
        /// Too few numbers are left: for this signer, tag or sequence, or no worker number for this instance. A worker number
        /// may come free: a refusal for want of one carries `Retry-After` and `retry_after_ms`, although the code is not
        /// retryable.
        Exhausted = "exhausted",
        /// This instance cannot make a snowflake without the risk of a duplicate: its clock is behind ids
        /// that may have been issued, or differs from the database's. Another instance may serve.
        ClockBehind = "clock_behind",
        /// The ledger is behind what this instance knew of it, as after a restored backup: nothing is granted until an
        /// operator runs `fencepost recover`.
        LedgerWentBack = "ledger_went_back",
        /// The ledger was recovered, and nobody has confirmed the signer's next nonce since.
        Recovering = "recovering",
    }
}

impl Code {
    /// The HTTP status of the code.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::StaleHold
            | Self::AlreadySettled
            | Self::NotOwner
            | Self::Conflict
            | Self::TenantLocked
            | Self::StageUnknown
            | Self::StillRunning
            | Self::DefinitionChanged => 409,
            Self::TooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::KeyReused => 422,
            Self::WindowFull | Self::Overloaded => 429,
            Self::Internal => 500,
            Self::LeaseHeld
            | Self::LedgerUnavailable
            | Self::BusUnavailable
            | Self::Draining
            | Self::Fenced
            | Self::Exhausted
            | Self::ClockBehind
            | Self::LedgerWentBack
            | Self::Recovering => 503,
        }
    }

    /// A short text for people, the same for every occurrence.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Invalid => "The request is not valid",
            Self::Unauthorized => "A valid bearer token is needed",
            Self::Forbidden => "The caller may not do this",
            Self::NotFound => "It does not exist",
            Self::MethodNotAllowed => "The path does not take this method",
            Self::StaleHold => "The hold is not the nonce's last one",
            Self::AlreadySettled => "The nonce is settled already",
            Self::NotOwner => "Another instance owns the key",
            Self::Conflict => "The request contradicts the present state",
            Self::TenantLocked => "Another task has the lock of a tenant",
            Self::StageUnknown => "A stage is UNKNOWN and not resolved",
            Self::StillRunning => "The task still runs",
            Self::DefinitionChanged => "The definition changes a completed stage",
            Self::TooLarge => "The request is too large",
            Self::UnsupportedMediaType => "The body must be application/json",
            Self::KeyReused => "The idempotency key was used for another request",
            Self::WindowFull => "The signer's window is full",
            Self::Overloaded => "Too many requests are waiting",
            Self::Internal => "A defect of the daemon",
            Self::LeaseHeld => "Another instance holds the lease",
            Self::LedgerUnavailable => "The ledger did not answer in time",
            Self::BusUnavailable => "There is no bus",
            Self::Draining => "This instance is stopping",
            Self::Fenced => "The lease was taken over",
            Self::Exhausted => "Too few numbers are left",
            Self::ClockBehind => "The clock does not allow a snowflake now",
            Self::LedgerWentBack => "The ledger went back in time",
            Self::Recovering => "The signer's next nonce is not confirmed",
        }
    }

    /// Whether the same request may succeed later without a change by a person. Such refusals carry `Retry-After` and
    /// `retry_after_ms`.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::NotOwner
            | Self::WindowFull
            | Self::Overloaded
            | Self::LeaseHeld
            | Self::LedgerUnavailable
            | Self::Draining
            | Self::Fenced
            | Self::ClockBehind => true,
            Self::Invalid
            | Self::Unauthorized
            | Self::Forbidden
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::StaleHold
            | Self::AlreadySettled
            | Self::Conflict
            | Self::TenantLocked
            | Self::StageUnknown
            | Self::StillRunning
            | Self::DefinitionChanged
            | Self::TooLarge
            | Self::UnsupportedMediaType
            | Self::KeyReused
            | Self::Internal
            | Self::BusUnavailable
            | Self::Exhausted
            | Self::LedgerWentBack
            | Self::Recovering => false,
        }
    }

    /// Reads the word that travels.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

/// Why a request is refused. Nothing was changed, unless the code says that this is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:fencepost:problem:<code>`.
    #[serde(rename = "type")]
    pub kind: String,
    /// A short text for people, the same for every occurrence of the code.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong with this request, and what is allowed.
    pub detail: String,
    /// The stable code. Newer daemons may have further codes.
    #[schema(value_type = Code)]
    pub code: String,
    /// The request's id, as in the header `X-Request-Id` and in the log.
    // Empty in a refusal that a client makes without a request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(required)]
    pub request_id: String,
    /// The time after which to try again, in milliseconds; on refusals that may end by themselves only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// `lease_held`, `not_owner`: the instance that has the lease, or that the ring names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// `lease_held`, `not_owner`: the URL of that instance, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_url: Option<String>,
    /// `lease_held`, and `not_owner` where the instance has a lease: how long the lease is still valid, in
    /// milliseconds. It may be released earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// `window_full`: how many nonces are HELD or QUARANTINED now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// `window_full`: how many may be HELD or QUARANTINED.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u64>,
    /// `conflict` of a policy: the signer's first nonce, which cannot change any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 9007199254740991u64)]
    pub first_nonce: Option<u64>,
    /// `stale_hold` of a grant that is repeated under its idempotency key: what the key was granted, in the order granted. A
    /// daemon of the last release leaves it out.
    // Not `grants`: a script that does not look at the status would take them for granted now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_before: Option<Vec<GrantedBefore>>,
    /// `tenant_locked`: the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// `tenant_locked`: the plan of the task that has the lock, if it is known and the caller sees the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// `tenant_locked`: the task that has the lock, if it is known and the caller sees it. `stage_unknown`: the task that was to
    /// be retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// `stage_unknown`: the number of the stage, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
    /// The checks of `/readyz`, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<BTreeMap<String, Check>>,
}

/// A nonce that an earlier request under the same idempotency key was granted, in whatever state it is by now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantedBefore {
    /// The nonce.
    #[schema(minimum = 0, maximum = 9007199254740991u64)]
    pub nonce: u64,
    /// The hold under which it was granted then. It settles the nonce as long as it is the nonce's last one.
    pub hold: String,
}

impl Problem {
    /// A problem of this code, with nothing beside the detail.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:fencepost:problem:{code}"),
            title: code.title().to_owned(),
            status: code.status(),
            detail: detail.into(),
            code: code.as_str().to_owned(),
            request_id: String::new(),
            retry_after_ms: None,
            owner: None,
            owner_url: None,
            expires_in_ms: None,
            in_flight: None,
            max_in_flight: None,
            first_nonce: None,
            granted_before: None,
            tenant: None,
            plan: None,
            task: None,
            stage: None,
            checks: None,
        }
    }

    /// A problem of a code that this version may not know. One of an unknown code has the status 500.
    #[must_use]
    pub fn of_code(code: &str, detail: impl Into<String>) -> Self {
        if let Some(known) = Code::parse(code) {
            return Self::new(known, detail);
        }
        Self {
            kind: format!("urn:fencepost:problem:{code}"),
            title: "The request is refused".to_owned(),
            code: code.to_owned(),
            ..Self::new(Code::Internal, detail)
        }
    }

    /// The code, if this version knows it.
    #[must_use]
    pub fn known_code(&self) -> Option<Code> {
        Code::parse(&self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_read_back_what_they_print_and_have_error_statuses() {
        for &code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), Some(code));
            assert!((400..=503).contains(&code.status()), "{code}");
            // Of the conflicts one passes by itself: keys change hands.
            let passes = matches!(code.status(), 429 | 503) || code == Code::NotOwner;
            assert!(!code.is_retryable() || passes, "{code}");
        }
        assert_eq!(Code::parse("no_such_code"), None);
    }

    #[test]
    fn a_problem_of_a_newer_daemon_can_be_read() {
        let text = r#"{"type":"t","title":"t","status":409,"detail":"d","code":"sun_unavailable","extra":1}"#;
        let problem: Problem = serde_json::from_str(text).unwrap();
        assert_eq!((problem.known_code(), problem.code.as_str()), (None, "sun_unavailable"));
    }

    #[test]
    fn a_problem_of_a_code_keeps_the_code() {
        assert_eq!(Problem::of_code("conflict", "d"), Problem::new(Code::Conflict, "d"));
        let unknown = Problem::of_code("sun_unavailable", "d");
        assert_eq!((unknown.known_code(), unknown.code.as_str()), (None, "sun_unavailable"));
        assert_eq!((unknown.kind.as_str(), unknown.status), ("urn:fencepost:problem:sun_unavailable", 500));
    }
}
