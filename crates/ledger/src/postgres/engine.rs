//! One train on PostgreSQL: one transaction on a connection of the track's own, its fence, and the keeping of
//! idempotency keys. What lives here is the same for everything that rides.

use std::collections::HashSet;
use std::time::Duration;

use domain::Timestamp;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, PgTransaction};

use super::{sql, write_failed};
use crate::keys::Keeping;
use crate::train::{Arrival, Cargo, Derailed, Engine, Fence, Tenure};
use crate::{Error, KeyScope};

/// A track's connection. Lost ones are replaced when the next train leaves.
pub(super) struct Track {
    pub(super) connect: PgConnectOptions,
    pub(super) connection: Option<PgConnection>,
    /// Longest time for one train. A connection on which one took longer is thrown away, whatever its
    /// statement may still do in the server: that is what fencing and a new acquire are for.
    pub(super) limit: Duration,
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
    /// Where one statement writes all of it: that statement, which is a transaction by itself. `None` where it takes
    /// more than one, and where it found nothing to write; nothing is written then.
    async fn write_at_once(
        _connection: &mut PgConnection,
        _batches: &[Self],
    ) -> Result<Option<Vec<Self::Verdict>>, Derailed<Self::Verdict>> {
        Ok(None)
    }

    /// Everything between BEGIN and COMMIT. The order is the order of locks: leases first.
    async fn write(
        transaction: &mut PgTransaction<'_>,
        batches: &[Self],
    ) -> Result<Written<Self::Verdict>, Derailed<Self::Verdict>>;
}

#[async_trait::async_trait]
impl<C: Writes> Engine<C> for Track {
    async fn pull(&mut self, batches: &[C]) -> Arrival<C> {
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

async fn transact<C: Writes>(connection: &mut PgConnection, batches: &[C]) -> Arrival<C> {
    if let Some(verdicts) = C::write_at_once(connection, batches).await? {
        return Ok(verdicts);
    }
    let mut transaction = connection.begin().await.map_err(write_failed)?;
    match C::write(&mut transaction, batches).await {
        Ok(Written { verdicts, anything: true }) => {
            transaction.commit().await.map_err(write_failed)?;
            Ok(verdicts)
        }
        Ok(Written { verdicts, anything: false }) => {
            transaction.rollback().await.map_err(write_failed)?;
            Ok(verdicts)
        }
        Err(derailed) => {
            // The first failure is the one to tell of; a connection that cannot even roll back is lost.
            transaction.rollback().await.map_err(write_failed)?;
            Err(derailed)
        }
    }
}

/// Locks the lease of every tenure that there is; answers what that says of each, and the transaction's time if any
/// lease was locked. Where there is none nothing stands in the way.
pub(super) async fn fence(
    transaction: &mut PgTransaction<'_>,
    tenures: &[Option<Tenure<'_>>],
) -> sqlx::Result<(Vec<Fence>, Option<Timestamp>)> {
    if tenures.iter().all(Option::is_none) {
        return Ok((vec![Fence::Holds; tenures.len()], None));
    }
    let (names, tokens, owners) = columns(tenures.iter().flatten());
    let locked: Vec<(String, i64)> = sqlx::query_as(sql!("fence_lock"))
        .bind(names)
        .bind(tokens)
        .bind(owners)
        .fetch_all(&mut **transaction)
        .await?;
    let at = locked.first().map(|(_, at)| Timestamp::from_micros(*at));
    let names = locked.iter().map(|(name, _)| name.as_str()).collect();
    Ok((judge(transaction, tenures, names).await?, at))
}

/// What it says of each tenure that these leases were locked.
pub(super) async fn judge(
    connection: &mut PgConnection,
    tenures: &[Option<Tenure<'_>>],
    locked: HashSet<&str>,
) -> sqlx::Result<Vec<Fence>> {
    let mut fences = vec![Fence::Holds; tenures.len()];
    let tenures = tenures.iter().enumerate().filter_map(|(n, tenure)| Some((n, tenure.as_ref()?)));
    let missed: Vec<_> = tenures.filter(|(_, tenure)| !locked.contains(tenure.resource.as_str())).collect();
    if !missed.is_empty() {
        let (names, tokens, owners) = columns(missed.iter().map(|(_, tenure)| *tenure));
        let held: Vec<String> = sqlx::query_scalar(include_str!("../../sql/postgres-only/fence_holds.sql"))
            .bind(names)
            .bind(tokens)
            .bind(owners)
            .fetch_all(connection)
            .await?;
        for (n, tenure) in missed {
            let is_held = held.iter().any(|name| name == tenure.resource.as_str());
            fences[n] = if is_held { Fence::Again } else { Fence::Fenced };
        }
    }
    Ok(fences)
}

/// Keeps idempotency keys; says of each whether it is new.
pub(super) async fn keep_keys(
    transaction: &mut PgTransaction<'_>,
    keys: &[Keeping<'_>],
) -> sqlx::Result<Vec<bool>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut kept: Vec<(String, String)> = sqlx::query_as(sql!("key_keep"))
        .bind(keys.iter().map(|key| key.scope.scope.as_str()).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.scope.key.as_str()).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| &key.body_hash[..]).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.answer.as_str()).collect::<Vec<_>>())
        .fetch_all(&mut **transaction)
        .await?;
    if kept.len() == keys.len() {
        return Ok(vec![true; keys.len()]);
    }
    kept.sort_unstable();
    let is_kept = |KeyScope { scope, key }: &KeyScope| {
        kept.binary_search_by(|(s, k)| (s.as_str(), k.as_str()).cmp(&(scope, key.as_str()))).is_ok()
    };
    Ok(keys.iter().map(|key| is_kept(key.scope)).collect())
}

/// Takes keys back in the transaction that kept them.
pub(super) async fn forget_keys(transaction: &mut PgTransaction<'_>, keys: &[&KeyScope]) -> sqlx::Result<()> {
    if !keys.is_empty() {
        sqlx::query(sql!("key_forget"))
            .bind(keys.iter().map(|key| key.scope.as_str()).collect::<Vec<_>>())
            .bind(keys.iter().map(|key| key.key.as_str()).collect::<Vec<_>>())
            .execute(&mut **transaction)
            .await?;
    }
    Ok(())
}

/// Tenures as the statements take them.
pub(super) fn columns<'a>(
    tenures: impl Iterator<Item = &'a Tenure<'a>> + Clone,
) -> (Vec<&'a str>, Vec<i64>, Vec<&'a str>) {
    (
        tenures.clone().map(|tenure| tenure.resource.as_str()).collect(),
        tenures.clone().map(|tenure| tenure.token.get()).collect(),
        tenures.map(|tenure| tenure.owner.as_str()).collect(),
    )
}
