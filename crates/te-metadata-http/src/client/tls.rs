//! The client's side of TLS.

use rustls::{ClientConfig, RootCertStore};

use super::config::{HttpConfig, HttpConfigError};
use crate::tls::{TlsFault, certificates, private_key, provider, roots};

/// What reqwest is to use, for plain `http` too: without it, it looks for a process-wide provider.
pub(super) fn client(config: &HttpConfig) -> Result<ClientConfig, HttpConfigError> {
    build(config).map_err(|(what, reason)| HttpConfigError::Certificate { what, reason })
}

fn build(config: &HttpConfig) -> Result<ClientConfig, TlsFault> {
    let roots = match &config.ca_pem {
        Some(pem) => roots("ca certificate", pem)?,
        None if config.scheme == "https" => system_roots(),
        None => RootCertStore::empty(),
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| ("tls", error.to_string()))?
        .with_root_certificates(roots);
    match &config.identity {
        Some((chain, key)) => {
            let chain = certificates("client certificate", chain)?;
            let key = private_key("client key", key.reveal().as_bytes())?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| ("client certificate", error.to_string()))
        }
        None => Ok(builder.with_no_client_auth()),
    }
}

/// What the system trusts. Certificates it cannot read are left out; without any, every server is refused.
fn system_roots() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        tracing::warn!(target: "te::metadata::http", errors = found.errors.len(), "this system trusts no certificate authority; name one");
    }
    roots
}
