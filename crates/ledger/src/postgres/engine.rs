//! One train on PostgreSQL: one transaction on a connection of the track's own.

use std::time::Duration;

use domain::{HoldId, Timestamp, TxHash};
use sqlx::postgres::{PgArguments, PgConnectOptions};
use sqlx::query::Query;
use sqlx::{Connection, PgConnection, PgTransaction, Postgres as Dialect};
use uuid::Uuid;

use super::{sql, write_failed};
use crate::changes::{Changes, New, Writer};
use crate::train::{Derailed, Engine};
use crate::{Batch, Error, Verdict};

/// A track's connection. Lost ones are replaced when the next train leaves.
pub(super) struct Track {
    pub(super) connect: PgConnectOptions,
    pub(super) connection: Option<PgConnection>,
    /// Longest time for one train. A connection on which one took longer is thrown away, whatever its
    /// statement may still do in the server: that is what fencing and a new acquire are for.
    pub(super) limit: Duration,
}

#[async_trait::async_trait]
impl Engine for Track {
    async fn pull(&mut self, batches: &[Batch]) -> Result<Vec<Verdict>, Derailed> {
        let late = |_| Error::unknown(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => tokio::time::timeout(self.limit, PgConnection::connect_with(&self.connect))
                .await
                .map_err(|_| Error::unavailable(sqlx::Error::PoolTimedOut))?
                .map_err(super::read_failed)?,
        };
        let outcome =
            tokio::time::timeout(self.limit, transact(&mut connection, batches)).await.map_err(late)?;
        // Kept only if it is known to be in order.
        if !matches!(outcome, Err(Derailed::Failed(Error::Unknown { .. } | Error::Unavailable { .. }))) {
            self.connection = Some(connection);
        }
        outcome
    }
}

async fn transact(connection: &mut PgConnection, batches: &[Batch]) -> Result<Vec<Verdict>, Derailed> {
    let mut transaction = connection.begin().await.map_err(write_failed)?;
    let mut verdicts = vec![Verdict::Fenced; batches.len()];
    match write(&mut transaction, batches, &mut verdicts).await {
        Ok(true) => transaction.commit().await.map_err(write_failed)?,
        Ok(false) => transaction.rollback().await.map_err(write_failed)?,
        Err(derailed) => {
            // The first failure is the one to tell of; a connection that cannot even roll back is lost.
            transaction.rollback().await.map_err(write_failed)?;
            return Err(derailed);
        }
    }
    Ok(verdicts)
}

/// Everything between BEGIN and COMMIT; whether there is anything to commit. The order is the order of
/// locks: leases, unique keys, data rows, each sorted.
async fn write(
    transaction: &mut PgTransaction<'_>,
    batches: &[Batch],
    verdicts: &mut [Verdict],
) -> Result<bool, Derailed> {
    let mut aboard = fence(transaction, batches, verdicts).await.map_err(write_failed)?;
    keep_keys(transaction, batches, verdicts, &mut aboard).await.map_err(write_failed)?;
    if aboard.is_empty() {
        return Ok(false);
    }
    let policies = aboard.iter().filter(|&&n| batches[n].policy.is_some());
    let policies: Vec<_> = policies.map(|&n| &batches[n]).collect();
    if !policies.is_empty() {
        set_policies(&policies).execute(&mut **transaction).await.map_err(write_failed)?;
    }
    let changes = Changes::sorted(aboard.iter().map(|&n| &batches[n]));
    for (statement, rows) in statements(&changes) {
        let done = statement.execute(&mut **transaction).await.map_err(write_failed)?;
        if done.rows_affected() != rows as u64 {
            return Err(Derailed::Diverged);
        }
    }
    Ok(true)
}

/// Locks the lease of every batch; answers those whose lease it was, and writes the verdicts of all.
async fn fence(
    transaction: &mut PgTransaction<'_>,
    batches: &[Batch],
    verdicts: &mut [Verdict],
) -> sqlx::Result<Vec<usize>> {
    let resources: Vec<_> = batches.iter().map(|batch| batch.resource().to_string()).collect();
    let tenures = |of: &[usize]| {
        let names: Vec<_> = of.iter().map(|&n| resources[n].clone()).collect();
        let tokens: Vec<_> = of.iter().map(|&n| batches[n].token.get()).collect();
        let owners: Vec<_> = of.iter().map(|&n| batches[n].owner.to_string()).collect();
        (names, tokens, owners)
    };
    let all: Vec<_> = (0..batches.len()).collect();
    let (names, tokens, owners) = tenures(&all);
    let locked: Vec<(String, i64)> = sqlx::query_as(sql!("fence_lock"))
        .bind(names)
        .bind(tokens)
        .bind(owners)
        .fetch_all(&mut **transaction)
        .await?;
    let at = locked.first().map_or(Timestamp::from_micros(0), |(_, at)| Timestamp::from_micros(*at));
    let is_in = |rows: &[String], n: usize| rows.binary_search(&resources[n]).is_ok();
    let locked: Vec<_> = locked.into_iter().map(|(resource, _)| resource).collect();
    let (aboard, missed): (Vec<_>, Vec<_>) = all.into_iter().partition(|&n| is_in(&locked, n));
    for &n in &aboard {
        verdicts[n] = Verdict::Committed { at };
    }
    if !missed.is_empty() {
        let (names, tokens, owners) = tenures(&missed);
        let mut held: Vec<String> =
            sqlx::query_scalar(include_str!("../../sql/postgres-only/fence_holds.sql"))
                .bind(names)
                .bind(tokens)
                .bind(owners)
                .fetch_all(&mut **transaction)
                .await?;
        held.sort_unstable();
        for &n in &missed {
            verdicts[n] = if is_in(&held, n) { Verdict::Again } else { Verdict::Fenced };
        }
    }
    Ok(aboard)
}

/// Keeps the idempotency keys of those aboard. Whoever finds one of theirs taken gets off, and takes back
/// what was kept of the others.
async fn keep_keys(
    transaction: &mut PgTransaction<'_>,
    batches: &[Batch],
    verdicts: &mut [Verdict],
    aboard: &mut Vec<usize>,
) -> sqlx::Result<()> {
    let keys: Vec<_> = aboard.iter().flat_map(|&n| &batches[n].keys).collect();
    if keys.is_empty() {
        return Ok(());
    }
    let mut kept: Vec<(String, String)> = sqlx::query_as(sql!("key_keep"))
        .bind(keys.iter().map(|key| key.scope.scope.as_str()).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.scope.key.as_str()).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| &key.body_hash[..]).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.answer.to_kept_text()).collect::<Vec<_>>())
        .fetch_all(&mut **transaction)
        .await?;
    if kept.len() == keys.len() {
        return Ok(());
    }
    kept.sort_unstable();
    let is_kept = |scope: &str, key: &str| {
        kept.binary_search_by(|(s, k)| (s.as_str(), k.as_str()).cmp(&(scope, key))).is_ok()
    };
    let mut back = (Vec::new(), Vec::new());
    aboard.retain(|&n| {
        let keys = &batches[n].keys;
        let taken = keys.iter().any(|key| !is_kept(&key.scope.scope, key.scope.key.as_str()));
        if taken {
            verdicts[n] = Verdict::KeyTaken;
            for key in keys.iter().filter(|key| is_kept(&key.scope.scope, key.scope.key.as_str())) {
                back.0.push(key.scope.scope.clone());
                back.1.push(key.scope.key.to_string());
            }
        }
        !taken
    });
    if !back.0.is_empty() {
        sqlx::query(sql!("key_forget")).bind(back.0).bind(back.1).execute(&mut **transaction).await?;
    }
    Ok(())
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
