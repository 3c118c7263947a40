//! What the log says of settings under which commits may be lost: a line for each when it is found, and one when none is left.

use parking_lot::Mutex;

/// The warnings that the last look found.
#[derive(Debug, Default)]
pub(super) struct DurabilityLog(Mutex<Vec<String>>);

impl DurabilityLog {
    /// Says what a look has found that the one before had not.
    pub(super) fn tell(&self, found: &[String]) {
        let before = std::mem::replace(&mut *self.0.lock(), found.to_vec());
        for warning in found.iter().filter(|warning| !before.contains(warning)) {
            tracing::warn!(warning, "the database is not set to keep all commits");
        }
        if found.is_empty() && !before.is_empty() {
            tracing::info!("the database is set to keep all commits again");
        }
    }
}
