//! What the address of a database depends on, and what not; and which parameters are taken.

use super::*;

/// The address, where the driver has found this host.
fn address_by(url: &str, host: &str) -> String {
    address_of(&connect_options(url).unwrap().host(host))
}

#[test]
fn a_url_without_a_host_has_one_address_whether_the_servers_socket_is_there_or_not() {
    let stopped = address_by("postgres:///f", "localhost");
    for folder in ["/var/run/postgresql", "/private/tmp", "/tmp"] {
        assert_eq!(address_by("postgres:///f", folder), stopped, "{folder}");
        assert_ne!(address_by("postgres:///g", folder), stopped, "{folder}");
        assert_ne!(
            address_by("postgres:///f?port=5433", folder),
            address_by("postgres:///f?port=5432", folder)
        );
    }
    for host in ["/sockets", "db"] {
        assert_ne!(address_by("postgres:///f", host), stopped, "{host}");
    }
}

#[test]
fn a_url_with_a_socket_has_one_address_whatever_the_driver_finds_elsewhere() {
    for url in ["postgres:///f?host=/sockets", "postgres://role@%2Fsockets/f", "postgres:///f?host=/tmp"] {
        let stopped = address_by(url, "localhost");
        for host in ["/var/run/postgresql", "/private/tmp", "/tmp", "db"] {
            assert_eq!(address_by(url, host), stopped, "{url} {host}");
        }
        assert_ne!(address_by("postgres:///f?host=/others", "localhost"), stopped, "{url}");
        assert_ne!(address_by("postgres:///f", "localhost"), stopped, "{url}");
    }
}

#[test]
fn the_files_of_tls_are_those_that_the_driver_reads() {
    let found = |parameters: &str| {
        let TlsFiles { authorities, unread_authorities, certificate, key } =
            tls_files(&format!("postgres://u@h/d?{parameters}")).unwrap();
        assert_eq!(unread_authorities.is_some(), parameters.starts_with("sslmode=require"), "{parameters}");
        [authorities, certificate, key].map(|file| file.map(|file| (file.named_by, file.file)))
    };
    let file = |by: &str, file: &str| Some((by.to_owned(), Some(PathBuf::from(file))));
    let all = "sslrootcert=%2Fa%20b.pem&sslcert=c&sslkey=k";
    for (parameters, expected) in [
        (
            format!("sslmode=verify-full&{all}"),
            [file("sslrootcert", "/a b.pem"), file("sslcert", "c"), file("sslkey", "k")],
        ),
        (
            "sslmode=verify-ca&ssl-ca=a&sslrootcert=b&ssl-cert=c&ssl-key=k".to_owned(),
            [file("sslrootcert", "b"), file("ssl-cert", "c"), file("ssl-key", "k")],
        ),
        // Nobody is verified, or perhaps nothing is encrypted.
        (format!("sslmode=require&{all}"), [None, file("sslcert", "c"), file("sslkey", "k")]),
        (format!("sslmode=prefer&{all}"), [None, None, None]),
        (format!("sslmode=disable&{all}"), [None, None, None]),
    ] {
        assert_eq!(found(&parameters), expected, "{parameters}");
    }
    for (parameter, name) in [("sslmode=never", "sslmode"), ("user=b&ssl-mode=never", "ssl-mode")] {
        let refused = tls_files(&format!("postgres://u@h/d?{parameter}")).unwrap_err().to_string();
        let words = format!(
            "the database URL cannot be used: its {name} is \"never\", and must be disable, allow, prefer, require, verify-ca or \
             verify-full"
        );
        assert_eq!(refused, words);
    }
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(is_pem(pem) && !is_pem("/etc/fencepost/client.crt") && !is_pem("-----BEGIN.pem"));
}

#[test]
fn a_parameter_that_the_driver_does_not_know_is_refused_by_its_name_and_without_its_value() {
    let refused = |rest: &str| match connect_options(&format!("postgres://{rest}")) {
        Err(Error::Address(why)) => why,
        other => panic!("{rest}: {:?}", other.map(drop)),
    };
    for name in ["passwd", "pwd", "sslmod", "SSLMODE", "option", "options[a"] {
        let why = refused(&format!("u@h/f?sslmode=disable&{name}=hunter2"));
        assert!(
            why.contains(&format!("its parameter {name:?} is unknown; known: application_name, ")),
            "{why}"
        );
        assert!(!why.contains("hunter2"), "{why}");
    }
    // Of these passwords, what is behind the first ? or & would be the name.
    for torn in [
        "u:?hunter2@h/f",
        "u:?hunter2=x@h/f",
        "u@h/f?password=a&hunter2",
        "u@h/f?password=a&hunter2=#b",
        "u@h/f?password=a&hunter2=x",
        "u@h/f?password=a&sslmode=disable&hunter2=",
    ] {
        let why = refused(torn);
        assert!(why.contains("percent-encode") && !why.contains("hunter2"), "{torn}: {why}");
    }
}

#[test]
fn several_hosts_are_refused() {
    for url in ["postgres://u@a,b:5432/d?sslmode=verify-full", "postgres:///d?host=a,b"] {
        let refused = connect_options(url).map(drop).unwrap_err().to_string();
        assert!(refused.contains("names several hosts"), "{url}: {refused}");
    }
}

#[test]
fn what_providers_write_into_their_urls_for_libpq_has_no_effect() {
    let plain = "postgres://u:p%3F@h/f?sslmode=require&options=-c%20work_mem%3D1MB";
    let url = format!("{plain}&channel_binding=require&connect_timeout=10&target_session_attrs=read-write");
    assert_eq!(known_part(&url), plain);
    assert_eq!(unused_parameters(&url), ["channel_binding", "connect_timeout", "target_session_attrs"]);
    assert_eq!((known_part(plain), unused_parameters(plain)), (Cow::Borrowed(plain), Vec::new()));
    let [with, without] = [&url, plain].map(|url| format!("{:?}", connect_options(url).unwrap()));
    assert_eq!(with, without);
}

#[test]
fn the_settings_that_the_options_of_a_url_name_are_read_as_the_server_reads_them() {
    let settings =
        |query: &str| session_settings(&connect_options(&format!("postgres://u@h/f{query}")).unwrap());
    let expected = |settings: &[(&str, &str)]| {
        settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect::<Vec<_>>()
    };
    let path = [("search_path", "a, \"b\\c\"")];
    for (query, wanted) in [
        ("", &[][..]),
        ("?options[search_path]=a,%20%22b\\c%22", &path),
        ("?options=-c%20search_path%3Da,\\%20%22b\\\\c%22", &path),
        ("?options=-csearch-path%3Dx%20-S%2064%20--search_path%3Dy", &[("search_path", "y")]),
        (
            "?options[work_mem]=1MB&options[search_path]=x&options[Work_Mem]=2MB",
            &[("search_path", "x"), ("Work_Mem", "2MB")],
        ),
        ("?options[Statement_Timeout]=5s&options=-c%20idle-in-transaction-session-timeout%3D1s", &[]),
        ("?options=-c%20timezone%3DJapan%20-c%20application_name%3Dx%20-c", &[]),
    ] {
        assert_eq!(settings(query), expected(wanted), "{query}");
    }
}

/// The driver changes nothing for a name that it does not take. So a new version of it that takes one less fails here. One
/// that it takes besides is refused until it is added to the list.
#[test]
fn the_driver_takes_each_parameter_that_is_called_known() {
    let options =
        |query: &str| format!("{:?}", connect_options(&format!("postgres://u@h/f{query}")).unwrap());
    for name in PARAMETERS.into_iter().chain(["options[work_mem]"]) {
        let value = match name {
            "sslmode" | "ssl-mode" => "verify-ca",
            "hostaddr" => "192.0.2.7",
            "port" | "statement-cache-capacity" => "7007",
            _ => "another",
        };
        assert_ne!(options(&format!("?{name}={value}")), options(""), "{name}");
    }
    let unknown = PgConnectOptions::from_str("postgres://u@h/f?passwd=another").unwrap();
    let none = PgConnectOptions::from_str("postgres://u@h/f").unwrap();
    assert_eq!(format!("{unknown:?}"), format!("{none:?}"), "what is unknown changes nothing");
}
