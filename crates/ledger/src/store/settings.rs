//! Settings: named values with versions.

use domain::{AuditEntry, ClusterSecret, Mode, Modes, PoolName, PoolPause};

use super::{Decided, Store, Way, audit, settle_commit};
use crate::records::{self, impossible};
use crate::settings::{self, CLUSTER_SECRET, ID_EPOCH, MODES, POOLS, PauseRow, ResumedRow};
use crate::sql::{Statement, statement};
use crate::{Result, Settings};

const SHOW: Statement = statement!(both "setting_show");
const CREATE: Statement = statement!("setting_create");
const PAUSES: Statement = statement!(both "pool_pauses");
const PAUSE: Statement = statement!("pool_pause");
const FORGET: Statement = statement!("pool_forget");
const RESUME: Statement = statement!(both "pool_resume");
const REPLACE: Statement = statement!(both "setting_replace");

impl Store {
    /// The version and the value. It is read with each look at the other instances.
    async fn setting(&self, name: &str) -> Result<Option<(i64, String)>> {
        self.optional(Way::VitalReads, self.ask(&SHOW).bind(name)).await
    }

    /// Decides, unless somebody has; answers what is in force then.
    async fn decided(&self, name: &str, value: String) -> Result<(i64, String)> {
        self.answer(Way::Writes, self.ask(&CREATE).bind(name).bind(value)).await?;
        let kept = self.setting(name).await?;
        kept.ok_or_else(|| impossible("a setting that was just made is not there"))
    }

    /// Whether that version was there to be replaced.
    async fn replaced(&self, name: &str, value: String, version: u64, by: &AuditEntry) -> Result<bool> {
        // No version ever gets further.
        let Ok(version) = i64::try_from(version) else { return Ok(false) };
        let (name, by) = (name.to_owned(), by.clone());
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                let kind = transaction.kind();
                let shown: Option<(i64, String)> =
                    transaction.optional(SHOW.on(kind).bind(name.as_str())).await?;
                let before = shown.map(|(_, value)| value);
                let replace = REPLACE.on(kind).bind(name.as_str()).bind(value.as_str()).bind(version);
                if transaction.touch(replace).await? != 1 {
                    return Ok(Decided::Rollback(false));
                }
                audit::add(transaction, &[&by.changed(before, value)]).await?;
                Ok(Decided::Commit(true))
            })
        })
        .await
    }
}

#[async_trait::async_trait]
impl Settings for Store {
    async fn modes(&self) -> Result<Option<Modes>> {
        self.setting(MODES).await?.map(settings::read_modes).transpose()
    }

    async fn decide_mode(&self, mode: Mode) -> Result<Modes> {
        let first = Modes { version: 1, mode, only: None };
        settings::read_modes(self.decided(MODES, settings::modes_text(&first)).await?)
    }

    async fn replace_modes(&self, modes: &Modes, by: &AuditEntry) -> Result<Option<Modes>> {
        let replaced = self.replaced(MODES, settings::modes_text(modes), modes.version, by).await?;
        Ok(replaced.then(|| Modes { version: modes.version + 1, ..modes.clone() }))
    }

    async fn pools(&self) -> Result<(u64, String)> {
        let (version, pools) = match self.setting(POOLS).await? {
            Some(kept) => kept,
            None => self.decided(POOLS, "[]".to_owned()).await?,
        };
        Ok((u64::try_from(version).map_err(impossible)?, pools))
    }

    async fn replace_pools(&self, version: u64, pools: String, by: &AuditEntry) -> Result<bool> {
        // Before anybody configured pools, the empty list is the version to replace, also for who never read it.
        self.pools().await?;
        self.replaced(POOLS, pools, version, by).await
    }

    async fn pool_pauses(&self) -> Result<Vec<PoolPause>> {
        records::all(self.all::<PauseRow>(Way::VitalReads, self.ask(&PAUSES)).await?)
    }

    async fn pause_pool(
        &self,
        pool: &PoolName,
        reason: &str,
        for_ms: Option<u64>,
        by: &AuditEntry,
    ) -> Result<PoolPause> {
        let (pool, reason, by) = (pool.clone(), reason.to_owned(), by.clone());
        let for_ms = for_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
        let row: PauseRow = self
            .in_transaction(move |transaction| {
                Box::pin(async move {
                    let kind = transaction.kind();
                    let pauses: Vec<PauseRow> = transaction.all(PAUSES.on(kind)).await?;
                    let before = pauses.iter().find(|pause| pause.is_of(&pool)).map(PauseRow::text);
                    // Before its own row is locked, so that two pauses at once never wait for each other.
                    transaction.touch(FORGET.on(kind).at(transaction.at())).await?;
                    let pause = PAUSE
                        .on(kind)
                        .bind(pool.as_str())
                        .bind(reason.as_str())
                        .bind(&*by.principal)
                        .bind(for_ms)
                        .at(transaction.at());
                    let paused: Option<PauseRow> = transaction.optional(pause).await?;
                    let paused = paused.ok_or(sqlx::Error::RowNotFound)?;
                    audit::add(transaction, &[&by.changed(before, paused.text())]).await?;
                    Ok(Decided::Commit(paused))
                })
            })
            .await?;
        row.try_into()
    }

    async fn resume_pool(&self, pool: &PoolName, by: &AuditEntry) -> Result<()> {
        let (pool, by) = (pool.clone(), by.clone());
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                let resume = RESUME.on(transaction.kind()).bind(pool.as_str());
                let resumed: Vec<ResumedRow> = transaction.all(resume).await?;
                if resumed.is_empty() {
                    settle_commit(transaction).await?;
                }
                // Of one that had ended by itself nothing changes.
                for ResumedRow { pause, .. } in resumed.iter().filter(|resumed| resumed.is_in_force) {
                    audit::add(transaction, &[&by.changed(pause.text(), None::<String>)]).await?;
                }
                Ok(Decided::Commit(()))
            })
        })
        .await
    }

    async fn decide_id_epoch(&self, epoch_ms: u64) -> Result<u64> {
        let (_, kept) = match self.setting(ID_EPOCH).await? {
            Some(kept) => kept,
            None => self.decided(ID_EPOCH, epoch_ms.to_string()).await?,
        };
        kept.parse().map_err(impossible)
    }

    async fn decide_cluster_secret(&self, secret: &ClusterSecret) -> Result<ClusterSecret> {
        let (_, kept) = match self.setting(CLUSTER_SECRET).await? {
            Some(kept) => kept,
            None => self.decided(CLUSTER_SECRET, secret.expose().to_owned()).await?,
        };
        ClusterSecret::parse(&kept).map_err(impossible)
    }
}
