//! Nonces: grants, settlements, and an operator's decisions.

use std::time::{Duration, Instant};

use wire::nonces::{
    ConfirmRequest, ConsumeRequest, Grant, GrantAnswer, GrantRequest, NonceAnswer, PolicyAnswer,
    PolicyRequest, ReleaseRequest, ResolveRequest, Settlement, SettlementResult, SettlementsAnswer,
    SettlementsRequest, Signer,
};

use crate::transport::{Answer, Call, key_or_new};
use crate::{Client, Result};

/// Granted nonces, and the time from which their holds count.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Granted {
    /// The daemon's answer.
    pub answer: GrantAnswer,
    /// When the request that it answers was sent, by this machine's clock.
    pub sent_at: Instant,
}

impl Granted {
    /// The time until which this grant's nonce may be sent. After it, another caller may hold the nonce. It
    /// counts from when the request was sent, so it is never too late; but the clock of an [`Instant`] may stand still
    /// while the machine is suspended.
    #[must_use]
    pub fn usable_until(&self, grant: &Grant) -> Instant {
        self.sent_at + Duration::from_millis(grant.held_for_ms)
    }
}

impl Client {
    /// Grants nonces of a signer. Under one `key` (1 to 128 visible ASCII characters) the same request
    /// gets the same nonces for 24 hours, on any instance; after that it gets others. Without it the library makes one
    /// for this call, so that its own retries are harmless. There are as many grants as the request asks for, one by default.
    ///
    /// # Errors
    /// [`crate::Error`]; `stale_hold` for a repetition under a key whose nonces were settled or whose holds have expired:
    /// [`wire::Problem::granted_before`] has the nonces with their holds, by which a caller that lost the answer can settle
    /// them. A request under another key gets other nonces, so make it only when nothing was sent with these.
    /// `key_reused` for a request that differs from the key's first one; `window_full` while as many nonces are in
    /// flight as the policy allows, and, not retryable, for more than it ever allows; `recovering` until [`Client::confirm`].
    pub async fn grant(&self, signer: &str, request: &GrantRequest, key: Option<&str>) -> Result<Granted> {
        let key = key_or_new(key);
        let path = ["v1", "signers", signer, "nonces"];
        let call = Call::post(&path, request).about(signer).under(Some(&key));
        let Answer { body: answer, sent_at } = self.answer::<_, GrantAnswer>(&call).await?;
        let (asked, granted) = (request.count.unwrap_or(1), answer.grants.len());
        if granted as u64 != asked {
            return Err(self.strange(format!("{granted} grants where {asked} were asked for")));
        }
        Ok(Granted { answer, sent_at })
    }

    /// Settles 1 to 1,000 holds. Returns an answer for each, in their order. Repeating is harmless. A nonce is `Consumed`
    /// for good: say so when its transaction is mined and final, not when it is sent.
    ///
    /// # Errors
    /// [`crate::Error`] if the whole request failed; the refusal of one settlement is an item of the answer: `stale_hold`
    /// where the nonce was granted to another caller since, also since an attempt of this call whose answer was lost, or where
    /// the ledger was recovered since: look on the chain which transaction has the nonce. `already_settled` where it is
    /// `Consumed` and this settlement differs.
    pub async fn settle(&self, signer: &str, settlements: Vec<Settlement>) -> Result<Vec<SettlementResult>> {
        let asked = settlements.len();
        let request = SettlementsRequest { settlements };
        let path = ["v1", "signers", signer, "settlements"];
        let answer: SettlementsAnswer = self.call(&Call::post(&path, &request).about(signer)).await?;
        if answer.results.len() != asked {
            return Err(self.strange(format!("{} answers to {asked} settlements", answer.results.len())));
        }
        Ok(answer.results)
    }

    /// Reports that a held nonce was used: its transaction is mined and final. Nothing takes this back.
    ///
    /// # Errors
    /// [`crate::Error`]; `stale_hold` and `already_settled` as for [`Client::settle`].
    pub async fn consume(&self, signer: &str, nonce: u64, request: &ConsumeRequest) -> Result<NonceAnswer> {
        self.act(signer, nonce, "consume", request).await
    }

    /// Gives a held nonce back that was not sent and never will be, or reports that it is not known whether it was
    /// sent.
    ///
    /// # Errors
    /// [`crate::Error`]; `stale_hold` and `already_settled` as for [`Client::settle`].
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
        let call = Call::post(&path, request).about(signer);
        self.call(&Call { once: request.hold.is_none(), ..call }).await
    }

    /// Changes a signer's policy, and returns the policy then in force.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn set_policy(&self, signer: &str, request: &PolicyRequest) -> Result<PolicyAnswer> {
        let path = ["v1", "signers", signer, "policy"];
        self.call(&Call::put(&path, request).about(signer)).await
    }

    /// Confirms the next nonce of a signer that is recovering, also of one that the recovered ledger does not know; needs the
    /// scope `admin`.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn confirm(&self, signer: &str, next_nonce: u64) -> Result<Signer> {
        let path = ["v1", "signers", signer, "confirm"];
        let request = ConfirmRequest { next_nonce };
        self.call(&Call::post(&path, &request).about(signer)).await
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
        self.call(&Call::post(&path, request).about(signer)).await
    }
}
