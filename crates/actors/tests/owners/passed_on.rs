//! What a flaky ledger passes on as it is: bulk operations and settings.

use async_trait::async_trait;
use domain::{
    AuditEntry, BulkId, ClusterSecret, InstanceId, JobId, Mode, Modes, PoolName, PoolPause, Timestamp,
};
use ledger::{
    BulkAction, BulkCount, BulkFound, BulkMade, BulkRecord, BulkScan, BulkStatus, BulkStep, Bulks, JobFilter,
    NewBulk, OpenBulk, Result, Settings,
};

use crate::flaky::Flaky;

#[async_trait]
impl Bulks for Flaky {
    async fn bulk_now(&self) -> Result<Timestamp> {
        self.real.bulk_now().await
    }
    async fn count_bulk(
        &self,
        action: BulkAction,
        filter: &JobFilter,
        before: Timestamp,
        behind: Option<JobId>,
        rows_max: u32,
    ) -> Result<BulkCount> {
        self.real.count_bulk(action, filter, before, behind, rows_max).await
    }
    async fn create_bulk(&self, new: &NewBulk, by: Option<&AuditEntry>) -> Result<BulkMade> {
        self.real.create_bulk(new, by).await
    }
    async fn kept_bulk(&self, key_hash: &str) -> Result<Option<BulkRecord>> {
        self.real.kept_bulk(key_hash).await
    }
    async fn bulk(&self, id: BulkId) -> Result<Option<BulkRecord>> {
        self.real.bulk(id).await
    }
    async fn bulks(
        &self,
        before: Option<BulkId>,
        limit: u32,
        principal: Option<&str>,
    ) -> Result<Vec<BulkRecord>> {
        self.real.bulks(before, limit, principal).await
    }
    async fn open_bulks(&self) -> Result<Vec<OpenBulk>> {
        self.real.open_bulks().await
    }
    async fn take_bulk(&self, open: &OpenBulk, me: &InstanceId) -> Result<Option<BulkRecord>> {
        self.real.take_bulk(open, me).await
    }
    async fn leave_bulk(&self, bulk: &BulkRecord) -> Result<Option<BulkRecord>> {
        self.real.leave_bulk(bulk).await
    }
    async fn next_of_bulk(
        &self,
        action: BulkAction,
        filter: &JobFilter,
        before: Timestamp,
        scan: BulkScan,
    ) -> Result<BulkFound> {
        self.real.next_of_bulk(action, filter, before, scan).await
    }
    async fn begin_page(&self, bulk: &BulkRecord, page: &[JobId]) -> Result<Option<BulkRecord>> {
        self.real.begin_page(bulk, page).await
    }
    async fn remove_page(
        &self,
        bulk: &BulkRecord,
        jobs: &[JobId],
        behind: JobId,
    ) -> Result<Option<BulkRecord>> {
        self.real.remove_page(bulk, jobs, behind).await
    }
    async fn note_progress(
        &self,
        bulk: &BulkRecord,
        behind: JobId,
        step: &BulkStep,
    ) -> Result<Option<BulkRecord>> {
        self.real.note_progress(bulk, behind, step).await
    }
    async fn finish_bulk(
        &self,
        bulk: &BulkRecord,
        status: BulkStatus,
        error: Option<&str>,
    ) -> Result<Option<BulkRecord>> {
        self.real.finish_bulk(bulk, status, error).await
    }
    async fn cancel_bulk(&self, id: BulkId, by: Option<&AuditEntry>) -> Result<()> {
        self.real.cancel_bulk(id, by).await
    }
    async fn purge_bulks(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.real.purge_bulks(age_ms, limit).await
    }
}

#[async_trait]
impl Settings for Flaky {
    async fn modes(&self) -> Result<Option<Modes>> {
        self.real.modes().await
    }
    async fn decide_mode(&self, mode: Mode) -> Result<Modes> {
        self.real.decide_mode(mode).await
    }
    async fn replace_modes(&self, modes: &Modes, by: &AuditEntry) -> Result<Option<Modes>> {
        self.real.replace_modes(modes, by).await
    }
    async fn pools(&self) -> Result<(u64, String)> {
        self.real.pools().await
    }
    async fn replace_pools(&self, version: u64, pools: String, by: &AuditEntry) -> Result<bool> {
        self.real.replace_pools(version, pools, by).await
    }
    async fn pool_pauses(&self) -> Result<Vec<PoolPause>> {
        self.real.pool_pauses().await
    }
    async fn pause_pool(
        &self,
        pool: &PoolName,
        reason: &str,
        for_ms: Option<u64>,
        by: &AuditEntry,
    ) -> Result<PoolPause> {
        self.real.pause_pool(pool, reason, for_ms, by).await
    }
    async fn resume_pool(&self, pool: &PoolName, by: &AuditEntry) -> Result<()> {
        self.real.resume_pool(pool, by).await
    }
    async fn decide_id_epoch(&self, epoch_ms: u64) -> Result<u64> {
        self.real.decide_id_epoch(epoch_ms).await
    }
    async fn decide_cluster_secret(&self, secret: &ClusterSecret) -> Result<ClusterSecret> {
        self.real.decide_cluster_secret(secret).await
    }
}
