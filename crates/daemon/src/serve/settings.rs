//! What each part is given of the configuration, which was checked.

use std::time::Duration;

use actors::jobs::{self, LaneConfig};
use actors::plans::{self, PlanConfig};
use actors::signers::{self, Limits, UpkeepSettings};
use api::limits::{BULK_SCANS_AT_ONCE, FORWARDS_MAX, Limit, SOCKETS_OF_TEN_CONNECTIONS};
use api::{Auth, OnMisroute, Scope, Sees, Settings, Token};
use domain::{Names, Pattern};

use crate::config::{AuthToken, Config};
use crate::process::{self, Connections};

/// Signers that one look for overdue holds reads: some 5 ms of the ledger's time.
const LOOK_SIGNERS: u32 = 1_000;
/// How long a sweep may look through signers that have no overdue holds: a hundred thousand of them in a few seconds, for at most
/// a quarter of a connection's time.
const LOOK_FOR_MAX: Duration = Duration::from_millis(250);

/// What the owners of signers are given.
pub fn signers(config: &Config) -> Limits {
    Limits {
        lease: Duration::from_millis(config.lease.signer_ms),
        hold_ms: config.nonce.hold_ms,
        lease_wait: Duration::from_millis(config.basic.lease_wait_ms),
        lease_kept_max: Duration::from_millis(config.basic.lease_kept_max_ms),
        idle: Duration::from_millis(config.worker_queue.idle_ms),
        request_timeout: Duration::from_millis(config.server.request_timeout_ms),
        queue_max: size(config.nonce.queue_max),
        in_flight_max: size(config.nonce.in_flight_max),
    }
}

/// What the lanes are given.
pub fn lanes(config: &Config) -> LaneConfig {
    LaneConfig {
        lease: Duration::from_millis(config.lease.signer_ms),
        request_timeout: Duration::from_millis(config.server.request_timeout_ms),
        retention: Duration::from_millis(config.jobs.retention_ms),
        purge_every: jobs::limits::PURGE_EVERY,
    }
}

/// What the owners of plans are given.
pub fn plans(config: &Config) -> PlanConfig {
    PlanConfig {
        request_timeout: Duration::from_millis(config.server.request_timeout_ms),
        retention: Duration::from_millis(config.plans.retention_ms),
        purge_every: plans::PURGE_EVERY,
        owned_bytes_max: plans::OWNED_PLANS_BYTES_MAX,
        lock: Duration::from_millis(config.plans.lock_ms),
    }
}

/// What the upkeep is given.
pub fn upkeep(config: &Config) -> UpkeepSettings {
    UpkeepSettings {
        sweep_every: Duration::from_millis(config.nonce.sweep_interval_ms),
        look_signers: LOOK_SIGNERS,
        look_for: Duration::from_millis(config.nonce.sweep_interval_ms / 4).min(LOOK_FOR_MAX),
        sweep_signers_max: size(config.nonce.sweep_signers_max),
        purge_every: signers::PURGE_EVERY,
        keep_keys: Duration::from_millis(config.nonce.key_retention_ms),
        keep_instances: Duration::from_millis(config.lease.instance_retention_ms),
        keep_audits: Duration::from_millis(config.audit.retention_ms),
    }
}

/// What the API is given.
pub fn api(config: &Config) -> Settings {
    let mut settings = Settings::new(auth(config));
    let server = &config.server;
    if server.workers > 0 {
        settings.workers = size(server.workers);
    }
    settings.on_misroute = OnMisroute::ALL
        .into_iter()
        .find(|on_misroute| on_misroute.as_str() == config.worker_queue.on_misroute)
        .expect("it is checked");
    settings.body_bytes_max = size(server.body_bytes_max);
    let room = process::connections(wanted_connections(config), ledger_descriptors(config));
    settings.connections_max = size(room.callers);
    settings.forwards_max = size(room.forwards);
    let limit = |in_all: u64, of_token: u64| Limit { in_all: size(in_all), of_token: size(of_token) };
    settings.reading_bytes = limit(server.reading_bytes_max, server.caller_reading_bytes_max);
    settings.sending_bytes = limit(server.sending_bytes_max, server.caller_sending_bytes_max);
    settings.requests = limit(server.requests_max, server.caller_requests_max);
    let sockets = size(server.sockets_max).min(most_sockets(settings.connections_max));
    settings.sockets = Limit { in_all: sockets, of_token: size(server.caller_sockets_max).min(sockets) };
    settings.client_request_timeout = Duration::from_millis(server.receive_timeout_ms);
    settings.request_timeout = Duration::from_millis(server.request_timeout_ms);
    settings.caller_sessions_max =
        u32::try_from(config.jobs.caller_sessions_max).expect("its range is checked");
    settings.caller_signers_max = size(config.nonce.caller_signers_max);
    settings.caller_keys_max = server.caller_keys_max;
    settings.node_grace = Duration::from_millis(config.jobs.node_grace_ms);
    settings.bulk_scans_at_once = bulk_scans_at_once(config.ledger.connections_max);
    settings
}

/// Half at most of the connections that serve lists, and on PostgreSQL writes, which are half of so many. Counts of jobs take
/// another quarter.
fn bulk_scans_at_once(connections_max: u64) -> usize {
    size((connections_max - connections_max / 2) / 2).clamp(1, BULK_SCANS_AT_ONCE)
}

/// The connections for which there should be room.
fn wanted_connections(config: &Config) -> Connections {
    // An instance on SQLite is alone, and forwards nothing.
    let forwards = if config.ledger.is_sqlite() { 1 } else { FORWARDS_MAX as u64 };
    Connections { callers: config.server.connections_max, forwards }
}

/// How many descriptors the connections to the ledger need.
pub fn ledger_descriptors(config: &Config) -> u64 {
    // SQLite has the database, its log and that one's index open.
    let of_each = if config.ledger.is_sqlite() { 3 } else { 1 };
    config.ledger.connections_max * of_each
}

/// How many of so many connections may be sockets.
fn most_sockets(connections: usize) -> usize {
    (connections / 10 * SOCKETS_OF_TEN_CONNECTIONS + connections % 10 * SOCKETS_OF_TEN_CONNECTIONS / 10)
        .max(1)
}

fn auth(config: &Config) -> Auth {
    if config.auth.tokens.is_empty() {
        return Auth::open();
    }
    Auth::tokens(tokens(config))
}

/// The configured tokens, which were checked.
pub fn tokens(config: &Config) -> Vec<Token> {
    let names = |patterns: &Option<Vec<String>>| match patterns {
        None => Names::All,
        Some(texts) => Names::Some(
            texts.iter().map(|text| Pattern::parse(text).expect("patterns are checked")).collect(),
        ),
    };
    let token = |entry: &AuthToken| Token {
        name: entry.name.clone(),
        digests: entry.digests().expect("digests are checked"),
        scopes: entry.scopes.iter().map(|text| Scope::parse(text).expect("scopes are checked")).collect(),
        sees: Sees {
            tenants: names(&entry.tenants),
            signers: names(&entry.signers),
            pools: names(&entry.pools),
            nodes: names(&entry.nodes),
        },
        expires_at: entry.expiry().expect("times are checked"),
    };
    config.auth.tokens.iter().map(token).collect()
}

/// A configured number as a size in memory. Its range, checked before, fits any machine.
fn size(number: u64) -> usize {
    usize::try_from(number).expect("its range is checked")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_that_is_alone_keeps_no_room_for_forwards() {
        let forwards_on = |url: &str| {
            let mut config = Config::default();
            config.ledger.url = url.to_owned();
            wanted_connections(&config).forwards
        };
        assert_eq!(forwards_on("sqlite:./ledger.db"), 1);
        assert_eq!(forwards_on("postgres://localhost/fencepost"), FORWARDS_MAX as u64);
    }

    #[test]
    fn bulk_operations_that_look_for_jobs_leave_connections_to_all_others() {
        let mut config = Config::default();
        let scans = [2, 4, 8, 15, 16, 500].map(|connections_max| {
            config.ledger.connections_max = connections_max;
            api(&config).bulk_scans_at_once
        });
        assert_eq!(scans, [1, 1, 2, 4, 4, 4]);
    }

    #[test]
    fn each_retention_of_the_configuration_reaches_its_part() {
        let mut config = Config::default();
        config.jobs.retention_ms = 3_600_001;
        config.plans.retention_ms = 3_600_002;
        config.nonce.key_retention_ms = 3_600_003;
        config.lease.instance_retention_ms = 3_600_004;
        config.audit.retention_ms = 86_400_001;
        let of_upkeep = upkeep(&config);
        let kept = [
            lanes(&config).retention,
            plans(&config).retention,
            of_upkeep.keep_keys,
            of_upkeep.keep_instances,
            of_upkeep.keep_audits,
        ];
        let expected = [3_600_001, 3_600_002, 3_600_003, 3_600_004, 86_400_001];
        assert_eq!(kept.map(|kept| kept.as_millis()), expected);
        let often = [lanes(&config).purge_every, plans(&config).purge_every, of_upkeep.purge_every];
        assert!(often.iter().all(|every| *every <= Duration::from_secs(60)), "{often:?}");
        config.plans.lock_ms = 3_600_005;
        assert_eq!(plans(&config).lock.as_millis(), 3_600_005);
    }
}
