//! What the descriptor says of the native framing.

use serde_json::{Value, json};
use te_segment::{DescriptorBuilder, SegmentDescriptor, TransportKind};

use crate::native::VERSIONS;

/// Name of the member.
const MEMBER: &str = "native";

/// Says that the data port understands the native framing, up to its newest version.
pub(crate) fn advertise(builder: DescriptorBuilder) -> DescriptorBuilder {
    builder.data(TransportKind::TCP, json!({ MEMBER: VERSIONS.1 }))
}

/// Whether the peer says so, up to a version that leads to one both speak: whoever speaks a version speaks the one before
/// too. Without an incarnation there is nobody to greet.
pub(crate) fn is_native(peer: &SegmentDescriptor) -> bool {
    let newest = peer.data(&TransportKind::TCP).and_then(|data| data.get(MEMBER)).and_then(Value::as_u64);
    let (own_oldest, own_newest) = (u64::from(VERSIONS.0), u64::from(VERSIONS.1));
    let common = newest.is_some_and(|newest| (own_oldest..=own_newest + 1).contains(&newest));
    common && peer.incarnation().is_some()
}

#[cfg(test)]
mod tests {
    use te_segment::{Identity, Incarnation, SegmentName};

    use super::*;

    fn peer(data: Value, life: Option<u128>) -> SegmentDescriptor {
        let identity = life.map_or(Identity::Reference, |bits| Identity::Te {
            incarnation: Incarnation::from_bits(bits),
            control: None,
        });
        let builder = SegmentDescriptor::builder(SegmentName::new("peer").unwrap()).identity(identity);
        builder.data(TransportKind::TCP, data).build().unwrap()
    }

    #[test]
    fn own_offer_is_understood_and_so_is_the_next_version() {
        let own = SegmentDescriptor::builder(SegmentName::new("peer").unwrap())
            .identity(Identity::Te { incarnation: Incarnation::from_bits(1), control: None });
        assert!(is_native(&advertise(own).build().unwrap()));
        assert!(is_native(&peer(json!({ "native": VERSIONS.1 + 1, "more": [1] }), Some(1))));
    }

    #[test]
    fn what_is_no_offer_is_none() {
        let too_new = json!({ "native": VERSIONS.1 + 2 });
        for data in
            [too_new, json!({}), json!({ "native": 0 }), json!({ "native": "1" }), json!(1), json!(null)]
        {
            assert!(!is_native(&peer(data.clone(), Some(1))), "{data}");
        }
        assert!(!is_native(&peer(json!({ "native": 1 }), None)));
    }
}
