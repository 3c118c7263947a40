//! How the clients of a run reach its instances: plainly, or with tokens, or over TLS by a private authority too.

use std::time::Duration;

use anyhow::Result;
use testkit::authority::{Authority, Pair};
use testkit::credentials::Credentials;
use testkit::fleet::Blueprint;
use testkit::http::Client;

/// By it the instances of a secured run know each other.
const CLUSTER_SECRET: &str = "the-secret-of-all-instances-of-a-secured-run";
/// The tokens of each role's name, as the instances get them.
const TOKENS: &str = r#"[
    {"name":"caller","token":"the-token-of-callers","scopes":["submit"]},
    {"name":"node","token":"the-token-of-nodes","scopes":["node"],"nodes":["p-*","c-*","stages-p-*"]},
    {"name":"operator","token":"the-token-of-operators","scopes":["admin"]}
]"#;

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Works with jobs, sessions, nonces and IDs.
    Caller,
    /// Runs jobs: one of [`testkit::fault_nodes`].
    Node,
    /// May do everything.
    Operator,
}

impl Role {
    const fn token(self) -> &'static str {
        match self {
            Self::Caller => "the-token-of-callers",
            Self::Node => "the-token-of-nodes",
            Self::Operator => "the-token-of-operators",
        }
    }
}

/// What instances demand of their clients, and clients show them.
#[derive(Debug, Default)]
pub struct Access {
    tokens: bool,
    tls: Option<(Authority, Pair)>,
}

impl Access {
    /// No TLS and no token.
    #[must_use]
    pub fn open() -> Self {
        Self::default()
    }

    /// A token for each role, and no TLS.
    #[must_use]
    pub fn with_tokens() -> Self {
        Self { tokens: true, tls: None }
    }

    /// A token for each role, TLS between all, and a secret of the instances.
    ///
    /// # Errors
    /// The certificates cannot be made.
    pub fn secured() -> Result<Self> {
        let authority = Authority::new("loadtest")?;
        let pair = authority.issue("instance")?;
        Ok(Self { tokens: true, tls: Some((authority, pair)) })
    }

    /// Open, or secured.
    ///
    /// # Errors
    /// As [`Self::secured`].
    pub fn new(is_secured: bool) -> Result<Self> {
        if is_secured { Self::secured() } else { Ok(Self::open()) }
    }

    /// Instances that demand it.
    #[must_use]
    pub fn demanded_by(&self, mut blueprint: Blueprint) -> Blueprint {
        if self.tokens {
            blueprint = blueprint.env("FENCEPOST__AUTH__TOKENS", TOKENS);
        }
        let Some((authority, pair)) = &self.tls else { return blueprint };
        let [certificate, key] = pair.texts();
        blueprint
            .env("FENCEPOST__SERVER__TLS_CERTIFICATE", certificate)
            .env("FENCEPOST__SERVER__TLS_KEY", key)
            .env("FENCEPOST__CLUSTER__CA_FILE", &authority.file().to_string_lossy())
            .env("FENCEPOST__CLUSTER__SECRET", CLUSTER_SECRET)
    }

    /// What a client of this role shows and trusts.
    ///
    /// # Errors
    /// The authority's certificate cannot be read.
    pub fn credentials(&self, role: Role) -> Result<Credentials> {
        let mut credentials = Credentials::default();
        if self.tokens {
            credentials = credentials.with_token(role.token());
        }
        match &self.tls {
            None => Ok(credentials),
            Some((authority, _)) => credentials.trusting(&authority.file()),
        }
    }

    /// A client of this role that gives up on an answer after `limit`.
    ///
    /// # Errors
    /// The HTTP library cannot be set up.
    pub fn client(&self, role: Role, limit: Duration) -> Result<Client> {
        self.credentials(role)?.client(limit)
    }
}
