//! TLS of this process: the listener's, and that of its connections to other instances. What is wrong with a file is
//! told with the key that names the file.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use client::tls::{BadFile, Pair, Part, authorities, begins_at, check_file, expires_at, is_for};
use client::{Peers, TlsOptions};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use url::{Host, Url};

use super::endpoint::Endpoint;
use crate::config::Config;
use crate::exit::{Exit, Failure};

/// Reads the files of the listener, if it is to speak TLS.
///
/// # Errors
/// [`Exit::Config`] for a file that cannot be used.
pub fn listener(config: &Config) -> Result<Option<api::Tls>, Failure> {
    let Some(files) = config.server.tls() else { return Ok(None) };
    check_pair(&files.pair, name(config).as_deref(), None).map_err(|bad| refused(config, &bad))?;
    let tls = api::Tls::read(&files).map_err(|bad| refused(config, &bad))?;
    show_expiry("listener", tls.expires_at());
    Ok(Some(tls))
}

/// Makes ready for the other instances, at which `advertise` is reached in the same way as they are.
///
/// # Errors
/// [`Exit::Config`] for a file that cannot be used, or where nobody could be trusted.
pub fn peers(config: &Config, advertise: &str) -> Result<Peers, Failure> {
    let tls = config.cluster.tls(&config.server);
    check(&tls, None).map_err(|bad| refused(config, &bad))?;
    // An instance on SQLite is alone.
    let has_peers = !config.ledger.is_sqlite();
    let peers = Peers::new(has_peers && advertise.starts_with("https:"), &tls).map_err(|error| {
        Failure::new(Exit::Config, format!("cluster.ca_file, for other instances at https://…: {error}"))
    })?;
    show_expiry("peers", peers.expires_at());
    Ok(peers)
}

/// Reads the files of TLS that the ledger's URL names; keeps nothing of them. The driver would read them when it connects, and
/// the failure would look like a server that is away.
///
/// # Errors
/// [`Exit::Config`] for a file that cannot be used.
pub fn check_ledger(config: &Config) -> Result<(), Failure> {
    let files = ledger::tls_files(&config.ledger.url)?;
    let bad = |of: &ledger::TlsFile, reason: &str| {
        let file = of.file.as_ref().map_or_else(String::new, |file| format!(" = \"{}\"", file.display()));
        Failure::new(Exit::Config, format!("ledger.url: {}{file}: {reason}", of.named_by))
    };
    if let Some(of) = &files.authorities
        && let Some(file) = &of.file
    {
        authorities(file).map_err(|found| bad(of, &found.reason))?;
    }
    match (&files.certificate, &files.key) {
        (None, None) => Ok(()),
        (Some(certificate), Some(key)) => {
            // What a variable holds is the driver's to read.
            let read = match (certificate.file.clone(), key.file.clone()) {
                (Some(certificate), Some(key)) => Pair { certificate, key }.read().map(drop),
                (Some(certificate), None) => check_file(&certificate, Part::Certificate),
                (None, Some(key)) => check_file(&key, Part::Key),
                (None, None) => Ok(()),
            };
            read.map_err(|found| bad(if found.part == Part::Key { key } else { certificate }, &found.reason))
        }
        (Some(alone), None) | (None, Some(alone)) => {
            Err(bad(alone, "sslcert and sslkey are to be there together"))
        }
    }
}

/// Reads every file of TLS that a start reads, the bus's too; keeps nothing of them.
///
/// # Errors
/// [`Exit::Config`] for a file that would end the start.
pub fn check_files(config: &Config) -> Result<(), Failure> {
    check_ledger(config)?;
    listener(config)?;
    // No socket is bound, and the port makes no difference.
    let advertise = Endpoint::at(config, ([127, 0, 0, 1], 0).into(), String::new()).advertise;
    peers(config, &advertise)?;
    config.bus.options().check().map_err(Failure::from)
}

/// Warnings about files of TLS that a start accepts: authorities by which nothing is verified, and certificates
/// that are not valid yet. Files that cannot be used are left to [`check_files`].
pub fn file_warnings(config: &Config) -> Vec<String> {
    let unread = ledger::tls_files(&config.ledger.url).ok().and_then(|files| files.unread_authorities);
    let unread = unread.map(|of| {
        format!(
            "ledger.url: {} is not read: with sslmode=require nothing verifies the server, with sslmode=verify-full that does",
            of.named_by
        )
    });
    let pairs = [config.server.tls().map(|files| files.pair), config.cluster.tls(&config.server).pair];
    let early = pairs.into_iter().flatten().filter_map(|pair| check_pair(&pair, None, None).ok()?);
    let mut warnings: Vec<_> = unread.into_iter().chain(early.map(|of| named(config, &of))).collect();
    // Instances show each other the listener's, if no other is configured.
    warnings.dedup();
    warnings
}

/// Reads the files of the connections to other instances again. What the log is to warn of, if there is anything.
///
/// # Errors
/// What is wrong, for the log; nothing has changed.
pub fn renew_peers(config: &Config, peers: &Peers) -> Result<Option<String>, String> {
    let tls = config.cluster.tls(&config.server);
    let warning = check(&tls, peers.expires_at()).map_err(|bad| named(config, &bad))?;
    peers.renew(&tls).map_err(|error| error.to_string())?;
    show_expiry("peers", peers.expires_at());
    Ok(warning.map(|of| named(config, &of)))
}

/// Reads certificate and key of the listener again. What the log is to warn of, if there is anything.
///
/// # Errors
/// What is wrong, for the log; nothing has changed.
pub fn reload(config: &Config, tls: &api::Tls) -> Result<Option<String>, String> {
    let Some(files) = config.server.tls() else { return Ok(None) };
    let warning = check_pair(&files.pair, name(config).as_deref(), tls.expires_at());
    let warning = warning.map_err(|bad| named(config, &bad))?;
    tls.reload().map_err(|bad| named(config, &bad))?;
    show_expiry("listener", tls.expires_at());
    Ok(warning.map(|of| named(config, &of)))
}

/// The files of the listener that are looked at for changes.
pub fn listener_files(config: &Config) -> Vec<PathBuf> {
    config.server.tls().map_or_else(Vec::new, |files| vec![files.pair.certificate, files.pair.key])
}

/// The files of the connections to other instances that are looked at for changes.
pub fn peer_files(config: &Config) -> Vec<PathBuf> {
    let TlsOptions { ca_file, pair } = config.cluster.tls(&config.server);
    pair.into_iter().flat_map(|pair| [pair.certificate, pair.key]).chain(ca_file).collect()
}

/// As [`check_pair`], for the authorities too.
fn check(tls: &TlsOptions, in_use_expires: Option<u64>) -> Result<Option<BadFile>, BadFile> {
    tls.ca_file.as_deref().map(authorities).transpose()?;
    let checked = tls.pair.as_ref().map(|pair| check_pair(pair, None, in_use_expires)).transpose()?;
    Ok(checked.flatten())
}

/// What there is to warn of. Refuses a pair that cannot be used, or whose certificate has expired or is not for this name. One
/// that is valid from a moment that is still to come is taken, with a warning: nothing would have it looked at again then. So
/// is one that has expired, but later than the one in use: where this machine's clock is ahead, the next one seems to have
/// expired as well, and is still the better.
fn check_pair(
    pair: &Pair,
    name: Option<&str>,
    in_use_expires: Option<u64>,
) -> Result<Option<BadFile>, BadFile> {
    let read = pair.read()?;
    let bad = |reason| BadFile { part: Part::Certificate, file: pair.certificate.clone(), reason };
    let expires = expires_at(&read);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut warning = None;
    if let Some(at) = expires.filter(|at| *at < now) {
        let expired = bad(format!("its certificate expired at {}", shown(at)));
        if in_use_expires.is_none_or(|in_use| at <= in_use) {
            return Err(expired);
        }
        warning = Some(expired);
    } else if let Some(at) = begins_at(&read).filter(|at| *at > now) {
        let at = shown(at);
        warning = Some(bad(format!(
            "its certificate is valid from {at} on, which this machine's clock has not reached"
        )));
    }
    if let Some(name) = name.filter(|name| !is_for(&read, name)) {
        return Err(bad(format!("its certificate is not for {name}, the name in server.advertise")));
    }
    Ok(warning)
}

fn shown(at: u64) -> String {
    let at = i64::try_from(at).ok().and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
    at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

/// The name in the URL that is advertised, if it has one and no address. The name of the machine, by which others ask where no
/// URL is configured, is not looked at: an instance without others may be reached by another name.
fn name(config: &Config) -> Option<String> {
    match Url::parse(&config.server.advertise).ok()?.host()? {
        Host::Domain(name) => Some(name.to_owned()),
        Host::Ipv4(_) | Host::Ipv6(_) => None,
    }
}

fn show_expiry(of: &'static str, at: Option<u64>) {
    if let Some(at) = at {
        metrics::gauge!("fencepost_tls_certificate_expires_seconds", "of" => of).set(at as f64);
    }
}

fn refused(config: &Config, bad: &BadFile) -> Failure {
    Failure::new(Exit::Config, named(config, bad))
}

/// What is wrong, beginning with the key.
fn named(config: &Config, bad: &BadFile) -> String {
    let (server, cluster) = (&config.server, &config.cluster);
    let keys = match bad.part {
        Part::Certificate => [
            ("server.tls_certificate", &server.tls_certificate),
            ("cluster.certificate", &cluster.certificate),
        ],
        Part::Key => [("server.tls_key", &server.tls_key), ("cluster.key", &cluster.key)],
        Part::Authorities => {
            [("server.tls_client_ca", &server.tls_client_ca), ("cluster.ca_file", &cluster.ca_file)]
        }
    };
    let key = keys.iter().find(|(_, file)| !file.is_empty() && Path::new(file) == bad.file);
    let key = key.map_or("TLS", |(key, _)| key);
    format!("{key} = \"{}\": {}", bad.file.display(), bad.reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Server;

    const KEY: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIMkr4oesY3uPfgqou8HdnbcH2UW6KPhzFgXKZx2tHnWU
-----END PRIVATE KEY-----
";
    /// Until the end of 2018.
    const EARLIER: &str = "-----BEGIN CERTIFICATE-----
MIHfMIGSoAMCAQICAgfjMAUGAytlcDAMMQowCAYDVQQDDAF0MB4XDTE4MDEwMTAw
MDAwMFoXDTE5MDEwMTAwMDAwMFowDDEKMAgGA1UEAwwBdDAqMAUGAytlcAMhAPDy
G9zIvLD7g+zu9PmERHtLlfGhxHjN0KDr4Gl1DrCkoxgwFjAUBgNVHREEDTALggls
b2NhbGhvc3QwBQYDK2VwA0EAIcciPirtBlzIHfFYjB4oB2gVytoLIfDQMHTd9Ya3
ngow9NhIIJqLep5ySH6SGwYvIpLBOWYnu3AXWeBii3jiDQ==
-----END CERTIFICATE-----
";
    /// Until the end of 2019.
    const LATER: &str = "-----BEGIN CERTIFICATE-----
MIHfMIGSoAMCAQICAgfkMAUGAytlcDAMMQowCAYDVQQDDAF0MB4XDTE4MDEwMTAw
MDAwMFoXDTIwMDEwMTAwMDAwMFowDDEKMAgGA1UEAwwBdDAqMAUGAytlcAMhAPDy
G9zIvLD7g+zu9PmERHtLlfGhxHjN0KDr4Gl1DrCkoxgwFjAUBgNVHREEDTALggls
b2NhbGhvc3QwBQYDK2VwA0EAiVAC/3U30K3g7Mh6X/JDCMgaHpr1UOZdo0VyvzyX
FbkRoTZhlbJVtgbxX6D0cCEuYWi3O8MGCiME26uH9MZ4Bw==
-----END CERTIFICATE-----
";
    /// When the later one expires.
    const LATER_EXPIRES: Option<u64> = Some(1_577_836_800);

    #[test]
    fn an_expired_certificate_takes_the_place_of_one_that_expires_earlier_with_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (tls_certificate, tls_key) = (file("certificate"), file("key"));
        let server = Server { tls_certificate, tls_key, ..Server::default() };
        let config = Config { server, ..Config::default() };
        let write = |text: &str| std::fs::write(file("certificate"), text).unwrap();
        std::fs::write(file("key"), KEY).unwrap();
        write(EARLIER);
        let tls = api::Tls::read(&config.server.tls().unwrap()).unwrap();
        let peers = Peers::new(false, &config.cluster.tls(&config.server)).unwrap();
        assert!(listener(&config).is_err(), "no start takes it");
        write(LATER);
        for warning in [reload(&config, &tls), renew_peers(&config, &peers)] {
            let warning = warning.unwrap().expect("it has expired");
            assert!(warning.starts_with("server.tls_certificate = "), "{warning}");
            assert!(warning.ends_with("expired at 2020-01-01T00:00:00Z"), "{warning}");
        }
        assert_eq!([tls.expires_at(), peers.expires_at()], [LATER_EXPIRES; 2]);
        write(EARLIER);
        for refused in [reload(&config, &tls), renew_peers(&config, &peers)] {
            assert!(refused.unwrap_err().ends_with("expired at 2019-01-01T00:00:00Z"));
        }
        assert_eq!([tls.expires_at(), peers.expires_at()], [LATER_EXPIRES; 2]);
    }
}
