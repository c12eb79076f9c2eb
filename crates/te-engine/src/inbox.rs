//! Received notifications: bounded, in order of arrival, each once; and whoever expects some.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use te_memory::ForkMark;
use te_segment::Incarnation;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::error::{Error, Result};
use crate::machines::arrivals::{Arrival, ArrivalLimits, Arrivals, ExpectationId, Expected as Ended, Note};
use crate::machines::delivery::Tidings;

/// What became of the batch that a notification speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BatchOutcome {
    /// Every byte is applied. Reference peers notify of nothing else.
    Success,
    /// Some request failed; the sender wanted the receiver to know.
    Failure,
}

/// A received notification.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Notification {
    /// The sender's word, usually its segment name.
    pub name: String,
    /// The message.
    pub message: String,
    /// What became of the batch.
    pub outcome: BatchOutcome,
}

/// How an expectation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Expected {
    /// All of them came, and their data is applied.
    Success,
    /// One of the batches failed.
    Failure,
    /// The time is over.
    TimedOut {
        /// Successes that came until then; they are used up.
        arrived: u32,
    },
}

/// Notifications that are waited for; see [`Engine::expect`](crate::Engine::expect). A future of how it ends;
/// [`wait`](Self::wait) for programs that block. Dropping it gives up: later arrivals are ordinary notifications.
#[must_use = "dropping it gives up"]
pub struct Expectation {
    inbox: Arc<Inbox>,
    id: ExpectationId,
    ended: oneshot::Receiver<Expected>,
    timer: AbortHandle,
}

impl Expectation {
    /// Blocks until it has ended.
    ///
    /// # Errors
    ///
    /// [`Shutdown`](crate::ErrorKind::Shutdown) when the engine ends first.
    pub fn wait(self) -> Result<Expected> {
        crate::runtime::block_on(self)
    }
}

impl Future for Expectation {
    type Output = Result<Expected>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let operation = "expect notifications";
        self.inbox.check_process(operation)?;
        let ended = Pin::new(&mut self.ended).poll(context);
        ended.map(|ended| ended.map_err(|_| Error::shutdown(operation)))
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        if self.inbox.mark.is_forked() {
            return;
        }
        self.timer.abort();
        self.inbox.forget(self.id);
    }
}

impl std::fmt::Debug for Expectation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Expectation").field("id", &self.id).finish_non_exhaustive()
    }
}

/// There are as many expectations as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyExpectations {
    pub(crate) limit: usize,
}

/// Received and not yet taken notifications.
pub(crate) struct Inbox {
    state: Mutex<State>,
    limits: ArrivalLimits,
    arrived: Condvar,
    async_arrived: tokio::sync::Notify,
    mark: Arc<ForkMark>,
}

struct State {
    arrivals: Arrivals,
    waiting: HashMap<ExpectationId, oneshot::Sender<Expected>>,
    closed: bool,
}

impl Inbox {
    pub(crate) fn new(queue: usize, mark: Arc<ForkMark>) -> Self {
        let limits = ArrivalLimits { queue, ..ArrivalLimits::default() };
        let state = State { arrivals: Arrivals::new(limits), waiting: HashMap::new(), closed: false };
        Self {
            state: Mutex::new(state),
            limits,
            arrived: Condvar::new(),
            async_arrived: tokio::sync::Notify::new(),
            mark,
        }
    }

    fn check_process(&self, operation: &str) -> Result<()> {
        if self.mark.is_forked() { Err(Error::forked_child(operation, self.mark.process())) } else { Ok(()) }
    }

    /// Takes a notification of a reference peer in; false when the queue is full, which the sender is told.
    pub(crate) fn push(&self, name: String, message: String) -> bool {
        let note = Note { name, message, tidings: Tidings::Success };
        self.change(|arrivals| arrivals.offer_unnumbered(note)) == Arrival::Taken
    }

    /// Takes a numbered notification of a te peer in; false when there is no room for it.
    pub(crate) fn offer(&self, sender: Incarnation, number: u64, note: Note) -> bool {
        self.change(|arrivals| arrivals.offer(sender, number, note)) != Arrival::Full
    }

    /// A sender is connected.
    pub(crate) fn connected(&self, sender: Incarnation) {
        self.change(|arrivals| arrivals.connected(sender));
    }

    /// A sender has no connection any more.
    pub(crate) fn disconnected(&self, sender: Incarnation) {
        self.change(|arrivals| arrivals.disconnected(sender));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Arrivals) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state.arrivals);
        state.serve();
        drop(state);
        self.arrived.notify_one();
        self.async_arrived.notify_one();
        result
    }

    pub(crate) fn drain(&self) -> Vec<Notification> {
        if self.mark.is_forked() {
            return Vec::new();
        }
        let mut state = self.state.lock();
        std::iter::from_fn(|| state.arrivals.take()).map(Notification::from).collect()
    }

    /// How many wait to be taken.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().arrivals.waiting()
    }

    pub(crate) fn pop_until(&self, deadline: Instant) -> Option<Notification> {
        if self.mark.is_forked() {
            return None;
        }
        let mut state = self.state.lock();
        loop {
            if let Some(note) = state.arrivals.take() {
                return Some(note.into());
            }
            if state.closed {
                return None;
            }
            if self.arrived.wait_until(&mut state, deadline).timed_out() {
                return state.arrivals.take().map(Notification::from);
            }
        }
    }

    pub(crate) async fn pop(&self) -> Result<Notification> {
        let operation = "wait for a notification";
        self.check_process(operation)?;
        loop {
            // Interest is registered before looking, so that an arrival in between is not missed.
            let arrived = self.async_arrived.notified();
            {
                let mut state = self.state.lock();
                if let Some(note) = state.arrivals.take() {
                    return Ok(note.into());
                }
                if state.closed {
                    return Err(Error::shutdown(operation));
                }
            }
            arrived.await;
        }
    }

    /// Expects so many batches with this message.
    pub(crate) fn expect(
        self: &Arc<Self>,
        runtime: &Handle,
        message: String,
        count: u32,
        deadline: Instant,
    ) -> std::result::Result<Expectation, TooManyExpectations> {
        let (sender, ended) = oneshot::channel();
        let mut state = self.state.lock();
        let id = state
            .arrivals
            .expect(Instant::now(), message, count, deadline)
            .ok_or(TooManyExpectations { limit: self.limits.expectations })?;
        if !state.closed {
            state.waiting.insert(id, sender);
        }
        state.serve();
        drop(state);
        let inbox = Arc::downgrade(self);
        let timer = runtime.spawn(async move {
            tokio::time::sleep_until(deadline.into()).await;
            if let Some(inbox) = inbox.upgrade() {
                inbox.change(|arrivals| arrivals.tick(Instant::now()));
            }
        });
        Ok(Expectation { inbox: self.clone(), id, ended, timer: timer.abort_handle() })
    }

    fn forget(&self, id: ExpectationId) {
        let mut state = self.state.lock();
        state.arrivals.forget(id);
        state.waiting.remove(&id);
    }

    /// The engine ends: nobody waits any more.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.waiting.clear();
        drop(state);
        self.arrived.notify_all();
        self.async_arrived.notify_waiters();
    }
}

impl State {
    fn serve(&mut self) {
        for (id, ended) in self.arrivals.ended() {
            let ended = match ended {
                Ended::Success => Expected::Success,
                Ended::Failure => Expected::Failure,
                Ended::TimedOut { arrived } => Expected::TimedOut { arrived },
            };
            if let Some(waiting) = self.waiting.remove(&id) {
                // Whoever waited may be gone.
                let _ = waiting.send(ended);
            }
        }
    }
}

impl From<Note> for Notification {
    fn from(note: Note) -> Self {
        let outcome = match note.tidings {
            Tidings::Success => BatchOutcome::Success,
            Tidings::Failure => BatchOutcome::Failure,
        };
        Self { name: note.name, message: note.message, outcome }
    }
}
