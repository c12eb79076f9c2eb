//! Writes whose target has to be fenced before they may go on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use te_metadata::{Keys, MemoryStore, StoreDirectory};
use te_rpc::native::FenceOutcome;
use te_segment::{Access, Host, SegmentName, TransportKind};
use te_testkit::{CopyTransport, Fabric, Fault, FaultTransport, Script, Site, When, pattern, verify};
use te_transport::{AttemptId, BoxFuture, FailureKind, Install, Reach, RemoteEffect};

use super::TargetFence;
use crate::peers::{FenceReply, PeerTarget};
use crate::{Bound, Buffer, Deadline, Engine, EngineConfig, ErrorKind, Naming, RuntimeChoice, block_on};

const LEN: usize = 4096;

/// A target that answers as it is told, in order, the last answer for ever.
#[derive(Default)]
struct Answers {
    replies: Mutex<Vec<FenceReply>>,
    asked: Mutex<Vec<(PeerTarget, Vec<AttemptId>)>>,
}

impl TargetFence for Answers {
    fn fence(
        &self,
        target: PeerTarget,
        attempts: Vec<AttemptId>,
        _deadline: Instant,
    ) -> BoxFuture<'static, FenceReply> {
        let mut replies = self.replies.lock();
        let reply = if replies.len() > 1 { Some(replies.remove(0)) } else { replies.first().cloned() };
        self.asked.lock().push((target, attempts));
        Box::pin(async move {
            match reply {
                Some(reply) => reply,
                None => std::future::pending().await,
            }
        })
    }
}

struct World {
    store: MemoryStore,
    fabric: Fabric,
}

impl World {
    fn engine(&self, name: &str, scripts: Option<[&Script; 2]>) -> Engine {
        let naming = Naming::Store(SegmentName::new(name).unwrap());
        let config = EngineConfig::new(naming, "127.0.0.1".parse::<Host>().unwrap());
        let kinds = [TransportKind::SHM, TransportKind::CXL];
        let transports = kinds.into_iter().enumerate().map(|(at, kind)| -> Box<dyn Install> {
            let copy = CopyTransport::new(&self.fabric, kind).with_capabilities(|c| c.reach = Reach::Network);
            match scripts {
                Some(scripts) => Box::new(FaultTransport::new(copy, scripts[at])),
                None => Box::new(copy),
            }
        });
        block_on(async {
            let bound = Bound::bind(config, RuntimeChoice::Owned).await.unwrap();
            let directory = StoreDirectory::new(self.store.clone(), Keys::default());
            bound.start(Arc::new(directory), None, transports.collect()).await.unwrap()
        })
    }
}

/// A write whose first attempt may still apply, at a target that answers fences like this.
struct Case {
    target: Engine,
    initiator: Engine,
    second: Script,
    fence: Arc<Answers>,
    offered: Buffer,
    local: Buffer,
}

impl Case {
    fn new(fault: Fault, replies: Vec<FenceReply>) -> Self {
        let world = World { store: MemoryStore::new(), fabric: Fabric::new() };
        let (first, second) = (Script::new(1), Script::new(2));
        first.add(Site::Slice, When::Always, fault);
        let target = world.engine("target", None);
        let initiator = world.engine("initiator", Some([&first, &second]));
        let fence = Arc::new(Answers { replies: Mutex::new(replies), ..Answers::default() });
        initiator.core().install_target_fence(fence.clone());
        let (offered, local) = block_on(async {
            let offered = target.register(vec![0; LEN], Access::REMOTE).await.unwrap();
            target.published(Deadline::after_secs(10)).await.unwrap();
            (offered, initiator.register(pattern(1, LEN), Access::LOCAL).await.unwrap())
        });
        Self { target, initiator, second, fence, offered, local }
    }

    fn lost(replies: Vec<FenceReply>) -> Self {
        let lost = Fault::FailAfter(FailureKind::ConnectionLost, RemoteEffect::MayStillApply);
        Self::new(lost, replies)
    }

    fn write(&self) -> super::BatchBuilder {
        let peer = block_on(self.initiator.open("target")).unwrap();
        let range = peer.range(self.offered.address(), LEN as u64).unwrap();
        self.initiator.batch().write(self.local.slice(..), &range)
    }

    fn asked(&self) -> Vec<(PeerTarget, Vec<AttemptId>)> {
        self.fence.asked.lock().clone()
    }

    fn assert_written_once_more(&self, report: &crate::Report) {
        assert_eq!((report.bytes(), report.requests()[0].attempts), (LEN as u64, 2));
        assert!(!report.requests()[0].late_duplicate);
        assert_eq!(self.second.count(Site::Slice), 1);
        let mut found = vec![0; LEN];
        self.offered.read_at(0, &mut found).unwrap();
        verify(1, 0, &found).unwrap();
    }
}

fn unanswered() -> FenceReply {
    FenceReply::Unanswered("no answer, by script".to_owned())
}

/// FO-07, contract 9: the next attempt waits for the target's word on the one before.
#[test]
fn a_write_goes_on_when_its_target_has_refused_the_attempt_before() {
    for outcome in [FenceOutcome::Stopped, FenceOutcome::Applied] {
        let case = Case::lost(vec![FenceReply::Outcomes(vec![outcome])]);
        let report = case.write().run().unwrap();
        case.assert_written_once_more(&report);
        let asked = case.asked();
        assert_eq!(asked.len(), 1);
        let (target, attempts) = &asked[0];
        assert_eq!(target.name.as_str(), "target");
        assert_eq!(target.incarnation, case.target.incarnation());
        assert_eq!(target.control.port(), case.target.control_port());
        assert_eq!((attempts.len(), attempts[0].attempt), (1, 1));
    }
}

/// Contract 9: a life that is over applies nothing any more.
#[test]
fn a_write_goes_on_when_the_life_it_was_sent_to_is_over() {
    let case = Case::lost(vec![FenceReply::LifeOver]);
    let report = case.write().run().unwrap();
    case.assert_written_once_more(&report);
}

/// FO-07: a fence that was not answered is repeated.
#[test]
fn an_unanswered_fence_is_repeated() {
    let stopped = FenceReply::Outcomes(vec![FenceOutcome::Stopped]);
    let case = Case::lost(vec![unanswered(), unanswered(), stopped]);
    let report = case.write().run().unwrap();
    case.assert_written_once_more(&report);
    assert_eq!(case.asked().len(), 3);
}

/// FO-07: no word, no second attempt.
#[test]
fn a_write_is_not_sent_again_while_its_target_does_not_answer() {
    for replies in [vec![unanswered()], vec![]] {
        let case = Case::lost(replies);
        let error = case.write().deadline(Duration::from_millis(400)).run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.remote_effect(), RemoteEffect::MayStillApply);
        assert_eq!(case.second.count(Site::Slice), 0);
    }
}

/// FO-07: a target that cannot stop an attempt says so, and the caller too.
#[test]
fn a_write_is_not_sent_again_when_its_target_cannot_stop_the_attempt_before() {
    for outcomes in [vec![FenceOutcome::MayStillApply], vec![]] {
        let case = Case::lost(vec![FenceReply::Outcomes(outcomes)]);
        let error = case.write().run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLost);
        assert_eq!(error.remote_effect(), RemoteEffect::MayStillApply);
        assert_eq!(case.second.count(Site::Slice), 0);
    }
}

/// FO-07: one question to a target for all that may still apply there.
#[test]
fn a_batch_of_lost_writes_is_fenced_together() {
    let case = Case::lost(vec![FenceReply::Outcomes(vec![FenceOutcome::Stopped; 2])]);
    let peer = block_on(case.initiator.open("target")).unwrap();
    let range = peer.range(case.offered.address(), LEN as u64).unwrap();
    let half = LEN as u64 / 2;
    let batch = case
        .initiator
        .batch()
        .write(case.local.slice(..half), &range.slice(0, half).unwrap())
        .write(case.local.slice(half..), &range.slice(half, half).unwrap());
    let report = batch.run().unwrap();
    assert_eq!(report.bytes(), LEN as u64);
    let numbers: Vec<u64> = case.asked().iter().flat_map(|(_, ids)| ids).map(|id| id.request).collect();
    assert!(numbers.len() == 2 && numbers[0] != numbers[1], "{numbers:?}");
    assert_eq!(case.second.count(Site::Slice), 2);
}

/// FO-02: nothing waits for an answer once the engine stops.
#[test]
fn a_write_between_two_attempts_ends_with_the_engine() {
    let case = Case::lost(vec![]);
    let batch = case.write().submit().unwrap();
    while case.asked().is_empty() {
        std::thread::yield_now();
    }
    block_on(case.initiator.shutdown(Deadline::after_secs(10)));
    let error = batch.wait().unwrap_err();
    assert_eq!(error.remote_effect(), RemoteEffect::MayStillApply);
    assert_eq!(case.second.count(Site::Slice), 0);
}
