//! What the local file says, kept ahead of issuance while there is one.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use domain::WorkerNumber;

use super::super::Refusal;
use super::super::keepsake::{Keepsake, Proof, Record};
use crate::limits::FILE_LEAD_MS;

/// The file, if there is one that this process may use.
pub(super) struct Ahead {
    keepsake: Option<Keepsake>,
    written: Option<Record>,
}

impl Ahead {
    /// Takes the file, and what it proves. One that cannot be used is done without.
    pub(super) async fn take(path: Option<PathBuf>) -> (Self, Option<Record>) {
        let Some(path) = path else { return (Self { keepsake: None, written: None }, None) };
        let file = path.display().to_string();
        match blocking(move || Keepsake::take(&path)).await {
            Ok((keepsake, proof)) => {
                let written = match proof {
                    Proof::Of(record) => Some(record),
                    Proof::Empty => None,
                    Proof::Nothing(reason) => {
                        tracing::warn!(file, reason, "the local file proves no worker number");
                        None
                    }
                };
                (Self { keepsake: Some(keepsake), written }, written)
            }
            Err(error) => {
                if error.kind() == ErrorKind::WouldBlock {
                    tracing::info!(
                        file,
                        "another process uses the local file for worker numbers; this one goes without"
                    );
                } else {
                    tracing::warn!(file, %error, "the local file for worker numbers cannot be used");
                }
                (Self { keepsake: None, written: None }, None)
            }
        }
    }

    /// How far ids may go now, under this number and epoch and with this mark committed. The file, if there is one,
    /// says so before this does.
    pub(super) async fn limit(
        &mut self,
        (number, epoch_ms, mark_ms): (WorkerNumber, u64, u64),
        now_ms: u64,
    ) -> Result<u64, Refusal> {
        if self.keepsake.is_none() {
            return Ok(mark_ms);
        }
        let before = self.written.filter(|record| (record.number, record.epoch_ms) == (number, epoch_ms));
        let issued_ms = now_ms.saturating_add(FILE_LEAD_MS).min(mark_ms);
        let issued_ms = before.map_or(issued_ms, |before| before.issued_ms.max(issued_ms));
        let record = Record { number, epoch_ms, issued_ms, mark_ms };
        if before == Some(record) {
            return Ok(issued_ms);
        }
        let Err(error) = self.with(move |keepsake| keepsake.write(&record)).await else {
            self.written = Some(record);
            return Ok(issued_ms);
        };
        tracing::warn!(%error, "the local file for worker numbers was not written");
        // What it says now may not stay true. Without it, all is well again.
        if self.remove().await {
            self.keepsake = None;
            return Ok(mark_ms);
        }
        Err(Refusal::File(error.to_string()))
    }

    /// Deletes the file; whether it proves nothing any more.
    pub(super) async fn remove(&mut self) -> bool {
        if self.keepsake.is_none() {
            return true;
        }
        match self.with(Keepsake::remove).await {
            Ok(()) => {
                self.written = None;
                true
            }
            Err(error) => {
                tracing::error!(%error, "the local file for worker numbers could not be removed");
                false
            }
        }
    }

    async fn with(
        &mut self,
        act: impl FnOnce(&mut Keepsake) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let mut keepsake = self.keepsake.take().expect("callers have looked");
        let (keepsake, done) = blocking(move || {
            let done = act(&mut keepsake);
            Ok((keepsake, done))
        })
        .await?;
        self.keepsake = Some(keepsake);
        done
    }
}

/// Files may be slow; the threads of the runtime have other things to do.
async fn blocking<T: Send + 'static>(act: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(act).await.map_err(io::Error::other)?
}
