//! Notices over Pub/Sub that jobs have finished, for those who wait for them or watch them on other
//! instances. A notice may be lost: a waiter also reads the ledger at intervals. No lane depends on them;
//! reports to lanes go through inboxes.

use bus::Channel;
use domain::job::Attempt;
use domain::{JobId, LaneId};
use panic_guard::guarded;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::limits::NOTICES_MAX;

/// Notices taken at once.
const NOTICES_AT_ONCE: usize = 512;
/// Notices in one message; each takes some 250 bytes at most.
const NOTICES_PER_MESSAGE: usize = 32;

const _: () = assert!(NOTICES_PER_MESSAGE * 300 <= bus::limits::NOTICE_BYTES_MAX);

/// A job that has finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FinishNotice {
    pub(super) lane: LaneId,
    pub(super) job: JobId,
    /// The newest attempt then.
    pub(super) attempt: Attempt,
}

#[derive(Serialize, Deserialize)]
struct Written {
    lane: String,
    job: String,
    attempt: u32,
}

/// Publishes notices to the other instances, in the background.
pub(super) struct FinishNotices {
    notices: mpsc::Sender<FinishNotice>,
}

impl FinishNotices {
    /// Must be called within a Tokio runtime. The task ends with this.
    pub(super) fn start(bus: bus::Handle) -> Self {
        let (notices, queued) = mpsc::channel(NOTICES_MAX);
        tokio::spawn(publish(bus, queued));
        Self { notices }
    }

    pub(super) fn tell(&self, notice: FinishNotice) {
        // One that does not fit is lost, as notices may be.
        let _ = self.notices.try_send(notice);
    }
}

async fn publish(bus: bus::Handle, mut notices: mpsc::Receiver<FinishNotice>) {
    let mut gathered = Vec::new();
    while notices.recv_many(&mut gathered, NOTICES_AT_ONCE).await > 0 {
        for message in gathered.chunks(NOTICES_PER_MESSAGE) {
            let publish = async { bus.publish(Channel::Jobs, &write(message)).await };
            if let Some(Err(error)) = guarded("the notices of finished jobs", publish).await {
                tracing::debug!(%error, "notices of finished jobs were lost; waiters read the ledger");
            }
        }
        gathered.clear();
    }
}

fn write(notices: &[FinishNotice]) -> Vec<u8> {
    let written = notices.iter().map(|FinishNotice { lane, job, attempt }| Written {
        lane: lane.to_string(),
        job: job.to_string(),
        attempt: attempt.get(),
    });
    serde_json::to_vec(&written.collect::<Vec<_>>()).expect("it has text keys only")
}

/// The notices of one message; `None` for what no version of Fencepost wrote.
pub(super) fn read(payload: &[u8]) -> Option<Vec<FinishNotice>> {
    let written: Vec<Written> = serde_json::from_slice(payload).ok()?;
    let read = written.into_iter().map(|Written { lane, job, attempt }| {
        Some(FinishNotice {
            lane: LaneId::parse(&lane).ok()?,
            job: JobId::parse(&job)?,
            attempt: Attempt::new(attempt),
        })
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_read_back_and_fit_a_message() {
        let lane = LaneId::parse(&format!("session:{}", "s".repeat(128))).unwrap();
        let notice =
            |n| FinishNotice { lane: lane.clone(), job: JobId::from_u128(n), attempt: Attempt::new(7) };
        let notices: Vec<_> = (0..NOTICES_PER_MESSAGE as u128).map(notice).collect();
        let written = write(&notices);
        assert!(written.len() <= bus::limits::NOTICE_BYTES_MAX);
        assert_eq!(read(&written), Some(notices));
        for bad in ["", "{}", r#"[{"lane":"x","job":"y","attempt":1}]"#] {
            assert_eq!(read(bad.as_bytes()), None, "{bad}");
        }
    }
}
