//! The limits of one lane, by name, with their units.

use std::time::Duration;

use crate::limits::PAYLOAD_BYTES_MAX;

/// How long the owner waits for an attempt whose node has left the instance that it was sent to and does not have it:
/// until that instance, if it lives, has said whether the attempt was sent.
pub const NODE_ELSEWHERE_WAIT: Duration = Duration::from_secs(1);
/// Between two looks whether the earlier attempts of a stage are over.
pub const OLDER_LOOK_EVERY: Duration = Duration::from_millis(500);
/// When an attempt whose time is over is looked at again, if a command about its job waits for the next round.
pub const TIME_UP_LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Where an attempt whose time is over is looked at so much later, the process, its thread or the ledger stood still: what the
/// node said meanwhile may wait to be read.
pub const TIME_UP_LATE: Duration = Duration::from_millis(500);
/// When such an attempt is looked at again, once.
pub const TIME_UP_LATE_LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Unfinished jobs that one lane's owner keeps in memory; the rest stay in the ledger.
pub const JOBS_MAX: usize = 50_000;
/// Bytes of payloads that one lane's owner keeps in memory.
pub const JOBS_BYTES_MAX: usize = 64 << 20;
/// Bytes of jobs that wait, which all lanes of an instance together keep in memory, besides what each lane may always keep.
pub const WAITING_BYTES_MAX: usize = 512 << 20;
/// What a job that waits takes in memory beside its texts, as it is reckoned.
pub const JOB_BYTES: usize = 1 << 10;
/// Bytes of jobs that wait, which an instance's lane or a plan's may always keep; and as much again for the first jobs of its
/// groups, and for those of a higher priority than the ones that are in the ledger alone.
pub const LANE_BYTES_OWN: usize = 8 << 20;
/// The same of a session's lane, of which there may be many.
pub const SESSION_BYTES_OWN: usize = 64 << 10;
/// Waiting jobs of one tenant that need the same, which are kept in memory.
pub const GROUP_JOBS_MAX: usize = 1_000;
/// The same while less than half of [`JOBS_MAX`] is taken.
pub const GROUP_JOBS_ALONE_MAX: usize = 10_000;
/// Bytes of their payloads that are kept in memory.
pub const GROUP_BYTES_MAX: usize = 8 << 20;
/// No longer than this do rounds wait for groups of which no job is known: many are read beside the rounds.
pub const UNKNOWN_GROUPS_WAIT: Duration = Duration::from_secs(1);
/// More are read when there are fewer than this: enough that nodes do not run out of jobs meanwhile.
pub const GROUP_JOBS_LOW: usize = 250;
/// Commands taken into one round of one lane. Those with submissions do not count: all of them join their callers' lines first,
/// so that each caller has its turn.
pub const ROUND_COMMANDS_MAX: usize = 1_000;
/// New jobs in one round of one lane. The nodes' slots stand still meanwhile, so that a large batch is written in several.
pub const ROUND_NEW_JOBS_MAX: usize = 250;
/// Bytes of payloads written in one commit of one lane, counted before the last submission.
pub const ROUND_BYTES_MAX: usize = 8 << 20;
/// Submissions that wait in one lane for a commit; the lane refuses further ones as overloaded.
pub const SUBMISSIONS_WAITING_MAX: usize = 20_000;
/// Jobs that are looked at by one read. Each may have a payload of 1 MiB.
pub const LOOKUPS_AT_ONCE: usize = 16;
/// How often an owner reads its attempts again from the ledger, in case that an instance crashed between a commit and its
/// report, or that a report could not be sent; before jitter.
pub const REREAD_EVERY: Duration = Duration::from_secs(5);
/// How long an owner waits before it repeats a read that failed, before jitter.
pub const READ_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Delayed jobs are kept in memory when they come due within this time.
pub const DELAY_KEPT: Duration = Duration::from_secs(60);
/// Rows of one page of what an owner reads.
pub const PAGE_JOBS: u32 = 500;
/// Delayed jobs that are read at once, those that will be due soon among them.
pub const COMING_JOBS_MAX: usize = 5_000;
/// Bytes of their payloads.
pub const COMING_BYTES_MAX: usize = 16 << 20;
/// Delayed jobs that join those that wait in one transaction.
pub const PROMOTED_MAX: u32 = 1_000;
/// How long the owner of a lane that was taken over keeps it without jobs.
pub const EMPTY_KEPT: Duration = Duration::from_secs(5);
/// Unfinished jobs of one session; beyond that it takes no more.
pub const SESSION_JOBS_MAX: u64 = 10_000;
/// How long the owner of a session keeps its lease without work.
pub const SESSION_KEPT: Duration = Duration::from_secs(60);
/// Names of the last jobs of a session without order that its owner knows: twice as many as jobs that a client of the Rust
/// library has sent and that are not accepted.
pub const RECENT_KEYS_MAX: usize = 1_024;
/// Jobs of a strict session that are in memory behind the one whose turn it is.
pub const FIFO_JOBS_MAX: usize = 500;
/// Bytes of their payloads.
pub const FIFO_BYTES_MAX: usize = 8 << 20;
/// More are read when there are fewer than this.
pub const FIFO_JOBS_LOW: usize = 100;

const _: () = assert!(GROUP_BYTES_MAX < JOBS_BYTES_MAX);
const _: () = assert!(LANE_BYTES_OWN < JOBS_BYTES_MAX && JOBS_BYTES_MAX < WAITING_BYTES_MAX);
// A queue that is full of bytes is not one of which few are left.
const _: () = assert!(PAYLOAD_BYTES_MAX < FIFO_BYTES_MAX / 2);
const _: () = assert!(FIFO_JOBS_LOW < FIFO_JOBS_MAX);
const _: () = assert!(GROUP_JOBS_LOW < GROUP_JOBS_MAX && GROUP_JOBS_MAX < GROUP_JOBS_ALONE_MAX);
const _: () = assert!(GROUP_JOBS_ALONE_MAX < JOBS_MAX / 2);
