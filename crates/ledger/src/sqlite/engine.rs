//! One train on SQLite: one transaction of the one writer.

use std::collections::HashSet;

use domain::{Timestamp, TxHash};
use serde_json::{Value, json};
use sqlx::{SqlitePool, SqliteTransaction};

use super::{sql, write_failed};
use crate::changes::{Changes, New, Writer};
use crate::train::{Derailed, Engine};
use crate::{Batch, Verdict};

/// The writer's track.
pub(super) struct Track {
    pub(super) writer: SqlitePool,
}

#[async_trait::async_trait]
impl Engine for Track {
    async fn pull(&mut self, batches: &[Batch]) -> Result<Vec<Verdict>, Derailed> {
        // The writer from its first statement on: what it reads cannot change before it commits.
        let mut transaction = self.writer.begin_with("BEGIN IMMEDIATE").await.map_err(write_failed)?;
        let mut verdicts = vec![Verdict::Fenced; batches.len()];
        match write(&mut transaction, batches, &mut verdicts).await {
            Ok(true) => transaction.commit().await.map_err(write_failed)?,
            Ok(false) => transaction.rollback().await.map_err(write_failed)?,
            Err(derailed) => {
                transaction.rollback().await.map_err(write_failed)?;
                return Err(derailed);
            }
        }
        Ok(verdicts)
    }
}

/// Everything between BEGIN IMMEDIATE and COMMIT; whether there is anything to commit.
async fn write(
    transaction: &mut SqliteTransaction<'_>,
    batches: &[Batch],
    verdicts: &mut [Verdict],
) -> Result<bool, Derailed> {
    let (mut aboard, at) = fence(transaction, batches, verdicts).await.map_err(write_failed)?;
    keep_keys(transaction, batches, verdicts, &mut aboard, at).await.map_err(write_failed)?;
    if aboard.is_empty() {
        return Ok(false);
    }
    let policies = Value::from_iter(aboard.iter().filter_map(|&n| {
        let policy = batches[n].policy.as_ref()?;
        Some(json!({
            "signer": batches[n].signer.as_str(),
            "first_nonce": policy.first_nonce.get(),
            "hold_ms": policy.hold_ms,
            "on_expiry": policy.on_expiry.as_str(),
            "max_in_flight": policy.max_in_flight,
            "token": batches[n].token.get(),
        }))
    }));
    if policies.as_array().is_some_and(|policies| !policies.is_empty()) {
        let statement = sqlx::query(sql!("signer_policy")).bind(policies.to_string()).bind(at);
        statement.execute(&mut **transaction).await.map_err(write_failed)?;
    }
    let changes = Changes::sorted(aboard.iter().map(|&n| &batches[n]));
    for (statement, rows) in statements(&changes) {
        let written = sqlx::query(statement).bind(json!(rows).to_string()).bind(at);
        let done = written.execute(&mut **transaction).await.map_err(write_failed)?;
        if done.rows_affected() != rows.len() as u64 {
            return Err(Derailed::Diverged);
        }
    }
    Ok(true)
}

/// Looks at the lease of every batch; answers those whose lease it was and the transaction's time, and
/// writes the verdicts of all. No row is ever locked by somebody else here.
async fn fence(
    transaction: &mut SqliteTransaction<'_>,
    batches: &[Batch],
    verdicts: &mut [Verdict],
) -> sqlx::Result<(Vec<usize>, i64)> {
    let resources: Vec<_> = batches.iter().map(|batch| batch.resource().to_string()).collect();
    let tenures = Value::from_iter(batches.iter().zip(&resources).map(|(batch, resource)| {
        json!({ "resource": resource, "token": batch.token.get(), "owner": batch.owner.as_str() })
    }));
    let held: Vec<(String, i64)> =
        sqlx::query_as(sql!("fence_lock")).bind(tenures.to_string()).fetch_all(&mut **transaction).await?;
    let at = held.first().map_or(0, |(_, at)| *at);
    let held: HashSet<_> = held.into_iter().map(|(resource, _)| resource).collect();
    let aboard: Vec<_> = (0..batches.len()).filter(|&n| held.contains(&resources[n])).collect();
    for &n in &aboard {
        verdicts[n] = Verdict::Committed { at: Timestamp::from_micros(at) };
    }
    Ok((aboard, at))
}

/// Keeps the idempotency keys of those aboard. Whoever finds one of theirs taken gets off, and takes back
/// what was kept of the others.
async fn keep_keys(
    transaction: &mut SqliteTransaction<'_>,
    batches: &[Batch],
    verdicts: &mut [Verdict],
    aboard: &mut Vec<usize>,
    at: i64,
) -> sqlx::Result<()> {
    let keys: Vec<_> = aboard.iter().flat_map(|&n| &batches[n].keys).collect();
    if keys.is_empty() {
        return Ok(());
    }
    let wanted = Value::from_iter(keys.iter().map(|key| {
        json!({
            "scope": key.scope.scope,
            "key": key.scope.key.as_str(),
            "body_hash": key.body_hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
            "answer": key.answer.to_kept_text(),
        })
    }));
    let kept: HashSet<(String, String)> = sqlx::query_as(sql!("key_keep"))
        .bind(wanted.to_string())
        .bind(at)
        .fetch_all(&mut **transaction)
        .await?
        .into_iter()
        .collect();
    if kept.len() == keys.len() {
        return Ok(());
    }
    let name = |key: &crate::NewKey| (key.scope.scope.clone(), key.scope.key.to_string());
    let mut back = Vec::new();
    aboard.retain(|&n| {
        let names: Vec<_> = batches[n].keys.iter().map(name).collect();
        let taken = names.iter().any(|name| !kept.contains(name));
        if taken {
            verdicts[n] = Verdict::KeyTaken;
            back.extend(names.into_iter().filter(|name| kept.contains(name)));
        }
        !taken
    });
    if !back.is_empty() {
        let back = Value::from_iter(back.iter().map(|(scope, key)| json!({ "scope": scope, "key": key })));
        sqlx::query(sql!("key_forget")).bind(back.to_string()).execute(&mut **transaction).await?;
    }
    Ok(())
}

/// The writes of nonce rows: each statement with the rows that it must touch.
fn statements(changes: &Changes<'_>) -> Vec<(&'static str, Vec<Value>)> {
    let grant = |new: &New<'_>| {
        let (nonce, hold) = (new.nonce.get(), new.hold.to_string());
        let Writer { signer, token, owner } = new.by;
        json!({
            "signer": signer, "nonce": nonce, "hold": hold, "hold_ms": new.hold_ms, "token": token, "owner": owner
        })
    };
    let refills = changes.refills.iter().map(|refill| {
        let mut row = grant(&refill.grant);
        row["last_hold"] = json!(refill.last_hold.to_string());
        row
    });
    let moved = changes.moved.iter().map(|m| {
        let Writer { signer, token, owner } = m.by;
        json!({
            "signer": signer,
            "nonce": m.nonce.get(),
            "hold": m.hold.to_string(),
            "from": m.from.as_str(),
            "to": m.to.as_str(),
            "tx_hash": m.tx_hash.map(TxHash::as_str),
            "token": token,
            "owner": owner,
        })
    });
    let expired = changes.expired.iter().map(|e| {
        let Writer { signer, token, owner } = e.by;
        let (nonce, hold) = (e.nonce.get(), e.hold.to_string());
        json!({ "signer": signer, "nonce": nonce, "hold": hold, "to": e.to.as_str(), "token": token, "owner": owner })
    });
    let mut statements: Vec<(&'static str, Vec<Value>)> = vec![
        (sql!("nonce_grant_new"), changes.new.iter().map(grant).collect()),
        (sql!("nonce_grant_hole"), refills.collect()),
        (sql!("nonce_move"), moved.collect()),
        (sql!("nonce_expire"), expired.collect()),
    ];
    statements.retain(|(_, rows)| !rows.is_empty());
    statements
}
