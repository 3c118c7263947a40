//! Typed ids. Each is checked once, where it enters, and is then carried by type.

use std::fmt;
use std::sync::Arc;

use crate::limits::{
    CLIENT_REF_CHARS_MAX, ID_FIVE_BITS_MAX, ID_WORKER_MAX, IDEMPOTENCY_KEY_CHARS_MAX, INSTANCE_ID_CHARS_MAX,
    JOB_KIND_CHARS_MAX, LABEL_CHARS_MAX, LANGUAGE_CHARS_MAX, NODE_ID_CHARS_MAX, NONCE_MAX,
    POOL_NAME_CHARS_MAX, SEGMENT_TAG_CHARS_MAX, SEQUENCE_NAME_CHARS_MAX, SESSION_ID_CHARS_MAX,
    SIGNER_ID_CHARS_MAX, TENANT_ID_CHARS_MAX, TX_HASH_CHARS_MAX,
};

/// Why a text or number is no such id: what was expected, fit to be shown to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The thing that was to be read, such as `signer`.
    pub what: &'static str,
    /// What would have been right.
    pub expected: String,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}", self.what, self.expected)
    }
}

impl std::error::Error for Invalid {}

/// The characters that signer ids, instance ids and node names are made of: they need no escaping
/// in a URL path segment, a Redis key, a log line or a shell word, and hold no brace, slash or space.
const SAFE: &str = "letters, digits and . _ : @ -";

fn is_safe(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '@' | '-')
}

fn safe_text(what: &'static str, text: &str, chars_max: usize) -> Result<(), Invalid> {
    // "." and ".." would be eaten by path normalisation on the way of a request.
    let dots = text == "." || text == "..";
    if text.is_empty() || text.len() > chars_max || dots || !text.chars().all(is_safe) {
        let but = if dots { ", but not . or .. alone" } else { "" };
        return Err(Invalid { what, expected: format!("1 to {chars_max} characters of {SAFE}{but}") });
    }
    Ok(())
}

fn printable(what: &'static str, text: &str, chars_max: usize) -> Result<(), Invalid> {
    if text.is_empty() || text.len() > chars_max || !text.chars().all(|c| c.is_ascii_graphic()) {
        return Err(Invalid {
            what,
            expected: format!("1 to {chars_max} visible ASCII characters without spaces"),
        });
    }
    Ok(())
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:ident, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Reads and checks the text.
            ///
            /// # Errors
            /// [`Invalid`], saying what is allowed.
            pub fn parse(text: &str) -> Result<Self, Invalid> {
                $check($what, text, $max)?;
                Ok(Self(Arc::from(text)))
            }

            /// The text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

/// The same for ids that resources are named after. They are kept as the name of the resource, `kind:id`: each request needs
/// that, and shares it.
macro_rules! resource_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            resource: Arc<str>,
        }

        impl $name {
            /// What stands before the id in the name of its resource.
            const PREFIX: &str = concat!($what, ":");

            /// Reads and checks the text.
            ///
            /// # Errors
            /// [`Invalid`], saying what is allowed.
            pub fn parse(text: &str) -> Result<Self, Invalid> {
                safe_text($what, text, $max)?;
                Ok(Self { resource: Arc::from([Self::PREFIX, text].concat()) })
            }

            /// The text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.resource[Self::PREFIX.len()..]
            }

            /// The name of its resource.
            pub(crate) fn resource_name(&self) -> Arc<str> {
                Arc::clone(&self.resource)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.as_str()).finish()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

resource_id!(
    /// Names the account whose nonces are handed out. The CAIP-10 form `eip155:1:0xab…` is advised,
    /// so that one address on two chains is two signers. Compared byte by byte: `0xAB` and `0xab`
    /// are two signers, so settle on one spelling (lower case).
    SignerId, "signer", SIGNER_ID_CHARS_MAX
);
resource_id!(
    /// One incarnation of a Fencepost process: `<node name>-<unique per start>`. Never reused, since a
    /// restarted process must not be able to renew its paused predecessor's leases.
    InstanceId, "instance", INSTANCE_ID_CHARS_MAX
);
text_id!(
    /// The caller's name for one request, under which every retry gets the same answer for 24 hours.
    IdempotencyKey, "Idempotency-Key", printable, IDEMPOTENCY_KEY_CHARS_MAX
);
text_id!(
    /// The transaction that used a nonce, as its chain names it. Kept, never interpreted.
    TxHash, "tx_hash", printable, TX_HASH_CHARS_MAX
);
text_id!(
    /// A worker machine, as it calls itself. Its next connection is the same node.
    NodeId, "node_id", safe_text, NODE_ID_CHARS_MAX
);
resource_id!(
    /// A session: one client's jobs, in an order.
    SessionId, "session", SESSION_ID_CHARS_MAX
);
text_id!(
    /// The client's own name for a job of its session, given back with all that is said of it.
    ClientRef, "ref", printable, CLIENT_REF_CHARS_MAX
);
resource_id!(
    /// On whose behalf jobs are run; waiting jobs are served fairly between them.
    TenantId, "tenant", TENANT_ID_CHARS_MAX
);
text_id!(
    /// A set of nodes that serve the same kind of job.
    PoolName, "pool", safe_text, POOL_NAME_CHARS_MAX
);
text_id!(
    /// Something that a node can do and a job may require, such as `gpu` or `asr:zh`.
    Label, "label", safe_text, LABEL_CHARS_MAX
);
text_id!(
    /// What a job does, such as `send_email`: for people, lists and metrics. It decides nothing.
    JobKind, "kind", printable, JOB_KIND_CHARS_MAX
);
text_id!(
    /// A language as a route names it, such as `zh` or `en-GB`. Compared byte by byte.
    Language, "language", safe_text, LANGUAGE_CHARS_MAX
);
text_id!(
    /// What a run of segment ids is for, such as `order`.
    SegmentTag, "tag", safe_text, SEGMENT_TAG_CHARS_MAX
);
text_id!(
    /// A strictly increasing count of something, such as `invoice`.
    SequenceName, "sequence", safe_text, SEQUENCE_NAME_CHARS_MAX
);

/// A transaction nonce, 0 to [`NONCE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(u64);

impl Nonce {
    /// The first nonce of a fresh account.
    pub const ZERO: Self = Self(0);

    /// Checks the range.
    ///
    /// # Errors
    /// [`Invalid`] above [`NONCE_MAX`].
    pub fn new(number: u64) -> Result<Self, Invalid> {
        if number > NONCE_MAX {
            return Err(Invalid { what: "nonce", expected: format!("0 to {NONCE_MAX}") });
        }
        Ok(Self(number))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number under which a snowflake generator makes ids, 0 to [`ID_WORKER_MAX`]: ten bits, or five of a data
/// centre before five of a worker in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerNumber(u16);

impl WorkerNumber {
    /// Checks the range.
    ///
    /// # Errors
    /// [`Invalid`] above [`ID_WORKER_MAX`].
    pub fn new(number: u16) -> Result<Self, Invalid> {
        if number > ID_WORKER_MAX {
            return Err(Invalid { what: "worker", expected: format!("0 to {ID_WORKER_MAX}") });
        }
        Ok(Self(number))
    }

    /// The number of this worker in this data centre.
    ///
    /// # Errors
    /// [`Invalid`] where either is above [`ID_FIVE_BITS_MAX`].
    pub fn in_data_center(data_center: u8, worker: u8) -> Result<Self, Invalid> {
        for (what, number) in [("data_center", data_center), ("worker", worker)] {
            if number > ID_FIVE_BITS_MAX {
                return Err(Invalid { what, expected: format!("0 to {ID_FIVE_BITS_MAX}") });
            }
        }
        Ok(Self(u16::from(data_center) << 5 | u16::from(worker)))
    }

    /// All there are, the lowest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=ID_WORKER_MAX).map(Self)
    }

    /// The ten bits.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The upper five.
    #[must_use]
    pub const fn data_center(self) -> u8 {
        (self.0 >> 5) as u8
    }

    /// The lower five.
    #[must_use]
    pub const fn in_its_data_center(self) -> u8 {
        (self.0 & ID_FIVE_BITS_MAX as u16) as u8
    }
}

impl fmt::Display for WorkerNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! bits_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// The one with these bits. The caller draws them.
            #[must_use]
            pub const fn from_u128(bits: u128) -> Self {
                Self(bits)
            }

            /// The bits.
            #[must_use]
            pub const fn as_u128(self) -> u128 {
                self.0
            }

            /// Reads the form that [`fmt::Display`] writes, hyphens optional. `None` for anything else; such a
            /// text never named one.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                uuid_bits(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(uuid_text(self.0, &mut [0; 36]))
            }
        }
    };
}

/// The UUID form of some bits. By hand: each job's id is written several times on its way.
fn uuid_text(bits: u128, room: &mut [u8; 36]) -> &str {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut left = 32;
    for (at, byte) in room.iter_mut().enumerate() {
        *byte = match at {
            8 | 13 | 18 | 23 => b'-',
            _ => {
                left -= 1;
                DIGITS[(bits >> (4 * left)) as usize & 0xf]
            }
        };
    }
    std::str::from_utf8(room).expect("digits and hyphens are text")
}

/// The bits of a text in UUID form.
fn uuid_bits(text: &str) -> Option<u128> {
    let has_hyphens = match text.len() {
        32 => false,
        36 => true,
        _ => return None,
    };
    let mut bits = 0;
    for (at, byte) in text.bytes().enumerate() {
        match at {
            8 | 13 | 18 | 23 if has_hyphens => {
                if byte != b'-' {
                    return None;
                }
            }
            _ => bits = bits << 4 | u128::from(char::from(byte).to_digit(16)?),
        }
    }
    Some(bits)
}

bits_id!(
    /// One grant of one nonce to one caller: 128 random bits, shown as 32 hexadecimal digits in UUID form.
    HoldId
);
bits_id!(
    /// One job: a UUID of version 7, so that ids sort by the time at which they were made (RFC 9562).
    JobId
);
bits_id!(
    /// One bulk operation: a UUID of version 7, as a job's.
    BulkId
);
bits_id!(
    /// One plan: a UUID of version 7, as a job's.
    PlanId
);
bits_id!(
    /// One task of a plan: a UUID of version 7, as a job's.
    TaskId
);

impl JobId {
    /// When it was made, in milliseconds since 1970, by the database's clock as the instance that made it knew it.
    #[must_use]
    pub const fn made_at_ms(self) -> u64 {
        (self.0 >> 80) as u64
    }

    /// The lowest id that could have been made at that millisecond: a bound for ranges of ids.
    #[must_use]
    pub const fn first_at_ms(ms: u64) -> Self {
        Self((ms as u128) << 80)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_take_their_safe_set_and_nothing_else() {
        let long = "x".repeat(129);
        for good in
            ["a", "eip155:1:0xab16a96d359ec26a11e2c2b3d8f8b8942d5bfcdb", "A.b_c:d@e-f", &"x".repeat(128)]
        {
            assert_eq!(SignerId::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "a b", "a/b", "a{b}", "a%b", "ä", "a\0", "a\n", &long] {
            let refusal = SignerId::parse(bad).unwrap_err();
            assert!(refusal.to_string().contains("1 to 128 characters"), "{bad:?}: {refusal}");
            let is_dots = matches!(bad, "." | "..");
            assert_eq!(refusal.to_string().ends_with("but not . or .. alone"), is_dots, "{bad:?}: {refusal}");
        }
        assert!(TxHash::parse("0xab/+=").is_ok());
        assert!(TxHash::parse("0x ab").is_err());
        assert!(IdempotencyKey::parse("a\u{7f}").is_err());
        assert!(ClientRef::parse(&"x".repeat(128)).is_ok() && ClientRef::parse(&long).is_err());
    }

    #[test]
    fn nonces_stay_exact_in_json() {
        assert_eq!(Nonce::new(NONCE_MAX).unwrap().get(), 9_007_199_254_740_991);
        assert!(Nonce::new(NONCE_MAX + 1).is_err());
    }

    #[test]
    fn worker_numbers_are_ten_bits_or_twice_five() {
        assert_eq!(WorkerNumber::all().count(), 1_024);
        assert!(WorkerNumber::new(1_024).is_err());
        for (data_center, worker, number) in [(0, 0, 0), (0, 31, 31), (1, 0, 32), (31, 31, 1_023)] {
            let split = WorkerNumber::in_data_center(data_center, worker).unwrap();
            assert_eq!(split, WorkerNumber::new(number).unwrap());
            assert_eq!((split.data_center(), split.in_its_data_center()), (data_center, worker));
        }
        assert!(WorkerNumber::in_data_center(32, 0).is_err() && WorkerNumber::in_data_center(0, 32).is_err());
    }

    #[test]
    fn jobs_sort_by_when_they_were_made() {
        let job = JobId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap();
        assert_eq!(job.made_at_ms(), 0x0189_0a5d_ac96);
        let (first, next) = (JobId::first_at_ms(job.made_at_ms()), JobId::first_at_ms(job.made_at_ms() + 1));
        assert!(first <= job && job < next);
    }

    #[test]
    fn holds_read_back_what_they_print() {
        for bits in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef] {
            let hold = HoldId::from_u128(bits);
            assert_eq!(HoldId::parse(&hold.to_string()), Some(hold));
            assert_eq!(HoldId::parse(&hold.to_string().replace('-', "")), Some(hold));
        }
        for bad in ["", "x", "+0000000000000000000000000000000", "0123456789abcdef-0123456789abcdef0123"] {
            assert_eq!(HoldId::parse(bad), None, "{bad:?}");
        }
    }
}
