//! How the clients of a run reach its instances: plainly, or over TLS by a private authority and with a token.

use std::time::Duration;

use anyhow::Result;
use testkit::authority::{Authority, Pair};
use testkit::fleet::Blueprint;
use testkit::http::{self, Client};

/// The token of all clients of a secured run.
const TOKEN: &str = "the-token-of-all-clients";

/// What instances demand of their clients, and clients show them.
#[derive(Debug, Default)]
pub struct Access {
    secured: Option<(Authority, Pair)>,
}

impl Access {
    /// No TLS and no token.
    #[must_use]
    pub fn open() -> Self {
        Self::default()
    }

    /// TLS between all, and a token of the scope admin.
    ///
    /// # Errors
    /// The certificates cannot be made.
    pub fn secured() -> Result<Self> {
        let authority = Authority::new("loadtest")?;
        let pair = authority.issue("instance")?;
        Ok(Self { secured: Some((authority, pair)) })
    }

    /// Instances that demand it.
    #[must_use]
    pub fn demanded_by(&self, blueprint: Blueprint) -> Blueprint {
        let Some((authority, pair)) = &self.secured else { return blueprint };
        let [certificate, key] = pair.texts();
        let authority = authority.file();
        let tokens = format!(r#"[{{"name":"all","token":"{TOKEN}","scopes":["admin"]}}]"#);
        blueprint
            .env("FENCEPOST__SERVER__TLS_CERTIFICATE", certificate)
            .env("FENCEPOST__SERVER__TLS_KEY", key)
            .env("FENCEPOST__CLUSTER__CA_FILE", &authority.to_string_lossy())
            .env("FENCEPOST__AUTH__TOKENS", &tokens)
    }

    /// A client that shows it, and gives up on an answer after `limit`.
    ///
    /// # Errors
    /// The HTTP library cannot be set up.
    pub fn client(&self, limit: Duration) -> Result<Client> {
        match &self.secured {
            None => Client::new(limit),
            Some((authority, _)) => {
                Ok(Client::over(http::trusting(limit, &[&authority.file()], None)?).with_token(TOKEN))
            }
        }
    }
}
