//! What looks at the database's settings remember, and what the log says of settings under which commits may be lost: a line for
//! each when it is found, and one when none is left.

use parking_lot::Mutex;

/// What earlier looks have found.
#[derive(Debug, Default)]
pub(super) struct DurabilityLog {
    /// The warnings of the last one.
    warnings: Mutex<Vec<String>>,
    /// What a PostgreSQL server itself has for `synchronous_commit`, by the last one whose session knew it.
    servers_commit: Mutex<Option<String>>,
}

impl DurabilityLog {
    /// Says what a look has found that the one before had not.
    pub(super) fn tell(&self, found: &[String]) {
        let before = std::mem::replace(&mut *self.warnings.lock(), found.to_vec());
        for warning in found.iter().filter(|warning| !before.contains(warning)) {
            tracing::warn!(warning, "the database is not set to keep all commits");
        }
        if found.is_empty() && !before.is_empty() {
            tracing::info!("the database is set to keep all commits again");
        }
    }

    /// What the server itself has for `synchronous_commit`: as this look's session knows it, or else the last one that did. Any
    /// session may look, and they must not contradict each other. Until a session knows it, this is `on`, PostgreSQL's default.
    pub(super) fn servers_commit(&self, found: Option<String>) -> String {
        let mut known = self.servers_commit.lock();
        if found.is_some() {
            *known = found;
        }
        known.clone().unwrap_or_else(|| "on".to_owned())
    }
}
