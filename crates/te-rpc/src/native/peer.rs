//! A connected peer, to ask.

use std::{
    collections::HashMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::{
    net::TcpStream,
    sync::{Notify, oneshot},
    time::timeout_at,
};

use super::{
    close::{CallError, CloseReason, END_OF_LIFE},
    codec,
    frame::{ControlFrame, PeerId, RefuseReason, RequestId},
    limits::NativeLimits,
    machine::{ControlMachine, NotSent, Output},
    queue::SendQueue,
    request::{Answer, Request},
};

type Outcome = Result<Answer, CallError>;

/// One open connection to a peer, whoever opened it. Clones are the same connection; it stays open without any.
#[derive(Clone)]
pub struct NativePeer {
    pub(crate) link: Arc<Link>,
    pub(crate) id: Arc<PeerId>,
    pub(crate) address: SocketAddr,
}

impl NativePeer {
    /// Who it is.
    pub fn id(&self) -> &PeerId {
        &self.id
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The version that is spoken; [`None`] once the connection has ended.
    pub fn version(&self) -> Option<u16> {
        self.link.lock().machine.peer().map(|(_, version)| version)
    }

    /// Whether the connection is open.
    pub fn is_open(&self) -> bool {
        self.version().is_some()
    }

    /// Why the connection has ended.
    pub fn closed(&self) -> Option<CloseReason> {
        self.link.lock().closed.clone()
    }

    /// Whether both are the same connection, not just the same peer.
    pub fn is_same_connection(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.link, &other.link)
    }

    /// Sends a request and waits for its answer, any number at the same time. Waits for room if much is waiting to be
    /// sent already. Dropping the future takes back nothing that was sent.
    ///
    /// # Errors
    ///
    /// [`CallError`] at `deadline` at the latest; see [`CallError::may_have_been_delivered`].
    pub async fn call(&self, request: Request, deadline: Instant) -> Result<Answer, CallError> {
        let mut request = Some(request);
        let (ended, start) = loop {
            let room = self.link.room.notified();
            match self.link.begin(&mut request, deadline)? {
                Some(begun) => break begun,
                None => timeout_at(deadline.into(), room)
                    .await
                    .map_err(|_| CallError::DeadlineExceeded { delivered: false })?,
            }
        };
        match timeout_at(deadline.into(), ended).await {
            Ok(Ok(outcome)) => outcome,
            // Whoever drops the sender has noted why.
            Ok(Err(_)) => Err(self.link.lock().disconnected(start)),
            Err(_) => Err(CallError::DeadlineExceeded { delivered: self.link.lock().queue.is_sent(start) }),
        }
    }

    /// Says goodbye and closes. Requests without an answer fail.
    pub fn close(&self, reason: &str) {
        self.link.close(reason);
    }

    /// As [`close`](Self::close), and says that we end, not only this connection; see [`CloseReason::is_end_of_life`].
    pub fn end_of_life(&self) {
        self.link.close(END_OF_LIFE);
    }
}

impl fmt::Debug for NativePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativePeer").field("id", &self.id).field("address", &self.address).finish()
    }
}

/// A connection as its driver and those who ask share it.
pub(crate) struct Link {
    state: Mutex<LinkState>,
    /// There is something to do for the driver.
    pub(crate) wake: Notify,
    /// There may be room in the queue.
    room: Notify,
    limits: NativeLimits,
}

pub(crate) struct LinkState {
    pub(crate) machine: ControlMachine,
    pub(crate) queue: SendQueue,
    calls: HashMap<RequestId, (oneshot::Sender<Outcome>, u64)>,
    /// Told once how the handshake ended; only for a connection that we open.
    handshake: Option<oneshot::Sender<Result<PeerId, CloseReason>>>,
    knock: Option<PeerId>,
    opened: Option<PeerId>,
    asked: Vec<(RequestId, Request)>,
    closed: Option<CloseReason>,
}

/// What the driver has to do, as of one moment.
pub(crate) struct Step {
    pub(crate) knock: Option<PeerId>,
    pub(crate) opened: Option<PeerId>,
    pub(crate) asked: Vec<(RequestId, Request)>,
    pub(crate) closed: Option<CloseReason>,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) serving: usize,
    pub(crate) queued: usize,
    pub(crate) wake_at: Option<Instant>,
}

impl Link {
    pub(crate) fn new(
        machine: ControlMachine,
        first: &[u8],
        limits: NativeLimits,
        handshake: Option<oneshot::Sender<Result<PeerId, CloseReason>>>,
    ) -> Self {
        let state = LinkState {
            machine,
            queue: SendQueue::new(first, Instant::now()),
            calls: HashMap::new(),
            handshake,
            knock: None,
            opened: None,
            asked: Vec::new(),
            closed: None,
        };
        Self { state: Mutex::new(state), wake: Notify::new(), room: Notify::new(), limits }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets time pass, and says what is to do.
    pub(crate) fn step(&self, now: Instant) -> Step {
        let mut state = self.lock();
        let stall = self.limits.stall;
        state.machine.tick(now);
        if state.queue.stalled_at(stall).is_some_and(|at| at <= now) {
            state.machine.end(CloseReason::NotReading);
        }
        state.pump(now, self.limits.max_queued);
        if state.closed.is_some() || state.queue.len() < self.limits.max_queued {
            self.room.notify_waiters();
        }
        let wake_at = state.machine.wake_at().into_iter().chain(state.queue.stalled_at(stall)).min();
        Step {
            knock: state.knock.take(),
            opened: state.opened.take(),
            asked: std::mem::take(&mut state.asked),
            closed: state.closed.clone(),
            reads: state.machine.wants_input(),
            writes: state.queue.len() > 0,
            serving: state.machine.serving(),
            queued: state.queue.allocated(),
            wake_at,
        }
    }

    pub(crate) fn decide(&self, verdict: Result<(), RefuseReason>) {
        self.lock().machine.decide(Instant::now(), verdict);
    }

    pub(crate) fn answer(&self, id: RequestId, answer: Answer) {
        self.lock().machine.answer(id, answer);
    }

    pub(crate) fn close(&self, reason: &str) {
        self.lock().machine.close(reason);
        self.wake.notify_one();
    }

    pub(crate) fn end(&self, reason: CloseReason) {
        let mut state = self.lock();
        state.machine.end(reason);
        state.pump(Instant::now(), self.limits.max_queued);
        self.room.notify_waiters();
    }

    pub(crate) fn write(&self, stream: &TcpStream) -> std::io::Result<()> {
        self.lock().queue.write(stream, Instant::now())
    }

    /// Sends the request, unless there is no room.
    fn begin(
        &self,
        request: &mut Option<Request>,
        deadline: Instant,
    ) -> Result<Option<(oneshot::Receiver<Outcome>, u64)>, CallError> {
        let mut state = self.lock();
        let start = state.queue.end();
        if state.machine.peer().is_some() && state.queue.len() >= self.limits.max_queued {
            return Ok(None);
        }
        let Some(request) = request.take() else { return Err(state.disconnected(start)) };
        let id = state.machine.request(request, deadline).map_err(|error| match error {
            NotSent::NotOpen => state.disconnected(start),
            NotSent::TooManyPending { limit } => CallError::TooManyPending { limit },
            NotSent::OverBound(error) => CallError::OverBound(error),
        })?;
        let (sender, receiver) = oneshot::channel();
        state.calls.insert(id, (sender, start));
        state.pump(Instant::now(), usize::MAX);
        self.wake.notify_one();
        Ok(Some((receiver, start)))
    }
}

impl LinkState {
    fn disconnected(&self, start: u64) -> CallError {
        let reason = self.closed.clone().unwrap_or(CloseReason::Lost { error: None });
        CallError::Disconnected { reason, delivered: self.queue.is_sent(start) }
    }

    fn pump(&mut self, now: Instant, max_queued: usize) {
        while let Some(output) = self.machine.poll() {
            match output {
                Output::Send(frame) => self.send(&frame, now, max_queued),
                Output::Knock(peer) => self.knock = Some(peer),
                Output::Opened(peer) => {
                    if let Some(handshake) = self.handshake.take()
                        && handshake.send(Ok(peer.clone())).is_err()
                    {
                        self.machine.close("nobody waits for this connection any more");
                    }
                    self.opened = Some(peer);
                }
                Output::Asked(id, request) => self.asked.push((id, request)),
                Output::Answered(id, answer) => {
                    if let Some((caller, _)) = self.calls.remove(&id) {
                        caller.send(Ok(answer)).ok();
                    }
                }
                Output::Expired(id) => {
                    if let Some((caller, start)) = self.calls.remove(&id) {
                        let delivered = self.queue.is_sent(start);
                        caller.send(Err(CallError::DeadlineExceeded { delivered })).ok();
                    }
                }
                Output::Closed(reason) => {
                    self.asked.clear();
                    if let Some(handshake) = self.handshake.take() {
                        handshake.send(Err(reason.clone())).ok();
                    }
                    for (_, (caller, start)) in self.calls.drain() {
                        let (reason, delivered) = (reason.clone(), self.queue.is_sent(start));
                        caller.send(Err(CallError::Disconnected { reason, delivered })).ok();
                    }
                    self.closed = Some(reason);
                }
            }
        }
    }

    fn send(&mut self, frame: &ControlFrame, now: Instant, max_queued: usize) {
        match codec::encode(frame) {
            // The last words pass: there is one of them.
            Ok(_) if self.queue.len() >= max_queued && !self.machine.is_closed() => {
                self.machine.end(CloseReason::NotReading);
            }
            Ok(bytes) => self.queue.push(&bytes, now),
            Err(error) => self.machine.end(CloseReason::Closed { reason: error.to_string() }),
        }
    }
}
