//! What the local file says, kept ahead of issuance while there is one.

use std::future::pending;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use panic_guard::guarded_call;
use tokio::task::JoinError;

use super::super::Refusal;
use super::super::worker_id_file::{Proof, Record, WorkerIdFile};
use crate::limits::FILE_LEAD_MS;

/// The pause between two tries to delete the file, which is this process's alone.
const REMOVE_AGAIN: Duration = Duration::from_secs(1);

/// The file, if there is one that this process may use.
pub(super) struct Ahead {
    id_file: Option<WorkerIdFile>,
    written: Option<Record>,
    /// It was to be deleted and could not be.
    is_undeleted: bool,
}

impl Ahead {
    /// Locks the file and reads what it proves. If the file cannot be used, the keeper goes on without it.
    pub(super) async fn take(path: Option<PathBuf>) -> (Self, Option<Record>) {
        let Some(path) = path else {
            return (Self { id_file: None, written: None, is_undeleted: false }, None);
        };
        let file = path.display().to_string();
        match blocking(move || WorkerIdFile::take(&path)).await {
            Ok((id_file, proof)) => {
                let written = match proof {
                    Proof::Of(record) => Some(record),
                    Proof::Empty => None,
                    Proof::Nothing(reason) => {
                        tracing::warn!(file, reason, "the local file proves no worker number");
                        None
                    }
                };
                (Self { id_file: Some(id_file), written: written.clone(), is_undeleted: false }, written)
            }
            Err(error) => {
                if error.kind() == ErrorKind::WouldBlock {
                    tracing::info!(
                        file,
                        "another process uses the local file for worker numbers; this one works without it"
                    );
                } else if !is_cancelled(&error) {
                    tracing::warn!(file, %error, "the local file for worker numbers cannot be used");
                }
                (Self { id_file: None, written: None, is_undeleted: false }, None)
            }
        }
    }

    /// The first time that ids must not have yet, for this number and committed mark. The file, if there is one, is written
    /// before this answers: with what is committed, and a later `issued_ms`.
    pub(super) async fn limit(&mut self, committed: Record, now_ms: u64) -> Result<u64, Refusal> {
        let mark_ms = committed.mark_ms;
        if self.id_file.is_none() {
            return Ok(mark_ms);
        }
        let before = self.written.as_ref().filter(|before| before.is_of_the_number_of(&committed));
        let issued_ms = now_ms.saturating_add(FILE_LEAD_MS).min(mark_ms).max(committed.issued_ms);
        let issued_ms = before.map_or(issued_ms, |before| before.issued_ms.max(issued_ms));
        let record = Record { issued_ms, ..committed };
        if before == Some(&record) {
            return Ok(issued_ms);
        }
        let written = record.clone();
        let Err(error) = self.with(move |id_file| id_file.write(&record)).await else {
            self.written = Some(written);
            self.is_undeleted = false;
            return Ok(issued_ms);
        };
        tracing::warn!(%error, "the local file for worker numbers could not be written");
        // What the file says could become false, so it has to go.
        if self.remove().await {
            self.id_file = None;
            return Ok(mark_ms);
        }
        Err(Refusal::File(error.to_string()))
    }

    /// Deletes the file; whether it proves nothing any more.
    pub(super) async fn remove(&mut self) -> bool {
        if self.id_file.is_none() {
            return true;
        }
        match self.with(WorkerIdFile::remove).await {
            Ok(()) => {
                self.written = None;
                self.is_undeleted = false;
                true
            }
            Err(error) => {
                tracing::error!(%error, "the local file for worker numbers could not be removed");
                self.is_undeleted = true;
                false
            }
        }
    }

    /// Returns when the file is to be deleted again, since that failed.
    pub(super) async fn until_removal_is_due(&self) {
        if !self.is_undeleted {
            return pending().await;
        }
        tokio::time::sleep(REMOVE_AGAIN).await;
    }

    async fn with(
        &mut self,
        act: impl FnOnce(&mut WorkerIdFile) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let mut id_file = self.id_file.take().expect("callers have looked");
        let (id_file, done) = blocking(move || {
            // A defect must not lose the file: what it says could become false.
            let done = guarded_call("the local file for worker numbers", || act(&mut id_file));
            Ok((id_file, done.unwrap_or_else(|| Err(io::Error::other("a defect interrupted it")))))
        })
        .await?;
        self.id_file = Some(id_file);
        done
    }
}

impl Record {
    /// Whether both are of the same number of the same ledger, and of the same epoch.
    fn is_of_the_number_of(&self, other: &Self) -> bool {
        (self.number, self.epoch_ms, &self.ledger) == (other.number, other.epoch_ms, &other.ledger)
    }
}

/// Runs file operations away from the threads of the runtime, which they could block.
async fn blocking<T: Send + 'static>(act: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(act).await.map_err(io::Error::other)?
}

/// Whether the file operation was not done because the process ends.
fn is_cancelled(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<JoinError>());
    inner.is_some_and(JoinError::is_cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_operation_that_was_cancelled_is_told_from_one_that_failed() {
        let task = tokio::spawn(pending::<()>());
        task.abort();
        assert!(is_cancelled(&io::Error::other(task.await.unwrap_err())));
        let failed = blocking(|| Err::<(), _>(io::Error::other("a full disk"))).await;
        assert!(!is_cancelled(&failed.unwrap_err()));
    }

    #[tokio::test]
    async fn a_file_operation_that_panics_has_failed_and_the_file_can_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("worker");
        let (mut ahead, _) = Ahead::take(Some(file.clone())).await;
        assert!(ahead.with(|_| panic!("made on purpose")).await.is_err());
        assert!(file.exists());
        assert!(ahead.remove().await && !file.exists());
    }
}
