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

/// META-18: with its feature a scheme is usable, without it the error names it, and `tls` where that is needed as well.
#[test]
fn a_known_scheme_that_is_missing_names_its_feature() {
    let tls = cfg!(feature = "tls");
    for (url, feature, compiled, needs_tls) in [
        ("etcd://10.0.0.1:2379", "etcd", cfg!(feature = "etcd"), false),
        ("10.0.0.1:2379", "etcd", cfg!(feature = "etcd"), false),
        ("etcds://10.0.0.1:2379", "etcd", cfg!(feature = "etcd"), true),
        ("redis://10.0.0.1", "redis", cfg!(feature = "redis"), false),
        ("rediss://10.0.0.1", "redis", cfg!(feature = "redis"), true),
        ("http://10.0.0.1/metadata", "http", cfg!(feature = "http"), false),
        ("https://10.0.0.1/metadata", "http", cfg!(feature = "http"), true),
    ] {
        let missing =
            if compiled && needs_tls && !tls { Some("tls") } else { (!compiled).then_some(feature) };
        match (parse(url).unwrap().check(), missing) {
            (Ok(()), None) => {}
            (Err(error), Some(missing)) => {
                let words = format!("the Cargo feature `{missing}`, which is not compiled in");
                assert!(error.to_string().contains(&words), "{error}");
            }
            (outcome, missing) => panic!("{url}: {outcome:?}, missing {missing:?}"),
        }
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
    // Characters that end an authority elsewhere are part of a password here.
    for text in [
        "redis://u:hunter2/x@10.0.0.1",
        "redis://u:hunter2?x@10.0.0.1",
        "u:hunter2@10.0.0.1:2379",
        "u:hunter2@x://10.0.0.1",
        "http://10.0.0.1/?token=hunter2",
    ] {
        assert!(!redacted(text).contains("hunter2"), "{text}");
        let shown = match parse(text) {
            Ok(url) => format!("{url} {url:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains("hunter2"), "{text}: {shown}");
    }
}

/// As the reference engine is often called.
#[test]
fn a_list_of_addresses_is_one_of_etcd_servers() {
    for text in ["10.0.0.1:2379,10.0.0.2:2379", "10.0.0.1:2379;10.0.0.2:2379", "u:p@10.0.0.1:2379"] {
        let url = parse(text).unwrap();
        assert!(matches!(&url, MetadataUrl::Store { scheme: "etcd", url } if url.ends_with(text)), "{url}");
        assert_eq!(url.server().unwrap().to_string(), "10.0.0.1:2379");
    }
}

#[test]
fn the_first_server_of_a_store_is_found() {
    for (text, server) in [
        ("redis://u:p@10.0.0.1/3", "10.0.0.1:6379"),
        ("http://10.0.0.1/metadata", "10.0.0.1:80"),
        ("https://[::1]:8443/metadata", "[::1]:8443"),
        ("etcd://http://10.0.0.1:2379,http://b:2379", "10.0.0.1:2379"),
    ] {
        assert_eq!(parse(text).unwrap().server().unwrap().to_string(), server, "{text}");
    }
    assert_eq!(MetadataUrl::default().server(), None);
}

/// What is wrong with a URL is said before anything starts.
#[cfg(all(feature = "etcd", feature = "redis", feature = "http"))]
#[test]
fn a_store_url_that_no_store_can_use_is_an_error() {
    for text in ["etcd://a:0", "redis://a/x", "redis://a,b", "http://a:99999/", "http://a/m?x=1"] {
        assert!(matches!(parse(text), Err(MetadataError::Address { .. })), "{text}");
    }
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
