//! What the clients asked and were told, with the moments of both: the evidence that the checker
//! reads. Nothing here decides.

use std::time::Instant;

use parking_lot::Mutex;
use serde::Serialize;

/// What a caller says became of a nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was sent.
    Consumed,
    /// It was certainly not sent.
    NeverSent,
    /// It may have been sent.
    Unknown,
}

impl Outcome {
    /// The name in requests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Consumed => "consumed",
            Self::NeverSent => "never_sent",
            Self::Unknown => "unknown",
        }
    }

    /// The state that it brings a nonce to.
    #[must_use]
    pub const fn status(self) -> &'static str {
        match self {
            Self::Consumed => "CONSUMED",
            Self::NeverSent => "RELEASED",
            Self::Unknown => "QUARANTINED",
        }
    }
}

/// One line of a settle request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settlement {
    /// Which nonce.
    pub nonce: u64,
    /// Under which hold.
    pub hold: String,
    /// What became of it.
    pub outcome: Outcome,
    /// The transaction, with [`Outcome::Consumed`].
    pub tx_hash: Option<String>,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// For nonces.
    Grant {
        /// Whose.
        signer: String,
        /// How many.
        count: u64,
        /// For how long, in milliseconds.
        hold_ms: u64,
        /// The idempotency key.
        key: Option<String>,
    },
    /// To settle holds.
    Settle {
        /// Whose.
        signer: String,
        /// Which, and how.
        settlements: Vec<Settlement>,
    },
}

impl Asked {
    /// The signer that it is about.
    #[must_use]
    pub fn signer(&self) -> &str {
        match self {
            Self::Grant { signer, .. } | Self::Settle { signer, .. } => signer,
        }
    }
}

/// One granted nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Which.
    pub nonce: u64,
    /// Under which hold.
    pub hold: String,
    /// What was left of the hold when the answer was built, in milliseconds.
    pub held_for_ms: u64,
}

/// The answer to one line of a settle request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done: the nonce's state.
    Done(String),
    /// Refused with this code.
    Refused(String),
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 201.
    Granted {
        /// The fencing token that the grant was written under.
        token: i64,
        /// The nonces.
        grants: Vec<Granted>,
    },
    /// 200, or the refusal of a settle request of one line.
    Settled(Vec<Verdict>),
    /// A refusal of the request as a whole.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The stable code.
        code: String,
    },
    /// No answer: the connection failed, or time ran out. The request may have been carried out.
    Unknown {
        /// What went wrong.
        error: String,
    },
    /// An answer that the contract does not allow.
    Malformed {
        /// The HTTP status.
        status: u16,
        /// The body.
        body: String,
    },
}

impl Answer {
    /// A 2xx, which promises that the effect is durable.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        matches!(self, Self::Granted { .. } | Self::Settled(_))
    }

    /// The request may have been carried out though nothing says so.
    #[must_use]
    pub fn leaves_doubt(&self) -> bool {
        match self {
            Self::Unknown { .. } | Self::Malformed { .. } => true,
            // "The ledger did not answer in time" does not say that it will not commit.
            Self::Refused { status, code } => {
                *status >= 500 && !matches!(code.as_str(), "lease_held" | "draining")
            }
            Self::Granted { .. } | Self::Settled(_) => false,
        }
    }
}

/// One request and what came of it. Moments are microseconds since the run began, by the harness's
/// own monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which client asked.
    pub client: usize,
    /// What.
    pub asked: Asked,
    /// What it was told.
    pub answer: Answer,
    /// When the request left.
    pub sent_us: u64,
    /// When the answer was there, or was given up.
    pub ended_us: u64,
}

/// A fencing token seen in the lease table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSeen {
    /// Of which resource.
    pub resource: String,
    /// The token.
    pub token: i64,
}

/// The growing record of a run. Shared by its clients.
#[derive(Debug)]
pub struct History {
    began: Instant,
    records: Mutex<Vec<Record>>,
}

impl Default for History {
    fn default() -> Self {
        Self { began: Instant::now(), records: Mutex::default() }
    }
}

impl History {
    /// Microseconds since the run began.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Adds a record.
    ///
    /// # Panics
    /// When another client panicked while adding.
    pub fn add(&self, record: Record) {
        self.records.lock().push(record);
    }

    /// A copy of all records, by the moment they were sent.
    ///
    /// # Panics
    /// When a client panicked while adding.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let mut records = self.records.lock().clone();
        records.sort_by_key(|record| record.sent_us);
        records
    }
}
