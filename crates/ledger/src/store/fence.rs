//! The fence of a transaction, whether the ledger went back, and the keeping of idempotency keys: the same for every kind of
//! batch.

use std::collections::HashSet;

use domain::Timestamp;
use futures_util::future::BoxFuture;

use super::{Decided, Store};
use crate::jobs::{Lane, Unwritten};
use crate::keys::Keeping;
use crate::sql::{Rows, Session, Statement, Transaction, statement};
use crate::train::{Fence, FenceClaim, leases};
use crate::{KeyScope, Kind};

const LOCK: Statement = statement!("fence_lock");
const HOLDS: Statement = statement!(postgres "fence_holds");
const CURRENT: Statement = statement!(postgres "identity_current");
const KEEP: Statement = statement!("key_keep");
const FORGET: Statement = statement!("key_forget");

/// Locks the lease of every claim that there is; answers what that says of each, and the transaction's time if it is
/// known by then. A batch without a claim passes.
pub(super) async fn fence(
    transaction: &mut Transaction<'_>,
    claims: &[Option<FenceClaim<'_>>],
) -> sqlx::Result<(Vec<Fence>, Option<Timestamp>)> {
    let known = transaction.at().map(Timestamp::from_micros);
    let wanted = leases(claims);
    if wanted.is_empty() {
        return Ok((vec![Fence::Holds; claims.len()], known));
    }
    let ask = LOCK.on(transaction.kind()).rows(&wanted, claimed);
    let locked: Vec<(String, i64)> = transaction.all(ask.at(transaction.at())).await?;
    let at = locked.first().map(|(_, at)| Timestamp::from_micros(*at));
    let names = locked.iter().map(|(name, _)| name.as_str()).collect();
    Ok((judge(&mut transaction.session(), claims, &names).await?, at.or(known)))
}

impl Store {
    /// Does work that writes in a lane, in a transaction behind the lane's lease, and commits it. Where the lease does not
    /// hold, nothing is done.
    pub(super) async fn in_lane<T: Send + 'static>(
        &self,
        lane: &Lane,
        work: impl for<'t> FnOnce(&'t mut Transaction<'_>) -> BoxFuture<'t, sqlx::Result<T>> + Send + 'static,
    ) -> crate::Result<Result<T, Unwritten>> {
        let lane = lane.clone();
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                let (fences, _) = fence(transaction, &[Some(lane.fence_claim())]).await?;
                if fences != [Fence::Holds] {
                    return Ok(Decided::Rollback(Err(match fences[0] {
                        Fence::Again => Unwritten::Again,
                        Fence::Fenced | Fence::Holds => Unwritten::Fenced,
                    })));
                }
                Ok(Decided::Commit(Ok(work(transaction).await?)))
            })
        })
        .await
    }
}

/// What it says of each claim that these leases were locked.
pub(super) async fn judge(
    session: &mut Session<'_>,
    claims: &[Option<FenceClaim<'_>>],
    locked: &HashSet<&str>,
) -> sqlx::Result<Vec<Fence>> {
    let is_locked = |claim: &FenceClaim<'_>| locked.contains(claim.resource.as_str());
    let missed: Vec<_> = claims.iter().flatten().filter(|claim| !is_locked(claim)).collect();
    let mut held = HashSet::new();
    // In SQLite no other transaction has a row locked: a claim that was not locked is fenced.
    if !missed.is_empty() && session.kind() == Kind::Postgres {
        let ask = HOLDS.on(Kind::Postgres).rows(&missed, claimed);
        held.extend(session.all::<(String,)>(ask).await?.into_iter().map(|(name,)| name));
    }
    let fence = |claim: &Option<FenceClaim<'_>>| match claim {
        Some(claim) if is_locked(claim) => Fence::Holds,
        Some(claim) if held.contains(claim.resource.as_str()) => Fence::Again,
        Some(_) => Fence::Fenced,
        None => Fence::Holds,
    };
    Ok(claims.iter().map(fence).collect())
}

/// Whether the ledger is as far as the session knows. On SQLite no statement compares the two.
pub(super) async fn is_current(session: &mut Session<'_>) -> sqlx::Result<bool> {
    if session.kind() == Kind::Sqlite {
        return Ok(true);
    }
    Ok(session.one::<(bool,)>(CURRENT.on(Kind::Postgres)).await?.0)
}

/// Claims as the statements take them.
pub(super) fn claimed(claims: &mut Rows<'_, '_, &FenceClaim<'_>>) {
    claims
        .column("resource", |claim| claim.resource.as_str())
        .column("token", |claim| claim.token.get())
        .column("owner", |claim| claim.owner.as_str());
}

/// Keeps idempotency keys; says of each whether it is new.
pub(super) async fn keep_keys(
    transaction: &mut Transaction<'_>,
    keys: &[Keeping<'_>],
) -> sqlx::Result<Vec<bool>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let ask = KEEP.on(transaction.kind()).rows(keys, kept);
    let new: Vec<(String, String)> = transaction.all(ask.at(transaction.at())).await?;
    if new.len() == keys.len() {
        return Ok(vec![true; keys.len()]);
    }
    let new: HashSet<_> = new.iter().map(|(scope, key)| (scope.as_str(), key.as_str())).collect();
    let is_new = |key: &Keeping<'_>| new.contains(&(key.scope.scope.as_str(), key.scope.key.as_str()));
    Ok(keys.iter().map(is_new).collect())
}

/// Keys as the statements take them.
pub(super) fn kept(keys: &mut Rows<'_, '_, Keeping<'_>>) {
    keys.column("scope", |key| key.scope.scope.as_str())
        .column("key", |key| key.scope.key.as_str())
        .column("body_hash", |key| &key.body_hash[..])
        .column("answer", |key| key.answer.as_str());
}

/// Takes keys back in the transaction that kept them.
pub(super) async fn forget_keys(transaction: &mut Transaction<'_>, keys: &[&KeyScope]) -> sqlx::Result<()> {
    if !keys.is_empty() {
        let ask = FORGET.on(transaction.kind()).rows(keys, |keys| {
            keys.column("scope", |key| key.scope.as_str()).column("key", |key| key.key.as_str());
        });
        transaction.touch(ask).await?;
    }
    Ok(())
}
