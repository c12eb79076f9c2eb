//! Scripted faults happen as scripted, and faulty transports keep the contract.

use std::sync::Arc;
use std::time::{Duration, Instant};

use te_segment::{SegmentDescriptor, TransportKind};
use te_transport::{CancelReason, FailureKind, Install, Op, Outcome, RemoteEffect};

use super::{Fault, FaultTransport, Script, Site, When};
use crate::transport::bench::{Bench, Order, PATIENCE, Way};
use crate::{Area, CopyTransport, Fabric, Ledger, Link, Rig, Side, Violation};

/// A copy transport that fails by script on the near side.
struct Scripted {
    fabric: Fabric,
    script: Script,
}

impl Scripted {
    fn new(script: &Script) -> Self {
        Self { fabric: Fabric::new(), script: script.clone() }
    }
}

impl Rig for Scripted {
    fn backend(&self, side: Side) -> Box<dyn Install> {
        let copies = CopyTransport::new(&self.fabric, TransportKind::SHM);
        match side {
            Side::Near => Box::new(FaultTransport::new(copies, &self.script)),
            Side::Far => Box::new(copies),
        }
    }

    fn link(&self, far: &SegmentDescriptor) -> Result<Option<Link>, Violation> {
        self.fabric.link(&TransportKind::SHM, far).map(Some)
    }
}

fn bench(script: &Script) -> Bench {
    Bench::new(&(Arc::new(Scripted::new(script)) as Arc<dyn Rig>)).unwrap()
}

const SLICE: u64 = 4096;

struct Ran {
    ledger: Arc<Ledger>,
    near: Area,
    far: Area,
    order: Order,
    began: Instant,
}

/// Submits `count` writes, the first of which reads `SLICE` bytes at offset 0 and so on.
fn submit(bench: &Bench, count: u64, limit: Duration) -> Ran {
    let (near, far) = bench.areas(usize::try_from(SLICE * count).unwrap()).unwrap();
    let way: Way = bench.way().unwrap();
    let ledger = Ledger::new(usize::try_from(count).unwrap());
    let order = Order::within(limit);
    let piece = |at| way.piece(Op::Write, (&near, at * SLICE), (&far, at * SLICE), SLICE).unwrap();
    let began = Instant::now();
    way.submit((0..count).map(piece).collect(), &ledger, &order);
    Ran { ledger, near, far, order, began }
}

impl Ran {
    fn finish(self) -> Self {
        self.ledger.wait(Instant::now() + PATIENCE).unwrap();
        self
    }

    fn kinds(&self) -> Vec<Option<FailureKind>> {
        let kind = |outcome| match outcome {
            Outcome::Failed(failure) => Some(failure.kind()),
            _ => None,
        };
        self.ledger.outcomes().into_iter().map(kind).collect()
    }

    /// Whether the bytes of slice `at` are at the far side.
    fn applied(&self, at: u64) -> bool {
        let bytes = self.near.copy_out(at * SLICE, usize::try_from(SLICE).unwrap()).unwrap();
        self.far.expect_at(at * SLICE, &bytes).is_ok()
    }
}

/// Without faults the wrapper is the transport that it wraps.
mod without_faults {
    use super::*;
    crate::transport_conformance!(Scripted::new(&Script::new(0)));
}

#[test]
fn installation_fails_by_script() {
    let script = Script::new(0).with(Site::Install, When::Always, Fault::Fail);
    let rig: Arc<dyn Rig> = Arc::new(Scripted::new(&script));
    let violation = Bench::new(&rig).err().expect("the near side cannot be installed");
    assert!(violation.to_string().starts_with("near side: shm is unavailable"), "{violation}");
}

#[test]
fn registration_fails_at_the_scripted_call() {
    let script = Script::new(0).with(Site::Register, When::Nth(2), Fault::Fail);
    let bench = bench(&script);
    let register = || bench.near.area(100, te_segment::Access::REMOTE).map(drop);
    register().unwrap();
    assert!(register().unwrap_err().to_string().contains("register failed"));
    register().unwrap();
}

#[test]
fn registration_is_not_mine_by_script() {
    let script = Script::new(0).with(Site::Register, When::Always, Fault::NotMine);
    let violation = bench(&script).near.area(100, te_segment::Access::REMOTE).unwrap_err();
    assert!(violation.to_string().contains("does not take host memory"), "{violation}");
}

#[test]
fn withdrawal_fails_by_script_and_can_be_repeated() {
    let script = Script::new(0).with(Site::Unregister, When::Nth(1), Fault::Fail);
    let bench = bench(&script);
    let area = bench.near.area(100, te_segment::Access::REMOTE).unwrap();
    area.region().block();
    bench.near.transport.unregister(area.region()).unwrap_err();
    bench.near.transport.unregister(area.region()).unwrap();
}

#[test]
fn path_is_refused_by_script() {
    let script = Script::new(0).with(Site::Path, When::Nth(1), Fault::Fail);
    let bench = bench(&script);
    let _area = bench.far.area(100, te_segment::Access::REMOTE).unwrap();
    assert!(bench.way().is_err());
    assert!(bench.way().is_ok());
}

#[test]
fn refused_slice_is_not_begun_and_the_others_are_done() {
    let script = Script::new(0).with(Site::Slice, When::Nth(2), Fault::Refuse(FailureKind::Protocol));
    let ran = submit(&bench(&script), 3, PATIENCE).finish();
    assert_eq!(ran.kinds(), [None, Some(FailureKind::Protocol), None]);
    assert_eq!([ran.applied(0), ran.applied(1), ran.applied(2)], [true, false, true]);
}

#[test]
fn lost_acknowledgement_leaves_the_bytes_applied() {
    let fault = Fault::FailAfter(FailureKind::ConnectionLost, RemoteEffect::MayHaveApplied);
    let script = Script::new(0).with(Site::Slice, When::Always, fault);
    let ran = submit(&bench(&script), 1, PATIENCE).finish();
    let failures = ran.ledger.failures();
    assert_eq!(failures[0].1.kind(), FailureKind::ConnectionLost);
    assert_eq!(failures[0].1.effect(), RemoteEffect::MayHaveApplied);
    assert!(ran.applied(0));
}

#[test]
fn dropped_tokens_are_failures() {
    let script = Script::new(0).with(Site::Slice, When::Nth(1), Fault::Drop);
    script.add(Site::Slice, When::Nth(2), Fault::DropAfter);
    let ran = submit(&bench(&script), 2, PATIENCE).finish();
    assert_eq!(ran.kinds(), [Some(FailureKind::Dropped), Some(FailureKind::Dropped)]);
    assert_eq!([ran.applied(0), ran.applied(1)], [false, true]);
}

#[test]
fn hanging_slice_ends_at_the_deadline() {
    let script = Script::new(0).with(Site::Slice, When::Nth(1), Fault::Hang);
    let ran = submit(&bench(&script), 2, Duration::from_millis(100)).finish();
    assert_eq!(ran.kinds(), [Some(FailureKind::TimedOut), None]);
    assert!(ran.began.elapsed() >= Duration::from_millis(100));
    assert!(!ran.applied(0));
}

#[test]
fn hanging_slice_ends_when_cancelled() {
    let script = Script::new(0).with(Site::Slice, When::Always, Fault::Hang);
    let ran = submit(&bench(&script), 2, Duration::from_secs(600));
    assert_eq!(ran.ledger.resolved(), 0);
    ran.order.scope.cancel(CancelReason::Cancelled);
    let ran = ran.finish();
    assert_eq!(ran.kinds(), [Some(FailureKind::Cancelled); 2]);
    ran.near.drain(Instant::now() + PATIENCE).unwrap();
}

#[test]
fn delayed_outcome_comes_late_and_as_it_was() {
    let script = Script::new(0).with(Site::Slice, When::Nth(1), Fault::Delay(Duration::from_millis(80)));
    let ran = submit(&bench(&script), 2, PATIENCE).finish();
    assert_eq!(ran.kinds(), [None, None]);
    let reports = ran.ledger.reports();
    assert!(reports[0].at.duration_since(ran.began) >= Duration::from_millis(80));
    assert!(ran.applied(0));
}

#[test]
fn delayed_outcome_comes_at_once_when_cancelled() {
    let script = Script::new(0).with(Site::Slice, When::Always, Fault::Delay(Duration::from_secs(600)));
    let ran = submit(&bench(&script), 1, Duration::from_secs(600));
    ran.order.scope.cancel(CancelReason::Cancelled);
    ran.finish();
}

#[test]
fn chance_hits_the_same_slices_each_time() {
    let hits = || {
        let fault = Fault::Refuse(FailureKind::ConnectionLost);
        let script = Script::new(11).with(Site::Slice, When::Chance(0.5), fault);
        submit(&bench(&script), 64, PATIENCE).finish().kinds()
    };
    assert_eq!(hits(), hits());
}
