//! What must be encrypted: the listener, PostgreSQL, Redis and the collector of traces, each as soon as it is reached from, or
//! on, another machine. `server.insecure`, `ledger.insecure`, `bus.insecure` and `traces.insecure` lift that, with a warning at
//! every start. The bus judges the servers that a Redis Cluster names.

use super::problem::{ESCAPED, Problem};
use super::{Config, Loaded, is_loopback, is_reached_from_elsewhere, redact};

/// One way that must be encrypted.
struct Way {
    /// The key that says where it leads.
    key: &'static str,
    /// Its value, without secrets.
    shown: String,
    /// Whether it leaves this machine without the encryption that it needs.
    is_open: bool,
    /// The key that allows that, and whether it does.
    insecure: (&'static str, bool),
    /// What would be right.
    allowed: &'static str,
}

/// Refuses the ways that are open and not meant to be. `listening` is whether the command listens and uses the bus.
pub(super) fn problems(loaded: &Loaded, listening: bool) -> Vec<Problem> {
    let config = &loaded.config;
    let is_used = |way: &Way| listening || way.key == "ledger.url";
    let refused = ways(config).into_iter().filter(|way| way.is_open && !way.insecure.1 && is_used(way));
    let refused = refused.map(|Way { key, shown, insecure: (insecure, _), allowed, .. }| {
        // Its host may be a piece of a password that is not escaped.
        let first = if redact::is_hidden(&shown) { format!("{ESCAPED}; then ") } else { String::new() };
        let allowed = format!("{first}{allowed}; or {insecure} = true if the network is trusted");
        Problem::new(key, Some(shown), loaded.origin(key), allowed)
    });
    refused.chain(advertised(loaded).filter(|_| listening)).collect()
}

/// What is open because the configuration says so, for the log.
pub fn warnings(config: &Config) -> Vec<String> {
    let open = ways(config).into_iter().filter(|way| way.is_open && way.insecure.1);
    open.map(|way| {
        let (insecure, _) = way.insecure;
        format!("{} = {} is not encrypted: {insecure} = true allows it", way.key, way.shown)
    })
    .collect()
}

fn ways(config: &Config) -> [Way; 5] {
    let Config { server, ledger, bus, traces, .. } = config;
    [
        Way {
            key: "server.listen",
            shown: format!("{:?}", server.listen),
            is_open: is_reached_from_elsewhere(&server.listen) && server.tls().is_none(),
            insecure: ("server.insecure", server.insecure),
            allowed: "a loopback address (127.0.0.1 or [::1]), or server.tls_certificate and server.tls_key",
        },
        Way {
            key: "server.probe_listen",
            shown: format!("{:?}", server.probe_listen),
            is_open: is_reached_from_elsewhere(&server.probe_listen),
            insecure: ("server.insecure", server.insecure),
            allowed: "a loopback address (127.0.0.1 or [::1])",
        },
        Way {
            key: "ledger.url",
            shown: format!("{:?}", redact::url(&ledger.url)),
            is_open: ledger::is_private(&ledger.url).is_ok_and(|is_private| !is_private),
            insecure: ("ledger.insecure", ledger.insecure),
            allowed: "a database on this machine, or a URL with sslmode=verify-full (and sslrootcert=FILE for an \
                      authority that the system does not trust)",
        },
        Way {
            key: "bus.redis_url",
            shown: format!("{:?}", redact::url(&bus.redis_url)),
            is_open: bus.options().is_private().is_ok_and(|is_private| !is_private),
            insecure: ("bus.insecure", bus.insecure),
            allowed: "a Redis on this machine, or a URL of rediss:// (and bus.tls_ca_file for an authority that the \
                      system does not trust)",
        },
        Way {
            key: "traces.otlp_url",
            shown: format!("{:?}", redact::url(&traces.otlp_url)),
            is_open: traces.collector().is_some_and(|url| url.scheme() == "http" && !is_loopback(&url)),
            insecure: ("traces.insecure", traces.insecure),
            allowed: "a collector on this machine, or a URL of https://",
        },
    ]
}

/// A listener that speaks TLS alone cannot be reached by `http://`.
fn advertised(loaded: &Loaded) -> Option<Problem> {
    let server = &loaded.config.server;
    let is_wrong = server.tls().is_some() && server.advertise.starts_with("http://");
    is_wrong.then(|| {
        let (key, shown) = ("server.advertise", format!("{:?}", server.advertise));
        Problem::new(
            key,
            Some(shown),
            loaded.origin(key),
            "an https:// URL, since server.tls_certificate is set",
        )
    })
}
