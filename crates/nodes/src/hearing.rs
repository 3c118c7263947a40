//! Whether the silence of a node is evidence.

use std::time::Duration;

/// For how long nothing of a node can have been missed, without a break.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hearing {
    /// Of nodes that connect to instances on this bus, until now: it could be reached, and the ledger.
    pub bus: Option<Duration>,
    /// Of nodes that connect to any instance, until that was looked at last: the bus joined all that live, too.
    pub all: Option<Duration>,
    /// How long ago `all` ended.
    pub all_ago: Duration,
}

impl Hearing {
    /// As it was so long ago.
    #[must_use]
    pub(crate) fn before(self, ago: Duration) -> Self {
        let before = |length: Option<Duration>| length.map(|length| length.saturating_sub(ago));
        Self { bus: before(self.bus), all: before(self.all), ..self }
    }
}
