//! Names, identities and counters.

use te_segment::{Access, Generation, Incarnation, NameError, NicName, SegmentName, TransportKind};

#[test]
fn segment_name_may_contain_slashes() {
    assert_eq!(SegmentName::new("nvmeof/disk7").unwrap().as_str(), "nvmeof/disk7");
}

#[test]
fn segment_name_with_leading_slash_is_refused() {
    assert_eq!(SegmentName::new("/a"), Err(NameError::LeadingSlash));
}

#[test]
fn segment_name_that_begins_with_a_key_component_is_refused() {
    for reserved in ["ram", "ram/x", "rpc_meta", "rpc_meta/a/b"] {
        assert!(matches!(SegmentName::new(reserved), Err(NameError::Reserved { .. })), "{reserved}");
    }
    assert!(SegmentName::new("rams/x").is_ok());
}

#[test]
fn segment_name_of_1024_bytes_is_the_longest() {
    assert!(SegmentName::new(&"x".repeat(1024)).is_ok());
    assert_eq!(SegmentName::new(&"x".repeat(1025)), Err(NameError::TooLong { len: 1025, limit: 1024 }));
    assert_eq!(SegmentName::new(""), Err(NameError::Empty));
}

#[test]
fn control_character_in_a_name_is_refused_with_its_position() {
    assert_eq!(SegmentName::new("a\nb"), Err(NameError::Character { character: '\n', at: 1 }));
}

#[test]
fn device_name_cannot_contain_the_separator_of_nic_paths() {
    assert_eq!(NicName::new("a@b"), Err(NameError::Character { character: '@', at: 1 }));
}

#[test]
fn transport_kind_is_one_lower_case_word() {
    assert_eq!("tcp".parse::<TransportKind>().unwrap(), TransportKind::TCP);
    assert_eq!("nvlink_intra".parse::<TransportKind>().unwrap().as_str(), "nvlink_intra");
    for refused in ["TCP", "tcp,rdma", "", "_x", "1x", "tcp ", &"x".repeat(33)] {
        assert!(refused.parse::<TransportKind>().is_err(), "{refused}");
    }
}

#[test]
fn incarnation_is_32_lower_case_digits_and_parses_back() {
    let incarnation = Incarnation::from_bits(0x0b1f);
    assert_eq!(incarnation.to_string(), format!("{}0b1f", "0".repeat(28)));
    assert_eq!(incarnation.to_string().parse(), Ok(incarnation));
}

#[test]
fn text_that_is_not_32_digits_is_no_incarnation() {
    for refused in ["", "0b1f", &"g".repeat(32), &"0".repeat(33), &format!("+{}", "0".repeat(31))] {
        assert!(refused.parse::<Incarnation>().is_err(), "{refused}");
    }
}

#[test]
fn counters_end_instead_of_wrapping() {
    assert_eq!(Generation::new(1).next(), Some(Generation::new(2)));
    assert_eq!(Generation::new(u64::MAX).next(), None);
}

#[test]
fn every_access_parses_back() {
    for access in [Access::LOCAL, Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE] {
        assert_eq!(access.to_string().parse(), Ok(access));
    }
    assert!("remote".parse::<Access>().is_err());
}
