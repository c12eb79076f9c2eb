//! Metadata URLs: where segments are published and found.

use std::fmt;
use std::str::FromStr;

use te_segment::Host;
use thiserror::Error;

use crate::features::{self, FeatureKind};

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
    #[error("metadata scheme {got:?} is unknown; compiled in: {}", list(.compiled_in))]
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
        list(.compiled_in)
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

fn list(words: &[&'static str]) -> String {
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
    /// [`MetadataError::NeedsFeature`] names what is missing.
    pub fn check(&self) -> Result<(), MetadataError> {
        let scheme = match self {
            Self::Peer { .. } => "p2p",
            Self::Store { scheme, .. } => scheme,
        };
        match features::by_scheme(scheme) {
            Some(feature) if !feature.is_compiled() => Err(MetadataError::NeedsFeature {
                scheme,
                feature: feature.name(),
                in_this_release: feature.is_in_this_release(),
                compiled_in: compiled_in(),
            }),
            _ => Ok(()),
        }
    }
}

fn compiled_in() -> Vec<&'static str> {
    features::all()
        .filter(|feature| feature.kind() == FeatureKind::Metadata && feature.is_compiled())
        .flat_map(|feature| feature.schemes())
        .copied()
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
            te_segment::Endpoint::from_str(text).map_err(|error| address(error.to_string()))?;
            return Ok(Self::Store { scheme: "etcd", url: format!("etcd://{text}") });
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
            Some(scheme) => Ok(Self::Store { scheme, url: text.to_owned() }),
            None => {
                let got = scheme.chars().take(40).collect();
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
                let endpoint: te_segment::Endpoint = text.parse()?;
                Ok((endpoint.host().clone(), Some(endpoint.port())))
            }
        },
        Err(error) => Err(error),
    }
}

/// The URL without user name and password.
fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let authority = rest.find(['/', '?']).map_or(rest, |end| &rest[..end]);
    match authority.rfind('@') {
        Some(at) => format!("{scheme}://***{}", &rest[at..]),
        None => url.to_owned(),
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<MetadataUrl, MetadataError> {
        text.parse()
    }

    /// META-18.
    #[test]
    fn an_unknown_scheme_is_an_error_that_lists_what_there_is() {
        let error = parse("zookeeper://10.0.0.1").unwrap_err();
        let MetadataError::UnsupportedScheme { got, compiled_in } = &error else { panic!("{error}") };
        assert_eq!((got.as_str(), compiled_in.contains(&"p2p")), ("zookeeper", cfg!(feature = "p2p")));
    }

    /// META-18.
    #[test]
    fn a_known_scheme_that_is_missing_names_its_feature() {
        for (url, feature) in [
            ("etcd://10.0.0.1:2379", "etcd"),
            ("10.0.0.1:2379", "etcd"),
            ("redis://10.0.0.1", "redis"),
            ("rediss://10.0.0.1", "redis"),
            ("http://10.0.0.1/metadata", "http"),
            ("https://10.0.0.1/metadata", "http"),
        ] {
            let error = parse(url).unwrap().check().unwrap_err();
            assert!(error.to_string().contains(&format!("the Cargo feature `{feature}`")), "{error}");
        }
    }

    #[test]
    fn engines_without_a_store_need_the_p2p_feature() {
        assert_eq!(MetadataUrl::default().check().is_ok(), cfg!(feature = "p2p"));
    }

    /// META-20.
    #[test]
    fn a_peer_url_states_host_and_port() {
        for (text, host, port) in [
            ("p2p://10.0.0.7", "10.0.0.7", None),
            ("p2p://10.0.0.7:15123", "10.0.0.7", Some(15_123)),
            ("p2p://10.0.0.7:0", "10.0.0.7", None),
            ("p2p://[::1]:15123", "::1", Some(15_123)),
            ("p2p://[::1]:0/", "::1", None),
            ("p2p://::1", "::1", None),
            ("p2p://2605:340::1", "2605:340::1", None),
        ] {
            let expected = MetadataUrl::Peer { host: Some(host.parse().unwrap()), port };
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn an_address_that_is_none_is_an_error() {
        for text in ["", "nonsense", "p2p://a b", "p2p://10.0.0.7:99999", "etcd://", "p2p://10.0.0.7:x"] {
            assert!(matches!(parse(text), Err(MetadataError::Address { .. })), "{text}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let url = parse("redis://user:se@cret@10.0.0.1:6379/0").unwrap();
        assert_eq!(url.to_string(), "redis://***@10.0.0.1:6379/0");
        assert!(!format!("{url:?}").contains("cret"));
    }

    proptest! {
        #[test]
        fn any_text_is_handled(text in ".{0,40}") {
            let _ = parse(&text);
        }

        #[test]
        fn what_is_shown_of_a_peer_url_is_read_back(bits: u128, six: bool, four: u32, port in proptest::option::of(1_u16..)) {
            let ip: std::net::IpAddr =
                if six { std::net::Ipv6Addr::from(bits).into() } else { std::net::Ipv4Addr::from(four).into() };
            let url = MetadataUrl::Peer { host: Some(ip.into()), port };
            prop_assert_eq!(parse(&url.to_string()).unwrap(), url);
        }
    }
}
