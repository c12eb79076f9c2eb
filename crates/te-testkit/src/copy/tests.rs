//! What the conformance suite does not ask of the copy transport.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use te_memory::RegionTable;
use te_segment::{
    Access, BufferDescriptor, CompatProtocol, EncodeOptions, Identity, Incarnation, Location,
    SegmentDescriptor, SegmentName, TransportKind,
};
use te_transport::{Context, Install, Registration, Transport};

use super::{CopyTransport, Fabric};
use crate::AreaDraft;
use crate::node::context;

fn install(fabric: &Fabric, kind: TransportKind) -> (Arc<dyn Transport>, RegionTable) {
    let regions = RegionTable::new(4);
    let incarnation = Incarnation::from_bits(1);
    let context = Context { incarnation, regions: regions.clone(), ..context("127.0.0.1") };
    (Box::new(CopyTransport::new(fabric, kind)).install(&context).unwrap(), regions)
}

fn describe(transport: &dyn Transport, regions: &RegionTable) -> SegmentDescriptor {
    let draft = AreaDraft::new(regions, 100, Access::REMOTE).unwrap();
    let Ok(Registration::Registered(via)) = transport.register(draft.region()) else {
        panic!("host memory is not registered")
    };
    let area = draft.commit();
    let via = BTreeMap::from([(transport.kind(), via)]);
    let generation = Some(area.region().generation());
    let buffer =
        BufferDescriptor::new(area.range(), Location::cpu(0), Access::REMOTE, generation, via).unwrap();
    let identity = Identity::Te { incarnation: Incarnation::from_bits(1), control: None };
    let builder =
        SegmentDescriptor::builder(SegmentName::new("a").unwrap()).identity(identity).buffer(buffer);
    transport.advertise(builder).build().unwrap()
}

#[test]
fn every_kind_can_be_played() {
    let kinds = [
        TransportKind::LOCAL,
        TransportKind::TCP,
        TransportKind::SHM,
        TransportKind::RDMA,
        TransportKind::NVLINK,
        TransportKind::HIP,
        TransportKind::CXL,
    ];
    for kind in kinds {
        let (transport, regions) = install(&Fabric::new(), kind.clone());
        let descriptor = describe(&*transport, &regions);
        let options = EncodeOptions {
            compat: CompatProtocol::Tcp,
            extension: true,
            timestamp: "2026-01-01 00:00:00".to_owned(),
        };
        let text = descriptor.encode(&options).unwrap();
        let decoded = SegmentDescriptor::decode(text.as_bytes()).unwrap();
        assert!(transport.assess(&decoded.descriptor).is_usable(), "{kind}");
    }
}

#[test]
fn separate_fabrics_do_not_reach_each_other() {
    let (here, _) = install(&Fabric::new(), TransportKind::SHM);
    let fabric = Fabric::new();
    let (_spare, _) = install(&fabric, TransportKind::SHM);
    let (there, regions) = install(&fabric, TransportKind::SHM);
    let descriptor = describe(&*there, &regions);
    assert!(there.assess(&descriptor).is_usable());
    assert!(!here.assess(&descriptor).is_usable());
}

#[test]
fn kinds_on_one_fabric_are_separate_transports() {
    let fabric = Fabric::new();
    let (shm, regions) = install(&fabric, TransportKind::SHM);
    let (rdma, _) = install(&fabric, TransportKind::RDMA);
    let descriptor = describe(&*shm, &regions);
    assert!(!rdma.assess(&descriptor).is_usable());
}

#[test]
fn shutdown_without_work_is_immediate() {
    let (transport, _) = install(&Fabric::new(), TransportKind::SHM);
    transport.shutdown(Instant::now() + Duration::from_secs(1)).unwrap();
}
