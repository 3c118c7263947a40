//! Every limit of the HTTP surface, by name, with its unit last. What callers can run into is in
//! `wire::limits`; that those are the domain's own is asserted at the foot of this file.

use std::time::Duration;

/// How much of something may be in use at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// By all callers together.
    pub in_all: usize,
    /// By one token, over all its connections.
    pub of_token: usize,
}

/// Longest request body when the configuration names none, in bytes: a job with the largest payload and every other
/// field at its longest fits.
pub const BODY_BYTES_MAX_DEFAULT: usize = (1 << 20) + (64 << 10);
/// Connections open at once when the configuration names none, all threads together.
pub const CONNECTIONS_MAX_DEFAULT: usize = 10_000;
/// How long an idle connection is kept when the configuration names nothing else.
pub const KEEP_ALIVE_DEFAULT: Duration = Duration::from_secs(75);
/// How long a client may take to send a request's head, and again its body. It is longer than other instances and the Rust
/// client keep an unused connection: otherwise the server could end such a connection with a bare 408, which looks
/// like the answer to a request that is just being sent.
pub const CLIENT_REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
const _: () = assert!(client::IDLE_MAX.as_secs() < CLIENT_REQUEST_TIMEOUT_DEFAULT.as_secs());
const _: () = assert!(client::IDLE_MAX.as_secs() < KEEP_ALIVE_DEFAULT.as_secs());
/// Bytes that a connection hands on at once between two requests, and again, besides its body, while the first request in them is
/// under way. A head in them takes some 7 KB of memory until its request is answered.
pub const HEADS_BYTES_AT_ONCE: u64 = 2 << 10;
/// Bytes of a body that a connection hands on before anybody reads it. A refusal keeps the connection behind a body that is not
/// longer; behind a longer one it is closed, by which the other side may lose the answer.
pub const UNREAD_BODY_BYTES_MAX: u64 = 32 << 10;
/// Bytes that a connection hands on of a body of unknown length whenever its reader waits for more.
pub const CHUNKS_BYTES_AT_ONCE: u64 = 4 << 10;
/// Bytes of bodies and socket messages that are being read at once when the configuration names no number. What is made of
/// them needs about twice as much again.
pub const READING_BYTES_DEFAULT: Limit = Limit { in_all: 256 << 20, of_token: 128 << 20 };
/// Bytes of answers and socket messages that wait for their readers when the configuration names no number.
pub const SENDING_BYTES_DEFAULT: Limit = Limit { in_all: 256 << 20, of_token: 128 << 20 };
/// Requests in flight when the configuration names no number.
pub const REQUESTS_DEFAULT: Limit = Limit { in_all: 8_000, of_token: 4_000 };
/// Open sockets when the configuration names no number.
pub const SOCKETS_DEFAULT: Limit = Limit { in_all: 8_000, of_token: 4_000 };
/// Bytes that an attempt takes which a node lists when it connects, about: in the node's connection, in what the instance knows
/// of attempts, and at a bus within the process.
pub const LISTED_ATTEMPT_BYTES: usize = 600;
/// How long listed attempts that were not known to be the node's still count after the end of its connection, before jitter: so
/// long it may take until they are looked up, and those that are nobody's are forgotten.
pub const LISTED_COUNTED_FOR: Duration = Duration::from_secs(15);
const _: () = assert!(
    domain::limits::NODE_CAPACITY_MAX as usize * LISTED_ATTEMPT_BYTES < READING_BYTES_DEFAULT.of_token / 4,
    "the longest list of a node fits, beside others"
);
/// Attempts of one node whose traces an instance remembers: as many as a node may have slots.
pub const ATTEMPT_TRACES_MAX: usize = domain::limits::NODE_CAPACITY_MAX as usize;
/// Open sessions of one token when the configuration names no number.
pub const CALLER_SESSIONS_DEFAULT: u32 = 10_000;
/// The `Retry-After` for a token that has as many open sessions as it may: only sessions that close make room. A
/// client that tries for half a minute, as the Rust library does, asks several times.
pub const TOO_MANY_SESSIONS_FOR: Duration = Duration::from_secs(5);
/// Different signers that one token may use in an hour on one instance, unless settings say otherwise.
pub const CALLER_SIGNERS_DEFAULT: usize = 100_000;
/// New idempotency keys that one token may use in an hour on one instance, unless settings say otherwise: 27,000 a second.
pub const CALLER_KEYS_DEFAULT: u64 = 100_000_000;
/// How many of ten connections may be sockets: requests find room in the rest.
pub const SOCKETS_OF_TEN_CONNECTIONS: usize = 9;
/// Bodies, answers, and parts of a socket's messages of so many bytes are not counted: the numbers of requests and sockets
/// bound them. Those of a plan that is being made count all the same: its making outlives the request.
pub const UNCOUNTED_BYTES_MAX: usize = 16 << 10;
/// A body of unknown length takes its share in steps of so many bytes.
pub const READING_STEP_BYTES: usize = 64 << 10;
/// How long the rest of a body is read and thrown away whose share was refused, so that its sender can read the refusal.
pub const DISCARD_MAX: Duration = Duration::from_secs(1);
/// How long reading from the ledger may take when the configuration names nothing else.
pub const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// How long a node whose socket was closed may take to connect anew when the configuration names nothing else.
pub const NODE_GRACE_DEFAULT: Duration = domain::NodeTimeouts::DEFAULT.offline;
/// Most threads that serve HTTP when the configuration names no number.
pub const WORKERS_MAX_DEFAULT: usize = 4;
/// Connections open at once on the listener for probes.
pub const PROBE_CONNECTIONS_MAX: usize = 64;
/// How long that listener keeps an idle connection.
pub const PROBE_KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How long a client of that listener may take to send a request's head.
pub const PROBE_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The clock by which the HTTP library limits the time of a connection's first head moves in such steps, and is behind by up to
/// one. So it gets one more: a head is refused after its time, by up to a step.
pub const LIBRARY_CLOCK_STEP: Duration = Duration::from_millis(500);
/// How long closing waits for answers to leave, in seconds; no request is in flight by then.
pub const CLOSE_SECONDS_MAX: u64 = 1;
/// How long a stop at once waits until the requests that it cuts off have ended.
pub const CUT_OFF_MAX: Duration = Duration::from_millis(100);
/// How long a connection that is over may take to close.
pub const CLIENT_DISCONNECT_MAX: Duration = Duration::from_secs(1);
/// How long a client may take for the handshake of TLS.
pub const TLS_HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// Longest `detail` of a refusal, in characters, because it may repeat text of the caller's.
pub const DETAIL_CHARS_MAX: usize = 400;
/// Longest cursor that is read, in characters.
pub const CURSOR_CHARS_MAX: usize = 256;
/// How long the result of a check of the ledger's health is used.
pub const HEALTH_AGE_MAX: Duration = Duration::from_secs(1);
/// Between two looks at the checks of `/readyz` for the metrics, before jitter.
pub const CHECKS_SHOWN_EVERY: Duration = Duration::from_secs(5);
/// The metric of the tag whose ids run out first shows no more, in seconds.
pub const SEGMENT_LEFT_SECONDS_MAX: f64 = 3_600.0;
/// When to ask an instance again that has not completed its start, in milliseconds.
pub const STARTING_AGAIN_MS: u64 = 1_000;
/// How long a check of the ledger's health, or of the bus's, may take.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a check of the bus's health may take while the link to the bus is down: the instance serves without it, and looks
/// only for the reason. Balancers and orchestrators wait a second for `/readyz` by default.
pub const BUS_DOWN_CHECK_MAX: Duration = Duration::from_millis(250);
/// How long a refusal waits for the address of a lease's owner.
pub const OWNER_URL_TIMEOUT: Duration = Duration::from_millis(100);
/// Owners whose address is remembered. If there are more, all are forgotten.
pub const OWNER_URLS_MAX: usize = 1_024;

/// Largest body of one job, in bytes: the largest payload, and the other fields.
pub const JOB_BYTES_MAX: usize = wire::limits::PAYLOAD_BYTES_MAX + (64 << 10);
/// Largest body of a batch of jobs, in bytes. A caller with more sends two batches.
pub const BATCH_BYTES_MAX: usize = 32 << 20;
/// Jobs of a retry of many that are read, and then submitted, together.
pub const RETRY_PART_JOBS: usize = 200;
/// Bytes of the payloads of the jobs that such a retry reads together, counted before the last job.
pub const RETRY_PART_BYTES: usize = 8 << 20;
/// Jobs that are read at once for such a retry.
pub const RETRY_READS_AT_ONCE: usize = 4;
/// Jobs per second of a bulk operation that names no rate.
pub const BULK_RATE_DEFAULT: u32 = 200;
/// Jobs that are counted at most when a bulk operation begins. More would take the ledger seconds.
pub const BULK_MATCHED_MAX: u64 = 1_000_000;
/// Rows that one statement reads to count them.
pub const BULK_COUNT_ROWS: u32 = 50_000;
/// Jobs that are read at once to find those that a token with patterns sees.
pub const BULK_SEEN_PAGE: u32 = 200;
/// Bulk operations that one instance works on at once. Further ones that it owns wait.
pub const BULKS_AT_ONCE: usize = 16;
/// Bulk operations of one token that one instance works on at once. Without tokens all are one caller's.
pub const BULKS_OF_TOKEN_AT_ONCE: usize = 4;
/// Bulk operations that look for their next jobs in the ledger at once, unless settings say otherwise. Others wait: on PostgreSQL
/// half of the connections serve all reads and writes, takeovers among them. Half as many requests count the jobs of an operation
/// that is to begin, one of each token.
pub const BULK_SCANS_AT_ONCE: usize = 4;
/// Rows that a bulk operation reads in one statement to find the next jobs that match.
pub const BULK_SCAN_ROWS: u32 = 10_000;
/// The fewest rows that such a statement reads, where statements take too long.
pub const BULK_SCAN_ROWS_MIN: u32 = 100;
/// After so many such statements in time the next ones may read twice as many rows.
pub const BULK_SCANS_IN_TIME: u32 = 20;
/// Jobs that a bulk operation works on between two notes of its progress.
pub const BULK_PAGE_JOBS: u32 = 100;
/// Jobs of a bulk operation that are cancelled at once.
pub const BULK_CANCELS_AT_ONCE: usize = 8;
/// Tries for the jobs of a page whose owners or ledger do not answer. Those left then count as failed.
pub const BULK_ROUNDS_MAX: u32 = 30;
/// The pause after the first such try; 20 times as long at most, before jitter, while the ledger is away.
pub const BULK_ROUND_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause between two such tries, as a multiple of the first one.
pub const BULK_ROUND_PAUSES_MAX: u32 = 8;
/// Between two looks for operations whose owner is dead, before jitter.
pub const BULK_LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long an operation whose token an instance does not know is left to the others, before that instance ends it as FAILED:
/// longer than it takes to give new tokens to all instances.
pub const BULK_TOKEN_UNKNOWN_MAX: Duration = Duration::from_secs(300);
/// How long an instance without room for an operation leaves one that others have left to those with room. Then it shows that it
/// knows its token, if it does.
pub const BULK_LEFT_MAX: Duration = Duration::from_secs(10);
/// For that it holds the operation for this long, and leaves it again. The others see twice meanwhile that it goes on.
pub const BULK_HELD_FOR: Duration = Duration::from_secs(10);
/// How long it then leaves the operation to those with room before it shows that again.
pub const BULK_SHOWN_EVERY: Duration = Duration::from_secs(120);
/// Between two purges of operations that were over long ago.
pub const BULK_PURGE_EVERY: Duration = Duration::from_secs(3_600);
/// Operations that one look purges, at most. Where there may be more, the next look goes on.
pub const BULK_PURGE_STEP: u32 = 1_000;
/// How long operations that are over are kept: 30 days.
pub const BULK_KEPT: Duration = Duration::from_secs(30 * 86_400);
/// Largest body of a plan, and of a retry with a corrected definition, in bytes. A plan with the most tasks has 16 KiB for
/// each.
pub const PLAN_BYTES_MAX: usize = 16 << 20;
/// Dry runs of retries of tasks at once, one of each token: each reads the whole plan of its task. Others wait.
pub const RETRY_DRY_RUNS_AT_ONCE: usize = 2;
/// Most tasks that somebody must look at in the answer for one plan.
pub const ATTENTION_TASKS_MAX: u32 = 100;
/// Most of them for each plan of a list.
pub const LISTED_ATTENTION_TASKS_MAX: u32 = 10;
/// Records of a page that are read at once where each may be large: tasks with their definitions, contexts, changes of pools.
pub const PIECE_RECORDS_MAX: u32 = 50;
/// Plans of a list that are looked up at once for a token with patterns: each may name a thousand tenants, and of a few the
/// definitions are read in a moment.
pub const PLANS_SEEN_AT_ONCE: usize = 10;
/// Records of a list that are read before it is known how large they are. Those of jobs with the longest errors and metadata
/// have 40 KiB each, so all of them are about as much as a page may have.
pub const PIECE_FIRST_MAX: u32 = 200;
/// Records of a list that are read at once at most, where the token sees few of those that were read before.
pub const PIECE_UNSEEN_MAX: u32 = 1_000;
/// Bytes that a record of a list takes in memory for what is never long: names, labels, numbers.
pub const LISTED_BYTES: usize = 2 << 10;
/// A page of tasks, checkpoints or events of plans, or of the audit, ends early behind the item with which it has so many bytes
/// of JSON; a page of another list behind the record with which it has so many in memory.
pub const SHOWN_PAGE_BYTES_MAX: usize = 8 << 20;
/// Sessions of one batch whose owners are asked at once.
pub const BATCH_SESSIONS_AT_ONCE: usize = 32;
/// Longest wait for a job's end, in milliseconds.
pub const JOB_WAIT_MS_MAX: u64 = 60_000;
/// How old the answer of a shared read may be, from the beginning of the read.
pub const SHARED_READ_AGE_MAX: Duration = Duration::from_secs(1);
/// Longest path and query of a shared read, in bytes.
pub const SHARED_READ_TARGET_BYTES_MAX: usize = 1_024;
/// Shared reads whose answers are kept. Callers with further ones read themselves.
pub const SHARED_READS_MAX: usize = 1_024;
/// Largest answer of a shared read that is kept, in bytes.
pub const SHARED_READ_BYTES_MAX: usize = 1 << 20;
/// Bytes of all answers that are kept.
pub const SHARED_READS_BYTES_MAX: usize = 32 << 20;
/// Streams of one job each that one instance serves.
pub const JOB_STREAMS_MAX: usize = 1_000;
/// Streams of one job each that one instance serves for one token.
pub const JOB_STREAMS_TOKEN_MAX: usize = 500;
/// Streams of all events that one instance serves: each open dashboard of an operator has one, and one that was left stays
/// until something is written to it.
pub const ALL_STREAMS_MAX: usize = 128;
/// Streams of all events that one instance serves for one token.
pub const ALL_STREAMS_TOKEN_MAX: usize = 64;
/// Events for streams of all events are gathered for so long after those that were sent last.
pub const EVENTS_GATHERED: Duration = Duration::from_millis(50);
/// A stream of digests gets one this often at most.
pub const DIGEST_EVERY: Duration = Duration::from_secs(1);
/// Bytes of events that are sent together, counted before the last event.
pub const EVENT_BATCH_BYTES_MAX: usize = 8 << 10;
/// Batches of events that wait for the slowest stream. It misses those before.
pub const EVENT_BATCHES_MAX: usize = 128;
/// Streams of one plan each that one instance serves. Each reads the ledger on its own.
pub const PLAN_STREAMS_MAX: usize = 100;
/// Streams of one plan each that one instance serves for one token.
pub const PLAN_STREAMS_TOKEN_MAX: usize = 50;
/// How often such a stream reads the ledger, in milliseconds.
pub const PLAN_EVENTS_EVERY_MS: u64 = 500;
/// Events that such a stream reads at once.
pub const PLAN_EVENTS_AT_ONCE: u32 = 100;
/// How long a client may leave an event unread before its stream ends.
pub const EVENT_TAKEN_MAX: Duration = Duration::from_secs(10);
/// How long a client of a stream that has ended waits before it asks again.
pub const STREAM_RETRY: Duration = Duration::from_secs(2);
/// A stream without events gets a comment line this often, so that its client knows that it is open.
pub const STREAM_SIGN_EVERY: Duration = Duration::from_secs(15);
/// Pings, pongs, and empty or small fragments that a socket's other side may send each second, on average.
pub const SOCKET_TRIFLES_PER_SECOND: u32 = 50;
/// Such frames that a socket's other side may send at once.
pub const SOCKET_TRIFLES_MAX: u32 = 500;
/// A fragment of a message with fewer bytes is small.
pub const SMALL_FRAGMENT_BYTES: u64 = 256;
/// Bytes of messages that wait for the other side of one socket, before the last message.
pub const SOCKET_UNREAD_BYTES_MAX: usize = 8 << 20;
/// How often a socket looks whether there is room for its next message.
pub const SOCKET_ROOM_EVERY: Duration = Duration::from_millis(100);
/// The pause before a session's results are read again for which there was no room.
pub const CLIENT_ROOM_PAUSE: Duration = Duration::from_millis(250);
/// How often a stream, and a request that waits for a job, looks whether its client's token is still good.
pub const TOKEN_LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the other side of a socket may leave a frame unread before the socket is closed.
pub const SOCKET_SEND_MAX: Duration = Duration::from_secs(10);
/// How long a closed socket waits for the other side to read the close frame and the data before it. As long
/// as the kernel keeps a connection whose other side reads nothing.
pub const SOCKET_CLOSE_MAX: Duration = Duration::from_secs(30);
/// Requests of lanes to one node that its socket handles at once.
pub const SOCKET_WISHES_MAX: usize = 1_000;
/// Frames for one node for which its socket keeps room when all are sent. Each takes some 200 bytes.
pub const SOCKET_FRAMES_KEPT: usize = 256;
/// The pause between two tries to register a node while the bus is away, before jitter.
pub const NODE_REGISTER_AGAIN: Duration = Duration::from_millis(500);

/// How long an answer to `drain` waits for the node's socket to apply it, and for the other instances to show it.
pub const DRAIN_SEEN_MAX: Duration = Duration::from_secs(3);
/// The delay before another instance is asked again whether it shows a change yet: half of the time for which news of nodes
/// are gathered.
pub const SHOWN_PAUSE: Duration = Duration::from_millis(5);
/// Frames of a session's client that are read before the jobs in them are on their way.
pub const CLIENT_FRAMES_MAX: usize = 256;
/// Bytes of payloads in those frames, counted before the last frame.
pub const CLIENT_FRAMES_BYTES_MAX: usize = 8 << 20;
/// Results that are read at once for a session's client.
pub const CLIENT_RESULTS_AT_ONCE: u32 = 100;
/// Notifications of finished jobs that wait to be read from the ledger.
pub const CLIENT_JOBS_KNOWN_MAX: usize = 100;
/// Jobs that a session's client has sent again and whose results it is still to get again. While there are so many, its
/// socket reads nothing.
pub const CLIENT_REPEATED_MAX: usize = 20_000;
/// How often the socket of a session with unfinished jobs reads the ledger, in case a notification was lost.
pub const CLIENT_LOOK_EVERY: Duration = Duration::from_secs(3);
/// How often the socket of a session without unfinished jobs reads the ledger.
pub const CLIENT_IDLE_LOOK_EVERY: Duration = Duration::from_secs(15);
/// How soon a session's socket reads the ledger again when it has read all for the first time: other instances may not have
/// heard yet that it listens.
pub const CLIENT_FIRST_PAUSE: Duration = Duration::from_millis(200);
/// How often the daemon pings a session's client.
pub const CLIENT_PING_EVERY: Duration = Duration::from_secs(15);
/// How often a session's socket looks whether its client may still be here.
pub const CLIENT_TICK: Duration = Duration::from_secs(1);
/// How long a body may still take to arrive once this instance stops.
pub const DRAINED_BODY_MAX: Duration = Duration::from_secs(5);
/// A session's client that sends nothing for this long counts as gone.
pub const CLIENT_SILENT_MAX: Duration = Duration::from_secs(45);
/// How long the daemon tries to bring a client's jobs to the session's owner.
pub const CLIENT_SUBMIT_FOR: Duration = Duration::from_secs(10);
/// The pause between two such tries, before jitter.
pub const CLIENT_SUBMIT_PAUSE: Duration = Duration::from_millis(200);

/// How much longer than a request's timeout the daemon waits for the answer to a forwarded request.
pub const FORWARD_SLACK: Duration = Duration::from_millis(500);
/// How long a request waits for an instance that was named and is not known yet. It becomes known with the
/// next renewal.
pub const ACQUAINTANCE_MAX: Duration = Duration::from_secs(2);
/// How long the other instances may take to say their rates for `/v1/stats`.
pub const STATS_ASKED_MAX: Duration = Duration::from_secs(1);
/// How long the other instances may take to say whose a node's id is, where the bus does not join all instances. The node waits
/// for its welcome meanwhile.
pub const CLAIM_ASKED_MAX: Duration = Duration::from_secs(3);
/// How old their rates may be: however many callers ask, they are asked once in this time.
pub const STATS_OF_OTHERS_AGE_MAX: Duration = Duration::from_secs(1);
/// How old the numbers of leases in `/v1/cluster` may be, at least, before they are counted anew.
pub const LEASE_COUNTS_AGE_MAX: Duration = Duration::from_secs(2);
/// These numbers may also be as old as so many times what the last count took.
pub const LEASE_COUNTS_PAUSES: u32 = 30;
/// The oldest that these numbers may be.
pub const LEASE_COUNTS_AGE_LIMIT: Duration = Duration::from_secs(300);
/// How long `/v1/cluster` waits for a count that is under way, before it answers with the last one.
pub const LEASE_COUNTS_WAIT_MAX: Duration = Duration::from_millis(100);
/// Leases that one statement counts: some 20 ms of the ledger's time, on the slow side.
pub const LEASES_COUNTED_AT_ONCE: u32 = 20_000;
/// How far the time of a forwarded request's credential may be from the database's clock, either way.
pub const CREDENTIAL_AGE_MAX: Duration = Duration::from_secs(30);
/// Requests that are being forwarded at once, unless settings say otherwise. Much smaller than the number of connections that
/// an instance accepts. One token may have half of them.
pub const FORWARDS_MAX: usize = 2_000;
/// How long requests go to the instance where a signer was last found, though the ring names another.
pub const HINT_AGE_MAX: Duration = Duration::from_secs(1);
/// Signers for which that is remembered. If there are more, all are forgotten.
pub const HINTS_MAX: usize = 100_000;
/// Instances that are leaving which a forwarded request names: they fit the head of a request.
pub const LEAVING_NAMED_MAX: usize = 16;
/// Outages of forwarded requests that the log has told: of instances, and of callers at them. If there are more, all are
/// forgotten.
pub const OUTAGES_MAX: usize = 1_000;
/// For how long no forwarded request has failed at an instance when its next answer ends the outage.
pub const OWNER_ANSWERS_AFTER: Duration = Duration::from_secs(60);
/// How many other instances an instance whose clock is wrong asks for one request's snowflakes.
pub const RIGHT_CLOCKS_ASKED_MAX: usize = 2;
/// How long such an instance asks the one that has served last before all others.
pub const RIGHT_CLOCK_AGE_MAX: Duration = Duration::from_secs(5);

const _: () =
    assert!(2 * EVENT_BATCH_BYTES_MAX <= UNCOUNTED_BYTES_MAX, "a batch of events needs no room of its own");
const _: () =
    assert!(BULK_PAGE_JOBS <= BULK_SCAN_ROWS_MIN, "a page is found in one statement where all jobs match");
const _: () = assert!(
    2 * (BULK_SHOWN_EVERY.as_secs() + BULK_HELD_FOR.as_secs() + BULK_LEFT_MAX.as_secs())
        < BULK_TOKEN_UNKNOWN_MAX.as_secs(),
    "an instance without room shows twice that it knows the token before the others end the operation"
);
const _: () =
    assert!(BULK_HELD_FOR.as_secs() >= 4 * BULK_LOOK_EVERY.as_secs(), "the others look twice meanwhile");
const _: () = assert!(BULKS_OF_TOKEN_AT_ONCE <= BULKS_AT_ONCE / 2);
const _: () = assert!(SHARED_READ_BYTES_MAX <= SHARED_READS_BYTES_MAX);
const _: () =
    assert!(CHUNKS_BYTES_AT_ONCE <= 2 * HEADS_BYTES_AT_ONCE, "behind the end of a body there may be heads");
const _: () = assert!(READING_BYTES_DEFAULT.of_token <= READING_BYTES_DEFAULT.in_all);
const _: () = assert!(SENDING_BYTES_DEFAULT.of_token <= SENDING_BYTES_DEFAULT.in_all);
const _: () = assert!(REQUESTS_DEFAULT.of_token <= REQUESTS_DEFAULT.in_all);
const _: () = assert!(SOCKETS_DEFAULT.of_token <= SOCKETS_DEFAULT.in_all);
const _: () = assert!(SOCKETS_DEFAULT.in_all <= CONNECTIONS_MAX_DEFAULT * SOCKETS_OF_TEN_CONNECTIONS / 10);
const _: () = assert!(READING_BYTES_DEFAULT.of_token >= BATCH_BYTES_MAX, "the largest body can be read");
const _: () =
    assert!(SENDING_BYTES_DEFAULT.of_token >= 2 * SHOWN_PAGE_BYTES_MAX, "the largest page can be sent");
const _: () = assert!(BATCH_BYTES_MAX <= actors::jobs::limits::SUBMISSION_BYTES_OF_TOKEN_MAX);
const _: () = assert!(RETRY_PART_BYTES + JOB_BYTES_MAX < actors::jobs::limits::SUBMISSION_BYTES_OF_TOKEN_MAX);
const _: () = assert!(
    RETRY_PART_BYTES + (RETRY_READS_AT_ONCE + 1) * JOB_BYTES_MAX <= BATCH_BYTES_MAX,
    "a part, and what is read ahead, are no more than a share for bodies that holds the largest one"
);
const _: () = assert!(SOCKET_UNREAD_BYTES_MAX >= wire::limits::MESSAGE_BYTES_MAX);
const _: () = assert!(JOB_STREAMS_MAX + ALL_STREAMS_MAX < actors::jobs::limits::WATCHED_TOPICS_MAX);
const _: () = assert!(CLIENT_FRAMES_BYTES_MAX + wire::limits::MESSAGE_BYTES_MAX < BATCH_BYTES_MAX / 2);
const _: () = assert!(CLIENT_FRAMES_MAX < wire::limits::BATCH_JOBS_MAX);
const _: () = assert!(
    CLIENT_REPEATED_MAX as u64 >= 2 * actors::jobs::limits::SESSION_JOBS_MAX,
    "some of so many jobs have ended: their results make room"
);
const _: () = assert!(wire::limits::CLIENT_REF_CHARS_MAX == domain::limits::IDEMPOTENCY_KEY_CHARS_MAX);
const _: () = assert!(wire::limits::HELLO_WITHIN_MS == nodes::limits::HELLO_MS);
const _: () = assert!(wire::limits::CHECKPOINT_VERSION_MAX == domain::limits::CHECKPOINTS_MAX as u64);
const _: () =
    assert!(wire::limits::BACKOFF_FACTOR_MAX * 100 == domain::limits::BACKOFF_FACTOR_PERCENT_MAX as u64);
const _: () = assert!(
    // 36 characters of hold, 20 of nonce, and every character of the rest escaped at worst.
    BODY_BYTES_MAX_DEFAULT
        > wire::limits::SETTLEMENTS_MAX
            * (2 * wire::limits::HOLD_CHARS_MAX + 2 * wire::limits::TX_HASH_CHARS_MAX + 128),
    "the largest legal request must fit the default body"
);

/// What the API says of a limit is what the domain decides by.
macro_rules! same_in_domain {
    ($($name:ident $(as $number:ty)?),+ $(,)?) => {
        $(const _: () = assert!(wire::limits::$name == domain::limits::$name $(as $number)?);)+
    };
}

same_in_domain! {
    SIGNER_ID_CHARS_MAX,
    CANARY_SIGNERS_MAX,
    GRANT_NONCES_MAX as u64,
    SETTLEMENTS_MAX,
    HOLD_MS_MIN,
    HOLD_MS_MAX,
    NONCE_MAX,
    MAX_IN_FLIGHT_MAX,
    TX_HASH_CHARS_MAX,
    IDEMPOTENCY_KEY_CHARS_MAX,
    SESSION_IDLE_MS_MIN,
    SESSION_IDLE_MS_MAX,
    SESSION_ID_CHARS_MAX,
    TENANT_ID_CHARS_MAX,
    NODE_ID_CHARS_MAX,
    POOL_NAME_CHARS_MAX,
    JOB_KIND_CHARS_MAX,
    LABEL_CHARS_MAX,
    LANGUAGE_CHARS_MAX,
    SEGMENT_TAG_CHARS_MAX,
    SEQUENCE_NAME_CHARS_MAX,
    ID_BATCH_MAX as u64,
    ID_NUMBER_MAX,
    SEGMENT_STEP_MAX,
    SEGMENT_DESCRIPTION_BYTES_MAX,
    SEQUENCE_INCREMENT_MAX,
    PAYLOAD_BYTES_MAX,
    BATCH_JOBS_MAX,
    JOB_LABELS_MAX,
    DELAY_MS_MAX,
    JOB_TIMEOUT_MS_MIN,
    JOB_TIMEOUT_MS_MAX,
    BACKOFF_MS_MAX,
    PROGRESS_NOTE_CHARS_MAX,
    NODE_LABELS_MAX,
    NODE_POOLS_MAX,
    POOLS_MAX,
    POOL_ROUTES_MAX,
    PLAN_TASKS_MAX,
    PLAN_STAGES_MAX,
    PLAN_CONCURRENCY_MAX as u64,
    PLAN_NAME_CHARS_MAX,
    PLAN_TIMEOUT_MS_MAX,
    TASK_CONFIG_BYTES_MAX,
    CONTEXT_BYTES_MAX,
    TASK_RUNS_MAX as u64,
    PRIORITY_MIN as i64,
    PRIORITY_MAX as i64,
    MAX_ATTEMPTS_MAX as u64,
    NODE_CAPACITY_MAX as u64,
    POOL_WEIGHT_MAX as u64,
}
