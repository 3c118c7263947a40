//! Settings: what is decided for the whole cluster while it runs. Versioned: a change names the version that
//! it replaces, so that of two changes made on the same knowledge one is refused.

use domain::{AuditEntry, ClusterSecret, Mode, Modes, PoolName, PoolPause, Resource};
use serde::{Deserialize, Serialize};

use crate::records::impossible;
use crate::sql::{Moment, record};
use crate::{Error, Result};

/// The name under which the modes are kept.
pub(crate) const MODES: &str = "mode";
/// The name under which the pools of nodes are kept.
pub(crate) const POOLS: &str = "pools";
/// The name under which the epoch of snowflakes is kept.
pub(crate) const ID_EPOCH: &str = "id-epoch";
/// The name under which the secret of the cluster is kept, where none is configured.
pub(crate) const CLUSTER_SECRET: &str = "cluster-secret";

/// What is decided for the whole cluster while it runs.
#[async_trait::async_trait]
pub trait Settings: Send + Sync {
    /// The modes; `None` before anybody decided.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn modes(&self) -> Result<Option<Modes>>;

    /// Sets the value unless one is set; returns the value then in force.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn decide_mode(&self, mode: Mode) -> Result<Modes>;

    /// Replaces the modes where their version is `modes.version`, and answers the new ones. `None` where it
    /// is another.
    ///
    /// # Errors
    /// [`crate::Error`]. After [`crate::Error::Unknown`] they may be replaced or not.
    async fn replace_modes(&self, modes: &Modes, by: &AuditEntry) -> Result<Option<Modes>>;

    /// The pools of nodes, as JSON that others write and read, and their version; an empty list before anybody
    /// configured any.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn pools(&self) -> Result<(u64, String)>;

    /// Replaces the pools where their version is that one; the new ones have the next. Whether it was.
    ///
    /// # Errors
    /// [`crate::Error`]. After [`crate::Error::Unknown`] they may be replaced or not.
    async fn replace_pools(&self, version: u64, pools: String, by: &AuditEntry) -> Result<bool>;

    /// The pools that are paused now, by name.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn pool_pauses(&self) -> Result<Vec<PoolPause>>;

    /// Pauses a pool from now on, for so many milliseconds or until somebody resumes it. A pool that is paused already is
    /// paused anew. The audit's entry gets both pauses.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn pause_pool(
        &self,
        pool: &PoolName,
        reason: &str,
        for_ms: Option<u64>,
        by: &AuditEntry,
    ) -> Result<PoolPause>;

    /// Ends the pause of a pool, if it is paused. Then the audit's entry, with the pause, is in the same commit.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn resume_pool(&self, pool: &PoolName, by: &AuditEntry) -> Result<()>;

    /// Sets the epoch of snowflakes unless one is set; returns the epoch then in force, in milliseconds since
    /// 1970. Ids of two epochs could meet, so it is decided once and for all.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn decide_id_epoch(&self, epoch_ms: u64) -> Result<u64>;

    /// Sets the secret of the cluster unless one is set; returns the secret then in force. It is for clusters that
    /// configure none: who reads the ledger may know it.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn decide_cluster_secret(&self, secret: &ClusterSecret) -> Result<ClusterSecret>;
}

record! {
    pub(crate) struct PauseRow {
        pool: String,
        reason: String,
        principal: String,
        since: Moment,
        until: Option<Moment>,
    }
}

record! {
    pub(crate) struct ResumedRow {
        #[flatten] pub(crate) pause: PauseRow,
        pub(crate) is_in_force: bool,
    }
}

impl PauseRow {
    pub(crate) fn is_of(&self, pool: &PoolName) -> bool {
        self.pool == pool.as_str()
    }

    /// As the audit has it: JSON text.
    pub(crate) fn text(&self) -> String {
        let for_ms = self.until.map(|until| until.0.ms_since(self.since.0));
        serde_json::json!({ "reason": self.reason, "by": self.principal, "for_ms": for_ms }).to_string()
    }
}

impl TryFrom<PauseRow> for PoolPause {
    type Error = Error;

    fn try_from(row: PauseRow) -> Result<Self> {
        Ok(Self {
            pool: PoolName::parse(&row.pool).map_err(impossible)?,
            reason: row.reason.into(),
            principal: row.principal.into(),
            since: row.since.0,
            until: row.until.map(|at| at.0),
        })
    }
}

/// The modes as they are kept: JSON text, written and read here alone.
#[derive(Serialize, Deserialize)]
struct Kept {
    mode: String,
    only: Option<Vec<String>>,
}

/// The text to keep.
pub(crate) fn modes_text(modes: &Modes) -> String {
    let only = modes.only.as_ref().map(|only| only.iter().map(ToString::to_string).collect());
    let kept = Kept { mode: modes.mode.as_str().to_owned(), only };
    serde_json::to_string(&kept).expect("texts always serialise")
}

/// Reads what is kept.
pub(crate) fn read_modes((version, value): (i64, String)) -> Result<Modes> {
    let kept: Kept = serde_json::from_str(&value).map_err(impossible)?;
    let only = kept.only.map(|only| only.iter().map(|name| Resource::parse(name)).collect());
    Ok(Modes {
        version: u64::try_from(version).map_err(impossible)?,
        mode: Mode::parse(&kept.mode).map_err(impossible)?,
        only: only.transpose().map_err(impossible)?,
    })
}

#[cfg(test)]
mod tests {
    use domain::Timestamp;

    use super::*;

    #[test]
    fn a_pause_between_the_ends_of_time_is_audited() {
        let moment = |micros| Moment(Timestamp::from_micros(micros));
        for (since, until, text) in [(-1_000, 2_000, "3"), (i64::MIN, i64::MAX, "9223372036854775")] {
            let (pool, reason, principal) = ("p".to_owned(), String::new(), String::new());
            let row = PauseRow { pool, reason, principal, since: moment(since), until: Some(moment(until)) };
            assert!(row.text().contains(&format!(r#""for_ms":{text}"#)), "{}", row.text());
        }
    }
}
