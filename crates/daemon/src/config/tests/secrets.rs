//! Tests of what others may reach and read: listeners, connections without encryption, tokens, and secrets in messages.

use super::*;

const TOKEN: (&str, &str) =
    ("FENCEPOST__AUTH__TOKENS", r#"[{"name":"ops","token":"t-1","scopes":["admin"]}]"#);

#[test]
fn only_loopback_is_listened_on_without_tokens() {
    for (variable, key) in
        [("FENCEPOST_LISTEN", "server.listen"), ("FENCEPOST__SERVER__PROBE_LISTEN", "server.probe_listen")]
    {
        for listen in ["0.0.0.0:7070", "[::]:7070", "192.0.2.1:7070"] {
            let message = refusal(&sources(&[(variable, listen)]));
            assert!(message.contains(key) && message.contains("auth.tokens"), "{message}");
            assert!(sources(&[(variable, listen)]).load_without_listening().is_ok(), "{listen}");
            let given = [(variable, listen), TOKEN, ("FENCEPOST__SERVER__INSECURE", "true")];
            let loaded = sources(&given).load().unwrap();
            assert_eq!(loaded.config.auth.tokens[0].scopes, ["admin"]);
        }
        for listen in ["127.0.0.1:0", "127.3.2.1:7070", "[::1]:7070", "localhost:7071"] {
            assert!(sources(&[(variable, listen)]).load().is_ok(), "{listen}");
        }
        for listen in ["7070", "example.org:7070", "127.0.0.1"] {
            let message = refusal(&sources(&[(variable, listen)]));
            assert!(message.contains(key) && message.contains("an IP address and a port"), "{message}");
        }
    }
}

#[test]
fn what_leaves_this_machine_is_encrypted_unless_it_is_called_insecure() {
    const LISTEN: &str = "FENCEPOST_LISTEN";
    const LEDGER: &str = "FENCEPOST_DATABASE_URL";
    const BUS: &str = "FENCEPOST_REDIS_URL";
    for (variable, value, key, insecure) in [
        (LISTEN, "0.0.0.0:7070", "server.listen", "server.insecure"),
        (LISTEN, "[::]:7070", "server.listen", "server.insecure"),
        (LISTEN, "192.0.2.1:7070", "server.listen", "server.insecure"),
        (LEDGER, "postgres://u:hunter2@db/f", "ledger.url", "ledger.insecure"),
        (LEDGER, "postgres://u:hunter2@192.0.2.1:5432/f?sslmode=require", "ledger.url", "ledger.insecure"),
        (LEDGER, "postgres://u:hunter2@db/f?sslmode=verify-ca", "ledger.url", "ledger.insecure"),
        (LEDGER, "postgres:///f?host=db&password=hunter2", "ledger.url", "ledger.insecure"),
        (BUS, "redis://:hunter2@redis", "bus.redis_url", "bus.insecure"),
        (BUS, "redis://127.0.0.1,192.0.2.1:6379", "bus.redis_url", "bus.insecure"),
    ] {
        let given = [TOKEN, (variable, value)];
        let message = refusal(&sources(&given));
        for part in [key, variable, insecure] {
            assert!(message.contains(part), "{part:?} is not in: {message}");
        }
        assert!(!message.contains("hunter2"), "{message}");
        let allowed = format!("FENCEPOST__{}", insecure.to_ascii_uppercase().replace('.', "__"));
        let loaded = sources(&[given[0], given[1], (&allowed, "true")]).load().unwrap();
        let warnings = encryption::warnings(&loaded.config);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(key) && !warnings[0].contains("hunter2"), "{warnings:?}");
        assert_eq!(loaded.config.bus.options().insecure, key == "bus.redis_url");
        assert!(refusal(&sources(&[given[0], given[1], (&allowed, "false")])).contains(key));
        assert!(refusal(&sources(&[given[0], (&allowed, "yes")])).contains("true or false"));
    }
    for (variable, value) in [
        (LISTEN, "127.0.0.1:1"),
        (LISTEN, "[::1]:1"),
        (LEDGER, "postgres://localhost/f"),
        (LEDGER, "postgres://u@127.0.0.1/f?sslmode=disable"),
        (LEDGER, "postgres://u@[::1]:1/f"),
        (LEDGER, "postgres:///f?host=/run/postgresql"),
        (LEDGER, "postgres://%2Frun%2Fpostgresql/f"),
        (LEDGER, "postgres://u@db/f?sslmode=verify-full&sslrootcert=/ca.pem"),
        (BUS, "redis://localhost"),
        (BUS, "redis://[::1]:1,127.0.0.1:2"),
        (BUS, "rediss://redis"),
    ] {
        let loaded = sources(&[TOKEN, (variable, value)]).load();
        let loaded = loaded.unwrap_or_else(|refused| panic!("{value}: {refused}"));
        assert_eq!(encryption::warnings(&loaded.config), Vec::<String>::new(), "{value}");
    }
}

#[test]
fn a_password_that_is_not_escaped_is_refused_with_the_words_to_escape_it() {
    for (variable, key, url) in [
        ("FENCEPOST_DATABASE_URL", "ledger.url", "postgres://u:hunter#2@h/f"),
        ("FENCEPOST_DATABASE_URL", "ledger.url", "postgres://u:hunter?2@h/f"),
        ("FENCEPOST_DATABASE_URL", "ledger.url", "postgres://u:hunter/2@h/f"),
        // What these lead to has another host and another password, for the parser.
        ("FENCEPOST_DATABASE_URL", "ledger.url", "postgres://u:1#hunter2@h/f"),
        ("FENCEPOST_DATABASE_URL", "ledger.url", "postgres://u:1?hunter2@h/f"),
        ("FENCEPOST_DATABASE_URL", "ledger.url", "postgres://u:1/hunter2@h/f"),
        ("FENCEPOST_DATABASE_URL", "ledger.url", "postgres://u:hunter@ss/w#2@h/f"),
        ("FENCEPOST_REDIS_URL", "bus.redis_url", "redis://:hunter#2@h"),
        ("FENCEPOST_REDIS_URL", "bus.redis_url", "redis://:hunter?2@h"),
        ("FENCEPOST_REDIS_URL", "bus.redis_url", "redis://:hunter/2@h"),
        ("FENCEPOST_REDIS_URL", "bus.redis_url", "redis://u:1/hunter2@h"),
    ] {
        let message = refusal(&sources(&[(variable, url)]));
        assert!(message.contains(key) && message.contains("percent-encode"), "{url}: {message}");
        assert!(!message.contains("hunter"), "{url}: {message}");
    }
    let whole = refusal(&sources(&[("FENCEPOST_DATABASE_URL", "postgres://u:hunter%232@h/f")]));
    assert!(whole.contains("sslmode=verify-full") && !whole.contains("percent-encode"), "{whole}");
}

#[test]
fn commands_that_do_not_listen_need_only_their_ledger_encrypted() {
    let elsewhere = [("FENCEPOST_LISTEN", "0.0.0.0:7070"), ("FENCEPOST_REDIS_URL", "redis://redis")];
    assert!(sources(&elsewhere).load_without_listening().is_ok());
    let ledger = sources(&[("FENCEPOST_DATABASE_URL", "postgres://db/f")]).load_without_listening();
    assert!(ledger.expect_err("it is open").to_string().contains("sslmode=verify-full"));
}

#[test]
fn the_files_of_tls_are_named_together_and_none_is_ignored() {
    let (certificate, key) =
        (("FENCEPOST__SERVER__TLS_CERTIFICATE", "c"), ("FENCEPOST__SERVER__TLS_KEY", "k"));
    let client_ca = ("FENCEPOST__SERVER__TLS_CLIENT_CA", "ca");
    let (own, its_key) = (("FENCEPOST__CLUSTER__CERTIFICATE", "c"), ("FENCEPOST__CLUSTER__KEY", "k"));
    let bus_ca = ("FENCEPOST__BUS__TLS_CA_FILE", "ca");
    let advertise = ("FENCEPOST__SERVER__ADVERTISE", "http://localhost:1");
    for (given, wrong) in [
        (vec![certificate], "server.tls_key = \"\" (the default): "),
        (vec![key], "server.tls_certificate = \"\" (the default): "),
        (vec![client_ca], "server.tls_client_ca"),
        (vec![own], "cluster.key = \"\" (the default): "),
        (vec![its_key], "cluster.certificate = \"\" (the default): "),
        (vec![bus_ca], "bus.tls_ca_file"),
        (vec![bus_ca, ("FENCEPOST_REDIS_URL", "redis://localhost")], "rediss://"),
        (vec![certificate, key, advertise], "server.advertise"),
    ] {
        let message = refusal(&sources(&given));
        assert!(message.contains(wrong), "{wrong:?} is not in: {message}");
    }
    let loaded = sources(&[certificate, key, client_ca, TOKEN, ("FENCEPOST_LISTEN", "0.0.0.0:7070")]);
    let Config { server, cluster, .. } = loaded.load().unwrap().config;
    assert_eq!(server.tls().unwrap().client_ca, Some(PathBuf::from("ca")));
    assert_eq!(cluster.tls(&server).pair, server.tls().map(|files| files.pair), "its own by default");
    let loaded = sources(&[certificate, key, own, ("FENCEPOST__CLUSTER__KEY", "other")]).load().unwrap();
    let shown = loaded.config.cluster.tls(&loaded.config.server).pair.unwrap();
    assert_eq!(shown.key, PathBuf::from("other"));
}

#[test]
fn a_plain_token_that_may_be_guessed_is_warned_of_where_callers_from_elsewhere_come() {
    let tokens = |token: &str| format!(r#"[{{"name":"ops","token":"{token}","scopes":["admin"]}}]"#);
    let warnings = |tokens: &str, place: (&str, &str)| {
        let given = [("FENCEPOST__AUTH__TOKENS", tokens), place, ("FENCEPOST__SERVER__INSECURE", "true")];
        weak_tokens(&sources(&given).load().unwrap().config)
    };
    let (weak, strong) = (tokens(&"hunter2".repeat(3)), tokens(&"x".repeat(limits::TOKEN_CHARS_MIN)));
    let digest = format!(r#"[{{"name":"ops","sha256":"{}","scopes":["admin"]}}]"#, "0a".repeat(32));
    for place in [
        ("FENCEPOST_LISTEN", "0.0.0.0:7070"),
        ("FENCEPOST__SERVER__PROBE_LISTEN", "[::]:7071"),
        ("FENCEPOST__SERVER__ADVERTISE", "https://fencepost.example"),
    ] {
        let warned = warnings(&weak, place);
        assert_eq!(warned.len(), 1, "{place:?}: {warned:?}");
        assert!(warned[0].contains("\"ops\"") && warned[0].contains("`fencepost token new`"), "{warned:?}");
        assert!(!warned[0].contains("hunter2"), "{warned:?}");
        assert_eq!(warnings(&strong, place), Vec::<String>::new(), "{place:?}");
        assert_eq!(warnings(&digest, place), Vec::<String>::new(), "{place:?}");
    }
    assert_eq!(warnings(&weak, ("FENCEPOST_LISTEN", "127.0.0.1:7070")), Vec::<String>::new());
}

#[test]
fn tokens_of_the_file_that_do_not_count_are_warned_of() {
    let variable = |name: &str| format!(r#"[{{"name":"{name}","token":"hunter2","scopes":["admin"]}}]"#);
    let warned = |of_file: &str, of_variable: &str| {
        let (_folder, path) = file(of_file);
        let given = sources(&[("FENCEPOST__AUTH__TOKENS", of_variable)]);
        other_tokens(&Sources { file: Some(path), ..given }.load().unwrap())
    };
    let of_file = "[[auth.tokens]]\nname = \"ops\"\ntoken = \"hunter2\"\nscopes = [\"admin\"]\n";
    let warning = warned(of_file, &variable("other")).expect("the file's do not count");
    assert!(warning.contains("FENCEPOST__AUTH__TOKENS") && !warning.contains("hunter2"), "{warning}");
    for (of_file, of_variable) in
        [(of_file, variable("ops")), (of_file, String::new()), ("[auth]\ntokens = []\n", variable("ops"))]
    {
        assert_eq!(warned(of_file, &of_variable), None, "{of_file} {of_variable}");
    }
}

#[test]
fn bad_tokens_are_refused_and_never_shown() {
    for (tokens, expected) in [
        (r#"[{"name":"a","token":"","scopes":["admin"]}]"#, "is empty"),
        (r#"[{"name":"","token":"hunter2","scopes":["admin"]}]"#, "[0].name"),
        (r#"[{"name":"a","token":"hunter 2","scopes":["admin"]}]"#, "header"),
        (r#"[{"name":"a","token":"hunter2","scopes":[]}]"#, "scopes is empty"),
        (r#"[{"name":"a","token":"hunter2","scopes":["root"]}]"#, "unknown scope \"root\""),
        (
            r#"[{"name":"a","token":"hunter2","scopes":["node"]},{"name":"b","token":"hunter2","scopes":["admin"]}]"#,
            "[1].token repeats an earlier secret",
        ),
        (r#"[{"name":"a","token":"hunter2"}]"#, "auth.tokens[0].scopes is missing"),
        (r#"[{"name":"a","sha256":"hunter2","scopes":["read"]}]"#, "64 hexadecimal digits"),
        (r#"[{"name":"a","token":"hunter2","scopes":["read"],"tenants":[]}]"#, "[0].tenants is empty"),
        (r#"[{"name":"a","token":"hunter2","scopes":["read"],"signers":["a b"]}]"#, "no pattern"),
        (r#"[{"name":"a","token":"hunter2","scopes":["read"],"expires_at":"soon"}]"#, "[0].expires_at"),
        (
            r#"[{"name":"a","token":"hunter2","scopes":["node"]},{"name":"a","token":"other","scopes":["admin"]}]"#,
            "[1].name repeats",
        ),
        (r#"[{"name":"a","token":"hunter2","scopes":["node"],"hunter":1}]"#, "has the unknown key hunter"),
        (r#"[{"name":"a","token":["hunter2"],"scopes":["node"]}]"#, "auth.tokens"),
        (r#"["hunter2"]"#, "auth.tokens"),
        ("hunter2", "auth.tokens: neither JSON (expected value at line 1 column 1) nor TOML ("),
        (
            r#"[{"name":"a","token":"hunter2","scopes":["read"]}"#,
            "neither JSON (EOF while parsing a list at line 1 column ",
        ),
        (
            r#"[{"name":"a","token":"hunter2","scopes":["read"],"scopes":["admin"]}]"#,
            "auth.tokens: duplicate field `scopes` at line 1 column ",
        ),
        (
            r#"[{name="a",token="hunter2",scopes=["read"],scopes=["admin"]}]"#,
            "nor TOML (duplicate key `scopes`",
        ),
    ] {
        let message = refusal(&sources(&[("FENCEPOST__AUTH__TOKENS", tokens)]));
        assert!(message.contains(expected), "{expected:?} is not in: {message}");
        assert!(message.contains("FENCEPOST__AUTH__TOKENS"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn tokens_are_read_from_toml_in_file_and_environment() {
    let entry = "[{ name = \"a\", token = \"t\", scopes = [\"submit\", \"admin\"] }]";
    let (_folder, path) = file(&format!("[auth]\ntokens = {entry}\n"));
    let of_file = Sources { file: Some(path), ..Sources::default() }.load().unwrap();
    let of_environment = sources(&[("FENCEPOST__AUTH__TOKENS", entry)]).load().unwrap();
    assert_eq!(of_file.config, of_environment.config);
    assert_eq!(of_file.config.auth.tokens.len(), 1);
}

#[test]
fn the_text_of_an_unknown_key_is_not_shown() {
    let (_folder, path) =
        file("secert = \"hunter2\"\n[cluster]\nsecert = \"hunter2\"\n[clustre]\nx = \"hunter2\"\n");
    let of_file = refusal(&Sources { file: Some(path.clone()), ..Sources::default() });
    let origin = path.to_str().unwrap();
    for key in ["secert", "cluster.secert", "clustre.x"] {
        assert!(of_file.contains(&format!("\n  {key} ({origin}): unknown key; known")), "{of_file}");
    }
    let of_environment = refusal(&sources(&[("FENCEPOST__CLUSTER__SECERT", "hunter2")]));
    let said = "cluster.secert (FENCEPOST__CLUSTER__SECERT): unknown key; known in [cluster]: ";
    assert!(of_environment.contains(said), "{of_environment}");
    for message in [of_file, of_environment] {
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn no_message_and_no_rendering_shows_a_secret() {
    let broken = "[auth]\ntokens = [{ name = \"a\", token = \"hunter2\", scopes = [\"admin\" }]\n";
    let (_folder, path) = file(broken);
    let message = refusal(&Sources { file: Some(path), ..Sources::default() });
    assert!(message.contains("line 2") && !message.contains("hunter2"), "{message}");

    let message = refusal(&sources(&[("FENCEPOST_DATABASE_URL", "mysql://u:hunter2@h/d")]));
    assert!(!message.contains("hunter2"), "{message}");

    let loaded = sources(&[
        ("FENCEPOST_DATABASE_URL", "postgres://u:hunter2@h/d?sslmode=verify-full"),
        ("FENCEPOST_REDIS_URL", "rediss://:hunter2@r"),
        ("FENCEPOST__AUTH__TOKENS", r#"[{"name":"a","token":"hunter2","scopes":["admin"]}]"#),
    ])
    .load()
    .unwrap();
    let shown = serde_json::to_string(&redact::config(&loaded.config)).unwrap();
    assert!(!shown.contains("hunter2") && shown.contains("postgres://u:***@h/d?sslmode"), "{shown}");
    assert!(!format!("{:?}", loaded.config.auth).contains("hunter2"));

    let loaded = sources(&[("FENCEPOST__CLUSTER__SECRET", &"hunter2".repeat(5))]).load().unwrap();
    let shown = serde_json::to_string(&redact::config(&loaded.config)).unwrap();
    assert!(!shown.contains("hunter2") && !format!("{:?}", loaded.config).contains("hunter2"), "{shown}");
    let message = refusal(&sources(&[("FENCEPOST__CLUSTER__SECRET", "hunter2")]));
    assert!(message.contains("cluster.secret") && !message.contains("hunter2"), "{message}");

    let key = "5a".repeat(32);
    for wrong in [key.clone() + "5", key.replace('5', "x")] {
        let message = refusal(&sources(&[("FENCEPOST__IDS__SCRAMBLE_KEY", &wrong)]));
        assert!(!message.contains(&wrong[..8]), "{message}");
    }
    let loaded = sources(&[("FENCEPOST__IDS__SCRAMBLE_KEY", &key)]).load().unwrap();
    let shown = serde_json::to_string(&redact::config(&loaded.config)).unwrap();
    assert!(!shown.contains(&key) && shown.contains(r#""scramble_key":"***""#), "{shown}");
    assert!(!format!("{:?}", loaded.config).contains(&key));
}
