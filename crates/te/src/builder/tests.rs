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
    #[cfg(feature = "rdma")]
    assert_eq!(rdma_config(&settings), te_transport_rdma::RdmaConfig::default());
}

/// Each setting of the transport has one here with its name, its range and its variable, and arrives as what it says.
#[cfg(feature = "rdma")]
#[test]
fn settings_of_rdma_are_those_of_the_transport() {
    use te_transport_rdma::RdmaConfig;

    let keys: Vec<_> = Settings::keys().iter().filter(|key| key.feature == Some("rdma")).collect();
    assert_eq!(keys.len(), RdmaConfig::KEYS.len());
    let value = |key: &str| match key {
        "nics" => "mlx5_0,mlx5_1",
        "mtu" => "1024",
        "rail_map" => "mlx5_0=mlx5_0,mlx5_1",
        "rail_pause" => "250ms",
        "depth" => "8",
        "slice_min" | "slice_max" => "8192",
        "max_mr_size" => "4194304",
        _ => "7",
    };
    for (name, variable) in RdmaConfig::KEYS {
        let key = keys.iter().find(|key| key.name == format!("rdma.{name}")).unwrap();
        let variables: Vec<_> = key.aliases.iter().map(crate::settings::Alias::variable).collect();
        assert!(variable.is_none_or(|variable| variables.contains(&variable)), "{name}: {variables:?}");
        let (mut settings, mut config) = (Settings::default(), RdmaConfig::default());
        settings.set(key.name, value(name), Origin::Builder).unwrap();
        config.set(name, value(name)).unwrap();
        assert_ne!(config, RdmaConfig::default(), "{name}");
        assert_eq!(rdma_config(&settings), config, "{name}");
    }
}

/// The bounds of each setting are those of the transport: what is allowed here is allowed there, and nothing more is.
#[cfg(feature = "rdma")]
#[test]
fn ranges_of_rdma_settings_are_those_of_the_transport() {
    for (key, lowest, highest) in [
        ("queue_pairs", 1, 255),
        ("endpoints", 1, 65_535),
        ("depth", 4, 32_768),
        ("signal_every", 1, 1_024),
        ("max_inline", 0, 1_024),
        ("slice_min", 4_096, 1 << 30),
        ("slice_max", 4_096, 1 << 30),
        ("max_mr_size", 1 << 20, 1 << 60),
        ("port", 1, 255),
        ("gid_index", 0, 255),
        ("pkey_index", 0, 65_535),
        ("traffic_class", 0, 255),
        ("service_level", 0, 15),
    ] {
        let is_taken = |value: u64| {
            let text = value.to_string();
            let here = Settings::default().set(&format!("rdma.{key}"), &text, Origin::Builder).is_ok();
            let there = te_transport_rdma::RdmaConfig::default().set(key, &text).is_ok();
            assert_eq!(here, there, "{key} = {value}");
            here
        };
        assert!(is_taken(lowest) && is_taken(highest) && !is_taken(highest + 1), "{key}");
        assert!(lowest == 0 || !is_taken(lowest - 1), "{key}");
    }
}

#[test]
fn a_transport_that_cannot_be_had_is_an_error_that_says_why() {
    let no_rdma = [("rdma", "needs the Cargo feature `rdma`, which is not compiled in")];
    let no_rdma = if cfg!(feature = "rdma") { &[] } else { no_rdma.as_slice() };
    for (word, reason) in [
        ("nvlink", "needs the Cargo feature `nvlink`, which this release does not have yet"),
        ("pigeon", "is unknown"),
        ("local", "needs a group of engines of this process (EngineBuilder::local_group)"),
    ]
    .iter()
    .chain(no_rdma)
    {
        let mut settings = Settings::default();
        settings.set("transports", word, Origin::Builder).unwrap();
        let error = chosen(&settings, None).unwrap_err().to_string();
        assert!(error.contains(&format!("transport {word} {reason}; compiled in: ")), "{error}");
    }
}
