//! Every limit of the generators, by name, with its unit last. Those that callers can run into are in
//! `domain::limits`.

use std::time::Duration;

/// The epoch: the start of the time in snowflakes, in milliseconds since 1970: 2010-11-04T01:42:54.657Z.
pub const EPOCH_MS_DEFAULT: u64 = 1_288_834_974_657;
/// How long before the end of the epoch the warnings begin, in milliseconds: five years.
pub const EPOCH_END_WARNED_MS: u64 = 5 * 365 * 86_400_000;

/// Length of a worker number's lease, in milliseconds: fifteen minutes.
pub const WORKER_LEASE_MS_DEFAULT: u64 = 900_000;
/// How far ahead of the clock the time mark is committed, in milliseconds.
pub const LEAD_MS_DEFAULT: u64 = 10_000;
/// Shortest lead, in milliseconds.
pub const LEAD_MS_MIN: u64 = 1_000;
/// Longest lead, in milliseconds: how long a fleet can issue ids without its ledger.
pub const LEAD_MS_MAX: u64 = 900_000;
/// Longest time between two renewals of the mark, in milliseconds. A short lead has it renewed more often.
pub const MARK_EVERY_MS_MAX: u64 = 3_000;
/// Renewals of the mark that a lead has room for: one may fail.
pub const MARKS_PER_LEAD: u64 = 3;
/// How far this machine's clock may differ from the database's, in milliseconds.
pub const CLOCK_SKEW_MS_DEFAULT: u64 = 1_000;
/// If the clock went back by no more than this, a request waits for it, in milliseconds. If by more, that is counted and
/// logged as an error.
pub const CLOCK_BACK_MS_MAX: u64 = 5;
/// A clock that does not move for this long counts as standing still.
pub const CLOCK_STILL_MAX: Duration = Duration::from_millis(100);

/// How far ahead of issuance the time in the local file is, in milliseconds.
pub const FILE_LEAD_MS: u64 = 5_000;
/// How long a stop waits for the ledger to take a worker number back. Then the number's lease expires by itself.
pub const GIVE_BACK_MAX: Duration = Duration::from_millis(1_500);

/// A range that lasted less than this makes the next one twice as long.
pub const RANGE_SHORT: Duration = Duration::from_secs(15 * 60);
/// A range that lasted longer than this makes the next one half as long.
pub const RANGE_LONG: Duration = Duration::from_secs(30 * 60);
/// The next range is loaded when this part of the current one is used.
pub const RANGE_USED_TO_LOAD: u64 = 10;
/// Over how long the rate of a tag is measured.
pub const RATE_OVER: Duration = Duration::from_secs(10);

/// Requests that may wait for one sequence.
pub const SEQUENCE_QUEUE_MAX: usize = 10_000;

const _: () = assert!(LEAD_MS_MIN <= LEAD_MS_DEFAULT && LEAD_MS_DEFAULT <= LEAD_MS_MAX);
const _: () = assert!(LEAD_MS_MAX <= WORKER_LEASE_MS_DEFAULT);
const _: () = assert!(MARK_EVERY_MS_MAX * MARKS_PER_LEAD < LEAD_MS_DEFAULT);
const _: () = assert!(FILE_LEAD_MS > MARK_EVERY_MS_MAX && FILE_LEAD_MS <= LEAD_MS_DEFAULT);
const _: () = assert!(RANGE_SHORT.as_secs() * 2 == RANGE_LONG.as_secs(), "doubled, a range is not too long");
