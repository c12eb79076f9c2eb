//! Metadata URLs: where segments are published and found, and what is there.

mod list;
mod open;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use te_segment::{Endpoint, Host};
use thiserror::Error;

use crate::features::{self, FeatureKind};

pub use list::{Listed, Listing, Owner, list};
pub(crate) use open::open;
pub use te_metadata::ClusterId;

/// Where segments are published and found.
///
/// ```
/// use te::metadata::MetadataUrl;
/// assert_eq!("P2PHANDSHAKE".parse::<MetadataUrl>()?, MetadataUrl::default());
/// assert_eq!("redis://user:secret@10.0.0.1".parse::<MetadataUrl>()?.to_string(), "redis://***@10.0.0.1");
/// # Ok::<(), te::metadata::MetadataError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetadataUrl {
    /// Engines ask each other.
    Peer {
        /// The address to be reached at, if the URL states one.
        host: Option<Host>,
        /// The port of the control listener, if the URL states one.
        port: Option<u16>,
    },
    /// A store.
    Store {
        /// The scheme, lower case.
        scheme: &'static str,
        /// The whole URL; may hold a password.
        url: String,
    },
}

/// Metadata cannot be had as asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// Nobody knows this scheme.
    #[error("metadata scheme {got:?} is unknown; compiled in: {}", joined(.compiled_in))]
    UnsupportedScheme {
        /// The scheme found.
        got: String,
        /// The schemes that would work.
        compiled_in: Vec<&'static str>,
    },
    /// The scheme is known, but its part is missing.
    #[error(
        "metadata scheme {scheme} needs the Cargo feature `{feature}`, which {}; compiled in: {}",
        if *.in_this_release { "is not compiled in" } else { "this release does not have yet" },
        joined(.compiled_in)
    )]
    NeedsFeature {
        /// The scheme.
        scheme: &'static str,
        /// The feature.
        feature: &'static str,
        /// Whether this release has the feature.
        in_this_release: bool,
        /// The schemes that would work.
        compiled_in: Vec<&'static str>,
    },
    /// The address is none.
    #[error("{url} is not a metadata URL: {reason}")]
    Address {
        /// The URL.
        url: String,
        /// Why not.
        reason: String,
    },
}

fn joined(words: &[&'static str]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

const PEER: &str = "P2PHANDSHAKE";

impl Default for MetadataUrl {
    /// `P2PHANDSHAKE`.
    fn default() -> Self {
        Self::Peer { host: None, port: None }
    }
}

impl MetadataUrl {
    /// Whether an engine can be built with it.
    ///
    /// # Errors
    ///
    /// [`MetadataError::NeedsFeature`] names the feature that is missing: that of the scheme, or `tls`.
    pub fn check(&self) -> Result<(), MetadataError> {
        let scheme = match self {
            Self::Peer { .. } => "p2p",
            Self::Store { scheme, .. } => scheme,
        };
        let missing = |feature: &features::Feature| MetadataError::NeedsFeature {
            scheme,
            feature: feature.name(),
            in_this_release: feature.is_in_this_release(),
            compiled_in: compiled_in(),
        };
        match features::by_scheme(scheme) {
            Some(feature) if !feature.is_compiled() => return Err(missing(feature)),
            _ => {}
        }
        let tls = features::all().find(|feature| feature.name() == features::TLS && !feature.is_compiled());
        match tls {
            Some(tls) if features::needs_tls(scheme) => Err(missing(tls)),
            _ => Ok(()),
        }
    }

    /// The first server of a store: what leads there leads to the engines that use it, in most networks.
    #[must_use]
    pub fn server(&self) -> Option<Endpoint> {
        let Self::Store { scheme, url } = self else { return None };
        let rest = url.split_once("://")?.1;
        let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
        let rest = rest.trim_start_matches("http://").trim_start_matches("https://");
        let first = rest.split([',', ';', '/']).next()?.trim();
        let port = match *scheme {
            "redis" | "rediss" => 6379,
            "http" => 80,
            "https" => 443,
            _ => 2379,
        };
        Endpoint::parse_or_default_port(first, port).ok()
    }
}

fn compiled_in() -> Vec<&'static str> {
    features::all()
        .filter(|feature| feature.kind() == FeatureKind::Metadata && feature.is_compiled())
        .flat_map(|feature| feature.schemes())
        .copied()
        .filter(|scheme| cfg!(feature = "tls") || !features::needs_tls(scheme))
        .collect()
}

impl FromStr for MetadataUrl {
    type Err = MetadataError;

    /// `P2PHANDSHAKE`, `p2p://[HOST[:PORT]]`, the URL of a store, or `host:port` of an etcd server.
    fn from_str(text: &str) -> Result<Self, MetadataError> {
        if text == PEER {
            return Ok(Self::default());
        }
        let address = |reason: String| MetadataError::Address { url: redacted(text), reason };
        let Some((scheme, rest)) = text.split_once("://") else {
            // As the reference engine reads it: an address without a scheme is that of an etcd server.
            let servers = text.rsplit_once('@').map_or(text, |(_, servers)| servers);
            for server in servers.split([',', ';']) {
                Endpoint::from_str(server.trim()).map_err(|error| address(error.to_string()))?;
            }
            let url = format!("etcd://{text}");
            open::check("etcd", &url).map_err(address)?;
            return Ok(Self::Store { scheme: "etcd", url });
        };
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "p2p" {
            let rest = rest.strip_suffix('/').unwrap_or(rest);
            if rest.is_empty() {
                return Ok(Self::default());
            }
            let (host, port) = host_and_port(rest).map_err(|error| address(error.to_string()))?;
            return Ok(Self::Peer { host: Some(host), port });
        }
        let known = features::by_scheme(&scheme)
            .and_then(|feature| feature.schemes().iter().find(|known| **known == scheme));
        match known {
            Some(_) if rest.is_empty() => Err(address("it names no host".to_owned())),
            Some(scheme) => {
                open::check(scheme, text).map_err(address)?;
                Ok(Self::Store { scheme, url: text.to_owned() })
            }
            None => {
                // Nothing else is a scheme, and what is in front of it might be a password.
                let letters = |c: &char| c.is_ascii_alphanumeric() || "+-.".contains(*c);
                let got = scheme.chars().take_while(letters).take(40).collect();
                Err(MetadataError::UnsupportedScheme { got, compiled_in: compiled_in() })
            }
        }
    }
}

/// Splits `HOST[:PORT]`; port 0 is as good as none.
pub(crate) fn host_and_port(text: &str) -> Result<(Host, Option<u16>), te_segment::EndpointError> {
    match text.parse::<Host>() {
        Ok(host) => Ok((host, None)),
        Err(te_segment::EndpointError::UnexpectedPort { .. }) => match text.strip_suffix(":0") {
            Some(host) => Ok((host.parse()?, None)),
            None => {
                let endpoint: Endpoint = text.parse()?;
                Ok((endpoint.host().clone(), Some(endpoint.port())))
            }
        },
        Err(error) => Err(error),
    }
}

/// The text without what may be a user name, a password or a token. Of two places where a password could end it takes
/// the last.
pub(crate) fn redacted(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    // What looks like a scheme may be a part of a password.
    let (scheme, rest) = if scheme.contains('@') { ("", url) } else { (scheme, rest) };
    let (hidden, rest) = match rest.rfind('@') {
        Some(at) => ("***", &rest[at..]),
        None => ("", rest),
    };
    let (rest, query) = match rest.find(['?', '#']) {
        Some(at) => (&rest[..at], "?***"),
        None => (rest, ""),
    };
    let separator = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{separator}{hidden}{rest}{query}")
}

impl fmt::Display for MetadataUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer { host: None, .. } => f.write_str(PEER),
            Self::Peer { host: Some(host @ Host::V6 { .. }), port: Some(port) } => {
                write!(f, "p2p://[{host}]:{port}")
            }
            Self::Peer { host: Some(host), port: Some(port) } => write!(f, "p2p://{host}:{port}"),
            Self::Peer { host: Some(host), port: None } => write!(f, "p2p://{host}"),
            Self::Store { url, .. } => f.write_str(&redacted(url)),
        }
    }
}

impl fmt::Debug for MetadataUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MetadataUrl({self})")
    }
}
