//! A private authority, and certificates by it for servers and clients of this machine.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;

/// A private authority. Its files are removed on drop.
#[derive(Debug)]
pub struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// The PEM files of a certificate and of its key.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Pair {
    /// Both paths, as texts.
    #[must_use]
    pub fn texts(&self) -> [&str; 2] {
        [&self.certificate, &self.key].map(|path| path.to_str().expect("paths of tests are texts"))
    }
}

impl Authority {
    /// A new one. Authorities of different names sign nothing for each other.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(vec![])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let folder = TempDir::with_prefix("fencepost-authority-")?;
        std::fs::write(folder.path().join("authority.pem"), issuer.pem())?;
        Ok(Self { folder, issuer })
    }

    /// The PEM file of its certificate.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    /// Issues a certificate for 127.0.0.1 and localhost, in files of this name.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn issue(&self, name: &str) -> Result<Pair> {
        let pair = self.pair(name);
        self.issue_into(&pair)?;
        Ok(pair)
    }

    /// Issues a certificate for another machine, in files of its name.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn issue_for(&self, machine: &str) -> Result<Pair> {
        let pair = self.pair(machine);
        self.write(&pair, CertificateParams::new(vec![machine.to_owned()])?)?;
        Ok(pair)
    }

    /// Issues one for 127.0.0.1 and localhost that is an authority's itself, in files of this name.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn issue_authority(&self, name: &str) -> Result<Pair> {
        let pair = self.pair(name);
        let mut params = of_this_machine()?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        self.write(&pair, params)?;
        Ok(pair)
    }

    /// Issues another certificate in place of what these files hold.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn issue_into(&self, pair: &Pair) -> Result<()> {
        self.write(pair, of_this_machine()?)
    }

    /// The same with one that has expired.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn issue_expired_into(&self, pair: &Pair) -> Result<()> {
        let mut params = of_this_machine()?;
        params.not_after = date_time_ymd(2020, 1, 31);
        self.write(pair, params)
    }

    /// The same with one that is valid from the year 4000 on.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn issue_early_into(&self, pair: &Pair) -> Result<()> {
        let mut params = of_this_machine()?;
        params.not_before = date_time_ymd(4000, 1, 1);
        self.write(pair, params)
    }

    fn pair(&self, name: &str) -> Pair {
        let path = |end: &str| self.folder.path().join(format!("{name}.{end}"));
        Pair { certificate: path("crt"), key: path("key") }
    }

    fn write(&self, pair: &Pair, params: CertificateParams) -> Result<()> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        replace(&pair.key, &key.serialize_pem())?;
        replace(&pair.certificate, &certificate.pem())
    }
}

fn of_this_machine() -> Result<CertificateParams> {
    Ok(CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()])?)
}

/// Puts a file in place of another at once, as orchestrators do it.
fn replace(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, path).with_context(|| path.display().to_string())
}
