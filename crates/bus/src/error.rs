//! What can go wrong on the bus, and what each means for the caller: whether anything was done, and
//! whether to ask again.

use std::error::Error as StdError;
use std::sync::Arc;

use domain::Invalid;

/// What the driver said, whichever it is.
pub type Cause = Arc<dyn StdError + Send + Sync>;

/// Why the bus did not answer as asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// It could not be reached, is not ready, or did not answer a question in time; nothing was done.
    #[error("the bus is unavailable: {source}")]
    Unavailable {
        /// What the driver said.
        #[source]
        source: Cause,
    },
    /// A command was sent and got no answer: it may have been executed, or may still be, or not. On a Cluster also if the driver
    /// sent it again and only the last try was refused.
    #[error("the outcome of a command on the bus is unknown: {source}")]
    Unknown {
        /// What the driver said.
        #[source]
        source: Cause,
    },
    /// The server has no memory left (`maxmemory`); nothing was done.
    #[error("the bus is full: {source}")]
    Full {
        /// What the driver said.
        #[source]
        source: Cause,
    },
    /// The server does not take the user or the password.
    #[error("the bus denies access: {source}")]
    Denied {
        /// What the driver said.
        #[source]
        source: Cause,
    },
    /// The server takes the user, and does not permit it the command, a key or a channel.
    #[error("the bus denies a right: {source}")]
    Forbidden {
        /// What the driver said.
        #[source]
        source: Cause,
    },
    /// The server refused the command, is no Redis, or shows no certificate that is trusted.
    #[error("the bus refused: {source}")]
    Refused {
        /// What the driver said.
        #[source]
        source: Cause,
    },
    /// The URL is not one that can be used, or does not fit the server behind it.
    #[error("{0}")]
    Address(String),
    /// A value outside what is allowed; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// More than the limit; nothing was sent.
    #[error("{what} of {bytes} bytes is larger than {bytes_max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        bytes_max: usize,
    },
    /// This bus was closed.
    #[error("the bus is closed")]
    Closed,
}

impl Error {
    /// Whether the same may succeed later without anybody changing anything.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Unknown { .. } | Self::Full { .. } => true,
            Self::Denied { .. }
            | Self::Forbidden { .. }
            | Self::Refused { .. }
            | Self::Address(_)
            | Self::Invalid(_)
            | Self::TooLarge { .. }
            | Self::Closed => false,
        }
    }

    /// Whether something may have been done although this is an error.
    #[must_use]
    pub const fn may_have_run(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }
}

/// Shorthand for the bus's answers.
pub type Result<T> = std::result::Result<T, Error>;
