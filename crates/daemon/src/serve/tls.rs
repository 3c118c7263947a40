//! TLS of this process: the listener's, and that of its connections to other instances. What is wrong with a file is
//! told with the key that names the file.

use std::path::{Path, PathBuf};

use client::tls::{BadFile, Part, authorities};
use client::{Peers, TlsOptions};

use super::endpoint::Endpoint;
use crate::config::Config;
use crate::exit::{Exit, Failure};

/// Reads the files of the listener, if it is to speak TLS.
///
/// # Errors
/// [`Exit::Config`] for a file that cannot be used.
pub fn listener(config: &Config) -> Result<Option<api::Tls>, Failure> {
    let read = config.server.tls().map(|files| api::Tls::read(&files)).transpose();
    read.map_err(|bad| refused(config, &bad))
}

/// Makes ready for the other instances, at which `advertise` is reached in the same way as they are.
///
/// # Errors
/// [`Exit::Config`] for a file that cannot be used, or where nobody could be trusted.
pub fn peers(config: &Config, advertise: &str) -> Result<Peers, Failure> {
    let tls = config.cluster.tls(&config.server);
    check(&tls).map_err(|bad| refused(config, &bad))?;
    // An instance on SQLite is alone.
    let has_peers = !matches!(ledger::Kind::of(&config.ledger.url), Ok(ledger::Kind::Sqlite));
    Peers::new(has_peers && advertise.starts_with("https:"), &tls).map_err(|error| {
        Failure::new(Exit::Config, format!("cluster.ca_file, for other instances at https://…: {error}"))
    })
}

/// Reads every file of TLS that a start reads, the bus's too, but those that the ledger's URL names; keeps nothing of them.
///
/// # Errors
/// [`Exit::Config`] for a file that would end the start.
pub fn check_files(config: &Config) -> Result<(), Failure> {
    listener(config)?;
    // No socket is bound, and the port makes no difference.
    let advertise = Endpoint::at(config, ([127, 0, 0, 1], 0).into(), String::new()).advertise;
    peers(config, &advertise)?;
    config.bus.options().check().map_err(Failure::from)
}

/// Reads the files of the connections to other instances again.
///
/// # Errors
/// What is wrong, for the log; nothing has changed.
pub fn renew_peers(config: &Config, peers: &Peers) -> Result<(), String> {
    let tls = config.cluster.tls(&config.server);
    check(&tls).map_err(|bad| named(config, &bad))?;
    peers.renew(&tls).map_err(|error| error.to_string())
}

/// Reads certificate and key of the listener again.
///
/// # Errors
/// What is wrong, for the log; nothing has changed.
pub fn reload(config: &Config, tls: &api::Tls) -> Result<(), String> {
    tls.reload().map_err(|bad| named(config, &bad))
}

/// The files that are looked at for changes.
pub fn files(config: &Config) -> Vec<PathBuf> {
    let own = config.server.tls().map(|files| files.pair);
    let TlsOptions { ca_file, pair } = config.cluster.tls(&config.server);
    let pairs = own.into_iter().chain(pair).flat_map(|pair| [pair.certificate, pair.key]);
    let mut files: Vec<_> = pairs.chain(ca_file).collect();
    files.sort();
    files.dedup();
    files
}

fn check(tls: &TlsOptions) -> Result<(), BadFile> {
    tls.ca_file.as_deref().map(authorities).transpose()?;
    tls.pair.as_ref().map(client::tls::Pair::read).transpose()?;
    Ok(())
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
