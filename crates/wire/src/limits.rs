//! The limits that callers can run into. The daemon asserts at compile time that they equal the domain's.

/// Longest signer id, in characters.
pub const SIGNER_ID_CHARS_MAX: usize = 128;
/// Most nonces in one grant.
pub const GRANT_NONCES_MAX: u64 = 1_000;
/// Most settlements in one request.
pub const SETTLEMENTS_MAX: usize = 1_000;
/// Shortest hold, in milliseconds.
pub const HOLD_MS_MIN: u64 = 1;
/// Longest hold: seven days, in milliseconds.
pub const HOLD_MS_MAX: u64 = 604_800_000;
/// Highest nonce, 2^53 − 1: the largest whole number that every JSON reader keeps exact.
pub const NONCE_MAX: u64 = 9_007_199_254_740_991;
/// Largest window a policy may set, in nonces.
pub const MAX_IN_FLIGHT_MAX: u64 = 1_000_000;
/// Longest text that is read as a hold, in characters. Real ones have 36.
pub const HOLD_CHARS_MAX: usize = 128;
/// Longest transaction hash, in characters.
pub const TX_HASH_CHARS_MAX: usize = 128;
/// Longest `Idempotency-Key`, in characters.
pub const IDEMPOTENCY_KEY_CHARS_MAX: usize = 128;
/// Longest `X-Request-Id` that is taken over, in characters.
pub const REQUEST_ID_CHARS_MAX: usize = 128;
/// Items of a list when the request names no `limit`.
pub const LIST_ITEMS_DEFAULT: u32 = 100;
/// Most items of one page of a list.
pub const LIST_ITEMS_MAX: u32 = 1_000;

/// Signers that a canary may name.
pub const CANARY_SIGNERS_MAX: usize = 1_000;
/// The largest whole number that every JSON reader keeps exact: 2^53 − 1.
pub const NUMBER_MAX: u64 = NONCE_MAX;

/// Longest name that a session's client gives to a job, in characters.
pub const CLIENT_REF_CHARS_MAX: usize = 128;
/// Shortest idle time that a session may name, in milliseconds.
pub const SESSION_IDLE_MS_MIN: u64 = 1_000;
/// Longest idle time that a session may name, in milliseconds: seven days.
pub const SESSION_IDLE_MS_MAX: u64 = 7 * 86_400_000;
/// Longest session id, in characters.
pub const SESSION_ID_CHARS_MAX: usize = 128;
/// Longest tenant id, in characters.
pub const TENANT_ID_CHARS_MAX: usize = 128;
/// Longest node id, in characters.
pub const NODE_ID_CHARS_MAX: usize = 128;
/// Longest pool name, in characters.
pub const POOL_NAME_CHARS_MAX: usize = 64;
/// Longest kind of a job, in characters.
pub const JOB_KIND_CHARS_MAX: usize = 64;
/// Most jobs per second of a bulk operation.
pub const BULK_RATE_MAX: u64 = 10_000;
/// Longest pause of a pool that ends by itself: 30 days, in milliseconds.
pub const PAUSE_MS_MAX: u64 = 2_592_000_000;
/// Longest label, in characters; a service's name is a label too.
pub const LABEL_CHARS_MAX: usize = 64;
/// Longest language, in characters.
pub const LANGUAGE_CHARS_MAX: usize = 35;
/// Longest text that is read as a job's id, in characters. Real ones have 36.
pub const JOB_ID_CHARS_MAX: usize = 128;

/// Longest tag of segments, in characters.
pub const SEGMENT_TAG_CHARS_MAX: usize = 128;
/// Longest name of a sequence, in characters.
pub const SEQUENCE_NAME_CHARS_MAX: usize = 128;
/// Ids in one request.
pub const ID_BATCH_MAX: u64 = 10_000;
/// Largest id: 2^63 − 1.
pub const ID_NUMBER_MAX: u64 = 9_223_372_036_854_775_807;
/// Largest step that a tag may name, in ids.
pub const SEGMENT_STEP_MAX: u64 = 1_000_000_000;
/// Longest description of a tag, in bytes.
pub const SEGMENT_DESCRIPTION_BYTES_MAX: usize = 1_024;
/// Largest step from one number of a sequence to the next.
pub const SEQUENCE_INCREMENT_MAX: u64 = 1_000_000_000;

/// Largest payload of a job, and largest result, in bytes of JSON text: 1 MiB.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Most jobs in one batch of submissions, and in one retry of many.
pub const BATCH_JOBS_MAX: usize = 1_000;
/// Labels that one job may require.
pub const JOB_LABELS_MAX: usize = 16;
/// Lowest priority.
pub const PRIORITY_MIN: i64 = -10;
/// Highest priority.
pub const PRIORITY_MAX: i64 = 10;
/// Longest delay of a job, in milliseconds: 30 days.
pub const DELAY_MS_MAX: u64 = 2_592_000_000;
/// Longest text that is read as a time, in characters.
pub const TIME_CHARS_MAX: usize = 64;
/// Shortest time an attempt may be given, in milliseconds.
pub const JOB_TIMEOUT_MS_MIN: u64 = 1;
/// Longest time an attempt may be given, in milliseconds: one day.
pub const JOB_TIMEOUT_MS_MAX: u64 = 86_400_000;
/// Most attempts a job may be given.
pub const MAX_ATTEMPTS_MAX: u64 = 100;
/// Longest pause between two attempts, in milliseconds: one day.
pub const BACKOFF_MS_MAX: u64 = 86_400_000;
/// Largest factor by which that pause may grow each time.
pub const BACKOFF_FACTOR_MAX: u64 = 100;
/// Longest wait for a job's end in one request, in milliseconds.
pub const JOB_WAIT_MS_MAX: u64 = 60_000;

/// Tasks of one plan.
pub const PLAN_TASKS_MAX: usize = 1_000;
/// Stages of one task.
pub const PLAN_STAGES_MAX: usize = 100;
/// Most tasks of a plan that may run at once.
pub const PLAN_CONCURRENCY_MAX: u64 = 100;
/// Longest name of a plan, a task or a stage, in characters.
pub const PLAN_NAME_CHARS_MAX: usize = 128;
/// Longest time that a plan, or one run of a task, may be given, in milliseconds: seven days.
pub const PLAN_TIMEOUT_MS_MAX: u64 = 604_800_000;
/// Largest configuration of a tenant, in bytes of JSON text: 64 KiB.
pub const TASK_CONFIG_BYTES_MAX: usize = 64 << 10;
/// Largest context of a checkpoint, and largest patch of one, in bytes of JSON text: 256 KiB.
pub const CONTEXT_BYTES_MAX: usize = 256 << 10;
/// Most runs of one task.
pub const TASK_RUNS_MAX: u64 = 100;
/// Highest version of a checkpoint: so many may one task have, in all its runs.
pub const CHECKPOINT_VERSION_MAX: u64 = 1_000;
/// Longest reason for a change, in characters.
pub const REASON_CHARS_MAX: usize = 1_024;
/// Highest fencing token: 2^63 − 1.
pub const TOKEN_MAX: u64 = 9_223_372_036_854_775_807;

/// Attempts that one node may run at once.
pub const NODE_CAPACITY_MAX: u64 = 10_000;
/// Labels that one node may have, those of its services and languages included.
pub const NODE_LABELS_MAX: usize = 256;
/// Pools that one node may limit itself to.
pub const NODE_POOLS_MAX: usize = 64;
/// Longest version that a node may show, in characters.
pub const NODE_VERSION_CHARS_MAX: usize = 128;
/// Highest number that a node may give as its load.
pub const NODE_LOAD_MAX: u64 = 1_000_000;
/// Pools that may be configured.
pub const POOLS_MAX: usize = 1_000;
/// Routes that one pool may serve.
pub const POOL_ROUTES_MAX: usize = 256;
/// Labels that one pool may require.
pub const POOL_LABELS_MAX: usize = JOB_LABELS_MAX;
/// Largest weight of a pool.
pub const POOL_WEIGHT_MAX: u64 = 1_000;

/// Longest reason of a node that rejects an attempt, in characters. The daemon cuts a longer one off.
pub const REJECT_REASON_CHARS_MAX: usize = 256;
/// Longest note of a node on its progress, in characters. The daemon cuts a longer one off.
pub const PROGRESS_NOTE_CHARS_MAX: usize = 1_024;
/// Longest error message of a node, in characters. The daemon cuts a longer one off, and keeps the first part.
pub const ERROR_MESSAGE_CHARS_MAX: usize = 8_192;
/// Most frames in one message of the worker socket.
pub const MESSAGE_FRAMES_MAX: usize = 1_000;
/// Largest message of the worker socket, in bytes. A sender of several frames in one message stays below it.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// How long a node may take to send its hello, in milliseconds.
pub const HELLO_WITHIN_MS: u64 = 5_000;
/// A node takes its connection for dead after this many heartbeats without an answer.
pub const HEARTBEATS_UNANSWERED_MAX: u32 = 3;

const _: () = assert!(
    // An attempt's id, its number, and what is around them.
    NODE_CAPACITY_MAX as usize * (JOB_ID_CHARS_MAX + 64) < MESSAGE_BYTES_MAX,
    "a list of all attempts of the largest node fits one message"
);
const _: () = assert!(
    // Every character of a text may be four bytes long, or escaped as six.
    PAYLOAD_BYTES_MAX + 6 * ERROR_MESSAGE_CHARS_MAX + 4_096 < MESSAGE_BYTES_MAX,
    "every frame fits one message"
);
