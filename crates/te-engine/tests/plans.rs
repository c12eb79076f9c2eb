//! Which of the transports of two engines a request takes.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use common::pair::{content, kinds};
use common::{World, soon};
use te_engine::{ErrorKind, block_on};
use te_segment::{Access, Location, TransportKind};
use te_select::Policy;
use te_testkit::{pattern, verify};
use te_transport::{Install, Op};

const LEN: usize = 4096;

/// FO-09: of two engines with different transports what both have is used, in either direction, and the plan says why the
/// other is not; without any in common the error has both sides.
#[test]
fn what_both_sides_have_is_used() {
    let world = World::new();
    let engine = |name, of: &[TransportKind]| {
        let install = |kind: &TransportKind| -> Box<dyn Install> { Box::new(world.transport(kind.clone())) };
        world.engine_with(World::config(name), of.iter().map(install).collect())
    };
    let both = engine("both", &[TransportKind::RDMA, TransportKind::TCP]);
    let tcp = engine("tcp", &[TransportKind::TCP]);
    let cxl = engine("cxl", &[TransportKind::CXL]);
    block_on(async {
        for (from, to) in [(&both, &tcp), (&tcp, &both)] {
            let offered = to.register(pattern(1, LEN), Access::REMOTE).await.unwrap();
            to.published(soon()).await.unwrap();
            let local = from.register(vec![0; LEN], Access::LOCAL).await.unwrap();
            let peer = from.open(to.name().as_str()).await.unwrap();
            let range = peer.range(offered.address(), LEN as u64).unwrap();
            let report = from.batch().read(&range, local.slice(..)).submit().unwrap().await.unwrap();
            assert_eq!(kinds(&report), [&TransportKind::TCP]);
            verify(1, 0, &content(&local)).unwrap();
            let plan = peer.explain(Op::Read, &range, &Location::Any, &Policy::default()).unwrap();
            assert_eq!(plan.chosen(), &TransportKind::TCP);
            let refused = plan.candidates().iter().find(|candidate| candidate.kind == TransportKind::RDMA);
            assert!(refused.is_none_or(|rdma| rdma.reason.contains("does not offer")), "{plan:?}");
            assert_eq!(refused.is_some(), from.name() == both.name());
        }
        let offered = cxl.register(vec![0; LEN], Access::REMOTE).await.unwrap();
        cxl.published(soon()).await.unwrap();
        let local = both.register(vec![0; LEN], Access::LOCAL).await.unwrap();
        let range = both.open("cxl").await.unwrap().range(offered.address(), LEN as u64).unwrap();
        let error = both.batch().read(&range, local.slice(..)).submit().unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::NoPath, Some("cxl")));
        for part in ["the peer offers cxl", "rdma (", "tcp ("] {
            assert!(error.cause().contains(part), "{part:?} is not in {}", error.cause());
        }
    });
}
