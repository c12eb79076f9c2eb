//! Connections to peers, opened when they are needed.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use te_segment::{DescriptorVersion, Endpoint};
use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    time::{sleep_until, timeout_at},
};

use super::{
    close::CallError,
    dial::Dialer,
    error::{DialError, NativeError},
    frame::{FenceOutcome, FencedAttempt},
    handler::NativeHandler,
    limits::NativeLimits,
    machine::Expectation,
    pause::Pause,
    peer::NativePeer,
    request::{Answer, Request},
};

/// Whom to ask.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Who must answer there.
    pub expects: Expectation,
}

impl From<Endpoint> for Target {
    /// Whoever answers.
    fn from(endpoint: Endpoint) -> Self {
        Self { endpoint, expects: Expectation::default() }
    }
}

/// Asks native peers. There is one connection to each endpoint, opened by the first call and shared by all of them; a
/// lost one is opened again by the next call, after a pause that grows with every failure. Requests are never sent
/// twice: that is for the caller to decide.
///
/// Clones share their connections. Dropping the last one closes them in good order. Must be used inside a tokio runtime
/// with I/O and time.
#[derive(Clone)]
pub struct NativeClient {
    shared: Arc<Shared>,
}

struct Shared {
    dialer: Dialer,
    slots: Mutex<HashMap<Endpoint, Arc<Slot>>>,
    /// Dropped with the last client, which ends the connections.
    _closing: watch::Sender<bool>,
}

/// The connection to one endpoint.
#[derive(Default)]
struct Slot {
    current: Mutex<Option<NativePeer>>,
    /// Held while a connection is being opened.
    opening: AsyncMutex<Failures>,
}

/// What has gone wrong since there was a connection.
#[derive(Default)]
struct Failures {
    pause: Pause,
    last: Option<(Instant, Arc<DialError>)>,
}

impl Slot {
    fn current(&self) -> MutexGuard<'_, Option<NativePeer>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Option<NativePeer> {
        self.current().clone().filter(NativePeer::is_open)
    }
}

impl NativeClient {
    /// A client that introduces itself as the handler's identity. The handler also answers what peers ask on these
    /// connections.
    pub fn new(handler: Arc<dyn NativeHandler>, limits: NativeLimits) -> Self {
        let (_closing, closing) = watch::channel(false);
        let dialer = Dialer { handler, limits, closing };
        Self { shared: Arc::new(Shared { dialer, slots: Mutex::default(), _closing }) }
    }

    /// The limits.
    pub fn limits(&self) -> &NativeLimits {
        &self.shared.dialer.limits
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    ///
    /// [`NativeError`], at `deadline` at the latest.
    pub async fn call(
        &self,
        to: &Target,
        request: Request,
        deadline: Instant,
    ) -> Result<Answer, NativeError> {
        let peer = self.peer(to, deadline).await?;
        let failed = |source| NativeError::Call { endpoint: to.endpoint.clone(), source };
        peer.call(request, deadline).await.map_err(failed)
    }

    /// Tells the peer that we keep its descriptor of version `known`. Gives the version it serves. Changes are pushed
    /// on the connection of this moment; when it is gone, so is the interest.
    pub async fn interest(
        &self,
        to: &Target,
        known: DescriptorVersion,
        deadline: Instant,
    ) -> Result<DescriptorVersion, NativeError> {
        match self.call(to, Request::Interest { known }, deadline).await? {
            Answer::Interest { version } => Ok(version),
            other => Err(self.unfit(to, &other)),
        }
    }

    /// Has attempts stopped; one outcome for each, in the same order.
    pub async fn fence(
        &self,
        to: &Target,
        requests: Vec<FencedAttempt>,
        deadline: Instant,
    ) -> Result<Vec<FenceOutcome>, NativeError> {
        match self.call(to, Request::Fence { requests }, deadline).await? {
            Answer::Fence { stopped } => Ok(stopped),
            other => Err(self.unfit(to, &other)),
        }
    }

    /// Asks whether the peer is there.
    pub async fn probe(&self, to: &Target, deadline: Instant) -> Result<(), NativeError> {
        self.call(to, Request::Probe, deadline).await.map(drop)
    }

    /// The open connection to the peer; opens one if there is none, or none to the one that is meant.
    pub async fn peer(&self, to: &Target, deadline: Instant) -> Result<NativePeer, NativeError> {
        let slot = self.slot(&to.endpoint)?;
        if let Some(peer) = fitting(&slot, to) {
            return Ok(peer);
        }
        let late = |_| dial_error(to, Arc::new(DialError::DeadlineExceeded), None);
        let mut failures = timeout_at(deadline.into(), slot.opening.lock()).await.map_err(late)?;
        // Whoever held the lock may have opened it.
        if let Some(peer) = fitting(&slot, to) {
            return Ok(peer);
        }
        if let Some((until, last)) = &failures.last {
            if *until > deadline {
                let pause = until.saturating_duration_since(Instant::now());
                return Err(dial_error(to, Arc::clone(last), Some(pause)));
            }
            sleep_until((*until).into()).await;
        }
        match self.shared.dialer.dial(to, deadline).await {
            Ok(peer) => {
                *failures = Failures::default();
                let older = slot.current().replace(peer.clone());
                if let Some(older) = older {
                    older.close("replaced by a newer connection");
                }
                Ok(peer)
            }
            Err(error) => {
                let error = Arc::new(error);
                let limits = self.limits();
                let pause = failures.pause.next(limits.first_pause, limits.last_pause);
                failures.last = Some((crate::client::after(Instant::now(), pause), Arc::clone(&error)));
                Err(dial_error(to, error, None))
            }
        }
    }

    /// The open connection to this endpoint, if there is one.
    pub fn connected(&self, to: &Endpoint) -> Option<NativePeer> {
        let slot = self.slots().get(to).map(Arc::clone);
        slot.and_then(|slot| slot.open())
    }

    /// Closes the connection to this endpoint, if there is one, and forgets its failures.
    pub fn disconnect(&self, to: &Endpoint, reason: &str) {
        let slot = self.slots().remove(to);
        if let Some(peer) = slot.and_then(|slot| slot.current().take()) {
            peer.close(reason);
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Endpoint, Arc<Slot>>> {
        self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, endpoint: &Endpoint) -> Result<Arc<Slot>, NativeError> {
        let limit = self.limits().max_peers;
        let mut slots = self.slots();
        if let Some(slot) = slots.get(endpoint) {
            return Ok(Arc::clone(slot));
        }
        if slots.len() >= limit {
            // What nobody uses and has no connection only remembers failures.
            slots.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.open().is_some());
        }
        if slots.len() >= limit {
            return Err(NativeError::TooManyPeers { endpoint: endpoint.clone(), limit });
        }
        Ok(Arc::clone(slots.entry(endpoint.clone()).or_default()))
    }

    /// Connections let no such answer through.
    fn unfit(&self, to: &Target, answer: &Answer) -> NativeError {
        let reason = super::close::CloseReason::Closed { reason: format!("answer is {:?}", answer.kind()) };
        let source = CallError::Disconnected { reason, delivered: true };
        NativeError::Call { endpoint: to.endpoint.clone(), source }
    }
}

impl fmt::Debug for NativeClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeClient").field("peers", &self.slots().len()).finish_non_exhaustive()
    }
}

/// The open connection, if it is to the one that is meant. One that was meant under another life may be a newer life
/// than that of the connection, so it is not an error yet.
fn fitting(slot: &Slot, to: &Target) -> Option<NativePeer> {
    slot.open().filter(|peer| to.expects.mismatch(peer.id()).is_none())
}

fn dial_error(to: &Target, source: Arc<DialError>, pause: Option<Duration>) -> NativeError {
    NativeError::Dial { endpoint: to.endpoint.clone(), source, pause }
}
