use std::collections::BTreeMap;

use te_segment::{Generation, Incarnation};

use super::*;
use crate::wire::Terms;

const V4: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:07";
const LOCAL: &str = "fe:80:00:00:00:00:00:00:0e:42:a1:ff:fe:00:00:07";
const V6: &str = "20:01:0d:b8:00:00:00:00:00:00:00:00:00:00:00:07";
const UNSET: &str = "00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00";

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

pub(super) fn offer(from: &str, numbers: [u32; 2], mtu: u32, reads: u8) -> Offer {
    let path = |server: &str| format!("{server}@mlx5_0").parse().unwrap();
    let to = if from == "a" { "b" } else { "a" };
    Offer {
        from: path(from),
        to: path(to),
        lid: 0,
        gid: Some(gid(V4)),
        queue_pairs: numbers.to_vec(),
        ready_ack: true,
        terms: Some(Terms {
            incarnation: Incarnation::from_bits(1),
            peer: None,
            peer_generation: None,
            cut: false,
            generation: Generation::new(1),
            psn: numbers.map(|number| number + 1_000).to_vec(),
            mtu,
            max_rd_atomic: reads,
            extra: BTreeMap::new(),
        }),
    }
}

fn port(mtu: Mtu, reads: u8) -> Port {
    Port { link: LinkLayer::Ethernet, mtu, reads_out: reads, reads_in: reads }
}

/// RDMA-03: ports of 4096 and of 1024 bytes.
#[test]
fn both_sides_set_the_smaller_mtu_and_mirrored_numbers() {
    let (a, b) = (offer("a", [1, 2], 4096, 16), offer("b", [7, 8], 1024, 4));
    let here = agree(&a, &port(Mtu::B4096, 16), &b, None).unwrap();
    let there = agree(&b, &port(Mtu::B1024, 4), &a, None).unwrap();
    assert_eq!((here.mtu, there.mtu), (Mtu::B1024, Mtu::B1024));
    assert_eq!((here.reads_out, here.reads_in), (4, 16), "no more READs than the peer answers");
    assert_eq!((there.reads_out, there.reads_in), (4, 4));
    assert_eq!(here.pairs[1], JoinedPair { ours: 2, theirs: 8, send_psn: 1_002, receive_psn: 1_008 });
    for (ours, theirs) in here.pairs.iter().zip(&there.pairs) {
        assert_eq!((ours.ours, ours.theirs), (theirs.theirs, theirs.ours));
        assert_eq!((ours.send_psn, ours.receive_psn), (theirs.receive_psn, theirs.send_psn));
    }
}

#[test]
fn toward_a_reference_engine_its_constants_apply() {
    let (a, b) = (offer("a", [1, 2], 4096, 16), Offer { terms: None, ..offer("b", [7, 8], 0, 0) });
    let agreed = agree(&a, &port(Mtu::B2048, 32), &b, None).unwrap();
    assert_eq!((agreed.mtu, agreed.reads_out), (Mtu::B2048, 16));
    assert!(agreed.pairs.iter().all(|pair| (pair.send_psn, pair.receive_psn) == (0, 0)));
    assert_eq!(
        agree(&a, &port(Mtu::B2048, 8), &b, None).unwrap().reads_out,
        8,
        "no more than the device can"
    );
}

#[test]
fn what_does_not_fit_is_said_with_both_values() {
    let (a, b) = (offer("a", [1, 2], 4096, 16), offer("b", [7, 8], 1024, 4));
    let says = |b: &Offer| agree(&a, &port(Mtu::B4096, 16), b, None).unwrap_err().to_string();
    let one = Offer { queue_pairs: vec![7], ..b.clone() };
    assert_eq!(says(&one), "peer has 1 queue pairs for an endpoint where this side has 2 (queue_pairs)");
    assert_eq!(
        says(&offer("b", [7, 8], 255, 4)),
        "b@mlx5_0 states a path mtu of 255 bytes, at least 256 are due"
    );
    let local = Offer { gid: Some(gid(LOCAL)), ..b.clone() };
    assert_eq!(
        says(&local),
        format!(
            "gid {V4} here is an IPv4 address, gid {LOCAL} of b@mlx5_0 is link-local: choose others (gid_index)"
        )
    );
    for nothing in [None, Some(gid(UNSET))] {
        let error = says(&Offer { gid: nothing, lid: 7, ..b.clone() });
        assert!(error.starts_with("b@mlx5_0 states neither a gid"), "{error}");
    }
}

#[test]
fn the_descriptor_stands_in_for_a_missing_address() {
    let (a, b) = (offer("a", [1, 2], 4096, 16), Offer { gid: None, ..offer("b", [7, 8], 1024, 4) });
    let known = PeerAddress { gid: Some(gid(V4)), lid: 9 };
    let agreed = agree(&a, &port(Mtu::B4096, 16), &b, Some(known)).unwrap();
    assert_eq!(agreed.address, PeerAddress { gid: Some(gid(V4)), lid: 0 }, "Ethernet has no lids");
    let subnet = Port { link: LinkLayer::InfiniBand, ..port(Mtu::B4096, 16) };
    let by_lid = Offer { lid: 7, gid: None, ..b };
    assert_eq!(agree(&a, &subnet, &by_lid, None).unwrap().address, PeerAddress { gid: None, lid: 7 });
}

#[test]
fn addresses_have_kinds() {
    let scopes = [V4, LOCAL, V6, UNSET].map(|text| Scope::of(gid(text)));
    assert_eq!(scopes, [Scope::V4, Scope::LinkLocal, Scope::V6, Scope::Unset]);
    assert_eq!(first_psn(u32::MAX), 16_777_215);
}

#[test]
fn a_port_that_is_attached_to_something_unknown_goes_by_what_the_peer_states() {
    let unknown = Port { link: LinkLayer::Unknown, ..port(Mtu::B4096, 16) };
    let a = offer("a", [1, 2], 4096, 16);
    for (gid, lid) in [(Some(gid(V4)), 0), (Some(gid(LOCAL)), 7), (None, 7)] {
        let b = Offer { gid, lid, ..offer("b", [7, 8], 1024, 4) };
        assert_eq!(agree(&a, &unknown, &b, None).unwrap().address, PeerAddress { gid, lid });
    }
    let nothing = Offer { gid: None, lid: 0, ..offer("b", [7, 8], 1024, 4) };
    assert!(matches!(agree(&a, &unknown, &nothing, None), Err(Disagreement::NoAddress { .. })));
}
