//! The lossless model: nothing is lost on the way through it.

use proptest::prelude::*;
use te_segment::{
    RpcLocation,
    wire::{BufferEntry, Descriptor, Protocol, RawJson, Reach, Word},
};

use crate::support::table;

fn round_trip(text: &str) -> String {
    Descriptor::decode(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}")).encode()
}

#[test]
fn every_captured_descriptor_comes_back_byte_by_byte() {
    let mut seen = 0;
    for row in table("bodies.tsv").iter().filter(|row| row[0] == "descriptor") {
        let sent = if row[2] == "lf" { format!("{}\n", row[3]) } else { row[3].clone() };
        assert_eq!(round_trip(&sent), row[3]);
        seen += 1;
    }
    assert!(seen >= 16);
}

#[test]
fn every_captured_rpc_location_comes_back_byte_by_byte() {
    let mut seen = 0;
    for row in table("bodies.tsv").iter().filter(|row| row[0] == "rpc_location") {
        let location = RpcLocation::decode(format!("{}\n", row[3]).as_bytes()).unwrap();
        assert_eq!(location.encode(), row[3]);
        seen += 1;
    }
    assert!(seen >= 5);
}

/// B-09: each protocol has a form of its own, and each of them is known in every build.
#[test]
fn every_protocol_comes_back_byte_by_byte() {
    let rows = table("variants.tsv");
    for row in &rows {
        assert_eq!(round_trip(&row[1]), row[1], "{}", row[0]);
    }
    for word in Word::ALL {
        assert!(rows.iter().any(|row| row[0] == word.as_str()), "a record of {word}");
    }
}

#[test]
fn every_known_member_of_a_variant_is_typed() {
    for row in table("variants.tsv") {
        let record = Descriptor::decode(row[1].as_bytes()).unwrap();
        let mut rest = record.extra.clone();
        if row[0] == "barex" {
            rest.remove("priority_matrix");
        }
        assert!(rest.is_empty(), "{}: {rest:?}", row[0]);
        for entry in record.buffers.unwrap_or_default() {
            let BufferEntry::Valid(buffer) = entry else { panic!("{}: {entry:?}", row[0]) };
            assert!(buffer.extra.is_empty(), "{}: {buffer:?}", row[0]);
        }
    }
}

#[test]
fn every_variation_that_decodes_comes_back_byte_by_byte() {
    let mut seen = 0;
    for row in table("variations.tsv") {
        if let Ok(record) = Descriptor::decode(row[4].as_bytes()) {
            assert_eq!(record.encode(), row[4], "{}", row[0]);
            seen += 1;
        }
    }
    assert!(seen >= 20);
}

#[test]
fn members_that_are_not_known_survive_everywhere() {
    let text = concat!(
        r#"{"buffers":[{"addr":4096,"future":[1,null,{"a":2.50}],"length":1,"lkey":[0],"name":"cpu:0","rkey":[1]}],"#,
        r#""devices":[{"gid":"ignore","lid":0,"name":"a","speed":400}],"name":"n","protocol":"rdma","te":{"v":9},"#,
        r#""x":"é","zz":-0.0e+9}"#
    );
    assert_eq!(round_trip(text), text);
}

#[test]
fn integers_beyond_64_bits_survive() {
    let text = r#"{"big":123456789012345678901234567890123456789012345678901234567890,"protocol":"tcp"}"#;
    assert_eq!(round_trip(text), text);
}

#[test]
fn known_members_that_are_null_survive_as_null() {
    let text = r#"{"buffers":[{"addr":null,"name":null}],"devices":null,"name":null,"protocol":"rdma","timestamp":null}"#;
    let record = Descriptor::decode(text.as_bytes()).unwrap();
    assert_eq!((&record.name, &record.devices), (&None, &None));
    assert_eq!(record.encode(), text);
}

#[test]
fn wrong_buffer_survives_beside_good_ones() {
    let text = r#"{"buffers":[{"addr":"x"},7,{"addr":1}],"protocol":"tcp"}"#;
    let record = Descriptor::decode(text.as_bytes()).unwrap();
    let valid: Vec<bool> =
        record.buffers.iter().flatten().map(|entry| matches!(entry, BufferEntry::Valid(_))).collect();
    assert_eq!(valid, [false, false, true]);
    assert_eq!(record.encode(), text);
}

#[test]
fn member_that_the_protocol_does_not_use_is_not_looked_at() {
    let text = r#"{"buffers":[{"addr":1,"rkey":"?"}],"devices":7,"priority_matrix":[],"protocol":"tcp"}"#;
    let record = Descriptor::decode(text.as_bytes()).unwrap();
    assert!(matches!(&record.buffers.as_deref(), Some([BufferEntry::Valid(b)]) if b.reach == Reach::Plain));
    assert_eq!(record.encode(), text);
}

#[test]
fn of_a_repeated_member_the_last_counts() {
    let text = r#"{"protocol":"rdma","name":"a","protocol":"tcp","name":"b","x":1,"x":2}"#;
    let record = Descriptor::decode(text.as_bytes()).unwrap();
    assert_eq!(record.protocol, Protocol::One(Word::Tcp));
    assert_eq!(record.name.as_deref(), Some("b"));
    assert_eq!(record.extra.get("x").map(RawJson::as_str), Some("2"));
}

#[test]
fn escaped_member_name_is_the_same_member() {
    let record = Descriptor::decode(br#"{"n\u0061me":"a","protocol":"tcp"}"#).unwrap();
    assert_eq!(record.name.as_deref(), Some("a"));
}

#[test]
fn text_outside_ascii_is_written_in_escapes() {
    let mut record = Descriptor::new(Word::Tcp.into());
    record.name = Some("é\u{1f600}\"\\\n\u{1}\u{7f}".to_owned());
    assert_eq!(
        record.encode(),
        "{\"name\":\"\\u00e9\\ud83d\\ude00\\\"\\\\\\n\\u0001\u{7f}\",\"protocol\":\"tcp\"}"
    );
}

#[test]
fn unknown_protocol_is_kept_as_its_word() {
    let record = Descriptor::decode(br#"{"protocol":"tcp,rdma"}"#).unwrap();
    assert_eq!(record.protocol, Protocol::Unknown("tcp,rdma".to_owned()));
}

#[test]
fn rpc_location_of_an_ipv6_host_has_no_brackets() {
    let location = RpcLocation::new(&"[2001:db8::1]:15001".parse().unwrap());
    assert_eq!(location.encode(), r#"{"ip_or_host_name":"2001:db8::1","rpc_port":15001}"#);
    assert_eq!(RpcLocation::decode(location.encode().as_bytes()), Ok(location));
}

#[test]
fn rpc_location_names_the_wrong_member() {
    let table = [
        (r#"{"rpc_port":1}"#, "ip_or_host_name"),
        (r#"{"ip_or_host_name":"a:1","rpc_port":1}"#, "ip_or_host_name"),
        (r#"{"ip_or_host_name":"a"}"#, "rpc_port"),
        (r#"{"ip_or_host_name":"a","rpc_port":0}"#, "rpc_port"),
        (r#"{"ip_or_host_name":"a","rpc_port":65536}"#, "rpc_port"),
        (r#"{"ip_or_host_name":"a","rpc_port":"1"}"#, "rpc_port"),
    ];
    for (text, field) in table {
        assert_eq!(RpcLocation::decode(text.as_bytes()).unwrap_err().field(), Some(field), "{text}");
    }
}

#[test]
fn rpc_location_keeps_members_that_are_not_known() {
    let text = r#"{"ip_or_host_name":"a","rpc_port":1,"z":[1]}"#;
    assert_eq!(RpcLocation::decode(text.as_bytes()).unwrap().encode(), text);
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        "\\PC{0,8}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map("\\PC{0,4}", inner, 0..4)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn arbitrary_members_mean_the_same_after_a_round_trip(
        extra in prop::collection::btree_map("[a-z_é]{1,12}", any_json(), 0..6),
        at in 0_usize..3,
    ) {
        let mut object: serde_json::Map<String, serde_json::Value> = extra.into_iter().collect();
        let record = match at {
            0 => { object.insert("protocol".into(), "tcp".into()); object.into() }
            1 => serde_json::json!({"protocol": "hip", "buffers": [object]}),
            _ => serde_json::json!({"protocol": "rdma", "devices": [], "buffers": [object, 1]}),
        };
        if let Ok(decoded) = Descriptor::decode(record.to_string().as_bytes()) {
            let encoded = decoded.encode();
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&encoded).unwrap(), record);
            prop_assert_eq!(Descriptor::decode(encoded.as_bytes()), Ok(decoded));
        }
    }
}
