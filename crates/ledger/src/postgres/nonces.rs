//! Nonces on PostgreSQL: the fenced transaction, and reads.

use domain::nonce::{Hole, Loaded, Row, Status};
use domain::{HoldId, Nonce, SignerId, Timestamp};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgTransaction, Postgres as Dialect};
use uuid::Uuid;

use super::{Postgres, sql, write_failed};
use crate::Result;
use crate::changes::Changes;
use crate::detached::{self, Effect};
use crate::nonces::{
    Batch, KeptKey, KeyScope, NonceFilter, NonceRecord, Nonces, Read, SignerRecord, Verdict,
};
use crate::records::{self, HoldRow, KeyRow, LoadRow, NonceRecordRow, NonceRow, SignerRow, StatusCountRow};

#[async_trait::async_trait]
impl Nonces for Postgres {
    async fn load(&self, signer: &SignerId, holes_max: usize) -> Result<Loaded> {
        let pool = self.pool.clone();
        let id = signer.to_string();
        let row: LoadRow = self
            .reads(async move { sqlx::query_as(sql!("signer_load")).bind(id).fetch_one(&pool).await })
            .await?;
        row.loaded(self.holes(signer, holes_max).await?)
    }

    async fn holes(&self, signer: &SignerId, max: usize) -> Result<(Vec<Hole>, bool)> {
        records::holes(self.holds(sql!("nonce_holes"), signer, max + 1).await?, max)
    }

    async fn overdue(&self, signer: &SignerId, max: usize) -> Result<Vec<(Nonce, HoldId)>> {
        records::all(self.holds(sql!("nonce_overdue"), signer, max).await?)
    }

    async fn rows(&self, signer: &SignerId, nonces: &[Nonce]) -> Result<Read<Vec<Row>>> {
        let pool = self.pool.clone();
        let signer = signer.to_string();
        let nonces: Vec<_> = nonces.iter().map(|nonce| nonce.get() as i64).collect();
        let (at, rows): (i64, Vec<NonceRow>) = self
            .reads(async move {
                // The time first: a hold that is live at `at` was live when its row was read, or has run
                // out since and nobody was told.
                let at = sqlx::query_scalar(sql!("clock")).fetch_one(&pool).await?;
                let rows =
                    sqlx::query_as(sql!("nonce_rows")).bind(signer).bind(nonces).fetch_all(&pool).await?;
                Ok((at, rows))
            })
            .await?;
        Ok(Read { value: records::all(rows)?, at: Timestamp::from_micros(at) })
    }

    async fn commit(&self, batch: Batch) -> Result<Verdict> {
        let pool = self.pool.clone();
        detached::run(Effect::Writes, self.call_timeout, async move {
            let mut transaction = pool.begin().await.map_err(write_failed)?;
            let verdict = write(&mut transaction, batch).await.map_err(write_failed)?;
            // Nothing short of a commit that was answered is a success; all else undoes everything.
            if matches!(verdict, Verdict::Committed { .. }) {
                transaction.commit().await.map_err(write_failed)?;
            } else if let Err(error) = transaction.rollback().await {
                tracing::debug!(%error, "a refused batch was undone by losing its connection");
            }
            Ok(verdict)
        })
        .await
    }

    async fn kept_key(&self, scope: &KeyScope) -> Result<Option<KeptKey>> {
        let pool = self.pool.clone();
        let scope = scope.clone();
        let row: Option<KeyRow> = self
            .reads(async move {
                sqlx::query_as(sql!("key_show"))
                    .bind(scope.scope)
                    .bind(scope.key.as_str())
                    .fetch_optional(&pool)
                    .await
            })
            .await?;
        row.map(KeptKey::try_from).transpose()
    }

    async fn signer(&self, signer: &SignerId) -> Result<Option<SignerRecord>> {
        Ok(self.signer_page(None, Some(signer), 1).await?.pop())
    }

    async fn signers(&self, after: Option<&SignerId>, limit: u32) -> Result<Vec<SignerRecord>> {
        self.signer_page(after, None, limit).await
    }

    async fn nonces(&self, filter: &NonceFilter) -> Result<Vec<NonceRecord>> {
        let pool = self.pool.clone();
        let filter = filter.clone();
        let rows: Vec<NonceRecordRow> = self
            .reads(async move {
                sqlx::query_as(sql!("nonce_list"))
                    .bind(filter.signer.as_str())
                    .bind(filter.after.map_or(-1, |nonce| nonce.get() as i64))
                    .bind(filter.status.map(Status::as_str))
                    .bind(i64::from(filter.limit))
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        records::all(rows)
    }

    async fn overdue_signers(&self, limit: u32) -> Result<Vec<SignerId>> {
        let pool = self.pool.clone();
        let rows: Vec<String> = self
            .reads(async move {
                sqlx::query_scalar(sql!("signer_overdue")).bind(i64::from(limit)).fetch_all(&pool).await
            })
            .await?;
        records::signers(&rows)
    }

    async fn open_counts(&self) -> Result<Vec<(Status, u64)>> {
        let pool = self.pool.clone();
        let rows: Vec<StatusCountRow> = self
            .reads(async move { sqlx::query_as(sql!("nonce_open_counts")).fetch_all(&pool).await })
            .await?;
        records::all(rows)
    }

    async fn purge_keys(&self, age_ms: u64, limit: u32) -> Result<u64> {
        let pool = self.pool.clone();
        self.writes(async move {
            let purge = sqlx::query(sql!("key_purge")).bind(age_ms as i64).bind(i64::from(limit));
            Ok(purge.execute(&pool).await?.rows_affected())
        })
        .await
    }
}

impl Postgres {
    async fn holds(&self, statement: &'static str, signer: &SignerId, limit: usize) -> Result<Vec<HoldRow>> {
        let pool = self.pool.clone();
        let signer = signer.to_string();
        self.reads(
            async move { sqlx::query_as(statement).bind(signer).bind(limit as i64).fetch_all(&pool).await },
        )
        .await
    }

    async fn signer_page(
        &self,
        after: Option<&SignerId>,
        only: Option<&SignerId>,
        limit: u32,
    ) -> Result<Vec<SignerRecord>> {
        let pool = self.pool.clone();
        let after = after.map_or_else(String::new, ToString::to_string);
        let only = only.map(ToString::to_string);
        let rows: Vec<SignerRow> = self
            .reads(async move {
                sqlx::query_as(sql!("signer_list"))
                    .bind(after)
                    .bind(only)
                    .bind(i64::from(limit))
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        records::all(rows)
    }
}

/// Everything between BEGIN and COMMIT. The order is the order of locks: lease, unique key, data rows.
async fn write(transaction: &mut PgTransaction<'_>, batch: Batch) -> sqlx::Result<Verdict> {
    let resource = batch.resource().to_string();
    let locked: Option<(String, i64)> = sqlx::query_as(sql!("fence_lock"))
        .bind(vec![resource.clone()])
        .bind(vec![batch.token.get()])
        .bind(batch.owner.as_str())
        .fetch_optional(&mut **transaction)
        .await?;
    let Some((_, at)) = locked else {
        let holds: bool = sqlx::query_scalar(sql!("fence_holds"))
            .bind(resource)
            .bind(batch.token.get())
            .bind(batch.owner.as_str())
            .fetch_one(&mut **transaction)
            .await?;
        return Ok(if holds { Verdict::Again } else { Verdict::Fenced });
    };
    if let Some(key) = &batch.key {
        let keep = sqlx::query(sql!("key_keep"))
            .bind(&key.scope.scope)
            .bind(key.scope.key.as_str())
            .bind(&key.body_hash[..])
            .bind(key.answer.to_kept_text());
        if keep.execute(&mut **transaction).await?.rows_affected() == 0 {
            return Ok(Verdict::KeyTaken);
        }
    }
    if let Some(policy) = &batch.policy {
        sqlx::query(sql!("signer_policy"))
            .bind(batch.signer.as_str())
            .bind(policy.first_nonce.get() as i64)
            .bind(policy.hold_ms.map(|ms| ms as i64))
            .bind(policy.on_expiry.as_str())
            .bind(policy.max_in_flight.map(|nonces| nonces as i64))
            .bind(batch.token.get())
            .execute(&mut **transaction)
            .await?;
    }
    for (statement, rows) in statements(batch) {
        if statement.execute(&mut **transaction).await?.rows_affected() != rows {
            return Ok(Verdict::Diverged);
        }
    }
    Ok(Verdict::Committed { at: Timestamp::from_micros(at) })
}

type Statement = Query<'static, Dialect, PgArguments>;

/// The writes of nonce rows, each with the number of rows that it must touch.
fn statements(batch: Batch) -> Vec<(Statement, u64)> {
    let Batch { signer, owner, token, changes, .. } = batch;
    let changes = Changes::sorted(changes);
    let signers = |rows: usize| vec![signer.to_string(); rows];
    let tokens = |rows: usize| vec![token.get(); rows];
    let uuid = |hold: HoldId| Uuid::from_u128(hold.as_u128());
    let mut statements = Vec::new();
    let new = &changes.new;
    if !new.is_empty() {
        let statement = sqlx::query(sql!("nonce_grant_new"))
            .bind(signers(new.len()))
            .bind(new.iter().map(|n| n.nonce.get() as i64).collect::<Vec<_>>())
            .bind(new.iter().map(|n| uuid(n.hold)).collect::<Vec<_>>())
            .bind(new.iter().map(|n| n.hold_ms as i64).collect::<Vec<_>>())
            .bind(tokens(new.len()))
            .bind(owner.to_string());
        statements.push((statement, new.len() as u64));
    }
    let refills = &changes.refills;
    if !refills.is_empty() {
        let statement = sqlx::query(sql!("nonce_grant_hole"))
            .bind(signers(refills.len()))
            .bind(refills.iter().map(|r| r.grant.nonce.get() as i64).collect::<Vec<_>>())
            .bind(refills.iter().map(|r| uuid(r.grant.hold)).collect::<Vec<_>>())
            .bind(refills.iter().map(|r| r.grant.hold_ms as i64).collect::<Vec<_>>())
            .bind(tokens(refills.len()))
            .bind(owner.to_string())
            .bind(refills.iter().map(|r| uuid(r.last_hold)).collect::<Vec<_>>());
        statements.push((statement, refills.len() as u64));
    }
    let moved = &changes.moved;
    if !moved.is_empty() {
        let statement = sqlx::query(sql!("nonce_move"))
            .bind(signers(moved.len()))
            .bind(moved.iter().map(|m| m.nonce.get() as i64).collect::<Vec<_>>())
            .bind(moved.iter().map(|m| uuid(m.hold)).collect::<Vec<_>>())
            .bind(moved.iter().map(|m| m.from.as_str().to_owned()).collect::<Vec<_>>())
            .bind(moved.iter().map(|m| m.to.as_str().to_owned()).collect::<Vec<_>>())
            .bind(moved.iter().map(|m| m.tx_hash.as_ref().map(ToString::to_string)).collect::<Vec<_>>())
            .bind(tokens(moved.len()))
            .bind(owner.to_string());
        statements.push((statement, moved.len() as u64));
    }
    let expired = &changes.expired;
    if !expired.is_empty() {
        let statement = sqlx::query(sql!("nonce_expire"))
            .bind(signers(expired.len()))
            .bind(expired.iter().map(|e| e.nonce.get() as i64).collect::<Vec<_>>())
            .bind(expired.iter().map(|e| uuid(e.hold)).collect::<Vec<_>>())
            .bind(expired.iter().map(|e| e.to.as_str().to_owned()).collect::<Vec<_>>())
            .bind(tokens(expired.len()))
            .bind(owner.to_string());
        statements.push((statement, expired.len() as u64));
    }
    statements
}
