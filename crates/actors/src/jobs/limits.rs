//! The lanes' limits, by name, with their units.

use std::time::Duration;

pub use domain::lane::limits::{
    PAGE_JOBS, REREAD_EVERY, ROUND_COMMANDS_MAX, ROUND_NEW_JOBS_MAX, SESSION_JOBS_MAX,
};

/// While other instances are live, one in this many slots is freed and not passed on, so that jobs that wait
/// there can reserve it.
pub const SLOTS_LEFT_TO_OTHERS: u32 = 8;
/// How long the holder of a node takes no free slot of it, where an instance has asked for one: that hears of a free slot later
/// than the holder does.
pub const SLOTS_LEFT_FOR: Duration = Duration::from_millis(50);
/// How often it does so, at most.
pub const SLOTS_LEFT_EVERY: Duration = Duration::from_millis(400);
/// How long an instance that has asked for slots of a node counts as wanting one. One whose jobs wait asks about every second.
pub const SLOTS_WANTED_FOR: Duration = Duration::from_secs(3);
/// How long the owner of a lane is waited for to write a result, before its holder writes it.
pub const OWNER_WAIT: Duration = Duration::from_secs(2);
/// How long an instance remembers the attempts of a node that is not connected to it any more.
pub const AWAY_REMEMBERED: Duration = Duration::from_secs(60);
/// Jobs that may be on their way into the ledger, all submissions together.
pub const SUBMISSIONS_MAX: usize = 20_000;
/// Bytes of payloads that may be on their way into the ledger.
pub const SUBMISSION_BYTES_MAX: usize = 128 << 20;
/// Jobs of one token among them.
pub const SUBMISSIONS_OF_TOKEN_MAX: usize = SUBMISSIONS_MAX / 2;
/// Bytes of one token's payloads among them.
pub const SUBMISSION_BYTES_OF_TOKEN_MAX: usize = SUBMISSION_BYTES_MAX / 2;
/// With so many submissions that wait for their commit a lane has what it can write well; more go to the instance's next
/// lane. Less is dearer: a commit's cost is much the same for few jobs and for many.
pub const LANE_SUBMISSIONS_GOOD: usize = 2_000;
/// A batch is spread over so many lanes at most: while one waits for its commit, the other is at work.
pub const BATCH_LANES_MAX: usize = 2;
/// And over no more than leave each lane so many of its jobs,
pub const BATCH_LANE_JOBS_MIN: usize = 100;
/// and so many slots of the nodes that are connected to the instance. A lane writes about half of its slots in one round, and
/// two small rounds cost more than a large one: with 100 slots two lanes took 18 % more processor time for 6 % more jobs.
pub const BATCH_LANE_SLOTS_MIN: u64 = 100;
/// Messages that one lane's mailbox holds; the lane refuses submissions beyond them as overloaded.
pub const LANE_MAILBOX_MESSAGES_MAX: usize = 4_096;
/// Attempts on one page of what a lane has under way; nothing of what they are about is on it.
pub const ATTEMPTS_PAGE: u32 = 5_000;
/// Nodes whose records are looked at at once.
pub const NODES_ASKED_MAX: usize = 64;
/// What may wait for one node at its socket: dispatches for all its slots, and as many that call them off.
pub const SOCKET_MESSAGES_MAX: usize = 2 * domain::limits::NODE_CAPACITY_MAX as usize;
/// Bytes of attempts that a socket takes from there at once, counted before the last.
pub const SOCKET_BYTES_AT_ONCE: usize = 8 << 20;
/// Messages to other instances that wait to be taken up, and messages to one instance that wait for the call to it that is
/// under way; beyond that an attempt is undeliverable, and its node hears of a withdrawal by the answer to its result.
pub const OUTGOING_MESSAGES_MAX: usize = 20_000;
/// Bytes of attempts that are on their way to nodes at their sockets here; beyond that an attempt is undeliverable.
pub const OUTGOING_BYTES_MAX: usize = 128 << 20;
/// Bytes of attempts for one node among them: a node that does not read leaves the others room.
pub const OUTGOING_BYTES_OF_NODE_MAX: usize = OUTGOING_BYTES_MAX / 2;
/// Plans whose lanes were left, remembered until their adoption looks at them; the oldest are found again at the next look.
pub const LEFT_PLANS_MAX: usize = 1_024;
/// Between two purges of finished jobs and closed sessions by a daemon, before jitter.
pub const PURGE_EVERY: Duration = Duration::from_secs(60);
/// The longest time without work after which a session is closed.
pub const SESSION_IDLE_MAX: Duration = Duration::from_millis(domain::limits::SESSION_IDLE_MS_MAX);
/// Jobs that get a slot in one pass.
pub const PASS_JOBS_MAX: usize = 1_000;
/// Classes of waiting jobs that are looked at before others get the queue, and the thread, which serves HTTP.
pub const CLASSES_AT_ONCE: usize = 1_000;

/// Reports of attempts that wait to be sent to the owners of their lanes on other instances, in all and then for each of these;
/// beyond that they are left out, and the owners read the ledger.
pub const REPORTS_MAX: usize = 20_000;
/// Notices of finished jobs that wait to be sent; beyond that they are lost, and found in the ledger.
pub const NOTICES_MAX: usize = 10_000;

/// Topics that are watched on one instance, besides [`ASKED_TOPICS_MAX`].
pub const WATCHED_TOPICS_MAX: usize = 20_000;
/// Jobs whose progress one instance has asked others for a short while ago, and gets since; of more it shows none.
pub const ASKED_TOPICS_MAX: usize = 8_000;
/// Topics of other instances whose events this one sends; without events, watches read the ledger now and then.
pub const WANTED_TOPICS_MAX: usize = 100_000;
/// How long events of a topic are sent to another instance after its last announcement.
pub const WANTED_FOR: Duration = Duration::from_secs(45);
/// How often an instance announces the topics that it listens to, before jitter.
pub const WANTED_AGAIN_EVERY: Duration = Duration::from_secs(10);
/// How often an instance sends the numbers of its events to those that count them.
pub const TALLIED_EVERY: Duration = Duration::from_secs(1);
/// Notifications of one job that wait for a slow watch; beyond that they are lost, and the watch learns that.
pub const NOTIFICATIONS_OF_JOB_MAX: usize = 32;
/// Notifications of one lane's jobs that wait for a slow watch.
pub const NOTIFICATIONS_OF_LANE_MAX: usize = 256;
/// Notifications of all jobs that wait for a slow watch.
pub const NOTIFICATIONS_OF_ALL_MAX: usize = 4_096;
/// Finished jobs of a watched topic that are remembered, so that a second notice of one is not passed on.
pub const FINISHED_JOBS_KNOWN: usize = 128;
/// Events that one instance sends each second only because a watch elsewhere listens to all jobs.
pub const EVENTS_OF_ALL_PER_SECOND: u64 = 1_000;
/// Events that wait to be sent to other instances; beyond that they are lost.
pub const OUTGOING_NOTICES_MAX: usize = 4_096;
/// The shortest time between two messages about the progress of one attempt.
pub const PROGRESS_SENT_EVERY: Duration = Duration::from_millis(250);
/// Attempts on the nodes of one instance whose progress is kept.
pub const PROGRESSES_MAX: usize = 100_000;
/// How long another instance may take to answer how far a job is.
pub const PROGRESS_ASKED: Duration = Duration::from_millis(100);
/// The time between the first two reads of the ledger by a follower of a job that gets no notification, before jitter. It
/// doubles with each read, up to [`FOLLOWER_PAUSE_MAX`].
pub const FOLLOWER_PAUSE_MIN: Duration = Duration::from_millis(250);
/// The longest time between two such reads, before jitter.
pub const FOLLOWER_PAUSE_MAX: Duration = Duration::from_secs(2);

const _: () = assert!(ROUND_COMMANDS_MAX + ROUND_NEW_JOBS_MAX <= ledger::BATCH_ROWS_MAX / 2);

// What one lane has in memory may all be on its way to one node at once.
const _: () = assert!(OUTGOING_BYTES_OF_NODE_MAX >= domain::lane::limits::JOBS_BYTES_MAX);
const _: () = assert!(SUBMISSION_BYTES_MAX >= 2 * domain::lane::limits::ROUND_BYTES_MAX);
const _: () = assert!(SUBMISSIONS_OF_TOKEN_MAX >= domain::limits::BATCH_JOBS_MAX);

/// A job that waits is given to another instance when this one has reached no node that serves it for so long.
pub const UNSERVED_MAX: Duration = Duration::from_secs(2);
/// How long an instance remembers since when it serves no such jobs, after the last of them has left its memory.
pub const UNSERVED_REMEMBERED: Duration = Duration::from_secs(10);
/// Between two looks of an instance for what it gives to others through the ledger, before jitter.
pub const TRANSFERS_EVERY: Duration = Duration::from_millis(500);
/// Between two looks of an instance for lanes without an owner, before jitter.
pub const ADOPTIONS_EVERY: Duration = Duration::from_secs(1);
/// Sessions that all others together pass on to one instance in one look of theirs; each has an equal share of it.
pub const SESSIONS_PASSED_ON_MAX: usize = 100;
/// Sessions that an instance asks to move in one look. Those whose attempts are under way stay, and take no share.
pub const SESSIONS_ASKED_MAX: usize = 5_000;
/// Sessions that were passed on to an instance and that it opens in one look.
pub const PASSED_ON_OPENED_MAX: usize = 2_000;
/// Lanes without an owner that an instance adopts in one look, besides.
pub const ADOPTED_MAX: usize = 240;
/// Lanes that an instance opens at once, of those that were passed on to it and of those that it adopts.
pub const OPENED_AT_ONCE: usize = 16;
/// How long the ledger may take for the acquire of a lease, on average, while sessions are passed on.
pub const ACQUIRE_EXPECTED: Duration = Duration::from_millis(25);
/// A session that is passed on is its receiver's for so long, or for a lease's length, whichever is longer.
pub const PASSED_ON_FOR: Duration = Duration::from_secs(60);

/// The ledger may be so many times slower than that for a while, and still no lease runs out that was passed on.
const LEDGER_SLOWER_MAX: u128 = 6;
/// The longest look of a receiver, with its pause before, in milliseconds. A pause is half to one and a half times as long as
/// said.
const ADOPTION_MS_MAX: u128 = ADOPTIONS_EVERY.as_millis() * 3 / 2
    + ACQUIRE_EXPECTED.as_millis() * (PASSED_ON_OPENED_MAX + ADOPTED_MAX) as u128 / OPENED_AT_ONCE as u128;

// In that time the others pass on no more than the receiver opens in one look. So it opens all that it finds, each session in
// its second look at the latest.
const _: () = assert!(
    SESSIONS_PASSED_ON_MAX as u128 * ADOPTION_MS_MAX
        <= PASSED_ON_OPENED_MAX as u128 * (TRANSFERS_EVERY.as_millis() / 2)
);
const _: () = assert!(2 * ADOPTION_MS_MAX * LEDGER_SLOWER_MAX <= PASSED_ON_FOR.as_millis());

/// The lengths of time over which rates of jobs are given.
pub const RATE_WINDOWS: [Duration; 3] =
    [Duration::from_secs(60), Duration::from_secs(300), Duration::from_secs(900)];
/// Pools whose rates are counted, and tenants. The jobs of further ones count among all jobs alone.
pub const RATES_NAMES_MAX: usize = domain::limits::POOLS_MAX;
/// Kinds of jobs that the metrics of one process count by name.
pub const KINDS_COUNTED_MAX: usize = 100;
/// Pools that the metrics of one process have by name, those that are configured no more included.
pub const POOLS_SHOWN_MAX: usize = domain::limits::POOLS_MAX;
/// Pools that statistics list: the configured ones first, then those with the most jobs. And tenants.
pub const STATISTICS_NAMES_MAX: usize = domain::limits::POOLS_MAX;
