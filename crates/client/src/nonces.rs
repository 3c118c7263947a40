//! Nonces: grants, settlements, and an operator's decisions.

use std::time::{Duration, Instant};

use reqwest::Method;
use wire::nonces::{
    ConfirmRequest, ConsumeRequest, Grant, GrantAnswer, GrantRequest, NonceAnswer, PolicyAnswer,
    PolicyRequest, ReleaseRequest, ResolveRequest, Settlement, SettlementResult, SettlementsAnswer,
    SettlementsRequest, Signer,
};

use crate::transport::{Call, key_or_new};
use crate::{Client, Result};

/// Granted nonces, and the time from which their holds count.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The daemon's answer.
    pub answer: GrantAnswer,
    /// When the request that it answers was sent, by this machine's clock.
    pub sent_at: Instant,
}

impl Granted {
    /// The time until which this grant's nonce may be sent. After it, another caller may hold the nonce. It
    /// counts from when the request was sent, so it is never too late.
    #[must_use]
    pub fn usable_until(&self, grant: &Grant) -> Instant {
        self.sent_at + Duration::from_millis(grant.held_for_ms)
    }
}

impl Client {
    /// Grants nonces of a signer. Under one `key` (1 to 128 visible ASCII characters) the same request
    /// gets the same nonces for 24 hours, on any instance. Without it the library makes one for this
    /// call, so that its own retries are harmless.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn grant(&self, signer: &str, request: &GrantRequest, key: Option<&str>) -> Result<Granted> {
        let key = key_or_new(key);
        let path = ["v1", "signers", signer, "nonces"];
        let mut call = Call::about(signer, Method::POST, &path, request);
        call.idempotency_key = Some(&key);
        let answer = self.call(&call).await?;
        Ok(Granted { answer: answer.body, sent_at: answer.sent_at })
    }

    /// Settles 1 to 1,000 holds. Returns an answer for each, in their order. Repeating is harmless.
    ///
    /// # Errors
    /// [`crate::Error`] if the whole request failed; the refusal of one settlement is an item of the answer.
    pub async fn settle(&self, signer: &str, settlements: Vec<Settlement>) -> Result<Vec<SettlementResult>> {
        let asked = settlements.len();
        let request = SettlementsRequest { settlements };
        let path = ["v1", "signers", signer, "settlements"];
        let answer =
            self.call::<_, SettlementsAnswer>(&Call::about(signer, Method::POST, &path, &request)).await?;
        let results = answer.body.results;
        if results.len() != asked {
            return Err(self.strange(format!("{} answers to {asked} settlements", results.len())));
        }
        Ok(results)
    }

    /// Reports that a held nonce was used.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn consume(&self, signer: &str, nonce: u64, request: &ConsumeRequest) -> Result<NonceAnswer> {
        self.act(signer, nonce, "consume", request).await
    }

    /// Gives a held nonce back, or reports that it is not known whether it was used.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn release(&self, signer: &str, nonce: u64, request: &ReleaseRequest) -> Result<NonceAnswer> {
        self.act(signer, nonce, "release", request).await
    }

    /// An operator's decision on a quarantined nonce; needs the scope `admin`. Name the hold: without it a repetition could
    /// be about another caller's hold, so that the call ends as soon as an answer was lost.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn resolve(&self, signer: &str, nonce: u64, request: &ResolveRequest) -> Result<NonceAnswer> {
        let nonce = nonce.to_string();
        let path = ["v1", "signers", signer, "nonces", &nonce, "resolve"];
        let call = Call::about(signer, Method::POST, &path, request);
        Ok(self.call(&Call { once: request.hold.is_none(), ..call }).await?.body)
    }

    /// Changes a signer's policy, and returns the policy then in force.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn set_policy(&self, signer: &str, request: &PolicyRequest) -> Result<PolicyAnswer> {
        let path = ["v1", "signers", signer, "policy"];
        Ok(self.call(&Call::about(signer, Method::PUT, &path, request)).await?.body)
    }

    /// Confirms the next nonce of a signer that is recovering, also of one that the recovered ledger does not know; needs the
    /// scope `admin`.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn confirm(&self, signer: &str, next_nonce: u64) -> Result<Signer> {
        let path = ["v1", "signers", signer, "confirm"];
        let request = ConfirmRequest { next_nonce };
        Ok(self.call(&Call::about(signer, Method::POST, &path, &request)).await?.body)
    }

    async fn act<B: serde::Serialize>(
        &self,
        signer: &str,
        nonce: u64,
        verb: &str,
        request: &B,
    ) -> Result<NonceAnswer> {
        let nonce = nonce.to_string();
        let path = ["v1", "signers", signer, "nonces", &nonce, verb];
        Ok(self.call(&Call::about(signer, Method::POST, &path, request)).await?.body)
    }
}
