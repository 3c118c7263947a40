//! Every default and every limit of the configuration, by name, with its unit last.
//!
//! What must never live here: reading of files or environment. Relations between the defaults are
//! asserted at compile time at the foot of this file; those between configured values are checked by
//! [`super::check`].

use api::limits as served;
pub use cluster::NODE_NAME_CHARS_MAX;
use domain::limits::{HOLD_MS_DEFAULT, HOLD_MS_MAX, HOLD_MS_MIN};
use ids::limits::{LEAD_MS_MAX, LEAD_MS_MIN};
use nodes::limits::{ACK_MS_MIN, HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN, OFFLINE_MS_MIN};

/// The default mode.
pub const MODE_DEFAULT: &str = "worker-queue";
/// All modes.
pub const MODES: [&str; 2] = ["basic", "worker-queue"];
/// The default for a request whose key another instance owns.
pub const ON_MISROUTE_DEFAULT: &str = "forward";
/// All values for that.
pub const ON_MISROUTES: [&str; 2] = ["forward", "redirect"];
/// The default for tables that are older than the binary.
pub const MIGRATE_DEFAULT: &str = "auto";
/// All values for that.
pub const MIGRATES: [&str; 2] = ["auto", "check"];
/// Where the daemon listens: this machine only.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:7070";
/// The embedded ledger.
pub const LEDGER_URL_DEFAULT: &str = "sqlite:./fencepost-data/ledger.db";
/// The default filter of the log. It leaves out the HTTP server's messages about its threads, those of its parser, which are
/// at `ERROR` whatever bytes a stranger sends, and the database's about its tables. What the log leaves out besides, unless a
/// filter asks for it, is in `logging.rs`.
pub const LOG_FILTER_DEFAULT: &str = "info,actix_http=off,actix_server=warn,sqlx=warn";
/// What a filter of the log may name without a level and without a `::`: the crates of the daemon.
pub const LOG_TARGETS: [&str; 13] = [
    "actors",
    "api",
    "bus",
    "client",
    "cluster",
    "domain",
    "fencepost",
    "ids",
    "ledger",
    "nodes",
    "panic_guard",
    "placement",
    "wire",
];
/// The default format of the log: `pretty` on a terminal, `json` otherwise.
pub const LOG_FORMAT_DEFAULT: &str = "auto";
/// All formats.
pub const LOG_FORMATS: [&str; 3] = ["auto", "pretty", "json"];
/// How many of the traces that begin here are recorded, in percent.
pub const TRACES_SAMPLED_PERCENT_DEFAULT: u64 = 100;
/// Where a collector takes traces, if its URL has no path.
pub const TRACES_PATH_DEFAULT: &str = "/v1/traces";
/// The scopes that a token may have.
pub const SCOPES: [&str; 4] = ["read", "submit", "node", "admin"];

/// Bearer tokens that are shorter, in characters, are warned of: so many of base64url have 128 bits.
pub const TOKEN_CHARS_MIN: usize = 22;
/// Longest bearer token, in characters.
pub const TOKEN_CHARS_MAX: usize = 512;
/// Longest name of a token, in characters.
pub const TOKEN_NAME_CHARS_MAX: usize = 64;
/// Most secrets of one token, and most patterns of one kind of names.
pub const TOKEN_LIST_MAX: usize = 100;
/// Most tokens.
pub const TOKENS_MAX: usize = 1_000;

/// Threads that serve HTTP; 0 is one for each core, 4 at most.
pub const WORKERS_DEFAULT: u64 = 0;
/// Largest request body, in bytes.
pub const BODY_BYTES_MAX_DEFAULT: u64 = 1024 * 1024;
/// Connections open at once.
pub const CONNECTIONS_MAX_DEFAULT: u64 = 10_000;
/// Bytes of bodies and socket messages that are being read at once.
pub const READING_BYTES_MAX_DEFAULT: u64 = served::READING_BYTES_DEFAULT.in_all as u64;
/// Bytes of one token's bodies and socket messages that are being read at once.
pub const CALLER_READING_BYTES_MAX_DEFAULT: u64 = served::READING_BYTES_DEFAULT.of_token as u64;
/// Bytes of answers and socket messages that wait for their readers.
pub const SENDING_BYTES_MAX_DEFAULT: u64 = served::SENDING_BYTES_DEFAULT.in_all as u64;
/// Bytes of one token's answers and socket messages that wait for their readers.
pub const CALLER_SENDING_BYTES_MAX_DEFAULT: u64 = served::SENDING_BYTES_DEFAULT.of_token as u64;
/// Fewest such bytes that may be configured: the largest batch of jobs, and the largest page.
pub const SHARED_BYTES_MIN: u64 = served::BATCH_BYTES_MAX as u64;
/// Most such bytes that may be configured: 64 GiB.
pub const SHARED_BYTES_MAX: u64 = 64 << 30;
/// Requests in flight at once.
pub const REQUESTS_MAX_DEFAULT: u64 = served::REQUESTS_DEFAULT.in_all as u64;
/// Requests of one token in flight at once.
pub const CALLER_REQUESTS_MAX_DEFAULT: u64 = served::REQUESTS_DEFAULT.of_token as u64;
/// Open sockets.
pub const SOCKETS_MAX_DEFAULT: u64 = served::SOCKETS_DEFAULT.in_all as u64;
/// Open sockets of one token.
pub const CALLER_SOCKETS_MAX_DEFAULT: u64 = served::SOCKETS_DEFAULT.of_token as u64;
/// How long a client may take to send a request's head, a body, or a socket's message, in milliseconds.
pub const RECEIVE_TIMEOUT_MS_DEFAULT: u64 = served::CLIENT_REQUEST_TIMEOUT_DEFAULT.as_millis() as u64;
/// How long a request may wait for its key's owner, a lease and the ledger, in milliseconds.
pub const REQUEST_TIMEOUT_MS_DEFAULT: u64 = 10_000;
/// Longest time between the begin of the stop and the end, in milliseconds.
pub const DRAIN_TIMEOUT_MS_DEFAULT: u64 = 30_000;
/// How long the stop begins after its signal, in milliseconds.
pub const STOP_DELAY_MS_DEFAULT: u64 = 0;

/// Connections to the ledger.
pub const LEDGER_CONNECTIONS_MAX_DEFAULT: u64 = 16;
/// Longest time for one command on the bus, in milliseconds.
pub const BUS_COMMAND_TIMEOUT_MS_DEFAULT: u64 = 1_000;
/// How long ledger and bus are tried for at the start, in milliseconds.
pub const CONNECT_TIMEOUT_MS_DEFAULT: u64 = 30_000;
/// Longest time for one call to the ledger, in milliseconds.
pub const CALL_TIMEOUT_MS_DEFAULT: u64 = 5_000;

/// Length of a signer's lease, and of a session's, a plan's and that of adopted lanes, in milliseconds.
pub const LEASE_SIGNER_MS_DEFAULT: u64 = 15_000;
/// Length of an instance's own lease, in milliseconds. It is renewed four times in its length, so that the others find a
/// killed instance dead within two seconds.
pub const LEASE_INSTANCE_MS_DEFAULT: u64 = 1_200;
/// How long an ended incarnation is remembered, in milliseconds.
pub const INSTANCE_RETENTION_MS_DEFAULT: u64 = 24 * 3_600 * 1_000;

/// How long a request waits for a lease that another instance has, in milliseconds.
pub const LEASE_WAIT_MS_DEFAULT: u64 = 250;
/// How long a lease is kept at most while there is work, in milliseconds.
pub const LEASE_KEPT_MAX_MS_DEFAULT: u64 = 100;

/// How long an owner keeps a lease without work, in milliseconds.
pub const IDLE_MS_DEFAULT: u64 = 30_000;

/// Requests that may wait for one signer.
pub const QUEUE_MAX_DEFAULT: u64 = 10_000;
/// Requests that may be under way in this instance.
pub const IN_FLIGHT_MAX_DEFAULT: u64 = 20_000;
/// How often overdue holds without an owner are looked for, in milliseconds.
pub const SWEEP_INTERVAL_MS_DEFAULT: u64 = 1_000;
/// Signers swept at once.
pub const SWEEP_SIGNERS_MAX_DEFAULT: u64 = 8;
/// How long idempotency keys are kept, in milliseconds.
pub const KEY_RETENTION_MS_DEFAULT: u64 = 24 * 3_600 * 1_000;

/// How long a node whose socket was closed may take to reconnect, in milliseconds; at most until its record
/// expires.
pub const NODE_GRACE_MS_DEFAULT: u64 = 30_000;
/// How long finished jobs are kept, in milliseconds: seven days.
pub const JOB_RETENTION_MS_DEFAULT: u64 = 7 * 24 * 3_600 * 1_000;
/// Open sessions that one token may have.
pub const CALLER_SESSIONS_MAX_DEFAULT: u64 = served::CALLER_SESSIONS_DEFAULT as u64;
/// Different signers that one token may use in an hour on one instance.
pub const CALLER_SIGNERS_MAX_DEFAULT: u64 = served::CALLER_SIGNERS_DEFAULT as u64;
/// New idempotency keys that one token may use in an hour on one instance.
pub const CALLER_KEYS_MAX_DEFAULT: u64 = served::CALLER_KEYS_DEFAULT;
/// How long plans are kept after their end, in milliseconds: seven days.
pub const PLAN_RETENTION_MS_DEFAULT: u64 = 7 * 24 * 3_600 * 1_000;
/// How long entries of the audit are kept, in milliseconds: 90 days.
pub const AUDIT_RETENTION_MS_DEFAULT: u64 = 90 * 24 * 3_600 * 1_000;
/// How long a tenant's lock lasts from its last renewal, in milliseconds: two and a half hours.
pub const TENANT_LOCK_MS_DEFAULT: u64 = 9_000_000;

/// The file that remembers how far the ledger had got.
pub const WITNESS_FILE_DEFAULT: &str = "./fencepost-data/witness";
/// The local file of the worker number.
pub const IDS_FILE_DEFAULT: &str = "./fencepost-data/worker-number";
/// Latest epoch of snowflakes, in milliseconds since 1970: the end of the year 2099.
pub const EPOCH_MS_MAX: u64 = 4_102_444_799_999;
/// Longest lease of a worker number, in milliseconds: one day.
pub const WORKER_LEASE_MS_MAX: u64 = 24 * 3_600 * 1_000;
/// Largest difference of clocks that may be allowed, in milliseconds.
pub const CLOCK_SKEW_MS_MAX: u64 = 60_000;
/// How far ahead of the database's clock an instance may commit its mark of snowflakes at most, in milliseconds.
pub const SNOWFLAKES_AHEAD_MS_MAX: i64 = (LEAD_MS_MAX + CLOCK_SKEW_MS_MAX) as i64;

/// What a number may be.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The key, as `section.key`.
    pub key: &'static str,
    /// Lowest value allowed.
    pub min: u64,
    /// Highest value allowed.
    pub max: u64,
    /// What it counts, for messages.
    pub unit: &'static str,
}

const fn range(key: &'static str, min: u64, max: u64, unit: &'static str) -> Range {
    Range { key, min, max, unit }
}

/// Every number of the configuration. A test holds this table against [`super::Config`].
pub const RANGES: [Range; 52] = [
    range("server.workers", 0, 256, "threads (0: one for each core, 4 at most)"),
    range("server.body_bytes_max", 1_024, 16 * 1024 * 1024, "bytes"),
    range("server.connections_max", 1, 1_000_000, "connections"),
    range("server.reading_bytes_max", SHARED_BYTES_MIN, SHARED_BYTES_MAX, "bytes"),
    range("server.caller_reading_bytes_max", SHARED_BYTES_MIN, SHARED_BYTES_MAX, "bytes"),
    range("server.sending_bytes_max", SHARED_BYTES_MIN, SHARED_BYTES_MAX, "bytes"),
    range("server.caller_sending_bytes_max", SHARED_BYTES_MIN, SHARED_BYTES_MAX, "bytes"),
    range("server.requests_max", 1, 1_000_000, "requests"),
    range("server.caller_requests_max", 1, 1_000_000, "requests"),
    range("server.sockets_max", 1, 1_000_000, "sockets"),
    range("server.caller_sockets_max", 1, 1_000_000, "sockets"),
    range("server.caller_keys_max", 1, 1_000_000_000, "keys"),
    range("server.receive_timeout_ms", 1_000, 300_000, "milliseconds"),
    range("server.request_timeout_ms", 100, 300_000, "milliseconds"),
    range("server.drain_timeout_ms", 0, 30_000, "milliseconds"),
    range("server.stop_delay_ms", 0, 60_000, "milliseconds"),
    range("ledger.connections_max", 2, 500, "connections"),
    range("ledger.connect_timeout_ms", 100, 600_000, "milliseconds"),
    range("ledger.call_timeout_ms", 100, 60_000, "milliseconds"),
    range("bus.connect_timeout_ms", 100, 600_000, "milliseconds"),
    range("bus.command_timeout_ms", 50, 60_000, "milliseconds"),
    range("lease.signer_ms", 1_000, 300_000, "milliseconds"),
    range("lease.instance_ms", 1_000, 60_000, "milliseconds"),
    range("lease.instance_retention_ms", 60_000, 30 * 24 * 3_600 * 1_000, "milliseconds"),
    range("basic.lease_wait_ms", 0, 30_000, "milliseconds"),
    range("basic.lease_kept_max_ms", 1, 10_000, "milliseconds"),
    range("worker_queue.idle_ms", 100, 3_600_000, "milliseconds"),
    range("nonce.hold_ms", HOLD_MS_MIN, HOLD_MS_MAX, "milliseconds"),
    range("nonce.queue_max", 1, 1_000_000, "requests"),
    range("nonce.in_flight_max", 1, 1_000_000, "requests"),
    range("nonce.sweep_interval_ms", 50, 3_600_000, "milliseconds"),
    range("nonce.sweep_signers_max", 1, 1_000, "signers"),
    range("nonce.key_retention_ms", 1_000, 30 * 24 * 3_600 * 1_000, "milliseconds"),
    range("nonce.caller_signers_max", 1, 10_000_000, "signers"),
    range("jobs.node_grace_ms", 1_000, NODE_GRACE_MS_DEFAULT, "milliseconds"),
    range("jobs.retention_ms", 60_000, 365 * 24 * 3_600 * 1_000, "milliseconds"),
    range("jobs.caller_sessions_max", 1, 1_000_000, "sessions"),
    range("nodes.heartbeat_ms", HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX, "milliseconds"),
    range("nodes.offline_ms", OFFLINE_MS_MIN, 300_000, "milliseconds"),
    range("nodes.vouched_ms", 2_600, 60_000, "milliseconds"),
    range("nodes.reservation_ms", 2_700, 120_000, "milliseconds"),
    range("nodes.ack_ms", ACK_MS_MIN, 60_000, "milliseconds"),
    range("nodes.unanswered_ms", 1_100, 120_000, "milliseconds"),
    range("nodes.stranded_ms", 1_000, 120_000, "milliseconds"),
    range("plans.retention_ms", 60_000, 365 * 24 * 3_600 * 1_000, "milliseconds"),
    range("plans.lock_ms", 1_000, 7 * 24 * 3_600 * 1_000, "milliseconds"),
    range("ids.epoch_ms", 0, EPOCH_MS_MAX, "milliseconds since 1970"),
    range("ids.lease_ms", LEAD_MS_MIN, WORKER_LEASE_MS_MAX, "milliseconds"),
    range("ids.lead_ms", LEAD_MS_MIN, LEAD_MS_MAX, "milliseconds"),
    range("ids.clock_skew_max_ms", 1, CLOCK_SKEW_MS_MAX, "milliseconds"),
    range("audit.retention_ms", 24 * 3_600 * 1_000, 10 * 365 * 24 * 3_600 * 1_000, "milliseconds"),
    range("traces.sampled_percent", 0, 100, "percent"),
];

/// The range of a number's key.
pub fn range_of(key: &str) -> Option<&'static Range> {
    RANGES.iter().find(|range| range.key == key)
}

const _: () = assert!(NODE_NAME_CHARS_MAX >= 64, "a Linux host name must fit");
const _: () = assert!(
    LEASE_KEPT_MAX_MS_DEFAULT * 3 < LEASE_SIGNER_MS_DEFAULT,
    "a lease is given back before its renewal"
);
const _: () = assert!(SHARED_BYTES_MIN >= 2 * served::SHOWN_PAGE_BYTES_MAX as u64);
const _: () = assert!(CALLER_READING_BYTES_MAX_DEFAULT >= SHARED_BYTES_MIN);
const _: () = assert!(CALLER_SENDING_BYTES_MAX_DEFAULT >= SHARED_BYTES_MIN);
const _: () = assert!(LEASE_WAIT_MS_DEFAULT < REQUEST_TIMEOUT_MS_DEFAULT);
const _: () = assert!(CALL_TIMEOUT_MS_DEFAULT <= REQUEST_TIMEOUT_MS_DEFAULT);
const _: () = assert!(QUEUE_MAX_DEFAULT <= IN_FLIGHT_MAX_DEFAULT);
const _: () = assert!(HOLD_MS_DEFAULT >= HOLD_MS_MIN && HOLD_MS_DEFAULT <= HOLD_MS_MAX);
