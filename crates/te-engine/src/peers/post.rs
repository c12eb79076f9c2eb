//! Notifications to te peers: one [`Outbox`] for each life of a receiver.
//!
//! An outbox without letters that is forgotten for want of room takes its numbers with it: the next one, for whatever
//! life, counts on from the highest number that was ever used, so that no receiver takes news for a repetition.

use std::collections::HashMap;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use te_rpc::native::{Answer, BatchOutcome, NativeClient, NativeError, Request, Target};
use te_segment::Incarnation;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::machines::delivery::{Delivery, Outbox, OutboxAction, OutboxSettings, QueueFull, Tidings};

/// Lives that notifications were sent to.
const LIVES: usize = 16_384;
/// Pause after a connection that failed.
const AGAIN: Duration = Duration::from_millis(20);

/// A notification on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Letter {
    pub(crate) name: String,
    pub(crate) message: String,
    pub(crate) tidings: Tidings,
}

/// How a letter ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Posted {
    pub(crate) delivery: Delivery,
    /// It may have been taken although it was not acknowledged.
    pub(crate) maybe_taken: bool,
    /// The receiver said last that its queue is full.
    pub(crate) full: bool,
    /// What went wrong last, if anything did.
    pub(crate) trouble: Option<String>,
}

/// Why a letter was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotPosted {
    /// So many wait for this receiver already.
    QueueFull { limit: usize },
    /// There are letters to so many receivers already.
    TooManyReceivers { limit: usize },
    /// The engine is ending.
    Closed,
}

/// All outboxes of one engine.
pub(crate) struct Post {
    boxes: Mutex<Boxes>,
    runtime: Handle,
    /// How long one request may take.
    patience: Duration,
}

#[derive(Default)]
struct Boxes {
    by_life: HashMap<Incarnation, Arc<Mailbox>>,
    /// The highest number of all that are forgotten.
    highest: u64,
    closed: bool,
}

struct Mailbox {
    life: Incarnation,
    to: Target,
    state: Mutex<State>,
    wake: Notify,
}

struct State {
    outbox: Outbox<Letter>,
    ends: HashMap<u64, oneshot::Sender<Posted>>,
    /// To be sent, if it still waits.
    send: Option<u64>,
    /// The one whose answer is awaited, and the one that was sent before without an answer.
    asked: Option<u64>,
    unanswered: Option<u64>,
    running: bool,
    /// Taken out of the table.
    retired: bool,
    full: bool,
    trouble: Option<String>,
}

type Sending = Pin<Box<dyn Future<Output = Result<bool, NativeError>> + Send>>;

impl Post {
    pub(crate) fn new(runtime: Handle, patience: Duration) -> Self {
        Self { boxes: Mutex::default(), runtime, patience }
    }

    /// Sends a letter to a life; the receiver hears how it ended, by `deadline`.
    pub(crate) fn send(
        self: &Arc<Self>,
        client: &NativeClient,
        life: Incarnation,
        to: Target,
        letter: Letter,
        deadline: Instant,
    ) -> Result<oneshot::Receiver<Posted>, NotPosted> {
        loop {
            let mailbox = self.mailbox(life, &to)?;
            let mut state = mailbox.state.lock();
            if state.retired {
                continue;
            }
            let (number, actions) = state
                .outbox
                .push(Instant::now(), letter, deadline)
                .map_err(|QueueFull { limit }| NotPosted::QueueFull { limit })?;
            let (sender, ended) = oneshot::channel();
            state.ends.insert(number, sender);
            state.take(actions);
            if !std::mem::replace(&mut state.running, true) {
                self.runtime.spawn(deliver(self.clone(), mailbox.clone(), client.clone()));
            }
            drop(state);
            mailbox.wake.notify_one();
            return Ok(ended);
        }
    }

    /// The life is over: nothing is sent to it any more.
    pub(crate) fn receiver_gone(&self, life: Incarnation) {
        let mailbox = self.boxes.lock().by_life.get(&life).cloned();
        if let Some(mailbox) = mailbox {
            self.retire(&mailbox);
        }
    }

    /// Ends all of it: whatever waits has failed.
    pub(crate) fn close(&self) {
        let all: Vec<_> = {
            let mut boxes = self.boxes.lock();
            boxes.closed = true;
            boxes.by_life.values().cloned().collect()
        };
        for mailbox in all {
            self.retire(&mailbox);
        }
    }

    fn retire(&self, mailbox: &Arc<Mailbox>) {
        let last = {
            let mut state = mailbox.state.lock();
            state.retired = true;
            let actions = state.outbox.receiver_gone();
            state.take(actions);
            state.outbox.last()
        };
        mailbox.wake.notify_one();
        let mut boxes = self.boxes.lock();
        boxes.highest = boxes.highest.max(last);
        if boxes.by_life.get(&mailbox.life).is_some_and(|known| Arc::ptr_eq(known, mailbox)) {
            boxes.by_life.remove(&mailbox.life);
        }
    }

    fn mailbox(&self, life: Incarnation, to: &Target) -> Result<Arc<Mailbox>, NotPosted> {
        let mut boxes = self.boxes.lock();
        if boxes.closed {
            return Err(NotPosted::Closed);
        }
        if let Some(mailbox) = boxes.by_life.get(&life) {
            return Ok(mailbox.clone());
        }
        if boxes.by_life.len() >= LIVES {
            boxes.forget_idle();
        }
        if boxes.by_life.len() >= LIVES {
            return Err(NotPosted::TooManyReceivers { limit: LIVES });
        }
        let mut outbox = Outbox::continuing(OutboxSettings::default(), boxes.highest);
        // Connections are opened by what is sent on them.
        outbox.connected(Instant::now());
        let state = State {
            outbox,
            ends: HashMap::new(),
            send: None,
            asked: None,
            unanswered: None,
            running: false,
            retired: false,
            full: false,
            trouble: None,
        };
        let mailbox = Mailbox { life, to: to.clone(), state: Mutex::new(state), wake: Notify::new() };
        let mailbox = Arc::new(mailbox);
        boxes.by_life.insert(life, mailbox.clone());
        Ok(mailbox)
    }
}

impl Boxes {
    fn forget_idle(&mut self) {
        let highest = &mut self.highest;
        self.by_life.retain(|_, mailbox| {
            let mut state = mailbox.state.lock();
            let idle = !state.running;
            if idle {
                state.retired = true;
                *highest = (*highest).max(state.outbox.last());
            }
            !idle
        });
    }
}

impl State {
    fn take(&mut self, actions: Vec<OutboxAction>) {
        for action in actions {
            match action {
                OutboxAction::Send { number } => self.send = Some(number),
                OutboxAction::Finish { number, outcome } => {
                    if let Some(waiting) = self.ends.remove(&number) {
                        let posted = Posted {
                            delivery: outcome,
                            maybe_taken: self.asked == Some(number) || self.unanswered == Some(number),
                            full: self.full,
                            trouble: self.trouble.clone(),
                        };
                        // Nobody may be waiting any more.
                        let _ = waiting.send(posted);
                    }
                    (self.full, self.trouble) = (false, None);
                }
            }
        }
    }
}

/// Sends what is in the box until it is empty.
async fn deliver(post: Arc<Post>, mailbox: Arc<Mailbox>, client: NativeClient) {
    let mut sending: Option<(u64, Sending)> = None;
    loop {
        let wake_at = {
            let mut state = mailbox.state.lock();
            let actions = state.outbox.tick(Instant::now());
            state.take(actions);
            let Some(wake_at) = state.outbox.wake_at() else {
                state.running = false;
                return;
            };
            // What is asked already is answered or fails with its connection; asking twice on it helps nobody.
            let next = state.send.take().filter(|next| sending.as_ref().is_none_or(|(now, _)| now != next));
            if let Some((number, letter)) = next.and_then(|number| Some((number, state.outbox.note(number)?)))
            {
                let request = request(number, letter);
                state.asked = Some(number);
                let (client, to, until) =
                    (client.clone(), mailbox.to.clone(), Instant::now() + post.patience);
                let call = async move { client.call(&to, request, until).await.map(taken) };
                sending = Some((number, Box::pin(call)));
            }
            wake_at
        };
        let answer = async {
            match &mut sending {
                Some((number, call)) => (*number, call.await),
                None => pending().await,
            }
        };
        tokio::select! {
            (number, outcome) = answer => {
                sending = None;
                answered(&post, &mailbox, number, outcome).await;
            }
            () = mailbox.wake.notified() => {}
            () = tokio::time::sleep_until(wake_at.into()) => {}
        }
    }
}

async fn answered(post: &Post, mailbox: &Arc<Mailbox>, number: u64, outcome: Result<bool, NativeError>) {
    let error = match outcome {
        Ok(taken) => {
            let mut state = mailbox.state.lock();
            (state.asked, state.full) = (None, !taken);
            let actions = state.outbox.answered(Instant::now(), number, taken);
            return state.take(actions);
        }
        Err(error) => error,
    };
    {
        let mut state = mailbox.state.lock();
        state.asked = None;
        if error.may_have_been_delivered() {
            state.unanswered = Some(number);
        }
        state.trouble = Some(error.to_string());
        state.outbox.disconnected();
    }
    if error.stale().is_some() || error.is_refused() {
        return post.retire(mailbox);
    }
    tokio::time::sleep(AGAIN).await;
    let mut state = mailbox.state.lock();
    let actions = state.outbox.connected(Instant::now());
    state.take(actions);
}

fn request(number: u64, letter: &Letter) -> Request {
    let outcome = match letter.tidings {
        Tidings::Success => BatchOutcome::Success,
        Tidings::Failure => BatchOutcome::Failure,
    };
    Request::Notify { batch: number, name: letter.name.clone(), message: letter.message.clone(), outcome }
}

fn taken(answer: Answer) -> bool {
    matches!(answer, Answer::Notify { taken: true })
}
