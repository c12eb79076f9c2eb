//! What is agreed on, in the values that devices take, and what devices say, in the values that are negotiated.
//!
//! ```
//! use te_sys_verbs::Gid;
//! use te_transport_rdma::negotiate::devices::{segment_gid, verbs_gid};
//! let gid = Gid([0xfe; 16]);
//! assert_eq!(verbs_gid(segment_gid(gid)), gid);
//! ```

use te_segment::Gid;
use te_sys_verbs::{DeviceLimits, Path, PortInfo, ToReceive, ToSend};

use super::{Agreement, Mtu, Patience, Port};

/// What the own side sets beyond what is agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnPort {
    /// The number of the port; they count from 1.
    pub number: u8,
    /// The place of the own address in the port's table: of the one that the own offer states.
    pub gid_index: u8,
    /// Service level of packets. The reference engine's default is 0.
    pub service_level: u8,
    /// Traffic class of packets. The reference engine's default is 0.
    pub traffic_class: u8,
}

/// An address as descriptors and handshakes have it.
#[must_use]
pub const fn segment_gid(gid: te_sys_verbs::Gid) -> Gid {
    Gid::from_bytes(gid.0)
}

/// An address as devices have it.
#[must_use]
pub const fn verbs_gid(gid: Gid) -> te_sys_verbs::Gid {
    te_sys_verbs::Gid(gid.bytes())
}

/// What is negotiated for a port, from what it and its device say, with a path MTU of at most `at_most`.
///
/// A port whose active MTU is not one that is known gets the smallest, which all ports can carry.
#[must_use]
pub fn port(info: &PortInfo, limits: &DeviceLimits, at_most: Mtu) -> Port {
    Port {
        link: info.link_layer,
        mtu: info.active_mtu.unwrap_or(Mtu::B256).min(at_most),
        reads_out: limits.reads_started,
        reads_in: limits.reads_answered,
    }
}

/// What lets pair `at` of an agreement receive; none if there are fewer pairs.
///
/// Packets carry addresses wherever the peer's is known: always on Ethernet, where nothing is agreed without it. On
/// InfiniBand, too, since a reference engine's packets do, and a device that was told to expect addresses takes no packets
/// without them. There, two sides go by LID alone if the peer states no GID.
#[must_use]
pub fn to_receive(agreed: &Agreement, at: usize, own: &OwnPort, patience: &Patience) -> Option<ToReceive> {
    let pair = agreed.pairs.get(at)?;
    let gid = agreed.address.usable_gid();
    Some(ToReceive {
        path: Path {
            gid: gid.map(verbs_gid).unwrap_or_default(),
            lid: agreed.address.lid,
            gid_index: own.gid_index,
            port: own.number,
            hop_limit: patience.hop_limit,
            traffic_class: own.traffic_class,
            service_level: own.service_level,
            global: gid.is_some(),
        },
        mtu: agreed.mtu,
        peer: pair.theirs,
        first_packet: pair.receive_psn,
        reads: agreed.reads_in,
        min_rnr_timer: patience.not_ready_timer,
    })
}

/// What lets pair `at` of an agreement send; none if there are fewer pairs.
#[must_use]
pub fn to_send(agreed: &Agreement, at: usize, patience: &Patience) -> Option<ToSend> {
    let pair = agreed.pairs.get(at)?;
    Some(ToSend {
        timeout: patience.timeout,
        retries: patience.retries,
        rnr_retries: patience.not_ready_retries,
        first_packet: pair.send_psn,
        reads: agreed.reads_out,
    })
}

#[cfg(test)]
mod tests {
    use te_sys_verbs::fake::{Fabric, Nic};
    use te_sys_verbs::{Access, Context, LinkLayer, PairSize, QueuePair, QueueSize, State, ToInit, Verbs};

    use super::super::tests::offer;
    use super::super::{JoinedPair, PeerAddress, agree};
    use super::*;
    use crate::wire::Offer;

    const OWN: OwnPort = OwnPort { number: 1, gid_index: 1, service_level: 3, traffic_class: 106 };
    const GID: Gid = Gid::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7]);

    fn agreement(gid: Option<Gid>) -> Agreement {
        let pair = |at| JoinedPair { ours: at, theirs: 10 + at, send_psn: 20 + at, receive_psn: 30 + at };
        Agreement {
            mtu: Mtu::B2048,
            reads_out: 4,
            reads_in: 8,
            address: PeerAddress { gid, lid: 9 },
            pairs: vec![pair(1), pair(2)],
        }
    }

    #[test]
    fn each_pair_gets_its_numbers_and_what_is_common() {
        let patience =
            Patience { timeout: 1, retries: 2, not_ready_retries: 3, not_ready_timer: 4, hop_limit: 5 };
        let agreed = agreement(Some(GID));
        let path = Path {
            gid: verbs_gid(GID),
            lid: 9,
            gid_index: 1,
            port: 1,
            hop_limit: 5,
            traffic_class: 106,
            service_level: 3,
            global: true,
        };
        let receive =
            ToReceive { path, mtu: Mtu::B2048, peer: 12, first_packet: 32, reads: 8, min_rnr_timer: 4 };
        assert_eq!(to_receive(&agreed, 1, &OWN, &patience), Some(receive));
        let send = ToSend { timeout: 1, retries: 2, rnr_retries: 3, first_packet: 22, reads: 4 };
        assert_eq!(to_send(&agreed, 1, &patience), Some(send));
    }

    #[test]
    fn a_pair_that_is_not_agreed_on_gets_nothing() {
        let (agreed, patience) = (agreement(Some(GID)), Patience::default());
        assert_eq!(to_receive(&agreed, 2, &OWN, &patience), None);
        assert_eq!(to_send(&agreed, 2, &patience), None);
    }

    #[test]
    fn packets_carry_no_addresses_where_the_peer_has_none() {
        for gid in [None, Some(Gid::from_bytes([0; 16]))] {
            let path = to_receive(&agreement(gid), 0, &OWN, &Patience::default()).unwrap().path;
            assert_eq!((path.global, path.gid.is_null(), path.lid), (false, true, 9));
        }
    }

    #[test]
    fn addresses_keep_their_bytes() {
        let bytes = std::array::from_fn(|at| at as u8);
        assert_eq!(segment_gid(te_sys_verbs::Gid(bytes)).bytes(), bytes);
        assert_eq!(verbs_gid(Gid::from_bytes(bytes)).0, bytes);
    }

    #[test]
    fn a_port_is_what_it_and_its_device_say() {
        let fabric = Fabric::new([Nic { mtu: Mtu::B2048, ..Nic::new("fake0") }]);
        let context = fabric.verbs().open("fake0").unwrap();
        let (mut info, mut limits) = (context.port(1).unwrap(), context.limits().unwrap());
        (limits.reads_started, limits.reads_answered) = (4, 8);
        let expected = Port { link: LinkLayer::Ethernet, mtu: Mtu::B2048, reads_out: 4, reads_in: 8 };
        assert_eq!(port(&info, &limits, Mtu::B4096), expected);
        assert_eq!(port(&info, &limits, Mtu::B1024).mtu, Mtu::B1024, "the configured bound");
        info.active_mtu = None;
        assert_eq!(port(&info, &limits, Mtu::B4096).mtu, Mtu::B256);
    }

    /// One side of a connection.
    struct Side {
        context: Context,
        pair: QueuePair,
        port: Port,
        offer: Offer,
    }

    impl Side {
        fn open(verbs: &Verbs, nic: &str, from: &str) -> Self {
            let context = verbs.open(nic).unwrap();
            let domain = context.protection_domain().unwrap();
            let queue = context.completion_queue(QueueSize { entries: 16, vector: 0 }, None, 0).unwrap();
            let size = PairSize { requests: 4, receives: 0, ranges: 1, inline: 0 };
            let pair = domain.queue_pair(size, &queue, &queue, 0).unwrap();
            let info = context.port(1).unwrap();
            let port = port(&info, &context.limits().unwrap(), Mtu::B4096);
            let mut offer = offer(from, [pair.number(), 0], port.mtu.bytes(), port.reads_in);
            offer.queue_pairs.truncate(1);
            offer.gid = Some(segment_gid(context.gid(1, OWN.gid_index).unwrap()));
            offer.lid = info.lid;
            Self { context, pair, port, offer }
        }

        fn join(&self, peer: &Offer) -> ToReceive {
            let patience = Patience::default();
            let agreed = agree(&self.offer, &self.port, peer, None).unwrap();
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
            self.pair.to_init(&ToInit { port: OWN.number, pkey_index: 0, access }).unwrap();
            let receive = to_receive(&agreed, 0, &OWN, &patience).unwrap();
            self.pair.to_receive(&receive).unwrap();
            self.pair.to_send(&to_send(&agreed, 0, &patience).unwrap()).unwrap();
            assert_eq!(self.pair.query().unwrap().state, State::ReadyToSend, "{}", self.context.name());
            receive
        }
    }

    /// RDMA-03, with devices that refuse what they cannot.
    #[test]
    fn devices_with_unequal_ports_take_what_is_agreed_on() {
        for link_layer in [LinkLayer::Ethernet, LinkLayer::InfiniBand] {
            let lid = if link_layer == LinkLayer::InfiniBand { 7 } else { 0 };
            let fabric = Fabric::new([
                Nic { link_layer, lid, ..Nic::new("fake0") },
                Nic { link_layer, lid: 2 * lid, mtu: Mtu::B1024, reads: 4, ..Nic::new("fake1") },
            ]);
            let verbs = fabric.verbs();
            let (a, b) = (Side::open(&verbs, "fake0", "a"), Side::open(&verbs, "fake1", "b"));
            let (here, there) = (a.join(&b.offer), b.join(&a.offer));
            assert_eq!((here.mtu, there.mtu), (Mtu::B1024, Mtu::B1024));
            assert_eq!((here.path.lid, there.path.lid), (2 * lid, lid));
            assert!(here.path.global && there.path.global, "{link_layer:?}");
        }
    }
}
