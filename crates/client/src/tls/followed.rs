//! Certificates in files that are replaced while a client lives: what is read of them is read again at the first handshake after
//! a change.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

/// For each file when it was changed and how many bytes it has. `None` for one that cannot be looked at.
type Look = Vec<Option<(SystemTime, u64)>>;

/// What was read of some files. Files that cannot be used, for example because one of two has been replaced, change nothing: a
/// warning says why, once for each change, and they are read again at the next handshake.
pub(super) struct Followed<T> {
    files: Vec<PathBuf>,
    read: Box<dyn Fn() -> Result<Arc<T>, String> + Send + Sync>,
    last: Mutex<Last<T>>,
}

struct Last<T> {
    /// What was read.
    read: Arc<T>,
    /// How the files looked then.
    look: Look,
    /// How files look that cannot be used, if these came since.
    refused: Option<Look>,
}

impl<T> Followed<T> {
    /// Reads the files.
    ///
    /// # Errors
    /// Those of `read`.
    pub(super) fn new<E: fmt::Display>(
        files: Vec<PathBuf>,
        read: impl Fn() -> Result<Arc<T>, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        // Looked at first: what changes in between is found at the next handshake.
        let look = look(&files);
        let last = Mutex::new(Last { read: read()?, look, refused: None });
        let read = move || read().map_err(|error| error.to_string());
        Ok(Self { files, read: Box::new(read), last })
    }

    /// What the files hold now, as far as it can be used.
    fn now(&self) -> Arc<T> {
        let (now, refused) = self.look_again();
        if let Some(refused) = refused {
            tracing::warn!(refused, "the certificates cannot be reloaded; they stay as they are");
        }
        now
    }

    /// The same, and why what the files hold cannot be used, if they have changed since that was said last.
    fn look_again(&self) -> (Arc<T>, Option<String>) {
        let look = look(&self.files);
        let mut last = self.lock();
        let mut news = None;
        if last.look == look {
            last.refused = None;
        } else {
            match (self.read)() {
                Ok(read) => *last = Last { read, look, refused: None },
                Err(refused) => {
                    let before = last.refused.replace(look);
                    news = (before != last.refused).then_some(refused);
                }
            }
        }
        (Arc::clone(&last.read), news)
    }

    /// What was read last, without a look at the files.
    fn known(&self) -> Arc<T> {
        Arc::clone(&self.lock().read)
    }

    fn lock(&self) -> MutexGuard<'_, Last<T>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn look(files: &[PathBuf]) -> Look {
    let seen = files.iter().map(std::fs::metadata);
    seen.map(|file| file.ok().and_then(|file| Some((file.modified().ok()?, file.len())))).collect()
}

impl<T> fmt::Debug for Followed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Followed").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ResolvesClientCert for Followed<CertifiedKey> {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The files are looked at once in a handshake, for the certificate. How signatures are verified does not depend on them.
impl ServerCertVerifier for Followed<WebPkiServerVerifier> {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        at: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.now().verify_server_cert(certificate, intermediates, name, ocsp_response, at)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.known().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.known().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.known().supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    fn number(file: &Path) -> Result<Arc<u32>, String> {
        let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
        text.parse().map(Arc::new).map_err(|_| text)
    }

    /// Writes a file whose time of change differs from any other's here.
    fn write(file: &Path, text: &str, seconds: u64) {
        std::fs::write(file, text).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        std::fs::File::options().write(true).open(file).unwrap().set_modified(at).unwrap();
    }

    #[test]
    fn a_file_is_read_again_when_it_has_changed_and_one_that_cannot_be_used_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("number");
        let follow = || {
            let read = file.clone();
            Followed::new(vec![file.clone()], move || number(&read))
        };
        assert!(follow().is_err(), "there is no file yet");
        write(&file, "1", 1);
        let followed = follow().unwrap();
        assert_eq!(*followed.now(), 1);
        write(&file, "2", 2);
        assert_eq!(*followed.now(), 2, "of the same length, and later");
        write(&file, "x", 3);
        assert_eq!(*followed.now(), 2);
        write(&file, "3", 3);
        assert_eq!(*followed.now(), 3, "mended, with the time of the one that could not be used");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(*followed.now(), 3);
        write(&file, "44", 3);
        assert_eq!(*followed.now(), 44, "of the same time, and longer");
    }

    #[test]
    fn why_a_file_cannot_be_used_is_said_once_for_each_change() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("number");
        write(&file, "1", 1);
        let read = file.clone();
        let followed = Followed::new(vec![file.clone()], move || number(&read)).unwrap();
        let looks = || {
            let (now, refused) = followed.look_again();
            (*now, refused)
        };
        assert_eq!(looks(), (1, None));
        let refused = |text: &str| (1, Some(text.to_owned()));
        write(&file, "x", 2);
        assert_eq!(looks(), refused("x"));
        assert_eq!(looks(), (1, None), "it was said");
        write(&file, "y", 3);
        assert_eq!(looks(), refused("y"), "another one");
        write(&file, "1", 1);
        assert_eq!(looks(), (1, None));
        write(&file, "z", 3);
        assert_eq!(looks(), refused("z"), "what was in use had come back");
        write(&file, "2", 4);
        assert_eq!(looks(), (2, None));
    }
}
