//! Every limit of the domain, by name, with its unit last. Relations between them are asserted
//! at compile time at the foot of this file.

/// Longest signer id, in characters.
pub const SIGNER_ID_CHARS_MAX: usize = 128;
/// Longest pattern of names, in characters.
pub const PATTERN_CHARS_MAX: usize = 128;
/// Longest instance id, in characters (node name, a dash, 32 hexadecimal digits).
pub const INSTANCE_ID_CHARS_MAX: usize = 128;
/// Longest idempotency key, in characters.
pub const IDEMPOTENCY_KEY_CHARS_MAX: usize = 128;
/// Longest transaction hash, in characters. Ethereum's has 66, Solana's 88.
pub const TX_HASH_CHARS_MAX: usize = 128;

/// Shortest secret of a cluster, in characters.
pub const CLUSTER_SECRET_CHARS_MIN: usize = 32;
/// Longest secret of a cluster, in characters.
pub const CLUSTER_SECRET_CHARS_MAX: usize = 1_024;

/// Longest node id, in characters.
pub const NODE_ID_CHARS_MAX: usize = 128;
/// Longest session id, in characters.
pub const SESSION_ID_CHARS_MAX: usize = 128;
/// Longest name of a client for a job, in characters: as long as an idempotency key, which it is.
pub const CLIENT_REF_CHARS_MAX: usize = IDEMPOTENCY_KEY_CHARS_MAX;
/// Longest tenant id, in characters.
pub const TENANT_ID_CHARS_MAX: usize = 128;
/// Longest pool name, in characters.
pub const POOL_NAME_CHARS_MAX: usize = 64;
/// Longest label, in characters.
pub const LABEL_CHARS_MAX: usize = 64;
/// Longest language, in characters. BCP 47 advises to take at least 35.
pub const LANGUAGE_CHARS_MAX: usize = 35;
/// Highest snowflake worker number: ten bits.
pub const ID_WORKER_MAX: u16 = 1_023;
/// Highest number of a data centre, and highest number of a worker in one: five bits each.
pub const ID_FIVE_BITS_MAX: u8 = 31;
/// Longest tag of segments, in characters.
pub const SEGMENT_TAG_CHARS_MAX: usize = 128;
/// Longest name of a sequence, in characters.
pub const SEQUENCE_NAME_CHARS_MAX: usize = 128;
/// Ids in one request.
pub const ID_BATCH_MAX: usize = 10_000;
/// Ids in a range of a segment when its tag names no step.
pub const SEGMENT_STEP_DEFAULT: u64 = 1_000;
/// Largest step that a tag may name, in ids. Ten minutes of 1.6 million ids a second.
pub const SEGMENT_STEP_MAX: u64 = 1_000_000_000;
/// A range of a segment does not grow beyond this by itself, in ids, unless its tag names a longer step.
pub const SEGMENT_STEP_GROWN_MAX: u64 = 1_000_000;
/// Longest description of a tag, in bytes.
pub const SEGMENT_DESCRIPTION_BYTES_MAX: usize = 1_024;
/// Tags of segments that there may be.
pub const SEGMENT_TAGS_MAX: usize = 10_000;
/// Largest step from one number of a sequence to the next.
pub const SEQUENCE_INCREMENT_MAX: u64 = 1_000_000_000;
/// Sequences that there may be.
pub const SEQUENCES_MAX: usize = 100_000;
/// Numbers of one sequence that one commit may grant, several requests together.
pub const SEQUENCE_GRANT_MAX: u64 = 1_000_000;
/// Largest id of segments and sequences: 2^63 − 1, the largest of a signed 64-bit number.
pub const ID_NUMBER_MAX: u64 = i64::MAX as u64;

/// Tasks of one plan.
pub const PLAN_TASKS_MAX: usize = 1_000;
/// Stages of one task.
pub const PLAN_STAGES_MAX: usize = 100;
/// Tasks of a plan that run at once when the plan does not say.
pub const PLAN_CONCURRENCY_DEFAULT: u32 = 5;
/// Tasks of a plan that may run at once.
pub const PLAN_CONCURRENCY_MAX: u32 = 100;
/// Longest name of a plan, a task or a stage, in characters.
pub const PLAN_NAME_CHARS_MAX: usize = 128;
/// How long a plan starts further tasks when it does not say, in milliseconds: two hours.
pub const PLAN_TIMEOUT_MS_DEFAULT: u64 = 2 * 3_600 * 1_000;
/// Longest such time, and longest time for a run of a task, in milliseconds: seven days.
pub const PLAN_TIMEOUT_MS_MAX: u64 = 7 * 24 * 3_600 * 1_000;
/// How long a run of a task may take when the task does not say, in milliseconds.
pub const TASK_TIMEOUT_MS_DEFAULT: u64 = 600_000;
/// How long an attempt of a stage may take when the stage does not say, in milliseconds.
pub const STAGE_TIMEOUT_MS_DEFAULT: u64 = 60_000;
/// Largest configuration of a tenant, in bytes of JSON.
pub const TASK_CONFIG_BYTES_MAX: usize = 64 << 10;
/// Largest context of a checkpoint, in bytes of JSON.
pub const CONTEXT_BYTES_MAX: usize = 256 << 10;
/// Objects of a patch for a context that may stand in each other.
pub const CONTEXT_PATCH_DEPTH_MAX: u32 = 127;
/// Runs of one task.
pub const TASK_RUNS_MAX: u32 = 100;
/// Checkpoints of one task, all runs together.
pub const CHECKPOINTS_MAX: u32 = 1_000;
/// Changes of one task, by its stages and by people, beyond which nobody pauses it. Its runs and checkpoints alone are no more
/// than a third of that.
pub const TASK_CHANGES_MAX: u64 = 10_000;
/// Changes of one plan, without those of its tasks, beyond which nobody pauses it.
pub const PLAN_CHANGES_MAX: u64 = 100_000;

/// Most nonces in one grant.
pub const GRANT_NONCES_MAX: usize = 1_000;
/// Runs of nonces that the text of a refusal names.
pub const REFUSAL_NONCE_RUNS_MAX: usize = 10;
/// Most settlements in one request.
pub const SETTLEMENTS_MAX: usize = 1_000;
/// Length of a hold when neither the request nor the signer's policy sets one, in milliseconds.
pub const HOLD_MS_DEFAULT: u64 = 60_000;
/// Shortest hold, in milliseconds.
pub const HOLD_MS_MIN: u64 = 1;
/// Longest hold: seven days, in milliseconds.
pub const HOLD_MS_MAX: u64 = 7 * 24 * 3_600 * 1_000;
/// Highest nonce: 2^53 − 1, the largest integer that every JSON reader keeps exact.
pub const NONCE_MAX: u64 = (1 << 53) - 1;
/// Largest window a policy may set, in nonces.
pub const MAX_IN_FLIGHT_MAX: u64 = 1_000_000;
/// Holes (released nonces, lowest first) that an owner keeps in memory; the rest stay in the
/// ledger until these are used up.
pub const HOLES_IN_MEMORY_MAX: usize = 4_000;
/// Overdue holds that an owner expires in one commit.
pub const EXPIRIES_MAX: usize = 1_000;
/// Commands of one signer that are decided and committed together (worker-queue mode).
pub const ROUND_COMMANDS_MAX: usize = 512;
/// Requests that share a commit in basic mode. More would wait for less, and hide what the other mode is for: there all that
/// wait share one.
pub const BASIC_ROUND_COMMANDS_MAX: usize = 2;
/// Nonces that a round may touch, counted before its last command. With that command they are as many as there may be
/// holes in memory.
pub const ROUND_NONCES_MAX: usize = 3_000;
/// How often a batch is sent while its lease row is locked, before the owner acquires the lease again.
pub const COMMIT_AGAIN_MAX: usize = 3;

/// Signers that a canary may name.
pub const CANARY_SIGNERS_MAX: usize = 1_000;

/// Largest payload of a job, and largest result, in bytes of JSON text: 1 MiB.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Longest reason kept of an attempt that failed, in bytes; the rest is cut off.
pub const REASON_BYTES_MAX: usize = 2_048;
/// Jobs in one batch of submissions, and in one retry of many.
pub const BATCH_JOBS_MAX: usize = 1_000;
/// The latest time at which a job may be due, in microseconds since 1970: in the year 2255. Both databases keep times up to
/// here exactly.
pub const RUN_AT_MICROS_MAX: i64 = (1 << 53) - 1;
/// Labels that one job may require.
pub const JOB_LABELS_MAX: usize = 16;
/// Longest kind of a job, in characters.
pub const JOB_KIND_CHARS_MAX: usize = 64;
/// Strings in the metadata of one job.
pub const METADATA_ENTRIES_MAX: usize = 16;
/// Longest key of metadata, in bytes.
pub const METADATA_KEY_BYTES_MAX: usize = 64;
/// Longest value of metadata, in bytes.
pub const METADATA_VALUE_BYTES_MAX: usize = 256;
/// Lowest and highest priority.
pub const PRIORITY_MIN: i8 = -10;
/// See [`PRIORITY_MIN`].
pub const PRIORITY_MAX: i8 = 10;
/// Default time that an attempt may run, in milliseconds: ten minutes.
pub const JOB_TIMEOUT_MS_DEFAULT: u64 = 600_000;
/// Shortest time an attempt may be given, in milliseconds.
pub const JOB_TIMEOUT_MS_MIN: u64 = 1;
/// Longest time an attempt may be given, in milliseconds: one day.
pub const JOB_TIMEOUT_MS_MAX: u64 = 86_400_000;
/// Default number of attempts.
pub const MAX_ATTEMPTS_DEFAULT: u32 = 3;
/// Most attempts a job may be given.
pub const MAX_ATTEMPTS_MAX: u32 = 100;
/// Past attempts that are kept of one job; the oldest go first.
pub const PAST_ATTEMPTS_MAX: usize = 100;
/// Longest delay of a job, in milliseconds: 30 days.
pub const DELAY_MS_MAX: u64 = 30 * 86_400_000;
/// Longest pause between two attempts, in milliseconds: one day.
pub const BACKOFF_MS_MAX: u64 = 86_400_000;
/// Smallest growth of the pause, in percent: none.
pub const BACKOFF_FACTOR_PERCENT_MIN: u32 = 100;
/// Largest growth of the pause, in percent.
pub const BACKOFF_FACTOR_PERCENT_MAX: u32 = 10_000;

/// Longest note in a progress report, in characters.
pub const PROGRESS_NOTE_CHARS_MAX: usize = 1_024;

/// Default time without a submitted or finished job after which a session is closed, in milliseconds: one
/// hour.
pub const SESSION_IDLE_MS_DEFAULT: u64 = 3_600_000;
/// Shortest time that a session may name, in milliseconds.
pub const SESSION_IDLE_MS_MIN: u64 = 1_000;
/// Longest time that a session may name, in milliseconds: seven days.
pub const SESSION_IDLE_MS_MAX: u64 = 7 * 86_400_000;

/// Attempts that one node may run at once.
pub const NODE_CAPACITY_MAX: u32 = 10_000;
/// Labels that one node may have, those of its services and languages included.
pub const NODE_LABELS_MAX: usize = 256;
/// Pools that one node may limit itself to.
pub const NODE_POOLS_MAX: usize = 64;
/// Pools that may be configured.
pub const POOLS_MAX: usize = 1_000;
/// Routes that one pool may serve.
pub const POOL_ROUTES_MAX: usize = 256;
/// Largest weight of a pool.
pub const POOL_WEIGHT_MAX: u32 = 1_000;

/// Leases that one bulk renewal may name.
pub const RENEWALS_MAX: usize = 1_000;

const _: () = assert!(
    ROUND_NONCES_MAX + GRANT_NONCES_MAX <= HOLES_IN_MEMORY_MAX,
    "a round must be servable from the holes in memory"
);
const _: () = assert!(TASK_CHANGES_MAX >= 3 * (2 * CHECKPOINTS_MAX + 10 * TASK_RUNS_MAX) as u64);
const _: () = assert!(HOLES_IN_MEMORY_MAX >= GRANT_NONCES_MAX, "one grant must be servable from memory");
const _: () = assert!(HOLD_MS_MIN <= HOLD_MS_DEFAULT && HOLD_MS_DEFAULT <= HOLD_MS_MAX);
const _: () =
    assert!(SESSION_IDLE_MS_MIN <= SESSION_IDLE_MS_DEFAULT && SESSION_IDLE_MS_DEFAULT <= SESSION_IDLE_MS_MAX);
const _: () = assert!(NONCE_MAX < i64::MAX as u64, "the ledger keeps nonces as signed 64-bit numbers");
const _: () = assert!(
    (ID_FIVE_BITS_MAX as u16 + 1) * (ID_FIVE_BITS_MAX as u16 + 1) == ID_WORKER_MAX + 1,
    "a data centre and a worker make a worker number"
);
const _: () = assert!(SEGMENT_STEP_DEFAULT <= SEGMENT_STEP_GROWN_MAX);
const _: () = assert!(ID_BATCH_MAX as u64 <= SEQUENCE_GRANT_MAX, "one request fits a commit");
const _: () = assert!(
    SEQUENCE_GRANT_MAX < ID_NUMBER_MAX / SEQUENCE_INCREMENT_MAX,
    "what one commit grants is reckoned without overflow"
);
