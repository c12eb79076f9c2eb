//! Documents made to hurt: each is an error, none a panic, an overflow of the stack or a large allocation.

use std::sync::LazyLock;

use proptest::prelude::*;
use te_segment::{
    DecodeLimits, DecodeOptions, Decoded, DescriptorError, FieldProblem, RpcLocation, SegmentDescriptor,
    wire::{self, RawJson},
};

use crate::support::{table, vector};

fn decode_within(bytes: &[u8], limits: DecodeLimits) -> Result<Decoded, DescriptorError> {
    SegmentDescriptor::decode_with(bytes, &DecodeOptions { limits, opened_as: None })
}

#[test]
fn hundred_thousand_nested_arrays_are_an_error() {
    let deep = "[".repeat(100_000);
    let document = format!(r#"{{"name":"n","protocol":"tcp","x":{deep}{}}}"#, "]".repeat(100_000));
    for text in [&deep, &document, &deep.replace('[', r#"{"a":"#)] {
        let error = SegmentDescriptor::decode(text.as_bytes()).unwrap_err();
        assert!(matches!(error, DescriptorError::TooDeep { limit: 64, .. }), "{error}");
        assert!(matches!(wire::Descriptor::decode(text.as_bytes()), Err(DescriptorError::TooDeep { .. })));
        assert!(matches!(RpcLocation::decode(text.as_bytes()), Err(DescriptorError::TooDeep { .. })));
        assert!(matches!(RawJson::parse(text), Err(DescriptorError::TooDeep { .. })));
    }
}

#[test]
fn depth_is_exact_and_names_the_bracket() {
    let nested = |levels: usize| {
        let inner = levels - 1;
        format!(r#"{{"name":"n","protocol":"tcp","x":{}{}}}"#, "[".repeat(inner), "]".repeat(inner))
    };
    assert!(SegmentDescriptor::decode(nested(64).as_bytes()).is_ok());
    let at = nested(65).find("[").unwrap() + 63;
    let error = SegmentDescriptor::decode(nested(65).as_bytes());
    assert_eq!(error, Err(DescriptorError::TooDeep { limit: 64, at }));
}

#[test]
fn brackets_inside_strings_are_not_nesting() {
    let text = format!(r#"{{"name":"n","protocol":"tcp","x":"\"{}\\"}}"#, "[{".repeat(1000));
    assert!(SegmentDescriptor::decode(text.as_bytes()).is_ok());
}

#[test]
fn larger_nesting_limit_of_the_caller_cannot_overflow_the_stack() {
    let limits = DecodeLimits { max_nesting: usize::MAX, ..DecodeLimits::default() };
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let text = format!(
        r#"{{"name":"n","protocol":"tcp","te":{{"v":1,"incarnation":"{:032x}","locality":{deep}}}}}"#,
        1
    );
    assert!(decode_within(text.as_bytes(), limits.clone()).is_err());
    let matrix = format!(r#"{{"name":"n","protocol":"rdma","priority_matrix":{{"a":[{deep},[]]}}}}"#);
    assert!(decode_within(matrix.as_bytes(), limits).is_ok_and(|decoded| decoded.ignored.len() == 1));
}

#[test]
fn document_over_the_limit_is_not_looked_at() {
    let limits = DecodeLimits { max_bytes: 10, ..DecodeLimits::default() };
    assert_eq!(
        decode_within(b"not json at all", limits),
        Err(DescriptorError::TooLarge { len: 15, limit: 10 })
    );
}

#[test]
fn list_over_its_limit_is_an_error_that_names_it() {
    let limits = DecodeLimits { max_buffers: 2, max_devices: 1, ..DecodeLimits::default() };
    let te = r#""te":{"v":1,"incarnation":"00000000000000000000000000000001","#;
    let table = [
        (r#""buffers":[1,2,3]}"#.to_owned(), "buffers", 2),
        (r#""protocol":"rdma","devices":[{"name":"a"},{"name":"b"}]}"#.to_owned(), "devices", 1),
        (format!(r#"{te}"buffers":[1,2,3]}}}}"#), "te.buffers", 2),
        (format!(r#"{te}"devices":[{{"name":"a"}},{{"name":"b"}}]}}}}"#), "te.devices", 1),
    ];
    for (text, field, limit) in table {
        let text = format!(r#"{{"name":"n","protocol":"tcp",{text}"#);
        let problem = FieldProblem::TooLong { len: limit + 1, limit };
        let error = DescriptorError::Invalid { field: field.to_owned(), problem };
        assert_eq!(decode_within(text.as_bytes(), limits.clone()), Err(error), "{text}");
    }
}

#[test]
fn number_with_a_million_digits_is_an_error_with_a_short_text() {
    let text = format!(r#"{{"name":"n","protocol":"tcp","tcp_data_port":{}}}"#, "9".repeat(1_000_000));
    let error = SegmentDescriptor::decode(text.as_bytes()).unwrap_err();
    assert_eq!(error.field(), Some("tcp_data_port"));
    assert!(error.to_string().len() < 300, "{error}");
}

#[test]
fn path_in_an_error_is_short_whatever_the_names() {
    let long = "x".repeat(100_000);
    let text = format!(
        r#"{{"name":"n","protocol":"tcp","te":{{"v":1,"incarnation":"{:032x}","data":{{"{long}":1}}}}}}"#,
        1
    );
    let error = SegmentDescriptor::decode(text.as_bytes()).unwrap_err();
    assert!(error.to_string().len() < 400, "{error}");
}

#[test]
fn many_repeated_members_are_read_in_time() {
    let text = format!(r#"{{{}"name":"n","protocol":"tcp"}}"#, r#""name":"m","#.repeat(200_000));
    assert_eq!(SegmentDescriptor::decode(text.as_bytes()).unwrap().descriptor.name().as_str(), "n");
}

#[test]
fn many_overlapping_buffers_are_read_in_time() {
    let buffers: Vec<String> =
        (1..20_000).map(|i| format!(r#"{{"name":"n","addr":{i},"length":20000}}"#)).collect();
    let text = format!(r#"{{"name":"n","protocol":"tcp","buffers":[{}]}}"#, buffers.join(","));
    let decoded = SegmentDescriptor::decode(text.as_bytes()).unwrap();
    assert_eq!((decoded.descriptor.buffers().len(), decoded.rejected.len()), (1, 19_998));
}

#[test]
fn invalid_utf8_is_an_error() {
    let error = SegmentDescriptor::decode(b"{\"name\":\"\xff\",\"protocol\":\"tcp\"}").unwrap_err();
    assert!(matches!(error, DescriptorError::Syntax { line: 1, .. }), "{error:?}");
}

#[test]
fn strict_json_is_demanded() {
    for text in
        [r#"{"name":"n","protocol":"tcp",}"#, "\u{feff}{}", "{} {}", "{/**/}", "{'a':1}", "{\"a\":01}", "NaN"]
    {
        let error = SegmentDescriptor::decode(text.as_bytes()).unwrap_err();
        assert!(matches!(error, DescriptorError::Syntax { .. }), "{text}: {error:?}");
    }
}

static SEEDS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut seeds: Vec<String> = table("variants.tsv").into_iter().map(|mut row| row.remove(1)).collect();
    seeds.push(vector("descriptor-v1-mixed-rdma.json"));
    seeds.push(vector("descriptor-v1-tcp.json"));
    seeds.push(vector("descriptor-v2-parts-rdma.json"));
    seeds
});

fn exercise(bytes: &[u8]) {
    if let Ok(decoded) = SegmentDescriptor::decode(bytes) {
        let descriptor = decoded.descriptor;
        assert!(descriptor.buffers().windows(2).all(|pair| pair[0].range().end() <= pair[1].range().start()));
        let encoded = descriptor.encode(&crate::support::options(te_segment::CompatProtocol::Tcp));
        if let Ok(encoded) = encoded {
            SegmentDescriptor::decode(encoded.as_bytes()).unwrap();
        }
    }
    if let Ok(record) = wire::Descriptor::decode(bytes) {
        let encoded = record.encode();
        assert_eq!(wire::Descriptor::decode(encoded.as_bytes()), Ok(record));
    }
    let _ = RpcLocation::decode(bytes);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        exercise(&bytes);
    }

    #[test]
    fn damaged_records_never_panic(
        which: prop::sample::Index,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..3), 1..6),
    ) {
        let mut bytes = SEEDS[which.index(SEEDS.len())].clone().into_bytes();
        for (at, byte, how) in edits {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => { bytes.remove(at); }
            }
        }
        exercise(&bytes);
    }

    #[test]
    fn records_with_a_member_replaced_never_panic(
        which: prop::sample::Index,
        member: prop::sample::Index,
        with in prop_oneof![
            Just("null"), Just("-1"), Just("1e400"), Just("[]"), Just("{}"), Just("\"\""), Just("true"),
            Just("18446744073709551615"), Just("[[[]]]"), Just("\"\\ud800\""), Just("0"), Just("[1,2,3]"),
        ],
    ) {
        let seed = &SEEDS[which.index(SEEDS.len())];
        let values: Vec<usize> = seed.match_indices("\":").map(|(at, _)| at + 2).collect();
        let at = values[member.index(values.len())];
        // Up to the next separator: for scalars a valid record with another value, for the rest a broken one.
        let end = seed[at..].find([',', '}', ']']).map_or(seed.len(), |n| at + n);
        exercise(format!("{}{with}{}", &seed[..at], &seed[end..]).as_bytes());
    }
}
