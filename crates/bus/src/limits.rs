//! Every limit of the bus, by name, with its unit last. Relations between them are asserted at the foot.

/// Longest key prefix, in characters.
pub const KEY_PREFIX_CHARS_MAX: usize = 64;
/// Largest notice, in bytes.
pub const NOTICE_BYTES_MAX: usize = 64 * 1024;
/// Notices that wait for a slow subscriber. Beyond that the oldest are lost to it, and it is told.
pub const SUBSCRIPTION_NOTICES_MAX: usize = 512;
/// Largest presence record, in bytes of JSON.
pub const PRESENCE_BYTES_MAX: usize = 4 * 1024;
/// Longest time that a presence may be announced for, in milliseconds.
pub const PRESENCE_TTL_MS_MAX: u64 = 3_600_000;
/// Questions of one [`crate::Bus::present`] that are under way at once.
pub const PRESENCE_READS_MAX: usize = 128;
/// Hosts that a Redis URL may name.
pub const HOSTS_MAX: usize = 64;

/// Mean time between two probes of the link, in milliseconds. Each sends one small message to itself.
pub const PROBE_MS: u64 = 500;
/// A probe that is published and not heard within this time condemns the listening connection, in milliseconds.
pub const ECHO_MS: u64 = 1_500;
/// Longest time to open one connection, its handshake included, in milliseconds.
pub const CONNECT_MS: u64 = 2_000;
/// Mean pause before a connection is tried again, in milliseconds: doubled each time, up to the second.
pub const RECONNECT_PAUSE_MS: u64 = 50;
/// Longest mean pause before a connection is tried again, in milliseconds.
pub const RECONNECT_PAUSE_MS_MAX: u64 = 2_000;
/// A connection that lived for so long is tried again with the shortest pause, in milliseconds.
pub const RECONNECT_SETTLED_MS: u64 = 5_000;
/// Shortest time between two renewals of what is known of a Cluster after commands failed, in milliseconds.
pub const CLUSTER_REMAKE_MS: u64 = 1_000;
/// Probes after which the addresses of a Cluster's servers are asked for again.
pub const CLUSTER_SERVERS_PROBES: u32 = 20;
/// Servers of a Cluster that are remembered to connect to.
pub const CLUSTER_SERVERS_MAX: usize = 1_000;
/// A command to a Cluster is sent again so often within its time, after a redirection or a lost server.
pub const CLUSTER_RETRIES: u32 = 4;

const _: () = assert!(NOTICE_BYTES_MAX * SUBSCRIPTION_NOTICES_MAX <= 32 << 20, "32 MiB per channel at most");
const _: () = assert!(RECONNECT_PAUSE_MS < RECONNECT_PAUSE_MS_MAX);
const _: () = assert!(RECONNECT_SETTLED_MS > RECONNECT_PAUSE_MS_MAX);
const _: () = assert!(ECHO_MS > PROBE_MS);
