//! What a train of nonces writes.

use std::sync::LazyLock;

use domain::{Timestamp, TxHash};

use crate::changes::{Changes, Moved, New, Writer};
use crate::keys::{Admitted, keeping};
use crate::sql::{Ask, Hold, Rows, Sectioned, Session, Statement, Transaction, statement};
use crate::store::audit;
use crate::store::committer::{Kept, Write, Written};
use crate::store::failure::{is_contradicted, write_failed};
use crate::store::fence::{claimed, fence, forget_keys, keep_keys, kept};
use crate::train::{TrainError, fence_claims, leases};
use crate::{Batch, Kind, Verdict};

const POLICY: Statement = statement!("signer_policy");
const GRANT_NEW: Statement = statement!("nonce_grant_new");
const GRANT_HOLE: Statement = statement!("nonce_grant_hole");
const MOVE: Statement = statement!("nonce_move");
const EXPIRE: Statement = statement!("nonce_expire");
static ROUND: LazyLock<Sectioned<3>> =
    LazyLock::new(|| Sectioned::new(statement!(postgres "nonce_round"), ["keys", "new", "moves"]));

#[async_trait::async_trait]
impl Write for Batch {
    /// On PostgreSQL, first grants and settlements are one statement that writes everything or nothing. Where it wrote
    /// nothing, the general way finds out which batch was in the way.
    async fn write_at_once(
        session: &mut Session<'_>,
        batches: &[Self],
    ) -> Result<Option<Kept<Verdict>>, TrainError<Verdict>> {
        if session.kind() == Kind::Sqlite
            || batches.iter().any(|batch| batch.policy.is_some() || !batch.audit.is_empty())
        {
            return Ok(None);
        }
        let changes = Changes::sorted(batches);
        if !changes.refills.is_empty() || !changes.expired.is_empty() {
            return Ok(None);
        }
        let keys: Vec<_> = batches.iter().flat_map(|batch| &batch.keys).map(keeping).collect();
        let ask = ROUND
            .with([!keys.is_empty(), !changes.new.is_empty(), !changes.moved.is_empty()])
            .on(Kind::Postgres)
            .rows(&leases(&fence_claims(batches)), claimed)
            .rows(&keys, kept)
            .rows(&changes.new, |rows| grants(rows, |new| new))
            .rows(&changes.moved, moves);
        match session.answer(ask).await {
            Ok(answer) => {
                let written: Vec<(i64,)> = answer.records().map_err(write_failed)?;
                Ok(written.first().map(|(at,)| Kept {
                    verdicts: vec![Verdict::Committed { at: Timestamp::from_micros(*at) }; batches.len()],
                    mark: answer.mark(),
                }))
            }
            Err(source) if is_contradicted(&source) => Ok(None),
            Err(source) => Err(write_failed(source).into()),
        }
    }

    /// After the leases unique keys and then data rows are locked, each sorted.
    async fn write(
        transaction: &mut Transaction<'_>,
        batches: &[Self],
    ) -> Result<Written<Verdict>, TrainError<Verdict>> {
        let (fences, at) = fence(transaction, &fence_claims(batches)).await.map_err(write_failed)?;
        // Without a time no lease was locked, and no verdict names one.
        let mut admitted = Admitted::of(batches, &fences, at.unwrap_or(Timestamp::from_micros(0)));
        let is_new = keep_keys(transaction, &admitted.keys()).await.map_err(write_failed)?;
        let kept_for_nothing = admitted.reject_taken_keys(&is_new);
        forget_keys(transaction, &kept_for_nothing).await.map_err(write_failed)?;
        let policies: Vec<_> = admitted.batches().filter(|batch| batch.policy.is_some()).collect();
        if !policies.is_empty() {
            let ask = set_policies(transaction, &policies);
            transaction.touch(ask).await.map_err(write_failed)?;
        }
        let entries: Vec<_> = admitted.batches().flat_map(|batch| &batch.audit).collect();
        audit::add(transaction, &entries).await.map_err(write_failed)?;
        let changes = Changes::sorted(admitted.batches());
        for (ask, rows) in asks(transaction, &changes) {
            if transaction.touch(ask).await.map_err(write_failed)? != rows as u64 {
                return Err(TrainError::Spoiled(Verdict::Diverged));
            }
        }
        Ok(Written { anything: !admitted.places.is_empty(), verdicts: admitted.verdicts })
    }
}

fn set_policies(transaction: &Transaction<'_>, batches: &[&Batch]) -> Ask {
    let policies: Vec<_> =
        batches.iter().filter_map(|batch| batch.policy.as_ref().map(|policy| (*batch, policy))).collect();
    let ask = POLICY.on(transaction.kind()).rows(&policies, |rows| {
        rows.column("signer", |(batch, _)| batch.signer.as_str())
            .column("first_nonce", |(_, policy)| policy.first_nonce.get() as i64)
            .column("hold_ms", |(_, policy)| policy.hold_ms.map(|ms| ms as i64))
            .column("on_expiry", |(_, policy)| policy.on_expiry.as_str())
            .column("max_in_flight", |(_, policy)| policy.max_in_flight.map(|n| n as i64))
            .column("shared_keys", |(_, policy)| policy.shared_keys)
            .column("token", |(batch, _)| batch.token.get());
    });
    ask.at(transaction.at())
}

/// The writes of nonce rows, each with the number of rows that it must touch.
fn asks(transaction: &Transaction<'_>, changes: &Changes<'_>) -> Vec<(Ask, usize)> {
    let Changes { new, refills, moved, expired } = changes;
    let mut asks = Vec::new();
    let mut add = |ask: Ask, rows: usize| asks.push((ask.at(transaction.at()), rows));
    let on = |statement: &Statement| statement.on(transaction.kind());
    if !new.is_empty() {
        add(on(&GRANT_NEW).rows(new, |rows| grants(rows, |new| new)), new.len());
    }
    if !refills.is_empty() {
        let ask = on(&GRANT_HOLE).rows(refills, |rows| {
            grants(rows, |refill| &refill.grant);
            rows.column("last_hold", |refill| Hold(refill.last_hold));
        });
        add(ask, refills.len());
    }
    if !moved.is_empty() {
        add(on(&MOVE).rows(moved, moves), moved.len());
    }
    if !expired.is_empty() {
        let ask = on(&EXPIRE).rows(expired, |rows| {
            rows.column("signer", |expired| expired.by.signer)
                .column("nonce", |expired| expired.nonce.get() as i64)
                .column("hold", |expired| Hold(expired.hold))
                .column("early", |expired| expired.early_ms as i64)
                .column("to", |expired| expired.to.as_str());
            writers(rows, |expired| &expired.by);
        });
        add(ask, expired.len());
    }
    asks
}

fn grants<'i, T>(rows: &mut Rows<'i, '_, T>, grant: impl Fn(&'i T) -> &'i New<'i>) {
    rows.column("signer", |row| grant(row).by.signer)
        .column("nonce", |row| grant(row).nonce.get() as i64)
        .column("hold", |row| Hold(grant(row).hold))
        .column("hold_ms", |row| grant(row).hold_ms as i64);
    writers(rows, |row| &grant(row).by);
}

fn moves(rows: &mut Rows<'_, '_, Moved<'_>>) {
    rows.column("signer", |moved| moved.by.signer)
        .column("nonce", |moved| moved.nonce.get() as i64)
        .column("hold", |moved| Hold(moved.hold))
        .column("from", |moved| moved.from.as_str())
        .column("to", |moved| moved.to.as_str())
        .column("tx_hash", |moved| moved.tx_hash.map(TxHash::as_str));
    writers(rows, |moved| &moved.by);
}

fn writers<'i, T>(rows: &mut Rows<'i, '_, T>, by: impl Fn(&'i T) -> &'i Writer<'i>) {
    rows.column("token", |row| by(row).token).column("owner", |row| by(row).owner);
}
