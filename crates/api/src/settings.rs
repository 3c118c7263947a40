//! The configuration of the API: its limits, its tokens, and what it does with requests for another instance.

use std::time::Duration;

use crate::auth::Auth;
use crate::limits::{
    ALL_STREAMS_MAX, ALL_STREAMS_TOKEN_MAX, BODY_BYTES_MAX_DEFAULT, BULK_KEPT, BULK_PURGE_EVERY,
    BULK_SCANS_AT_ONCE, CALLER_KEYS_DEFAULT, CALLER_SESSIONS_DEFAULT, CALLER_SIGNERS_DEFAULT,
    CLIENT_REQUEST_TIMEOUT_DEFAULT, CONNECTIONS_MAX_DEFAULT, FORWARDS_MAX, JOB_STREAMS_MAX,
    JOB_STREAMS_TOKEN_MAX, KEEP_ALIVE_DEFAULT, Limit, NODE_GRACE_DEFAULT, PLAN_STREAMS_MAX,
    PLAN_STREAMS_TOKEN_MAX, READING_BYTES_DEFAULT, REQUEST_TIMEOUT_DEFAULT, REQUESTS_DEFAULT,
    SENDING_BYTES_DEFAULT, SOCKETS_DEFAULT, WORKERS_MAX_DEFAULT,
};
use crate::shares::{Kind, Shares};
use crate::tls::Tls;

/// What an instance does with a request for a key that another instance owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMisroute {
    /// It forwards the request to the owner.
    Forward,
    /// It answers with the owner's address.
    Redirect,
}

impl OnMisroute {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Forward, Self::Redirect];

    /// The name in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Redirect => "redirect",
        }
    }
}

/// Limits and access of the API.
#[derive(Clone)]
pub struct Settings {
    /// Who may use it.
    pub auth: Auth,
    /// TLS of the listener; `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// What becomes of a request for a key that another instance owns.
    pub on_misroute: OnMisroute,
    /// Longest request body, in bytes.
    pub body_bytes_max: usize,
    /// Threads that serve HTTP, at least 1.
    pub workers: usize,
    /// Connections open at once, all threads together; more wait to be accepted. Each thread has an equal share, rounded up.
    pub connections_max: usize,
    /// Requests that are being forwarded to other instances at once. One token may have half of them.
    pub forwards_max: usize,
    /// How long an idle connection is kept.
    pub keep_alive: Duration,
    /// How long a client may take to send a request's head, and again its body; 1 s at least.
    pub client_request_timeout: Duration,
    /// Bytes of request bodies and of socket messages that are being read at once.
    pub reading_bytes: Limit,
    /// Bytes of answers and of socket messages that wait for their readers.
    pub sending_bytes: Limit,
    /// Requests in flight at once.
    pub requests: Limit,
    /// Sockets open at once.
    pub sockets: Limit,
    /// Open sessions that one token may have.
    pub caller_sessions_max: u32,
    /// Different signers that one token may use in an hour on this instance.
    pub caller_signers_max: usize,
    /// New idempotency keys that one token may use in an hour on this instance.
    pub caller_keys_max: u64,
    /// How long reading from the ledger may take.
    pub request_timeout: Duration,
    /// How long a node may take to connect again after its socket was closed while it had work.
    pub node_grace: Duration,
    /// Bulk operations that look for their next jobs in the ledger at once, at least 1. Half as many requests, rounded up, count
    /// jobs at once.
    pub bulk_scans_at_once: usize,
    /// Between two purges of bulk operations.
    pub bulk_purge_every: Duration,
    /// How long bulk operations are kept that are over.
    pub bulk_kept: Duration,
}

impl Settings {
    /// The defaults of [`crate::limits`].
    #[must_use]
    pub fn new(auth: Auth) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            auth,
            tls: None,
            on_misroute: OnMisroute::Forward,
            body_bytes_max: BODY_BYTES_MAX_DEFAULT,
            workers: cores.min(WORKERS_MAX_DEFAULT),
            connections_max: CONNECTIONS_MAX_DEFAULT,
            forwards_max: FORWARDS_MAX,
            keep_alive: KEEP_ALIVE_DEFAULT,
            client_request_timeout: CLIENT_REQUEST_TIMEOUT_DEFAULT,
            reading_bytes: READING_BYTES_DEFAULT,
            sending_bytes: SENDING_BYTES_DEFAULT,
            requests: REQUESTS_DEFAULT,
            sockets: SOCKETS_DEFAULT,
            caller_sessions_max: CALLER_SESSIONS_DEFAULT,
            caller_signers_max: CALLER_SIGNERS_DEFAULT,
            caller_keys_max: CALLER_KEYS_DEFAULT,
            request_timeout: REQUEST_TIMEOUT_DEFAULT,
            node_grace: NODE_GRACE_DEFAULT,
            bulk_scans_at_once: BULK_SCANS_AT_ONCE,
            bulk_purge_every: BULK_PURGE_EVERY,
            bulk_kept: BULK_KEPT,
        }
    }

    /// What callers share under these limits.
    pub(crate) fn shares(&self) -> Shares {
        Shares::new(|kind| match kind {
            Kind::Reading => self.reading_bytes,
            Kind::Sending => self.sending_bytes,
            Kind::Requests => self.requests,
            Kind::Sockets => self.sockets,
            Kind::JobStreams => Limit { in_all: JOB_STREAMS_MAX, of_token: JOB_STREAMS_TOKEN_MAX },
            Kind::PlanStreams => Limit { in_all: PLAN_STREAMS_MAX, of_token: PLAN_STREAMS_TOKEN_MAX },
            Kind::AllStreams => Limit { in_all: ALL_STREAMS_MAX, of_token: ALL_STREAMS_TOKEN_MAX },
            Kind::Forwards => Limit { in_all: self.forwards_max, of_token: self.forwards_max.div_ceil(2) },
        })
    }
}
