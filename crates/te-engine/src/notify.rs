//! Sending notifications: small messages to the owner of a segment, after the data they speak of.
//!
//! A te peer gets them over its native control connection, each exactly once in its life; a reference peer over its own
//! frame, at most once.

use std::sync::Arc;
use std::time::Instant;

use te_rpc::message::NotifyBody;
use te_rpc::native::{MAX_MESSAGE, MAX_NAME};
use te_segment::{Identity, SegmentDescriptor, SegmentName};

use crate::batch::NotifyOutcome;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::machines::delivery::{self, Delivery, Tidings};
use crate::peers::{Letter, NotPosted, PeerTarget, Posted};
use crate::segment::Segment;

/// Whom to notify.
#[derive(Clone)]
pub(crate) enum Receiver {
    /// A life of a te engine.
    Te(PeerTarget),
    /// Whoever has the name.
    Reference(SegmentName),
}

impl Receiver {
    /// Peers are reached under the name in the descriptor, not the one it was opened by (wire spec).
    pub(crate) fn of(descriptor: &SegmentDescriptor) -> Self {
        match descriptor.identity() {
            Identity::Te { incarnation, control: Some(control) } => Self::Te(PeerTarget {
                control: control.clone(),
                incarnation: *incarnation,
                name: descriptor.name().clone(),
            }),
            _ => Self::Reference(descriptor.name().clone()),
        }
    }

    fn name(&self) -> &SegmentName {
        match self {
            Self::Te(target) => &target.name,
            Self::Reference(name) => name,
        }
    }
}

/// A notification to be sent when its batch is over.
pub(crate) struct Notice {
    core: Arc<Core>,
    to: Receiver,
    name: String,
    message: String,
    tell_failure: bool,
}

impl Notice {
    pub(crate) fn new(
        core: &Arc<Core>,
        to: &Segment,
        name: String,
        message: String,
        tell_failure: bool,
    ) -> Result<Self> {
        check_size(core, &name, &message)?;
        Ok(Self { core: core.clone(), to: Receiver::of(&to.descriptor()), name, message, tell_failure })
    }

    /// What is to be told of the batch, which is over.
    pub(crate) fn tidings(&self, all_applied: bool) -> Option<Tidings> {
        // The frame of reference peers cannot speak of failures.
        let tell_failure = self.tell_failure && matches!(self.to, Receiver::Te(_));
        delivery::notice(all_applied, tell_failure)
    }

    /// Tells of a success from the control runtime, and tells `ended` the outcome, by the deadline.
    pub(crate) fn send_in_background(
        self,
        deadline: Instant,
        ended: impl FnOnce(NotifyOutcome) + Send + 'static,
    ) {
        let handle = self.core.runtime().handle().clone();
        // Made before the task, so that it is told even if the runtime has ended.
        let ended = Told(Some(ended));
        handle.spawn(async move {
            let letter = Letter { name: self.name, message: self.message, tidings: Tidings::Success };
            ended.tell(match send(&self.core, &self.to, letter, deadline).await {
                Ok(()) => NotifyOutcome::Delivered,
                Err(error) => NotifyOutcome::Failed(error.to_string()),
            });
        });
    }

    /// Tells of a failure, with the time that any request has: the batch's own may be over, and nobody waits.
    pub(crate) fn send_failure(self) {
        let deadline = Instant::now() + self.core.limits().request_deadline;
        let handle = self.core.runtime().handle().clone();
        handle.spawn(async move {
            let letter = Letter { name: self.name, message: self.message, tidings: Tidings::Failure };
            if let Err(error) = send(&self.core, &self.to, letter, deadline).await {
                tracing::warn!(target: "te::engine", %error, "the receiver does not know that a batch failed");
            }
        });
    }
}

/// Calls the function once, whatever becomes of the task that should.
struct Told<F: FnOnce(NotifyOutcome)>(Option<F>);

impl<F: FnOnce(NotifyOutcome)> Told<F> {
    fn tell(mut self, outcome: NotifyOutcome) {
        if let Some(ended) = self.0.take() {
            ended(outcome);
        }
    }
}

impl<F: FnOnce(NotifyOutcome)> Drop for Told<F> {
    fn drop(&mut self) {
        if let Some(ended) = self.0.take() {
            ended(NotifyOutcome::Failed("the engine has shut down".to_owned()));
        }
    }
}

pub(crate) fn check_size(core: &Core, name: &str, message: &str) -> Result<()> {
    let over = |what: &str, size: usize, limit: usize| {
        let cause = format!("{what} {size} bytes, over the limit of {limit}");
        Err(Error::new(ErrorKind::LimitReached, "send a notification", cause))
    };
    let (size, limit) = (name.len() + message.len(), core.limits().notify_payload);
    if size > limit {
        return over("name and message have", size, limit);
    }
    if name.len() > MAX_NAME {
        return over("the name has", name.len(), MAX_NAME);
    }
    if message.len() > MAX_MESSAGE {
        return over("the message has", message.len(), MAX_MESSAGE);
    }
    Ok(())
}

/// Sends one notification by name. A name that has changed its owner meanwhile is looked up once more, unless the
/// notification may have been taken already.
pub(crate) async fn send_by_name(
    core: &Arc<Core>,
    to: &SegmentName,
    letter: Letter,
    deadline: Instant,
) -> Result<()> {
    let operation = || format!("notify {to}");
    let known = core.cache().lookup(to).map(|segment| segment.snapshot().descriptor.clone());
    let receiver = match &known {
        Some(descriptor) => Receiver::of(descriptor),
        None => resolve(core, to, deadline).await?,
    };
    let outcome = post(core, &receiver, letter.clone(), deadline).await?;
    match outcome {
        Some(Posted { delivery: Delivery::ReceiverGone { .. }, maybe_taken: false, .. })
            if known.is_some() =>
        {
            let receiver = resolve(core, to, deadline).await?;
            judge(&operation(), &receiver, post(core, &receiver, letter, deadline).await?)
        }
        outcome => judge(&operation(), &receiver, outcome),
    }
}

/// Sends one notification and waits until it is delivered.
async fn send(core: &Arc<Core>, to: &Receiver, letter: Letter, deadline: Instant) -> Result<()> {
    let outcome = post(core, to, letter, deadline).await?;
    judge(&format!("notify {}", to.name()), to, outcome)
}

async fn resolve(core: &Core, name: &SegmentName, deadline: Instant) -> Result<Receiver> {
    if name == core.local().name() {
        return Ok(Receiver::Te(core.peers().this()));
    }
    match core.directory().resolve(name, deadline).await {
        Ok(resolved) => Ok(Receiver::of(&resolved.descriptor)),
        Err(error) => Err(Error::from_directory(format!("notify {name}"), Some(name.as_str()), error)),
    }
}

/// `None`: a reference peer took it.
async fn post(core: &Arc<Core>, to: &Receiver, letter: Letter, deadline: Instant) -> Result<Option<Posted>> {
    let operation = || format!("notify {}", to.name());
    let target = match to {
        Receiver::Te(target) => target,
        Receiver::Reference(name) => {
            let body = NotifyBody::new(letter.name, letter.message);
            return send_frame(core, name, &body, deadline).await.map(|()| None);
        }
    };
    let posted = core.peers().notify(target, letter, deadline).map_err(|error| match error {
        NotPosted::Closed => Error::shutdown(operation()),
        NotPosted::QueueFull { limit } => {
            let cause = format!("{limit} notifications wait for this receiver already");
            Error::new(ErrorKind::LimitReached, operation(), cause).with_retry(Retry::Later)
        }
        NotPosted::TooManyReceivers { limit } => {
            let cause = format!("notifications wait for {limit} receivers already");
            Error::new(ErrorKind::LimitReached, operation(), cause).with_retry(Retry::Later)
        }
    })?;
    posted.await.map(Some).map_err(|_| Error::shutdown(operation()))
}

fn judge(operation: &str, to: &Receiver, posted: Option<Posted>) -> Result<()> {
    let (Some(posted), Receiver::Te(target)) = (posted, to) else { return Ok(()) };
    let Posted { delivery, maybe_taken, full, trouble } = posted;
    let maybe = if maybe_taken { "; it may have been taken" } else { "" };
    let last = trouble.map(|trouble| format!("; the last attempt: {trouble}")).unwrap_or_default();
    let (kind, cause, retry) = match delivery {
        Delivery::Delivered => return Ok(()),
        Delivery::Expired { .. } if full => {
            (ErrorKind::NotifyRejected, "the receiver's queue is full".to_owned(), Retry::Later)
        }
        Delivery::Expired { .. } => {
            let cause = format!("not acknowledged by the deadline{maybe}{last}");
            (ErrorKind::PeerUnreachable, cause, Retry::Later)
        }
        Delivery::ReceiverGone { .. } => {
            let cause = format!("incarnation {} is gone{maybe}{last}", target.incarnation);
            (ErrorKind::PeerUnreachable, cause, Retry::AfterReopen)
        }
    };
    Err(Error::new(kind, operation, cause)
        .with_peer(format!("{} at {}", target.name, target.control))
        .with_retry(retry))
}

/// Sends the frame of the reference engine and waits for the answer.
async fn send_frame(core: &Core, to: &SegmentName, body: &NotifyBody, deadline: Instant) -> Result<()> {
    let operation = || format!("notify {to}");
    let endpoint = core.control_of(to, deadline).await.map_err(|error| error.renamed(operation()))?;
    core.rpc().notify(&endpoint, body, deadline).await.map_err(|error| {
        let kind = match &error {
            te_rpc::RpcError::NotifyRefused { .. } => ErrorKind::NotifyRejected,
            _ => ErrorKind::PeerUnreachable,
        };
        let retry = match error.retry() {
            te_rpc::Retry::CanHelp => Retry::Later,
            te_rpc::Retry::Pointless => Retry::No,
        };
        Error::new(kind, operation(), error.to_string())
            .with_peer(format!("{to} at {endpoint}"))
            .with_retry(retry)
            .with_source(error)
    })
}
