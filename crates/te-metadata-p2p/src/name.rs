//! The name of an engine that has no store.

use te_metadata::DirectoryError;
use te_segment::{Endpoint, Host, SegmentName};

/// The name of this engine: the host that peers are told, and the port of its RPC listener.
///
/// ```
/// let name = te_metadata_p2p::own_name(&"fe80::1%eth0".parse()?, 15893)?;
/// assert_eq!(name.as_str(), "[fe80::1%eth0]:15893");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`DirectoryError::NameInvalid`] for a wildcard host, which no peer can connect to, and for port 0.
pub fn own_name(advertised: &Host, port: u16) -> Result<SegmentName, DirectoryError> {
    let refused = |reason: String| DirectoryError::NameInvalid {
        name: format!("{advertised}:{port}"),
        rule: "an address that peers can connect to",
        reason,
    };
    if advertised.is_unspecified() {
        return Err(refused("a wildcard address is no address of anybody".to_owned()));
    }
    let endpoint = Endpoint::new(advertised.clone(), port).map_err(|error| refused(error.to_string()))?;
    SegmentName::new(&endpoint.to_string()).map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use te_metadata::NameRule;

    use super::*;

    fn name(host: &str, port: u16) -> Result<String, DirectoryError> {
        own_name(&host.parse().unwrap(), port).map(|name| name.as_str().to_owned())
    }

    /// META-20.
    #[test]
    fn ipv6_host_is_in_brackets() {
        assert_eq!(name("2605:340::1", 15893).unwrap(), "[2605:340::1]:15893");
        assert_eq!(name("10.0.0.7", 15893).unwrap(), "10.0.0.7:15893");
        assert_eq!(name("node-a", 15893).unwrap(), "node-a:15893");
    }

    /// META-16.
    #[test]
    fn wildcard_is_never_a_name() {
        for host in ["0.0.0.0", "::", "::ffff:0.0.0.0"] {
            assert!(matches!(name(host, 15893), Err(DirectoryError::NameInvalid { .. })), "{host}");
        }
    }

    #[test]
    fn port_zero_is_never_in_a_name() {
        assert!(matches!(name("10.0.0.7", 0), Err(DirectoryError::NameInvalid { .. })));
    }

    proptest! {
        #[test]
        fn a_name_leads_back_to_its_endpoint(bits: u128, four: u32, six: bool, port in 1u16..) {
            let ip: std::net::IpAddr =
                if six { std::net::Ipv6Addr::from(bits).into() } else { std::net::Ipv4Addr::from(four).into() };
            let host = Host::from(ip);
            prop_assume!(!host.is_unspecified());
            let endpoint = NameRule::endpoint(&own_name(&host, port).unwrap()).unwrap();
            prop_assert_eq!((endpoint.host(), endpoint.port()), (&host, port));
        }
    }
}
