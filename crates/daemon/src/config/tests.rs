//! Tests of the layers, the ranges and what messages say.

mod secrets;

use std::path::PathBuf;

use super::layers::known_keys;
use super::*;

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/fencepost.toml");
const OF_THE_IMAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/container.toml");

/// A file in a folder that goes with the test.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fencepost.toml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn sources(variables: &[(&str, &str)]) -> Sources {
    Sources {
        environment: variables.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        ..Sources::default()
    }
}

fn refusal(sources: &Sources) -> String {
    sources.load().expect_err("must be refused").to_string()
}

#[test]
fn no_layer_at_all_gives_the_defaults() {
    let loaded = sources(&[]).load().unwrap();
    assert_eq!(loaded.config, Config::default());
    assert!(loaded.origins.is_empty());
}

#[test]
fn the_shipped_file_has_every_key_with_its_default() {
    let loaded = Sources { file: Some(SHIPPED.into()), ..Sources::default() }.load().unwrap();
    assert_eq!(loaded.config, Config::default());
    let there: Vec<&String> = loaded.origins.keys().collect();
    assert_eq!(there, known_keys().keys().collect::<Vec<_>>(), "a key of the code is missing in the file");
}

#[test]
fn the_shipped_file_comments_every_key_and_tells_every_range() {
    let text = std::fs::read_to_string(SHIPPED).unwrap();
    let (mut section, mut comment) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(more) = line.strip_prefix('#') {
            comment += more;
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            section = format!("{}.", name.trim_end_matches(']'));
        } else if let Some((key, _)) = line.split_once('=') {
            let key = format!("{section}{}", key.trim());
            assert!(!comment.trim().is_empty(), "{key} has no comment");
            if let Some(range) = limits::range_of(&key) {
                let expected = format!("{} to {}", range.min, range.max);
                assert!(comment.contains(&expected), "the comment of {key} does not say {expected}");
            }
        }
        comment.clear();
    }
}

#[test]
fn the_images_file_has_its_address_and_its_ledger_and_yields_to_a_variable() {
    let loaded = |variables: &[(&str, &str)]| {
        Sources { file: Some(OF_THE_IMAGE.into()), ..sources(variables) }.load_without_listening().unwrap()
    };
    let server = Server { listen: "0.0.0.0:7070".to_owned(), ..Server::default() };
    let ledger = Ledger { url: "sqlite:/var/lib/fencepost/ledger.db".to_owned(), ..Ledger::default() };
    assert_eq!(loaded(&[]).config, Config { server, ledger, ..Config::default() });
    let url = "postgres://localhost/f";
    let by_variable = loaded(&[("FENCEPOST_DATABASE_URL", url)]);
    assert_eq!(by_variable.config.ledger.url, url);
    assert_eq!(other_ledger(&by_variable), None, "the image's own was nobody's choice");
}

#[test]
fn every_number_has_a_range_that_its_default_is_in() {
    for (key, default) in known_keys() {
        if let Some(number) = default.as_u64() {
            let range = limits::range_of(&key).unwrap_or_else(|| panic!("{key} has no range"));
            assert!((range.min..=range.max).contains(&number), "{key}");
        }
    }
    for range in &limits::RANGES {
        assert!(known_keys().contains_key(range.key), "{} is no key", range.key);
    }
}

#[test]
fn options_beat_environment_beats_file_beats_defaults() {
    let (_folder, path) = file(
        "[server]\nlisten = \"127.0.0.1:1\"\nnode_name = \"of-file\"\n[lease]\nsigner_ms = 11000\ninstance_ms = 3000\n",
    );
    let mut sources = sources(&[
        ("FENCEPOST_LISTEN", "127.0.0.1:2"),
        ("FENCEPOST__SERVER__NODE_NAME", "of-environment"),
        ("FENCEPOST__LEASE__SIGNER_MS", "12000"),
    ]);
    sources.file = Some(path);
    sources.options.listen = Some("127.0.0.1:3".to_owned());
    let loaded = sources.load().unwrap();
    assert_eq!(loaded.config.server.listen, "127.0.0.1:3");
    assert_eq!(loaded.config.server.node_name, "of-environment");
    assert_eq!(loaded.config.lease.signer_ms, 12_000);
    assert_eq!(loaded.config.lease.instance_ms, 3_000);
    assert_eq!(loaded.config.basic, Basic::default());
    assert_eq!(loaded.origin("server.listen"), Some("--listen"));
    assert_eq!(loaded.origin("lease.signer_ms"), Some("FENCEPOST__LEASE__SIGNER_MS"));
}

#[test]
fn a_file_is_read_only_when_it_is_named() {
    let (_folder, path) = file("[lease]\nsigner_ms = 11000\n");
    let loaded = sources(&[("FENCEPOST_CONFIG", path.to_str().unwrap())]).load().unwrap();
    assert_eq!(loaded.config.lease.signer_ms, 11_000);
    let missing = Sources { file: Some("/nowhere/fencepost.toml".into()), ..Sources::default() };
    assert!(refusal(&missing).contains("/nowhere/fencepost.toml"));
}

#[test]
fn variables_of_others_and_empty_ones_are_left_alone() {
    let loaded = sources(&[
        ("FENCEPOST_PORT", "tcp://10.0.0.1:7070"),
        ("FENCEPOST_SERVICE_HOST", "10.0.0.1"),
        ("FENCEPOST_SERVICE_PORT", "7070"),
        ("FENCEPOST_SERVICE_PORT_HTTP", "7070"),
        ("FENCEPOST_PORT_7070_TCP_ADDR", "10.0.0.1"),
        ("FENCEPOST_EU_SERVICE_HOST", "10.0.0.1"),
        ("FENCEPOST_EU_PORT", "tcp://10.0.0.1:7070"),
        ("FENCEPOST_EU_PORT_7070_TCP", "tcp://10.0.0.1:7070"),
        ("FENCEPOST_URL", "http://127.0.0.1:7070"),
        ("FENCEPOST_TOKEN", "t"),
        ("FENCEPOST_JOB", "j"),
        ("FENCEPOST_KIND", "k"),
        ("FENCEPOST_TRACEPARENT", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("FENCEPOST_LISTN", ""),
        ("FENCEPOSTER_LISTN", "x"),
        ("FENCEPOST_LISTEN", ""),
        ("FENCEPOST__LEASE__SIGNER_MS", ""),
    ])
    .load()
    .unwrap();
    assert_eq!(loaded.config, Config::default());
}

#[test]
fn a_variable_of_ours_that_nothing_reads_is_refused() {
    for (name, value) in [
        ("FENCEPOST_LISTN", "127.0.0.1:1"),
        ("FENCEPOST_DATABASE", "postgres://u:secret@h/d"),
        ("FENCEPOST_PORT", "7070"),
        ("FENCEPOST_PORT_X", "7070"),
        ("FENCEPOST_LEASE_SIGNER_MS", "1000"),
    ] {
        let refused = refusal(&sources(&[(name, value)]));
        for word in [name, "FENCEPOST_LISTEN", "FENCEPOST_DATABASE_URL", "FENCEPOST__SECTION__KEY"] {
            assert!(refused.contains(word), "{word}: {refused}");
        }
        assert!(!refused.contains("secret"), "{refused}");
    }
}

#[test]
fn two_variables_that_name_one_key_agree() {
    for (one, other, key) in [
        ("FENCEPOST__SERVER__WORKERS", "FENCEPOST__server__workers", "server.workers"),
        ("FENCEPOST__LEDGER__URL", "FENCEPOST_DATABASE_URL", "ledger.url"),
    ] {
        let refused = refusal(&sources(&[(one, "2"), (other, "3")]));
        let why = format!("\n  {key} ({one} and {other}): variables that set it must agree");
        assert!(refused.contains(&why), "{refused}");
    }
    let alike = ["FENCEPOST__LEDGER__URL", "FENCEPOST_DATABASE_URL"].map(|name| (name, "sqlite:a.db"));
    assert_eq!(sources(&alike).load().unwrap().config.ledger.url, "sqlite:a.db");
}

#[test]
fn texts_made_of_digits_stay_texts() {
    let loaded = sources(&[("FENCEPOST__SERVER__NODE_NAME", "007")]).load().unwrap();
    assert_eq!(loaded.config.server.node_name, "007");
}

#[test]
fn rust_log_beats_the_file_and_yields_to_the_long_variable() {
    let (_folder, path) = file("[log]\nfilter = \"error\"\n");
    let filter = |variables: &[(&str, &str)]| {
        Sources { file: Some(path.clone()), ..sources(variables) }.load().unwrap().config.log.filter
    };
    assert_eq!(filter(&[]), "error");
    assert_eq!(filter(&[("RUST_LOG", "debug")]), "debug");
    assert_eq!(filter(&[("RUST_LOG", "debug"), ("FENCEPOST__LOG__FILTER", "trace")]), "trace");
}

#[test]
fn unknown_keys_are_refused_by_name_value_and_neighbours() {
    let (_folder, path) =
        file("[lease]\nsignr_ms = 5\n[leases]\nx = 1\n[server.deep]\nx = 1\nlonely = true\n");
    let message = refusal(&Sources { file: Some(path.clone()), ..Sources::default() });
    assert!(message.contains("lease.signr_ms = 5"), "{message}");
    assert!(message.contains("known in [lease]: instance_ms, instance_retention_ms, signer_ms"), "{message}");
    assert!(message.contains("leases.x = 1"), "{message}");
    assert!(message.contains("server.deep = a section"), "{message}");
    assert!(message.contains(path.to_str().unwrap()), "{message}");
    let message = refusal(&sources(&[("FENCEPOST__LEASE__SIGNR_MS", "5")]));
    assert!(
        message.contains("FENCEPOST__LEASE__SIGNR_MS") && message.contains("lease.signr_ms"),
        "{message}"
    );
    let message = refusal(&sources(&[("FENCEPOST__LEASES", "5")]));
    assert!(message.contains("known: audit, auth, basic"), "{message}");
}

#[test]
fn an_empty_section_is_refused_unless_it_is_known() {
    let loaded = |text: &str| {
        let (_folder, path) = file(text);
        Sources { file: Some(path), ..Sources::default() }.load()
    };
    for (text, says) in [
        ("[lease]\n[leases]\n# signer_ms = 11000\n", "leases = a section"),
        ("leases = {}\n", "unknown key; known: audit, auth, basic"),
        ("[server.deep]\n", "server.deep = a section"),
        ("[mode]\n", "allowed: basic or worker-queue"),
    ] {
        let message = loaded(text).expect_err(text).to_string();
        assert!(message.contains(says), "{text}: {message}");
    }
    assert_eq!(loaded("[lease]\n[auth]\n# tokens = []\n").unwrap().config, Config::default());
}

#[test]
fn a_section_that_is_given_a_value_is_called_a_section() {
    for text in ["server = 3\n", "[[server]]\nlisten = \"127.0.0.1:1\"\n"] {
        let (_folder, path) = file(text);
        let message = refusal(&Sources { file: Some(path), ..Sources::default() });
        assert!(message.contains("allowed: the section [server], whose keys"), "{text}: {message}");
    }
    let message = refusal(&sources(&[("FENCEPOST__CLUSTER", "hunter2")]));
    assert!(message.contains("the section [cluster]") && message.contains("secret"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn every_number_is_refused_outside_its_range_and_of_another_type() {
    for range in &limits::RANGES {
        let variable = format!("FENCEPOST__{}", range.key.to_ascii_uppercase().replace('.', "__"));
        let mut wrong =
            vec![(range.max + 1).to_string(), "-1".to_owned(), "1.5".to_owned(), "soon".to_owned()];
        if range.min > 0 {
            wrong.push((range.min - 1).to_string());
        }
        for value in wrong {
            let message = refusal(&sources(&[(&variable, &value)]));
            let expected = format!("{} to {} {}", range.min, range.max, range.unit);
            for part in [range.key, &value, &variable, &expected] {
                assert!(message.contains(part), "{part:?} is not in: {message}");
            }
        }
        let (section, key) = range.key.split_once('.').unwrap();
        let (_folder, path) = file(&format!("[{section}]\n{key} = \"5\"\n"));
        let message = refusal(&Sources { file: Some(path), ..Sources::default() });
        assert!(message.contains(range.key) && message.contains("\"5\""), "{message}");
    }
}

#[test]
fn a_number_that_toml_cannot_hold_is_refused_by_its_key() {
    let refused = |text: &str| {
        let (_folder, path) = file(text);
        let message = refusal(&Sources { file: Some(path.clone()), ..Sources::default() });
        message.replace(path.to_str().unwrap(), "FILE")
    };
    for (text, value) in [
        ("mode = \"basic\"\n[nonce]\n[ lease ] # x\nsigner_ms=9223372036854775808\n", "9223372036854775808"),
        ("lease.signer_ms = -99_999_999_999_999_999_999 # x\n[nonce]\n", "-99999999999999999999"),
    ] {
        let said = format!("\n  lease.signer_ms = {value} (FILE): allowed: 1000 to 300000 milliseconds");
        assert!(refused(text).ends_with(&said), "{}", refused(text));
    }
    let message = refused("[cluster]\nsecret = 99999999999999999999\n");
    assert!(message.contains("\n  cluster.secret = *** (FILE): allowed: "), "{message}");
    let message = refused("[lease]\nsigner_ms = 11000\nsigner_ms = 11000\n");
    assert!(message.contains("duplicate key `signer_ms`"), "{message}");
}

#[test]
fn texts_are_checked_and_the_message_says_what_is_allowed() {
    for (variable, value, key, expected) in [
        ("FENCEPOST__MODE", "fast", "mode", "basic or worker-queue"),
        ("FENCEPOST_LISTEN", "7070", "server.listen", "127.0.0.1:7070"),
        ("FENCEPOST_LISTEN", "example.org:7070", "server.listen", "127.0.0.1:7070"),
        ("FENCEPOST__SERVER__ADVERTISE", "ftp://x", "server.advertise", "http://"),
        ("FENCEPOST__SERVER__ADVERTISE", "http://x/path", "server.advertise", "without a path"),
        ("FENCEPOST__SERVER__NODE_NAME", "a b", "server.node_name", "letters"),
        ("FENCEPOST_DATABASE_URL", "ledger.db", "ledger.url", "sqlite:PATH"),
        ("FENCEPOST_DATABASE_URL", "mysql://h/d", "ledger.url", "postgres://"),
        ("FENCEPOST_DATABASE_URL", "sqlite:", "ledger.url", "sqlite:PATH"),
        ("FENCEPOST_DATABASE_URL", "sqlite::memory:", "ledger.url", "no :memory:"),
        ("FENCEPOST_DATABASE_URL", "sqlite:a.db?mode=ro", "ledger.url", "no ? and no #"),
        ("FENCEPOST_DATABASE_URL", "sqlite:file:a.db", "ledger.url", "by its path"),
        ("FENCEPOST_DATABASE_URL", "sqlite:/", "ledger.url", "a file, and no folder"),
        ("FENCEPOST__LEDGER__EXPECTED_ID", "production", "ledger.expected_id", "32 digits 0-9 and a-f"),
        ("FENCEPOST__LEDGER__WITNESS_FILE", "a\0b", "ledger.witness_file", "a path, or empty"),
        ("FENCEPOST_REDIS_URL", "http://h", "bus.redis_url", "redis://"),
        ("FENCEPOST_REDIS_URL", "localhost:6379", "bus.redis_url", "redis://"),
        ("FENCEPOST__IDS__DATA_CENTER", "32", "ids.data_center", "\"0\" to \"31\""),
        ("FENCEPOST__IDS__DATA_CENTER", "+1", "ids.data_center", "\"0\" to \"31\""),
        ("FENCEPOST__IDS__WORKER", "1024", "ids.worker", "\"0\" to \"1023\""),
        ("FENCEPOST__IDS__WORKER", "01", "ids.worker", "\"0\" to \"1023\""),
        ("FENCEPOST__IDS__SCRAMBLE_KEY", "5a", "ids.scramble_key", "64 hexadecimal digits"),
        ("FENCEPOST__LOG__FORMAT", "xml", "log.format", "auto, pretty, json"),
        ("RUST_LOG", "info,=,", "log.filter", "info,ledger=debug"),
        ("FENCEPOST__TRACES__SAMPLED_PERCENT", "101", "traces.sampled_percent", "0 to 100 percent"),
        ("FENCEPOST__TRACES__OTLP_URL", "localhost:4318", "traces.otlp_url", "an http:// or https:// URL"),
        ("FENCEPOST__TRACES__OTLP_URL", "grpc://localhost", "traces.otlp_url", "an http:// or https:// URL"),
        (
            "FENCEPOST__TRACES__OTLP_URL",
            "http://u:p@localhost",
            "traces.otlp_url",
            "without a name, a password",
        ),
        ("FENCEPOST__TRACES__OTLP_URL", "http://192.0.2.1:4318", "traces.otlp_url", "traces.insecure = true"),
    ] {
        let message = refusal(&sources(&[(variable, value)]));
        for part in [key, variable, expected] {
            assert!(message.contains(part), "{part:?} is not in: {message}");
        }
    }
    for url in [
        "sqlite:a.db",
        "sqlite:///a.db",
        "sqlite://a.db",
        "postgres://localhost/d",
        "postgresql://u:p@[::1]:1/d",
    ] {
        assert_eq!(sources(&[("FENCEPOST_DATABASE_URL", url)]).load().unwrap().config.ledger.url, url);
    }
}

#[test]
fn relations_between_values_hold() {
    for (variables, key, expected) in [
        (
            [("FENCEPOST__BASIC__LEASE_KEPT_MAX_MS", "5000"), ("X", "")],
            "basic.lease_kept_max_ms",
            "a third of lease.signer_ms",
        ),
        (
            [("FENCEPOST__BASIC__LEASE_WAIT_MS", "10000"), ("X", "")],
            "basic.lease_wait_ms",
            "request_timeout_ms",
        ),
        (
            [("FENCEPOST__LEDGER__CALL_TIMEOUT_MS", "10001"), ("X", "")],
            "ledger.call_timeout_ms",
            "request_timeout_ms",
        ),
        (
            [("FENCEPOST__SERVER__READING_BYTES_MAX", "50000000"), ("X", "")],
            "server.caller_reading_bytes_max",
            "server.reading_bytes_max (50000000)",
        ),
        (
            [("FENCEPOST__SERVER__REQUESTS_MAX", "5"), ("X", "")],
            "server.caller_requests_max = 4000 (the default): ",
            "server.requests_max (5)",
        ),
        (
            [("FENCEPOST__SERVER__SOCKETS_MAX", "5"), ("FENCEPOST__SERVER__CALLER_SOCKETS_MAX", "6")],
            "server.caller_sockets_max",
            "server.sockets_max (5)",
        ),
        (
            [("FENCEPOST__NONCE__IN_FLIGHT_MAX", "5"), ("FENCEPOST__NONCE__QUEUE_MAX", "6")],
            "nonce.queue_max",
            "in_flight_max (5)",
        ),
        (
            [("FENCEPOST__NODES__HEARTBEAT_MS", "2400"), ("X", "")],
            "nodes.vouched_ms",
            "two and a half times nodes.heartbeat_ms (6000)",
        ),
        (
            [("FENCEPOST__NODES__VOUCHED_MS", "10000"), ("X", "")],
            "nodes.reservation_ms",
            "more than nodes.vouched_ms (10000)",
        ),
        (
            [("FENCEPOST__NODES__OFFLINE_MS", "10000"), ("FENCEPOST__JOBS__NODE_GRACE_MS", "10000")],
            "nodes.offline_ms",
            "more than nodes.reservation_ms (10000)",
        ),
        (
            [("FENCEPOST__NODES__ACK_MS", "10000"), ("X", "")],
            "nodes.unanswered_ms",
            "more than nodes.ack_ms (10000)",
        ),
        (
            [("FENCEPOST__NODES__OFFLINE_MS", "20000"), ("X", "")],
            "jobs.node_grace_ms",
            "at most nodes.offline_ms (20000)",
        ),
        (
            [("FENCEPOST__IDS__LEASE_MS", "5000"), ("FENCEPOST__IDS__LEAD_MS", "5001")],
            "ids.lead_ms",
            "ids.lease_ms (5000)",
        ),
        (
            [("FENCEPOST__IDS__DATA_CENTER", "3"), ("FENCEPOST__IDS__WORKER", "32")],
            "ids.worker",
            "with ids.data_center",
        ),
    ] {
        let message = refusal(&sources(&variables));
        assert!(message.contains(key) && message.contains(expected), "{message}");
    }
}

#[test]
fn a_file_that_the_daemon_writes_is_no_other_one_and_not_the_ledger() {
    const IDS: &str = "FENCEPOST__IDS__FILE";
    const WITNESS: &str = "FENCEPOST__LEDGER__WITNESS_FILE";
    const LEDGER: &str = "FENCEPOST_DATABASE_URL";
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path(), &link).unwrap();
    let (by_name, by_link) = (folder.path().join("l.db"), link.join("l.db"));
    let (by_name, by_link) = (by_name.to_str().unwrap(), by_link.to_str().unwrap());
    let named = format!("sqlite:{by_name}");
    for (variables, key) in [
        ([(IDS, "./l.db"), (LEDGER, "sqlite:l.db")], "ids.file = \"./l.db\" (FENCEPOST__IDS__FILE)"),
        ([(IDS, "l.db-wal"), (LEDGER, "sqlite://./l.db")], "ids.file"),
        ([(IDS, "l.db-shm"), (LEDGER, "sqlite:l.db")], "ids.file"),
        ([(IDS, by_link), (LEDGER, named.as_str())], "ids.file"),
        ([(IDS, "x/witness"), (WITNESS, "./x//witness")], "ids.file"),
        ([(WITNESS, "l.db"), (LEDGER, "sqlite:./l.db")], "ledger.witness_file"),
    ] {
        let message = refusal(&sources(&variables));
        assert!(message.contains(key) && message.contains("a file of its own"), "{message}");
    }
    for variables in [
        [(IDS, ""), (WITNESS, "")],
        [(IDS, "l.db-ids"), (LEDGER, "sqlite:l.db")],
        [(IDS, "l.db"), (LEDGER, "postgres://localhost/l.db")],
    ] {
        sources(&variables).load().unwrap();
    }
}

#[test]
fn a_worker_number_is_chosen_by_none_one_or_both_of_its_halves() {
    for (data_center, worker, choice) in [
        ("", "", Some(Choice::Any)),
        ("31", "", Some(Choice::DataCenter(31))),
        ("", "1023", Some(Choice::Fixed(WorkerNumber::new(1_023).unwrap()))),
        ("3", "5", Some(Choice::Fixed(WorkerNumber::new(101).unwrap()))),
        ("0", "0", Some(Choice::Fixed(WorkerNumber::new(0).unwrap()))),
        ("32", "", None),
        ("3", "32", None),
        ("", "-1", None),
    ] {
        let ids = Ids { data_center: data_center.to_owned(), worker: worker.to_owned(), ..Ids::default() };
        assert_eq!(ids.choice(), choice, "{data_center:?} {worker:?}");
    }
}

#[test]
fn the_listener_for_probes_has_a_port_of_its_own() {
    let set = |listen, probes| {
        sources(&[("FENCEPOST_LISTEN", listen), ("FENCEPOST__SERVER__PROBE_LISTEN", probes)]).load()
    };
    for same in ["127.0.0.1:7070", "localhost:7070"] {
        let message = set("127.0.0.1:7070", same).unwrap_err().to_string();
        assert!(message.contains("server.probe_listen") && message.contains("other than"), "{message}");
    }
    assert!(set("127.0.0.1:7070", "127.0.0.1:7071").is_ok());
    assert!(set("127.0.0.1:0", "127.0.0.1:0").is_ok());
}

#[test]
fn a_variable_that_names_another_ledger_than_the_file_is_warned_of() {
    const OF_FILE: &str = "postgres://u:hunter2@localhost/one";
    let (_folder, path) = file(&format!("[ledger]\nurl = \"{OF_FILE}\"\n"));
    let given = |variables: &[(&str, &str)]| Sources { file: Some(path.clone()), ..sources(variables) };
    let warned = |sources: &Sources| other_ledger(&sources.load().unwrap());
    for variable in ["FENCEPOST_DATABASE_URL", "FENCEPOST__LEDGER__URL"] {
        for (url, shown) in [
            ("postgres://u:hunter2@localhost/two", "postgres://u:***@localhost/two"),
            ("postgres://u:hunter2@localhost:7/one", "postgres://u:***@localhost:7/one"),
            ("postgres://u:hunter2@127.0.0.1/one", "postgres://u:***@127.0.0.1/one"),
            ("sqlite:./ledger.db", "sqlite:./ledger.db"),
        ] {
            let warned = warned(&given(&[(variable, url)])).expect(url);
            for part in [variable, shown, "postgres://u:***@localhost/one"] {
                assert!(warned.contains(part), "{part:?} is not in: {warned}");
            }
            assert!(!warned.contains("hunter2"), "{warned}");
        }
        for same in [
            OF_FILE,
            "postgres://localhost/one",
            "postgresql://v:other@localhost:5432/one?sslmode=disable",
            "postgres://localhost/one?user=v&password=other",
        ] {
            assert_eq!(warned(&given(&[(variable, same)])), None, "{same}");
        }
    }
    assert_eq!(warned(&given(&[])), None);
    let mut by_option = given(&[]);
    by_option.options.database_url = Some("sqlite:./ledger.db".to_owned());
    assert_eq!(warned(&by_option), None, "an option is given for this one start");
}

#[test]
fn idempotency_keys_that_are_forgotten_before_a_hold_ends_are_warned_of() {
    let warned = |hold_ms: u64, key_retention_ms: u64| {
        short_keys(&Config {
            nonce: Nonce { hold_ms, key_retention_ms, ..Nonce::default() },
            ..Config::default()
        })
    };
    let warning = warned(2_000, 1_999).expect("it is shorter");
    for part in ["nonce.key_retention_ms (1999)", "nonce.hold_ms (2000)"] {
        assert!(warning.contains(part), "{part:?} is not in: {warning}");
    }
    assert_eq!(warned(2_000, 2_000), None);
    assert_eq!(short_keys(&Config::default()), None);
}

#[test]
fn the_keys_that_have_changed_are_named() {
    let before = Config::default();
    let mut after = before.clone();
    assert_eq!(changed_keys(&before, &after), Vec::<String>::new());
    after.mode = "basic".to_owned();
    after.lease.signer_ms += 1;
    after.auth.tokens.push(AuthToken::default());
    assert_eq!(changed_keys(&before, &after), ["auth.tokens", "lease.signer_ms", "mode"]);
}
