//! How a NIC of a peer is called: `server@nic`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use te_segment::{MAX_NAME_BYTES, NicName};
use thiserror::Error;

/// A NIC of a server. Endpoints are kept by it. Cloning is cheap.
///
/// ```
/// use te_transport_rdma::wire::NicPath;
/// let path: NicPath = "10.0.0.7:12001@mlx5_0".parse().unwrap();
/// assert_eq!((path.server(), path.nic().as_str()), ("10.0.0.7:12001", "mlx5_0"));
/// assert_eq!(path.to_string(), "10.0.0.7:12001@mlx5_0");
/// assert!("mlx5_0".parse::<NicPath>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NicPath {
    server: Arc<str>,
    nic: NicName,
}

/// A text is not the path of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a NIC path is SERVER@NIC, both of 1 to 1024 bytes")]
pub struct NicPathError;

impl NicPath {
    /// The NIC `nic` of `server`.
    ///
    /// # Errors
    ///
    /// If the server is empty, longer than a name may be, or has an `@` or a control character in it.
    pub fn new(server: &str, nic: NicName) -> Result<Self, NicPathError> {
        let fits = (1..=MAX_NAME_BYTES).contains(&server.len());
        if !fits || server.chars().any(|c| c == '@' || c.is_control()) {
            return Err(NicPathError);
        }
        Ok(Self { server: server.into(), nic })
    }

    /// The server, mostly `host:port`.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The NIC.
    #[must_use]
    pub fn nic(&self) -> &NicName {
        &self.nic
    }
}

impl FromStr for NicPath {
    type Err = NicPathError;

    fn from_str(text: &str) -> Result<Self, NicPathError> {
        let (server, nic) = text.split_once('@').ok_or(NicPathError)?;
        Self::new(server, NicName::new(nic).map_err(|_| NicPathError)?)
    }
}

impl fmt::Display for NicPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.server, self.nic)
    }
}
