//! The lanes' limits, by name, with their units.

use std::time::Duration;

/// How long a node may take to acknowledge an attempt.
pub const ACK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an attempt is waited for whose node has left the instance that it went to, and does not have it: until that
/// instance has said whether it was sent, if it lives.
pub const ADRIFT_FOR: Duration = Duration::from_secs(1);
/// While other instances live, one in so many slots is not passed on: what waits there may reserve it.
pub const SLOTS_LEFT_TO_OTHERS: u32 = 8;
/// How long the owner of a lane is waited for to write a result, before its holder writes it.
pub const OWNER_WAIT: Duration = Duration::from_secs(2);
/// How long a reserved slot waits for its dispatch.
pub const RESERVATION: Duration = Duration::from_secs(10);
/// Unfinished jobs that one lane's owner keeps in memory; the rest stay in the ledger.
pub const BOOK_JOBS_MAX: usize = 50_000;
/// Bytes of payloads that one lane's owner keeps in memory.
pub const BOOK_BYTES_MAX: usize = 64 << 20;
/// Waiting jobs of one pool and tenant that are kept in memory.
pub const GROUP_JOBS_MAX: usize = 1_000;
/// The same as long as the book is not half full.
pub const GROUP_JOBS_ALONE_MAX: usize = 10_000;
/// Bytes of their payloads that are kept in memory.
pub const GROUP_BYTES_MAX: usize = 8 << 20;
/// More are read when there are fewer than this.
pub const GROUP_JOBS_LOW: usize = 250;
/// An attempt under way for so long is looked for in its node's record.
pub const STRANDED_AFTER: Duration = Duration::from_secs(10);
/// What is known of the attempts of a node that is connected elsewhere is kept for so long.
pub const AWAY_REMEMBERED: Duration = Duration::from_secs(60);
/// Jobs written in one commit of one lane, counted before the last submission.
pub const ROUND_JOBS_MAX: usize = 1_000;
/// Bytes of payloads written in one commit of one lane, counted before the last submission.
pub const ROUND_BYTES_MAX: usize = 8 << 20;
/// Jobs that may be on their way into the ledger, all submissions together.
pub const SUBMISSIONS_MAX: usize = 20_000;
/// Bytes of payloads that may be on their way into the ledger.
pub const SUBMISSION_BYTES_MAX: usize = 128 << 20;
/// How often a lane's owner reads again what the ledger knows of its jobs, in case that a notice was lost.
pub const REREAD_EVERY: Duration = Duration::from_secs(5);
/// Delayed jobs are kept in memory when they come due within this time.
pub const DELAY_KEPT: Duration = Duration::from_secs(60);
/// Unfinished jobs of one session; beyond that it takes no more.
pub const SESSION_JOBS_MAX: u64 = 10_000;
/// How long the owner of a session keeps its lease without work.
pub const SESSION_KEPT: Duration = Duration::from_secs(60);
/// Jobs of a strict session that stand in memory behind the one whose turn it is.
pub const LINE_JOBS_MAX: usize = 500;
/// Bytes of their payloads.
pub const LINE_BYTES_MAX: usize = 8 << 20;
/// More are read when there are fewer than this.
pub const LINE_JOBS_LOW: usize = 100;
/// Rows of one page of whatever a lane's owner reads.
pub const PAGE_JOBS: u32 = 500;
/// Attempts on one page of what a lane has under way; nothing of what they are about is on it.
pub const ATTEMPTS_PAGE: u32 = 5_000;
/// Nodes whose records are looked at at once.
pub const NODES_ASKED_MAX: usize = 64;
/// What may wait for one node at its socket: dispatches for all its slots, and as many that call them off.
pub const SOCKET_MESSAGES_MAX: usize = 2 * domain::limits::NODE_CAPACITY_MAX as usize;
/// How long the holder of a node's socket is waited for when it gives slots itself.
pub const GRANT_WAIT: Duration = Duration::from_secs(1);
/// Jobs that get a slot in one pass.
pub const PASS_JOBS_MAX: usize = 1_000;

/// Notices that wait to be told; beyond that they are lost, and found in the ledger.
pub const NOTICES_MAX: usize = 10_000;

/// Topics that are watched on one instance.
pub const WATCHED_TOPICS_MAX: usize = 20_000;
/// Topics of which other instances are told; beyond that they look into the ledger now and then.
pub const WANTED_TOPICS_MAX: usize = 100_000;
/// A topic is told to others for so long after they said last that they listen.
pub const WANTED_FOR: Duration = Duration::from_secs(45);
/// So often that is said, before jitter.
pub const WANTED_AGAIN_EVERY: Duration = Duration::from_secs(10);
/// News of one job that wait for a slow listener; beyond that it is told that it missed some.
pub const NEWS_OF_JOB_MAX: usize = 32;
/// News of one lane's jobs that wait for a slow listener.
pub const NEWS_OF_LANE_MAX: usize = 256;
/// News of all jobs that wait for a slow listener.
pub const NEWS_OF_ALL_MAX: usize = 4_096;
/// News that one instance tells the others each second only because somebody listens to all jobs.
pub const ALL_TOLD_PER_SECOND: u64 = 1_000;
/// News that wait to be told to other instances; beyond that they are lost.
pub const TOLD_MAX: usize = 4_096;
/// How far an attempt is, is told so often at most.
pub const PROGRESS_TOLD_EVERY: Duration = Duration::from_millis(250);
/// Attempts on the nodes of one instance of which it is kept how far they are.
pub const PROGRESSES_MAX: usize = 100_000;
/// How long another instance is waited for that is asked how far a job is.
pub const PROGRESS_ASKED: Duration = Duration::from_millis(100);
/// Whoever follows a job looks into the ledger so soon after the last look, at first and later, before jitter, in case
/// that a word was lost.
pub const FOLLOWER_LOOKS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

const _: () = assert!(GROUP_BYTES_MAX < BOOK_BYTES_MAX);
// A line that is full of bytes is not one of which few are left.
const _: () = assert!(domain::limits::PAYLOAD_BYTES_MAX < LINE_BYTES_MAX / 2);
const _: () = assert!(LINE_JOBS_LOW < LINE_JOBS_MAX);
const _: () = assert!(GROUP_JOBS_LOW < GROUP_JOBS_MAX && GROUP_JOBS_MAX < GROUP_JOBS_ALONE_MAX);
const _: () = assert!(GROUP_JOBS_ALONE_MAX < BOOK_JOBS_MAX / 2);
const _: () = assert!(ROUND_JOBS_MAX + domain::limits::BATCH_JOBS_MAX <= ledger::BATCH_ROWS_MAX / 2);
