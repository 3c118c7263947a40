//! A process's resident memory over time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use testkit::instance::memory_bytes;
use tokio::task::JoinHandle;

/// How often the memory is read.
const EVERY: Duration = Duration::from_millis(200);

/// Bytes as MiB.
#[must_use]
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Reads a process's memory again and again, until its end.
#[derive(Debug)]
pub struct MemoryWatch {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Vec<(f64, u64)>>,
}

impl MemoryWatch {
    /// Watches this process; `None` watches none.
    #[must_use]
    pub fn start(pid: Option<u32>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let began = Instant::now();
        let task = tokio::spawn(async move {
            let mut seen = Vec::new();
            while let Some(pid) = pid
                && !ended.load(Ordering::Relaxed)
            {
                if let Ok(bytes) = memory_bytes(pid) {
                    seen.push((began.elapsed().as_secs_f64(), bytes));
                }
                tokio::time::sleep(EVERY).await;
            }
            seen
        });
        Self { stop, task }
    }

    /// Seconds since the start, each with the bytes that were resident then.
    ///
    /// # Errors
    /// The task that watches has died.
    pub async fn end(self) -> Result<Vec<(f64, u64)>> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.context("watching the memory")
    }
}
