//! What peers ask of this engine over native control connections.

use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use te_rpc::BoxFuture;
use te_rpc::native::{
    Answer, BatchOutcome, CloseReason, FencedAttempt, NativeHandler, NativePeer, PeerId, RefuseReason,
    Request,
};
use te_segment::{DescriptorVersion, Generation, Incarnation};
use te_transport::AttemptId;

use super::acquaintance::Acquaintance;
use super::book::Book;
use super::fences::{FenceBegun, Fences};
use super::interest::{Interest, NotJoined};
use crate::core::Core;
use crate::inbox::Inbox;
use crate::local::LocalSegment;
use crate::machines::arrivals::Note;
use crate::machines::delivery::Tidings;
use crate::machines::liveness::LivenessEvent;

/// Answers peers. Nothing in here waits for another peer (META-07): what has to ask someone runs in a task of its own.
pub(crate) struct Desk {
    pub(super) core: Weak<Core>,
    pub(super) local: Arc<LocalSegment>,
    pub(super) fences: Arc<Fences>,
    pub(super) book: Book,
    pub(super) interest: Arc<Interest>,
    pub(super) inbox: Arc<Inbox>,
    /// Bytes of a notification, name and message together.
    pub(super) payload: usize,
    /// How long a request of a peer may wait here before it is answered as it stands.
    pub(super) patience: Duration,
    pub(super) stopping: AtomicBool,
}

impl Desk {
    /// Who we are.
    pub(super) fn id(&self) -> PeerId {
        PeerId { incarnation: self.local.incarnation(), name: self.local.name().as_str().to_owned() }
    }

    fn interest(&self, peer: &NativePeer) -> Answer {
        let version = self.local.version();
        match self.interest.join(peer, version) {
            Ok(served) => return Answer::Interest { version: DescriptorVersion::new(served) },
            Err(NotJoined::Disconnected) => {}
            Err(NotJoined::TooMany { replaceable }) => {
                tracing::warn!(target: "te::engine", peer = %peer.id().incarnation, "too many holders of the segment");
                peer.close("too many holders of the segment");
                if let (Some(holder), Some(core)) = (replaceable, self.core.upgrade()) {
                    let runtime = core.runtime().handle().clone();
                    let deadline = core.control_deadline();
                    runtime.spawn(async move { core.peers().cut_off(&core, holder, deadline).await });
                }
            }
        }
        // Nobody reads it: the connection has ended.
        Answer::Interest { version: DescriptorVersion::new(version) }
    }

    fn invalidate(
        self: Arc<Self>,
        peer: Incarnation,
        version: u64,
        withdrawn: Vec<Generation>,
    ) -> BoxFuture<'static, Answer> {
        // Who knows nothing of the peer's segment uses nothing of it.
        let Some(owner) = self.book.life(peer) else { return Box::pin(ready(Answer::Invalidate)) };
        let quiet = owner.invalidated(version, withdrawn);
        if let Some(core) = self.core.upgrade() {
            super::refresh::announced(&core, &owner);
        }
        Box::pin(async move {
            // An error means that the connection has ended: nobody reads the answer.
            let _ = quiet.await;
            Answer::Invalidate
        })
    }

    fn fence(self: Arc<Self>, peer: NativePeer, requests: &[FencedAttempt]) -> BoxFuture<'static, Answer> {
        let attempts: Vec<_> = requests
            .iter()
            .map(|fenced| AttemptId { request: fenced.request, attempt: fenced.attempt })
            .collect();
        let sender = peer.id().incarnation;
        match self.fences.fence(sender, &attempts) {
            FenceBegun::Done => {}
            FenceBegun::Busy => peer.close("too many fences wait"),
            FenceBegun::Stopping(stopping) => {
                return Box::pin(async move {
                    stopping.ended_within(self.patience).await;
                    Answer::Fence { stopped: self.fences.outcomes(sender, &attempts) }
                });
            }
        }
        Box::pin(ready(Answer::Fence { stopped: self.fences.outcomes(sender, &attempts) }))
    }

    fn notified(&self, peer: Incarnation, batch: u64, note: Note) -> Answer {
        let fits = note.name.len() + note.message.len() <= self.payload;
        Answer::Notify { taken: fits && self.inbox.offer(peer, batch, note) }
    }
}

impl NativeHandler for Desk {
    fn identity(&self) -> PeerId {
        self.id()
    }

    fn welcome(self: Arc<Self>, _: PeerId) -> BoxFuture<'static, Result<(), RefuseReason>> {
        let stopping = self.stopping.load(Ordering::Acquire);
        Box::pin(ready(if stopping { Err(RefuseReason::ShuttingDown) } else { Ok(()) }))
    }

    fn opened(&self, peer: &NativePeer) {
        let known = self.book.connected(peer);
        known.on(LivenessEvent::HelloAnswered { by: peer.id().incarnation });
        self.inbox.connected(peer.id().incarnation);
    }

    fn handle(self: Arc<Self>, peer: NativePeer, request: Request) -> BoxFuture<'static, Answer> {
        match request {
            Request::Interest { .. } => Box::pin(ready(self.interest(&peer))),
            Request::Invalidate { version, withdrawn } => {
                self.invalidate(peer.id().incarnation, version.value(), withdrawn)
            }
            Request::Fence { requests } => self.fence(peer, &requests),
            Request::Notify { batch, name, message, outcome } => {
                let tidings = match outcome {
                    BatchOutcome::Success => Tidings::Success,
                    BatchOutcome::Failure => Tidings::Failure,
                };
                let note = Note { name, message, tidings };
                Box::pin(ready(self.notified(peer.id().incarnation, batch, note)))
            }
            _ => Box::pin(ready(Answer::Probe)),
        }
    }

    fn gone(&self, peer: &NativePeer) {
        self.interest.left(peer);
        let Some((known, connected)) = self.book.disconnected(peer) else { return };
        known.left(peer);
        if !connected {
            self.inbox.disconnected(peer.id().incarnation);
        }
        if let Some(event) = peer.closed().as_ref().and_then(meaning) {
            note(&self.fences, &known, event);
        }
    }
}

/// What the end of a connection says of the peer's life.
fn meaning(reason: &CloseReason) -> Option<LivenessEvent> {
    match reason {
        CloseReason::Lost { .. } => Some(LivenessEvent::ControlReset),
        CloseReason::Silent | CloseReason::NotReading => Some(LivenessEvent::HelloTimedOut),
        reason if reason.is_end_of_life() => Some(LivenessEvent::Goodbye),
        _ => None,
    }
}

/// Something was learned of a peer's life.
pub(super) fn note(fences: &Fences, peer: &Acquaintance, event: LivenessEvent) {
    let life = peer.on(event);
    if let Some(incarnation) = peer.incarnation()
        && life.refuses()
    {
        fences.over(incarnation);
    }
}

/// So long before the connection's own limit a request is answered as it stands.
pub(super) fn patience(limit: Duration) -> Duration {
    limit / 5 * 4
}
