use super::transports::*;
use super::*;

fn place(name: &str, settings: &[(&str, &str)]) -> Place {
    let mut all = Settings::default();
    for (key, value) in settings {
        all.set(key, value, Origin::Builder).unwrap();
    }
    Place::choose(&all, true, name).unwrap()
}

#[test]
fn the_name_states_the_address_where_there_is_no_store() {
    let place = place("127.0.0.1:15123", &[]);
    assert_eq!((place.advertise.bare().as_str(), place.port), ("127.0.0.1", Some(15_123)));
    // As the reference engine is often called: any port.
    assert_eq!(self::place("127.0.0.1:0", &[]).port, None);
}

#[test]
fn the_metadata_url_counts_before_the_name() {
    let place = place("decode-7", &[("metadata", "p2p://[::1]:15123")]);
    assert_eq!((place.advertise.bare().as_str(), place.port), ("::1", Some(15_123)));
}

#[test]
fn settings_count_before_the_metadata_url() {
    let place =
        place("", &[("metadata", "p2p://10.0.0.7:1"), ("advertise", "10.0.0.8"), ("control.port", "2")]);
    assert_eq!((place.advertise.bare().as_str(), place.port), ("10.0.0.8", Some(2)));
    assert_eq!(place.reason, "builder");
}

/// SEC-04.
#[test]
fn only_the_advertised_address_is_bound_unless_said_otherwise() {
    assert_eq!(place("127.0.0.1", &[]).bind, None);
    let all = place("127.0.0.1", &[("bind", "0.0.0.0")]);
    assert_eq!(all.bind.unwrap().bare(), "0.0.0.0");
}

/// META-16.
#[test]
fn a_wildcard_is_bound_and_never_advertised() {
    let place = place("", &[("metadata", "p2p://0.0.0.0"), ("advertise", "10.0.0.7")]);
    assert_eq!(place.advertise.bare(), "10.0.0.7");
    assert_eq!(place.bind.unwrap().bare(), "0.0.0.0");
}

#[test]
fn the_defaults_of_settings_are_those_of_the_parts() {
    let settings = Settings::default();
    assert_eq!(limits(&settings), Limits::default());
    assert_eq!(local_config(&settings), te_transport_local::LocalConfig::default());
    #[cfg(feature = "tcp")]
    assert_eq!(tcp_config(&settings), te_transport_tcp::TcpConfig::default());
    #[cfg(feature = "shm")]
    assert_eq!(shm_config(&settings), te_transport_shm::ShmConfig::default());
}

#[test]
fn a_transport_that_cannot_be_had_is_an_error_that_says_why() {
    for (word, reason) in [
        ("rdma", "needs the Cargo feature `rdma`, which this release does not have yet"),
        ("pigeon", "is unknown"),
        ("local", "needs a group of engines of this process (EngineBuilder::local_group)"),
    ] {
        let mut settings = Settings::default();
        settings.set("transports", word, Origin::Builder).unwrap();
        let error = chosen(&settings, None).unwrap_err().to_string();
        assert!(error.contains(&format!("transport {word} {reason}; compiled in: ")), "{error}");
    }
}
