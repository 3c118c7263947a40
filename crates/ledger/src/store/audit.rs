//! The statements of the audit.

use domain::{AuditEntry, Timestamp};

use super::{Decided, Store, Way};
use crate::Result;
use crate::audit::{AuditFilter, AuditRecord, AuditRow, Audits};
use crate::jobs::PAGE_BYTES_MAX;
use crate::sql::{Statement, Transaction, narrowed, statement};

const ADD: Statement = statement!("audit_add");
const LIST: Statement = statement!("audit_list");
const NOTED: Statement = statement!(both "audit_noted");
const PURGE: Statement = statement!("audit_purge");

/// Writes entries in the transaction of what they are about.
pub(super) async fn add(transaction: &mut Transaction<'_>, entries: &[&AuditEntry]) -> sqlx::Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let ask = ADD.on(transaction.kind()).rows(entries, |rows| {
        rows.column("principal", |entry| &*entry.principal)
            .column("action", |entry| entry.action)
            .column("subject", |entry| entry.subject.as_str())
            .column("before", |entry| entry.before.as_deref())
            .column("after", |entry| entry.after.as_deref())
            .column("reason", |entry| entry.reason.as_deref())
            .column("request_id", |entry| entry.request_id.as_deref());
    });
    transaction.touch(ask.at(transaction.at())).await.map(drop)
}

#[async_trait::async_trait]
impl Audits for Store {
    async fn audit(&self, entry: &AuditEntry) -> Result<()> {
        let entry = entry.clone();
        self.in_transaction(move |transaction| {
            Box::pin(async move { add(transaction, &[&entry]).await.map(Decided::Commit) })
        })
        .await
    }

    async fn audit_once(&self, entry: &AuditEntry) -> Result<()> {
        let entry = entry.clone();
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                let noted = NOTED.on(transaction.kind()).bind(entry.subject.as_str()).bind(entry.action);
                let noted = noted.bind(&*entry.principal).bind(entry.request_id.as_deref());
                if !transaction.all::<(i64,)>(noted).await?.is_empty() {
                    return Ok(Decided::Rollback(()));
                }
                add(transaction, &[&entry]).await.map(Decided::Commit)
            })
        })
        .await
    }

    async fn audits(&self, filter: &AuditFilter) -> Result<Vec<AuditRecord>> {
        // What is asked for stands in the text: SQLite finds nothing by an index where a condition may be that nothing is asked
        // for.
        let asks_for = |mark: &str| match mark {
            "principal" => filter.principal.is_some(),
            "action" => filter.action.is_some(),
            "subject" => filter.subject.is_some(),
            other => unreachable!("no list has a mark {other}"),
        };
        let ask = self
            .ask(&LIST)
            .reworded(|text| narrowed(text, asks_for))
            .bind(filter.principal.as_deref())
            .bind(filter.action.as_deref())
            .bind(filter.subject.as_deref())
            .bind(filter.since.map_or(0, Timestamp::as_micros))
            .bind(filter.before.unwrap_or(i64::MAX))
            .bind(i64::from(filter.limit))
            .bind(PAGE_BYTES_MAX as i64);
        let rows: Vec<AuditRow> = self.all(Way::Reads, ask).await?;
        Ok(rows.into_iter().map(AuditRecord::from).collect())
    }

    async fn purge_audits(&self, age_ms: u64, limit: u32) -> Result<u64> {
        let ask = self.ask(&PURGE).bind(age_ms as i64).bind(i64::from(limit));
        self.touch(Way::Writes, ask).await
    }
}
