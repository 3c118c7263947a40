//! The configuration: its keys, its three layers, and the checks that a start depends on.
//!
//! Options beat environment beats file beats defaults. Each layer is checked by itself, so that a message can
//! name the option, the variable or the file that must be corrected. What must never live here: a secret on
//! its way out. Whatever is shown goes through `redact`.

mod check;
pub mod encryption;
mod exposed;
mod layers;
mod limits;
mod problem;
pub mod redact;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use domain::limits::{HOLD_MS_DEFAULT, ID_FIVE_BITS_MAX};
use domain::{NodeTimeouts, Timestamp, WorkerNumber};
use ids::limits::{CLOCK_SKEW_MS_DEFAULT, EPOCH_MS_DEFAULT, LEAD_MS_DEFAULT, WORKER_LEASE_MS_DEFAULT};
use ids::snowflake::Choice;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use url::{Host, Url};

pub use check::{other_ledger, other_tokens, short_keys, token_name, unused_parameters, weak_tokens};
pub use exposed::exposed_files;
pub use layers::{Options, Sources, changed_keys};
use limits as l;
pub use limits::{NODE_NAME_CHARS_MAX, SCOPES, SNOWFLAKES_AHEAD_MS_MAX};
pub use problem::Refused;

/// The whole configuration. Every key has a default and stands in `config/fencepost.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub mode: String,
    pub server: Server,
    pub ledger: Ledger,
    pub bus: Bus,
    pub cluster: Cluster,
    pub lease: Lease,
    pub basic: Basic,
    pub worker_queue: WorkerQueue,
    pub nonce: Nonce,
    pub jobs: Jobs,
    pub nodes: Nodes,
    pub plans: Plans,
    pub ids: Ids,
    pub audit: Audit,
    pub auth: Auth,
    pub log: Log,
    pub traces: Traces,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: l::MODE_DEFAULT.to_owned(),
            server: Server::default(),
            ledger: Ledger::default(),
            bus: Bus::default(),
            cluster: Cluster::default(),
            lease: Lease::default(),
            basic: Basic::default(),
            worker_queue: WorkerQueue::default(),
            nonce: Nonce::default(),
            jobs: Jobs::default(),
            nodes: Nodes::default(),
            plans: Plans::default(),
            ids: Ids::default(),
            audit: Audit::default(),
            auth: Auth::default(),
            log: Log::default(),
            traces: Traces::default(),
        }
    }
}

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The effective values.
    pub config: Config,
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// Which option, variable or file each key's value came from; defaults are not listed.
    pub origins: BTreeMap<String, String>,
    /// The ledger that the file names, if a variable names another one that is used; may hold a password.
    pub overridden_ledger: Option<String>,
    /// Whether the file has tokens, and a variable has others, which are used.
    pub overridden_tokens: bool,
}

impl Loaded {
    /// Where a key's value came from, if it is not the default.
    pub fn origin(&self, key: &str) -> Option<&str> {
        self.origins.get(key).map(String::as_str)
    }
}

/// Where requests come in.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// Address and port; port 0 takes any free one.
    pub listen: String,
    /// Address and port of a listener for health and metrics alone; empty for none.
    pub probe_listen: String,
    /// The URL at which others reach this instance; if empty, it is derived from `listen`.
    pub advertise: String,
    /// First part of the instance's id; empty takes the machine's name.
    pub node_name: String,
    pub workers: u64,
    pub body_bytes_max: u64,
    pub connections_max: u64,
    /// Bytes of bodies and socket messages that are being read at once; and of those, of one token.
    pub reading_bytes_max: u64,
    pub caller_reading_bytes_max: u64,
    /// Bytes of answers and socket messages that wait for their readers; and of those, of one token.
    pub sending_bytes_max: u64,
    pub caller_sending_bytes_max: u64,
    /// Requests in flight at once; and of those, of one token.
    pub requests_max: u64,
    pub caller_requests_max: u64,
    /// Open sockets; and of those, of one token.
    pub sockets_max: u64,
    pub caller_sockets_max: u64,
    /// New idempotency keys that one token may use in an hour on one instance.
    pub caller_keys_max: u64,
    /// How long a client may take to send a request's head, a body, or a socket's message.
    pub receive_timeout_ms: u64,
    pub request_timeout_ms: u64,
    pub drain_timeout_ms: u64,
    /// How long after a signal to stop only `/readyz` says so.
    pub stop_delay_ms: u64,
    /// PEM files for TLS: both or neither.
    pub tls_certificate: String,
    pub tls_key: String,
    /// PEM file of the authorities of clients' certificates; if it is set, a client must have one.
    pub tls_client_ca: String,
    /// Whether to serve other machines without TLS.
    pub insecure: bool,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: l::LISTEN_DEFAULT.to_owned(),
            probe_listen: String::new(),
            advertise: String::new(),
            node_name: String::new(),
            workers: l::WORKERS_DEFAULT,
            body_bytes_max: l::BODY_BYTES_MAX_DEFAULT,
            connections_max: l::CONNECTIONS_MAX_DEFAULT,
            reading_bytes_max: l::READING_BYTES_MAX_DEFAULT,
            caller_reading_bytes_max: l::CALLER_READING_BYTES_MAX_DEFAULT,
            sending_bytes_max: l::SENDING_BYTES_MAX_DEFAULT,
            caller_sending_bytes_max: l::CALLER_SENDING_BYTES_MAX_DEFAULT,
            requests_max: l::REQUESTS_MAX_DEFAULT,
            caller_requests_max: l::CALLER_REQUESTS_MAX_DEFAULT,
            sockets_max: l::SOCKETS_MAX_DEFAULT,
            caller_sockets_max: l::CALLER_SOCKETS_MAX_DEFAULT,
            caller_keys_max: l::CALLER_KEYS_MAX_DEFAULT,
            receive_timeout_ms: l::RECEIVE_TIMEOUT_MS_DEFAULT,
            request_timeout_ms: l::REQUEST_TIMEOUT_MS_DEFAULT,
            drain_timeout_ms: l::DRAIN_TIMEOUT_MS_DEFAULT,
            stop_delay_ms: l::STOP_DELAY_MS_DEFAULT,
            tls_certificate: String::new(),
            tls_key: String::new(),
            tls_client_ca: String::new(),
            insecure: false,
        }
    }
}

impl Server {
    /// The files of the listener's TLS, if it has any.
    pub fn tls(&self) -> Option<api::TlsFiles> {
        let pair = pair(&self.tls_certificate, &self.tls_key)?;
        Some(api::TlsFiles { pair, client_ca: path(&self.tls_client_ca) })
    }
}

/// An address to listen on; `localhost` is 127.0.0.1. Other names are not resolved: what a name stands for can change under
/// a running daemon, and with it the loopback rule.
pub fn address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}").parse().ok(),
        None => text.parse().ok(),
    }
}

/// Whether an address to listen on is reached from other machines. Another check refuses an unreadable one.
fn is_reached_from_elsewhere(listen: &str) -> bool {
    address(listen).is_some_and(|at| !at.ip().to_canonical().is_loopback())
}

/// The SQL database.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ledger {
    /// `sqlite:path` or `postgres://…`; may hold a password.
    pub url: String,
    pub connections_max: u64,
    pub connect_timeout_ms: u64,
    pub call_timeout_ms: u64,
    /// The id of the only ledger that may be opened; empty for any.
    pub expected_id: String,
    /// The file that remembers how far the ledger had got; empty for none.
    pub witness_file: String,
    /// Whether to reach PostgreSQL on another machine without `sslmode=verify-full`.
    pub insecure: bool,
    /// `auto` or `check`.
    pub migrate: String,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            url: l::LEDGER_URL_DEFAULT.to_owned(),
            connections_max: l::LEDGER_CONNECTIONS_MAX_DEFAULT,
            connect_timeout_ms: l::CONNECT_TIMEOUT_MS_DEFAULT,
            call_timeout_ms: l::CALL_TIMEOUT_MS_DEFAULT,
            expected_id: String::new(),
            witness_file: l::WITNESS_FILE_DEFAULT.to_owned(),
            insecure: false,
            migrate: l::MIGRATE_DEFAULT.to_owned(),
        }
    }
}

impl Ledger {
    /// How the ledger is reached, as configured.
    pub fn options(&self) -> ledger::Options {
        ledger::Options {
            url: self.url.clone(),
            connections_max: u32::try_from(self.connections_max).expect("its range is checked"),
            connect_timeout_ms: self.connect_timeout_ms,
            call_timeout_ms: self.call_timeout_ms,
            expected_id: (!self.expected_id.is_empty()).then(|| self.expected_id.clone()),
        }
    }

    /// Whether it is SQLite, which has one instance.
    pub fn is_sqlite(&self) -> bool {
        matches!(ledger::Kind::of(&self.url), Ok(ledger::Kind::Sqlite))
    }

    /// What a start does if the tables are older than the binary.
    pub fn migrate(&self) -> ledger::Migrate {
        if self.migrate == "check" { ledger::Migrate::Check } else { ledger::Migrate::Auto }
    }
}

/// What the instances of a cluster share among themselves.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// By which instances know each other's messages; empty takes one that the ledger keeps.
    pub secret: Secret,
    /// PEM file of the authorities of the other instances' certificates; empty for the system's.
    pub ca_file: String,
    /// PEM files of the certificate to show to other instances; empty for the listener's own.
    pub certificate: String,
    pub key: String,
}

/// The bus: Redis (single or Cluster), or, without it, a bus within the process.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bus {
    /// `redis://…` or empty; may hold a password.
    pub redis_url: String,
    /// The prefix of every key and channel.
    pub key_prefix: String,
    pub connect_timeout_ms: u64,
    pub command_timeout_ms: u64,
    /// PEM file of the authorities to trust; empty for the system's.
    pub tls_ca_file: String,
    /// Whether to reach Redis on another machine without TLS.
    pub insecure: bool,
}

impl Default for Bus {
    fn default() -> Self {
        Self {
            redis_url: String::new(),
            key_prefix: String::new(),
            connect_timeout_ms: l::CONNECT_TIMEOUT_MS_DEFAULT,
            command_timeout_ms: l::BUS_COMMAND_TIMEOUT_MS_DEFAULT,
            tls_ca_file: String::new(),
            insecure: false,
        }
    }
}

impl Bus {
    /// How the bus is reached, as configured.
    pub fn options(&self) -> bus::Options {
        bus::Options {
            redis_url: (!self.redis_url.is_empty()).then(|| self.redis_url.clone()),
            key_prefix: self.key_prefix.clone(),
            connect_timeout_ms: self.connect_timeout_ms,
            command_timeout_ms: self.command_timeout_ms,
            tls_ca_file: path(&self.tls_ca_file),
            insecure: self.insecure,
        }
    }
}

/// How long leases last.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lease {
    pub signer_ms: u64,
    pub instance_ms: u64,
    pub instance_retention_ms: u64,
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            signer_ms: l::LEASE_SIGNER_MS_DEFAULT,
            instance_ms: l::LEASE_INSTANCE_MS_DEFAULT,
            instance_retention_ms: l::INSTANCE_RETENTION_MS_DEFAULT,
        }
    }
}

/// Basic mode: any instance serves any signer, one after the other.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Basic {
    pub lease_wait_ms: u64,
    pub lease_kept_max_ms: u64,
}

impl Default for Basic {
    fn default() -> Self {
        Self { lease_wait_ms: l::LEASE_WAIT_MS_DEFAULT, lease_kept_max_ms: l::LEASE_KEPT_MAX_MS_DEFAULT }
    }
}

/// Worker-queue mode: an owner keeps its signer while there is work.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerQueue {
    /// `forward` or `redirect`.
    pub on_misroute: String,
    pub idle_ms: u64,
}

impl Default for WorkerQueue {
    fn default() -> Self {
        Self { on_misroute: l::ON_MISROUTE_DEFAULT.to_owned(), idle_ms: l::IDLE_MS_DEFAULT }
    }
}

/// Nonces.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nonce {
    pub hold_ms: u64,
    pub queue_max: u64,
    pub in_flight_max: u64,
    pub sweep_interval_ms: u64,
    pub sweep_signers_max: u64,
    pub key_retention_ms: u64,
    /// Different signers that one token may use in an hour on one instance.
    pub caller_signers_max: u64,
}

impl Default for Nonce {
    fn default() -> Self {
        Self {
            hold_ms: HOLD_MS_DEFAULT,
            queue_max: l::QUEUE_MAX_DEFAULT,
            in_flight_max: l::IN_FLIGHT_MAX_DEFAULT,
            sweep_interval_ms: l::SWEEP_INTERVAL_MS_DEFAULT,
            sweep_signers_max: l::SWEEP_SIGNERS_MAX_DEFAULT,
            key_retention_ms: l::KEY_RETENTION_MS_DEFAULT,
            caller_signers_max: l::CALLER_SIGNERS_MAX_DEFAULT,
        }
    }
}

/// Jobs.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Jobs {
    /// How long a node whose socket was closed may take to reconnect before its attempts go elsewhere.
    pub node_grace_ms: u64,
    pub retention_ms: u64,
    /// Open sessions that one token may have.
    pub caller_sessions_max: u64,
}

impl Default for Jobs {
    fn default() -> Self {
        Self {
            node_grace_ms: l::NODE_GRACE_MS_DEFAULT,
            retention_ms: l::JOB_RETENTION_MS_DEFAULT,
            caller_sessions_max: l::CALLER_SESSIONS_MAX_DEFAULT,
        }
    }
}

/// How long an instance waits for its nodes: see [`NodeTimeouts`].
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nodes {
    pub heartbeat_ms: u64,
    pub offline_ms: u64,
    pub vouched_ms: u64,
    pub reservation_ms: u64,
    pub ack_ms: u64,
    pub unanswered_ms: u64,
    pub stranded_ms: u64,
}

impl Default for Nodes {
    fn default() -> Self {
        let NodeTimeouts { heartbeat, offline, vouched, reservation, ack, unanswered, stranded } =
            NodeTimeouts::DEFAULT;
        let ms = |length: Duration| u64::try_from(length.as_millis()).expect("it is short");
        Self {
            heartbeat_ms: ms(heartbeat),
            offline_ms: ms(offline),
            vouched_ms: ms(vouched),
            reservation_ms: ms(reservation),
            ack_ms: ms(ack),
            unanswered_ms: ms(unanswered),
            stranded_ms: ms(stranded),
        }
    }
}

impl Nodes {
    /// The same as lengths of time.
    pub fn timeouts(&self) -> NodeTimeouts {
        NodeTimeouts {
            heartbeat: Duration::from_millis(self.heartbeat_ms),
            offline: Duration::from_millis(self.offline_ms),
            vouched: Duration::from_millis(self.vouched_ms),
            reservation: Duration::from_millis(self.reservation_ms),
            ack: Duration::from_millis(self.ack_ms),
            unanswered: Duration::from_millis(self.unanswered_ms),
            stranded: Duration::from_millis(self.stranded_ms),
        }
    }
}

/// Plans.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plans {
    pub retention_ms: u64,
    /// How long a tenant's lock lasts from its last renewal.
    pub lock_ms: u64,
}

impl Default for Plans {
    fn default() -> Self {
        Self { retention_ms: l::PLAN_RETENTION_MS_DEFAULT, lock_ms: l::TENANT_LOCK_MS_DEFAULT }
    }
}

/// What operators change.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    pub retention_ms: u64,
}

impl Default for Audit {
    fn default() -> Self {
        Self { retention_ms: l::AUDIT_RETENTION_MS_DEFAULT }
    }
}

/// Distributed ids.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ids {
    /// The epoch of snowflakes, in milliseconds since 1970.
    pub epoch_ms: u64,
    /// The data centre, `0` to `31`; empty for none.
    pub data_center: String,
    /// The worker number, or the worker in its data centre; empty for any that is free.
    pub worker: String,
    pub lease_ms: u64,
    pub lead_ms: u64,
    pub clock_skew_max_ms: u64,
    /// The local file; empty for none.
    pub file: String,
    /// The key of scrambled forms; empty for none.
    pub scramble_key: Secret,
}

impl Default for Ids {
    fn default() -> Self {
        Self {
            epoch_ms: EPOCH_MS_DEFAULT,
            data_center: String::new(),
            worker: String::new(),
            lease_ms: WORKER_LEASE_MS_DEFAULT,
            lead_ms: LEAD_MS_DEFAULT,
            clock_skew_max_ms: CLOCK_SKEW_MS_DEFAULT,
            file: l::IDS_FILE_DEFAULT.to_owned(),
            scramble_key: Secret::default(),
        }
    }
}

impl Ids {
    /// The worker numbers that the instance may use; `None` if the configured values name none.
    pub fn choice(&self) -> Option<Choice> {
        let number = |text: &str| -> Option<u16> {
            let is_plain =
                text == "0" || (!text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()));
            text.parse().ok().filter(|_| is_plain)
        };
        let five_bits =
            |text: &str| u8::try_from(number(text)?).ok().filter(|bits| *bits <= ID_FIVE_BITS_MAX);
        Some(match (self.data_center.as_str(), self.worker.as_str()) {
            ("", "") => Choice::Any,
            (data_center, "") => Choice::DataCenter(five_bits(data_center)?),
            ("", worker) => Choice::Fixed(WorkerNumber::new(number(worker)?).ok()?),
            (data_center, worker) => {
                let number = WorkerNumber::in_data_center(five_bits(data_center)?, five_bits(worker)?);
                Choice::Fixed(number.ok()?)
            }
        })
    }
}

impl Cluster {
    /// The authorities to trust for other instances' `https://`, and the certificate to show.
    pub fn tls(&self, server: &Server) -> client::TlsOptions {
        client::TlsOptions {
            ca_file: path(&self.ca_file),
            pair: pair(&self.certificate, &self.key)
                .or_else(|| pair(&server.tls_certificate, &server.tls_key)),
        }
    }
}

/// A path, unless it is empty.
fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

/// The files of a certificate and its key, if both are named.
fn pair(certificate: &str, key: &str) -> Option<client::tls::Pair> {
    Some(client::tls::Pair { certificate: path(certificate)?, key: path(key)? })
}

/// A text that is never shown.
#[derive(Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(redact::HIDDEN)
    }
}

/// Tokens and their scopes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    pub tokens: Vec<AuthToken>,
}

/// One bearer token.
#[derive(Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AuthToken {
    /// Its caller's name.
    pub name: String,
    /// The secret; or, better, `sha256`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// The SHA-256 digest of the secret, or of several that are all good, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_more")]
    pub sha256: Vec<String>,
    /// Its scopes.
    pub scopes: Vec<String>,
    /// Patterns of the names that it sees; without them, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signers: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<String>>,
    /// From when on it is good no more: RFC 3339; empty for never.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub expires_at: String,
}

impl AuthToken {
    /// What is said of each kind of names, with the key that says it.
    pub fn patterns(&self) -> [(&'static str, &Option<Vec<String>>); 4] {
        let Self { tenants, signers, pools, nodes, .. } = self;
        [("tenants", tenants), ("signers", signers), ("pools", pools), ("nodes", nodes)]
    }

    /// What it may do, in words: its name, scopes and patterns, until when, and by what its secrets differ from others, which are
    /// not told.
    pub fn rights(&self) -> String {
        let mut text = format!("{} scopes={:?}", self.name, self.scopes);
        for (kind, patterns) in self.patterns() {
            if let Some(patterns) = patterns {
                let _ = write!(text, " {kind}={patterns:?}");
            }
        }
        if !self.expires_at.is_empty() {
            let _ = write!(text, " expires_at={}", self.expires_at);
        }
        // Digests of digests: nobody finds a weak secret by them.
        let secrets = self.digests().unwrap_or_default();
        let shown = secrets.iter().map(|digest| {
            let [first, second, ..] = api::digest(digest);
            format!("{first:02x}{second:02x}")
        });
        let _ = write!(text, " secrets={}", shown.collect::<Vec<_>>().join(","));
        text
    }

    /// The digests of its secrets. `None` if one cannot be read.
    pub fn digests(&self) -> Option<Vec<[u8; 32]>> {
        let plain = (!self.token.is_empty()).then(|| Some(api::digest(self.token.as_bytes())));
        plain.into_iter().chain(self.sha256.iter().map(|text| of_hex(text))).collect()
    }

    /// When it expires, if it does. `Err` for a text that is no time.
    pub fn expiry(&self) -> Result<Option<Timestamp>, time::error::Parse> {
        if self.expires_at.is_empty() {
            return Ok(None);
        }
        let at = OffsetDateTime::parse(&self.expires_at, &Rfc3339)?;
        let micros = at.unix_timestamp_nanos().div_euclid(1_000);
        Ok(Some(Timestamp::from_micros(i64::try_from(micros).expect("the years 0 to 9999 fit"))))
    }
}

fn of_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(digest)
}

/// One text, or a list of texts.
fn one_or_more<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        One(String),
        More(Vec<String>),
    }
    Ok(match Given::deserialize(from)? {
        Given::One(text) => vec![text],
        Given::More(texts) => texts,
    })
}

// By hand, so that no `{:?}` of a configuration can show a secret.
impl std::fmt::Debug for AuthToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthToken")
            .field("name", &self.name)
            .field("token", &redact::HIDDEN)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}

/// Logs, to stderr.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    pub format: String,
    pub filter: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: l::LOG_FORMAT_DEFAULT.to_owned(), filter: l::LOG_FILTER_DEFAULT.to_owned() }
    }
}

/// Traces, to a collector.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traces {
    /// The collector; empty for none.
    pub otlp_url: String,
    /// How many of the traces that begin here are recorded, in percent.
    pub sampled_percent: u64,
    /// Whether to send traces to another machine without TLS.
    pub insecure: bool,
}

impl Default for Traces {
    fn default() -> Self {
        Self { otlp_url: String::new(), sampled_percent: l::TRACES_SAMPLED_PERCENT_DEFAULT, insecure: false }
    }
}

impl Traces {
    /// Where the collector takes traces, if there is one and its URL can be used.
    pub fn collector(&self) -> Option<Url> {
        let mut url = Url::parse(&self.otlp_url).ok()?;
        let is_plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() || !is_plain {
            return None;
        }
        if url.path() == "/" {
            url.set_path(l::TRACES_PATH_DEFAULT);
        }
        Some(url)
    }
}

/// Whether a URL leads to this machine, or nowhere.
fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.to_canonical().is_loopback(),
        None => true,
    }
}

#[cfg(test)]
mod tests;
