//! What a client or a node shows to instances, and the authority by which it trusts them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustls::ClientConfig;

use crate::http::{self, Client};

/// A token and a private authority, each where the instances demand one.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    token: Option<String>,
    trusted: Option<(PathBuf, Arc<ClientConfig>)>,
}

impl Credentials {
    /// Those with this token too.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// Those that trust the authority in this PEM file, and no other.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn trusting(mut self, authority: &Path) -> Result<Self> {
        let tls = http::tls(&[authority], None)?;
        self.trusted = Some((authority.to_owned(), Arc::new(tls)));
        Ok(self)
    }

    /// A client that shows them, and gives up on an answer after `limit`.
    ///
    /// # Errors
    /// The HTTP library cannot be set up.
    pub fn client(&self, limit: Duration) -> Result<Client> {
        let client = match &self.trusted {
            None => Client::new(limit)?,
            Some((authority, _)) => Client::over(http::trusting(limit, &[authority], None)?),
        };
        Ok(match &self.token {
            None => client,
            Some(token) => client.with_token(token),
        })
    }

    /// Hands them to a command of `fencepost` that is a client.
    pub fn pass_to(&self, command: &mut Command) {
        if let Some(token) = &self.token {
            command.env("FENCEPOST_TOKEN", token);
        }
        if let Some((authority, _)) = &self.trusted {
            command.env("FENCEPOST_CA", authority);
        }
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    pub(crate) fn tls(&self) -> Option<Arc<ClientConfig>> {
        self.trusted.as_ref().map(|(_, tls)| Arc::clone(tls))
    }
}
