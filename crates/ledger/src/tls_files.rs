//! The files of TLS that a database URL names.

use std::path::PathBuf;

/// A file of TLS that connections to the database read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFile {
    /// The parameter of the URL that names it, or the variable of the environment.
    pub named_by: String,
    /// The file, in PEM.
    pub file: PathBuf,
}

/// All of them. What connections do not read, since they are not to be encrypted or not to verify the server, is not among
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of authorities.
    pub authorities: Option<TlsFile>,
    /// This client's own certificate.
    pub certificate: Option<TlsFile>,
    /// Its private key.
    pub key: Option<TlsFile>,
}
