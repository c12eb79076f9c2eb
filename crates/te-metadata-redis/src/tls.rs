//! TLS to the server: our own, because the client's would install a process-wide provider.

use std::{io, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{RedisConfig, RedisConfigError};

pub(crate) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

fn unusable(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> RedisConfigError {
    move |reason| RedisConfigError::Certificate { what, reason: reason.to_string() }
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, RedisConfigError> {
    let refuse = unusable(what);
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(refuse(&"it has no certificate")),
        found => found.map_err(|error| refuse(&error)),
    }
}

impl Tls {
    pub(crate) fn new(config: &RedisConfig) -> Result<Self, RedisConfigError> {
        let mut roots = RootCertStore::empty();
        match &config.ca_pem {
            Some(pem) => {
                for certificate in certificates("authority", pem)? {
                    roots.add(certificate).map_err(|error| unusable("authority")(&error))?;
                }
            }
            // What cannot be read of the system's is left out: the others may be the right ones.
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("tls")(&error))?
            .with_root_certificates(roots);
        let client = match &config.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates("identity", chain)?;
                // Its error could show the text.
                let key = PrivateKeyDer::from_pem_slice(key.reveal().as_bytes())
                    .map_err(|_| unusable("identity's key")(&"it is no PEM text with a private key"))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| unusable("identity")(&error))?
            }
        };
        let name = ServerName::try_from(config.server.host().bare());
        let name = name.map_err(|_| RedisConfigError::Server {
            server: config.server.to_string(),
            reason: "no certificate can be for this host".to_owned(),
        })?;
        Ok(Self { connector: TlsConnector::from(Arc::new(client)), name })
    }

    pub(crate) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}
