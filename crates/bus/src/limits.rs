//! Every limit of the bus, by name, with its unit last. Relations between them are asserted at the end.

use std::time::Duration;

use domain::Invalid;

use crate::{Error, Result};

/// Longest key prefix, in characters.
pub const KEY_PREFIX_CHARS_MAX: usize = 64;
/// Largest notice, in bytes.
pub const NOTICE_BYTES_MAX: usize = 64 * 1024;
/// Notices that wait for a slow subscriber. Beyond that it loses the oldest, and learns that it did.
pub const SUBSCRIPTION_NOTICES_MAX: usize = 512;
/// Largest presence record, in bytes of JSON.
pub const PRESENCE_BYTES_MAX: usize = 4 * 1024;
/// Longest time that a presence may be announced for, in milliseconds.
pub const PRESENCE_TTL_MS_MAX: u64 = 3_600_000;
/// Reads of one [`crate::Bus::present`] that are under way at once.
pub const PRESENCE_READS_MAX: usize = 128;

/// Largest entry of an inbox, in bytes. Entries name jobs; what a job carries is never among them.
pub const INBOX_ENTRY_BYTES_MAX: usize = 1 << 20;
/// Entries that one inbox holds. Further ones are refused to their senders.
pub const INBOX_ENTRIES_MAX: usize = 10_000;
/// Entries that one call sends.
pub const INBOX_SEND_ENTRIES_MAX: usize = 500;
/// Bytes that one call sends, in all its entries together.
pub const INBOX_SEND_BYTES_MAX: usize = 8 << 20;
/// Entries that are read at once, by an owner or by a survivor.
pub const INBOX_BATCH_ENTRIES_MAX: usize = 48;
/// Entries that one call settles.
pub const INBOX_SETTLE_ENTRIES_MAX: usize = 1_000;
/// Advised time after which an entry that was delivered and not settled is delivered again, in milliseconds.
pub const INBOX_IDLE_MS_DEFAULT: u64 = 30_000;
/// Longest such time, in milliseconds.
pub const INBOX_IDLE_MS_MAX: u64 = 3_600_000;
/// How long one read of an empty inbox waits at the server, in milliseconds.
pub const INBOX_BLOCK_MS: u64 = 1_000;
/// How long an inbox stays that nobody reads, sends to or settles, in milliseconds: one day. Nobody closes the inbox of an
/// instance that was alone, or that was forgotten before a survivor could close it.
pub const INBOX_UNUSED_MS: u64 = 86_400_000;
/// How long the bus remembers that an inbox was closed, in milliseconds: one day. An owner that was paused
/// for longer opens an inbox to which no instance sends.
pub const INBOX_CLOSED_MS: u64 = 86_400_000;

/// Longest time until a node's record expires without a write of its holder, in milliseconds.
pub const NODE_TTL_MS_MAX: u64 = 3_600_000;
/// A connection that is older than the other one by more than this does not take the node over, in
/// milliseconds. Messages about the connections' ages are delayed by less than this. Of two whose ages differ by less, the one
/// that took the node over last keeps it; one that is older than this when it comes for the first time takes no node from a
/// younger one.
pub const NODE_YOUNGER_MS: u64 = 2_000;
/// Largest document of a node, in bytes.
pub const NODE_DOCUMENT_BYTES_MAX: usize = 32 * 1024;
/// Slots that one call names. A node may list more than its capacity: results that wait to be committed count too.
pub const NODE_SLOTS_MAX: usize = 2 * domain::limits::NODE_CAPACITY_MAX as usize;
/// Longest reservation of a slot, in milliseconds.
pub const RESERVATION_MS_MAX: u64 = 600_000;
/// Reads of one [`crate::Nodes::show_nodes`] that are under way at once.
pub const NODE_READS_MAX: usize = 128;
/// Nodes that one instance's list names. Beyond that some are left out.
pub const NODES_LISTED_MAX: usize = 50_000;
/// Nodes that one call adds to a list, changes in it and takes out of it.
pub const NODES_LIST_MAX: usize = 1_000;
/// Lists of [`crate::Nodes::listed_nodes`] that are read at once.
pub const NODE_LISTS_READ_MAX: usize = 16;

/// Longest time until a session's binding expires if it is not renewed, in milliseconds: a week.
pub const SESSION_TTL_MS_MAX: u64 = 7 * 86_400_000;
/// How often the bus within the process removes expired records of nodes, in milliseconds.
pub const NODES_SWEEP_MS: u64 = 30_000;
/// How often the bus within the process removes expired bindings, in milliseconds.
pub const SESSIONS_SWEEP_MS: u64 = 30_000;

/// Hosts that a Redis URL may name.
pub const HOSTS_MAX: usize = 64;

/// Mean time between two probes of the link, in milliseconds. Each writes a small key and sends one small message to itself.
pub const PROBE_MS: u64 = 500;
/// How long a key that a probe wrote stays, in milliseconds.
pub const PROBE_KEY_MS: u64 = 1_000;
/// Probes after which each call that Fencepost needs is tried again while the link is up. While it is down, every probe tries
/// them.
pub const CALLS_TRIED_PROBES: u32 = 10;
/// Hash slots of a Redis Cluster: as many as Redis has.
pub const CLUSTER_SLOTS: u16 = 16_384;
/// Keys among which a probe of a Cluster looks for one of each master, and for one that no master has where they do not have all
/// slots: four for each slot.
pub const MASTER_KEYS_TRIED_MAX: usize = 1 << 16;
/// A connection that goes down again so soon after it came back, in milliseconds, is on trial when it comes back once more: it
/// counts as down until it was well for a while.
pub const LINK_AGAIN_MS: u64 = 10_000;
/// The first such trial, in milliseconds: of several probes. Each further one takes twice as long, up to
/// [`LINK_TRIAL_MS_MAX`].
pub const LINK_TRIAL_MS_MIN: u64 = 2_000;
/// The longest such trial, in milliseconds.
pub const LINK_TRIAL_MS_MAX: u64 = 8_000;
/// If a published probe does not come back within this time, the listening connection is dropped, in
/// milliseconds.
pub const ECHO_MS: u64 = 1_500;
/// Longest time to open one connection, its handshake included, in milliseconds.
pub const CONNECT_MS: u64 = 2_000;
/// How long a server that has lost a new connection is given to say why to another one, in milliseconds.
pub const FIRST_WORDS_MS: u64 = 250;
/// How much of that is read, in bytes.
pub const FIRST_WORDS_BYTES_MAX: u64 = 512;
/// Mean pause before a connection is tried again, in milliseconds: doubled each time, up to the second.
pub const RECONNECT_PAUSE_MS: u64 = 50;
/// Longest mean pause before a connection is tried again, in milliseconds.
pub const RECONNECT_PAUSE_MS_MAX: u64 = 2_000;
/// After a connection that lasted this long, the next pause is the shortest one again, in milliseconds.
pub const RECONNECT_SETTLED_MS: u64 = 5_000;
/// Shortest time between two connections made in place of one that is not lost, after commands failed, in milliseconds.
pub const REMAKE_MS: u64 = 1_000;
/// Probes after which the addresses of a Cluster's servers are asked for again.
pub const CLUSTER_SERVERS_PROBES: u32 = 20;
/// Addresses of a Cluster's servers that are remembered.
pub const CLUSTER_SERVERS_MAX: usize = 1_000;
/// How often a command to a Cluster is sent again within its time, after a redirection or a lost server.
pub const CLUSTER_RETRIES: u32 = 4;
/// How long it counts that a write to a Cluster was refused at last, in milliseconds: for so long nobody serves its hash slot,
/// unless a server there answers. The holder of a node writes more often.
pub const REFUSAL_MS: u64 = 15_000;

/// How long writes in a hash slot of a Cluster are refused before it is looked whether its move to another master was left half
/// done, in milliseconds: longer than such a move takes.
pub const REFUSED_LONG_MS: u64 = 5_000;
/// Hash slots that are half moved and that are named.
pub const HALF_MOVED_NAMED_MAX: usize = 8;

const _: () = assert!(NOTICE_BYTES_MAX * SUBSCRIPTION_NOTICES_MAX <= 32 << 20, "32 MiB per channel at most");
const _: () = assert!(INBOX_ENTRY_BYTES_MAX <= INBOX_SEND_BYTES_MAX, "whatever may be an entry can be sent");
const _: () = assert!(INBOX_SEND_ENTRIES_MAX <= INBOX_ENTRIES_MAX, "an empty inbox takes a whole call");
const _: () =
    assert!(INBOX_BATCH_ENTRIES_MAX <= INBOX_SETTLE_ENTRIES_MAX, "what was read is settled at once");
const _: () =
    assert!(INBOX_BATCH_ENTRIES_MAX * INBOX_ENTRY_BYTES_MAX <= 48 << 20, "48 MiB per batch at most");
const _: () =
    assert!(INBOX_IDLE_MS_MAX / 2 * 10 < INBOX_UNUSED_MS, "a reader's looks for idle entries keep it");
const _: () = assert!(RECONNECT_PAUSE_MS < RECONNECT_PAUSE_MS_MAX);
const _: () = assert!(RECONNECT_SETTLED_MS > RECONNECT_PAUSE_MS_MAX);
const _: () = assert!(ECHO_MS > PROBE_MS);
const _: () = assert!(LINK_TRIAL_MS_MIN > 2 * PROBE_MS, "one good probe is no trial");
const _: () =
    assert!(REFUSED_LONG_MS < REFUSAL_MS, "a slot in which one write was refused is not refused for long");

/// Refuses more of something than is allowed.
pub(crate) fn check_count(what: &'static str, count: usize, count_max: usize) -> Result<()> {
    if count > count_max {
        return Err(Invalid { what, expected: format!("at most {count_max}") }.into());
    }
    Ok(())
}

/// Refuses what is too large.
pub(crate) fn check_bytes(what: &'static str, bytes: usize, bytes_max: usize) -> Result<()> {
    if bytes > bytes_max { Err(Error::TooLarge { what, bytes, bytes_max }) } else { Ok(()) }
}

/// A length of time in milliseconds, if it is one at least and within its limit.
pub(crate) fn check_ms(what: &'static str, length: Duration, ms_max: u64) -> Result<u64> {
    let ms = u64::try_from(length.as_millis()).ok().filter(|ms| (1..=ms_max).contains(ms));
    ms.ok_or_else(|| Invalid { what, expected: format!("1 to {ms_max} ms") }.into())
}
