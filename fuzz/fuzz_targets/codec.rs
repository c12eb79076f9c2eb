//! The binary codec: any bytes are a value or an error, and a value has one form.

#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use te_segment::{
    Access, AddressRange, Endpoint, Generation, Incarnation, SegmentName, TransportKind, codec,
};

type Everything = (
    Incarnation,
    Vec<(AddressRange, Access, Option<Generation>)>,
    Option<SegmentName>,
    BTreeMap<TransportKind, Vec<u64>>,
    Option<Endpoint>,
    String,
);

fuzz_target!(|data: &[u8]| {
    if let Ok(value) = codec::decode::<Everything>(data) {
        let bytes = codec::encode(&value).expect("what was decoded can be encoded");
        assert_eq!(codec::decode::<Everything>(&bytes), Ok(value));
    }
    if let Ok((value, used)) = codec::decode_prefix::<Vec<String>>(data) {
        assert_eq!(codec::encode(&value).as_deref(), Ok(&data[..used]));
    }
});
