//! The configuration of the API: its limits, its tokens, and what it does with requests for another instance.

use std::time::Duration;

use crate::auth::Auth;
use crate::limits::{
    BODY_BYTES_MAX_DEFAULT, CLIENT_REQUEST_TIMEOUT_DEFAULT, CONNECTIONS_MAX_DEFAULT, KEEP_ALIVE_DEFAULT,
    NODE_GRACE_DEFAULT, REQUEST_TIMEOUT_DEFAULT, WORKERS_MAX_DEFAULT,
};

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
    /// What becomes of a request for a key that another instance owns.
    pub on_misroute: OnMisroute,
    /// Longest request body, in bytes.
    pub body_bytes_max: usize,
    /// Threads that serve HTTP, at least 1.
    pub workers: usize,
    /// Connections open at once, all threads together; more wait to be accepted.
    pub connections_max: usize,
    /// How long an idle connection is kept.
    pub keep_alive: Duration,
    /// How long a client may take to send a request's head, and again its body; 1 s at least.
    pub client_request_timeout: Duration,
    /// How long reading from the ledger may take.
    pub request_timeout: Duration,
    /// How long a node may take to connect again after its socket was closed while it had work.
    pub node_grace: Duration,
}

impl Settings {
    /// The defaults of [`crate::limits`].
    #[must_use]
    pub fn new(auth: Auth) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            auth,
            on_misroute: OnMisroute::Forward,
            body_bytes_max: BODY_BYTES_MAX_DEFAULT,
            workers: cores.min(WORKERS_MAX_DEFAULT),
            connections_max: CONNECTIONS_MAX_DEFAULT,
            keep_alive: KEEP_ALIVE_DEFAULT,
            client_request_timeout: CLIENT_REQUEST_TIMEOUT_DEFAULT,
            request_timeout: REQUEST_TIMEOUT_DEFAULT,
            node_grace: NODE_GRACE_DEFAULT,
        }
    }
}
