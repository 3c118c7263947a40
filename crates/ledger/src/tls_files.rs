//! The files of TLS that a database URL names.

use std::path::PathBuf;

/// A file of TLS that connections to the database read, or its text in the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFile {
    /// The parameter of the URL that names it, or the variable of the environment.
    pub named_by: String,
    /// The file, in PEM; `None` where the variable holds the text itself.
    pub file: Option<PathBuf>,
}

/// All of them. What connections do not read, since they need not be encrypted or are not to verify the server, is not among
/// them, but for [`Self::unread_authorities`]: with `sslmode=prefer` the driver reads a certificate and its key only where the
/// server offers encryption.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of authorities.
    pub authorities: Option<TlsFile>,
    /// Those that are named where nobody is verified by them (`sslmode=require`). PostgreSQL's own clients verify the server
    /// then.
    pub unread_authorities: Option<TlsFile>,
    /// This client's own certificate.
    pub certificate: Option<TlsFile>,
    /// Its private key.
    pub key: Option<TlsFile>,
}
