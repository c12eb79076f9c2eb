//! What a server is told.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use te_metadata::backend::Secret;

use super::{MetadataServer, ServerError};
use crate::protocol::DEFAULT_MAX_VALUE;

/// Where a server listens by default.
const DEFAULT_BIND: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Bounds of a server. Beyond each the answer says so; nothing waits for ever.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Largest value in bytes (1 MiB). Larger: status 413.
    pub max_value: usize,
    /// Longest key in bytes (4 KiB). Longer: status 400.
    pub max_key: usize,
    /// Most keys (200,000). More: status 507.
    pub max_keys: usize,
    /// Most bytes of all values together (1 GiB). More: status 507.
    pub max_bytes: usize,
    /// Most connections at the same time (1,024). When full, the one silent for longest makes room.
    pub max_connections: usize,
    /// Most watches at the same time, the page's included (512). More: status 503.
    pub max_watches: usize,
    /// Longest lease (one day). Longer ones are shortened to it.
    pub max_lease: Duration,
    /// Time for a request to arrive, and for a connection to be silent (30 s).
    pub silence: Duration,
    /// Changes remembered for watches that were interrupted (8,192).
    pub history: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            max_value: DEFAULT_MAX_VALUE,
            max_key: 4 << 10,
            max_keys: 200_000,
            max_bytes: 1 << 30,
            max_connections: 1024,
            max_watches: 512,
            max_lease: Duration::from_secs(24 * 60 * 60),
            silence: Duration::from_secs(30),
            history: 8192,
        }
    }
}

/// Certificate and key of a server.
#[cfg(feature = "tls")]
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub(super) certificates: Vec<u8>,
    pub(super) key: Secret,
    pub(super) client_ca: Option<Vec<u8>>,
}

#[cfg(feature = "tls")]
impl ServerTls {
    /// A certificate chain with its key, both PEM.
    pub fn new(certificates_pem: impl Into<Vec<u8>>, key_pem: impl Into<String>) -> Self {
        Self { certificates: certificates_pem.into(), key: Secret::new(key_pem), client_ca: None }
    }

    /// Serves only clients with a certificate of these authorities (PEM).
    pub fn require_clients_of(self, ca_pem: impl Into<Vec<u8>>) -> Self {
        Self { client_ca: Some(ca_pem.into()), ..self }
    }
}

/// Makes a [`MetadataServer`].
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    pub(super) bind: SocketAddr,
    pub(super) persist: Option<PathBuf>,
    pub(super) token: Option<Secret>,
    pub(super) limits: ServerLimits,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<ServerTls>,
}

impl Default for ServerBuilder {
    fn default() -> Self {
        Self {
            bind: DEFAULT_BIND,
            persist: None,
            token: None,
            limits: ServerLimits::default(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

impl ServerBuilder {
    /// Where to listen. Default: `127.0.0.1:8080`, so nothing outside this host (SEC-04). Port 0 takes a free one.
    pub fn bind(self, bind: SocketAddr) -> Self {
        Self { bind, ..self }
    }

    /// Keeps everything in this file, and next to it `.lock` and, for moments, `.new`. A write is acknowledged once it
    /// is on the disk. Without it a restart begins empty.
    pub fn persist(self, path: impl Into<PathBuf>) -> Self {
        Self { persist: Some(path.into()), ..self }
    }

    /// Answers only requests with this token: as bearer token, or as password of basic authentication, which is what
    /// reference engines can send. `/healthz` and the empty page are open.
    pub fn token(self, token: impl Into<String>) -> Self {
        Self { token: Some(Secret::new(token)), ..self }
    }

    /// Serves https instead of http.
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: ServerTls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Other bounds than the default ones.
    pub fn limits(self, limits: ServerLimits) -> Self {
        Self { limits, ..self }
    }

    /// Listens and serves, on the tokio runtime this is called in (with I/O and time enabled).
    ///
    /// # Errors
    /// [`ServerError`]: the address is taken, the journal unusable, or a certificate.
    pub async fn start(self) -> Result<MetadataServer, ServerError> {
        MetadataServer::start(self).await
    }
}
