//! Fences and hellos between two engines, over real control connections.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use te_metadata::{Keys, MemoryStore, StoreDirectory};
use te_rpc::native::{FenceOutcome, Target};
use te_segment::{Host, Incarnation, SegmentName, TransportKind};
use te_testkit::{CopyTransport, Fabric};
use te_transport::{Abort, Admission, AttemptId};

use super::{FenceReply, PeerTarget, Verdict};
use crate::batch::TargetFence;
use crate::{Bound, Engine, EngineConfig, Naming, RuntimeChoice, block_on};

/// Engines over one store.
struct Shared(MemoryStore);

impl Shared {
    fn new() -> Self {
        Self(MemoryStore::new())
    }

    fn engine(&self, name: &str) -> Engine {
        self.patient(name, Duration::from_secs(1))
    }

    fn patient(&self, name: &str, patience: Duration) -> Engine {
        let naming = Naming::Store(SegmentName::new(name).unwrap());
        let mut config = EngineConfig::new(naming, "127.0.0.1".parse::<Host>().unwrap());
        config.limits.control_request = patience;
        let transport = CopyTransport::new(&Fabric::new(), TransportKind::SHM);
        block_on(async {
            let bound = Bound::bind(config, RuntimeChoice::Owned).await.unwrap();
            let directory = StoreDirectory::new(self.0.clone(), Keys::default());
            bound.start(Arc::new(directory), None, vec![Box::new(transport)]).await.unwrap()
        })
    }
}

fn engine(name: &str) -> Engine {
    Shared::new().engine(name)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn fence(from: &Engine, target: PeerTarget, attempts: Vec<AttemptId>, deadline: Instant) -> FenceReply {
    let core = from.core().clone();
    block_on(
        from.core()
            .runtime()
            .run("fence", async move { Ok(core.peers().fencer().fence(target, attempts, deadline).await) }),
    )
    .unwrap()
}

fn id(request: u64, attempt: u32) -> AttemptId {
    AttemptId { request, attempt }
}

/// Ends its attempt when it is interrupted, on another thread; or never.
struct Executor {
    at: Weak<super::Fences>,
    sender: Incarnation,
    attempt: AttemptId,
    obeys: bool,
    aborted: AtomicUsize,
    this: Weak<Self>,
}

impl Executor {
    fn begin(target: &Engine, sender: &Engine, attempt: AttemptId, obeys: bool) -> Arc<Self> {
        let fences = target.core().peers().desk.fences.clone();
        let executor = Arc::new_cyclic(|this| Self {
            at: Arc::downgrade(&fences),
            sender: sender.incarnation(),
            attempt,
            obeys,
            aborted: AtomicUsize::new(0),
            this: this.clone(),
        });
        let by: Arc<dyn Abort> = executor.clone();
        assert!(fences.admit(sender.incarnation(), &[attempt], &by));
        executor
    }

    fn aborted(&self) -> usize {
        self.aborted.load(Ordering::SeqCst)
    }
}

impl Abort for Executor {
    fn abort(&self) {
        self.aborted.fetch_add(1, Ordering::SeqCst);
        if let (true, Some(this), Some(fences)) = (self.obeys, self.this.upgrade(), self.at.upgrade()) {
            std::thread::spawn(move || {
                let by: Arc<dyn Abort> = this.clone();
                fences.ended(this.sender, &[this.attempt], &by);
            });
        }
    }
}

/// FO-07: after the acknowledgement the attempt has ended at the target, and nothing of it or an older one begins.
#[test]
fn a_fence_ends_what_runs_at_the_target() {
    let (target, sender) = (engine("target"), engine("sender"));
    let fenced = Executor::begin(&target, &sender, id(5, 2), true);
    let other = Executor::begin(&target, &sender, id(6, 1), true);
    let to = target.core().peers().this();
    let reply = fence(&sender, to.clone(), vec![id(5, 2), id(9, 1)], soon());
    assert_eq!(reply, FenceReply::Outcomes(vec![FenceOutcome::Stopped; 2]));
    assert_eq!((fenced.aborted(), other.aborted()), (1, 0));
    let by: Arc<dyn Abort> = other;
    let admit = |attempt| target.core().peers().desk.fences.admit(sender.incarnation(), &[attempt], &by);
    assert!(!admit(id(5, 1)) && !admit(id(5, 2)) && !admit(id(9, 1)));
    assert!(admit(id(5, 3)), "a newer attempt may run");
    // Again is fine.
    let reply = fence(&sender, to, vec![id(5, 2)], soon());
    assert_eq!(reply, FenceReply::Outcomes(vec![FenceOutcome::Stopped]));
}

/// FO-07: an executor that cannot be stopped is not taken for stopped.
#[test]
fn a_fence_of_what_does_not_end_says_so() {
    let (target, sender) = (engine("target"), engine("sender"));
    let _runs = Executor::begin(&target, &sender, id(5, 1), false);
    let reply = fence(&sender, target.core().peers().this(), vec![id(5, 1), id(6, 1)], soon());
    assert_eq!(reply, FenceReply::Outcomes(vec![FenceOutcome::MayStillApply, FenceOutcome::Stopped]));
}

/// FO-07
#[test]
fn a_fence_of_a_life_that_is_over_is_needless() {
    let (target, sender) = (engine("target"), engine("sender"));
    let this = target.core().peers().this();
    let earlier = PeerTarget { incarnation: Incarnation::from_bits(1), ..this.clone() };
    assert_eq!(fence(&sender, earlier, vec![id(1, 1)], soon()), FenceReply::LifeOver);
    assert!(block_on(target.shutdown(crate::Deadline::at(soon()))).is_clean());
    assert_eq!(fence(&sender, this, vec![id(1, 1)], soon()), FenceReply::LifeOver);
}

/// FO-07: silence proves nothing.
#[test]
fn a_fence_without_an_answer_is_not_taken_for_one() {
    let sender = engine("sender");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = silent.local_addr().unwrap();
    let target = PeerTarget {
        control: place.to_string().parse().unwrap(),
        incarnation: Incarnation::from_bits(1),
        name: SegmentName::new("silent").unwrap(),
    };
    let deadline = Instant::now() + Duration::from_millis(200);
    assert!(matches!(fence(&sender, target, vec![id(1, 1)], deadline), FenceReply::Unanswered(_)));
}

#[test]
fn an_engine_that_ends_welcomes_nobody() {
    let (target, sender) = (engine("target"), engine("sender"));
    target.core().peers().begin_stop();
    let (core, to) = (sender.core().clone(), Target::from(&target.core().peers().this()));
    let known = target.incarnation();
    let _open = core.peers().book().meet("target", known, Some(&to.endpoint));
    let asked =
        sender.core().runtime().run("probe", async move { Ok(core.peers().probe(&to, soon()).await) });
    let error = block_on(asked).unwrap().unwrap_err();
    assert!(error.is_shutting_down(), "{error}");
    assert_eq!(sender.core().peers().verdict(known), Verdict::Lost);
}

/// Suspicion refuses nothing; a data path that works ends even the verdict that a peer is lost.
#[test]
fn data_outranks_what_a_peer_does_not_answer() {
    let sender = engine("sender");
    let peers = sender.core().peers();
    let life = Incarnation::from_bits(5);
    let known = peers.book().meet("far", life, None);
    peers.book().life(life).unwrap().data_failed(te_transport::FailureKind::ConnectionLost);
    assert_eq!(peers.verdict(life), Verdict::Go);
    known.on(crate::machines::liveness::LivenessEvent::HelloRefused);
    assert_eq!(peers.verdict(life), Verdict::Lost);
    peers.book().life(life).unwrap().data_succeeded();
    assert_eq!(peers.verdict(life), Verdict::Go);
    assert_eq!(peers.verdict(Incarnation::from_bits(6)), Verdict::Go, "nothing is known of it");
}

/// N-04: connections that break under way cost time, and neither lose, repeat nor reorder anything.
#[test]
fn notifications_survive_broken_connections() {
    let world = Shared::new();
    let (target, sender) = (world.engine("target"), world.patient("sender", Duration::from_secs(20)));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                for connection in target.core().peers().book().all_connections() {
                    connection.close("broken on purpose");
                }
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let sent: Vec<_> = (0..40).map(|number| number.to_string()).collect();
        let outcomes: Vec<_> =
            sent.iter().map(|message| block_on(sender.notify("target", "n", message))).collect();
        over.store(true, Ordering::SeqCst);
        for outcome in outcomes {
            outcome.unwrap();
        }
        let received: Vec<_> = target.notifications().into_iter().map(|note| note.message).collect();
        assert_eq!(received, sent);
    });
}
