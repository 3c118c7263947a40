//! Requests as a client of the contract makes them: to any instance, and on to the owner that it names.

use anyhow::Result;
use serde_json::Value;
use testkit::http::{Client, Reply};

/// What is asked of an instance.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The HTTP method.
    pub method: &'a str,
    /// The path, with its query.
    pub path: &'a str,
    /// The idempotency key.
    pub key: Option<&'a str>,
    /// The body.
    pub body: Option<&'a Value>,
}

impl Request<'_> {
    /// Asks the instance at `base`; where it answers `not_owner` with the owner's address, asks the owner, once.
    ///
    /// # Errors
    /// No answer came; whether the request was carried out is unknown.
    pub async fn ask(&self, client: &Client, base: &str) -> Result<Reply> {
        let reply = self.ask_only(client, base).await?;
        match reply.body["owner_url"].as_str() {
            Some(owner) if reply.code() == "not_owner" => self.ask_only(client, owner).await,
            _ => Ok(reply),
        }
    }

    async fn ask_only(&self, client: &Client, base: &str) -> Result<Reply> {
        client.request(self.method, &format!("{base}{}", self.path), self.key, self.body).await
    }
}
