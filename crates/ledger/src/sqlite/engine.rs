//! One train on SQLite: one transaction of the one writer, its fence, and the keeping of idempotency keys. What
//! lives here is the same for everything that rides.

use std::collections::HashSet;

use serde_json::{Value, json};
use sqlx::{SqlitePool, SqliteTransaction};

use super::{sql, write_failed};
use crate::KeyScope;
use crate::keys::Keeping;
use crate::train::{Arrival, Cargo, Derailed, Engine, Fence, Tenure};

/// The writer's track.
pub(super) struct Track {
    pub(super) writer: SqlitePool,
}

/// What a train's transaction has come to.
pub(super) struct Written<Verdict> {
    /// For each batch.
    pub(super) verdicts: Vec<Verdict>,
    /// Whether there is anything to commit.
    pub(super) anything: bool,
}

/// Cargo that knows its statements.
#[async_trait::async_trait]
pub(super) trait Writes: Cargo + Sized {
    /// Everything between BEGIN IMMEDIATE and COMMIT, at that time.
    async fn write(
        transaction: &mut SqliteTransaction<'_>,
        batches: &[Self],
        at: i64,
    ) -> Result<Written<Self::Verdict>, Derailed<Self::Verdict>>;
}

#[async_trait::async_trait]
impl<C: Writes> Engine<C> for Track {
    async fn pull(&mut self, batches: &[C]) -> Arrival<C> {
        // The writer from its first statement on: what it reads cannot change before it commits.
        let mut transaction = self.writer.begin_with("BEGIN IMMEDIATE").await.map_err(write_failed)?;
        let at =
            sqlx::query_scalar(sql!("clock")).fetch_one(&mut *transaction).await.map_err(write_failed)?;
        match C::write(&mut transaction, batches, at).await {
            Ok(Written { verdicts, anything: true }) => {
                transaction.commit().await.map_err(write_failed)?;
                Ok(verdicts)
            }
            Ok(Written { verdicts, anything: false }) => {
                transaction.rollback().await.map_err(write_failed)?;
                Ok(verdicts)
            }
            Err(derailed) => {
                transaction.rollback().await.map_err(write_failed)?;
                Err(derailed)
            }
        }
    }
}

/// Looks at the lease of every tenure that there is; answers what that says of each. Where there is none nothing stands
/// in the way. No row is ever locked by somebody else here.
pub(super) async fn fence(
    transaction: &mut SqliteTransaction<'_>,
    tenures: &[Option<Tenure<'_>>],
) -> sqlx::Result<Vec<Fence>> {
    let wanted = Value::from_iter(tenures.iter().flatten().map(|tenure| {
        json!({
            "resource": tenure.resource.as_str(),
            "token": tenure.token.get(),
            "owner": tenure.owner.as_str(),
        })
    }));
    let held: Vec<String> =
        sqlx::query_scalar(sql!("fence_lock")).bind(wanted.to_string()).fetch_all(&mut **transaction).await?;
    let held: HashSet<_> = held.iter().map(String::as_str).collect();
    let fence = |tenure: &Option<Tenure<'_>>| match tenure {
        Some(Tenure { resource, .. }) if !held.contains(resource.as_str()) => Fence::Fenced,
        _ => Fence::Holds,
    };
    Ok(tenures.iter().map(fence).collect())
}

/// Keeps idempotency keys; says of each whether it is new.
pub(super) async fn keep_keys(
    transaction: &mut SqliteTransaction<'_>,
    keys: &[Keeping<'_>],
    at: i64,
) -> sqlx::Result<Vec<bool>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let wanted = Value::from_iter(keys.iter().map(|key| {
        json!({
            "scope": key.scope.scope,
            "key": key.scope.key.as_str(),
            "body_hash": key.body_hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
            "answer": key.answer,
        })
    }));
    let kept: Vec<(String, String)> = sqlx::query_as(sql!("key_keep"))
        .bind(wanted.to_string())
        .bind(at)
        .fetch_all(&mut **transaction)
        .await?;
    let kept: HashSet<_> = kept.iter().map(|(scope, key)| (scope.as_str(), key.as_str())).collect();
    let is_kept = |key: &Keeping<'_>| kept.contains(&(key.scope.scope.as_str(), key.scope.key.as_str()));
    Ok(keys.iter().map(is_kept).collect())
}

/// Takes keys back in the transaction that kept them.
pub(super) async fn forget_keys(
    transaction: &mut SqliteTransaction<'_>,
    keys: &[&KeyScope],
) -> sqlx::Result<()> {
    if !keys.is_empty() {
        let back =
            Value::from_iter(keys.iter().map(|key| json!({ "scope": key.scope, "key": key.key.as_str() })));
        sqlx::query(sql!("key_forget")).bind(back.to_string()).execute(&mut **transaction).await?;
    }
    Ok(())
}
