//! Every limit of the domain, by name, with its unit last. Relations between them are asserted
//! at compile time at the foot of this file.

/// Longest signer id, in characters.
pub const SIGNER_ID_CHARS_MAX: usize = 128;
/// Longest instance id, in characters (node name, a dash, 32 hexadecimal digits).
pub const INSTANCE_ID_CHARS_MAX: usize = 128;
/// Longest idempotency key, in characters.
pub const IDEMPOTENCY_KEY_CHARS_MAX: usize = 128;
/// Longest transaction hash, in characters. Ethereum's has 66, Solana's 88.
pub const TX_HASH_CHARS_MAX: usize = 128;

/// Most nonces in one grant.
pub const GRANT_NONCES_MAX: usize = 1_000;
/// Most settlements in one request.
pub const SETTLEMENTS_MAX: usize = 1_000;
/// How long a hold lives when neither the request nor the signer's policy says, in milliseconds.
pub const HOLD_MS_DEFAULT: u64 = 60_000;
/// Shortest hold, in milliseconds.
pub const HOLD_MS_MIN: u64 = 1;
/// Longest hold: seven days, in milliseconds.
pub const HOLD_MS_MAX: u64 = 7 * 24 * 3_600 * 1_000;
/// Highest nonce: 2^53 − 1, the largest integer that every JSON reader keeps exact.
pub const NONCE_MAX: u64 = (1 << 53) - 1;
/// Largest window a policy may set, in nonces.
pub const MAX_IN_FLIGHT_MAX: u64 = 1_000_000;
/// Holes (released nonces, lowest first) that an owner keeps in memory; the rest stay in the
/// ledger until these are used up.
pub const HOLES_IN_MEMORY_MAX: usize = 4_000;
/// Overdue holds that an owner expires in one commit.
pub const EXPIRIES_MAX: usize = 1_000;

/// Signers that a canary may name.
pub const CANARY_SIGNERS_MAX: usize = 1_000;

/// Leases that one bulk renewal may name.
pub const RENEWALS_MAX: usize = 1_000;

const _: () = assert!(HOLES_IN_MEMORY_MAX >= GRANT_NONCES_MAX, "one grant must be servable from memory");
const _: () = assert!(HOLD_MS_MIN <= HOLD_MS_DEFAULT && HOLD_MS_DEFAULT <= HOLD_MS_MAX);
const _: () = assert!(NONCE_MAX < i64::MAX as u64, "the ledger keeps nonces as signed 64-bit numbers");
