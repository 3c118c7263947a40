//! Nonces: what an owner loads, and what anybody may read. Writes leave by train.

mod write;

use domain::nonce::{Hole, Loaded, Row, Status};
use domain::{HoldId, InstanceId, Nonce, SignerId, Timestamp};

use super::{Store, Way};
use crate::Result;
use crate::nonces::{
    Batch, KeptKey, KeyScope, NonceFilter, NonceRecord, Nonces, Read, SignerRecord, Verdict,
};
use crate::records::{self, HoldRow, KeyRow, LoadRow, NonceRecordRow, NonceRow, SignerRow, StatusCountRow};
use crate::sql::{Statement, statement};

const CLOCK: Statement = statement!("clock");
const LOAD: Statement = statement!("signer_load");
const HOLES: Statement = statement!("nonce_holes");
const OVERDUE: Statement = statement!("nonce_overdue");
const ROWS: Statement = statement!("nonce_rows");
const LIST: Statement = statement!(both "nonce_list");
const OPEN_COUNTS: Statement = statement!("nonce_open_counts");
const SIGNERS: Statement = statement!("signer_list");
const OVERDUE_SIGNERS: Statement = statement!("signer_overdue");
const KEYS: Statement = statement!("key_show");
const KEY_PURGE: Statement = statement!("key_purge");

#[async_trait::async_trait]
impl Nonces for Store {
    async fn load(&self, signer: &SignerId, holes_max: usize) -> Result<Loaded> {
        let row: LoadRow = self.one(Way::KeyReads, self.ask(&LOAD).bind(signer.as_str())).await?;
        let holes = if row.has_holes { self.holes(signer, holes_max).await? } else { (Vec::new(), true) };
        row.loaded(holes)
    }

    async fn holes(&self, signer: &SignerId, max: usize) -> Result<(Vec<Hole>, bool)> {
        records::holes(self.holds(&HOLES, signer, max + 1).await?, max)
    }

    async fn overdue(&self, signer: &SignerId, max: usize) -> Result<Vec<(Nonce, HoldId)>> {
        records::all(self.holds(&OVERDUE, signer, max).await?)
    }

    async fn rows(&self, signer: &SignerId, nonces: &[Nonce]) -> Result<Read<Vec<Row>>> {
        let clock = self.ask(&CLOCK);
        let nonces: Vec<_> = nonces.iter().map(|nonce| nonce.get() as i64).collect();
        let rows = self.ask(&ROWS).bind(signer.as_str()).array(nonces);
        let (at, rows) = self
            .with(Way::KeyReads, move |mut session| {
                Box::pin(async move {
                    // The time first: a hold that is live at `at` was live when its row was read, or ran out between
                    // the two statements.
                    let (at,): (i64,) = session.one(clock).await?;
                    Ok((at, session.answer(rows).await?))
                })
            })
            .await?;
        let rows: Vec<NonceRow> = rows.records().map_err(super::failure::read_failed)?;
        Ok(Read { value: records::all(rows)?, at: Timestamp::from_micros(at) })
    }

    async fn commit(&self, batch: Batch) -> Result<Verdict> {
        self.trains.commit(batch, self.call_timeout).await
    }

    async fn kept_keys(&self, scopes: &[KeyScope]) -> Result<Vec<(KeyScope, KeptKey)>> {
        records::all(self.key_rows(scopes).await?)
    }

    async fn signer(&self, signer: &SignerId) -> Result<Option<SignerRecord>> {
        Ok(self.signer_page(signer.as_str(), signer.as_str(), 1).await?.pop())
    }

    async fn signers(&self, after: Option<&SignerId>, limit: u32) -> Result<Vec<SignerRecord>> {
        let (from, to) = records::signer_bounds(after);
        self.signer_page(&from, &to, limit).await
    }

    async fn nonces(&self, filter: &NonceFilter) -> Result<Vec<NonceRecord>> {
        let ask = self
            .ask(&LIST)
            .bind(filter.signer.as_str())
            .bind(filter.after.map_or(-1, |nonce| nonce.get() as i64))
            .bind(filter.status.map(Status::as_str))
            .bind(i64::from(filter.limit));
        records::all(self.all::<NonceRecordRow>(Way::Reads, ask).await?)
    }

    async fn overdue_signers(&self, me: &InstanceId, limit: u32) -> Result<Vec<SignerId>> {
        let ask = self.ask(&OVERDUE_SIGNERS).bind(me.as_str()).bind(i64::from(limit));
        records::signers(self.all(Way::Reads, ask).await?)
    }

    async fn open_counts(&self) -> Result<Vec<(Status, u64)>> {
        records::all(self.all::<StatusCountRow>(Way::Reads, self.ask(&OPEN_COUNTS)).await?)
    }

    async fn purge_keys(&self, age_ms: u64, limit: u32) -> Result<u64> {
        let ask = self.ask(&KEY_PURGE).bind(age_ms as i64).bind(i64::from(limit));
        self.touch(Way::Writes, ask).await
    }
}

impl Store {
    /// What is kept under idempotency keys of any kind.
    pub(super) async fn key_rows(&self, scopes: &[KeyScope]) -> Result<Vec<KeyRow>> {
        let ask = self.ask(&KEYS).rows(scopes, |scopes| {
            scopes.column("scope", |scope| scope.scope.as_str()).column("key", |scope| scope.key.as_str());
        });
        self.all(Way::KeyReads, ask).await
    }

    async fn holds(&self, statement: &Statement, signer: &SignerId, limit: usize) -> Result<Vec<HoldRow>> {
        self.all(Way::KeyReads, self.ask(statement).bind(signer.as_str()).bind(limit as i64)).await
    }

    async fn signer_page(&self, from: &str, to: &str, limit: u32) -> Result<Vec<SignerRecord>> {
        let ask = self.ask(&SIGNERS).bind(from).bind(to).bind(i64::from(limit));
        records::all(self.all::<SignerRow>(Way::Reads, ask).await?)
    }
}
