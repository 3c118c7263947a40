//! What a train of nonces writes in SQLite.

use domain::{Timestamp, TxHash};
use serde_json::{Value, json};
use sqlx::SqliteTransaction;

use crate::changes::{Changes, New, Writer};
use crate::keys::Aboard;
use crate::sqlite::engine::{Writes, Written, fence, forget_keys, keep_keys};
use crate::sqlite::{sql, write_failed};
use crate::train::{Derailed, tenures};
use crate::{Batch, Verdict};

#[async_trait::async_trait]
impl Writes for Batch {
    async fn write(
        transaction: &mut SqliteTransaction<'_>,
        batches: &[Self],
        at: i64,
    ) -> Result<Written<Verdict>, Derailed<Verdict>> {
        let fences = fence(transaction, &tenures(batches)).await.map_err(write_failed)?;
        let mut aboard = Aboard::of(batches, &fences, Timestamp::from_micros(at));
        let is_new = keep_keys(transaction, &aboard.keys(), at).await.map_err(write_failed)?;
        let back = aboard.get_off(&is_new);
        forget_keys(transaction, &back).await.map_err(write_failed)?;
        let policies = Value::from_iter(aboard.batches().filter_map(|batch| {
            let policy = batch.policy.as_ref()?;
            Some(json!({
                "signer": batch.signer.as_str(),
                "first_nonce": policy.first_nonce.get(),
                "hold_ms": policy.hold_ms,
                "on_expiry": policy.on_expiry.as_str(),
                "max_in_flight": policy.max_in_flight,
                "token": batch.token.get(),
            }))
        }));
        if policies.as_array().is_some_and(|policies| !policies.is_empty()) {
            let statement = sqlx::query(sql!("signer_policy")).bind(policies.to_string()).bind(at);
            statement.execute(&mut **transaction).await.map_err(write_failed)?;
        }
        let changes = Changes::sorted(aboard.batches());
        for (statement, rows) in statements(&changes) {
            let written = sqlx::query(statement).bind(json!(rows).to_string()).bind(at);
            let done = written.execute(&mut **transaction).await.map_err(write_failed)?;
            if done.rows_affected() != rows.len() as u64 {
                return Err(Derailed::Spoiled(Verdict::Diverged));
            }
        }
        Ok(Written { anything: !aboard.places.is_empty(), verdicts: aboard.verdicts })
    }
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
