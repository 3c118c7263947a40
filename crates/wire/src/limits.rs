//! The limits a caller can run into, as the wire knows them. The daemon asserts at compile time that
//! they are the domain's own.

/// Longest signer id, in characters.
pub const SIGNER_ID_CHARS_MAX: usize = 128;
/// Most nonces in one grant.
pub const GRANT_NONCES_MAX: u64 = 1_000;
/// Most settlements in one request.
pub const SETTLEMENTS_MAX: usize = 1_000;
/// Shortest hold, in milliseconds.
pub const HOLD_MS_MIN: u64 = 1;
/// Longest hold: seven days, in milliseconds.
pub const HOLD_MS_MAX: u64 = 604_800_000;
/// Highest nonce, 2^53 − 1: the largest whole number that every JSON reader keeps exact.
pub const NONCE_MAX: u64 = 9_007_199_254_740_991;
/// Largest window a policy may set, in nonces.
pub const MAX_IN_FLIGHT_MAX: u64 = 1_000_000;
/// Longest text that is looked at as a hold, in characters. Real ones have 36.
pub const HOLD_CHARS_MAX: usize = 128;
/// Longest transaction hash, in characters.
pub const TX_HASH_CHARS_MAX: usize = 128;
/// Longest `Idempotency-Key`, in characters.
pub const IDEMPOTENCY_KEY_CHARS_MAX: usize = 128;
/// Longest `X-Request-Id` that is taken over, in characters.
pub const REQUEST_ID_CHARS_MAX: usize = 128;
/// Items of a list when the request names no `limit`.
pub const LIST_ITEMS_DEFAULT: u32 = 100;
/// Most items of one page of a list.
pub const LIST_ITEMS_MAX: u32 = 1_000;

/// Signers that a canary may name.
pub const CANARY_SIGNERS_MAX: usize = 1_000;
/// The largest whole number that every JSON reader keeps exact: 2^53 − 1.
pub const NUMBER_MAX: u64 = NONCE_MAX;
