//! The server's side of TLS.

use std::sync::Arc;

use rustls::{ServerConfig, server::WebPkiClientVerifier};

use super::config::ServerTls;
use crate::tls::{TlsFault, certificates, private_key, provider, roots};

pub(super) fn acceptor(tls: &ServerTls) -> Result<tokio_rustls::TlsAcceptor, TlsFault> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| ("tls", error.to_string()))?;
    let builder = match &tls.client_ca {
        Some(pem) => {
            let roots = Arc::new(roots("client ca certificate", pem)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                .build()
                .map_err(|error| ("client ca certificate", error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let chain = certificates("server certificate", &tls.certificates)?;
    let key = private_key("server key", tls.key.reveal().as_bytes())?;
    let config =
        builder.with_single_cert(chain, key).map_err(|error| ("server certificate", error.to_string()))?;
    Ok(tokio_rustls::TlsAcceptor::from(Arc::new(config)))
}
