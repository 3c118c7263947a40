//! Idempotency keys of jobs and sessions: what a key is remembered under, and the hash by which a repetition is
//! recognised.

use domain::IdempotencyKey;
use ledger::{JobKey, KeyScope};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// How the OpenAPI document describes the header.
pub const KEY: &str = "The caller's name for this request: 1 to 128 visible ASCII characters";

/// A key and what it is for. Keys count per route and caller.
pub fn job_key(principal: &str, route: &str, key: IdempotencyKey, body_hash: [u8; 32]) -> JobKey {
    JobKey { scope: KeyScope { scope: format!("{route} {principal}"), key }, body_hash }
}

/// The hash of what was asked, in one form: the fields in their order, the payload as it was written.
pub fn body_hash(asked: &impl Serialize) -> [u8; 32] {
    Sha256::digest(serde_json::to_vec(asked).expect("what was read can be written")).into()
}
