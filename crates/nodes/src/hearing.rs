//! Whether the silence of a node is evidence.

use std::time::Duration;

/// The time in which nothing of a node can have been missed, without a break.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hearing {
    /// That time for nodes that connect to instances on this bus, until now: the bus and the ledger could be reached.
    pub bus: Option<Duration>,
    /// That time for nodes that connect to any instance, until that was looked at last: the bus joined all live instances, too.
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
