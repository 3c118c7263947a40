//! `rediss://`: with a certificate that the system trusts, and with one that it does not.

use std::path::Path;
use std::process::Command;

use bus::{Channel, Error, Options};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use testkit::ports;
use testkit::servers::Redis;

use crate::bench::{LONG, blocking, comes_back, is_present, message, next, open, options, presence, tell};

/// Set in the process that is to trust the authority, to the URL of its Redis.
const TRUSTING: &str = "FENCEPOST_TEST_TLS_REDIS_URL";

/// A Redis whose certificate is for 127.0.0.1, by an authority of its own, `authority.pem` in the folder.
fn start(folder: &Path) -> (Redis, String) {
    let mut authority = CertificateParams::new(vec![]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let server = server.signed_by(&key, &authority).unwrap();
    serve(folder, authority.pem(), server.pem(), key.serialize_pem())
}

/// The same with the authority's certificate as its own, as plain `openssl req -x509` makes one.
fn start_as_authority(folder: &Path) -> (Redis, String) {
    let mut authority = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let own = authority.self_signed(&key).unwrap().pem();
    serve(folder, own.clone(), own, key.serialize_pem())
}

fn serve(folder: &Path, authority: String, certificate: String, key: String) -> (Redis, String) {
    let file = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let ca = file("authority.pem", authority);
    let (certificate, key) = (file("server.pem", certificate), file("server.key", key));
    let port = ports::free().unwrap();
    let redis = Redis::with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
        "--tls-auth-clients",
        "no",
    ]);
    (redis.unwrap(), format!("rediss://127.0.0.1:{port}/"))
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_owned();
    let (_redis, url) = blocking(move || start(&place)).await;
    let lasting = Options { connect_timeout_ms: 600_000, ..options(&url, "t:") };
    let refused = comes_back(open(&lasting)).await.err().unwrap();
    assert!(matches!(refused, Error::Refused { .. }) && !refused.is_retryable(), "{refused:?}");
    assert!(refused.to_string().contains("certificate"), "{refused}");
}

#[tokio::test]
async fn a_server_that_shows_the_certificate_of_an_authority_is_refused_with_what_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_owned();
    let (_redis, url) = blocking(move || start_as_authority(&place)).await;
    let tls_ca_file = Some(folder.path().join("authority.pem"));
    let trusting = Options { tls_ca_file, connect_timeout_ms: 600_000, ..options(&url, "t:") };
    let refused = comes_back(open(&trusting)).await.err().unwrap();
    assert!(matches!(refused, Error::Refused { .. }) && !refused.is_retryable(), "{refused:?}");
    assert!(refused.to_string().contains("one that the authority signed for it"), "{refused}");
}

#[tokio::test]
async fn a_certificate_is_taken_whose_authority_the_file_names() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_owned();
    let (_redis, url) = blocking(move || start(&place)).await;
    let tls_ca_file = Some(folder.path().join("authority.pem"));
    let trusting = Options { tls_ca_file, ..options(&url, "t:") };
    works(&trusting).await;
    for (name, text, words) in [
        ("missing.pem", None, "cannot be read"),
        ("text.pem", Some("text"), "no certificate"),
        (
            "broken.pem",
            Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "cannot be used",
        ),
        (
            "torn.pem",
            Some("-----BEGIN CERTIFICATE-----\nAAAA\n"),
            "its line -----END CERTIFICATE----- is missing",
        ),
    ] {
        let file = folder.path().join(name);
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
        }
        let unusable = Options { tls_ca_file: Some(file), ..trusting.clone() };
        let refused = comes_back(open(&unusable)).await.err().unwrap();
        assert!(matches!(refused, Error::Address(_)), "{refused:?}");
        let said = refused.to_string();
        let is_named = said.contains("bus.tls_ca_file = ") && said.contains(name);
        assert!(is_named && said.contains(words), "{said}");
    }
}

/// What the system trusts is known to a process from its start, so this test starts itself once more.
#[tokio::test]
async fn a_certificate_that_the_system_trusts_is_taken() {
    if let Ok(url) = std::env::var(TRUSTING) {
        return works(&options(&url, "t:")).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_owned();
    let (_redis, url) = blocking(move || start(&place)).await;
    let authority = folder.path().join("authority.pem");
    let again = blocking(move || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tls::a_certificate_that_the_system_trusts_is_taken", "--nocapture"])
            .env("SSL_CERT_FILE", authority)
            .env(TRUSTING, url)
            .output()
            .unwrap()
    })
    .await;
    let said = String::from_utf8_lossy(&again.stdout).into_owned() + &String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success() && said.contains("1 passed"), "{said}");
}

async fn works(options: &Options) {
    let bus = open(options).await.unwrap();
    let mut subscription = bus.subscribe(Channel::Cluster);
    bus.announce(&presence("a-1"), LONG).await.unwrap();
    assert!(is_present(&bus, "a-1").await);
    tell(&bus, "secret").await;
    assert_eq!(next(&mut subscription).await, message("secret"));
}
