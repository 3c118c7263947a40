//! The secret that the instances of a cluster share.

use std::fmt;
use std::sync::Arc;

use crate::id::Invalid;
use crate::limits::{CLUSTER_SECRET_CHARS_MAX, CLUSTER_SECRET_CHARS_MIN};

/// The secret by which the instances of a cluster know each other's messages. Not to be shown: its `Debug` hides it.
///
/// No key is this secret itself: each use derives one of its own from it.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterSecret(Arc<str>);

impl ClusterSecret {
    /// Reads and checks the text.
    ///
    /// # Errors
    /// [`Invalid`], saying what is allowed, without the text.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let has_length = (CLUSTER_SECRET_CHARS_MIN..=CLUSTER_SECRET_CHARS_MAX).contains(&text.len());
        if has_length && text.chars().all(|c| c.is_ascii_graphic()) {
            return Ok(Self(Arc::from(text)));
        }
        let expected = format!(
            "{CLUSTER_SECRET_CHARS_MIN} to {CLUSTER_SECRET_CHARS_MAX} visible ASCII characters without spaces"
        );
        Err(Invalid { what: "the cluster's secret", expected })
    }

    /// The text itself, to derive a key from or to keep.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_long_enough_and_hides_itself() {
        let secret = ClusterSecret::parse(&"s".repeat(CLUSTER_SECRET_CHARS_MIN)).unwrap();
        assert!(!format!("{secret:?}").contains("sss"));
        for bad in ["", &"s".repeat(CLUSTER_SECRET_CHARS_MIN - 1), &"s s".repeat(20), &"ü".repeat(40)] {
            assert!(ClusterSecret::parse(bad).is_err(), "{bad}");
        }
        assert!(ClusterSecret::parse(&"s".repeat(CLUSTER_SECRET_CHARS_MAX + 1)).is_err());
    }
}
