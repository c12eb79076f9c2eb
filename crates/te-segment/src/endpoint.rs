//! Hosts and endpoints: where a peer listens.
//!
//! A [`Host`] never carries a port and an [`Endpoint`] always does, so a text of the one kind cannot be taken for the
//! other (META-22).

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    num::NonZeroU16,
    str::FromStr,
};

use serde::{Deserialize, Serialize};

/// Port that the reference engine assumes where an address names none.
pub const DEFAULT_CONTROL_PORT: u16 = 12001;

const MAX_HOST_BYTES: usize = 253;
const MAX_SCOPE_BYTES: usize = 64;
const MAX_SHOWN: usize = 80;

/// Why a text is no host or no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// There is no host.
    #[error("address {text:?} has no host")]
    EmptyHost {
        /// The refused text, shortened.
        text: String,
    },
    /// The host is neither an address nor a possible name.
    #[error("{host:?} is not an address and not a host name")]
    InvalidHost {
        /// The refused host, shortened.
        host: String,
    },
    /// A port is due and there is none.
    #[error("address {text:?} has no port")]
    MissingPort {
        /// The refused text, shortened.
        text: String,
    },
    /// The port is not a decimal number from 1 to 65535.
    #[error("port {port:?} is not a number from 1 to 65535")]
    InvalidPort {
        /// The refused port, shortened.
        port: String,
    },
    /// A host alone is due and the text has a port too.
    #[error("{text:?} has a port where a host alone is due")]
    UnexpectedPort {
        /// The refused text, shortened.
        text: String,
    },
}

fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

/// A host without a port: an address or a name.
///
/// ```
/// use te_segment::Host;
/// let host: Host = "fe80::1%eth0".parse()?;
/// assert_eq!(host.bare(), "fe80::1%eth0");
/// assert!("10.0.0.7:80".parse::<Host>().is_err());
/// # Ok::<(), te_segment::EndpointError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Host {
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address.
    V6 {
        /// The address.
        addr: Ipv6Addr,
        /// Interface name or number of a scoped address, without the `%`.
        scope: Option<String>,
    },
    /// A name that a resolver knows.
    Name(String),
}

impl Host {
    /// The host as text, an IPv6 address without brackets.
    pub fn bare(&self) -> String {
        match self {
            Self::V4(addr) => addr.to_string(),
            Self::V6 { addr, scope: None } => addr.to_string(),
            Self::V6 { addr, scope: Some(scope) } => format!("{addr}%{scope}"),
            Self::Name(name) => name.clone(),
        }
    }

    /// The address, if the host is one. The scope of an IPv6 address is not part of it.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::V4(addr) => Some(IpAddr::V4(*addr)),
            Self::V6 { addr, .. } => Some(IpAddr::V6(*addr)),
            Self::Name(_) => None,
        }
    }

    /// Whether this is the wildcard address, which may be bound but never advertised.
    pub fn is_unspecified(&self) -> bool {
        self.ip().is_some_and(|ip| ip.to_canonical().is_unspecified())
    }

    /// Whether this is a loopback address or the name `localhost`.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Name(name) => name.eq_ignore_ascii_case("localhost"),
            _ => self.ip().is_some_and(|ip| ip.to_canonical().is_loopback()),
        }
    }

    fn parse_v6(text: &str) -> Option<Self> {
        let (addr, scope) = match text.split_once('%') {
            Some((addr, scope)) => (addr, Some(scope)),
            None => (text, None),
        };
        let addr = addr.parse().ok()?;
        if !scope.is_none_or(is_scope) {
            return None;
        }
        Some(Self::V6 { addr, scope: scope.map(str::to_owned) })
    }

    /// A host that is not an IPv6 address.
    fn parse_v4_or_name(text: &str) -> Result<Self, EndpointError> {
        if let Ok(addr) = text.parse() {
            return Ok(Self::V4(addr));
        }
        let possible = text.len() <= MAX_HOST_BYTES
            && !text.is_empty()
            && text.chars().all(|c| !c.is_control() && !c.is_whitespace() && !":/[]%@?#\\\"'<>".contains(c));
        if possible {
            Ok(Self::Name(text.to_owned()))
        } else {
            Err(EndpointError::InvalidHost { host: shown(text) })
        }
    }
}

fn is_scope(scope: &str) -> bool {
    (1..=MAX_SCOPE_BYTES).contains(&scope.len())
        && scope.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

impl FromStr for Host {
    type Err = EndpointError;

    /// An address or name without a port; an IPv6 address may stand in brackets.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        match split(text)? {
            (host, None) => Ok(host),
            (_, Some(_)) => Err(EndpointError::UnexpectedPort { text: shown(text) }),
        }
    }
}

impl TryFrom<String> for Host {
    type Error = EndpointError;

    fn try_from(text: String) -> Result<Self, EndpointError> {
        text.parse()
    }
}

impl From<Host> for String {
    fn from(host: Host) -> Self {
        host.bare()
    }
}

impl From<IpAddr> for Host {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(addr) => Self::V4(addr),
            IpAddr::V6(addr) => Self::V6 { addr, scope: None },
        }
    }
}

impl fmt::Display for Host {
    /// The same as [`Host::bare`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.bare())
    }
}

/// Splits `host[:port]` by the reference engine's grammar, the port unchecked. The order of the cases matters: a text
/// that is an IPv6 address as a whole has no port, whatever its last group looks like.
fn split(text: &str) -> Result<(Host, Option<&str>), EndpointError> {
    let invalid = || EndpointError::InvalidHost { host: shown(text) };
    if let Some(inner) = text.strip_prefix('[') {
        let (addr, rest) = inner.split_once(']').ok_or_else(invalid)?;
        let host = Host::parse_v6(addr).ok_or_else(invalid)?;
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(invalid()),
        };
    }
    if let Some(host) = Host::parse_v6(text) {
        return Ok((host, None));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        if text.is_empty() {
            return Err(EndpointError::EmptyHost { text: String::new() });
        }
        return Ok((Host::parse_v4_or_name(text)?, None));
    };
    if host.is_empty() {
        return Err(EndpointError::EmptyHost { text: shown(text) });
    }
    // Only a scoped address may be followed by a port without brackets: elsewhere the last group is part of it.
    if host.contains('%') {
        return Ok((Host::parse_v6(host).ok_or_else(invalid)?, Some(port)));
    }
    Ok((Host::parse_v4_or_name(host)?, Some(port)))
}

/// A host and a port from 1 to 65535.
///
/// ```
/// use te_segment::Endpoint;
/// let endpoint: Endpoint = "[::1]:80".parse()?;
/// assert_eq!(endpoint.port(), 80);
/// assert_eq!(endpoint.to_string(), "[::1]:80");
/// // An IPv6 address without brackets is never cut at a colon.
/// assert!("2605:340::1".parse::<Endpoint>().is_err());
/// # Ok::<(), te_segment::EndpointError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    host: Host,
    port: NonZeroU16,
}

impl Endpoint {
    /// The endpoint of `port` on `host`. Port 0 is refused.
    pub fn new(host: Host, port: u16) -> Result<Self, EndpointError> {
        match NonZeroU16::new(port) {
            Some(port) => Ok(Self { host, port }),
            None => Err(EndpointError::InvalidPort { port: "0".to_owned() }),
        }
    }

    /// Parses `host[:port]` by the reference engine's grammar, where a text without a port means `default_port`
    /// (there usually [`DEFAULT_CONTROL_PORT`]).
    ///
    /// The reference also falls back to its default for a port that is no port; here that is an error, because the
    /// fallback reaches somebody else's listener.
    pub fn parse_or_default_port(text: &str, default_port: u16) -> Result<Self, EndpointError> {
        match split(text)? {
            (host, Some(port)) => Ok(Self { host, port: parse_port(port)? }),
            (host, None) => Self::new(host, default_port),
        }
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port, never 0.
    pub fn port(&self) -> u16 {
        self.port.get()
    }

    /// The endpoint of `port` on `host`.
    pub const fn from_parts(host: Host, port: NonZeroU16) -> Self {
        Self { host, port }
    }

    /// The port in a type that excludes 0.
    pub const fn nonzero_port(&self) -> NonZeroU16 {
        self.port
    }

    /// The socket address, if the host is an address and its scope, if any, a number. Everything else needs a resolver.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match &self.host {
            Host::V4(addr) => Some(SocketAddr::from((*addr, self.port()))),
            Host::V6 { addr, scope: None } => Some(SocketAddr::from((*addr, self.port()))),
            Host::V6 { addr, scope: Some(scope) } => {
                let scope = scope.parse().ok()?;
                Some(SocketAddr::V6(SocketAddrV6::new(*addr, self.port(), 0, scope)))
            }
            Host::Name(_) => None,
        }
    }
}

fn parse_port(text: &str) -> Result<NonZeroU16, EndpointError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(port) if digits => Ok(port),
        _ => Err(EndpointError::InvalidPort { port: shown(text) }),
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    /// `host:port`, `[v6]:port` or `v6%scope:port`; the port is required.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        match split(text)? {
            (host, Some(port)) => Ok(Self { host, port: parse_port(port)? }),
            (_, None) => Err(EndpointError::MissingPort { text: shown(text) }),
        }
    }
}

impl TryFrom<String> for Endpoint {
    type Error = EndpointError;

    fn try_from(text: String) -> Result<Self, EndpointError> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

impl TryFrom<SocketAddr> for Endpoint {
    type Error = EndpointError;

    /// Fails for port 0 only.
    fn try_from(addr: SocketAddr) -> Result<Self, EndpointError> {
        let host = match addr {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => {
                Host::V6 { addr: *v6.ip(), scope: Some(v6.scope_id().to_string()) }
            }
            _ => Host::from(addr.ip()),
        };
        Self::new(host, addr.port())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::V6 { .. } => write!(f, "[{}]:{}", self.host, self.port),
            _ => write!(f, "{}:{}", self.host, self.port),
        }
    }
}
