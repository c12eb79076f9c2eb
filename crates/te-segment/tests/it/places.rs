//! Locations, hosts and endpoints.

use std::net::SocketAddr;

use proptest::prelude::*;
use te_segment::{DEFAULT_CONTROL_PORT, DeviceKind, Endpoint, EndpointError, Host, Location};

#[test]
fn location_strings_have_their_meaning() {
    let table = [
        ("*", Location::Any),
        ("cpu:0", Location::cpu(0)),
        ("cuda:3", Location::device(DeviceKind::Cuda, 3)),
        ("hip:1", Location::device(DeviceKind::Hip, 1)),
        ("npu:7", Location::device(DeviceKind::Npu, 7)),
        ("segments:4096:0,1", Location::Segments { page_size: 4096, nodes: vec![0, 1] }),
    ];
    for (text, location) in table {
        assert_eq!(text.parse(), Ok(location.clone()), "{text}");
        assert_eq!(location.to_string(), text);
    }
}

#[test]
fn location_without_known_meaning_is_kept() {
    for text in [
        "",
        "cpu",
        "cpu:",
        "cpu:-1",
        "cpu:01",
        "cpu:+1",
        "cpu:4294967296",
        "segments:4096:",
        "gpu:0",
        "node-a",
    ] {
        assert_eq!(text.parse(), Ok(Location::Other(text.to_owned())), "{text}");
    }
}

#[test]
fn hand_made_other_location_becomes_the_known_one() {
    assert_eq!(Location::Other("cpu:0".to_owned()).canonical(), Location::cpu(0));
}

fn endpoint(text: &str) -> Result<String, EndpointError> {
    text.parse::<Endpoint>().map(|endpoint| endpoint.to_string())
}

/// META-20: an IPv6 address is never cut at one of its colons.
#[test]
fn ipv6_addresses_and_ports_are_told_apart() {
    let with_default = |text| {
        Endpoint::parse_or_default_port(text, DEFAULT_CONTROL_PORT).map(|endpoint| endpoint.to_string())
    };
    let table = [
        ("[::1]:80", "[::1]:80"),
        ("::1", "[::1]:12001"),
        ("fe80::1%eth0", "[fe80::1%eth0]:12001"),
        ("fe80::1%eth0:80", "[fe80::1%eth0]:80"),
        ("[fe80::1%eth0]:80", "[fe80::1%eth0]:80"),
        ("a.b:1", "a.b:1"),
        ("a.b", "a.b:12001"),
        ("10.0.0.7", "10.0.0.7:12001"),
        ("2605:340::1", "[2605:340::1]:12001"),
        ("[2605:340::1]", "[2605:340::1]:12001"),
    ];
    for (text, expected) in table {
        let parsed = with_default(text);
        assert_eq!(parsed.as_deref(), Ok(expected), "{text}");
        assert_eq!(endpoint(expected).as_deref(), Ok(expected), "{expected} parses back");
    }
}

/// META-20
#[test]
fn strict_endpoint_without_port_is_refused() {
    for text in ["::1", "2605:340::1", "fe80::1%eth0", "a.b", "10.0.0.7", "[::1]", "::1:80"] {
        assert!(matches!(endpoint(text), Err(EndpointError::MissingPort { .. })), "{text}");
    }
}

#[test]
fn port_outside_1_to_65535_is_refused() {
    for port in ["0", "65536", "-1", "+80", "", "8o", " 80", "99999999999999999999"] {
        let strict = endpoint(&format!("a.b:{port}"));
        assert!(matches!(strict, Err(EndpointError::InvalidPort { .. })), "{port}: {strict:?}");
        let lenient = Endpoint::parse_or_default_port(&format!("[::1]:{port}"), 1);
        assert!(matches!(lenient, Err(EndpointError::InvalidPort { .. })), "{port}: {lenient:?}");
    }
    assert!(Endpoint::new("a.b".parse().unwrap(), 0).is_err());
}

/// META-22: a text with a port does not pass for a host.
#[test]
fn host_with_a_port_is_no_host() {
    for text in ["a.b:1", "10.0.0.7:80", "[::1]:80", "fe80::1%eth0:80", "a.b:"] {
        assert!(matches!(text.parse::<Host>(), Err(EndpointError::UnexpectedPort { .. })), "{text}");
    }
}

#[test]
fn impossible_hosts_are_refused() {
    for text in
        ["", " ", "a b", "a/b", "[a.b]", "[::1", "::1]", "[::1]x", "x%eth0", "fe80::1%", "http://a", "a\0"]
    {
        assert!(text.parse::<Host>().is_err(), "{text:?}");
        assert!(Endpoint::parse_or_default_port(text, 1).is_err(), "{text:?}");
    }
}

#[test]
fn bare_host_has_no_brackets() {
    assert_eq!("[fe80::1%eth0]".parse::<Host>().unwrap().bare(), "fe80::1%eth0");
}

#[test]
fn wildcard_and_loopback_are_known_in_every_spelling() {
    for text in ["0.0.0.0", "::", "::ffff:0.0.0.0"] {
        assert!(text.parse::<Host>().unwrap().is_unspecified(), "{text}");
    }
    for text in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost"] {
        assert!(text.parse::<Host>().unwrap().is_loopback(), "{text}");
    }
    assert!(!"10.0.0.7".parse::<Host>().unwrap().is_loopback());
}

#[test]
fn socket_address_round_trips_with_its_scope() {
    for text in ["10.0.0.7:80", "[::1]:80", "[fe80::1%3]:80"] {
        let addr: SocketAddr = text.parse().unwrap();
        assert_eq!(Endpoint::try_from(addr).unwrap().socket_addr(), Some(addr), "{text}");
    }
    assert!(Endpoint::try_from(SocketAddr::from(([10, 0, 0, 7], 0))).is_err());
}

proptest! {
    #[test]
    fn every_location_string_survives(text in "[a-z*]{0,9}:?[0-9:,+]{0,9}") {
        prop_assert_eq!(Location::parse(&text).to_string(), text);
    }

    #[test]
    fn every_endpoint_that_parses_is_written_in_a_form_that_means_the_same(text in "\\PC{0,40}") {
        if let Ok(endpoint) = text.parse::<Endpoint>() {
            prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        }
    }

    #[test]
    fn every_host_that_parses_is_written_in_a_form_that_means_the_same(text in "[0-9a-f:.%\\[\\]a-z]{0,30}") {
        if let Ok(host) = text.parse::<Host>() {
            prop_assert_eq!(host.bare().parse(), Ok(host));
        }
    }

    #[test]
    fn every_ipv6_address_keeps_its_port(bits: u128, port in 1_u16..) {
        let addr = SocketAddr::from((bits.to_be_bytes(), port));
        let text = Endpoint::try_from(addr).unwrap().to_string();
        prop_assert_eq!(text.parse::<Endpoint>().unwrap().socket_addr(), Some(addr));
    }
}
