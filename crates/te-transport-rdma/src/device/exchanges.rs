//! Exchanges with peers that are under way: futures that the set-up thread looks at when they wake it, so that a peer that
//! does not answer costs nobody else any time.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use te_transport::BoxFuture;

use super::setup::Errand;
use super::signals::Signals;

/// What a peer has answered, or why it has not, in words.
pub(crate) type Answer = Result<Vec<u8>, String>;

/// What is under way, each with what is to be done with its answer.
pub(crate) struct Exchanges<T> {
    signals: Arc<Signals>,
    next: u64,
    running: HashMap<u64, (T, BoxFuture<'static, Answer>)>,
}

/// Has the set-up thread look at one exchange.
struct Woken {
    number: u64,
    signals: Arc<Signals>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.signals.errand(Errand::Answer(self.number));
    }
}

impl<T> Exchanges<T> {
    pub(crate) fn new(signals: Arc<Signals>) -> Self {
        Self { signals, next: 0, running: HashMap::new() }
    }

    /// Begins one. It is looked at for the first time when its errand comes.
    pub(crate) fn begin(&mut self, tag: T, exchange: BoxFuture<'static, Answer>) {
        self.next += 1;
        self.running.insert(self.next, (tag, exchange));
        self.signals.errand(Errand::Answer(self.next));
    }

    /// Looks at one; its answer, if it has come.
    pub(crate) fn look(&mut self, number: u64) -> Option<(T, Answer)> {
        let (_, exchange) = self.running.get_mut(&number)?;
        let waker = Waker::from(Arc::new(Woken { number, signals: self.signals.clone() }));
        match exchange.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => None,
            Poll::Ready(answer) => self.running.remove(&number).map(|(tag, _)| (tag, answer)),
        }
    }
}
