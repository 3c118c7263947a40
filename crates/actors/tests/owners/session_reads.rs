//! What the owner of a session reads when it begins, what a node's instance writes in between, and closes that are not heard of.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ledger::{Error, Handle, JobBatch, Result};
use parking_lot::Mutex;

/// One of these reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRead {
    /// How many jobs are in which state.
    Counts,
    /// The session.
    Record,
    /// A page of jobs under way.
    InFlight,
}

/// What is written behind one of them.
#[derive(Default)]
pub struct SessionReads {
    then: Mutex<Option<(SessionRead, JobBatch)>>,
    has_written: AtomicBool,
    /// How many sessions were read that were to be what a standby has.
    pub settled: AtomicUsize,
    /// The next close is done, and the answer is lost.
    pub next_close_is_unheard: AtomicBool,
    /// The next close is not done, and its caller gets no answer.
    pub next_close_is_lost: AtomicBool,
}

impl SessionReads {
    /// This is written as soon as the next such read is done.
    pub fn then(&self, behind: SessionRead, batch: JobBatch) {
        *self.then.lock() = Some((behind, batch));
    }

    /// Whether it is written.
    pub fn has_written(&self) -> bool {
        self.has_written.load(Ordering::SeqCst)
    }

    /// Something is to be read.
    pub async fn read<T: Send>(
        &self,
        what: SessionRead,
        ledger: &Handle,
        read: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let found = read.await?;
        let then = self.then.lock().take_if(|(behind, _)| *behind == what);
        if let Some((_, batch)) = then {
            ledger.commit_jobs(batch).await?;
            self.has_written.store(true, Ordering::SeqCst);
        }
        Ok(found)
    }

    /// A session is to be closed.
    pub async fn close<T: Send>(&self, close: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let unheard = || Err(Error::unknown(std::io::Error::from(std::io::ErrorKind::ConnectionReset)));
        if self.next_close_is_lost.swap(false, Ordering::SeqCst) {
            return unheard();
        }
        let closed = close.await;
        if self.next_close_is_unheard.swap(false, Ordering::SeqCst) { unheard() } else { closed }
    }
}
