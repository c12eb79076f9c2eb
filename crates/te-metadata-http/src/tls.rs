//! TLS with an explicit provider: nothing process-wide is installed or read.

use std::sync::Arc;

use rustls::{
    RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// Which input is bad, and why.
pub(crate) type TlsFault = (&'static str, String);

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

pub(crate) fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| (what, error.to_string()))?;
    if chain.is_empty() {
        return Err((what, "it holds no certificate".to_owned()));
    }
    Ok(chain)
}

pub(crate) fn private_key(what: &'static str, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsFault> {
    // The parser's own words could quote the text.
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| (what, "it holds no private key".to_owned()))
}

pub(crate) fn roots(what: &'static str, pem: &[u8]) -> Result<RootCertStore, TlsFault> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, pem)? {
        roots.add(certificate).map_err(|error| (what, error.to_string()))?;
    }
    Ok(roots)
}
