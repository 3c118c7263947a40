//! The messages about what is wrong with a configuration.
//!
//! Every message names the key, its value (secrets hidden, and texts of unknown keys), where it was set, and what is allowed.
//! What must never live here: the decision whether a value is wrong.

use std::fmt;

use super::limits as l;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem(String);

impl Problem {
    /// A key whose value is not allowed.
    pub(super) fn new(
        key: &str,
        value: Option<String>,
        origin: Option<&str>,
        allowed: impl fmt::Display,
    ) -> Self {
        let value = value.map(|value| format!(" = {value}")).unwrap_or_default();
        let origin = origin.map(|origin| format!(" ({origin})")).unwrap_or_default();
        Self(format!("{key}{value}{origin}: allowed: {allowed}"))
    }

    /// A key whose value, which is not shown, cannot be used for this reason.
    pub(super) fn refused(key: &str, origin: Option<&str>, why: &str) -> Self {
        let origin = origin.map(|origin| format!(" ({origin})")).unwrap_or_default();
        Self(format!("{key}{origin}: {why}"))
    }

    /// A key that does not exist.
    pub(super) fn unknown(key: &str, value: Option<String>, origin: &str, known: String) -> Self {
        let value = value.map(|value| format!(" = {value}")).unwrap_or_default();
        Self(format!("{key}{value} ({origin}): unknown key; {known}"))
    }

    /// A file that cannot be read.
    pub(super) fn of_file(path: &str, message: String) -> Self {
        Self(format!("{path}: {message}"))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Everything that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub Vec<Problem>);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration is refused:")?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Refused {}

/// What a URL with a user and a password needs: one of these characters as it is ends either of them.
pub(super) const ESCAPED: &str =
    "a user and a password in which @ : / ? # % & and = are percent-encoded (# is %23)";

/// What a key's value may be, in words.
pub(super) fn allowed(key: &str) -> String {
    if let Some(range) = l::range_of(key) {
        return format!("{} to {} {}", range.min, range.max, range.unit);
    }
    match key {
        "mode" => l::MODES.join(" or "),
        "worker_queue.on_misroute" => l::ON_MISROUTES.join(" or "),
        "server.listen" => {
            "an IP address and a port, such as 127.0.0.1:7070, [::1]:7070 or localhost:7070".to_owned()
        }
        "server.probe_listen" => {
            "an IP address and a port other than those of server.listen, such as 127.0.0.1:7071, [::1]:7071 or localhost:7071, \
             or empty for none"
                .to_owned()
        }
        "server.advertise" => {
            "an http:// or https:// URL with a host and without a path, or empty".to_owned()
        }
        "server.node_name" => {
            format!(
                "1 to {} letters, digits and . _ : @ -, or empty for the machine's name",
                l::NODE_NAME_CHARS_MAX
            )
        }
        "ledger.migrate" => l::MIGRATES.join(" or "),
        "ledger.url" => format!(
            "sqlite:PATH or sqlite://PATH, where a file, and no folder, is named by its path (no :memory:, no file:, no ? \
             and no #), postgres://… or postgresql://… with one host (where there are several servers, a proxy or a name that \
             leads to the primary) and {ESCAPED}"
        ),
        "bus.redis_url" => {
            format!("redis://HOST[:PORT][,HOST…][/DATABASE] or rediss://…, with {ESCAPED}, or empty")
        }
        "bus.key_prefix" => "at most 64 letters, digits and . _ : @ -".to_owned(),
        "auth.tokens" => format!(
            "a list of at most {} {{ name, sha256 or token, scopes, tenants?, signers?, pools?, nodes?, expires_at? }}: \
             a name of 1 to {} visible characters that no other entry has, a sha256 of 64 hexadecimal digits or a list \
             of such (fencepost token new NAME makes one), or a token of 1 to {} visible ASCII characters without \
             spaces, at least one scope of {}, and lists of names with * for any characters",
            l::TOKENS_MAX,
            l::TOKEN_NAME_CHARS_MAX,
            l::TOKEN_CHARS_MAX,
            l::SCOPES.join(", ")
        ),
        "ids.data_center" => "\"0\" to \"31\", or empty for none".to_owned(),
        "ids.worker" => {
            "\"0\" to \"1023\", with ids.data_center \"0\" to \"31\", or empty for any".to_owned()
        }
        "ledger.expected_id" => "32 digits 0-9 and a-f, or empty for any ledger".to_owned(),
        "ids.file" | "ledger.witness_file" => "a path, or empty for no file".to_owned(),
        "server.insecure" | "ledger.insecure" | "bus.insecure" | "traces.insecure" => "true or false".to_owned(),
        "server.tls_certificate" | "server.tls_key" | "cluster.certificate" | "cluster.key" => {
            "a PEM file; certificate and key together, or both empty".to_owned()
        }
        "server.tls_client_ca" => "a PEM file of certificates, beside server.tls_certificate, or empty".to_owned(),
        "bus.tls_ca_file" => "a PEM file of certificates, with a bus.redis_url of rediss://, or empty".to_owned(),
        "ids.scramble_key" => "64 hexadecimal digits, or empty for no key".to_owned(),
        "cluster.secret" => {
            "32 to 1024 visible ASCII characters without spaces, the same for all instances, or empty for a secret that the \
             ledger keeps"
                .to_owned()
        }
        "traces.otlp_url" => {
            "an http:// or https:// URL with a host and without a name, a password and a #, or empty for no traces".to_owned()
        }
        "log.format" => l::LOG_FORMATS.join(", "),
        "log.filter" => format!(
            "a level (off, error, warn, info, debug, trace) or directives such as info,ledger=debug; a word by itself is a \
             level or one of {}",
            l::LOG_TARGETS.join(", ")
        ),
        _ => "text".to_owned(),
    }
}
