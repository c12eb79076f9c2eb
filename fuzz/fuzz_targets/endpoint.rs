//! Hosts, endpoints and names: whatever is accepted is written in a form that means the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use te_segment::{Access, Endpoint, Gid, Host, Incarnation, NicName, SegmentName, TransportKind};

fuzz_target!(|text: &str| {
    if let Ok(endpoint) = text.parse::<Endpoint>() {
        assert_ne!(endpoint.port(), 0);
        assert_eq!(endpoint.to_string().parse().as_ref(), Ok(&endpoint));
        assert!(text.parse::<Host>().is_err(), "a text with a port is no host");
    }
    if let Ok(host) = text.parse::<Host>() {
        assert!(!host.bare().contains(['[', ']']));
        assert_eq!(host.bare().parse().as_ref(), Ok(&host));
        let endpoint =
            Endpoint::parse_or_default_port(text, 12001).expect("a host alone has the default port");
        assert_eq!((endpoint.host(), endpoint.port()), (&host, 12001));
    }
    if let Ok(endpoint) = Endpoint::parse_or_default_port(text, 1) {
        assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
    }
    if let Ok(incarnation) = text.parse::<Incarnation>() {
        assert_eq!(incarnation.to_string().parse(), Ok(incarnation));
    }
    if let Ok(gid) = text.parse::<Gid>() {
        assert_eq!(gid.to_string().parse(), Ok(gid));
    }
    if let Ok(access) = text.parse::<Access>() {
        assert_eq!(access.to_string().parse(), Ok(access));
    }
    if let Ok(name) = SegmentName::new(text) {
        assert_eq!(name.as_str(), text);
    }
    let _ = NicName::new(text);
    let _ = TransportKind::new(text);
});
