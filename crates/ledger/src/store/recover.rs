//! The statements of a recovery.

use domain::AuditEntry;
use domain::limits::{ID_WORKER_MAX, SEGMENT_STEP_GROWN_MAX};
use serde_json::json;

use super::{Decided, Store, Way, audit};
use crate::recover::{Margins, RECOVERED_MARK_MS, RECOVERED_RANGES, RECOVERED_TOKENS, Recovery};
use crate::sql::{Ask, Statement, statement};
use crate::{Kind, Result};

const LOCK: Statement = statement!(postgres "recover_lock");
const PATIENCE: Statement = statement!(postgres "recover_patience");
const POSITION: Statement = statement!("recover_position");
const FLOOR: Statement = statement!("recover_floor");
const LEASES: Statement = statement!("recover_leases");
const OWNED: Statement = statement!("recover_owned");
const SESSIONS: Statement = statement!("recover_sessions");
const PLANS: Statement = statement!(both "recover_plans");
const BULKS: Statement = statement!(both "recover_bulks");
const SIGNERS: Statement = statement!(both "recover_signers");
const SEGMENTS: Statement = statement!("recover_segments");
const SEQUENCES: Statement = statement!("recover_sequences");
const ENDED_SEGMENTS: Statement = statement!(both "recover_ended_segments");
const ENDED_SEQUENCES: Statement = statement!(both "recover_ended_sequences");
const WORKERS: Statement = statement!("recover_workers");
const AHEAD: Statement = statement!("recover_ahead");
const TRIAL: Statement = statement!(both "recover_trial");
const NEW_SIGNERS: Statement = statement!(both "recover_new_signers");

impl Store {
    /// See [`crate::recover()`].
    pub(crate) async fn recover(&self, margins: Margins, by: &AuditEntry) -> Result<Recovery> {
        let by = by.clone();
        let Margins { numbers, lead_ms } = margins;
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                let kind = transaction.kind();
                if kind == Kind::Postgres {
                    transaction.touch(PATIENCE.on(kind)).await?;
                    transaction.touch(LOCK.on(kind)).await?;
                }
                transaction.touch(POSITION.on(kind)).await?;
                transaction.touch(FLOOR.on(kind).bind(RECOVERED_TOKENS)).await?;
                transaction.touch(BULKS.on(kind).bind(RECOVERED_TOKENS)).await?;
                let ended_segments =
                    names(transaction.all(of_segments(ENDED_SEGMENTS.on(kind), numbers)).await?);
                let ended_sequences = names(transaction.all(ENDED_SEQUENCES.on(kind).bind(numbers)).await?);
                let segments = transaction.touch(of_segments(SEGMENTS.on(kind), numbers)).await?;
                let sequences = transaction.touch(SEQUENCES.on(kind).bind(numbers)).await?;
                let workers = WORKERS.on(kind).bind(i32::from(ID_WORKER_MAX));
                let ahead = AHEAD.on(kind).bind(i64::from(ID_WORKER_MAX));
                let leases = transaction.touch(LEASES.on(kind).bind(RECOVERED_TOKENS)).await?;
                transaction.touch(OWNED.on(kind)).await?;
                let recovery = Recovery {
                    leases,
                    sessions: transaction.touch(SESSIONS.on(kind).bind(numbers)).await?,
                    plans: transaction.touch(PLANS.on(kind).bind(numbers)).await?,
                    signers: transaction.touch(SIGNERS.on(kind)).await?,
                    segments: others(segments, &ended_segments),
                    sequences: others(sequences, &ended_sequences),
                    ended_segments,
                    ended_sequences,
                    workers: transaction.touch(workers.bind(lead_ms + RECOVERED_MARK_MS)).await?,
                    ahead_ms: transaction.session().one::<(i64,)>(ahead).await?.0,
                };
                let by = AuditEntry { after: Some(changes(&recovery, margins)), ..by };
                audit::add(transaction, &[&by]).await?;
                Ok(Decided::Commit(recovery))
            })
        })
        .await
    }

    /// See [`crate::try_recovery`].
    pub(crate) async fn try_recovery(&self, Margins { numbers, .. }: Margins) -> Result<Recovery> {
        let counted: (i64, i64, i64, i64, i64, i64) = self.one(Way::Reads, self.ask(&TRIAL)).await?;
        let [leases, sessions, plans, signers, segments, sequences] =
            <[i64; 6]>::from(counted).map(i64::cast_unsigned);
        let ended_segments = of_segments(self.ask(&ENDED_SEGMENTS), numbers);
        let ended_segments = names(self.all(Way::Reads, ended_segments).await?);
        let ended_sequences = self.ask(&ENDED_SEQUENCES).bind(numbers);
        let ended_sequences = names(self.all(Way::Reads, ended_sequences).await?);
        let workers = u64::from(ID_WORKER_MAX) + 1;
        let ahead = self.ask(&AHEAD).bind(i64::from(ID_WORKER_MAX));
        let (ahead_ms,): (i64,) = self.one(Way::Reads, ahead).await?;
        let (segments, sequences) = (others(segments, &ended_segments), others(sequences, &ended_sequences));
        Ok(Recovery {
            leases,
            sessions,
            plans,
            signers,
            segments,
            sequences,
            ended_segments,
            ended_sequences,
            workers,
            ahead_ms,
        })
    }

    /// See [`crate::let_new_signers_grant`].
    pub(crate) async fn let_new_signers_grant(&self, by: &AuditEntry) -> Result<()> {
        let by = by.clone();
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                let kind = transaction.kind();
                let waited = transaction.touch(NEW_SIGNERS.on(kind)).await? > 0;
                let are_new = |is_so: bool| json!({ "unknown_signers_are_new": is_so }).to_string();
                let by = by.changed(are_new(!waited), are_new(true));
                audit::add(transaction, &[&by]).await.map(Decided::Commit)
            })
        })
        .await
    }
}

/// With the arguments that statements about segments take.
fn of_segments(ask: Ask, numbers: i64) -> Ask {
    ask.bind(numbers).bind(RECOVERED_RANGES).bind(SEGMENT_STEP_GROWN_MAX as i64)
}

fn names(rows: Vec<(String,)>) -> Vec<String> {
    rows.into_iter().map(|(name,)| name).collect()
}

/// How many of them all are not among those that end.
fn others(all: u64, ended: &[String]) -> u64 {
    all.saturating_sub(ended.len() as u64)
}

/// What a recovery has changed, and by how much, for the audit.
fn changes(recovery: &Recovery, Margins { numbers, lead_ms }: Margins) -> String {
    let Recovery { leases, sessions, plans, signers, segments, sequences, workers, .. } = recovery;
    let changes = json!({
        "ids": numbers, "lead_ms": lead_ms, "leases": leases, "sessions": sessions, "plans": plans, "signers": signers,
        "segments": segments, "sequences": sequences, "ended_segments": recovery.ended_segments.len(),
        "ended_sequences": recovery.ended_sequences.len(), "workers": workers,
    });
    changes.to_string()
}
