//! Transports that fail anywhere, in any way: the process goes on, and so does the engine (FO-14).
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::sync::Arc;

use common::pair::{Pair, content};
use common::{World, soon};
use te_engine::{Bound, Engine, ErrorKind, RuntimeChoice, block_on};
use te_metadata::{Keys, StoreDirectory};
use te_segment::{Access, TransportKind};
use te_testkit::{Fault, FaultTransport, Script, Site, When, pattern, verify};
use te_transport::{FailureKind, Fencing, Install, Op, RemoteEffect};

const LEN: usize = 4096;

const KINDS: [FailureKind; 13] = [
    FailureKind::Unreachable,
    FailureKind::ConnectionLost,
    FailureKind::Rejected,
    FailureKind::TimedOut,
    FailureKind::Cancelled,
    FailureKind::Unconfirmed,
    FailureKind::StaleIncarnation,
    FailureKind::BufferGone,
    FailureKind::Protocol,
    FailureKind::LocalMemory,
    FailureKind::Unsupported,
    FailureKind::Shutdown,
    FailureKind::Dropped,
];

/// Whatever a slice can end with.
fn faults() -> Vec<Fault> {
    let mut faults = vec![Fault::Drop, Fault::DropAfter];
    for kind in KINDS {
        faults.push(Fault::Refuse(kind));
        for effect in [RemoteEffect::None, RemoteEffect::MayHaveApplied, RemoteEffect::MayStillApply] {
            faults.push(Fault::FailAfter(kind, effect));
        }
    }
    faults
}

/// FO-14: after any failure of a slice, on one path or on all, the same peer is used as before.
#[test]
fn no_failure_of_a_slice_is_the_last_word() {
    for fencing in [Fencing::LocalOnly, Fencing::Target] {
        let pair = Pair::new(fencing);
        block_on(async {
            let (offered, local, range) = pair.memory(vec![0; LEN], vec![0; LEN]).await;
            let request = |op| match op {
                Op::Read => pair.initiator.batch().read(&range, local.slice(..)),
                Op::Write => pair.initiator.batch().write(local.slice(..), &range),
            };
            let mut seed = 0_u8;
            for fault in faults() {
                for (op, scripts) in [
                    (Op::Write, vec![&pair.first]),
                    (Op::Read, vec![&pair.first, &pair.second]),
                    (Op::Write, vec![&pair.first, &pair.second]),
                ] {
                    for script in &scripts {
                        script.add(Site::Slice, When::Always, fault.clone());
                    }
                    let outcome = request(op).submit().unwrap().await;
                    assert!(outcome.is_err() || scripts.len() == 1, "{fault:?}");
                    for script in &scripts {
                        script.clear();
                    }
                    seed = seed.wrapping_add(1);
                    local.write_at(0, &pattern(seed, LEN)).unwrap();
                    let only = [TransportKind::SHM];
                    let report = request(Op::Write).transports(only).run().unwrap();
                    assert_eq!(report.bytes(), LEN as u64, "after {fault:?}");
                    verify(seed, 0, &content(&offered)).unwrap();
                }
            }
            offered.unregister(soon()).await.unwrap();
            local.unregister(soon()).await.unwrap();
        });
    }
}

fn faulty(world: &World, script: &Script) -> Vec<Box<dyn Install>> {
    vec![Box::new(FaultTransport::new(world.transport(TransportKind::SHM), script))]
}

fn moves(from: &Engine, to: &Engine) {
    block_on(async {
        let offered = to.register(pattern(1, LEN), Access::REMOTE).await.unwrap();
        to.published(soon()).await.unwrap();
        let local = from.register(vec![0; LEN], Access::LOCAL).await.unwrap();
        let range =
            from.open(to.name().as_str()).await.unwrap().range(offered.address(), LEN as u64).unwrap();
        from.batch().read(&range, local.slice(..)).run().unwrap();
        verify(1, 0, &content(&local)).unwrap();
    });
}

/// FO-14: a transport that cannot be installed, register, withdraw, open a path or stop is an error of that call.
#[test]
fn no_failure_of_a_transport_is_the_last_word() {
    let world = World::new();
    let target = world.engine("target");
    let script = Script::new(1);

    script.add(Site::Install, When::Nth(1), Fault::Fail);
    let refused = block_on(async {
        let bound = Bound::bind(World::config("initiator"), RuntimeChoice::Owned).await.unwrap();
        let directory = StoreDirectory::new(world.store.clone(), Keys::default());
        bound.start(Arc::new(directory), None, faulty(&world, &script)).await
    });
    assert_eq!(refused.err().unwrap().kind(), ErrorKind::Transport);
    let initiator = world.engine_with(World::config("initiator"), faulty(&world, &script));
    moves(&initiator, &target);

    script.add(Site::Register, When::From(1), Fault::Fail);
    let failed = block_on(initiator.register(vec![0_u8; LEN], Access::REMOTE)).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Transport);
    script.clear();
    moves(&initiator, &target);

    let buffer = block_on(initiator.register(vec![0_u8; LEN], Access::REMOTE)).unwrap();
    script.add(Site::Unregister, When::From(1), Fault::Fail);
    let failed = block_on(buffer.unregister(soon())).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Transport);
    script.clear();
    assert_eq!(block_on(failed.buffer.unregister(soon())).unwrap().len(), LEN);
    moves(&initiator, &target);

    let other = world.engine("other");
    script.add(Site::Path, When::From(1), Fault::Fail);
    let pathless = block_on(async {
        let offered = other.register(vec![0_u8; LEN], Access::REMOTE).await.unwrap();
        other.published(soon()).await.unwrap();
        let local = initiator.register(vec![0; LEN], Access::LOCAL).await.unwrap();
        let range = initiator.open("other").await.unwrap().range(offered.address(), LEN as u64).unwrap();
        initiator.batch().read(&range, local.slice(..)).run().unwrap_err()
    });
    assert_eq!(pathless.kind(), ErrorKind::NoPath, "{pathless}");
    script.clear();
    moves(&initiator, &other);

    script.add(Site::Shutdown, When::Always, Fault::Fail);
    assert!(!block_on(initiator.shutdown(soon())).is_clean());
    moves(&other, &target);
}
