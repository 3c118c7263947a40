//! Nonces: what an owner loads, and what anybody may read. Writes leave by train.

mod write;

use domain::nonce::{Hole, Loaded, OnExpiry, Row, Status};
use domain::{AuditEntry, HoldId, InstanceId, Nonce, Resource, SignerId, Timestamp};
use parking_lot::Mutex;
use uuid::Uuid;

use super::{Decided, Store, Way, audit};
use crate::nonces::{
    Batch, CONFIRMED_AT_ONCE_MAX, CONFIRMED_HOLES_MAX, CONFIRMED_NONCES_MAX, Confirmation, HeldNonce,
    KeptKey, KeyScope, NonceFilter, NonceRecord, Nonces, OverdueSigners, Read, SignerRecord, Verdict,
};
use crate::records::{self, HeldRow, KeyRow, LoadRow, NonceRecordRow, NonceRow, SignerRow};
use crate::sql::{Hold, Moment, Statement, Transaction, narrowed, statement};
use crate::{Error, Link, Result};

const CLOCK: Statement = statement!("clock");
const LOAD: Statement = statement!("signer_load");
const RECOVERING: Statement = statement!(both "signer_recovering");
const KNOWN: Statement = statement!(both "signer_known");
const HOLES: Statement = statement!("nonce_holes");
const OVERDUE: Statement = statement!("nonce_overdue");
const ROWS: Statement = statement!("nonce_rows");
const LIST: Statement = statement!("nonce_list");
const LIST_NEXT: Statement = statement!("nonce_list_next");
const OPEN_COUNTS: Statement = statement!("nonce_open_counts");
const SIGNERS: Statement = statement!("signer_list");
const OVERDUE_SIGNERS: Statement = statement!("signer_overdue");
const KEYS: Statement = statement!("key_show");
const KEY_PURGE: Statement = statement!("key_purge");
const BULK_KEY_PURGE: Statement = statement!("bulk_key_purge");
const CONFIRM_LEASE: Statement = statement!("confirm_lease");
const CONFIRM_SIGNER: Statement = statement!(both "confirm_signer");
const CONFIRM_UNDO: Statement = statement!(both "confirm_undo");
const CONFIRM_MISSING: Statement = statement!("confirm_missing");
const CONFIRM_KNOWN: Statement = statement!("confirm_known");
const CONFIRM_DONE: Statement = statement!("confirm_done");

/// Before all that any ledger has seen, and a time on both databases.
const EARLIEST: Timestamp = Timestamp::from_micros(-1_000_000_000_000_000);

/// One of so many purges of keys begins with the oldest keys: about one in an hour, with a purge every half minute.
const KEY_PURGES_ANEW_EVERY: u32 = 100;

/// How much older than what has just come of age the keys are, at most, with which a process goes on whose step took too long: so
/// many entries that others have deleted are passed over.
const KEY_PURGE_RECENT_MS: u64 = 300_000;

/// From which moment on the next step of a purge of keys looks for old ones. What was deleted stays in the index until a vacuum
/// removes it, which none does during a long `pg_dump`: a step that passes over millions of such entries takes longer than it
/// may, each time. So each step goes on where the one before it ended, also the first one of a purge. That of a process which has
/// deleted nothing yet, or nothing for long while others did, may take too long: then the next one begins with keys that have
/// just come of age. What stayed behind, as a key that another transaction had locked, is found by the purges that begin with the
/// oldest keys.
#[derive(Debug)]
pub(super) struct KeyPurge(Mutex<KeyPurgePlace>);

#[derive(Debug)]
struct KeyPurgePlace {
    /// Where the next step begins.
    next: Timestamp,
    /// The latest key that was deleted.
    furthest: Timestamp,
    /// How many purges have ended.
    purges: u32,
}

impl Default for KeyPurge {
    fn default() -> Self {
        Self(Mutex::new(KeyPurgePlace { next: EARLIEST, furthest: EARLIEST, purges: 0 }))
    }
}

impl KeyPurge {
    /// The moment. The step after this one begins behind all that was deleted, unless this one [notes](Self::note) its end: one
    /// that has failed is not repeated.
    fn take(&self) -> Timestamp {
        let mut place = self.0.lock();
        let furthest = place.furthest;
        std::mem::replace(&mut place.next, furthest)
    }

    /// Whether the step after one that began with this moment, and failed, begins there again.
    fn is_at(&self, from: Timestamp) -> bool {
        self.0.lock().furthest == from
    }

    /// The steps after one that began with `from` begin with this moment, if that is later, unless one has deleted something
    /// meanwhile.
    fn pass_over(&self, from: Timestamp, until: Timestamp) {
        let mut place = self.0.lock();
        if place.furthest == from && until > from {
            (place.furthest, place.next) = (until, until);
        }
    }

    /// A step has deleted the keys up to this one, or none; as many as it may where it `is_full`. Otherwise the purge is over.
    fn note(&self, last: Option<Timestamp>, is_full: bool) {
        let mut place = self.0.lock();
        if let Some(last) = last {
            place.furthest = place.furthest.max(last);
        }
        if let Some(last) = last.filter(|_| is_full) {
            place.next = last;
            return;
        }
        place.purges = place.purges.wrapping_add(1);
        if place.purges.is_multiple_of(KEY_PURGES_ANEW_EVERY) {
            place.next = EARLIEST;
        } else {
            place.next = place.furthest;
        }
    }
}

#[async_trait::async_trait]
impl Nonces for Store {
    async fn load(&self, signer: &SignerId, holes_max: usize) -> Result<Loaded> {
        let row: LoadRow = self.one(Way::KeyReads, self.ask(&LOAD).bind(signer.as_str())).await?;
        let holes = if row.has_holes { self.holes(signer, holes_max).await? } else { (Vec::new(), true) };
        row.loaded(holes)
    }

    async fn is_recovering(&self, signer: &SignerId) -> Result<bool> {
        let ask = self.ask(&RECOVERING).bind(signer.as_str());
        let (recovering,): (Option<bool>,) = self.one(Way::KeyReads, ask).await?;
        Ok(recovering.unwrap_or(false))
    }

    async fn holes(&self, signer: &SignerId, max: usize) -> Result<(Vec<Hole>, bool)> {
        let ask = self.ask(&HOLES).bind(signer.as_str()).bind((max + 1) as i64);
        records::holes(self.all(Way::KeyReads, ask).await?, max)
    }

    async fn overdue(
        &self,
        signer: &SignerId,
        ahead_ms: u64,
        from: Option<Timestamp>,
        max: usize,
    ) -> Result<Vec<HeldNonce>> {
        let ask = self
            .ask(&OVERDUE)
            .bind(signer.as_str())
            .bind(max as i64)
            .bind(ahead_ms as i64)
            .bind(from.unwrap_or(EARLIEST).as_micros());
        let mut held: Vec<HeldNonce> = records::all(self.all::<HeldRow>(Way::KeyReads, ask).await?)?;
        held.sort_by_key(|held| held.held_until);
        Ok(held)
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

    async fn commit_linked(&self, batch: Batch, link: Link) -> Result<Verdict> {
        self.nonce_trains.commit_linked(batch, link, self.call_timeout).await
    }

    async fn kept_keys(&self, scopes: &[KeyScope]) -> Result<Vec<(KeyScope, KeptKey)>> {
        records::all(self.key_rows(scopes).await?)
    }

    async fn is_known(&self, signer: &SignerId) -> Result<bool> {
        let (signers,): (i64,) = self.one(Way::Reads, self.ask(&KNOWN).bind(signer.as_str())).await?;
        Ok(signers > 0)
    }

    async fn signer(&self, signer: &SignerId) -> Result<Option<SignerRecord>> {
        Ok(self.signer_page(signer.as_str(), signer.as_str(), 1).await?.pop())
    }

    async fn signers(&self, prefix: &str, after: Option<&SignerId>, limit: u32) -> Result<Vec<SignerRecord>> {
        let (from, to) = records::signer_bounds(prefix, after);
        self.signer_page(&from, &to, limit).await
    }

    async fn nonces(&self, filter: &NonceFilter) -> Result<Vec<NonceRecord>> {
        // The state stands in the text, since a partial index serves a condition that is written out.
        let asks_for = |mark: &str| filter.status.is_some_and(|status| mark == status.as_str());
        let list = |statement: &Statement| {
            self.ask(statement)
                .reworded(|text| narrowed(text, asks_for))
                .bind(filter.signer.as_str())
                .bind(filter.after.map_or(-1, |nonce| nonce.get() as i64))
                .bind(i64::from(filter.limit))
        };
        // Those that are HELD are all read only where a page of them is not among the next nonces.
        if filter.status == Some(Status::Held) {
            let next: Vec<NonceRecordRow> = self.all(Way::Reads, list(&LIST_NEXT)).await?;
            if next.len() >= filter.limit as usize {
                return records::all(next);
            }
        }
        records::all(self.all::<NonceRecordRow>(Way::Reads, list(&LIST)).await?)
    }

    async fn overdue_signers(
        &self,
        me: &InstanceId,
        ahead_ms: u64,
        after: Option<&SignerId>,
        limit: u32,
    ) -> Result<OverdueSigners> {
        let ask = self
            .ask(&OVERDUE_SIGNERS)
            .bind(me.as_str())
            .bind(after.map_or("", SignerId::as_str))
            .bind(i64::from(limit))
            .bind(ahead_ms as i64);
        records::overdue_signers(self.all(Way::Reads, ask).await?, limit)
    }

    async fn open_counts(&self) -> Result<Vec<(Status, u64)>> {
        let rows: Vec<(String, i64)> = self.all(Way::Reads, self.ask(&OPEN_COUNTS)).await?;
        rows.into_iter()
            .map(|(status, nonces)| {
                Ok((Status::parse(&status).map_err(records::impossible)?, records::count(nonces)?))
            })
            .collect()
    }

    async fn confirm_signer(&self, signer: &SignerId, next: Nonce, by: &AuditEntry) -> Result<Confirmation> {
        let (signer, next, by) = (signer.clone(), next.get() as i64, by.clone());
        self.in_transaction(move |transaction| {
            Box::pin(async move { confirm(transaction, &signer, next, &by).await })
        })
        .await
    }

    async fn purge_keys(&self, age_ms: u64, limit: u32) -> Result<u64> {
        let old = |statement: &Statement| self.ask(statement).bind(age_ms as i64).bind(i64::from(limit));
        let from = self.key_purge.take();
        let kept: Result<Vec<(Moment,)>> = self.all(Way::Writes, old(&KEY_PURGE).bind(Moment(from))).await;
        if kept.as_ref().is_err_and(Error::is_late) && self.key_purge.is_at(from) {
            self.pass_over_old_keys(from, age_ms).await?;
        }
        let kept = kept?;
        let purged = kept.len() as u64;
        self.key_purge.note(kept.into_iter().map(|(at,)| at.0).max(), purged >= u64::from(limit));
        Ok(purged + self.touch(Way::Writes, old(&BULK_KEY_PURGE)).await?)
    }
}

impl Store {
    /// Has the next purge of keys older than `age_ms` begin with those that have just come of age, and not with `from` again.
    async fn pass_over_old_keys(&self, from: Timestamp, age_ms: u64) -> Result<()> {
        let (now,): (i64,) = self.one(Way::KeyReads, self.ask(&CLOCK)).await?;
        let before_ms = i64::try_from(age_ms.saturating_add(KEY_PURGE_RECENT_MS)).unwrap_or(i64::MAX);
        let until = now.saturating_sub(before_ms.saturating_mul(1_000));
        self.key_purge.pass_over(from, Timestamp::from_micros(until));
        Ok(())
    }

    /// What is kept under idempotency keys of any kind.
    pub(super) async fn key_rows(&self, scopes: &[KeyScope]) -> Result<Vec<KeyRow>> {
        let ask = self.ask(&KEYS).rows(scopes, |scopes| {
            scopes.column("scope", |scope| scope.scope.as_str()).column("key", |scope| scope.key.as_str());
        });
        self.settled(ask).await
    }

    async fn signer_page(&self, from: &str, to: &str, limit: u32) -> Result<Vec<SignerRecord>> {
        let ask = self.ask(&SIGNERS).bind(from).bind(to).bind(i64::from(limit));
        records::all(self.all::<SignerRow>(Way::Reads, ask).await?)
    }
}

/// Whether it is recovering; the nonce confirmed last; its first and its last nonce; whether the next one was used.
type SignerToConfirm = (bool, Option<i64>, Option<i64>, Option<i64>, bool);

/// Confirms a signer's next nonce, or as much as one transaction does of it: between BEGIN and COMMIT.
async fn confirm(
    transaction: &mut Transaction<'_>,
    signer: &SignerId,
    next: i64,
    by: &AuditEntry,
) -> sqlx::Result<Decided<Confirmation>> {
    let (kind, at) = (transaction.kind(), transaction.at());
    let resource = Resource::signer(signer);
    let ended = CONFIRM_LEASE.on(kind).bind(resource.as_str()).at(at);
    let (token,): (i64,) = transaction.session().one(ended).await?;
    let ask = CONFIRM_SIGNER.on(kind).bind(signer.as_str()).bind(next);
    let (is_recovering, confirmed, first, last, is_used): SignerToConfirm =
        transaction.session().one(ask).await?;
    let refused = match (is_recovering, first) {
        (false, None) => Some(Confirmation::Unknown),
        // The answer to the first confirmation was lost, or two operators said the same.
        (false, Some(_)) if confirmed == Some(next) => Some(Confirmation::Done),
        (false, Some(_)) => Some(Confirmation::NotRecovering),
        (true, _) => is_used.then_some(Confirmation::Used),
    };
    // One that a recovered ledger does not know is made.
    let first = first.unwrap_or(next);
    let from = last.map_or(next, |last| last + 1);
    let missing = u64::try_from(next - from).unwrap_or(0);
    let too_far = (missing > CONFIRMED_NONCES_MAX).then_some(Confirmation::TooFar(missing));
    // The chain has none of these, and the ledger's nonces begin above them.
    let below = last.map_or(0, |_| u64::try_from(first - next).unwrap_or(0));
    let too_low = (below > CONFIRMED_HOLES_MAX).then_some(Confirmation::TooLow(below));
    if let Some(refused) = refused.or(too_far).or(too_low) {
        return Ok(Decided::Rollback(refused));
    }
    let before = last.map(|last| format!("the ledger's last nonce: {last}"));
    // An earlier request may have begun to confirm a larger nonce.
    if let Some(last) = last.filter(|last| *last >= next) {
        let from = next.max(last + 1 - CONFIRMED_AT_ONCE_MAX as i64);
        let undone = CONFIRM_UNDO.on(kind).bind(signer.as_str()).bind(from);
        let last_kept = last - transaction.touch(undone).await? as i64;
        if last_kept < last && last_kept >= next {
            let by = by.changed(before, format!("the ledger's last nonce: {last_kept}"));
            audit::add(transaction, &[&by]).await?;
            return Ok(Decided::Commit(Confirmation::Partly((last_kept + 1 - next) as u64)));
        }
    }
    let left = missing.saturating_sub(CONFIRMED_AT_ONCE_MAX);
    let until = next - left as i64;
    // Nobody was granted a nonce under it.
    let hold = Hold(HoldId::from_u128(Uuid::new_v4().as_u128()));
    let add = |status: Status, from: i64, until: i64| {
        let add = CONFIRM_MISSING.on(kind).bind(signer.as_str()).bind(from).bind(until);
        add.bind(status.as_str()).bind(hold).bind(token).at(at)
    };
    if missing > 0 {
        transaction.touch(add(Status::Consumed, from, until)).await?;
    }
    if left > 0 {
        let by = by.changed(before, format!("the ledger's last nonce: {}", until - 1));
        audit::add(transaction, &[&by]).await?;
        return Ok(Decided::Commit(Confirmation::Partly(left)));
    }
    let mut first_nonce = first;
    match last {
        // The signer's nonces begin where the chain is.
        None => first_nonce = next,
        Some(_) => {
            let known = CONFIRM_KNOWN.on(kind).bind(signer.as_str()).bind(next).bind(token);
            transaction.touch(known.bind(hold).at(at)).await?;
            // Last, since these are no open nonces from before the confirmation.
            if below > 0 {
                transaction.touch(add(Status::Released, next, first)).await?;
                first_nonce = next;
            }
        }
    }
    let done = CONFIRM_DONE.on(kind).bind(signer.as_str()).bind(first_nonce).bind(next);
    let done = done.bind(OnExpiry::default().as_str()).bind(token).at(at);
    transaction.touch(done).await?;
    let by = by.changed(before, format!("next nonce: {next}"));
    audit::add(transaction, &[&by]).await?;
    Ok(Decided::Commit(Confirmation::Done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_of_keys_goes_on_where_the_last_one_ended_also_behind_one_that_began_anew_and_failed() {
        let (purge, at) = (KeyPurge::default(), Timestamp::from_micros);
        assert_eq!(purge.take(), EARLIEST);
        purge.note(Some(at(5)), true);
        assert_eq!(purge.take(), at(5));
        purge.note(Some(at(7)), false);
        let end_many = || {
            for _ in 1..KEY_PURGES_ANEW_EVERY {
                assert_eq!(purge.take(), at(7));
                purge.note(None, false);
            }
        };
        end_many();
        // One begins with the oldest keys, and takes too long.
        assert_eq!(purge.take(), EARLIEST);
        purge.pass_over(EARLIEST, at(9));
        end_many();
        assert_eq!(purge.take(), at(7));
        purge.note(None, false);
        // Another one finds keys that stayed behind, and goes on behind them to its end.
        assert_eq!(purge.take(), EARLIEST);
        purge.note(Some(at(3)), true);
        assert_eq!(purge.take(), at(3));
        purge.note(None, false);
        assert_eq!(purge.take(), at(7));
    }

    #[test]
    fn a_purge_of_keys_of_which_a_step_took_too_long_passes_over_what_is_old() {
        let (purge, at) = (KeyPurge::default(), Timestamp::from_micros);
        assert_eq!(purge.take(), EARLIEST);
        assert!(purge.is_at(EARLIEST));
        purge.pass_over(EARLIEST, at(5));
        assert!(!purge.is_at(EARLIEST));
        for _ in 1..KEY_PURGES_ANEW_EVERY {
            assert_eq!(purge.take(), at(5));
            purge.note(None, false);
        }
        assert_eq!(purge.take(), at(5));
        purge.note(Some(at(6)), false);
        // This was the last of many, and what is old has its turn. It fails, and the place is not lost by that.
        assert_eq!(purge.take(), EARLIEST);
        assert_eq!(purge.take(), at(6));
        // So does another one later, where others have deleted much meanwhile.
        purge.pass_over(at(6), at(9));
        assert_eq!(purge.take(), at(9));
        purge.pass_over(at(9), at(8));
        assert_eq!(purge.take(), at(9), "what is deleted is not looked at again");
        purge.note(Some(at(10)), true);
        purge.pass_over(at(9), at(12));
        assert_eq!(purge.take(), at(10), "a step has gone on meanwhile");
    }
}
