//! Bulk operations: one action on all jobs that match a filter, which the daemon does in the background.

use wire::List;
use wire::bulk::{Bulk, BulkAccepted, BulkRequest};

use crate::observe::Page;
use crate::transport::{Call, key_or_new};
use crate::{Client, Result};

/// The calls about bulk operations.
#[derive(Clone, Copy, Debug)]
pub struct Bulks<'a>(&'a Client);

impl Client {
    /// The calls about bulk operations.
    #[must_use]
    pub const fn bulks(&self) -> Bulks<'_> {
        Bulks(self)
    }
}

impl Bulks<'_> {
    /// Begins a bulk operation; when this returns it is durable and goes on without the caller. With `dry_run` it only counts
    /// the jobs. Under one `key` (1 to 128 visible ASCII characters) the same request is the same operation. Without it the
    /// library makes one for this call, so that its own retries are harmless.
    ///
    /// # Errors
    /// [`crate::Error`]; `overloaded` where as many operations are under way as may be.
    pub async fn begin(&self, asked: &BulkRequest, key: Option<&str>) -> Result<BulkAccepted> {
        let key = key_or_new(key);
        let changes_nothing = asked.dry_run == Some(true);
        let call = Call { changes_nothing, ..Call::post(&["v1", "bulk"], asked).under(Some(&key)) };
        self.0.call(&call).await
    }

    /// One bulk operation, as it is now.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for one that does not exist, or is older than 30 days.
    pub async fn get(&self, id: &str) -> Result<Bulk> {
        self.0.call(&Call::get(&["v1", "bulk", id], &[])).await
    }

    /// The bulk operations, newest first.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn list(&self, page: &Page) -> Result<List<Bulk>> {
        self.0.call(&Call::get(&["v1", "bulk"], &page.query())).await
    }

    /// Stops a bulk operation, which ends after the jobs that are being worked on. What was done stays done. One that is over
    /// stays as it is.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn stop(&self, id: &str) -> Result<Bulk> {
        self.0.call(&Call::act(&["v1", "bulk", id, "cancel"])).await
    }
}
