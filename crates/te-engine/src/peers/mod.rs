//! Everything between te engines over their native control connections: the shell of the life-cycle machines.
//!
//! | module | does |
//! |---|---|
//! | `desk` | answers what peers ask |
//! | `book`, `acquaintance` | who is known, and what of theirs is used |
//! | `fencer` | has peers refuse attempts of ours |
//! | `fences` | which attempts of peers may touch memory |
//! | `interest` | who holds the local segment |
//! | `refresh` | fetches descriptors that their owners say are newer |
//! | `post` | notifications to te peers |
//! | `keeper` | asks peers whether they live |
//! | `state` | what programs see of it |

mod acquaintance;
mod book;
mod desk;
mod fencer;
mod fences;
mod interest;
mod keeper;
mod post;
mod refresh;
mod state;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use te_metadata::CachedSegment;
use te_rpc::native::{
    Answer, CallError, Expectation, FenceOutcome, NativeClient, NativeError, NativeHandler, NativeLimits,
    Request, Target,
};
use te_segment::{DescriptorVersion, Endpoint, Identity, Incarnation, SegmentName};
use tokio::runtime::Handle;

use crate::core::Core;
use crate::inbox::Inbox;
use crate::limits::Limits;
use crate::local::LocalSegment;
use crate::machines::liveness::LivenessEvent;
use book::Book;
use desk::Desk;
use fencer::Fencer;
use post::Post;

pub(crate) use acquaintance::{Acquaintance, BufferWithdrawn, Uses, Verdict};
pub(crate) use fences::Fences;
pub(crate) use interest::Interest;
pub(crate) use keeper::keep;
pub(crate) use post::{Letter, NotPosted, Posted};
pub use state::{PeerState, PeerWatch};

/// Pause between two attempts to reach a peer that may answer later.
const AGAIN: Duration = Duration::from_millis(20);

/// One life of a te engine, to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerTarget {
    /// Its control listener.
    pub(crate) control: Endpoint,
    /// The life that is meant.
    pub(crate) incarnation: Incarnation,
    /// The name of its segment.
    pub(crate) name: SegmentName,
}

impl From<&PeerTarget> for Target {
    fn from(target: &PeerTarget) -> Self {
        let name = Some(target.name.as_str().to_owned());
        let expects = Expectation { incarnation: Some(target.incarnation), name };
        Self { endpoint: target.control.clone(), expects }
    }
}

/// What a fence led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FenceReply {
    /// The target's word on each attempt, in the order they were asked.
    Outcomes(Vec<FenceOutcome>),
    /// Another life answers there, or nobody listens any more: nothing of the old life is applied from now on.
    LifeOver,
    /// No answer by the deadline: why.
    Unanswered(String),
}

/// What the peers of one engine share; see the module.
pub(crate) struct Peers {
    desk: Arc<Desk>,
    client: NativeClient,
    post: Arc<Post>,
}

/// What [`Peers`] is made of.
pub(crate) struct PeersParts {
    pub(crate) core: Weak<Core>,
    pub(crate) local: Arc<LocalSegment>,
    pub(crate) fences: Arc<Fences>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) limits: Limits,
    pub(crate) runtime: Handle,
}

/// The limits of native connections that follow from the engine's.
pub(crate) fn native_limits(limits: &Limits) -> NativeLimits {
    NativeLimits { connect: limits.connect, request: limits.control_request, ..NativeLimits::default() }
}

impl Peers {
    pub(crate) fn new(parts: PeersParts) -> Self {
        let PeersParts { core, local, fences, inbox, limits, runtime } = parts;
        let patience = limits.control_request;
        let desk = Arc::new(Desk {
            core,
            interest: Arc::new(Interest::new(runtime.clone(), patience, local.version())),
            local,
            fences,
            book: Book::new(),
            inbox,
            payload: limits.notify_payload,
            patience: desk::patience(patience),
            stopping: AtomicBool::new(false),
        });
        let client = NativeClient::new(desk.clone(), native_limits(&limits));
        Self { desk, client, post: Arc::new(Post::new(runtime, patience)) }
    }

    /// Answers native connections that come to the listener.
    pub(crate) fn handler(&self) -> Arc<dyn NativeHandler> {
        self.desk.clone()
    }

    /// This engine, as its peers ask it.
    pub(crate) fn this(&self) -> PeerTarget {
        let local = &self.desk.local;
        PeerTarget {
            control: local.control().clone(),
            incarnation: local.incarnation(),
            name: local.name().clone(),
        }
    }

    pub(crate) fn book(&self) -> &Book {
        &self.desk.book
    }

    pub(crate) fn interest(&self) -> &Arc<Interest> {
        &self.desk.interest
    }

    /// The owner of an open segment, known from now on.
    pub(crate) fn meet(&self, segment: &CachedSegment) -> Arc<Acquaintance> {
        let snapshot = segment.snapshot();
        let name = snapshot.descriptor.name().as_str();
        match snapshot.descriptor.identity() {
            Identity::Te { incarnation, control } => self.book().meet(name, *incarnation, control.as_ref()),
            Identity::Reference => self.book().meet_reference(name),
        }
    }

    /// Tells the owner of an open segment that we keep its descriptor, unless it knows.
    ///
    /// # Errors
    ///
    /// Why it does not know; what that says of its life is noted.
    pub(crate) async fn join(
        &self,
        core: &Arc<Core>,
        owner: &Arc<Acquaintance>,
        deadline: Instant,
    ) -> Result<(), NativeError> {
        let Some(target) = owner.target().filter(|_| !owner.is_joined()) else {
            // What was just fetched may be older than what the owner spoke of.
            refresh::announced(core, owner);
            return Ok(());
        };
        let known =
            refresh::segments(core, owner).iter().filter_map(|s| s.snapshot().descriptor.version()).max();
        let request = Request::Interest { known: known.unwrap_or(DescriptorVersion::new(0)) };
        let asked = async {
            let peer = self.client.peer(&target, deadline).await?;
            let failed = |source: CallError| NativeError::Call { endpoint: target.endpoint.clone(), source };
            let answer = peer.call(request, deadline).await.map_err(failed)?;
            if let Answer::Interest { version } = answer {
                owner.joined(&peer, version.value());
            }
            Ok(())
        };
        let asked = asked.await;
        self.learn(owner, asked.as_ref().err());
        if asked.is_ok() {
            refresh::announced(core, owner);
        }
        asked
    }

    /// Asks whether this life is there.
    ///
    /// # Errors
    ///
    /// Why not; what that says of its life is noted.
    pub(crate) async fn probe(&self, to: &Target, deadline: Instant) -> Result<Incarnation, NativeError> {
        let known = to.expects.incarnation.and_then(|life| self.book().life(life));
        let asked = async {
            let peer = self.client.peer(to, deadline).await?;
            let failed = |source: CallError| NativeError::Call { endpoint: to.endpoint.clone(), source };
            peer.call(Request::Probe, deadline).await.map_err(failed)?;
            Ok(peer.id().incarnation)
        };
        let asked = asked.await;
        if let Some(known) = known {
            self.learn(&known, asked.as_ref().err());
        }
        if asked.as_ref().is_err_and(NativeError::is_not_native) {
            // Reference peers are not asked natively again; their failure must not delay a te engine at this place.
            self.client.disconnect(&to.endpoint, "not a native peer");
        }
        asked
    }

    /// Takes over what an answer, or the lack of one, says of a life.
    fn learn(&self, peer: &Acquaintance, failure: Option<&NativeError>) {
        let Some(incarnation) = peer.incarnation() else { return };
        let event = match failure {
            None => LivenessEvent::HelloAnswered { by: incarnation },
            Some(error) => match error.stale() {
                Some(now) => LivenessEvent::HelloAnswered { by: now },
                None if error.is_refused() => LivenessEvent::HelloRefused,
                None if error.is_shutting_down() => LivenessEvent::Goodbye,
                None => LivenessEvent::HelloTimedOut,
            },
        };
        desk::note(&self.desk.fences, peer, event);
        if matches!(event, LivenessEvent::HelloAnswered { by } if by != incarnation) {
            self.post.receiver_gone(incarnation);
        }
    }

    /// Reaches te targets with fences.
    pub(crate) fn fencer(&self) -> Fencer {
        Fencer { client: self.client.clone() }
    }

    /// Sends a notification; how it ended is told by `deadline`.
    pub(crate) fn notify(
        &self,
        target: &PeerTarget,
        letter: Letter,
        deadline: Instant,
    ) -> Result<tokio::sync::oneshot::Receiver<Posted>, NotPosted> {
        self.post.send(&self.client, target.incarnation, target.into(), letter, deadline)
    }

    /// Cuts a life of a peer off: its control connections and what it has open at the transports. Afterwards nothing that
    /// it began touches memory here; it may connect anew.
    ///
    /// # Errors
    ///
    /// What may still touch memory at the deadline.
    pub(crate) async fn cut_off(
        &self,
        core: &Arc<Core>,
        peer: Incarnation,
        deadline: Instant,
    ) -> Result<(), String> {
        for connection in self.book().connections(peer) {
            connection.close("cut off: a withdrawal was not acknowledged");
        }
        let transports = core.transports();
        let fencing = tokio::task::spawn_blocking(move || {
            let failed = transports.iter().filter_map(|transport| transport.fence(peer, deadline).err());
            failed.map(|error| error.to_string()).collect::<Vec<_>>()
        });
        let failures = fencing.await.map_err(|error| error.to_string())?;
        if !failures.is_empty() {
            return Err(failures.join("; "));
        }
        self.desk.interest.fenced(peer);
        Ok(())
    }

    /// What a submit to this life is told.
    #[cfg(test)]
    pub(crate) fn verdict(&self, incarnation: Incarnation) -> Verdict {
        self.book().life(incarnation).map_or(Verdict::Go, |peer| peer.verdict())
    }

    /// Refuses newcomers from now on.
    pub(crate) fn begin_stop(&self) {
        self.desk.stopping.store(true, Ordering::Release);
    }

    /// Says goodbye to everyone; notifications that wait have failed, and nobody expects any. Repeatable.
    pub(crate) fn stop(&self) {
        self.begin_stop();
        self.post.close();
        self.desk.inbox.close();
        for connection in self.book().all_connections() {
            connection.end_of_life();
        }
    }
}
