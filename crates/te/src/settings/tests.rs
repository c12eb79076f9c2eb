use std::collections::BTreeSet;
use std::time::Duration;

use super::*;

fn env(variables: &[(&str, &str)]) -> Result<Loaded, SettingsError> {
    Settings::from_variables(variables.iter().map(|(name, value)| (name.into(), value.into())))
}

fn value(settings: &Settings, key: &str) -> (String, String) {
    let entry = settings.entries().into_iter().find(|entry| entry.key.name == key).unwrap();
    (entry.value, entry.origin.to_string())
}

#[test]
fn defaults_are_valid() {
    Settings::default().validate().unwrap();
}

/// CFG-03: the documentation states what the code does.
#[test]
fn every_key_states_its_default_and_its_range() {
    for entry in Settings::default().entries() {
        let about = entry.key.about;
        let default = if entry.value.is_empty() { "none" } else { &entry.value };
        assert!(about.contains("Default"), "{}: {about}", entry.key.name);
        assert!(about.contains(default), "{} does not state its default {default}", entry.key.name);
        let expected = entry.key.expected();
        if let Some((_, range)) = expected.split_once(" from ") {
            let range: Vec<_> =
                range.split([',', ' ']).filter(|word| word.starts_with(char::is_numeric)).take(2).collect();
            for bound in range {
                assert!(
                    about.contains(bound),
                    "{} does not state its bound {bound}: {about}",
                    entry.key.name
                );
            }
        }
    }
}

#[test]
fn what_is_shown_can_be_set() {
    for entry in Settings::default().entries().iter().filter(|entry| entry.key.is_compiled()) {
        let mut settings = Settings::default();
        if entry.key.name != "log" {
            settings.set(entry.key.name, &entry.value, Origin::Builder).unwrap();
            assert_eq!(value(&settings, entry.key.name).0, entry.value);
        }
    }
}

#[test]
fn names_and_variables_are_unique() {
    let names: BTreeSet<_> = Settings::keys().iter().map(|key| key.name).collect();
    let variables: Vec<_> = Settings::keys()
        .iter()
        .flat_map(|key| key.aliases.iter().map(Alias::variable).chain([key.variable]))
        .collect();
    assert_eq!(names.len(), Settings::keys().len());
    assert_eq!(variables.iter().collect::<BTreeSet<_>>().len(), variables.len());
}

#[test]
fn variables_follow_the_names() {
    for key in Settings::keys() {
        assert_eq!(key.variable, format!("TE_{}", key.name.to_uppercase().replace('.', "_")));
    }
}

/// CFG-01.
#[test]
fn a_bad_value_is_an_error_with_key_value_and_range() {
    for (variable, text) in [
        ("TE_REQUEST_DEADLINE", "abc"),
        ("TE_REQUEST_DEADLINE", "-1s"),
        ("TE_REQUEST_DEADLINE", "25h"),
        ("TE_REQUEST_DEADLINE", "30"),
        ("TE_CONTROL_PORT", "65536"),
        ("TE_CONTROL_FRAME", "18446744073709551616"),
        ("TE_CONTROL_FRAME", "1GiB"),
        ("TE_NOTIFY_QUEUE", "4KiB"),
        ("MC_MIN_RPC_PORT", "abc"),
        ("TE_METADATA", "ftp://host"),
    ] {
        let error = env(&[(variable, text)]).unwrap_err().to_string();
        let key = Settings::keys()
            .iter()
            .find(|key| key.variable == variable || key.aliases.iter().any(|a| a.variable() == variable))
            .unwrap();
        for part in [key.name, text, variable, &key.expected()] {
            assert!(error.contains(part), "{error} lacks {part}");
        }
    }
}

/// CFG-01.
#[test]
fn an_unknown_variable_warns_with_the_nearest() {
    let loaded = env(&[("TE_CONTROL_PROT", "1"), ("TELEPHONE", "1"), ("MC_UNKNOWN", "1")]).unwrap();
    let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings, ["TE_CONTROL_PROT is not a setting and is ignored; did you mean TE_CONTROL_PORT?"]);
}

#[test]
fn an_unknown_key_is_an_error_with_the_nearest() {
    let error = Settings::default().set("control.prot", "1", Origin::CommandLine).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"command line: there is no setting "control.prot"; did you mean control.port?"#
    );
}

#[test]
fn own_variables_count_more_than_those_of_the_reference() {
    let loaded = env(&[("TE_PORT_MIN", "16000"), ("MC_MIN_RPC_PORT", "15500"), ("MC_MAX_RPC_PORT", "16500")]);
    let settings = loaded.unwrap().settings;
    assert_eq!(value(&settings, "port.min"), ("16000".into(), "TE_PORT_MIN".into()));
    assert_eq!(value(&settings, "port.max"), ("16500".into(), "MC_MAX_RPC_PORT".into()));
}

/// The reference engine reads both spellings.
#[test]
fn the_right_spelling_of_a_port_variable_counts_more() {
    let settings = env(&[("MC_MIN_PRC_PORT", "15400"), ("MC_MIN_RPC_PORT", "15500")]).unwrap().settings;
    assert_eq!(*settings.port_min.get(), 15_500);
}

#[cfg(feature = "tcp")]
#[test]
fn variables_of_the_reference_keep_their_units() {
    let settings = env(&[
        ("MC_TCP_STATUS_TIMEOUT_SEC", "7"),
        ("MC_TCP_PROTO", "1"),
        ("MC_TCP_LANES_PER_PEER", "2"),
        ("MC_HANDSHAKE_MAX_LENGTH", "2097152"),
        ("MC_FORCE_TCP", "0"),
    ]);
    let settings = settings.unwrap().settings;
    assert_eq!(*settings.tcp_status_timeout.get(), Duration::from_secs(7));
    assert_eq!(*settings.tcp_framing.get(), Framing::V1);
    assert_eq!(*settings.tcp_connections_per_peer.get(), Count(2));
    assert_eq!(*settings.control_frame.get(), 2 << 20);
    assert_eq!(value(&settings, "transports"), ("tcp".into(), "MC_FORCE_TCP".into()));
}

#[cfg(feature = "rdma")]
#[test]
fn variables_of_the_reference_about_rdma_keep_their_form() {
    let settings = env(&[
        ("MC_TE_FILTERS", "mlx5_0, mlx5_1"),
        ("MC_RDMA_RAIL_PAUSE_SECONDS", "7"),
        ("MC_MTU", "1024"),
        ("MC_MAX_MR_SIZE", "1099511627776"),
        ("MC_SLICE_SIZE", "131072"),
        ("MC_GID_INDEX", "-1"),
        ("MC_IB_TC", "106"),
        ("MC_IB_SL", "-1"),
    ]);
    let settings = settings.unwrap().settings;
    for (key, shown) in [
        ("rdma.nics", "mlx5_0,mlx5_1"),
        ("rdma.rail_pause", "7s"),
        ("rdma.mtu", "1024"),
        ("rdma.max_mr_size", "1TiB"),
        ("rdma.slice_min", "128KiB"),
        ("rdma.gid_index", "auto"),
        ("rdma.traffic_class", "106"),
        ("rdma.service_level", "auto"),
    ] {
        assert_eq!(value(&settings, key).0, shown, "{key}");
        assert!(value(&settings, key).1.starts_with("MC_"), "{key}");
    }
    for (variable, text) in [("MC_MTU", "1500"), ("MC_GID_INDEX", "-2"), ("MC_NUM_QP_PER_EP", "0")] {
        assert!(env(&[(variable, text)]).unwrap_err().to_string().contains(variable), "{variable}");
    }
}

/// The reference engine has two ways to say which NICs go together, and takes none where both are switched on.
#[cfg(feature = "rdma")]
#[test]
fn the_rail_map_is_what_the_reference_would_take() {
    const MAP: (&str, &str) = ("MC_NIC_PEER_AFFINITY", "mlx5_0=mlx5_1");
    const SAME: (&str, &str) = ("MC_ENABLE_DEST_DEVICE_AFFINITY", "0");
    for (variables, map) in [
        (&[MAP] as &[_], "all"),
        (&[MAP, ("MC_ENABLE_HCA_PEER_AFFINITY", "False")], "all"),
        (&[MAP, ("MC_ENABLE_HCA_PEER_AFFINITY", "True")], "mlx5_0=mlx5_1"),
        (&[SAME], "prefer_same_name"),
        (&[SAME, MAP], "prefer_same_name"),
        (&[SAME, MAP, ("MC_ENABLE_HCA_PEER_AFFINITY", "1")], "all"),
        (&[SAME, MAP, ("TE_RDMA_RAIL_MAP", "same_name")], "same_name"),
    ] {
        let settings = env(variables).unwrap().settings;
        assert_eq!(value(&settings, "rdma.rail_map").0, map, "{variables:?}");
    }
}

#[test]
fn a_value_out_of_range_is_found_before_the_start() {
    let mut settings = Settings::default();
    settings.request_deadline.set(Duration::ZERO);
    let error = settings.validate().unwrap_err().to_string();
    assert!(
        error.starts_with(r#"request.deadline = "0s" from builder is not a duration from 1ms to 24h"#),
        "{error}"
    );
}

#[test]
fn a_port_range_upside_down_is_an_error() {
    let mut settings = Settings::default();
    settings.port_min.set(18_000);
    assert_eq!(settings.validate().unwrap_err().to_string(), "port.min = 18000 is above port.max = 17000");
}

#[test]
fn a_file_states_its_lines_as_origin() {
    let settings = Settings::from_text("te.conf", "# ports\n\ncontrol.port = 15123\n").unwrap();
    assert_eq!(value(&settings, "control.port"), ("15123".into(), "te.conf:3".into()));
    let error = Settings::from_text("te.conf", "control.port 5").unwrap_err();
    assert_eq!(error.to_string(), r#"te.conf:1: "control.port 5" is not `key = value`"#);
}

#[test]
fn an_overlay_replaces_only_what_it_states() {
    let mut settings = Settings::from_text("te.conf", "control.port = 1\nport.min = 15001").unwrap();
    settings.overlay(&env(&[("TE_CONTROL_PORT", "2")]).unwrap().settings);
    assert_eq!(value(&settings, "control.port"), ("2".into(), "TE_CONTROL_PORT".into()));
    assert_eq!(value(&settings, "port.min"), ("15001".into(), "te.conf:2".into()));
}

/// SEC-03.
#[test]
fn a_secret_is_in_no_text() {
    let mut settings = Settings::default();
    settings.set("metadata.token", "hunter2", Origin::Builder).unwrap();
    assert_eq!(settings.metadata_token.get().as_ref().map(Secret::reveal), Some("hunter2"));
    assert_eq!(value(&settings, "metadata.token").0, "***");
    assert!(!format!("{settings:?} {settings:#?}").contains("hunter2"));
    for line in ["metadata.token hunter2", "metadata redis://u:hunter2@a", "metadata = gopher://u:hunter2@a"]
    {
        let error = Settings::from_text("te.conf", line).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{line}: {error:?}");
    }
    for url in ["redis//u:hunter2@a", "gopher://u:hunter2@a", "u:hunter2@a:0", "p2p://u:hunter2@a"] {
        let error = env(&[("TE_METADATA", url)]).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
    }
}

#[test]
fn a_certificate_without_its_key_is_an_error() {
    let mut settings = Settings::default();
    settings.metadata_key_file.set(Some("key.pem".into()));
    let error = settings.validate().unwrap_err().to_string();
    assert!(error.starts_with("metadata.cert_file and metadata.key_file go together"), "{error}");
}

#[cfg(not(feature = "tcp"))]
#[test]
fn a_setting_of_a_missing_part_names_the_feature() {
    let error = Settings::default().set("tcp.framing", "v1", Origin::Builder).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tcp.framing from builder needs the Cargo feature `tcp`, which is not compiled in"
    );
}
