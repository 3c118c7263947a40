//! Nonces in SQLite: the fenced transaction, and reads.

use domain::nonce::{Hole, Loaded, Row, Status};
use domain::{HoldId, Nonce, SignerId, Timestamp, TxHash};
use serde_json::{Value, json};
use sqlx::SqliteTransaction;

use super::{Sqlite, begin_immediate, sql, write_failed};
use crate::Result;
use crate::changes::Changes;
use crate::detached::{self, Effect};
use crate::nonces::{
    Batch, KeptKey, KeyScope, NonceFilter, NonceRecord, Nonces, Read, SignerRecord, Verdict,
};
use crate::records::{self, HoldRow, KeyRow, LoadRow, NonceRecordRow, NonceRow, SignerRow, StatusCountRow};

#[async_trait::async_trait]
impl Nonces for Sqlite {
    async fn load(&self, signer: &SignerId, holes_max: usize) -> Result<Loaded> {
        let pool = self.readers.clone();
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
        let pool = self.readers.clone();
        let signer = signer.to_string();
        let nonces = Value::from_iter(nonces.iter().map(|nonce| nonce.get())).to_string();
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
        let writer = self.writer.clone();
        detached::run(Effect::Writes, self.call_timeout, async move {
            let mut transaction = begin_immediate(&writer).await.map_err(write_failed)?;
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
        let pool = self.readers.clone();
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
        let pool = self.readers.clone();
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
        let pool = self.readers.clone();
        let rows: Vec<String> = self
            .reads(async move {
                sqlx::query_scalar(sql!("signer_overdue")).bind(i64::from(limit)).fetch_all(&pool).await
            })
            .await?;
        records::signers(&rows)
    }

    async fn open_counts(&self) -> Result<Vec<(Status, u64)>> {
        let pool = self.readers.clone();
        let rows: Vec<StatusCountRow> = self
            .reads(async move { sqlx::query_as(sql!("nonce_open_counts")).fetch_all(&pool).await })
            .await?;
        records::all(rows)
    }

    async fn purge_keys(&self, age_ms: u64, limit: u32) -> Result<u64> {
        let pool = self.writer.clone();
        self.writes(async move {
            let purge = sqlx::query(sql!("key_purge")).bind(age_ms as i64).bind(i64::from(limit));
            Ok(purge.execute(&pool).await?.rows_affected())
        })
        .await
    }
}

impl Sqlite {
    async fn holds(&self, statement: &'static str, signer: &SignerId, limit: usize) -> Result<Vec<HoldRow>> {
        let pool = self.readers.clone();
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
        let pool = self.readers.clone();
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

/// Everything between BEGIN IMMEDIATE and COMMIT.
async fn write(transaction: &mut SqliteTransaction<'_>, batch: Batch) -> sqlx::Result<Verdict> {
    let tenure = json!([{ "resource": batch.resource().as_str(), "token": batch.token.get() }]);
    let locked: Option<(String, i64)> = sqlx::query_as(sql!("fence_lock"))
        .bind(tenure.to_string())
        .bind(batch.owner.as_str())
        .fetch_optional(&mut **transaction)
        .await?;
    // No row is ever passed over here: the whole file is this transaction's.
    let Some((_, at)) = locked else { return Ok(Verdict::Fenced) };
    if let Some(key) = &batch.key {
        let keep = sqlx::query(sql!("key_keep"))
            .bind(&key.scope.scope)
            .bind(key.scope.key.as_str())
            .bind(&key.body_hash[..])
            .bind(key.answer.to_kept_text())
            .bind(at);
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
            .bind(at)
            .execute(&mut **transaction)
            .await?;
    }
    let owner = batch.owner.clone();
    for (statement, rows) in statements(batch) {
        let done = sqlx::query(statement)
            .bind(json!(rows).to_string())
            .bind(owner.as_str())
            .bind(at)
            .execute(&mut **transaction)
            .await?;
        if done.rows_affected() != rows.len() as u64 {
            return Ok(Verdict::Diverged);
        }
    }
    Ok(Verdict::Committed { at: Timestamp::from_micros(at) })
}

/// The writes of nonce rows: each statement with the rows that it must touch.
fn statements(batch: Batch) -> Vec<(&'static str, Vec<Value>)> {
    let Batch { signer, token, changes, .. } = batch;
    let changes = Changes::sorted(changes);
    let (signer, token) = (signer.as_str(), token.get());
    let new = changes.new.iter().map(|n| {
        let (nonce, hold) = (n.nonce.get(), n.hold.to_string());
        json!({ "signer": signer, "nonce": nonce, "hold": hold, "hold_ms": n.hold_ms, "token": token })
    });
    let refills = changes.refills.iter().map(|r| {
        json!({
            "signer": signer,
            "nonce": r.grant.nonce.get(),
            "hold": r.grant.hold.to_string(),
            "hold_ms": r.grant.hold_ms,
            "token": token,
            "last_hold": r.last_hold.to_string(),
        })
    });
    let moved = changes.moved.iter().map(|m| {
        json!({
            "signer": signer,
            "nonce": m.nonce.get(),
            "hold": m.hold.to_string(),
            "from": m.from.as_str(),
            "to": m.to.as_str(),
            "tx_hash": m.tx_hash.as_ref().map(TxHash::as_str),
            "token": token,
        })
    });
    let expired = changes.expired.iter().map(|e| {
        let (nonce, hold) = (e.nonce.get(), e.hold.to_string());
        json!({ "signer": signer, "nonce": nonce, "hold": hold, "to": e.to.as_str(), "token": token })
    });
    let mut statements: Vec<(&'static str, Vec<Value>)> = vec![
        (sql!("nonce_grant_new"), new.collect()),
        (sql!("nonce_grant_hole"), refills.collect()),
        (sql!("nonce_move"), moved.collect()),
        (sql!("nonce_expire"), expired.collect()),
    ];
    statements.retain(|(_, rows)| !rows.is_empty());
    statements
}
