//! TLS for `https://`: rustls on ring, trusting what the system trusts, or the authorities of one file.
//!
//! Made by hand rather than by the HTTP library, which would read the system's certificates, and fail
//! without any, also for clients that only speak `http://`.

mod followed;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::{
    Resumption, WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor, verify_server_name,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, RootCertStore};

use self::followed::Followed;
use crate::{Error, Result};

/// The authorities that a client trusts for `https://`, and how it proves who it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// A PEM file of certificates. The client trusts servers whose certificate is signed by one of them, and no others;
    /// without a file it trusts what the system trusts.
    /// A client or node reads the file again where it is replaced. Of one that cannot be used it warns by `tracing`, once for
    /// each change, and goes on with what it read before.
    pub ca_file: Option<PathBuf>,
    /// The client's own certificate and key, for servers that demand one. Read again where they are replaced, in the same way.
    pub pair: Option<Pair>,
}

/// The PEM files of a certificate and of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The certificate, and after it those that lead to its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// A file of a [`Pair`] or of an authority that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFile {
    /// What the file should hold.
    pub part: Part,
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// What a PEM file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// One's own certificate.
    Certificate,
    /// Its private key.
    Key,
    /// Certificates of authorities.
    Authorities,
}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.reason)
    }
}

impl std::error::Error for BadFile {}

impl From<BadFile> for Error {
    fn from(bad: BadFile) -> Self {
        Self::Unusable(bad.to_string())
    }
}

impl Pair {
    /// Reads both files and checks that they belong together.
    ///
    /// # Errors
    /// [`BadFile`], naming the file that is to be mended.
    pub fn read(&self) -> std::result::Result<CertifiedKey, BadFile> {
        let chain = certificates(&self.certificate, Part::Certificate)?;
        let bad_key = |reason: String| BadFile { part: Part::Key, file: self.key.clone(), reason };
        let key = private_key(&self.key)?;
        CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                bad_key(format!("it is not the key of the certificate in {}", self.certificate.display()))
            }
            rustls::Error::InvalidCertificate(_) => BadFile {
                part: Part::Certificate,
                file: self.certificate.clone(),
                reason: format!("it has no usable certificate: {error}"),
            },
            // The library says only that it could not read it.
            rustls::Error::General(_) => bad_key(
                "the key cannot be used: it must be RSA of 2,048 to 4,096 bits, ECDSA on P-256 or P-384, or Ed25519".to_owned(),
            ),
            error => bad_key(format!("the key cannot be used: {error}")),
        })
    }
}

/// Reads one file, as far as it can be checked without those that it belongs to.
///
/// # Errors
/// [`BadFile`] if the file cannot be read, or holds something else.
pub fn check_file(file: &Path, part: Part) -> std::result::Result<(), BadFile> {
    match part {
        Part::Certificate => certificates(file, part).map(drop),
        Part::Key => private_key(file).map(drop),
        Part::Authorities => authorities(file).map(drop),
    }
}

/// The private key in a PEM file.
fn private_key(file: &Path) -> std::result::Result<PrivateKeyDer<'static>, BadFile> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| {
        let said = "its private key is encrypted, and must not be: nobody is asked for its password";
        let reason = if is_encrypted(file) { said.to_owned() } else { of_pem(&error, "private key") };
        BadFile { part: Part::Key, file: file.to_owned(), reason }
    })
}

/// The last second at which the certificate of a pair is valid, since 1970. `None` if that cannot be read.
#[must_use]
pub fn expires_at(pair: &CertifiedKey) -> Option<u64> {
    // At the end of time every certificate has expired, and the refusal says since when.
    match refused_at(pair, u64::MAX)? {
        CertificateError::ExpiredContext { not_after, .. } => Some(not_after.as_secs()),
        _ => None,
    }
}

/// The first second at which the certificate of a pair is valid, since 1970. `None` if that is 1970 or before, or cannot be read.
#[must_use]
pub fn begins_at(pair: &CertifiedKey) -> Option<u64> {
    match refused_at(pair, 0)? {
        CertificateError::NotValidYetContext { not_before, .. } => Some(not_before.as_secs()),
        _ => None,
    }
}

/// Why the certificate of a pair is refused so many seconds after 1970. Its time is looked at first, before any authority.
fn refused_at(pair: &CertifiedKey, seconds: u64) -> Option<CertificateError> {
    let certificate = ParsedCertificate::try_from(pair.end_entity_cert().ok()?).ok()?;
    let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    match verify_server_cert_signed_by_trust_anchor(&certificate, &RootCertStore::empty(), &[], at, &[]) {
        Err(rustls::Error::InvalidCertificate(error)) => Some(error),
        _ => None,
    }
}

/// Whether clients take the certificate of a pair for that of the server of this name.
#[must_use]
pub fn is_for(pair: &CertifiedKey, name: &str) -> bool {
    let (Ok(certificate), Ok(name)) = (pair.end_entity_cert(), ServerName::try_from(name)) else {
        return false;
    };
    ParsedCertificate::try_from(certificate).is_ok_and(|it| verify_server_name(&it, &name).is_ok())
}

/// The certificates in a PEM file: at least one.
fn certificates(file: &Path, part: Part) -> std::result::Result<Vec<CertificateDer<'static>>, BadFile> {
    let bad = |reason: String| BadFile { part, file: file.to_owned(), reason };
    let read =
        CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let found = read.map_err(|error| bad(of_pem(&error, "certificate")))?;
    if found.is_empty() {
        return Err(bad("it has no certificate in PEM (-----BEGIN CERTIFICATE-----)".to_owned()));
    }
    Ok(found)
}

/// The authorities in a PEM file.
///
/// # Errors
/// [`BadFile`] if the file cannot be read, or one of its certificates cannot.
pub fn authorities(file: &Path) -> std::result::Result<RootCertStore, BadFile> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file, Part::Authorities)? {
        roots.add(certificate).map_err(|error| BadFile {
            part: Part::Authorities,
            file: file.to_owned(),
            reason: format!("it has a certificate that cannot be read: {error}"),
        })?;
    }
    Ok(roots)
}

fn of_pem(error: &rustls::pki_types::pem::Error, what: &str) -> String {
    use rustls::pki_types::pem::Error as Pem;
    match error {
        Pem::Io(error) => format!("it cannot be read: {error}"),
        Pem::NoItemsFound => format!("it has no {what} in PEM"),
        Pem::MissingSectionEnd { end_marker } => {
            format!(
                "it breaks off: its line -----END {}----- is missing",
                String::from_utf8_lossy(end_marker)
            )
        }
        Pem::IllegalSectionStart { .. } => {
            "it has a line that begins with -----BEGIN and does not end with -----".to_owned()
        }
        Pem::Base64Decode(_) => "what stands between its lines BEGIN and END is no base64".to_owned(),
        error => format!("it is no readable PEM file: {error}"),
    }
}

/// Whether a file has an encrypted private key, in PKCS #8 or as older programs wrote it.
fn is_encrypted(file: &Path) -> bool {
    let marks = ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "Proc-Type: 4,ENCRYPTED"];
    let has = |pem: &[u8], mark: &str| pem.windows(mark.len()).any(|text| text == mark.as_bytes());
    std::fs::read(file).is_ok_and(|pem| marks.iter().any(|mark| has(&pem, mark)))
}

/// When the files of [`TlsOptions`] are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// When the settings are made, and never again.
    Once,
    /// Also at the first handshake after they were replaced, for a client that lives long. Files that cannot be used change
    /// nothing.
    AtChanges,
}

/// The settings for connections; `wanted` says whether any URL is `https://`. Files that are named are read in any
/// case, so that a wrong name is found at once.
pub(crate) fn settings(wanted: bool, options: &TlsOptions, reading: Reading) -> Result<ClientConfig> {
    // Where no files are looked at, none ever changes.
    let looked_at = |files: Vec<PathBuf>| match reading {
        Reading::Once => Vec::new(),
        Reading::AtChanges => files,
    };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Unusable(format!("TLS cannot be set up: {error}")))?;
    let config = match options.ca_file.clone() {
        Some(file) => {
            let followed = Followed::new(looked_at(vec![file.clone()]), move || verifier(&file))?;
            config.dangerous().with_custom_certificate_verifier(Arc::new(followed))
        }
        None => config.with_root_certificates(otherwise(wanted)?),
    };
    let mut config = match options.pair.clone() {
        Some(pair) => {
            let files = looked_at(vec![pair.certificate.clone(), pair.key.clone()]);
            let followed = Followed::new(files, move || pair.read().map(Arc::new))?;
            config.with_client_cert_resolver(Arc::new(followed))
        }
        None => config.with_no_client_auth(),
    };
    if reading == Reading::AtChanges && *options != TlsOptions::default() {
        // In a session that is resumed nobody shows a certificate: what the files before proved would go on counting.
        config.resumption = Resumption::disabled();
    }
    Ok(config)
}

/// What is trusted where no file is named.
fn otherwise(wanted: bool) -> Result<RootCertStore> {
    if wanted { of_the_system() } else { Ok(RootCertStore::empty()) }
}

/// Verifies servers by the authorities in a PEM file.
fn verifier(file: &Path) -> std::result::Result<Arc<WebPkiServerVerifier>, BadFile> {
    let roots = Arc::new(authorities(file)?);
    WebPkiServerVerifier::builder_with_provider(roots, Arc::new(ring::default_provider())).build().map_err(
        |error| BadFile { part: Part::Authorities, file: file.to_owned(), reason: error.to_string() },
    )
}

fn of_the_system() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(Error::Unusable(
            "https:// needs the certificates of authorities: name a file of them, or install the system's (Debian: \
             ca-certificates); none were found"
                .to_owned(),
        ));
    }
    Ok(roots)
}
