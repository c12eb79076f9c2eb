//! Where the servers are and how to talk to them.

use std::{fmt, time::Duration};

use te_metadata::backend::{Secret, unescape};
use te_segment::{Endpoint, Host};

/// The port of an endpoint that names none.
pub const DEFAULT_PORT: u16 = 2379;
/// Largest request a server takes unless it is started with another `--max-request-bytes`.
pub const DEFAULT_MAX_REQUEST: usize = 3 << 19;
/// What of a request is kept for the keys and the frame around the value.
pub(crate) const REQUEST_OVERHEAD: usize = 8 << 10;
const SWITCH_AFTER: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(5);
const CONNECT: Duration = Duration::from_secs(2);

/// Why a configuration cannot be used. No variant shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdConfigError {
    /// The text names no server.
    #[error("etcd store needs at least one endpoint")]
    NoEndpoint,
    /// The scheme is none of this store's.
    #[error("{scheme:?} is no scheme of the etcd store, which has etcd and etcds")]
    Scheme {
        /// The scheme found.
        scheme: String,
    },
    /// One of the endpoints is no `host[:port]`.
    #[error("etcd endpoint {endpoint:?} is unusable: {reason}")]
    Endpoint {
        /// The endpoint as written, without user and password.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// User and password cannot be told apart or are not UTF-8.
    #[error("user and password before the @ have to be user:password, with %-escapes")]
    User,
    /// TLS needs the feature `tls`.
    #[error("the etcd store is to use tls, which this build lacks: enable feature `tls`")]
    TlsMissing,
    /// Certificates were given but the endpoints are not to use TLS, or some of them are and others not.
    #[error("{reason}")]
    TlsUnclear {
        /// What does not fit together.
        reason: &'static str,
    },
    /// A certificate or key is not PEM.
    #[error("{what} of the etcd store is no PEM text with a {label}")]
    Certificate {
        /// Which one.
        what: &'static str,
        /// What it should contain.
        label: &'static str,
    },
}

/// Which etcd servers to use and how. [`EtcdStore`](crate::EtcdStore) is made from it.
///
/// ```
/// use te_metadata_etcd::EtcdConfig;
///
/// let config = EtcdConfig::parse("etcd://10.0.0.1:2379,10.0.0.2")?.user("engine", "secret");
/// assert_eq!(config.to_string(), "etcd://10.0.0.1:2379,10.0.0.2:2379");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), te_metadata_etcd::EtcdConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) tls: bool,
    pub(crate) user: Option<(String, Secret)>,
    pub(crate) ca_pem: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Secret)>,
    pub(crate) max_request: usize,
    pub(crate) switch_after: Duration,
    pub(crate) patience: Duration,
    pub(crate) connect: Duration,
}

impl EtcdConfig {
    /// Reads `etcd://[user:password@]host[:port][,host[:port]…]`, `etcds://…` for TLS, or the list alone.
    ///
    /// The endpoints are members of one cluster, separated by `,` or `;`, as the reference engine has it. A member
    /// may be written as `http://host:port` or `https://host:port`; all of them have to agree. Without a port,
    /// 2379 is meant.
    ///
    /// # Errors
    /// [`EtcdConfigError`] says what is wrong with the text; it never shows user or password.
    pub fn parse(text: &str) -> Result<Self, EtcdConfigError> {
        // A list alone may begin with a member's own http://.
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme @ ("http" | "https"), _)) if !scheme.contains(['@', ',', ';']) => ("etcd", text),
            Some((scheme, rest)) if !scheme.contains([',', ';', ':', '@']) => (scheme, rest),
            _ => ("etcd", text),
        };
        let mut tls = match scheme.to_ascii_lowercase().as_str() {
            "etcd" => None,
            "etcds" => Some(true),
            _ => return Err(EtcdConfigError::Scheme { scheme: scheme.to_owned() }),
        };
        let (user, list) = match rest.rsplit_once('@') {
            Some((user, list)) => (Some(parse_user(user)?), list),
            None => (None, rest),
        };
        let mut endpoints = Vec::new();
        for member in list.split([',', ';']).map(str::trim).filter(|member| !member.is_empty()) {
            let (wants_tls, bare) = match member.split_once("://") {
                Some(("http", bare)) => (Some(false), bare),
                Some(("https", bare)) => (Some(true), bare),
                Some(_) => return Err(refuse(member, "its scheme is neither http nor https")),
                None => (None, member),
            };
            if wants_tls.is_some() {
                if tls.is_some() && tls != wants_tls {
                    let reason = "some etcd endpoints are to use tls and others not";
                    return Err(EtcdConfigError::TlsUnclear { reason });
                }
                tls = wants_tls;
            }
            endpoints.push(parse_endpoint(bare.strip_suffix('/').unwrap_or(bare))?);
        }
        if endpoints.is_empty() {
            return Err(EtcdConfigError::NoEndpoint);
        }
        Ok(Self {
            endpoints,
            tls: tls.unwrap_or(false),
            user,
            ca_pem: None,
            identity: None,
            max_request: DEFAULT_MAX_REQUEST,
            switch_after: SWITCH_AFTER,
            patience: PATIENCE,
            connect: CONNECT,
        })
    }

    /// Logs in with this name and password.
    pub fn user(self, name: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some((name.into(), Secret::new(password))), ..self }
    }

    /// Uses TLS on every endpoint.
    pub fn tls(self) -> Self {
        Self { tls: true, ..self }
    }

    /// Trusts servers with certificates of these authorities (PEM), and no others. Without it: what the system
    /// trusts.
    pub fn ca_pem(self, pem: impl Into<Vec<u8>>) -> Self {
        Self { ca_pem: Some(pem.into()), ..self }
    }

    /// Shows this certificate chain with its key (both PEM) to servers that ask for one.
    pub fn identity_pem(self, certificates: impl Into<Vec<u8>>, key: impl Into<String>) -> Self {
        Self { identity: Some((certificates.into(), Secret::new(key))), ..self }
    }

    /// The servers' `--max-request-bytes` (default 1.5 MiB). Values may be up to 8 KiB smaller than that.
    pub fn max_request(self, bytes: usize) -> Self {
        Self { max_request: bytes.max(2 * REQUEST_OVERHEAD), ..self }
    }

    /// With several endpoints: how long one is waited for before the next is tried (default 2 s). A call gives
    /// every endpoint its share of the time to the deadline, if that is less.
    pub fn switch_after(self, time: Duration) -> Self {
        Self { switch_after: time, ..self }
    }

    /// How long a call goes on trying while every endpoint refuses (default 5 s). The deadline may be nearer.
    pub fn patience(self, time: Duration) -> Self {
        Self { patience: time, ..self }
    }

    /// Time for one attempt to connect (default 2 s).
    pub fn connect_timeout(self, time: Duration) -> Self {
        Self { connect: time, ..self }
    }

    /// The endpoints, in the order in which they are first tried.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Largest value this store takes, in bytes.
    pub(crate) fn max_value(&self) -> usize {
        self.max_request.saturating_sub(REQUEST_OVERHEAD)
    }

    pub(crate) fn check(&self) -> Result<(), EtcdConfigError> {
        if self.tls && !cfg!(feature = "tls") {
            return Err(EtcdConfigError::TlsMissing);
        }
        if !self.tls && (self.ca_pem.is_some() || self.identity.is_some()) {
            let reason = "certificates were given for an etcd store that does not use tls";
            return Err(EtcdConfigError::TlsUnclear { reason });
        }
        // The client leaves out what it cannot read, and would say "unknown issuer" much later.
        let check = |what, pem: &[u8], label: &'static str| {
            let found = String::from_utf8_lossy(pem).contains(&format!("{label}-----"));
            if found { Ok(()) } else { Err(EtcdConfigError::Certificate { what, label }) }
        };
        if let Some(pem) = &self.ca_pem {
            check("authority", pem, "CERTIFICATE")?;
        }
        if let Some((certificates, key)) = &self.identity {
            check("identity", certificates, "CERTIFICATE")?;
            check("identity's key", key.reveal().as_bytes(), "PRIVATE KEY")?;
        }
        Ok(())
    }
}

impl fmt::Display for EtcdConfig {
    /// The connection string, without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "etcds://" } else { "etcd://" })?;
        for (at, endpoint) in self.endpoints.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{endpoint}")?;
        }
        Ok(())
    }
}

fn refuse(endpoint: &str, reason: impl Into<String>) -> EtcdConfigError {
    EtcdConfigError::Endpoint { endpoint: endpoint.to_owned(), reason: reason.into() }
}

fn parse_endpoint(text: &str) -> Result<Endpoint, EtcdConfigError> {
    let endpoint = match text.parse::<Host>() {
        Ok(host) => Endpoint::new(host, DEFAULT_PORT),
        Err(_) => text.parse(),
    };
    let endpoint = endpoint.map_err(|error| refuse(text, error.to_string()))?;
    // The client addresses servers by URI, which has no place for a scope.
    match endpoint.host() {
        Host::V6 { scope: Some(_), .. } => Err(refuse(text, "an IPv6 address with a scope cannot be used")),
        Host::Name(name) if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) => {
            Err(refuse(text, "its host has characters that no host name has"))
        }
        _ => Ok(endpoint),
    }
}

fn parse_user(text: &str) -> Result<(String, Secret), EtcdConfigError> {
    let (name, password) = text.split_once(':').ok_or(EtcdConfigError::User)?;
    match (unescape(name), unescape(password)) {
        (Some(name), Some(password)) if !name.is_empty() => Ok((name, Secret::new(password))),
        _ => Err(EtcdConfigError::User),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        EtcdConfig::parse(text).unwrap().to_string()
    }

    /// The reference engine's strings: `,` and `;`, blanks and empty members.
    #[test]
    fn endpoint_lists_of_today_are_read() {
        assert_eq!(shown("etcd://a:2379,b:2380"), "etcd://a:2379,b:2380");
        assert_eq!(shown("etcd://a:2379; b:2380,,"), "etcd://a:2379,b:2380");
        assert_eq!(shown("127.0.0.1:12379"), "etcd://127.0.0.1:12379");
        assert_eq!(shown("etcd://[::1]:1,::2"), "etcd://[::1]:1,[::2]:2379");
        assert_eq!(shown("a"), "etcd://a:2379");
        assert_eq!(shown("etcd://http://a:1,http://b:2/"), "etcd://a:1,b:2");
        assert_eq!(shown("http://a:1,b"), "etcd://a:1,b:2379");
    }

    #[test]
    fn tls_is_asked_for_by_scheme() {
        assert_eq!(shown("etcds://a"), "etcds://a:2379");
        assert_eq!(shown("etcd://https://a:1,https://b:2"), "etcds://a:1,b:2");
        let error = EtcdConfig::parse("etcd://https://a:1,http://b:2").unwrap_err();
        assert!(matches!(error, EtcdConfigError::TlsUnclear { .. }));
    }

    #[test]
    fn what_is_no_endpoint_is_refused_by_name() {
        assert_eq!(EtcdConfig::parse("etcd://").unwrap_err(), EtcdConfigError::NoEndpoint);
        assert_eq!(EtcdConfig::parse(" ,;").unwrap_err(), EtcdConfigError::NoEndpoint);
        for text in
            ["etcd://a:0", "etcd://a:99999", "etcd://a:b", "etcd://a b:1", "etcd://a/x", "etcd://ftp://a"]
        {
            let error = EtcdConfig::parse(text).unwrap_err();
            assert!(matches!(error, EtcdConfigError::Endpoint { .. }), "{text}: {error:?}");
        }
        assert!(matches!(EtcdConfig::parse("redis://a").unwrap_err(), EtcdConfigError::Scheme { .. }));
    }

    #[test]
    fn user_and_password_are_unescaped_and_never_shown() {
        let config = EtcdConfig::parse("etcd://eng%40ine:p%3Aw@a:1").unwrap();
        let (name, password) = config.user.clone().unwrap();
        assert_eq!((name.as_str(), password.reveal()), ("eng@ine", "p:w"));
        assert!(!format!("{config:?} {config}").contains("p:w"));
        for text in ["etcd://hunter2@a", "etcd://u:hunter2@a:0", "etcd://u:hunter2@", "etcd://%ff:hunter2@a"]
        {
            let error = EtcdConfig::parse(text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{text}: {error:?}");
        }
    }

    #[test]
    fn certificates_without_tls_are_refused() {
        let config = EtcdConfig::parse("a:1").unwrap().ca_pem("x");
        assert!(matches!(config.check(), Err(EtcdConfigError::TlsUnclear { .. })));
    }
}
