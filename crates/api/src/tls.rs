//! TLS of the listener: its certificate, which can be replaced while connections are open, and whose certificates it
//! demands of clients.
//!
//! What must never live here: configuration keys (the daemon names them), or a decision about what a caller may do:
//! that is the token's.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use client::tls::{BadFile, Pair, Part, authorities};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;

/// The PEM files of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The listener's own certificate and key.
    pub pair: Pair,
    /// Authorities; a client must then show a certificate that is signed by one of them.
    pub client_ca: Option<PathBuf>,
}

/// A listener's TLS. Clones share the certificate.
#[derive(Clone)]
pub struct Tls {
    pair: Pair,
    current: Arc<Current>,
    config: ServerConfig,
}

/// The pair for new connections. Connections that are open keep the one that they began with.
#[derive(Debug)]
struct Current(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`BadFile`] for the one that cannot be used.
    pub fn read(files: &TlsFiles) -> Result<Self, BadFile> {
        let current = Arc::new(Current(ArcSwap::from_pointee(files.pair.read()?)));
        let provider = Arc::new(ring::default_provider());
        let unusable =
            |part: Part, file: &PathBuf, reason: String| BadFile { part, file: file.clone(), reason };
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                unusable(Part::Certificate, &files.pair.certificate, format!("TLS cannot be set up: {error}"))
            })?;
        let config = match &files.client_ca {
            None => config.with_no_client_auth(),
            Some(file) => {
                let roots = Arc::new(authorities(file)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build().map_err(
                    |error| {
                        unusable(
                            Part::Authorities,
                            file,
                            format!("it cannot be used to verify clients: {error}"),
                        )
                    },
                )?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let config = config.with_cert_resolver(Arc::clone(&current) as Arc<dyn ResolvesServerCert>);
        Ok(Self { pair: files.pair.clone(), current, config })
    }

    /// Reads certificate and key again, for connections from now on.
    ///
    /// # Errors
    /// [`BadFile`]; the pair stays what it was.
    pub fn reload(&self) -> Result<(), BadFile> {
        self.current.0.store(Arc::new(self.pair.read()?));
        Ok(())
    }

    /// The last second at which the certificate for new connections is valid, since 1970. `None` if that cannot be read.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        client::tls::expires_at(&self.current.0.load())
    }

    /// What the server listens with.
    pub(crate) fn config(&self) -> ServerConfig {
        self.config.clone()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("pair", &self.pair).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn pair(folder: &Path, name: &str) -> Pair {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
        let file = |end: &str, text: String| {
            let path = folder.join(format!("{name}.{end}"));
            std::fs::write(&path, text).unwrap();
            path
        };
        Pair { certificate: file("crt", certificate.pem()), key: file("key", key.serialize_pem()) }
    }

    fn refusal(pair: Pair, client_ca: Option<PathBuf>) -> BadFile {
        Tls::read(&TlsFiles { pair, client_ca }).unwrap_err()
    }

    #[test]
    fn the_file_that_is_to_be_mended_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (pair(folder.path(), "one"), pair(folder.path(), "other"));
        let text = folder.path().join("text");
        std::fs::write(&text, "no PEM").unwrap();
        let missing = folder.path().join("missing");
        let broken = folder.path().join("broken");
        std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let written = |name: &str, pem: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, pem).unwrap();
            path
        };
        let half = written("half", "-----BEGIN PRIVATE KEY-----\nAAAA\n");
        let odd = written("odd", "-----BEGIN PRIVATE KEY\nAAAA\n-----END PRIVATE KEY-----\n");
        let strange = written("strange", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
        let spoilt = written("spoilt", "-----BEGIN PRIVATE KEY-----\nA A:\n-----END PRIVATE KEY-----\n");
        let locked = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let locked = written("locked", locked);
        let of_old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n\
                      -----END RSA PRIVATE KEY-----\n";
        let of_old = written("of_old", of_old);
        let with_certificate = |file: &PathBuf| Pair { certificate: file.clone(), key: one.key.clone() };
        let with_key = |file: &PathBuf| Pair { certificate: one.certificate.clone(), key: file.clone() };
        for (bad, ca, file, words) in [
            (with_certificate(&missing), None, (Part::Certificate, &missing), "cannot be read"),
            (with_certificate(&text), None, (Part::Certificate, &text), "no certificate in PEM"),
            (with_certificate(&one.key), None, (Part::Certificate, &one.key), "no certificate in PEM"),
            (with_certificate(&broken), None, (Part::Certificate, &broken), "no usable certificate"),
            (with_key(&missing), None, (Part::Key, &missing), "cannot be read"),
            (with_key(&text), None, (Part::Key, &text), "no private key in PEM"),
            (with_key(&one.certificate), None, (Part::Key, &one.certificate), "no private key in PEM"),
            (with_key(&other.key), None, (Part::Key, &other.key), "not the key of the certificate"),
            (with_key(&half), None, (Part::Key, &half), "its line -----END PRIVATE KEY----- is missing"),
            (with_key(&odd), None, (Part::Key, &odd), "does not end with -----"),
            (with_key(&strange), None, (Part::Key, &strange), "ECDSA on P-256 or P-384, or Ed25519"),
            (with_key(&spoilt), None, (Part::Key, &spoilt), "is no base64"),
            (with_key(&locked), None, (Part::Key, &locked), "is encrypted, and must not be"),
            (with_key(&of_old), None, (Part::Key, &of_old), "is encrypted, and must not be"),
            (one.clone(), Some(missing.clone()), (Part::Authorities, &missing), "cannot be read"),
            (one.clone(), Some(text.clone()), (Part::Authorities, &text), "no certificate in PEM"),
            (
                one.clone(),
                Some(broken.clone()),
                (Part::Authorities, &broken),
                "certificate that cannot be read",
            ),
        ] {
            let refused = refusal(bad, ca);
            assert_eq!((refused.part, &refused.file), file, "{refused}");
            assert!(refused.reason.contains(words), "{words:?} is not in: {refused}");
        }
    }

    #[test]
    fn a_certificate_says_until_when_it_is_valid_and_for_which_names() {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(vec!["one.example".to_owned(), "*.all.example".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2021, 1, 1);
        params.not_after = rcgen::date_time_ymd(2031, 1, 1);
        let file = |name: &str, text: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let certificate = file("crt", params.self_signed(&key).unwrap().pem());
        let read = Pair { certificate, key: file("key", key.serialize_pem()) }.read().unwrap();
        assert_eq!(client::tls::begins_at(&read), Some(1_609_459_200));
        assert_eq!(client::tls::expires_at(&read), Some(1_924_992_000));
        let names = ["one.example", "a.all.example", "all.example", "two.example", "127.0.0.1", "no name"];
        let is_for = names.map(|name| client::tls::is_for(&read, name));
        assert_eq!(is_for, [true, true, false, false, false, false]);
    }

    #[test]
    fn a_pair_that_cannot_be_used_leaves_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let one = pair(folder.path(), "one");
        let tls = Tls::read(&TlsFiles { pair: one.clone(), client_ca: None }).unwrap();
        let shown = || tls.current.0.load().cert[0].clone();
        let first = shown();
        let other = pair(folder.path(), "other");
        std::fs::copy(&other.certificate, &one.certificate).unwrap();
        assert!(tls.reload().is_err(), "the key is still the one before");
        assert_eq!(shown(), first);
        std::fs::copy(&other.key, &one.key).unwrap();
        tls.reload().unwrap();
        assert_ne!(shown(), first);
    }
}
