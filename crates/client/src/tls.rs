//! TLS for `https://`: rustls on ring, trusting what the system trusts.
//!
//! Made by hand rather than by the HTTP library, which would read the system's certificates, and fail
//! without any, also for clients that only speak `http://`.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

use crate::{Error, Result};

/// The settings for connections; `wanted` says whether any URL is `https://`.
pub(crate) fn settings(wanted: bool) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    if wanted {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err(Error::Unusable(
                "https:// needs the system's certificates, and none were found (Debian: install ca-certificates)"
                    .to_owned(),
            ));
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Unusable(format!("TLS cannot be set up: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
