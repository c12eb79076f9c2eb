//! Opening, moving bytes, errors, notifications, shutdown.

mod common;

use std::time::{Duration, Instant};

use common::{World, soon};
use te_engine::{BatchStatus, ErrorKind, NotifyOutcome, Retry, block_on};
use te_segment::{Access, TransportKind};
use te_testkit::{Flaw, pattern, verify};

const LEN: usize = 256 << 10;
/// Less than slow transports take for so many bytes.
const LATE: Duration = Duration::from_millis(60);

#[test]
fn bytes_written_can_be_read_back() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    block_on(async {
        let offered = target.register(vec![0_u8; LEN], Access::REMOTE).await.unwrap();
        target.published(soon()).await.unwrap();
        let local = initiator.register(pattern(7, LEN), Access::LOCAL).await.unwrap();
        let peer = initiator.open("target").await.unwrap();
        let remote = peer.range(offered.address(), LEN as u64).unwrap();
        let report = initiator.batch().write(local.slice(..), &remote).submit().unwrap().await.unwrap();
        assert_eq!(report.bytes(), LEN as u64);
        let mut found = vec![0; LEN];
        offered.read_at(0, &mut found).unwrap();
        verify(7, 0, &found).unwrap();

        local.write_at(0, &vec![0; LEN]).unwrap();
        initiator.batch().read(&remote, local.slice(..)).run().unwrap();
        local.read_at(0, &mut found).unwrap();
        verify(7, 0, &found).unwrap();
    });
}

/// MR-05, MR-06: a buffer far over a transport's limit is one logical buffer, never truncated; what is over the limit is
/// cut, covered once and reported as one request.
#[test]
fn requests_over_the_slice_limit_are_cut_and_reported_as_one() {
    let world = World::new();
    let target = world.engine("target");
    let cutting =
        world.transport(TransportKind::SHM).with_capabilities(|capabilities| capabilities.max_slice = 10_007);
    let initiator = world.engine_with(World::config("initiator"), vec![Box::new(cutting)]);
    block_on(async {
        let offered = target.register(vec![0_u8; LEN], Access::REMOTE).await.unwrap();
        target.published(soon()).await.unwrap();
        let local = initiator.register(pattern(9, LEN), Access::LOCAL).await.unwrap();
        let peer = initiator.open("target").await.unwrap();
        assert_eq!(peer.descriptor().buffers().len(), 1);
        assert_eq!(peer.descriptor().buffers()[0].range().len(), LEN as u64);
        let first = peer.range(offered.address(), 100_000).unwrap();
        let second = peer.range(offered.address() + 100_000, LEN as u64 - 100_000).unwrap();
        let batch = initiator
            .batch()
            .write(local.slice(..100_000), &first)
            .write(local.slice(100_000..), &second)
            .submit()
            .unwrap();
        let report = batch.wait().unwrap();
        assert_eq!(report.requests().len(), 2);
        assert_eq!(report.requests()[0].bytes, 100_000);
        let mut found = vec![0; LEN];
        offered.read_at(0, &mut found).unwrap();
        verify(9, 0, &found).unwrap();
    });
}

/// MR-07, SEC-01: local-only memory is not in the descriptor; read-only memory cannot be written.
#[test]
fn access_is_checked_before_anything_is_sent() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    block_on(async {
        let private = target.register(vec![0_u8; 4096], Access::LOCAL).await.unwrap();
        let public = target.register(vec![0_u8; 4096], Access::REMOTE_READ).await.unwrap();
        target.published(soon()).await.unwrap();
        let local = initiator.register(vec![1_u8; 4096], Access::LOCAL).await.unwrap();
        let peer = initiator.open("target").await.unwrap();
        assert_eq!(peer.descriptor().buffers().len(), 1);
        let outside = peer.range(private.address(), 16).unwrap_err();
        assert_eq!(outside.kind(), ErrorKind::OutsideSegment);
        let remote = peer.range(public.address(), 4096).unwrap();
        let refused = initiator.batch().write(local.slice(..), &remote).submit().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        initiator.batch().read(&remote, local.slice(..)).run().unwrap();
    });
}

/// MR-18: only handles can be submitted, and their bounds are checked.
#[test]
fn lengths_and_bounds_are_checked() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    block_on(async {
        let offered = target.register(vec![0_u8; 4096], Access::REMOTE).await.unwrap();
        target.published(soon()).await.unwrap();
        let local = initiator.register(vec![0_u8; 4096], Access::LOCAL).await.unwrap();
        let peer = initiator.open("target").await.unwrap();
        let remote = peer.range(offered.address(), 100).unwrap();
        let kind = |batch: te_engine::BatchBuilder| batch.submit().unwrap_err().kind();
        assert_eq!(kind(initiator.batch()), ErrorKind::InvalidArgument);
        assert_eq!(kind(initiator.batch().read(&remote, local.slice(..99))), ErrorKind::InvalidArgument);
        assert_eq!(
            kind(initiator.batch().read(&remote, local.slice(4000..4100))),
            ErrorKind::InvalidArgument
        );
        assert_eq!(
            kind(initiator.batch().read(&remote, local.slice(u64::MAX - 1..))),
            ErrorKind::InvalidArgument
        );
        assert_eq!(peer.range(offered.address(), 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(peer.range(offered.address(), u64::MAX).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(peer.range(offered.address() + 1, 4096).unwrap_err().kind(), ErrorKind::OutsideSegment);
    });
}

/// Contract 1: who misses a range asks once; a handle from before then sees it.
#[test]
fn missed_range_is_asked_for_once() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    block_on(async {
        let peer = initiator.open("target").await.unwrap();
        let offered = target.register(vec![7_u8; 4096], Access::REMOTE).await.unwrap();
        target.published(soon()).await.unwrap();
        let local = initiator.register(vec![0_u8; 4096], Access::LOCAL).await.unwrap();
        let remote = peer.fresh_range(offered.address(), 4096).await.unwrap();
        initiator.batch().read(&remote, local.slice(..)).run().unwrap();
        let absent = peer.fresh_range(offered.address(), 4097).await.unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::OutsideSegment);
    });
}

/// SEL-01, SEL-06: an explicit list is exact, and an unknown word is an error.
#[test]
fn explicit_transports_are_exact() {
    let world = World::new();
    let both = || -> Vec<Box<dyn te_transport::Install>> {
        vec![Box::new(world.transport(TransportKind::SHM)), Box::new(world.transport(TransportKind::CXL))]
    };
    let target = world.engine_with(World::config("target"), both());
    let initiator = world.engine_with(World::config("initiator"), both());
    block_on(async {
        let offered = target.register(vec![0_u8; 4096], Access::REMOTE).await.unwrap();
        target.published(soon()).await.unwrap();
        let local = initiator.register(vec![0_u8; 4096], Access::LOCAL).await.unwrap();
        let peer = initiator.open("target").await.unwrap();
        let remote = peer.range(offered.address(), 4096).unwrap();
        let over = |report: te_engine::Report| report.requests()[0].path.transport().clone();
        let read = || initiator.batch().read(&remote, local.slice(..));
        assert_eq!(over(read().run().unwrap()), TransportKind::SHM);
        assert_eq!(over(read().transports([TransportKind::CXL]).run().unwrap()), TransportKind::CXL);
        let unknown = read().transports([TransportKind::RDMA]).submit().unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NoPath);
        assert_eq!(unknown.cause(), "transport rdma is not installed; installed: shm, cxl");
    });
}

/// N-01: on receipt the data is there; a failed batch notifies nobody.
#[test]
fn notification_follows_the_data() {
    let world = World::new();
    let slow = world.transport(TransportKind::SHM).with_pace(64 << 10, Duration::from_millis(50));
    let (target, initiator) =
        (world.engine("target"), world.engine_with(World::config("initiator"), vec![Box::new(slow)]));
    block_on(async {
        let offered = target.register(vec![0_u8; LEN], Access::REMOTE).await.unwrap();
        target.published(soon()).await.unwrap();
        let local = initiator.register(pattern(3, LEN), Access::LOCAL).await.unwrap();
        let peer = initiator.open("target").await.unwrap();
        let remote = peer.range(offered.address(), LEN as u64).unwrap();
        let batch =
            initiator.batch().write(local.slice(..), &remote).notify(&peer, "layer-17").submit().unwrap();
        let received = target.wait_notification(soon()).unwrap();
        let mut found = vec![0; LEN];
        offered.read_at(0, &mut found).unwrap();
        verify(3, 0, &found).unwrap();
        assert_eq!((received.name.as_str(), received.message.as_str()), ("initiator", "layer-17"));
        assert_eq!(batch.await.unwrap().notify(), Some(&NotifyOutcome::Delivered));

        let batch = initiator.batch().write(local.slice(..), &remote).notify(&peer, "never").deadline(LATE);
        let failed = batch.run().unwrap_err();
        assert_eq!(failed.report().unwrap().notify(), None);
        assert_eq!(target.notifications(), []);
    });
}

/// Bounded queues: the receiver refuses, the sender is told.
#[test]
fn full_inbox_refuses_notifications() {
    let world = World::new();
    let mut config = World::config("target");
    config.limits.notify_queue = 2;
    let target = world.engine_with(config, vec![Box::new(world.transport(TransportKind::SHM))]);
    let mut config = World::config("initiator");
    config.limits.control_request = Duration::from_secs(2);
    let initiator = world.engine_with(config, vec![Box::new(world.transport(TransportKind::SHM))]);
    block_on(async {
        for message in ["1", "2"] {
            initiator.notify("target", "n", message).await.unwrap();
        }
        let refused = initiator.notify("target", "n", "3").await.unwrap_err();
        assert_eq!((refused.kind(), refused.retry()), (ErrorKind::NotifyRejected, Retry::Later));
        assert_eq!(target.notifications().len(), 2);
        initiator.notify("target", "n", "4").await.unwrap();
        assert_eq!(target.next_notification().await.unwrap().message, "4");
        let long = "x".repeat((64 << 10) + 1);
        assert_eq!(initiator.notify("target", "", &long).await.unwrap_err().kind(), ErrorKind::LimitReached);
    });
}

#[test]
fn probe_answers_while_the_peer_lives() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    block_on(async {
        assert_eq!(initiator.probe("target").await.unwrap().endpoint.port(), target.control_port());
        assert_eq!(initiator.probe("nobody").await.unwrap_err().kind(), ErrorKind::NotFound);
        assert!(target.shutdown(soon()).await.is_clean());
        assert_eq!(initiator.probe("target").await.unwrap_err().kind(), ErrorKind::NotFound);
    });
}

/// FO-02: a cancelled batch is terminal, and its memory free at once.
#[test]
fn cancelled_batch_is_quiescent() {
    let world = World::new();
    let target = world.engine("target");
    let slow = world.transport(TransportKind::SHM).with_pace(64 << 10, Duration::from_millis(50));
    let initiator = world.engine_with(World::config("initiator"), vec![Box::new(slow)]);
    block_on(async {
        let offered = target.register(vec![0_u8; 16 << 20], Access::REMOTE).await.unwrap();
        target.published(soon()).await.unwrap();
        let local = initiator.register(vec![5_u8; 16 << 20], Access::LOCAL).await.unwrap();
        let peer = initiator.open("target").await.unwrap();
        let remote = peer.range(offered.address(), 16 << 20).unwrap();
        let batch = initiator.batch().write(local.slice(..), &remote).submit().unwrap();
        assert!(matches!(batch.status(), BatchStatus::Running { resolved: 0, total: 1 }));
        let began = Instant::now();
        let error = batch.cancel().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(began.elapsed() < Duration::from_secs(5));
        let memory = local.unregister(soon()).await.unwrap();
        assert_eq!(memory.len(), 16 << 20);

        // The same by dropping: nobody waits, but the memory is free soon.
        let local = initiator.register(memory, Access::LOCAL).await.unwrap();
        drop(initiator.batch().write(local.slice(..), &remote).submit().unwrap());
        local.unregister(soon()).await.unwrap();

        // And by the deadline.
        let local = initiator.register(vec![5_u8; 16 << 20], Access::LOCAL).await.unwrap();
        let late =
            initiator.batch().write(local.slice(..), &remote).deadline(Duration::from_millis(120)).submit();
        assert_eq!(late.unwrap().wait().unwrap_err().kind(), ErrorKind::TimedOut);
        local.unregister(soon()).await.unwrap();
    });
}

/// Contract 2: a batch keeps its buffers in place, whatever happens to the handles; what does not stop when it is told to
/// is waited for and named.
#[test]
fn unregister_waits_for_the_batch_and_says_what_holds_it() {
    let world = World::new();
    let target = world.engine("target");
    let slow = world.transport(TransportKind::SHM).with_pace(64 << 10, Duration::from_millis(20));
    let slow = slow.with_flaw(Flaw::IgnoresCancel);
    let initiator = world.engine_with(World::config("initiator"), vec![Box::new(slow)]);
    block_on(async {
        let offered = target.register(vec![0_u8; 2 << 20], Access::REMOTE).await.unwrap();
        target.published(soon()).await.unwrap();
        let local = initiator.register(pattern(1, 2 << 20), Access::LOCAL).await.unwrap();
        let peer = initiator.open("target").await.unwrap();
        let remote = peer.range(offered.address(), 2 << 20).unwrap();
        let batch = initiator.batch().write(local.slice(..), &remote).submit().unwrap();
        let failed =
            local.unregister(te_engine::Deadline::after(Duration::from_millis(30))).await.unwrap_err();
        assert_eq!((failed.error.kind(), failed.error.retry()), (ErrorKind::StillHeld, Retry::Later));
        assert!(failed.error.cause().starts_with("still held by 1 local"), "{}", failed.error);
        // Blocked meanwhile: no new use.
        let refused = initiator.batch().write(failed.buffer.slice(..), &remote).submit().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BufferGone);
        assert_eq!(batch.await.unwrap().bytes(), 2 << 20);
        assert_eq!(failed.buffer.unregister(soon()).await.unwrap().len(), 2 << 20);
    });
}

/// OBS-01: one line says operation, kind, cause and effect; the long form adds peer, path, applied and retry.
#[test]
fn error_text_is_complete() {
    let world = World::new();
    let target = world.engine("target");
    let slow = world.transport(TransportKind::SHM).with_pace(64 << 10, Duration::from_millis(50));
    let initiator = world.engine_with(World::config("initiator"), vec![Box::new(slow)]);
    block_on(async {
        let offered = target.register(vec![0_u8; LEN], Access::REMOTE).await.unwrap();
        target.published(soon()).await.unwrap();
        let local = initiator.register(vec![0_u8; LEN], Access::LOCAL).await.unwrap();
        let peer = initiator.open("target").await.unwrap();
        let address = offered.address();
        let remote = peer.range(address, LEN as u64).unwrap();
        let error = initiator.batch().read(&remote, local.slice(..)).deadline(LATE).run().unwrap_err();
        assert_eq!((error.kind(), error.retry()), (ErrorKind::TimedOut, Retry::Later));
        assert_eq!(error.peer(), Some("target"));
        let line = error.to_string();
        let operation = format!("read 256 KiB from target at {address:#x} into local {:#x}", local.address());
        assert!(line.starts_with(&format!("{operation} failed: timed out: ")), "{line}");
        assert!(!line.contains('\n'));
        let long = format!("{error:#}");
        for part in [
            "\n  cause    ",
            "\n  peer     target",
            "\n  path     shm ",
            "\n  applied  0 of 262144 bytes",
            "\n  retry    ",
        ] {
            assert!(long.contains(part), "{part:?} is not in {long}");
        }
        assert!(std::error::Error::source(&error).is_some());
    });
}

/// LIFE-02: a shutdown has a deadline and can be repeated.
#[test]
fn shutdown_is_idempotent_and_refuses_new_work() {
    let world = World::new();
    let (engine, peer) = (world.engine("target"), world.engine("peer"));
    block_on(async {
        let buffer = engine.register(vec![0_u8; 4096], Access::REMOTE).await.unwrap();
        let first = engine.shutdown(soon()).await;
        assert!(first.is_clean(), "{first:?}");
        assert_eq!(engine.shutdown(soon()).await, first);
        let refused = engine.register(vec![0_u8; 16], Access::LOCAL).await.unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::Shutdown);
        assert_eq!(engine.open("peer").await.unwrap_err().kind(), ErrorKind::Shutdown);
        assert_eq!(peer.open("target").await.unwrap_err().kind(), ErrorKind::NotFound);
        drop(buffer);
    });
}

#[test]
fn dropping_the_last_handle_takes_the_segment_out() {
    let world = World::new();
    let (engine, peer) = (world.engine("target"), world.engine("peer"));
    drop(engine);
    let began = Instant::now();
    block_on(async {
        while peer.open("target").await.is_ok() {
            assert!(began.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}
