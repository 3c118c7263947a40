//! Every limit of this crate, by name, with its unit last. Relations between them are asserted at the end.

use std::time::Duration;

use domain::limits::{
    LABEL_CHARS_MAX, NODE_ID_CHARS_MAX, NODE_LABELS_MAX, NODE_POOLS_MAX, POOL_NAME_CHARS_MAX,
};

/// Nodes that one registry knows, those included that left a short while ago. Further ones are ignored; the sockets of such nodes
/// are closed.
pub const NODES_MAX: usize = 50_000;
/// Nodes that left which are forgotten at once to make room for others, the first of them.
pub const LEFT_FORGOTTEN_AT_ONCE: usize = 500;
/// Where none has left, how long nobody looks for such nodes again, in milliseconds.
pub const FULL_MS: u64 = 1_000;
/// Largest document of a node, in bytes of JSON.
pub const DOCUMENT_BYTES_MAX: usize = 32 * 1024;
/// Longest name of a node's software that is kept, in characters; the rest is cut off.
pub const SOFTWARE_CHARS_MAX: usize = 128;
/// Labels that one pool may require.
pub const POOL_LABELS_MAX: usize = 16;

/// Shortest time between two heartbeats, in milliseconds.
pub const HEARTBEAT_MS_MIN: u64 = 1_000;
/// Longest time between two heartbeats, in milliseconds.
pub const HEARTBEAT_MS_MAX: u64 = 5_000;
/// Shortest time that a node may take to acknowledge an attempt, in milliseconds.
pub const ACK_MS_MIN: u64 = 1_000;
/// Shortest time without an update after which a node is offline, in milliseconds.
pub const OFFLINE_MS_MIN: u64 = 4_000;
/// How long after a write has ceased to vouch for a node's record its holder still grants no slots itself, in
/// milliseconds: a margin for clocks that drift.
pub const VOUCHED_MARGIN_MS: u64 = 500;
/// How long the bus gives a node's slots after another instance has wanted one, in milliseconds; then it lends them to the
/// node's holder again.
pub const SHARED_MS: u64 = 10_000;
/// Heartbeats of a node after which a write of its record lists all slots that are taken, though no call to the bus failed.
/// They take less time than a write vouches for.
pub const LISTED_HEARTBEATS: u32 = 2;
/// Dispatches in a row that a node may leave without an answer before it gets no new work.
pub const UNACKNOWLEDGED_MAX: u32 = 3;
/// The first frame of a connection comes within this time, in milliseconds.
pub const HELLO_MS: u64 = 5_000;
/// Results of one connection that wait for its node to be registered, in bytes: with their text. Beyond that the connection ends,
/// and the node sends them again when it is welcomed on its next one.
pub const EARLY_RESULTS_BYTES_MAX: usize = 8 << 20;
/// Attempts that one connection remembers as answered until the node's heartbeat shows that it has heard the
/// answer; and as many as called off before the node answered. Beyond that the oldest are forgotten.
pub const ANSWERED_MAX: usize = 16_384;

/// Changes in one notice to the other instances.
pub const NODE_UPDATES_MAX: usize = 200;
/// How long changes are gathered before they are published together, in milliseconds.
pub const NODE_UPDATES_GATHERED_MS: u64 = 10;
/// Records read from the bus at once.
pub const RECORDS_READ_MAX: usize = 100;
/// Records that one comparison of versions reads although their listed versions are known: those of the nodes
/// without an update for the longest time.
pub const RECORDS_COMPARED_MAX: usize = 1_000;
/// Mean time between two comparisons of versions, in milliseconds.
pub const COMPARISON_MS: u64 = 1_000;
/// Mean time between two changes of the list of this instance's own nodes, in milliseconds.
pub const LISTING_MS: u64 = 1_000;
/// Mean time between two reads of other instances' nodes that were found full, in milliseconds. A node that
/// was updated meanwhile is not read.
pub const FULL_LOOK_MS: u64 = 200;
/// Mean time between two reads of the instances' presence, in milliseconds.
pub const PRESENCE_LOOK_MS: u64 = 500;
/// An instance without presence for this long counts as absent, in milliseconds. It is longer than the time
/// between two announcements, so that no instance counts as absent when the bus has lost its data.
pub const ABSENT_AFTER_MS: u64 = 1_500;
/// A record that the bus loses again so soon after it was rewritten, in milliseconds, is rewritten after a pause: the bus may
/// drop what is written at once, as one that evicts keys does.
pub const LOST_AGAIN_MS: u64 = 10_000;
/// Pause before a failed read or publication is tried again, in milliseconds.
pub const RETRY_PAUSE_MS: u64 = 500;
/// Shortest time between two rebuilds of the index, in milliseconds.
pub const INDEX_PAUSE_MS: u64 = 50;
/// Ended connections of nodes that wait for a slow subscriber. Beyond that it loses the oldest, and learns
/// that it did.
pub const DEPARTURES_MAX: usize = 1_024;
/// Changes of nodes that wait for a slow subscriber. Beyond that it loses the oldest, and learns that it did.
pub const CHANGES_MAX: usize = 4_096;
/// One in this many selections is timed.
pub const SELECTIONS_PER_SAMPLE: u64 = 64;
/// Nodes of one pool that one selection tries when other selections take each node's last slot first.
pub const CLAIMS_MAX: usize = 64;

/// How long a node may be silent before it has missed two heartbeats: two and a half heartbeats' time.
#[must_use]
pub const fn silence_max(heartbeat_ms: u64) -> Duration {
    Duration::from_millis(heartbeat_ms * 5 / 2)
}

/// How long a node that still sends here is registered again while another connection has its record: longer than it takes
/// until a connection that the node has left is found silent.
#[must_use]
pub const fn contested_max(heartbeat_ms: u64) -> Duration {
    Duration::from_millis(heartbeat_ms * 5 / 2 + 3_000)
}

/// How long a node that left is remembered, so that a late update of its ended connection does not bring it back.
#[must_use]
pub fn left_remembered(offline: Duration) -> Duration {
    offline * 2
}

const _: () = assert!(HEARTBEAT_MS_MIN < HEARTBEAT_MS_MAX);
const _: () = assert!(NODES_MAX <= bus::limits::NODES_LISTED_MAX);
const _: () = assert!(DOCUMENT_BYTES_MAX <= bus::limits::NODE_DOCUMENT_BYTES_MAX);
const _: () = assert!(
    silence_max(HEARTBEAT_MS_MAX).as_millis() < bus::limits::REFUSAL_MS as u128,
    "a holder whose writes are refused knows it from one to the next"
);
const _: () = assert!(LISTING_MS * 2 < OFFLINE_MS_MIN, "a listing is renewed before it ends");
const _: () = assert!(PRESENCE_LOOK_MS * 2 < ABSENT_AFTER_MS, "one look is no evidence");
const _: () = assert!(
    NODE_LABELS_MAX * (LABEL_CHARS_MAX + 3 + 4) + NODE_POOLS_MAX * (POOL_NAME_CHARS_MAX + 3) + 2_048
        <= DOCUMENT_BYTES_MAX,
    "every node that is allowed has a document that is allowed"
);
const _: () = assert!(NODE_UPDATES_MAX * (NODE_ID_CHARS_MAX + 192) <= bus::limits::NOTICE_BYTES_MAX);
