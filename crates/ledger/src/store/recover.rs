//! The statements of a recovery.

use domain::AuditEntry;

use super::{Store, Way, audit};
use crate::Result;
use crate::recover::{RECOVERED_MARK_MS, RECOVERED_TOKENS, Recovery};
use crate::sql::{Statement, statement};

const POSITION: Statement = statement!("recover_position");
const LEASES: Statement = statement!("recover_leases");
const BULKS: Statement = statement!("recover_bulks");
const SIGNERS: Statement = statement!(both "recover_signers");
const SEGMENTS: Statement = statement!("recover_segments");
const SEQUENCES: Statement = statement!("recover_sequences");
const WORKERS: Statement = statement!("recover_workers");

impl Store {
    /// See [`crate::recover()`].
    pub(crate) async fn recover(&self, numbers: i64, is_trial: bool, by: &AuditEntry) -> Result<Recovery> {
        let by = by.clone();
        self.with(Way::Writes, move |mut session| {
            Box::pin(async move {
                let mut transaction = session.begin().await?;
                let kind = transaction.kind();
                transaction.touch(POSITION.on(kind)).await?;
                transaction.touch(BULKS.on(kind).bind(RECOVERED_TOKENS)).await?;
                let recovery = Recovery {
                    leases: transaction.touch(LEASES.on(kind).bind(RECOVERED_TOKENS)).await?,
                    signers: transaction.touch(SIGNERS.on(kind)).await?,
                    segments: transaction.touch(SEGMENTS.on(kind).bind(numbers)).await?,
                    sequences: transaction.touch(SEQUENCES.on(kind).bind(numbers)).await?,
                    workers: transaction.touch(WORKERS.on(kind).bind(RECOVERED_MARK_MS)).await?,
                };
                audit::add(&mut transaction, &[&by]).await?;
                match is_trial {
                    true => transaction.rollback().await?,
                    false => transaction.commit().await?,
                }
                Ok(recovery)
            })
        })
        .await
    }
}
