use super::*;

fn nic(name: &str, addresses: &[&str]) -> Interface {
    Interface {
        name: name.to_owned(),
        up: true,
        running: true,
        loopback: name == "lo",
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
    }
}

fn chosen(table: &[Interface]) -> String {
    choose_address(table).unwrap().host.bare()
}

/// META-16.
#[test]
fn a_container_bridge_that_comes_first_is_passed_over() {
    let table = [nic("lo", &["127.0.0.1"]), nic("docker0", &["172.17.0.1"]), nic("eth0", &["10.0.0.7"])];
    let choice = choose_address(&table).unwrap();
    assert_eq!((choice.host.bare().as_str(), choice.interface.as_str()), ("10.0.0.7", "eth0"));
    assert_eq!(
        choice.reason,
        "eth0 is the only usable interface (lo leads to this host only, docker0 belongs to containers or virtual \
         machines); IPv4"
    );
}

/// META-16.
#[test]
fn a_bond_that_is_down_is_passed_over() {
    let down = Interface { up: false, running: false, ..nic("bond0", &["10.1.0.7"]) };
    assert_eq!(chosen(&[down.clone(), nic("eth1", &["10.0.0.7"])]), "10.0.0.7");
    let error = choose_address(&[down]).unwrap_err();
    assert!(error.to_string().ends_with("bond0 is down"), "{error}");
}

#[test]
fn an_interface_without_a_link_is_passed_over() {
    let unplugged = Interface { running: false, ..nic("eth0", &["10.1.0.7"]) };
    assert_eq!(chosen(&[unplugged, nic("eth1", &["10.0.0.7"])]), "10.0.0.7");
}

/// META-16.
#[test]
fn two_routable_interfaces_are_an_error_that_lists_both() {
    let table = [nic("mgmt0", &["192.168.0.7"]), nic("eth0", &["fe80::7", "10.0.0.7"])];
    let error = choose_address(&table).unwrap_err();
    assert_eq!(
        error.to_string(),
        "several addresses can be advertised, say which (setting `advertise`): 192.168.0.7 (mgmt0), 10.0.0.7 (eth0)"
    );
}

/// META-16.
#[test]
fn a_host_with_ipv6_only_is_reached_by_ipv6() {
    let choice = choose_address(&[nic("lo", &["::1"]), nic("eth0", &["fe80::7", "2605:340::1"])]).unwrap();
    assert_eq!(choice.host.bare(), "2605:340::1");
    assert!(choice.reason.ends_with("IPv6, there is no IPv4 address"), "{}", choice.reason);
}

#[test]
fn ipv4_counts_before_ipv6_on_one_interface() {
    assert_eq!(chosen(&[nic("eth0", &["2605:340::1", "10.0.0.7", "10.0.0.8"])]), "10.0.0.7");
}

/// META-16.
#[test]
fn loopback_is_never_chosen() {
    let error = choose_address(&[nic("lo", &["127.0.0.1", "::1"])]).unwrap_err();
    assert_eq!(error, AddressError::None { rejected: vec![("lo".to_owned(), "leads to this host only")] });
}

#[test]
fn link_local_addresses_are_never_chosen() {
    assert!(choose_address(&[nic("eth0", &["169.254.3.4", "fe80::1"])]).is_err());
}

#[test]
fn a_host_without_interfaces_is_an_error_in_words() {
    let error = choose_address(&[]).unwrap_err().to_string();
    assert!(error.ends_with("the host has no interfaces"), "{error}");
}

#[test]
fn a_peer_on_loopback_is_reached_from_loopback() {
    assert!(towards(&"127.0.0.1:9".parse().unwrap()).unwrap().is_loopback());
}

/// SEL-09: what the filter leaves out is in no choice, no reason and no error.
#[test]
fn filtered_interfaces_are_never_heard_of() {
    let table =
        || vec![nic("mgmt0", &["192.168.0.7"]), nic("eth0", &["10.0.0.7"]), nic("eth1", &["10.0.1.7"])];
    let apply = |filter: &str| filter.parse::<InterfaceFilter>().unwrap().apply(table());
    for filter in ["eth0", "eth*,!eth1", "!mgmt0,!eth1", "!mgmt*, !eth1"] {
        let choice = choose_address(&apply(filter)).unwrap();
        assert_eq!(choice.to_string(), "10.0.0.7: eth0 is the only interface; IPv4", "{filter}");
    }
    let error = choose_address(&apply("!mgmt0")).unwrap_err().to_string();
    assert!(error.contains("eth0") && error.contains("eth1") && !error.contains("mgmt0"), "{error}");
    let error = choose_address(&apply("ib*")).unwrap_err().to_string();
    assert!(error.ends_with("the host has no interfaces"), "{error}");
    assert_eq!(apply(""), table());
    assert_eq!(apply("*,!eth0").len(), 2);
}

#[test]
fn a_filter_is_read_back_as_it_is_shown() {
    for text in ["", "eth0", "eth*,!eth1", "*", "!*"] {
        assert_eq!(text.parse::<InterfaceFilter>().unwrap().to_string(), text);
    }
    let many = vec!["eth0"; 65].join(",");
    for text in [",", "!", "e*h", "eth0/1", "a-name-that-is-too-long", "!!eth0", many.as_str()] {
        assert!(text.parse::<InterfaceFilter>().is_err(), "{text}");
    }
}
