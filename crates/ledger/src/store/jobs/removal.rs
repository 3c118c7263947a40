//! Finished jobs that people are done with: dismissed, so that they are not dead any more, or deleted.

use domain::JobId;

use super::ids;
use super::write::between;
use crate::jobs::JobFilter;
use crate::sessions::rows::{PurgedRow, highest_places};
use crate::sql::{Id, Statement, Transaction, record, statement};
use crate::store::partitions::note_places;

const DISMISS: Statement = statement!("job_dismiss");
const DELETE: Statement = statement!("job_delete");

record! {
    struct DeletedRow {
        id: Id,
        #[flatten]
        place: PurgedRow,
    }
}

/// Dismisses those of these jobs that are dead; answers them.
pub(in crate::store) async fn dismiss(
    transaction: &mut Transaction<'_>,
    jobs: &[JobId],
) -> sqlx::Result<Vec<JobId>> {
    let kind = transaction.kind();
    let ask = DISMISS.on(kind).array(ids(jobs)).at(transaction.at());
    let ask = between(ask, kind, jobs.iter().min(), jobs.iter().max());
    let dismissed: Vec<(Id,)> = transaction.all(ask).await?;
    Ok(dismissed.into_iter().map(|(id,)| id.0).collect())
}

/// Deletes those of these jobs that are finished and that no plan waits for, and that are dead, or not dead, where the filter
/// says so; answers them. What else a filter says of a finished job does not change. Their places in their sessions are not
/// given again.
pub(in crate::store) async fn delete(
    transaction: &mut Transaction<'_>,
    jobs: &[JobId],
    filter: &JobFilter,
) -> sqlx::Result<Vec<JobId>> {
    let kind = transaction.kind();
    let delete = DELETE.on(kind).reworded(|text| filter.narrowed(text));
    let ask = delete.array(ids(jobs));
    let ask = between(ask, kind, jobs.iter().min(), jobs.iter().max());
    let deleted: Vec<DeletedRow> = transaction.all(ask).await?;
    let ids = deleted.iter().map(|row| row.id.0).collect();
    let places = highest_places(deleted.into_iter().map(|row| row.place).collect());
    if !places.is_empty() {
        note_places(transaction, places).await?;
    }
    Ok(ids)
}
