//! Idempotency keys of jobs and sessions: what a key is remembered under, and the hash by which a repetition is
//! recognised.

use std::time::Instant;

use domain::IdempotencyKey;
use ledger::{JobKey, KeyScope};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::auth::Principal;
use crate::refusal::Refusal;
use crate::state::State;

/// How the OpenAPI document describes the header.
pub const KEY: &str = "The caller's name for this request: 1 to 128 visible ASCII characters";

/// A key and what it is for. Keys count per route and caller.
pub fn job_key(principal: &str, route: &str, key: IdempotencyKey, body_hash: [u8; 32]) -> JobKey {
    JobKey { scope: KeyScope { scope: format!("{route} {principal}"), key }, body_hash }
}

/// Refuses a new key of a token that has used as many in this hour as it may.
pub fn admit(state: &State, principal: &Principal, key: Option<&JobKey>) -> Result<(), Refusal> {
    key.map_or(Ok(()), |key| admit_key(state, principal, &key.scope.scope, &key.scope.key))
}

/// The same for a key that counts in that scope.
pub fn admit_key(
    state: &State,
    principal: &Principal,
    scope: &str,
    key: &IdempotencyKey,
) -> Result<(), Refusal> {
    let Some(used) = principal.used() else { return Ok(()) };
    let max = state.settings.caller_keys_max;
    used.keys.admit(scope, key.as_str(), max, Instant::now()).map_err(|left| {
        let detail = format!(
            "one token may use {max} new idempotency keys in an hour on one instance, and this one has; requests under keys \
             that it has just used are served, and so are those without a key"
        );
        Refusal::overloaded_for(left, detail)
    })
}

/// The hash of what was asked, in one form: the fields in their order, the payload as it was written.
pub fn body_hash(asked: &impl Serialize) -> [u8; 32] {
    Sha256::digest(serde_json::to_vec(asked).expect("what was read can be written")).into()
}
