//! Writes what this instance's nodes report about attempts apart from results: that they run, and that the
//! slots of cancelled ones are free. Neither is urgent, so they are written in batches, and again until the
//! write succeeds; that they run at the latest when the instance stops, before others read the lanes.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use domain::job::{Attempt, Change, State};
use domain::limits::BATCH_JOBS_MAX;
use domain::{JobId, NodeId};
use ledger::{JobBatch, JobVerdict, JobWrite, JobsVerdict, jittered};
use panic_guard::{again_after_panics, guarded};

use super::job_metrics::JOB_METRICS;
use super::node_gateway::NodeGateway;
use super::watches::{JobEvent, JobEventKind, Watches};

/// An acknowledgement is written if no result arrives within this time. With the longest pause between two looks and the
/// commit, an attempt that runs for two seconds is RUNNING.
const RUN_NOTED_AFTER: Duration = Duration::from_millis(1_500);
/// It is written within this part of the time that nodes have to acknowledge an attempt: an owner on another instance that has
/// not got the report of it does not take the attempt back then.
const NOTED_WITHIN: u32 = 2;
/// How often those are looked for, before jitter.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a write of acknowledgements may take while the instance stops: a ledger that is away holds up no stop.
const LAST_WRITE_MAX: Duration = Duration::from_secs(2);

struct AttemptWriter {
    ledger: ledger::Handle,
    gateway: Arc<NodeGateway>,
    watches: Arc<Watches>,
}

/// Writes as long as another handle to the gateway exists. Nodes have the time `ack` to acknowledge an attempt.
pub(super) fn start(
    ledger: ledger::Handle,
    gateway: &Arc<NodeGateway>,
    watches: &Arc<Watches>,
    ack: Duration,
) {
    let (gateway, watches) = (Arc::downgrade(gateway), Arc::clone(watches));
    let noted_after = run_noted_after(ack);
    let work = move || write(ledger.clone(), Weak::clone(&gateway), Arc::clone(&watches), noted_after);
    tokio::spawn(again_after_panics("the writes about attempts", work));
}

/// Writes all acknowledgements that are known, however new they are: the next owners of the lanes read only what is written.
pub(super) async fn write_acknowledged(
    ledger: &ledger::Handle,
    gateway: &Arc<NodeGateway>,
    watches: &Arc<Watches>,
) {
    let (ledger, gateway, watches) = (ledger.clone(), Arc::clone(gateway), Arc::clone(watches));
    let writer = AttemptWriter { ledger, gateway, watches };
    if tokio::time::timeout(LAST_WRITE_MAX, writer.write_running(Duration::ZERO)).await.is_err() {
        tracing::debug!("the last acknowledgements could not be written in time");
    }
}

/// How old an acknowledgement is when it is written, where nodes have the time `ack` for one.
fn run_noted_after(ack: Duration) -> Duration {
    RUN_NOTED_AFTER.min(ack / NOTED_WITHIN)
}

async fn write(
    ledger: ledger::Handle,
    gateway: Weak<NodeGateway>,
    watches: Arc<Watches>,
    noted_after: Duration,
) {
    loop {
        tokio::time::sleep(jittered(LOOK_EVERY)).await;
        let Some(gateway) = gateway.upgrade() else { return };
        let writer = AttemptWriter { ledger: ledger.clone(), gateway, watches: Arc::clone(&watches) };
        writer.write_running(noted_after).await;
        writer.write_released().await;
    }
}

impl AttemptWriter {
    /// Writes the acknowledgements that are at least this old.
    async fn write_running(&self, age: Duration) {
        let attempts = self.gateway.attempts();
        for chunk in attempts.running_for(age, Instant::now()).chunks(BATCH_JOBS_MAX) {
            let write = |(job, attempt, node): &(JobId, Attempt, NodeId)| JobWrite {
                change: Change::Run { job: *job, attempt: *attempt, node: node.clone() },
                key: None,
            };
            let batch = JobBatch { lane: None, writes: chunk.iter().map(write).collect() };
            match self.ledger.commit_jobs(batch).await {
                Ok(verdict) => {
                    attempts.noted_running(chunk);
                    self.tell_running(chunk, &verdict);
                }
                Err(error) => tracing::debug!(%error, "acknowledgements could not be written yet"),
            }
        }
    }

    fn tell_running(&self, noted: &[(JobId, Attempt, NodeId)], verdict: &JobsVerdict) {
        let JobsVerdict::Written { jobs, .. } = verdict else { return };
        let written = noted.iter().zip(jobs).filter(|(_, verdict)| **verdict == JobVerdict::Written);
        for ((job, attempt, node), _) in written {
            JOB_METRICS.running.increment(1);
            self.watches.tell_change(|| JobEvent {
                job: *job,
                attempt: *attempt,
                lane: self.gateway.attempts().lane(*job, *attempt),
                node: Some(node.clone()),
                kind: JobEventKind::Changed(State::Running, None),
            });
        }
    }

    async fn write_released(&self) {
        let attempts = self.gateway.attempts();
        for chunk in attempts.take_released().chunks(BATCH_JOBS_MAX) {
            let write = |(job, attempt): &(JobId, Attempt)| JobWrite {
                change: Change::Release { job: *job, attempt: *attempt },
                key: None,
            };
            let batch = JobBatch { lane: None, writes: chunk.iter().map(write).collect() };
            match guarded("the writes of freed slots", self.ledger.commit_jobs(batch)).await {
                Some(Ok(_)) => continue,
                Some(Err(error)) => tracing::debug!(%error, "freed slots could not be written yet"),
                None => {}
            }
            attempts.not_released(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::fixture::{FIRST, Ledger, gateway, job, node};
    use crate::jobs::watches::{Notification, Topic};

    #[tokio::test]
    async fn an_attempt_that_runs_for_long_is_written_down_and_those_who_watch_it_hear_of_it() {
        let ledger = Ledger::open().await;
        ledger.dispatch_all("b", &[1, 2], "n", "a").await;
        let watches = Arc::new(Watches::new(true).0);
        let gateway = gateway(&ledger, Arc::default());
        let writer = AttemptWriter {
            ledger: ledger.handle.clone(),
            gateway: Arc::clone(&gateway),
            watches: Arc::clone(&watches),
        };
        let mut watch = watches.watch(Topic::All).unwrap();
        let now = Instant::now();
        // After the longest pause between two looks, that is two seconds ago.
        let long_ago = now.checked_sub(Duration::from_millis(1_600)).unwrap();
        for (number, at) in [(1, long_ago), (2, now), (9, long_ago)] {
            gateway.attempts().acknowledged(&node("n"), job(number), FIRST, at);
        }
        writer.write_running(RUN_NOTED_AFTER).await;
        let state = async |number| ledger.handle.job(job(number)).await.unwrap().unwrap().state;
        assert_eq!((state(1).await, state(2).await), (State::Running, State::Dispatched));
        let Some(Notification::Event(event)) = watch.next_now() else { panic!("it was written") };
        assert_eq!((event.job, &event.kind), (job(1), &JobEventKind::Changed(State::Running, None)));
        assert!(watch.next_now().is_none(), "of what is not there nobody hears");
        assert!(gateway.attempts().running_for(RUN_NOTED_AFTER, Instant::now()).is_empty(), "once");
    }

    /// As where a node begins an attempt late that was taken back, and another node has begun the next one.
    #[tokio::test]
    async fn two_attempts_of_one_job_keep_no_other_from_being_written_down() {
        let ledger = Ledger::open().await;
        ledger.dispatch_all("b", &[1, 2], "n", "a").await;
        let (gateway, watches) = (gateway(&ledger, Arc::default()), Arc::new(Watches::new(true).0));
        for (number, attempt) in [(1, FIRST), (1, FIRST.next()), (2, FIRST)] {
            gateway.attempts().acknowledged(&node("n"), job(number), attempt, Instant::now());
        }
        let state = async |number| ledger.handle.job(job(number)).await.unwrap().unwrap().state;
        for first in [State::Dispatched, State::Running] {
            write_acknowledged(&ledger.handle, &gateway, &watches).await;
            assert_eq!((state(1).await, state(2).await), (first, State::Running));
        }
        assert!(gateway.attempts().running_for(Duration::ZERO, Instant::now()).is_empty());
    }

    #[test]
    fn that_an_attempt_runs_is_written_down_before_its_lane_would_take_it_back() {
        assert_eq!(run_noted_after(domain::NodeTimeouts::DEFAULT.ack), RUN_NOTED_AFTER);
        let shortest = Duration::from_millis(nodes::limits::ACK_MS_MIN);
        // With the longest pause between two looks.
        assert!(run_noted_after(shortest) + LOOK_EVERY * 3 / 2 < shortest);
    }

    #[tokio::test]
    async fn at_the_end_an_attempt_that_was_just_acknowledged_is_written_down() {
        let ledger = Ledger::open().await;
        ledger.dispatch_all("b", &[1, 2], "n", "a").await;
        let (gateway, watches) = (gateway(&ledger, Arc::default()), Arc::new(Watches::new(true).0));
        gateway.attempts().acknowledged(&node("n"), job(1), FIRST, Instant::now());
        write_acknowledged(&ledger.handle, &gateway, &watches).await;
        let state = async |number| ledger.handle.job(job(number)).await.unwrap().unwrap().state;
        assert_eq!((state(1).await, state(2).await), (State::Running, State::Dispatched));
        assert!(gateway.attempts().running_for(Duration::ZERO, Instant::now()).is_empty(), "once");
    }
}
