//! Nonces in SQLite. Writes leave by train; the rest are reads.

mod write;

use domain::nonce::{Hole, Loaded, Row, Status};
use domain::{HoldId, InstanceId, Nonce, SignerId, Timestamp};
use serde_json::{Value, json};

use super::{Sqlite, sql};
use crate::Result;
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
        self.trains.commit(batch, self.call_timeout).await
    }

    async fn kept_keys(&self, scopes: &[KeyScope]) -> Result<Vec<(KeyScope, KeptKey)>> {
        records::all(self.key_rows(scopes).await?)
    }

    async fn signer(&self, signer: &SignerId) -> Result<Option<SignerRecord>> {
        Ok(self.signer_page(signer.to_string(), signer.to_string(), 1).await?.pop())
    }

    async fn signers(&self, after: Option<&SignerId>, limit: u32) -> Result<Vec<SignerRecord>> {
        let (from, to) = records::signer_bounds(after);
        self.signer_page(from, to, limit).await
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

    async fn overdue_signers(&self, me: &InstanceId, limit: u32) -> Result<Vec<SignerId>> {
        let pool = self.readers.clone();
        let me = me.to_string();
        let rows: Vec<String> = self
            .reads(async move {
                sqlx::query_scalar(sql!("signer_overdue"))
                    .bind(me)
                    .bind(i64::from(limit))
                    .fetch_all(&pool)
                    .await
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
    /// What is kept under idempotency keys of whatever kind.
    pub(super) async fn key_rows(&self, scopes: &[KeyScope]) -> Result<Vec<KeyRow>> {
        let pool = self.readers.clone();
        let wanted = Value::from_iter(
            scopes.iter().map(|scope| json!({ "scope": scope.scope, "key": scope.key.as_str() })),
        );
        self.reads(
            async move { sqlx::query_as(sql!("key_show")).bind(wanted.to_string()).fetch_all(&pool).await },
        )
        .await
    }

    async fn holds(&self, statement: &'static str, signer: &SignerId, limit: usize) -> Result<Vec<HoldRow>> {
        let pool = self.readers.clone();
        let signer = signer.to_string();
        self.reads(
            async move { sqlx::query_as(statement).bind(signer).bind(limit as i64).fetch_all(&pool).await },
        )
        .await
    }

    async fn signer_page(&self, from: String, to: String, limit: u32) -> Result<Vec<SignerRecord>> {
        let pool = self.readers.clone();
        let rows: Vec<SignerRow> = self
            .reads(async move {
                sqlx::query_as(sql!("signer_list"))
                    .bind(from)
                    .bind(to)
                    .bind(i64::from(limit))
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        records::all(rows)
    }
}
