//! The checks of a configuration before a start.
//!
//! What must never live here: reading of files or environment.

use std::collections::BTreeSet;

use domain::{ClusterSecret, Pattern};
use ids::Scramble;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use url::Url;

use super::problem::{Problem, allowed};
use super::{
    Bus, Config, Ids, Loaded, Nonce, Traces, address, encryption, is_loopback, is_reached_from_elsewhere,
    limits as l, redact,
};

/// Checks what ranges alone cannot: texts, tokens, and relations between values.
pub(super) fn check(loaded: &Loaded, listening: bool) -> Vec<Problem> {
    let config = &loaded.config;
    let mut problems = Vec::new();
    // `also` is what a text must be beyond `fits_alone`.
    let mut text = |key: &str, value: &str, also: bool| {
        if !(also && fits_alone(key, value)) {
            let shown = redact::value(key, &value.into());
            let origin = loaded.origin(key).unwrap_or("the default");
            problems.push(Problem::new(key, Some(shown), Some(origin), allowed(key)));
        }
    };
    let server = &config.server;
    text("worker_queue.on_misroute", &config.worker_queue.on_misroute, true);
    text("mode", &config.mode, true);
    text("server.listen", &server.listen, true);
    let probe_listen = &server.probe_listen;
    let is_second =
        address(probe_listen).is_some_and(|at| at.port() == 0 || address(&server.listen) != Some(at));
    text("server.probe_listen", probe_listen, probe_listen.is_empty() || is_second);
    text("server.advertise", &server.advertise, true);
    text(
        "server.node_name",
        &server.node_name,
        server.node_name.is_empty() || is_node_name(&server.node_name),
    );
    text("ledger.url", &config.ledger.url, is_ledger_url(&config.ledger.url));
    let id = &config.ledger.expected_id;
    text("ledger.expected_id", id, id.is_empty() || is_ledger_id(id));
    let witness = &config.ledger.witness_file;
    text("ledger.witness_file", witness, !witness.contains('\0'));
    text("ledger.migrate", &config.ledger.migrate, true);
    text("bus.redis_url", &config.bus.redis_url, true);
    text(
        "bus.key_prefix",
        &config.bus.key_prefix,
        bus_fits(|bus| bus.key_prefix = config.bus.key_prefix.clone()),
    );
    let ids = &config.ids;
    let alone = Ids { worker: String::new(), ..ids.clone() };
    text("ids.data_center", &ids.data_center, alone.choice().is_some());
    text("ids.worker", &ids.worker, alone.choice().is_none() || ids.choice().is_some());
    text("ids.file", &ids.file, !ids.file.contains('\0'));
    let key = &ids.scramble_key.0;
    text("ids.scramble_key", key, key.is_empty() || Scramble::from_hex(key).is_ok());
    let secret = &config.cluster.secret.0;
    text("cluster.secret", secret, secret.is_empty() || ClusterSecret::parse(secret).is_ok());
    files(config, &mut text);
    text("log.format", &config.log.format, true);
    text("log.filter", &config.log.filter, is_filter(&config.log.filter));
    text("traces.otlp_url", &config.traces.otlp_url, true);
    refused_by_driver(loaded, &mut problems);
    tokens(loaded, &mut problems);
    if listening {
        loopback(loaded, &mut problems);
    }
    problems.extend(encryption::problems(loaded, listening));
    written_files(loaded, &mut problems);
    relations(loaded, &mut problems);
    problems
}

/// Whether a text is one that its key may have, also where a higher layer overrides it: of closed words, of addresses, and of
/// URLs by their scheme. What else a text must be is checked of those that count.
pub(super) fn fits_alone(key: &str, text: &str) -> bool {
    match key {
        "mode" => l::MODES.contains(&text),
        "worker_queue.on_misroute" => l::ON_MISROUTES.contains(&text),
        "ledger.migrate" => l::MIGRATES.contains(&text),
        "log.format" => l::LOG_FORMATS.contains(&text),
        "server.listen" => address(text).is_some(),
        "server.probe_listen" => text.is_empty() || address(text).is_some(),
        "server.advertise" => text.is_empty() || is_base_url(text),
        "ledger.url" => text.starts_with("sqlite:") || is_postgres_url(text),
        "bus.redis_url" => bus_fits(|bus| text.clone_into(&mut bus.redis_url)),
        "traces.otlp_url" => {
            let traces = Traces { otlp_url: text.to_owned(), ..Traces::default() };
            text.is_empty() || traces.collector().is_some()
        }
        _ => true,
    }
}

/// The files of TLS: those that belong together are named together, and none that would be ignored.
fn files(config: &Config, text: &mut impl FnMut(&str, &str, bool)) {
    let (server, cluster, bus) = (&config.server, &config.cluster, &config.bus);
    for ((key, own), (beside, other)) in [
        (("server.tls_certificate", &server.tls_certificate), ("server.tls_key", &server.tls_key)),
        (("cluster.certificate", &cluster.certificate), ("cluster.key", &cluster.key)),
    ] {
        text(key, own, !own.is_empty() || other.is_empty());
        text(beside, other, !other.is_empty() || own.is_empty());
    }
    let ca = &server.tls_client_ca;
    text("server.tls_client_ca", ca, ca.is_empty() || !server.tls_certificate.is_empty());
    let ca = &bus.tls_ca_file;
    text("bus.tls_ca_file", ca, ca.is_empty() || bus.redis_url.starts_with("rediss://"));
}

fn is_base_url(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none()
    })
}

/// Whether an instance id may begin with it.
fn is_node_name(text: &str) -> bool {
    (1..=l::NODE_NAME_CHARS_MAX).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._:@-".contains(c))
}

/// Whether a token may have it.
fn is_token_name(text: &str) -> bool {
    (1..=l::TOKEN_NAME_CHARS_MAX).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

/// Reads the name of a token, as the configuration takes it.
///
/// # Errors
/// What is allowed.
pub fn token_name(text: &str) -> Result<String, String> {
    let allowed = || format!("1 to {} visible characters", l::TOKEN_NAME_CHARS_MAX);
    is_token_name(text).then(|| text.to_owned()).ok_or_else(allowed)
}

fn is_ledger_url(text: &str) -> bool {
    if let Some(path) = text.strip_prefix("sqlite:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        let is_refused = || matches!(ledger::address(text), Err(ledger::Error::Address(_)));
        return !path.is_empty() && !path.contains('\0') && !is_refused();
    }
    is_postgres_url(text)
}

/// Whether a ledger may have this id, which its migration makes.
fn is_ledger_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_postgres_url(text: &str) -> bool {
    Url::parse(text)
        .is_ok_and(|url| matches!(url.scheme(), "postgres" | "postgresql") && text.contains("://"))
}

/// What the driver of PostgreSQL cannot use in a URL. The URL is not shown: a misspelt parameter may have a password.
fn refused_by_driver(loaded: &Loaded, problems: &mut Vec<Problem>) {
    let url = &loaded.config.ledger.url;
    if is_ledger_url(url)
        && let Err(ledger::Error::Address(why)) = ledger::address(url)
    {
        problems.push(Problem::refused("ledger.url", loaded.origin("ledger.url"), &why));
    }
}

/// Whether the bus could be opened with this value of one key, with the others at their defaults.
fn bus_fits(set: impl FnOnce(&mut Bus)) -> bool {
    let mut alone = Bus::default();
    set(&mut alone);
    alone.options().check().is_ok()
}

fn is_filter(text: &str) -> bool {
    // Those that are empty the library leaves out; a blank at a word is a part of the word to it.
    let mut directives = text.split(',').filter(|directive| !directive.is_empty()).peekable();
    let has_level = text.split(',').any(|directive| directive.parse::<LevelFilter>().is_ok());
    let is_heard = |directive| has_level || is_directive(directive);
    directives.peek().is_some() && directives.all(is_heard) && EnvFilter::builder().parse(text).is_ok()
}

/// Whether a directive names a level, or lines that there can be. A word that is no level names lines by their target, and so a
/// misspelt level would leave out all lines.
fn is_directive(text: &str) -> bool {
    text.contains(['=', '['])
        || text.contains("::")
        || text.parse::<LevelFilter>().is_ok()
        || l::LOG_TARGETS.contains(&text)
}

/// Tokens are named by their place in the list: their text is never shown, and their name may be what
/// is wrong with them.
fn tokens(loaded: &Loaded, problems: &mut Vec<Problem>) {
    let tokens = &loaded.config.auth.tokens;
    let mut refuse = |place: String, why: &str| {
        let key = format!("auth.tokens{place}");
        problems.push(Problem::new(
            &format!("{key} {why}"),
            None,
            loaded.origin("auth.tokens"),
            allowed("auth.tokens"),
        ));
    };
    if tokens.len() > l::TOKENS_MAX {
        refuse(String::new(), &format!("has {} entries", tokens.len()));
    }
    let (mut names, mut secrets) = (BTreeSet::new(), BTreeSet::new());
    for (at, entry) in tokens.iter().enumerate() {
        let place = |field: &str| format!("[{at}].{field}");
        let visible = |text: &str| text.chars().all(|c| c.is_ascii_graphic());
        if !is_token_name(&entry.name) {
            refuse(place("name"), "is empty, too long or not visible");
        } else if !names.insert(entry.name.as_str()) {
            refuse(place("name"), "repeats an earlier entry's name; one entry may have several sha256");
        }
        if entry.token.is_empty() && entry.sha256.is_empty() {
            refuse(place("token"), "is empty, and so is sha256");
        } else if entry.token.len() > l::TOKEN_CHARS_MAX || !visible(&entry.token) {
            refuse(place("token"), "is too long or has characters that a header cannot carry");
        }
        if entry.sha256.len() > l::TOKEN_LIST_MAX {
            refuse(place("sha256"), "has too many entries");
        }
        match entry.digests() {
            None => refuse(place("sha256"), "has a text that is not 64 hexadecimal digits"),
            Some(digests) => {
                if !digests.into_iter().all(|digest| secrets.insert(digest)) {
                    refuse(place("token"), "repeats an earlier secret");
                }
            }
        }
        if entry.scopes.is_empty() {
            refuse(place("scopes"), "is empty");
        }
        for scope in entry.scopes.iter().filter(|scope| !l::SCOPES.contains(&scope.as_str())) {
            refuse(place("scopes"), &format!("has the unknown scope {scope:?}"));
        }
        for (field, patterns) in entry.patterns() {
            let Some(patterns) = patterns else { continue };
            if patterns.is_empty() || patterns.len() > l::TOKEN_LIST_MAX {
                refuse(place(field), "is empty or too long; leave it out for a token that sees all");
            }
            for pattern in patterns.iter().filter(|pattern| Pattern::parse(pattern).is_err()) {
                refuse(place(field), &format!("has {pattern:?}, which is no pattern"));
            }
        }
        if entry.expiry().is_err() {
            refuse(place("expires_at"), "is no time such as 2027-01-31T00:00:00Z");
        }
    }
}

/// Plain tokens that may be guessed, where callers from elsewhere reach the port: a warning for each, for the log.
pub fn weak_tokens(config: &Config) -> Vec<String> {
    let server = &config.server;
    let is_reached = is_reached_from_elsewhere(&server.listen)
        || is_reached_from_elsewhere(&server.probe_listen)
        || !advertises_loopback(&server.advertise);
    let is_weak = |token: &str| (1..l::TOKEN_CHARS_MIN).contains(&token.chars().count());
    let weak = config.auth.tokens.iter().filter(|entry| is_reached && is_weak(&entry.token));
    weak.map(|entry| {
        format!(
            "the token of {:?} in auth.tokens has fewer than {} characters and may be guessed: `fencepost token new` \
             makes one that cannot",
            entry.name,
            l::TOKEN_CHARS_MIN
        )
    })
    .collect()
}

/// Idempotency keys that are forgotten before a hold of the default length ends: a warning, for the log.
pub fn short_keys(config: &Config) -> Option<String> {
    let Nonce { hold_ms, key_retention_ms, .. } = config.nonce;
    (key_retention_ms < hold_ms).then(|| {
        format!(
            "nonce.key_retention_ms ({key_retention_ms}) is shorter than nonce.hold_ms ({hold_ms}): a grant that is repeated under \
             its key after that gets another nonce, while its first hold may be live"
        )
    })
}

/// A variable that names another ledger than the file: a warning, for the log. Instances that are to share the PostgreSQL of the
/// file would not meet there. A SQLite in a file is one instance's own, as that of the container image is, and gives way.
pub fn other_ledger(loaded: &Loaded) -> Option<String> {
    let of_file = loaded.overridden_ledger.as_deref().filter(|url| !url.starts_with("sqlite:"))?;
    let variable = loaded.origin("ledger.url")?;
    let (used, of_file) = (redact::url(&loaded.config.ledger.url), redact::url(of_file));
    Some(format!(
        "{variable} names another ledger than the configuration file: {used:?} is used, and not {of_file:?}"
    ))
}

/// Parameters of the ledger's URL that have no effect: a warning, for the log.
pub fn unused_parameters(loaded: &Loaded) -> Option<String> {
    let unused = ledger::unused_parameters(&loaded.config.ledger.url).unwrap_or_default();
    (!unused.is_empty()).then(|| {
        format!(
            "ledger.url: PostgreSQL's own client library takes {}, which has no effect here",
            unused.join(", ")
        )
    })
}

/// A variable that has the tokens while the file has others: a warning, for the log. Without it, a person
/// who removes a token from the file would believe that the daemon refuses that token.
pub fn other_tokens(loaded: &Loaded) -> Option<String> {
    let variable = loaded.origin("auth.tokens").filter(|_| loaded.overridden_tokens)?;
    Some(format!("the tokens of {variable} count, and those of the configuration file have no effect"))
}

/// Without tokens, every caller that reaches the port may do everything; so only this machine may reach it.
fn loopback(loaded: &Loaded, problems: &mut Vec<Problem>) {
    let server = &loaded.config.server;
    for (key, listen) in [("server.listen", &server.listen), ("server.probe_listen", &server.probe_listen)] {
        if is_reached_from_elsewhere(listen) && loaded.config.auth.tokens.is_empty() {
            problems.push(Problem::new(
                key,
                Some(format!("{listen:?}")),
                loaded.origin(key),
                "a loopback address (127.0.0.1 or [::1]) as long as auth.tokens is empty; configure at least one token \
                 to listen elsewhere",
            ));
        }
    }
    if !advertises_loopback(&server.advertise) && loaded.config.auth.tokens.is_empty() {
        problems.push(Problem::new(
            "server.advertise",
            Some(format!("{:?}", server.advertise)),
            loaded.origin("server.advertise"),
            "a URL with a loopback host (localhost, 127.0.0.1 or [::1]), or empty, as long as auth.tokens is empty; \
             configure at least one token to be reached from elsewhere",
        ));
    }
}

/// Whether the advertised address is one of this machine only. Another check refuses an unreadable one.
fn advertises_loopback(advertise: &str) -> bool {
    Url::parse(advertise).ok().is_none_or(|url| is_loopback(&url))
}

/// The files that the daemon writes: each is another one than the others, and than those that SQLite and its lock keep.
fn written_files(loaded: &Loaded, problems: &mut Vec<Problem>) {
    let Config { ledger, ids, .. } = &loaded.config;
    // Two names of one file are found, before it is made and after, as the ledger finds its own.
    let place = |path: &str| ledger::address(&format!("sqlite://{path}")).ok();
    let of_ledger = if ledger.is_sqlite() { ledger::address(&ledger.url).ok() } else { None };
    let ends = ["", "-wal", "-shm", "-journal", ".lock"];
    let of_ledger: Vec<String> =
        of_ledger.iter().flat_map(|place| ends.map(|end| format!("{place}{end}"))).collect();
    for (key, path, other) in [
        ("ids.file", &ids.file, place(&ledger.witness_file)),
        ("ledger.witness_file", &ledger.witness_file, None),
    ] {
        let Some(own) = place(path) else { continue };
        if of_ledger.contains(&own) || other.is_some_and(|other| other == own) {
            problems.push(Problem::new(
                key,
                Some(format!("{path:?}")),
                Some(loaded.origin(key).unwrap_or("the default")),
                "a file of its own: not the ledger of ledger.url, nor what SQLite keeps beside it (-wal, -shm), nor the same \
                 file for ids.file and ledger.witness_file",
            ));
        }
    }
}

fn relations(loaded: &Loaded, problems: &mut Vec<Problem>) {
    let config = &loaded.config;
    let mut hold = |key: &str, value: u64, fits: bool, allowed: String| {
        if !fits {
            let origin = loaded.origin(key).unwrap_or("the default");
            problems.push(Problem::new(key, Some(value.to_string()), Some(origin), allowed));
        }
    };
    // One value against another, and what that is for.
    macro_rules! holds {
        ($table:ident.$key:ident $than:tt $other:ident.$limit:ident $(, $why:literal)?) => {{
            let (value, limit) = (config.$table.$key, config.$other.$limit);
            let name = concat!(stringify!($other), ".", stringify!($limit));
            let than = match stringify!($than) {
                "<" => "less than",
                "<=" => "at most",
                _ => "more than",
            };
            let why = concat!($(", ", $why)?);
            let allowed = format!("{than} {name} ({limit}){why}");
            hold(concat!(stringify!($table), ".", stringify!($key)), value, value $than limit, allowed);
        }};
    }
    holds!(server.caller_reading_bytes_max <= server.reading_bytes_max);
    holds!(server.caller_sending_bytes_max <= server.sending_bytes_max);
    holds!(server.caller_requests_max <= server.requests_max);
    holds!(server.caller_sockets_max <= server.sockets_max);
    let (kept, signer) = (config.basic.lease_kept_max_ms, config.lease.signer_ms);
    hold(
        "basic.lease_kept_max_ms",
        kept,
        kept * 3 < signer,
        format!(
            "less than a third of lease.signer_ms ({signer}), so that the lease is given back before it is to be renewed"
        ),
    );
    holds!(basic.lease_wait_ms < server.request_timeout_ms);
    holds!(
        ledger.call_timeout_ms <= server.request_timeout_ms,
        "so that a caller hears that the ledger is away"
    );
    holds!(ids.lead_ms <= ids.lease_ms);
    let (vouched, two_missed) = (config.nodes.vouched_ms, config.nodes.heartbeat_ms * 5 / 2);
    hold(
        "nodes.vouched_ms",
        vouched,
        vouched > two_missed,
        format!(
            "more than two and a half times nodes.heartbeat_ms ({two_missed}), so that a missed heartbeat takes no \
             slot away"
        ),
    );
    holds!(nodes.reservation_ms > nodes.vouched_ms);
    holds!(nodes.offline_ms > nodes.reservation_ms, "so that no reservation outlives its node's record");
    holds!(nodes.unanswered_ms > nodes.ack_ms);
    holds!(jobs.node_grace_ms <= nodes.offline_ms, "after which the node's record is gone");
    holds!(nonce.queue_max <= nonce.in_flight_max);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;

    #[test]
    fn a_filter_of_the_log_has_levels_and_lines_that_there_are() {
        for right in [
            l::LOG_FILTER_DEFAULT,
            "off",
            "error",
            "warn",
            "INFO",
            "debug",
            "trace",
            "info,ledger=debug",
            "info,ledger=debug,",
            "warn,ledger",
            "fencepost",
            "fencepost::serve",
            "hyper=trace",
            "[request]=debug",
            "info,hyper",
            "info,warning",
            "info, ledger",
        ] {
            assert!(is_filter(right), "{right:?}");
        }
        for wrong in [
            "", " ", ",,,", " , ", "warning", "infoo", " info", "info ", "ledgr", "sqlx", "daemon", "info,=,",
        ] {
            assert!(!is_filter(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_wrong_text_is_refused_also_where_a_higher_layer_has_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fencepost.toml");
        let loaded = |section: &str, name: &str, value: &str, variable: &str, above: &str| {
            std::fs::write(&path, format!("{section}\n{name} = {value:?}\n")).unwrap();
            let environment = vec![(variable.into(), above.into())];
            Sources { file: Some(path.clone()), environment, ..Sources::default() }.load()
        };
        for (section, name, wrong, right, variable, above) in [
            ("", "mode", "fast", "basic", "FENCEPOST__MODE", "worker-queue"),
            (
                "[worker_queue]",
                "on_misroute",
                "drop",
                "redirect",
                "FENCEPOST__WORKER_QUEUE__ON_MISROUTE",
                "forward",
            ),
            ("[ledger]", "migrate", "never", "check", "FENCEPOST__LEDGER__MIGRATE", "auto"),
            ("[log]", "format", "xml", "json", "FENCEPOST__LOG__FORMAT", "auto"),
            ("[server]", "listen", "7070", "127.0.0.1:1", "FENCEPOST_LISTEN", "127.0.0.1:2"),
            ("[server]", "probe_listen", "h:1", "", "FENCEPOST__SERVER__PROBE_LISTEN", "127.0.0.1:1"),
            ("[server]", "advertise", "ftp://x", "", "FENCEPOST__SERVER__ADVERTISE", "http://localhost:1"),
            ("[ledger]", "url", "mysql://h/d", "postgres://h/d", "FENCEPOST_DATABASE_URL", "sqlite:a.db"),
            ("[bus]", "redis_url", "http://h", "", "FENCEPOST_REDIS_URL", "redis://127.0.0.1"),
            ("[traces]", "otlp_url", "h:4318", "", "FENCEPOST__TRACES__OTLP_URL", "http://localhost:4318"),
        ] {
            let key = format!("{section}.{name}").replace(['[', ']'], "");
            let key = key.trim_start_matches('.');
            let refused = loaded(section, name, wrong, variable, above).unwrap_err().to_string();
            let begins = format!("  {key} = ");
            let ends = format!(" ({}): allowed: {}", path.display(), allowed(key));
            let is_named = refused.contains(&begins) && refused.ends_with(&ends);
            assert!(is_named && refused.lines().count() == 2, "{refused}");
            assert!(loaded(section, name, right, variable, above).is_ok(), "{key}");
        }
    }

    #[test]
    fn each_crate_of_the_daemon_may_be_named_in_a_filter_of_the_log() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let mut crates: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(Result::unwrap)
            .filter(|entry| entry.path().join("Cargo.toml").is_file())
            .map(|entry| entry.file_name().into_string().unwrap())
            .filter(|name| name != "testkit")
            .map(|name| if name == "daemon" { "fencepost".to_owned() } else { name })
            .collect();
        crates.sort();
        assert_eq!(crates, l::LOG_TARGETS);
    }

    #[test]
    fn a_parameter_of_postgresqls_url_is_refused_by_key_and_origin_and_never_shown() {
        const VARIABLE: &str = "FENCEPOST_DATABASE_URL";
        for (parameter, words) in [
            ("passwd=hunter2", "its parameter \"passwd\" is unknown; known: "),
            ("sslmod=verify-full", "its parameter \"sslmod\" is unknown; known: "),
            ("sslmode=foo", "its sslmode is \"foo\", and must be disable, "),
        ] {
            let url = format!("postgres://u:hunter2@localhost/f?{parameter}");
            let environment = vec![(VARIABLE.into(), url.into())];
            let refused = Sources { environment, ..Sources::default() }.load().unwrap_err().to_string();
            let begins = format!("ledger.url ({VARIABLE}): the database URL cannot be used: {words}");
            assert!(refused.contains(&begins), "{refused}");
            assert!(!refused.contains("hunter2") && refused.lines().count() == 2, "{refused}");
        }
    }

    #[test]
    fn a_url_of_postgresql_has_one_host() {
        for (url, words) in
            [("postgres://a:1,b:2/d", "with one host"), ("postgres://a,b:5432/d", "it names several hosts")]
        {
            let environment = vec![("FENCEPOST_DATABASE_URL".into(), url.into())];
            let refused = Sources { environment, ..Sources::default() }.load().unwrap_err().to_string();
            assert!(refused.contains(words), "{url}: {refused}");
        }
    }
}
