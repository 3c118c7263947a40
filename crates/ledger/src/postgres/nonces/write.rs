//! What a train of nonces writes on PostgreSQL.

use domain::{HoldId, Timestamp, TxHash};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgTransaction, Postgres as Dialect};
use uuid::Uuid;

use crate::changes::{Changes, New, Writer};
use crate::keys::Aboard;
use crate::postgres::engine::{Writes, Written, fence, forget_keys, keep_keys};
use crate::postgres::{sql, write_failed};
use crate::train::{Derailed, tenures};
use crate::{Batch, Verdict};

#[async_trait::async_trait]
impl Writes for Batch {
    /// After the leases unique keys and then data rows are locked, each sorted.
    async fn write(
        transaction: &mut PgTransaction<'_>,
        batches: &[Self],
    ) -> Result<Written<Verdict>, Derailed<Verdict>> {
        let (fences, at) = fence(transaction, &tenures(batches)).await.map_err(write_failed)?;
        // Without a time no lease was locked, and nobody is told of one.
        let mut aboard = Aboard::of(batches, &fences, at.unwrap_or(Timestamp::from_micros(0)));
        let is_new = keep_keys(transaction, &aboard.keys()).await.map_err(write_failed)?;
        let back = aboard.get_off(&is_new);
        forget_keys(transaction, &back).await.map_err(write_failed)?;
        let policies: Vec<_> = aboard.batches().filter(|batch| batch.policy.is_some()).collect();
        if !policies.is_empty() {
            set_policies(&policies).execute(&mut **transaction).await.map_err(write_failed)?;
        }
        let changes = Changes::sorted(aboard.batches());
        for (statement, rows) in statements(&changes) {
            let done = statement.execute(&mut **transaction).await.map_err(write_failed)?;
            if done.rows_affected() != rows as u64 {
                return Err(Derailed::Spoiled(Verdict::Diverged));
            }
        }
        Ok(Written { anything: !aboard.places.is_empty(), verdicts: aboard.verdicts })
    }
}

type Statement<'a> = Query<'a, Dialect, PgArguments>;

fn set_policies<'a>(batches: &[&'a Batch]) -> Statement<'a> {
    let policies = || batches.iter().filter_map(|batch| batch.policy.as_ref());
    sqlx::query(sql!("signer_policy"))
        .bind(batches.iter().map(|batch| batch.signer.as_str()).collect::<Vec<_>>())
        .bind(policies().map(|policy| policy.first_nonce.get() as i64).collect::<Vec<_>>())
        .bind(policies().map(|policy| policy.hold_ms.map(|ms| ms as i64)).collect::<Vec<_>>())
        .bind(policies().map(|policy| policy.on_expiry.as_str()).collect::<Vec<_>>())
        .bind(policies().map(|policy| policy.max_in_flight.map(|n| n as i64)).collect::<Vec<_>>())
        .bind(batches.iter().map(|batch| batch.token.get()).collect::<Vec<_>>())
}

/// The writes of nonce rows, each with the number of rows that it must touch.
fn statements<'a>(changes: &Changes<'a>) -> Vec<(Statement<'a>, usize)> {
    let Changes { new, refills, moved, expired } = changes;
    let mut statements = Vec::new();
    if !new.is_empty() {
        statements.push((bind_grants(sqlx::query(sql!("nonce_grant_new")), new.iter()), new.len()));
    }
    if !refills.is_empty() {
        let grants = bind_grants(sqlx::query(sql!("nonce_grant_hole")), refills.iter().map(|r| &r.grant));
        let statement = grants.bind(refills.iter().map(|r| uuid(r.last_hold)).collect::<Vec<_>>());
        statements.push((statement, refills.len()));
    }
    if !moved.is_empty() {
        let statement = sqlx::query(sql!("nonce_move"))
            .bind(moved.iter().map(|m| m.by.signer).collect::<Vec<_>>())
            .bind(moved.iter().map(|m| m.nonce.get() as i64).collect::<Vec<_>>())
            .bind(moved.iter().map(|m| uuid(m.hold)).collect::<Vec<_>>())
            .bind(moved.iter().map(|m| m.from.as_str()).collect::<Vec<_>>())
            .bind(moved.iter().map(|m| m.to.as_str()).collect::<Vec<_>>())
            .bind(moved.iter().map(|m| m.tx_hash.map(TxHash::as_str)).collect::<Vec<_>>());
        statements.push((bind_writers(statement, moved.iter().map(|m| m.by)), moved.len()));
    }
    if !expired.is_empty() {
        let statement = sqlx::query(sql!("nonce_expire"))
            .bind(expired.iter().map(|e| e.by.signer).collect::<Vec<_>>())
            .bind(expired.iter().map(|e| e.nonce.get() as i64).collect::<Vec<_>>())
            .bind(expired.iter().map(|e| uuid(e.hold)).collect::<Vec<_>>())
            .bind(expired.iter().map(|e| e.to.as_str()).collect::<Vec<_>>());
        statements.push((bind_writers(statement, expired.iter().map(|e| e.by)), expired.len()));
    }
    statements
}

fn bind_grants<'a: 'b, 'b>(
    statement: Statement<'a>,
    grants: impl Iterator<Item = &'b New<'a>> + Clone,
) -> Statement<'a> {
    let statement = statement
        .bind(grants.clone().map(|g| g.by.signer).collect::<Vec<_>>())
        .bind(grants.clone().map(|g| g.nonce.get() as i64).collect::<Vec<_>>())
        .bind(grants.clone().map(|g| uuid(g.hold)).collect::<Vec<_>>())
        .bind(grants.clone().map(|g| g.hold_ms as i64).collect::<Vec<_>>());
    bind_writers(statement, grants.map(|g| g.by))
}

fn bind_writers<'a>(
    statement: Statement<'a>,
    writers: impl Iterator<Item = Writer<'a>> + Clone,
) -> Statement<'a> {
    statement
        .bind(writers.clone().map(|by| by.token).collect::<Vec<_>>())
        .bind(writers.map(|by| by.owner).collect::<Vec<_>>())
}

fn uuid(hold: HoldId) -> Uuid {
    Uuid::from_u128(hold.as_u128())
}
